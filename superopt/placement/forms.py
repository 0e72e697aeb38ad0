"""The partitioned forms of an operator, read off its meaning.

A form says: with these placements of the operands, each device applies the operator, with these attributes, to its own
pieces, and has the pieces of the results in those placements. No operator is named here:

* An index of an output can be divided among devices if every read of an operand either has it, at one and the same
  axis, with the piece that a device needs lying in its own piece, or does not have it: split operands and results.
* So can the index of a sum: each device has a term of the result, which is partial.
* What is linear in operands that are partial is partial.

This proposes forms. :mod:`superopt.placement.statements` states each for any sizes and any number of devices, and only
those that the verifier proves are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, islice, product

from superopt.ir.size_polynomial import Dim, FloorQuotient, SizePolynomial, substitute, sym, symbols
from superopt.ir.terms import Attributes, AttributeValue
from superopt.ir.types import TensorType
from superopt.ops.operator_definition import Operator
from superopt.ops.operator_semantics import (
    ElementRead,
    IllTypedOperator,
    ScalarCall,
    ScalarConditional,
    ScalarConstant,
    ScalarExpression,
    ScalarReduction,
    SizeExpression,
    TensorComprehension,
    subexpressions,
)
from superopt.ops.shape_inference import MALFORMED
from superopt.placement.placements import PARTIAL, REPLICATED, Placement, local_type, split

__all__ = ["Form", "candidates", "replicated_form"]

_Types = tuple[TensorType | None, ...]
_Effect = Mapping[int, int | None]  # by operand that is read: the axis along which it is split, or none
_ATTRIBUTES = 8  # choices of attributes that are tried for one form
_PARTIAL = 4  # operands that are partial together, at most


class _NotDivisibleError(Exception):
    """The index cannot be divided among devices."""


@dataclass(frozen=True)
class Form:
    """Placements of operands (``None``: absent) and results, and the attributes of a device's own application."""

    attributes: Attributes
    operands: tuple[Placement | None, ...]
    results: tuple[Placement, ...]

    def __str__(self) -> str:
        given = ", ".join("-" if o is None else str(o) for o in self.operands)
        return f"({given}) → {', '.join(map(str, self.results))}"


def replicated_form(attributes: Attributes, types: Sequence[TensorType | None], results: int) -> Form:
    """Every device does the same."""
    return Form(attributes, tuple(None if t is None else REPLICATED for t in types), (REPLICATED,) * results)


@lru_cache(maxsize=1 << 14)
def candidates(operator: Operator, attributes: Attributes, types: _Types, count: int) -> tuple[tuple[Form, ...], ...]:
    """Forms on ``count`` devices that the meaning suggests: for each choice of placements the choices of attributes.

    Args:
        operator: its record.
        attributes: canonical ones.
        types: of the operands, of known sizes.
        count: devices.
    """
    try:
        meaning, made = operator.apply(types, dict(attributes))
    except IllTypedOperator:
        return ()
    found: dict[tuple[tuple[Placement | None, ...], tuple[Placement, ...]], tuple[Form, ...]] = {}
    for operands, results in _placements(meaning.outputs, types, made, count):
        if (operands, results) not in found:
            forms = _with_attributes(operator, attributes, types, made, operands, results, count)
            found[operands, results] = tuple(islice(forms, _ATTRIBUTES))
    return tuple(forms for forms in found.values() if forms)


def _placements(
    outputs: Sequence[TensorComprehension], types: _Types, made: Sequence[TensorType], count: int
) -> Iterator[tuple[tuple[Placement | None, ...], tuple[Placement, ...]]]:
    present = [p for p, t in enumerate(types) if t is not None]
    first, *others = ([(a, e) for a in range(len(o.axes)) if (e := _split_output(o, a, types, count))] for o in outputs)
    for axis, effect in first:
        axes, joined = [axis], dict(effect)
        for choices in others:
            fitting = ((a, e) for a, e in choices if all(joined.get(p, k) == k for p, k in e.items()))
            for other, further in islice(fitting, 1):
                axes.append(other)
                joined |= further
        if len(axes) == len(outputs):
            yield _split_operands(types, joined), tuple(map(split, axes))
    if len(outputs) == 1 and made[0].dtype.is_float:
        body = outputs[0].body
        for variable, extent in _sums(body):
            sum_effect = _divided(outputs[0], variable, extent, types, count)
            if sum_effect:
                given = _split_operands(types, sum_effect)
                free = [p for p in present if p not in sum_effect]
                yield from ((_partial(given, c), (PARTIAL,)) for c in _subsets(free) if _degree(body, c, variable) == 1)
        given = _split_operands(types, {})
        reals = [p for p in present if (kind := types[p]) is not None and kind.dtype.is_float]
        yield from ((_partial(given, c), (PARTIAL,)) for c in _subsets(reals) if c and _degree(body, c, None) == 1)


def _split_operands(types: _Types, effect: _Effect) -> tuple[Placement | None, ...]:
    axes = [effect.get(p) for p in range(len(types))]
    return tuple(None if t is None else REPLICATED if a is None else split(a) for t, a in zip(types, axes, strict=True))


def _partial(operands: Sequence[Placement | None], chosen: frozenset[int]) -> tuple[Placement | None, ...]:
    return tuple(PARTIAL if p in chosen else o for p, o in enumerate(operands))


def _subsets(positions: Sequence[int]) -> Iterator[frozenset[int]]:
    """All of few, else none and all."""
    if len(positions) > _PARTIAL:
        yield from (frozenset(), frozenset(positions))
        return
    for size in range(len(positions) + 1):
        yield from map(frozenset, combinations(positions, size))


# -- Dividing an index -----------------------------------------------------------------------------------------------


def _split_output(output: TensorComprehension, axis: int, types: _Types, count: int) -> _Effect | None:
    """What dividing the leading digit of an output axis does to operands; ``None`` where it cannot be divided."""
    digits = output.axes[axis]
    return _divided(output, *digits[0], types, count) if digits else None


def _sums(body: ScalarExpression) -> list[tuple[str, Dim]]:
    return [(s.variable, s.extent) for s in subexpressions(body) if isinstance(s, ScalarReduction) and s.kind == "sum"]


def _divided(
    output: TensorComprehension, variable: str, extent: Dim, types: _Types, count: int
) -> dict[int, int] | None:
    """The operands that are split, and along which axes, if an index is divided into ``count`` runs.

    ``None`` where it cannot be, or where no operand has it.
    """
    if not isinstance(extent, int) or extent % count:
        return None
    extents = {v: e for axis in output.axes for v, e in axis}
    extents |= {s.variable: s.extent for s in subexpressions(output.body) if isinstance(s, ScalarReduction)}
    found: dict[int, int | None] = {}
    try:
        for part in subexpressions(output.body):
            if isinstance(part, ElementRead):
                kind = types[part.operand]
                axis = _carried(part, (kind and kind.shape) or (), variable, extent, extents)
                if found.setdefault(part.operand, axis) != axis:
                    return None
            elif variable in _sizes_in(part):
                return None
    except _NotDivisibleError:
        return None
    return {p: a for p, a in found.items() if a is not None} or None


def _sizes_in(part: ScalarExpression) -> frozenset[str]:
    """The names that a scalar itself mentions, apart from those of its parts."""
    match part:
        case SizeExpression(size):
            return symbols(size)
        case ScalarConditional(conditions, _, _):
            return frozenset(n for c in conditions for n in symbols(c.size))
        case ScalarReduction(_, _, extent, _):
            return symbols(extent)
    return frozenset()


def _carried(
    read: ElementRead, shape: Sequence[Dim], variable: str, extent: int, extents: Mapping[str, Dim]
) -> int | None:
    """The axis at which a read has the index.

    Raises:
        _NotDivisibleError: it has it at several, or a device would read outside its own piece.
    """
    found = None
    for axis, (index, size) in enumerate(zip(read.index, shape, strict=True)):
        if isinstance(index, ScalarExpression) or variable not in symbols(index):
            continue
        zero, one = (substitute(index, {variable: n}) for n in (0, 1))
        step = one - zero
        if found is not None or not isinstance(step, int) or variable in symbols(index - step * sym(variable)):
            raise _NotDivisibleError
        if step * extent != size or not _inside(zero, step, extents):
            raise _NotDivisibleError
        found = axis
    return found


def _inside(rest: Dim, step: int, extents: Mapping[str, Dim]) -> bool:
    """Whether what is added to ``step`` times the divided index stays below the step, so inside the device's piece."""
    low = high = 0
    for monomial, coefficient in rest.terms if isinstance(rest, SizePolynomial) else (((), rest),):
        most = 1
        for atom in monomial:
            bound = None if isinstance(atom, FloorQuotient) else extents.get(atom)
            if not isinstance(bound, int):
                return True  # not known here: the proof decides
            most *= bound - 1
        low += coefficient * most if coefficient < 0 or not monomial else 0
        high += coefficient * most if coefficient > 0 or not monomial else 0
    return low >= 0 and high < step


# -- Linearity -------------------------------------------------------------------------------------------------------


def _degree(node: ScalarExpression, partial: frozenset[int], divided: str | None) -> int | None:
    """1 where a scalar is a sum of terms with one partial factor each, 0 where it has none, else ``None``.

    A sum over the divided index is a partial factor.
    """
    match node:
        case ScalarConstant():
            return 0
        case SizeExpression():
            return 0
        case ElementRead(operand, index, outside):
            if any(isinstance(i, ScalarExpression) and _degree(i, partial, divided) != 0 for i in index):
                return None
            if operand not in partial:
                return 0
            return 1 if outside is None or outside.value == 0 else None
        case ScalarReduction(kind, variable, _, body):
            inner = _degree(body, partial, divided)
            if variable == divided:
                return 1 if inner == 0 else None
            return inner if kind == "sum" or inner == 0 else None
        case ScalarConditional(_, then, otherwise):
            return _either([then, otherwise], partial, divided)
        case ScalarCall("add", args):
            return _either(args, partial, divided)
        case ScalarCall("select", (condition, *args)):
            return _either(args, partial, divided) if _degree(condition, partial, divided) == 0 else None
        case ScalarCall(function, args):
            degrees = [_degree(a, partial, divided) for a in args]
            known = [d for d in degrees if d is not None]
            if len(known) < len(degrees) or sum(known) > 1:
                return None
            return sum(known) if function == "mul" or not sum(known) else None
    return None


def _either(args: Sequence[ScalarExpression], partial: frozenset[int], divided: str | None) -> int | None:
    """The degree that all have, a zero having any."""
    degrees = {_degree(a, partial, divided) for a in args if not (isinstance(a, ScalarConstant) and a.value == 0)}
    return degrees.pop() if len(degrees) == 1 else None if degrees else 0


# -- Attributes ------------------------------------------------------------------------------------------------------


def _with_attributes(
    operator: Operator, attributes: Attributes, types: _Types, made: Sequence[TensorType],
    operands: tuple[Placement | None, ...], results: tuple[Placement, ...], count: int,
) -> Iterator[Form]:  # fmt: skip
    """The form with each choice of attributes that gives the types of the pieces."""
    mesh = (count,)
    pairs = zip(types, operands, strict=True)
    given = [None if t is None or o is None else local_type(t, (o,), mesh) for t, o in pairs]
    wanted = tuple(local_type(t, (r,), mesh) for t, r in zip(made, results, strict=True))
    if None in wanted or any(g is None and t is not None for g, t in zip(given, types, strict=True)):
        return
    names = [name for name, _ in attributes]
    for values in product(*(_local_values(v, count) for _, v in attributes)):
        candidate = tuple(zip(names, values, strict=True))
        try:
            _, local = operator.apply(tuple(given), dict(candidate))
        except (IllTypedOperator, *MALFORMED):
            continue
        if local == wanted:
            yield Form(candidate, operands, results)


def _local_values(value: AttributeValue, count: int) -> Iterator[AttributeValue]:
    """What an attribute may be for a piece: itself, or a size, or one of a list of sizes, divided."""
    yield value
    if isinstance(value, int) and not isinstance(value, bool) and value > 0 and value % count == 0:
        yield value // count
    if isinstance(value, tuple):
        for place, item in enumerate(value):
            if isinstance(item, int) and item > 0 and item % count == 0:
                yield (*value[:place], item // count, *value[place + 1 :])
