"""What is known of the slices of an array: numbers, and which are equal."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from zlib import crc32

import numpy as np

__all__ = ["Slices", "known_slices", "mixed", "of_text", "slices_of"]

_SAMPLE = 32  # elements of a slice by which slices are told apart before all of them are looked at


@dataclass(frozen=True, eq=False)
class Slices:
    """What is known of each slice along an axis.

    Attributes:
        number: float64[n], the one value of all elements; NaN where there is none that is known.
        exact: bool[n], whether that number has no rounding error.
        identity: uint64[n], equal for equal slices.
        finite: whether all elements are finite where the inputs are.
    """

    number: np.ndarray
    exact: np.ndarray
    identity: np.ndarray
    finite: bool = True

    @property
    def tells(self) -> bool:
        """Whether some slice is constant, or two are equal."""
        return bool(np.isfinite(self.number).any()) or len(set(self.identity.tolist())) < self.identity.size


def mixed(*parts: np.ndarray | int) -> np.ndarray:
    """A hash of 64 bits of arrays that broadcast (splitmix64's finaliser after each)."""
    found = np.asarray(0x9E3779B97F4A7C15, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for part in parts:
            found = (found ^ np.asarray(part, dtype=np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
            found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            found = found ^ (found >> np.uint64(31))
    return found


def _sampled(rows: np.ndarray) -> np.ndarray:
    """float64[n, m]: some elements of each row, at the same places. The others, which may be many, are not read."""
    inner = rows.shape[1:]
    every = np.arange(0, prod(inner), max(1, prod(inner) // _SAMPLE))
    places: tuple[np.ndarray, ...] = np.unravel_index(every, inner) if inner else ()
    chosen: tuple[slice | np.ndarray, ...] = (slice(None), *places)
    return rows[chosen].reshape(len(rows), -1).astype(np.float64) + 0.0  # −0 is 0


def _repeated(sample: np.ndarray) -> np.ndarray:
    """bool[n], whether a row equals another one; now and then where it does not."""
    bits = sample.view(np.uint64)
    keys = ((bits ^ (bits >> np.uint64(32))) * (mixed(np.arange(sample.shape[1])) | np.uint64(1))).sum(axis=1)
    order = np.argsort(keys)
    alike = keys[order[1:]] == keys[order[:-1]]
    found = np.zeros(len(sample), dtype=bool)
    found[order[1:][alike]] = found[order[:-1][alike]] = True
    return found


def of_text(text: str) -> int:
    """A hash of 64 bits."""
    data = text.encode()
    return crc32(data) << 32 | crc32(data[::-1] + b"\1")


def known_slices(number: np.ndarray, exact: np.ndarray, identity: np.ndarray, finite: bool) -> Slices:
    """Slices whose constant ones are known by their number."""
    number = np.where(np.isfinite(number), number, np.nan) + 0.0
    by_number = mixed(np.ascontiguousarray(number).view(np.uint64), 1)
    return Slices(number, exact, np.where(np.isfinite(number), by_number, mixed(identity, 2)), finite)


def slices_of(rows: np.ndarray, name: str) -> Slices | None:
    """What is known of slices with these elements; ``None`` where that is nothing.

    Args:
        rows: a slice each along the first axis; of more than two axes, perhaps.
        name: of the value, by which slices are told from those of others.
    """
    sample = _sampled(rows)
    if sample.shape[1] == 1:
        chosen, number = [], np.where(np.isfinite(sample[:, 0]), sample[:, 0], np.nan)
    else:
        uniform = (sample == sample[:, :1]).all(axis=1)
        chosen, number = np.flatnonzero(uniform | _repeated(sample)).tolist(), np.full(len(rows), np.nan)
        if not chosen:
            return None
    identity = mixed(np.arange(len(rows), dtype=np.uint64), of_text(name))
    for position in chosen:
        row = rows[position].reshape(-1)
        row = row.astype(np.float32 if row.dtype.itemsize < 4 else row.dtype) + np.zeros((), np.float32)
        if uniform[position] and bool((row == row[0]).all()):
            number[position] = float(row[0])
        elif bool(np.isfinite(row).all()):
            data = row.tobytes()
            identity[position] = mixed(crc32(data), crc32(data[::-1]), len(data))
    made = known_slices(number, np.ones(len(rows), dtype=bool), identity, True)
    return made if made.tells else None
