"""The garbage collector held back."""

import gc
import weakref

from superopt.ir.collecting import rarely_collected


class Node:
    """Something that can be part of a cycle."""

    me: "Node"


def test_thresholds_are_back_after_nested_bodies():
    before = gc.get_threshold()
    with rarely_collected():
        with rarely_collected():
            assert gc.get_threshold()[0] > before[0]
        assert gc.get_threshold()[0] > before[0]
    assert gc.get_threshold() == before


def test_cycles_made_in_the_body_are_not_looked_at_when_it_ends_but_are_in_the_next_full_collection():
    gc.collect()
    with rarely_collected():
        many = [[n] for n in range(20_000)]
        one = Node()
        one.me = one
        gone = weakref.ref(one)
        del one
    young = gc.get_count()[0]
    assert young < 5_000  # what the body made counts as old
    assert gone() is not None
    gc.collect()
    assert gone() is None
    assert len(many) == 20_000


def test_what_somebody_froze_stays_frozen():
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with rarely_collected():
            pass
        assert gc.get_freeze_count() == count
    finally:
        gc.unfreeze()
