"""All searches side by side over the same rules and costs: ``python -m lab.compare MODEL...``.

One row a model: the modelled cost (µs) of the input and of what greedy, best-first and superopt's own search make of
it, all read off the written graphs by one function. Exit code 6 if ours is not the cheapest of a model.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.baselines import SECONDS, best_first, greedy, modelled
from superopt import cost, formats
from superopt.cost.cost_model import CostModel
from superopt.ir.graph import Graph
from superopt.passes.saturation_search import search
from superopt.regions.result import SearchOptions
from superopt.rules import Rule, load_library

__all__ = ["Row", "compare"]

_SAME = 1 + 1e-4  # costs that differ by less than this share are equal


@dataclass(frozen=True)
class Row:
    """Modelled microseconds of a model, as it is and as each search leaves it; and how long ours took (s)."""

    model: str
    input: float
    greedy: float
    best_first: float
    ours: float
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether ours is the cheapest."""
        return self.ours <= min(self.input, self.greedy, self.best_first) * _SAME


def compare(graph: Graph, rules: Sequence[Rule], costs: CostModel, seconds: float = SECONDS) -> Row:
    """Run all searches on a graph.

    Args:
        graph: the model.
        rules: for all alike.
        costs: for all alike; it should answer without measuring.
        seconds: for each of the baselines; ours takes what it takes.
    """
    weights = graph.weight_bytes
    costs = costs.in_context(weights)  # one price for all, whatever became of the weights
    start = time.monotonic()
    own = search(graph, rules, costs, SearchOptions(cache=False, least_gain=0.0)).graph
    took = time.monotonic() - start
    results = (graph, greedy(graph, rules, costs, seconds).graph, best_first(graph, rules, costs, seconds).graph, own)
    before, by_greed, by_queue, by_us = (modelled(g, costs) for g in results)
    return Row(graph.name, before, by_greed, by_queue, by_us, took)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table (and write it as JSON); 6 if ours is beaten."""
    parser = argparse.ArgumentParser(prog="python -m lab.compare", description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--target", default="", help="profile:NAME; a plain roofline by default")
    parser.add_argument("--rules", type=Path, help="a folder of rules instead of the built-in ones")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each of the baselines")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    rules = rules_of(chosen.rules)
    rows: list[Row] = []
    print(f"{'model':20} {'input':>11} {'greedy':>11} {'best-first':>11} {'ours':>11} {'ratio':>6} {'s':>6}")
    for path in chosen.models:
        row = compare(formats.load(path), rules, costs_of(chosen.target), chosen.seconds)
        rows.append(row)
        mark = "" if row.holds else "  beaten"
        ratio = row.ours / row.input if row.input else 1.0
        print(f"{path.stem:20} {row.input:11.1f} {row.greedy:11.1f} {row.best_first:11.1f} {row.ours:11.1f}"
              f" {ratio:6.3f} {row.seconds:6.1f}{mark}", flush=True)  # fmt: skip
    if chosen.json is not None:
        chosen.json.write_text(json.dumps([asdict(r) for r in rows], indent=2) + "\n", encoding="utf-8")
    return 0 if all(r.holds for r in rows) else 6


def rules_of(folder: Path | None) -> tuple[Rule, ...]:
    """The admitted built-in rules, or those of a folder as they are (for experiments: nothing is proved here)."""
    return load_library().admitted if folder is None else tuple(load_library(folder, built_in=False).values())


def costs_of(target: str) -> CostModel:
    """A recorded profile by the name of its target; without one, an empty profile, which predicts by roofline."""
    name = target.removeprefix("profile:")
    return cost.RecordedProfile(cost.load_profile(name) if name else cost.Profile({"sha256": "roofline"}, {}))


if __name__ == "__main__":
    sys.exit(main())
