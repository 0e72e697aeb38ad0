"""Small pairs of models, right and wrong, of the kinds that a verifier has judged falsely: what is expected of each.

Made anew each time, in ONNX's text form. ``RIGHT`` pairs must not be refuted, ``WRONG`` ones neither proved nor tested.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import onnx
import onnx.parser

__all__ = ["RIGHT", "WRONG", "made"]

Pair = tuple[str, str]
OWN = ', "this": 1'
MS = ', "com.microsoft": 1'
ML = ', "ai.onnx.ml": 3'


def model(body: str, domains: str = "", opset: int = 17) -> str:
    """A model's text; ``body`` is the graph, and functions behind it."""
    return f'<ir_version: 8, opset_import: ["": {opset}{domains}]>\n{body}'


def made(text: str) -> onnx.ModelProto:
    """The model of a text, in which ``k := 2.0``, ``k := 2``, ``k := [2]`` and ``k := int32 {2}`` are constants."""
    numbers = {
        "value_ints": r"\[[^\]]*\]", "value_float": r"-?\d+\.\d+", "value_int": r"-?\d+", "value": r"\w+ \{[^}]*\}",
    }  # fmt: skip
    for sort, number in numbers.items():
        text = re.sub(rf"(\w+) := ({number})", rf"\1 = Constant <{sort} = \2> ()", text)
    return onnx.parser.parse_model(text)


def function(body: str, steps: str, *, graph: str = "g (float[4,16] x) => (float[4,16] y)") -> str:
    """A model that calls its own ``this.F``, and the rest of its nodes."""
    return model(f'{graph} {{ {steps} }}\n<domain: "this", opset_import: ["": 17]>\n{body}', OWN)


def real(steps: str, domains: str = "", opset: int = 17, shape: str = "4,16") -> str:
    return model(f"g (float[{shape}] x) => (float[{shape}] y) {{ {steps} }}", domains, opset)


def integer(kind: str, steps: str, out: str = "") -> str:
    return model(f"g ({kind}[2,32] x) => ({out or kind}[2,32] y) {{ {steps} }}")


def rows(steps: str, shape: str = "N,4") -> str:
    return model(f"g (float[{shape}] x) => (float[{shape}] y) {{ {steps} }}")


def declared(inputs: str, output: str, steps: str) -> str:
    return model(f"g ({inputs}) => ({output}) {{ {steps} }}")


ONE = "c := 1.0"
TWO = "two := 2.0"
HALF = "h := 0.5"
ELU = "a = Elu <alpha = 1.0> (x)  y = Sub (a, x)"
ELU_PARTS = "c := 1.0  z := 0.0  e = Exp (x)  f = Sub (e, c)  g = Greater (x, z)  a = Where (g, x, f)  y = Sub (a, x)"
HALVES_UP = "h := 0.5  b = Add (a, h)  f = Floor (b)"


def cut(end: int, op: str) -> str:
    """The rows from ``end`` on through an operator."""
    return rows(f"""
        s0 := [0]  s1 := [{end}]
        e := [4611686018427387904]  a := [0]
        p = Slice (x, s0, s1, a)  q = Slice (x, s1, e, a)  r = {op} (q)  y = Concat <axis = 0> (p, r)""")


def told(compare: str, number: int, axis: int = 0, factor: int = 1) -> str:
    """``x`` where a size, times a factor, compares with a number, else ``-x``."""
    return rows(
        f"""
        s = Shape (x)  i := {axis}  n = Gather (s, i)  f := {factor}
        m = Mul (n, f)  k := {number}  c = {compare} (m, k)  v = Neg (x)  y = Where (c, x, v)
        """,
        "N,M",
    )


def branch(number: int) -> str:
    """The same by a branch whose subgraphs hold the number."""
    return rows(f"""
        s = Shape (x)  i := 0  n = Gather (s, i)  k := {number}
        c = Greater (n, k)
        y = If (c) <then_branch = t () => (float[N,4] u) {{ u = Neg (x) }},
                    else_branch = e () => (float[N,4] w) {{ w = Identity (x) }}>""")


def counted(number: int) -> str:
    """The numbers of the rows, at most so many."""
    return rows(f"""
        s = Shape <start = 0, end = 1> (x)  z := 0  o := 1
        n = Squeeze (s)  r = Range (z, n, o)  k := {number}  m = Min (r, k)
        f = Cast <to = 1> (m)  a := [1]  u = Unsqueeze (f, a)  y = Mul (x, u)""")


def summed(terms: int) -> str:
    """The sums of the first rows, as many as there are."""
    return rows(f"""
        s := [0]  e := [{terms}]
        p = Slice (x, s, e, s)  t = ReduceSum <keepdims = 1> (p, s)  y = Add (x, t)""")


NO_ROWS = declared(
    "float[N,4] x",
    "float[4] y",
    """
    s = Shape <start = 0, end = 1> (x)  n = Squeeze (s)  z := 0  c = Equal (n, z)
    f = Cast <to = 1> (c)  k := NUMBER  g = Mul (f, k)
    a := [0]  t = ReduceSum <keepdims = 0> (x, a)  y = Add (t, g)""",
)
ALL_ROWS = rows("s := [0]  t = ReduceSum <keepdims = 1> (x, s)  y = Add (x, t)")
IDENTITY = rows("y = Identity (x)")


def always(then: str, otherwise: str) -> str:
    """A branch whose condition is true; ``u`` and ``w`` are what the subgraphs give."""
    return real(f"""
        c = Constant <value = bool {{1}}> ()
        y = If (c) <then_branch = t () => (float[4,16] u) {{ {then} }},
                    else_branch = e () => (float[4,16] w) {{ {otherwise} }}>""")


def product(steps: str, domains: str = "") -> str:
    return model(f"g (float[4,16] x) => (float[4,4] y) {{ {steps} }}", domains)


def qdq(*steps: tuple[float, int]) -> str:
    """QuantizeLinear and DequantizeLinear to uint8, so many times."""
    text, read = "", "x"
    held = ""
    for i, (scale, zero) in enumerate(steps):
        last = "y" if i == len(steps) - 1 else f"d{i}"
        held += f"{', ' if i else ''}float s{i} = {{{scale}}}, uint8 z{i} = {{{zero}}}"
        text += f"q{i} = QuantizeLinear ({read}, s{i}, z{i}) {last} = DequantizeLinear (q{i}, s{i}, z{i}) "
        read = last
    return model(f"g (float[2,32] x) => (float[2,32] y) <{held}> {{ {text} }}", opset=19)


def quantised(scale: float, zero: int, steps: str = "", *, reals: bool = False) -> str:
    """QuantizeLinear to uint8, or ``steps`` from its quotient ``a`` to the whole number ``f``; and back to reals."""
    held = f"float s = {{{scale}}}, uint8 z = {{{zero}}}, float zero = {{{zero}}}, float lo = {{0}}, float hi = {{255}}"
    text = "q = QuantizeLinear (x, s, z) "
    if steps:
        text = f"a = Div (x, s) {steps} g = Add (f, zero) k = Clip (g, lo, hi) q = Cast <to = 2> (k) "
    text += "y = DequantizeLinear (q, s, z)" if reals else "y = Identity (q)"
    return model(f"g (float[2,32] x) => ({'float' if reals else 'uint8'}[2,32] y) <{held}> {{ {text} }}", opset=19)


def stored(steps: str, out: str = "uint8[a,b,c,d]", zero: int = 128) -> str:
    """From the stored numbers ``q`` to ``y``; ``s`` and ``z`` are of all, ``v`` and ``w`` of an axis of four."""
    held = (
        f"float s = {{0.1}}, uint8 z = {{{zero}}}, float[4] v = {{0.1, 0.2, 0.3, 0.4}}, uint8[4] w = {{1, 2, 3, 128}}"
    )
    held += ", float k = {128}, int64[2] rows = {32, 4}"
    return model(f"g (uint8[2,4,4,4] q) => ({out} y) <{held}> {{ {steps} }}")


def strings(steps: str, out: str = "bool", domains: str = "") -> str:
    return model(f"g (string[6] x) => ({out}[6] y) {{ {steps} }}", domains, 20)


def equal_to(word: str) -> str:
    return model(f'g (string[6] x) => (bool[6] y) <string[1] k = {{"{word}"}}> {{ y = Equal (x, k) }}', opset=19)


def labels(*pairs: tuple[str, int], default: int = -1) -> str:
    keys, values = ", ".join(f'"{k}"' for k, _ in pairs), ", ".join(str(v) for _, v in pairs)
    given = f"keys_strings = [{keys}], values_int64s = [{values}], default_int64 = {default}"
    return strings(f"y = ai.onnx.ml.LabelEncoder <{given}> (x)", "int64", ML)


SCALED = "F (x) => (y) { k := 3.1  m = Mul (x, k)  c := 1.0  y = Add (m, c) }"
NESTED = (
    SCALED + '\n<domain: "this", opset_import: ["": 17, "this": 1]>\nG (x) => (y) { a = this.F (x)  y = this.F (a) }'
)
PARTS = "k := 3.1  m = Mul (x, k)  {0}  a = Add (m, c)  y = Sub (a, c)"
TEN = "k := 10.0  a = Add (x, k)"
GELU = "r = Sqrt (two)  d = Div (a, r)  e = Erf (d)  p = Add (e, c)  t = Mul (a, h)  g = Mul (t, p)  y = Sub (g, a)"

RIGHT: Mapping[str, Pair] = {
    "a function and its body": (function(SCALED, f"{ONE} a = this.F (x)  y = Sub (a, c)"), real(PARTS.format(ONE))),
    "functions of functions": (
        function(NESTED, f"{ONE} a = this.G (x)  y = Sub (a, c)"),
        real(f"{ONE} k := 3.1  m = Mul (x, k)  n = Add (m, c)  o = Mul (n, k)  a = Add (o, c)  y = Sub (a, c)"),
    ),
    "a function with an attribute": (
        function(
            "F <alpha> (x) => (y) { l = LeakyRelu <alpha: float = @alpha> (x)  y = Exp (l) }",
            "a = this.F <alpha = 0.3> (x)  y = Sub (a, x)",
        ),
        real("l = LeakyRelu <alpha = 0.3> (x)  a = Exp (l)  y = Sub (a, x)"),
    ),
    "a function that is called twice": (
        function(SCALED, "a = this.F (x)  b = this.F (a)  y = Sub (b, a)"),
        real("k := 3.1  c := 1.0  m = Mul (x, k)  a = Add (m, c)  n = Mul (a, k)  b = Add (n, c)  y = Sub (b, a)"),
    ),
    "a function whose terms are exchanged": (
        function(
            "F (x) => (y) { c := 100.0  y = Add (c, x) }",
            "a = this.F (x)  c := 100.0  y = Sub (a, c)",
        ),
        real("c := 100.0  a = Add (x, c)  y = Sub (a, c)"),
    ),
    "a Gelu and its parts": (
        real(f"{TEN}  g = com.microsoft.Gelu (a)  y = Sub (g, a)", MS),
        real(f"{TEN}  {ONE} {TWO} {HALF} {GELU}"),
    ),
    "a Gelu by its tangent and its parts": (
        real('y = Gelu <approximate = "tanh"> (x)', opset=20),
        real(
            f"{ONE} {HALF} t := 3.0  q := 0.044715  p := 0.63661975  r = Sqrt (p)  u = Pow (x, t)  v = Mul (u, q) "
            "w = Add (x, v)  i = Mul (w, r)  j = Tanh (i)  l = Add (j, c)  m = Mul (x, h)  y = Mul (m, l)",
            opset=20,
        ),
    ),
    "a QuickGelu and its parts": (
        real("g = com.microsoft.QuickGelu <alpha = 1.0> (x)  y = Sub (g, x)", MS),
        real("s = Sigmoid (x)  g = Mul (x, s)  y = Sub (g, x)"),
    ),
    "a FusedMatMul and its parts": (
        product("p = com.microsoft.FusedMatMul <transB = 1, alpha = 0.5> (x, x)  y = Neg (p)", MS),
        product(f"{HALF} t = Transpose <perm = [1, 0]> (x)  m = MatMul (x, t)  p = Mul (m, h)  y = Neg (p)"),
    ),
    "a Mish and its parts": (
        real(f"{TEN}  g = Mish (a)  y = Sub (g, a)", opset=18),
        real(f"{TEN}  s = Softplus (a)  t = Tanh (s)  g = Mul (a, t)  y = Sub (g, a)", opset=18),
    ),
    "a Celu and its parts": (
        real("a = Celu <alpha = 2.0> (x)  y = Sub (a, x)"),
        real(f"{TWO} d = Div (x, two)  e = Elu <alpha = 1.0> (d)  a = Mul (e, two)  y = Sub (a, x)"),
    ),
    "a Selu and its parts": (
        real("y = Selu <alpha = 1.5, gamma = 2.0> (x)"),
        real(f"{TWO} e = Elu <alpha = 1.5> (x)  y = Mul (e, two)"),
    ),
    "a HardSwish and its parts": (
        real("g = HardSwish (x)  y = Sub (g, x)"),
        real("s = HardSigmoid <alpha = 0.1666666716337204, beta = 0.5> (x)  g = Mul (x, s)  y = Sub (g, x)"),
    ),
    "a Celu and its parts before a cancellation": (
        real("a = Celu <alpha = 3.0> (x)  y = Sub (a, x)"),
        real("k := 3.0  d = Div (x, k)  e = Elu <alpha = 1.0> (d)  a = Mul (e, k)  y = Sub (a, x)"),
    ),
    "an Elu and its parts before a cancellation": (real(ELU), real(ELU_PARTS)),
    "the parts of an Elu and it before a cancellation": (real(ELU_PARTS), real(ELU)),
    "a HardSwish and its parts before a cancellation": (
        real("a = HardSwish (x)  y = Sub (a, x)"),
        real(
            "k := 3.0  z := 0.0  s := 6.0  p = Add (x, k)  q = Clip (p, z, s)  r = Mul (x, q)  a = Div (r, s)  "
            "y = Sub (a, x)"
        ),
    ),
    "a product and a difference of squares": (
        real("s = Add (x, w)  d = Sub (x, w)  y = Mul (s, d)").replace(
            "float[4,16] x)", "float[4,16] x, float[4,16] w)"
        ),
        real("s = Mul (x, x)  d = Mul (w, w)  y = Sub (s, d)").replace(
            "float[4,16] x)", "float[4,16] x, float[4,16] w)"
        ),
    ),
    "a quantisation and its parts": (quantised(0.1, 128), quantised(0.1, 128, "f = Round (a)")),
    "a ThresholdedRelu and its parts": (
        real("y = ThresholdedRelu <alpha = 1.0> (x)"),
        real(f"{ONE} z := 0.0  g = Greater (x, c)  y = Where (g, x, z)"),
    ),
    "an opaque node before a cancellation": (
        real(f"{TEN}  s = Softsign (a)  {ONE} y = Sub (s, c)"),
        real(f"{TEN}  {ONE} b = Abs (a)  d = Add (c, b)  s = Div (a, d)  y = Sub (s, c)"),
    ),
    "a Shrink and its parts": (
        real("y = Shrink <lambd = 0.5, bias = 0.0> (x)"),
        real(f"{HALF} z := 0.0  b = Abs (x)  g = Greater (b, h)  y = Where (g, x, z)"),
    ),
    "a branch that is always taken": (
        always("k := 1.0  v = Add (x, k)  u = Sub (v, k)", "w = Neg (x)"),
        real(f"{ONE} v = Add (x, c)  y = Sub (v, c)"),
    ),
    "the same quantisation twice": (qdq((0.1, 128), (0.1, 128)), qdq((0.1, 128))),
    "a mean of dequantised numbers and a pool": (
        stored("x = DequantizeLinear (q, s, z) a = ReduceMean <axes = [2, 3]> (x) y = QuantizeLinear (a, s, z)"),
        stored("x = DequantizeLinear (q, s, z) a = GlobalAveragePool (x) y = QuantizeLinear (a, s, z)"),
    ),
    "a dequantisation and its parts": (
        stored("y = DequantizeLinear (q, s, z)", "float[a,b,c,d]"),
        stored("c = Cast <to = 1> (q) e = Sub (c, k) y = Mul (e, s)", "float[a,b,c,d]"),
    ),
    "a dequantisation of an axis and a transposition": (
        stored("x = DequantizeLinear <axis = 1> (q, v, w) y = Transpose <perm = [0, 2, 3, 1]> (x)", "float[a,b,c,d]"),
        stored("t = Transpose <perm = [0, 2, 3, 1]> (q) y = DequantizeLinear <axis = 3> (t, v, w)", "float[a,b,c,d]"),
    ),
    "a quantisation on either side of a reshape": (
        stored(
            "x = DequantizeLinear (q, s, z) r = Reshape (x, rows) y = QuantizeLinear <axis = 1> (r, v, w)", "uint8[a,b]"
        ),
        stored(
            "x = DequantizeLinear (q, s, z) p = QuantizeLinear <axis = 3> (x, v, w) y = Reshape (p, rows)", "uint8[a,b]"
        ),
    ),
    "a Relu before a quantisation from 0 on": (
        stored("x = DequantizeLinear (q, v, w) r = Relu (x) y = QuantizeLinear (r, s, z)", zero=0),
        stored("x = DequantizeLinear (q, v, w) y = QuantizeLinear (x, s, z)", zero=0),
    ),
    "a size of another name": (
        declared("float[N,4] x", "float[N,4] y", "y = Exp (x)"),
        declared("float[batch,4] x", "float[batch,4] y", "y = Exp (x)"),
    ),
    "sizes whose names are exchanged": (
        declared("float[N,4] x, float[M,4] z", "float[K,4] y", "y = Concat <axis = 0> (x, z)"),
        declared("float[M,4] x, float[N,4] z", "float[N,4] y", "y = Concat <axis = 0> (x, z)"),
    ),
    "an output without a shape": (
        declared("float[N,4] x", "float[a,b] y", "y = Transpose (x)"),
        declared("float[N,4] x", "float[] y", "y = Transpose (x)"),
    ),
    "an output with a known size": (
        declared("float[2,6] x", "float[a,b] y", "s := [3, 4]  y = Reshape (x, s)"),
        declared("float[2,6] x", "float[3,4] y", "s := [3, 4]  y = Reshape (x, s)"),
    ),
    "an input that takes more": (
        declared("float[2,4] x", "float[2,4] y", "y = Exp (x)"),
        declared("float[N,M] x", "float[N,M] y", "y = Exp (x)"),
    ),
    "rows cut and put together": (IDENTITY, cut(6, "Identity")),
    "a condition on a size the other way": (told("Greater", 9), told("GreaterOrEqual", 10)),
    "equal words": (equal_to("a"), equal_to("a")),
    "words in another order": (labels(("a", 1), ("b", 2)), labels(("b", 2), ("a", 1))),
    "negated twice in int32": (integer("int32", "a = Neg (x)  y = Neg (a)"), integer("int32", "y = Identity (x)")),
    "sums of int64 that wrap": (
        integer("int64", "a = Add (x, x)  y = Add (a, x)"),
        integer("int64", "k := int64 {3}  y = Mul (x, k)"),
    ),
    "the greatest of a number and its opposite in int64": (
        integer("int64", "a = Abs (x)  y = Abs (a)"),
        integer("int64", "a = Abs (x)  n = Neg (a)  y = Max (a, n)"),
    ),
    "sums of no rows by their mean": (
        declared("float[N,4] x", "float[4] y", "a := [0]  y = ReduceSum <keepdims = 0> (x, a)"),
        declared(
            "float[N,4] x",
            "float[4] y",
            "m = ReduceMean <axes = [0], keepdims = 0> (x)  s = Shape <start = 0, end = 1> (x)  n = Squeeze (s) "
            "f = Cast <to = 1> (n)  y = Mul (m, f)",
        ),
    ),
    "through a wider integer": (
        integer("uint8", "a = Cast <to = 6> (x)  y = Cast <to = 2> (a)"),
        integer("uint8", "y = Identity (x)"),
    ),
    "NaN that is replaced twice": (
        real("n = IsNaN (x)  z := 0.0  y = Where (n, z, x)"),
        real("n = IsNaN (x)  z := 0.0  m = Not (n)  y = Where (m, x, z)"),
    ),
}

WRONG: Mapping[str, Pair] = {
    "a logarithm of what underflows": (real("y = LogSoftmax (x)"), real("s = Softmax (x)  y = Log (s)")),
    "a logarithm of zeros": (
        real("z := 0.0  p = Max (x, z)  y = Log (p)"),
        real("z := 0.0  p = Max (x, z)  k := 0.0001  q = Add (p, k)  y = Log (q)"),
    ),
    **{f"rows from {n} negated": (IDENTITY, cut(n, "Neg")) for n in (5, 6, 9, 100, 1000, 5000)},
    "a size compared with 6 or 7": (told("Greater", 6), told("Greater", 7)),
    "a second size compared with 1000": (told("Greater", 1000, axis=1), told("GreaterOrEqual", 1000, axis=1)),
    "a third of a size compared with 33": (told("Less", 33, factor=3), told("LessOrEqual", 33, factor=3)),
    "a size equal to 17": (told("Equal", 17), rows("y = Neg (x)", "N,M")),
    "a branch on a size": (branch(12), IDENTITY),
    "row numbers up to 20": (counted(20), counted(21)),
    "sums of seven rows": (summed(7), ALL_ROWS),
    "a row by its number": (
        rows("i := [7]  r = Gather <axis = 0> (x, i)  y = Add (x, r)"),
        rows("i := [-1]  r = Gather <axis = 0> (x, i)  y = Add (x, r)"),
    ),
    "the quantisation of another": (qdq((0.1, 128), (0.1, 100)), qdq((0.08901961, 112))),
    "a quantisation and one that rounds halves up": (quantised(0.25, 3), quantised(0.25, 3, HALVES_UP)),
    "the same by a scale of many digits": (quantised(0.0173, 0), quantised(0.0173, 0, HALVES_UP)),
    "the same back to reals": (quantised(0.1, 128, reals=True), quantised(0.1, 128, HALVES_UP, reals=True)),
    "a quantisation and one that rounds halves down": (
        quantised(0.1, 128),
        quantised(0.1, 128, f"{HALF} b = Sub (a, h) f = Ceil (b)"),
    ),
    "whole numbers by Round and by Floor": (real("y = Round (x)"), real(f"{HALF} a = Add (x, h)  y = Floor (a)")),
    "a deliberate rounding and none": (
        real("c := 12582912.0  a = Add (x, c)  y = Sub (a, c)"),
        real("y = Identity (x)"),
    ),
    "none and a deliberate rounding": (
        real("y = Identity (x)"),
        real("c := 12582912.0  a = Add (x, c)  y = Sub (a, c)"),
    ),
    "a Relu before a quantisation from -128 on": (
        stored("x = DequantizeLinear (q, v, w) r = Relu (x) y = QuantizeLinear (r, s, z)"),
        stored("x = DequantizeLinear (q, v, w) y = QuantizeLinear (x, s, z)"),
    ),
    "a dequantisation of another axis": (
        stored("y = DequantizeLinear <axis = 1> (q, v, w)", "float[a,b,c,d]"),
        stored("y = DequantizeLinear <axis = 2> (q, v, w)", "float[a,b,c,d]"),
    ),
    "a mean of what is quantised and a quantised mean": (
        stored(
            "x = DequantizeLinear (q, s, z) a = ReduceMean <axes = [2, 3]> (x) y = QuantizeLinear <axis = 1> (a, v, w)"
        ),
        stored(
            "x = DequantizeLinear (q, s, z) p = QuantizeLinear <axis = 1> (x, v, w)"
            " r = DequantizeLinear <axis = 1> (p, v, w) a = ReduceMean <axes = [2, 3]> (r)"
            " y = QuantizeLinear <axis = 1> (a, v, w)"
        ),
    ),
    "a zero point beside": (qdq((0.1, 128)), qdq((0.1, 127))),
    "two scales in the other order": (qdq((0.1, 128), (0.3, 128)), qdq((0.3, 128), (0.1, 128))),
    "a function of another constant": (
        function(SCALED, f"{ONE} a = this.F (x)  y = Sub (a, c)"),
        real(PARTS.format(ONE).replace("3.1", "3.1001")),
    ),
    "a function whose arguments are exchanged": (
        model(
            "g (float[4,16] x, float[4,16] z) => (float[4,16] y) { y = this.F (x, z) }\n"
            '<domain: "this", opset_import: ["": 17]>\nF (a, b) => (c) { c = Sub (a, b) }',
            OWN,
        ),
        model("g (float[4,16] x, float[4,16] z) => (float[4,16] y) { y = Sub (z, x) }"),
    ),
    "the other branch": (
        always("u = Relu (x)", "w = Abs (x)"),
        real("y = Abs (x)"),
    ),
    "a Gelu and its approximation": (
        real("y = com.microsoft.Gelu (x)", MS),
        real("y = com.microsoft.FastGelu (x)", MS),
    ),
    "a LeakyRelu in a function": (
        function("F <alpha> (x) => (y) { y = LeakyRelu <alpha: float = @alpha> (x) }", "y = this.F <alpha = 0.3> (x)"),
        real("y = LeakyRelu <alpha = 0.301> (x)"),
    ),
    "Relu behind Abs of int32": (integer("int32", "y = Abs (x)"), integer("int32", "a = Abs (x)  y = Relu (a)")),
    "int32 to bool through uint8": (
        integer("int32", "a = Cast <to = 2> (x)  y = Cast <to = 9> (a)", "bool"),
        integer("int32", "y = Cast <to = 9> (x)", "bool"),
    ),
    "int64 to bool through int32": (
        integer("int64", "a = Cast <to = 6> (x)  y = Cast <to = 9> (a)", "bool"),
        integer("int64", "y = Cast <to = 9> (x)", "bool"),
    ),
    "int64 through int32": (
        integer("int64", "a = Cast <to = 6> (x)  y = Cast <to = 7> (a)"),
        integer("int64", "y = Identity (x)"),
    ),
    "int64 through float32": (
        integer("int64", "a = Cast <to = 1> (x)  y = Cast <to = 7> (a)"),
        integer("int64", "y = Identity (x)"),
    ),
    "int8 through uint8": (
        integer("int8", "a = Cast <to = 2> (x)  y = Cast <to = 6> (a)", "int32"),
        integer("int8", "y = Cast <to = 6> (x)", "int32"),
    ),
    "doubled and halved in int32": (
        integer("int32", "k := int32 {2}  a = Mul (x, k)  y = Div (a, k)"),
        integer("int32", "y = Identity (x)"),
    ),
    "halved and doubled in int32": (
        integer("int32", "k := int32 {2}  a = Div (x, k)  y = Mul (a, k)"),
        integer("int32", "y = Identity (x)"),
    ),
    "division of negative numbers": (
        integer("int32", "k := int32 {4}  m = Mod (x, k)  a = Sub (x, m)  y = Div (a, k)"),
        integer("int32", "k := int32 {4}  y = Div (x, k)"),
    ),
    "a remainder of the other sign": (
        integer("int64", "k := int64 {3}  y = Mod (x, k)"),
        integer("int64", "k := int64 {3}  y = Mod <fmod = 1> (x, k)"),
    ),
    "a minimum beside the end": (
        integer("int32", "k := int32 {2147483647}  y = Min (x, k)"),
        integer("int32", "k := int32 {2147483646}  y = Min (x, k)"),
    ),
    "differences compared": (
        model("g (int32[2,32] x, int32[2,32] z) => (bool[2,32] y) { y = Greater (x, z) }"),
        model(
            "g (int32[2,32] x, int32[2,32] z) => (bool[2,32] y) { d = Sub (x, z)  k := int32 {0}  y = Greater (d, k) }"
        ),
    ),
    "a number of uint64": (
        integer("uint64", "k := uint64 {18446744073709551615}  y = Equal (x, k)", "bool"),
        integer("uint64", "k := uint64 {18446744073709551614}  y = Equal (x, k)", "bool"),
    ),
    "another word": (equal_to("a"), equal_to("b")),
    "a word in another case": (equal_to("Yes"), equal_to("yes")),
    "another label": (labels(("a", 1), ("b", 2)), labels(("a", 1), ("b", 3))),
    "another default": (labels(("a", 1)), labels(("a", 1), default=0)),
    "strings put together the other way": (
        model("g (string[6] x, string[6] z) => (string[6] y) { y = StringConcat (x, z) }", opset=20),
        model("g (string[6] x, string[6] z) => (string[6] y) { y = StringConcat (z, x) }", opset=20),
    ),
    "NaN that is replaced": (
        real("n = IsNaN (x)  z := 0.0  y = Where (n, z, x)"),
        real("y = Identity (x)"),
    ),
    "NaN told by itself": (
        real("e = Equal (x, x)  z := 0.0  y = Where (e, x, z)"),
        real("y = Identity (x)"),
    ),
    "infinities of one sign": (
        model("g (float[4,16] x) => (bool[4,16] y) { y = IsInf <detect_negative = 0> (x) }"),
        model("g (float[4,16] x) => (bool[4,16] y) { y = IsInf (x) }"),
    ),
    "an input that takes less": (
        declared("float[N,4] x", "float[N,4] y", "y = Exp (x)"),
        declared("float[2,4] x", "float[2,4] y", "y = Exp (x)"),
    ),
    "an output of another size": (
        declared("float[2,6] x", "float[a,b] y", "s := [3, 4]  y = Reshape (x, s)"),
        declared("float[2,6] x", "float[c,d] y", "s := [4, 3]  y = Reshape (x, s)"),
    ),
    "what is added where there are no rows": (NO_ROWS.replace("NUMBER", "0.0"), NO_ROWS.replace("NUMBER", "1.0")),
    "an operator that the runtime does not have": (real("y = Relu (x)"), real("y = NoSuch (x)")),
}
