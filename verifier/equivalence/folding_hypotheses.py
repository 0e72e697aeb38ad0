"""Hypotheses on how a constant of the second model was computed from constants of the first; each is checked later.

Tools fold constants without recording how. Their folds are few: a constant subgraph evaluated, a copy in another
layout, constants concatenated or split, two scalars multiplied, an irrational number written as a decimal, and a scale
and shift after Conv, ConvTranspose, MatMul or Gemm moved into its weights (as BatchNormalization after Conv). A
hypothesis is an expression over the first model's constants.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations

import numpy as np

from superopt.ir.terms import AttributeValue, OperatorTerm, OutputTerm, Term, VariableTerm, postorder
from superopt.ir.types import DType, TensorType
from superopt.ops.shape_inference import CanonicalNode
from superopt.verifier.equivalence.runtime_folded_constants import ModelConstants
from superopt.verifier.equivalence.weight_expressions import evaluated

__all__ = ["FoldHypotheses", "chained", "irrational"]

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


def chained(known: ModelConstants, made: Mapping[str, tuple[CanonicalNode, int]]) -> Iterator[tuple[Term, np.ndarray]]:
    """Expressions of weights and biases with what follows moved into them, with their values."""
    readers: dict[str, list[tuple[str, CanonicalNode]]] = {}
    for output, (form, position) in made.items():
        for arg in dict.fromkeys(form.args):
            if arg is not None and position == 0:
                readers.setdefault(arg, []).append((output, form))
    seen_terms: set[Term] = set()
    for output, (form, _) in made.items():
        core = _core(known, output, form)
        if core is None:
            continue
        for state in _states(known, core, output, readers):
            for term in _terms(core, state):
                if term not in seen_terms:
                    seen_terms.add(term)
                    yield term, evaluated(term, known.arrays).value


def _core(known_constants: ModelConstants, output: str, form: CanonicalNode) -> _Core | None:
    name, args = form.operator.name, form.args
    kind = known_constants.typing.types.get(output)
    if (
        not isinstance(kind, TensorType)
        or kind.shape is None
        or name not in ("Conv", "ConvTranspose", "MatMul", "Gemm")
    ):
        return None
    weight = args[1]
    if weight is None or weight not in known_constants.weights or args[0] in known_constants.weights:
        return None
    shape = known_constants.arrays[weight][0].shape
    rank = len(kind.shape)
    bias = args[2] if len(args) > 2 else None
    if bias is not None and bias not in known_constants.weights:
        return None
    held = None if bias is None else VariableTerm(bias)
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
    if bias is not None and known_constants.arrays[bias][0].ndim != 1:
        return None
    turned = form.attributes.get("transB") == 1
    return _Core(weight, held, shape[0 if turned else 1], 1, 2, (shape[0], 1) if turned else (shape[1],), True)


def _states(
    known_constants: ModelConstants, core: _Core, output: str, readers: Mapping[str, list[tuple[str, CanonicalNode]]]
) -> Iterator[_Affine]:  # fmt: skip
    """What follows the operator channel by channel, as far as only constants are involved."""
    waiting = [(_Affine(output, None, None), 0)]
    while waiting:
        state, depth = waiting.pop()
        if depth:
            yield state
        if depth < _DEPTH:
            for following, form in readers.get(state.value, ()):
                found = _next(known_constants, core, state, following, form)
                if found is not None:
                    waiting.append((found, depth + 1))


def _next(
    known_constants: ModelConstants, core: _Core, state: _Affine, output: str, form: CanonicalNode
) -> _Affine | None:
    name, args = form.operator.name, form.args
    if name == "BatchNormalization" and args[0] == state.value and core.axis == 1:
        vectors = [_vector(known_constants, core, a, per_channel=True) for a in args[1:5]]
        if any(v is None for v in vectors):
            return None
        scale, beta, mean, variance = (v for v in vectors if v is not None)
        dtype = known_constants.arrays[str(args[1])][1]
        epsilon = OperatorTerm(
            "Constant",
            (),
            (("dtype", str(dtype)), ("shape", (1,)), ("values", (float(form.attributes["epsilon"]),))),  # type: ignore[arg-type]
        )
        factor = _op("Div", scale, _op("Sqrt", _op("Add", variance, epsilon)))
        return _shifted(_times(_shifted(state, output, "Sub", mean), output, "Mul", factor), output, "Add", beta)
    if name not in ("Add", "Sub", "Mul", "Div") or len(args) != 2 or args[0] == args[1]:
        return None
    front = args[0] == state.value
    other = _vector(known_constants, core, args[1] if front else args[0], per_channel=False)
    if other is None or (name == "Div" and not front):
        return None
    if name in ("Mul", "Div"):
        return _times(state, output, name, other)
    if front or name == "Add":
        return _shifted(state, output, name, other)
    negative = _Affine(
        output,
        _op("Neg", state.scale) if state.scale is not None else _op("Neg", _ones(known_constants, core)),
        None if state.shift is None else _op("Neg", state.shift),
    )
    return _shifted(negative, output, "Add", other)


def _ones(known_constants: ModelConstants, core: _Core) -> Term:
    dtype = str(known_constants.arrays[core.weight][1])
    return OperatorTerm("Constant", (), (("dtype", dtype), ("shape", (1,)), ("values", (1.0,))))


def _times(state: _Affine, output: str, op: str, other: Term) -> _Affine:
    alone = other if op == "Mul" else _op("Reciprocal", other)
    scale = alone if state.scale is None else _op(op, state.scale, other)
    return _Affine(output, scale, None if state.shift is None else _op(op, state.shift, other))


def _shifted(state: _Affine, output: str, op: str, other: Term) -> _Affine:
    if state.shift is None:
        return _Affine(output, state.scale, other if op == "Add" else _op("Neg", other))
    return _Affine(output, state.scale, _op(op, state.shift, other))


def _vector(known_constants: ModelConstants, core: _Core, name: str | None, *, per_channel: bool) -> Term | None:
    """A constant as a vector over the channels, or of one element where it is the same for all."""
    if name is None or name not in known_constants.weights:
        return None
    shape = known_constants.arrays[name][0].shape
    if per_channel:
        return VariableTerm(name) if shape == (core.channels,) else None
    padded = (*(1,) * (core.rank - len(shape)), *shape)
    if len(padded) != core.rank or any(n != 1 for a, n in enumerate(padded) if a != core.axis):
        return None
    wanted = (padded[core.axis],)
    if wanted[0] not in (1, core.channels):
        return None
    return VariableTerm(name) if shape == wanted else _op("Reshape", VariableTerm(name), shape=wanted)


def _terms(core: _Core, state: _Affine) -> Iterator[Term]:
    """The weights, and the bias, of the operator that does it all."""
    weight: Term = VariableTerm(core.weight)
    bias = core.bias
    scale = state.scale
    if scale is not None:
        shaped = scale
        if len(core.scaled) > 1:
            wide = core.channels
            full = _op("Expand", scale, shape=(wide,))
            shaped = _op("Reshape", full, shape=core.scaled)
        weight = _op("Mul", VariableTerm(core.weight), shaped)
        yield weight
        if core.matrix:
            yield _op("Transpose", weight, perm=(1, 0))
        bias = None if bias is None else _op("Mul", bias, scale)
    terms = [t for t in (bias, state.shift) if t is not None]
    if terms:
        whole = terms[0] if len(terms) == 1 else _op("Add", *terms)
        yield whole
        yield _op("Expand", whole, shape=(core.channels,))


_LONGEST = 60  # operators of a constant subgraph that is put back
_SCALARS = 48  # distinct scalars whose products and quotients are tried
_NEAR = 1e-4  # relative: worth checking
_RANK = 5  # axes up to which layouts are tried


def number(value: float, dtype: DType, shape: tuple[int, ...] = ()) -> Term:
    """A literal of one element."""
    return OperatorTerm("Constant", (), (("dtype", str(dtype)), ("shape", shape), ("values", (value,))))


def _op(op: str, *args: Term, **attributes: AttributeValue) -> Term:
    return OperatorTerm(op, tuple(args), tuple(sorted(attributes.items())))


def irrational(value: float, dtype: DType, shape: tuple[int, ...]) -> Term | None:
    """What irrational number of Gelu's a decimal stands for, to its type's last place: √2, 1/√2 or √(2/π)."""
    quarter = _op("Mul", number(2.0, dtype, shape), _op("Atan", number(1.0, dtype, shape)))
    known = (
        (2.0**0.5, _op("Sqrt", number(2.0, dtype, shape))),
        (0.5**0.5, _op("Sqrt", number(0.5, dtype, shape))),
        ((2.0 / np.pi) ** 0.5, _op("Sqrt", _op("Reciprocal", quarter))),
    )
    for exact, term in known:
        if np.asarray(exact).astype(dtype.numpy) == np.asarray(value).astype(dtype.numpy):
            return term
    return None


class FoldHypotheses:
    """Hypotheses on how constants were folded from one model's."""

    def __init__(self, known: ModelConstants) -> None:
        self.constants = known
        self.producers: dict[str, tuple[CanonicalNode, int]] = {}
        for node, form in zip(known.graph.nodes, known.typing.nodes, strict=True):
            for position, output in enumerate(node.outputs):
                if output and isinstance(form, CanonicalNode):
                    self.producers[output] = form, position

    def guesses(self, array: np.ndarray, dtype: DType) -> Iterator[Term]:
        """Expressions whose value may be these elements, the simplest first."""
        if dtype.is_float and array.size == 1:
            found_term = irrational(float(array.reshape(-1)[0]), dtype, array.shape)
            if found_term is not None:
                yield found_term
        yield from self._copies(array, dtype)
        if not dtype.is_float or not array.size:
            return
        if array.size > 1:
            yield from self._joined(array, dtype)
        if array.size == 1:
            yield from self._scalars(float(array.reshape(-1)[0]), dtype, array.shape)
        sample = _sample(array)
        for shape, numbers, term in self._folded:
            if shape == array.shape and np.allclose(sample, numbers, rtol=_NEAR, atol=_NEAR * np.abs(numbers).max()):
                yield term

    # ── copies ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _copies(self, array: np.ndarray, dtype: DType) -> Iterator[Term]:
        """The same elements in another shape or order of axes."""
        for name in self._same_elements.get(_elements(array, dtype), ()):
            source = self.constants.arrays[name][0]
            if np.array_equal(source.reshape(-1), array.reshape(-1)):
                yield _shaped(VariableTerm(name), source.shape, array.shape)
            elif source.ndim <= _RANK:
                for perm in permutations(range(source.ndim)):
                    moved = source.transpose(perm)
                    if np.array_equal(moved.reshape(-1), array.reshape(-1)):
                        yield _shaped(_op("Transpose", VariableTerm(name), perm=perm), moved.shape, array.shape)
                        break

    def _joined(self, array: np.ndarray, dtype: DType) -> Iterator[Term]:
        """Constants one after the other along an axis, or a run of one constant."""
        for axis in range(array.ndim):
            rest = (*array.shape[:axis], *array.shape[axis + 1 :])
            like = [
                (n, held)
                for n, (held, kind) in self.constants.arrays.items()
                if kind == dtype and held.ndim == array.ndim and held.size
                and (*held.shape[:axis], *held.shape[axis + 1 :]) == rest
            ]  # fmt: skip
            parts: list[str] = []
            at = 0
            while at < array.shape[axis]:
                found = next((n for n, h in like if _is_at(h, array, axis, at)), None)
                if found is None:
                    break
                parts.append(found)
                at += self.constants.arrays[found][0].shape[axis]
            if at == array.shape[axis] and len(parts) > 1:
                yield _op("Concat", *map(VariableTerm, parts), axis=axis)
            for name, held in like:
                if held.shape[axis] <= array.shape[axis]:
                    continue
                for start in _starts(held, array, axis):
                    end = start + array.shape[axis]
                    yield _op("Slice", VariableTerm(name), starts=(start,), ends=(end,), axes=(axis,), steps=(1,))
                    break

    @cached_property
    def _same_elements(self) -> Mapping[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, (array, dtype) in self.constants.arrays.items():
            if array.dtype.kind in "fiub" and array.size:
                found.setdefault(_elements(array, dtype), []).append(name)
        return found

    # ── scalars ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _scalars(self, value: float, dtype: DType, shape: tuple[int, ...]) -> Iterator[Term]:
        """A reciprocal, product or quotient of two scalars."""
        numbers = self._numbers.get(dtype, [])
        near = 2.0**-6 * abs(value) + 1e-300 if dtype.bits < 32 else _NEAR * abs(value) + 1e-300
        for first, one in numbers:
            if first and abs(1.0 / first - value) <= near:
                yield _shaped(_op("Reciprocal", one), (1,), shape)
        for first, one in numbers:
            for second, other in numbers:
                if abs(first * second - value) <= near:
                    yield _shaped(_op("Mul", one, other), (1,), shape)
                if second and abs(first / second - value) <= near:
                    yield _shaped(_op("Div", one, other), (1,), shape)

    @cached_property
    def _numbers(self) -> Mapping[DType, list[tuple[float, Term]]]:
        found: dict[DType, dict[float, Term]] = {}
        for name, (array, dtype) in self.constants.arrays.items():
            if dtype.is_float and array.size == 1 and np.isfinite(float(array.reshape(-1)[0])):
                value = float(array.reshape(-1)[0])
                held = found.setdefault(dtype, {})
                if len(held) < _SCALARS:
                    held.setdefault(value, _shaped(VariableTerm(name), array.shape, (1,)))
        return {d: list(v.items()) for d, v in found.items()}

    # ── folded subgraphs and chains ───────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def _folded(self) -> Sequence[tuple[tuple[int, ...], np.ndarray, Term]]:
        """Shape, a sample of the elements, and the expression of every constant that a fold could have made."""
        found: list[tuple[tuple[int, ...], np.ndarray, Term]] = []
        for name, array in self.constants.computed.arrays.items():
            if array.dtype.kind == "f" and array.size and name in self.constants.weights:
                found.append((array.shape, _sample(array), self._opened(name)))
        for term, value in chained(self.constants, self.producers):
            found.append((value.shape, _sample(value), term))
        return found

    def _opened(self, name: str) -> Term:
        """What a computed constant is computed by; itself where that is opaque or long."""
        terms: dict[str, Term] = {}
        stack = [(name, False)]
        while stack:
            current, ready = stack.pop()
            if current in terms:
                continue
            made = self.producers.get(current)
            if made is None:
                if current not in self.constants.weights:
                    return VariableTerm(name)
                terms[current] = VariableTerm(current)
                continue
            form, position = made
            if not ready:
                stack += [(current, True), *((a, False) for a in form.args if a is not None)]
                if len(stack) > _LONGEST:
                    return VariableTerm(name)
                continue
            app = OperatorTerm(
                form.operator.name,
                tuple(None if a is None else terms[a] for a in form.args),
                tuple(sorted(form.attributes.items())),
            )
            several = len(form.operator.outputs) > 1 or form.operator.outputs[0].endswith("*")
            terms[current] = OutputTerm(app, position) if several else app
        return terms[name] if sum(1 for _ in postorder(terms[name])) <= _LONGEST else VariableTerm(name)


def _shaped(term: Term, shape: Sequence[int], wanted: Sequence[int]) -> Term:
    return term if tuple(shape) == tuple(wanted) else _op("Reshape", term, shape=tuple(map(int, wanted)))


def _is_at(part: np.ndarray, whole: np.ndarray, axis: int, at: int) -> bool:
    """Whether an array is a run of another, from a position of an axis on."""
    end = at + part.shape[axis]
    if end > whole.shape[axis]:
        return False
    run = whole[(*(slice(None),) * axis, slice(at, end))]
    return run.flat[0] == part.flat[0] and np.array_equal(run, part)


def _starts(whole: np.ndarray, part: np.ndarray, axis: int) -> Iterator[int]:
    """Positions of an axis from which an array is a run of another."""
    corner = np.moveaxis(whole, axis, 0).reshape(whole.shape[axis], -1)[:, 0]
    for start in np.flatnonzero(corner[: whole.shape[axis] - part.shape[axis] + 1] == part.flat[0]):
        if _is_at(part, whole, axis, int(start)):
            yield int(start)


def _elements(array: np.ndarray, dtype: DType) -> str:
    """A name for the elements in any order."""
    ordered = np.sort(array.reshape(-1), kind="stable") if array.dtype.isbuiltin == 1 else array.reshape(-1)
    return f"{dtype} {array.size} {hashlib.sha256(np.ascontiguousarray(ordered).tobytes()).hexdigest()}"


def _sample(array: np.ndarray) -> np.ndarray:
    """Up to 32 elements at fixed places."""
    flat = array.reshape(-1)
    return np.asarray(flat[np.linspace(0, flat.size - 1, min(flat.size, 32)).astype(int)], dtype=np.float64)
