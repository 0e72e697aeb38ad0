"""The models of a corpus at once: as many as the fleet and this machine's memory allow, none longer than it may take.

A model that kills its process each time is a failed row, and takes nothing else with it. A process serves one model
after the other, since loading the library takes longer than many a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from superopt import fleet as fleets
from superopt.fleet import Fleet, Lost
from superopt.gate.one import Task, row_of
from superopt.ir.errors import ResourceLimit
from superopt.pipeline.batch import demand_of
from superopt.pipeline.options import Progress, quiet
from superopt.report.corpus import Row

__all__ = ["run_all"]


def run_all(
    tasks: Sequence[Task],
    *,
    fleet: Fleet | None = None,
    deadline: float = float("inf"),
    done: Callable[[Row], None] | None = None,
    progress: Progress = quiet,
) -> tuple[Row, ...]:
    """The rows of the tasks, in their order.

    Args:
        tasks: models of different names.
        fleet: what optimises them; this process where none is given.
        deadline: on the monotonic clock; no model is begun after it, so that rows may be missing.
        done: called with each row as soon as it is there.
        progress: called with (models done, models in all, those under way).
    """
    fleet = fleet or Fleet()
    rows: dict[str, Row] = {}
    line = [_sized(t) for t in tasks]
    if not fleet.alone:
        line.sort(key=lambda t: (-t.bytes, t.name))  # the largest first: a long last one would run alone

    def told(names: Sequence[str]) -> None:
        progress(len(rows), len(tasks), ", ".join(Path(n).stem for n in names))

    for outcome in fleet.each(line, until=deadline, progress=told):
        try:
            row = outcome.result()
        except Lost as error:
            row = Row(outcome.task.name, error=error.what, exit_code=ResourceLimit.exit_code)
        rows[row.model] = row
        if done is not None:
            done(row)
    return tuple(rows[t.model] for t in tasks if t.model in rows)


def _sized(task: Task) -> fleets.Task[Row]:
    """The fleet's task."""
    need = demand_of(task.path, task.options)
    return fleets.Task(_row, (task,), task.model, "", need.files, need.seconds, need.bytes, need.last)


def _row(task: Task) -> Row:
    try:
        return row_of(task)
    except MemoryError:
        return Row(task.model, error="out of memory", exit_code=ResourceLimit.exit_code)
