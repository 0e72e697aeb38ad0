"""The garbage collector held back."""

import gc
import subprocess
import sys

import pytest

from superopt.ir.interpreter_settings import rarely_collected


def test_thresholds_are_back_after_nested_bodies():
    before = gc.get_threshold()
    with rarely_collected():
        with rarely_collected():
            assert gc.get_threshold()[0] > before[0]
        assert gc.get_threshold()[0] > before[0]
    assert gc.get_threshold() == before


AT_THE_END = """
import gc, weakref
from superopt.ir.interpreter_settings import rarely_collected

class Node: pass

gc.collect()
with rarely_collected():
    many = [[n] for n in range(20_000)]
    one = Node()
    one.me = one
    gone = weakref.ref(one)
    del one
assert gc.get_count()[0] < 5_000, "what the body made counts as old"
assert gone() is not None, "it is not looked at when the body ends"
gc.collect()
assert gone() is None, "it is in the next full collection"
"""
FROZEN = """
import gc
from superopt.ir.interpreter_settings import rarely_collected

gc.freeze()
count = gc.get_freeze_count()
with rarely_collected():
    pass
assert gc.get_freeze_count() == count
"""


@pytest.mark.parametrize("script", [AT_THE_END, FROZEN], ids=["cycles that the body made", "what somebody froze"])
def test_what_becomes_of(script: str):
    """In a process of its own: to look through all that this one holds takes seconds."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
