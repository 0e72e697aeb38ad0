"""From a pair of equal terms to a candidate rule, the same for all renamings of interchangeable leaves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from superopt.cost.backend_capabilities import ONNX_RUNTIME_CPU
from superopt.discovery.config import OperatorVocabulary
from superopt.egraph.nary_rules import lift
from superopt.egraph.rule_compiler import flowing
from superopt.ir.size_polynomial import SizePolynomial, symbols
from superopt.ir.terms import OperatorTerm, OutputTerm, Term, VariableTerm, postorder, remade, variables
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.rules.canonical import map_terms
from superopt.rules.rule import AttributeVariableType, Rule, TypeScheme, attribute_symbols, term_symbols
from superopt.rules.scanner import RuleError
from superopt.rules.typing import instances, operator_of, types_of

__all__ = ["candidates", "joined", "movements", "n_ary", "operator_count", "restricted", "simpler", "tidied", "work"]


def operator_count(*roots: Term) -> int:
    """Applications in terms, shared ones once."""
    return sum(isinstance(t, OperatorTerm) for t in postorder(*roots))


def restricted(rule: Rule) -> Rule:
    """The rule with only those variables that occur in it: tensors, and attributes in terms, types or guards."""
    used = set(variables(*rule.lhs, *rule.rhs))
    names = term_symbols((*rule.lhs, *rule.rhs)) | {n for g in rule.where for n in g.names}
    for name in used:
        names |= {n for d in rule.tensors[name].shape for n in symbols(d)}
        below = rule.tensors[name].below
        names |= symbols(below) if isinstance(below, SizePolynomial) else set()
    forall: dict[str, TypeScheme] = {}
    for name, scheme in rule.forall.items():
        if isinstance(scheme, AttributeVariableType):
            if set(attribute_symbols(name, scheme)) & names:
                forall[name] = scheme
        elif name in used:
            forall[name] = scheme
    return replace(rule, forall=forall)


def simpler(first: Term, second: Term) -> bool:
    """Whether less runs of the first term, whose variables the second one has."""
    mine, other = frozenset(variables(first)), frozenset(variables(second))
    return mine <= other and bool(other) and work((first,), other) < work((second,), other)


def work(roots: Sequence[Term], data: AbstractSet[str]) -> tuple[int, int]:
    """How many applications depend on the variables: of those that compute or move elements, and of all (the others
    only rename memory)."""
    running = flowing(roots, data)
    return sum(t.op not in ONNX_RUNTIME_CPU.views for t in running), len(running)


def sized_by_data(rule: Rule, data: AbstractSet[str]) -> bool:
    """Whether weights on the right side are computed through what is as long as a batch or an image is.

    An image's channels are as many as a kernel's, which is why axis 1 of four and more says nothing of its size. Nor
    does an attribute, of which a size may be a multiple.
    """
    lengths: dict[str, set[str]] = {}
    for name, scheme in rule.tensors.items():
        channels = 1 if name in data and len(scheme.shape) >= 4 else None
        lengths[name] = {a for axis, d in enumerate(scheme.shape) if axis != channels for a in symbols(d)}
    alone = set().union(*(lengths[n] for n in data)) - set().union(*(lengths[n] for n in lengths.keys() - data))
    alone -= rule.attribute_atoms.keys()
    running = set(flowing(rule.rhs, data))
    fixed = [t for t in postorder(*rule.rhs) if isinstance(t, OperatorTerm) and t not in running]
    return not alone.isdisjoint(term_symbols(tuple(fixed)))


def candidates(theme: OperatorVocabulary, pairs: Iterable[tuple[Term, Term]]) -> list[Rule]:
    """Candidate rules, smallest and most general first; one of those that differ only in the names of leaves.

    Leaves of one type are interchangeable. A pair that no direction could use (each side has a variable that the
    other lacks) is left out.
    """
    groups: dict[object, list[str]] = {}
    for name, scheme in theme.leaves.items():
        groups.setdefault((scheme, name in theme.weights), []).append(name)
    owner = {n: key for key, names in groups.items() for n in names}
    rules: dict[str, Rule] = {}
    given_terms = {t.term for t in theme.vocabulary if not t.holes}
    for first, second in pairs:
        if theme.about and not any(_mentions(t, theme.about, given_terms) for t in (first, second)):
            continue
        left, right = (first, second) if operator_count(first) >= operator_count(second) else (second, first)
        if theme.simplifies and not simpler(first, second) and not simpler(second, first):
            continue
        used, other = set(variables(left)), set(variables(right))
        if not (used <= other or other <= used):
            continue
        a, b = min(
            (_renamed(groups, owner, p) for p in ((left, right), (right, left))), key=lambda p: (str(p[0]), str(p[1]))
        )
        if simpler(a, b) if theme.simplifies else operator_count(a) < operator_count(b):
            a, b = b, a
        text = f"{a} = {b}"
        if text not in rules:
            rule = restricted(Rule(theme.name, theme.forall, (), (a,), (b,), theme.origin, theme.family))
            if theme.records:
                rule = _with_sizes(rule)
            if (rule.forward or rule.backward) and a != b and _grounded(rule):
                rules[text] = rule
    return sorted(rules.values(), key=_rank)


def _mentions(root: Term, operators: frozenset[str], leaves: set[Term]) -> bool:
    """Whether a term has one of the operators outside its leaves."""
    stack = [root]
    while stack:
        term = stack.pop()
        if isinstance(term, OutputTerm):
            stack.append(term.term)
        elif isinstance(term, OperatorTerm) and term not in leaves:
            if term.op in operators:
                return True
            stack.extend(a for a in term.args if a is not None)
    return False


def _with_sizes(rule: Rule) -> Rule:
    """The rule with sizes that no tensor has as attributes: those of what is expanded."""
    missing = sorted(term_symbols((*rule.lhs, *rule.rhs)) - {*rule.sizes, *rule.attribute_atoms})
    return replace(rule, forall={**rule.forall, **{n: AttributeVariableType("int", None, ">=", 1) for n in missing}})


def _grounded(rule: Rule) -> bool:
    """Every size in the terms is a size of some tensor; ``Transpose(EyeLike([n, n]))`` alone says nothing of ``n``."""
    return term_symbols((*rule.lhs, *rule.rhs)) <= {*rule.sizes, *rule.attribute_atoms}


def movements(*roots: Term) -> int:
    """Applications that only move elements: a rule with few of them is the one that people know."""
    moving = ("Concat", "Split", "Transpose", "Reshape", "Pad", "Slice", "Gather", "Squeeze", "Unsqueeze")
    return sum(isinstance(t, OperatorTerm) and t.op in moving for t in postorder(*roots))


def _rank(rule: Rule) -> tuple[int, int, int, int, str]:
    """Few operators first; of those, many variables (general) first."""
    sizes = operator_count(*rule.lhs), operator_count(*rule.rhs)
    moved = movements(*rule.lhs, *rule.rhs)
    return sum(sizes), -len(rule.tensors), moved, max(sizes), f"{rule.lhs[0]} = {rule.rhs[0]}"


def _renamed(groups: dict[object, list[str]], owner: dict[str, object], pair: tuple[Term, Term]) -> tuple[Term, Term]:
    order: dict[str, None] = {}
    for root in pair:
        order.update(dict.fromkeys(_reading_order(root)))
    taken: dict[object, int] = {}
    names: dict[str, Term] = {}
    for name in order:
        group = owner[name]
        names[name] = VariableTerm(groups[group][taken.get(group, 0)])
        taken[group] = taken.get(group, 0) + 1
    left, right = map_terms(pair, names, {})
    return left, right


def _reading_order(root: Term) -> list[str]:
    """Variables left to right."""
    found: list[str] = []
    stack: list[Term] = [root]
    while stack:
        term = stack.pop()
        if isinstance(term, VariableTerm):
            found.append(term.name)
        elif isinstance(term, OutputTerm):
            stack.append(term.term)
        else:
            stack.extend(a for a in reversed(term.args) if a is not None)
    return found


def tidied(rule: Rule) -> Rule:
    """The rule with the operands of commutative operators in the order of ``forall``: for people, and for one text."""
    place = {n: i for i, n in enumerate(rule.forall)}
    terms: dict[Term, Term] = {}

    def first(term: Term) -> tuple[int, str]:
        return min((place[n] for n in variables(term)), default=len(place)), str(term)

    for term in postorder(*rule.lhs, *rule.rhs):
        terms[term] = fresh = remade(term, terms)
        if isinstance(fresh, OperatorTerm) and operator_of(fresh).commutative:
            present = [a for a in fresh.args if a is not None]
            if len(fresh.args) == len(present) == 2:
                terms[term] = replace(fresh, args=(*sorted(present, key=first),))
    return replace(rule, lhs=tuple(terms[t] for t in rule.lhs), rhs=tuple(terms[t] for t in rule.rhs))


def joined(rule: Rule) -> Rule | None:
    """``Concat(s, t) = u`` as a rule with two outputs: ``s = Split(u)[0]``, ``t = Split(u)[1]``.

    So the merging of siblings (QKV, parallel convolutions) is found: nothing on its left says that the siblings are
    concatenated. ``None`` where no side is such a Concat.
    """
    if len(rule.lhs) != 1:
        return None
    for root, other in ((rule.lhs[0], rule.rhs[0]), (rule.rhs[0], rule.lhs[0])):
        if not (isinstance(root, OperatorTerm) and root.op == "Concat" and len(root.args) == 2) or isinstance(
            other, VariableTerm
        ):
            continue
        parts = tuple(a for a in root.args if a is not None)
        if any(isinstance(p, VariableTerm) or not variables(p) for p in parts) or (
            isinstance(other, OperatorTerm) and other.op == "Concat"
        ):
            continue
        axis = dict(root.attributes)["axis"]
        sizes = _sizes_along(rule, parts, axis)
        if sizes is None:
            continue
        split = OperatorTerm("Split", (other,), (("axis", axis), ("split", sizes)))
        pair = replace(rule, lhs=parts, rhs=(OutputTerm(split, 0), OutputTerm(split, 1)))
        return pair if pair.forward else None
    return None


def _sizes_along(rule: Rule, parts: Sequence[Term], axis: object) -> tuple[int | SizePolynomial, ...] | None:
    """Symbolic sizes of the parts along the axis."""
    lead = 1 if rule.lead else 0
    try:
        (plain,) = instances(replace(rule, lhs=tuple(parts), rhs=tuple(parts)), (lead,))
        kinds = types_of(plain).lhs
    except (RuleError, IllTypedOperator):
        return None
    if not isinstance(axis, int):
        return None
    return tuple(k.shape[axis + (lead if axis >= 0 and rule.lead else 0)] for k in kinds if k.shape is not None)


def n_ary(rule: Rule) -> bool:
    """Whether the rule is one of a family for any number of siblings or parts, that search applies at once."""
    return len(rule.lhs) == 2 and lift(rule, 3) is not None
