"""Constants of one element at the rank of what they are combined with: else each element is a loop of its own."""

from __future__ import annotations

import numpy as np
import pytest

import superopt
from superopt import cost, formats
from superopt.extraction.enode_costs import ENodeCostModel
from superopt.frontend import GraphBuilder
from superopt.ir.graph import Graph
from superopt.ops import REGISTRY
from superopt.ops.shape_inference import infer
from superopt.passes.backend_fusion import align_constant_ranks
from superopt.pipeline import optimize
from superopt.program.graph_program import program_of
from superopt.regions.emission import emit
from superopt.regions.replay import FreshNames
from superopt.runtime import onnx_runtime

PROFILE = "profile:cpu-epyc-2core"


def rewritten(graph: Graph) -> Graph | None:
    program = program_of(graph, infer(graph))
    with cost.for_target(PROFILE) as prices:
        found = align_constant_ranks(program, ENodeCostModel(prices, graph.opset, {"N": 64}), FreshNames(program).fresh)
    return None if found is None else emit(found.program, REGISTRY, 1 << 20).graph


def shapes(graph: Graph, op: str) -> list[tuple[object, ...]]:
    (node,) = (n for n in graph.nodes if n.op == op)
    return [w.type.shape or () for n in node.inputs if (w := graph.constants.get(n)) is not None]


def combined(op: str, shape: tuple[int | str, ...], constant: np.ndarray, *, first: bool = False) -> Graph:
    b = GraphBuilder("net")
    x, c = b.input("x", "float32", shape), b.constant(constant.astype(np.float32))
    b.output(b.op(op, *((c, x) if first else (x, c))), "y")
    return b.build()


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Greater"])
@pytest.mark.parametrize("constant", [np.array(1.5), np.array([1.5])], ids=["no axis", "one axis"])
@pytest.mark.parametrize("first", [False, True], ids=["behind", "in front"])
def test_a_number_beside_a_last_axis_of_one_element_gets_all_axes(op: str, constant: np.ndarray, first: bool) -> None:
    graph = combined(op, (256, 7, 7, 1), constant, first=first)
    after = rewritten(graph)
    assert after is not None
    assert shapes(after, op) == [(1, 1, 1, 1)]
    x = np.random.default_rng(0).uniform(0.5, 2.0, (256, 7, 7, 1)).astype(np.float32)
    x.flat[:3] = np.nan, np.inf, -0.0
    made = [
        onnx_runtime.run(onnx_runtime.make_session(formats.to_onnx_bytes(g), threads=1), {"x": x})["y"]
        for g in (graph, after)
    ]
    assert made[0].tobytes() == made[1].tobytes()


@pytest.mark.parametrize(
    ("shape", "constant"),
    [((256, 49), np.array(1.5)), ((1, 12, 64, 64), np.array(1.5)), ((256, 7, 7, 1), np.full((1, 1, 1, 1), 1.5)),
     ((256, 7, 1, 7), np.arange(7.0))],
    ids=["no such axis", "leading", "all axes", "several numbers"],
)  # fmt: skip
def test_what_is_fast_or_no_number_stays(shape: tuple[int, ...], constant: np.ndarray) -> None:
    assert rewritten(combined("Mul", shape, constant)) is None


def test_open_sizes_and_results_of_a_higher_rank() -> None:
    """A constant of a higher rank than the data decides the result's rank, and is left alone."""
    after = rewritten(combined("Mul", ("N", 100, 1), np.array(2.0)))
    assert after is not None
    assert shapes(after, "Mul") == [(1, 1, 1)]
    assert rewritten(combined("Mul", (), np.full((1, 1, 1), 2.0))) is None


def test_a_normalisation_that_is_one_kernel_keeps_its_epsilon() -> None:
    b = GraphBuilder("net", opset=16)
    x = b.input("x", "float32", (1, 256, 64))
    centred = b.op("Sub", x, b.op("ReduceMean", x, axes=(-1,)))
    square = b.op("Pow", centred, b.constant(np.array(2.0, np.float32)))
    varied = b.op("Add", b.op("ReduceMean", square, axes=(-1,)), b.constant(np.array(1e-5, np.float32)))
    scaled = b.op(
        "Mul", b.op("Div", centred, b.op("Sqrt", varied)), b.constant(np.linspace(1, 2, 64, dtype=np.float32))
    )
    b.output(b.op("Add", scaled, b.constant(np.ones(64, np.float32))), "y")
    assert rewritten(b.build()) is None


def test_it_is_done_in_an_optimisation_and_counted() -> None:
    """RAFT scales the places that it samples so: 256 × 7 × 7 × 1."""
    b = GraphBuilder("net")
    x = b.op("Tanh", b.input("x", "float32", (256, 7, 7, 1)))
    b.output(b.op("Div", x, b.constant(np.array(15.0, np.float32))), "y")
    found = optimize(b.build(), options=superopt.Options(target=PROFILE, time_limit=None))
    assert found.report.check.verdict == "passed"
    assert [w.type.shape for w in found.graph.weights if w.type.elements == 1] == [(1, 1, 1, 1)]
    assert found.report.cost.after_us < 0.5 * found.report.cost.before_us
