"""Tables of memory: models are planned and written once, and raced another time."""

import json
from pathlib import Path

import pytest

from lab.memory import main
from superopt import formats
from superopt.memory.arena_measurement import measured_arena
from superopt.runtime.synthetic_tensors import feeds_for

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_plans_are_written_once_and_raced_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the row says of bytes is what the arena is asked for by the files; the race changes only times."""
    model = str(ROOT / "corpus/tiny/linear_attention.json")
    rows, files = tmp_path / "rows.jsonl", tmp_path / "files"
    main([model, "--share", "0.1", "--files", str(files), "--resume", str(rows)])
    (row,) = map(json.loads, rows.read_text().splitlines())
    assert row["ratio"] is None
    assert row["share"] <= 0.1
    for name, key in (("before", "arena"), ("after", "arena_after")):
        graph = formats.load(files / "linear_attention" / f"{name}.onnx")
        assert measured_arena(formats.to_onnx_bytes(graph), feeds_for(graph)).block == row[key]
    main([model, "--race", "--files", str(files), "--resume", str(rows)])
    (raced,) = map(json.loads, rows.read_text().splitlines())
    assert raced["ratio"] > 0.0
    assert {**raced, "ratio": None, "doubt": None} == row
    assert "1 models: after ÷ before, geometric mean" in capsys.readouterr().out
