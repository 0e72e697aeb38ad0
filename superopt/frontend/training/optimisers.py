"""Optimisers, as expressions: how weights and what is kept beside them move by a gradient. They are PyTorch's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from superopt.ir.errors import UsageError
from superopt.ops.derivative.typed_terms import TypedTerm, apply, cast, constant

__all__ = ["SGD", "Adam", "AdamW", "TrainingOptimiser", "optimiser"]


class TrainingOptimiser(Protocol):
    """How a weight moves.

    Attributes:
        lr: the learning rate, an input of the step that has this value unless told otherwise.
        kept: names of what is kept beside each weight, of its type; 0 at first.
    """

    @property
    def lr(self) -> float: ...

    @property
    def kept(self) -> tuple[str, ...]: ...

    def update(
        self, weight: TypedTerm, gradient: TypedTerm, kept: tuple[TypedTerm, ...], lr: TypedTerm, count: TypedTerm
    ) -> tuple[TypedTerm, tuple[TypedTerm, ...]]:
        """The weight and what is kept after a step; ``count`` is its number, from 1 on."""
        ...


@dataclass(frozen=True)
class SGD:
    """``v ← μ·v + g``, ``w ← w - lr·v``; without momentum ``w ← w - lr·g``."""

    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0

    @property
    def kept(self) -> tuple[str, ...]:
        return ("momentum",) if self.momentum else ()

    def update(
        self, weight: TypedTerm, gradient: TypedTerm, kept: tuple[TypedTerm, ...], lr: TypedTerm, count: TypedTerm
    ) -> tuple[TypedTerm, tuple[TypedTerm, ...]]:
        if self.weight_decay:
            gradient = gradient + weight * self.weight_decay
        if not kept:
            return weight - gradient.times(lr), ()
        velocity = kept[0] * self.momentum + gradient
        return weight - velocity * lr, (velocity,)


@dataclass(frozen=True)
class Adam:
    """Kingma and Ba, arXiv:1412.6980; ``weight_decay`` is added to the gradient."""

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    @property
    def kept(self) -> tuple[str, ...]:
        return ("mean", "square")

    def update(
        self, weight: TypedTerm, gradient: TypedTerm, kept: tuple[TypedTerm, ...], lr: TypedTerm, count: TypedTerm
    ) -> tuple[TypedTerm, tuple[TypedTerm, ...]]:
        if self.weight_decay:
            gradient = gradient + weight * self.weight_decay
        return self.moved(weight, gradient, kept, lr, count)

    def moved(
        self, weight: TypedTerm, gradient: TypedTerm, kept: tuple[TypedTerm, ...], lr: TypedTerm, count: TypedTerm
    ) -> tuple[TypedTerm, tuple[TypedTerm, ...]]:
        """Without decay: ``w - lr/(1 - β₁ᵗ) · m / (√v/√(1 - β₂ᵗ) + ε)``, with what is a number apart."""
        mean = kept[0] * self.beta1 + gradient * (1 - self.beta1)
        square = kept[1] * self.beta2 + gradient * gradient * (1 - self.beta2)
        first, second = (1 - apply("Pow", constant(b, count.dtype), count) for b in (self.beta1, self.beta2))
        scale = apply("Sqrt", second)
        rate = lr * cast(scale / first, weight.dtype)
        root = apply("Sqrt", square) + cast(scale * self.epsilon, weight.dtype)
        return weight - mean * rate / root, (mean, square)


@dataclass(frozen=True)
class AdamW(Adam):
    """Loshchilov and Hutter, arXiv:1711.05101: the weight itself decays, by ``lr · weight_decay``."""

    weight_decay: float = 0.01

    def update(
        self, weight: TypedTerm, gradient: TypedTerm, kept: tuple[TypedTerm, ...], lr: TypedTerm, count: TypedTerm
    ) -> tuple[TypedTerm, tuple[TypedTerm, ...]]:
        return self.moved(weight * (1 - lr * self.weight_decay), gradient, kept, lr, count)


NAMES: dict[str, TrainingOptimiser] = {"sgd": SGD(), "momentum": SGD(momentum=0.9), "adam": Adam(), "adamw": AdamW()}


def optimiser(name: str) -> TrainingOptimiser:
    """An optimiser by its name, with PyTorch's defaults (``momentum``: 0.9).

    Raises:
        UsageError: there is none of that name.
    """
    if name not in NAMES:
        raise UsageError(f"optimizer {name!r} is not one of {', '.join(NAMES)}")
    return NAMES[name]
