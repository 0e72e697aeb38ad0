"""Constant subgraphs that must be folded in their own types, node by node, as the runtime would compute them."""

from __future__ import annotations

import numpy as np

from attacker.build import Build
from attacker.carriers import around, consume
from attacker.registry import motif

fold = motif("folding")
STEP = (0.1, 0.2, 0.3, 0.7, 1 / 3, 0.01, 1.1, 1e-3, 0.05, 6.1, 1 / 7)


def shape_of(b: Build) -> tuple[int, ...]:
    """A vector or a matrix, small."""
    return tuple(int(n) for n in b.rng.integers(2, 7, size=int(b.rng.integers(1, 3))))


def grid(b: Build, shape: tuple[int, ...], step: float) -> np.ndarray:
    """Multiples of a step that the type does not hold exactly: what stands beside a rounding's threshold."""
    return b.rng.integers(-40, 41, size=shape) * step


def rounded(b: Build, c: str) -> str:
    """A discontinuous function of a constant, as floats."""
    kind = str(b.pick("Floor", "Ceil", "Round", "Sign", "int64", "int32", "Greater", "Equal", "IsInf"))
    if kind in ("Floor", "Ceil", "Round"):
        return b.op(kind, c)
    if kind == "Sign":
        return b.op("Sign", b.op("Sub", c, b.op("Round", c)))
    if kind in ("Greater", "Equal"):
        return b.cast(b.op(kind, c, b.op("Round", c)), b.dtype)
    if kind == "IsInf":
        if b.dtype == "float16":
            return b.op("Floor", c)
        return b.op("Where", b.op("IsInf", b.op("Div", 1.0, b.op("Sub", c, b.op("Round", c)))), 1.0, c)
    return b.cast(b.cast(c, kind), b.dtype)


@fold
def rounded_product(b: Build) -> None:
    """Floor(w·10) and the like before a consumer."""
    shape, step = shape_of(b), float(b.pick(*STEP))
    consume(b, rounded(b, b.op("Mul", b.const(grid(b, shape, step)), float(1 / step))), shape)


@fold
def rounded_quotient(b: Build) -> None:
    """Floor(w/0.1): a division that a multiplication by the reciprocal gets wrong."""
    shape, step = shape_of(b), float(b.pick(*STEP))
    consume(b, rounded(b, b.op("Div", b.const(grid(b, shape, step)), float(step))), shape)


@fold
def rounded_sum(b: Build) -> None:
    """Floor of a sum of many constants, whose order and precision decide."""
    shape = shape_of(b)
    total = b.const(grid(b, shape, 0.1))
    for _ in range(int(b.rng.integers(2, 7))):
        total = b.op("Add", total, float(b.pick(0.1, 0.2, 0.7, 1e-3)))
    consume(b, rounded(b, b.op("Mul", total, 10.0)), shape)


@fold
def fake_quantised_weights(b: Build) -> None:
    """Mul(Clip(Round(Div(w, s))), s): quantisation-aware training's weights, per tensor or per channel."""
    n, m = (int(v) for v in b.rng.integers(2, 6, size=2))
    step = float(b.pick(0.1, 0.05, 0.3))
    w = b.const((b.rng.integers(-9, 9, size=(n, m)) + 0.5) * step)
    scale = b.const(np.full(m, step)) if b.maybe() else step
    q = b.op("Round", b.op("Div", w, scale))
    if b.maybe() and b.dtype != "float16":
        q = b.op("Clip", q, -8.0, 7.0)
    consume(b, b.op("Mul", q, scale), (n, m))


@fold
def cast_and_back(b: Build) -> None:
    """A constant through a narrower type, or an integer one, and back."""
    shape = shape_of(b)
    values = b.rng.uniform(-100, 100, size=shape)
    narrow = str(b.pick("float16", "bfloat16", "int8", "int32", "int64", "bool", "float64"))
    c = b.op("Mul", b.const(values), float(b.pick(0.1, 1.0, 1 / 3)))
    consume(b, b.cast(b.cast(c, narrow), b.dtype), shape)


@fold
def compared_constants(b: Build) -> None:
    """Comparisons of computed constants choose what runs."""
    shape, step = shape_of(b), float(b.pick(0.1, 0.7, 0.3))
    w = grid(b, shape, step)
    left = b.op("Mul", b.const(w), 3.0)
    right = b.const(np.asarray(w * 3, np.float64))
    mask = b.op(str(b.pick("Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal")), left, right)
    x = b.input(*shape)
    b.output(around(b, b.op("Where", mask, x, b.op("Neg", x)), len(shape), 1.0))


@fold
def chosen_rows(b: Build) -> None:
    """ArgMax, ArgMin or TopK of computed constants: ties that another precision breaks."""
    n = int(b.rng.integers(3, 9))
    base = b.rng.integers(1, 4, size=n) * 0.1
    c = b.op("Add", b.op("Mul", b.const(base), 3.0), b.const(0.3 - base * 3 + 0.0))
    x = b.input(n, 3)
    if b.maybe():
        index = b.op(str(b.pick("ArgMax", "ArgMin")), c, axis=0, keepdims=1, select_last_index=int(b.rng.integers(2)))
    else:
        index = b.ops("TopK", c, b.ints(2), count=2, axis=0, largest=int(b.rng.integers(2)))[1]
    b.output(around(b, b.op("Gather", x, index, axis=0), 2, 1.0))


@fold
def integer_remainders(b: Build) -> None:
    """Mod, fmod and Div of constants with negative operands."""
    kind = str(b.pick("int64", "int32", b.dtype))
    n = int(b.rng.integers(2, 7))
    a = b.rng.integers(-30, 31, size=n)
    d = b.rng.choice([-7, -3, -2, 2, 3, 5, 7], size=n)
    if kind in ("int64", "int32"):
        c = b.op("Mod", b.const(a, kind), b.const(d, kind), fmod=int(b.rng.integers(2)))
        c = b.op("Add", c, b.op("Div", b.const(a, kind), b.const(d, kind)))
        consume(b, b.cast(c, b.dtype), (n,))
    else:
        c = b.op("Mod", b.op("Mul", b.const(a * 1.0), 0.1), b.const(d * 0.1), fmod=1)
        consume(b, c, (n,))


@fold
def integer_overflow(b: Build) -> None:
    """Sums and products of integer constants that wrap round."""
    kind = str(b.pick("int32", "int64"))
    bound = np.iinfo(kind).max
    n = int(b.rng.integers(2, 6))
    a = b.const(b.rng.integers(bound // 2, bound, size=n), kind)
    c = b.op(str(b.pick("Add", "Mul")), a, b.const(b.rng.integers(bound // 2, bound, size=n), kind))
    if b.maybe():
        c = b.op("Div", c, b.const(np.array(7), kind))
    if b.maybe():
        c = b.cast(c, str(b.pick("int32", "int64", "uint8", "int8")))
        c = b.cast(c, kind)
    x = b.input(3, n, dtype=kind)
    b.output(around(b, b.op("Add", x, b.op("Sub", c, b.op("Abs", a))), 2, 1.0))


@fold
def unsigned_wrap(b: Build) -> None:
    """uint8 shifts and differences."""
    n = int(b.rng.integers(2, 6))
    a, d = b.rng.integers(0, 256, size=(2, n))
    shifted = b.op("BitShift", b.const(a, "uint8"), b.const(d % 8, "uint8"), direction=str(b.pick("LEFT", "RIGHT")))
    c = b.op("Div", shifted, b.const(d % 9 + 1, "uint8")) if b.maybe() else shifted
    consume(b, b.cast(c, b.dtype), (n,))


@fold
def computed_shape(b: Build) -> None:
    """A Reshape whose sizes come from rounded float arithmetic on constants."""
    n = int(b.rng.integers(2, 9))
    step = float(b.pick(0.1, 0.7, 0.3))
    size = b.op(str(b.pick("Round", "Ceil", "Floor")), b.op("Div", b.const(np.array([n * step])), step))
    shape = b.op("Concat", b.cast(size, "int64"), b.ints(-1), axis=0)
    x = b.input(*([n * (n - 1) * (n + 1)] if n > 2 else [n * 3]))
    y = b.op("Reshape", x, shape)
    b.output(b.op("Transpose", b.op("Transpose", y)), b.op("Shape", y))


@fold
def computed_index(b: Build) -> None:
    """Gather at rounded products."""
    n, k = 8, int(b.rng.integers(2, 6))
    step = float(b.pick(0.1, 0.7, 0.3))
    w = b.const(b.rng.integers(0, n, size=k) * step)
    index = b.cast(b.op(str(b.pick("Floor", "Identity")), b.op("Div", w, step)), str(b.pick("int64", "int32")))
    x = b.input(n, 2)
    b.output(around(b, b.op("Gather", x, index), 2, 1.0))


@fold
def cumulated(b: Build) -> None:
    """CumSum of tenths, then a rounding."""
    n = int(b.rng.integers(4, 20))
    if b.dtype == "float16":
        b.dtype = "float32"
    c = b.op("CumSum", b.const(np.full(n, float(b.pick(0.1, 0.3, 0.7)))), b.const(np.array(0, np.int64)),
             exclusive=int(b.rng.integers(2)), reverse=int(b.rng.integers(2)))  # fmt: skip
    consume(b, rounded(b, b.op("Mul", c, 10.0)) if b.maybe(0.7) else c, (n,))


@fold
def ranges(b: Build) -> None:
    """Range by a step that the type does not hold: how many elements, and which."""
    if b.dtype == "float16":
        b.dtype = "float32"
    step = float(b.pick(0.1, 0.2, 0.3, 0.7))
    count = int(b.rng.integers(3, 12))
    c = b.op("Range", 0.0, float(count * step), step)
    x = b.input(1)
    y = b.op("Add", b.op("Mul", c, b.weight(1)), x)
    b.output(b.op("Identity", y), b.op("Shape", c))
    b.output(b.op("Floor", b.op("Mul", c, 10.0)))


@fold
def one_hot(b: Build) -> None:
    """OneHot at computed indices, multiplied in."""
    k, depth = int(b.rng.integers(2, 6)), 6
    step = float(b.pick(0.1, 0.7))
    index = b.cast(b.op("Div", b.const(b.rng.integers(0, depth, size=k) * step), step), "int64")
    values = b.const(np.array([0.0, 1.0]), "float32")
    c = b.cast(b.op("OneHot", index, b.const(np.array(depth, np.int64)), values, axis=-1), b.dtype)
    x = b.input(2, k)
    b.output(around(b, b.op("Add", b.op("MatMul", x, c), b.weight(depth)), 2))


@fold
def shared_constant(b: Build) -> None:
    """One weight read by a rounding, by a running product and by another fold."""
    n = int(b.rng.integers(2, 6))
    w = b.const(grid(b, (n, n), 0.1))
    floor = b.op("Floor", b.op("Mul", w, 10.0))
    x = b.input(2, n)
    y = b.op("Add", b.op("MatMul", x, w), b.op("MatMul", x, floor))
    b.output(y, b.op("MatMul", x, b.op("Transpose", floor)))


@fold
def denormal_constants(b: Build) -> None:
    """Constants that pass below the smallest normal number and come back."""
    n = int(b.rng.integers(2, 6))
    factors = {"float16": (1e-4, 1e4, 1e-2), "float32": (1e-38, 1e38, 1e-5), "float64": (1e-300, 1e300, 1e-5)}
    down, up, tiny = factors[b.dtype]
    c = b.op("Mul", b.op("Mul", b.op("Mul", b.weight(n), tiny), down), up)
    consume(b, b.op("Div", c, tiny) if b.maybe() else c, (n,))


@fold
def special_constants(b: Build) -> None:
    """NaN and infinities through Min, Max, Clip, Sign, Round and comparisons while folding."""
    values = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.5, -2.5, 1e-45])
    c = b.const(values)
    kinds = ("Relu", "Abs", "Neg", "Sign", "Round", "Floor", "Max", "Min", "Equal", "IsNaN", "Sqrt", "Exp")
    kind = str(b.pick(*kinds))
    forms = {
        "Max": lambda: b.op("Max", c, b.const(np.roll(values, 1))),
        "Min": lambda: b.op("Min", c, b.const(np.roll(values, 1))),
        "Equal": lambda: b.cast(b.op("Equal", c, c), b.dtype),
        "IsNaN": lambda: b.op("Where", b.op("IsNaN", c), -1.0, c),
    }
    consume(b, forms.get(kind, lambda: b.op(kind, c))(), (8,))


@fold
def negative_zero(b: Build) -> None:
    """The sign of a zero that only a reciprocal shows."""
    zero = b.const(np.array([-0.0, 0.0, -1e-3]))
    kind = str(b.pick("Neg", "Mul", "Add", "Round", "Ceil", "Max", "Relu", "Abs"))
    if kind == "Mul":
        zero = b.op("Mul", zero, float(b.pick(-1.0, 0.0, 2.0)))
    elif kind in ("Add", "Max"):
        other = b.const(np.array([0.0, -0.0, -0.0]))
        zero = b.op("Add" if kind == "Add" else str(b.pick("Max", "Min")), zero, other)
    else:
        zero = b.op(kind, zero)
    x = b.input(2, 3)
    b.output(b.op("Max", b.op("Neg", b.op("Neg", x)), b.op("Div", 1.0, zero)), zero)


@fold
def transcendental_step(b: Build) -> None:
    """A rounding just where a kernel's last bit decides: Floor(Exp(Log(n)))."""
    n = int(b.rng.integers(3, 8))
    k = b.rng.integers(2, 60, size=n).astype(np.float64)
    kind = str(b.pick("Exp", "Log", "Sqrt", "Pow", "Tanh", "Sigmoid", "Erf", "Reciprocal", "Sin", "Softplus"))
    if kind == "Exp":
        c = b.op("Exp", b.const(np.log(k)))
    elif kind == "Log":
        c = b.op("Mul", b.op("Log", b.const(k)), float(1 / np.log(2.0)))
    elif kind == "Sqrt":
        c = b.op("Mul", b.op("Sqrt", b.const(k)), b.op("Sqrt", b.const(k)))
    elif kind == "Pow":
        c = b.op("Pow", b.const(k ** (1 / 3)), 3.0)
    elif kind == "Reciprocal":
        c = b.op("Mul", b.op("Reciprocal", b.const(k)), b.const(k))
    else:
        c = b.op("Mul", b.op(kind, b.const(k / 20)), 1e6 if b.dtype != "float16" else 1e3)
    consume(b, rounded(b, c), (n,))


@fold
def reduced_constants(b: Build) -> None:
    """Sums, means and norms of tenths, compared or rounded afterwards."""
    n, m = int(b.rng.integers(3, 12)), int(b.rng.integers(2, 5))
    kind = str(b.pick("ReduceSum", "ReduceMean", "ReduceL2", "ReduceSumSquare", "ReduceProd", "ReduceLogSumExp"))
    if b.dtype == "float16":
        b.dtype = "float32"
    c = b.reduce(kind, b.const(np.full((n, m), 0.1) * b.rng.integers(1, 4, size=(n, m))), [0], keepdims=0)
    consume(b, rounded(b, b.op("Mul", c, 10.0)), (m,))


@fold
def constant_product(b: Build) -> None:
    """MatMul, Gemm or Einsum of constants, then a rounding."""
    n, k, m = (int(v) for v in b.rng.integers(2, 9, size=3))
    if b.dtype == "float16":
        b.dtype = "float32"
    left, right = b.const(grid(b, (n, k), 0.1)), b.const(grid(b, (k, m), 0.1))
    c = b.op("MatMul", left, right) if b.maybe() else b.op("Gemm", left, right, alpha=float(b.pick(1.0, 10.0, 0.1)))
    consume(b, rounded(b, b.op("Mul", c, 100.0)), (n, m))


@fold
def normalised_constants(b: Build) -> None:
    """Softmax, LayerNormalization or L2 norms of constants, and the place of the largest."""
    n = int(b.rng.integers(3, 7))
    if b.dtype == "float16":
        b.dtype = "float32"
    c = b.op("Softmax", b.const(grid(b, (2, n), 0.1)), axis=-1)
    if b.opset >= 17 and b.maybe():
        c = b.op("LayerNormalization", c, b.const(np.ones(n)), b.const(np.zeros(n)))
    consume(b, rounded(b, b.op("Mul", c, 1000.0)), (2, n))


@fold
def half_arithmetic(b: Build) -> None:
    """Arithmetic in float16 that rounds at each step, then up."""
    shape = shape_of(b)
    c = b.const(b.rng.standard_normal(shape), "float16")
    for _ in range(int(b.rng.integers(1, 5))):
        kind = str(b.pick("Mul", "Add", "Div", "Sub"))
        c = b.op(kind, c, b.const(b.rng.uniform(0.3, 3, size=shape), "float16"))
    b.dtype = "float32"
    consume(b, b.cast(c, "float32"), shape)


@fold
def double_rounding(b: Build) -> None:
    """float64 constants down to float32 (and float16), where rounding twice differs from once."""
    shape = shape_of(b)
    c = b.op("Mul", b.const(grid(b, shape, 0.1), "float64"), b.const(10.0, "float64"))
    b.dtype = "float32"
    if b.maybe():
        halves = 1 + (b.rng.integers(0, 64, size=shape) * 2 + 1) / 2048 + 2.0**-30
        c = b.op("Mul", b.const(halves, "float64"), b.const(np.array(1.0), "float64"))
        c = b.cast(b.cast(c, "float32"), "float16")
        consume(b, b.cast(c, "float32"), shape)
    else:
        consume(b, b.op("Floor", b.cast(c, "float32")) if b.maybe() else b.cast(b.op("Floor", c), "float32"), shape)


@fold
def quantised_constants(b: Build) -> None:
    """QuantizeLinear and DequantizeLinear of weights, ties included."""
    b.dtype = "float32"
    shape = tuple(int(n) for n in b.rng.integers(2, 6, size=2))
    step = float(b.pick(0.1, 0.05, 0.25))
    w = b.const((b.rng.integers(-60, 60, size=shape) + 0.5) * step)
    kind = str(b.pick("int8", "uint8"))
    zero = b.const(np.array(int(b.rng.integers(0, 5))), kind)
    consume(b, b.op("DequantizeLinear", b.op("QuantizeLinear", w, step, zero), step, zero), shape)


@fold
def made_constants(b: Build) -> None:
    """ConstantOfShape, Expand, Tile, EyeLike, Trilu and NonZero as makers of constants."""
    n = int(b.rng.integers(2, 6))
    kind = str(b.pick("Expand", "Tile", "EyeLike", "Trilu", "NonZero", "ScatterND", "Pad", "Where"))
    w = b.const(grid(b, (n, n), 0.1))
    if kind == "Expand":
        c = b.op("Expand", b.op("Floor", b.op("Mul", b.const(grid(b, (n,), 0.1)), 10.0)), b.ints(n, n))
    elif kind == "Tile":
        c = b.op("Tile", b.op("Round", b.op("Mul", b.const(grid(b, (1, n), 0.1)), 5.0)), b.ints(n, 1))
    elif kind == "EyeLike":
        c = b.op("Mul", b.cast(b.op("EyeLike", b.cast(w, "float32"), k=1), b.dtype), w)
    elif kind == "Trilu":
        c = b.op("Floor", b.op("Mul", b.op("Trilu", w, upper=0), 10.0))
    elif kind == "NonZero":
        places = b.op("NonZero", b.cast(b.op("Sub", b.op("Mul", w, 10.0), b.op("Round", b.op("Mul", w, 10.0))), "bool"))
        c = b.op("Add", w, b.reduce("ReduceSum", b.op("Reshape", b.cast(places, b.dtype), b.ints(1, -1)), [1]))
    elif kind == "ScatterND":
        c = b.op("ScatterND", w, b.const(np.array([[0], [1]], np.int64)), b.op("Floor", b.const(grid(b, (2, n), 0.7))))
    elif kind == "Pad":
        c = b.op("Slice", b.op("Pad", w, b.ints(1, 1, 1, 1), 0.1), b.ints(1, 1), b.ints(n + 1, n + 1))
    else:
        c = b.op("Where", b.op("Less", b.op("Mul", w, 10.0), b.op("Floor", b.op("Mul", w, 10.0))), w, b.op("Neg", w))
    consume(b, c, (n, n))


@motif("folding", single=True)
def rounded_convolution(b: Build) -> None:
    """A rounded, fake-quantised or cast weight of a convolution, with a batch normalisation behind it."""
    c, o, k = (int(v) for v in b.rng.integers(1, 4, size=3))
    w = b.const((b.rng.integers(-9, 9, size=(o, c, k, k)) + 0.5) * 0.1)
    w = b.op("Mul", b.op("Round", b.op("Div", w, 0.1)), 0.1) if b.maybe() else rounded(b, b.op("Mul", w, 10.0))
    y = b.op("Conv", b.input("N", c, 5, 5), w, kernel_shape=[k, k])
    b.size(1, 2)
    if b.maybe(0.7):
        y = b.op("BatchNormalization", y, b.weight(o), b.weight(o), b.weight(o), b.const(b.rng.uniform(0.5, 2, size=o)))
    b.output(b.op("Relu", y))
