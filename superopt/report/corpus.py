"""The report of ``superopt corpus``: the model, and its text, JUnit and SARIF forms."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, Literal
from urllib.parse import quote
from xml.etree import ElementTree as ET

from rich.console import Console
from rich.markup import escape

from superopt.ir.errors import printable
from superopt.report.optimization_report import CheckFailure
from superopt.report.quantities import time_text
from superopt.report.terminal import table

__all__ = [
    "BaselineComparison",
    "CorpusRun",
    "Culprit",
    "FORMAT",
    "CorpusFinding",
    "Kind",
    "Operators",
    "CorpusModelResult",
    "geometric_mean",
    "headline",
    "junit",
    "markdown",
    "sarif",
    "show",
]


# -- The model -----------------------------------------------------------------------------------------------------
#
# The data of corpus runs. Its JSON, ``{"format": "superopt.corpus", "version": 1, …}``, is a public contract.


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
class CorpusModelResult:
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
    rows: tuple[CorpusModelResult, ...]
    history: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)

    def row(self, model: str) -> CorpusModelResult | None:
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
class CorpusFinding:
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
class BaselineComparison:
    """A run judged, against a baseline where there is one."""

    run: CorpusRun
    findings: tuple[CorpusFinding, ...]
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

    def of(self, model: str) -> tuple[CorpusFinding, ...]:
        return tuple(f for f in self.findings if f.model == model)

    def known(self, model: str) -> CorpusModelResult | None:
        """The model's row in the baseline."""
        return None if self.baseline is None else self.baseline.row(model)


# -- Text ----------------------------------------------------------------------------------------------------------
#
# A corpus run on the terminal and as Markdown (which GitHub shows as a job's summary).


_MARK = {"error": "✗", "warning": "!", "note": "·"}


def headline(found: BaselineComparison) -> str:
    """The run in one line."""
    rows = found.run.rows
    improved = sum(r.status == "improved" for r in rows)
    count = "1 model" if len(rows) == 1 else f"{len(rows)} models"
    text = f"{count}, {improved} improved, estimated cost x{found.ratio:.3f} (geometric mean)"
    counts = {
        kind: sum(f.kind == kind for f in found.findings) for kind in ("wrong", "failed", "regression", "missing")
    }
    parts = [f"{n} {kind}" for kind, n in counts.items() if n]
    if any(f.kind == "total" for f in found.findings):
        parts.append("all together too slow")
    verdict = ", ".join(parts) or ("nothing wrong" if found.baseline is None else "no regression")
    return f"{text}: {verdict}"


def show(console: Console, found: BaselineComparison) -> None:
    """The table of models, then what is to be told."""
    folder = _folder(found)
    rows = [_cells(row, found, folder) for row in found.run.rows]
    headers = _headers(found)
    console.print(table(*headers, rows=rows, numeric=tuple(range(1, len(headers) - 2))))
    for finding in found.findings:
        style = {"error": "red", "warning": "yellow", "note": ""}[finding.level]
        line = escape(f"{_MARK[finding.level]} {_finding_text(finding)}")
        console.print(f"[{style}]{line}[/{style}]" if style else line)
    for note in found.notes:
        console.print(f"note: {escape(note)}")
    console.print(f"[bold]{escape(headline(found))}[/bold]  on {escape(found.run.target)}, {escape(found.run.device)}")


def _finding_text(finding: CorpusFinding) -> str:
    head = f"{printable(finding.model)} {finding.message}" if finding.model else finding.message
    if finding.culprit is None:
        return head
    return f"{head}; {finding.culprit}: {finding.culprit.evidence}"


def _folder(found: BaselineComparison) -> str:
    """The folder that all models are in, which is not said with each."""
    parts = [Path(r.model).parent.parts for r in found.run.rows]
    shared = [level[0] for level in zip(*parts, strict=False) if len(set(level)) == 1]
    depth = next((i for i, level in enumerate(zip(*parts, strict=False)) if len(set(level)) > 1), len(shared))
    return "/".join(shared[:depth]) + "/" if depth else ""


def _headers(found: BaselineComparison) -> tuple[str, ...]:
    against = ("baseline", "change") if found.baseline is not None else ()
    measured = ("measured",) if _measured(found) else ()
    return ("model", "before", "after", "x", *against, *measured, "check", "rules")


def _measured(found: BaselineComparison) -> bool:
    return any(r.measured is not None for r in found.run.rows)


def _cells(row: CorpusModelResult, found: BaselineComparison, folder: str = "") -> tuple[str, ...]:
    """A row of the table, without the folder that all models are in."""
    name = printable(_short(row.model.removeprefix(folder)), 50)
    against = ("", "") if found.baseline is not None else ()
    measured: tuple[str, ...] = ("" if row.measured is None else f"{row.measured[0]:.3f} ±{row.measured[1]:.3f}",)
    measured = measured if _measured(found) else ()
    if row.status == "failed":
        return (name, "–", "–", "–", *against, *measured, "failed", "")
    known = found.known(row.model)
    if known is not None and known.after_us > 0:
        against = (time_text(known.after_us), _change(row.after_us / known.after_us))
    ratio = f"{row.after_us / row.before_us:.3f}" if row.before_us else "–"
    check = "wrong" if row.wrong else row.check if row.status == "improved" else "unchanged"
    return (
        name, time_text(row.before_us), time_text(row.after_us), ratio, *against, *measured, check, str(len(row.rules))
    )  # fmt: skip


def _change(ratio: float) -> str:
    return "=" if abs(ratio - 1) < 5e-4 else f"{ratio - 1:+.1%}"


def _short(model: str) -> str:
    return str(Path(model).with_suffix(""))


def markdown(found: BaselineComparison) -> str:
    """The run as GitHub-flavoured Markdown: verdict, findings with culprits, every model in a folded table."""
    icon = {0: "✅", 5: "❌", 6: "❌"}[found.exit_code]
    run = found.run
    lines = [f"## {icon} superopt corpus", "", _text(headline(found)), ""]
    told = [f for f in found.findings if f.level != "note"]
    if told:
        lines += ["| | model | what | culprit |", "|---|---|---|---|"]
        for f in told:
            culprit = "" if f.culprit is None else f"**{_text(str(f.culprit))}**: {_text(f.culprit.evidence)}"
            lines.append(f"| {_MARK[f.level]} {f.kind} | {_code(f.model)} | {_text(f.message)} | {culprit} |")
        lines.append("")
    lines += [f"- {_text(note)}" for note in found.notes]
    lines += ["", "<details><summary>Models</summary>", ""]
    headers = _headers(found)
    lines.append(f"| {' | '.join(headers)} |")
    lines.append("|---|" + "--:|" * (len(headers) - 3) + "---|--:|")
    for row in run.rows:
        cells = _cells(row, found)
        lines.append(f"| {' | '.join((_code(cells[0]), *map(_text, cells[1:])))} |")
    lines += ["", "</details>", ""]
    where = f"Costs estimated for {_text(run.target)} ({_text(run.device)}), superopt {_text(run.version)}"
    against = ""
    if found.baseline is not None:
        against = f"; baseline of {found.baseline.date[:10]} {_text(found.baseline.revision)}"
    lines.append(f"{where} {_text(run.revision)}{against}.")
    return "\n".join(lines) + "\n"


def _text(text: str) -> str:
    """Text that Markdown shows as it is, in a table cell too."""
    safe = printable(text, 400).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for mark in "\\`*_[]|~":
        safe = safe.replace(mark, f"\\{mark}")
    return safe


def _code(text: str) -> str:
    return f"`{printable(text, 120).replace('`', 'ˋ').replace('|', '¦')}`" if text else ""


# -- JUnit ---------------------------------------------------------------------------------------------------------
#
# A corpus run as JUnit XML, which continuous-integration servers read: a test case a model.
#
# The dialect is that of Jenkins' and GitLab's readers: ``testsuites/testsuite/testcase`` with ``failure``, ``error``
# and ``skipped``; a wrong result and a regression are failures, a model that cannot be optimised is an error.


_LONGEST = 4000


def junit(found: BaselineComparison) -> str:
    """The XML document."""
    run = found.run
    cases = [_case(row, found) for row in run.rows]
    cases += [_absent(f) for f in found.findings if f.kind == "missing"]
    cases += [_overall(f) for f in found.findings if f.kind == "total"]
    counts = {
        "tests": str(len(cases)), "failures": str(sum(c.find("failure") is not None for c in cases)),
        "errors": str(sum(c.find("error") is not None for c in cases)),
        "skipped": str(sum(c.find("skipped") is not None for c in cases)),
        "time": f"{sum(r.seconds for r in run.rows):.3f}",
    }  # fmt: skip
    suites = ET.Element(
        "testsuites", {"name": "superopt corpus", **{k: v for k, v in counts.items() if k != "skipped"}}
    )
    suite = ET.SubElement(suites, "testsuite", {"name": "superopt corpus", **counts, "timestamp": run.date.rstrip("Z")})
    properties = ET.SubElement(suite, "properties")
    for name, value in (("target", run.target), ("device", run.device), ("revision", run.revision)):
        ET.SubElement(properties, "property", {"name": name, "value": _xml(value)})
    suite.extend(cases)
    ET.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def _case(row: CorpusModelResult, found: BaselineComparison) -> ET.Element:
    case = _element(row.model, row.seconds)
    for finding in found.of(row.model):
        if finding.level == "error":
            ET.SubElement(
                case, "error" if finding.kind == "failed" else "failure",
                {"type": finding.kind, "message": _xml(finding.message)},
            ).text = _xml(_culprit(finding) or finding.message)  # fmt: skip
    if row.status == "failed" and not len(case):
        ET.SubElement(case, "skipped", {"message": _xml(f"as in the baseline: {row.error}")})
    if row.before_us:
        ET.SubElement(case, "system-out").text = (
            f"modelled cost {row.before_us:.1f} -> {row.after_us:.1f} us; check {row.check}; "
            f"rules {', '.join(sorted(row.rules)) or 'none'}"
        )
    return case


def _element(model: str, seconds: float = 0.0) -> ET.Element:
    path = PurePosixPath(model)
    group = ".".join(part for part in path.parent.parts if part not in ("/", "..", "."))
    return ET.Element(
        "testcase", {"classname": _xml(group or "corpus"), "name": _xml(path.stem), "time": f"{seconds:.3f}"}
    )


def _absent(finding: CorpusFinding) -> ET.Element:
    case = _element(finding.model)
    ET.SubElement(case, "skipped", {"message": _xml(finding.message)})
    return case


def _overall(finding: CorpusFinding) -> ET.Element:
    case = _element("all models")
    ET.SubElement(case, "failure", {"type": "total", "message": _xml(finding.message)}).text = _xml(finding.message)
    return case


def _culprit(finding: CorpusFinding) -> str:
    return "" if finding.culprit is None else f"{finding.culprit}: {finding.culprit.evidence}"


def _xml(text: str) -> str:
    """Without the characters that XML 1.0 cannot hold."""
    safe = printable(text, _LONGEST)
    return "".join(c for c in safe if c in "\t\n\r" or 0x20 <= ord(c) <= 0xD7FF or 0xE000 <= ord(c) <= 0xFFFD)


# -- SARIF ---------------------------------------------------------------------------------------------------------
#
# A corpus run as SARIF 2.1.0 (OASIS Static Analysis Results Interchange Format), which code hosts show at files.


_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_HOME = "https://pypi.org/project/superopt/"
_RULES = {
    "wrong": "A rewritten model computed something else than the model it came from.",
    "failed": "A model could not be optimised.",
    "regression": "A model's modelled cost grew by more than its threshold.",
    "total": "The geometric mean of all models' modelled costs grew by more than its threshold.",
    "missing": "A model of the baseline was not found.",
    "new": "A model is not in the baseline.",
    "improved": "A model's modelled cost fell by more than its threshold.",
}


def sarif(found: BaselineComparison) -> dict[str, Any]:
    """The log as JSON data; what is only a note is left out of the results, as there is nothing to act on."""
    ids = list(_RULES)
    told = [f for f in found.findings if f.level != "note"]
    driver = {
        "name": "superopt", "informationUri": _HOME, "version": found.run.version,
        "rules": [
            {"id": f"corpus/{name}", "name": name.capitalize(), "shortDescription": {"text": text}}
            for name, text in _RULES.items()
        ],
    }  # fmt: skip
    run = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"superopt-corpus/{found.run.target}/"},
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {"executionSuccessful": True, "exitCode": found.exit_code, "endTimeUtc": found.run.date},
        ],
        "results": [_result(f, ids.index(f.kind)) for f in told],
    }  # fmt: skip
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(finding: CorpusFinding, index: int) -> dict[str, Any]:
    text = finding.message if not finding.model else f"{finding.model} {finding.message}"
    if finding.culprit is not None:
        text += f"; {finding.culprit}: {finding.culprit.evidence}"
    fingerprint = hashlib.sha256(f"{finding.kind} {finding.model}".encode()).hexdigest()[:32]
    result: dict[str, Any] = {
        "ruleId": f"corpus/{finding.kind}", "ruleIndex": index, "level": finding.level, "message": {"text": text},
        "locations": [_location(finding.model)] if finding.model else [],
        "partialFingerprints": {"superopt/v1": fingerprint},
    }  # fmt: skip
    properties: dict[str, Any] = {}
    if finding.after_us:
        properties |= {"costBeforeMicroseconds": finding.before_us, "costAfterMicroseconds": finding.after_us}
    if finding.culprit is not None:
        properties |= {"culpritKind": finding.culprit.kind, "culprits": list(finding.culprit.names)}
    return {**result, "properties": properties} if properties else result


def _location(model: str) -> dict[str, Any]:
    path = PurePath(model)
    place = {"uri": path.as_uri()} if path.is_absolute() else {"uri": quote(model), "uriBaseId": "%SRCROOT%"}
    return {"physicalLocation": {"artifactLocation": place, "region": {"startLine": 1}}}
