"""Rules and prices go through calls of a model's own functions; a call whose body stays is a call in the result."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

import superopt
from superopt import formats
from superopt.formats.function_inlining import function_names
from superopt.ir.errors import UsageError
from superopt.ir.graph import Graph
from superopt.pipeline import inspect
from superopt.runtime.onnx_runtime import make_session, run

TARGET = "profile:cpu-epyc-2core"
# Slices that are put together again before a call, two Relus after one; the body itself can be made no better.
BEHIND = """<ir_version: 10, opset_import: ["": 17, "own": 1]> g (float[4, 16] x) => (float[4, 16] y)
    <int64[1] s = {0}, int64[1] e = {2}, int64[1] e2 = {4}> {
        p = Slice(x, s, e) q = Slice(x, e, e2) m = Concat <axis = 0> (p, q) a = own.A(m) r = Relu(a) y = Relu(r) }
    <domain: "own", opset_import: ["": 17]> A (x) => (y) {
        c = Constant <value_float: float = 0.3> () k = Sin(x) y = Add(c, k) }"""
INSIDE = """<ir_version: 10, opset_import: ["": 17, "own": 1]> g (float[4, 16] x) => (float[4, 16] y) {
        p = own.A(x) q = own.B(p) y = own.A(q) }
    <domain: "own", opset_import: ["": 17]> A (x) => (y) { k = Exp(x) y = Sin(k) }
    <domain: "own", opset_import: ["": 17]> B (x) => (y) { k = Relu(x) l = Relu(k) y = Relu(l) }"""
STAYS = """<ir_version: 10, opset_import: ["": 17, "own": 1]> g (float[4, 16] x) => (float[4, 16] y) { y = own.A(x) }
    <domain: "own", opset_import: ["": 17]> A (x) => (y) { k = Sin(x) y = Exp(k) }"""


def read(text: str) -> Graph:
    return formats.from_onnx(parser.parse_model(text))


def outputs(graph: Graph) -> np.ndarray:
    feeds = {"x": np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)}
    return run(make_session(formats.to_onnx_bytes(graph)), feeds)["y"]


def optimised(text: str, functions: str) -> superopt.Result:
    return superopt.optimize(read(text), target=TARGET, functions=functions)


def test_what_is_before_and_behind_a_call_is_rewritten_and_the_call_stays() -> None:
    result = optimised(BEHIND, "keep")
    assert sorted(n.op for n in result.graph.nodes if n.op != "Identity") == ["A", "Relu"]
    assert function_names(result.graph) == ("own.A",)
    assert not result.report.opaque
    np.testing.assert_allclose(outputs(result.graph), outputs(result.original), rtol=1e-6)


def test_a_body_that_gains_is_rewritten_and_the_calls_of_others_stay() -> None:
    result = optimised(INSIDE, "keep")
    assert [n.op for n in result.graph.nodes] == ["A", "Relu", "A"]
    assert function_names(result.graph) == ("own.A",)
    np.testing.assert_allclose(outputs(result.graph), outputs(result.original), rtol=1e-6)


def test_bodies_take_the_place_of_calls_where_that_is_asked_for() -> None:
    result = optimised(INSIDE, "inline")
    assert [n.op for n in result.graph.nodes] == ["Exp", "Sin", "Relu", "Exp", "Sin"]
    assert not function_names(result.graph)
    assert dict(result.graph.opset) == {"": 17}
    np.testing.assert_allclose(outputs(result.graph), outputs(result.original), rtol=1e-6)


def test_a_model_of_which_nothing_changes_comes_back_as_it_was() -> None:
    kept, opened = optimised(STAYS, "keep"), optimised(STAYS, "inline")
    assert kept.graph is kept.original
    assert kept.report.status == opened.report.status == "unchanged"
    assert [n.op for n in opened.graph.nodes] == ["Sin", "Exp"]


def test_a_call_that_stays_is_told_with_its_reason() -> None:
    older = STAYS.replace('own", opset_import: ["": 17]', 'own", opset_import: ["": 9]')
    text = older.replace("{ k = Sin(x)", "{ j = Softmax(x) k = Sin(j)")
    result = optimised(text, "keep")
    assert result.graph is result.original
    assert any("own.A stay" in note and "Softmax" in note for note in result.report.notes)


def test_another_word_is_refused_by_its_name() -> None:
    with pytest.raises(UsageError, match="functions: 'unfold' is none of keep, inline"):
        optimised(STAYS, "unfold")


def test_inspection_names_functions_and_sees_their_bodies() -> None:
    found = inspect(read(BEHIND))
    assert found["functions"] == ["own.A"]
    assert found["operators"]["Sin"] == 1
    assert found["opaque"] == []
