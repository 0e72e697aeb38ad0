"""Training steps as files: what is written is what was planned, and the files compute the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.training_memory import main, planned_step, raced
from superopt import formats
from superopt.memory.arena_measurement import measured_arena
from superopt.runtime.synthetic_tensors import feeds_for


@pytest.mark.slow
def test_a_step_in_files_takes_what_it_says_and_computes_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "squeezenet"
    step = planned_step(Path("corpus/tiny/squeezenet.json"), folder, share=0.1, rows=20_000)
    before, after = (formats.load(folder / f"{side}.onnx") for side in ("before", "after"))
    taken = [measured_arena(formats.to_onnx_bytes(g), feeds_for(g)).block for g in (before, after)]
    assert taken == [step.arena, step.arena_after]
    assert step.everything < 0.8
    found = raced(folder, rounds=1, seconds=1.0)
    assert found.same == found.outputs == len(before.outputs)
    assert found.error == 0.0
    main(["--files", str(tmp_path)])
    assert f"**{step.everything:.3f}**" in capsys.readouterr().out
