"""Strategy assignment on a folder of problems: the data of the table of docs/assignment.md.

``python -m lab.assignment FOLDER --json lab/results/assignment.json`` solves each ``NAME.json.gz`` of the ASPLOS 2025
contest in its seconds; ``python lab/tables.py`` writes the table.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from superopt.assignment import read_problem, solve
from superopt.errors import SuperoptError

__all__ = ["CONTEST", "AssignmentBenchmarkRow", "main", "solved"]

CONTEST: Mapping[str, tuple[int, int]] = {  # seconds, and the best cost of 25 teams on 8 cores
    "A": (60, 6_548_641_531),
    "B": (60, 532_843),
    "D": (60, 313_613_524_736),
    "G": (120, 217_039),
    "K": (180, 2_274_276_676),
    "M": (180, 49_928_460_991),
    "N": (180, 202_739_586_553),
    "P": (240, 662_197_407_330),
    "R": (240, 371_899_551_572),
    "S": (240, 1_534_613_444),
}
_DEFAULT_SECONDS = 60  # of problems that are not in the table


@dataclass(frozen=True)
class AssignmentBenchmarkRow:
    """A problem and what was found; ``error`` where there is no assignment, and then the numbers are 0.

    Attributes:
        limit, seconds: of one core's time, allowed and taken, reading included.
        best: of the contest's teams; 0 where it is not known.
    """

    problem: str
    nodes: int
    limit: float
    seconds: float
    best: int
    cost: int
    bound: int
    peak: int
    usage_limit: int
    steps: int
    error: str = ""


def solved(path: Path, *, share: float, seed: int) -> AssignmentBenchmarkRow:
    """Solve a problem.

    Args:
        path: its file.
        share: of the contest's seconds, counted in CPU seconds of this process, which runs on one core.
        seed: of the search.
    """
    name = path.name.split(".")[0]
    seconds, best = CONTEST.get(name, (_DEFAULT_SECONDS, 0))
    began, limit = time.process_time(), share * seconds
    problem = read_problem(path)
    try:
        result = solve(
            problem, time_limit=limit - (time.process_time() - began), seed=seed, clock=time.process_time
        )  # fmt: skip
    except SuperoptError as error:
        spent = time.process_time() - began
        return AssignmentBenchmarkRow(
            name, problem.nodes, limit, spent, best, 0, 0, 0, problem.usage_limit, 0, str(error)
        )
    spent = round(time.process_time() - began, 1)
    return AssignmentBenchmarkRow(
        name, problem.nodes, limit, spent, best, result.cost, result.bound, result.peak, problem.usage_limit,
        result.steps,
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Solve the problems of a folder and write the rows as JSON."""
    parser = argparse.ArgumentParser(prog="python -m lab.assignment", description=__doc__)
    parser.add_argument("folder", type=Path, help="problems: NAME.json or NAME.json.gz")
    parser.add_argument("--only", default="", help="names, separated by commas; all by default")
    parser.add_argument("--share", type=float, default=1.0, help="of the contest's seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where the rows go; rows of other problems there stay")
    options = parser.parse_args(arguments)
    only = set(filter(None, options.only.split(",")))
    paths = sorted([*options.folder.glob("*.json"), *options.folder.glob("*.json.gz")])
    earlier = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    rows = {item["problem"]: AssignmentBenchmarkRow(**item) for item in earlier}
    for path in paths:
        if only and path.name.split(".")[0] not in only:
            continue
        row = solved(path, share=options.share, seed=options.seed)
        rows[row.problem] = row
        print(f"{row.problem}: {row.cost} in {row.seconds} s {row.error}", file=sys.stderr, flush=True)
        if options.json:
            options.json.write_text(text(rows), "utf-8")
    if not options.json:
        print(text(rows), end="")
    return 0


def text(rows: Mapping[str, AssignmentBenchmarkRow]) -> str:
    """The rows in order, as JSON."""
    return json.dumps([asdict(rows[name]) for name in sorted(rows)], indent=1) + "\n"


if __name__ == "__main__":
    sys.exit(main())
