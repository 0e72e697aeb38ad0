"""What an optimisation comes back with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from superopt import formats, report
from superopt.ir.errors import printable
from superopt.ir.graph import Graph

if TYPE_CHECKING:
    import onnx

    from superopt.pipeline.rematerialization import MemoryTradeoffPoint
    from superopt.rules.weight_claims import WeightRewriteCertificate

__all__ = ["Result"]


@dataclass(frozen=True, repr=False)
class Result:
    """The graph to use (the input itself when nothing better was found), the input, and the report.

    ``by_values`` are the rewrites by the elements of weights that the graph rests on: what each makes of the one before
    it, and what it claims (:mod:`superopt.verifier.weights.certificate_files`).
    ``pareto`` has the graphs that trade time for memory, where they were asked for, by rising time; each was checked.
    """

    graph: Graph
    original: Graph
    report: report.Report
    by_values: tuple[tuple[Graph, WeightRewriteCertificate], ...] = ()
    pareto: tuple[MemoryTradeoffPoint, ...] = ()

    def __repr__(self) -> str:
        return f"<superopt Result {printable(self.graph.name)!r}: {self.report.summary}>"

    def __str__(self) -> str:
        """The table of the command line."""
        from superopt.report.notebook import text

        return text(self.report, self.graph.name)

    def _repr_html_(self) -> str:
        """As notebooks show it."""
        from superopt.report.notebook import html

        return html(self.report, self.graph.name)

    def _repr_svg_(self) -> str:
        """The result's graph, drawn."""
        return self.graph._repr_svg_()

    def to_onnx(self) -> onnx.ModelProto:
        """The result as an ONNX model in memory, weights inside.

        Raises:
            ResourceLimit: the weights are too large for one message: :meth:`save` writes them beside the model.
        """
        return formats.to_onnx(self.graph)

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the graph as ONNX or JSON by the path's suffix; refuses to overwrite unless forced."""
        formats.save(self.graph, Path(path), force=force)
