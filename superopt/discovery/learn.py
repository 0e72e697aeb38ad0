"""Learning from models: their own parts are left sides, and cheaper equals of these are solved for.

Parts come from the models and from what the library's search leaves of them: there, what the library knows has been
done. Parts from which there is most to gain by operator come first; an equal of a part that holds others with known
equals has to gain more than those. What the library derives is not proved again; what is proved for all sizes is judged
in floating point, minimised, checked afresh and written as a folder that ``--rules`` takes. Each part is a chunk of
work that is kept, so a run that was stopped goes on where it was. With a recorded profile for prices, the result is a
function of the models and of which parts there was time for.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from superopt.cost import CostModel, graph_cost
from superopt.discovery.candidates import restricted
from superopt.discovery.config import WEIGHTS, DiscoveryConfig, OperatorVocabulary
from superopt.discovery.derive import QUICK_ROUNDS, all_rewrites_of, derived, parts_of, reached, rewrites_of
from superopt.discovery.discover import finished, write_library
from superopt.discovery.expected_rule_gains import priced_at
from superopt.discovery.mining import MinedSubgraph, QueuedSubgraph, SubgraphQueue, mined
from superopt.discovery.result_cache import (
    UNBOUNDED,
    DiscoveryResultCache,
    ResourceBounds,
    ResourceBoundsExceeded,
    code_digest,
    digest_of,
)
from superopt.discovery.right_side_solver import RightSideSolver
from superopt.discovery.solved_right_sides import SolvedRightSides, solve_one
from superopt.discovery.symbolic_generalisation import SynthesisProblem, lifted
from superopt.discovery.vocabulary_exploration import VocabularyExplorationResult
from superopt.fleet import TaskJournal, WorkerPool
from superopt.formats.safe_file_access import replace_file
from superopt.ir.graph import Graph
from superopt.ir.size_polynomial import substitute
from superopt.ir.symbolic_size_binding import sizes_fed
from superopt.ir.terms import OperatorTerm, postorder, variables
from superopt.ir.types import DType
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.ops.shape_inference import infer
from superopt.program.graph_program import program_of
from superopt.rules.canonical import map_terms, text_digest
from superopt.rules.float_verdicts import FloatVerdictStore, float_key
from superopt.rules.grammar import format_rule, parse_rule
from superopt.rules.library import RuleLibrary
from superopt.rules.rule import Rule, TensorVariableType
from superopt.rules.scanner import RuleError
from superopt.rules.typing import operator_of, types_of
from superopt.verifier.admission import float_verdicts

__all__ = ["LearningResult", "SubgraphLearningResult", "applies", "learn"]

FAMILY = "learned"
_WRITING = 0.1  # share of the time that is kept for minimising, besides what proving what was found took
_LONGEST = 0.4  # share of the time that one part may take: a verdict in floating point alone may be 20 seconds
_CHEAPER = 0.995  # of a part's price: less than that is noise
_ALIKE = 0.9  # of the price, for as many operators
_LEAST_SHARE = 2e-4  # of a model's cost: a part of which all operators but the dearest cost less is not looked at
Say = Callable[[str], None]


@dataclass(frozen=True)
class SubgraphLearningResult:
    """The rules that one target gave.

    Attributes:
        rules: proved, and not derived by the library.
        candidate: what was solved for, over the target's own leaves; ``None`` where nothing was.
        candidates: right sides that were solved for; ``derived`` of them by the library.
        insoluble, unnamed: skeletons that no weights make equal, and whose weights no expression was found for.
        unusable: rules that are proved, and that floating point does not bear.
        shortcut: whether the library derives the candidate, but not from its left side in the rounds that a search has.
    """

    rules: tuple[Rule, ...]
    candidate: Rule | None
    candidates: int
    derived: int
    insoluble: int
    unnamed: int
    unusable: int = 0
    shortcut: bool = False

    def as_json(self) -> dict[str, object]:
        """Plain data."""
        own = None if self.candidate is None else format_rule(self.candidate)
        return {**vars(self), "rules": [format_rule(r) for r in self.rules], "candidate": own}

    @staticmethod
    def from_json(data: Mapping[str, object]) -> SubgraphLearningResult:
        """The inverse of :meth:`as_json`."""
        rows, own = data["rules"], data["candidate"]
        assert isinstance(rows, list)
        rules = tuple(parse_rule(row, where="chunk", family=FAMILY) for row in rows)
        candidate = parse_rule(own, where="chunk", family=FAMILY) if isinstance(own, dict) else None
        counts = {k: v for k, v in data.items() if k not in ("rules", "candidate")}
        return SubgraphLearningResult(rules, candidate, **counts)  # type: ignore[arg-type]


@dataclass
class LearningResult:
    """The result of a run.

    Attributes:
        rules: as written: proved for all sizes, usable in floating point, not derived by the library or each other,
            but for shortcuts.
        targets: parts of the models that were worth looking at; ``looked_at`` of them were, ``solved`` gave rules,
            and ``inside`` others was one for which an equal was found.
        derived: equals that follow from the library.
        saved_us: by model: what the rules save where they were found, places that overlap counted once.
        model_us: by model: what it costs.
        left_out: rules that are proved, and that floating point does not bear.
        shortcuts: those of the rules that the library derives, but not from the left side in the rounds a search has.
    """

    rules: tuple[Rule, ...] = ()
    targets: int = 0
    looked_at: int = 0
    solved: int = 0
    inside: int = 0
    derived: int = 0
    saved_us: dict[str, float] = field(default_factory=dict)
    model_us: dict[str, float] = field(default_factory=dict)
    left_out: int = 0
    shortcuts: int = 0
    seconds: float = 0.0

    @property
    def summary(self) -> str:
        """How many rules, and of which kind, in words."""
        own = len(self.rules) - self.shortcuts
        shortcuts = f", and {self.shortcuts} that it derives but no search reaches" if self.shortcuts else ""
        return f"{own} rules that the library does not derive{shortcuts}"


def learn(
    models: Mapping[str, Graph], library: RuleLibrary, prices: CostModel, *, out: Path, asked: TaskJournal, target: str,
    seconds: float, left: Mapping[str, Graph] | None = None, sizes: Mapping[str, int] | None = None, seed: int = 0,
    say: Say = lambda _: None,
) -> LearningResult:  # fmt: skip
    """Find rules for parts of models that the library does not derive, and write them to a folder.

    Args:
        models: by name.
        library: what is known.
        prices: of the device.
        out: the folder; finished work is kept in its ``.chunks``.
        asked: what claiming the folder gave.
        target: the name of the prices: other prices, other chunks.
        seconds: for everything.
        left: what the library's search makes of the models, by name.
        sizes: of symbolic dimensions.
        seed: of every random choice.
        say: told what happens.

    Raises:
        OSError: the folder cannot be written.
    """
    cpu, end = time.process_time(), time.time() + seconds
    config = _config(models, target, seed)
    outcome = LearningResult()
    agenda = SubgraphQueue(_targets(models, left or {}, prices, sizes or {}, outcome), _LEAST_SHARE)
    outcome.targets = len(agenda.waiting)
    solver = _TargetSolver(library, prices, config, DiscoveryResultCache(out / ".chunks"), target)
    solved_targets: list[_SolvedTarget] = []
    while (entry := agenda.next()) is not None:
        until = end - _WRITING * seconds - solver.proving  # what is written is proved once more
        solver.bounds = ResourceBounds(min(until, time.time() + _LONGEST * seconds))
        try:
            result, saving = solver.solve(entry.part, entry.reach)
        except ResourceBoundsExceeded:
            if time.time() < until:
                continue  # others are not kept from their turn by one
            say(f"out of time after {outcome.looked_at} of {outcome.targets} parts; run again to go on")
            break
        outcome.looked_at += 1
        outcome.derived += result.derived
        outcome.left_out += result.unusable
        if result.candidates:
            agenda.settle(entry, saving)
        if result.rules:
            solved_targets.append(_SolvedTarget(entry.source, entry.part, result, saving))
            say(f"{entry.source[0]}: {result.rules[0].lhs[0]} = {result.rules[0].rhs[0]}")
    outcome.inside = agenda.inside
    _finish(outcome, solved_targets, config, out, asked, say)
    outcome.seconds = time.process_time() - cpu
    _log(outcome, out)
    return outcome


def _config(models: Mapping[str, Graph], target: str, seed: int) -> DiscoveryConfig:
    """Effort, and a theme that says what the names of mined leaves mean."""
    text = json.dumps([sorted(models), target, seed])
    theme = OperatorVocabulary(FAMILY, FAMILY, (), 6, {}, frozenset(WEIGHTS), {}, (), text=text, join=False)
    return DiscoveryConfig(seed, 4, 8, 10.0, 0, (theme,))


def _targets(
    models: Mapping[str, Graph],
    left: Mapping[str, Graph],
    prices: CostModel,
    given: Mapping[str, int],
    outcome: LearningResult,
) -> list[QueuedSubgraph]:
    """The models' parts that are worth looking at, and those of what the library leaves of them."""
    every: list[QueuedSubgraph] = []
    for name, graph in models.items():
        sizes = sizes_fed(graph, given)  # parts are mined at sizes, and lifted to any
        typing = infer(graph, sizes)
        whole = outcome.model_us[name] = graph_cost(graph, prices, typing, sizes=sizes).us
        programs = [(False, graph, typing)]
        if name in left:
            typed = infer(left[name], sizes)
            if graph_cost(left[name], prices, typed, sizes=sizes).us < whole:  # else it is not what will be optimised
                programs.append((True, left[name], typed))
        for rewritten, some, typed in programs if whole else ():
            parts = mined(program_of(some, typed), prices)
            every.extend(QueuedSubgraph((name, rewritten), part, whole) for part in parts)
    return every


def applies(rule: Rule, candidate: Rule, sizes: Mapping[str, int]) -> bool:
    """Whether a rule does at the model's sizes and attributes what the candidate does that led to it.

    A candidate that is false in general may hold, and be proved, under conditions that the model does not meet.
    """
    forall = {
        n: replace(s, shape=tuple(substitute(d, sizes) for d in s.shape)) if isinstance(s, TensorVariableType) else s
        for n, s in candidate.forall.items()
    }
    (left,), (right,) = (map_terms(side, {}, sizes) for side in (candidate.lhs, candidate.rhs))
    here = restricted(Rule("candidate", forall, (), (left,), (right,)))
    weights = frozenset(n for n in here.tensors if n in WEIGHTS)
    rewrite_set = rewrites_of([replace(rule, id="learnt")], parts_of(here))
    return reached(here, rewrite_set, rounds=QUICK_ROUNDS, weights=weights)


def _lighter(
    rule: Rule, weights: frozenset[str], left: float, right: float, views: Collection[str] = ()
) -> bool:  # fmt: skip
    """Whether the right side runs fewer operators, or as many that cost a good deal less: prices have errors. Operators
    that only rename memory, ``views``, come last; those that only put elements in order count where the price does not
    say that they are worth it."""
    before, after = (
        (sum(t.op not in views for t in running), len(running), sum(operator_of(t).family != "shape" for t in running))
        for running in (
            [t for t in postorder(*side) if isinstance(t, OperatorTerm) and not set(variables(t)) <= weights]
            for side in (rule.lhs, rule.rhs)
        )
    )
    as_many = after[0] == before[0] or 0 < after[2] <= before[2]
    return after[:2] < before[:2] or (as_many and right < _ALIKE * left)


@dataclass(frozen=True)
class _SolvedTarget:
    """A target that gave rules: model, target, result, and microseconds saved at each of its occurrences."""

    source: tuple[str, bool]
    part: MinedSubgraph
    result: SubgraphLearningResult
    saving: float


@dataclass
class _TargetSolver:
    """Solves targets, remembers results, and counts the seconds that proofs of their rules took."""

    library: RuleLibrary
    prices: CostModel
    config: DiscoveryConfig
    chunks: DiscoveryResultCache
    target: str
    bounds: ResourceBounds = UNBOUNDED
    proving: float = 0.0
    submitted: float = 0.0  # time.time() when the last candidate went on to be proved
    results: dict[str, SubgraphLearningResult] = field(default_factory=dict)
    derivable: dict[str, bool] = field(default_factory=dict)

    def solve(self, part: MinedSubgraph, reach: float = 0.0) -> tuple[SubgraphLearningResult, float]:
        """The result of a target, which is kept, and what its rule saves once, in microseconds.

        Args:
            part: the target.
            reach: what is to be saved at least.

        Raises:
            ResourceBoundsExceeded: there is no time left; an unfinished target has no result.
        """
        self.bounds.check()
        most = round(min(_CHEAPER, 1.0 - reach / part.us), 3)
        forms = list(lifted(part.term, part.kinds, part.weights, dict.fromkeys(part.kinds, "f")))
        best = SubgraphLearningResult((), None, 0, 0, 0, 0)
        for problem, values in forms:
            whole = replace(problem, forall=restricted(problem.rule).forall)
            sizes = {n: int(v) for n, v in values.items() if float(v).is_integer()}
            found = self._result_of(whole, sizes, part.us, most)
            if found.candidate is not None:
                us = self.price(found.candidate, sizes, part.us)
                return found, 0.0 if us is None else us[0] - us[1]
            best = found
        return best, 0.0

    def _result_of(
        self, problem: SynthesisProblem, sizes: Mapping[str, int], us: float, most: float
    ) -> SubgraphLearningResult:
        """The result of a problem at these sizes, which decide what is cheaper."""
        types = sorted((n, str(s)) for n, s in problem.forall.items())
        text = f"{problem.term} {types} {sorted(sizes.items())} {us:.3f} {most}"
        key = digest_of("target", code_digest(), text, self.target, self.config.seed, sorted(self.library))
        if key not in self.results:
            data = self.chunks.get(key)
            self.results[key] = (
                self._solved_anew(problem, sizes, us, most) if data is None else SubgraphLearningResult.from_json(data)
            )
            if data is None:
                self.chunks.put(key, self.results[key].as_json())
        return self.results[key]

    def _solved_anew(
        self, problem: SynthesisProblem, sizes: Mapping[str, int], us: float, most: float
    ) -> SubgraphLearningResult:
        solution = SolvedRightSides()
        solver = RightSideSolver(
            problem, cost=lambda rule: self.price(rule, sizes, us), most=most, seed=self.config.seed, bounds=self.bounds
        )

        def usable(rule: Rule) -> bool:
            return solver.last is not None and applies(rule, solver.last, sizes) and self._borne(rule)

        try:
            solve_one(solver, self.config, self.chunks, FAMILY, self._finds, solution, usable)
        except (IllTypedOperator, RuleError):
            return SubgraphLearningResult((), None, 0, 0, 0, 0)
        insoluble, unnamed = solution.without
        shortcut = bool(solution.rules) and solver.last is not None and self._derives(solver.last)
        return SubgraphLearningResult(
            tuple(solution.rules),
            solver.last,
            solution.candidates,
            solution.derived,
            insoluble,
            unnamed,
            solution.unusable,
            shortcut,
        )

    def price(self, rule: Rule, sizes: Mapping[str, int], us: float) -> tuple[float, float] | None:
        """Microseconds of both sides at the sizes that the model has; holes are weights.

        The left side costs what the part does where it is, ``us``, if that is less than by itself.
        """
        weights = frozenset(n for n in rule.tensors if n in WEIGHTS or n.startswith("?"))
        try:
            found = priced_at(rule, types_of(rule).types, sizes, weights, self.prices)
        except (RuleError, IllTypedOperator, ZeroDivisionError):
            return None
        if found is None:
            return None
        left, right = min(found[0], us), found[1]
        return (left, right) if _lighter(rule, weights, left, right, self.prices.backend.views) else None

    def _finds(self, rule: Rule) -> bool:
        """Whether the library leads a search from a candidate's left side to its right, in as few rounds as it has.

        Rules over other operators than the candidate's are detours, which a search has no room for.
        """
        key = text_digest(rule)
        if key not in self.derivable:
            self.bounds.check()
            weights = frozenset(n for n in rule.tensors if n in WEIGHTS)
            rewrite_set = rewrites_of(self._near(rule), parts_of(rule))
            self.derivable[key] = reached(
                replace(rule, id="candidate"), rewrite_set, rounds=QUICK_ROUNDS, weights=weights
            )
        self.submitted = time.time()
        return self.derivable[key]

    def _derives(self, rule: Rule) -> bool:
        """Whether the library derives a candidate, both sides of which it is given, by whichever of its rules."""
        named, parts = replace(rule, id="candidate"), parts_of(rule)
        self.bounds.check()
        if derived(named, rewrites_of(self._near(rule), parts)) is not None:
            return True
        self.bounds.check()
        every = all_rewrites_of([self.library[i] for i in self.library], parts)
        return derived(named, every) is not None

    def _near(self, rule: Rule) -> list[Rule]:
        return [r for i in self.library if (r := self.library[i]).operators <= rule.operators]

    def _borne(self, rule: Rule) -> bool:
        """Whether floating point bears a rule from the model's side to the cheaper one, under conditions or always."""
        self.proving += time.time() - self.submitted
        self.bounds.check()
        floats = FloatVerdictStore({float_key(rule): float_verdicts(rule)})
        self.submitted = time.time()
        return bool(floats.verdict(rule, backward=False, dtype=DType.FLOAT32).alternatives_in("standard"))


def _finish(
    outcome: LearningResult,
    solved_targets: Sequence[_SolvedTarget],
    config: DiscoveryConfig,
    out: Path,
    journal: TaskJournal,
    say: Say,
) -> None:
    """Rules minimised, checked afresh, and written."""
    proved = [r for target in solved_targets for r in target.result.rules]
    every = frozenset(range(len(proved)))
    rules, verdicts = finished(proved, every, config, out / ".chunks", journal, WorkerPool(), say)
    origin = f"discovered (weights solved for, from {', '.join(sorted({t.source[0] for t in solved_targets}))})"
    outcome.rules = tuple(replace(r, origin=origin) for r in rules)
    outcome.solved = len(solved_targets)
    kept = {text_digest(r) for r in rules}
    outcome.shortcuts = len(
        kept & {text_digest(r) for t in solved_targets if t.result.shortcut for r in t.result.rules}
    )
    write_library(
        out, outcome.rules, {r.id: verdicts[r.id] for r in rules}, [_explored(outcome, solved_targets)], config
    )
    for name in outcome.model_us:
        outcome.saved_us[name] = max(
            _saved([t for t in solved_targets if t.source == (name, way)]) for way in (False, True)
        )


def _saved(solved_targets: Sequence[_SolvedTarget]) -> float:
    """What rewriting saves, the best places first, each step rewritten at most once."""
    taken: set[int] = set()
    total = 0.0
    offers = [(target.saving, place) for target in solved_targets for place in target.part.occurrences]
    for gain, place in sorted(offers, key=lambda o: (-o[0], sorted(o[1]))):
        if gain > 0 and not place & taken:
            taken |= place
            total += gain
    return total


def _explored(outcome: LearningResult, solved_targets: Sequence[_SolvedTarget]) -> VocabularyExplorationResult:
    """The run in the form of a theme's, for the library's own files."""
    candidates = sum(target.result.candidates for target in solved_targets)
    return VocabularyExplorationResult(
        FAMILY, outcome.rules, (), True, candidates, outcome.derived, candidates, 0, 0, len(outcome.rules), (), (), {}
    )


def _log(outcome: LearningResult, out: Path) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    data = {k: v for k, v in vars(outcome).items() if k != "rules"}
    text = json.dumps({**data, "rules": [r.id for r in outcome.rules], "peak_mb": round(usage, 1)}, indent=1)
    replace_file(out / "run.json", f"{text}\n".encode(), force=True)
