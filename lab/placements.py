"""Placements of models on clusters: ``python -m lab.placements [exhaustive|plans|large ...]``.

``exhaustive``: random models of few operators on random clusters; the solver's choice beside all others. ``plans``:
what is chosen for layers of transformers where devices, batches and memory differ. ``large``: 96 layers on 64 devices.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from lab.layers import NetworkBuilder, layer_norm, linear
from superopt.frontend import SymbolicTensor
from superopt.ir.graph import Graph
from superopt.placement.choice import Choice, PlacementProblem, Speeds, choose
from superopt.placement.cluster import Cluster, Device, Link
from superopt.placement.schedule import Application, schedule_of, simulate, tasks_of
from superopt.placement.strategies import MeshForm, model_of

__all__ = [
    "cluster", "drawn_cluster", "drawn_model", "exchanges", "least_seconds", "main", "mlp", "problem_of", "transformer",
]  # fmt: skip

_GPU = {"flops": 400e12, "bandwidth": 2.5e12, "overhead": 3e-6}  # roughly an H100 in half precision
_GROUPED = 8  # devices of a host


def cluster(count: int, *, memory: float = 80e9, latency: float = 1e-6, link: float = 300e9, **peaks: float) -> Cluster:
    """Equal devices on a switch; more than eight are hosts of eight on slower links."""
    rates = [peaks.get(key, rate) for key, rate in _GPU.items()]
    devices = tuple(Device(f"d{k}", int(memory), "", *rates) for k in range(count))
    hosts = range(0, count, _GROUPED)
    links = [Link(d.name, f"host {k // _GROUPED}", latency, link) for k, d in enumerate(devices)]
    if len(hosts) > 1:
        links += [Link(f"host {k}", "network", 5 * latency, link) for k in range(len(hosts))]
    return Cluster(f"{count} devices", devices, tuple(links))


def mlp(rows: int = 64, width: int = 256, *, hidden: int = 1024) -> Graph:
    """Two layers with GELU between them."""
    b = NetworkBuilder("mlp")
    x = b.input("x", "float32", (rows, width))
    y = linear(b, b.op("Gelu", linear(b, x, width, hidden)), hidden, width)
    b.output(y, "y")
    return b.build()


def _block(b: NetworkBuilder, x: SymbolicTensor, shape: tuple[int, int, int], heads: int) -> SymbolicTensor:
    batch, length, width = shape

    def heads_of(y: SymbolicTensor) -> SymbolicTensor:
        return linear(b, y, width, width).reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)

    y = layer_norm(b, x, width)
    q, k, v = heads_of(y), heads_of(y), heads_of(y)
    scores = (q @ k.transpose(0, 1, 3, 2)) * float(np.float32((width // heads) ** -0.5))
    joined = (scores.softmax(-1) @ v).transpose(0, 2, 1, 3).reshape(batch, length, width)
    x = x + linear(b, joined, width, width)
    y = b.op("Gelu", linear(b, layer_norm(b, x, width), width, 4 * width))
    return x + linear(b, y, 4 * width, width)


def transformer(layers: int = 1, *, batch: int = 1, length: int = 128, width: int = 512, heads: int = 8) -> Graph:
    """Blocks of attention and two layers, normalised before each."""
    b = NetworkBuilder(f"transformer-{layers}")
    x = b.input("x", "float32", (batch, length, width))
    for layer in range(layers):
        with b.scope(f"layer{layer}"):
            x = _block(b, x, (batch, length, width), heads)
    b.output(x, "y")
    return b.build()


# -- Random models and clusters --------------------------------------------------------------------------------------


def drawn_model(seed: int, operators: int = 6) -> Graph:
    """A random graph of matrices: products with weights, sums, activations, softmax, transpositions."""
    rng = np.random.default_rng(seed)
    b, sizes = NetworkBuilder(f"drawn-{seed}"), (12, 24, 48, 96)
    values = [b.input("x", "float32", (int(rng.choice(sizes)), int(rng.choice(sizes))))]
    for _ in range(operators):
        x = values[-1] if rng.random() < 0.75 else values[int(rng.integers(len(values)))]
        columns = [s for s in x.shape or () if isinstance(s, int)][1]
        match int(rng.integers(6)):
            case 0 | 1:
                n = int(rng.choice(sizes))
                y = x @ b.param("w", (columns, n))
            case 2:
                like = [v for v in values if v.shape == x.shape and v is not x]
                y = x + (like[0] if like else b.param("c", (columns,)))
            case 3:
                y = x.relu()
            case 4:
                y = x.softmax(-1)
            case _:
                y = x.transpose(1, 0)
        values.append(y)
    b.output(values[-1], "y")
    return b.build()


def drawn_cluster(seed: int) -> Cluster:
    """A random number of equal devices with random speeds and links."""
    rng = np.random.default_rng(seed)

    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    return cluster(
        int(rng.choice([2, 3, 4, 6])), latency=between(1e-8, 1e-5), link=between(1e8, 1e11), flops=between(1e9, 1e12),
        bandwidth=between(1e9, 1e11), overhead=between(1e-8, 1e-6),
    )  # fmt: skip


def problem_of(graph: Graph, devices: Cluster, mesh: Sequence[int] | None = None) -> PlacementProblem:
    """The problem on a mesh, of one axis by default."""
    return PlacementProblem(model_of(graph), devices, tuple(mesh or (len(devices.devices),)), Speeds(devices))


def combinations_of(problem: PlacementProblem) -> int:
    """Choices of a form for each operator."""
    return int(np.prod([len(f) for f in problem.forms], dtype=np.float64))


def least_seconds(problem: PlacementProblem) -> float:
    """The least time of all choices of forms, each value in the placement that is best for them.

    Written without the solver: it only asks what an operator and what a movement take.
    """
    operations = problem.model.operations
    own = [[problem.form_seconds(o, f) for f in forms] for o, forms in zip(operations, problem.forms, strict=True)]
    made = {v: (t, k) for t, o in enumerate(operations) for k, v in enumerate(o.outputs) if v}
    readers = {
        v: [(t, k) for t, o in enumerate(operations) for k, a in enumerate(o.args) if a == v] for v in problem.values
    }
    known: dict[tuple[object, ...], float] = {}

    def moving(value: str, chosen: Sequence[MeshForm]) -> float:
        """The least time of a value's movements: from where it is made to a placement, and on to each reader."""
        source = None if value not in made else chosen[made[value][0]].results[made[value][1]]
        targets = tuple(chosen[t].operands[k] for t, k in readers[value])
        key = (value, source, targets)
        if key not in known:
            ways = (
                (0.0 if source is None else problem.resharding(value, source, s)[0])
                + sum(problem.resharding(value, s, t)[0] for t in targets if t is not None)
                for s in problem.specs[value]
            )
            known[key] = min(ways)
        return known[key]

    best = float("inf")
    for picks in itertools.product(*(range(len(f)) for f in problem.forms)):
        chosen = [forms[k] for forms, k in zip(problem.forms, picks, strict=True)]
        total = sum(seconds[k] for seconds, k in zip(own, picks, strict=True))
        best = min(best, total + sum(moving(v, chosen) for v in problem.values) if total < best else best)
    return best


def exchanges(choice: Choice, problem: PlacementProblem) -> Mapping[str, int]:
    """How many collectives of a kind a plan has."""
    return Counter(i.step.op for i in schedule_of(choice, problem) if not isinstance(i, Application) and i.collective)


# -- What is printed -------------------------------------------------------------------------------------------------


def exhaustive(count: int, most: int = 60_000) -> None:
    """The solver beside exhaustion, on ``count`` random models and clusters."""
    done = equal = seed = 0
    while done < count:
        graph, devices = drawn_model(seed, 4 + seed % 4), drawn_cluster(seed)
        seed += 1
        problem = problem_of(graph, devices)
        if combinations_of(problem) > most:
            continue
        least = least_seconds(problem)
        chosen, _ = choose(problem.model, devices, mesh=problem.mesh)
        done += 1
        equal += abs(chosen.seconds - least) <= 1e-6 * least
        if abs(chosen.seconds - least) > 1e-6 * least:
            print(f"seed {seed - 1}: {chosen.seconds} instead of {least}")
    print(f"{equal} of {done} choices are the best of all; seeds 0 to {seed - 1}")


def _print(name: str, graph: Graph, devices: Cluster, mesh: tuple[int, ...] | None = None) -> None:
    began = time.process_time()
    choice, problem = choose(model_of(graph), devices, mesh=mesh)
    took = time.process_time() - began
    weights = Counter(
        " / ".join(map(str, choice.specs[w]))
        for w in problem.model.graph.constants if w in choice.specs and len(problem.model.types[w].shape or ()) > 1
    )  # fmt: skip
    events = simulate(tasks_of(schedule_of(choice, problem), choice.mesh))
    print(
        f"{name}: mesh {choice.mesh}, {choice.seconds * 1e3:.3f} ms (bound {choice.bound * 1e3:.3f}, simulated "
        f"{max(e.end for e in events) * 1e3:.3f}), {choice.peak / 1e6:.1f} MB, {dict(exchanges(choice, problem))}, "
        f"matrices {dict(weights)}, {took:.0f} s of CPU"
    )


def plans() -> None:
    """Layers of transformers."""
    slow = {"flops": 20e12, "bandwidth": 1e12}
    _print("MLP, 64 rows, small batch", mlp(64, 1024, hidden=4096), cluster(4, **slow))
    _print("MLP, rows do not divide", mlp(3, 1024, hidden=4096), cluster(4, **slow))
    _print("block, batch 1", transformer(1, width=1024, heads=16), cluster(4, **slow))
    _print("block, batch 8", transformer(1, batch=8, width=1024, heads=16), cluster(4, **slow))
    _print("block, batch 8, 30 MB", transformer(1, batch=8, width=1024, heads=16), cluster(4, memory=30e6, **slow))
    _print("block, batch 2 on 8", transformer(1, batch=2, width=1024, heads=16), cluster(8, **slow))


def large() -> None:
    """96 layers on 64 devices."""
    graph = transformer(96, batch=8, length=256, width=1024, heads=16)
    _print("96 layers on 8 × 8", graph, cluster(64), (8, 8))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", choices=["exhaustive", "plans", "large"], default=["exhaustive", "plans"])
    parser.add_argument("--count", type=int, default=100)
    options = parser.parse_args()
    for part in options.parts:
        exhaustive(options.count) if part == "exhaustive" else plans() if part == "plans" else large()


if __name__ == "__main__":
    main()
