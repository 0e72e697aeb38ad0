"""How long a candidate is raced beside its input."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from superopt.frontend import GraphBuilder
from superopt.ir.errors import Unsupported
from superopt.pipeline import contest
from superopt.pipeline.contest import Contest


@pytest.mark.parametrize(
    ("milliseconds", "left", "seconds"),
    [(5.0, 100.0, 4.0), (400.0, 100.0, 7.2), (4000.0, 100.0, 12.0), (400.0, 6.0, 5.0)],
    ids=["light", "heavy: seven rounds and two", "at most thrice as long", "what there is time for"],
)
def test_heavy_models_are_raced_until_rounds_say_something(
    milliseconds: float, left: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []

    def measure(*graphs: object, time_limit: float, **more: object) -> None:
        limits.append(time_limit)
        raise Unsupported("not here")

    monkeypatch.setattr(contest, "measure", measure)
    b = GraphBuilder("one", opset=18)
    b.output(b.op("Relu", b.input("x", "float32", (2,))), "out")
    graph = b.build()
    options = SimpleNamespace(measure=False, seed=0, threads=1, runtime="onnxruntime", sizes={})
    task: Any = SimpleNamespace(
        graph=graph, sizes={}, options=options, races=True, budget=SimpleNamespace(left=left, racing=1.0),
        effort=SimpleNamespace(race=4.0), costs=SimpleNamespace(racing=None), progress=lambda *_: None,
    )  # fmt: skip
    us = milliseconds * 1e3
    costs: Any = [SimpleNamespace(us=us * r, flops=0, bytes=n, per_node=[]) for n, r in enumerate((1.1, 0.9))]
    found, _ = Contest(task, None, []).judged(graph, *costs)  # type: ignore[arg-type]
    assert not found.taken
    assert limits == [pytest.approx(seconds)]
