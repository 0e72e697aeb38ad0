"""Seeded random models that compute on their weights: what an attacker of constant folding would write."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from graphs import f32, graph, op

from superopt.ir.graph import Graph, Node, Weight, constant

__all__ = ["constant_model"]

STEPS = 24
SIZE = 4
F32, F16, I64, BOOL = "float32", "float16", "int64", "bool"
CODE = {F32: 1, I64: 7, BOOL: 9, F16: 10}
NUMPY = {F32: np.float32, F16: np.float16, I64: np.int64, BOOL: np.bool_}
FLOATS = (F32, F16)


class _Maker:
    """Adds nodes over values of the shape [4, 4], by element type."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Node] = []
        self.weights: list[Weight] = []
        self.values: dict[str, list[str]] = {t: [] for t in CODE}
        for dtype in (F32, F32, F16, I64, BOOL):
            self.weight(dtype)

    def weight(self, dtype: str, shape: tuple[int, ...] = (SIZE, SIZE)) -> str:
        """Tenths, halves, integers and odd numbers: near what jumps."""
        drawn = self.rng.integers(-30, 30, shape)
        if dtype == BOOL:
            array = drawn % 2 == 0
        elif dtype == I64:
            array = np.where(drawn == 0, 1, drawn)
        else:
            kinds = (drawn / 10, drawn / 2, self.rng.standard_normal(shape), drawn * 0.7 + 0.1)
            array = kinds[self.rng.integers(len(kinds))]
        self.weights.append(constant(f"w{len(self.weights)}", np.asarray(array).astype(NUMPY[dtype])))
        if shape == (SIZE, SIZE):
            self.values[dtype].append(self.weights[-1].name)
        return self.weights[-1].name

    def any(self, dtype: str) -> str:
        return str(self.rng.choice(self.values[dtype][-6:]))

    def one(self, dtype: str, least: float = -3.0) -> str:
        """A number."""
        value = np.array(max(least, float(self.rng.integers(-30, 30)) / 10 + 0.05), NUMPY[dtype])
        self.weights.append(constant(f"w{len(self.weights)}", value))
        return self.weights[-1].name

    def add(self, result: str, kind: str, *inputs: str, **attributes: object) -> None:
        name = f"v{len(self.nodes)}"
        self.nodes.append(op(kind, name, *inputs, **attributes))
        self.values[result].append(name)


def _cast(m: _Maker) -> None:
    source, target = m.rng.choice(list(CODE), 2)
    if source in FLOATS and target == I64:  # out of range is undefined: bounded first
        _clip(m, str(source), 900.0)
        m.add(I64, "Cast", m.values[source][-1], to=CODE[I64])
        return
    m.add(str(target), "Cast", m.any(source), to=CODE[target])


def _unary(m: _Maker) -> None:
    dtype = str(m.rng.choice(FLOATS))
    kinds = ("Floor", "Ceil", "Round", "Sign", "Abs", "Neg", "Sigmoid", "Tanh", "Relu", "Exp", "Erf", "Softplus")
    kind = str(m.rng.choice(kinds))
    m.add(dtype, kind, m.any(dtype))


def _binary(m: _Maker) -> None:
    dtype = str(m.rng.choice((F32, F32, F16, I64)))
    kind = str(m.rng.choice(("Add", "Sub", "Mul", "Div", "Max", "Min")))
    divisor = kind == "Div" and dtype == I64  # by zero is undefined
    right = m.weight(I64) if divisor else m.any(dtype) if m.rng.random() < 0.5 else m.one(dtype)
    m.add(dtype, kind, m.any(dtype), right)


def _mod(m: _Maker) -> None:
    if m.rng.random() < 0.5:
        m.add(I64, "Mod", m.any(I64), m.weight(I64), fmod=int(m.rng.integers(2)))
    else:
        m.add(F32, "Mod", m.any(F32), m.one(F32), fmod=1)


def _compare(m: _Maker) -> None:
    dtype = str(m.rng.choice((F32, I64)))
    kind = str(m.rng.choice(("Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual")))
    m.add(BOOL, kind, m.any(dtype), m.any(dtype))


def _logic(m: _Maker) -> None:
    m.add(BOOL, str(m.rng.choice(("And", "Or", "Xor"))), m.any(BOOL), m.any(BOOL))


def _where(m: _Maker) -> None:
    dtype = str(m.rng.choice((F32, F16, I64)))
    m.add(dtype, "Where", m.any(BOOL), m.any(dtype), m.any(dtype))


def _gather(m: _Maker) -> None:
    dtype = str(m.rng.choice(list(CODE)))
    places = constant(f"i{len(m.nodes)}", m.rng.integers(-SIZE, SIZE, SIZE))
    m.weights.append(places)
    m.add(dtype, "Gather", m.any(dtype), places.name, axis=int(m.rng.integers(2)))


def _move(m: _Maker) -> None:
    dtype = str(m.rng.choice(list(CODE)))
    m.add(dtype, "Transpose", m.any(dtype), perm=(1, 0))


def _sum(m: _Maker) -> None:
    kind = str(m.rng.choice(("MatMul", "CumSum", "Softmax", "ReduceSum", "ReduceMean")))
    if kind == "MatMul":
        m.add(F32, "MatMul", m.any(F32), m.any(F32))
    elif kind == "Softmax":
        m.add(F32, "Softmax", m.any(F32), axis=1)
    else:
        axis = constant(f"i{len(m.nodes)}", np.array(1) if kind == "CumSum" else np.array([1]))
        m.weights.append(axis)
        m.add(F32, kind, m.any(F32), axis.name)
        if kind != "CumSum":  # [4, 1]: back to the common shape
            m.add(F32, "Add", m.values[F32].pop(), m.any(F32))


def _clip(m: _Maker, dtype: str = F32, limit: float = 1.1) -> None:
    low, high = (constant(f"c{len(m.nodes)}{s}", np.array(v, NUMPY[dtype])) for s, v in (("l", -limit), ("h", limit)))
    m.weights += [low, high]
    m.add(dtype, "Clip", m.any(dtype), low.name, high.name)


KINDS: tuple[Callable[[_Maker], None], ...] = (
    _cast, _cast, _unary, _unary, _unary, _binary, _binary, _binary, _mod, _compare, _logic, _where, _gather, _move,
    _sum, _clip,
)  # fmt: skip


def constant_model(seed: int) -> Graph:
    """A product of the input with what two dozen random operators make of weights."""
    made = _Maker(seed)
    while len(made.nodes) < STEPS:
        KINDS[made.rng.integers(len(KINDS))](made)
    made.add(F32, "Where", made.any(BOOL), made.values[F32][-1], made.any(F32))
    last = made.values[F32][-1]
    tail = [op("MatMul", "h", "x", last), op("Relu", "r", "h"), op("Relu", "y", "r")]
    return graph({"x": f32(3, SIZE)}, ["y"], made.weights, [*made.nodes, *tail])
