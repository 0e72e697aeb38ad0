"""What every device does, in order, and when: schedules, their discrete-event simulation, and its Chrome trace.

All devices do the same, each with its own pieces; they differ in what a Slice keeps and in what "First" keeps.

A device computes and exchanges at the same time, but does one thing of a kind at a time, in the order of its schedule.
A collective begins when all that take part have reached it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from superopt.ir.graph import unused_name
from superopt.ir.types import TensorType
from superopt.placement.choice import Choice, PlacementProblem
from superopt.placement.collectives import COLLECTIVES, Step, step_seconds
from superopt.placement.placements import Spec, groups_of, local_type
from superopt.placement.strategies import MeshForm, Operation

__all__ = [
    "Application",
    "Event",
    "Instruction",
    "Movement",
    "Task",
    "chrome_trace",
    "schedule_of",
    "simulate",
    "tasks_of",
]


@dataclass(frozen=True)
class Application:
    """An operator on pieces: names and types of a device's operands and results."""

    operation: Operation
    form: MeshForm
    args: tuple[str | None, ...]
    outputs: tuple[str, ...]
    kinds: tuple[TensorType | None, ...]
    made: tuple[TensorType, ...]
    seconds: float


@dataclass(frozen=True)
class Movement:
    """A step of a value: names and types of the piece before and after it."""

    step: Step
    source: str
    target: str
    before: TensorType
    after: TensorType
    seconds: float

    @property
    def collective(self) -> bool:
        """Whether devices exchange something."""
        return self.step.op in COLLECTIVES


Instruction = Application | Movement


def schedule_of(choice: Choice, problem: PlacementProblem) -> list[Instruction]:
    """The instructions of a choice, in the order of the model's operations. A value gets to a placement once."""
    return _Scheduler(choice, problem).instructions()


class _Scheduler:
    """``named`` has the name of each value in each placement in which it is there by now."""

    def __init__(self, choice: Choice, problem: PlacementProblem) -> None:
        self.choice, self.problem, self.model = choice, problem, problem.model
        self.taken = {*self.model.graph.names, *self.model.types}
        self.named = {(v, choice.specs[v]): v for v in problem.values}
        self.made: list[Instruction] = []

    def instructions(self) -> list[Instruction]:
        for operation, form in zip(self.model.operations, self.choice.forms, strict=True):
            pairs = zip(operation.args, form.operands, strict=True)
            args = tuple(None if a is None or s is None else self._placed(a, s) for a, s in pairs)
            results = list(zip(operation.outputs, form.results, strict=False))
            outputs = tuple(v and (v if s == self.choice.specs[v] else self._fresh(v, s)) for v, s in results)
            self.made.append(self._application(operation, form, args, outputs))
            for (v, s), name in zip(results, outputs, strict=True):
                if v and s != self.choice.specs[v]:
                    self._reshard(v, s, self.choice.specs[v], name, last=v)
        return self.made

    def _application(
        self, operation: Operation, form: MeshForm, args: tuple[str | None, ...], outputs: tuple[str, ...]
    ) -> Application:
        problem = self.problem
        kinds, made = problem.operand_types(operation, form), problem.result_types(operation, form)
        return Application(operation, form, args, outputs, kinds, made, problem.form_seconds(operation, form))

    def _fresh(self, value: str, spec: Spec) -> str:
        how = "_".join(str(p).replace(" ", "") for p in spec)
        return unused_name(f"{value}_{how}", self.taken)

    def _placed(self, value: str, spec: Spec) -> str:
        """The name of a value in a placement, to which it is moved if it is not there."""
        if (value, spec) not in self.named:
            self._reshard(value, self.choice.specs[value], spec, value)
        return self.named[value, spec]

    def _reshard(self, value: str, source: Spec, target: Spec, name: str, last: str = "") -> None:
        _, steps = self.problem.resharding(value, source, target)
        spec, kind = source, self.model.types[value]
        for number, step in enumerate(steps):
            after = (*spec[: step.mesh_axis], step.target, *spec[step.mesh_axis + 1 :])
            final = bool(last) and number == len(steps) - 1
            if (value, after) in self.named and not final:
                name, spec = self.named[value, after], after
                continue
            result = last if final else self._fresh(value, after)
            before, piece = local_type(kind, spec, self.choice.mesh), local_type(kind, after, self.choice.mesh)
            assert before is not None
            assert piece is not None
            network, copying = self.problem.networks[step.mesh_axis], self.problem.speeds.copying
            seconds = (
                0.0
                if value in self.model.static and step.op not in COLLECTIVES
                else step_seconds(step, before, network, copying)
            )
            self.made.append(Movement(step, name, result, before, piece, seconds))
            if not final:
                self.named[value, after] = result
            name, spec = result, after


@dataclass(frozen=True)
class Task:
    """Something that devices do together.

    Attributes:
        name: shown.
        devices: which take part, by rank.
        stream: "compute" or "network".
        seconds: that it takes.
        after: numbers of tasks that have to end before.
    """

    name: str
    devices: tuple[int, ...]
    stream: str
    seconds: float
    after: tuple[int, ...]


@dataclass(frozen=True)
class Event:
    """A task and when it runs, in seconds."""

    task: Task
    start: float
    end: float


def simulate(tasks: Sequence[Task]) -> list[Event]:
    """When each task runs. A device's tasks of one stream run in the order of the list.

    Args:
        tasks: each after those that it waits for.
    """
    free: dict[tuple[int, str], float] = {}
    events: list[Event] = []
    for task in tasks:
        ready = max((events[t].end for t in task.after), default=0.0)
        start = max(ready, *(free.get((d, task.stream), 0.0) for d in task.devices))
        events.append(Event(task, start, start + task.seconds))
        free.update(((d, task.stream), start + task.seconds) for d in task.devices)
    return events


def tasks_of(instructions: Sequence[Instruction], mesh: Sequence[int]) -> list[Task]:
    """The tasks of all ranks that follow one schedule."""
    ranks = range(prod(mesh))
    made: dict[tuple[int, str], int] = {}
    tasks: list[Task] = []
    for instruction in instructions:
        reads, results, name, exchange = _facts(instruction)
        groups: list[tuple[int, ...]] = [(r,) for r in ranks]
        if exchange:
            assert isinstance(instruction, Movement)
            groups = groups_of(mesh, instruction.step.mesh_axis)
        for group in groups:
            after = tuple(sorted({made[d, v] for d in group for v in reads if (d, v) in made}))
            made.update(((d, v), len(tasks)) for d in group for v in results)
            tasks.append(Task(name, group, "network" if exchange else "compute", instruction.seconds, after))
    return tasks


def _facts(instruction: Instruction) -> tuple[tuple[str, ...], tuple[str, ...], str, bool]:
    """What it reads and makes, its name, and whether devices exchange something."""
    if isinstance(instruction, Application):
        reads = tuple(a for a in instruction.args if a)
        return reads, tuple(o for o in instruction.outputs if o), instruction.operation.name, False
    return (instruction.source,), (instruction.target,), instruction.step.op, instruction.collective


def chrome_trace(events: Sequence[Event], names: Sequence[str]) -> dict[str, Any]:
    """The events in the format of chrome://tracing and Perfetto: a process a device, a thread a stream."""
    streams = {"compute": 0, "network": 1}
    rows: list[dict[str, Any]] = []
    for rank, name in enumerate(names):
        rows.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": name}})
        rows += [
            {"ph": "M", "name": "thread_name", "pid": rank, "tid": number, "args": {"name": stream}}
            for stream, number in streams.items()
        ]
    for event in events:
        for device in event.task.devices:
            rows.append({
                "ph": "X", "name": event.task.name, "pid": device, "tid": streams[event.task.stream],
                "ts": event.start * 1e6, "dur": (event.end - event.start) * 1e6,
            })  # fmt: skip
    return {"traceEvents": rows, "displayTimeUnit": "ms"}
