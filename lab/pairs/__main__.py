"""Which small compositions come back as cheap as the equal that a person finds.

    python -m lab.pairs [--kinds norms,pools] [--every 7] [--json FILE]

Every case (:mod:`lab.pairs.cases`) is optimised at default settings under recorded prices. It is *found* where the
result costs no more than the person's equal, or where that has fewer operators and the result has no more.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from lab.compare import modelled
from lab.pairs.cases import Case, cases
from superopt.cost import CostModel
from superopt.cost.fusion import ONNX_RUNTIME_CPU
from superopt.discovery.derive import all_rewrites_of, derived
from superopt.discovery.gain import recorded
from superopt.egraph.saturation import RewriteSet
from superopt.ir.graph import Graph
from superopt.ops.infer import infer
from superopt.pipeline.optimization import optimize
from superopt.pipeline.options import Options
from superopt.program.program import program_of
from superopt.rules.library import load_library

_PROFILE = "cpu-epyc-2core"
_SAME = 1.01  # times the cost of the equal: as cheap
FOUND, MISSED = "found", "missed"
VERDICT, PRICE, UNREACHED = "floating-point verdict", "price or order of rewrites", "no rules"


@dataclass(frozen=True)
class Form:
    """Operators that run, without those that only rename memory, and microseconds by the profile."""

    operators: int
    us: float


@dataclass(frozen=True)
class Row:
    """One case: the composition, the person's equal and the result.

    Attributes:
        outcome: found or missed.
        reason: why it is missed: `--float fast` finds it; rules derive it; they do not.
    """

    kind: str
    name: str
    given: Form
    answer: Form
    result: Form
    outcome: str
    reason: str = ""


def form_of(graph: Graph, prices: CostModel | None = None) -> Form:
    """What a graph runs."""
    program = program_of(graph, infer(graph))
    operators = sum(program.steps[p].op not in ONNX_RUNTIME_CPU.views for p in program.running)
    return Form(operators, round(modelled(graph, prices or recorded(_PROFILE)), 3))


def row_of(case: Case) -> Row:
    """Optimise a case."""
    given, answer = form_of(case.given), form_of(case.answer)
    result = result_of(case, "standard")
    if is_found(given, answer, result):
        return Row(case.kind, case.name, given, answer, result, FOUND)
    return Row(case.kind, case.name, given, answer, result, MISSED, _reason(case, given, answer))


def result_of(case: Case, floats: str) -> Form:
    """What optimisation makes of a case in a mode of floating point."""
    options = Options(target=f"profile:{_PROFILE}", time_limit=None, floats=floats, disable=("algorithms",))
    return form_of(optimize(case.given, options=options).graph)


def is_found(given: Form, answer: Form, result: Form) -> bool:
    """Whether a result is as good as a person's equal."""
    return result.us <= answer.us * _SAME or result.operators <= answer.operators < given.operators


def _reason(case: Case, given: Form, answer: Form) -> str:
    if is_found(given, answer, result_of(case, "fast")):
        return VERDICT
    return UNREACHED if case.behind or derived(case.rule, _rewrites()) is None else PRICE


@cache
def _rewrites() -> RewriteSet:
    return all_rewrites_of(load_library().admitted)


def table(rows: Iterable[Row]) -> str:
    """Counts by kind."""
    by_kind: dict[str, Counter[str]] = {}
    for row in rows:
        by_kind.setdefault(row.kind, Counter())[row.reason or row.outcome] += 1
    total: Counter[str] = sum(by_kind.values(), Counter())
    columns = (FOUND, VERDICT, PRICE, UNREACHED)
    lines = [f"| kind | {' | '.join(columns)} |", "|---|" + "--:|" * len(columns)]
    for name, counts in [*by_kind.items(), ("all", total)]:
        lines.append(f"| {name} | {' | '.join(str(counts[c]) for c in columns)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for what is missed, then the table; exit code 6 where something is missed."""
    parser = argparse.ArgumentParser(prog="python -m lab.pairs", description=__doc__)
    parser.add_argument("--kinds", default="", help="only these kinds, with commas")
    parser.add_argument("--every", type=int, default=1, help="only each N-th case")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    kinds = tuple(filter(None, chosen.kinds.split(",")))
    rows: list[Row] = []
    for case in [c for c in cases() if not kinds or c.kind in kinds][:: chosen.every]:
        row = row_of(case)
        rows.append(row)
        if row.outcome == MISSED:
            operators = f"{row.given.operators} operators, {row.answer.operators} do, {row.result.operators} come back"
            times = f"{row.given.us} µs, {row.answer.us}, {row.result.us}"
            print(f"{row.kind}: {row.name}: {operators}; {times} ({row.reason})", flush=True)
    print(table(rows), end="")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n", encoding="utf-8")
    return 6 if any(r.outcome == MISSED for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
