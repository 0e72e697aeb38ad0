"""A training step tried out: steps in ONNX Runtime, beside the same steps in float64 from the operators' meanings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from superopt.formats import to_onnx_bytes
from superopt.frontend.training.step import TrainingStep
from superopt.ir.errors import UsageError
from superopt.ir.graph import Value
from superopt.ir.types import TensorType
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.reference import run

__all__ = ["Rehearsal", "rehearse"]


@dataclass(frozen=True)
class Rehearsal:
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
) -> Rehearsal:
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
        found = loaded.run({**batch, **state}, names)
        true = run(step.graph, {**wide_batch, **exact})
        losses.append(float(found[step.loss]))
        expected.append(float(true[step.loss]))
        state, exact = step.next_feeds(found), step.next_feeds(true)
    first = step.initial()
    moved = root_mean_square([exact[n] - first[n] for n in step.parameters])
    apart = root_mean_square([exact[n] - state[n] for n in step.parameters])
    ulps = [np.spacing(np.abs(first[n])).astype(np.float64) for n in step.parameters]
    return Rehearsal(tuple(losses), tuple(expected), moved, apart, steps * root_mean_square(ulps))


def root_mean_square(arrays: Sequence[np.ndarray]) -> float:
    return float(np.sqrt(sum(np.square(a).sum() for a in arrays) / sum(a.size for a in arrays)))


def drawn(values: list[Value], seed: int) -> dict[str, np.ndarray]:
    """A random batch.

    Raises:
        UsageError: a size is not known.
    """
    source = np.random.default_rng(seed)
    found = {}
    for value in values:
        kind = value.type
        if not isinstance(kind, TensorType) or not kind.is_static:
            raise UsageError(f"input {value.name!r} is {kind}", hint="fix its sizes, for example --dim N=8")
        shape = tuple(d for d in kind.shape or () if isinstance(d, int))
        array = source.standard_normal(shape) if kind.dtype.is_float else source.integers(0, 2, shape)
        found[value.name] = np.asarray(array).astype(kind.dtype.numpy)
    return found


def wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if array.dtype.kind == "f" else array
