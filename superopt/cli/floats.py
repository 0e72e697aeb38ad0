"""``superopt rules floats``: verdicts in floating point, recorded, checked and shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from superopt.cli.shell import MOST_WORKERS, Cluster, Json, Progress, err, out, write_json
from superopt.ir.errors import NotEquivalent, UsageError

if TYPE_CHECKING:
    from superopt.rules import Library
    from superopt.verifier.floats.recorded_law import Breach

__all__ = ["float_lines", "floats", "floats_data"]


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
    from superopt.fleet import Fleet
    from superopt.report.views import census_data, show_census
    from superopt.rules import load_library
    from superopt.verifier.floats.recorded_law import check_all
    from superopt.verifier.floats.recording import census, mend, record

    if mending and check is None:
        raise UsageError("--mend says what becomes of what --check finds", hint="add --check N")
    with Fleet.open(workers, cluster) as fleet, Progress() as progress:
        broken: list[Breach] = []
        if check is None:
            count = record(everything=everything, fleet=fleet, progress=progress)
            err().print(f"{count} rules were looked at")
        elif mending:
            mended = mend(seed=seed, points=check, fleet=fleet, progress=progress)
            err().print(f"{len(mended)} conditions were mended, of {len({b.rule for b in mended})} rules")
        else:
            broken = check_all(load_library(), seed=seed, points=check, fleet=fleet, progress=progress)
    library = load_library()
    found = census(library)
    unused = [{"rule": r.id, "direction": "backward" if b else "forward", **v.as_data()} for r, b, v in found.lost]
    data = census_data(found.counts, unused, [b.as_data() for b in broken])
    if report_json is not None:
        write_json(data, report_json, force=True)
    if report_json != "-":
        show_census(out(), data)
    if broken:
        raise typer.Exit(NotEquivalent.exit_code)


def floats_data(library: Library, rule_id: str) -> dict[str, Any]:
    """The recorded verdicts in floating point as JSON data."""
    from superopt.rules.floats import float_key, row_of

    row = row_of(rule_id, library.float_store.get(float_key(library[rule_id]), {}))
    return {way: verdicts for way, verdicts in row.items() if way != "id"}


def float_lines(library: Library, rule_id: str) -> list[str]:
    """What is known of both directions in floating point, with the worst point found."""
    from superopt.rules.floats import float_key

    lines: list[str] = []
    for way, by_type in library.float_store.get(float_key(library[rule_id]), {}).items():
        for dtype, verdict in by_type.items():
            name = "in every type" if dtype == "any" else f"in {dtype}"
            lines.append(f"float verdict, {way}, {name}: {verdict.sentence}")
            if verdict.worst:
                lines.append(f"  worst point found: {json.dumps(dict(verdict.worst))}")
    return lines or ["float verdict: unknown, so it is not used"]
