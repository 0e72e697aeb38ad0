"""The rewrites that a library is asked to know, stated whole: derived from what was found, none of them is given."""

from __future__ import annotations

from superopt.rules import Rule, parse_rule

__all__ = ["tour"]

CONV = "Conv({}, {}, dilations=d, group=g, pads=p, strides=s)"
BIASED = "Conv({}, {}, {}, dilations=d, group=g, pads=p, strides=s)"
PLAIN = "Conv({}, {}, dilations=d, group=1, pads=p, strides=s)"
WINDOW = {"s": "ints[2]>=1", "p": "ints[4]>=0", "d": "ints[2]>=1"}
GROUPED = {"x": "f[n, c*g, h, w]", "k": "f[g*o, c, u, v]", "l": "f[g*o, c, u, v]", **WINDOW, "g": "int>=1"}
UNGROUPED = {"x": "f[n, c, h, w]", "k": "f[o, c, u, v]", "l": "f[i, c, u, v]", **WINDOW}
VECTORS = dict.fromkeys(("q", "r", "m", "z"), "f[g*o]")
SCALE = "Div(q, Sqrt(Add(z, e)))"
ENLARGED = "Pad({}, pads=[0, 0, p_0, p_1, 0, 0, p_2, p_3], value=0.0)"
SAME = {"s": "ints[2]>=1", "p": "ints[4]>=0"}
UNIT = "Conv({}, {}, dilations=[1, 1], group=1, pads=p, strides=[1, 1])"
EYE = "Reshape(EyeLike(k=0, shape=[c, c]), shape=[c, c, 1, 1])"

_ROWS: dict[str, tuple[dict[str, str], list[str], list[str]]] = {
    "Conv + BatchNormalization": (
        {**{n: t for n, t in GROUPED.items() if n != "l"}, **VECTORS, "e": "real>0"},
        [f"BatchNormalization({CONV.format('x', 'k')}, q, r, m, z, epsilon=e)"],
        [BIASED.format("x", f"Mul(k, Reshape({SCALE}, shape=[g*o, 1, 1, 1]))", f"Sub(r, Mul(m, {SCALE}))")],
    ),
    "sum of two convolutions": (
        GROUPED,
        [f"Add({CONV.format('x', 'k')}, {CONV.format('x', 'l')})"],
        [CONV.format("x", "Add(k, l)")],
    ),
    "parallel convolutions, concatenated": (
        UNGROUPED,
        [f"Concat({PLAIN.format('x', 'k')}, {PLAIN.format('x', 'l')}, axis=1)"],
        [PLAIN.format("x", "Concat(k, l, axis=0)")],
    ),
    "parallel convolutions, split": (
        UNGROUPED,
        [PLAIN.format("x", "k"), PLAIN.format("x", "l")],
        [f"Split({PLAIN.format('x', 'Concat(k, l, axis=0)')}, axis=1, split=[o, i])[{j}]" for j in (0, 1)],
    ),
    "QKV, three-way": (
        {"x": "f[..., m, k]", "a": "f[k, p]", "b": "f[k, q]", "c": "f[k, r]"},
        ["MatMul(x, a)", "MatMul(x, b)", "MatMul(x, c)"],
        [f"Split(MatMul(x, Concat(a, b, c, axis=1)), axis=-1, split=[p, q, r])[{i}]" for i in range(3)],
    ),
    "1x1 enlarged": (
        {"x": "f[n, c, h, w]", "k": "f[o, c, 1, 1]", **SAME},
        ["Conv(x, k, dilations=[1, 1], group=1, pads=[0, 0, 0, 0], strides=s)"],
        [f"Conv(x, {ENLARGED.format('k')}, dilations=[1, 1], group=1, pads=p, strides=s)"],
    ),
    "RepVGG: 3x3 + 1x1 + identity": (
        {"x": "f[n, c, h, w]", "k": "f[c, c, p_0 + p_2 + 1, p_1 + p_3 + 1]", "l": "f[c, c, 1, 1]", "p": "ints[4]>=0"},
        [
            f"Add(Add({UNIT.format('x', 'k')}, Conv(x, l, dilations=[1, 1], group=1, pads=[0, 0, 0, 0], "
            "strides=[1, 1])), x)"
        ],
        [UNIT.format("x", f"Add(Add(k, {ENLARGED.format('l')}), {ENLARGED.format(EYE)})")],
    ),
    "LoRA": (
        {"x": "f[..., m, k]", "w": "f[k, n]", "a": "f[k, r]", "b": "f[r, n]"},
        ["Add(MatMul(x, w), MatMul(MatMul(x, a), b))"],
        ["MatMul(x, Add(w, MatMul(a, b)))"],
    ),
    "LoRA, scaled": (
        {"x": "f[..., m, k]", "w": "f[k, n]", "a": "f[k, r]", "b": "f[r, n]", "t": "f[]"},
        ["Add(MatMul(x, w), Mul(MatMul(MatMul(x, a), b), t))"],
        ["MatMul(x, Add(w, Mul(MatMul(a, b), t)))"],
    ),
    "associativity of linear attention": (
        {"q": "f[..., m, k]", "y": "f[..., n, k]", "v": "f[..., n, l]", "t": "f[]"},
        ["MatMul(Mul(MatMul(q, Transpose(y, perm=[..., -1, -2])), t), v)"],
        ["Mul(MatMul(q, MatMul(Transpose(y, perm=[..., -1, -2]), v)), t)"],
    ),
    "scale folded into weights": (
        {"x": "f[..., m, k]", "a": "f[k, n]", "b": "f[n]", "t": "f[n]"},
        ["Mul(Add(MatMul(x, a), b), t)"],
        ["Add(MatMul(x, Mul(a, t)), Mul(b, t))"],
    ),
    "MatMul + BatchNormalization": (
        {"x": "f[b, k]", "a": "f[k, n]", **dict.fromkeys(("q", "r", "m", "z"), "f[n]"), "e": "real>0"},
        ["BatchNormalization(MatMul(x, a), q, r, m, z, epsilon=e)"],
        [f"Add(MatMul(x, Mul(a, {SCALE})), Sub(r, Mul(m, {SCALE})))"],
    ),
    "LayerNormalization's affine part into the next product": (
        {"x": "f[m, n]", "q": "f[n]", "r": "f[n]", "a": "f[n, k]", "e": "real>0"},
        ["MatMul(LayerNormalization(x, q, r, axis=1, epsilon=e), a)"],
        [
            "Add(MatMul(LayerNormalization(x, ConstantOfShape(shape=[n], value=1.0), axis=1, epsilon=e), "
            "Mul(a, Reshape(q, shape=[n, 1]))), MatMul(r, a))"
        ],
    ),
    "gather before MatMul": (
        {"x": "f[m, k]", "a": "f[k, n]", "i": "i[l]<m"},
        ["Gather(MatMul(x, a), i, axis=0)"],
        ["MatMul(Gather(x, i, axis=0), a)"],
    ),
    "slice before MatMul": (
        {"x": "f[m, k]", "a": "f[k, n]", "z": "int>=0"},
        ["Slice(MatMul(x, a), axes=[0], ends=[m], starts=[z], steps=[1])"],
        ["MatMul(Slice(x, axes=[0], ends=[m], starts=[z], steps=[1]), a)"],
    ),
    "gates of a GRU or LSTM": (
        {"x": "f[m, p]", "y": "f[m, q]", "a": "f[p, n]", "c": "f[p, l]", "b": "f[q, n]", "d": "f[q, l]"},
        ["Add(MatMul(x, a), MatMul(y, b))", "Add(MatMul(x, c), MatMul(y, d))"],
        [
            f"Split(Add(MatMul(x, Concat(a, c, axis=1)), MatMul(y, Concat(b, d, axis=1))), axis=1, split=[n, l])[{i}]"
            for i in (0, 1)
        ],
    ),
    "siamese batch merge": (
        {"x": "f[m, k]", "y": "f[n, k]", "a": "f[k, l]"},
        ["MatMul(x, a)", "MatMul(y, a)"],
        [f"Split(MatMul(Concat(x, y, axis=0), a), axis=0, split=[m, n])[{i}]" for i in (0, 1)],
    ),
    "siamese convolutions": (
        {"x": "f[n, c, h, w]", "y": "f[m, c, h, w]", "k": "f[o, c, u, v]", **WINDOW},
        [PLAIN.format("x", "k"), PLAIN.format("y", "k")],
        [f"Split({PLAIN.format('Concat(x, y, axis=0)', 'k')}, axis=0, split=[n, m])[{i}]" for i in (0, 1)],
    ),
    "average pooling as convolution": (
        {"x": "f[n, c, h, w]", **WINDOW, "k": "ints[2]>=1"},
        ["AveragePool(x, count_include_pad=1, dilations=d, kernel_shape=k, pads=p, strides=s)"],
        [
            "Conv(x, Div(ConstantOfShape(shape=[c, 1, k_0, k_1], value=1.0), k_0*k_1), dilations=d, group=c, pads=p, "
            "strides=s)"
        ],
    ),
}


def tour() -> list[Rule]:
    """The rewrites, with their names as ids."""
    return [
        parse_rule({"id": name, "forall": forall, "lhs": left, "rhs": right})
        for name, (forall, left, right) in _ROWS.items()
    ]
