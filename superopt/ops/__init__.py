"""The operators superopt understands: one record each."""

from __future__ import annotations

from superopt.ops import (
    elementwise,
    encoding,
    generators,
    integer_products,
    linear,
    normalisation,
    quantisation,
    resize,
    selection,
    shape,
    window,
)  # fmt: skip
from superopt.ops.record import Operator, Registry

__all__ = ["REGISTRY", "Operator", "Registry", "moves_or_reduces"]

REGISTRY = Registry()
_MODULES = (
    elementwise, encoding, generators, integer_products, linear, normalisation, quantisation, resize, selection, shape,
    window,
)  # fmt: skip
for _module in _MODULES:
    for _operator in _module.OPERATORS:
        REGISTRY.add(_operator)

_MOVING_OR_REDUCING = frozenset({"pooling", "reduce", "selection", "shape", "slicing"})


def moves_or_reduces(op: str) -> bool:
    """Whether an operator chooses, moves, pools or sums elements, or writes a constant to do so: by its family."""
    return op == "ConstantOfShape" or (op in REGISTRY and REGISTRY[op].family in _MOVING_OR_REDUCING)
