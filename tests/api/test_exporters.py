"""Exporters that call OnnxSlim, with superopt in its place (each skipped where the exporter is not installed)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from superopt.runtime.onnx_runtime import ONNX_RUNTIME


def _identity_model() -> onnx.ModelProto:
    nodes = [helper.make_node("Identity", ["x"], ["same"]), helper.make_node("Relu", ["same"], ["y"])]
    kinds = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in ("x", "y")]
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(helper.make_graph(nodes, "g", kinds[:1], kinds[1:]), opset_imports=opset)


def test_ultralytics_exports_with_one_line_patched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnxslim = pytest.importorskip("onnxslim")
    ultralytics = pytest.importorskip("ultralytics")
    monkeypatch.chdir(tmp_path)
    model = ultralytics.YOLO("yolov8n-cls.yaml")  # by its description: no weights are loaded
    plain = onnx.load(model.export(format="onnx", simplify=False, imgsz=64))
    called: list[str] = []

    def slim(given: onnx.ModelProto) -> onnx.ModelProto | None:
        called.append(given.graph.name)
        return superopt.slim(given, settings={"target": "profile:cpu-epyc-2core"})

    monkeypatch.setattr(onnxslim, "slim", slim)
    slimmed = onnx.load(model.export(format="onnx", simplify=True, imgsz=64))
    assert called
    assert len(slimmed.graph.node) < len(plain.graph.node)
    assert {p.key for p in slimmed.metadata_props} == {p.key for p in plain.metadata_props}
    feeds = {"images": np.random.default_rng(0).random((1, 3, 64, 64), np.float32)}
    ours, theirs = (ONNX_RUNTIME.load(m.SerializeToString()).run(feeds, ["output0"]) for m in (slimmed, plain))
    np.testing.assert_allclose(ours["output0"], theirs["output0"], rtol=1e-3, atol=1e-5)


def test_a_workflow_of_olive_runs_the_pass(tmp_path: Path) -> None:
    workflows = pytest.importorskip("olive.workflows")
    from superopt.pipeline.integrations.olive_pass import package_config

    source = tmp_path / "model.onnx"
    onnx.save(_identity_model(), source)
    workflow = {
        "input_model": {"type": "OnnxModel", "model_path": str(source)},
        "passes": {"slim": {"type": "SuperoptSlim", "settings": {"target": "profile:cpu-epyc-2core"}}},
        "output_dir": str(tmp_path / "out"), "cache_dir": str(tmp_path / "cache"),
    }  # fmt: skip
    workflows.run(workflow, package_config=package_config())
    (written,) = (tmp_path / "out").rglob("*.onnx")
    assert [n.op_type for n in onnx.load(written).graph.node] == ["Relu"]


def test_optimum_has_a_sub_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optimum.commands.optimum_cli")
    from optimum.commands import optimum_cli

    from superopt.pipeline.integrations.optimum_command import register

    registered = register()
    try:
        source, output = tmp_path / "exported", tmp_path / "slim"
        source.mkdir()
        (source / "config.json").write_text("{}")
        onnx.save(_identity_model(), source / "model.onnx")
        monkeypatch.setattr("sys.argv", ["optimum-cli", "superopt", "--onnx_model", str(source), "-o", str(output)])
        optimum_cli.main()
    finally:
        registered.unlink()
    assert [n.op_type for n in onnx.load(output / "model.onnx").graph.node] == ["Relu"]
    assert (output / "config.json").read_text() == "{}"
