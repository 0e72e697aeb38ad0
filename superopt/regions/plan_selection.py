"""Which plans of a phase are worth the weights that they make: taken alone, or together with others that share them.

Steps of a cell that read the same gates can merge them only together: while one region goes on reading the parts, the
merged weight is read besides (:mod:`superopt.regions.weight_traffic`). Regions alike are offered together; where that
is not enough, because the first step's region is unlike the others, what shares weights is looked at as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from superopt.regions.lowering import Region
from superopt.regions.plan import Plan
from superopt.regions.weight_traffic import Weights

__all__ = ["Offers", "Placed"]

Placed = tuple[Region, Plan]
_FEW_BYTES = 1 << 16  # of new weights, which stay in a core's own cache


@dataclass
class Offers:
    """The plans of one phase, each for a region of its own.

    Attributes:
        weights: of the program as the phase found it.
        reading_us: microseconds that an inference spends on weights that come from memory, by how many bytes it reads.
        room: bytes that weights may grow by; what was taken uses it up.
        taken: what is worth it, with the cost of the new weights counted.
        refused: what is not, with the reason, so far.
        grown: bytes by which weights grow with what was taken.
    """

    weights: Weights
    reading_us: Callable[[int], float]
    room: int
    taken: list[Placed] = field(default_factory=list)
    refused: list[tuple[Sequence[Placed], str]] = field(default_factory=list)
    grown: int = 0

    def add(self, placed: Sequence[Placed]) -> None:
        """Take these plans, all for regions alike, or put them aside."""
        placed = [p for p in placed if p[1].gain > 0]
        if not placed:
            return
        grown = self.weights.grown(placed)
        why = self._against(placed, grown)
        if why:
            self.refused.append((placed, why))
        else:
            self._take(placed, grown)

    def settle(self) -> None:
        """Take those put aside that are worth it together."""
        for read, group in _sharing([placed for placed, _ in self.refused]):
            if len(group) < 2:
                continue
            placed = [p for i in group for p in self.refused[i][0]]
            before = [p for p in self.taken if not read.isdisjoint(p[0].constant)]
            grown = self.weights.grown([*before, *placed]) - self.weights.grown(before)
            if not self._against(placed, grown):
                self._take(placed, grown)
                for i in group:
                    self.refused[i] = ([], "")
        self.refused = [r for r in self.refused if r[0]]

    def _lost(self, grown: int) -> float:
        read = self.weights.bytes + self.grown
        return max(0.0, self.reading_us(read + grown) - self.reading_us(read)) if grown > _FEW_BYTES else 0.0

    def _against(self, placed: Sequence[Placed], grown: int) -> str:
        """Why not, or nothing."""
        if grown > 0 and grown > self.room:
            return "the weights would grow too much"
        if grown > 0 and self._lost(grown) >= sum(plan.gain for _, plan in placed):
            return f"{grown >> 10} KiB more of weights would be read"
        return ""

    def _take(self, placed: Sequence[Placed], grown: int) -> None:
        lost = self._lost(grown) / len(placed)
        self.room -= grown
        self.grown += grown
        self.taken += [(region, replace(plan, after=plan.after + lost)) for region, plan in placed]


def _sharing(offers: Sequence[Sequence[Placed]]) -> list[tuple[set[str], list[int]]]:
    """Large weights that offers read in common, directly or through others, and the numbers of these offers."""
    groups: list[tuple[set[str], list[int]]] = []
    for number, placed in enumerate(offers):
        read = {n for r, _ in placed for n in r.constant if (r.types[n].nbytes or 0) >= _FEW_BYTES}
        members = [number]
        apart = []
        for names, others in groups:
            if names & read:
                read |= names
                members = others + members
            else:
                apart.append((names, others))
        groups = [*apart, (read, members)]
    return groups
