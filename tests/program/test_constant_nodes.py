"""Models whose weights are tensors of Constants, as some exporters write all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from sampling import slow

import superopt
from superopt import formats
from superopt.frontend import GraphBuilder
from superopt.ir.graph import Graph, Node, Weight, structural_hash
from superopt.runtime import onnx_runtime
from superopt.verifier.check.differential import check

CORPUS = Path(__file__).resolve().parents[2] / "corpus" / "tiny"


def held(graph: Graph) -> Graph:
    """A model with a Constant for each weight that nobody can override."""
    constants = graph.constants
    nodes = (Node(f"{w.name} held", "Constant", (), (n,), {"value": replace(w, name="")}) for n, w in constants.items())
    left = tuple(w for w in graph.weights if w.name not in constants)
    return replace(graph, nodes=(*nodes, *graph.nodes), weights=left)


def optimised(graph: Graph) -> superopt.Result:
    return superopt.optimize(graph, options=superopt.Options(target="profile:cpu-epyc-2core", time_limit=None))


@pytest.mark.parametrize("name", [slow("mobileone_s0"), slow("lora"), "deep_linear"])
def test_they_are_optimised_like_others(name: str) -> None:
    graph = formats.load(CORPUS / f"{name}.json")
    plain, found = optimised(graph), optimised(held(graph))
    assert found.report.check.verdict == "passed"
    assert found.report.cost.after_us == pytest.approx(plain.report.cost.after_us, rel=1e-6)
    assert found.report.cost.after_us < 0.95 * found.report.cost.before_us
    assert held(graph).weight_bytes == graph.weight_bytes


def small(*, given_out: bool) -> Graph:
    builder = GraphBuilder("small")
    x = builder.input("x", "float32", (4, 64))
    w, v = (builder.weight(n, (64, 64), scale=0.1) for n in "wv")
    builder.output(builder.op("MatMul", builder.op("MatMul", x, w), v), "y")
    made = held(builder.build())
    if not given_out:
        return made
    tensor, value = made.nodes[0].attributes["value"], made.outputs[0]
    assert isinstance(tensor, Weight)
    return replace(made, outputs=(value, replace(value, name=made.nodes[0].outputs[0], type=tensor.type)))


@pytest.mark.parametrize("ir", [3, 9])
@pytest.mark.parametrize("given_out", [False, True])
def test_results_are_valid_models_that_compute_the_same(ir: int, given_out: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    formats.save(small(given_out=given_out), path)
    model = onnx.load(path)
    model.ir_version = ir
    onnx.save(model, path)
    graph = formats.load(path)
    found = optimised(graph)
    onnx.checker.check_model(formats.to_onnx_bytes(found.graph), full_check=True)
    assert given_out or sum(n.op == "MatMul" for n in found.graph.nodes) == 1
    assert check(graph, found.graph).verdict == "passed"
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    before, after = (
        onnx_runtime.run(onnx_runtime.make_session(formats.to_onnx_bytes(g), threads=1), {"x": x})
        for g in (graph, found.graph)
    )
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-4, atol=1e-4)


def test_a_model_with_nothing_to_gain_is_returned_with_its_constants() -> None:
    builder = GraphBuilder("one")
    x = builder.input("x", "float32", (4, 64))
    builder.output(builder.op("MatMul", x, builder.weight("w", (64, 64))), "y")
    graph = held(builder.build())
    found = optimised(graph)
    assert structural_hash(found.graph) == structural_hash(graph)
    assert any(n.op == "Constant" for n in found.graph.nodes)
