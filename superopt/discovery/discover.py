"""The whole run: themes explored in parallel, rules minimised together, families written, everything logged."""

from __future__ import annotations

import json
import os
import pickle
import platform
import resource
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from superopt.discovery.candidates import n_ary
from superopt.discovery.config import DEFINITION, DiscoveryConfig, OperatorVocabulary
from superopt.discovery.derive import SHORTCUT
from superopt.discovery.expected_rule_gains import expected, gains
from superopt.discovery.minimise import minimised
from superopt.discovery.result_cache import (
    DiscoveryResultCache,
    ResourceBounds,
    ResourceBoundsExceeded,
    code_digest,
    digest_of,
)
from superopt.discovery.sharded import DistributedEnumerationStatistics, enumerate_sharded
from superopt.discovery.solved_right_sides import SOLVED
from superopt.discovery.vocabulary_exploration import (
    VocabularyEnumeration,
    VocabularyExplorationResult,
    explore,
    fingerprint_points,
    key_of,
    prepared,
)
from superopt.fleet import TaskJournal, TaskLost, TaskOutcome, WorkerPool, WorkerTask
from superopt.formats.safe_file_access import replace_file
from superopt.ir.errors import UsageError, printable
from superopt.rules.canonical import rule_text, text_digest
from superopt.rules.grammar import format_rule, parse_rule
from superopt.rules.library import ADMISSIBLE, RuleLibrary, load_library, write_rules, write_verdicts
from superopt.rules.rule import Rule
from superopt.verifier.admission import check
from superopt.verifier.prover.prover import prove
from superopt.verifier.verdict import verdict_to_json

__all__ = ["DiscoveryResult", "claimed", "discover", "finished", "merge", "write_library"]

Progress = Callable[[str], None]
_HELD = 256 << 20  # bytes of candidates that the client holds for workers


@dataclass(frozen=True)
class DiscoveryResult:
    """What a run gave.

    Attributes:
        rules: the library, minimised: what was written.
        proved: number of proved rules before they were minimised together.
        explored: per theme, in the configuration's order; themes that were not finished are missing.
        unfinished: their names: run again to go on.
        log: the run's log, as written to ``run.json``.
    """

    rules: tuple[Rule, ...]
    proved: int
    explored: tuple[VocabularyExplorationResult, ...]
    unfinished: tuple[str, ...]
    log: Mapping[str, object]


def discover(
    config: DiscoveryConfig, *, out: Path | str, fleet: WorkerPool | None = None, time_limit: float | None = None,
    memory_limit: int | None = None, shards: int = 0, progress: Progress | None = None,
) -> DiscoveryResult:  # fmt: skip
    """Discover a library and write it to a folder.

    Files: a ``*.toml`` per family, ``proofs.json``, ``near_misses.json``, ``undecided.json``, ``gains.json`` and
    ``run.json``. All but the last are a function of the configuration alone, whatever the number of workers.

    Args:
        config: what to look at.
        out: the folder; finished work is kept in its ``.chunks``, so that a killed run goes on.
        fleet: what does the work; this process where none is given.
        time_limit: seconds after which exploring stops; themes that are not finished are ``unfinished``.
        memory_limit: bytes that a process may reach; a theme that needs more is ``unfinished``.
        shards: enumerate each theme in so many ranges of fingerprints, by the whole fleet, so that no process holds
            all of its classes; 0: each theme whole, in one process.
        progress: called with lines of text.

    Raises:
        UsageError: another run writes the folder, or it holds other things. BackendUnavailable: the fleet's cluster is
            gone.
        OSError: the folder cannot be written.
    """
    folder = Path(out)
    say, fleet = progress or _silent, fleet or WorkerPool()
    bounds = ResourceBounds(None if time_limit is None else time.time() + time_limit, memory_limit)
    with claimed(folder) as journal:
        return _discovered(config, folder, journal, fleet, bounds, shards, say)


def claimed(folder: Path) -> TaskJournal:
    """The folder of a run, made where there is none, and the answers of minimising in it; open for all of the run.

    Raises:
        UsageError: another run has it open, or it holds what discovery did not write, which a library would be written
            over. OSError: it cannot be made.
    """
    if folder.is_dir() and any(folder.iterdir()):
        rules = sorted(folder.glob("*.toml"))
        foreign = next((file for file in rules if not _written(file)), None)
        if foreign is not None or not (rules or (folder / ".chunks").is_dir()):
            what = "is not empty" if foreign is None else f"holds {printable(foreign.name)}"
            raise UsageError(
                f"{what}, and superopt discover did not write that", where=printable(str(folder)),
                hint="name a folder of its own",
            )  # fmt: skip
    return TaskJournal(folder / ".chunks" / "minimising.jsonl")


def _written(file: Path) -> bool:
    """Whether discovery wrote a file of rules: what it writes begins alike."""
    with file.open("rb") as content:
        return content.read(len(_HEADING)) == _HEADING.encode()


def _discovered(
    config: DiscoveryConfig,
    folder: Path,
    journal: TaskJournal,
    fleet: WorkerPool,
    bounds: ResourceBounds,
    shards: int,
    say: Progress,
) -> DiscoveryResult:
    started, cpu = time.monotonic(), _cpu_seconds()
    chunks = folder / ".chunks"
    phases = _Phases(fleet)
    explored = _explore_all(config, chunks, bounds, fleet, shards, say)
    done = [explored[t.name] for t in config.themes if t.name in explored]
    unfinished = tuple(t.name for t in config.themes if t.name not in explored)
    proved = [r for e in done for r in e.rules]
    sources: dict[str, str] = {}
    for theme, rule in ((t, r) for t in config.themes if t.name in explored for r in explored[t.name].rules):
        sources.setdefault(text_digest(rule), theme.source)
    phases.ended("explore")
    kept_rules = _minimised(proved, _paying(done, config), chunks, journal, fleet, say)
    phases.ended("minimise")
    rules, verdicts = _proved_again(_identified(kept_rules, config, sources), config, chunks, fleet, say)
    phases.ended("prove")
    write_library(folder, rules, verdicts, done, config)
    phases.ended("write")
    log = _log(config, done, unfinished, len(proved), rules, time.monotonic() - started, _cpu_seconds() - cpu, fleet)
    log["phases"] = phases.found
    _replace(folder / "run.json", log)
    return DiscoveryResult(rules, len(proved), tuple(done), unfinished, log)


def finished(
    proved: Sequence[Rule],
    paying: Container[int],
    config: DiscoveryConfig,
    chunks: Path,
    asked: TaskJournal,
    fleet: WorkerPool,
    say: Progress,
    sources: Mapping[str, str] | None = None,
) -> tuple[tuple[Rule, ...], dict[str, Mapping[str, object]]]:
    """Proved rules minimised together, with ids of their own, and verdicts of a fresh check of exactly these.

    Args:
        proved: in the order in which they were found.
        paying: which of them (by position) are worth more than a small library.
        config: seed and effort; it names the rules' origin.
        chunks: folder of finished work.
        asked: answers of minimising.
        fleet: what does the work.
        say: called with lines of text.
        sources: by the digest of a rule's text, where it is from (``OperatorVocabulary.source``), which its origin then
            says.
    """
    kept_rules = _minimised(proved, paying, chunks, asked, fleet, say)
    return _proved_again(_identified(kept_rules, config, sources or {}), config, chunks, fleet, say)


def merge(
    folders: Sequence[Path],
    *,
    out: Path,
    config: DiscoveryConfig,
    fleet: WorkerPool | None = None,
    progress: Progress | None = None,
) -> tuple[tuple[Rule, ...], int]:
    """Minimise the rules of several runs together, prove them again, and write those kept as one folder.

    The result is a function of the rules, whatever the order of the folders; rules keep their ids and origins, and what
    a run kept because it pays is kept on the same terms.

    Args:
        folders: what ``superopt discover`` wrote.
        out: where the result is written; finished work is kept in its ``.chunks``.
        config: seed and effort of the proofs, and sizes at which gains are expected.
        fleet: what does the work; this process where none is given.
        progress: called with lines of text.

    Returns:
        The rules that were written, and how many different ones there were.

    Raises:
        RuleError: a folder is not there or has no rules, or they do not parse.
        UsageError: another run writes ``out``, or it holds other things.
    """
    rules: dict[str, Rule] = {}
    for folder in folders:
        for rule in load_library(folder, built_in=False).values():  # of one rule under several names, the first name
            digest = text_digest(rule)
            rules[digest] = min(rule, rules.get(digest, rule), key=lambda r: r.id)
    given_rules = [rules[digest] for digest in sorted(rules)]
    paying = frozenset(n for n, rule in enumerate(given_rules) if SHORTCUT in rule.origin)
    say, chunks, fleet = progress or _silent, out / ".chunks", fleet or WorkerPool()
    with claimed(out) as journal:
        kept = {text_digest(rule) for rule in _minimised(given_rules, paying, chunks, journal, fleet, say)}
    named = sorted((rule for digest, rule in rules.items() if digest in kept), key=lambda rule: rule.id)
    proved, verdicts = _proved_again(named, config, chunks, fleet, say)
    write_library(out, proved, verdicts, (), config)
    return proved, len(given_rules)


def _silent(_: str) -> None:
    return None


class _Phases:
    """What each part of a run took: seconds; seconds of processor time of this process and of all tasks; and seconds in
    which workers had nothing to do, which no neighbour on the machine causes."""

    def __init__(self, fleet: WorkerPool) -> None:
        self.fleet, self.found = fleet, dict[str, dict[str, float]]()
        self._last = self._now()

    def _now(self) -> tuple[float, ...]:
        own = time.process_time() - (self.fleet.seconds if self.fleet.alone else 0.0)
        return time.monotonic(), own, self.fleet.seconds, self.fleet.busy

    def ended(self, name: str) -> None:
        """Of the time since the last one ended."""
        now = self._now()
        wall, own, tasks, busy = (a - b for a, b in zip(now, self._last, strict=True))
        idle = max(0.0, wall * self.fleet.size - busy)
        figures = {"seconds": wall, "own": own, "tasks": tasks, "idle": idle}
        self.found[name] = {what: round(seconds, 3) for what, seconds in figures.items()}
        self._last = now


def _cpu_seconds() -> float:
    return sum(
        u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def _explore_all(
    config: DiscoveryConfig, chunks: Path, bounds: ResourceBounds, fleet: WorkerPool, shards: int, say: Progress
) -> dict[str, VocabularyExplorationResult]:
    """Explored themes by name, in any order; those out of bounds are left out."""
    explorations: dict[str, VocabularyExplorationResult] = {}
    known_rules: tuple[Rule, ...] = ()
    kept_chunks = DiscoveryResultCache(chunks)
    traffic: dict[str, DistributedEnumerationStatistics] = {}

    def task(theme: OperatorVocabulary) -> WorkerTask[dict[str, object]]:
        told = say if fleet.alone else None
        key = key_of(theme, config, known_rules)
        enumerated, packed = None, ahead.prepared.pop(theme.name, None)
        if shards and not theme.solve and kept_chunks.get(key) is None and not bounds.passed():
            enumerated, traffic[theme.name] = _sharded(theme, config, shards, fleet, chunks, say)
        return WorkerTask(
            _explored, (theme, config, str(chunks), told, bounds, known_rules, enumerated, packed), theme.name, key
        )

    base = {t.name: t for t in config.themes if t.base}
    rest = [t for t in config.themes if not t.base]
    ahead = _PreparedAhead(config, bounds, [] if fleet.alone or shards else [t for t in rest if not t.solve])

    def line() -> Iterator[WorkerTask[Any] | None]:
        for theme in base.values():
            yield task(theme)
            while theme.name not in ended:
                yield ahead.next()
        left = list(rest)
        while left:  # a theme that is being prepared waits for that
            ready = next((n for n, theme in enumerate(left) if theme.name not in ahead.under_way), None)
            yield None if ready is None else task(left.pop(ready))

    ended: set[str] = set()
    started = time.monotonic()
    for outcome in fleet.each(line(), kept=kept_chunks):
        if ahead.took(outcome):
            continue
        _finish(explorations, outcome, say)
        name = outcome.task.name
        ended.add(name)
        if name in base:
            known_rules += explorations[name].rules if name in explorations else ()
            started = time.monotonic()
        elif not fleet.alone:
            done = len(ended) - len(base)
            left = (time.monotonic() - started) / done * (len(rest) - done)
            got = f"{len(explorations[name].rules)} rules" if name in explorations else "no result"
            say(f"{name}: {got}; {done} of {len(rest)} themes on {fleet.where}, about {left:.0f} s to go")
    for name, took in traffic.items():
        if name in explorations:
            explorations[name] = replace(explorations[name], log={**explorations[name].log, **took.as_json()})
    return explorations


def _explored(
    theme: OperatorVocabulary,
    config: DiscoveryConfig,
    chunks: str,
    say: Progress | None,
    bounds: ResourceBounds,
    known_rules: Sequence[Rule],
    enumerated: VocabularyEnumeration | None,
    packed: bytes | None,
) -> dict[str, object]:
    """A theme's results as data, gone on with from what it was prepared to. Verdicts on the way are kept where this
    process sees the run's folder."""
    folder = chunks if Path(chunks).parent.is_dir() else None
    given = enumerated if packed is None else pickle.loads(packed)
    return explore(theme, config, folder, say, bounds, known_rules, given).as_json()


@dataclass
class _PreparedAhead:
    """What workers do for other themes while they wait for a base theme's rules: all that does not depend on them.

    Attributes:
        themes: for which nothing is made yet, the first ones first.
        prepared: pickled :class:`Prepared` by theme: nobody but the worker that goes on with it opens it.
        under_way: names of those that are being made.
    """

    config: DiscoveryConfig
    bounds: ResourceBounds
    themes: list[OperatorVocabulary]
    prepared: dict[str, bytes] = field(default_factory=dict)
    under_way: set[str] = field(default_factory=set)

    def next(self) -> WorkerTask[Any] | None:
        """The next one's task; none where too much is held already."""
        if not self.themes or sum(map(len, self.prepared.values())) >= _HELD:
            return None
        theme = self.themes.pop(0)
        self.under_way.add(theme.name)
        return WorkerTask(_prepared, (theme, self.config, self.bounds), theme.name)

    def took(self, outcome: TaskOutcome[Any]) -> bool:
        """Whether this is one of those others; what it gave is kept then, and what it lacked is done again later."""
        if outcome.task.function is not _prepared:
            return False
        self.under_way.discard(outcome.task.name)
        if outcome.error is None:
            self.prepared[outcome.task.name] = outcome.result()
        return True


def _prepared(theme: OperatorVocabulary, config: DiscoveryConfig, bounds: ResourceBounds) -> bytes:
    return pickle.dumps(prepared(theme, config, bounds=bounds), protocol=5)


def _sharded(
    theme: OperatorVocabulary, config: DiscoveryConfig, shards: int, fleet: WorkerPool, chunks: Path, say: Progress
) -> tuple[VocabularyEnumeration, DistributedEnumerationStatistics]:
    """A theme's terms, enumerated by the whole fleet."""
    points = fingerprint_points(theme, config)
    chunks.mkdir(parents=True, exist_ok=True)
    enumeration, traffic = enumerate_sharded(
        theme,
        points,
        config.seed,
        config.terms,
        shards=shards,
        fleet=fleet,
        kept=DiscoveryResultCache(chunks),
        folder=chunks,
        progress=lambda level: say(f"{theme.name}: {level}, in {shards} ranges on {fleet.where}"),
    )
    return VocabularyEnumeration(enumeration.pairs, tuple(enumeration.levels), enumeration.complete), traffic


def _finish(
    explorations: dict[str, VocabularyExplorationResult], outcome: TaskOutcome[dict[str, object]], say: Progress
) -> None:
    try:
        explorations[outcome.task.name] = VocabularyExplorationResult.from_json(outcome.result())
    except ResourceBoundsExceeded as why:
        say(f"{outcome.task.name}: not finished: out of {why}")
    except TaskLost as why:
        say(f"{outcome.task.name}: not finished: {why}")


def _pays(rule: Rule, theme: OperatorVocabulary) -> bool:
    """Whether one side is expected to cost a good deal less than the other."""
    found = expected(rule, frozenset(n for n in rule.tensors if theme.is_weight(n)))
    return found is not None and min(found) <= 0.9 * max(found)


def _paying(explored: Sequence[VocabularyExplorationResult], config: DiscoveryConfig) -> frozenset[int]:
    """Which of all proved rules pay, of the themes whose paying rules are worth more than a small library."""
    themes = {t.name: t for t in config.themes}
    every = [(themes[e.theme], r) for e in explored for r in e.rules]
    return frozenset(number for number, (theme, rule) in enumerate(every) if theme.shortcuts and _pays(rule, theme))


def _minimised(
    rules: Sequence[Rule], paying: Container[int], folder: Path, journal: TaskJournal, fleet: WorkerPool, say: Progress
) -> tuple[Rule, ...]:
    chunks = DiscoveryResultCache(folder)
    described = [(rule_text(r), r.origin, number in paying) for number, r in enumerate(rules)]
    key = digest_of("minimised", code_digest(whole=True), described)
    known = chunks.get(key)
    if known is not None:
        rows = known["rules"]
        assert isinstance(rows, list)
        return tuple(parse_rule({k: v for k, v in row.items() if k != "family"}, where="chunk", family=row["family"])
                     for row in rows)  # fmt: skip
    named = [replace(r, id=f"r{i}") for i, r in enumerate(rules)]
    kept_rules = minimised(named, say, {r.id for i, r in enumerate(named) if i in paying}, fleet=fleet, kept=journal)
    chunks.put(key, {"rules": [{**format_rule(r), "family": r.family} for r in kept_rules]})
    return kept_rules


def _identified(rules: Sequence[Rule], config: DiscoveryConfig, sources: Mapping[str, str]) -> tuple[Rule, ...]:
    """Stable ids (family and digest of the text) and the origin; sorted by id."""
    identified: dict[str, Rule] = {}
    for rule in rules:
        digest = text_digest(rule)
        width = next(w for w in range(4, 65) if f"{rule.family}-{digest[:w]}" not in identified)
        origin = rule.origin
        if origin != DEFINITION:
            notes = ["a shortcut"] if origin == SHORTCUT else []
            notes += [sources[digest]] if digest in sources else ["weights solved for"] if origin == SOLVED else []
            notes += ["for any number of siblings"] if n_ary(rule) else []
            origin = f"discovered ({', '.join([*notes, f'config {config.digest[:12]}'])})"
        name = f"{rule.family}-{digest[:width]}"
        identified[name] = replace(rule, id=name, origin=origin)
    return tuple(identified[i] for i in sorted(identified))


_NOTHING = "nothing"  # the file of a run that found no rule
_HEADING = "# Discovered and proved for all sizes; "  # of the files of rules that are written


def write_library(
    folder: Path,
    rules: Sequence[Rule],
    verdicts: Mapping[str, Mapping[str, object]],
    explored: Sequence[VocabularyExplorationResult],
    config: DiscoveryConfig,
) -> None:
    """Write a folder of rules that ``--rules`` takes, with verdicts, near-misses, undecided candidates and gains."""
    families: dict[str, list[Rule]] = {} if rules else {_NOTHING: []}  # a folder that --rules takes all the same
    for rule in rules:
        families.setdefault(rule.family, []).append(rule)
    for stale in folder.glob("*.toml"):
        if stale.stem not in families and _written(stale):
            stale.unlink()
    heading = f"{_HEADING.removeprefix('# ')}configuration {config.digest[:12]}, seed {config.seed}."
    for family, members in families.items():
        write_rules(folder / f"{family}.toml", members, heading=heading)
    write_verdicts(folder / "proofs.json", RuleLibrary({r.id: r for r in rules}).with_verdicts(verdicts).store)
    _replace(folder / "near_misses.json", [m for e in explored for m in e.near_misses])
    _replace(folder / "undecided.json", [m for e in explored for m in e.undecided])
    _replace(folder / "gains.json", gains(rules, config))


def _proved_again(
    rules: Sequence[Rule], config: DiscoveryConfig, chunks: Path, fleet: WorkerPool, say: Progress
) -> tuple[tuple[Rule, ...], dict[str, Mapping[str, object]]]:
    """Verdicts from a fresh check of exactly what is written, by ONNX Runtime too, not what was believed before.

    They are remembered under the digest of the verifier as it is now.
    """
    limit = 4 * config.prove_seconds
    verdicts: dict[str, Mapping[str, object]] = {}
    tasks = (
        WorkerTask(
            _checked, (rule, limit), rule.id, digest_of("checked", code_digest(whole=True), limit, rule_text(rule))
        )
        for rule in rules
    )
    started = time.monotonic()
    for number, (rule, outcome) in enumerate(
        zip(rules, fleet.map(tasks, kept=DiscoveryResultCache(chunks)), strict=True), 1
    ):
        verdict = outcome.result()
        if verdict["verdict"] in ADMISSIBLE:
            verdicts[rule.id] = verdict
        else:
            say(f"left out, not proved again: {rule_text(rule)}")
        if number % 50 == 0:
            left = (time.monotonic() - started) / number * (len(rules) - number)
            say(f"proving what is written: {number}/{len(rules)}, about {left:.0f} s to go")
    return tuple(r for r in rules if r.id in verdicts), verdicts


def _checked(rule: Rule, limit: float) -> dict[str, object]:
    """The verdict of the verifier as it is now on a rule, without times."""
    verdict = check(rule, prover=partial(prove, time_limit=limit))
    return {k: v for k, v in verdict_to_json(verdict).items() if k != "seconds"}


def _log(
    config: DiscoveryConfig,
    explored: Sequence[VocabularyExplorationResult],
    unfinished: Sequence[str],
    proved: int,
    rules: Sequence[Rule],
    seconds: float,
    cpu: float,
    fleet: WorkerPool,
) -> dict[str, object]:
    usage = max(resource.getrusage(w).ru_maxrss for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    themes = [
        {
            "theme": e.theme, "levels": [vars(level) for level in e.levels], "complete": e.complete,
            "candidates": e.candidates, "derived": e.derived, "tested": e.tested, "refuted": e.refuted,
            "unknown": e.unknown, "proved": len(e.rules), **e.log,
        }
        for e in explored
    ]  # fmt: skip
    return {
        "format": "superopt.discovery", "version": 1, "config": config.digest, "seed": config.seed,
        "python": platform.python_version(), "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "workers": fleet.size, "where": fleet.where, "seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2),
        "work_cpu_seconds": round(sum(e.log["seconds"] for e in explored), 2), "peak_mb": round(usage / 1024, 1),
        "terms": sum(e.levels[-1].terms for e in explored if e.levels),
        "classes": sum(e.levels[-1].classes for e in explored if e.levels),
        "candidates": sum(e.candidates for e in explored), "derived": sum(e.derived for e in explored),
        "refuted": sum(e.refuted for e in explored), "unknown": sum(e.unknown for e in explored),
        "proved": proved, "kept": len(rules), "unfinished": list(unfinished), "themes": themes,
    }  # fmt: skip


def _replace(path: Path, data: object) -> None:
    replace_file(path, (json.dumps(data, indent=1, sort_keys=True) + "\n").encode(), force=True)
