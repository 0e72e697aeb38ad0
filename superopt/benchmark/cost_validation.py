"""The costs put to the test on whole models: ``make bench-cost``.

Before/after pairs put a cost model's sense of direction to the test, good rewrites and bad ones alike. What measured
costs choose is nearly always faster, which tests half of the question. So a graph is also optimised for
costs that have little to do with time: the number of operators, FLOPs, and estimates off by a random factor of their
own for every form of an operator. These merge what should stay apart, split, enlarge kernels, move transposes: whatever
the rules allow. Besides whole models, blocks cut out of them are rewritten, at seeded places: small enough for many.
"""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from statistics import NormalDist
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
from superopt.benchmark.row_cache import RowCache, code_digest, model_digest
from superopt.cost.cost_model import CostModel
from superopt.cost.measurement_record import CostEstimate, MeasurementRequest
from superopt.ir.diff import excerpt
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph, structural_hash
from superopt.ir.types import TensorType
from superopt.ops.shape_inference import CanonicalNode, InferredTypes, infer
from superopt.passes import SearchOptions, search
from superopt.pipeline.optimization import load, select_rules
from superopt.pipeline.options import Options, Progress, quiet
from superopt.rules import Rule, load_library

__all__ = ["AIMS", "CostValidation", "ProxyCostModel", "cut_blocks", "repeat_profile", "rewrites", "validate_costs"]

_LEAST_CHANGE = 0.03
_BLOCKS = 2  # of a model
_RACE, _BLOCK_RACE = 6.0, 1.5  # seconds of a race of whole models, and of blocks for each of their forms

AIMS = ("fewest operators", "fewest FLOPs", "chance 1", "chance 2", "chance 3")
_FACTOR = 1.0  # standard deviation of the logarithm of a random factor: forms 7 times as slow are chosen now and then
_FLOPS_PER_US, _BYTES_PER_US, _NODE_US = 80e3, 15e3, 0.5  # of the rough estimates that blocks and bad costs rest on
_SMALLEST, _LARGEST = 500.0, 20_000.0  # rough µs of a block
_NODES = 6, 40  # of a block
_TRIES = 12  # places at which a block is looked for
_SEARCH = 60.0  # seconds of one search of a block, which takes two: results must not depend on the load


def rough_us(flops: float, moved: float) -> float:
    """Microseconds of so much work on a usual core, without having measured anything."""
    return max(flops / _FLOPS_PER_US, moved / _BYTES_PER_US) + _NODE_US


class ProxyCostModel(CostModel):
    """Costs with an aim: rough time off by chance, or what a tool without measurements would go by.

    Args:
        aim: one of :data:`AIMS`; each "chance N" draws other factors, the same ones anywhere.
        sizes: what symbolic dimensions are costed at.
    """

    cache_bytes = None

    def __init__(self, aim: str, sizes: Mapping[str, int] | None = None) -> None:
        super().__init__(sizes)
        self.aim = aim

    def _view(self) -> CostEstimate:
        return CostEstimate(0.01, "measured")

    def _lookup(self, question: MeasurementRequest) -> CostEstimate:
        flops, moved = question.work
        if self.aim == "fewest operators":
            return CostEstimate(1.0, "measured")
        if self.aim == "fewest FLOPs":
            return CostEstimate(0.01 + flops / 1e3, "measured")
        digest = hashlib.sha256(f"{self.aim} {question.key.text}".encode()).digest()
        drawn = NormalDist().inv_cdf((int.from_bytes(digest[:6], "big") + 1) / ((1 << 48) + 2))
        return CostEstimate(rough_us(flops, moved) * math.exp(_FACTOR * drawn), "measured")


def cut_blocks(graph: Graph, count: int, *, seed: int = 0, sizes: Mapping[str, int] | None = None) -> tuple[Graph, ...]:
    """Different runs of consecutive nodes, each as a graph of roughly 0.5 to 20 ms; a small graph is one itself.

    Args:
        graph: a checked graph.
        count: how many, at most.
        seed: of the places.
        sizes: what symbolic dimensions are costed at.
    """
    typing = infer(graph, dict(sizes or {}))
    work = {name: rough_us(flops, moved) for name, _, flops, moved in costs.node_work(graph, typing, sizes=sizes)}
    times = [work.get(node.name, 0.0) for node in graph.nodes]
    if sum(times) <= _SMALLEST and len(times) <= 2 * _NODES[1]:
        return (graph,)
    draw = random.Random(f"{seed} {graph.name} {len(graph.nodes)}")
    found: dict[str, Graph] = {}
    for _ in range(_TRIES * count):
        if len(found) == count:
            break
        start = draw.randrange(len(times))
        made = _block(graph, typing, times, start, start + draw.randint(*_NODES))
        if made is not None:
            found.setdefault(structural_hash(made, values=False), made)
    return tuple(found.values())


def _block(graph: Graph, typing: InferredTypes, times: Sequence[float], start: int, end: int) -> Graph | None:
    """These nodes, or the first of them that take so long; ``None`` where they cannot stand alone, or are too few."""
    taken = list(accumulate(times[start:end]))
    end = start + max(sum(t <= _LARGEST for t in taken), _NODES[0])
    chosen = graph.nodes[start:end]
    running = sum(t > 0 for t in times[start:end])
    small = running < _NODES[0] or sum(times[start:end]) < _SMALLEST
    if small or not all(isinstance(k, CanonicalNode) for k in typing.nodes[start:end]):
        return None
    inside = {id(n) for n in chosen}
    wanted = {v.name for v in graph.outputs}
    outputs = [
        o for n in chosen for o in n.outputs
        if o and (o in wanted or any(id(r) not in inside for r in graph.consumers.get(o, ())))
    ]  # fmt: skip
    made = excerpt(graph, chosen, outputs, typing.types)
    return made if made.inputs and all(_feedable(v.type) for v in made.inputs) and outputs else None


def _feedable(kind: object) -> bool:
    """Whether any numbers will do for an input: integers may be shapes or indices."""
    return isinstance(kind, TensorType) and kind.shape is not None and kind.dtype.is_float


def searched(
    graph: Graph, rules: Sequence[Rule], costs: CostModel, limits: SearchOptions, progress: Progress = quiet
) -> Graph:
    """What the search makes of a graph.

    Raises:
        KeyboardInterrupt: as the search was told, for which that means its best so far; here nothing comes after it.
    """
    found = search(graph, rules, costs, limits, progress=progress)
    if found.stopped == "interrupted":
        raise KeyboardInterrupt
    return found.graph


def rewrites(
    graph: Graph, rules: Sequence[Rule], aims: Sequence[str], *, seed: int = 0, sizes: Mapping[str, int] | None = None
) -> Iterator[tuple[str, Graph]]:
    """What the search makes of a graph with each aim, each result once, unless it leaves the graph as it is."""
    limits = SearchOptions(
        time_limit=_SEARCH,
        seed=seed,
        sizes=dict(sizes or {}),
        cache=False,
        fold_budget_bytes=1 << 30,
        floats=load_library().floats(),
    )
    seen = {structural_hash(graph, values=False)}
    for aim in aims:
        try:
            found = searched(graph, rules, ProxyCostModel(aim, sizes), limits)
        except SuperoptError:
            continue  # no pair: what cannot be rewritten says nothing about costs
        digest = structural_hash(found, values=False)
        if found is not graph and digest not in seen:
            seen.add(digest)
            yield aim, found


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
    for number, block in enumerate(cut_blocks(graph, blocks, seed=options.seed, sizes=options.sizes), 1):
        progress(number, blocks, f"{name}: rewriting blocks")
        rewritten = list(rewrites(block, rules, AIMS, seed=options.seed, sizes=options.sizes))
        if rewritten:
            yield f"{name}/{number}", [("block", block), *rewritten], _BLOCK_RACE * len(rewritten)


def repeat_profile(model: str | Path | Graph, *, threads: int = 1) -> ProfileRepeatability:
    """Profile a model twice from nothing on this machine: how long it takes, and how much the two runs differ."""
    name = model.name if isinstance(model, Graph) else Path(model).stem
    return repeat(name, load(model), lambda store: costs.MeasuredCpuCostModel(threads=threads, store=store))
