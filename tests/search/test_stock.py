"""What the search times whole: regions, when their parts say that a plan is faster, and the model after every stage."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from graphs import linear_stack, siamese
from roofline import Roofline
from rules_for_tests import rules

from superopt.ir.graph import Graph
from superopt.ops import REGISTRY
from superopt.search import SearchOptions, engine
from superopt.search.lower import region_of
from superopt.search.optimise import optimise
from superopt.search.saturate import Limits


def stock_taken(
    monkeypatch: pytest.MonkeyPatch, copied: float, earlier: float, last: float
) -> tuple[int, list[str], list[int]]:
    """The stage that is kept (of four) where they take these shares of the input's time, and its copy another."""
    asked: list[int] = []

    def ratios(graphs: Sequence[Graph], _seconds: float) -> Sequence[float] | None:
        asked.append(len(graphs))
        if copied == 0.0 and len(graphs) > 2:
            return None
        return [1.0, last] if len(graphs) == 2 else [1.0, copied, earlier, earlier, last]

    monkeypatch.setattr(engine, "whole_timer", lambda *_: ratios)
    run = engine._Run(siamese(), rules(), Roofline(), SearchOptions(cache=False), None, time.monotonic())
    run.stages = [(replace(run.program), run.totals) for _ in range(4)]
    run.program = run.stages[-1][0]
    run._take_stock()
    return next(i for i, (p, _) in enumerate(run.stages) if p is run.program), list(run.totals.missed), asked


@pytest.mark.parametrize(
    ("copied", "earlier", "last", "kept"),
    [
        (1.0, 0.8, 0.79, 3),
        (1.0, 0.5, 0.9, 2),
        (1.12, 0.80, 0.88, 3),  # two sessions of the input differ by more
        (0.89, 0.80, 0.88, 3),
        (1.0, 1.2, 1.2, 0),  # slower than the input
        (0.0, 0.5, 0.9, 3),  # only the input and the result can be loaded
        (0.0, 0.5, 1.2, 0),
    ],
)
def test_the_last_stage_stands_unless_an_earlier_one_is_clearly_faster(monkeypatch, copied, earlier, last, kept):
    stage, missed, asked = stock_taken(monkeypatch, copied, earlier, last)
    assert stage == kept
    assert bool(missed) == (kept != 3)
    assert asked == ([5, 2] if copied == 0.0 else [5])


@pytest.mark.parametrize(
    ("times", "asked", "kept"),
    [
        ([[100.0, 60.0]], 1, True),
        ([[100.0, 110.0], [100.0, 70.0]], 2, True),  # once disturbed: both times count
        ([[100.0, 110.0], [100.0, 110.0]], 2, False),
        ([[100.0, float("inf")]], 1, False),  # it cannot run
    ],
)
def test_a_region_that_is_not_faster_as_its_parts_said_is_timed_again(times, asked, kept):
    class Timed(Roofline):
        def __init__(self):
            super().__init__()
            self.left = list(times)

        def graphs(self, graphs, *, time_limit):
            assert len(graphs) == 2
            return self.left.pop(0)

    costs = Timed()
    model = linear_stack(2)
    run = engine._Run(model, rules("assoc"), costs, SearchOptions(cache=False), None, time.monotonic())
    region = region_of(run.program, run.program.running)
    plan = optimise(region, run.prepared.moves, REGISTRY, run.pricer, Limits(), 0.0, 0).plan
    assert plan is not None
    found = run._confirmed(region, [plan])
    assert (found is not None) == kept
    assert len(times) - len(costs.left) == asked
    assert bool(run.totals.missed) != kept
