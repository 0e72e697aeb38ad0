"""Runs that take too long are ended, by one thread for all of them."""

from __future__ import annotations

import os
import threading
import time
from types import SimpleNamespace

import pytest

from superopt.ir.errors import ResourceLimit
from superopt.runtime.watchdog import stopped_after


def slow(options: SimpleNamespace) -> None:
    """What a runtime does: it looks now and then whether it is to end, and ends with an error of its own."""
    for _ in range(3000):
        if options.terminate:
            raise RuntimeError("terminated")
        time.sleep(0.01)


def test_what_takes_too_long_is_ended_and_nothing_else() -> None:
    long, short = SimpleNamespace(terminate=False), SimpleNamespace(terminate=False)
    with pytest.raises(ResourceLimit, match="more than 0 s"), stopped_after(short, 60.0), stopped_after(long, 0.05):
        slow(long)
    assert not short.terminate
    with pytest.raises(ResourceLimit), stopped_after(short, 0.05):
        slow(short)


def test_an_error_of_another_kind_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="of its own"), stopped_after(SimpleNamespace(terminate=False), 60.0):
        raise RuntimeError("of its own")


def test_a_thousand_runs_take_one_thread() -> None:
    for _ in range(1000):
        with stopped_after(SimpleNamespace(terminate=False), 60.0):
            pass
    assert [t.name for t in threading.enumerate()].count("superopt-watch") == 1


def test_a_forked_process_watches_by_itself() -> None:
    with stopped_after(SimpleNamespace(terminate=False), 60.0):
        child = os.fork()
        if child == 0:
            options = SimpleNamespace(terminate=False)
            try:
                with stopped_after(options, 0.05):
                    slow(options)
            except ResourceLimit:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
