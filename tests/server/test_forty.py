"""Forty rules in the playground: no verdict may be wrong, and nine in ten are decided."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

RULES = tomllib.loads(Path(__file__).with_name("playground_rules.toml").read_text())["rule"]
_RIGHT = {True: "proved_all_sizes", False: "refuted"}


@pytest.mark.parametrize(
    "rows", [pytest.param(RULES[::4], id="ten"), pytest.param(RULES, id="forty", marks=pytest.mark.slow)]
)
def test_rules_are_judged_and_none_wrongly(client: TestClient, rows: list[dict[str, Any]]) -> None:
    assert len(RULES) == 40
    found: Counter[str] = Counter()
    wrong = []
    for row in rows:
        rule = {k: v for k, v in row.items() if k != "true"}
        answer = client.post("/v1/rules/judge", json=rule)
        assert answer.status_code == 200, (rule, answer.text)
        verdict = answer.json()["verdict"]
        found[verdict] += 1
        if verdict == _RIGHT[not row["true"]]:
            wrong.append((rule, verdict))
    assert wrong == []
    assert found["proved_all_sizes"] + found["refuted"] >= 0.9 * len(rows), found
