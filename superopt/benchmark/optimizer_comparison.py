"""The benchmark, model by model: everyone optimises, everyone's outputs are judged, all that is right races together.

A model's row is kept in a folder, so that a run that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata, util
from pathlib import Path
from typing import Any

from superopt import TIME_LIMIT, formats
from superopt.benchmark.inductor import MARK
from superopt.benchmark.row_cache import RowCache, code_digest
from superopt.ir.errors import SuperoptError, UsageError, printable
from superopt.ir.temporary_folders import TemporaryFolder
from superopt.pipeline.options import Progress, quiet
from superopt.rules import load_library
from superopt.runtime.paired_benchmark import PairedTimes, result_of

__all__ = ["BenchmarkOptions", "PeerTools", "TOOLS", "bench", "child_job"]

TOOLS = ("ort", "onnxsim", "onnxslim", "onnxscript", "onnxoptimizer", "inductor")
_MODULES = {"onnxsim": "onnxsim", "onnxslim": "onnxslim", "onnxscript": "onnxscript", "onnxoptimizer": "onnxoptimizer"}
_NEXT = "pip install 'superopt[bench]'"
_SITTINGS = 3  # processes that a race is spread over
_LOADING = 120.0  # seconds that making the sessions of a race may take
_JUDGING = 600.0  # seconds for judging all results of a model
_OURS = frozenset({"original", "ort", "superopt"})  # races where another's model takes the race down
_SHOWN = 300  # characters of what a crashed tool said


@dataclass(frozen=True)
class BenchmarkOptions:
    """Settings of a benchmark.

    Attributes:
        tools: whom to compare with; "ort" is the original once more, whose ratio shows the noise.
        time_limit: seconds that we may take for a model; peers may take ``peer_limit``.
        race_limit: seconds that the race of a model may take; ``rounds``: at most so many, in several processes.
        keep: folder of the rows that are done; ``None`` keeps none.
        total_limit: seconds after which no further model is begun; another run with ``keep`` goes on from there.
        grace: seconds that a process may take beyond the tool's own time: interpreter, imports, reading, writing.
    """

    tools: tuple[str, ...] = ("ort",)
    time_limit: float = TIME_LIMIT
    peer_limit: float = TIME_LIMIT
    race_limit: float = 20.0
    rounds: int = 60
    keep: Path | None = None
    total_limit: float = float("inf")
    grace: float = 10.0


def _available(name: str) -> dict[str, str]:
    """Version of a tool, or why it is not here and what to do."""
    if name == "ort":
        return {"version": metadata.version("onnxruntime"), "what": "the original again: its ratio shows the noise"}
    if name == "inductor":
        missing = [m for m in ("torch", "torchvision", "onnx2torch") if util.find_spec(m) is None]
        if missing:
            return {
                "missing": f"{', '.join(missing)} not installed",
                "next": "pip install torch torchvision onnx2torch",
            }
        return {"version": metadata.version("torch"), "what": "the model as PyTorch compiles it, not in ONNX Runtime"}
    if util.find_spec(_MODULES[name]) is None:
        return {"missing": "not installed", "next": _NEXT}
    return {"version": metadata.version(name)}


@dataclass(frozen=True)
class PeerTools:
    """How other tools are found and run.

    Attributes:
        available: the version of a tool, or why it is not here ("missing") and what to do ("next").
        script: the program that runs one of them on a model.
    """

    available: Callable[[str], Mapping[str, str]]
    script: Path


INSTALLED = PeerTools(_available, Path(__file__).with_name("peer.py"))


@dataclass
class _Model:
    """One model's row in the making."""

    path: Path
    folder: Path
    options: BenchmarkOptions
    peers: PeerTools
    tools: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def source(self) -> Path:
        return self.folder / "original.onnx"


def bench(
    models: Sequence[Path], options: BenchmarkOptions, *, peers: PeerTools = INSTALLED, progress: Progress = quiet
) -> dict[str, Any]:
    """Run the benchmark.

    Returns:
        JSON data, ``{"format": "superopt.bench", "version": 2, …}``: circumstances, tools, and a row a model.

    Raises:
        UsageError: there is no tool of a name.
    """
    unknown = [t for t in options.tools if t not in TOOLS]
    if unknown:
        raise UsageError(f"there is nothing called {printable(unknown[0])!r} to compare with", hint=", ".join(TOOLS))
    tools = {name: peers.available(name) for name in options.tools}
    kept = RowCache(options.keep, _stamp(options, tools))
    rows, left_out = kept.rows(
        models, lambda path: _fresh(path, options, tools, peers), seconds=options.total_limit, progress=progress
    )
    facts: Mapping[str, Any] = next((r["circumstances"] for r in rows if r.get("circumstances")), {})
    return {
        "format": "superopt.bench", "version": 2, "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": {**facts, "system": platform.system(), "python": platform.python_version()},
        "superopt": {"version": metadata.version("superopt"), "rules": len(load_library().admitted)},
        "tools": tools, "settings": {
            "time_limit": options.time_limit, "peer_limit": options.peer_limit, "rounds": options.rounds,
            "race_limit": options.race_limit, "threads": 1,
        },
        "rows": rows, "left_out": left_out,
    }  # fmt: skip


def _stamp(options: BenchmarkOptions, tools: Mapping[str, Mapping[str, str]]) -> str:
    """What a row depends on beside its model: tools, limits, rules, and superopt's own code."""
    settings = (options.time_limit, options.peer_limit, options.race_limit, options.rounds)
    text = json.dumps([code_digest(), settings, tools], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _fresh(
    path: Path, options: BenchmarkOptions, tools: Mapping[str, Mapping[str, str]], peers: PeerTools
) -> dict[str, Any]:  # fmt: skip
    """A model's row, made now."""
    with TemporaryFolder("bench") as folder:
        return _row(_Model(path, folder, options, peers), tools)


def _row(model: _Model, tools: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    try:
        formats.save(formats.load(model.path), model.source)
    except SuperoptError as error:
        return {"error": str(error)}
    limit = model.options.time_limit
    spec = {"source": str(model.source), "target": str(_made(model, "superopt")), "time_limit": limit}
    model.tools["superopt"] = _job(model, "ours", spec, 2 * limit + model.options.grace)  # alone, since it measures
    peers = [name for name, facts in tools.items() if "missing" not in facts and name != "ort"]
    with ThreadPoolExecutor(2) as pool:
        model.tools.update(zip(peers, pool.map(lambda n: _peer(model, n), peers), strict=True))
    if "ort" in tools:
        model.tools["ort"] = {"status": "ok", "seconds": 0.0}
    for name, facts in tools.items():
        if "missing" in facts:
            model.tools[name] = {"status": "unavailable", "reason": facts["missing"]}
    _judged(model)
    return {"tools": model.tools, **_raced(model)}


def _made(model: _Model, name: str) -> Path:
    place = model.folder / name
    place.mkdir(exist_ok=True)
    return place / "model.onnx"


def _candidate(model: _Model, name: str) -> str:
    """What is raced for a tool."""
    if name == "inductor":
        return f"{MARK}{model.source}"
    return str(model.source if name == "ort" else _made(model, name))


def _peer(model: _Model, name: str) -> dict[str, Any]:
    """What a peer did, within its limit: seconds, and its result in the model's folder."""
    answer = _asked(model, name)
    limit = model.options.peer_limit
    if answer["status"] == "ok" and answer["seconds"] > limit:
        return {"status": "timeout", "reason": f"longer than {limit:.0f} s"}
    return answer


def _asked(model: _Model, name: str) -> dict[str, Any]:
    if name == "inductor":
        spec = {"source": str(model.source), "target": str(_made(model, name))}
        return {"status": "ok", **_job(model, name, spec, model.options.peer_limit + model.options.grace)}
    command = [sys.executable, str(model.peers.script), name, str(model.source), str(_made(model, name))]
    done = _run(command, model.options.peer_limit + model.options.grace, model.folder)
    if "status" in done:
        return done
    try:
        return {"status": "ok", **json.loads(done["output"].strip().splitlines()[-1])}
    except (ValueError, IndexError):
        return {"status": "crash", "reason": "it said nothing"}


def _job(model: _Model, job: str, spec: Mapping[str, Any], limit: float) -> dict[str, Any]:
    return child_job(model.folder, job, spec, limit)


def child_job(folder: Path, job: str, spec: Mapping[str, Any], limit: float) -> dict[str, Any]:
    """One of our own jobs in a process; a crash is its answer: ``{"status": "crash" | "timeout", "reason": …}``.

    Args:
        folder: where it may write.
        job: its name in :mod:`superopt.benchmark.child`.
        spec: what it is to do.
        limit: seconds that it may take.
    """
    path = folder / f"{job}.json"
    path.write_text(json.dumps(spec))
    done = _run([sys.executable, "-m", "superopt.benchmark.child", job, str(path)], limit, folder)
    if "status" in done:
        return done
    answer = json.loads(path.with_suffix(".answer.json").read_text())
    if "error" in answer:
        return {"status": "crash", "reason": answer["error"]}
    return {"status": "ok", "was": answer.pop("status", ""), **answer} if job == "ours" else answer


def _run(command: Sequence[str], limit: float, scratch: Path) -> dict[str, Any]:
    """Run a process; ``{"output": …}``, or ``{"status": "crash" | "timeout", "reason": …}``.

    It leads a session of its own, so that a time-out ends what it started, too (inductor's compilers).
    """
    own = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor-cache"),
           "TORCHINDUCTOR_COMPILE_THREADS": "1"}  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **own},
        start_new_session=True,
    )  # fmt: skip
    try:
        output, said = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        return {"status": "timeout", "reason": f"longer than {limit:.0f} s"}
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode != 0:
        lines = said.strip().splitlines() or [f"exit code {process.returncode}"]
        return {"status": "crash", "reason": printable(lines[-1], _SHOWN)}
    return {"output": output}


def _judged(model: _Model) -> None:
    """Outputs of all that was made, compared; what is wrong does not race."""
    made = {n: str(_made(model, n)) for n, t in model.tools.items() if t["status"] == "ok" and n != "ort"}
    verdicts = _judge(model, made)
    if "status" in verdicts:  # somebody's model took the judge down: whose?
        verdicts = {name: _judge(model, {name: path}) for name, path in made.items()}
        verdicts = {name: found if "status" in found else found[name] for name, found in verdicts.items()}
    for name in made:
        model.tools[name] |= verdicts[name]


def _judge(model: _Model, candidates: Mapping[str, str]) -> dict[str, Any]:
    """The verdict on each candidate, by name; ``{"status": …}`` if that failed altogether."""
    found = _job(model, "judge", {"source": str(model.source), "candidates": candidates}, _JUDGING)
    return found if set(candidates) <= set(found) else {"status": "crash", "reason": "", **found}


def _raced(model: _Model) -> dict[str, Any]:
    """Times of all that is right, in the tools' answers, and the race's circumstances; or why there are none."""
    racing = {"original": str(model.source)}
    racing |= {
        name: _candidate(model, name)
        for name, tool in model.tools.items() if tool["status"] == "ok"
    }  # fmt: skip
    found = _sittings(model, racing)
    if isinstance(found, str):  # somebody's model took the race down: ours against the original is what is left
        for name in racing.keys() - _OURS:
            model.tools[name] |= {"status": "crash", "reason": f"the race failed: {found}"}
        racing = {n: p for n, p in racing.items() if n in _OURS}
        found = _sittings(model, racing)
    if isinstance(found, str):
        return {"error": f"the race failed: {found}"}
    for place, name in enumerate(racing):
        if name != "original":
            model.tools[name] |= {"ms": found.ms[place], "ratio": found.ratios[place], "spread": found.spread[place]}
    return {"before_ms": found.ms[0], "rounds": found.rounds, "circumstances": found.circumstances}


def _sittings(model: _Model, candidates: Mapping[str, str]) -> PairedTimes | str:
    """The race, in several processes, since what a process put where stays as it is; or why there was none."""
    share = model.options.race_limit / _SITTINGS
    samples: list[tuple[float, ...]] = []
    runs, found = 0, {}
    for seed in range(_SITTINGS):
        spec = {"source": str(model.source), "candidates": candidates, "time_limit": share, "seed": seed,
                "rounds": -(-model.options.rounds // _SITTINGS)}  # fmt: skip
        found = _job(model, "race", spec, 10 * share + _LOADING)
        if "samples" not in found:
            return str(found.get("reason", ""))
        samples += map(tuple, found["samples"])
        runs += found["runs"]
    return result_of(samples, runs, found["circumstances"])
