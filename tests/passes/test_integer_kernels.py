"""Rewrites that reach the runtime's kernels of integers, and what of a quantised graph stays as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser
from roofline import Roofline

from superopt.formats import load, to_onnx_bytes
from superopt.formats.onnx_reader import from_onnx
from superopt.ir.graph import Graph
from superopt.passes import SearchOptions, search
from superopt.rules.library import load_library
from superopt.rules.peepholes import peephole_library

CORPUS = Path(__file__).parents[2] / "corpus" / "tiny" / "quantised.json"
SCALED = {"Cast", "DynamicQuantizeLinear", "MatMul", "MatMulInteger", "Mul", "Reshape", "Transpose"}
SCALES = (
    "float s = {0.1}, uint8 z = {128}, float t = {0.05}, uint8 o = {120}, int64[1] first = {0}, int64[2] hw = {2, 3}"
)


def graph(steps: str, out: str = "uint8[a, b, c, d]") -> Graph:
    """A graph of ``steps`` from ``x``, which is dequantised, to ``y``."""
    text = f"""<ir_version: 8, opset_import: ["": 18]> g (uint8[1, 8, 6, 6] q) => ({out} y) <{SCALES}> {{
        x = DequantizeLinear (q, s, z) {steps} }}"""
    return from_onnx(parser.parse_model(text)).checked()


def searched(model: Graph, mode: str = "standard") -> Graph:
    library = load_library()
    options = SearchOptions(cache=False, floats=library.floats(mode))
    # Of other modes what moves a scale: their rules are compiled here, all of them for seconds.
    rules = [r for r in library.values() if mode == "standard" or r.operators <= SCALED]
    return search(model, rules, Roofline(), options).graph


def outputs(model: Graph, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return ort.InferenceSession(to_onnx_bytes(model), options, providers=["CPUExecutionProvider"]).run(None, feeds)


def operators(model: Graph) -> list[str]:
    return [n.op for n in model.nodes if n.op not in ("QuantizeLinear", "DequantizeLinear", "Constant")]


@pytest.mark.parametrize(
    ("steps", "form"),
    [
        ("a = ReduceMean <keepdims = 1> (x, hw) y = QuantizeLinear (a, t, o)", ["GlobalAveragePool"]),
        ("a = GlobalAveragePool (x) b = Flatten <axis = 1> (a) y = QuantizeLinear (b, t, o)",
         ["GlobalAveragePool", "Reshape"]),
        ("a = Flatten <axis = 1> (x) b = Sigmoid (a) y = QuantizeLinear (b, t, o)", ["Reshape", "Sigmoid"]),
    ],
)  # fmt: skip
def test_what_moves_elements_is_written_so_that_integers_are_reached(steps: str, form: list[str]) -> None:
    model = graph(steps, "uint8[a, b]" if "Flatten" in steps else "uint8[a, b, c, d]")
    result = searched(model)
    assert operators(result) == form
    values = np.random.default_rng(0).integers(0, 256, (1, 8, 6, 6)).astype(np.uint8)
    for before, after in zip(outputs(model, {"q": values}), outputs(result, {"q": values}), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    "steps",
    [
        "a = Relu (x) y = QuantizeLinear (a, t, o)",  # its last bit decides an integer
        "two = Constant <value_float = 2.0> () a = Div (x, two) y = QuantizeLinear (a, t, o)",
        "a = QuantizeLinear (x, t, o) b = DequantizeLinear (a, t, o) y = QuantizeLinear (b, s, z)",  # rounds twice
        "a = GlobalAveragePool (x) y = QuantizeLinear (a, t, o)",  # is computed in integers
        "a = Transpose <perm = [0, 1, 3, 2]> (x) b = Sigmoid (a) y = QuantizeLinear (b, t, o)",
    ],
)
def test_the_rest_around_a_quantisation_stays(steps: str) -> None:
    model = graph(steps)
    assert searched(model) is model


@pytest.mark.parametrize(("stored", "opset", "reached"), [("int8", 20, True), ("int8", 21, False), ("uint8", 21, True)])
def test_signed_numbers_are_not_moved_where_the_runtime_refuses_that(stored: str, opset: int, reached: bool) -> None:
    text = f"""<ir_version: 9, opset_import: ["": {opset}]> g ({stored}[4, 6, 6] q) => ({stored}[a, b] y)
        <float s = {{0.1}}, {stored} z = {{12}}> {{ x = DequantizeLinear (q, s, z) a = Flatten <axis = 1> (x)
        b = Sigmoid (a) y = QuantizeLinear (b, s, z) }}"""
    model = from_onnx(parser.parse_model(text)).checked()
    result = searched(model)
    assert operators(result) == (["Reshape", "Sigmoid"] if reached else ["Flatten", "Sigmoid"])
    outputs(result, {"q": np.zeros((4, 6, 6), stored)})


@pytest.mark.parametrize("place", ["before", "behind"])
def test_numbers_with_a_scale_for_each_channel_stay_reals(place: str) -> None:
    """No kernel of integers takes them; ONNX Runtime refuses some that it makes."""
    scales = "float[3] s = {0.1, 0.2, 0.3}, uint8[3] z = {1, 2, 3}, float t = {0.05}, uint8 o = {120}"
    first, last = ("s, z", "t, o") if place == "before" else ("t, o", "s, z")
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (uint8[3, 3, 2, 2] q) => (uint8[a, b, c, d] y) <{scales}> {{
        x = DequantizeLinear (q, {first}) a = ReduceMean <axes = [2, 3]> (x) y = QuantizeLinear (a, {last}) }}"""
    model = from_onnx(parser.parse_model(text)).checked()
    assert searched(model) is model


def test_greedy_search_reaches_them_too() -> None:
    model = graph("a = ReduceMean <keepdims = 1> (x, hw) y = QuantizeLinear (a, t, o)")
    library = peephole_library({n.op for n in model.nodes})
    options = SearchOptions(cache=False, floats=library.floats("standard"), greedy=True)
    assert operators(search(model, tuple(library.values()), Roofline(), options).graph) == ["GlobalAveragePool"]


def test_the_corpus_model_reaches_its_last_kernel() -> None:
    model = load(CORPUS)
    result = searched(model)
    changed = [n.op for n in result.nodes if n.op == "Reshape"]
    assert changed == ["Reshape"]
    assert "Flatten" not in operators(result)
    assert result.weight_bytes <= model.weight_bytes + 64  # dequantised weights stay integers
    images = np.random.default_rng(1).standard_normal(tuple(map(int, model.inputs[0].type.shape))).astype(np.float32)
    for before, after in zip(outputs(model, {"image": images}), outputs(result, {"image": images}), strict=True):
        np.testing.assert_array_equal(before, after)


# -- Products of integers, as ONNX Runtime's quantiser of activations at run time writes them --------------------------

LAYER = "{0} = MatMulInteger (q, {0}w, z, zw) {0}c = Cast <to = 1> ({0}) {0}t = Mul (s, {0}s) {0}r = Mul ({0}c, {0}t)"
ATTENTION = f"""q, s, z = DynamicQuantizeLinear (x) {LAYER.format("a")} {LAYER.format("b")}
    ah = Reshape (ar, heads) bh = Reshape (br, heads)
    left = Transpose <perm = [0, 2, 1, 3]> (ah) right = Transpose <perm = [0, 2, 3, 1]> (bh) y = MatMul (left, right)"""


def dynamic(steps: str, out: str = "float[a, b, c, d]") -> Graph:
    """A graph of ``steps`` from reals."""
    made = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]> g (float[2, 16, 64] x) => ({out} y)
        <float as = {{0.01}}, float bs = {{0.02}}, int8 zw = {{0}}, int64[4] heads = {{2, 16, 4, 16}}> {{ {steps} }}""")
    drawn = np.random.default_rng(0).integers(-128, 128, (2, 64, 64)).astype(np.int8)
    made.graph.initializer.extend(numpy_helper.from_array(w, f"{n}w") for n, w in zip("ab", drawn, strict=True))
    return from_onnx(made).checked()


def kernels(model: Graph, folder: Path) -> list[str]:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    options.log_severity_level = 4
    ort.InferenceSession(to_onnx_bytes(model), options, providers=["CPUExecutionProvider"])
    return [n.op_type for n in onnx.load(options.optimized_model_filepath).graph.node]


@pytest.mark.parametrize("mode", ["strict", "standard", "fast"])
def test_a_scale_stays_in_the_kernel_of_its_product(mode: str, tmp_path: Path) -> None:
    """Rules move it past what only moves elements, or behind the product of reals; the kernel has it for nothing."""
    result = searched(dynamic(ATTENTION), mode)
    assert kernels(result, tmp_path).count("MatMulIntegerToFloat") == 2


def test_equal_quantisations_are_one(tmp_path: Path) -> None:
    again = LAYER.format("b").replace("(q,", "(p,").replace("z,", "o,").replace("(s,", "(u,")
    steps = f"q, s, z = DynamicQuantizeLinear (x) p, u, o = DynamicQuantizeLinear (x) {LAYER.format('a')} {again}"
    model = dynamic(f"{steps} y = Add (ar, br)", "float[a, b, c]")
    result = searched(model, "strict")
    assert [n.op for n in result.nodes].count("DynamicQuantizeLinear") == 1
    values = np.random.default_rng(1).standard_normal((2, 16, 64)).astype(np.float32)
    for before, after in zip(outputs(model, {"x": values}), outputs(result, {"x": values}), strict=True):
        np.testing.assert_array_equal(before, after)
