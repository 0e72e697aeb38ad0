"""The models of a corpus at once: as many as the fleet and this machine's memory allow, none longer than it may take.

A model that kills its process each time is a failed row, and takes nothing else with it. A process serves one model
after the other, since loading the library takes longer than many a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from superopt import fleet as fleets
from superopt import formats
from superopt.fleet import Fleet, Lost
from superopt.ir.errors import ResourceLimit, SuperoptError
from superopt.lab.gate.one import Task, row_of
from superopt.pipeline.options import Progress, quiet
from superopt.report.corpus import Row

__all__ = ["run_all"]

_BASE = 600 << 20  # bytes of a worker beside its model: interpreter, libraries, e-graphs
_COPIES = 8  # of a model's weights, at worst: original and result in float32 and, for the reference, in float64
_LARGE = 2 << 30  # bytes: a process that had such a model is not used again, so that its memory is free
_GRACE = 180.0  # seconds beyond its time limit: loading and checking a large model on a busy machine


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
    line = [_sized(t) for t in tasks] if fleet.alone else sorted(map(_sized, tasks), key=lambda t: (-t.bytes, t.name))

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
    """The fleet's task; the largest first: a long last one would run alone."""
    need = _need(task)
    files = tuple(p for p in (task.path, task.options.rules) if p is not None)
    seconds = None if task.options.time_limit is None else 2 * task.options.time_limit + _GRACE
    return fleets.Task(_row, (task,), task.model, files=files, seconds=seconds, bytes=need, last=need >= _LARGE)


def _row(task: Task) -> Row:
    try:
        return row_of(task)
    except MemoryError:
        return Row(task.model, error="out of memory", exit_code=ResourceLimit.exit_code)


def _need(task: Task) -> int:
    """Bytes that a model will take at most, roughly; a broken one takes none."""
    try:
        graph = formats.load(task.path)
    except SuperoptError:
        return _BASE
    return _BASE + _COPIES * sum(w.type.nbytes or 0 for w in graph.weights)
