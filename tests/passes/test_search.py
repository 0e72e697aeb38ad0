"""What the search promises, on small graphs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graphs import assert_equivalent, f32, graph, linear_stack, op, qkv, siamese, weight
from roofline import Roofline
from rules_for_tests import rules

from lab.search_comparison import modelled
from superopt import cost
from superopt.frontend import GraphBuilder
from superopt.ir.graph import Node, OpaqueAttribute, constant
from superopt.ir.size_polynomial import sym
from superopt.passes import SearchOptions, search
from superopt.rules import load_library
from superopt.rules.grammar import parse_rule


def ops(model):
    return [n.op for n in model.nodes]


@pytest.mark.essential
@pytest.mark.parametrize("count", [3, 4, 8])
def test_siblings_merge_into_one_at_once(count):
    model = qkv(count)
    result = search(model, rules("qkv"), Roofline())
    assert ops(result.graph) == ["MatMul", "Split"]
    assert result.e_nodes < 40 * count
    assert_equivalent(model, result.graph)


@pytest.mark.essential
def test_merging_is_left_when_it_costs_more():
    model = qkv(2)
    assert search(model, rules("qkv"), Roofline()).graph is model


@pytest.mark.essential
def test_a_linear_stack_becomes_one_product_of_weights():
    model = linear_stack(6)
    result = search(model, rules("assoc"), Roofline())
    assert ops(result.graph) == ["MatMul"]
    assert [w.type.shape for w in result.graph.weights] == [(16, 16)]
    assert result.graph.weights[0].metadata["x-precomputed"] == "true"
    assert_equivalent(model, result.graph)
    assert {a.rule for a in result.applied} == {"assoc", "fold"}


def test_two_towers_with_shared_weights_become_one():
    model = siamese(3)
    result = search(model, rules(), Roofline())
    assert ops(result.graph).count("MatMul") == 3
    assert_equivalent(model, result.graph)


@pytest.mark.essential
def test_repeated_layers_are_searched_once():
    def layers(count):
        nodes, weights, x = [], [], "x"
        for i in range(count):
            weights += [weight(f"a{i}", 16, 16), weight(f"b{i}", 16, 16)]
            nodes += [op("MatMul", f"p{i}", x, f"a{i}"), op("MatMul", f"q{i}", x, f"b{i}")]
            nodes += [op("Add", f"s{i}", f"p{i}", f"q{i}"), op("Relu", f"r{i}", f"s{i}"), op("Relu", f"t{i}", f"r{i}")]
            x = f"t{i}"
        return graph({"x": f32(4, 16)}, [x], weights, nodes)

    few, many = (search(layers(n), rules("distribute", "relu-relu"), Roofline()) for n in (60, 180))
    assert ops(many.graph) == ["MatMul", "Relu"] * 180
    assert many.distinct_regions <= few.distinct_regions + 8
    assert_equivalent(layers(60), few.graph)


@pytest.mark.essential
def test_signature_names_and_metadata():
    model = siamese(2)
    kept = replace(model.nodes[0], doc="first", metadata={"k": "v"})
    model = replace(model, nodes=(kept, *model.nodes[1:]))
    tail = [op("Relu", "z", "ar1"), op("Relu", "out", "z")]
    model = replace(model, nodes=(*model.nodes, *tail), outputs=(*model.outputs, replace(model.outputs[0], name="out")))
    result = search(model, rules("relu-relu"), Roofline())
    assert kept in result.graph.nodes
    assert [v.name for v in result.graph.outputs] == ["ar1", "br1", "out"]
    assert_equivalent(model, result.graph)


def test_new_values_have_no_name_that_is_reserved():
    model = siamese(3)
    first = search(model, rules(), Roofline()).graph
    new = first.names - model.names
    again = search(model, rules(), Roofline(), SearchOptions(reserved=model.names | new)).graph
    assert len(again.names - model.names) == len(new) > 0
    assert again.names.isdisjoint(new)
    assert_equivalent(model, again)


@pytest.mark.essential
def test_new_nodes_say_which_rule_made_them():
    result = search(qkv(3), rules("qkv"), Roofline())
    assert {n.metadata.get("superopt.rules") for n in result.graph.nodes} == {"qkv"}
    names = [n.name for n in result.graph.nodes]
    assert len(set(names)) == len(names)


def test_an_output_that_becomes_an_input_keeps_its_name():
    model = graph({"x": f32(3, 4)}, ["y"], [], [
        op("Transpose", "t", "x", perm=(1, 0)), op("Transpose", "y", "t", perm=(1, 0)),
    ])  # fmt: skip
    result = search(model, rules("transpose-transpose"), Roofline())
    assert ops(result.graph) == ["Identity"]
    assert_equivalent(model, result.graph)


@pytest.mark.essential
def test_symbolic_sizes_stay():
    n = sym("N")
    model = graph(
        {"x": f32(n, 16)}, ["a", "b", "c"], [weight("u", 16, 8), weight("v", 16, 8), weight("w", 16, 4)],
        [op("MatMul", "a", "x", "u"), op("MatMul", "b", "x", "v"), op("MatMul", "c", "x", "w")],
    )  # fmt: skip
    result = search(model, rules("qkv"), Roofline())
    assert ops(result.graph) == ["MatMul", "Split"]
    assert result.graph.inputs[0].type == f32(n, 16)
    assert_equivalent(model, result.graph, size=5)


def test_a_reshape_of_two_open_sizes_that_adds_axes_of_one_infers_neither():
    """Where one of them is 0, a Reshape could not infer the other."""
    n, m = sym("N"), sym("M")
    row = {"id": "views", "forall": {"x": "f[a, b]"}, "lhs": ["Relu(Relu(Unsqueeze(x, axes=[1])))"],
           "rhs": ["Relu(Reshape(x, shape=[a, 1, b]))"]}  # fmt: skip
    back = {"id": "back", "forall": {"x": "f[a, 1, b]"}, "lhs": ["Neg(Neg(Squeeze(x, axes=[1])))"],
            "rhs": ["Reshape(x, shape=[a, b])"]}  # fmt: skip
    axes = constant("axes", np.array([1], dtype=np.int64))
    nodes = [op("Unsqueeze", "u", "x", "axes"), op("Relu", "r", "u"), op("Relu", "s", "r"),
             op("Squeeze", "v", "s", "axes"), op("Neg", "w", "v"), op("Neg", "y", "w")]  # fmt: skip
    model = graph({"x": f32(n, m)}, ["y"], [axes], nodes)
    result = search(model, [parse_rule(row), parse_rule(back)], Roofline())
    assert ops(result.graph) == ["Unsqueeze", "Relu", "Squeeze"]
    assert_equivalent(model, result.graph, size=0)


@pytest.mark.essential
def test_a_barrier_is_untouched_and_its_captures_keep_their_names():
    opaque = Node(
        "odd", "Mystery", ("t",), ("m",), {"body": OpaqueAttribute(b"\x01", captures=("u",))}, domain="custom"
    )
    model = graph(
        {"x": f32(4, 4)}, ["m"], [], [op("Relu", "s", "x"), op("Relu", "t", "s"), op("Relu", "u", "t"), opaque]
    )
    result = search(model, rules("relu-relu"), Roofline())
    assert opaque.attributes == result.graph.nodes[-1].attributes
    assert result.graph.nodes[-1].captures == ("u",)
    assert "u" in {o for n in result.graph.nodes for o in n.outputs}
    assert ops(result.graph.checked()).count("Relu") == 1


@pytest.mark.essential
def test_no_time_returns_the_input_itself():
    model = linear_stack(4)
    result = search(model, rules(), Roofline(), SearchOptions(time_limit=0))
    assert result.graph is model
    assert result.stopped == "time"


@pytest.mark.essential
def test_nothing_to_gain_returns_the_input_itself():
    model = graph({"x": f32(4, 4)}, ["y"], [], [op("Relu", "y", "x")])
    assert search(model, rules(), Roofline()).graph is model


@pytest.mark.essential
def test_a_long_chain_needs_no_recursion():
    nodes = [op("Sigmoid", f"v{i}", f"v{i - 1}" if i else "x") for i in range(5_000)]
    model = graph({"x": f32(2, 2)}, ["v4999"], [], nodes)
    result = search(model, rules("relu-relu"), Roofline(), SearchOptions(time_limit=20))
    assert result.graph is model


@pytest.mark.essential
def test_an_interrupt_returns_the_best_so_far():
    class Interrupting(Roofline):
        def application(self, *args, **kwargs):
            if self.asked > 3:
                raise KeyboardInterrupt
            return super().application(*args, **kwargs)

    model = siamese(4)
    result = search(model, rules(), Interrupting())
    assert result.stopped == "interrupted"
    assert_equivalent(model, result.graph)


def test_the_fold_budget_holds():
    model = graph(
        {"x": f32(1, 4)}, ["y"], [weight("a", 4, 2), weight("b", 2, 64)],
        [op("MatMul", "h", "x", "a"), op("MatMul", "y", "h", "b")],
    )  # fmt: skip
    tight = search(model, rules("assoc"), Roofline(), SearchOptions(fold_budget_bytes=0))
    assert tight.graph is model
    assert any("grow too much" in m for m in tight.near_misses)
    assert ops(search(model, rules("assoc"), Roofline()).graph) == ["MatMul"]


def test_a_weight_that_is_handed_on_is_not_copied():
    """PyTorch's older exporter writes what layers share as Identity of it: 85 MB of a transformer became 156 MB."""
    model = graph(
        {"x": f32(4, 16)}, ["y", "z", "v"], [weight("w", 16, 16)],
        [op("Identity", "v", "w"), op("Identity", "u", "w"), op("Relu", "a", "x"), op("Relu", "b", "a"),
         op("MatMul", "y", "b", "w"), op("MatMul", "z", "y", "u")],
    )  # fmt: skip
    result = search(model, rules("relu-relu"), Roofline())
    assert [w.name for w in result.graph.weights] == ["w"]
    assert ops(result.graph) == ["Identity", "Relu", "MatMul", "MatMul"]
    assert_equivalent(model, result.graph)


def test_shape_only_weights_become_nodes_over_weights():
    model = linear_stack(3)
    model = replace(model, weights=tuple(replace(w, data=None) for w in model.weights))
    result = search(model, rules("assoc"), Roofline())
    marked = [n for n in result.graph.nodes if n.metadata.get("x-precomputed") == "true"]
    assert [n.op for n in marked] == ["MatMul", "MatMul"]
    assert {w.name for w in result.graph.weights} == {"w0", "w1", "w2"}


@pytest.mark.essential
def test_the_same_seed_gives_the_same_graph():
    first, second = (search(siamese(3), rules(), Roofline(), SearchOptions(seed=5)).graph for _ in range(2))
    assert first.nodes == second.nodes


@pytest.mark.essential
def test_rules_can_be_switched_off():
    model = linear_stack(3)
    assert search(model, rules(), Roofline(), SearchOptions(enable=("relu-relu",))).graph is model
    assert search(model, rules("assoc"), Roofline(), SearchOptions(disable=("assoc",))).graph is model


def test_weights_of_one_value_match_constants_in_rules():
    model = graph(
        {"x": f32(3, 4)}, ["y"], [constant("one", np.float32(1.0).reshape(()))],
        [op("Mul", "h", "x", "one"), op("Relu", "y", "h")],
    )  # fmt: skip
    result = search(model, rules("mul-one"), Roofline())
    assert ops(result.graph) == ["Relu"]
    assert_equivalent(model, result.graph)


def test_what_only_gets_simpler_is_taken_however_little_it_gains():
    model = graph({"x": f32(3, 4)}, ["y"], [], [op("Relu", "h", "x"), op("Relu", "y", "h")])
    result = search(model, rules("relu-relu"), Roofline(), SearchOptions(least_gain=0.9))
    assert ops(result.graph) == ["Relu"]


def test_a_fused_consumer_is_not_broken_off():
    model = graph(
        {"x": f32(4, 16)}, ["y"], [weight("w", 16, 16), weight("b", 16)],
        [op("MatMul", "h", "x", "w"), op("Add", "y", "h", "b")],
    )  # fmt: skip
    result = search(model, rules(), Roofline())
    assert result.before_us == pytest.approx(Roofline().application(
        "MatMul", {}, [f32(4, 16), f32(16, 16)], [f32(4, 16)], constant_args=(False, True)).us)  # fmt: skip


def test_a_literal_is_no_constant_that_was_taken_apart():
    """``x³`` becomes two products where Pow is dear: its exponent is written in the rule, nothing is computed anew."""

    class Dear(Roofline):
        def application(self, op, *args, **kwargs):
            found = super().application(op, *args, **kwargs)
            return replace(found, us=found.us + 100.0) if op == "Pow" else found

    three = constant("three", np.float32(3.0).reshape(()))
    model = graph({"x": f32(3, 4)}, ["y"], [three], [op("Pow", "y", "x", "three")])
    cube = parse_rule({"id": "cube", "forall": {"x": "f[m, n]"}, "lhs": ["Mul(Mul(x, x), x)"], "rhs": ["Pow(x, 3.0)"]})
    result = search(model, [cube], Dear(), SearchOptions(cache=False))
    assert ops(result.graph) == ["Mul", "Mul"]


def test_a_gain_is_counted_once_whatever_the_order_of_operands() -> None:
    """A weight before or behind a value is one product; priced as two, each phase gained by turning it around."""
    builder = GraphBuilder("turned")
    x = builder.op("Relu", builder.input("x", "float32", (8, 16, 32)))
    builder.output(builder.op("Div", x, builder.constant(np.array(2.0, np.float32))), "y")
    costs = cost.ProfileCostModel(cost.load_profile("cpu-epyc-2core"))
    library = load_library()
    options = SearchOptions(cache=False, least_gain=0.0, time_limit=120.0, floats=library.floats("standard"))
    found = search(builder.build(), library.admitted, costs, options)
    assert found.after_us == pytest.approx(modelled(found.graph, costs), rel=1e-3)
    assert 0.2 * found.before_us < found.after_us <= found.before_us
