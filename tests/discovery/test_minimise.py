"""A smaller library, and nothing lost: what was dropped is derived by what is kept in the end."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from superopt.discovery.derive import derived, rewrites_of
from superopt.discovery.minimise import minimised
from superopt.fleet import TaskOutcome, WorkerPool
from superopt.rules import Rule, load_library, parse_rule


def rule(name: str, left: str, right: str) -> Rule:
    return parse_rule({"id": name, "forall": {"x": "f[m, n]", "y": "f[m, n]"}, "lhs": [left], "rhs": [right]})


class Told(WorkerPool):
    """A fleet that is told which rule follows from which other one, by their ids."""

    def __init__(self, rests: Mapping[str, str]) -> None:
        super().__init__()
        self.rests = rests

    def each(self, tasks: Iterable[Any], **_: object) -> Iterator[TaskOutcome[Any]]:
        for task in tasks:
            if task is None:
                return
            asked, near, _rounds = task.arguments
            follows = self.rests.get(pickle.loads(asked).id) in {pickle.loads(r).id for r in near}
            yield TaskOutcome(task, {"follows": follows})


def test_what_rested_on_a_rule_that_is_dropped_later_comes_back() -> None:
    """``second`` follows from ``first``, ``first`` from ``third``, but ``second`` takes too many rounds from there."""
    first = rule("first", "Add(x, y)", "Add(y, x)")
    second = rule("second", "Neg(Add(x, y))", "Neg(Add(y, x))")
    third = rule("third", "Neg(Neg(Add(x, y)))", "Neg(Neg(Add(y, x)))")
    rests = {"first": "third", "second": "first"}

    assert {r.id for r in minimised([first, second, third], fleet=Told(rests))} == {"second", "third"}


def test_every_rule_that_is_dropped_is_derived() -> None:
    rules = [r for r in load_library().admitted if r.family == "gather" and len(r.lhs) == 1][:24]
    assert len(rules) == 24
    doubled = [*rules, *(parse_like(r) for r in rules)]
    kept = minimised(doubled)
    assert 0 < len(kept) <= len(rules)
    moves = rewrites_of(kept)
    assert all(derived(r, moves) is not None for r in doubled)


def test_what_follows_at_one_point_only_is_kept() -> None:
    """At the first sizes that are drawn the second slice takes all of the first, where it is no slice at all."""
    first = "Slice(x, axes=[1], ends=[j], starts=[i], steps=[1])"
    twice = parse_rule({
        "id": "twice", "forall": {"x": "f[m, p]", "i": "int>=0", "j": "int>=1", "k": "int>=0", "l": "int>=1"},
        "where": ["j <= p", "l <= j - i", "i + l <= p"],
        "lhs": [f"Slice({first}, axes=[1], ends=[l], starts=[k], steps=[1])"],
        "rhs": ["Slice(x, axes=[1], ends=[i + l], starts=[i + k], steps=[1])"],
    })  # fmt: skip
    whole = parse_rule({
        "id": "whole", "forall": {"x": "f[m, p]"},
        "lhs": ["Slice(x, axes=[1], ends=[p], starts=[0], steps=[1])"], "rhs": ["x"],
    })  # fmt: skip
    assert {r.id for r in minimised([whole, twice])} == {"whole", "twice"}


def parse_like(given: Rule) -> Rule:
    """The same rule turned round, under another name."""
    return Rule(f"{given.id}-turned", given.forall, given.where, given.rhs, given.lhs, given.origin, given.family)
