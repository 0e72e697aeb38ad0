"""Forty rules in the playground, and forty more: no verdict may be wrong, and nine in ten are decided."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

_HERE = Path(__file__).parent
RULES = [
    {**row, "verdict": "true" if row["true"] else "false"}
    for row in tomllib.loads((_HERE / "playground_rules.toml").read_text())["rule"]
]
TRAPS = tomllib.loads((_HERE / "playground_traps.toml").read_text())["rule"]
_DECIDED = ("proved_all_sizes", "refuted", "ill")


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(RULES[::4], id="ten"),
        pytest.param(TRAPS[::4], id="ten traps"),
        pytest.param(RULES, id="forty", marks=pytest.mark.slow),
        pytest.param(TRAPS, id="forty traps", marks=pytest.mark.slow),
    ],
)
def test_rules_are_judged_and_none_wrongly(client: TestClient, rows: list[dict[str, Any]]) -> None:
    assert (len(RULES), len(TRAPS)) == (40, 40)
    found: Counter[str] = Counter()
    wrong = []
    for row in rows:
        rule = {k: v for k, v in row.items() if k not in ("true", "verdict")}
        answer = client.post("/v1/rules/judge", json=rule)
        said = answer.json()
        verdict = "ill" if answer.status_code == 422 and said["type"].endswith(":invalid-rule") else said["verdict"]
        found[verdict] += 1
        if verdict in _DECIDED and not _right(row["verdict"], verdict, said):
            wrong.append((rule, said))
    assert wrong == []
    assert sum(found[v] for v in _DECIDED) >= 0.9 * len(rows), found


def _right(expected: str, verdict: str, said: dict[str, Any]) -> bool:
    """Whether a verdict is the one that mathematics has; what holds under conditions must come with them."""
    match expected:
        case "true":
            return verdict == "proved_all_sizes"
        case "conditional":
            return verdict == "proved_all_sizes" and bool(said["proof"].get("nonzero"))
        case "false":
            return verdict == "refuted"
        case _:  # refused, or refuted by sizes at which a side is no term
            return verdict == "ill" or (verdict == "refuted" and "elements" not in said["proof"]["counterexample"])
