"""What plans do to the weights of the whole program."""

from __future__ import annotations

from graphs import assert_equivalent, f32, graph, op, weight
from roofline import Roofline
from rules_for_tests import rules

from superopt.egraph.rule_compiler import compile_rewrites
from superopt.egraph.saturation import SaturationLimits
from superopt.extraction.enode_costs import ENodeCostModel
from superopt.ops import REGISTRY
from superopt.ops.shape_inference import infer
from superopt.passes import SearchOptions, search
from superopt.program.graph_program import program_of
from superopt.regions.plan_selection import WeightUsage
from superopt.regions.region_egraph import region_of
from superopt.regions.region_search import search_region


def test_a_chain_of_values_that_are_each_read_twice_is_searched():
    count = 45
    nodes = [op("MatMul", "a", "x", "w0"), op("MatMul", "v0", "a", "w1")]
    nodes += [op("Mul", f"v{i + 1}", f"v{i}", f"v{i}") for i in range(count)]
    model = graph({"x": f32(4, 16)}, [f"v{count}"], [weight("w0", 16, 16), weight("w1", 16, 16)], nodes)
    result = search(model, rules("assoc"), Roofline(), SearchOptions(cache=False, time_limit=60.0))
    assert sum(n.op == "MatMul" for n in result.graph.nodes) == 1


def test_a_merged_weight_is_free_only_when_nobody_reads_its_parts():
    weights = [weight(f"w{i}", 16, 8) for i in range(4)]
    nodes = [op("MatMul", f"{i}{w}", i, f"w{w}") for i in "xy" for w in range(4)]
    model = graph({"x": f32(4, 16), "y": f32(4, 16)}, [n.outputs[0] for n in nodes], weights, nodes)
    program = program_of(model, infer(model))
    moves = compile_rewrites(rules("qkv"), program).all_rewrites
    pricer = ENodeCostModel(Roofline(), model.opset, {})
    regions = [region_of(program, part) for part in (range(4), range(4, 8))]
    plans = [search_region(r, moves, REGISTRY, pricer, SaturationLimits(), 0.0, 0).plan for r in regions]
    assert None not in plans
    one, both = (list(zip(regions, plans, strict=True))[:n] for n in (1, 2))
    assert WeightUsage(program).grown(one) == 4 * 16 * 8 * 4  # y's products go on reading the parts
    assert WeightUsage(program).grown(both) == 0
    result = search(model, rules("qkv"), Roofline(), SearchOptions(cache=False))
    assert_equivalent(model, result.graph)


def test_the_name_of_a_constant_that_is_gone_may_come_again_for_what_is_none():
    """Best-first search of a siamese tower took a product for a constant, since one of its name had been there."""
    nodes = [op("Relu", "r", "w"), op("Add", "s", "x", "r"), op("Neg", "y", "x")]
    model = graph({"x": f32(4, 8)}, ["y"], [weight("w", 4, 8)], nodes)
    program = program_of(model, infer(model))
    assert {"r", "w"} <= program.constant
    without = program.with_steps([s for s in program.steps if s.op == "Neg"], {}, ())
    assert "w" in without.constant
    assert "r" not in without.constant
