"""Derivatives and training steps of whatever is a model: the front door of :mod:`superopt.frontend.autodiff`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from superopt.frontend import autodiff, training
from superopt.frontend.training.losses import Loss
from superopt.frontend.training.optimisers import TrainingOptimiser
from superopt.ir.graph import Graph
from superopt.pipeline.optimization import load

if TYPE_CHECKING:
    import onnx

    Model = str | Path | bytes | onnx.ModelProto | Graph

__all__ = ["gradients", "hessian_vector", "jvp", "linearize", "modes", "train_step", "training_loop", "vjp"]

Names = Sequence[str] | None
Sizes = Mapping[str, int] | None


def gradients(
    model: Model, outputs: Names = None, inputs: Names = None, *, keep_outputs: bool = False, sizes: Sizes = None
) -> Graph:  # fmt: skip
    """The gradient of the sum of the outputs' elements: see :func:`superopt.frontend.autodiff.gradients`."""
    return autodiff.gradients(load(model), outputs, inputs, keep_outputs=keep_outputs, sizes=sizes)


def vjp(model: Model, outputs: Names = None, inputs: Names = None, *, sizes: Sizes = None) -> Graph:
    """Vector-Jacobian products: see :func:`superopt.frontend.autodiff.vjp`."""
    return autodiff.vjp(load(model), outputs, inputs, sizes=sizes)


def jvp(
    model: Model, outputs: Names = None, inputs: Names = None, *, keep_outputs: bool = False, sizes: Sizes = None
) -> Graph:  # fmt: skip
    """Jacobian-vector products: see :func:`superopt.frontend.autodiff.jvp`."""
    return autodiff.jvp(load(model), outputs, inputs, keep_outputs=keep_outputs, sizes=sizes)


def hessian_vector(model: Model, output: str | None = None, inputs: Names = None, *, sizes: Sizes = None) -> Graph:
    """The Hessian of an output times a vector: see :func:`superopt.frontend.autodiff.hessian_vector`."""
    return autodiff.hessian_vector(load(model), output, inputs, sizes=sizes)


def linearize(model: Model, at: Mapping[str, np.ndarray], outputs: Names = None, inputs: Names = None) -> Graph:
    """The linear part of a model at a point: see :func:`superopt.frontend.autodiff.linearize`."""
    return autodiff.linearize(load(model), at, outputs, inputs)


def modes(
    model: Model, outputs: Names = None, inputs: Names = None, *, sizes: Sizes = None
) -> autodiff.JacobianModeCosts:
    """Which mode gives the whole Jacobian with less work: see :func:`superopt.frontend.autodiff.modes`."""
    return autodiff.modes(load(model), outputs, inputs, sizes=sizes)


def train_step(
    model: Model,
    loss: str | Loss = "mse",
    optimizer: str | TrainingOptimiser = "sgd",
    *,
    outputs: Names = None,
    train: Sequence[str] = ("*",),
    freeze: Sequence[str] = (),
    lr: float | None = None,
    sizes: Sizes = None,
    batch_statistics: bool = False,
) -> training.TrainingStep:
    """A model's training step as one model: see :func:`superopt.frontend.training.train_step`."""
    return training.train_step(
        load(model), loss, optimizer, outputs=outputs, train=train, freeze=freeze, lr=lr, sizes=sizes,
        batch_statistics=batch_statistics,
    )  # fmt: skip


def training_loop(step: Model | training.TrainingStep, *, threads: int | None = None) -> training.TrainingLoop:
    """A loop over a training step, or over the file of one: see :class:`superopt.frontend.training.TrainingLoop`.

    Raises:
        UsageError: the model is no training step.
    """
    made = step if isinstance(step, training.TrainingStep) else training.TrainingStep.read(load(step))
    return training.TrainingLoop(made, threads=threads)
