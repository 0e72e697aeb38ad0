"""A witness that knows nothing of the meanings: both sides of a rule, run by ONNX Runtime on random inputs.

A proof is only as good as the meanings it reads. If a meaning is wrong (by mistake, or planted), a false rule may be
proved from it; the two sides then differ where the operators really run, and the rule does not get in.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph, Node, Value, Weight, constant
from superopt.ir.size_polynomial import value_at
from superopt.ir.terms import OperatorTerm, OutputTerm, Term, VariableTerm, postorder
from superopt.ir.types import DType, TensorType
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.rules.rule import Rule
from superopt.rules.scanner import RuleError
from superopt.rules.typing import applied_leads, complete, instances, operator_of, type_terms, types_of
from superopt.verifier.exact.sampling import draw
from superopt.verifier.exact.testing import ExactTrial, trial_at

__all__ = ["runtime_disagrees", "side_graph"]

_OPSETS = (21, 23, 18)  # the first at which every operator of the rule can be written and run
_POINTS = 3
_APART = 1e-2  # relative to the largest element: far above rounding in float32


def runtime_disagrees(rule: Rule, *, seed: int = 0) -> str:
    """Why ONNX Runtime contradicts a rule; empty when it does not, or cannot run the rule's operators.

    It contradicts where the sides differ by more than rounding at each of three random choices of sizes, with one
    leading axis or with as many as the rule is applied to.
    """
    for lead in dict.fromkeys((1, max(applied_leads(rule)))) if rule.lead else (0,):
        found = _disagrees(rule, lead, np.random.default_rng([seed, 31]))
        if found:
            return found
    return ""


def _disagrees(rule: Rule, lead: int, rng: np.random.Generator) -> str:
    different = points = 0
    found = ""
    try:
        ranks = instances(rule, (lead,), strict=False)
        conditions = types_of(ranks[0]).lhs_obligations
    except (RuleError, IllTypedOperator):
        return ""
    for attempt in range(3 * _POINTS):
        if points == _POINTS or different < points:
            break
        point = draw(ranks[0], lead, rng, conditions, 3 + attempt % 3)
        trial = None if point is None else trial_at(ranks[0], point)
        if trial is None or trial.ill_typed:
            continue
        sides = _run_both(trial, rng)
        if sides is None:
            return ""
        points += 1
        gap = _gap(*sides)
        if gap > _APART:
            different += 1
            found = f"at {dict(trial.point.sizes)} by {gap:.2g} of the largest element"
    if points == _POINTS and different == points:
        return f"ONNX Runtime computes different results for the two sides, {found}: a meaning is wrong"
    return ""


def _gap(left: list[np.ndarray], right: list[np.ndarray]) -> float:
    """The largest difference relative to the largest element; 0 for shapes that are equal and elements not finite."""
    worst = 0.0
    for a, b in zip(left, right, strict=True):
        if a.shape != b.shape:
            return np.inf
        x, y = a.astype(np.float64), b.astype(np.float64)
        usable = np.isfinite(x) & np.isfinite(y)
        if usable.any():
            scale = 1e-3 + float(np.abs(x[usable]).max())
            worst = max(worst, float(np.abs(x - y)[usable].max()) / scale)
    return worst


def _run_both(trial: ExactTrial, rng: np.random.Generator) -> tuple[list[np.ndarray], list[np.ndarray]] | None:
    """The outputs of both sides, or ``None`` where ONNX Runtime does not have an operator."""
    from superopt.formats import to_onnx_bytes
    from superopt.runtime.onnx_runtime import make_session, run

    feeds: dict[str, np.ndarray] = {}
    for name, kind in trial.variables.items():
        shape = tuple(value_at(d, {}) for d in kind.shape or ())
        if kind.dtype == DType.FLOAT32:
            feeds[name] = np.asarray(rng.uniform(-1.5, 2.5, shape), np.float32)
        else:
            feeds[name] = np.asarray(rng.integers(0, trial.below[name], shape), kind.dtype.numpy)
    for opset in _OPSETS:
        results: list[list[np.ndarray]] = []
        try:
            for side in (trial.lhs, trial.rhs):
                graph = side_graph(side, trial.variables, opset)
                session = make_session(to_onnx_bytes(graph), threads=1, optimise=False)
                given_arrays = {i.name: feeds[i.name] for i in graph.inputs}
                arrays = run(session, given_arrays)
                results.append([np.asarray(arrays[o.name]) for o in graph.outputs])
        except (UnsupportedNodeForm, SuperoptError):
            continue
        return results[0], results[1]
    return None


def side_graph(roots: tuple[Term, ...], variables: Mapping[str, TensorType], opset: int) -> Graph:
    """A side of a rule at given sizes as a model.

    Raises:
        UnsupportedNodeForm: an operator cannot be written at this opset.
    """
    types, _ = type_terms(roots, variables)
    names: dict[Term, str] = {}
    outputs: dict[OperatorTerm, tuple[str, ...]] = {}
    nodes: list[Node] = []
    weights: list[Weight] = []
    for term in postorder(*roots):
        if isinstance(term, VariableTerm):
            names[term] = term.name
        elif isinstance(term, OutputTerm):
            names[term] = outputs[term.term][term.index]
        else:
            record = operator_of(term)
            kinds = [None if a is None else types[a][0] for a in term.args]
            form = record.write(complete(term), kinds, opset)
            label = f"n{len(nodes)}"
            literals = {position: f"{label}_c{position}" for position in form.literals}
            weights += [constant(literals[position], array) for position, array in form.literals.items()]
            inputs = form.names([None if a is None else names[a] for a in term.args], literals)
            outputs[term] = tuple(f"{label}_{i}" for i in range(len(types[term])))
            names[term] = outputs[term][0]
            nodes.append(Node(label, record.name, inputs, outputs[term], dict(form.attributes), record.domain))
    results: list[Value] = []
    for position, root in enumerate(roots):
        nodes.append(Node(f"r{position}", "Identity", (names[root],), (f"y{position}",)))
        results.append(Value(f"y{position}", types[root][0]))
    inputs_ = tuple(Value(n, t) for n, t in variables.items())
    return Graph("rule", inputs_, tuple(results), tuple(weights), tuple(nodes), {"": opset}).checked()
