"""``superopt.slim`` and ``superopt.simplify`` in the place of OnnxSlim's and onnxsim's calls."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import superopt
from superopt import cli, formats
from superopt.ir.errors import InvalidModel, InvalidOption, ResourceLimit, UsageError
from superopt.pipeline.integrations import drop_in
from superopt.runtime.onnx_runtime import ONNX_RUNTIME

FAST: dict[str, Any] = {"settings": {"target": "profile:cpu-epyc-2core"}}


def exported(batch: int | str = "N") -> onnx.ModelProto:
    """Two linear layers in a row and a double transpose, with names, metadata and versions of an exporter."""
    weights = {
        "a": np.arange(64, dtype=np.float32).reshape(8, 8) / 64, "b": np.eye(8, dtype=np.float32)[::-1].copy(),
    }  # fmt: skip
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("Transpose", ["t"], ["u"], perm=[1, 0]),
        helper.make_node("MatMul", ["u", "a"], ["v"]),
        helper.make_node("MatMul", ["v", "b"], ["y"]),
    ]
    kind = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, 8])  # noqa: E731
    initializers = [numpy_helper.from_array(w, n) for n, w in weights.items()]
    graph = helper.make_graph(nodes, "exported", [kind("x")], [kind("y")], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="torch")
    helper.set_model_props(model, {"stride": "32", "names": "{0: 'person'}"})
    return model


def outputs(model: onnx.ModelProto, rows: int = 3) -> np.ndarray:
    feeds = {"x": np.random.default_rng(0).normal(size=(rows, 8)).astype(np.float32)}
    return ONNX_RUNTIME.load(model.SerializeToString()).run(feeds, ["y"])["y"]


def check_slimmed(model: onnx.ModelProto) -> None:
    """Fewer nodes, the same values, and all else as the exporter wrote it."""
    before = exported()
    assert len(model.graph.node) < len(before.graph.node)
    np.testing.assert_allclose(outputs(model), outputs(before), rtol=1e-5)
    assert (model.ir_version, model.producer_name, model.graph.name) == (8, "torch", "exported")
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 17)]
    assert {p.key: p.value for p in model.metadata_props} == {"stride": "32", "names": "{0: 'person'}"}
    assert [v.name for v in (*model.graph.input, *model.graph.output)] == ["x", "y"]


def test_a_model_in_memory_is_slimmed_and_not_changed() -> None:
    model = exported()
    given = model.SerializeToString()
    slimmed = superopt.slim(model, **FAST)
    assert slimmed is not None
    check_slimmed(slimmed)
    assert model.SerializeToString() == given


@pytest.mark.parametrize("place", ["second", "output_model"])
def test_a_file_is_written_over_an_older_one(tmp_path: Path, place: str) -> None:
    source, target = tmp_path / "model.onnx", tmp_path / "slim.onnx"
    onnx.save(exported(), source)
    target.write_bytes(b"older")
    arguments, named = ((str(target),), {}) if place == "second" else ((), {"output_model": str(target)})
    assert superopt.slim(str(source), *arguments, **named, **FAST) is None
    check_slimmed(onnx.load(target))


def test_a_file_may_take_its_own_place(tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    onnx.save(exported(), source)
    superopt.slim(source, source, **FAST)
    check_slimmed(onnx.load(source))


def test_simplify_answers_as_onnxsim_does() -> None:
    simplified, checked = superopt.simplify(exported(), 3, True, skip_fuse_bn=False, **FAST)
    assert checked is True
    check_slimmed(simplified)


def test_simplify_writes_a_file_where_it_is_told_to(tmp_path: Path) -> None:
    superopt.simplify(exported(), output_path=tmp_path / "out.onnx", **FAST)
    check_slimmed(onnx.load(tmp_path / "out.onnx"))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ResourceLimit("too large for this machine"), "too large for this machine"),
        (MemoryError(), "out of memory"),
        (KeyError("a bug"), "internal error: KeyError"),
    ],
)
def test_what_cannot_be_optimised_comes_back_with_a_warning(
    error: Exception, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(drop_in, "optimize", fails)
    model = exported()
    with pytest.warns(RuntimeWarning, match=f"the model is returned as it was: {text}") as caught:
        assert superopt.slim(model) is model
    assert caught[0].filename == __file__
    with pytest.warns(RuntimeWarning, match=text):
        simplified, checked = superopt.simplify(model)
    assert checked is False
    assert [n.op_type for n in simplified.graph.node] == [n.op_type for n in model.graph.node]


@pytest.mark.parametrize("shapes", [{"x": [4, 8]}, ["x:4,8"]])
def test_input_shapes_are_fixed(shapes: Any) -> None:
    slimmed = superopt.slim(exported(), input_shapes=shapes, **FAST)
    assert slimmed is not None
    for value in (slimmed.graph.input[0], slimmed.graph.output[0]):
        assert [d.dim_value for d in value.type.tensor_type.shape.dim] == [4, 8]
    simplified, _ = superopt.simplify(exported(), overwrite_input_shapes={"x": [4, 8]}, **FAST)
    assert [d.dim_value for d in simplified.graph.output[0].type.tensor_type.shape.dim] == [4, 8]
    simplified, _ = superopt.simplify(exported(), 0, True, False, {"x": [4, 8]}, **FAST)
    assert [d.dim_value for d in simplified.graph.output[0].type.tensor_type.shape.dim] == [4, 8]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"z": [4, 8]}, "no input 'z'; it has x"),
        ({"x": [4]}, "no 1 dimensions"),
        ({"x": [4, 9]}, "has 8 where 9 is given"),
        ({"x": [0, 8]}, "takes positive sizes"),
        (["x"], "takes positive sizes"),
        (["x:a,b"], "takes positive sizes"),
        (5, "takes positive sizes"),
    ],
)
def test_input_shapes_that_do_not_fit_are_named(shapes: Any, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        superopt.slim(exported(), input_shapes=shapes)


@pytest.mark.parametrize(
    ("function", "keywords", "message"),
    [
        (superopt.slim, {"dtype": "float16"}, "does not do 'dtype'; convert the model before"),
        (superopt.slim, {"model_chek": True}, "no option 'model_chek'; did you mean model_check"),
        (superopt.slim, {"zzz": 1}, "settings="),
        (superopt.slim, {"settings": {"tmie_limit": 1}}, "did you mean time_limit"),
        (superopt.simplify, {"custom_rewriter": print}, "call the rewriter before"),
        (superopt.simplify, {"check": 1}, "no option 'check'"),
    ],
)
def test_keywords_are_taken_or_named(function: Any, keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        function(exported(), **keywords)


def test_a_broken_model_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"\x08\x07broken")
    with pytest.raises(InvalidModel):
        superopt.slim(tmp_path / "broken.onnx")


def test_the_command_writes_what_the_call_returns(tmp_path: Path) -> None:
    source, target = tmp_path / "model.onnx", tmp_path / "slim.onnx"
    onnx.save(exported(), source)
    ran = CliRunner().invoke(cli.app, ["slim", str(source), str(target)])
    assert ran.exit_code == 0, ran.output
    assert "wrote" in ran.output
    assert formats.load(target).nodes != formats.load(source).nodes
    again = CliRunner().invoke(cli.app, ["slim", str(source), str(target)])
    assert isinstance(again.exception, UsageError)  # it exists


def test_every_keyword_of_the_tools_is_known() -> None:
    onnxslim, onnxsim = pytest.importorskip("onnxslim"), pytest.importorskip("onnxsim")
    own = {"model", "output_model", "input_shapes", "overwrite_input_shapes", "output_path", "inline_functions"}
    for function, names in (
        ("slim", set(get_type_hints(onnxslim.cli._main.OnnxSlimKwargs))),
        ("simplify", set(inspect.signature(onnxsim.simplify).parameters)),
    ):
        known = {*drop_in._WITHOUT_EFFECT[function], *drop_in._REFUSED[function], *own}
        assert names <= known, sorted(names - known)
