"""Running a corpus, and judging the run against its baseline."""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from superopt import fleet as fleets
from superopt.benchmark.row_cache import RowCache, code_digest, model_digest
from superopt.cost import load_profile
from superopt.fleet import TaskLost, WorkerPool
from superopt.fleet.worker_pool import cores
from superopt.gate.baseline import read_run, row_data, row_from_data
from superopt.gate.corpus_model import CorpusModelTask, row_of
from superopt.gate.counterfactual_costs import CounterfactualCosts
from superopt.gate.culprit import why_slower, why_wrong
from superopt.gate.settings import DEFAULT_TARGET, CorpusSettings, models_of
from superopt.ir.errors import ResourceLimit
from superopt.pipeline.batch import demand_of
from superopt.pipeline.optimization import select_rules
from superopt.pipeline.options import Progress, quiet
from superopt.report.corpus import (
    BaselineComparison,
    CorpusFinding,
    CorpusModelResult,
    CorpusRun,
    Culprit,
    geometric_mean,
)
from superopt.rules import Rule, format_rule

__all__ = ["judge", "run_all", "run_corpus"]

_BISECTED = (
    3  # models whose regression is traced by experiments of their own; the others are asked about these culprits
)


def run_corpus(settings: CorpusSettings, *, progress: Progress = quiet) -> CorpusRun:
    """Optimise every model of the corpus for the target.

    Raises:
        UsageError: there is no such model, target or profile.
        ResourceLimit: time was up before the last model; what is done is kept where ``settings.resume`` says.
    """
    target = target_of(settings)
    tasks = tasks_of(models_of(settings), settings, target)
    rules = select_rules(settings.options(target)).admitted
    header: Mapping[str, object] = {}
    if target.startswith("profile:"):
        header = load_profile(target.removeprefix("profile:")).header
    library = {r.id: _digest(r) for r in rules}
    rows = _rows(tasks, settings, f"{target} {header.get('sha256', '')} {sorted(library.items())}", progress)
    used = {rule for row in rows for rule in (*row.rules, *(r for f in row.failures for r in f.rules))}
    return CorpusRun(
        target=target, profile=str(header.get("sha256", ""))[:16], device=str(header.get("device", "this machine")),
        revision=_revision(settings.root), date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        version=version("superopt"), library=library,
        texts={r.id: format_rule(r) for r in rules if r.id in used}, rows=rows,
    )  # fmt: skip


def _rows(
    tasks: Mapping[str, CorpusModelTask], settings: CorpusSettings, given: str, progress: Progress
) -> tuple[CorpusModelResult, ...]:  # fmt: skip
    """Rows of all tasks, those of an earlier run included that was cut short."""
    deadline = time.monotonic() + settings.total_limit
    text = f"{code_digest()} {given} {settings.options('')!r}"
    kept = RowCache(settings.resume, hashlib.sha256(text.encode()).hexdigest()[:16])
    known = {name: row_from_data(name, row) for name, task in tasks.items() if (row := kept.get(task.path)) is not None}
    todo = [task for name, task in tasks.items() if name not in known]
    contents = {task.model: model_digest(task.path) for task in todo} if settings.resume is not None else {}

    def done(row: CorpusModelResult) -> None:
        if not row.error and contents:
            kept.put(tasks[row.model].path, row_data(row), contents[row.model])

    workers = max(1, min(settings.workers or cores(), len(todo)))
    with WorkerPool.open(workers, settings.cluster) as fleet:
        made = run_all(todo, fleet=fleet, deadline=deadline, done=done, progress=progress)
    known |= {row.model: row for row in made}
    left = [name for name in tasks if name not in known]
    if left:
        raise ResourceLimit(
            f"time was up with {len(left)} of {len(tasks)} models to do",
            hint="run it again with the same --resume folder",
        )
    return tuple(known[name] for name in tasks)


def target_of(settings: CorpusSettings) -> str:
    """The target that is asked for, else the baseline's, else a shipped profile."""
    if settings.target is not None:
        return settings.target
    if settings.baseline is not None and settings.baseline.is_file():
        return read_run(settings.baseline).target
    return DEFAULT_TARGET


def tasks_of(models: Mapping[str, Path], settings: CorpusSettings, target: str) -> dict[str, CorpusModelTask]:
    """How each model is optimised, by name."""
    options = settings.options(target)
    return {name: CorpusModelTask(name, path, options) for name, path in models.items()}


def _digest(rule: Rule) -> str:
    text = {k: v for k, v in format_rule(rule).items() if k not in ("id", "origin")}
    return hashlib.sha256(json.dumps(text, sort_keys=True).encode()).hexdigest()[:12]


def _revision(folder: Path) -> str:
    """The version-control revision of the project's folder; empty where there is none."""
    try:
        command = ["git", "-C", str(folder), "describe", "--always", "--dirty"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def judge(
    run: CorpusRun, settings: CorpusSettings, baseline: CorpusRun | None = None, *, progress: Progress = quiet
) -> BaselineComparison:
    """What a run means: wrong results, failures and, against a baseline, costs that grew; each with its culprit.

    Args:
        run: what stands now.
        settings: thresholds, and how the run was made: culprits are found by experiments.
        baseline: what stood then.
        progress: called while culprits are looked for.
    """
    rules = {r.id: r for r in select_rules(settings.options(run.target)).admitted}
    findings: list[CorpusFinding] = []
    for row in run.rows:
        known = None if baseline is None else baseline.row(row.model)
        findings += _of_row(row, known, settings, rules)
    notes: list[str] = []
    if baseline is not None:
        findings += _of_all(run, baseline, settings)
        if (run.target, run.profile) != (baseline.target, baseline.profile):
            notes.append(
                f"costs are those of {run.target} ({run.profile or run.device}); the baseline's of {baseline.target} "
                f"({baseline.profile or baseline.device})"
            )
        findings = _traced(findings, run, baseline, settings, tuple(rules.values()), progress)
    cut = [row.model for row in run.rows if row.stopped == "time"]
    if cut:
        notes.append(f"cut short by the time limit, so not deterministic: {', '.join(cut)}")
    order = ("wrong", "failed", "total", "regression", "missing", "new", "improved")
    return BaselineComparison(run, tuple(sorted(findings, key=lambda f: order.index(f.kind))), baseline, tuple(notes))


def _of_row(
    row: CorpusModelResult, known: CorpusModelResult | None, settings: CorpusSettings, rules: Mapping[str, Rule]
) -> list[CorpusFinding]:
    costs = (row.before_us if known is None else known.after_us, row.after_us)
    found = []
    if row.wrong:
        reason = row.failures[0].reason
        found.append(
            CorpusFinding(
                "wrong", row.model, f"a result was wrong: {reason}", *costs, why_wrong(row, rules, settings.seed)
            )
        )
    if row.status == "failed" and not (known is not None and known.status == "failed"):
        found.append(CorpusFinding("failed", row.model, f"could not be optimised: {row.error}"))
    if row.status == "failed" or known is None or known.status == "failed":
        return found
    growth = row.after_us / known.after_us - 1 if known.after_us > 0 else 0.0
    allowed = settings.allowed(row.model)
    change = f"{known.after_us:.1f} → {row.after_us:.1f} µs ({growth:+.1%})"
    if growth > allowed:
        found.append(
            CorpusFinding("regression", row.model, f"costs {change}, more than the {allowed:.1%} allowed", *costs)
        )
    elif growth < -max(allowed, 1e-3):
        found.append(CorpusFinding("improved", row.model, f"costs {change}", *costs))
    return found


def _of_all(run: CorpusRun, baseline: CorpusRun, settings: CorpusSettings) -> list[CorpusFinding]:
    found = [CorpusFinding("new", r.model, "is not in the baseline") for r in run.rows if baseline.row(r.model) is None]
    if not settings.partial:
        gone = [r.model for r in baseline.rows if run.row(r.model) is None]
        found += [CorpusFinding("missing", m, "is in the baseline and was not found") for m in gone]
    pairs = [(r, k) for r in run.rows if (k := baseline.row(r.model)) is not None]
    ratios = [r.after_us / k.after_us for r, k in pairs if r.after_us > 0 and k.after_us > 0]
    mean = geometric_mean(ratios)
    if mean > 1 + settings.total_threshold:
        text = f"all models together cost {mean - 1:+.1%} (geometric mean), more than {settings.total_threshold:.1%}"
        found.append(CorpusFinding("total", "", text))
    return found


def _traced(
    findings: list[CorpusFinding],
    run: CorpusRun,
    baseline: CorpusRun,
    settings: CorpusSettings,
    rules: tuple[Rule, ...],
    progress: Progress,
) -> list[CorpusFinding]:
    """The findings, regressions with culprits: the worst are traced, the others are given those where they apply."""
    slower = sorted(
        (f for f in findings if f.kind == "regression"), key=lambda f: -(f.after_us / f.before_us if f.before_us else 0)
    )
    if not slower:
        return findings
    here = {row.model: path for row in run.rows if (path := settings.root / row.model).is_file()}
    tasks = tasks_of(here, settings, run.target)
    lab = CounterfactualCosts(tasks, rules, time.monotonic() + settings.bisect_limit)
    named: dict[str, Culprit] = {}
    for number, finding in enumerate(slower):
        row, known = run.row(finding.model), baseline.row(finding.model)
        if row is None or known is None or finding.model not in tasks:
            continue
        progress(number, len(slower), f"who made {Path(finding.model).stem} slower?")
        shared = _shared(row, known, list(named.values())) if number >= _BISECTED else None
        if shared is None:
            allowed = settings.allowed(finding.model)
            shared = why_slower(row, known, allowed, run, baseline, lab)
        named[finding.model] = shared
    return [replace(f, culprit=named.get(f.model)) if f.kind == "regression" else f for f in findings]


def _shared(row: CorpusModelResult, known: CorpusModelResult, culprits: list[Culprit]) -> Culprit | None:
    """A culprit of another model that touches this one as well; likely, not tried here."""
    for culprit in culprits:
        names = set(culprit.names)
        touched = {"rule removed": set(known.rules), "rule added": set(row.rules), "operator cost": set(row.before)}
        if names & touched.get(culprit.kind, set()) and row.digest == known.digest:
            return replace(culprit, evidence=f"not tried on this model; of another: {culprit.evidence}")
    return None


# -- Models at once ----------------------------------------------------------------------------------------------------
#
# The models of a corpus at once: as many as the fleet and this machine's memory allow, none longer than it may take.
#
# A model that kills its process each time is a failed row, and takes nothing else with it. A process serves one model
# after the other, since loading the library takes longer than many a model.


def run_all(
    tasks: Sequence[CorpusModelTask],
    *,
    fleet: WorkerPool | None = None,
    deadline: float = float("inf"),
    done: Callable[[CorpusModelResult], None] | None = None,
    progress: Progress = quiet,
) -> tuple[CorpusModelResult, ...]:
    """The rows of the tasks, in their order.

    Args:
        tasks: models of different names.
        fleet: what optimises them; this process where none is given.
        deadline: on the monotonic clock; no model is begun after it, so that rows may be missing.
        done: called with each row as soon as it is there.
        progress: called with (models done, models in all, those under way).
    """
    fleet = fleet or WorkerPool()
    rows: dict[str, CorpusModelResult] = {}
    line = [_sized(t) for t in tasks]
    if not fleet.alone:
        line.sort(key=lambda t: (-t.bytes, t.name))  # the largest first: a long last one would run alone

    def report_progress(names: Sequence[str]) -> None:
        progress(len(rows), len(tasks), ", ".join(Path(n).stem for n in names))

    for outcome in fleet.each(line, until=deadline, progress=report_progress):
        try:
            row = outcome.result()
        except TaskLost as error:
            row = CorpusModelResult(outcome.task.name, error=error.what, exit_code=ResourceLimit.exit_code)
        rows[row.model] = row
        if done is not None:
            done(row)
    return tuple(rows[t.model] for t in tasks if t.model in rows)


def _sized(task: CorpusModelTask) -> fleets.WorkerTask[CorpusModelResult]:
    """The fleet's task."""
    need = demand_of(task.path, task.options)
    return fleets.WorkerTask(_row, (task,), task.model, "", need.files, need.seconds, need.bytes, need.last)


def _row(task: CorpusModelTask) -> CorpusModelResult:
    try:
        return row_of(task)
    except MemoryError:
        return CorpusModelResult(task.model, error="out of memory", exit_code=ResourceLimit.exit_code)
