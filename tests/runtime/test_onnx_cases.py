"""The reference against ONNX's own node test cases: all of those whose operators superopt reads."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from onnx.backend.test.case.node import collect_testcases
from sampling import slow

from superopt.formats.onnx_reader import from_onnx
from superopt.ir.errors import SuperoptError
from superopt.ops.shape_inference import CanonicalNode, infer
from superopt.runtime.reference import run


def covered(every):
    """Each n-th case, where all its nodes have a meaning, with its inputs and expected outputs as arrays of numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    for case in cases[::every]:
        try:
            graph = from_onnx(case.model).checked()
        except SuperoptError:
            continue
        if not case.data_sets or not all(isinstance(n, CanonicalNode) for n in infer(graph).nodes):
            continue
        inputs, outputs = case.data_sets[0]
        if all(isinstance(a, np.ndarray | np.generic) and a.dtype.kind != "O" for a in (*inputs, *outputs)):
            yield case.name, graph, inputs, outputs


@pytest.mark.parametrize(("every", "least"), [slow(1, 400), (16, 25)])
def test_the_reference_gives_what_onnx_says(every, least):
    """An integer that a real is quantised to may be one step off: ONNX's expectations divide in float32."""
    count = 0
    wrong = []
    for name, graph, inputs, outputs in covered(every):
        found = run(graph, {v.name: np.asarray(a) for v, a in zip(graph.inputs, inputs, strict=True)})
        for value, expected in zip(graph.outputs, outputs, strict=True):
            expected = np.asarray(expected)
            real = expected.dtype.kind not in "iub"
            loose = 1e-2 if expected.dtype.itemsize == 2 else 1e-4  # some expectations are written with four digits
            step = float(not real and any(n.op == "QuantizeLinear" for n in graph.nodes))
            made, wanted = found[value.name].astype(np.float64), expected.astype(np.float64)
            if made.shape != wanted.shape or not np.allclose(
                made, wanted, rtol=loose * real, atol=max(loose * real, step), equal_nan=True
            ):
                wrong.append(name)
        count += 1
    assert not wrong
    assert count > least
