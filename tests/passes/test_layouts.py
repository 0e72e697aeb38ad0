"""Networks of channels-last exporters lose the Transposes between operators, and compute what they did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from sampling import slow

from lab.channels_last_networks import CHANNELS_LAST
from lab.layouts import interior_transposes
from superopt.cost.target_cost_models import for_target
from superopt.extraction.enode_costs import ENodeCostModel
from superopt.formats import load, to_onnx_bytes
from superopt.frontend import GraphBuilder
from superopt.ir.graph import PASS, Graph
from superopt.ops.shape_inference import infer
from superopt.passes import SearchOptions, SearchResult, search
from superopt.passes.layouts import with_fewer_transposes
from superopt.passes.layouts.layout_selection import POLICY
from superopt.program.graph_program import GraphProgram, program_of
from superopt.regions.replay import FreshNames
from superopt.rules import load_library
from superopt.runtime.synthetic_tensors import feeds_for

TINY = Path(__file__).parents[2] / "corpus" / "tiny"
TARGET = "profile:cpu-epyc-2core"


def searched(graph: Graph, *, rules: bool = False, **options: object) -> SearchResult:
    """The result of a search, without rules if not asked."""
    library = load_library()
    limits = SearchOptions(floats=library.floats("standard"), cache=False, **options)  # type: ignore[arg-type]
    with for_target(TARGET) as costs:
        return search(graph, library.admitted if rules else [], costs, limits)


def run(graph: Graph, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(to_onnx_bytes(graph), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(feeds))


def assert_equal(graph: Graph, other: Graph) -> None:
    feeds = feeds_for(graph)
    for want, got in zip(run(graph, feeds), run(other, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", CHANNELS_LAST)
def test_no_more_transposes_are_left_than_the_twin_has(name: str) -> None:
    network, twin = (CHANNELS_LAST[name](last, size=64, width=1) for last in (True, False))
    found = searched(network)
    assert found.laid_out or name == "convnext"  # whose Transposes stand between a window and a product by channels
    assert interior_transposes(found.graph) <= interior_transposes(twin)
    assert_equal(network, found.graph)


@pytest.mark.parametrize(
    ("name", "greedy"), [slow("resnet", False), ("resnet", True), ("unet", False), slow("unet", True)]
)
def test_rules_keep_what_layouts_gained(name: str, greedy: bool) -> None:
    network, twin = (CHANNELS_LAST[name](last, size=64, width=1) for last in (True, False))
    found, beside = (searched(g, rules=True, greedy=greedy, most_nodes=2000) for g in (network, twin))
    assert interior_transposes(found.graph) == 0
    assert found.after_us <= 1.05 * beside.after_us
    assert_equal(network, found.graph)


def test_a_value_that_two_operators_read_is_transposed_once() -> None:
    b = GraphBuilder("shared")
    x = b.input("x", "float32", (1, 32, 32, 16))
    image = x.relu()
    kernels = (b.weight(name, (16, 16, 3, 3), scale=0.1) for name in "klmn")
    parts = [b.op("Conv", image.transpose(0, 3, 1, 2), k, pads=[1, 1, 1, 1]).transpose(0, 2, 3, 1) for k in kernels]
    b.output(parts[0].sigmoid() * parts[1] + parts[2].tanh() * parts[3], "out")
    graph = b.build()
    found = searched(graph)
    assert sum(n.op == "Transpose" for n in found.graph.nodes) == 2
    assert_equal(graph, found.graph)
    written = {n.metadata[PASS] for n in found.graph.nodes if PASS in n.metadata}
    assert written == {"layouts"}  # the pass, and not only that a search did it


def test_symbolic_batches_and_outputs_in_between_stay() -> None:
    b = GraphBuilder("between")
    x = b.input("x", "float32", ("n", 8, 8, 4))
    kernel, bias = b.weight("k", (4, 4, 1, 1)), b.weight("c", (4,))
    y = b.op("Conv", x.transpose(0, 3, 1, 2), kernel).transpose(0, 2, 3, 1) + bias
    b.output(y, "middle")
    b.output(b.op("Conv", y.relu().transpose(0, 3, 1, 2), kernel).transpose(0, 2, 3, 1), "out")
    graph = b.build()
    found = searched(graph, sizes={"n": 2})
    assert [v.name for v in found.graph.outputs] == ["middle", "out"]
    assert [v.type for v in found.graph.outputs] == [v.type for v in graph.outputs]
    assert_equal(graph, found.graph)


def test_layouts_are_left_out_if_asked() -> None:
    network = CHANNELS_LAST["unet"](True, size=64, width=1)
    assert searched(network, layouts=False).laid_out == 0


@pytest.mark.parametrize("name", ["bert", "swin_tiny", "mlp_mixer", "resnet", "unet", "convnext"])
def test_programs_that_are_left_without_pricing_a_form_would_keep_their_transposes(name: str) -> None:
    exported = CHANNELS_LAST.get(name)
    graph = load(TINY / f"{name}.json") if exported is None else exported(True, size=64, width=1)
    program = program_of(graph, infer(graph))
    transposes = count(program)
    policy = replace(POLICY, left=1.0)  # nothing is left out
    with for_target(TARGET) as costs:
        pricer = ENodeCostModel(costs, graph.opset, {})
        best = with_fewer_transposes(program, pricer, FreshNames(program, graph.names), policy)
        found = with_fewer_transposes(program, pricer, FreshNames(program, graph.names))
    assert (found is None) == (best is None or count(best) > POLICY.left * transposes)
    if found is not None and best is not None:
        assert [(s.op, s.attributes) for s in found.steps] == [(s.op, s.attributes) for s in best.steps]


def count(program: GraphProgram) -> int:
    return sum(program.steps[position].op == "Transpose" for position in program.running)
