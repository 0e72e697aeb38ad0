"""A worker: claims a job, runs it in a child that it can kill, and says how it ended.

The worker itself never opens what clients sent; it copies files, keeps the lease alive and watches the clock.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sqlalchemy.exc import DBAPIError

import superopt
from superopt.server.blobs import Blobs
from superopt.server.database import Database
from superopt.server.settings import Settings
from superopt.server.store import Claim, Store

__all__ = ["Worker", "work"]

log = logging.getLogger("superopt.worker")

_ROOT = str(Path(superopt.__file__).parents[1])
_START = "import sys; sys.path.append({root!r}); from superopt.server.child import main; main()"
_BEAT = 0.5  # seconds between heartbeats, hence the longest that a cancellation goes unnoticed
_SWEEP = 30.0
_RESPAWN = 1.0  # seconds between two attempts to have a child ready, should it die again and again
_FILES = {"json": "graph.json", "onnx": "graph.onnx", "report": "report.json"}


def work(settings: Settings) -> None:
    """Run jobs until SIGTERM or SIGINT; the job in hand then goes back to the queue."""
    worker = Worker(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stop())
    worker.run()


class Worker:
    """One job after another."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self.database = Database(settings.url)
        self.store = Store(self.database, settings.limits)
        self.blobs = Blobs(settings.data)
        self.stopping = False
        self._swept = 0.0
        self._reaped = 0.0
        self._spare: _Child | None = None
        self._spared = -_RESPAWN

    def stop(self) -> None:
        """End after giving the job in hand back."""
        self.stopping = True

    def run(self) -> None:
        """Claim and run until :meth:`stop`."""
        self.database.persist(self.database.migrate, 60)
        while not self.stopping:
            try:
                self._housekeeping()
                held = self.store.claim(self.name, self.settings.lease)
            except DBAPIError as error:
                log.warning("the database does not answer: %s", type(error.orig).__name__)
                time.sleep(1.0)
                continue
            if held is not None:
                self._finish(held)
            else:
                self._idle()
        if self._spare is not None:
            self._spare.kill()
        self.database.close()

    def take_child(self) -> _Child:
        """A child for one job: the one that got ready meanwhile, if there is one and it lives."""
        spare, self._spare = self._spare, None
        if spare is not None and spare.process.poll() is None:
            return spare
        return _Child(self.settings)

    def _idle(self) -> None:
        """Nothing to do: let a child load the engine, so that the next job need not wait for that."""
        clock = time.monotonic()
        if (self._spare is None or self._spare.process.poll() is not None) and clock - self._spared > _RESPAWN:
            self._spared = clock
            self._spare = _Child(self.settings)
        time.sleep(self.settings.poll)

    def _housekeeping(self) -> None:
        clock = time.monotonic()
        if clock - self._reaped > self.settings.lease / 3:
            self._reaped = clock
            self.store.reap()
        if clock - self._swept > min(_SWEEP, self.settings.limits.grace):
            self._swept = clock
            self.store.expire()
            self.blobs.sweep(*self.store.references(), self.settings.limits.grace)
            self.blobs.sweep_incoming(self.settings.limits.body_seconds + self.settings.limits.grace)

    def _finish(self, held: Claim) -> None:
        """Run one claim to its end and remove what it left."""
        folder = self.blobs.work / f"{held.id}-{held.attempt}"
        keep = self.settings.lease * 10
        try:
            self._attempt(held, folder, keep)
        except DBAPIError:
            log.exception("job %s, attempt %d: given up, another worker will take it", held.id, held.attempt)
        except OSError as error:  # a blob that is gone, a full disk
            problem = {"type": "unavailable", "status": 503, "detail": f"the job's files: {error.strerror}"}
            self.database.persist(lambda: self.store.fail(held, problem), keep)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _attempt(self, held: Claim, folder: Path, keep: float) -> None:
        known = self.store.cached(held.cache_key)  # an equal job may have ended since this one was queued
        if known is not None:
            self.database.persist(lambda: self.store.succeed(held, known, cache=False, cached=True), keep)
            return
        self._prepare(held, folder)
        run = _Run(self, held, folder)
        match run.watch():
            case "done":
                outcome = _read_outcome(folder, run)
                if "error" in outcome:
                    self.database.persist(lambda: self.store.fail(held, outcome["error"]), keep)
                else:
                    outputs = self._adopt(held, folder, outcome["outputs"])
                    self.database.persist(lambda: self.store.succeed(held, outputs), keep)
            case "cancel":
                self.database.persist(lambda: self.store.stop(held), keep)
            case "stopping":
                self.database.persist(lambda: self.store.release(held), keep)
            case "lost":
                log.warning("job %s, attempt %d: another worker has it", held.id, held.attempt)

    def _prepare(self, held: Claim, folder: Path) -> None:
        for part in ("in", "out", "tmp"):
            (folder / part).mkdir(parents=True, mode=0o700)
        self.blobs.copy(held.model, folder / "in" / "model")
        if held.weights is not None:
            self.blobs.copy(held.weights, folder / "in" / "weights.safetensors")
        (folder / "job.json").write_text(json.dumps({"options": held.options}))

    def _adopt(self, held: Claim, folder: Path, outputs: dict[str, Any]) -> dict[str, Any]:
        files = {}
        for name, file in _FILES.items():
            if (path := folder / "out" / file).is_file():
                digest, size = self.blobs.adopt(path)
                files[name] = {"sha256": digest, "size": size}
        received = sum(self.blobs.path(d).stat().st_size for d in (held.model, held.weights) if d)
        return {**outputs, "files": files, "input": received}


class _Child:
    """A process that is ready, or getting ready, to do one job."""

    def __init__(self, settings: Settings) -> None:
        limits = settings.limits
        seconds = limits.job_seconds + limits.last_words
        given = json.dumps({"memory": limits.job_memory, "result": limits.result, "seconds": seconds})
        environment = {
            "PATH": os.defpath, "HOME": str(settings.data / "work"), "OMP_NUM_THREADS": "1",
            "SUPEROPT_CACHE": str(settings.data / "profile"),
        }  # fmt: skip
        self.errors = tempfile.TemporaryFile(dir=settings.data / "work")  # noqa: SIM115  (lives as long as this)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", _START.format(root=_ROOT), str(os.getpid()), given],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, env=environment, cwd="/",
            start_new_session=True,
        )  # fmt: skip

    def give(self, folder: Path) -> None:
        """Hand over the one job."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as ear:
            ear.write(f"{folder}\n".encode())

    def kill(self) -> None:
        """End it and whatever it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def last_words(self) -> str:
        """The end of what it wrote to standard error."""
        size = self.errors.seek(0, os.SEEK_END)
        self.errors.seek(max(0, size - 2000))
        return self.errors.read().decode(errors="replace")


class _Run:
    """One claim in its child, from start to end."""

    def __init__(self, worker: Worker, held: Claim, folder: Path) -> None:
        self.worker = worker
        self.held = held
        self.child = worker.take_child()
        self.process = self.child.process
        self.started = time.monotonic()
        self.overtime = False
        self.child.give(folder)

    def watch(self) -> str:
        """Wait for the end: "done" (whatever came of it), "cancel", "stopping" or "lost"."""
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        beat, words = 0.0, b""
        with selectors.DefaultSelector() as ready, self.process.stdout as voice:
            ready.register(voice, selectors.EVENT_READ)
            try:
                while True:
                    if ready.select(0.1):
                        chunk = voice.read(1 << 16)
                        if chunk == b"":
                            self._last_moment()
                            return "done"
                        words = self._hear((words + (chunk or b""))[-(1 << 20) :])
                    if self.worker.stopping:
                        return "stopping"
                    if time.monotonic() - beat > min(_BEAT, self.worker.settings.lease / 4):
                        beat = time.monotonic()
                        if (pulse := self._beat()) != "go on":
                            return pulse
                    self._mind_the_time()
            finally:
                self.child.kill()

    def _beat(self) -> str:
        lease = self.worker.settings.lease
        try:
            return self.worker.database.persist(lambda: self.worker.store.heartbeat(self.held, lease), lease / 2)
        except DBAPIError:
            return "lost"  # nobody knows that this job is held, so it is not

    def _hear(self, words: bytes) -> bytes:
        """Write down the last of the complete progress messages; returns the incomplete one."""
        *lines, rest = words.split(b"\n")
        if lines:
            with contextlib.suppress(ValueError, DBAPIError):  # progress is a courtesy
                self.worker.store.progress(self.held, dict(json.loads(lines[-1])))
        return rest

    def _mind_the_time(self) -> None:
        limits = self.worker.settings.limits
        over = time.monotonic() - self.started - limits.job_seconds
        if over > limits.last_words:
            self.child.kill()
        elif over > 0 and not self.overtime:
            self.overtime = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGINT)  # search returns the best so far

    def _last_moment(self) -> None:
        """The pipe is closed; the process is about to end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)


def _read_outcome(folder: Path, run: _Run) -> dict[str, Any]:
    """What the child wrote, or what its end means if it could not write."""
    try:
        found = json.loads((folder / "outcome.json").read_text())
        if found.get("error", {}).get("exit_code") == 1:
            log.error("job %s: %s", run.held.id, run.child.last_words())
        return dict(found)
    except (OSError, ValueError):
        pass
    log.warning("job %s: the child ended with %s: %s", run.held.id, run.process.returncode, run.child.last_words())
    if not (folder / "taken").exists():  # it died before it saw the job: not the job's fault
        return {"error": {"type": "internal", "status": 500, "detail": "the engine could not be loaded"}}
    limits = run.worker.settings.limits
    if run.overtime or run.process.returncode == -signal.SIGXCPU:
        detail = f"no result within {limits.job_seconds:.0f} seconds"
        return {"error": {"type": "resource-limit", "status": 422, "detail": detail}}
    code = run.process.returncode
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    detail = f"the process ended with {how} (memory limit: {limits.job_memory >> 20} MiB)"
    return {"error": {"type": "crashed", "status": 422, "detail": detail}}


def main() -> None:
    """``python -m superopt.server.worker SETTINGS`` with the settings as JSON: how ``serve`` starts its workers."""
    from superopt.server.supervisor import die_with_parent, from_json

    settings, parent = from_json(sys.argv[1]), int(sys.argv[2])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    die_with_parent(parent)
    work(settings)


if __name__ == "__main__":
    main()
