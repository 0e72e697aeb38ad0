"""Enumeration by ranges of fingerprints gives what one process gives, term by term, and nobody holds all of it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from sampling import slow

from superopt.discovery.config import OperatorVocabulary, load_config
from superopt.discovery.enumerate import Enumeration, enumerate_terms, points_of
from superopt.discovery.result_cache import DiscoveryResultCache
from superopt.discovery.sharded import enumerate_sharded
from superopt.fleet import WorkerPool
from superopt.verifier.exact.sampling import SizeSample

MOST = 400_000


def given(name: str) -> tuple[OperatorVocabulary, list[SizeSample]]:
    (theme,) = load_config().select(themes=(name,)).themes
    return theme, points_of(theme, 3, np.random.default_rng([0, int(theme.digest[:8], 16)]))


@cache
def expected(name: str) -> Enumeration:
    theme, points = given(name)
    return enumerate_terms(theme, points, 0, MOST)


def told(found: Enumeration) -> tuple[object, ...]:
    return [(str(a), str(b)) for a, b in found.pairs], found.levels, found.complete


# Divisions (terms that have no value), orders (relu), variants (Split), several outputs, and three sizes.
@pytest.mark.parametrize(
    "name", [slow("taso-matrix"), slow("taso-scalars"), slow("expand"), "taso-split-rows", "taso-maxpool", slow("conv")]
)
@pytest.mark.parametrize("shards", [1, 5])
def test_the_same_terms(name: str, shards: int) -> None:
    theme, points = given(name)
    found, traffic = enumerate_sharded(theme, points, 0, MOST, shards=shards, fleet=WorkerPool())
    assert expected(name).pairs
    assert told(found) == told(expected(name))
    assert traffic.rows <= expected(name).levels[-1].terms


@pytest.mark.parametrize("most", [0, 20, slow(200), 1000])
def test_the_bound_on_terms_stops_at_the_same_place(most: int) -> None:
    theme, points = given("taso-matrix")
    one = enumerate_terms(theme, points, 0, most)
    found, _ = enumerate_sharded(theme, points, 0, most, shards=3, fleet=WorkerPool())
    assert not one.complete
    assert told(found) == told(one)


def test_processes_share_the_classes_and_a_second_run_finds_them_done(tmp_path: Path) -> None:
    theme, points = given("expand")
    kept = DiscoveryResultCache(tmp_path)
    with WorkerPool.open(2) as fleet:
        found, traffic = enumerate_sharded(theme, points, 0, MOST, shards=8, fleet=fleet, kept=kept)
    assert told(found) == told(expected("expand"))
    assert traffic.largest < traffic.rows / 3
    files = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.json")}
    again, _ = enumerate_sharded(theme, points, 0, MOST, shards=8, fleet=WorkerPool(), kept=kept)
    assert told(again) == told(expected("expand"))
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.json")} == files
