"""What replacing regions does to the weights that a program reads: copies of shared weights are read once more each.

A region sees only itself: where it reads a merged weight instead of two, nothing grows. But if another region goes on
reading the two, an inference now reads them all, and a cache that held the old ones may not hold the new ones.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from superopt.search.lower import Region
from superopt.search.plan import OUTSIDE, Plan
from superopt.search.program import Program

__all__ = ["Weights"]


class Weights:
    """The weights of one program as its running steps read them."""

    def __init__(self, program: Program) -> None:
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

    def grown(self, replacements: Sequence[tuple[Region, Plan]]) -> int:
        """Bytes that are read more (or less, if negative) once all of these disjoint regions are replaced."""
        fresh: dict[Hashable, int] = {}
        read: set[Hashable] = set()
        for region, plan in replacements:
            for key, size in self._reads(region, plan).items():
                read.add(key)
                if not (isinstance(key, str) and key in self._readers):
                    fresh[key] = size
        gone = {p for region, _ in replacements for p in region.positions}
        freed = [n for n, positions in self._readers.items() if n not in read and positions <= gone]
        return sum(fresh.values()) - sum(self._program.types[n].nbytes or 0 for n in freed)

    def _reads(self, region: Region, plan: Plan) -> dict[Hashable, int]:
        """The weights that the plan's running pieces read, with their bytes: a name, or what computes it."""
        keys: list[tuple[Hashable, ...]] = []
        found: dict[Hashable, int] = {}
        for piece in plan.pieces:
            args: list[Hashable] = []
            for ref in piece.args:
                if ref is None:
                    args.append(None)
                elif ref[0] != OUTSIDE:
                    args.append(keys[ref[0]][ref[1]])
                else:
                    args.append(self._same(region.values[ref[1]]))
                if ref is None or piece.constant:
                    continue
                if ref[0] != OUTSIDE and plan.pieces[ref[0]].constant:
                    found[args[-1]] = plan.pieces[ref[0]].types[ref[1]].nbytes or 0
                elif ref[0] == OUTSIDE and (name := region.values[ref[1]]) in region.constant:
                    found[args[-1]] = region.types[name].nbytes or 0
            what = (piece.op, piece.attributes, tuple(args))
            keys.append(self._made.get(what) or tuple((what, i) for i in range(len(piece.types))))
        return found

    def _same(self, name: str) -> str:
        return self._program.same.get(name, name)
