"""What is alive, and the bound that no order goes below: against all orders of random small graphs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from superopt.ir.graph import Node
from superopt.memory import minimum_peak_order
from superopt.memory.liveness import alive, lifetimes, unavoidable
from superopt.memory.minimum_peak_order import least_peak


def random_nodes(seed: int) -> tuple[list[Node], dict[str, int]]:
    draw = random.Random(seed)
    nodes, sizes = [], {"x": draw.randint(1, 9)}
    for i in range(7):
        operands = tuple(draw.sample(sorted(sizes), min(len(sizes), draw.randint(1, 2))))
        nodes.append(Node(f"n{i}", "Identity" if draw.random() < 0.2 else "Add", operands, (f"v{i}",)))
        sizes[f"v{i}"] = draw.randint(1, 9)
    return nodes, sizes


def orders(nodes: list[Node], done: frozenset[str]) -> Iterator[list[Node]]:
    if not nodes:
        yield []
    for i, node in enumerate(nodes):
        if all(n in done for n in node.reads):
            for rest in orders(nodes[:i] + nodes[i + 1 :], done | {*node.outputs}):
                yield [node, *rest]


def renames(node: Node) -> bool:
    return node.op == "Identity"


@pytest.mark.parametrize("seed", range(12))
def test_no_order_goes_below_the_bound(seed: int) -> None:
    nodes, sizes = random_nodes(seed)

    def spans(order: list[Node]) -> list[int]:
        return alive(lifetimes(order, sizes.__getitem__, ["x"], ["v6"], renames), len(order))

    bound = unavoidable(nodes, lifetimes(nodes, sizes.__getitem__, ["x"], ["v6"], renames), lambda _: 0)
    peaks = [max(spans(order)) for order in orders(nodes, frozenset({"x"}))]
    assert 0 < bound <= min(peaks)
    found = least_peak(nodes, sizes.__getitem__, ["x"], ["v6"], renames)
    assert (found.peak, found.exact) == (min(peaks), True)
    assert max(spans([nodes[i] for i in found.order])) == found.peak
    rough = least_peak(nodes, sizes.__getitem__, ["x"], ["v6"], renames, work=0)
    assert min(peaks) <= rough.peak <= max(spans(nodes))
    assert [nodes[i] for i in rough.order] in list(orders(nodes, frozenset({"x"})))


def test_parts_of_which_any_could_be_next_are_ordered_in_bounded_work(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, after = [0], minimum_peak_order._Walk._after

    def counted(*given: Any) -> Any:
        tried[0] += 1
        return after(*given)

    monkeypatch.setattr(minimum_peak_order._Walk, "_after", counted)
    parts = range(100)
    nodes = [Node(f"a{i}", "Relu", ("x",), (f"a{i}",)) for i in parts]
    nodes += [Node(f"b{i}", "ReduceMax", (f"a{i}",), (f"b{i}",)) for i in parts]
    nodes.append(Node("y", "Concat", tuple(f"b{i}" for i in parts), ("y",)))
    sizes = {"x": 8, "y": 200} | {f"a{i}": 8 for i in parts} | {f"b{i}": 2 for i in parts}
    found = least_peak(nodes, sizes.__getitem__, ["x"], ["y"], renames)
    done = {"x"}
    for node in (nodes[i] for i in found.order):
        assert done.issuperset(node.inputs)
        done.update(node.outputs)
    assert len(done) == len(nodes) + 1
    assert found.peak < 660  # as given: all of a at once, 808 and more
    assert tried[0] < 2_000_000


def test_what_is_alive_is_counted_step_by_step() -> None:
    nodes = [
        Node("a", "Relu", ("x",), ("a",)),
        Node("b", "Identity", ("a",), ("b",)),
        Node("c", "Add", ("b", "x"), ("y",)),
    ]
    sizes = {"x": 1, "a": 10, "b": 10, "y": 100}
    assert alive(lifetimes(nodes, sizes.__getitem__, ["x"], ["y"], renames), 3) == [11, 11, 111]
