"""On a CUDA device: every operator, whole models and races, against the float64 reference. ``make gpu-record``"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from beside import CONVOLUTIONS, assert_close, convolution, feeds_of, operator_samples

from superopt.cost.cuda_timing import CudaOperatorTimer
from superopt.cost.measurement_record import MeasurementRequest
from superopt.formats import load
from superopt.frontend import GraphBuilder
from superopt.ir.graph import Graph
from superopt.ir.types import DType, TensorType
from superopt.runtime.cuda.device import CudaDevice, probe
from superopt.runtime.cuda.execution_plan import plan
from superopt.runtime.cuda.session import CudaGraphSession, time_sessions
from superopt.runtime.cuda.vendor_libraries import Call
from superopt.runtime.reference import run
from superopt.runtime.synthetic_tensors import feeds_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not probe().ok, reason=f"no CUDA device: {probe().reason}"),
]
ROOT = Path(__file__).parents[2]


class Alone(CudaDevice):
    """A device without libraries: products and convolutions are generated kernels too."""

    def supports(self, call: Call) -> bool:
        return False


@pytest.fixture(scope="module")
def driver() -> CudaDevice:
    return CudaDevice()


def test_every_operator_computes_its_meaning(driver: CudaDevice) -> None:
    """All samples of all operators; products and convolutions by the libraries and as generated kernels."""
    samples = operator_samples()
    alone = Alone()
    for each, generated in ((driver, frozenset[str]()), (alone, frozenset({"y0"}))):
        each.prepare([step for s in samples for step in plan(s.graph(), generated=generated).steps])
    wrong = []
    for sample in samples:
        expected = run(sample.graph(), sample.feeds)
        for each in (driver, alone) if sample.op in ("MatMul", "Gemm", "Conv") else (driver,):
            try:
                assert_close(CudaGraphSession(sample.graph(), each).run(sample.feeds), expected, sample)
            except AssertionError as error:
                wrong.append(f"{type(each).__name__} {sample}: {str(error)[:300]}")
    assert not wrong, f"{len(wrong)} of {len(samples)}: " + "\n".join(wrong[:10])


@pytest.mark.parametrize("path", sorted((ROOT / "corpus" / "tiny").glob("*.json")), ids=lambda p: p.stem)
def test_whole_models_are_the_reference(driver: CudaDevice, path: Path) -> None:
    """Fusion, aliases, library calls, the arena and the captured graph together; twice the same bytes."""
    if path.stem == "quantised":
        pytest.skip("its operators have no meaning here")
    graph = load(path)
    sizes, feeds = feeds_of(graph)
    session = CudaGraphSession(graph, driver, sizes)
    first, again = session.run(feeds), session.run(feeds)
    assert_close(first, run(graph, feeds), path.stem)
    assert all(np.array_equal(first[n], again[n], equal_nan=True) for n in first)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_is_the_reference_wherever_it_goes(driver: CudaDevice, name: str) -> None:
    graph = convolution(name)
    _, feeds = feeds_of(graph)
    assert_close(CudaGraphSession(graph, driver).run(feeds), run(graph, feeds), name)


def convolved(channels: int, side: int) -> Graph:
    builder = GraphBuilder("convolved")
    x = builder.input("x", "float32", (1, channels, side, side))
    for position in range(2):
        x = builder.op("Conv", x, builder.weight(f"w{position}", (channels, channels, 3, 3), scale=0.1), pads=[1] * 4)
        x = builder.op("Relu", x)
    builder.output(x, "y")
    return builder.build()


def test_sessions_share_what_convolutions_work_in(driver: CudaDevice) -> None:
    """The later session needs less of it; the earlier one, captured again, must not find too little."""
    graphs = convolved(64, 56), convolved(4, 8)
    sessions = [CudaGraphSession(graph, driver) for graph in graphs]
    for graph, session in zip(graphs, sessions, strict=True):
        feeds = feeds_for(graph)
        driver.capture(session.again)()
        assert_close(session.run(feeds), run(graph, feeds), graph.name)


def test_a_convolution_is_the_librarys(driver: CudaDevice) -> None:
    """Without it, convolutions are a hundred times slower, and say nothing about how models run."""
    (first, *_) = [s for s in plan(convolved(64, 56)).steps if isinstance(s, Call)]
    assert driver.supports(first)


def test_operators_take_time_and_large_ones_more(driver: CudaDevice) -> None:
    """Within what the device can reach: its own ceilings."""
    device = CudaOperatorTimer(driver=driver)
    held = driver.allocated()
    found = []
    for side in (256, 4096):
        kind = TensorType(DType.FLOAT32, (side, side))
        timing = device.time(MeasurementRequest("MatMul", {}, [kind, kind], [kind], [False, False]))
        found.append(timing.ns)
        assert 0 < timing.ns <= timing.ns_cold
        assert 2 * side**3 / timing.ns < 1.2e-9 * device.peaks["flops_per_s"]
    assert found[1] > 20 * found[0]
    assert driver.allocated() == held


def test_a_chain_is_faster_as_one_kernel(driver: CudaDevice) -> None:
    """``(x + y) · z + x`` moves 4 arrays instead of 9; larger than the cache, so that this is what it takes."""
    builder = GraphBuilder("chain")
    x, y, z = (builder.input(n, "float32", (4096, 8192)) for n in "xyz")
    builder.output((x + y) * z + x, "out")
    graph = builder.build()
    sessions = [CudaGraphSession(graph, driver, fuse=fuse) for fuse in (False, True)]
    feeds = feeds_for(graph)
    for session in sessions:
        assert_close(session.run(feeds), run(graph, feeds), "chain")
    assert time_sessions(sessions, driver, rounds=5).ratios[1] < 0.8
