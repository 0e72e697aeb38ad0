"""Waiting for jobs without a query per waiter: one task looks at all the jobs that somebody waits for."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict

from sqlalchemy.exc import DBAPIError
from starlette.concurrency import run_in_threadpool

from superopt.server.jobs.store import FINAL, JobStore

__all__ = ["JobWatcher", "ended"]


async def ended(task: asyncio.Task[None] | None) -> None:
    """Cancel a task of the service, and wait until it is over."""
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class JobWatcher:
    """Wakes the coroutines that wait for a job's next event.

    Attributes:
        closing: nobody waits any more: the service ends, and its jobs go on when it is back.
    """

    def __init__(self, store: JobStore, poll: float) -> None:
        self._store = store
        self._poll = poll
        self._waiting: dict[str, list[tuple[int, asyncio.Future[bool]]]] = defaultdict(list)
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.closing = False

    async def start(self) -> None:
        """Begin watching."""
        self._task = asyncio.create_task(self._run())

    def close(self) -> None:
        """Answer all who wait, as if their time were over, so that their requests end before the service does."""
        self.closing = True
        for waiters in self._waiting.values():
            for _, future in waiters:
                if not future.done():
                    future.set_result(False)

    async def stop(self) -> None:
        """Let everybody go."""
        await ended(self._task)
        self.close()

    async def news(self, job_id: str, seen: int, timeout: float) -> bool:
        """Wait until the job has more than ``seen`` events, has ended or is gone; false after ``timeout`` seconds, and
        where the service ends."""
        if self.closing:
            return False
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        entry = (seen, future)
        self._waiting[job_id].append(entry)
        self._wanted.set()
        try:
            return await asyncio.wait_for(future, max(timeout, 0.001))
        except TimeoutError:
            return False
        finally:
            self._waiting[job_id].remove(entry)
            if not self._waiting[job_id]:
                del self._waiting[job_id]

    async def finished(self, job_id: str, timeout: float) -> bool:
        """Wait until the job has ended or is gone; false after ``timeout`` seconds, and where the service ends."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        seen = -1
        while (left := deadline - loop.time()) > 0:
            pulse = (await run_in_threadpool(self._store.pulses, [job_id])).get(job_id)
            if pulse is None or pulse[0] in FINAL:
                return True
            seen = pulse[1]
            if not await self.news(job_id, seen, left):
                return False
        return False

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            if not self._waiting:
                self._wanted.clear()
                continue
            try:
                pulses = await run_in_threadpool(self._store.pulses, list(self._waiting))
            except DBAPIError:
                await asyncio.sleep(1.0)
                continue
            for job_id, waiters in list(self._waiting.items()):
                pulse = pulses.get(job_id)
                for seen, future in waiters:
                    if not future.done() and (pulse is None or pulse[1] > seen or pulse[0] in FINAL):
                        future.set_result(True)
            await asyncio.sleep(self._poll)
