"""Candidates before the verifier: tested exactly at sizes that discovery did not use, generalised, proved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from superopt.discovery.candidates import joined, restricted, tidied
from superopt.discovery.config import Config, Theme
from superopt.discovery.generalise import (
    guarded,
    shape_general,
    size_general,
    specialised,
    variable_general,
    well_typed,
    whole_sizes,
)
from superopt.discovery.ranks import any_rank, leading
from superopt.discovery.spatial import one_axis_less
from superopt.discovery.store import UNBOUNDED, Bounds, Chunks, OutOfBounds, code_digest, digest_of
from superopt.rules.canonical import rule_text
from superopt.rules.rule import Rule
from superopt.rules.scanner import RuleError
from superopt.rules.typing import meaning_digest
from superopt.verifier.exact.testing import test
from superopt.verifier.prover.prover import prove
from superopt.verifier.verdict import (
    ProvedAllSizes,
    Refuted,
    Tested,
    Unknown,
    Verdict,
    kind_of,
    verdict_from_json,
    verdict_to_json,
)

__all__ = ["Judge", "Tally"]


@dataclass
class Tally:
    """What became of candidates."""

    tested: int = 0
    refuted: int = 0
    unknown: int = 0
    proved: int = 0
    near_misses: list[Mapping[str, object]] = field(default_factory=list)
    undecided: list[Mapping[str, object]] = field(default_factory=list)


class Judge:
    """Asks the verifier, remembers its verdicts on disk, and turns candidates into proved rules."""

    def __init__(self, config: Config, theme: Theme, chunks: Chunks, bounds: Bounds = UNBOUNDED) -> None:
        self.config = config
        self.theme = theme
        self.chunks = chunks
        self.bounds = bounds
        self.tally = Tally()

    def rules(self, candidate: Rule) -> list[Rule]:
        """The proved rules that a candidate leads to: most general first, none when it is false or not proved.

        Raises:
            OutOfBounds: time or memory is used up; verdicts reached so far are kept.
        """
        turned = replace(candidate, lhs=candidate.rhs, rhs=candidate.lhs)  # the right side may be defined more often
        for version in (candidate, turned):
            if well_typed(version) and self._holds(version, near_miss=version is candidate):
                return self._proved(version)
        for weaker in specialised(candidate):
            if self._holds(weaker, near_miss=False):
                return self._proved(weaker)
        return []

    def _proved(self, candidate: Rule) -> list[Rule]:
        general = whole_sizes(variable_general(candidate, self._quick), self._quick)
        general = size_general(general, self._quick)
        if self.theme.simplifies and (free := self._for_any_shapes(general)) is not None:
            return [free]  # what leaves less to run is wanted so
        every = any_rank(general)
        wide = None if every is None else self._proved_version(every)
        found = [] if wide is None else [wide]
        kinds = {s.dtype for s in general.tensors.values()}  # a mask may lack leading axes that the data has
        for version in self._versions(candidate, general) if not found or kinds == {"b", "f"} else ():
            if found and not version.lead:
                break
            made = self._proved_version(version)
            if made is not None:
                found.append(made)
        if not self.theme.simplifies and not any(rule.lead for rule in found):
            free = self._for_any_shapes(general)
            if free is not None:
                return [free]  # of this rank, it says all that the others do
        if self.theme.join:
            for rule in list(found):
                pair = joined(rule)
                if pair is not None and well_typed(pair) and self._quick(pair):
                    made = self._prove(tidied(pair))
                    if made is not None:
                        found.append(made)
        return found + (self._signals(found) if self.theme.signals else [])

    def _for_any_shapes(self, general: Rule) -> Rule | None:
        """The rule for shapes that only have to have as many elements, if that is more and is proved."""
        wider = shape_general(general, lambda rule: isinstance(self._test(rule, self.config.trials), Tested))
        return self._prove(tidied(restricted(wider))) if wider != general else None

    def _signals(self, found: Sequence[Rule]) -> list[Rule]:
        """The same with one spatial axis, where that is true as well."""
        made = []
        for rule in found:
            shorter = one_axis_less(rule)
            if shorter is not None and well_typed(shorter) and self._quick(shorter):
                proved = self._prove(tidied(shorter))
                if proved is not None:
                    made.append(proved)
        return made

    def _proved_version(self, version: Rule) -> Rule | None:
        return self._prove(tidied(restricted(version))) if self._quick(version) else None

    def _versions(self, candidate: Rule, general: Rule) -> Iterator[Rule]:
        yield from leading(general, self.theme)
        yield general
        if general != candidate:
            apart = size_general(variable_general(candidate, self._quick), self._quick)  # a sum of sizes stays one
            yield from (version for version in (apart, candidate) if version != general)

    def _holds(self, rule: Rule, *, near_miss: bool) -> bool:
        verdict = self._test(rule, self.config.trials)
        self.tally.tested += 1
        if isinstance(verdict, Refuted):
            self.tally.refuted += 1
            if near_miss:
                self.tally.near_misses.append({"theme": self.theme.name, "text": rule_text(rule),
                                               "counterexample": verdict.counterexample})  # fmt: skip
            return False
        return isinstance(verdict, Tested)

    def _quick(self, rule: Rule) -> bool:
        return isinstance(self._test(rule, 4), Tested)

    def _prove(self, rule: Rule) -> Rule | None:
        if not isinstance(self._test(rule, self.config.trials), Tested):
            return None
        verdict = self._ask(rule)
        for _ in range(2):
            if not (isinstance(verdict, Unknown) and verdict.preconditions):
                break
            narrower = guarded(rule, verdict.preconditions)
            if narrower is None or narrower == rule:
                break
            rule, verdict = narrower, self._ask(narrower)
        if isinstance(verdict, ProvedAllSizes):
            self.tally.proved += 1
            return rule
        self.tally.unknown += 1
        self.tally.undecided.append({"theme": self.theme.name, "text": rule_text(rule), "verdict": kind_of(verdict),
                                     "reason": getattr(verdict, "reason", "")})  # fmt: skip
        return None

    def _ask(self, rule: Rule) -> Verdict:
        limit = self.config.prove_seconds

        def ask() -> Verdict:
            verdict = prove(rule, time_limit=min(limit, self.bounds.left))
            if isinstance(verdict, Unknown) and self.bounds.passed():
                raise OutOfBounds("time")  # more time might have proved it: no verdict to keep
            return verdict

        return self._cached(rule, ["prove", limit], ask)

    def _test(self, rule: Rule, trials: int) -> Verdict:
        seed = self.config.seed
        return self._cached(rule, ["test", trials, seed], lambda: test(rule, seed=seed, trials=trials))

    def _cached(self, rule: Rule, how: list[object], ask: Callable[[], Verdict]) -> Verdict:
        try:
            meaning = meaning_digest(replace(rule, id="", origin="", family=""))
        except RuleError:
            return Unknown("not well-formed")
        key = digest_of("verdict", code_digest(), how, rule_text(rule), meaning)
        known = self.chunks.get(key)
        if known is not None:
            try:
                return verdict_from_json(known)
            except ValueError:
                pass
        self.bounds.check()
        verdict: Verdict = ask()
        data = {k: v for k, v in verdict_to_json(verdict).items() if k != "seconds"}
        self.chunks.put(key, data)
        return verdict
