"""A task in a process of its own: what kills it, or takes too long, takes nothing else with it.

Wherever a task runs (a thread of this process, a Dask worker's, an MPI rank) it is handed to a child process, which is
kept for the next one. So a worker answers its cluster while it computes, and a crash is the task's, not the worker's.
A child ends with the process that started it: its channel then closes.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import platform
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from typing import Any

from superopt.fleet import environment_digest
from superopt.ir.disk_cache import UNKEPT, cache_directory
from superopt.ir.errors import BackendUnavailable, MachineLimit, ResourceLimit, SuperoptError
from superopt.ir.temporary_folders import own_folder

__all__ = [
    "ChildProcessPool",
    "TaskLost",
    "CallTiming",
    "WorkerMismatch",
    "ends_with",
    "isolated",
    "packed",
    "unpacked",
]

_START = "import sys, json; sys.path[:] = json.loads(sys.argv[2]); from superopt.fleet import child; child.serve()"
_IDLE = 300.0  # seconds without a task after which a child ends
_PR_SET_PDEATHSIG = 1


def ends_with(parent: int) -> bool:
    """Have the system end this process (by SIGKILL) when the thread that started it ends, on Linux; whether the parent
    is still there."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


@dataclass(frozen=True)
class CallTiming:
    """What a call took.

    Attributes:
        seconds: of processor time.
        began, ended: on the monotonic clock of the worker's machine.
        worker: process id.
    """

    seconds: float
    began: float
    ended: float
    worker: int


class TaskLost(ResourceLimit):
    """A task's process died or was ended; ``task`` and how often it was tried are in the message."""


class WorkerMismatch(Exception):
    """A worker refuses a task, because it is not like the client: ``why``."""

    def __init__(self, why: SuperoptError) -> None:
        self.why = why
        super().__init__(why)


def packed(
    function: Callable[..., Any], arguments: tuple[Any, ...], *, files: Mapping[str, str] | None, seconds: float | None,
    last: bool,
) -> bytes:  # fmt: skip
    """A call as bytes.

    Args:
        function: of a module, so that another process finds it.
        arguments: that can be pickled.
        files: digests of the files that it reads; ``None`` where it runs on the machine that asks.
        seconds: after which its process is ended.
        last: end the process afterwards, so that its memory is free.
    """
    common = None if files is None else (dict(environment_digest.here()), dict(files))
    head = json.dumps({"common": common, "seconds": seconds, "last": last}).encode()
    return len(head).to_bytes(4, "big") + head + pickle.dumps((function, arguments), protocol=5)


def unpacked(answer: bytes) -> tuple[Any, CallTiming]:
    """What a call returned, and what it took.

    Raises:
        BaseException: what it raised.
    """
    good, value, took = pickle.loads(answer)
    if not good:
        raise value
    return value, CallTiming(*took)


class ChildProcessPool:
    """Child processes, as many as calls run at once; what ran last runs next."""

    def __init__(self) -> None:
        self._idle: list[_Child] = []
        self._all: list[_Child] = []
        self._lock = threading.Lock()
        self._closed = False

    def run(self, call: bytes) -> bytes:
        """Run a call in a child.

        Raises:
            TaskLost: the child died, or took longer than it may.
            BackendUnavailable: none can be started.
        """
        size = int.from_bytes(call[:4], "big")
        head = json.loads(call[4 : 4 + size])
        child = self._taken()
        kept = False
        try:
            answer = child.ask(call, head["seconds"])
            kept = not head["last"]
            return answer
        finally:
            if not kept:  # also where the wait was interrupted: what it would still say answers no other call
                child.end()
            with self._lock:
                if child.alive():
                    self._idle.append(child)
                else:
                    self._all.remove(child)

    def _taken(self) -> _Child:
        """A child that has nothing to do, or a new one."""
        with self._lock:
            if self._closed:
                raise TaskLost("the fleet was closed")
            while self._idle:
                if (known := self._idle.pop()).alive():
                    return known
                self._all.remove(known)
            try:
                made = _Child()
            except OSError as error:
                raise BackendUnavailable(
                    f"no process for a worker can be started ({error.strerror or error}); {len(self._all)} run",
                    where=platform.node(),
                    hint="fewer --workers, or higher limits of files and processes (ulimit -n, -u)",
                ) from None  # fmt: skip
            self._all.append(made)
            return made

    def close(self) -> None:
        """End them all; threads that wait for one get :class:`TaskLost`."""
        with self._lock:
            self._closed = True
            for child in self._all:  # all are told before one is waited for: a second Ctrl-C may fall into that
                child.process.kill()
            for child in self._all:
                child.end()


_REMOTE = ChildProcessPool()  # of a process that is a worker of some cluster


def isolated(call: bytes) -> bytes:
    """:meth:`ChildProcessPool.run` in a worker of a cluster."""
    return _REMOTE.run(call)


class _Child:
    """One process and the channel to it."""

    def __init__(self) -> None:
        here, there = Pipe()
        self.channel: Connection = here
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START, str(there.fileno()), json.dumps(sys.path), json.dumps([*UNKEPT])],
                pass_fds=(there.fileno(),), stdin=subprocess.DEVNULL, stdout=2, env=_environment(),
            )  # fmt: skip
        except OSError:
            here.close()
            raise
        finally:
            there.close()

    def alive(self) -> bool:
        return self.process.poll() is None

    def ask(self, call: bytes, seconds: float | None) -> bytes:
        try:
            self.channel.send_bytes(call)
            if self.channel.poll(seconds):
                return self.channel.recv_bytes()
            why = f"it took longer than the {seconds:.0f} s that it may"
        except (EOFError, OSError):
            why = ""
        self.end()
        raise TaskLost(why or f"its process ended with {self.process.returncode}", where=f"worker on {platform.node()}")

    def end(self) -> None:
        """End the process; who waits for its answer finds the channel's other end closed."""
        self.process.kill()
        self.process.wait()


def _environment() -> dict[str, str]:
    """Temporary files of a child lie in this process's folder, so that they go with it where the child is killed; so
    does its cache where there is no other."""
    made = dict(os.environ)
    with suppress(MachineLimit):
        made |= {"TMPDIR": str(own_folder()), "SUPEROPT_CACHE": str(cache_directory().absolute())}
    return made


def serve() -> None:
    """What a child does: call after call, until the channel closes or nothing comes for a while."""
    UNKEPT.update(json.loads(sys.argv[3]))  # what was reported is not reported by each child
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the client's to handle; it ends this process
    channel = Connection(int(sys.argv[1]))
    calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(channel, calls), daemon=True).start()
    while True:
        try:
            call = calls.get(timeout=_IDLE)
        except queue.Empty:
            os._exit(0)
        channel.send_bytes(_answer(call))


def _listen(channel: Connection, calls: queue.SimpleQueue[bytes]) -> None:
    """Ends this process, whatever it computes, when the one that started it is gone."""
    while True:
        try:
            calls.put(channel.recv_bytes())
        except (EOFError, OSError):
            os._exit(1)


def _answer(call: bytes) -> bytes:
    size = int.from_bytes(call[:4], "big")
    good, value, started, began = True, None, time.process_time(), time.monotonic()
    try:
        common = json.loads(call[4 : 4 + size])["common"]
        if common is not None:
            try:
                environment_digest.check(*common)
            except SuperoptError as error:
                raise WorkerMismatch(error) from None
        function, arguments = pickle.loads(call[4 + size :])
        value = function(*arguments)
    except BaseException as error:
        good, value = False, error
    took = (time.process_time() - started, began, time.monotonic(), os.getpid())
    try:
        return pickle.dumps((good, value, took), protocol=5)
    except Exception as error:
        text = f"{type(value).__name__} cannot be sent: {error}" if good else f"{type(value).__name__}: {value}"
        return pickle.dumps((False, RuntimeError(text), took), protocol=5)
