"""NumPy's linear algebra on one thread, and as it was afterwards."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from superopt.runtime.blas_threads import one_blas_thread


def threads() -> set[int]:
    """Of every BLAS that is loaded."""
    return {int(library["num_threads"]) for library in threadpool_info() if library["user_api"] == "blas"}


@pytest.fixture
def two_threads():
    assert np.linalg.norm(np.ones(3)) > 0  # NumPy's BLAS is loaded
    with threadpool_limits(2, user_api="blas"):
        yield


def test_one_thread_in_the_body_nested_and_what_there_was_after_it(two_threads):
    assert threads() == {2}
    with one_blas_thread():
        with one_blas_thread():
            assert threads() == {1}
        assert threads() == {1}
    assert threads() == {2}


def test_an_error_in_the_body_gives_the_threads_back(two_threads):
    with pytest.raises(ZeroDivisionError), one_blas_thread():
        raise ZeroDivisionError
    assert threads() == {2}


def test_bodies_that_overlap_in_two_threads_leave_what_there_was():
    before = threads()
    entered, left = Barrier(2), Barrier(2)

    def first() -> set[int]:
        with one_blas_thread():
            entered.wait()
            left.wait()
        return threads()

    def second() -> set[int]:
        with one_blas_thread():
            entered.wait()
            found = threads()
        left.wait()
        return found

    with ThreadPoolExecutor(2) as pool:
        last, inside = pool.submit(first), pool.submit(second)
        assert inside.result() == {1}
        assert last.result() == before
