"""Constants of a model as ONNX Runtime computes them: node by node, in the nodes' own element types, nothing optimised.

The nodes run as one model, as they stand in the model that they come from. That matters where ONNX Runtime has no
kernel for a type: it computes chains of float16 operators in float32 and rounds where the chain ends, and a node run
alone would be rounded more often.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from superopt.formats.onnx_writer import to_onnx_bytes
from superopt.ir.errors import ResourceLimit
from superopt.ir.graph import Graph, Node, Value, Weight
from superopt.ir.types import TensorType
from superopt.runtime._barrier import INSIDE
from superopt.runtime.limits import refuse_unbounded
from superopt.runtime.ort import make_session
from superopt.runtime.ort import run as run_session

__all__ = ["run_constants"]

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
