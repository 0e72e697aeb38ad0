"""What a record's meaning says of rounding is what happens: exact is exact, smooth is smooth, moved is the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.ops.rounding_effects import RoundingEffect
from superopt.ops.shape_inference import CanonicalNode, infer
from superopt.runtime.reference import evaluate_application

STEP = 1e-13  # relative, and at 0 absolute: a thousand times float64's own error
SMOOTH = 1e-3  # most that a smooth result changes by it: MeanVarianceNormalization of equal elements divides by 10⁻⁹


def known(sample: Any) -> tuple[CanonicalNode, list[np.ndarray | None], list[TensorType | None]]:
    graph = sample.graph()
    (found,) = infer(graph).nodes
    assert isinstance(found, CanonicalNode)
    arrays = [None if a is None else sample.arrays[int(a[1:])] for a in found.args]
    kinds = [None if a is None else TensorType(DType.of(a.dtype), a.shape) for a in arrays]
    return found, arrays, kinds


def test_what_is_exact_needs_no_rounding(sample: Any) -> None:
    """In float64 the result is a number that the element type holds."""
    found, arrays, kinds = known(sample)
    if not found.operator.rounding(kinds, found.attributes).exact:
        return
    _, types = found.operator.apply(kinds, found.attributes)
    results = evaluate_application(found.operator, found.attributes, arrays, kinds, cast=False)
    for result, kind in zip(results, types, strict=True):
        np.testing.assert_array_equal(result.astype(kind.dtype.numpy).astype(result.dtype), result)


def test_what_does_not_jump_changes_little_for_a_small_change(sample: Any) -> None:
    """Also at whole and half numbers and where operands are equal, which is where operators jump."""
    found, arrays, kinds = known(sample)
    how = found.operator.rounding(kinds, found.attributes)
    if how.jumps or how.narrows:
        return
    rng = np.random.default_rng(5)
    for grid in (1.0, 0.5, 0.1):
        near = [a if a is None or a.dtype.kind != "f" else np.round(a / grid) * grid for a in arrays]
        moved = [
            a
            if a is None or a.dtype.kind != "f"
            else a + STEP * np.maximum(np.abs(a), 1) * rng.choice([-1, 1], a.shape)
            for a in (None if a is None else a.astype(np.float64) if a.dtype.kind == "f" else a for a in near)
        ]
        before, after = (
            evaluate_application(found.operator, found.attributes, values, kinds, cast=False)
            for values in (near, moved)
        )
        for one, other in zip(before, after, strict=True):
            with np.errstate(all="ignore"):
                finite = np.isfinite(one.astype(float)) & np.isfinite(other.astype(float))
                change = np.abs(one.astype(float) - other.astype(float))[finite]
            assert (change <= SMOOTH * (1 + np.abs(one.astype(float)[finite]))).all()


def test_what_moves_is_exact(sample: Any) -> None:
    found, _, kinds = known(sample)
    how = found.operator.rounding(kinds, found.attributes)
    assert not found.operator.moves(kinds, found.attributes) or not (how.jumps or how.narrows)


def f(*shape: int) -> TensorType:
    return TensorType(DType.FLOAT32, shape)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [("Floor", {}), ("Ceil", {}), ("Round", {}), ("Sign", {}), ("Less", {}), ("Greater", {}), ("Equal", {}),
     ("LessOrEqual", {}), ("GreaterOrEqual", {}), ("Mod", {"fmod": 1}), ("Shrink", {"bias": 0.5, "lambd": 0.5}),
     ("ThresholdedRelu", {"alpha": 1.0}), ("Cast", {"to": "bool"}), ("Cast", {"to": "int64"})],
)  # fmt: skip
def test_these_jump(op: str, attributes: Any) -> None:
    operator = REGISTRY[op]
    assert operator.rounding([f(4)] * len(operator.inputs), attributes).jumps


@pytest.mark.parametrize(
    ("source", "target", "narrows", "exact"),
    [("float32", "float16", True, False), ("float32", "bfloat16", True, False), ("float16", "bfloat16", True, False),
     ("float64", "float32", True, False), ("float32", "int32", True, False), ("float16", "float32", False, True),
     ("bfloat16", "float32", False, True), ("int8", "float16", False, True), ("int64", "float32", False, False),
     ("bool", "float16", False, True), ("uint8", "int32", False, True)],
)  # fmt: skip
def test_casts(source: str, target: str, narrows: bool, exact: bool) -> None:
    found = REGISTRY["Cast"].rounding([TensorType(DType(source), (4,))], {"to": target})
    assert (found.narrows, found.exact) == (narrows, exact)


def test_integers_have_no_rounding() -> None:
    whole = TensorType(DType.INT64, (4,))
    for op in ("Add", "Sub", "Mul", "Div", "Max", "Less", "Equal"):
        assert REGISTRY[op].rounding([whole, whole], {}) == RoundingEffect(True, False)
