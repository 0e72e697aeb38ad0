"""``superopt bench --runtimes``: what a row says, and what happens to models and names that cannot be run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from superopt import formats
from superopt.benchmark.runtime_comparison import RuntimeComparisonOptions, _figures, compare_runtimes
from superopt.cli import app
from superopt.ir.errors import UsageError
from superopt.ir.graph import Graph, Node, Value
from superopt.ir.types import DType, TensorType
from superopt.report.benchmark import runtimes_table


def rows(op: str) -> Graph:
    """One operator on rows of numbers, in which there is nothing to gain."""
    kind = TensorType(DType.FLOAT32, (8, 16))
    return Graph("rows", (Value("x", kind),), (Value("y", kind),), (), (Node("n", op, ("x",), ("y",)),), {"": 21})


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUPEROPT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def raced() -> dict[str, Any]:
    """Two runtimes, b twice as fast as a; ours for b takes 0.8 there, and ours for a is the input."""
    pairs = [("input", "a"), ("b", "a"), ("input", "b"), ("b", "b")]
    rounds = [(load * 1.0, load * 1.1, load * 0.5, load * 0.4) for load in (1.0, 3.0, 1.2)]
    return _figures({"samples": rounds, "runs": 9, "circumstances": {}}, pairs, {"a": "input", "b": "b"})


def test_ratios_are_taken_inside_a_round_and_the_best_pair_is_named():
    found = raced()
    assert [p["ratio"] for p in found["pairs"]] == pytest.approx([1.0, 1.1, 0.5, 0.4])
    assert found["ours"]["b"]["ratio"] == pytest.approx(0.8)
    assert found["ours"]["a"] == {"graph": "input", "ratio": 1.0, "spread": 0.0, "error": 0.0}
    assert (found["best"]["graph"], found["best"]["runtime"]) == ("b", "b")
    assert found["ours"]["b"]["spread"] == pytest.approx(0.0)  # whatever else the machine did


def test_the_table_names_pairs_and_shows_what_failed():
    made = [{"model": "m", **raced()}, {"model": "broken", "error": "it is no model"}]
    text = runtimes_table({"runtimes": {"a": "1", "b": "2"}, "date": "today", "rows": made, "left_out": []})
    lines = text.splitlines()
    assert len({line.count("|") for line in lines[:4]}) == 1
    assert lines[2].endswith("|0.400: ours for b in b|")
    assert "it is no model" in lines[3]
    assert "best pair x0.400" in text
    assert "ours ÷ input in b x0.800 (worst 0.800)" in text


@pytest.mark.slow
def test_one_runtime_from_the_command_line(tmp_path):
    good, bad = tmp_path / "good.onnx", tmp_path / "bad.onnx"
    formats.save(rows("Softmax"), good)
    bad.write_bytes(b"nothing of the kind")
    written = tmp_path / "out.json"
    command = ["bench", str(good), str(bad), "--runtimes", "onnxruntime", "--rounds", "3", "--race-limit", "1"]
    run = CliRunner().invoke(app, [*command, "--json", str(written), "--markdown", str(tmp_path / "out.md")])
    assert run.exit_code == 0, run.output
    data = json.loads(written.read_text())
    assert (data["format"], data["version"]) == ("superopt.runtimes", 1)
    first, second = data["rows"]
    assert first["ours"]["onnxruntime"]["ratio"] == 1.0  # nothing to gain, so ours is the input
    assert first["best"]["ratio"] == 1.0
    assert "pairs" not in second
    assert second["error"]
    assert "good" in (tmp_path / "out.md").read_text()


def test_an_optimisation_that_fails_is_a_cell_that_failed(tmp_path):
    """The race goes on with what there is."""
    formats.save(rows("Relu"), tmp_path / "m.onnx")
    options = RuntimeComparisonOptions(("onnxruntime",), time_limit=-15.0, race_limit=1.0, rounds=3)  # no time at all
    [row] = compare_runtimes([tmp_path / "m.onnx"], options)["rows"]
    assert row["made"]["onnxruntime"]["status"] == "timeout"
    assert row["ours"] == {}
    assert row["best"]["graph"] == "input"


@pytest.mark.parametrize(("name", "said"), [("tensorrt", "there is no runtime"), (",", "no runtime was named")])
def test_a_runtime_that_is_not_there(tmp_path, name, said):
    formats.save(rows("Softmax"), tmp_path / "m.onnx")
    run = CliRunner().invoke(app, ["bench", str(tmp_path / "m.onnx"), "--runtimes", name])
    assert run.exit_code == UsageError.exit_code or isinstance(run.exception, UsageError)
    assert said in run.output + str(run.exception)


def test_rows_are_kept(tmp_path):
    formats.save(rows("Softmax"), tmp_path / "m.onnx")
    options = RuntimeComparisonOptions(("onnxruntime",), race_limit=1.0, rounds=3, keep=tmp_path / "rows")
    first = compare_runtimes([tmp_path / "m.onnx"], options)
    again = compare_runtimes([tmp_path / "m.onnx"], options)[
        "rows"
    ]  # times are in it: measured anew, they would differ
    assert again == json.loads(json.dumps(first["rows"]))
