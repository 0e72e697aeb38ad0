"""Elements of an output that a model computes without rounding: no other way to compute them explains another value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from superopt.ir.errors import ResourceLimit, Unsupported
from superopt.ir.graph import Graph, Value
from superopt.ir.types import TensorType
from superopt.ops.infer import Typing
from superopt.runtime import reference
from superopt.verifier.check.deviation import leading_to
from superopt.verifier.check.rounding_noise import live_values
from superopt.verifier.check.sessions import REFUSALS, Arrays, Bench, attempt

__all__ = ["unrounded_in_all"]

_WATCHED = 1 << 24  # elements of intermediates that are compared, at most


def unrounded_in_all(
    sides: Iterable[tuple[Graph, Typing]], output: str, feeds: Mapping[str, np.ndarray], bench: Bench,
    sizes: Mapping[str, int], deadline: float,
) -> np.ndarray | None:  # fmt: skip
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
    graph: Graph, typing: Typing, output: str, feeds: Mapping[str, np.ndarray], bench: Bench,
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


def _ran(graph: Graph, feeds: Mapping[str, np.ndarray], bench: Bench) -> Arrays | None:
    try:
        return attempt(bench.session(graph, optimise=False), feeds)
    except REFUSALS:
        return None
