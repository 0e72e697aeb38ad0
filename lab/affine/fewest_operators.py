"""Whether fewer operators can do what a composition does: weights solved for in a prime field."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lab.affine.affine_compositions import SMALL, Composition, LinearOperatorForm, alone
from superopt.discovery.weight_equations import (
    SampledProblemInstance,
    TermEvaluator,
    WeightsNotSolved,
    required_weights,
)
from superopt.ir.graph import Graph
from superopt.ir.terms import OperatorTerm, Term, VariableTerm
from superopt.ir.types import TensorType
from superopt.ops.shape_inference import infer
from superopt.program.graph_program import GraphProgram, program_of
from superopt.verifier.exact.algebra import PrimeField
from superopt.verifier.exact.sampling import SizeSample

__all__ = ["fewest_operators"]

_SEED = 55


def fewest_operators(composition: Composition) -> int:
    """Of the operator alone, with its bias or one constant added, and the composition itself: the fewest that do."""
    left, kinds, weights = _term(composition.graph(SMALL), "w")
    rng = np.random.default_rng(_SEED)
    algebra = PrimeField(_SEED)
    values = {n: algebra.random(rng, _shape(kinds[n])) for n in weights}
    known = TermEvaluator(left, kinds, SampledProblemInstance(SizeSample({}, {}), values, algebra), rng)
    for count, graph in _candidates(composition.form):
        if count >= composition.operators:
            break
        right, types, holes = _term(graph, "?")
        if _soluble(known, right, {n: types[n] for n in holes}, rng):
            return count
    return composition.operators


def _candidates(form: LinearOperatorForm) -> list[tuple[int, Graph]]:
    plain = {k: v for k, v in form.attributes.items() if k not in ("alpha", "beta")}
    if form.operator == "AveragePool":
        return [(1, _as_depthwise(form))]
    own = replace(form, attributes=plain, biased=form.operator != "MatMul")
    found = [(1, alone(own, SMALL, False))]
    if form.operator == "MatMul":
        found.append((2, alone(own, SMALL, True)))
    return found


def _as_depthwise(form: LinearOperatorForm) -> Graph:
    """A convolution with a window of its own for each channel, where the pool's window is."""
    attributes = {k: v for k, v in form.attributes.items() if k in ("strides", "pads")}
    conv = LinearOperatorForm("", "Conv", {**attributes, "group": 0}, form.spatial, biased=True, window=form.window)
    return alone(conv, SMALL, False)


def _soluble(known: TermEvaluator, right: Term, holes: dict[str, TensorType], rng: np.random.Generator) -> bool:
    try:
        return required_weights(known, right, holes, rng) is not None
    except WeightsNotSolved as reason:
        if "depends on each other" in str(reason):  # there are weights, of which more than one choice is one
            return True
        raise


def _shape(kind: TensorType) -> tuple[int, ...]:
    return tuple(d for d in kind.shape or () if isinstance(d, int))


def _term(graph: Graph, prefix: str) -> tuple[Term, dict[str, TensorType], list[str]]:
    """The graph's result as a term, types of its leaves, and the leaves that are weights."""
    program: GraphProgram = program_of(graph, infer(graph))
    made: dict[str, Term] = {}
    kinds: dict[str, TensorType] = {}
    weights: list[str] = []
    for value in graph.inputs:
        made[value.name], kinds["x"] = VariableTerm("x"), program.types[value.name]
    for weight in program.graph.weights:
        own = f"{prefix}{len(weights)}"
        made[weight.name], kinds[own] = VariableTerm(own), program.types[weight.name]
        weights.append(own)
    for step in program.steps:
        args = tuple(None if a is None else made[a] for a in step.args)
        made[step.outputs[0]] = OperatorTerm(step.op, args, tuple(step.attributes))
    return made[graph.outputs[0].name], kinds, weights
