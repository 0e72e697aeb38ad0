"""In which order the parts of models are looked at, and what an equal of a part has to save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from superopt.discovery.mining import Target

__all__ = ["Agenda", "Entry"]

Source = tuple[str, bool]


@dataclass(frozen=True)
class Entry:
    """A part that waits to be looked at.

    Attributes:
        source: the model, and whether the part is of what the library's search left of it.
        part: with its places and prices.
        whole: what the model costs, in microseconds.
        reach: what equals of parts of it save, in microseconds at one place: an equal of the whole has to save more.
    """

    source: Source
    part: Target
    whole: float
    reach: float = 0.0

    @property
    def worth(self) -> float:
        """What there is to gain, as a share of the model: all operators but the dearest, less what is in reach."""
        return len(self.part.places) * (self.part.us - self.part.dearest - self.reach) / self.whole

    @property
    def rank(self) -> tuple[object, ...]:
        """What may be one product first, as an equal of anything else has all but one or two of its operators; of these
        what there is to gain by operator, most first."""
        size = len(self.part.places[0])
        return not self.part.affine, -self.worth / size, size, self.source, self.part.text


class Agenda:
    """Parts, the one from which there is most to gain first, as far as is known by then.

    Args:
        entries: all parts.
        least: what there has to be to gain, as a share of a model.
    """

    def __init__(self, entries: Sequence[Entry], least: float) -> None:
        self.least = least
        self.waiting = [e for e in entries if e.worth >= least]
        self.settled: dict[Source, list[tuple[float, frozenset[int]]]] = {}
        self.inside = 0  # parts of which nothing is left to gain beside what is known of their own parts

    def next(self) -> Entry | None:
        """The next part; ``None`` when none is left."""
        if not self.waiting:
            return None
        best = min(self.waiting, key=lambda e: e.rank)
        self.waiting.remove(best)
        return best

    def settle(self, entry: Entry, saving: float) -> None:
        """An equal of a part is known, which saves so much at each of its places."""
        known = self.settled.setdefault(entry.source, [])
        known.extend((saving, p) for p in entry.part.places)
        left: list[Entry] = []
        for other in self.waiting:
            place = other.part.places[0]
            if other.source == entry.source and any(p < place for p in entry.part.places):
                other = replace(other, reach=_most_disjoint(known, place))
            if other.worth >= self.least:
                left.append(other)
        self.inside += len(self.waiting) - len(left)
        self.waiting = left


def _most_disjoint(settled: Sequence[tuple[float, frozenset[int]]], whole: frozenset[int]) -> float:
    """What equals of parts of a whole save together, the best ones first, each step rewritten at most once."""
    taken: set[int] = set()
    total = 0.0
    for saving, place in sorted(settled, key=lambda s: (-s[0], sorted(s[1]))):
        if saving > 0 and place <= whole and not place & taken:
            taken |= place
            total += saving
    return total
