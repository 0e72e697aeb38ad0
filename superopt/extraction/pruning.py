"""Pruning of extraction problems.

Removes candidates that no cheaper program can use, before the integer program is written.

The *requirements* of a class are the classes that every computation of it contains: the greatest solution of R(c) =
{c} ∪ ⋂ over candidates of ⋃ R(operands). Three tests are repeated until nothing changes. A candidate whose operands
require its own class is cyclic. A candidate that costs more than another of its class with no fewer operands is
dominated. A candidate is too expensive if the cheapest forms of all that it requires cost more than a known program.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import combinations

from superopt.extraction.dag import Choice, ExtractionProblem

__all__ = ["RequiredEClasses", "reduced", "requirements", "restricted", "usable"]

_ROUNDS = 20
_WIDE = 64  # candidates of a class up to which they are compared in pairs


def reduced(problem: ExtractionProblem, incumbent: Choice, limit: float) -> ExtractionProblem:
    """The problem without what no program below the limit uses; the incumbent stays a choice of it."""
    return restricted(problem, usable(problem, limit) | set(incumbent.values()))


def restricted(problem: ExtractionProblem, kept: AbstractSet[int]) -> ExtractionProblem:
    """The problem with these candidates alone, by their numbers, which stay as they are."""
    of = {o: left for o, options in problem.of.items() if (left := tuple(i for i in options if i in kept))}
    present = frozenset(i for options in of.values() for i in options)
    readers = {c: left for c, found in problem.readers.items() if (left := tuple(i for i in found if i in present))}
    savings = tuple(s for s in problem.savings if s.producer in present and s.consumer in present)
    return replace(problem, of=of, readers=readers, savings=savings)


def usable(problem: ExtractionProblem, limit: float) -> frozenset[int]:
    """Indices of candidates that a program cheaper than the limit (microseconds) could use."""
    return _Pruning(problem, limit).result()


@dataclass(frozen=True)
class RequiredEClasses:
    """What is computed in every program, and what else computing a class, or choosing a candidate, makes necessary."""

    always: frozenset[int]
    of_class: Mapping[int, frozenset[int]]
    of_candidate: Mapping[int, frozenset[int]]  # besides those of its class


def requirements(problem: ExtractionProblem) -> RequiredEClasses:
    """The requirements of a problem; unlike needs, a circle of values does not meet them."""
    pruning = _Pruning(problem, float("inf"))
    required, number, owners = pruning.requirements(), pruning.number, pruning.owners

    def members(mask: int) -> frozenset[int]:
        found: list[int] = []
        while mask:
            low = mask & -mask
            found.append(owners[low.bit_length() - 1])
            mask ^= low
        return frozenset(found)

    always = 0
    for root in problem.roots:
        always |= required[number[root]]
    of_candidate: dict[int, frozenset[int]] = {}
    for owner, options in problem.of.items():
        for index in options:
            below = 0
            for need in pruning.needs[index]:
                below |= required[need]
            of_candidate[index] = members(below & ~required[number[owner]] & ~always)
    of_class = {o: members(required[number[o]] & ~always & ~(1 << number[o])) for o in owners}
    return RequiredEClasses(members(always), of_class, of_candidate)


class _Pruning:
    """Classes are numbered, and sets of them are the bits of an integer."""

    def __init__(self, problem: ExtractionProblem, limit: float) -> None:
        self.problem, self.limit = problem, limit
        self.number = {owner: i for i, owner in enumerate(problem.of)}
        self.owners = list(problem.of)
        self.left = {owner: list(options) for owner, options in problem.of.items()}
        self.needs = [[self.number[n] for n in c.needs if n in self.number] for c in problem.candidates]
        self.mask = [sum(1 << n for n in needs) for needs in self.needs]
        saved = [0.0] * len(problem.candidates)
        self.joined = set[int]()  # candidates that the backend may fuse
        for saving in problem.savings:
            saved[saving.consumer] = max(saved[saving.consumer], saving.us)
            self.joined |= {saving.consumer, saving.producer}
        self.least = [c.us - s for c, s in zip(problem.candidates, saved, strict=True)]

    def result(self) -> frozenset[int]:
        """Prune until nothing changes."""
        self._drop_dominated()
        for _ in range(_ROUNDS):
            required = self.requirements()
            cheapest = [min((self.least[i] for i in self.left[o]), default=0.0) for o in self.owners]
            if not self._drop(required, cheapest):
                break
        reached = self._reached()
        return frozenset(i for o in self.owners if self.number[o] in reached for i in self.left[o])

    def _drop_dominated(self) -> None:
        for owner, options in self.left.items():
            if not 1 < len(options) <= _WIDE:
                continue
            gone: set[int] = set()
            for a, b in combinations(options, 2):
                for better, worse in ((a, b), (b, a)):
                    if worse in gone or better in gone or worse in self.joined:
                        continue
                    same = self.mask[better] & ~self.mask[worse] == 0
                    if same and self.problem.candidates[better].us <= self.least[worse]:
                        gone.add(worse)
            self.left[owner] = [i for i in options if i not in gone]

    def requirements(self) -> list[int]:
        """For each class the classes that every program computing it computes, itself included."""
        everything = (1 << len(self.owners)) - 1
        required = [everything] * len(self.owners)
        backwards = list(enumerate(self.owners))[::-1]  # mostly operands first: it settles sooner
        changed = True
        while changed:
            changed = False
            for number, owner in backwards:
                common = everything
                for index in self.left[owner]:
                    below = 0
                    for need in self.needs[index]:
                        below |= required[need]
                    common &= below
                common |= 1 << number
                if common != required[number]:
                    required[number] = common
                    changed = True
        return required

    def _drop(self, required: list[int], cheapest: list[float]) -> bool:
        always = 0
        for root in self.problem.roots:
            always |= required[self.number[root]]
        base = _total(always, cheapest)
        dropped = False
        for number, owner in enumerate(self.owners):
            kept: list[int] = []
            for index in self.left[owner]:
                below = 0
                for need in self.needs[index]:
                    below |= required[need]
                extra = _total((below | 1 << number) & ~always, cheapest)
                bound = base + extra - cheapest[number] + self.least[index]
                if not below >> number & 1 and bound <= self.limit:
                    kept.append(index)
            if kept and len(kept) < len(self.left[owner]):
                self.left[owner] = kept
                dropped = True
            elif not kept and self.left[owner] and not always >> number & 1:
                self.left[owner] = []
                dropped = True
        if dropped:
            self._spread()
        return dropped

    def _spread(self) -> None:
        """A candidate that needs a class without candidates is none."""
        empty = {self.number[o] for o, options in self.left.items() if not options}
        todo = bool(empty)
        while todo:
            todo = False
            for number, owner in enumerate(self.owners):
                kept = [i for i in self.left[owner] if not any(n in empty for n in self.needs[i])]
                if len(kept) < len(self.left[owner]):
                    self.left[owner] = kept
                    if not kept:
                        empty.add(number)
                        todo = True

    def _reached(self) -> set[int]:
        found: set[int] = set()
        stack = [self.number[r] for r in self.problem.roots]
        while stack:
            number = stack.pop()
            if number not in found:
                found.add(number)
                stack.extend(n for i in self.left[self.owners[number]] for n in self.needs[i])
        return found


def _total(mask: int, cheapest: list[float]) -> float:
    total = 0.0
    while mask:
        low = mask & -mask
        total += cheapest[low.bit_length() - 1]
        mask ^= low
    return total
