"""Mixed precision: what analysis forbids, which choice is cheapest, and what the graph with Casts computes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
import pytest
from onnx import numpy_helper, parser

from superopt.cost.target_cost_models import for_target
from superopt.formats.onnx_reader import from_onnx
from superopt.formats.onnx_writer import to_onnx_bytes
from superopt.ir.graph import Graph
from superopt.ir.types import DType
from superopt.ops.shape_inference import infer
from superopt.passes.mixed_precision import (
    HalfPrecisionRestrictions,
    PrecisionAssignment,
    ValueMagnitudes,
    choose,
    lowered,
    of_bytes,
    of_time,
    restricted,
    switched,
    watched,
)
from superopt.runtime.onnx_runtime import make_session, run

HALF = DType.FLOAT16
HEAD = '<ir_version: 10, opset_import: ["": 18]> g '


def read(text: str, **held: np.ndarray) -> Graph:
    made = parser.parse_model(HEAD + text)
    made.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in held.items())
    return from_onnx(made)


def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(7).standard_normal(shape) * scale).astype(np.float32)


def found_of(graph: Graph, **most: float) -> HalfPrecisionRestrictions:
    """What may be of half precision where values are of magnitude 1, but for some."""
    typing = infer(graph)
    names = [n for n, t in typing.types.items() if t is not None and t.dtype == DType.FLOAT32]
    observed = {
        n: ValueMagnitudes(m := most.get(n, 1.0), min(m, 0.5), 8 * m, m) for n in names if n not in graph.weight
    }
    return restricted(graph, typing, HALF, observed, 1e-3)


def kinds(graph: Graph, **most: float) -> dict[str, str]:
    """By operator, why it stays in float32; "" where it need not."""
    found = found_of(graph, **most)
    return {n.op: found.kept[i].kind if i in found.kept else "" for i, n in enumerate(graph.nodes)}


def ran(graph: Graph, feeds: Mapping[str, np.ndarray], *, optimise: bool = False) -> dict[str, np.ndarray]:
    return run(make_session(to_onnx_bytes(graph), threads=1, optimise=optimise), feeds)


# -- analysis ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        ("Relu(x)", ""),
        ("MatMul(x, w)", ""),
        ("Tanh(x)", ""),
        ("Mul(x, x)", ""),
        ("Softmax(x)", "long sum"),
        ("LayerNormalization(x, s)", "long sum"),
        ("ReduceMean<keepdims = 0>(x)", "long sum"),
        ("Floor(x)", "jump"),
        ("Sigmoid(x)", ""),
    ],
)
def test_the_meaning_of_an_operator_says_whether_it_is_fragile(step: str, kind: str) -> None:
    shape = "" if "Reduce" in step else "8, 8"
    graph = read(f"(float[8, 8] x) => (float[{shape}] y) {{ y = {step} }}", w=normal(8, 8), s=normal(8))
    [found] = kinds(graph).values()
    assert found == kind


@pytest.mark.parametrize(
    ("most", "kind"),
    [(1.0, ""), (8_000.0, ""), (9_000.0, "overflow"), (float("inf"), "overflow"), (5e-5, "underflow"),
     (0.0, "underflow")],
)  # fmt: skip
def test_observed_magnitudes_keep_a_margin(most: float, kind: str) -> None:
    graph = read("(float[8] x) => (float[8] y) { y = Relu(x) }")
    assert kinds(graph, x=most) == {"Relu": kind}


def test_exponents_of_large_numbers_overflow_inside() -> None:
    graph = read("(float[8] x) => (float[8] y) { y = Sigmoid(x) }")
    assert kinds(graph, x=10.0) == {"Sigmoid": "inner overflow"}


def test_small_divisors_stay_exact() -> None:
    graph = read("(float[8] x, float[8] d) => (float[8] y) { y = Div(x, d) }")
    assert kinds(graph, d=0.5) == {"Div": ""}
    found = restricted(graph, infer(graph), HALF, dict.fromkeys("xdy", ValueMagnitudes(1, 1e-6, 8)), 1e-3)  # fmt: skip
    assert {i: r.kind for i, r in found.kept.items()} == {0: "pole"}


@pytest.mark.parametrize(
    ("array", "stored"),
    [(normal(4, 4), True), (np.full((4, 4), 7e4, np.float32), False), (np.full((4, 4), 1e-7, np.float32), False),
     (np.full((4, 4), -np.inf, np.float32), False), (np.zeros((4, 4), np.float32), True)],
    ids=["normal", "large", "tiny", "infinite", "zero"],
)  # fmt: skip
def test_weights_are_stored_where_the_type_holds_them(array: np.ndarray, stored: bool) -> None:
    graph = read("(float[4, 4] x) => (float[4, 4] y) { y = Add(x, w) }", w=array)
    found = found_of(graph)
    assert ("w" in found.weights, 0 in found.nodes) == (stored, stored)


def test_what_the_opset_does_not_take_stays() -> None:
    text = '(float[1, 2, 4, 4] x) => (float[1, 2, 8, 8] y) { y = Resize<mode = "nearest">(x, , scales) }'
    graph = read(text, scales=np.array([1, 1, 2, 2], np.float32))
    found = found_of(graph)
    assert all(operand.names == ("x",) for operand in found.nodes.values())
    made = lowered(graph, PrecisionAssignment(HALF, found.nodes, frozenset()))
    assert ran(made, {"x": normal(1, 2, 4, 4)})["y"].dtype == np.float32


def test_magnitudes_are_observed_in_the_graph() -> None:
    graph = read("(float[4] x) => (float[4] y) { a = Mul(x, x) y = Reciprocal(a) }")
    probe = watched(graph, infer(graph))
    feeds = {"x": np.array([0.0, -2.0, 0.5, 1.0], np.float32)}
    large = {"x": np.array([100.0, 1.0, 1.0, 1.0], np.float32)}
    found = probe.observed([ran(probe.graph, feeds)], [ran(probe.graph, large)])
    assert found["a"] == ValueMagnitudes(4.0, 0.25, 1e4)
    assert found["x"].most == 2.0
    assert found["y"].most == float("inf")


# -- graphs --------------------------------------------------------------------------------------------------------


def chain() -> Graph:
    text = "(float[4, 8] x) => (float[4, 8] y, float[4, 8] b) { a = MatMul(x, w) b = Relu(a) c = Add(b, v) d = Softmax(a) y = Add(c, d) }"  # fmt: skip # noqa: E501
    return read(text, w=normal(8, 8), v=normal(8))


def test_inputs_outputs_and_names_stay() -> None:
    graph = chain()
    found = found_of(graph)
    made = lowered(graph, PrecisionAssignment(HALF, found.nodes, found.weights))
    assert (made.inputs, made.outputs, made.opset, made.metadata) == (
        graph.inputs, graph.outputs, graph.opset, graph.metadata
    )  # fmt: skip
    assert [n.name for n in made.nodes if n.op != "Cast"] == [n.name for n in graph.nodes]
    types = infer(made).types
    assert {types[n.outputs[0]].dtype for n in made.nodes if n.op in ("MatMul", "Relu")} == {HALF}  # type: ignore[union-attr]
    assert made.weight["w"].type.dtype == HALF


def test_a_value_is_cast_once_for_all_its_readers() -> None:
    text = "(float[4] x) => (float[4] y) { a = Relu(x) b = Neg(x) y = Add(a, b) }"
    graph = read(text)
    made = lowered(graph, PrecisionAssignment(HALF, found_of(graph).nodes, frozenset()))
    assert [n.op for n in made.nodes] == ["Cast", "Relu", "Neg", "Add", "Cast"]


@pytest.mark.parametrize("rounded", [False, True])
def test_a_lowered_graph_rounds_where_it_says(rounded: bool) -> None:
    """Against NumPy, which rounds every result."""
    graph = read("(float[4, 8] x) => (float[4, 8] y) { a = Mul(x, w) y = Add(a, x) }", w=normal(8))
    made = lowered(graph, PrecisionAssignment(HALF, found_of(graph).nodes, frozenset({"w"})), rounded=rounded)
    x = normal(4, 8)
    halves = x.astype(np.float16), normal(8).astype(np.float16)
    exact = (halves[0] * halves[1] + halves[0]).astype(np.float32)
    got = ran(made, {"x": x})["y"]
    if rounded:
        np.testing.assert_array_equal(got, exact)
    np.testing.assert_allclose(got, exact, atol=2e-3)


def test_a_switch_rounds_one_value() -> None:
    graph = read("(float[4, 8] x) => (float[4, 8] y) { a = Mul(x, w) y = Add(a, x) }", w=normal(8))
    probe = switched(graph, ["x", "a", "w"], HALF)
    off = {s: np.array(False) for s in probe.switches.values()}
    x, w = normal(4, 8), normal(8)
    plain = ran(probe.graph, {"x": x, "w": w, **off})["y"]
    np.testing.assert_array_equal(plain, ran(graph, {"x": x})["y"])
    one = ran(probe.graph, {"x": x, "w": w, **off, probe.switches["a"]: np.array(True)})["y"]
    np.testing.assert_array_equal(one, (x * w).astype(np.float16).astype(np.float32) + x)


# -- the choice ----------------------------------------------------------------------------------------------------


def cost_of(graph: Graph, choice: PrecisionAssignment) -> int:
    """Bytes of what a lowered graph holds, and of its Casts in the file."""
    made = lowered(graph, choice)
    types = infer(made).types
    fixed = {n.outputs[0] for n in made.nodes if n.op == "Cast" and n.inputs[0] in made.weight}
    held = sum(t.nbytes or 0 for n, t in types.items() if t is not None and n not in fixed)
    return held + 128 * sum(n.op == "Cast" for n in made.nodes)


@pytest.mark.parametrize("budget", [1.0, 2e-3, 1e-3, 1e-6])
def test_the_choice_is_the_cheapest_of_all(budget: float) -> None:
    graph = chain()
    found = found_of(graph)
    typing = infer(graph)
    errors = {"x": 4e-4, "a": 9e-4, "b": 7e-4, "c": 5e-4, "d": 5e-4, "y": 2e-4, "w": 3e-4, "v": 1e-4}
    chosen = choose(graph, found, HALF, of_bytes(typing, HALF), errors, budget)
    assert chosen is not None

    def error(choice: PrecisionAssignment) -> float:
        made = {o for i in choice.nodes for o in graph.nodes[i].outputs if i not in found.exact}
        read = {n for o in choice.nodes.values() for n in o.names if n not in graph.weight}
        exact = {o for i in choice.nodes for o in graph.nodes[i].outputs if i in found.exact}
        return sum(errors[n] ** 2 for n in (made | read | choice.weights) - (exact & read)) ** 0.5

    least = None
    for picked in product((False, True), repeat=len(found.nodes)):
        nodes = {i: o for (i, o), taken in zip(found.nodes.items(), picked, strict=True) if taken}
        needed = {n for o in nodes.values() for n in o.names if n in graph.weight}
        for stored in product((False, True), repeat=len(found.weights)):
            weights = {n for n, taken in zip(sorted(found.weights), stored, strict=True) if taken}
            choice = PrecisionAssignment(HALF, nodes, frozenset(weights))
            if needed <= weights and error(choice) <= budget:
                cost = cost_of(graph, choice)
                least = cost if least is None else min(least, cost)
    assert cost_of(graph, chosen[0]) == least
    assert error(chosen[0]) <= budget


@pytest.mark.parametrize(("rows", "half"), [(4096, 8), (1, 0)])
def test_a_device_decides_by_time(rows: int, half: int) -> None:
    """Casts pay at the ends of a chain that moves many bytes, and nowhere else."""
    steps = " ".join(f"a{i + 1} = Mul(a{i}, a{i})" for i in range(7))
    graph = read(f"(float[{rows}, 4096] x) => (float[{rows}, 4096] y) {{ a0 = Mul(x, x) {steps} y = Identity(a7) }}")
    typing, found = infer(graph), found_of(graph)
    with for_target("profile:h100") as prices:
        objective = of_time(graph, typing, HALF, prices)
        chosen = choose(graph, found, HALF, objective, {}, 1e-3)
    assert chosen is not None
    assert sum(graph.nodes[i].op == "Mul" for i in chosen[0].nodes) == half
