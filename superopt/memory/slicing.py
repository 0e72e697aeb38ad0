"""What an operator needs of its operands to make a slice of its result: read off its meaning, for every operator alike.

The element of a result is an expression over the result's index. Where one index variable stands in the expression
only in positions at which operands are read, and there by a positive factor (``x[2·i + t − 1]``), the operator applied
to the slices of these operands makes a slice of the result; an operand that is read without the variable is needed
whole. Where the variable is a sum's, the result is the sum of what slices of the operands make. What results is a
proposal: whether the parts are the whole is for the prover to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from superopt.ir.size_polynomial import Dim, SizePolynomial, atoms
from superopt.ir.terms import AttributeValue
from superopt.ir.types import TensorType
from superopt.ops.operator_definition import Operator
from superopt.ops.operator_semantics import (
    ElementRead,
    IllTypedOperator,
    OperatorSemantics,
    ScalarCall,
    ScalarConditional,
    ScalarConstant,
    ScalarExpression,
    ScalarReduction,
    SizeExpression,
    TensorComprehension,
    subexpressions,
)  # fmt: skip

__all__ = ["OperatorSlice", "OperatorSlicing", "AxisRange", "along_axis", "along_sum", "part"]


@dataclass(frozen=True)
class AxisRange:
    """Positions ``low`` to below ``high`` of an axis."""

    axis: int
    low: int
    high: int


@dataclass(frozen=True)
class _Reading:
    """An operand is read at ``factor·i + least`` to ``factor·i + most`` of an axis."""

    axis: int
    factor: int
    least: int
    most: int

    @property
    def tiles(self) -> bool:
        """Whether each value of the variable has positions of its own, which follow each other."""
        return self.least == 0 and self.most < self.factor


@dataclass(frozen=True)
class OperatorSlicing:
    """A way in which an application can be computed in parts.

    Attributes:
        axis: of the result, cut into parts; ``None``: the results of the parts are summed.
        unit: positions of the axis that belong to one value of the variable.
        extent: values of the variable.
        reads: by operand, how it is read; operands that are needed whole are left out.
        once: operands that only the first part of a sum has.
    """

    axis: int | None
    unit: int
    extent: int
    reads: Mapping[int, _Reading]
    once: frozenset[int] = frozenset()


@dataclass(frozen=True)
class OperatorSlice:
    """One part: the application that makes it.

    Attributes:
        operands: spans of those that are not needed whole.
        attributes: that it has.
        types: of all its results.
        made: the span of the result that it makes: at least what was asked for.
    """

    operands: Mapping[int, AxisRange]
    attributes: Mapping[str, AttributeValue]
    types: tuple[TensorType, ...]
    made: AxisRange | None


def along_axis(meaning: OperatorSemantics, axis: int) -> OperatorSlicing | None:
    """How the first result can be computed in parts of one axis; ``None`` where the meaning does not show it."""
    found = meaning.outputs[0]
    digits = found.axes[axis]
    if not digits or not all(isinstance(extent, int) for _, extent in digits):
        return None
    (variable, extent), *rest = digits
    unit = 1
    for _, size in rest:
        assert isinstance(size, int)
        unit *= size
    assert isinstance(extent, int)
    reads = _readings(found, found.body, variable)
    return None if reads is None else OperatorSlicing(axis, unit, extent, reads)


def along_sum(
    operator: Operator, types: Sequence[TensorType | None], attributes: Mapping[str, AttributeValue]
) -> Iterator[OperatorSlicing]:
    """How an application is a sum of applications to parts of its operands.

    What is added to the sum has to be an optional operand: only one of the parts then has it.
    """
    once: list[int] = []
    for count in range(sum(name.endswith("?") for name in operator.inputs) + 1):
        bare = list(types)
        once = [i for i in range(len(types) - count, len(types)) if types[i] is not None]
        for i in range(len(types) - count, len(types)):
            bare[i] = None
        try:
            meaning, _ = operator.apply(bare, attributes)
        except IllTypedOperator:
            return
        (found, *others) = meaning.outputs
        body = found.body
        while isinstance(body, ScalarCall) and body.function == "mul" and isinstance(body.args[0], ScalarConstant):
            body = body.args[1]
        if others or not isinstance(body, ScalarReduction):
            continue
        while isinstance(body, ScalarReduction) and body.kind == "sum":
            reads = _readings(found, body.body, body.variable)
            if reads and isinstance(body.extent, int) and all(r.tiles for r in reads.values()):
                yield OperatorSlicing(None, 1, body.extent, reads, frozenset(once))
            body = body.body
        return


class _Elsewhere(Exception):  # not a fault: the variable stands where no slices follow it
    pass


def _readings(found: TensorComprehension, body: ScalarExpression, variable: str) -> dict[int, _Reading] | None:
    """How operands are read with a variable; ``None`` where it stands anywhere but in positions, or in one operand's in
    several ways."""
    extents: dict[str, Dim] = {name: extent for axis in found.axes for name, extent in axis}
    extents |= {s.variable: s.extent for s in subexpressions(found.body) if isinstance(s, ScalarReduction)}
    reads: dict[int, _Reading | None] = {}
    try:
        for scalar in subexpressions(body):
            if isinstance(scalar, ElementRead):
                reading = _reading(scalar.index, variable, extents)
                at = scalar.operand
                reads[at] = _both(reads[at], reading) if at in reads else reading
            elif any(variable in _names(size) for size in _sizes(scalar)):
                return None
    except _Elsewhere:
        return None
    return {operand: r for operand, r in reads.items() if r is not None}


def _sizes(scalar: ScalarExpression) -> tuple[Dim, ...]:
    """The sizes that a scalar is made of itself."""
    match scalar:
        case SizeExpression(size):
            return (size,)
        case ScalarConditional(conditions, _, _):
            return tuple(c.size for c in conditions)
        case ScalarReduction(_, _, extent, _):
            return (extent,)
    return ()


def _both(a: _Reading | None, b: _Reading | None) -> _Reading | None:
    """How an operand is read that is read in two places."""
    if a is None or b is None or (a.axis, a.factor) != (b.axis, b.factor):
        if a is b:
            return None
        raise _Elsewhere
    return _Reading(a.axis, a.factor, min(a.least, b.least), max(a.most, b.most))


def _reading(index: Sequence[Dim | ScalarExpression], variable: str, extents: Mapping[str, Dim]) -> _Reading | None:
    """How a read follows a variable; ``None`` where it does not."""
    found: _Reading | None = None
    for axis, position in enumerate(index):
        if isinstance(position, ScalarExpression) or variable not in _names(position):
            continue  # what a scalar reads is looked at by itself
        reading = _affine(position, variable, extents)
        if found is not None or reading is None:
            raise _Elsewhere
        found = _Reading(axis, *reading)
    return found


def _affine(position: Dim, variable: str, extents: Mapping[str, Dim]) -> tuple[int, int, int] | None:
    """The factor of a variable, and the range of what is added to it."""
    factor = least = most = 0
    for monomial, coefficient in position.terms if isinstance(position, SizePolynomial) else (((), position),):
        if not monomial:
            least, most = least + coefficient, most + coefficient
            continue
        (name, *more) = monomial
        extent = extents.get(name) if isinstance(name, str) else None
        if more or not isinstance(extent, int):
            return None
        if name == variable:
            factor = coefficient
        else:
            reach = coefficient * (extent - 1)
            least, most = least + min(reach, 0), most + max(reach, 0)
    return (factor, least, most) if factor > 0 else None


def _names(size: Dim) -> frozenset[str]:
    """Names in a size, those inside of quotients, too."""
    found: set[str] = set()
    for atom in atoms(size):
        found |= {atom} if isinstance(atom, str) else _names(atom.numerator) | _names(atom.denominator)
    return frozenset(found)


def part(
    operator: Operator,
    types: Sequence[TensorType | None],
    attributes: Mapping[str, AttributeValue],
    way: OperatorSlicing,
    low: int,
    high: int,
    output: int = 0,
) -> OperatorSlice | None:
    """The part that makes (at least) the positions ``low`` to below ``high`` of the axis, or of the sum's variable.

    Args:
        operator: what is applied.
        types: of its operands.
        attributes: that it has; of the part, those that speak of the axis are changed.
        way: how it is sliced.
        low: the first position.
        high: the first position that is not needed.
        output: which result.

    Returns:
        ``None`` where the operator does not take such parts.
    """
    first, last = low // way.unit, -(-high // way.unit)  # of the variable
    if any(not r.tiles for r in way.reads.values()):
        if any(r.tiles for r in way.reads.values()):
            return None
        first = max(0, min((r.factor * first + r.least) // r.factor for r in way.reads.values()))
    spans: dict[int, AxisRange] = {}
    for operand, reading in way.reads.items():
        kind = types[operand]
        size = kind.shape[reading.axis] if kind is not None and kind.shape is not None else None
        if not isinstance(size, int):
            return None
        end = reading.factor * last if reading.tiles else reading.factor * (last - 1) + reading.most + 1
        spans[operand] = AxisRange(reading.axis, reading.factor * first, min(end, size))
    if any(s.low >= s.high for s in spans.values()):
        return None
    sliced = [_sliced(t, spans[i]) if t is not None and i in spans else t for i, t in enumerate(types)]
    if way.axis is None:
        sliced = [None if i in way.once and low > 0 else t for i, t in enumerate(sliced)]
    whole = _applied(operator, types, attributes)
    if whole is None:
        return None
    for changed in (attributes, *_scaled(attributes, last - first, way.extent)):
        made = _applied(operator, sliced, changed)
        span = None if made is None else _result_span(whole, made, way, first, high, output)
        if made is not None and (span is not None or (way.axis is None and made == whole)):
            return OperatorSlice(spans, changed, made, span)
    return None


def _result_span(
    whole: Sequence[TensorType], made: Sequence[TensorType], way: OperatorSlicing, first: int, high: int, output: int
) -> AxisRange | None:
    """The span of the result that is made, where its type is that of a slice which is long enough."""
    if way.axis is None or len(whole) != len(made):
        return None
    before, after = whole[output].shape or (), made[output].shape or ()
    size = after[way.axis] if len(after) == len(before) else None
    rest = [a == b for i, (a, b) in enumerate(zip(before, after, strict=False)) if i != way.axis]
    if not isinstance(size, int) or not all(rest) or first * way.unit + size < high:
        return None
    return AxisRange(way.axis, first * way.unit, first * way.unit + size)


def _applied(
    operator: Operator, types: Sequence[TensorType | None], attributes: Mapping[str, AttributeValue]
) -> tuple[TensorType, ...] | None:
    try:
        return operator.apply(types, attributes)[1]
    except IllTypedOperator:
        return None


def _sliced(kind: TensorType, span: AxisRange) -> TensorType:
    shape = kind.shape or ()
    return TensorType(kind.dtype, (*shape[: span.axis], span.high - span.low, *shape[span.axis + 1 :]))


def _scaled(attributes: Mapping[str, AttributeValue], part: int, extent: int) -> Iterator[dict[str, AttributeValue]]:
    """The attributes with one number scaled from the whole to a part."""
    for name, value in attributes.items():
        for place, entry in enumerate(value) if isinstance(value, tuple) else ((-1, value),):
            if not isinstance(entry, int) or entry <= 0 or entry % extent:
                continue
            scaled = entry // extent * part
            changed = scaled if place < 0 else (*value[:place], scaled, *value[place + 1 :])  # type: ignore[index]
            yield {**attributes, name: changed}
