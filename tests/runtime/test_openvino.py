"""OpenVINO: what the table says it fuses, its clock, its silence, and a model optimised for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib import util
from pathlib import Path

import pytest
from odd_runtimes import ROWS, chain, typed
from sampling import sampled

import superopt
from superopt import formats
from superopt.benchmark import RuntimeComparisonOptions, compare_runtimes
from superopt.cost import OPENVINO_CPU
from superopt.cost.backend_capabilities import FusionPattern, groups
from superopt.cost.operator_timing import CpuOperatorTimer
from superopt.cost.profile_calibration import nearest_profile
from superopt.frontend import GraphBuilder
from superopt.ir.graph import Graph, Node, Value, constant
from superopt.ops.shape_inference import infer
from superopt.report.benchmark import runtimes_table
from superopt.runtime.protocol import runtime_named
from superopt.runtime.synthetic_tensors import feeds_for, sample

pytestmark = pytest.mark.skipif(
    util.find_spec("openvino") is None, reason="OpenVINO is not installed: pip install 'superopt[openvino]'"
)
PRODUCERS = sorted({p for f in OPENVINO_CPU.fusions for p in f.producers})
FEW = frozenset({"Add", "BatchNormalization", "Erf", "Mul", "Relu"})  # stand for all that work element by element
POINTWISE = next(f for f in OPENVINO_CPU.fusions if "Erf" in f.producers).producers


def kernels_in(graph: Graph, patterns: tuple[FusionPattern, ...] = OPENVINO_CPU.patterns) -> list[tuple[Node, ...]]:
    """The nodes of each group that runs as one kernel."""
    return [g.nodes for g in groups(graph, patterns, infer(graph).types)]


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path_factory.getbasetemp() / "cache-of-test-openvino"))


def kernels(graph: Graph) -> int:
    traced = runtime_named("openvino").trace(formats.to_onnx_bytes(graph), feeds_for(graph), runs=1)
    return sum(not kernel.layout for kernel in traced)


def test_a_search_that_measures_with_several_threads_ends(tmp_path):
    """What calibrates has started them; in a copy of that process nobody would answer."""
    formats.save(chain("MatMul", "Add", "Relu"), tmp_path / "m.onnx")
    command = [sys.executable, "-m", "superopt", "optimize", "m.onnx", "--runtime", "openvino", "--threads", "2"]
    environment = {**os.environ, "SUPEROPT_CACHE": str(tmp_path / "cache")}  # so that there is something to measure
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=100)


@pytest.mark.parametrize("producer", sampled([p for p in PRODUCERS if p not in POINTWISE or p in FEW], 6))
def test_what_the_table_fuses_adds_no_kernel(producer):
    alone = kernels(chain(producer))
    consumers = sorted({c for f in OPENVINO_CPU.fusions if producer in f.producers for c in f.consumers})
    apart = [c for c in consumers if kernels(chain(producer, c)) > alone]
    assert apart == []


@pytest.mark.parametrize(
    ("producer", "consumer"),
    [("MatMul", "Softmax"), ("MatMul", "Erf"), ("Conv", "Exp"), ("Softmax", "Relu"), ("Relu", "MatMul"),
     ("Transpose", "Relu"), ("ConvTranspose", "Relu"), ("ReduceMean", "Add")],
)  # fmt: skip
def test_what_is_not_in_the_table_stays_apart(producer, consumer):
    assert not OPENVINO_CPU.fusable(producer, consumer)
    assert kernels(chain(producer, consumer)) > kernels(chain(producer))


def gelu() -> Graph:
    root, one, half = (constant(n, sample(typed(1)) * 0 + v) for n, v in (("r", 2**0.5), ("o", 1.0), ("h", 0.5)))
    nodes = (
        Node("d", "Div", ("x", "r"), ("a",)), Node("e", "Erf", ("a",), ("b",)), Node("p", "Add", ("b", "o"), ("c",)),
        Node("m", "Mul", ("x", "c"), ("g",)), Node("n", "Mul", ("g", "h"), ("y",)),
    )  # fmt: skip
    return Graph("gelu", (Value("x", ROWS),), (Value("y", None),), (root, one, half), nodes, {"": 21})


def attention() -> Graph:
    kind = typed(1, 2, 8, 16)
    nodes = (
        Node("q", "MatMul", ("x", "k"), ("s",)), Node("f", "Softmax", ("s",), ("p",), {"axis": -1}),
        Node("v", "MatMul", ("p", "z"), ("y",)),
    )  # fmt: skip
    inputs = (Value("x", kind), Value("k", typed(1, 2, 16, 8)), Value("z", kind))
    return Graph("attention", inputs, (Value("y", None),), (), nodes, {"": 21})


@pytest.mark.parametrize("graph", [gelu(), attention()], ids=lambda g: g.name)
def test_what_a_pattern_groups_is_one_kernel(graph):
    assert [len(group) for group in kernels_in(graph)] == [len(graph.nodes)]
    assert kernels(graph) == 1


def test_the_threads_own_clock_counts_all_of_a_run_and_nothing_is_pinned():
    graph = chain("Conv", *["Conv"] * 5)
    cores = os.sched_getaffinity(0)
    bound = runtime_named("openvino").load(formats.to_onnx_bytes(graph), threads=1).bound(feeds_for(graph))
    own, whole = time.thread_time_ns(), time.process_time_ns()
    for _ in range(200):
        bound.step()
    own, whole = time.thread_time_ns() - own, time.process_time_ns() - whole
    assert own > 0.8 * whole
    assert os.sched_getaffinity(0) == cores


def test_nobody_is_told_that_it_was_imported(tmp_path):
    """``openvino_telemetry`` reports every import of OpenVINO, and leaves its mark in the home folder."""
    code = "import sys; from superopt.runtime.protocol import runtime_named as r; r('openvino')._core; " \
           "print('openvino_telemetry' in sys.modules)"  # fmt: skip
    environment = {**os.environ, "HOME": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    assert run.stdout.strip() == "False", run.stderr
    assert not (tmp_path / "intel").exists()


def test_its_trace_tells_layout_changes_from_work():
    graph = chain("Conv")
    traced = runtime_named("openvino").trace(formats.to_onnx_bytes(graph), feeds_for(graph))
    assert [kernel.nodes for kernel in traced if not kernel.layout] == [("y",)]
    assert any(kernel.layout for kernel in traced)


def test_prices_are_a_recorded_profiles_scaled_to_the_runtime():
    found = nearest_profile(CpuOperatorTimer(1, runtime_named("openvino")))
    assert found is not None
    _, profile, calibration = found
    assert profile.header["backend"] == "onnxruntime-cpu"
    assert "openvino" in calibration.device
    assert all(factor > 0.0 for factor in calibration.factors.values())
    assert calibration.records >= 3


def _layers(path: Path) -> Path:
    builder = GraphBuilder("layers")
    x = builder.input("x", "float32", [64, 96])
    left = builder.op("MatMul", x, builder.weight("a", (96, 256), scale=0.1))
    right = builder.op("MatMul", x, builder.weight("b", (96, 256), scale=0.1))
    builder.output(builder.op("Add", left, right), "y", shape=[64, 256])
    formats.save(builder.build(), path)
    return path


def test_a_model_is_optimised_for_it(tmp_path):
    result = superopt.optimize(_layers(tmp_path / "m.onnx"), runtime="openvino", time_limit=None, measure=True)
    found = result.report
    assert (found.runtime, found.status, found.check.verdict) == ("openvino", "improved", "passed")
    assert found.work.flops_after == 2 * 64 * 96 * 256  # of one product, whichever operator computes it
    assert found.measured is not None
    assert str(found.measured.circumstances["runtime"]).startswith("openvino ")


@pytest.mark.slow
def test_graphs_and_runtimes_side_by_side(tmp_path):
    path = _layers(tmp_path / "layers.onnx")
    options = RuntimeComparisonOptions(("onnxruntime", "openvino"), race_limit=1.0, rounds=3)
    data = compare_runtimes([path], options)
    [row] = data["rows"]
    assert "error" not in row, row
    assert {(p["graph"], p["runtime"]) for p in row["pairs"]} >= {("input", "onnxruntime"), ("input", "openvino")}
    assert row["pairs"][0]["ratio"] == 1.0
    assert row["best"]["ratio"] == min(p["ratio"] for p in row["pairs"])
    assert set(row["ours"]) == {"onnxruntime", "openvino"}
    assert all(row["made"][name]["check"] == "passed" for name in row["made"])
    assert "layers" in runtimes_table(data)
