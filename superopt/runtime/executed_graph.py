"""The graph that a runtime really runs, after its own fusions, folding and layout changes (ONNX Runtime exports it).

Which kernels run, in which order, and what their results measure does not depend on the elements of large real weights,
but writing and reading them takes seconds and gigabytes. A *weightless* model keeps them in a sparse file, of which
ONNX Runtime maps pages that were never written. A mark at the beginning of each weight makes them differ, since ONNX
Runtime may keep one of equal weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from superopt import formats
from superopt.formats.onnx_reader import shapes_alone
from superopt.formats.onnx_writer import save_with_external
from superopt.formats.weight_data import RandomWeightData, SparseWeightData, end_elements, expected_bytes
from superopt.ir.errors import Unsupported
from superopt.ir.graph import Graph, Node, OpaqueAttribute, Value, Weight
from superopt.ir.size_polynomial import sym
from superopt.ir.temporary_folders import TemporaryFolder
from superopt.ir.types import DType, TensorType
from superopt.ops.shape_inference import infer
from superopt.runtime.crash_isolation import refuse_fatal_loading, risk_of
from superopt.runtime.onnx_runtime import NCHWC, ONNX_RUNTIME, InferenceSession, bind, element_type, make_session, run
from superopt.runtime.protocol import Runtime
from superopt.runtime.resource_limits import bounded_memory, give_back, refuse_unbounded
from superopt.runtime.synthetic_tensors import with_values, without_elements

__all__ = [
    "ExecutedGraphTypes",
    "block_size",
    "discard_threshold",
    "first_of_equals",
    "weightless_file",
    "lowered_without_weights",
    "session_without_weights",
    "run_types",
    "lowered",
    "type_values",
    "without_reorders",
]

_LONGEST_RUN = 60.0  # seconds, on a loaded machine
_ENDS = 64  # elements at both ends of a weight that are compared before all are read


def lowered(graph: Graph, runtime: Runtime = ONNX_RUNTIME) -> Graph:
    """The graph that the runtime would really run: after its own fusions, folding and layout changes.

    Raises:
        InvalidModel, Unsupported: it refuses the graph, or does not hand out what it runs.
        ResourceLimit: it folds constants, and there are some that must not be computed.
    """
    refuse_unbounded(graph)
    with bounded_memory():
        return formats.from_bytes(runtime.lowered(formats.to_onnx_bytes(with_values(graph))))


def first_of_equals(weights: Iterable[Weight]) -> dict[str, str]:
    """For each weight the name of the first equal one, which is the one that ONNX Runtime stores.

    (An LSTM with seven copies of one 4 MiB matrix ran 2.9 times as fast as with seven different ones.)
    """
    alike: dict[TensorType, list[Weight]] = {}
    for weight in weights:
        alike.setdefault(weight.type, []).append(weight)
    found: dict[str, str] = {}
    for group in alike.values():
        first: dict[str, str] = {}
        for weight, mark in zip(group, _marks(group), strict=True):
            found[weight.name] = first.setdefault(mark, weight.name)
    return found


def _marks(weights: Sequence[Weight]) -> Iterator[str]:
    """What equal ones of weights of one type have in common; all elements are read only where those at the ends do not
    tell a weight from the others."""
    ends = [None if w.data is None else end_elements(w.data, _ENDS) for w in weights]
    often = Counter(ends)
    drawn = any(isinstance(w.data, RandomWeightData) for w in weights)  # which may be equal to any other
    for weight, end in zip(weights, ends, strict=True):
        different = len(weights) == 1 or (end is not None and often[end] == 1 and not drawn)
        yield weight.name if weight.data is None or different else weight.data.digest


def without_reorders(graph: Graph) -> Graph:
    """A lowered graph without the layout changes at its edges, which a larger model would not pay here.

    Inputs that go only into ``ReorderInput`` are fed in the blocked layout, outputs made by ``ReorderOutput`` are
    left in it.
    """
    fed = {v.name: v for v in graph.inputs}
    made = {v.name for v in graph.outputs}
    drop: set[int] = set()
    inputs: dict[str, Value] = dict(fed)
    outputs = {v.name: v for v in graph.outputs}
    for position, node in enumerate(graph.nodes):
        if node.domain != NCHWC:
            continue
        source, target = node.inputs[0], node.outputs[0]
        if node.op == "ReorderInput" and source in fed and len(graph.consumers[source]) == 1 and target not in made:
            kind = fed[source].type
            if isinstance(kind, TensorType) and kind.shape is not None and not node.attributes.get("channels_last"):
                del inputs[source]
                inputs[target] = Value(target, _blocked(kind))
                drop.add(position)
        elif node.op == "ReorderOutput" and target in made and target not in graph.consumers and source not in fed:
            outputs[target] = Value(source, None)
            drop.add(position)
    nodes = tuple(n for i, n in enumerate(graph.nodes) if i not in drop)
    kept = {v.name: v for v in outputs.values()}
    return replace(graph, inputs=tuple(inputs.values()), outputs=tuple(kept.values()), nodes=nodes, values=())


def _blocked(kind: TensorType) -> TensorType:
    assert kind.shape is not None
    batch, channels, *space = kind.shape
    block = block_size()
    assert isinstance(channels, int)
    return TensorType(kind.dtype, (batch, -(-channels // block) * block, *space))


@lru_cache(maxsize=1)
def block_size() -> int:
    """Channels in a block of ONNX Runtime's layout here (8 or 16, by the processor), asked of ONNX Runtime itself."""
    kind = TensorType(DType.FLOAT32, (1, 8, 2, 2))
    node = Node("r", "ReorderInput", ("x",), ("y",), {}, NCHWC)
    graph = Graph("block", (Value("x", kind),), (Value("y", None),), (), (node,), {"": 21, NCHWC: 1})
    found = run_types(graph, {"x": np.ones((1, 8, 2, 2), np.float32)})["y"].shape
    return int(str(found[1])) if found else 16


def run_types(graph: Graph, feeds: Mapping[str, np.ndarray]) -> dict[str, TensorType]:
    """The type of every tensor in a lowered graph, found by running it once with all values as outputs.

    Raises:
        InvalidModel, Unsupported: ONNX Runtime cannot run it.
    """
    return dict(type_values(graph, feeds).types)


@dataclass(frozen=True)
class ExecutedGraphTypes:
    """The types of a lowered graph's tensors: in a run, and as ONNX Runtime's own inference has them before it."""

    types: Mapping[str, TensorType]
    beforehand: Mapping[str, TensorType]


def type_values(graph: Graph, feeds: Mapping[str, np.ndarray], *, given: Graph | None = None) -> ExecutedGraphTypes:
    """The types in a run on these inputs, and before it.

    Args:
        graph: a lowered graph.
        feeds: its inputs.
        given: what it was lowered from, at these sizes: the elements of big weights do not matter then, and it is run
            only where neither the runtime's inference nor superopt's has all the types.

    Raises:
        InvalidModel, Unsupported: ONNX Runtime cannot run it.
    """
    names = [o for n in graph.nodes for o in n.outputs if o]
    types = {w.name: w.type for w in graph.weights}
    types.update({n: TensorType(DType.of(a.dtype), tuple(map(int, a.shape))) for n, a in feeds.items()})
    beforehand = {v.name: v.type for v in graph.inputs if isinstance(v.type, TensorType)} | dict(types)
    if not names:
        return ExecutedGraphTypes(types, beforehand)
    named = {
        v.name: v.type for v in graph.values if isinstance(v.type, TensorType) and v.type.shape and not v.type.is_static
    }
    exposed = replace(graph, outputs=tuple(Value(n, named.get(n)) for n in names), values=())
    with bounded_memory():
        if given is not None:
            session = session_without_weights(exposed)
        else:
            session = make_session(formats.to_onnx_bytes(exposed), threads=1, optimise=False)
        told = {o.name: kind for o in session.get_outputs() if (kind := _declared(o.type, o.shape)) is not None}
        beforehand |= told
        if given is not None:
            types |= _inferred(graph, given, names, told)
            if all(n in types for n in names):
                return ExecutedGraphTypes(types, beforehand)
        if given is not None and (risk := risk_of(given)) is not None and risk.fed(feeds):
            raise Unsupported("running it for the types of its values may end the process")
        made = bind(session, feeds, longest=_LONGEST_RUN).outputs()
        arrays = {} if made else run(session, feeds, time_limit=_LONGEST_RUN)  # strings and sequences are not bound
    for place, output in enumerate(session.get_outputs()):
        if made:
            dtype = element_type(made[place].data_type()) if made[place].is_tensor() else None
            sizes = made[place].shape() if made[place].is_tensor() else ()
        else:
            dtype, sizes = element_type(output.type), arrays[output.name].shape
        if dtype is not None:
            types[output.name] = TensorType(dtype, tuple(map(int, sizes)))
    return ExecutedGraphTypes(types, beforehand)


def _inferred(
    graph: Graph, given: Graph, names: Iterable[str], told: Mapping[str, TensorType]
) -> dict[str, TensorType]:
    """The types of values as far as inference has all their sizes: the runtime's, or superopt's, to which what keeps
    its name is known from the graph given."""
    found = {n: told[n] for n in names if n in told and told[n].is_static and told[n].shape}
    if len(found) < len(set(names)):
        own = infer(given).types
        values = tuple(Value(n, found.get(n) or own.get(n)) for n in names)
        typing = infer(replace(graph, values=values)).types
        found |= {n: kind for n in names if (kind := typing.get(n)) is not None and kind.is_static}
    return found


def _declared(element: str, sizes: Sequence[int | str | None]) -> TensorType | None:
    """The type that a session has for an output before a run; a scalar's where not even the rank is known, and ``None``
    where a size is not."""
    dtype = element_type(element)
    if dtype is None or not all(isinstance(d, int) or d for d in sizes):
        return None
    return TensorType(dtype, tuple(d if isinstance(d, int) else sym(str(d)) for d in sizes))


_BIG = 1 << 16  # bytes of a weight that is written no more: such are never a shape, an axis or a bound
_PAGE = 4096  # so that ONNX Runtime maps the weights
_WIDEST = 8  # bytes of an element, of whatever type the runtime makes of it
_REAL = {DType.FLOAT32, DType.FLOAT64, DType.FLOAT16}


def lowered_without_weights(graph: Graph) -> Graph:
    """The graph that ONNX Runtime would really run, its big real weights without elements.

    Raises:
        InvalidModel, Unsupported: it refuses the graph. ResourceLimit: there is not memory enough for it.
    """
    with weightless_file(graph) as model, bounded_memory():
        refuse_fatal_loading(graph, model)
        made = model.with_name("lowered.onnx")
        make_session(model, threads=1, save_optimised=made, shared={}, discard=discard_threshold(graph))
        give_back()
        return formats.from_bytes(shapes_alone(made.read_bytes()))


def session_without_weights(graph: Graph) -> InferenceSession:
    """A session that runs the nodes of a graph unchanged, with arbitrary elements in its big weights.

    Raises:
        InvalidModel, Unsupported, ResourceLimit: as :func:`lowered_without_weights`.
    """
    with weightless_file(graph) as model, bounded_memory():
        refuse_fatal_loading(graph, model)
        return make_session(model, threads=1, optimise=False, shared={})


@contextmanager
def weightless_file(graph: Graph) -> Iterator[Path]:
    """A file of the model, beside a sparse file of its big weights."""
    graph = with_values(replace(graph, weights=tuple(without_elements(w) if _is_big(w) else w for w in graph.weights)))
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


def discard_threshold(graph: Graph) -> int | None:
    """The bytes from which weights of the lowered graph are not read; ``None``: all are read.

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
    known = weight.type.dtype in _REAL and not isinstance(weight.data, SparseWeightData)
    return known and expected_bytes(weight.type) >= _BIG
