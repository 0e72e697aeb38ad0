"""Formulas whose intermediates stay in range while an equal one over the reals overflows, underflows or makes a NaN."""

from __future__ import annotations

import numpy as np

from attacker.build import EXTREME, Build
from attacker.carriers import around
from attacker.registry import motif

reach = motif("ranges")
HUGE = {"float16": 6e4, "float32": 3e38, "float64": 1.7e308}
TINY = {"float16": 1e-7, "float32": 1e-44, "float64": 1e-320}


def pair(b: Build) -> tuple[str, str]:
    """Two inputs of one shape over the whole range."""
    return b.input(2, 3, families=EXTREME), b.input(2, 3, families=EXTREME)


@reach
def common_factor(b: Build) -> None:
    """x·y + x·z, and with a minus, and with constants."""
    x, y = pair(b)
    z = b.input(2, 3, families=EXTREME) if b.maybe() else b.const(b.rng.standard_normal(3) * HUGE[b.dtype] / 8)
    b.output(b.op(str(b.pick("Add", "Sub")), b.op("Mul", x, y), b.op("Mul", x, z)))


@reach
def common_divisor(b: Build) -> None:
    """x/z + y/z."""
    x, y = pair(b)
    z = b.input(2, 3, families=EXTREME) if b.maybe() else b.const(b.rng.uniform(1, 9, size=3))
    b.output(b.op(str(b.pick("Add", "Sub")), b.op("Div", x, z), b.op("Div", y, z)))


@reach
def scaled_products(b: Build) -> None:
    """(x·a)·(y·c): which product is made first."""
    x, y = pair(b)
    big = float(np.sqrt(HUGE[b.dtype])) * 10
    left = b.op("Mul", x, float(b.pick(big, 1 / big, 0.1)))
    b.output(b.op("Mul", left, b.op("Mul", y, float(b.pick(big, 1 / big, 3.0)))))


@reach
def chained_products(b: Build) -> None:
    """(x·y)·z and its like, three running factors in several orders at once."""
    x, y = pair(b)
    z = b.input(2, 3, families=EXTREME)
    b.output(b.op("Mul", b.op("Mul", x, y), z), b.op("Mul", b.op("Mul", y, z), float(b.pick(0.5, 3.0))))


@reach
def chained_quotients(b: Build) -> None:
    """x/y/z, x/(y/z), (x/y)·z."""
    x, y = pair(b)
    z = b.input(2, 3, families=EXTREME) if b.maybe(0.6) else b.const(b.rng.uniform(0.5, 9, size=3))
    first = b.op("Div", x, y)
    form = int(b.rng.integers(3))
    b.output(
        b.op("Div", first, z)
        if form == 0
        else b.op("Mul", first, z)
        if form == 1
        else b.op("Div", x, b.op("Div", y, z))
    )


@reach
def division_by_constant(b: Build) -> None:
    """x/c where 1/c overflows, underflows or rounds."""
    x = around(b, b.input(2, 3, families=EXTREME), 2)
    c = float(b.pick(TINY[b.dtype], HUGE[b.dtype], 3.0, 49.0, 0.1))
    y = b.op("Div", x, c)
    b.output(b.op("Mul", y, float(b.pick(2.0, 0.5, 3.0))) if b.maybe() else y)


@reach
def roots(b: Build) -> None:
    """√x·√y, √(x·y), √x/√y."""
    x, y = (b.op("Abs", v) for v in pair(b))
    b.output(b.op(str(b.pick("Mul", "Div")), b.op("Sqrt", x), b.op("Sqrt", y)))
    if b.maybe():
        b.output(b.op("Sqrt", b.op("Mul", x, y)))


@reach
def exponentials(b: Build) -> None:
    """e^x·e^y, e^x/e^y, (e^x)^2."""
    x, y = pair(b)
    form = str(b.pick("Mul", "Div", "Pow"))
    e = b.op("Exp", x)
    b.output(b.op("Pow", e, 2.0) if form == "Pow" else b.op(form, e, b.op("Exp", y)))


@reach
def logarithms(b: Build) -> None:
    """log x + log y, log x − log y, 3·log x."""
    x, y = (b.op("Abs", v) for v in pair(b))
    form = str(b.pick("Add", "Sub", "Mul"))
    b.output(b.op("Mul", b.op("Log", x), 3.0) if form == "Mul" else b.op(form, b.op("Log", x), b.op("Log", y)))


@reach
def powers(b: Build) -> None:
    """Pow by small exponents, squares over x, cubes."""
    x = b.input(2, 3, families=EXTREME)
    power = float(b.pick(2.0, 3.0, 0.5, -1.0, 0.0, 1.0, -2.0))
    y = b.op("Pow", x, power)
    b.output(b.op("Div", y, x) if b.maybe() else b.op("Pow", y, float(b.pick(0.5, 2.0))) if b.maybe() else y)


@reach
def means(b: Build) -> None:
    """Sum then divide, divide then sum, and the mean as a node."""
    x = b.input(2, 5, families=EXTREME)
    form = int(b.rng.integers(3))
    if form == 0:
        b.output(b.op("Div", b.reduce("ReduceSum", x, [1]), 5.0))
    elif form == 1:
        b.output(b.reduce("ReduceSum", b.op("Div", x, 5.0), [1]))
    else:
        b.output(b.op("Mul", b.reduce("ReduceMean", x, [1]), 5.0))


@reach
def norms(b: Build) -> None:
    """L2 norms as a node and by hand, and x/‖x‖."""
    b.dtype = "float32" if b.dtype == "float16" else b.dtype
    x = b.input(2, 5, families=EXTREME)
    hand = b.op("Sqrt", b.reduce("ReduceSum", b.op("Mul", x, x), [1]))
    norm = hand if b.maybe() else b.reduce("ReduceL2", x, [1])
    b.output(b.op("Div", x, norm) if b.maybe() else b.op("Div", 1.0, norm))


@reach
def scaled_matrix_product(b: Build) -> None:
    """(x·A)·c and (x·c)·A, (x·A + bias)·c, with c that meets A's magnitude."""
    b.dtype = "float32" if b.dtype == "float16" else b.dtype
    n, m = int(b.rng.integers(2, 6)), int(b.rng.integers(2, 6))
    c = float(b.pick(1e-30, 1e30, 1e-3, 0.125))
    x, w = b.input(2, n, families=EXTREME), b.weight(n, m, scale=float(b.pick(1.0, 1 / c)))
    y = b.op("MatMul", b.op("Mul", x, c), w) if b.maybe() else b.op("Mul", b.op("MatMul", x, w), c)
    b.output(b.op("Add", y, b.weight(m)) if b.maybe() else y)


@reach
def attention_scale(b: Build) -> None:
    """q·kᵀ/√d with the scale on either side."""
    b.dtype = "float32" if b.dtype == "float16" else b.dtype
    q, k = b.input(3, 4, families=EXTREME), b.input(3, 4, families=EXTREME)
    scale = float(b.pick(0.5, 1e-20, 1e20))
    if b.maybe():
        y = b.op("MatMul", b.op("Mul", q, scale), b.op("Transpose", k))
    else:
        y = b.op("Mul", b.op("MatMul", q, b.op("Transpose", k)), scale)
    b.output(b.op("Softmax", y, axis=-1) if b.maybe() else y)


@reach
def sigmoids(b: Build) -> None:
    """e^x/(1+e^x), 1/(1+e^−x), x·sigmoid(x), and their logarithms."""
    x = b.input(2, 4, families=EXTREME)
    form = int(b.rng.integers(4))
    e = b.op("Exp", x if form == 0 else b.op("Neg", x))
    y = b.op("Div", e if form == 0 else 1.0, b.op("Add", e, 1.0))
    b.output(b.op("Mul", x, y) if form == 2 else b.op("Log", y) if form == 3 else y)


@reach
def softplus(b: Build) -> None:
    """log(1+e^x) in the plain and the guarded form."""
    x = b.input(2, 4, families=EXTREME)
    plain = b.op("Log", b.op("Add", b.op("Exp", x), 1.0))
    guarded = b.op("Add", b.op("Relu", x), b.op("Log", b.op("Add", b.op("Exp", b.op("Neg", b.op("Abs", x))), 1.0)))
    b.output(plain if b.maybe() else guarded)


@reach
def tanh_by_hand(b: Build) -> None:
    """(e^x − e^−x)/(e^x + e^−x), and 2·sigmoid(2x) − 1."""
    x = b.input(2, 4, families=EXTREME)
    e, f = b.op("Exp", x), b.op("Exp", b.op("Neg", x))
    hand = b.op("Div", b.op("Sub", e, f), b.op("Add", e, f))
    b.output(hand if b.maybe() else b.op("Sub", b.op("Mul", b.op("Sigmoid", b.op("Mul", x, 2.0)), 2.0), 1.0))


@reach
def vanishing(b: Build) -> None:
    """0·x, x − x, x/x, 0/x: not constants where x is infinite or NaN."""
    x = around(b, b.input(2, 3, families=EXTREME), 2)
    form = int(b.rng.integers(5))
    y = (
        b.op("Mul", x, 0.0) if form == 0 else b.op("Sub", x, x) if form == 1 else b.op("Div", x, x) if form == 2
        else b.op("Div", 0.0, x) if form == 3 else b.op("Pow", x, 0.0)
    )  # fmt: skip
    b.output(b.op("Add", y, b.input(3)) if b.maybe() else y)


@reach
def bounded(b: Build) -> None:
    """Clip, Min and Max with infinities and the largest finite after something that may overflow."""
    x = b.input(2, 3, families=EXTREME)
    y = b.op("Mul", x, x) if b.maybe() else b.op("Exp", x)
    bound = float(b.pick(HUGE[b.dtype], 1e3, np.inf))
    y = b.op("Clip", y, None, bound) if b.maybe() else b.op("Min", y, bound)
    b.output(b.op("Mul", b.op("Mul", y, 0.5), 0.25))


@reach
def polynomial(b: Build) -> None:
    """a·x² + b·x + c by powers and by Horner, x·(x·x)."""
    x = b.input(2, 3, families=EXTREME)
    square = b.op("Mul", x, x)
    if b.maybe():
        y = b.op("Add", b.op("Mul", square, float(b.pick(3.0, 1e-3))), b.op("Mul", x, float(b.pick(2.0, -1e3))))
    else:
        y = b.op("Mul", b.op("Add", b.op("Mul", x, 3.0), 2.0), x)
    b.output(b.op("Add", y, 1.0), b.op("Mul", square, x) if b.maybe() else square)


@motif("ranges", single=True)
def huge_batch_normalisation(b: Build) -> None:
    """A convolution and a normalisation whose weights meet at the end of the range."""
    big = float(b.pick(1e30, 1e-30, 1e19))
    x = b.input(1, 2, 4, 4, families=EXTREME)
    y = b.op("Conv", x, b.weight(2, 2, 3, 3, scale=big), kernel_shape=[3, 3])
    scale = b.weight(2, scale=float(b.pick(1 / big, big)))
    y = b.op("BatchNormalization", y, scale, b.weight(2), b.weight(2), b.const(np.array([1.0, 0.5])))
    b.output(b.op("Relu", y))


@reach
def reciprocals(b: Build) -> None:
    """1/(x/y), x·(1/y), 1/√x, 1/(1/x + 1/y)."""
    x, y = pair(b)
    form = int(b.rng.integers(4))
    r = b.op("Reciprocal", y)
    b.output(
        b.op("Reciprocal", b.op("Div", x, y)) if form == 0 else b.op("Mul", x, r) if form == 1
        else b.op("Reciprocal", b.op("Sqrt", b.op("Abs", x))) if form == 2
        else b.op("Reciprocal", b.op("Add", b.op("Reciprocal", x), r))
    )  # fmt: skip


@reach
def sums_in_order(b: Build) -> None:
    """(x + y) + z, x − (y − z), x + x + x: what overflows or cancels depends on the order."""
    x, y = pair(b)
    z = b.input(2, 3, families=EXTREME)
    form = int(b.rng.integers(4))
    if form == 0:
        b.output(b.op("Add", b.op("Add", x, y), z), b.op("Add", y, z))
    elif form == 1:
        b.output(b.op("Sub", x, b.op("Sub", y, z)))
    elif form == 2:
        b.output(b.op("Sub", b.op("Add", b.op("Add", x, x), x), y))
    else:
        b.output(b.op("Sum", x, y, z, b.weight(3)))
