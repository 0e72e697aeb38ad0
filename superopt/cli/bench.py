"""``superopt bench``: superopt beside other optimisers on the same models, in one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from superopt.cli.shell import Force, Json, Progress, err, out, refuse_existing, write_json, write_text
from superopt.ir.errors import InvalidModel, UsageError

__all__ = ["bench"]


def bench(
    models: Annotated[list[Path] | None, typer.Argument(help="models to optimise and time")] = None,
    vs: Annotated[
        str, typer.Option("--vs", metavar="A,B", help="ort,onnxsim,onnxslim,onnxscript,onnxoptimizer,inductor")
    ] = "ort",
    rounds: Annotated[int, typer.Option(min=3, help="interleaved rounds a model, at most")] = 25,
    race_limit: Annotated[float, typer.Option(metavar="S", min=1, help="seconds for timing one model")] = 12.0,
    time_limit: Annotated[float, typer.Option(metavar="S", min=0, help="seconds that we may take for a model")] = 45.0,
    peer_limit: Annotated[float, typer.Option(metavar="S", min=1, help="seconds that each other tool may")] = 120.0,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="keep each model's row here, and go on where a run stopped")
    ] = None,
    recorded: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="no run: the result that --json wrote")
    ] = None,
    report_json: Json = None,
    markdown: Annotated[str | None, typer.Option(metavar="FILE|-", help="write the Markdown document")] = None,
    report_html: Annotated[str | None, typer.Option("--html", metavar="FILE", help="write a page with plots")] = None,
    force: Force = False,
) -> None:
    """Optimise each model with superopt and others, judge all results, and time what is right side by side.

    Every tool runs in a process of its own; crashes, time-outs and wrong results are counted for all, and for us.
    """
    from superopt.report.benchmark import document, page, show

    for path in (report_json, markdown, report_html):
        refuse_existing(path, force)
    data = _recorded(recorded) if recorded is not None else _run(
        models, vs, rounds, race_limit, time_limit, peer_limit, resume
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


def _run(
    models: list[Path] | None, vs: str, rounds: int, race_limit: float, time_limit: float, peer_limit: float,
    resume: Path | None,
) -> dict[str, object]:  # fmt: skip
    from superopt.pipeline.benchmark import BenchOptions
    from superopt.pipeline.benchmark import bench as run_bench

    if not models:
        raise UsageError("no model was named", hint="superopt bench model.onnx --vs ort,onnxsim")
    tools = tuple(dict.fromkeys(name for name in vs.split(",") if name))
    options = BenchOptions(tools, time_limit, peer_limit, race_limit, rounds, resume)
    with Progress() as progress:
        return run_bench(models, options, progress=progress)


def _recorded(path: Path) -> dict[str, object]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise InvalidModel(f"cannot be read: {error}", where=str(path)) from error
    if not isinstance(data, dict) or (data.get("format"), data.get("version")) != ("superopt.bench", 2):
        raise InvalidModel("not a superopt.bench result of version 2", where=str(path))
    return data
