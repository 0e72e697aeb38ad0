"""Laws: random graphs × random rules give valid, equivalent graphs that cost no more."""

from __future__ import annotations

import pytest
from graphs import assert_equivalent, f32, graph, op, weight
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roofline import Roofline
from rules_for_tests import ROWS, rules

from superopt.ops.shape_inference import infer
from superopt.passes import SearchOptions, search


@st.composite
def models(draw):
    """Products, sums, activations, transposes, splits and joins of small matrices."""
    types = {"x": (3, 4), "y": (3, 4), "s": (4, 4)}
    weights = [weight("w0", 4, 4), weight("w1", 4, 4), weight("b", 3, 4), weight("one", 1)]
    types |= {"w0": (4, 4), "w1": (4, 4), "b": (3, 4)}
    nodes = []
    for i in range(draw(st.integers(2, 14))):
        kind = draw(st.sampled_from(["MatMul", "Add", "Mul", "Relu", "Relu", "Transpose", "Concat", "MatMul"]))
        names = sorted(types)
        first = draw(st.sampled_from(names))
        out, (rows, columns) = f"v{i}", types[first]
        if kind == "MatMul":
            fitting = [n for n in names if types[n][0] == columns]
        elif kind == "Concat":
            fitting = [n for n in names if types[n][1] == columns]
        else:
            fitting = [n for n in names if types[n] == types[first]]
        if not fitting or rows > 24:
            continue
        second = draw(st.sampled_from(fitting))
        if kind == "MatMul":
            nodes.append(op(kind, out, first, second))
            types[out] = (rows, types[second][1])
        elif kind == "Transpose":
            nodes.append(op(kind, out, first, perm=(1, 0)))
            types[out] = (columns, rows)
        elif kind == "Concat":
            nodes.append(op(kind, out, first, second, axis=0))
            types[out] = (rows + types[second][0], columns)
        elif kind == "Relu":
            nodes.append(op(kind, out, first))
            types[out] = types[first]
        else:
            nodes.append(op(kind, out, first, second))
            types[out] = types[first]
    made = [n.outputs[0] for n in nodes] or ["x"]
    outputs = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True))
    return graph({n: f32(*types[n]) for n in ("x", "y", "s")}, outputs, weights, nodes)


@pytest.mark.essential
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(models(), st.sets(st.sampled_from(sorted(ROWS)), min_size=1), st.sampled_from([4, 60]))
def test_random_graphs_and_rules(model, names, window):
    options = SearchOptions(window=window, node_limit=300)
    result = search(model, rules(*sorted(names)), Roofline(), options)
    assert result.after_us <= result.before_us + 1e-9
    assert not result.quarantined
    checked = result.graph.checked()
    before, after = infer(model), infer(checked)
    for value in model.outputs:
        assert before.types[value.name] == after.types[value.name]
    assert_equivalent(model, checked)
    if result.graph is not model:
        again = search(result.graph, rules(*sorted(names)), Roofline(), options)
        assert again.before_us <= result.before_us + 1e-6


@pytest.mark.essential
def test_two_outputs_that_are_one_value_are_two_names():
    nodes = [op("MatMul", "v0", "b", "s"), op("MatMul", "v1", "b", "s"), op("Relu", "r", "v1"), op("Relu", "v2", "r")]
    model = graph({"s": f32(4, 4)}, ["v0", "v1", "v2"], [weight("b", 3, 4)], nodes)
    result = search(model, rules("relu-relu"), Roofline(), SearchOptions())
    assert [n.op for n in result.graph.nodes].count("Relu") == 1
    again = search(result.graph, rules("relu-relu"), Roofline(), SearchOptions())
    assert again.before_us == result.after_us
    assert_equivalent(model, result.graph)
