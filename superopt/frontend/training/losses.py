"""Losses, as expressions over a model's outputs; what they compare with becomes inputs of the step.

Each is PyTorch's with its defaults (the mean over everything that is compared). Several outputs count equally: the
loss is the sum of the losses of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from superopt.ir.types import DType, TensorType
from superopt.ops.derivative.typed_terms import TypedTerm, apply, squeezed, unsqueezed

__all__ = ["LOSSES", "Loss"]


@dataclass(frozen=True)
class Loss:
    """A loss of one output.

    Attributes:
        target: the type of what the output is compared with; ``None`` for a loss that compares with nothing.
        value: the loss, of rank 0, from the output and the target.
        text: what it is.
    """

    target: Callable[[TensorType], TensorType] | None
    value: Callable[[TypedTerm, TypedTerm | None], TypedTerm]
    text: str


def mean(x: TypedTerm) -> TypedTerm:
    """The mean of all elements."""
    return apply("ReduceMean", x, axes=tuple(range(x.rank)), keepdims=0) if x.rank else x


def squares(y: TypedTerm, target: TypedTerm | None) -> TypedTerm:
    assert target is not None
    difference = y - target
    return mean(difference * difference)


def magnitudes(y: TypedTerm, target: TypedTerm | None) -> TypedTerm:
    assert target is not None
    return mean(apply("Abs", y - target))


def class_axis(kind: TensorType) -> int:
    """Where the classes are: axis 1 of images (rank 4 and more) and of matrices, else the last."""
    rank = len(kind.shape or ())
    return 1 if rank >= 4 else rank - 1


def labels(kind: TensorType) -> TensorType:
    """A class at each place."""
    axis, shape = class_axis(kind), kind.shape or ()
    return TensorType(DType.INT64, tuple(s for a, s in enumerate(shape) if a != axis))


def cross_entropy(y: TypedTerm, target: TypedTerm | None) -> TypedTerm:
    """``-log softmax(y)`` at the class, in the mean."""
    assert target is not None
    axis = class_axis(y.type)
    chosen = apply("GatherElements", apply("LogSoftmax", y, axis=axis), unsqueezed(target, (axis,)), axis=axis)
    return -mean(squeezed(chosen, (axis,)))


def logistic(y: TypedTerm, target: TypedTerm | None) -> TypedTerm:
    """``log(1 + exp y) - target · y``: the cross entropy of the sigmoid of ``y``, in the mean."""
    assert target is not None
    return mean(apply("Softplus", y) - target * y)


def itself(y: TypedTerm, target: TypedTerm | None) -> TypedTerm:
    return mean(y)


LOSSES: Mapping[str, Loss] = {
    "mse": Loss(lambda kind: kind, squares, "mean of squared differences from a target"),
    "l1": Loss(lambda kind: kind, magnitudes, "mean of absolute differences from a target"),
    "cross-entropy": Loss(labels, cross_entropy, "of logits against a class (int64), in the mean"),
    "bce": Loss(lambda kind: kind, logistic, "of logits against probabilities, in the mean"),
    "output": Loss(None, itself, "the mean of the model's output, which is a loss already"),
}
