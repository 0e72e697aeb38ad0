"""What floating point makes of a rule that is true of the reals: an adversarial search for a verdict.

For a direction (from the *source*, which a model has, to the *target*, which would take its place) and an element type:

* The source's **allowance** at a point is what the rounding of its own operations may add up to (a running error
  bound), and one unit of rounding of the result. Not its actual error there: that may be 0 by luck, and then every
  reassociation would be wrong.
* A point is **against** the direction where the target's result is further from the exact one than :data:`FACTOR`
  allowances, or infinite or ``nan`` where the source's is not.
* Where the source itself is further from the exact result than a unit of rounding of every variable explains (their
  *total* sensitivity: ``a − (a − x)`` does not depend on ``a``), it rounds on purpose, and what computes the exact
  result instead changes what the model does: the point is against the direction too.
* ``safe``: no point is against it. ``conditional``: none inside a window of magnitudes, or if some variables are
  themselves results of inexact arithmetic (*rounded*): a unit of rounding of those is then allowed as well.

Points come from :mod:`superopt.verifier.floats.adversarial_points`, and grow from the worst; ONNX Runtime has the last
word.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from superopt.ir.errors import SuperoptError
from superopt.ir.size_polynomial import value_at
from superopt.ir.terms import OperatorTerm, Term, VariableTerm, postorder
from superopt.ir.types import DType
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.rules.canonical import rule_text
from superopt.rules.float_verdicts import UNKNOWN, Directions, FloatVerdict
from superopt.rules.rule import Rule
from superopt.rules.typing import instances, type_terms, types_of
from superopt.verifier.exact.sampling import draw
from superopt.verifier.exact.testing import ExactTrial, trial_at
from superopt.verifier.floats.adversarial_points import (
    Points,
    confined,
    drawn,
    exponents,
    joined,
    mutated,
    ordinary,
    with_specials,
)
from superopt.verifier.floats.comparison import FACTOR, PointErrorAnalysis, analyse_errors, plain
from superopt.verifier.floats.conditions import CounterexamplePoints, finished, verdict_of
from superopt.verifier.floats.evaluation import (
    FORMATS,
    FloatFormat,
    PreciseValues,
    cone,
    degree_of,
    kernel_values,
    sensitivities,
    wide_values,
)
from superopt.verifier.floats.runtime_check import runtime_results
from superopt.verifier.floats.scalar_program import Node, ProgramTooLarge, StraightLineProgram

__all__ = ["FACTOR", "POINTS", "CounterexampleSearch", "RuleInstanceProgram", "examine", "measured", "sites_of"]

Array = np.ndarray[Any, Any]
POINTS = 2048  # drawn at each site before the worst are refined
_ROUNDS, _PARENTS, _CHILDREN = 3, 96, 8  # of refinement
_SPECIALS = 256
_RUN = 64  # points at which ONNX Runtime runs both sides: half of them the worst, half of them any
_SITES = 6
_SEARCHED = 2  # sites, the first, at which the worst points are refined; fewer points are drawn at the others
_COMMON = 250  # nodes of a site at which all points are evaluated
_WINDOWS = 12  # of conditions that are tried with points of their own
_CHECKED = 16  # elements of a result whose operations are compared
_MEASURED = 4  # elements of a result that are evaluated, of those that differ
_SIZES = (2, 4, 3, 4, 2, 4)  # drawn up to these, attempt by attempt


@dataclass(frozen=True, eq=False)
class RuleInstanceProgram:
    """A rule at one choice of sizes and attributes: its elementary operations, and pairs of results that should agree.

    Attributes:
        trial: the sizes.
        program: the operations of both sides.
        pairs: node of an element on the left, and on the right.
        places: of each pair: the root, and the position of the element.
        counts: elements of each real variable.
        attributes: the real attributes' magnitudes.
        variances: variables that BatchNormalization takes for a variance, which is never negative.
    """

    trial: ExactTrial
    program: StraightLineProgram
    pairs: tuple[tuple[int, int], ...]
    positions: tuple[tuple[int, int], ...]
    counts: Mapping[str, int]
    attributes: Mapping[str, float] = field(default_factory=dict)
    variances: frozenset[str] = frozenset()

    def meant(self, batch: Points) -> Points:
        """The points as the operators' documentation lets them be."""
        return {n: np.abs(a) if n in self.variances else a for n, a in batch.items()}

    def point_data(self, batch: Points, at: int) -> dict[str, object]:
        """A point, as JSON data: the first elements of each variable, the sizes and the attributes."""
        point = self.trial.point
        return {"sizes": {**point.sizes, **point.reals}} | {n: list(map(plain, a[:8, at])) for n, a in batch.items()}

    @property
    def different(self) -> list[int]:
        """The pairs that are not the same operations; a few of them."""
        found = [i for i, (a, b) in enumerate(self.pairs) if a != b]
        step = max(1, -(-len(found) // _MEASURED))
        return found[::step]


def sites_of(rule: Rule, rng: np.random.Generator, number: int = _SITES) -> list[RuleInstanceProgram]:
    """Sites of a rule; with real attributes, twice as many, of several magnitudes. Empty where there are none."""
    try:
        instance = instances(rule, (0,))[0]
        conditions = types_of(instance).lhs_obligations
    except (SuperoptError, IllTypedOperator):
        return []
    if any(s.kind == "real" for s in rule.attributes.values()):
        number *= 2
    trials: list[ExactTrial] = []
    for attempt in range(8 * number):
        point = draw(instance, 0, rng, conditions, _SIZES[attempt % len(_SIZES)])
        trial = None if point is None else trial_at(instance, point)
        if trial is not None and not trial.ill_typed:
            trials.append(trial)
    # two thirds with as few axes of one or two elements as may be: what there is to lose is seldom lost there
    varied = sorted(trials, key=lambda t: [sum(v < least for v in t.point.sizes.values()) for least in (2, 3)])
    ordered = [t for pair in zip(varied, varied[1:], trials, strict=False) for t in pair]
    sites: dict[str, RuleInstanceProgram] = {}
    for trial in ordered:
        if str(trial.point) not in sites:
            site = _site(trial, rng)
            if site is not None:
                sites[str(trial.point)] = site
        if len(sites) == number:
            break
    return list(sites.values())


def _site(trial: ExactTrial, rng: np.random.Generator) -> RuleInstanceProgram | None:
    shapes = {n: tuple(value_at(d, {}) for d in k.shape or ()) for n, k in trial.variables.items()}
    whole = {
        n: tuple(rng.integers(0, trial.below[n], prod(shapes[n])).tolist())
        for n, k in trial.variables.items() if k.dtype != DType.FLOAT32
    }  # fmt: skip
    types = {t: trial.meanings[t].outputs for t in trial.meanings}
    reals = frozenset(t for t in types if _is_real(t))
    _, run = type_terms((*trial.lhs, *trial.rhs), trial.variables, as_run=True)
    program = StraightLineProgram(run, whole, shapes, reals)
    places = _positions(trial, rng)
    try:
        pairs = tuple((program.element(trial.lhs[r], at), program.element(trial.rhs[r], at)) for r, at in places)
    except (ProgramTooLarge, ZeroDivisionError, OverflowError):
        return None
    counts = {n: prod(s) for n, s in shapes.items() if n not in whole}
    sizes = {n: abs(v) for n, v in trial.point.reals.items()}
    variances = {
        t.args[4].name for t in postorder(*trial.lhs, *trial.rhs)
        if isinstance(t, OperatorTerm) and t.op == "BatchNormalization" and isinstance(t.args[4], VariableTerm)
    }  # fmt: skip
    return RuleInstanceProgram(trial, program, pairs, tuple(places), counts, sizes, frozenset(variances))


_SMOOTH = frozenset({
    "exp", "log", "erf", "tanh", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh",
    "pow", "sqrt",
})  # fmt: skip
_UNROUNDED = frozenset({"read", "const", "neg", "abs", "max", "min", "to_type"})
_LOGICAL = frozenset({
    "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal", "Not", "And", "Or", "Xor", "IsNaN", "IsInf", "ArgMax",
    "ArgMin", "Shape", "Size", "NonZero",
})  # fmt: skip


def _is_real(app: OperatorTerm) -> bool:
    """Whether an application gives reals: rules have none of integers but for positions and conditions."""
    if app.op == "Cast":
        return str(dict(app.attributes).get("to")).startswith(("float", "bfloat"))
    return app.op not in _LOGICAL and str(dict(app.attributes).get("dtype", "float")).startswith(("float", "bfloat"))


def _positions(trial: ExactTrial, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Root and position of the elements to look at: of every root the first, the last, and some between."""
    found: list[tuple[int, int]] = []
    most = max(2, _CHECKED // len(trial.lhs))
    for root, term in enumerate(trial.lhs):
        count = prod(_shape_of(term, trial))
        chosen = range(count) if count <= most else {0, count - 1, *rng.integers(0, count, most - 2).tolist()}
        found += [(root, at) for at in sorted(chosen)]
    return found


def _shape_of(term: Term, trial: ExactTrial) -> tuple[int, ...]:
    kind = type_terms((term,), trial.variables)[0][term][0]
    return tuple(value_at(d, {}) for d in kind.shape or ())


def examine(rule: Rule, *, seed: int = 0, points: int = POINTS, runtime: bool = True) -> Directions:
    """The verdicts of both directions in float32, float16 and bfloat16 (``any``: in all).

    The same on every run: the seed of a rule follows from its text.

    Args:
        rule: a rule that is true of the reals.
        seed: another gives other points.
        points: drawn at each site, besides those that are refined.
        runtime: let ONNX Runtime run the worst points, and some others, in float32.
    """
    own = int.from_bytes(hashlib.sha256(rule_text(rule).encode()).digest()[:4], "big")
    rng = np.random.default_rng([seed, own])
    sites = sites_of(rule, rng)
    if not sites:
        return {way: {"any": UNKNOWN} for way in ("forward", "backward")}
    if not any(site.different for site in sites):
        same = FloatVerdict("safe", exact=True)
        return {way: {"any": same} for way in ("forward", "backward")}
    found: dict[str, dict[str, FloatVerdict]] = {"forward": {}, "backward": {}}
    for position, form in enumerate(FORMATS.values()):
        rng = np.random.default_rng([seed, own, position])
        single = form.dtype == DType.FLOAT32
        number = points if single else points // 2  # most of what is found does not depend on the type
        tables = measured(sites, form, rng, points=number, runtime=runtime and single)
        for way, verdict in zip(found, _confirmed(sites, form, rng, tables, number), strict=True):
            found[way][str(form.dtype)] = finished(verdict, form.dtype, (*sites[0].counts, *sites[0].attributes))
    return found


def _confirmed(
    sites: Sequence[RuleInstanceProgram],
    form: FloatFormat,
    rng: np.random.Generator,
    tables: tuple[CounterexamplePoints, CounterexamplePoints],
    points: int,
) -> list[FloatVerdict]:
    """The verdicts, once points inside their own windows are against none of their conditions."""
    asked: set[frozenset[tuple[str, tuple[int, int]]]] = set()
    while True:
        verdicts = [verdict_of(table, form, sites) for table in tables]
        windows = {frozenset(w.window.items()): w.window for v in verdicts for w in v.alternatives if w.window}
        new = [window for key, window in windows.items() if key not in asked]
        if not new or len(asked) > _WINDOWS:
            return verdicts
        asked |= windows.keys()
        for number, site in enumerate(sites):
            count = max(64, _number(site, points) // 8)
            batches = [confined(drawn(site.counts, count, form, rng), window, form, rng) for window in new]
            CounterexampleSearch(site, number, form, tables).at(joined(batches))


def measured(
    sites: Sequence[RuleInstanceProgram],
    form: FloatFormat,
    rng: np.random.Generator,
    *,
    points: int = POINTS,
    runtime: bool = False,
) -> tuple[CounterexamplePoints, CounterexamplePoints]:
    """What was found against each direction (left to right, right to left) in a type."""
    names = tuple(sites[0].counts)
    tables = (CounterexamplePoints(names), CounterexamplePoints(names))
    degree = max(degree_of(s.program.nodes, (n for pair in s.pairs for n in pair)) for s in sites)
    for table in tables:
        table.degree = degree
    for number, site in enumerate(sites):
        first = number < _SEARCHED
        count = _number(site, points if first else points // 4)
        batch = drawn(site.counts, count, form, rng) if site.counts else {}
        look = CounterexampleSearch(site, number, form, tables)
        scores = look.at(batch)
        for _ in range(_ROUNDS if site.counts and first else 0):
            batch = mutated(_worst(batch, scores, form, _PARENTS), _CHILDREN, form, rng)
            scores = look.at(batch)
        if site.counts:
            look.at_specials(with_specials(ordinary(site.counts, _SPECIALS, form, rng), rng))
        if runtime and site.counts and first:
            chosen = _worst(batch, scores, form, _RUN // 2)
            some = drawn(site.counts, _RUN // 2, form, rng)
            look.by_runtime(joined([chosen, some]))
    return tables


def _number(site: RuleInstanceProgram, points: int) -> int:
    """Points at a site: as many as asked, or fewer where each is long to evaluate, but an eighth at least."""
    return max(points // 8, min(points, points * _COMMON // max(1, len(site.program.nodes))))


def _worst(batch: Points, scores: Array, form: FloatFormat, number: int) -> Points:
    """The points with the largest scores, a third each by every score; what is at the ends of the range has its say
    without help, so most come from the middle."""
    low, high = exponents(batch)
    reach = 0.6 * form.exponents[1]
    middle = (low.min(axis=0) > -reach) & (high.max(axis=0) < reach)
    order = np.where(middle, scores, -1.0)
    each = max(1, number // len(scores))
    chosen = np.unique(np.argsort(-order, axis=1, kind="stable")[:, :each].ravel())
    return {n: a[:, chosen] for n, a in batch.items()}


@dataclass
class CounterexampleSearch:
    """Evaluates both sides of a site at points, and notes what is against either direction."""

    site: RuleInstanceProgram
    number: int
    form: FloatFormat
    tables: tuple[CounterexamplePoints, ...] = ()

    def against(self, batch: Points, *, backward: bool) -> Iterator[tuple[Points, PointErrorAnalysis]]:
        """Of each result the points that may be against a direction, as they stand if no variable is rounded.

        How sensitive a result is to its variables is looked at there only: elsewhere it excuses nothing.
        """
        nodes, form = self.site.program.nodes, self.form
        pairs = [self.site.pairs[i][:: -1 if backward else 1] for i in self.site.different]
        count = next((a.shape[1] for a in batch.values()), 1)
        floats = kernel_values(nodes, cone(nodes, (n for pair in pairs for n in pair)), batch, form.dtype)
        wide = wide_values(nodes, cone(nodes, (source for source, _ in pairs)), batch, form)
        for source, target in pairs:
            first = analyse_errors(
                _wide(floats[source], count), _wide(floats[target], count), _wide(wide.values[source], count),
                _wide(wide.errors[source], count), np.zeros((0, count)), form, self._roundings(source),
                np.zeros(count, bool),
            )  # fmt: skip
            chosen = np.flatnonzero(~(first.error <= FACTOR * first.allowance) | first.deliberate)
            if chosen.size:
                values = {n: _at(v, chosen) for n, v in wide.values.items()}
                there = PreciseValues(values, {n: _at(e, chosen) for n, e in wide.errors.items()})
                results = {n: _at(v, chosen) for n, v in floats.items()}
                error_analysis = self._direction(source, target, results, there, chosen.size)
                yield {n: a[:, chosen] for n, a in batch.items()}, error_analysis

    def at(self, batch: Points) -> Array:
        """Note the points that are against a direction; scores of all: [direction and allowance, point]."""
        batch = self.site.meant(batch)
        nodes = self.site.program.nodes
        pairs = [self.site.pairs[i] for i in self.site.different]
        count = next((a.shape[1] for a in batch.values()), 1)
        scores = np.zeros((4, count))
        order = cone(nodes, (n for pair in pairs for n in pair))
        floats = kernel_values(nodes, order, batch, self.form.dtype)
        wide = wide_values(nodes, order, batch, self.form)
        for pair in pairs:
            for backward, table in enumerate(self.tables):
                source, target = pair[::-1] if backward else pair
                error_analysis = self._direction(source, target, floats, wide, count)
                table.note(error_analysis, batch, self.number, self.site.attributes, self.form)
                plain, eased = error_analysis.score()
                scores[2 * backward] = np.maximum(scores[2 * backward], plain)
                scores[2 * backward + 1] = np.maximum(scores[2 * backward + 1], eased)
        return scores

    def _direction(
        self, source: int, target: int, floats: Mapping[int, Array], wide: PreciseValues, count: int
    ) -> PointErrorAnalysis:  # fmt: skip
        nodes, form = self.site.program.nodes, self.form
        below = cone(nodes, [source])
        sens = sensitivities(nodes, below, wide, source)
        names = tuple(self.site.counts)
        each = np.stack([_wide(sens.get(n, np.zeros(())), count) for n in names]) if names else np.zeros((0, count))
        error_analysis = analyse_errors(
            _wide(floats[source], count), _wide(floats[target], count), _wide(wide.values[source], count),
            _wide(wide.errors[source], count), each, form, self._roundings(source),
            _lost(nodes, below, floats, wide, form, count),
        )  # fmt: skip
        return (
            error_analysis
            if not error_analysis.deliberate.any()
            else self._by_chance(error_analysis, source, below, wide)
        )

    def _by_chance(
        self, error_analysis: PointErrorAnalysis, source: int, below: Sequence[int], wide: PreciseValues
    ) -> PointErrorAnalysis:
        """Without purpose in what rounds no more than its terms add up to without their signs.

        A trick adds and takes away the same number, so that without signs nothing of it is left either. Terms of
        different variables cancel by chance, in a product of three matrices to all orders that are looked at.
        """
        nodes, at = self.site.program.nodes, np.flatnonzero(error_analysis.deliberate)
        sizes: dict[str, dict[int, Array]] = {}
        for number in below:
            if nodes[number][0] == "read":
                name, element = nodes[number][1:]
                sizes.setdefault(name, {})[element] = np.abs(_at(wide.values[number], at))
        whole = np.abs(wide_values(nodes, below, sizes, self.form).values[source])
        own = np.abs(error_analysis.source[at].astype(np.longdouble) - error_analysis.exact[at])
        deliberate = error_analysis.deliberate.copy()
        deliberate[at] = ~(own <= FACTOR * self._roundings(source) * self.form.unit * whole)
        return replace(error_analysis, deliberate=deliberate)

    def _roundings(self, source: int) -> float:
        """How many roundings a side makes, and two."""
        nodes = self.site.program.nodes
        return 2.0 + sum(nodes[n][0] not in _UNROUNDED for n in cone(nodes, [source]))

    def by_runtime(self, batch: Points) -> None:
        """The same, with what ONNX Runtime computes in the place of the model of kernels."""
        batch = self.site.meant(batch)
        made = runtime_results(self.site, batch)
        if made is None:
            return
        nodes = self.site.program.nodes
        pairs = [self.site.pairs[i] for i in self.site.different]
        count = next(a.shape[1] for a in batch.values())
        order = cone(nodes, (n for pair in pairs for n in pair))
        floats = kernel_values(nodes, order, batch, self.form.dtype)
        wide = wide_values(nodes, order, batch, self.form)
        for position, (left, right) in enumerate(pairs):
            sides = {**floats, left: made[0][position], right: made[1][position]}
            for backward, table in enumerate(self.tables):
                source, target = (right, left) if backward else (left, right)
                error_analysis = self._direction(source, target, sides, wide, count).with_actual_error()
                table.note(error_analysis, batch, self.number, self.site.attributes, self.form, "ONNX Runtime")

    def kernels(self, batch: Points, directions: Iterable[bool]) -> Iterator[tuple[bool, PointErrorAnalysis]]:
        """What ONNX Runtime's kernels of the type make of directions, with what the source is really off by allowed.

        Nothing where the runtime has no such kernels, or where the type does not hold the constants as float32 does.
        """
        nodes, form = self.site.program.nodes, self.form
        pairs = [self.site.pairs[i] for i in self.site.different]
        order = cone(nodes, (n for pair in pairs for n in pair))
        if form.dtype == DType.FLOAT64 and any(_is_long(nodes[n]) for n in order):
            return
        made = runtime_results(self.site, batch, dtype=form.dtype)
        if made is None:
            return
        count = next(a.shape[1] for a in batch.values())
        floats = kernel_values(nodes, order, batch, DType.FLOAT32)
        wide = wide_values(nodes, order, batch, form)
        for position, (left, right) in enumerate(pairs):
            sides = {**floats, left: made[0][position], right: made[1][position]}
            for backward in directions:
                source, target = (right, left) if backward else (left, right)
                yield backward, self._direction(source, target, sides, wide, count).with_actual_error()

    def at_specials(self, batch: Points) -> None:
        """What an infinity or ``nan`` among the operands does to each side."""
        batch = self.site.meant(batch)
        nodes = self.site.program.nodes
        pairs = [self.site.pairs[i] for i in self.site.different]
        floats = kernel_values(nodes, cone(nodes, (n for p in pairs for n in p)), batch, self.form.dtype)
        count = next(a.shape[1] for a in batch.values())
        for pair in pairs:
            for backward, table in enumerate(self.tables):
                source, target = (_wide(floats[n], count) for n in (pair[::-1] if backward else pair))
                table.special(source, target)


def _is_long(node: Node) -> bool:
    """Whether a constant is one that float32 rounds."""
    return bool(node[0] == "const" and float(np.float32(float(node[1]))) != node[1])


def _wide(array: Array, count: int) -> Array:
    return np.broadcast_to(np.asarray(array), (count,))


def _at(array: Array, chosen: Array) -> Array:
    return array if array.size == 1 else array[chosen]  # a constant is the same everywhere


def _lost(
    nodes: Sequence[Node], below: Sequence[int], floats: Mapping[int, Array], wide: PreciseValues, form: FloatFormat,
    count: int,
) -> Array:  # fmt: skip
    """Where the source rounds, but not on purpose: an intermediate result is infinite, or below the normal numbers;
    or anywhere if it goes through a root, an exponential or the like: no trick of rounding is made of those."""
    least = 2.0 ** form.exponents[0]
    lost = np.zeros(count, bool)
    for number in below:
        name = nodes[number][0]
        if name in _SMOOTH:
            return np.ones(count, bool)
        if name in ("mul", "div", "inv", "to_type"):
            size = np.abs(wide.values[number])
            lost |= (size < least) & (size > 0)
        lost |= ~np.isfinite(floats[number])
    return lost
