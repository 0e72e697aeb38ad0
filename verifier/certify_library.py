"""Certificates of many rules, written and checked again: ``python -m superopt.verifier.certify_library DIR [FILE]``.

Every rule of the library (or of a file) is proved, its certificate written to DIR, and then checked by the independent
checker with Z3 and, where it is installed, cvc5. Prints what failed and a summary; exit code 1 unless all hold.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from superopt.ir.errors import SuperoptError
from superopt.rules import Rule, load_library
from superopt.verifier.certificate import certify
from superopt.verifier.checker import check_certificate
from superopt.verifier.verdict import ProvedAllSizes

__all__ = ["certify_all", "main"]

Row = tuple[str, str, int, int, int]  # rule, what is wrong with it, goals, steps, points


def _one(work: tuple[Rule, Path]) -> Row:
    rule, directory = work
    try:
        verdict = certify(rule, directory)
    except SuperoptError as error:
        return rule.id, str(error), 0, 0, 0
    if not isinstance(verdict, ProvedAllSizes):
        return rule.id, f"not proved: {verdict.reason}", 0, 0, 0
    found = check_certificate(directory / f"{rule.id}.json")
    return rule.id, "" if found.valid else f"rejected: {found.reason}", found.goals, found.steps, found.points


def certify_all(rules: list[Rule], directory: Path, *, workers: int = 2) -> dict[str, object]:
    """Certify rules and check the certificates; a summary with versions, counts and failures."""
    directory.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        rows = list(pool.imap_unordered(_one, [(r, directory) for r in rules], chunksize=4))
    solvers: dict[str, str | None] = {}
    for name in ("z3-solver", "cvc5"):
        try:
            solvers[name] = version(name)
        except PackageNotFoundError:
            solvers[name] = None
    return {
        "rules": len(rows), "valid": sum(not wrong for _, wrong, *_ in rows), "goals": sum(r[2] for r in rows),
        "steps": sum(r[3] for r in rows), "points": sum(r[4] for r in rows), "solvers": solvers,
        "seconds": round(time.monotonic() - started, 1), "failed": {r[0]: r[1] for r in sorted(rows) if r[1]},
    }  # fmt: skip


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("directory", type=Path)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--every", type=int, default=1, help="only every so many-th rule")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    library = load_library() if options.file is None else load_library(options.file, built_in=False)
    rules = [library[i] for i in library][:: options.every]
    summary = certify_all(rules, options.directory, workers=options.workers)
    print(json.dumps(summary, indent=1))
    return 0 if summary["valid"] == summary["rules"] else 1


if __name__ == "__main__":
    sys.exit(main())
