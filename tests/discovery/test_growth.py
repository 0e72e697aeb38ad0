"""The growth table says what the log says, and no more."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from superopt.ir.errors import UsageError
from superopt.report.terminal_views import growth, show_growth

LEVELS = [
    {"size": 0, "terms": 0, "classes": 3, "coincidences": 0},
    {"size": 1, "terms": 10, "classes": 9, "coincidences": 1},
    {"size": 2, "terms": 50, "classes": 40, "coincidences": 10},
]
RUN = {
    "format": "superopt.discovery", "candidates": 12, "derived": 5, "refuted": 1, "unknown": 2, "proved": 4, "kept": 3,
    "cpu_seconds": 5.0, "seconds": 6.0, "workers": 1, "peak_mb": 90.0,
    "themes": [
        {"theme": "a", "levels": LEVELS, "size_1_seconds": 1.0, "size_2_seconds": 3.0, "size_1_mb": 80.0,
         "size_2_mb": 90.0, "size_2_candidates": 7, "size_2_rules": 2},
        {"theme": "b", "levels": LEVELS[:2], "size_1_seconds": 0.5, "size_1_mb": 85.0, "size_1_candidates": 5},
    ],
}  # fmt: skip


def test_sizes_add_up_over_themes() -> None:
    one, two = growth(RUN)
    assert (one["terms"], two["terms"]) == (20, 60)
    assert (one["classes"], two["coincidences"]) == (18, 11)
    assert (one["candidates"], two["candidates"], two["rules"]) == (5, 7, 2)
    assert (one["seconds"], two["seconds"]) == (1.5, 3.5)
    assert (one["mb"], two["mb"]) == (85.0, 90.0)


def test_what_an_older_log_lacks_is_left_out() -> None:
    plain = {**RUN, "themes": [{"theme": "a", "levels": LEVELS}]}
    assert [set(r) for r in growth(plain)] == [{"size", "terms", "classes", "coincidences"}] * 2
    text = io.StringIO()
    show_growth(Console(file=text, width=200), plain)
    assert "–" in text.getvalue()
    assert "3 kept" in text.getvalue()


def test_something_else_is_refused() -> None:
    with pytest.raises(UsageError, match="not the log"):
        growth({"format": "superopt.report"})
