"""ModelProto to Graph, without losing anything.

Every part is read into our values and rebuilt from them; where the rebuilt part differs from the file's, the file's
own bytes ride along in ``Graph.extras`` and are written again as long as they still say the same (see
``onnx_writer``). The keys:

    onnx.model          ModelProto without the graph: IR version, producer, functions, training info, devices
    onnx.graph          GraphProto without nodes, weights and values: docs, metadata, quantization annotations, and the
                        full list of inputs where weights are among them only by the rule of IR versions before 4
    onnx.input:NAME  onnx.output:NAME  onnx.value:NAME      a ValueInfoProto (denotations, sizes of -1 …)
    onnx.node:OUTPUT    a NodeProto (device configurations, docs of attributes …)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from google.protobuf.message import DecodeError, EncodeError
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from superopt.formats.onnx_nodes import (
    MAX_INTERNALISED,
    check_functions,
    check_model,
    check_nodes,
    check_opset,
    check_text,
    minimum_ir_version,
    nested_tensors,
    node,
    node_keys,
    node_proto,
)
from superopt.formats.onnx_tensors import (
    EmbeddedWeightLocation,
    ExternalFiles,
    internalise,
    sparse_weight,
    value,
    value_info,
    weight,
)
from superopt.formats.shape_contradictions import refuse_contradictions
from superopt.ir.errors import InvalidModel, ResourceLimit, printable
from superopt.ir.graph import OWN, Graph, Node, Value, Weight
from superopt.ir.types import TensorType

__all__ = ["SHAPE_ONLY", "default_ir_version", "from_model_bytes", "from_onnx", "shapes_alone"]

SHAPE_ONLY = "superopt.shape_only"  # metadata key of an ONNX input that stands for a weight without values


def from_model_bytes(
    data: bytes, files: ExternalFiles, inside: Mapping[int, EmbeddedWeightLocation] | None = None
) -> Graph:
    """The graph of a serialised ModelProto.

    Args:
        data: the message.
        files: where external data lies.
        inside: of initializers by number, where elements lie that the message was read without.

    Raises:
        InvalidModel: the bytes are not a valid ONNX model.
        MemoryError: the process may not have the memory that the message takes.
        ResourceLimit: its functions would expand without bound.
    """
    try:
        model = ModelProto.FromString(data)
    except DecodeError as error:
        # protobuf reports a refused allocation as a bad message. Where it can be one, this raises MemoryError.
        bytearray(2 * len(data))
        raise InvalidModel("is not an ONNX model, or is truncated: its protobuf does not parse") from error
    return _guarded(model, files, inside or {})


def from_onnx(model: ModelProto, *, base: Path | None = None, external: bool = True) -> Graph:
    """The graph of an ONNX model in memory.

    Args:
        model: it is not changed, and not referred to afterwards.
        base: the directory that external-data locations are relative to.
        external: whether external data is accepted at all.

    Raises:
        InvalidModel: the model is not valid, or holds a node whose operands exclude each other.
    """
    graph = _guarded(model, ExternalFiles(base, external), {})
    refuse_contradictions(graph)
    return graph


def shapes_alone(data: bytes) -> bytes:
    """The serialised model, its weights that lie in other files as weights without values."""
    model = ModelProto.FromString(data)
    held = list(model.graph.initializer)
    model.graph.ClearField("initializer")
    for tensor in held:
        if tensor.data_location != TensorProto.EXTERNAL:
            model.graph.initializer.append(tensor)
            continue
        given = model.graph.input.add(name=tensor.name)
        given.type.tensor_type.elem_type = tensor.data_type
        for size in tensor.dims:
            given.type.tensor_type.shape.dim.add(dim_value=size)
        given.metadata_props.add(key=SHAPE_ONLY, value="true")
    return bytes(model.SerializeToString())


def _guarded(model: ModelProto, files: ExternalFiles, inside: Mapping[int, EmbeddedWeightLocation]) -> Graph:
    check_text(model)
    try:
        return _read(model, files, inside)
    except (DecodeError, EncodeError) as error:
        raise InvalidModel(f"is not an ONNX model: {printable(str(error))}") from error


def _read(model: ModelProto, files: ExternalFiles, inside: Mapping[int, EmbeddedWeightLocation]) -> Graph:
    check_model(model)
    proto = model.graph
    local = check_functions(model.functions, node_keys((), [proto]))
    opset = _opset(model)
    weights = [weight(t, files, inside=inside.get(number)) for number, t in enumerate(proto.initializer)] + [
        sparse_weight(s, files) for s in proto.sparse_initializer
    ]
    extras: dict[str, bytes] = {}
    inputs = _inputs(model, weights, extras)
    outputs = tuple(_values(proto.output, "output", extras))
    if not outputs:
        raise InvalidModel("the graph has no outputs, so there is nothing to compute")
    inputs, weights = _shape_only(inputs, weights)
    graph = Graph(
        name=proto.name,
        inputs=inputs,
        outputs=outputs,
        weights=tuple(weights),
        nodes=tuple(_nodes(proto.node, files, extras)),
        opset=opset,
        values=tuple(_values(proto.value_info, "value", extras)),
        doc=model.doc_string,
        metadata={e.key: e.value for e in model.metadata_props},
        extras=extras,
    )
    check_opset(opset, graph.nodes)
    check_nodes(graph.nodes, opset, local)
    _graph_rest(proto, extras)
    _model_rest(model, graph, files, extras)
    return graph.checked()


def _opset(model: ModelProto) -> dict[str, int]:
    opset: dict[str, int] = {}
    for entry in model.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if opset.get(domain, entry.version) != entry.version:
            raise InvalidModel(f"two versions of the opset {printable(domain or 'ai.onnx')!r} are imported")
        opset[domain] = entry.version
    return opset if opset or model.ir_version >= 3 else {"": 1}


def _inputs(model: ModelProto, weights: list[Weight], extras: dict[str, bytes]) -> tuple[Value, ...]:
    """The graph's inputs. Before IR version 4 weights are listed too, but cannot be overridden: they are left out."""
    inputs = tuple(_values(model.graph.input, "input", extras))
    names = {w.name for w in weights}
    if model.ir_version >= 4 or not any(v.name in names for v in inputs):
        return inputs
    for v in inputs:
        extras.pop(f"onnx.input:{v.name}", None)
    rest = GraphProto()
    rest.input.extend(model.graph.input)
    extras["onnx.graph"] = rest.SerializeToString(deterministic=True)
    return tuple(v for v in inputs if v.name not in names)


def _shape_only(inputs: tuple[Value, ...], weights: list[Weight]) -> tuple[tuple[Value, ...], list[Weight]]:
    """Inputs that superopt wrote for weights without values become such weights again."""
    found = [v for v in inputs if SHAPE_ONLY in v.metadata and isinstance(v.type, TensorType) and v.type.is_static]
    if not found:
        return inputs, weights
    for v in found:
        assert isinstance(v.type, TensorType)
        metadata = {k: t for k, t in v.metadata.items() if k != SHAPE_ONLY}
        weights = [*weights, Weight(v.name, v.type, None, v.doc, metadata)]
    return tuple(v for v in inputs if v not in found), weights


def _values(protos: Iterable[ValueInfoProto], role: str, extras: dict[str, bytes]) -> Iterable[Value]:
    for proto in protos:
        found = value(proto)
        original = proto.SerializeToString(deterministic=True)
        if value_info(found).SerializeToString(deterministic=True) != original and _says_more(proto, found):
            extras[f"onnx.{role}:{found.name}"] = original
        yield found


def _says_more(proto: ValueInfoProto, found: Value) -> bool:
    """Whether a ValueInfoProto says more than the value read from it; strings that are set but empty say nothing."""
    bare = ValueInfoProto()
    bare.CopyFrom(proto)
    if not bare.doc_string:
        bare.ClearField("doc_string")
    return bool(value_info(found).SerializeToString(deterministic=True) != bare.SerializeToString(deterministic=True))


def _nodes(protos: Iterable[NodeProto], files: ExternalFiles, extras: dict[str, bytes]) -> Iterable[Node]:
    for proto in protos:
        found = node(proto, files)
        key = next((o for o in found.outputs if o), "")
        if key and _node_says_more(proto, found):
            extras[f"onnx.node:{key}"] = proto.SerializeToString(deterministic=True)
        yield found


def _node_says_more(proto: NodeProto, found: Node) -> bool:
    """Whether a NodeProto says more than the node read from it.

    Strings that are set but empty say nothing, nor does the lack of an attribute's type (IR version 1). Tensors are
    written in another form by design, so of a node with one only what surrounds them counts.
    """
    if any(a.HasField("t") or a.HasField("g") or len(a.graphs) for a in proto.attribute):
        return bool(proto.device_configurations) or any(a.doc_string for a in proto.attribute)
    again = node_proto(found)
    if again.SerializeToString(deterministic=True) == proto.SerializeToString(deterministic=True):
        return False
    bare = NodeProto()
    bare.CopyFrom(proto)
    for name in ("name", "domain", "overload", "doc_string"):
        if not getattr(bare, name):
            bare.ClearField(name)
    for ours, theirs in zip(again.attribute, bare.attribute, strict=True):
        theirs.type = ours.type
        for name in ("doc_string", "ref_attr_name"):
            if not getattr(theirs, name):
                theirs.ClearField(name)
    return bool(again.SerializeToString(deterministic=True) != bare.SerializeToString(deterministic=True))


def _graph_rest(proto: GraphProto, extras: dict[str, bytes]) -> None:
    rest = GraphProto.FromString(extras.get("onnx.graph", b""))
    if proto.doc_string:
        rest.doc_string = proto.doc_string
    rest.metadata_props.extend(proto.metadata_props)
    rest.quantization_annotation.extend(proto.quantization_annotation)
    if payload := rest.SerializeToString(deterministic=True):
        extras["onnx.graph"] = payload


def _model_rest(model: ModelProto, graph: Graph, files: ExternalFiles, extras: dict[str, bytes]) -> None:
    rest = ModelProto()
    if model.producer_name:
        rest.producer_name = model.producer_name
    if model.producer_version:
        rest.producer_version = model.producer_version
    if model.domain:
        rest.domain = model.domain
    if model.model_version:
        rest.model_version = model.model_version
    if model.ir_version != default_ir_version(graph):
        rest.ir_version = model.ir_version
    rest.functions.extend(model.functions)
    rest.training_info.extend(model.training_info)
    rest.configuration.extend(model.configuration)
    _internalise(rest, files)
    if payload := rest.SerializeToString(deterministic=True):
        extras["onnx.model"] = payload


def _internalise(rest: ModelProto, files: ExternalFiles) -> None:
    """Functions and training graphs are carried as bytes, so their external data must come inside."""
    graphs = [g for t in rest.training_info for g in (t.initialization, t.algorithm)]
    top: list[AttributeProto] = [a for f in rest.functions for n in f.node for a in n.attribute]
    graphs += [g for a in top for g in (a.g, *a.graphs)]
    moved = 0
    tensor: TensorProto
    for tensor in nested_tensors(graphs, *top):
        moved += internalise(tensor, files)
        if moved > MAX_INTERNALISED:
            raise ResourceLimit("functions hold more than 256 MiB of external data; move it to the main graph")


def default_ir_version(graph: Graph) -> int:
    """The IR version written for a graph that does not come with one.

    What superopt itself adds to metadata asks for none: who does not know the field passes over it, and a model that
    was rewritten can be read by whoever read the input.
    """
    kinds = [w.type for w in graph.weights] + [v.type for v in (*graph.inputs, *graph.outputs, *graph.values)]
    dtypes = frozenset(str(k.dtype) for k in kinds if isinstance(k, TensorType))
    carriers: list[Node | Value | Weight] = [*graph.nodes, *graph.inputs, *graph.outputs, *graph.values, *graph.weights]
    return minimum_ir_version(graph.opset, dtypes, any(c.metadata.keys() - OWN for c in carriers))
