"""What a search may take is counted in steps of matching, too, and never by the clock alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from graphs import assert_equivalent, f32, graph, op
from roofline import Roofline
from rules_for_tests import rules

from superopt.egraph.rule_compiler import compile_rewrites
from superopt.egraph.saturation import RewriteSet, SaturationLimits, saturate
from superopt.ir.graph import Graph
from superopt.ops import REGISTRY
from superopt.ops.shape_inference import infer
from superopt.passes import SearchOptions, saturation_search, search
from superopt.program.graph_program import program_of
from superopt.regions.region_egraph import lower, region_of

PAIRS = 12
NODES = 3 * PAIRS


def chain() -> Graph:
    """Many times two ``Relu``, of which one is enough, and a ``Neg``."""
    operators = ("Relu", "Relu", "Neg") * PAIRS
    nodes = [op(name, f"v{i + 1}", f"v{i}") for i, name in enumerate(operators)]
    return graph({"v0": f32(4, 4)}, [f"v{NODES}"], [], nodes)


def grown(steps: int) -> tuple[str, int]:
    """Why saturation ended, and how many classes were left."""
    model = chain()
    program = program_of(model, infer(model))
    lowered = lower(region_of(program, range(NODES)), REGISTRY)
    moves: RewriteSet = compile_rewrites(rules("relu-relu"), program).all_rewrites
    outcome = saturate(lowered.graph, moves, SaturationLimits(steps=steps))
    return outcome.stopped, len(lowered.graph.classes)


def test_it_ends_after_so_many_steps_and_keeps_what_was_found():
    assert grown(10**9) == ("saturated", 1 + NODES - PAIRS)
    stopped, some = grown(20)
    assert stopped == "steps"
    assert 1 + NODES - PAIRS < some < 1 + NODES
    assert grown(20) == (stopped, some), "the same steps find the same"
    assert grown(0) == ("steps", 1 + NODES), "nothing is found without a step"


def test_a_search_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(saturation_search, "POLICY", replace(saturation_search.POLICY, matching_steps=5))
    model = chain()
    found = search(model, rules("relu-relu"), Roofline(), SearchOptions())
    assert found.stopped == "steps"
    assert_equivalent(model, found.graph)
