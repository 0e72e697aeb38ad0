"""Models without the elements of their big weights: what ONNX Runtime makes of them is the same, and soon known.

Which kernels run, in which order, and what their results measure does not depend on the elements of large weights of
real numbers; writing and reading them takes seconds and gigabytes. A hollow model's lie in a sparse file, of which
ONNX Runtime maps pages that were never written; a mark at the beginning of each tells them apart, since ONNX Runtime
may keep one of equal weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from superopt import formats
from superopt.cost.trial import emptied, with_values
from superopt.formats.onnx_reader import shapes_alone
from superopt.formats.onnx_writer import save_with_external
from superopt.formats.tensors import SparseData, expected_bytes
from superopt.ir.graph import Graph, OpaqueAttribute, Weight
from superopt.ir.temporary import TemporaryFolder
from superopt.ir.types import DType
from superopt.runtime.limits import bounded_memory, give_back
from superopt.runtime.onnx_runtime import InferenceSession, make_session
from superopt.runtime.unsafe_models import refuse_fatal_loading

__all__ = ["discarded", "hollow_file", "hollow_lowered", "hollow_session"]

_BIG = 1 << 16  # bytes of a weight that is written no more: such are never a shape, an axis or a bound
_PAGE = 4096  # so that ONNX Runtime maps the weights
_WIDEST = 8  # bytes of an element, of whatever type the runtime makes of it
_REAL = {DType.FLOAT32, DType.FLOAT64, DType.FLOAT16}


def hollow_lowered(graph: Graph) -> Graph:
    """The graph that ONNX Runtime would really run, its big weights of real numbers without elements.

    Raises:
        InvalidModel, Unsupported: it refuses the graph. ResourceLimit: there is not memory enough for it.
    """
    with hollow_file(graph) as model, bounded_memory():
        refuse_fatal_loading(graph, model)
        made = model.with_name("lowered.onnx")
        make_session(model, threads=1, save_optimised=made, shared={}, discard=discarded(graph))
        give_back()
        return formats.from_bytes(shapes_alone(made.read_bytes()))


def hollow_session(graph: Graph) -> InferenceSession:
    """A session that runs the nodes of a graph as they are, on whatever its big weights are taken to be.

    Raises:
        InvalidModel, Unsupported, ResourceLimit: as :func:`hollow_lowered`.
    """
    with hollow_file(graph) as model, bounded_memory():
        refuse_fatal_loading(graph, model)
        return make_session(model, threads=1, optimise=False, shared={})


@contextmanager
def hollow_file(graph: Graph) -> Iterator[Path]:
    """A file of the model, and beside it one as long as its big weights of which hardly a page is written."""
    graph = with_values(replace(graph, weights=tuple(emptied(w) if _is_big(w) else w for w in graph.weights)))
    with TemporaryFolder("hollow") as folder:
        path = folder / "model.onnx"
        places: dict[str, tuple[str, int, int]] = {}
        end = 0
        with path.with_name("weights").open("wb") as file:
            for number, weight in enumerate(filter(_is_big, graph.weights), 1):
                size = expected_bytes(weight.type)
                places[weight.name] = "weights", end, size
                file.seek(end)
                file.write(np.full(8, number, weight.type.dtype.numpy).tobytes())
                end = -(-(end + size) // _PAGE) * _PAGE
            file.truncate(end)
        save_with_external(graph, path, places)
        yield path


def discarded(graph: Graph) -> int | None:
    """Bytes from which the weights of what is run are not read, ``None`` where all are.

    Elements of some weights matter (positions, masks): what is as large as these, in the widest type, is read.
    """
    if any(v.name in graph.weight for v in graph.inputs):  # such weights are not found in the result,
        return None
    if any(isinstance(a, OpaqueAttribute) for n in graph.nodes for a in n.attributes.values()):  # nor are subgraphs'
        return None
    counts = (w.type.elements for w in graph.weights if w.type.dtype not in _REAL and (w.type.nbytes or 0) >= _BIG)
    most = max((n for n in counts if isinstance(n, int)), default=0)
    return _WIDEST * most + 1 if most else _BIG


def _is_big(weight: Weight) -> bool:
    known = weight.type.dtype in _REAL and not isinstance(weight.data, SparseData)
    return known and expected_bytes(weight.type) >= _BIG
