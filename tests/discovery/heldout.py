"""Identities over TASO's vocabulary that discovery never sees: sound ones to be derived, false ones that must not be.

The sound ones are the shapes of rule that TASO's generator and Tensat's list hold (chains of associativity,
distributivity, scaling, splitting, enlarging …), written in our own terms with the types under which they are true. The
false ones are the classes of unsound rules that are easy to get wrong: grouped convolutions, other strides, lost
operands.
"""

from __future__ import annotations

from superopt.rules import Rule, parse_rule

__all__ = ["false", "sound"]

MATRICES = {"x": "f[m, k]", "y": "f[m, k]", "a": "f[k, n]", "b": "f[k, n]", "c": "f[n, l]", "d": "f[l, j]", "t": "f[]"}
SQUARE = dict.fromkeys("xyz", "f[n, n]")
SAME = dict.fromkeys("xyz", "f[m, n]") | {"t": "f[]", "r": "f[]"}
IMAGES = {
    "x": "f[b, c, h, w]", "y": "f[b, c, h, w]", "k": "f[o, c, u, v]", "l": "f[o, c, u, v]", "j": "f[i, c, u, v]",
    "q": "f[o, c, 1, 1]", "t": "f[]", "s": "ints[2]>=1", "p": "ints[4]>=0", "d": "ints[2]>=1",
}  # fmt: skip
CONV = "Conv({}, {}, dilations=d, group=1, pads=p, strides=s)"
POINT = "Conv({}, {}, dilations=[1, 1], group=1, pads=[0, 0, 0, 0], strides=s)"
MAX = "MaxPool({}, dilations=d, kernel_shape=e, pads=[0, 0, 0, 0], strides=s)"
MEAN = "AveragePool({}, count_include_pad=1, dilations=d, kernel_shape=e, pads=[0, 0, 0, 0], strides=s)"

_SOUND: list[tuple[dict[str, str], str, str]] = [
    (MATRICES, "MatMul(MatMul(x, a), c)", "MatMul(x, MatMul(a, c))"),
    (MATRICES, "MatMul(MatMul(x, a), MatMul(c, d))", "MatMul(MatMul(x, MatMul(a, c)), d)"),
    (MATRICES, "MatMul(MatMul(x, a), MatMul(c, d))", "MatMul(x, MatMul(MatMul(a, c), d))"),
    (SQUARE, "MatMul(MatMul(z, MatMul(x, y)), x)", "MatMul(z, MatMul(x, MatMul(y, x)))"),
    (SQUARE, "MatMul(MatMul(z, MatMul(x, y)), x)", "MatMul(MatMul(z, x), MatMul(y, x))"),
    (SQUARE, "MatMul(Concat(y, MatMul(x, y), axis=0), z)",
     "Concat(MatMul(y, z), MatMul(x, MatMul(y, z)), axis=0)"),
    (SQUARE, "Add(MatMul(x, y), MatMul(MatMul(x, y), z))", "MatMul(x, Add(y, MatMul(y, z)))"),
    (SQUARE, "MatMul(Add(x, MatMul(x, y)), z)", "MatMul(x, Add(z, MatMul(y, z)))"),
    (SQUARE, "Concat(MatMul(x, y), MatMul(MatMul(x, y), z), axis=1)", "MatMul(x, Concat(y, MatMul(y, z), axis=1))"),
    (SQUARE, "MatMul(Add(z, MatMul(y, z)), x)", "Add(MatMul(z, x), MatMul(y, MatMul(z, x)))"),
    (MATRICES, "Mul(MatMul(MatMul(x, a), c), t)", "MatMul(Mul(x, t), MatMul(a, c))"),
    (MATRICES, "Mul(MatMul(MatMul(x, a), c), t)", "MatMul(x, Mul(MatMul(a, c), t))"),
    (MATRICES, "Add(MatMul(x, a), MatMul(y, a))", "MatMul(Add(x, y), a)"),
    (MATRICES, "Add(MatMul(x, a), MatMul(x, b))", "MatMul(x, Add(a, b))"),
    (MATRICES, "Concat(MatMul(x, a), MatMul(y, a), axis=0)", "MatMul(Concat(x, y, axis=0), a)"),
    (MATRICES, "Concat(MatMul(x, a), MatMul(x, b), axis=1)", "MatMul(x, Concat(a, b, axis=1))"),
    (MATRICES, "Transpose(MatMul(x, a), perm=[1, 0])", "MatMul(Transpose(a, perm=[1, 0]), Transpose(x, perm=[1, 0]))"),
    (MATRICES, "MatMul(Concat(x, y, axis=1), Concat(a, b, axis=0))", "Add(MatMul(x, a), MatMul(y, b))"),
    (SAME, "Add(z, Add(x, y))", "Add(x, Add(y, z))"),
    (SAME, "Add(z, Add(z, Add(x, y)))", "Add(Add(x, z), Add(y, z))"),
    (SAME, "Add(Add(x, y), Add(y, z))", "Add(y, Add(y, Add(x, z)))"),
    (SAME, "Mul(x, Add(y, z))", "Add(Mul(x, y), Mul(x, z))"),
    (SAME, "Add(Mul(x, y), Mul(z, Mul(x, y)))", "Mul(y, Add(x, Mul(x, z)))"),
    (SAME, "Mul(z, Add(y, Mul(x, y)))", "Mul(y, Add(z, Mul(x, z)))"),
    (SAME, "Mul(z, Mul(z, Mul(x, y)))", "Mul(Mul(x, z), Mul(y, z))"),
    (SAME, "Mul(Mul(x, y), Mul(y, z))", "Mul(y, Mul(y, Mul(x, z)))"),
    (SAME, "Mul(Mul(z, Mul(x, y)), t)", "Mul(Mul(x, z), Mul(y, t))"),
    (SAME, "Mul(Add(x, y), t)", "Add(Mul(x, t), Mul(y, t))"),
    (SAME, "Mul(Mul(x, t), r)", "Mul(x, Mul(t, r))"),
    (SAME, "Transpose(Transpose(x, perm=[1, 0]), perm=[1, 0])", "x"),
    (SAME, "Transpose(Add(x, y), perm=[1, 0])", "Add(Transpose(x, perm=[1, 0]), Transpose(y, perm=[1, 0]))"),
    (SAME, "Transpose(Mul(x, y), perm=[1, 0])", "Mul(Transpose(x, perm=[1, 0]), Transpose(y, perm=[1, 0]))"),
    (SAME, "Transpose(Relu(x), perm=[1, 0])", "Relu(Transpose(x, perm=[1, 0]))"),
    (SAME, "Transpose(Mul(x, t), perm=[1, 0])", "Mul(Transpose(x, perm=[1, 0]), t)"),
    (SAME, "Transpose(Concat(x, y, axis=0), perm=[1, 0])",
     "Concat(Transpose(x, perm=[1, 0]), Transpose(y, perm=[1, 0]), axis=1)"),
    (SAME, "Relu(Concat(x, y, axis=0))", "Concat(Relu(x), Relu(y), axis=0)"),
    (SAME, "Relu(Relu(x))", "Relu(x)"),
    (SAME, "Add(Concat(x, y, axis=1), Concat(z, x, axis=1))", "Concat(Add(x, z), Add(x, y), axis=1)"),
    (SAME, "Mul(Concat(x, y, axis=1), Concat(z, x, axis=1))", "Concat(Mul(x, z), Mul(x, y), axis=1)"),
    (SAME, "Mul(Concat(x, y, axis=0), t)", "Concat(Mul(x, t), Mul(y, t), axis=0)"),
    (SAME, "Split(Concat(x, y, axis=1), axis=1, split=[n, n])[0]", "x"),
    (SAME, "Concat(Concat(x, y, axis=0), Concat(z, x, axis=0), axis=1)",
     "Concat(Concat(x, z, axis=1), Concat(y, x, axis=1), axis=0)"),
    (IMAGES, CONV.format("x", "Add(k, l)"), f"Add({CONV.format('x', 'k')}, {CONV.format('x', 'l')})"),
    (IMAGES, CONV.format("Add(x, y)", "k"), f"Add({CONV.format('x', 'k')}, {CONV.format('y', 'k')})"),
    (IMAGES, CONV.format("Mul(x, t)", "k"), f"Mul({CONV.format('x', 'k')}, t)"),
    (IMAGES, CONV.format("x", "Mul(k, t)"), CONV.format("Mul(x, t)", "k")),
    (IMAGES, f"Concat({CONV.format('x', 'k')}, {CONV.format('x', 'j')}, axis=1)",
     CONV.format("x", "Concat(k, j, axis=0)")),
    (IMAGES, f"Concat({CONV.format('x', 'k')}, {CONV.format('y', 'k')}, axis=0)",
     CONV.format("Concat(x, y, axis=0)", "k")),
    (IMAGES, CONV.format("Concat(x, y, axis=1)", "Concat(k, l, axis=1)"),
     f"Add({CONV.format('x', 'k')}, {CONV.format('y', 'l')})"),
    (IMAGES, f"Relu(Relu({CONV.format('x', 'k')}))", f"Relu({CONV.format('x', 'k')})"),
    (IMAGES, f"Relu(Concat({CONV.format('x', 'k')}, {CONV.format('y', 'k')}, axis=0))",
     f"Relu({CONV.format('Concat(x, y, axis=0)', 'k')})"),
    ({"x": "f[b, c, h, w]", "q": "f[o, c, 1, 1]", "s": "ints[2]>=1", "p": "ints[4]>=0"}, POINT.format("x", "q"),
     "Conv(x, Pad(q, pads=[0, 0, p_0, p_1, 0, 0, p_2, p_3], value=0.0), dilations=[1, 1], group=1, pads=p, strides=s)"),
    ({**IMAGES, "e": "ints[2]>=1"}, MAX.format("Concat(x, y, axis=1)"),
     f"Concat({MAX.format('x')}, {MAX.format('y')}, axis=1)"),
    ({**IMAGES, "e": "ints[2]>=1"}, MAX.format("Relu(x)"), f"Relu({MAX.format('x')})"),
    ({**IMAGES, "e": "ints[2]>=1"}, MEAN.format("Add(x, y)"), f"Add({MEAN.format('x')}, {MEAN.format('y')})"),
    ({**IMAGES, "e": "ints[2]>=1"}, MEAN.format("Mul(x, t)"), f"Mul({MEAN.format('x')}, t)"),
    ({**IMAGES, "e": "ints[2]>=1"}, MEAN.format("Concat(x, y, axis=1)"),
     f"Concat({MEAN.format('x')}, {MEAN.format('y')}, axis=1)"),
]  # fmt: skip

GROUPED = {
    "x": "f[b, 2*c, h, w]", "y": "f[b, 2*c, h, w]", "k": "f[2*o, c, u, v]", "l": "f[2*o, c, u, v]", "s": "ints[2]>=1",
    "p": "ints[4]>=0", "d": "ints[2]>=1",
}  # fmt: skip
TWO = "Conv({}, {}, dilations=d, group=2, pads=p, strides=s)"
FOUR = "Conv({}, {}, dilations=d, group=4, pads=p, strides=s)"
_FALSE: list[tuple[dict[str, str], str, str]] = [
    (SQUARE, "MatMul(x, y)", "MatMul(y, x)"),
    (SQUARE, "Transpose(MatMul(x, y), perm=[1, 0])", "MatMul(Transpose(x, perm=[1, 0]), Transpose(y, perm=[1, 0]))"),
    (SAME, "Relu(Add(x, y))", "Add(Relu(x), Relu(y))"),
    (SAME, "Relu(Mul(x, t))", "Mul(Relu(x), t)"),
    (SAME, "Mul(x, Add(y, z))", "Add(Mul(x, y), z)"),
    (SAME, "Add(x, Add(y, z))", "Add(x, y)"),
    (SAME, "Split(Concat(x, y, axis=1), axis=1, split=[n, n])[0]", "y"),
    (GROUPED, f"Concat({TWO.format('x', 'k')}, {TWO.format('x', 'l')}, axis=1)",
     TWO.format("x", "Concat(k, l, axis=0)")),
    (GROUPED, TWO.format("Concat(x, y, axis=1)", "Concat(k, l, axis=1)"),
     f"Add({TWO.format('x', 'k')}, {TWO.format('y', 'l')})"),
    ({**IMAGES, "e": "ints[2]>=1"}, MAX.format("Add(x, y)"), f"Add({MAX.format('x')}, {MAX.format('y')})"),
    ({**IMAGES, "e": "ints[2]>=1"}, MEAN.format("Relu(x)"), f"Relu({MEAN.format('x')})"),
    (IMAGES, CONV.format("Relu(x)", "k"), f"Relu({CONV.format('x', 'k')})"),
]  # fmt: skip


def _rules(rows: list[tuple[dict[str, str], str, str]], name: str) -> list[Rule]:
    made = []
    for number, (names, left, right) in enumerate(rows):
        text = f"{left} {right}"
        forall = {n: t for n, t in names.items() if _occurs(n, text, names)}
        made.append(parse_rule({"id": f"{name}-{number}", "forall": forall, "lhs": [left], "rhs": [right]}))
    return made


def _occurs(name: str, text: str, names: dict[str, str]) -> bool:
    import re

    used = [names[n] for n in names if names[n].startswith("f") and re.search(rf"\b{n}\b", text)]
    return bool(re.search(rf"\b{name}(_\d)?\b", " ".join([text, *used])))


def sound() -> list[Rule]:
    """Identities that a library for this vocabulary has to derive."""
    return _rules(_SOUND, "sound")


def false() -> list[Rule]:
    """What it must not derive."""
    return _rules(_FALSE, "false")
