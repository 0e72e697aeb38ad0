"""Coinciding terms of a sharded enumeration: what holds them is small, and goes to another process as it is."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from superopt.discovery.config import load_config
from superopt.discovery.enumerate import enumerate_terms, points_of
from superopt.discovery.equal_term_pairs import CompactTermPairs
from superopt.discovery.sharded import enumerate_sharded
from superopt.fleet import WorkerPool

T = TypeVar("T")


def held(made: Callable[[], T]) -> tuple[T, int]:
    """What a call makes, and the bytes that this takes afterwards."""
    tracemalloc.start()
    try:
        found = made()
        return found, tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_pairs_are_held_as_rows_and_made_again_from_their_pickle() -> None:
    (theme,) = load_config().select(themes=("expand",)).themes
    points = points_of(theme, 3, np.random.default_rng(1))
    terms = enumerate_terms(theme, points, 0, 400_000)
    found, _ = enumerate_sharded(theme, points, 0, 400_000, shards=4, fleet=WorkerPool())
    assert isinstance(found.pairs, CompactTermPairs)
    again, size = held(lambda: pickle.loads(pickle.dumps(found.pairs, protocol=5)))
    made, whole = held(lambda: list(again))
    assert made == list(terms.pairs)
    assert size < whole / 5
    assert list(found.pairs) == made == list(again)  # as often as somebody looks
    assert len(again) == len(terms.pairs) == terms.levels[-1].coincidences
    assert not any(c.values for c in found.classes)  # they are the workers' and, of operands, in stacks
