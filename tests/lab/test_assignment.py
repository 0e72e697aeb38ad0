"""The benchmark of strategy assignment: rows of a folder of problems, and rows of earlier runs that stay."""

from __future__ import annotations

import json
from pathlib import Path

from lab.assignment import main

PROBLEM = {"problem": {
    "name": "two nodes", "usage_limit": 100,
    "nodes": {"intervals": [[0, 2], [1, 4]], "costs": [[3, 0], [1, 5]], "usages": [[10, 90], [40, 20]]},
    "edges": {"nodes": [[0, 1]], "costs": [[0, 2, 2, 0]]},
}}  # fmt: skip


def test_rows_are_written_and_kept(tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    (tmp_path / "first.json").write_text(json.dumps(PROBLEM))
    impossible = {"problem": {**PROBLEM["problem"], "usage_limit": 20}}
    for name, document in (("first", PROBLEM), ("second", impossible)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{name}.json").write_text(json.dumps(document))
        assert main([str(folder), "--share", "0.03", "--json", str(rows)]) == 0
    first, second = json.loads(rows.read_text())
    assert (first["problem"], first["cost"], first["bound"], first["peak"]) == ("first", 4, 4, 50)
    assert second["cost"] == 0
    assert "over the limit" in second["error"]
