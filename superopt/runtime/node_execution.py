"""Nodes that ONNX Runtime runs for superopt: barriers one at a time, computed constants as one model."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from superopt.formats.onnx_writer import to_onnx_bytes
from superopt.ir.errors import InvalidModel, ResourceLimit, Unsupported, UsageError
from superopt.ir.graph import Graph, Node, Value, Weight, label
from superopt.ir.types import DType, TensorType, ValueType
from superopt.runtime.onnx_runtime import InferenceSession, make_session
from superopt.runtime.onnx_runtime import run as run_session
from superopt.runtime.resource_limits import refuse_unbounded

__all__ = ["run_constants", "run_node"]


# -- Barriers ------------------------------------------------------------------------------------------------------
#
# A node without a record runs alone, at its own element types.


INSIDE = 2**20  # bytes of a constant that is put into the one-node model (some operators demand constants)
_LONGEST_NODE = 15.0  # seconds
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
        return run_session(session, {v.name: arrays[v.name] for v in model.inputs}, time_limit=_LONGEST_NODE)
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


# -- Computed constants --------------------------------------------------------------------------------------------
#
# The nodes run as one unoptimised model, as they stand in the model that they come from. Where ONNX Runtime has no
# kernel for a type, it computes chains of float16 operators in float32 and rounds at the end of the chain, so a node
# that runs alone would be rounded more often.


_LONGEST_RUN = 60.0  # seconds: as long as a search takes by itself; what takes longer is left to the runtime


def run_constants(
    graph: Graph, nodes: Sequence[Node], weights: Sequence[Weight], wanted: Mapping[str, TensorType]
) -> dict[str, np.ndarray]:
    """What nodes make of weights, bit for bit as the model would.

    Args:
        graph: the model; its opset and functions count.
        nodes: in order; they read ``weights`` and each other, nothing else.
        weights: with elements. Small ones stay constants (some operators demand it), larger ones are fed.
        wanted: values to return, with the types that they must have.

    Raises:
        Unsupported: ONNX Runtime cannot run a node.
        InvalidModel: it refuses a node, or makes a value of another type.
        ResourceLimit: it takes too much memory or time.
    """
    inside = tuple(w for w in weights if (w.type.nbytes or 0) <= INSIDE)
    fed = [w for w in weights if (w.type.nbytes or 0) > INSIDE]
    keys = ["onnx.model", *(f"onnx.node:{o}" for n in nodes for o in n.outputs if o)]
    model = replace(
        graph, name="constants", inputs=tuple(Value(w.name, w.type) for w in fed),
        outputs=tuple(Value(n, t) for n, t in wanted.items()), weights=inside, nodes=tuple(nodes), values=(), doc="",
        metadata={}, extras={k: graph.extras[k] for k in keys if k in graph.extras},
    )  # fmt: skip
    refuse_unbounded(model)
    session = make_session(to_onnx_bytes(model), optimise=False)
    feeds = {w.name: np.asarray(w.data.numpy()) for w in fed if w.data is not None}
    try:
        found = run_session(session, feeds, list(wanted), time_limit=_LONGEST_RUN)
    except MemoryError as error:
        raise ResourceLimit("evaluating constants ran out of memory") from error
    return {n: np.array(a) for n, a in found.items()}
