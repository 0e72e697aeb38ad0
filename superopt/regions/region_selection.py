"""Regions that are no runs of an order: siblings far apart in the graph, and what stands above a selection.

Siblings are applications of one operator that share an operand (an input's products with the gates of a cell, or one
weight's with the inputs of all steps). However far apart they stand, if none depends on another they are convex: no
path leads from one to another. A selection (``Slice``, ``Gather``) can move up through what only it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from superopt.program.program import Program, Step

__all__ = ["SELECTIONS", "selection_regions", "sibling_regions"]

SELECTIONS = frozenset({"Slice", "Gather"})
_MERGED = frozenset({"MatMul", "Gemm"})  # long-distance siblings; those of convolutions stand close together
_MOST_SIBLINGS = 256
_MOST_CHECKED = 64  # regions that are tried one by one where they cannot all be taken
_ABOVE = 100  # operators that are looked at above a selection


def sibling_regions(program: Program) -> list[list[int]]:
    """Sets of mutually independent products that share operands, each with the bias that alone reads it."""
    steps = program.steps
    candidates = [p for p in program.running if steps[p].op in _MERGED]
    buckets: dict[tuple[object, ...], list[int]] = {}
    for position in candidates:
        for key in _shared_operands(program, steps[position]):
            buckets.setdefault(key, []).append(position)
    below = _dependencies(program, candidates)
    groups = [g for members in buckets.values() if len(g := _independent(members, below)) > 1]
    regions: list[list[int]] = []
    taken: set[int] = set()
    for group in _joined(groups, below):
        fresh = [p for p in group if p not in taken]
        if len(fresh) > 1:
            taken.update(fresh)
            regions.append(sorted({*fresh, *_biases(program, fresh)}))
    return _orderly(program, regions)


def _orderly(program: Program, regions: list[list[int]]) -> list[list[int]]:
    """Regions that can all become one operator each: two convex sets may still wait for each other."""
    if _acyclic(program, regions):
        return regions
    kept: list[list[int]] = []
    for region in sorted(regions, key=len, reverse=True)[:_MOST_CHECKED]:
        if _acyclic(program, [*kept, region]):
            kept.append(region)
    return kept


def _acyclic(program: Program, regions: Sequence[Sequence[int]]) -> bool:
    """Whether the program has an order when each region is one step."""
    owner = {p: -1 - i for i, region in enumerate(regions) for p in region}
    waits: dict[int, set[int]] = {}
    readers: dict[int, set[int]] = {}
    for position, step in enumerate(program.steps):
        here = owner.get(position, position)
        mine = waits.setdefault(here, set())
        for name in step.reads:
            maker = program.maker.get(name)
            if maker is not None and (there := owner.get(maker, maker)) != here:
                mine.add(there)
                readers.setdefault(there, set()).add(here)
    missing = {n: len(w) for n, w in waits.items()}
    ready = [n for n, count in missing.items() if not count]
    for here in ready:  # grows while it is read
        for above in readers.get(here, ()):
            missing[above] -= 1
            if not missing[above]:
                ready.append(above)
    return len(ready) == len(waits)


def _shared_operands(program: Program, step: Step) -> Iterator[tuple[object, ...]]:
    for slot, arg in enumerate(step.args[:2]):
        if arg is not None:
            yield step.op, step.attributes, slot, program.same.get(arg, arg)


def _dependencies(program: Program, candidates: Sequence[int]) -> dict[int, int]:
    """For each candidate a bit mask, by number of candidate, of those it depends on, its own bit included."""
    bit = {p: 1 << i for i, p in enumerate(candidates)}
    below: dict[str, int] = {}
    found: dict[int, int] = {}
    for position, step in enumerate(program.steps):
        mask = bit.get(position, 0)
        for name in step.reads:
            mask |= below.get(name, 0)
        if mask:
            below.update((o, mask) for o in step.outputs if o)
        if position in bit:
            found[position] = mask
    return found


def _independent(members: Iterable[int], below: dict[int, int]) -> list[int]:
    """The first members, in execution order, of which none depends on another."""
    chosen: list[int] = []
    own = 0
    for position in members:
        if len(chosen) < _MOST_SIBLINGS and not below[position] & own:
            chosen.append(position)
            own |= 1 << below[position].bit_length() - 1
    return chosen


def _joined(groups: Sequence[Sequence[int]], below: dict[int, int]) -> list[list[int]]:
    """Groups that share members become one, where all of it stays independent; the largest first."""
    found: list[list[int]] = []
    where: dict[int, int] = {}
    for group in sorted(groups, key=len, reverse=True):
        hits = sorted({where[p] for p in group if p in where})
        merged = sorted({*group, *(p for i in hits for p in found[i])})
        if hits and len(merged) <= _MOST_SIBLINGS and len(_independent(merged, below)) == len(merged):
            for i in hits:
                found[i] = []
        elif hits:
            merged = [p for p in group if p not in where]
        where.update((p, len(found)) for p in merged)
        found.append(merged)
    return [g for g in found if len(g) > 1]


def _biases(program: Program, members: Sequence[int]) -> list[int]:
    """Sums with a weight that alone read a member's result."""
    found: list[int] = []
    for position in members:
        name = program.steps[position].outputs[0]
        readers = program.readers.get(name, ())
        if len(readers) == 1 and name not in program.pinned:
            reader = program.steps[readers[0]]
            if reader.op == "Add" and all(a == name or a in program.constant for a in reader.args):
                found.append(readers[0])
    return found


def selection_regions(program: Program) -> list[list[int]]:
    """For each selection, what stands above it and is read by nothing else: where it can be done earlier."""
    regions: list[list[int]] = []
    taken: set[int] = set()
    running = set(program.running)
    for position in reversed(program.running):
        step = program.steps[position]
        if step.op not in SELECTIONS or position in taken or step.args[0] is None or step.args[0] in program.constant:
            continue
        cone = _above(program, position, running)
        if len(cone) > 1:
            taken |= cone
            regions.append(sorted(cone))
    return regions


def _above(program: Program, position: int, running: set[int]) -> set[int]:
    """Steps whose results only the cone reads, nearest first, so that every part of it is convex."""
    cone = {position}
    waiting = [position]
    while waiting and len(cone) < _ABOVE:
        here = max(waiting)  # the latest first: all its readers are decided
        waiting.remove(here)
        for name in program.steps[here].reads:
            maker = program.maker.get(name)
            if maker is None or maker in cone or maker not in running or program.steps[maker].op == "":
                continue
            outputs = [o for o in program.steps[maker].outputs if o]
            if all(o not in program.pinned and set(program.readers.get(o, ())) <= cone for o in outputs):
                cone.add(maker)
                waiting.append(maker)
    return cone
