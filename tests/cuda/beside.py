"""What tests of kernels on the processor and on a GPU share: samples of operators, inputs, and how close is close."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from superopt.ir.graph import Graph
from superopt.ir.poly import symbols, value_at
from superopt.ir.types import TensorType

__all__ = ["assert_close", "feeds_of", "operator_samples"]


def operator_samples() -> list[Any]:
    """The samples of every operator that the laws over the registry use."""
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
    return [s for family in families for s in family]


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
