"""The costs put to the test on whole models: ``make bench-cost``.

Before/after pairs come from the optimiser, and not only those that measured costs chose: it is also made to minimise
operators and FLOPs, which merges, concatenates and enlarges whatever it can, so that losses are predicted, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from superopt import cost as costs
from superopt.cost.model import CostModel
from superopt.cost.question import Question
from superopt.cost.record import Estimate
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph
from superopt.pipeline.kept import Kept, code_digest
from superopt.pipeline.optimise import Options, Progress, load, quiet, select_rules
from superopt.search import SearchOptions, search

__all__ = ["Validation", "repeat_profile", "validate_costs"]

Aim = Literal["least time", "fewest operators", "fewest FLOPs"]
_AIMS: tuple[Aim, ...] = ("least time", "fewest operators", "fewest FLOPs")
_LEAST_CHANGE = 0.03
_SEARCH = 15.0  # seconds of one search


@dataclass(frozen=True)
class Validation:
    """How good the costs are: per model, per rewrite, and on records that were held out."""

    predictions: tuple[costs.Prediction, ...]
    directions: tuple[costs.Direction, ...]
    held_out: costs.HeldOut
    left_out: tuple[str, ...] = ()

    def json(self) -> dict[str, Any]:
        """Everything as JSON data, with the summary."""
        good = sorted(abs(p.error) for p in self.predictions if not p.failure)
        right, counted = costs.right_share(self.directions, _LEAST_CHANGE)
        return {
            "format": "superopt.cost-validation", "version": 1,
            "summary": {
                "models": len(good), "median_error": good[len(good) // 2] if good else None,
                "worst_error": good[-1] if good else None, "spearman": costs.spearman(self.predictions),
                "pairs": len([d for d in self.directions if not d.failure]), "pairs_beyond": counted,
                "least_change": _LEAST_CHANGE, "direction_right": right if counted else None,
            },
            "models": [{**asdict(p), "error": p.error} for p in self.predictions],
            "pairs": [{**asdict(d), "right": d.right, "counts": d.counts(_LEAST_CHANGE)} for d in self.directions],
            "held_out": asdict(self.held_out), "left_out": list(self.left_out),
        }  # fmt: skip


class _Counting(CostModel):
    """Costs without time: every application counts 1, or its FLOPs. What a tool without measurements would go by."""

    cache_bytes = None

    def __init__(self, aim: Aim, sizes: Mapping[str, int]) -> None:
        super().__init__(sizes)
        self.aim = aim

    def _view(self) -> Estimate:
        return Estimate(0.01, "measured")

    def _lookup(self, question: Question) -> Estimate:
        counted = 1.0 if self.aim == "fewest operators" else 0.01 + question.work[0] / 1e3
        return Estimate(counted, "measured")


def validate_costs(
    models: Sequence[str | Path | Graph],
    *,
    options: Options | None = None,
    pairs: bool = True,
    rounds: int = 15,
    keep: Path | None = None,
    total_limit: float = float("inf"),
    progress: Progress = quiet,
) -> Validation:
    """Compare modelled with measured time on this machine, for models and for rewrites of them.

    Args:
        models: paths or graphs.
        options: ``enable``, ``disable`` and ``rules`` say which rewrites pairs are made with; ``sizes``, ``threads``.
        pairs: whether rewrites are tested as well.
        rounds: interleaved rounds of each race.
        keep: folder of the models that are done, so that another call goes on; ``None`` keeps none.
        total_limit: seconds after which no further model is begun.
        progress: called before each measurement.
    """
    options = options or Options()
    model = costs.MeasuredCpu(threads=options.threads, sizes=options.sizes, progress=progress)
    kept = Kept(keep, f"{code_digest()[:16]} {pairs} {rounds} {options.threads} {sorted(options.enable)}")
    predictions: list[costs.Prediction] = []
    directions: list[costs.Direction] = []
    left_out: list[str] = []
    deadline = time.monotonic() + total_limit
    for source in models:
        name = source.name if isinstance(source, Graph) else Path(source).stem
        row = None if isinstance(source, Graph) else kept.get(Path(source))
        if row is None and time.monotonic() >= deadline:
            left_out.append(name)
            continue
        if row is None:
            row = _row(name, source, model, options, pairs, rounds, progress)
            if not isinstance(source, Graph):
                kept.put(Path(source), row)
        predictions.append(costs.Prediction(**row["prediction"]))
        directions += [costs.Direction(**pair) for pair in row["pairs"]]
    return Validation(tuple(predictions), tuple(directions), costs.held_out(model.store.records), tuple(left_out))


def _row(
    name: str, source: str | Path | Graph, model: costs.MeasuredCpu, options: Options, pairs: bool, rounds: int,
    progress: Progress,
) -> dict[str, Any]:  # fmt: skip
    """A model and its rewrites, as JSON data."""
    try:
        graph = load(source)
    except SuperoptError as error:
        return {"prediction": asdict(costs.Prediction(name, 0.0, 0.0, 0.0, 0.0, failure=str(error))), "pairs": []}
    progress(0, None, name)
    [prediction] = costs.validate([(name, graph)], model, sizes=options.sizes, rounds=rounds)
    found = [
        asdict(costs.predict_change(name, aim, graph, after, model, sizes=options.sizes, rounds=rounds))
        for aim, after in (_rewrites(graph, model, options, progress) if pairs else ())
    ]
    return {"prediction": asdict(prediction), "pairs": found}


def _rewrites(
    graph: Graph, model: costs.MeasuredCpu, options: Options, progress: Progress
) -> Iterator[tuple[Aim, Graph]]:
    """What the optimiser makes of a graph with each aim, unless it leaves the graph as it is."""
    rules = select_rules(options).admitted
    limits = SearchOptions(
        time_limit=_SEARCH, seed=options.seed, sizes=options.sizes, confirm=False, fold_budget_bytes=1 << 30
    )
    for aim in _AIMS:
        by: CostModel = model if aim == "least time" else _Counting(aim, options.sizes)
        found = search(graph, rules, by, limits, progress=progress)
        if found.graph is not graph:
            yield aim, found.graph


def repeat_profile(model: str | Path | Graph, *, threads: int = 1) -> costs.Repetition:
    """Profile a model twice from nothing on this machine: how long it takes, and how much the two runs differ."""
    name = model.name if isinstance(model, Graph) else Path(model).stem
    return costs.repeat(name, load(model), lambda store: costs.MeasuredCpu(threads=threads, store=store))
