"""The models of a corpus at once: a process each, as many as cores and memory allow, none longer than it may take.

A model that kills its process is a failed row, and takes nothing else with it.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from superopt import formats
from superopt.ir.errors import ResourceLimit, SuperoptError
from superopt.pipeline.gate.one import Task, row_of
from superopt.pipeline.optimise import Progress, quiet
from superopt.report.corpus import Row

__all__ = ["run_all"]

_BASE = 600 << 20  # bytes of a worker beside its model: interpreter, libraries, e-graphs
_COPIES = 8  # of a model's weights, at worst: original and result in float32 and, for the reference, in float64
_GRACE = 180.0  # seconds beyond its time limit: loading and checking a large model on a busy machine


@dataclass
class _Worker:
    task: Task
    bytes: int
    process: BaseProcess
    channel: Connection
    deadline: float


def run_all(tasks: Sequence[Task], *, workers: int = 0, progress: Progress = quiet) -> tuple[Row, ...]:
    """The rows of all tasks, in their order.

    Args:
        tasks: models of different names.
        workers: processes at once; 0 takes one a core, 1 works in this process.
        progress: called with (models done, models in all, the last one's name).
    """
    workers = workers or os.cpu_count() or 1
    rows: dict[str, Row] = {}
    if workers == 1 or len(tasks) == 1:
        for task in tasks:
            progress(len(rows), len(tasks), task.model)
            rows[task.model] = row_of(task)
        return tuple(rows[t.model] for t in tasks)
    pending = sorted(((_need(t), t) for t in tasks), key=lambda p: (p[0], p[1].model))
    running: list[_Worker] = []
    try:
        while pending or running:
            while pending and len(running) < workers and _fits(pending[-1][0], running):
                need, task = pending.pop()  # the largest first: a long last one would run alone
                running.append(_started(task, need))
            progress(len(rows), len(tasks), ", ".join(Path(w.task.model).stem for w in running))
            for worker in _finished(running):
                running.remove(worker)
                rows[worker.task.model] = _row(worker)
    finally:
        for worker in running:
            _end(worker)
    return tuple(rows[t.model] for t in tasks)


def _need(task: Task) -> int:
    """Bytes that a model will take at most, roughly; a broken one takes none."""
    try:
        graph = formats.load(task.path)
    except SuperoptError:
        return _BASE
    return _BASE + _COPIES * sum(w.type.nbytes or 0 for w in graph.weights)


def _fits(need: int, running: Sequence[_Worker]) -> bool:
    return not running or need + sum(w.bytes for w in running) <= _memory()


def _memory() -> int:
    """Bytes of memory that this machine has, less an eighth; without the figure, 8 GiB."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 8 << 30
    return total - total // 8


def _started(task: Task, need: int) -> _Worker:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(there, task), daemon=True)
    process.start()
    there.close()
    return _Worker(task, need, process, here, time.monotonic() + 2 * task.time_limit + _GRACE)


def _serve(channel: Connection, task: Task) -> None:
    try:
        channel.send(row_of(task))
    except MemoryError:
        channel.send(Row(task.model, error="out of memory", exit_code=ResourceLimit.exit_code))


def _finished(running: Sequence[_Worker]) -> list[_Worker]:
    """Workers that have answered, died or overrun; waits until there is one, half a second at most."""
    wait([w.channel for w in running], timeout=0.5)
    now = time.monotonic()
    return [w for w in running if w.channel.poll() or not w.process.is_alive() or now > w.deadline]


def _row(worker: _Worker) -> Row:
    row = None
    if worker.channel.poll():
        try:
            row = worker.channel.recv()
        except EOFError:
            row = None
    died = not worker.process.is_alive() or row is None
    _end(worker)
    if isinstance(row, Row):
        return row
    why = f"its process ended with {worker.process.exitcode}" if died else "it took longer than it may"
    return Row(worker.task.model, error=why, exit_code=ResourceLimit.exit_code)


def _end(worker: _Worker) -> None:
    worker.channel.close()
    worker.process.join(0.2)
    if worker.process.is_alive():
        worker.process.kill()
    worker.process.join()
