"""Blocks of well-known networks as exporters write them: with decimals, Constant nodes, constant subgraphs, BatchNorm.

Small stand-ins for exports of ResNet-34d, EfficientNet, a ViT and Mamba, whose constants ONNX Runtime folds in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["BLOCKS", "Block"]


class Block:
    """A model being written, node by node; weights are seeded."""

    def __init__(self, name: str, opset: int) -> None:
        self.name, self.opset = name, opset
        self.rng = np.random.default_rng(sum(map(ord, name)))
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, *shape: int, scale: float | None = None, around: float = 0.0) -> str:
        """Random float32 numbers; by default scaled by the fan-in."""
        spread = (1.0 / np.prod(shape[1:])) ** 0.5 if scale is None else scale
        return self.numbers(around + spread * self.rng.standard_normal(shape))

    def numbers(self, values: object, dtype: type = np.float32) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype=dtype), name))
        return name

    def op(self, op: str, *inputs: str, to: str = "", **attributes: object) -> str:
        output = to or f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], name=f"{op}_{len(self.nodes)}", **attributes))
        return output

    def constant(self, value: object, dtype: type = np.float32) -> str:
        """A Constant node, as torch's exporter writes scalars."""
        return self.op("Constant", value=numpy_helper.from_array(np.asarray(value, dtype=dtype)))

    def conv_bn(self, x: str, inputs: int, outputs: int, kernel: int, stride: int = 1, group: int = 1) -> str:
        pad = kernel // 2
        weight = self.weight(outputs, inputs // group, kernel, kernel)
        made = self.op("Conv", x, weight, pads=[pad] * 4, strides=[stride] * 2, group=group, kernel_shape=[kernel] * 2)
        scale, beta = self.weight(outputs, scale=0.3, around=1.0), self.weight(outputs, scale=0.5)
        mean, variance = self.weight(outputs, scale=0.8), self.numbers(self.rng.uniform(0.01, 2.0, outputs))
        return self.op("BatchNormalization", made, scale, beta, mean, variance, epsilon=1e-5)

    def model(self, shape: Sequence[int | str], output: str, made: Sequence[int | str]) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes, self.name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, made)], self.weights,
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        return model


def _resnet_d() -> onnx.ModelProto:
    """ResNet-D: a deep stem, and shortcuts of an average pool and a 1x1 convolution (He et al., arXiv:1812.01187)."""
    b = Block("resnet_d", 17)
    x = "x"
    for inputs, outputs, stride in ((3, 8, 2), (8, 8, 1), (8, 16, 1)):
        x = b.op("Relu", b.conv_bn(x, inputs, outputs, 3, stride))
    x = b.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for inputs, outputs, stride in ((16, 16, 1), (16, 24, 2)):
        inner = b.op("Relu", b.conv_bn(x, inputs, outputs, 3, stride))
        inner = b.conv_bn(inner, outputs, outputs, 3)
        side = x
        if stride > 1:
            side = b.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
            side = b.conv_bn(side, inputs, outputs, 1)
        x = b.op("Relu", b.op("Add", inner, side))
    x = b.op("Flatten", b.op("GlobalAveragePool", x), axis=1)
    b.op("Gemm", x, b.weight(10, 24), b.weight(10, scale=0.1), to="y", transB=1)
    return b.model([1, 3, 32, 32], "y", [1, 10])


def _mbconv() -> onnx.ModelProto:
    """EfficientNet's block: expansion, depthwise, squeeze and excitation, SiLU."""
    b = Block("mbconv", 16)

    def silu(x: str) -> str:
        return b.op("Mul", x, b.op("Sigmoid", x))

    x = silu(b.conv_bn("x", 3, 8, 3, 2))
    for _ in range(2):
        wide = silu(b.conv_bn(x, 8, 24, 1))
        wide = silu(b.conv_bn(wide, 24, 24, 5, group=24))
        mean = b.op("ReduceMean", wide, axes=[2, 3], keepdims=1)
        small = silu(b.op("Conv", mean, b.weight(4, 24, 1, 1), b.weight(4, scale=0.1)))
        gate = b.op("Sigmoid", b.op("Conv", small, b.weight(24, 4, 1, 1), b.weight(24, scale=0.1)))
        x = b.op("Add", x, b.conv_bn(b.op("Mul", wide, gate), 24, 8, 1))
    x = b.op("Flatten", b.op("GlobalAveragePool", x))
    b.op("Gemm", x, b.weight(5, 8), b.weight(5, scale=0.1), to="y", transB=1)
    return b.model(["N", 3, 16, 16], "y", ["N", 5])


def _norm(b: Block, x: str, width: int) -> str:
    """LayerNormalization in parts, as exporters wrote it before opset 17."""
    centred = b.op("Sub", x, b.op("ReduceMean", x, axes=[-1], keepdims=1))
    square = b.op("ReduceMean", b.op("Pow", centred, b.constant(2.0)), axes=[-1], keepdims=1)
    spread = b.op("Sqrt", b.op("Add", square, b.constant(1e-6)))
    scaled = b.op("Mul", b.op("Div", centred, spread), b.weight(width, scale=0.2, around=1.0))
    return b.op("Add", scaled, b.weight(width, scale=0.2))


def _linear(b: Block, x: str, inputs: int, outputs: int) -> str:
    return b.op("Add", b.weight(outputs, scale=0.1), b.op("MatMul", x, b.weight(inputs, outputs, scale=inputs**-0.5)))


def _vit() -> onnx.ModelProto:
    """A ViT's layer with sqrt(2) as a decimal, and scores scaled by a constant that is computed."""
    b, width, heads = Block("vit", 16), 16, 2
    x = "x"
    for _ in range(2):
        normal = _norm(b, x, width)
        parts = []
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
            split = b.op(
                "Reshape", _linear(b, normal, width, width), b.constant([1, 6, heads, width // heads], np.int64)
            )
            parts.append(b.op("Transpose", split, perm=perm))
        scale = b.op("Sqrt", b.op("Div", b.constant(1.0), b.op("Sqrt", b.constant(float(width // heads)))))
        scores = b.op("MatMul", b.op("Mul", parts[0], scale), b.op("Mul", parts[1], scale))
        mixed = b.op("Transpose", b.op("MatMul", b.op("Softmax", scores, axis=-1), parts[2]), perm=[0, 2, 1, 3])
        x = b.op("Add", x, _linear(b, b.op("Reshape", mixed, b.constant([1, 6, width], np.int64)), width, width))
        wide = _linear(b, _norm(b, x, width), width, 32)
        gelu = b.op("Add", b.op("Erf", b.op("Div", wide, b.constant(1.4142135381698608))), b.constant(1.0))
        gelu = b.op("Mul", b.op("Mul", wide, gelu), b.constant(0.5))
        x = b.op("Add", x, _linear(b, gelu, 32, width))
    b.op("Identity", x, to="y")
    return b.model([1, 6, width], "y", [1, 6, width])


def _mamba() -> onnx.ModelProto:
    """A selective state space: causal depthwise convolution, softplus, ``-exp(A)`` computed, a scan of 4 steps."""
    b, width, state, steps = Block("mamba", 17), 8, 4, 4
    both = b.op("MatMul", "x", b.weight(width, 2 * width, scale=width**-0.5))
    inner = b.op("Slice", both, *(b.constant(v, np.int64) for v in ([0], [width], [2])))
    gate = b.op("Slice", both, *(b.constant(v, np.int64) for v in ([width], [2 * width], [2])))
    inner = b.op("Transpose", inner, perm=[0, 2, 1])
    inner = b.op("Conv", inner, b.weight(width, 1, 3), b.weight(width, scale=0.1), group=width, pads=[2, 0])
    inner = b.op("Transpose", inner, perm=[0, 2, 1])
    inner = b.op("Mul", inner, b.op("Sigmoid", inner))
    delta = b.op("Softplus", _linear(b, inner, width, width))
    rate = b.op("Neg", b.op("Exp", b.weight(width, state, scale=0.4)))
    enter = b.op("MatMul", inner, b.weight(width, state, scale=width**-0.5))
    leave = b.op("MatMul", inner, b.weight(width, state, scale=width**-0.5))
    held, outputs = "", []
    for t in range(steps):
        at = b.constant(t, np.int64)
        step = b.op("Unsqueeze", b.op("Gather", delta, at, axis=1), b.constant([2], np.int64))
        value = b.op("Unsqueeze", b.op("Gather", inner, at, axis=1), b.constant([2], np.int64))
        into = b.op("Unsqueeze", b.op("Gather", enter, at, axis=1), b.constant([1], np.int64))
        out = b.op("Unsqueeze", b.op("Gather", leave, at, axis=1), b.constant([1], np.int64))
        added = b.op("Mul", b.op("Mul", step, into), value)
        kept = b.op("Exp", b.op("Mul", step, rate))
        held = added if not held else b.op("Add", b.op("Mul", kept, held), added)
        outputs.append(b.op("ReduceSum", b.op("Mul", held, out), b.constant([2], np.int64), keepdims=0))
    parts = [b.op("Unsqueeze", o, b.constant([1], np.int64)) for o in outputs]
    mixed = b.op("Add", b.op("Concat", *parts, axis=1), b.op("Mul", inner, b.weight(width, scale=0.5)))
    gated = b.op("Mul", mixed, b.op("Mul", gate, b.op("Sigmoid", gate)))
    b.op("MatMul", gated, b.weight(width, width, scale=width**-0.5), to="y")
    return b.model(["N", steps, width], "y", ["N", steps, width])


def _quantised_weights() -> onnx.ModelProto:
    """Quantisation-aware training: weights that the model rounds itself, where float64 and float32 round apart."""
    b = Block("quantised_weights", 17)
    values = np.round(b.rng.standard_normal((8, 16)), 1) + 0.05
    grid = b.op("Round", b.op("Div", b.numbers(values), b.constant(0.1)))
    weight = b.op("Mul", grid, b.constant(0.1))
    levels = b.op("Floor", b.op("Mul", b.numbers(np.round(b.rng.uniform(0, 2, 16), 1)), b.constant(10.0)))
    b.op("Add", b.op("MatMul", "x", weight), levels, to="y")
    return b.model(["N", 8], "y", ["N", 16])


BLOCKS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "resnet_d": _resnet_d, "mbconv": _mbconv, "vit": _vit, "mamba": _mamba, "quantised_weights": _quantised_weights,
}  # fmt: skip
