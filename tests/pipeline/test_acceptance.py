"""For how many rounds a candidate is raced beside its input."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from superopt.frontend import GraphBuilder
from superopt.ir.errors import Unsupported
from superopt.pipeline import candidate_acceptance
from superopt.pipeline.candidate_acceptance import CandidateAcceptance
from superopt.pipeline.report_notes import ReportNotes


def asked(milliseconds: float, left: float, monkeypatch: pytest.MonkeyPatch) -> tuple[int, float]:
    """Rounds and seconds of the race of two models that are modelled to take so long."""
    races: list[tuple[int, float]] = []

    def measure(*graphs: object, rounds: int, time_limit: float, **more: object) -> None:
        races.append((rounds, time_limit))
        raise Unsupported("not here")

    monkeypatch.setattr(candidate_acceptance, "measure", measure)
    b = GraphBuilder("one", opset=18)
    b.output(b.op("Relu", b.input("x", "float32", (2,))), "out")
    graph = b.build()
    options = SimpleNamespace(measure=False, seed=0, threads=1, runtime="onnxruntime", sizes={})
    task: Any = SimpleNamespace(
        graph=graph, sizes={}, options=options, timed=True, budget=SimpleNamespace(left=left, timing_reserve=1.0),
        effort=SimpleNamespace(timing_seconds=4.0), costs=SimpleNamespace(device_timer=None), progress=lambda *_: None,
    )  # fmt: skip
    us = milliseconds * 1e3
    costs: Any = [
        SimpleNamespace(us=us * r, flops=0, bytes=n, per_node=[], kernels=0) for n, r in enumerate((1.1, 0.9))
    ]
    found, _ = CandidateAcceptance(task, None, ReportNotes()).decide(graph, *costs)  # type: ignore[arg-type]
    assert not found.accepted
    (race,) = races
    return race


@pytest.mark.parametrize(
    ("milliseconds", "rounds"),
    [(5.0, 31), (100.0, 18), (400.0, 7), (800.0, 5), (4000.0, 4)],
    ids=["light", "what fits", "heavy: until rounds say something", "as far as that fits", "never too few"],
)
def test_how_many_rounds_a_race_has_follows_from_what_models_are_modelled_to_take(
    milliseconds: float, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not from the clock: a busy machine has as many as a quiet one."""
    for left in (1e9, 100.0, 20.0):
        assert asked(milliseconds, left, monkeypatch)[0] == rounds


def test_the_time_limit_ends_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(400.0, 6.0, monkeypatch) == (7, pytest.approx(5.0))
