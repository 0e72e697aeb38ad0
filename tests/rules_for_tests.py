"""A handful of rules, each true, with which the search is tested."""

from __future__ import annotations

from superopt.rules import Rule, parse_rule

ROWS = {
    "qkv": {
        "forall": {"x": "f[..., b, k]", "a": "f[k, m]", "c": "f[k, n]"},
        "lhs": ["MatMul(x, a)", "MatMul(x, c)"],
        "rhs": [
            "Split(MatMul(x, Concat(a, c, axis=1)), axis=-1, split=[m, n])[0]",
            "Split(MatMul(x, Concat(a, c, axis=1)), axis=-1, split=[m, n])[1]",
        ],
    },
    "batch": {
        "forall": {"x": "f[b, k]", "y": "f[c, k]", "a": "f[k, m]"},
        "lhs": ["MatMul(x, a)", "MatMul(y, a)"],
        "rhs": [
            "Split(MatMul(Concat(x, y, axis=0), a), axis=0, split=[b, c])[0]",
            "Split(MatMul(Concat(x, y, axis=0), a), axis=0, split=[b, c])[1]",
        ],
    },
    "assoc": {
        "forall": {"x": "f[..., b, k]", "a": "f[k, m]", "c": "f[m, n]"},
        "lhs": ["MatMul(MatMul(x, a), c)"],
        "rhs": ["MatMul(x, MatMul(a, c))"],
    },
    "distribute": {
        "forall": {"x": "f[b, k]", "a": "f[k, m]", "c": "f[k, m]"},
        "lhs": ["Add(MatMul(x, a), MatMul(x, c))"],
        "rhs": ["MatMul(x, Add(a, c))"],
    },
    "relu-relu": {"forall": {"x": "f[..., n]"}, "lhs": ["Relu(Relu(x))"], "rhs": ["Relu(x)"]},
    "relu-split": {
        "forall": {"x": "f[m + n, k]", "m": "int>=1", "n": "int>=1"},
        "lhs": ["Relu(Split(x, axis=0, split=[m, n])[0])", "Relu(Split(x, axis=0, split=[m, n])[1])"],
        "rhs": ["Split(Relu(x), axis=0, split=[m, n])[0]", "Split(Relu(x), axis=0, split=[m, n])[1]"],
    },
    "concat-split": {
        "forall": {"x": "f[m + n, k]", "m": "int>=1", "n": "int>=1"},
        "lhs": ["Concat(Split(x, axis=0, split=[m, n])[0], Split(x, axis=0, split=[m, n])[1], axis=0)"],
        "rhs": ["x"],
    },
    "transpose-transpose": {
        "forall": {"x": "f[m, n]"},
        "lhs": ["Transpose(Transpose(x, perm=[1, 0]), perm=[1, 0])"],
        "rhs": ["x"],
    },
    "transpose-matmul": {
        "forall": {"x": "f[m, k]", "y": "f[k, n]"},
        "lhs": ["Transpose(MatMul(x, y), perm=[1, 0])"],
        "rhs": ["MatMul(Transpose(y, perm=[1, 0]), Transpose(x, perm=[1, 0]))"],
    },
    "mul-one": {"forall": {"x": "f[..., n]"}, "lhs": ["Mul(x, 1.0)"], "rhs": ["x"]},
    "scale": {
        "forall": {"x": "f[b, k]", "a": "f[k, m]", "s": "f[]"},
        "lhs": ["Mul(MatMul(x, a), s)"],
        "rhs": ["MatMul(x, Mul(a, s))"],
    },
    "add-assoc": {
        "forall": {"x": "f[m, n]", "y": "f[m, n]", "z": "f[m, n]"},
        "lhs": ["Add(Add(x, y), z)"],
        "rhs": ["Add(x, Add(y, z))"],
    },
    "square": {"forall": {"x": "f[m, n]"}, "lhs": ["Add(x, x)"], "rhs": ["Mul(x, 2.0)"]},
}


def rules(*names: str) -> tuple[Rule, ...]:
    """These rules, or all of them."""
    return tuple(parse_rule({"id": n, **ROWS[n]}, where=n) for n in (names or ROWS))
