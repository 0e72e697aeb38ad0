"""The costs on trial: rows, summary, direction, held-out records, two runs."""

import random
import shutil
import signal
from dataclasses import replace

import pytest

from superopt import formats
from superopt.benchmark import cost_validation
from superopt.benchmark.cost_accuracy import (
    ModelTimePrediction,
    RewriteSpeedupPrediction,
    held_out,
    predict_changes,
    repeat,
    right_share,
    spearman,
    validate,
)
from superopt.benchmark.cost_validation import CostValidation, ProxyCostModel, validate_costs
from superopt.cost import DeviceProfileStore, MeasuredCpuCostModel, MeasurementRecord
from superopt.cost.measurement_record import key_of
from superopt.ir.graph import Graph, Node, Value, constant
from superopt.ir.types import DType, TensorType
from superopt.runtime.synthetic_tensors import sample


def f(*shape):
    return TensorType(DType.FLOAT32, shape)


def stack(layers, width=48):
    weights = tuple(constant(f"w{i}", sample(f(width, width), i)) for i in range(layers))
    names = ["x", *(f"v{i}" for i in range(layers - 1)), "y"]
    nodes = tuple(Node(f"m{i}", "MatMul", (names[i], f"w{i}"), (names[i + 1],)) for i in range(layers))
    return Graph(f"stack{layers}", (Value("x", f(16, width)),), (Value("y", f(16, width)),), weights, nodes, {"": 21})


def broken():
    node = Node("q", "No", ("x",), ("y",), domain="odd")
    return Graph("odd", (Value("x", f(2)),), (Value("y", None),), (), (node,), {"": 21, "odd": 1})


@pytest.fixture
def ctrl_c():
    """Ctrl-C interrupts, as at a terminal: jobs in a shell's background ignore it, and so do their children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def products_only(monkeypatch):
    """Of the rules those of products alone, which are all that these models need; with all of them a search is long."""
    whole = cost_validation.select_rules

    def chosen(options):
        library = whole(options)
        return replace(library, rules={k: r for k, r in library.rules.items() if r.operators <= {"MatMul", "Gemm"}})

    monkeypatch.setattr(cost_validation, "select_rules", chosen)


@pytest.fixture(scope="module")
def cpu(tmp_path_factory):
    """For all tests, as the ceilings of this processor take seconds to measure."""
    return MeasuredCpuCostModel(store=DeviceProfileStore("test", {}, tmp_path_factory.mktemp("store")))


@pytest.fixture(scope="module")
def known_machine(tmp_path_factory):
    """A cache in which is what this processor reaches and what flushing its caches costs: that takes seconds."""
    folder = tmp_path_factory.mktemp("machine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUPEROPT_CACHE", str(folder))
        assert MeasuredCpuCostModel().peaks() is not None
    return folder


@pytest.fixture
def own_cache(known_machine, monkeypatch, tmp_path):
    """A cache that holds nothing else."""
    shutil.copytree(known_machine, tmp_path / "cache")
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))


def test_a_model_that_cannot_run_is_a_row_that_says_why(cpu):
    fine, odd = validate([("fine", stack(1)), ("odd", broken())], cpu, rounds=3)
    assert fine.predicted_us > 0
    assert fine.measured_us > 0
    assert fine.measured_share == 1.0
    assert "odd" in odd.failure


def test_three_products_instead_of_twelve_are_predicted_and_measured_faster(cpu):
    steps = [("", stack(12, 256)), ("by hand", stack(3, 256))]
    [found] = predict_changes("stack", steps, cpu, rounds=5)
    assert found.predicted < 0.6
    assert found.measured < 0.6
    assert found.right
    [odd] = predict_changes("odd", [("", stack(1)), ("by hand", broken())], cpu)
    assert odd.failure


def test_only_changes_beyond_the_noise_have_a_direction():
    rows = [
        RewriteSpeedupPrediction("a", "", 0.9, 0.8),
        RewriteSpeedupPrediction("b", "", 1.1, 0.9),
        RewriteSpeedupPrediction("c", "", 1.2, 0.99),
        RewriteSpeedupPrediction("d", "", 0.5, 0.0, failure="no"),
    ]
    assert right_share(rows) == (0.5, 2)
    assert right_share(rows, 0.15) == (1.0, 1)
    assert right_share([]) == (1.0, 0)


def test_a_change_within_its_own_doubt_has_no_direction():
    clear, doubtful = (RewriteSpeedupPrediction("a", "", 1.1, 0.95, doubt=d) for d in (0.01, 0.06))
    assert right_share([clear, doubtful]) == (0.0, 1)


def test_forms_in_a_row_are_raced_together_and_one_that_cannot_run_says_why(cpu):
    forms = [("twelve", stack(12, 256)), ("odd", broken()), ("three", stack(3, 256)), ("six", stack(6, 256))]
    less, more, odd = predict_changes("stack", forms, cpu, rounds=6)
    assert [less.how, more.how, odd.how] == ["twelve → three", "three → six", "odd"]
    assert less.measured < 0.8
    assert more.measured > 1.2
    assert less.right
    assert more.right
    assert odd.failure


def test_rank_correlation_is_of_ranks():
    rows = [ModelTimePrediction(str(i), us, us**3, 1.0, 0.0) for i, us in enumerate((1.0, 5.0, 2.0, 9.0))]
    assert spearman(rows) == pytest.approx(1.0)
    assert spearman([ModelTimePrediction("f", 0, 0, 0, 0, failure="no"), *rows]) == pytest.approx(1.0)
    assert spearman(rows[:1]) == 1.0


def synthetic(noise):
    draw = random.Random(0)
    for n in range(200):
        size = draw.randrange(1 << 10, 1 << 22)
        ns = (500 + size / 4) * draw.lognormvariate(0, noise)
        yield MeasurementRecord(key_of("Relu", {}, (f(size + n),)), ns, ns, 0.01, 0, size, 8 * size)


def test_held_out_records_are_predicted_and_their_sigma_is_honest():
    smooth, noisy = held_out(synthetic(0.0)), held_out(synthetic(0.3))
    assert 5 < smooth.records < 40
    assert smooth.median < 0.05
    assert smooth.rank > 0.99
    assert noisy.median > smooth.median
    assert noisy.within_two > 0.7
    assert held_out([]).records == 0


def test_two_profiles_from_nothing_are_compared(tmp_path):
    found = repeat("stack", stack(2), lambda store: MeasuredCpuCostModel(store=store))
    assert found.records > 0
    assert min(found.seconds) > 0
    assert min(found.cpu_seconds) > 0
    assert 0 <= found.on_ratios < 2


def test_the_whole_trial_on_a_small_model(own_cache, tmp_path, products_only):
    given = [stack(6), tmp_path / "missing.onnx"]
    found = validate_costs(given, rounds=3, search_limit=300.0)  # however busy the machine is
    data = found.json()
    assert data["summary"]["models"] == 1
    assert {p["how"] for p in data["pairs"]} >= {"model → least time", "block → fewest operators"}
    assert data["summary"]["models_of_pairs"] == 1
    assert all(p["predicted"] > 0 for p in data["pairs"])
    assert [bool(m["failure"]) for m in data["models"]] == [False, True]
    assert CostValidation((), (), held_out([])).json()["summary"]["direction_right"] is None


def test_a_trial_that_was_cut_short_goes_on(own_cache, tmp_path):
    path = tmp_path / "stack.json"
    formats.save(stack(2), path)
    given = {"pairs": False, "rounds": 2, "keep": tmp_path / "kept"}
    assert validate_costs([path], **given, total_limit=0.0).left_out == ("stack",)
    first = validate_costs([path], **given)
    again = validate_costs([path], **given)
    assert again.predictions == first.predictions  # times are in it: measured anew, they would differ
    assert again.left_out == ()


@pytest.mark.parametrize("where", ["the search of a model", "the search of a block"])
def test_ctrl_c_ends_the_trial_with_the_models_that_are_done(
    monkeypatch, tmp_path, where, ctrl_c, own_cache, products_only
):  # fmt: skip
    paths = [tmp_path / f"{name}.json" for name in ("done", "stopped", "never")]
    for path in paths:
        formats.save(stack(2 if path.stem == "done" else 3), path)
    at: list[str] = []

    def note(_done, _of, what):
        at.append(what)
        if where == "the search of a model" and "stopped" in at and what.startswith("applying all rules"):
            signal.raise_signal(signal.SIGINT)

    lookup = ProxyCostModel._lookup

    def asked(self, question):
        if where == "the search of a block" and "stopped" in at:
            signal.raise_signal(signal.SIGINT)
        return lookup(self, question)

    monkeypatch.setattr(ProxyCostModel, "_lookup", asked)
    given = {"rounds": 2, "keep": tmp_path / "kept"}
    found = validate_costs(paths, **given, progress=note)
    assert found.interrupted
    assert found.left_out == ("stopped", "never")
    assert [p.name for p in found.predictions] == ["done"]
    assert found.json()["interrupted"]
    assert [p.name for p in (tmp_path / "kept").iterdir()] == ["done.json"]
