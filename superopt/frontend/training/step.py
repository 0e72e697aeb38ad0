"""``train_step``: a model's training step as one model, which any ONNX runtime runs.

Weights that are learnt, and what the optimiser keeps beside them, are inputs with a value to start from, and outputs
``next NAME``. A loop feeds what it got: see :meth:`TrainingStep.next_feeds`. Operators are as at inference:
BatchNormalization keeps its statistics (unless told otherwise) and Dropout drops nothing, as in PyTorch's ``eval``
mode.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from superopt.frontend.autodiff.graph_extension import GraphExtension, at_sizes, where
from superopt.frontend.autodiff.reverse_mode import adjoints, chosen_outputs, moving_values
from superopt.frontend.training.losses import LOSSES, Loss
from superopt.frontend.training.optimisers import TrainingOptimiser, optimiser
from superopt.ir.errors import UsageError, printable
from superopt.ir.graph import TRAINING, Graph, Value, Weight, constant
from superopt.ops.derivative.declarations import DECLARED
from superopt.ops.derivative.typed_terms import TypedTerm, added, apply, cast, squeezed, unsqueezed
from superopt.ops.derivative.typed_terms import constant as ones
from superopt.ops.shape_inference import CanonicalNode

__all__ = ["TrainingStep", "train_step"]

RATE, COUNT = "learning_rate", "step"


@dataclass(frozen=True)
class TrainingStep:
    """A training step.

    Attributes:
        graph: inputs of the model, targets, then the state (weights, what the optimiser keeps, ``learning_rate`` and
            ``step``); outputs the loss and the next state.
        loss: the name of the loss among the outputs: ``loss``, if the model has no value of that name.
        parameters: names of the weights that are learnt.
        state: output → the input that it is next time.
        targets: names of the inputs that the model's outputs are compared with.
    """

    graph: Graph
    loss: str
    parameters: tuple[str, ...]
    state: Mapping[str, str]
    targets: tuple[str, ...]

    @classmethod
    def read(cls, graph: Graph) -> TrainingStep:
        """A step from a file that one was saved to, optimised or not.

        Raises:
            UsageError: the graph does not say that it is a training step.
        """
        try:
            told = json.loads(graph.metadata[TRAINING])
            parts = told["loss"], tuple(told["parameters"]), dict(told["state"]), tuple(told["targets"])
        except (KeyError, TypeError, ValueError):
            raise UsageError(
                "the model is no training step", hint="superopt train-step MODEL -o OUT makes one"
            ) from None
        return cls(graph, *parts)

    def initial(self) -> dict[str, np.ndarray]:
        """The state to start from."""
        arrays = {}
        for name in self.state.values():
            data = self.graph.weight[name].data
            assert data is not None
            arrays[name] = data.numpy()
        return arrays

    def next_feeds(self, outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The state to feed next, from the outputs of a step."""
        return {name: outputs[output] for output, name in self.state.items()}


def train_step(
    graph: Graph,
    loss: str | Loss = "mse",
    optimizer: str | TrainingOptimiser = "sgd",
    *,
    outputs: Sequence[str] | None = None,
    train: Sequence[str] = ("*",),
    freeze: Sequence[str] = (),
    lr: float | None = None,
    sizes: Mapping[str, int] | None = None,
    batch_statistics: bool = False,
) -> TrainingStep:
    """Forward pass, loss, backward pass and update of a model's weights, as one model.

    Args:
        graph: a model with values for its weights.
        loss: a name of :data:`superopt.frontend.training.LOSSES`, or a loss.
        optimizer: "sgd", "momentum", "adam", "adamw", or one with its own settings.
        outputs: the outputs that the loss is of; all real ones by default.
        train: patterns (``*``, ``?``) of names of weights to learn. Only real weights of more than one element on the
            way to the loss are learnt, and no statistics of BatchNormalization.
        freeze: patterns of names of weights not to learn.
        lr: the learning rate to start with; the optimiser's own by default.
        sizes: symbolic dimensions to fix.
        batch_statistics: BatchNormalization normalises with the mean and variance of the batch, and its own statistics
            follow them and are part of the state, as in PyTorch's ``train`` mode.

    Raises:
        UsageError: there is nothing to learn, or no such loss or optimiser.
        NotDifferentiable: a node between weights and loss has no derivative; names it.
    """
    chosen = optimiser(optimizer) if isinstance(optimizer, str) else optimizer
    fixed = at_sizes(graph, sizes or {})
    plain, followed = with_batch_statistics(fixed) if batch_statistics else (fixed, {})
    forward, name_of_loss, targets = with_loss(plain, loss, outputs, also=tuple(followed.values()))
    extension = GraphExtension(forward)
    parameters = _parameters(extension, name_of_loss, train, freeze)
    y = extension.expr(name_of_loss)
    expressions = adjoints(extension, {name_of_loss: ones(1, y.dtype)}, parameters)
    state: dict[str, str] = {}
    kept_weights: list[Weight] = []

    def stated(name: str, array: np.ndarray) -> TypedTerm:
        """An input of the step with a value to start from."""
        made = extension.input(name, constant("", array).type)
        kept_weights.append(constant(str(made.term), array))
        return made

    made = [v for v in forward.outputs if v.name == name_of_loss]
    rate = stated(RATE, np.array(chosen.lr if lr is None else lr, np.float32))
    count = extension.emit(stated(COUNT, np.array(0, np.float32)) + 1, COUNT)
    pairs: list[tuple[str, TypedTerm]] = [(COUNT, count), (RATE, rate)]
    for name in parameters:
        weight = extension.expr(name)
        slots = [f"{slot} {name}" for slot in chosen.kept]
        zeros = np.zeros(tuple(d for d in weight.shape if isinstance(d, int)), weight.dtype.numpy)
        beside = tuple(stated(slot, zeros) for slot in slots)
        moved, after = chosen.update(weight, expressions[name], beside, cast(rate, weight.dtype), count)
        pairs += [(name, moved), *zip(slots, after, strict=True)]
    pairs += [(name, extension.expr(value)) for name, value in followed.items()]
    for name, expr in pairs:
        made.append(extension.named(expr, f"next {name}", "update"))
        state[f"next {name}"] = name
    fed = [Value(name, extension.expr(name).type) for name in (*parameters, *followed)]
    given_values = [v for v in forward.inputs if v.name not in {*parameters, *followed}]
    result = extension.result(
        made, name=f"{graph.name}, training step", inputs=(*given_values, *fed, *extension.inputs)
    )
    weights = [*(w for w in result.weights if w.name not in {k.name for k in kept_weights}), *kept_weights]
    told = {"loss": name_of_loss, "parameters": parameters, "targets": targets, "state": state}
    metadata = {**graph.metadata, TRAINING: json.dumps(told)}
    return TrainingStep(
        replace(result, weights=tuple(weights), metadata=metadata).checked(), name_of_loss, parameters, state, targets
    )  # fmt: skip


def with_batch_statistics(graph: Graph) -> tuple[Graph, dict[str, str]]:
    """The model with every BatchNormalization by the statistics of its batch, as PyTorch does in training.

    Returns:
        The model, and for each weight that is a statistic the value that it is after a step: as before by the
        operator's ``momentum``, for the rest the batch's (of the variance, the unbiased one).

    Raises:
        UsageError: statistics are no weights, or are shared.
    """
    extension = GraphExtension(graph)
    followed: dict[str, str] = {}
    renamed: dict[str, str] = {}
    gone: set[str] = set()
    for step in extension.steps:
        if not isinstance(step.applied, CanonicalNode) or step.applied.operator.name != "BatchNormalization":
            continue
        operands = [e for e in extension.operands(step.applied) if e is not None]
        x, scale, shift, *statistics = operands
        names = [str(e.term) for e in statistics]
        if any(n not in graph.weight or n in followed for n in names):
            raise UsageError("its statistics are no weights of its own", where=where(step.node))
        axes = tuple(a for a in range(x.rank) if a != 1)
        column = tuple(range(1, x.rank - 1))
        mean = apply("ReduceMean", x, axes=axes, keepdims=1)
        centred = x - mean
        variance = apply("ReduceMean", centred * centred, axes=axes, keepdims=1)
        epsilon = step.applied.attributes["epsilon"]
        assert isinstance(epsilon, int | float)
        unit = centred / apply("Sqrt", variance + epsilon)
        y = extension.emit(unit * unsqueezed(scale, column) + unsqueezed(shift, column), "normalised")
        renamed[str(y.term)] = step.node.outputs[0]
        gone.add(step.node.outputs[0])
        count = prod((x.shape[a] for a in axes), start=1)
        given = step.node.attributes.get("momentum", 0.9)
        stay = float(given) if isinstance(given, int | float) else 0.9
        unbiased = variance if count == 1 else variance * count / (count - 1)
        for name, old, new in zip(names, statistics, (mean, unbiased), strict=True):
            moved = old * stay + squeezed(new, axes) * (1 - stay)
            followed[name] = str(extension.emit(moved, "statistics").term)
    nodes = [
        replace(
            n, inputs=tuple(renamed.get(i, i) for i in n.inputs), outputs=tuple(renamed.get(o, o) for o in n.outputs)
        )
        for n in (*graph.nodes, *extension.nodes)
        if not gone.intersection(n.outputs)
    ]
    weights = (*graph.weights, *extension.weights.values())
    return replace(graph, nodes=tuple(nodes), weights=weights).checked(), followed


def with_loss(
    graph: Graph, loss: str | Loss, outputs: Sequence[str] | None, also: Sequence[str] = ()
) -> tuple[Graph, str, tuple[str, ...]]:
    """The model with its loss as the first output, the loss's name, and those of the targets, which are inputs.

    Args:
        graph: the model.
        loss: a name, or a loss.
        outputs: that the loss is of; all real ones by default.
        also: values that are outputs besides.

    Raises:
        UsageError: there is no such loss, or no real output.
    """
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise UsageError(f"loss {loss!r} is not one of {', '.join(LOSSES)}")
        loss = LOSSES[loss]
    extension = GraphExtension(graph)
    of = chosen_outputs(extension, outputs)
    parts: list[TypedTerm] = []
    targets: list[str] = []
    for name in of:
        y = extension.expr(name)
        target = None
        if loss.target is not None:
            stem = "target" if len(of) == 1 else f"target {name}"
            target = extension.input(stem, loss.target(y.type))
            targets.append(str(target.term))
        parts.append(loss.value(y, target))
    whole = added(parts)
    assert whole is not None
    output = extension.named(whole, extension.free("loss"), "loss")
    besides = [Value(name, extension.expr(name).type) for name in also]
    return extension.result([output, *besides]), output.name, tuple(targets)


def _parameters(extension: GraphExtension, loss: str, train: Sequence[str], freeze: Sequence[str]) -> tuple[str, ...]:
    """Weights to learn: real, of more than one element, on the way to the loss, and not left out.

    Raises:
        UsageError: there are none.
    """
    fixed: set[str] = set()
    for step in extension.steps:
        if (
            isinstance(step.applied, CanonicalNode)
            and (declared := DECLARED.get(step.applied.operator.name)) is not None
        ):
            fixed.update(n for p, n in enumerate(step.applied.args) if p in declared.statistics and n is not None)

    def chosen(weight: Weight) -> bool:
        real = weight.type.dtype.is_float and weight.data is not None and weight.type.elements not in (0, 1)
        named = any(fnmatch.fnmatchcase(weight.name, p) for p in train)
        return real and named and not any(fnmatch.fnmatchcase(weight.name, p) for p in freeze)

    candidates = [w.name for w in extension.graph.weights if w.name not in fixed and chosen(w)]
    found = tuple(name for name in candidates if loss in moving_values(extension, [name]))
    if not found:
        listing = ", ".join(printable(w.name, 30) for w in extension.graph.weights[:8])
        raise UsageError("no weight is learnt", hint=f"weights: {listing or 'none'}")
    return found
