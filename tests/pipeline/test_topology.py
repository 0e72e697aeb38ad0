"""Weights that stay at home: what is sent holds none, and what comes back is applied, folded, checked and proved."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, helper
from sampling import slow
from typer.testing import CliRunner

from superopt import pipeline
from superopt.cli import app
from superopt.formats import from_onnx, load, save, to_json, to_onnx
from superopt.formats.function_inlining import MODEL
from superopt.ir.errors import InvalidModel, NotEquivalent, Unsupported
from superopt.ir.graph import ArrayWeightData, Graph, Node, OpaqueAttribute, Value, Weight
from superopt.ir.types import DType, TensorType
from superopt.pipeline.weightless_optimization import apply, topology
from superopt.verifier.equivalence.graphs import PROVED, ROUNDED, verify

TINY = Path(__file__).resolve().parents[2] / "corpus" / "tiny"
TARGET = "profile:cpu-epyc-2core"


def patched(name: str) -> tuple[Graph, Graph, Graph]:
    """A model, the patch that its topology became, and the result."""
    model = load(TINY / f"{name}.json")
    patch = pipeline.optimize(topology(model), target=TARGET, time_limit=30).graph
    made, found = apply(model, patch)
    assert found is not None
    assert found.verdict == "passed"
    return model, patch, made


@pytest.mark.parametrize("name", ["lora", "deep_linear", slow("mobileone_s0")])
def test_what_comes_back_is_applied_folded_and_proved(name: str) -> None:
    model, patch, made = patched(name)
    assert all(w.data is None for w in topology(model).weights if w.type.dtype.is_float and w.type.elements != 1)
    direct = pipeline.optimize(model, target=TARGET, time_limit=30).graph
    assert len(made.nodes) <= len(direct.nodes) + 1  # weights alone make no nodes
    assert len(made.nodes) < len(patch.nodes)
    if name != "mobileone_s0":  # its proof takes a while; the check passed
        assert verify(model, made, trials=1).verdict in (PROVED, ROUNDED)


def test_no_element_of_a_weight_is_sent() -> None:
    kind = TensorType(DType.FLOAT32, (3,))
    secret = np.array([0.123456, 7.654321, 3.141592], np.float32)
    nodes = (
        Node("c", "Constant", (), ("k",), {"value": Weight("value", kind, ArrayWeightData(secret))}),
        Node("m", "Mul", ("x", "w"), ("p",), doc="0.123456", metadata={"note": "7.654321"}),
        Node("a", "Add", ("p", "k"), ("y",)),
    )
    weight = Weight("w", kind, ArrayWeightData(secret), doc="3.141592")
    ends = (Value("x", kind), Value("y", kind))
    model = Graph("secret", ends[:1], ends[1:], (weight,), nodes, {"": 21}, metadata={"weights": "0.123456"}).checked()
    text = json.dumps(to_json(topology(model)))
    for digits in ("0.123456", "7.654321", "3.141592"):
        assert digits not in text
    made, _ = apply(model, topology(model))
    assert verify(model, made, trials=1).verdict == PROVED


@pytest.mark.parametrize("value", [OpaqueAttribute(b"a subgraph"), tuple(float(i) for i in range(100)), b"x" * 100])
def test_where_parameters_cannot_be_left_out_nothing_is_sent(value: object) -> None:
    kind = TensorType(DType.FLOAT32, (3,))
    node = Node("t", "Trees", ("x",), ("y",), {"numbers": value}, "ai.onnx.ml")  # type: ignore[dict-item]
    model = Graph("g", (Value("x", kind),), (Value("y", kind),), (), (node,), {"": 21, "ai.onnx.ml": 3})
    with pytest.raises(Unsupported, match="numbers"):
        topology(model)
    own = ModelProto(functions=[helper.make_function("own", "f", ["a"], ["b"], [], [])]).SerializeToString()
    with pytest.raises(Unsupported, match="functions of its own"):
        topology(replace(model, nodes=(), outputs=model.inputs, extras={MODEL: own}))


def test_what_a_file_says_besides_stays_at_home() -> None:
    """An exporter's name, an IR version, annotations: none of them is sent, and the result has them again."""
    model = to_onnx(load(TINY / "lora.json"))
    model.producer_name, model.ir_version = "an exporter", 8
    model.graph.quantization_annotation.add(tensor_name=model.graph.initializer[0].name)
    graph = from_onnx(model)
    assert "an exporter" not in json.dumps(to_json(topology(graph)))
    made, _ = apply(graph, topology(graph))
    again = to_onnx(made)
    assert (again.producer_name, again.ir_version) == ("an exporter", 8)
    assert again.graph.quantization_annotation == model.graph.quantization_annotation


def test_a_patch_of_another_model_is_refused() -> None:
    model, other = load(TINY / "lora.json"), load(TINY / "lstm.json")
    with pytest.raises(InvalidModel, match="another model"):
        apply(model, topology(other))
    bare = topology(model)
    name = next(w.name for w in bare.weights if w.data is None)
    renamed = replace(
        bare, weights=tuple(replace(w, name="foreign") if w.name == name else w for w in bare.weights),
        nodes=tuple(replace(n, inputs=tuple("foreign" if i == name else i for i in n.inputs)) for n in bare.nodes),
    )  # fmt: skip
    with pytest.raises(InvalidModel, match="foreign"):
        apply(model, renamed)


def test_a_patch_that_lies_is_refused() -> None:
    model = load(TINY / "lora.json")
    bare = topology(model)
    at = next(i for i, n in enumerate(bare.nodes) if n.op == "Add")
    lie = replace(bare, nodes=tuple(replace(n, op="Sub") if i == at else n for i, n in enumerate(bare.nodes)))
    with pytest.raises(NotEquivalent):
        apply(model, lie)


def test_the_commands(tmp_path: Path) -> None:
    model, bare, made = TINY / "lora.json", tmp_path / "t.json", tmp_path / "out.onnx"
    run = CliRunner().invoke
    assert run(app, ["strip", str(model), "-o", str(bare)]).exit_code == 0
    patch = pipeline.optimize(bare, target=TARGET, time_limit=30).graph
    save(patch, tmp_path / "patch.json")
    done = run(app, ["apply", str(model), str(tmp_path / "patch.json"), "-o", str(made)])
    assert done.exit_code == 0, done.output
    assert "check passed" in done.output
    assert len(load(made).nodes) < len(load(model).nodes)
    assert run(app, ["strip", str(model), "-o", str(tmp_path / "t.onnx")]).exit_code != 0
