"""The measurement of quick optimisations counts processes from start to file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.quick_effort_benchmark import OURS, QuickBenchmarkRow, main, summary_of

TINY = Path(__file__).resolve().parents[2] / "corpus" / "tiny"


def test_a_summary_has_median_percentile_and_worst() -> None:
    rows = [
        QuickBenchmarkRow(f"m{i}", OURS, float(i), 0.0, ratio) for i, ratio in enumerate([0.5, 1.0, 2.0, 1.0, 1.0], 1)
    ]
    found = summary_of(OURS, [*rows[:4], QuickBenchmarkRow("m5", OURS, 5.0, 0.0, error="it failed")])
    assert (found.median, found.percentile, found.worst, found.failed) == (3.0, 5.0, 5.0, 1)
    assert found.ratio == pytest.approx(1.0)


def test_models_are_optimised_from_start_to_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model, report = TINY / "deep_linear.json", tmp_path / "quick.json"
    assert main([str(model), "--vs", "", "--json", str(report)]) == 0
    data = json.loads(report.read_text())
    (row,) = data["rows"]
    assert row["ratio"] < 0.5
    assert row["cpu"] > 0.0
    assert not row["error"]
    assert (tmp_path / "build" / "quick" / "tiny-deep_linear.onnx").exists()
    assert "| superopt | 1 | 0 |" in capsys.readouterr().out
