"""The operators superopt understands: one record each."""

from __future__ import annotations

from superopt.ops import (
    activation,
    attention,
    conv,
    elementwise,
    generators,
    linear,
    normalisation,
    pooling,
    reduce,
    resize,
    selection,
    shape,
    slicing,
)  # fmt: skip
from superopt.ops.record import Operator, Registry

__all__ = ["REGISTRY", "Operator", "Registry"]

REGISTRY = Registry()
for _family in (
    activation, attention, conv, elementwise, generators, linear, normalisation, pooling, reduce, resize,
    selection, shape, slicing,
):  # fmt: skip
    for _operator in _family.OPERATORS:
        REGISTRY.add(_operator)
