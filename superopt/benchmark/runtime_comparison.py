"""Which graph in which runtime: a model, and what we make of it for each runtime, timed in all of them side by side.

The sittings are those of the benchmark (:mod:`superopt.benchmark.optimizer_comparison`): several processes, in each of
which every pair of graph and runtime runs once a round, in an order drawn anew.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from superopt import TIME_LIMIT, formats
from superopt.benchmark.optimizer_comparison import child_job
from superopt.benchmark.row_cache import RowCache, code_digest
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import structural_hash
from superopt.ir.temporary_folders import TemporaryFolder
from superopt.pipeline.options import Progress, quiet
from superopt.runtime.paired_benchmark import median_error, result_of
from superopt.runtime.protocol import runtime_named

__all__ = ["INPUT", "RuntimeComparisonOptions", "compare_runtimes"]

INPUT = "input"  # the graph that was given; ours are named by the runtime that they are made for
_SITTINGS = 3
_GRACE, _LOADING = 30.0, 120.0  # seconds that an optimisation, or a sitting, may take beyond what it was told


@dataclass(frozen=True)
class RuntimeComparisonOptions:
    """Settings.

    Attributes:
        runtimes: by name; the first is what the others are compared with.
        time_limit: seconds that we may take for a model and a runtime.
        race_limit: seconds that the race of a model may take; ``rounds``: at most so many, in several processes.
        keep: folder of the rows that are done; ``None`` keeps none.
        total_limit: seconds after which no further model is begun.
    """

    runtimes: tuple[str, ...]
    time_limit: float = TIME_LIMIT
    race_limit: float = 20.0
    rounds: int = 60
    keep: Path | None = None
    total_limit: float = float("inf")


def compare_runtimes(
    models: Sequence[Path], options: RuntimeComparisonOptions, *, progress: Progress = quiet
) -> dict[str, Any]:  # fmt: skip
    """Optimise each model for each runtime and time all of it in all of them.

    Returns:
        JSON data, ``{"format": "superopt.runtimes", "version": 1, …}``. A row has ``pairs`` (graph, runtime, median
        milliseconds, ratio to the input in the first runtime and its interquartile range), ``ours`` (for each runtime
        our graph over the input there), and ``best``, the pair that took least.

    Raises:
        UsageError: there is no runtime of a name. BackendUnavailable: it is not installed.
    """
    versions = {name: runtime_named(name).version for name in options.runtimes}
    settings = [code_digest(), versions, options.time_limit, options.race_limit, options.rounds]
    kept = RowCache(options.keep, hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16])
    rows, left_out = kept.rows(
        models, lambda path: _fresh(path, options), seconds=options.total_limit, progress=progress
    )
    return {
        "format": "superopt.runtimes", "version": 1, "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "runtimes": versions, "rows": rows, "left_out": left_out,
    }  # fmt: skip


def _fresh(path: Path, options: RuntimeComparisonOptions) -> dict[str, Any]:
    with TemporaryFolder("bench") as folder:
        try:
            original = formats.load(path)
            formats.save(original, folder / "input.onnx")
        except SuperoptError as error:
            return {"error": str(error)}
        return _row(folder, structural_hash(original), options)


def _row(folder: Path, digest: str, options: RuntimeComparisonOptions) -> dict[str, Any]:
    source = folder / "input.onnx"
    graphs: dict[str, Path] = {INPUT: source}
    same = {digest: INPUT}  # the graph that stands for all that are equal to it
    made: dict[str, dict[str, Any]] = {}
    stands: dict[str, str] = {}
    for name in options.runtimes:
        target = folder / f"{name}.onnx"
        spec = {"source": str(source), "target": str(target), "time_limit": options.time_limit, "runtime": name}
        made[name] = child_job(folder, "ours", spec, 2 * options.time_limit + _GRACE)
        if made[name]["status"] == "ok":
            stands[name] = same.setdefault(made[name]["digest"], name)
            graphs[stands[name]] = source if stands[name] == INPUT else folder / f"{stands[name]}.onnx"
    pairs = [(graph, runtime) for runtime in options.runtimes for graph in graphs]
    raced = _raced(folder, [(str(graphs[graph]), runtime) for graph, runtime in pairs], options)
    if "samples" not in raced:
        return {"made": made, "error": f"the race failed: {raced.get('reason', '')}"}
    return {"made": made, **_figures(raced, pairs, stands)}


def _raced(folder: Path, pairs: Sequence[tuple[str, str]], options: RuntimeComparisonOptions) -> dict[str, Any]:
    """Rows of milliseconds of all sittings; or why there are none."""
    share = options.race_limit / _SITTINGS
    samples: list[tuple[float, ...]] = []
    found: dict[str, Any] = {}
    runs = 0
    for seed in range(_SITTINGS):
        spec = {"source": str(folder / "input.onnx"), "pairs": pairs, "seed": seed, "time_limit": share,
                "rounds": -(-options.rounds // _SITTINGS)}  # fmt: skip
        found = child_job(folder, "runtimes", spec, 10 * share + _LOADING)
        if "samples" not in found:
            return found
        samples += map(tuple, found["samples"])
        runs += found["runs"]
    return {"samples": samples, "runs": runs, "circumstances": found["circumstances"]}


def _figures(
    raced: Mapping[str, Any], pairs: Sequence[tuple[str, str]], stands: Mapping[str, str]
) -> dict[str, Any]:  # fmt: skip
    result = result_of(raced["samples"], raced["runs"], raced["circumstances"])
    table = [
        {"graph": graph, "runtime": runtime, "ms": ms, "ratio": ratio, "spread": spread}
        for (graph, runtime), ms, ratio, spread in zip(pairs, result.ms, result.ratios, result.spread, strict=True)
    ]
    ours = {}
    for runtime, graph in stands.items():
        before, after = pairs.index((INPUT, runtime)), pairs.index((graph, runtime))
        ratios = np.array([row[after] / row[before] for row in result.samples])
        low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
        ours[runtime] = {
            "graph": graph, "ratio": float(middle), "spread": float(high - low),
            "error": median_error(result.rounds) * float(high - low),
        }  # fmt: skip
    best = table[min(range(len(table)), key=lambda place: result.ratios[place])]
    return {"pairs": table, "ours": ours, "best": best, "rounds": result.rounds, "circumstances": result.circumstances}
