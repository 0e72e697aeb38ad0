"""What surrounds the kernels, without a GPU: capture, addresses, slopes, and what a user without one is told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from superopt import optimize
from superopt.cost import cuda_timing
from superopt.cost.cuda_timing import CudaOperatorTimer, slope
from superopt.cost.device_profile import DeviceProfileStore
from superopt.cost.measured_cost_models import MeasuredDeviceCostModel
from superopt.cost.measurement_record import MeasurementRequest
from superopt.frontend import GraphBuilder
from superopt.ir.errors import BackendUnavailable, Unsupported, UsageError
from superopt.ir.graph import Graph
from superopt.ir.types import DType, TensorType
from superopt.passes import SearchResult
from superopt.pipeline import child_process_search
from superopt.pipeline import optimization as optimise
from superopt.rules import RuleLibrary
from superopt.runtime.cuda.device import CudaAvailability, cupy, probe
from superopt.runtime.cuda.execution_plan import KernelLaunch, Step
from superopt.runtime.cuda.session import CudaGraphSession
from superopt.runtime.cuda.vendor_libraries import Call


class Recorder:
    """A device that computes nothing: it records launches, refuses allocation while capturing, and counts time.

    A launch takes 3 µs with warm buffers, and 5 µs when the buffers of its step changed since the launch before.
    """

    def __init__(self, *, libraries: bool = True) -> None:
        self.libraries = libraries
        self.blocks: list[tuple[int, int]] = []
        self.launches: list[tuple[str, tuple[int, ...]]] = []
        self.prepared: list[Step] = []
        self.capturing = False
        self.clock = 0.0
        self._last: dict[str, tuple[int, ...]] = {}

    def supports(self, call: Call) -> bool:
        return self.libraries

    def prepare(self, steps: Sequence[Step]) -> None:
        assert not self.capturing
        self.prepared += steps

    def allocate(self, nbytes: int) -> int:
        assert not self.capturing, "a captured graph must not allocate"
        start = max((end for _, end in self.blocks), default=4096)
        self.blocks.append((start, start + -(-nbytes // 256) * 256))
        return start

    def upload(self, pointer: int, array: np.ndarray) -> None:
        assert not self.capturing
        assert any(a <= pointer and pointer + array.nbytes <= b for a, b in self.blocks)

    def download(self, pointer: int, array: np.ndarray) -> None:
        array[...] = 0

    def step(self, step: Step, pointers: Sequence[int]) -> None:
        assert step in self.prepared
        for pointer in pointers:
            assert any(a <= pointer < b for a, b in self.blocks), "an address that nobody allocated"
        self.clock += 3.0 if self._last.get(step.output, tuple(pointers)) == tuple(pointers) else 5.0
        self._last[step.output] = tuple(pointers)
        self.launches.append((step.output, tuple(pointers)))

    def capture(self, body: Callable[[], None]) -> Callable[[], None]:
        self.capturing = True
        body()
        self.capturing = False
        self.clock += 10.0  # setting up must not count
        return body

    def elapsed(self, body: Callable[[], None]) -> float:
        before = self.clock
        body()
        return self.clock - before + 7.0  # an event pair costs something: slopes must be free of it

    def allocated(self) -> int:
        return len(self.blocks)

    def release(self, mark: int) -> None:
        del self.blocks[mark:]

    def facts(self) -> dict[str, str | int]:
        return {"device": "recorder", "cores": 1, "driver": 0, "cache_bytes": 1 << 20, "runtime": "none"}


def perceptron() -> Graph:
    """Two layers; the first bias is a weight computed from another."""
    builder = GraphBuilder("perceptron")
    x = builder.input("x", "float32", (4, 8))
    w, v, b = (builder.weight(n, s) for n, s in (("w", (8, 16)), ("v", (16, 3)), ("b", (16,))))
    hidden = builder.op("Relu", builder.op("MatMul", x, w) + builder.op("Neg", b) * 2.0)
    builder.output(builder.op("Softmax", builder.op("MatMul", hidden, v), axis=-1), "y")
    return builder.build()


def test_a_session_captures_once_and_replays() -> None:
    driver = Recorder()
    session = CudaGraphSession(perceptron(), driver)
    once = len(driver.launches)
    assert [s.output for s in session.plan.setup], "what depends on weights alone is not part of an inference"
    setup, steps = len(session.plan.setup), len(session.plan.steps)
    assert once == setup + 2 * steps, "they run once, so that libraries are set up, and are captured once"
    session.run({"x": np.ones((4, 8), np.float32)})
    assert driver.launches[once:] == driver.launches[setup : setup + steps]


def test_products_without_a_library_are_kernels() -> None:
    driver = Recorder(libraries=False)
    session = CudaGraphSession(perceptron(), driver)
    assert all(isinstance(s, KernelLaunch) for s in session.plan.steps)
    assert any(not isinstance(s, KernelLaunch) for s in CudaGraphSession(perceptron(), Recorder()).plan.steps)


def test_wrong_inputs_are_refused() -> None:
    session = CudaGraphSession(perceptron(), Recorder())
    with pytest.raises(UsageError, match="'x' was not given"):
        session.run({})
    with pytest.raises(UsageError, match=r"shape \(4, 9\), not \(4, 8\)"):
        session.run({"x": np.ones((4, 9), np.float32)})


def test_a_slope_is_free_of_what_every_launch_costs() -> None:
    """3 µs a launch when the buffers stay, 5 µs when they change: neither the event's 7 µs nor the capture's 10."""
    driver = Recorder()
    session = CudaGraphSession(perceptron(), driver)
    steps = len(session.plan.steps)
    one = [session.place()]
    several = [session.place() for _ in range(3)]
    assert slope(driver, session, one)[0] == pytest.approx(3.0 * steps)
    assert slope(driver, session, several)[0] == pytest.approx(5.0 * steps, rel=0.01)


def test_a_device_times_warm_and_cold_and_gives_memory_back() -> None:
    driver = Recorder()
    device = CudaOperatorTimer(driver=driver)
    kind = TensorType(DType.FLOAT32, (64, 64))
    question = MeasurementRequest("Relu", {}, [kind], [kind], [False])
    held = driver.allocated()
    timing = device.time(question)
    assert (timing.ns, timing.ns_cold) == pytest.approx((3000.0, 5000.0))
    assert driver.allocated() == held
    key = device.key(question)
    assert (key.impl, key.precision) == ("superopt-cuda", "ieee")
    assert key.text != question.key.text
    assert device.facts()["peaks"]["flops_per_s"] > 0


def test_an_operator_without_a_meaning_is_refused_by_name() -> None:
    builder = GraphBuilder("odd")
    x = builder.input("x", "float32", (3,))
    builder.output(builder.op("NonZero", x), "y", shape=(1, "n"), dtype="int64")
    with pytest.raises(Unsupported, match="NonZero"):
        CudaGraphSession(builder.build(), Recorder())


@pytest.mark.skipif(probe().ok, reason="this machine has a CUDA device")
def test_without_a_gpu_the_reason_and_the_next_step_are_said() -> None:
    found = probe()
    assert found == CudaAvailability(False, found.reason)
    assert found.reason
    with pytest.raises(BackendUnavailable, match=r"superopt\[cuda\]") as caught:
        cupy()
    assert "profile:NAME" in str(caught.value)
    assert caught.value.exit_code == 7


def test_nothing_imports_cupy_at_start_up() -> None:
    code = "import sys, superopt, superopt.cli, superopt.cost; print('cupy' in sys.modules, 'cudnn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_costs_on_a_device_are_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model that ``--target cuda`` uses, over the device that counts time."""
    monkeypatch.setattr(CudaOperatorTimer, "peaks", {"flops_per_s": 1e12, "bytes_per_s": 1e12})
    model = MeasuredDeviceCostModel(
        CudaOperatorTimer(driver=Recorder()), store=DeviceProfileStore("device", {}, tmp_path)
    )
    kind = TensorType(DType.FLOAT32, (64, 64))
    first = model.application("Relu", {}, [kind], [kind])
    assert (first.us, first.source) == (pytest.approx(5.0), "measured")
    before = len(model.store)
    assert model.application("Relu", {}, [kind], [kind]) == first
    assert len(model.store) == before
    refused = model.application("Sigmoid", {}, [kind], [kind], after="Relu")
    assert refused.us < first.us  # fused into its producer: what it adds is nearly nothing
    assert model.application("Reshape", {"shape": (4096,)}, [kind], [TensorType(DType.FLOAT32, (4096,))]).us == 0


def multiplied(times: int) -> Graph:
    """A Relu after so many products with the unit matrix."""
    builder = GraphBuilder("multiplied")
    x = builder.input("x", "float32", (16, 64))
    for _ in range(times):
        x = builder.op("MatMul", x, np.eye(64, dtype=np.float32))
    builder.output(builder.op("Relu", x), "y")
    return builder.build()


def test_whole_graphs_race_on_the_device() -> None:
    driver = Recorder()
    held = driver.allocated()
    two, one = multiplied(2), perceptron()
    result = CudaOperatorTimer(driver=driver).time_models([two, two], {"x": np.ones((16, 64), np.float32)}, rounds=4)
    assert result.ratios == (pytest.approx(1.0), pytest.approx(1.0))
    assert result.rounds == 4
    assert driver.allocated() == held, "a race gives its memory back"
    steps = len(CudaGraphSession(one, Recorder()).plan.steps)
    alone = CudaOperatorTimer(driver=driver).time_models([one], {"x": np.ones((4, 8), np.float32)}, rounds=3)
    assert alone.ms[0] == pytest.approx(3e-3 * steps, rel=0.02)  # 3 µs a launch, and hardly anything for the events
    assert alone.circumstances["clock"] == "events"


def test_a_race_that_cannot_be_planned_names_the_node() -> None:
    builder = GraphBuilder("odd")
    x = builder.input("x", "float32", (4, 8))
    builder.output(builder.op("NonZero", x), "y")
    with pytest.raises(Unsupported, match="NonZero"):
        CudaOperatorTimer(driver=Recorder()).time_models([builder.build()], {"x": np.ones((4, 8), np.float32)})


@pytest.mark.parametrize(("before", "after", "better"), [(4, 0, True), (0, 4, False)])
def test_optimising_for_cuda_races_on_the_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: int, after: int, better: bool
) -> None:
    """What the search found (here: a graph with another number of products) has to win on the device."""
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path))
    monkeypatch.setattr(CudaOperatorTimer, "peaks", {"flops_per_s": 1e12, "bytes_per_s": 1e12})
    monkeypatch.setattr(cuda_timing, "CudaOperatorTimer", lambda: CudaOperatorTimer(driver=Recorder()))
    monkeypatch.setattr(optimise, "load_library", lambda *_: RuleLibrary({}, {}))
    monkeypatch.setattr(child_process_search, "search", lambda *_, **__: SearchResult(multiplied(after)))
    graph = multiplied(before)
    result = optimize(graph, target="cuda", time_limit=60.0)
    measured = result.report.measured
    assert measured is not None, result.report.notes
    assert measured.circumstances["device"] == "recorder"
    assert (result.graph is not graph) == better
    assert measured.ratio == pytest.approx(1 / 5 if better else 1.0, rel=0.05)
    assert better == (result.report.cost.after_us < result.report.cost.before_us)
