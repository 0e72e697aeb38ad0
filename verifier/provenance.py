"""Weights that were computed from others: put back as the nodes that compute them, so that proofs see through them.

The optimiser folds ``Mul(w, s)`` to numbers and leaves a note of how (``superopt.value``). The note is not believed:
it is evaluated from the *first* model's weights, and only where that gives the second model's weight, within rounding,
do the nodes take the weight's place. What is then proved of them holds for the weight up to that rounding.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph, Node, Weight, constant
from superopt.ir.terms import AttributeValue
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.meaning import IllTyped
from superopt.ops.record import NotCovered
from superopt.runtime.reference import at_dtype, evaluate_application

__all__ = ["NOTE", "Unfolded", "unfolded"]

NOTE = "superopt.value"
_MOST_STEPS = 200
_ULPS = 4.0  # units in the last place of the weight's largest element: it was rounded once


@dataclass(frozen=True)
class Unfolded:
    """The second model with weights put back as nodes.

    Attributes:
        graph: the model.
        nodes: names of the nodes that compute weights.
        values: names of what they compute.
        refused: weights whose note does not hold, and why.
    """

    graph: Graph
    nodes: frozenset[str]
    values: frozenset[str]
    refused: Mapping[str, str]


@dataclass(frozen=True)
class _Step:
    op: str
    args: tuple[str | None, ...]
    attributes: Mapping[str, AttributeValue]
    outputs: tuple[str, ...]


class _Refused(Exception):
    """The note does not hold."""


def unfolded(a: Graph, b: Graph) -> Unfolded:
    """``b`` with every weight that a note truly explains by ``a``'s weights replaced by the nodes that compute it."""
    nodes: list[Node] = []
    added: dict[str, Weight] = {}
    replaced: set[str] = set()
    refused: dict[str, str] = {}
    fed = {v.name for v in b.inputs}
    opset = b.opset.get("", 1)
    for weight in b.weights:
        if NOTE not in weight.metadata or weight.data is None or weight.name in fed:
            continue
        try:
            made, extra = _explained(weight, a, opset)
        except (_Refused, SuperoptError, IllTyped, NotCovered, ArithmeticError, TypeError, KeyError) as error:
            refused[weight.name] = str(error)
            continue
        nodes += made
        added.update((w.name, w) for w in extra)
        replaced.add(weight.name)
    weights = (*(w for w in b.weights if w.name not in replaced), *added.values())
    graph = replace(b, nodes=(*nodes, *b.nodes), weights=weights).checked() if nodes else b
    return Unfolded(
        graph, frozenset(n.name for n in nodes), frozenset(o for n in nodes for o in n.outputs if o), refused
    )


def _explained(weight: Weight, a: Graph, opset: int) -> tuple[list[Node], list[Weight]]:
    steps, output = _parsed(weight.metadata[NOTE])
    computed = {o for s in steps for o in s.outputs if o}
    sources: dict[str, Weight] = {}
    for name in dict.fromkeys(x for s in steps for x in s.args if x is not None and x not in computed):
        source = a.constants.get(name)
        if source is None or source.data is None:
            raise _Refused(f"it was computed from {name}, which is no weight of the first model")
        sources[name] = source
    values: dict[str, np.ndarray] = {}
    types: dict[str, TensorType] = {n: w.type for n, w in sources.items()}
    label = {n: f"{weight.name}/original/{n}" for n in sources}
    label |= {n: weight.name if n == output else f"{weight.name}/{n}" for n in computed}
    extra = [replace(w, name=label[n], metadata={}) for n, w in sources.items()]
    nodes: list[Node] = []
    for number, step in enumerate(steps):
        operator = REGISTRY[step.op]
        kinds = [None if x is None else types[x] for x in step.args]
        operands = [None if x is None else values.get(x, _elements(sources, x)) for x in step.args]
        results = evaluate_application(operator, step.attributes, operands, kinds, cast=False)
        _, outputs = operator.apply(kinds, step.attributes)
        for name, result, kind in zip(step.outputs, results, outputs, strict=False):
            if name and result is not None:
                values[name], types[name] = result, kind
        form = operator.write(step.attributes, kinds, opset)
        literals = {place: f"{weight.name}/{number}/{place}" for place in form.literals}
        extra += [constant(literals[place], array) for place, array in form.literals.items()]
        inputs = form.names([None if x is None else label[x] for x in step.args], literals)
        names = tuple(label[o] if o else "" for o in step.outputs)
        node = f"{weight.name}/step{number}"
        nodes.append(Node(node, operator.name, inputs, names, dict(form.attributes), operator.domain))
    if output not in values:
        raise _Refused("its note does not compute it")
    _same_numbers(weight, values[output])
    return nodes, extra


def _elements(sources: Mapping[str, Weight], name: str) -> np.ndarray | None:
    if name not in sources:
        return None
    data = sources[name].data
    assert data is not None
    return np.asarray(data.numpy())


def _same_numbers(weight: Weight, value: np.ndarray) -> None:
    """Refuse unless the weight is the value, rounded."""
    assert weight.data is not None
    stored = np.asarray(weight.data.numpy())
    with np.errstate(over="ignore"):
        rounded = at_dtype(value, weight.type.dtype)
    if stored.shape != rounded.shape:
        raise _Refused(f"its note gives the shape {list(rounded.shape)}, not {list(stored.shape)}")
    x, y = stored.astype(np.float64), rounded.astype(np.float64)
    if weight.type.dtype.is_float and x.size and np.isfinite(x).all():
        precision = {2: 7 if "bfloat" in str(weight.type.dtype) else 10, 4: 23, 8: 52}.get(stored.dtype.itemsize, 3)
        tolerance = _ULPS * float(np.abs(x).max()) * 2.0**-precision
        agree = bool((np.abs(x - y) <= tolerance).all())
    else:
        agree = bool(np.array_equal(x, y, equal_nan=True))
    if not agree:
        raise _Refused("its elements are not what its note computes")


def _parsed(text: str) -> tuple[list[_Step], str]:
    try:
        data = json.loads(text)
        steps = [
            _Step(str(op), tuple(None if x is None else str(x) for x in args),
                  {str(k): _value(v) for k, v in attributes.items()}, tuple(map(str, outputs)))
            for op, args, attributes, outputs in data["steps"]
        ]  # fmt: skip
        output = str(data["output"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _Refused(f"its note cannot be read: {error}") from error
    if not steps or len(steps) > _MOST_STEPS or any(s.op not in REGISTRY for s in steps):
        raise _Refused("its note has an unknown operator or too many steps")
    return steps, output


def _value(value: object) -> AttributeValue:
    if isinstance(value, list):
        return tuple(_value(v) for v in value)
    if isinstance(value, int | float | str):
        return value
    raise TypeError(f"{value!r} is not an attribute")
