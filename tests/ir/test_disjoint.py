"""Disjoint sets say what a walk over the same pairs says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from superopt.ir.disjoint import DisjointSets

SMALL = st.integers(0, 12)


@given(st.lists(st.tuples(SMALL, SMALL), max_size=20))
def test_joined_things_are_those_that_a_path_connects(pairs: list[tuple[int, int]]) -> None:
    sets: DisjointSets[int] = DisjointSets()
    for a, b in pairs:
        sets.join(a, b)
    for start in range(13):
        reached, waiting = {start}, [start]
        while waiting:
            here = waiting.pop()
            near = {b if a == here else a for a, b in pairs if here in (a, b)} - reached
            reached |= near
            waiting += near
        assert {thing for thing in range(13) if sets.find(thing) == sets.find(start)} == reached


def test_a_long_chain_is_walked_without_recursion() -> None:
    sets: DisjointSets[str] = DisjointSets()
    for i in range(100_000):
        sets.join(f"v{i + 1}", f"v{i}")
    assert sets.find("v0") == sets.find("v100000") != sets.find("w")
