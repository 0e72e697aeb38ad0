"""A corpus run as SARIF 2.1.0 (OASIS Static Analysis Results Interchange Format), which code hosts show at files."""

from __future__ import annotations

import hashlib
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from superopt.report.corpus.model import Comparison, Finding

__all__ = ["sarif"]

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


def sarif(found: Comparison) -> dict[str, Any]:
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


def _result(finding: Finding, index: int) -> dict[str, Any]:
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
