"""A model that rounds differently in each run: every operator's result or terms are moved by noise that it reads.

The noise is drawn outside and fed, where shapes follow from the inputs': to draw it inside takes several times what
the model itself takes. See :mod:`superopt.verifier.check.rounding_noise` for what the runs are for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod, sqrt

import ml_dtypes
import numpy as np

from superopt.ir.graph import Graph, Node, Value, Weight, constant
from superopt.ir.poly import Dim, value_at
from superopt.ir.types import DType, TensorType
from superopt.ops.infer import Typing, known_shapes
from superopt.verifier.check.input_generation import fed_types
from superopt.verifier.check.sessions import Arrays

__all__ = ["ELEMENTARY", "EXACT", "REALS", "STEPS", "Builder", "NoiseInput", "is_exact", "noise"]

_MANY = 1 << 8  # terms up to which six deviations of their sum are within the free distance of 16 epsilons
STEPS = 4  # units in the last place by which values are moved, at most
_PREFIX = "superopt.noise."
_RELATIVE, _RANGE, _ABSOLUTE, _SUMMED = "relative", "range", "absolute", "summed"  # kinds of noise
_FACTORS = frozenset({_RELATIVE, _SUMMED})  # what a value is multiplied with
_STRIDE, _ALIGNED = 1 << 13, 16  # places in drawn noise from which it is read, and elements between them
REALS = {DType.FLOAT32: 1, DType.FLOAT64: 11, DType.FLOAT16: 10, DType.BFLOAT16: 16}  # ONNX's for the type
# Operators whose results are not rounded: they move, select or compare values, or round by intent.
EXACT = frozenset({
    "Abs", "ArgMax", "ArgMin", "Cast", "CastLike", "Ceil", "Clip", "Compress", "Concat", "Constant", "ConstantOfShape",
    "DepthToSpace", "Dropout", "Expand", "EyeLike", "Flatten", "Floor", "Gather", "GatherElements", "GatherND",
    "GlobalMaxPool", "Identity", "Max", "MaxPool", "Min", "Neg", "NonZero", "OneHot", "Pad", "Relu", "ReduceMax",
    "ReduceMin", "Reshape", "ReverseSequence", "Round", "Scatter", "ScatterElements", "ScatterND", "Sign", "Slice",
    "SpaceToDepth", "Split", "Squeeze", "ThresholdedRelu", "Tile", "TopK", "Transpose", "Trilu", "Unique", "Unsqueeze",
    "Where", "Size", "Shape", "If", "Loop", "Scan", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And",
    "Or", "Not", "Xor", "IsNaN", "IsInf",
})  # fmt: skip


def is_exact(node: Node) -> bool:
    """Whether results are not rounded: the operator is one of :data:`EXACT`, and adds or multiplies nothing."""
    return not node.domain and node.op in EXACT and node.attributes.get("reduction", b"none") in (b"none", "none")


# One rounding of a function of the operands; every other operator that rounds does so inside, too.
ELEMENTARY = frozenset({
    "Acos", "Acosh", "Add", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Div", "Elu", "Erf", "Exp", "HardSigmoid",
    "LeakyRelu", "Log", "Mod", "Mul", "PRelu", "Pow", "Reciprocal", "Sigmoid", "Sin", "Sinh", "Softsign", "Sqrt",
    "Sub", "Tan", "Tanh",
})  # fmt: skip
# Kernels that are accurate to an epsilon of their range, 1, rather than of the value: moved so in either kind of run.
_RANGED = frozenset({"Erf", "Sigmoid", "Tanh", "HardSigmoid", "Softmax"})
# Operators with sums inside that add constants to them, and the places of those operands. Where they are large beside
# the terms, partial sums are rounded at their size, which disturbing the terms does not show.
_ADDED: Mapping[str, tuple[int, ...]] = {
    "BatchNormalization": (2, 3), "Conv": (2,), "ConvTranspose": (2,), "Gemm": (2,), "GroupNormalization": (2,),
    "InstanceNormalization": (2,), "LayerNormalization": (2,),
}  # fmt: skip
# Operators whose kernels sum (or multiply) many terms one after the other for each element. What n terms of one sign
# are summed to is rounded n times at the size of the sum so far: its relative error has a standard deviation of
# sqrt(n) / 6 epsilons (N. Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 4.2), and a bias where
# terms are alike, which neither moved inputs nor disturbed terms show. The order is the kernel's own, so that nobody
# means it: such sums are moved in either kind of run.
_SERIAL = frozenset({
    "GlobalAveragePool", "ReduceL1", "ReduceL2", "ReduceMean", "ReduceProd", "ReduceSum", "ReduceSumSquare",
})  # fmt: skip


@dataclass(frozen=True)
class NoiseInput:
    """An input of a disturbed model that a value is multiplied with or that is added to it: its noise.

    ``summed`` is the shape of what the value's elements are sums over, if they are.
    """

    name: str
    kind: str
    dtype: DType
    shape: tuple[Dim, ...]
    summed: tuple[Dim, ...] = ()


def noise(places: Sequence[NoiseInput], sizes: Mapping[str, int], number: int) -> Arrays:
    """What places read in one run.

    Noise of one kind and type is drawn once, as much as the largest value needs and somewhat more; every place reads
    it from an element of its own on, which is drawn too, so that no two are alike in each run.

    Args:
        places: inputs of a disturbed model.
        sizes: of its symbolic dimensions.
        number: of the run, by which the noise is drawn.
    """
    rng = np.random.default_rng(number)
    alike: dict[tuple[str, DType, int], list[tuple[str, tuple[int, ...]]]] = {}
    for place in places:
        shape, summed = (tuple(value_at(d, sizes) for d in dims) for dims in (place.shape, place.summed))
        terms = prod(summed) // max(1, prod(shape)) if summed else 1
        alike.setdefault((place.kind, place.dtype, terms), []).append((place.name, shape))
    given: Arrays = {}
    for (kind, dtype, terms), shapes in alike.items():
        pool = _pool(rng, kind, dtype, max(prod(shape) for _, shape in shapes) + _STRIDE * _ALIGNED, terms)
        starts = rng.integers(0, _STRIDE, len(shapes)) * _ALIGNED
        for start, (name, shape) in zip(starts.tolist(), shapes, strict=True):
            given[name] = pool[start : start + prod(shape)].reshape(shape)
    return given


def _pool(rng: np.random.Generator, kind: str, dtype: DType, size: int, terms: int) -> np.ndarray:
    """Noise of a kind, uniform within its amplitude."""
    drawn = rng.random(size, dtype=_wide(dtype).numpy)
    drawn -= 0.5
    drawn *= 2 * _amplitude(kind, dtype)
    if kind == _SUMMED:
        drawn *= sqrt(terms) if terms > _MANY else 0.0
    if kind in _FACTORS:
        drawn += 1.0
    return drawn.astype(dtype.numpy, copy=False)


def _amplitude(kind: str, dtype: DType) -> float:
    """How far noise of a kind goes: so many epsilons, one epsilon, or so many times the smallest number; of a sum, for
    each square root of its terms."""
    limits = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    absolute, epsilon = STEPS * float(limits.smallest_subnormal), float(limits.eps)
    return {_RELATIVE: STEPS * epsilon, _SUMMED: epsilon, _RANGE: epsilon, _ABSOLUTE: absolute}[kind]


def _wide(dtype: DType) -> DType:
    """The type that noise for another is drawn in."""
    return DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32


@dataclass
class Builder:
    """A disturbed model: its constants are inputs, and

    * ``inside``: what rounds is multiplied with ``1 + amplitude · u``, u uniform in ±1, anew each run;
    * in either kind: what is accurate to an epsilon of its range has ``epsilon · u`` added to it, and a sum of n terms,
      of many, is multiplied with ``1 + sqrt(n) · epsilon · u``.
    """

    graph: Graph
    typing: Typing
    live: frozenset[str]
    inside: bool
    tiny: bool
    noise_inputs: list[NoiseInput] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    amplitudes: dict[str, Weight] = field(default_factory=dict)
    sized: dict[str, tuple[Dim, ...]] = field(default_factory=dict)
    count: int = 0

    def build(self, constants: Mapping[str, np.ndarray]) -> Graph:
        """The model; ``places`` has what it reads besides the original's inputs and these constants."""
        self.sized = known_shapes(self.graph, self.typing, {*fed_types(self.graph), *self.graph.weight, *constants})
        for node in self.graph.nodes:
            self._add(node)
        fed = {v.name for v in self.graph.inputs}
        extra = [Value(n, TensorType(DType.of(a.dtype), a.shape)) for n, a in constants.items() if n not in fed]
        extra += [Value(p.name, TensorType(p.dtype, p.shape)) for p in self.noise_inputs]
        made = {v.name for v in extra}
        kept = [
            replace(n, outputs=tuple(f"{_PREFIX}unread.{o}" if o in made else o for o in n.outputs)) for n in self.nodes
        ]
        weights = (*(w for w in self.graph.weights if w.name not in made), *self.amplitudes.values())
        return replace(self.graph, nodes=tuple(kept), inputs=(*self.graph.inputs, *extra), weights=weights, values=())

    def _add(self, node: Node) -> None:
        running = any(r in self.live for r in node.reads)
        serial = not node.domain and node.op in _SERIAL
        if not running or is_exact(node) or not (self.inside or serial or node.op in _RANGED):
            self.nodes.append(node)
            return
        inputs = list(node.inputs)
        if self.inside and (node.domain or node.op not in ELEMENTARY):
            added = () if node.domain else _ADDED.get(node.op, ())
            for place, name in enumerate(inputs):
                if (name in self.live or (name and place in added)) and (dtype := self._kind(name)) is not None:
                    inputs[place] = self._disturbed(name, name, dtype, (_RELATIVE,))
        # its terms move by as much as its result would, but for what ends near the smallest numbers
        moved = inputs != list(node.inputs) and node.op not in _RANGED
        kinds = [_RELATIVE] if self.inside and not moved else []
        summed = self.sized.get(node.inputs[0]) if serial else None
        kinds += [_SUMMED] if summed is not None and node.outputs[0] in self.sized else []
        kinds += [_RANGE] if node.op in _RANGED else []
        kinds += [_ABSOLUTE] if self.inside and self.tiny else []
        outputs = list(node.outputs)
        later: list[tuple[str, str, DType]] = []
        for place, name in enumerate(outputs):
            if name and kinds and (dtype := self._kind(name)) is not None:
                outputs[place] = f"{_PREFIX}raw.{name}"
                later.append((outputs[place], name, dtype))
        self.nodes.append(replace(node, inputs=tuple(inputs), outputs=tuple(outputs)))
        for raw, name, dtype in later:
            self._disturbed(raw, name, dtype, kinds, output=name, summed=summed or ())

    def _kind(self, name: str) -> DType | None:
        kind = self.typing.types.get(name)
        return kind.dtype if isinstance(kind, TensorType) and kind.dtype in REALS else None

    def _disturbed(
        self, name: str, typed: str, dtype: DType, kinds: Sequence[str], output: str = "", summed: tuple[Dim, ...] = ()
    ) -> str:
        """A value with noise of some kinds, and its name; ``typed`` is a value of its type, ``summed`` the shape of
        what it sums."""
        current = name
        for kind in kinds:
            self.count += 1
            made = output if output and kind == kinds[-1] else f"{_PREFIX}{self.count}"
            if typed in self.sized:
                read = f"{_PREFIX}{self.count}.{kind}"
                over = summed if kind == _SUMMED else ()
                self.noise_inputs.append(NoiseInput(read, kind, dtype, self.sized[typed], over))
            else:
                read = self._drawn(name, kind, dtype)
            self._node("Mul" if kind in _FACTORS else "Add", (current, read), made)
            current = made
        return current

    def _drawn(self, name: str, kind: str, dtype: DType) -> str:
        """Noise that the model draws itself, since only its runs tell the value's shape."""
        p, wide = f"{_PREFIX}{self.count}.", _wide(dtype)
        amplitude = _amplitude(kind, dtype)
        drawn = {"low": -1.0, "high": 1.0, "seed": float(self.count), "dtype": REALS[wide]}
        self._node("RandomUniformLike", (name,), f"{p}u", drawn)
        self._node("Mul", (f"{p}u", self._constant(kind, dtype, amplitude)), f"{p}d")
        last = f"{p}d"
        if kind == _RELATIVE:
            self._node("Add", (last, self._constant("one", dtype, 1.0)), f"{p}f")
            last = f"{p}f"
        if dtype is not wide:
            self._node("Cast", (last,), f"{p}n", {"to": REALS[dtype]})
            last = f"{p}n"
        return last

    def _constant(self, what: str, dtype: DType, number: float) -> str:
        name = f"{_PREFIX}{what}.{dtype}"
        self.amplitudes[name] = constant(name, np.asarray(number, _wide(dtype).numpy))
        return name

    def _node(
        self, op: str, inputs: tuple[str, ...], output: str, attributes: Mapping[str, object] | None = None
    ) -> None:
        self.nodes.append(Node("", op, inputs, (output,), attributes or {}))  # type: ignore[arg-type]
