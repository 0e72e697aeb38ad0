"""What the backend runs as one kernel stays whole, unless the whole gains by taking it apart."""

from __future__ import annotations

import pytest

from superopt import cost
from superopt.cost.backend_capabilities import ONNX_RUNTIME_PATTERNS, FusionPattern, groups
from superopt.frontend import GraphBuilder
from superopt.ir.graph import Graph, Node
from superopt.ops.shape_inference import infer
from superopt.passes import SearchOptions, saturation_search, search
from superopt.rules import load_library


def kernels_in(graph: Graph, patterns: tuple[FusionPattern, ...] = ONNX_RUNTIME_PATTERNS) -> list[tuple[Node, ...]]:
    """The nodes of each group that runs as one kernel."""
    return [g.nodes for g in groups(graph, patterns, infer(graph).types)]


@pytest.fixture(scope="module")
def prices() -> cost.CostModel:
    return cost.ProfileCostModel(cost.load_profile("cpu-epyc-2core"))


def block(half_last: bool) -> Graph:
    """A layer, a GELU written out, and what any search removes: one Relu of two."""
    b = GraphBuilder("block")
    x = b.input("x", "float32", (256, 192))
    y = b.op("Add", b.op("MatMul", x, b.weight("w", (192, 384), scale=0.1)), b.weight("c", (384,)))
    one_more = b.op("Add", b.op("Erf", b.op("Div", y, b.constant(2**0.5))), b.constant(1.0))
    if half_last:
        made = b.op("Mul", b.op("Mul", y, one_more), b.constant(0.5))
    else:
        made = b.op("Mul", b.op("Mul", y, b.constant(0.5)), one_more)
    z = b.op("MatMul", made, b.weight("v", (384, 192), scale=0.1))
    b.output(b.op("Relu", b.op("Relu", z)), "out")
    return b.build()


def found(graph: Graph, prices: cost.CostModel) -> Graph:
    library = load_library()
    options = SearchOptions(cache=False, floats=library.floats("standard"))
    return search(graph, library.admitted, prices, options).graph


@pytest.mark.parametrize("half_last", [True, False])
def test_a_gelu_that_is_written_out_stays_whole(half_last: bool, prices: cost.CostModel) -> None:
    graph = block(half_last)
    made = found(graph, prices)
    assert len(kernels_in(made)) == 1
    assert sum(n.op == "Relu" for n in made.nodes) == 1
    assert cost.graph_cost(made, prices).us < cost.graph_cost(graph, prices).us


def test_prices_that_do_not_know_it_take_it_apart(prices: cost.CostModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saturation_search, "fused_kernels", lambda *_: ())
    graph = block(True)
    made = found(graph, prices)
    assert not kernels_in(made)
    assert cost.graph_cost(made, prices).us > cost.graph_cost(graph, prices).us


def normalised(*, ending: bool) -> Graph:
    """A root mean square normalisation written out, and what any search removes: one Relu of two."""
    b = GraphBuilder("normalised")
    x = b.input("x", "float32", (1, 160, 64))
    mean = b.op("ReduceMean", b.op("Pow", x, b.constant(2.0)), b.constant([-1]), keepdims=1)
    root = b.op("Sqrt", b.op("Add", mean, b.constant(1e-5)))
    over = b.op("Mul", x, b.op("Div", b.constant(1.0), root)) if ending else b.op("Div", x, root)
    y = b.op("Mul", over, b.weight("g", (64,)))
    b.output(b.op("Relu", b.op("Relu", y)), "out")
    return b.build()


@pytest.mark.parametrize("ending", [True, False])
def test_to_open_a_kernel_asks_for_more(ending: bool, prices: cost.CostModel) -> None:
    """``x²`` as ``x · x`` asks for no more FLOPs, and ONNX Runtime ran six kernels for one then: 1.9 times as long."""
    graph = normalised(ending=ending)
    library = load_library()
    options = SearchOptions(cache=False, floats=library.floats("standard"), no_tradeoffs=True)
    made = search(graph, library.admitted, prices, options).graph
    assert sum(n.op == "Relu" for n in made.nodes) == 1
    assert [len(k) for k in kernels_in(made)] == [len(k) for k in kernels_in(graph)] == [7 if ending else 6]
