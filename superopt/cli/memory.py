"""``superopt memory``: what a model's activations take, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from superopt.cli.outputs import claim
from superopt.cli.shell import Dims, Force, Input, Json, Model, out, parse_dims, write_json, write_text

__all__ = ["COMMANDS"]


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
    from superopt.pipeline.memory_timeline import footprint, footprint_data
    from superopt.report.views import show_memory

    models = [model, made] if made else [model]
    claim({"--json": report_json, "--html": report_html}, models, force=force)
    sizes = parse_dims(dim or [])
    found = []
    for name in models:
        with Input(name) as path:
            graph = load(path)
            found.append(footprint_data(footprint(graph, sizes=sizes), graph, sizes=sizes))
    if report_json is not None:
        write_json(found[0] if made is None else {**found[0], "result": found[1]}, report_json, force)
    if report_html is not None:
        from superopt.report.html import render_memory

        write_text(render_memory(model, *found), str(report_html), force)
    if report_json != "-":
        for name, facts in zip(models, found, strict=True):
            show_memory(out(), name, facts)


COMMANDS = (memory,)
