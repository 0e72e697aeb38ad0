"""What is alive while regions of operators are computed slice by slice, in two accounts of what leaves a region.

*Written into place*: a region's result is one piece of memory from its first slice on, into which slices are written,
as MAGIS's published simulator has it. *Joined*: slices lie by themselves until the last is made, and are then
concatenated beside the whole, as in ONNX Runtime, of whose kernels none writes a part of its result.
"""

from __future__ import annotations

from collections.abc import Sequence

from superopt.memory import Step, Task

__all__ = ["Group", "alive_in_slices"]

Group = tuple[int, int]  # a region, and its number of slices


def alive_in_slices(
    task: Task,
    steps: Sequence[Step],
    original: Sequence[int],
    groups: Sequence[Group | None],
    whole: Sequence[int] | None = None,
) -> tuple[int, tuple[int, ...]]:
    """The most bytes that are alive at once, and the steps at which: all of a region's where it is within one.

    Args:
        task: without views.
        steps: in order of execution, those of a region together.
        original: for each value which of the task's it is or repeats.
        groups: of each step, the region that it is in.
        whole: bytes of each of the task's values, wherever they lie, for slices to be joined; ``None``: they are
            written into place.
    """
    first: dict[Group, int] = {}
    last: dict[Group, int] = {}
    for at, group in enumerate(groups):
        if group is not None:
            first.setdefault(group, at)
            last[group] = at
    start: dict[int, int] = {}
    end: dict[int, int] = {}
    readers: dict[int, set[Group | None]] = {}
    for at, (step, group) in enumerate(zip(steps, groups, strict=True)):
        for value in step.makes:
            start[value] = end[value] = at
        for value in step.reads:
            end[value] = at
            readers.setdefault(value, set()).add(group)
    change = [0.0] * (2 * len(steps) + 1)  # at each step, and after it, where slices are joined

    def add(size: float, begin: int, until: int) -> None:
        change[begin] += size
        change[until + 1] -= size

    beside: dict[Group, float] = {}
    for value, begun in start.items():
        size, group, by = float(task.sizes[original[value]]), groups[begun], readers.get(value, set())
        if group is not None and by == {group} and value not in task.results:
            add(size / group[1], 2 * begun, 2 * end[value])
            continue
        until = max([end[value], *(last[g] for g in by if g is not None)])
        until = len(steps) - 1 if value in task.results else until
        if group is None:
            add(size, 2 * begun, 2 * until)
        elif whole is None:
            add(size, 2 * first[group], 2 * until)
        else:
            parts, join = float(whole[original[value]]), 2 * last[group] + 1
            add(parts * (group[1] - 1) / group[1], 2 * first[group], join)  # of the slices before the last
            add(parts / group[1], 2 * begun, join)
            add(size, join + 1, max(2 * until, join))
            beside[group] = max(beside.get(group, 0.0), size)  # one after the other
    for group, size in beside.items():
        add(size, 2 * last[group] + 1, 2 * last[group] + 1)
    most, alive, at = 0.0, 0.0, 0
    for place, more in enumerate(change):
        alive += more
        if alive > most:
            most, at = alive, place // 2
    group = groups[at] if groups else None
    return int(most), (at,) if group is None else tuple(range(first[group], last[group] + 1))
