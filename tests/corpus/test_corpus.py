"""The corpus: its files are what its script writes, they run, and they are the architectures they claim to be."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest

from superopt import formats
from superopt.formats.weight_data import RandomWeightData
from superopt.ir.graph import structural_hash
from superopt.ir.size_polynomial import value_at
from superopt.ir.types import TensorType
from superopt.ops.shape_inference import OpaqueNode, infer
from superopt.runtime import onnx_runtime, reference

ROOT = Path(__file__).resolve().parents[2]


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("superopt_corpus_build", ROOT / "corpus" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


BUILD = _script()
MODELS = {m.name: m for m in BUILD.MODELS}
TINY = [name for name, m in MODELS.items() if m.tiny is not None]
OUTSIDE_THE_VOCABULARY = {"quantised": {"QuantizeLinear", "DequantizeLinear"}}


def test_every_file_is_what_the_script_writes(tmp_path: Path) -> None:
    BUILD.write(BUILD.MODELS, tmp_path, with_manifest=True)
    fresh = {p.relative_to(tmp_path): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    committed = {
        p.relative_to(BUILD.CORPUS) for pattern in ("*.json", "tiny/*.json") for p in BUILD.CORPUS.glob(pattern)
    }
    stale = [str(p) for p, data in fresh.items() if (BUILD.CORPUS / p).read_bytes() != data]
    assert stale == [], "run: python corpus/build.py"
    assert {p for p in committed if p not in fresh and "baseline" not in p.name} == set()
    assert max(len(data) for data in fresh.values()) < 500_000


@pytest.mark.parametrize("name", TINY)
def test_tiny_models_run(name: str) -> None:
    graph = formats.load(BUILD.CORPUS / "tiny" / f"{name}.json")
    onnx.checker.check_model(formats.to_onnx(graph), full_check=True)
    feeds = BUILD.feeds(graph)
    outputs = onnx_runtime.run(BUILD.session(graph, threads=1), feeds)
    for value in graph.outputs:
        array = outputs[value.name]
        assert isinstance(value.type, TensorType)
        assert value.type.shape is not None
        assert np.isfinite(array).all()
        assert all(not isinstance(d, int) or d == n for d, n in zip(value.type.shape, array.shape, strict=True))
    # Neither vanishing nor exploding: an error of 1 % somewhere inside must be visible at an output.
    assert 1e-2 < max(float(np.abs(a).max()) for a in outputs.values()) < 1e3


@pytest.mark.parametrize("name", TINY)
def test_the_reference_agrees_with_onnx_runtime(name: str) -> None:
    graph = MODELS[name].tiny_graph()
    feeds = BUILD.feeds(graph, seed=1)
    expected, measured = reference.run(graph, feeds), onnx_runtime.run(BUILD.session(graph, threads=1), feeds)
    for output, array in measured.items():
        scale = max(1.0, float(np.abs(expected[output]).max()))
        np.testing.assert_allclose(array / scale, expected[output] / scale, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_the_operators_records_cover_the_model(name: str) -> None:
    graph = MODELS[name].graph()
    typing = infer(graph)
    allowed = OUTSIDE_THE_VOCABULARY.get(name, set())
    if not allowed:
        assert [
            (n.op, a.reason) for n, a in zip(graph.nodes, typing.nodes, strict=True) if isinstance(a, OpaqueNode)
        ] == []
        for value in graph.outputs:
            assert typing.types[value.name] == value.type
    assert allowed <= {n.op for n in graph.nodes}


# Parameters in millions as published (by the papers, torchvision or the original weights); ours count running
# statistics, training branches and an untied or shortened table where noted, hence the tolerance.
PUBLISHED = {
    "resnet18": (11.69, 0.01), "resnet50": (25.56, 0.01), "resnext50": (25.03, 0.01), "vgg16": (138.36, 0.001),
    "squeezenet": (1.24, 0.01), "densenet121": (7.98, 0.02), "googlenet": (6.62, 0.01), "inception_v3": (23.83, 0.01),
    "mobilenet_v2": (3.50, 0.02), "mobilenet_v3_small": (2.54, 0.02), "efficientnet_b0": (5.29, 0.02),
    "shufflenet_v2": (2.28, 0.02), "regnet_y": (4.34, 0.02), "convnext_tiny": (28.59, 0.001), "nasnet_a": (5.29, 0.02),
    "mobileone_s0": (5.29, 0.02), "repvgg_a0": (9.11, 0.02), "bert": (109.48, 0.01), "vit_b16": (86.57, 0.001),
    "t5_encoder": (35.33, 0.01), "mlp_mixer": (59.88, 0.001), "whisper_encoder": (8.21, 0.02),
    "swin_tiny": (28.29, 0.02), "gpt2_last": (81.9, 0.02), "unet": (31.04, 0.01), "conv_tasnet": (5.1, 0.03),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_true_sizes(name: str) -> None:
    expected, tolerance = PUBLISHED[name]
    assert BUILD.parameters(MODELS[name].graph()) / 1e6 == pytest.approx(expected, rel=tolerance)


STRUCTURE = {
    # 1 + 8·2 + ... : scale and branch convolutions of each block, in training form.
    "mobileone_s0": {"Conv": 2 + 21 * (1 + 4) + 21 * 4, "Gemm": 1},
    "repvgg_a0": {"Conv": 2 * 22, "BatchNormalization": 2 * 22 + 17},
    "resnet50": {"Conv": 53, "BatchNormalization": 53},
    "inception_v3": {"Conv": 94, "BatchNormalization": 94, "Concat": 15},
    "nasrnn": {"MatMul": 8 * 16},
    "lstm": {"MatMul": 8 * 8, "Sigmoid": 8 * 3, "Tanh": 8 * 2},
    "bert": {"LayerNormalization": 25, "MatMul": 12 * 8 + 1, "Softmax": 12, "Erf": 12},
    "bert_2": {"LayerNormalization": 5, "Softmax": 2},
    "gpt2": {"Softmax": 4, "Tanh": 4},
    "lora": {"MatMul": 6 * 2 * 3},
    "segformer": {"MatMul": 4, "Resize": 3, "Concat": 1, "Conv": 2},
}


@pytest.mark.parametrize("name", STRUCTURE)
def test_true_architectures(name: str) -> None:
    counts = Counter(n.op for n in MODELS[name].graph().nodes)
    assert {op: counts[op] for op in STRUCTURE[name]} == STRUCTURE[name]


def test_weights_are_lazy_distinct_and_seeded() -> None:
    for model in BUILD.MODELS:
        graph = model.graph()
        seeds = [w.data.seed for w in graph.weights if isinstance(w.data, RandomWeightData)]
        assert len(set(seeds)) == len(seeds), model.name


@pytest.mark.parametrize("name", ["mobileone_s0", "bert_2", "dynamic_bert"])
def test_a_model_survives_onnx(name: str) -> None:
    graph = MODELS[name].tiny_graph()
    back = formats.from_onnx(formats.to_onnx(graph))
    assert [n.op for n in back.nodes] == [n.op for n in graph.nodes]
    assert [v.type for v in back.inputs] == [v.type for v in graph.inputs]
    assert structural_hash(back, values=False) == structural_hash(graph, values=False)


def test_dynamic_sizes_stay_symbolic() -> None:
    value = MODELS["dynamic_bert"].graph().outputs[0]
    assert isinstance(value.type, TensorType)
    assert value.type.shape is not None
    assert [value_at(d, {"batch": 2, "sequence": 5}) for d in value.type.shape] == [2, 5, 768]
    assert not value.type.is_static


def test_the_manifest_lists_every_model() -> None:
    with (BUILD.CORPUS / "manifest.toml").open("rb") as file:
        rows = tomllib.load(file)["model"]
    assert [r["name"] for r in rows] == list(MODELS)
    for row in rows:
        assert row["why"]
        assert row["paper"]
        assert (BUILD.CORPUS / row["file"]).is_file()
        assert (BUILD.CORPUS / row["tiny"]).is_file()


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        BUILD.main(["resnet5"])
    assert "no model 'resnet5'" in capsys.readouterr().err


def test_check_finds_a_stale_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert BUILD.main(["gru", "--out", str(tmp_path)]) == 0
    assert BUILD.main(["gru", "--check", "--out", str(tmp_path)]) == 0
    path = tmp_path / "tiny" / "gru.json"
    path.write_text(path.read_text().replace('"seed": 1,', '"seed": 1001,'))
    assert BUILD.main(["gru", "--check", "--out", str(tmp_path)]) == 1
    assert "not what the script writes" in capsys.readouterr().out
