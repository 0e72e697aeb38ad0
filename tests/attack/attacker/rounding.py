"""Rounding that a model does on purpose, or that its formula was chosen to avoid: none may be taken away or made worse.

Steps that are exact functions of what they read (a split, a compensation, a magic number) are marked ``exact``: the
oracle grants them no noise, so that a result which keeps only their meaning over the reals is wrong.
"""

from __future__ import annotations

import numpy as np

from attacker.build import MODERATE, WIDE, Build
from attacker.carriers import around, exactly
from attacker.registry import motif

trick = motif("rounding")
SPLIT = {"float16": 65.0, "float32": 4097.0, "float64": 134217729.0}
MAGIC = {"float16": 1536.0, "float32": 12582912.0, "float64": 6755399441055744.0}
MANTISSA = {"float16": 10, "float32": 23, "float64": 52}
TIDY = (*WIDE,)


def split(b: Build, x: str) -> tuple[str, str]:
    """Veltkamp's split into a high and a low part."""
    shift = int(b.rng.integers(3, MANTISSA[b.dtype] - 2))
    factor = SPLIT[b.dtype] if b.maybe() else float(2**shift + 1)
    a = b.op("Mul", x, factor, exact=True)
    high = b.op("Sub", a, b.op("Sub", a, x, exact=True), exact=True)
    return high, b.op("Sub", x, high, exact=True)


def two_sum(b: Build, x: str, y: str) -> tuple[str, str]:
    """Knuth's sum and its error."""
    s = b.op("Add", x, y, exact=True)
    t = b.op("Sub", s, x, exact=True)
    left = b.op("Sub", x, b.op("Sub", s, t, exact=True), exact=True)
    return s, b.op("Add", left, b.op("Sub", y, t, exact=True), exact=True)


@trick
def veltkamp(b: Build) -> None:
    """hi = a − (a − x), lo = x − hi."""
    x = around(b, b.input(3, 4, families=TIDY), 2)
    high, low = split(b, x)
    b.output(*(around(b, v, 2) for v in (high, low)))


@trick
def twosum(b: Build) -> None:
    """The error of a sum, plain or fast."""
    x, y = b.input(2, 3, families=TIDY), b.input(2, 3, families=TIDY) if b.maybe() else b.weight(3)
    if b.maybe():
        s, e = two_sum(b, x, y)
    else:
        s = b.op("Add", x, y, exact=True)
        e = b.op("Sub", y, b.op("Sub", s, x, exact=True), exact=True)
    b.output(around(b, s, 2), around(b, e, 2))


@trick
def kahan(b: Build) -> None:
    """A compensated sum over columns, unrolled."""
    n = int(b.rng.integers(3, 6))
    x = b.input(3, n, families=(*MODERATE, "medium", "cancel"))
    columns = b.ops("Split", x, b.const(np.ones(n, np.int64)), count=n, axis=1)
    total, lost = columns[0], b.op("Sub", columns[0], columns[0], exact=True)
    for column in columns[1:]:
        term = b.op("Sub", column, lost, exact=True)
        new = b.op("Add", total, term, exact=True)
        lost = b.op("Sub", b.op("Sub", new, total, exact=True), term, exact=True)
        total = new
    b.output(around(b, total, 2), lost)


@trick
def dekker(b: Build) -> None:
    """The error of a product."""
    x, y = b.input(2, 3, families=(*MODERATE, "medium")), b.input(2, 3, families=(*MODERATE, "medium"))
    (xh, xl), (yh, yl) = split(b, around(b, x, 2)), split(b, y)
    p = b.op("Mul", x, y, exact=True)
    e = b.op("Sub", b.op("Mul", xh, yh, exact=True), p, exact=True)
    for left, right in ((xh, yl), (xl, yh), (xl, yl)):
        e = b.op("Add", e, b.op("Mul", left, right, exact=True), exact=True)
    b.output(around(b, e, 2), p)


@trick
def magic_number(b: Build) -> None:
    """(x + M) − M rounds to integers, in each spelling."""
    x = around(b, b.input(3, 4, families=MODERATE), 2)
    magic = float(MAGIC[b.dtype] * b.pick(1.0, 1.0, 0.5, 0.25, 2.0))
    value: object = np.full(4, magic) if b.maybe(0.3) else magic
    spelling = int(b.rng.integers(5))
    if b.maybe(0.3):
        x = b.op("Mul", x, float(b.pick(2.0, 0.5, 8.0)), exact=True)
    if spelling == 0:
        y = b.op("Sub", b.op("Add", x, value, exact=True), value, exact=True)
    elif spelling == 1:
        y = b.op("Add", b.op("Add", value, x, exact=True), -np.asarray(value), exact=True)
    elif spelling == 2:
        y = b.op("Add", b.op("Sub", x, value, exact=True), value, exact=True)
    elif spelling == 3:
        y = b.op("Sub", value, b.op("Sub", value, x, exact=True), exact=True)
    else:
        shared = b.const(np.asarray(value))
        y = b.op("Sub", b.op("Sub", x, b.op("Neg", shared), exact=True), shared, exact=True)
    b.output(around(b, y, 2))


@trick
def cast_down_and_up(b: Build) -> None:
    """Activations through a narrower type."""
    narrow = {"float16": ("float16",), "float32": ("float16", "bfloat16", "float16"), "float64": ("float32", "float16")}
    x = around(b, b.input(2, 3, families=(*MODERATE, "medium")), 2)
    y = b.cast(b.cast(x, str(b.pick(*narrow[b.dtype])), exact=True), b.dtype, exact=True)
    if b.maybe(0.4):
        y = b.op("Sub", x, y, exact=True)
    b.output(around(b, y, 2))


@trick
def cast_to_integer_and_back(b: Build) -> None:
    """Truncation by a Cast to an integer type."""
    x = around(b, b.input(2, 3, families=MODERATE), 2)
    y = b.cast(b.cast(x, str(b.pick("int32", "int64"))), b.dtype)
    b.output(around(b, b.op("Sub", x, y, exact=True) if b.maybe() else y, 2))


@trick
def fake_quantised_activations(b: Build) -> None:
    """Round(x/s)·s of what runs, with a clip."""
    x = b.input(2, 4, families=MODERATE)
    step = float(b.pick(0.1, 0.05, 0.25, 3.0))
    q = b.op("Round", b.op("Mul", x, 1 / step) if b.maybe() else b.op("Div", x, step))
    if b.dtype != "float16":
        q = b.op("Clip", q, -8.0, 7.0)
    y = b.op("Mul", q, step)
    b.output(around(b, y, 2), b.op("Sub", y, x))


@motif("rounding", single=True)
def quantise_and_back(b: Build) -> None:
    """QuantizeLinear and DequantizeLinear around a layer: saturation and ties."""
    x = b.input(2, 4, families=(*MODERATE, "medium"))
    step = float(b.pick(0.1, 0.05, 0.25))
    zero = b.const(np.array(int(b.rng.integers(0, 9))), str(b.pick("uint8", "int8")))
    y = b.op("DequantizeLinear", b.op("QuantizeLinear", x, step, zero), step, zero, exact=True)
    if b.maybe():
        y = b.op("DequantizeLinear", b.op("QuantizeLinear", y, step, zero), step, zero, exact=True)
    b.output(b.op("Add", b.op("MatMul", around(b, y, 2), b.weight(4, 3)), b.weight(3)), y)


@trick
def log1p_and_expm1(b: Build) -> None:
    """Kahan's corrections of log(1+x) and e^x − 1."""
    x = b.input(2, 3, families=("unit", "medium", "normal"))
    if b.maybe():
        u = b.op("Add", x, 1.0, exact=True)
        d = b.op("Sub", u, 1.0, exact=True)
        y = b.op("Where", b.op("Equal", d, 0.0), x, b.op("Div", b.op("Mul", b.op("Log", u), x), d))
    else:
        u = b.op("Exp", x)
        y = b.op("Div", b.op("Mul", b.op("Sub", u, 1.0), x), b.op("Log", u))
    b.output(around(b, y, 2))


@trick
def hypot(b: Build) -> None:
    """A root of squares, scaled so that nothing overflows."""
    x, y = b.input(2, 3), b.input(2, 3)
    ax, ay = b.op("Abs", x), b.op("Abs", y)
    m = b.op("Max", ax, ay)
    parts = [b.op("Mul", r, r) for r in (b.op("Div", ax, m), b.op("Div", ay, m))]
    b.output(around(b, b.op("Mul", m, b.op("Sqrt", b.op("Add", *parts))), 2))


@trick
def log_sum_exp(b: Build) -> None:
    """With the maximum taken out, and beside it without."""
    x = around(b, b.input(2, 5), 2)
    m = b.reduce("ReduceMax", x, [1])
    s = b.reduce("ReduceSum", b.op("Exp", b.op("Sub", x, m)), [1])
    b.output(b.op("Add", b.op("Log", s), m))
    if b.maybe():
        b.output(b.op("Log", b.reduce("ReduceSum", b.op("Exp", x), [1])))


@trick
def softmax_by_hand(b: Build) -> None:
    """Softmax with a temperature and a shift, decomposed."""
    x = b.input(2, 5)
    z = b.op("Div", x, float(b.pick(0.1, 2.0, 1e-2)))
    if b.maybe(0.7):
        z = b.op("Sub", z, b.reduce("ReduceMax", z, [1]))
    e = b.op("Exp", z)
    b.output(around(b, b.op("Div", e, b.reduce("ReduceSum", e, [1])), 2))


@trick
def stable_sigmoid(b: Build) -> None:
    """Both halves by Where, and the plain one."""
    x = b.input(2, 4)
    e = b.op("Exp", b.op("Neg", b.op("Abs", x)))
    one = b.op("Add", e, 1.0)
    y = b.op("Where", b.op("GreaterOrEqual", x, 0.0), b.op("Div", 1.0, one), b.op("Div", e, one))
    plain = b.op("Div", 1.0, b.op("Add", b.op("Exp", b.op("Neg", x)), 1.0))
    b.output(around(b, y, 2), b.op("Log", plain) if b.maybe() else plain)


@trick
def variances(b: Build) -> None:
    """Two-pass and one-pass, with an offset."""
    x = b.input(2, 6, families=("offset", "normal", "medium"))
    mean = b.reduce("ReduceMean", x, [1])
    d = b.op("Sub", x, mean)
    two = b.reduce("ReduceMean", b.op("Mul", d, d), [1])
    square = b.op("Mul", x, x)
    one = b.op("Sub", b.reduce("ReduceMean", square, [1]), b.op("Mul", mean, mean))
    b.output(two if b.maybe() else b.op("Div", d, b.op("Sqrt", b.op("Add", two, 1e-5))))
    if b.maybe():
        b.output(one, square)


@trick
def difference_of_squares(b: Build) -> None:
    """(x + y)(x − y) beside x·x and y·y."""
    x, y = b.input(2, 3, families=("near", "normal", "medium", "cancel")), b.input(2, 3, families=("near", "equal"))
    b.output(b.op("Mul", b.op("Add", x, y), b.op("Sub", x, y)))
    if b.maybe(0.8):
        b.output(b.op("Mul", x, x), b.op("Mul", y, y))
    if b.maybe(0.3):
        b.output(b.op("Mul", b.op("Sub", x, y), b.op("Sub", x, y)), b.op("Mul", x, y))


@trick
def distances(b: Build) -> None:
    """Σ(x − y)² beside |x|², |y|² and x·y."""
    x, y = b.input(3, 4, families=("offset", "normal", "near")), b.input(3, 4, families=("near", "offset", "equal"))
    d = b.op("Sub", x, y)
    b.output(b.reduce("ReduceSum", b.op("Mul", d, d), [1]))
    for left, right in ((x, x), (x, y), (y, y)):
        b.output(b.reduce("ReduceSum", b.op("Mul", left, right), [1]))


@trick
def scalar_chain(b: Build) -> None:
    """x·a·b·c with magnitudes that cancel, fp16's 1e-4·1e-4 among them."""
    x = around(b, b.input(2, 3), 2)
    pairs = {
        "float16": (1e-4, 1e4, 3e-3, 200.0), "float32": (1e-30, 1e30, 1e-20, 3e19), "float64": (1e-200, 1e200, 1e-150),
    }  # fmt: skip
    y = x
    for _ in range(int(b.rng.integers(2, 5))):
        kind = str(b.pick("Mul", "Mul", "Div"))
        y = b.op(kind, y, float(b.pick(*pairs[b.dtype], 1e-3, 7.0)))
    b.output(y)


@trick
def scalars_around(b: Build) -> None:
    """a·x·b·x and its like: products of the running with extreme constants between."""
    x = b.input(2, 3)
    big, small = {"float16": (300.0, 3e-3), "float32": (3e25, 1e-25), "float64": (1e200, 1e-200)}[b.dtype]
    y = b.op("Mul", b.op("Mul", b.op("Mul", x, float(b.pick(big, small))), x), float(b.pick(big, small)))
    b.output(around(b, y, 2, 1.0))


@trick
def large_and_small(b: Build) -> None:
    """big + small − big with several constants."""
    x = around(b, b.input(2, 3), 2)
    big = float(b.pick(1e3, 1e4)) if b.dtype == "float16" else float(b.pick(1e6, 1e8, 1e10))
    y = b.op("Add", b.op("Add", x, big, exact=True), float(b.pick(0.1, 1.0, 3.0)), exact=True)
    b.output(around(b, b.op(str(b.pick("Sub", "Sub")), y, big, exact=True), 2))


@trick
def mean_of_offsets(b: Build) -> None:
    """Means and differences of means at a large offset."""
    x, y = b.input(2, 8, families=("offset", "normal")), b.input(2, 8, families=("near", "normal", "offset"))
    mx, my = (b.reduce("ReduceMean", v, [1]) for v in (x, y))
    b.output(b.op("Sub", mx, my), b.reduce("ReduceMean", b.op("Sub", x, y), [1]))


@trick
def layer_normalised(b: Build) -> None:
    """LayerNormalization with a tiny epsilon and a huge mean, as a node or by hand."""
    b.opset = max(b.opset, 17)
    b.dtype = "float32" if b.dtype == "float16" else b.dtype
    x = b.input(3, 6, families=("offset", "normal", "medium"))
    epsilon = float(b.pick(1e-12, 1e-5, 1e-20))
    scale, bias = b.weight(6), b.weight(6)
    if b.maybe():
        y = b.op("LayerNormalization", x, scale, bias, epsilon=epsilon)
    else:
        d = b.op("Sub", x, b.reduce("ReduceMean", x, [1]))
        v = b.reduce("ReduceMean", b.op("Mul", d, d) if b.maybe() else b.op("Pow", d, 2.0), [1])
        root = b.op("Sqrt", b.op("Add", v, epsilon))
        y = b.op("Add", b.op("Mul", b.op("Div", d, root), scale), bias)
    b.output(b.op("Add", b.op("MatMul", y, b.weight(6, 3)), b.weight(3)) if b.maybe() else exactly(b, y, 2))


def extreme_statistics(b: Build, n: int) -> list[str]:
    """Scale, bias, mean and variance of a batch normalisation, some beyond good manners."""
    mean = b.rng.standard_normal(n) * float(b.pick(1.0, 1e4, 1e7))
    variance = b.rng.uniform(0.1, 2, size=n) * float(b.pick(1.0, 1.0, 1e-12, 1e10))
    if b.maybe(0.4):
        variance[0] = float(b.pick(0.0, 1e-42, -1e-6, 1e-30))
    return [b.const(v) for v in (b.rng.standard_normal(n), b.rng.standard_normal(n), mean, variance)]


@motif("rounding", single=True)
def batch_normalised(b: Build) -> None:
    """BatchNormalization with a zero, negative or denormal variance, a tiny epsilon, a huge mean."""
    c = int(b.rng.integers(1, 4))
    x = b.input(2, c, 3, 3, families=("offset", "normal", "medium"))
    y = b.op("BatchNormalization", x, *extreme_statistics(b, c), epsilon=float(b.pick(1e-5, 1e-12, 0.0)))
    b.output(b.op("Relu", exactly(b, y, 4)) if b.maybe() else b.op("Mul", y, b.weight(c, 1, 1)))


@motif("rounding", single=True)
def convolution_and_batch_normalised(b: Build) -> None:
    """Conv + BatchNormalization of huge scale, before or behind each other."""
    c, o = (int(v) for v in b.rng.integers(1, 4, size=2))
    x = b.input(2, c, 4, 4, families=("offset", "normal", "medium"))
    if b.maybe(0.3):
        x = b.op("BatchNormalization", x, *extreme_statistics(b, c))
    bias = [b.weight(o, scale=float(b.pick(1.0, 1e5)))] if b.maybe() else []
    y = b.op("Conv", x, b.weight(o, c, 3, 3), *bias, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    y = b.op("BatchNormalization", y, *extreme_statistics(b, o), epsilon=float(b.pick(1e-5, 1e-12)))
    b.output(b.op("Relu", y) if b.maybe() else y)


@trick
def imbalanced_products(b: Build) -> None:
    """MatMul chains whose factors' magnitudes cancel."""
    b.dtype = "float32" if b.dtype == "float16" else b.dtype
    n, k, m = (int(v) for v in b.rng.integers(2, 6, size=3))
    big = float(b.pick(1.0, 1e6, 1e18))
    y = b.op("MatMul", b.op("MatMul", b.input(2, n), b.weight(n, k, scale=big)), b.weight(k, m, scale=1 / big))
    if b.maybe():
        y = b.op("MatMul", y, b.weight(m, 2, scale=float(b.pick(1.0, big))))
    b.output(b.op("Mul", y, float(b.pick(1 / big, big, 1.0))))


@trick
def real_identities(b: Build) -> None:
    """Inverse functions one behind the other, equal to x over the reals only."""
    x = b.input(2, 3)
    choice = int(b.rng.integers(9))
    y = b.input(2, 3) if choice in (5, 6) else ""
    forms = {
        0: lambda: b.op("Exp", b.op("Log", x)),
        1: lambda: b.op("Log", b.op("Exp", x)),
        2: lambda: b.op("Sqrt", b.op("Mul", x, x)),
        3: lambda: (lambda r: b.op("Mul", r, r))(b.op("Sqrt", x)),
        4: lambda: b.op("Reciprocal", b.op("Reciprocal", x)),
        5: lambda: b.op("Mul", b.op("Div", x, y), y),
        6: lambda: b.op("Div", b.op("Mul", x, y), y),
        7: lambda: b.op("Pow", b.op("Sqrt", x), 2.0),
        8: lambda: b.op("Sub", b.op("Add", x, 1.0), 1.0),
    }
    b.output(around(b, forms[choice](), 2))


@trick
def complex_product(b: Build) -> None:
    """(a+bi)(c+di) in four multiplications, Gauss's three at hand."""
    a, c = b.input(2, 3, families=("normal", "medium", "near")), b.input(2, 3, families=("normal", "medium", "equal"))
    d, e = (b.weight(3), b.weight(3)) if b.maybe() else (b.input(2, 3), b.input(2, 3))
    b.output(b.op("Sub", b.op("Mul", a, d), b.op("Mul", c, e)), b.op("Add", b.op("Mul", a, e), b.op("Mul", c, d)))


@trick
def quadratic(b: Build) -> None:
    """The discriminant and both roots, one by the stable way."""
    p, q = b.input(2, 3, families=("medium", "normal")), b.input(2, 3, families=("unit", "normal"))
    root = b.op("Sqrt", b.op("Relu", b.op("Sub", b.op("Mul", p, p), b.op("Mul", q, 4.0))))
    big = b.op("Add", p, b.op("Mul", b.op("Sign", p), root))
    b.output(b.op("Div", b.op("Mul", q, 2.0), big), b.op("Sub", p, root), b.op("Mul", big, 0.5))


@trick
def fraction(b: Build) -> None:
    """x − Floor(x), and the other ways to a fractional part."""
    x = around(b, b.input(2, 3, families=WIDE), 2)
    y = b.op("Sub", x, b.op(str(b.pick("Floor", "Ceil", "Round")), x), exact=True)
    b.output(around(b, y, 2), b.op("Floor", b.op("Floor", x)))
