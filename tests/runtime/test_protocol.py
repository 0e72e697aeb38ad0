"""Every runtime keeps the one protocol; what is not installed says so; and a result is judged where it will run."""

from __future__ import annotations

import re
from importlib import util

import numpy as np
import pytest
from odd_runtimes import Odd, chain
from typer.testing import CliRunner

from superopt import formats
from superopt.cli import app
from superopt.cost import BACKENDS, OPENVINO_CPU, ProfileCostModel, for_target, load_profile
from superopt.cost.backend_capabilities import cpu_backend
from superopt.cost.device_profile import DeviceProfileStore
from superopt.cost.measured_cost_models import MeasuredCpuCostModel, device_store
from superopt.cost.operator_timing import CpuGraphTimer, CpuOperatorTimer, OperatorTiming, measure_graph
from superopt.ir.errors import BackendUnavailable, InvalidModel, Unsupported, UsageError
from superopt.ir.graph import Graph, Node, Value
from superopt.ir.size_polynomial import sym
from superopt.ir.types import DType, TensorType
from superopt.runtime import openvino as module
from superopt.runtime import reference
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.paired_benchmark import time_models
from superopt.runtime.protocol import RUNTIMES, Runtime, TracedKernel, runtime_named
from superopt.runtime.synthetic_tensors import feeds_for
from superopt.verifier.check.differential import check

INSTALLED = [name for name in RUNTIMES if name != "openvino" or util.find_spec("openvino") is not None]


@pytest.fixture(params=list(RUNTIMES))
def runtime(request: pytest.FixtureRequest) -> Runtime:
    if request.param not in INSTALLED:
        pytest.skip(f"{request.param} is not installed: pip install 'superopt[{request.param}]'")
    return runtime_named(request.param)


def test_a_model_runs_alike_bound_and_unbound_from_bytes_and_from_a_file(runtime, tmp_path):
    graph = chain("MatMul", "Add", "Softmax")
    feeds, content = feeds_for(graph), formats.to_onnx_bytes(graph)
    formats.save(graph, tmp_path / "m.onnx")
    exact = reference.run(graph, feeds)["y"]
    for source in (content, tmp_path / "m.onnx"):
        loaded = runtime.load(source, threads=1)
        for limit in (None, 10.0):
            np.testing.assert_allclose(loaded.run(feeds, ["y"], time_limit=limit)["y"], exact, rtol=1e-5)
        first = loaded.bound(feeds)
        second = loaded.bound(feeds, like=first)
        first.step()
        second.step()
        assert len(first.outputs()) == len(second.outputs()) == 1


def test_float32_stays_float32(runtime):
    """In bfloat16, which this kind of processor has, a product is wrong in the third digit."""
    graph = chain("MatMul", "MatMul", "MatMul")
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 8, 16)).astype(np.float32)}
    made = runtime.load(formats.to_onnx_bytes(graph), threads=1).run(feeds, ["y"])["y"]
    exact = reference.run(graph, feeds)["y"]
    assert float(np.abs(made - exact).max() / np.abs(exact).max()) < 1e-5


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.FLOAT64, DType.INT32, DType.INT64, DType.UINT8, DType.BOOL])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_element_types_scalars_and_empty_tensors(runtime, dtype, shape):
    kind = TensorType(dtype, shape)
    op = "Not" if dtype is DType.BOOL else "Identity"
    graph = Graph("g", (Value("x", kind),), (Value("y", kind),), (), (Node("n", op, ("x",), ("y",)),), {"": 21})
    array = np.ones(shape, dtype.numpy)
    made = runtime.load(formats.to_onnx_bytes(graph), threads=1).run({"x": array, "unused": array}, ["y"])["y"]
    assert made.dtype == array.dtype
    assert made.shape == shape
    assert np.array_equal(made, ~array if dtype is DType.BOOL else array)


def test_sizes_may_change_from_run_to_run(runtime):
    kind = TensorType(DType.FLOAT32, (sym("n"), 4))
    graph = Graph("g", (Value("x", kind),), (Value("y", None),), (), (Node("r", "Relu", ("x",), ("y",)),), {"": 21})
    loaded = runtime.load(formats.to_onnx_bytes(graph), threads=1)
    for n in (1, 7, 3):
        assert loaded.run({"x": np.ones((n, 4), np.float32)}, ["y"])["y"].shape == (n, 4)


def test_errors_are_in_our_own_words_and_one_line(runtime):
    loaded = runtime.load(formats.to_onnx_bytes(chain("Conv")), threads=1)
    feeds = [{}, {"x": np.ones((1, 3, 3, 3), np.float32)}, {"x": np.ones((1, 16, 8, 8))}]
    for given in feeds:
        with pytest.raises(UsageError) as caught:
            loaded.run(given, ["y"])
        assert "\n" not in str(caught.value)
    for content in (b"", b"garbage"):
        with pytest.raises(InvalidModel) as broken:
            runtime.load(content)
        assert "\n" not in str(broken.value)
    node = Node("n", "Foo", ("x",), ("y",))
    kind = TensorType(DType.FLOAT32, (2,))
    graph = Graph("g", (Value("x", kind),), (Value("y", None),), (), (node,), {"": 21})
    with pytest.raises((InvalidModel, Unsupported), match="Foo"):
        runtime.load(formats.to_onnx_bytes(graph))


def test_a_trace_names_the_nodes_that_ran(runtime):
    graph = chain("MatMul", "Softmax")
    traced = runtime.trace(formats.to_onnx_bytes(graph), feeds_for(graph))
    assert len([k for k in traced if not k.layout]) == 2
    assert all(k.us >= 0.0 for k in traced)
    assert {n for k in traced for n in k.nodes} & {"n0", "n1", "v0", "y"}


def test_what_is_said_to_stay_apart_stays_apart(runtime):
    """Timing takes what a node costs from a chain of these."""
    graph = chain(*[runtime.apart] * 5)
    if runtime.lowers:
        assert len(formats.from_bytes(runtime.lowered(formats.to_onnx_bytes(graph))).nodes) >= 1
    else:
        with pytest.raises(Unsupported):
            runtime.lowered(formats.to_onnx_bytes(graph))
    assert len(runtime.trace(formats.to_onnx_bytes(graph), feeds_for(graph))) == 5


def test_a_race_says_what_ran(runtime):
    graph = chain("MatMul")
    content = formats.to_onnx_bytes(graph)
    found = time_models([content, content], feeds_for(graph), runtime=runtime, rounds=2, threads=1, clock="cpu")
    assert found.circumstances["runtime"] == f"{runtime.name} {runtime.version}"
    assert re.fullmatch(r"\d+\.\d+.*", runtime.version)


def test_layout_changes_at_the_edges_are_not_in_a_price(monkeypatch):
    """Where the optimised graph is not handed out, by the share that the runtime's trace gives to them."""
    odd = Odd({})
    traced = (TracedKernel("Reorder", (), 1.0, layout=True), TracedKernel("Conv", ("n0",), 3.0))
    monkeypatch.setattr(Odd, "trace", lambda *_, **__: traced)
    monkeypatch.setattr(CpuGraphTimer, "time", lambda *_, **__: OperatorTiming(1000.0, 2000.0, 0.1))
    assert measure_graph(chain("Conv"), CpuGraphTimer(1, odd)) == OperatorTiming(750.0, 1500.0, 0.1)
    # MatMul has one layout.
    assert measure_graph(chain("MatMul"), CpuGraphTimer(1, odd)) == OperatorTiming(1000.0, 2000.0, 0.1)


def test_what_is_kept_is_kept_by_runtime(monkeypatch, tmp_path):
    """No price of one runtime is read as another's."""
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path))
    odd = Odd({})
    monkeypatch.setitem(BACKENDS, "odd-cpu", cpu_backend(ONNX_RUNTIME))  # type: ignore[index]
    assert device_store(1, odd).path != device_store(1).path
    assert CpuOperatorTimer(1, odd).name != CpuOperatorTimer(1).name
    assert MeasuredCpuCostModel(runtime=odd, store=DeviceProfileStore("t", {}, tmp_path)).lowered is None
    profile = load_profile("cpu-epyc-2core")
    assert ProfileCostModel(profile, backend=OPENVINO_CPU).digest != ProfileCostModel(profile).digest


def test_what_is_not_installed_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setattr(module.util, "find_spec", lambda name: None)
    module.openvino.cache_clear()
    try:
        with pytest.raises(BackendUnavailable) as caught:
            runtime_named("openvino")
        assert str(caught.value) == "OpenVINO is not installed; pip install 'superopt[openvino]'"
        formats.save(chain("MatMul"), tmp_path / "m.onnx")
        run = CliRunner().invoke(app, ["optimize", str(tmp_path / "m.onnx"), "--runtime", "openvino"])
        assert isinstance(run.exception, BackendUnavailable) or run.exit_code == BackendUnavailable.exit_code
    finally:
        module.openvino.cache_clear()


@pytest.mark.parametrize(
    ("target", "name", "said"),
    [
        ("cpu", "tensorrt", "there is no runtime"),
        ("cuda", "openvino", "on the processor"),
        ("profile:cpu-epyc-2core", "openvino", "was recorded with onnxruntime-cpu"),
    ],
)
def test_a_target_and_a_runtime_must_go_together(target, name, said):
    if name in RUNTIMES and name not in INSTALLED:
        pytest.skip(f"{name} is not installed")
    with pytest.raises(UsageError, match=said), for_target(target, runtime=name):
        pass


def _pair() -> tuple[Graph, Graph]:
    """Two graphs that compute the same, told apart by an operator: the result has Neg."""
    kind = TensorType(DType.FLOAT32, (4, 8))
    before = (Node("a", "Relu", ("x",), ("y",)),)
    after = (Node("a", "Relu", ("x",), ("r",)), Node("b", "Neg", ("r",), ("s",)), Node("c", "Neg", ("s",), ("y",)))
    return tuple(  # type: ignore[return-value]
        Graph("g", (Value("x", kind),), (Value("y", kind),), (), nodes, {"": 21}) for nodes in (before, after)
    )


@pytest.mark.parametrize(
    ("odd", "verdict", "said"),
    [
        (Odd({}), "passed", ""),
        (Odd({"Neg": 1.01}), "failed", "in odd 1"),
        (Odd({"Relu": 1.01}), "passed", "strays from ONNX Runtime on the original itself"),
        (Odd({"Neg": 1.02, "Relu": 1.01}), "failed", "against the original there"),
        (Odd({}, frozenset({"Neg"})), "failed", "odd does not know Neg"),
        (Odd({}, frozenset({"Relu"})), "passed", "refuses the original, too: odd does not know Relu"),
    ],
)
def test_a_result_is_judged_in_the_runtime_that_it_is_made_for(odd, verdict, said):
    found = check(*_pair(), runtime=odd)
    assert found.verdict == verdict, found.reason
    assert said in found.reason
