"""How many runs a sample of a race is."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from superopt.runtime.paired_benchmark import time_bound
from superopt.runtime.protocol import InputBoundModel


@dataclass
class Timed:
    """A model whose first run takes longer than others, by a clock that only it moves."""

    clock: list[int]
    first: int
    others: int
    runs: int = 0

    def step(self) -> None:
        self.clock[0] += self.others if self.runs else self.first
        self.runs += 1


@pytest.mark.parametrize(
    ("first", "others", "shortest", "burst"),
    [
        (900_000, 50_000, 500_000, 10),  # memory is asked for in the first run only
        (900_000, 50_000, 1_000_000, 20),
        (50_000, 50_000, 500_000, 10),
        (3_000, 1_000, 500_000, 64),  # and no more
        (9_000_000, 2_000_000, 500_000, 1),  # long enough by itself
    ],
)
def test_a_sample_takes_as_long_as_it_should(
    first: int, others: int, shortest: int, burst: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0]
    monkeypatch.setattr(time, "thread_time_ns", lambda: clock[0])
    model = InputBoundModel(Timed(clock, first, others).step, list, ())
    found = time_bound([model], rounds=3, burst=1, threads=1, clock="cpu", shortest=shortest)
    assert found.runs == 3 * burst
    assert found.ms == (others / 1e6,)
