"""Parse the text form of a graph; :mod:`superopt.ir.text` describes and prints it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import numpy as np

from superopt.ir.errors import InvalidModel, UsageError, printable
from superopt.ir.graph import ArrayData, Attribute, Graph, Node, OpaqueAttribute, Value, Weight
from superopt.ir.poly import Dim, sym
from superopt.ir.types import DType, OpaqueType, TensorType, ValueType

__all__ = ["WORD", "DigestData", "parse_graph"]

T = TypeVar("T")
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_TOKEN = re.compile(r'\s+|"[^"\\]*+(?:\\.[^"\\]*+)*+"|[A-Za-z_][A-Za-z0-9_]*|[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?)|[^\s\w]')
_DTYPES = {d.value: d for d in DType}


@dataclass(frozen=True)
class DigestData:
    """Elements that are known by their digest only."""

    digest: str

    def numpy(self) -> np.ndarray:
        """There are none.

        Raises:
            UsageError: always.
        """
        raise UsageError("the weight's elements were not in the text form", hint="load the model from its own file")


def parse_graph(text: str) -> Graph:
    """The graph that :func:`format_graph` printed.

    Raises:
        InvalidModel: the text is not of that form, or the graph is not valid; says the line and column.
    """
    parser = _Parser(text)
    name, doc, metadata = "", "", dict[str, str]()
    values: dict[str, list[Value]] = {"input": [], "value": [], "output": []}
    weights: list[Weight] = []
    nodes: list[Node] = []
    opset: dict[str, int] = {}
    extras: dict[str, bytes] = {}
    while parser.token:
        start = parser.position
        match parser.word():
            case "graph":
                name = parser.name()
                doc, metadata = parser.notes()
            case "opset":
                domain = parser.string()
                parser.take("=")
                opset[domain] = parser.integer()
            case "extra":
                key = parser.string()
                parser.take("=")
                extras[key] = parser.payload()
            case "weight":
                weights.append(parser.weight())
            case "node":
                nodes.append(parser.node())
            case "input" | "value" | "output" as kind:
                values[kind].append(parser.value())
            case other:
                parser.fail(f"{printable(other)!r} is not a statement", start)
    inputs, inner, outputs = (tuple(values[k]) for k in ("input", "value", "output"))
    graph = Graph(name, inputs, outputs, tuple(weights), tuple(nodes), opset, inner, doc, metadata, extras)
    return graph.checked()


class _Parser:
    """Recursive descent over the tokens of the text form; nesting is only that of sizes and attributes."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = self._end = 0
        self.token = ""
        self._advance()

    def _advance(self) -> None:
        while True:
            if self._end >= len(self._text):
                self._at, self.token = self._end, ""
                return
            match = _TOKEN.match(self._text, self._end)
            if match is None:
                self._at = self._end
                self.fail("this character belongs to no token")
            self._at, self._end, self.token = match.start(), match.end(), match.group()
            if not self.token.isspace():
                return

    @property
    def position(self) -> int:
        """Where the current token begins."""
        return self._at

    def fail(self, what: str, at: int | None = None) -> NoReturn:
        """Raise InvalidModel at the current token, or at a position before it."""
        at = self._at if at is None else at
        line = self._text.count("\n", 0, at) + 1
        column = at - self._text.rfind("\n", 0, at)
        raise InvalidModel(what, where=f"line {line}, column {column}")

    def take(self, token: str) -> None:
        if not self.accept(token):
            self.fail(f"{token!r} is expected, not {printable(self.token)!r}")

    def accept(self, token: str) -> bool:
        if self.token != token:
            return False
        self._advance()
        return True

    def word(self) -> str:
        found = self.token
        if not WORD.match(found):
            self.fail(f"a word is expected, not {printable(found)!r}")
        self._advance()
        return found

    def string(self) -> str:
        if not self.token.startswith('"'):
            self.fail(f"a quoted string is expected, not {printable(self.token)!r}")
        try:
            found = json.loads(self.token)
        except json.JSONDecodeError:
            self.fail("is not a JSON string")
        self._advance()
        return str(found)

    def name(self) -> str:
        return self.string() if self.token.startswith('"') else self.word()

    def integer(self) -> int:
        try:
            found = int(self.token)
        except ValueError:
            self.fail(f"an integer is expected, not {printable(self.token)!r}")
        self._advance()
        return found

    def payload(self) -> bytes:
        try:
            return base64.b64decode(self.string(), validate=True)
        except ValueError:
            self.fail("is not base64")

    def notes(self) -> tuple[str, dict[str, str]]:
        doc, metadata = "", {}
        while self.token in ("doc", "meta"):
            if self.accept("doc"):
                doc = self.string()
            else:
                self.take("meta")
                key = self.string()
                self.take("=")
                metadata[key] = self.string()
        return doc, metadata

    def dim(self) -> Dim:
        total = self._product()
        while self.accept("+"):
            total = total + self._product()
        return total

    def _product(self) -> Dim:
        product = self._factor()
        while self.accept("*"):
            product = product * self._factor()
        return product

    def _factor(self) -> Dim:
        if self.token[:1].isdigit() or self.token[:1] in ("-", "+"):
            return self.integer()
        quoted = self.token.startswith('"')
        name = self.name()
        if quoted or name != "floor" or not self.accept("("):
            return sym(name)
        numerator = self.dim()
        self.take(",")
        denominator = self.dim()
        self.take(")")
        if denominator == 0:
            self.fail("a size is divided by zero")
        return numerator // denominator

    def type(self) -> ValueType | None:
        if self.accept("?"):
            return None
        word = self.word()
        if word == "opaque":
            return OpaqueType(self.payload())
        if word not in _DTYPES:
            self.fail(f"{word!r} is not an element type")
        self.take("[")
        if self.accept("."):
            self.take(".")
            self.take(".")
            self.take("]")
            return TensorType(_DTYPES[word], None)
        return TensorType(_DTYPES[word], tuple(self._list("]", self.dim)))

    def _list(self, end: str, item: Callable[[], T]) -> list[T]:
        found: list[T] = []
        while not self.accept(end):
            if found:
                self.take(",")
            found.append(item())
        return found

    def value(self) -> Value:
        name = self.name()
        self.take(":")
        kind = self.type()
        return Value(name, kind, *self.notes())

    def weight(self) -> Weight:
        name = self.name()
        self.take(":")
        kind = self.type()
        if not isinstance(kind, TensorType) or not kind.is_static:
            self.fail("a weight has a tensor type of known sizes")
        data: ArrayData | DigestData | None = None
        if self.accept("="):
            data = DigestData(self.string()) if self.accept("digest") else self._elements(kind)
        return Weight(name, kind, data, *self.notes())

    def _elements(self, kind: TensorType) -> ArrayData:
        start = self.position
        self.take("[")
        values = self._list("]", self.attribute)
        if len(values) != kind.elements or not all(isinstance(v, int | float) for v in values):
            self.fail(f"{kind.elements} numbers are expected", start)
        return ArrayData(np.array(values, kind.dtype.numpy).reshape(kind.shape))  # type: ignore[arg-type]

    def attribute(self) -> Attribute:
        token = self.token
        if token.startswith('"'):
            return self.string().encode()
        if token[-1:].isdigit():
            if not any(c in token for c in ".e"):
                return self.integer()
            self._advance()
            return float(token)
        if self.accept("["):
            return tuple(self._list("]", self.attribute))  # type: ignore[return-value]
        match self.word():
            case "b":
                return self.payload()
            case "float":
                return self._bracketed(lambda: float(self.string()))
            case "tensor":
                return self._bracketed(self.weight)
            case "opaque":
                return self._bracketed(self._opaque)
            case other:
                self.fail(f"{other!r} is not an attribute's value")

    def _bracketed(self, item: Callable[[], T]) -> T:
        self.take("(")
        found = item()
        self.take(")")
        return found

    def _opaque(self) -> OpaqueAttribute:
        payload = self.payload()
        captures = []
        while self.accept(","):
            captures.append(self.name())
        return OpaqueAttribute(payload, tuple(captures))

    def node(self) -> Node:
        name = self.string()
        outputs = self._list("=", self._slot)
        domain = ""
        if self.token.startswith('"'):
            domain = self.string()
            if self.token != "." and not domain:
                self.fail("an operator has a name")
            if not self.accept("."):
                return self._application(name, outputs, "", domain)
        return self._application(name, outputs, domain, self.name())

    def _application(self, name: str, outputs: list[str], domain: str, op: str) -> Node:
        overload = self.name() if self.accept(":") else ""
        self.take("(")
        inputs = self._list(")", self._slot)
        attributes = dict(self._list("}", self._named)) if self.accept("{") else {}
        doc, metadata = self.notes()
        return Node(name, op, tuple(inputs), tuple(outputs), attributes, domain, overload, doc, metadata)

    def _slot(self) -> str:
        return "" if self.accept("_") else self.name()

    def _named(self) -> tuple[str, Attribute]:
        name = self.name()
        self.take("=")
        return name, self.attribute()
