"""Groups that the backend runs as one kernel, and that models have in other words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from graphs import assert_equivalent

from superopt import cost
from superopt.cost.backend_capabilities import ONNX_RUNTIME_PATTERNS, SUPEROPT_CUDA, FusionPattern, groups
from superopt.egraph.rule_compiler import compile_rewrites
from superopt.extraction.enode_costs import ENodeCostModel
from superopt.frontend import GraphBuilder, SymbolicTensor
from superopt.ir.graph import Graph, Node
from superopt.ops.shape_inference import infer
from superopt.passes import SearchOptions, search
from superopt.passes.backend_fusion import fused_kernels, fusing_plans, groups_of
from superopt.program.graph_program import GraphProgram, program_of
from superopt.rules import load_library


def kernels_in(graph: Graph, patterns: tuple[FusionPattern, ...] = ONNX_RUNTIME_PATTERNS) -> list[tuple[Node, ...]]:
    """The nodes of each group that runs as one kernel."""
    return [g.nodes for g in groups(graph, patterns, infer(graph).types)]


@pytest.fixture(scope="module")
def prices() -> cost.CostModel:
    return cost.ProfileCostModel(cost.load_profile("cpu-epyc-2core"))


def gelu(b: GraphBuilder, x: SymbolicTensor) -> SymbolicTensor:
    """As PyTorch's newer exporter writes it."""
    one_more = b.op("Add", b.op("Erf", b.op("Div", x, b.constant(2**0.5))), b.constant(1.0))
    return b.op("Mul", x, b.op("Mul", b.constant(0.5), one_more))


def root_mean_square(b: GraphBuilder, x: SymbolicTensor) -> SymbolicTensor:
    """The same of an RMSNorm."""
    mean = b.op("ReduceMean", b.op("Pow", x, b.constant(2.0)), b.constant([-1]), keepdims=1)
    root = b.op("Sqrt", b.op("Add", mean, b.constant(1e-5)))
    return b.op("Mul", b.op("Mul", x, b.op("Reciprocal", root)), b.weight("scale", (384,)))


FORMS = {"gelu": (gelu, 5), "root mean square": (root_mean_square, 6)}


def along_another_axis(b: GraphBuilder, x: SymbolicTensor) -> SymbolicTensor:
    """A normalisation that ONNX Runtime has no kernel for: over columns."""
    mean = b.op("ReduceMean", b.op("Mul", x, x), b.constant([0]), keepdims=1)
    root = b.op("Sqrt", b.op("Add", mean, b.constant(1e-5)))
    return b.op("Mul", b.op("Div", x, root), b.weight("scale", (384,)))


OTHERS = {**FORMS, "along another axis": (along_another_axis, 0)}


def block(name: str, *, read_twice: bool = False) -> Graph:
    b = GraphBuilder("block")
    made = OTHERS[name][0](b, b.op("Tanh", b.input("x", "float32", (256, 384))))
    b.output(b.op("Softmax", made, axis=-1), "out")  # nothing that takes a factor in
    if read_twice:
        inner = next(n for n in b.build().nodes if n.op in ("Erf", "Sqrt"))
        graph = b.build()
        return replace(graph, outputs=(*graph.outputs, replace(graph.outputs[0], name=inner.outputs[0], type=None)))
    return b.build()


def read(graph: Graph, prices: cost.CostModel) -> tuple[GraphProgram, ENodeCostModel]:
    pricer = ENodeCostModel(prices, graph.opset, {})
    program = program_of(graph, infer(graph))
    return replace(program, kernels=fused_kernels(program, pricer)), pricer


@pytest.mark.parametrize("name", FORMS)
def test_what_rules_say_is_equal_becomes_one_kernel(name: str, prices: cost.CostModel) -> None:
    graph, library = block(name), load_library()
    assert all(len(g) < 4 for g in kernels_in(graph))
    found = search(graph, library.admitted, prices, SearchOptions(cache=False, floats=library.floats("standard")))
    assert max(len(g) for g in kernels_in(found.graph)) >= FORMS[name][1]
    assert cost.graph_cost(found.graph, prices).us < cost.graph_cost(graph, prices).us
    assert found.applied, "and the rules are named"
    assert_equivalent(graph, found.graph)


@pytest.mark.parametrize("name", OTHERS)
def test_what_would_be_no_kernel_is_left_alone(name: str, prices: cost.CostModel) -> None:
    """Because something else looks into it, or by what it is."""
    graph, library = block(name, read_twice=name in FORMS), load_library()
    program, pricer = read(graph, prices)
    moves = compile_rewrites(library.admitted, program, floats=library.floats("standard")).all_rewrites
    assert list(fusing_plans(program, moves, pricer)) == []


def test_a_backend_without_such_kernels_has_no_words_of_its_own(prices: cost.CostModel) -> None:
    graph, library = block("gelu"), load_library()
    other = cost.ProfileCostModel(cost.load_profile("cpu-epyc-2core"), None, SUPEROPT_CUDA)
    program, pricer = read(graph, other)
    moves = compile_rewrites(library.admitted, program, floats=library.floats("standard")).all_rewrites
    assert list(fusing_plans(program, moves, pricer)) == []


def test_a_kernel_is_whole_only_while_its_own_steps_are_there(prices: cost.CostModel) -> None:
    """A step's value keeps its name when another takes its place."""
    library, graph = load_library(), block("gelu")
    program, pricer = read(graph, prices)
    found = search(graph, library.admitted, prices, SearchOptions(cache=False, floats=library.floats("standard"))).graph
    program, _ = read(found, prices)
    (kernel,) = program.kernels
    new = tuple(replace(s, node=None) if s.outputs[0] in kernel.outputs else s for s in program.steps)
    written = replace(program, steps=new)
    written = replace(written, kernels=fused_kernels(written, pricer))
    assert written.within == kernel.within
    for at, step in enumerate(new):
        if step.outputs[0] in kernel.outputs:
            other = (
                replace(step, args=step.args[:1] * len(step.args)) if len(step.args) > 1 else replace(step, op="Abs")
            )
            assert not replace(written, steps=(*new[:at], other, *new[at + 1 :])).within


def normalised_sum(
    shape: tuple[int | str, ...], *, again: bool = False, axis: int = -1, dtype: str = "float32"
) -> Graph:
    """A residual and the normalisation behind it, which a Transformer has twice a layer."""
    b = GraphBuilder("post-norm", opset=17)
    x, y = b.input("x", dtype, shape), b.input("y", dtype, shape)
    both = x + y
    weights = [b.weight(name, shape[axis:], dtype=dtype) for name in ("scale", "bias")]
    made = b.op("LayerNormalization", both, *weights, axis=axis)
    b.output(made.relu(), "out")
    if again:
        b.output(both, "both")
    return b.build()


def test_what_a_kernel_takes_longer_for_than_its_parts_is_written_apart(prices: cost.CostModel) -> None:
    graph, library = normalised_sum((2, 128, 256)), load_library()
    assert [len(nodes) for nodes in kernels_in(graph)] == [2]
    options = SearchOptions(cache=False, floats=library.floats("standard"))
    found = search(graph, library.admitted, prices, options)
    assert "Add" not in [n.op for n in found.graph.nodes]
    assert kernels_in(found.graph) == []
    assert cost.graph_cost(found.graph, prices).us < 0.5 * cost.graph_cost(graph, prices).us
    assert found.applied, "and the rule is named"
    no_tradeoffs = search(graph, library.admitted, prices, replace(options, no_tradeoffs=True))
    assert no_tradeoffs.graph is graph, "two kernels are more than one"


@pytest.mark.parametrize(
    "graph",
    [
        normalised_sum((2, 128, 256), again=True), normalised_sum((2, 4, 32, 256)), normalised_sum((64, 256)),
        normalised_sum((2, 128, 256), axis=-2), normalised_sum((2, 128, 256), dtype="float64"),
    ],
    ids=["somebody else reads the sum", "rank 4", "rank 2", "along two axes", "float64"],
)  # fmt: skip
def test_what_is_no_such_kernel_stays(graph: Graph, prices: cost.CostModel) -> None:
    assert kernels_in(graph) == []
    library = load_library()
    options = SearchOptions(cache=False, floats=library.floats("standard"))
    assert search(graph, library.admitted, prices, options).graph is graph


def test_a_kernel_of_few_elements_is_no_slower_than_its_parts(prices: cost.CostModel) -> None:
    graph, library = normalised_sum((1, 1, 64)), load_library()
    assert [len(nodes) for nodes in kernels_in(graph)] == [2]
    options = SearchOptions(cache=False, floats=library.floats("standard"))
    assert search(graph, library.admitted, prices, options).graph is graph


def test_a_gelu_by_tanh_becomes_one_kernel(prices: cost.CostModel) -> None:
    """``nn.GELU('tanh')`` as the new exporter writes it: with x · (0.5 · (1 + tanh …)), which is no kernel."""
    b = GraphBuilder("gelu", opset=18)
    x = b.op("Tanh", b.input("x", "float32", (256, 384)))
    cubic = b.op("Mul", b.constant(0.044715), b.op("Pow", x, b.constant(3.0)))
    tanh = b.op("Tanh", b.op("Mul", b.constant(0.7978845608), b.op("Add", x, cubic)))
    half = b.op("Mul", b.constant(0.5), b.op("Add", tanh, b.constant(1.0)))
    b.output(b.op("Softmax", b.op("Mul", x, half), axis=-1), "out")
    graph, library = b.build(), load_library()
    assert kernels_in(graph) == []
    found = search(graph, library.admitted, prices, SearchOptions(cache=False, floats=library.floats("standard")))
    assert [len(nodes) for nodes in kernels_in(found.graph)] == [8]


def test_a_kernel_with_an_operator_that_is_carried_through_stays(prices: cost.CostModel) -> None:
    """A LayerNormalization whose mean somebody reads has no meaning here: a barrier."""
    graph = normalised_sum((2, 128, 256))
    mean = replace(graph.outputs[0], name="mean", type=None)
    nodes = tuple(replace(n, outputs=(*n.outputs, "mean")) if n.op == "LayerNormalization" else n for n in graph.nodes)
    graph = replace(graph, nodes=nodes, outputs=(*graph.outputs, mean))
    assert [len(nodes) for nodes in kernels_in(graph)] == [2]
    library = load_library()
    options = SearchOptions(cache=False, floats=library.floats("standard"))
    assert search(graph, library.admitted, prices, options).graph is graph


def normalised_weights() -> Graph:
    """A normalised sum that weights alone decide, beside a product that runs."""
    b = GraphBuilder("queries", opset=17)
    shape = (20, 1, 64)
    both = b.weight("queries", shape) + b.weight("attended", shape)
    made = b.op("LayerNormalization", both, b.weight("scale", (64,)), b.weight("bias", (64,)), axis=-1)
    b.output(b.input("x", "float32", shape) * made, "out")
    return b.build()


def test_what_weights_alone_decide_is_no_kernel(prices: cost.CostModel) -> None:
    """The first layer of a DETR decoder, whose queries are a weight and look at each other."""
    graph, library = normalised_weights(), load_library()
    assert [len(nodes) for nodes in kernels_in(graph)] == [2]
    program, pricer = read(graph, prices)
    assert groups_of(program, pricer) == ()
    options = SearchOptions(cache=False, floats=library.floats("standard"))
    assert_equivalent(graph, search(graph, library.admitted, prices, options).graph)
