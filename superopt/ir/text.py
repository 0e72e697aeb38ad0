"""The text form of a graph: printed to be read and compared, and parsed back to the same graph.

    graph tiny
    opset "" = 21
    input x: float32[N, 3]
    weight w: float32[2] = [0.5, -1.0]
    weight v: float32[64, 3] = digest "5c1d…"
    node "relu_1" y = Relu(x) {alpha = 0.5}
    output y: ?

Names that are not plain words are written as JSON strings. Long weights are written as their digest: what is parsed
then knows which elements they were, but not the elements. Parsing what was printed gives a graph with the same
structural hash.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping

import numpy as np

from superopt.ir.graph import ArrayData, Attribute, Graph, Node, OpaqueAttribute, Value, Weight
from superopt.ir.poly import Atom, Dim
from superopt.ir.text_parser import WORD, DigestData, parse_graph
from superopt.ir.types import DType, OpaqueType, ValueType

__all__ = ["DigestData", "format_graph", "parse_graph"]

INLINE = 8


def _name(text: str) -> str:
    return text if WORD.match(text) else json.dumps(text)


def _dim(dim: Dim) -> str:
    """A size: integers and names as they are, other polynomials as sums of products."""
    if isinstance(dim, int):
        return str(dim)
    terms = []
    for monomial, coefficient in dim.terms:
        factors = [_atom(a) for a in monomial]
        terms.append("*".join(([str(coefficient)] if coefficient != 1 or not factors else []) + factors))
    return " + ".join(terms)


def _atom(atom: Atom) -> str:
    if isinstance(atom, str):
        return json.dumps(atom) if atom == "floor" else _name(atom)
    return f"floor({_dim(atom.numerator)}, {_dim(atom.denominator)})"


def _type(kind: ValueType | None) -> str:
    if kind is None:
        return "?"
    if isinstance(kind, OpaqueType):
        return f"opaque {_bytes(kind.payload)}"
    return f"{kind.dtype}[{'...' if kind.shape is None else ', '.join(map(_dim, kind.shape))}]"


def _bytes(data: bytes) -> str:
    return json.dumps(base64.b64encode(data).decode("ascii"))


def _float(value: float) -> str:
    text = repr(float(value))
    return text if text[-1].isdigit() else f'float("{text}")'


def _attribute(value: Attribute) -> str:
    if isinstance(value, OpaqueAttribute):
        captured = "".join(f", {_name(c)}" for c in value.captures)
        return f"opaque({_bytes(value.payload)}{captured})"
    if isinstance(value, Weight):
        return f"tensor({_name(value.name)}: {_type(value.type)}{_data(value)}{_notes(value.doc, value.metadata)})"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_attribute, value))}]"
    if isinstance(value, bytes):
        return f"b{_bytes(value)}" if not _is_text(value) else json.dumps(value.decode())
    return str(int(value)) if isinstance(value, int) else _float(value)


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _data(w: Weight) -> str:
    if w.data is None:
        return ""
    count = w.type.elements
    real = w.type.dtype in (DType.FLOAT32, DType.FLOAT64, DType.INT64, DType.INT32)
    if real and isinstance(count, int) and count <= INLINE and not isinstance(w.data, DigestData):
        values = w.data.numpy().reshape(-1).tolist()
        read = [float(repr(v)) if isinstance(v, float) else v for v in values]  # a NaN's payload is not printed
        again = ArrayData(np.array(read, w.type.dtype.numpy).reshape(w.type.shape))  # type: ignore[arg-type]
        if again.digest == w.data.digest:
            return f" = [{', '.join(_attribute(v) for v in values)}]"
    return f" = digest {json.dumps(w.data.digest)}"


def _notes(doc: str, metadata: Mapping[str, str]) -> str:
    notes = f" doc {json.dumps(doc)}" if doc else ""
    return notes + "".join(f" meta {json.dumps(k)} = {json.dumps(v)}" for k, v in metadata.items())


def format_graph(graph: Graph) -> str:
    """The graph as text, one statement to a line."""
    return "\n".join(_lines(graph)) + "\n"


def _lines(graph: Graph) -> Iterator[str]:
    yield f"graph {_name(graph.name)}{_notes(graph.doc, graph.metadata)}"
    for domain, version in graph.opset.items():
        yield f"opset {json.dumps(domain)} = {version}"
    for key, payload in graph.extras.items():
        yield f"extra {json.dumps(key)} = {_bytes(payload)}"
    for v in graph.inputs:
        yield f"input {_value(v)}"
    for w in graph.weights:
        yield f"weight {_name(w.name)}: {_type(w.type)}{_data(w)}{_notes(w.doc, w.metadata)}"
    for v in graph.values:
        yield f"value {_value(v)}"
    for n in graph.nodes:
        yield _node(n)
    for v in graph.outputs:
        yield f"output {_value(v)}"


def _value(v: Value) -> str:
    return f"{_name(v.name)}: {_type(v.type)}{_notes(v.doc, v.metadata)}"


def _node(n: Node) -> str:
    op = (
        (f"{json.dumps(n.domain)}." if n.domain else "") + _name(n.op) + (f":{_name(n.overload)}" if n.overload else "")
    )
    outputs = ", ".join("_" if not o else _output(o) for o in n.outputs)
    inputs = ", ".join("_" if not i else _output(i) for i in n.inputs)
    attributes = ", ".join(f"{_name(k)} = {_attribute(v)}" for k, v in n.attributes.items())
    braces = f" {{{attributes}}}" if attributes else ""
    return f"node {json.dumps(n.name)} {outputs} = {op}({inputs}){braces}{_notes(n.doc, n.metadata)}"


def _output(name: str) -> str:
    return '"_"' if name == "_" else _name(name)
