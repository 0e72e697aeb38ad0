"""The costs put to the test on whole models: ``make bench-cost``.

Before/after pairs come from the optimiser: what measured costs make of each whole model, and what bad costs make of
blocks of it (:mod:`superopt.benchmark.rewrite_pairs`), so that losses are predicted, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from superopt import cost as costs
from superopt.benchmark.cost_accuracy import (
    HeldOutAccuracy,
    ModelTimePrediction,
    ProfileRepeatability,
    RewriteSpeedupPrediction,
    held_out,
    predict_changes,
    repeat,
    right_share,
    spearman,
    validate,
)
from superopt.benchmark.rewrite_pairs import AIMS, rewrites, searched
from superopt.benchmark.rewrite_pairs import blocks as cut
from superopt.benchmark.row_cache import RowCache, code_digest, model_digest
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph
from superopt.passes import SearchOptions
from superopt.pipeline.optimization import load, select_rules
from superopt.pipeline.options import Options, Progress, quiet

__all__ = ["CostValidation", "repeat_profile", "validate_costs"]

_LEAST_CHANGE = 0.03
_BLOCKS = 2  # of a model
_RACE, _BLOCK_RACE = 6.0, 1.5  # seconds of a race of whole models, and of blocks for each of their forms


@dataclass(frozen=True)
class CostValidation:
    """How good the costs are: per model, per rewrite, and on records that were held out.

    ``left_out`` are the models that there was no time for; ``interrupted`` says whether it was Ctrl-C that ended it.
    """

    predictions: tuple[ModelTimePrediction, ...]
    directions: tuple[RewriteSpeedupPrediction, ...]
    held_out: HeldOutAccuracy
    left_out: tuple[str, ...] = ()
    interrupted: bool = False

    def json(self) -> dict[str, Any]:
        """Everything as JSON data, with the summary."""
        good = sorted(abs(p.error) for p in self.predictions if not p.failure)
        right, counted = right_share(self.directions, _LEAST_CHANGE)
        beyond = [d for d in self.directions if d.counts(_LEAST_CHANGE)]
        return {
            "format": "superopt.cost-validation", "version": 1,
            "summary": {
                "models": len(good), "median_error": good[len(good) // 2] if good else None,
                "worst_error": good[-1] if good else None, "spearman": spearman(self.predictions),
                "pairs": len([d for d in self.directions if not d.failure]), "pairs_beyond": counted,
                "pairs_right": sum(d.right for d in beyond), "pairs_faster": sum(d.measured < 1 for d in beyond),
                "models_of_pairs": len({d.name.partition("/")[0] for d in beyond}),
                "least_change": _LEAST_CHANGE, "direction_right": right if counted else None,
            },
            "models": [{**asdict(p), "error": p.error} for p in self.predictions],
            "pairs": [{**asdict(d), "right": d.right, "counts": d.counts(_LEAST_CHANGE)} for d in self.directions],
            "held_out": asdict(self.held_out), "left_out": list(self.left_out), "interrupted": self.interrupted,
        }  # fmt: skip


def validate_costs(
    models: Sequence[str | Path | Graph],
    *,
    options: Options | None = None,
    pairs: bool = True,
    blocks: int = _BLOCKS,
    rounds: int = 15,
    keep: Path | None = None,
    total_limit: float = float("inf"),
    search_limit: float = 15.0,
    progress: Progress = quiet,
) -> CostValidation:
    """Compare modelled with measured time on this machine, for models and for rewrites of them.

    Args:
        models: paths or graphs.
        options: ``enable``, ``disable`` and ``rules`` say which rewrites pairs are made with; ``sizes``, ``threads``.
        pairs: whether rewrites are tested as well.
        blocks: of each model, whose rewrites for other aims than time are tested.
        rounds: interleaved rounds of each race.
        keep: folder of the models that are done, so that another call goes on; ``None`` keeps none.
        total_limit: seconds after which no further model is begun.
        search_limit: seconds of one search of a whole model.
        progress: called before each measurement.

    Ctrl-C ends it with the models that are done.
    """
    options = options or Options()
    model = costs.MeasuredCpuCostModel(threads=options.threads, sizes=options.sizes, progress=progress)
    decisive = (pairs, blocks, rounds, search_limit, options.threads, sorted(options.enable))
    kept = RowCache(keep, " ".join([code_digest()[:16], *map(str, decisive)]))
    predictions: list[ModelTimePrediction] = []
    directions: list[RewriteSpeedupPrediction] = []
    left_out: list[str] = []
    interrupted = False
    deadline = time.monotonic() + total_limit
    for source in models:
        name = source.name if isinstance(source, Graph) else Path(source).stem
        row = None if isinstance(source, Graph) else kept.get(Path(source))
        if row is None and (interrupted or time.monotonic() >= deadline):
            left_out.append(name)
            continue
        if row is None:
            content = "" if isinstance(source, Graph) else model_digest(Path(source))
            try:
                row = _row(
                    name, source, model, options, blocks if pairs else None, rounds, search_limit, progress
                )  # fmt: skip
            except KeyboardInterrupt:
                interrupted = True
                left_out.append(name)
                continue
            if not isinstance(source, Graph):
                kept.put(Path(source), row, content)
        predictions.append(ModelTimePrediction(**row["prediction"]))
        directions += [RewriteSpeedupPrediction(**pair) for pair in row["pairs"]]
    held = held_out(model.store.records)
    return CostValidation(tuple(predictions), tuple(directions), held, tuple(left_out), interrupted)


def _row(
    name: str,
    source: str | Path | Graph,
    model: costs.MeasuredCpuCostModel,
    options: Options,
    blocks: int | None,
    rounds: int,
    search_limit: float,
    progress: Progress,
) -> dict[str, Any]:
    """A model and its rewrites (none where ``blocks`` is ``None``), as JSON data."""
    try:
        graph = load(source)
    except SuperoptError as error:
        return {"prediction": asdict(ModelTimePrediction(name, 0.0, 0.0, 0.0, 0.0, failure=str(error))), "pairs": []}
    progress(0, None, name)
    [prediction] = validate([(name, graph)], model, sizes=options.sizes, rounds=rounds, time_limit=_RACE)
    found: list[RewriteSpeedupPrediction] = []
    if blocks is not None:
        for of, forms, seconds in _forms(name, graph, model, options, blocks, search_limit, progress):
            found += predict_changes(
                of, forms, model, sizes=options.sizes, rounds=rounds, time_limit=seconds
            )  # fmt: skip
    return {"prediction": asdict(prediction), "pairs": [asdict(pair) for pair in found]}


def _forms(
    name: str,
    graph: Graph,
    model: costs.MeasuredCpuCostModel,
    options: Options,
    blocks: int,
    search_limit: float,
    progress: Progress,
) -> Iterator[tuple[str, list[tuple[str, Graph]], float]]:
    """What is raced together: a name, forms of one graph with their aims, seconds; the model first, then its blocks."""
    library = select_rules(options)
    rules, floats = library.admitted, library.floats(options.floats)
    limits = SearchOptions(time_limit=search_limit, seed=options.seed, sizes=options.sizes, floats=floats)
    found = searched(graph, rules, model, limits, progress)
    if found is not graph:
        yield name, [("model", graph), ("least time", found)], _RACE
    for number, block in enumerate(cut(graph, blocks, seed=options.seed, sizes=options.sizes), 1):
        progress(number, blocks, f"{name}: rewriting blocks")
        rewritten = list(rewrites(block, rules, AIMS, seed=options.seed, sizes=options.sizes))
        if rewritten:
            yield f"{name}/{number}", [("block", block), *rewritten], _BLOCK_RACE * len(rewritten)


def repeat_profile(model: str | Path | Graph, *, threads: int = 1) -> ProfileRepeatability:
    """Profile a model twice from nothing on this machine: how long it takes, and how much the two runs differ."""
    name = model.name if isinstance(model, Graph) else Path(model).stem
    return repeat(name, load(model), lambda store: costs.MeasuredCpuCostModel(threads=threads, store=store))
