"""The command line as a user meets it: exit codes, streams, files.

Where the process itself is not what is asked about, the command runs here (:mod:`tests.cli.in_process`).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.cli.in_process import run

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "corpus" / "tiny"
QUICK = ("--effort", "quick")  # where the search is not what is asked about


def process(*args: str, stdin: bytes | None = None, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A command in a process of its own."""
    command = [sys.executable, "-m", "superopt.cli", *args]
    return subprocess.run(command, input=stdin, capture_output=True, env={**os.environ, **environment}, check=False)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All tests of this module share a private profile cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUPEROPT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


_INPUT = ["Conv", "BatchNormalization", "Conv", "BatchNormalization", "Add", "Relu"]


def foldable(path: Path, *, batch: str | int = "N") -> Path:
    """A block in training form: two Convs with BatchNormalization, summed; one Conv does it. The batch is symbolic."""
    rng = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {}
    nodes = []
    for side in ("a", "b"):
        weights[f"{side}_w"] = rng.standard_normal((16, 16, 3, 3)) / 12
        weights[f"{side}_var"] = rng.uniform(0.5, 1.5, 16)
        for part in ("scale", "bias", "mean"):
            weights[f"{side}_{part}"] = rng.standard_normal(16)
        statistics = [f"{side}_{part}" for part in ("scale", "bias", "mean", "var")]
        nodes += [
            helper.make_node("Conv", ["x", f"{side}_w"], [f"{side}_c"], name=f"{side}_conv", pads=[1, 1, 1, 1]),
            helper.make_node("BatchNormalization", [f"{side}_c", *statistics], [f"{side}_n"], name=f"{side}_bn"),
        ]
    nodes.append(helper.make_node("Add", ["a_n", "b_n"], ["sum"], name="sum"))
    nodes.append(helper.make_node("Relu", ["sum"], ["y"], name="relu"))
    graph = helper.make_graph(
        nodes,
        "foldable",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 16, 12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 16, 12, 12])],
        [onnx.numpy_helper.from_array(v.astype(np.float32), k) for k, v in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model.metadata_props.add(key="author", value="someone")
    onnx.save(model, path)
    return path


def test_optimize_writes_the_model_and_the_report(tmp_path: Path) -> None:
    source, target, report = foldable(tmp_path / "m.onnx"), tmp_path / "o.onnx", tmp_path / "r.json"
    done = process("optimize", str(source), "-o", str(target), "--json", str(report), "--measure", "--dim", "N=2")
    assert done.returncode == 0, done.stderr.decode()
    data = json.loads(report.read_text())
    assert data["format"] == "superopt.report"
    assert data["check"]["verdict"] == "passed"
    assert data["operators"]["after"].get("BatchNormalization", 0) == 0
    assert data["measured"]["runs"] > 0
    assert data["rules_applied"]
    model = onnx.load(target)
    onnx.checker.check_model(model, full_check=True)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
    assert model.graph.output[0].name == "y"
    assert {p.key: p.value for p in model.metadata_props}["author"] == "someone"
    assert b"BatchNormalization" in done.stdout


def test_html_report_is_a_page_with_escaped_names(tmp_path: Path) -> None:
    source, page = foldable(tmp_path / "m<b>.onnx"), tmp_path / "r.html"
    done = run("optimize", str(source), "--html", str(page), *QUICK)
    assert done.returncode == 0, done.stderr.decode()
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "m&lt;b&gt;.onnx" in text
    assert "<b>" not in text


def test_pipes(tmp_path: Path) -> None:
    source = foldable(tmp_path / "m.onnx")
    done = process("optimize", "-", "-o", "-", *QUICK, stdin=source.read_bytes())
    assert done.returncode == 0, done.stderr.decode()
    onnx.checker.check_model(onnx.load_from_string(done.stdout))
    assert b"; checked equal\n" in done.stderr


@pytest.mark.essential
def test_existing_files_are_kept_unless_forced(tmp_path: Path) -> None:
    source, target = foldable(tmp_path / "m.onnx"), tmp_path / "o.onnx"
    target.write_text("precious")
    refused = run("optimize", str(source), "-o", str(target))
    assert refused.returncode == 2
    assert b"-f" in refused.stderr
    assert target.read_text() == "precious"
    assert run("optimize", str(source), "-o", str(target), "-f", *QUICK).returncode == 0
    onnx.load(target)


@pytest.mark.essential
def test_zero_time_returns_the_input(tmp_path: Path) -> None:
    source, target = foldable(tmp_path / "m.onnx"), tmp_path / "o.onnx"
    done = run("optimize", str(source), "-o", str(target), "--time-limit", "0")
    assert done.returncode == 0, done.stderr.decode()
    assert [n.op_type for n in onnx.load(target).graph.node] == _INPUT


@pytest.mark.essential
@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04zip", b"\x80\x04pickle", b'{"format": "other"}'])
def test_bad_models_are_one_line_and_exit_3(tmp_path: Path, content: bytes) -> None:
    source, target = tmp_path / "bad.onnx", tmp_path / "o.onnx"
    source.write_bytes(content)
    for command in (
        ["optimize", str(source), "-o", str(target)],
        ["inspect", str(source)],
        ["convert", str(source), str(target)],
    ):
        done = run(*command)
        assert done.returncode == 3, (command, done.stderr)
        assert b"bad.onnx" in done.stderr
        assert b"Traceback" not in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.onnx"]


def test_a_model_that_no_machine_could_run_is_refused(tmp_path: Path) -> None:
    shape = onnx.numpy_helper.from_array(np.array([2**20, 2**20]), "shape")
    graph = helper.make_graph(
        [helper.make_node("ConstantOfShape", ["shape"], ["y"], name="bomb")],
        "bomb",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2**20, 2**20])],
        [shape],
    )
    source, target = tmp_path / "bomb.onnx", tmp_path / "o.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), source)
    done = run("optimize", str(source), "-o", str(target))
    assert done.returncode == 7
    assert b"bomb.onnx" in done.stderr
    assert b'node "bomb"' in done.stderr
    assert not target.exists()


@pytest.mark.essential
def test_usage_errors(tmp_path: Path) -> None:
    source = str(foldable(tmp_path / "m.onnx"))
    assert run("optimize", source, "--dim", "N=zero").returncode == 2
    assert run("optimize", source, "--memory-limit", "much").returncode == 2
    assert run("optimize").returncode == 2
    unknown = run("optimize", source, "--disable", "conv-batchnorm-fodl")
    assert unknown.returncode == 2
    assert b"did you mean" in unknown.stderr.lower()


@pytest.mark.essential
def test_disabled_rules_are_not_used(tmp_path: Path) -> None:
    source, report = foldable(tmp_path / "m.onnx"), tmp_path / "r.json"
    run("optimize", str(source), "--json", str(report), *QUICK)
    used = [r["rule"] for r in json.loads(report.read_text())["rules_applied"]]
    flags = [flag for rule in used if rule != "fold" for flag in ("--disable", rule)]
    assert flags
    done = run("optimize", str(source), "--json", str(report), "-f", *QUICK, *flags)
    assert done.returncode == 0, done.stderr.decode()
    again = [r["rule"] for r in json.loads(report.read_text())["rules_applied"]]
    assert not (set(again) & set(used) - {"fold"})


@pytest.mark.essential
def test_convert_there_and_back_then_diff(tmp_path: Path) -> None:
    source = foldable(tmp_path / "m.onnx")
    assert run("convert", str(source), str(tmp_path / "m.json")).returncode == 0
    assert run("convert", str(tmp_path / "m.json"), str(tmp_path / "b.onnx")).returncode == 0
    done = run("diff", str(source), str(tmp_path / "b.onnx"), "--json", "-")
    assert json.loads(done.stdout)["identical"] is True
    run("optimize", str(source), "-o", str(tmp_path / "o.onnx"), *QUICK)
    found = json.loads(run("diff", str(source), str(tmp_path / "o.onnx"), "--json", "-").stdout)
    assert found["identical"] is False
    assert "BatchNormalization" in {n["op"] for n in found["only_a"]}


@pytest.mark.essential
def test_inspect_and_cost_and_explain(tmp_path: Path) -> None:
    source = foldable(tmp_path / "m.onnx", batch=2)
    facts = json.loads(run("inspect", str(source), "--json", "-").stdout)
    assert facts["operators"] == {"Add": 1, "BatchNormalization": 2, "Conv": 2, "Relu": 1}
    assert facts["work"]["flops"] > 2 * 2 * 16 * 12 * 12 * 16 * 9
    prices = json.loads(run("cost", str(source), "--json", "-").stdout)
    assert prices["us"] > 0
    assert {n["source"] for n in prices["nodes"]} <= {"measured", "interpolated", "roofline", "free"}
    text = run("explain", str(source), "--effort", "quick", "--target", "profile:cpu-epyc-2core").stdout.decode()
    assert "at " in text
    assert re.search(r"Conv +(conv|batchnorm)-", text)  # which rules made a node of the result
    text = run("explain", str(source), "--rule", "batchnorm-cde9", "--target", "profile:cpu-epyc-2core").stdout.decode()
    assert "matches; saves" in text
    assert (
        "--rule goes with neither"
        in run("explain", str(source), "--rule", "a", "--result", str(source)).stderr.decode()
    )


def test_memory_over_the_steps_of_a_run(tmp_path: Path) -> None:
    done = run("memory", str(TINY / "googlenet.json"), "--json", str(tmp_path / "m.json"))
    assert done.returncode == 0
    facts = json.loads((tmp_path / "m.json").read_text())
    taken = [s["taken_bytes"] for s in facts["steps"]]
    assert facts["bound_bytes"] <= facts["alive_bytes"]
    assert facts["bound_bytes"] <= max(taken) == taken[facts["peak_step"]] <= facts["peak_bytes"]
    assert sum(b["bytes"] for b in facts["peak_buffers"]) <= facts["block_bytes"]
    assert f"held at step {facts['peak_step']}".encode() in done.stdout


def test_memory_as_a_page_before_beside_after(tmp_path: Path) -> None:
    source, made, page = (tmp_path / n for n in ("m<b>.onnx", "o.onnx", "m.html"))
    foldable(source)
    assert run("optimize", str(source), "-o", str(made), "--html", str(tmp_path / "o.html"), *QUICK).returncode == 0
    done = run("memory", str(source), "--result", str(made), "--html", str(page), "--json", str(tmp_path / "m.json"))
    assert done.returncode == 0, done.stderr.decode()
    facts = json.loads((tmp_path / "m.json").read_text())
    for text in (page.read_text(), (tmp_path / "o.html").read_text()):
        start = text.index('<div class="footprints">')
        before, after = ElementTree.fromstring(text[start : text.index("</div>", start) + 6]).findall("section")
        for section, own in ((before, facts), (after, facts["result"])):
            svg = section.find("svg")
            assert svg is not None
            words = {e.get("id"): e.text for e in svg.iter() if e.get("id")}
            assert set(words) == {svg.get("aria-labelledby"), svg.get("aria-describedby")}
            assert f"{len(own['steps'])} steps" in str(words[svg.get("aria-describedby")])
            assert len(svg.findall("rect")) == len(own["peak_buffers"])
            rows = section.findall("details/table/tbody/tr")
            assert [int(r[0].text or "") for r in rows] == [s["step"] for s in own["steps"]]
        assert "<script" not in text
        assert "<b>" not in text


def test_schema_accepts_what_convert_writes(tmp_path: Path) -> None:
    import jsonschema

    source = foldable(tmp_path / "m.onnx")
    run("convert", str(source), str(tmp_path / "m.json"))
    published = json.loads(run("schema").stdout)
    jsonschema.validate(json.loads((tmp_path / "m.json").read_text()), published)


def test_settings_file_gives_defaults_and_flags_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = foldable(tmp_path / "m.onnx")
    (tmp_path / "superopt.toml").write_text("[optimize]\ntime_limit = 0\n")
    command = ["optimize", str(source), "--json", "-", *QUICK]
    for given, status in (([], "unchanged"), (["--time-limit", "60"], "improved")):
        done = run(*command, *given)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["status"] == status


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("[optimize]\ntime_limt = 3\n", b"[optimize]: there is no setting 'time_limt'; did you mean time_limit?"),
        ("[optimize]\ntime_limit = nan\n", b"[optimize]: time_limit: nan is no number"),
        ("[optimise]\ntime_limit = 3\n", b"superopt.toml: there is no command 'optimise'; did you mean optimize?"),
        ("[rules.list]\nfamly = 'conv'\n", b"[rules], [list]: there is no setting 'famly'; did you mean family?"),
        ("optimize = 3\n", b"superopt.toml: optimize is no table of settings; write [optimize] above its settings"),
    ],
)
def test_settings_that_nothing_reads_are_refused(table: str, said: bytes, tmp_path: Path) -> None:
    (tmp_path / "superopt.toml").write_text(table)
    done = subprocess.run([sys.executable, "-m", "superopt", "schema"], capture_output=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert said in done.stderr


def test_settings_are_named_as_flags_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "superopt.toml").write_text('[optimize]\nverify = "nothing"\n')
    monkeypatch.chdir(tmp_path)
    done = run("optimize", str(foldable(tmp_path / "m.onnx")))
    assert done.stderr == b"superopt: --verify 'nothing' is none of test, certify\n"


def test_a_cache_that_cannot_be_written_is_a_warning_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = process("cost", str(TINY / "deep_linear.json"), SUPEROPT_CACHE=str(tmp_path / "file"))
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith(b"superopt keeps nothing for its next run in ")
    assert line.endswith(b"SUPEROPT_CACHE names another folder")


def test_what_is_wrong_with_the_standard_input_is_said_of_it() -> None:
    done = process("inspect", "-", stdin=b"")
    assert (done.returncode, done.stderr.splitlines()) == (
        3, [b"superopt: standard input: is empty; superopt reads ONNX models and its own JSON graphs"]
    )  # fmt: skip


@pytest.mark.parametrize("after", [0.0, 0.02])
def test_ctrl_c_while_the_arguments_are_read_is_one_line(after: float) -> None:
    """The child says when its imports are done; what is in them is taken care of in the same way."""
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # a job in the background is deaf
    script = (
        f"{heard}; from superopt.cli import signal_handling, main; "
        "signal_handling.begin(); print('up', flush=True); main()"
    )
    command = [sys.executable, "-c", script, "optimize", str(TINY / "bert.json"), "--json", "-"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    time.sleep(after)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=120)
    assert (child.returncode, out, err) == (130, b"", b"superopt: interrupted; nothing was written\n")
