"""Algorithms for tiles: found, checked, and stated as rules of the grammar.

Every finder tries the tensor of the tile's meaning, the best algorithm is checked exactly, and a log keeps the result.

A tensor may be a direct sum: data and weights that meet in no product with the rest are a smaller problem of their own.
A convolution of stride 2 multiplies the even places of its image by the even taps alone, and the odd ones by the odd
taps: two convolutions of stride 1. The tensor's coefficients say so. Where parts share outputs, fewer products may do
for all of them together (a product of matrices is such a sum along its inner size).

An algorithm is stated about operators of every size, as a rule of the library's grammar, for the prover. An algorithm
for a tile of one axis becomes a rule about a convolution of any number of channels, of an image of any number of tiles;
with a second axis, of any size and any number of taps, to which another rule (or this one) applies again: so nested
algorithms for images follow from those for one axis, and partly nested ones too. An algorithm for a block product
becomes a rule about matrices of blocks of any sizes. Fractions are divisions by whole numbers, because the text of a
rule has no other exact ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import networkx as nx
import numpy as np

from superopt.discovery.bilinear.finders import LeastRankAlgorithms, by_flips, by_merit, by_points, by_span
from superopt.discovery.bilinear.tensors import halves, nested, normal_form, tensor_of, transposed
from superopt.ir.errors import UsageError
from superopt.rules.bilinear import BilinearAlgorithm, BilinearTile, Matrix, complex_tile, conv_tile, matmul_tile
from superopt.rules.grammar import parse_rule
from superopt.rules.rule import Rule
from superopt.runtime.comprehension_evaluation import Array
from superopt.verifier.exact.bilinear import check_algorithm

__all__ = ["TILES", "FoundAlgorithm", "find", "log_of", "rule_of", "tile_named"]

TILES = (
    "complex", "conv:2:3", "conv:3:3", "conv:4:3", "conv:6:3", "conv:2:5", "conv:4:5", "conv:2:7",
    "conv:2:3:2", "conv:3:3:2", "conv:4:3:2", "conv:2:4:2", "conv:4:4:2", "conv:2:5:2", "conv:4:5:2",
    "matmul:2:2:2", "matmul:2:2:3", "matmul:2:3:3", "matmul:3:3:3", "matmul:4:4:4",
)  # fmt: skip
_SMALL = 6  # elements of data and weights together, up to which all small vectors are tried


@dataclass(frozen=True)
class FoundAlgorithm:
    """What was found for a tile, and what it took.

    Attributes:
        products: that the meaning itself has: the number of its tensor's coefficients.
        algorithm: the best of the least rank, checked; ``None`` where nothing has fewer products than the meaning.
        alternatives: how many others of that rank were met.
        coefficients: that the check compared.
        work: sets of points or vectors tried, and flips made, by finder.
        seconds: of this process's CPU time.
    """

    tile: BilinearTile
    products: int
    algorithm: BilinearAlgorithm | None
    alternatives: int
    coefficients: int
    work: dict[str, int]
    seconds: float


def tile_named(name: str) -> BilinearTile:
    """``complex``, ``matmul:M:K:N``, ``conv:OUTPUTS:TAPS`` or ``conv:OUTPUTS:TAPS:STRIDES``, sizes of several axes with
    an ``x`` between them.

    Raises:
        UsageError: it is none of these.
    """
    kind, *numbers = name.split(":")
    try:
        sizes = [[int(n) for n in part.split("x")] for part in numbers]
    except ValueError:
        sizes = []
    if all(n > 0 for part in sizes for n in part):
        if kind == "complex" and not numbers:
            return complex_tile()
        if kind == "matmul" and [len(s) for s in sizes] == [1, 1, 1]:
            return matmul_tile(*(s[0] for s in sizes))
        if kind == "conv" and len(sizes) in (2, 3) and len({len(s) for s in sizes}) == 1 and len(sizes[0]) <= 3:
            return conv_tile(*sizes)
    raise UsageError(f"{name!r} is no tile", hint="complex, matmul:2:2:2, conv:4:3, conv:4x4:3x3, conv:4:3:2")


def find(tile: BilinearTile, *, seed: int = 0, steps: int = 3_000_000, walks: int = 4) -> FoundAlgorithm:
    """The algorithm with the fewest products that the finders know of, exactly checked.

    Args:
        tile: what is to be computed.
        seed: of the walks on the flip graph. Equal seeds, steps and walks give equal results.
        steps: flips of each walk.
        walks: on the flip graph.

    Raises:
        NotEquivalent: what a finder found does not pass the check: a fault of ours.
    """
    start = time.process_time()
    tensor = tensor_of(tile)
    products = sum(value != 0 for value in tensor.flat)
    finders: dict[str, Callable[[], LeastRankAlgorithms]] = {
        "points": lambda: by_points(tile, tensor), "parts": lambda: by_parts(tile, tensor)
    }  # fmt: skip
    if sum(tensor.shape[:2]) <= _SMALL:
        finders["span"] = lambda: by_span(tile, tensor)
    algorithms: list[BilinearAlgorithm] = []
    work: dict[str, int] = {}
    for name, finder in finders.items():
        _take(name, finder(), algorithms, work)
    for pair in halves(tile) if not algorithms else ():
        needed = {t.name: t for t in pair}
        parts = {name: find(t, seed=seed, steps=steps, walks=walks) for name, t in needed.items()}
        for part in parts.values():
            work.update({n: work.get(n, 0) + w for n, w in part.work.items()})
        outer, inner = (parts[t.name].algorithm for t in pair)
        if outer is not None and inner is not None:
            algorithms.append(nested(tile, outer, inner))
    if not algorithms:  # neither polynomials nor small: the walks, which take longest
        _take("flips", by_flips(tile, tensor, seed=seed, steps=steps, walks=walks), algorithms, work)
    rank = min((a.rank for a in algorithms), default=products)
    ordered = by_merit([a for a in algorithms if a.rank == rank]) if rank < products else ()
    best = replace(ordered[0], origin={**ordered[0].origin, "work": sum(work.values())}) if ordered else None
    compared = check_algorithm(best) if best is not None else 0
    seconds = time.process_time() - start
    return FoundAlgorithm(tile, products, best, max(0, len(ordered) - 1), compared, work, seconds)


def _take(
    name: str, normal_form: LeastRankAlgorithms, algorithms: list[BilinearAlgorithm], work: dict[str, int]
) -> None:
    algorithms += normal_form.algorithms
    work[name] = normal_form.work


def log_of(sought: Sequence[FoundAlgorithm]) -> list[str]:
    """A Markdown table of what was found."""
    lines = [
        "| tile | products of the meaning | found | operations on data, weights, outputs | error growth: rms, bound "
        "| how | tried | CPU s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for s in sought:
        a = s.algorithm
        tried = ", ".join(f"{n} {w:,}" for n, w in s.work.items() if w)
        if a is None:
            lines.append(f"| {s.tile.name} | {s.products} | none with fewer | | | | {tried} | {s.seconds:.1f} |")
            continue
        how = f"points {', '.join(a.origin['points'])}" if "points" in a.origin else str(a.origin["finder"])
        if a.origin["finder"] == "flips":
            how = f"flips: first met in walk {a.origin['walk']}, after {a.origin['steps']:,} steps"
        if "of" in a.origin:
            how = f"{a.origin['of'][0]} of {a.origin['of'][1]}"
        lines.append(
            f"| {s.tile.name} | {s.products} | **{a.rank}** | {', '.join(map(str, a.operations))} "
            f"| {a.growth:.2f}, {a.bound:.2f} | {how} | {tried} | {s.seconds:.1f} |"
        )
    return lines


def rule_of(algorithm: BilinearAlgorithm, *, spatial: int = 1) -> Rule | None:
    """The rule for all sizes; ``None`` for a tile that it would not generalise.

    Args:
        algorithm: for a convolution along one axis, or a product of matrices.
        spatial: axes of the image (1 or 2) that a convolution is stated for; the algorithm is along the first.
    """
    tile = algorithm.tile
    if tile.name.startswith("conv:") and len(tile.shapes["x"]) == 3:
        return _conv(algorithm, spatial)
    return _matmul(algorithm) if tile.roots == ("MatMul(x, w)",) else None


def _conv(algorithm: BilinearAlgorithm, spatial: int) -> Rule:
    outputs, taps = len(algorithm.outputs), len(algorithm.weights[0])
    stride = algorithm.tile.stride
    step = stride * outputs  # from a tile to the next
    more = (", l", ", k") if spatial == 2 else ("", "")
    forall = {"x": f"f[n, c, {step}*t + {taps - stride}{more[0]}]", "w": f"f[o, c, {taps}{more[1]}]"}
    data = [
        f"Slice(x, starts=[{i}], ends=[{step}*t - {step - 1 - i}], axes=[2], steps=[{step}])"
        for i in range(step - stride + taps)
    ]
    weights = [f"Slice(w, starts=[{j}], ends=[{j + 1}], axes=[2], steps=[1])" for j in range(taps)]
    parts = [f"Unsqueeze({z}, axes=[3])" for z in _outputs(algorithm, data, weights, "Conv")]
    shape = f"[n, o, {outputs}*t{', l - k + 1' if spatial == 2 else ''}]"
    whole = f"Reshape(Concat({', '.join(parts)}, axis=3), shape={shape})" if outputs > 1 else parts[0]
    attributes = f", strides=[{stride}{', 1' if spatial == 2 else ''}]" if stride > 1 else ""
    return _rule(algorithm.tile, forall, f"Conv(x, w{attributes})", whole)


def _matmul(algorithm: BilinearAlgorithm) -> Rule:
    (p, q), (_, s) = algorithm.tile.shapes.values()
    forall = {"x": f"f[{p}*m, {q}*k]", "w": f"f[{q}*k, {s}*n]"}
    data = [_block("x", i, "m", j, "k") for i in range(p) for j in range(q)]
    weights = [_block("w", i, "k", j, "n") for i in range(q) for j in range(s)]
    normal_form = _outputs(algorithm, data, weights, "MatMul")
    lines = [_joined(normal_form[i * s : (i + 1) * s], 1) for i in range(p)]
    return _rule(algorithm.tile, forall, "MatMul(x, w)", _joined(lines, 0))


def _rule(tile: BilinearTile, forall: dict[str, str], left: str, right: str) -> Rule:
    name = tile.name.replace(":", "-")
    row = {"id": f"bilinear-{name}", "forall": forall, "lhs": [left], "rhs": [right], "origin": "discovered (bilinear)"}
    return parse_rule(row, where=tile.name, family="bilinear")


def _block(name: str, row: int, rows: str, column: int, columns: str) -> str:
    starts, ends = f"[{row}*{rows}, {column}*{columns}]", f"[{row + 1}*{rows}, {column + 1}*{columns}]"
    return f"Slice({name}, starts={starts}, ends={ends}, axes=[0, 1], steps=[1, 1])"


def _joined(parts: Sequence[str], axis: int) -> str:
    return parts[0] if len(parts) == 1 else f"Concat({', '.join(parts)}, axis={axis})"


def _outputs(algorithm: BilinearAlgorithm, data: Sequence[str], weights: Sequence[str], product: str) -> list[str]:
    products = [
        f"{product}({_sum(a, data)}, {_sum(b, weights)})"
        for a, b in zip(algorithm.data, algorithm.weights, strict=True)
    ]
    return [_sum(row, products) for row in algorithm.outputs]


def _sum(row: Sequence[Fraction], terms: Sequence[str]) -> str:
    """A sum of multiples, positive ones first."""
    some = sorted(((c, t) for c, t in zip(row, terms, strict=True) if c), key=lambda part: part[0] < 0)
    total = ""
    for factor, term in some:
        part = _multiple(factor if not total else abs(factor), term)
        total = f"{'Add' if factor > 0 else 'Sub'}({total}, {part})" if total else part
    return total


def _multiple(factor: Fraction, term: str) -> str:
    times = term if factor.numerator == 1 else f"Mul({term}, {float(factor.numerator)!r})"
    return times if factor.denominator == 1 else f"Div({times}, {float(factor.denominator)!r})"


_Places = tuple[list[int], list[int]]  # elements of the data and of the weights


def by_parts(tile: BilinearTile, tensor: Array) -> LeastRankAlgorithms:
    """The best algorithm of each part by points, or a product for each pair that meets where points need as many.

    Nothing is found where that takes as many products as the tensor has, as for one that does not fall apart.
    """
    work = 0
    rows: tuple[list[Sequence[Fraction]], ...] = ([], [], [])
    points: list[str] = []
    parts = _parts(tensor)
    for places in parts if len(parts) > 1 else ():
        part = tensor[np.ix_(*places)]
        read = np.flatnonzero((part != 0).any(axis=(0, 1)))
        factors, how = _direct(part), "directly"
        if _least(part) < len(factors[0]):
            candidates = by_points(tile, part[:, :, read])
            work += candidates.work
            best = next((a for a in candidates.algorithms if a.rank < len(factors[0])), None)
            if best is not None:
                outputs = _scattered(transposed(best.outputs), read.tolist(), tensor.shape[2])
                factors, how = (best.data, best.weights, outputs), " ".join(best.origin["points"])
        for side, size in enumerate(tensor.shape[:2]):
            rows[side].extend(_scattered(factors[side], places[side], size))
        rows[2].extend(factors[2])
        points.append(how)
    if not rows[2] or len(rows[2]) >= len(_direct(tensor)[0]):
        return LeastRankAlgorithms((), work)
    data, weights, outputs = (tuple(map(tuple, side)) for side in rows)
    origin: dict[str, object] = {"finder": "parts", "points": points}
    return LeastRankAlgorithms((normal_form(tile, data, weights, transposed(outputs), origin),), work)


def _parts(tensor: Array) -> list[_Places]:
    """The elements of data and of weights that meet in products, directly or by way of others; the first ones first."""
    met: nx.Graph[tuple[str, int]] = nx.Graph()
    meets = np.argwhere((tensor != 0).any(axis=2))
    met.add_edges_from((("data", int(i)), ("weights", int(j))) for i, j in meets)
    found = [
        (sorted(n for side, n in part if side == "data"), sorted(n for side, n in part if side == "weights"))
        for part in nx.connected_components(met)
    ]
    return sorted(found)


def _least(part: Array) -> int:
    """Products that no algorithm can do without: the largest rank of the tensor as a matrix."""
    values = part.astype(np.float64)
    sides = (np.moveaxis(values, mode, 0).reshape(part.shape[mode], -1) for mode in range(3))
    return max(int(np.linalg.matrix_rank(side)) for side in sides)


def _direct(part: Array) -> tuple[Matrix, Matrix, Matrix]:
    """A product for each pair of elements that meet; outputs [R, outputs]."""
    meets = [(int(i), int(j)) for i, j in np.argwhere((part != 0).any(axis=2))]
    data, weights = (
        tuple(tuple(Fraction(n == pair[side]) for n in range(part.shape[side])) for pair in meets) for side in (0, 1)
    )
    return data, weights, tuple(tuple(Fraction(v) for v in part[i, j]) for i, j in meets)


def _scattered(rows: Matrix, positions: Sequence[int], size: int) -> Matrix:
    """Rows whose elements stand at these places of longer ones."""
    found = []
    for row in rows:
        wide = [Fraction(0)] * size
        for position, value in zip(positions, row, strict=True):
            wide[position] = value
        found.append(tuple(wide))
    return tuple(found)
