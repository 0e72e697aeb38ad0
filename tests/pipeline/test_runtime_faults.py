"""Models that ONNX Runtime 1.32's own optimiser breaks or refuses: each is told, and most come back running, and right.

Most are known in its tracker (microsoft/onnxruntime): #25259 double QDQ, #31980 and #25855 layer normalisations,
#30513 ReduceMean without kept axes, #32413, #32414 and #32416 a factor of one, #32105 a shape that is reshaped.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser
from sampling import sampled

import superopt
from superopt import formats
from superopt.ir.graph import Graph
from superopt.ops.shape_inference import infer
from superopt.pipeline import runtime_fault_avoidance
from superopt.pipeline.runtime_fault_avoidance import fewest_copies, with_copies
from superopt.pipeline.runtime_optimizer_faults import UnoptimizedRuntimeReference
from superopt.runtime.onnx_runtime import make_session, run
from superopt.verifier.check.shared_weight_sessions import SharedWeightSessions

TINY = Path(__file__).parents[2] / "corpus" / "tiny"
LAYER_NORM = """m = ReduceMean <axes = [-1], keepdims = {keep}> (x) c = Sub(x, m) q = Pow(c, two)
    v = ReduceMean <axes = [-1], keepdims = {keep}> (q) e = Add(v, eps) d = Sqrt(e) n = Div(c, d)"""
QDQ = """a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z)
    c = QuantizeLinear(b, s2, z2) y = DequantizeLinear(c, s2, z2)"""
ONE = "g (float[2, 3] x) => (float[2, 3] y) <float a = {1}, float b = {1}> { k = "
SHARE = "g (float[2, 3] x, float[3] w) => (float[2, 3] y) <float a = {1}> { k = "

# By name: the opset and the model; and whether an equal graph avoids it.
BROKEN = {
    "layer norm of one column, scaled to two": (17, """g (float[1, 1] x) => (float[1, 2] y)
        <float two = {2}, float eps = {1e-5}, float[2] s = {0.5, 0.25}> {""" + LAYER_NORM.format(keep=1)
        + " y = Mul(s, n) }"),
    "root mean square of one column, scaled to two": (17, """g (float[1, 1] x) => (float[1, 2] y)
        <float two = {2}, float eps = {1e-5}, float[2] s = {0.5, 0.25}> { q = Pow(x, two)
        v = ReduceMean <axes = [-1]> (q) e = Add(v, eps) d = Sqrt(e) n = Div(x, d) y = Mul(n, s) }"""),
    "layer norm along the other axis": (17, """g (float[4, 4] x) => (float[4, 4] y)
        <float two = {2}, float eps = {1e-5}, float[4] s = {0.5, 0.25, 1, 2}, float[4] b = {1, 2, 3, 4}> {"""
        + LAYER_NORM.format(keep=0) + " k = Mul(n, s) y = Add(k, b) }"),
    "Identity and a factor of one": (21, ONE + "Identity(x) f = Div(a, b) y = Mul(k, f) }"),
    "Dropout and a factor of one": (21, ONE + "Dropout(x) f = Div(a, b) y = Mul(k, f) }"),
    "Cast and a factor of one": (21, ONE + "Cast <to = 1> (x) f = Div(a, b) y = Mul(k, f) }"),
    "Identity and a quotient": (21, SHARE + "Identity(x) f = Div(a, w) y = Mul(k, f) }"),
    "Dropout and a quotient": (21, SHARE + "Dropout(x) f = Div(a, w) y = Mul(k, f) }"),
    "Cast and a quotient": (21, SHARE + "Cast <to = 1> (x) f = Div(a, w) y = Mul(k, f) }"),
    "a quotient of higher rank": (21, """g (float[4] x) => (float[1, 1, 4] y)
        <float[1, 1, 1] a = {1}, float[4] w = {1, 2, 3, 4}> { f = Div(a, w) y = Mul(x, f) }"""),
    "a shape that was reshaped": (21, """g (float[4] x, int64[2, 1] s) => (float[2, 2] y)
        <int64[1] m = {2}, int64[2] k = {1, 2}> {
        i = Reshape(s, k) r = Reshape(i, m) z = Relu(x) y = Reshape(z, r) }"""),
    "Relu and Clip of int32": (21, """g (int32[4] x) => (int32[4] y) <int32 a = {-2}, int32 b = {6}> {
        r = Relu(x) y = Clip(r, a, b) }"""),
    "Relu and Clip of int8": (21, """g (int8[4] x) => (int8[4] y) <int8 a = {-2}, int8 b = {6}> {
        r = Relu(x) y = Clip(r, a, b) }"""),
    "quantised twice, coarser": (21, """g (float[4, 4] x) => (float[4, 4] y)
        <float s = {0.1}, uint8 z = {128}, float s2 = {0.37}, uint8 z2 = {3}> {""" + QDQ + " }"),
    "quantised twice, finer": (21, """g (float[4, 4] x) => (float[4, 4] y)
        <float s = {0.1}, uint8 z = {128}, float s2 = {0.05}, uint8 z2 = {120}> {""" + QDQ + " }"),
    "Relu and a negative scale": (21, """g (float[4, 4] x) => (uint8[4, 4] y) <float s = {-0.1}, uint8 z = {0}> {
        r = Relu(x) y = QuantizeLinear(r, s, z) }"""),
    "a sum with zero whose sign counts": (21, """g (float[4] x) => (float[4] y) <float a = {0}> {
        z = Mul(x, a) n = Neg(z) s = Add(n, a) y = Reciprocal(s) }"""),
}  # fmt: skip
# Dequantised values overflow, and quantised again they saturate; the optimiser removes both, through copies, too.
HOPELESS = """g (uint8[4, 4] x) => (uint8[4, 4] y) <float s = {3e38}, uint8 z = {128}> {
    b = DequantizeLinear(x, s, z) y = QuantizeLinear(b, s, z) }"""


def read(opset: int, text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> {text}')


def feeds_of(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    generator, found = np.random.default_rng(seed), {}
    for value in graph.inputs:
        shape, dtype = value.type.shape, value.type.dtype.numpy
        drawn = generator.standard_normal(shape) * 3 if dtype.kind == "f" else generator.integers(-9, 10, shape)
        found[value.name] = drawn.astype(dtype) if value.name != "s" else np.full(shape, 2, dtype)
    return found


@pytest.mark.parametrize("case", sampled(BROKEN, 9))
def test_what_the_optimiser_breaks_is_told_and_avoided(case: str) -> None:
    model = formats.from_onnx(read(*BROKEN[case]))
    result = superopt.optimize(model, target="profile:cpu-epyc-2core", effort="quick")
    fault = result.report.runtime_fault
    assert fault is not None
    assert fault.refusal or fault.outputs
    assert fault.avoided in ("rewritten", "copies")
    assert result.report.check.verdict == "passed"
    assert any("own optimisations" in note for note in result.report.notes)
    right = make_session(formats.to_onnx_bytes(model), optimise=False)
    made = make_session(formats.to_onnx_bytes(result.graph), optimise=True)
    for seed in range(3):
        feeds = feeds_of(model, seed)
        np.testing.assert_allclose(run(made, feeds)["y"], run(right, feeds)["y"], rtol=1e-5, atol=1e-6)


def test_what_cannot_be_avoided_is_told_and_comes_back_as_it_was() -> None:
    result = superopt.optimize(read(21, HOPELESS), target="profile:cpu-epyc-2core", effort="quick")
    assert result.graph is result.original
    assert result.report.status == "unchanged"
    fault = result.report.runtime_fault
    assert fault is not None
    assert fault.outputs.keys() == {"y"}
    assert not fault.avoided
    assert any("ORT_DISABLE_ALL" in note for note in result.report.notes)


SOUND = {
    # Kernels of eight bits round by themselves; that is what such models are made for.
    "MatMul in eight bits": """g (float[4, 4] x) => (float[4, 2] y) <float s = {0.1}, uint8 z = {128},
        int8[4, 2] w = {127, 127, -128, 127, 127, 127, 127, 127}, float sw = {0.5}, int8 zw = {0}> {
        a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z) v = DequantizeLinear(w, sw, zw) r = MatMul(b, v)
        c = QuantizeLinear(r, s, z) y = DequantizeLinear(c, s, z) }""",
    "Softmax in eight bits": """g (float[4, 4] x) => (float[4, 4] y) <float s = {0.1}, uint8 z = {128},
        float s2 = {0.004}, uint8 z2 = {0}> { a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z) r = Softmax(b)
        c = QuantizeLinear(r, s2, z2) y = DequantizeLinear(c, s2, z2) }""",
    "Gelu, which is fused": """g (float[64, 64] x) => (float[64, 64] y)
        <float r = {1.4142135}, float o = {1}, float h = {0.5}> {
        a = Div(x, r) e = Erf(a) p = Add(e, o) m = Mul(x, p) y = Mul(m, h) }""",
    "MatMul and Add in float16": """g (float16[2, 4] x) => (float16[2, 2] y)
        <float16[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float16[2] b = {1, 2}> { m = MatMul(x, w) y = Add(m, b) }""",
    "as many results as a comparison finds": """g (float[64] x) => (int64[1, n] y) {
        e = Exp(x) s = ReduceSum(e) q = Div(e, s) m = ReduceMean(q) c = Greater(q, m) y = NonZero(c) }""",
    "random numbers": "g (float[8, 8] x) => (float[8, 8] y) { r = RandomUniformLike(x) y = Add(x, r) }",
    "sizes that have to fit": """g (float[N, M] x) => (float[4, K] y) <int64[2] s = {4, -1}> { y = Reshape(x, s) }""",
    "what overflows": """g (float[8, 8] x) => (float[8, 8] y) <float k = {1e30}> {
        a = Mul(x, k) b = Mul(a, k) y = Sub(b, a) }""",
}  # fmt: skip


def fault_of(model: Graph) -> object:
    with SharedWeightSessions() as bench:
        return UnoptimizedRuntimeReference(model, infer(model), 0, {}, bench).fault(model)


@pytest.mark.parametrize("case", SOUND)
def test_rounding_is_no_fault(case: str) -> None:
    assert fault_of(formats.from_onnx(read(21, SOUND[case]))) is None


@pytest.mark.parametrize("name", ["bert", "quantised", "nasnet_a", "lstm", "mobilenet_v3_small", "swin_tiny", "gpt2"])
def test_no_corpus_model_is_broken(name: str) -> None:
    assert fault_of(formats.load(TINY / f"{name}.json")) is None


def test_copies_are_as_few_as_can_be() -> None:
    """Of eight values, a graph is right where two that are given are copied."""
    text = "g (float[2] x) => (float[2] y) { " + " ".join(
        f"v{i} = Neg({'x' if not i else f'v{i - 1}'})" for i in range(8)
    ) + " y = Neg(v7) }"  # fmt: skip
    model = formats.from_onnx(read(21, text))
    asked = []

    def right(graph: Graph) -> bool:
        asked.append(graph)
        return {"v2_copy", "v6_copy"} <= graph.names

    found = fewest_copies(model, right)
    assert found is not None
    assert found[1] == ("v2", "v6")
    assert len(asked) < 30
    assert fewest_copies(model, lambda graph: False) is None


@pytest.mark.parametrize("dtype", ["float", "float16", "double", "int8", "bool"])
@pytest.mark.parametrize("shape", ["[2, 3]", "", "[0, 3]"])
def test_a_copy_is_the_value(dtype: str, shape: str) -> None:
    """Of scalars, those whose type the runtime's Max has; the others are not copied."""
    kind = dtype + shape
    model = formats.from_onnx(read(21, f"g ({kind} x) => ({kind} y) {{ k = Identity(x) y = Identity(k) }}"))
    if not shape and dtype in ("int8", "bool"):
        assert fewest_copies(model, lambda graph: True) is None
        return
    made = with_copies(model, ["k"])
    assert [n.op for n in made.nodes] == ["Identity", "Concat" if shape else "Max", "Identity"]
    kind = model.inputs[0].type
    drawn = np.random.default_rng(0).integers(0, 2, kind.shape)
    feeds = {"x": np.asarray(drawn, kind.dtype.numpy)}
    np.testing.assert_array_equal(run(make_session(formats.to_onnx_bytes(made)), feeds)["y"], feeds["x"])


def test_an_interrupt_while_the_model_is_run_both_ways_ends_in_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(runtime_fault_avoidance, "UnoptimizedRuntimeReference", interrupted)
    result = superopt.optimize(read(*BROKEN["Cast and a factor of one"]), target="profile:cpu-epyc-2core")
    assert result.report.runtime_fault is None
    assert result.report.check.verdict in ("passed", "skipped")
