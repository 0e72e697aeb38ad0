"""The tutorial's blocks run in order, as its readers run them."""

from __future__ import annotations

import re
from pathlib import Path

TUTORIAL = Path(__file__).parents[2] / "docs" / "gradients.md"


def test_the_tutorial_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", TUTORIAL.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 8
    scope: dict[str, object] = {"__name__": "tutorial"}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{TUTORIAL.name}, block {number}", "exec"), scope)
