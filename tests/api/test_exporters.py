"""Exporters that call OnnxSlim, with superopt in its place (each skipped where the exporter is not installed)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import superopt
from superopt.runtime.onnx_runtime import ONNX_RUNTIME


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
