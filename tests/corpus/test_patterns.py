"""The patterns of other tools: their graphs run, some are found here and now, and the committed table is about them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import onnx
import pytest

from superopt import formats
from superopt.rules import load_library

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from corpus.pattern_graphs import PATTERNS  # noqa: E402
from corpus.patterns import TABLE, look, running, table  # noqa: E402


def test_there_are_many_and_each_is_one() -> None:
    assert len(PATTERNS) >= 40
    assert len({p.name for p in PATTERNS}) == len(PATTERNS)
    assert all(p.tools for p in PATTERNS)


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.name)
def test_its_graph_is_a_model_that_is_not_there_yet(pattern) -> None:  # type: ignore[no-untyped-def]
    graph = pattern.graph()
    onnx.checker.check_model(formats.to_onnx(graph), full_check=True)
    static = {"MatMul of a transposed weight", "Unsqueeze of a weight", "Pow 2 → Mul"}
    if pattern.name not in static:  # there the work that goes is on weights, or of the same count
        assert not pattern.goal(running(graph)) or "ReduceMean over" in pattern.name


@pytest.mark.parametrize("part", ["Conv + BatchNormalization", "Slice of everything", "consecutive linear layers"])
def test_some_are_found(part: str) -> None:
    [pattern] = [p for p in PATTERNS if p.name == part]
    library = load_library()
    found = look(pattern, library.admitted, library.floats("standard"))  # whose rules ship compiled
    assert found.reached
    assert found.verdict == "passed"
    assert f"| {pattern.name} |" in table([found])


def test_a_barrier_is_missed_and_says_why() -> None:
    [pattern] = [p for p in PATTERNS if "Quantize" in p.name]
    found = look(pattern, ())
    assert not found.reached
    assert "by design" in table([found])


def test_the_committed_table_is_about_these_patterns_and_rules() -> None:
    assert TABLE.is_file(), "run: make patterns"
    text = TABLE.read_text(encoding="utf-8")
    rows = [line.split(" | ")[0].removeprefix("| ") for line in text.splitlines() if line.startswith("| ")]
    assert sorted(r for r in rows if r != "pattern") == sorted(p.name for p in PATTERNS), "run: make patterns"
    named = set(re.findall(r"`([a-z0-9][\w-]+)`", text))
    assert named - set(load_library()) == set(), "run: make patterns"
