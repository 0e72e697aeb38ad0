"""Models with a node that no runtime could run: refused wherever the node is; and valid neighbours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from superopt.formats import from_bytes, from_onnx, load, read_json, save, to_json
from superopt.formats.onnx_reader import from_model_bytes
from superopt.formats.onnx_tensors import ExternalFiles
from superopt.ir.errors import InvalidModel
from superopt.ops.shape_inference import OpaqueNode, infer

make, info = helper.make_node, helper.make_tensor_value_info
FLOAT = TensorProto.FLOAT


def weight(name: str, *shape: int) -> TensorProto:
    return numpy_helper.from_array(np.ones(shape, np.float32), name)


def constant(name: str, value: object) -> TensorProto:
    return numpy_helper.from_array(np.asarray(value), name)


def model(
    *nodes: NodeProto, values: Sequence[object] = (), functions: Sequence[FunctionProto] = (), n: int | str = 1,
    opset: int = 17,
) -> ModelProto:  # fmt: skip
    """``a`` and ``b`` are [n, 4], ``x`` is an image with 4 channels, ``c`` a condition; ``y`` comes out."""
    weights = [weight("w", 3, 5, 1, 1), weight("five", 5, 2), weight("row", 4), constant("none", 0),
               constant("nine", [9])]  # fmt: skip
    inputs = [info("a", FLOAT, [n, 4]), info("b", FLOAT, [n, 4]), info("x", FLOAT, [n, 4, 3, 3]),
              info("c", TensorProto.BOOL, []), info("i", TensorProto.INT64, [2])]  # fmt: skip
    graph = helper.make_graph(nodes, "g", inputs, [info("y", FLOAT, None)], weights, value_info=list(values))
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=list(functions))


def branch(*nodes: NodeProto) -> object:
    return helper.make_graph(list(nodes), "branch", [], [info("r", FLOAT, None)])


def choice(then: NodeProto, otherwise: NodeProto) -> NodeProto:
    return make("If", ["c"], ["y"], name="choice", then_branch=branch(then), else_branch=branch(otherwise))


def loop(*nodes: NodeProto, result: str) -> NodeProto:
    body = helper.make_graph(
        [make("Identity", ["go"], ["on"]), *nodes], "body",
        [info("turn", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("v", FLOAT, [1, 4])],
        [info("on", TensorProto.BOOL, []), info(result, FLOAT, None)],
    )  # fmt: skip
    return make("Loop", ["none", "c", "a"], ["y"], name="loop", body=body)


def function(node: NodeProto) -> FunctionProto:
    return helper.make_function("own", "F", ["p", "q"], ["r"], [node], [helper.make_opsetid("", 17)], ["axis"])


NEG, INNER = make("Neg", ["a"], ["r"]), make("MatMul", ["a", "b"], ["r"], name="inner")
CALL = make("F", ["a", "b"], ["y"], domain="own", name="call")
CONCAT = make("Concat", ["p", "q"], ["r"], name="inner")
CONCAT.attribute.add(name="axis", ref_attr_name="axis", type=2)
CALL_7 = make("F", ["a", "b"], ["y"], domain="own", name="call", axis=7)
INVALID: dict[str, tuple[ModelProto, str]] = {
    "MatMul": (
        model(make("MatMul", ["a", "b"], ["y"], name="mm")),
        'node "mm" (MatMul): inner sizes of float32[1, 4] and float32[1, 4] differ '
        "(inputs: a float32[1, 4], b float32[1, 4])",
    ),
    "MatMul of any batch": (model(make("MatMul", ["a", "five"], ["y"], name="mm"), n="N"), 'node "mm" (MatMul)'),
    "Conv": (model(make("Conv", ["x", "w"], ["y"], name="conv")), 'node "conv" (Conv): float32[1, 4, 3, 3] has not'),
    "element types": (model(make("Add", ["a", "i"], ["y"], name="sum")), "are float32 and int64, which Add takes only"),
    "an element type": (model(make("Not", ["a"], ["y"], name="no")), "is float32, which Not of opset 17 does not take"),
    "an index that is known": (model(make("Gather", ["row", "nine"], ["y"], name="pick")), "index 9 is not on axis 0"),
    "what ONNX infers": (
        model(make("LSTM", ["a", "w", "w"], ["y"], hidden_size=3, name="lstm")),
        'node "lstm" (LSTM): First input tensor must have rank 3',
    ),
    "of no use": (model(make("Conv", ["x", "w"], ["z"], name="conv"), make("Neg", ["a"], ["y"])), 'node "conv" (Conv)'),
    "in a branch": (
        model(choice(INNER, NEG)),
        'node "choice" (If), then_branch, node "inner" (MatMul): inner sizes of float32[1, 4] and float32[1, 4] differ',
    ),
    "in a body that never runs": (
        model(loop(make("MatMul", ["a", "b"], ["z"], name="inner"), result="z")),
        'node "loop" (Loop), body, node "inner" (MatMul)',
    ),
    "in a branch of a branch": (
        model(choice(make("If", ["c"], ["r"], name="deep", then_branch=branch(INNER), else_branch=branch(NEG)), NEG)),
        'node "choice" (If), then_branch, node "deep" (If), then_branch, node "inner" (MatMul)',
    ),
    "in a function": (
        model(CALL, functions=[function(make("MatMul", ["p", "q"], ["r"], name="inner"))]),
        'node "call" (own.F), node "inner" (MatMul): inner sizes',
    ),
    "by an attribute of a call": (model(CALL_7, functions=[function(CONCAT)]), "axis 7 is outside rank 2"),
    "too few parts": (
        model(make("Split", ["a"], ["y", "z", "u"], axis=1, num_outputs=2, name="cut"), opset=18),
        'node "cut" (Split): 2 parts for 3 outputs',
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", INVALID)
def test_is_refused_with_its_place(name: str, tmp_path: Path) -> None:
    proto, said = INVALID[name]
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    text = json.dumps(to_json(from_model_bytes(proto.SerializeToString(), ExternalFiles(None))))
    for way in (lambda: load(path), lambda: from_onnx(proto), lambda: from_bytes(text.encode())):
        with pytest.raises(InvalidModel) as caught:
            way()
        assert said in str(caught.value)
        assert "no runtime can run it" in str(caught.value)


def feeds() -> dict[str, np.ndarray]:
    ones = np.ones((1, 4), np.float32)
    return {"a": ones, "b": ones, "x": np.ones((1, 4, 3, 3), np.float32), "c": np.array(False),
            "i": np.array([0, 1])}  # fmt: skip


LONGER, SHORTER = info("p", FLOAT, [5, 4]), info("k", FLOAT, [1, 4, 1, 9])
VALID = {
    "a Conv in a branch that is not taken": model(
        choice(make("Conv", ["x", "w"], ["r"]), make("Neg", ["x"], ["r"]))
    ),
    "a state that changes its shape": model(
        loop(make("MatMul", ["v", "b"], ["z"]), result="z"), n="N"
    ),
    "sizes of one name that differ": model(
        make("Concat", ["a", "a"], ["twice"], axis=0), make("Transpose", ["twice"], ["t"]),
        make("MatMul", ["t", "twice"], ["y"]), n="N",
    ),
    "a declared shape that is wrong": model(
        make("Neg", ["x"], ["k"]), make("Shape", ["k"], ["s"]), make("Reshape", ["a", "i2"], ["p"]),
        make("Add", ["p", "a"], ["y"]), make("Cast", ["i"], ["f"], to=1), make("ReduceMax", ["f"], ["top"], keepdims=0),
        make("Constant", [], ["i2"], value_ints=[1, 4]), values=[LONGER, SHORTER],
    ),
}  # fmt: skip
VALID["a declared shape that is wrong"].graph.node.sort(key=lambda n: n.op_type != "Constant")


@pytest.mark.parametrize("name", VALID)
def test_what_a_runtime_takes_is_not_refused(name: str) -> None:
    proto = VALID[name]
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    session.run(None, feeds())
    from_onnx(proto)


def test_sizes_that_two_inputs_share_by_name_exclude_nothing() -> None:
    """No runtime holds the caller to it: with a of one row and b of two, this runs."""
    nodes = [make("Concat", ["a", "a"], ["twice"], axis=0), make("Sub", ["twice", "b"], ["y"])]
    proto = model(*nodes, n="N")
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    session.run(None, feeds() | {"b": np.ones((2, 4), np.float32)})
    from_onnx(proto)


def test_only_what_is_not_understood_is_opaque() -> None:
    graph = from_onnx(model(make("Mystery", ["a"], ["m"], domain="own"), make("Neg", ["m"], ["y"])))
    found = infer(graph).nodes
    assert all(isinstance(how, OpaqueNode) and not how.contradiction for how in found)
    assert read_json(json.dumps(to_json(graph)).encode(), ExternalFiles(None)).nodes == graph.nodes


def test_functions_that_double_are_looked_at_for_a_while_only(tmp_path: Path) -> None:
    """2²⁰ calls are no reason to wait; what lies beyond the limit is not judged."""
    own = [helper.make_opsetid("own", 1), helper.make_opsetid("", 17)]
    deep = [
        helper.make_function("own", f"F{k}", ["p"], ["r"], [
            make(f"F{k + 1}", ["p"], ["s"], domain="own"), make(f"F{k + 1}", ["s"], ["r"], domain="own"),
        ], own)
        for k in range(18)
    ]  # fmt: skip
    deep.append(helper.make_function("own", "F18", ["p"], ["r"], [make("Neg", ["p"], ["r"])], own))
    graph = from_onnx(model(make("F0", ["a"], ["y"], domain="own"), functions=deep))
    save(graph, tmp_path / "kept.onnx")
