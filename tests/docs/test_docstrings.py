"""What docstrings promise: the errors that they name exist, and their examples give what they say."""

from __future__ import annotations

import builtins
import doctest
import importlib
import re
from pathlib import Path

import pytest
from source_files import ROOT, sources

RAISES = re.compile(r"^( *)Raises:\n((?:\1    .*\n|\n)+)", re.MULTILINE)
NAMED = r"^{}    ([A-Z]\w+(?:, [A-Z]\w+)*):"
CLASS = re.compile(r"^ *class (\w+)", re.MULTILINE)
IMPORTED = re.compile(r"^ *from \S+ import (?:\(([^)]*)\)|(.*))", re.MULTILINE)  # of another package


def test_errors_that_are_documented_exist() -> None:
    """By the text: to parse all of it takes seconds."""
    known = set(dir(builtins))
    named: list[tuple[Path, str]] = []
    for path in sources():
        text = path.read_text("utf-8")
        known.update(CLASS.findall(text))
        known.update(name for names in IMPORTED.findall(text) for name in re.findall(r"\w+", "".join(names)))
        for indent, part in RAISES.findall(text):
            lines = re.findall(NAMED.format(indent), part, re.MULTILINE)
            named += [(path, name) for line in lines for name in line.split(", ")]
    assert len(named) > 400
    assert [(str(path.relative_to(ROOT)), name) for path, name in named if name not in known] == []


def modules_with_examples() -> list[str]:
    """All but the client, whose example needs a running service: `tests/server/test_client.py` has one."""
    found = []
    for path in sources():
        if ">>> " in path.read_text("utf-8"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts if parts[0] in ("lab", "superopt") else ("superopt", *parts))
            found.append(name.removesuffix(".__init__"))
    return [name for name in found if name != "superopt.client"]


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_give_what_they_say(name: str) -> None:
    if name == "superopt.frontend.from_jax":
        pytest.importorskip("jax")
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted
    assert not found.failed
