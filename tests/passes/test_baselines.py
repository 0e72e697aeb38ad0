"""The simpler searches are what they say, and ours is never beaten by them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from graphs import assert_equivalent, f32, graph, linear_stack, op, ops_of, qkv, siamese, two_hills
from roofline import Roofline
from rules_for_tests import rules

from lab.search_comparison import best_first, greedy, modelled
from superopt.ir.graph import Node
from superopt.passes import SearchOptions, search

MODELS = {"qkv": qkv(4), "stack": linear_stack(4), "siamese": siamese(2)}


@pytest.mark.parametrize("name", MODELS)
def test_ours_is_not_beaten_and_all_compute_the_same(name):
    model, costs = MODELS[name], Roofline()
    own = search(model, rules(), costs, SearchOptions(cache=False, least_gain=0.0)).graph
    found = [f(model, rules(), costs, 10.0) for f in (greedy, best_first)]
    for each in found:
        assert each.finished
        assert each.us == pytest.approx(modelled(each.graph, costs), rel=1e-6)
        assert each.us <= modelled(model, costs)
        assert_equivalent(model, each.graph)
    assert modelled(own, costs) <= min(f.us for f in found) + 1e-3


def test_best_first_is_never_worse_than_greedy_where_it_ends():
    model, costs = two_hills(), Roofline()
    names = ("transpose-matmul", "transpose-transpose")
    one, many = greedy(model, rules(*names), costs, 10.0), best_first(model, rules(*names), costs, 10.0, alpha=2.0)
    assert many.us <= one.us < modelled(model, costs)
    assert ops_of(many.graph).count("Transpose") < ops_of(model).count("Transpose")
    assert_equivalent(model, many.graph)


def test_no_time_returns_the_input():
    for each in (greedy, best_first):
        found = each(linear_stack(4), rules(), Roofline(), 0.0)
        assert not found.finished
        assert len(found.graph.nodes) == 4


def test_barriers_stay():
    model = linear_stack(4)
    odd = Node("odd", "Mystery", ("y1",), ("m",), {}, domain="custom")
    nodes = (*model.nodes[:2], odd, *(n if "y1" not in n.inputs else op_reading(n, "m") for n in model.nodes[2:]))
    model = replace(model, nodes=nodes).checked()
    result = greedy(model, rules("assoc"), Roofline(), 10.0)
    assert "Mystery" in ops_of(result.graph)


def op_reading(node, name):
    return replace(node, inputs=(name, *node.inputs[1:]))


def test_a_part_of_several_outputs_is_no_operator_to_price() -> None:
    split = Node("s", "Split", ("x",), ("a", "b"), {"axis": 1, "num_outputs": 2})
    model = graph({"x": f32(4, 16)}, ["y"], [], [split, op("Relu", "h", "a"), op("Relu", "y", "h")])
    for baseline in (greedy, best_first):
        assert ops_of(baseline(model, rules("relu-relu"), Roofline(), 5.0).graph) == ["Split", "Relu"]
