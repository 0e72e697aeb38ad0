"""The operators superopt understands: one record each."""

from __future__ import annotations

from superopt.ops import (
    concat_slice_gather,
    constants_and_shapes,
    convolution_and_pooling,
    elementwise,
    integer_products,
    matmul_and_attention,
    one_hot,
    quantisation,
    reductions_and_normalisation,
    reshape_and_transpose,
    resize,
)  # fmt: skip
from superopt.ops.operator_definition import Operator, OperatorRegistry

__all__ = ["REGISTRY", "Operator", "OperatorRegistry", "moves_or_reduces"]

REGISTRY = OperatorRegistry()
_MODULES = (
    elementwise,
    one_hot,
    constants_and_shapes,
    integer_products,
    matmul_and_attention,
    reductions_and_normalisation,
    quantisation,
    resize,
    concat_slice_gather,
    reshape_and_transpose,
    convolution_and_pooling,
)
for _module in _MODULES:
    for _operator in _module.OPERATORS:
        REGISTRY.add(_operator)

_MOVING_OR_REDUCING = frozenset({"pooling", "reduce", "selection", "shape", "slicing"})


def moves_or_reduces(op: str) -> bool:
    """Whether an operator chooses, moves, pools or sums elements, or writes a constant to do so: by its family."""
    return op == "ConstantOfShape" or (op in REGISTRY and REGISTRY[op].family in _MOVING_OR_REDUCING)
