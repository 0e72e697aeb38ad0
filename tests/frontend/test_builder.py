"""The symbolic builder: what it writes is what ONNX means, and its mistakes are told apart at the door."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnxruntime
import pytest

from superopt import formats
from superopt.formats.weight_data import RandomWeightData
from superopt.frontend import GraphBuilder, SymbolicTensor, trace
from superopt.ir.errors import InvalidModel, UsageError
from superopt.ir.graph import Graph, structural_hash
from superopt.ir.size_polynomial import sym
from superopt.ir.types import DType, TensorType


def run(graph: Graph, **inputs: np.ndarray) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(formats.to_onnx_bytes(graph), options)
    return list(session.run(None, inputs))


def f32(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape) + sum(shape)).uniform(0.5, 2.0, shape).astype(np.float32)


X, Y = f32(3, 4), f32(4)
CASES = {
    "add": (lambda x, y: x + y, X + Y),
    "sub": (lambda x, y: x - y, X - Y),
    "mul": (lambda x, y: x * y, X * Y),
    "div": (lambda x, y: x / y, X / Y),
    "pow": (lambda x, y: x**2.0, X**2),
    "neg": (lambda x, y: -x, -X),
    "number_right": (lambda x, y: x - 2, X - 2),
    "number_left": (lambda x, y: 2 - x, 2 - X),
    "number_over": (lambda x, y: 1.0 / x, 1 / X),
    "number_times": (lambda x, y: 3 * x + 1, 3 * X + 1),
    "matmul": (lambda x, y: x @ y, X @ Y),
    "array_left": (lambda x, y: y.like(f32(2, 4)) @ y, f32(2, 4) @ Y),
    "relu": (lambda x, y: (x - 1.0).relu(), np.maximum(X - 1, 0)),
    "exp_sqrt_tanh": (lambda x, y: x.exp().sqrt().tanh(), np.tanh(np.sqrt(np.exp(X)))),
    "sigmoid": (lambda x, y: x.sigmoid(), 1 / (1 + np.exp(-X))),
    "softmax": (lambda x, y: x.softmax(0), np.exp(X) / np.exp(X).sum(0)),
    "reshape": (lambda x, y: x.reshape(2, -1), X.reshape(2, -1)),
    "transpose": (lambda x, y: x.transpose(1, 0), X.T),
    "unsqueeze_squeeze": (lambda x, y: x.unsqueeze(0, 3).squeeze(3), X[None]),
    "flatten": (lambda x, y: x.unsqueeze(1).flatten(), X),
    "sum": (lambda x, y: x.sum([1]), X.sum(1, keepdims=True)),
    "mean": (lambda x, y: x.mean([0, 1], keepdims=False), X.mean()),
    "slice": (lambda x, y: x.slice(1, 1, 3), X[:, 1:3]),
    "slice_step": (lambda x, y: x.slice(1, 1, 4, 2), X[:, 1:4:2]),
    "take": (lambda x, y: x.take(0, 1), X[1]),
    "split": (lambda x, y: x.split([1, 3], 1)[1], X[:, 1:]),
}


@pytest.mark.parametrize("name", CASES)
def test_methods_mean_what_numpy_means(name: str) -> None:
    function, expected = CASES[name]
    b = GraphBuilder("g")
    x, y = b.input("x", "float32", X.shape), b.input("y", "float32", Y.shape)
    b.output(function(x, y), "z")
    b.output(x + y, "keeps_both_inputs")
    graph = b.build()
    np.testing.assert_allclose(run(graph, x=X, y=Y)[0], expected, rtol=1e-5, atol=1e-6)
    declared = graph.outputs[0].type
    assert isinstance(declared, TensorType)
    assert declared.shape == expected.shape


def test_the_same_calls_give_the_same_graph() -> None:
    def make() -> Graph:
        b = GraphBuilder("g")
        x = b.input("x", "float32", (2, 3))
        for layer in range(3):
            with b.scope(f"layer{layer}"):
                x = (x @ b.weight("w", (3, 3)) * 0.5).relu()
        b.output(x)
        return b.build()

    one, two = make(), make()
    assert one == two or structural_hash(one) == structural_hash(two)
    assert [n.name for n in one.nodes] == [n.name for n in two.nodes]
    assert one.nodes[3].name == "layer1/MatMul"


def test_equal_numbers_are_one_constant_and_random_weights_all_differ() -> None:
    b = GraphBuilder("g")
    x = b.input("x", "float32", (3,))
    b.output(x * 0.5 + 0.5 + b.weight("u", (3,)) + b.weight("v", (3,)), "y")
    graph = b.build()
    drawn = [w.data for w in graph.weights if isinstance(w.data, RandomWeightData)]
    assert len(graph.weights) == 3
    assert not np.array_equal(drawn[0].numpy(), drawn[1].numpy())


def test_a_number_takes_the_element_type_beside_it() -> None:
    b = GraphBuilder("g")
    n = b.input("n", "int64", (3,))
    h = b.input("h", "float16", (3,))
    b.output(n + 1, "m")
    b.output(h.relu() * 2, "k")
    graph = b.build()
    kinds = [v.type.dtype for v in graph.outputs if isinstance(v.type, TensorType)]
    assert kinds == [DType.INT64, DType.FLOAT16]
    outputs = run(graph, n=np.arange(3), h=np.ones(3, np.float16))
    assert [a.dtype for a in outputs] == [np.int64, np.float16]


def test_types_are_inferred_and_symbols_kept() -> None:
    b = GraphBuilder("g")
    y = b.input("x", "float32", ("n", 4)) @ b.weight("w", (4, 7))
    assert y.type == TensorType(DType.FLOAT32, (sym("n"), 7))
    assert b.op("NoSuchOperator", y, domain="mine").type is None


def test_attributes_of_every_kind() -> None:
    b = GraphBuilder("g", opsets={"mine": 1})
    x = b.input("x", "float32", (3,))
    y = b.op("Odd", x, domain="mine", i=np.int64(2), f=0.1, s="mode", flag=True, ints=[1, 2], floats=[1, 0.5],
             strings=["a", "b"], tensor=np.ones(2, np.float32), absent=None)  # fmt: skip
    b.output(y, "y", shape=(3,))
    attributes = b.build().nodes[0].attributes
    assert attributes["i"] == 2
    assert attributes["f"] == float(np.float32(0.1))
    assert attributes["s"] == b"mode"
    assert attributes["flag"] == 1
    assert attributes["ints"] == (1, 2)
    assert attributes["floats"] == (1.0, 0.5)
    assert attributes["strings"] == (b"a", b"b")
    assert "absent" not in attributes


def test_outputs_renamed_twice_used_or_straight_from_inputs() -> None:
    b = GraphBuilder("g")
    x = b.input("x", "float32", (3,))
    y = x.relu()
    b.output(y, "first")
    b.output(y, "second")
    b.output(x, "third")
    b.output(y + 1.0, "fourth")
    graph = b.build()
    assert [v.name for v in graph.outputs] == ["first", "second", "third", "fourth"]
    v = np.array([-1, 0, 2], np.float32)
    for got, expected in zip(run(graph, x=v), [v.clip(0), v.clip(0), v, v.clip(0) + 1], strict=True):
        np.testing.assert_array_equal(got, expected)


def test_an_omitted_optional_input_is_the_empty_name() -> None:
    b = GraphBuilder("g")
    x = b.input("x", "float32", (1, 1, 2, 2))
    sizes = np.array([1, 1, 4, 4])
    b.output(b.op("Resize", x, None, None, sizes, mode="nearest"), "y", shape=(1, 1, 4, 4))
    assert b.build().nodes[0].inputs[1:3] == ("", "")


def _foreign(b: GraphBuilder) -> object:
    return b.input("x", "float32", (2,)) + GraphBuilder("other").input("y", "float32", (2,))


def _iterated(b: GraphBuilder) -> object:
    return list(b.input("x", "float32", (2,)))  # type: ignore[call-overload]


MISTAKES = {
    "belongs to graph 'other'": _foreign,
    "used twice": lambda b: [b.weight("w", (2,)), b.weight("w", (2,))],
    "element type 'float31' is not": lambda b: b.input("x", "float31", (2,)),
    "size -1 is negative": lambda b: b.input("x", "float32", (-1,)),
    "static sizes": lambda b: b.weight("w", (sym("n"),)),
    "distribution 'cauchy' is not": lambda b: b.weight("w", (2,), distribution="cauchy"),
    "no truth value": lambda b: bool(b.input("x", "float32", (2,))),
    "cannot be iterated": _iterated,
    "attribute a cannot hold": lambda b: b.op("Odd", a=object()),
    "needs a non-empty list": lambda b: b.op("Odd", a=[]),
    "no output was declared": lambda b: b.build(),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_told(message: str) -> None:
    with pytest.raises(UsageError, match=message):
        MISTAKES[message](GraphBuilder("g"))


def test_a_weight_without_values_builds() -> None:
    b = GraphBuilder("g")
    b.output(b.input("x", "float32", (2, 3)) @ b.shape_only("v", (3, 4)), "y")
    assert b.build().weights[0].data is None


def test_a_deep_chain_builds() -> None:
    b = GraphBuilder("deep")
    x = b.input("x", "float32", (1,))
    for _ in range(5_000):
        x = x.relu()
    b.output(x, "y", shape=(1,))
    assert len(b.build().nodes) == 5_000


def test_trace_takes_functions_of_several_outputs() -> None:
    def f(b: GraphBuilder, x: SymbolicTensor) -> Iterator[SymbolicTensor]:
        yield x.relu()
        yield x * 2.0

    graph = trace(f, "both", x=("float32", (2,)))
    assert graph.name == "both"
    assert [v.name for v in graph.outputs] == ["output_0", "output_1"]


def test_building_checks_the_graph() -> None:
    b = GraphBuilder("g")
    b.output(SymbolicTensor(b, "nowhere"), "y")
    with pytest.raises(InvalidModel, match="nowhere"):
        b.build()
