"""Lifting of rules about two operands to k operands, and n-ary merges of siblings.

A rule whose sides consist of two copies of one term is written for k copies, with a ``Concat`` and a ``Split`` of k
parts. Rules about a ``Concat`` or ``Split`` of two parts are lifted to the numbers of parts that a graph has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from superopt.egraph.egraph import PROJECT, EGraph
from superopt.egraph.pattern_compiler import CompiledPattern, PatternMatch, bound, compile_side
from superopt.egraph.pattern_index import PatternTrie
from superopt.ir.size_polynomial import Dim, SizePolynomial, atoms, substitute, sym, symbols
from superopt.ir.terms import AttributeValue, OperatorTerm, OutputTerm, Term, VariableTerm, postorder
from superopt.rules.float_verdicts import SafeConditions
from superopt.rules.rule import (
    AttributeVariableType,
    Rule,
    RulePrecondition,
    TensorVariableType,
    TypeScheme,
    attribute_symbols,
    term_symbols,
)
from superopt.rules.scanner import RuleError
from superopt.rules.typing import types_of

__all__ = [
    "SiblingMergeRewrite",
    "NaryRuleError",
    "copy_name",
    "correspondence",
    "group_rewrite",
    "independent",
    "lift",
    "names_of",
    "lifted_conditions",
    "siblings",
]


class NaryRuleError(Exception):
    """The rule's two copies do not correspond."""


def correspondence(rule: Rule, source: tuple[Term, ...]) -> dict[str, str]:
    """Names of the first copy → names of the second: from two roots, or from a ``Concat`` of two, or a ``Split``."""
    pairs: list[tuple[Term, Term]] = []
    mapping: dict[str, str] = {}
    if len(source) == 2:
        pairs.append((source[0], source[1]))
    elif len(source) != 1:
        raise NaryRuleError
    for term in postorder(*source):
        if isinstance(term, OperatorTerm) and term.op == "Concat" and len(term.args) == 2:
            first, second = term.args
            if first is not None and second is not None:
                pairs.append((first, second))
        if isinstance(term, OperatorTerm) and term.op == "Split":
            split = dict(term.attributes).get("split")
            if isinstance(split, tuple) and len(split) == 2:
                _relate_values(split[0], split[1], mapping)
    while pairs:
        a, b = pairs.pop()
        if a == b:
            continue
        if isinstance(a, VariableTerm) and isinstance(b, VariableTerm):
            _relate(a.name, b.name, mapping)
            left, right = rule.tensors[a.name], rule.tensors[b.name]
            if (left.dtype, left.lead, len(left.shape)) != (right.dtype, right.lead, len(right.shape)):
                raise NaryRuleError
            for p, q in zip(left.shape, right.shape, strict=True):
                _relate_values(p, q, mapping)
        elif (
            isinstance(a, OperatorTerm) and isinstance(b, OperatorTerm) and a.op == b.op and len(a.args) == len(b.args)
        ):
            for p2, q2 in zip(a.args, b.args, strict=True):
                if (p2 is None) != (q2 is None):
                    raise NaryRuleError
                if p2 is not None and q2 is not None:
                    pairs.append((p2, q2))
            if [n for n, _ in a.attributes] != [n for n, _ in b.attributes]:
                raise NaryRuleError
            for (_, v), (_, w) in zip(a.attributes, b.attributes, strict=True):
                _relate_values(v, w, mapping)
        elif not (
            isinstance(a, OutputTerm)
            and isinstance(b, OutputTerm)
            and a.term == b.term
            and (a.index, b.index) == (0, 1)
        ):
            raise NaryRuleError
    proper = {a: b for a, b in mapping.items() if a != b}
    if not proper or set(proper) & set(proper.values()):
        raise NaryRuleError
    return proper


def _relate(a: str, b: str, mapping: dict[str, str]) -> None:
    if mapping.setdefault(a, b) != b or (a != b and any(p != a and q == b for p, q in mapping.items())):
        raise NaryRuleError


def _relate_values(a: AttributeValue, b: AttributeValue, mapping: dict[str, str]) -> None:
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        for p, q in zip(a, b, strict=True):
            _relate_values(p, q, mapping)
    elif isinstance(a, SizePolynomial) and isinstance(b, SizePolynomial):
        (first, *rest), (second, *others) = sorted(symbols(a)), sorted(symbols(b))
        if rest or others:
            if a != b:
                raise NaryRuleError
            for name in symbols(a):
                _relate(name, name, mapping)
            return
        if substitute(a, {first: sym(second)}) != b:
            raise NaryRuleError
        _relate(first, second, mapping)
    elif a != b:
        raise NaryRuleError


def copy_name(name: str, number: int) -> str:
    return name if number == 0 else f"{name}@{number}"


def lifted_conditions(
    floats: Mapping[str, tuple[SafeConditions, ...]] | None, names: Mapping[str, str], own: Collection[str]
) -> dict[str, tuple[SafeConditions, ...]] | None:
    """Conditions on the variables of a rule for two copies, as conditions on those of all copies.

    Args:
        floats: by element type.
        names: of the first copy → of the second.
        own: the variables that there are now.
    """
    if floats is None:
        return None
    first = {b: a for a, b in names.items()}

    def copies(name: str) -> list[str]:
        base = first.get(name, name)
        return [n for n in own if n == base or n.startswith(f"{base}@")]

    def lifted(way: SafeConditions) -> SafeConditions | None:
        if not all(copies(n) for n in (*way.rounded, *way.window)):
            return None  # it speaks about what is not there
        rounded = dict.fromkeys(c for n in way.rounded for c in copies(n))
        return replace(way, rounded=tuple(rounded), window={c: r for n, r in way.window.items() for c in copies(n)})

    return {t: tuple(w for w in map(lifted, ways) if w is not None) for t, ways in floats.items()}


@dataclass(frozen=True)
class _Lift:
    """Rewrites terms of a rule for two copies into terms for ``count`` copies."""

    names: Mapping[str, str]  # first copy → second copy
    count: int

    @property
    def both(self) -> frozenset[str]:
        return frozenset(self.names) | frozenset(self.names.values())

    def renamed(self, value: AttributeValue, number: int) -> AttributeValue:
        if isinstance(value, tuple):
            return tuple(self.renamed(v, number) for v in value)
        if not isinstance(value, SizePolynomial):
            return value
        return substitute(value, {n: sym(copy_name(n, number)) for n in self.names})

    def mirrored(self, value: AttributeValue) -> AttributeValue:
        if isinstance(value, tuple):
            return tuple(map(self.mirrored, value))
        return (
            substitute(value, {a: sym(b) for a, b in self.names.items()})
            if isinstance(value, SizePolynomial)
            else value
        )

    def value(self, value: AttributeValue) -> AttributeValue:
        """An attribute value for all copies: ``[m, n]`` becomes a list, ``m + n`` a sum."""
        if isinstance(value, tuple):
            if len(value) == 2 and _value_names(value) & self.both and self.mirrored(value[0]) == value[1]:
                return tuple(self.renamed(value[0], j) for j in range(self.count))
            return tuple(map(self.value, value))
        if not isinstance(value, SizePolynomial) or not symbols(value) & self.both:
            return value
        total: Dim = 0
        mirror: Dim = 0
        for monomial, coefficient in value.terms:
            part = SizePolynomial.make({monomial: coefficient})
            used = symbols(part)
            if any(not isinstance(a, str) for a in atoms(part)) and used & self.both:
                raise NaryRuleError
            first, second = bool(used & self.names.keys()), bool(used & set(self.names.values()))
            if first and second:
                raise NaryRuleError
            if first:
                mirror = mirror + part
                for j in range(self.count):
                    copy = self.renamed(part, j)
                    assert isinstance(copy, int | SizePolynomial)
                    total = total + copy
            elif second:
                mirror = mirror - _unmirrored(part, self.names)
            else:
                total = total + part
        if mirror != 0:
            raise NaryRuleError
        return total

    def terms(self, roots: Sequence[Term]) -> tuple[Term, ...]:
        """Roots for all copies: two roots become ``count``, one stays one."""
        if len(roots) == 1:
            return (self.joint(roots[0]),)
        return tuple(self.single(roots[0], j) for j in range(self.count))

    def single(self, root: Term, number: int) -> Term:
        """Copy ``number`` of a term of the first copy; what both copies share is joint."""
        made: dict[Term, Term] = {}
        for term in postorder(root):
            if isinstance(term, VariableTerm):
                made[term] = VariableTerm(copy_name(term.name, number)) if term.name in self.names else term
            elif isinstance(term, OutputTerm):
                shared = names_of((term,)) & set(self.names.values())
                made[term] = (
                    OutputTerm(_application(self.joint(term.term)), number)
                    if shared or term.term.op == "Split"
                    else OutputTerm(_application(made[term.term]), term.index)
                )
            else:
                args = tuple(None if a is None else made[a] for a in term.args)
                made[term] = OperatorTerm(
                    term.op, args, tuple((k, self.renamed(v, number)) for k, v in term.attributes)
                )
        return made[root]

    def joint(self, root: Term) -> Term:
        """A term that all copies share."""
        made: dict[Term, Term] = {}
        for term in postorder(root):
            if not names_of((term,)) & self.both:
                made[term] = term
            elif isinstance(term, OperatorTerm):
                if term.op == "Concat" and len(term.args) == 2:
                    made[term] = self._concat(term)
                elif all(a is None or a in made for a in term.args):
                    args = tuple(None if a is None else made[a] for a in term.args)
                    made[term] = OperatorTerm(term.op, args, tuple((k, self.value(v)) for k, v in term.attributes))
        if root not in made:
            raise NaryRuleError
        return made[root]

    def _concat(self, term: OperatorTerm) -> OperatorTerm:
        first, second = term.args
        if first is None or second is None or self._mirror(first) != second:
            raise NaryRuleError
        args = tuple(self.single(first, j) for j in range(self.count))
        return OperatorTerm("Concat", args, tuple((k, self.value(v)) for k, v in term.attributes))

    def _mirror(self, root: Term) -> Term:
        made: dict[Term, Term] = {}
        for term in postorder(root):
            if isinstance(term, VariableTerm):
                made[term] = VariableTerm(self.names.get(term.name, term.name))
            elif isinstance(term, OutputTerm):
                shared = term.index == 0 and term.term.op == "Split"
                made[term] = (
                    OutputTerm(term.term, 1) if shared else OutputTerm(_application(made[term.term]), term.index)
                )
            else:
                args = tuple(None if a is None else made[a] for a in term.args)
                made[term] = OperatorTerm(term.op, args, tuple((k, self.mirrored(v)) for k, v in term.attributes))
        return made[root]

    def total(self, whole: Term, parts: Term) -> Term:
        """A sum over all copies, from ``F(Concat(x, y)) = F(x) + G(y)``: by induction, F of more is F(x) + G(y) + …

        That the first summand is the whole with the first copy in the place of both is checked; of any other rule
        (a mean of halves, say) the lifted form would be false.
        """
        first, second = _application(parts).args
        if first is None or second is None:
            raise NaryRuleError
        later = self._unmirrored(second)
        if self._copy_of(whole, 0) == self._copy_of(first, 0):
            between = later
        elif self._copy_of(whole, 1) == self._copy_of(second, 1):
            between = first  # a bias, say, goes with the last: F(x, y) = G(x) + F(y), so F of more is G(x) + … + F(y)
        else:
            raise NaryRuleError
        found = self.single(first, 0)
        for number in range(1, self.count):
            template = later if number == self.count - 1 else between
            found = OperatorTerm("Add", (found, self.single(template, number)), ())
        return found

    def _copy_of(self, root: Term, index: int) -> Term:
        """One copy (0 or 1) in the place of both: of a ``Concat`` that argument, of a ``Split`` the whole."""
        made: dict[Term, Term] = {}
        for term in postorder(root):
            if (
                isinstance(term, OperatorTerm)
                and term.op == "Concat"
                and len(term.args) == 2
                and (own := term.args[index]) is not None
            ):
                made[term] = made[own]
            elif isinstance(term, OutputTerm) and term.term.op == "Split" and term.index == index:
                inner = term.term.args[0]
                assert inner is not None
                made[term] = made[inner]
            elif isinstance(term, OutputTerm):
                made[term] = OutputTerm(_application(made[term.term]), term.index)
            elif isinstance(term, OperatorTerm):
                made[term] = OperatorTerm(
                    term.op, tuple(None if a is None else made[a] for a in term.args), term.attributes
                )
            else:
                made[term] = term
        return made[root]

    def _unmirrored(self, root: Term) -> Term:
        """A term of the second copy, written for the first."""
        back = {b: a for a, b in self.names.items()}
        made: dict[Term, Term] = {}
        for term in postorder(root):
            if isinstance(term, VariableTerm):
                if term.name in self.names:
                    raise NaryRuleError
                made[term] = VariableTerm(back.get(term.name, term.name))
            elif isinstance(term, OutputTerm):
                if term.term.op == "Split" and term.index != 1:
                    raise NaryRuleError
                made[term] = OutputTerm(_application(made[term.term]), 0 if term.term.op == "Split" else term.index)
            else:
                args = tuple(None if a is None else made[a] for a in term.args)
                if term.op != "Split" and any(_value_names(v) & self.both for _, v in term.attributes):
                    raise NaryRuleError
                made[term] = OperatorTerm(term.op, args, term.attributes)
        return made[root]


def _other_side(lifted: _Lift, source: Sequence[Term], target: Sequence[Term]) -> tuple[Term, ...]:
    try:
        return lifted.terms(target)
    except NaryRuleError:
        if not _is_sum(source, target):
            raise
        return (lifted.total(source[0], target[0]),)


def _is_sum(source: Sequence[Term], target: Sequence[Term]) -> bool:
    """Whether one value becomes the sum of one for each of two copies."""
    root = target[0] if len(source) == len(target) == 1 else None
    return isinstance(root, OperatorTerm) and root.op == "Add" and len(root.args) == 2


def _unmirrored(part: Dim, names: Mapping[str, str]) -> Dim:
    return substitute(part, {b: sym(a) for a, b in names.items()})


def _application(term: Term) -> OperatorTerm:
    if not isinstance(term, OperatorTerm):
        raise NaryRuleError
    return term


def _value_names(value: AttributeValue) -> set[str]:
    return term_symbols((OperatorTerm("", (), (("", value),)),))


def names_of(roots: tuple[Term, ...]) -> set[str]:
    return term_symbols(roots) | {t.name for t in postorder(*roots) if isinstance(t, VariableTerm)}


def lift(rule: Rule, count: int, *, backward: bool = False) -> Rule | None:
    """The rule for ``count`` copies instead of two, or ``None`` if its sides are not made of two copies."""
    source, target = (rule.rhs, rule.lhs) if backward else (rule.lhs, rule.rhs)
    try:
        names = correspondence(rule, source)
        lifted = _Lift(names, count)
        forall: dict[str, TypeScheme] = {}
        for name, scheme in rule.forall.items():
            atoms_of = attribute_symbols(name, scheme) if isinstance(scheme, AttributeVariableType) else (name,)
            if set(atoms_of) & set(names.values()):
                continue
            copies = range(count) if set(atoms_of) & names.keys() else range(1)
            for j in copies:
                forall[copy_name(name, j)] = _copied_scheme(lifted, scheme, j)
        guards = tuple(g for guard in rule.where for g in _copied_guards(lifted, guard))
        left = lifted.terms(source)
        right = _other_side(lifted, source, target)
        made = replace(rule, forall=forall, where=guards, lhs=left, rhs=right)
    except NaryRuleError:
        return None
    known = set(forall) | set(made.attribute_atoms) | set(made.sizes)
    return made if names_of((*left, *right)) <= known and _well_typed(rule, made) else None


def _well_typed(rule: Rule, made: Rule) -> bool:
    """Whether both sides have equal types for all sizes: not where a number of the rule stood for its two copies.

    (``Reshape(Concat(x, y), shape=[2, b, k])`` of four parts would need 4bk = 2bk: a condition that the rule has not.)
    """
    if rule.lead:
        return True  # lifted again without leading axes before it is used
    try:
        before, after = types_of(rule), types_of(made)
    except RuleError:
        return False
    equations = [
        sum(c.kind != "ge" for c in {*t.lhs_obligations, *t.rhs_obligations}) for t in (before, after)
    ]  # fmt: skip
    return after.lhs == after.rhs and equations[1] <= equations[0]


def _copied_scheme(lifted: _Lift, scheme: TypeScheme, number: int) -> TypeScheme:
    if not isinstance(scheme, TensorVariableType):
        return scheme
    shape: list[Dim] = []
    for size in scheme.shape:
        used = symbols(size)
        made = lifted.value(size) if used & set(lifted.names.values()) else lifted.renamed(size, number)
        assert isinstance(made, int | SizePolynomial)
        shape.append(made)
    return replace(scheme, shape=tuple(shape))


def _copied_guards(lifted: _Lift, guard: RulePrecondition) -> Iterator[RulePrecondition]:
    used, second = guard.names, set(lifted.names.values())
    if used & second and used & lifted.names.keys():
        raise NaryRuleError
    if used & second:
        return
    for j in range(lifted.count if used & lifted.names.keys() else 1):
        left, right = lifted.renamed(guard.left, j), lifted.renamed(guard.right, j)
        assert isinstance(left, int | SizePolynomial)
        assert isinstance(right, int | SizePolynomial)
        yield replace(guard, left=left, right=right)


# -- Batching: n-ary merges of e-nodes that differ in their operands only ------------------------------------------
#
# A rule such as ``MatMul(x, a), MatMul(x, c) = Split(MatMul(x, Concat(a, c)))`` applied pair by pair adds thousands of
# e-nodes for six siblings. Its two left sides are copies of each other, so the rule is lifted to as many copies as
# there are siblings and applied to the whole group.


_RUNS = 6  # up to this many siblings, every contiguous run (by size) is offered; beyond it, whole groups only
_WIDEST = 64
_OCCURRENCES = 2000  # of one sibling, at most
Proposal = tuple[str, tuple[int, ...], tuple[Term, ...], PatternMatch]


@lru_cache(maxsize=4096)
def _lifted(rule: Rule, count: int, backward: bool) -> Rule | None:
    return lift(rule, count, backward=backward)


@dataclass(eq=False)
class SiblingMergeRewrite:
    """A two-root rule as a move on groups of siblings. ``names``: those of one sibling, not shared by all."""

    rule: Rule
    backward: bool
    single: CompiledPattern
    names: frozenset[str]

    def proposals(
        self, graph: EGraph, occurrences: Sequence[PatternMatch], seen: set[tuple[object, ...]]
    ) -> Iterator[Proposal]:
        """Groups not proposed before: rule id, sibling classes, what they become, and the binding.

        Args:
            graph: a rebuilt e-graph.
            occurrences: of a single sibling, as :func:`siblings` found them; classes may have been united since.
            seen: what was proposed before; is added to.
        """
        groups: dict[tuple[object, ...], dict[int, PatternMatch]] = {}
        given = graph.input_classes()
        for match in occurrences:
            tensors = {n: graph.find(c) for n, c in match.tensors.items()}
            root = graph.find(match.roots[0])
            shared = tuple((n, v) for n, v in {**tensors, **match.sizes}.items() if n not in self.names)
            groups.setdefault(shared, {}).setdefault(root, PatternMatch((root,), tensors, match.sizes))
        for found in groups.values():
            for chosen in _subgroups(graph, list(found.items()), given):
                roots = tuple(root for root, _ in chosen)
                key = (id(self), roots)
                if key in seen:
                    continue
                seen.add(key)
                lifted = _lifted(self.rule, len(chosen), self.backward)
                if lifted is not None:
                    yield self.rule.id, roots, lifted.rhs, self._joined([m for _, m in chosen])

    def _joined(self, found: Sequence[PatternMatch]) -> PatternMatch:
        tensors: dict[str, int] = {}
        sizes: dict[str, AttributeValue] = {}
        for number, match in enumerate(found):
            tensors.update((copy_name(n, number) if n in self.names else n, c) for n, c in match.tensors.items())
            sizes.update((copy_name(n, number) if n in self.names else n, v) for n, v in match.sizes.items())
        return PatternMatch(tuple(m.roots[0] for m in found), tensors, sizes)


def siblings(graph: EGraph, groups: Sequence[SiblingMergeRewrite]) -> list[list[PatternMatch]]:
    """For each group where a single sibling stands, found in one walk for all of them.

    Only values of the input that run: merging alternatives of one value with each other gains nothing.
    """
    found: list[list[PatternMatch]] = [[] for _ in groups]
    places = {c: 0 for c in graph.input_classes() if not graph.constant(c)}

    def keep(number: int, slots: Sequence[int], registers: Sequence[AttributeValue]) -> None:
        if len(found[number]) < _OCCURRENCES:
            match = bound(graph, groups[number].single, slots, registers)
            if match is not None:
                found[number].append(match)

    _net(tuple(groups)).walk(graph, keep, places)
    return found


@lru_cache(maxsize=16)
def _net(groups: tuple[SiblingMergeRewrite, ...]) -> PatternTrie[int]:
    return PatternTrie(
        [(number, group.single.steps, group.single.depth) for number, group in enumerate(groups)], lambda _: 0
    )


def group_rewrite(
    rule: Rule, *, backward: bool = False, floats: Mapping[str, tuple[SafeConditions, ...]] | None = None
) -> SiblingMergeRewrite | None:
    """The rule as a group move, if a single sibling can be recognised alone and the rule lifts.

    Conditions of floating point hold for the group where they hold for each sibling.
    """
    source = rule.rhs if backward else rule.lhs
    if len(source) != 2 or isinstance(source[0], VariableTerm | OutputTerm):
        return None
    try:
        names = correspondence(rule, source)
    except NaryRuleError:
        return None
    first = names_of(source[:1])
    if first & set(names.values()) or lift(rule, 3, backward=backward) is None:
        return None
    alone = replace(rule, where=tuple(g for g in rule.where if not g.names & set(names.values())))
    return SiblingMergeRewrite(
        rule,
        backward,
        compile_side(
            alone, source[:1], (), floats=lifted_conditions(floats, names, first | set(alone.attribute_atoms))
        ),
        frozenset(names),
    )


def _subgroups(
    graph: EGraph, members: list[tuple[int, PatternMatch]], given: Mapping[int, tuple[int, int]]
) -> Iterator[list[tuple[int, PatternMatch]]]:
    """Which siblings to merge: all that are independent, those alike in type, and of few every contiguous run."""
    if len(members) < 2:
        return
    level: dict[int, list[tuple[int, PatternMatch]]] = {}
    ordered = sorted(members, key=lambda m: (given[m[0]][0], str(graph.type(m[0])), _part(graph, m[1]), m[0]))
    for member in ordered:
        level.setdefault(given[member[0]][0], []).append(member)
    parts = [ordered] if len(level) > 1 and _independent([given[r][1] for r, _ in ordered]) else []
    for part in [*parts, *level.values()]:
        if not len(part) > 1 or not _independent([given[r][1] for r, _ in part]):
            continue
        yield from (part[i : i + _WIDEST] for i in range(0, len(part), _WIDEST) if len(part) - i > 1)
        alike: dict[str, list[tuple[int, PatternMatch]]] = {}
        for member in part:
            alike.setdefault(str(graph.type(member[0])), []).append(member)
        yield from (a for a in alike.values() if 1 < len(a) < len(part))
        if len(part) <= _RUNS:
            for width in range(2, len(part)):
                for start in range(len(part) - width + 1):
                    yield part[start : start + width]


def _part(graph: EGraph, match: PatternMatch) -> int:
    """Which part of a value a sibling reads: in the order of the parts, their ``Concat`` is the value again."""
    for name in sorted(match.tensors):
        parts = [graph.heads[node[0]].index for node in graph.with_op(match.tensors[name], PROJECT)]
        if parts:
            return min(parts)
    return 0


def independent(graph: EGraph, roots: Sequence[int]) -> bool:
    """Whether the classes are values of the input, none of which depends on another in it."""
    given = graph.input_classes()
    return all(r in given for r in roots) and _independent([given[r][1] for r in roots])


def _independent(masks: Sequence[int]) -> bool:
    """No value depends on another: each mask holds the steps that a value is computed by, its own the last."""
    own = [m.bit_length() - 1 for m in masks]
    return not any(i != j and mask >> own[j] & 1 for i, mask in enumerate(masks) for j in range(len(own)))
