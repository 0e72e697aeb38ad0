"""What docstrings promise: the errors that they name exist."""

from __future__ import annotations

import builtins
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("superopt", "server", "verifier", "rules", "lab")
RAISES = re.compile(r"^( *)Raises:\n((?:\1    .*\n|\n)+)", re.MULTILINE)
NAMED = r"^{}    ([A-Z]\w+(?:, [A-Z]\w+)*):"
CLASS = re.compile(r"^ *class (\w+)", re.MULTILINE)
IMPORTED = re.compile(r"^ *from \S+ import (?:\(([^)]*)\)|(.*))", re.MULTILINE)  # of another package


def test_errors_that_are_documented_exist() -> None:
    """By the text: to parse all of it takes seconds."""
    known = set(dir(builtins))
    named: list[tuple[Path, str]] = []
    sources = (p for room in ROOMS for p in sorted((ROOT / room).rglob("*.py")) if "node_modules" not in p.parts)
    for path in sources:
        text = path.read_text("utf-8")
        known.update(CLASS.findall(text))
        known.update(name for names in IMPORTED.findall(text) for name in re.findall(r"\w+", "".join(names)))
        for indent, part in RAISES.findall(text):
            lines = re.findall(NAMED.format(indent), part, re.MULTILINE)
            named += [(path, name) for line in lines for name in line.split(", ")]
    assert len(named) > 400
    assert [(str(path.relative_to(ROOT)), name) for path, name in named if name not in known] == []
