"""Saturation that is given prices applies what gains by them, and what costs no more once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from graphs import f32, graph, op
from rules_for_tests import rules

from superopt.egraph.egraph import EGraph
from superopt.egraph.pattern_compiler import CompiledPattern
from superopt.egraph.rule_compiler import compile_rewrites
from superopt.egraph.saturation import SaturationLimits, SaturationOutcome, saturate
from superopt.ir.terms import AttributeValue
from superopt.ops import REGISTRY
from superopt.ops.shape_inference import infer
from superopt.program.graph_program import program_of
from superopt.regions.region_egraph import lower, region_of

LENGTH = 4


class Fixed:
    """The same two prices at every match."""

    def __init__(self, us: float, other_us: float) -> None:
        self.prices = us, other_us
        self.asked = 0

    def of(
        self, graph: EGraph, pattern: CompiledPattern, slots: Sequence[int], values: tuple[AttributeValue, ...],
        sizes: Mapping[str, AttributeValue],
    ) -> tuple[float, float]:  # fmt: skip
        self.asked += 1
        return self.prices


def saturated(prices: Fixed | None) -> tuple[SaturationOutcome, EGraph]:
    """A chain of so many products, which one rule may put together."""
    nodes = [op("MatMul", f"v{i + 1}", f"v{i}", f"w{i}") for i in range(LENGTH)]
    model = graph({"v0": f32(3, 4), **{f"w{i}": f32(4, 4) for i in range(LENGTH)}}, [f"v{LENGTH}"], [], nodes)
    program = program_of(model, infer(model))
    lowered = lower(region_of(program, range(LENGTH)), REGISTRY)
    moves = compile_rewrites(rules("assoc"), program).all_rewrites
    return saturate(lowered.graph, moves, SaturationLimits(prices=prices)), lowered.graph


@pytest.mark.parametrize(("other_us", "applied"), [(2.0, False), (1.02, False), (1.0, True), (0.5, True)])
def test_what_costs_more_is_not_applied(other_us: float, applied: bool) -> None:
    start = 2 * LENGTH + 1
    prices = Fixed(1.0, other_us)
    outcome, found = saturated(prices)
    assert outcome.stopped == "saturated"
    assert prices.asked
    assert (len(found) > start) is applied


def test_what_gains_goes_further_than_what_costs_the_same() -> None:
    """Of a rewrite that costs no more, another such is not applied to the result."""
    (_, neutral), (_, gaining) = saturated(Fixed(1.0, 1.0)), saturated(Fixed(1.0, 0.5))
    assert len(neutral) < len(gaining)
