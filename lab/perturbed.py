"""Do wrong prices lead astray? ``python -m lab.perturbed MODEL... --seeds 20``.

The search is run with every price multiplied by a factor of its own, drawn at random from ``[1 - share, 1 + share]``
by a digest of the question and a seed, as CockroachDB's optimizer tests its coster. What it makes of a model is then
priced truly. A row says by how much the results cost more than the one that true prices lead to; exit code 6 if that
is more than three percent, by the median over the seeds, for more than two models in 45.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from superopt import cost, formats
from superopt.cost.record import Estimate, Question
from superopt.gate.laboratory import Scaled
from superopt.ir.graph import Graph
from superopt.passes.saturation_search import search
from superopt.regions.result import SearchOptions
from superopt.rules import load_library

__all__ = ["Perturbed", "Row", "perturbed"]

_WITHIN = 1.03  # of the unperturbed result's cost
_MOST_ASTRAY = 2 / 45  # of the models


class Perturbed(Scaled):
    """A cost model each of whose prices is off by a factor of its own, always the same for a question and a seed.

    Args:
        model: what is asked.
        seed: of the factors.
        share: how far a price may be off.
    """

    def __init__(self, model: cost.CostModel, seed: int, share: float) -> None:
        super().__init__(model, {})
        self.seed, self.share = seed, share

    @property
    def digest(self) -> str | None:
        return None  # nothing found under wrong prices is kept

    def _lookup(self, question: Question) -> Estimate:
        found = super()._lookup(question)
        drawn = hashlib.sha256(f"{self.seed} {question.key.text}".encode()).digest()
        where = int.from_bytes(drawn[:8], "big") / 2**64
        return replace(found, us=found.us * (1.0 + self.share * (2.0 * where - 1.0)))


@dataclass(frozen=True)
class Row:
    """A model's true cost (µs) as it is and as true prices lead to; that of perturbed prices' results, ÷ the latter."""

    model: str
    input_us: float
    unperturbed_us: float
    ratios: tuple[float, ...]

    @property
    def holds(self) -> bool:
        """Whether the results are as good, by the median."""
        return median(self.ratios) <= _WITHIN


def perturbed(name: str, graph: Graph, model: cost.CostModel, seeds: Sequence[int], share: float) -> Row:
    """Search with true prices and with wrong ones, and price the results truly."""
    library = load_library()

    def found(prices: cost.CostModel) -> float:
        options = SearchOptions(cache=False, floats=library.floats("standard"))
        made = search(graph, library.admitted, prices, options).graph
        return cost.graph_cost(made, model).us

    own = found(model)
    ratios = tuple(found(Perturbed(model, seed, share)) / own for seed in seeds)
    return Row(name, cost.graph_cost(graph, model).us, own, ratios)


def _table(rows: Sequence[Row]) -> str:
    head = "| model | true prices lead to | perturbed, median | worst | seeds beyond 3 % |"
    lines = [head, "|---|---|---|---|---|"]
    for row in rows:
        beyond = sum(r > _WITHIN for r in row.ratios)
        share = row.unperturbed_us / row.input_us
        lines.append(
            f"| {row.model} | {share:.3f} | {median(row.ratios):.3f} | {max(row.ratios):.3f} "
            f"| {beyond} of {len(row.ratios)} |"
        )
    within = sum(row.holds for row in rows)
    return "\n".join([*lines, "", f"within 3 % by the median: {within} of {len(rows)}"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 0, or 6 if too many models are led astray."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--target", default="profile:cpu-epyc-2core")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    rows: list[Row] = []
    for path in given.models:
        with cost.for_target(given.target) as model:
            rows.append(perturbed(path.stem, formats.load(path), model, range(given.seeds), given.share))
        print(_table(rows[-1:]).splitlines()[2], flush=True)
        if given.json is not None:
            data: list[Mapping[str, object]] = [asdict(row) for row in rows]
            given.json.write_text(json.dumps(data, indent=1))
    print("\n" + _table(rows))
    return 0 if sum(not row.holds for row in rows) <= _MOST_ASTRAY * len(rows) else 6


if __name__ == "__main__":
    sys.exit(main())
