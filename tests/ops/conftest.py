"""Samples of every operator: small tensors, odd sizes, size-1 axes, groups, strides, old and new node forms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from sampling import sampled

from superopt.ir.graph import ArrayWeightData, Graph, Node, Value, Weight, constant
from superopt.ir.types import DType, TensorType


@dataclass(frozen=True, eq=False)
class Sample:
    """One node at one opset: arrays as inputs (``None``: omitted), the first ``data`` fed, the rest constant."""

    op: str
    arrays: tuple[np.ndarray | None, ...]
    opset: int
    data: int
    outputs: int = 1
    attributes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shapes = ",".join("-" if a is None else "x".join(map(str, a.shape)) or "scalar" for a in self.arrays)
        extra = ",".join(f"{k}={v}" for k, v in self.attributes.items())
        return f"{self.op}-{self.opset}({shapes};{extra})"[:120]

    @property
    def feeds(self) -> dict[str, np.ndarray]:
        return {f"x{p}": a for p, a in enumerate(self.arrays[: self.data]) if a is not None}

    @property
    def node(self) -> Node:
        inputs = tuple("" if a is None else f"x{p}" for p, a in enumerate(self.arrays))
        return Node("node", self.op, inputs, tuple(f"y{p}" for p in range(self.outputs)), self.attributes)

    def graph(self, symbolic: bool = False) -> Graph:
        inputs = tuple(Value(n, fed_type(n, a, symbolic)) for n, a in self.feeds.items())
        weights = tuple(constant(f"x{p}", a) for p, a in enumerate(self.arrays) if a is not None and p >= self.data)
        return graph_of(self.node, inputs, weights, self.opset)


def fed_type(name: str, array: np.ndarray, symbolic: bool) -> TensorType:
    from superopt.ir.size_polynomial import sym

    shape = tuple(sym(f"{name}_{p}") if symbolic and s > 1 else int(s) for p, s in enumerate(array.shape))
    return TensorType(DType.of(array.dtype), shape)


def graph_of(node: Node, inputs: tuple[Value, ...], weights: tuple[Weight, ...], opset: int) -> Graph:
    return Graph("sample", inputs, tuple(Value(o, None) for o in node.outputs), weights, (node,), {"": opset})


def tensor_attribute(array: np.ndarray) -> Weight:
    return Weight("", TensorType(DType.of(array.dtype), tuple(map(int, array.shape))), ArrayWeightData(array))


R = np.random.default_rng(7)


def f(*shape: int, low: float = -2.0, high: float = 2.0, dtype: Any = np.float32) -> np.ndarray:
    return R.uniform(low, high, shape).astype(dtype)


def n(*shape: int, low: int = -7, high: int = 8, dtype: Any = np.int64) -> np.ndarray:
    return R.integers(low, high, shape).astype(dtype)


def b(*shape: int) -> np.ndarray:
    return R.integers(0, 2, shape).astype(bool)


def i(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def s(op: str, *arrays: Any, opset: int = 21, data: int | None = None, outputs: int = 1, **attributes: Any) -> Sample:
    return Sample(op, arrays, opset, len(arrays) if data is None else data, outputs, attributes)


SHAPES = ((2, 3), (1, 5, 1), ())
POSITIVE = ("Sqrt", "Reciprocal", "Log")
UNARY = (
    "Neg Abs Sign Sqrt Reciprocal Exp Log Erf Sin Cos Tan Sinh Cosh Atan Floor Ceil Round Identity Dropout Relu "
    "Sigmoid Tanh LeakyRelu Elu Selu HardSigmoid HardSwish Softplus Softsign Mish ThresholdedRelu Gelu "
    "Celu Shrink"
)
BROADCASTS = (((2, 3), (2, 3)), ((4, 1, 3), (2, 1)), ((), (2, 2)), ((1,), (3, 1)))


def elementwise() -> Iterator[Sample]:
    for op in UNARY.split():
        for shape in SHAPES:
            yield s(op, f(*shape, low=0.3 if op in POSITIVE else -3.0, high=3.0))
    yield from (s("Acosh", f(*shape, low=1.1, high=4.0)) for shape in SHAPES)
    yield from (s("Swish", f(*shape), alpha=a, opset=24) for shape, a in zip(SHAPES, (1.0, 0.5, 2.0), strict=True))
    for op in ("Asin", "Acos", "Atanh", "Asinh"):
        yield from (s(op, f(*shape, low=-0.9, high=0.9)) for shape in SHAPES)
    yield s("Round", np.array([-1.5, -0.5, 0.5, 1.5, 2.5], np.float32))
    yield s("Gelu", f(3, 4), approximate=b"tanh")
    for op, names in (
        ("Elu", ["alpha"]),
        ("Celu", ["alpha"]),
        ("LeakyRelu", ["alpha"]),
        ("HardSigmoid", ["alpha", "beta"]),
    ):
        yield s(op, f(3, 4), **{name: 0.3 + 0.25 * p for p, name in enumerate(names)})
    yield s("Selu", f(4), alpha=1.5, gamma=0.5)
    yield s("ThresholdedRelu", f(9), alpha=0.5)
    yield from (s("Shrink", f(9), lambd=0.75, bias=c) for c in (0.0, 0.5, -1.0))
    for op in ("Relu", "Exp", "Neg", "Tanh"):
        yield s(op, f(2, 2), opset=7)
    for left, right in BROADCASTS:
        for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean"):
            yield s(op, f(*left), f(*right, low=0.5), opset=7 if left == right else 21)
        yield s("Pow", f(*left, low=0.2), f(*right))
        for op in ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"):
            yield s(op, n(*left, high=0), n(*right, high=0))
        for op in ("And", "Or", "Xor"):
            yield s(op, b(*left), b(*right))
        yield s("Where", b(*left), f(*right), f(*left))
        yield s("Where", b(*right), n(*left), n(1))
        yield s("PRelu", f(2, 3, 4), f(*{(): (), (1,): (3, 1)}.get(left, (4,))))
    for op in ("Max", "Min", "Sum", "Mean"):
        yield from (s(op, *(f(2, 3) for _ in range(count))) for count in (1, 3))
    yield s("Less", f(2, 3), f(3))
    yield s("Equal", b(4), b(4))
    yield from (s("Not", b(*shape)) for shape in SHAPES)
    for dtype in (np.int32, np.int64):
        yield s("Div", n(8, dtype=dtype), n(8, low=1, dtype=dtype))
        yield s("Div", n(8, dtype=dtype), n(8, low=-7, high=0, dtype=dtype))
        yield s("Add", n(3, 1, dtype=dtype), n(4, dtype=dtype))
        for fmod in (0, 1):
            yield s("Mod", n(9, dtype=dtype), np.array([-3, 3, 2, -2, 5, -5, 7, 1, 4], dtype), fmod=fmod)
    yield s("Mod", f(6), f(6, low=0.5), fmod=1)
    for source, target in ((f(5), 7), (f(5), 6), (f(5), 9), (n(5), 1), (b(5), 1), (n(5), 9), (f(3), 11), (b(3), 7)):
        yield s("Cast", source, to=target)
    yield s("Cast", n(4, dtype=np.int32), to=7, opset=9)
    yield from (s("CastLike", f(3), like, data=1) for like in (n(1), b(2), f(1, dtype=np.float64)))
    yield s("Clip", f(3, 4), np.float32(-0.5).reshape(()), np.float32(0.75).reshape(()), data=1)
    yield s("Clip", f(3, 4), None, np.float32(0.75).reshape(()), data=1)
    yield s("Clip", f(3, 4), np.float32(0.0).reshape(()), data=1, opset=11)
    yield s("Clip", f(3, 4), min=-1.0, max=0.5, opset=9)
    yield s("Clip", n(7), np.int64(-2).reshape(()), np.int64(3).reshape(()), data=1)
    yield s("Dropout", f(3), ratio=0.3, opset=7)
    yield s("Dropout", f(3), np.float32(0.3).reshape(()), np.array(False), data=1, opset=13)


def quantised() -> Iterator[Sample]:
    """Scales of short mantissas, so that halves are halves: they go to the even number, and beyond the limits stop."""
    step, halves = np.array(0.25, np.float32), np.arange(-10, 11, dtype=np.float32).reshape(3, 7) / 8
    u8, i8 = np.uint8, np.int8
    yield s("QuantizeLinear", halves, step, np.array(3, u8), data=1)
    yield s("QuantizeLinear", 64 * halves, step, np.array(-5, i8), data=1)
    yield s("QuantizeLinear", 64 * halves, step, data=1, opset=10)
    yield s("QuantizeLinear", halves, step.reshape(1), np.array([7], u8), data=1, opset=13, axis=0)
    yield s("QuantizeLinear", halves, f(7, low=0.1), n(7, dtype=i8), data=1)
    yield s("QuantizeLinear", f(2, 3, 4), f(3, low=0.1), n(3, low=0, dtype=u8), opset=13, axis=-2)
    yield s("QuantizeLinear", halves, step, data=1, output_dtype=3)
    yield s("DequantizeLinear", n(3, 4, dtype=i8), f(low=0.1), np.array(-3, i8), data=1)
    yield s("DequantizeLinear", n(3, 4, low=0, dtype=u8), f(low=0.1), data=1, opset=10)
    yield s(
        "DequantizeLinear", n(3, 4, low=0, dtype=u8), f(3, low=0.1), n(3, low=0, dtype=u8), data=1, opset=13, axis=0
    )
    yield s("DequantizeLinear", n(3, 4, dtype=np.int32), f(4, low=0.1), data=1)
    yield s("DequantizeLinear", n(5, dtype=i8), f(5, low=0.1), n(5, dtype=i8), opset=19, axis=-1)
    ends = np.array([-12.5, 19.375], np.float32)  # 255 steps of an eighth
    for array in (np.append(halves / 2, ends), np.zeros((2, 3), np.float32), f(2, 3, 4, low=0.5), f(5, high=-0.5)):
        yield s("DynamicQuantizeLinear", array, outputs=3, opset=11)


def bytes_of(*shape: int, dtype: Any = np.uint8) -> np.ndarray:
    """Every number of eight bits, the limits among them."""
    limits = np.iinfo(dtype)
    return np.asarray(R.integers(limits.min, limits.max + 1, shape)).astype(dtype)


def quantised_products() -> Iterator[Sample]:
    """All signs of the operands; zero points of all, of columns, or none; scales that make halves."""
    u8, i8, q = np.uint8, np.int8, bytes_of
    for a, b in ((u8, u8), (u8, i8), (i8, u8), (i8, i8)):
        yield s("MatMulInteger", q(3, 4, dtype=a), q(4, 5, dtype=b), q(dtype=a), q(dtype=b))
        yield s(
            "ConvInteger", q(1, 2, 5, 4, dtype=a), q(3, 2, 3, 3, dtype=b), q(dtype=a), q(dtype=b), pads=(1, 1, 0, 1)
        )
    yield s("MatMulInteger", q(2, 3, 4), q(4, 5, dtype=i8), q(1), q(5, dtype=i8), opset=10)
    yield s("MatMulInteger", q(2, 3, 4), q(2, 4, 5, dtype=i8), None, q(dtype=i8))
    yield s("MatMulInteger", q(4), q(4, 5))
    yield s("MatMulInteger", q(3, 4), q(4, dtype=i8), q())
    yield s("ConvInteger", q(2, 4, 7), q(6, 2, 3), q(), group=2, strides=(2,), opset=10)
    yield s("ConvInteger", q(1, 2, 6, 6), q(2, 2, 2, 2), q(1), auto_pad=b"SAME_UPPER", strides=(2, 1))
    one, half = np.array(1.0, np.float32), np.array(0.5, np.float32)
    step, columns = np.array(64.0, np.float32), np.array([0.5, 1.0, 2.0, 0.25, 4.0], np.float32)
    for a, b in ((u8, u8), (u8, i8), (i8, i8)):
        ends = (step, q(dtype=a))
        yield s("QLinearMatMul", q(3, 4, dtype=a), half, q(dtype=a), q(4, 5, dtype=b), one, q(dtype=b), *ends)
        yield s(
            "QLinearMatMul", q(2, 3, 4, dtype=a), half, q(dtype=a), q(4, 5, dtype=b), columns, q(5, dtype=b), *ends,
            opset=10,
        )  # fmt: skip
        filters = (q(3, 2, 3, 3, dtype=b), columns[:3], np.full(3, 7, b), *ends)
        yield s("QLinearConv", q(1, 2, 5, 4, dtype=a), half, q(dtype=a), *filters, pads=(1, 0, 1, 1))
        yield s(
            "QLinearConv", q(1, 2, 6, 5, dtype=a), half, q(dtype=a), *filters, n(3, low=-99, high=99, dtype=np.int32),
            strides=(2, 1), opset=10,
        )  # fmt: skip
    yield s("QLinearConv", q(1, 4, 7), one, q(), q(6, 2, 3), half, q(), step, q(), group=2)


def linear() -> Iterator[Sample]:
    for left, right in (
        ((2, 3), (3, 4)),
        ((3,), (3,)),
        ((5, 1, 2, 3), (4, 3, 1)),
        ((3,), (2, 3, 2)),
        ((2, 2, 3), (3,)),
    ):
        yield s("MatMul", f(*left), f(*right))
    yield s("MatMul", f(2, 3), f(3, 1), opset=7)
    yield s("Gemm", f(2, 3), f(3, 4), f(4))
    yield s("Gemm", f(3, 2), f(4, 3), f(2, 1), transA=1, transB=1, alpha=0.5, beta=-2.0)
    yield s("Gemm", f(2, 3), f(3, 4), f(1), beta=0.0, opset=9)
    yield s("Gemm", f(2, 3), f(3, 4), opset=13, alpha=2.0)
    yield s("Einsum", f(2, 3, 4), f(2, 4, 5), equation=b"bij, bjk -> bik")
    yield s("Einsum", f(3, 3), equation=b"ii->i")
    yield s("Einsum", f(2, 3), f(3), f(2), equation=b"ij,j,i->")
    yield s("Einsum", f(2, 5, 3, 4), f(2, 5, 4, 2), equation=b"...ij,...jk")
    yield s("Einsum", f(2, 3, 3), equation=b"...ii->...i")


def images() -> Iterator[Sample]:
    yield s("Conv", f(1, 2, 5, 6), f(3, 2, 3, 3), f(3), pads=(1, 1, 1, 1))
    yield s("Conv", f(2, 4, 7, 5), f(6, 2, 3, 2), group=2, strides=(2, 1), pads=(0, 1, 2, 0), dilations=(2, 1))
    yield s("Conv", f(1, 3, 4, 4), f(3, 1, 1, 1), group=3, opset=7)
    yield s("Conv", f(1, 4, 4, 4), f(8, 1, 3, 3), group=4, auto_pad=b"SAME_UPPER", strides=(2, 2))
    yield s("Conv", f(1, 1, 5, 4), f(2, 1, 2, 2), auto_pad=b"SAME_LOWER", kernel_shape=(2, 2))
    yield s("Conv", f(1, 1, 5, 4), f(2, 1, 2, 2), auto_pad=b"VALID")
    yield s("Conv", f(2, 2, 9), f(3, 2, 3), strides=(3,), pads=(2, 1))
    yield s("Conv", f(1, 2, 3, 4, 3), f(2, 2, 2, 2, 2), f(2), pads=(1, 0, 0, 0, 1, 1))
    yield s("ConvTranspose", f(1, 2, 3, 3), f(2, 3, 3, 3), f(3), strides=(2, 2), pads=(1, 1, 1, 1))
    yield s("ConvTranspose", f(1, 4, 3, 2), f(4, 1, 2, 2), group=2, strides=(3, 1), output_padding=(1, 0))
    yield s("ConvTranspose", f(2, 2, 4), f(2, 2, 3), dilations=(2,), opset=9)
    for op in ("MaxPool", "AveragePool"):
        yield s(op, f(1, 2, 5, 6), kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1))
        yield s(op, f(2, 1, 7), kernel_shape=(2,), opset=7)
        yield s(op, f(1, 1, 6, 7), kernel_shape=(3, 3), strides=(2, 2), ceil_mode=1, opset=12)
        yield s(op, f(1, 1, 5, 5), kernel_shape=(3, 3), strides=(3, 3), pads=(1, 1, 1, 1), ceil_mode=1)
        yield s(op, f(1, 1, 6, 5), kernel_shape=(3, 3), strides=(2, 2), auto_pad=b"SAME_UPPER")
        yield s(op, f(1, 1, 7, 7), kernel_shape=(2, 2), dilations=(2, 3))
        yield s(op, f(1, 1, 3, 4, 3), kernel_shape=(2, 2, 2))
    yield s("AveragePool", f(1, 2, 5, 6), kernel_shape=(3, 2), pads=(1, 0, 2, 1), count_include_pad=1)
    for op in ("GlobalAveragePool", "GlobalMaxPool"):
        yield from (s(op, f(*shape)) for shape in ((2, 3, 4, 5), (1, 2, 3), (1, 1, 2, 1, 3)))
    for blocksize in (1, 2, 3):
        yield s("SpaceToDepth", f(1, 2, 2 * blocksize, 3 * blocksize), blocksize=blocksize)
        yield s("DepthToSpace", f(2, 2 * blocksize**2, 2, 3), blocksize=blocksize, opset=7)
        yield s("DepthToSpace", f(2, 2 * blocksize**2, 2, 3), blocksize=blocksize, mode=b"CRD")


def resizes() -> Iterator[Sample]:
    scale = lambda *v: np.array(v, np.float32)  # noqa: E731
    for coordinates in (b"half_pixel", b"pytorch_half_pixel", b"asymmetric", b"align_corners"):
        mode = {"coordinate_transformation_mode": coordinates}
        yield s("Resize", f(1, 2, 3, 4), None, scale(1, 1, 2, 3), data=1, mode=b"linear", **mode)
        yield s("Resize", f(1, 1, 6, 5), None, None, i(1, 1, 3, 7), data=1, mode=b"linear", **mode)
        for rounding in (b"round_prefer_floor", b"round_prefer_ceil", b"floor", b"ceil"):
            yield s("Resize", f(1, 1, 3, 4), None, scale(1, 1, 2, 1.5), data=1, nearest_mode=rounding, **mode)
            yield s(
                "Resize", f(1, 1, 8, 6), None, scale(1, 1, 0.5, 0.5), data=1, nearest_mode=rounding, opset=13, **mode
            )
    yield s("Resize", f(1, 1, 3, 4), scale(1, 1, 2, 2), data=1, opset=10)
    yield s("Resize", f(1, 1, 3, 4), scale(1, 1, 2, 2), data=1, opset=10, mode=b"linear")
    yield s("Resize", f(1, 1, 2, 3), scale(), scale(1, 1, 2, 3), data=1, opset=11)
    yield s("Resize", f(1, 1, 2, 3), None, scale(2, 3), data=1, axes=(2, 3), opset=18)
    yield s("Upsample", f(1, 1, 3, 4), opset=7, scales=(1.0, 1.0, 2.0, 3.0), mode=b"nearest")
    yield s("Upsample", f(1, 1, 3, 4), scale(1, 1, 2, 2), data=1, opset=9, mode=b"linear")
    yield s("Upsample", f(1, 2, 2, 2), scale(1, 1, 3, 2), data=1, opset=9)


def shapes() -> Iterator[Sample]:
    yield from (s("Transpose", f(2, 3, 4), **a) for a in ({}, {"perm": (1, 2, 0)}, {"perm": (0, 2, 1), "opset": 7}))
    for shape, wanted in (
        ((2, 3, 4), (6, 4)), ((2, 12), (2, 3, 4)), ((6, 2), (4, 3)), ((2, 3, 4), (0, -1)), ((1, 6), (3, 1, 2)),
        ((2, 15), (2, 5, 3)), ((4, 6), (3, 8)), ((3, 4, 5), (-1, 10)), ((1, 1), ()), ((12, 35), (3, 20, 7)),
    ):  # fmt: skip
        yield s("Reshape", f(*shape), i(*wanted), data=1, opset=7 if wanted == (6, 4) else 21)
    yield s("Reshape", f(0, 3), i(3, 0), data=1, allowzero=1)
    yield s("Reshape", n(4, 2), i(2, 0, 2), data=1)
    yield from (s("Flatten", f(2, 3, 4), axis=axis, opset=7 if axis > 1 else 13) for axis in (0, 1, 2, 3, -1 % 3))
    yield s("Squeeze", f(1, 3, 1), i(0), data=1)
    yield s("Squeeze", f(1, 3, 1))
    yield s("Squeeze", f(1, 3, 1), axes=(-1, 0), opset=11)
    yield s("Unsqueeze", f(3), i(0, -1), data=1)
    yield s("Unsqueeze", f(3, 2), axes=(1,), opset=9)
    yield s("Unsqueeze", f(), i(0), data=1)
    for shape, wanted in (((3, 1), (2, 3, 4)), ((3,), (1,)), ((), (2, 2)), ((2, 1), (2, 5))):
        yield s("Expand", f(*shape), i(*wanted), data=1)
    for shape, repeats in (((2, 3), (2, 1)), ((2,), (3,)), ((1, 2, 2), (2, 2, 3))):
        yield s("Tile", f(*shape), i(*repeats), data=1)
    yield s("Concat", f(2, 3), f(2, 1), f(2, 4), axis=1)
    yield s("Concat", f(2, 3), f(1, 3), axis=-2)
    yield s("Concat", n(2), axis=0, opset=7)
    yield s("Split", f(2, 6), i(1, 2, 3), data=1, outputs=3, axis=1)
    yield s("Split", f(2, 6), axis=1, split=(4, 2), outputs=2, opset=7)
    yield s("Split", f(4, 3), outputs=2, opset=13)
    yield s("Split", f(7, 3), outputs=3, num_outputs=3, opset=18)
    for start, end, axes, steps in (
        ((1,), (3,), (1,), None), ((0, -2), (2**63 - 1, -1), None, None), ((-1,), (-9,), (1,), (-2,)),
        ((5, 1), (0, 9), (2, 1), (-1, 2)), ((3,), (1,), (0,), None), ((-100,), (100,), (-1,), (3,)),
    ):  # fmt: skip
        extra = [None if axes is None else i(*axes), None if steps is None else i(*steps)]
        yield s("Slice", f(4, 5, 6), i(*start), i(*end), *(extra if steps else extra[:1] if axes else []), data=1)
    yield s("Slice", f(4, 5), starts=(1, -2), ends=(9, -1), axes=(0, 1), opset=9)
    yield s("Pad", f(2, 3), i(1, 0, 2, 1), data=1)
    yield s("Pad", f(2, 3), i(0, 1, 0, 2), np.float32(1.5).reshape(()), data=1, opset=13)
    yield s("Pad", f(4, 3), i(-1, 0, 1, -1), data=1)
    yield s("Pad", f(2, 3), i(1, 2), np.float32(2.0).reshape(()), i(-1), data=1)
    yield s("Pad", f(2, 3), pads=(1, 0, 0, 2), value=0.5, opset=10)
    for axis, index in (
        (0, n(2, 2, low=-4, high=4)),
        (1, n(3, low=0, high=3, dtype=np.int32)),
        (-1, n(low=-2, high=2)),
    ):
        yield s("Gather", f(4, 3, 2), index, axis=axis)
    for axis in (0, 1, -1):
        yield s("GatherElements", f(3, 3), n(2, 3, low=-3, high=3), axis=axis)
    for shape, places in (((4, 3), (2,)), ((4,), (2, 3)), ((3, 2, 2), (5,))):
        index, update = n(*places, 1, low=-shape[0], high=shape[0]), f(*places, *shape[1:])
        yield s("ScatterND", f(*shape), index, update, reduction=b"add", opset=16)
    yield s("ScatterND", n(4, 2), n(3, 1, low=0, high=4), n(3, 2), reduction=b"add")
    for upper, k in ((1, 0), (0, -1), (1, 2)):
        yield s("Trilu", f(2, 3, 4), np.int64(k).reshape(()), data=1, upper=upper)
    yield s("Trilu", f(4, 3))
    for exclusive, reverse in ((0, 0), (1, 0), (0, 1), (1, 1)):
        yield s("CumSum", f(3, 4), np.int64(-1).reshape(()), data=1, exclusive=exclusive, reverse=reverse)


def reductions() -> Iterator[Sample]:
    for op in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"):
        name = f"Reduce{op}"
        yield s(name, f(2, 3, 4, low=0.2), axes=(1, -1), opset=11)
        yield s(name, f(2, 3, 4, low=0.2), axes=(0,), keepdims=0, opset=7)
        yield s(name, f(2, 1, 4, low=0.2), i(-1), data=1, opset=18)
        yield s(name, f(2, 3, low=0.2), keepdims=0, opset=18)
        yield s(name, f(2, 3, low=0.2), opset=12)
    yield s("ReduceSum", f(2, 3), i(), data=1, noop_with_empty_axes=1, opset=13)
    yield s("ReduceSum", n(2, 3), i(0), data=1, opset=13)


def normalisations() -> Iterator[Sample]:
    for op in ("Softmax", "LogSoftmax"):
        yield from (s(op, f(2, 3, 4), axis=axis) for axis in (0, 1, -1))
        yield s(op, f(3, 4, low=-200.0, high=200.0), opset=11)
        yield s(op, f(3, 4, 1, 1), axis=1, opset=12)
    for shape, opset in (((2, 3, 4, 2), 7), ((2, 3), 9), ((1, 4, 5), 15)):
        c = shape[1]
        yield s("BatchNormalization", f(*shape), f(c), f(c), f(c), f(c, low=0.2), opset=opset, epsilon=1e-3)
    for shape in ((2, 3, 4), (1, 2, 3, 2), (2, 1, 5, 1)):
        yield s("InstanceNormalization", f(*shape), f(shape[1]), f(shape[1]), epsilon=1e-2)
        yield s("MeanVarianceNormalization", f(*shape), axes=(0, 2), opset=13)
    yield s("LayerNormalization", f(2, 3, 4), f(4), f(4), opset=17)
    yield s("LayerNormalization", f(2, 3, 4), f(3, 4), axis=1, epsilon=0.1)
    yield s("LayerNormalization", f(2, 5), f(5), axis=-1)
    for axis, scale in ((-1, (4,)), (1, (3, 4)), (2, (1,))):
        yield s("RMSNormalization", f(2, 3, 4), f(*scale), axis=axis, opset=23)
    for groups in (1, 2, 4):
        yield s("GroupNormalization", f(2, 4, 3), f(4), f(4), num_groups=groups, epsilon=1e-2)
    q, k, v = f(2, 4, 3, 5), f(2, 2, 6, 5), f(2, 2, 6, 2)
    yield s("Attention", q, k, v, opset=23)
    yield s("Attention", q, k, v, f(3, 6), scale=0.25, opset=23)
    yield s("Attention", q, k[:, :1], v[:, :1], is_causal=1, opset=23)
    for size in (1, 3, 5):
        yield s("LRN", f(1, 5, 2, 2), size=size, alpha=0.1, beta=0.5, bias=1.5)


def generators() -> Iterator[Sample]:
    yield s("ConstantOfShape", i(2, 3), data=0)
    yield s("ConstantOfShape", i(2, 0), data=0, value=tensor_attribute(np.array([2.5], np.float32)))
    yield s("ConstantOfShape", i(4), data=0, value=tensor_attribute(np.array([-3], np.int64)), opset=9)
    yield from (s("EyeLike", f(3, 4), k=k, opset=9 if k else 21) for k in (0, 1, -2))
    yield s("EyeLike", n(2, 2), dtype=1)
    for start, limit, delta in ((0, 5, 1), (7, -2, -3), (3, 3, 2)):
        yield s("Range", *(np.int64(v).reshape(()) for v in (start, limit, delta)), data=0)
    yield s("Constant", value=tensor_attribute(f(2, 3)))
    yield s("Constant", value_ints=(1, -2, 3))
    yield s("Constant", value_float=0.5)
    yield s("Constant", value=tensor_attribute(np.array([True, False])), opset=7)
    yield s("Shape", f(2, 3, 4))
    yield s("Shape", f(2, 3, 4), start=1, end=-1)
    yield s("Shape", n(), opset=7)
    yield from (s("Size", f(*shape)) for shape in ((2, 3), (), (0, 4)))
    for shape in ((4,), (2, 2), (1, 4)):  # last: the mutants that are looked at are every so many of all samples
        yield s("IsNaN", np.array([0.0, np.nan, np.inf, -1.0], np.float32).reshape(shape))
    packed = {"q_num_heads": 4, "kv_num_heads": 2, "opset": 23}
    yield s("Attention", f(2, 3, 20), f(2, 6, 10), f(2, 6, 4), **packed)
    yield s("Attention", f(2, 3, 20), f(2, 6, 10), f(2, 6, 4), f(3, 6), scale=0.25, **packed)
    two = np.array([-1.0, 2.5], np.float32)
    for axis, indices in ((-1, np.array([0, 3, -1, -4, 4, -5, 90], np.int64)), (0, n(2, 3)), (1, n(2, 3))):
        yield s("OneHot", indices, np.array([4], np.int64), two, data=1, axis=axis)


FAMILIES = (
    elementwise,
    linear,
    images,
    resizes,
    shapes,
    reductions,
    normalisations,
    generators,
    quantised,
    quantised_products,
)
SAMPLES = [sample for family in FAMILIES for sample in family()]


@pytest.fixture(scope="session")
def samples() -> list[Sample]:
    return SAMPLES


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes ``sample`` runs for every operator, over all of its samples; some operators are essential.

    One that takes ``newer`` runs over a third of the samples of newer opsets.
    """
    if "newer" in metafunc.fixturenames:
        newer = [s for s in SAMPLES if s.opset >= 21]
        metafunc.parametrize("newer", sampled(newer, len(newer) // 3), ids=str)
    if "sample" in metafunc.fixturenames:
        essential = getattr(metafunc.module, "ESSENTIAL", ())
        by_operator: dict[str, list[Sample]] = {}
        for sample in SAMPLES:
            by_operator.setdefault(sample.op, []).append(sample)
        given = [
            pytest.param(own, marks=[pytest.mark.essential] if op in essential else [], id=op)
            for op, own in by_operator.items()
        ]
        metafunc.parametrize("sample", given)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Call a test that takes ``sample`` for each of its operator's: a test a sample costs more than most samples do."""
    if "sample" not in pyfuncitem.fixturenames:
        return None
    for sample in pyfuncitem.funcargs["sample"]:
        try:
            pyfuncitem.obj(sample)
        except BaseException as error:
            error.add_note(f"of the sample {sample}")
            raise
    return True
