"""A graph of one operator application, to be timed."""

from __future__ import annotations

import numpy as np

from superopt.cost.measurement_request import Question
from superopt.ir.graph import Graph, Node, Value, Weight, constant
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.record import NotCovered

__all__ = ["application_graph"]

_OPSET = 21  # of a trial, unless the operator is younger


def application_graph(question: Question) -> Graph:
    """A graph of one application: constant arguments become weights, which the runtime may pack ahead of time.

    Raises:
        NotCovered: the operator cannot be written as an ONNX node, or a type is not static.
    """
    op, attributes, arg_types, fixed = question.op, question.attributes, question.args, question.fixed
    if op not in REGISTRY:
        raise NotCovered(f"superopt has no operator {op}")
    if not all(t is None or t.is_static for t in (*arg_types, *question.outs)):
        raise NotCovered(f"the sizes of {op}'s arguments are not known")
    operator = REGISTRY[op]
    opset = max(_OPSET, operator.since)
    form = operator.write(attributes, arg_types, opset)
    given = [None if t is None else f"{'w' if fixed[i] else 'a'}{i}" for i, t in enumerate(arg_types)]
    names = form.names(given, {slot: f"c{slot}" for slot in form.literals})
    weights = [constant(f"c{slot}", array) for slot, array in form.literals.items()]
    inputs: list[Value] = []
    for item in dict.fromkeys(i for i in form.inputs if isinstance(i, int)):
        kind = arg_types[item]
        if kind is not None and fixed[item]:
            weights.append(_weight(op, item, kind))
        elif kind is not None:
            inputs.append(Value(f"a{item}", kind))
    outputs = tuple(Value(f"y{i}", t) for i, t in enumerate(question.outs))
    node = Node("trial", op, names, tuple(v.name for v in outputs), dict(form.attributes), operator.domain)
    opsets = {"": opset} if not operator.domain else {"": opset, operator.domain: 1}
    return Graph("trial", tuple(inputs), outputs, tuple(weights), (node,), opsets)


def _weight(op: str, item: int, kind: TensorType) -> Weight:
    """A constant argument; its elements are drawn when it is timed, unless they decide how long that takes."""
    if (op, item) == ("Pow", 1) and kind.dtype.is_float:
        # A square, as nearly every power in a model is one: 23 µs where ONNX Runtime takes 287 for a power of 0.7.
        return constant(f"w{item}", np.full(tuple(int(str(d)) for d in kind.shape or ()), 2, kind.dtype.numpy))
    return Weight(f"w{item}", kind, None)
