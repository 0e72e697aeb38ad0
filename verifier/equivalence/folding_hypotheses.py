"""How a constant of the second model may have been computed from constants of the first: guesses, to be checked.

Tools fold without saying what they did. The folds that they make are few: a constant subgraph evaluated, a copy in
another layout, constants put side by side or taken apart, a scale and shift behind Conv, ConvTranspose, MatMul or Gemm
moved into its weights, two scalars made one, an irrational number written as a decimal. A guess is an expression over
the first model's constants.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import permutations

import numpy as np

from superopt.ir.terms import App, AttributeValue, Project, Term, Var, postorder
from superopt.ir.types import DType
from superopt.ops.infer import Applied
from superopt.verifier.equivalence.affine_chains import chained
from superopt.verifier.equivalence.constants import ModelConstants

__all__ = ["Folds", "irrational"]

_LONGEST = 60  # operators of a constant subgraph that is put back
_SCALARS = 48  # distinct scalars whose products and quotients are tried
_NEAR = 1e-4  # relative: worth checking
_RANK = 5  # axes up to which layouts are tried


def number(value: float, dtype: DType, shape: tuple[int, ...] = ()) -> Term:
    """A literal of one element."""
    return App("Constant", (), (("dtype", str(dtype)), ("shape", shape), ("values", (value,))))


def _op(op: str, *args: Term, **attributes: AttributeValue) -> Term:
    return App(op, tuple(args), tuple(sorted(attributes.items())))


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


class Folds:
    """Guesses of how constants were folded from one model's."""

    def __init__(self, known: ModelConstants) -> None:
        self.constants = known
        self.producers: dict[str, tuple[Applied, int]] = {}
        for node, form in zip(known.graph.nodes, known.typing.nodes, strict=True):
            for position, output in enumerate(node.outputs):
                if output and isinstance(form, Applied):
                    self.producers[output] = form, position

    def guesses(self, array: np.ndarray, dtype: DType) -> Iterator[Term]:
        """Expressions whose value may be these elements, the simplest first."""
        if dtype.is_float and array.size == 1:
            found = irrational(float(array.reshape(-1)[0]), dtype, array.shape)
            if found is not None:
                yield found
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
                yield _shaped(Var(name), source.shape, array.shape)
            elif source.ndim <= _RANK:
                for perm in permutations(range(source.ndim)):
                    moved = source.transpose(perm)
                    if np.array_equal(moved.reshape(-1), array.reshape(-1)):
                        yield _shaped(_op("Transpose", Var(name), perm=perm), moved.shape, array.shape)
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
                yield _op("Concat", *map(Var, parts), axis=axis)
            for name, held in like:
                if held.shape[axis] <= array.shape[axis]:
                    continue
                for start in _starts(held, array, axis):
                    end = start + array.shape[axis]
                    yield _op("Slice", Var(name), starts=(start,), ends=(end,), axes=(axis,), steps=(1,))
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
                    held.setdefault(value, _shaped(Var(name), array.shape, (1,)))
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
                    return Var(name)
                terms[current] = Var(current)
                continue
            form, position = made
            if not ready:
                stack += [(current, True), *((a, False) for a in form.args if a is not None)]
                if len(stack) > _LONGEST:
                    return Var(name)
                continue
            app = App(
                form.operator.name,
                tuple(None if a is None else terms[a] for a in form.args),
                tuple(sorted(form.attributes.items())),
            )
            several = len(form.operator.outputs) > 1 or form.operator.outputs[0].endswith("*")
            terms[current] = Project(app, position) if several else app
        return terms[name] if sum(1 for _ in postorder(terms[name])) <= _LONGEST else Var(name)


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
