"""``superopt optimize --effort quick`` from start to file, beside other optimisers: ``python -m
lab.quick_effort_benchmark MODEL…``.

Each tool runs in a process of its own, on an ONNX file, from the start of Python to the written file, on one thread and
with an empty cache. One row a model and tool: CPU seconds (user and system), wall seconds, and the modelled cost of the
result ÷ that of the model under a recorded profile. A summary follows: median, 90th percentile and worst of the CPU
seconds, and the geometric mean of the ratios.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory

from superopt import cost, formats
from superopt.benchmark import peer
from superopt.report.corpus import geometric_mean

__all__ = ["QuickBenchmarkRow", "QuickBenchmarkSummary", "main", "rows_of", "summary_of"]

OURS = "superopt"
_TARGET = "profile:cpu-epyc-2core"
_FOLDER = Path("build/quick")
_MOST_BYTES = 500e6  # of weights: of larger models, reading and writing is what is measured
_SECONDS = 150.0  # of one tool on one model
_SHARE = 0.9  # of the models, that take no longer than the percentile


@dataclass(frozen=True)
class QuickBenchmarkRow:
    """One tool on one model.

    Attributes:
        cpu, wall: seconds of the process.
        ratio: modelled cost of the result ÷ that of the model.
        nodes: of the result.
        error: the last line that the tool wrote where it failed.
    """

    model: str
    tool: str
    cpu: float
    wall: float
    ratio: float = 1.0
    nodes: int = 0
    error: str = ""


@dataclass(frozen=True)
class QuickBenchmarkSummary:
    """CPU seconds and ratios of one tool over models; models on which it failed count 1 as ratio."""

    tool: str
    models: int
    failed: int
    median: float
    percentile: float
    worst: float
    ratio: float


def summary_of(tool: str, rows: Sequence[QuickBenchmarkRow]) -> QuickBenchmarkSummary:
    """The summary of a tool's rows.

    Args:
        tool: its name.
        rows: at least one.
    """
    seconds = sorted(r.cpu for r in rows)
    ratios = [r.ratio for r in rows]
    return QuickBenchmarkSummary(
        tool, len(rows), sum(bool(r.error) for r in rows), seconds[(len(seconds) - 1) // 2],
        seconds[ceil(_SHARE * len(seconds)) - 1], seconds[-1], geometric_mean(ratios),
    )  # fmt: skip


def rows_of(
    model: Path, tools: Mapping[str, str], folder: Path, *, target: str, effort: str
) -> list[QuickBenchmarkRow]:
    """Run tools on a model, one after the other.

    Args:
        model: ONNX or JSON; a JSON graph is written as ONNX first, in the folder.
        tools: :data:`OURS`, or names of :data:`superopt.benchmark.peer.PEERS`, each with the interpreter that has it.
        folder: of the models' ONNX files.
        target: whose prices count, ``profile:NAME``.
        effort: of superopt.
    """
    source = model if model.suffix == ".onnx" else _written(model, folder)
    prices = cost.ProfileCostModel(cost.load_profile(target.removeprefix("profile:")))
    before = cost.graph_cost(formats.load(source), prices).us
    rows: list[QuickBenchmarkRow] = []
    for tool, interpreter in tools.items():
        with TemporaryDirectory(prefix="quick-") as scratch:
            result = Path(scratch) / "result.onnx"
            own = ["-m", "superopt", "optimize", str(source), "-o", str(result), "--effort", effort, "--target", target]
            command = own if tool == OURS else [peer.__file__, tool, str(source), str(result)]
            cpu, wall, error = _run([interpreter, *command], {"SUPEROPT_CACHE": str(Path(scratch) / "cache")})
            if error or not result.exists():
                rows.append(QuickBenchmarkRow(model.stem, tool, cpu, wall, error=error or "no file was written"))
                continue
            graph = formats.load(result)
            us = cost.graph_cost(graph, prices).us
            rows.append(
                QuickBenchmarkRow(model.stem, tool, cpu, wall, us / before if before else 1.0, len(graph.nodes))
            )
    return rows


def _written(model: Path, folder: Path) -> Path:
    """The model as an ONNX file, written once."""
    target = folder / f"{model.parent.name}-{model.stem}.onnx"
    if not target.exists() or target.stat().st_mtime < model.stat().st_mtime:
        folder.mkdir(parents=True, exist_ok=True)
        formats.save(formats.load(model), target, force=True)
    return target


def _run(command: Sequence[str], variables: Mapping[str, str]) -> tuple[float, float, str]:
    """CPU and wall seconds of a process, and what it said last where it failed.

    Python may write bytecode: an installed package has it.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"OMP_NUM_THREADS": "1", **variables}
    used, began = _children(), time.monotonic()
    try:
        ended = subprocess.run(
            command, env=environment, timeout=_SECONDS, capture_output=True, text=True, errors="replace", check=False
        )
        said = ended.stderr.strip().splitlines()
        error = "" if not ended.returncode else said[-1] if said else f"exit code {ended.returncode}"
    except subprocess.TimeoutExpired:
        error = f"it took longer than {_SECONDS:g} s"
    return _children() - used, time.monotonic() - began, error


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _interpreters(tools: Sequence[str], given: Sequence[str]) -> dict[str, str]:
    """The interpreter of each tool: what is given as NAME=PATH, or this one where it has the tool."""
    known = dict(text.split("=", 1) for text in given)
    here = [t for t in tools if t == OURS or importlib.util.find_spec(t) is not None]
    return {t: known.get(t, sys.executable) for t in tools if t in known or t in here}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the rows and the summary, and write both as JSON if asked for."""
    parser = argparse.ArgumentParser(prog="python -m lab.quick_effort_benchmark", description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--vs", default="onnxslim,onnxsim,onnxscript", help="other tools; those not installed are left")
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PATH", help="interpreter with a tool")
    parser.add_argument("--target", default=_TARGET, help="profile:NAME")
    parser.add_argument("--effort", default="quick")
    parser.add_argument("--most-bytes", type=float, default=_MOST_BYTES, help="of a model's weights")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    tools = _interpreters([OURS, *filter(None, chosen.vs.split(","))], chosen.python)
    models = [m for m in chosen.models if formats.load(m).weight_bytes <= chosen.most_bytes]
    rows: list[QuickBenchmarkRow] = []
    print("| model | tool | CPU s | wall s | modelled | nodes |\n|---|---|---|---|---|---|")
    for model in models:
        for row in rows_of(model, tools, _FOLDER, target=chosen.target, effort=chosen.effort):
            rows.append(row)
            found = row.error or f"{row.ratio:.3f}"
            print(f"| {row.model} | {row.tool} | {row.cpu:.2f} | {row.wall:.2f} | {found} | {row.nodes} |", flush=True)
    summaries = [summary_of(t, mine) for t in tools if (mine := [r for r in rows if r.tool == t])]
    print("\n| tool | models | failed | median s | 90 % s | worst s | geometric mean |\n|---|---|---|---|---|---|---|")
    for one in summaries:
        print(
            f"| {one.tool} | {one.models} | {one.failed} | {one.median:.2f} | {one.percentile:.2f} | {one.worst:.2f} "
            f"| {one.ratio:.3f} |"
        )
    if chosen.json is not None:
        data = {"rows": [asdict(r) for r in rows], "summaries": [asdict(s) for s in summaries]}
        chosen.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
