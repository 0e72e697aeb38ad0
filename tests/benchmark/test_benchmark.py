"""The benchmark counts everyone's failures, ours too, and shows what was recorded."""

from __future__ import annotations

import json
import sys
import time
import xml.dom.minidom
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from superopt.benchmark import BenchmarkOptions, bench, optimizer_comparison
from superopt.benchmark.peer import PEERS
from superopt.cli import app
from superopt.ir.errors import UsageError
from superopt.report.benchmark import document, page, summaries


def linear(path: Path, *, wrong: bool = False, renamed: bool = False) -> Path:
    """Two linear layers in a row; ``wrong`` computes something else, ``renamed`` has another output."""
    rng = np.random.default_rng(0)
    weights = {n: rng.standard_normal((64, 64)).astype(np.float32) / 8 for n in ("a", "b")}
    out = "z" if renamed else "y"
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "a"], ["h"]), helper.make_node("MatMul", ["h", "b"], [out])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [32, 64])],
        [helper.make_tensor_value_info(out, TensorProto.FLOAT, [32, 64])],
        [numpy_helper.from_array(v * (1.01 if wrong else 1.0), n) for n, v in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path_factory.mktemp("cache")))


_FAKE = """
import json, shutil, sys, time
name, source, target = sys.argv[1:]
if name == "onnxsim":
    shutil.copy(sys.argv[0].replace("peer.py", "wrong.onnx"), target)
elif name == "onnxslim":
    raise RuntimeError("boom")
elif name == "onnxscript":
    time.sleep(60)
else:
    shutil.copy(source, target)
print(json.dumps({"seconds": 0.1, "cpu_seconds": 0.1}))
"""


def test_failures_are_counted_and_rows_are_kept(tmp_path: Path) -> None:
    """Peers that are wrong, crash and hang: each is a row, and only what is right races."""
    (tmp_path / "peer.py").write_text(_FAKE)
    linear(tmp_path / "wrong.onnx", wrong=True)

    def available(name: str) -> dict[str, str]:
        return {"version": "1"} if name != "inductor" else {"missing": "not installed", "next": "install it"}

    peers = optimizer_comparison.PeerTools(available, tmp_path / "peer.py")
    names = ("ort", "onnxsim", "onnxslim", "onnxscript", "onnxoptimizer", "inductor")
    options = BenchmarkOptions(
        names, time_limit=20.0, peer_limit=5.0, race_limit=1.0, rounds=5, keep=tmp_path / "kept", grace=0.0
    )
    data = bench([linear(tmp_path / "m.onnx")], options, peers=peers)
    tools = data["rows"][0]["tools"]
    statuses = {name: tool["status"] for name, tool in tools.items()}
    assert statuses == {
        "superopt": "ok", "ort": "ok", "onnxsim": "wrong", "onnxslim": "crash", "onnxscript": "timeout",
        "onnxoptimizer": "ok", "inductor": "unavailable",
    }  # fmt: skip
    assert {n for n, t in tools.items() if "ratio" in t} == {"superopt", "ort", "onnxoptimizer"}
    assert tools["superopt"]["check"] in ("passed", "skipped")  # skipped: nothing measured faster, so nothing changed
    assert "boom" in tools["onnxslim"]["reason"]
    found = {s.tool: s for s in summaries(data)}
    assert (found["onnxsim"].wrong, found["onnxslim"].crashed, found["onnxscript"].timeouts) == (1, 1, 1)
    assert found["superopt"].timed == 1
    json.dumps(data, allow_nan=True)
    again = bench([tmp_path / "m.onnx"], options, peers=peers)
    assert again["rows"] == json.loads(json.dumps(data["rows"]))  # times are in it: measured anew, they would differ


def test_a_broken_model_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"garbage")
    data = bench([tmp_path / "m.onnx"], BenchmarkOptions(()))
    assert "m.onnx" in data["rows"][0]["error"]
    assert "m" in document(data)
    with pytest.raises(UsageError, match="onnxsin"):
        bench([], BenchmarkOptions(("onnxsin",)))


def test_a_process_that_dies_or_hangs_is_an_answer(tmp_path: Path) -> None:
    assert optimizer_comparison._run([sys.executable, "-c", "print(3)"], 60.0, tmp_path) == {"output": "3\n"}
    killed = optimizer_comparison._run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], 60.0, tmp_path)
    assert killed == {"status": "crash", "reason": "exit code -9"}
    assert (
        optimizer_comparison._run([sys.executable, "-c", "import time; time.sleep(60)"], 0.5, tmp_path)["status"]
        == "timeout"
    )


def test_a_process_that_hangs_takes_its_own_children_along(tmp_path: Path) -> None:
    mark = tmp_path / "alive"
    child = f"import pathlib, time; time.sleep(2); pathlib.Path({str(mark)!r}).touch()"
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    assert optimizer_comparison._run([sys.executable, "-c", parent], 0.7, tmp_path)["status"] == "timeout"
    time.sleep(2.5)
    assert not mark.exists()


def test_when_time_is_up_no_model_is_begun_and_those_left_are_named(tmp_path: Path) -> None:
    path = linear(tmp_path / "m.onnx")
    data = bench([path], BenchmarkOptions((), total_limit=0.0))
    assert data["rows"] == []
    assert data["left_out"] == ["m"]
    assert "1 model was left" in document(data)


def test_peers_that_are_missing_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer_comparison.util, "find_spec", lambda name: None)
    for name in PEERS:
        assert "superopt[bench]" in optimizer_comparison._available(name)["next"]
    assert "torch" in optimizer_comparison._available("inductor")["next"]
    assert "version" in optimizer_comparison._available("ort")


def sample() -> dict[str, Any]:
    """A recorded result with everything in it that can go wrong."""
    ok = {"status": "ok", "seconds": 2.0, "ms": 1.0, "spread": 0.01, "max_rel_error": 1e-7, "reason": ""}
    return {
        "format": "superopt.bench", "version": 2, "date": "2026-01-01",
        "machine": {"device": "a <CPU>", "cores": 2, "runtime": "onnxruntime 1.0", "python": "3.11", "system": "Linux"},
        "superopt": {"version": "0.1.0", "rules": 3},
        "tools": {"ort": {"version": "1.0"}, "onnxsim": {"version": "2"},
                  "inductor": {"missing": "not installed", "next": "install it"}},
        "settings": {"time_limit": 45.0, "peer_limit": 120.0, "rounds": 25, "race_limit": 8.0, "threads": 1},
        "rows": [
            {"model": "fast", "before_ms": 2.0, "rounds": 9, "tools": {
                "superopt": {**ok, "ratio": 0.25, "modelled": 0.3, "rules": {"a-rule": 3, "fold": 1},
                             "failures": ["off by one"]},
                "ort": {**ok, "ratio": 1.01},
                "onnxsim": {"status": "wrong", "reason": "output 'y' | is <b>", "seconds": 1.0},
                "inductor": {"status": "unavailable", "reason": "not installed"}}},
            {"model": "slow", "before_ms": 2.0, "rounds": 9, "tools": {
                "superopt": {**ok, "ratio": 1.05, "modelled": 0.99, "rules": {}, "failures": []},
                "ort": {**ok, "ratio": 1.0},
                "onnxsim": {**ok, "ratio": 1.21}, "inductor": {"status": "unavailable", "reason": "not installed"}}},
            {"model": "lost", "before_ms": 1.0, "rounds": 9, "tools": {
                "superopt": {"status": "crash", "reason": "boom"}, "ort": {**ok, "ratio": 1.0},
                "onnxsim": {"status": "timeout", "reason": "longer"},
                "inductor": {"status": "unavailable", "reason": "not installed"}}},
            {"model": "broken", "error": "not a model"},
        ],
    }  # fmt: skip


def test_summaries_count_losses_and_failures() -> None:
    ours, _, sim, inductor = summaries(sample())
    assert (ours.timed, ours.losses, ours.crashed) == (2, 1, 1)
    assert ours.mean == pytest.approx((0.25 * 1.05) ** 0.5)
    assert ours.overall == pytest.approx((0.25 * 1.05) ** (1 / 3))
    assert (sim.timed, sim.losses, sim.wrong, sim.timeouts) == (1, 1, 1, 1)
    assert inductor.missing == "not installed; install it"


def test_the_document_hides_nothing() -> None:
    text = document(sample())
    for part in (
        "**0.250**",
        "**1.050**",
        "1.210",
        "wrong",
        "timeout",
        "crash",
        "broken",
        "boom",
        "off by one",
        "install it",
        "Of 2 models whose time superopt changed by more than 3 %, the modelled cost said which way for 1.",
    ):
        assert part in text, part
    tables = [line for line in text.splitlines() if line.startswith("|")]
    for first in ("tool", "model"):
        start = next(i for i, line in enumerate(tables) if line.startswith(f"| {first} |"))
        widths = {line.replace("\\|", "").count("|") for line in tables[start : start + 4]}
        assert len(widths) == 1, tables[start : start + 4]


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.names.append(tag)


def test_the_page_is_self_contained_and_its_plots_are_svg() -> None:
    data = sample()
    data["rows"][0]["model"] = "<script>alert(1)</script>"
    text = page(data)
    tags = _Tags()
    tags.feed(text)
    assert "script" not in tags.names
    assert not {"link", "img", "iframe"} & set(tags.names)
    assert "http" not in text.replace("http-equiv", "")
    plots = ["<svg" + part.split("</svg>")[0] + "</svg>" for part in text.split("<svg")[1:]]
    assert len(plots) == 3
    for plot in plots:
        xml.dom.minidom.parseString(plot)
    assert plots[1].count("<circle") == 6


def test_a_recorded_result_is_shown_again(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text(json.dumps(sample()))
    made = [str(tmp_path / n) for n in ("b.md", "b.html")]
    done = CliRunner().invoke(app, ["bench", "--from", str(path), "--markdown", made[0], "--html", made[1]])
    assert done.exit_code == 0, done.output
    assert "x0.512 over 2 models" in done.output
    assert Path(made[0]).read_text() == document(sample())
    assert Path(made[1]).read_text().startswith("<!doctype html>")
    path.write_text('{"format": "other"}')
    assert CliRunner().invoke(app, ["bench", "--from", str(path)]).exception is not None


def test_the_documented_benchmark_is_the_recorded_one() -> None:
    results = Path(__file__).resolve().parents[2] / "lab" / "results"
    assert (results / "benchmark.json").is_file(), "run: make bench"
    data = json.loads((results / "benchmark.json").read_text(encoding="utf-8"))
    assert (results / "benchmark.md").read_text(encoding="utf-8") == document(data)
