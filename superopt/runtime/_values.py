"""What evaluating a subexpression gives, and the shape of a task that does it."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from superopt.runtime._named import Named
from superopt.runtime._program import Domain

__all__ = ["Request", "Scaled", "Task", "Value"]


@dataclass(slots=True, eq=False)
class Scaled:
    """``mantissa · exp(exponent)``; a mantissa of ``None`` is 1. ``number`` is the product, once computed."""

    mantissa: Named | None
    exponent: Named
    number: Named | None = None


Value = Named | Scaled
Request = tuple[int, Domain]  # the number of a step, and the ranges of index variables to evaluate it over
Task = Generator[Request, Value, Value]  # yields requests, is sent their values, returns its own
