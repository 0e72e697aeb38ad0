"""Nodes that superopt does not read, run one at a time by ONNX Runtime at their own element types."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from superopt.formats.onnx_writer import to_onnx_bytes
from superopt.ir.errors import InvalidModel, ResourceLimit, Unsupported, UsageError
from superopt.ir.graph import Graph, Node, Value, label
from superopt.ir.types import DType, TensorType, ValueType
from superopt.runtime.ort import InferenceSession, make_session
from superopt.runtime.ort import run as run_session

__all__ = ["run_node"]

INSIDE = 2**20  # bytes of a constant that is put into the one-node model (some operators demand constants)
_LONGEST_RUN = 15.0  # seconds
KEPT = 64  # sessions kept

_sessions: OrderedDict[str, InferenceSession] = OrderedDict()


def run_node(
    graph: Graph, node: Node, arrays: Mapping[str, np.ndarray], types: Mapping[str, ValueType | None]
) -> dict[str, np.ndarray]:
    """Run one node of a graph.

    Args:
        graph: where the node's opset, local functions and constants come from.
        node: the node.
        arrays: what it reads (captures of its subgraphs included), at the declared element types.
        types: what is known of types; arrays speak for themselves.

    Raises:
        Unsupported: ONNX Runtime cannot run it; names the node.
        ResourceLimit: it does not fit in memory.
    """
    model = one_node(graph, node, arrays, types)
    try:
        session = _session(to_onnx_bytes(model))
        return run_session(session, {v.name: arrays[v.name] for v in model.inputs}, time_limit=_LONGEST_RUN)
    except ResourceLimit as error:
        raise error.within(label(node)) from error
    except (InvalidModel, UsageError, Unsupported) as error:
        raise Unsupported(
            f"the reference cannot run it: {error.what}", where=label(node), hint="superopt does not read this operator"
        ) from error


def one_node(
    graph: Graph, node: Node, arrays: Mapping[str, np.ndarray], types: Mapping[str, ValueType | None]
) -> Graph:
    """The graph of just this node: its small constants stay constants, all else that it reads is an input."""
    reads = list(dict.fromkeys(node.reads))
    weights = [
        w for n in reads if (w := graph.constants.get(n)) and w.data is not None and (w.type.nbytes or 0) <= INSIDE
    ]
    inside = {w.name for w in weights}
    inputs = tuple(Value(n, _type(n, arrays[n], types)) for n in reads if n not in inside)
    outputs = tuple(Value(n, _loose(types.get(n))) for n in node.outputs if n)
    keys = ["onnx.model", *(f"onnx.node:{o}" for o in node.outputs if o)]
    extras = {k: graph.extras[k] for k in keys if k in graph.extras}
    return replace(
        graph, name="node", inputs=inputs, outputs=outputs, weights=tuple(weights), nodes=(node,), values=(), doc="",
        metadata={}, extras=extras,
    )  # fmt: skip


def _type(name: str, array: np.ndarray, types: Mapping[str, ValueType | None]) -> ValueType | None:
    known = types.get(name)
    if known is not None and not isinstance(known, TensorType):
        return known
    dtype = known.dtype if isinstance(known, TensorType) else DType.of(array.dtype)
    return TensorType(dtype, tuple(map(int, array.shape)))


def _loose(kind: ValueType | None) -> ValueType | None:
    """An output's type without its shape, which the run decides."""
    return TensorType(kind.dtype, None) if isinstance(kind, TensorType) else kind


def _session(model: bytes) -> InferenceSession:
    key = hashlib.sha256(model).hexdigest()
    session = _sessions.pop(key, None)
    if session is None:
        session = make_session(model, optimise=False)
    _sessions[key] = session
    if len(_sessions) > KEPT:
        _sessions.popitem(last=False)
    return session
