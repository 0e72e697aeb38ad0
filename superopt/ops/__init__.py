"""The operators superopt understands: one record each."""

from __future__ import annotations

from superopt.ops import elementwise, linear
from superopt.ops.record import Operator, Registry

__all__ = ["REGISTRY", "Operator", "Registry"]

REGISTRY = Registry()
for _family in (elementwise, linear):
    for _operator in _family.OPERATORS:
        REGISTRY.add(_operator)
