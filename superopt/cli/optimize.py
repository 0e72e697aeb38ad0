"""``superopt optimize``, of one model or several into a folder, and ``superopt slim``, as an exporter calls it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

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
    going_on,
    out,
    parse_bytes,
    parse_dims,
    save,
    write_json,
    write_text,
)
from superopt.cli.output_paths import MODEL_SUFFIXES, claim, refuse_own_files
from superopt.ir.errors import SuperoptError, UsageError, printable
from superopt.ir.interpreter_settings import rarely_collected
from superopt.ir.temporary_folders import TemporaryFolder
from superopt.pipeline import integrations

if TYPE_CHECKING:
    from superopt.pipeline import Options

__all__ = ["COMMANDS"]


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
    rules: Rules = None,
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
    floats: Floats = "standard",
    effort: Effort = "default",
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
    opset: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="write the result at version N of ONNX's operators, older or newer"),
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            metavar="float32|mixed|mixed:bfloat16",
            help="mixed: operators and weights in float16 (or bfloat16), as far as errors stay within --error",
        ),
    ] = "float32",
    error: Annotated[
        float | None,
        typer.Option(
            metavar="E", help="budget of errors of mixed precision, of an output's largest element; 1e-3 by default"
        ),
    ] = None,
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
        from superopt.pipeline import child_process_search
        from superopt.pipeline.options import MOST_PARETO, one_of
        from superopt.report.terminal import show_explanation, show_report
        from superopt.runtime.resource_limits import thrifty_heap

    one_of("verify", verify_by, ("test", "certify"), flags=True)
    one_of("check", check, ("quick", "full"), flags=True)
    options = pipeline.Options(
        target=target,
        time_limit=time_limit,
        memory_limit=parse_bytes(memory_limit),
        seed=seed,
        rules=rules,
        enable=tuple(enable or ()),
        disable=tuple(disable or ()),
        sizes=parse_dims(dim or []),
        threads=threads,
        measure=measure,
        check=not no_check,
        full_check=check == "full",
        certify=verify_by == "certify",
        strict=strict,
        floats=floats,
        effort=effort,
        runtime=runtime,
        objective=objective,
        functions=functions,
        opset=opset,
        precision=precision,
        error=error,
    )
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
        besides = {f"OUT-{i + 1}": name for i, name in enumerate(_pareto_outputs(output, MOST_PARETO))}
        claim(destinations | besides, [model], force=force)
    if certificates is not None and certificates.exists():
        raise UsageError(f"{printable(str(certificates))} exists", hint="--certificates makes a folder of its own")
    if no_check and check == "full":
        raise UsageError("--no-check leaves out what --check full asks for", hint="leave out one of the two")
    if learn is not None and rules is not None:
        raise UsageError("--discover writes rules of its own", hint="leave out --rules, or discover --from beforehand")
    thrifty_heap()
    # These modules only show what is done.
    child_process_search.allow_child_process("rich.live", "superopt.cli.command_utilities")
    with ModelInputPath(model) as path, ProgressReporter() as progress, ExitStack() as held:
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
            err().print(f"learnt: {learnt.summary}", markup=False)
            options = replace(options, rules=own if learnt.rules else None)
        result = pipeline.optimize(path, options=options, progress=progress)
        if output is not None:
            beside = _pareto_outputs(output, len(result.pareto))
            for file in (output, *beside):  # all of them before the first is written
                refuse_own_files(result.original, file)
            save(result.graph, output, force)
            for point, file in zip(result.pareto, beside, strict=False):  # none of them on standard output
                save(point.graph, file, force)
        if certificates is not None and result.by_values:
            from superopt.verifier.weights.certificate_files import write_folder

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
    time_limit: TimeLimit = integrations.TIME_LIMIT,
    effort: Effort = integrations.EFFORT,
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
        from superopt.runtime.resource_limits import thrifty_heap

    claim({"OUT": output}, [model], force=force)
    thrifty_heap()
    with ModelInputPath(model) as path:
        graph = with_input_shapes(load(path), input_shapes)
        result, _, text = slim_graph(graph, time_limit, effort)
        refuse_own_files(graph, output)
        save(result, output, force)
    (err() if output == "-" else out()).print(f"{model}: {text}; wrote {output}", markup=False)


def _pareto_outputs(output: str, count: int) -> list[str]:
    """Names of files for the graphs that trade time for memory, by rising time; none on standard output."""
    from superopt.pipeline.options import pareto_paths

    return [] if output == "-" else [str(path) for path in pareto_paths(Path(output), count)]


def refuse_second(models: list[str]) -> None:
    """Refuse a second name that is no model, where no output was named: it was probably meant as that.

    Raises:
        UsageError: it is none.
    """
    from superopt.formats import load

    first, second = models[0], models[1]
    if len(models) != 2 or second == "-" or (first != "-" and not os.path.isfile(first)):
        return
    try:
        load(Path(second))
    except SuperoptError as error:
        if os.path.exists(second) and error.hint:  # a model of another format
            raise
        what = error.what if os.path.exists(second) else "does not exist"
        raise UsageError(what, where=printable(second), hint=f"did you mean -o {printable(second)}?") from None


def optimize_many(
    models: list[str], folder: str | None, options: Options, *, workers: int, cluster: str | None,
    report_json: str | None, force: bool,
) -> int:  # fmt: skip
    """Optimize models into a folder, with a line for each: several, or one on a cluster. Returns the exit code of the
    first that failed.

    Raises:
        UsageError: there is no folder, or it is not empty and not of such a run.
    """
    from superopt.fleet import WorkerPool
    from superopt.pipeline.batch import JOURNAL, optimize_all

    several = "several models need" if len(models) > 1 else "--cluster needs"
    if folder is None or folder == "-":
        raise UsageError(f"{several} a folder for the results", hint="add -o DIR")
    if Path(folder).suffix in MODEL_SUFFIXES[:2] and not Path(folder).is_dir():
        raise UsageError(
            f"is the name of a file, and {several} a folder for the results",
            where=f"-o {printable(folder)}", hint="-o DIR",
        )  # fmt: skip
    if "-" in models:
        raise UsageError("- is one model; several are named", hint="optimize standard input alone")
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise UsageError("is no folder", where=f"-o {printable(folder)}", hint=f"{several} a folder")
    if path.is_dir() and any(path.iterdir()) and not (path / JOURNAL).is_file() and not force:
        raise UsageError("is not empty", where=f"-o {printable(folder)}", hint="use -f to write into it")
    inputs = {Path(m).resolve() for m in models}
    if inputs & {(path / Path(m).name).resolve() for m in models}:
        raise UsageError("holds the models themselves", where=f"-o {printable(folder)}", hint="name another folder")
    claim({"--json": report_json}, list(models), force=force)
    rows, code = [], 0
    console = err() if report_json == "-" else out()
    try:
        with going_on(path), WorkerPool.open(workers, cluster) as fleet, ProgressReporter() as progress:
            for row in optimize_all([Path(m) for m in models], path, options=options, fleet=fleet, progress=progress):
                rows.append(row)
                code = code or row.get("exit_code", 0)
                _show(console, row)
    finally:  # also where it was interrupted: of the models that ended
        if report_json is not None:
            write_json({"format": "superopt.optimized", "version": 1, "models": rows}, report_json, force)
    return code


def _show(console: Console, row: Mapping[str, Any]) -> None:
    """A line for a model."""
    name = Path(row["model"]).name
    if "error" in row:
        err().print(f"{printable(name)}: {row['error']}", markup=False, soft_wrap=True)
        return
    line = f"{printable(name)}  {printable(row['report']['summary'], 400)}; wrote {printable(row['output'])}"
    console.print(line, markup=False, soft_wrap=True)


COMMANDS = (optimize, slim)
