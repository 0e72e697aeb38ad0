"""Histograms as Prometheus has them: observations counted in buckets, and their text.

The buckets of jobs are kept in the database (:mod:`superopt.server.jobs.usage`), those of requests in the process.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["HTTP_SECONDS", "JOB_SECONDS", "Histogram", "bucket_of", "labelled"]

# Upper bounds in seconds: answers take from a millisecond to the minutes of POST /v1/optimize, jobs up to ten minutes.
HTTP_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0)
JOB_SECONDS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
_REST = "+Inf"


def bucket_of(seconds: float, bounds: Sequence[float]) -> str:
    """The upper bound of the bucket in which an observation counts first, as text."""
    index = bisect_left(bounds, seconds)
    return f"{bounds[index]:g}" if index < len(bounds) else _REST


class Histogram:
    """Counts by bucket, and the sum, for each combination of labels.

    Args:
        bounds: upper bounds of the buckets, rising.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._names = [f"{bound:g}" for bound in bounds] + [_REST]
        self._counts: dict[tuple[tuple[str, str], ...], dict[str, int]] = {}
        self._sums: dict[tuple[tuple[str, str], ...], float] = {}

    def observe(self, seconds: float, labels: Mapping[str, str]) -> None:
        """Count one observation."""
        self.add(bucket_of(seconds, self._bounds), 1, seconds, labels)

    def add(self, le: str, count: int, seconds: float, labels: Mapping[str, str]) -> None:
        """Count observations of one bucket.

        Args:
            le: its upper bound.
            count: how many.
            seconds: their sum.
            labels: by name.
        """
        key = tuple(labels.items())
        counts = self._counts.setdefault(key, {})
        counts[le] = counts.get(le, 0) + count
        self._sums[key] = self._sums.get(key, 0.0) + seconds

    def lines(self, name: str) -> Iterator[str]:
        """The samples in Prometheus' text format; buckets hold what is below them, too."""
        for key, counts in sorted(self._counts.items()):
            total = 0
            for le in self._names:
                total += counts.get(le, 0)
                yield f"{name}_bucket{labelled([*key, ('le', le)])} {total}"
            yield f"{name}_sum{labelled(key)} {self._sums[key]:.6g}"
            yield f"{name}_count{labelled(key)} {total}"


def labelled(labels: Iterable[tuple[str, str]]) -> str:
    """Labels as they stand in a sample."""
    text = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{text}}}" if text else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
