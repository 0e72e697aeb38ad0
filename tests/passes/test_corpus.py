"""Rewrites that need many steps or long distances, on small variants of the corpus with the library's own rules."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from graphs import assert_equivalent, f32, graph, op, weight
from roofline import Roofline

from superopt import cost, formats
from superopt.egraph.nary_rules import lift
from superopt.ir.graph import Graph
from superopt.ops.shape_inference import infer
from superopt.passes import SearchOptions, search
from superopt.program.graph_program import program_of
from superopt.regions.partition import selection_regions, sibling_regions
from superopt.rules import load_library
from superopt.rules.typing import instances
from superopt.verifier import test as exact_test
from superopt.verifier.verdict import RefutedVerdict

TINY = Path(__file__).parents[2] / "corpus" / "tiny"
FLOATS = load_library().floats("standard")  # whose rules ship compiled


@pytest.fixture(scope="module")
def library():
    return load_library().admitted


def tiny(name: str) -> Graph:
    return formats.load(TINY / f"{name}.json")


def optimised(name: str, library, dispatch: float = 2.0) -> tuple[Graph, Counter]:
    model = tiny(name)
    options = SearchOptions(time_limit=120.0, cache=False, floats=FLOATS)
    result = search(model, library, Roofline(dispatch), options)
    assert result.after_us <= result.before_us
    return result.graph, Counter(n.op for n in result.graph.nodes)


def test_a_deep_linear_stack_collapses(library):
    _, ops = optimised("deep_linear", library)
    assert ops["MatMul"] + ops["Gemm"] == 1


def test_low_rank_updates_are_merged(library):
    before = Counter(n.op for n in tiny("lora").nodes)
    _, ops = optimised("lora", library)
    assert (ops["MatMul"] + ops["Gemm"]) * 2 <= before["MatMul"]


@pytest.mark.slow
def test_gates_merge_over_all_steps(library):
    before = Counter(n.op for n in tiny("lstm").nodes)
    after, ops = optimised("lstm", library)
    assert ops["MatMul"] + ops["Gemm"] <= before["MatMul"] / 4
    assert_equivalent(tiny("lstm"), after)


def test_constants_that_are_added_one_after_the_other_are_added_beforehand(library):
    """The first step of a cell: its state is a constant, so each gate is ``x @ w + c + b`` with a whole row ``c``."""
    weights, nodes = [], []
    for gate in "ifgo":
        weights += [weight(f"w{gate}", 16, 16), weight(f"c{gate}", 1, 16), weight(f"b{gate}", 16)]
        nodes += [
            op("MatMul", f"m{gate}", "x", f"w{gate}"), op("Add", f"s{gate}", f"m{gate}", f"c{gate}"),
            op("Add", f"t{gate}", f"s{gate}", f"b{gate}"), op("Sigmoid", f"y{gate}", f"t{gate}"),
        ]  # fmt: skip
    model = graph({"x": f32(1, 16)}, [f"y{g}" for g in "ifgo"], weights, nodes)
    after = search(model, library, Roofline(2.0), SearchOptions(time_limit=120.0, cache=False, floats=FLOATS)).graph
    ops = Counter(n.op for n in after.nodes)
    assert ops["Add"] == 0
    assert ops["MatMul"] + ops["Gemm"] <= 2
    assert_equivalent(model, after)


def test_a_selection_moves_up_to_the_last_attention(library):
    after, _ = optimised("gpt2_last", library)
    slices = [n for n in after.nodes if n.op == "Slice"]
    assert slices
    assert not any(after.producer[n.inputs[0]].op in ("MatMul", "LayerNormalization", "Pow") for n in slices
                   if n.inputs[0] in after.producer)  # fmt: skip


def test_linear_layers_go_before_the_upsampling(library):
    _, ops = optimised("segformer", library)
    assert ops["MatMul"] == ops["BatchNormalization"] == ops["Transpose"] == 0
    assert ops["Conv"] <= 6


@pytest.mark.parametrize("name", ["lstm", "nasrnn", "siamese", "gpt2_last", "bert"])
def test_covers_are_disjoint_and_convex(name):
    model = tiny(name)
    program = program_of(model, infer(model))
    for cover in (sibling_regions, selection_regions):
        regions = cover(program)
        flat = [p for r in regions for p in r]
        assert len(flat) == len(set(flat))
        for region in regions:
            inside, reached = set(region), set()
            for position, step in enumerate(program.steps):
                makers = {program.maker[n] for n in step.reads if n in program.maker}
                left = any(m in reached or (m in inside and position not in inside) for m in makers)
                assert not (left and position in inside), "a path leaves the region and comes back"
                if left:
                    reached.add(position)


def test_sums_are_lifted_and_stay_true(library):
    """A product with concatenated operands as a sum of products, whole weights or parts of them: for any number."""
    seen = 0
    for rule in library:
        if rule.operators - {"Split"} in ({"Concat", "Conv", "Add"}, {"Concat", "MatMul", "Add"}):
            lifted = lift(instances(rule)[0], 3)
            if lifted is not None:
                assert not isinstance(exact_test(lifted), RefutedVerdict)
                seen += 1
    assert seen >= 3


def test_siblings_that_wait_for_each_other_are_not_all_merged(library):
    """a1 → b1 and b2 → a2: {a1, a2} and {b1, b2} share a weight each, and only one pair can become one operator."""
    nodes = [
        op("MatMul", "a1", "x", "wa"), op("MatMul", "b1", "a1", "wb"),
        op("MatMul", "b2", "x", "wb"), op("MatMul", "a2", "b2", "wa"), op("Add", "y", "b1", "a2"),
    ]  # fmt: skip
    model = graph({"x": f32(4, 16)}, ["y"], [weight("wa", 16, 16), weight("wb", 16, 16)], nodes)
    regions = sibling_regions(program_of(model, infer(model)))
    assert len(regions) <= 1
    options = SearchOptions(time_limit=10.0, cache=False, floats=FLOATS, enable=("matmul",))
    result = search(model, library, Roofline(200.0), options)
    assert_equivalent(model, result.graph)


@pytest.mark.slow
def test_whether_parallel_convolutions_merge_is_the_device_s_choice(library) -> None:
    """They do where starting a kernel is dear beside the work, and not on the CPU of the shipped profile."""
    wide = {"sha256": "wide", "backend": "superopt-cuda", "peaks": {"flops_per_s": 6e13, "bytes_per_s": 4.3e12}}
    gpu, cpu = (
        cost.ProfileCostModel(cost.DeviceProfile(wide, {})),
        cost.ProfileCostModel(cost.load_profile("cpu-epyc-2core")),
    )
    model = formats.load(TINY.parent / "googlenet.json")
    options = SearchOptions(time_limit=120.0, cache=False, floats=FLOATS, least_gain=0.0)
    before, on_gpu, on_cpu = (
        sum(n.op == "Conv" for n in g.nodes)
        for g in (model, *(search(model, library, c, options).graph for c in (gpu, cpu)))
    )
    assert on_gpu < on_cpu <= before
