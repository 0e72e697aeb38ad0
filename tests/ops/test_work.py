"""Work, read from the meaning, against the formulas of the literature."""

from __future__ import annotations

from typing import Any

import pytest

from superopt.ir.size_polynomial import sym
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.ops.flops_and_bytes import flops

N, K = sym("N"), sym("K")
WINDOW = {"strides": (2, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}


def f(*shape: Any) -> TensorType:
    return TensorType(DType.FLOAT32, shape)


@pytest.mark.parametrize(
    ("op", "types", "attributes", "expected"),
    [
        ("MatMul", [f(N, K), f(K, 7)], {}, 14 * N * K),
        ("Conv", [f(N, 8, 14, 14), f(6, 4, 3, 3)], {**WINDOW, "group": 2}, 2 * N * 6 * 7 * 14 * 4 * 9),
        ("Conv", [f(1, 8, 14, 14), f(6, 8, 1, 1), f(6)], {**WINDOW, "pads": (0,) * 4, "group": 1}, 6 * 7 * 14 * 17),
        ("Relu", [f(N, 5)], {}, 5 * N),
        ("Sub", [f(N, 5), f(5)], {}, 5 * N),
        ("Reshape", [f(N, 6)], {"shape": (N, 2, 3)}, 0),
        ("Transpose", [f(N, 6)], {"perm": (1, 0)}, 0),
        ("ReduceSum", [f(N, 6)], {"axes": (1,), "keepdims": 0}, 6 * N),
        ("Softmax", [f(N, 10)], {"axis": 1}, N * (10 + 10 + 10 + 1 + 10)),
    ],
)
def test_flops(op: str, types: list[TensorType], attributes: dict[str, Any], expected: Any) -> None:
    assert flops(REGISTRY[op], types, attributes) == expected
