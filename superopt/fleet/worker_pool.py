"""The one type behind which processes, a cluster and an MPI job look alike."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from superopt.fleet import dask_cluster, environment_digest, mpi
from superopt.fleet.child import CallTiming, ChildProcessPool, TaskLost, WorkerMismatch, isolated, packed, unpacked
from superopt.fleet.dask_cluster import TIMEOUTS, ClusterTimeouts
from superopt.ir.errors import BackendUnavailable, SuperoptError, UsageError, printable

__all__ = ["TaskResultStore", "WorkerPool", "TaskOutcome", "WorkerTask", "cores"]

T = TypeVar("T")

_ATTEMPTS = 3  # of a task whose process dies: then it is the task
_AHEAD = 2  # tasks given out for each worker of a cluster: one is under way while the next travels
_WINDOW = 8  # and results held back for each, where they are wanted in order
_PROCESS = 128 << 20  # bytes that a worker's process takes at least, with NumPy, ONNX Runtime and the rules loaded


class TaskResultStore(Protocol):
    """Results of finished tasks by their digests: a :class:`.TaskJournal`, or a folder of files."""

    def get(self, key: str) -> Mapping[str, Any] | None:
        """What is kept under a digest."""

    def put(self, key: str, data: Mapping[str, Any]) -> None:
        """Keep a result, whole or not at all."""


@dataclass(frozen=True)
class WorkerTask(Generic[T]):
    """A call of a pure function.

    Attributes:
        function: of a module, so that another process finds it; its result can be pickled. Where results are kept, it
            is a JSON object.
        arguments: what it is given; they can be pickled.
        name: for people.
        key: digest of everything that decides the result; without one it is not kept.
        files: files and folders that it reads, which a worker elsewhere must have under the same path.
        seconds: after which its process is ended, and the task :class:`.TaskLost`.
        bytes: of memory that it needs, where that is more than any process needs, so that this machine is not given
            too many at once.
        last: whether its process is not used again, so that its memory is free.
    """

    function: Callable[..., T]
    arguments: tuple[Any, ...]
    name: str = ""
    key: str = ""
    files: tuple[Path, ...] = ()
    seconds: float | None = None
    bytes: int = 0
    last: bool = False


@dataclass(frozen=True)
class TaskOutcome(Generic[T]):
    """How a task ended. ``kept``: in an earlier run."""

    task: WorkerTask[T]
    value: T | None
    error: BaseException | None = None
    kept: bool = False

    def result(self) -> T:
        """What the task returned.

        Raises:
            TaskLost: its process died each time it was tried, or took too long. BaseException: what the task raised.
        """
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # of a task without an error it is what the function returned


@dataclass
class _Given(Generic[T]):
    """A task that is under way: its place among all, and which attempt this is."""

    number: int
    task: WorkerTask[T]
    attempt: int = 1


class WorkerPool:
    """Workers, wherever they are. A context manager: open it once for all the work of a command.

    Use :meth:`open`; or give any executor whose workers are on this machine or another one, to run tasks in its own
    processes.

    Attributes:
        where: what it runs on, for people.
        elsewhere: whether workers may be on other machines, and see other files.
        seconds: of processor time that tasks took so far which returned something.
        busy: seconds in which workers were at them, whether they got the processor or not.
    """

    def __init__(
        self, executor: Executor | None = None, *, size: Callable[[], int] = lambda: 1, where: str = "this process",
        elsewhere: bool = False, run: Callable[[bytes], bytes] = isolated, close: Callable[[], None] = lambda: None,
        dead: tuple[type[BaseException], ...] = (), timeouts: ClusterTimeouts = TIMEOUTS,
    ) -> None:  # fmt: skip
        self._executor, self._size, self._run, self._close, self._dead = executor, size, run, close, dead
        self.where, self.elsewhere, self._timeouts = where, elsewhere, timeouts
        self._files: dict[Path, str] = {}
        self.seconds = self.busy = 0.0

    @staticmethod
    def open(workers: int = 1, cluster_address: str | None = None, timeouts: ClusterTimeouts = TIMEOUTS) -> WorkerPool:
        """A fleet from settings.

        Args:
            workers: processes of this machine; 1 works in this process, 0 takes one a core. Not looked at elsewhere.
            cluster_address: ``tcp://HOST:PORT`` (or ``tls://``) of a Dask scheduler, which has workers. Under
                ``mpiexec`` with more than one rank none is needed: the other ranks are the workers.
            timeouts: for the cluster.

        Raises:
            UsageError: the address is none. BackendUnavailable: nothing answers there, it has no workers, or the extra
            that it needs is not installed.
        """
        if cluster_address is not None and mpi.ranks() > 1:
            raise UsageError("--cluster under mpiexec: one of the two", hint="leave out --cluster, or mpiexec")
        if cluster_address is not None:
            found = dask_cluster.connect(cluster_address, timeouts.connect)
            return WorkerPool(
                found.executor, size=found.size, where=f"Dask at {cluster_address}", elsewhere=True, close=found.close,
                dead=found.dead, timeouts=timeouts,
            )  # fmt: skip
        if mpi.ranks() > 1:
            others = mpi.ranks() - 1
            return WorkerPool(mpi.executor(), size=lambda: others, where="MPI", elsewhere=True)
        workers = workers or cores()
        if workers == 1:
            return WorkerPool()
        crew, threads = ChildProcessPool(), ThreadPoolExecutor(workers, thread_name_prefix="fleet")

        def close() -> None:
            crew.close()
            threads.shutdown(cancel_futures=True)

        return WorkerPool(threads, size=lambda: workers, where=f"{workers} processes", run=crew.run, close=close)

    @property
    def size(self) -> int:
        """Tasks that run at the same time, now."""
        return self._size()

    @property
    def alone(self) -> bool:
        """Whether tasks run in this process, so that they may be given what cannot be sent."""
        return self._executor is None

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    def each(
        self,
        tasks: Iterable[WorkerTask[T] | None],
        *,
        kept: TaskResultStore | None = None,
        until: float = float("inf"),
        progress: Callable[[Sequence[str]], None] | None = None,
    ) -> Iterator[TaskOutcome[T]]:
        """Outcomes as they come. Tasks are asked for when there is a worker for them.

        Args:
            tasks: those without an outcome when it ends were not begun in time. ``None`` among them: none now; the
                next is asked for when one has ended, and where none is under way that is the end.
            kept: where results are kept, and found from earlier runs, by ``key``.
            until: on the monotonic clock; no task is begun after it.
            progress: told the names of the tasks that are under way whenever that changes.

        Raises:
            BackendUnavailable: the cluster is gone, or a worker has another version.
            UsageError: a worker does not see a file that a task reads.
        """
        return (outcome for _, outcome in self._outcomes(tasks, kept, until, progress, ordered=False))

    def map(
        self, tasks: Iterable[WorkerTask[T]], *, kept: TaskResultStore | None = None, until: float = float("inf"),
        progress: Callable[[Sequence[str]], None] | None = None,
    ) -> Iterator[TaskOutcome[T]]:  # fmt: skip
        """:meth:`each` in the order of the tasks, with few results held back."""
        early: dict[int, TaskOutcome[T]] = {}
        following = 0
        for number, outcome in self._outcomes(tasks, kept, until, progress, ordered=True):
            early[number] = outcome
            while following in early:
                yield early.pop(following)
                following += 1

    def _outcomes(
        self, tasks: Iterable[WorkerTask[T] | None], kept: TaskResultStore | None, until: float,
        progress: Callable[[Sequence[str]], None] | None, *, ordered: bool,
    ) -> Iterator[tuple[int, TaskOutcome[T]]]:  # fmt: skip
        """Outcomes as they come, with the places of their tasks."""
        line = iter(tasks)
        state = _State[T]()
        try:
            while True:
                yield from self._begin(line, state, kept, until, ordered=ordered)
                if progress is not None and state.running:
                    progress([g.task.name for g in state.running.values()])
                if not state.running:
                    return
                for future in self._finished(state):
                    given = state.running.pop(future)
                    outcome = self._outcome(given, future)
                    if outcome is None:
                        state.again.append(_Given(given.number, given.task, given.attempt + 1))
                        continue
                    if kept is not None and given.task.key and outcome.error is None:
                        kept.put(given.task.key, outcome.value)  # type: ignore[arg-type]  # an object, as Task says
                    state.ended(given.number)
                    yield given.number, outcome
        finally:
            for future in state.running:
                future.cancel()

    def _begin(
        self,
        line: Iterator[WorkerTask[T] | None],
        state: _State[T],
        kept: TaskResultStore | None,
        until: float,
        *,
        ordered: bool,
    ) -> Iterator[tuple[int, TaskOutcome[T]]]:
        """Give out what there are workers and memory for; yields what an earlier run has done."""
        size = self.size
        most = size * _AHEAD if self.elsewhere else size
        while len(state.running) < most and time.monotonic() < until:
            if ordered and state.again == deque() and state.following + most * _WINDOW <= state.begun:
                return
            if (given := state.next(line)) is None:
                return
            known = kept.get(given.task.key) if kept is not None and given.task.key else None
            if known is not None:
                state.ended(given.number)
                yield given.number, TaskOutcome(given.task, known, kept=True)  # type: ignore[arg-type]  # as it was put
                continue
            needed = sum(max(_PROCESS, g.task.bytes) for g in (given, *state.running.values()))
            if state.running and not self.elsewhere and needed > memory():
                state.again.appendleft(given)
                return
            state.running[self._submit(given.task)] = given

    def _submit(self, task: WorkerTask[T]) -> Future[Any]:
        if self._executor is None:
            future: Future[Any] = Future()
            started, began = time.process_time(), time.monotonic()
            try:
                future.set_result(task.function(*task.arguments))
                self._account(CallTiming(time.process_time() - started, began, time.monotonic(), os.getpid()))
            except Exception as error:
                future.set_exception(error)
            return future
        return self._executor.submit(self._run, packed(
            task.function, task.arguments, files=self._digests(task) if self.elsewhere else None, seconds=task.seconds,
            last=task.last,
        ))  # fmt: skip

    def _account(self, took: CallTiming) -> None:
        self.seconds += took.seconds
        self.busy += took.ended - took.began

    def _digests(self, task: WorkerTask[T]) -> dict[str, str]:
        for path in task.files:
            if path not in self._files:
                self._files.update((path, content) for content in environment_digest.of_files([path]).values())
        return {str(path.absolute()): self._files[path] for path in task.files}

    def _finished(self, state: _State[T]) -> list[Future[Any]]:
        """Futures that are done, at least one."""
        silent = None
        while True:
            done, _ = wait(state.running, timeout=self._timeouts.poll, return_when=FIRST_COMPLETED)
            if done:
                return sorted(done, key=lambda f: state.running[f].number)
            if self.size:
                silent = None
            else:
                silent = silent or time.monotonic()
                if time.monotonic() - silent > self._timeouts.workers:
                    raise BackendUnavailable(
                        f"no worker is left since {self._timeouts.workers:.0f} s", where=self.where,
                        hint="start workers and run it again: what is finished is kept where the command keeps it",
                    )  # fmt: skip

    def _outcome(self, given: _Given[T], future: Future[Any]) -> TaskOutcome[T] | None:
        """How a task ended; ``None``: its process died, and it is to be tried again.

        Raises:
            UsageError: a worker is not like this process. BackendUnavailable: the cluster cannot run anything.
        """
        task = given.task
        if self._executor is None:
            error = future.exception()
            return TaskOutcome(task, None if error else future.result(), error)
        try:
            answer = future.result()
        except TaskLost as error:
            if "took longer" not in error.what and given.attempt < _ATTEMPTS:
                return None
            times = f", {given.attempt} times" if given.attempt > 1 else ""
            return TaskOutcome(task, None, TaskLost(f"{error.what}{times}", where=error.where, hint=error.hint))
        except BackendUnavailable as error:  # its worker can start no process: others may
            return TaskOutcome(task, None, error)
        except SuperoptError:
            raise
        except self._dead:
            return TaskOutcome(task, None, TaskLost("its worker died each time it was tried", where=self.where))
        except CancelledError:
            raise BackendUnavailable(
                "the cluster dropped what it was given", where=self.where, hint="is its scheduler up? run it again"
            ) from None
        except Exception as error:  # not the task's, which comes as an answer
            raise BackendUnavailable(
                f"the cluster cannot run superopt ({type(error).__name__}: {printable(str(error))})", where=self.where,
                hint="install the same version of superopt where its scheduler and workers run",
            ) from None  # fmt: skip
        try:
            value, took = unpacked(answer)
            self._account(took)
            return TaskOutcome(task, value)
        except WorkerMismatch as error:
            raise error.why from None
        except Exception as error:
            return TaskOutcome(task, None, error)


@dataclass
class _State(Generic[T]):
    """Where a run of tasks stands.

    Attributes:
        running: what was given out.
        again: what is to be given out next, before anything new.
        begun: how many were taken from the line; ``following``: the first that has not ended.
    """

    running: dict[Future[Any], _Given[T]] = field(default_factory=dict)
    again: deque[_Given[T]] = field(default_factory=deque)
    begun: int = 0
    following: int = 0
    _early: set[int] = field(default_factory=set)

    def next(self, line: Iterator[WorkerTask[T] | None]) -> _Given[T] | None:
        if self.again:
            return self.again.popleft()
        task = next(line, None)
        if task is None:
            return None
        self.begun += 1
        return _Given(self.begun - 1, task)

    def ended(self, number: int) -> None:
        self._early.add(number)
        while self.following in self._early:
            self._early.remove(self.following)
            self.following += 1


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory(group: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Bytes of memory that this machine, or its control group, has, less an eighth; without the figure, 8 GiB."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        total = 8 << 30
    with suppress(OSError, ValueError):  # "max": no limit
        total = min(total, int(group.read_text()))
    return total - total // 8
