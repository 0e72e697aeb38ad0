"""Commands on models: explain, inspect, convert, diff, verify, check-values, cost, profile, memory, schema."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from superopt import TIME_LIMIT
from superopt.cli.command_utilities import (
    MOST_WORKERS,
    Cluster,
    Dims,
    Effort,
    Floats,
    Force,
    Json,
    Model,
    ModelInputPath,
    ProgressReporter,
    Rules,
    Runtime,
    Seed,
    Target,
    Threads,
    TimeLimit,
    err,
    npz,
    out,
    parse_dims,
    save,
    write_json,
    write_text,
    written_beside,
)
from superopt.cli.output_paths import claim, distinct
from superopt.ir.errors import InvalidModel, NotEquivalent, SuperoptError, UsageError

__all__ = ["COMMANDS"]

MOST_TRIALS = 1_000_000  # of verify: more would be waited for in vain


def explain(
    model: Model,
    target: Target = "cpu",
    runtime: Runtime = "onnxruntime",
    time_limit: TimeLimit = TIME_LIMIT,
    dim: Dims = None,
    floats: Floats = "standard",
    effort: Effort = "default",
    rules: Rules = None,
    made: Annotated[
        str | None,
        typer.Option("--result", metavar="MODEL", help="the result of an earlier run; MODEL is not optimized again"),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(metavar="ID", help="only where this rule matches MODEL as it is, and what refuses it elsewhere"),
    ] = None,
    step: Annotated[int | None, typer.Option(metavar="N", min=1, help="write the model after step N to OUT")] = None,
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="OUT", help=".onnx or .json")] = None,
    report_json: Json = None,
    force: Force = False,
) -> None:
    """Show what optimize does to MODEL, step by step: the rules, where they apply, and what each step gains.

    It optimizes the model first, which takes seconds to minutes. Each step leaves a whole model, which --step N -o FILE
    writes. It also shows which pass and which rules made the nodes that superopt wrote. With --rule it optimizes
    nothing.
    """
    from superopt import pipeline
    from superopt.formats import load
    from superopt.report.terminal import show_derivation, show_explanation, show_report
    from superopt.report.terminal_views import show_provenance, show_rule_matches

    if (step is None) != (output is None):
        raise UsageError("--step N and -o OUT go together")
    if rule is not None and (made is not None or step is not None):
        raise UsageError("--rule goes with neither --result nor --step")
    claim({"-o": output, "--json": report_json}, [model, made] if made else [model], force=force)
    options = pipeline.Options(
        target=target, runtime=runtime, time_limit=time_limit, sizes=parse_dims(dim or []), floats=floats,
        effort=effort, rules=rules,
    )  # fmt: skip
    options.validate(flags=True)
    console = err() if "-" in (output, report_json) else out()
    if rule is not None:
        with ModelInputPath(model) as path, ProgressReporter() as progress:
            matches = pipeline.rule_matches(path, rule, options=options, progress=progress)
        show_rule_matches(console, matches)
        if report_json is not None:
            write_json(matches, report_json, force)
        return
    with ModelInputPath(model) as path, ProgressReporter() as progress:
        if made is None:
            result = pipeline.optimize(path, options=options, progress=progress)
            report, derivation = pipeline.explained(result, options)
            show_provenance(console, result.graph)
            show_report(console, model, report, estimates=True)
            show_explanation(console, report)
        else:
            with ModelInputPath(made) as other:
                written = load(other)
                derivation = pipeline.derive(load(path), written, target=target, runtime=runtime, sizes=options.sizes)
            show_provenance(console, written)
            show_derivation(console, derivation.json())
    if report_json is not None:
        write_json(derivation.json() if derivation is not None else None, report_json, force)
    if step is not None and output is not None:
        if derivation is None or step > len(derivation.steps):
            raise UsageError(f"there is no step {step}: there are {len(derivation.steps) if derivation else 0}")
        save(derivation.steps[step - 1].graph, output, force)


def inspect(model: Model, dim: Dims = None, report_json: Json = None, force: Force = False) -> None:
    """Show MODEL's signature, operators, weights, work, and the operators that superopt does not understand."""
    from superopt.pipeline import inspect as look
    from superopt.report.terminal_views import show_inspection

    claim({"--json": report_json}, [model], force=force)
    with ModelInputPath(model) as path:
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
    with ModelInputPath(source) as path:
        save(load(path), destination, force)


def diff(a: Model, b: Model, report_json: Json = None, force: Force = False) -> None:
    """List the nodes of A and of B that compute something the other model does not. Exit code 0 in any case."""
    from superopt.formats import load
    from superopt.ir.diff import compare
    from superopt.report.terminal_views import diff_data, show_diff

    claim({"--json": report_json}, [a, b], force=force)
    with ModelInputPath(a) as first, ModelInputPath(b) as second, ProgressReporter("comparing the models"):
        graph_diff = compare(load(first), load(second))
    if report_json is not None:
        write_json(diff_data(graph_diff), report_json, force)
    if report_json != "-":
        show_diff(out(), a, b, graph_diff)


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
    from superopt.report.terminal_views import show_verdict, verdict_data
    from superopt.verifier.equivalence.graphs import verify as compare
    from superopt.verifier.equivalence.invalid_models import verdict_on_invalid

    claim({"--json": report_json}, [a, b], force=True)  # what exists gets a fresh name: it must not hide a verdict
    distinct({"--counterexample": counterexample, "--json": report_json}, [a, b])
    with ModelInputPath(a) as first, ModelInputPath(b) as second:
        before = load(first)
        try:
            after = load(second)
        except InvalidModel as error:
            verdict = verdict_on_invalid(before, second, error)
        else:
            verdict = compare(before, after, seed=seed, time_limit=time_limit, trials=trials, slack=errors)
        data = verdict_data(verdict)
    refuted = verdict.verdict == "refuted"
    problems: list[SuperoptError] = []
    if refuted and verdict.feeds and data["check"]["trials"]:  # without a trial they tell nothing apart
        kept_path = written_beside(counterexample, npz(verdict.feeds), force, problems)
        if kept_path is not None:
            data["counterexample"] = str(kept_path)
    if report_json is not None:
        text = json.dumps(data, indent=2, allow_nan=False) + "\n"
        if report_json == "-":
            write_text(text, report_json, force)
        else:
            kept_path = written_beside(Path(report_json), text.encode(), force, problems)
            if kept_path is not None and kept_path != Path(report_json):
                err().print(f"{report_json} exists: wrote {kept_path} (-f overwrites)", markup=False)
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
    from superopt.verifier.weights.certificate_files import check_folder

    with ModelInputPath(model) as path, ProgressReporter("checking claims"):
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
    from superopt.report.terminal_views import show_cost

    claim({"--json": report_json}, [model], force=force)
    with ModelInputPath(model) as path, ProgressReporter() as progress:
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
    from superopt.benchmark import profile_recording
    from superopt.fleet import WorkerPool
    from superopt.report.terminal_views import profile_rows, recorded_data, show_profiles, show_recorded

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
    with WorkerPool.open(workers, cluster) as fleet, ProgressReporter() as progress:
        found = profile_recording.profile(
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

    from superopt.benchmark import profile_recording
    from superopt.report.terminal_views import coverage_data, show_coverage

    if not models:
        raise UsageError("nothing to plan", hint="name models: superopt profile --dry-run cpu-epyc-2core model.onnx")
    with ProgressReporter() as progress:
        coverages = profile_recording.coverage(models, name, sizes=sizes, progress=progress)
    data = coverage_data(name, [asdict(row) for row in coverages])
    if report_json is not None:
        write_json(data, report_json, force)
    if report_json != "-":
        show_coverage(out(), data)


def schema() -> None:
    """Print the JSON Schema of the JSON graph."""
    from superopt.formats import schema as graph_schema

    typer.echo(json.dumps(graph_schema(), indent=2))


def memory(
    model: Model,
    dim: Dims = None,
    made: Annotated[
        str | None, typer.Option("--result", metavar="MODEL", help="the result of optimizing MODEL, shown beside it")
    ] = None,
    report_json: Json = None,
    report_html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="write it as a page with plots")
    ] = None,
    force: Force = False,
) -> None:
    """Show the memory of MODEL's activations in ONNX Runtime, step by step, and a bound that no order goes below."""
    from superopt.formats import load
    from superopt.pipeline.memory_timeline import footprints
    from superopt.report.terminal_views import show_memory

    models = [model, made] if made else [model]
    claim({"--json": report_json, "--html": report_html}, models, force=force)
    with ExitStack() as opened:
        graphs = [load(opened.enter_context(ModelInputPath(name))) for name in models]
        found = list(footprints(graphs[0], graphs[-1], sizes=parse_dims(dim or [])).values())
    if report_json is not None:
        write_json(found[0] if made is None else {**found[0], "result": found[1]}, report_json, force)
    if report_html is not None:
        from superopt.report.html import render_memory

        write_text(render_memory(model, *found), str(report_html), force)
    if report_json != "-":
        for name, facts in zip(models, found, strict=True):
            show_memory(out(), name, facts)


COMMANDS = (explain, inspect, convert, diff, verify, check_values, cost, profile, memory, schema)
