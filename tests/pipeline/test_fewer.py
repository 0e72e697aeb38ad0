"""Fewer multiplications as the last step of an optimisation: what they may take away, which is nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

import superopt
from superopt import formats
from superopt.cost import RecordedProfile, for_target, load_profile, target
from superopt.frontend import GraphBuilder
from superopt.ir.errors import InvalidModel
from superopt.ir.graph import Graph
from superopt.ops.infer import infer
from superopt.pipeline import contest, fewer, judge, trials
from superopt.pipeline.fewer import GROWTH
from superopt.pipeline.judge import Belief, regret
from superopt.report import Measured, Report
from superopt.rules.floats import MOST_ERROR
from superopt.runtime import ort
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.race import RaceResult, result_of
from superopt.search.bilinear.choosing import FORM_ERROR, LEAST_GAIN, NEAR, Choice, choose, rewritten
from superopt.verifier.running import Bench

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
    return ort.run(ort.make_session(formats.to_onnx_bytes(graph), threads=1), {"image": x})["y"]


@pytest.fixture(autouse=True)
def recorded_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's prices are the profile's: races are what ``target="cpu"`` adds here, and those are made up."""

    def calibrated(*, sizes: Mapping[str, int] | None, **_: object) -> RecordedProfile:
        return RecordedProfile(load_profile(PROFILE.removeprefix("profile:")), sizes)

    monkeypatch.setattr(target, "calibrated_cpu", calibrated)


@pytest.fixture(scope="module")
def plain() -> Graph:
    """What is found without."""
    return optimised(model(), disable=("algorithms",))[0]


def test_the_default_uses_them_and_says_where_and_how_accurately() -> None:
    graph = model()
    result, report = optimised(graph)
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
    x = np.random.default_rng(0).standard_normal((1, 192, 14, 14)).astype(np.float32)
    assert np.abs(outputs(result, x) - outputs(graph, x)).max() <= 1e-5 * np.abs(outputs(graph, x)).max()


@pytest.mark.parametrize("settings", [{"floats": "strict"}, {"disable": ("algorithms",)}])
def test_none_are_used_where_none_are_allowed(settings: dict[str, object], plain: Graph) -> None:
    result, report = optimised(model(), **settings)
    assert (report.algorithms, report.errors) == ((), None)
    assert [n.op for n in plain.nodes] == ["Conv", "Relu"] * 2
    assert [n.op for n in result.nodes if n.op != "BatchNormalization"] == ["Conv", "Relu"] * 2


def test_the_same_graph_and_prices_give_the_same_result() -> None:
    assert optimised(model())[1].result == optimised(model())[1].result


def test_a_memory_limit_holds_with_them(plain: Graph) -> None:
    kept, report = optimised(model())
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
        graph: Graph, choices: Sequence[Choice], *, filled: bool = True, reserved: frozenset[str] = frozenset()
    ) -> Graph:
        made = rewritten(graph, choices, filled=filled, reserved=reserved)
        ends = [n for n in made.nodes if n.op == "Relu"]
        return replace(made, nodes=tuple(replace(n, op="Neg") if n is ends[-1] else n for n in made.nodes))

    monkeypatch.setattr(fewer, "rewritten", false)
    monkeypatch.setattr(fewer.Accuracy, "within", lambda *_: True)
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
    monkeypatch.setattr(fewer, "MOST_ERROR", {**MOST_ERROR, "standard": 1.8 * report.errors.after})
    _, less = optimised(graph)
    assert less.errors is not None
    assert less.errors.after < report.errors.after
    assert max(a.growth for a in less.algorithms) <= 6.0
    assert any("does not allow" in note for note in less.notes)
    monkeypatch.setattr(fewer, "MOST_ERROR", {**MOST_ERROR, "standard": 1e-9})
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


def setting() -> fewer.Setting:
    return fewer.Setting("standard", {}, 0, 1, ONNX_RUNTIME, races=False, seconds=1.0, left=lambda: 1.0, inputs=2)


def test_errors_are_measured_on_inputs_of_each_kind() -> None:
    graph = steep()
    with Bench() as bench:
        normal, edge = fewer._errors(graph, graph, setting(), bench)
    assert (normal.inputs, edge.inputs) == (2, 1)
    assert normal.before == normal.after < 1e-6 < edge.before == edge.after


def test_inputs_that_the_model_refuses_tell_nothing_of_errors() -> None:
    b = GraphBuilder("m")
    rows = b.input("rows", "int64", (3,))
    b.output(b.op("Gather", b.weight("table", (2, 4)), rows, axis=0), "y")
    graph = b.build()
    fed = [{"rows": np.array(r)} for r in ([0, 1, 0], [0, 7, 0])]
    with Bench() as bench:
        assert fewer._errors_on(graph, graph, bench, ONNX_RUNTIME, 1, {}, fed) == [fewer.Accuracy(0.0, 0.0, 1), None]
        with pytest.raises(InvalidModel, match="indices element out of"):
            fewer._errors_on(graph, graph, bench, ONNX_RUNTIME, 1, {}, fed[1:])


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
    assert fewer._errors_of(old, np.array(made, np.float32), exact) == errors


def test_what_errs_as_the_model_does_is_within_every_budget() -> None:
    assert fewer.Accuracy(3e-5, 3e-5, 1).within("standard", 0.5)
    assert not fewer.Accuracy(3e-5, 3.1e-5, 1).within("standard", 0.5)
    assert fewer.Accuracy(1e-6, 5e-6, 1).within("standard", 0.5)


def raced(*times: float, rounds: int = 15) -> Callable[..., RaceResult]:
    """A race in which the models take so long, with a little noise: the result without forms, and that with them."""
    rng = np.random.default_rng(0)

    def race(bound: Sequence[object], **_: object) -> RaceResult:
        assert len(bound) == len(times)
        return result_of([[t * rng.normal(1.0, 0.002) for t in times] for _ in range(rounds)], rounds, {})

    return race


def beside(plain: float, formed: float) -> Callable[..., Measured]:
    """A race of the input and a result, which takes so much of its time without forms, or with them."""

    def measure(before: Graph, after: Graph, **_: object) -> Measured:
        ratio = formed if "MatMul" in {n.op for n in after.nodes} else plain
        return Measured(10.0, 10.0 * ratio, ratio, 15, 0.0, {}, 0.0)

    return measure


def alone(time: float) -> Callable[..., RaceResult]:
    """A race of an operator that takes 10 and its forms, which all take as long as is said."""

    def race(load: Callable[[], Sequence[object]], **_: object) -> RaceResult:
        bound = load()
        return raced(10.0, *(time for _ in bound[1:]))(bound)

    return race


@pytest.mark.parametrize(
    ("times", "rounds", "used"),
    [((10.0, 6.0), 15, True), ((10.0, 9.9), 15, False), ((10.0, 12.0), 15, False)],
)
def test_a_lost_race_leaves_out_forms_and_nothing_else(
    times: tuple[float, ...], rounds: int, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fewer, "CHEAP", -1.0)  # raced however clear it is
    monkeypatch.setattr(fewer, "race_bound", raced(*times, rounds=rounds))
    monkeypatch.setattr(trials, "race_sittings", alone(6.0))
    monkeypatch.setattr(contest, "measure", beside(0.9, 0.6))
    result, report = optimised(model(), target="cpu", time_limit=60.0)
    assert bool(report.algorithms) is used
    assert ("MatMul" in {n.op for n in result.nodes}) is used
    assert "BatchNormalization" not in {n.op for n in result.nodes}
    if not used:
        assert any("they take" in note for note in report.notes)


def test_forms_that_surely_gain_are_raced_beside_the_input_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fewer, "race_bound", lambda *_, **__: pytest.fail("raced"))
    monkeypatch.setattr(trials, "race_sittings", alone(5.0))
    monkeypatch.setattr(contest, "measure", beside(0.9, 0.4))
    _, report = optimised(model(), target="cpu", time_limit=60.0)
    assert report.algorithms
    assert report.measured is not None
    assert report.measured.ratio == 0.4


def test_where_memory_is_what_counts_there_are_no_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold larger weights than what they stand for."""
    monkeypatch.setattr(trials, "race_sittings", alone(5.0))
    monkeypatch.setattr(contest, "measure", beside(0.9, 0.4))
    for objective, some in (("time", True), ("memory", False)):
        _, report = optimised(model(), target="cpu", time_limit=60.0, objective=objective)
        assert bool(report.algorithms) is some
        assert (report.work.weight_bytes_after > report.work.weight_bytes_before) is some


def test_in_a_hurry_prices_choose_and_there_is_one_race(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(*args: object, **kwargs: object) -> object:
        raise AssertionError("no operator is timed, and no result beside the one without forms")

    for name in ("tried_alone", "race_bound"):
        monkeypatch.setattr(fewer, name, timed)
    monkeypatch.setattr(contest, "measure", beside(1.0, 0.4))
    _, report = optimised(model(), target="cpu", time_limit=60.0, effort="quick")
    assert report.measured is not None
    assert report.measured.ratio == 0.4
    chosen, by_prices = ([(a.where, a.algorithm) for a in r.algorithms] for r in (report, optimised(model())[1]))
    assert chosen == by_prices
    assert chosen


def test_what_does_not_fit_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[int] = []

    def tried(plain: Graph, typing: object, chosen: list[Choice], *rest: object, **more: object) -> object:
        timed.append(len(chosen))
        return chosen, 0, 0

    monkeypatch.setattr(fewer, "tried_alone", tried)
    monkeypatch.setattr(fewer, "race_bound", raced(10.0, 6.0))
    monkeypatch.setattr(contest, "measure", beside(0.9, 0.4))
    most = model().weight_bytes
    for large, fitting in ((64 * most, 2), (most, 0)):
        monkeypatch.setattr(fewer, "LARGE", large)
        _, report = optimised(model(), target="cpu", time_limit=60.0)
        assert len(report.algorithms) == fitting
        assert timed == [2]
        assert any("would take more than" in note for note in report.notes) is not bool(fitting)


def test_forms_that_lose_beside_the_input_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fewer, "race_bound", raced(10.0, 6.0))
    monkeypatch.setattr(trials, "race_sittings", alone(6.0))
    monkeypatch.setattr(contest, "measure", beside(0.8, 1.2))
    result, report = optimised(model(), target="cpu", time_limit=60.0)
    assert report.algorithms == ()
    assert [n.op for n in result.nodes] == ["Conv", "Relu"] * 2
    assert report.measured is not None
    assert report.measured.ratio == 0.8
    assert any("left out: the rewritten graph" in note for note in report.notes)


@pytest.mark.parametrize(
    ("modelled", "deviation", "ratio", "scatter", "won"),
    [(0.8, 0.05, 0.8, 0.01, True), (0.8, 0.05, 0.99, 0.01, False), (0.99, 0.05, 0.8, 0.01, True),
     (0.9, 0.02, 0.95, 0.5, True), (1.0, 0.02, 0.95, 0.5, False), (0.96, 0.05, 0.96, 0.5, False)],
)  # fmt: skip
def test_where_rounds_scatter_prices_decide_and_where_they_do_not_the_race(
    modelled: float, deviation: float, ratio: float, scatter: float, won: bool
) -> None:
    samples = [(9.0, 9.0 * (ratio + z * scatter)) for z in (-1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0)]
    found = fewer._Raced(result_of(samples, 7, {}), Belief(modelled, deviation))
    assert found.won is won


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_few_rounds_tell_nothing(rounds: int) -> None:
    known = Belief(0.9, 0.05)
    assert known.measured([0.5] * rounds) == known
    assert known.measured([0.5] * 7).mean < 0.55


def without_rivals(graph: Graph) -> list[Choice]:
    """The forms that prices choose."""
    with for_target(PROFILE) as costs:
        return [replace(c, rivals=()) for c in choose(graph, costs, growth=GROWTH["standard"])]


@pytest.mark.parametrize(
    ("share", "ratio", "kept"),
    [(0.05, 0.99, True), (0.05, 1.2, False), (1.0, 0.99, True), (1.0, 1.1, False)],
    ids=["a near tie of a small part", "far slower", "within the error of all", "slower beyond that"],
)
def test_what_prices_choose_stands_until_rounds_change_it_to_what_gains(
    share: float, ratio: float, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = model()
    chosen = without_rivals(graph)
    rounds = ((1.0, ratio),) * 12

    def timed(_: object, options: trials._Options, *__: object) -> trials._Options:
        return replace(options, rounds=rounds)

    monkeypatch.setattr(trials, "_race", timed)
    monkeypatch.setattr(trials._Options, "loses", 1.0)  # every kind is timed
    before = sum(c.before for c in chosen)
    with Bench() as bench:
        found, count, gained = trials.tried_alone(
            graph, infer(graph), chosen, before / share, 0.0, bench, runtime=ONNX_RUNTIME, threads=1, sizes={}, seed=0,
            left=lambda: 60.0,
        )  # fmt: skip
    assert (len(found), count, gained) == ((len(chosen), 1, 1) if kept else (0, 1, 0))
    if kept:  # at what is believed of it, not at its price
        assert sum(c.after for c in found) == pytest.approx(0.97 * before, rel=0.03)
        assert sum(c.after for c in found) > sum(c.after for c in chosen)


@pytest.mark.parametrize(
    ("gain", "least", "asked"),
    [(0.03, 0.03, True), (0.03, 0.2, False), (0.4, 0.03, False)],
    ids=["near what all have to gain", "far below", "far above"],
)
def test_forms_are_timed_while_it_is_open_whether_all_gain_enough(
    gain: float, least: float, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = model()
    chosen = [replace(c, after=0.6 * c.before) for c in without_rivals(graph)]
    share = gain / (1.0 - chosen[0].after / chosen[0].before)
    timed: list[float] = []
    monkeypatch.setattr(trials, "_race", lambda _, options, *__: timed.append(options.share))
    with Bench() as bench:
        kept, count, _ = trials.tried_alone(
            graph, infer(graph), chosen, sum(c.before for c in chosen) / share, least, bench, runtime=ONNX_RUNTIME,
            threads=1, sizes={}, seed=0, left=lambda: 60.0,
        )  # fmt: skip
    assert bool(timed) is bool(count) is asked
    assert timed == ([pytest.approx(share)] if asked else [])
    assert len(kept) == (0 if asked else len(chosen))  # what could not be run is not kept


@pytest.mark.parametrize(
    ("ratio", "rounds", "over"),
    [(0.6, 6, True), (1.0, 6, False), (1.3, 36, True)],
    ids=["as prices say", "against them, unclear", "clearly against them"],
)
def test_a_trial_is_over_where_what_it_changes_is_clear(ratio: float, rounds: int, over: bool) -> None:
    choice = replace(without_rivals(model())[0], spared=0.0)
    choice = replace(choice, after=0.7 * choice.before)
    options = trials._Options(choice, 0.6, ((1.0, ratio),) * rounds, each=3)
    assert options.settled is over


def test_forms_are_looked_at_as_far_as_asking_about_one_may_pay() -> None:
    def lost(ratio: float) -> float:
        return regret([Belief(1.0 - LEAST_GAIN, 0.0), Belief(ratio, FORM_ERROR)])

    assert lost(1.0 + NEAR) >= judge.CHEAP > lost(1.0 + NEAR + 0.005)


@pytest.mark.parametrize(("time", "kept"), [(6.0, True), (11.0, False)])
def test_a_form_in_doubt_is_kept_where_it_gains_alone(time: float, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "CHEAP", -1.0)  # nothing may be lost
    asked: list[int] = []

    def race(load: Callable[[], Sequence[object]], **_: object) -> RaceResult:
        asked.append(len(load()))
        return alone(time)(load)

    monkeypatch.setattr(trials, "race_sittings", race)
    monkeypatch.setattr(fewer, "race_bound", raced(10.0, 6.0))
    monkeypatch.setattr(contest, "measure", beside(0.9, 0.6))
    _, report = optimised(model(), target="cpu", time_limit=60.0)
    assert bool(report.algorithms) is kept
    if kept:
        assert len(asked) == 1  # both convolutions are alike
        # prices have a sixteenth of the say
        assert report.algorithms[0].after_us == pytest.approx(0.6 * report.algorithms[0].before_us, rel=0.1)
    else:
        assert any("its forms, 0 took one" in note for note in report.notes)


def test_models_without_a_place_ask_for_no_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fewer, "choose", lambda *_, **__: pytest.fail("asked"))
    _, report = optimised(model(channels=8, size=8))
    assert report.algorithms == ()
