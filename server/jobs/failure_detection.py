"""Failure detection without a common clock: a value that its owner keeps changing, and an observer with a stopwatch.

No time of day is written down or compared, so a clock that is set hours back or forward neither keeps the dead alive
nor kills the living, and machines need not agree on the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

__all__ = ["StallDetector"]

K = TypeVar("K", bound=Hashable)


class StallDetector(Generic[K]):
    """For how long values have not changed, as this process has seen it.

    Args:
        clock: seconds of a clock that is never set.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[K, tuple[Hashable, float]] = {}

    def observe(self, values: Mapping[K, Hashable]) -> dict[K, float]:
        """Look at all values.

        Args:
            values: as they are now; what is missing is forgotten.

        Returns:
            Seconds since each was first seen as it is now.
        """
        moment = self._clock()
        before = self._since
        self._since = {
            key: before[key] if key in before and before[key][0] == value else (value, moment)
            for key, value in values.items()
        }
        return {key: moment - since for key, (_, since) in self._since.items()}
