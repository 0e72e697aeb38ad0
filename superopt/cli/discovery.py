"""``superopt discover``, and the commands of ``superopt rules`` that prove rules and write the library."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from superopt.cli.command_utilities import (
    MOST_WORKERS,
    Cluster,
    Dims,
    Force,
    Json,
    ModelInputPath,
    ProgressReporter,
    Seed,
    err,
    going_on,
    out,
    parse_bytes,
    parse_dims,
    write_json,
)
from superopt.cli.output_paths import claim
from superopt.cli.rule_library import app
from superopt.ir.errors import NotEquivalent, UsageError, printable

if TYPE_CHECKING:
    from superopt.rules import Rule, RuleError
    from superopt.verifier.floats.recorded_verdict_check import ConditionViolation


LEARNING_SECONDS = 300.0  # of discover --from, where nothing else is said


def discover(
    models: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="MODEL", help="discover rules for parts of this model that the library lacks"),
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="rules/discovery.toml by default")] = None,
    profile: Annotated[
        str | None, typer.Option(help="the themes of one profile: default (what is shipped), or taso")
    ] = None,
    themes: Annotated[str | None, typer.Option(metavar="A,B", help="only these themes")] = None,
    operators: Annotated[str | None, typer.Option(metavar="A,B", help="only these operators")] = None,
    max_operators: Annotated[int | None, typer.Option(min=1, help="operators a side, at most")] = None,
    destination: Annotated[Path, typer.Option("--out", metavar="DIR", help="where the library is written")] = Path(
        "discovered"
    ),
    workers: Annotated[int, typer.Option(min=1, max=MOST_WORKERS, help="processes")] = 1,
    cluster: Cluster = None,
    shards: Annotated[
        int,
        typer.Option(
            min=0,
            max=4096,
            metavar="N",
            help="enumerate each theme by the whole fleet in N ranges: no process holds all of its classes",
        ),
    ] = 0,
    time_limit: Annotated[float | None, typer.Option(metavar="S", min=1)] = None,
    memory_limit: Annotated[str | None, typer.Option(metavar="B", help="bytes a process may take, or 4G")] = None,
    target: Annotated[
        str, typer.Option(help="with --from: whose prices count; a recorded profile makes the result repeatable")
    ] = "profile:cpu-epyc-2core",
    dim: Dims = None,
) -> None:
    """Discover rules: enumerate terms, find equal ones, generalise, prove for all sizes, keep what nothing derives.

    With --from (once for each model): for the parts of MODEL, cheaper equals are solved for. What is proved, holds in
    floating point and does not follow from the library is written for `superopt optimize --rules DIR`.

    Without arguments: the library that is shipped, written to the folder `discovered`. A run that was stopped
    (Ctrl-C, a time limit, a kill) goes on where it was; the result is the same however often it was.
    """
    from superopt.discovery.config import load_config
    from superopt.discovery.discover import discover as run
    from superopt.fleet import WorkerPool

    if models:
        if models.count("-") > 1:
            raise UsageError("- is named twice, but standard input can be read only once", hint="name a file for one")
        if config or profile or themes or operators or max_operators:
            raise UsageError("--from looks at models, not at a configuration", hint="leave out one of the two")
        _learn(models, destination, target, time_limit or LEARNING_SECONDS, parse_dims(dim or []))
        return
    chosen = load_config(config).select(
        profile=profile or (None if config or themes else "default"), themes=_names(themes),
        operators=_names(operators), most=max_operators,
    )  # fmt: skip
    with going_on(destination), WorkerPool.open(workers, cluster) as fleet:
        result = run(
            chosen, out=destination, fleet=fleet, shards=shards, time_limit=time_limit,
            memory_limit=parse_bytes(memory_limit),
            progress=lambda line: err().print(line, markup=False, soft_wrap=True),
        )  # fmt: skip
    out().print(f"{len(result.rules)} rules of {result.proved} proved, in {destination}", markup=False)
    if result.unfinished:
        err().print(f"not finished: {', '.join(result.unfinished)}; run again to go on", markup=False)


def _learn(models: list[str], out_dir: Path, target: str, seconds: float, sizes: dict[str, int]) -> None:
    """``discover --from``."""
    from superopt.pipeline.rule_learning import learn_from

    with going_on(out_dir), ExitStack() as held:
        paths = [held.enter_context(ModelInputPath(model)) for model in models]
        outcome = learn_from(
            paths, out=out_dir, target=target, time_limit=seconds, sizes=sizes,
            say=lambda line: err().print(line, markup=False, soft_wrap=True),
        )  # fmt: skip
    for rule in outcome.rules:
        out().print(f"{rule.id}: {rule.lhs[0]} = {rule.rhs[0]}", markup=False, soft_wrap=True)
    for name, saved in outcome.saved_us.items():
        whole = outcome.model_us[name]
        share = saved / whole if whole else 0.0
        out().print(
            f"{name}: would save {saved:.1f} of {whole:.1f} µs ({share:.1%}), modelled by {target}", markup=False
        )
    out().print(
        f"{outcome.summary}, in {out_dir}; {outcome.looked_at} of "
        f"{outcome.targets} parts were looked at, {outcome.inside} others hold one that an equal was found "
        f"for; {outcome.derived} equals follow from the library", markup=False, soft_wrap=True,
    )  # fmt: skip


@app.command()
def prove(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE|ID", help="a TOML file of rules, a folder of such files, or a rule")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="prove the built-in library")] = False,
    certificates: Annotated[
        Path | None, typer.Option(metavar="DIR", help="write a certificate per proved rule")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=MOST_WORKERS, help="processes")] = 2,
    cluster: Cluster = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="FILE", help="keep each verdict there, and continue from them")
    ] = None,
    time_limit: Annotated[float, typer.Option(metavar="S", min=0.1, help="seconds for one proof")] = 10.0,
    seed: Seed = 0,
    report_json: Json = None,
    record: Annotated[bool, typer.Option("--record", help="with --all: write the verdicts into the library")] = False,
    force: Force = False,
) -> None:
    """Test rules exactly and prove them for all sizes. Exit code 5 unless every one of them is proved.

    A row of FILE that is not a rule is reported as unknown, with what is wrong, and the others are proved.
    """
    from superopt.fleet import TaskJournal, WorkerPool
    from superopt.verifier.admission import record_all
    from superopt.verifier.batch_proving import prove_all
    from superopt.verifier.certificates.certificate import certify
    from superopt.verifier.verdict import ProvedVerdict, UnknownVerdict, kind_of, verdict_to_json

    if (file is None) != everything or (record and not everything):
        raise UsageError("name a file of rules, or --all", hint="superopt rules prove FILE | --all [--record]")
    claim({"--json": report_json}, [file] if file else [], force=force)
    library, unreadable = _rules_of(file)
    with going_on(resume), ExitStack() as opened:
        kept_journal = None if resume is None else opened.enter_context(TaskJournal(resume))
        fleet = opened.enter_context(WorkerPool.open(workers, cluster))
        progress = opened.enter_context(ProgressReporter())
        proofs = prove_all(
            library.values(), fleet=fleet, time_limit=time_limit, seed=seed, kept=kept_journal,
            progress=lambda rule_id, _, done, total: progress(done, total, rule_id),
        )  # fmt: skip
        verdicts = {**proofs, **{name: UnknownVerdict(f"not a rule: {error}") for name, error in unreadable.items()}}
        if record:
            record_all(verdicts)
        proved = [i for i, v in verdicts.items() if isinstance(v, ProvedVerdict)]
        for done, rule_id in enumerate(proved if certificates is not None else ()):
            progress(done, len(proved), f"certificate {rule_id}")
            assert certificates is not None
            new_verdict = certify(library[rule_id], certificates, time_limit=time_limit)
            if not isinstance(new_verdict, ProvedVerdict):
                raise NotEquivalent(f"no certificate: {new_verdict.reason}", where=f'rule "{rule_id}"')
    data = {rule_id: verdict_to_json(verdict) for rule_id, verdict in verdicts.items()}
    if report_json is not None:
        write_json({"format": "superopt.verdicts", "version": 1, "verdicts": data}, report_json, force)
    if report_json != "-":
        _show_verdicts(data)
    counts = Counter(kind_of(v) for v in verdicts.values())
    err().print(f"{len(verdicts)} rules: " + ", ".join(f"{n} {kind}" for kind, n in counts.most_common()))
    if len(proved) < len(verdicts):
        raise typer.Exit(NotEquivalent.exit_code)


def _rules_of(path: Path | None) -> tuple[dict[str, Rule], dict[str, RuleError]]:
    """The rules of a file or folder, the library's or one of them, by id; and what is wrong with rows that are none."""
    from superopt.rules import RuleError, load_library
    from superopt.rules.library import parse_rows

    if path is None:
        return dict(load_library()), {}
    if not path.exists() and str(path) in (library := load_library()):
        return {str(path): library[str(path)]}, {}
    if not path.exists():
        raise RuleError("no such folder, file or rule", where=str(path))
    rules: dict[str, Rule] = {}
    errors: dict[str, RuleError] = {}
    for file in sorted(path.glob("*.toml")) if path.is_dir() else [path]:
        new_rules, wrong = parse_rows(file)
        errors.update(wrong)
        for rule in new_rules:
            name, count = rule.id, 1
            while name in rules:  # one id for two rules is an error in a library; here both get a verdict
                name, count = f"{rule.id}-{count + 1}", count + 1
            rules[name] = replace(rule, id=name)
    return rules, errors


def _show_verdicts(data: dict[str, dict[str, Any]]) -> None:
    from superopt.verifier.exact.counterexample import describe

    console = out()
    for rule_id, verdict in data.items():
        line = f"{rule_id}: {verdict['verdict']}"
        if verdict.get("preconditions"):
            line += f" where {', '.join(verdict['preconditions'])}"
        if verdict.get("derived"):
            line += f"; derived: {', '.join(verdict['derived'])}"
        if verdict.get("nonzero"):
            line += f"; defined where {', '.join(verdict['nonzero'])}"
        if verdict["verdict"] == "refuted":
            line += f" {describe(verdict['counterexample'])}"
        elif "reason" in verdict:
            line += f" ({verdict['reason']})"
        console.print(line, markup=False, soft_wrap=True)


@app.command()
def merge(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="folders that superopt discover wrote")],
    destination: Annotated[Path, typer.Option("--out", metavar="DIR", help="where the library is written")],
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="the configuration that sets seed and effort")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=MOST_WORKERS, help="processes")] = 1,
    cluster: Cluster = None,
) -> None:
    """Merge the rules of several runs into one library: minimised together, each proved again.

    So themes can be run one by one, on several machines, and give one folder for `superopt optimize --rules DIR`.
    """
    from superopt.discovery.config import load_config
    from superopt.discovery.discover import merge as run
    from superopt.fleet import WorkerPool

    with WorkerPool.open(workers, cluster) as fleet:
        kept_rules, given = run(
            folders, out=destination, config=load_config(config), fleet=fleet,
            progress=lambda line: err().print(line, markup=False, soft_wrap=True),
        )  # fmt: skip
    out().print(f"{len(kept_rules)} rules of {given}, in {destination}", markup=False)


@app.command()
def gains(
    folder: Annotated[
        Path | None, typer.Argument(help="a folder that superopt discover wrote; by default the built-in library")
    ] = None,
    record: Annotated[bool, typer.Option("--record", help="price them anew, for a profile recorded since")] = False,
    report_json: Json = None,
    force: Force = False,
) -> None:
    """Show what each rule gains by itself, by the recorded profile at the sizes of discovery; the most first."""
    from superopt.report.quantities import time_text
    from superopt.report.terminal import table
    from superopt.rules.library import BUILT_IN

    path = BUILT_IN if folder is None else folder
    claim({"--json": report_json}, [path / "gains.json"], force=force)
    try:
        found = _gains_anew(path) if record else json.loads((path / "gains.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{printable(str(path / 'gains.json'))} cannot be read: {error}") from error
    if report_json is not None:
        write_json(found, report_json, force)
    if report_json == "-":
        return
    known = [(r["rhs_us"] / r["lhs_us"], i, r) for i, r in found.items() if r["lhs_us"] and r["rhs_us"] is not None]
    cells = [
        (i, time_text(r["lhs_us"]), time_text(r["rhs_us"]), f"x{ratio:.3f}", r["source"])
        for ratio, i, r in sorted(known, key=lambda row: row[:2])
    ]
    out().print(table("rule", "left", "right", "right ÷ left", "source", rows=cells, numeric=(1, 2, 3)))
    faster = sum(ratio < 0.999 for ratio, _, _ in known)
    err().print(f"{len(found)} rules, {len(known)} priced, {faster} expected to be faster on the right")


def _gains_anew(folder: Path) -> dict[str, dict[str, Any]]:
    from superopt.discovery.expected_rule_gains import write_gains

    return write_gains(folder)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip()) if text else ()


@app.command()
def floats(
    everything: Annotated[bool, typer.Option("--all", help="look at every rule again, not only at new ones")] = False,
    check: Annotated[
        int | None, typer.Option("--check", metavar="N", min=1, help="hold what is recorded against N other points")
    ] = None,
    mending: Annotated[
        bool,
        typer.Option("--mend", help="with --check: narrow, then leave out, what the points are against, and record it"),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="of the other points")] = 2,
    workers: Annotated[int, typer.Option(min=1, max=MOST_WORKERS, help="processes")] = 2,
    cluster: Cluster = None,
    report_json: Json = None,
) -> None:
    """Record what floating point makes of each rule and direction (rules/floats.json), or check what is recorded.

    With --check: every direction that is used by default gets N adversarial points of another seed for each of its
    conditions; exit code 5 if one is against it.
    """
    from superopt.fleet import WorkerPool
    from superopt.report.terminal_views import census_data, show_census
    from superopt.rules import load_library
    from superopt.verifier.floats.recorded_verdict_check import check_all
    from superopt.verifier.floats.verdict_recording import census, mend, record

    if mending and check is None:
        raise UsageError("--mend says what becomes of what --check finds", hint="add --check N")
    with WorkerPool.open(workers, cluster) as fleet, ProgressReporter() as progress:
        broken: list[ConditionViolation] = []
        if check is None:
            count = record(everything=everything, fleet=fleet, progress=progress)
            err().print(f"{count} rules were looked at")
        elif mending:
            mended = mend(seed=seed, points=check, fleet=fleet, progress=progress)
            err().print(f"{len(mended)} conditions were mended, of {len({b.rule for b in mended})} rules")
        else:
            broken = check_all(load_library(), seed=seed, points=check, fleet=fleet, progress=progress)
    library = load_library()
    found_census = census(library)
    unused = [
        {"rule": r.id, "direction": "backward" if b else "forward", **v.as_data()} for r, b, v in found_census.lost
    ]
    data = census_data(found_census.counts, unused, [b.as_data() for b in broken])
    if report_json is not None:
        write_json(data, report_json, force=True)
    if report_json != "-":
        show_census(out(), data)
    if broken:
        raise typer.Exit(NotEquivalent.exit_code)


@app.command()
def extend(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="what runs of superopt discover wrote")],
    library: Annotated[
        Path | None, typer.Option("--library", metavar="DIR", help="extend the rules of this folder, not the built-in")
    ] = None,
) -> None:
    """Add rules of other runs to the library: those after which less runs than after its own.

    What follows is in docs/contributing.md, "Add a rule": verdicts, gains, certificates.
    """
    from superopt.discovery.extend import extend as add
    from superopt.rules.library import BUILT_IN

    joined = add(folders, to=library or BUILT_IN, progress=lambda line: err().print(line, markup=False))
    for rule in joined:
        out().print(f"{rule.id}: {rule.lhs[0]} = {rule.rhs[0]}", markup=False, soft_wrap=True)
    err().print(f"{len(joined)} rules joined")
