"""Whole graphs timed against each other on a CUDA device: captured, interleaved, medians of per-round ratios.

The method of :mod:`superopt.runtime.paired_benchmark` with the device's own clock: as many inferences as take about two
milliseconds are captured in one CUDA graph, so that launching and the events cost next to nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from superopt.ir.errors import UsageError
from superopt.runtime.cuda.session import Driver, Session
from superopt.runtime.paired_benchmark import RaceResult, result_of

__all__ = ["Clocked", "race_sessions"]

_REPLAY_US = 2000.0
_MOST = 4096  # launches in one captured graph


class Clocked(Driver, Protocol):
    """A driver with a clock."""

    def elapsed(self, body: Callable[[], None]) -> float:
        """Microseconds that a body's launches take on the device."""
        ...

    def facts(self) -> Mapping[str, str | int]: ...


def race_sessions(
    sessions: Sequence[Session], driver: Clocked, *, rounds: int = 15, time_limit: float = 30.0, seed: int = 0
) -> RaceResult:
    """Time sessions that have run on their inputs; the first is what ratios are taken to.

    Args:
        sessions: graphs made ready on one driver.
        driver: whose clock is read.
        rounds: rounds wanted; fewer run when the time limit comes first, never fewer than one.
        time_limit: seconds.
        seed: of the order inside each round.

    Raises:
        UsageError: there is nothing to time.
    """
    if not sessions:
        raise UsageError("there is no model to time")
    deadline = time.monotonic() + time_limit
    bodies = [_repeated(session, driver) for session in sessions]
    order = list(range(len(bodies)))
    shuffle = random.Random(seed).shuffle
    samples: list[tuple[float, ...]] = []
    while len(samples) < max(rounds, 1) and (not samples or time.monotonic() < deadline):
        shuffle(order)
        taken = {i: driver.elapsed(bodies[i][0]) / bodies[i][1] / 1e3 for i in order}
        samples.append(tuple(taken[i] for i in range(len(bodies))))
    where = {
        **driver.facts(), "threads": 1, "clock": "events", "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    }  # fmt: skip
    return result_of(samples, min(count for _, count in bodies) * len(samples), where)


def _repeated(session: Session, driver: Clocked) -> tuple[Callable[[], None], int]:
    """One captured graph of several inferences, which has run once, and how many they are."""
    session.replay()
    once = max(driver.elapsed(session.replay), 0.1)
    steps = max(len(session.plan.steps), 1)
    count = int(min(max(_REPLAY_US / once, 1), max(1, _MOST // steps)))
    if count == 1:
        return session.replay, 1

    def body() -> None:
        for _ in range(count):
            session.again()

    captured = driver.capture(body)
    captured()
    return captured, count
