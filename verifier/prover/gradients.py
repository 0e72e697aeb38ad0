"""Proofs of gradients: that a pushforward is the derivative of the meaning, and a pullback the adjoint of that.

The derivative ``D f`` of an operator is a meaning, derived from its own
(:mod:`superopt.ops.derivative.scalar_derivatives`). Of what is emitted, terms over operators, the prover is asked, for
all sizes, attributes and values,

* ``push(x, ẋ)[i] = (D f)(x, ẋ)[i]``: the pushforward is the derivative;
* ``Σ_i c[i]·(D f)(x, ẋ)[i] = Σ_j pull(x, c)[j]·ẋ[j]`` for each operand by itself: the pullback is its adjoint.

At kinks both sides follow the convention of :mod:`superopt.ops.derivative.scalar_derivatives`. The cases are
``gradients.toml``.
"""

from __future__ import annotations

import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from superopt.ir.errors import UsageError
from superopt.ir.terms import OperatorTerm, OutputTerm, Term, VariableTerm, postorder, variables
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.derivative.declarations import DECLARED
from superopt.ops.derivative.pullback_pushforward import is_still, pull, push
from superopt.ops.derivative.scalar_derivatives import PREFIX, derivative_of, kinks_of
from superopt.ops.derivative.typed_terms import (
    DifferentiationSite,
    TypedTerm,
    added,
    apply,
    by_channel,
    constant,
    variable,
)
from superopt.ops.operator_definition import Operator
from superopt.rules.grammar import parse_scheme, parse_term
from superopt.rules.rule import AttributeVariableType, Rule, TensorVariableType, TypeScheme
from superopt.rules.typing import complete, instances, type_terms, variable_types
from superopt.verifier.prover.prover import prove
from superopt.verifier.verdict import ProvedVerdict

__all__ = ["OperatorGradientProof", "OperatorDerivativeGoal", "cases", "check_gradients", "statements"]

SECONDS = 20.0  # of work that a proof may take


@dataclass(frozen=True)
class OperatorDerivativeGoal:
    """One thing to prove: of ``what`` ("pushforward" or "pullback of x"), in the case as its text says it."""

    op: str
    case: str
    what: str
    rule: Rule


@dataclass(frozen=True)
class OperatorGradientProof:
    """What is known of one operator's derivative.

    Attributes:
        op: its name.
        how: "declared", "by expansion" or "derived".
        proved: statements that were proved.
        total: statements there are.
        missing: those that were not, with the reason.
        kinks: where there is no derivative, and what is taken there.
    """

    op: str
    how: str
    proved: int
    total: int
    missing: tuple[str, ...]
    kinks: tuple[str, ...]
    seconds: float

    @property
    def is_proved(self) -> bool:
        """Whether every statement was."""
        return self.total > 0 and self.proved == self.total


@cache
def cases() -> Mapping[str, tuple[str, ...]]:
    """The cases, as text, of every operator with a real result that depends on a real operand and is not constant
    between jumps."""
    table = tomllib.loads((files("superopt.verifier") / "gradients.toml").read_text("utf-8"))
    return {name: tuple(texts) for name, texts in table["case"].items()}


def check_gradients(names: Iterable[str] = ()) -> Iterator[OperatorGradientProof]:
    """Prove the derivatives of operators, all by default.

    Raises:
        UsageError: an operator has no derivative to prove.
    """
    chosen = list(names) or list(cases())
    for name in chosen:
        if name not in cases():
            known = "moves with nothing" if name in REGISTRY else "is not known"
            raise UsageError(f"operator {name} {known}", hint="`superopt gradients check` lists those that move")
    for name in chosen:
        yield _checked(name)


def _checked(name: str) -> OperatorGradientProof:
    started = time.monotonic()
    proved, total = 0, 0
    missing: dict[str, None] = {}
    for statement in statements(name):
        total += 1
        with REGISTRY.also(*_derivatives(statement.rule)):
            verdict = prove(statement.rule, time_limit=SECONDS)
        if isinstance(verdict, ProvedVerdict):
            proved += 1
        else:
            missing.setdefault(f"{statement.what} in {statement.case}: {getattr(verdict, 'reason', verdict)}")
    declared = DECLARED.get(name)
    expanded = declared is not None and declared.expansion is not None
    how = "by expansion" if expanded else "declared" if declared is not None and declared.pullback else "derived"
    return OperatorGradientProof(name, how, proved, total, tuple(missing), _kinks(name), time.monotonic() - started)


def _kinks(name: str) -> tuple[str, ...]:
    rule = instances(_case(cases()[name][0]))[0]
    _, meanings = type_terms(rule.lhs, variable_types(rule))
    (term,) = rule.lhs
    assert isinstance(term, OperatorTerm)
    return kinks_of(meanings[term].outputs)


def statements(name: str) -> Iterator[OperatorDerivativeGoal]:
    """What is to be proved of an operator."""
    for text in cases()[name]:
        for rule in instances(_case(text)):
            (term,) = rule.lhs
            assert isinstance(term, OperatorTerm)
            yield from _of_application(name, text.partition(" |")[0], rule, term)


def _case(text: str) -> Rule:
    """``Op(x, …) | x = f[n], …`` as a rule that says nothing, for its types."""
    term_text, _, types = text.partition("|")
    forall: dict[str, TypeScheme] = {}
    for part in _listed(types):
        name, _, scheme = part.partition("=")
        forall[name.strip()] = parse_scheme(scheme.strip())
    term = parse_term(term_text.strip(), forall)
    return Rule(text, forall, (), (term,), (term,))


def _listed(text: str) -> Iterator[str]:
    """Parts between commas that are outside brackets."""
    depth, start = 0, 0
    for position, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if character == "," and not depth:
            yield text[start:position]
            start = position + 1
    yield text[start:]


def _of_application(name: str, case: str, rule: Rule, term: OperatorTerm) -> Iterator[OperatorDerivativeGoal]:
    types = variable_types(rule)
    makers = {p: _site(a, types) for p, a in enumerate(term.args) if isinstance(a, OperatorTerm) and a.args}
    args = tuple(makers[p].output() if p in makers else _operand(a, types) for p, a in enumerate(term.args))
    term = OperatorTerm(name, tuple(None if a is None else a.term for a in args), term.attributes)
    attributes = complete(term)
    moving = frozenset(
        p for p, a in enumerate(term.args) if isinstance(a, VariableTerm) and types[a.name].dtype.is_float
    )
    site = DifferentiationSite(name, args, attributes, moving, makers)
    if is_still(site):
        raise UsageError(f"{name} does not move with its operands", where=f"gradients.toml, case {case!r}")
    attribute_items = tuple(sorted(attributes.items()))

    def derivative(tangents: Sequence[Term | None]) -> OperatorTerm:
        return OperatorTerm(PREFIX + name, (*term.args, *tangents), attribute_items)

    tangents = [_tangent(a, p) if p in moving else None for p, a in enumerate(args)]
    outputs = site.outputs()
    several = len(outputs) > 1
    for position, moved in enumerate(push(site, tangents)):
        body = derivative([None if t is None else t.term for t in tangents])
        whole: Term = OutputTerm(body, position) if several else body
        if moved is not None:
            what = f"pushforward of output {position}" if several else "pushforward"
            yield _statement(name, case, what, rule, whole, moved.term, tangents)
    given_expressions = cotangents = [variable(f"c{position}", y.type) for position, y in enumerate(outputs)]

    def adjoint(
        what: str, pulled: Mapping[int, TypedTerm], positions: Sequence[int], given_expressions: Sequence[TypedTerm]
    ) -> OperatorDerivativeGoal:
        """That cotangents of these operands, with their tangents, are what the derivative is with the given ones."""
        chosen = [tangent if p in positions else None for p, tangent in enumerate(tangents)]
        body = derivative([None if t is None else t.term for t in chosen])
        parts = [TypedTerm(OutputTerm(body, p) if several else body, y.type) for p, y in enumerate(outputs)]
        left = added([_inner(c, part) for c, part in zip(given_expressions, parts, strict=True)])
        there = [(p, t) for p, t in enumerate(chosen) if t is not None]
        right = added([_inner(pulled[p], t) for p, t in there if p in pulled]) or constant(0, there[0][1].dtype)
        assert left is not None
        return _statement(name, case, what, rule, left.term, right.term, [*(t for _, t in there), *cotangents])

    together = pull(site, given_expressions)
    alone = {p: pull(replace(site, wanted=frozenset({p})), given_expressions) for p in sorted(moving)}
    for position, expressions in alone.items():
        yield adjoint(f"pullback of {term.args[position]}", expressions, [position], given_expressions)
    if any(together.get(p) != expressions.get(p) for p, expressions in alone.items()):
        yield adjoint("pullback of all together", together, sorted(moving), given_expressions)
    if not several and given_expressions[0].rank > 1:  # what a cotangent is made of may be read from it
        numbers = variable("numbers", TensorType(given_expressions[0].dtype, given_expressions[0].shape[1:2]))
        known_expression = by_channel(given_expressions[0], numbers)
        cotangents = [*given_expressions, numbers]
        for position in sorted(moving):
            alike = replace(site, wanted=frozenset({position}))
            apart = pull(alike, [known_expression])
            if apart != pull(alike, [replace(known_expression, channels=None)]):
                yield adjoint(f"pullback of {term.args[position]} by channel", apart, [position], [known_expression])


def _site(term: OperatorTerm, types: Mapping[str, TensorType]) -> DifferentiationSite:
    """The application that makes an operand, all of whose own move."""
    args = tuple(_operand(a, types) for a in term.args)
    moving = frozenset(p for p, a in enumerate(args) if a is not None and a.dtype.is_float)
    return DifferentiationSite(term.op, args, complete(term), moving)


def _operand(term: Term | None, types: Mapping[str, TensorType]) -> TypedTerm | None:
    if term is None:
        return None
    if isinstance(term, VariableTerm):
        return variable(term.name, types[term.name])
    assert isinstance(term, OperatorTerm), "an operand of a case is a variable or a number"
    return apply(term.op, **complete(term))


def _tangent(x: TypedTerm | None, position: int) -> TypedTerm:
    assert x is not None
    return variable(f"d{position}", x.type)


def _inner(a: TypedTerm, b: TypedTerm) -> TypedTerm:
    """``Σ a·b`` over all elements."""
    product = OperatorTerm("Mul", (a.term, b.term))  # of a derivative, too, which has no record to ask for the type
    if not a.rank:
        return TypedTerm(product, a.type)
    attributes = (("axes", tuple(range(a.rank))), ("keepdims", 0))
    return TypedTerm(OperatorTerm("ReduceSum", (product,), attributes), TensorType(a.dtype, ()))


def _statement(
    name: str, case: str, what: str, rule: Rule, left: Term, right: Term, more: Sequence[TypedTerm | None]
) -> OperatorDerivativeGoal:  # fmt: skip
    used = set(variables(left, right))
    own = {n: s for n, s in rule.forall.items() if isinstance(s, AttributeVariableType) or n in used}
    added_types = {str(e.term): TensorVariableType("f", e.shape) for e in more if e is not None and str(e.term) in used}
    stated = replace(rule, id=f"{name}: {what}", forall={**own, **added_types}, lhs=(left,), rhs=(right,))
    return OperatorDerivativeGoal(name, case, what, stated)


def _derivatives(rule: Rule) -> list[Operator]:
    """The records of the derivatives that a statement is about."""
    return [
        derivative_of(REGISTRY[app.removeprefix(PREFIX)], _count(rule, app))
        for app in sorted(rule.operators)
        if app.startswith(PREFIX)
    ]


def _count(rule: Rule, op: str) -> int:
    """How many operands the derivative's operator has in a rule."""
    app = next(t for t in postorder(*rule.lhs, *rule.rhs) if isinstance(t, OperatorTerm) and t.op == op)
    return len(app.args) // 2
