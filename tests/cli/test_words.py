"""What commands print: the first line, what was probably meant, and what a long command is at."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from superopt.cli import app
from superopt.cli.command_utilities import ProgressLineWriter, ProgressReporter
from superopt.ir.errors import InvalidModel, UsageError

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "corpus" / "tiny" / "deep_linear.json"
TARGET = ["--target", "profile:cpu-epyc-2core", "--effort", "quick"]


def command(*arguments: str) -> None:
    app(["optimize", *arguments], standalone_mode=False)


def test_the_first_line_says_how_much_faster_and_what_to_do_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "r.json"
    command(str(TINY), *TARGET, "--json", str(report))
    said = capsys.readouterr().out.splitlines()
    summary = json.loads(report.read_text())["summary"]
    assert said[0] == f"{TINY}  {summary}"
    assert summary.endswith("; checked equal")
    assert said[-1] == "not written; add -o FILE"
    command(str(TINY), *TARGET, "-o", str(tmp_path / "o.onnx"))
    assert capsys.readouterr().out.splitlines()[-1] == f"wrote {tmp_path / 'o.onnx'}"


def test_a_batch_has_the_same_line_for_each_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.json").write_bytes(TINY.read_bytes())
    report, out = tmp_path / "r.json", tmp_path / "out"
    names = [str(TINY), str(tmp_path / "other.json")]
    command(*names, *TARGET, "-o", str(out), "--json", str(report), "--workers", "1")
    rows = json.loads(report.read_text())["models"]
    assert capsys.readouterr().out.splitlines() == [
        f"{Path(name).name}  {row['report']['summary']}; wrote {out / Path(name).name}"
        for name, row in zip(names, rows, strict=True)
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "does not exist; did you mean -o {second}?"),
     (b"garbage", "is not an ONNX model, or is truncated: its protobuf does not parse; did you mean -o {second}?")],
    ids=["missing", "no model"],
)  # fmt: skip
def test_a_second_name_that_is_no_model_was_meant_as_the_output(
    content: bytes | None, said: str, tmp_path: Path
) -> None:
    second = tmp_path / "out.onnx"
    if content is not None:
        second.write_bytes(content)
    with pytest.raises(UsageError) as error:
        command(str(TINY), str(second), *TARGET)
    assert str(error.value).endswith(said.format(second=second))


def test_a_second_model_of_another_format_names_the_converter(tmp_path: Path) -> None:
    second = tmp_path / "m.tflite"
    second.write_bytes(b"\x1c\0\0\0TFL3" + bytes(40))
    with pytest.raises(InvalidModel, match="tf2onnx"):
        command(str(TINY), str(second), *TARGET)


def test_two_models_need_a_folder(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_bytes(TINY.read_bytes())
    with pytest.raises(UsageError, match="several models need a folder for the results; add -o DIR"):
        command(str(TINY), str(tmp_path / "other.json"), *TARGET)


def test_off_a_terminal_a_long_command_writes_a_line_now_and_then() -> None:
    written: list[bytes] = []
    lines = ProgressLineWriter("starting", every=0.001, write=written.append)
    assert lines.line(31.4) == "superopt: starting (31 s so far)\n"
    lines.update(12, 40, "applying all rules, phase 3")
    assert lines.line(62.0) == "superopt: applying all rules, phase 3 (12 of 40, 62 s so far)\n"
    lines.update(0, None, "a\nb\x1b[2J")
    lines.start()
    while len(written) < 3:
        time.sleep(0.001)
    lines.end()
    assert not lines.is_alive()
    assert set(written) == {b"superopt: a\\nb\\x1b[2J (0 s so far)\n"}


def test_a_reader_that_is_gone_does_not_end_the_command() -> None:
    def gone(line: bytes) -> None:
        raise BrokenPipeError

    lines = ProgressLineWriter("starting", every=0.001, write=gone)
    lines.start()
    lines.join()
    lines.end()
    assert not lines.is_alive()


def test_a_short_command_writes_no_line(capfd: pytest.CaptureFixture[str]) -> None:
    with ProgressReporter("checking") as update:
        update(1, 2, "checking")
    assert capfd.readouterr().err == ""


def test_rules_are_searched_with_the_algorithms_that_words_mean(capsys: pytest.CaptureFixture[str]) -> None:
    app(["rules", "list", "--search", "winograd"], standalone_mode=False)
    printed = capsys.readouterr()
    assert "conv:4:3" in printed.out
    assert "6 for 12" in printed.out
    assert "fast algorithms; 0 rules" in printed.err
    app(["rules", "list", "--search", "winograd", "--family", "conv"], standalone_mode=False)
    assert "conv:4:3" not in capsys.readouterr().out
    app(["rules", "show", "conv:4:3"], standalone_mode=False)
    assert "multiplications: 6 for 12" in capsys.readouterr().out
    with pytest.raises(UsageError, match="has no certificate"):
        app(["rules", "show", "conv:4:3", "--certificate"], standalone_mode=False)
