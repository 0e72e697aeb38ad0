"""The two sides of a rule compared with the exact result at points: errors, allowances, deliberate rounding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from superopt.verifier.floats.evaluation import FloatFormat

__all__ = ["FACTOR", "PointErrorAnalysis", "analyse_errors", "plain"]

Array = np.ndarray[Any, Any]
FACTOR = 4.0  # allowances: two sides of as many roundings are within 1 or 2 of each other; cancellation gives thousands


@dataclass(frozen=True)
class PointErrorAnalysis:
    """One result at points. ``error`` of the target (infinite where it is lost), ``allowance`` of the source, what a
    unit of rounding of each variable does (``units`` [variable, point]), and whether the source rounds on purpose."""

    error: Array
    allowance: Array
    units: Array
    deliberate: Array
    source: Array
    target: Array
    exact: Array

    def with_actual_error(self) -> PointErrorAnalysis:
        """The same, with the source's actual error allowed too: kernels of Sigmoid and Tanh have errors of their
        own."""
        with np.errstate(all="ignore"):
            own = np.abs(self.source.astype(np.longdouble) - self.exact).astype(np.float64)
        return replace(self, allowance=self.allowance + np.where(np.isfinite(own) & ~self.deliberate, own, 0.0))

    def point_data(self, at: int) -> dict[str, object]:
        """A point and its results, as JSON data."""
        kind = (
            "the source rounds on purpose" if self.deliberate[at]
            else "nan" if np.isnan(self.target[at]) else "overflow" if np.isinf(self.target[at])
            else "underflow" if self.target[at] == 0 else "accuracy"
        )  # fmt: skip
        values = {"source": self.source[at], "target": self.target[at], "exact": self.exact[at]}
        return {"what": kind, **{k: plain(v) for k, v in values.items()}}

    def score(self) -> tuple[Array, Array]:
        """Errors in allowances, finite; and in allowances with all variables rounded."""
        with np.errstate(all="ignore"):
            eased = self.allowance + self.units.sum(axis=0)
            both = [np.nan_to_num(self.error / a, nan=0.0, posinf=1e30) for a in (self.allowance, eased)]
        return both[0], both[1]


def plain(value: float) -> float | str:
    """A number as JSON takes it."""
    number = float(value)
    return number if np.isfinite(number) else str(number)


def analyse_errors(
    source: Array,
    target: Array,
    exact: Array,
    bound: Array,
    sens: Array,
    form: FloatFormat,
    roundings: float,
    lost: Array,
) -> PointErrorAnalysis:
    """Compare the two sides with the exact result at points.

    Args:
        source: results of the side that is there, as kernels round them.
        target: results of the other side.
        exact: precise results.
        bound: of the source's own rounding errors.
        sens: Σ |∂result/∂v · v| of every variable: [variable, point].
        form: the type.
        roundings: how many the source makes, and two.
        lost: where the source passes through denormals.
    """
    with np.errstate(all="ignore"):
        size = np.abs(exact).astype(np.float64)
        allowance = bound + size * form.unit + form.tiny
        off = np.abs(target.astype(np.longdouble) - exact).astype(np.float64)
        own = np.abs(source.astype(np.longdouble) - exact).astype(np.float64)
        # an infinity is right where the exact result rounds to it, and where the source's own rounding may get there
        short = np.maximum(form.largest * (1.0 + form.unit / 2) - size, 0.0)
        reached = np.isinf(target) & (np.sign(target) == np.sign(exact)) & (short <= FACTOR * allowance)
        off = np.where(np.isfinite(target), off, np.where(reached, short, np.inf))
        known_array = np.isfinite(exact) & np.isfinite(bound)
        fine = known_array & np.isfinite(source)
        # a source that leaves the range: the target may be anything but nan. Where the exact result is infinite
        # (a division by 0) reals have nothing to say, and the target may be anything
        off = np.where(fine, off, np.where(known_array & np.isinf(source) & np.isnan(target), np.inf, 0.0))
        units = np.nan_to_num(sens, nan=0.0, posinf=1e300) * form.unit
        explained = roundings * (size * form.unit + units.sum(axis=0) + form.tiny)
        deliberate = fine & ~lost & (own > FACTOR * explained) & (off < FACTOR * allowance)
    return PointErrorAnalysis(off, np.where(fine, allowance, 1.0), units, deliberate, source, target, exact)
