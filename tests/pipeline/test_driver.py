"""The safety net: what is returned is checked, and what cannot be checked is not returned."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from rich.console import Console

import superopt
from superopt import formats
from superopt.cost import InferenceWork
from superopt.frontend import GraphBuilder
from superopt.ir.errors import InvalidModel, Unsupported, UsageError
from superopt.ir.graph import Graph, Node
from superopt.ops.shape_inference import infer
from superopt.passes import AppliedRule, SearchResult
from superopt.pipeline import (
    candidate_acceptance,
    candidate_proposals,
    child_process_search,
    optimization_context,
    optimization_task,
    rematerialization,
    result_check,
)
from superopt.pipeline import time_budget as time_budget
from superopt.pipeline.acceptance_policy import CandidateComparison
from superopt.pipeline.candidate import Candidate, CandidateRefusal, Proposals, first_accepted
from superopt.pipeline.check_failure_recovery import CheckFailureRecovery
from superopt.pipeline.check_policy import CHECKS
from superopt.pipeline.options import EFFORTS, Options
from superopt.pipeline.paired_benchmark import measure
from superopt.pipeline.rematerialization import MemoryTradeoffPoint
from superopt.pipeline.report_notes import ReportNotes
from superopt.pipeline.result_check import skipped
from superopt.pipeline.time_budget import TimeBudget
from superopt.report import CheckFailure, PairedMeasurement
from superopt.report.html import render
from superopt.report.terminal import show_report
from superopt.rules import RuleLibrary, parse_rule
from superopt.runtime import onnx_runtime
from superopt.runtime.reference import run
from superopt.verifier.check import differential
from superopt.verifier.check.differential import EXACT, CheckResult
from superopt.verifier.check.shared_weight_sessions import SharedWeightSessions
from superopt.verifier.equivalence import graphs as certifying
from superopt.verifier.equivalence.graphs import GraphVerdict


def branches(operator: str = "Add", domain: str = "") -> Graph:
    """Two products of one input that are summed: one product does it. Larger ones take longer to check."""
    builder = GraphBuilder("branches", opsets={domain: 1} if domain else None)
    x = builder.input("x", "float32", [32, 48])
    left = builder.op("MatMul", x, builder.weight("a", (48, 128), scale=0.1))
    right = builder.op("MatMul", x, builder.weight("b", (48, 128), scale=0.1))
    both = builder.op("Add", left, right)
    builder.output(builder.op(operator, both, domain=domain) if domain else both, "y", shape=[32, 128])
    return builder.build()


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path_factory.getbasetemp() / "cache-of-test-optimise"))


def test_the_front_door() -> None:
    result = superopt.optimize(branches(), time_limit=None)
    assert result.report.status == "improved"
    assert result.report.check.verdict == "passed"
    assert result.report.work.flops_after == 2 * 32 * 48 * 128  # of one product, whichever operator computes it
    assert all(a.verdict in ("proved_all_sizes", "evaluated") for a in result.report.rules_applied)


def test_a_wrong_rule_is_found_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A false rule that somehow got a verdict: the check refuses its result, and the report names it."""
    wrong = parse_rule(
        {
            "id": "planted",
            "forall": {"x": "f[m, k]", "a": "f[k, n]", "b": "f[k, n]"},
            "lhs": ["Add(MatMul(x, a), MatMul(x, b))"],
            "rhs": ["MatMul(x, Sub(a, b))"],
        }
    )
    monkeypatch.setattr(RuleLibrary, "admitted", property(lambda self: (wrong,)))
    monkeypatch.setattr(RuleLibrary, "floats", lambda self, mode: None)  # as if it had verdicts in floating point, too
    graph = branches()
    result = superopt.optimize(graph, time_limit=None)
    assert result.graph is graph
    assert any("rule planted failed the check here" in note for note in result.report.notes)
    assert [f.left_out for f in result.report.check_failures] == ["planted"]
    assert result.report.status == "unchanged"


def test_what_is_refuted_is_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check may pass what a proof of the result, region by region, finds to be another function."""
    real = certifying.certify_result

    def refuting(before: Graph, after: Graph, **given: Any) -> GraphVerdict:
        found = real(before, after, **given)
        return found if after is before else replace(found, verdict="refuted", reason="over the reals they differ")

    monkeypatch.setattr(certifying, "certify_result", refuting)
    graph = branches()
    result = superopt.optimize(graph, target="profile:cpu-epyc-2core", certify=True)
    assert result.graph is result.original
    assert (result.report.status, result.report.check.verdict) == ("unchanged", "skipped")
    assert result.report.verification is not None
    assert result.report.verification.verdict == "proved: every node is literally the same"
    assert any("refuted (over the reals they differ)" in note for note in result.report.notes)


def test_what_is_certified_is_what_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a graph that is written for memory takes the place of the fastest."""
    certified: list[Graph] = []
    real = certifying.certify_result

    def noted(before: Graph, after: Graph, **given: Any) -> GraphVerdict:
        certified.append(after)
        return real(before, after, **given)

    monkeypatch.setattr(certifying, "certify_result", noted)
    graph = branches()
    written = replace(graph, name="written").checked()
    point = MemoryTradeoffPoint(written, 1, 1.0, "order", chosen=True)
    monkeypatch.setattr(rematerialization, "for_memory", lambda *_: (point,))
    result = superopt.optimize(graph, target="profile:cpu-epyc-2core", certify=True, objective="memory")
    assert result.graph is written
    assert certified == [written]


def test_what_cannot_be_checked_is_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    skipped = CheckResult("skipped", reason="no way to run it")
    monkeypatch.setattr(result_check, "check_rewrite", lambda *args, **kwargs: skipped)
    monkeypatch.setattr(result_check, "check_regions", lambda *args, **kwargs: skipped)
    graph = branches()
    result = superopt.optimize(graph, time_limit=None)
    assert result.graph is graph
    assert any("could not be checked" in note for note in result.report.notes)


def test_a_result_that_measures_slower_is_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidate_acceptance, "measure", lambda *args, **kwargs: PairedMeasurement(1.0, 1.1, 1.1, 7))
    graph = branches()
    result = superopt.optimize(graph, time_limit=None)
    assert result.graph is graph
    assert result.report.measured is not None
    assert result.report.measured.ratio == 1.0
    assert any("so the input is returned" in note for note in result.report.notes)


@pytest.mark.parametrize(
    ("rounds", "said", "unsaid"), [(1, "1 interleaved round, too few", "±"), (7, "±0.050, 7 ", "few")]
)
def test_rounds_that_are_too_few_say_so(rounds: int, said: str, unsaid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        candidate_acceptance,
        "measure",
        lambda *args, **kwargs: PairedMeasurement(1.0, 0.9, 0.9, rounds, 0.01, uncertainty=0.05 if rounds > 1 else inf),
    )
    made = superopt.optimize(branches(), time_limit=None).report
    with Console(record=True, width=300, file=io.StringIO()) as console:
        show_report(console, "m", made)
    for text in (console.export_text(), render("m", made)):
        line = next(row for row in text.splitlines() if "0.900" in row and "round" in row)
        assert said in line
        assert ("no difference" in line or "Simpler" in line) == (rounds < 3)
        assert unsaid not in line.partition("(")[2].partition(")")[0]


def searches_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, bool]]:
    """Filled with whether each search has ``no_tradeoffs`` and ``reducing_only``."""
    asked: list[tuple[bool, bool]] = []

    def noted(*args: object, **kwargs: object) -> SearchResult:
        asked.append((args[3].no_tradeoffs, args[3].reducing_only))  # type: ignore[attr-defined]
        return found(*args, **kwargs)  # type: ignore[arg-type]

    found = child_process_search.search
    monkeypatch.setattr(child_process_search, "search", noted)
    return asked


def test_where_the_best_modelled_is_slower_rewrites_without_tradeoffs_are_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first benchmark says slower, the second faster: the plan without trade-offs is returned, with the reason."""
    raced = iter([PairedMeasurement(1.0, 1.1, 1.1, 7), PairedMeasurement(1.0, 0.9, 0.9, 7)])
    monkeypatch.setattr(candidate_acceptance, "measure", lambda *args, **kwargs: next(raced))
    asked = searches_of(monkeypatch)
    result = superopt.optimize(branches(), time_limit=None)
    assert asked == [(False, False), (True, False)]
    assert result.report.status == "improved"
    assert result.report.measured is not None
    assert result.report.measured.ratio == 0.9
    assert any("only rewrites without more FLOPs, bytes or kernels are tried" in note for note in result.report.notes)


@pytest.mark.parametrize(("hopeless", "searches"), [
    (True, [(False, False), (True, True)]), (False, [(False, False), (True, False)]),
])  # fmt: skip
def test_how_a_second_search_is_made(
    hopeless: bool, searches: list[tuple[bool, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few rules where the first was modelled to gain too little to be measured."""
    hopes = iter([hopeless, False])
    monkeypatch.setattr(CandidateComparison, "undetectable", property(lambda self: next(hopes)))
    raced = iter([*([] if hopeless else [PairedMeasurement(1.0, 1.1, 1.1, 7)]), PairedMeasurement(1.0, 0.9, 0.9, 7)])
    monkeypatch.setattr(candidate_acceptance, "measure", lambda *args, **kwargs: next(raced))
    asked = searches_of(monkeypatch)
    superopt.optimize(branches(), time_limit=None)
    assert asked == searches


def with_identities(graph: Graph) -> Graph:
    """The graph with an Identity behind each of its inputs."""
    nodes = tuple(Node(f"same_{v.name}", "Identity", (v.name,), (f"same_{v.name}",)) for v in graph.inputs)
    names = {v.name: f"same_{v.name}" for v in graph.inputs}
    readers = (replace(n, inputs=tuple(names.get(i, i) for i in n.inputs)) for n in graph.nodes)
    return replace(graph, nodes=(*nodes, *readers)).checked()


@pytest.mark.parametrize("effort", ["quick", "default"])
def test_identities_go_where_no_rule_gains(effort: str) -> None:
    b = GraphBuilder("layer")
    b.output(b.input("x", "float32", (4, 8)).sigmoid() @ b.weight("w", (8, 8)), "y")
    result = superopt.optimize(with_identities(b.build()), effort=effort, target="profile:cpu-epyc-2core")
    assert [n.op for n in result.graph.nodes] == ["Sigmoid", "MatMul"]
    assert result.report.status == "improved"


def test_where_what_asks_for_less_trades_after_all_the_third_search_leaves_less_to_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Places that are each no worse may part what runs as one kernel: counted whole, the second result trades."""
    monkeypatch.setattr(candidate_proposals, "demand_of", lambda cost: InferenceWork())
    raced = iter(
        [PairedMeasurement(1.0, 1.1, 1.1, 7), PairedMeasurement(1.0, 1.1, 1.1, 7), PairedMeasurement(1.0, 0.9, 0.9, 7)]
    )
    monkeypatch.setattr(candidate_acceptance, "measure", lambda *args, **kwargs: next(raced))
    asked = searches_of(monkeypatch)
    assert superopt.optimize(branches(), time_limit=None).report.status == "improved"
    assert asked == [(False, False), (True, False), (True, True)]


def test_an_unknown_operator_is_kept_and_the_rest_is_checked_in_pieces() -> None:
    result = superopt.optimize(branches("Mystery", "com.example"), time_limit=None)
    assert [n.op for n in result.graph.nodes if n.domain] == ["Mystery"]
    assert result.report.opaque[0].op == "com.example.Mystery"
    assert result.report.status == "improved"
    assert "place by place" in result.report.check.reason
    assert result.report.check.verdict == "passed"


def test_a_large_model_is_checked_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimization_task, "LARGE", 1000)
    monkeypatch.setattr(result_check, "LARGE", 1000)
    result = superopt.optimize(branches(), time_limit=None)
    assert result.report.status == "improved"
    assert "place by place" in result.report.check.reason


def attention(apart: bool) -> Graph:
    """Scores of bounded queries and keys, scaled before the product or behind it: which only overflows at numbers that
    no layer in front can make."""
    builder = GraphBuilder("scores")
    x = builder.op("Tanh", builder.input("x", "float32", [32, 64]))
    for layer in range(3):
        x = builder.op("MatMul", x, builder.weight(f"w{layer}", (64, 64), scale=0.1), name=f"layer{layer}")
    q = builder.op("MatMul", x, builder.weight("q", (64, 64), scale=0.1))
    k = builder.op("Transpose", builder.op("MatMul", x, builder.weight("k", (64, 64), scale=0.1)), perm=[1, 0])
    scale, whole = (builder.constant(np.float32(v)) for v in (2.0**-20, 2.0**-40))
    if apart:
        made = builder.op("MatMul", builder.op("Mul", q, scale), builder.op("Mul", k, scale), name="s")
    else:
        made = builder.op("Mul", builder.op("MatMul", q, k, name="p"), whole, name="s")
    builder.output(made, "y", shape=[32, 32])
    return builder.build()


@pytest.mark.parametrize("room", [True, False])
def test_what_differs_at_a_place_of_a_large_model_is_decided_by_the_whole(
    room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_check, "LARGE", 1000)
    monkeypatch.setattr(differential, "_GROWN", 0)  # as if what bounds its inputs were farther away
    if not room:
        monkeypatch.setattr(result_check, "available", lambda: 1000)
    before, after = attention(apart=True), attention(apart=False)
    with SharedWeightSessions() as bench:
        found = result_check.check_result(
            before, after, infer(before), Options(), TimeBudget.of(None), bench, EXACT
        )  # fmt: skip
    assert found.verdict == ("passed" if room else "failed")
    assert "place by place" in found.reason
    assert ("as a whole" in found.reason) is room


def test_strict_refuses_what_is_not_understood() -> None:
    with pytest.raises(Unsupported, match="Mystery"):
        superopt.optimize(branches("Mystery", "com.example"), strict=True)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(UsageError, match="int is no model; a path, bytes"):
        superopt.optimize(42)  # type: ignore[arg-type]


def test_without_time_the_input_comes_back() -> None:
    graph = branches()
    result = superopt.optimize(graph, time_limit=0.0)
    assert result.graph is graph
    assert result.report.search.stopped == "time"
    assert result.report.reason.code == "time"
    assert result.report.reason.text == (
        "the search stopped after 0 s, before it was complete; run it longer to continue (a time limit of 2 s)"
    )
    assert result.report.summary == f"unchanged: {result.report.reason.text}"
    assert result.report.json()["reason"] == {"code": "time", "text": result.report.reason.text}


def test_a_search_that_ended_by_itself_says_that_nothing_better_is_known() -> None:
    builder = GraphBuilder("plain")
    builder.output(builder.op("Relu", builder.input("x", "float32", [4])), "y")
    made = superopt.optimize(builder.build(), target="profile:cpu-epyc-2core").report
    assert (made.status, made.search.stopped, made.reason.code) == ("unchanged", "saturated", "none_found")
    assert made.summary == "unchanged: no better equivalent graph was found"


def test_a_result_that_could_not_be_checked_in_time_is_not_called_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = branches()

    def unchecked(before: Graph, after: Graph, typing: object, options: object, budget: TimeBudget, *_: object) -> Any:
        budget.deadline = 0.0
        return skipped("the time ran out after 3 regions")

    monkeypatch.setattr(optimization_context, "check_result", unchecked)
    made = superopt.optimize(graph, target="profile:cpu-epyc-2core", time_limit=90.0).report
    assert (made.status, made.check.verdict, made.reason.code) == ("unchanged", "skipped", "not_checked")
    assert made.reason.text == (
        "a rewritten graph was found and could not be checked (the time ran out after 3 regions); run it longer to "
        "continue (a time limit of 180 s)"
    )


def test_interrupting_the_search_gives_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = branches()

    def interrupted(given: Graph, *args: object, **kwargs: object) -> SearchResult:
        return SearchResult(given, stopped="interrupted")

    monkeypatch.setattr(child_process_search, "search", interrupted)
    result = superopt.optimize(graph)
    assert result.report.search.stopped == "interrupted"


def test_a_result_that_was_checked_survives_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **kwargs: object) -> PairedMeasurement:
        raise KeyboardInterrupt

    monkeypatch.setattr(candidate_acceptance, "measure", interrupted)
    monkeypatch.setattr(time_budget, "CHECKS", replace(CHECKS, interrupted_seconds=120.0))
    result = superopt.optimize(branches(), time_limit=None)
    assert result.report.check.verdict == "passed"
    assert (result.report.status, result.report.search.stopped) == ("improved", "interrupted")
    assert "timing the models was interrupted" in result.report.notes[-1]


def test_after_an_interrupt_little_time_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    left = []

    def benchmark(self: candidate_acceptance.CandidateAcceptance, *args: object, **settings: object) -> None:
        left.append(self.task.budget.left)

    monkeypatch.setattr(candidate_acceptance.CandidateAcceptance, "benchmark", benchmark)
    monkeypatch.setattr(
        child_process_search, "search", lambda given, *args, **kwargs: SearchResult(given, stopped="interrupted")
    )
    superopt.optimize(branches(), time_limit=None, measure=True)
    superopt.optimize(branches(), time_limit=0.5, measure=True)
    assert left[0] <= 3.0
    assert left[1] <= 0.5


def test_a_size_that_no_dimension_has_is_noted() -> None:
    given = branches()
    assert superopt.optimize(given, sizes={"q": 8}, time_limit=0.0).report.notes[0] == (
        "the model has no dimension 'q' to cost at 8: all of its sizes are fixed"
    )
    builder = GraphBuilder("symbolic")
    builder.output(builder.op("Relu", builder.input("x", "float32", ["rows", 4])), "y")
    said = superopt.optimize(builder.build(), sizes={"rows": 2, "row": 8}, time_limit=0.0).report.notes[0]
    assert said == "the model has no dimension 'row' to cost at 8: its symbolic ones are rows"


def test_a_memory_limit_below_the_input_is_said_in_its_units() -> None:
    report = superopt.optimize(branches(), memory_limit=10).report
    assert "KiB of weights and activations, more than the limit of 10 B; " in report.notes[0]


def test_reports_are_json_with_stable_keys() -> None:
    data = superopt.optimize(branches(), measure=True, time_limit=None).report.json()
    assert data["format"] == "superopt.report"
    assert {
        "status", "target", "cost", "measured", "check", "nodes", "operators", "work", "rules_applied", "search",
        "opaque", "float", "runtime", "questions", "result",
    } <= set(data)  # fmt: skip
    assert set(data["questions"]) == {"asked", "measured", "decided"}
    assert len(data["result"]["digest"]) == 64
    assert data["measured"]["runs"] > 0
    assert set(data["cost"]) >= {"before_us", "after_us", "measured_share"}


def test_the_result_is_the_same_function() -> None:
    graph = branches()
    result = superopt.optimize(graph, time_limit=None)
    feeds = {"x": np.random.default_rng(0).standard_normal((32, 48)).astype(np.float32)}
    assert np.allclose(run(graph, feeds)["y"], run(result.graph, feeds)["y"], atol=1e-4)
    assert (graph.inputs, graph.outputs) == (result.graph.inputs, result.graph.outputs)


@pytest.mark.parametrize("effort", sorted(EFFORTS))
def test_the_same_prices_give_the_same_graph(effort: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = []
    for run_ in ("a", "b"):
        monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / run_))
        result = superopt.optimize(branches(), target="profile:cpu-epyc-2core", time_limit=None, effort=effort)
        found.append(result.report.result)
    assert found[0] is not None
    assert found[0] == found[1]


def test_an_effort_that_there_is_not_is_named() -> None:
    with pytest.raises(UsageError, match="quick, default, thorough"):
        superopt.optimize(branches(), effort="heroic")


def test_what_a_choice_hides_of_an_infinite_mask_stays_hidden() -> None:
    """A softmax over a row that a fed mask leaves empty is NaN, and the model says 0."""
    b = GraphBuilder("attention")
    x, mask, row = (b.input(n, "float32", (32, 32)) for n in ("x", "mask", "row"))
    scores = (x @ b.weight("w", (32, 32)) + mask).softmax()
    b.output(b.op("Where", b.op("Greater", row, b.constant(np.float32(0.0))), scores, b.constant(np.float32(0.0))), "y")
    graph = b.build()
    result = superopt.optimize(graph, target="profile:cpu-epyc-2core").graph
    ones = np.ones((32, 32), np.float32)
    fed = {"x": ones, "mask": -np.inf * ones, "row": -ones}
    assert (
        onnx_runtime.run(onnx_runtime.make_session(formats.to_onnx_bytes(result), threads=1), fed)["y"] == 0.0
    ).all()


@pytest.mark.parametrize(("opset", "version"), [(13, 7), (17, 8), (17, 9), (19, 9), (21, 10)])
def test_a_rewritten_model_has_the_ir_version_that_it_came_with(opset: int, version: int) -> None:
    """Also where it is the one that a graph without one would get: whoever reads the input can read the result."""
    model = formats.to_onnx(branches())
    model.opset_import[0].version, model.ir_version = opset, version
    result = superopt.optimize(model, target="profile:cpu-epyc-2core")
    assert result.report.status == "improved"
    written = formats.to_onnx(result.graph)
    assert written.ir_version == version
    assert any(p.key == "superopt.rules" for n in written.graph.node for p in n.metadata_props)
    onnx.checker.check_model(written)


@pytest.mark.parametrize("keepdims", [-1, 2])
def test_what_runtimes_read_differently_is_carried(keepdims: int) -> None:
    """ONNX Runtime takes ``keepdims=2`` for 0, others for 1: the node is nobody's but its author's."""
    made = onnx.helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=keepdims)
    given, found = (onnx.helper.make_tensor_value_info(n, 1, s) for n, s in (("x", [2, 3]), ("y", None)))
    graph = onnx.helper.make_graph([made], "g", [given], [found], [onnx.numpy_helper.from_array(np.array([1]), "axes")])
    result = superopt.optimize(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]))
    assert result.report.status == "unchanged"
    assert formats.to_onnx(result.graph).graph.node[0] == made


def test_open_sizes_that_have_to_agree_are_timed_as_they_are_costed() -> None:
    """A decoder's caches have a size each that is open; whole models are timed at what open sizes are costed at."""
    b = GraphBuilder("cached", opset=21)
    key, value = (b.input(n, "float32", ("batch", f"past_{n}", 16)) for n in ("key", "value"))
    b.output(b.op("MatMul", key, b.op("Transpose", value, perm=[0, 2, 1])), "scores")
    b.output(b.op("Softmax", key + value, axis=-1).relu(), "mixed")
    graph = b.build()
    found = measure(graph, graph, sizes={}, rounds=3)
    assert found.runs == 3


def test_weights_that_change_during_the_run_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result would be made of both: of products by the one, of what is copied by the other."""
    builder = GraphBuilder("stored beside")
    builder.output(builder.op("MatMul", builder.input("x", "float32", [2, 128]), builder.weight("w", (128, 128))), "y")
    path = tmp_path / "m.onnx"
    formats.save(builder.build(), path, external_above=0)
    data = tmp_path / "m.onnx.data"
    assert superopt.optimize(path, target="profile:cpu-epyc-2core").graph.weights
    os.utime(data, ns=(0, 0))

    def writes(done: int, total: int | None, what: str) -> None:
        if what != "loading":
            data.write_bytes(bytes(data.stat().st_size))

    with pytest.raises(InvalidModel, match=r"m\.onnx\.data: the file changed"):
        superopt.optimize(path, target="profile:cpu-epyc-2core", progress=writes)


@dataclass
class Recorded:
    """A context whose searches return what the test says, by the rules that are excluded."""

    graph: Graph
    results: Callable[[tuple[str, ...]], SearchResult]
    excluded: list[tuple[str, ...]] = field(default_factory=list)
    log: ReportNotes = field(default_factory=ReportNotes)
    failures: list[CheckFailure] = field(default_factory=list)

    @property
    def task(self) -> Any:
        return SimpleNamespace(graph=self.graph, budget=TimeBudget.of(None))

    @cached_property
    def searches(self) -> Any:
        return SimpleNamespace(weights=None, search=self._search)

    def _search(self, excluded: Collection[str] = ()) -> SearchResult:
        self.excluded.append(tuple(excluded))
        return self.results(self.excluded[-1])


def refused(search: SearchResult) -> CandidateRefusal:
    check = CheckResult("failed", reason="differs", where=("y",))
    cost: Any = None
    return CandidateRefusal(Candidate(search, cost, check=check), "check", "differs")


def test_the_rules_used_at_the_place_that_differs_are_left_out_first() -> None:
    """Where no input of the whole shows it, the place does."""
    graph, other, without = branches(), branches("Sub", "d"), branches("Mul", "d")
    applied = (AppliedRule("often", 9, ("h",), 5.0), AppliedRule("there", 1, ("y", "z"), 1.0))
    context: Any = Recorded(graph, lambda excluded: SearchResult(without))
    again = CheckFailureRecovery(context).search_again(refused(SearchResult(other, applied)))
    assert again is not None
    assert again.graph is without
    assert context.excluded == [("there",)]
    assert [f.left_out for f in context.failures] == ["there"]


def test_suspects_are_left_out_together_and_no_graph_is_proposed_twice() -> None:
    """Folding is no rule that could be left out; and what failed once fails again."""
    graph, wrong, right = branches(), branches("Sub", "d"), branches("Mul", "d")
    applied = tuple(AppliedRule(name, 1, ("y",), 1.0) for name in ("fold", "a", "b", "c"))

    def results(excluded: tuple[str, ...]) -> SearchResult:
        return SearchResult(right if set(excluded) >= {"a", "b", "c"} else wrong, applied)

    context: Any = Recorded(graph, results)
    recovery = CheckFailureRecovery(context)
    again = recovery.search_again(refused(SearchResult(wrong, applied)))
    assert again is not None
    assert again.graph is right
    assert context.excluded == [("a",), ("a", "b", "c")]
    assert [f.left_out for f in context.failures] == ["a", "b", "c"]
    assert recovery.search_again(refused(again)) is None, "no rule is left to suspect"
    assert "the input is returned" in context.log.notes[-1]


def test_other_layouts_are_left_out_before_any_rule() -> None:
    graph, wrong, right = branches(), branches("Sub", "d"), branches("Mul", "d")
    context: Any = Recorded(graph, lambda excluded: SearchResult(right))
    again = CheckFailureRecovery(context).search_again(
        refused(SearchResult(wrong, (AppliedRule("a", 1, ("y",), 1.0),), laid_out=3))
    )
    assert again is not None
    assert again.graph is right
    assert context.searches.layouts is False
    assert context.excluded == [()]
    assert [f.left_out for f in context.failures] == ["other layouts"]


def test_the_loop_sends_each_refusal_back_and_ends_with_what_the_proposer_returns() -> None:
    """Propose, evaluate, and on a refusal propose again; the first that is accepted is the last that is proposed."""
    cost: Any = None
    some = [Candidate(SearchResult(branches(op, "d")), cost) for op in ("Sub", "Mul", "Div")]
    unchanged = Candidate(SearchResult(branches()), cost)
    reasons: list[str] = []

    def candidate_proposals() -> Proposals:
        for candidate in some:
            refusal = yield candidate
            reasons.append(refusal.reason)
        return unchanged

    def accepting(accepted: Candidate | None) -> Callable[[Candidate], Candidate | CandidateRefusal]:
        return lambda c: c if c is accepted else CandidateRefusal(c, "timing", c.graph.nodes[-1].op)

    assert first_accepted(candidate_proposals(), accepting(some[1])) is some[1]
    assert reasons == ["Sub"]
    assert first_accepted(candidate_proposals(), accepting(None)) is unchanged
    assert reasons == ["Sub", "Sub", "Mul", "Div"]
