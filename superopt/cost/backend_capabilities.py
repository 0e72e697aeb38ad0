"""What a backend runs as one kernel, as data: pairs of operators, patterns of more, and where they match a graph.

A :class:`ProducerConsumerFusion` is a pair: the consumer disappears into its producer and adds (nearly) nothing to its
time. A :class:`FusionPattern` is a larger group, or one that names alone do not define: an erf GELU, a root mean
square, a transposed or scaled operand of a product. A rewrite that removes one operator of such a group makes the
others run one by one, so prices must know the group. Example: folding GELU's division by √2 into the weights before it
saves an operator, and made ConvNeXt 3 % slower.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isclose, pi
from typing import Literal

from superopt.cost.half_precision_support import ONNX_RUNTIME_HALF, HalfPrecisionSupport
from superopt.cost.integer_kernel_support import ONNX_RUNTIME_INTEGERS, IntegerKernelSupport
from superopt.cost.measurement_record import interchangeable
from superopt.ir.graph import Graph, Node, Weight
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.ops.constants_and_shapes import attribute_array, constant_attribute
from superopt.ops.flops_and_bytes import VIEWS
from superopt.runtime.protocol import Runtime

__all__ = [
    "SUMMAND",
    "BACKENDS",
    "BackendCapabilities",
    "CLOSE",
    "COMMUTE",
    "ProducerConsumerFusion",
    "FusedGroup",
    "ONNX_RUNTIME_CPU",
    "ONNX_RUNTIME_PATTERNS",
    "OPENVINO_CPU",
    "OPENVINO_PATTERNS",
    "FusionPattern",
    "SUPEROPT_CUDA",
    "cpu_backend",
    "groups",
]

COMMUTE = frozenset({"Add", "Mul"})
CLOSE = 1e-3  # relative: how near a constant must be to the one in the pattern


@dataclass(frozen=True)
class FusionPattern:
    """An operator and what it is applied to.

    Attributes:
        op: its name; it is read by its group alone, unless it is the last of it.
        args: patterns, a number (a constant of one element that equals it), or a name: the same value wherever it
            stands; a constant of one element where it begins with ``scalar``, any where it begins with ``constant``.
            Further arguments must be constants.
        swaps: a Transpose that exchanges the last two axes.
        rank: of its arguments, which are float32 and of one shape; 0: of any.
        innermost: it works along the last axis.
        slow_ns: of the last operator of a group: nanoseconds for each element that the kernel takes more than the
            dearest of it takes alone.
    """

    op: str
    args: tuple[FusionPattern | float | str, ...]
    swaps: bool = False
    rank: int = 0
    innermost: bool = False
    slow_ns: float = 0.0


def _of(op: str, *args: FusionPattern | float | str) -> FusionPattern:
    return FusionPattern(op, args)


def _gelu() -> Iterator[FusionPattern]:
    inner = _of("Add", _of("Erf", _of("Div", "x", 2**0.5)), 1.0)
    yield _of("Mul", _of("Mul", "x", inner), 0.5)
    yield _of("Mul", _of("Mul", "x", 0.5), inner)


def _tanh_gelu() -> Iterator[FusionPattern]:
    cubic = _of("Add", "x", _of("Mul", _of("Pow", "x", 3.0), 0.044715))
    factored = _of("Add", _of("Mul", _of("Mul", "x", 0.044715), "x"), 1.0)
    root = (2 / pi) ** 0.5
    for inner in (_of("Mul", cubic, root), _of("Mul", _of("Mul", "x", root), factored)):
        yield _of("Mul", _of("Mul", "x", 0.5), _of("Add", _of("Tanh", inner), 1.0))


def _mean_square(of: FusionPattern | str) -> FusionPattern:
    return _of("Sqrt", _of("Add", _of("ReduceMean", _of("Pow", of, 2.0)), "scalar epsilon"))


def _layer_normalisation() -> FusionPattern:
    # The difference is read twice: by the square and by the quotient.
    centred = _of("Sub", "x", _of("ReduceMean", "x"))
    normal = _of("Div", centred, _mean_square(centred))
    return _of("Add", _of("Mul", normal, "constant scale"), "constant bias")


def _products() -> Iterator[FusionPattern]:
    left, right = (FusionPattern("Transpose", (name,), swaps=True) for name in ("x", "y"))
    yield _of("MatMul", left, right)
    yield _of("MatMul", left, "y")
    yield _of("MatMul", "x", right)
    for op in ("Mul", "Div"):
        yield _of("MatMul", _of(op, "x", "scalar factor"), "y")
        yield _of("MatMul", "x", _of(op, "y", "scalar factor"))


def _integer_products() -> Iterator[FusionPattern]:
    """MatMulIntegerToFloat: the scales' product belongs to the kernel, so that nothing else may read it."""
    product = _of("MatMulInteger", "a", "b", "zero point")
    scaled = _of("Mul", _of("Cast", product), _of("Mul", "s", "t"))
    yield _of("Add", scaled, "constant bias")
    yield scaled


# ONNX Runtime's kernel for a sum and the LayerNormalization behind it works number by number: 4.3 to 4.4 ns an element
# beside what the normalisation takes, from 768 elements to 524,288 (1.32, EPYC); both by themselves take 0.2.
_SLOW_NS = 4.4
# Read off ONNX Runtime 1.31's optimised graphs at its highest level, CPU; the larger of two that overlap comes first.
# Not among them: Mul(x, 0.7071) for the division, a reciprocal for the quotient, GELU by tanh with x · (0.5 · (1 + …)).
ONNX_RUNTIME_PATTERNS: tuple[FusionPattern, ...] = (
    _layer_normalisation(),
    *_gelu(),
    *_tanh_gelu(),
    _of("Mul", _of("Div", "x", _mean_square("x")), "constant scale"),
    _of("Mul", _of("Mul", "x", _of("Div", 1.0, _mean_square("x"))), "constant scale"),
    _of("Mul", "x", _of("Sigmoid", "x")),
    _of("Mul", "x", _of("Sigmoid", _of("Mul", "x", "scalar factor"))),
    FusionPattern(
        "LayerNormalization",
        (FusionPattern("Add", ("x", "y"), rank=3), "constant scale"),
        innermost=True,
        slow_ns=_SLOW_NS,
    ),
    *_products(),
    *_integer_products(),
)
# Read off OpenVINO 2026.4's executed graphs. What works element by element is fused pair by pair in any order
# (:data:`superopt.cost.backend_capabilities.OPENVINO_CPU`); here is what reads a value twice, and attention, which is
# one kernel.
OPENVINO_PATTERNS: tuple[FusionPattern, ...] = (
    _layer_normalisation(),
    *_gelu(),
    _of("Mul", "x", _of("Sigmoid", "x")),
    _of("MatMul", _of("Softmax", _of("MatMul", "x", "y")), "z"),
)


@dataclass(frozen=True)
class _Match:
    """The values bound to names so far, and the operators of the group."""

    names: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)  # by the value that each makes


@dataclass(frozen=True)
class FusedGroup:
    """Nodes that run as one kernel, the producer of its result first, and the nanoseconds an element that the kernel
    takes beyond the most expensive of them alone."""

    nodes: tuple[Node, ...]
    slow_ns: float = 0.0

    def us(self, dearest: float, result: TensorType | None) -> float:
        """Microseconds of the kernel.

        Args:
            dearest: what the dearest of its operators takes alone.
            result: the static type of what it makes.
        """
        elements = 0 if result is None else result.elements
        return dearest + 1e-3 * self.slow_ns * (elements if isinstance(elements, int) else 0)


def groups(
    graph: Graph, patterns: tuple[FusionPattern, ...], types: Mapping[str, TensorType | None]
) -> tuple[FusedGroup, ...]:
    """The groups of a graph that run as one kernel each, no node in two of them.

    Args:
        graph: where they are looked for.
        patterns: the backend's; the first that fits has the nodes.
        types: of the graph's values.
    """
    if not patterns:
        return ()
    bare = _without_identities(graph)
    matcher = _Matcher(bare, types)
    taken: set[str] = set()
    made: list[FusedGroup] = []
    for pattern in patterns:
        for node in bare.nodes:
            if node.op != pattern.op or node.domain or len(node.outputs) == 0 or node.outputs[0] in taken:
                continue
            found = next(matcher.matches(pattern, node.outputs[0], _Match(), last=True), None)
            if found is not None and not taken & found.nodes.keys():
                taken |= found.nodes.keys()
                made.append(FusedGroup(tuple(graph.producer[name] for name in found.nodes), pattern.slow_ns))
    return tuple(made)


def _without_identities(graph: Graph) -> Graph:
    """The graph as a runtime looks for patterns in it, which takes these out first."""
    outputs = {v.name for v in graph.outputs}
    source: dict[str, str] = {}
    for node in graph.nodes:
        if node.op == "Identity" and not node.domain and node.outputs[0] not in outputs:
            source[node.outputs[0]] = source.get(node.inputs[0], node.inputs[0])
    if not source:
        return graph
    left = (n for n in graph.nodes if source.keys().isdisjoint(n.outputs))
    return replace(graph, nodes=tuple(replace(n, inputs=tuple(source.get(i, i) for i in n.inputs)) for n in left))


class _Matcher:
    """Finds patterns in one graph."""

    def __init__(self, graph: Graph, types: Mapping[str, TensorType | None]) -> None:
        self.graph, self.types = graph, types
        self.outputs = {v.name for v in graph.outputs}
        self.generated = {
            node.outputs[0]: said for node in graph.nodes if node.outputs and (said := constant_attribute(node))
        }

    def matches(
        self, what: FusionPattern | float | str, value: str, so_far: _Match, *, last: bool = False
    ) -> Iterator[_Match]:
        """The ways in which a value is what the pattern says; as deep as the pattern."""
        if isinstance(what, str):
            if self._may_be(what, value) and so_far.names.get(what, value) == value:
                yield _Match({**so_far.names, what: value}, so_far.nodes)
        elif isinstance(what, float):
            known = self._scalar(value)
            if known is not None and isclose(known, what, rel_tol=CLOSE):
                yield so_far
        elif value in so_far.nodes:  # met before: the pattern has it in two places
            if so_far.nodes[value].op == what.op:
                yield so_far
        else:
            yield from self._operator(what, value, so_far, last)

    def _operator(self, what: FusionPattern, value: str, so_far: _Match, last: bool) -> Iterator[_Match]:
        node = self.graph.producer.get(value)
        if node is None or node.op != what.op or node.domain or len(node.inputs) < len(what.args):
            return
        if not last and (value in self.outputs or not self._is_internal(value, what)):
            return
        if what.swaps and not _swaps(node.attributes.get("perm")):
            return
        if what.innermost and not self._along_the_last(node):
            return
        if what.rank and not self._same_shapes(node.inputs[: len(what.args)], what.rank):
            return
        if not all(not n or self._is_constant(n) for n in node.inputs[len(what.args) :]):
            return
        begun = _Match(so_far.names, {**so_far.nodes, value: node})
        given = node.inputs[: len(what.args)]
        for order in (given, given[::-1])[: 2 if what.op in COMMUTE else 1]:
            yield from self._arguments(what.args, order, begun)

    def _arguments(
        self, args: tuple[FusionPattern | float | str, ...], given: tuple[str, ...], so_far: _Match
    ) -> Iterator[_Match]:
        if not args:
            yield so_far
            return
        for found in self.matches(args[0], given[0], so_far):
            yield from self._arguments(args[1:], given[1:], found)

    def _same_shapes(self, values: tuple[str, ...], rank: int) -> bool:
        kinds = [self.types.get(v) for v in values]
        shapes = {None if k is None else k.shape for k in kinds}
        fit = all(k is not None and k.rank == rank and k.dtype is DType.FLOAT32 for k in kinds)
        return fit and len(shapes) == 1 and None not in shapes

    def _along_the_last(self, node: Node) -> bool:
        kind, axis = self.types.get(node.outputs[0]), node.attributes.get("axis", -1)
        return axis == -1 or (kind is not None and kind.rank is not None and axis == kind.rank - 1)

    def _is_internal(self, value: str, what: FusionPattern) -> bool:
        """Whether nobody outside the group reads it: one reader, or two for the difference of a normalisation."""
        return len(self.graph.consumers.get(value, ())) <= (2 if what.op == "Sub" else 1)

    def _may_be(self, name: str, value: str) -> bool:
        if name.startswith("scalar"):
            return self._scalar(value) is not None
        return not name.startswith("constant") or self._is_constant(value)

    def _is_constant(self, value: str) -> bool:
        return value in self.graph.constants or value in self.generated

    def _scalar(self, value: str) -> float | None:
        name, given = self.generated.get(value, ("value", self.graph.constants.get(value)))
        if not isinstance(given, Weight):
            array = None if given is None else attribute_array(name, given)
            return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None
        if given.data is None or given.type.elements != 1 or not given.type.dtype.is_float:
            return None
        return float(given.data.numpy().reshape(-1)[0])


def _swaps(perm: object) -> bool:
    """Whether a permutation exchanges the last two axes and leaves the others."""
    if not isinstance(perm, tuple) or len(perm) < 2:
        return False
    rank = len(perm)
    return perm == (*range(rank - 2), rank - 1, rank - 2)


SUMMAND = 3  # the argument of ONNX Runtime's FusedConv that a residual sum becomes
Other = Literal["none", "constant", "any"]


@dataclass(frozen=True)
class ProducerConsumerFusion:
    """The consumer disappears into its producer, when it alone reads it.

    ``other`` is what the consumer's other arguments may be: there are none that matter, constants only, or anything.
    ``becomes`` is the backend's name of the kernel that is left, if not the producer's.
    """

    producers: frozenset[str]
    consumers: frozenset[str]
    other: Other = "none"
    rank: int = 99  # the most axes that the consumer's other arguments may have
    becomes: str = ""


@dataclass(frozen=True)
class BackendCapabilities:
    """A backend's habits: fusions, operators that only rename memory (views), and weights that cost nothing to read.

    ``absorbed`` names argument slots by operator: a constant there (the bias of a convolution) is added as results are
    written, so an application costs the same with and without it. Timed apart, the two would differ by noise, and a
    BatchNormalization that the backend folds itself would look better unfolded. ``streamed`` is a rough figure: bytes a
    microsecond that a fused consumer reads of its other arguments, and writes more than its producer would. ``packing``
    are kernels that read a packed copy of a weight, which only kernels of the same name share. ``patterns`` are groups
    of more than two, or known by more than their names, that run as one kernel. ``blocked`` are operators that run on
    images kept in blocks of channels: a convolution puts them there, the others where their operands are.
    ``folds_shapes``: as it loads a graph, it merges equal operators and folds what depends on declared sizes alone.
    ``processor``: it runs on the machine's processor, so that profiles of its kind can be scaled to each other.
    ``integers``: what it computes in integers between DequantizeLinear and QuantizeLinear; ``None``: not known.
    ``half``: what it does about operators of half precision; ``None``: it has kernels for them, or it is not known.
    ``forks``: it goes on in a copy of a process that used it; one whose threads are the process's waits for them there.
    """

    name: str
    fusions: tuple[ProducerConsumerFusion, ...]
    views: frozenset[str]
    absorbed: Mapping[str, int] = field(default_factory=dict)
    streamed: float = 20_000.0
    packing: frozenset[str] = frozenset()
    patterns: tuple[FusionPattern, ...] = ()
    blocked: frozenset[str] = frozenset()
    folds_shapes: bool = False
    integers: IntegerKernelSupport | None = None
    half: HalfPrecisionSupport | None = None
    processor: bool = True
    forks: bool = True

    def copy_of(self, weight: str, kernel: str) -> str:
        """Names what a kernel reads of a weight: the weight itself, or its packed copy."""
        return f"{kernel} {weight}" if kernel in self.packing else weight

    def fused(self, producer: str, consumer: str) -> str:
        """The name of the kernel that runs both."""
        names = (f.becomes for f in self.fusions if producer in f.producers and consumer in f.consumers)
        return next(names, "") or producer

    def as_run(
        self, op: str, types: Sequence[TensorType | None], fixed: Sequence[bool]
    ) -> tuple[tuple[TensorType | None, ...], tuple[bool, ...]]:
        """Argument types, and which are constants: without what the backend absorbs, and where operands may change
        places, in one order: constants last, else the larger first."""
        slot = self.absorbed.get(op)
        if slot is not None and len(types) == slot + 1 and len(fixed) == slot + 1 and fixed[slot]:
            return tuple(types[:slot]), tuple(fixed[:slot])
        if len(types) == len(fixed) and interchangeable(op, len(types)):
            pairs = sorted(zip(types, fixed, strict=True), key=lambda p: (p[1], -_elements(p[0]), str(p[0])))
            return tuple(t for t, _ in pairs), tuple(f for _, f in pairs)
        return tuple(types), tuple(fixed)

    def fusable(self, producer: str, consumer: str, *, constant_others: bool = True, rank: int = 0) -> bool:
        """Whether the consumer is nearly free when the producer is its only producer and has no other reader.

        Args:
            producer: operator that makes the consumer's non-constant argument.
            consumer: operator that reads it.
            constant_others: the consumer's other arguments, if any, are weights.
            rank: the most axes that those have.
        """
        return any(
            producer in f.producers
            and consumer in f.consumers
            and (f.other != "constant" or constant_others)
            and rank <= f.rank
            for f in self.fusions
        )


def _elements(kind: TensorType | None) -> int:
    count = kind.elements if kind is not None else 0
    return count if isinstance(count, int) else 0


def _fusion(
    producers: str, consumers: str, other: Other = "none", rank: int = 99, becomes: str = ""
) -> ProducerConsumerFusion:
    return ProducerConsumerFusion(_named(producers), _named(consumers), other, rank, becomes)


def _named(names: str) -> frozenset[str]:
    return frozenset(names.split())


# Read off ONNX Runtime 1.31's optimised graphs at its highest level, float32, CPU.
ONNX_RUNTIME_CPU = BackendCapabilities(
    name="onnxruntime-cpu",
    fusions=(
        _fusion("Conv BatchNormalization", "Relu Sigmoid Tanh LeakyRelu Clip HardSigmoid"),
        _fusion("Conv ConvTranspose", "BatchNormalization", "constant"),
        _fusion("Conv", "Mul", "constant"),
        _fusion("Conv BatchNormalization", "Add", "any"),  # a bias, or the residual sum inside the blocked layout
        _fusion("Add", "Relu"),  # after a residual sum that a convolution took in
        _fusion("MatMul", "Add", "constant", 1, "Gemm"),
        _fusion("Gemm", "Relu Sigmoid Tanh LeakyRelu HardSigmoid", becomes="FusedGemm"),
        _fusion("MatMul", "Mul Div", "constant", 0, "FusedMatMul"),
    ),
    views=VIEWS,
    absorbed={"Conv": 2, "ConvTranspose": 2},
    patterns=ONNX_RUNTIME_PATTERNS,
    folds_shapes=True,
    integers=ONNX_RUNTIME_INTEGERS,
    half=ONNX_RUNTIME_HALF,
    # Sixteen products with eight matrices of 1 MiB take 14 µs each as MatMul, or as Gemm, and 30 µs where eight are
    # MatMul and eight are Gemm: as long as with sixteen matrices.
    packing=frozenset({"Conv", "ConvTranspose", "FusedConv", "FusedGemm", "FusedMatMul", "Gemm", "MatMul"}),
    blocked=_named(
        "Add AveragePool BatchNormalization Clip Concat Conv GlobalAveragePool GlobalMaxPool HardSigmoid LeakyRelu "
        "MaxPool Mul Relu Resize Sigmoid Sum Tanh"
    ),
)

# Read off OpenVINO 2026.4's executed graphs, float32, CPU (tests/runtime/test_openvino.py runs every pair).
_OPENVINO_AFTER = "Abs Clip Elu Gelu HardSwish LeakyRelu Neg PRelu Relu Sigmoid Sqrt Tanh"
_OPENVINO_POINTWISE = f"Add BatchNormalization Div Erf Exp Mul Pow Sub {_OPENVINO_AFTER}"
OPENVINO_CPU = BackendCapabilities(
    name="openvino-cpu",
    fusions=(
        _fusion("Conv Gemm GlobalAveragePool MatMul ReduceMean Resize", _OPENVINO_AFTER, "constant"),
        _fusion("Conv ConvTranspose Gemm GlobalAveragePool Resize", "Add BatchNormalization Div Mul Sub", "constant"),
        _fusion("MatMul", "Add Div Mul Sub", "constant", 1),
        _fusion("Conv", "Add", "any"),
        _fusion(_OPENVINO_POINTWISE, _OPENVINO_POINTWISE, "any"),
        _fusion("LayerNormalization", f"Add Div Erf Exp Mul Pow Sub {_OPENVINO_AFTER}", "any"),
    ),
    views=VIEWS,
    absorbed={"Conv": 2, "ConvTranspose": 2},
    patterns=OPENVINO_PATTERNS,
    folds_shapes=True,
    packing=frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"}),
    forks=False,
)

_POINTWISE = " ".join(sorted(n for n, o in REGISTRY.items() if o.family in ("elementwise", "activation")))
# Whose meaning reads the operand at two places; others share what they read twice.
_TWICE = "PRelu Swish"
_ONCE = " ".join(n for n in _POINTWISE.split() if n not in _TWICE.split())
_MOVES = "DepthToSpace Slice SpaceToDepth Split Transpose Trilu"
_GROWS = "Concat Expand Pad Tile"
_ROWS = (
    "GroupNormalization InstanceNormalization LRN LayerNormalization LogSoftmax MeanVarianceNormalization "
    "RMSNormalization Softmax"
)
_REDUCES = (
    "AveragePool CumSum GlobalAveragePool GlobalMaxPool MaxPool ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp "
    "ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare"
)
_ONE_TO_ONE = f"{_POINTWISE} BatchNormalization {_MOVES} {_GROWS} Gather Resize"
# What :mod:`superopt.runtime.cuda.execution_plan` does (tests/cuda/test_fusions.py plans every pair): what is not a
# product or a convolution is a generated kernel, and operators that work element by element or only move elements are
# computed in the kernel that makes their operand. Two things are priced apart although they may become one kernel, so
# that a price is never too low: an operator and the reduction that it goes into (there the producer disappears, and
# together they are what the kernel costs at most), and a reduction and what moves its result (which depends on the
# sizes).
SUPEROPT_CUDA = BackendCapabilities(
    name="superopt-cuda",
    fusions=(
        _fusion(_ONE_TO_ONE, f"{_POINTWISE} BatchNormalization {_MOVES} {_GROWS}", "any"),
        _fusion(f"{_ROWS} {_REDUCES}", f"{_ONCE} BatchNormalization Trilu", "any"),
    ),
    views=VIEWS,
    absorbed={"Conv": 2},
    streamed=2e6,
    processor=False,
    forks=False,
)
BACKENDS: Mapping[str, BackendCapabilities] = {b.name: b for b in (ONNX_RUNTIME_CPU, OPENVINO_CPU, SUPEROPT_CUDA)}


def cpu_backend(runtime: Runtime) -> BackendCapabilities:
    """What is known of a runtime on the processor."""
    return BACKENDS[f"{runtime.name}-cpu"]
