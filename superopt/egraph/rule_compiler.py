"""Compilation of rules to rewrites: both directions, n-ary merges, and rules lifted to a graph's arities."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TypeVar

from superopt.egraph.egraph import is_multi
from superopt.egraph.nary_rules import (
    NaryRuleError,
    SiblingMergeRewrite,
    correspondence,
    group_rewrite,
    lift,
    lifted_conditions,
    names_of,
)
from superopt.egraph.pattern_compiler import CompiledPattern, compile_side
from superopt.egraph.pattern_index import OperatorMatchStep, OutputMatchStep, RootMatchStep, TypeMatchStep
from superopt.egraph.saturation import RewriteSet
from superopt.ir.disk_cache import SEARCH_PACKAGES, code_digest, load_object, packed, store_object, unpacked
from superopt.ir.interpreter_settings import rarely_collected
from superopt.ir.size_polynomial import Dim, SizePolynomial
from superopt.ir.terms import OperatorTerm, OutputTerm, Term, VariableTerm, children, postorder
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.flops_and_bytes import flops
from superopt.ops.operator_semantics import IndexCondition
from superopt.program.graph_program import GraphProgram
from superopt.rules.canonical import independent
from superopt.rules.float_verdicts import FloatVerdictStore, SafeConditions
from superopt.rules.library import CLASSES, RuleLibrary, load_library
from superopt.rules.peepholes import peephole_digest
from superopt.rules.rule import Rule
from superopt.rules.scanner import RuleError
from superopt.rules.typing import applied_leads, complete, instances, leads_of, types_of

__all__ = ["CompiledRewrites", "data_of", "flowing", "compile_rewrites", "shortens", "store_compiled_rules"]

_WEIGHTED = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm", "BatchNormalization", "LayerNormalization"})
_PARTS = frozenset({"Concat", "Split"})
_MatchConditions = Mapping[str, tuple[SafeConditions, ...]] | None  # conditions of floating point by element type


@dataclass(frozen=True)
class VariadicPolicy:
    """How far rules of Concat and Split are written for other numbers of parts.

    Attributes:
        parts: a Concat or Split of more gets no rules of its own.
        counts: different numbers of parts, at most.
        orders: of operands in one such rule: a Concat of eight sums has 256, and as many matches a form of each sum.
    """

    parts: int = 16
    counts: int = 3
    orders: int = 32


POLICY = VariadicPolicy()


@dataclass(frozen=True)
class CompiledRewrites:
    """Moves, and the pairs (operator, operator that reads it) that occur in rules: where not to cut.

    Attributes:
        moves: all of them.
        adjacent: the pairs.
        shortening: the moves after which fewer operators run, if weights are where weights usually are, or because of
            what is constant at a match (``x + c + b`` of two weights): few of them apply, each is likely to be a gain,
            and none makes the graph explode.
        parts: the numbers of parts, other than two, that the moves are for.
        closing: what writes operators as one that no other rule reads (three summands as a ``Sum``): none of ``moves``,
            since those that come after could not go on from there.
    """

    all_rewrites: RewriteSet
    adjacent: frozenset[tuple[str, str]]
    removing: RewriteSet = field(default_factory=RewriteSet)
    part_counts: tuple[int, ...] = ()
    final_fusions: RewriteSet = field(default_factory=RewriteSet)

    @cached_property
    def every(self) -> RewriteSet:
        """All moves, closing ones included."""
        return RewriteSet(self.all_rewrites.patterns + self.final_fusions.patterns, self.all_rewrites.groups)

    @cached_property
    def neighbours(self) -> RewriteSet:
        """Merges of what reads the same data (the gates of a cell), and what puts parts together again: no merges of
        different data that one weight sees, which stand steps apart."""
        groups = tuple(g for g in self.all_rewrites.groups if not _shares_weight(g))
        return RewriteSet(tuple(p for p in self.removing.patterns if _joins(p)), groups)


def compile_rewrites(
    rules: Sequence[Rule],
    program: GraphProgram,
    deadline: float = float("inf"),
    *,
    floats: FloatVerdictStore | None = None,
    grouped: bool = False,
) -> CompiledRewrites:
    """The moves for a program. A rule with an operator that superopt does not know is left out.

    Args:
        rules: in the order of preference.
        program: what they will be applied to.
        deadline: ``time.monotonic`` value after which no more rules are taken.
        floats: verdicts in floating point, and how they are read; ``None`` for who does not run the result, and takes
            every direction that holds over the reals.
        grouped: also for the numbers of parts that merging all products of one value would make.
    """
    known = [r for r in rules if r.operators <= REGISTRY.keys()]
    parts = _parts(program, grouped)
    with rarely_collected():
        prepared = _of_all(tuple(known), deadline, floats)
        lifted = [_lifted(prepared, count, deadline, floats) for count in parts]
    patterns: list[_Side] = []
    for number, side in enumerate(prepared.sides):
        patterns.append(side)
        patterns += [parts[number] for parts in lifted if number in parts]
    closing = tuple(s.pattern for s in patterns if _closes(s.pattern, prepared.defined_operators))
    last = set(closing)
    patterns = [s for s in patterns if s.pattern not in last]
    shortening = tuple(s.pattern for s in patterns if s.shortens)
    saving = tuple(s.pattern for s in patterns if s.saves and not s.shortens)
    return CompiledRewrites(
        RewriteSet(tuple(s.pattern for s in patterns), prepared.groups), prepared.adjacent,
        RewriteSet(shortening, (), saving), tuple(parts), RewriteSet(closing)
    )  # fmt: skip


def _closes(pattern: CompiledPattern, words: AbstractSet[str]) -> bool:
    """Whether it makes one of these operators of what has none of them."""
    target = pattern.target
    made = len(target) == 1 and isinstance(target[0], OperatorTerm) and target[0].op in words
    return made and not any(isinstance(t, OperatorTerm) and t.op in words for t in postorder(*pattern.source))


def _operators_with_definition(sides: Iterable[_Side]) -> frozenset[str]:
    """Operators that rules only know as a whole side, of which they are all: other rules do not read them."""
    whole, inner = _whole_and_inner(sides)
    return frozenset(whole - inner)


def _whole_and_inner(sides: Iterable[_Side]) -> tuple[set[str], set[str]]:
    """Operators that are all of a side, and operators that are a part of one."""
    found: set[str] = set()
    inside: set[str] = set()
    for side in sides:
        for roots in (side.pattern.source, side.pattern.target):
            applied = [t for t in postorder(*roots) if isinstance(t, OperatorTerm)]
            (found if len(applied) == 1 == len(roots) else inside).update(t.op for t in applied)
    return found, inside


@dataclass(frozen=True, eq=False)
class _Side:
    """A side of an instance of a rule, and whether fewer operators run on the other: usually, or for some constants."""

    pattern: CompiledPattern
    backward: bool
    shortens: bool
    saves: bool


@dataclass(frozen=True, eq=False)
class _CompiledRule:
    """What one rule is prepared to, given what each direction must meet in floating point (forward, backward)."""

    conditions: tuple[_MatchConditions, _MatchConditions]
    sides: tuple[_Side, ...]
    groups: tuple[SiblingMergeRewrite, ...]
    adjacent: frozenset[tuple[str, str]]


@dataclass(frozen=True, eq=False)
class _CompiledLibrary:
    """What rules are prepared to, whatever the program, by fingerprint.

    Attributes:
        digest: of the rules; empty where time ran out.
        words: operators that no rule reads but those that say what they are.
        composed: it was put together from rules that were compiled one by one.
    """

    digest: str
    by_fingerprint: Mapping[str, _CompiledRule]
    defined_operators: frozenset[str] = frozenset()
    composed: bool = False

    @cached_property
    def sides(self) -> tuple[_Side, ...]:
        return tuple(side for piece in self.by_fingerprint.values() for side in piece.sides)

    @cached_property
    def groups(self) -> tuple[SiblingMergeRewrite, ...]:
        return tuple(group for piece in self.by_fingerprint.values() for group in piece.groups)

    @cached_property
    def adjacent(self) -> frozenset[tuple[str, str]]:
        return frozenset().union(*(piece.adjacent for piece in self.by_fingerprint.values()))

    def __getstate__(self) -> dict[str, object]:
        return {
            "digest": self.digest,
            "by_fingerprint": self.by_fingerprint,
            "defined_operators": self.defined_operators,
        }


_CLASSES: tuple[type, ...] = (
    *CLASSES,
    _CompiledLibrary,
    _CompiledRule,
    _Side,
    OperatorMatchStep,
    IndexCondition,
    RootMatchStep,
    SiblingMergeRewrite,
    CompiledPattern,
    OutputMatchStep,
    TypeMatchStep,
    SafeConditions,
)
_FOLDER = "moves"
_MOST_FILES = 24  # of some megabytes
_WORTH = 100  # rules from which it takes longer to prepare them than to read a file
_COUNTS = "counts"  # under which a file of rules compiled one by one has the numbers of parts
_ALIVE = 16  # rule sets, and numbers of parts, that the process keeps
_alive: dict[str, _CompiledLibrary | dict[int, _Side]] = {}
_Lifted = dict[int, _Side]  # by the number of the side: what it is for another number of parts
K = TypeVar("K", _CompiledLibrary, dict[int, _Side])


def _cached(name: str, kind: type[K]) -> K | None:
    """What stands under a name of all that it follows from: in this process, or in the file of an earlier one."""
    found: object = _alive.get(name)
    if not isinstance(found, kind):
        found = load_object(_FOLDER, name, _CLASSES)
    return _remembered(name, found) if isinstance(found, kind) else None


def _remembered(name: str, found: K) -> K:
    while len(_alive) >= _ALIVE and name not in _alive:
        _alive.pop(next(iter(_alive)), None)
    _alive[name] = found
    return found


def _of_all(rules: tuple[Rule, ...], deadline: float, floats: FloatVerdictStore | None) -> _CompiledLibrary:
    """The sides of all rules: from this process, from an earlier one, or made now, but for those that the shipped
    library has as well."""
    composed = _composed(rules, floats)
    if composed is not None:
        return composed
    name, many = _name(rules, floats), len(rules) >= _WORTH
    found = _cached(name, _CompiledLibrary) if many else _alive.get(name)
    if isinstance(found, _CompiledLibrary):
        return found
    shipped = _shipped(floats) if many else None
    known: Mapping[str, _CompiledRule] = {} if shipped is None else shipped.by_fingerprint
    made, whole = _compiled(name, rules, deadline, floats, known)
    if whole:
        _remembered(name, made)
        if len(made.by_fingerprint.keys() - known.keys()) >= _WORTH:
            store_object(_FOLDER, name, made, _MOST_FILES)
    return made


# -- Rules compiled one by one -------------------------------------------------------------------------------------
#
# A greedy search applies a few hundred rules, others for each model. They are put together from a file that holds
# each rule's compiled form, and its forms for some numbers of parts, as bytes of its own. Rules that are instances of
# others are among them: equal patterns are told apart by none of what follows (:attr:`Pattern.identity`).


def store_compiled_rules(library: RuleLibrary, mode: str, counts: Sequence[int]) -> None:
    """Keep the compiled form of each rule that a pass may apply, where it is not kept already.

    Args:
        library: the rules.
        mode: in which verdicts in floating point are read.
        counts: numbers of parts.
    """
    kept = load_object(_FOLDER, _packed_name(mode), ())
    if isinstance(kept, dict) and kept.get(_COUNTS) == bytes(counts):
        return
    floats = library.floats(mode)
    made: dict[str, bytes] = {_COUNTS: bytes(counts)}
    for rule in library.admitted:
        ways = _match_conditions(rule, False, floats), _match_conditions(rule, True, floats)
        piece, fingerprint = _piece(rule, ways), rule.fingerprint
        made[fingerprint] = packed((piece, *_whole_and_inner(piece.sides)))
        for count in counts:
            lifted = tuple(_side_of_parts(side, count) for side in piece.sides)
            if any(side is not None for side in lifted):
                made[f"{fingerprint}-{count}"] = packed(lifted)
    _packed_rules.cache_clear()
    store_object(_FOLDER, _packed_name(mode), made, _MOST_FILES)


def _packed_name(mode: str) -> str:
    text = f"{code_digest(*SEARCH_PACKAGES, 'rules', 'ops', 'ir')} {peephole_digest()} {mode}"
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(maxsize=4)
def _packed_rules(mode: str) -> tuple[str, Mapping[str, bytes]]:
    """The name of the file, and what is in it."""
    name = _packed_name(mode)
    found = load_object(_FOLDER, name, ())
    return name, found if isinstance(found, dict) else {}


def _composed(rules: Sequence[Rule], floats: FloatVerdictStore | None) -> _CompiledLibrary | None:
    """The rules put together from the file; ``None`` where it has not all of them."""
    if floats is None or len(rules) < _WORTH:
        return None
    file, known = _packed_rules(floats.mode)
    if not known or any(r.fingerprint not in known for r in rules):
        return None
    text = f"{file} {[r.fingerprint for r in rules]}"
    name = hashlib.sha256(text.encode()).hexdigest()
    found = _alive.get(name)
    if isinstance(found, _CompiledLibrary):
        return found
    pieces: dict[str, _CompiledRule] = {}
    whole, inner = set[str](), set[str]()
    for rule in rules:
        pieces[rule.fingerprint], alone, inside = unpacked(known[rule.fingerprint], _CLASSES)
        whole |= alone
        inner |= inside
    return _remembered(name, _CompiledLibrary(name, pieces, frozenset(whole - inner), composed=True))


def _unpacked_lifts(prepared: _CompiledLibrary, count: int, mode: str) -> dict[_Side, _Side | None]:
    """Of the sides of rules that are in the file: what they are for so many parts."""
    packs, found = _packed_rules(mode)[1], dict[_Side, _Side | None]()
    for fingerprint, piece in prepared.by_fingerprint.items():
        content = packs.get(f"{fingerprint}-{count}")
        if content is not None:
            found.update(zip(piece.sides, unpacked(content, _CLASSES), strict=True))
        elif fingerprint in packs and count in packs[_COUNTS]:
            found.update(dict.fromkeys(piece.sides))
    return found


def _name(rules: Sequence[Rule], floats: FloatVerdictStore | None) -> str:
    digest = hashlib.sha256(code_digest(*SEARCH_PACKAGES, "rules", "ops", "ir").encode())
    for rule in rules:
        digest.update(rule.fingerprint.encode())
    digest.update(b"" if floats is None else floats.digest.encode())
    return digest.hexdigest()


def _shipped(floats: FloatVerdictStore | None) -> _CompiledLibrary | None:
    """What the built-in library is prepared to, where that is known."""
    library = load_library()
    known = tuple(r for r in library.admitted if r.operators <= REGISTRY.keys())
    return _cached(_name(known, None if floats is None else library.floats(floats.mode)), _CompiledLibrary)


def _compiled(
    name: str,
    rules: Sequence[Rule],
    deadline: float,
    floats: FloatVerdictStore | None,
    known: Mapping[str, _CompiledRule],
) -> tuple[_CompiledLibrary, bool]:
    """All that rules are prepared to, and whether there was time for it; ``known`` pieces are taken as they are."""
    pieces: dict[str, _CompiledRule] = {}
    for rule in independent(rules):
        if time.monotonic() > deadline:
            return _CompiledLibrary("", pieces), False
        ways = _match_conditions(rule, False, floats), _match_conditions(rule, True, floats)
        piece = known.get(rule.fingerprint)
        pieces[rule.fingerprint] = _piece(rule, ways) if piece is None or piece.conditions != ways else piece
    return _CompiledLibrary(
        name, pieces, _operators_with_definition(s for piece in pieces.values() for s in piece.sides)
    ), True


def _piece(rule: Rule, ways: tuple[_MatchConditions, _MatchConditions]) -> _CompiledRule:
    sides: list[_Side] = []
    groups: list[SiblingMergeRewrite] = []
    plain = _plain(rule)
    few = len(leads_of(rule)) if rule.lead else 1
    for backward, wanted in enumerate(ways):
        if wanted is None or any(wanted.values()):
            for instance in plain if not _adds_operators(rule, bool(backward)) else plain[:few]:
                _add(instance, bool(backward), wanted, ways[not backward], sides, groups)
    return _CompiledRule(ways, tuple(sides), tuple(groups), frozenset(_adjacent(rule)))


def _adds_operators(rule: Rule, backward: bool) -> bool:
    """Whether a direction makes more operators than it replaces. Such directions prepare others; for tensors of many
    axes they are left out, because the e-nodes that they make are counted against those that pay."""
    counts = [sum(isinstance(t, OperatorTerm) for t in postorder(*side)) for side in (rule.lhs, rule.rhs)]
    return counts[not backward] > counts[backward]


def _lifted(prepared: _CompiledLibrary, count: int, deadline: float, floats: FloatVerdictStore | None) -> _Lifted:
    """By the number of the side: what it is for so many parts instead of two, where it is about parts."""
    name, many = f"{prepared.digest}-{count}", bool(prepared.digest) and len(prepared.sides) >= _WORTH
    found = _cached(name, dict) if many else _alive.get(name)
    if isinstance(found, dict):
        return found
    known = _lifted_before(prepared, count, deadline, floats) if many else {}
    made: _Lifted = {}
    for number, side in enumerate(prepared.sides):
        if time.monotonic() > deadline:
            return made
        lifted = known[side] if side in known else _side_of_parts(side, count)
        if lifted is not None:
            made[number] = lifted
    if prepared.digest:
        _remembered(name, made)
        if many and sum(side not in known for side in prepared.sides) >= _WORTH:
            store_object(_FOLDER, name, made, _MOST_FILES)
    return made


def _lifted_before(
    prepared: _CompiledLibrary, count: int, deadline: float, floats: FloatVerdictStore | None
) -> dict[_Side, _Side | None]:
    """Of sides that are the shipped library's: what they are for so many parts."""
    if prepared.composed and floats is not None:
        return _unpacked_lifts(prepared, count, floats.mode)
    shipped = _shipped(floats)
    if shipped is None or shipped.digest == prepared.digest:
        return {}
    found = _lifted(shipped, count, deadline, floats)
    return (
        {side: found.get(number) for number, side in enumerate(shipped.sides)} if time.monotonic() <= deadline else {}
    )


def _side_of_parts(side: _Side, count: int) -> _Side | None:
    rule = side.pattern.rule
    lifted = lift(rule, count, backward=side.backward) if rule.operators & _PARTS else None
    if lifted is None or _orders(lifted.lhs) > POLICY.orders:
        return None
    ways, opposite = _lifted_conditions(side, lifted)
    return _side(lifted, lifted.lhs, lifted.rhs, side.backward, side.pattern.first_round, ways, opposite)


def _orders(roots: tuple[Term, ...]) -> int:
    """In how many orders the operands of commutative operators are looked for, all together."""
    applied = (
        t for t in postorder(*roots) if isinstance(t, OperatorTerm) and len(t.args) == 2 and t.args[0] != t.args[1]
    )
    return 1 << sum(REGISTRY[t.op].commutative for t in applied)


def _lifted_conditions(side: _Side, lifted: Rule) -> tuple[_MatchConditions, _MatchConditions]:
    """What the side, and the other one, must meet."""
    rule = side.pattern.rule
    try:
        names = correspondence(rule, rule.rhs if side.backward else rule.lhs)
    except NaryRuleError:  # it was lifted, so it is made of copies
        names = {}
    own = {*lifted.tensors, *lifted.attribute_atoms}
    return lifted_conditions(side.pattern.floats, names, own), lifted_conditions(side.pattern.opposite, names, own)


def _match_conditions(rule: Rule, backward: bool, floats: FloatVerdictStore | None) -> _MatchConditions:
    """What a match of a direction must meet, by element type; ``None``: nothing beyond the rule itself."""
    if floats is None:
        return None
    return {str(dtype): ways for dtype, ways in floats.alternatives(rule, backward=backward).items()}


def _side(
    rule: Rule, source: tuple[Term, ...], target: tuple[Term, ...], backward: bool, apart: bool,
    floats: _MatchConditions, opposite: _MatchConditions,
) -> _Side:  # fmt: skip
    pattern = compile_side(rule, source, target, first_round=apart, floats=floats, opposite=opposite)
    _ = pattern.identity, pattern.loops, pattern.demands  # kept with the pattern
    pattern.heavier = _is_heavier(pattern)
    return _Side(pattern, backward, shortens(pattern), pattern.saves)


def shortens(pattern: CompiledPattern) -> bool:
    """Whether fewer operators run on the other side, if second arguments of products and the like are weights."""
    data = data_of(pattern.source)
    return _flow(pattern.target, data) < _flow(pattern.source, data)


def data_of(roots: Sequence[Term]) -> frozenset[str]:
    """Variables that stand where activations usually do."""
    found: set[str] = set()
    stack = list(roots)
    while stack:
        term = stack.pop()
        if isinstance(term, VariableTerm):
            found.add(term.name)
        elif isinstance(term, OperatorTerm):
            args = term.args[:1] if term.op in _WEIGHTED else term.args
            stack.extend(a for a in args if a is not None)
        else:
            stack.append(term.term)
    return frozenset(found)


def _flow(roots: Sequence[Term], data: frozenset[str]) -> int:
    """Applications that depend on the variables."""
    return len(flowing(roots, data))


def flowing(roots: Sequence[Term], data: AbstractSet[str]) -> list[OperatorTerm]:
    """The applications that depend on the variables."""
    moving: set[Term] = set()
    found: list[OperatorTerm] = []
    for term in postorder(*roots):
        if (isinstance(term, VariableTerm) and term.name in data) or any(c in moving for c in children(term)):
            moving.add(term)
            found += [term] if isinstance(term, OperatorTerm) else []
    return found


def _is_heavier(pattern: CompiledPattern) -> bool:
    """Whether the other side does more arithmetic, whatever the sizes, with as many operators of the same kinds, if
    second arguments of products and the like are weights: a convolution as one of fewer groups.
    """
    data = data_of(pattern.source)
    before, after = flowing(pattern.source, data), flowing(pattern.target, data)
    if Counter(a.op for a in before) != Counter(a.op for a in after) or not any(a.op in _WEIGHTED for a in before):
        return False
    types = types_of(pattern.rule).types
    more = _arithmetic(after, types) - _arithmetic(before, types)
    return isinstance(more, SizePolynomial) and all(c > 0 for _, c in more.terms)


def _arithmetic(terms: Iterable[OperatorTerm], types: Mapping[Term, tuple[TensorType, ...]]) -> Dim:
    given = ((t, [None if a is None else types[a][0] for a in t.args]) for t in terms)
    return sum((flops(REGISTRY[t.op], args, complete(t)) for t, args in given), start=0)


def _plain(rule: Rule) -> tuple[Rule, ...]:
    """What the rule is at each number of leading axes; nothing where it is not well-formed."""
    try:
        return tuple(_explicit(instance) for instance in instances(rule, applied_leads(rule)))
    except RuleError:
        return ()


def _shares_weight(group: SiblingMergeRewrite) -> bool:
    """Whether siblings differ in what flows, and share what it is multiplied with."""
    source = group.single.source
    data = data_of(source)
    return bool(data & group.names) and any(
        isinstance(t, VariableTerm) and t.name not in data and t.name not in group.names for t in postorder(*source)
    )


def _joins(pattern: CompiledPattern) -> bool:
    """Whether the pattern is about parts, and does not make a whole of unrelated data."""
    data = data_of(pattern.target)
    whole = (t for t in postorder(*pattern.target) if isinstance(t, OperatorTerm) and t.op == "Concat")
    return bool(pattern.rule.operators & _PARTS) and not any(names_of((t,)) & data for t in whole)


def _parts(program: GraphProgram, grouped: bool) -> list[int]:
    """The numbers of parts, other than two, that Concat and Split most often have: rules are lifted to these.

    Each costs a second or two of preparing for a library of 1,500 rules the first time, and DenseNet-121 has fourteen.
    """
    found = Counter(len(s.args) for s in program.steps if s.op == "Concat")
    found += Counter(len(s.outputs) for s in program.steps if s.op == "Split")
    if grouped:
        products = Counter(s.args[0] for s in program.steps if s.op in _WEIGHTED and not program.is_constant(s))
        found += Counter(products.values())
    counts = sorted((c for c in found if 2 < c <= POLICY.parts), key=lambda c: (-found[c], c))
    return sorted(counts[: POLICY.counts])


def _usable(rule: Rule, backward: bool) -> bool:
    """Whether the source side says what it is to be matched with, and binds all that the target side needs."""
    source, binds = (rule.rhs, rule.backward) if backward else (rule.lhs, rule.forward)
    return binds and not any(isinstance(t, VariableTerm) for t in source)


def _add(
    rule: Rule,
    backward: bool,
    floats: _MatchConditions,
    opposite: _MatchConditions,
    sides: list[_Side],
    groups: list[SiblingMergeRewrite],
) -> None:
    if not _usable(rule, backward):
        return
    source, target = (rule.rhs, rule.lhs) if backward else (rule.lhs, rule.rhs)
    group = group_rewrite(rule, backward=backward, floats=floats) if len(source) == 2 else None
    if group is not None:
        groups.append(group)
        return
    apart = len(source) > 1 and _is_split(source) and not _is_split(target)
    sides.append(_side(rule, source, target, backward, apart, floats, opposite))


def _is_split(roots: Sequence[Term]) -> bool:
    """Whether the roots are parts of one value."""
    return all(isinstance(t, OutputTerm) or (isinstance(t, OperatorTerm) and t.op == "Slice") for t in roots)


def _adjacent(rule: Rule) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for term in postorder(*rule.lhs, *rule.rhs):
        if isinstance(term, OperatorTerm):
            for child in children(term):
                below = child.term if isinstance(child, OutputTerm) else child
                if isinstance(below, OperatorTerm):
                    found.add((below.op, term.op))
    return found


def _explicit(rule: Rule) -> Rule:
    """The rule with ``[0]`` written wherever an operator with several outputs is used as a value."""
    made: dict[Term, Term] = {}

    def value(term: Term) -> Term:
        found = made[term]
        return OutputTerm(found, 0) if isinstance(found, OperatorTerm) and is_multi(REGISTRY[found.op]) else found

    for term in postorder(*rule.lhs, *rule.rhs):
        if isinstance(term, OperatorTerm):
            made[term] = OperatorTerm(
                term.op, tuple(None if a is None else value(a) for a in term.args), term.attributes
            )
        elif isinstance(term, OutputTerm):
            inner = made[term.term]
            assert isinstance(inner, OperatorTerm)
            made[term] = OutputTerm(inner, term.index) if is_multi(REGISTRY[inner.op]) else inner
        else:
            made[term] = term

    def roots(terms: Iterable[Term]) -> tuple[Term, ...]:
        return tuple(value(t) for t in terms)

    return Rule(rule.id, rule.forall, rule.where, roots(rule.lhs), roots(rule.rhs), rule.origin, rule.family)
