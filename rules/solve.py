"""Sizes of a rule that occur only inside products and sums: found from what the expression must be.

A Conv's weights ``f[g*o, c, u, v]`` of 64 output channels at ``g = 4`` mean ``o = 16``.

>>> from superopt.ir.poly import sym
>>> solve([(sym("g") * sym("o"), 64)], {"g": 4})
{'g': 4, 'o': 16}
>>> solve([(sym("g") * sym("o"), 63)], {"g": 4}) is None
True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from superopt.ir.poly import Dim, Poly, substitute, symbols

__all__ = ["solve"]


def solve(equations: Sequence[tuple[Poly, Dim]], known: Mapping[str, Dim]) -> dict[str, Dim] | None:
    """``known`` with every name added that an equation ``expression == value`` determines.

    Only exact, linear solutions are taken. Names that nothing determines are left out.

    Args:
        equations: expressions over the rule's names, and the sizes (over the model's names) that they must equal.
        known: what names are bound to already.

    Returns:
        The bindings, or ``None`` where an equation has no solution.
    """
    found = dict(known)
    waiting = [(w, g) for w, g in equations if not symbols(w) <= found.keys()]
    while waiting:
        later: list[tuple[Poly, Dim]] = []
        for wanted, given in waiting:
            unknown = symbols(wanted) - found.keys()
            if len(unknown) > 1:
                later.append((wanted, given))
            elif unknown:
                name = next(iter(unknown))
                value = _linear(wanted, given, name, found)
                if value is None:
                    return None
                found[name] = value
        if len(later) == len(waiting):
            break
        waiting = later
    return found


def _linear(wanted: Poly, given: Dim, name: str, known: Mapping[str, Dim]) -> Dim | None:
    """The value of ``name`` in ``slope·name + rest == given``; ``None`` where it is not linear or not whole."""
    slope: Dim = 0
    rest: Dim = 0
    for monomial, coefficient in wanted.terms:
        times = monomial.count(name)
        if times > 1 or any(not isinstance(a, str) and name in symbols(Poly((((a,), 1),))) for a in monomial):
            return None
        others = list(monomial)
        if times:
            others.remove(name)
        part: Dim = Poly(((tuple(others), coefficient),)) if others else coefficient
        part = substitute(part, known)
        slope, rest = (slope + part, rest) if times else (slope, rest + part)
    if isinstance(slope, int) and slope <= 0:
        return None
    difference = given - rest
    value = difference // slope
    return value if value * slope == difference else None
