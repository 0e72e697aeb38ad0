"""What a graph may look like: constant, repeated and passed-through outputs, defaults, functions, sequences, names."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from attacker.build import EXTREME, MODERATE, WIDE, Build
from attacker.carriers import around, exactly
from attacker.registry import motif

form = motif("structure")


@form
def output_becomes_constant(b: Build) -> None:
    """Relu → HardSigmoid(alpha=0) → Neg → Neg, products with zero of a mask, a shape of a fixed shape."""
    x = b.input(2, 3, families=MODERATE)
    kind = int(b.rng.integers(5))
    if kind == 0:
        y = b.op("HardSigmoid", b.op("Relu", x), alpha=0.0, beta=float(b.pick(0.5, 0.25)))
        y = b.op("Neg", b.op("Neg", y))
    elif kind == 1:
        y = b.op("Clip", b.op("Clip", x, 0.0, 1.0), 2.0, 2.0) if b.dtype != "float16" else b.op("Shape", x)
    elif kind == 2:
        y = b.op("Add", b.op("Shape", b.op("Neg", b.op("Neg", x))), b.ints(1, 1))
    elif kind == 3:
        y = b.op("Min", b.op("Max", b.op("Relu", x), -1.0), -2.0)
    else:
        y = b.op("Slice", b.op("Concat", x, b.const(np.ones((2, 3))), axis=0), b.ints(2), b.ints(4))
    b.output(y)
    if b.maybe():
        b.output(b.op("Relu", b.op("Relu", x)))


@form
def output_is_input(b: Build) -> None:
    """Movements that cancel until an output is an input, alone and beside work."""
    x = b.input(2, 3, families=EXTREME)
    b.output(exactly(b, exactly(b, x, 2), 2))
    if b.maybe():
        b.output(b.op("Identity", x), b.op("Add", b.op("MatMul", x, b.weight(3, 3)), b.weight(3)))
    if b.maybe(0.3):
        b.output(x)


@form
def outputs_are_equal(b: Build) -> None:
    """Several outputs that compute the same."""
    x = b.input("N", 4)
    b.size(1, 3)
    w, c = b.weight(4, 3), b.weight(3)
    for _ in range(int(b.rng.integers(2, 4))):
        b.output(b.op("Add", b.op("MatMul", x, w), c))
    y = b.op("Relu", x)
    b.output(y, b.op("Relu", y), b.op("Identity", y))


@form
def initializer_as_output(b: Build) -> None:
    """A weight, and a computed constant, that are outputs."""
    x = b.input(2, 3)
    w = b.weight(3, 3)
    total = b.op("Floor", b.op("Mul", w, 10.0))
    b.output(w, total, b.op("Add", b.op("MatMul", x, w), b.op("Neg", b.weight(3))), b.op("Identity", total))


@form
def unused_parts(b: Build) -> None:
    """Inputs that nothing reads, nodes that nothing reads, weights that nothing reads."""
    x = b.input(2, 3)
    b.input(5, dtype="int64", low=0, high=9)
    b.input("N", 2)
    b.size(1, 2)
    b.weight(4)
    b.op("Exp", x)
    b.output(b.op("Neg", b.op("Neg", b.op("Relu", x))))


@form
def odd_names(b: Build) -> None:
    """Nodes without a name, named like values, or like another but for its case (equal names are invalid)."""
    x = b.input(2, 4)
    y = b.op("Add", b.op("MatMul", x, b.weight(4, 4)), b.weight(4))
    y = b.op("Relu", b.op("Identity", y))
    z = b.op("Transpose", b.op("Transpose", y))
    for node, name in zip(b.nodes, ["node", "Node", z, b.nodes[0].output[0], *[""] * 20], strict=False):
        node.name = name
    b.output(z)


@form
def shared_weights(b: Build) -> None:
    """One weight in several products, transposed too, and as an elementwise operand."""
    x, y = b.input(2, 4), b.input(2, 4)
    w = b.weight(4, 4)
    t = b.op("Transpose", w)
    b.output(b.op("Add", b.op("MatMul", x, w), b.op("MatMul", y, w)), b.op("MatMul", x, t))
    b.output(b.op("Mul", b.op("Mul", b.input(4, 4), w), t))


@form
def weights_with_defaults(b: Build) -> None:
    """Initializers that are inputs too: a feed may override them, so nothing may be folded into them."""
    x = b.input(2, 3, families=MODERATE)
    w = b.const(b.rng.standard_normal((3, 3)), b.dtype, default=True)
    c = b.const(b.rng.standard_normal(3), b.dtype, default=True)
    scale = b.op("Mul", c, 2.0)
    y = b.op("Mul", b.op("Add", b.op("MatMul", x, w), c), scale)
    b.output(exactly(b, y, 2))


@form
def fan_out(b: Build) -> None:
    """One value with many readers, some equal."""
    x = b.op("Add", b.input(2, 4), b.weight(4))
    for _ in range(int(b.rng.integers(6, 14))):
        kind = str(b.pick("Relu", "Neg", "Abs", "Floor", "Sigmoid", "Tanh"))
        b.output(b.op("MatMul", b.op(kind, x), b.weight(4, 2)) if b.maybe(0.3) else b.op(kind, x))


@form
def functions(b: Build) -> None:
    """A model-local function called twice, with a rounding trick inside."""
    b.dtype = "float32" if b.dtype == "float16" else b.dtype
    nodes = [
        helper.make_node("Constant", [], ["magic"], value_float=12582912.0),
        helper.make_node("CastLike", ["magic", "a"], ["m"]),
        helper.make_node("Add", ["a", "m"], ["s"], name="exact.f1"),
        helper.make_node("Sub", ["s", "m"], ["r"], name="exact.f2"),
        helper.make_node("Mul", ["r", "w"], ["y"]),
    ]
    b.opset = max(b.opset, 15)
    imports = [helper.make_opsetid("", b.opset)]
    b.functions.append(helper.make_function("own", "RoundScale", ["a", "w"], ["y"], nodes, imports))
    x = b.input(2, 3, families=("normal", "halves", "integers"))
    y = b.op("RoundScale", exactly(b, x, 2), b.weight(3), domain="own")
    b.output(b.op("Relu", b.op("RoundScale", b.op("Neg", y), b.weight(3), domain="own")), y, dtype=b.dtype)


@motif("structure", single=True)
def quantised_layer(b: Build) -> None:
    """A layer in the QDQ form."""
    x = b.input(2, 4, families=(*MODERATE, "medium"))
    zero = b.const(np.array(int(b.rng.integers(0, 9))), "uint8")
    q = b.op("DequantizeLinear", b.op("QuantizeLinear", x, 0.05, zero), 0.05, zero, exact=True)
    w = b.op(
        "DequantizeLinear", b.const(b.rng.integers(-99, 99, size=(4, 3)), "int8"), 0.01, b.const(np.array(0), "int8")
    )
    y = b.op("Relu", b.op("Add", b.op("MatMul", q, w), b.weight(3)))
    b.output(b.op("DequantizeLinear", b.op("QuantizeLinear", y, 0.1, zero), 0.1, zero))


@form
def sequences(b: Build) -> None:
    """SequenceConstruct, SequenceAt, SplitToSequence and ConcatFromSequence between ordinary nodes."""
    x, y = b.op("Neg", b.op("Neg", b.input(2, 3))), b.input(2, 3)
    sequence = b.op("SequenceConstruct", x, b.op("Relu", y))
    z = b.op("SequenceAt", sequence, b.const(np.array(int(b.rng.integers(2)), np.int64)))
    whole = b.op("ConcatFromSequence", b.op("SplitToSequence", x, axis=1, keepdims=1), axis=1)
    b.output(b.op("Relu", b.op("Identity", z)), around(b, whole, 2), b.op("SequenceLength", sequence))


@motif("structure", single=True)
def training_outputs(b: Build) -> None:
    """Several outputs of one node: MaxPool's indices, Dropout's mask, BatchNormalization's running statistics."""
    kind = int(b.rng.integers(3))
    x = b.input(2, 3, 4, 4, families=("normal", "ties", "integers"))
    if kind == 0:
        y, extra = b.ops("MaxPool", b.op("Relu", x), count=2, kernel_shape=[2, 2], strides=[2, 2])
    elif kind == 1:
        y, extra = b.ops("Dropout", b.op("Identity", x), count=2)
    else:
        b.opset = max(b.opset, 15)
        parts = [b.weight(3), b.weight(3), b.weight(3), b.const(b.rng.uniform(0.5, 2, size=3))]
        y, extra, more = b.ops("BatchNormalization", x, *parts, count=3, training_mode=1)
        b.output(more)
    b.output(b.op("Relu", b.op("Relu", y)), extra)


@form
def deep_chain(b: Build) -> None:
    """Some twenty elementwise nodes, cancelling in part."""
    x = b.input(2, 3, families=MODERATE)
    for _ in range(int(b.rng.integers(12, 24))):
        kind = str(b.pick("Neg", "Identity", "Abs", "Relu", "Add", "Mul", "Floor", "Max", "Sub"))
        x = (
            b.op(kind, x)
            if kind in ("Neg", "Identity", "Abs", "Relu", "Floor")
            else b.op(kind, x, float(b.pick(0.5, 2.0, -1.0)))
        )
    b.output(x)


@form
def identities(b: Build) -> None:
    """x + 0, x·1, x/1, x − 0, x^1, and zeros and ones that broadcast."""
    x = b.input(2, 3, families=EXTREME)
    ones, zeros = b.const(np.ones((2, 1) if b.maybe() else (4, 1, 1))), b.const(np.zeros(3))
    kinds = [
        ("Add", zeros),
        ("Mul", ones),
        ("Div", ones),
        ("Sub", zeros),
        ("Pow", 1.0),
        ("Add", b.const(np.full(3, -0.0))),
    ]
    for index in b.rng.permutation(len(kinds))[:3]:
        x = b.op(kinds[index][0], x, kinds[index][1])
    b.output(x)


@motif("structure", single=True)
def optional_absent(b: Build) -> None:
    """Absent optional inputs and outputs in the middle of the list."""
    x = b.op("Clip", b.op("Clip", b.input(3, 2, 4, families=MODERATE), None, 1.0), -1.0)
    state = b.name()
    parts = [x, b.weight(1, 8, 4), b.weight(1, 8, 2), "", "", b.weight(1, 2, 2)]
    b.nodes.append(helper.make_node("LSTM", parts, ["", state], hidden_size=2))
    b.output(state, b.op("Neg", b.op("Neg", x)))


@form
def bool_and_integer_casts(b: Build) -> None:
    """Casts through bool and integers that lose, and Casts to the type itself."""
    x = around(b, b.input(2, 4, families=("normal", "zeros", "halves", "integers")), 2)
    y = b.cast(b.cast(x, "bool"), b.dtype)
    z = b.cast(b.cast(b.cast(x, "int32"), "int64"), b.dtype)
    b.output(y, z, b.cast(b.cast(x, b.dtype), b.dtype))


@form
def external_types(b: Build) -> None:
    """Constants of one value, of each float type, joined by Casts."""
    x = b.input(3, families=WIDE)
    total = x
    for kind in ("float64", "float32", "float16"):
        c = b.cast(b.const(np.array(0.1), kind), b.dtype)
        total = b.op("Mul", total, b.op("Add", c, b.const(np.ones(3))))
    b.output(total)


@form
def concatenated_projections(b: Build) -> None:
    """Sibling products of one input, sliced, concatenated and split again."""
    b.dtype = "float32" if b.dtype == "float16" else b.dtype
    x = b.input("N", 4, families=EXTREME)
    b.size(1, 2, 3)
    parts = [b.op("Add", b.op("MatMul", x, b.weight(4, 3)), b.weight(3)) for _ in range(3)]
    b.output(b.op("Concat", *parts, axis=1))
    if b.maybe():
        b.output(b.op("Softmax", parts[0], axis=-1), b.op("Relu", parts[1]))


@form
def subgraph_names(b: Build) -> None:
    """An If whose branches give names that the outer graph could choose."""
    x = b.op("Add", b.op("Add", b.input(2, 3, families=MODERATE), b.weight(3)), b.weight(3))
    kind = {"float16": TensorProto.FLOAT16, "float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}[b.dtype]
    condition = b.op("Greater", b.op("ReduceMax", x, keepdims=0), 0.5)

    def arm(name: str, node: str) -> object:
        info = helper.make_tensor_value_info(name, kind, None)
        return helper.make_graph([helper.make_node(node, [x], [name])], f"g_{name}", [], [info])

    y = b.op("If", condition, then_branch=arm("v1000", "Neg"), else_branch=arm("t0", "Abs"))
    b.output(b.op("Relu", b.op("Relu", y)), dtype=b.dtype)
