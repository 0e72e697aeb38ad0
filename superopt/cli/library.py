"""``superopt rules …``: the library, its proofs and its certificates."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from superopt.cli.algorithms import show_algorithm
from superopt.cli.extending import extend
from superopt.cli.floats import float_lines, floats, floats_data
from superopt.cli.outputs import claim
from superopt.cli.shell import (
    MOST_WORKERS,
    Cluster,
    Dims,
    Force,
    Input,
    Json,
    Progress,
    Seed,
    err,
    going_on,
    out,
    parse_bytes,
    parse_dims,
    write_json,
)
from superopt.ir.errors import NotEquivalent, UsageError, printable

if TYPE_CHECKING:
    from superopt.rules import Rule, RuleError

__all__ = ["app", "discover"]

app = typer.Typer(no_args_is_help=True, help="The rule library: list, show, prove, certify, export.")

app.command()(floats)
app.command()(extend)

LEARNING_SECONDS = 300.0  # of discover --from, where nothing else is said

Rules = Annotated[Path | None, typer.Option("--rules", metavar="DIR", help="a library used besides the built-in one")]


@app.command("list")
def list_rules(
    family: Annotated[str | None, typer.Option(help="only this family")] = None,
    operator: Annotated[str | None, typer.Option(metavar="OP", help="only rules that mention this operator")] = None,
    verdict: Annotated[str | None, typer.Option(help="only this verdict, e.g. proved_all_sizes")] = None,
    search: Annotated[
        str | None,
        typer.Option(metavar="WORDS", help="search by words, best match first: 'conv batchnorm fold', qkv, gelu …"),
    ] = None,
    rules: Rules = None,
    report_json: Json = None,
    force: Force = False,
) -> None:
    """List rules with their verdicts; with --search also the fast algorithms that the words mean (Winograd's …)."""
    from superopt.report.algorithm_index import search_algorithms
    from superopt.report.naming import RuleIndex
    from superopt.report.terminal import table
    from superopt.rules import format_rule, load_library

    claim({"--json": report_json}, force=force)
    library = load_library(rules)
    index = RuleIndex(library)
    rows = []
    for rule_id in index.search(search or ""):
        rule = library[rule_id]
        fixed = {
            "id": rule_id,
            "name": index.names[rule_id],
            "family": rule.family,
            "verdict": library.verdict_name(rule_id),
            "origin": rule.origin,
        }
        text = format_rule(rule)
        row: dict[str, object] = {**fixed, "lhs": text["lhs"], "rhs": text["rhs"]}
        mentioned = json.dumps([text["lhs"], text["rhs"]])
        if (
            (family is None or rule.family == family)
            and (verdict is None or row["verdict"] == verdict)
            and (operator is None or f"{operator}(" in mentioned)
        ):
            rows.append(row)
    if report_json is not None:
        write_json(rows, report_json, force)
    if report_json != "-":
        cells = [(str(r["id"]), str(r["name"]), str(r["family"]), str(r["verdict"])) for r in rows]
        fits = search_algorithms(search) if search and family is None and verdict is None else ()
        shown = [a for a in fits if operator in (None, a["operator"])]
        facts = [(a["id"], a["name"], f"{a['multiplications']} for {a['direct_multiplications']}") for a in shown]
        if cells or not facts:
            out().print(table("rule", "name", "family", "verdict", rows=cells))
        if facts:
            out().print(table("fast algorithm", "name", "multiplications", rows=facts))
        counts = Counter(str(r["verdict"]) for r in rows)
        said = ", ".join(f"{n} {v}" for v, n in counts.most_common())
        beside = f"{len(facts)} fast algorithms; " if facts else ""
        err().print(f"{beside}{len(rows)} rules{': ' if said else ''}{said}")


@app.command()
def show(
    rule_id: Annotated[str, typer.Argument(metavar="ID")],
    rules: Rules = None,
    certificate: Annotated[
        bool, typer.Option("--certificate", help="prove the rule again and write its certificate to standard output")
    ] = False,
    report_json: Json = None,
    force: Force = False,
) -> None:
    """Show one rule: both sides, preconditions, proof and verdicts in floating point; or a fast algorithm."""
    from superopt.report.algorithm_index import algorithm_data
    from superopt.report.naming import rule_name
    from superopt.rules import format_rule, load_library

    claim({"--json": report_json}, force=force)
    algorithm = algorithm_data(rule_id)
    if algorithm is not None:
        show_algorithm(algorithm, report_json, certificate=certificate, force=force)
        return
    library = load_library(rules)
    chosen = library.select(enable=[rule_id]).chosen or frozenset()
    if rule_id not in chosen:
        raise UsageError(f"{printable(rule_id)!r} is a family", hint="`superopt rules list --family` lists its rules")
    if certificate:
        _show_certificate(library[rule_id])
        return
    data: dict[str, Any] = {"id": rule_id, "family": library[rule_id].family, **format_rule(library[rule_id])}
    data["verdict"] = dict(library.verdicts.get(rule_id, {"verdict": "unknown"}))
    data["floats"] = floats_data(library, rule_id)
    if report_json is not None:
        write_json(data, report_json, force)
    if report_json == "-":
        return
    console = out()
    console.print(rule_name(library[rule_id]), markup=False)
    console.print(f"{rule_id}  ({data['family']}, origin {data.get('origin') or 'not stated'})", markup=False)
    for name, scheme in data["forall"].items():
        console.print(f"  for all {name}: {scheme}", markup=False)
    for guard in data.get("where") or ():
        console.print(f"  where {guard}", markup=False)
    for left, right in zip(data["lhs"], data["rhs"], strict=True):
        console.print(f"    {left}\n  = {right}", markup=False, soft_wrap=True)
    for key, value in data["verdict"].items():
        if key == "rounding" and isinstance(value, dict):
            for dtype, sides in value.items():
                shown = ", ".join(f"{n} typically {t} ulp, at worst {w}" for n, (t, w) in sides.items())
                console.print(f"  rounding in {dtype}: {shown}", markup=False)
        elif value not in ([], "", None) and key != "id":
            console.print(f"  {key}: {json.dumps(value) if isinstance(value, list) else value}", markup=False)
    for line in float_lines(library, rule_id):
        console.print(f"  {line}", markup=False, soft_wrap=True)


def _show_certificate(rule: Rule) -> None:
    from superopt.verifier.certificates.certificate import certificate_of

    verdict, text = certificate_of(rule)
    if not text:
        reason = getattr(verdict, "reason", "")
        raise NotEquivalent(f"not proved for all sizes, so it has no certificate: {reason}", where=f'rule "{rule.id}"')
    typer.echo(text, nl=False)


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
    from superopt.fleet import Fleet, Journal
    from superopt.verifier.admission import record_all
    from superopt.verifier.certificates.certificate import certify
    from superopt.verifier.store import prove_all
    from superopt.verifier.verdict import ProvedAllSizes, Unknown, kind_of, verdict_to_json

    if (file is None) != everything or (record and not everything):
        raise UsageError("name a file of rules, or --all", hint="superopt rules prove FILE | --all [--record]")
    claim({"--json": report_json}, [file] if file else [], force=force)
    library, unreadable = _rules_of(file)
    with going_on(resume), ExitStack() as opened:
        kept = None if resume is None else opened.enter_context(Journal(resume))
        fleet = opened.enter_context(Fleet.open(workers, cluster))
        progress = opened.enter_context(Progress())
        proofs = prove_all(
            library.values(), fleet=fleet, time_limit=time_limit, seed=seed, kept=kept,
            progress=lambda rule_id, _, done, total: progress(done, total, rule_id),
        )  # fmt: skip
        found = {**proofs, **{name: Unknown(f"not a rule: {error}") for name, error in unreadable.items()}}
        if record:
            record_all(found)
        proved = [i for i, v in found.items() if isinstance(v, ProvedAllSizes)]
        for done, rule_id in enumerate(proved if certificates is not None else ()):
            progress(done, len(proved), f"certificate {rule_id}")
            assert certificates is not None
            made = certify(library[rule_id], certificates, time_limit=time_limit)
            if not isinstance(made, ProvedAllSizes):
                raise NotEquivalent(f"no certificate: {made.reason}", where=f'rule "{rule_id}"')
    data = {rule_id: verdict_to_json(verdict) for rule_id, verdict in found.items()}
    if report_json is not None:
        write_json({"format": "superopt.verdicts", "version": 1, "verdicts": data}, report_json, force)
    if report_json != "-":
        _show_verdicts(data)
    counts = Counter(kind_of(v) for v in found.values())
    err().print(f"{len(found)} rules: " + ", ".join(f"{n} {kind}" for kind, n in counts.most_common()))
    if len(proved) < len(found):
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
        made, wrong = parse_rows(file)
        errors.update(wrong)
        for rule in made:
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


@app.command("check-certificate")
def check_certificate(file: Annotated[Path, typer.Argument(help="a certificate, ID.json")]) -> None:
    """Check a certificate with the independent checker and the installed solvers. Exit code 5 if it is rejected."""
    from superopt.verifier.certificates.checker import check_certificate as replay

    result = replay(file)
    if not result.valid:
        raise NotEquivalent(f"the certificate is rejected: {result.reason}", where=str(file))
    console = out()
    console.print(
        f"{file}: valid; {result.goals} goals, {result.steps} steps, {result.points} points compared exactly",
        markup=False, soft_wrap=True,
    )  # fmt: skip
    for solver, count in result.solvers.items():
        console.print(f"  {solver}: unsat on {count} of {result.goals} goals", markup=False)
    if not any(s.startswith("cvc5") for s in result.solvers):
        console.print("  cvc5 is not installed: pip install cvc5 for a second opinion", markup=False)


@app.command()
def export(
    destination: Annotated[Path, typer.Argument(help="a folder for the TOML files, or a .json file")],
    rules: Rules = None,
    force: Force = False,
) -> None:
    """Write the library with its verdicts, as TOML files by family or as one JSON file."""
    from superopt.rules import format_rule, load_library
    from superopt.rules.library import PROOFS, write_rules, write_verdicts

    if destination.exists() and not force:
        raise UsageError("already exists", where=str(destination), hint="use -f to write into it")
    library = load_library(rules)
    if destination.suffix == ".json":
        rows = [
            {"id": i, "family": r.family, **format_rule(r), "verdict": library.verdict_name(i)}
            for i, r in library.items()
        ]
        write_json({"format": "superopt.rules", "version": 1, "rules": rows}, str(destination), force)
        return
    destination.mkdir(parents=True, exist_ok=True)
    for family, members in library.families.items():
        write_rules(destination / f"{family}.toml", members)
    write_verdicts(destination / PROOFS, library.store)
    err().print(f"wrote {len(library)} rules in {len(library.families)} files to {destination}", markup=False)


@app.command()
def derive(
    file: Annotated[Path, typer.Argument(help="a TOML file of rules")],
    rules: Rules = None,
    alone: Annotated[bool, typer.Option("--alone", help="use the rules of --rules alone")] = False,
    report_json: Json = None,
    force: Force = False,
) -> None:
    """Show which rules of FILE follow from the library, and from which of its rules. Exit code 0 in any case."""
    from superopt.discovery import derive as look
    from superopt.rules import load_library

    if alone and rules is None:
        raise UsageError("--alone leaves no rules to derive by", hint="name a library with --rules DIR")
    claim({"--json": report_json}, [file], force=force)
    found = look(file, load_library(rules, built_in=not alone))
    if report_json is not None:
        chains = {rule_id: dict(chain) for rule_id, chain in found.chains.items()}
        data = {"format": "superopt.coverage", "version": 1, "derived": chains, "missing": dict(found.missing)}
        write_json(data, report_json, force)
    if report_json != "-":
        for rule_id, chain in found.chains.items():
            steps = ", ".join(f"{name} x{count}" for name, count in chain.items()) or "nothing: the sides are alike"
            out().print(f"{rule_id}: derived by {steps}", markup=False, soft_wrap=True)
        for rule_id, reason in found.missing.items():
            out().print(f"{rule_id}: not derived ({reason})", markup=False, soft_wrap=True)
    err().print(f"{len(found.chains)} of {len(found.chains) + len(found.missing)} derived ({found.share:.1%})")


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
    from superopt.discovery import load_config
    from superopt.discovery import merge as run
    from superopt.fleet import Fleet

    with Fleet.open(workers, cluster) as fleet:
        kept, given = run(
            folders, out=destination, config=load_config(config), fleet=fleet,
            progress=lambda line: err().print(line, markup=False, soft_wrap=True),
        )  # fmt: skip
    out().print(f"{len(kept)} rules of {given}, in {destination}", markup=False)


@app.command()
def growth(
    folder: Annotated[
        Path | None, typer.Argument(help="a folder that superopt discover wrote; by default the built-in library")
    ] = None,
    report_json: Json = None,
    force: Force = False,
) -> None:
    """Show how a discovery run grew with the size of terms: terms, classes, candidates, rules, time and memory."""
    from superopt.report.views import growth as by_size
    from superopt.report.views import show_growth
    from superopt.rules.library import BUILT_IN

    file = (BUILT_IN if folder is None else folder) / "run.json"
    claim({"--json": report_json}, [file], force=force)
    try:
        run = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{printable(str(file))} cannot be read: {error}") from error
    if report_json is not None:
        write_json({"format": "superopt.growth", "version": 1, "sizes": by_size(run)}, report_json, force)
    if report_json != "-":
        show_growth(out(), run)


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

    place = BUILT_IN if folder is None else folder
    claim({"--json": report_json}, [place / "gains.json"], force=force)
    try:
        found = _gains_anew(place) if record else json.loads((place / "gains.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{printable(str(place / 'gains.json'))} cannot be read: {error}") from error
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
    from superopt.discovery.gain import write_gains

    return write_gains(folder)


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
    from superopt.discovery import discover as run
    from superopt.discovery import load_config
    from superopt.fleet import Fleet

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
    with going_on(destination), Fleet.open(workers, cluster) as fleet:
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
        paths = [held.enter_context(Input(model)) for model in models]
        found = learn_from(
            paths, out=out_dir, target=target, time_limit=seconds, sizes=sizes,
            say=lambda line: err().print(line, markup=False, soft_wrap=True),
        )  # fmt: skip
    for rule in found.rules:
        out().print(f"{rule.id}: {rule.lhs[0]} = {rule.rhs[0]}", markup=False, soft_wrap=True)
    for name, saved in found.saved_us.items():
        whole = found.model_us[name]
        share = saved / whole if whole else 0.0
        out().print(
            f"{name}: would save {saved:.1f} of {whole:.1f} µs ({share:.1%}), modelled by {target}", markup=False
        )
    out().print(
        f"{found.said}, in {out_dir}; {found.looked_at} of "
        f"{found.targets} parts were looked at, {found.inside} others hold one that an equal was found "
        f"for; {found.derived} equals follow from the library", markup=False, soft_wrap=True,
    )  # fmt: skip


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip()) if text else ()
