"""From one layout of a value to another: a Transpose, or a Reshape where all axes that change places have size 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superopt.ir.terms import Attributes
from superopt.ir.types import TensorType
from superopt.passes.layouts.operator_layouts import Layout, OperatorLayout, in_layout

__all__ = ["LayoutConversion", "moves", "perm_of", "transposed", "transposition"]


@dataclass(frozen=True)
class LayoutConversion:
    """An operator that moves the elements of a value.

    Attributes:
        kind: the type of its operand.
        made: the type of its result.
    """

    op: str
    attributes: Attributes
    kind: TensorType
    made: TensorType


def perm_of(attributes: Attributes) -> tuple[int, ...]:
    """The permutation of a Transpose with these attributes."""
    value = dict(attributes)["perm"]
    return tuple(a for a in value if isinstance(a, int)) if isinstance(value, tuple) else ()


def transposition(attributes: Attributes, form: OperatorLayout) -> tuple[Layout, Layout]:
    """What a Transpose in a form does: the layout in which it reads its operand, and that which it makes of it."""
    (layout,) = form.operands
    if layout is None:
        raise ValueError("a Transpose has an operand")
    return layout, transposed(perm_of(attributes), form.results[0])


def transposed(perm: Sequence[int], layout: Layout) -> Layout:
    """The layout of ``x`` that ``Transpose(x, perm)`` in a layout is."""
    return tuple(perm[a] - len(perm) for a in layout)


def moves(kind: TensorType, first: Layout, second: Layout) -> tuple[LayoutConversion, ...]:
    """What takes a value from one layout, which has its own axes, to another.

    Args:
        kind: the type of the value as it is.
        first: the layout in which it is there.
        second: the layout that is wanted.
    """
    source, made = in_layout(kind, first), in_layout(kind, second)
    added = tuple(a for a in second if a not in first)
    full = in_layout(kind, (*added, *first))
    perm = tuple((*added, *first).index(a) for a in second)
    large = [k for k in perm if (full.shape or ())[k] != 1]
    if large == sorted(large) and source == made:
        return ()
    if large == sorted(large) and made.is_static:  # else not every shape can be written
        return (LayoutConversion("Reshape", (("shape", made.shape or ()),), source, made),)
    transpose = LayoutConversion("Transpose", (("perm", perm),), full, made)
    return (
        (LayoutConversion("Reshape", (("shape", full.shape or ()),), source, full), transpose)
        if added
        else (transpose,)
    )
