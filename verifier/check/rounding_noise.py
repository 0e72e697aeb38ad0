"""How far a model's outputs move by its own rounding, measured by running it, without another evaluator.

This is Monte Carlo arithmetic (D. S. Parker, 1997; J. Vignes' CESTAC), in two kinds of disturbed runs of the original
in ONNX Runtime, its optimisations off:

* *inputs*: every real input, and every small weight with a full significand (3.1416, but not 0.5 or 12582912, which are
  exact on purpose), is moved by up to :data:`STEPS` units in the last place. This draws all rounding anew.
* *inside*: inputs stay. The result of every operator that rounds once, the operands of an operator with sums inside,
  and the constants that it adds to them are multiplied by ``1 ± STEPS`` epsilons.

Either kind alone would excuse too much. Moving inputs excuses ``x·x - y·y`` in place of ``(x + y)·(x - y)``, which
rounds far less. Disturbing intermediates excuses ``x`` in place of ``(x + 12582912) - 12582912``, which rounds on
purpose. So a check uses the smaller of the two (:class:`superopt.verifier.check.tolerance.OutputRoundingNoise`).
Weights, and values computed from weights alone, are not disturbed inside: they are constants.

The disturbed model reads its noise as inputs (:class:`NoiseInput`) wherever their shapes follow from the other inputs:
drawing noise inside the model takes several times as long as the model itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod, sqrt

import ml_dtypes
import numpy as np

from superopt.formats.control_flow_bodies import bodies, with_body
from superopt.formats.weight_data import set_aside
from superopt.ir.graph import Graph, Node, Value, Weight, WeightData, constant
from superopt.ir.size_polynomial import Dim, value_at
from superopt.ir.types import DType, TensorType
from superopt.ops.shape_inference import InferredTypes, infer, known_shapes, sizes_fed_to
from superopt.runtime.onnx_runtime import InferenceSession
from superopt.verifier.check.input_generation import fed_types
from superopt.verifier.check.shared_weight_sessions import REFUSALS, Arrays, SharedWeightSessions, attempt
from superopt.verifier.check.tolerance import pieces

__all__ = [
    "NoisyGraphBuilder",
    "DisturbedRuns",
    "ELEMENTARY",
    "EXACT",
    "NoiseInput",
    "REALS",
    "STEPS",
    "constants_read",
    "is_exact",
    "live_values",
    "noise",
]

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
    """An input of a disturbed model: the noise by which a value is multiplied, or which is added to it.

    ``summed`` is the shape of what the value's elements are sums over, if they are.
    """

    name: str
    kind: str
    dtype: DType
    shape: tuple[Dim, ...]
    summed: tuple[Dim, ...] = ()


def noise(places: Sequence[NoiseInput], sizes: Mapping[str, int], number: int) -> Arrays:
    """The noise inputs of one run.

    Noise of one kind and type is drawn once, as much as the largest value needs and somewhat more; every place reads
    it from an element of its own on, which is drawn too, so that no two are alike in each run.

    Args:
        places: inputs of a disturbed model.
        sizes: of its symbolic dimensions.
        number: of the run, by which the noise is drawn.
    """
    rng = np.random.default_rng(number)
    alike: dict[tuple[str, DType, int], list[tuple[str, tuple[int, ...]]]] = {}
    for noise_input in places:
        shape, summed = (tuple(value_at(d, sizes) for d in dims) for dims in (noise_input.shape, noise_input.summed))
        terms = prod(summed) // max(1, prod(shape)) if summed else 1
        alike.setdefault((noise_input.kind, noise_input.dtype, terms), []).append((noise_input.name, shape))
    given_arrays: Arrays = {}
    for (kind, dtype, terms), shapes in alike.items():
        pool = _pool(rng, kind, dtype, max(prod(shape) for _, shape in shapes) + _STRIDE * _ALIGNED, terms)
        starts = rng.integers(0, _STRIDE, len(shapes)) * _ALIGNED
        for start, (name, shape) in zip(starts.tolist(), shapes, strict=True):
            given_arrays[name] = pool[start : start + prod(shape)].reshape(shape)
    return given_arrays


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
class NoisyGraphBuilder:
    """A disturbed model: its constants are inputs, and

    * ``inside``: what rounds is multiplied with ``1 + amplitude · u``, u uniform in ±1, anew each run;
    * in either kind: what is accurate to an epsilon of its range has ``epsilon · u`` added to it, and a sum of n terms,
      of many, is multiplied with ``1 + sqrt(n) · epsilon · u``.
    """

    graph: Graph
    typing: InferredTypes
    live: frozenset[str]
    inside: bool
    tiny: bool
    noise_inputs: list[NoiseInput] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    amplitudes: dict[str, Weight] = field(default_factory=dict)
    sized: dict[str, tuple[Dim, ...]] = field(default_factory=dict)
    count: int = 0
    depth: int = 0  # of bodies that the graph is inside of

    def build(self, constants: Mapping[str, np.ndarray]) -> Graph:
        """The model; ``places`` has what it reads besides the original's inputs and these constants."""
        self.sized = known_shapes(self.graph, self.typing, {*fed_types(self.graph), *self.graph.weight, *constants})
        self.graph = self._with_disturbed_bodies()
        for node in self.graph.nodes:
            self._add(node)
        fed = {v.name for v in self.graph.inputs}
        extra = [Value(n, TensorType(DType.of(a.dtype), a.shape)) for n, a in constants.items() if n not in fed]
        extra += [Value(p.name, TensorType(p.dtype, p.shape)) for p in self.noise_inputs]
        made = {v.name for v in extra}
        kept_nodes = [
            replace(n, outputs=tuple(f"{_PREFIX}unread.{o}" if o in made else o for o in n.outputs)) for n in self.nodes
        ]
        weights = (*(w for w in self.graph.weights if w.name not in made), *self.amplitudes.values())
        return replace(
            self.graph, nodes=tuple(kept_nodes), inputs=(*self.graph.inputs, *extra), weights=weights, values=()
        )

    def _with_disturbed_bodies(self) -> Graph:
        """The graph with disturbed bodies of control flow; they draw their noise, which is another at each turn."""
        graph = self.graph
        for body in bodies(graph, self.typing):
            own = {v.name for v in body.graph.inputs[: body.own]}
            live = live_values(body.graph, own | {v.name for v in body.graph.inputs if v.name in self.live})
            within = NoisyGraphBuilder(
                body.graph, infer(body.graph), live, self.inside, self.tiny, count=self.count, depth=self.depth + 1
            )
            within.graph = within._with_disturbed_bodies()
            for node in within.graph.nodes:
                within._add(node)
            self.count = within.count
            weights = (*within.graph.weights, *within.amplitudes.values())
            graph = with_body(graph, body, replace(within.graph, nodes=tuple(within.nodes), weights=weights))
        return graph

    def _add(self, node: Node) -> None:
        running = any(r in self.live for r in node.reads)
        serial = not node.domain and node.op in _SERIAL
        if not running or is_exact(node) or not (self.inside or serial or node.op in _RANGED):
            self.nodes.append(node)
            return
        inputs = list(node.inputs)
        if self.inside and (node.domain or node.op not in ELEMENTARY):
            added = () if node.domain else _ADDED.get(node.op, ())
            for position, name in enumerate(inputs):
                if (name in self.live or (name and position in added)) and (dtype := self._kind(name)) is not None:
                    inputs[position] = self._disturbed(name, name, dtype, (_RELATIVE,))
        # its terms move by as much as its result would, but for what ends near the smallest numbers
        moved = inputs != list(node.inputs) and node.op not in _RANGED
        kinds = [_RELATIVE] if self.inside and not moved else []
        summed = self.sized.get(node.inputs[0]) if serial else None
        kinds += [_SUMMED] if summed is not None and node.outputs[0] in self.sized else []
        kinds += [_RANGE] if node.op in _RANGED else []
        kinds += [_ABSOLUTE] if self.inside and self.tiny else []
        outputs = list(node.outputs)
        later: list[tuple[str, str, DType]] = []
        for position, name in enumerate(outputs):
            if name and kinds and (dtype := self._kind(name)) is not None:
                outputs[position] = f"{_PREFIX}raw.{name}"
                later.append((outputs[position], name, dtype))
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
        name = f"{_PREFIX}{what}.{dtype}.{self.depth}"
        self.amplitudes[name] = constant(name, np.asarray(number, _wide(dtype).numpy))
        return name

    def _node(
        self, op: str, inputs: tuple[str, ...], output: str, attributes: Mapping[str, object] | None = None
    ) -> None:
        self.nodes.append(Node("", op, inputs, (output,), attributes or {}))  # type: ignore[arg-type]


_SMALL = 1 << 16  # elements of a weight that is moved
# Real operands that shapes depend on.
_SHAPING = frozenset({"NonMaxSuppression", "Range", "Resize", "Upsample"})
_BITS = {DType.FLOAT64: 20, DType.FLOAT32: 8, DType.FLOAT16: 3, DType.BFLOAT16: 2}  # last bits: 0 in a round number


def live_values(graph: Graph, fed: Iterable[str] | None = None) -> frozenset[str]:
    """Names of the values that depend on what is fed: by default, on all inputs."""
    live = set(fed_types(graph) if fed is None else fed)
    for node in graph.nodes:
        if any(r in live for r in node.reads):
            live.update(o for o in node.outputs if o)
    return frozenset(live)


@dataclass(frozen=True)
class _Noisy:
    """A disturbed model: its session, if ONNX Runtime takes it, and the inputs that read noise."""

    session: InferenceSession | None
    noise_inputs: tuple[NoiseInput, ...]


class DisturbedRuns:
    """Disturbed runs of a graph.

    Args:
        graph: the original.
        bench: where its sessions are made.
        plain: a session of the original, optimisations off.
        typing: the original's types, if at hand.
    """

    def __init__(
        self, graph: Graph, bench: SharedWeightSessions, plain: InferenceSession, typing: InferredTypes | None = None
    ) -> None:
        self._graph, self._bench, self._plain = graph, bench, plain
        self._typing = typing or infer(graph)
        self._live = live_values(graph)
        self._constants = constants_read(graph, self._typing, self._live, bench, _SMALL, reals=True) or {}
        self._models: dict[tuple[bool, bool], _Noisy] = {}
        self._optimised: InferenceSession | None = None

    @cached_property
    def _shifted(self) -> _Shifted:
        return _Shifted(self._constants)

    def optimised(self, feeds: Mapping[str, np.ndarray], time_limit: float | None) -> Arrays | None:
        """The original's outputs with the runtime's optimisations on."""
        try:
            if self._optimised is None:
                self._optimised = self._bench.session(self._graph, optimise=True)
        except REFUSALS:
            return None
        return attempt(self._optimised, feeds, time_limit=time_limit)

    def samples(
        self, feeds: Mapping[str, np.ndarray], numbers: range, *, tiny: bool, time_limit: float | None,
        together: bool = True,
    ) -> tuple[list[Arrays], list[Arrays]]:  # fmt: skip
        """Outputs of some runs with moved inputs, and of as many disturbed inside.

        Args:
            feeds: the inputs.
            numbers: which samples; equal numbers give the same outputs.
            tiny: values are near the smallest numbers, whose rounding is absolute.
            time_limit: seconds of one run.
            together: a run of either kind at once, which takes the memory of both.
        """
        if self._bench.is_large(self._graph):  # weights as the optimiser arranged them; other inputs may not ask
            self._optimised = None
        moving, disturbing = self._noisy(inside=False, tiny=False), self._noisy(inside=True, tiny=tiny)
        sizes = sizes_fed_to(self._graph, feeds)
        moved: list[Arrays | None] = []
        inside: list[Arrays | None] = []
        run = partial(attempt, time_limit=time_limit)
        with ThreadPoolExecutor(1, "disturbed") as beside:  # a run of either kind at once; neither sees the other
            for number in numbers:
                given_arrays = {
                    n: _moved(a, np.random.default_rng([number, i])) for i, (n, a) in enumerate(feeds.items())
                }
                if moving.session is not None:
                    given_arrays |= {**self._shifted.of(number), **noise(moving.noise_inputs, sizes, number)}
                first = beside.submit(run, moving.session or self._plain, given_arrays)
                if not together:
                    wait((first,))
                if disturbing.session is not None:
                    given_arrays = {**feeds, **self._constants, **noise(disturbing.noise_inputs, sizes, number)}
                    inside.append(run(disturbing.session, given_arrays))
                moved.append(first.result())
        return [m for m in moved if m is not None], [m for m in inside if m is not None]

    def _noisy(self, *, inside: bool, tiny: bool) -> _Noisy:
        """A disturbed model, with a session where ONNX Runtime takes it."""
        if (inside, tiny) not in self._models:
            building = NoisyGraphBuilder(self._graph, self._typing, self._live, inside, tiny)
            graph, session = building.build(self._constants), None
            with suppress(*REFUSALS):
                session = self._bench.session(graph, optimise=False)
            self._models[inside, tiny] = _Noisy(session, tuple(building.noise_inputs))
        return self._models[inside, tiny]


def constants_read(
    graph: Graph,
    typing: InferredTypes,
    live: frozenset[str],
    bench: SharedWeightSessions,
    most: int,
    *,
    reals: bool = False,
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
    arrays = {n: w.data.numpy() for n in names if (w := graph.weight.get(n)) is not None and w.data is not None}
    computed = [n for n in names if n not in graph.weight]
    if not computed:
        return arrays
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
        new_arrays = attempt(bench.session(part, optimise=False), {})
    except REFUSALS:
        new_arrays = None
    return {**arrays, **new_arrays} if new_arrays is not None else arrays if reals else None


def _is_small(kind: object, most: int, reals: bool) -> bool:
    if not isinstance(kind, TensorType) or (reals and kind.dtype not in REALS):
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
    for part in pieces(flat.size):
        steps = rng.integers(-STEPS, STEPS, flat[part].size, dtype=np.int8)
        steps += steps >= 0  # none is 0
        flat[part] = _stepped(flat[part], steps)
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


class _Shifted:
    """Constants whose digits are used up, moved by 1 to ``STEPS`` units in the last place; equal magnitudes equally.

    What does not change from run to run is computed once, and set aside while a run has its values in memory: models
    have thousands of constants, and runs are dozens.
    """

    def __init__(self, constants: Mapping[str, np.ndarray]) -> None:
        self._by_type: list[tuple[dict[str, np.ndarray], WeightData, WeightData, WeightData]] = []
        for dtype in {a.dtype for a in constants.values()}:
            alike = {n: a for n, a in constants.items() if a.dtype == dtype}
            bits = np.concatenate([a.reshape(-1) for a in alike.values()]).view(f"i{dtype.itemsize}")
            drawn, movable = np.empty(bits.size, np.uint32), np.empty(bits.size, np.int8)
            for part in pieces(bits.size):
                drawn[part], movable[part] = _mixed(bits[part], DType.of(dtype))
            self._by_type.append((alike, set_aside(bits), set_aside(drawn), set_aside(movable)))

    def of(self, number: int) -> Arrays:
        """The constants as the run of this number reads them."""
        arrays: Arrays = {}
        key = np.uint32((number + 1) * 0x9E3779B9 & 0xFFFFFFFF)
        for alike, *aside in self._by_type:
            bits, drawn, movable = (data.numpy() for data in aside)
            moved = np.empty_like(bits)
            for part in pieces(bits.size):
                mixed = (drawn[part] ^ key) * np.uint32(0x85EBCA6B)
                mixed = (mixed ^ (mixed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
                steps = ((mixed >> np.uint32(16)) * np.uint32(2 * STEPS) >> np.uint32(16)).astype(np.int8) - STEPS
                steps += steps >= 0  # none is 0
                moved[part] = bits[part] + steps * movable[part]
            start = 0
            for name, array in alike.items():
                arrays[name] = moved[start : start + array.size].view(array.dtype).reshape(array.shape)
                start += array.size
        return arrays


def _mixed(bits: np.ndarray, dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """By element: a number that is drawn from its magnitude, and 1 where it can be moved: its digits are used up, and
    neither zero nor infinity is near."""
    magnitudes = bits.view(f"u{bits.itemsize}").astype(np.uint64) & np.uint64((1 << (8 * bits.itemsize - 1)) - 1)
    largest = int(np.asarray(np.inf, dtype.numpy).view(f"u{bits.itemsize}"))
    movable = magnitudes & np.uint64((1 << _BITS[dtype]) - 1) != 0
    movable &= (magnitudes > STEPS) & (magnitudes < largest - STEPS)
    mixed = (magnitudes + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return (mixed >> np.uint64(32)).astype(np.uint32), movable.astype(np.int8)
