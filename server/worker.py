"""A worker: claims a job, runs it in a child that it can kill, and says how it ended.

The worker itself never opens what clients sent; it copies files, keeps the lease alive and watches the clock.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sqlalchemy.exc import DBAPIError

import superopt
from superopt.server.blobs import Blobs
from superopt.server.body import MODEL_FILE, ONNX, sidecars
from superopt.server.child import FILES, FRAME
from superopt.server.copies import Copies
from superopt.server.database import Database
from superopt.server.settings import Settings
from superopt.server.store import Claim, Store, reusable
from superopt.server.uploads import Uploads

__all__ = ["Worker", "work"]

log = logging.getLogger("superopt.worker")

_ROOT = str(Path(superopt.__file__).parents[1])
_START = "import sys; sys.path.append({root!r}); from superopt.server.child import main; main()"
_BEAT = 0.5  # seconds between heartbeats, hence the longest that a cancellation goes unnoticed
_SWEEP = 30.0
_RELOAD = 1.0  # seconds before the engine is loaded again, doubled each time


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
        self.blobs = Blobs(settings.data, Copies(self.database) if settings.apart else None)
        self.uploads = Uploads(settings.data, self.blobs, settings.limits.upload, settings.limits.uploads)
        self.stopping = False
        self._swept = 0.0
        self._reaped = 0.0
        self._nursery: _Nursery | None = None
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
                self._housekeeping()
                held = self.store.claim(self.name, self.settings.lease) if self._ready() else None
                silence = 1.0
            except DBAPIError as error:
                log.warning("the database does not answer: %s", type(error.orig).__name__)
                self._sleep(silence)
                silence = min(2 * silence, 15.0)
                continue
            if held is not None:
                self._finish(held)
            else:
                self._sleep(self.settings.poll)
        if self._nursery is not None:
            self._nursery.end()
        self.database.close()

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
            self._nursery = _Nursery(self.settings)
        return False

    @property
    def nursery(self) -> _Nursery:
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
            self.store.expire()
            self.blobs.sweep(*self.store.references(), self.settings.limits.grace)
            self.uploads.sweep(self.settings.limits.retention)
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
                    self.database.persist(lambda: self.store.succeed(held, outputs, cache=reusable(outputs)), keep)
            case "cancel":
                self.database.persist(lambda: self.store.stop(held), keep)
            case "stopping":
                self.database.persist(lambda: self.store.release(held), keep)
            case "lost":
                log.warning("job %s, attempt %d: lost; it will be tried again", held.id, held.attempt)

    def _prepare(self, held: Claim, folder: Path) -> None:
        for part in ("in", "out", "tmp"):
            (folder / part).mkdir(parents=True, mode=0o700)
        self.blobs.copy(held.model, folder / "in" / MODEL_FILE)
        for name, digest in sidecars(held.weights).items():
            self.blobs.copy(digest, folder / "in" / name)
        (folder / "job.json").write_text(json.dumps({"options": held.options, "onnx": held.media == ONNX}))

    def _adopt(self, held: Claim, folder: Path, outputs: dict[str, Any]) -> dict[str, Any]:
        files = {}
        frames = {path.stem: path.name for path in (folder / "out").glob(f"{FRAME}*.json")}
        for name, file in (FILES | frames).items():
            if (path := folder / "out" / file).is_file():
                digest, size = self.blobs.adopt(path)
                files[name] = {"sha256": digest, "size": size}
        received = sum(self.blobs.path(d).stat().st_size for d in (held.model, *sidecars(held.weights).values()))
        return {**outputs, "files": files, "input": received}


class _Nursery:
    """The process that has the engine loaded and forks a child for each job."""

    def __init__(self, settings: Settings) -> None:
        limits = settings.limits
        seconds = limits.job_seconds + limits.last_words
        given = json.dumps(
            {"memory": limits.job_memory, "result": limits.result, "inline": limits.inline, "seconds": seconds}
        )
        environment = {
            "PATH": os.defpath, "HOME": "/nonexistent", "OMP_NUM_THREADS": "1",
            "SUPEROPT_CACHE": str(settings.data / "profile"),
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", _START.format(root=_ROOT), str(os.getpid()), given],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd="/", start_new_session=True,
        )  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._ear, self._mouth = self.process.stdin, self.process.stdout
        os.set_blocking(self._mouth.fileno(), False)
        self._said = b""
        self._loaded = False

    def ask(self, folder: Path) -> None:
        """Have a child do the job in this folder."""
        with contextlib.suppress(BrokenPipeError):
            self._ear.write(f"{folder}\n".encode())
            self._ear.flush()

    def hear(self, seconds: float) -> tuple[str, int] | None:
        """What it says next, within ``seconds``: ("pid", N), ("exit", N), or ("gone", 0) if it died."""
        if b"\n" not in self._said and select.select([self._mouth], [], [], seconds)[0]:
            chunk = self._mouth.read(4096)
            if chunk == b"":
                return "gone", 0
            self._said += chunk or b""
        if b"\n" not in self._said:
            return None
        line, _, self._said = self._said.partition(b"\n")
        word, number = line.split()
        return word.decode(), int(number)

    def ready(self) -> bool:
        """Whether it has the engine loaded and lives."""
        if not self._loaded and (said := self.hear(0)) is not None:
            self._loaded = said[0] == "ready"
        return self._loaded and self.alive()

    def alive(self) -> bool:
        """Whether it can be asked."""
        return self.process.poll() is None

    def end(self) -> None:
        """End it; a child that it still has dies too."""
        self.process.kill()
        self.process.wait()
        for pipe in (self._ear, self._mouth):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class _Run:
    """One claim in its child, from start to end."""

    def __init__(self, worker: Worker, held: Claim, folder: Path) -> None:
        self.worker = worker
        self.held = held
        self.folder = folder
        self.nursery = worker.nursery
        self.pid = 0
        self.code: int | None = None  # how the child ended
        self.started = time.monotonic()
        self.overtime = False
        self._heard = 0.0
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
        lease = self.worker.settings.lease
        try:
            return self.worker.database.persist(lambda: self.worker.store.heartbeat(self.held, lease), lease / 2)
        except DBAPIError:
            return "lost"  # nobody knows that this job is held, so it is not

    def _tell(self) -> None:
        """Pass the child's latest progress on."""
        path = self.folder / "progress"
        with contextlib.suppress(OSError, ValueError, DBAPIError):  # progress is a courtesy
            if (changed := path.stat().st_mtime) > self._heard:
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


def _read_outcome(folder: Path, run: _Run) -> dict[str, Any]:
    """What the child wrote, or what its end means if it could not write."""
    try:
        found = json.loads((folder / "outcome.json").read_text())
        if found.get("error", {}).get("exit_code") == 1:
            log.error("job %s: %s", run.held.id, run.stderr())
        return dict(found)
    except (OSError, ValueError):
        pass
    log.warning("job %s: the child ended with %s: %s", run.held.id, run.code, run.stderr())
    limits = run.worker.settings.limits
    if run.overtime or run.code == -signal.SIGXCPU:
        detail = f"no result within {limits.job_seconds:.0f} seconds"
        return {"error": {"type": "resource-limit", "status": 422, "detail": detail}}
    code = run.code or 0
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
