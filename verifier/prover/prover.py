"""The all-sizes prover: ``prove(rule)`` shows that both sides have equal elements at every size, or says why not.

A proof covers: the context can be satisfied; the right side is well-formed wherever the left side is; shapes are
equal; every element is equal as a real number; and neither direction in which the rule can be used is defined where
its other side is not (division by zero, roots of negative numbers).
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from superopt.ir.size_polynomial import Dim, FloorQuotient, SizePolynomial, substitute, sym, symbols
from superopt.ir.terms import Term, VariableTerm
from superopt.ops.operator_semantics import Axis, IllTypedOperator, IndexCondition
from superopt.rules import Rule, RuleError
from superopt.rules.grammar import format_guard
from superopt.rules.slice_clamping import cases
from superopt.rules.typing import condition_text, instances, leads_of
from superopt.verifier.prover.arith import IntegerFacts, ge, normal_condition
from superopt.verifier.prover.budget import ProofBudget, ProofBudgetExceeded, ProofDeadlineExceeded
from superopt.verifier.prover.compose import MeaningComposer, UnprovedIndexBound
from superopt.verifier.prover.context import (
    MalformedRule,
    ProofContext,
    context_of,
    derived,
    impossible,
    one_axis,
    stated,
    unforced,
    witnesses,
)
from superopt.verifier.prover.factor_facts import CannotProve, constant_of, dimension_of, is_selector
from superopt.verifier.prover.function_normalisation import NormalFormAlgebra
from superopt.verifier.prover.match_sums import ProofStep, SumMatcher, constant_range
from superopt.verifier.prover.monomial_simplification import coefficient_of, exact_quotient
from superopt.verifier.prover.normal_form_arithmetic import (
    FunctionApplication,
    SumPowerBase,
    TensorElement,
    Value,
    add,
    atom_value,
    dimensions,
    free,
    scale,
    text,
)
from superopt.verifier.prover.normal_form_terms import restart_names
from superopt.verifier.verdict import ProvedVerdict, UnknownVerdict

__all__ = ["RuleOutputProof", "RuleProof", "prove", "prove_with_steps"]

# Places of a reduction, at most, that are written out where the sums themselves were not matched: few first, because
# every place multiplies the terms, and no more than a kernel's taps along an axis.
_UNROLLED = (4, 7)


@dataclass(frozen=True)
class RuleOutputProof:
    """How one output of one instance was proved: the sides' elements, and steps from their difference to 0.

    ``digits`` are the extents that each output axis's index was written in; ``parts`` define names that are not the
    rule's own; ``wellformed`` is what obligations and shapes rested on.
    """

    lhs: Term
    rhs: Term
    facts: IntegerFacts
    left: Value
    right: Value
    steps: tuple[ProofStep, ...]
    digits: tuple[tuple[Dim, ...], ...]
    parts: Mapping[str, Dim]
    wellformed: tuple[tuple[frozenset[IndexCondition], IndexCondition | None], ...]


@dataclass
class RuleProof:
    """What a proof did, for certificates: one derivation per instance, case of clamping and output; ``None`` for all
    of a case whose hypotheses contradict each other."""

    goals: list[RuleOutputProof | None] = field(default_factory=list)


@dataclass
class _Assumptions:
    """What a proof rests on: values that must not be 0, and derived preconditions; in the order in which they came."""

    nonzero: dict[str, None] = field(default_factory=dict)
    derived: dict[str, None] = field(default_factory=dict)


class _Conditional(Exception):  # not a fault: the rule holds under more conditions than it states
    def __init__(self, conditions: Sequence[IndexCondition]) -> None:
        self.conditions = tuple(condition_text(c) for c in conditions)
        super().__init__("the right side is well-formed only where " + " and ".join(self.conditions))


def prove(rule: Rule, *, time_limit: float = 10.0) -> ProvedVerdict | UnknownVerdict:
    """Prove a rule for all sizes, attributes and leading axes, with the work of so many seconds
    (:mod:`superopt.verifier.prover.budget`).

    The work is counted: whether a proof is found does not depend on the machine or on what else it does.

    Leading axes ``...`` are written out at the numbers of axes of ``superopt.rules.typing.leads_of``, with symbolic
    sizes; the proof with one of them holds for any number, because the meanings are shown to read leading axes in place
    (``leading`` of the verdict). A rule of which that is not shown is not proved.
    """
    return prove_with_steps(rule, time_limit=time_limit)[0]


def prove_with_steps(rule: Rule, *, time_limit: float = 10.0) -> tuple[ProvedVerdict | UnknownVerdict, RuleProof]:
    """:func:`prove`, and what it did."""
    started = time.monotonic()
    budget = ProofBudget.of(time_limit)
    restart_names()
    proof = RuleProof()
    rests = _Assumptions()
    try:
        for instance in instances(rule):
            _prove_instance(instance, budget, proof, rests)
        if rule.lead and not one_axis(rule):
            raise CannotProve("that `...` stands for any number of axes: an operator does not read them in place")
    except _Conditional as found:
        return UnknownVerdict(str(found), found.conditions, seconds=time.monotonic() - started), proof
    except CannotProve as found:
        refused = isinstance(found, MalformedRule)
        return UnknownVerdict(str(found), refused=refused, seconds=time.monotonic() - started), proof
    except (IllTypedOperator, RuleError) as found:
        return UnknownVerdict(f"not well-formed: {found}", seconds=time.monotonic() - started), proof
    except ProofBudgetExceeded:
        return UnknownVerdict(
            f"no proof within the work of {time_limit:g} s", seconds=time.monotonic() - started
        ), proof
    except ProofDeadlineExceeded:
        reason = "stopped by the clock before its counted work was done: this machine is too slow or too busy"
        return UnknownVerdict(reason, seconds=time.monotonic() - started), proof
    except RecursionError:
        return UnknownVerdict("the terms are nested too deeply", seconds=time.monotonic() - started), proof
    steps = sum(len(g.steps) for g in proof.goals if g is not None)
    verdict = ProvedVerdict(
        tuple(f"{g.left} {g.relation} {g.right}" for g in rule.where), tuple(rests.nonzero), tuple(rests.derived),
        leads_of(rule),
        "one axis" if rule.lead else "", seconds=time.monotonic() - started, steps=steps,
    )  # fmt: skip
    return verdict, proof


def _prove_instance(instance: Rule, budget: ProofBudget, proof: RuleProof, assumptions: _Assumptions) -> None:
    """Prove a rule without ``...``, in every way in which its slices can be clamped.

    Raises:
        CannotProve: it was not shown, or the left side says more of sizes than the rule does.
    """
    values: dict[str, set[int]] = {}
    possible: list[tuple[Rule, ProofContext, IntegerFacts] | None] = []
    demands: dict[str, list[str]] = {}
    for case in cases(instance):
        added = case.where[len(instance.where) :]
        when = " and ".join(map(format_guard, added))
        if added and impossible(*stated(case), budget):
            possible.append(None)
            continue
        context = context_of(case)
        facts = IntegerFacts(context.hypotheses, context.least, budget)
        taken = witnesses(context, facts)
        if not taken and context.hypotheses:
            if not impossible(context.hypotheses, context.least, budget):
                raise MalformedRule("no sizes were found that satisfy the rule's context")
            if added:
                assumptions.derived[f"not ({when})"] = None
            possible.append(None)
            continue
        for name, some in taken.items():
            values.setdefault(name, set()).update(some)
        demands[when] = derived(case, budget)
        possible.append((case, context, facts))
    if not any(possible):
        raise MalformedRule("its hypotheses contradict each other: no sizes satisfy them")
    always = set.intersection(*map(set, demands.values()))
    for when, conditions in demands.items():
        assumptions.derived.update(dict.fromkeys(d if d in always else f"{d} where {when}" for d in conditions))
    unforced(instance, values, budget)
    for one in possible:
        if one is None:
            proof.goals.append(None)
        else:
            assumptions.nonzero.update(dict.fromkeys(_prove_case(*one, budget, proof)))


def _prove_case(
    case: Rule, context: ProofContext, facts: IntegerFacts, budget: ProofBudget, proof: RuleProof
) -> list[str]:
    """Prove a rule without ``...`` whose slices lie inside their axes; returns the values that must not be 0."""
    if any(symbols(c.size) & context.reals.keys() for c in (*context.hypotheses, *context.needed)):
        raise CannotProve("a precondition on a real attribute")
    if len(context.lhs) != len(context.rhs):
        raise CannotProve("the sides have different numbers of outputs")
    missing = [c for c in context.needed if not facts.implied(normal_condition(c))]
    if missing:
        raise _Conditional(missing)
    nonzero: list[str] = []
    for left, right in zip(context.lhs, context.rhs, strict=True):
        _same_type(context, facts, left, right)
        nonzero += _prove_output(case, context, facts, left, right, budget, proof)
    return nonzero


def _same_type(context: ProofContext, facts: IntegerFacts, left: Term, right: Term) -> None:
    a, b = context.types[left][0], context.types[right][0]
    if a.dtype != b.dtype:
        raise CannotProve(f"the sides have element types {a.dtype} and {b.dtype}")
    if len(a.shape or ()) != len(b.shape or ()):
        raise CannotProve(f"the sides have shapes {a} and {b}")
    different = []
    for m, n in zip(a.shape or (), b.shape or (), strict=True):
        equal = normal_condition(IndexCondition("eq", m - n))
        if not facts.implied(equal):
            different.append(f"{m} = {n}")
    if different:
        raise CannotProve(f"the sides have shapes {a} and {b}; not shown: {', '.join(different)}")


def _prove_output(
    rule: Rule,
    context: ProofContext,
    facts: IntegerFacts,
    left: Term,
    right: Term,
    budget: ProofBudget,
    proof: RuleProof,
) -> list[str]:
    digits = [
        _common_digits(a, b, size)
        for a, b, size in zip(_axes(context, left), _axes(context, right), context.shape(left), strict=True)
    ]
    for unroll in (0, *_UNROLLED):
        attempt, digits = _finest(context, left, right, digits, budget, unroll)
        attempt.check_reads()
        attempt.check_positions(rule)
        nonzero = attempt.check_domain(rule)
        matcher = SumMatcher(attempt.algebra, unroll)
        is_zero = matcher.zero(add(attempt.left, scale(attempt.right, -1)))
        extents = tuple(tuple(d) for d in digits)
        derivation = RuleOutputProof(
            left, right, attempt.facts, attempt.left, attempt.right, tuple(matcher.steps), extents, context.parts,
            facts.established,
        )  # fmt: skip
        if is_zero:
            proof.goals.append(derivation)
            return nonzero
        if attempt.longest <= unroll:
            break
    raise CannotProve("the sides were not shown to be equal")


def _finest(
    context: ProofContext, left: Term, right: Term, digits: list[list[Dim]], budget: ProofBudget, unroll: int
) -> tuple[_Attempt, list[list[Dim]]]:
    """Both sides' element at an index in the digits in which they are read, and those digits."""
    attempt = _Attempt.of(context, left, right, digits, budget, unroll)
    for _ in range(5):
        finer = attempt.refined(digits)
        if finer is None:
            break
        attempt, digits = _Attempt.of(context, left, right, finer, budget, unroll), finer
    return attempt, digits


def _axes(context: ProofContext, term: Term) -> list[Axis]:
    if isinstance(term, VariableTerm):
        return [() for _ in context.shape(term)]
    app, output = (term.term, term.index) if not hasattr(term, "op") else (term, 0)
    return list(context.meanings[app].outputs[output].axes)  # type: ignore[index]


def _common_digits(a: Axis, b: Axis, size: Dim) -> list[Dim]:
    """Extents into which both axes' digits divide, most significant first; one digit where none are found."""
    left, right = [e for _, e in a], [e for _, e in b]
    if len(left) < 2 or len(right) < 2:
        return left if len(left) > 1 else right if len(right) > 1 else [size]
    sizes: list[Dim] = []
    while left and right:
        x, y = left.pop(), right.pop()
        if x == y:
            sizes.append(x)
        elif (q := exact_quotient(x, y)) is not None:
            sizes.append(y)
            left.append(q)
        elif (q := exact_quotient(y, x)) is not None:
            sizes.append(x)
            right.append(q)
        else:
            return [e for _, e in a]
    sizes += list(reversed(left or right))
    return sizes[::-1]


@dataclass
class _Attempt:
    """Both sides' element at an output index written in digits."""

    facts: IntegerFacts
    algebra: NormalFormAlgebra
    left: Value
    right: Value
    reads: list[UnprovedIndexBound]
    left_promises: list[tuple[Value, Dim]]
    right_promises: list[tuple[Value, Dim]]
    binding: Mapping[str, Dim]
    left_domain: dict[tuple[str, str], Value]
    right_domain: dict[tuple[str, str], Value]
    longest: int  # of the reductions that may be written out

    @staticmethod
    def of(
        context: ProofContext,
        left: Term,
        right: Term,
        digits: Sequence[Sequence[Dim]],
        budget: ProofBudget,
        unroll: int,
    ) -> _Attempt:
        index: list[Dim] = []
        hypotheses = list(context.hypotheses)
        for axis, extents in enumerate(digits):
            position: Dim = 0
            for place, extent in enumerate(extents):
                if isinstance(extent, int) and extent == 1:
                    continue
                name = sym(f"o{axis}.{place}")
                position = position * extent + name
                hypotheses += [ge(name), normal_condition(ge(extent - 1 - name))]
            index.append(position)
        facts = IntegerFacts(tuple(hypotheses), context.least, budget)
        algebra = NormalFormAlgebra(facts, context.reals, context.naturals)
        shapes = {n: t.shape or () for n, t in context.variables.items()}
        first = MeaningComposer(algebra, context.meanings, shapes, context.booleans, unroll)
        one = first.element(left, tuple(index))
        domain, algebra.domain = algebra.domain, {}
        second = MeaningComposer(algebra, context.meanings, shapes, context.booleans, unroll)
        two = second.element(right, tuple(index))
        sizes = first.extents | second.extents | {constant_range(m, n) for m in (*one, *two) for n in m.bound}
        longest = max((n for n in sizes if 1 < n <= _UNROLLED[-1]), default=0)
        return _Attempt(
            facts, algebra, one, two, [*first.reads, *second.reads], first.promises, second.promises, context.binding,
            domain, algebra.domain, longest,
        )  # fmt: skip

    def check_reads(self) -> None:
        """Both sides read inside their inputs wherever their meanings promise it.

        Raises:
            CannotProve: that was not shown.
        """
        for read in dict.fromkeys(self.reads):
            if not self.facts.implied(read.condition, read.given):
                raise CannotProve(f"a read is not shown to be inside its input: {read.condition}")

    def check_positions(self, rule: Rule) -> None:
        """Positions that depend on data are inside the axes that the right side reads with them.

        Raises:
            CannotProve: that was not shown.
        """
        known = [(hidden_text(v), size) for v, size in self.left_promises]
        for name, scheme in rule.tensors.items():
            if scheme.below is not None:
                known.append((name, substitute(scheme.below, self.binding)))
        for value, size in self.right_promises:
            rendered = hidden_text(value)
            plain = chosen_from(value) or rendered
            if not any(k in (rendered, plain) and self.facts.implied(ge(size - below)) for k, below in known):
                raise CannotProve(f"a position {rendered} is not shown to be below {size}")

    def check_domain(self, rule: Rule) -> list[str]:
        """The side that the rule puts in is defined wherever the side that it takes out is.

        The rule's direction is left to right unless only the other one is possible. Used backwards, it may put in a
        side that is not defined everywhere: the verdict lists these values.

        Raises:
            CannotProve: that was not shown.
        """
        left, right = self.left_domain, self.right_domain
        for (kind, what), value in (*left.items(), *right.items()):
            if (number := constant_of(value)) is not None and (number < 0 or (number == 0 and kind != "nonnegative")):
                raise MalformedRule(f"one side is defined only where {readable(what)} is {kind}: nowhere")
        given_values, values = (left, right) if rule.forward or not rule.backward else (right, left)
        extra = sorted(
            k for k in values if k not in given_values and not self._is_defined(k[0], values[k], given_values.keys())
        )
        if extra:
            kind, rendered = extra[0]
            raise CannotProve(f"one side is defined only where {readable(rendered)} is {kind}")
        return sorted({f"{readable(rendered)} is {kind}" for kind, rendered in (*left, *right)})

    def _is_defined(self, kind: str, value: Value, given: Set[tuple[str, str]]) -> bool:
        """Whether a product is positive (not negative, not 0) because each of its factors is said to be."""
        if len(value) != 1 or value[0].bound or value[0].guards or value[0].coefficient < 0:
            return False
        for factor, power in value[0].factors:
            base = factor.value if isinstance(factor, SumPowerBase) else atom_value(factor)
            names: dict[str, Dim] = {n: sym("_") for n in free(base) if "~" in n or "." in n}
            rendered = text(base, names)
            enough = ("positive",) if kind == "positive" else ("positive", kind)
            even = power % 2 == 0 and kind == "nonnegative"
            if not (even or self.algebra.sign(base) == 2 or any((k, rendered) in given for k in enough)):
                return False
        return True

    def refined(self, digits: Sequence[Sequence[Dim]]) -> list[list[Dim]] | None:
        """Finer digits of an output axis, where an element is read at ``⌊(output index)/d⌋``."""
        for size in (*dimensions(self.left), *dimensions(self.right)):
            for atom in _quotients(size):
                for axis, extents in enumerate(digits):
                    for position, extent in enumerate(extents):
                        if coefficient_of(atom.numerator, f"o{axis}.{position}") != 1:
                            continue
                        quotient = exact_quotient(extent, atom.denominator)
                        if quotient in (None, 1) or symbols(atom.denominator) - self.facts.least.keys():
                            continue
                        made = [list(e) for e in digits]
                        made[axis][position : position + 1] = [quotient, atom.denominator]
                        return made
        return None


def chosen_from(value: Value) -> str | None:
    """The tensor variable of which a value is an element: plainly, or ``Σ_d at(d, …)·T[d]`` at a position from data."""
    if len(value) != 1 or value[0].coefficient != 1 or any(p != 1 for _, p in value[0].factors):
        return None
    chosen = [f for f, _ in value[0].factors if is_selector(f)]
    rest = [f for f, _ in value[0].factors if not is_selector(f)]
    selected = {str(dimension_of(f.args[0])) for f in chosen if isinstance(f, FunctionApplication)}
    if len(rest) != 1 or not isinstance(rest[0], TensorElement) or set(value[0].bound) != selected:
        return None
    return rest[0].tensor


def readable(rendered: str) -> str:
    """A value's text for people: factors of 1 and the number of its bound variables, where that is 0, left out."""
    return re.sub(r"(\d)\*0(?=[^\d.])", r"\1*", re.sub(r"(?<![\w/.])1\*0(?=[^\d.])", "", rendered)).replace("+ -", "- ")


def hidden_text(value: Value) -> str:
    """Text of a value for all indices alike."""
    return text(value, {n: sym("_") for n in free(value) if "~" in n or "." in n})


def _quotients(size: Dim) -> list[FloorQuotient]:
    return [
        a
        for m, _ in (size.terms if isinstance(size, SizePolynomial) else ())
        for a in m
        if isinstance(a, FloorQuotient)
    ]
