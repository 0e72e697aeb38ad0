"""The data of corpus runs. Its JSON, ``{"format": "superopt.corpus", "version": 1, …}``, is a public contract."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from superopt.report.model import CheckFailure

__all__ = ["FORMAT", "Comparison", "CorpusRun", "Culprit", "Finding", "Kind", "Operators", "Row", "geometric_mean"]

FORMAT = "superopt.corpus"
Operators = Mapping[str, tuple[int, float]]  # nodes and microseconds by operator
Kind = Literal["wrong", "failed", "regression", "total", "missing", "new", "improved"]

_SHOWN = 8  # names of a culprit in a line of text: where time was up before it was narrowed down, there may be hundreds


def geometric_mean(ratios: Iterable[float]) -> float:
    """Of positive numbers; 1 for none."""
    values = list(ratios)
    product = 1.0
    for value in values:
        product *= value ** (1 / len(values))
    return product


@dataclass(frozen=True)
class Row:
    """What became of one model.

    Attributes:
        model: its path below the project's folder, which is also its name.
        digest: of the graph, weight values apart.
        status: "improved", "unchanged" or "failed" (then ``error`` says why, and ``exit_code`` is that of the error).
        before_us, after_us: modelled cost of input and result.
        check: verdict of the differential check.
        rules: how often each rule was applied.
        before, after: the cost by operator.
        stopped: why the search ended; "time" means that another run may find something else.
        failures: rewritten graphs that were wrong, which makes the row wrong even where a right one was returned.
        measured: whole-model time after ÷ before and its spread, where it was asked for; advisory.
    """

    model: str
    digest: str = ""
    status: Literal["improved", "unchanged", "failed"] = "failed"
    before_us: float = 0.0
    after_us: float = 0.0
    measured_share: float = 0.0
    nodes: tuple[int, int] = (0, 0)
    check: str = "skipped"
    rules: Mapping[str, int] = field(default_factory=dict)
    before: Operators = field(default_factory=dict)
    after: Operators = field(default_factory=dict)
    stopped: str = ""
    seconds: float = 0.0
    failures: tuple[CheckFailure, ...] = ()
    error: str = ""
    exit_code: int = 0
    measured: tuple[float, float] | None = None

    @property
    def wrong(self) -> bool:
        return bool(self.failures)


@dataclass(frozen=True)
class CorpusRun:
    """One run over a corpus, and what it depended on.

    Attributes:
        target: as given; ``profile`` is the digest of its records, ``device`` what they were measured on.
        library: digest of each rule's text, by id.
        texts: the rules that were applied, as rows of a library: so that one that is gone can be tried again.
        history: earlier runs by model, oldest first: date, revision, cost and digest of the profile.
    """

    target: str
    profile: str
    device: str
    revision: str
    date: str
    version: str
    library: Mapping[str, str]
    texts: Mapping[str, Mapping[str, Any]]
    rows: tuple[Row, ...]
    history: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)

    def row(self, model: str) -> Row | None:
        return next((r for r in self.rows if r.model == model), None)


@dataclass(frozen=True)
class Culprit:
    """Why: the kind of cause, what it is called, and what was tried to find out."""

    kind: Literal["wrong rule", "rule removed", "rule added", "operator cost", "model", "time", "code", "unknown"]
    names: tuple[str, ...]
    evidence: str

    def __str__(self) -> str:
        if not self.names:
            return self.kind
        more = len(self.names) - _SHOWN
        return f"{self.kind}: {', '.join(self.names[:_SHOWN])}" + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True)
class Finding:
    """Something to be told about one model, or about all (``model`` is empty)."""

    kind: Kind
    model: str
    message: str
    before_us: float = 0.0
    after_us: float = 0.0
    culprit: Culprit | None = None

    @property
    def level(self) -> Literal["error", "warning", "note"]:
        if self.kind in ("wrong", "failed", "regression", "total"):
            return "error"
        return "warning" if self.kind == "missing" else "note"


@dataclass(frozen=True)
class Comparison:
    """A run judged, against a baseline where there is one."""

    run: CorpusRun
    findings: tuple[Finding, ...]
    baseline: CorpusRun | None = None
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """5 for a wrong result, else 6 for a regression or a model that fails, else 0."""
        if any(f.kind == "wrong" for f in self.findings):
            return 5
        return 6 if any(f.level == "error" for f in self.findings) else 0

    @property
    def ratio(self) -> float:
        """Geometric mean over the models of modelled cost after ÷ before."""
        return geometric_mean(r.after_us / r.before_us for r in self.run.rows if r.before_us > 0 and r.after_us > 0)

    def of(self, model: str) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.model == model)

    def known(self, model: str) -> Row | None:
        """The model's row in the baseline."""
        return None if self.baseline is None else self.baseline.row(model)
