"""The smallest library that derives the rest: a rule that the kept ones derive by saturation is left out."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace

from superopt.discovery.candidates import movements, operator_count
from superopt.discovery.derive import (
    NODES,
    QUICK_ROUNDS,
    ROUNDS,
    SHORTCUT,
    Universe,
    _distinct_point,
    derived,
    moves_of,
)
from superopt.ops.meaning import IllTyped
from superopt.rules.canonical import text_digest
from superopt.rules.rule import Rule
from superopt.rules.typing import instances
from superopt.search.saturate import Moves

__all__ = ["minimised"]

_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div", "Neg", "Reciprocal", "ConstantOfShape"})


def minimised(
    rules: Sequence[Rule], progress: Callable[[str], None] | None = None, paying: Container[str] = ()
) -> tuple[Rule, ...]:
    """Keep short and general rules first, and of the others those that are not derived.

    Definitions of composite operators are always kept: a person looks for them. A rule that pays is dropped only where
    the others derive it in a few rounds: search has few.

    Args:
        rules: with different ids.
        progress: called with lines of text.
        paying: ids of rules that pay.
    """
    unique = {text_digest(r): r for r in reversed(rules)}
    ordered = sorted(unique.items(), key=lambda item: (*_rank(item[1]), item[0]))
    kept: list[Rule] = []
    for number, (_, rule) in enumerate(ordered):
        if not _follows(rule, kept, paying):
            kept.append(rule)
        if progress is not None and number % 20 == 0:
            progress(f"minimising: {number + 1}/{len(ordered)} rules, {len(kept)} kept")
    least = list(_without_special_cases(kept, progress, paying))
    for number, (_, rule) in enumerate(ordered):  # what was dropped may rest on rules that were dropped after it
        if rule not in least and not _follows(rule, least, paying):
            least.append(rule)
        if progress is not None and number % 20 == 0:
            progress(f"nothing lost: {number + 1}/{len(ordered)} rules, {len(least)} kept")
    return tuple(least)


def _follows(rule: Rule, kept: Sequence[Rule], paying: Container[str]) -> bool:
    """Whether kept rules over the rule's own operators and plain arithmetic derive it.

    A detour through others would be no help to a search.
    """
    if rule.origin == "definition":
        return False
    rounds = QUICK_ROUNDS if rule.origin == SHORTCUT or rule.id in paying else ROUNDS
    near = [r for r in kept if r.operators <= rule.operators | _ARITHMETIC]
    if len(rule.lhs) > 1:
        return _reached(rule, moves_of(near), rounds)
    return derived(rule, moves_of(near), rounds=rounds) is not None


def _reached(rule: Rule, moves: Moves, rounds: int) -> bool:
    """Whether the right side is found from the left side alone.

    ``MatMul(x, a)`` and ``Split(MatMul(x, Concat(a, c)))[0]`` are equal by rules about one of them at a time, but no
    such rule makes a search that sees ``MatMul(x, a)`` and ``MatMul(x, c)`` think of the other.
    """
    for instance in instances(rule, (1, 0)) if rule.lead else instances(rule):
        point = _distinct_point(instance)
        if point is None:
            return False
        universe = Universe(instance, point)
        try:
            left = [a for a, _ in universe.add(replace(instance, rhs=instance.lhs))]
            for number, identity in enumerate(left):
                universe.graph.given[identity] = (1, 1 << number)
            universe.grow(moves, nodes=NODES, rounds=rounds)
            right = [b for _, b in universe.add(instance)]
        except (IllTyped, ZeroDivisionError):
            return False
        if not universe.same(list(zip(left, right, strict=True))):
            return False
    return True


def _without_special_cases(
    rules: list[Rule], progress: Callable[[str], None] | None, paying: Container[str]
) -> tuple[Rule, ...]:
    """A short rule may be kept before the general ones that derive it: look again, the most special first."""
    kept = list(rules)
    for number, rule in enumerate(sorted(rules, key=_special)):
        if _follows(rule, [r for r in kept if r is not rule], paying):
            kept.remove(rule)
        if progress is not None and number % 20 == 0:
            progress(f"minimising again: {number + 1}/{len(rules)} rules, {len(kept)} kept")
    return tuple(kept)


def _special(rule: Rule) -> tuple[int, int, int, str]:
    terms = (*rule.lhs, *rule.rhs)
    return len(rule.tensors) + len(rule.sizes), -operator_count(*terms), -movements(*terms), text_digest(rule)


def _rank(rule: Rule) -> tuple[int, int, int, int, int]:
    return (
        len(rule.lhs), operator_count(*rule.lhs) + operator_count(*rule.rhs), -int(rule.lead),
        -len(rule.tensors) - len(rule.sizes), movements(*rule.lhs, *rule.rhs),
    )  # fmt: skip
