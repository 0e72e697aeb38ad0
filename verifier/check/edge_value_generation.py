"""Values of inputs: reals around targets, ties, one magnitude, integers around a mark, NaN and infinities.

Integers also take the values at which arithmetic wraps around: the ends of their type, and of the narrower types to
which they are cast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import ml_dtypes
import numpy as np

from superopt.ir.graph import Graph, Node, OpaqueAttribute
from superopt.ir.types import DType
from superopt.verifier.check.input_generation import domain_of
from superopt.verifier.check.tolerance import pieces

__all__ = [
    "Fill",
    "among",
    "around",
    "as_drawn",
    "booleans",
    "closeness",
    "divides",
    "ends",
    "exponents",
    "handles_special",
    "in_parts",
    "near_integers",
    "next_number",
    "power_at",
    "scale",
    "special",
    "spread",
    "tied",
    "underflows",
]

_OFFSET, _SPREAD = 1000.0, 1e-4  # of data that lie close together, away from 0
_SHARE = 0.25  # of elements that are NaN or infinite

Fill = Callable[[str, DType, np.ndarray, np.random.Generator], np.ndarray]


def in_parts(array: np.ndarray, make: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """An array of independent elements, computed part by part."""
    flat = array.reshape(-1)
    new_array = np.empty_like(flat)
    for part in pieces(flat.size):
        new_array[part] = make(flat[part]).astype(array.dtype)
    return new_array.reshape(array.shape)


def around(targets: Sequence[float], dtype: DType, ordinary: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Reals at, beside and around the targets, among ordinary ones."""
    chosen = rng.choice(np.asarray(targets), ordinary.shape)
    kind = rng.integers(0, 8, ordinary.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        exact = chosen.astype(dtype.numpy)
        up, down = (next_number(exact, dtype, way) for way in (1, -1))
        wide = chosen + rng.standard_normal(ordinary.shape)
        near = chosen * (1 + 1e-3 * rng.standard_normal(ordinary.shape))
        array = np.select(
            [kind == 0, kind == 1, kind == 2, kind == 3, kind == 4],
            [exact.astype(float), up.astype(float), down.astype(float), wide, near],
            np.where(kind == 5, 2 * chosen, ordinary.astype(float)),
        )
        out = array.astype(dtype.numpy)
    return np.asarray(np.where(np.isfinite(out.astype(float)), out, ordinary))


def near_integers(
    graph: Graph, name: str, dtype: DType, array: np.ndarray, targets: Sequence[float], rng: np.random.Generator
) -> np.ndarray:
    """Integers over the domain that their uses allow: any row of a table, or around the targets and beyond."""
    domain = domain_of(graph, name)
    if domain.small:
        return array
    least, most = ends(dtype)
    if domain.stop is not None:
        return rng.integers(0, max(domain.stop, 1), array.shape)
    marks = np.asarray([t for t in targets if abs(t) < 2**53] or [0.0], dtype=np.float64)
    reach = 4 * float(np.abs(marks).max()) + 1000
    low = 0 if least == 0 else -reach
    spread = rng.integers(int(max(low, least)), int(min(reach, most)), array.shape)
    near = np.rint(rng.choice(marks, array.shape)) + rng.integers(-1, 2, array.shape)
    return np.asarray(np.clip(np.where(rng.random(array.shape) < 0.5, near, spread), least, most))


def tied(name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Numbers among which ties are likely: which of equal ones is chosen shows. Some rows are negative throughout.

    Along each axis the greatest or the least of a line, in turn, is at both of its ends.
    """
    if not dtype.is_float:
        return array
    lowered = 2 * rng.integers(0, 2, (*array.shape[:-1], 1)[: array.ndim])
    tied = np.asarray(rng.integers(-1, 2, array.shape) - lowered)
    for axis in range(tied.ndim if tied.size else 0):
        moved = np.moveaxis(tied, axis, -1)
        lines = moved.reshape(-1, moved.shape[-1]).copy()
        lines[::2, [0, -1]] = lines[::2].max(axis=1, keepdims=True)
        if len(lines) > 1:
            lines[1::2, [0, -1]] = lines[1::2].min(axis=1, keepdims=True)
        elif lines.size > 3:
            lines[:, [1, -2]] = lines.min(axis=1, keepdims=True)
        tied = np.moveaxis(lines.reshape(moved.shape), -1, axis)
    return tied


def closeness(dtype: DType) -> tuple[float, float]:
    """For numbers close together: their distance from 0 in a type, and their distances as a share of that."""
    limits = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    return min(_OFFSET, float(limits.max) ** 0.25), max(_SPREAD, 4 * float(limits.eps))


def as_drawn(name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return array


def among(values: Sequence[float]) -> Fill:
    """These values among ordinary reals: a quarter of the elements, and at least one."""

    def fill(name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if not dtype.is_float:
            return array
        chosen = rng.random(array.shape) < _SHARE
        chosen.reshape(-1)[int(rng.integers(array.size))] = True
        return np.where(chosen, rng.choice(np.asarray(values), array.shape), array.astype(np.float64))

    return fill


def booleans(truth: bool) -> Fill:
    return lambda name, dtype, array, rng: np.full(array.shape, truth) if dtype is DType.BOOL else array


def scale(plan: Mapping[str, int], zero: str = "") -> Fill:
    def fill(name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if name not in plan:
            return array
        if name == zero:
            return np.zeros_like(array)

        def one_magnitude(part: np.ndarray) -> np.ndarray:
            sign = rng.choice([-1.0, 1.0], part.shape)
            return np.asarray(np.ldexp(sign * rng.uniform(1, 1.99, part.shape), plan[name]))

        return in_parts(array, one_magnitude)

    return fill


def underflows(plan: Mapping[str, int], least: int) -> bool:
    """Whether products of two of these magnitudes are near the smallest number, ``2**least``."""
    small = sorted(plan.values())[:2]
    return min(2 * small[0], sum(small)) < 0.8 * least


def exponents(dtype: DType) -> tuple[int, int]:
    """Powers of two of the smallest and the largest numbers: -145 and 127 in float32, -1070 and 1023 in float64."""
    limits = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    return int(np.log2(float(limits.smallest_subnormal))) + 4, int(np.frexp(float(limits.max))[1]) - 1


def power_at(ends: tuple[int, int], share: float) -> int:
    return int(share * ends[1]) if share > 0 else int(-share * ends[0])


def next_number(array: np.ndarray, dtype: DType, way: int) -> np.ndarray:
    """The neighbouring numbers above or below; beside 0 the square of epsilon, whose products do not underflow."""
    beside = way * float(ml_dtypes.finfo(dtype.numpy).eps) ** 2  # type: ignore[no-untyped-call]
    with np.errstate(over="ignore"):  # infinity follows the largest number
        following = np.nextafter(array, np.asarray(np.inf * way, dtype.numpy))
    return np.asarray(np.where(array == 0, np.asarray(beside, dtype.numpy), following))


_WIDTHS = (8, 16, 32)  # bits of narrower types


def ends(dtype: DType) -> tuple[int, int]:
    """The least and the greatest integer of a type; NumPy's own knows none of four bits."""
    limits = ml_dtypes.iinfo(dtype.numpy)  # type: ignore[no-untyped-call]
    return int(limits.min), int(limits.max)


def special(dtype: DType, *, safe: bool) -> list[int]:
    """Both ends of a type and their neighbours, 0, ±1, and where narrower types wrap around.

    Args:
        dtype: the type.
        safe: without the least and -1, whose quotient ends the process that divides them.
    """
    low, high = ends(dtype)
    found = [low, high, -1, 0, 1, low + 1, high - 1, low + 2, high // 2 + 1, -(high // 2) - 1]
    for bits in (w for w in _WIDTHS if w < dtype.bits):
        whole, half = 1 << bits, 1 << (bits - 1)
        found += [whole, half, whole - 1, half - 1, whole + 1, -whole, -half, -half - 1, 3 * half]
    kept = dict.fromkeys(n for n in found if low <= n <= high and not (safe and n in (low, -1) and low < 0))
    return list(kept)


def spread(numbers: list[int], array: np.ndarray, turn: int, rng: np.random.Generator) -> np.ndarray:
    """These numbers over an array, in random order; in a small array those of this turn, or random ones if it is -1."""
    held = np.asarray(numbers, dtype=object)
    if array.size < held.size and turn >= 0:
        held = np.resize(np.roll(held, -turn * array.size), array.size)
    else:
        held = rng.permutation(np.resize(rng.permutation(held), array.size))
    return held.reshape(array.shape).astype(array.dtype)


def divides(graph: Graph) -> bool:
    """Whether some node divides, itself or in a subgraph: dividing the least integer by -1 ends the process."""
    marks = (b"Div", b"Mod")
    return any(
        node.op in ("Div", "Mod")
        or any(isinstance(a, OpaqueAttribute) and any(m in a.payload for m in marks) for a in node.attributes.values())
        for node in graph.nodes
    )


_TELL = ("IsNaN", "IsInf")
_COMPARE = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
_FEW = 16  # elements of a constant that is looked at


def handles_special(graph: Graph) -> bool:
    """Whether some node, itself or in a subgraph, tests for NaN or infinity: by name, by comparing a value with itself,
    or with a constant that is one."""
    marks = [m.encode() for m in _TELL]
    return any(
        node.op in _TELL
        or (node.op in _COMPARE and _asks(graph, node))
        or any(isinstance(a, OpaqueAttribute) and any(m in a.payload for m in marks) for a in node.attributes.values())
        for node in graph.nodes
    )


def _asks(graph: Graph, node: Node) -> bool:
    return len(set(node.inputs)) == 1 or any(_holds_special(graph, name) for name in node.inputs)


def _holds_special(graph: Graph, name: str) -> bool:
    weight = graph.constants.get(name)
    few = weight is not None and isinstance(weight.type.elements, int) and weight.type.elements <= _FEW
    if weight is None or not few or weight.data is None or not weight.type.dtype.is_float:
        return False
    return not np.isfinite(weight.data.numpy().astype(np.float64)).all()
