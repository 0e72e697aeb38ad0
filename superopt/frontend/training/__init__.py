"""Training steps as graphs: forward pass, loss, backward pass and update of the weights, in one model."""

from superopt.frontend.training.loop import TrainingLoop, TrainingReferenceComparison, rehearse
from superopt.frontend.training.losses import LOSSES
from superopt.frontend.training.optimisers import SGD, Adam, AdamW, TrainingOptimiser
from superopt.frontend.training.step import TrainingStep, train_step

__all__ = [
    "LOSSES", "SGD", "Adam", "AdamW", "TrainingOptimiser", "TrainingReferenceComparison", "TrainingLoop",
    "TrainingStep", "rehearse", "train_step",
]  # fmt: skip
