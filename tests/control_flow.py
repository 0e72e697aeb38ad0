"""Models with If, Loop and Scan, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

__all__ = ["CASES", "ROW", "body", "feeds", "model", "node", "operators", "value"]

ROW = [4, 16]
_RNG = np.random.default_rng(7)
WEIGHTS: Mapping[str, np.ndarray] = {
    "w1": (_RNG.standard_normal((16, 16)) / 4).astype(np.float32),
    "w2": (_RNG.standard_normal((16, 16)) / 4).astype(np.float32),
    "one": np.ones(1, np.float32),
    "zero": np.zeros((), np.float32),
    "true": np.array(True),
    "three": np.array(3),
}


def node(op: str, inputs: str, outputs: str, **attributes: object) -> NodeProto:
    """A node; names are separated by spaces."""
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def value(name: str, shape: Sequence[int | str | None] = ROW, dtype: int = TensorProto.FLOAT) -> object:
    return helper.make_tensor_value_info(name, dtype, shape)


def body(nodes: list[NodeProto], inputs: Sequence[object], outputs: Sequence[object], *weights: object) -> GraphProto:
    return helper.make_graph(nodes, "body", list(inputs), list(outputs), list(weights))


def model(nodes: list[NodeProto], inputs: Sequence[object], outputs: Sequence[object], opset: int = 21) -> ModelProto:
    """A model with those of the weights that it reads."""
    graph = helper.make_graph(nodes, "model", list(inputs), list(outputs))
    read = graph.SerializeToString()
    graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in WEIGHTS.items() if n.encode() in read)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def feeds(proto: ModelProto, seed: int, **given: object) -> dict[str, np.ndarray]:
    """Inputs of a model: reals are drawn, everything else is given; open sizes are 3."""
    rng, found = np.random.default_rng(seed), {}
    for item in proto.graph.input:
        shape = [d.dim_value or 3 for d in item.type.tensor_type.shape.dim]
        found[item.name] = np.asarray(given[item.name]) if item.name in given else \
            rng.standard_normal(shape).astype(np.float32)  # fmt: skip
    return found


def operators(proto: ModelProto) -> list[str]:
    """Of all nodes, those in bodies included."""
    found, stack = [], [proto.graph]
    while stack:
        graph = stack.pop()
        for item in graph.node:
            found.append(item.op_type)
            stack += [a.g for a in item.attribute if a.HasField("g")]
    return sorted(found)


def _branch(name: str, last: str, one: str, two: str) -> GraphProto:
    """Two products that are one, a product by 1, and an activation."""
    nodes = [
        node("MatMul", f"x {one}", f"{name}a"), node("MatMul", f"{name}a {two}", f"{name}b"),
        node("Mul", f"{name}b one", f"{name}c"), node(last, f"{name}c", f"{name}y"),
    ]  # fmt: skip
    return body(nodes, [], [value(f"{name}y")])


def _if(condition: str, inputs: list[object]) -> ModelProto:
    both = {"then_branch": _branch("t", "Relu", "w1", "w2"), "else_branch": _branch("e", "Tanh", "w2", "w1")}
    return model([node("If", condition, "y", **both)], [*inputs, value("x")], [value("y")])


def _loop(turns: str, inputs: list[object]) -> ModelProto:
    nodes = [
        node("Identity", "going", "goes"), node("MatMul", "s w1", "sa"), node("MatMul", "sa w2", "sb"),
        node("MatMul", "x w1", "xa"), node("MatMul", "xa w2", "xb"), node("Add", "sb xb", "ss"),
        node("Tanh", "ss", "so"),
    ]  # fmt: skip
    steering = [value("turn", [], TensorProto.INT64), value("going", [], TensorProto.BOOL)]
    inner = body(nodes, [*steering, value("s")], [value("goes", [], TensorProto.BOOL), value("so")])
    return model([node("Loop", f"{turns} true x", "y", body=inner)], [*inputs, value("x")], [value("y")])


def _scan() -> ModelProto:
    nodes = [
        node("MatMul", "s w1", "sa"), node("MatMul", "sa w2", "sb"), node("Add", "sb xt", "ss"),
        node("Tanh", "ss", "so"),
        node("Identity", "so", "o"),
    ]  # fmt: skip
    inner = body(nodes, [value("s"), value("xt")], [value("so"), value("o")])
    ways = {"scan_input_axes": [1], "scan_input_directions": [1], "scan_output_axes": [2]}
    outer = node("Scan", "x xs", "y ys", body=inner, num_scan_inputs=1, **ways)
    return model([outer], [value("x"), value("xs", [4, 5, 16])], [value("y"), value("ys", [4, 16, 5])])


def _nested() -> ModelProto:
    """A Loop over rows of an open number, with an If inside that reads what the Loop carries."""
    rows = ["N", 16]
    then = body([node("MatMul", "s w1", "ta"), node("MatMul", "ta w2", "tb")], [], [value("tb", rows)])
    other = body([node("MatMul", "s w2", "ea"), node("MatMul", "ea w1", "eb")], [], [value("eb", rows)])
    nodes = [
        node("Identity", "going", "goes"), node("ReduceSum", "s", "r", keepdims=0), node("Greater", "r zero", "g"),
        node("If", "g", "q", then_branch=then, else_branch=other), node("Relu", "q", "so"), node("Relu", "so", "out"),
    ]  # fmt: skip
    steering = [value("turn", [], TensorProto.INT64), value("going", [], TensorProto.BOOL)]
    outputs = [value("goes", [], TensorProto.BOOL), value("so", rows), value("out", rows)]
    inner = body(nodes, [*steering, value("s", rows)], outputs)
    inputs = [value("n", [], TensorProto.INT64), value("x", rows)]
    return model([node("Loop", "n true x", "y ys", body=inner)], inputs, [value("y", rows), value("ys", [None, *rows])])


def _own_weights() -> ModelProto:
    """Branches with weights of their own, and a Constant."""
    held = numpy_helper.from_array(np.full(16, 2, np.float32), "k")
    three = numpy_helper.from_array(np.full(16, 3, np.float32), "j")
    nodes = [node("Constant", "", "k", value=held), node("Mul", "x k", "m"), node("Mul", "m j", "ty")]
    then = body(nodes, [], [value("ty")], three)
    other = body([node("Neg", "x", "n1"), node("Neg", "n1", "ey")], [], [value("ey")])
    both = {"then_branch": then, "else_branch": other}
    return model([node("If", "c", "y", **both)], [value("c", [], TensorProto.BOOL), value("x")], [value("y")])


_FLAG, _COUNT = value("c", [], TensorProto.BOOL), value("n", [], TensorProto.INT64)
# The model, the inputs that are not drawn, and how many nodes are left at most.
CASES: Mapping[str, tuple[ModelProto, tuple[dict[str, object], ...], int]] = {
    "if": (_if("c", [_FLAG]), ({"c": True}, {"c": False}), 5),
    "constant condition": (_if("true", []), ({},), 2),
    "loop": (_loop("n", [_COUNT]), ({"n": 0}, {"n": 1}, {"n": 5}), 5),
    "loop of three turns": (_loop("three", []), ({},), 5),
    "scan": (_scan(), ({},), 5),
    "if in a loop": (_nested(), ({"n": 1}, {"n": 4}), 9),
    "weights of their own": (_own_weights(), ({"c": True}, {"c": False}), 3),
}
