"""Nothing that NumPy, Python or ONNX Runtime warns of reaches the user, whatever numbers a model holds."""

from __future__ import annotations

import numpy as np
import pytest

import superopt
from superopt.ir.graph import Graph, Node, Value, constant
from superopt.ir.types import DType, TensorType


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.FLOAT32, DType.FLOAT64])
def test_a_model_of_extreme_numbers_is_optimised_in_silence(
    dtype: DType, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    """Its search, its check and the mutants of the check meet the largest and the smallest numbers of the type."""
    limits, kind = np.finfo(dtype.numpy), TensorType(dtype, (4, 4))
    edges = np.array([limits.max, limits.min, limits.tiny, limits.smallest_subnormal], dtype.numpy)
    weights = [constant("w", np.tile(edges, (4, 1))), constant("v", np.tile(edges[:, None], (1, 4)))]
    nodes = [
        Node("a", "Max", ("x", "w"), ("a",)), Node("b", "Abs", ("a",), ("b",)), Node("c", "Sqrt", ("b",), ("c",)),
        Node("d", "Mul", ("c", "v"), ("d",)), Node("e", "Mul", ("d", "w"), ("e",)), Node("f", "Relu", ("e",), ("f",)),
        Node("g", "Relu", ("f",), ("y",)),
    ]  # fmt: skip
    model = Graph("edges", (Value("x", kind),), (Value("y", kind),), tuple(weights), tuple(nodes), {"": 21})
    result = superopt.optimize(model, target="profile:cpu-epyc-2core", effort="quick")
    assert result.report.check.trials > 0
    assert capfd.readouterr().err == ""
    assert not recwarn.list
