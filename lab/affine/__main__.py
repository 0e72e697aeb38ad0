"""Which compositions of a linear operator and affine neighbours come back as few operators as there can be.

    python -m lab.affine [--operators Conv,Gemm] [--every 7] [--json FILE]

Every composition (:mod:`lab.affine.forms`) is optimised at default settings under recorded prices. It is *found* where
the result has no more nodes than the fewest that weights exist for (:mod:`lab.affine.deciding`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.affine.deciding import fewest_operators
from lab.affine.forms import LARGE, Composition, compositions
from superopt.cost.fusion import ONNX_RUNTIME_CPU
from superopt.pipeline.optimization import optimize
from superopt.pipeline.options import Options

_TARGET = "profile:cpu-epyc-2core"
FOUND, MISSED, NONE = "found", "missed", "none exists"


@dataclass(frozen=True)
class Row:
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


def row_of(composition: Composition) -> Row:
    """Decide a composition, and optimise it."""
    fewest = fewest_operators(composition)
    result = operators_left(composition, "standard") if fewest < composition.operators else composition.operators
    outcome = NONE if fewest == composition.operators else FOUND if result <= fewest else MISSED
    reason = _reason(composition, fewest) if outcome == MISSED else ""
    return Row(composition.name, composition.form.name, composition.operators, fewest, result, outcome, reason)


def operators_left(composition: Composition, floats: str) -> int:
    """Operators of what optimisation makes of a composition in a mode of floating point."""
    options = Options(target=_TARGET, time_limit=None, floats=floats, disable=("algorithms",))
    nodes = optimize(composition.graph(LARGE), options=options).graph.nodes
    return sum(n.op not in ONNX_RUNTIME_CPU.views for n in nodes)  # what renames memory takes no time


def _reason(composition: Composition, fewest: int) -> str:
    return "floating-point verdict" if operators_left(composition, "fast") <= fewest else "no rule, or price"


def table(rows: Iterable[Row]) -> str:
    """Counts by form."""
    by_form: dict[str, Counter[str]] = {}
    for row in rows:
        by_form.setdefault(row.form, Counter())[row.outcome] += 1
    total: Counter[str] = sum(by_form.values(), Counter())
    lines = ["| linear operator | found | missed | none exists |", "|---|--:|--:|--:|"]
    for name, counts in [*by_form.items(), ("all", total)]:
        lines.append(f"| {name} | {counts[FOUND]} | {counts[MISSED]} | {counts[NONE]} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for what is missed, then the table; exit code 6 where something is missed."""
    parser = argparse.ArgumentParser(prog="python -m lab.affine", description=__doc__)
    parser.add_argument("--operators", default="", help="only these linear operators, with commas")
    parser.add_argument("--every", type=int, default=1, help="only each N-th composition")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    rows: list[Row] = []
    for composition in list(compositions(tuple(filter(None, chosen.operators.split(",")))))[:: chosen.every]:
        row = row_of(composition)
        rows.append(row)
        if row.outcome == MISSED:
            counts = f"{row.operators} operators, {row.fewest} do, {row.result} come back"
            print(f"{row.name}: {counts} ({row.reason})", flush=True)
    print(table(rows), end="")
    if chosen.json is not None:
        data: list[Mapping[str, object]] = [asdict(r) for r in rows]
        chosen.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 6 if any(r.outcome == MISSED for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
