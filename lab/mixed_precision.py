"""Models in mixed precision: ``python -m lab.mixed_precision [NAME ...] [--precision mixed:bfloat16] [--error E]``.

The table has, for each model of the corpus in its tiny form, the share of nodes and of the weights' bytes that are in
half precision, the bytes of weights and of the file, and the largest error on other inputs than those that superopt
drew: from another seed, in ONNX Runtime, with its optimisations on. The traps (:data:`TRAPS`) are models that overflow
or lose their values in float16; their results have to be finite and within the budget.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import numpy_helper, parser

import superopt
from superopt.formats.onnx_reader import from_onnx
from superopt.formats.onnx_writer import to_onnx_bytes
from superopt.ir.graph import Graph
from superopt.pipeline.shape_defaults import default_sizes
from superopt.runtime.onnx_runtime import make_session, run
from superopt.verifier.check.output_errors import error_inputs, error_of

__all__ = ["MODELS", "TRAPS", "main", "row", "trap"]

MODELS = (
    "bert", "convnext_tiny", "densenet121", "googlenet", "gpt2", "llama_2l", "mlp_mixer", "mobilenet_v2", "resnet18",
    "resnet50", "squeezenet", "swin_tiny", "t5_encoder", "unet", "vgg16", "vit_b16", "wav2letter", "whisper_encoder",
)  # fmt: skip
_HEAD = '<ir_version: 10, opset_import: ["": 18]> g '
_INPUTS, _SEED = 100, 77  # of the comparison
_ROOT = Path(__file__).resolve().parents[1]


def _random(*shape: int, scale: float = 1.0, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).standard_normal(shape) * scale / max(shape[0], 1) ** 0.5
    return np.asarray(drawn, np.float32)


def _number(value: float) -> np.ndarray:
    return np.array(value, np.float32)


# Text of a model, and its weights. Each has a product of matrices before and behind, which half precision may compute.
_W = {"w": _random(64, 64), "v": _random(64, 64, seed=1)}
TRAPS: Mapping[str, tuple[str, Mapping[str, np.ndarray]]] = {
    "overflow": (  # as Gemma's: activations grow along the residual stream, and are normalised at last
        "(float[64, 64] x) => (float[64, 64] y) { a = MatMul(x, w) b = Mul(a, large) c = Add(x, b) d = MatMul(c, v) "
        "e = Mul(d, large) f = Add(c, e) g = LayerNormalization(f, scale) y = MatMul(g, w) }",
        {**_W, "large": _number(400.0), "scale": np.ones(64, np.float32)},
    ),
    "layer norm": (
        "(float[64, 64] x) => (float[64, 64] y) { a = MatMul(x, w) b = Mul(a, large) c = Add(b, shift) "
        "d = LayerNormalization(c, scale) y = MatMul(d, v) }",
        {**_W, "large": _number(3e3), "shift": _number(1e4), "scale": np.ones(64, np.float32)},
    ),
    "softmax": (
        "(float[64, 64] x) => (float[64, 64] y) { a = MatMul(x, w) b = Mul(a, large) c = Softmax(b) y = MatMul(c, v) }",
        {**_W, "large": _number(3e3)},
    ),
    "long sum": (
        "(float[8, 64] x) => (float[8, 64] y) { a = MatMul(x, w) b = Abs(a) c = Add(b, one) u = Unsqueeze(c, last) "
        "d = Expand(u, shape) s = ReduceSum(d, axes) n = Div(s, count) z = Add(a, n) y = MatMul(z, v) }",
        {**_W, "one": _number(1.0), "last": np.array([2], np.int64), "shape": np.array([8, 64, 1500], np.int64),
         "axes": np.array([1, 2], np.int64), "count": _number(96_000.0)},
    ),
    "reciprocal": (
        "(float[64, 64] x) => (float[64, 64] y) { a = MatMul(x, w) b = Abs(a) c = Mul(b, tiny) d = Add(c, least) "
        "e = Reciprocal(d) f = Mul(e, least) g = Tanh(f) y = MatMul(g, v) }",
        {**_W, "tiny": _number(1e-6), "least": _number(1e-7)},
    ),
    "mask": (
        "(float[64, 64] x, bool[64, 64] m) => (float[64, 64] y) { a = MatMul(x, w) t = Transpose(x) s = MatMul(a, t) "
        "k = Cast<to = 1>(m) o = Sub(one, k) p = Mul(o, lowest) q = Add(s, p) r = Softmax(q) z = MatMul(r, x) "
        "y = MatMul(z, v) }",
        {**_W, "one": _number(1.0), "lowest": _number(float(np.finfo(np.float32).min))},
    ),
}  # fmt: skip


def trap(name: str) -> Graph:
    """A model of :data:`TRAPS`."""
    text, weights = TRAPS[name]
    model = parser.parse_model(_HEAD + text)
    used = {n for node in model.graph.node for n in node.input}
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items() if n in used)
    return from_onnx(model)


def row(name: str, graph: Graph | Path, **options: Any) -> dict[str, Any]:
    """A model's row: what is in half precision, and the error on other inputs than those of the optimisation.

    Args:
        name: of the model.
        graph: the model, or its file.
        **options: of :func:`superopt.optimize`.
    """
    result = superopt.optimize(graph, **options)
    found = result.report.precision
    made: dict[str, Any] = {"model": name, "notes": list(result.report.notes)}
    if found is None:
        return made
    before, after = (make_session(to_onnx_bytes(g), threads=1) for g in (result.original, result.graph))
    worst, count = 0.0, 0
    for feeds in error_inputs(result.original, _SEED, default_sizes(result.original, {})):
        old = run(before, feeds)
        worst, count = max(worst, error_of(old, run(after, feeds)).relative), count + 1
        if count == _INPUTS:
            break
    return made | {
        "nodes_half": found.nodes_half, "nodes": found.nodes, "weight_bytes_half": found.weight_bytes_half,
        "weight_bytes": found.weight_bytes, "casts": found.casts, "error": found.error, "error_elsewhere": worst,
        "kept": {f"{k.what}: {k.reason}": k.count for k in found.kept},
        "file": [result.report.file.bytes_before, result.report.file.bytes_after] if result.report.file else None,
    }  # fmt: skip


def _line(found: Mapping[str, Any]) -> str:
    if "nodes" not in found:
        return f"| {found['model']} | – | – | – | – | {'; '.join(found['notes'])} |"
    kept = ", ".join(f"{count} {reason}" for reason, count in found["kept"].items())
    nodes = f"{found['nodes_half']} of {found['nodes']} ({found['nodes_half'] / found['nodes']:.0%})"
    weights = f"{found['weight_bytes_half'] / max(found['weight_bytes'], 1):.0%}"
    return (
        f"| {found['model']} | {nodes} | {weights} | {found['error']:.1e} | {found['error_elsewhere']:.1e} | {kept} |"
    )


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    named = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    named.add_argument("names", nargs="*", help="models of the corpus, and traps; by default, all of both")
    named.add_argument("--precision", default="mixed")
    named.add_argument("--error", type=float, default=1e-3)
    named.add_argument("--target", default="profile:cpu-epyc-2core")
    named.add_argument("--effort", default="quick")
    named.add_argument("--time-limit", type=float, default=1800.0)
    named.add_argument("--json", type=Path, help="write the rows to this file")
    args = named.parse_args(arguments)
    if unknown := [n for n in args.names if n not in (*MODELS, *TRAPS)]:
        named.error(f"there is no {', '.join(unknown)}")
    print("| model | nodes in half precision | weights' bytes | error | on other inputs | in float32 |")
    print("|---|---|--:|--:|--:|---|", flush=True)
    rows = []
    for name in args.names or (*TRAPS, *MODELS):
        graph: Graph | Path = trap(name) if name in TRAPS else _ROOT / "corpus" / "tiny" / f"{name}.json"
        rows.append(
            row(
                name,
                graph,
                precision=args.precision,
                error=args.error,
                target=args.target,
                effort=args.effort,
                time_limit=args.time_limit,
            )
        )
        print(_line(rows[-1]), flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
