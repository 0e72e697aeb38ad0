"""What ONNX Runtime does about operators of float16: every row of the data, as its own optimiser decides it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from superopt.cost.backend_capabilities import BACKENDS
from superopt.cost.graph_costs import graph_cost
from superopt.cost.half_precision_support import ONNX_RUNTIME_HALF as HALF
from superopt.cost.target_cost_models import for_target
from superopt.formats.onnx_reader import from_onnx
from superopt.ir.types import DType, TensorType

X = ("x", [2, 4, 8, 8])
ONES = np.ones(8, np.float16)
OTHERS: dict[str, list[np.ndarray]] = {
    "Reshape": [np.array([2, -1])], "Slice": [np.array([0]), np.array([2]), np.array([1])],
    "Gather": [np.array([0, 1])], "GatherElements": [np.zeros((2, 4, 8, 8), np.int64)],
    "GatherND": [np.zeros((2, 1), np.int64)], "Expand": [np.array([2, 4, 8, 8])], "Unsqueeze": [np.array([0])],
    "LayerNormalization": [ONES, ONES], "RMSNormalization": [ONES], "Max": [ONES], "Min": [ONES], "Mod": [ONES],
    "Concat": [np.ones((2, 4, 8, 8), np.float16)], "ScatterND": [np.zeros((2, 1), np.int64),
    np.ones((2, 4, 8, 8), np.float16)], "ScatterElements": [np.zeros((2, 4, 8, 8), np.int64),
    np.ones((2, 4, 8, 8), np.float16)], "Clip": [np.array(0, np.float16), np.array(6, np.float16)],
    "PRelu": [np.ones((4, 1, 1), np.float16)],
    **{op: [np.array([-1])] for op in ("ReduceL1", "ReduceL2", "ReduceSumSquare")},
}  # fmt: skip
ATTRIBUTES = {"Concat": {"axis": 1}, "Split": {"axis": 1, "num_outputs": 2}, "Mod": {"fmod": 1}}
SINCE = {"RMSNormalization": 23}
NOT_ALONE = {"Attention", "Constant", "ConstantOfShape", "Shape", "Size", "Squeeze"}  # of other operands, or of none


def optimised(op: str, folder: Path, opset: int = 18) -> list[str]:
    """The operators that ONNX Runtime runs for one of float16."""
    held = [numpy_helper.from_array(a, f"c{i}") for i, a in enumerate(OTHERS.get(op, ()))]
    outputs = ["y", "z"] if op == "Split" else ["y"]
    node = helper.make_node(op, ["x", *(w.name for w in held)], outputs, **ATTRIBUTES.get(op, {}))
    shape = helper.make_tensor_value_info(X[0], TensorProto.FLOAT16, X[1])
    graph = helper.make_graph([node], "g", [shape], [helper.make_empty_tensor_value_info(o) for o in outputs], held)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    settings = ort.SessionOptions()
    settings.optimized_model_filepath = str(folder / "optimised.onnx")
    settings.log_severity_level = 3
    model = onnx.shape_inference.infer_shapes(made)
    ort.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    return [n.op_type for n in onnx.load(settings.optimized_model_filepath).graph.node]


@pytest.mark.parametrize("op", sorted(HALF.kernels - NOT_ALONE))
def test_it_has_a_kernel_of_float16(op: str, tmp_path: Path) -> None:
    assert optimised(op, tmp_path, SINCE.get(op, 18)) == [op]


@pytest.mark.parametrize("op", sorted(HALF.parts))
def test_it_takes_an_operator_apart(op: str, tmp_path: Path) -> None:
    found = [o for o in optimised(op, tmp_path) if o != "Cast"]
    assert found == list(HALF.parts[op])


@pytest.mark.parametrize("op", ["Abs", "Exp", "Erf", "Sqrt", "Tanh", "Sigmoid", "Floor", "GlobalAveragePool"])
def test_it_casts_around_an_operator_without_such_a_kernel(op: str, tmp_path: Path) -> None:
    assert optimised(op, tmp_path) == ["Cast", op, "Cast"]
    assert HALF.casts(op, TensorType(DType.FLOAT16, (2,)))
    assert not HALF.casts(op, TensorType(DType.FLOAT32, (2,)))


def test_bfloat16_is_not_cast() -> None:
    """ONNX Runtime runs no operator of bfloat16 that it has no kernel for: there is no cast to price."""
    assert not HALF.casts("Exp", TensorType(DType.BFLOAT16, (2,)))
    node = helper.make_node("Exp", ["x"], ["y"])
    value = helper.make_tensor_value_info("x", TensorProto.BFLOAT16, [2])
    graph = helper.make_graph([node], "g", [value], [helper.make_tensor_value_info("y", TensorProto.BFLOAT16, [2])])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    with pytest.raises(Exception, match="Could not find an implementation"):
        ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])


def priced(text: str) -> float:
    graph = from_onnx(onnx.parser.parse_model(text))
    with for_target("profile:cpu-epyc-2core") as costs:
        return graph_cost(graph, costs, as_run=False).us


def test_casts_are_priced_once_at_the_ends_of_a_chain() -> None:
    head = '<ir_version: 10, opset_import: ["": 18]> g '
    shape = "[64, 1024]"
    real = priced(f"{head} (float{shape} x) => (float{shape} y) {{ a = Exp(x) b = Tanh(a) y = Sqrt(b) }}")
    half = priced(f"{head} (float16{shape} x) => (float16{shape} y) {{ a = Exp(x) b = Tanh(a) y = Sqrt(b) }}")
    down = priced(f"{head} (float{shape} x) => (float16{shape} y) {{ y = Cast<to = 10>(x) }}")
    up = priced(f"{head} (float16{shape} x) => (float{shape} y) {{ y = Cast<to = 1>(x) }}")
    assert half > real
    assert half - real <= 2.5 * max(up, down)


def test_only_the_runtime_that_casts_says_so() -> None:
    assert [name for name, backend in BACKENDS.items() if backend.half is not None] == ["onnxruntime-cpu"]
