"""What a backend fuses by itself, as data: a fused consumer adds (nearly) nothing to its producer's time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from superopt.ir.types import TensorType
from superopt.ops import REGISTRY

__all__ = ["BACKENDS", "ONNX_RUNTIME_CPU", "SUPEROPT_CUDA", "Backend", "Fusion"]

Other = Literal["none", "constant", "any"]


@dataclass(frozen=True)
class Fusion:
    """The consumer disappears into its producer, when it alone reads it.

    ``other`` is what the consumer's other arguments may be: there are none that matter, constants only, or anything.
    """

    producers: frozenset[str]
    consumers: frozenset[str]
    other: Other = "none"
    rank: int = 99  # the most axes that the consumer's other arguments may have


@dataclass(frozen=True)
class Backend:
    """A backend's habits: fusions, operators that only rename memory (views), and weights that cost nothing to read.

    ``absorbed`` names argument slots by operator: a constant there (the bias of a convolution) is added as results are
    written, so an application costs the same with and without it. Timed apart, the two would differ by noise, and a
    BatchNormalization that the backend folds itself would look better unfolded.
    """

    name: str
    fusions: tuple[Fusion, ...]
    views: frozenset[str]
    absorbed: Mapping[str, int] = field(default_factory=dict)

    def as_run(
        self, op: str, types: Sequence[TensorType | None], fixed: Sequence[bool]
    ) -> tuple[tuple[TensorType | None, ...], tuple[bool, ...]]:
        """Argument types, and which are constants, without what the backend absorbs."""
        slot = self.absorbed.get(op)
        if slot is not None and len(types) == slot + 1 and len(fixed) == slot + 1 and fixed[slot]:
            return tuple(types[:slot]), tuple(fixed[:slot])
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


def _fusion(producers: str, consumers: str, other: Other = "none", rank: int = 99) -> Fusion:
    return Fusion(frozenset(producers.split()), frozenset(consumers.split()), other, rank)


# Read off ONNX Runtime 1.31's optimised graphs at its highest level, float32, CPU.
ONNX_RUNTIME_CPU = Backend(
    name="onnxruntime-cpu",
    fusions=(
        _fusion("Conv BatchNormalization", "Relu Sigmoid Tanh LeakyRelu Clip HardSigmoid"),
        _fusion("Conv ConvTranspose", "BatchNormalization", "constant"),
        _fusion("Conv", "Mul", "constant"),
        _fusion("Conv BatchNormalization", "Add", "any"),  # a bias, or the residual sum inside the blocked layout
        _fusion("Add", "Relu"),  # after a residual sum that a convolution took in
        _fusion("MatMul", "Add", "constant", 1),
        _fusion("Gemm", "Relu Sigmoid Tanh LeakyRelu HardSigmoid"),
        _fusion("MatMul", "Mul Div", "constant", 0),
    ),
    views=frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"}),
    absorbed={"Conv": 2, "ConvTranspose": 2},
)

_POINTWISE = " ".join(sorted(n for n, o in REGISTRY.items() if o.family in ("elementwise", "activation")))
_ROWS = (
    "BatchNormalization LayerNormalization LogSoftmax RMSNormalization ReduceMax ReduceMean ReduceMin ReduceSum Softmax"
)
# What :mod:`superopt.runtime.cuda.plan` does: a chain of elementwise operators, and what follows a row's reduction, is
# one generated kernel; products and convolutions are the vendor's, with a convolution's bias inside.
SUPEROPT_CUDA = Backend(
    name="superopt-cuda",
    fusions=(_fusion(f"{_POINTWISE} {_ROWS}", _POINTWISE, "any"),),
    views=frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"}),
    absorbed={"Conv": 2},
)
BACKENDS: Mapping[str, Backend] = {b.name: b for b in (ONNX_RUNTIME_CPU, SUPEROPT_CUDA)}
