"""The canonical form of a rule, equal for rules that differ only in names, order of terms or direction; and
instances.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations

from superopt.ir.size_polynomial import Dim, SizePolynomial, substitute, sym, symbols
from superopt.ir.terms import AttributeValue, OperatorTerm, OutputTerm, Term, VariableTerm, postorder, rebuilt
from superopt.rules.grammar import format_guard, format_scheme, format_term
from superopt.rules.rule import Rule, RulePrecondition, TensorVariableType, TypeScheme, attribute_symbols, value_symbols

__all__ = [
    "canonical",
    "independent",
    "is_instance",
    "map_terms",
    "named",
    "rule_text",
    "solve",
    "text_digest",
]


def map_value(value: AttributeValue, binding: Mapping[str, Dim]) -> AttributeValue:
    """An attribute value with names replaced."""
    if isinstance(value, tuple):
        return tuple(map_value(v, binding) for v in value)
    return substitute(value, binding) if isinstance(value, SizePolynomial) else value


def map_terms(roots: tuple[Term, ...], names: Mapping[str, Term], binding: Mapping[str, Dim]) -> tuple[Term, ...]:
    """Terms with tensor variables and attribute names replaced; shared subterms stay shared; iterative."""
    return rebuilt(roots, lambda _app, _name, value: map_value(value, binding), lambda term: names.get(term.name, term))


def _renamed(rule: Rule) -> Rule:
    """Names in order of first occurrence: tensors x0…, attribute variables a0…, sizes n0…."""
    order: dict[str, None] = {}
    tensors: dict[str, None] = {}
    owner = {a: n for n, s in rule.attributes.items() for a in attribute_symbols(n, s)}
    for term in postorder(*rule.lhs, *rule.rhs):
        if isinstance(term, VariableTerm):
            tensors[term.name] = None
            for size in rule.tensors[term.name].shape:
                order.update(dict.fromkeys(_in_order(size)))
        elif isinstance(term, OperatorTerm):
            for _, value in term.attributes:
                for part in value if isinstance(value, tuple) else (value,):
                    order.update(dict.fromkeys(_in_order(part)))
    order.update(dict.fromkeys(sorted({*rule.sizes, *rule.attribute_atoms} - set(order))))
    variables = {n: f"x{i}" for i, n in enumerate(tensors)}
    attributes = {n: f"a{i}" for i, n in enumerate(dict.fromkeys(owner[s] for s in order if s in owner))}
    binding: dict[str, Dim] = {s: sym(f"n{i}") for i, s in enumerate(s for s in order if s not in owner)}
    for name, new in attributes.items():
        scheme = rule.attributes[name]
        pairs = zip(attribute_symbols(name, scheme), attribute_symbols(new, scheme), strict=True)
        binding |= {a: sym(b) for a, b in pairs}
    forall: dict[str, TypeScheme] = {}
    for name, new in variables.items():
        scheme_t = rule.tensors[name]
        below = None if scheme_t.below is None else substitute(scheme_t.below, binding)
        shape = tuple(substitute(d, binding) for d in scheme_t.shape)
        forall[new] = TensorVariableType(scheme_t.dtype, shape, scheme_t.lead, below)
    forall |= {new: rule.attributes[n] for n, new in attributes.items()}
    leaves: dict[str, Term] = {n: VariableTerm(v) for n, v in variables.items()}
    guards = {
        RulePrecondition(substitute(g.left, binding), g.relation, substitute(g.right, binding)) for g in rule.where
    }
    return Rule(
        id=rule.id, forall=forall, where=tuple(sorted(guards, key=format_guard)),
        lhs=map_terms(rule.lhs, leaves, binding), rhs=map_terms(rule.rhs, leaves, binding),
        origin=rule.origin, family=rule.family,
    )  # fmt: skip


def _in_order(value: AttributeValue) -> list[str]:
    return sorted(value_symbols(value)) if isinstance(value, SizePolynomial | tuple) else []


def rule_text(rule: Rule) -> str:
    """One line that says the whole rule, its id and origin apart."""
    forall = "; ".join(f"{n}: {format_scheme(s)}" for n, s in rule.forall.items())
    guards = ", ".join(map(format_guard, rule.where))
    sides = (", ".join(format_term(t, rule.forall) for t in side) for side in (rule.lhs, rule.rhs))
    return f"[{forall}] [{guards}] {' = '.join(sides)}"


def canonical(rule: Rule) -> Rule:
    """The representative of the rule under renaming, swapping sides and reordering its pairs of terms.

    It is the smallest text over both orientations and (up to four) pairs in any order.
    """
    pairs = list(zip(rule.lhs, rule.rhs, strict=True))
    orders = permutations(pairs) if len(pairs) <= 4 else [tuple(pairs)]
    candidates: list[Rule] = []
    for order in orders:
        left, right = tuple(a for a, _ in order), tuple(b for _, b in order)
        candidates += [_renamed(replace(rule, lhs=left, rhs=right)), _renamed(replace(rule, lhs=right, rhs=left))]
    return min(candidates, key=rule_text)


def text_digest(rule: Rule) -> str:
    """SHA-256 of the canonical text."""
    return hashlib.sha256(rule_text(canonical(rule)).encode()).hexdigest()


def named(rule: Rule) -> Rule:
    """The rule with a stable id: its family and four hexadecimal digits of its digest."""
    return replace(rule, id=f"{rule.family or 'rule'}-{text_digest(rule)[:4]}")


# -- Sizes inside products and sums --------------------------------------------------------------------------------


def solve(equations: Sequence[tuple[SizePolynomial, Dim]], known: Mapping[str, Dim]) -> dict[str, Dim] | None:
    """``known`` with every name added that an equation ``expression == value`` determines.

    Only exact, linear solutions are taken. Names that nothing determines are left out. A Conv's weights
    ``f[g*o, c, u, v]`` of 64 output channels at ``g = 4`` mean ``o = 16``:

    >>> from superopt.ir.size_polynomial import sym
    >>> solve([(sym("g") * sym("o"), 64)], {"g": 4})
    {'g': 4, 'o': 16}
    >>> solve([(sym("g") * sym("o"), 63)], {"g": 4}) is None
    True

    Args:
        equations: expressions over the rule's names, and the sizes (over the model's names) that they must equal.
        known: what names are bound to already.

    Returns:
        The bindings, or ``None`` where an equation has no solution.
    """
    sizes = dict(known)
    waiting = [(w, g) for w, g in equations if not symbols(w) <= sizes.keys()]
    while waiting:
        later: list[tuple[SizePolynomial, Dim]] = []
        for wanted, given_size in waiting:
            unknown = symbols(wanted) - sizes.keys()
            if len(unknown) > 1:
                later.append((wanted, given_size))
            elif unknown:
                name = next(iter(unknown))
                value = _linear(wanted, given_size, name, sizes)
                if value is None:
                    return None
                sizes[name] = value
        if len(later) == len(waiting):
            break
        waiting = later
    return sizes


def _linear(wanted: SizePolynomial, given_size: Dim, name: str, known_sizes: Mapping[str, Dim]) -> Dim | None:
    """The value of ``name`` in ``slope·name + rest == given``; ``None`` where it is not linear or not whole."""
    slope: Dim = 0
    rest: Dim = 0
    for monomial, coefficient in wanted.terms:
        times = monomial.count(name)
        if times > 1 or any(not isinstance(a, str) and name in symbols(SizePolynomial((((a,), 1),))) for a in monomial):
            return None
        others = list(monomial)
        if times:
            others.remove(name)
        part: Dim = SizePolynomial(((tuple(others), coefficient),)) if others else coefficient
        part = substitute(part, known_sizes)
        slope, rest = (slope + part, rest) if times else (slope, rest + part)
    if isinstance(slope, int) and slope <= 0:
        return None
    difference = given_size - rest
    value = difference // slope
    return value if value * slope == difference else None


# -- Instances of other rules --------------------------------------------------------------------------------------
#
# A rule is redundant if it is an instance of another one: with other names, with its sides exchanged, or with sizes
# inserted. One pair of terms is matched against the other, as in subsumption of clauses. To leave the instance out is
# sound, because the general rule applies wherever the instance does, with the same result.


Pair = tuple[Dim, Dim]


def independent(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules without those that are instances of an earlier one, in the same order."""
    kept: dict[tuple[str, ...], list[Rule]] = defaultdict(list)
    found_rules = []
    for rule in rules:
        alike = kept[_skeleton(rule)]
        if not any(is_instance(rule, general) for general in alike):
            alike.append(rule)
            found_rules.append(rule)
    return tuple(found_rules)


def is_instance(rule: Rule, general: Rule) -> bool:
    """Whether the general rule says all that the rule says, and can be used in the directions in which that can.

    A ``False`` may be wrong (guards are compared as they are written), a ``True`` is not.
    """
    usable = (general.forward or not rule.forward) and (general.backward or not rule.backward)
    mirrored = (general.forward or not rule.backward) and (general.backward or not rule.forward)
    return (usable and _covers(general, rule, rule.lhs, rule.rhs)) or (
        mirrored and _covers(general, rule, rule.rhs, rule.lhs)
    )


def _skeleton(rule: Rule) -> tuple[str, ...]:
    """Operators and how they are put together, whichever side comes first; equal for a rule and its instances."""
    return tuple(sorted(",".join(_shape(t) for t in side) for side in (rule.lhs, rule.rhs)))


def _shape(root: Term) -> str:
    made: dict[Term, str] = {}
    for term in postorder(root):
        if isinstance(term, OperatorTerm):
            made[term] = f"{term.op}({','.join('-' if a is None else made[a] for a in term.args)})"
        else:
            made[term] = f"{made[term.term]}[{term.index}]" if isinstance(term, OutputTerm) else "x"
    return made[root]


def _covers(general: Rule, rule: Rule, lhs: Sequence[Term], rhs: Sequence[Term]) -> bool:
    variables: dict[str, str] = {}
    pairs = _pairs((*general.lhs, *general.rhs), (*lhs, *rhs), variables)
    if pairs is None or len(general.lhs) != len(lhs):
        return False
    for ours, theirs in variables.items():
        pairs += _sizes(general.tensors[ours], rule.tensors[theirs]) or [(0, 1)]
    sizes = _bound(pairs)
    return sizes is not None and _allowed(general, rule, sizes) and _implied(general, rule, sizes)


def _pairs(ours: Sequence[Term], theirs: Sequence[Term], variables: dict[str, str]) -> list[Pair] | None:
    """Numbers in the terms that must be equal; variables are matched on the way. ``None`` where the terms differ."""
    if len(ours) != len(theirs):
        return None
    found: list[Pair] = []
    stack = list(zip(ours, theirs, strict=True))
    while stack:
        a, b = stack.pop()
        if isinstance(a, VariableTerm) and isinstance(b, VariableTerm):
            if variables.setdefault(a.name, b.name) != b.name:
                return None
        elif isinstance(a, OutputTerm) and isinstance(b, OutputTerm) and a.index == b.index:
            stack.append((a.term, b.term))
        elif (
            isinstance(a, OperatorTerm) and isinstance(b, OperatorTerm) and a.op == b.op and len(a.args) == len(b.args)
        ):
            for x, y in zip(a.args, b.args, strict=True):
                if (x is None) != (y is None):
                    return None
                if x is not None and y is not None:
                    stack.append((x, y))
            mine, other = dict(a.attributes), dict(b.attributes)
            if mine.keys() != other.keys() or not all(_equated(mine[k], other[k], found) for k in mine):
                return None
        else:
            return None
    return found


def _equated(a: AttributeValue, b: AttributeValue, found: list[Pair]) -> bool:
    """Whether two attributes can be equal; what that asks of numbers is added to ``found``."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_equated(x, y, found) for x, y in zip(a, b, strict=True))
    if isinstance(a, int | SizePolynomial) and isinstance(b, int | SizePolynomial):
        found.append((a, b))
        return True
    return type(a) is type(b) and a == b


def _sizes(ours: TensorVariableType, theirs: TensorVariableType) -> list[Pair]:
    """Sizes that must be equal for one variable to stand for another; nothing where it cannot (or has no sizes)."""
    same = ours.dtype == theirs.dtype and ours.lead == theirs.lead and len(ours.shape) == len(theirs.shape)
    if not same or (ours.below is None) != (theirs.below is None):
        return []
    below = [] if ours.below is None or theirs.below is None else [(ours.below, theirs.below)]
    return [(1, 1), *zip(ours.shape, theirs.shape, strict=True), *below]


def _bound(pairs: Sequence[Pair]) -> Mapping[str, Dim] | None:
    """What the general rule's names stand for so that all pairs are equal; ``None`` where they cannot be."""
    sizes: dict[str, Dim] = {}
    left = []
    for ours, theirs in pairs:
        name = next(iter(symbols(ours)), "") if isinstance(ours, SizePolynomial) else ""
        if name and ours == sym(name):
            if sizes.setdefault(name, theirs) != theirs:
                return None
        else:
            left.append((ours, theirs))
    solved = solve([(ours, theirs) for ours, theirs in left if isinstance(ours, SizePolynomial)], sizes)
    if solved is None or not all(symbols(ours) <= solved.keys() for ours, _ in left):
        return None
    return solved if all(substitute(ours, solved) == theirs for ours, theirs in left) else None


def _allowed(general: Rule, rule: Rule, sizes: Mapping[str, Dim]) -> bool:
    """Whether attributes are in the general rule's ranges."""
    for name, scheme in general.attribute_atoms.items():
        value = sizes.get(name)
        if isinstance(value, int):
            if not scheme.allows(value):
                return False
        elif value is not None and scheme.relation:
            own = [s for n, s in rule.attribute_atoms.items() if value == sym(n)]
            if not own or (own[0].relation, own[0].bound) != (scheme.relation, scheme.bound):
                return False
        elif value is None:
            return False
    return True


def _implied(general: Rule, rule: Rule, sizes: Mapping[str, Dim]) -> bool:
    """Whether the rule's guards say what the general rule's do."""
    known = {str(guard) for guard in rule.where}
    return all(_constant(g) or str(g) in known for g in _substituted(general, sizes))


def _substituted(general: Rule, sizes: Mapping[str, Dim]) -> Iterator[RulePrecondition]:
    for guard in general.where:
        yield RulePrecondition(substitute(guard.left, sizes), guard.relation, substitute(guard.right, sizes))


def _constant(guard: RulePrecondition) -> bool:
    """Whether it holds whatever the sizes are."""
    return not guard.names and guard.holds({})
