"""Every model the ``onnx`` package ships, through our formats (and the optimiser), under ONNX Runtime.

    python tests/conformance.py [--optimize] [--only TEXT] [--table lab/results/conformance.md]

Cases: the models under onnx/backend/test/data (simple, pytorch-*, and the light zoo models that ``real`` names), and
the node models that onnx.backend.test.case makes. Each is converted ONNX → JSON → ONNX and must then give the same
bits under ONNX Runtime (NaN equals NaN) on its stored inputs, or on random ones where it has none. Children run
the cases in order; when one dies (a crash inside ONNX Runtime), that is recorded and the next child goes on after it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

from superopt.cost.device_profile import write_profile
from superopt.formats import load, save
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import structural_hash

PASSED, CARRIED, REFUSED, FAILED, CRASHED = "passed", "carried through", "refused", "FAILED", "CRASHED"
RUNTIME_IR_VERSION = 13  # the newest that ONNX Runtime reads; onnx's own cases are written with its newest
DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
TIME_LIMIT = 3.0  # seconds that optimising one model may take
TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-3, "float64": 1e-6}


@dataclass(frozen=True)
class Case:
    """A model and, where it comes with them, its inputs."""

    name: str
    family: str
    model: Callable[[], onnx.ModelProto]
    inputs: Callable[[onnx.ModelProto], list[Any] | None]


def cases() -> Iterator[Case]:
    """All cases in a fixed order."""
    for family in ("simple", "pytorch-converted", "pytorch-operator"):
        for folder in sorted((DATA / family).glob("*/model.onnx")):
            yield _file_case(folder.parent.name, family, folder, folder.parent / "test_data_set_0")
    for path in sorted((DATA / "light").glob("*.onnx")):
        yield _file_case(path.stem, "light", path, path.parent / "none")
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = sorted(collect_testcases(None), key=lambda c: str(c.name))
    for case in found:
        inputs = list(case.data_sets[0][0]) if case.data_sets else None
        yield Case(case.name, "node", lambda m=case.model: m, lambda _, i=inputs: i)  # type: ignore[misc]


def _file_case(name: str, family: str, path: Path, stored: Path) -> Case:
    def inputs(model: onnx.ModelProto) -> list[Any] | None:
        files = sorted(stored.glob("input_*.pb"), key=lambda p: int(p.stem.split("_")[1]))
        weights = {t.name for t in model.graph.initializer}
        free = [v for v in model.graph.input if v.name not in weights]
        return [_stored(f.read_bytes(), v.type) for f, v in zip(files, free, strict=False)] if files else None

    return Case(name, family, lambda: onnx.load(path), inputs)


def _stored(data: bytes, kind: onnx.TypeProto) -> Any:
    match kind.WhichOneof("value"):
        case "sequence_type":
            return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
        case "optional_type":
            return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def session(path: Path) -> onnxruntime.InferenceSession:
    """ONNX Runtime on one thread of the CPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def feeds_of(runner: onnxruntime.InferenceSession, stored: list[Any] | None) -> dict[str, Any]:
    """Values for the inputs by name: the stored ones, else random numbers, sizes that are not stated taken as 1."""
    wanted = runner.get_inputs()
    if stored is not None:
        pairs = zip(wanted, stored, strict=False)
        return {w.name: _value(v) for w, v in pairs}
    generator = np.random.default_rng(0)
    made = {}
    for w in wanted:
        shape = [d if isinstance(d, int) else 1 for d in w.shape]
        dtype = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64}[w.type]
        made[w.name] = generator.standard_normal(shape).astype(dtype)
    return made


def _value(stored: Any) -> Any:
    """A stored input as ONNX Runtime takes it: arrays for tensors, scalars too."""
    if isinstance(stored, onnx.TensorProto):
        return numpy_helper.to_array(stored)
    return np.asarray(stored) if isinstance(stored, np.generic | float | int) else stored


def difference(a: Any, b: Any, tolerance: Callable[[np.dtype], float]) -> str:
    """How two outputs differ, or "" where they agree; NaN equals NaN."""
    if isinstance(a, list):
        if len(a) != len(b):
            return f"{len(a)} elements became {len(b)}"
        return next((d for x, y in zip(a, b, strict=True) if (d := difference(x, y, tolerance))), "")
    if isinstance(a, dict) or a is None or b is None:
        return "" if a == b else "values differ"
    x, y = np.asarray(a), np.asarray(b)
    if x.dtype != y.dtype or x.shape != y.shape:
        return f"{x.dtype}{list(x.shape)} became {y.dtype}{list(y.shape)}"
    bound = tolerance(x.dtype)
    if bound == 0 or x.dtype.kind not in "fcV":
        same = bool((x == y).all()) if x.dtype == object else x.tobytes() == y.tobytes()
        if same or (x.dtype.kind in "fc" and np.array_equal(x, y, equal_nan=True)):
            return ""
        return "values differ"
    wide = (x.astype(np.float64), y.astype(np.float64))
    scale = float(np.max(np.abs(wide[0][np.isfinite(wide[0])]), initial=0.0))
    if np.allclose(*wide, rtol=bound, atol=bound * max(scale, 1e-3), equal_nan=True):
        return ""
    return f"values differ by up to {np.nanmax(np.abs(wide[0] - wide[1])):.3g} of {scale:.3g}"


def compare(first: Path, second: Path, stored: list[Any] | None, exact: bool) -> tuple[str, str]:
    """(status, reason) of running both models on the same inputs."""
    try:
        runner = session(first)
        feeds = feeds_of(runner, stored)
        expected = runner.run(None, feeds)
    except Exception as error:  # whatever ONNX Runtime or its bindings raise about the original is a fact to report
        return CARRIED, f"ONNX Runtime does not run the original: {_short(error)}"
    try:
        found = session(second).run(None, feeds)
    except Exception as error:
        return FAILED, f"ONNX Runtime runs the original, not the result: {_short(error)}"

    def tolerance(dtype: np.dtype) -> float:
        return 0.0 if exact else TOLERANCE.get(str(dtype), 1e-1 if dtype.kind == "V" else 0.0)

    why = next((d for a, b in zip(expected, found, strict=True) if (d := difference(a, b, tolerance))), "")
    if not why:
        return PASSED, ""
    again = runner.run(None, feeds)
    if any(difference(a, b, lambda _: 0.0) for a, b in zip(expected, again, strict=True)):
        return CARRIED, "the original gives other values each time it is run"
    return FAILED, why


def check(case: Case, folder: Path, optimize: bool) -> tuple[str, str]:
    """(status, reason) of one case."""
    model = case.model()
    if model.ir_version > RUNTIME_IR_VERSION:  # nothing that these models use is newer
        model.ir_version = RUNTIME_IR_VERSION
    original, text, result = folder / "original.onnx", folder / "model.json", folder / "result.onnx"
    original.write_bytes(model.SerializeToString())
    stored = case.inputs(model)
    try:
        graph = load(original)
        save(graph, text)
        again = load(text)
        save(again, result)
        if not structural_hash(graph) == structural_hash(again) == structural_hash(load(result)):
            return FAILED, "the graph is not the same after ONNX → JSON → ONNX"
    except SuperoptError as error:
        return REFUSED, _short(error)
    status, reason = compare(original, result, stored, exact=True)
    if optimize and status not in (FAILED, REFUSED):
        return _optimised(graph, original, folder / "optimised.onnx", stored, (status, reason))
    return status, reason


def _optimised(
    graph: Any, original: Path, result: Path, stored: list[Any] | None, before: tuple[str, str]
) -> tuple[str, str]:
    from superopt.pipeline import optimize

    try:
        found = optimize(graph, target=f"profile:{_roofline()}", time_limit=TIME_LIMIT)
        save(found.graph, result)
    except SuperoptError as error:
        return FAILED, f"optimize: {_short(error)}"
    if found.report.check.verdict == "failed":
        return FAILED, f"optimize made another model, and its own check caught it: {found.report.check.reason}"
    if before[0] != PASSED:
        return before
    status, reason = compare(original, result, stored, exact=False)
    return status, f"optimize: {reason}" if status == FAILED else reason


@lru_cache(maxsize=1)
def _roofline() -> Path:
    """A recorded profile without a record: every cost is a roofline, so nothing is measured and all is repeatable."""
    path = Path(tempfile.mkdtemp(prefix="superopt-conformance-")) / "roofline.jsonl"
    write_profile(path, {"device": "a roofline", "threads": 1, "dispatch_ns": 200.0}, ())
    return path


def _short(error: BaseException) -> str:
    lines = [line for line in str(error).replace("|", "/").splitlines() if line.strip()] or [type(error).__name__]
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", lines[0])
    text = re.sub(r"Load model from \S+ failed:", "", text)
    text = re.sub(r"/onnxruntime_src/.*\) (?=[A-Z\[])", "", text)
    return re.sub(r"\S*/tmp\w+/", "", text)[:160]


def child(start: int, step: int, optimize: bool, only: str) -> None:
    """Run every ``step``-th case from ``start`` on; one JSON line before and one after each."""
    for index, case in enumerate(cases()):
        if index < start or (index - start) % step or only not in case.name:
            continue
        print(json.dumps({"index": index, "family": case.family, "name": case.name}), flush=True)
        with tempfile.TemporaryDirectory() as folder:
            try:
                status, reason = check(case, Path(folder), optimize)
            except Exception as error:  # a bug of ours in one case must not hide the others
                status, reason = FAILED, f"{type(error).__name__}: {_short(error)}"
        print(json.dumps({"status": status, "reason": reason}), flush=True)


def run(optimize: bool, only: str, jobs: int) -> list[dict[str, Any]]:
    """All results in the cases' order, from as many children as it takes, ``jobs`` of them at a time."""
    results: list[dict[str, Any]] = []
    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(_share, first, jobs, optimize, only, results) for first in range(jobs)]:
            done.result()
    return sorted(results, key=lambda r: int(r["index"]))


def _share(start: int, jobs: int, optimize: bool, only: str, results: list[dict[str, Any]]) -> None:
    """Every ``jobs``-th case from ``start`` on; a new child goes on after the case in which one died."""
    while True:
        options = ["--child", str(start), "--jobs", str(jobs), "--only", only, *(["--optimize"] if optimize else [])]
        environment = {**os.environ, "ALLOW_RELEASED_ONNX_OPSET_ONLY": "0"}  # let ONNX Runtime try the newest opsets
        with subprocess.Popen(
            [sys.executable, __file__, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=environment,
        ) as process:  # fmt: skip
            open_case: dict[str, Any] | None = None
            for line in process.stdout or ():
                try:
                    entry = json.loads(line)
                except json.JSONDecodeError:
                    continue  # something that a library printed
                if "index" in entry:
                    open_case = entry
                elif open_case is not None:
                    _done(results, {**open_case, **entry})
                    open_case = None
        if open_case is None:
            if process.returncode:
                raise SystemExit(f"a child failed outside any case: exit {process.returncode}")
            return
        reason = f"the process died with status {process.returncode}"
        _done(results, {**open_case, "status": CRASHED, "reason": reason})
        start = int(open_case["index"]) + jobs


def _done(results: list[dict[str, Any]], result: dict[str, Any]) -> None:
    results.append(result)
    if result["status"] in (FAILED, CRASHED):
        print(f"{result['status']} {result['name']}: {result['reason']}", file=sys.stderr, flush=True)
    if len(results) % 100 == 0:
        counts = dict(Counter(r["status"] for r in results))
        print(f"{len(results)} cases: {counts}", file=sys.stderr, flush=True)


_ROOFLINE = [
    f"The optimiser had {TIME_LIMIT:g} s a model and costs from a roofline (a recorded profile without a record), so",
    "nothing was measured and the table can be made again anywhere; every rewrite was still checked against the",
    "float64 reference.",
    "",
]


def table(results: Sequence[dict[str, str]], optimize: bool) -> str:
    """The results as Markdown: counts by family, and each reason with the cases that gave it."""
    families = list(dict.fromkeys(r["family"] for r in results))
    statuses = [PASSED, CARRIED, REFUSED, FAILED, CRASHED]
    what = "ONNX → JSON → ONNX → optimize" if optimize else "ONNX → JSON → ONNX"
    slack = " (after optimize: within tolerance)" if optimize else ""
    lines = [
        "# Conformance", "",
        f"Models of `onnx` {onnx.__version__}'s backend tests: {what}, outputs under ONNX Runtime",
        f"{onnxruntime.__version__} the same bits as the original's{slack}.",
        "",
        "*passed*: same outputs. *carried through*: converted and read back as the same graph, but ONNX Runtime does",
        "not run the original, or not deterministically. *refused*: superopt does not accept the model.", "",
        *(_ROOFLINE if optimize else []),
        "Made by `make conformance` (about 0.3 s of CPU time a model; two processes).", "",
        "| models | " + " | ".join(statuses) + " | all |", "|---" * (len(statuses) + 2) + "|",
    ]  # fmt: skip
    for family in [*families, "all"]:
        count = Counter(r["status"] for r in results if family in ("all", r["family"]))
        lines.append(f"| {family} | " + " | ".join(str(count[s]) for s in statuses) + f" | {count.total()} |")
    for status in statuses[1:]:
        reasons: dict[str, list[str]] = {}
        for r in results:
            if r["status"] == status:
                reasons.setdefault(r["reason"], []).append(r["name"])
        if reasons:
            lines += ["", f"## {status}", "", "| reason | models |", "|---|---|"]
            for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
                shown = ", ".join(names[:4]) + (f" … ({len(names)})" if len(names) > 4 else "")
                lines.append(f"| {reason} | {shown} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run, print the table's head, write the table; status 1 where a case failed or crashed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimize", action="store_true", help="run the optimiser too")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--table", type=Path, help="where the Markdown table goes")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        child(arguments.child, arguments.jobs, arguments.optimize, arguments.only)
        return 0
    results = run(arguments.optimize, arguments.only, arguments.jobs)
    text = table(results, arguments.optimize)
    if arguments.table or not arguments.only:
        target = arguments.table or Path(__file__).parents[1] / "lab" / "results" / "conformance.md"
        target.write_text(text)
    print(text)
    return int(any(r["status"] in (FAILED, CRASHED) for r in results))


if __name__ == "__main__":
    sys.exit(main())
