"""Plans that are worth their new weights only together."""

from __future__ import annotations

from graphs import assert_equivalent, f32, graph, op, weight
from roofline import Roofline
from rules_for_tests import rules

from superopt.egraph.rule_compiler import compile_rewrites
from superopt.egraph.saturation import SaturationLimits
from superopt.extraction.enode_costs import ENodeCostModel
from superopt.frontend import GraphBuilder
from superopt.ir.graph import Graph
from superopt.ops import REGISTRY
from superopt.ops.shape_inference import infer
from superopt.passes import SearchOptions, search
from superopt.program.graph_program import program_of
from superopt.regions.plan_selection import Placed, RegionPlanSelection, WeightUsage
from superopt.regions.region_egraph import region_of
from superopt.regions.region_search import search_region
from superopt.rules import load_library

PART = 4 * 256 * 64 * 4  # bytes of the four weights that two regions share


def shared() -> tuple[WeightUsage, list[Placed]]:
    """Two regions that read the same four weights, and a plan for each that merges them into one."""
    weights = [weight(f"w{i}", 256, 64) for i in range(4)]
    nodes = [op("MatMul", f"{i}{w}", i, f"w{w}") for i in "xy" for w in range(4)]
    model = graph({"x": f32(4, 256), "y": f32(3, 256)}, [n.outputs[0] for n in nodes], weights, nodes)
    program = program_of(model, infer(model))
    pricer = ENodeCostModel(Roofline(), model.opset, {})
    moves = compile_rewrites(rules("qkv"), program).all_rewrites
    placed = []
    for part in (range(4), range(4, 8)):
        region = region_of(program, part)
        plan = search_region(region, moves, REGISTRY, pricer, SaturationLimits(), 0.0, 0).plan
        assert plan is not None
        placed.append((region, plan))
    return WeightUsage(program), placed


def test_what_is_not_worth_its_weights_alone_is_taken_with_the_rest():
    weights, placed = shared()
    offers = RegionPlanSelection(weights, lambda read: float(read), 1 << 30)
    for one in placed:
        offers.add([one])
    assert not offers.accepted
    assert [why for _, why in offers.refused] == [f"{PART >> 10} KiB more of weights would be read"] * 2
    offers.accept_jointly()
    assert len(offers.accepted) == 2
    assert not offers.refused
    assert offers.grown == 0
    assert [p.after for _, p in offers.accepted] == [p.after for _, p in placed]


def test_one_alone_stays_refused_and_one_that_does_not_fit_the_budget_too():
    weights, placed = shared()
    for offers in (
        RegionPlanSelection(weights, lambda read: float(read), 1 << 30),
        RegionPlanSelection(weights, lambda _: 0.0, PART - 1),
    ):
        offers.add(placed[:1])
        offers.accept_jointly()
        assert not offers.accepted
        assert len(offers.refused) == 1


def test_weights_that_the_cache_holds_anyway_cost_nothing():
    weights, placed = shared()
    offers = RegionPlanSelection(weights, lambda read: max(0.0, read - 2.0 * PART), 1 << 30)
    offers.add(placed[:1])
    assert len(offers.accepted) == 1
    assert offers.grown == PART


def cell(steps: int, gates: int, width: int) -> Graph:
    """A recurrent cell, unrolled, from a constant state: in its first step half of the products are constants."""
    b = GraphBuilder("cell")
    parts = [tuple(b.weight(f"{n}{g}", (width, width), scale=0.1) for n in "wu") for g in range(gates)]
    biases = [b.weight(f"b{g}", (width,), scale=0.1) for g in range(gates)]
    state = b.weight("start", (1, width), scale=0.5)
    for t in range(steps):
        x = b.input(f"x{t}", "float32", (1, width))
        sums = [(x @ w + state @ u + bias).sigmoid() for (w, u), bias in zip(parts, biases, strict=True)]
        state = sums[0]
        for other in sums[1:]:
            state = state * other
    b.output(state, "y", shape=(1, width))
    return b.build()


def test_the_gates_of_all_steps_become_one_product_and_the_inputs_of_all_steps_one_more():
    model, library = cell(3, 8, 64), load_library()
    options = SearchOptions(cache=False, time_limit=120.0, floats=library.floats("standard"))
    found = search(model, library.admitted, Roofline(), options)
    products = [n for n in found.graph.nodes if n.op in ("MatMul", "Gemm")]
    assert len(products) == 3  # one for the inputs of all steps, and one for the state of each but the first
    assert_equivalent(model, found.graph)
