"""Searches without trade-offs: no more FLOPs, bytes and kernels, and less of one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from graphs import assert_equivalent, f32, graph, op, weight
from roofline import Roofline

from superopt.cost.measurement_record import CostEstimate, MeasurementRequest
from superopt.ir.graph import Graph, constant
from superopt.passes import SearchOptions, saturation_search, search
from superopt.rules import load_library


def sums() -> Graph:
    """Two products of one input that are summed: one product of the summed weights has less of each."""
    nodes = [op("MatMul", "a", "x", "u"), op("MatMul", "b", "x", "v"), op("Add", "y", "a", "b")]
    return graph({"x": f32(32, 64)}, ["y"], [weight("u", 64, 64), weight("v", 64, 64)], nodes)


# the library as it is compiled beforehand: to compile all of it otherwise takes ten seconds
AS_SHIPPED = {"cache": False, "floats": load_library().floats("standard")}


def siblings() -> Graph:
    """Products of one input: one product and a Split are fewer kernels, but move more bytes."""
    nodes = [op("MatMul", f"a{i}", "x", f"w{i}") for i in range(4)] + [op("Tanh", f"y{i}", f"a{i}") for i in range(4)]
    weights = [weight(f"w{i}", 64, 64) for i in range(4)]
    return graph({"x": f32(16, 64)}, [f"y{i}" for i in range(4)], weights, nodes)


@pytest.mark.parametrize(("model", "taken"), [(sums, True), (siblings, False)])
def test_only_what_asks_for_less_of_everything_is_taken(model, taken):
    before = model()
    found = search(
        before, load_library().admitted, Roofline(), SearchOptions(no_tradeoffs=True, least_gain=0.0, **AS_SHIPPED)
    )
    assert (found.graph is not before) == taken
    assert Counter(n.op for n in found.graph.nodes)["MatMul"] == (1 if taken else 4)
    if taken:
        assert_equivalent(before, found.graph)


def test_the_other_search_merges_siblings():
    before = siblings()
    found = search(before, load_library().admitted, Roofline(), SearchOptions(least_gain=0.0, **AS_SHIPPED))
    assert Counter(n.op for n in found.graph.nodes)["MatMul"] == 1


def some_rows() -> Graph:
    """A product of which some rows are read: as many operators as a product of these rows, which are smaller."""
    nodes = [op("MatMul", "a", "x", "u"), op("Slice", "y", "a", "from", "to", "axis")]
    places = [constant(n, np.array([v])) for n, v in (("from", 8), ("to", 32), ("axis", 0))]
    return graph({"x": f32(32, 64)}, ["y"], [weight("u", 64, 64), *places], nodes)


class Unsure(Roofline):
    """The same prices, of which none is more than a guess."""

    def _lookup(self, question: MeasurementRequest) -> CostEstimate:
        return replace(super()._lookup(question), source="roofline", sigma=3.0)


@pytest.mark.parametrize(("model", "taken"), [(some_rows, True), (siblings, False)])
def test_what_asks_for_less_of_everything_rests_on_no_price(model, taken):
    """However unsure prices are, it is worth having; what trades is not, if the gain may be an error of its price."""
    before = model()
    found = search(before, load_library().admitted, Unsure(), SearchOptions(**AS_SHIPPED))
    assert (found.graph is not before) == taken
    assert bool(found.near_misses) != taken


@pytest.mark.parametrize("model", [sums, some_rows])
def test_a_directed_search_has_no_windows_with_all_rules(model, monkeypatch):
    """And finds what leaves less to run all the same, for the same cost of the input."""
    before, rules = model(), load_library().admitted
    options = SearchOptions(no_tradeoffs=True, **AS_SHIPPED)
    with_all = search(before, rules, Roofline(), options)

    def windows(*_: object, **__: object) -> None:
        raise AssertionError("all rules have their turn")

    monkeypatch.setattr(saturation_search._Run, "_windows", windows)
    found = search(before, rules, Roofline(), replace(options, reducing_only=True))
    assert [n.op for n in found.graph.nodes] == [n.op for n in with_all.graph.nodes]
    assert found.before_us == pytest.approx(with_all.before_us)
    assert found.after_us == pytest.approx(with_all.after_us)
