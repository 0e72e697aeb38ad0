"""Which compositions of a linear operator and affine neighbours come back as few operators as there can be.

    python -m lab.affine [--operators Conv,Gemm] [--every 7] [--json FILE]

Every composition (:mod:`lab.affine.affine_compositions`) is optimised at default settings under recorded prices. It is
*found* where the result has no more nodes than the fewest that weights exist for (:mod:`lab.affine.fewest_operators`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lab.affine.affine_compositions import LARGE, Composition, compositions
from lab.affine.fewest_operators import fewest_operators
from lab.case_suite import FOUND, MISSED, Suite, options, outcome_table
from superopt.cost.backend_capabilities import ONNX_RUNTIME_CPU
from superopt.pipeline.optimization import optimize

NONE = "none exists"


@dataclass(frozen=True)
class AffineCompositionRow:
    """One composition.

    Attributes:
        name: of it.
        form: of its linear operator.
        operators: of the composition; ``fewest`` that do the same.
        result: operators of what optimisation makes of it.
        outcome: found, missed, or none exists.
        reason: why it is missed.
    """

    name: str
    form: str
    operators: int
    fewest: int
    result: int
    outcome: str
    reason: str = ""


def row_of(composition: Composition) -> AffineCompositionRow:
    """Decide a composition, and optimise it."""
    fewest = fewest_operators(composition)
    result = operators_left(composition, "standard") if fewest < composition.operators else composition.operators
    outcome = NONE if fewest == composition.operators else FOUND if result <= fewest else MISSED
    reason = _reason(composition, fewest) if outcome == MISSED else ""
    return AffineCompositionRow(
        composition.name, composition.form.name, composition.operators, fewest, result, outcome, reason
    )


def operators_left(composition: Composition, floats: str) -> int:
    """Operators of what optimisation makes of a composition in a mode of floating point."""
    nodes = optimize(composition.graph(LARGE), options=options(floats)).graph.nodes
    return sum(n.op not in ONNX_RUNTIME_CPU.views for n in nodes)  # what renames memory takes no time


def _reason(composition: Composition, fewest: int) -> str:
    return "floating-point verdict" if operators_left(composition, "fast") <= fewest else "no rule, or price"


def table(rows: Iterable[AffineCompositionRow]) -> str:
    """Counts by form."""
    return outcome_table("linear operator", (FOUND, MISSED, NONE), ((row.form, row.outcome) for row in rows))


def line(row: AffineCompositionRow) -> str:
    """A missed composition."""
    return f"{row.name}: {row.operators} operators, {row.fewest} do, {row.result} come back ({row.reason})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite (:meth:`lab.case_suite.Suite.main`)."""
    return Suite("lab.affine", __doc__, "operators", lambda names: list(compositions(names)), row_of, line, table).main(
        arguments
    )


if __name__ == "__main__":
    sys.exit(main())
