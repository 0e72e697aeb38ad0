"""Certificates of many rules, made and checked: ``python -m superopt.verifier.certificates.certify_library [FILE...]``.

Every rule of the library (or of TOML files) is proved, its certificate made, and checked by the independent checker
with Z3 and, where it is installed, cvc5; goals that one of the two does not answer are counted. What holds is recorded
under the digest of the rule and its meanings, so that only what is new is done again; a changed checker or solver
starts a new record. Exit code 1 unless all hold.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from superopt.fleet import WorkerPool, WorkerTask
from superopt.formats.safe_file_access import replace_file
from superopt.ir.errors import SuperoptError
from superopt.rules import Rule, load_library
from superopt.rules.library import BUILT_IN
from superopt.rules.typing import meaning_digest
from superopt.verifier.certificates import certificate, checker, leading_axes, normal_forms, smtlib
from superopt.verifier.certificates.certificate import certificate_of
from superopt.verifier.certificates.checker import check_certificate

__all__ = ["RECORD", "certify_all", "main"]

RECORD = BUILT_IN / "certificates" / "record.json"
Row = dict[str, Any]
_EVERY = 50  # rules after which the record is written, so that a run that is stopped goes on there


def _one(work: tuple[Rule, Path | None]) -> tuple[str, str, Row]:
    """The rule's digest, what is wrong with it ("" if nothing), and its row of the record."""
    rule, directory = work
    row: Row = {"id": rule.id}
    try:
        digest = meaning_digest(rule)
        verdict, text = certificate_of(rule)
    except SuperoptError as error:
        return "", str(error), row
    if not text:
        return digest, f"not proved: {getattr(verdict, 'reason', verdict)}", row
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "certificate.json"
        path.write_text(text, encoding="utf-8")
        certificate_result = check_certificate(path)
    if directory is not None:
        (directory / f"{rule.id}.json").write_text(text, encoding="utf-8")
        (directory / f"{rule.id}.smt2").write_text(json.loads(text)["smt2"], encoding="utf-8")
    row |= {
        "goals": certificate_result.goals,
        "steps": certificate_result.steps,
        "points": certificate_result.points,
        "bytes": len(text),
    }
    unanswered = {
        solver: certificate_result.goals - count
        for solver, count in certificate_result.solvers.items()
        if count < certificate_result.goals
    }
    row |= {"unanswered": unanswered} if certificate_result.valid and unanswered else {}
    return digest, "" if certificate_result.valid else f"rejected: {certificate_result.reason}", row


def circumstances() -> dict[str, Any]:
    """What a record depends on besides the rules: the solvers, and the source of the checker and of the writer."""
    sources = (Path(m.__file__ or "").read_bytes() for m in (certificate, checker, leading_axes, normal_forms, smtlib))
    return {"solvers": smtlib.solvers(), "checker": hashlib.sha256(b"\0".join(sources)).hexdigest()[:16]}


def certify_all(
    rules: Iterable[Rule],
    record: Path | None = None,
    *,
    fleet: WorkerPool | None = None,
    directory: Path | None = None,
    again: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Row:
    """Certify rules that a record does not hold yet, and write the record, without what is no longer asked for.

    Args:
        rules: rules with distinct ids.
        record: where results are kept; ``None`` for nowhere.
        fleet: what certifies them; this process where none is given.
        directory: where certificates are written, ``None`` for nowhere.
        again: do not use what the record holds.
        progress: called with the numbers of rules done and in all.

    Returns:
        The summary: counts, versions, what failed and why, by rule id.
    """
    around = circumstances()
    asked = {meaning_digest(r): r for r in rules}
    known: Mapping[str, Row] = {}
    if record is not None and record.exists() and not again:
        old = json.loads(record.read_text(encoding="utf-8"))
        known = old["rules"] if all(old.get(k) == v for k, v in around.items()) else {}
    rows = {d: row for d, row in known.items() if d in asked}
    left = [(r, directory) for d, r in asked.items() if d not in rows or directory is not None]
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    failed: dict[str, str] = {}
    started = time.monotonic()
    tasks = (WorkerTask(_one, (work,), work[0].id) for work in left)
    for done, outcome in enumerate((fleet or WorkerPool()).each(tasks), 1):
        digest, wrong, row = outcome.result()
        if wrong:
            failed[row["id"]] = wrong
            rows.pop(digest, None)
        else:
            rows[digest] = row
        if record is not None and done % _EVERY == 0:
            _write(record, around, rows, failed)
        progress(done, len(left))
    if record is not None:
        _write(record, around, rows, failed)
    return {**_summary(around, rows, failed), "made": len(left), "seconds": round(time.monotonic() - started, 1)}


def _summary(around: Row, rows: Mapping[str, Row], failed: Mapping[str, str]) -> Row:
    counts = {k: sum(r[k] for r in rows.values()) for k in ("goals", "steps", "points", "bytes")}
    return {**around, "certified": len(rows), **counts, "failed": dict(sorted(failed.items()))}


def _write(path: Path, around: Row, rows: Mapping[str, Row], failed: Mapping[str, str]) -> None:
    """The record, a line a rule, sorted by id; whole or not at all."""
    head = {"format": "superopt.certified", "version": 1, "date": datetime.now(UTC).date().isoformat(),
            "revision": _revision(), **_summary(around, rows, failed)}  # fmt: skip
    lines = ",\n".join(f"  {json.dumps(d)}: {json.dumps(r)}" for d, r in sorted(rows.items(), key=lambda i: i[1]["id"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(head, indent=1)[:-2] + ',\n "rules": {\n' + lines + "\n }\n}\n"
    replace_file(path, text.encode(), force=True)


def _revision() -> str:
    """The commit that is checked out, "" outside a checkout."""
    command = ["git", "-C", str(BUILT_IN.resolve()), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", type=Path, nargs="*", help="TOML files of rules; the library without any")
    parser.add_argument("--certificates", type=Path, metavar="DIR", help="write the certificates there")
    parser.add_argument("--record", type=Path, help="by default the library's own, and none for files")
    parser.add_argument("--again", action="store_true", help="also what the record holds")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    libraries = [load_library(f, built_in=False) for f in options.files] or [load_library()]
    rules = [library[i] for library in libraries for i in library]
    record = options.record or (None if options.files else RECORD)
    with WorkerPool.open(options.workers) as fleet:
        summary = certify_all(
            rules, record, fleet=fleet, directory=options.certificates, again=options.again,
            progress=lambda done, total: print(f"\r{done}/{total}", end="\n" if done == total else "", file=sys.stderr),
        )  # fmt: skip
    print(json.dumps(summary, indent=1))
    return 1 if summary["failed"] else 0


if __name__ == "__main__":
    # Workers find what they are asked to do by its module's name, which "__main__" is not.
    from superopt.verifier.certificates import certify_library

    sys.exit(certify_library.main())
