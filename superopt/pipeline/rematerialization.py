"""Graphs written for less memory, by computing values again or in parts, judged by what ONNX Runtime takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from superopt import report
from superopt.cost import CostModel
from superopt.cost.graph_costs import task_of, work
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph, structural_hash
from superopt.memory.remat import ROWS, front
from superopt.memory.rematerialization_graph import RematerializationInputGraph
from superopt.memory.rematerialization_schedule import RematerializationSchedule, original_timetable
from superopt.memory.runtime_memory_planner import block_of
from superopt.memory.size_hiding import OPSET
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.ops.shape_inference import infer
from superopt.pipeline.acceptance_policy import POLICY, doubt_of, too_slow_for_memory
from superopt.pipeline.activation_memory_reduction import arena_block, least_memory
from superopt.pipeline.memory_timeline import footprint
from superopt.pipeline.options import EFFORTS, Options, Progress
from superopt.pipeline.rematerialization_lowering import RematerializedGraph, realised
from superopt.pipeline.report_notes import ReportNotes
from superopt.report.quantities import bytes_text
from superopt.runtime.paired_measurement import PairedMeasurement
from superopt.runtime.resource_limits import LARGE

if TYPE_CHECKING:
    from superopt.pipeline.fission import FissionedGraph

__all__ = ["MemoryTradeoffPoint", "for_memory", "smallest_points", "points"]


@dataclass(frozen=True)
class RematerializationPolicy:
    """The numbers that decide which plans are written for less memory.

    Attributes:
        front_shares: shares of the time, computed again, at which the front is written.
        planning_share: of the time left, that each way of planning may take.
        time_share, longest: of the time left, and seconds, that writing for memory may take, at most. Timing and the
            checks come after.
        recomputation_share: of the modelled time, that computing again may take where the least memory is wanted.
        limit_share: of a limit, that plans aim at: in its first run ONNX Runtime has no block yet, and its arena has
            gaps.
        fission_doubt: times the recomputation share, for regions computed in parts whose time is measured afterwards:
            parts that stay in the cache took 0.86 to 1.1 of their modelled time.
        near: times the bytes alive in a plan: no other order is tried where the block is no larger.
        attempts: plans that are written, at most, to meet a limit or to stay within a time.
    """

    front_shares: tuple[float, ...] = (0.02, 0.05, 0.10, 0.15, 0.25, 0.50)
    planning_share: float = 0.3
    time_share: float = 0.6
    longest: float = 180.0
    recomputation_share: float = 0.10
    limit_share: float = 0.8
    fission_doubt: float = 2.0
    near: float = 1.25
    attempts: int = 5


PLANS = RematerializationPolicy()
Timer = Callable[[Graph, Graph], "PairedMeasurement | None"]


@dataclass(frozen=True)
class MemoryTradeoffPoint:
    """A graph that computes the same, what it needs, and at which price.

    Attributes:
        graph: it.
        bytes: weights and, by the arena's account, activations.
        us: modelled microseconds.
        how: what was done: "" (as it was), "order", "open rows", "hidden sizes", "fission", "recomputation".
        measured: a paired benchmark beside the graph given, where there was one.
        chosen: whether it is what was asked for.
    """

    graph: Graph
    bytes: int
    us: float
    how: str
    measured: PairedMeasurement | None = None
    chosen: bool = False

    def timed(self, given: Graph, timer: Timer) -> MemoryTradeoffPoint:
        """The point with its measurement beside the graph given; what cannot be timed counts as modelled."""
        return self if self.measured is not None else replace(self, measured=timer(given, self.graph))

    def reported(self, fastest: MemoryTradeoffPoint) -> report.MemoryTimeTradeoffReport:
        """The point beside the fastest."""
        timed = self.measured
        return report.MemoryTimeTradeoffReport(
            self.bytes, self.us / fastest.us if fastest.us else 1.0, None if timed is None else timed.ratio,
            None if timed is None or timed.runs < POLICY.fewest_rounds else doubt_of(timed), self.how,
            structural_hash(self.graph),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class RematerializationPlan:
    """A way of computing a graph that takes less memory and more time.

    Attributes:
        planned: the graph, perhaps with regions computed in parts.
        table: the order of its nodes, some of them computed again.
        us: modelled microseconds beyond those of the graph given.
        how: what was done.
    """

    planned: RematerializationInputGraph
    table: RematerializationSchedule
    us: float
    how: str

    @property
    def peak(self) -> int:
        """Bytes alive at once, without inputs and outputs."""
        return self.table.peak

    @cached_property
    def block(self) -> int:
        """Bytes that they lie in, gaps included."""
        return block_of(self.planned.task, self.table)


class RematerializationPlanWriter:
    """A graph of which plans are written, and what is known of it.

    Attributes:
        planning: share of the time left that each way of planning may take.
    """

    planning = PLANS.planning_share

    def __init__(self, graph: Graph, model: CostModel, sizes: Mapping[str, int], seconds: float, rows: int) -> None:
        self.graph, self.model, self.sizes, self.rows = graph, model, sizes, rows
        self.deadline = time.monotonic() + seconds
        typing = infer(graph, dict(sizes))
        self.weights = work(graph, typing, sizes).weight_bytes
        found = least_memory(graph, sizes=sizes, deadline=time.monotonic() + PLANS.planning_share * seconds)
        self.held = found.before.plan.inputs + found.before.plan.outputs
        given, least = found.asked or (arena_block(graph, sizes), 0)
        self.planned = task_of(graph, model.recorded or model, typing, sizes=sizes)
        self.us = sum(op.us for op in self.planned.task.ops)
        self.first = [MemoryTradeoffPoint(graph, self.weights + self.held + given, self.us, "")]
        if found.how:
            self.first.append(MemoryTradeoffPoint(found.graph, self.weights + self.held + least, self.us, found.how))

    def left(self) -> float:
        """Seconds."""
        return self.deadline - time.monotonic()

    def plans(self, most: int | None = None) -> list[RematerializationPlan]:
        """Plans each of which takes less time, less memory alive at once or a smaller block than any other, by rising
        time; the order given is left out.

        Args:
            most: bytes alive at once that suffice.
        """
        if self.graph.opset.get("", 0) < OPSET:
            return []
        found = list(self._with_recomputation(self.planned, 0.0, "recomputation", most))
        split = list(self._with_fission())
        found += split
        for plan in split:
            found += self._with_recomputation(plan.planned, plan.us, "fission, recomputation", most, len(split))
        kept: list[RematerializationPlan] = []
        for plan in sorted(found, key=lambda p: (p.us, p.block)):
            if all(plan.block < k.block or plan.peak < k.peak for k in kept):
                kept.append(plan)
        return kept

    def _with_fission(self) -> Iterator[RematerializationPlan]:
        """Plans in which regions are computed in parts."""
        from superopt.pipeline.fission import fissions  # here, because it loads the prover

        for made in fissions(self.planned.ordered, deadline=time.monotonic() + self.planning * self.left()):
            if self.left() <= 0.0:
                return
            planned = task_of(made.graph, self.model.recorded or self.model, sizes=self.sizes)
            yield RematerializationPlan(planned, original_timetable(planned.task), self.price(made, planned), "fission")

    def price(self, made: FissionedGraph, planned: RematerializationInputGraph) -> float:
        """Modelled microseconds of a graph with regions in parts, beyond those of the graph given."""
        return sum(op.us for op in planned.task.ops) - self.us

    def _with_recomputation(
        self, planned: RematerializationInputGraph, us: float, how: str, most: int | None, among: int = 1
    ) -> Iterator[RematerializationPlan]:
        """Plans that compute values of a graph again, one of so many graphs that share work and time."""
        found = front(planned.task, rows=self.rows // among, seconds=self.planning * self.left() / among, enough=most)
        yield from (RematerializationPlan(planned, t, us + t.us, how) for t in found[1:])

    def write(self, plan: RematerializationPlan) -> MemoryTradeoffPoint | None:
        """A plan, written; ``None`` where ONNX Runtime does not take it."""
        try:
            if plan.how == "fission":
                made, how = self._in_parts(plan)
            else:
                made, how = realised(plan.planned, plan.table, sizes=self.sizes, deadline=self.deadline), plan.how
        except (SuperoptError, UnsupportedNodeForm):  # a size that has to be known
            return None
        return MemoryTradeoffPoint(made.graph, self.weights + self.held + made.block, self.us + plan.us, how)

    def _in_parts(self, plan: RematerializationPlan) -> tuple[RematerializedGraph, str]:
        """A plan with regions in parts as it takes least: in an order of its own, or in one that guards see to."""
        found = least_memory(plan.planned.graph, sizes=self.sizes, deadline=self.deadline, alike=False)
        least = RematerializedGraph(
            found.graph, found.asked[1] if found.asked else arena_block(found.graph, self.sizes)
        )
        if least.block > PLANS.near * plan.peak and self.left() > 0.0:
            guarded = realised(plan.planned, plan.table, sizes=self.sizes, deadline=self.deadline)
            if guarded.block < least.block:
                return guarded, "fission, guards"
        return least, ", ".join(filter(None, ("fission", found.how)))

    def room(self, limit: int) -> float:
        """Bytes that may be alive at once for weights and activations to be within a limit with something to spare."""
        return PLANS.limit_share * limit - self.weights - self.held

    def within_limit(self, limit: int, plans: Sequence[RematerializationPlan]) -> list[MemoryTradeoffPoint]:
        """Points from plans of rising time, up to the first that needs no more than the limit."""
        room, found = self.room(limit), list[MemoryTradeoffPoint]()
        while plans and len(found) < PLANS.attempts and self.left() > 0.0:
            plan = next((p for p in plans if p.block <= room), min(plans, key=lambda p: p.block))
            plans = [p for p in plans if p.block < plan.block]
            made = self.write(plan)
            if made is None:
                continue
            found.append(made)
            if made.bytes <= limit:
                break
            block = made.bytes - self.weights - self.held  # more than was planned, and so will the next be
            room = min(room, room * plan.block / block)
        return found

    def least(self, plans: Sequence[RematerializationPlan]) -> MemoryTradeoffPoint | None:
        """Of the plans of the least block, those of each kind first, written, the one that needs least."""
        rising = sorted(plans, key=lambda p: p.block)
        kinds = list({p.how: p for p in reversed(rising)}.values())
        rising = [*reversed(kinds), *(p for p in rising if p not in kinds)]
        found: MemoryTradeoffPoint | None = None
        for plan in rising[: PLANS.attempts]:
            if found is not None and self.left() <= 0.0:
                break
            if found is not None and found.bytes <= self.weights + self.held + plan.peak:
                continue
            made = self.write(plan)
            if made is not None and (found is None or made.bytes < found.bytes):
                found = made
        return found


def for_memory(
    graph: Graph,
    options: Options,
    model: CostModel,
    log: ReportNotes,
    seconds: float,
    timer: Timer | None,
    progress: Progress,
) -> tuple[MemoryTradeoffPoint, ...]:
    """What the graph is written as, where the options ask for less memory, or for a limit that it else exceeds.

    Args:
        graph: a result.
        options: the objective, the limit and the sizes.
        model: prices.
        log: is told what it takes, before and after, and the price.
        seconds: that are left.
        timer: times a graph beside the one given; ``None``: nothing is timed.
        progress: told.

    Returns:
        The graph that was asked for (``chosen``), and with "pareto" the others of the front, by rising time. None where
        nothing is asked for or known.
    """
    limit, sizes, wanted = options.memory_limit, options.sizes, options.objective != "time"
    if not wanted and limit is None:
        return ()
    weights = work(graph, infer(graph, dict(sizes)), sizes).weight_bytes
    if weights > LARGE:
        log.note(f"it is not written for memory: its weights are more than {bytes_text(LARGE)}")
        return ()
    progress(0, None, "planning memory")
    seconds, rows = PLANS.time_share * min(seconds, PLANS.longest), int(EFFORTS[options.effort].rows * ROWS)
    deadline = time.monotonic() + seconds / PLANS.time_share
    try:
        if not wanted and limit is not None and weights + footprint(graph, sizes=sizes).plan.peak <= limit:
            return ()
        if options.objective == "pareto":
            found = points(graph, model, limit=limit, sizes=sizes, seconds=seconds, rows=rows)
        else:
            found = smallest_points(graph, model, limit=limit, sizes=sizes, seconds=seconds, rows=rows, timer=timer)
    except (SuperoptError, UnsupportedNodeForm) as error:
        log.note(f"what its activations take in ONNX Runtime is not known: {error}")
        return ()
    if timer is not None:
        progress(0, None, "measuring")
        found = [found[0], *(p.timed(graph, timer) if time.monotonic() < deadline else p for p in found[1:])]
    at = _chosen_index(found, limit, options.objective)
    if limit is not None and found[at].bytes > limit:
        log.note(f"no way of computing it that was tried meets the limit of {bytes_text(limit)}")
    log.note(_summary(found[0], found[at], weights, limit))
    chosen = [replace(p, chosen=i == at) for i, p in enumerate(found)]
    return tuple(chosen) if options.objective == "pareto" else (chosen[at],)


def _chosen_index(found: Sequence[MemoryTradeoffPoint], limit: int | None, objective: str) -> int:
    """Which of the points was asked for."""
    if limit is not None:
        meets = [i for i, p in enumerate(found) if p.bytes <= limit]
        return meets[0] if meets else min(range(len(found)), key=lambda i: found[i].bytes)
    if objective == "pareto":
        return 0
    quick = [i for i, p in enumerate(found) if not too_slow_for_memory(p.measured)]
    return min(quick, key=lambda i: found[i].bytes)


def _summary(given: MemoryTradeoffPoint, point: MemoryTradeoffPoint, weights: int, limit: int | None) -> str:
    how = f" ({point.how})" if point.how else ""
    text = f"activations take {bytes_text(point.bytes - weights)} in ONNX Runtime{how}"
    if point.how:
        price = f"x{point.us / given.us if given.us else 1.0:.3f} of the time as modelled"
        if point.measured is not None:
            price += f", x{point.measured.ratio:.3f} in a paired benchmark of {point.measured.runs} rounds"
        text += f", {bytes_text(given.bytes - weights)} as found; the price: {price}"
    if limit is not None:
        text += f"; with {bytes_text(weights)} of weights {bytes_text(point.bytes)}, the limit is {bytes_text(limit)}"
    return text


def points(
    graph: Graph,
    model: CostModel,
    *,
    limit: int | None = None,
    sizes: Mapping[str, int] | None = None,
    seconds: float = 120.0,
    rows: int = ROWS,
) -> list[MemoryTradeoffPoint]:
    """Graphs of which none is both faster, as modelled, and smaller, by rising time; the first is the one given, or the
    same kernels in less memory.

    Args:
        graph: the model.
        model: prices.
        limit: bytes that one of them should not exceed.
        sizes: what symbolic dimensions are counted at.
        seconds: after which nothing more is written.
        rows: of linear programs that planning may solve.

    Raises:
        InvalidModel, Unsupported, ResourceLimit: ONNX Runtime cannot run it, or not with its arena watched.
        UnsupportedNodeForm: an input is no tensor.
    """
    writing = RematerializationPlanWriter(graph, model, sizes or {}, seconds, rows)
    found = list(writing.first)
    plans = writing.plans()
    chosen = [min((p for p in plans if p.us <= share * writing.us), key=lambda p: p.block, default=None)
              for share in PLANS.front_shares]  # fmt: skip
    for plan in dict.fromkeys(p for p in chosen if p is not None):
        if writing.left() <= 0.0:
            break
        made = writing.write(plan)
        found += [made] if made is not None else []
    if limit is not None and min(p.bytes for p in found) > limit:
        found += writing.within_limit(limit, plans)
    return _undominated(found)


def smallest_points(
    graph: Graph,
    model: CostModel,
    *,
    limit: int | None = None,
    share: float = PLANS.recomputation_share,
    sizes: Mapping[str, int] | None = None,
    seconds: float = 120.0,
    rows: int = ROWS,
    timer: Timer | None = None,
) -> list[MemoryTradeoffPoint]:
    """The graph given, and what was found; the last is the best, unless it was measured to be too slow.

    Args:
        graph: the model.
        model: prices.
        limit: bytes of weights and activations: the fastest graph that needs no more, as modelled, or the one that
            needs least.
        share: of the time that may be spent on computing again, where there is no limit: the graph that needs least.
        sizes: what symbolic dimensions are counted at.
        seconds: after which nothing more is written.
        rows: of linear programs that planning may solve.
        timer: times a point beside the graph given; where it is too slow, a lighter plan is written. Fission may then
            be modelled at twice the share.

    Raises:
        As :func:`points`.
    """
    writing = RematerializationPlanWriter(graph, model, sizes or {}, seconds, rows)
    found = list(writing.first)
    if limit is not None and found[-1].bytes <= limit:
        return found
    if limit is not None:
        return found + writing.within_limit(limit, writing.plans(int(writing.room(limit))))
    unsure = 1.0 if timer is None else PLANS.fission_doubt
    plans = [p for p in writing.plans() if p.us <= share * writing.us * (unsure if p.how == "fission" else 1.0)]
    while plans and writing.left() > 0.0:
        made = writing.least(plans)
        if made is None:
            break
        found.append(made if timer is None else made.timed(graph, timer))
        if not too_slow_for_memory(found[-1].measured):
            break
        price = made.us - writing.us
        plans = [p for p in plans if p.us < min(price, price / 2.0)]
    return found


def _undominated(found: Sequence[MemoryTradeoffPoint]) -> list[MemoryTradeoffPoint]:
    kept: list[MemoryTradeoffPoint] = []
    for point in sorted(found, key=lambda p: (p.us, p.bytes)):
        if not kept or point.bytes < kept[-1].bytes:
            kept.append(point)
    return kept
