"""Seeded random weights: a model at its true size in a file of a few kilobytes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from math import prod

import numpy as np

from superopt.ir.types import DType

__all__ = ["DISTRIBUTIONS", "RandomData"]

DISTRIBUTIONS = ("normal", "uniform")


@dataclass(frozen=True)
class RandomData:
    """Elements ``offset + scale * r`` with r drawn by NumPy's PCG64 from ``seed``; satisfies ``WeightData``.

    r is standard normal ("normal") or uniform over [0, 1) ("uniform"). Real types draw in float32 (float64 for
    float64) and are rounded; integer types take the floor, so ``scale=10`` with "uniform" gives 0 … 9 above the offset.

    >>> RandomData(seed=3, shape=(2,), distribution="uniform", scale=10.0, dtype=DType.INT64).numpy().shape
    (2,)
    """

    seed: int
    scale: float = 1.0
    offset: float = 0.0
    distribution: str = "normal"
    dtype: DType = DType.FLOAT32
    shape: tuple[int, ...] = ()

    @property
    def digest(self) -> str:
        """A name for the contents, from the parameters alone: nothing is drawn."""
        return hashlib.sha256(repr(("random", *self._key())).encode()).hexdigest()

    def _key(self) -> tuple[object, ...]:
        return self.seed, float(self.scale), float(self.offset), self.distribution, self.dtype.value, self.shape

    def numpy(self) -> np.ndarray:
        """The elements, drawn anew on every call so that a large model need not stay in memory."""
        draw = np.float64 if self.dtype == DType.FLOAT64 else np.float32
        generator = np.random.Generator(np.random.PCG64(self.seed))
        count = prod(self.shape)
        if self.distribution == "normal":
            values = generator.standard_normal(count, dtype=draw)
        else:
            values = generator.random(count, dtype=draw)
        values *= draw(self.scale)
        values += draw(self.offset)
        if self.dtype.is_integer:
            np.floor(values, out=values)
        return values.astype(self.dtype.numpy, copy=False).reshape(self.shape)
