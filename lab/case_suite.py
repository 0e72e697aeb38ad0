"""Suites of small cases: options, loop and table of ``python -m lab.affine`` and ``python -m lab.pairs``."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from superopt.pipeline.options import Options

__all__ = ["FOUND", "MISSED", "PROFILE", "Suite", "options", "outcome_table"]

FOUND, MISSED = "found", "missed"
PROFILE = "cpu-epyc-2core"
C = TypeVar("C")


def options(floats: str) -> Options:
    """How cases are optimised: under recorded prices, by rules alone."""
    return Options(target=f"profile:{PROFILE}", time_limit=None, floats=floats, disable=("algorithms",))


def outcome_table(heading: str, outcomes: Sequence[str], rows: Iterable[tuple[str, str]]) -> str:
    """Counts of outcomes by group, in Markdown.

    Args:
        heading: of the groups.
        outcomes: the columns.
        rows: the group and the outcome of each case.
    """
    by_group: dict[str, Counter[str]] = {}
    for group, outcome in rows:
        by_group.setdefault(group, Counter())[outcome] += 1
    total: Counter[str] = sum(by_group.values(), Counter())
    lines = [f"| {heading} | {' | '.join(outcomes)} |", "|---|" + "--:|" * len(outcomes)]
    for name, counts in [*by_group.items(), ("all", total)]:
        lines.append(f"| {name} | {' | '.join(str(counts[o]) for o in outcomes)} |")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Suite(Generic[C]):
    """A suite of cases and how a result is shown.

    Attributes:
        module: for ``python -m``.
        description: of the command.
        groups: the option that chooses groups of cases.
        cases: those of the groups, or all where none is named.
        row_of: a case's result: a dataclass with an ``outcome``.
        line: a missed case in one line.
        table: the results as a table.
    """

    module: str
    description: str | None
    groups: str
    cases: Callable[[tuple[str, ...]], Sequence[C]]
    row_of: Callable[[C], Any]
    line: Callable[[Any], str]
    table: Callable[[Iterable[Any]], str]

    def main(self, arguments: Sequence[str] | None) -> int:
        """Print a line for what is missed, then the table; exit code 6 where something is missed."""
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}", description=self.description)
        parser.add_argument(f"--{self.groups}", dest="groups", default="", help="only these, with commas")
        parser.add_argument("--every", type=int, default=1, help="only each N-th case")
        parser.add_argument("--json", type=Path)
        chosen = parser.parse_args(arguments)
        rows = []
        for case in self.cases(tuple(filter(None, chosen.groups.split(","))))[:: chosen.every]:
            row = self.row_of(case)
            rows.append(row)
            if row.outcome == MISSED:
                print(self.line(row), flush=True)
        print(self.table(rows), end="")
        if chosen.json is not None:
            chosen.json.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n", encoding="utf-8")
        return 6 if any(r.outcome == MISSED for r in rows) else 0
