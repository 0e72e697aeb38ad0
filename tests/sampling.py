"""Large sets of parameters: a sample of them runs in `make test`, all of them in `make test-slow`."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from superopt.rules.library import expanded

_SEED = 7


def slow(*values: Any, id: str | None = None) -> Any:
    """One set of parameters that only `make test-slow` runs."""
    return pytest.param(*values, marks=pytest.mark.slow, id=id)


def sampled(rows: Iterable[Any], count: int, always: Sequence[Any] = ()) -> list[Any]:
    """Rows with one parameter each: ``always`` and a seeded sample run in `make test`, the others are slow.

    The seed is fixed, so that each run of one revision tests the same rows.
    """
    rows = list(rows)
    others = [i for i, row in enumerate(rows) if row not in always]
    chosen = set(random.Random(_SEED).sample(others, max(0, min(count - (len(rows) - len(others)), len(others)))))
    return [slow(row) if i in others and i not in chosen else row for i, row in enumerate(rows)]


def rule_ids(file: Path) -> list[str]:
    """Ids of the rules in a file, sorted: every process collects tests by them, and one parses the rules."""
    rows = tomllib.loads(file.read_text(encoding="utf-8"))["rule"]
    return sorted(str(single["id"]) for row in rows for single in expanded(row, str(file)))
