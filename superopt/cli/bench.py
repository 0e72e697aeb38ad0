"""``superopt bench``: superopt beside other optimizers, in one run; and (``--cost``) its costs beside measured time."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from superopt import TIME_LIMIT
from superopt.cli.command_utilities import (
    Dims,
    Force,
    Json,
    ProgressReporter,
    Threads,
    err,
    out,
    parse_dims,
    write_json,
    write_text,
)
from superopt.cli.output_paths import claim
from superopt.ir.errors import InvalidModel, UsageError, printable

__all__ = ["bench"]


def bench(
    models: Annotated[list[Path] | None, typer.Argument(help="models to optimize and time")] = None,
    vs: Annotated[
        str, typer.Option("--vs", metavar="A,B", help="ort,onnxsim,onnxslim,onnxscript,onnxoptimizer,inductor")
    ] = "ort",
    runtimes: Annotated[
        str | None,
        typer.Option(metavar="all|A,B", help="instead, time the input and our graphs in several runtimes"),
    ] = None,
    rounds: Annotated[int, typer.Option(min=3, help="interleaved rounds a model, at most")] = 60,
    race_limit: Annotated[float, typer.Option(metavar="S", min=1, help="seconds for timing one model")] = 20.0,
    time_limit: Annotated[
        float, typer.Option(metavar="S", min=0, help="seconds that we may take for a model")
    ] = TIME_LIMIT,
    peer_limit: Annotated[
        float, typer.Option(metavar="S", min=1, help="seconds that each other tool may")
    ] = TIME_LIMIT,
    total_limit: Annotated[
        float | None, typer.Option(metavar="S", min=1, help="begin no further model after this; --resume goes on")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="keep each model's row here, and go on where a run stopped")
    ] = None,
    recorded: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="no run: the result that --json wrote")
    ] = None,
    report_json: Json = None,
    markdown: Annotated[str | None, typer.Option(metavar="FILE|-", help="write the Markdown document")] = None,
    report_html: Annotated[str | None, typer.Option("--html", metavar="FILE", help="write a page with plots")] = None,
    validate: Annotated[
        bool, typer.Option("--cost", help="instead, compare modelled with measured time, for models and for rewrites")
    ] = False,
    cold: Annotated[bool, typer.Option("--cold", help="instead, profile each model twice from nothing")] = False,
    pairs: Annotated[bool, typer.Option(help="with --cost: also rewrites, those that do not pay included")] = True,
    blocks: Annotated[
        int, typer.Option(metavar="N", min=0, help="with --cost: rewritten blocks of each model, besides the whole")
    ] = 2,
    enable: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="with --cost: make rewrites with these only")
    ] = None,
    threads: Threads = 1,
    dim: Dims = None,
    force: Force = False,
) -> None:
    """Optimize each model with superopt and others, judge all results, and time what is right side by side.

    Every tool runs in a process of its own; crashes, time-outs and wrong results are counted for all, and for us.
    """
    from superopt.report.benchmark import document, page, show

    outputs = {"--json": report_json, "--markdown": markdown, "--html": report_html}
    claim(outputs, [*(models or ()), *([recorded] if recorded else ())], force=force)
    if validate or cold:
        console = err() if report_json == "-" else out()
        options = (pairs, blocks, rounds, threads, dim, enable, resume, total_limit)
        _readable(models or [])
        measured = _cold(models or [], threads, console) if cold else _validated(models or [], *options, console)
        if report_json is not None:
            write_json(measured, report_json, force=True)
        if measured.get("interrupted"):
            raise typer.Exit(130)
        return
    if runtimes is not None:
        limits = (time_limit, race_limit, float("inf") if total_limit is None else total_limit)
        _in_runtimes(models or [], runtimes, limits, rounds, resume, report_json, markdown)
        return
    data = _recorded(recorded) if recorded is not None else _run(
        models, vs, (time_limit, peer_limit, race_limit), rounds, resume, total_limit
    )  # fmt: skip
    show(err() if "-" in (report_json, markdown) else out(), data)
    if report_json is not None:
        write_json(data, report_json, force=True)
    if markdown is not None:
        write_text(document(data), markdown, force=True)
    if report_html is not None:
        write_text(page(data), report_html, force=True)
    if any(row.get("tools", {}).get("superopt", {}).get("status") == "wrong" for row in data["rows"]):
        raise typer.Exit(5)


def _in_runtimes(
    models: list[Path], wanted: str, limits: tuple[float, float, float], rounds: int, keep: Path | None,
    report_json: str | None, markdown: str | None,
) -> None:  # fmt: skip
    """Graphs times runtimes."""
    from superopt.benchmark import RuntimeComparisonOptions, compare_runtimes
    from superopt.report.benchmark import runtimes_table, show_runtimes
    from superopt.runtime.protocol import RUNTIMES

    if not models:
        raise UsageError("no model was named", hint="superopt bench --runtimes all model.onnx")
    _readable(models)
    names = tuple(RUNTIMES) if wanted == "all" else tuple(dict.fromkeys(n for n in wanted.split(",") if n))
    if not names:
        raise UsageError("no runtime was named", hint=f"--runtimes all, or of {', '.join(RUNTIMES)}")
    time_limit, race_limit, total_limit = limits
    with ProgressReporter() as progress:
        data = compare_runtimes(
            models,
            RuntimeComparisonOptions(names, time_limit, race_limit, rounds, keep, total_limit),
            progress=progress,
        )
    show_runtimes(err() if "-" in (report_json, markdown) else out(), data)
    if report_json is not None:
        write_json(data, report_json, force=True)
    if markdown is not None:
        write_text(runtimes_table(data), markdown, force=True)


def _run(
    models: list[Path] | None, vs: str, limits: tuple[float, float, float], rounds: int, resume: Path | None,
    total_limit: float | None,
) -> dict[str, Any]:  # fmt: skip
    from superopt.benchmark import BenchmarkOptions
    from superopt.benchmark import bench as run_bench

    if not models:
        raise UsageError("no model was named", hint="superopt bench model.onnx --vs ort,onnxsim")
    _readable(models)
    tools = tuple(dict.fromkeys(name for name in vs.split(",") if name))
    options = BenchmarkOptions(tools, *limits, rounds, resume, float("inf") if total_limit is None else total_limit)
    with ProgressReporter() as progress:
        return run_bench(models, options, progress=progress)


def _readable(models: list[Path]) -> None:
    """Refuse names that are no files before hours of measuring, not after.

    Raises:
        InvalidModel: one cannot be read.
    """
    from superopt.formats.mapped_file import open_plain

    for path in models:
        try:
            os.close(open_plain(path))
        except InvalidModel as error:
            raise error.within(printable(str(path))) from error


def _validated(
    models: list[Path], pairs: bool, blocks: int, rounds: int, threads: int, dim: list[str] | None,
    enable: list[str] | None, keep: Path | None, total_limit: float | None, console: Console,
) -> dict[str, Any]:  # fmt: skip
    """Modelled beside measured time."""
    from superopt import pipeline
    from superopt.benchmark import cost_validation
    from superopt.report.terminal_views import show_validation

    with ProgressReporter() as progress:
        options = pipeline.Options(sizes=parse_dims(dim or []), threads=threads, enable=tuple(enable or ()))
        found_validation = cost_validation.validate_costs(
            models, options=options, pairs=pairs, blocks=blocks, rounds=rounds, keep=keep,
            total_limit=float("inf") if total_limit is None else total_limit, progress=progress,
        )  # fmt: skip
    show_validation(console, found_validation.json())
    return found_validation.json()


def _cold(models: list[Path], threads: int, console: Console) -> dict[str, Any]:
    """How long profiling from nothing takes, and how much two runs of it differ."""
    from dataclasses import asdict

    from superopt.benchmark import cost_validation
    from superopt.report.terminal_views import show_repetition

    rows = [asdict(cost_validation.repeat_profile(path, threads=threads)) for path in models]
    for row in rows:
        show_repetition(console, row)
    return {"format": "superopt.cold", "version": 1, "rows": rows}


def _recorded(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise InvalidModel(f"cannot be read: {error}", where=str(path)) from error
    if not isinstance(data, dict) or (data.get("format"), data.get("version")) != ("superopt.bench", 2):
        raise InvalidModel("not a superopt.bench result of version 2", where=str(path))
    return data
