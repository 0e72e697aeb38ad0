"""Models at another version of ONNX's operators: the same values, or a refusal that names the node."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from sampling import sampled

import superopt
from superopt import formats
from superopt.formats import from_onnx, to_onnx_bytes
from superopt.formats.opset_conversion import at_opset
from superopt.ir.errors import InvalidOption, Unsupported
from superopt.ir.graph import Graph
from superopt.pipeline.opset_conversion import written_at_opset
from superopt.pipeline.options import Options
from superopt.pipeline.time_budget import TimeBudget
from superopt.verifier.check.differential import check

TINY = sorted(p.stem for p in Path("corpus/tiny").glob("*.json"))
VERSIONS = (13, 15, 17, 18, 19, 21, 23, 24)


def graph(text: str, opset: int, ir: int = 8) -> Graph:
    model = onnx.parser.parse_model(f'<ir_version: {ir}, opset_import: ["": {opset}]> {text}')
    return from_onnx(model)


def proto(given: Graph) -> onnx.ModelProto:
    return onnx.load_from_string(to_onnx_bytes(given))


@pytest.mark.parametrize("name", sampled(TINY, 8))
def test_a_model_at_another_version_computes_the_same(name: str) -> None:
    before = formats.load(f"corpus/tiny/{name}.json")
    version = random.Random(name).choice(VERSIONS)
    after = at_opset(before, version)
    found = check(before, after.graph, trials=1)
    assert found.verdict == "passed", found.reason
    model = proto(after.graph)
    assert [o.version for o in model.opset_import if not o.domain] == [version]
    onnx.checker.check_model(model, full_check=True)


MOVED = {
    "axes as an input": (
        "g (float[2,3] x) => (float[3] y) { y = ReduceSum <axes = [0], keepdims = 0> (x) }", 11, 17, 2,
    ),
    "axes from behind": ("g (float[2,3] x) => (float[2,1] y) { y = ReduceMax <axes = [-1]> (x) }", 13, 9, 1),
    "bounds as inputs": ("g (float[4] x) => (float[4] y) { y = Clip <min = -1.0, max = 2.0> (x) }", 6, 13, 3),
    "a newer function": ("g (float[4] x) => (float[4] y) { y = HardSwish (x) }", 17, 13, 1),
    "a function of its types": (
        "g (float[2,8] x, float[8] s) => (float[2,8] y) { y = LayerNormalization <axis = -1> (x, s) }", 21, 13, 1,
    ),
    "in half precision": (
        "g (float16[2,8] x, float16[8] s, float16[8] b) => (float16[2,8] y) { y = LayerNormalization (x, s, b) }",
        17, 15, 2,
    ),
    "inside branches": (
        "g (bool c, float[2,3] x) => (float[1,3] y) { y = If (c) <"
        "then_branch = t () => (float[1,3] a) { a = ReduceSum <axes = [0]> (x) }, "
        "else_branch = e () => (float[1,3] b) { b = ReduceMean <axes = [0]> (x) }> }", 11, 18, 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVED)
def test_what_is_written_otherwise_is_the_same(name: str) -> None:
    text, before, version, inputs = MOVED[name]
    given = graph(text, before)
    found = at_opset(given, version)
    assert found.rewritten
    result = check(given, found.graph, trials=2)
    assert result.verdict == "passed", result.reason
    assert inputs in {len(n.input) for n in proto(found.graph).graph.node}


def test_there_and_back() -> None:
    given = graph("g (float[2,3] x) => (float[2] y) { y = ReduceSum <axes = [1], keepdims = 0> (x) }", 11)
    back = at_opset(at_opset(given, 21).graph, 11).graph
    assert [(n.op, dict(n.attributes)) for n in back.nodes] == [("ReduceSum", {"axes": (1,), "keepdims": 0})] or [
        (n.op, {k: list(v) if isinstance(v, tuple) else v for k, v in n.attributes.items()}) for n in back.nodes
    ] == [("ReduceSum", {"axes": [1], "keepdims": 0})]
    assert not back.weights


def test_the_ir_version_is_one_that_readers_of_the_operators_know() -> None:
    given = graph("g (float[4] x) => (float[4] y) { y = Relu (x) }", 21, ir=10)
    assert proto(at_opset(given, 13).graph).ir_version == 7
    old = graph("g (float[4] x) => (float[4] y) { y = Relu (x) }", 13, ir=7)
    assert proto(at_opset(old, 21).graph).ir_version == 10
    assert at_opset(old, 13).graph is old


@pytest.mark.parametrize(
    ("text", "before", "version", "what"),
    [
        ("g (float[4,4] x) => (float[4,4] y) { y = Softmax <axis = 0> (x) }", 13, 11, "Softmax cannot be written"),
        ("g (int32[4] x) => (int32[4] y) { y = BitwiseNot (x) }", 18, 17, "BitwiseNot came with opset 18"),
        ("g (bfloat16[4] x) => (bfloat16[4] y) { y = Relu (x) }", 14, 12, "bfloat16"),
    ],
)
def test_what_a_version_does_not_have_is_named(text: str, before: int, version: int, what: str) -> None:
    with pytest.raises(Unsupported, match=what) as error:
        at_opset(graph(text, before), version)
    assert error.value.where


def test_versions_that_do_not_exist() -> None:
    given = graph("g (float[4] x) => (float[4] y) { y = Relu (x) }", 21)
    with pytest.raises(InvalidOption, match="opset: 99 does not exist; versions go from 1 to"):
        at_opset(given, 99)
    with pytest.raises(InvalidOption):
        superopt.optimize(given, opset=0)


def test_what_no_record_reads_is_run() -> None:
    """The LSTM of opset 14 has an attribute more than that of opset 7, which the node does not use."""
    rng = np.random.default_rng(0)
    nodes = [onnx.helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=3)]
    weights = [
        onnx.numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n)
        for n, s in (("w", (1, 12, 4)), ("r", (1, 12, 3)))
    ]
    x, y = (onnx.helper.make_tensor_value_info(n, 1, s) for n, s in (("x", (5, 2, 4)), ("y", (5, 1, 2, 3))))
    made = onnx.helper.make_graph(nodes, "g", [x], [y], weights)
    given = from_onnx(onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=7))
    assert at_opset(given, 17).unproved
    _, (note,) = written_at_opset(given, Options(opset=17), TimeBudget.of(60.0))
    assert note.endswith("it computes the same")


def test_functions_are_replaced_by_their_bodies() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "own": 1]> g (float[2,3] x) => (float[2] y) { y = own.f (x) }\n'
        '<domain: "own", opset_import: ["": 17]> f (x) => (y) '
        "{ a = Constant <value_ints = [1]> ()  y = ReduceSum <keepdims = 0> (x, a) }"
    )
    result = superopt.optimize(from_onnx(model), opset=12, effort="quick", target="profile:cpu-epyc-2core")
    assert result.graph.opset[""] == 12
    assert [n.op for n in result.graph.nodes] == ["ReduceSum"]
    assert "written at opset 12 instead of 17" in " ".join(result.report.json()["notes"])
