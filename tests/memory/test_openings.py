"""Which kernels should not know sizes: as good as trying every choice, where there are few."""

from __future__ import annotations

from itertools import combinations

import pytest

from superopt.ir.graph import Graph, Node, Value, Weight
from superopt.ir.types import DType, TensorType
from superopt.memory.runtime_memory_planner import planned
from superopt.memory.size_hiding import best_open, kernel_of


def chain(widths: tuple[int, ...], operators: tuple[str, ...]) -> tuple[Graph, dict[str, TensorType]]:
    """A chain of products and of what follows them, as the runtime would run it."""
    types = {"v0": TensorType(DType.FLOAT32, (8, widths[0]))}
    weights, nodes, last = [], [], "v0"
    for i, (width, operator) in enumerate(zip(widths[1:], operators, strict=True), 1):
        inner = types[last].shape
        assert inner is not None
        types[f"w{i}"] = TensorType(DType.FLOAT32, (inner[1], width))
        weights.append(Weight(f"w{i}", types[f"w{i}"], None))
        nodes.append(Node(f"p{i}", "MatMul", (last, f"w{i}"), (f"p{i}",)))
        nodes.append(Node(f"v{i}", operator, (f"p{i}",), (f"v{i}",)))
        types |= dict.fromkeys((f"p{i}", f"v{i}"), TensorType(DType.FLOAT32, (8, width)))
        last = f"v{i}"
    graph = Graph(
        "chain", (Value("v0", types["v0"]),), (Value(last, types[last]),), tuple(weights), tuple(nodes), {"": 20}
    )
    return graph, types


@pytest.mark.parametrize(
    ("widths", "operators"),
    [
        ((64, 512, 256, 512, 64), ("Erf", "Erf", "Erf", "Erf")),
        ((64, 512, 64, 512, 64), ("Softmax", "Erf", "Softmax", "Erf")),
        ((256, 512, 384, 256, 512), ("Erf", "Relu", "Erf", "Relu")),
    ],
)
def test_no_choice_has_a_smaller_block(widths: tuple[int, ...], operators: tuple[str, ...]) -> None:
    graph, types = chain(widths, operators)
    makers = list(dict.fromkeys(kernel_of(graph).values()))
    chosen = best_open(graph, types)
    every = (frozenset(c) for n in range(len(makers) + 1) for c in combinations(makers, n))
    least = min(planned(graph, types, opened=c).block for c in every)
    assert planned(graph, types, opened=chosen).block == least <= planned(graph, types).block


def test_kernels_that_need_to_know_sizes_stay_closed() -> None:
    graph, types = chain((64, 512, 256, 512, 64), ("Erf", "Erf", "Erf", "Erf"))
    chosen = best_open(graph, types)
    assert chosen
    one = next(iter(sorted(chosen)))
    assert one not in best_open(graph, types, {one})


def test_what_is_open_is_not_worked_on_in_place() -> None:
    """Nor does it take memory that waits, or leave its own to anything."""
    graph, types = chain((64, 512, 512), ("Relu", "Relu"))
    assert planned(graph, types).block == 2 * 8 * 512 * 4
    assert {b.values for b in planned(graph, types).buffers} == {("p1", "v1"), ("p2",)}
    assert {b.values for b in planned(graph, types, opened={"v1"}).buffers} == {("p1", "p2"), ("v1",)}
    assert {b.values for b in planned(graph, types, opened={"p1"}).buffers} == {("p1", "v1"), ("p2",)}
    assert {b.values for b in planned(graph, types, opened={"p1", "p2"}).buffers} == {("p1", "v1"), ("p2",)}
