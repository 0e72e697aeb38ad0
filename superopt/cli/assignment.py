"""``superopt assign``: a strategy for each node of a problem, within its limit of memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from superopt.cli.command_utilities import Force, Json, ProgressReporter, Seed, out, write_text
from superopt.cli.output_paths import claim
from superopt.cli.standard_streams import read_input

__all__ = ["assign"]

_MOST_INPUT = 1 << 30  # bytes: the largest problem of the contest has 40 million


def assign(
    problem: Annotated[
        str, typer.Argument(help="a problem of strategy assignment, .json or .json.gz; - reads standard input")
    ],
    time_limit: Annotated[
        float, typer.Option("--time-limit", metavar="S", min=0, help="seconds for all of it; the best by then is given")
    ] = 60.0,
    work: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="steps of the search, after which equal runs end equal")
    ] = None,
    seed: Seed = 0,
    report_json: Json = None,
    force: Force = False,
) -> None:
    """Assign a strategy to each node of PROBLEM: least cost of nodes and edges, memory within its limit at any time.

    The cost is exact. No assignment within the limit costs less than the bound. Exit code 3 if PROBLEM is none or has
    no assignment, 7 if none was found within the limits.
    """
    from superopt.assignment import parse_problem, read_problem, solve

    claim({"--json": report_json}, [problem], force=force)
    given = parse_problem(read_input(_MOST_INPUT), "standard input") if problem == "-" else read_problem(Path(problem))
    with ProgressReporter("assigning strategies"):
        result = solve(given, time_limit=time_limit, work=work, seed=seed)
    if report_json is not None:
        data = {
            "format": "superopt.assignment", "version": 1, "name": given.name, "strategies": list(result.strategies),
            "cost": result.cost, "bound": result.bound, "peak": result.peak, "usage_limit": given.usage_limit,
            "steps": result.steps, "seconds": round(result.seconds, 3),
        }  # fmt: skip
        write_text(json.dumps(data) + "\n", report_json, force)
    if report_json != "-":
        gap = "" if result.cost == result.bound else f", at most {result.gap:.3%} above the optimum"
        out().print(f"cost {result.cost}, bound {result.bound}{gap}", markup=False)
        out().print(f"peak {result.peak} of {given.usage_limit} bytes, {result.seconds:.1f} s", markup=False)
