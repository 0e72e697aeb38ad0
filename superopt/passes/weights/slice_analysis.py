"""Slice analysis: which slices of a value are constant and which are equal, given the elements of the weights.

An operator's meaning is evaluated with one index variable (or the digits of one axis) at every position, and all others
open. A slice has a number, where all its elements are that number, and an identity: slices of equal identity are equal.
The analysis names no operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, prod
from zlib import crc32

import numpy as np

from superopt.ir.graph import WeightData
from superopt.ir.size_polynomial import Dim, SizePolynomial, sym, symbols
from superopt.ops import REGISTRY
from superopt.ops.operator_semantics import (
    Axis,
    ElementRead,
    IndexCondition,
    OperatorSemantics,
    ScalarCall,
    ScalarConditional,
    ScalarConstant,
    ScalarExpression,
    ScalarReduction,
    SizeExpression,
    TensorComprehension,
    subexpressions,
)
from superopt.ops.rounding_effects import EXACT, JUMPS
from superopt.program.constant_folding import data_of
from superopt.program.graph_program import GraphProgram, ProgramStep
from superopt.program.value_analysis import ANYTHING
from superopt.runtime.comprehension_evaluation import FLOAT64

__all__ = ["SliceFacts", "SliceAnalysis", "extents_of", "known_slices", "mixed", "of_text", "slices_of", "table"]


# -- Slices --------------------------------------------------------------------------------------------------------
#
# Facts about the slices of an array: their numbers, and which of them are equal.


@dataclass(frozen=True)
class SliceAnalysisPolicy:
    """How much of weights is looked at.

    Attributes:
        sample: elements of a slice by which slices are told apart before all of them are looked at.
        table: positions of an axis times those of other variables in the same index.
        kept_bytes: bytes of a weight that are held for who asks again; of larger ones, those of the last.
        largest_bytes: bytes of a weight whose elements are looked at.
        different: share by which a constant with rounding errors is clearly another.
    """

    sample: int = 32
    table: int = 1 << 22
    kept_bytes: int = 1 << 20
    largest_bytes: int = 1 << 28
    different: float = 1e-3


POLICY = SliceAnalysisPolicy()


@dataclass(frozen=True, eq=False)
class SliceFacts:
    """What is known of each slice along an axis.

    Attributes:
        number: float64[n], the one value of all elements; NaN where there is none that is known.
        exact: bool[n], whether that number has no rounding error.
        identity: uint64[n], equal for equal slices.
        finite: whether all elements are finite where the inputs are.
    """

    number: np.ndarray
    exact: np.ndarray
    identity: np.ndarray
    finite: bool = True

    @property
    def tells(self) -> bool:
        """Whether some slice is constant, or two are equal."""
        return bool(np.isfinite(self.number).any()) or len(set(self.identity.tolist())) < self.identity.size


def mixed(*parts: np.ndarray | int) -> np.ndarray:
    """A hash of 64 bits of arrays that broadcast (splitmix64's finaliser after each)."""
    found = np.asarray(0x9E3779B97F4A7C15, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for part in parts:
            found = (found ^ np.asarray(part, dtype=np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
            found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            found = found ^ (found >> np.uint64(31))
    return found


def _sampled(rows: np.ndarray) -> np.ndarray:
    """float64[n, m]: some elements of each row, at the same places. The others, which may be many, are not read."""
    inner = rows.shape[1:]
    every = np.arange(0, prod(inner), max(1, prod(inner) // POLICY.sample))
    places: tuple[np.ndarray, ...] = np.unravel_index(every, inner) if inner else ()
    chosen: tuple[slice | np.ndarray, ...] = (slice(None), *places)
    return rows[chosen].reshape(len(rows), -1).astype(np.float64) + 0.0  # −0 is 0


def _repeated(sample: np.ndarray) -> np.ndarray:
    """bool[n], whether a row equals another one; now and then where it does not."""
    bits = sample.view(np.uint64)
    keys = ((bits ^ (bits >> np.uint64(32))) * (mixed(np.arange(sample.shape[1])) | np.uint64(1))).sum(axis=1)
    order = np.argsort(keys)
    alike = keys[order[1:]] == keys[order[:-1]]
    found = np.zeros(len(sample), dtype=bool)
    found[order[1:][alike]] = found[order[:-1][alike]] = True
    return found


def of_text(text: str) -> int:
    """A hash of 64 bits."""
    data = text.encode()
    return crc32(data) << 32 | crc32(data[::-1] + b"\1")


def known_slices(number: np.ndarray, exact: np.ndarray, identity: np.ndarray, finite: bool) -> SliceFacts:
    """Slices whose constant ones are known by their number."""
    number = np.where(np.isfinite(number), number, np.nan) + 0.0
    by_number = mixed(np.ascontiguousarray(number).view(np.uint64), 1)
    return SliceFacts(number, exact, np.where(np.isfinite(number), by_number, mixed(identity, 2)), finite)


def slices_of(rows: np.ndarray, name: str) -> SliceFacts | None:
    """What is known of slices with these elements; ``None`` where that is nothing.

    Args:
        rows: a slice each along the first axis; of more than two axes, perhaps.
        name: of the value, by which slices are told from those of others.
    """
    sample = _sampled(rows)
    if sample.shape[1] == 1:
        chosen, number = [], np.where(np.isfinite(sample[:, 0]), sample[:, 0], np.nan)
    else:
        uniform = (sample == sample[:, :1]).all(axis=1)
        chosen, number = np.flatnonzero(uniform | _repeated(sample)).tolist(), np.full(len(rows), np.nan)
        if not chosen:
            return None
    identity = mixed(np.arange(len(rows), dtype=np.uint64), of_text(name))
    for position in chosen:
        row = rows[position].reshape(-1)
        row = row.astype(np.float32 if row.dtype.itemsize < 4 else row.dtype) + np.zeros((), np.float32)
        if uniform[position] and bool((row == row[0]).all()):
            number[position] = float(row[0])
        elif bool(np.isfinite(row).all()):
            data = row.tobytes()
            identity[position] = mixed(crc32(data), crc32(data[::-1]), len(data))
    made = known_slices(number, np.ones(len(rows), dtype=bool), identity, True)
    return made if made.tells else None


# -- Analysis ------------------------------------------------------------------------------------------------------


LONGEST = 1 << 16  # positions of an axis that is looked at


def extents_of(meaning: OperatorSemantics) -> Mapping[str, Dim]:
    """Index variables and their extents."""
    found = {v: e for c in meaning.outputs for axis in c.axes for v, e in axis}
    for comprehension in meaning.outputs:
        found.update(
            {s.variable: s.extent for s in subexpressions(comprehension.body) if isinstance(s, ScalarReduction)}
        )
    return found


def table(index: Dim, focus: Mapping[str, np.ndarray], extents: Mapping[str, Dim]) -> np.ndarray | None:
    """Positions int64[n, m] of an index: n places of the focus, m of all other variables in it; ``None``: not known."""
    names = symbols(index)
    others = sorted(names - focus.keys())
    ranges = [extents.get(o) for o in others]
    length = next(iter(focus.values())).size
    sizes = [r for r in ranges if isinstance(r, int)]
    if len(sizes) < len(ranges) or prod(sizes) * length > POLICY.table or isinstance(index, int):
        return None
    places: dict[str, np.ndarray] = {name: at[:, None] for name, at in focus.items()}
    if others:
        grids = np.meshgrid(*(np.arange(s, dtype=np.int64) for s in sizes), indexing="ij")
        places.update({o: g.reshape(1, -1) for o, g in zip(others, grids, strict=True)})
    if any(not isinstance(a, str) for monomial, _ in index.terms for a in monomial):
        return None
    total = np.zeros((length, prod(sizes)), dtype=np.int64)
    for monomial, coefficient in index.terms:
        term = np.asarray(coefficient, dtype=np.int64)
        for atom in monomial:
            assert isinstance(atom, str)
            term = term * places[atom]
        total = total + term
    return total


@dataclass(eq=False)
class SliceAnalysis:
    """Slices of a program's values along their axes, computed when they are asked for.

    ``finite`` takes running values to be finite, unless they come from weights with infinities: 0·x is 0.
    """

    program: GraphProgram
    finite: bool
    found: dict[tuple[str, int], SliceFacts | None] = field(default_factory=dict)
    arrays: dict[str, np.ndarray | None] = field(default_factory=dict)
    computed: dict[str, WeightData | None] = field(default_factory=dict)
    meanings: dict[int, OperatorSemantics] = field(default_factory=dict)

    def array(self, name: str) -> np.ndarray | None:
        """Elements of a constant; ``None`` where they are not there or too many."""
        if name not in self.arrays:
            for other in [n for n, held in self.arrays.items() if held is not None and held.nbytes > POLICY.kept_bytes]:
                del self.arrays[other]
            self.arrays[name] = self._read(name)
        return self.arrays[name]

    def _read(self, name: str) -> np.ndarray | None:
        kind = self.program.types.get(name)
        if kind is None or kind.nbytes is None or not 0 < kind.nbytes <= POLICY.largest_bytes:
            return None
        if name in self.program.graph.constants:
            data = self.program.graph.constants[name].data
        else:
            if name not in self.computed:  # it keeps what it computes
                self.computed[name] = data_of(self.program, name) if name in self.program.constant else None
            data = self.computed[name]
        return None if data is None else data.numpy()

    def meaning(self, position: int) -> OperatorSemantics | None:
        """Of a step; ``None`` for a barrier."""
        step = self.program.steps[position]
        if step.op == "":
            return None
        if position not in self.meanings:
            types = [None if a is None else self.program.types[a] for a in step.args]
            self.meanings[position] = REGISTRY[step.op].apply(types, dict(step.attributes))[0]
        return self.meanings[position]

    def compute(self) -> None:
        """Look at every axis of every value, operands first."""
        for position, step in enumerate(self.program.steps):
            meaning = self.meaning(position)
            if meaning is None or self.program.is_constant(step):
                continue
            for output, comprehension in zip(step.outputs, meaning.outputs, strict=False):
                if output:
                    for axis in range(len(comprehension.axes)):
                        self.found[output, axis] = self._result(step, meaning, comprehension, axis)

    def slices(self, name: str, axis: int) -> SliceFacts | None:
        """What is known of a value along an axis; ``None`` where that is nothing."""
        if (name, axis) not in self.found:
            constant, read = name in self.program.constant, self._exchanged(name, axis)
            found = self.slices(*read) if read is not None else self._of_weight(name, axis) if constant else None
            finite = found is not None and self.program.value_facts.get(name, ANYTHING).finite
            self.found[name, axis] = None if found is None else replace(found, finite=finite)
        return self.found[name, axis]

    def _exchanged(self, name: str, axis: int) -> tuple[str, int] | None:
        """The constant and its axis of which an axis of a constant is a copy, where a step only exchanges axes: then
        the elements, which may be many, need not be moved to be looked at."""
        position = self.program.maker.get(name) if name in self.program.constant else None
        meaning = None if position is None else self.meaning(position)
        if position is None or meaning is None or len(meaning.outputs) != 1:
            return None
        body, axes = meaning.outputs[0].body, meaning.outputs[0].axes
        if not isinstance(body, ElementRead) or body.outside is not None or any(len(digits) != 1 for digits in axes):
            return None
        own, source = [sym(digits[0][0]) for digits in axes], self.program.steps[position].args[body.operand]
        if source is None or len(body.index) != len(own) or any(variable not in body.index for variable in own):
            return None
        return source, body.index.index(own[axis])

    def uniform(self, name: str) -> float | None:
        """The one number of all elements of a value."""
        fact = self.program.facts.get(name)
        if fact is not None and fact.uniform is not None:
            return fact.uniform if isfinite(fact.uniform) else None
        for axis in range(len(self.program.types[name].shape or ())):
            slices = self.slices(name, axis)
            if slices is not None and bool((slices.number == slices.number[0]).all()):
                return float(slices.number[0])
        return None

    def _of_weight(self, name: str, axis: int) -> SliceFacts | None:
        array = self.array(name)
        if array is None or not 0 < array.shape[axis] <= LONGEST or array.dtype.kind not in "fbV":
            return None
        return slices_of(np.moveaxis(array, axis, 0), name)

    def _result(
        self, step: ProgramStep, meaning: OperatorSemantics, comprehension: TensorComprehension, axis: int
    ) -> SliceFacts | None:
        digits = comprehension.axes[axis]
        focus = _digits(digits)
        kind = self.program.types.get(step.outputs[0])
        if focus is None or kind is None or not (kind.dtype.is_float or kind.dtype == "bool"):
            return None
        if not self._varies_with_focus(step, comprehension.body, focus):
            return None
        types = [None if a is None else self.program.types[a] for a in step.args]
        if REGISTRY[step.op].rounding(types, dict(step.attributes)).narrows:
            return None
        found = _Focus(self, step, extents_of(meaning), focus).of(comprehension.body)
        return found if found.tells else None

    def _varies_with_focus(self, step: ProgramStep, body: ScalarExpression, focus: Mapping[str, np.ndarray]) -> bool:
        """Whether an operand's slices tell something along an axis that the focus runs over."""
        for scalar in subexpressions(body):
            if isinstance(scalar, ElementRead) and (name := step.args[scalar.operand]) is not None:
                for place, index in enumerate(scalar.index):
                    if (
                        isinstance(index, SizePolynomial)
                        and not symbols(index).isdisjoint(focus)
                        and self.slices(name, place)
                    ):
                        return True
        return False

    def terms(self, step: ProgramStep, meaning: OperatorSemantics, reduction: ScalarReduction) -> SliceFacts | None:
        """What is known of a sum's terms, by the position of its index variable."""
        extent = reduction.extent
        if not isinstance(extent, int) or not 1 < extent <= LONGEST:
            return None
        focus = {reduction.variable: np.arange(extent, dtype=np.int64)}
        if not self._varies_with_focus(step, reduction.body, focus):
            return None
        return _Focus(self, step, extents_of(meaning), focus).of(reduction.body)


def _digits(digits: Axis) -> Mapping[str, np.ndarray] | None:
    """The digits of an axis at each of its positions."""
    sizes = [e for _, e in digits if isinstance(e, int)]
    if len(sizes) < len(digits) or not digits or not 1 < prod(sizes) <= LONGEST:
        return None
    at = np.unravel_index(np.arange(prod(sizes)), sizes)
    return {v: p.astype(np.int64) for (v, _), p in zip(digits, at, strict=True)}


class _Focus:
    """Evaluates the body of one meaning with some variables at all their positions at once."""

    def __init__(
        self, values: SliceAnalysis, step: ProgramStep, extents: Mapping[str, Dim], focus: Mapping[str, np.ndarray]
    ) -> None:
        self.values, self.step, self.extents, self.focus = values, step, extents, focus
        self.length = next(iter(focus.values())).size
        self.places = mixed(np.arange(self.length, dtype=np.uint64), 3)

    def of(self, body: ScalarExpression) -> SliceFacts:
        """The body's slices. Iterative, because a meaning may be as deep as its operands are many."""
        found: dict[int, SliceFacts] = {}
        for scalar in subexpressions(body):
            found[id(scalar)] = self.one(scalar, found)
        return found[id(body)]

    def one(self, scalar: ScalarExpression, found: Mapping[int, SliceFacts]) -> SliceFacts:
        match scalar:
            case ScalarConstant(value):
                return self.constant(float(value))
            case SizeExpression(size):
                return self.size(size)
            case ElementRead():
                return self.read(scalar)
            case ScalarCall(function, args):
                return self.call(function, [found[id(a)] for a in args])
            case ScalarReduction(kind, _, extent, body):
                return self.reduced(kind, extent, found[id(body)])
            case ScalarConditional(conditions, then, otherwise):
                return self.where(conditions, found[id(then)], found[id(otherwise)])
        raise TypeError(f"not a scalar of the meaning language: {scalar!r}")

    def constant(self, value: float) -> SliceFacts:
        everywhere = np.full(self.length, value)
        if not isfinite(value):
            return self.unknown(of_text(str(value)), finite=False, same=True)
        return known_slices(everywhere, np.ones(self.length, dtype=bool), everywhere.view(np.uint64), True)

    def unknown(self, identity: np.ndarray | int, *, finite: bool = True, same: bool = False) -> SliceFacts:
        made = np.broadcast_to(mixed(identity, 4 if same else self.places), (self.length,))
        return SliceFacts(np.full(self.length, np.nan), np.zeros(self.length, dtype=bool), made, finite)

    def size(self, size: SizePolynomial) -> SliceFacts:
        names = symbols(size)
        if names.isdisjoint(self.focus):
            return self.unknown(of_text(str(size)), same=True)
        return self.unknown(of_text(str(size)))

    def read(self, read: ElementRead) -> SliceFacts:
        name = self.values.program.same.get(n, n) if (n := self.step.args[read.operand]) is not None else ""
        assert n is not None, "a meaning read an absent operand"
        finite = self.values.program.value_facts.get(n, ANYTHING).finite
        varying = [p for p, i in enumerate(read.index) if not self._names(i).isdisjoint(self.focus)]
        rest = "".join(f"{'*' if p in varying else i}," for p, i in enumerate(read.index)) + str(read.outside)
        if not varying:
            whole = self.values.uniform(n)
            if whole is not None and (read.outside is None or read.outside.value == whole):
                return self.constant(whole)
            return self.unknown(of_text(f"{name}[{rest}]"), finite=finite, same=True)
        index = read.index[varying[0]]
        at = table(index, self.focus, self.extents) if len(varying) == 1 and isinstance(index, SizePolynomial) else None
        if at is None or isinstance(index, ScalarExpression):
            return self.unknown(of_text(f"{name}[{rest}]"), finite=finite)
        return self.selected(read, n, varying[0], at, of_text(f"{name}[{rest}]{varying[0]}"), finite)

    def selected(self, read: ElementRead, name: str, axis: int, at: np.ndarray, rest: int, finite: bool) -> SliceFacts:
        """What an operand's slices say about those that are read: int64[n, m] of them."""
        shape = self.values.program.types[name].shape or ()
        size = shape[axis]
        if not isinstance(size, int):
            return self.unknown(rest, finite=finite)
        slices = self.values.slices(name, axis)
        inside = ((at >= 0) & (at < size)).all(axis=1)
        at = np.clip(at, 0, size - 1)
        if slices is None:
            identity, number, exact = mixed(at, 5), np.full(at.shape, np.nan), np.zeros(at.shape, dtype=bool)
        else:
            identity, number, exact = slices.identity[at], slices.number[at], slices.exact[at]
        one: np.ndarray = (number == number[:, :1]).all(axis=1) & inside
        if read.outside is not None and len(shape) > 1:
            one &= number[:, 0] == float(read.outside.value)
        made = mixed(*(identity[:, j] for j in range(at.shape[1])), rest) if at.shape[1] <= 64 else None
        if made is None:
            made = np.fromiter((of_text(row.tobytes().hex()) for row in identity), np.uint64, self.length)
            made = mixed(made, rest)
        made = np.where(inside, made, mixed(made, self.places))
        return known_slices(np.where(one, number[:, 0], np.nan), np.asarray(exact.all(axis=1)), made, finite)

    def call(self, function: str, args: Sequence[SliceFacts]) -> SliceFacts:
        finite = all(a.finite for a in args)
        identity = mixed(of_text(function), *(a.identity for a in args))
        numbers = [a.number for a in args]
        known = np.isfinite(np.stack(numbers)).all(axis=0)
        exact = np.stack([a.exact for a in args]).all(axis=0)
        with np.errstate(all="ignore"):
            made = FLOAT64.function(function, *(np.where(known, n, 1.0) for n in numbers)).astype(np.float64)
        number = np.where(known, made, np.nan)
        finite = finite and bool(np.isfinite(made[known]).all())
        if function in JUMPS:
            number = np.where(exact, number, np.nan)
        certain = exact & (function in EXACT)
        if function in (
            "max",
            "min",
        ):  # the one that is chosen counts, where a rounding error could not choose the other
            for one, other in (args, args[::-1]):
                apart = np.abs(one.number - other.number) > POLICY.different * np.abs(other.number)
                certain = np.where(known & one.exact & (number == one.number) & apart, True, certain)
        if function == "mul":
            for one, other in (args, args[::-1]):
                allowed = known | (self.values.finite and other.finite)
                zero = (one.number == 0) & allowed
                number, certain = np.where(zero, 0.0, number), np.where(zero, one.exact, certain)
                certain = np.where(exact & known & (np.abs(one.number) == 1), True, certain)
        if function == "add":
            for one in args:
                certain = np.where(exact & known & (one.number == 0), True, certain)
        if function == "select":
            condition, then, otherwise = args
            chosen = np.where(condition.number != 0, then.number, otherwise.number)
            settled = np.isfinite(condition.number) & condition.exact
            number = np.where(settled, chosen, number)
            certain = np.where(settled, np.where(condition.number != 0, then.exact, otherwise.exact), certain)
            taken = np.where(condition.number != 0, then.identity, otherwise.identity)
            identity = np.where(settled, taken, identity)
        return known_slices(number, certain.astype(bool), identity, finite)

    def reduced(self, kind: str, extent: Dim, body: SliceFacts) -> SliceFacts:
        identity = mixed(of_text(f"{kind} {extent}"), body.identity)
        number = body.number
        if kind == "sum":
            count = float(extent) if isinstance(extent, int) else np.nan
            number = np.where(number == 0, 0.0, number * count)
        elif kind == "prod":
            number = np.where((number == 0) | (number == 1), number, np.nan)
        if not isinstance(extent, int) or extent < 1:
            number = np.where(number == 0, number, np.nan) if kind == "sum" else np.full(self.length, np.nan)
        exact = body.exact & ((number == 0) | (kind in ("max", "min", "prod")))
        return known_slices(number, exact, identity, body.finite)

    def where(self, conditions: Sequence[IndexCondition], then: SliceFacts, otherwise: SliceFacts) -> SliceFacts:
        holds = np.ones(self.length, dtype=bool)
        text, open_ones = 0, False
        for condition in conditions:
            names = symbols(condition.size)
            if names and names <= self.focus.keys():
                at = table(condition.size, self.focus, self.extents)
                if at is not None:
                    value = at[:, 0]
                    held = value >= 0 if condition.kind == "ge" else (value == 0) == (condition.kind == "eq")
                    holds &= held
                    continue
            if not names.isdisjoint(self.focus):
                return self.unknown(mixed(then.identity, otherwise.identity), finite=then.finite and otherwise.finite)
            text, open_ones = of_text(f"{text} {condition}"), True
        finite = then.finite and otherwise.finite
        if not open_ones:
            number = np.where(holds, then.number, otherwise.number)
            exact = np.where(holds, then.exact, otherwise.exact)
            return known_slices(number, exact, np.where(holds, then.identity, otherwise.identity), finite)
        number = np.where(holds, np.where(then.number == otherwise.number, then.number, np.nan), otherwise.number)
        identity = np.where(holds, mixed(text, then.identity, otherwise.identity), otherwise.identity)
        return known_slices(number, then.exact & otherwise.exact, identity, finite)

    @staticmethod
    def _names(index: Dim | ScalarExpression) -> frozenset[str]:
        if not isinstance(index, ScalarExpression):
            return symbols(index)
        found: set[str] = set()
        for scalar in subexpressions(index):
            if isinstance(scalar, ElementRead):
                found |= {n for i in scalar.index if not isinstance(i, ScalarExpression) for n in symbols(i)}
            elif isinstance(scalar, SizeExpression):
                found |= symbols(scalar.size)
        return frozenset(found)
