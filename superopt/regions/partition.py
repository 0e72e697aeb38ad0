"""Partition of a program into regions that are small enough to search.

A region is a run of the steps in some order, so it is convex. A cut costs the values that cross it, and more where it
separates readers of one value (siblings that a rule may merge) or two operators that stand one above the other in a
rule. Dynamic programming finds the cheapest cuts. Repeated layers are cut alike, so each kind is searched once. Phases
use different orders and avoid each other's cuts.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from superopt.program.graph_program import GraphProgram, ProgramStep

__all__ = ["SELECTIONS", "WINDOW", "cut", "level_order", "segments", "selection_regions", "sibling_regions"]


WINDOW = 60  # operators in a region


@dataclass(frozen=True)
class PartitionPolicy:
    """The numbers that decide where a program is cut into regions.

    Attributes:
        severed_siblings: price of cutting between operators that read one value and could be merged, in values that
            cross a cut.
        severed_match: price of cutting between two operators that a pattern matches together.
        severed_fusion: price of cutting what the backend runs as one kernel: apart, a change of one could undo that
            unseen.
        repeated_cut: price of cutting again where an earlier phase cut.
        repetition_steps: steps in a row that are alike at two places: maybe a repetition.
        periods: distances between such places that are looked at, the most frequent ones.
        repetitions: times that something repeats at least, to be cut alike.
        anchors: places of a period at which cutting may begin, the cheapest ones.
        siblings: operators that are merged at most: each candidate is compared with all of them.
        checked_regions: regions that are tried one by one where they cannot all be taken.
        selection_steps: operators that are looked at above a selection.
    """

    severed_siblings: float = 2.0
    severed_match: float = 1.5
    severed_fusion: float = 100.0
    repeated_cut: float = 3.0
    repetition_steps: int = 6
    periods: int = 12
    repetitions: int = 2
    anchors: int = 6
    siblings: int = 256
    checked_regions: int = 64
    selection_steps: int = 100


POLICY = PartitionPolicy()


def level_order(program: GraphProgram) -> list[int]:
    """Running steps by depth: parallel branches lie side by side."""
    depth: dict[str, int] = {}
    level: dict[int, int] = {}
    for position, step in enumerate(program.steps):
        here = 1 + max((depth.get(n, 0) for n in step.reads), default=0)
        level[position] = here
        depth.update((o, here) for o in step.outputs if o)
    return sorted(program.running, key=lambda p: (level[p], p))


def segments(program: GraphProgram, order: Iterable[int]) -> list[list[int]]:
    """Maximal runs without barriers."""
    found: list[list[int]] = [[]]
    for position in order:
        if program.steps[position].op == "":
            found.append([])
        else:
            found[-1].append(position)
    return [s for s in found if s]


def cut(
    program: GraphProgram, order: Sequence[int], adjacent: frozenset[tuple[str, str]], window: int,
    avoid: frozenset[str] = frozenset(), fused: Callable[[str, str], bool] = lambda producer, reader: False,
) -> tuple[list[list[int]], frozenset[str]]:  # fmt: skip
    """Regions as positions of steps, and the cuts made (each by the name of the value made just before it).

    Args:
        program: where the steps stand.
        order: positions of its running steps in an execution order.
        adjacent: (operator, operator that reads it) pairs that occur in rules.
        window: most operators of a region.
        avoid: cuts of an earlier phase.
        fused: whether the backend runs an operator and its only reader as one.
    """
    regions: list[list[int]] = []
    cuts: set[str] = set()
    for run in segments(program, order):
        price = _cut_prices(program, run, adjacent, avoid, fused)
        bounds = _bounds(price, window, _repetitions([_kind(program, p) for p in run]))
        for start, end in pairwise(bounds):
            regions.append(sorted(run[start:end]))
            if end < len(run):
                cuts.add(_mark(program, run[end - 1]))
    return regions, frozenset(cuts)


def _mark(program: GraphProgram, position: int) -> str:
    return next((o for o in program.steps[position].outputs if o), "")


def _cut_prices(
    program: GraphProgram, run: Sequence[int], adjacent: frozenset[tuple[str, str]], avoid: frozenset[str],
    fused: Callable[[str, str], bool],
) -> list[float]:  # fmt: skip
    """The price of a cut before each place of a run, and 0 at its end; by differences, in one pass."""
    place = {position: i for i, position in enumerate(run)}
    change = [0.0] * (len(run) + 2)

    def between(first: int, last: int, price: float) -> None:
        change[first + 1] += price
        change[last + 1] -= price

    for position in run:
        step = program.steps[position]
        for output in step.outputs:
            readers = sorted(place[r] for r in program.readers.get(output, ()) if r in place)
            if not readers:
                continue
            between(place[position], readers[-1], 1.0)
            if len(readers) == 1 and fused(step.op, program.steps[run[readers[0]]].op):
                between(place[position], readers[0], POLICY.severed_fusion)
            if len(readers) > 1:
                between(readers[0], readers[-1], POLICY.severed_siblings)
            for reader in readers:
                if (step.op, program.steps[run[reader]].op) in adjacent:
                    between(place[position], reader, POLICY.severed_match)
    _shared_inputs(program, run, place, between)
    prices: list[float] = []
    level = 0.0
    for i in range(len(run) + 1):
        level += change[i]
        again = i > 0 and _mark(program, run[i - 1]) in avoid
        prices.append(0.5 + level + (POLICY.repeated_cut if again else 0.0))
    prices[0] = prices[-1] = 0.0
    return prices


def _shared_inputs(program: GraphProgram, run: Sequence[int], place: dict[int, int], between) -> None:  # type: ignore[no-untyped-def]
    """Siblings that read one value from outside the run, such as parallel branches on the model's input."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for position in run:
        for name in program.steps[position].reads:
            if program.maker.get(name) not in place and name not in program.constant:
                first.setdefault(name, place[position])
                last[name] = place[position]
    for name, start in first.items():
        if 0 < last[name] - start < WINDOW:
            between(start, last[name], POLICY.severed_siblings)


def _kind(program: GraphProgram, position: int) -> Hashable:
    """What a step is, wherever it stands."""
    step = program.steps[position]
    return step.op, step.attributes, tuple(program.types.get(o) for o in step.outputs)


def _repetitions(kinds: Sequence[Hashable]) -> list[tuple[int, int, int]]:
    """Disjoint stretches ``[start, end)`` in which everything comes again after ``period`` places, in order."""
    names: dict[Hashable, int] = {}
    row = [names.setdefault(k, len(names)) for k in kinds]
    last: dict[tuple[int, ...], int] = {}
    distances: Counter[int] = Counter()
    for i in range(len(row) - POLICY.repetition_steps + 1):
        alike = tuple(row[i : i + POLICY.repetition_steps])
        if alike in last:
            distances[i - last[alike]] += 1
        last[alike] = i
    found: list[tuple[int, int, int]] = []
    for period, _ in distances.most_common(POLICY.periods):
        start = 0
        for i in range(len(row) - period + 1):
            if i == len(row) - period or row[i] != row[i + period]:
                if i + period - start >= POLICY.repetitions * period:
                    found.append((start, i + period, period))
                start = i + 1
    chosen: list[tuple[int, int, int]] = []
    for start, end, period in sorted(found, key=lambda r: (r[0] - r[1], r[2])):
        if all(end <= s or start >= e for s, e, _ in chosen):
            chosen.append((start, end, period))
    return sorted(chosen)


def _bounds(price: Sequence[float], window: int, repetitions: Sequence[tuple[int, int, int]]) -> list[int]:
    """Bounds of regions of at most ``window``: as cheap as can be, and the same in all repetitions."""
    fixed = [0]
    for start, end, period in repetitions:
        if end - start > window:
            fixed += _periodic_cuts(price, window, start, end, period)
    fixed.append(len(price) - 1)
    bounds = [0]
    for first, last in pairwise(fixed):
        bounds += [first + b for b in _cheapest(price[first : last + 1], window)[1:]]
    return bounds


def _periodic_cuts(price: Sequence[float], window: int, start: int, end: int, period: int) -> list[int]:
    """The cheapest cuts of a stretch that come again after one period, or after as many as fit into a window."""
    middle = start + (end - start) // period // 2 * period
    best, chosen = float("inf"), list[int]()
    for times in range(1, max(1, window // period) + 1):
        unit = times * period
        if end - start < POLICY.repetitions * unit:
            break
        origin = min(middle, end - unit - period)
        for anchor in sorted(range(origin, origin + period), key=lambda i: price[i])[: POLICY.anchors]:
            inner = [anchor + b for b in _cheapest(price[anchor : anchor + unit + 1], window)]
            mean = sum(price[i] for i in inner[:-1]) / times
            if mean < best - 1e-9:
                back = (anchor - start) // unit
                steps = range(-back, (end - anchor) // unit + 1)
                best = mean
                chosen = [i for k in steps for b in inner[:-1] if start <= (i := b + k * unit) <= end]
    return [i for i in dict.fromkeys(chosen) if 0 < i < len(price) - 1]


def _cheapest(price: Sequence[float], window: int) -> list[int]:
    """Bounds of runs of at most ``window`` with the least total price; sliding-window minimum, O(n)."""
    count = len(price) - 1
    best = [0.0] * (count + 1)
    back = [0] * (count + 1)
    queue: deque[int] = deque([0])
    for end in range(1, count + 1):
        while queue[0] < end - window:
            queue.popleft()
        back[end] = queue[0]
        best[end] = best[queue[0]] + price[end]
        while queue and best[queue[-1]] > best[end]:
            queue.pop()
        queue.append(end)
    bounds = [count]
    while bounds[-1] > 0:
        bounds.append(back[bounds[-1]])
    return bounds[::-1]


# -- Regions that are no runs of an order --------------------------------------------------------------------------
#
# Siblings are applications of one operator that share an operand: the products of an input with the gates of a cell, or
# of one weight with the inputs of all steps. Siblings of which none depends on another are convex however far apart
# they are. A selection (``Slice``, ``Gather``) can move up through the operators that only it reads.


SELECTIONS = frozenset({"Slice", "Gather"})
_MERGED = frozenset({"MatMul", "Gemm"})  # long-distance siblings; those of convolutions stand close together


def sibling_regions(program: GraphProgram) -> list[list[int]]:
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


def _orderly(program: GraphProgram, regions: list[list[int]]) -> list[list[int]]:
    """Regions that can all become one operator each: two convex sets may still wait for each other."""
    if _acyclic(program, regions):
        return regions
    kept: list[list[int]] = []
    for region in sorted(regions, key=len, reverse=True)[: POLICY.checked_regions]:
        if _acyclic(program, [*kept, region]):
            kept.append(region)
    return kept


def _acyclic(program: GraphProgram, regions: Sequence[Sequence[int]]) -> bool:
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


def _shared_operands(program: GraphProgram, step: ProgramStep) -> Iterator[tuple[object, ...]]:
    for slot, arg in enumerate(step.args[:2]):
        if arg is not None:
            yield step.op, step.attributes, slot, program.same.get(arg, arg)


def _dependencies(program: GraphProgram, candidates: Sequence[int]) -> dict[int, int]:
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
        if len(chosen) < POLICY.siblings and not below[position] & own:
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
        if hits and len(merged) <= POLICY.siblings and len(_independent(merged, below)) == len(merged):
            for i in hits:
                found[i] = []
        elif hits:
            merged = [p for p in group if p not in where]
        where.update((p, len(found)) for p in merged)
        found.append(merged)
    return [g for g in found if len(g) > 1]


def _biases(program: GraphProgram, members: Sequence[int]) -> list[int]:
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


def selection_regions(program: GraphProgram) -> list[list[int]]:
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


def _above(program: GraphProgram, position: int, running: set[int]) -> set[int]:
    """Steps whose results only the cone reads, nearest first, so that every part of it is convex."""
    cone = {position}
    waiting = [position]
    while waiting and len(cone) < POLICY.selection_steps:
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
