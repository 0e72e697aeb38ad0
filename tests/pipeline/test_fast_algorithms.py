"""Fewer multiplications as the last step of an optimisation: what they may take away, which is nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from sampling import slow

import superopt
from superopt import formats
from superopt.cost import ProfileCostModel, for_target, load_profile, profile_calibration
from superopt.frontend import GraphBuilder
from superopt.ir.errors import InvalidModel
from superopt.ir.graph import PASS, RULES, Graph, structural_hash
from superopt.passes.fast_algorithms.selection import FastAlgorithmChoice, rewritten
from superopt.pipeline import acceptance_policy, candidate_acceptance, fast_algorithm_proposals
from superopt.pipeline.acceptance_policy import POLICY, TimeRatioEstimate
from superopt.pipeline.fast_algorithm_proposals import GROWTH
from superopt.pipeline.report_notes import ReportNotes
from superopt.report import PairedMeasurement, Report
from superopt.rules.float_verdicts import MOST_ERROR
from superopt.runtime import onnx_runtime, reference
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.verifier.check.shared_weight_sessions import SharedWeightSessions

PROFILE = "profile:cpu-epyc-2core"


def model(channels: int = 192, size: int = 14) -> Graph:
    """Two convolutions, each with a normalisation that the rules fold into it."""
    b = GraphBuilder("m")
    x = b.input("image", "float32", (1, channels, size, size))
    for number in range(2):
        with b.scope(f"conv{number}"):
            w = b.weight("w", (channels, channels, 3, 3), scale=(9 * channels) ** -0.5)
            x = b.op("Conv", x, w, pads=[1, 1, 1, 1])
            parts = [b.weight(n, (channels,)) for n in ("scale", "bias", "mean")]
            x = b.op("BatchNormalization", x, *parts, b.constant(np.ones(channels, np.float32))).relu()
    b.output(x, "y")
    return b.build()


def optimised(graph: Graph, **settings: object) -> tuple[Graph, Report]:
    options = superopt.Options(target=PROFILE, time_limit=None)
    found = superopt.optimize(graph, options=replace(options, **settings))  # type: ignore[arg-type]
    return found.graph, found.report


def outputs(graph: Graph, x: np.ndarray) -> np.ndarray:
    return onnx_runtime.run(onnx_runtime.make_session(formats.to_onnx_bytes(graph), threads=1), {"image": x})["y"]


@pytest.fixture(autouse=True)
def recorded_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's prices are the profile's: races are what ``target="cpu"`` adds here, and those are made up."""

    def calibrated(*, sizes: Mapping[str, int] | None, **_: object) -> ProfileCostModel:
        return ProfileCostModel(load_profile(PROFILE.removeprefix("profile:")), sizes)

    monkeypatch.setattr(profile_calibration, "calibrated_cpu", calibrated)


@pytest.fixture(scope="module")
def plain() -> Graph:
    """What is found without."""
    return optimised(model(), disable=("algorithms",))[0]


@pytest.fixture(scope="module")
def default() -> tuple[Graph, Report]:
    """What is found with them, which several tests look at."""
    return optimised(model())


def test_the_default_uses_them_and_says_where_and_how_accurately(default: tuple[Graph, Report]) -> None:
    graph = model()
    result, report = default
    assert {n.op for n in result.nodes} & {"Conv", "BatchNormalization"} == set()
    assert [(a.operator, a.algorithm[:2]) for a in report.algorithms] == [("Conv", "F(")] * 2
    assert all(1 < a.growth < a.bound and a.after_us < a.before_us for a in report.algorithms)
    assert report.errors is not None
    assert (report.errors.most, report.errors.times) == (MOST_ERROR["standard"], GROWTH["standard"])
    assert 0 < report.errors.after <= min(report.errors.most, report.errors.times * report.errors.before)
    assert report.check.verdict == "passed"
    assert {a.rule for a in report.rules_applied} >= {"fold"}
    assert report.cost.after_us < 0.9 * report.cost.before_us
    assert report.json()["algorithms"][0]["where"]
    assert report.work.weight_bytes_after > report.work.weight_bytes_before
    given = {n.name for n in graph.nodes}
    new = [n for n in result.nodes if n.name not in given]
    assert "fast algorithms" in {n.metadata.get(PASS) for n in new}
    assert all(n.metadata.keys() & {RULES, PASS} for n in new)
    x = np.random.default_rng(0).standard_normal((1, 192, 14, 14)).astype(np.float32)
    assert np.abs(outputs(result, x) - outputs(graph, x)).max() <= 1e-5 * np.abs(outputs(graph, x)).max()


@pytest.mark.parametrize("settings", [slow({"floats": "strict"}), {"disable": ("algorithms",)}])
def test_none_are_used_where_none_are_allowed(settings: dict[str, object], plain: Graph) -> None:
    result, report = optimised(model(), **settings)
    assert (report.algorithms, report.errors) == ((), None)
    assert [n.op for n in plain.nodes] == ["Conv", "Relu"] * 2
    assert [n.op for n in result.nodes if n.op != "BatchNormalization"] == ["Conv", "Relu"] * 2


def test_the_same_graph_and_prices_give_the_same_result(default: tuple[Graph, Report]) -> None:
    assert optimised(model())[1].result == default[1].result


def test_a_memory_limit_holds_with_them(plain: Graph, default: tuple[Graph, Report]) -> None:
    kept, report = default
    work = report.work
    needed = (work.weight_bytes_after or 0) + (work.peak_activation_bytes_after or 0)
    for limit in (needed // 2, 3 * needed // 4):
        result, report = optimised(model(), memory_limit=limit)
        work = report.work
        assert (work.weight_bytes_after or 0) + (work.peak_activation_bytes_after or 0) <= limit
        assert len(report.algorithms) < 2
        assert "BatchNormalization" not in {n.op for n in result.nodes}
    assert len(kept.nodes) > len(plain.nodes)


def test_false_forms_are_left_out_and_nothing_else(monkeypatch: pytest.MonkeyPatch, plain: Graph) -> None:
    def false(
        graph: Graph,
        choices: Sequence[FastAlgorithmChoice],
        *,
        filled: bool = True,
        reserved: frozenset[str] = frozenset(),
    ) -> Graph:
        made = rewritten(graph, choices, filled=filled, reserved=reserved)
        ends = [n for n in made.nodes if n.op == "Relu"]
        return replace(made, nodes=tuple(replace(n, op="Neg") if n is ends[-1] else n for n in made.nodes))

    monkeypatch.setattr(fast_algorithm_proposals, "rewritten", false)
    monkeypatch.setattr(fast_algorithm_proposals.NumericalErrorComparison, "within", lambda *_: True)
    result, report = optimised(model())
    assert report.algorithms == ()
    assert [n.op for n in result.nodes] == [n.op for n in plain.nodes]
    assert report.check.verdict == "passed"
    assert any("with fewer multiplications were left out: the check failed" in note for note in report.notes)
    assert {a.rule for a in report.rules_applied} >= {"fold"}


def test_more_accurate_ones_are_tried_where_the_budget_is_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = model(size=16)  # whole tiles of F(4, 3): clearly its cheapest form
    _, report = optimised(graph)
    assert report.errors is not None
    assert {a.algorithm[:9] for a in report.algorithms} == {"F(4×4, 3×"}
    monkeypatch.setattr(fast_algorithm_proposals, "MOST_ERROR", {**MOST_ERROR, "standard": 1.8 * report.errors.after})
    _, less = optimised(graph)
    assert less.errors is not None
    assert less.errors.after < report.errors.after
    assert max(a.growth for a in less.algorithms) <= 6.0
    assert any("does not allow" in note for note in less.notes)
    monkeypatch.setattr(fast_algorithm_proposals, "MOST_ERROR", {**MOST_ERROR, "standard": 1e-9})
    result, none = optimised(graph)
    assert none.algorithms == ()
    assert [n.op for n in result.nodes] == ["Conv", "Relu"] * 2


def steep() -> Graph:
    """Two convolutions and a Softmax, which makes more of an error where what it reads is larger."""
    b = GraphBuilder("m")
    x = b.input("image", "float32", (1, 192, 14, 14))
    for number in range(2):
        with b.scope(f"conv{number}"):
            w = b.weight("w", (192, 192, 3, 3), scale=(9 * 192) ** -0.5)
            x = b.op("Conv", x, w, pads=[1, 1, 1, 1])
            x = x if number else x.relu()
    b.output(b.op("Softmax", x, axis=1), "y")
    return b.build()


def test_errors_are_within_the_budget_on_large_inputs_too() -> None:
    result, report = optimised(steep())
    assert {n.op for n in result.nodes} >= {"Conv", "Softmax"}
    assert report.algorithms == ()
    assert any("errors grow from" in note for note in report.notes)


def setting() -> fast_algorithm_proposals.FastAlgorithmSettings:
    return fast_algorithm_proposals.FastAlgorithmSettings("standard", {}, 0, 1, ONNX_RUNTIME, inputs=2)


def test_errors_are_measured_on_inputs_of_each_kind() -> None:
    graph = steep()
    with SharedWeightSessions() as bench:
        normal, edge = fast_algorithm_proposals.NumericalErrorBudget(graph, setting(), bench).measured(graph)
    assert (normal.inputs, edge.inputs) == (2, 1)
    assert normal.before == normal.after < 1e-6 < edge.before == edge.after


def test_errors_are_the_same_on_every_run_and_the_reference_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was timed or kept before, and however many graphs are asked about."""
    graph, runs = model(size=16), []
    with for_target(PROFILE) as prices:
        some = [
            f.graph for f in fast_algorithm_proposals.substitutions(graph, graph, prices, setting(), ReportNotes())
        ][:2]
    exactly = reference.run

    def counted(given: Graph, *args: object, **more: object) -> object:
        runs.append(given)
        return exactly(given, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(reference, "run", counted)
    with SharedWeightSessions() as bench:
        budget = fast_algorithm_proposals.NumericalErrorBudget(graph, setting(), bench)
        first = [budget.measured(made) for made in some]
    assert len(runs) == 3  # two normal inputs and one of edges
    with SharedWeightSessions() as bench:
        for made in (graph, *some):
            bench.loaded(made, ONNX_RUNTIME, keep=True)
        budget = fast_algorithm_proposals.NumericalErrorBudget(graph, setting(), bench)
        assert [budget.measured(made) for made in reversed(some)] == first[::-1]


def test_inputs_that_the_model_refuses_tell_nothing_of_errors() -> None:
    b = GraphBuilder("m")
    rows = b.input("rows", "int64", (3,))
    b.output(b.op("Gather", b.weight("table", (2, 4)), rows, axis=0), "y")
    graph = b.build()
    fed = [{"rows": np.array(r)} for r in ([0, 1, 0], [0, 7, 0])]
    with SharedWeightSessions() as bench:
        errors = fast_algorithm_proposals.NumericalErrorMeasurer(graph, fed, bench, runtime=ONNX_RUNTIME, sizes={})
        assert errors.of(graph) == [fast_algorithm_proposals.NumericalErrorComparison(0.0, 0.0, 1), None]
        with pytest.raises(InvalidModel, match="indices element out of"):
            fast_algorithm_proposals.NumericalErrorMeasurer(graph, fed[1:], bench, runtime=ONNX_RUNTIME, sizes={}).of(
                graph
            )


@pytest.mark.parametrize(
    ("made", "errors"),
    [
        ([1.0, 2.0, 3.0], (0.25, 0.0)),
        ([1.0, 2.0, np.nan], (0.25, 0.0)),  # where the model's own is not finite
        ([np.inf, 2.0, 3.0], (0.25, np.inf)),
        ([1.0, np.nan, 3.0], (0.25, np.inf)),
        ([1.0, 2.5, 3.0], (0.25, 0.25)),
    ],
)
def test_what_is_not_finite_any_more_is_an_error_without_bound(made: list[float], errors: tuple[float, float]) -> None:
    old, exact = np.array([1.5, 2.0, np.inf], np.float32), np.array([1.0, 2.0, 3.0])
    assert fast_algorithm_proposals._errors_of(old, np.array(made, np.float32), exact) == errors


def test_what_errs_as_the_model_does_is_within_every_budget() -> None:
    assert fast_algorithm_proposals.NumericalErrorComparison(3e-5, 3e-5, 1).within("standard", 0.5)
    assert not fast_algorithm_proposals.NumericalErrorComparison(3e-5, 3.1e-5, 1).within("standard", 0.5)
    assert fast_algorithm_proposals.NumericalErrorComparison(1e-6, 5e-6, 1).within("standard", 0.5)


def timed(
    *, formed: float, plain: float = 0.9, beside_plain: float | None = None, rounds: int = 15
) -> Callable[..., PairedMeasurement]:
    """A race that takes so much of the time of the input: with forms, without; and with them beside without.

    Counts what it was asked, in ``asked``.
    """

    def measure(before: Graph, after: Graph, **_: object) -> PairedMeasurement:
        has = "MatMul" in {n.op for n in after.nodes}
        ratio = formed if has else plain
        if has and "BatchNormalization" not in {n.op for n in before.nodes} and beside_plain is not None:
            ratio = beside_plain
        asked.append(ratio)
        return PairedMeasurement(10.0, 10.0 * ratio, ratio, rounds, 0.002, {}, 0.002)

    asked: list[float] = []
    measure.asked = asked  # type: ignore[attr-defined]
    return measure


@pytest.mark.parametrize(("ratio", "used"), [slow(0.6, True), (0.95, True), (0.98, False), slow(1.2, False)])
def test_timing_refuses_forms_and_nothing_else(
    ratio: float, used: bool, default: tuple[Graph, Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptance_policy, "POLICY", replace(POLICY, negligible_loss=-1.0))  # timed however clear it is
    monkeypatch.setattr(candidate_acceptance, "measure", timed(formed=0.6, beside_plain=ratio))
    result, report = optimised(model(), target="cpu", time_limit=60.0)
    assert bool(report.algorithms) is used
    assert ("MatMul" in {n.op for n in result.nodes}) is used
    assert "BatchNormalization" not in {n.op for n in result.nodes}
    if used:
        assert report.result == default[1].result, "what timing accepts is what prices propose"
    else:
        assert any("they take" in note for note in report.notes)


def test_noise_of_races_chooses_nothing(default: tuple[Graph, Report], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds on a busy machine: what each race says differs, what comes back does not."""
    monkeypatch.setattr(acceptance_policy, "POLICY", replace(POLICY, negligible_loss=-1.0))
    found = set()
    for seed in range(2):
        rng = np.random.default_rng(seed)

        def measure(before: Graph, after: Graph, rng: np.random.Generator = rng, **more: object) -> PairedMeasurement:
            quiet = timed(formed=0.7, beside_plain=0.8)(before, after, **more)
            rounds = quiet.ratio * rng.lognormal(0.0, 0.04, 15)
            low, middle, high = np.quantile(rounds, (0.25, 0.5, 0.75))
            return replace(quiet, ratio=middle, spread=high - low, deviation=rounds.std())

        monkeypatch.setattr(candidate_acceptance, "measure", measure)
        found.add(optimised(model(), target="cpu", time_limit=60.0)[1].result)
    assert found == {default[1].result}


def test_forms_that_surely_gain_are_raced_beside_the_input_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptance_policy, "POLICY", replace(POLICY, negligible_loss=1.0))
    race = timed(formed=0.4, beside_plain=2.0)
    monkeypatch.setattr(candidate_acceptance, "measure", race)
    _, report = optimised(model(), target="cpu", time_limit=60.0)
    assert report.algorithms
    assert report.measured is not None
    assert race.asked == [report.measured.ratio] == [0.4]  # type: ignore[attr-defined]


def test_where_memory_is_what_counts_there_are_no_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold larger weights than what they stand for."""
    monkeypatch.setattr(candidate_acceptance, "measure", timed(formed=0.4))
    _, report = optimised(model(), target="cpu", time_limit=60.0, objective="memory")
    assert report.algorithms == ()
    assert report.work.weight_bytes_after <= report.work.weight_bytes_before


def test_what_does_not_fit_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    most = model().weight_bytes
    for large, fitting in ((64 * most, 2), (most, 0)):
        race = timed(formed=0.4)
        monkeypatch.setattr(candidate_acceptance, "measure", race)
        monkeypatch.setattr(fast_algorithm_proposals, "LARGE", large)
        _, report = optimised(model(), target="cpu", time_limit=60.0)
        assert len(report.algorithms) == fitting
        assert (0.4 in race.asked) is bool(fitting)  # type: ignore[attr-defined]
        assert any("would take more than" in note for note in report.notes) is not bool(fitting)


def test_forms_that_lose_beside_the_input_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidate_acceptance, "measure", timed(formed=1.2, plain=0.8, beside_plain=0.6))
    result, report = optimised(model(), target="cpu", time_limit=60.0)
    assert report.algorithms == ()
    assert [n.op for n in result.nodes] == ["Conv", "Relu"] * 2
    assert report.measured is not None
    assert report.measured.ratio == 0.8
    assert any("left out: the rewritten graph" in note for note in report.notes)


def test_proposals_are_ranked_and_follow_from_graph_and_prices() -> None:
    """The fastest by price; those of them that gain by more than prices are off; then more accurate algorithms."""
    graph = model(size=16)
    with for_target(PROFILE) as prices:
        first, again = (
            [*fast_algorithm_proposals.substitutions(graph, graph, prices, setting(), ReportNotes())] for _ in range(2)
        )
    assert len(first) >= 2
    assert [structural_hash(f.graph) for f in first] == [structural_hash(f.graph) for f in again]
    assert [f.modelled.mean for f in first] == sorted(f.modelled.mean for f in first)
    assert not first[0].clear
    growths = [max(a.growth for a in f.reported()) for f in first]
    assert growths == sorted(growths, reverse=True)
    assert growths[-1] < growths[0]


@pytest.mark.parametrize(
    ("modelled", "deviation", "ratio", "scatter", "taken"),
    [(0.8, 0.05, 0.8, 0.01, True), (0.8, 0.05, 0.99, 0.01, False), (0.99, 0.05, 0.8, 0.01, True),
     (0.9, 0.02, 0.95, 0.5, True), (1.0, 0.02, 0.95, 0.5, False), (0.96, 0.05, 0.96, 0.5, True)],
)  # fmt: skip
def test_where_rounds_scatter_prices_decide_and_where_they_do_not_the_race(
    modelled: float, deviation: float, ratio: float, scatter: float, taken: bool
) -> None:
    found = PairedMeasurement(9.0, 9.0 * ratio, ratio, 7, scatter * 0.75)
    assert acceptance_policy.FastAlgorithmComparison(TimeRatioEstimate(modelled, deviation), found).accepted is taken


@pytest.mark.parametrize("ratio", [0.9, 0.94, 1.0, 1.05])
def test_a_busy_machine_refuses_what_a_quiet_one_refuses(ratio: float) -> None:
    """Rounds that scatter ten times as much move no decision but that of a near tie."""
    rng = np.random.default_rng(3)
    for noise in (0.003, 0.03):
        decided = []
        for _ in range(200):
            rounds = ratio * rng.lognormal(0.0, noise, 31)
            low, middle, high = np.quantile(rounds, (0.25, 0.5, 0.75))
            found = PairedMeasurement(1.0, middle, middle, 31, high - low)
            decided.append(acceptance_policy.FastAlgorithmComparison(TimeRatioEstimate(0.9, 0.08), found).accepted)
        assert sum(decided) == (200 if ratio < 0.97 else 0)


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_few_rounds_tell_nothing(rounds: int) -> None:
    known = TimeRatioEstimate(0.9, 0.05)
    few = PairedMeasurement(1.0, 0.5, 0.5, rounds)
    assert known.measured(few) == known
    assert not acceptance_policy.FastAlgorithmComparison(TimeRatioEstimate(0.5, 0.01), few).conclusive, (
        "prices alone end no race"
    )
    assert acceptance_policy.FastAlgorithmComparison(TimeRatioEstimate(0.5, 0.01), replace(few, runs=7)).conclusive
    assert known.measured(PairedMeasurement(1.0, 0.5, 0.5, 7)).mean < 0.55


def test_models_without_a_place_ask_for_no_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_algorithm_proposals, "choose", lambda *_, **__: pytest.fail("asked"))
    b = GraphBuilder("small")
    b.output(b.op("MatMul", b.input("x", "float32", (8, 8)), b.weight("w", (8, 8))), "y")
    _, report = optimised(b.build())
    assert report.algorithms == ()
