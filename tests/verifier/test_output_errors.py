"""Errors of outputs beside the original's: what counts as an error, and which input comes first."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest
from onnx import parser

from superopt.formats.onnx_reader import from_onnx
from superopt.verifier.check.output_errors import OutputErrorMeasurement, error_of
from superopt.verifier.check.shared_weight_sessions import Arrays, SharedWeightSessions


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ([1.0, 4.0], [1.0, 3.0], 0.25),
        ([1.0, 4.0], [1.0, inf], inf),
        ([1.0, 4.0], [1.0, nan], inf),
        ([inf, 4.0], [1.0, 4.0], 0.0),
        ([nan, nan], [1.0, 4.0], 0.0),
        ([0.0, 0.0], [0.0, 0.5], 0.5),
        ([[1.0]], [1.0], inf),
    ],
)
def test_errors_are_relative_to_the_largest_element(old: list[float], new: list[float], error: float) -> None:
    one = {"x": np.zeros(3, np.int64), "y": np.array(old, np.float32)}
    assert error_of(one, {**one, "y": np.array(new, np.float32)}).relative == error


def test_what_is_not_real_has_to_be_equal() -> None:
    one = {"y": np.array([1, 2])}
    assert error_of(one, one) == (0.0, 0.0)
    assert error_of(one, {"y": np.array([1, 3])}) == (inf, inf)


def test_an_input_that_exceeds_the_bound_comes_first() -> None:
    text = '<ir_version: 10, opset_import: ["": 18]> g (float[4] x) => (float[4] y) { y = Relu(x) }'
    with SharedWeightSessions() as bench:
        graph = from_onnx(parser.parse_model(text))
        judge = OutputErrorMeasurement(graph, bench, seed=0, sizes={}, inputs=10, extreme=2, kept_bytes=0)
        assert (len(judge.feeds), judge.ordinary) == (12, 10)
        tried: list[int] = []

        def run(feeds: Arrays) -> Arrays | None:
            number = next(i for i, f in enumerate(judge.feeds) if f is feeds)
            tried.append(number)
            off = {3: 0.5, 11: 7.0}.get(number, 0.0)  # the last is an input of edge values
            return {"y": judge.original(number)["y"] + np.float32(off)}

        worst, failing = judge.worst([(run, 10)], 0.1, lambda: True)
        assert failing == 3
        assert worst.relative > 0.1
        assert worst.absolute == pytest.approx(0.5)
        judge.worst([(run, 10)], inf, lambda: True)
        assert tried[4] == 3
        assert sorted(tried[4:]) == list(range(12))
        assert judge.worst([(run, 3)], 0.1, lambda: True) == ((0.0, 0.0), None)
