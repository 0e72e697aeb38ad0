"""The way from a model to its result: every step is a whole model that computes the same, and the gains add up."""

from __future__ import annotations

from pathlib import Path

import pytest

from superopt import pipeline
from superopt.formats import load, to_json
from superopt.ir.graph import Graph, Node, Value
from superopt.ir.types import DType, TensorType
from superopt.pipeline.stepwise_derivation import derive, steps
from superopt.verifier.check.differential import check

TINY = Path(__file__).resolve().parents[2] / "corpus" / "tiny"
TARGET = "profile:cpu-epyc-2core"


@pytest.fixture(scope="module")
def result() -> pipeline.Result:
    return pipeline.optimize(TINY / "mobileone_s0.json", target=TARGET, time_limit=30)


def test_gains_add_up_to_the_whole_and_steps_end_at_the_result(result: pipeline.Result) -> None:
    told, found = pipeline.explained(result, pipeline.Options(target=TARGET))
    assert found is not None
    assert found.steps[-1].graph is result.graph
    assert sum(found.gains) == pytest.approx(found.us[0] - found.us[-1], rel=1e-9)
    assert found.us[0] == pytest.approx(result.report.cost.before_us, rel=0.01)
    assert found.us[-1] == pytest.approx(result.report.cost.after_us, rel=0.01)
    assert sum(found.by_rule().values()) == pytest.approx(sum(found.gains), rel=1e-9)
    assert told.derivation is not None
    assert sum(s["gain_us"] for s in told.derivation["steps"]) == pytest.approx(sum(found.gains), rel=1e-9)
    named = {a.rule: a.gain_us for a in told.rules_applied if a.gain_us is not None}
    assert sum(named.values()) == pytest.approx(sum(found.gains), rel=0.01)


def test_every_step_is_a_whole_model_that_computes_the_same(result: pipeline.Result) -> None:
    found = list(steps(result.original, result.graph))
    assert len(found) > 3
    for step in found:
        assert [v.name for v in step.graph.outputs] == [v.name for v in result.original.outputs]
        assert check(result.original, step.graph, trials=1).verdict == "passed"
    sizes = [len(result.original.nodes), *(len(s.graph.nodes) for s in found)]
    assert sizes == sorted(sizes, reverse=True)


def test_neighbours_go_together_where_there_are_many(result: pipeline.Result) -> None:
    every, few = list(steps(result.original, result.graph)), list(steps(result.original, result.graph, most=3))
    assert len(few) <= 3
    assert sum(s.places for s in few) == sum(s.places for s in every)
    assert few[-1].graph is result.graph


def test_a_model_against_itself_has_no_steps() -> None:
    graph = load(TINY / "lstm.json")
    assert list(steps(graph, graph)) == []
    found = derive(graph, load(TINY / "lstm.json"), target=TARGET)
    assert (found.steps, found.gains) == ((), ())


def test_places_that_would_make_a_cycle_go_together() -> None:
    """``u`` comes from ``v`` in one graph and ``v`` from ``u`` in the other: by itself neither can be put in."""
    kind = TensorType(DType.FLOAT32, (4,))

    def graph(*nodes: Node) -> Graph:
        ends = (Value("u", kind), Value("v", kind))
        return Graph("g", (Value("x", kind),), ends, (), nodes, {"": 21}).checked()

    before = graph(Node("a", "Relu", ("x",), ("v",)), Node("b", "Relu", ("v",), ("u",)))
    after = graph(Node("c", "Relu", ("x",), ("u",)), Node("d", "Relu", ("u",), ("v",)))
    found = list(steps(before, after))
    assert [s.graph for s in found][-1] is after
    for step in found:
        assert check(before, step.graph.checked(), trials=1).verdict == "passed"
        assert to_json(step.graph)["nodes"]
