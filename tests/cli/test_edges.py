"""The command line's edges: odd numbers, names, streams and signals. One line, the documented code, nothing lost.

Cases that need no process of their own run :func:`superopt.cli.main` here; streams and signals are a child's.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from sampling import slow

from superopt.cli import main, standard_streams
from superopt.cli.command_utilities import parse_bytes
from superopt.discovery.learn import LearningResult
from superopt.ir.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
LINEAR = ROOT / "corpus" / "tiny" / "deep_linear.json"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a model in both forms, links to it, and one whose weights are in a file of their own."""
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path_factory.getbasetemp() / "cache-of-test-edges"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.json").write_bytes(LINEAR.read_bytes())
    onnx.save(one_product(), tmp_path / "m.onnx")
    big = one_product()
    onnx.save(big, tmp_path / "big.onnx", save_as_external_data=True, location="o.onnx.data", size_threshold=0)
    onnx.save(one_product(), tmp_path / "linked.onnx", save_as_external_data=True, location="w.data", size_threshold=0)
    os.link(tmp_path / "w.data", tmp_path / "other.data")
    claims = one_product()
    claims.graph.output[0].type.tensor_type.elem_type = TensorProto.INT32
    onnx.save(claims, tmp_path / "claims.onnx")
    (tmp_path / "soft.onnx").symlink_to("m.onnx")
    os.link(tmp_path / "m.onnx", tmp_path / "hard.onnx")
    (tmp_path / "old").mkdir()
    (tmp_path / "file").write_text("precious")
    os.mkfifo(tmp_path / "fifo")
    return tmp_path


def one_product() -> onnx.ModelProto:
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 4]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", values[:1], values[1:], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs a command in this process: exit code, standard output, standard error."""
    ends = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def command(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["superopt", *args])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out, said.err

    yield command
    for number, handler in ends.items():
        signal.signal(number, handler)


def kept(folder: Path) -> dict[str, bytes]:
    """Every file that a command may not touch, and nothing else may be there."""
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file() and p.name != "cache"}


TOO_LONG = "a" * 300 + ".onnx"
# command → exit code and a part of the line
REFUSED: dict[str, tuple[int, str]] = {
    **{f"{command} --seed {n}": (2, "--seed") for command in ("optimize m.onnx", "verify m.onnx m.json")
       for n in ("-1", "x", "1.5", "9" * 30)},
    **{f"{command} --time-limit {n}": (2, "--time-limit") for command in ("optimize m.onnx", "explain m.onnx",
       "verify m.onnx m.json", "rules prove x", "discover") for n in ("-1", "nan", "x")},
    **{f"optimize m.onnx --threads {n}": (2, "--threads") for n in ("0", "-1", "1e3", "9" * 30)},
    **{f"optimize m.onnx --memory-limit={n}": (2, "is not a size in bytes") for n in ("0", "-5", "nan", "inf")},
    **{f"optimize m.onnx --dim {n}": (2, f"--dim '{n}' is not NAME=SIZE")
       for n in ("N", "N=", "=8", "N=0", "N=-1", "N=1.5", "N=٣", "N=99999999999999999999")},
    "inspect m.onnx --dim N=1 --dim N=2": (2, "--dim gives 'N' two sizes: 1 and 2"),
    "cost m.onnx --top -1": (2, "--top"),
    "explain m.onnx --effort fast": (2, "--effort 'fast' is none of quick, default, thorough"),
    "explain m.onnx --float loose": (2, "--float 'loose' is none of strict, standard, fast"),
    "verify m.onnx m.json --trials 0": (2, "--trials"),
    "rules prove --all --workers 0": (2, "--workers"),
    "corpus run --workers -1": (2, "--workers"),
    "corpus compare --threshold nan": (2, "--threshold"),
    # destinations
    "optimize m.onnx -o x.txt": (2, "-o x.txt: is no name for a model; end it with .onnx or .json"),
    "convert m.onnx x.pb": (2, "OUT x.pb: is no name for a model"),
    "optimize m.onnx m.json -o new.onnx": (2, "-o new.onnx: is the name of a file, and several models need a folder"),
    "optimize m.onnx --cluster tcp://127.0.0.1:1": (2, "--cluster needs a folder for the results; add -o DIR"),
    "check-values m.onnx missing": (2, "missing: is no folder"),
    "check-values m.onnx old": (2, "old: holds no certificates: there is no certificate.json"),
    "optimize m.onnx -o o.onnx --json o.onnx": (2, "--json o.onnx: is the same file as -o"),
    "optimize m.onnx -o o.onnx --json ./old/../o.onnx": (2, "is the same file as -o"),
    "optimize m.onnx --json r --html r": (2, "--html r: is the same file as --json"),
    "optimize m.onnx -o o.json --json o.safetensors": (2, "is the same file as -o"),
    "optimize m.onnx -o - --json -": (2, "-o and --json cannot both go to standard output"),
    "optimize m.onnx -o m.onnx": (2, "-o m.onnx: is m.onnx, which is read"),
    "optimize m.onnx -o m.onnx -f": (2, "-o m.onnx: is m.onnx, which is read"),
    "optimize m.onnx -o soft.onnx -f": (2, "is m.onnx, which is read"),
    "optimize m.onnx -o hard.onnx -f": (2, "is m.onnx, which is read"),
    "optimize soft.onnx -o m.onnx -f": (2, "is soft.onnx, which is read"),
    "optimize m.onnx --json m.onnx -f": (2, "--json m.onnx: is m.onnx, which is read"),
    "convert m.onnx hard.onnx -f": (2, "is m.onnx, which is read"),
    "convert big.onnx o.onnx -f": (2, "o.onnx.data holds weights of the model"),
    "convert big.onnx o.onnx.data -f": (2, "OUT o.onnx.data: is no name for a model"),
    "inspect m.onnx --json m.onnx -f": (2, "which is read"),
    "inspect m.onnx --json file": (2, "-f"),
    "diff m.onnx m.json --json m.json -f": (2, "which is read"),
    "cost m.onnx --json soft.onnx -f": (2, "which is read"),
    "verify m.onnx m.json --counterexample m.json": (2, "which is read"),
    "rules list --json file": (2, "-f"),
    "rules derive file --json file -f": (2, "which is read"),
    "rules export file": (2, "-f"),
    "bench m.onnx --html hard.onnx -f": (2, "which is read"),
    "corpus run m.onnx --target profile:cpu-epyc-2core --json m.onnx": (2, "which is read"),
    "optimize m.onnx -o new/": (2, "-o new/: is a folder, not a file"),
    "optimize m.onnx -o old": (2, "-o old: is a folder, not a file"),
    "optimize m.onnx -o old -f": (2, "-o old: is a folder, not a file"),
    "optimize m.onnx -o no/such/o.onnx": (2, "no/such/o.onnx: cannot be written: No such file"),
    "optimize m.onnx -o o.onnx --json no/r.json": (2, "no/r.json: cannot be written"),
    "optimize m.onnx -o file/o.onnx": (2, "cannot be written: Not a directory"),
    "optimize m.onnx -o fifo -f": (2, "is a FIFO"),
    "optimize m.onnx -o /dev/null -f": (2, "is a device"),
    f"optimize m.onnx -o {TOO_LONG}": (2, "File name too long"),
    "optimize m.onnx -o file": (2, "-f"),
    "optimize m.onnx -o ''": (2, "is no file name"),
    "profile m.onnx --out no/p.gz": (2, "no/p.gz: cannot be written"),
    # inputs
    "verify - -": (2, "- is named twice"),
    "diff - -": (2, "- is named twice"),
    "inspect nowhere": (3, "nowhere: cannot be read"),
    "inspect old": (3, "old: is a directory"),
    "inspect fifo": (3, "fifo: is a FIFO"),
    "inspect /dev/zero": (3, "/dev/zero: is a device"),
    "inspect ''": (3, "is a directory"),
    "inspect bad\nname\x1b[31m": (3, "bad\\nname\\x1b[31m: cannot be read"),
    f"inspect {TOO_LONG}": (3, "File name too long"),
    "inspect file": (3, "file: "),
    "bench nowhere.onnx": (3, "nowhere.onnx: cannot be read"),
    "bench --cost nowhere.onnx": (3, "nowhere.onnx: cannot be read"),
    "bench m.onnx --vs nope": (2, "nothing called 'nope'"),
    "corpus compare m.onnx --baseline nowhere --target profile:cpu-epyc-2core": (2, "no such corpus run"),
    "optimize m.onnx --no-check --check full": (2, "leave out one of the two"),
    "inspect linked.onnx": (3, "has 2 hard links, so it may belong to somebody else; copy the model"),
    "inspect claims.onnx": (3, "'y' is declared int32[N, 4], but the operator makes float32[N, 4]"),
    # names
    "optimize m.onnx --rules file": (2, "file: not TOML"),
    "optimize m.onnx --rules old": (2, "old: no rules in the folder"),
    "optimize m.onnx --rules nowhere": (2, "nowhere: no such folder"),
    "optimize m.onnx --target gpu": (2, "there is no target 'gpu'"),
    "cost m.onnx --target profile:nope": (2, "there is no profile 'nope'"),
    "optimize m.onnx --rules old --rules file": (2, "--rules is given 2 times; put the files into one folder"),
    "rules list --operator Mul --operator Add": (2, "--operator is given 2 times"),
    "optimise m.onnx": (2, "Did you mean 'optimize'"),
    "optimize m.onnx --tragte cpu": (2, "--target"),
    "discover --operators Mul,MatMull --out d": (2, "'MatMull'; did you mean MatMul?"),
    "discover --themes convv --out d": (2, "there is no theme 'convv'"),
}  # fmt: skip


def words(command: str) -> list[str]:
    return ["" if w == "''" else w for w in command.split(" ")]


@pytest.mark.parametrize("command", REFUSED)
def test_is_refused_in_a_line_and_nothing_is_lost(command: str, folder: Path, run: Run) -> None:
    before = kept(folder)
    code, out, err = run(*words(command))
    expected, said = REFUSED[command]
    assert (code, out) == (expected, ""), err
    assert said in err
    assert err.startswith("superopt: ")
    assert len(err.splitlines()) == 1, err
    assert kept(folder) == before
    assert sorted(p.name for p in folder.iterdir() if p.is_dir() and p.name != "cache") == ["old"]


BESIDE: dict[str, str] = {  # where graphs that trade time for memory go, too
    "m-2.onnx -o m.onnx -f": "OUT-2 m-2.onnx: is m-2.onnx, which is read",
    "m.onnx -o old.onnx": "old-3.onnx: exists already",
    "m.onnx -o new.onnx --json new-4.onnx": "OUT-4 new-4.onnx: is the same file as --json",
    "m.onnx -o .": "-o .: is a folder, not a file",
}


@pytest.mark.parametrize("command", BESIDE)
def test_files_beside_the_result_are_claimed_before_any_work(command: str, folder: Path, run: Run) -> None:
    for name in ("m-2.onnx", "old-3.onnx"):
        (folder / name).write_bytes((folder / "m.onnx").read_bytes())
    before = kept(folder)
    code, _, err = run("optimize", *words(command), "--objective", "pareto")
    assert (code, err.count("\n")) == (2, 1)
    assert BESIDE[command] in err
    assert kept(folder) == before


@pytest.mark.parametrize(
    ("file", "text", "code", "said"),
    [
        ("superopt.toml", "x = [", 2, "superopt.toml: is not valid TOML"),
        ("superopt.toml", "\\xff", 2, "superopt.toml: is not valid TOML"),
        ("pyproject.toml", "tool = 3", 0, ""),
        ("pyproject.toml", "[tool]\nsuperopt = 3", 2, "pyproject.toml: tool.superopt is no table of settings"),
        ("superopt.toml", "[inspect]\ndim = 'N=8'", 2, "superopt.toml: Invalid value for '--dim'"),
    ],
)
def test_a_settings_file_that_does_not_fit(file: str, text: str, code: int, said: str, folder: Path, run: Run) -> None:
    (folder / file).write_bytes(text.encode().replace(b"\\xff", b"\xff"))
    found, _, err = run("inspect", "m.onnx")
    assert found == code, err
    assert said in err
    assert len(err.splitlines()) == (code != 0)


def test_variables_that_are_empty_say_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TIME_LIMIT", "THREADS", "MEMORY_LIMIT", "TARGET", "FLOAT", "EFFORT"):
        monkeypatch.setenv(f"SUPEROPT_{name}", "")
    assert run("optimize", "m.onnx", "--time-limit", "0")[0] == 0


@pytest.mark.parametrize("option", ["float", "effort"])
def test_variables_that_say_something_unknown(option: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"SUPEROPT_{option.upper()}", "warp")
    code, _, err = run("optimize", "m.onnx")
    assert code == 2
    assert f"--{option} 'warp' is none of" in err


def test_names_that_are_no_text(folder: Path, run: Run) -> None:
    """A file's name may be any bytes, and a model's may be hostile: reports are written all the same."""
    name = os.fsdecode(b"m\xff.onnx")
    (folder / "m.onnx").rename(folder / name)
    code, _, err = run("optimize", name, "--time-limit", "0", "--html", "r.html", "--json", "r.json", "-o", "o.onnx")
    assert code == 0, err
    assert (folder / "r.html").stat().st_size > 1000
    assert run("inspect", name)[0] == 0


# ── streams and signals: a process of its own ─────────────────────────────────────────────────────────────────────────


def shell(folder: Path, script: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of bash in which S is the command."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "S": f"{sys.executable} -m superopt.cli", **environment}
    return subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, env=variables, check=False)


NO_SPACE = b"superopt: standard output: cannot be written: No space left on device\n"
CLOSED = b"superopt: standard output is closed; the result has nowhere to go: write > FILE, or > /dev/null\n"
NO_MODEL = b"superopt: standard input: is not a model; ONNX or a superopt JSON graph\n"
STREAMS: dict[str, tuple[int, bytes]] = {
    "$S inspect - <&-": (2, b"superopt: standard input is closed; "),
    "$S inspect m.onnx >&-": (2, CLOSED),
    "$S convert m.json o.onnx >&- && cmp o.onnx <($S convert m.json -)": (0, b""),
    "$S inspect nowhere 2>&-": (3, b""),
    "$S inspect nowhere 2>/dev/full": (3, b""),
    "$S inspect m.onnx <&- >&- 2>&-": (2, b""),
    "$S inspect m.onnx >/dev/full": (7, NO_SPACE),
    "$S convert m.json - >/dev/full": (7, NO_SPACE),
    "$S schema | head -c 0; exit ${PIPESTATUS[0]}": (0, b""),
    "$S rules --help | head -c 0; exit ${PIPESTATUS[0]}": (0, b""),
    "yes | $S inspect -": (3, NO_MODEL),
    "$S inspect - </dev/zero": (3, NO_MODEL),
    "LC_ALL=C PYTHONIOENCODING=ascii $S inspect 'mödel.onnx'": (
        3,
        b"superopt: m\\xf6del.onnx: cannot be read: No such",
    ),
    "mkdir gone && cd gone && rmdir ../gone && $S schema >/dev/null": (0, b""),
}


@pytest.mark.parametrize("script", STREAMS)
def test_streams_as_they_come(script: str, folder: Path) -> None:
    code, said = STREAMS[script]
    done = shell(folder, script)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == (said != b"")


@pytest.mark.parametrize(
    ("number", "after"),
    [
        *((signal.SIGINT, after) for after in (0.0, 0.1, 0.4, 1.5)),
        *((signal.SIGTERM, 0.0), (signal.SIGTERM, 1.5), (signal.SIGHUP, 0.4)),
        *(slow(signal.SIGTERM, after) for after in (0.1, 0.4)),
        *(slow(signal.SIGHUP, after) for after in (0.0, 0.1, 1.5)),
    ],
)
def test_a_signal_at_any_moment_is_one_line(number: signal.Signals, after: float, folder: Path) -> None:
    """From the first import on; the child says when that is done."""
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # a job in the background is deaf
    begun = "from superopt.cli import signal_handling; import os; os.write(1, b'up')"
    script = f"{heard}; {begun}; from superopt.cli import main; main()"
    command = [sys.executable, "-c", script, "optimize", str(ROOT / "corpus/tiny/bert.json"), "-o", "o.onnx"]
    before = kept(folder)
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder)
    assert child.stdout is not None
    assert child.stdout.read(2) == b"up"
    time.sleep(after)
    child.send_signal(number)
    out, err = child.communicate(timeout=120)
    if (folder / "o.onnx").exists():  # the best so far
        onnx.checker.check_model(onnx.load(folder / "o.onnx"))
        (folder / "o.onnx").unlink()
        assert child.returncode in (0, 130)
    else:
        assert (child.returncode, out, err) == (130, b"", b"superopt: interrupted; nothing was written\n")
    assert kept(folder) == before


class Interrupted(NamedTuple):
    """What sends its own process a signal, and whether that still does its work afterwards."""

    source: str
    finishes: bool


FINALIZERS = {
    "a finalizer": Interrupted("weakref.finalize(thing := Plain(), interrupt)", finishes=True),
    "a destructor": Interrupted("thing = Destroyed()", finishes=True),
    "a callback of a weak reference": Interrupted("keep = weakref.ref(thing := Plain(), interrupt)", finishes=False),
}


@pytest.mark.parametrize("kind", FINALIZERS)
def test_an_interrupt_during_a_finalizer_is_neither_printed_nor_lost(kind: str) -> None:
    """Python prints what a finalizer raises, and goes on."""
    case = FINALIZERS[kind]
    script = f"""
import os, signal, time, weakref
signal.signal(signal.SIGINT, signal.default_int_handler)
from superopt.cli import signal_handling
signal_handling.begin()
signal_handling.done()
def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.001)
    print("finished", flush=True)
class Plain: pass
class Destroyed:
    def __del__(self): interrupt()
{case.source}
try:
    del thing
    time.sleep(30)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["finished"] * case.finishes + ["interrupted"]


@pytest.mark.parametrize(("text", "size"), [("400MiB", 400 << 20), ("400M", 400 << 20), ("2g", 2 << 30), ("17", 17)])
def test_sizes_in_bytes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["400MB", "iB", "4ib", "", "MiB", "-1M"])
def test_what_is_no_size_in_bytes(text: str) -> None:
    with pytest.raises(UsageError):
        parse_bytes(text)


@pytest.mark.parametrize(("limit", "learns"), [((), 60.0), (("--time-limit", "8"), 4.0)])
def test_learning_is_within_the_time_limit_that_is_given(
    limit: tuple[str, ...], learns: float, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def learn_from(*models: object, time_limit: float, **how: object) -> LearningResult:
        asked.append(time_limit)
        return LearningResult()

    monkeypatch.setattr("superopt.pipeline.rule_learning.learn_from", learn_from)
    assert run("optimize", "m.onnx", "--discover", "60", *limit)[0] == 0
    assert asked == [learns]


def test_no_folder_is_made_for_what_is_not_learnt(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever kills the command would find it left."""

    def refuses(**how: object) -> None:
        raise OSError("there is no room")

    monkeypatch.setattr("superopt.cli.optimize.TemporaryFolder", refuses)
    assert run("optimize", "m.onnx")[0] == 0


def test_a_full_disk_that_is_not_the_outputs_is_that_of_temporary_files(capfd: pytest.CaptureFixture[str]) -> None:
    said = standard_streams.output_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert said is not None
    assert str(said).startswith("the folder of temporary files: no space left on the disk; ")
    assert "TMPDIR" in str(said)
