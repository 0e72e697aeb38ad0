"""Selection of plans in one phase, by their gain and by the weights that they create.

Several regions may have to merge the same weights together: as long as one region reads the parts, the merged weight is
read in addition. Plans of regions with equal signatures are tried together; where that does not pay, plans that share
weights are tried as one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from superopt.program.graph_program import GraphProgram
from superopt.regions.region_egraph import ProgramRegion
from superopt.regions.region_plan import OUTSIDE, Ref, RegionPlan

__all__ = ["RegionPlanSelection", "Placed", "WeightUsage"]


# -- Weights that a program reads ----------------------------------------------------------------------------------
#
# A region does not see the other regions. Where it reads a merged weight in place of two, its own traffic stays equal.
# But if another region still reads the two, an inference reads all three, and a cache that held the old weights may not
# hold the new ones.


class WeightUsage:
    """The weights of one program as its running steps read them."""

    def __init__(self, program: GraphProgram) -> None:
        self._program = program
        self._readers: dict[str, set[int]] = {}
        for position in program.running:
            for name in program.steps[position].reads:
                if name in program.constant:
                    self._readers.setdefault(self._same(name), set()).add(position)
        self._made: dict[Hashable, tuple[str, ...]] = {}  # a computation on weights → the names of its results
        for step in program.steps:
            if program.is_constant(step):
                args = tuple(None if a is None else self._same(a) for a in step.args)
                self._made.setdefault((step.op, step.attributes, args), step.outputs)

    @cached_property
    def bytes(self) -> int:
        """What the running steps read."""
        return sum(self._program.types[n].nbytes or 0 for n in self._readers)

    def grown(self, replacements: Sequence[tuple[ProgramRegion, RegionPlan]]) -> int:
        """Bytes that are read more (or less, if negative) once all of these disjoint regions are replaced."""
        fresh: dict[Hashable, int] = {}
        read: set[Hashable] = set()
        made: dict[Hashable, tuple[Hashable, ...]] = dict(self._made)
        for region, plan in replacements:
            for key, size in self._reads(region, plan, made).items():
                read.add(key)
                if not (isinstance(key, str) and key in self._readers):
                    fresh[key] = size
        gone = {p for region, _ in replacements for p in region.positions}
        freed = [n for n, positions in self._readers.items() if n not in read and positions <= gone]
        return sum(fresh.values()) - sum(self._program.types[n].nbytes or 0 for n in freed)

    def _reads(
        self, region: ProgramRegion, plan: RegionPlan, made: dict[Hashable, tuple[Hashable, ...]]
    ) -> dict[Hashable, int]:
        """The weights that the plan's running pieces read, by name or, if new, by a number; with their bytes.

        Args:
            region: what is replaced.
            plan: by what.
            made: computations on weights → their results; new ones are added. Flat: an operand is a name or a number.
        """
        keys: list[tuple[Hashable, ...]] = []  # of the results of each piece; none where it runs
        found: dict[Hashable, int] = {}
        for piece in plan.nodes:
            args: list[Hashable] = []
            for ref in piece.args:
                key, size = self._weight(region, plan, ref, keys)
                args.append(key)
                if key is not None and not piece.constant:
                    found[key] = size
            new = tuple((len(made), i) for i in range(len(piece.types)))
            keys.append(made.setdefault((piece.op, piece.attributes, tuple(args)), new) if piece.constant else ())
        return found

    def _weight(
        self, region: ProgramRegion, plan: RegionPlan, ref: Ref | None, keys: Sequence[tuple[Hashable, ...]]
    ) -> tuple[Hashable, int]:
        """The weight that a reference is to, and its bytes; ``None`` where it is to none."""
        if ref is None:
            return None, 0
        piece, index = ref
        if piece == OUTSIDE:
            name = region.values[index]
            return (self._same(name), region.types[name].nbytes or 0) if name in region.constant else (None, 0)
        return (keys[piece][index], plan.nodes[piece].types[index].nbytes or 0) if keys[piece] else (None, 0)

    def _same(self, name: str) -> str:
        return self._program.same.get(name, name)


# -- Selection -----------------------------------------------------------------------------------------------------


Placed = tuple[ProgramRegion, RegionPlan]
_FEW_BYTES = 1 << 16  # of new weights, which stay in a core's own cache


@dataclass
class RegionPlanSelection:
    """The plans of one phase, each for a region of its own.

    Attributes:
        weights: of the program as the phase found it.
        reading_us: microseconds that an inference spends on weights that come from memory, by how many bytes it reads.
        room: bytes that weights may grow by; what was taken uses it up.
        taken: what is worth it, with the cost of the new weights counted.
        refused: what is not, with the reason, so far.
        grown: bytes by which weights grow with what was taken.
    """

    weights: WeightUsage
    reading_us: Callable[[int], float]
    room: int
    accepted: list[Placed] = field(default_factory=list)
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

    def accept_jointly(self) -> None:
        """Take those put aside that are worth it together."""
        for read, group in _sharing([placed for placed, _ in self.refused]):
            if len(group) < 2:
                continue
            placed = [p for i in group for p in self.refused[i][0]]
            before = [p for p in self.accepted if not read.isdisjoint(p[0].constant)]
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
        self.accepted += [(region, replace(plan, after=plan.after + lost)) for region, plan in placed]


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
