"""The law of invalid nodes: what superopt refuses, ONNX Runtime refuses too; and of contradictory shapes, all.

Every sample of every record is mutated in one place: a size, a rank, an element type, an attribute, a known list of
axes or sizes. ONNX Runtime (optimisations off) judges in a process of its own, because some of these models end it.
``SUPEROPT_MUTANTS=1`` takes every mutant (16,000, half a minute) instead of every seventh.
"""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from superopt.formats import to_onnx_bytes
from superopt.formats.shape_contradictions import refuse_contradictions
from superopt.ir.errors import InvalidModel

STEP = int(os.environ.get("SUPEROPT_MUTANTS", "7"))
DTYPES = (np.float32, np.float64, np.int64, np.int32, np.bool_, np.float16, np.uint8)

# Operators with shapes that ONNX Runtime refuses and superopt reads or carries: none is a contradiction of sizes.
LIBERAL = {
    **dict.fromkeys(("Max", "Min", "Sum", "Mean"), "broadcasting below opset 8, which is read as later opsets do it"),
    **dict.fromkeys(("Gather", "GatherElements"), "indices that are fed, of which only the call can tell"),
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"), "an input without elements"),
    "Dropout": "a ratio or training mode that is not a scalar",
    "Range": "bounds that are not scalars",
    "Resize": "a scale that is no simple fraction, or of an axis without elements",
    "LRN": "another rank than 4, which only ONNX Runtime's kernel asks for",
    "Einsum": "a size 1 that other runtimes broadcast",
    "Split": "more outputs than elements",
    "Slice": "an empty list of steps",
    "Pad": "an empty list of axes",
    "Attention": "no heads, or a mask of rank 1",
}

JUDGE = """
import pickle, sys
import onnxruntime as ort
models, first = pickle.load(open(sys.argv[1], "rb")), int(sys.argv[2])
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
options.intra_op_num_threads, options.log_severity_level = 1, 4
for data, feeds in models[first:]:
    try:
        session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        session.run(None, feeds)
        said = "accepts"
    except ort.capi.onnxruntime_pybind11_state.NotImplemented:
        said = "no kernel"
    except Exception as error:
        said = "refuses " + str(error).replace(chr(10), " ")[-160:]
    print(said, flush=True)
"""


def resized(sample: Any) -> Iterator[tuple[str, Any]]:
    """One input larger, smaller, of another rank, or turned."""
    for place, array in enumerate(sample.arrays):
        if array is None:
            continue
        others = {"unsq": array[None], "unsqlast": array[..., None]}
        for axis in range(array.ndim):
            if array.shape[axis]:
                others[f"axis{axis}+1"] = np.concatenate([array, np.take(array, [0], axis=axis)], axis=axis)
                others[f"axis{axis}-1"] = np.take(array, range(array.shape[axis] - 1), axis=axis)
        if array.ndim and array.shape[0]:
            others["drop"] = np.ascontiguousarray(array[0])
        if array.ndim > 1:
            others["T"] = np.ascontiguousarray(array.T)
        for what, other in others.items():
            yield f"in{place}.{what}", with_array(sample, place, other)


def retyped(sample: Any) -> Iterator[tuple[str, Any]]:
    """One input of another element type."""
    for place, array in enumerate(sample.arrays):
        for dtype in DTYPES if array is not None else ():
            if array.dtype != dtype:
                with np.errstate(over="ignore", invalid="ignore"):
                    other = array.astype(dtype)
                yield f"in{place}.{np.dtype(dtype).name}", with_array(sample, place, other)


def renumbered(sample: Any) -> Iterator[tuple[str, Any]]:
    """One known axis or size, or one integer of an attribute, another number; a list longer or shorter."""
    for place, array in enumerate(sample.arrays):
        if array is None or place < sample.data or array.dtype != np.int64 or array.size > 8:
            continue
        for at in range(array.size):
            for by in (1, -1, 7, -7):
                other = array.copy()
                with np.errstate(over="ignore"):
                    other.reshape(-1)[at] += by
                yield f"in{place}[{at}]{by:+d}", with_array(sample, place, other)
    for name, value in sample.attributes.items():
        for what, other in numbers(value):
            yield f"{name}{what}", replace(sample, attributes={**sample.attributes, name: other})


def numbers(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, int):
        yield from ((f"{by:+d}", value + by) for by in (1, -1, 7, -7))
    elif isinstance(value, tuple) and value and all(isinstance(v, int) for v in value):
        for at in range(len(value)):
            yield from ((f"[{at}]{by:+d}", (*value[:at], value[at] + by, *value[at + 1 :])) for by in (1, -1, 7, -7))
        yield ".drop", value[:-1]
        yield ".more", (*value, value[-1])


def with_array(sample: Any, place: int, array: np.ndarray) -> Any:
    return replace(sample, arrays=(*sample.arrays[:place], array, *sample.arrays[place + 1 :]))


def mutants(samples: list[Any]) -> list[tuple[str, Any]]:
    """Every sample itself, and every STEP-th mutant of all."""
    found = [(what, m) for s in samples for kind in (resized, retyped, renumbered) for what, m in kind(s)]
    return [("itself", s) for s in samples] + found[::STEP]


def judged(cases: list[tuple[str, Any]], folder: Path) -> list[str]:
    """What ONNX Runtime says to each; "ends the process" is a refusal too."""
    file = folder / "models.pkl"
    file.write_bytes(pickle.dumps([(to_onnx_bytes(m.graph()), m.feeds) for _, m in cases]))
    said: list[str] = []
    while len(said) < len(cases):
        done = subprocess.run(
            [sys.executable, "-c", JUDGE, str(file), str(len(said))], capture_output=True, text=True, check=False
        )
        said += done.stdout.splitlines()
        if done.returncode:
            said.append("refuses: ends the process")
    return said


def refusal(sample: Any) -> str:
    try:
        refuse_contradictions(sample.graph())
    except InvalidModel as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def verdicts(samples: list[Any], tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Any, str, str]]:
    """(mutation, mutant, what ONNX Runtime says, why superopt refuses)."""
    cases = mutants(samples)
    said = judged(cases, tmp_path_factory.mktemp("mutants"))
    return [(what, m, runtime, refusal(m)) for (what, m), runtime in zip(cases, said, strict=True)]


def test_nothing_is_refused_that_onnx_runtime_runs(verdicts: list[tuple[str, Any, str, str]]) -> None:
    assert len(verdicts) > 2000
    wrong = [(str(m), what, ours) for what, m, said, ours in verdicts if said == "accepts" and ours]
    assert not wrong, wrong[:5]


def test_contradictory_shapes_are_refused(verdicts: list[tuple[str, Any, str, str]]) -> None:
    shapes = re.compile(r"in\d\.(axis\d+[+-]1|drop|unsq|unsqlast|T)$")
    refused = [v for v in verdicts if v[2].startswith("refuses") and shapes.match(v[0])]
    missed = [(str(m), what, said) for what, m, said, ours in refused if not ours and m.op not in LIBERAL]
    assert not missed, missed[:5]
    operators = {m.op for _, m, _, ours in refused if ours}
    assert {"MatMul", "Conv", "Gemm", "Concat", "Reshape", "Split", "BatchNormalization", "Add", "Where"} <= operators


def test_the_message_says_where_what_and_what_next(verdicts: list[tuple[str, Any, str, str]]) -> None:
    for _, m, _, ours in verdicts:
        if ours:
            assert ours.startswith(f'node "node" ({m.op}): '), ours
            assert all(f"x{p} " in ours for p, a in enumerate(m.arrays[:3]) if a is not None), ours
            assert ours.endswith("no runtime can run it; look at how the model was made or edited"), ours
