"""A search adds up regions; what is returned is judged by the cost of the whole program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from superopt import optimize
from superopt.ir.graph import Graph, Node, Value
from superopt.ir.types import DType, TensorType
from superopt.passes import SearchResult
from superopt.pipeline import candidate_acceptance, child_process_search
from superopt.report import PairedMeasurement
from superopt.runtime.paired_benchmark import IQR_OF_NORMAL

KIND = TensorType(DType.FLOAT32, (64, 64))


def chain(length: int) -> Graph:
    """Relu as often as that, which always computes the same."""
    names = ["x", *(f"v{i}" for i in range(1, length)), "y"]
    nodes = tuple(Node(f"n{i}", "Relu", (names[i],), (names[i + 1],)) for i in range(length))
    return Graph("chain", (Value("x", KIND),), (Value("y", KIND),), (), nodes, {"": 21})


def found_by_search(monkeypatch: pytest.MonkeyPatch, graph: Graph) -> None:
    def search(*_: object, **__: Any) -> SearchResult:
        return SearchResult(graph, before_us=10.0, after_us=1.0)

    monkeypatch.setattr(child_process_search, "search", search)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (1, 4), (3, 5)])
def test_what_costs_more_as_a_whole_is_not_returned(monkeypatch: pytest.MonkeyPatch, before: int, after: int) -> None:
    graph = chain(before)
    found_by_search(monkeypatch, chain(after))
    result = optimize(graph, target="profile:cpu-epyc-2core")
    assert result.graph is graph
    assert result.report.status == "unchanged"
    assert result.report.cost.after_us == result.report.cost.before_us
    assert any("the input is returned" in n and "is modelled at" in n for n in result.report.notes)


def test_what_costs_less_is_returned_with_both_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    found_by_search(monkeypatch, chain(1))
    result = optimize(chain(3), target="profile:cpu-epyc-2core")
    assert result.report.status == "improved"
    assert len(result.graph.nodes) == 1
    assert 0 < result.report.cost.after_us < result.report.cost.before_us


@pytest.mark.parametrize(("ratio", "spread", "taken"), [(0.99, 0.06, False), (0.9, 0.06, True)])
def test_what_is_modelled_slower_needs_a_race_without_doubt(
    monkeypatch: pytest.MonkeyPatch, ratio: float, spread: float, taken: bool
) -> None:
    looked = []

    def measure(
        *_: object, looks: Mapping[int, Callable[[PairedMeasurement], bool]], **__: object
    ) -> PairedMeasurement:
        # Of several loadings.
        found = PairedMeasurement(1.0, ratio, ratio, 31, spread, deviation=spread / IQR_OF_NORMAL)
        for rounds, enough in sorted(looks.items()):
            looked.append(rounds)
            found = PairedMeasurement(1.0, ratio, ratio, rounds, spread, deviation=spread / IQR_OF_NORMAL)
            if enough(found):
                break
        return found

    graph, longer = chain(1), chain(3)
    found_by_search(monkeypatch, longer)
    monkeypatch.setattr(candidate_acceptance, "measure", measure)
    result = optimize(graph, target="cpu")
    assert result.graph is (longer if taken else graph)
    assert looked == ([3, 7, 15] if taken else [3, 7, 15, 31])  # a race that leaves doubt goes on
    assert any("was not measured faster beyond" in n for n in result.report.notes) is not taken
    assert result.report.reason.code == ("faster" if taken else "not_better")
