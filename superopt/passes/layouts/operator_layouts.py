"""The forms of an operator on operands in other layouts, read off its meaning.

A layout of a value lists its axes, counted from the last one (-1), in another order: axis ``k`` of the value in the
layout is its axis ``layout[k]``. An axis that the value has not is one of size 1, as in broadcasting. An operator ``f``
with attributes ``a`` has a form with attributes ``b`` for layouts ``p`` of its operands and ``q`` of its results if

    f(Transpose(x, p), attributes=b) = Transpose(f(x, attributes=a), q)

Both sides are index expressions. They are equal where, after renaming axes, they are the same expression; so no
operator is named here, and a form computes each element by the same operations in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, product

from superopt.ir.size_polynomial import Dim, substitute, sym
from superopt.ir.terms import Attributes, AttributeValue
from superopt.ir.types import TensorType
from superopt.ops.operator_definition import Operator
from superopt.ops.operator_semantics import (
    ElementRead,
    IllTypedOperator,
    Index,
    IndexCondition,
    ScalarCall,
    ScalarConditional,
    ScalarConstant,
    ScalarExpression,
    ScalarReduction,
    SizeExpression,
    TensorComprehension,
    number,
)
from superopt.ops.shape_inference import MALFORMED

__all__ = ["OperatorLayout", "Layout", "forms", "in_layout", "inverse", "layout_of", "unchanged"]

Layout = tuple[int, ...]
_Types = tuple[TensorType | None, ...]


class _Different(Exception):
    """The two expressions are not the same."""


@dataclass(frozen=True)
class OperatorLayout:
    """An operator's attributes for layouts of its operands (``None``: absent) and results."""

    attributes: Attributes
    operands: tuple[Layout | None, ...]
    results: tuple[Layout, ...]


def unchanged(rank: int) -> Layout:
    """The layout of a value as it is."""
    return tuple(range(-rank, 0))


def layout_of(perm: Sequence[int]) -> Layout:
    """The layout of what ``Transpose`` reads that its result is."""
    return tuple(a - len(perm) for a in perm)


def inverse(layout: Layout) -> Layout:
    """The layout that leads back, where all axes are the value's own."""
    return tuple(layout.index(a) - len(layout) for a in unchanged(len(layout)))


def in_layout(kind: TensorType, layout: Layout) -> TensorType:
    """The type of a value in a layout."""
    shape = kind.shape or ()
    return replace(kind, shape=tuple(shape[a] if -a <= len(shape) else 1 for a in layout))


@lru_cache(maxsize=1 << 14)
def forms(
    operator: Operator, attributes: Attributes, types: _Types, layouts: tuple[Layout, ...]
) -> tuple[OperatorLayout, ...]:
    """The operator's forms; the first is the operator as it is.

    Operands of the largest rank share one layout, and so do results of one rank. Operands of fewer axes stay as they
    are, or take part in the layout of the others.

    Args:
        operator: its record.
        attributes: canonical ones.
        types: of the operands, of known rank.
        layouts: which values may have, besides the one in which they are.
    """
    ranks = [None if t is None else t.rank or 0 for t in types]
    _, made = operator.apply(types, dict(attributes))
    own = OperatorLayout(attributes, tuple(None if r is None else unchanged(r) for r in ranks),
               tuple(unchanged(t.rank or 0) for t in made))  # fmt: skip
    most = max((r for r in ranks if r is not None), default=0)
    found = [own]
    choices = [[unchanged(r), *(p for p in layouts if len(p) == r)] for r in (most, max(map(len, own.results)))]
    for p, q in product(*choices):
        results = tuple(q if len(r) == len(q) else r for r in own.results)
        for operands in _operands(ranks, most, p):
            form = OperatorLayout(attributes, operands, results)
            if (form.operands, form.results) != (own.operands, own.results):
                found.extend(islice(_with_attributes(operator, own, form, types, made, p, q), 1))
    return tuple(found)


def _operands(ranks: Sequence[int | None], most: int, layout: Layout) -> Iterator[tuple[Layout | None, ...]]:
    """The layouts of operands: those of fewer axes as they are, and in the layout of the others, from the first axis
    on that they have."""
    own = [None if r is None else layout if r == most else unchanged(r) for r in ranks]
    yield tuple(own)
    raised = [_from_own(layout, r) if r is not None and 0 < r < most else o for r, o in zip(ranks, own, strict=True)]
    if raised != own and layout != unchanged(most):
        yield tuple(raised)


def _from_own(layout: Layout, rank: int) -> Layout:
    """The layout without the axes before the first that a value of the rank has."""
    return layout[next(k for k, a in enumerate(layout) if -a <= rank) :]


def _with_attributes(
    operator: Operator,
    own: OperatorLayout,
    form: OperatorLayout,
    types: _Types,
    made: Sequence[TensorType],
    p: Layout,
    q: Layout,
) -> Iterator[OperatorLayout]:
    """The form with each choice of attributes for which it is one."""
    names = [name for name, _ in own.attributes]
    given = tuple(
        None if t is None or layout is None else in_layout(t, layout)
        for t, layout in zip(types, form.operands, strict=True)
    )
    expected = tuple(in_layout(t, layout) for t, layout in zip(made, form.results, strict=True))
    for values in product(*(_attribute_values(v, p, q) for _, v in own.attributes)):
        candidate = replace(form, attributes=tuple(zip(names, values, strict=True)))
        if _is_form(operator, own, candidate, types, given, expected):
            yield candidate


def _attribute_values(value: AttributeValue, p: Layout, q: Layout) -> Iterator[AttributeValue]:
    """What an attribute may be in another layout: itself; as axes, those of the layout; as a list with an element, or a
    first and a last one, for each axis, in the order of the layout."""
    found: dict[AttributeValue, None] = {}
    for layout in (p, q):
        rank = len(layout)
        if isinstance(value, int) and 0 <= value < rank:
            found[layout.index(value - rank)] = None
        if isinstance(value, tuple) and value:
            axes = [v for v in value if isinstance(v, int) and 0 <= v < rank]
            if len(axes) == len(value) == len(set(axes)):
                found[tuple(layout.index(a - rank) for a in axes)] = None
            if rank and len(value) in (rank, 2 * rank):
                found[tuple(value[end + a] for end in range(rank, len(value) + 1, rank) for a in layout)] = None
    return iter((value, *(v for v in found if v != value)))


def _is_form(
    operator: Operator,
    own: OperatorLayout,
    form: OperatorLayout,
    types: _Types,
    given: _Types,
    expected: Sequence[TensorType],
) -> bool:
    """Whether the form computes what the operator does."""
    before, _ = operator.apply(types, dict(own.attributes))
    try:
        after, made = operator.apply(given, dict(form.attributes))
    except (IllTypedOperator, *MALFORMED):
        return False
    if made != tuple(expected) or not set(after.obligations) <= set(before.obligations):
        return False
    ranks = [None if t is None else t.rank or 0 for t in types]
    try:
        return all(
            _normal(a.body, _renaming(b, a, layout), form.operands, ranks) == _normal(b.body, {}, own.operands, ranks)
            for a, b, layout in zip(after.outputs, before.outputs, form.results, strict=True)
        )
    except _Different:
        return False


def _renaming(before: TensorComprehension, after: TensorComprehension, layout: Layout) -> Mapping[str, Dim]:
    """The index variables of an output by those of the same output in a layout."""
    names: dict[str, Dim] = {}
    for axis, source in zip(after.axes, layout, strict=True):
        if [extent for _, extent in axis] != [extent for _, extent in before.axes[source]]:
            raise _Different
        names.update((new, sym(old)) for (new, _), (old, _) in zip(axis, before.axes[source], strict=True))
    return names


def _normal(
    node: ScalarExpression, names: Mapping[str, Dim], operands: Sequence[Layout | None], ranks: Sequence[int | None],
    depth: int = 0,
) -> ScalarExpression:  # fmt: skip
    """An expression over operands as they are, with variables of reductions named by their depth."""

    def inside(part: ScalarExpression) -> ScalarExpression:
        return _normal(part, names, operands, ranks, depth)

    def index(part: Index) -> Index:
        return inside(part) if isinstance(part, ScalarExpression) else substitute(part, names)

    match node:
        case ScalarConstant():
            return node
        case SizeExpression(size):
            return number(substitute(size, names))
        case ScalarCall(function, args):
            return ScalarCall(function, tuple(map(inside, args)))
        case ScalarConditional(conditions, then, otherwise):
            renamed = tuple(IndexCondition(c.kind, substitute(c.size, names)) for c in conditions)
            return ScalarConditional(renamed, inside(then), inside(otherwise))
        case ScalarReduction(kind, variable, extent, body):
            name = f"reduced {depth}"
            inner = _normal(body, {**names, variable: sym(name)}, operands, ranks, depth + 1)
            return ScalarReduction(kind, name, substitute(extent, names), inner)
        case ElementRead(operand, places, outside):
            layout, rank = operands[operand], ranks[operand]
            if layout is None or rank is None:
                raise ValueError("an absent operand is not read")
            at = dict(zip(layout, map(index, places), strict=True))
            if any(at[a] != 0 for a in layout if -a > rank):
                raise _Different
            return ElementRead(operand, tuple(at[a] for a in unchanged(rank)), outside)
    raise _Different
