"""When each device does what: a discrete-event simulation of schedules, and its Chrome trace.

A device computes and exchanges at the same time, but does one thing of a kind at a time, in the order of its schedule.
A collective begins when all that take part have reached it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from superopt.placement.placements import groups_of
from superopt.placement.schedule import Application, Instruction, Movement

__all__ = ["Event", "Task", "chrome_trace", "simulate", "tasks_of"]


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
