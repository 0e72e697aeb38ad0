"""Whole models are timed after every stage of the search: which one is returned?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from graphs import siamese
from roofline import Roofline
from rules_for_tests import rules

from superopt.ir.graph import Graph
from superopt.search import SearchOptions, engine


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
