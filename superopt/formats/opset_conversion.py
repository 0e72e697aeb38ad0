"""A model at another version of ONNX's operator set, newer or older.

Versions of an operator differ in how a node is written (axes as an attribute or as an input) and in what it means. A
node stays as it is where its record reads the same application from it at both versions, or where the version of its
schema is the same. Else the record writes the application anew. An operator that the version does not have is replaced
by the function that defines it in ONNX. What no record reads stays if its schema changed in element types alone, or by
attributes and inputs that the node does not have.

https://onnx.ai/onnx/repo-docs/Versioning.html
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import FunctionProto, ModelProto, NodeProto, TypeProto, defs, helper, numpy_helper

from superopt.formats.control_flow_bodies import CONTROL_FLOW, all_names, bodies, names_read, places_read, with_body
from superopt.formats.function_inlining import MODEL, inlined
from superopt.formats.onnx_nodes import node_proto
from superopt.formats.onnx_reader import default_ir_version
from superopt.formats.onnx_tensors import value_info
from superopt.ir.errors import InvalidOption, Unsupported
from superopt.ir.graph import ArrayWeightData, Graph, Node, OpaqueAttribute, Value, Weight, label, unused_name
from superopt.ir.types import DType, TensorType
from superopt.ops.onnx_type_inference import type_conflict
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.ops.shape_inference import CanonicalNode, InferredTypes, OpaqueNode, application_reader, infer

__all__ = ["OpsetConversion", "at_opset"]

_OWN = ("", "ai.onnx")
_EXPANDED = "superopt.expanded"  # domain of functions that stand for operators while they are replaced
_REQUIRED = defs.OpSchema.FormalParameterOption.Single
_AXES = ("axis", "axes")
_AXES_FROM_BEHIND = 13  # the first version at which all operators take negative axes
_AXES_OF_MEAN = 18  # the first version at which the axes of ReduceMean are an input
_LARGEST_IR = 8  # of models at old versions, whatever their own is: readers refuse a newer one
_NEXT = "take another version, or leave the option out"


@dataclass(frozen=True)
class OpsetConversion:
    """A model at another version.

    Attributes:
        graph: the model.
        rewritten: how many nodes are written otherwise, those of bodies of control flow included.
        unproved: labels of nodes that are as they were though no record says that they mean the same.
    """

    graph: Graph
    rewritten: int
    unproved: tuple[str, ...]


def at_opset(graph: Graph, version: int) -> OpsetConversion:
    """The model at a version of ONNX's own operators; other domains stay at theirs.

    Args:
        graph: a checked model without calls of functions of its own.
        version: of the operator set.

    Raises:
        InvalidOption: there is no such version.
        Unsupported: a node cannot be written at that version; ``where`` names it.
    """
    newest = defs.onnx_opset_version()
    if not 1 <= version <= newest:
        raise InvalidOption(
            f"{version} does not exist", where="opset", option="opset", hint=f"versions go from 1 to {newest}"
        )  # fmt: skip
    if ModelProto.FromString(graph.extras.get(MODEL, b"")).functions:
        raise Unsupported("the model's functions are not written at another version", hint="--functions inline")
    before = graph.onnx_version
    if before in (version, 0):
        return OpsetConversion(graph, 0, ())
    converted = _converted(graph, before, version)
    extras = dict(converted.graph.extras)
    extras[MODEL] = _header(converted.graph, version, up=version > before)
    return replace(converted, graph=replace(converted.graph, extras=extras).checked())


def _header(graph: Graph, version: int, *, up: bool) -> bytes:
    """What the file says besides the graph: its IR version is one that readers of this version of operators know."""
    header = ModelProto.FromString(graph.extras.get(MODEL, b""))
    least = default_ir_version(graph)
    own = header.ir_version if header.HasField("ir_version") else least
    known = min((row[1] for row in helper.VERSION_TABLE if row[2] >= version), default=onnx.IR_VERSION)
    header.ir_version = max(own, known) if up else min(own, known if least <= _LARGEST_IR else max(known, least))
    return bytes(header.SerializeToString(deterministic=True))


def _converted(graph: Graph, before: int, version: int) -> OpsetConversion:
    """The nodes at another version, and those of bodies.

    An operator that the version does not have is replaced by its definition at the version whose operators the
    definition is written in, on the way from one version to the other.
    """
    written, unproved = 0, list[str]()
    while (between := _newest_definition(graph, before, version)) is not None:
        if between < before:
            part = _rewritten(graph, before, between)
            graph, before, written = part.graph, between, written + part.rewritten
            unproved += part.unproved
        graph, replaced = _expanded(graph, before, version)
        written += replaced
        if not replaced:
            break
    last = _rewritten(graph, before, version)
    return OpsetConversion(last.graph, written + last.rewritten, (*unproved, *last.unproved))


def _rewritten(graph: Graph, before: int, version: int) -> OpsetConversion:
    """The nodes and bodies at another version that has all of the operators.

    Raises:
        Unsupported: it has not, or one of them cannot be written there.
    """
    typing, written, unproved = infer(graph), 0, list[str]()
    inner = list(bodies(graph, typing)) if any(n.op in CONTROL_FLOW for n in graph.nodes) else []
    read = places_read(graph, inner)
    for place, node in enumerate(graph.nodes):
        if any(isinstance(a, OpaqueAttribute) for a in node.attributes.values()) and place not in read:
            raise Unsupported("a graph inside the node is not understood", where=label(node), hint=_NEXT)
    for body in inner:
        within = _converted(body.graph, before, version)
        graph = with_body(graph, body, within.graph)
        written, unproved = written + within.rewritten, unproved + list(within.unproved)
    writer = _Writer(graph, typing, before, version)
    nodes = [writer.node(n, known) for n, known in zip(graph.nodes, typing.nodes, strict=True)]
    opset = {**{d: v for d, v in graph.opset.items() if d not in _OWN}, "": version}
    changed = replace(graph, nodes=tuple(nodes), weights=(*graph.weights, *writer.weights), opset=opset)
    return OpsetConversion(_without_unread(changed, graph), written + writer.written, (*unproved, *writer.unproved))


def _gone(graph: Graph, version: int) -> list[Node]:
    """The nodes whose operators a version does not have."""
    return [n for n in graph.nodes if n.domain in _OWN and _schema(n.op, version) is None]


def _newest_definition(graph: Graph, before: int, version: int) -> int | None:
    """The newest version at which ONNX defines, by a function, an operator that the wanted version does not have."""
    versions = (_definition_version(n.op, before) for n in _gone(graph, version))
    return max((v for v in versions if v is not None), default=None)


def _definition_version(op: str, before: int) -> int | None:
    schema: Any = _schema(op, before)  # the stubs lack what it has of functions
    if schema is None:
        return None
    by_types = schema.has_context_dependent_function
    versions = schema.context_dependent_function_opset_versions if by_types else schema.function_opset_versions
    return max((v for v in versions if v <= before), default=None)


def _expanded(graph: Graph, before: int, version: int) -> tuple[Graph, int]:
    """The graph with definitions in place of operators that a version does not have, as far as they are written in the
    operators of the graph's version; and how many they are."""
    typing, header, calls = infer(graph), ModelProto(), dict[int, Node]()
    for node in _gone(graph, version):
        if _definition_version(node.op, before) == before:
            function = _definition(node, typing, before)
            function.domain, function.name = _EXPANDED, f"{node.op}.{len(calls)}"
            del function.output[len(node.outputs) :]
            header.functions.append(function)
            calls[id(node)] = replace(node, domain=_EXPANDED, op=function.name)
    called = replace(
        graph, nodes=tuple(calls.get(id(n), n) for n in graph.nodes), opset={**graph.opset, _EXPANDED: 1},
        extras={**graph.extras, MODEL: header.SerializeToString(deterministic=True)},
    )  # fmt: skip
    found = inlined(called)
    if not calls or found.refused:
        return graph, 0
    return replace(found.graph, opset=graph.opset, extras=graph.extras), len(calls)


def _definition(node: Node, typing: InferredTypes, version: int) -> FunctionProto:
    """The function that defines the operator of a node, in the operators of a version.

    ONNX defines LayerNormalization by a mean of squares less a squared mean, which cancel where the mean is large; here
    it is defined by the squares of differences from the mean, as runtimes compute it.
    """
    kind = typing.types.get(node.inputs[0])
    if node.op == "LayerNormalization" and kind is not None and kind.rank is not None:
        return _layer_normalization(node, kind, version)
    schema: Any = _schema(node.op, version)
    if not schema.has_context_dependent_function:
        return _function(schema.get_function_with_opset_version(version))
    kinds = [typing.types.get(n) if n else None for n in node.inputs]
    types = [
        (TypeProto() if kind is None else value_info(Value(n, kind)).type).SerializeToString()
        for n, kind in zip(node.inputs, kinds, strict=True)
    ]
    written = node_proto(node).SerializeToString()
    return _function(schema.get_context_dependent_function_with_opset_version(version, written, types))


def _layer_normalization(node: Node, kind: TensorType, version: int) -> FunctionProto:
    """LayerNormalization as a function: ``(X - Mean) / sqrt(mean((X - Mean)²) + epsilon) · Scale + B``.

    Half precision is computed in float32, as the attribute ``stash_type`` says.
    """
    assert kind.rank is not None
    axis, epsilon = node.attributes.get("axis", -1), node.attributes.get("epsilon", 1e-5)
    assert isinstance(axis, int)
    axes = list(range(axis % kind.rank, kind.rank))
    wide = DType.FLOAT64 if kind.dtype is DType.FLOAT64 else DType.FLOAT32
    is_input = version >= _AXES_OF_MEAN

    def node_of(op: str, inputs: str, output: str, **attributes: Any) -> NodeProto:
        return helper.make_node(op, inputs.split(), [output], **attributes)

    def mean(of: str, output: str) -> NodeProto:
        return node_of("ReduceMean", f"{of} axes" if is_input else of, output, **({} if is_input else {"axes": axes}))

    biased = len(node.inputs) > 2 and node.inputs[2] != ""
    nodes = [
        node_of("Constant", "", "axes", value=numpy_helper.from_array(np.array(axes, np.int64))),
        node_of("Constant", "", "epsilon", value=numpy_helper.from_array(np.array(epsilon, wide.numpy))),
        node_of("Cast", "X", "x", to=helper.np_dtype_to_tensor_dtype(np.dtype(wide.numpy))),
        mean("x", "Mean"),
        node_of("Sub", "x Mean", "difference"),
        node_of("Mul", "difference difference", "square"),
        mean("square", "variance"),
        node_of("Add", "variance epsilon", "shifted"),
        node_of("Sqrt", "shifted", "deviation"),
        node_of("Reciprocal", "deviation", "InvStdDev"),
        node_of("Div", "difference deviation", "normal"),
        node_of("CastLike", "normal X", "narrow"),
        node_of("Mul", "narrow Scale", "scaled"),
        node_of("Add", "scaled B", "Y") if biased else node_of("Identity", "scaled", "Y"),
    ]
    opset = [helper.make_opsetid("", version)]
    return helper.make_function("", node.op, ["X", "Scale", "B"], ["Y", "Mean", "InvStdDev"], nodes, opset)


def _function(payload: bytes) -> FunctionProto:
    read = FunctionProto()
    read.ParseFromString(payload)
    return read


def _without_unread(graph: Graph, before: Graph) -> Graph:
    """Without weights and Constants that only the old form of a node read."""

    gone = names_read(before) - names_read(graph)
    nodes = tuple(n for n in graph.nodes if n.op != "Constant" or not gone.issuperset(n.outputs))
    return replace(graph, weights=tuple(w for w in graph.weights if w.name not in gone), nodes=nodes)


class _Writer:
    """Writes the nodes of one graph."""

    def __init__(self, graph: Graph, typing: InferredTypes, before: int, version: int) -> None:
        self.graph, self.typing, self.before, self.version = graph, typing, before, version
        self.read = application_reader(replace(graph, opset={**graph.opset, "": version}), typing)
        self.taken: set[str] = set(all_names(graph))
        self.weights: list[Weight] = []
        self.unproved: list[str] = []
        self.written = 0

    def node(self, node: Node, known: CanonicalNode | OpaqueNode) -> Node:
        """The node at the new version.

        Raises:
            Unsupported: it cannot be written there.
        """
        if node.domain not in _OWN:
            return node
        old, new = _schema(node.op, self.before), _schema(node.op, self.version)
        if new is None:
            since = _since(node.op)
            came = f"came with opset {since}" if since > self.version else "is no operator any more"
            raise Unsupported(f"{node.op} {came}", where=label(node), hint=_NEXT)
        if old is not None and old.since_version == new.since_version:
            return node
        conflict = self._type_conflict(node)
        if isinstance(known, CanonicalNode):
            try:
                return self._application(node, known, conflict)
            except UnsupportedNodeForm as reason:
                raise Unsupported(
                    f"{node.op} cannot be written at opset {self.version}: {reason}", where=label(node), hint=_NEXT
                ) from None
        why = conflict or _incompatible(node, old, new)
        if why:
            raise Unsupported(f"at opset {self.version} {why}", where=label(node), hint=_NEXT)
        self.unproved.append(label(node))
        return node

    def _application(self, node: Node, known: CanonicalNode, conflict: str) -> Node:
        """As it is where it reads the same at both versions, else as the record writes it."""
        from_behind = self.version < _AXES_FROM_BEHIND and any(_negative(node.attributes.get(a)) for a in _AXES)
        if not conflict and not from_behind and self._reads_as(node, known):
            return node
        operator = known.operator
        if self.version < operator.since:
            raise UnsupportedNodeForm(f"its record reads versions from {operator.since} on")
        types = tuple(None if a is None else self.typing.types[a] for a in known.args)
        assert all(t is None or isinstance(t, TensorType) for t in types)
        form = operator.write(known.attributes, types, self.version)
        literals = {place: self._literal(node, array) for place, array in form.literals.items()}
        made = replace(node, inputs=form.names(known.args, literals), attributes=dict(form.attributes))
        if conflict := self._type_conflict(made):
            raise UnsupportedNodeForm(conflict)
        if not self._reads_as(made, known):
            raise UnsupportedNodeForm("what its record writes does not read the same")
        self.written += 1
        return made

    def _reads_as(self, node: Node, known: CanonicalNode) -> bool:
        """Whether the node at the new version is this application."""
        schema = _schema(node.op, self.version)
        if schema is None or node.attributes.keys() - schema.attributes.keys():
            return False
        if not schema.min_input <= len(node.inputs) <= schema.max_input:
            return False
        if any(not n and f.option == _REQUIRED for n, f in zip(node.inputs, schema.inputs, strict=False)):
            return False
        again = self.read(node, [w for w in self.weights if w.name in node.inputs])
        return isinstance(again, CanonicalNode) and (again.operator, again.args, dict(again.attributes)) == (
            known.operator, known.args, dict(known.attributes),
        )  # fmt: skip

    def _literal(self, node: Node, array: np.ndarray) -> str:
        name = unused_name(f"{node.name or node.outputs[0]}/literal", self.taken)
        self.weights.append(Weight(name, TensorType(DType.of(array.dtype), tuple(array.shape)), ArrayWeightData(array)))
        return name

    def _type_conflict(self, node: Node) -> str:
        """Why the operator does not take inputs of these types at the new version; "" where it does."""
        kinds = (self.typing.types.get(n) if n else None for n in node.inputs)
        return type_conflict(node.op, self.version, tuple(None if kind is None else kind.dtype for kind in kinds))


def _negative(axes: object) -> bool:
    return any(isinstance(a, int) and a < 0 for a in (axes if isinstance(axes, list | tuple) else [axes]))


@lru_cache(maxsize=4096)
def _schema(op: str, version: int) -> defs.OpSchema | None:
    try:
        schema = defs.get_schema(op, version, "")
    except defs.SchemaError:
        return None
    return None if schema.deprecated else schema


def _since(op: str) -> int:
    """The first version that has the operator."""
    return min(
        (s.since_version for s in defs.get_all_schemas_with_history() if s.name == op and not s.domain), default=0
    )


def _incompatible(node: Node, old: defs.OpSchema | None, new: defs.OpSchema) -> str:
    """Why a node that no record reads may mean another thing; "" where its schemas differ in types, or in what the
    node does not have."""
    if old is None:
        return f"{node.op} has no schema at its own version"
    own, other = dict(old.attributes), dict(new.attributes)
    for name in sorted(own.keys() | other.keys()):
        if name in own and name in other:
            if name not in node.attributes and own[name].default_value != other[name].default_value:
                return f"{node.op} has another default of {name}"
        elif name in node.attributes:
            return f"{node.op} has no attribute {name}"
        elif name in other and other[name].required:
            return f"{node.op} needs an attribute {name}"
    return _other_values("input", node.inputs, old.inputs, new.inputs, node.op) or _other_values(
        "output", node.outputs, old.outputs, new.outputs, node.op
    )


def _other_values(
    what: str, names: Sequence[str], old: Sequence[defs.OpSchema.FormalParameter],
    new: Sequence[defs.OpSchema.FormalParameter], op: str,
) -> str:  # fmt: skip
    for position, (a, b) in enumerate(zip(old, new, strict=False)):
        if (a.name, a.option) != (b.name, b.option) and position < len(names):
            return f"{op} has another {what} {position}, {b.name}"
    more = [b for b in new[len(old) :] if b.option == _REQUIRED]
    if more:
        return f"{op} needs another {what}, {more[0].name}"
    variadic = bool(new) and new[-1].option == defs.OpSchema.FormalParameterOption.Variadic
    if len(names) > len(new) and not variadic:
        return f"{op} has no {what} {len(new)}"
    return ""
