"""Before/after pairs that put a cost model's sense of direction to the test, good rewrites and bad ones alike.

What measured costs choose is nearly always faster, which tests half of the question. So a graph is also optimised for
costs that have little to do with time: the number of operators, FLOPs, and estimates off by a random factor of their
own for every form of an operator. These merge what should stay apart, split, enlarge kernels, move transposes: whatever
the rules allow. Besides whole models, blocks cut out of them are rewritten, at seeded places: small enough for many.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from statistics import NormalDist

from superopt import cost as costs
from superopt.cost.cost_model import CostModel
from superopt.cost.measurement_record import CostEstimate, MeasurementRequest
from superopt.ir.diff import excerpt
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph, structural_hash
from superopt.ir.types import TensorType
from superopt.ops.shape_inference import CanonicalNode, InferredTypes, infer
from superopt.passes import SearchOptions, search
from superopt.pipeline.options import Progress, quiet
from superopt.rules import Rule, load_library

__all__ = ["AIMS", "ProxyCostModel", "blocks", "rewrites", "rough_us", "searched"]

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


def blocks(graph: Graph, count: int, *, seed: int = 0, sizes: Mapping[str, int] | None = None) -> tuple[Graph, ...]:
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
