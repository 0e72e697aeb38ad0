"""How much an operator's own rounding may move its output, as noise put on a run of the original.

The model is the standard one of rounding error analysis (Higham, *Accuracy and Stability of Numerical Algorithms*,
2002, chapters 2–4), sampled as in Monte Carlo arithmetic (Parker, 1997): each arithmetic operator's output is moved by
``±AMPLITUDE`` of its machine epsilons, an operator that sums products has its operands moved as well (its backward
error), and an operator that is exact (data movement, comparisons, Min, Floor, integers) is left alone, as is
everything that depends on constants only.
"""

from __future__ import annotations

import numpy as np

AMPLITUDE = 4.0  # machine epsilons an operation: eight unit roundoffs, what good kernels of exp and tanh stay within
_EXACT = """Abs And ArgMax ArgMin BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Clip Compress
    Concat ConcatFromSequence Constant ConstantOfShape ConvInteger DepthToSpace Dropout DynamicQuantizeLinear Equal
    Expand EyeLike MatMulInteger QLinearConv QLinearMatMul
    Flatten Floor Gather GatherElements GatherND Greater GreaterOrEqual Identity IsInf IsNaN Less LessOrEqual Max
    MaxPool Min Mod Neg NonZero Not OneHot Or Pad QuantizeLinear ReduceMax ReduceMin Relu Reshape Round ScatterElements
    ScatterND SequenceAt SequenceConstruct SequenceLength Shape Sign Size Slice SpaceToDepth Split SplitToSequence
    Squeeze ThresholdedRelu Tile TopK Transpose Trilu Unique Unsqueeze Where Xor"""
EXACT_OPERATORS = frozenset(_EXACT.split())
_SUMMING = """AveragePool BatchNormalization Conv ConvTranspose CumSum Einsum GRU Gemm GlobalAveragePool GlobalLpPool
    GroupNormalization If InstanceNormalization LRN LSTM LayerNormalization Loop LpNormalization LpPool MatMul Mean
    MeanVarianceNormalization RNN ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean ReduceProd ReduceSum
    ReduceSumSquare Resize Scan Sum"""
SUMMING = frozenset(_SUMMING.split())
BOUNDED = frozenset(["Sigmoid", "Tanh", "Erf", "HardSigmoid", "GRU", "LSTM", "RNN"])  # kernels accurate absolutely
PROPORTIONAL = frozenset(["Gelu", "HardSwish", "Mish", "Elu", "Celu", "Selu", "Softplus", "Shrink"])  # ... to the input
HOT = {"float16": 2.0**3, "float32": 2.0**8, "float64": 2.0**8}  # from overflow; float16 has no room for more
CHOOSING = frozenset(["Max", "Min"])  # of zeros with both signs, either
GRADUAL = frozenset(["Add", "Sub"])  # exact where they end below the smallest normal number
UNDERFLOWING = frozenset(["Mul", "Div", "Exp"])  # a zero that they make of other numbers was rounded to zero


def moved(
    values: np.ndarray, scale: np.ndarray | float, rng: np.random.Generator, *, floor: bool | np.ndarray
) -> np.ndarray:
    """Values moved by ``±AMPLITUDE`` epsilons of ``scale``, rounded to their type.

    Args:
        values: floats of any shape.
        scale: what the error is relative to, broadcastable to the values.
        rng: draws the signs.
        floor: where values below the smallest normal number move by whole steps there.
    """
    info = np.finfo(values.dtype)
    wide = values.astype(np.longdouble if values.dtype == np.float64 else np.float64)
    sign = rng.choice([-1.0, 1.0], size=values.shape)
    with np.errstate(all="ignore"):
        step = AMPLITUDE * float(info.eps) * np.abs(np.asarray(scale, wide.dtype))
        if np.any(floor):
            low = (np.abs(wide) < float(info.tiny)) & floor
            step = np.where(low, np.maximum(step, AMPLITUDE * wide.dtype.type(info.smallest_subnormal)), step)
        noisy = wide + sign * step
        return np.where(np.isfinite(noisy), noisy, wide).astype(values.dtype)


def tossed(operands: list[np.ndarray | None], output: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """What Max or Min chose of its operands, the sign drawn where zeros of both signs tie.

    Neither ONNX nor IEEE 754-2008 (5.3.1, maxNum) says which; ONNX Runtime takes the first of float16 and of two
    float32 elements, and the second of six.
    """
    zeros = [np.broadcast_to(o, output.shape) for o in operands if o is not None]
    both = np.any([(z == 0) & np.signbit(z) for z in zeros], axis=0) & np.any(
        [(z == 0) & ~np.signbit(z) for z in zeros], axis=0
    )
    sign = rng.choice(np.array([-1.0, 1.0], output.dtype), size=output.shape)
    return np.where(both & (output == 0), np.copysign(output, sign), output)


def burst(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Values within ``HOT`` of overflow, each as it is, infinite or NaN; what did overflow, anything.

    Only for runs on finite inputs, in which whatever is not finite has overflowed.
    """
    limit = float(np.finfo(values.dtype).max) / HOT[str(values.dtype)]
    with np.errstate(all="ignore"):
        near = ~(np.abs(values.astype(np.float64)) < limit)
        if not near.any():
            return values
        signed = np.where(np.signbit(values), -np.inf, np.inf)
        largest = float(np.finfo(values.dtype).max)
        other = rng.choice([0.0, 1.0, largest, -largest, np.inf, -np.inf], size=values.shape)
        third = np.where(np.isfinite(values), np.nan, other)
        drawn = rng.integers(3, size=values.shape)
        return np.where(near & (drawn == 1), signed, np.where(near & (drawn == 2), third, values)).astype(values.dtype)


def move_operand(kind: str, values: np.ndarray, axis: int, rng: np.random.Generator) -> np.ndarray:
    """A running operand of an operator that sums, or of a softmax: relative to its distance from the largest."""
    if kind in ("Softmax", "LogSoftmax") and values.size:
        with np.errstate(all="ignore"):
            scale = np.abs(values - np.max(values, axis=axis, keepdims=True))
        return moved(values, np.where(np.isfinite(scale), scale, 0), rng, floor=False)
    return moved(values, values, rng, floor=False)


def floor_of(kind: str, operands: list[np.ndarray | None], output: np.ndarray) -> bool | np.ndarray:
    """Where an output below the smallest normal number may have been rounded to it, elementwise."""
    if kind in GRADUAL:
        return False
    if kind in UNDERFLOWING and all(o is not None for o in operands):
        whole = np.ones(output.shape, bool)
        for operand in operands:
            whole &= np.isfinite(operand) & ((operand != 0) | (kind == "Exp"))  # type: ignore[arg-type]
        return whole
    return output != 0


def output_scale(kind: str, operands: list[np.ndarray | None], output: np.ndarray) -> np.ndarray:
    """What an operator's error is relative to, elementwise: mostly its output."""
    size = np.abs(output.astype(np.float64))
    if kind in BOUNDED:
        return np.maximum(size, np.where(np.isfinite(size), 1.0, 0.0))
    first = operands[0] if operands else None
    with np.errstate(all="ignore"):
        if kind in PROPORTIONAL and first is not None and first.shape == output.shape:
            return np.maximum(size, np.where(np.isfinite(first), np.abs(first.astype(np.float64)), 0))
        if (
            kind == "BatchNormalization"
            and first is not None
            and first.shape == output.shape
            and all(o is not None for o in operands[:5])
        ):
            return np.maximum(size, _normalised(*(o.astype(np.float64) for o in operands[:5] if o is not None)))
        if kind == "LayerNormalization" and operands[1] is not None:
            return size + np.abs(operands[1].astype(np.float64))
    return size


def _normalised(x: np.ndarray, s: np.ndarray, b: np.ndarray, m: np.ndarray, v: np.ndarray) -> np.ndarray:
    """|x·s'| + |m·s'| + |b| with s' = s/√v: the kernel computes x·s' + (b − m·s')."""
    shape = (1, -1, *[1] * (x.ndim - 2))
    factor = np.abs(s) / np.sqrt(np.abs(v) + 1e-300)
    total = np.abs(x) * factor.reshape(shape) + (np.abs(m) * factor + np.abs(b)).reshape(shape)
    return np.where(np.isfinite(total), total, 0.0)
