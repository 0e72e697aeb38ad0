"""What docstrings promise: the errors that they name exist."""

from __future__ import annotations

import ast
import builtins
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("superopt", "server", "verifier", "rules", "lab")
RAISES = re.compile(r"^Raises:\n((?:    .*\n?|\n)+)", re.MULTILINE)
NAMED = re.compile(r"^    ([A-Z]\w+(?:, [A-Z]\w+)*):", re.MULTILINE)


def test_errors_that_are_documented_exist() -> None:
    trees = {p: ast.parse(p.read_text("utf-8")) for room in ROOMS for p in sorted((ROOT / room).rglob("*.py"))}
    known = set(dir(builtins))
    named: list[tuple[Path, str]] = []
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                known.add(node.name)
            elif isinstance(node, ast.ImportFrom):  # of another package
                known.update(a.asname or a.name for a in node.names)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for part in RAISES.findall(ast.get_docstring(node) or ""):
                    named += [(path, name) for line in NAMED.findall(part) for name in line.split(", ")]
    assert len(named) > 400
    assert [(str(path.relative_to(ROOT)), name) for path, name in named if name not in known] == []
