"""How far a model's outputs move by its own rounding, found by running it, without another evaluator.

Monte Carlo arithmetic (D. S. Parker, 1997; J. Vignes' CESTAC), in two kinds of disturbed runs of the original in ONNX
Runtime, its optimisations off:

* *inputs*: every real input, and every small weight whose digits are used up (a 3.1416, not a 0.5 or 12582912, which
  are meant exactly), is moved by up to :data:`STEPS` units in the last place. Rounding everywhere is drawn anew.
* *inside*: inputs stay; the result of every operator that rounds once, what an operator with sums inside reads, and
  the constants that it adds to them are multiplied by ``1 ± STEPS`` epsilons.

Either kind alone would excuse too much. Moving inputs excuses ``x·x - y·y`` in place of ``(x + y)·(x - y)``, which
rounds far less; disturbing intermediates excuses ``x`` in place of ``(x + 12582912) - 12582912``, whose rounding is
meant. So the judge takes the smaller of the two (:class:`superopt.verifier._judgement.Moves`). Weights and what is
computed from weights alone are not disturbed inside otherwise: they are constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import ml_dtypes
import numpy as np

from superopt.ir.graph import Graph, Node, Value, Weight, constant
from superopt.ir.types import DType, TensorType
from superopt.ops.infer import Typing, infer
from superopt.runtime.ort import InferenceSession
from superopt.verifier._feeds import fed_types
from superopt.verifier.running import REFUSALS, Arrays, Bench, attempt

__all__ = ["ELEMENTARY", "EXACT", "STEPS", "Disturbed", "constants_read", "is_exact", "live_values"]

STEPS = 4  # units in the last place by which values are moved, at most
_SMALL = 1 << 16  # elements of a weight that is moved
_PREFIX = "superopt.noise."
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
# Real operands that shapes depend on.
_SHAPING = frozenset({"NonMaxSuppression", "Range", "Resize", "Upsample"})
_PIECE = 1 << 16  # elements
_BITS = {DType.FLOAT64: 20, DType.FLOAT32: 8, DType.FLOAT16: 3, DType.BFLOAT16: 2}  # last bits: 0 in a round number
_NUMBER = {DType.FLOAT32: 1, DType.FLOAT64: 11, DType.FLOAT16: 10, DType.BFLOAT16: 16}  # ONNX's for the type


def live_values(graph: Graph) -> frozenset[str]:
    """Names of the values that depend on what is fed."""
    live = set(fed_types(graph))
    for node in graph.nodes:
        if any(r in live for r in node.reads):
            live.update(o for o in node.outputs if o)
    return frozenset(live)


class Disturbed:
    """Disturbed runs of a graph.

    Args:
        graph: the original.
        bench: where its sessions are made.
        plain: a session of the original, optimisations off.
        typing: the original's types, if at hand.
    """

    def __init__(self, graph: Graph, bench: Bench, plain: InferenceSession, typing: Typing | None = None) -> None:
        self._graph, self._bench, self._plain = graph, bench, plain
        self._typing = typing or infer(graph)
        self._live = live_values(graph)
        self._constants = constants_read(graph, self._typing, self._live, bench, _SMALL, reals=True) or {}
        self._shifts: dict[int, Arrays] = {}
        self._noisy: dict[bool, InferenceSession | None] = {}
        self._optimised: InferenceSession | None = None

    def optimised(self, feeds: Mapping[str, np.ndarray], time_limit: float | None) -> Arrays | None:
        """What the original gives with the runtime's optimisations on."""
        try:
            if self._optimised is None:
                self._optimised = self._bench.session(self._graph, optimise=True)
        except REFUSALS:
            return None
        return attempt(self._optimised, feeds, time_limit=time_limit)

    def samples(
        self, feeds: Mapping[str, np.ndarray], numbers: range, *, tiny: bool, time_limit: float | None
    ) -> tuple[list[Arrays], list[Arrays]]:
        """Outputs of some runs with moved inputs, and of as many disturbed inside.

        Args:
            feeds: the inputs.
            numbers: which samples; equal numbers give the same moved inputs.
            tiny: values are near the smallest numbers, whose rounding is absolute.
            time_limit: seconds of one run.
        """
        session = self._session(tiny)
        moved: list[Arrays | None] = []
        inside: list[Arrays | None] = []
        for number in numbers:
            inputs = {n: _moved(a, np.random.default_rng([number, i])) for i, (n, a) in enumerate(feeds.items())}
            if session is None:
                moved.append(attempt(self._plain, inputs, time_limit=time_limit))
                continue
            if number not in self._shifts:
                self._shifts[number] = {n: _shifted(a, number) for n, a in self._constants.items()}
            given = {**inputs, **self._shifts[number], **_amplitudes(0, tiny)}
            moved.append(attempt(session, given, time_limit=time_limit))
            given = {**feeds, **self._constants, **_amplitudes(STEPS, tiny)}
            inside.append(attempt(session, given, time_limit=time_limit))
        return [m for m in moved if m is not None], [m for m in inside if m is not None]

    def _session(self, tiny: bool) -> InferenceSession | None:
        """The disturbed model; ``None`` where ONNX Runtime does not take it."""
        if tiny not in self._noisy:
            made = _Builder(self._graph, self._typing, self._live, tiny).build(self._constants)
            try:
                self._noisy[tiny] = self._bench.session(made, optimise=False)
            except REFUSALS:
                self._noisy[tiny] = None
        return self._noisy[tiny]


def constants_read(
    graph: Graph, typing: Typing, live: frozenset[str], bench: Bench, most: int, *, reals: bool = False
) -> Arrays | None:
    """Constants of at most so many elements, stored or computed, that meet values which depend on the inputs.

    Args:
        graph: whose they are.
        typing: its types.
        live: its values that depend on the inputs.
        bench: where the computed ones are run.
        most: elements; larger ones are left out, which makes the whole ``None`` where every kind is asked for.
        reals: only those of real numbers that no shape depends on.
    """
    wanted: dict[str, None] = {}
    for node in graph.nodes:
        if any(r in live for r in node.reads) and not (reals and node.op in _SHAPING):
            wanted.update(dict.fromkeys(n for n in node.inputs if n and n not in live))
    names = [n for n in wanted if _is_small(typing.types.get(n), most, reals)]
    if not reals and len(names) < len(wanted):
        return None
    found = {n: w.data.numpy() for n in names if (w := graph.weight.get(n)) is not None and w.data is not None}
    computed = [n for n in names if n not in graph.weight]
    if not computed:
        return found
    nodes, needed = [], set(computed)
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            nodes.append(node)
            needed.update(node.reads)
    part = replace(
        graph, inputs=(), outputs=tuple(Value(n, typing.types[n]) for n in computed), values=(),
        nodes=tuple(reversed(nodes)), weights=tuple(w for w in graph.weights if w.name in needed),
    )  # fmt: skip
    try:
        made = attempt(bench.session(part, optimise=False), {})
    except REFUSALS:
        made = None
    return {**found, **made} if made is not None else found if reals else None


def _is_small(kind: object, most: int, reals: bool) -> bool:
    if not isinstance(kind, TensorType) or (reals and kind.dtype not in _NUMBER):
        return False
    count = kind.elements
    return isinstance(count, int) and count <= most and (count > 0 or not reals)


def _moved(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Real elements moved by 1 to ``STEPS`` units in the last place, up or down; zeros stay.

    In pieces that a core's cache holds: weights that are not known are inputs too, of hundreds of megabytes.
    """
    if array.dtype.kind != "f" and array.dtype != ml_dtypes.bfloat16:
        return array
    moved = np.array(array, order="C")
    flat = moved.reshape(-1)
    for start in range(0, flat.size, _PIECE):
        part = flat[start : start + _PIECE]
        steps = rng.integers(-STEPS, STEPS, part.size, dtype=np.int8)
        steps += steps >= 0  # none is 0
        part[:] = _stepped(part, steps)
    return moved


def _stepped(array: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Elements moved by whole units in the last place: their patterns of bits, as integers, count them."""
    bits = array.view(f"i{array.dtype.itemsize}") if array.ndim else array.reshape(1).view(f"i{array.dtype.itemsize}")
    with np.errstate(over="ignore", invalid="ignore"):
        far = (bits + steps.reshape(bits.shape)).astype(bits.dtype, copy=False)
        moved = far.view(array.dtype).reshape(array.shape)
        fine = np.isfinite(array) & np.isfinite(moved) & (array != 0) & (moved != 0)
        fine &= ((bits ^ far) >= 0).reshape(array.shape)  # of the same sign
    return np.where(fine, moved, array)


def _shifted(array: np.ndarray, number: int) -> np.ndarray:
    """A constant with used-up digits moved by 1 to ``STEPS`` units in the last place; equal magnitudes equally."""
    dtype = DType.of(array.dtype)
    flat = np.ascontiguousarray(np.abs(array)).reshape(-1)
    bits = flat.view(f"u{flat.dtype.itemsize}").astype(np.uint64)
    full = bits & np.uint64((1 << _BITS[dtype]) - 1) != 0
    with np.errstate(over="ignore"):
        mixed = (bits + np.uint64(number + 1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
    up = (mixed >> np.uint64(40)) & np.uint64(1)
    far = 1 + (mixed >> np.uint64(44)).astype(np.int64) % STEPS
    return _stepped(array, np.where(full, np.where(up == 1, far, -far), 0).reshape(array.shape))


def _amplitudes(steps: int, tiny: bool) -> Arrays:
    """What the disturbed model reads: relative amplitudes by type, and absolute ones near the smallest numbers."""
    given: Arrays = {}
    for dtype in _NUMBER:
        limits = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
        wide = np.float64 if dtype is DType.FLOAT64 else np.float32
        given[f"{_PREFIX}relative.{dtype}"] = np.asarray(steps * float(limits.eps), wide)
        given[f"{_PREFIX}range.{dtype}"] = np.asarray(float(limits.eps), dtype.numpy)
        if tiny:
            given[f"{_PREFIX}absolute.{dtype}"] = np.asarray(steps * float(limits.smallest_subnormal), dtype.numpy)
    return given


@dataclass
class _Builder:
    """The disturbed model: after what rounds, a product with ``1 + amplitude · u``, u uniform in ±1, anew each run."""

    graph: Graph
    typing: Typing
    live: frozenset[str]
    tiny: bool
    nodes: list[Node] = field(default_factory=list)
    used: dict[DType, None] = field(default_factory=dict)
    count: int = 0

    def build(self, constants: Mapping[str, np.ndarray]) -> Graph:
        """The model, which takes the constants as inputs too."""
        for node in self.graph.nodes:
            self._add(node)
        fed = {v.name for v in self.graph.inputs}
        extra = [Value(n, TensorType(DType.of(a.dtype), a.shape)) for n, a in constants.items() if n not in fed]
        ones: list[Weight] = []
        for dtype in self.used:
            wide = DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32
            extra.append(Value(f"{_PREFIX}relative.{dtype}", TensorType(wide, ())))
            ones.append(constant(f"{_PREFIX}one.{dtype}", np.asarray(1.0, wide.numpy)))
            extra.append(Value(f"{_PREFIX}range.{dtype}", TensorType(dtype, ())))
            if self.tiny:
                extra.append(Value(f"{_PREFIX}absolute.{dtype}", TensorType(dtype, ())))
        made = {v.name for v in extra}
        kept = [
            replace(n, outputs=tuple(f"{_PREFIX}unread.{o}" if o in made else o for o in n.outputs)) for n in self.nodes
        ]
        weights = (*(w for w in self.graph.weights if w.name not in made), *ones)
        return replace(self.graph, nodes=tuple(kept), inputs=(*self.graph.inputs, *extra), weights=weights, values=())

    def _add(self, node: Node) -> None:
        running = any(r in self.live for r in node.reads)
        if not running or is_exact(node):
            self.nodes.append(node)
            return
        inputs = list(node.inputs)
        if node.domain or node.op not in ELEMENTARY:
            added = () if node.domain else _ADDED.get(node.op, ())
            for place, name in enumerate(inputs):
                if (name in self.live or (name and place in added)) and (dtype := self._kind(name)) is not None:
                    inputs[place] = self._disturbed(name, dtype, "")
        outputs = list(node.outputs)
        later: list[tuple[str, str, DType]] = []
        # its terms move by as much as its result would, but for what ends near the smallest numbers
        inside = inputs != list(node.inputs) and node.op not in _RANGED
        for place, name in enumerate(outputs):
            if name and (self.tiny or not inside) and (dtype := self._kind(name)) is not None:
                outputs[place] = f"{_PREFIX}raw.{name}"
                later.append((outputs[place], name, dtype))
        self.nodes.append(replace(node, inputs=tuple(inputs), outputs=tuple(outputs)))
        for raw, name, dtype in later:
            self._disturbed(
                raw, dtype, name, relative=not inside, ranged=node.op in _RANGED, absolute=self.tiny
            )  # fmt: skip

    def _kind(self, name: str) -> DType | None:
        kind = self.typing.types.get(name)
        return kind.dtype if isinstance(kind, TensorType) and kind.dtype in _NUMBER else None

    def _disturbed(
        self, name: str, dtype: DType, output: str, *, relative: bool = True, ranged: bool = False,
        absolute: bool = False,
    ) -> str:  # fmt: skip
        """The value moved, by so many epsilons of itself, of its range or of the smallest number; its name."""
        self.count += 1
        self.used[dtype] = None
        p = f"{_PREFIX}{self.count}."
        wide = DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32
        drawn = {"low": -1.0, "high": 1.0, "seed": float(self.count), "dtype": _NUMBER[wide]}
        self._node("RandomUniformLike", (name,), f"{p}u", drawn)
        self._node("Mul", (f"{p}u", f"{_PREFIX}relative.{dtype}"), f"{p}d")
        self._node("Add", (f"{p}d", f"{_PREFIX}one.{dtype}"), f"{p}f")
        factor, draw = f"{p}f", f"{p}u"
        if dtype is not wide:
            number = {"to": _NUMBER[dtype]}
            for short in ("f", "u"):
                self._node("Cast", (f"{p}{short}",), f"{p}{short}n", number)
            factor, draw = f"{p}fn", f"{p}un"
        steps = [("Mul", factor)] if relative else []
        if ranged:
            self._node("Mul", (draw, f"{_PREFIX}range.{dtype}"), f"{p}r")
            steps.append(("Add", f"{p}r"))
        if absolute:
            self._node("Mul", (draw, f"{_PREFIX}absolute.{dtype}"), f"{p}a")
            steps.append(("Add", f"{p}a"))
        current = name
        for number_, (op, operand) in enumerate(steps):
            made = output if output and number_ == len(steps) - 1 else f"{p}{number_}"
            self._node(op, (current, operand), made)
            current = made
        return current

    def _node(
        self, op: str, inputs: tuple[str, ...], output: str, attributes: Mapping[str, object] | None = None
    ) -> None:
        self.nodes.append(Node("", op, inputs, (output,), attributes or {}))  # type: ignore[arg-type]
