"""Types of a rule's terms at symbolic sizes, the obligations of well-formedness, and leading axes written out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from superopt.ir.size_polynomial import Dim, FloorQuotient, SizePolynomial, substitute, sym
from superopt.ir.terms import AttributeValue, OperatorTerm, OutputTerm, Term, VariableTerm, postorder, rebuilt, remade
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.ops.operator_definition import Operator
from superopt.ops.operator_semantics import IllTypedOperator, IndexCondition, OperatorSemantics
from superopt.rules.canonical import canonical, rule_text
from superopt.rules.grammar import format_dim
from superopt.rules.onnx_notation import from_front
from superopt.rules.rule import CLASSES, Rule, TensorVariableType, TypeScheme
from superopt.rules.scanner import RuleError

__all__ = [
    "DIGEST",
    "GatherBound",
    "RuleTypes",
    "applied_leads",
    "complete",
    "instances",
    "leads_of",
    "meaning_digest",
    "obligations",
    "operator_of",
    "positions",
    "condition_text",
    "type_terms",
    "types_of",
]


# -- Preconditions of a side ---------------------------------------------------------------------------------------
#
# Conditions on sizes and positions under which a side has a meaning. Three kinds: the requirements of the operators'
# meanings (a window that fits, channels that divide into groups); no tensor is empty, where a slice or crop could be;
# and the positions that a Gather reads are inside its axis.


# Operators whose outputs may have no elements although their operands have some.
_MAY_BE_EMPTY = frozenset({"Slice", "Pad", "Split", "ConstantOfShape", "Constant", "EyeLike", "Range", "Reshape"})
_READS_AT = frozenset({"Gather", "GatherElements"})
# Operators whose elements are elements of their first operand (of all of them: Concat).
_MOVES = frozenset({
    "Concat", "Expand", "Flatten", "Gather", "GatherElements", "Identity", "Reshape", "Slice", "Split", "Squeeze",
    "Tile", "Transpose", "Unsqueeze",
})  # fmt: skip
Types = Mapping[Term, tuple[TensorType, ...]]


def obligations(
    side: Sequence[Term], types: Types, meanings: Mapping[OperatorTerm, OperatorSemantics]
) -> tuple[IndexCondition, ...]:
    """The conditions on sizes under which the terms are well-formed, in the order in which they are met."""
    found: dict[IndexCondition, None] = {}
    for term in postorder(*side):
        if isinstance(term, OperatorTerm):
            found.update(dict.fromkeys(meanings[term].obligations))
            if term.op in _MAY_BE_EMPTY:
                found.update(dict.fromkeys(positive(d) for t in types[term] for d in t.shape or ()))
            if term.op in _READS_AT and (literal := _literal(term.args[1])) is not None:
                size = _axis(term, types)
                found |= {IndexCondition("ge", size - 1 - literal if literal >= 0 else size + literal): None}
    return tuple(c for c in found if c.known is not True)


def positive(size: Dim) -> IndexCondition:
    """``size >= 1``, without the quotient where the size is one: ``⌊n/d⌋ + c >= 1`` says ``n >= d·(1 - c)``."""
    if isinstance(size, SizePolynomial):
        for monomial, coefficient in size.terms:
            rest = size - SizePolynomial(((monomial, coefficient),)) if len(size.terms) > 1 else 0
            if (
                len(monomial) == 1
                and isinstance(monomial[0], FloorQuotient)
                and coefficient == 1
                and isinstance(rest, int)
            ):
                return IndexCondition("ge", monomial[0].numerator - monomial[0].denominator * (1 - rest))
    return IndexCondition("ge", size - 1)


def _axis(term: OperatorTerm, types: Types) -> Dim:
    """The size of the axis that a Gather reads at positions."""
    operand, axis = term.args[0], dict(term.attributes)["axis"]
    assert operand is not None
    assert isinstance(axis, int)
    return (types[operand][0].shape or ())[axis]


def _literal(term: Term | None) -> int | None:
    """The one number that a constant of a rule holds."""
    value = (
        dict(term.attributes).get("value") if isinstance(term, OperatorTerm) and term.op == "ConstantOfShape" else None
    )
    return int(value) if isinstance(value, int | float) and value == int(value) else None


@dataclass(frozen=True)
class GatherBound:
    """Positions that a Gather reads: the bound that their declaration gives (``None``: they are computed), the axis."""

    text: str
    below: Dim | None
    size: Dim

    def __str__(self) -> str:
        return f"positions {self.text} are inside an axis of size {format_dim(self.size)}"


def positions(rule: Rule, side: Sequence[Term], types: Types) -> tuple[GatherBound, ...]:
    """Every use of positions that are not literal, with what the rule's types say of them."""
    found: dict[GatherBound, None] = {}
    for term in postorder(*side):
        if isinstance(term, OperatorTerm) and term.op in _READS_AT and (indices := term.args[1]) is not None:
            for source in _sources(indices):
                if _literal(source) is None:
                    kind = rule.tensors[source.name] if isinstance(source, VariableTerm) else None
                    found[GatherBound(str(source), None if kind is None else kind.below, _axis(term, types))] = None
    return tuple(found)


def _sources(indices: Term) -> list[Term]:
    """The terms of which a term's elements are elements."""
    pending, found = [indices], dict[Term, None]()
    while pending:
        term = pending.pop()
        term = term.term if isinstance(term, OutputTerm) else term
        if isinstance(term, OperatorTerm) and term.op in _MOVES:
            pending += [a for a in (term.args if term.op == "Concat" else term.args[:1]) if a is not None]
        else:
            found[term] = None
    return list(found)


def condition_text(condition: IndexCondition) -> str:
    """A condition as a precondition in the grammar of ``where``: ``k <= n`` for ``n - k >= 0``."""
    terms = condition.size.terms if isinstance(condition.size, SizePolynomial) else (((), condition.size),)
    above = SizePolynomial.make({m: c for m, c in terms if c > 0})
    below = SizePolynomial.make({m: -c for m, c in terms if c < 0})
    if condition.kind != "ge":
        return f"{format_dim(above)} {'==' if condition.kind == 'eq' else '!='} {format_dim(below)}"
    if isinstance(below, int):
        return f"{format_dim(above)} >= {below}"
    if isinstance(below - 1, SizePolynomial) and () in dict(below.terms):
        return f"{format_dim(below - 1)} < {format_dim(above)}"
    return f"{format_dim(below)} <= {format_dim(above)}"


# -- Types of a rule -----------------------------------------------------------------------------------------------


DIGEST = "known_digest"  # where a rule that was kept has its digest
_SHIPPED = {name: REGISTRY[name] for name in REGISTRY}  # the records that digests kept on disk speak about
_LEADS = (0, 1, 2)  # numbers of leading axes that ``...`` is written out to by default
_EVERY_LEAD = (*_LEADS, 3, 4, 5)  # where it stands for all axes: a batch of volumes has five
_MOST_AXES = 5  # of a tensor with leading axes, up to which the search writes them out: a batch of volumes has five


@dataclass(frozen=True)
class RuleTypes:
    """Types of every term of a rule without ``...``, element class ``f`` read as float32.

    Attributes:
        types: output types of each application, the type of each variable (a tuple of one), of each projection.
        meanings: the meaning of each application.
        lhs, rhs: types of the two sides' terms.
        lhs_obligations, rhs_obligations: conditions on sizes under which each side is well-formed
            (:mod:`superopt.rules.typing`).
    """

    types: Mapping[Term, tuple[TensorType, ...]]
    meanings: Mapping[OperatorTerm, OperatorSemantics]
    lhs: tuple[TensorType, ...]
    rhs: tuple[TensorType, ...]
    lhs_obligations: tuple[IndexCondition, ...]
    rhs_obligations: tuple[IndexCondition, ...]


def operator_of(app: OperatorTerm) -> Operator:
    """The operator's record.

    Raises:
        RuleError: superopt has no such operator, or it has no such attribute or no meaning for it.
    """
    if app.op not in REGISTRY:
        raise RuleError(f"superopt has no operator {app.op}", hint="`superopt rules show` lists the operators")
    record = REGISTRY[app.op]
    for name, value in app.attributes:
        if name not in record.attributes:
            raise RuleError(
                f"{app.op} with {name}={value!r} is not covered", hint=f"covered: {', '.join(record.attributes)}"
            )
    return record


def complete(app: OperatorTerm, dtype: DType = DType.FLOAT32) -> dict[str, AttributeValue]:
    """The attributes of an application, with an omitted ``dtype`` filled in: it means the rule's own class ``f``."""
    values = dict(app.attributes)
    if "dtype" in operator_of(app).attributes:
        values.setdefault("dtype", str(dtype))
    return values


def type_terms(
    roots: Sequence[Term], variables: Mapping[str, TensorType], *, as_run: bool = False
) -> tuple[dict[Term, tuple[TensorType, ...]], dict[OperatorTerm, OperatorSemantics]]:
    """Types and meanings of every subterm, operands first; ``as_run``: in the order of operations of kernels.

    Raises:
        IllTypedOperator: an operator does not accept its arguments (the message names the operator).
    """
    types: dict[Term, tuple[TensorType, ...]] = {}
    meanings: dict[OperatorTerm, OperatorSemantics] = {}
    for term in postorder(*roots):
        if isinstance(term, VariableTerm):
            types[term] = (variables[term.name],)
        elif isinstance(term, OutputTerm):
            outputs = types[term.term]
            if term.index >= len(outputs):
                raise IllTypedOperator(f"{term.term.op} has {len(outputs)} outputs, not {term.index + 1}")
            types[term] = (outputs[term.index],)
        else:
            args = [None if a is None else types[a][0] for a in term.args]
            try:
                operator = operator_of(term).as_run if as_run else operator_of(term)
                meanings[term], types[term] = operator.apply(args, complete(term))
            except IllTypedOperator as error:
                raise type(error)(f"{term.op}: {error}") from error
    return types, meanings


def variable_types(rule: Rule) -> dict[str, TensorType]:
    """Types of a rule's tensor variables (no ``...``), symbolic."""
    return {n: TensorType(DType(CLASSES[s.dtype]), s.shape) for n, s in rule.tensors.items()}


def types_of(rule: Rule) -> RuleTypes:
    """Types of both sides with symbolic sizes; the rule must be one of :func:`instances`.

    Raises:
        RuleError: a side is not well-formed at any sizes.
    """
    if rule.lead:
        raise RuleError(
            "leading axes of any rank have no types; take one of instances(rule)", where=f'rule "{rule.id}"'
        )
    try:
        types, meanings = type_terms((*rule.lhs, *rule.rhs), variable_types(rule))
    except IllTypedOperator as error:
        raise RuleError(str(error), where=f'rule "{rule.id}"') from error

    return RuleTypes(
        types, meanings, tuple(types[t][0] for t in rule.lhs), tuple(types[t][0] for t in rule.rhs),
        obligations(rule.lhs, types, meanings), obligations(rule.rhs, types, meanings),
    )  # fmt: skip


def leads_of(rule: Rule) -> tuple[int, ...]:
    """The numbers of leading axes that ``...`` is written out to: more, where tensors with it have no other axes."""
    wide = [s.shape for s in rule.tensors.values() if s.lead]
    return () if not wide else _LEADS if any(wide) else _EVERY_LEAD


def applied_leads(rule: Rule) -> tuple[int, ...]:
    """The numbers of leading axes at which the search applies a rule: those of :func:`leads_of`, and more."""
    axes = max((len(s.shape) for s in rule.tensors.values() if s.lead), default=0)
    return (*leads_of(rule), *range(len(_LEADS), _MOST_AXES - axes + 1)) if axes else leads_of(rule)


def instances(rule: Rule, leads: Sequence[int] | None = None, *, strict: bool = True) -> tuple[Rule, ...]:
    """The rule with ``...`` written out as so many leading axes and every axis counted from the front.

    A rule without ``...`` has one instance. Ids are kept, so that what search applies is the rule that was proved.

    Args:
        rule: any rule.
        leads: numbers of leading axes; those of :func:`leads_of` by default.
        strict: raise where types do not fit; else such terms are kept with what is known of their axes, so that
            testing at given sizes can say what is wrong.

    Raises:
        RuleError: a side is not well-formed.
    """
    return tuple(_at_rank(rule, lead, strict) for lead in (leads or leads_of(rule) if rule.lead else (0,)))


def _at_rank(rule: Rule, lead: int, strict: bool) -> Rule:
    front: tuple[Dim, ...] = tuple(sym(f"lead_{i}") for i in range(lead))
    forall: dict[str, TypeScheme] = {
        n: replace(s, shape=front + s.shape, lead=False) if isinstance(s, TensorVariableType) and s.lead else s
        for n, s in rule.forall.items()
    }
    plain = replace(rule, forall=forall)
    types: dict[Term, tuple[TensorType, ...]] = {}
    terms: dict[Term, Term] = {}
    variables = variable_types(plain)
    for term in postorder(*rule.lhs, *rule.rhs):
        values = None
        if isinstance(term, OperatorTerm):
            known = (types[terms[a]] for a in term.args if a is not None)
            rank = next((len(outputs[0].shape or ()) for outputs in known if outputs), 0)
            values = tuple((k, from_front(term.op, k, v, rank, front)) for k, v in term.attributes)
        terms[term] = remade(term, terms, values)
        try:
            types[terms[term]] = _output_types(terms[term], types, variables)
        except IllTypedOperator as error:
            if strict:
                raise RuleError(str(error), where=f'rule "{rule.id}"') from error
            types[terms[term]] = ()
    return replace(plain, lhs=tuple(terms[t] for t in rule.lhs), rhs=tuple(terms[t] for t in rule.rhs))


def _output_types(
    term: Term, types: Mapping[Term, tuple[TensorType, ...]], variables: Mapping[str, TensorType]
) -> tuple[TensorType, ...]:
    if isinstance(term, VariableTerm):
        return (variables[term.name],)
    if isinstance(term, OutputTerm):
        outputs = types[term.term]
        if term.index >= len(outputs):
            raise IllTypedOperator(f"{term.term.op} has {len(outputs)} outputs, not {term.index + 1}")
        return (outputs[term.index],)
    if any(a is not None and not types[a] for a in term.args):
        return ()
    try:
        return operator_of(term).apply([None if a is None else types[a][0] for a in term.args], complete(term))[1]
    except IllTypedOperator as error:
        raise type(error)(f"{term.op}: {error}") from error


def meaning_digest(rule: Rule) -> str:
    """SHA-256 over the rule's canonical text and what its operators mean at the rule's own symbolic types.

    It changes when the rule changes, or the meaning of an operator as far as this rule depends on it. The library
    keeps it with its rules for as long as neither its files nor superopt's code change
    (:mod:`superopt.rules.library`); an operator that was replaced in this process since then is read anew.

    Raises:
        RuleError: the rule is not well-formed.
    """
    known = rule.__dict__.get(DIGEST)
    if isinstance(known, str) and all(REGISTRY.get(op) is _SHIPPED.get(op) for op in rule.operators):
        return known
    return _meaning_digest(rule)


@lru_cache(maxsize=8192)
def _meaning_digest(rule: Rule) -> str:
    smallest = canonical(rule)
    digest = hashlib.sha256(rule_text(smallest).encode())
    for instance in instances(smallest):
        for app, meaning in types_of(instance).meanings.items():
            obligations = ", ".join(map(str, meaning.obligations))
            digest.update(f"\n{app.op} {'; '.join(map(str, meaning.outputs))} | {obligations}".encode())
    return digest.hexdigest()


def at_sizes(
    rule: Rule, binding: Mapping[str, Dim], reals: Mapping[str, float]
) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
    """Both sides with sizes and attributes replaced by numbers (``reals`` for the real attribute atoms)."""

    def ground(app: OperatorTerm, name: str, value: AttributeValue) -> AttributeValue:
        return _ground(value, operator_of(app).attributes.get(name, ""), binding, reals)

    terms = rebuilt((*rule.lhs, *rule.rhs), ground)
    return terms[: len(rule.lhs)], terms[len(rule.lhs) :]


def _ground(value: AttributeValue, kind: str, binding: Mapping[str, Dim], reals: Mapping[str, float]) -> AttributeValue:
    if isinstance(value, tuple):
        return tuple(_ground(v, kind, binding, reals) for v in value)
    if isinstance(value, int | float | str):
        return float(value) if kind == "float" and not isinstance(value, str) else value
    return _real(value, binding, reals) if kind == "float" else substitute(value, binding)


def _real(value: SizePolynomial, binding: Mapping[str, Dim], reals: Mapping[str, float]) -> float:
    """A polynomial over sizes and real attributes as a number; real attributes are dyadic, so this is exact."""
    total = Fraction(0)
    for monomial, coefficient in value.terms:
        product = Fraction(coefficient)
        for atom in monomial:
            if isinstance(atom, str) and atom in reals:
                product *= Fraction(reals[atom])
            else:
                size = substitute(SizePolynomial((((atom,), 1),)), binding)
                product *= Fraction(size) if isinstance(size, int) else Fraction(0)
        total += product
    return float(total)
