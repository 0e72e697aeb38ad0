"""``superopt memory``: what a model's activations take, step by step."""

from __future__ import annotations

from superopt.cli.outputs import claim
from superopt.cli.shell import Dims, Force, Input, Json, Model, out, parse_dims, write_json

__all__ = ["COMMANDS"]


def memory(model: Model, dim: Dims = None, report_json: Json = None, force: Force = False) -> None:
    """Show what MODEL's activations take in ONNX Runtime, over the steps of a run, and what no order goes below."""
    from superopt.formats import load
    from superopt.pipeline.footprint import footprint, footprint_data
    from superopt.report.memory import show_memory

    claim({"--json": report_json}, [model], force=force)
    sizes = parse_dims(dim or [])
    with Input(model) as path:
        graph = load(path)
        facts = footprint_data(footprint(graph, sizes=sizes), graph, sizes=sizes)
    if report_json is not None:
        write_json(facts, report_json, force)
    if report_json != "-":
        show_memory(out(), model, facts)


COMMANDS = (memory,)
