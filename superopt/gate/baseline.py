"""Corpus runs on disk: JSON, sorted, a line a model, so that a diff of the file reads well."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from superopt.formats.safe_file_access import replace_file
from superopt.ir.errors import InvalidModel, UsageError, printable
from superopt.report.corpus import FORMAT, CorpusModelResult, CorpusRun
from superopt.report.optimization_report import CheckFailure

__all__ = ["read_run", "row_data", "row_from_data", "run_data", "updated", "write_run"]

_MOST_BYTES = 64 << 20
_KEPT = 200  # entries of a model's history


def run_data(run: CorpusRun) -> dict[str, Any]:
    """A run as JSON data."""
    return {
        "format": FORMAT, "version": 1, "target": run.target, "profile": run.profile, "device": run.device,
        "revision": run.revision, "date": run.date, "superopt": run.version,
        "library": dict(sorted(run.library.items())), "texts": dict(sorted(run.texts.items())),
        "models": {r.model: row_data(r) for r in sorted(run.rows, key=lambda r: r.model)},
        "history": {m: list(entries) for m, entries in sorted(run.history.items())},
    }  # fmt: skip


def row_data(row: CorpusModelResult) -> dict[str, Any]:
    """A model's row as JSON data."""
    data: dict[str, Any] = {
        "digest": row.digest, "status": row.status, "before_us": round(row.before_us, 3),
        "after_us": round(row.after_us, 3), "measured_share": round(row.measured_share, 4), "nodes": list(row.nodes),
        "check": row.check, "stopped": row.stopped, "rules": dict(sorted(row.rules.items())),
        "before": {op: [n, round(us, 3)] for op, (n, us) in row.before.items()},
        "after": {op: [n, round(us, 3)] for op, (n, us) in row.after.items()},
    }  # fmt: skip
    if row.failures:
        data["failures"] = [
            {"reason": f.reason, "rules": list(f.rules), "left_out": f.left_out} for f in row.failures
        ]  # fmt: skip
    if row.error:
        data |= {"error": row.error, "exit_code": row.exit_code}
    if row.measured is not None:
        data["measured"] = [round(v, 4) for v in row.measured]
    return data


def write_run(path: Path, run: CorpusRun) -> None:
    """Write a run: atomically, over what is there; its folder is made.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, run_text(run).encode(), force=True)


def run_text(run: CorpusRun) -> str:
    """The file: top-level keys a line each, and within them a line for each rule and model."""
    parts = []
    for key, value in run_data(run).items():
        if isinstance(value, dict) and value:
            inner = ",\n".join(f"  {json.dumps(k)}: {_line(v)}" for k, v in value.items())
            parts.append(f"{json.dumps(key)}: {{\n{inner}\n}}")
        else:
            parts.append(f"{json.dumps(key)}: {_line(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(", ", ": "))


def read_run(path: Path) -> CorpusRun:
    """The run that :func:`write_run` wrote.

    Raises:
        UsageError: there is no such file. InvalidModel: it is not a corpus run of version 1.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InvalidModel("too large for a corpus run", where=str(path))
        data = json.loads(path.read_text(encoding="utf-8"))
        if data.get("format") != FORMAT or data.get("version") != 1:
            raise ValueError(f"its format is not {FORMAT}, version 1")
        return _run(data)
    except FileNotFoundError:
        hint = "`superopt corpus update` writes it"
        raise UsageError("there is no such corpus run", where=str(path), hint=hint) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError) as error:
        why = printable(str(error)) or type(error).__name__
        raise InvalidModel(f"not a corpus run: {why}", where=str(path), hint="write it again") from error


def _run(data: Mapping[str, Any]) -> CorpusRun:
    return CorpusRun(
        target=str(data["target"]), profile=str(data["profile"]), device=str(data["device"]),
        revision=str(data["revision"]), date=str(data["date"]), version=str(data["superopt"]),
        library={str(k): str(v) for k, v in data["library"].items()},
        texts={str(k): dict(v) for k, v in data["texts"].items()},
        rows=tuple(row_from_data(str(model), row) for model, row in data["models"].items()),
        history={str(m): tuple(dict(e) for e in entries) for m, entries in data.get("history", {}).items()},
    )  # fmt: skip


def row_from_data(model: str, data: Mapping[str, Any]) -> CorpusModelResult:
    """The row that :func:`row_data` wrote."""
    before, after = data["nodes"]
    measured = data.get("measured")
    return CorpusModelResult(
        model=model, digest=str(data["digest"]), status=data["status"], before_us=float(data["before_us"]),
        after_us=float(data["after_us"]), measured_share=float(data["measured_share"]),
        nodes=(int(before), int(after)), check=str(data["check"]), stopped=str(data["stopped"]),
        rules={str(k): int(v) for k, v in data["rules"].items()},
        before={str(op): (int(n), float(us)) for op, (n, us) in data["before"].items()},
        after={str(op): (int(n), float(us)) for op, (n, us) in data["after"].items()},
        failures=tuple(
            CheckFailure(str(f["reason"]), tuple(map(str, f["rules"])), str(f["left_out"]))
            for f in data.get("failures", ())
        ),
        error=str(data.get("error", "")), exit_code=int(data.get("exit_code", 0)),
        measured=None if measured is None else (float(measured[0]), float(measured[1])),
    )  # fmt: skip


def updated(run: CorpusRun, old: CorpusRun | None, *, partial: bool) -> CorpusRun:
    """The new baseline: the run with the history of the old one, and this run added to it.

    Args:
        run: what stands now.
        old: the baseline that it replaces.
        partial: only some models ran; the others keep their rows.
    """
    history: dict[str, tuple[Mapping[str, Any], ...]] = dict(old.history) if old is not None else {}
    for row in run.rows:
        entry = {
            "date": run.date, "revision": run.revision, "profile": run.profile,
            "before_us": round(row.before_us, 3), "after_us": round(row.after_us, 3), "digest": row.digest,
        }  # fmt: skip
        history[row.model] = _appended(history.get(row.model, ()), entry)
    rows, texts = run.rows, run.texts
    if partial and old is not None:
        ran = {r.model for r in rows}
        rows = (*rows, *(r for r in old.rows if r.model not in ran))
        used = {rule for r in rows for rule in r.rules}
        texts = {k: v for k, v in {**old.texts, **texts}.items() if k in used}
    else:
        history = {r.model: history[r.model] for r in rows}
    return replace(run, rows=rows, texts=texts, history=history)


def _appended(entries: Sequence[Mapping[str, Any]], entry: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The history with an entry more; a run of the same revision with the same result is no news."""
    same = ("revision", "profile", "before_us", "after_us", "digest")
    if entries and all(entries[-1].get(k) == entry[k] for k in same):
        return tuple(entries)
    return (*entries[-_KEPT + 1 :], entry)
