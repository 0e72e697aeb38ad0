"""A tensor that has another's elements in another order: axes taken apart into digits, moved, and put together.

Which digits an axis has is read off the shapes: sizes of ``f[o, 4*c, u, v]`` and ``f[o, c, 2*u, 2*v]`` have the same
factors. Nothing is claimed: every order is compared with what is asked for, like any other expression.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, permutations, product

from superopt.ir.poly import Dim, Poly, sym
from superopt.ir.terms import App, Term
from superopt.ops.forms import product as elements_of

__all__ = ["in_order", "rearranged"]

_MOST = 96  # orders that are compared
Digits = tuple[Dim, ...]


def rearranged(
    source: Term, shape: Sequence[Dim], wanted: Sequence[Dim], *, joined: bool = False
) -> Iterator[Term]:  # fmt: skip
    """Terms of a shape with all elements of one of another, in the orders in which axes can be taken apart.

    Args:
        source: a tensor.
        shape: its sizes.
        wanted: the sizes of what is looked for.
        joined: digits that stay beside each other are one axis, so that what is moved has as few as it can, and
            shapes that are equal are told apart by the order of their elements alone. Else there are none of equal
            shapes.
    """
    old, new = [_factors(d) for d in shape], [_factors(d) for d in wanted]
    if None in old or None in new or (tuple(shape) == tuple(wanted) and not joined):
        return
    parts, others = [f for f in old if f is not None], [f for f in new if f is not None]
    if sorted(str(d) for f in parts for d in f) != sorted(str(d) for f in others for d in f):
        return
    move = in_order if joined else _moved
    made = (
        move(source, [d for f in before for d in f], perm, wanted)
        for before in product(*map(_orders, parts))
        for after in product(*map(_orders, others))
        for perm in _assignments([d for f in before for d in f], [d for f in after for d in f])
    )
    yield from islice(made, _MOST)


def in_order(source: Term, digits: Sequence[Dim], perm: Sequence[int], wanted: Sequence[Dim]) -> Term:
    """A tensor taken apart into digits, which are moved and put together again; what stays beside each other is moved
    as one.

    Args:
        source: a tensor.
        digits: sizes whose product is its number of elements, in the order of its elements.
        perm: the digit that each place of the result has.
        wanted: the sizes of the result.
    """
    runs: list[list[int]] = []
    for place in perm:
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    order = sorted(runs)
    if runs == order:
        return App("Reshape", (source,), (("shape", tuple(wanted)),))
    axes = [elements_of([digits[place] for place in run]) for run in order]
    return _moved(source, axes, tuple(order.index(run) for run in runs), wanted)


def _factors(size: Dim) -> Digits | None:
    """The primes and names that a size is the product of; ``None`` where it is no such product."""
    number, names = (size, ()) if isinstance(size, int) else (size.terms[0][1], size.terms[0][0])
    if number < 1 or (isinstance(size, Poly) and len(size.terms) > 1) or not all(isinstance(n, str) for n in names):
        return None
    primes: list[Dim] = []
    for p in range(2, number + 1):
        while number % p == 0:
            primes.append(p)
            number //= p
    return (*primes, *(sym(n) for n in names if isinstance(n, str)))


def _orders(digits: Digits) -> Iterator[Digits]:
    """The different ones: of ten equal digits there is one, not ten factorial."""
    if not digits:
        yield ()
    for digit in dict.fromkeys(digits):
        place = digits.index(digit)
        yield from ((digit, *rest) for rest in _orders((*digits[:place], *digits[place + 1 :])))


def _assignments(before: Sequence[Dim], after: Sequence[Dim]) -> Iterator[tuple[int, ...]]:
    """Which digit each place of a result has, of those of its size."""
    if not after:
        yield ()
        return
    alike = {str(d): [n for n, b in enumerate(before) if b == d] for d in after}
    names = list(alike)
    for chosen in product(*(permutations(alike[n]) for n in names)):
        left = {n: list(c) for n, c in zip(names, chosen, strict=True)}
        yield tuple(left[str(d)].pop(0) for d in after)


def _moved(source: Term, digits: Sequence[Dim], perm: tuple[int, ...], wanted: Sequence[Dim]) -> Term:
    apart = App("Reshape", (source,), (("shape", tuple(digits)),))
    moved = apart if perm == tuple(range(len(perm))) else App("Transpose", (apart,), (("perm", perm),))
    return App("Reshape", (moved,), (("shape", tuple(wanted)),))
