"""Calls of a model's own functions: a body in a call's place computes what ONNX Runtime makes of the call."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

from superopt import formats
from superopt.formats.function_inlining import MOST_NODES, function_names, inlined, with_calls
from superopt.ir.errors import InvalidModel, ResourceLimit
from superopt.ir.graph import Graph, Node
from superopt.runtime.onnx_runtime import make_session, run

HEAD = '<ir_version: 10, opset_import: ["": 17, "own": 1]> '
FEEDS = {"x": np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)}
ONE = HEAD + "g (float[4, 3] x) => (float[4, 3] y) "

CASES = {
    "one": ONE + """{ y = own.F(x) }
        <domain: "own", opset_import: ["": 17]> F (a) => (b) { c = Exp(a) b = Neg(c) }""",
    "nested, and twice": ONE + """{ p = own.G(x) y = own.G(p) }
        <domain: "own", opset_import: ["": 17]> F (a) => (b) { c = Sin(a) b = Neg(c) }
        <domain: "own", opset_import: ["": 17, "own": 1]> G (a) => (b) { c = own.F(a) d = own.F(c) b = Add(c, d) }""",
    "attributes: given, by default, and left out": ONE + """{ y = own.F <slope = 0.5> (x) }
        <domain: "own", opset_import: ["": 17]> F <slope: float = 0.1, other: float = 0.2, absent> (a) => (d) {
            b = LeakyRelu <alpha: float = @slope> (a) c = LeakyRelu <alpha: float = @other> (b)
            d = LeakyRelu <alpha: float = @absent> (c) }""",
    "attributes, passed on": ONE + """{ y = own.G <s = 0.25> (x) }
        <domain: "own", opset_import: ["": 17]> F <slope> (a) => (b) { b = Elu <alpha: float = @slope> (a) }
        <domain: "own", opset_import: ["": 17, "own": 1]> G <s> (a) => (b) { b = own.F <slope: float = @s> (a) }""",
    "an input left out": ONE + """{ y = own.F(x) }
        <domain: "own", opset_import: ["": 17]> F (a, low, high) => (b) { b = Clip(a, low, high) }""",
    "the second output alone": ONE + """{ , y = own.F(x) }
        <domain: "own", opset_import: ["": 17]> F (a) => (b, c) { b = Exp(a) d = Neg(b) c = Abs(d) }""",
    "an operator whose other version takes other types": ONE + """{ y = own.F(x) }
        <domain: "own", opset_import: ["": 13]> F (a) => (b) { c = Relu(a) b = Identity(c) }""",
    "the name of an operator": ONE + """{ p = own.Relu(x) y = Relu(p) }
        <domain: "own", opset_import: ["": 17]> Relu (x) => (y) { y = Neg(x) }""",
    "names that the model has, too": ONE + """{ b = Exp(x) c = own.F(b) y = own.F(c) }
        <domain: "own", opset_import: ["": 17]> F (x) => (y) { b = Sin(x) c = Cos(b) y = Mul(b, c) }""",
    "a domain that the model does not import": """<ir_version: 10, opset_import: ["": 17, "own": 1]>
        g (float[4, 3] x) => (float[4, 3] y) { y = own.F(x) }
        <domain: "own", opset_import: ["": 17, "com.microsoft": 1]> F (a) => (b) { b = com.microsoft.Gelu(a) }""",
    "a branch that reads the function's input": ONE + """{ y = own.F(x) }
        <domain: "own", opset_import: ["": 17]> F (a) => (b) {
            s = ReduceSum <keepdims = 0> (a) z = Constant <value_float = 0.0> () c = Greater(s, z)
            b = If (c) <then_branch = t () => (float[4, 3] r) { k = Exp(a) r = Neg(k) },
                        else_branch = e () => (float[4, 3] r) { k = Sin(a) r = Abs(k) }> }""",
    "a reference in a branch": ONE + """{ y = own.F <slope = 0.7> (x) }
        <domain: "own", opset_import: ["": 17]> F <slope> (a) => (b) {
            c = Constant <value_int = 1> () d = Cast <to = 9> (c)
            b = If (d) <then_branch = t () => (float[4, 3] r) { r = Elu <alpha: float = @slope> (a) },
                        else_branch = e () => (float[4, 3] r) { r = Neg(a) }> }""",
    "what nothing reads": ONE + """{ y = own.F(x) }
        <domain: "own", opset_import: ["": 17]> F (a) => (b, unused) { b = Exp(a) c = Sin(a) unused = Cos(c) }""",
}  # fmt: skip


def read(text: str) -> Graph:
    return formats.from_onnx(parser.parse_model(text))


def outputs(graph: Graph) -> dict[str, np.ndarray]:
    return run(make_session(formats.to_onnx_bytes(graph), optimise=False), FEEDS)


def expected(graph: Graph) -> dict[str, np.ndarray]:
    """By ONNX's own evaluator where ONNX Runtime refuses a call that lists fewer outputs than its function has."""
    try:
        return outputs(graph)
    except InvalidModel:
        names = [v.name for v in graph.outputs]
        return dict(zip(names, ReferenceEvaluator(formats.to_onnx(graph)).run(None, FEEDS), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_a_body_in_a_calls_place_computes_what_the_call_does(case: str) -> None:
    model = read(CASES[case])
    found = inlined(model)
    assert not found.refused
    assert not any(n.domain == "own" for n in found.graph.nodes)
    assert not function_names(found.graph)
    assert "own" not in found.graph.opset
    onnx.checker.check_model(formats.to_onnx(found.graph))
    for name, array in expected(model).items():
        np.testing.assert_allclose(outputs(found.graph)[name], array, rtol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_calls_come_back_where_nothing_was_rewritten(case: str) -> None:
    model = read(CASES[case])
    found = inlined(model)
    again = with_calls(found.graph, found, model)
    assert formats.to_onnx_bytes(again) == formats.to_onnx_bytes(model)


def test_overloads_are_told_apart() -> None:
    model = parser.parse_model(ONE + """{ p = own.F(x) y = own.F(p) }
        <domain: "own", opset_import: ["": 17]> F (a) => (b) { b = Exp(a) }""")  # fmt: skip
    other = onnx.helper.make_function(
        "own", "F", ["a"], ["b"], [onnx.helper.make_node("Neg", ["a"], ["b"])], [onnx.helper.make_opsetid("", 17)],
        overload="negative",
    )  # fmt: skip
    model.functions.append(other)
    model.graph.node[1].overload = "negative"
    graph = formats.from_onnx(model)
    assert function_names(graph) == ("own.F", "own.F:negative")
    assert [n.op for n in inlined(graph).graph.nodes] == ["Exp", "Neg"]


REFUSED = {
    "of another opset": (ONE + """{ y = own.F(x) }
        <domain: "own", opset_import: ["": 9]> F (a) => (b) { b = Softmax(a) }""",
                         "Softmax of its opset 9 is another in the model's opset 17"),
    "of a runtime's name": (
        """<ir_version: 10, opset_import: ["": 17, "com.microsoft": 1]> g (float[4, 3] x) => (float[4, 3] y) {
            y = com.microsoft.Gelu(x) }
        <domain: "com.microsoft", opset_import: ["": 17]> Gelu (a) => (b) { b = Neg(a) }""", "a runtime may have"),
    "of an opset that is not stated": (ONE + """{ y = own.F(x) }
        <domain: "own", opset_import: ["own": 1]> F (a) => (b) { b = Neg(a) }""", "imports no opset"),
    "whose output is its input": (ONE + """{ p = Exp(x) y = own.F(p) }
        <domain: "own", opset_import: ["": 17]> F (a) => (a) { b = Neg(a) }""", "an output of it is an input"),
    "that reads what is not there": (ONE + """{ p = Exp(x) y = own.F(p) }
        <domain: "own", opset_import: ["": 17]> F (a) => (b) { b = Add(a, c) }""", "reads what nothing before defines"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_call_that_may_mean_something_else_stays(case: str) -> None:
    text, why = REFUSED[case]
    model = read(text)
    found = inlined(model)
    assert found.graph is model
    assert not found.calls
    (reason,) = found.refused.values()
    assert why in reason


def test_a_call_in_a_branch_stays_with_its_function() -> None:
    model = read(ONE + """{ p = own.F(x) c = Constant <value_int = 1> () d = Cast <to = 9> (c)
            y = If (d) <then_branch = t () => (float[4, 3] r) { r = own.F(p) },
                        else_branch = e () => (float[4, 3] r) { r = Neg(p) }> }
        <domain: "own", opset_import: ["": 17]> F (a) => (b) { b = Exp(a) }
        <domain: "own", opset_import: ["": 17]> Unused (a) => (b) { b = Exp(a) }""")  # fmt: skip
    found = inlined(model)
    assert [n.op for n in found.graph.nodes] == ["Exp", "Constant", "Cast", "If"]
    assert function_names(found.graph) == ("own.F",)
    np.testing.assert_array_equal(outputs(found.graph)["y"], outputs(model)["y"])


def doubling(times: int) -> str:
    """A model whose functions stand for 2 to so many nodes."""
    bodies = "".join(
        f'<domain: "own", opset_import: ["": 17, "own": 1]> F{i + 1} (a) => (b) {{ c = own.F{i}(a) b = own.F{i}(c) }}'
        for i in range(times)
    )
    first = '<domain: "own", opset_import: ["": 17]> F0 (a) => (b) { b = Neg(a) }'
    return ONE + f"{{ y = own.F{times}(x) }}" + first + bodies


def test_functions_that_double_are_not_expanded() -> None:
    with pytest.raises(ResourceLimit, match="expand to"):
        read(doubling(40))
    model = read(doubling(17))
    found = inlined(model)
    assert found.graph is model
    assert f"followed to {MOST_NODES} in all" in found.refused["own.F17"]
    assert len(inlined(read(doubling(10))).graph.nodes) == 1 << 10


def test_a_long_chain_of_calls_is_followed_to_a_bound() -> None:
    bodies = "".join(
        f'<domain: "own", opset_import: ["": 17, "own": 1]> F{i + 1} (a) => (b) {{ b = own.F{i}(a) }}'
        for i in range(900)
    )
    first = '<domain: "own", opset_import: ["": 17]> F0 (a) => (b) { b = Neg(a) }'
    found = inlined(read(ONE + "{ y = own.F900(x) }" + first + bodies))
    (node,) = found.graph.nodes
    assert node.domain == "own"
    assert "calls inside each other" in next(iter(found.refused.values()))


def test_a_function_that_calls_itself_is_no_model() -> None:
    with pytest.raises(InvalidModel, match="calls itself"):
        read(ONE + """{ y = own.F(x) }
            <domain: "own", opset_import: ["": 17, "own": 1]> F (a) => (b) { b = own.G(a) }
            <domain: "own", opset_import: ["": 17, "own": 1]> G (a) => (b) { b = own.F(a) }""")  # fmt: skip


def test_only_bodies_that_stand_as_they_were_are_calls_again() -> None:
    """Of two calls of one function one was rewritten; of nested ones, the inner call still stands."""
    model = read(CASES["nested, and twice"])
    found = inlined(model)
    made = found.graph
    last = made.nodes[-1]  # the Add of the second call
    changed = replace(made, nodes=(*made.nodes[:-1], replace(last, op="Sub")))
    again = with_calls(changed, found, model)
    assert [n.op for n in again.nodes] == ["G", "F", "F", "Sub"]
    assert function_names(again) == ("own.F", "own.G")
    np.testing.assert_array_equal(outputs(again)["y"], outputs(changed)["y"])


def test_a_body_into_which_something_else_reads_stays_open() -> None:
    model = read(CASES["one"])
    found = inlined(model)
    inside = found.graph.nodes[0].outputs[0]
    extra = Node("more", "Add", (inside, "y"), ("z",))
    made = replace(found.graph, nodes=(*found.graph.nodes, extra), outputs=(replace(found.graph.outputs[0], name="z"),))
    assert with_calls(made, found, model) is made


def test_a_call_does_not_read_what_it_makes() -> None:
    """The second output of a body became what its first is made from: no order of calls computes that."""
    model = read(ONE + """{ p, q = own.F(x, x) y = Add(p, q) }
        <domain: "own", opset_import: ["": 17]> F (a, b) => (c, d) { c = Neg(a) d = Exp(b) }""")  # fmt: skip
    found = inlined(model)
    between = Node("between", "Sin", ("q",), ("x2",))
    nodes = [replace(n, inputs=("x2",)) if n.op == "Neg" else n for n in found.graph.nodes]
    calls = replace(found.calls[0], node=replace(found.calls[0].node, inputs=("x2", "x")),
                    body=tuple(n for n in nodes if n.op in ("Neg", "Exp")))  # fmt: skip
    made = replace(found.graph, nodes=(*nodes, between)).checked()
    assert with_calls(made, replace(found, calls=(calls,)), model) is made


def test_constants_of_a_call_are_constants_of_the_body() -> None:
    """Without the slice's bounds nobody knows how many sizes there are, and none are too few."""
    model = read("""<ir_version: 10, opset_import: ["": 18, "own": 1]> g (float[N, 4, H, W] x) => (float[A, B, C, D] y)
        <int64[1] s = {0}, int64[1] e = {2}, int64[2] k = {8, 8}> { y = own.F(x, s, e, k) }
        <domain: "own", opset_import: ["": 18]> F (a, s, e, k) => (b) {
            h = Shape(a) p = Slice(h, s, e) z = Concat <axis = 0> (p, k) b = Resize(a, , , z) }""")  # fmt: skip
    assert [n.op for n in inlined(model).graph.nodes] == ["Shape", "Slice", "Concat", "Resize"]
