"""Further references of a check: elements that nothing rounds, and another runtime.

Where a model computes an element of an output without rounding, no other order of operations explains another value.
:class:`CrossRuntimeReference` loads both models of a check, on request, in the runtime for which the result was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from superopt.ir.errors import InvalidModel, ResourceLimit, Unsupported, UsageError
from superopt.ir.graph import Graph, Value
from superopt.ir.types import TensorType
from superopt.ops.shape_inference import InferredTypes
from superopt.runtime import reference
from superopt.runtime.protocol import LoadedModel, Runtime
from superopt.verifier.check.deviation import leading_to
from superopt.verifier.check.rounding_noise import live_values
from superopt.verifier.check.shared_weight_sessions import REFUSALS, Arrays, SharedWeightSessions, attempt

__all__ = ["CrossRuntimeReference", "displaced", "unrounded_in_all"]

_WATCHED = 1 << 24  # elements of intermediates that are compared, at most


def unrounded_in_all(
    sides: Iterable[tuple[Graph, InferredTypes]],
    output: str,
    feeds: Mapping[str, np.ndarray],
    bench: SharedWeightSessions,
    sizes: Mapping[str, int],
    deadline: float,
) -> np.ndarray | None:
    """Where everything that leads to an output is in ONNX Runtime what it is in float64, by element of the output.

    What has the output's shape counts element by element; anything else counts as a whole.

    Args:
        sides: models that make this output of these inputs, and their types.
        output: the output's name.
        feeds: the inputs.
        bench: where the sessions are made that give the values inside.
        sizes: symbolic dimensions that the inputs do not bind.
        deadline: ``time.monotonic`` value after which no further node of the reference is run.

    Returns:
        ``None`` where that is nowhere, or not known: a value has no type, or something does not run.
    """
    shared: np.ndarray | None = None
    for graph, typing in sides:
        exact = _unrounded(graph, typing, output, feeds, bench, sizes, deadline)
        if exact is None or (shared is not None and exact.shape != shared.shape):
            return None
        shared = exact if shared is None else shared & exact
        if not shared.any():
            return None
    return shared


def _unrounded(
    graph: Graph, typing: InferredTypes, output: str, feeds: Mapping[str, np.ndarray], bench: SharedWeightSessions,
    sizes: Mapping[str, int], deadline: float,
) -> np.ndarray | None:  # fmt: skip
    part, live = leading_to(graph, output), live_values(graph)
    names = dict.fromkeys((*(o for n in part.nodes for o in n.outputs if o in live), output))
    types = {n: typing.types.get(n) for n in names}
    if any(not isinstance(t, TensorType) for t in types.values()):
        return None
    ran = _ran(replace(part, outputs=tuple(Value(n, t) for n, t in types.items()), values=()), feeds, bench)
    if ran is None or sum(a.size for a in ran.values()) > _WATCHED:
        return None
    try:
        reals = reference.run(part, feeds, outputs=list(names), sizes=sizes, deadline=deadline)
    except (Unsupported, ResourceLimit):
        return None
    exact = np.ones(ran[output].shape, bool)
    for name in names:
        if reals[name].shape != ran[name].shape or ran[name].dtype.kind not in "biuf":
            return None
        same = reals[name] == ran[name]
        if same.shape == exact.shape:
            exact &= same
        elif not same.all():
            return np.zeros(exact.shape, bool)
    return exact


def _ran(graph: Graph, feeds: Mapping[str, np.ndarray], bench: SharedWeightSessions) -> Arrays | None:
    try:
        return attempt(bench.session(graph, optimise=False), feeds)
    except REFUSALS:
        return None


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
    array = np.where(np.isfinite(moved), moved, after).astype(truth.dtype)
    return np.where(same, truth, array)


@dataclass
class CrossRuntimeReference:
    """The original and the result in one runtime: outputs, or ``None`` and the reason."""

    original: Graph
    result: Graph
    bench: SharedWeightSessions
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
    def _before(self) -> LoadedModel | str:
        return self._load(self.original)

    @cached_property
    def _after(self) -> LoadedModel | str:
        return self._load(self.result)

    def _load(self, graph: Graph) -> LoadedModel | str:
        try:
            return self.bench.loaded(graph, self.runtime)
        except _REFUSALS as error:
            return error.what

    def _run(
        self, loaded: LoadedModel | str, feeds: Mapping[str, np.ndarray], time_limit: float
    ) -> tuple[Arrays | None, str]:
        if isinstance(loaded, str):
            return None, loaded
        try:
            return loaded.run(feeds, [v.name for v in self.original.outputs], time_limit=time_limit), ""
        except _REFUSALS as error:
            return None, error.what
