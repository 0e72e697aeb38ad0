"""What replacing regions does to the weights that a program reads: copies of shared weights are read once more each.

A region sees only itself: where it reads a merged weight instead of two, nothing grows. But if another region goes on
reading the two, an inference now reads them all, and a cache that held the old ones may not hold the new ones.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property

from superopt.program.program import Program
from superopt.regions.lowering import Region
from superopt.regions.plan import OUTSIDE, Plan, Ref

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

    @cached_property
    def bytes(self) -> int:
        """What the running steps read."""
        return sum(self._program.types[n].nbytes or 0 for n in self._readers)

    def grown(self, replacements: Sequence[tuple[Region, Plan]]) -> int:
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

    def _reads(self, region: Region, plan: Plan, made: dict[Hashable, tuple[Hashable, ...]]) -> dict[Hashable, int]:
        """The weights that the plan's running pieces read, by name or, if new, by a number; with their bytes.

        Args:
            region: what is replaced.
            plan: by what.
            made: computations on weights → their results; new ones are added. Flat: an operand is a name or a number.
        """
        keys: list[tuple[Hashable, ...]] = []  # of the results of each piece; none where it runs
        found: dict[Hashable, int] = {}
        for piece in plan.pieces:
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
        self, region: Region, plan: Plan, ref: Ref | None, keys: Sequence[tuple[Hashable, ...]]
    ) -> tuple[Hashable, int]:
        """The weight that a reference is to, and its bytes; ``None`` where it is to none."""
        if ref is None:
            return None, 0
        piece, index = ref
        if piece == OUTSIDE:
            name = region.values[index]
            return (self._same(name), region.types[name].nbytes or 0) if name in region.constant else (None, 0)
        return (keys[piece][index], plan.pieces[piece].types[index].nbytes or 0) if keys[piece] else (None, 0)

    def _same(self, name: str) -> str:
        return self._program.same.get(name, name)
