"""A rule written out case by case where it depends on sizes whether a slice is clamped to its axis.

ONNX clamps: ``Slice(x, [0], [k])`` of ``x = f[n]`` ends at ``k`` where ``k <= n``, and at ``n`` beyond. The meaning of
a Slice (:mod:`superopt.ops.concat_slice_gather`) has positions inside the axis; so a rule is as many plain rules as
there are ways in which its positions can lie, each with the guards under which they lie so. A rule is true when all of
them are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from superopt.ir.size_polynomial import Dim, substitute, sym, symbols
from superopt.ir.terms import AttributeValue, OperatorTerm, OutputTerm, Term, VariableTerm, postorder, remade
from superopt.ops.concat_slice_gather import FAR
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.rules.rule import Rule, RulePrecondition
from superopt.rules.scanner import RuleError
from superopt.rules.typing import complete, operator_of, variable_types

__all__ = ["cases"]

MOST = 64  # cases of one rule: more come only of a dozen slices at unrelated positions, which no rule needs
ClampedPosition = tuple[Dim, tuple[RulePrecondition, ...]]  # a position counted from the front, and when it lies there


def cases(rule: Rule) -> tuple[Rule, ...]:
    """The plain rules that a rule without ``...`` stands for: itself where no slice depends on sizes to be clamped.

    The guards that are added to ``where`` exclude each other and leave nothing out. Some cases may be contradictory.

    Raises:
        RuleError: there are too many cases.
    """
    pending, done = [rule], list[Rule]()
    while pending:
        at = pending.pop(0)
        positions = _first_open(at)
        if positions is None:
            done.append(at)
        else:
            pending = [*positions, *pending]
        if len(pending) + len(done) > MOST:
            raise RuleError(f"its slices may be clamped in more than {MOST} ways", where=f'rule "{rule.id}"')
    return tuple(done)


def _first_open(rule: Rule) -> list[Rule] | None:
    """The ways in which the first position that is not decided can lie, as rules; ``None`` where all are decided."""
    variables = variable_types(rule)
    types: dict[Term, tuple[object, ...]] = {}
    for term in postorder(*rule.lhs, *rule.rhs):
        if isinstance(term, OperatorTerm) and term.op == "Slice" and (open_ := _open(rule, term, types)) is not None:
            return open_
        try:
            if isinstance(term, VariableTerm):
                types[term] = (variables[term.name],)
            elif isinstance(term, OutputTerm):
                types[term] = (types[term.term][term.index],)
            else:
                args = [None if a is None else types[a][0] for a in term.args]
                types[term] = operator_of(term).apply(args, complete(term))[1]  # type: ignore[arg-type]
        except (IllTypedOperator, RuleError, IndexError):
            return None  # who types the rule says what is wrong
    return None


def _open(rule: Rule, term: OperatorTerm, types: Mapping[Term, Sequence[object]]) -> list[Rule] | None:
    operand = term.args[0] if term.args else None
    values = dict(term.attributes)
    shape = getattr(types[operand][0], "shape", None) if operand is not None else None
    lists = [values.get(k) for k in ("starts", "ends", "axes", "steps")]
    if shape is None or not all(isinstance(v, tuple) for v in lists):
        return None
    for place, cut in enumerate(zip(*lists, strict=False)):
        start, end, axis, step = cut
        if not isinstance(axis, int) or not isinstance(step, int) or step == 0 or not 0 <= axis < len(shape):
            return None
        for name, value in (("starts", start), ("ends", end)):
            positions = _clamped_positions(_SizeBounds(rule, shape[axis]), value, name == "ends", step > 0, shape[axis])
            if positions != [(value, ())]:
                return [_at(rule, term, name, place, *position) for position in positions]
    return None


def _at(
    rule: Rule, term: OperatorTerm, name: str, position: int, value: Dim, guards: tuple[RulePrecondition, ...]
) -> Rule:
    """The rule with one position replaced, where the guards hold."""
    terms: dict[Term, Term] = {}
    for t in postorder(*rule.lhs, *rule.rhs):
        attributes: tuple[tuple[str, AttributeValue], ...] | None = None
        if t == term:
            attributes = tuple((k, _put(v, position, value) if k == name else v) for k, v in term.attributes)
        terms[t] = remade(t, terms, attributes)
    sides = [tuple(terms[t] for t in side) for side in (rule.lhs, rule.rhs)]
    where = tuple(dict.fromkeys((*rule.where, *guards)))
    return replace(rule, lhs=sides[0], rhs=sides[1], where=where)


def _put(values: AttributeValue, position: int, value: Dim) -> AttributeValue:
    assert isinstance(values, tuple)
    return (*values[:position], value, *values[position + 1 :])


class _SizeBounds:
    """What a rule's ranges and guards say of sizes, as far as it is read off; ``size`` is that of an axis."""

    def __init__(self, rule: Rule, size: Dim) -> None:
        self.least: dict[str, int] = dict.fromkeys(rule.sizes, 1)
        for atom, scheme in rule.attribute_atoms.items():
            if scheme.kind == "int" and scheme.relation in (">=", ">"):
                self.least[atom] = scheme.bound + (scheme.relation == ">")
        self.assumptions: list[Dim] = [size - 1]
        for guard in rule.where:
            c = guard.condition
            self.assumptions += [c.size] if c.kind == "ge" else [c.size, -c.size] if c.kind == "eq" else []

    def nonnegative(self, size: Dim) -> bool:
        return self._plainly(size) or any(self._plainly(size - g) for g in self.assumptions)

    def _plainly(self, size: Dim) -> bool:
        """Whether no coefficient is negative once every name is counted from its least value."""
        if isinstance(size, int):
            return size >= 0
        if not symbols(size) <= self.least.keys():
            return False
        shifted = substitute(size, {n: sym(n) + low for n in symbols(size) if (low := self.least[n])})
        if isinstance(shifted, int):
            return shifted >= 0
        return all(c >= 0 for _, c in shifted.terms) and all(isinstance(a, str) for m, _ in shifted.terms for a in m)


def _clamped_positions(bounds: _SizeBounds, value: Dim, last: bool, forward: bool, size: Dim) -> list[ClampedPosition]:
    """Where a position of a slice may lie, counted from the front and clamped, and when.

    A start behind the axis makes the slice empty, and no tensor of a rule is: it is left where it is, and the meaning's
    obligations exclude those sizes. So they do an end before the axis.
    """
    if isinstance(value, int) and (abs(value) >= FAR or (value == -1 and last and not forward)):
        return [(value, ())]
    positions: list[ClampedPosition] = []
    if not bounds.nonnegative(-1 - value):
        high: Dim = size if forward else size - 1
        sign = () if bounds.nonnegative(value) else (RulePrecondition(value, ">=", 0),)
        if last != forward or bounds.nonnegative(high - value):
            positions.append((value, sign))
        else:
            if not bounds.nonnegative(value - high - 1):
                positions.append((value, (*sign, RulePrecondition(value, "<=", high))))
            positions.append((high, (*sign, RulePrecondition(value, ">", high))))
    if not bounds.nonnegative(value):
        back, low = value + size, -1 if last and not forward else 0
        sign = () if bounds.nonnegative(-1 - value) else (RulePrecondition(value, "<", 0),)
        if bounds.nonnegative(back):
            positions.append((back, sign))
        else:
            if not bounds.nonnegative(-1 - back):
                positions.append((back, (*sign, RulePrecondition(back, ">=", 0))))
            positions.append((low, (*sign, RulePrecondition(back, "<", 0))))
    return positions
