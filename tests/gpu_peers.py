"""The GPU peers of ``make gpu-record``: ``torch.compile(mode="max-autotune")``, and XLA where torch_xla is installed.

PyTorch, onnx2torch and torch_xla are needed by this file alone. Float32 stays float32 (no TF32), as in our ``ieee``
profile; inputs stay on the device; times are the device's own, medians over rounds of several inferences.
"""

from __future__ import annotations

import importlib
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np

from superopt import formats
from superopt.benchmark.inductor import older
from superopt.ir.graph import Graph
from superopt.runtime.synthetic_tensors import with_values

__all__ = ["PEERS", "missing", "time_peer"]

PEERS: Mapping[str, dict[str, Any]] = {  # the quick one first: autotuning takes minutes a model
    "torch.compile(reduce-overhead)": {"mode": "reduce-overhead"},
    "torch.compile(max-autotune)": {"mode": "max-autotune"},
    "XLA": {"backend": "openxla"},
}
_NEEDS = {
    "torch.compile(reduce-overhead)": ("torch", "onnx2torch"),
    "torch.compile(max-autotune)": ("torch", "onnx2torch"),
    "XLA": ("torch", "onnx2torch", "torch_xla"),
}
_ROUNDS, _ROUND_SECONDS, _MOST = 15, 0.05, 200
_TOLERANCE = 1e-2  # relative to the largest output: a wrong result is no figure, a rounding is no error


def missing(peer: str) -> str:
    """What of a peer is not installed; empty where all is."""
    return ", ".join(m for m in _NEEDS[peer] if util.find_spec(m) is None)


def time_peer(peer: str, graph: Graph, feeds: Mapping[str, np.ndarray], device: str = "cuda") -> dict[str, Any]:
    """Microseconds of one inference by a peer, how long it compiled, and how far its outputs are from ONNX Runtime's.

    Args:
        peer: of :data:`PEERS`.
        graph: the model; its shape-only weights get random elements.
        feeds: inputs.
        device: ``cuda``; ``cpu`` is for testing this function.

    Raises:
        RuntimeError: the peer cannot convert, compile or run it, or it computes something else.
    """
    torch: Any = importlib.import_module("torch")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    graph = with_values(graph)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        formats.save(graph, path)
        module = importlib.import_module("onnx2torch").convert(older(path)).eval().to(device)
        wanted = _reference(path, feeds)
    inputs = [torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in feeds.values()]
    started = time.monotonic()
    function = torch.compile(_with_shapes(module), **PEERS[peer])

    def step() -> Any:
        with torch.no_grad():
            return function(*inputs)

    made = step()
    compiled = time.monotonic() - started
    outputs = [m.cpu().numpy() for m in (made if isinstance(made, tuple | list) else (made,))]
    error = max(_distance(a, b) for a, b in zip(outputs, wanted, strict=True))
    if not error <= _TOLERANCE:
        raise RuntimeError(f"{peer} computes something else: off by {error:.2g} of the largest output")
    return {"us": _timed(step, _clock(torch, device)), "compile_seconds": compiled, "error": error}


def _with_shapes(module: Any) -> Any:
    """A module of onnx2torch whose reshapes are to numbers: Dynamo does not follow how it reads them off a tensor."""
    for node in module.graph.nodes:
        known = node.op == "call_module" and type(module.get_submodule(node.target)).__name__ == "OnnxReshape"
        if known and node.args[1].op == "get_attr":
            held = module
            for part in node.args[1].target.split("."):
                held = getattr(held, part)
            node.op, node.target, node.args = "call_function", _reshaped, (node.args[0], tuple(held.tolist()))
    module.recompile()
    return module


def _reshaped(x: Any, sizes: tuple[int, ...]) -> Any:
    """ONNX's Reshape: 0 keeps a size."""
    return x.reshape([x.shape[i] if n == 0 else n for i, n in enumerate(sizes)])


def _reference(path: Path, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    from superopt.runtime.onnx_runtime import make_session, run

    return list(run(make_session(path), feeds).values())


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    if a.shape != b.shape:
        return float("inf")
    wide = b.astype(np.float64)
    return float(np.max(np.abs(a - wide), initial=0.0) / max(np.max(np.abs(wide), initial=0.0), 1e-30))


def _clock(torch: Any, device: str) -> Callable[[Callable[[], Any], int], float]:
    """Microseconds of several runs: by events on a GPU, by the wall clock elsewhere."""

    def events(step: Callable[[], Any], count: int) -> float:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            step()
        stop.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(stop)) * 1e3 / count

    def wall(step: Callable[[], Any], count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            step()
        return 1e6 * (time.perf_counter() - start) / count

    return events if device == "cuda" else wall


def _timed(step: Callable[[], Any], clock: Callable[[Callable[[], Any], int], float]) -> float:
    for _ in range(3):
        step()
    count = int(min(max(1e6 * _ROUND_SECONDS / max(clock(step, 2), 1.0), 1), _MOST))
    return statistics.median(clock(step, count) for _ in range(_ROUNDS))
