"""Weights that were computed from other weights, replaced by the nodes that compute them, so that proofs see them.

superopt leaves a note of each fold (``superopt.value``). Other tools leave none, so the fold is guessed
(:mod:`superopt.verifier.equivalence.folding_hypotheses`). Neither is trusted. The expression is evaluated in high
precision from the *first* model's constants, as ONNX Runtime computes those. The nodes replace the second model's
weight only if every element is within :data:`~superopt.verifier.equivalence.weight_expressions.LIMIT` ulp of it. A
proof of them then holds for the weight up to that rounding, which is reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph, Node, Weight
from superopt.ir.terms import AttributeValue, OperatorTerm, OutputTerm, Term, VariableTerm, postorder
from superopt.ops import REGISTRY
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.verifier.equivalence.folding_hypotheses import FoldHypotheses
from superopt.verifier.equivalence.runtime_folded_constants import JUMPS, ModelConstants, contents_of
from superopt.verifier.equivalence.weight_expressions import LIMIT, deviation, evaluated, sources, written

__all__ = ["NOTE", "UnfoldedModel", "unfolded"]

NOTE = "superopt.value"
_MOST_STEPS = 200
_MOVES = frozenset({"Constant", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_ROUND_ONCE = frozenset({"Add", "Div", "Mul", "Reciprocal", "Sqrt", "Sub"})  # correctly, by IEEE 754
_FAILS = (SuperoptError, IllTypedOperator, UnsupportedNodeForm, ArithmeticError, TypeError, ValueError, LookupError)


@dataclass(frozen=True)
class UnfoldedModel:
    """The second model with weights put back as nodes.

    Attributes:
        graph: the model.
        values: names of what the nodes that were put back compute; the weights' own names are among them.
        ulps: by weight, how far its elements are from the expression, in units in the last place.
        refused: weights whose note does not hold, and why.
    """

    graph: Graph
    values: frozenset[str]
    ulps: Mapping[str, float]
    refused: Mapping[str, str]


class _Refused(Exception):
    """The note does not hold."""


def unfolded(known: ModelConstants, b: Graph, theirs: frozenset[str]) -> UnfoldedModel:
    """``b`` with every weight that the first model's constants explain replaced by the nodes that compute it.

    Args:
        known: the first model's constants.
        b: the second model.
        theirs: contents of the first model's constants; a weight that is one of them stays.
    """
    nodes: list[Node] = []
    added: dict[str, Weight] = {}
    ulps: dict[str, float] = {}
    refused: dict[str, str] = {}
    fed = {v.name for v in b.inputs}
    opset = b.opset.get("", 1)
    folds = FoldHypotheses(known)
    for weight in b.weights:
        if weight.data is None or weight.name in fed:
            continue
        if contents_of(weight) in theirs:
            continue
        found = _from_note(weight, known, refused)
        if found is None:
            array = np.asarray(weight.data.numpy())
            guessed = _explained(weight, array, folds.guesses(array, weight.type.dtype), known)
            found = None if isinstance(guessed, str) else guessed
        if found is None:
            continue
        try:
            new_nodes, extra = written(found[0], weight.name, known.weights, opset)
        except _FAILS:
            continue  # an operator that the model's opset does not have
        nodes += new_nodes
        added.update((w.name, w) for w in extra)
        ulps[weight.name] = found[1]
    weights = (*(w for w in b.weights if w.name not in ulps), *added.values())
    graph = replace(b, nodes=(*nodes, *b.nodes), weights=weights).checked() if nodes else b
    return UnfoldedModel(graph, frozenset(o for n in nodes for o in n.outputs if o), ulps, refused)


def _from_note(weight: Weight, known_constants: ModelConstants, refused: dict[str, str]) -> tuple[Term, float] | None:
    """What a weight's note says it is, and how far it is from that; why the note does not hold goes to ``refused``."""
    if NOTE not in weight.metadata or weight.data is None:
        return None
    try:
        found = _explained(
            weight, np.asarray(weight.data.numpy()), [_parsed(weight.metadata[NOTE], known_constants)], known_constants
        )
    except _Refused as error:
        found = str(error)
    if isinstance(found, str):
        refused[weight.name] = found
        return None
    return found


def _explained(
    weight: Weight, array: np.ndarray, terms: Iterable[Term], known_constants: ModelConstants
) -> tuple[Term, float] | str:  # fmt: skip
    """The first expression that a weight is within the limit of, and how far it is; else why the last one is not it."""
    reason = "nothing in the first model explains it"
    for term in terms:
        missing = [n for n in sources(term) if n not in known_constants.weights]
        if missing:
            reason = f"it was computed from {missing[0]}, which is no constant of the first model"
            continue
        try:
            distance = deviation(array, weight.type.dtype, evaluated(term, known_constants.arrays))
        except _FAILS as error:
            reason = str(error)
            continue
        if distance <= _limit(term):
            return term, distance
        reason = "its elements are not what that computes"
    return reason


def _limit(term: Term) -> float:
    """Ulps that an expression explains: whoever computed it by one operation rounded once, whatever the formula."""
    steps = [t.op for t in postorder(term) if isinstance(t, OperatorTerm) and t.op not in _MOVES]
    return 1.0 if len(steps) == 1 and steps[0] in _ROUND_ONCE else LIMIT


def _parsed(text: str, known_constants: ModelConstants) -> Term:
    """The expression that a note states. Results that it says are the runtime's are the first model's constants.

    Raises:
        _Refused: it cannot be read, or goes through an operator that jumps, where only the runtime's value counts.
    """
    terms: dict[str, Term] = {}
    try:
        data = json.loads(text)
        steps = list(data["steps"])
        if not steps or len(steps) > _MOST_STEPS or any(str(s[0]) not in REGISTRY for s in steps):
            raise _Refused("its note has an unknown operator or too many steps")
        settled = {str(n) for n in data.get("runtime", ())} & set(known_constants.weights)
        for op, args, attributes, outputs in steps:
            app = OperatorTerm(
                str(op),
                tuple(None if x is None else terms.get(str(x), VariableTerm(str(x))) for x in args),
                tuple(sorted((str(k), _value(v)) for k, v in attributes.items())),
            )
            several = len(REGISTRY[app.op].outputs) > 1 or REGISTRY[app.op].outputs[0].endswith("*")
            for position, output in enumerate(map(str, outputs)):
                terms[output] = (
                    VariableTerm(output) if output in settled else OutputTerm(app, position) if several else app
                )
        term = terms[str(data["output"])]
        if jumping := sorted({t.op for t in postorder(term) if isinstance(t, OperatorTerm)} & JUMPS):
            raise _Refused(f"its note goes through {jumping[0]}, which jumps")
        return term
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _Refused(f"its note cannot be read: {error}") from error


def _value(value: object) -> AttributeValue:
    if isinstance(value, list):
        return tuple(_value(v) for v in value)
    if isinstance(value, int | float | str):
        return value
    raise TypeError(f"{value!r} is not an attribute")
