"""Recording a profile: what is asked is measured, nothing twice, drift is noticed, and a cut-short run goes on."""

import itertools
import json
import time

import pytest

from superopt.benchmark.profile_recording import coverage, profile
from superopt.cost import (
    DeviceProfileStore,
    MeasurementKey,
    MeasurementRecord,
    ProfileCostModel,
    device_of,
    for_target,
    load_profile,
    read_profile,
)
from superopt.cost.backend_capabilities import ONNX_RUNTIME_CPU
from superopt.cost.graph_costs import graph_cost
from superopt.cost.measurement_record import key_of, question_of
from superopt.cost.operator_timing import OperatorTiming
from superopt.cost.profile_recorder import MissingMeasurementCollector, ProfileRecorder
from superopt.frontend import GraphBuilder
from superopt.ir.errors import BackendUnavailable, InvalidModel, UsageError
from superopt.ir.graph import Graph, Node, Value, constant
from superopt.ir.types import DType, TensorType
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.passes.fast_algorithms.selection import GROWTH, FastAlgorithmChoice, alternatives, rewritten
from superopt.passes.fast_algorithms.sites import sites_of
from superopt.pipeline import optimize
from superopt.runtime.synthetic_tensors import sample


def f(*shape):
    return TensorType(DType.FLOAT32, shape)


def perceptron(width=32):
    weights = (constant("v", sample(f(64, width))), constant("w", sample(f(width, 16))))
    nodes = (
        Node("m", "MatMul", ("x", "v"), ("m",)), Node("n", "MatMul", ("m", "w"), ("n",)),
        Node("s", "Softmax", ("n",), ("y",), {"axis": 1}),
    )  # fmt: skip
    return Graph("g", (Value("x", f(8, 64)),), (Value("y", f(8, 16)),), weights, nodes, {"": 21})


class Clockwork:
    """A device whose times are a formula, and whose sentinels drift when told to."""

    backend = ONNX_RUNTIME_CPU

    def __init__(self):
        self.drift = iter(())
        self.timed = []
        self.expected = []

    def facts(self):
        peaks = {"flops_per_s": 5e10, "bytes_per_s": 1e10}
        return {"device": "clockwork", "threads": 1, "cache_bytes": 1 << 20, "dispatch_ns": 100.0, "peaks": peaks}

    def key(self, question):
        return question.key

    def prepare(self, questions):
        self.expected += [q.key.text for q in questions]

    def time(self, question, *, cold=True):
        assert question.key.text in self.expected, "what is timed is made ready with others"
        self.timed.append(question.key.text)
        if question.op == "Cos":
            raise InvalidModel("no such kernel")
        if question.op == "Sin":
            raise UnsupportedNodeForm("too large to be timed alone")
        flops, moved = question.work
        ns = 1000.0 + flops / 50 + moved / 10
        return OperatorTiming(ns, 2 * ns, 0.01)

    def sentinels(self):
        return {"gemm": 1000.0 * next(self.drift, 1.0)}


def questions(*widths, op="Relu"):
    return [question_of(key_of(op, {}, (f(w),))) for w in widths]


def forever():
    return time.monotonic() + 1e6


@pytest.mark.parametrize(
    "key",
    [
        key_of("MatMul", {}, (f(2, 3), f(3, 4)), (False, True)),
        key_of("Transpose", {"perm": (1, 0, 2)}, (f(2, 3, 4),)),
        key_of("Softmax", {"axis": 1}, (f(2, 3),)),
        key_of("Relu", {}, (f(),)),
    ],
)
def test_a_key_is_a_question_again(key):
    found = question_of(key)
    assert found.key == key
    assert found.work[1] > 0


@pytest.mark.parametrize(
    "key",
    [
        MeasurementKey("graph", "0" * 64, "", ("float32[2]",)),
        MeasurementKey("com.microsoft.nchwc.Conv", "{}", "float32", ("float32[2]",), impl="kernel"),
        MeasurementKey("Relu", "not json", "float32", ("float32[2]",)),
        MeasurementKey("Relu", "{}", "float32", ("float32",)),
        MeasurementKey("MatMul", "{}", "float32", ("float32[2, 3]", "float32[5, 4]")),
    ],
)
def test_what_is_no_application_is_no_question(key):
    from superopt.ops.operator_definition import UnsupportedNodeForm

    with pytest.raises(UnsupportedNodeForm):
        question_of(key)


def test_a_plan_notes_what_it_lacks_and_only_that():
    known = MeasurementRecord(key_of("Relu", {}, (f(4),)), 500.0, 500.0)
    plan = MissingMeasurementCollector([known], {}, ONNX_RUNTIME_CPU)
    assert plan.application("Relu", {}, (f(4),), (f(4),)).source == "measured"
    assert plan.in_context(10).application("Relu", {}, (f(8),), (f(8),)).source != "measured"
    assert [q.key for q in plan.missing.values()] == [key_of("Relu", {}, (f(8),))]
    assert len(plan.questions) == 2


def test_what_was_measured_is_not_measured_again_even_in_another_call(tmp_path):
    device = Clockwork()
    first = ProfileRecorder(device, tmp_path / "p.jsonl.gz", forever())
    assert first.measure(questions(4, 8, 8)) == 2
    again = ProfileRecorder(device, tmp_path / "p.jsonl.gz", forever())
    assert again.measure(questions(4, 8, 16)) == 1
    again.write({})
    assert sorted(read_profile(tmp_path / "p.jsonl.gz").records) == sorted(q.key.text for q in questions(4, 8, 16))
    again.finish()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.jsonl.gz"]


def test_another_device_does_not_go_on_where_this_one_stopped(tmp_path):
    ProfileRecorder(Clockwork(), tmp_path / "p.jsonl.gz", forever()).measure(questions(4))
    other = Clockwork()
    other.facts = lambda: {"device": "another"}
    assert ProfileRecorder(other, tmp_path / "p.jsonl.gz", forever()).records == ()


def test_nothing_is_measured_when_time_is_up(tmp_path):
    device = Clockwork()
    assert ProfileRecorder(device, tmp_path / "p.jsonl.gz", time.monotonic() - 1).measure(questions(4)) == 0
    assert device.timed == []


def test_a_block_in_which_the_machine_drifted_is_timed_once_more(tmp_path):
    device = Clockwork()
    recorder = ProfileRecorder(device, tmp_path / "p.jsonl.gz", forever())
    recorder.measure(questions(4, 8))
    device.drift = iter((1.0, 1.2, 1.0))
    recorder.measure(questions(16, 32))
    assert [device.timed.count(q.key.text) for q in questions(4, 8, 16, 32)] == [1, 1, 2, 2]
    said = recorder.write({}).header["sentinels"]
    assert (said["blocks"], said["repeated"], said["drifted"]) == (2, 1, 0)


def test_a_sentinel_that_always_scatters_does_not_call_every_block_off(tmp_path):
    """What passes through a cache that others share varies by a third; only what leaves that scatter is drift."""
    device = Clockwork()
    device.drift = itertools.cycle((1.0, 1.3, 1.05, 1.15, 0.95, 1.25))
    recorder = ProfileRecorder(device, tmp_path / "p.jsonl.gz", forever())
    recorder.measure(questions(*range(4, 204)))
    said = recorder.write({}).header["sentinels"]
    assert (said["blocks"], said["repeated"], said["drifted"]) == (8, 0, 0)
    assert said["gemm"]["spread"] > 0.1
    device.drift = iter((1.1, 2.0, 1.1))
    recorder.measure(questions(300))
    assert recorder.write({}).header["sentinels"]["repeated"] == 1


def test_what_the_device_refuses_is_never_chosen(tmp_path):
    recorder = ProfileRecorder(Clockwork(), tmp_path / "p.jsonl.gz", forever())
    recorder.measure(questions(64) + questions(64, op="Cos"))
    model = ProfileCostModel(recorder.write({}))
    refused = model.application("Cos", {}, (f(64),), (f(64),))
    assert refused.us > 100 * model.application("Relu", {}, (f(64),), (f(64),)).us
    assert refused.source == "roofline"


def test_what_cannot_be_timed_alone_is_predicted_like_anything_else(tmp_path):
    """The output layer of a language model is too large to be timed; it runs all the same."""
    device = Clockwork()
    recorder = ProfileRecorder(device, tmp_path / "p.jsonl.gz", forever())
    recorder.measure(questions(64) + questions(64, op="Sin"))
    recorder.measure(questions(64, op="Sin"))
    assert sum('"Sin"' in text for text in device.timed) == 1
    model = ProfileCostModel(recorder.write({}))
    predicted = model.application("Sin", {}, (f(64),), (f(64),))
    assert predicted.us < 10 * model.application("Relu", {}, (f(64),), (f(64),)).us


def test_the_same_measurements_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        ProfileRecorder(Clockwork(), tmp_path / name / "p.jsonl.gz", forever()).write({"date": "today"})
    strip = [json.dumps(read_profile(tmp_path / n / "p.jsonl.gz").header["sha256"]) for n in ("a", "b")]
    assert strip[0] == strip[1]


@pytest.fixture
def clockwork(monkeypatch):
    device = Clockwork()
    monkeypatch.setattr("superopt.benchmark.profile_recording.costs.device_of", lambda *_: device)
    return device


def test_the_optimiser_finds_all_it_asks_for_in_the_profile(tmp_path, clockwork):
    found = profile([perceptron()], tmp_path / "p.jsonl.gz")
    assert (found.planned, found.settled, found.complete) == (1, 1, True)
    assert found.answered == found.asked > 2
    result = optimize(perceptron(), target=f"profile:{tmp_path / 'p.jsonl.gz'}", time_limit=None)
    assert result.report.status == "improved"  # two products of weights are one
    assert result.report.cost.measured_share == 1.0


def test_how_much_of_what_is_asked_a_profile_holds(tmp_path, clockwork):
    out = tmp_path / "p.jsonl.gz"
    profile([perceptron()], out, time_limit=0.0)
    [nothing] = coverage([perceptron()], str(out))
    assert (nothing.answered, nothing.before_measured) == (0, 0.0)
    profile([perceptron()], out)
    [everything] = coverage([perceptron()], str(out))
    assert everything.answered == everything.asked > 2
    assert (everything.before_measured, everything.after_measured) == (1.0, 1.0)
    assert everything.after_us < everything.before_us
    assert clockwork.timed.count(clockwork.timed[0]) == 1  # and nothing was measured for it


def test_a_recorded_profile_is_a_plan(tmp_path, clockwork):
    first = profile([perceptron()], tmp_path / "p.jsonl.gz")
    clockwork.timed.clear()
    again = profile([tmp_path / "p.jsonl.gz"], tmp_path / "q.jsonl.gz")
    assert again.measured == first.records == len(set(clockwork.timed))
    assert (
        read_profile(tmp_path / "p.jsonl.gz").header["sha256"] == read_profile(tmp_path / "q.jsonl.gz").header["sha256"]
    )


def test_extending_keeps_what_is_there_and_recording_again_does_not(tmp_path, clockwork):
    out = tmp_path / "p.jsonl.gz"
    first = profile([perceptron()], out)
    more = profile([perceptron(), perceptron(24)], out, extend=True)
    assert more.records == first.records + more.measured
    again = profile([perceptron()], out)
    assert again.measured == again.records == more.records


def test_what_is_added_leaves_the_rest_of_a_profile_as_it_is(tmp_path, clockwork, monkeypatch):
    out = tmp_path / "p.jsonl.gz"
    profile([perceptron()], out)
    first = read_profile(out)
    other = {**clockwork.facts(), "runtime": "another", "peaks": {"flops_per_s": 1e9, "bytes_per_s": 1e9}}
    monkeypatch.setattr(clockwork, "facts", lambda: other)
    more = profile([perceptron(24)], out, extend=True)
    found = read_profile(out)
    assert {k: r for k, r in found.records.items() if k in first.records} == first.records
    own = {"added", "records", "sha256"}
    assert {k: v for k, v in found.header.items() if k not in own} == {
        k: v for k, v in first.header.items() if k not in own
    }
    (added,) = found.header["added"]
    assert (added["records"], added["runtime"]) == (more.measured, "another")
    assert more.measured == len(found.records) - len(first.records) > 0
    profile([perceptron()], out, extend=True)  # holds all of it already
    assert read_profile(out).header == found.header


def test_records_of_another_kind_are_not_added(tmp_path, clockwork, monkeypatch):
    out = tmp_path / "p.jsonl.gz"
    profile([perceptron()], out)
    other = {**clockwork.facts(), "threads": 2}
    monkeypatch.setattr(clockwork, "facts", lambda: other)
    with pytest.raises(UsageError, match="threads 1, and what is to be added would have 2"):
        profile([perceptron(24)], out, extend=True)


def test_a_plan_asks_for_forms_with_fewer_multiplications(tmp_path, clockwork):
    b = GraphBuilder("conv")
    x = b.input("x", "float32", (1, 128, 28, 28))
    b.output(b.op("Conv", x, b.weight("w", (128, 128, 3, 3), scale=0.03), pads=[1, 1, 1, 1]), "y")
    out = tmp_path / "p.jsonl.gz"
    profile([b.build()], out)
    ops = [r.key.op for r in read_profile(out).records.values()]
    assert {"Conv", "Gather", "MatMul", "Concat"} <= set(ops)
    with for_target(f"profile:{out}") as model:
        (site,) = sites_of(b.build(), costs=model)
        us, form = alternatives(b.build(), site, model, GROWTH["standard"])[1]
        assert us > 0.0
        made = graph_cost(rewritten(b.build(), [FastAlgorithmChoice(site, form, 0.0, 0.0)], filled=False), model)
    assert made.measured_share > 0.9


def test_a_recording_that_is_cut_short_goes_on(tmp_path, clockwork):
    out = tmp_path / "p.jsonl.gz"
    short = profile([perceptron()], out, time_limit=0.0)
    assert (short.complete, short.records) == (False, 0)
    assert load_profile(str(out)).records == {}
    assert profile([perceptron()], out).complete


def test_where_there_is_nothing_to_measure_or_to_measure_on(tmp_path):
    with pytest.raises(UsageError, match="nothing to measure"):
        profile([], tmp_path / "p.jsonl.gz")
    with pytest.raises(BackendUnavailable, match="profile:NAME"):
        profile([perceptron()], tmp_path / "p.jsonl.gz", target="cuda")
    with pytest.raises(UsageError, match="device"):
        device_of("profile:x")


def test_the_processor_is_a_device(tmp_path, monkeypatch):
    """All but how much its cache holds, of which ``test_ramp.py`` is."""
    monkeypatch.setattr("superopt.cost.operator_timing.time_weight_pass", lambda size, _: 0.01 * size)
    device = device_of("cpu")
    recorder = ProfileRecorder(device, tmp_path / "p.jsonl.gz", forever())
    assert recorder.measure(questions(1024)) == 1
    header = recorder.write({}).header
    assert header["peaks"]["flops_per_s"] > 1e9
    assert header["peaks"]["bytes_per_s"] > 1e8
    assert header["cache_bytes"] > 0
    assert set(header["sentinels"]) >= {"gemm", "copy"}
    with for_target(f"profile:{tmp_path / 'p.jsonl.gz'}") as model:
        assert model.application("Relu", {}, (f(1024),), (f(1024),)).source == "measured"


def test_a_store_of_records_is_kept_nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = DeviceProfileStore.of([MeasurementRecord(key_of("Relu", {}, (f(4),)), 1.0, 1.0)])
    store.add(MeasurementRecord(key_of("Relu", {}, (f(8),)), 1.0, 1.0))
    assert len(store) == 2
    assert list(tmp_path.iterdir()) == []
