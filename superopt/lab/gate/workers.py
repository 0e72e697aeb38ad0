"""The models of a corpus at once: in as many processes as cores and memory allow, none longer than it may take.

A model that kills its process is a failed row, and takes nothing else with it. A process serves one model after the
other, since loading the library takes longer than many a model.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from superopt import formats
from superopt.ir.errors import ResourceLimit, SuperoptError
from superopt.lab.gate.one import Task, row_of
from superopt.pipeline.options import Progress, quiet
from superopt.report.corpus import Row

__all__ = ["run_all"]

_BASE = 600 << 20  # bytes of a worker beside its model: interpreter, libraries, e-graphs
_COPIES = 8  # of a model's weights, at worst: original and result in float32 and, for the reference, in float64
_LARGE = 2 << 30  # bytes: a process that had such a model is not used again, so that its memory is free
_GRACE = 180.0  # seconds beyond its time limit: loading and checking a large model on a busy machine


@dataclass
class _Worker:
    """A process, and what it is busy with."""

    process: BaseProcess
    channel: Connection
    task: Task | None = None
    bytes: int = 0
    deadline: float = float("inf")


@dataclass
class _Pool:
    most: int
    workers: list[_Worker] = field(default_factory=list)

    @property
    def busy(self) -> list[_Worker]:
        return [w for w in self.workers if w.task is not None]

    def takes(self, need: int) -> bool:
        """Whether a model that needs so many bytes may be given out now."""
        busy = self.busy
        return not busy or (len(busy) < self.most and need + sum(w.bytes for w in busy) <= _memory())

    def give(self, task: Task, need: int) -> None:
        idle = next((w for w in self.workers if w.task is None), None)
        worker = idle or _started()
        if idle is None:
            self.workers.append(worker)
        worker.task, worker.bytes = task, need
        worker.deadline = time.monotonic() + 2 * task.time_limit + _GRACE
        worker.channel.send(task)

    def finished(self) -> list[Row]:
        """Rows of workers that have answered, died or overrun; waits until there is one, half a second at most."""
        wait([w.channel for w in self.busy], timeout=0.5)
        now = time.monotonic()
        rows = []
        for worker in self.busy:
            if worker.channel.poll() or not worker.process.is_alive() or now > worker.deadline:
                rows.append(self._row(worker))
        return rows

    def _row(self, worker: _Worker) -> Row:
        assert worker.task is not None
        model, row, answered = worker.task.model, None, worker.channel.poll()
        try:
            row = worker.channel.recv() if answered else None
        except (EOFError, ConnectionResetError):
            answered = True
        if isinstance(row, Row) and worker.bytes < _LARGE:
            worker.task = None
            return row
        self.workers.remove(worker)
        _end(worker)
        if isinstance(row, Row):
            return row
        why = f"its process ended with {worker.process.exitcode}" if answered else "it took longer than it may"
        return Row(model, error=why, exit_code=ResourceLimit.exit_code)


def run_all(
    tasks: Sequence[Task],
    *,
    workers: int = 0,
    deadline: float = float("inf"),
    done: Callable[[Row], None] | None = None,
    progress: Progress = quiet,
) -> tuple[Row, ...]:
    """The rows of the tasks, in their order.

    Args:
        tasks: models of different names.
        workers: processes at once; 0 takes one a core, 1 works in this process.
        deadline: on the monotonic clock; no model is begun after it, so that rows may be missing.
        done: called with each row as soon as it is there.
        progress: called with (models done, models in all, those under way).
    """
    workers = workers or os.cpu_count() or 1
    rows: dict[str, Row] = {}
    if workers == 1 or len(tasks) == 1:
        for task in tasks:
            if time.monotonic() >= deadline:
                break
            progress(len(rows), len(tasks), task.model)
            _keep([row_of(task)], rows, done)
        return tuple(rows[t.model] for t in tasks if t.model in rows)
    pending = sorted(((_need(t), t) for t in tasks), key=lambda p: (p[0], p[1].model))
    pool = _Pool(workers)
    try:
        while pool.busy or (pending and time.monotonic() < deadline):
            while pending and time.monotonic() < deadline and pool.takes(pending[-1][0]):
                need, task = pending.pop()  # the largest first: a long last one would run alone
                pool.give(task, need)
            names = ", ".join(Path(w.task.model).stem for w in pool.busy if w.task is not None)
            progress(len(rows), len(tasks), names)
            _keep(pool.finished(), rows, done)
    finally:
        for worker in pool.workers:
            _end(worker)
    return tuple(rows[t.model] for t in tasks if t.model in rows)


def _keep(found: Sequence[Row], rows: dict[str, Row], done: Callable[[Row], None] | None) -> None:
    for row in found:
        rows[row.model] = row
        if done is not None:
            done(row)


def _need(task: Task) -> int:
    """Bytes that a model will take at most, roughly; a broken one takes none."""
    try:
        graph = formats.load(task.path)
    except SuperoptError:
        return _BASE
    return _BASE + _COPIES * sum(w.type.nbytes or 0 for w in graph.weights)


def _memory() -> int:
    """Bytes of memory that this machine has, less an eighth; without the figure, 8 GiB."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 8 << 30
    return total - total // 8


def _started() -> _Worker:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    there.close()
    return _Worker(process, here)


def _serve(channel: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle; it ends this process
    while True:
        try:
            task = channel.recv()
        except EOFError:
            return
        try:
            row = row_of(task)
        except MemoryError:
            row = Row(task.model, error="out of memory", exit_code=ResourceLimit.exit_code)
        channel.send(row)


def _end(worker: _Worker) -> None:
    worker.channel.close()
    worker.process.kill()
    worker.process.join()
