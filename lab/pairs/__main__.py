"""Which small compositions come back as cheap as the equal that a person finds.

    python -m lab.pairs [--kinds norms,pools] [--every 7] [--json FILE]

Every case (:mod:`lab.pairs.rewrite_cases`) is optimised at default settings under recorded prices. It is *found* where
the result costs no more than the person's equal, or where that has fewer operators and the result has no more.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from lab.case_suite import FOUND, MISSED, PROFILE, Suite, options, outcome_table
from lab.pairs.rewrite_cases import RewriteCase, cases
from lab.search_comparison import modelled
from superopt.cost import CostModel
from superopt.cost.backend_capabilities import ONNX_RUNTIME_CPU
from superopt.discovery.derive import all_rewrites_of, derived
from superopt.discovery.expected_rule_gains import recorded
from superopt.egraph.saturation import RewriteSet
from superopt.ir.graph import Graph
from superopt.ops.shape_inference import infer
from superopt.pipeline.optimization import optimize
from superopt.program.graph_program import program_of
from superopt.rules.library import load_library

_SAME = 1.01  # times the cost of the equal: as cheap
VERDICT, PRICE, UNREACHED = "floating-point verdict", "price or order of rewrites", "no rules"


@dataclass(frozen=True)
class ExpressionCost:
    """Operators that run, without those that only rename memory, and microseconds by the profile."""

    operators: int
    us: float


@dataclass(frozen=True)
class RewriteCaseResult:
    """One case: the composition, the person's equal and the result.

    Attributes:
        outcome: found or missed.
        reason: why it is missed: `--float fast` finds it; rules derive it; they do not.
    """

    kind: str
    name: str
    given: ExpressionCost
    answer: ExpressionCost
    result: ExpressionCost
    outcome: str
    reason: str = ""


def form_of(graph: Graph, prices: CostModel | None = None) -> ExpressionCost:
    """What a graph runs."""
    program = program_of(graph, infer(graph))
    operators = sum(program.steps[p].op not in ONNX_RUNTIME_CPU.views for p in program.running)
    return ExpressionCost(operators, round(modelled(graph, prices or recorded(PROFILE)), 3))


def row_of(case: RewriteCase) -> RewriteCaseResult:
    """Optimise a case."""
    given, answer = form_of(case.given), form_of(case.answer)
    result = result_of(case, "standard")
    if is_found(given, answer, result):
        return RewriteCaseResult(case.kind, case.name, given, answer, result, FOUND)
    return RewriteCaseResult(case.kind, case.name, given, answer, result, MISSED, _reason(case, given, answer))


def result_of(case: RewriteCase, floats: str) -> ExpressionCost:
    """What optimisation makes of a case in a mode of floating point."""
    return form_of(optimize(case.given, options=options(floats)).graph)


def is_found(given: ExpressionCost, answer: ExpressionCost, result: ExpressionCost) -> bool:
    """Whether a result is as good as a person's equal."""
    return result.us <= answer.us * _SAME or result.operators <= answer.operators < given.operators


def _reason(case: RewriteCase, given: ExpressionCost, answer: ExpressionCost) -> str:
    if is_found(given, answer, result_of(case, "fast")):
        return VERDICT
    return UNREACHED if case.behind or derived(case.rule, _rewrites()) is None else PRICE


@cache
def _rewrites() -> RewriteSet:
    return all_rewrites_of(load_library().admitted)


def table(rows: Iterable[RewriteCaseResult]) -> str:
    """Counts by kind."""
    return outcome_table(
        "kind", (FOUND, VERDICT, PRICE, UNREACHED), ((row.kind, row.reason or row.outcome) for row in rows)
    )


def line(row: RewriteCaseResult) -> str:
    """A missed case."""
    operators = f"{row.given.operators} operators, {row.answer.operators} do, {row.result.operators} come back"
    times = f"{row.given.us} µs, {row.answer.us}, {row.result.us}"
    return f"{row.kind}: {row.name}: {operators}; {times} ({row.reason})"


def cases_of(kinds: tuple[str, ...]) -> list[RewriteCase]:
    """Cases of these kinds, or all."""
    return [c for c in cases() if not kinds or c.kind in kinds]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite (:meth:`lab.case_suite.Suite.main`)."""
    return Suite("lab.pairs", __doc__, "kinds", cases_of, row_of, line, table).main(arguments)


if __name__ == "__main__":
    sys.exit(main())
