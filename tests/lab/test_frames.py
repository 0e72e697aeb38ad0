"""Every frame is verified, once, and one that computes something else is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab import frames


def chain(**operators: str) -> dict[str, Any]:
    """Operators one after the other, by the names of what they give."""
    reads = ["x", *operators]
    return {
        "format": "superopt.graph", "version": 1, "name": "chain", "opset": {"": 21},
        "inputs": [{"name": "x", "dtype": "float32", "shape": [4, 8]}],
        "nodes": [{"op": op, "inputs": [a], "outputs": [b]}
                  for a, (b, op) in zip(reads, operators.items(), strict=False)],
        "outputs": [{"name": "y"}],
    }  # fmt: skip


def test_frames(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, folder = tmp_path / "chain.json", tmp_path / "frames" / "chain"
    folder.mkdir(parents=True)
    model.write_text(json.dumps(chain(p="Relu", q="Relu", r="Sin", s="Relu", y="Relu")))
    for number, frame in ((1, chain(q="Relu", r="Sin", s="Relu", y="Relu")), (2, chain(q="Relu", r="Sin", y="Relu"))):
        (folder / f"frame-{number}.json").write_text(json.dumps(frame))
    command = [str(model), "--frames", str(folder.parent), "--before"]
    assert frames.main(command) == 0
    assert "2 frames beside the input: " in (told := capsys.readouterr().out)
    assert "1 frames beside the one before: 1 proved" in told
    kept = (folder / "verdicts.jsonl").read_bytes()
    assert frames.main(command) == 0
    assert (folder / "verdicts.jsonl").read_bytes() == kept  # nothing was verified again, which would be written there
    (folder / "frame-1.json").write_text(json.dumps(chain(q="Relu", r="Cos", s="Relu", y="Relu")))
    assert frames.main(command) == 5
    assert "1 refuted" in capsys.readouterr().out
