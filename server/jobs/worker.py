"""A worker: claims a job, runs it in a child that it can kill, and says how it ended.

The worker itself never opens what clients sent; it copies files, keeps the lease alive and watches the clock.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from sqlalchemy.exc import DBAPIError

from superopt.server.http import logs
from superopt.server.http.body import MODEL_FILE, ONNX, sidecars
from superopt.server.http.system_errors import DISK_FULL, meaning
from superopt.server.jobs.blobs import Blobs
from superopt.server.jobs.child import FILES, FRAME, NO_ROOM, EngineProcess
from superopt.server.jobs.database import JobDatabase
from superopt.server.jobs.database_blobs import DatabaseBlobs
from superopt.server.jobs.result_reuse import reusable
from superopt.server.jobs.retention import JobRetention
from superopt.server.jobs.store import JobClaim, JobStore
from superopt.server.jobs.uploads import Uploads
from superopt.server.settings import ServiceSettings

__all__ = ["JobWorker", "work"]

log = logging.getLogger("superopt.worker")

_BEAT = 0.5  # seconds between heartbeats, hence the longest that a cancellation goes unnoticed
_SWEEP = 30.0
_RELOAD = 1.0  # seconds before the engine is loaded again, doubled each time
# How a process ends that gets no more memory: by the system's killer, or by a library that cannot go on without.
_OUT_OF_MEMORY = frozenset({-signal.SIGKILL, -signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS})
_REDUCED = (
    "; so it ended with a quarter of the budgets, too: send a smaller model, or have the operator allow more memory"
)


def work(settings: ServiceSettings) -> None:
    """Run jobs until SIGTERM or SIGINT; the job in hand then goes back to the queue."""
    worker = JobWorker(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stop())
    worker.run()


class JobWorker:
    """One job after another."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.database = JobDatabase(settings.url)
        self.store = JobStore(self.database, settings.limits)
        self.retention = JobRetention(self.database, settings.limits)
        self.blobs = Blobs(settings.data, DatabaseBlobs(self.database) if settings.apart else None)
        self.uploads = Uploads(settings.data, self.blobs, settings.limits)
        self.stopping = False
        self._given_up: list[JobClaim] = []  # jobs that the database was not there to be told of
        self._swept = 0.0
        self._reaped = 0.0
        self._nursery: EngineProcess | None = None
        self._loaded = -_RELOAD
        self._reload = _RELOAD

    def stop(self) -> None:
        """End after giving the job in hand back."""
        self.stopping = True

    def run(self) -> None:
        """Claim and run until :meth:`stop`. Nothing is claimed while the engine cannot be loaded."""
        self.database.persist(self.database.migrate, 60)
        silence = 1.0
        while not self.stopping:
            try:
                self._give_back()
                self._housekeeping()
                held = self.store.claim(self.name, self.settings.lease) if self._ready() else None
                silence = 1.0
            except DBAPIError as error:
                said = meaning(error.orig)
                log.warning("the database does not answer: %s", said.text if said else type(error.orig).__name__)
                self._sleep(silence)
                silence = min(2 * silence, 15.0)
                continue
            if held is not None:
                self._finish(held)
            else:
                self._sleep(self.settings.poll)
        with contextlib.suppress(DBAPIError):
            self._give_back()
        if self._nursery is not None:
            self._nursery.end()
        self.database.close()

    def _give_back(self) -> None:
        """Put jobs back that could not be ended, before anybody takes their worker for dead."""
        while self._given_up:
            self.store.release(self._given_up[-1])
            self._given_up.pop()

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self.stopping and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 0.25))

    def _ready(self) -> bool:
        """Whether a job can be done now; loads the engine again where its process died."""
        if self._nursery is not None and self._nursery.ready():
            return True
        clock = time.monotonic()
        if (self._nursery is None or not self._nursery.alive()) and clock - self._loaded > self._reload:
            if self._nursery is not None:
                log.warning("the engine's process ended; loading it again")
                self._reload = min(2 * self._reload, 30.0)
            self._loaded = clock
            self._nursery = EngineProcess(self.settings)
        return False

    @property
    def nursery(self) -> EngineProcess:
        """The process that has the engine loaded; only asked for while a job is held."""
        assert self._nursery is not None
        return self._nursery

    def _housekeeping(self) -> None:
        clock = time.monotonic()
        if clock - self._reaped > self.settings.lease / 3:
            self._reaped = clock
            self.store.reap()
        if clock - self._swept > min(_SWEEP, self.settings.limits.grace):
            self._swept = clock
            self.retention.expire()
            self.blobs.sweep(*self.retention.references(), self.settings.limits.grace)
            self.uploads.sweep(self.settings.limits.retention)
            self.blobs.sweep_incoming(self.settings.limits.body_seconds + self.settings.limits.grace)

    def _finish(self, held: JobClaim) -> None:
        """Run one claim to its end and remove what it left."""
        folder = self.blobs.work / f"{held.id}-{held.attempt}"
        keep = self.settings.lease * 10
        began = time.monotonic()
        state = "lost"
        log.info("job begun", extra=_ids(held) | {"waited": round(held.waited, 3)})
        try:
            try:
                state = self._attempt(held, folder, keep)
            except OSError as error:  # a blob that is gone, a full disk
                problem = _problem_of(error)
                log.error("job's files: %s", error, extra=_ids(held))
                state = self.database.persist(lambda: self._fail(held, problem), keep)
        except DBAPIError:
            log.exception("job given up: the database did not take its end", extra=_ids(held))
            self._given_up.append(held)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            log.info("job ended", extra=_ids(held) | {"state": state, "seconds": round(time.monotonic() - began, 3)})

    def _fail(self, held: JobClaim, problem: dict[str, Any]) -> str:
        """End a job with a problem; a disk that is full today may have room later."""
        if problem.get("type") == DISK_FULL and self.store.defer(held, problem):
            return "deferred"
        self.store.fail(held, problem)
        return "failed"

    def _attempt(self, held: JobClaim, folder: Path, keep: float) -> str:
        known = self.store.cached(held.cache_key)  # an equal job may have ended since this one was queued
        if known is not None:
            self.database.persist(lambda: self.store.succeed(held, known, cache=False, cached=True), keep)
            return "succeeded"
        last = held.losses > 0 and held.losses + 1 >= self.settings.limits.attempts  # others took their worker along
        end, outcome = self._run(held, folder, reduced=last)
        if end == "done" and outcome.get("out_of_memory") and not last:
            log.warning("job out of memory; tried again with less", extra=_ids(held))
            shutil.rmtree(folder)
            end, outcome = self._run(held, folder, reduced=True)
        match end:
            case "done" if "error" in outcome:
                return self.database.persist(lambda: self._fail(held, outcome["error"]), keep)
            case "done":
                outputs = self._adopt(held, folder, outcome["outputs"])
                self.database.persist(lambda: self.store.succeed(held, outputs, cache=reusable(outputs)), keep)
                return "succeeded"
            case "cancel":
                self.database.persist(lambda: self.store.stop(held), keep)
                return "cancelled"
            case "stopping":
                self.database.persist(lambda: self.store.release(held), keep)
                return "released"
        log.warning("job lost; it will be tried again", extra=_ids(held))
        return "lost"

    def _run(self, held: JobClaim, folder: Path, *, reduced: bool) -> tuple[str, dict[str, Any]]:
        """Have a child do the job: how that ended, and what it left where it came to its end."""
        self._prepare(held, folder, reduced=reduced)
        run = _Run(self, held, folder)
        end = run.watch()
        return end, _read_outcome(folder, run, reduced=reduced) if end == "done" else {}

    def _prepare(self, held: JobClaim, folder: Path, *, reduced: bool) -> None:
        for part in ("in", "out", "tmp"):
            (folder / part).mkdir(parents=True, mode=0o700)
        self.blobs.copy(held.model, folder / "in" / MODEL_FILE)
        for name, digest in sidecars(held.weights).items():
            self.blobs.copy(digest, folder / "in" / name)
        job = {"options": held.options, "onnx": held.media == ONNX, "reduced": reduced}
        (folder / "job.json").write_text(json.dumps(job))

    def _adopt(self, held: JobClaim, folder: Path, outputs: dict[str, Any]) -> dict[str, Any]:
        files = {}
        frames = {path.stem: path.name for path in (folder / "out").glob(f"{FRAME}*.json")}
        for name, file in (FILES | frames).items():
            if (path := folder / "out" / file).is_file():
                digest, size = self.blobs.adopt(path)
                files[name] = {"sha256": digest, "size": size}
        received = sum(self.blobs.path(d).stat().st_size for d in (held.model, *sidecars(held.weights).values()))
        return {**outputs, "files": files, "input": received}


class _Run:
    """One claim in its child, from start to end."""

    def __init__(self, worker: JobWorker, held: JobClaim, folder: Path) -> None:
        self.worker = worker
        self.held = held
        self.folder = folder
        self.nursery = worker.nursery
        self.pid = 0
        self.code: int | None = None  # how the child ended
        self.started = time.monotonic()
        self.overtime = False
        self._heard = 0
        self.nursery.ask(folder)

    def watch(self) -> str:
        """Wait for the end: "done" (whatever came of it), "cancel", "stopping" or "lost"."""
        beat = 0.0
        try:
            while True:
                match self.nursery.hear(0.1):
                    case ("pid", number):
                        self.pid, self.started = number, time.monotonic()
                    case ("exit", number):
                        self.pid, self.code = 0, number
                        return "done"
                    case ("gone", _):
                        return "lost"  # like a worker that dies: tried again when the lease is over, not for ever
                if self.worker.stopping:
                    return "stopping"
                if time.monotonic() - beat > min(_BEAT, self.worker.settings.lease / 4):
                    beat = time.monotonic()
                    if (pulse := self._beat()) != "go on":
                        return pulse
                    self._tell()
                self._mind_the_time()
        finally:
            self._end()

    def _beat(self) -> str:
        store, lease = self.worker.store, self.worker.settings.lease

        def beat() -> str:
            store.watch()  # whoever is silent is seen by those that are busy, too
            return store.heartbeat(self.held)

        return self.worker.database.persist(beat, lease / 2)

    def _tell(self) -> None:
        """Pass the child's latest progress on."""
        path = self.folder / "progress"
        with contextlib.suppress(OSError, ValueError, DBAPIError):  # progress is a courtesy
            if (changed := path.stat().st_mtime_ns) != self._heard:
                self._heard = changed
                said = json.loads(path.read_text())
                known = {name: said[name] for name in ("done", "total", "what") if name in said}
                self.worker.store.progress(self.held, known)

    def _mind_the_time(self) -> None:
        limits = self.worker.settings.limits
        over = time.monotonic() - self.started - limits.job_seconds
        if not self.pid or over <= 0:
            return
        with contextlib.suppress(ProcessLookupError):
            if over > limits.last_words:
                os.killpg(self.pid, signal.SIGKILL)
            elif not self.overtime:
                self.overtime = True
                os.kill(self.pid, signal.SIGINT)  # search returns the best so far

    def _end(self) -> None:
        """Make sure that the child is gone, and the nursery ready for the next."""
        if self.code is not None:
            return
        if self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline:
                match self.nursery.hear(0.1):
                    case ("exit", _):
                        return
                    case ("gone", _):
                        break
        self.nursery.end()  # it does not answer: the next job gets a new one

    def stderr(self) -> str:
        """The end of what the child wrote to standard error."""
        try:
            with (self.folder / "stderr").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 2000))
                return file.read().decode(errors="replace")
        except OSError:
            return ""


def _read_outcome(folder: Path, run: _Run, *, reduced: bool) -> dict[str, Any]:
    """What the child wrote, or what its end means if it could not write.

    Returns:
        ``outputs`` or ``error``; beside it ``out_of_memory``.
    """
    try:
        found = dict(json.loads((folder / "outcome.json").read_text()))
        error = found.get("error", {})
        if error.get("exit_code") == 1 or "type" in error or found.get("out_of_memory"):
            log.error("job: %s", run.stderr(), extra=_ids(run.held))
    except (OSError, ValueError):
        found = _outcome_of_end(run)
    if reduced and found.get("out_of_memory"):
        error = found["error"]
        error["detail" if "detail" in error else "what"] += _REDUCED
    return found


def _outcome_of_end(run: _Run) -> dict[str, Any]:
    log.warning("job's process ended with %s: %s", run.code, run.stderr(), extra=_ids(run.held))
    limits = run.worker.settings.limits
    if run.overtime or run.code == -signal.SIGXCPU:
        detail = f"no result within {limits.job_seconds:.0f} seconds"
        return {"error": {"type": "resource-limit", "status": 422, "detail": detail}}
    if run.code == NO_ROOM:
        return {"error": _problem_of(OSError(errno.ENOSPC, ""))}
    code = run.code or 0
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    detail = f"the process ended with {how} (memory limit: {limits.job_memory >> 20} MiB)"
    return {"error": {"type": "crashed", "status": 422, "detail": detail}, "out_of_memory": code in _OUT_OF_MEMORY}


def _problem_of(error: OSError) -> dict[str, Any]:
    """The problem of a job whose files could not be read or written."""
    found = meaning(error)
    kind, text = (found.kind, found.text) if found else ("unavailable", f"the job's files: {error.strerror or error}")
    return {"type": kind, "status": 503, "detail": text}


def _ids(held: JobClaim) -> dict[str, Any]:
    """By what the lines of a job are found in the log."""
    return {"job": held.id, "attempt": held.attempt, "key": held.owner}


def main() -> None:
    """``python -m superopt.server.jobs.worker SETTINGS`` with the settings as JSON: how ``serve`` starts its
    workers."""
    from superopt.server.jobs.supervisor import die_with_parent, from_json

    settings, parent = from_json(sys.argv[1]), int(sys.argv[2])
    logs.set_up(settings.log_level, settings.log_format)
    die_with_parent(parent)
    work(settings)


if __name__ == "__main__":
    main()
