"""Branches, thresholds, integers, ties, loops and dynamic shapes: where one ulp or one unit decides."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from attacker.build import EXTREME, KIND, MODERATE, Build
from attacker.carriers import around, exactly
from attacker.registry import motif

branch = motif("branches")
EDGES = (*MODERATE, "log", "special", "denormal")


def thresholds(b: Build) -> float:
    """A value that comparisons meet."""
    return float(b.pick(0.0, 1.0, -1.0, 0.1, 3.0, 1000.0, 1e-30, -0.7))


@branch
def where_threshold(b: Build) -> None:
    """Where(x > t, 2x, x) with every comparison, nested and negated."""
    x = around(b, b.input(3, 4, families=EDGES), 2)
    mask = b.op(str(b.pick("Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal")), x, thresholds(b))
    if b.maybe():
        mask = b.op("Not", b.op("Not", mask)) if b.maybe() else b.op("Not", mask)
    y = b.op("Where", mask, b.op("Mul", x, 2.0), x)
    if b.maybe():
        y = b.op("Where", mask, b.op("Neg", y), b.op("Where", b.op("Less", x, thresholds(b)), y, b.op("Abs", x)))
    b.output(around(b, y, 2))


@branch
def comparison_logic(b: Build) -> None:
    """Not(x > y) beside x ≤ y: unlike where a NaN is; And, Or, Xor over them."""
    x, y = b.input(3, families=(*EDGES, "equal")), b.input(3, families=(*EDGES, "equal"))
    greater, less = b.op("Greater", x, y), b.op("Less", x, y)
    first = b.op("Not", greater)
    both = b.op(str(b.pick("And", "Or", "Xor")), first, b.op("Not", less))
    b.output(first, both, b.op("Not", b.op("Equal", x, y)), b.op("Not", b.op("Not", b.op("And", greater, less))))


@branch
def equal_branches(b: Build) -> None:
    """Where with equal arms, constant masks, and arms that differ in one element."""
    x = b.input(2, 4, families=EDGES)
    mask = b.const(b.rng.random(4) < (1.0 if b.maybe(0.3) else 0.6))
    other = b.op("Neg", b.op("Neg", x)) if b.maybe() else b.op("Add", x, b.const(np.array([0, 0, 0, 1.0])))
    y = b.op("Where", mask, x, other)
    b.output(around(b, y, 2, 1.0), b.op("Where", b.op("Greater", x, 0.5), y, y))


def body(nodes: Callable[[Build, str], str], b: Build, x: str, kind: int) -> tuple[object, str]:
    """A branch of an If: nodes over the outer value ``x``."""
    inner = Build(b.rng, dtype=b.dtype, opset=b.opset)
    inner.count = b.count + 1000
    result = inner.op("Identity", nodes(inner, x))
    b.count = inner.count
    info = helper.make_tensor_value_info(result, kind, None)
    return helper.make_graph(inner.nodes, b.name("branch"), [], [info], inner.weights), result


@branch
def if_by_sum(b: Build) -> None:
    """If on a reduction, both branches over a captured value; or on a constant."""
    x = b.input(2, 4, families=MODERATE)
    if b.maybe(0.7):
        total = b.op("Squeeze", b.reduce("ReduceMax", x, [0, 1]))
        condition = b.op("Greater", total, thresholds(b))
    else:
        condition = b.op("Greater", b.op("Mul", 0.1, 3.0), 0.3)
    x = b.op("Add", x, b.weight(4))
    then, _ = body(lambda i, v: i.op("Mul", i.op("Mul", v, 3.0), 0.5), b, x, KIND[b.dtype])
    other, _ = body(lambda i, v: i.op("Sub", v, i.op("Floor", v)), b, x, KIND[b.dtype])
    y = b.op("If", condition, then_branch=then, else_branch=other)
    b.output(exactly(b, y, 2), dtype=b.dtype)


@branch
def clips(b: Build) -> None:
    """Clip after Clip, min above max, only one bound, infinite bounds."""
    x = around(b, b.input(2, 4, families=EDGES), 2)
    for _ in range(int(b.rng.integers(1, 4))):
        low, high = (b.pick(None, thresholds(b), float(np.inf), -2.0), b.pick(None, thresholds(b), 6.0, -1.0))
        x = b.op("Clip", x, low, high)
    b.output(b.op("Relu", x) if b.maybe() else x)


@branch
def minima_and_maxima(b: Build) -> None:
    """Nests of Min and Max, with a NaN about, and of one with itself."""
    x, y = b.input(2, 3, families=EDGES), b.input(2, 3, families=(*EDGES, "equal"))
    t = thresholds(b)
    form = int(b.rng.integers(5))
    z = (
        b.op("Min", b.op("Max", x, t), thresholds(b)) if form == 0 else b.op("Max", x, b.op("Min", x, y)) if form == 1
        else b.op("Max", b.op("Neg", x), b.op("Neg", y)) if form == 2 else b.op("Max", x, b.op("Neg", x)) if form == 3
        else b.op("Min", b.op("Add", x, t), b.op("Add", y, t))
    )  # fmt: skip
    b.output(around(b, z, 2))


@branch
def activations(b: Build) -> None:
    """The piecewise ones with odd parameters: alpha 0, 1, negative; HardSigmoid(alpha=0)."""
    x = around(b, b.input(2, 4, families=EDGES), 2)
    alpha = float(b.pick(0.0, 1.0, -1.0, 0.2, 1e-3))
    kind = str(
        b.pick("LeakyRelu", "PRelu", "HardSigmoid", "ThresholdedRelu", "Elu", "Selu", "Celu", "HardSwish", "Shrink")
    )
    if kind in ("ThresholdedRelu", "Celu", "Shrink", "HardSwish", "Selu"):
        x = b.cast(x, "float32")
    if kind == "PRelu":
        y = b.op("PRelu", x, alpha)
    elif kind == "HardSwish":
        y = b.op("HardSwish", x) if b.opset >= 14 else b.op("Mul", x, b.op("HardSigmoid", x, alpha=1 / 6, beta=0.5))
    elif kind == "Shrink":
        y = b.op("Shrink", x, lambd=0.5, bias=float(b.pick(0.0, 0.5)))
    elif kind == "HardSigmoid":
        y = b.op("HardSigmoid", b.op("Relu", x), alpha=alpha, beta=float(b.pick(0.5, 1.0, 0.2, -1.0)))
    elif kind == "Celu":
        y = b.op("Celu", x, alpha=alpha or 1.0)
    elif kind == "Selu":
        y = b.op("Selu", x)
    else:
        y = b.op(kind, x, alpha=alpha)
    b.output(b.op("Neg", b.op("Neg", y)), b.op("Relu", b.op("Relu", x)))


@branch
def rounding_symmetry(b: Build) -> None:
    """Floor(−x), Round(−x), −Ceil(x), Floor(x + n), Round at halves, Floor of Floor."""
    x = around(b, b.input(2, 5, families=(*MODERATE, "medium")), 2)
    kind = str(b.pick("Floor", "Ceil", "Round"))
    b.output(b.op("Neg", b.op(kind, b.op("Neg", x))), b.op(kind, b.op(kind, x)))
    shifted = b.op(kind, b.op("Add", x, float(b.pick(1.0, 3.0, 0.5)), exact=True))
    b.output(b.op("Sub", shifted, b.op("Floor", x)))


@branch
def floored_products(b: Build) -> None:
    """Floor, comparison or integer conversion behind running arithmetic that could be merged."""
    x = b.input(2, 5, families=MODERATE)
    y = b.op("Div", b.op("Mul", x, float(b.pick(10.0, 3.0))), float(b.pick(10.0, 7.0)))
    b.output(b.op(str(b.pick("Floor", "Ceil", "Round")), y) if b.maybe() else b.cast(y, "int32"))


@branch
def integer_arithmetic(b: Build) -> None:
    """Add, Mul, Div, Mod, Neg, Abs and Sign in integers that wrap and truncate."""
    kind = str(b.pick("int64", "int32"))
    wild = b.maybe()
    x = b.input(3, 4, dtype=kind, low=None if wild else -1000, high=None if wild else 1000)
    d = int(b.rng.choice([-7, -2, 2, 3, 7, 100, 1]))
    c = b.const(np.array(d), kind)
    form = int(b.rng.integers(6))
    y = (
        b.op("Div", b.op("Mul", x, c), c) if form == 0 else b.op("Mul", b.op("Div", x, c), c) if form == 1
        else b.op("Mod", b.op("Add", x, c), c, fmod=int(b.rng.integers(2))) if form == 2
        else b.op("Div", b.op("Div", x, c), b.const(np.array(3), kind)) if form == 3
        else b.op("Sub", b.op("Abs", x), b.op("Neg", b.op("Neg", x))) if form == 4
        else b.op("Div", b.op("Neg", x), c)
    )  # fmt: skip
    b.output(around(b, y, 2), b.op("Mod", b.op("Mod", x, c), b.const(np.array(5), kind)))


@branch
def integer_linear(b: Build) -> None:
    """Sums of multiples, MatMul in integers, distribution over wrapping values."""
    kind = str(b.pick("int64", "int32"))
    x, y = b.input(2, 3, dtype=kind), b.input(2, 3, dtype=kind)
    c = b.const(b.rng.integers(-5, 6, size=3), kind)
    b.output(b.op("Add", b.op("Mul", x, c), b.op("Mul", y, c)), b.op("Sub", b.op("Add", x, y), y))
    b.output(b.op("MatMul", x, b.const(b.rng.integers(-5, 6, size=(3, 2)), kind)))


@branch
def shifts(b: Build) -> None:
    """BitShift left and right again, on bytes that lose bits."""
    x = b.input(2, 4, dtype="uint8")
    n = b.const(np.array(int(b.rng.integers(0, 8))), "uint8")
    y = b.op("BitShift", b.op("BitShift", x, n, direction="LEFT"), n, direction="RIGHT")
    b.output(around(b, y, 2) if b.maybe() else b.cast(y, "float32"))


@branch
def float_remainders(b: Build) -> None:
    """fmod with negative operands and periods."""
    x = around(b, b.input(2, 4, families=MODERATE), 2)
    period = float(b.pick(3.0, 0.1, 360.0, -2.0))
    y = b.op("Mod", x, period, fmod=1)
    b.output(b.op("Mod", y, period, fmod=1), b.op("Neg", b.op("Mod", b.op("Neg", x), period, fmod=1)))


@branch
def table(b: Build) -> None:
    """Gather in a table of which every row counts, two lookups that could merge."""
    rows = int(b.pick(5, 50, 300))
    index = b.input("N", dtype="int64", low=-rows, high=rows - 1)
    b.size(1, 4, 7)
    left = b.op("Gather", b.weight(rows, 3), index)
    y = b.op("Add", left, b.op("Gather", b.weight(rows, 3), index))
    b.output(b.op("MatMul", y, b.weight(3, 2)) if b.maybe() else around(b, y, 2, 1.0))


@branch
def modular_table(b: Build) -> None:
    """A table behind Mod: the period decides."""
    n = int(b.pick(5, 10, 100))
    index = b.input("N", dtype="int64", low=0, high=10_000)
    b.size(3, 8)
    m = b.op(
        "Mod", b.op("Mod", index, b.const(np.array(n * int(b.pick(1, 2, 3)), np.int64))), b.const(np.array(n, np.int64))
    )
    b.output(b.op("Identity", b.op("Gather", b.weight(n, 2), m)), m)


@branch
def ties(b: Build) -> None:
    """TopK, ArgMax and ArgMin where elements are equal, behind monotone functions."""
    b.dtype = "float32" if b.dtype == "float16" else b.dtype
    x = b.input(3, 6, families=("ties", "zeros", "normal", "denormal", "integers"))
    y = b.op(str(b.pick("Relu", "Mul", "Neg", "Identity")), *([x, 2.0] if False else [x])) if b.maybe(0.6) else x
    if b.nodes and b.nodes[-1].op_type == "Mul":
        b.nodes[-1].input.append(b.operand(2.0))
    last = int(b.rng.integers(2))
    b.output(b.op(str(b.pick("ArgMax", "ArgMin")), exactly(b, y, 2), axis=1, keepdims=0, select_last_index=last))
    b.output(*b.ops("TopK", y, b.ints(int(b.rng.integers(1, 5))), count=2, axis=1, largest=int(b.rng.integers(2))))


@branch
def nonzero_places(b: Build) -> None:
    """NonZero, Compress and counts: shapes that values decide."""
    x = b.input(3, 4, families=("zeros", "ties", "integers", "denormal"))
    y = b.op("Relu", b.op("Relu", x))
    places = b.op("NonZero", y)
    b.output(b.op("Transpose", b.op("Transpose", places)), b.op("Shape", places))
    b.output(b.op("GatherND", y, b.op("Transpose", places)))


@branch
def dynamic_reshape(b: Build) -> None:
    """Shape → Slice → Concat → Reshape, and a transpose and its inverse within."""
    x = b.input("N", 3, 4)
    b.size(0, 1, 2, 5)
    sizes = b.op("Shape", x)
    head = b.op("Slice", sizes, b.ints(0), b.ints(1))
    y = b.op("Reshape", x, b.op("Concat", head, b.ints(12), axis=0))
    z = b.op("Add", b.op("MatMul", y, b.weight(12, 3)), b.weight(3))
    b.output(b.op("Reshape", z, b.op("Concat", head, b.ints(3, 1), axis=0)), b.op("Transpose", b.op("Transpose", y)))


@branch
def empty_and_scalar(b: Build) -> None:
    """Axes of size 0 and 1, scalars, and reductions over nothing."""
    x = b.input("N", 3)
    b.size(0, 1, 2)
    s = b.input()
    y = b.op("Add", b.op("Mul", x, s), b.op("Mul", x, b.weight(1)))
    b.output(b.op("Concat", y, x, axis=0), b.reduce("ReduceSum", y, [0]), b.op("Mul", b.op("Mul", s, 2.0), 3.0))


@branch
def broadcasts(b: Build) -> None:
    """Axes of size 1 that broadcast before or after a reduction or a concatenation."""
    x, y = b.input(1, 4, families=EDGES), b.input(3, 1, families=EDGES)
    z = b.op(str(b.pick("Add", "Mul", "Max", "Sub")), x, y)
    b.output(b.reduce(str(b.pick("ReduceSum", "ReduceMax", "ReduceMean")), z, [1]))
    b.output(b.op("Expand", b.op("Expand", x, b.ints(3, 4)), b.ints(2, 3, 4)), b.op("Relu", b.op("Relu", z)))


@branch
def loop(b: Build) -> None:
    """A Loop with a captured weight, a carried value and a scan output."""
    b.dtype = "float32" if b.dtype == "float16" else b.dtype
    x = b.op("Neg", b.op("Neg", b.input(3, families=MODERATE)))
    weight = b.weight(3)
    kind = KIND[b.dtype]
    infos = [helper.make_tensor_value_info(*v) for v in (
        ("it", TensorProto.INT64, []), ("go", TensorProto.BOOL, []), ("old", kind, [3]),
    )]  # fmt: skip
    half = numpy_helper.from_array(np.array(0.5, b.dtype), "half")
    nodes = [
        helper.make_node("Mul", ["old", "half"], ["a"]), helper.make_node("Add", ["a", weight], ["new"]),
        helper.make_node("Identity", ["go"], ["again"]), helper.make_node("Floor", ["new"], ["row"]),
    ]  # fmt: skip
    results = [helper.make_tensor_value_info(n, k, s) for n, k, s in (
        ("again", TensorProto.BOOL, []), ("new", kind, [3]), ("row", kind, [3]),
    )]  # fmt: skip
    graph = helper.make_graph(nodes, "body", infos, results, [half])
    trip = b.const(np.array(int(b.rng.integers(0, 5)), np.int64))
    carried, rows = b.ops("Loop", trip, b.const(np.array(True)), x, count=2, body=graph)
    b.output(b.op("Relu", b.op("Relu", carried)), rows, dtype=b.dtype)


@branch
def scan(b: Build) -> None:
    """A Scan that carries a sum over a captured scale."""
    b.dtype = "float32" if b.dtype == "float16" else b.dtype
    x = b.op("Identity", b.input(4, 3, families=MODERATE))
    scale, start = b.weight(3), b.op("Floor", b.op("Mul", b.const(np.array([0.1, 0.3, 0.7])), 10.0))
    kind = KIND[b.dtype]
    nodes = [
        helper.make_node("Mul", ["one", scale], ["m"]), helper.make_node("Add", ["sum", "m"], ["next"]),
        helper.make_node("Identity", ["next"], ["seen"]),
    ]  # fmt: skip
    infos = [helper.make_tensor_value_info(n, kind, [3]) for n in ("sum", "one", "next", "seen")]
    graph = helper.make_graph(nodes, "body", infos[:2], infos[2:])
    last, all_of_them = b.ops("Scan", start, x, count=2, body=graph, num_scan_inputs=1)
    b.output(b.op("Neg", b.op("Neg", last)), all_of_them, dtype=b.dtype)


@branch
def masks(b: Build) -> None:
    """Masks by Equal and Cast, additive −inf masks before a Softmax."""
    b.dtype = "float32" if b.dtype == "float16" else b.dtype
    x = b.input(2, 4, families=MODERATE)
    tokens = b.input(2, 4, dtype="int64", low=0, high=3)
    mask = b.op("Equal", tokens, b.const(np.array(0, np.int64)))
    if b.maybe():
        y = b.op("Softmax", b.op("Where", mask, float(b.pick(-np.inf, -1e4)), x), axis=-1)
    else:
        y = b.op("Mul", x, b.op("Sub", 1.0, b.cast(mask, b.dtype)))
    b.output(exactly(b, y, 2), b.cast(b.cast(mask, "int32"), "bool"))


@branch
def signs(b: Build) -> None:
    """Sign(x)·Abs(x), Abs(Neg x), −0 through everything, 1/x of it."""
    x = around(b, b.input(2, 4, families=("zeros", "normal", "denormal", "special")), 2)
    form = int(b.rng.integers(4))
    y = (
        b.op("Mul", b.op("Sign", x), b.op("Abs", x)) if form == 0 else b.op("Abs", b.op("Neg", x)) if form == 1
        else b.op("Add", x, 0.0) if form == 2 else b.op("Sub", 0.0, x)
    )  # fmt: skip
    b.output(b.op("Div", 1.0, y) if b.maybe() else y)


@branch
def monotone_reductions(b: Build) -> None:
    """Max of Relu and Relu of max, min of Neg, pooled maxima with padding."""
    x = b.input(1, 2, 4, 4, families=(*MODERATE, "special", "zeros"))
    y = b.op("Relu", x)
    b.output(b.reduce("ReduceMax", y, [2, 3]), b.reduce("ReduceMin", b.op("Neg", x), [2, 3]))
    if b.dtype == "float32":
        b.output(b.op("MaxPool", y, kernel_shape=[3, 3], pads=[1, 1, 1, 1]))


@branch
def slices(b: Build) -> None:
    """Slices whose ends and starts pass the axis, negative steps, slices of slices."""
    n = int(b.rng.integers(3, 9))
    x = b.input("N", n, families=EXTREME)
    b.size(0, 1, 2, 6)

    def cut(value: str) -> str:
        start, end, step = (
            int(b.rng.integers(-n - 3, n + 3)),
            int(b.rng.integers(-n - 3, n + 3)),
            int(b.pick(1, 2, -1, 3)),
        )
        return b.op("Slice", value, b.ints(start), b.ints(end), b.ints(int(b.rng.integers(2))), b.ints(step))

    b.output(cut(cut(x)), b.op("Concat", b.op("Slice", x, b.ints(0), b.ints(2), b.ints(1)),
             b.op("Slice", x, b.ints(2), b.ints(1000), b.ints(1)), axis=1))  # fmt: skip
