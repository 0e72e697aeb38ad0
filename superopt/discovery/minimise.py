"""The smallest library that derives the rest: a rule that the kept ones derive by saturation is left out."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from superopt.discovery.candidates import movements, operator_count
from superopt.discovery.config import DEFINITION
from superopt.discovery.derive import (
    QUICK_ROUNDS,
    ROUNDS,
    SHORTCUT,
    derived,
    reached,
    rewrites_of,
)
from superopt.discovery.result_cache import code_digest
from superopt.fleet import TaskResultStore, WorkerPool, WorkerTask, digest
from superopt.rules.canonical import rule_text, text_digest
from superopt.rules.rule import Rule

__all__ = ["minimised", "near_to", "rank", "special"]

_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div", "Neg", "Reciprocal", "ConstantOfShape"})


_AHEAD = 32  # rules for each worker that are asked about before it is known which of those before them are kept


def minimised(
    rules: Sequence[Rule], progress: Callable[[str], None] | None = None, paying: Container[str] = (), *,
    fleet: WorkerPool | None = None, kept: TaskResultStore | None = None,
) -> tuple[Rule, ...]:  # fmt: skip
    """Keep short and general rules first, and of the others those that are not derived.

    Definitions of composite operators are always kept: a person looks for them. A rule that pays is dropped only where
    the others derive it in a few rounds: search has few.

    Args:
        rules: with different ids.
        progress: called with lines of text.
        paying: ids of rules that pay.
        fleet: what derives; this process where none is given.
        kept: answers of an earlier run, and where those of this one are kept.
    """
    unique = {text_digest(r): r for r in reversed(rules)}
    ordered = [rule for _, rule in sorted(unique.items(), key=lambda item: (*rank(item[1]), item[0]))]
    ask = _Derivable(fleet or WorkerPool(), kept, paying)
    found_rules: list[Rule] = []
    for number, (rule, follows) in enumerate(ask.each(ordered, found_rules)):
        if not follows:
            found_rules.append(rule)
        if progress is not None and number % 20 == 0:
            progress(f"minimising: {number + 1}/{len(ordered)} rules, {len(found_rules)} kept")
    least = _without_special_cases(found_rules, progress, ask)
    dropped = [rule for rule in ordered if rule not in least]
    for number, (rule, follows) in enumerate(ask.each(dropped, least)):  # it may rest on what was dropped after it
        if not follows:
            least.append(rule)
        if progress is not None and number % 20 == 0:
            progress(f"nothing lost: {number + 1}/{len(dropped)} rules, {len(least)} kept")
    return tuple(least)


@dataclass
class _Derivable:
    """Whether rules follow from others, asked of a fleet ahead of their turn.

    An answer depends on the rules that :func:`near_to` leaves. Whenever a worker is free, the next rule that is not
    under way is asked about with those that are kept now; an answer counts if the same are near when the rule's turn
    comes, and else it is asked about again. So what is kept is the same for any number of workers, and none waits for
    another.
    """

    fleet: WorkerPool
    checkpoints: TaskResultStore | None
    paying: Container[str]
    derivable: dict[tuple[str, tuple[str, ...]], bool] = field(default_factory=dict)
    packed: dict[str, bytes] = field(default_factory=dict)  # rules as they are sent, by their ids

    def each(self, ordered: Sequence[Rule], kept: Sequence[Rule]) -> Iterator[tuple[Rule, bool]]:
        """The rules in order, and whether those kept by then derive each.

        Args:
            ordered: a rule is not derived by itself, where it is kept.
            kept: those that may be used; who iterates adds to it between two rules, or takes away, not both.
        """
        position, given = 0, dict[int, tuple[str, tuple[str, ...]]]()
        near: dict[str, tuple[int, tuple[str, tuple[str, ...]]]] = {}  # how many were kept then, and the question

        def asked_of(rule: Rule) -> tuple[str, tuple[str, ...]]:
            count, asked = near.get(rule.id, (-1, (rule.id, ())))
            if count != len(kept):
                asked = rule.id, tuple(r.id for r in near_to(rule, kept))
                near[rule.id] = len(kept), asked
            return asked

        def questions() -> Iterator[WorkerTask[dict[str, bool]] | None]:
            while True:
                under_way = set(given.values())
                for rule in ordered[position : position + _AHEAD * self.fleet.size]:
                    asked = asked_of(rule)
                    if asked not in self.derivable and asked not in under_way:
                        by_id = {r.id: r for r in kept}
                        task = self._task(rule, [by_id[i] for i in asked[1]])
                        given[id(task)] = asked
                        yield task
                        break
                else:
                    yield None  # by the next answer there may be more

        outcomes = self.fleet.each(questions(), kept=self.checkpoints)
        for rule in ordered:
            while asked_of(rule) not in self.derivable:
                outcome = next(outcomes)  # the rule's own question is under way, or the next to be asked
                self.derivable[given.pop(id(outcome.task))] = outcome.result()["follows"]
            yield rule, self.derivable[asked_of(rule)]
            position += 1

    def _task(self, rule: Rule, near: Sequence[Rule]) -> WorkerTask[dict[str, bool]]:
        rounds = QUICK_ROUNDS if rule.origin == SHORTCUT or rule.id in self.paying else ROUNDS
        key = ""
        if self.checkpoints is not None:
            key = digest(
                "follows", code_digest(whole=True), rule_text(rule), rule.origin, rounds, list(map(rule_text, near))
            )
        return WorkerTask(_follows, (self._sent(rule), tuple(map(self._sent, near)), rounds), key=key)

    def _sent(self, rule: Rule) -> bytes:
        if rule.id not in self.packed:
            self.packed[rule.id] = pickle.dumps(rule, protocol=5)
        return self.packed[rule.id]


def near_to(rule: Rule, kept: Sequence[Rule]) -> list[Rule]:
    """Kept rules over the rule's own operators and plain arithmetic: a detour through others helps no search."""
    known = rule.operators | _ARITHMETIC
    return [r for r in kept if r is not rule and r.operators <= known]


@lru_cache(maxsize=8192)
def _received(packed: bytes) -> Rule:
    """A rule as it was sent: of a rule that comes with many questions one object, so that its moves are made once."""
    found = pickle.loads(packed)
    assert isinstance(found, Rule)
    return found


def _follows(sent: bytes, others: Sequence[bytes], rounds: int) -> dict[str, bool]:
    """:func:`_derive` of rules as they are sent."""
    return _derive(_received(sent), [_received(r) for r in others], rounds)


def _derive(rule: Rule, near: Sequence[Rule], rounds: int) -> dict[str, bool]:
    """Whether rules derive another."""
    if rule.origin == DEFINITION:
        return {"follows": False}
    if len(rule.lhs) > 1:
        return {"follows": reached(rule, rewrites_of(near), rounds=rounds)}
    return {"follows": derived(rule, rewrites_of(near), rounds=rounds) is not None}


def _without_special_cases(rules: list[Rule], progress: Callable[[str], None] | None, ask: _Derivable) -> list[Rule]:
    """A short rule may be kept before the general ones that derive it: look again, the most special first."""
    kept_rules = list(rules)
    ordered = sorted(rules, key=special)
    for number, (rule, follows) in enumerate(ask.each(ordered, kept_rules)):
        if follows:
            kept_rules.remove(rule)
        if progress is not None and number % 20 == 0:
            progress(f"minimising again: {number + 1}/{len(rules)} rules, {len(kept_rules)} kept")
    return kept_rules


def special(rule: Rule) -> tuple[int, int, int, str]:
    """The order in which kept rules are looked at again: those with few variables and many operators first."""
    terms = (*rule.lhs, *rule.rhs)
    return len(rule.tensors) + len(rule.sizes), -operator_count(*terms), -movements(*terms), text_digest(rule)


def rank(rule: Rule) -> tuple[int, int, int, int, int]:
    """The order in which rules are looked at: few roots and operators first, then what is general."""
    return (
        len(rule.lhs), operator_count(*rule.lhs) + operator_count(*rule.rhs), -int(rule.lead),
        -len(rule.tensors) - len(rule.sizes), movements(*rule.lhs, *rule.rhs),
    )  # fmt: skip
