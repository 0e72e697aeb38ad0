"""When the time is over, what was not checked to the end is not returned."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.frontend import GraphBuilder
from superopt.ir.errors import OutOfTime
from superopt.ops.shape_inference import infer
from superopt.pipeline.time_budget import TimeBudget
from superopt.runtime import reference
from superopt.verifier.check.differential import check, check_regions


def model(operator="Relu"):
    b = GraphBuilder("tiny")
    x = b.input("x", "float32", (2, 3))
    b.output(b.op(operator, x), "y", shape=[2, 3])
    return b.build()


def test_the_reference_stops_at_its_deadline():
    feeds = {"x": np.ones((2, 3), np.float32)}
    with pytest.raises(OutOfTime):
        reference.run(model(), feeds, deadline=0.0)


def test_a_check_without_time_is_no_check():
    assert check(model(), model(), patience=0.0).verdict == "skipped"
    assert check(model(), model(), patience=60.0).verdict == "passed"


def test_regions_that_were_not_reached_are_not_passed():
    def pairs():
        yield model(), model()
        clock[0] = 1e9  # the second pair comes when the time is over
        yield model(), model("Tanh")

    import superopt.verifier.check.differential as module

    clock, real = [0.0], module.time.monotonic
    patch = pytest.MonkeyPatch()
    patch.setattr(module.time, "monotonic", lambda: real() + clock[0])
    try:
        assert check_regions(pairs(), time_limit=60.0).verdict == "skipped"
    finally:
        patch.undo()


def test_the_reserve_for_the_check_leaves_the_search_some_time():
    graph, budget = model(), TimeBudget.of(10.0)
    budget.expect(graph, infer(graph), {})
    assert budget.reserve <= budget.left
    budget.check_seconds = 1e9
    assert 3.9 <= budget.for_search(writes=False) <= 4.0
    assert budget.for_search(writes=True) == 0.0
    assert TimeBudget.of(None).for_search(writes=True) is None
