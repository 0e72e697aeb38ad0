"""Bilinear algorithms: what a small tile of an operator computes, with fewer products than its meaning has.

A map ``z = T(x, w)`` that is bilinear in data ``x`` and weights ``w`` is a tensor of coefficients; writing it as a sum
of ``R`` rank-one tensors is an algorithm with ``R`` products (Strassen 1969; Winograd 1980):

    z[k] = Σ_r G[k, r] · (Σ_i A[r, i] · x[i]) · (Σ_j B[r, j] · w[j])

Nobody writes ``A``, ``B`` and ``G``: :mod:`superopt.discovery.bilinear` finds them from an operator's meaning, and
:mod:`superopt.verifier.exact.bilinear`, which shares no code with it, compares them with that meaning exactly. What was
found is kept in ``algorithms.json`` beside the rules.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import combinations
from math import prod, sqrt
from pathlib import Path
from typing import Any

from superopt.ir.errors import UsageError
from superopt.ir.terms import OperatorTerm, Term
from superopt.rules.grammar import parse_rule, parse_scheme
from superopt.rules.rule import TensorVariableType

__all__ = [
    "KEPT", "BilinearAlgorithm", "Matrix", "SharedSums", "BilinearTile", "algorithms", "complex_tile", "conv_tile",
    "load_algorithms", "matmul_tile", "save_algorithms", "shared_sums",
]  # fmt: skip

Matrix = tuple[tuple[Fraction, ...], ...]
KEPT = Path(__file__).parent / "algorithms.json"
_VERSION = 1


@dataclass(frozen=True)
class BilinearTile:
    """Operators at one small size: the map that an algorithm computes.

    Attributes:
        name: how it is asked for: ``conv:4:3``, ``matmul:2:2:2``, ``complex``.
        data, weights: variables with their types, in the rules' grammar and without symbolic sizes.
        roots: terms over them; their elements, one after the other, are ``z``.
    """

    name: str
    data: Mapping[str, str]
    weights: Mapping[str, str]
    roots: tuple[str, ...]

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The sizes of every variable, data first."""
        found: dict[str, tuple[int, ...]] = {}
        for name, text in (*self.data.items(), *self.weights.items()):
            scheme = parse_scheme(text, where=self.name)
            sizes = scheme.shape if isinstance(scheme, TensorVariableType) else ()
            known = tuple(d for d in sizes if isinstance(d, int))
            if not isinstance(scheme, TensorVariableType) or scheme.dtype != "f" or len(known) != len(sizes):
                raise UsageError(f"{text} is not a float tensor of known sizes", where=f"tile {self.name!r}")
            found[name] = known
        return found

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """The roots, parsed, with the attributes that were left out."""
        row = {"forall": {**self.data, **self.weights}, "lhs": self.roots, "rhs": self.roots}
        return parse_rule(row, where=self.name).lhs

    @property
    def stride(self) -> int:
        """Of a convolution along one axis."""
        (root,) = self.terms
        strides = dict(root.attributes)["strides"] if isinstance(root, OperatorTerm) else None
        assert isinstance(strides, tuple)
        assert isinstance(strides[0], int)
        return strides[0]

    def elements(self, names: Mapping[str, str]) -> int:
        """Elements of these variables together."""
        return sum(prod(self.shapes[n]) for n in names)


def conv_tile(outputs: Sequence[int], taps: Sequence[int], strides: Sequence[int] = ()) -> BilinearTile:
    """``outputs`` neighbouring places of a convolution of one channel: F(outputs, taps) along each axis; stride 1
    unless others are given."""
    steps = strides or [1] * len(taps)
    image = ", ".join(str(s * (m - 1) + r) for m, r, s in zip(outputs, taps, steps, strict=True))
    kernel = ", ".join(map(str, taps))
    name = ":".join(("conv", *("x".join(map(str, sizes)) for sizes in (outputs, taps, strides) if sizes)))
    root = f"Conv(x, w, strides=[{', '.join(map(str, strides))}])" if strides else "Conv(x, w)"
    return BilinearTile(name, {"x": f"f[1, 1, {image}]"}, {"w": f"f[1, 1, {kernel}]"}, (root,))


def matmul_tile(rows: int, inner: int, columns: int) -> BilinearTile:
    """A product of an ``rows`` × ``inner`` matrix of data and an ``inner`` × ``columns`` one of weights."""
    kinds = f"f[{rows}, {inner}]", f"f[{inner}, {columns}]"
    return BilinearTile(f"matmul:{rows}:{inner}:{columns}", {"x": kinds[0]}, {"w": kinds[1]}, ("MatMul(x, w)",))


def complex_tile() -> BilinearTile:
    """A product of complex numbers, as models write it: real and imaginary parts of their own."""
    roots = "Sub(Mul(a, c), Mul(b, d))", "Add(Mul(a, d), Mul(b, c))"
    return BilinearTile("complex", {"a": "f[1]", "b": "f[1]"}, {"c": "f[1]", "d": "f[1]"}, roots)


@dataclass(frozen=True)
class BilinearAlgorithm:
    """A decomposition of a tile's tensor, and how it came about.

    Attributes:
        tile: what it computes.
        data, weights: ``A`` [R, data elements] and ``B`` [R, weight elements].
        outputs: ``G`` [outputs, R].
        origin: finder, seed and counted work.
    """

    tile: BilinearTile
    data: Matrix
    weights: Matrix
    outputs: Matrix
    origin: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """Products."""
        return len(self.data)

    @cached_property
    def operations(self) -> tuple[int, int, int]:
        """Additions, and multiplications by constants other than ±1, of data, weights and outputs, shared sums once."""
        return _operations(self.data), _operations(self.weights), _operations(self.outputs)

    @cached_property
    def bound(self) -> float:
        """How much larger the worst rounding error can be than the direct sum's, to first order.

        ``max_k Σ_r |G[k, r]| · ‖A[r]‖₁ · ‖B[r]‖₁ ÷ Σ_ij |T[i, j, k]|``, the ratio of the amplitudes that are added up
        (Higham 2002, §23.2.2), for elements all as large as the largest.
        """
        sums = [_sum(a) * _sum(b) for a, b in zip(self.data, self.weights, strict=True)]
        grown = (sum((abs(g) * s for g, s in zip(row, sums, strict=True)), Fraction(0)) for row in self.outputs)
        return max(float(g / max(t, 1)) for g, t in zip(grown, self._terms, strict=True))

    @cached_property
    def growth(self) -> float:
        """The same for independent random elements: root mean squares of amplitudes in the place of sums."""
        squares = [_squares(a) * _squares(b) for a, b in zip(self.data, self.weights, strict=True)]
        grown = (sum((g * g * s for g, s in zip(row, squares, strict=True)), Fraction(0)) for row in self.outputs)
        return max(sqrt(g / max(t, 1)) for g, t in zip(grown, self._terms, strict=True))

    @cached_property
    def noise(self) -> float:
        """:attr:`growth`, with every amplitude weighted by the roundings on its way: what is expected of float errors.

        A term is rounded about as often as its sums of data and of outputs have terms; weights are transformed
        beforehand, in more bits.
        """
        columns = list(zip(self.data, self.weights, strict=True))
        found = []
        for row, terms in zip(self.outputs, self._terms, strict=True):
            parts = (
                g * g * _squares(a) * _squares(b) * (_some(a) + _some(row))
                for g, (a, b) in zip(row, columns, strict=True)
            )
            found.append(sqrt(sum(parts, Fraction(0)) / max(terms, 1)))
        return max(found)

    @cached_property
    def _terms(self) -> list[int]:
        """Products that each output is the sum of, taken directly (all coefficients are ±1 in every tile here)."""
        triples: dict[tuple[int, int, int], Fraction] = {}
        columns = list(zip(*self.outputs, strict=True))
        for a, b, g in zip(self.data, self.weights, columns, strict=True):
            for i, p in enumerate(a):
                for j, q in enumerate(b) if p else ():
                    for k, s in enumerate(g) if q else ():
                        if s:
                            triples[i, j, k] = triples.get((i, j, k), Fraction(0)) + p * q * s
        found = [0] * len(self.outputs)
        for (_, _, k), value in triples.items():
            found[k] += value != 0
        return found


@dataclass(frozen=True)
class SharedSums:
    """How to compute the rows of a matrix times a vector of values, with sums that rows share computed once.

    Attributes:
        shared: values that are added to the given ones, in order: ``(i, j, c)`` is value i plus c times value j.
        rows: coefficients of values, given and added, by their numbers.
    """

    shared: tuple[tuple[int, int, Fraction], ...]
    rows: tuple[Mapping[int, Fraction], ...]


@lru_cache(maxsize=64)
def shared_sums(matrix: Matrix) -> SharedSums:
    """The most frequent pair of terms becomes a value, until no pair occurs twice (Paar 1997, for rationals)."""
    rows = [{i: c for i, c in enumerate(row) if c} for row in matrix]
    shared: list[tuple[int, int, Fraction]] = []
    while True:
        pairs = Counter((i, j, row[j] / row[i]) for row in rows for i, j in combinations(sorted(row), 2))
        chosen = min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)
        if chosen is None or pairs[chosen] < 2:
            return SharedSums(tuple(shared), tuple(rows))
        i, j, ratio = chosen
        for row in rows:
            if i in row and j in row and row[j] / row[i] == ratio:
                row[len(matrix[0]) + len(shared)] = row.pop(i)
                del row[j]
        shared.append(chosen)


def _operations(matrix: Matrix) -> int:
    plan = shared_sums(matrix)
    added = len(plan.shared) + sum(len(row) - 1 for row in plan.rows if row)
    factors = [c for _, _, c in plan.shared] + [c for row in plan.rows for c in row.values()]
    return added + sum(abs(c) != 1 for c in factors)


def _sum(row: Sequence[Fraction]) -> Fraction:
    return sum((abs(v) for v in row), Fraction(0))


def _some(row: Sequence[Fraction]) -> int:
    return sum(v != 0 for v in row)


def _squares(row: Sequence[Fraction]) -> Fraction:
    return sum((v * v for v in row), Fraction(0))


def save_algorithms(found: Sequence[BilinearAlgorithm], path: Path) -> None:
    """Write algorithms as JSON, a row of each matrix a line of text."""
    rows = [
        {
            "tile": {
                "name": a.tile.name, "data": dict(a.tile.data), "weights": dict(a.tile.weights),
                "roots": list(a.tile.roots),
            },
            "rank": a.rank, "data": _text(a.data), "weights": _text(a.weights), "outputs": _text(a.outputs),
            "origin": dict(a.origin),
        }
        for a in found
    ]  # fmt: skip
    written = {"format": "superopt.algorithms", "version": _VERSION, "algorithms": rows}
    path.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


def load_algorithms(path: Path) -> tuple[BilinearAlgorithm, ...]:
    """Algorithms of a file; they are not believed, but checked before they are used.

    Raises:
        UsageError: it is not such a file.
    """
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        if (read["format"], read["version"]) != ("superopt.algorithms", _VERSION):
            raise UsageError("it is no list of algorithms of this version", where=str(path))
        return tuple(
            BilinearAlgorithm(
                BilinearTile(t["name"], t["data"], t["weights"], tuple(t["roots"])),
                _matrix(row["data"]), _matrix(row["weights"]), _matrix(row["outputs"]), row["origin"],
            )
            for row in read["algorithms"]
            for t in (row["tile"],)
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"it cannot be read as algorithms: {error}", where=str(path)) from error


@lru_cache(maxsize=1)
def algorithms() -> Mapping[str, BilinearAlgorithm]:
    """The algorithms that are shipped, by the name of their tile."""
    return {a.tile.name: a for a in load_algorithms(KEPT)}


def _text(matrix: Matrix) -> list[str]:
    return [" ".join(map(str, row)) for row in matrix]


def _matrix(rows: Sequence[str]) -> Matrix:
    return tuple(tuple(Fraction(v) for v in row.split()) for row in rows)
