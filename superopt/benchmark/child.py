"""What the benchmark does in processes of their own: optimise, judge outputs, race. ``python -m … JOB SPEC.json``.

Each job reads its specification, writes its answer as JSON beside it, and may crash without taking the benchmark down.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from superopt import formats
from superopt.benchmark.inductor import MARK, compiled
from superopt.ir.errors import InvalidModel, SuperoptError, Unsupported, UsageError
from superopt.ir.graph import Graph
from superopt.ir.types import DType, TensorType
from superopt.pipeline.optimization import optimize
from superopt.runtime import reference
from superopt.runtime.onnx_runtime import bind, make_session
from superopt.runtime.onnx_runtime import run as run_session
from superopt.runtime.paired_benchmark import SETTLED, circumstances, time_bound
from superopt.runtime.protocol import InputBoundModel, runtime_named
from superopt.verifier.check.differential import make_inputs
from superopt.verifier.check.input_generation import LEVELS
from superopt.verifier.check.tolerance import OutputComparison, agrees_with_reals, compare

__all__ = ["main"]

_TRIALS = ("normal", "edge")  # inputs on which results are judged
_FEWEST = 3  # rounds that say anything
_PATIENCE = 2.0  # a slow model's first rounds may take so many times the time limit more
_SLOW = 20.0  # ms: a run that takes longer is not repeated within a round
_REFERENCE_WORTH = 6.0  # seconds that a second trial's reference may take

Arrays = Mapping[str, np.ndarray[Any, Any]]


def _ours(spec: Mapping[str, Any]) -> dict[str, Any]:
    """superopt's own defaults, but for the time limit, and for a runtime that is asked for."""
    wall, used = time.monotonic(), _cpu()
    more = {"runtime": spec["runtime"]} if "runtime" in spec else {}
    result = optimize(Path(spec["source"]), time_limit=spec["time_limit"], **more)
    seconds, cpu = time.monotonic() - wall, _cpu() - used
    formats.save(result.graph, Path(spec["target"]), force=True)
    found = result.report
    return {
        "seconds": seconds, "cpu_seconds": cpu, "status": found.status, "check": found.check.verdict,
        "rules": {a.rule: a.count for a in found.rules_applied}, "notes": list(found.notes),
        "nodes": [found.nodes.before, found.nodes.after], "digest": found.result.digest if found.result else "",
        "check_reason": found.check.reason,
        "modelled": found.cost.after_us / found.cost.before_us if found.cost.before_us else 1.0,
        "predicted_us": [found.cost.before_us, found.cost.after_us],
        "failures": [f.reason for f in found.check_failures],
    }  # fmt: skip


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _inductor(spec: Mapping[str, Any]) -> dict[str, Any]:
    """How long inductor takes to compile the model, which is what its optimiser is; its outputs are kept to be judged.

    It leaves no model that another process could run, and to compile it there once more takes as long again.
    """
    original = formats.load(Path(spec["source"]))
    trials = [_run_original(original, Path(spec["source"]), i, kind)[0] for i, kind in enumerate(_TRIALS)]
    wall, used = time.monotonic(), _cpu()
    step = compiled(Path(spec["source"]), trials[0])
    seconds, cpu = time.monotonic() - wall, _cpu() - used
    for trial, feeds in enumerate(trials):
        np.savez(_kept(spec["target"], trial), *step(feeds))
    return {"seconds": seconds, "cpu_seconds": cpu}


def _kept(path: str, trial: int) -> Path:
    """Where a candidate keeps the outputs of a trial that cannot be run in the judge's process."""
    return Path(path).with_suffix(f".{trial}.npz")


def _judge(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Whether each candidate computes what the original does, judged by the float64 reference."""
    original = formats.load(Path(spec["source"]))
    answers: dict[str, Any] = {}
    errors = dict.fromkeys(spec["candidates"], 0.0)
    start = time.monotonic()
    for trial, kind in enumerate(_TRIALS):
        if trial and time.monotonic() - start > _REFERENCE_WORTH:
            break
        feeds, old = _run_original(original, Path(spec["source"]), trial, kind)
        try:
            exact: Arrays | None = reference.run(original, feeds)
        except SuperoptError:
            exact = None
        for name, path in spec["candidates"].items():
            if name not in answers:
                error, why = _difference(original, path, trial, feeds, old, exact)
                errors[name] = max(errors[name], error)
                if why:
                    answers[name] = {"status": "wrong", "reason": why}
    return {
        name: {**answers.get(name, {"status": "ok", "reason": ""}), "max_rel_error": errors[name]}
        for name in spec["candidates"]
    }  # fmt: skip


def _run_original(graph: Graph, path: Path, seed: int, kind: str) -> tuple[Arrays, Arrays]:
    """Inputs that the original accepts, and what it makes of them."""
    session = make_session(path)
    for level in range(LEVELS):
        feeds = make_inputs(graph, seed, kind, {}, level=level)
        try:
            return feeds, run_session(session, feeds, time_limit=60.0)
        except (InvalidModel, UsageError):
            continue
    raise Unsupported("ONNX Runtime refuses every input that was tried")


def _difference(
    original: Graph, path: str, trial: int, feeds: Arrays, old: Arrays, exact: Arrays | None
) -> tuple[float, str]:
    """The largest relative error of a candidate's outputs, and what is wrong with them, if anything."""
    try:
        kept = _kept(path, trial)
        new = _read(original, kept) if kept.is_file() else _outputs(path, feeds)
    except SuperoptError as error:
        return float("inf"), f"it does not run: {error.what[:200]}"
    worst = 0.0
    for value in original.outputs:
        if value.name not in new:
            return float("inf"), f"it has no output {value.name!r}"
        dtype = value.type.dtype if isinstance(value.type, TensorType) else None
        if new[value.name].dtype != old[value.name].dtype:
            return float("inf"), f"output {value.name!r} was {old[value.name].dtype} and is {new[value.name].dtype}"
        found = _compared(old[value.name], new[value.name], None if exact is None else exact[value.name], dtype)
        worst = max(worst, found.relative)
        if found.problem is not None:
            return worst, f"output {value.name!r}: {found.problem}"
    return worst, ""


def _compared(old: np.ndarray, new: np.ndarray, exact: np.ndarray | None, dtype: DType | None) -> OutputComparison:
    """A peer's output by the reals, at four times the original's error; by the original's where there are none."""
    if dtype is None or not dtype.is_float or new.shape != old.shape:
        return compare(old, new, dtype)
    if exact is None:
        return agrees_with_reals(None, new, old, dtype)
    lost = np.isfinite(old.astype(np.float64)) & ~np.isfinite(new.astype(np.float64))
    if lost.any():
        return OutputComparison(np.inf, np.inf, differs=True, problem="it is not finite where the original's is")
    return agrees_with_reals(old, new, exact, dtype)


def _read(original: Graph, kept: Path) -> Arrays:
    """Outputs in the model's order, as they were kept."""
    with np.load(kept) as found:
        return {v.name: found[f"arr_{i}"] for i, v in enumerate(original.outputs) if f"arr_{i}" in found}


def _outputs(path: str, feeds: Arrays) -> Arrays:
    """What a candidate makes of the original's inputs."""
    session = make_session(Path(path))
    inputs = [i.name for i in session.get_inputs()]
    unknown = [n for n in inputs if n not in feeds]
    if unknown:
        raise InvalidModel(f"it has an input {unknown[0]!r} that the model has not")
    return run_session(session, {n: feeds[n] for n in inputs}, time_limit=60.0)


def _bound(path: str, feeds: Arrays) -> InputBoundModel:
    """A candidate ready to run on its inputs."""
    session = make_session(Path(path.removeprefix(MARK)), threads=1)
    bound = bind(session, {i.name: feeds[i.name] for i in session.get_inputs()})
    if not path.startswith(MARK):
        return bound
    step = compiled(Path(path.removeprefix(MARK)), feeds)
    return replace(bound, step=partial(step, feeds))


def _race(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Times of all candidates, interleaved, in one sitting: a row of milliseconds, in their order, for every round.

    The sessions are made in an order drawn by the sitting's seed: where in memory the weights of a session lie takes or
    gives some percent, and it depends on what was there before.
    """
    original = formats.load(Path(spec["source"]))
    paths: dict[str, str] = spec["candidates"]
    feeds, _ = _run_original(original, Path(spec["source"]), 0, "normal")
    names = list(paths)
    order = np.random.default_rng(spec["seed"]).permutation(names).tolist()
    made = {name: _bound(paths[name], feeds) for name in order}
    bound = [made[name] for name in names]
    return _sitting(bound, spec)


def _sitting(bound: Sequence[InputBoundModel], spec: Mapping[str, Any]) -> dict[str, Any]:
    """What is bound, raced; with rounds enough to say anything, if they take no more than patience allows."""
    burst = 1 if _once(bound[0].step) > _SLOW else 3
    run = partial(time_bound, bound, burst=burst, threads=1, clock="cpu", shortest=SETTLED)
    found = run(rounds=spec["rounds"], time_limit=spec["time_limit"], seed=spec["seed"])
    samples, runs = found.samples, found.runs
    if len(samples) < _FEWEST:
        more = run(rounds=_FEWEST - len(samples), time_limit=_PATIENCE * spec["time_limit"])
        samples, runs = samples + more.samples, runs + more.runs
    return {"samples": samples, "runs": runs, "circumstances": circumstances(1, "cpu")}


def _runtimes(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Times of (graph, runtime) pairs, interleaved, in one sitting: as :func:`_race`, over several runtimes."""
    original = formats.load(Path(spec["source"]))
    feeds, _ = _run_original(original, Path(spec["source"]), 0, "normal")
    pairs: list[tuple[str, str]] = [(path, name) for path, name in spec["pairs"]]
    made: dict[int, InputBoundModel] = {}
    for place in np.random.default_rng(spec["seed"]).permutation(len(pairs)).tolist():
        path, name = pairs[place]
        made[place] = runtime_named(name).load(Path(path), threads=1).bound(feeds)
    return _sitting([made[place] for place in range(len(pairs))], spec)


def _once(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return 1e3 * (time.perf_counter() - start)


_JOBS = {"ours": _ours, "inductor": _inductor, "judge": _judge, "race": _race, "runtimes": _runtimes}


def main(job: str, specification: str) -> None:
    """Do a job; an expected failure is an answer too."""
    path = Path(specification)
    try:
        answer = _JOBS[job](json.loads(path.read_text()))
    except SuperoptError as error:
        answer = {"error": str(error)}
    path.with_suffix(".answer.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
