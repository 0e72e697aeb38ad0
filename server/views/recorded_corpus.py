"""What was recorded about the corpus, as the pages show it: the manifest, and runs of ``superopt corpus update``.

Results that open without a job are recorded by :mod:`superopt.server.gallery_record`.
"""

from __future__ import annotations

import gzip
import json
import logging
import tomllib
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from superopt.ir.errors import SuperoptError
from superopt.report.corpus import CorpusModelResult, CorpusRun, geometric_mean

__all__ = ["RecordedCorpus", "RecordedCorpusRun", "ResultGallery"]


log = logging.getLogger("superopt.serve")
_WORSE = 1.02  # growth against the run before from which a page says so
_PLACES = ("baselines/*.json", "*baseline*.json")
_BENCHMARK, _OURS = "superopt.bench", "superopt"
_BENCHMARKS = ("bench*/*.json", "*bench*.json")

_FORMAT = "superopt.gallery"


@dataclass(frozen=True)
class RecordedCorpusRun:
    """One recorded run, by the models' short names."""

    data: CorpusRun

    @cached_property
    def rows(self) -> dict[str, CorpusModelResult]:
        return {Path(r.model).stem: r for r in self.data.rows}

    @property
    def title(self) -> str:
        """The target, and whether the models are the small forms that tests and the gate run."""
        small = all("tiny" in Path(r.model).parts for r in self.data.rows)
        return f"{self.data.target}, tiny forms" if small and self.data.rows else self.data.target

    @property
    def revision(self) -> str:
        """The revision that was run; empty where there were changes beside it, for then no revision has that code."""
        return "" if self.data.revision.endswith("-dirty") else self.data.revision

    @cached_property
    def ratio(self) -> float:
        """Geometric mean of modelled cost after ÷ before, over the models that could be run."""
        return geometric_mean(ratio_of(r) for r in self.data.rows if r.before_us > 0 and r.after_us > 0)

    @cached_property
    def history(self) -> dict[str, tuple[float, ...]]:
        """Modelled cost of each model's result, oldest first, as far back as the same profile goes."""
        found: dict[str, tuple[float, ...]] = {}
        for model, entries in self.data.history.items():
            comparable = [e for e in entries if e.get("profile") == entries[-1].get("profile")]
            found[Path(model).stem] = tuple(float(e["after_us"]) for e in comparable)
        return found

    def since(self, rules: Collection[str]) -> tuple[int, int]:
        """Of the library that the run had: how many rules are not in today's, and how many of today's it lacked."""
        then = set(self.data.library)
        return len(then.difference(rules)), len(set(rules) - then)

    @property
    def compared(self) -> bool:
        """Whether there is a run before that it can be compared with."""
        return any(len(past) > 1 for past in self.history.values())

    @cached_property
    def regressed(self) -> list[str]:
        """Models whose result costs more than in the run before."""
        return [n for n, past in self.history.items() if len(past) > 1 and past[-1] > _WORSE * past[-2]]

    def fires(self, rule: str) -> list[dict[str, Any]]:
        """The models in whose result a rule was used, the largest gain first."""
        found = [
            {"name": name, "count": row.rules[rule], "before_us": row.before_us, "after_us": row.after_us,
             "ratio": ratio_of(row)}
            for name, row in self.rows.items() if rule in row.rules
        ]  # fmt: skip
        return sorted(found, key=lambda f: f["ratio"])


def ratio_of(row: CorpusModelResult) -> float:
    """Modelled cost after ÷ before; 1 where it is not known."""
    return row.after_us / row.before_us if row.before_us > 0 else 1.0


class RecordedCorpus:
    """The files of the corpus folder; read once. Without the folder there is nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @cached_property
    def models(self) -> list[dict[str, Any]]:
        """The manifest's models, in its order."""
        if self._folder is None:
            return []
        path = self._folder / "manifest.toml"
        try:
            return list(tomllib.loads(path.read_text()).get("model", []))
        except (OSError, ValueError) as error:
            log.warning("%s: %s", path, error)
            return []

    @cached_property
    def runs(self) -> list[RecordedCorpusRun]:
        """Recorded runs by target, those of the true models first."""
        from superopt.gate import read_run  # loads the engine, which an API process does not need otherwise

        made = []
        for path in self._files(_PLACES):
            try:
                made.append(RecordedCorpusRun(read_run(path)))
            except SuperoptError as error:
                log.warning("%s", error)
        return sorted(made, key=lambda r: ("tiny" in r.title, r.title))

    @cached_property
    def uses(self) -> Mapping[str, int]:
        """In how many models each rule fired: the run where these are most."""
        found: dict[str, int] = {}
        for run in self.runs:
            for rule, count in Counter(r for row in run.rows.values() for r in row.rules).items():
                found[rule] = max(found.get(rule, 0), count)
        return found

    @cached_property
    def benchmarks(self) -> list[dict[str, Any]]:
        """Recorded benchmarks (``superopt bench --json``): each a machine, a date, its tools, and rows by model."""
        made = []
        for path in self._files(_BENCHMARKS):
            try:
                data = json.loads(path.read_text())
                if isinstance(data, dict) and data.get("format") == _BENCHMARK:
                    made.append(data)
            except (OSError, ValueError) as error:
                log.warning("%s is not a benchmark: %s", path, error)
        return made

    @cached_property
    def beside(self) -> dict[str, dict[str, dict[str, Any]]]:
        """What other optimizers make of a model: model → tool → ratio and spread, or why there is none."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for data in self.benchmarks:
            for row in data["rows"]:
                found[Path(row["model"]).stem] = {t: r for t, r in row["tools"].items() if t != _OURS}
        return found

    @cached_property
    def failed(self) -> dict[str, str]:
        """Why a model's result was not timed: what a benchmark says of it in a word (``wrong``, ``timeout``, …)."""
        return {
            Path(row["model"]).stem: str(ours.get("status", "failed"))
            for data in self.benchmarks for row in data["rows"]
            if (ours := row["tools"].get(_OURS)) is not None and ours.get("ratio") is None
        }  # fmt: skip

    @cached_property
    def tools(self) -> dict[str, str]:
        """The other optimizers of the benchmarks, with their versions, and what they are where that needs saying."""
        return {
            tool: facts.get("what") or f"version {facts['version']}"
            for data in self.benchmarks for tool, facts in data["tools"].items() if tool != _OURS
        }  # fmt: skip

    @cached_property
    def measured(self) -> dict[str, dict[str, Any]]:
        """Whole-model times before and after, by model: the benchmark's, else what a run measured by the way."""
        found: dict[str, dict[str, Any]] = {}
        for data in self.benchmarks:
            for row in data["rows"]:
                ours = row["tools"].get(_OURS, {})
                if ours.get("ratio") is not None and ours.get("ms") is not None:
                    found[Path(row["model"]).stem] = {
                        "ratio": ours["ratio"], "spread": ours["spread"], "before_ms": row["before_ms"],
                        "after_ms": ours["ms"],
                    }  # fmt: skip
        for run in self.runs:
            for name, row in run.rows.items():
                if row.measured is not None:
                    found[name] = {"ratio": row.measured[0], "spread": row.measured[1], "before_ms": None}
        for path in self._files(_BENCHMARKS):
            try:
                rows = json.loads(path.read_text())
                if isinstance(rows, dict) and rows.get("format") == _BENCHMARK:
                    continue
                for row in rows if isinstance(rows, list) else rows["rows"]:
                    if "ratio" in row:
                        kept = {k: float(row[k]) for k in ("ratio", "spread", "before_ms", "after_ms")}
                        found[Path(row["model"]).stem] = kept
            except (OSError, ValueError, KeyError, TypeError) as error:
                log.warning("%s is not a benchmark: %s", path, error)
        return found

    def _files(self, patterns: tuple[str, ...]) -> list[Path]:
        if self._folder is None:
            return []
        return sorted({p for pattern in patterns for p in self._folder.glob(pattern) if p.is_file()})


class ResultGallery:
    """The folder ``results`` of a corpus folder: ``NAME.json.gz`` each. Without it there is nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder / "results" if folder is not None else None

    @cached_property
    def names(self) -> frozenset[str]:
        """The models of which something was recorded."""
        paths = self._folder.glob("*.json.gz") if self._folder is not None and self._folder.is_dir() else ()
        return frozenset(path.name.removesuffix(".json.gz") for path in paths)

    @lru_cache(maxsize=16)  # noqa: B019  (one service per process)
    def entry(self, name: str) -> dict[str, Any] | None:
        """What is kept of a model, as JSON data (``superopt.gallery``); nothing where it is not known."""
        if self._folder is None or name not in self.names:
            return None
        path = self._folder / f"{name}.json.gz"
        try:
            found = json.loads(gzip.decompress(path.read_bytes()))
        except (OSError, ValueError, EOFError) as error:
            log.warning("%s: %s", path, error)
            return None
        return found if isinstance(found, dict) and found.get("format") == _FORMAT else None

    @lru_cache(maxsize=64)  # noqa: B019
    def comparison(self, name: str) -> bytes:
        """Input and result of a model as one graph, ready to send; empty where it is not known."""
        entry = self.entry(name)
        return json.dumps(entry["comparison"], separators=(",", ":")).encode() if entry is not None else b""
