"""Small graphs for runtimes, and runtimes that go wrong on purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx

from superopt.ir.errors import Unsupported
from superopt.ir.graph import Graph, Node, Value, Weight, constant
from superopt.ir.types import DType, TensorType
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.protocol import InputBoundModel, LoadedModel, TracedKernel
from superopt.runtime.synthetic_tensors import sample


def typed(*shape: int) -> TensorType:
    return TensorType(DType.FLOAT32, shape)


IMAGE, ROWS = typed(1, 16, 8, 8), typed(2, 8, 16)
_IMAGES = frozenset({"BatchNormalization", "Conv", "ConvTranspose", "GlobalAveragePool", "Resize"})
_ATTRIBUTES: Mapping[str, Mapping[str, object]] = {
    "Conv": {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}, "Transpose": {"perm": (0, 2, 1)}, "Softmax": {"axis": -1},
}  # fmt: skip


def chain(*ops: str) -> Graph:
    """Each operator on the last one's result, with weights wherever it takes more arguments."""
    image = any(op in _IMAGES for op in ops) and "Gemm" not in ops
    weights: list[Weight] = []

    def drawn(*shape: int) -> str:
        weights.append(constant(f"w{len(weights)}", sample(typed(*shape), len(weights))))
        return weights[-1].name

    def given(array: np.ndarray) -> str:
        weights.append(constant(f"w{len(weights)}", array))
        return weights[-1].name

    def others(op: str) -> list[str]:
        if op in ("Add", "Sub", "Mul", "Div"):
            return [drawn(16, 1, 1) if image else drawn(16)]
        if op == "BatchNormalization":
            return [drawn(16) for _ in range(4)]
        if op in ("Conv", "ConvTranspose"):
            return [drawn(16, 16, 3, 3)]
        if op in ("Gemm", "MatMul"):
            return [drawn(16, 16), drawn(16)][: 2 if op == "Gemm" else 1]
        if op == "LayerNormalization":
            return [drawn(16), drawn(16)]
        if op == "Resize":
            return ["", given(np.array([1, 1, 2, 2], np.float32))]
        if op == "ReduceMean":
            return [given(np.array([-1], np.int64))]
        return [drawn(1)] if op in ("Pow", "PRelu") else []

    names = ["x", *(f"v{i}" for i in range(len(ops) - 1)), "y"]
    nodes = tuple(
        Node(f"n{i}", op, (names[i], *others(op)), (names[i + 1],), dict(_ATTRIBUTES.get(op, {})))
        for i, op in enumerate(ops)
    )
    kind = typed(8, 16) if "Gemm" in ops else IMAGE if image else ROWS
    return Graph("chain", (Value("x", kind),), (Value("y", None),), tuple(weights), nodes, {"": 21})


@dataclass
class _Strayed:
    loaded: LoadedModel
    by: float

    def run(
        self, feeds: Mapping[str, np.ndarray], outputs: Sequence[str], *, time_limit: float | None = None
    ) -> dict[str, np.ndarray]:
        found = self.loaded.run(feeds, outputs, time_limit=time_limit)
        return {name: (array * np.float32(self.by)).astype(array.dtype) for name, array in found.items()}

    def bound(
        self,
        feeds: Mapping[str, np.ndarray],
        *,
        like: InputBoundModel | None = None,
        over: Mapping[str, str] = MappingProxyType({}),
    ) -> InputBoundModel:
        return self.loaded.bound(feeds, like=like, over=over)


@dataclass
class Odd:
    """ONNX Runtime, but for models of some operators: their outputs are multiplied, or they are refused."""

    strays: Mapping[str, float]
    refuses: frozenset[str] = frozenset()
    name: str = "odd"
    version: str = "1"
    lowers: bool = False
    apart: str = "Relu"

    def load(self, model: bytes | Path, *, threads: int | None = None, optimise: bool = True) -> LoadedModel:
        content = model if isinstance(model, bytes) else model.read_bytes()
        ops = {n.op_type for n in onnx.load_from_string(content).graph.node}
        if ops & self.refuses:
            raise Unsupported(f"odd does not know {sorted(ops & self.refuses)[0]}")
        by = next((f for op, f in self.strays.items() if op in ops), 1.0)
        return _Strayed(ONNX_RUNTIME.load(model, threads=threads, optimise=optimise), by)

    def lowered(self, model: bytes) -> bytes:
        raise Unsupported("odd does not hand it out")

    def trace(self, model: bytes, feeds: Mapping[str, np.ndarray], *, runs: int = 9) -> tuple[TracedKernel, ...]:
        return ONNX_RUNTIME.trace(model, feeds, runs=runs)
