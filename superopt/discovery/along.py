"""An operator that works along some axes of a tensor, applied to matrices: runtimes are slow along some axes.

The axes are those that its attributes name. They are put together, and the others too, in each order in which that
makes matrices of the tensor; where they stay beside each other nothing needs to move. Nothing is claimed: every form is
compared with what is asked for, like any other expression.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from superopt.discovery.rearranged import in_order
from superopt.ir.poly import Dim
from superopt.ir.terms import App, AttributeValue, Term, Var
from superopt.ops.forms import product as elements_of

__all__ = ["along", "along_matrices"]

_AXIS, _AXES = "axis", "axes"


def along(term: Term) -> tuple[int, ...]:
    """The axes that an application to one tensor alone works along; none where its attributes name none."""
    if not isinstance(term, App) or not term.args or any(a is not None for a in term.args[1:]):
        return ()
    given = dict(term.attributes)
    named: AttributeValue = given.get(_AXES, given.get(_AXIS, ()))
    axes = named if isinstance(named, tuple) else (named,)
    found = tuple(a for a in axes if isinstance(a, int))
    return found if len(found) == len(axes) and all(a >= 0 for a in found) else ()


def along_matrices(term: Term, shape: Sequence[Dim], target: Sequence[Dim]) -> Iterator[Term]:
    """An application to a leaf, along the axes of matrices.

    Args:
        term: the application.
        shape: of the leaf.
        target: of the result.
    """
    axes = along(term)
    if not isinstance(term, App) or not isinstance(term.args[0], Var) or not axes or max(axes) >= len(shape):
        return
    rest = tuple(a for a in range(len(shape)) if a not in axes)
    before, after = tuple(a for a in rest if a < axes[0]), tuple(a for a in rest if a > axes[0])
    stays = (before, axes, after) if before + axes + after == tuple(range(len(shape))) else ()
    seen: set[Term] = set()
    for groups in (stays, (rest, axes), (axes, rest)):
        kept = [g for g in groups if g == axes or any(shape[a] != 1 for a in g)]
        order = [a for g in kept for a in g if shape[a] != 1]
        if not kept or (len(kept) == len(shape) and order == sorted(order)):
            continue  # no such matrices, or as it was
        sizes = [elements_of([shape[a] for a in g]) for g in kept]
        digits = [d for d in shape if d != 1]
        places = {a: n for n, a in enumerate(a for a in range(len(shape)) if shape[a] != 1)}
        moved = in_order(term.args[0], digits, [places[a] for a in order], sizes)
        made = _applied(term, moved, kept.index(axes))
        if tuple(target) == tuple(shape):
            back = tuple(order.index(a) for a in sorted(order))
            made = in_order(made, [shape[a] for a in order], back, target)
        else:
            made = App("Reshape", (made,), (("shape", tuple(target)),))
        if made not in seen:
            seen.add(made)
            yield made


def _applied(term: App, operand: Term, axis: int) -> Term:
    """The application to another operand, along another axis."""
    given = dict(term.attributes)
    given |= {_AXES: (axis,)} if _AXES in given else {_AXIS: axis}
    return replace(term, args=(operand, *term.args[1:]), attributes=tuple(sorted(given.items())))
