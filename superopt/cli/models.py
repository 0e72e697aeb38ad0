"""Commands on models: optimize, explain, inspect, convert, diff, verify, check-values, cost, profile, schema."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from superopt import TIME_LIMIT
from superopt.cli.many import optimize_many, refuse_second
from superopt.cli.outputs import claim, distinct, refuse_own_files
from superopt.cli.shell import (
    MOST_WORKERS,
    Cluster,
    Dims,
    Force,
    Input,
    Json,
    Model,
    Progress,
    Runtime,
    Seed,
    Target,
    Threads,
    TimeLimit,
    err,
    npz,
    out,
    parse_bytes,
    parse_dims,
    save,
    write_json,
    write_text,
    written_beside,
)
from superopt.ir.errors import InvalidModel, NotEquivalent, SuperoptError, UsageError, printable
from superopt.ir.interpreter import rarely_collected
from superopt.ir.temporary import TemporaryFolder

__all__ = ["COMMANDS"]

MOST_TRIALS = 1_000_000  # of verify: more would be waited for in vain


def optimize(
    context: typer.Context,
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="ONNX model or superopt JSON graph; - reads standard input")
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT",
            help="where the result is written: .onnx or .json; - is standard output; a folder for several models",
        ),
    ] = None,
    target: Target = "cpu",
    runtime: Runtime = "onnxruntime",
    time_limit: TimeLimit = TIME_LIMIT,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            metavar="B",
            envvar="SUPEROPT_MEMORY_LIMIT",
            help="bytes that the result may take in memory, and the search on top: 512M, 2G",
        ),
    ] = None,
    seed: Seed = 0,
    rules: Annotated[
        Path | None, typer.Option(metavar="DIR", help="a library of rules used besides the built-in one")
    ] = None,
    enable: Annotated[list[str] | None, typer.Option(metavar="RULE", help="use only these rules or families")] = None,
    disable: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE",
            help="leave out a rule or a family; or algorithms (with fewer multiplications), or values (rewrites by the "
            "elements of weights)",
        ),
    ] = None,
    dim: Dims = None,
    threads: Threads = 1,
    workers: Annotated[
        int, typer.Option(min=0, max=MOST_WORKERS, help="how many models are optimized at once; 0: one a core")
    ] = 0,
    cluster: Cluster = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure", help="time the input and the result for longer, and on this machine whatever the target"
        ),
    ] = False,
    verify_by: Annotated[
        str,
        typer.Option("--verify", metavar="test|certify", help="certify: also prove the result equal, region by region"),
    ] = "test",
    no_check: Annotated[bool, typer.Option("--no-check", help="do not compare the result with the input")] = False,
    check: Annotated[
        str,
        typer.Option(
            metavar="quick|full", help="full: also compare both with a float64 reference, however long it takes"
        ),
    ] = "quick",
    strict: Annotated[
        bool, typer.Option("--strict", help="fail (exit 4) if superopt does not understand a node")
    ] = False,
    floats: Annotated[
        str,
        typer.Option(
            "--float",
            metavar="strict|standard|fast",
            help="strict: rules that are safe for all floats, and no algorithm with fewer multiplications. standard: "
            "also rules whose conditions hold, and algorithms with errors up to 1e-5. fast: all rules that are true of "
            "the reals, and errors up to 1e-4",
        ),
    ] = "standard",
    effort: Annotated[
        str, typer.Option(metavar="quick|default|thorough", help="how much work the search and the benchmark may do")
    ] = "default",
    objective: Annotated[
        str,
        typer.Option(
            metavar="time|memory|pareto",
            help="memory: the least memory for activations; pareto: also results that trade time "
            "for memory, written beside OUT as OUT-1, OUT-2, ...",
        ),
    ] = "time",
    functions: Annotated[
        str,
        typer.Option(
            metavar="keep|inline",
            help="keep: a call of the model's own function stays one where its body is not rewritten; inline: its body "
            "takes its place",
        ),
    ] = "keep",
    learn: Annotated[
        float | None,
        typer.Option(
            "--discover",
            metavar="S",
            min=1,
            help="first search so many seconds for rules of MODEL's own, at most half of a given time limit",
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="show each step with its estimated gain, where rules were applied, and near misses"
        ),
    ] = False,
    report_json: Json = None,
    report_html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="write the report as a page")
    ] = None,
    certificates: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="write certificates of rewrites by weights' elements, for superopt check-values MODEL DIR",
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Rewrite MODEL into a faster, equivalent one, and report what changed. It takes seconds to minutes.

    The input is returned unchanged where no result is faster beyond the uncertainty of the measurement, or simpler.

    Several models are written into the folder OUT; the same command continues a run that was stopped.
    """
    with rarely_collected():  # hundreds of modules
        from superopt import pipeline
        from superopt.pipeline import child_process
        from superopt.pipeline.options import MOST_PARETO, one_of
        from superopt.report.terminal import show_explanation, show_report
        from superopt.runtime.limits import thrifty_heap

    one_of("verify", verify_by, ("test", "certify"), flags=True)
    one_of("check", check, ("quick", "full"), flags=True)
    options = pipeline.Options(
        target=target, time_limit=time_limit, memory_limit=parse_bytes(memory_limit), seed=seed, rules=rules,
        enable=tuple(enable or ()), disable=tuple(disable or ()), sizes=parse_dims(dim or []), threads=threads,
        measure=measure, check=not no_check, full_check=check == "full", certify=verify_by == "certify", strict=strict,
        floats=floats, effort=effort, runtime=runtime, objective=objective,
        functions=functions,
    )  # fmt: skip
    options.validate(flags=True)
    source = context.get_parameter_source("cluster")
    asked = cluster is not None and source is not None and source.name == "COMMANDLINE"
    if len(models) > 1 or asked:
        if output is None and len(models) > 1:
            refuse_second(models)
        if explain or learn is not None or report_html is not None or certificates is not None:
            raise UsageError(
                "--explain, --discover, --certificates and --html are about one model, optimized here",
                hint="name one" if len(models) > 1 else "leave out --cluster",
            )
        code = optimize_many(
            models, output, options, workers=workers, cluster=cluster, report_json=report_json, force=force
        )
        raise typer.Exit(code)
    if cluster is not None:
        err().print("the cluster of the settings is not used: it is for several models", markup=False)
    model = models[0]
    destinations = {"-o": output, "--json": report_json, "--html": report_html}
    claim(destinations, [model], force=force)
    if objective == "pareto" and output is not None:
        besides = {f"OUT-{i + 1}": name for i, name in enumerate(_beside(output, MOST_PARETO))}
        claim(destinations | besides, [model], force=force)
    if certificates is not None and certificates.exists():
        raise UsageError(f"{printable(str(certificates))} exists", hint="--certificates makes a folder of its own")
    if no_check and check == "full":
        raise UsageError("--no-check leaves out what --check full asks for", hint="leave out one of the two")
    if learn is not None and rules is not None:
        raise UsageError("--discover writes rules of its own", hint="leave out --rules, or discover --from beforehand")
    thrifty_heap()
    child_process.allow_child_process("rich.live", "superopt.cli.progress")  # which only show what is done
    with Input(model) as path, Progress() as progress, ExitStack() as held:
        if learn is not None:
            from superopt.pipeline.rule_learning import learn_from

            own = held.enter_context(TemporaryFolder("rules"))
            progress(0, None, "learning from the model")
            source = context.get_parameter_source("time_limit")
            limited = source is not None and source.name != "DEFAULT"
            started, seconds = time.monotonic(), min(learn, time_limit / 2) if limited else learn
            learnt = learn_from(
                [path], out=own, target=target, runtime=runtime, time_limit=seconds, sizes=options.sizes,
                seed=seed,
            )  # fmt: skip
            if limited:
                options = replace(options, time_limit=max(0.0, time_limit - (time.monotonic() - started)))
            err().print(f"learnt: {learnt.said}", markup=False)
            options = replace(options, rules=own if learnt.rules else None)
        result = pipeline.optimize(path, options=options, progress=progress)
        if output is not None:
            beside = _beside(output, len(result.pareto))
            for file in (output, *beside):  # all of them before the first is written
                refuse_own_files(result.original, file)
            save(result.graph, output, force)
            for point, file in zip(result.pareto, beside, strict=False):  # none of them on standard output
                save(point.graph, file, force)
        if certificates is not None and result.by_values:
            from superopt.verifier.weights.files import write_folder

            write_folder(certificates, result.by_values)
    if explain or report_json is not None or report_html is not None:
        told, _ = pipeline.explained(result, options)
        if report_json is not None or report_html is not None:
            told = replace(told, memory=pipeline.memory_report(result.original, result.graph, options))
        result = replace(result, report=told)
    if report_json is not None:
        write_json(result.report.json(), report_json, force)
    if report_html is not None:
        from superopt.report.html import render

        write_text(render(model, result.report), str(report_html), force)
    busy = "-" in (output, report_json)
    console = err() if busy else out()
    show_report(console, model, result.report, estimates=explain)
    if explain:
        show_explanation(console, result.report)
    if output is None and result.report.status == "improved":
        console.print("not written; add -o FILE")
    elif output not in (None, "-"):
        console.print(f"wrote {', '.join((output, *beside))}", markup=False)
    if certificates is not None:
        console.print(
            f"wrote {certificates}" if result.by_values else "nothing rests on weights: no certificates", markup=False
        )
    if result.report.search.stopped == "interrupted":
        raise typer.Exit(130)


def slim(
    model: Model,
    output: Annotated[str, typer.Argument(metavar="OUT", help="where the result is written: .onnx or .json")],
    time_limit: TimeLimit = 60.0,
    effort: Annotated[
        str, typer.Option(metavar="quick|default|thorough", help="how much work the search and the benchmark may do")
    ] = "quick",
    input_shapes: Annotated[
        list[str] | None,
        typer.Option("--input-shapes", metavar="NAME:N,N", help="sizes that an input has from now on: x:1,3,224,224"),
    ] = None,
    force: Force = False,
) -> None:
    """Write a faster, equivalent MODEL to OUT, as an exporter calls it; MODEL itself where nothing better was found.

    It never fails on a valid model. superopt.slim(model) is the same from Python, in place of OnnxSlim's.
    """
    with rarely_collected():  # hundreds of modules
        from superopt.pipeline.integrations.drop_in import slim_graph, with_input_shapes
        from superopt.pipeline.optimization import load
        from superopt.runtime.limits import thrifty_heap

    claim({"OUT": output}, [model], force=force)
    thrifty_heap()
    with Input(model) as path:
        graph = with_input_shapes(load(path), input_shapes)
        result, _, text = slim_graph(graph, time_limit, effort)
        refuse_own_files(graph, output)
        save(result, output, force)
    (err() if output == "-" else out()).print(f"{model}: {text}; wrote {output}", markup=False)


def _beside(output: str, count: int) -> list[str]:
    """Names of files for the graphs that trade time for memory, by rising time; none on standard output."""
    from superopt.pipeline.options import pareto_paths

    return [] if output == "-" else [str(path) for path in pareto_paths(Path(output), count)]


def explain(
    model: Model,
    target: Target = "cpu",
    runtime: Runtime = "onnxruntime",
    time_limit: TimeLimit = TIME_LIMIT,
    dim: Dims = None,
    made: Annotated[
        str | None,
        typer.Option("--result", metavar="MODEL", help="the result of an earlier run; MODEL is not optimized again"),
    ] = None,
    step: Annotated[int | None, typer.Option(metavar="N", min=1, help="write the model after step N to OUT")] = None,
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="OUT", help=".onnx or .json")] = None,
    report_json: Json = None,
    force: Force = False,
) -> None:
    """Show what optimize does to MODEL, step by step: the rules, where they apply, and what each step gains.

    It optimizes the model first, which takes seconds to minutes. Each step leaves a whole model, which --step N -o FILE
    writes. For a model that superopt wrote, it also shows which rules made each node.
    """
    from superopt import pipeline
    from superopt.formats import load
    from superopt.report.terminal import show_derivation, show_explanation, show_report
    from superopt.report.views import show_provenance

    if (step is None) != (output is None):
        raise UsageError("--step N and -o OUT go together")
    claim({"-o": output, "--json": report_json}, [model, made] if made else [model], force=force)
    options = pipeline.Options(target=target, runtime=runtime, time_limit=time_limit, sizes=parse_dims(dim or []))
    console = err() if "-" in (output, report_json) else out()
    with Input(model) as path, Progress() as progress:
        if made is None:
            result = pipeline.optimize(path, options=options, progress=progress)
            told, found = pipeline.explained(result, options)
            show_provenance(console, result.original)
            show_report(console, model, told, estimates=True)
            show_explanation(console, told)
        else:
            with Input(made) as other:
                found = pipeline.derive(load(path), load(other), target=target, runtime=runtime, sizes=options.sizes)
            show_derivation(console, found.json())
    if report_json is not None:
        write_json(found.json() if found is not None else None, report_json, force)
    if step is not None and output is not None:
        if found is None or step > len(found.steps):
            raise UsageError(f"there is no step {step}: there are {len(found.steps) if found else 0}")
        save(found.steps[step - 1].graph, output, force)


def inspect(model: Model, dim: Dims = None, report_json: Json = None, force: Force = False) -> None:
    """Show MODEL's signature, operators, weights, work, and the operators that superopt does not understand."""
    from superopt.pipeline import inspect as look
    from superopt.report.views import show_inspection

    claim({"--json": report_json}, [model], force=force)
    with Input(model) as path:
        facts = look(path, sizes=parse_dims(dim or []))
    if report_json is not None:
        write_json(facts, report_json, force)
    if report_json != "-":
        show_inspection(out(), model, facts)


def convert(
    source: Model, destination: Annotated[str, typer.Argument(help=".onnx or .json")], force: Force = False
) -> None:
    """Convert between ONNX and superopt's JSON graph, without loss."""
    from superopt.formats import load

    claim({"OUT": destination}, [source], force=force)
    with Input(source) as path:
        save(load(path), destination, force)


def diff(a: Model, b: Model, report_json: Json = None, force: Force = False) -> None:
    """List the nodes of A and of B that compute something the other model does not. Exit code 0 in any case."""
    from superopt.formats import load
    from superopt.ir.diff import compare
    from superopt.report.views import diff_data, show_diff

    claim({"--json": report_json}, [a, b], force=force)
    with Input(a) as first, Input(b) as second, Progress("comparing the models"):
        found = compare(load(first), load(second))
    if report_json is not None:
        write_json(diff_data(found), report_json, force)
    if report_json != "-":
        show_diff(out(), a, b, found)


def verify(
    a: Model,
    b: Model,
    time_limit: Annotated[float, typer.Option(metavar="S", min=0.1, help="seconds for the proof of each region")] = 5.0,
    trials: Annotated[int, typer.Option(min=1, max=MOST_TRIALS, help="random inputs on which both models are run")] = 3,
    seed: Seed = 0,
    errors: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            metavar="SHARE",
            help="error that is allowed besides rounding, as a share of an output's largest element",
        ),
    ] = 0.0,
    counterexample: Annotated[
        Path, typer.Option(metavar="FILE", help="where to write inputs on which the models differ")
    ] = Path("counterexample.npz"),
    report_json: Json = None,
    force: Force = False,
) -> None:
    """Decide whether A and B compute the same. It takes seconds to minutes.

    Verdicts: proved (every node is literally the same, or over the reals, up to the rounding of folded constants: max
    n ulp); tested (power n %); refuted (with inputs on which the models differ, or: does not run); unknown (A does not
    run, or too little was exercised). "differs at NaN, infinities, overflow" names where a proof over the reals fails.
    The exit code is 5 when refuted. Without -f an existing file is kept, and a new name is used.

    A result with fewer multiplications rounds differently: --errors 1e-5 allows what optimize allows by default.
    """
    from superopt.formats import load
    from superopt.report.views import show_verdict, verdict_data
    from superopt.verifier.equivalence.graphs import verify as compare
    from superopt.verifier.equivalence.refusals import verdict_on_invalid

    claim({"--json": report_json}, [a, b], force=True)  # what exists gets a fresh name: it must not hide a verdict
    distinct({"--counterexample": counterexample, "--json": report_json}, [a, b])
    with Input(a) as first, Input(b) as second:
        before = load(first)
        try:
            after = load(second)
        except InvalidModel as error:
            found = verdict_on_invalid(before, second, error)
        else:
            found = compare(before, after, seed=seed, time_limit=time_limit, trials=trials, slack=errors)
        data = verdict_data(found)
    refuted = found.verdict == "refuted"
    problems: list[SuperoptError] = []
    if refuted and found.feeds:
        kept = written_beside(counterexample, npz(found.feeds), force, problems)
        if kept is not None:
            data["counterexample"] = str(kept)
    if report_json is not None:
        text = json.dumps(data, indent=2, allow_nan=False) + "\n"
        if report_json == "-":
            write_text(text, report_json, force)
        else:
            kept = written_beside(Path(report_json), text.encode(), force, problems)
            if kept is not None and kept != Path(report_json):
                err().print(f"{report_json} exists: wrote {kept} (-f overwrites)", markup=False)
    show_verdict(err() if report_json == "-" else out(), a, b, data)
    for problem in problems:
        err().print(f"superopt: not written: {problem}", markup=False)
    if refuted:
        raise typer.Exit(NotEquivalent.exit_code)
    if problems:
        raise typer.Exit(problems[0].exit_code)


def check_values(
    model: Model,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="the folder that optimize --certificates wrote")],
    seed: Seed = 0,
) -> None:
    """Check the certificates of rewrites of MODEL by the elements of its weights. Exit code 5 if a claim does not hold.

    The checker shares no code with the search. DIR's last graph is what the claims lead to; superopt verify compares it
    with the result.
    """
    from superopt.formats import load
    from superopt.verifier.weights.files import check_folder

    with Input(model) as path, Progress("checking claims"):
        _, held = check_folder(load(path), folder, seed=seed)
    for number, found in enumerate(held, 1):
        out().print(f"rewrite {number}: {found}", markup=False)


def cost(
    model: Model, target: Target = "cpu", runtime: Runtime = "onnxruntime", dim: Dims = None, report_json: Json = None,
    force: Force = False,
    top: Annotated[int, typer.Option(min=0, metavar="N", help="how many operators are shown")] = 20,
) -> None:  # fmt: skip
    """Estimate what each operator of MODEL costs on the target, and say whether that was measured or predicted."""
    from superopt.pipeline import cost as cost_of
    from superopt.report.views import show_cost

    claim({"--json": report_json}, [model], force=force)
    with Input(model) as path, Progress() as progress:
        facts = cost_of(path, target=target, runtime=runtime, sizes=parse_dims(dim or []), progress=progress)
    if report_json is not None:
        write_json(facts, report_json, force)
    if report_json != "-":
        show_cost(out(), model, facts, top)


def profile(
    more: Annotated[list[str] | None, typer.Argument(metavar="[MODEL]...", help="more models to plan for")] = None,
    target: Annotated[str, typer.Option(help="cpu, or cuda on a machine with one")] = "cpu",
    runtime: Runtime = "onnxruntime",
    output: Annotated[Path, typer.Option("--out", metavar="FILE", help="the recorded profile")] = Path(
        "profile.jsonl.gz"
    ),
    plan: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="measure the operators that optimizing this model needs; of a recorded profile: those that it holds",
        ),
    ] = None,
    time_limit: Annotated[float, typer.Option(metavar="S", min=1)] = 1500.0,
    threads: Threads = 1,
    workers: Annotated[int, typer.Option(min=0, max=MOST_WORKERS, help="how many processes plan; 0: one a core")] = 0,
    cluster: Cluster = None,
    extend: Annotated[bool, typer.Option("--extend", help="keep what FILE holds, and add to it")] = False,
    dim: Dims = None,
    listing: Annotated[bool, typer.Option("--list", help="show the profiles that ship with superopt")] = False,
    dry_run: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE", help="measure nothing, and show how much of what optimizing needs PROFILE holds"
        ),
    ] = None,
    report_json: Json = None,
    force: Force = False,
) -> None:
    """Measure the operators that optimizing models needs, and record them for --target profile:FILE on any machine.

    It takes minutes; the same command continues a run that was stopped. An existing FILE is measured again (-f) or
    extended (--extend).
    """
    from superopt.benchmark import profiling
    from superopt.fleet import Fleet
    from superopt.report.views import profile_rows, recorded_data, show_profiles, show_recorded

    if listing:
        rows = profile_rows()
        if report_json is not None:
            write_json({"format": "superopt.profiles", "version": 1, "profiles": rows}, report_json, force)
        if report_json != "-":
            show_profiles(out(), rows)
        return
    given = [*(plan or []), *(more or [])]
    outputs = {"--out": None if dry_run is not None else output, "--json": report_json}
    claim(outputs, given if not extend else [], force=force or extend)
    if dry_run is not None:
        _dry_run(given, dry_run, parse_dims(dim or []), report_json, force)
        return
    with Fleet.open(workers, cluster) as fleet, Progress() as progress:
        found = profiling.profile(
            given, output, target=target, runtime=runtime, threads=threads, time_limit=time_limit,
            fleet=fleet, extend=extend, sizes=parse_dims(dim or []), progress=progress,
        )  # fmt: skip
    data = recorded_data(str(output), found.header, found.summary())
    if report_json is not None:
        write_json(data, report_json, force)
    show_recorded(err(), data)


def _dry_run(
    models: list[str], name: str, sizes: dict[str, int], report_json: str | None, force: bool
) -> None:  # fmt: skip
    """How much of what optimizing models asks for a recorded profile holds."""
    from dataclasses import asdict

    from superopt.benchmark import profiling
    from superopt.report.views import coverage_data, show_coverage

    if not models:
        raise UsageError("nothing to plan", hint="name models: superopt profile --dry-run cpu-epyc-2core model.onnx")
    with Progress() as progress:
        found = profiling.coverage(models, name, sizes=sizes, progress=progress)
    data = coverage_data(name, [asdict(row) for row in found])
    if report_json is not None:
        write_json(data, report_json, force)
    if report_json != "-":
        show_coverage(out(), data)


def schema() -> None:
    """Print the JSON Schema of the JSON graph."""
    from superopt.formats import schema as graph_schema

    typer.echo(json.dumps(graph_schema(), indent=2))


COMMANDS = (optimize, slim, explain, inspect, convert, diff, verify, check_values, cost, profile, schema)
