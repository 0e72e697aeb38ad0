"""Cutting programs into regions: at most a window, all steps once, and what repeats is cut alike."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from graphs import f32, graph, op, weight
from hypothesis import given
from hypothesis import strategies as st

from superopt.frontend import GraphBuilder
from superopt.ir.graph import Graph
from superopt.ops.shape_inference import infer
from superopt.program.graph_program import GraphProgram, program_of
from superopt.regions.partition import _bounds, _repetitions, cut, level_order
from superopt.regions.region_egraph import region_of


def layers(count: int) -> Graph:
    """A small pre-norm transformer without biases in its attention: 15 running operators a layer, none of them free."""
    b = GraphBuilder(f"layers_{count}")
    x = b.input("x", "float32", (8, 16))
    for i in range(count):
        weights = {n: b.weight(f"{n}{i}", (16, 16), scale=0.1) for n in "qkvo"}
        up, down = b.weight(f"up{i}", (16, 32), scale=0.1), b.weight(f"down{i}", (32, 16), scale=0.1)
        query, key, value = (b.op("MatMul", x, weights[n]) for n in "qkv")
        scores = b.op("Softmax", b.op("MatMul", query, b.op("Transpose", key, perm=[1, 0])), axis=-1)
        x = b.op("Add", x, b.op("MatMul", b.op("MatMul", scores, value), weights["o"]))
        hidden = b.op("Relu", b.op("MatMul", x, up))
        x = b.op("Add", x, b.op("Tanh", b.op("MatMul", hidden, down)))
    b.output(x, "y", shape=[8, 16])
    return b.build()


def program(model: Graph) -> GraphProgram:
    return program_of(model, infer(model))


def signatures(model: Graph, window: int) -> Counter[object]:
    made = program(model)
    regions, _ = cut(made, list(made.running), frozenset(), window)
    return Counter(region_of(made, r).signature for r in regions)


@pytest.mark.parametrize("window", [10, 14, 30, 60])
def test_more_layers_are_more_of_the_same_regions(window: int) -> None:
    few, many = signatures(layers(16), window), signatures(layers(64), window)
    assert len(many) == len(few) < 12
    assert sum(many.values()) > 3 * sum(few.values())


@pytest.mark.parametrize("window", [5, 14, 30])
def test_every_step_is_in_one_region_of_at_most_a_window(window: int) -> None:
    made = program(layers(9))
    for order in (list(made.running), level_order(made)):
        regions, cuts = cut(made, order, frozenset(), window)
        assert sorted(p for r in regions for p in r) == sorted(made.running)
        assert max(map(len, regions)) <= window
        assert len(cuts) == len(regions) - 1


def test_avoided_cuts_are_made_elsewhere() -> None:
    made = program(layers(9))
    order = list(made.running)
    _, first = cut(made, order, frozenset(), 30)
    _, second = cut(made, order, frozenset(), 30, first)
    assert len(first & second) < len(first) / 2


def test_repetitions_are_disjoint_and_true() -> None:
    row = [*"ab", *"cdefghij" * 4, *"xyz", *"klmnopq" * 3, "r"]
    found = _repetitions(row)
    assert [period for *_, period in found] == [8, 7]
    for start, end, period in found:
        assert all(row[i] == row[i + period] for i in range(start, end - period))
    assert found[0][1] <= found[1][0]


def test_without_repetition_the_cheapest_cuts_are_found() -> None:
    price = [0.0, 5.0, 1.0, 5.0, 5.0, 0.5, 5.0, 0.0]
    assert _bounds(price, 3, _repetitions(range(7))) == [0, 2, 5, 7]


@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=9), st.integers(1, 12), st.integers(1, 14),
    st.integers(0, 2**32), st.integers(0, 5), st.integers(0, 5),
)  # fmt: skip
def test_bounds_hold_for_any_row(
    part: list[str], times: int, window: int, seed: int, before: int, after: int
) -> None:  # fmt: skip
    row = [*range(before), *(part * times), *range(10, 10 + after)]
    price = [0.0, *np.random.default_rng(seed).random(len(row) - 1), 0.0] if len(row) > 1 else [0.0] * (len(row) + 1)
    bounds = _bounds(price, window, _repetitions(row))
    assert bounds[0] == 0
    assert bounds[-1] == len(row)
    assert all(0 < b - a <= window for a, b in pairwise(bounds))


def test_barriers_are_in_no_region() -> None:
    model = graph(
        {"x": f32(4, 4)}, ["h", "y"], [weight("w", 4, 4)],
        [op("MatMul", "a", "x", "w"), op("Hidden", "h", "a"), op("Relu", "b", "a"), op("Tanh", "y", "b")],
    )  # fmt: skip
    made = program(model)
    regions, _ = cut(made, list(made.running), frozenset(), 10)
    assert [[made.steps[p].op for p in r] for r in regions] == [["MatMul"], ["Relu", "Tanh"]]
