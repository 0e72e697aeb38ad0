"""Where an operator has no derivative, read from the functions in its meaning."""

from __future__ import annotations

__all__ = ["kinks_of"]

from superopt.ops.record import Operator


def kinks_of(operator: Operator) -> tuple[str, ...]:
    return ()
