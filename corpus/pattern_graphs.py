"""The graphs of other tools' patterns, and when one counts as found: see ``corpus/patterns.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from superopt.frontend import GraphBuilder
from superopt.frontend.symbolic_tensor import SymbolicTensor
from superopt.ir.graph import Graph

__all__ = ["PATTERNS", "Pattern"]

_OPSET = 23
Make = Callable[[GraphBuilder, SymbolicTensor], SymbolicTensor]


@dataclass(frozen=True)
class Pattern:
    """A pattern.

    Attributes:
        name: in the words of the tools.
        tools: who knows it.
        shape: of the input ``x``; ``dtype`` its element type.
        make: appends the pattern to a graph.
        most: nodes that may be left running for it to count as found.
        gone: operators of which none may be left.
        why: what is to be said if it is missed.
        opset: of ONNX, for what later ones have an operator.
        out: shape of the output, where it is not inferred.
    """

    name: str
    tools: str
    shape: tuple[int | str, ...]
    make: Make
    most: int
    gone: tuple[str, ...] = ()
    why: str = ""
    dtype: str = "float32"
    opset: int = _OPSET
    out: tuple[int, ...] | None = None

    def graph(self) -> Graph:
        builder = GraphBuilder("pattern", opset=self.opset)
        builder.output(self.make(builder, builder.input("x", self.dtype, self.shape)), "y", shape=self.out)
        return builder.build()

    def goal(self, names: Sequence[str]) -> bool:
        """Whether the operators that run are what the pattern is to leave."""
        return len(names) <= self.most and not set(names) & set(self.gone)


def _w(b: GraphBuilder, name: str, *shape: int, offset: float = 0.0) -> SymbolicTensor:
    return b.weight(name, shape, scale=0.3, offset=offset)


def _bn(b: GraphBuilder, x: SymbolicTensor, channels: int) -> SymbolicTensor:
    positive = b.weight("var", (channels,), scale=0.5, offset=0.5, distribution="uniform")
    parts = [_w(b, "gamma", channels, offset=1.0), _w(b, "beta", channels), _w(b, "mean", channels), positive]
    return b.op("BatchNormalization", x, *parts, epsilon=1e-5)


def _conv(
    b: GraphBuilder, x: SymbolicTensor, channels: int = 8, out: int = 8, size: int = 3, bias: bool = True
) -> SymbolicTensor:
    w = _w(b, f"w{channels}{out}{size}", out, channels, size, size)
    pads = [size // 2] * 4
    return b.op("Conv", x, w, _w(b, f"b{channels}{out}{size}", out) if bias else None, pads=pads)


def _layernorm(b: GraphBuilder, x: SymbolicTensor, width: int) -> SymbolicTensor:
    centred = x - b.op("ReduceMean", x, [-1], keepdims=1)
    variance = b.op("ReduceMean", b.op("Pow", centred, 2.0), [-1], keepdims=1)
    normal = b.op("Div", centred, b.op("Sqrt", variance + 1e-5))
    return normal * _w(b, "gamma", width, offset=1.0) + _w(b, "beta", width)


def _rmsnorm(b: GraphBuilder, x: SymbolicTensor, width: int) -> SymbolicTensor:
    square = b.op("ReduceMean", b.op("Pow", x, 2.0), [-1], keepdims=1)
    return b.op("Div", x, b.op("Sqrt", square + 1e-6)) * _w(b, "gamma", width, offset=1.0)


def _gelu_erf(b: GraphBuilder, x: SymbolicTensor) -> SymbolicTensor:
    return x * (b.op("Erf", b.op("Div", x, 1.4142135)) + 1.0) * 0.5


def _gelu_tanh(b: GraphBuilder, x: SymbolicTensor) -> SymbolicTensor:
    inner = (x + b.op("Pow", x, 3.0) * 0.044715) * 0.7978845608
    return x * 0.5 * (b.op("Tanh", inner) + 1.0)


def _attention(b: GraphBuilder, x: SymbolicTensor) -> SymbolicTensor:
    """One head's scaled dot-product attention over a sequence, batched: [2, 6, 8]."""
    q, k, v = (b.op("MatMul", x, _w(b, n, 8, 8)) for n in "qkv")
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 1])) * 0.35355339
    return b.op("MatMul", b.op("Softmax", scores, axis=-1), v)


def _qkv(b: GraphBuilder, x: SymbolicTensor) -> SymbolicTensor:
    return b.op("Concat", *(b.op("MatMul", x, _w(b, n, 16, 16)) for n in "qkv"), axis=-1)


def _qdq(b: GraphBuilder, x: SymbolicTensor) -> SymbolicTensor:
    zero = np.int8(0)
    for _ in range(2):
        q = b.op("QuantizeLinear", x, np.float32(0.1), zero)
        x = b.op("DequantizeLinear", q, np.float32(0.1), zero)
    return x


def _shape_reshape(b: GraphBuilder, x: SymbolicTensor) -> SymbolicTensor:
    rows = b.op("Gather", b.op("Shape", x), np.int64(0), axis=0)
    return b.op("Reshape", x, b.op("Concat", b.op("Unsqueeze", rows, [0]), [-1], axis=0)).relu()


def _slices(b: GraphBuilder, x: SymbolicTensor) -> SymbolicTensor:
    halves = [b.op("Slice", x, [i * 4], [i * 4 + 4], [1]) for i in (0, 1)]
    return b.op("Concat", *halves, axis=1).relu()


def _scatter_free_split(b: GraphBuilder, x: SymbolicTensor) -> SymbolicTensor:
    left, right = b.ops("Split", x, [4, 4], outputs=2, axis=1)
    return b.op("Concat", left, right, axis=1).relu()


_ALL = "ORT, onnxoptimizer, OnnxSlim, onnxscript"
_MAP, _ROWS, _SEQ = (1, 8, 10, 10), (6, 8), (2, 6, 16)
_SWISH = 24  # the first opset that has it

_SQRT = "the constant is a rounded root: with it the two are not equal as functions of reals, so no proof lets them be"

PATTERNS: tuple[Pattern, ...] = (
    # Convolutions.
    Pattern("Conv + BatchNormalization", _ALL, _MAP, lambda b, x: _bn(b, _conv(b, x), 8), 1),
    Pattern("Conv without bias + BatchNormalization", _ALL, _MAP, lambda b, x: _bn(b, _conv(b, x, bias=False), 8), 1),
    Pattern("BatchNormalization + Conv 1×1", "ORT (partly)", _MAP, lambda b, x: _conv(b, _bn(b, x, 8), size=1), 1),
    Pattern("ConvTranspose + BatchNormalization", "OnnxSlim, onnxscript", _MAP,
            lambda b, x: _bn(b, b.op("ConvTranspose", x, _w(b, "w", 8, 4, 3, 3)), 4), 1),
    Pattern("Gemm + BatchNormalization", "onnxscript", _ROWS,
            lambda b, x: _bn(b, b.op("Gemm", x, _w(b, "w", 8, 4), _w(b, "b", 4)), 4), 1),
    Pattern("MatMul + BatchNormalization", "ORT", _ROWS,
            lambda b, x: _bn(b, b.op("MatMul", x, _w(b, "w", 8, 4)), 4), 2, ("BatchNormalization",)),
    Pattern("Conv + Mul by channel", "ORT, OnnxSlim", _MAP, lambda b, x: _conv(b, x) * _w(b, "s", 8, 1, 1), 1),
    Pattern("Conv + Add by channel", _ALL, _MAP, lambda b, x: _conv(b, x, bias=False) + _w(b, "s", 8, 1, 1), 1),
    Pattern("Conv + affine (Mul, Add)", "onnxscript", _MAP,
            lambda b, x: _conv(b, x) * _w(b, "s", 8, 1, 1) + _w(b, "t", 8, 1, 1), 1),
    Pattern("affine (Mul, Add) + Conv 1×1", "onnxscript", _MAP,
            lambda b, x: _conv(b, x * _w(b, "s", 8, 1, 1) + _w(b, "t", 8, 1, 1), size=1), 1),
    Pattern("Pad + Conv", _ALL, _MAP,
            lambda b, x: b.op("Conv", b.op("Pad", x, [0, 0, 1, 1, 0, 0, 1, 1]), _w(b, "w", 8, 8, 3, 3)), 1),
    Pattern("Pad + MaxPool (padded with −∞)", "ORT, onnxoptimizer", _MAP,
            lambda b, x: b.op("MaxPool", b.op("Pad", x, [0, 0, 1, 1, 0, 0, 1, 1], float("-inf")),
                              kernel_shape=[3, 3]), 1),
    Pattern("Pad + AveragePool (padding counted)", "onnxoptimizer", _MAP,
            lambda b, x: b.op("AveragePool", b.op("Pad", x, [0, 0, 1, 1, 0, 0, 1, 1]), kernel_shape=[3, 3],
                              count_include_pad=1), 1),
    Pattern("parallel Convs of one input (merged)", "TASO", _MAP,
            lambda b, x: b.op("Concat", _conv(b, x, out=4), _conv(b, x, out=6), axis=1), 1),
    Pattern("consecutive 1×1 Convs", "–", _MAP, lambda b, x: _conv(b, _conv(b, x, out=6, size=1), 6, 4, 1), 1),
    # Products.
    Pattern("MatMul + Add → Gemm", _ALL, _ROWS, lambda b, x: b.op("MatMul", x, _w(b, "w", 8, 4)) + _w(b, "b", 4), 1),
    Pattern("Gemm + Add", "OnnxSlim", _ROWS, lambda b, x: b.op("Gemm", x, _w(b, "w", 8, 4)) + _w(b, "b", 4), 1),
    Pattern("Gemm + Mul by column", "OnnxSlim", _ROWS,
            lambda b, x: b.op("Gemm", x, _w(b, "w", 8, 4), _w(b, "b", 4)) * _w(b, "s", 4), 1),
    Pattern("Transpose + Gemm", "ORT, onnxoptimizer", (8, 6),
            lambda b, x: b.op("Gemm", b.op("Transpose", x, perm=[1, 0]), _w(b, "w", 8, 4), _w(b, "b", 4)), 1),
    Pattern("MatMul of a transposed weight", "ORT, onnxscript", _ROWS,
            lambda b, x: b.op("MatMul", x, b.op("Transpose", _w(b, "w", 4, 8), perm=[1, 0])), 1),
    Pattern("scale + MatMul", "ORT (FusedMatMul)", _ROWS, lambda b, x: b.op("MatMul", x * 0.25, _w(b, "w", 8, 4)), 1),
    Pattern("MatMul + scale", "ORT (FusedMatMul)", _ROWS, lambda b, x: b.op("MatMul", x, _w(b, "w", 8, 4)) * 0.25, 1),
    Pattern("Gemm sum: product + matrix", "ORT", _ROWS,
            lambda b, x: b.op("Gemm", x, _w(b, "w", 8, 4)) + _w(b, "m", 6, 4), 1),
    Pattern("Q, K, V products of one input (merged)", "onnxoptimizer", _SEQ, _qkv, 1),
    Pattern("Reshape, Gemm, Reshape → MatMul, Add", "onnxscript, OnnxSlim", _SEQ,
            lambda b, x: b.op("Reshape", b.op("Gemm", b.op("Reshape", x, [12, 16]), _w(b, "w", 16, 4), _w(b, "b", 4)),
                              [2, 6, 4]), 2, ("Reshape",)),
    Pattern("consecutive linear layers", "–", _ROWS,
            lambda b, x: b.op("MatMul", b.op("MatMul", x, _w(b, "w", 8, 8)), _w(b, "v", 8, 8)), 1),
    # Activations.
    Pattern("Gelu by Erf", _ALL.replace(", onnxoptimizer", ""), _SEQ, _gelu_erf, 1, (), _SQRT),
    Pattern("Gelu by Tanh (FastGelu)", "ORT", _SEQ, _gelu_tanh, 1, (), _SQRT),
    Pattern("QuickGelu: x · sigmoid(1.702 x)", "ORT", _SEQ, lambda b, x: x * b.op("Sigmoid", x * 1.702), 1,
            opset=_SWISH),
    Pattern("SiLU: x · sigmoid(x)", "ORT", _SEQ, lambda b, x: x * b.op("Sigmoid", x), 1, opset=_SWISH),
    Pattern("HardSwish: x · hardsigmoid(x)", "onnxscript", _SEQ,
            lambda b, x: x * b.op("HardSigmoid", x, alpha=1 / 6, beta=0.5), 1),
    Pattern("HardSwish: x · clip(x + 3, 0, 6) / 6", "onnxscript", _SEQ,
            lambda b, x: b.op("Div", x * b.op("Clip", x + 3.0, 0.0, 6.0), 6.0), 1),
    Pattern("Relu + Clip", "ORT, onnxscript", _SEQ, lambda b, x: b.op("Clip", x.relu(), 0.0, 6.0), 1),
    Pattern("Relu + Relu", "onnxoptimizer, onnxscript", _SEQ, lambda b, x: x.relu().relu(), 1),
    Pattern("Clip + Clip", "onnxscript", _SEQ, lambda b, x: b.op("Clip", b.op("Clip", x, -1.0, 5.0), 0.0, 6.0), 1),
    Pattern("Min + Max → Clip", "onnxscript", _SEQ, lambda b, x: b.op("Max", b.op("Min", x, 6.0), 0.0), 1),
    Pattern("Exp ∘ Log", "–", _SEQ, lambda b, x: b.op("Log", b.op("Exp", x)), 0),
    # Normalisations and attention.
    Pattern("LayerNormalization", "ORT, onnxscript", _SEQ, lambda b, x: _layernorm(b, x, 16), 1),
    Pattern("RMSNormalization (SimplifiedLayerNorm)", "ORT, onnxscript", _SEQ, lambda b, x: _rmsnorm(b, x, 16), 1),
    Pattern("SkipLayerNormalization", "ORT", _SEQ, lambda b, x: _layernorm(b, x + _w(b, "skip", 6, 16), 16), 2),
    Pattern("scaled dot-product attention", "ORT, onnxscript", (2, 6, 8), _attention, 4, (),
            "Attention's record is for four axes; the products of its inputs stay, the rest is one operator there"),
    Pattern("Softmax by Exp, ReduceSum, Div", "ORT", _SEQ,
            lambda b, x: b.op("Div", b.op("Exp", x), b.op("ReduceSum", b.op("Exp", x), [-1], keepdims=1)), 1),
    Pattern("Log ∘ Softmax", "onnxoptimizer", _SEQ, lambda b, x: b.op("Log", b.op("Softmax", x, axis=-1)), 1),
    Pattern("ReduceMean over the image → GlobalAveragePool", "OnnxSlim", _MAP,
            lambda b, x: b.op("ReduceMean", x, [2, 3], keepdims=1), 1),
    Pattern("Reduce + Squeeze/Unsqueeze → keepdims", "onnxoptimizer, OnnxSlim", _SEQ,
            lambda b, x: b.op("Unsqueeze", b.op("ReduceSum", x, [2], keepdims=0), [2]), 1),
    # Movement.
    Pattern("consecutive Transposes", _ALL, _SEQ,
            lambda b, x: b.op("Transpose", b.op("Transpose", x, perm=[0, 2, 1]), perm=[2, 0, 1]), 1),
    Pattern("Transposes that undo each other", _ALL, _SEQ,
            lambda b, x: b.op("Transpose", b.op("Transpose", x, perm=[0, 2, 1]), perm=[0, 2, 1]).relu(), 1),
    Pattern("Transpose through a pointwise operator", "ORT", _SEQ,
            lambda b, x: b.op("Transpose", b.op("Transpose", x, perm=[0, 2, 1]).relu(), perm=[0, 2, 1]), 1),
    Pattern("Transpose by the identity", _ALL, _SEQ, lambda b, x: b.op("Transpose", x, perm=[0, 1, 2]).relu(), 1),
    Pattern("Transpose that moves only ones → Reshape", "OnnxSlim", (1, 6, 16),
            lambda b, x: b.op("Transpose", x, perm=[1, 0, 2]).relu(), 2, ("Transpose",)),
    Pattern("consecutive Reshapes", _ALL, _SEQ,
            lambda b, x: b.op("Reshape", b.op("Reshape", x, [12, 16]), [6, 32]).relu(), 2),
    Pattern("Reshape to the same shape", _ALL, _SEQ, lambda b, x: b.op("Reshape", x, [2, 6, 16]).relu(), 1),
    Pattern("Flatten that changes nothing", "onnxoptimizer", _ROWS, lambda b, x: b.op("Flatten", x, axis=1).relu(), 1),
    Pattern("consecutive Unsqueezes", "ORT, onnxoptimizer, OnnxSlim", _ROWS,
            lambda b, x: b.op("Unsqueeze", b.op("Unsqueeze", x, [0]), [0]).relu(), 2),
    Pattern("consecutive Squeezes", "onnxoptimizer, onnxscript", (1, 1, 8),
            lambda b, x: b.op("Squeeze", b.op("Squeeze", x, [0]), [0]).relu(), 2),
    Pattern("Unsqueeze then Squeeze", "ORT, onnxscript", _ROWS,
            lambda b, x: b.op("Squeeze", b.op("Unsqueeze", x, [1]), [1]).relu(), 1),
    Pattern("Unsqueeze of a weight", "ORT", _SEQ, lambda b, x: x + b.op("Unsqueeze", _w(b, "w", 16), [0, 1]), 1),
    Pattern("consecutive Slices", "onnxoptimizer, OnnxSlim, onnxscript", _ROWS,
            lambda b, x: b.op("Slice", b.op("Slice", x, [1], [7], [1]), [1], [4], [1]), 1),
    Pattern("Slice of everything", "ORT, OnnxSlim", _ROWS, lambda b, x: b.op("Slice", x, [0], [8], [1]).relu(), 1),
    Pattern("Slices that are concatenated again", "ORT (ConcatSliceElimination)", _ROWS, _slices, 1),
    Pattern("Split then Concat", "onnxoptimizer", _ROWS, _scatter_free_split, 1),
    Pattern("Split in one part", "onnxoptimizer", _ROWS,
            lambda b, x: b.ops("Split", x, [8], outputs=1, axis=1)[0].relu(), 1),
    Pattern("Concat of one", "onnxoptimizer, OnnxSlim", _ROWS, lambda b, x: b.op("Concat", x, axis=1).relu(), 1),
    Pattern("consecutive Concats", "onnxoptimizer, OnnxSlim", _ROWS,
            lambda b, x: b.op("Concat", b.op("Concat", x, x.relu(), axis=1), b.op("Tanh", x), axis=1), 3),
    Pattern("Slice of a Concat's part", "ORT", _ROWS,
            lambda b, x: b.op("Slice", b.op("Concat", x, b.op("Tanh", x), axis=1), [0], [8], [1]).relu(), 1),
    Pattern("Pad by nothing", "onnxoptimizer, ORT", _ROWS, lambda b, x: b.op("Pad", x, [0, 0, 0, 0]).relu(), 1),
    Pattern("Tile once", "onnxsim", _ROWS, lambda b, x: b.op("Tile", x, [1, 1]).relu(), 1),
    Pattern("Expand to the same shape", "ORT, onnxoptimizer", _ROWS, lambda b, x: b.op("Expand", x, [6, 8]).relu(), 1),
    Pattern("Expand before a pointwise operator", "onnxscript", (1, 8),
            lambda b, x: b.op("Expand", x, [6, 8]) + _w(b, "w", 6, 8), 1),
    # Arithmetic, constants, shapes.
    Pattern("x + 0, x · 1, x / 1, x − 0", _ALL, _ROWS, lambda b, x: b.op("Div", (x + 0.0) * 1.0, 1.0).relu() - 0.0, 1),
    Pattern("Div → Mul: x / c", "ORT (DivMul)", _ROWS, lambda b, x: b.op("Div", 1.0, x) * _w(b, "w", 8), 1),
    Pattern("Pow 2 → Mul", "–", _ROWS, lambda b, x: b.op("Pow", x, 2.0), 1),
    Pattern("constants through a chain: (x + a) + b", "onnxscript", _ROWS,
            lambda b, x: x + _w(b, "a", 8) + _w(b, "b", 8), 1),
    Pattern("constants through a chain: (x · a) · b", "onnxscript", _ROWS,
            lambda b, x: x * _w(b, "a", 8) * _w(b, "b", 8), 1),
    Pattern("Identity, Dropout", _ALL, _ROWS,
            lambda b, x: b.op("Dropout", b.op("Identity", x)).relu(), 1),
    Pattern("Cast to the same type", _ALL, _ROWS, lambda b, x: b.op("Cast", x, to=1).relu(), 1),
    Pattern("Cast chain to a wider type and back", "ORT, onnxscript", _ROWS,
            lambda b, x: b.op("Cast", b.op("Cast", x, to=11), to=1).relu(), 1),
    Pattern("common subexpressions", "ORT, onnxoptimizer, OnnxSlim, onnxscript", _ROWS,
            lambda b, x: b.op("Exp", x) + b.op("Exp", x) * b.op("Tanh", x), 4),
    Pattern("Not + Where", "ORT, onnxoptimizer", _ROWS,
            lambda b, x: b.op("Where", b.op("Not", b.op("Greater", x, 0.0)), x, b.op("Exp", x)), 3),
    Pattern("shape arithmetic → constants", _ALL, _SEQ, _shape_reshape, 2, ("Shape", "Gather", "Concat"),
            out=(2, 96)),
    Pattern("double Quantize/Dequantize pairs", "ORT", _ROWS, _qdq, 2, (),
            "by design: quantised parts are a barrier, since rounding in between is not an equality of reals"),
)  # fmt: skip
