"""Models with parts that superopt does not read: these come back bit for bit, and what surrounds them is optimised."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from onnx import FunctionProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, helper, numpy_helper

from superopt.cost.device_profile import write_profile
from superopt.formats import from_onnx, to_onnx
from superopt.ir.graph import Graph
from superopt.ops.shape_inference import infer
from superopt.pipeline import optimize

make = helper.make_node


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A profile without records: costs are rooflines, so that nothing is measured."""
    path = tmp_path_factory.mktemp("profile") / "roofline.jsonl.gz"
    write_profile(path, {"device": "a roofline", "threads": 1, "dispatch_ns": 200.0}, ())
    return f"profile:{path}"


def info(name: str, kind: int = TensorProto.FLOAT, shape: Sequence[int | str] | None = None):
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name: str, value: object) -> TensorProto:
    return numpy_helper.from_array(np.asarray(value), name)


def weight(name: str, *shape: int) -> TensorProto:
    values = np.random.default_rng(len(name)).standard_normal(shape) * 0.1
    return constant(name, values.astype(np.float32))


def model(
    nodes: Iterable[NodeProto], weights: Iterable[TensorProto], *, outputs: Sequence[str] = ("y",), opset: int = 17,
    inputs: Sequence[object] = (), functions: Iterable[FunctionProto] = (),
) -> ModelProto:  # fmt: skip
    graph = helper.make_graph(
        list(nodes), "g", list(inputs) or [info("x", shape=["N", 3, 16, 16])], [info(o) for o in outputs], list(weights)
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("acme", 1), helper.make_opsetid("own", 1)]
    made = helper.make_model(graph, ir_version=8, opset_imports=imports, functions=list(functions))
    made.doc_string = "a document"
    made.producer_name = "a producer"
    made.metadata_props.add(key="author", value="somebody")
    return made


def foldable(source: str, result: str, name: str) -> tuple[list[NodeProto], list[TensorProto]]:
    """A convolution and a batch normalisation, which become one: what shows that the optimiser was at work."""
    nodes = [
        make("Conv", [source, f"{name}.w", f"{name}.b"], [f"{name}.c"], name=f"{name}.conv", pads=[1, 1, 1, 1]),
        make("BatchNormalization", [f"{name}.c", *(f"{name}.{p}" for p in "sbmv")], [result], name=f"{name}.bn"),
    ]
    weights = [weight(f"{name}.w", 3, 3, 3, 3), weight(f"{name}.b", 3), weight(f"{name}.m", 3), weight(f"{name}.s", 3)]
    return nodes, [*weights, constant(f"{name}.v", np.ones(3, np.float32))]


def branch(op: str, source: str = "a") -> object:
    return helper.make_graph([make(op, [source], ["out"])], "b", [], [info("out")])


def loop_body() -> object:
    nodes = [make("Identity", ["c"], ["c2"]), make("Add", ["v", "v"], ["v2"])]
    inputs = [info("i", TensorProto.INT64, []), info("c", TensorProto.BOOL, []), info("v", shape=None)]
    return helper.make_graph(nodes, "body", inputs, [info("c2", TensorProto.BOOL, []), info("v2")])


def condition() -> list[NodeProto]:
    return [make("ReduceSum", ["a"], ["total"], keepdims=0), make("Greater", ["total", "zero"], ["yes"])]


ZERO = constant("zero", np.float32(0))
BETWEEN: dict[str, tuple[list[NodeProto], list[TensorProto]]] = {
    "custom operator": ([make("Mystery", ["a"], ["k"], name="odd", domain="acme", level=3)], []),
    "If": ([*condition(), make("If", ["yes"], ["k"], then_branch=branch("Relu"), else_branch=branch("Neg"))], [ZERO]),
    "Loop": (
        [make("Loop", ["turns", "true", "a"], ["k"], body=loop_body())],
        [constant("turns", np.int64(2)), constant("true", np.array(True))],
    ),
    "function": ([make("twice", ["a"], ["k"], domain="own")], []),
    "sequence": (
        [make("SequenceConstruct", ["a", "a"], ["many"]), make("ConcatFromSequence", ["many"], ["k"], axis=0)], []
    ),
    "QDQ": (
        [make("QuantizeLinear", ["a", "scale", "point"], ["q"]),
         make("DequantizeLinear", ["q", "scale", "point"], ["k"])],
        [constant("scale", np.float32(0.05)), constant("point", np.uint8(128))],
    ),
    "strings": (
        [make("Constant", [], ["text"], value=helper.make_tensor("t", TensorProto.STRING, [2], [b"a", b"b"])),
         make("Equal", ["text", "text"], ["same"]) , make("Shape", ["text"], ["two"]),
         make("Cast", ["two"], ["two.f"], to=TensorProto.FLOAT), make("Mul", ["a", "two.f"], ["k"])],
        [],
    ),
}  # fmt: skip
TWICE = helper.make_function(
    "own", "twice", ["p"], ["r"], [make("Add", ["p", "p"], ["r"])], [helper.make_opsetid("", 17)]
)
OPAQUE = {
    "Mystery",
    "If",
    "Loop",
    "SequenceConstruct",
    "ConcatFromSequence",
    "QuantizeLinear",
    "DequantizeLinear",
}


@pytest.mark.parametrize("what", BETWEEN)
def test_barriers_come_back_bit_for_bit_and_the_rest_is_optimised(what: str, target: str) -> None:
    before, first = foldable("x", "a", "one")
    after, second = foldable("k", "y", "two")
    nodes, weights = BETWEEN[what]
    proto = model(
        [*before, *nodes, *after],
        [*first, *second, *weights],
        functions=[TWICE] if what == "function" else [],
        opset=19 if what == "strings" else 17,
    )
    result = optimize(from_onnx(proto), target=target, time_limit=None)
    again = to_onnx(result.graph)
    kept = {n.SerializeToString(deterministic=True) for n in again.graph.node}
    for node in to_onnx(result.original).graph.node:
        if node.op_type in OPAQUE:
            assert node.SerializeToString(deterministic=True) in kept, node.op_type
    assert (again.doc_string, again.producer_name) == ("a document", "a producer")
    assert ("author", "somebody") in [(e.key, e.value) for e in again.metadata_props]
    assert not again.functions  # the body of the one was rewritten in the place of its call
    assert [v.name for v in again.graph.input] == ["x"]
    assert [v.name for v in again.graph.output] == ["y"]
    ops = [n.op for n in result.graph.nodes]
    if what in ("custom operator", "Loop", "QDQ"):  # of no known rank; or read by a quantised operator
        assert ops.count("BatchNormalization") <= 1, "before the barrier there is something to fold"
    elif what != "sequence":
        assert "BatchNormalization" not in ops, result.report.notes


def quantised() -> Graph:
    """A quantised convolution between float ones."""
    before, first = foldable("x", "a", "one")
    after, second = foldable("d", "y", "two")
    nodes = [
        make("QuantizeLinear", ["a", "s", "z"], ["aq"], name="q1"),
        make("DequantizeLinear", ["aq", "s", "z"], ["ad"], name="d1"),
        make("DequantizeLinear", ["wq", "s", "zi"], ["wd"], name="dw"),
        make("Conv", ["ad", "wd", "bias"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        make("Relu", ["c"], ["r"], name="relu"),
        make("QuantizeLinear", ["r", "s", "z"], ["rq"], name="q2"),
        make("DequantizeLinear", ["rq", "s", "z"], ["d"], name="d2"),
    ]
    weights = [
        constant("s", np.float32(0.05)), constant("z", np.uint8(128)), constant("zi", np.int8(0)), weight("bias", 3),
        constant("wq", np.random.default_rng(0).integers(-100, 100, (3, 3, 3, 3)).astype(np.int8)),
    ]  # fmt: skip
    return from_onnx(model([*before, *nodes, *after], [*first, *second, *weights]))


def test_quantised_parts_keep_the_form_that_runtimes_fuse(target: str) -> None:
    graph = quantised()
    result = optimize(graph, target=target, time_limit=30)
    kept = {n.name: n for n in result.graph.nodes}
    for name in ("q1", "d1", "dw", "conv", "relu", "q2"):
        assert kept[name] == next(n for n in graph.nodes if n.name == name)
    assert result.report.operators["after"].get("BatchNormalization", 0) <= 1
    assert result.report.status == "improved"


def test_sparse_weights_are_carried(target: str) -> None:
    nodes, weights = foldable("x", "a", "one")
    proto = model([*nodes, make("Add", ["a", "sparse"], ["y"])], weights)
    values, indices = constant("sparse", np.ones(2, np.float32)), constant("i", np.array([0, 5]))
    proto.graph.sparse_initializer.append(SparseTensorProto(values=values, indices=indices, dims=[16]))
    result = optimize(from_onnx(proto), target=target, time_limit=None)
    again = to_onnx(result.graph)
    assert [s.SerializeToString() for s in again.graph.sparse_initializer] == [
        s.SerializeToString() for s in proto.graph.sparse_initializer
    ]


BARRIER_TYPES = {
    "QuantizeLinear": (make("QuantizeLinear", ["x", "s"], ["y"]), ["uint8[N, 3, 16, 16]"]),
    "TopK": (make("TopK", ["x", "k"], ["v", "i"]), ["float32[N, 3, 16, 2]", "int64[N, 3, 16, 2]"]),
    "NonZero": (make("NonZero", ["x"], ["y"]), ["int64[4, ?y.1]"]),
    "LSTM": (make("LSTM", ["seq", "W", "R"], ["y", "h"], hidden_size=5), ["float32[N, 1, M, 5]", "float32[1, M, 5]"]),
    "If": (make("If", ["c"], ["y"], then_branch=branch("Relu", "x"), else_branch=branch("Neg", "x")),
           ["float32[N, 3, 16, 16]"]),
    "Slice to an unknown length": (make("Slice", ["table", "start", "n"], ["y"]), ["float32[?y.0, 512, 4]"]),
    "no hidden size": (make("LSTM", ["seq", "W", "R"], ["y"], hidden_size=0), ["None"]),
    "unknown domain": (make("Mystery", ["x"], ["y"], domain="acme"), ["None"]),
}  # fmt: skip


@pytest.mark.parametrize("what", BARRIER_TYPES)
def test_what_barriers_make_has_a_type(what: str) -> None:
    node, expected = BARRIER_TYPES[what]
    inputs = [info("x", shape=["N", 3, 16, 16]), info("seq", shape=["N", "M", 6]), info("c", TensorProto.BOOL, []),
              info("n", TensorProto.INT64, [1])]  # fmt: skip
    weights = [constant("s", np.float32(1)), constant("k", np.array([2])), weight("W", 1, 20, 6), weight("R", 1, 20, 5),
               weight("table", 1, 512, 4), constant("start", np.array([0]))]  # fmt: skip
    graph = from_onnx(model([node, make("Relu", ["x"], ["done"])], weights, inputs=inputs, outputs=["done"]))
    types = infer(graph).types
    assert [str(types[o]) for o in graph.nodes[0].outputs if o] == expected
    assert not to_onnx(graph).graph.value_info, "what was inferred is not written"
