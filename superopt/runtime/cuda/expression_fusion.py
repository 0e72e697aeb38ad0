"""Meanings composed: a value's elements as one expression over the elements of other values.

Where an operator reads an intermediate value, the producer's body is put in at that index, so that a chain of
operators becomes the body of one kernel and the intermediate is never stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from math import prod

from superopt.ir.size_polynomial import Dim, FloorQuotient, mapped, substitute, sym
from superopt.ops.operator_semantics import (
    ElementRead,
    IndexCondition,
    ScalarCall,
    ScalarConditional,
    ScalarExpression,
    ScalarReduction,
    SizeExpression,
    TensorComprehension,
    number,
    parts,
    subexpressions,
    where,
)  # fmt: skip
from superopt.runtime.cuda.c_code_emitter import LONG, free, linear, terms

__all__ = ["FusedExpression", "calls", "inlined", "reads", "reduces", "remapped", "decided", "touches"]

Dimension = Callable[[Dim], Dim]


@dataclass(frozen=True)
class FusedExpression:
    """A value as a comprehension whose reads are of ``operands``, by position; all sizes are integers."""

    operands: tuple[str, ...]
    comprehension: TensorComprehension

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(int(s) for s in self.comprehension.shape if isinstance(s, int))

    @cached_property
    def digits(self) -> list[tuple[str, int]]:
        """Index variables with their extents, most significant first."""
        return [(v, e) for axis in self.comprehension.axes for v, e in axis if isinstance(e, int)]

    @cached_property
    def target(self) -> Dim:
        """The position of an element in row-major order, in terms of the index variables."""
        return linear([sym(v) for v, _ in self.digits], [e for _, e in self.digits])

    @cached_property
    def extents(self) -> list[int]:
        """Terms of each reduction inside."""
        found = [s for s in subexpressions(self.comprehension.body) if isinstance(s, ScalarReduction)]
        return [prod((e for _, e in terms(r)[0]), start=1) for r in found]


def _rebuilt(
    root: ScalarExpression,
    dimension: Dimension,
    at: Callable[[ElementRead], ScalarExpression],
    names: Mapping[str, str] | None = None,
) -> ScalarExpression:
    """The expression with dimensions and reads replaced; shared parts stay shared.

    Args:
        root: what to rebuild.
        dimension: what becomes of sizes and indices.
        at: what becomes of a read whose indices are already replaced.
        names: new names of reduction variables; ``dimension`` must agree.
    """
    made: dict[int, ScalarExpression] = {}
    for node in subexpressions(root):
        new = _shallow(node, made, dimension)
        if isinstance(new, ElementRead):
            new = at(new)
        elif isinstance(new, ScalarReduction):
            new = ScalarReduction(new.kind, (names or {}).get(new.variable, new.variable), new.extent, new.body)
        made[id(node)] = new
    return made[id(root)]


def reads(body: ScalarExpression) -> list[ElementRead]:
    """Every read inside, in order."""
    return [s for s in subexpressions(body) if isinstance(s, ElementRead)]


def reduces(body: ScalarExpression) -> bool:
    """Whether there is a reduction inside."""
    return any(isinstance(s, ScalarReduction) for s in subexpressions(body))


def calls(body: ScalarExpression) -> int:
    """Arithmetic operations for one element, reductions counted once."""
    return sum(isinstance(s, ScalarCall) for s in subexpressions(body))


def remapped(names: Sequence[str | None], comprehension: TensorComprehension) -> FusedExpression:
    """An operator's output over named arguments; one name is one operand."""
    operands: dict[str, int] = {}

    def at(read: ElementRead) -> ScalarExpression:
        name = names[read.operand]
        assert name is not None, "a meaning reads only arguments that are present"
        return ElementRead(operands.setdefault(name, len(operands)), read.index, read.outside)

    body = _rebuilt(comprehension.body, lambda d: d, at)
    return decided(FusedExpression(tuple(operands), TensorComprehension(comprehension.axes, body)))


def touches(user: FusedExpression, name: str) -> int:
    """How often a computation of all elements reads an operand: a part that is shared is made once, a long reduction
    once for all elements that differ in later axes than those it depends on (a row, which a block goes through).
    """
    elements = prod(user.shape, start=1)
    names = [v for v, _ in user.digits]
    total = 0
    seen: set[int] = set()
    waiting: list[tuple[ScalarExpression, int]] = [(user.comprehension.body, elements)]
    while waiting:
        node, times = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, ElementRead) and user.operands[node.operand] == name:
            total += times
        if isinstance(node, ScalarReduction) and isinstance(node.extent, int):
            needs = free(node)
            if needs.issubset(names) and prod((e for _, e in terms(node)[0]), start=1) >= LONG:
                last = max((names.index(v) for v in needs), default=-1)
                times = prod((e for _, e in user.digits[: last + 1]), start=1)
            times *= node.extent
        waiting.extend((part, times) for part in parts(node))
    return total


def inlined(consumer: FusedExpression, producers: Mapping[str, FusedExpression]) -> FusedExpression:
    """The consumer with the bodies of some of its operands put in where it reads them."""
    operands: dict[str, int] = {}
    fresh = count()

    def position(name: str) -> int:
        return operands.setdefault(name, len(operands))

    def at(read: ElementRead) -> ScalarExpression:
        name = consumer.operands[read.operand]
        producer = producers.get(name)
        if producer is None:
            return ElementRead(position(name), read.index, read.outside)
        return _element(producer, read, position, fresh)

    body = consumer.comprehension.body
    names = {n: f"s{next(fresh)}" for n in _reduced(body)}
    body = _rebuilt(body, lambda d: substitute(d, {n: sym(m) for n, m in names.items()}), at, names)
    return decided(FusedExpression(tuple(operands), TensorComprehension(consumer.comprehension.axes, body)))


def _reduced(body: ScalarExpression) -> list[str]:
    """Names of the reduction variables inside."""
    return list(dict.fromkeys(s.variable for s in subexpressions(body) if isinstance(s, ScalarReduction)))


def _element(
    producer: FusedExpression, read: ElementRead, position: Callable[[str], int], fresh: Iterator[int]
) -> ScalarExpression:
    """The producer's body at the index of a read."""
    binding: dict[str, Dim] = {}
    bounds: list[IndexCondition] = []
    for index, axis, size in zip(read.index, producer.comprehension.axes, producer.shape, strict=True):
        if isinstance(index, ScalarExpression):
            raise TypeError("an operand whose index depends on data cannot be put in place")
        if read.outside is not None:
            bounds += [IndexCondition("ge", index), IndexCondition("ge", size - 1 - index)]
        rest: Dim = index
        for place, (variable, extent) in enumerate(reversed(axis)):
            last = place == len(axis) - 1
            binding[variable] = rest if last else rest % extent
            rest = rest if last else rest // extent
    body = producer.comprehension.body
    names = {n: f"t{next(fresh)}" for n in _reduced(body)}
    binding.update({n: sym(m) for n, m in names.items()})

    def moved(inner: ElementRead) -> ScalarExpression:
        return ElementRead(position(producer.operands[inner.operand]), inner.index, inner.outside)

    element = _rebuilt(body, lambda d: substitute(d, binding), moved, names)
    return where(bounds, element, read.outside) if read.outside is not None else element


def decided(expression: FusedExpression) -> FusedExpression:
    """The expression with the divisions and conditions decided that the ranges of the index variables decide."""
    comprehension = expression.comprehension
    ranges = {v: (0, int(e) - 1) for axis in comprehension.axes for v, e in axis if isinstance(e, int)}
    for node in subexpressions(comprehension.body):
        if isinstance(node, ScalarReduction) and isinstance(node.extent, int):
            ranges[node.variable] = (0, node.extent - 1)

    def condition(c: IndexCondition) -> IndexCondition:
        low, high = bounds(c.size, ranges)
        if c.kind == "ge" and (low >= 0 or high < 0):
            return IndexCondition("ge", 0 if low >= 0 else -1)
        return c

    made: dict[int, ScalarExpression] = {}
    for node in subexpressions(comprehension.body):
        if isinstance(node, ScalarConditional):
            held = [condition(IndexCondition(c.kind, divided(c.size, ranges))) for c in node.conditions]
            made[id(node)] = where(held, made[id(node.then)], made[id(node.otherwise)])
        else:
            made[id(node)] = _shallow(node, made, lambda d: divided(d, ranges))
    return FusedExpression(expression.operands, TensorComprehension(comprehension.axes, made[id(comprehension.body)]))


def _shallow(node: ScalarExpression, made: Mapping[int, ScalarExpression], dimension: Dimension) -> ScalarExpression:
    """One node, its parts already made."""
    match node:
        case SizeExpression(size):
            return number(dimension(size))
        case ScalarCall(function, args):
            return ScalarCall(function, tuple(made[id(a)] for a in args))
        case ScalarReduction(kind, variable, extent, body):
            return ScalarReduction(kind, variable, dimension(extent), made[id(body)])
        case ScalarConditional(conditions, then, otherwise):
            held = [IndexCondition(c.kind, dimension(c.size)) for c in conditions]
            return where(held, made[id(then)], made[id(otherwise)])
        case ElementRead(operand, index, outside):
            moved = tuple(made[id(i)] if isinstance(i, ScalarExpression) else dimension(i) for i in index)
            return ElementRead(operand, moved, outside)
    return node


def bounds(size: Dim, ranges: Mapping[str, tuple[int, int]]) -> tuple[float, float]:
    """Least and largest value of an index expression, by interval arithmetic; infinite where a name has no range."""
    if isinstance(size, int):
        return size, size
    low = high = 0.0
    for monomial, coefficient in size.terms:
        least, most = float(coefficient), float(coefficient)
        for atom in monomial:
            if isinstance(atom, str):
                a, b = ranges.get(atom, (-math.inf, math.inf))
            else:
                a, b = _quotient(atom, ranges)
            ends = [x * y if x and y else 0.0 for x in (least, most) for y in (a, b)]
            least, most = min(ends), max(ends)
        low, high = low + least, high + most
    return low, high


def _quotient(atom: FloorQuotient, ranges: Mapping[str, tuple[int, int]]) -> tuple[float, float]:
    low, high = bounds(atom.numerator, ranges)
    if not isinstance(atom.denominator, int):
        return -math.inf, math.inf
    return (low // atom.denominator, high // atom.denominator) if math.isfinite(low + high) else (low, high)


def divided(size: Dim, ranges: Mapping[str, tuple[int, int]]) -> Dim:
    """The index expression without the floor divisions whose value the ranges decide."""
    return mapped(size, lambda atom: sym(atom) if isinstance(atom, str) else _divided(atom, ranges))


def _divided(atom: FloorQuotient, ranges: Mapping[str, tuple[int, int]]) -> Dim:
    inner = divided(atom.numerator, ranges) // divided(atom.denominator, ranges)
    if isinstance(inner, int) or len(inner.terms) != 1:
        return inner
    (monomial, coefficient) = inner.terms[0]
    if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], FloorQuotient):
        low, high = _quotient(monomial[0], ranges)
        if low == high:
            return int(low)
    return inner
