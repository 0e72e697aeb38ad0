"""Training steps run in ONNX Runtime: one after another, and tried out beside float64.

:class:`TrainingLoop` keeps the state in ONNX Runtime's own memory between steps. :func:`rehearse` runs the same steps
in float64 from the operators' meanings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from superopt.formats import to_onnx_bytes
from superopt.frontend.training.step import TrainingStep
from superopt.ir.errors import UsageError, printable
from superopt.ir.graph import Value
from superopt.ir.types import TensorType
from superopt.runtime.onnx_runtime import ONNX_RUNTIME, make_session, to_value, translated
from superopt.runtime.reference import run

__all__ = ["TrainingReferenceComparison", "TrainingLoop", "rehearse"]


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
        kept_weights = tuple(w for w in step.graph.weights if w.name not in state)
        session: Any = make_session(to_onnx_bytes(replace(step.graph, weights=kept_weights)), threads=threads)
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


@dataclass(frozen=True)
class TrainingReferenceComparison:
    """What steps on one random batch gave.

    Attributes:
        losses: in ONNX Runtime, before each step.
        expected: the same in float64.
        moved: the root mean square of what all weights moved by, in float64.
        apart: that of the differences between the two after the last step. (Adam divides by the gradient's size: where
            a gradient is 0 but for rounding, as that of the bias of keys is, single weights move by noise.)
        rounded: that of what rounding the weights themselves after each step, in their type, may come to.
    """

    losses: tuple[float, ...]
    expected: tuple[float, ...]
    moved: float
    apart: float
    rounded: float

    @property
    def is_close(self) -> bool:
        """Losses agree to 1 in 1,000 (16-bit types: in 100), and weights to a hundredth of what they moved."""
        pairs = zip(self.losses, self.expected, strict=True)
        slack = 1e-3 if self.rounded <= 0.01 * self.moved else 1e-2
        near = all(abs(a - b) <= slack * max(abs(b), 1e-6) for a, b in pairs)
        return near and self.apart <= 0.01 * self.moved + self.rounded


def rehearse(
    step: TrainingStep, steps: int = 20, *, seed: int = 0, feeds: Mapping[str, np.ndarray] | None = None
) -> TrainingReferenceComparison:
    """Run a step several times on one batch, in ONNX Runtime without its own rewrites and in float64.

    Args:
        step: the training step.
        steps: how many.
        seed: of the batch: reals are standard normal, integers 0 or 1.
        feeds: a batch of one's own: an array for each input that is not part of the state.
    """
    state = step.initial()
    rest = [v for v in step.graph.inputs if v.name not in state]
    batch = dict(feeds) if feeds is not None else drawn(rest, seed)
    fed = replace(step.graph, weights=tuple(w for w in step.graph.weights if w.name not in state))
    loaded = ONNX_RUNTIME.load(to_onnx_bytes(fed), optimise=False)
    names = [v.name for v in step.graph.outputs]
    exact = {name: wide(value) for name, value in state.items()}
    wide_batch = {name: wide(value) for name, value in batch.items()}
    losses, expected = [], []
    for _ in range(steps):
        arrays = loaded.run({**batch, **state}, names)
        true = run(step.graph, {**wide_batch, **exact})
        losses.append(float(arrays[step.loss]))
        expected.append(float(true[step.loss]))
        state, exact = step.next_feeds(arrays), step.next_feeds(true)
    first = step.initial()
    moved = root_mean_square([exact[n] - first[n] for n in step.parameters])
    apart = root_mean_square([exact[n] - state[n] for n in step.parameters])
    ulps = [np.spacing(np.abs(first[n])).astype(np.float64) for n in step.parameters]
    return TrainingReferenceComparison(tuple(losses), tuple(expected), moved, apart, steps * root_mean_square(ulps))


def root_mean_square(arrays: Sequence[np.ndarray]) -> float:
    return float(np.sqrt(sum(np.square(a).sum() for a in arrays) / sum(a.size for a in arrays)))


def drawn(values: list[Value], seed: int) -> dict[str, np.ndarray]:
    """A random batch.

    Raises:
        UsageError: a size is not known.
    """
    source = np.random.default_rng(seed)
    arrays = {}
    for value in values:
        kind = value.type
        if not isinstance(kind, TensorType) or not kind.is_static:
            raise UsageError(f"input {value.name!r} is {kind}", hint="fix its sizes, for example --dim N=8")
        shape = tuple(d for d in kind.shape or () if isinstance(d, int))
        array = source.standard_normal(shape) if kind.dtype.is_float else source.integers(0, 2, shape)
        arrays[value.name] = np.asarray(array).astype(kind.dtype.numpy)
    return arrays


def wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if array.dtype.kind == "f" else array
