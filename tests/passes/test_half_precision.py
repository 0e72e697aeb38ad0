"""Operators of float16 computed in float32: which are, what is rounded as before, and how weights are stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import checker, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from superopt.cost.half_precision_support import ONNX_RUNTIME_HALF as HALF
from superopt.cost.target_cost_models import for_target
from superopt.formats import save
from superopt.formats.onnx_reader import from_onnx
from superopt.formats.onnx_writer import to_onnx
from superopt.ir.graph import ArrayWeightData, Graph, Weight, constant
from superopt.ir.types import DType
from superopt.ops.shape_inference import infer
from superopt.passes import SearchOptions, SearchResult, search
from superopt.passes.half_precision_widening import WidenedWeightData, narrowed, widened
from superopt.rules import load_library

HEAD = '<ir_version: 10, opset_import: ["": 18]> g '


def read(text: str, **held: np.ndarray) -> Graph:
    made = parser.parse_model(HEAD + text)
    made.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in held.items())
    return from_onnx(made)


def wide_of(graph: Graph) -> Graph:
    found = widened(graph, infer(graph), HALF, frozenset())
    assert found is not None
    return found.graph


def searched(graph: Graph, **options: object) -> SearchResult:
    rules = load_library()
    limits = SearchOptions(floats=rules.floats("standard"), cache=False, most_nodes=500, **options)  # type: ignore[arg-type]
    with for_target("profile:cpu-epyc-2core") as costs:
        return search(graph, rules.admitted, costs, limits)


def run(graph: Graph, folder: Path, **given: np.ndarray) -> list[np.ndarray]:
    path = folder / "model.onnx"
    save(graph, path)
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    return ort.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"]).run(None, given)


def kinds(graph: Graph, op: str) -> list[DType]:
    """The element types of what the nodes of an operator read first."""
    types = infer(graph).types
    return [t.dtype for n in graph.nodes if n.op == op and (t := types[n.inputs[0]]) is not None]


# -- which are computed in float32 ---------------------------------------------------------------------------------


def test_a_chain_has_one_cast_at_each_end() -> None:
    graph = wide_of(read("(float16[4] x) => (float16[4] y) { a = Exp(x) b = Tanh(a) y = Sqrt(b) }"))
    assert [n.op for n in graph.nodes] == ["Cast", "Exp", "Tanh", "Sqrt", "Cast"]
    assert [v.type for v in graph.outputs] == [infer(graph).types["y"]]


def test_what_only_moves_elements_is_in_float32_between_such_operators_alone() -> None:
    steps = "t = Transpose(x) a = Exp(t) b = Transpose(a) c = Tanh(b) y = Transpose(c)"
    text = f"(float16[4, 2] x) => (float16[4, 2] y) {{ {steps} }}"
    assert kinds(wide_of(read(text)), "Transpose") == [DType.FLOAT16, DType.FLOAT32, DType.FLOAT16]


def test_rows_of_a_table_are_cast_and_not_the_table() -> None:
    table = np.ones((100, 8), np.float16)
    text = "(int64[3] i) => (float16[3, 8] y) { e = Gather<axis = 0>(table, i) y = Exp(e) }"
    graph = wide_of(read(text, table=table))
    assert kinds(graph, "Gather") == [DType.FLOAT16]
    assert graph.constants["table"].type.dtype == DType.FLOAT16


@pytest.mark.parametrize("op", ["Floor", "Ceil", "Round", "Sign"])
def test_what_jumps_reads_a_value_of_half_precision(op: str) -> None:
    text = f"(float16[4] x) => (float16[4] y) {{ a = Exp(x) b = {op}(a) y = Tanh(b) }}"
    assert kinds(wide_of(read(text)), op) == [DType.FLOAT16]


def test_comparisons_read_values_of_half_precision() -> None:
    text = "(float16[4] x) => (float16[4] y) { a = Exp(x) b = Tanh(x) c = Less(a, b) y = Where(c, a, b) }"
    graph = wide_of(read(text))
    assert kinds(graph, "Less") == [DType.FLOAT16]
    assert [n.op for n in graph.nodes if n.op == "Where"] == ["Where"]


def test_a_model_of_float32_is_left_as_it_is() -> None:
    graph = read("(float[4] x) => (float[4] y) { y = Exp(x) }")
    assert widened(graph, infer(graph), HALF, frozenset()) is None


def test_a_model_of_bfloat16_is_left_as_it_is() -> None:
    graph = read("(bfloat16[4] x) => (bfloat16[4] y) { y = Exp(x) }")
    assert widened(graph, infer(graph), HALF, frozenset()) is None


def test_casts_of_the_model_around_operators_in_float32_go() -> None:
    text = """(float[4] x) => (float[4] y) {
        h = Cast<to = 10>(x) a = Exp(h) w = Cast<to = 1>(a) b = Tanh(w) c = Cast<to = 10>(b) d = Sqrt(c)
        y = Cast<to = 1>(d) }"""
    assert [n.op for n in wide_of(read(text)).nodes] == ["Exp", "Tanh", "Sqrt", "Identity"]


def test_a_rounding_that_the_model_makes_on_purpose_stays() -> None:
    text = """(float[512, 512] x, float16[512, 512] z) => (float[512, 512] y, float16[512, 512] v) {
        h = Cast<to = 10>(x) w = Cast<to = 1>(h) y = Sub(x, w) a = Exp(z) b = Tanh(a) v = Sqrt(b) }"""
    result = searched(read(text))
    assert result.widened == 3
    assert [n.attributes["to"] for n in result.graph.nodes if n.op == "Cast" and n.outputs[0] in ("h", "w")] == [10, 1]


# -- values --------------------------------------------------------------------------------------------------------


def test_a_result_is_finite_where_the_original_leaves_the_range(tmp_path: Path) -> None:
    text = "(float16[3] x) => (float16[3] y) { a = Mul(x, x) y = Sqrt(a) }"
    x = np.array([3, 1000, 6e4], np.float16)
    (y,) = run(wide_of(read(text)), tmp_path, x=x)
    np.testing.assert_array_equal(y, x)


def test_what_exceeds_the_range_at_an_output_is_infinite(tmp_path: Path) -> None:
    text = "(float16[2] x) => (float16[2] y) { a = Mul(x, x) y = Neg(a) }"
    (y,) = run(wide_of(read(text)), tmp_path, x=np.array([2, 300], np.float16))
    np.testing.assert_array_equal(y, np.array([-4, -np.inf], np.float16))


def test_subnormal_results_are_rounded_once(tmp_path: Path) -> None:
    text = "(float16[2] x) => (float16[2] y) { a = Mul(x, x) y = Mul(a, c) }"
    x = np.array([2**-7, 2**-13], np.float16)
    (y,) = run(wide_of(read(text, c=np.array([4, 4], np.float16))), tmp_path, x=x)
    np.testing.assert_array_equal(y, (x.astype(np.float64) ** 2 * 4).astype(np.float16))


SMOOTH = ("Tanh", "Sigmoid", "Erf", "Softplus", "Transpose", "Relu", "Add", "Mul", "MatMul", "Softmax", "Max")


def drawn(seed: int) -> tuple[str, dict[str, np.ndarray]]:
    """A chain of operators on eight by eight values."""
    generator = np.random.default_rng(seed)
    steps, held, value = [], dict[str, np.ndarray](), "x"
    for i, op in enumerate(generator.choice(SMOOTH, 6)):
        second = ""
        if op in ("Add", "Mul", "MatMul", "Max"):
            second, scale = f", c{i}", 0.3 if op == "MatMul" else 1.0
            held[f"c{i}"] = (generator.standard_normal((8, 8)) * scale).astype(np.float16)
        steps.append(f"v{i} = {op}({value}{second})")
        value = f"v{i}"
    return f"(float16[8, 8] x) => (float16[8, 8] y) {{ {' '.join(steps)} y = Tanh({value}) }}", held


@pytest.mark.parametrize("seed", range(20))
def test_a_random_chain_is_within_a_unit_of_the_reals(seed: int, tmp_path: Path) -> None:
    text, held = drawn(seed)
    x = np.random.default_rng(seed).standard_normal((8, 8)).astype(np.float16)
    (found,) = run(wide_of(read(text, **held)), tmp_path, x=x)
    double = {n: a.astype(np.float64) for n, a in held.items()}
    made = parser.parse_model(HEAD + text.replace("float16", "double"))
    made.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in double.items())
    (exact,) = ReferenceEvaluator(made).run(None, {"x": x.astype(np.float64)})
    unit = 2.0**-11 * np.abs(exact) + 2.0**-25
    assert (np.abs(found.astype(np.float64) - exact) <= unit + 1e-5).all()


# -- weights -------------------------------------------------------------------------------------------------------


def test_weights_are_stored_in_half_precision_behind_a_cast() -> None:
    w = np.random.default_rng(0).standard_normal((64, 512)).astype(np.float16)
    graph = read("(float16[256, 64] x) => (float16[256, 512] y) { a = MatMul(x, w) b = Tanh(a) y = Exp(b) }", w=w)
    result = searched(graph)
    assert result.widened == 3
    stored = result.graph.constants["w"]
    assert stored.type.dtype == DType.FLOAT16
    np.testing.assert_array_equal(stored.data.numpy(), w)  # type: ignore[union-attr]
    assert result.graph.weight_bytes <= 1.01 * graph.weight_bytes


def with_weight(weight: Weight) -> tuple[Graph, Graph]:
    """A graph that reads the weight in float32, and one of half precision that it was made of."""
    original = read("(float16[64, 64] x) => (float16[64, 64] y) { y = Mul(x, w) }", w=np.ones((64, 64), np.float16))
    wide = wide_of(original)
    others = tuple(w for w in wide.weights if w.name != "w")
    return Graph(wide.name, wide.inputs, wide.outputs, (*others, weight), wide.nodes, wide.opset), original


@pytest.mark.parametrize("value", [1e6, 0.1])
def test_a_weight_that_is_not_of_half_precision_stays_in_float32(value: float) -> None:
    graph, original = with_weight(constant("w", np.full((64, 64), value, np.float32)))
    assert narrowed(graph, original).constants["w"].type.dtype == DType.FLOAT32


def test_a_weight_of_half_precision_goes_back() -> None:
    own = np.full((64, 64), 0.1, np.float16)
    given = constant("w", own.astype(np.float32))
    graph, original = with_weight(Weight("w", given.type, WidenedWeightData(ArrayWeightData(own))))
    found = narrowed(graph, original)
    assert found.constants["w"].type.dtype == DType.FLOAT16
    assert [n.op for n in found.nodes].count("Cast") == 3


def test_a_small_weight_stays_in_float32() -> None:
    result = searched(read(CHAIN.replace("Softmax(a)", "Mul(a, c)"), c=np.full(512, 3, np.float16)))
    assert result.widened == 3
    assert result.graph.constants["c"].type.dtype == DType.FLOAT32


def test_a_table_that_the_model_computes_is_not_stored() -> None:
    table = np.arange(256, dtype=np.float32)[None]
    text = """(float[1, 256] x) => (float[4096, 256] y, float[1, 256] z)
        <int64[2] shape = {4096, 256}> { t = Expand(table, shape) a = Exp(x) b = Exp(x) c = Mul(a, b) z = Tanh(c)
        y = Add(x, t) }"""
    result = searched(read(text, table=table))
    assert result.graph.weight_bytes <= 1.01 * table.nbytes + 4096
    assert "Expand" in [n.op for n in result.graph.nodes]


def test_a_weight_that_is_stored_twice_is_stored_once() -> None:
    w = np.random.default_rng(0).standard_normal((256, 128)).astype(np.float32)
    text = """(float[8, 256] x, float[8, 256] z) => (float[8, 128] y, float[8, 128] u) {
        a = Exp(x) b = Exp(x) c = Mul(a, b) y = MatMul(c, w) u = MatMul(z, v) }"""
    graph = read(text, w=w, v=w.copy())
    result = searched(graph)
    assert sum(weight.type.nbytes or 0 for weight in result.graph.weights) < 1.1 * w.nbytes


# -- modes ---------------------------------------------------------------------------------------------------------

CHAIN = "(float16[256, 512] x) => (float16[256, 512] y) { a = Exp(x) b = Softmax(a) y = Tanh(b) }"


def test_prices_choose_float32() -> None:
    result = searched(read(CHAIN))
    assert result.widened == 3
    assert result.after_us < result.before_us
    assert "3 operators of half precision are computed in float32" in result.notes


@pytest.mark.parametrize("options", [{"widens": False}, {"no_tradeoffs": True}])
def test_a_search_that_may_not_leaves_the_types(options: dict[str, bool]) -> None:
    assert searched(read(CHAIN), **options).widened == 0


def test_strict_leaves_the_types() -> None:
    rules = load_library()
    limits = SearchOptions(floats=rules.floats("strict"), cache=False, most_nodes=500)
    with for_target("profile:cpu-epyc-2core") as costs:
        some = [r for r in rules.admitted if r.operators <= {"Exp", "Softmax", "Tanh"}]
        assert search(read(CHAIN), some, costs, limits).widened == 0


# -- names ---------------------------------------------------------------------------------------------------------


def test_new_values_have_other_names_than_those_of_bodies_and_around_them() -> None:
    """What an If captures is cast around it and inside it; a body of the model's own has such a name, too."""
    branch = "(float16[512, 512] {0}) {{ a_float32 = Exp(b) {0}0 = Exp(a_float32) {0} = Tanh({0}0) }}"
    graph = read(
        "(bool c, float16[512, 512] x) => (float16[512, 512] y) { a = Exp(x) b = Tanh(a) d = Sqrt(b) "
        f"r = If(c) <then_branch = t () => {branch.format('t')}, else_branch = e () => {branch.format('e')}> "
        "s = Exp(r) y = Add(s, d) }"
    )
    found = searched(graph)
    assert found.bodies
    assert found.widened > 3
    made = to_onnx(found.graph)
    checker.check_model(made, full_check=True)
    inner = [o for n in made.graph.node for a in n.attribute for m in a.g.node for o in m.output]
    assert any(name.startswith("b_float32") for name in inner)
    assert {o for n in made.graph.node for o in n.output}.isdisjoint(inner)
