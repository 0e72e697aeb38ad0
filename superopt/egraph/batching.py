"""n-ary merges: siblings that share an operand become one operator in one move.

A rule such as ``MatMul(x, a), MatMul(x, c) = Split(MatMul(x, Concat(a, c)))`` applied pair by pair makes thousands of
e-nodes for six siblings. Its two left sides are copies of each other, so it is lifted (:mod:`superopt.egraph.lifting`)
to as many copies as there are siblings, and applied to whole groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from superopt.egraph.egraph import PROJECT, EGraph
from superopt.egraph.lifting import NotLiftableError, copy_name, correspondence, lift, names_of, of_copies
from superopt.egraph.matching import Match, Pattern, bound, compile_side
from superopt.egraph.pattern_index import Trie
from superopt.ir.terms import AttributeValue, Project, Term, Var
from superopt.rules.floats import Way
from superopt.rules.rule import Rule

__all__ = ["GroupMove", "group_move", "independent", "siblings"]

_RUNS = 6  # up to this many siblings, every contiguous run (by size) is offered; beyond it, whole groups only
_WIDEST = 64
_OCCURRENCES = 2000  # of one sibling, at most
Proposal = tuple[str, tuple[int, ...], tuple[Term, ...], Match]


@lru_cache(maxsize=4096)
def _lifted(rule: Rule, count: int, backward: bool) -> Rule | None:
    return lift(rule, count, backward=backward)


@dataclass(eq=False)
class GroupMove:
    """A two-root rule as a move on groups of siblings. ``names``: those of one sibling, not shared by all."""

    rule: Rule
    backward: bool
    one: Pattern
    names: frozenset[str]

    def proposals(
        self, graph: EGraph, occurrences: Sequence[Match], seen: set[tuple[object, ...]]
    ) -> Iterator[Proposal]:
        """Groups not proposed before: rule id, sibling classes, what they become, and the binding.

        Args:
            graph: a rebuilt e-graph.
            occurrences: of a single sibling, as :func:`siblings` found them; classes may have been united since.
            seen: what was proposed before; is added to.
        """
        groups: dict[tuple[object, ...], dict[int, Match]] = {}
        given = graph.places()
        for match in occurrences:
            tensors = {n: graph.find(c) for n, c in match.tensors.items()}
            root = graph.find(match.roots[0])
            shared = tuple((n, v) for n, v in {**tensors, **match.sizes}.items() if n not in self.names)
            groups.setdefault(shared, {}).setdefault(root, Match((root,), tensors, match.sizes))
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

    def _joined(self, found: Sequence[Match]) -> Match:
        tensors: dict[str, int] = {}
        sizes: dict[str, AttributeValue] = {}
        for number, match in enumerate(found):
            tensors.update((copy_name(n, number) if n in self.names else n, c) for n, c in match.tensors.items())
            sizes.update((copy_name(n, number) if n in self.names else n, v) for n, v in match.sizes.items())
        return Match(tuple(m.roots[0] for m in found), tensors, sizes)


def siblings(graph: EGraph, groups: Sequence[GroupMove]) -> list[list[Match]]:
    """For each group where a single sibling stands, found in one walk for all of them.

    Only values of the input that run: merging alternatives of one value with each other gains nothing.
    """
    found: list[list[Match]] = [[] for _ in groups]
    places = {c: 0 for c in graph.places() if not graph.constant(c)}

    def keep(number: int, slots: Sequence[int], registers: Sequence[AttributeValue]) -> None:
        if len(found[number]) < _OCCURRENCES:
            match = bound(graph, groups[number].one, slots, registers)
            if match is not None:
                found[number].append(match)

    _net(tuple(groups)).walk(graph, keep, places)
    return found


@lru_cache(maxsize=16)
def _net(groups: tuple[GroupMove, ...]) -> Trie[int]:
    return Trie([(number, group.one.steps, group.one.depth) for number, group in enumerate(groups)], lambda _: 0)


def group_move(
    rule: Rule, *, backward: bool = False, floats: Mapping[str, tuple[Way, ...]] | None = None
) -> GroupMove | None:
    """The rule as a group move, if a single sibling can be recognised alone and the rule lifts.

    Conditions of floating point hold for the group where they hold for each sibling.
    """
    source = rule.rhs if backward else rule.lhs
    if len(source) != 2 or isinstance(source[0], Var | Project):
        return None
    try:
        names = correspondence(rule, source)
    except NotLiftableError:
        return None
    first = names_of(source[:1])
    if first & set(names.values()) or lift(rule, 3, backward=backward) is None:
        return None
    alone = replace(rule, where=tuple(g for g in rule.where if not g.names & set(names.values())))
    return GroupMove(
        rule,
        backward,
        compile_side(alone, source[:1], (), floats=of_copies(floats, names, first | set(alone.attribute_atoms))),
        frozenset(names),
    )


def _subgroups(
    graph: EGraph, members: list[tuple[int, Match]], given: Mapping[int, tuple[int, int]]
) -> Iterator[list[tuple[int, Match]]]:
    """Which siblings to merge: all that are independent, those alike in type, and of few every contiguous run."""
    if len(members) < 2:
        return
    level: dict[int, list[tuple[int, Match]]] = {}
    ordered = sorted(members, key=lambda m: (given[m[0]][0], str(graph.type(m[0])), _part(graph, m[1]), m[0]))
    for member in ordered:
        level.setdefault(given[member[0]][0], []).append(member)
    parts = [ordered] if len(level) > 1 and _independent([given[r][1] for r, _ in ordered]) else []
    for part in [*parts, *level.values()]:
        if not len(part) > 1 or not _independent([given[r][1] for r, _ in part]):
            continue
        yield from (part[i : i + _WIDEST] for i in range(0, len(part), _WIDEST) if len(part) - i > 1)
        alike: dict[str, list[tuple[int, Match]]] = {}
        for member in part:
            alike.setdefault(str(graph.type(member[0])), []).append(member)
        yield from (a for a in alike.values() if 1 < len(a) < len(part))
        if len(part) <= _RUNS:
            for width in range(2, len(part)):
                for start in range(len(part) - width + 1):
                    yield part[start : start + width]


def _part(graph: EGraph, match: Match) -> int:
    """Which part of a value a sibling reads: in the order of the parts, their ``Concat`` is the value again."""
    for name in sorted(match.tensors):
        parts = [graph.heads[node[0]].index for node in graph.with_op(match.tensors[name], PROJECT)]
        if parts:
            return min(parts)
    return 0


def independent(graph: EGraph, roots: Sequence[int]) -> bool:
    """Whether the classes are values of the input, none of which depends on another in it."""
    given = graph.places()
    return all(r in given for r in roots) and _independent([given[r][1] for r in roots])


def _independent(masks: Sequence[int]) -> bool:
    """No value depends on another: each mask holds the steps that a value is computed by, its own the last."""
    own = [m.bit_length() - 1 for m in masks]
    return not any(i != j and mask >> own[j] & 1 for i, mask in enumerate(masks) for j in range(len(own)))
