"""Does the same model come back the same, and how soon? ``python tests/stability.py MODELS --runs 20``.

Models are ONNX files or JSON graphs. Each run is the command a user types, in a process of its own, with an empty cache
(``--calibrated``: one that knows this machine and no model). Every other run has a busy neighbour, a process that
multiplies matrices larger than the caches on as many cores as there are (``--neighbour never|half|always``, ``--busy
CORES``). ``--warm`` adds a run with the cache that the last one left. Distinct results of a model are then raced
against its input in one race, so that ratios compare; a result found twenty times is timed once. Seconds are from
command to file. The last table has a row for each result of each model; the exit status is 1 where fewer runs than
``--at-least`` (a share) came back with their model's most frequent result.

Ten deployments, five cold runs each on a quiet machine and five beside a neighbour on all cores::

    python -m lab.deployments FOLDER
    python tests/stability.py FOLDER/*.onnx --runs 10 --warm --at-least 0.95 --json stability.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import geometric_mean, median

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))


from superopt import formats  # noqa: E402
from superopt.ir.graph import Graph  # noqa: E402
from superopt.ir.symbolic_size_binding import sizes_fed  # noqa: E402
from superopt.pipeline.paired_benchmark import runnable  # noqa: E402
from superopt.pipeline.shape_defaults import default_sizes  # noqa: E402
from superopt.runtime.paired_benchmark import time_models  # noqa: E402
from superopt.verifier.check.differential import make_inputs  # noqa: E402

# Ends with who started it, however that ends: one that is left over falsifies whatever is measured next.
_NEIGHBOUR = "import os, numpy as n\na, p = n.ones((1500, 1500), 'f'), os.getppid()\nwhile os.getppid() == p: a @ a"
_MIB = 1 << 20


@dataclass(frozen=True)
class Run:
    """One optimisation: what came back, after how many seconds, of which CPU, at what peak of memory (MiB)."""

    digest: str
    status: str
    nodes: int
    batch_normalizations: int
    modelled: float
    seconds: float
    cpu_seconds: float
    peak_mib: float
    neighbour: bool
    warm: bool
    said: str = ""

    @property
    def kind(self) -> str:
        return "warm" if self.warm else "busy" if self.neighbour else "quiet"


@dataclass
class Row:
    """A model's runs, and its distinct results' ratios to the input (with their interquartile ranges)."""

    model: str
    weights_mib: float
    runs: list[Run] = field(default_factory=list)
    ratios: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def alike(self) -> int:
        """Runs with the most frequent result."""
        return Counter(r.digest for r in self.runs).most_common(1)[0][1]

    @property
    def worst(self) -> float:
        return max(self.ratios[r.digest][0] for r in self.runs)

    @property
    def best(self) -> float:
        return min(self.ratios[r.digest][0] for r in self.runs)


@contextlib.contextmanager
def neighbour(cores: int) -> Iterator[None]:
    """A process that keeps so many cores and the memory bus busy."""
    if not cores:
        yield
        return
    threads = {**os.environ, "OPENBLAS_NUM_THREADS": str(cores), "OMP_NUM_THREADS": str(cores)}
    process = subprocess.Popen([sys.executable, "-c", _NEIGHBOUR], env=threads)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def highest(pid: int) -> Iterator[list[int]]:
    """KiB that a process has occupied at most, in a list of one. (``ru_maxrss`` counts what this process occupied when
    it forked, too, and a race before that may have taken gigabytes.)"""
    peak, over = [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
                peak[0] = next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), peak[0])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def once(model: Path, kept: Path, cache: Path, options: Sequence[str], busy: int, *, warm: bool = False) -> Run:
    """Optimise a model as a user would; the written model is kept under its digest."""
    with tempfile.TemporaryDirectory(prefix="superopt-stability-") as place:
        folder = Path(place)
        out, figures = folder / "out.onnx", folder / "report.json"
        command = [sys.executable, "-m", "superopt.cli", "optimize", str(model), "-o", str(out), "--json", str(figures)]
        with neighbour(busy):
            start = time.monotonic()
            process = subprocess.Popen(
                [*command, *options], env={**os.environ, "SUPEROPT_CACHE": str(cache)},
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            assert process.stderr is not None
            with highest(process.pid) as peak:
                said = process.stderr.read()
            _, status, used = os.wait4(process.pid, 0)
            seconds = time.monotonic() - start
        if os.waitstatus_to_exitcode(status) not in (0, 1) or not figures.is_file():
            raise SystemExit(f"{model.name}: {said}")
        found = json.loads(figures.read_text())
        digest = found["result"]["digest"]
        if out.is_file() and not (kept / f"{digest}.onnx").exists():
            shutil.copy(out, kept / f"{digest}.onnx")
        after = found["operators"]["after"]
        return Run(
            digest, found["status"], found["nodes"]["after"], after.get("BatchNormalization", 0),
            found["cost"]["after_us"] / found["cost"]["before_us"] if found["cost"]["before_us"] else 1.0,
            seconds, used.ru_utime + used.ru_stime, peak[0] / 1024, bool(busy), warm,
            "; ".join(found["notes"]),
        )  # fmt: skip


def raced(graph: Graph, digests: Sequence[str], kept: Path, rounds: int) -> dict[str, tuple[float, float]]:
    """Ratio to the input, and its spread, of each distinct result; all in one race."""
    found = [d for d in digests if (kept / f"{d}.onnx").is_file()]
    feeds = make_inputs(graph, 0, "normal", sizes=sizes_fed(graph, default_sizes(graph, {})))
    with tempfile.TemporaryDirectory(prefix="superopt-stability-") as place:
        models = [runnable(graph, Path(place) / "input.onnx"), *(kept / f"{d}.onnx" for d in found)]
        result = time_models(models, feeds, rounds=rounds, burst=3, threads=1, clock="cpu", time_limit=120.0)
    ratios = {d: (result.ratios[i], result.spread[i]) for i, d in enumerate(found, 1)}
    return {d: ratios.get(d, (1.0, 0.0)) for d in digests}


def calibrate(place: Path) -> Path:
    """A cache that knows this machine and nothing else: what the first run on a machine leaves, without its regions."""
    model = ROOT / "corpus" / "tiny" / "deep_linear.json"
    subprocess.run(
        [sys.executable, "-m", "superopt.cli", "optimize", str(model)], check=False,
        env={**os.environ, "SUPEROPT_CACHE": str(place)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    for folder in place.iterdir():
        if folder.name not in ("calibration", "device", "machine"):
            shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
    return place


def shown(rows: Sequence[Row]) -> str:
    """The table, as Markdown."""
    head = (
        "model",
        "runs",
        "alike",
        "best ratio",
        "worst ratio",
        "BN left",
        "s median",
        "s worst",
        "CPU s",
        "MiB",
        "model MiB",
    )
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        seconds = [r.seconds for r in row.runs]
        cells = (
            row.model, len(row.runs), row.alike, f"{row.best:.3f}", f"{row.worst:.3f}",
            max(r.batch_normalizations for r in row.runs), f"{median(seconds):.1f}", f"{max(seconds):.1f}",
            f"{median(r.cpu_seconds for r in row.runs):.1f}", f"{max(r.peak_mib for r in row.runs):.0f}",
            f"{row.weights_mib:.0f}",
        )  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    seconds = sorted(r.seconds for row in rows for r in row.runs)
    later, ratios = seconds[int(0.9 * (len(seconds) - 1))], [row.worst for row in rows]
    lines += ["", f"seconds: median {median(seconds):.1f}, 90 % {later:.1f}, worst {seconds[-1]:.1f}"]
    lines.append(f"worst ratio of each: geometric mean {geometric_mean(ratios):.3f}, greatest {max(ratios):.3f}")
    over = [r.model for r in rows if max(x.peak_mib for x in r.runs) > 2.5 * r.weights_mib + 300]
    lines.append(f"over 2.5 × the model + 300 MiB: {', '.join(over) or 'none'}")
    return "\n".join(lines)


def results_shown(rows: Sequence[Row]) -> str:
    """A row for each result of each model: its digest, the runs that came back with it, and its ratio, as Markdown."""
    lines = ["| model | digest | nodes | quiet | busy | warm | ratio |", "|---" * 7 + "|"]
    for row in rows:
        for digest, count in Counter(r.digest for r in row.runs).most_common():
            mine = [r for r in row.runs if r.digest == digest]
            kinds = Counter(r.kind for r in mine)
            ratio, spread = row.ratios[digest]
            assert count == len(mine)
            cells = (
                row.model, digest[:12], mine[0].nodes, *(kinds[k] for k in ("quiet", "busy", "warm")),
                f"{ratio:.3f} ± {spread:.3f}",
            )  # fmt: skip
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    alike, runs = sum(row.alike for row in rows), sum(len(row.runs) for row in rows)
    lines += ["", f"{alike} of {runs} runs came back with their model's most frequent result"]
    return "\n".join(lines)


def runs_of(model: Path, kept: Path, known: Path | None, args: argparse.Namespace) -> Iterator[Run]:
    """Cold runs, and a warm one if wanted."""
    kept.mkdir()
    for number in range(args.runs):
        with tempfile.TemporaryDirectory(prefix="superopt-stability-") as place:
            cache = Path(place) / "cache"
            if known is not None:
                shutil.copytree(known, cache)
            busy = args.neighbour == "always" or (args.neighbour == "half" and number % 2 == 1)
            yield once(model, kept, cache, args.option, args.busy if busy else 0)
            if args.warm and number == args.runs - 1:
                yield once(model, kept, cache, args.option, 0, warm=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--neighbour", choices=("never", "half", "always"), default="half")
    parser.add_argument("--busy", type=int, default=os.cpu_count() or 1, help="cores that a neighbour keeps busy")
    parser.add_argument("--warm", action="store_true", help="one more run, with the cache that the last one left")
    parser.add_argument("--at-least", type=float, default=0.0, help="share of runs with their model's usual result")
    parser.add_argument("--calibrated", action="store_true", help="the cache knows this machine, and no model")
    parser.add_argument("--rounds", type=int, default=15, help="of the race of distinct results")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--option", action="append", default=[], help="passed to superopt optimize, as --option=--seed=1"
    )
    args = parser.parse_args()
    if missing := [str(m) for m in args.models if not m.is_file()]:
        parser.error(f"no such file: {', '.join(missing)}; models of the corpus are corpus/NAME.json")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="superopt-stability-") as place:
        known = calibrate(Path(place) / "calibrated") if args.calibrated else None
        for model in args.models:
            graph = formats.load(model)
            row = Row(model.stem, sum(w.type.nbytes or 0 for w in graph.weights) / _MIB)
            kept = Path(place) / f"results-{model.stem}"
            row.runs += runs_of(model, kept, known, args)
            digests = list(dict.fromkeys(r.digest for r in row.runs))
            improved = [d for d in digests if any(r.digest == d and r.status == "improved" for r in row.runs)]
            row.ratios = dict.fromkeys(digests, (1.0, 0.0)) | raced(graph, improved, kept, args.rounds)
            shutil.rmtree(kept)
            rows.append(row)
            print(shown(rows[-1:]).splitlines()[2], flush=True)
            if args.json is not None:
                args.json.write_text(json.dumps([asdict(r) for r in rows], indent=1))
    print("\n" + shown(rows) + "\n\n" + results_shown(rows))
    alike = sum(row.alike for row in rows) / sum(len(row.runs) for row in rows)
    raise SystemExit(int(alike < args.at_least))


if __name__ == "__main__":
    main()
