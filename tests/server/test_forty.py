"""Three times forty rules in the playground: no verdict may be wrong, and nine in ten are decided."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sampling import slow
from starlette.testclient import TestClient

_HERE = Path(__file__).parent
RULES = [
    {**row, "verdict": "true" if row["true"] else "false"}
    for row in tomllib.loads((_HERE / "playground_rules.toml").read_text())["rule"]
]
TRAPS = tomllib.loads((_HERE / "playground_traps.toml").read_text())["rule"]
COMPILER = tomllib.loads((_HERE / "playground_compiler.toml").read_text())["rule"]
_DECIDED = ("proved_all_sizes", "refuted", "ill")


@pytest.mark.parametrize(
    "rows",
    [
        slow(RULES[::8], id="five"),
        pytest.param(TRAPS[::8], id="five traps"),
        slow(COMPILER[6::8], id="five of a compiler's"),
        slow(RULES, id="forty"),
        slow(TRAPS, id="forty traps"),
        slow(COMPILER, id="forty of a compiler's"),
    ],
)
def test_rules_are_judged_and_none_wrongly(client: TestClient, rows: list[dict[str, Any]]) -> None:
    assert (len(RULES), len(TRAPS), len(COMPILER)) == (40, 40, 40)
    found: Counter[str] = Counter()
    wrong = []
    for row in rows:
        rule = {k: v for k, v in row.items() if k in ("forall", "where", "lhs", "rhs")}
        answer = client.post("/v1/rules/judge", json=rule)
        said = answer.json()
        verdict = "ill" if answer.status_code == 422 and said["type"].endswith(":invalid-rule") else said["verdict"]
        if verdict == "ill" != row["verdict"]:
            verdict = "refused"  # with its reason, as what the library has no meaning for: not decided
        found[verdict] += 1
        if verdict in _DECIDED and not _right(row["verdict"], verdict, said):
            wrong.append((rule, said))
        if row.get("floats") == "dangerous":
            kinds = {f["verdict"] for f in said["floats"] if f["type"] in ("any", "float32")}
            assert kinds - {"safe"}, (rule, said["floats"])
    assert wrong == []
    assert sum(found[v] for v in _DECIDED) >= 0.9 * len(rows), found


def _right(expected: str, verdict: str, said: dict[str, Any]) -> bool:
    """Whether a verdict is the one that mathematics has; what holds under conditions must come with them."""
    match expected:
        case "true":
            return verdict == "proved_all_sizes"
        case "conditional":
            conditions = said["proof"].get("nonzero", []) + said["proof"].get("derived", [])
            return verdict == "proved_all_sizes" and bool(conditions)
        case "false":
            return verdict == "refuted"
        case _:  # refused, or refuted by sizes at which a side is no term
            return verdict == "ill" or (verdict == "refuted" and "elements" not in said["proof"]["counterexample"])
