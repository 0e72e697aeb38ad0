"""The operators superopt understands: one record each."""

from __future__ import annotations

from superopt.ops import elementwise, generators, linear, normalisation, quantisation, resize, selection, shape, window
from superopt.ops.record import Operator, Registry

__all__ = ["REGISTRY", "Operator", "Registry"]

REGISTRY = Registry()
for _module in (elementwise, generators, linear, normalisation, quantisation, resize, selection, shape, window):
    for _operator in _module.OPERATORS:
        REGISTRY.add(_operator)
