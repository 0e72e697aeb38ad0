"""Derivatives of one application, in both directions: declared, by expansion, or derived from the meaning.

:func:`pull` is reverse mode's step and :func:`push` forward mode's. A pushforward that is neither declared nor derived
is the transpose of the pullback, which is linear in the cotangent and made of operators that have pullbacks.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from superopt.ir.terms import OperatorTerm, OutputTerm, Term, children, postorder, rebuilt
from superopt.ir.types import TensorType
from superopt.ops.derivative.declarations import DECLARED
from superopt.ops.derivative.scalar_derivatives import tangent_of
from superopt.ops.derivative.semantics_lowering import NotLowerable, pullback, pushforward
from superopt.ops.derivative.typed_terms import (
    DifferentiationSite,
    NotDifferentiable,
    OperatorDerivative,
    TypedTerm,
    added,
    cast,
    variable,
)
from superopt.ops.operator_definition import Operator

__all__ = ["is_still", "pull", "push"]

_NONE = OperatorDerivative()


def record_of(op: str) -> Operator:
    from superopt.ops import REGISTRY

    return REGISTRY[op]


def is_still(site: DifferentiationSite) -> bool:
    """Whether no output moves with the wanted operands: the operator is constant between jumps, or gives integers."""
    if DECLARED.get(site.op, _NONE).refused:
        return False
    meaning, results = record_of(site.op).apply([None if a is None else a.type for a in site.args], site.attributes)
    moving = {p: len(site.args) + p for p in site.wanted}
    return all(
        not kind.dtype.is_float or tangent_of(c.body, moving) is None
        for c, kind in zip(meaning.outputs, results, strict=True)
    )


def pull(site: DifferentiationSite, given: Sequence[TypedTerm | None]) -> dict[int, TypedTerm]:
    """Cotangents of the wanted operands; one that is left out is 0.

    Args:
        site: the application.
        given: the cotangent of each output; ``None`` for 0.

    Raises:
        NotDifferentiable: there is no way.
    """
    if all(g is None for g in given) or not site.wanted or is_still(site):
        return {}
    declared = DECLARED.get(site.op, _NONE)
    if declared.refused:
        raise NotDifferentiable(declared.refused)
    if declared.pullback is not None:
        return {p: e for p, e in declared.pullback(site, given).items() if p in site.wanted}
    if declared.expansion is not None:
        inner, own = _with_fresh_operands(site)
        found = _reverse([(declared.expansion(inner), given[0])], inner.args)
        return {p: _with_operands(found[p], own) for p in site.wanted if p in found}
    meaning, _ = record_of(site.op).apply([None if a is None else a.type for a in site.args], site.attributes)
    found_parts: dict[int, list[TypedTerm]] = {}
    for output, g in zip(meaning.outputs, given, strict=True):
        if g is not None:
            try:
                parts = pullback(output, site.args, site.wanted, g)
            except NotLowerable as reason:
                raise NotDifferentiable(f"{site.op} has no declared derivative, and its meaning has {reason}") from None
            for place, part in parts.items():
                found_parts.setdefault(place, []).append(part)
    return {p: whole for p, parts in found_parts.items() if (whole := added(parts)) is not None}


def push(site: DifferentiationSite, tangents: Sequence[TypedTerm | None]) -> tuple[TypedTerm | None, ...]:
    """The tangent of each output; ``None`` for one that does not move.

    Args:
        site: the application; its wanted operands are those with a tangent.
        tangents: of each operand; ``None`` for one that stays.

    Raises:
        NotDifferentiable: there is no way.
    """
    meaning, results = record_of(site.op).apply([None if a is None else a.type for a in site.args], site.attributes)
    if not site.wanted or is_still(site):
        return (None,) * len(results)
    declared = DECLARED.get(site.op, _NONE)
    if declared.refused:
        raise NotDifferentiable(declared.refused)
    if declared.pushforward is not None:
        return tuple(declared.pushforward(site, tangents))
    if declared.expansion is None and declared.pullback is None:
        try:
            moved = [pushforward(c, site.args, tangents) for c in meaning.outputs]
            return tuple(m if m is None else cast(m, kind.dtype) for m, kind in zip(moved, results, strict=True))
        except NotLowerable as reason:
            raise NotDifferentiable(f"{site.op} has no declared derivative, and its meaning has {reason}") from None
    return tuple(_transpose(site, tangents, place, kind) for place, kind in enumerate(results))


def _transpose(
    site: DifferentiationSite, tangents: Sequence[TypedTerm | None], place: int, kind: TensorType
) -> TypedTerm | None:
    """The pushforward of one output: ``⟨pull(c), tangent⟩`` is ``⟨c, push(tangent)⟩``, for all ``c``."""
    inner, own = _with_fresh_operands(site)
    probe = variable(_fresh(), kind)
    outputs = record_of(site.op).apply([None if a is None else a.type for a in site.args], site.attributes)[1]
    pulled = pull(inner, [probe if p == place else None for p in range(len(outputs))])
    roots = [(whole, moved) for p, whole in pulled.items() if (moved := tangents[p]) is not None]
    found = _reverse(roots, (*inner.args, probe), frozenset({len(inner.args)}))
    return _with_operands(found[len(inner.args)], own) if len(inner.args) in found else None


_numbers = itertools.count()


def _fresh() -> str:
    return f"operand {next(_numbers)}"


def _with_fresh_operands(site: DifferentiationSite) -> tuple[DifferentiationSite, dict[str, Term]]:
    """The site with a variable for each operand, and what they stand for: its derivative ends there."""
    args = tuple(None if a is None else variable(_fresh(), a.type) for a in site.args)
    own = {str(new.term): old.term for new, old in zip(args, site.args, strict=True) if new is not None and old}
    return replace(site, args=args, makers={}), own


def _with_operands(expr: TypedTerm, own: Mapping[str, Term]) -> TypedTerm:
    (term,) = rebuilt([expr.term], lambda app, name, value: value, lambda leaf: own.get(leaf.name, leaf))
    return TypedTerm(term, expr.type)


def _reverse(
    roots: Sequence[tuple[TypedTerm, TypedTerm | None]],
    leaves: Sequence[TypedTerm | None],
    wanted: frozenset[int] | None = None,
) -> dict[int, TypedTerm]:
    """Reverse mode over terms: cotangents of variables, by position, from those of the roots.

    Args:
        roots: expressions over the leaves, with their cotangents.
        leaves: variables.
        wanted: positions of those whose cotangents are wanted; all by default.
    """
    order = list(postorder(*(e.term for e, _ in roots)))
    types = _typed(order, {leaf.term: leaf.type for leaf in leaves if leaf is not None})
    moving = {x.term for p, x in enumerate(leaves) if x is not None and (wanted is None or p in wanted)}
    moving &= {x.term for x in leaves if x is not None and x.dtype.is_float}
    for term in order:
        if any(inner in moving for inner in children(term)):
            moving.add(term)
    adjoints: dict[Term, TypedTerm] = {}

    def give(term: Term, part: TypedTerm | None) -> None:
        whole = added([adjoints.get(term), part])
        if whole is not None and term in moving:
            adjoints[term] = whole

    for expr, cotangent in roots:
        give(expr.term, cotangent)
    for term in reversed(order):
        if not isinstance(term, OperatorTerm) or term not in moving:
            continue
        several = len(types[term]) > 1
        given = [adjoints.get(OutputTerm(term, p) if several else term) for p in range(len(types[term]))]
        args = tuple(None if a is None else TypedTerm(a, types[a][0]) for a in term.args)
        site = DifferentiationSite(
            term.op, args, dict(term.attributes), frozenset(p for p, a in enumerate(term.args) if a in moving)
        )
        for place, part in pull(site, given).items():
            give(site.arg(place).term, part)
    return {p: adjoints[x.term] for p, x in enumerate(leaves) if x is not None and x.term in adjoints}


def _typed(order: Sequence[Term], known: Mapping[Term, TensorType]) -> dict[Term, tuple[TensorType, ...]]:
    """Output types of every term, operands first."""
    found: dict[Term, tuple[TensorType, ...]] = {term: (kind,) for term, kind in known.items()}
    for term in order:
        if isinstance(term, OutputTerm):
            found[term] = (found[term.term][term.index],)
        elif isinstance(term, OperatorTerm):
            kinds = [None if a is None else found[a][0] for a in term.args]
            found[term] = record_of(term.op).apply(kinds, dict(term.attributes))[1]
    return found
