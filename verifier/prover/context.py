"""A rule's context: its sizes and attributes, the conditions that it assumes, and those that its right side needs.

An assumed condition is stated, or derived from the left side. The context is refused if it is contradictory.

Leading axes ``...`` as one axis of any size: why a proof at rank 1 is a proof at every rank. If every operator of a
rule reads its operands at exactly the leading positions of the element that it computes, an element of a term depends
only on the slices of the variables at those positions, however many axes they are written in. So the term at positions
``(i0, i1, …)`` is the term with one leading axis at the position ``L`` that stands for them. That is checked here on
the meanings themselves: at each rank, with the run ``i0, i1, …`` written as ``L``, they must be the meaning at rank 1,
and no leading position or size may occur in any other way.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import z3

from superopt.ir.size_polynomial import Dim, FloorQuotient, SizePolynomial, substitute, sym, symbols, value_at
from superopt.ir.terms import OperatorTerm, Term, postorder
from superopt.ir.types import TensorType
from superopt.ops.operator_semantics import IndexCondition, OperatorSemantics
from superopt.rules.canonical import map_terms
from superopt.rules.rule import AttributeVariableType, Rule
from superopt.rules.scanner import RuleError
from superopt.rules.typing import (
    applied_leads,
    condition_text,
    instances,
    obligations,
    positions,
    type_terms,
    types_of,
    variable_types,
)
from superopt.verifier.prover.arith import IntegerFacts, ge, normal_condition
from superopt.verifier.prover.budget import ProofBudget
from superopt.verifier.prover.factor_facts import CannotProve
from superopt.verifier.prover.monomial_simplification import coefficient_of

__all__ = [
    "ProofContext",
    "MalformedRule",
    "context_of",
    "derived",
    "impossible",
    "one_axis",
    "stated",
    "unforced",
    "witnesses",
]

_TRIES = 300
_RESOURCES = 3_000_000  # of Z3's own count, for sizes that satisfy a context


@dataclass(frozen=True)
class ProofContext:
    """An instance of a rule, with the equations of its context solved for sizes.

    Attributes:
        lhs, rhs: the sides' terms.
        types: output types of every term.
        meanings: the meaning of every application.
        hypotheses: the guards and the left side's obligations (:mod:`superopt.rules.typing`).
        needed: the right side's obligations.
        least: least values of sizes and attribute atoms.
        reals: real attribute atoms and their sign (2: positive, 0: any).
        booleans: tensor variables of class ``b``.
        naturals: tensor variables of class ``i`` with a bound: their elements are at least 0, and below it.
        binding: sizes that equations of the context determined.
        parts: new names ``c/d``, where the context says that ``c`` is a multiple of ``d``, and what they stand for.
    """

    lhs: tuple[Term, ...]
    rhs: tuple[Term, ...]
    types: Mapping[Term, tuple[TensorType, ...]]
    meanings: Mapping[OperatorTerm, OperatorSemantics]
    variables: Mapping[str, TensorType]
    hypotheses: tuple[IndexCondition, ...]
    needed: tuple[IndexCondition, ...]
    least: Mapping[str, int]
    reals: Mapping[str, int]
    booleans: frozenset[str]
    naturals: Mapping[str, Dim]
    binding: Mapping[str, Dim]
    parts: Mapping[str, Dim]

    def shape(self, term: Term) -> tuple[Dim, ...]:
        """The shape of a term's (first) output."""
        return self.types[term][0].shape or ()


def context_of(rule: Rule) -> ProofContext:
    """The context of a rule without ``...``.

    Raises:
        IllTypedOperator: a side is not well-formed.
        RuleError: a side names an operator that superopt does not have.
    """
    least, hypotheses, reals = _ranges(rule)
    hypotheses += [g.condition for g in rule.where]
    binding: dict[str, Dim] = {}
    parts: dict[str, Dim] = {}
    names = {*rule.sizes, *rule.attribute_atoms}
    for _ in range(12):
        variables = {n: _typed(t, binding) for n, t in variable_types(rule).items()}
        left, right = map_terms(rule.lhs, {}, binding), map_terms(rule.rhs, {}, binding)
        types, meanings = type_terms(left, variables)
        own = obligations(left, types, meanings)
        assumed = _conditions([*hypotheses, *own], binding)
        step = _solution(assumed, least, reals)
        if step is None:
            break
        name, value, added = step
        least = dict(least) | added
        for part in symbols(value) - names:
            parts[part] = sym(name) // exact_part(value, part)
            names |= {part}
        lower = least.pop(name, None)
        binding = {k: substitute(v, {name: value}) for k, v in binding.items()} | {name: value}
        if lower is not None:
            hypotheses.append(ge(value - lower))
    all_types, all_meanings = type_terms((*left, *right), variables)
    needed = obligations(right, all_types, all_meanings)
    return ProofContext(
        left, right, all_types, all_meanings, variables, tuple(assumed), needed, least, reals,
        frozenset(n for n, s in rule.tensors.items() if s.dtype == "b"),
        {n: substitute(s.below, binding) for n, s in rule.tensors.items() if s.below is not None}, binding, parts,
    )  # fmt: skip


def exact_part(value: Dim, part: str) -> Dim:
    """``d`` of ``d·part``."""
    coefficient = coefficient_of(value, part)
    return 1 if coefficient is None or coefficient == 0 else coefficient


def _ranges(rule: Rule) -> tuple[dict[str, int], list[IndexCondition], dict[str, int]]:
    least: dict[str, int] = dict.fromkeys(rule.sizes, 1)
    hypotheses: list[IndexCondition] = []
    reals: dict[str, int] = {}
    for atom, scheme in rule.attribute_atoms.items():
        if scheme.kind == "real":
            reals[atom] = _sign(scheme)
        elif scheme.relation in (">=", ">"):
            least[atom] = scheme.bound + (scheme.relation == ">")
        elif scheme.relation == "!=":
            hypotheses.append(IndexCondition("ne", sym(atom) - scheme.bound))
    for tensor in rule.tensors.values():
        hypotheses += [ge(s - 1) for s in tensor.shape if isinstance(s, SizePolynomial)]
    return least, hypotheses, reals


def _sign(scheme: AttributeVariableType) -> int:
    if scheme.relation == ">" and scheme.bound >= 0:
        return 2
    if scheme.relation == ">=" and scheme.bound >= 0:
        return 2 if scheme.bound > 0 else 1
    return 0


def _typed(type_: TensorType, binding: Mapping[str, Dim]) -> TensorType:
    return TensorType(type_.dtype, tuple(substitute(s, binding) for s in type_.shape or ()))


def _conditions(conditions: Sequence[IndexCondition], binding: Mapping[str, Dim]) -> list[IndexCondition]:
    new_conditions = [normal_condition(IndexCondition(c.kind, substitute(c.size, binding))) for c in conditions]
    return [c for c in dict.fromkeys(new_conditions) if c.known is not True]


def _solution(
    conditions: Sequence[IndexCondition], least: Mapping[str, int], reals: Mapping[str, int]
) -> tuple[str, Dim, dict[str, int]] | None:
    """A name that an equation of the context determines, its value, and least values of new names."""
    for c in conditions:
        if c.kind != "eq" or symbols(c.size) & reals.keys():
            continue
        for name in sorted(symbols(c.size)):
            k = coefficient_of(c.size, name)
            if k in (1, -1):
                return name, (k * sym(name) - c.size) * k, {}
        found = _multiple(c.size, least)
        if found is not None:
            return found
    return None


def _multiple(size: Dim, least: Mapping[str, int]) -> tuple[str, Dim, dict[str, int]] | None:
    """``c - d·⌊c/d⌋ = 0`` says that ``c`` is a multiple of ``d``: ``c = d·c'``."""
    for monomial, _ in size.terms if isinstance(size, SizePolynomial) else ():
        for atom in monomial:
            if not isinstance(atom, FloorQuotient) or not isinstance(atom.numerator, SizePolynomial):
                continue
            names = symbols(atom.numerator)
            (name, *others) = sorted(names)
            n, d = atom.numerator, atom.denominator
            rest = n - d * SizePolynomial((((atom,), 1),))
            positive = isinstance(d, int) or (len(symbols(d)) == 1 and least.get(str(d), 0) >= 1)
            if others or n != sym(name) or name in symbols(d) or size not in (rest, -rest) or not positive:
                continue
            part = f"{name}/{d}".replace(" ", "")
            return name, d * sym(part), ({part: 1} if least.get(name, 0) >= 1 else {})
    return None


def stated(rule: Rule) -> tuple[tuple[IndexCondition, ...], Mapping[str, int]]:
    """What a rule says of its sizes and attributes itself, by types and ``where``: conditions, and least values."""
    least, hypotheses, _ = _ranges(rule)
    conditions = _conditions([*hypotheses, *(g.condition for g in rule.where)], {})
    return tuple(conditions), least


def witnesses(context: ProofContext, facts: IntegerFacts) -> dict[str, set[int]]:
    """Values that each name of the rule takes at sizes that satisfy the hypotheses; empty where none were found.

    Small random sizes are tried, then Z3 is asked for a second value of every name that took only one.
    """
    free = sorted({n for c in facts.hypotheses for n in symbols(c.size)})
    others = sorted(context.least.keys() - {*free, *context.reals})
    found: dict[str, set[int]] = {}

    def take(values: Mapping[str, int]) -> None:
        for name in free:
            found.setdefault(name, set()).add(values[name])
        for name in others:
            found.setdefault(name, set()).update((context.least[name], context.least[name] + 1))
        rest = dict.fromkeys(others, 2)
        for name, value in context.binding.items():
            try:
                at = [value_at(value, {**values, **{n: context.least[n] + k for n in rest}}) for k in (0, 1)]
            except (KeyError, ZeroDivisionError):
                at = [0, 1]  # depends on what has no bound: any value
            found.setdefault(name, set()).update(at)

    source = random.Random(7)
    for attempt in range(_TRIES):
        widest = 3 + attempt // 12
        values = {n: facts.least.get(n, -2) + source.choice((0, 0, 1, source.randrange(widest + 1))) for n in free}
        if all(_holds(c, values) for c in facts.hypotheses):
            take(values)
            if all(len(v) > 1 for v in found.values()):
                return found
    if not found and (model := _solved(facts, free, ())) is not None:
        take(model)
    for name in [n for n in free if len(found.get(n, ())) == 1]:
        model = _solved(facts, free, (IndexCondition("ne", sym(name) - min(found[name])),))
        if model is not None:
            take(model)
    return found


def _solved(facts: IntegerFacts, names: Sequence[str], more: Sequence[IndexCondition]) -> dict[str, int] | None:
    """Sizes that satisfy the hypotheses and more, by Z3; what it does not treat is checked of its answer."""
    solver = z3.Solver(ctx=facts.budget.context)
    for c in (*facts.hypotheses, *more):
        if any(
            isinstance(a, FloorQuotient)
            for m, _ in (c.size.terms if isinstance(c.size, SizePolynomial) else ())
            for a in m
        ):
            continue
        term = _polynomial(c.size, facts.budget.context)
        solver.add(term >= 0 if c.kind == "ge" else term == 0 if c.kind == "eq" else term != 0)
    for n in names:
        if n in facts.least:
            solver.add(z3.Int(n, facts.budget.context) >= facts.least[n])
    model = facts.budget.model(solver, _RESOURCES)
    if model is None:
        return None
    values = {n: model.eval(z3.Int(n, facts.budget.context), model_completion=True).as_long() for n in names}
    return values if all(_holds(c, values) for c in (*facts.hypotheses, *more)) else None


def _holds(condition: IndexCondition, values: Mapping[str, int]) -> bool:
    try:
        size = value_at(condition.size, values)
    except (ZeroDivisionError, KeyError):
        return False
    return size >= 0 if condition.kind == "ge" else (size == 0) == (condition.kind == "eq")


def _polynomial(size: Dim, context: z3.Context) -> z3.ArithRef:
    parts = [z3.IntVal(0, context)]
    for monomial, coefficient in size.terms if isinstance(size, SizePolynomial) else (((), size),):
        parts.append(z3.Product(z3.IntVal(coefficient, context), *(z3.Int(str(a), context) for a in monomial)))
    return z3.Sum(*parts)


class MalformedRule(CannotProve):
    """What is written is no rule, whatever trials say."""


def impossible(conditions: Sequence[IndexCondition], least: Mapping[str, int], budget: ProofBudget) -> bool:
    """Whether conditions on sizes contradict each other."""
    return IntegerFacts(tuple(conditions), least, budget).contradictory(conditions)


def unforced(rule: Rule, values: Mapping[str, set[int]], budget: ProofBudget) -> None:
    """Every size and attribute can take two values, unless the rule's own types and ``where`` say which one.

    Raises:
        MalformedRule: well-formedness of the left side forces one to a number.
    """
    conditions, least = stated(rule)
    for name in (*rule.sizes, *rule.attribute_atoms):
        if len(values.get(name, (0, 1))) > 1:
            continue
        (value,) = values[name]
        if not IntegerFacts(conditions, least, budget).implied(IndexCondition("eq", sym(name) - value)):
            raise MalformedRule(
                f"the left side is well-formed only where {name} = {value}: write {value} for {name}, or add the guard"
            )


def derived(rule: Rule, budget: ProofBudget) -> list[str]:
    """What the left side of a plain rule demands beyond types and guards, as preconditions.

    Raises:
        MalformedRule: positions are declared that lie beyond the axis that they are read on.
    """
    types = types_of(rule)
    conditions, least = stated(rule)
    facts = IntegerFacts(conditions, least, budget)
    new_conditions: dict[str, IndexCondition] = {}
    for c in types.lhs_obligations:
        if not facts.implied(normal_condition(c), new_conditions.values(), 1):
            new_conditions[condition_text(c)] = normal_condition(c)
    for name, c in list(new_conditions.items()):  # what a later one says as well
        if len(new_conditions) > 1 and facts.implied(c, [o for o in new_conditions.values() if o is not c], 1):
            del new_conditions[name]
    texts = list(new_conditions)
    for at in positions(rule, rule.lhs, types.types):
        if at.below is None:
            texts.append(str(at))
        elif not facts.implied(normal_condition(ge(at.size - at.below)), new_conditions.values()):
            raise MalformedRule(
                f"the positions {at.text} are declared below {at.below} and read on an axis of size {at.size}: an "
                "index beyond its axis is an error"
            )
    return texts


def one_axis(rule: Rule) -> bool:
    """Whether every meaning in the rule treats so many leading axes as the rule is applied to as it treats one."""
    if any(name.startswith("lead_") for name in (*rule.sizes, *rule.attribute_atoms)):
        return False  # a size of the rule's own would be that of a leading axis
    try:
        wanted = _meanings(rule, 1)
        return wanted is not None and all(_meanings(rule, n) == wanted for n in applied_leads(rule) if n > 1)
    except RuleError:
        return False


def _meanings(rule: Rule, rank: int) -> Sequence[str] | None:
    """The meanings of the rule's applications with leading positions as ``L``; ``None`` where that cannot be done."""
    (instance,) = instances(rule, (rank,))
    typed = types_of(instance)
    found = [
        _folded(str(output), rank)
        for term in postorder(*instance.lhs, *instance.rhs) if isinstance(term, OperatorTerm)
        for output in typed.meanings[term].outputs
    ]  # fmt: skip
    found += [_folded(str(o), rank) for meaning in typed.meanings.values() for o in meaning.obligations]
    texts = [t for t in found if t is not None]
    return texts if len(texts) == len(found) else None


def _folded(text: str, rank: int) -> str | None:
    """The text of a meaning with the run of leading positions as ``L``, and the other positions numbered from it."""
    first = re.match(r"\[i(\d+) <", text)
    start = int(first.group(1)) if first else 0  # positions are numbered on over the outputs of an operator
    text = re.sub(r"\bi(\d+)\b", lambda m: f"i{int(m.group(1)) - start}", text)
    axes = ", ".join(f"i{n} < lead_{n}" for n in range(rank))
    made = text.replace(axes, "L < lead")
    if made == text:  # no leading axes here, hence no leading positions either
        return None if re.search(r"\blead_", text) else text
    if rank == 1:
        made = re.sub(r"(?<=\[)i0(?=[,\]])", "L", made)
    else:
        made = re.sub(r"(?<=\[)" + ", ".join(f"i{n}" for n in range(rank)) + r"(?=[,\]])", "L", made)
    if re.search(r"\blead_", made) or any(re.search(rf"\bi{n}\b", made) for n in range(rank)):
        return None
    return re.sub(r"\bi(\d+)\b", lambda m: f"j{int(m.group(1)) - rank}", made)
