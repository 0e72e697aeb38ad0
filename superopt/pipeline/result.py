"""What an optimisation comes back with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from superopt import formats, report
from superopt.ir.graph import Graph
from superopt.pipeline.recomputing import Point
from superopt.rules.values import Certificate

__all__ = ["Result"]


@dataclass(frozen=True)
class Result:
    """The graph to use (the input itself when nothing better was found), the input, and the report.

    ``by_values`` are the rewrites by the elements of weights that the graph rests on: what each makes of the one before
    it, and what it claims (:mod:`superopt.verifier.value_files`).
    ``pareto`` has the graphs that trade time for memory, where they were asked for, by rising time; each was checked.
    """

    graph: Graph
    original: Graph
    report: report.Report
    by_values: tuple[tuple[Graph, Certificate], ...] = ()
    pareto: tuple[Point, ...] = ()

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the graph as ONNX or JSON by the path's suffix; refuses to overwrite unless forced."""
        formats.save(self.graph, Path(path), force=force)
