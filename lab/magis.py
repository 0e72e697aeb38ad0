"""MAGIS (Chen et al., ASPLOS 2024) re-implemented as a baseline, on superopt's own graphs, prices and bytes.

After the paper: a *dimension graph* says which axes of values go together through operators; its components give
regions that can be computed slice by slice, nested by dominance (the *fission hierarchy tree*), each with a number of
parts. States are a graph with copies, parts and a schedule; the best in a priority queue is taken, all of its
neighbours are made: a tensor of the hot spot (alive where most is) is made again before its next reader, a copy is
merged again, a region has more parts, or one. Only what a change touches is scheduled anew. What was seen is left out
(by a hash), and what is worse than the best by a factor of 1.1 is not kept. States are compared by how far their
latency exceeds what is allowed, then by bytes.

Not the same as theirs: nothing is swapped (there is no slower memory beside the processor's), graph rewrites of TASO
are left out on both sides, nested regions are not open at once, and a part of an operator takes its share of the time
and the shortest kernel's time besides, where they look up a measurement. Theirs schedules by dynamic programming; here
the order stands but for what is moved, and regions are drawn together.

It is searched twice: with a region's result written into its place part by part, as their simulator counts it, and in
the account by which superopt's plans are counted and ONNX Runtime runs either's, where parts lie beside the whole while
they are concatenated (:mod:`lab.sliced`; parts of a sum are counted no dearer). They differ where a result
that lies elsewhere (a weight's update) is computed in parts.

Seconds are of the processor, so that load favours neither side: superopt has a budget that counts work and takes what
it takes; MAGIS has the seconds that it is given, and as many as superopt took where those are more.

    python -m lab.magis corpus/tiny/MODEL.json … --seconds 180
"""

from __future__ import annotations

import argparse
import heapq
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf
from pathlib import Path

from lab.dimensions import Region, regions_of
from lab.sliced import alive_in_slices
from superopt import formats
from superopt.cost import CostModel, for_target
from superopt.frontend.training import train_step
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph
from superopt.ir.types import TensorType
from superopt.memory import ROWS, Planned, Step, Task, as_given, plain
from superopt.ops.record import NotCovered
from superopt.pipeline.fission import Fissioned
from superopt.pipeline.rematerialization import Writing
from superopt.runtime.sample_data import with_values

__all__ = ["Row", "State", "compared", "main", "planned_task", "rendered", "search"]

_TARGET = "profile:cpu-epyc-2core"
_WORSE = 1.1  # than the best, up to which states are kept
_PARTS = (2, 4, 8, 16)
_HOT = 24  # tensors of the hot spot, the largest first, and regions, that neighbours are made of


@dataclass(frozen=True)
class State:
    """A schedule with copies, and regions with their parts; what it takes and needs."""

    steps: tuple[Step, ...]
    original: tuple[int, ...]
    parts: tuple[tuple[int, int], ...]  # (region, its number of parts)
    us: float
    peak: int
    hot: tuple[int, ...]  # positions in ``steps`` that are executed where most is alive

    @property
    def key(self) -> int:
        """Equal for states that are the same."""
        return hash((self.parts, tuple((s.op, tuple(self.original[v] for v in s.reads)) for s in self.steps)))


@dataclass
class _Scheduler:
    """Steps with regions drawn together, and what they take."""

    task: Task
    regions: Sequence[Region]
    whole: Sequence[int] | None

    def __post_init__(self) -> None:
        self.short = min((op.us for op in self.task.ops if op.us > 0.0), default=0.0)
        self.maker = {v: i for i, op in enumerate(self.task.ops) for v in op.makes}

    def state(
        self, steps: Sequence[Step], original: tuple[int, ...], parts: tuple[tuple[int, int], ...]
    ) -> State | None:
        """What these take; ``None`` where no order keeps regions together."""
        order = self._together(steps, parts) if parts else list(range(len(steps)))
        if order is None:
            return None
        ordered = [steps[i] for i in order]
        us = sum(self.task.ops[s.op].us for s in steps)
        group = {i: (r, n) for r, n in parts for i in self.regions[r].ops}
        us += sum((n - 1) * self.short for r, n in parts for i in self.regions[r].ops if self.task.ops[i].us > 0.0)
        groups = [group.get(s.op) if s.makes == self.task.ops[s.op].makes else None for s in ordered]
        peak, hot = alive_in_slices(self.task, ordered, original, groups, self.whole)
        return State(tuple(ordered), original, parts, us, peak, hot)

    def _together(self, steps: Sequence[Step], parts: Sequence[tuple[int, int]]) -> list[int] | None:
        """An order in which regions are not interrupted, else as given."""
        of = {i: r for r, _ in parts for i in self.regions[r].ops}
        node = [f"r{of[s.op]}" if s.op in of and s.makes == self.task.ops[s.op].makes else str(i)
                for i, s in enumerate(steps)]  # fmt: skip
        members: dict[str, list[int]] = {}
        for i, name in enumerate(node):
            members.setdefault(name, []).append(i)
        maker = {v: i for i, s in enumerate(steps) for v in s.makes}
        needs: dict[str, set[str]] = {n: set() for n in members}
        after: dict[str, set[str]] = {n: set() for n in members}
        for i, step in enumerate(steps):
            for value in step.reads:
                source = node[maker[value]]
                if source != node[i]:
                    needs[node[i]].add(source)
                    after[source].add(node[i])
        place = {n: m[0] if len(m) == 1 else m[-1] for n, m in members.items()}
        ready = [(place[n], n) for n, before in needs.items() if not before]
        heapq.heapify(ready)
        order: list[int] = []
        while ready:
            _, name = heapq.heappop(ready)
            order += members[name]
            for reader in after[name]:
                needs[reader].discard(name)
                if not needs[reader]:
                    heapq.heappush(ready, (place[reader], reader))
        return order if len(order) == len(steps) else None

    def neighbours(self, state: State) -> Iterator[State]:
        """States one rule away, at the hot spot."""
        yield from filter(None, self._again(state))
        yield from filter(None, self._merged(state))
        yield from filter(None, self._split(state))

    def _again(self, state: State) -> Iterator[State | None]:
        low, high = state.hot[0], state.hot[-1]
        made = {v: (i, s) for i, s in enumerate(state.steps[:low]) for v in s.makes}
        later: dict[int, int] = {}
        for i in range(high + 1, len(state.steps)):
            for value in state.steps[i].reads:
                later.setdefault(value, i)
        found = [v for v in later if v in made and self.task.ops[made[v][1].op].repeatable]
        found.sort(key=lambda v: -self.task.sizes[state.original[v]])
        for value in found[:_HOT]:
            step, at = made[value][1], later[value]
            makes = tuple(range(len(state.original), len(state.original) + len(step.makes)))
            renamed = dict(zip(step.makes, makes, strict=True))
            rest = [Step(s.op, tuple(renamed.get(v, v) for v in s.reads), s.makes) for s in state.steps[at:]]
            steps = [*state.steps[:at], Step(step.op, step.reads, makes), *rest]
            original = (*state.original, *(state.original[v] for v in step.makes))
            yield self.state(steps, original, state.parts)

    def _merged(self, state: State) -> Iterator[State | None]:
        copies = [i for i, s in enumerate(state.steps) if s.makes != self.task.ops[s.op].makes]
        copies.sort(key=lambda i: -self.task.ops[state.steps[i].op].us)
        for at in copies[:_HOT]:
            gone = state.steps[at]
            earlier = {state.original[v]: v for s in state.steps[:at] for v in s.makes}
            if any(state.original[v] not in earlier for v in gone.makes):
                continue  # regions drawn together come after it
            renamed = {v: earlier[state.original[v]] for v in gone.makes}
            steps = [
                Step(s.op, tuple(renamed.get(v, v) for v in s.reads), s.makes) for s in state.steps if s is not gone
            ]
            yield self.state(steps, state.original, state.parts)

    def _split(self, state: State) -> Iterator[State | None]:
        hot = {state.steps[i].op for i in state.hot}
        parts = dict(state.parts)
        taken = {i for r in parts for i in self.regions[r].ops}
        tried = 0
        for number, region in enumerate(self.regions):
            own, inside = parts.get(number, 1), set(region.ops)
            if tried >= _HOT or not inside & hot or (own == 1 and inside & taken):
                continue
            tried += 1
            more = [n for n in _PARTS if n > own and n <= region.most][:1] + ([1] if own > 1 else [])
            for n in more:
                new = tuple(sorted(p for p in {**parts, number: n}.items() if p[1] > 1))
                yield self.state(state.steps, state.original, new)


def search(
    task: Task,
    regions: Sequence[Region],
    *,
    share: float,
    seconds: float = inf,
    most: int | None = None,
    whole: Sequence[int] | None = None,
) -> tuple[State, int]:
    """MAGIS's search for the least bytes at once within a latency.

    Args:
        task: without views.
        regions: its ops', by their positions.
        share: of the time, that may be taken besides.
        seconds: of the processor, after which it ends.
        most: states to make, after which it ends.
        whole: bytes of each value, for slices to be joined as ONNX Runtime does; ``None``: written into place
            (:mod:`lab.sliced`).

    Returns:
        The best state, and how many were made.
    """
    start, scheduler = time.process_time(), _Scheduler(task, regions, whole)
    first = scheduler.state([Step(i, op.reads, op.makes) for i, op in enumerate(task.ops)],
                            tuple(range(len(task.sizes))), ())  # fmt: skip
    assert first is not None
    allowed = first.us * (1.0 + share)

    def rank(state: State) -> tuple[float, float]:
        return max(state.us, allowed), state.peak

    best, seen, ticket = first, {first.key}, count()
    queue = [(rank(first), next(ticket), first)]
    while queue and time.process_time() - start < seconds and (most is None or len(seen) < most):
        state = heapq.heappop(queue)[2]
        for other in scheduler.neighbours(state):
            if other.key in seen:
                continue
            seen.add(other.key)
            if rank(other) < rank(best):
                best = other
            if max(other.us, allowed) <= allowed * _WORSE and other.peak <= best.peak * _WORSE:
                heapq.heappush(queue, (rank(other), next(ticket), other))
            if time.process_time() - start > seconds:
                break
    return best, len(seen)


def planned_task(planned: Planned) -> tuple[Task, list[Region]]:
    """The task without views, and the regions of its ops."""
    own = [i for i, op in enumerate(planned.task.ops) if not op.view]
    place = {op: i for i, op in enumerate(own)}
    found = {tuple(place[i] for i in r.ops if i in place): r.most for r in regions_of(planned)}
    return plain(planned.task), [Region(ops, most) for ops, most in found.items() if len(ops) > 1]


class _Alike(Writing):
    """Plans at the prices of :class:`_Scheduler`: each further part of an operator takes the shortest kernel's time.

    Nothing is written, so that planning has all of the time.
    """

    planning = 0.5

    def price(self, made: Fissioned, planned: Planned) -> float:
        """Microseconds beyond those of the graph given; of a region, what only renames memory counts as well."""
        short = min((op.us for op in self.planned.task.ops if op.us > 0.0), default=0.0)
        return short * sum((r.parts - 1) * len(r.nodes) for r in made.regions)


@dataclass(frozen=True)
class Found:
    """What MAGIS found: the least bytes at once as a share of those as given, regions in parts, copies, states made."""

    bytes: float
    parts: int
    copies: int
    states: int


@dataclass(frozen=True)
class Row:
    """A model's least bytes at once within a latency, as shares of what it takes as given; seconds of the processor."""

    model: str
    ops: int
    given: int
    ours: float
    ours_seconds: float
    joined: Found
    published: Found


def compared(name: str, graph: Graph, model: CostModel, *, share: float, seconds: float, rows: int = ROWS) -> Row:
    """A model by both: the plans of ``--objective pareto``, before they are written, and MAGIS's in both accounts.

    Args:
        name: of the model.
        graph: it.
        model: prices.
        share: of the time, that may be taken besides.
        seconds: of the processor, for MAGIS in each account; it has as many as superopt took, at least.
        rows: of linear programs, for superopt.

    Raises:
        NotCovered: a size has to be known.
    """
    start = time.process_time()
    writing = _Alike(graph, model, {}, inf, rows)
    task, total = writing.planned.task, writing.us
    given = as_given(task).peak
    plans = [plan for plan in writing.plans() if plan.us <= share * total]
    took = time.process_time() - start
    ours = min([given, *(plan.peak for plan in plans)])
    theirs, regions = planned_task(writing.planned)

    def found(whole: Sequence[int] | None) -> Found:
        state, made = search(theirs, regions, share=share, seconds=max(seconds, took), whole=whole)
        return Found(state.peak / given, len(state.parts), len(state.steps) - len(theirs.ops), made)

    joined, published = found(whole_bytes(writing.planned)), found(None)
    return Row(name, len(theirs.ops), given, ours / given, took, joined, published)


def whole_bytes(planned: Planned) -> list[int]:
    """Bytes of each value, results that lie elsewhere among them."""
    kinds = [planned.types.get(name) for name in planned.names]
    return [(kind.nbytes or 0) if isinstance(kind, TensorType) else 0 for kind in kinds]


def rendered(rows: Sequence[Row], share: float) -> str:
    """A table in Markdown."""
    lines = [
        f"| model | operators | alive at once | superopt, ≤ {1 + share:.2f} × time | in | MAGIS, parts joined | "
        "regions split, copies | states | MAGIS, written into place | regions split, copies | states |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for r in rows:
        theirs = " | ".join(
            f"{f.bytes:.3f} | {f.parts}, {f.copies} | {f.states:,}" for f in (r.joined, r.published)
        )  # fmt: skip
        lines.append(f"| {r.model} | {r.ops} | {r.given:,} | {r.ours:.3f} | {r.ours_seconds:.0f} s | {theirs} |")
    joined = sum(r.ours < r.joined.bytes for r in rows)
    published = sum(r.ours < r.published.bytes for r in rows)
    said = f"Ahead on {joined} of {len(rows)} where parts are joined, on {published} where they are written into place."
    return "\n".join([*lines, "", said, ""])


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare models and write the table.

    Args:
        arguments: see ``--help``.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="files; FILE:train for its training step (mean squares, SGD)")
    parser.add_argument("--share", type=float, default=0.10, help="of the time, that may be taken besides")
    parser.add_argument("--seconds", type=float, default=180.0, help="of the processor, for MAGIS at least")
    parser.add_argument("--rows", type=int, default=ROWS, help="of linear programs, for superopt's plans")
    given = parser.parse_args(arguments)
    rows = []
    for name in given.models:
        path, _, train = name.partition(":")
        try:
            graph = with_values(formats.load(Path(path)))
            graph = train_step(graph, "mse", "sgd").graph if train else graph
            with for_target(_TARGET) as model:
                rows.append(compared(Path(path).stem + (", step" if train else ""), graph, model, share=given.share,
                                     seconds=given.seconds, rows=given.rows))  # fmt: skip
        except (SuperoptError, NotCovered) as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        print(rows[-1], file=sys.stderr, flush=True)
    print(rendered(rows, given.share))


if __name__ == "__main__":
    main()
