"""Recording the library's verdicts in floating point, and holding what is recorded against points of other seeds."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from superopt.ir.terms import Var
from superopt.ir.types import DType
from superopt.rules.floats import FLOATS, Directions, FloatVerdict, Way, float_key, row_of, write_floats
from superopt.rules.library import BUILT_IN, Library, load_library
from superopt.rules.rule import Rule
from superopt.verifier.floating import Look, Site, examine, sites_of
from superopt.verifier.floating_judged import FACTOR
from superopt.verifier.floating_points import Points, confined, drawn
from superopt.verifier.floating_values import FORMATS, Format
from superopt.verifier.floating_ways import Against, holding

__all__ = ["Breach", "Census", "breaches", "census", "check_all", "directions_used", "record", "settled"]

Progress = Callable[[int, int, str], None]
_BATCH = 8192  # points that are evaluated at once
_NARROWEST = {DType.FLOAT32: (-24, 24), DType.BFLOAT16: (-24, 24)}  # about GENEROUS
_OTHER_SEED, _OTHER_POINTS = 1, 400  # of the points that a verdict has to stand before it is recorded


def record(*, everything: bool = False, workers: int = 2, progress: Progress | None = None) -> int:
    """Bring ``rules/floats.json`` up to date: rules without a verdict are looked at, rows of no rule are dropped.

    Args:
        everything: look at every rule again.
        workers: processes.
        progress: called with rules done, in all, and the id.

    Returns:
        How many rules were looked at.
    """
    library = load_library()
    rules = {float_key(library[i]): library[i] for i in library}
    wanted = [r for k, r in rules.items() if everything or k not in library.float_store]
    kept = {k: row_of(r.id, library.float_store[k]) for k, r in rules.items() if r not in set(wanted)}
    made = dict(kept)
    for done, (rule, found) in enumerate(_examined(wanted, workers), 1):
        made[float_key(rule)] = row_of(rule.id, found)
        if progress is not None:
            progress(done, len(wanted), rule.id)
    write_floats(BUILT_IN / FLOATS, made)
    return len(wanted)


def _examined(rules: Sequence[Rule], workers: int) -> Iterator[tuple[Rule, Directions]]:
    if workers <= 1 or len(rules) < 2:
        yield from ((r, settled(r)) for r in rules)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from zip(rules, pool.imap(settled, rules, chunksize=4), strict=True)


@dataclass(frozen=True)
class Census:
    """How many directions have which verdict, by element type.

    Attributes:
        counts: (type, kind) → directions that a search could take.
        lost: rule and direction that is not used in ``standard`` at all (in float32), with the verdict.
    """

    counts: Mapping[tuple[str, str], int]
    lost: tuple[tuple[Rule, bool, FloatVerdict], ...]


def directions_used(rule: Rule) -> list[bool]:
    """Directions that a search could take: backward or not."""
    sides = ((False, rule.forward, rule.lhs), (True, rule.backward, rule.rhs))
    return [b for b, binds, source in sides if binds and not any(isinstance(t, Var) for t in source)]


def census(library: Library) -> Census:
    """The verdicts of the admitted rules' directions, counted."""
    counts: Counter[tuple[str, str]] = Counter()
    lost: list[tuple[Rule, bool, FloatVerdict]] = []
    floats = library.floats()
    for rule in library.admitted:
        for backward in directions_used(rule):
            for dtype in FORMATS:
                verdict = floats.verdict(rule, backward=backward, dtype=dtype)
                counts[str(dtype), kind_of(verdict)] += 1
                if dtype == DType.FLOAT32 and not verdict.ways_in("standard"):
                    lost.append((rule, backward, verdict))
    return Census(counts, tuple(lost))


def kind_of(verdict: FloatVerdict) -> str:
    """A verdict in words, with the kind of condition."""
    if verdict.exact:
        return "safe: the same operations"
    if verdict.verdict != "conditional":
        return verdict.verdict
    if any(not w.rounded and w.generous for w in verdict.ways):
        return "conditional: wide window"
    if any(w.generous for w in verdict.ways):
        return "conditional: rounded operand"
    return "conditional: narrow window"


@dataclass(frozen=True)
class Breach:
    """A point against a direction although its recorded conditions hold there."""

    rule: str
    backward: bool
    dtype: str
    way: Way
    error: float

    def as_data(self) -> dict[str, object]:
        """As JSON data."""
        direction = "backward" if self.backward else "forward"
        error = self.error if np.isfinite(self.error) else None
        return {
            "rule": self.rule, "direction": direction, "type": self.dtype, "error": error, "condition": str(self.way)
        }  # fmt: skip


def breaches(
    rule: Rule, verdicts: Directions, *, seed: int, points: int, dtypes: Iterable[DType] = FORMATS
) -> list[Breach]:  # fmt: skip
    """What points of another seed find against the conditions of a rule's directions that ``standard`` uses.

    Args:
        rule: a rule.
        verdicts: its recorded verdicts.
        seed: of sizes and points.
        points: for each condition of each direction and type, as the search draws them.
        dtypes: the types.
    """
    rng = np.random.default_rng([seed, int(float_key(rule)[:8], 16)])
    sites = [s for s in sites_of(rule, rng) if s.different and s.counts]
    found: list[Breach] = []
    for dtype in dtypes if sites else ():
        for backward in directions_used(rule):
            by_type = verdicts.get("backward" if backward else "forward", {})
            verdict = by_type.get(str(dtype)) or by_type.get("any")
            for way in verdict.ways_in("standard") if verdict is not None else ():
                worst = _worst_of(way, sites, FORMATS[dtype], rng, points, backward)
                if worst > FACTOR:
                    found.append(Breach(rule.id, backward, str(dtype), way, worst))
    return found


def settled(rule: Rule) -> Directions:
    """The verdicts of a rule, once points and sizes of another seed are against none of their conditions."""
    return held(rule, examine(rule))


def held(rule: Rule, found: Directions) -> Directions:
    """Verdicts with conditions narrowed, then left out, where points and sizes of another seed are against them."""
    while broken := breaches(rule, found, seed=_OTHER_SEED, points=_OTHER_POINTS):
        found = without(rule, found, broken)
    return found


def without(rule: Rule, verdicts: Directions, broken: Sequence[Breach]) -> Directions:
    """Verdicts with the conditions that were broken narrowed once; a direction that has none left is unsafe."""
    names = [n for n, s in rule.tensors.items() if s.dtype == "f"]
    names += [n for n, s in rule.attribute_atoms.items() if s.kind == "real"]
    made = {way: dict(by_type) for way, by_type in verdicts.items()}
    for breach in broken:
        by_type = made["backward" if breach.backward else "forward"]
        verdict = by_type.get(breach.dtype) or by_type["any"]
        ways = []
        for way in verdict.ways or (Way(),):
            broke = replace(way, finite=breach.way.finite) == breach.way
            kept = _narrower(way, DType(breach.dtype), names) if broke else way
            ways += [] if kept is None else [kept]
        by_type[breach.dtype] = replace(
            verdict, verdict="conditional" if ways else "unsafe", ways=tuple(ways), exact=False
        )
    return made


def _narrower(way: Way, dtype: DType, names: Sequence[str]) -> Way | None:
    """A way inside the narrowest window that is worth having; ``None`` if it is there already, or has none."""
    if dtype not in _NARROWEST:
        return None  # float16: what broke inside a window that is narrow already is no matter of windows
    low, high = _NARROWEST[dtype]
    form = FORMATS[dtype]
    least = round(np.log2(form.tiny)) + 1
    given = {n: way.window.get(n, (least, form.exponents[1])) for n in names}
    window = {n: (a if a == least else max(a, low), min(b, high)) for n, (a, b) in given.items()}
    return None if window == way.window else replace(way, window=window)


def check_all(
    library: Library, *, seed: int, points: int, workers: int = 2, progress: Progress | None = None
) -> list[Breach]:
    """:func:`breaches` of every admitted rule."""
    rules = library.admitted
    tasks = [(rule, library.float_store.get(float_key(rule), {}), seed, points) for rule in rules]
    found: list[Breach] = []
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for done, (rule, broken) in enumerate(zip(rules, pool.imap(_checked, tasks, chunksize=4), strict=True), 1):
            found += broken
            if progress is not None:
                progress(done, len(rules), rule.id)
    return found


def _checked(task: tuple[Rule, Directions, int, int]) -> list[Breach]:
    rule, verdicts, seed, points = task
    return breaches(rule, verdicts, seed=seed, points=points)


def _worst_of(
    way: Way, sites: Sequence[Site], form: Format, rng: np.random.Generator, points: int, backward: bool
) -> float:  # fmt: skip
    """The largest error, in allowances of a way, at points inside its windows."""
    worst = 0.0
    each = max(1, points // len(sites))
    for number, site in enumerate(sites):
        if not _attributes_inside(site, way):
            continue
        for start in range(0, each, _BATCH):
            batch: Points = confined(drawn(site.counts, min(_BATCH, each - start), form, rng), way.window, form, rng)
            tables = (Against(tuple(site.counts)), Against(tuple(site.counts)))
            Look(site, number, form, tables).at(batch)
            worst = max(worst, holding(tables[backward], way))
    return worst


def _attributes_inside(site: Site, way: Way) -> bool:
    inside = (
        low <= int(np.floor(np.log2(site.attributes[n]))) <= high
        for n, (low, high) in way.window.items() if site.attributes.get(n)
    )  # fmt: skip
    return all(inside)
