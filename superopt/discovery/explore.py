"""One theme from vocabulary to proved rules: a pure function of the theme and the seed, hence a chunk of work."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from superopt.discovery.candidates import candidates
from superopt.discovery.config import Config, Theme
from superopt.discovery.derive import Universe, derived, moves_of
from superopt.discovery.enumerate import Level, enumerate_terms, points_of
from superopt.discovery.gain import oriented
from superopt.discovery.judge import Judge, Tally
from superopt.discovery.store import Chunks, digest_of
from superopt.ops.meaning import IllTyped
from superopt.rules.grammar import format_rule, parse_rule
from superopt.rules.rule import Rule
from superopt.verifier.sampling import Point

__all__ = ["Explored", "explore"]

_GROWTH = 6000  # e-nodes that one rule may add to the universe of candidates
_MATCHES = 3000
_LOCAL_ROUNDS, _LOCAL_NODES = 3, 600


@dataclass(frozen=True)
class Explored:
    """What a theme gave.

    Attributes:
        rules: proved, in the order in which they were found.
        levels: terms, classes and coincidences up to each size.
        candidates: after renaming; ``derived`` of them follow from rules kept before them.
        log: times in seconds and peak memory in MB of the process, which are not part of the result.
    """

    theme: str
    rules: tuple[Rule, ...]
    levels: tuple[Level, ...]
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
    def from_json(data: Mapping[str, object]) -> Explored:
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
        values |= {"rules": tuple(rules), "levels": tuple(Level(**v) for v in levels), "near_misses": tuple(misses),
                   "undecided": tuple(open_)}  # fmt: skip
        return Explored(**values)  # type: ignore[arg-type]


def explore(
    theme: Theme, config: Config, folder: str | None = None, progress: Callable[[str], None] | None = None
) -> Explored:  # fmt: skip
    """Enumerate a theme, and turn its coincidences into proved rules none of which the earlier ones derive.

    Args:
        theme: the vocabulary.
        config: seed and effort.
        folder: where finished chunks are kept.
        progress: called with a line of text now and then.
    """
    chunks = Chunks(None if folder is None else Path(folder))
    key = digest_of("explored", 3, theme.text, theme.operators, config.seed, config.instances, config.trials,
                    config.prove_seconds, config.terms)  # fmt: skip
    known = chunks.get(key)
    if known is not None:
        return Explored.from_json(known)
    say = progress or _silent
    started = time.process_time()
    rng = np.random.default_rng([config.seed, int(theme.digest[:8], 16)])
    points = points_of(theme, config.instances, rng)
    found = enumerate_terms(
        theme, points, config.seed, config.terms,
        lambda l: say(f"{theme.name}: size {l.size}: {l.terms} terms, {l.classes} classes, {l.coincidences} coincidences"),
    )  # fmt: skip
    enumerated = time.process_time() - started
    proposals = candidates(theme, found.pairs)
    levels, complete = tuple(found.levels), found.complete
    del found
    say(f"{theme.name}: {len(proposals)} candidates")
    judge = Judge(config, theme, chunks)
    kept, followed = _select(theme, points[0], proposals, judge, say)
    tally: Tally = judge.tally
    usage = resource.getrusage(resource.RUSAGE_SELF)
    log = {
        "enumerate_seconds": enumerated, "seconds": time.process_time() - started, "peak_mb": usage.ru_maxrss / 1024,
    }  # fmt: skip
    made = Explored(
        theme.name, tuple(kept), levels, complete, len(proposals), followed, tally.tested, tally.refuted,
        tally.unknown, tally.proved, tuple(tally.near_misses), tuple(tally.undecided), log,
    )  # fmt: skip
    chunks.put(key, made.as_json())
    return made


def _silent(_: str) -> None:
    return None


def _follows(candidate: Rule, kept: Sequence[Rule]) -> bool:
    """Whether the rules kept so far derive a candidate in a few steps, on an e-graph of its own."""
    moves = moves_of([r for r in kept if len(r.lhs) == 1])
    return bool(kept) and derived(candidate, moves, rounds=_LOCAL_ROUNDS, nodes=_LOCAL_NODES) is not None


def _select(
    theme: Theme, point: Point, proposals: Sequence[Rule], judge: Judge, say: Callable[[str], None]
) -> tuple[list[Rule], int]:
    """The proved rules that the earlier ones do not derive, and how many candidates they derived."""
    universe = Universe(theme.frame(), point)
    places: list[list[tuple[int, int]] | None] = []
    for candidate in proposals:
        try:
            places.append(universe.add(candidate))
        except (IllTyped, ZeroDivisionError):
            places.append(None)
    universe.fold()
    kept: list[Rule] = []
    followed = 0
    for number, (candidate, place) in enumerate(zip(proposals, places, strict=True)):
        if place is None:
            continue
        if universe.same(place) or _follows(candidate, kept):
            followed += 1
            continue
        made = judge.rules(candidate)
        fresh = [replace(oriented(r, theme), id=f"{theme.name}-{len(kept) + i}") for i, r in enumerate(made)]
        kept += fresh
        if fresh:
            say(f"{theme.name}: {number + 1}/{len(proposals)} candidates, {len(kept)} rules; "
                f"{', '.join(map(str, fresh[0].lhs))} = {', '.join(map(str, fresh[0].rhs))}")  # fmt: skip
            size = len(universe.graph)
            universe.grow(
                moves_of([r for r in fresh if len(r.lhs) == 1]), nodes=size + _GROWTH, rounds=1, matches=_MATCHES
            )
        elif number % 50 == 0:
            say(f"{theme.name}: {number + 1}/{len(proposals)} candidates, {len(kept)} rules")
    return kept, followed
