"""What tests of kernels on the processor and on a GPU share: samples of operators, inputs, and how close is close."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from superopt.frontend import GraphBuilder
from superopt.ir.graph import Graph
from superopt.ir.size_polynomial import symbols, value_at
from superopt.ir.types import TensorType

__all__ = ["CONVOLUTIONS", "assert_close", "convolution", "feeds_of", "operator_samples"]

# By name: sizes of image and weight, attributes, what reads it; how many calls of a library and kernels that takes.
CONVOLUTIONS: Mapping[str, tuple[tuple[int, ...], tuple[int, ...], Mapping[str, Any], str, tuple[int, int]]] = {
    "bias taken along": ((1, 16, 9, 7), (8, 16, 3, 3), {"pads": [1, 0, 1, 2], "strides": [2, 1]}, "Relu", (1, 1)),
    "bias left to the library": ((1, 16, 9, 7), (8, 16, 3, 3), {"dilations": [2, 1]}, "", (1, 0)),
    "bias before a window": ((1, 40, 8, 8), (8, 40, 1, 1), {}, "GlobalAveragePool", (1, 1)),
    "one axis": ((2, 16, 30), (8, 16, 5), {"pads": [4, 0], "dilations": [2], "strides": [3]}, "", (1, 0)),
    "one axis, bias taken along": ((2, 16, 30), (8, 16, 5), {}, "Relu", (1, 1)),
    "few terms": ((1, 3, 9, 7), (8, 3, 3, 3), {"pads": [1, 1, 1, 1]}, "Relu", (0, 1)),
    "groups": ((1, 64, 6, 6), (64, 16, 3, 3), {"group": 4}, "Relu", (0, 1)),
    "one axis, groups": ((1, 32, 40), (32, 1, 3), {"group": 32, "pads": [2, 2], "dilations": [2]}, "", (0, 1)),
    "three axes": ((1, 8, 4, 5, 6), (4, 8, 2, 2, 2), {}, "Relu", (0, 1)),
}  # fmt: skip


def convolution(name: str) -> Graph:
    """A convolution with a bias, and what reads it."""
    image, weight, attributes, reader, _ = CONVOLUTIONS[name]
    builder = GraphBuilder("convolution")
    x = builder.input("x", "float32", image)
    weights = builder.weight("w", weight, scale=0.2), builder.weight("b", (weight[0],))
    y = builder.op("Conv", x, *weights, **attributes)
    builder.output(builder.op(reader, y) if reader else y, "y")
    return builder.build()


def operator_samples(*, reducing: bool = False) -> list[Any]:
    """The samples of every operator that the laws over the registry use, or of families that sum over elements."""
    path = Path(__file__).parents[1] / "ops" / "conftest.py"
    spec = importlib.util.spec_from_file_location("operator_samples", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["operator_samples"] = module
    spec.loader.exec_module(module)
    families: list[Iterator[Any]] = [
        module.elementwise(), module.linear(), module.images(), module.resizes(), module.shapes(),
        module.reductions(), module.normalisations(), module.generators(),
    ]  # fmt: skip
    drawn = [list(family) for family in families]  # one after the other, so that each draws the same elements
    return [s for place, family in enumerate(drawn) if place in (1, 2, 3, 5, 6) or not reducing for s in family]


def feeds_of(graph: Graph, size: int = 2) -> tuple[dict[str, int], dict[str, np.ndarray]]:
    """Sizes for the named dimensions, and random inputs (small integers: indices of embeddings, masks)."""
    generator = np.random.default_rng(5)
    kinds = {v.name: v.type for v in graph.inputs if isinstance(v.type, TensorType)}
    sizes = {n: size for t in kinds.values() for d in t.shape or () if not isinstance(d, int) for n in symbols(d)}
    feeds = {}
    for name, kind in kinds.items():
        shape = [value_at(d, sizes) for d in kind.shape or ()]
        made = generator.standard_normal(shape) if kind.dtype.is_float else generator.integers(0, 2, shape)
        feeds[name] = made.astype(kind.dtype.numpy)
    return sizes, feeds


def assert_close(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], where: object) -> None:
    for name, value in expected.items():
        got = found[name]
        half = got.dtype.itemsize == 2 and got.dtype.kind in "fV"
        tolerance = 2e-2 if half else 3e-4
        wide, value = got.astype(np.float64), np.asarray(value).astype(np.float64)
        assert wide.shape == value.shape, where
        scale = max(1.0, float(np.max(np.abs(value[np.isfinite(value)]), initial=0)))
        np.testing.assert_allclose(wide, value, rtol=tolerance, atol=tolerance * scale, err_msg=str(where))
