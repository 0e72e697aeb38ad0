"""Records the library's float verdicts, once points of another seed are against none of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from superopt.fleet import WorkerPool
from superopt.ir.types import DType
from superopt.rules.float_verdicts import (
    FLOATS,
    Directions,
    FloatVerdict,
    SafeConditions,
    float_key,
    row_of,
    verdict_in,
    write_floats,
)
from superopt.rules.library import BUILT_IN, RuleLibrary, load_library
from superopt.rules.rule import Rule
from superopt.verifier.floats.evaluation import FORMATS
from superopt.verifier.floats.kernel_comparison import with_kernels_specials
from superopt.verifier.floats.recorded_verdict_check import (
    ConditionViolation,
    Task,
    breaches,
    directions_used,
    each_of,
    tasks_of,
)
from superopt.verifier.floats.verdict_search import examine, sites_of

__all__ = ["FloatVerdictCounts", "census", "mend", "record", "verified_verdicts"]

Progress = Callable[[int, int, str], None]
_NARROWEST = {DType.FLOAT32: (-24, 24), DType.BFLOAT16: (-24, 24)}  # about GENEROUS
_OTHER_SEEDS, _OTHER_POINTS = (1, 4), 16_384  # of the points that a verdict has to stand before it is recorded


def record(*, everything: bool = False, fleet: WorkerPool | None = None, progress: Progress | None = None) -> int:
    """Bring ``rules/floats.json`` up to date: rules without a verdict are looked at, rows of no rule are dropped.

    Args:
        everything: look at every rule again.
        fleet: what looks at them; this process where none is given.
        progress: called with rules done, in all, and the id.

    Returns:
        How many rules were looked at.
    """
    library = load_library()
    rules = {float_key(library[i]): library[i] for i in library}
    wanted = [r for k, r in rules.items() if everything or k not in library.float_store]
    kept = {k: row_of(r.id, library.float_store[k]) for k, r in rules.items() if r not in set(wanted)}
    made = dict(kept)
    looked = each_of(verified_verdicts, wanted, [r.id for r in wanted], fleet, progress)
    made.update({float_key(r): row_of(r.id, found) for r, found in zip(wanted, looked, strict=True)})
    write_floats(BUILT_IN / FLOATS, made)
    return len(wanted)


@dataclass(frozen=True)
class FloatVerdictCounts:
    """How many directions have which verdict, by element type.

    Attributes:
        counts: (type, kind) → directions that a search could take.
        lost: rule and direction that is not used in ``standard`` at all (in float32), with the verdict.
    """

    counts: Mapping[tuple[str, str], int]
    lost: tuple[tuple[Rule, bool, FloatVerdict], ...]


def census(library: RuleLibrary) -> FloatVerdictCounts:
    """The verdicts of the admitted rules' directions, counted."""
    counts: Counter[tuple[str, str]] = Counter()
    lost: list[tuple[Rule, bool, FloatVerdict]] = []
    floats = library.floats()
    for rule in library.admitted:
        for backward in directions_used(rule):
            for dtype in FORMATS:
                verdict = floats.verdict(rule, backward=backward, dtype=dtype)
                counts[str(dtype), kind_of(verdict)] += 1
                if dtype == DType.FLOAT32 and not verdict.alternatives_in("standard"):
                    lost.append((rule, backward, verdict))
    return FloatVerdictCounts(counts, tuple(lost))


def kind_of(verdict: FloatVerdict) -> str:
    """A verdict in words, with the kind of condition."""
    if verdict.exact:
        return "safe: the same operations"
    if verdict.verdict != "conditional":
        return verdict.verdict
    if any(w.regular for w in verdict.alternatives):
        return "conditional: finite by how it is made"
    if any(not w.rounded and w.generous for w in verdict.alternatives):
        return "conditional: wide window"
    if any(w.generous for w in verdict.alternatives):
        return "conditional: rounded operand"
    return "conditional: narrow window"


def verified_verdicts(rule: Rule) -> Directions:
    """The verdicts on a rule, once points and sizes of another seed are against none of their conditions."""
    return narrowed(rule, with_specials(rule, examine(rule)))


def with_specials(rule: Rule, found: Directions) -> Directions:
    """Verdicts with what infinite and NaN operands do in ONNX Runtime."""
    rng = np.random.default_rng([_OTHER_SEEDS[0], int(float_key(rule)[:8], 16)])
    return with_kernels_specials(sites_of(rule, rng), found, rng)


def narrowed(rule: Rule, found: Directions) -> Directions:
    """Verdicts with conditions narrowed, then dropped, until points and sizes of another seed are against none."""
    for seed in _OTHER_SEEDS:
        found, _ = _surviving(rule, found, seed, _OTHER_POINTS)
    return found


def _surviving(rule: Rule, found: Directions, seed: int, points: int) -> tuple[Directions, list[ConditionViolation]]:
    """The verdicts that points of a seed do not break, and those that they break."""
    against: list[ConditionViolation] = []
    while broken := breaches(rule, found, seed=seed, points=points):
        against += broken
        found = without(rule, found, broken)
    return found, against


def mend(
    *, seed: int, points: int, fleet: WorkerPool | None = None, progress: Progress | None = None
) -> list[ConditionViolation]:
    """Test the recorded verdicts at points of a seed, and with the kernels at infinities and NaN.

    What they are against is narrowed, then left out, and written.

    Args:
        seed: of sizes and points.
        points: for each condition of each direction and type.
        fleet: what looks at them; this process where none is given.
        progress: called with rules done, in all, and the id.

    Returns:
        What the points were against, all of it mended.
    """
    library = load_library()
    tasks = tasks_of(library, (library[i] for i in library), seed, points)
    made: dict[str, dict[str, Any]] = {}
    against: list[ConditionViolation] = []
    names = [rule.id for rule, *_ in tasks]
    for (rule, *_), (found, broken) in zip(tasks, each_of(_mended, tasks, names, fleet, progress), strict=True):
        made[float_key(rule)] = row_of(rule.id, found)
        against += broken
    write_floats(BUILT_IN / FLOATS, made)
    return against


def _mended(task: Task) -> tuple[Directions, list[ConditionViolation]]:
    rule, verdicts, seed, points = task
    return _surviving(rule, with_specials(rule, verdicts), seed, points)


def without(rule: Rule, verdicts: Directions, broken: Sequence[ConditionViolation]) -> Directions:
    """Verdicts with the conditions that were broken narrowed once; a direction that has none left is unsafe."""
    names = [n for n, s in rule.tensors.items() if s.dtype == "f"]
    names += [n for n, s in rule.attribute_atoms.items() if s.kind == "real"]
    made = {way: dict(by_type) for way, by_type in verdicts.items()}
    for breach in broken:
        by_type = made["backward" if breach.backward else "forward"]
        verdict = verdict_in(by_type, DType(breach.dtype))
        if verdict.verdict == "unsafe":  # another point of the same type has left it out
            continue
        alternatives = []
        for way in verdict.alternatives or (SafeConditions(),):
            broke = replace(way, finite=breach.condition.finite) == breach.condition
            kept_conditions = _narrower(way, DType(breach.dtype), names) if broke else way
            alternatives += [] if kept_conditions is None else [kept_conditions]
        by_type[breach.dtype] = replace(
            verdict, verdict="conditional" if alternatives else "unsafe", alternatives=tuple(alternatives), exact=False,
            worst=verdict.worst or breach.point,
        )  # fmt: skip
    return made


def _narrower(conditions: SafeConditions, dtype: DType, names: Sequence[str]) -> SafeConditions | None:
    """A way inside the narrowest window that is worth having; ``None`` if it is there already, or has none."""
    if dtype not in _NARROWEST:
        return None  # float16: what broke inside a window that is narrow already is no matter of windows
    low, high = _NARROWEST[dtype]
    form = FORMATS[dtype]
    least = round(np.log2(form.tiny)) + 1
    given = {n: conditions.window.get(n, (least, form.exponents[1])) for n in names}
    window = {n: (a if a == least else max(a, low), min(b, high)) for n, (a, b) in given.items()}
    return None if window == conditions.window else replace(conditions, window=window)
