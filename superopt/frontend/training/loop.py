"""Training steps one after another in ONNX Runtime, with the state kept in its own memory between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from superopt.formats import to_onnx_bytes
from superopt.frontend.training.step import TrainingStep
from superopt.ir.errors import UsageError, printable
from superopt.ir.types import TensorType
from superopt.runtime.onnx_runtime import make_session, to_value, translated

__all__ = ["TrainingLoop"]


class TrainingLoop:
    """Runs a training step again and again: nothing of the state is copied or allocated from step to step.

    The state has two places in memory, which take turns at being read and written.

    >>> from superopt.frontend import GraphBuilder
    >>> from superopt.frontend.training import train_step
    >>> b = GraphBuilder("line")
    >>> b.output(b.input("x", "float32", (4, 2)) @ b.weight("w", (2, 1)), "y")
    >>> loop = TrainingLoop(train_step(b.build(), "mse", "sgd"))
    >>> batch = {"x": np.eye(4, 2, dtype=np.float32), "target": np.ones((4, 1), np.float32)}
    >>> losses = [loop.step(batch) for _ in range(3)]
    >>> losses[0] > losses[1] > losses[2]
    True

    Args:
        step: the step, optimised or not.
        threads: inside an operator; ``None``: every core.

    Raises:
        UsageError: an input of the state has sizes that are not known.
    """

    def __init__(self, step: TrainingStep, *, threads: int | None = None) -> None:
        state = step.initial()
        kept = tuple(w for w in step.graph.weights if w.name not in state)
        session: Any = make_session(to_onnx_bytes(replace(step.graph, weights=kept)), threads=threads)
        self._session = session
        self._loss = step.loss
        self._types = {i.name: i.type for i in session.get_inputs()}
        self._batch = [v for v in step.graph.inputs if v.name not in state]
        there, beyond = ({n: to_value(a.copy(), self._types[n]) for n, a in state.items()} for _ in range(2))
        self._sides = (there, beyond)
        self._bindings = [self._bound(step, *sides) for sides in ((there, beyond), (beyond, there))]
        self._given: dict[str, Any] = {}  # own the memory of the batch that is bound
        self.steps = 0

    def _bound(self, step: TrainingStep, read: Mapping[str, Any], written: Mapping[str, Any]) -> Any:
        binding = self._session.io_binding()
        for name, value in read.items():
            if name in self._types:
                binding.bind_ortvalue_input(name, value)
        for output in step.graph.outputs:
            if output.name in step.state:
                binding.bind_ortvalue_output(output.name, written[step.state[output.name]])
            else:
                binding.bind_output(output.name, "cpu")
        self._place = [v.name for v in step.graph.outputs].index(step.loss)
        return binding

    def feed(self, batch: Mapping[str, np.ndarray]) -> None:
        """Give the batch of the next steps.

        Raises:
            UsageError: an input is missing or of another type.
        """
        for value in self._batch:
            if value.name not in batch:
                raise UsageError(f"input {printable(value.name)!r} was not given")
            array = np.ascontiguousarray(batch[value.name])
            kind = value.type
            fixed = isinstance(kind, TensorType) and kind.is_static
            if fixed and isinstance(kind, TensorType) and array.shape != kind.shape:
                raise UsageError(f"input {printable(value.name)!r} has shape {array.shape}, and the step wants {kind}")
            held = self._given[value.name] = to_value(array, self._types[value.name])
            for binding in self._bindings:
                binding.bind_ortvalue_input(value.name, held)

    def again(self) -> None:
        """One step on the batch that was given last."""
        with translated("", running=True):
            self._session.run_with_iobinding(self._bindings[self.steps % 2])
        self.steps += 1

    def step(self, batch: Mapping[str, np.ndarray]) -> float:
        """One step on a batch.

        Returns:
            The loss before it.

        Raises:
            UsageError: an input is missing or of another type.
        """
        self.feed(batch)
        self.again()
        return self.loss

    @property
    def loss(self) -> float:
        """The loss of the last step, before it."""
        values = self._bindings[(self.steps + 1) % 2].get_outputs()
        return float(values[self._place].numpy())

    @property
    def state(self) -> dict[str, np.ndarray]:
        """Weights and what the optimiser keeps, after the last step; copies."""
        return {name: np.array(value.numpy()) for name, value in self._sides[self.steps % 2].items()}
