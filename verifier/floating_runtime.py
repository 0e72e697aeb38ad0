"""ONNX Runtime's say in a verdict: both sides of a rule run at the points where they are worst, and at some others.

The search for points evaluates a model of kernels. Where a real kernel does something else, it is the one that runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.formats import to_onnx_bytes
from superopt.ir.errors import SuperoptError
from superopt.ir.terms import Term
from superopt.ops.record import NotCovered
from superopt.runtime.ort import make_session, run
from superopt.verifier.floating_points import Points
from superopt.verifier.witness import side_graph

if TYPE_CHECKING:
    from superopt.verifier.floating import Site

__all__ = ["runtime_results"]

Array = np.ndarray[Any, Any]
_OPSETS = (21, 23, 18)  # the first at which every operator of the rule can be written and run


def runtime_results(site: Site, batch: Points) -> tuple[list[Array], list[Array]] | None:
    """Elements of both sides at points, as ONNX Runtime computes them with its optimisations off, in float32.

    Returns:
        For each of the site's different pairs an array [point] of the left side, and of the right; ``None`` where
        ONNX Runtime does not have an operator.
    """
    trial = site.trial
    for opset in _OPSETS:
        try:
            sides = [_elements(site, side, batch, opset) for side in (trial.lhs, trial.rhs)]
        except (NotCovered, SuperoptError):
            continue
        return sides[0], sides[1]
    return None


def _elements(site: Site, roots: tuple[Term, ...], batch: Points, opset: int) -> list[Array]:
    trial = site.trial
    graph = side_graph(roots, trial.variables, opset)
    session = make_session(to_onnx_bytes(graph), threads=1, optimise=False)
    wanted = [site.places[i] for i in site.different]
    count = next((a.shape[1] for a in batch.values()), 1)
    found = [np.empty(count, np.float32) for _ in wanted]
    names = {i.name for i in graph.inputs}
    shapes = {n: tuple(int(d) for d in k.shape or ()) for n, k in trial.variables.items()}  # type: ignore[arg-type]
    fixed = {
        n: np.asarray(site.program.whole[n]).reshape(shapes[n]).astype(trial.variables[n].dtype.numpy)
        for n in site.program.whole if n in names
    }  # fmt: skip
    outputs = [o.name for o in graph.outputs]
    for point in range(count):
        feeds = fixed | {
            n: np.ascontiguousarray(a[:, point]).reshape(shapes[n]) for n, a in batch.items() if n in names
        }
        made = run(session, feeds)
        for place, (root, at) in enumerate(wanted):
            found[place][point] = np.asarray(made[outputs[root]]).reshape(-1)[at]
    return found
