"""How far one output may be from the original's, by element: the bound of
:mod:`superopt.verifier.check.differential`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import ml_dtypes
import numpy as np

from superopt.ir.types import DType

__all__ = [
    "FACTOR",
    "JUMP",
    "MARGIN",
    "ULPS",
    "OutputComparison",
    "OutputRoundingNoise",
    "agrees_with_reals",
    "compare",
    "element_type",
    "equal",
    "excess",
    "pieces",
    "scales",
]

FACTOR = 4.0  # how much further than the original moves by its own rounding the result may be
ULPS: Mapping[DType, float] = {  # free distance, in epsilons of the element's scale: sums taken in another order
    DType.FLOAT64: 32.0, DType.FLOAT32: 16.0, DType.FLOAT16: 4.0, DType.BFLOAT16: 2.0,
}  # fmt: skip
MARGIN: Mapping[DType, float] = {  # the same where the reals judge, over the largest magnitude of the output
    DType.FLOAT64: 1024.0, DType.FLOAT32: 64.0, DType.FLOAT16: 8.0, DType.BFLOAT16: 4.0,
}  # fmt: skip
ALONE = 8.0  # that margin grows by this where the original cannot run
_NARROW = 4.0  # free distance of types that are not listed (float8), in epsilons
_SUBNORMALS = 4.0  # free distance in steps of the smallest subnormal
_NEAR = 16.0  # an element's noise is that of its row or channel where that is at most this many times its own
JUMP = 2.0**6  # a move of more free distances is a jump (Floor, quantising, a branch): the reals say nothing there
_PIECE = 1 << 16  # elements
_Part = tuple[slice, ...]  # of an array: the whole where it is empty


@dataclass(frozen=True)
class OutputComparison:
    """One output of the result compared with the original's.

    Attributes:
        absolute, relative: largest difference, and its share of the output's largest magnitude.
        baseline: largest move of the original by its own rounding, as such a share; 0 where it was not asked for.
        differs: some element is further from the original's than the free distance.
        problem: why it fails.
        place: where it fails.
        excess: the largest distance over what the farthest move of any element would allow; 0 where nothing is told.
        excused: what would be a problem, but that the original overflows there, or nearly.
    """

    absolute: float = 0.0
    relative: float = 0.0
    baseline: float = 0.0
    differs: bool = False
    problem: str | None = None
    position: tuple[int, ...] | None = None
    excess: float = 0.0
    excused: str = ""


class OutputRoundingNoise:
    """How far an output of the original moved, by element, in all disturbed runs so far.

    Args:
        old: the output, undisturbed.
        tiny: values are near the smallest numbers, where rounding is absolute: a unit of an input may be half of it,
            which explains everything, so only what moved inside counts.
    """

    def __init__(self, old: np.ndarray, *, tiny: bool = False) -> None:
        self._old, self._tiny = old, tiny
        narrow = old.dtype.itemsize <= 4 and element_type(old) is not None
        self._move_type = np.float32 if narrow else np.float64  # a move, to seven digits
        self._kinds: dict[str, np.ndarray] = {}
        self._optimised: np.ndarray | None = None
        self._reordered: np.ndarray | None = None  # the same, where it may be another order of sums
        self.broken = 0.0  # how far the runtime's optimiser moves an element, where that is no other order of sums
        self.inputs = self.inside = 0  # runs that were added

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        held = (*self._kinds.values(), *(a for a in (self._optimised, self._reordered) if a is not None))
        return sum(a.nbytes for a in held)

    @property
    def disturbed(self) -> bool:
        """Whether any run with moved inputs has been added."""
        return self.inputs > 0

    @property
    def has_optimised(self) -> bool:
        """Whether the run with the runtime's optimisations on has been added."""
        return self._optimised is not None

    def add(self, inputs: Sequence[np.ndarray], inside: Sequence[np.ndarray]) -> None:
        """More outputs: with inputs and small weights moved by a few units in the last place, and with every rounded
        intermediate moved so, if that can be run."""
        self.inputs, self.inside = self.inputs + len(inputs), self.inside + len(inside)
        for kind, runs in (("inputs", inputs), ("inside", inside)):
            for run in runs:
                same = run.shape == self._old.shape
                moved = self._moved(run) if same else np.full(self._old.shape, np.inf, self._move_type)
                known_array = self._kinds.setdefault(kind, moved)
                np.maximum(known_array, moved, out=known_array)

    def add_optimised(self, run: np.ndarray) -> None:
        """The output with the runtime's optimisations on."""
        if run.shape == self._old.shape:
            self._optimised = self._moved(run)
            dtype = element_type(self._old)
            free = np.zeros(()) if dtype is None else _free(_finite(self._old), dtype, False)
            self._reordered = np.where(self._optimised <= free, self._optimised, 0).astype(self._move_type)
            self.broken = float(np.max(self._optimised, where=self._optimised > JUMP * free, initial=0.0))

    def _moved(self, run: np.ndarray) -> np.ndarray:
        array = np.empty(self._old.shape, self._move_type)
        with np.errstate(over="ignore"):  # what is beyond the largest number explains what no number can tell
            for part in _parts(self._old.shape):
                array[part] = _distance(self._old[part], run[part])
        return array

    def of_intermediates(self) -> OutputRoundingNoise:
        """The same, of the runs with disturbed intermediates alone."""
        alone = OutputRoundingNoise(self._old)
        alone._kinds = {kind: moved for kind, moved in self._kinds.items() if kind == "inside"}
        alone._optimised, alone._reordered = self._optimised, self._reordered
        return alone

    def largest(self, optimised: bool = False) -> np.ndarray:
        """By element: the smaller of the two kinds' largest moves; or the runtime's optimiser's, where that is larger
        and within the free distance, or wherever it counts."""
        inside = self._kinds.get("inside")
        kinds = [inside] if self._tiny and inside is not None else list(self._kinds.values())
        moved: np.ndarray = np.minimum.reduce(kinds) if kinds else np.zeros(self._old.shape, self._move_type)
        known_array = self._optimised if optimised else self._reordered
        return moved if known_array is None else np.maximum(moved, known_array)


def compare(
    old: np.ndarray,
    new: np.ndarray,
    dtype: DType | None,
    moves: OutputRoundingNoise | None = None,
    *,
    mixed: bool = False,
    exact: np.ndarray | None = None,
    full: np.ndarray | None = None,
    slack: float = 0.0,
    optimised: bool = False,
) -> OutputComparison:
    """Compare an output of the result with the original's.

    Args:
        old: what the original gave in ONNX Runtime, its optimisations off.
        new: what the result gave.
        dtype: declared element type; the array's, where none is declared.
        moves: how the original moves by its own rounding; without them only the free distance is allowed.
        mixed: elements of one row differ in magnitude by design, so each is judged by itself alone.
        exact: the reference's output, for elements where the original is not finite.
        full: elements that may differ: where the original is so near to overflow that the result may overflow, or may
            not where the original did, and where the result is nearer to the reals; none by default.
        slack: share of the output's largest magnitude that is a free distance as well.
        optimised: the result ran with the runtime's optimisations on, so what they move the original by counts.
    """
    if new.shape != old.shape:
        return OutputComparison(np.inf, np.inf, differs=True, problem=f"its shape was {old.shape} and is {new.shape}")
    dtype = dtype or element_type(old)
    if dtype is None or not dtype.is_float:
        return _discrete(old, new, None if moves is None else moves.largest(optimised), full)
    near = _plainly_near(old, new, dtype)
    if near is not None:
        return OutputComparison(near[0], near[0] / near[1])
    if all(np.isfinite(x[part]).all() for part in _parts(old.shape) for x in (old, new)):
        moved = None if moves is None else moves.largest(optimised)
        return _Distances(old, new, dtype, mixed, slack).comparison(moved, full)
    first, array = old.astype(np.float64, copy=False), new.astype(np.float64, copy=False)
    wrong = _not_finite(first, array, dtype, exact, full)
    if wrong.any():
        place = _first(wrong)
        said = f"at {place} the original gives {first[place]} and the result {array[place]}"
        return OutputComparison(np.inf, np.inf, differs=True, problem=said, position=place)
    usable = np.isfinite(first) & np.isfinite(array)
    moved = None if moves is None else moves.largest(optimised)
    distances = _Distances(np.where(usable, first, 0.0), np.where(usable, array, 0.0), dtype, mixed, slack)
    return distances.comparison(moved, full)


class _Distances:
    """Two outputs of finite numbers, compared part by part, since comparing at once would copy them ten times.

    Args:
        old, new: the original's, and the result's.
        dtype: element type, by whose epsilon is measured.
        mixed, slack: see :func:`compare`.
    """

    def __init__(self, old: np.ndarray, new: np.ndarray, dtype: DType, mixed: bool, slack: float) -> None:
        self.old, self.new, self.dtype, self.mixed = old, new, dtype, mixed
        self.parts = _parts(old.shape)
        self.groups = None if mixed or old.ndim < 2 else _Groups(old, 1)
        self.scale = _top(old)
        self.slack = slack * self.scale

    def _of(self, part: _Part) -> tuple[np.ndarray, np.ndarray]:
        """Distances, and those that are free."""
        first = self.old[part].astype(np.float64)
        distance: np.ndarray = np.abs(self.new[part].astype(np.float64) - first)
        size = np.abs(first) if self.groups is None else np.maximum(np.abs(first), self.groups.least(part))
        return distance, np.maximum(_allowed(size, self.dtype), self.slack)

    def comparison(self, moved: np.ndarray | None, full: np.ndarray | None) -> OutputComparison:
        worst, beyond = 0.0, False
        for part in self.parts:
            distance, free = self._of(part)
            worst, beyond = max(worst, float(distance.max())), beyond or bool((distance > free).any())
        if not beyond:
            return OutputComparison(worst, worst / self.scale)
        base = 0.0 if moved is None else float(np.max(moved, where=np.isfinite(moved), initial=0.0))
        near = None if moved is None or self.mixed else _Groups(moved, 2)
        most = 0.0 if moved is None else float(moved.max())
        over = [one for part in self.parts for one in self._largest_excess(part, moved, near, most, full)]
        comparison = OutputComparison(worst, worst / self.scale, base / self.scale, True)
        if not over:
            return comparison
        _, _, place, said = max(over, key=lambda one: one[0])
        return replace(comparison, problem=said, position=place, excess=max(far for _, far, _, _ in over))

    def _largest_excess(
        self, part: _Part, moved: np.ndarray | None, near: _Groups | None, most: float, full: np.ndarray | None
    ) -> list[tuple[float, float, tuple[int, ...], str]]:
        """Of a part with elements that are too far: how much the worst is, and beside ``most``, where, and in words."""
        distance, free = self._of(part)
        noise = np.zeros(()) if moved is None else moved[part].astype(np.float64)
        if near is not None:
            noise = _smoothed(noise, near.least(part))
        over = (distance > free) & ~(distance <= FACTOR * noise)
        over = over if full is None else over & ~full[part]
        if not over.any():
            return []
        allowed = np.maximum(free, FACTOR * noise)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            excess = np.where(over, distance / allowed, 0.0)
            far = float(np.max(distance / np.maximum(free, FACTOR * most), where=over, initial=0.0))
        at = _first(excess)
        starts = [s.start or 0 for s in part] + [0] * (distance.ndim - len(part))
        place = tuple(a + b for a, b in zip(at, starts, strict=True))
        old, new = float(self.old[place]), float(self.new[place])
        said = (
            f"at {place} the original gives {old:.9g} and the result {new:.9g}: an error of {distance[at]:.3g} where "
            f"its own rounding explains {allowed[at]:.3g}"
        )
        return [(float(excess[at]), far, place, said)]


def _plainly_near(old: np.ndarray, new: np.ndarray, dtype: DType) -> tuple[float, float] | None:
    """The largest distance, and the largest magnitude (1 if that is 0), where all numbers are finite and no farther
    apart than their own size allows, which is the least that is free; a part at a time."""
    first, array = old.reshape(-1), new.reshape(-1)
    worst = scale = 0.0
    for part in pieces(first.size):
        a, b = (x[part].astype(np.float64) for x in (first, array))
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            return None
        distance, size = np.abs(b - a), np.abs(a)
        if np.any(distance > _allowed(size, dtype)):
            return None
        worst, scale = max(worst, float(distance.max())), max(scale, float(size.max()))
    return worst, scale or 1.0


def pieces(size: int) -> list[slice]:
    """Parts of a long array that a core's cache holds."""
    return [slice(start, start + _PIECE) for start in range(0, size, _PIECE)]


def element_type(array: np.ndarray) -> DType | None:
    """The element type of an array of reals."""
    return DType.of(array.dtype) if array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16 else None


def excess(old: np.ndarray, new: np.ndarray, dtype: DType | None) -> float:
    """The largest distance of an element in free distances; infinite if a distance is undefined."""
    if old.shape != new.shape:
        return float("inf")
    dtype = dtype or element_type(old)
    if dtype is None or not dtype.is_float:
        return 0.0 if equal(old, new) else float("inf")
    first, array = old.astype(np.float64), new.astype(np.float64)
    if not np.array_equal(np.isfinite(first), np.isfinite(array)):
        return float("inf")
    return float(np.max(_distance(first, array) / _free(first, dtype, False), initial=0.0))


def _not_finite(
    first: np.ndarray, array: np.ndarray, dtype: DType, exact: np.ndarray | None, full: np.ndarray | None
) -> np.ndarray:
    """Where NaNs and infinities are not as allowed."""
    odd = ~np.isfinite(first)
    same = (np.isnan(array) & np.isnan(first)) | (array == first)
    wrong: np.ndarray = np.asarray((odd & ~same) | (~odd & ~np.isfinite(array)))
    if not wrong.any():
        return wrong
    if exact is not None and exact.shape == first.shape:
        truth = exact.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            near = np.abs(array - truth) <= MARGIN.get(dtype, _NARROW) * _epsilon(dtype) * np.abs(truth)
            over = np.abs(truth) > float(ml_dtypes.finfo(dtype.numpy).max)  # type: ignore[no-untyped-call]
        right = np.isfinite(truth) & (near | (over & np.isinf(array) & (np.sign(array) == np.sign(truth))))
        wrong &= ~(odd & right)
    return wrong if full is None else np.asarray(wrong & ~full)


def _free(first: np.ndarray, dtype: DType, mixed: bool) -> np.ndarray:
    """The distance that needs no explanation: some epsilons of the element's scale, and of the smallest number."""
    return _allowed(scales(first, mixed), dtype)


def _allowed(scale: np.ndarray, dtype: DType) -> np.ndarray:
    """Some epsilons of a scale, and of the smallest number."""
    limits = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    least = _SUBNORMALS * float(limits.smallest_subnormal)
    with np.errstate(over="ignore"):
        free: np.ndarray = ULPS.get(dtype, _NARROW) * _epsilon(dtype) * scale + least
    return free


def _epsilon(dtype: DType) -> float:
    return float(ml_dtypes.finfo(dtype.numpy).eps)  # type: ignore[no-untyped-call]


def scales(values: np.ndarray, mixed: bool) -> np.ndarray:
    """The magnitude by which an element is measured: its own, or its neighbours' if that is larger.

    Its neighbours are those with which it shares an index along one axis (its row, its column, its channel); of these
    groups the one with the smallest root mean square counts, so that no element hides behind another's size. In a
    vector, and where magnitudes are ``mixed``, an element stands alone.
    """
    size = _size(values)
    return size if mixed or size.ndim < 2 else np.asarray(np.maximum(size, _Groups(values, 1).least(())))


class _Groups:
    """The root mean squares of the groups of so many members or more that elements share an index with."""

    def __init__(self, values: np.ndarray, least_members: int) -> None:
        parts, top = _parts(values.shape), _top(values)
        axes = [a for a, n in enumerate(values.shape) if values.size and values.size // n >= least_members]
        sums = [np.zeros([n if a == axis else 1 for a, n in enumerate(values.shape)]) for axis in axes]
        if not axes:  # all are neighbours
            axes, sums = [-1], [np.zeros((1,) * values.ndim)]
        for part in parts:
            squares = (_size(values[part]) / top) ** 2
            for axis, total in zip(axes, sums, strict=True):
                others = tuple(a for a in range(values.ndim) if a != axis)
                total[self._within(part, total)] += squares.sum(axis=others, keepdims=True)
        self.groups = [np.sqrt(total * (total.size / max(values.size, 1))) * top for total in sums]

    def least(self, part: _Part) -> np.ndarray:
        """Of each element of a part, the least of the groups that it is in; of the same rank."""
        array = self.groups[0][self._within(part, self.groups[0])]
        for group in self.groups[1:]:
            array = np.minimum(array, group[self._within(part, group)])
        return array

    @staticmethod
    def _within(part: _Part, group: np.ndarray) -> _Part:
        return part if part and group.shape[len(part) - 1] > 1 else ()


def _size(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.abs(_finite(values)))


def _finite(values: np.ndarray) -> np.ndarray:
    wide: np.ndarray = values.astype(np.float64)
    return np.asarray(np.where(np.isfinite(wide), wide, 0.0))


def _top(values: np.ndarray) -> float:
    """The largest magnitude of an array's finite numbers; 1 if that is 0."""
    return max((float(_size(values[part]).max()) for part in _parts(values.shape)), default=0.0) or 1.0


def _parts(shape: tuple[int, ...]) -> list[_Part]:
    """Indices of parts of an array along its longest axis, each of about as many elements as a cache holds."""
    if not shape or not prod(shape):
        return [()] if not shape else []
    axis = max(range(len(shape)), key=lambda a: shape[a])
    step = max(_PIECE * shape[axis] // prod(shape), 1)
    return [(slice(None),) * axis + (slice(at, at + step),) for at in range(0, shape[axis], step)]


def _smoothed(moved: np.ndarray, near: np.ndarray) -> np.ndarray:
    """An element's noise, at least that of its neighbours where they are alike: a few samples may miss its own.

    In a vector, the neighbours are all of it.
    """
    return np.asarray(np.maximum(moved, np.minimum(near, _NEAR * _size(moved))))


def _distance(old: np.ndarray, run: np.ndarray) -> np.ndarray:
    """Difference by element: infinite where just one is finite, 0 where neither is."""
    a, b = old.astype(np.float64), run.astype(np.float64)
    fine, also = np.isfinite(a), np.isfinite(b)
    if np.all(fine) and np.all(also):
        return np.asarray(np.abs(a - b))
    gap = np.abs(np.subtract(a, b, where=fine & also, out=np.zeros(a.shape)))
    return np.asarray(np.where(fine == also, gap, np.inf))


def _discrete(
    old: np.ndarray, new: np.ndarray, array: np.ndarray | None, full: np.ndarray | None
) -> OutputComparison:  # fmt: skip
    """Outputs that are not reals: equal, but for elements that the original's own rounding flips, and as far."""
    if equal(old, new):
        return OutputComparison()
    if new.dtype == object or old.dtype.kind not in "biu":
        return OutputComparison(np.inf, np.inf, differs=True, problem="its elements differ from the original's")
    distance = np.maximum(np.abs(new.astype(np.float64) - old.astype(np.float64)), new != old)  # float64 holds 2^53
    moved = np.zeros(old.shape) if array is None else array
    over = distance > FACTOR * moved if full is None else (distance > FACTOR * moved) & ~full
    scale = float(np.abs(old.astype(np.float64)).max(initial=0.0)) or 1.0
    worst, base = float(distance.max()), float(np.max(moved, where=np.isfinite(moved), initial=0.0)) / scale
    if not over.any():
        return OutputComparison(worst, worst / scale, base, True)
    place, count = _first(over), int(np.count_nonzero(over))
    said = f"{count} of {old.size} elements differ; at {place} the original gives {old[place]}, the result {new[place]}"
    return OutputComparison(worst, worst / scale, base, True, said, place)


def agrees_with_reals(
    old: np.ndarray | None,
    new: np.ndarray,
    exact: np.ndarray,
    dtype: DType | None,
    moves: OutputRoundingNoise | None = None,
    *,
    slack: float = 0.0,
    optimised: bool = False,
) -> OutputComparison:
    """The second criterion: against a float64 reference, an error of at most ``FACTOR`` times the original's own.

    For the largest error and for the root mean square; an error up to :data:`MARGIN` epsilons of the largest magnitude
    is always allowed. Elements at which the original jumps, or moves by more than that, by its own rounding are left
    out: flips of a quantisation downstream are no errors of what stands before it.

    Args:
        old: what the original gave, if ONNX Runtime runs it.
        new: what the result gave.
        exact: what the reference gave.
        dtype: declared element type.
        moves: how the original moves by its own rounding.
        slack: share of the largest magnitude that is allowed as well.
        optimised: as in :func:`compare`.
    """
    if exact.shape != new.shape:
        return OutputComparison(np.inf, np.inf, problem=f"its shape is {new.shape} and the reference's {exact.shape}")
    dtype = dtype or element_type(new)
    if dtype is None or not dtype.is_float:
        if old is not None or equal(new, exact):  # the original has judged
            return OutputComparison()
        return OutputComparison(np.inf, np.inf, problem="its elements differ from the reference's")
    truth, array = exact.astype(np.float64, copy=False), new.astype(np.float64, copy=False)
    usable = np.isfinite(truth) & np.isfinite(array)
    if old is None and not np.array_equal(np.isfinite(truth), np.isfinite(array)):
        return OutputComparison(
            np.inf, np.inf, problem="it is not finite where the reference is, or the other way round"
        )
    base = (0.0, 0.0)
    if old is not None:
        usable &= np.isfinite(old.astype(np.float64, copy=False))
    scale = float(np.max(np.abs(truth), where=usable, initial=0.0))
    tolerance = MARGIN.get(dtype, _NARROW) * _epsilon(dtype) * scale * (ALONE if old is None else 1.0)
    tolerance = max(tolerance, slack * scale, float(ml_dtypes.finfo(dtype.numpy).tiny))  # type: ignore[no-untyped-call]
    if old is not None:
        first = old.astype(np.float64, copy=False)
        if moves is not None:
            moved = moves.largest(optimised)
            usable &= (moved <= JUMP * _free(first, dtype, False)) & (FACTOR * moved <= tolerance)
        base = _errors(first, truth, usable)
    error = _errors(array, truth, usable)
    allowed = max(FACTOR * base[0], tolerance), max(FACTOR * base[1], tolerance)
    over = scale or 1.0
    comparison = OutputComparison(error[0], error[0] / over, base[0] / over)
    if error[0] <= allowed[0] and error[1] <= allowed[1]:
        return comparison
    said = (
        f"its error is {error[0]:.3g} (root mean square {error[1]:.3g}) where {allowed[0]:.3g} ({allowed[1]:.3g}) "
        f"is allowed; values reach {scale:.3g}, the original's error is {base[0]:.3g}"
    )
    return OutputComparison(error[0], error[0] / over, base[0] / over, True, said)


def _errors(a: np.ndarray, b: np.ndarray, usable: np.ndarray) -> tuple[float, float]:
    """Largest and root-mean-square difference where usable."""
    if not usable.any():
        return 0.0, 0.0
    difference = np.abs(a[usable] - b[usable])
    top = float(difference.max()) or 1.0
    return float(difference.max()), float(np.sqrt(np.mean((difference / top) ** 2))) * top


def _first(where: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(where)), where.shape))


def equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays hold the same, NaNs included."""
    if a.dtype == object or b.dtype == object:
        return a.shape == b.shape and repr(a.tolist()) == repr(b.tolist())
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f" and b.dtype.kind == "f"))
