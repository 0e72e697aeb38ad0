"""Does the same model come back the same, and how soon? ``python tests/stability.py MODELS --runs 20``.

Each run is the command a user types, in a process of its own, with an empty cache (``--calibrated``: one that knows
this machine and no model). Every other run has a busy neighbour, a process that multiplies matrices larger than the
caches (``--neighbour never|half|always``). Distinct results of a model are then raced against its input in one race,
so that ratios compare; a result found twenty times is timed once. Seconds are from command to file.
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
from superopt.pipeline.racing import runnable  # noqa: E402
from superopt.runtime.race import race  # noqa: E402
from superopt.verifier.differential import make_inputs  # noqa: E402

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
    said: str = ""


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
def neighbour(busy: bool) -> Iterator[None]:
    """A process that keeps a core and the memory bus busy, if wanted."""
    if not busy:
        yield
        return
    quiet = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", _NEIGHBOUR], env=quiet)
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


def once(model: Path, kept: Path, calibrated: Path | None, options: Sequence[str], busy: bool) -> Run:
    """Optimise a model as a user would; the written model is kept under its digest."""
    with tempfile.TemporaryDirectory(prefix="superopt-stability-") as place:
        folder = Path(place)
        cache, out, figures = folder / "cache", folder / "out.onnx", folder / "report.json"
        if calibrated is not None:
            shutil.copytree(calibrated, cache)
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
            seconds, used.ru_utime + used.ru_stime, peak[0] / 1024, busy, "; ".join(found["notes"]),
        )  # fmt: skip


def raced(graph: Graph, digests: Sequence[str], kept: Path, rounds: int) -> dict[str, tuple[float, float]]:
    """Ratio to the input, and its spread, of each distinct result; all in one race."""
    found = [d for d in digests if (kept / f"{d}.onnx").is_file()]
    feeds = make_inputs(graph, 0, "normal", sizes={})
    with tempfile.TemporaryDirectory(prefix="superopt-stability-") as place:
        models = [runnable(graph, Path(place) / "input.onnx"), *(kept / f"{d}.onnx" for d in found)]
        result = race(models, feeds, rounds=rounds, burst=3, threads=1, clock="cpu", time_limit=120.0)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--neighbour", choices=("never", "half", "always"), default="half")
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
            kept = Path(place) / model.stem
            kept.mkdir()
            for number in range(args.runs):
                busy = args.neighbour == "always" or (args.neighbour == "half" and number % 2 == 1)
                row.runs.append(once(model, kept, known, args.option, busy))
            digests = list(dict.fromkeys(r.digest for r in row.runs))
            improved = [d for d in digests if any(r.digest == d and r.status == "improved" for r in row.runs)]
            row.ratios = dict.fromkeys(digests, (1.0, 0.0)) | raced(graph, improved, kept, args.rounds)
            shutil.rmtree(kept)
            rows.append(row)
            print(shown(rows[-1:]).splitlines()[2], flush=True)
            if args.json is not None:
                args.json.write_text(json.dumps([asdict(r) for r in rows], indent=1))
    print("\n" + shown(rows))


if __name__ == "__main__":
    main()
