"""Commands on models: optimize, explain, inspect, convert, diff, verify, check-values, cost, profile, schema."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from superopt import TIME_LIMIT
from superopt.cli.many import optimize_many
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
from superopt.ir.collecting import rarely_collected
from superopt.ir.errors import NotEquivalent, SuperoptError, UsageError, printable

__all__ = ["COMMANDS"]

MOST_TRIALS = 1_000_000  # of verify: more would be waited for in vain


def optimize(
    context: typer.Context,
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="ONNX or superopt JSON; - for stdin")],
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="OUT", help=".onnx or .json; - for stdout; of several models a folder"),
    ] = None,
    target: Target = "cpu",
    runtime: Runtime = "onnxruntime",
    time_limit: TimeLimit = TIME_LIMIT,
    memory_limit: Annotated[
        str | None,
        typer.Option(metavar="B", envvar="SUPEROPT_MEMORY_LIMIT", help="of the result and the search: bytes, 512M, 2G"),
    ] = None,
    seed: Seed = 0,
    rules: Annotated[Path | None, typer.Option(metavar="DIR", help="a rule library besides the built-in one")] = None,
    enable: Annotated[list[str] | None, typer.Option(metavar="RULE", help="use only these rules or families")] = None,
    disable: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="do without a rule, a family, algorithms, or values")
    ] = None,
    dim: Dims = None,
    threads: Threads = 1,
    workers: Annotated[
        int, typer.Option(min=0, max=MOST_WORKERS, help="of several models: at once; 0: one a core")
    ] = 0,
    cluster: Cluster = None,
    measure: Annotated[bool, typer.Option("--measure", help="time input and result side by side")] = False,
    verify_by: Annotated[
        str, typer.Option("--verify", metavar="test|certify", help="certify: also prove the result region by region")
    ] = "test",
    no_check: Annotated[bool, typer.Option("--no-check", help="skip the check against the input")] = False,
    check: Annotated[
        str, typer.Option(metavar="quick|full", help="full: also judge by a float64 reference, however long it takes")
    ] = "quick",
    strict: Annotated[bool, typer.Option("--strict", help="fail (exit 4) if a node is not understood")] = False,
    floats: Annotated[
        str,
        typer.Option(
            "--float",
            metavar="strict|standard|fast",
            help="rules where floats are safe; where conditions hold, too; all that are true of the reals. Algorithms "
            "with fewer multiplications: none; errors up to 1e-5; up to 1e-4",
        ),
    ] = "standard",
    effort: Annotated[
        str, typer.Option(metavar="quick|default|thorough", help="how much work the search may do")
    ] = "default",
    objective: Annotated[
        str,
        typer.Option(
            metavar="time|memory|pareto",
            help="memory: activations take least; pareto: also what trades time "
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
            help="first look so many seconds for rules of MODEL's own: at most half of a time limit that is given",
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="show where each rule was applied, and near misses")
    ] = False,
    report_json: Json = None,
    report_html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="write the report as a page")
    ] = None,
    certificates: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="write what the weights' elements allowed, for superopt check-values MODEL DIR"
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Rewrite MODEL into a faster, equivalent one, and report what changed.

    Several models go into the folder OUT, as many at once as --workers or --cluster says; a run that was stopped goes
    on where it was.
    """
    with rarely_collected():  # hundreds of modules
        from superopt import pipeline
        from superopt.pipeline import forked
        from superopt.pipeline.options import MOST_BESIDE
        from superopt.report.terminal import show_explanation, show_report
        from superopt.runtime.limits import thrifty_heap

    if verify_by not in ("test", "certify"):
        raise UsageError(f"--verify {printable(verify_by)!r} is neither test nor certify")
    if check not in ("quick", "full"):
        raise UsageError(f"--check {printable(check)!r} is neither quick nor full")
    options = pipeline.Options(
        target=target, time_limit=time_limit, memory_limit=parse_bytes(memory_limit), seed=seed, rules=rules,
        enable=tuple(enable or ()), disable=tuple(disable or ()), sizes=parse_dims(dim or []), threads=threads,
        measure=measure, check=not no_check, full_check=check == "full", certify=verify_by == "certify", strict=strict,
        floats=floats, effort=effort, runtime=runtime, objective=objective,
        functions=functions,
    )  # fmt: skip
    options.validate({
        "floats": "--float", "effort": "--effort", "objective": "--objective", "functions": "--functions",
    })  # fmt: skip
    if len(models) > 1:
        if explain or learn is not None or report_html is not None or certificates is not None:
            raise UsageError("--explain, --discover, --certificates and --html are about one model", hint="name one")
        code = optimize_many(
            models, output, options, workers=workers, cluster=cluster, report_json=report_json, force=force
        )
        raise typer.Exit(code)
    model = models[0]
    destinations = {"-o": output, "--json": report_json, "--html": report_html}
    claim(destinations, [model], force=force)
    if objective == "pareto" and output is not None:
        besides = {f"OUT-{i + 1}": name for i, name in enumerate(_beside(output, MOST_BESIDE))}
        claim(destinations | besides, [model], force=force)
    if certificates is not None and certificates.exists():
        raise UsageError(f"{printable(str(certificates))} exists", hint="--certificates makes a folder of its own")
    if no_check and check == "full":
        raise UsageError("--no-check leaves out what --check full asks for", hint="leave out one of the two")
    if learn is not None and rules is not None:
        raise UsageError("--discover writes rules of its own", hint="leave out --rules, or discover --from beforehand")
    thrifty_heap()
    forked.allow("rich.live")  # which only draws
    with Input(model) as path, Progress() as progress, ExitStack() as held:
        if learn is not None:
            from superopt.pipeline.learning import learn_from

            own = held.enter_context(TemporaryDirectory(prefix="superopt-"))
            progress(0, None, "learning from the model")
            source = context.get_parameter_source("time_limit")
            limited = source is not None and source.name != "DEFAULT"
            started, seconds = time.monotonic(), min(learn, time_limit / 2) if limited else learn
            learnt = learn_from(
                [path], out=Path(own), target=target, runtime=runtime, time_limit=seconds, sizes=options.sizes,
                seed=seed,
            )  # fmt: skip
            if limited:
                options = replace(options, time_limit=max(0.0, time_limit - (time.monotonic() - started)))
            err().print(f"learnt: {learnt.said}", markup=False)
            options = replace(options, rules=Path(own) if learnt.rules else None)
        result = pipeline.optimize(path, options=options, progress=progress)
        if output is not None:
            beside = _beside(output, len(result.pareto))
            for file in (output, *beside):  # all of them before the first is written
                refuse_own_files(result.original, file)
            save(result.graph, output, force)
            for point, file in zip(result.pareto, beside, strict=False):  # none of them on standard output
                save(point.graph, file, force)
        if certificates is not None and result.by_values:
            from superopt.verifier.value_files import write_folder

            write_folder(certificates, result.by_values)
    if explain or report_json is not None or report_html is not None:
        told, _ = pipeline.explained(result, options)
        if report_json is not None or report_html is not None:
            told = replace(told, memory=pipeline.told_of(result.original, result.graph, options))
        result = replace(result, report=told)
    if report_json is not None:
        write_json(result.report.json(), report_json, force)
    if report_html is not None:
        from superopt.report.html import render

        write_text(render(model, result.report), str(report_html), force)
    busy = "-" in (output, report_json)
    console = err() if busy else out()
    show_report(console, model, result.report)
    if explain:
        show_explanation(console, result.report)
    if output not in (None, "-"):
        console.print(f"wrote {', '.join((output, *beside))}", markup=False)
    if certificates is not None:
        console.print(
            f"wrote {certificates}" if result.by_values else "nothing rests on weights: no certificates", markup=False
        )
    if result.report.search.stopped == "interrupted":
        raise typer.Exit(130)


def _beside(output: str, count: int) -> list[str]:
    """Names of files for the graphs that trade time for memory, by rising time; none on standard output."""
    from superopt.pipeline.options import beside

    return [] if output == "-" else [str(path) for path in beside(Path(output), count)]


def explain(
    model: Model,
    target: Target = "cpu",
    runtime: Runtime = "onnxruntime",
    time_limit: TimeLimit = TIME_LIMIT,
    dim: Dims = None,
    made: Annotated[
        str | None, typer.Option("--result", metavar="MODEL", help="what was made of it, instead of optimising again")
    ] = None,
    step: Annotated[int | None, typer.Option(metavar="N", min=1, help="write the model after step N to -o")] = None,
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="OUT", help=".onnx or .json")] = None,
    report_json: Json = None,
    force: Force = False,
) -> None:
    """Say what optimize would do to MODEL and why: step by step, rules by place and gain, near misses, untouched nodes.

    Steps go from the inputs to the outputs, and each leaves a whole model: --step N -o FILE writes it, superopt verify
    compares it. Their gains add up. A model that superopt wrote also tells which rules made each of its nodes.
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
            show_report(console, model, told)
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
    """Show what MODEL is: signature, operators, weights, work, arithmetic intensity, and what is opaque to superopt."""
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
    """Convert between ONNX and the JSON graph; nothing is lost either way."""
    from superopt.formats import load

    claim({"OUT": destination}, [source], force=force)
    with Input(source) as path:
        save(load(path), destination, force)


def diff(a: Model, b: Model, report_json: Json = None, force: Force = False) -> None:
    """Show which nodes of A and B compute something that the other does not. Exit code 0 either way."""
    from superopt.formats import load
    from superopt.ir.diff import compare
    from superopt.report.views import diff_data, show_diff

    claim({"--json": report_json}, [a, b], force=force)
    with Input(a) as first, Input(b) as second:
        found = compare(load(first), load(second))
    if report_json is not None:
        write_json(diff_data(found), report_json, force)
    if report_json != "-":
        show_diff(out(), a, b, found)


def verify(
    a: Model,
    b: Model,
    time_limit: Annotated[float, typer.Option(metavar="S", min=0.1, help="seconds for the proof of one region")] = 5.0,
    trials: Annotated[int, typer.Option(min=1, max=MOST_TRIALS, help="random inputs on which both are run")] = 3,
    seed: Seed = 0,
    errors: Annotated[
        float, typer.Option(min=0.0, max=1.0, metavar="SHARE", help="of an output's largest element, allowed besides")
    ] = 0.0,
    counterexample: Annotated[
        Path, typer.Option(metavar="FILE", help="where inputs on which the models differ are written")
    ] = Path("counterexample.npz"),
    report_json: Json = None,
    force: Force = False,
) -> None:
    """Say whether A and B compute the same.

    proved | proved up to the rounding of folded constants (max n ulp) | tested (power n %) | refuted (with inputs that
    show it) | unknown. Exit code 5 when refuted, whatever files exist already: without -f a new name is taken.
    A result with fewer multiplications rounds otherwise: --errors 1e-5 holds it to what optimize allows it.
    """
    from superopt.formats import load
    from superopt.report.views import show_verdict, verdict_data
    from superopt.verifier.graphs import verify as compare

    claim({"--json": report_json}, [a, b], force=True)  # what exists gets a fresh name: it must not hide a verdict
    distinct({"--counterexample": counterexample, "--json": report_json}, [a, b])
    with Input(a) as first, Input(b) as second:
        found = compare(load(first), load(second), seed=seed, time_limit=time_limit, trials=trials, slack=errors)
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
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="what optimize --certificates wrote")],
    seed: Seed = 0,
) -> None:
    """Check what a rewrite of MODEL by the elements of its weights claims. Exit code 5 if a claim does not hold.

    The checker shares no code with what found it. What it leads to is DIR's last graph: superopt verify compares that
    with the result.
    """
    from superopt.formats import load
    from superopt.verifier.value_files import check_folder

    with Input(model) as path:
        _, held = check_folder(load(path), folder, seed=seed)
    for number, found in enumerate(held, 1):
        out().print(f"rewrite {number}: {found}", markup=False)


def cost(
    model: Model, target: Target = "cpu", runtime: Runtime = "onnxruntime", dim: Dims = None, report_json: Json = None,
    force: Force = False,
    top: Annotated[int, typer.Option(min=0, metavar="N", help="operators that are shown")] = 20,
) -> None:  # fmt: skip
    """Show what each operator of MODEL costs on the target, and whether that was measured or predicted."""
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
    more: Annotated[list[str] | None, typer.Argument(metavar="[MODEL]...", help="more models of the plan")] = None,
    target: Annotated[str, typer.Option(help="cpu, or cuda on a machine with one")] = "cpu",
    runtime: Runtime = "onnxruntime",
    output: Annotated[Path, typer.Option("--out", metavar="FILE", help="the recorded profile")] = Path(
        "profile.jsonl.gz"
    ),
    plan: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL", help="measure what optimising this asks for; a recorded profile: what it holds"),
    ] = None,
    time_limit: Annotated[float, typer.Option(metavar="S", min=1)] = 1500.0,
    threads: Threads = 1,
    workers: Annotated[int, typer.Option(min=0, max=MOST_WORKERS, help="processes that plan; 0: one a core")] = 0,
    cluster: Cluster = None,
    extend: Annotated[bool, typer.Option("--extend", help="keep what FILE holds, and add to it")] = False,
    dim: Dims = None,
    listing: Annotated[bool, typer.Option("--list", help="show the profiles that ship with superopt")] = False,
    dry_run: Annotated[
        str | None,
        typer.Option(metavar="PROFILE", help="measure nothing: how much of what optimising asks for does it hold?"),
    ] = None,
    report_json: Json = None,
    force: Force = False,
) -> None:
    """Measure what optimising models asks for and record it: a profile that --target profile:FILE uses on any machine.

    An interrupted or too short run goes on where it stopped. An existing FILE is measured again (-f) or added to
    (--extend).
    """
    from superopt import lab
    from superopt.fleet import Fleet
    from superopt.report.profiles import profile_rows, recorded_data, show_profiles, show_recorded

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
        found = lab.profile(
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
    """How much of what optimising models asks for a recorded profile holds."""
    from dataclasses import asdict

    from superopt import lab
    from superopt.report.profiles import coverage_data, show_coverage

    if not models:
        raise UsageError("nothing to plan", hint="name models: superopt profile --dry-run cpu-epyc-2core model.onnx")
    with Progress() as progress:
        found = lab.coverage(models, name, sizes=sizes, progress=progress)
    data = coverage_data(name, [asdict(row) for row in found])
    if report_json is not None:
        write_json(data, report_json, force)
    if report_json != "-":
        show_coverage(out(), data)


def schema() -> None:
    """Print the JSON Schema of the JSON graph."""
    from superopt.formats import schema as graph_schema

    typer.echo(json.dumps(graph_schema(), indent=2))


COMMANDS = (optimize, explain, inspect, convert, diff, verify, check_values, cost, profile, schema)
