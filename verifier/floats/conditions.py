"""Conditions under which no point is against a direction, derived from points that are: windows, rounded operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.ir.types import DType
from superopt.rules.float_verdicts import GENEROUS, UNKNOWN, FloatVerdict, SafeConditions
from superopt.verifier.floats.adversarial_points import Points, exponents
from superopt.verifier.floats.comparison import plain
from superopt.verifier.floats.evaluation import FloatFormat

if TYPE_CHECKING:
    from superopt.verifier.floats.comparison import PointErrorAnalysis
    from superopt.verifier.floats.verdict_search import RuleInstanceProgram

__all__ = ["CounterexamplePoints", "finished", "verdict_of"]

Array = np.ndarray[Any, Any]
# Windows that are tried: a coarse ladder, so that one point more or less seldom moves the result.
_LOWS = {
    DType.FLOAT32: (-149, -126, -120, -100, -80, -60, -48, -40, -30, -20, -10),
    DType.BFLOAT16: (-133, -126, -120, -100, -80, -60, -48, -40, -30, -20, -10),
    DType.FLOAT16: (-24, -14, -12, -10, -8, -7, -6, -5, -4, -3),
}
_HIGHS = {
    DType.FLOAT32: (127, 126, 124, 120, 100, 80, 62, 48, 40, 30, 20, 10, 8, 6, 5, 4, 3),
    DType.BFLOAT16: (127, 126, 124, 120, 100, 80, 62, 48, 40, 30, 20, 10, 8, 6, 5, 4, 3),
    DType.FLOAT16: (15, 14, 13, 12, 10, 8, 7, 6, 5, 4, 3),
}
# Numbers around 1, which every model has: a direction that infinities or nan come from here is not even for `fast`.
_MODERATE = {DType.FLOAT32: (-149, 9), DType.BFLOAT16: (-133, 9), DType.FLOAT16: (-24, 3)}
# A direction is chosen by less than what is promised of it (``floating.FACTOR``): other points find a little more.
_SEARCHED = 3.0
_MOST_ROUNDED = 3  # variables of one condition
_KEPT = 20_000  # points against a direction that are kept


@dataclass
class CounterexamplePoints:
    """What was found against a direction: points, with all that conditions are chosen by.

    Attributes:
        names: the real variables.
        points, finite, against: how many results were looked at, of how many the source's were finite, and how many
            were against it.
        degree: factors of the largest product.
        ratio: the largest finite error in allowances.
        nonfinite: infinite or nan from moderate numbers where the source is finite.
    """

    names: tuple[str, ...]
    factor: float = _SEARCHED
    points: int = 0
    finite: int = 0
    degree: float = 1.0
    against: int = 0
    ratio: float = 0.0
    nonfinite: bool = False
    specials: set[str] = field(default_factory=set)
    rows: list[tuple[Array, Array, Array, Array, Array]] = field(default_factory=list)
    worst: tuple[float, dict[str, Any]] = (0.0, {})
    attributes: dict[str, None] = field(default_factory=dict)

    def note(
        self,
        found: PointErrorAnalysis,
        batch: Points,
        site: int,
        attributes: Mapping[str, float],
        form: FloatFormat,
        why: str = "",
    ) -> None:
        """Add the points of a batch that are against the direction."""
        with np.errstate(all="ignore"):
            ratios = found.error / found.allowance
        self.points += ratios.size
        self.finite += int(np.isfinite(found.source).sum())
        finite = ratios[np.isfinite(ratios)]
        self.ratio = max(self.ratio, float(finite.max(initial=0.0)))
        bad = np.flatnonzero(~(ratios <= self.factor) | found.deliberate)
        self.attributes |= dict.fromkeys(attributes)
        if not bad.size:
            return
        self.against += bad.size
        chosen = {n: a[:, bad] for n, a in batch.items()}
        low, high = exponents(chosen) if chosen else (np.zeros((0, bad.size)), np.zeros((0, bad.size)))
        for size in attributes.values():
            ends = [int(np.floor(np.log2(size)))] * 2 if size else [999, -999]
            low, high = (np.concatenate([a, np.full((1, bad.size), e)]) for a, e in zip((low, high), ends, strict=True))
        error = np.where(found.deliberate[bad], np.inf, found.error[bad])
        if sum(len(r[0]) for r in self.rows) < _KEPT:
            self.rows.append((error, found.allowance[bad], found.units[:, bad], low, high))
        first, last = _MODERATE[form.dtype]
        moderate = (low.min(axis=0, initial=999) >= first) & (high.max(axis=0, initial=-999) <= last)
        self.nonfinite |= bool((moderate & np.isinf(found.error[bad])).any())
        self._remember(found, batch, bad, low, high, site, why)

    def _remember(
        self,
        error_analysis: PointErrorAnalysis,
        batch: Points,
        bad: Array,
        low: Array,
        high: Array,
        site: int,
        why: str,
    ) -> None:
        """Keep the most telling point: of moderate magnitudes rather than far out, and of those the worst."""
        with np.errstate(all="ignore"):
            ratios = np.minimum(
                np.nan_to_num(error_analysis.error[bad] / error_analysis.allowance[bad], nan=1e30, posinf=1e30), 1e30
            )
        reach = np.maximum(-low.min(axis=0, initial=0), high.max(axis=0, initial=0))
        score = np.log10(1.0 + ratios) / 30 + 2.0 * (reach <= 10) + 1.0 * (reach <= 40)
        at = int(np.argmax(score))
        if score[at] <= self.worst[0]:
            return
        position = int(bad[at])
        worst: dict[str, Any] = {"site": site, **error_analysis.point_data(position)}
        worst |= {n: list(map(plain, a[:8, position])) for n, a in batch.items()}
        if why:
            worst["by"] = why
        self.worst = (float(score[at]), worst)

    def special(self, source: Array, target: Array) -> None:
        """Note what differs where operands are infinite or nan."""
        if (np.isfinite(source) & ~np.isfinite(target)).any():
            self.specials.add("infinite or nan where the source is finite")
        if (~np.isfinite(source) & np.isfinite(target)).any():
            self.specials.add("finite where the source is infinite or nan")
        if (np.isinf(source) & np.isnan(target)).any():
            self.specials.add("nan where the source is infinite")
        both = np.isinf(source) & np.isinf(target)
        if (both & (np.sign(source) != np.sign(target))).any():
            self.specials.add("another infinity")


def verdict_of(table: CounterexamplePoints, form: FloatFormat, sites: Sequence[RuleInstanceProgram]) -> FloatVerdict:
    """The verdict that the points found leave."""
    specials = "; ".join(sorted(table.specials))
    ratio = float(f"{min(table.ratio, 1e30):.2g}")
    if not table.finite:
        return UNKNOWN  # the source never is a number in this type: nothing was compared
    if not table.rows:
        return FloatVerdict("safe", (), specials=specials, ratio=ratio)
    worst = dict(table.worst[1])
    if worst:
        point = sites[int(worst.pop("site"))].trial.point
        worst["sizes"] = {**point.sizes, **point.reals}
    data = _Rows(*(np.concatenate([r[i] for r in table.rows], axis=-1) for i in range(5)))
    alternatives = tuple(_minimal_conditions(table, data, form))
    return FloatVerdict(
        "conditional" if alternatives else "unsafe", alternatives, moderate=not table.nonfinite, specials=specials,
        ratio=ratio, worst=worst,
    )  # fmt: skip


def finished(verdict: FloatVerdict, dtype: DType, names: Sequence[str]) -> FloatVerdict:
    """The verdict with the conditions that may be relied on.

    A window that had to be narrow at both ends is none: what cancels does so at any magnitude, and was only not found
    in there. Where an operand has to be rounded, all operands are to be in the window.

    Args:
        verdict: of a direction in a type.
        dtype: the type.
        names: all variables and real attributes.
    """
    if verdict.verdict != "conditional":
        return verdict
    last = _HIGHS[dtype][3]
    kept = []
    for conditions in verdict.alternatives:
        if all(_is_wide(window, dtype) for window in conditions.window.values()):
            window = {n: (low, min(high, last)) for n, (low, high) in conditions.window.items()}
            if conditions.rounded:
                low = max((w[0] for w in window.values()), default=_LOWS[dtype][0])
                window = dict.fromkeys(names, (low, min((w[1] for w in window.values()), default=last)))
            kept.append(replace(conditions, window=window))
    return replace(verdict, verdict="conditional" if kept else "unsafe", alternatives=tuple(kept))


def _is_wide(window: tuple[int, int], dtype: DType) -> bool:
    low, high = window
    if low == _LOWS[dtype][0]:
        return True
    return high - low >= 10 if dtype == DType.FLOAT16 else low <= GENEROUS[0] and high >= GENEROUS[1]


@dataclass(frozen=True)
class _Rows:
    """Points against a direction: errors, allowances, units by variable, and exponents by variable and attribute."""

    error: Array
    allowance: Array
    units: Array
    low: Array
    high: Array


def _minimal_conditions(table: CounterexamplePoints, data: _Rows, form: FloatFormat) -> Iterator[SafeConditions]:
    """Minimal sets of rounded variables, each with the widest window; one that widens nothing is left out."""
    names = table.names
    found: list[tuple[frozenset[str], tuple[int, int]]] = []
    for count in range(min(len(names), _MOST_ROUNDED) + 1):
        for chosen in combinations(range(len(names)), count):
            with np.errstate(all="ignore"):
                allowed = table.factor * (data.allowance + data.units[list(chosen)].sum(axis=0))
                bad = ~(data.error <= allowed)
            window = _widest(data.low[:, bad], data.high[:, bad], form)
            if window is None:
                continue
            own = frozenset(names[i] for i in chosen)
            if any(less <= own and w[0] <= window[0] and w[1] >= window[1] for less, w in found):
                continue
            found.append((own, window))
            window = _inward(window, form, table.degree)
            named = (*names, *table.attributes)
            yield SafeConditions(
                tuple(sorted(own)), dict(_fewest(named, window, data.low[:, bad], data.high[:, bad], form))
            )


def _inward(window: tuple[int, int], form: FloatFormat, degree: float) -> tuple[int, int]:
    """A window one rung narrower at each end that points have moved, and no wider than products allow."""
    lows, highs = _LOWS[form.dtype], _HIGHS[form.dtype]
    low, high = lows.index(window[0]), highs.index(window[1])
    low, high = min(low + (low > 0), len(lows) - 1), min(high + (high > 0), len(highs) - 1)
    while 0 < low < len(lows) - 1 and lows[low] * degree < form.exponents[0]:
        low += 1
    while 0 < high < len(highs) - 1 and (highs[high] + 1) * degree > form.exponents[1]:
        high += 1
    return lows[low], highs[high]


def _widest(low: Array, high: Array, form: FloatFormat) -> tuple[int, int] | None:
    """The widest window of exponents that no point lies in; ``None`` where even the narrowest holds one."""
    lows, highs = _LOWS[form.dtype], _HIGHS[form.dtype]
    least, most = low.min(axis=0, initial=999), high.max(axis=0, initial=-999)
    best: tuple[float, int, int] | None = None
    for first in lows:
        inside = most[least >= first]
        limit = int(inside.min(initial=10_000))
        last = next((h for h in highs if h < limit), None)
        if last is None:
            continue
        # as wide as may be, on the side that has less first
        score = min(-first, last) + 0.01 * (last - first)
        if best is None or score > best[0]:
            best = score, first, last
    return None if best is None else best[1:]


def _fewest(
    names: Sequence[str], window: tuple[int, int], low: Array, high: Array, form: FloatFormat
) -> Iterator[tuple[str, tuple[int, int]]]:
    """The variables that have to stay in the window; the others may be anything."""
    if window == (_LOWS[form.dtype][0], _HIGHS[form.dtype][0]):
        return
    if form.dtype != DType.FLOAT16:  # a wide window asks nothing of ordinary data: it may as well stand for all
        yield from ((name, window) for name in names)
        return
    inside = (low >= window[0]) & (high <= window[1])
    kept = list(range(len(names)))
    for number in range(len(names)):
        rest = [k for k in kept if k != number]
        if not inside[rest].all(axis=0).any() if rest else not low.shape[1]:
            kept = rest
    for number in kept:
        yield names[number], window
