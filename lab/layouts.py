"""Networks of channels-last exporters beside their twins: ``python -m lab.layouts [NAME ...] [--seconds S]``.

Each network of :mod:`lab.channels_last_networks` and its twin are optimised under recorded prices, the network also in
one pass, without fast algorithms, which have Transposes of their own. A row has the Transposes that are left between
convolutions, what ONNX Runtime leaves of the network by itself, and the time of the network and of its results ÷ the
time of the twin's result, raced in one process on one thread.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from lab.channels_last_networks import CHANNELS_LAST
from superopt.formats import to_onnx_bytes
from superopt.ir.graph import Graph
from superopt.pipeline.optimization import optimize
from superopt.pipeline.options import ALGORITHMS, Options
from superopt.runtime.executed_graph import lowered
from superopt.runtime.paired_benchmark import median_error, time_models
from superopt.runtime.synthetic_tensors import feeds_for

__all__ = ["LayoutBenchmarkRow", "interior_transposes", "main", "row_of", "transposes"]

_TARGET = "profile:cpu-epyc-2core"
_ROUNDS = 40


def transposes(graph: Graph) -> int:
    return sum(n.op == "Transpose" for n in graph.nodes)


def interior_transposes(graph: Graph) -> int:
    """Transposes between two convolutions: what one reads depends on one, and another depends on what it makes."""
    behind: set[str] = set()
    for node in graph.nodes:
        if node.op == "Conv" or not behind.isdisjoint(node.reads):
            behind.update(node.outputs)
    before: set[str] = set()
    for node in reversed(graph.nodes):
        if node.op == "Conv" or not before.isdisjoint(node.outputs):
            before.update(node.reads)
    return sum(
        n.op == "Transpose" and not behind.isdisjoint(n.inputs) and not before.isdisjoint(n.outputs)
        for n in graph.nodes
    )  # fmt: skip


@dataclass(frozen=True)
class LayoutBenchmarkRow:
    """What came of a network.

    Attributes:
        before: Transposes of the network.
        runtime: Transposes that ONNX Runtime runs.
        interior: of the result, of the result in one pass, and of the twin's result.
        nodes: of the network, of its results, and of the twin's result.
        seconds: of the two optimisations.
        ratios: times of the network and of its two results ÷ that of the twin's result.
        errors: the standard error of each.
    """

    name: str
    before: int
    runtime: int
    interior: tuple[int, int, int]
    nodes: tuple[int, int, int, int]
    seconds: tuple[float, float]
    ratios: tuple[float, ...]
    errors: tuple[float, ...]


def row_of(name: str, seconds: float) -> LayoutBenchmarkRow:
    """Optimise a network and its twin, and race the results.

    Args:
        name: of the network.
        seconds: of the race.
    """
    network, twin = CHANNELS_LAST[name](True), CHANNELS_LAST[name](False)
    results: list[Graph] = []
    took: list[float] = []
    for graph, effort in ((network, "default"), (network, "quick"), (twin, "default")):
        began = time.monotonic()
        options = Options(target=_TARGET, effort=effort, time_limit=None, disable=(ALGORITHMS,))
        results.append(optimize(graph, options=options).graph)
        took.append(time.monotonic() - began)
    best, quick, beside = results
    models = [to_onnx_bytes(g) for g in (beside, network, best, quick)]
    raced = time_models(models, feeds_for(network), rounds=_ROUNDS, threads=1, time_limit=seconds)
    return LayoutBenchmarkRow(
        name, transposes(network), transposes(lowered(network)),
        (interior_transposes(best), interior_transposes(quick), interior_transposes(beside)),
        (len(network.nodes), len(best.nodes), len(quick.nodes), len(beside.nodes)), (took[0], took[1]),
        raced.ratios[1:], tuple(s * median_error(raced.rounds) for s in raced.spread[1:]),
    )  # fmt: skip


def table(rows: Sequence[LayoutBenchmarkRow]) -> str:
    """The rows in Markdown."""
    lines = [
        "| network | Transposes | left by ONNX Runtime | interior, result | quick | twin | nodes | result | quick "
        "| twin | seconds | quick | network ÷ twin's result | result ÷ | quick ÷ |",
        "|---|" + "--:|" * 14,
    ]
    for r in rows:
        times = (f"{ratio:.3f} ± {error:.3f}" for ratio, error in zip(r.ratios, r.errors, strict=True))
        cells = (r.name, r.before, r.runtime, *r.interior, *r.nodes, *(f"{s:.1f}" for s in r.seconds), *times)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CHANNELS_LAST)}; by default, all")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each race")
    args = parser.parse_args(arguments)
    if unknown := [n for n in args.names if n not in CHANNELS_LAST]:
        parser.error(f"there is no {', '.join(unknown)}")
    rows = []
    for name in args.names or CHANNELS_LAST:
        rows.append(row_of(name, args.seconds))
        print(f"{rows[-1]} at a load of {os.getloadavg()[0]:.1f}", flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
