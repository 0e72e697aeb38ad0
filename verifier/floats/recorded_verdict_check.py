"""The law of recorded float verdicts: points of other seeds are against none of their conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from superopt import fleet as fleets
from superopt.fleet import WorkerPool
from superopt.ir.terms import VariableTerm
from superopt.ir.types import DType
from superopt.rules.float_verdicts import Directions, SafeConditions, float_key, verdict_in
from superopt.rules.library import RuleLibrary
from superopt.rules.rule import Rule
from superopt.verifier.floats.adversarial_points import Points, confined, drawn, exponents
from superopt.verifier.floats.comparison import FACTOR, PointErrorAnalysis
from superopt.verifier.floats.evaluation import FORMATS, FloatFormat
from superopt.verifier.floats.kernel_comparison import RUN_TYPES, kernel_points
from superopt.verifier.floats.verdict_search import CounterexampleSearch, RuleInstanceProgram, sites_of

__all__ = ["ConditionViolation", "Task", "breaches", "check_all", "directions_used", "each_of", "tasks_of"]

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
Progress = Callable[[int, int, str], None]
Task = tuple[Rule, Directions, int, int]  # a rule, its recorded verdicts, a seed and points for each condition
Window = Mapping[str, tuple[int, int]]
Worst = tuple[float, Mapping[str, object]]  # an error, and the point at which it is, as JSON data
_BATCH = 8192  # points that are evaluated at once


def directions_used(rule: Rule) -> list[bool]:
    """Directions that a search could take: backward or not."""
    sides = ((False, rule.forward, rule.lhs), (True, rule.backward, rule.rhs))
    return [b for b, binds, source in sides if binds and not any(isinstance(t, VariableTerm) for t in source)]


@dataclass(frozen=True)
class ConditionViolation:
    """A point against a direction although its recorded conditions hold there.

    ``error`` is in the allowances that the condition leaves; ``point`` is JSON data.
    """

    rule: str
    backward: bool
    dtype: str
    condition: SafeConditions
    error: float
    point: Mapping[str, object] = field(default_factory=dict, hash=False)

    def as_data(self) -> dict[str, object]:
        """As JSON data."""
        direction = "backward" if self.backward else "forward"
        error = self.error if np.isfinite(self.error) else None
        return {
            "rule": self.rule, "direction": direction, "type": self.dtype, "error": error, "condition":
            str(self.condition), "point": dict(self.point), }  # fmt: skip


def breaches(
    rule: Rule, verdicts: Directions, *, seed: int, points: int, dtypes: Iterable[DType] = FORMATS
) -> list[ConditionViolation]:  # fmt: skip
    """What points of another seed find against the conditions of a rule's directions that ``standard`` uses.

    Besides, ONNX Runtime runs both sides at some hundred points around 1, in float32 and in float64.

    Args:
        rule: a rule.
        verdicts: its recorded verdicts.
        seed: of sizes and points.
        points: for each condition of each direction and type, as the search draws them.
        dtypes: the types.
    """
    rng = np.random.default_rng([seed, int(float_key(rule)[:8], 16)])
    sites = [s for s in sites_of(rule, rng) if s.different and s.counts]
    found_breaches: list[ConditionViolation] = []
    for dtype in dtypes if sites else ():
        asked = [(b, w) for b in directions_used(rule) for w in _conditions(verdicts, dtype, backward=b)]
        worst = _worst(asked, sites, FORMATS[dtype], rng, points)
        found_breaches += _broken(rule, dtype, asked, worst)
    for dtype in RUN_TYPES if sites else ():
        asked = [(b, w) for b in directions_used(rule) for w in _conditions(verdicts, dtype, backward=b)]
        found_breaches += _broken(rule, dtype, asked, _worst_run(asked, sites, dtype, rng))
    return found_breaches


def _broken(
    rule: Rule, dtype: DType, asked: Sequence[tuple[bool, SafeConditions]], worst: Sequence[Worst]
) -> list[ConditionViolation]:
    found = zip(asked, worst, strict=True)
    return [ConditionViolation(rule.id, b, str(dtype), w, e, point) for (b, w), (e, point) in found if e > FACTOR]


def _conditions(verdicts: Directions, dtype: DType, *, backward: bool) -> tuple[SafeConditions, ...]:
    verdict = verdict_in(verdicts.get("backward" if backward else "forward", {}), dtype)
    return verdict.alternatives_in("standard")


def check_all(
    library: RuleLibrary, *, seed: int, points: int, fleet: WorkerPool | None = None, progress: Progress | None = None
) -> list[ConditionViolation]:
    """:func:`breaches` of every admitted rule."""
    tasks = tasks_of(library, library.admitted, seed, points)
    found = each_of(_checked, tasks, [t[0].id for t in tasks], fleet, progress)
    return [breach for broken in found for breach in broken]


def tasks_of(library: RuleLibrary, rules: Iterable[Rule], seed: int, points: int) -> list[Task]:
    """Rules with what is recorded of them, to be held against points of a seed."""
    return [(rule, library.float_store.get(float_key(rule), {}), seed, points) for rule in rules]


def each_of(
    function: Callable[[_Task], _Result], tasks: Sequence[_Task], names: Sequence[str], fleet: WorkerPool | None,
    progress: Progress | None = None,
) -> Iterator[_Result]:  # fmt: skip
    """A function's results in the order of its tasks, made by a fleet; ``progress`` is told each one's name."""
    calls = (fleets.WorkerTask(function, (task,), name) for task, name in zip(tasks, names, strict=True))
    for done, outcome in enumerate((fleet or WorkerPool()).map(calls), 1):
        yield outcome.result()
        if progress is not None:
            progress(done, len(tasks), outcome.task.name)


def _checked(task: Task) -> list[ConditionViolation]:
    rule, verdicts, seed, points = task
    return breaches(rule, verdicts, seed=seed, points=points)


def _worst(
    asked: Sequence[tuple[bool, SafeConditions]],
    sites: Sequence[RuleInstanceProgram],
    form: FloatFormat,
    rng: np.random.Generator,
    points: int,
) -> list[Worst]:
    """The largest error of each condition, in the allowances that it leaves, at points inside its windows.

    Conditions with the same window see the same points, and no side is evaluated twice at one.
    """
    worst: list[Worst] = [(0.0, {})] * len(asked)
    windows: dict[tuple[tuple[str, tuple[int, int]], ...], list[int]] = {}
    for number, (_, conditions) in enumerate(asked):
        windows.setdefault(tuple(sorted(conditions.window.items())), []).append(number)
    each = max(1, points // len(sites))
    for position, site in enumerate(sites):
        held = {w: numbers for w, numbers in windows.items() if _attributes_inside(site, dict(w))}
        if not held:
            continue
        for start in range(0, each, _BATCH):
            free = drawn(site.counts, min(_BATCH, each - start), form, rng)
            for window, numbers in held.items():
                batch = site.meant(confined(free, dict(window), form, rng))
                sources = {asked[n][0] for n in numbers}
                for backward, points_there, error_analysis in _suspects(site, position, form, batch, sources):
                    for number in (n for n in numbers if asked[n][0] == backward):
                        worst[number] = _worse(worst[number], asked[number][1], error_analysis, points_there, site)
    return worst


def _worst_run(
    asked: Sequence[tuple[bool, SafeConditions]],
    sites: Sequence[RuleInstanceProgram],
    dtype: DType,
    rng: np.random.Generator,
) -> list[Worst]:
    """The largest error of each condition at points around 1, as ONNX Runtime's kernels of a type make it."""
    worst: list[Worst] = [(0.0, {})] * len(asked)
    directions = sorted({b for b, _ in asked})
    for site, backward, batch, error_analysis in kernel_points(sites, dtype, rng, directions) if asked else ():
        for number, (of, conditions) in enumerate(asked):
            if of == backward and _attributes_inside(site, conditions.window):
                worst[number] = _worse(worst[number], conditions, error_analysis, batch, site, by="ONNX Runtime")
    return worst


def _suspects(
    site: RuleInstanceProgram, position: int, form: FloatFormat, batch: Points, directions: Iterable[bool]
) -> Iterator[tuple[bool, Points, PointErrorAnalysis]]:  # fmt: skip
    """The points of a batch that are against a direction if no variable is rounded, with what is allowed there."""
    look = CounterexampleSearch(site, position, form, ())
    for backward in directions:
        yield from ((backward, *found) for found in look.against(batch, backward=backward))


def _worse(
    before: Worst,
    conditions: SafeConditions,
    error_analysis: PointErrorAnalysis,
    batch: Points,
    site: RuleInstanceProgram,
    **more: object,
) -> Worst:
    """The largest error in allowances where a way's windows hold, if it is larger than one before, and its point."""
    low, high = exponents(batch)
    names = list(site.counts)
    inside = np.ones(error_analysis.error.shape, bool)
    for name, (first, last) in conditions.window.items():
        if name in names:
            number = names.index(name)
            inside &= (low[number] >= first) & (high[number] <= last)
    if not inside.any():
        return before
    rounded = [names.index(n) for n in conditions.rounded if n in names]
    error = np.where(error_analysis.deliberate, np.inf, error_analysis.error)
    with np.errstate(all="ignore"):
        ratio = error / (error_analysis.allowance + error_analysis.units[rounded].sum(axis=0))
    ratio = np.where(inside, np.nan_to_num(ratio, nan=np.inf, posinf=np.inf), 0.0)
    at = int(np.argmax(ratio))
    return (
        (float(ratio[at]), {**error_analysis.point_data(at), **site.point_data(batch, at), **more})
        if ratio[at] > before[0]
        else before
    )


def _attributes_inside(site: RuleInstanceProgram, window: Window) -> bool:
    inside = (
        low <= int(np.floor(np.log2(site.attributes[n]))) <= high
        for n, (low, high) in window.items() if site.attributes.get(n)
    )  # fmt: skip
    return all(inside)
