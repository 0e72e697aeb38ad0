"""What ONNX Runtime computes in integers: every row of the data, as its own optimiser decides it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

from superopt.cost import ProfileCostModel
from superopt.cost.backend_capabilities import ONNX_RUNTIME_PATTERNS, groups
from superopt.cost.device_profile import load_profile
from superopt.cost.integer_kernel_support import ONNX_RUNTIME_INTEGERS, QdqNodeGroups
from superopt.formats.onnx_reader import from_onnx
from superopt.ir.types import DType, TensorType
from superopt.ops.shape_inference import infer

HEAD = '<ir_version: 8, opset_import: ["": 17]>'
SCALES = "float s = {0.1}, uint8 z = {128}, float s2 = {0.05}, uint8 z2 = {120}"
ATTRIBUTES = {
    "AveragePool": "<kernel_shape = [2, 2]>", "Concat": "<axis = 1>", "MaxPool": "<kernel_shape = [2, 2]>",
    "Softmax": "<axis = 1>", "Transpose": "<perm = [0, 1, 3, 2]>", "Flatten": "<axis = 1>",
    "DepthToSpace": "<blocksize = 2>", "GlobalMaxPool": "", "ReduceMean": "<axes = [2, 3]>",
}  # fmt: skip
INPUTS = {
    "Reshape": ", shape", "Slice": ", starts, ends", "Squeeze": ", first", "Unsqueeze": ", first",
}  # fmt: skip
HELD = {
    "shape": np.array([1, 4, 8, 8]), "starts": np.array([0, 0]), "ends": np.array([1, 4]), "first": np.array([0]),
    "w": np.arange(-72, 72, dtype=np.int8).reshape(4, 4, 3, 3),
    "g": np.arange(-128, 128, dtype=np.int8).reshape(1, 256),
    "ws": np.array(0.01, np.float32), "wz": np.array(0, np.int8),
}  # fmt: skip
UNARY = tuple(op for op in ONNX_RUNTIME_INTEGERS.operands if op in {
    "AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid", "Softmax"})  # fmt: skip
BINARY = ("Add", "Concat", "MatMul", "Mul")


def model(steps: str, out: str = "uint8[a, b, c, d]") -> onnx.ModelProto:
    """A model of ``steps`` from the integers ``q`` to ``y``; ``x`` is what they stand for."""
    made = parser.parse_model(f"""{HEAD} g (uint8[1, 4, 8, 8] q) => ({out} y) <{SCALES}> {{
        x = DequantizeLinear (q, s, z) {steps} }}""")
    made.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in HELD.items())
    return made


def quantised(steps: str, out: str = "uint8[a, b, c, d]") -> onnx.ModelProto:
    return model(f"{steps} y = QuantizeLinear (r, s2, z2)", out)


def moved(op: str, source: str, made: str) -> str:
    return f"{made} = {op} {ATTRIBUTES.get(op, '')} ({source}{INPUTS.get(op, '')})"


def as_run(made: onnx.ModelProto, folder: Path) -> Sequence[str]:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [n.op_type for n in onnx.load(options.optimized_model_filepath).graph.node]


def assert_decided(made: onnx.ModelProto, op: str, *, integer: bool, folder: Path) -> None:
    """ONNX Runtime computes the operator in integers or not, and so do the data say."""
    assert (op not in as_run(made, folder)) == integer
    graph = from_onnx(made)
    groups = QdqNodeGroups(graph, ONNX_RUNTIME_INTEGERS)
    (node,) = (n for n in graph.nodes if n.op == op)
    assert groups.is_integer(node) == integer
    assert (node.outputs[0] in groups.reached) == integer


@pytest.mark.parametrize("op", UNARY)
def test_operators_of_one_operand(op: str, tmp_path: Path) -> None:
    assert_decided(quantised(moved(op, "x", "r")), op, integer=True, folder=tmp_path)
    assert_decided(model(moved(op, "x", "y"), "float[a, b, c, d]"), op, integer=False, folder=tmp_path)


@pytest.mark.parametrize("op", BINARY)
def test_operators_of_two_operands(op: str, tmp_path: Path) -> None:
    given = f"v = DequantizeLinear (q, s2, z2) r = {op} {ATTRIBUTES.get(op, '')} (x, v)"
    assert_decided(quantised(given), op, integer=True, folder=tmp_path)
    real = given.replace(" r = ", " y = ")
    integer = op in ONNX_RUNTIME_INTEGERS.unquantised
    assert_decided(model(real, "float[a, b, c, d]"), op, integer=integer, folder=tmp_path)


def test_every_operator_is_run() -> None:
    assert {*UNARY, *BINARY, "Conv", "Gemm"} == ONNX_RUNTIME_INTEGERS.operands.keys()
    assert ONNX_RUNTIME_INTEGERS.shares.keys() == ONNX_RUNTIME_INTEGERS.operands.keys()


CONV = "v = DequantizeLinear (w, ws, wz) r = Conv (p, v)"


@pytest.mark.parametrize("op", sorted(ONNX_RUNTIME_INTEGERS.passed))
def test_operators_that_are_passed(op: str, tmp_path: Path) -> None:
    back = "p = Unsqueeze (m, first)" if op == "Squeeze" else "p = Squeeze (m, first)" if op == "Unsqueeze" else ""
    first = moved(op, "x", "m" if back else "p")
    assert_decided(quantised(f"{first} {back} {CONV}"), "Conv", integer=True, folder=tmp_path)


@pytest.mark.parametrize("op", ["DepthToSpace", "GlobalMaxPool"])
def test_operators_that_are_not_passed(op: str, tmp_path: Path) -> None:
    steps = (
        f"{moved(op, 'x', 'm')} p = MaxPool <kernel_shape = [1, 1]> (m) v = DequantizeLinear (q, s2, z2) r = Mul (v, p)"
    )
    steps = steps if op == "GlobalMaxPool" else f"{moved(op, 'x', 'p')} r = Sigmoid (p)"
    assert_decided(quantised(steps), "Mul" if "Mul" in steps else "Sigmoid", integer=False, folder=tmp_path)


@pytest.mark.parametrize(("op", "integer"), [("Reshape", True), ("Flatten", False)])
def test_a_gemm_behind_a_view(op: str, integer: bool, tmp_path: Path) -> None:
    made = quantised(
        f"{moved(op, 'x', 'p')} v = DequantizeLinear (g, ws, wz) r = Gemm <transB = 1> (p, v)", "uint8[a, b]"
    )
    del made.graph.initializer[next(i for i, w in enumerate(made.graph.initializer) if w.name == "shape")]
    made.graph.initializer.append(numpy_helper.from_array(np.array([1, -1]), "shape"))
    assert_decided(made, "Gemm", integer=integer, folder=tmp_path)


def test_an_activation_that_the_quantisation_does(tmp_path: Path) -> None:
    """Where the zero point is that of zero, ONNX Runtime drops a Relu before it looks for groups."""
    made = quantised(f"p = MaxPool <kernel_shape = [1, 1]> (x) {CONV.replace('r =', 'c =')} r = Relu (c)")
    assert_decided(model_with_zero(made), "Conv", integer=True, folder=tmp_path)


def model_with_zero(made: onnx.ModelProto) -> onnx.ModelProto:
    (zero,) = (w for w in made.graph.initializer if w.name == "z2")
    zero.CopyFrom(numpy_helper.from_array(np.array(0, np.uint8), "z2"))
    return made


# -- Products of integers, whose results are scaled ----------------------------------------------------------------

PRODUCT = "i = MatMulInteger (q, w, z, zw) c = Cast <to = 1> (i) "
SCALED = f"{PRODUCT} f = Mul (s, sw)"
SECOND = "j = MatMulInteger (q, v, z, zw) d = Cast <to = 1> (j)"


@pytest.mark.parametrize(
    ("steps", "fused"),
    [
        (f"{SCALED} y = Mul (c, f)", 1),
        (f"{SCALED} y = Mul (f, c)", 1),
        (f"{SCALED.replace('s, sw', 'sw, s')} y = Mul (c, f)", 1),
        (f"{SCALED.replace('sw', 'columns')} y = Mul (c, f)", 1),
        (f"{SCALED.replace('zw', 'zeros')} y = Mul (c, f)", 1),
        (f"{SCALED.replace(', zw', '')} y = Mul (c, f)", 1),
        (f"{SCALED} r = Mul (c, f) y = Add (r, bias)", 1),
        (f"{SCALED} r = Mul (f, c) y = Add (bias, r)", 1),
        (f"{SCALED} r = Mul (c, f) y = Add (r, c)", 0),
        (f"{PRODUCT} r = Mul (c, s) y = Mul (r, sw)", 0),
        (f"{SCALED} {SECOND} r = Mul (c, f) t = Mul (d, f) y = Add (r, t)", 0),
        (f"{SCALED} {SECOND} g = Mul (s, two) r = Mul (c, f) t = Mul (d, g) y = Add (r, t)", 2),
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_products_of_integers_that_are_scaled(steps: str, fused: int, shared: bool, tmp_path: Path) -> None:
    """One kernel each, with what quantises or without; the scales' product belongs to it."""
    text = f"""{HEAD} g (float[2, 3, 8] x) => (float[a, b, c] y{", uint8[a, b, d] q" if shared else ""})
        <float sw = {{0.01}}, float two = {{0.02}}, int8 zw = {{3}}> {{
        q, s, z = DynamicQuantizeLinear (x) {steps} }}"""
    made = parser.parse_model(text)
    held = {
        "w": np.arange(-24, 24, dtype=np.int8).reshape(8, 6), "v": np.arange(48, dtype=np.int8).reshape(8, 6),
        "columns": np.arange(1, 7).astype(np.float32), "bias": np.arange(6).astype(np.float32),
        "zeros": np.arange(6).astype(np.int8),
    }  # fmt: skip
    made.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in held.items())
    kernels = [op for op in as_run(made, tmp_path) if op in ("MatMulIntegerToFloat", "DynamicQuantizeMatMul")]
    assert len(kernels) == fused
    graph = from_onnx(made)
    found = groups(graph, ONNX_RUNTIME_PATTERNS, infer(graph).types)
    assert sum(any(n.op == "MatMulInteger" for n in g.nodes) for g in found) == fused


@pytest.mark.parametrize("op", sorted(ONNX_RUNTIME_INTEGERS.products))
def test_products_of_integers_are_priced_by_those_of_reals(op: str) -> None:
    known = ONNX_RUNTIME_INTEGERS.products[op]
    image, filters = ((1, 64, 28, 28), (64, 64, 3, 3)) if known.real == "Conv" else ((64, 384), (384, 384))
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1} if known.real == "Conv" else {}
    result = image if known.real == "Conv" else (64, 384)
    model = ProfileCostModel(load_profile("cpu-epyc-2core"))
    real, stored = (lambda shape, d=d: TensorType(d, shape) for d in (DType.FLOAT32, DType.UINT8))
    expected = model.application(known.real, window, [real(image), real(filters)], [real(result)], [False, True])
    args: list[TensorType | None] = [real(())] * (2 if known.operands == (0, 1) else 8)
    for place, shape in zip(known.operands, (image, filters), strict=True):
        args[place] = stored(shape)
    fixed = [i not in known.operands[:1] for i in range(len(args))]
    found = model.application(op, window, args, [stored(result)], fixed)
    assert found.us == pytest.approx(known.share * expected.us)
    assert found.source == "interpolated"
