"""A corpus run as JUnit XML, which continuous-integration servers read: a test case a model.

The dialect is that of Jenkins' and GitLab's readers: ``testsuites/testsuite/testcase`` with ``failure``, ``error`` and
``skipped``; a wrong result and a regression are failures, a model that cannot be optimised is an error.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from xml.etree import ElementTree as ET  # written here, never parsed

from superopt.ir.errors import printable
from superopt.report.corpus.model import Comparison, Finding, Row

__all__ = ["junit"]

_LONGEST = 4000


def junit(found: Comparison) -> str:
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


def _case(row: Row, found: Comparison) -> ET.Element:
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


def _absent(finding: Finding) -> ET.Element:
    case = _element(finding.model)
    ET.SubElement(case, "skipped", {"message": _xml(finding.message)})
    return case


def _overall(finding: Finding) -> ET.Element:
    case = _element("all models")
    ET.SubElement(case, "failure", {"type": "total", "message": _xml(finding.message)}).text = _xml(finding.message)
    return case


def _culprit(finding: Finding) -> str:
    return "" if finding.culprit is None else f"{finding.culprit}: {finding.culprit.evidence}"


def _xml(text: str) -> str:
    """Without the characters that XML 1.0 cannot hold."""
    safe = printable(text, _LONGEST)
    return "".join(c for c in safe if c in "\t\n\r" or 0x20 <= ord(c) <= 0xD7FF or 0xE000 <= ord(c) <= 0xFFFD)
