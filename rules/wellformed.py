"""What a side of a rule demands of sizes and positions before it means anything: its derived preconditions.

Three kinds: what the operators' meanings require (a window that fits, channels that divide into groups); that no
tensor is empty, where a slice, a crop or a part could be; and that positions which a Gather reads are inside its axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from superopt.ir.poly import Dim, Poly, Quotient
from superopt.ir.terms import App, Project, Term, Var, postorder
from superopt.ir.types import TensorType
from superopt.ops.meaning import Condition, Meaning
from superopt.rules.grammar import format_dim
from superopt.rules.rule import Rule

__all__ = ["Position", "obligations", "positions", "shown"]

# Operators whose outputs may have no elements although their operands have some.
_MAY_BE_EMPTY = frozenset({"Slice", "Pad", "Split", "ConstantOfShape", "Constant", "EyeLike", "Range", "Reshape"})
_READS_AT = frozenset({"Gather", "GatherElements"})
# Operators whose elements are elements of their first operand (of all of them: Concat).
_MOVES = frozenset({
    "Concat", "Expand", "Flatten", "Gather", "GatherElements", "Identity", "Reshape", "Slice", "Split", "Squeeze",
    "Tile", "Transpose", "Unsqueeze",
})  # fmt: skip
Types = Mapping[Term, tuple[TensorType, ...]]


def obligations(side: Sequence[Term], types: Types, meanings: Mapping[App, Meaning]) -> tuple[Condition, ...]:
    """The conditions on sizes under which the terms are well-formed, in the order in which they are met."""
    found: dict[Condition, None] = {}
    for term in postorder(*side):
        if isinstance(term, App):
            found.update(dict.fromkeys(meanings[term].obligations))
            if term.op in _MAY_BE_EMPTY:
                found.update(dict.fromkeys(positive(d) for t in types[term] for d in t.shape or ()))
            if term.op in _READS_AT and (literal := _literal(term.args[1])) is not None:
                size = _axis(term, types)
                found |= {Condition("ge", size - 1 - literal if literal >= 0 else size + literal): None}
    return tuple(c for c in found if c.known is not True)


def positive(size: Dim) -> Condition:
    """``size >= 1``, without the quotient where the size is one: ``⌊n/d⌋ + c >= 1`` says ``n >= d·(1 - c)``."""
    if isinstance(size, Poly):
        for monomial, coefficient in size.terms:
            rest = size - Poly(((monomial, coefficient),)) if len(size.terms) > 1 else 0
            if len(monomial) == 1 and isinstance(monomial[0], Quotient) and coefficient == 1 and isinstance(rest, int):
                return Condition("ge", monomial[0].numerator - monomial[0].denominator * (1 - rest))
    return Condition("ge", size - 1)


def _axis(term: App, types: Types) -> Dim:
    """The size of the axis that a Gather reads at positions."""
    operand, axis = term.args[0], dict(term.attributes)["axis"]
    assert operand is not None
    assert isinstance(axis, int)
    return (types[operand][0].shape or ())[axis]


def _literal(term: Term | None) -> int | None:
    """The one number that a constant of a rule holds."""
    value = dict(term.attributes).get("value") if isinstance(term, App) and term.op == "ConstantOfShape" else None
    return int(value) if isinstance(value, int | float) and value == int(value) else None


@dataclass(frozen=True)
class Position:
    """Positions that a Gather reads: the bound that their declaration gives (``None``: they are computed), the axis."""

    text: str
    below: Dim | None
    size: Dim

    def __str__(self) -> str:
        return f"positions {self.text} are inside an axis of size {format_dim(self.size)}"


def positions(rule: Rule, side: Sequence[Term], types: Types) -> tuple[Position, ...]:
    """Every use of positions that are not literal, with what the rule's types say of them."""
    found: dict[Position, None] = {}
    for term in postorder(*side):
        if isinstance(term, App) and term.op in _READS_AT and (indices := term.args[1]) is not None:
            for source in _sources(indices):
                if _literal(source) is None:
                    kind = rule.tensors[source.name] if isinstance(source, Var) else None
                    found[Position(str(source), None if kind is None else kind.below, _axis(term, types))] = None
    return tuple(found)


def _sources(indices: Term) -> list[Term]:
    """The terms of which a term's elements are elements."""
    pending, found = [indices], dict[Term, None]()
    while pending:
        term = pending.pop()
        term = term.term if isinstance(term, Project) else term
        if isinstance(term, App) and term.op in _MOVES:
            pending += [a for a in (term.args if term.op == "Concat" else term.args[:1]) if a is not None]
        else:
            found[term] = None
    return list(found)


def shown(condition: Condition) -> str:
    """A condition as a precondition in the grammar of ``where``: ``k <= n`` for ``n - k >= 0``."""
    terms = condition.size.terms if isinstance(condition.size, Poly) else (((), condition.size),)
    above = Poly.make({m: c for m, c in terms if c > 0})
    below = Poly.make({m: -c for m, c in terms if c < 0})
    if condition.kind != "ge":
        return f"{format_dim(above)} {'==' if condition.kind == 'eq' else '!='} {format_dim(below)}"
    if isinstance(below, int):
        return f"{format_dim(above)} >= {below}"
    if isinstance(below - 1, Poly) and () in dict(below.terms):
        return f"{format_dim(below - 1)} < {format_dim(above)}"
    return f"{format_dim(below)} <= {format_dim(above)}"
