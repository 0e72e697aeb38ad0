"""Derivatives of graphs: the lectures' numbers, both modes, second order, loaded models, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, parser

from superopt.formats import from_onnx, load, save, to_onnx_bytes
from superopt.frontend import GraphBuilder
from superopt.frontend.autodiff import gradients, hessian_vector, joint, jvp, linearize, modes, vjp
from superopt.ir.errors import UsageError
from superopt.ir.graph import Graph
from superopt.ops.derivative.typed_terms import NotDifferentiable
from superopt.runtime.reference import run


def lecture() -> Graph:
    """``ln x₁ + x₁·x₂ − sin x₂``."""
    b = GraphBuilder("lecture")
    x1, x2 = b.input("x1", "float32", ()), b.input("x2", "float32", ())
    b.output(b.op("Log", x1) + x1 * x2 - b.op("Sin", x2), "y")
    return b.build()


AT = {"x1": np.array(2.0, np.float32), "x2": np.array(5.0, np.float32)}


def ort(graph: Graph, **feeds: np.ndarray) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(to_onnx_bytes(graph), options)
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


def test_the_lectures_example_in_reverse_mode() -> None:
    found = ort(gradients(lecture(), keep_outputs=True), **AT)
    assert found["y"] == pytest.approx(11.652, abs=1e-3)
    assert found["d y/d x1"] == pytest.approx(5.5)
    assert found["d y/d x2"] == pytest.approx(2 - np.cos(5), rel=1e-6)


def test_the_lectures_example_in_forward_mode() -> None:
    graph = jvp(lecture(), ["y"], ["x1"])
    assert [v.name for v in graph.inputs] == ["x1", "x2", "tangent x1"]
    assert ort(graph, **AT, **{"tangent x1": np.array(1, np.float32)})["tangent y"] == pytest.approx(5.5)


def test_gradients_of_gradients() -> None:
    first = gradients(lecture())
    second = gradients(first, ["d y/d x2"], ["x1", "x2"])
    found = run(second, AT)
    assert found["d d y/d x2/d x1"] == pytest.approx(1)
    assert found["d d y/d x2/d x2"] == pytest.approx(np.sin(5))


def mlp(hidden: int = 5) -> Graph:
    b = GraphBuilder("mlp")
    x = b.input("x", "float32", (4, 3))
    y = ((x @ b.weight("w1", (3, hidden))).tanh() @ b.weight("w2", (hidden, 2))).softmax()
    b.output((y * y).sum([0, 1], keepdims=False), "loss")
    return b.build()


def test_partial_adjoints_are_summed() -> None:
    b = GraphBuilder("fan")
    x = b.input("x", "float32", (3,))
    b.output((x * x + x.exp() * x).sum([0], keepdims=False), "y")
    at = np.array([0.5, -1.0, 2.0])
    found = run(gradients(b.build()), {"x": at})["d y/d x"]
    np.testing.assert_allclose(found, 2 * at + np.exp(at) * (1 + at), rtol=1e-12)


def test_vjp_and_jvp_are_adjoint_and_agree_with_gradients() -> None:
    graph = mlp()
    source = np.random.default_rng(0)
    x, t = source.standard_normal((4, 3)), source.standard_normal((4, 3))
    g = run(gradients(graph), {"x": x})["d loss/d x"]
    forward = run(jvp(graph), {"x": x, "tangent x": t})["tangent loss"]
    back = run(vjp(graph), {"x": x, "cotangent loss": np.array(3.0)})["d/d x"]
    assert (g * t).sum() == pytest.approx(float(forward), rel=1e-10)
    np.testing.assert_allclose(back, 3 * g, rtol=1e-10)


def test_hessian_vector_agrees_with_differences() -> None:
    graph = mlp()
    source = np.random.default_rng(1)
    x, v = source.standard_normal((4, 3)), source.standard_normal((4, 3))
    found = run(hessian_vector(graph), {"x": x, "tangent x": v})["H tangent x"]
    first, h = gradients(graph), 1e-6
    above, below = (run(first, {"x": x + s * h * v})["d loss/d x"] for s in (1, -1))
    np.testing.assert_allclose(found, (above - below) / (2 * h), rtol=1e-5, atol=1e-8)


def test_linearize_keeps_only_what_depends_on_tangents() -> None:
    graph = mlp()
    source = np.random.default_rng(2)
    x, t = source.standard_normal((4, 3)).astype(np.float32), source.standard_normal((4, 3)).astype(np.float32)
    line = linearize(graph, {"x": x})
    assert [v.name for v in line.inputs] == ["tangent x"]
    whole = jvp(graph)
    assert len(line.nodes) < len(whole.nodes)
    assert "Tanh" not in {n.op for n in line.nodes}
    expected = run(whole, {"x": x, "tangent x": t})["tangent loss"]
    assert ort(line, **{"tangent x": t})["tangent loss"] == pytest.approx(float(expected), rel=1e-4)
    twice = ort(line, **{"tangent x": 2 * t})["tangent loss"]
    assert twice == pytest.approx(2 * float(expected), rel=1e-4)


def test_the_cheaper_mode_is_that_with_fewer_passes() -> None:
    assert modes(mlp()).cheaper == "reverse"  # 12 inputs, 1 output
    b = GraphBuilder("wide")
    x = b.input("x", "float32", (1,))
    b.output(x * np.ones(50, np.float32), "y")
    report = modes(b.build())
    assert report.cheaper == "forward"
    assert report.passes == {"forward": 1, "reverse": 50}
    assert "cheaper: forward" in str(report)


def test_weights_are_differentiated_by_name() -> None:
    found = gradients(mlp(), ["loss"], ["w1", "w2"])
    assert [str(v.type) for v in found.outputs] == ["float32[3, 5]", "float32[5, 2]"]


def test_what_does_not_matter_has_gradient_0() -> None:
    b = GraphBuilder("g")
    x, y = b.input("x", "float32", (2,)), b.input("y", "float32", (2,))
    b.output(x * 2 + b.op("Floor", y), "z")
    found = run(gradients(b.build()), {"x": np.ones(2), "y": np.ones(2)})
    assert found["d z/d x"].tolist() == [2, 2]
    assert found["d z/d y"].tolist() == [0, 0]


def test_the_forward_pass_is_not_computed_twice() -> None:
    b = GraphBuilder("g")
    x = b.input("x", "float32", (2, 3))
    b.output(x.tanh().softmax(), "y")
    ops = [n.op for n in gradients(b.build(), keep_outputs=True).nodes]
    assert ops.count("Tanh") == 1
    assert ops.count("Softmax") == 1


def test_a_loaded_model_is_differentiated(tmp_path: Path) -> None:
    save(mlp(), tmp_path / "m.onnx")
    graph = gradients(load(tmp_path / "m.onnx"))
    onnx.checker.check_model(onnx.load_from_string(to_onnx_bytes(graph)), full_check=True)
    assert {n.domain for n in graph.nodes} == {""}


def test_symbolic_sizes_stay_or_are_fixed() -> None:
    b = GraphBuilder("g")
    x = b.input("x", "float32", ("n", 3))
    b.output((x @ b.weight("w", (3, 2))).relu(), "y")
    free = gradients(b.build(), inputs=["x"])
    x_value = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    assert ort(free, x=x_value)["d y/d x"].shape == (5, 3)
    assert str(gradients(b.build(), sizes={"n": 7}).outputs[0].type) == "float32[7, 3]"


def test_sizes_that_are_not_known_are_computed_where_it_runs() -> None:
    """Broadcasting, means, joins, slices and convolutions with a batch and a length of any size."""
    b = GraphBuilder("g")
    x = b.input("x", "float32", ("n", 3, "t"))
    y = b.op("Conv", x, b.weight("w", (4, 3, 3)), pads=[1, 1]).tanh()
    z = b.op("Concat", y, x, axis=1).transpose(0, 2, 1)
    mean = z.mean([0, 1], keepdims=True)
    b.output((z.slice(1, 1, 2**31) * mean).softmax() @ b.weight("v", (7, 2)), "out")
    graph = b.build()
    free = vjp(graph, None, ["x", "w", "v"])
    source = np.random.default_rng(0)
    for n, t in ((2, 5), (3, 4)):
        fixed = vjp(graph, None, ["x", "w", "v"], sizes={"n": n, "t": t})
        feeds = {
            "x": source.standard_normal((n, 3, t)).astype(np.float32),
            "cotangent out": source.standard_normal((n, t - 1, 2)).astype(np.float32),
        }
        one, two = ort(free, **feeds), ort(fixed, **feeds)
        for name in ("d/d x", "d/d w", "d/d v"):
            np.testing.assert_allclose(one[name], two[name], rtol=1e-5, atol=1e-6)


LOOP = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x, bool c) => (float[2] y) {
    a = Exp(x)
    y = If <then_branch = t () => (float[2] u) { u = Neg(a) }, else_branch = e () => (float[2] v) { v = Abs(a) }> (c)
}
"""


def test_control_flow_is_refused_by_its_name() -> None:
    model = parser.parse_model(LOOP)
    model.graph.node[1].name = "branch"
    with pytest.raises(
        NotDifferentiable, match=r'node "branch" \(If\): control flow .*; differentiate a part'
    ) as found:
        gradients(from_onnx(model))
    assert found.value.exit_code == 4
    with pytest.raises(NotDifferentiable, match="branch"):
        jvp(from_onnx(model))


@pytest.mark.parametrize("make", [gradients, jvp])
def test_a_custom_operator_is_refused_only_where_it_matters(make: object) -> None:
    nodes = [
        helper.make_node("Odd", ["x"], ["a"], name="odd", domain="my.domain"),
        helper.make_node("Mul", ["z", "z"], ["s"], name="square"),
        helper.make_node("Add", ["a", "s"], ["y"], name="add"),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("x", "z", "y", "a")]
    graph = helper.make_graph(nodes, "g", values[:2], values[2:3], value_info=values[3:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my.domain", 1)]
    model = from_onnx(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    assert make(model, ["y"], ["z"]).outputs  # type: ignore[operator]
    with pytest.raises(NotDifferentiable, match='node "odd"'):
        make(model, ["y"], ["x"])  # type: ignore[operator]


def test_names_that_are_not_there_are_told() -> None:
    with pytest.raises(UsageError, match="no value is named 'w9'"):
        gradients(mlp(), inputs=["w9"])
    b = GraphBuilder("g")
    i = b.input("i", "int64", (2,))
    b.output(i + i, "y")
    with pytest.raises(UsageError, match="no real output"):
        gradients(b.build())


def test_forward_and_backward_apart_are_the_whole() -> None:
    """What the backward pass needs is kept, constants of both are in both, and nothing is computed twice."""
    b = GraphBuilder("pooled")
    x, w = b.input("x", "float32", (2, 3, 6, 6)), b.input("w", "float32", (4, 3, 3, 3))
    y = b.op("MaxPool", b.op("Conv", x, w, pads=[1] * 4).tanh(), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    b.output(y.softmax(1), "y")
    graph = b.build()
    made = joint(graph, ["y"], ["x", "w"])
    source = np.random.default_rng(0)
    feeds = {v.name: source.standard_normal(v.type.shape) for v in graph.inputs}  # type: ignore[union-attr,arg-type]
    given = {"cotangent y": source.standard_normal((2, 4, 3, 3))}
    expected = run(vjp(graph), {**feeds, **given})
    forward = run(made.forward, feeds)
    found = run(made.backward, {**feeds, **given, **{name: forward[name] for name in made.kept}})
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12)
    own = {o for n in graph.nodes for o in n.outputs}
    assert not any(own.intersection(n.outputs) for n in made.backward.nodes)


@pytest.mark.parametrize(
    ("x", "exponent", "slopes"),
    [([0, 2, 3], np.array(0, np.float32), [0, 0, 0]), ([-1, 0, 2], np.array(3, np.int64), [3, 0, 12]),
     ([0, 2, 3], np.array([[0], [1], [2]], np.float32), [1, 5, 7])],
    ids=["zero", "integer", "polynomial"],
)  # fmt: skip
def test_powers_have_gradients_at_zero(x: list[float], exponent: np.ndarray, slopes: list[float]) -> None:
    """``x^0`` does not move, also where x is 0; an exponent may be an integer."""
    b = GraphBuilder("powers")
    b.output(b.input("x", "float32", (3,)) ** exponent, "y")
    feeds = {"x": np.array(x, np.float32)}
    np.testing.assert_allclose(run(gradients(b.build()), feeds)["d y/d x"], slopes)
    moved = run(jvp(b.build(), ["y"], ["x"]), {**feeds, "tangent x": np.ones(3, np.float32)})["tangent y"]
    np.testing.assert_allclose(moved.reshape(-1, 3).sum(axis=0), slopes)


def test_a_power_of_zero_stays_with_its_exponent() -> None:
    b = GraphBuilder("powers")
    b.output(b.op("Pow", b.input("x", "float32", (2,)), b.input("e", "float32", (2,))), "y")
    found = run(gradients(b.build()), {"x": np.array([0, 2], np.float32), "e": np.array([2, 0], np.float32)})
    np.testing.assert_allclose(found["d y/d x"], [0, 0])
    np.testing.assert_allclose(found["d y/d e"], [0, np.log(2)], rtol=1e-6)
