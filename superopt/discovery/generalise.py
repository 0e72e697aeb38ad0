"""From what was found at one vocabulary's symbols to the most general rule: sizes, leading axes, preconditions.

A generalisation is a proposal like any other: it is tested and proved before anybody believes it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, combinations

from superopt.discovery.candidates import restricted
from superopt.ir.size_polynomial import Dim, SizePolynomial, substitute, sym, symbols
from superopt.ir.terms import AttributeValue, OperatorTerm, OutputTerm, Term, VariableTerm, postorder, rebuilt
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.rules.canonical import map_terms
from superopt.rules.grammar import parse_guard
from superopt.rules.rule import (
    AttributeVariableType,
    Rule,
    RulePrecondition,
    TensorVariableType,
    TypeScheme,
    attribute_symbols,
)
from superopt.rules.scanner import RuleError
from superopt.rules.slice_clamping import cases
from superopt.rules.typing import instances, types_of

__all__ = [
    "guarded", "shape_general", "size_general", "specialised", "variable_general", "well_typed", "whole_sizes",
    "with_sizes",
]  # fmt: skip

_MOST_SUBSETS = 80
_MOST_PLACES = 5  # positions that one size may be in
Occurrence = tuple[object, ...]  # ("leaf", name, axis) or ("attribute", app, key, position)


def well_typed(rule: Rule) -> bool:
    """Both sides have the same types at symbolic sizes, and no sizes have to be equal by luck."""
    try:
        for instance in instances(rule):
            types = types_of(instance)
            if types.lhs != types.rhs:
                return False
            if any(o.kind == "eq" for o in (*types.lhs_obligations, *types.rhs_obligations)):
                return False
    except (RuleError, IllTypedOperator, ZeroDivisionError):
        return False
    return True


def variable_general(rule: Rule, holds: Callable[[Rule], bool]) -> Rule:
    """The rule with occurrences of a variable told apart that need not be the same tensor.

    ``Concat(Concat(a, a), c) = Concat(a, Concat(a, c))`` is associativity, seen through too few variables.
    """
    progress = True
    while progress:
        progress = False
        for name in rule.tensors:
            wider = _split_variable(rule, name, holds)
            if wider is not None:
                rule, progress = wider, True
                break
    return rule


def _split_variable(rule: Rule, name: str, holds: Callable[[Rule], bool]) -> Rule | None:
    left, right = (_occurrences(side, name) for side in (rule.lhs, rule.rhs))
    if left < 2 or right < 1 or left > 4 or right > 4:
        return None
    fresh = next(f"{name}{i}" for i in range(1, 99) if f"{name}{i}" not in {*rule.sizes, *rule.forall})
    tried = 0
    for first in _subsets(left):
        if 0 in first:
            continue  # the complement says the same
        for second in _subsets(right, whole=True):
            tried += 1
            if tried > _MOST_SUBSETS:
                return None
            forall = {**rule.forall, fresh: rule.forall[name]}
            lhs, rhs = _with_fresh(rule.lhs, name, fresh, first), _with_fresh(rule.rhs, name, fresh, second)
            wider = replace(rule, forall=forall, lhs=lhs, rhs=rhs)
            if holds(wider):
                return wider
    return None


def _subsets(count: int, *, whole: bool = False) -> Iterator[frozenset[int]]:
    for size in range(1, count + whole):
        yield from map(frozenset, combinations(range(count), size))


def _occurrences(roots: tuple[Term, ...], name: str) -> int:
    """How often a variable is written; a shared application of several outputs counts once."""
    return sum(sum(a == VariableTerm(name) for a in t.args) for t in _written(roots)) + sum(
        r == VariableTerm(name) for r in roots
    )


def _written(roots: tuple[Term, ...]) -> list[OperatorTerm]:
    """Applications as often as they are written, in a fixed order; those under several projections once."""
    apps: list[OperatorTerm] = []
    seen_apps: set[OperatorTerm] = set()
    stack: list[Term] = list(reversed(roots))
    while stack:
        term = stack.pop()
        if isinstance(term, OutputTerm):
            if term.term in seen_apps:
                continue
            seen_apps.add(term.term)
            term = term.term
        if isinstance(term, OperatorTerm):
            apps.append(term)
            stack.extend(a for a in reversed(term.args) if a is not None)
    return apps


def _with_fresh(roots: tuple[Term, ...], name: str, fresh: str, chosen: frozenset[int]) -> tuple[Term, ...]:
    """The roots with the chosen occurrences (in reading order) of a variable renamed; depth is a rule's."""
    counter = 0
    tuples: dict[OperatorTerm, OperatorTerm] = {}

    def renamed(term: Term) -> Term:
        nonlocal counter
        if isinstance(term, VariableTerm):
            if term.name != name:
                return term
            counter += 1
            return VariableTerm(fresh) if counter - 1 in chosen else term
        if isinstance(term, OutputTerm):
            if term.term not in tuples:
                inner = renamed(term.term)
                assert isinstance(inner, OperatorTerm)
                tuples[term.term] = inner
            return OutputTerm(tuples[term.term], term.index)
        return OperatorTerm(term.op, tuple(None if a is None else renamed(a) for a in term.args), term.attributes)

    return tuple(renamed(r) for r in roots)


def size_general(rule: Rule, holds: Callable[[Rule], bool]) -> Rule:
    """The rule with sizes told apart that need not be equal: ``f[k, n]`` twice becomes ``f[k, n]`` and ``f[k, n1]``.

    Args:
        rule: a rule whose types are symbolic.
        holds: a quick exact test.
    """
    progress = True
    while progress:
        progress = False
        for name in rule.sizes:
            wider = _split_size(rule, name, holds)
            if wider is not None:
                rule, progress = wider, True
                break
        if not progress:
            wider = _split_axis(rule, holds)
            if wider is not None:
                rule, progress = wider, True
    return rule


def whole_sizes(rule: Rule, holds: Callable[[Rule], bool]) -> Rule:
    """The rule with one name for what only occurs as a sum: ``f[a + b]`` becomes ``f[a]`` where nothing asks for ``b``.

    So do sums that only attributes have. The size of an axis that nothing else mentions becomes a name of its own.

    Args:
        rule: a rule whose types are symbolic.
        holds: a quick exact test.
    """
    wider = next((new_rule for new_rule in _with_fewer_sums(rule) if well_typed(new_rule) and holds(new_rule)), None)
    return rule if wider is None else whole_sizes(wider, holds)


def _with_fewer_sums(rule: Rule) -> Iterator[Rule]:
    """The rule with two names as one wherever they occur, and with one axis' sum as a name of its own."""
    written = (v for _, v in _attribute_occurrences(rule))
    for total in dict.fromkeys(v for v in written if isinstance(v, SizePolynomial) and len(v.terms) > 1):
        for first, second in combinations(sorted(symbols(total) & {*rule.attribute_atoms}), 2):
            new_rule = with_sizes(_reaching(rule, first, second), {first: sym(first) - sym(second)})
            if second not in new_rule.sizes and second not in new_rule.attribute_atoms:
                yield new_rule
    for name, scheme in rule.tensors.items():
        for axis, dim in enumerate(scheme.shape):
            names = sorted(symbols(dim)) if isinstance(dim, SizePolynomial) and len(dim.terms) > 1 else []
            for first, second in combinations(names, 2):
                new_rule = with_sizes(rule, {first: sym(first) - sym(second)})
                if second not in new_rule.sizes and second not in new_rule.attribute_atoms:
                    yield new_rule
            if names:
                fresh = next(n for n in (f"n{i}" for i in range(99)) if n not in {*rule.sizes, *rule.forall})
                shape = tuple(sym(fresh) if n == axis else d for n, d in enumerate(scheme.shape))
                yield restricted(replace(rule, forall={**rule.forall, name: replace(scheme, shape=shape)}))


def _reaching(rule: Rule, first: str, second: str) -> Rule:
    """The rule with a name as wide as its sum with another: any number, where the other is any number."""
    other = rule.forall.get(second)
    if (
        isinstance(other, AttributeVariableType)
        and other.kind == "real"
        and not other.relation
        and first in rule.forall
    ):
        return replace(rule, forall={**rule.forall, first: other})
    return rule


def with_sizes(rule: Rule, binding: Mapping[str, Dim]) -> Rule:
    """The rule with sizes put in for names, without attributes that nothing mentions any more."""
    forall: dict[str, TypeScheme] = {
        n: replace(s, shape=tuple(substitute(d, binding) for d in s.shape)) if isinstance(s, TensorVariableType) else s
        for n, s in rule.forall.items()
    }
    lhs, rhs = (map_terms(side, {}, binding) for side in (rule.lhs, rule.rhs))
    return restricted(replace(rule, forall=forall, lhs=lhs, rhs=rhs))


def shape_general(rule: Rule, holds: Callable[[Rule], bool]) -> Rule:
    """The rule with names of their own for the sizes of shapes that only have to have as many elements.

    ``Reshape(Reshape(x, [a*b, c]), [b, a*c]) = Reshape(x, [b, a*c])`` is true of any two shapes; that they have as many
    elements as ``x`` is what the left side demands to be well-formed.

    A size that the rest of its side fixes stays what it is: with a name of its own the rule would say the same, and
    nobody could read that name off the other side.

    Args:
        rule: a rule whose types are symbolic.
        holds: a quick exact test.
    """
    apps = [t for t in postorder(*rule.lhs, *rule.rhs) if isinstance(t, OperatorTerm) and t.args]
    shapes = (v for t in apps for k, v in t.attributes if k == "shape" and isinstance(v, tuple))
    for shape in dict.fromkeys(map(_dims, shapes)):
        taken = {*rule.sizes, *rule.forall}
        names = [n for n in (f"n{i}" for i in range(99)) if n not in taken][: len(shape)]
        if all(isinstance(d, SizePolynomial) and str(d) in rule.attribute_atoms for d in shape):
            continue
        wider = _shaped(rule, shape, names)
        stay = _fixed(wider, names, shape)
        if stay and len(stay) > len(shape) - 2:
            continue  # the last one follows
        if stay:
            wider = _shaped(rule, shape, names, stay)
        if holds(wider):  # that there are as many elements is for the proof to derive
            rule = wider
    return rule


def _dims(value: Sequence[object]) -> tuple[Dim, ...]:
    return tuple(d for d in value if isinstance(d, int | SizePolynomial))


def _shaped(rule: Rule, shape: tuple[Dim, ...], names: Sequence[str], stay: Container[str] = ()) -> Rule:
    """The rule with names for the sizes of a shape, but for those that stay."""
    forall: dict[str, TypeScheme] = {**rule.forall, **dict.fromkeys(names, AttributeVariableType("int", None, ">=", 1))}
    fresh = tuple(d if n in stay else sym(n) for n, d in zip(names, shape, strict=True))
    terms = rebuilt((*rule.lhs, *rule.rhs), partial(_reshaped, shape=shape, fresh=fresh))
    return restricted(replace(rule, forall=forall, lhs=terms[: len(rule.lhs)], rhs=terms[len(rule.lhs) :]))


def _fixed(rule: Rule, names: Sequence[str], shape: Sequence[Dim]) -> frozenset[str]:
    """Names that either side asks to be the size they stand for."""
    try:
        types = types_of(instances(rule)[0])
    except (RuleError, IllTypedOperator, ZeroDivisionError):
        return frozenset()
    sizes = {o.size for o in (*types.lhs_obligations, *types.rhs_obligations) if o.kind == "eq"}
    return frozenset(n for n, d in zip(names, shape, strict=True) if {d - sym(n), sym(n) - d} & sizes)


def _reshaped(
    term: OperatorTerm, key: str, value: AttributeValue, shape: AttributeValue, fresh: tuple[Dim, ...]
) -> AttributeValue:
    return fresh if key == "shape" and term.args and value == shape else value


def _split_size(rule: Rule, name: str, holds: Callable[[Rule], bool]) -> Rule | None:
    leaves: list[Occurrence] = [
        ("leaf", n, axis) for n, s in rule.tensors.items() for axis, d in enumerate(s.shape) if name in symbols(d)
    ]
    places = [p for p, v in _attribute_occurrences(rule) if isinstance(v, SizePolynomial) and name in symbols(v)]
    if len(leaves) < 2 or len(places) > 6:
        return None
    fresh = next(f"{name}{i}" for i in range(1, 99) if f"{name}{i}" not in {*rule.sizes, *rule.forall})
    tried = 0
    for size in range(1, len(leaves) // 2 + 1):
        for some in combinations(leaves, size):
            for more in chain.from_iterable(combinations(places, r) for r in range(len(places) + 1)):
                tried += 1
                if tried > _MOST_SUBSETS:
                    return None
                wider = _renamed_at(rule, {*some, *more}, name, fresh)
                if well_typed(wider) and holds(wider):
                    return wider
    return None


def _attribute_occurrences(rule: Rule) -> list[tuple[Occurrence, AttributeValue]]:
    """Every value of an attribute on either side, with its place."""
    return [
        (("attribute", term, key, position), part)
        for term in postorder(*rule.lhs, *rule.rhs)
        if isinstance(term, OperatorTerm)
        for key, value in term.attributes
        for position, part in enumerate(value if isinstance(value, tuple) else (value,))
    ]


def _split_axis(rule: Rule, holds: Callable[[Rule], bool]) -> Rule | None:
    """The rule with a name of its own for the size of one tensor's axis, in the type and in positions behind it.

    ``Slice(Concat(x, y), ends=[a + a])`` with ``f[a]`` twice says of a ``y`` of any size where it ends: at ``b + a``.
    """
    dims = [(name, axis, dim) for name, s in rule.tensors.items() for axis, dim in enumerate(s.shape)]
    every = _attribute_occurrences(rule)
    for name, axis, dim in dims:
        places = [p for p, v in every if isinstance(v, SizePolynomial) and _holds_sum(v, dim)]
        if not places and not any(symbols(d) & symbols(dim) for n, a, d in dims if (n, a) != (name, axis)):
            continue
        if len(places) > _MOST_PLACES:
            continue
        fresh = next(f"n{i}" for i in range(99) if f"n{i}" not in {*rule.sizes, *rule.forall})
        scheme = rule.tensors[name]
        shape = tuple(sym(fresh) if a == axis else d for a, d in enumerate(scheme.shape))
        forall: dict[str, TypeScheme] = {**rule.forall, name: replace(scheme, shape=shape)}
        for some in chain.from_iterable(combinations(places, r) for r in range(len(places), -1, -1)):
            chosen = frozenset(some)
            terms = rebuilt((*rule.lhs, *rule.rhs), partial(_moved, chosen=chosen, difference=sym(fresh) - dim))
            lhs, rhs = terms[: len(rule.lhs)], terms[len(rule.lhs) :]
            wider = restricted(replace(rule, forall=forall, lhs=lhs, rhs=rhs))
            other = symbols(dim) & {*wider.sizes, *wider.attribute_atoms}  # else it is the same rule in other words
            if other and well_typed(wider) and holds(wider):
                return wider
    return None


def _holds_sum(value: SizePolynomial, dim: Dim) -> bool:
    """Whether a position is a size and something that is not negative, or the last one."""
    rest = value - dim
    return rest >= -1 if isinstance(rest, int) else all(c > 0 for monomial, c in rest.terms if monomial)


def _moved(
    term: OperatorTerm, key: str, value: AttributeValue, chosen: frozenset[Occurrence], difference: Dim
) -> AttributeValue:
    parts = value if isinstance(value, tuple) else (value,)
    made = tuple(
        p + difference if isinstance(p, SizePolynomial) and ("attribute", term, key, i) in chosen else p
        for i, p in enumerate(parts)
    )
    return made if isinstance(value, tuple) else made[0]


def _renamed_at(rule: Rule, chosen: set[Occurrence], name: str, fresh: str) -> Rule:
    binding: Mapping[str, Dim] = {name: sym(fresh)}
    forall: dict[str, TypeScheme] = {}
    for variable, scheme in rule.forall.items():
        if isinstance(scheme, TensorVariableType):
            shape = tuple(
                substitute(d, binding) if ("leaf", variable, axis) in chosen else d
                for axis, d in enumerate(scheme.shape)
            )
            forall[variable] = replace(scheme, shape=shape)
        else:
            forall[variable] = scheme
    terms = rebuilt((*rule.lhs, *rule.rhs), lambda app, key, value: _value_at(app, key, value, chosen, binding))
    return replace(rule, forall=forall, lhs=terms[: len(rule.lhs)], rhs=terms[len(rule.lhs) :])


def _value_at(
    term: OperatorTerm, key: str, value: AttributeValue, chosen: set[Occurrence], binding: Mapping[str, Dim]
) -> AttributeValue:
    parts = value if isinstance(value, tuple) else (value,)
    made = tuple(
        substitute(p, binding) if isinstance(p, SizePolynomial) and ("attribute", term, key, i) in chosen else p
        for i, p in enumerate(parts)
    )
    return made if isinstance(value, tuple) else made[0]


# ── preconditions ─────────────────────────────────────────────────────────────────────────────────────────────────────


def guarded(rule: Rule, conditions: Sequence[str]) -> Rule | None:
    """The rule under conditions that the prover asked for; ``None`` if they cannot be written as guards."""
    guards: list[RulePrecondition] = list(rule.where)
    try:
        guards += [parse_guard(c, where="condition") for c in conditions]
    except RuleError:
        return None
    known = {*rule.sizes, *rule.attribute_atoms}
    if any(not g.names <= known for g in guards):
        return None
    return replace(rule, where=tuple(dict.fromkeys(guards)))


def unclamped(rule: Rule) -> Iterator[Rule]:
    """The rule where every slice ends inside its axis, if it does not say so."""
    try:
        plain = instances(rule, (0,))[0]
        inside = cases(plain)[0].where
    except RuleError:
        return
    if len(inside) > len(plain.where):
        yield replace(rule, where=inside)


def specialised(rule: Rule) -> Iterator[Rule]:
    """Weaker rules to try when a rule is false: slices that are not clamped; one attribute, then two, at the value
    that does nothing.

    Strides, dilations and groups of 1, padding of 0; for a pair of integer attributes also that they are equal.
    """
    yield from unclamped(rule)
    whole = {n: s for n, s in rule.attributes.items() if s.kind == "int"}
    neutral = {n: s.bound if s.relation == ">=" else 0 for n, s in whole.items()}
    for size in (1, 2):
        for names in combinations(neutral, size):
            binding: dict[str, Dim] = {a: neutral[n] for n in names for a in attribute_symbols(n, rule.attributes[n])}
            forall: dict[str, TypeScheme] = {}
            for name, scheme in rule.forall.items():
                if isinstance(scheme, TensorVariableType):
                    forall[name] = replace(scheme, shape=tuple(substitute(d, binding) for d in scheme.shape))
                elif name not in names:
                    forall[name] = scheme
            new_rule = replace(
                rule, forall=forall, lhs=map_terms(rule.lhs, {}, binding), rhs=map_terms(rule.rhs, {}, binding)
            )
            if well_typed(new_rule):
                yield restricted(new_rule)
    if len(neutral) >= 2:
        for first, second in combinations(neutral, 2):
            a, b = rule.attributes[first], rule.attributes[second]
            if a.length != b.length:
                continue
            pairs = zip(attribute_symbols(first, a), attribute_symbols(second, b), strict=True)
            guards = tuple(RulePrecondition(sym(p), "==", sym(q)) for p, q in pairs)
            yield replace(rule, where=(*rule.where, *guards))
