"""A scale and shift that follow a linear operator, moved into its weights: BatchNormalization after Conv, and such."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from superopt.ir.terms import App, AttributeValue, Term, Var
from superopt.ir.types import TensorType
from superopt.ops.infer import Applied
from superopt.verifier.equivalence.constants import ModelConstants
from superopt.verifier.equivalence.weight_expressions import evaluated

__all__ = ["chained"]

_DEPTH = 8  # nodes behind a linear operator through which a scale and shift are followed


@dataclass(frozen=True)
class _Affine:
    """A value that is ``scale · core + shift`` for each channel; either may be absent."""

    value: str
    scale: Term | None
    shift: Term | None


@dataclass(frozen=True)
class _Core:
    """A linear operator on constant weights: its output's channel axis and channels, and how weights carry a scale."""

    weight: str
    bias: Term | None
    channels: int
    axis: int
    rank: int
    scaled: tuple[int, ...]  # the shape of a vector of scales that multiplies the weights
    matrix: bool = False  # the weights are a matrix, which another operator may want transposed


def _op(op: str, *args: Term, **attributes: AttributeValue) -> Term:
    return App(op, tuple(args), tuple(sorted(attributes.items())))


def chained(known: ModelConstants, made: Mapping[str, tuple[Applied, int]]) -> Iterator[tuple[Term, np.ndarray]]:
    """Expressions of weights and biases with what follows moved into them, with their values."""
    readers: dict[str, list[tuple[str, Applied]]] = {}
    for output, (form, position) in made.items():
        for arg in dict.fromkeys(form.args):
            if arg is not None and position == 0:
                readers.setdefault(arg, []).append((output, form))
    seen: set[Term] = set()
    for output, (form, _) in made.items():
        core = _core(known, output, form)
        if core is None:
            continue
        for state in _states(known, core, output, readers):
            for term in _terms(core, state):
                if term not in seen:
                    seen.add(term)
                    yield term, evaluated(term, known.arrays).value


def _core(known: ModelConstants, output: str, form: Applied) -> _Core | None:
    name, args = form.operator.name, form.args
    kind = known.typing.types.get(output)
    if (
        not isinstance(kind, TensorType)
        or kind.shape is None
        or name not in ("Conv", "ConvTranspose", "MatMul", "Gemm")
    ):
        return None
    weight = args[1]
    if weight is None or weight not in known.weights or args[0] in known.weights:
        return None
    shape = known.arrays[weight][0].shape
    rank = len(kind.shape)
    bias = args[2] if len(args) > 2 else None
    if bias is not None and bias not in known.weights:
        return None
    held = None if bias is None else Var(bias)
    if name == "Conv":
        return _Core(weight, held, shape[0], 1, rank, (shape[0], *(1,) * (len(shape) - 1)))
    if name == "ConvTranspose":
        if form.attributes.get("group") != 1:
            return None
        return _Core(weight, held, shape[1], 1, rank, (1, shape[1], *(1,) * (len(shape) - 2)))
    if name == "MatMul":
        return None if len(shape) < 2 else _Core(weight, None, shape[-1], rank - 1, rank, (shape[-1],), len(shape) == 2)
    if form.attributes.get("alpha") != 1.0 or (bias is not None and form.attributes.get("beta") != 1.0):
        return None
    if bias is not None and known.arrays[bias][0].ndim != 1:
        return None
    turned = form.attributes.get("transB") == 1
    return _Core(weight, held, shape[0 if turned else 1], 1, 2, (shape[0], 1) if turned else (shape[1],), True)


def _states(
    known: ModelConstants, core: _Core, output: str, readers: Mapping[str, list[tuple[str, Applied]]]
) -> Iterator[_Affine]:  # fmt: skip
    """What follows the operator channel by channel, as far as only constants are involved."""
    waiting = [(_Affine(output, None, None), 0)]
    while waiting:
        state, depth = waiting.pop()
        if depth:
            yield state
        if depth < _DEPTH:
            for following, form in readers.get(state.value, ()):
                found = _next(known, core, state, following, form)
                if found is not None:
                    waiting.append((found, depth + 1))


def _next(known: ModelConstants, core: _Core, state: _Affine, output: str, form: Applied) -> _Affine | None:
    name, args = form.operator.name, form.args
    if name == "BatchNormalization" and args[0] == state.value and core.axis == 1:
        vectors = [_vector(known, core, a, per_channel=True) for a in args[1:5]]
        if any(v is None for v in vectors):
            return None
        scale, beta, mean, variance = (v for v in vectors if v is not None)
        dtype = known.arrays[str(args[1])][1]
        epsilon = App(
            "Constant",
            (),
            (("dtype", str(dtype)), ("shape", (1,)), ("values", (float(form.attributes["epsilon"]),))),  # type: ignore[arg-type]
        )
        factor = _op("Div", scale, _op("Sqrt", _op("Add", variance, epsilon)))
        return _shifted(_times(_shifted(state, output, "Sub", mean), output, "Mul", factor), output, "Add", beta)
    if name not in ("Add", "Sub", "Mul", "Div") or len(args) != 2 or args[0] == args[1]:
        return None
    front = args[0] == state.value
    other = _vector(known, core, args[1] if front else args[0], per_channel=False)
    if other is None or (name == "Div" and not front):
        return None
    if name in ("Mul", "Div"):
        return _times(state, output, name, other)
    if front or name == "Add":
        return _shifted(state, output, name, other)
    negative = _Affine(
        output,
        _op("Neg", state.scale) if state.scale is not None else _op("Neg", _ones(known, core)),
        None if state.shift is None else _op("Neg", state.shift),
    )
    return _shifted(negative, output, "Add", other)


def _ones(known: ModelConstants, core: _Core) -> Term:
    dtype = str(known.arrays[core.weight][1])
    return App("Constant", (), (("dtype", dtype), ("shape", (1,)), ("values", (1.0,))))


def _times(state: _Affine, output: str, op: str, other: Term) -> _Affine:
    alone = other if op == "Mul" else _op("Reciprocal", other)
    scale = alone if state.scale is None else _op(op, state.scale, other)
    return _Affine(output, scale, None if state.shift is None else _op(op, state.shift, other))


def _shifted(state: _Affine, output: str, op: str, other: Term) -> _Affine:
    if state.shift is None:
        return _Affine(output, state.scale, other if op == "Add" else _op("Neg", other))
    return _Affine(output, state.scale, _op(op, state.shift, other))


def _vector(known: ModelConstants, core: _Core, name: str | None, *, per_channel: bool) -> Term | None:
    """A constant as a vector over the channels, or of one element where it is the same for all."""
    if name is None or name not in known.weights:
        return None
    shape = known.arrays[name][0].shape
    if per_channel:
        return Var(name) if shape == (core.channels,) else None
    padded = (*(1,) * (core.rank - len(shape)), *shape)
    if len(padded) != core.rank or any(n != 1 for a, n in enumerate(padded) if a != core.axis):
        return None
    wanted = (padded[core.axis],)
    if wanted[0] not in (1, core.channels):
        return None
    return Var(name) if shape == wanted else _op("Reshape", Var(name), shape=wanted)


def _terms(core: _Core, state: _Affine) -> Iterator[Term]:
    """The weights, and the bias, of the operator that does it all."""
    weight: Term = Var(core.weight)
    bias = core.bias
    scale = state.scale
    if scale is not None:
        shaped = scale
        if len(core.scaled) > 1:
            wide = core.channels
            full = _op("Expand", scale, shape=(wide,))
            shaped = _op("Reshape", full, shape=core.scaled)
        weight = _op("Mul", Var(core.weight), shaped)
        yield weight
        if core.matrix:
            yield _op("Transpose", weight, perm=(1, 0))
        bias = None if bias is None else _op("Mul", bias, scale)
    terms = [t for t in (bias, state.shift) if t is not None]
    if terms:
        whole = terms[0] if len(terms) == 1 else _op("Add", *terms)
        yield whole
        yield _op("Expand", whole, shape=(core.channels,))
