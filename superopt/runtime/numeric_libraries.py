"""Settings of the numeric libraries: OpenBLAS on one thread, HiGHS silent and deterministic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import highspy
from threadpoolctl import threadpool_limits

__all__ = ["one_blas_thread", "solver"]


# -- OpenBLAS ------------------------------------------------------------------------------------------------------
#
# OpenBLAS's threads wait in a loop. On a busy machine a Cholesky decomposition of 240 rows took 157 ms in place of 2.


_limits: Callable[..., Any] = threadpool_limits  # it has no type hints
_lock = Lock()
_held: list[Any] = []  # what came first gives back what there was
_inside = 0


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """One thread for BLAS and LAPACK in the body; nested and in several threads alike. It holds for the process."""
    global _inside
    with _lock:
        if not _inside:
            _held.append(_limits(1, user_api="blas"))
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _held.pop().restore_original_limits()


# -- HiGHS ---------------------------------------------------------------------------------------------------------
#
# From 1.16 on a ``highspy.Highs`` writes its banner to standard output during construction, where a command's JSON
# belongs, unless its output is off before its callbacks are set.


class _Silent(highspy.Highs):
    def enableCallbacks(self) -> None:
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()  # type: ignore[no-untyped-call]


def solver(**options: float | int | str) -> highspy.Highs:
    """A solver that prints nothing, works on one thread, and has these options besides.

    Without ``time_limit`` its answer is a function of what it is given; ``random_seed`` is 0 unless it is said.

    Args:
        options: of HiGHS, by name (https://ergo-code.github.io/HiGHS/dev/options/definitions).
    """
    made = _Silent()  # type: ignore[no-untyped-call]
    for name, value in {"output_flag": False, "threads": 1, "parallel": "off", "random_seed": 0, **options}.items():
        made.setOptionValue(name, value)
    return made
