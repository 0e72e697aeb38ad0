"""The graphs that algorithms are written as compute what the operator does, and the identities hold for all sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from sampling import slow

from superopt import formats
from superopt.discovery.bilinear.find import rule_of
from superopt.ir.graph import Graph, Node, Value
from superopt.ir.types import DType, TensorType
from superopt.passes.fast_algorithms.sites import NodeBuilder
from superopt.passes.fast_algorithms.strassen_matmul import StrassenMatMul, write_matmul
from superopt.passes.fast_algorithms.winograd_convolution import (
    ConvolutionAxis,
    ConvolutionWeights,
    WinogradConvolution,
    write_conv,
)
from superopt.rules.bilinear import algorithms
from superopt.runtime import onnx_runtime
from superopt.verifier.prover.prover import prove
from superopt.verifier.verdict import ProvedVerdict


def graph_of(image: tuple[int, ...], kind: DType, write: Callable[[NodeBuilder], None]) -> Graph:
    """A graph from x to y that ``write`` appends the nodes of."""
    empty = Graph("form", (Value("x", TensorType(kind, image)),), (Value("y", None),), (), (), {"": 21})
    writer = NodeBuilder(empty, "form")
    write(writer)
    return replace(empty, weights=tuple(writer.weights), nodes=tuple(writer.nodes)).checked()


def kernel(w: np.ndarray, b: np.ndarray | None) -> ConvolutionWeights:
    """The fixed operands of a convolution."""
    return ConvolutionWeights(
        ("w", "b"), w.shape[0], w.shape[1], w.ndim == 3, w.dtype, lambda: w, None if b is None else lambda: b
    )


def run(graph: Graph, x: np.ndarray) -> np.ndarray:
    return onnx_runtime.run(onnx_runtime.make_session(formats.to_onnx_bytes(graph), threads=1), {"x": x})["y"]


def direct(
    x: np.ndarray, w: np.ndarray, b: np.ndarray | None, pads: list[int], strides: Sequence[int] = (1, 1),
    apart: Sequence[int] = (1, 1),
) -> np.ndarray:  # fmt: skip
    """A convolution in float64, tap by tap; ``apart``: places from a tap to the next."""
    half = len(pads) // 2
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *zip(pads[:half], pads[half:], strict=True)])
    spans = [d * (k - 1) + 1 for k, d in zip(w.shape[2:], apart, strict=False)]
    sizes = [(n - k) // s + 1 for n, k, s in zip(x.shape[2:], spans, strides, strict=False)]
    out = np.zeros((len(x), len(w), *sizes))
    for at in np.ndindex(*w.shape[2:]):
        places = zip(at, sizes, strides, apart, strict=False)
        window = x[(slice(None), slice(None), *(slice(d * a, d * a + s * n, s) for a, n, s, d in places))]
        out += np.moveaxis(np.tensordot(w[(slice(None), slice(None), *at)].astype(np.float64), window, (1, 1)), 0, 1)
    return out if b is None else out + b.reshape(1, -1, *[1] * half)


IMAGES = [
    # image, outputs, algorithms of both axes, pads, bias
    ((1, 5, 8, 8), 4, ("conv:4:3", "conv:4:3"), [1, 1, 1, 1], True),
    ((2, 3, 9, 7), 6, ("conv:4:3", "conv:2:3"), [1, 0, 0, 2], True),
    ((1, 4, 21, 17), 3, ("conv:2:3", "conv:3:3"), [1, 1, 1, 1], True),
    ((3, 2, 19, 30), 5, ("conv:6:3", "conv:4:3"), [0, 1, 2, 0], False),
    ((1, 3, 12, 11), 2, ("conv:2:5", "conv:2:3"), [2, 1, 2, 1], True),
    ((1, 3, 13, 11), 2, (None, "conv:4:3"), [0, 1, 0, 1], True),
    ((2, 3, 13, 11), 2, ("conv:4:3", None), [1, 0, 1, 0], False),
]


@pytest.mark.parametrize(("image", "out", "names", "pads", "biased"), IMAGES)
def test_a_convolution_by_tiles_is_the_convolution(
    image: tuple[int, ...], out: int, names: tuple[str | None, ...], pads: list[int], biased: bool
) -> None:
    rng = np.random.default_rng(0)
    axes = [
        ConvolutionAxis(size, before, after, None if name is None else algorithms()[name])
        for size, before, after, name in zip(image[2:], pads[:2], pads[2:], names, strict=True)
    ]
    form = WinogradConvolution(*axes)
    x = rng.standard_normal(image)
    w = rng.standard_normal((out, image[1], axes[0].taps, axes[1].taps))
    b = rng.standard_normal(out) if biased else None
    wanted = direct(x, w, b, pads)
    for kind, most in ((np.float64, 1e-12), (np.float32, 2e-5)):
        bias = None if b is None else b.astype(kind)
        graph = graph_of(
            image,
            DType.of(np.dtype(kind)),
            lambda to, k=kind, c=bias: write_conv(to, form, "x", image[0], kernel(w.astype(k), c), "y"),
        )
        made = run(graph, x.astype(kind))
        assert made.shape == wanted.shape
        assert np.abs(made - wanted).max() <= most * np.abs(wanted).max()


STRIDED = [
    # image, algorithms of both axes, pads, dilations
    ((1, 3, 15, 14), ("conv:4:3:2", "conv:3:3:2"), [1, 1, 1, 1], (1, 1)),
    ((2, 3, 16, 13), ("conv:2:3:2", "conv:4:3"), [0, 1, 1, 0], (1, 1)),
    ((1, 2, 18, 17), ("conv:4:4:2", "conv:2:4:2"), [1, 1, 1, 1], (1, 1)),
    ((1, 2, 19, 20), ("conv:4:5:2", "conv:2:5:2"), [2, 2, 2, 2], (1, 1)),
    ((1, 3, 14, 11), ("conv:4:3", "conv:2:3"), [2, 3, 2, 3], (2, 3)),
    ((2, 3, 9, 21), ("conv:2:3", "conv:4:5"), [1, 4, 1, 4], (1, 2)),
    ((1, 2, 12, 30), (None, "conv:4:3"), [0, 8, 0, 8], (1, 8)),
    ((1, 2, 9, 12), ("conv:2:3:2", "conv:4:3"), [1, 2, 1, 2], (1, 2)),
]


@pytest.mark.parametrize(("image", "names", "pads", "apart"), STRIDED)
def test_strides_and_taps_that_are_apart(
    image: tuple[int, ...], names: tuple[str | None, ...], pads: list[int], apart: tuple[int, int]
) -> None:
    rng = np.random.default_rng(3)
    axes = [
        ConvolutionAxis(size, before, after, None if name is None else algorithms()[name], d)
        for size, before, after, name, d in zip(image[2:], pads[:2], pads[2:], names, apart, strict=True)
    ]
    x, b = rng.standard_normal(image), rng.standard_normal(5)
    w = rng.standard_normal((5, image[1], axes[0].taps, axes[1].taps))
    wanted = direct(x, w, b, pads, [axis.stride for axis in axes], apart)
    assert tuple(axis.outputs for axis in axes) == wanted.shape[2:]
    form = WinogradConvolution(*axes)
    graph = graph_of(image, DType.FLOAT64, lambda to: write_conv(to, form, "x", image[0], kernel(w, b), "y"))
    made = run(graph, x)
    assert made.shape == wanted.shape
    assert np.abs(made - wanted).max() <= 1e-12 * np.abs(wanted).max()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("taps", "stride", "apart"), [(3, 1, 1), (5, 2, 1), (2, 1, 3), (4, 3, 2)])
def test_one_axis_may_be_direct(turned: bool, taps: int, stride: int, apart: int) -> None:
    rng = np.random.default_rng(4)
    axes = [
        ConvolutionAxis(17, 1, 2, None, apart, (taps, stride)),
        ConvolutionAxis(14, 1, 0, algorithms()["conv:4:3"], 2),
    ]
    pads, steps, apartness = [1, 1, 2, 0], (stride, 1), (apart, 2)
    x, w, b = rng.standard_normal((2, 3, 17, 14)), rng.standard_normal((5, 3, taps, 3)), rng.standard_normal(5)
    if turned:
        axes, pads, steps, apartness = axes[::-1], [1, 1, 0, 2], steps[::-1], apartness[::-1]
        x, w = x.swapaxes(2, 3), w.swapaxes(2, 3)
    form = WinogradConvolution(*axes)
    assert (form.products, form.merged) == (6, taps)
    graph = graph_of(x.shape, DType.FLOAT64, lambda to: write_conv(to, form, "x", 2, kernel(w, b), "y"))
    wanted = direct(x, w, b, pads, steps, apartness)
    made = run(graph, x)
    assert made.shape == wanted.shape
    assert np.abs(made - wanted).max() <= 1e-12 * np.abs(wanted).max()


def test_a_convolution_of_a_signal() -> None:
    rng = np.random.default_rng(1)
    x, w, b = rng.standard_normal((2, 3, 23)), rng.standard_normal((4, 3, 3)), rng.standard_normal(4)
    form = WinogradConvolution(ConvolutionAxis(1, 0, 0, None), ConvolutionAxis(23, 1, 1, algorithms()["conv:4:3"]))
    graph = graph_of(x.shape, DType.FLOAT64, lambda to: write_conv(to, form, "x", 2, kernel(w, b), "y"))
    wanted = direct(x, w, b, [1, 1])
    assert np.abs(run(graph, x) - wanted).max() <= 1e-12 * np.abs(wanted).max()


@pytest.mark.parametrize("name", ["matmul:2:2:2", "matmul:2:2:3", "matmul:3:3:3"])
@pytest.mark.parametrize("sizes", [(12, 12, 12), (7, 11, 5), (6, 12, 13), (1, 1, 1)])
def test_a_product_in_blocks_is_the_product(name: str, sizes: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal(sizes[:2]), rng.standard_normal(sizes[1:])
    form = StrassenMatMul(*sizes, algorithms()[name])
    graph = graph_of(x.shape, DType.FLOAT64, lambda to: write_matmul(to, form, "x", "w", w.dtype, lambda: w, "y"))
    assert np.abs(run(graph, x) - x @ w).max() <= 1e-12 * max(1.0, np.abs(x @ w).max())


def test_fewer_multiplications_are_what_runs() -> None:
    form = WinogradConvolution(*[ConvolutionAxis(28, 1, 1, algorithms()["conv:4:3"])] * 2)
    graph = graph_of(
        (1, 8, 28, 28),
        DType.FLOAT32,
        lambda to: write_conv(to, form, "x", 1, kernel(np.ones((8, 8, 3, 3), "f4"), None), "y"),
    )
    products = [n for n in graph.nodes if n.op == "MatMul" and graph.weight.get(n.inputs[1])]
    assert (len(products), form.products, form.tiles) == (36, 36, 49)
    assert form.products * form.tiles * 4 == 28 * 28 * 9


@pytest.mark.parametrize(
    ("name", "spatial"),
    [
        ("conv:2:3", 1), ("conv:2:3", 2), slow("conv:4:3", 1), slow("conv:2:5", 1), slow("conv:2:7", 1),
        ("conv:2:3:2", 2), ("matmul:2:2:2", 1),
    ],
)  # fmt: skip
def test_the_identity_is_proved_for_all_sizes(name: str, spatial: int) -> None:
    rule = rule_of(algorithms()[name], spatial=spatial)
    assert rule is not None
    assert isinstance(prove(rule, time_limit=60), ProvedVerdict)


def test_a_false_identity_is_not_proved() -> None:
    right = algorithms()["conv:2:3"]
    wrong = replace(right, outputs=(right.outputs[0], tuple(-v for v in right.outputs[1])))
    rule = rule_of(wrong)
    assert rule is not None
    assert not isinstance(prove(rule, time_limit=60), ProvedVerdict)


def test_tiles_that_say_nothing_of_all_sizes() -> None:
    assert rule_of(algorithms()["complex"]) is None


def test_names_are_new() -> None:
    taken = Node("n", "Relu", ("x",), ("form/MatMul",))
    kind = TensorType(DType.FLOAT32, (1,))
    graph = Graph("g", (Value("x", kind),), (Value("form/MatMul", kind),), (), (taken,), {"": 21})
    assert NodeBuilder(graph, "form").op("MatMul", "x", "x") == "form/MatMul_1"
