"""ONNX Runtime's kernels beside the model of kernels: in float64, at ordinary numbers, at infinities and NaN.

The search for points (:mod:`superopt.verifier.floats.verdict_search`) evaluates operations as a float32 kernel should
round them. A real kernel may differ: ``Sigmoid`` and ``Softplus`` of float64 are accurate only absolutely, and a
``MaxPool`` drops the NaN that a ``ReduceMax`` propagates. So both sides also run, the runtime's optimisations off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from superopt.ir.types import DType
from superopt.rules.float_verdicts import HARMFUL, Directions, FloatVerdict, SafeConditions
from superopt.verifier.floats.adversarial_points import Points, flooded, middling, ordinary
from superopt.verifier.floats.comparison import PointErrorAnalysis, plain
from superopt.verifier.floats.conditions import CounterexamplePoints
from superopt.verifier.floats.evaluation import FLOAT64, FORMATS, cone
from superopt.verifier.floats.runtime_check import runtime_results
from superopt.verifier.floats.scalar_program import Node
from superopt.verifier.floats.verdict_search import CounterexampleSearch, RuleInstanceProgram

__all__ = ["RUN_TYPES", "kernel_points", "with_kernels_specials"]

Array = np.ndarray[Any, Any]
RUN_TYPES = {DType.FLOAT32: FORMATS[DType.FLOAT32], DType.FLOAT64: FLOAT64}
_SITES = 2  # at which kernels run
_POINTS = 256
_SPECIALS = 96
_ELEMENTS = 8  # of a result that are compared
# Operations that choose, compare or move: nothing is rounded, so whoever reads the result may count on every bit of it.
_CHOOSING = frozenset({
    "read", "const", "to_type", "neg", "abs", "max", "min", "select", "less", "equal", "not", "and", "or", "xor",
    "isnan", "isinf", "floor", "ceil", "round", "cast_int", "sign",
})  # fmt: skip


def kernel_points(
    sites: Sequence[RuleInstanceProgram], dtype: DType, rng: np.random.Generator, directions: Sequence[bool]
) -> Iterator[tuple[RuleInstanceProgram, bool, Points, PointErrorAnalysis]]:
    """What kernels of a type make of each direction at points around 1: sites, directions, points and judgements."""
    form = RUN_TYPES[dtype]
    for number, site in enumerate(s for s in sites[:_SITES] if s.different and s.counts):
        batch = site.meant(middling(site.counts, _POINTS, rng))
        for backward, error_analysis in CounterexampleSearch(site, number, form).kernels(batch, directions):
            yield site, backward, batch, error_analysis


def with_kernels_specials(
    sites: Sequence[RuleInstanceProgram], found: Directions, rng: np.random.Generator
) -> Directions:
    """Verdicts with what infinite and NaN operands do to the sides in ONNX Runtime, in float32.

    A direction whose source rounds nothing is unsafe where they differ: that its operands are finite is what arithmetic
    may ask for, and there is none. Where only the target stops being finite, operands that are finite by how they are
    made are a condition: what was masked by a choice may then be masked by a product.
    """
    tables = (CounterexamplePoints(()), CounterexamplePoints(()))
    worst: list[dict[str, object]] = [{}, {}]
    for site in [s for s in sites if s.counts][:_SITES]:
        some = {
            n: a.astype(np.float32) for n, a in ordinary(site.counts, _SPECIALS, FORMATS[DType.FLOAT32], rng).items()
        }
        batch = site.meant(flooded(some, rng))
        chosen = site.different or range(len(site.pairs))
        positions = list(chosen)[:: max(1, len(chosen) // _ELEMENTS)]
        made = runtime_results(site, batch, positions)
        if made is None:
            continue
        for left, right in zip(*made, strict=True):
            for backward, (source, target) in enumerate(((left, right), (right, left))):
                tables[backward].special(source, target)
                worst[backward] = worst[backward] or _first_difference(source, target, batch, site)
    return {
        way: {t: _stated(v, tables[b].specials, worst[b], sites, backward=bool(b)) for t, v in found[way].items()}
        for b, way in enumerate(("forward", "backward")) if way in found
    }  # fmt: skip


def _stated(
    verdict: FloatVerdict,
    specials: set[str],
    worst: Mapping[str, object],
    sites: Sequence[RuleInstanceProgram],
    *,
    backward: bool,
) -> FloatVerdict:
    if not specials or verdict.verdict == "unknown":
        return verdict
    said = "; ".join(sorted(specials | set(filter(None, verdict.specials.split("; ")))))
    if all(_chooses(s, backward=backward) for s in sites):
        if verdict.verdict in ("safe", "conditional") and specials <= HARMFUL:
            alternatives = tuple(replace(w, regular=True) for w in verdict.alternatives or (SafeConditions(),))
            return replace(
                verdict, verdict="conditional", alternatives=alternatives, exact=False, specials=said, worst=dict(worst)
            )
        return replace(verdict, verdict="unsafe", alternatives=(), exact=False, specials=said, worst=dict(worst))
    return replace(verdict, specials=said)


def _chooses(site: RuleInstanceProgram, *, backward: bool) -> bool:
    """Whether nothing in the source rounds."""
    nodes: Sequence[Node] = site.program.nodes
    inside = cone(nodes, (pair[backward] for pair in site.pairs))
    return all(nodes[n][0] in _CHOOSING or _masks(nodes, nodes[n]) for n in inside)


def _masks(nodes: Sequence[Node], node: Node) -> bool:
    """Whether it is a product by 0 or 1, which is a choice that keeps a NaN."""
    return node[0] == "mul" and any(nodes[n] in (("const", 0), ("const", 1)) for n in node[1:])


def _first_difference(source: Array, target: Array, batch: Points, site: RuleInstanceProgram) -> dict[str, object]:
    """The first point at which one side is finite and the other is not, or the infinities differ."""
    same = np.where(np.isfinite(source), np.isfinite(target), (source == target) | np.isnan(source) & np.isnan(target))
    there = np.flatnonzero(~same)
    if not there.size:
        return {}
    at = int(there[0])
    sides = {"source": plain(source[at]), "target": plain(target[at])}
    return {"what": "specials", **sides, **site.point_data(batch, at), "by": "ONNX Runtime"}
