"""Both models of a check in the runtime for which the result was made, loaded on request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from superopt.ir.errors import InvalidModel, Unsupported, UsageError
from superopt.ir.graph import Graph
from superopt.runtime.protocol import Loaded, Runtime
from superopt.verifier.check.sessions import Arrays, Bench

__all__ = ["CrossRuntime", "displaced"]

_REFUSALS = (InvalidModel, Unsupported, UsageError)


def displaced(truth: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """The truth, moved by the difference of ``after`` and ``before``; ``after`` itself where that is not finite.

    So the bound, whose noise is measured about the truth, is that of the truth. Where both are equal nothing moves.
    """
    if not truth.shape == before.shape == after.shape:
        return after
    same = (before == after) | ((before != before) & (after != after))
    if truth.dtype.kind != "f":
        return np.where(same, truth, after)
    with np.errstate(all="ignore"):
        moved = truth.astype(np.float64) + (after.astype(np.float64) - before.astype(np.float64))
    found = np.where(np.isfinite(moved), moved, after).astype(truth.dtype)
    return np.where(same, truth, found)


@dataclass
class CrossRuntime:
    """The original and the result in one runtime: outputs, or ``None`` and the reason."""

    original: Graph
    result: Graph
    bench: Bench
    runtime: Runtime

    @property
    def name(self) -> str:
        """The runtime's name and version."""
        return f"{self.runtime.name} {self.runtime.version}"

    def before(self, feeds: Mapping[str, np.ndarray], time_limit: float) -> tuple[Arrays | None, str]:
        """The original's outputs."""
        return self._run(self._before, feeds, time_limit)

    def after(self, feeds: Mapping[str, np.ndarray], time_limit: float) -> tuple[Arrays | None, str]:
        """The result's outputs."""
        return self._run(self._after, feeds, time_limit)

    @cached_property
    def _before(self) -> Loaded | str:
        return self._load(self.original)

    @cached_property
    def _after(self) -> Loaded | str:
        return self._load(self.result)

    def _load(self, graph: Graph) -> Loaded | str:
        try:
            return self.bench.loaded(graph, self.runtime)
        except _REFUSALS as error:
            return error.what

    def _run(
        self, loaded: Loaded | str, feeds: Mapping[str, np.ndarray], time_limit: float
    ) -> tuple[Arrays | None, str]:
        if isinstance(loaded, str):
            return None, loaded
        try:
            return loaded.run(feeds, [v.name for v in self.original.outputs], time_limit=time_limit), ""
        except _REFUSALS as error:
            return None, error.what
