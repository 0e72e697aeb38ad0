"""Candidates for matching two sums: affine bijections of bound variables under which indices of elements agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations

from superopt.ir.size_polynomial import Dim, substitute, sym, symbols
from superopt.verifier.prover.monomial_simplification import coefficient_of, exact_quotient
from superopt.verifier.prover.normal_form_arithmetic import (
    BranchReduction,
    Factor,
    FunctionApplication,
    Monomial,
    SizeFactor,
    SumPowerBase,
    TensorElement,
    Value,
)

__all__ = ["Bijection", "invertible", "pairings", "solved"]

Bijection = dict[str, Dim]  # one monomial's bound variables in terms of the other's
_PAIRINGS = 48


def _elements(factor: Factor) -> Iterator[TensorElement]:
    """Tensor elements in a factor, at all depths."""
    match factor:
        case TensorElement():
            yield factor
        case FunctionApplication(_, args):
            for a in args:
                yield from _value_elements(a)
        case SumPowerBase(value):
            yield from _value_elements(value)
        case BranchReduction(_, branches):
            for b in branches:
                yield from _value_elements(b.value)


def _value_elements(value: Value) -> Iterator[TensorElement]:
    for m in value:
        for f, _ in m.factors:
            yield from _elements(f)


def pairings(a: Monomial, b: Monomial) -> Iterator[list[Dim]]:
    """Equations between indices, for each way to pair factors of ``b`` with like ones of ``a``."""
    targets = [(f, p) for f, p in b.factors if f.free & set(b.bound) and not isinstance(f, SizeFactor)]
    count = 0
    stack: list[tuple[int, tuple[int, ...], list[Dim]]] = [(0, (), [])]
    while stack:
        position, used, equations = stack.pop()
        if position == len(targets):
            yield equations
            count += 1
            if count >= _PAIRINGS:
                return
            continue
        factor, power = targets[position]
        options = [
            (i, f) for i, (f, p) in enumerate(a.factors) if i not in used and p == power and f.head == factor.head
        ]
        for i, f in reversed(options):
            stack.append((position + 1, (*used, i), [*equations, *_index_equations(f, factor)]))


def _index_equations(f: Factor, g: Factor) -> list[Dim]:
    """``index in g - index in f`` for elements in corresponding places, where no inner variable occurs."""
    if isinstance(f, TensorElement) and isinstance(g, TensorElement):
        return [j - i for i, j in zip(f.index, g.index, strict=True)]
    differences: list[Dim] = []
    outer_f, outer_g = f.free, g.free
    lists: dict[str, tuple[list[TensorElement], list[TensorElement]]] = {}
    for e in _elements(f):
        lists.setdefault(e.tensor, ([], []))[0].append(e)
    for e in _elements(g):
        lists.setdefault(e.tensor, ([], []))[1].append(e)
    for left, right in lists.values():
        if len(left) != len(right):
            continue
        for x, y in zip(left, right, strict=True):
            for i, j in zip(x.index, y.index, strict=True):
                if symbols(i) <= outer_f and symbols(j) <= outer_g:
                    differences.append(j - i)
    return differences


def solved(
    equations: list[Dim], known: tuple[str, ...], unknown: tuple[str, ...], positive: Callable[[Dim], bool]
) -> Iterator[Bijection]:
    """Solutions for the unknown names; what stays free is paired with the known names that are left over."""
    solution: Bijection = {}
    rest: list[Dim] = [e for e in equations if not isinstance(e, int)]
    progress = True
    while progress:
        progress = False
        for e in rest:
            pivot = _pivot(e, [n for n in unknown if n not in solution], positive)
            if pivot is not None:
                name, value = pivot
                solution = {k: substitute(v, {name: value}) for k, v in solution.items()} | {name: value}
                rest = [substitute(o, {name: value}) for o in rest if o is not e]
                rest = [o for o in rest if not isinstance(o, int)]
                progress = True
                break
    open_names = [n for n in unknown if n not in solution]
    if not open_names:
        yield solution
        return
    used = {n for v in solution.values() for n in symbols(v)}
    candidates = [n for n in known if n not in used] or list(known)
    if len(open_names) > 4:
        return
    for choice in permutations(candidates, len(open_names)):
        binding: dict[str, Dim] = {n: sym(c) for n, c in zip(open_names, choice, strict=True)}
        yield {k: substitute(v, binding) for k, v in solution.items()} | binding


def _pivot(equation: Dim, names: list[str], positive: Callable[[Dim], bool]) -> tuple[str, Dim] | None:
    for name in names:
        c = coefficient_of(equation, name)
        if c is None or c == 0 or symbols(c) & set(names):
            continue
        rest = c * sym(name) - equation
        if c in (1, -1):
            value: Dim | None = rest * c
        else:
            value = exact_quotient(rest, c) if positive(c) or positive(-c) else None
        if value is not None and name not in symbols(value):
            return name, value
    return None


def invertible(bijection: Bijection, known: tuple[str, ...]) -> bool:
    """Whether the known names are integer functions of the images: unit pivots solve the triangular system."""
    if len(bijection) != len(known):
        return False
    equations: list[Dim] = [v - sym(f"{n}'") for n, v in bijection.items()]
    open_names = list(known)
    while open_names:
        for e in equations:
            name = next((n for n in open_names if coefficient_of(e, n) in (1, -1)), None)
            if name is None:
                continue
            c = coefficient_of(e, name)
            assert isinstance(c, int)
            value = (c * sym(name) - e) * c
            equations = [substitute(o, {name: value}) for o in equations if o is not e]
            open_names.remove(name)
            break
        else:
            return False
    return True
