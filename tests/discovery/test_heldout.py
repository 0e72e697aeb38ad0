"""The recorded library against identities that discovery never saw."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from heldout import false, sound
from tour import tour

from superopt.discovery.derive import derived, parts_of, rewrites_of
from superopt.rules import Rule
from superopt.rules.library import BUILT_IN, parse_file
from superopt.verifier.exact.counterexample import replay
from superopt.verifier.exact.testing import test as exact
from superopt.verifier.verdict import RefutedVerdict, TestedVerdict

RECORDED = BUILT_IN / "discovered"


def recorded(folder: Path) -> tuple[Rule, ...]:
    rules = tuple(r for f in sorted(folder.glob("*.toml")) if f.stem != "discovery" for r in parse_file(f))
    assert rules, f"{folder} holds no rules: record a run, see docs/discovery.md"
    return rules


@pytest.fixture(scope="module")
def taso() -> tuple[Rule, ...]:
    return recorded(RECORDED / "taso")


def test_sound_identities_over_tasos_vocabulary_are_derived(taso: tuple[Rule, ...]) -> None:
    moves = rewrites_of(taso)
    missing = [f"{r.lhs[0]} = {r.rhs[0]}" for r in sound() if derived(r, moves) is None]
    assert not missing


def test_false_ones_are_not(taso: tuple[Rule, ...]) -> None:
    moves = rewrites_of(taso)
    assert not [r.id for r in false() if derived(r, moves) is not None]


def test_the_held_out_identities_are_what_they_say() -> None:
    for rule in (*sound(), *tour()):
        assert isinstance(exact(rule, trials=4), TestedVerdict), rule.id
    for rule in false():
        assert isinstance(exact(rule), RefutedVerdict), rule.id


def test_near_misses_still_fail() -> None:
    """Every refuted candidate of a recorded run is a test of the verifier."""
    kept = [m for f in sorted(BUILT_IN.rglob("near_misses.json")) for m in json.loads(f.read_text())]
    assert kept
    assert not [m["text"] for m in kept if not replay(m["counterexample"])]


def test_at_most_a_third_of_tasos_rules(taso: tuple[Rule, ...]) -> None:
    assert len(taso) <= 619 // 3


@pytest.mark.slow
def test_the_tour_is_derived() -> None:
    rules = recorded(BUILT_IN)
    assert not [r.id for r in tour() if derived(r, rewrites_of(rules, parts_of(r))) is None]
