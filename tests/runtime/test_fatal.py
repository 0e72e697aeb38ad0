"""Models that may end the process that runs them are run in another one: what they are, and that this one lives."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from superopt import formats
from superopt.fleet.child import TaskLost
from superopt.ir.errors import InvalidModel
from superopt.ir.graph import Graph
from superopt.pipeline import optimize
from superopt.runtime import crash_isolation
from superopt.runtime.crash_isolation import refuse_fatal_loading, risk_of
from superopt.runtime.onnx_runtime import ONNX_RUNTIME, run
from superopt.verifier.check import shared_weight_sessions
from superopt.verifier.check.shared_weight_sessions import SharedWeightSessions

WEIGHTS = "float[1, 12, 3] w, float[1, 12, 4] r"


def model(inputs: str, outputs: str, body: str) -> Graph:
    text = f'<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]> g ({inputs}) => ({outputs}) {{ {body} }}'
    return formats.from_bytes(onnx.parser.parse_model(text).SerializeToString())


KEPT = """
    two = Constant <value_float = 2.0> ()
    one = Constant <value_ints = [1]> ()
    zero = Constant <value_int = 0> ()
    y1 = Mul (x, two)
    y2 = Mul (y1, two)
    column = Gather <axis = 2> (y2, zero)
    most = ReduceMax <keepdims = 0> (column, one)
    large = Constant <value_float = 100.0> ()
    which = Greater (most, large)
    some = Compress <axis = 0> (y2, which)
    all, h = GRU <hidden_size = 4> (some, w, r)
"""
SUMMED = 'y = Einsum <equation = "bij,bjk->bik"> (x, z)'
AS_DATA = model(f"float[5, 2, 3] x, {WEIGHTS}", "float[a, b, c] h, float[5, 2, 3] y2", KEPT)


@pytest.mark.parametrize(
    ("graph", "always", "at"),
    [
        (model("float[2, 3, 4] x, float[2, 4, 5] z", "float[2, 3, 5] y", SUMMED), None, {}),
        (model("float[n, 3, 4] x, float[n, 4, 5] z", "float[n, 3, 5] y", SUMMED), False, {"n": 0}),
        (AS_DATA, True, {}),
        (model("float[n, 3] x", "float[n, 3] y", "y = com.microsoft.FastGelu (x)"), False, {"n": 0}),
        (model("float[n, 3] x", "float[n, 3] y", "y = Relu (x)"), None, {}),
    ],
    ids=["sizes that are known", "an open size", "as many as data say", "another domain", "no such operator"],
)
def test_where_a_model_may_end_the_process(graph: Graph, always: bool | None, at: dict[str, int]) -> None:
    risk = risk_of(graph)
    assert (risk is None) == (always is None)
    if risk is not None:
        assert risk.always is always
        assert risk.at(at)
        assert always or not risk.at(dict.fromkeys(at, 1))


def feeds(number: float) -> dict[str, np.ndarray]:
    shapes = {"x": (5, 2, 3), "w": (1, 12, 3), "r": (1, 12, 4)}
    return {name: np.full(shape, number, np.float32) for name, shape in shapes.items()}


def test_what_ends_a_process_is_refused_and_the_next_inputs_are_run() -> None:
    with SharedWeightSessions() as bench:
        session = bench.session(AS_DATA, optimise=False)
        with pytest.raises(InvalidModel, match="ends the process"):
            run(session, feeds(1.0))  # nothing is kept
        assert run(session, feeds(50.0))["h"].shape == (1, 2, 4)


def test_a_model_that_ends_its_process_is_optimised_and_checked() -> None:
    result = optimize(AS_DATA, measure=True)
    assert result.report.check.verdict == "passed"
    assert len(result.graph.nodes) < len(AS_DATA.nodes)


HALF = WEIGHTS.replace("float", "float16")


def test_recurrent_operators_on_16_bit_numbers_are_loaded_elsewhere_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime 1.32 ends the process that loads some of them."""
    graph = model(f"float16[5, 2, 3] x, {HALF}", "float16[a, b, c, d] y", "y, h = GRU <hidden_size = 4> (x, w, r)")
    risk = risk_of(graph)
    assert risk is not None
    assert (risk.always, risk.loading) == (True, True)
    usual = model(f"float[5, 2, 3] x, {WEIGHTS}", "float[a, b, c, d] y", "y, h = GRU <hidden_size = 4> (x, w, r)")
    assert risk_of(usual) is None
    refuse_fatal_loading(graph, formats.to_onnx_bytes(graph))

    class Dies:
        def run(self, call: bytes) -> bytes:
            raise TaskLost("its process ended with -11")

        def close(self) -> None:
            pass

    monkeypatch.setattr(crash_isolation, "ChildProcessPool", Dies)
    monkeypatch.setattr(shared_weight_sessions, "ChildProcessPool", Dies)
    with pytest.raises(InvalidModel, match="loading it ends the process"):
        refuse_fatal_loading(graph, formats.to_onnx_bytes(graph))
    with SharedWeightSessions() as bench, pytest.raises(InvalidModel, match="loading it ends the process"):
        bench.loaded(graph, ONNX_RUNTIME)
    assert optimize(graph).report.status == "unchanged"
