"""``superopt rules …``: the library, its proofs and its certificates."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from superopt.cli.algorithms import show_algorithm
from superopt.cli.command_utilities import (
    Force,
    Json,
    Rules,
    err,
    out,
    write_json,
)
from superopt.cli.output_paths import claim
from superopt.ir.errors import NotEquivalent, UsageError, printable

if TYPE_CHECKING:
    from superopt.rules import Rule, RuleLibrary

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="The rule library: list, show, prove, certify, export.")


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
    from superopt.report.algorithm_names import search_algorithms
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
    from superopt.report.algorithm_names import algorithm_data
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
    data["floats"] = _floats_data(library, rule_id)
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
    for line in _float_lines(library, rule_id):
        console.print(f"  {line}", markup=False, soft_wrap=True)


def _show_certificate(rule: Rule) -> None:
    from superopt.verifier.certificates.certificate import certificate_of

    verdict, text = certificate_of(rule)
    if not text:
        reason = getattr(verdict, "reason", "")
        raise NotEquivalent(f"not proved for all sizes, so it has no certificate: {reason}", where=f'rule "{rule.id}"')
    typer.echo(text, nl=False)


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
    from superopt.discovery.derive import derive as look
    from superopt.rules import load_library

    if alone and rules is None:
        raise UsageError("--alone leaves no rules to derive by", hint="name a library with --rules DIR")
    claim({"--json": report_json}, [file], force=force)
    coverage = look(file, load_library(rules, built_in=not alone))
    if report_json is not None:
        chains = {rule_id: dict(chain) for rule_id, chain in coverage.chains.items()}
        data = {"format": "superopt.coverage", "version": 1, "derived": chains, "missing": dict(coverage.missing)}
        write_json(data, report_json, force)
    if report_json != "-":
        for rule_id, chain in coverage.chains.items():
            steps = ", ".join(f"{name} x{count}" for name, count in chain.items()) or "nothing: the sides are alike"
            out().print(f"{rule_id}: derived by {steps}", markup=False, soft_wrap=True)
        for rule_id, reason in coverage.missing.items():
            out().print(f"{rule_id}: not derived ({reason})", markup=False, soft_wrap=True)
    err().print(
        f"{len(coverage.chains)} of {len(coverage.chains) + len(coverage.missing)} derived ({coverage.share:.1%})"
    )


@app.command()
def growth(
    folder: Annotated[
        Path | None, typer.Argument(help="a folder that superopt discover wrote; by default the built-in library")
    ] = None,
    report_json: Json = None,
    force: Force = False,
) -> None:
    """Show how a discovery run grew with the size of terms: terms, classes, candidates, rules, time and memory."""
    from superopt.report.terminal_views import growth as by_size
    from superopt.report.terminal_views import show_growth
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


def _floats_data(library: RuleLibrary, rule_id: str) -> dict[str, Any]:
    """The recorded verdicts in floating point as JSON data."""
    from superopt.rules.float_verdicts import float_key, row_of

    row = row_of(rule_id, library.float_store.get(float_key(library[rule_id]), {}))
    return {way: verdicts for way, verdicts in row.items() if way != "id"}


def _float_lines(library: RuleLibrary, rule_id: str) -> list[str]:
    """What is known of both directions in floating point, with the worst point found."""
    from superopt.rules.float_verdicts import float_key

    lines: list[str] = []
    for way, by_type in library.float_store.get(float_key(library[rule_id]), {}).items():
        for dtype, verdict in by_type.items():
            name = "in every type" if dtype == "any" else f"in {dtype}"
            lines.append(f"float verdict, {way}, {name}: {verdict.sentence}")
            if verdict.worst:
                lines.append(f"  worst point found: {json.dumps(dict(verdict.worst))}")
    return lines or ["float verdict: unknown, so it is not used"]
