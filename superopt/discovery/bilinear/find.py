"""Finding algorithms for tiles: the tensor from the meaning, every finder, an exact check, a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from superopt.discovery.bilinear.flips import by_flips
from superopt.discovery.bilinear.nesting import halves, nested
from superopt.discovery.bilinear.parts import by_parts
from superopt.discovery.bilinear.points import Found, by_merit, by_points, by_span
from superopt.discovery.bilinear.tensors import tensor_of
from superopt.ir.errors import UsageError
from superopt.rules.bilinear import Algorithm, Tile, complex_tile, conv_tile, matmul_tile
from superopt.verifier.exact.bilinear import check_algorithm

__all__ = ["TILES", "Sought", "find", "log_of", "tile_named"]

TILES = (
    "complex", "conv:2:3", "conv:3:3", "conv:4:3", "conv:6:3", "conv:2:5", "conv:4:5", "conv:2:7",
    "conv:2:3:2", "conv:3:3:2", "conv:4:3:2", "conv:2:4:2", "conv:4:4:2", "conv:2:5:2", "conv:4:5:2",
    "matmul:2:2:2", "matmul:2:2:3", "matmul:2:3:3", "matmul:3:3:3", "matmul:4:4:4",
)  # fmt: skip
_SMALL = 6  # elements of data and weights together, up to which all small vectors are tried


@dataclass(frozen=True)
class Sought:
    """What was found for a tile, and what it took.

    Attributes:
        products: that the meaning itself has: the number of its tensor's coefficients.
        algorithm: the best of the least rank, checked; ``None`` where nothing has fewer products than the meaning.
        alternatives: how many others of that rank were met.
        coefficients: that the check compared.
        work: sets of points or vectors tried, and flips made, by finder.
        seconds: of this process's CPU time.
    """

    tile: Tile
    products: int
    algorithm: Algorithm | None
    alternatives: int
    coefficients: int
    work: dict[str, int]
    seconds: float


def tile_named(name: str) -> Tile:
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


def find(tile: Tile, *, seed: int = 0, steps: int = 3_000_000, walks: int = 4) -> Sought:
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
    finders: dict[str, Callable[[], Found]] = {
        "points": lambda: by_points(tile, tensor), "parts": lambda: by_parts(tile, tensor)
    }  # fmt: skip
    if sum(tensor.shape[:2]) <= _SMALL:
        finders["span"] = lambda: by_span(tile, tensor)
    found: list[Algorithm] = []
    work: dict[str, int] = {}
    for name, finder in finders.items():
        _take(name, finder(), found, work)
    for pair in halves(tile) if not found else ():
        needed = {t.name: t for t in pair}
        parts = {name: find(t, seed=seed, steps=steps, walks=walks) for name, t in needed.items()}
        for part in parts.values():
            work.update({n: work.get(n, 0) + w for n, w in part.work.items()})
        outer, inner = (parts[t.name].algorithm for t in pair)
        if outer is not None and inner is not None:
            found.append(nested(tile, outer, inner))
    if not found:  # neither polynomials nor small: the walks, which take longest
        _take("flips", by_flips(tile, tensor, seed=seed, steps=steps, walks=walks), found, work)
    rank = min((a.rank for a in found), default=products)
    ordered = by_merit([a for a in found if a.rank == rank]) if rank < products else ()
    best = replace(ordered[0], origin={**ordered[0].origin, "work": sum(work.values())}) if ordered else None
    compared = check_algorithm(best) if best is not None else 0
    seconds = time.process_time() - start
    return Sought(tile, products, best, max(0, len(ordered) - 1), compared, work, seconds)


def _take(name: str, made: Found, found: list[Algorithm], work: dict[str, int]) -> None:
    found += made.algorithms
    work[name] = made.work


def log_of(sought: Sequence[Sought]) -> list[str]:
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
