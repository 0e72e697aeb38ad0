"""Many models at once: what is kept of a run belongs to exactly the files that it was made from."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from superopt.benchmark.row_cache import RowCache, model_digest
from superopt.cli import app
from superopt.formats import load_with_files
from superopt.ir.errors import UsageError
from superopt.pipeline import Options, batch
from superopt.pipeline.batch import JOURNAL, demand_of, optimize_all
from superopt.pipeline.rematerialization import MemoryTradeoffPoint

TARGET = Options(target="profile:cpu-epyc-2core")


def model(path: Path, value: float) -> Path:
    """``x + w``, with its weights in a file beside it."""
    weights = numpy_helper.from_array(np.full(64, value, np.float32), "w")
    values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [64]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [values[0]], [values[1]], [weights])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    place = f"{path.name}.data"
    (path.parent / place).unlink(missing_ok=True)
    onnx.save(made, path, save_as_external_data=True, location=place, size_threshold=0)
    return path


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the models that were optimised, not found kept."""
    names, real = list[str](), batch.optimize

    def noted(path: Path, **given: Any) -> Any:
        names.append(path.name)
        return real(path, **given)

    monkeypatch.setattr(batch, "optimize", noted)
    return names


def test_other_weights_beside_the_same_graph_are_another_model(tmp_path: Path, ran: list[str]) -> None:
    path = model(tmp_path / "m.onnx", 1.0)
    graph = path.read_bytes()
    assert load_with_files(path)[1] == (path, tmp_path / "m.onnx.data") == demand_of(path, TARGET).files
    for value, times in ((1.0, 1), (1.0, 1), (2.0, 2)):
        assert model(path, value).read_bytes() == graph
        (row,) = optimize_all([path], tmp_path / "out", options=TARGET)
        assert "error" not in row
        assert len(ran) == times
    found = onnx.load(tmp_path / "out" / "m.onnx")
    assert any(np.any(numpy_helper.to_array(w) == 2.0) for w in found.graph.initializer)


def test_a_model_that_changes_meanwhile_is_neither_written_nor_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out, real = model(tmp_path / "m.onnx", 1.0), tmp_path / "out", batch.optimize

    def changed(given: Path, **more: Any) -> Any:
        result = real(given, **more)
        model(path, 3.0)
        return result

    monkeypatch.setattr(batch, "optimize", changed)
    (row,) = optimize_all([path], out, options=TARGET)
    assert "changed meanwhile" in row["error"]
    assert row["exit_code"] == 2
    assert [p.name for p in out.iterdir()] == [JOURNAL]
    assert (out / JOURNAL).read_bytes().count(b"\n") == 1
    monkeypatch.setattr(batch, "optimize", real)
    (row,) = optimize_all([path], out, options=TARGET)
    assert "error" not in row


def test_a_measurement_of_a_model_that_changed_meanwhile_is_not_kept(tmp_path: Path) -> None:
    path, kept = model(tmp_path / "m.onnx", 1.0), RowCache(tmp_path / "kept", "stamp")
    before = model_digest(path)
    kept.put(path, {"us": 1}, before)
    assert kept.get(path) is not None
    model(path, 2.0)  # the weights alone
    assert kept.get(path) is None
    kept.put(path, {"us": 1}, before)
    assert kept.get(path) is None


def test_graphs_that_trade_time_for_memory_are_written_beside_each_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = batch.optimize

    def with_a_front(path: Path, **given: Any) -> Any:
        made = real(path, **given)
        return replace(
            made,
            pareto=(
                MemoryTradeoffPoint(made.original, 2, 1.0, "order"),
                MemoryTradeoffPoint(made.graph, 1, 2.0, "recomputation"),
            ),
        )

    monkeypatch.setattr(batch, "optimize", with_a_front)
    paths = [model(tmp_path / f"{name}.onnx", 1.0) for name in ("a", "b")]
    both = replace(TARGET, objective="pareto")
    rows = list(optimize_all(paths, tmp_path / "out", options=both))
    for row, name in zip(rows, "ab", strict=True):
        assert {Path(f).name for f in row["files"]} == {f"{name}.onnx", f"{name}-1.onnx", f"{name}-2.onnx"}
        assert all(len(onnx.load(f).graph.output) == 1 for f in row["files"])
    monkeypatch.setattr(batch, "optimize", lambda *_, **__: pytest.fail("it is kept"))
    assert list(optimize_all(paths, tmp_path / "out", options=both)) == rows
    with pytest.raises(UsageError, match=r"of a\.onnx may have the name of a-2\.onnx"):
        list(optimize_all([paths[0], model(tmp_path / "a-2.onnx", 1.0)], tmp_path / "other", options=both))


def test_names_are_printed_on_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[dict[str, Any]] = [
        {"model": "a\nb\x1b[2J.onnx", "output": "o/a\nb.onnx",
         "report": {"summary": "2.00x faster (2.0 → 1.0 µs, measured); checked equal"}},
        {"model": "c\nd.onnx", "error": "is broken", "exit_code": 3},
    ]  # fmt: skip
    given: Callable[..., Any] = lambda *_, **__: iter(rows)  # noqa: E731
    monkeypatch.setattr(batch, "optimize_all", given)
    code = app(["optimize", "a.onnx", "c.onnx", "-o", str(tmp_path / "out")], standalone_mode=False)
    said = capsys.readouterr()
    assert code == 3
    assert said.out.count("\n") == said.err.count("\n") == 1
    assert "\x1b" not in said.out
    assert said.out == (
        "a\\nb\\x1b[2J.onnx  2.00x faster (2.0 → 1.0 µs, measured); checked equal; wrote o/a\\nb.onnx\n"
    )


@pytest.mark.parametrize("command", ["optimize", "prove", "discover", "corpus"])
def test_ctrl_c_says_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    from superopt import gate
    from superopt.discovery import discover
    from superopt.ir.errors import Interrupted
    from superopt.verifier import batch_proving

    def stopped(*_: object, **__: object) -> Any:
        raise KeyboardInterrupt

    place = tmp_path / "place"
    homes = {"optimize": batch, "prove": batch_proving, "discover": discover, "corpus": gate}
    names = {"optimize": "optimize_all", "prove": "prove_all", "discover": "discover", "corpus": "run_corpus"}
    monkeypatch.setattr(homes[command], names[command], stopped)
    (tmp_path / "m.json").write_text(json.dumps({}))
    given = {
        "optimize": ["optimize", "a.onnx", "c.onnx", "-o", str(place)],
        "prove": ["rules", "prove", "--all", "--resume", str(place)],
        "discover": ["discover", "--profile", "taso", "--out", str(place)],
        "corpus": ["corpus", "run", str(tmp_path / "m.json"), "--target", "profile:cpu-epyc-2core",
                   "--resume", str(place)],
    }[command]  # fmt: skip
    with pytest.raises(Interrupted, match=r"what is finished is kept in .*place"):
        app(given, standalone_mode=False)
