"""Verdicts on models with control flow: what rounding and overflow inside bodies explain, and what they do not."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import superopt
from superopt.formats.onnx_reader import from_onnx
from superopt.runtime import reference
from superopt.runtime.onnx_runtime import run as run_in_runtime
from superopt.verifier.check.shared_weight_sessions import SharedWeightSessions
from superopt.verifier.equivalence.graphs import verify
from tests.control_flow import CASES, body, feeds, model, node, value


@pytest.mark.parametrize("name", CASES)
def test_a_right_result_is_not_refuted(name: str) -> None:
    """Two products in one round otherwise, and overflow otherwise; the bodies' own rounding explains it."""
    proto, _, _ = CASES[name]
    made = superopt.optimize(proto, target="profile:cpu-epyc-2core", check=False)
    found = verify(from_onnx(proto), made.graph)
    assert found.verdict in ("proved", "proved up to rounding", "tested"), found.reason


def _changed(proto: ModelProto, place: str, factor: float) -> ModelProto:
    """The model with a product by a number behind a value inside a body."""
    made = ModelProto.FromString(proto.SerializeToString())
    made.graph.initializer.append(numpy_helper.from_array(np.array(factor, np.float32), "factor"))
    stack = [made.graph]
    while stack:
        graph = stack.pop()
        for position, item in enumerate(graph.node):
            stack += [a.g for a in item.attribute if a.HasField("g")]
            if list(item.output) == [place]:
                item.output[0] = "unscaled"
                graph.node.insert(position + 1, helper.make_node("Mul", ["unscaled", "factor"], [place]))
                return made
    raise AssertionError(place)


@pytest.mark.parametrize(
    ("name", "place"),
    [("if", "ty"), ("if", "ey"), ("loop", "so"), ("loop of three turns", "sb"), ("scan", "o"), ("if in a loop", "eb")],
)
@pytest.mark.parametrize("factor", [1.001, -1.0, 0.0])
def test_a_wrong_value_inside_a_body_is_refuted(name: str, place: str, factor: float) -> None:
    proto = CASES[name][0]
    found = verify(from_onnx(proto), from_onnx(_changed(proto, place, factor)))
    assert found.verdict == "refuted", found.words


def test_another_branch_or_count_of_turns_is_refuted() -> None:
    plain = CASES["if"][0]
    swapped = ModelProto.FromString(plain.SerializeToString())
    first, second = swapped.graph.node[0].attribute
    first.name, second.name = second.name, first.name
    assert verify(from_onnx(plain), from_onnx(swapped)).verdict == "refuted"
    three = CASES["loop of three turns"][0]
    four = ModelProto.FromString(three.SerializeToString())
    (count,) = (t for t in four.graph.initializer if t.name == "three")
    count.CopyFrom(numpy_helper.from_array(np.array(4), "three"))
    assert verify(from_onnx(three), from_onnx(four)).verdict == "refuted"


@pytest.mark.parametrize("name", CASES)
def test_the_reference_runs_bodies_as_the_runtime_does(name: str) -> None:
    proto, given, _ = CASES[name]
    graph = from_onnx(proto)
    with SharedWeightSessions() as bench:
        session = bench.session(graph, optimise=False)
        for seed, fed in enumerate(given):
            arrays = feeds(proto, seed, **fed)
            exact = reference.run(graph, arrays)
            for output, array in run_in_runtime(session, arrays, time_limit=60.0).items():
                assert exact[output].dtype == np.float64
                np.testing.assert_allclose(array, exact[output], rtol=1e-4, atol=1e-5)


def test_the_reference_keeps_what_float32_would_round_inside_a_body() -> None:
    nodes = [node("Identity", "going", "goes"), node("Add", "s tiny", "so")]
    steering = [value("turn", [], TensorProto.INT64), value("going", [], TensorProto.BOOL)]
    inner = body(nodes, [*steering, value("s", [])], [value("goes", [], TensorProto.BOOL), value("so", [])])
    inputs = [value("n", [], TensorProto.INT64), value("s0", []), value("tiny", [])]
    graph = from_onnx(model([node("Loop", "n true s0", "y", body=inner)], inputs, [value("y", [])]))
    arrays = {"n": np.array(1000), "s0": np.array(1.0, np.float32), "tiny": np.array(1e-8, np.float32)}
    assert reference.run(graph, arrays)["y"] == pytest.approx(1.00001, abs=1e-9)
