"""A Dask cluster as an executor (extra ``dask``)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from superopt.ir.errors import BackendUnavailable, UsageError, printable

__all__ = ["ClusterConnection", "ClusterTimeouts", "TIMEOUTS", "connect"]

_START = "dask scheduler on one machine, then on each: dask worker tcp://SCHEDULER:8786 --nworkers N --nthreads 1"


@dataclass(frozen=True)
class ClusterTimeouts:
    """Seconds that a fleet waits for a cluster.

    Attributes:
        connect: for a scheduler to answer, and for it to have a worker.
        poll: after which a cluster that says nothing is looked at.
        workers: without a single worker, until the run ends.
    """

    connect: float = 10.0
    poll: float = 5.0
    workers: float = 60.0


TIMEOUTS = ClusterTimeouts()


@dataclass(frozen=True)
class ClusterConnection:
    """What a fleet needs of a cluster: how many tasks run at once now, and what a task raises whose workers died."""

    executor: Executor
    size: Callable[[], int]
    dead: tuple[type[BaseException], ...]
    close: Callable[[], None]


def connect(address: str, seconds: float = TIMEOUTS.connect) -> ClusterConnection:
    """The cluster whose scheduler is at an address, if it answers and has a worker within so many seconds.

    Raises:
        UsageError: the address is none.
        BackendUnavailable: nothing answers there, it has no workers, or the extra is not installed.
    """
    kind, _, rest = address.partition("://")
    if kind not in ("tcp", "tls") or not rest.rpartition(":")[2].isdecimal():
        raise UsageError(
            f"--cluster {printable(address)!r} is no address of a Dask scheduler", hint="write tcp://HOST:8786"
        )
    try:
        from distributed import Client, KilledWorker
        from distributed.core import rpc
    except ImportError as error:
        raise BackendUnavailable(
            f"--cluster needs Dask: {error}", hint="pip install 'superopt[dask]'; without it, --workers N"
        ) from None

    async def asked() -> None:
        """Dask's own client waits for ever where something answers that is no scheduler; this does not."""
        async with asyncio.timeout(seconds), rpc(address, timeout=0.9 * seconds) as scheduler:
            await scheduler.identity()

    try:
        asyncio.run(asked())
        client = Client(address, timeout=seconds, set_as_default=False)
    except Exception as error:  # whatever Dask makes of what is there
        raise BackendUnavailable(
            f"no Dask scheduler answers within {seconds:.0f} s ({type(error).__name__}: {printable(str(error))})",
            where=address, hint=_START,
        ) from None  # fmt: skip
    size = _Size(client.nthreads)
    deadline = time.monotonic() + seconds
    while not size() and time.monotonic() < deadline:
        time.sleep(0.2)
    if not size():
        client.close(timeout=2)
        raise BackendUnavailable("the cluster has no workers", where=address, hint=_START)
    executor = client.get_executor(pure=False, retries=0)
    return ClusterConnection(executor, size, (KilledWorker,), lambda: client.close(timeout=5))


class _Size:
    """Threads of all workers, asked for once a second; 0 while the scheduler does not answer."""

    def __init__(self, ask: Callable[[], dict[str, int]]) -> None:
        self._ask, self._asked, self._found = ask, float("-inf"), 0

    def __call__(self) -> int:
        if time.monotonic() - self._asked > 1.0 or not self._found:
            try:
                self._found = sum(self._ask().values())
            except (OSError, TimeoutError, RuntimeError):
                self._found = 0
            self._asked = time.monotonic()
        return self._found
