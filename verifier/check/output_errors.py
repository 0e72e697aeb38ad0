"""Errors of a graph's outputs beside the original's, over many inputs: what a budget of errors is held against.

The original runs in ONNX Runtime with its optimisations off. The error of an output is the largest difference, relative
to the largest element; it is infinite where the original is finite and the result is not, and where an output that is
not of reals differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, islice
from math import inf
from typing import NamedTuple

import numpy as np

from superopt.ir.errors import InvalidModel, ResourceLimit
from superopt.ir.graph import Graph
from superopt.verifier.check.input_generation import make_inputs
from superopt.verifier.check.shared_weight_sessions import Arrays, SharedWeightSessions, attempt
from superopt.verifier.check.steered_inputs import steered

__all__ = ["MaximumOutputError", "OutputErrorMeasurement", "error_inputs", "error_of", "steered_inputs"]

_KINDS = ("normal", "uniform")
_FINITE = float(np.finfo(np.float64).max)
_TRIES = 4  # inputs that are drawn for each that is wanted, at most


def error_inputs(graph: Graph, seed: int, sizes: Mapping[str, int]) -> Iterator[Arrays]:
    """Inputs without end: standard normal and uniform, in turn.

    Raises:
        Unsupported, ResourceLimit: as :func:`superopt.verifier.check.input_generation.make_inputs`.
    """
    for number in count():
        yield make_inputs(graph, seed + number // len(_KINDS), _KINDS[number % len(_KINDS)], sizes)


def steered_inputs(graph: Graph, seed: int, sizes: Mapping[str, int], most: int) -> Iterator[Arrays]:
    """Inputs near constants, of few numbers and of nearly equal ones, without those of extreme magnitudes."""
    feeds = steered(graph, graph, seed, sizes, 0, 4 * most)
    ordinary = (f for f in feeds if not (f.mixed or f.tiny or f.scaled or f.special or f.risky))
    yield from (f.arrays for f in islice(ordinary, most))


class MaximumOutputError(NamedTuple):
    """The largest error of any output: relative to the output's largest element, and absolute."""

    relative: float
    absolute: float

    def with_other(self, other: MaximumOutputError) -> MaximumOutputError:
        """The larger of both, each by itself."""
        return MaximumOutputError(max(self.relative, other.relative), max(self.absolute, other.absolute))


NONE = MaximumOutputError(0.0, 0.0)
INFINITE = MaximumOutputError(inf, inf)


def error_of(old: Mapping[str, np.ndarray], new: Mapping[str, np.ndarray]) -> MaximumOutputError:
    """The error of all outputs together."""
    found = NONE
    for name, array in old.items():
        found = found.with_other(_error(array, new[name]))
    return found


def _error(old: np.ndarray, new: np.ndarray) -> MaximumOutputError:
    if old.shape != new.shape or old.dtype != new.dtype:
        return INFINITE
    if old.dtype.kind != "f":
        return NONE if np.array_equal(old, new) else INFINITE
    usable = np.isfinite(old)
    if not usable.any():
        return NONE
    exact = old[usable].astype(np.float64)
    off = np.abs(new[usable].astype(np.float64) - exact).max()
    return MaximumOutputError(float(off / (np.abs(exact).max() or 1.0)), float(off)) if np.isfinite(off) else INFINITE


class OutputErrorMeasurement:
    """Errors of graphs that stand for an original, on the same inputs.

    On ordinary inputs, standard normal and uniform ones, errors are held to a bound. On edge values errors need only be
    finite: exponentials make much of the rounding of large numbers there.

    Args:
        original: the graph that the others stand for.
        bench: where graphs are run.
        seed: of the inputs.
        sizes: of symbolic dimensions.
        inputs: how many ordinary ones.
        extreme: how many of edge values.
        kept_bytes: of the original's outputs, that are kept.

    Attributes:
        feeds: the inputs, ordinary ones first, without those that the original refuses.
        ordinary: how many of them are.

    Raises:
        InvalidModel: the original takes too few. Unsupported, ResourceLimit: it cannot be run.
    """

    def __init__(
        self,
        original: Graph,
        bench: SharedWeightSessions,
        *,
        seed: int,
        sizes: Mapping[str, int],
        inputs: int,
        extreme: int,
        kept_bytes: int,
    ) -> None:
        self._session = bench.session(original, optimise=False)
        self._left = kept_bytes
        self._kept: dict[int, Arrays] = {}
        self.feeds: list[Arrays] = []
        self._take(error_inputs(original, seed, sizes), inputs)
        self.ordinary = len(self.feeds)
        if self.ordinary < inputs:
            raise InvalidModel(f"the model takes only {self.ordinary} of {_TRIES * inputs} inputs")
        self._take((make_inputs(original, seed + n, "edge", sizes) for n in range(extreme)), extreme)
        self._order = list(range(len(self.feeds)))

    def _take(self, drawn: Iterator[Arrays], most: int) -> None:
        """Keep so many of the inputs that the original takes, and what it makes of them."""
        wanted = len(self.feeds) + most
        for feeds in islice(drawn, _TRIES * most):
            if len(self.feeds) == wanted:
                break
            ran = attempt(self._session, feeds)
            if ran is None:
                continue
            size = sum(a.nbytes for a in ran.values())
            if size <= self._left:
                self._kept[len(self.feeds)] = ran
                self._left -= size
            self.feeds.append(feeds)

    def original(self, number: int) -> Arrays:
        """What the original makes of an input."""
        found = self._kept.get(number)
        if found is None:
            found = attempt(self._session, self.feeds[number])
            assert found is not None, "it took the input before"
        return found

    def worst(
        self, runs: Sequence[tuple[Callable[[Arrays], Arrays | None], int]], most: float, left: Callable[[], bool]
    ) -> tuple[MaximumOutputError, int | None]:
        """The largest error on ordinary inputs, and the first input on which a bound is exceeded, where one is.

        That input comes first from then on.

        Args:
            runs: each gives a graph's outputs for an input, or ``None`` where it refuses it; and on how many ordinary
                inputs it runs. All of them run on edge values.
            most: the bound.
            left: whether there is time for another input.

        Raises:
            ResourceLimit: there is none.
        """
        worst = NONE
        for number in list(self._order):
            if not left():
                raise ResourceLimit("the time ran out while errors were measured")
            for run, inputs in runs:
                if inputs <= number < self.ordinary:
                    continue
                made = run(self.feeds[number])
                error = INFINITE if made is None else error_of(self.original(number), made)
                if number < self.ordinary or error == INFINITE:
                    worst = worst.with_other(error)
                if error.relative > (most if number < self.ordinary else _FINITE):
                    self._order.remove(number)
                    self._order.insert(0, number)
                    return worst, number
        return worst, None
