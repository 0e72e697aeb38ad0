"""Collectives, how a tensor gets from one placement to another, and what that takes.

A step changes the placement along one axis of the mesh. Times are those of Thakur, Rabenseifner and Gropp,
"Optimization of collective communication operations in MPICH", 2005: with ``d`` devices, latency α and β seconds a
byte,

* AllReduce of n bytes: the ring 2(d-1)(α + n/d·β), or recursive doubling ⌈log₂ d⌉(α + n·β), whichever is less;
* AllGather to n bytes and ReduceScatter of n bytes: the ring (d-1)(α + n/d·β);
* AllToAll of n/d bytes a device: (d-1)·α + n/d²·γ, where γ is the load of the busiest link a byte that each sends each.

α and β are those of the slowest hop of the rings of the mesh's axis, all of which run at once: a link's bandwidth is
shared by the hops that pass it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, permutations, product
from math import ceil, log2

from superopt.ir.types import TensorType
from superopt.placement.cluster import Cluster
from superopt.placement.placements import PARTIAL, REPLICATED, Placement, Spec, groups_of, local_type, split

__all__ = ["COLLECTIVES", "AxisNetwork", "Step", "axis_networks", "reshardings", "specs", "step_seconds"]

COLLECTIVES = frozenset({"AllReduce", "AllGather", "ReduceScatter", "AllToAll"})


@dataclass(frozen=True)
class AxisNetwork:
    """The rings of an axis of a mesh: devices in each, seconds a hop, seconds a byte, and those of an exchange."""

    count: int
    latency: float
    byte_seconds: float
    exchange_seconds: float


@dataclass(frozen=True)
class Step:
    """A change of placement along an axis of the mesh: a collective, or what each device does by itself.

    ``op`` is one of :data:`COLLECTIVES`, "Slice" (each keeps its piece of what is replicated) or "First" (the first
    device keeps what is replicated, and the others have zeros: a partial sum).
    """

    op: str
    mesh_axis: int
    source: Placement
    target: Placement


def axis_networks(cluster: Cluster, mesh: Sequence[int]) -> tuple[AxisNetwork, ...]:
    """The networks of a mesh's axes. Ranks are numbered with the last axis fastest."""
    names = [d.name for d in cluster.devices]
    groups = [[[names[rank] for rank in group] for group in groups_of(mesh, axis)] for axis in range(len(mesh))]
    return tuple(_network(cluster, along) for along in groups)


def _network(cluster: Cluster, groups: Sequence[Sequence[str]]) -> AxisNetwork:
    count = len(groups[0])
    if count == 1:
        return AxisNetwork(1, 0.0, 0.0, 0.0)
    hops = [pair for g in groups for pair in zip(g, [*g[1:], g[0]], strict=True)]
    routes = [_route(cluster, a, b) for a, b in hops]
    load = Counter(link for route in routes for link in route)
    exchanged = Counter(link for g in groups for a, b in permutations(g, 2) for link in _route(cluster, a, b))
    edges = cluster.network.edges
    return AxisNetwork(
        count,
        max(sum(edges[link]["latency"] for link in route) for route in routes),
        max(load[link] / edges[link]["bandwidth"] for link in load),
        max(exchanged[link] / edges[link]["bandwidth"] for link in exchanged),
    )


@lru_cache(maxsize=1 << 16)
def _route(cluster: Cluster, first: str, second: str) -> tuple[tuple[str, str], ...]:
    """The directed links from one device to another, by the least latency."""
    import networkx as nx

    path = nx.shortest_path(cluster.network, first, second, weight="latency")
    return tuple(pairwise(path))


def step_seconds(step: Step, kind: TensorType, network: AxisNetwork, local: Callable[[TensorType], float]) -> float:
    """Seconds of a step.

    Args:
        step: the change.
        kind: of a device's piece before it.
        network: of the step's axis of the mesh.
        local: seconds in which a device writes a piece of a type.
    """
    d, bytes_before = network.count, kind.nbytes or 0
    match step.op:
        case "AllReduce":
            ring = 2 * (d - 1) * (network.latency + bytes_before / d * network.byte_seconds)
            return min(ring, ceil(log2(d)) * (network.latency + bytes_before * network.byte_seconds))
        case "ReduceScatter":
            return (d - 1) * (network.latency + bytes_before / d * network.byte_seconds)
        case "AllGather":
            return (d - 1) * (network.latency + bytes_before * network.byte_seconds)
        case "AllToAll":
            return (d - 1) * network.latency + bytes_before / d * network.exchange_seconds
    after = local_type(kind, (step.target,), (d,)) if step.op == "Slice" else kind
    return local(after or kind)


def _steps(spec: Spec, rank: int) -> list[tuple[Step, Spec]]:
    """Every step from a spec. What an inner axis of the mesh splits stays as it is: its pieces lie inside."""
    found = []
    for m, placement in enumerate(spec):
        inner = {p.axis for p in spec[m + 1 :] if p.kind == "split"}
        free = [k for k in range(rank) if k not in inner]
        steps: list[tuple[str, Placement]] = []
        if placement == PARTIAL:
            steps = [("AllReduce", REPLICATED), *(("ReduceScatter", split(k)) for k in free)]
        elif placement == REPLICATED:
            steps = [("First", PARTIAL), *(("Slice", split(k)) for k in free)]
        elif placement.axis not in inner:
            steps = [("AllGather", REPLICATED), *(("AllToAll", split(k)) for k in free if k != placement.axis)]
        for op, target in steps:
            found.append((Step(op, m, placement, target), (*spec[:m], target, *spec[m + 1 :])))
    return found


def reshardings(
    kind: TensorType, source: Spec, mesh: tuple[int, ...], networks: Sequence[AxisNetwork],
    local: Callable[[TensorType], float],
) -> Mapping[Spec, tuple[float, tuple[Step, ...]]]:  # fmt: skip
    """The fastest way from a spec to every other that it can reach: seconds, and the steps in order.

    Args:
        kind: of the whole tensor.
        source: where it starts.
        mesh: devices along each axis of the mesh.
        networks: of the axes.
        local: seconds in which a device writes a piece of a type.
    """
    best: dict[Spec, tuple[float, tuple[Step, ...]]] = {}
    queue: list[tuple[float, int, Spec, tuple[Step, ...]]] = [(0.0, 0, source, ())]
    pushed = 0
    while queue:
        seconds, _, spec, steps = heapq.heappop(queue)
        if spec in best:
            continue
        best[spec] = seconds, steps
        piece = local_type(kind, spec, mesh)
        for step, after in _steps(spec, kind.rank or 0):
            if piece is not None and after not in best and local_type(kind, after, mesh) is not None:
                if step.op == "First" and not kind.dtype.is_float:
                    continue
                pushed += 1
                took = step_seconds(step, piece, networks[step.mesh_axis], local)
                heapq.heappush(queue, (seconds + took, pushed, after, (*steps, step)))
    return best


def specs(kind: TensorType, mesh: tuple[int, ...], *, partial: bool) -> list[Spec]:
    """Every spec that a tensor can have; all replicated is the first."""
    choices = [REPLICATED, *(split(k) for k in range(kind.rank or 0)), *([PARTIAL] if partial else [])]
    return [s for s in product(choices, repeat=len(mesh)) if local_type(kind, s, mesh) is not None]
