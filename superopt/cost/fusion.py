"""What a backend fuses by itself, as data: a fused consumer adds (nearly) nothing to its producer's time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from superopt.cost.patterns import ONNX_RUNTIME_PATTERNS, OPENVINO_PATTERNS, Pattern
from superopt.cost.record import interchangeable
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.work import VIEWS
from superopt.runtime.protocol import Runtime

__all__ = ["BACKENDS", "ONNX_RUNTIME_CPU", "OPENVINO_CPU", "SUPEROPT_CUDA", "Backend", "Fusion", "cpu_backend"]

Other = Literal["none", "constant", "any"]


@dataclass(frozen=True)
class Fusion:
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
class Backend:
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
    ``forks``: it goes on in a copy of a process that used it; one whose threads are the process's waits for them there.
    """

    name: str
    fusions: tuple[Fusion, ...]
    views: frozenset[str]
    absorbed: Mapping[str, int] = field(default_factory=dict)
    streamed: float = 20_000.0
    packing: frozenset[str] = frozenset()
    patterns: tuple[Pattern, ...] = ()
    blocked: frozenset[str] = frozenset()
    folds_shapes: bool = False
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


def _fusion(producers: str, consumers: str, other: Other = "none", rank: int = 99, becomes: str = "") -> Fusion:
    return Fusion(_named(producers), _named(consumers), other, rank, becomes)


def _named(names: str) -> frozenset[str]:
    return frozenset(names.split())


# Read off ONNX Runtime 1.31's optimised graphs at its highest level, float32, CPU.
ONNX_RUNTIME_CPU = Backend(
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
OPENVINO_CPU = Backend(
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
# What :mod:`superopt.runtime.cuda.plan` does (tests/cuda/test_fusions.py plans every pair): what is not a product or a
# convolution is a generated kernel, and operators that work element by element or only move elements are computed in
# the kernel that makes their operand. Two things are priced apart although they may become one kernel, so that a price
# is never too low: an operator and the reduction that it goes into (there the producer disappears, and together they
# are what the kernel costs at most), and a reduction and what moves its result (which depends on the sizes).
SUPEROPT_CUDA = Backend(
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
BACKENDS: Mapping[str, Backend] = {b.name: b for b in (ONNX_RUNTIME_CPU, OPENVINO_CPU, SUPEROPT_CUDA)}


def cpu_backend(runtime: Runtime) -> Backend:
    """What is known of a runtime on the processor."""
    return BACKENDS[f"{runtime.name}-cpu"]
