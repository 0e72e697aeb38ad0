"""Generated CUDA kernels, run on the CPU: the same text through g++. What a GPU alone can show is marked ``gpu``."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from beside import CONVOLUTIONS, assert_close, convolution, feeds_of, operator_samples
from host_driver import HostDriver, compiled
from hypothesis import given
from hypothesis import strategies as st
from sampling import slow

from superopt.formats import load
from superopt.frontend import GraphBuilder
from superopt.ir.errors import Unsupported
from superopt.ir.graph import Graph
from superopt.ir.types import DType, TensorType
from superopt.runtime.cuda import execution_plan as planning
from superopt.runtime.cuda import kernel_source
from superopt.runtime.cuda.execution_plan import CudaExecutionPlan, KernelLaunch, arena, plan
from superopt.runtime.cuda.session import CudaGraphSession
from superopt.runtime.cuda.vendor_libraries import Call
from superopt.runtime.reference import run

pytestmark = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")
ROOT = Path(__file__).parents[2]


class Alone(HostDriver):
    """A device without libraries: products and convolutions are generated kernels too."""

    def supports(self, call: Call) -> bool:
        return False


@pytest.fixture(params=[kernel_source.LONG, 2], ids=["threads", "blocks"])
def long(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """From how many terms on a block shares a reduction: as it is, and so that almost all are shared."""
    monkeypatch.setattr(kernel_source, "LONG", request.param)
    monkeypatch.setattr(planning, "LONG", request.param)
    return int(request.param)


def test_every_operator_becomes_a_kernel_that_computes_its_meaning(long: int) -> None:
    """All samples of all operators, compiled at once; products and convolutions also as generated kernels.

    Of blocks those of operators with reductions: without one, a kernel is the same.
    """
    samples = operator_samples(reducing=long == 2)
    plans = [plan(s.graph(), generated=g) for s in samples for g in ((), {"y0"})]
    library = compiled([k for made in plans for k in made.kernels], optimise=0)
    for sample in samples:
        expected = run(sample.graph(), sample.feeds)
        drivers = [HostDriver(library)]
        if sample.op in ("MatMul", "Gemm", "Conv"):
            drivers.append(Alone(library))
        for driver in drivers:
            assert_close(CudaGraphSession(sample.graph(), driver).run(sample.feeds), expected, sample)
    forms = {k.form for made in plans for k in made.kernels}
    assert forms >= ({"flat", "element"} if long > 2 else {"flat", "element", "row"})


@pytest.mark.parametrize("every", [slow(1), 5])
def test_whole_models_on_the_plan_are_the_reference(every: int) -> None:
    """Fusion, aliases, library calls and the arena together: tiny models of the corpus."""
    found: dict[str, tuple[Graph, CudaExecutionPlan, dict[str, int], dict[str, np.ndarray]]] = {}
    refused = []
    for path in sorted((ROOT / "corpus" / "tiny").glob("*.json"))[::every]:
        graph = load(path)
        sizes, feeds = feeds_of(graph)
        try:
            found[path.stem] = graph, plan(graph, sizes), sizes, feeds
        except Unsupported as error:
            refused.append((path.stem, "DequantizeLinear" in str(error)))
    assert refused == ([("quantised", True)] if every == 1 else [])
    library = compiled([k for _, made, _, _ in found.values() for k in made.kernels], optimise=0)
    for name, (graph, made, sizes, feeds) in found.items():
        assert len(made.steps) <= len(graph.nodes), name
        session = CudaGraphSession(graph, HostDriver(library), sizes)
        first, again = session.run(feeds), session.run(feeds)
        assert_close(first, run(graph, feeds), name)
        assert all(np.array_equal(first[n], again[n]) for n in first), name


def test_what_is_loaded_ahead_of_conditions_is_as_long_as_the_output() -> None:
    """A shorter operand of a Concat, loaded whatever the index is, was read past its end."""
    builder = GraphBuilder("joined")
    x, y, z = (builder.input(n, "float32", (rows, 64)) for n, rows in (("x", 64), ("y", 16), ("z", 80)))
    builder.output(builder.op("Concat", x, y, axis=0) + z, "out")
    graph = builder.build()
    (kernel,) = plan(graph).kernels
    packed = {kernel.operands[i] for i in range(3) if f"(p{i} + base)" in kernel.source}
    assert packed == {"z"}
    feeds = {v.name: np.random.default_rng(3).standard_normal(v.type.shape).astype(np.float32) for v in graph.inputs}
    assert_close(CudaGraphSession(graph, HostDriver()).run(feeds), run(graph, feeds), "joined")


@pytest.mark.parametrize(("side", "form"), [(56, "row"), (28, "row"), (7, "row"), (5, "element")])
def test_an_image_is_averaged_by_a_block(side: int, form: str) -> None:
    """240 images of 28×28 took 63 µs on an H200, a thread each; 144 of 56×56, a block each, took 4."""
    builder = GraphBuilder("averaged")
    x = builder.input("x", "float32", (1, 6, side, side))
    builder.output(builder.op("GlobalAveragePool", x), "out")
    graph = builder.build()
    assert [k.form for k in plan(graph).kernels] == [form]
    feeds = {"x": np.random.default_rng(3).standard_normal((1, 6, side, side)).astype(np.float32)}
    assert_close(CudaGraphSession(graph, HostDriver()).run(feeds), run(graph, feeds), "averaged")


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_goes_where_it_is_fast(name: str) -> None:
    """To the library, which takes its bias only where no kernel follows, or into a kernel with what reads it."""
    graph, expected = convolution(name), CONVOLUTIONS[name][-1]
    steps = plan(graph).steps
    assert (sum(isinstance(s, Call) for s in steps), sum(isinstance(s, KernelLaunch) for s in steps)) == expected
    _, feeds = feeds_of(graph)
    assert_close(CudaGraphSession(graph, HostDriver()).run(feeds), run(graph, feeds), name)


def test_a_gemms_bias_may_have_any_name() -> None:
    """One called "beta" was multiplied by itself."""
    builder = GraphBuilder("gemm")
    x = builder.input("x", "float32", (4, 8))
    y = builder.op("Gemm", x, builder.weight("w", (8, 16)), builder.weight("beta", (16,)), beta=0.5)
    builder.output(y, "y")
    graph = builder.build()
    _, feeds = feeds_of(graph)
    assert_close(CudaGraphSession(graph, HostDriver()).run(feeds), run(graph, feeds), "gemm")


def seeds_example() -> Graph:
    """``(x + y) · z + x``: three kernels that move 9 arrays, or one that moves 4."""
    builder = GraphBuilder("seeds")
    x, y, z = (builder.input(n, "float32", (64, 256)) for n in "xyz")
    builder.output((x + y) * z + x, "out")
    return builder.build()


def test_a_chain_of_elementwise_operators_is_one_kernel() -> None:
    graph = seeds_example()
    apart, together = plan(graph, fuse=False), plan(graph)
    moved = [sum(len(s.reads) + 1 for s in p.steps) for p in (apart, together)]
    assert [len(apart.steps), len(together.steps)] == [3, 1]
    assert moved == [9, 4]  # arrays of one size: 3 additions and products on 9, then on 4
    assert together.arena == 0
    assert apart.arena > 0
    kernel = together.kernels[0]
    assert kernel.form == "flat"
    assert "Pack<float, 4>" in kernel.source


def test_what_a_sum_of_many_reads_again_and_again_is_stored() -> None:
    builder = GraphBuilder("upsampled")
    x = builder.input("x", "float32", (1, 64, 8, 8))
    weight = builder.shape_only("w", (64, 32, 2, 2))
    builder.output(builder.op("ConvTranspose", builder.op("Relu", x), weight, strides=(2, 2)), "out")
    assert len(plan(builder.build()).steps) == 2


def test_what_a_row_is_normalised_by_is_read_once_a_row() -> None:
    """A residual sum goes into the normalisation that reads it, and into the next sum: nothing of it is stored."""
    builder = GraphBuilder("residual")
    x, y, z = (builder.input(n, "float32", (4, 32, 64)) for n in "xyz")
    total = x + y
    scale = builder.shape_only("scale", (64,))
    builder.output(builder.op("LayerNormalization", total, scale, axis=-1) + z, "out")
    builder.output(total * z, "next")
    found = plan(builder.build())
    assert [k.form for k in found.kernels] == ["row", "flat"]
    assert len(found.steps) == 2


def test_softmax_of_large_numbers_does_not_overflow() -> None:
    builder = GraphBuilder("softmax")
    x = builder.input("x", "float32", (3, 64))
    builder.output(builder.op("Softmax", x, axis=-1), "out")
    graph = builder.build()
    feeds = {"x": np.linspace(-3e4, 3e4, 192, dtype=np.float32).reshape(3, 64)}
    made = plan(graph)
    assert [k.form for k in made.kernels] == ["row"]
    found = CudaGraphSession(graph, HostDriver()).run(feeds)["out"]
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, run(graph, feeds)["out"], atol=1e-6)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(1, 5000)), max_size=12))
def test_the_arena_never_overlaps_what_is_alive_at_once(spans: list[tuple[int, int, int]]) -> None:
    types = {str(i): TensorType(DType.INT8, (size,)) for i, (_, _, size) in enumerate(spans)}
    lifetimes = {str(i): (min(a, b), max(a, b)) for i, (a, b, _) in enumerate(spans)}
    offsets, size = arena(lifetimes, types)
    for one, (first, last) in lifetimes.items():
        bytes_ = types[one].nbytes or 0
        assert offsets[one] % 256 == 0
        assert offsets[one] + bytes_ <= size
        for other, (start, end) in lifetimes.items():
            if one < other and start <= last and first <= end:
                apart = offsets[one] + bytes_ <= offsets[other]
                assert apart or offsets[other] + (types[other].nbytes or 0) <= offsets[one]
    peak = max(sum(types[n].nbytes or 0 for n, (a, b) in lifetimes.items() if a <= t <= b) for t in range(13))
    assert size >= peak


def test_an_index_from_data_cannot_leave_its_table() -> None:
    """A hostile index reads some element instead of foreign memory: nothing can stop a kernel half-way."""
    gathers = [s for s in operator_samples() if s.op == "Gather"]
    assert gathers
    assert all("inside(" in k.source for s in gathers for k in plan(s.graph()).kernels)
