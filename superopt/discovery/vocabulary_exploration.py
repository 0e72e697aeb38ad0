"""One theme from vocabulary to proved rules: a pure function of the theme and the seed, hence a chunk of work."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from superopt.discovery.candidate_proofs import CandidateOutcomes, CandidateProver
from superopt.discovery.candidates import candidates, operator_count
from superopt.discovery.config import DiscoveryConfig, OperatorVocabulary
from superopt.discovery.derive import QUICK_ROUNDS, SHORTCUT, DerivabilityEGraph, derived, rewrites_of
from superopt.discovery.enumerate import EnumerationCounts, enumerate_terms, points_of
from superopt.discovery.equal_term_pairs import EqualTermPairs
from superopt.discovery.expected_rule_gains import expected, oriented
from superopt.discovery.result_cache import UNBOUNDED, DiscoveryResultCache, ResourceBounds, code_digest, digest_of
from superopt.discovery.solved_right_sides import solve_all
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.rules.canonical import rule_text
from superopt.rules.grammar import format_rule, parse_rule
from superopt.rules.rule import Rule
from superopt.verifier.exact.sampling import SizeSample

__all__ = [
    "VocabularyEnumeration", "VocabularyExplorationResult", "VocabularyCandidates", "explore", "fingerprint_points",
    "key_of", "prepared",
]  # fmt: skip

_GROWTH = 6000  # e-nodes that one rule may add to the universe of candidates
_MATCHES = 3000
_LOCAL_ROUNDS, _LOCAL_NODES = 3, 600
_PAYS = 0.9  # a shortcut's cheaper side costs at most this share of the other


@dataclass(frozen=True)
class VocabularyEnumeration:
    """What of a theme's enumeration is gone on with: coinciding terms, in order, and counts."""

    pairs: EqualTermPairs
    levels: tuple[EnumerationCounts, ...]
    complete: bool

    def prepared(self, theme: OperatorVocabulary) -> VocabularyCandidates:
        """With its candidates."""
        return VocabularyCandidates(tuple(candidates(theme, self.pairs)), self.levels, self.complete, {})


@dataclass(frozen=True)
class VocabularyCandidates:
    """What a theme's candidates are, whatever is known already; ``log`` as that of
    :class:`VocabularyExplorationResult`."""

    candidates: tuple[Rule, ...]
    levels: tuple[EnumerationCounts, ...]
    complete: bool
    log: Mapping[str, float]

    def prepared(self, theme: OperatorVocabulary) -> VocabularyCandidates:
        """As it is."""
        return self


def fingerprint_points(theme: OperatorVocabulary, config: DiscoveryConfig) -> list[SizeSample]:
    """Sizes and attributes at which a theme's terms are compared."""
    return points_of(
        theme, max(config.instances, theme.instances), np.random.default_rng([config.seed, int(theme.digest[:8], 16)])
    )


@dataclass(frozen=True)
class VocabularyExplorationResult:
    """What a theme gave.

    Attributes:
        rules: proved, in the order in which they were found.
        levels: terms, classes and coincidences up to each size.
        candidates: after renaming; ``derived`` of them follow from rules kept before them.
        log: times in seconds and peak memory in MB of the process, which are not part of the result.
    """

    theme: str
    rules: tuple[Rule, ...]
    levels: tuple[EnumerationCounts, ...]
    complete: bool
    candidates: int
    derived: int
    tested: int
    refuted: int
    unknown: int
    proved: int
    near_misses: tuple[Mapping[str, object], ...]
    undecided: tuple[Mapping[str, object], ...]
    log: Mapping[str, float]

    def as_json(self) -> dict[str, object]:
        """Plain data."""
        data: dict[str, object] = dict(vars(self))
        data["rules"] = [{**format_rule(r), "family": r.family} for r in self.rules]
        data["levels"] = [vars(level) for level in self.levels]
        data["near_misses"], data["undecided"] = list(self.near_misses), list(self.undecided)
        data["log"] = dict(self.log)
        return data

    @staticmethod
    def from_json(data: Mapping[str, object]) -> VocabularyExplorationResult:
        """The inverse of :meth:`as_json`."""
        values = dict(data)
        rows = values["rules"]
        assert isinstance(rows, list)
        rules = []
        for row in rows:
            family = row.pop("family")
            rules.append(parse_rule(row, where="chunk", family=family))
        levels, misses, open_ = values["levels"], values["near_misses"], values["undecided"]
        assert isinstance(levels, list)
        assert isinstance(misses, list)
        assert isinstance(open_, list)
        values |= {
            "rules": tuple(rules),
            "levels": tuple(EnumerationCounts(**v) for v in levels),
            "near_misses": tuple(misses),
            "undecided": tuple(open_),
        }
        return VocabularyExplorationResult(**values)  # type: ignore[arg-type]


def explore(
    theme: OperatorVocabulary,
    config: DiscoveryConfig,
    folder: str | None = None,
    progress: Callable[[str], None] | None = None,
    bounds: ResourceBounds = UNBOUNDED,
    known: Sequence[Rule] = (),
    enumerated: VocabularyEnumeration | VocabularyCandidates | None = None,
) -> VocabularyExplorationResult:
    """Enumerate a theme, and turn its coincidences into proved rules none of which the earlier ones derive.

    Args:
        theme: the vocabulary.
        config: seed and effort.
        folder: where verdicts reached so far are kept.
        progress: called with a line of text now and then.
        bounds: when to give up.
        known: proved rules of other themes: what they derive is not looked for again.
        enumerated: its terms, where they were enumerated already, or its candidates.

    Raises:
        ResourceBoundsExceeded: time or memory is used up. Verdicts reached so far are in the folder.
    """
    chunks = DiscoveryResultCache(None if folder is None else Path(folder))
    return _explored(theme, config, chunks, progress or _silent, bounds, known, enumerated)


def key_of(theme: OperatorVocabulary, config: DiscoveryConfig, known: Sequence[Rule]) -> str:
    """Digest of everything that decides what :func:`explore` gives."""
    effort = [config.seed, config.instances, config.trials, config.prove_seconds, config.terms]
    return digest_of("explored", code_digest(), theme.text, theme.operators, effort, list(map(rule_text, known)))


def _explored(
    theme: OperatorVocabulary,
    config: DiscoveryConfig,
    chunks: DiscoveryResultCache,
    say: Callable[[str], None],
    bounds: ResourceBounds,
    known_rules: Sequence[Rule],
    enumerated: VocabularyEnumeration | VocabularyCandidates | None,
) -> VocabularyExplorationResult:
    bounds.check()
    started = time.process_time()
    if theme.solve:
        return _solved(theme, config, chunks, say, bounds, known_rules, started)
    if enumerated is None:
        enumerated = prepared(theme, config, say, bounds)
    started = time.process_time()
    enumeration = enumerated.prepared(theme)
    del enumerated
    proposals, log = enumeration.candidates, dict(enumeration.log)
    say(f"{theme.name}: {len(proposals)} candidates")
    prover = CandidateProver(config, theme, chunks, bounds)
    kept_rules, followed = _select(
        theme, fingerprint_points(theme, config)[0], proposals, prover, say, bounds, known_rules
    )
    tally: CandidateOutcomes = prover.tally
    log |= {
        "seconds": log.get("seconds", 0.0) + time.process_time() - started,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }  # fmt: skip
    for name, some in (("candidates", proposals), ("rules", kept_rules)):
        for size, count in Counter(max(operator_count(*r.lhs), operator_count(*r.rhs)) for r in some).items():
            log[f"size_{size}_{name}"] = count
    return VocabularyExplorationResult(
        theme.name, tuple(kept_rules), enumeration.levels, enumeration.complete, len(proposals),
        followed, tally.tested, tally.refuted, tally.unknown, tally.proved, tuple(tally.near_misses),
        tuple(tally.undecided), log,
    )  # fmt: skip


def prepared(
    theme: OperatorVocabulary,
    config: DiscoveryConfig,
    say: Callable[[str], None] = lambda _: None,
    bounds: ResourceBounds = UNBOUNDED,
) -> VocabularyCandidates:
    """What of :func:`explore` does not depend on the rules of other themes: its enumeration and its candidates.

    Raises:
        ResourceBoundsExceeded: time or memory is used up.
    """
    started = time.process_time()
    log: dict[str, float] = {}

    def level_done(level: EnumerationCounts) -> None:
        say(f"{theme.name}: {level}")
        log[f"size_{level.size}_seconds"] = time.process_time() - started
        log[f"size_{level.size}_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        bounds.check()

    enumeration = enumerate_terms(theme, fingerprint_points(theme, config), config.seed, config.terms, level_done)
    log["enumerate_seconds"] = time.process_time() - started
    rules = tuple(candidates(theme, enumeration.pairs))
    log["seconds"] = time.process_time() - started
    return VocabularyCandidates(rules, tuple(enumeration.levels), enumeration.complete, log)


def _solved(
    theme: OperatorVocabulary,
    config: DiscoveryConfig,
    chunks: DiscoveryResultCache,
    say: Callable[[str], None],
    bounds: ResourceBounds,
    known_rules: Sequence[Rule],
    started: float,
) -> VocabularyExplorationResult:
    """A theme whose right sides are solved for."""
    given_rules = [replace(r, id=f"known-{i}") for i, r in enumerate(known_rules) if len(r.lhs) == 1]
    solution = solve_all(
        theme, config, chunks, say, bounds, lambda rule, kept_rules: _follows(rule, [*given_rules, *kept_rules])
    )
    log = {
        "seconds": time.process_time() - started, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "insoluble": float(solution.without[0]), "unnamed": float(solution.without[1]),
    }  # fmt: skip
    tally = solution.tally
    return VocabularyExplorationResult(
        theme.name, tuple(solution.rules), tuple(solution.levels), True, solution.candidates, solution.derived,
        tally.tested, tally.refuted, tally.unknown, tally.proved, tuple(tally.near_misses), tuple(tally.undecided), log,
    )  # fmt: skip


def _silent(_: str) -> None:
    return None


def _follows(candidate: Rule, kept_rules: Sequence[Rule]) -> bool:
    """Whether the rules kept so far derive a candidate in a few steps, on an e-graph of its own."""
    rewrite_set = rewrites_of([r for r in kept_rules if len(r.lhs) == 1])
    return bool(kept_rules) and derived(candidate, rewrite_set, rounds=_LOCAL_ROUNDS, nodes=_LOCAL_NODES) is not None


def _runs(candidate: Rule, theme: OperatorVocabulary) -> bool:
    """Whether something on a side runs at inference: it does not depend on weights alone."""
    return not all(theme.is_weight(n) for n in candidate.tensors)


def _shortens(candidate: Rule, theme: OperatorVocabulary, kept_rules: Sequence[Rule]) -> bool:
    """Whether a candidate that others derive pays, and takes more than a few rounds to derive."""
    found = expected(candidate, frozenset(n for n in candidate.tensors if theme.is_weight(n)))
    if found is None or min(found) > _PAYS * max(found):
        return False
    rewrite_set = rewrites_of([r for r in kept_rules if len(r.lhs) == 1])
    return derived(candidate, rewrite_set, rounds=QUICK_ROUNDS) is None


def _select(
    theme: OperatorVocabulary,
    point: SizeSample,
    proposals: Sequence[Rule],
    prover: CandidateProver,
    say: Callable[[str], None],
    bounds: ResourceBounds,
    known_rules: Sequence[Rule],
) -> tuple[list[Rule], int]:
    """The proved rules that the earlier ones do not derive, and how many candidates they derived."""
    universe = DerivabilityEGraph(theme.frame(), point)
    places = [_placed(universe, candidate) for candidate in proposals]
    universe.fold()
    alike = {n for n, place in enumerate(places) if place is not None and universe.same(place)}  # at this point only
    given_rules = [replace(r, id=f"known-{i}") for i, r in enumerate(known_rules) if len(r.lhs) == 1]
    if given_rules:
        universe.grow(rewrites_of(given_rules), nodes=len(universe.graph) + 4 * _GROWTH, rounds=2, matches=_MATCHES)
    kept_rules: list[Rule] = []
    followed = 0
    started = time.monotonic()
    for number, (candidate, place) in enumerate(zip(proposals, places, strict=True), 1):
        told_apart = number - 1 not in alike
        bounds.check()
        if place is None or not (theme.weights_alone or _runs(candidate, theme)):
            continue
        follows = (told_apart and universe.same(place)) or _follows(candidate, [*given_rules, *kept_rules])
        shortcut = follows and theme.shortcuts and _shortens(candidate, theme, [*given_rules, *kept_rules])
        if follows and not shortcut:
            followed += 1
        else:
            rules = prover.rules(candidate)
            origin = SHORTCUT if shortcut else theme.origin
            fresh = [
                replace(oriented(r, theme), id=f"{theme.name}-{len(kept_rules) + i}", origin=origin)
                for i, r in enumerate(rules)
            ]
            kept_rules += fresh
            rewrite_set = rewrites_of([r for r in fresh if len(r.lhs) == 1])
            if fresh:
                universe.grow(rewrite_set, nodes=len(universe.graph) + _GROWTH, rounds=1, matches=_MATCHES)
                say(f"{theme.name}: {_equation(fresh[0])}")
        if number % 50 == 0 or number == len(proposals):
            rate = number / max(time.monotonic() - started, 1e-9)
            say(f"{theme.name}: {number}/{len(proposals)} candidates, {len(kept_rules)} rules; "
                f"{rate:.0f} candidates/s, at most {(len(proposals) - number) / rate:.0f} s to go")  # fmt: skip
    return kept_rules, followed


def _placed(universe: DerivabilityEGraph, candidate: Rule) -> list[tuple[int, int]] | None:
    try:
        return universe.add(candidate)
    except (IllTypedOperator, ZeroDivisionError):
        return None


def _equation(rule: Rule) -> str:
    return f"{', '.join(map(str, rule.lhs))} = {', '.join(map(str, rule.rhs))}"
