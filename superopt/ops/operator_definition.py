"""One record per operator, and the registry of them.

A record holds the facts about an operator once: its name and arguments, its canonical attributes, its meaning, and
how the ONNX node form of each opset version is read and written. Everything else is read from these: types,
reference and exact evaluation, proofs, FLOPs and bytes, gradients.

The *canonical form* (``superopt.ir.terms.OperatorTerm``) has every attribute present, axes counted from the front, and
what ONNX passes as compile-time inputs (the shape of Reshape, the axes of Unsqueeze …) as attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from superopt.ir.graph import Attribute, Node
from superopt.ir.size_polynomial import Dim
from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType, TensorType
from superopt.ops.operator_semantics import (
    ElementTypeMismatch,
    IllTypedOperator,
    OperatorSemantics,
    TensorComprehension,
    build,
)
from superopt.ops.rounding_effects import RoundingEffect, moves, rounding_of

__all__ = [
    "CanonicalNodeForm", "OnnxNodeForm", "OnnxNodeView", "UnsupportedNodeForm", "Operator", "OperatorRegistry",
    "FLOATS", "INTEGERS", "NUMERIC", "ANY",
]  # fmt: skip

FLOATS = frozenset({DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64})
INTEGERS = frozenset(
    d for d in DType if d in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
)
NUMERIC = FLOATS | INTEGERS
ANY = NUMERIC | {DType.BOOL}


class UnsupportedNodeForm(Exception):
    """This use of the operator is not one that the record reads or can write; the node stays opaque. Says why."""


@dataclass(frozen=True)
class OnnxNodeView:
    """A node as a record reads it: attributes, input types, and what is known of its inputs' values."""

    node: Node
    opset: int
    types: tuple[TensorType | None, ...]  # of node.inputs; None for an omitted input
    constant: Callable[[int], np.ndarray | None]  # elements of a constant input (small ones only), else None
    integers: Callable[[int], tuple[Dim, ...] | None]  # elements of an integer vector input, possibly symbolic

    def attribute(self, name: str, default: Attribute | None = None) -> Attribute:
        """The node's attribute, or the default.

        Raises:
            UnsupportedNodeForm: it is absent and there is no default.
        """
        value = self.node.attributes.get(name, default)
        if value is None:
            raise UnsupportedNodeForm(f"attribute {name} is missing")
        return value

    def has(self, position: int) -> bool:
        """Whether the optional input is present."""
        return position < len(self.node.inputs) and self.node.inputs[position] != ""

    def type(self, position: int) -> TensorType:
        """The type of an input, of known rank.

        Raises:
            UnsupportedNodeForm: the input's type or rank is not known.
        """
        found = self.types[position] if position < len(self.types) else None
        if found is None or found.shape is None:
            raise UnsupportedNodeForm(f"the rank of input {position} is not known")
        return found


@dataclass(frozen=True)
class CanonicalNodeForm:
    """What a node says in canonical form: positions of its data inputs (``None``: absent) and its attributes."""

    args: tuple[int | None, ...]
    attributes: Mapping[str, AttributeValue]


@dataclass(frozen=True)
class OnnxNodeForm:
    """How a canonical application is written as a node: inputs are argument positions, literal arrays, or absent."""

    inputs: tuple[int | np.ndarray | None, ...]
    attributes: Mapping[str, Attribute]

    @property
    def literals(self) -> dict[int, np.ndarray]:
        """Literal arrays by their place among the inputs."""
        return {place: item for place, item in enumerate(self.inputs) if isinstance(item, np.ndarray)}

    def names(self, given: Sequence[str | None], literals: Mapping[int, str]) -> tuple[str, ...]:
        """The node's inputs by name, "" where one is omitted (none at the end).

        Args:
            given: names of the canonical arguments, ``None`` for an absent one.
            literals: names of the literal arrays, by place.
        """
        names = [
            literals[place] if isinstance(item, np.ndarray) else "" if item is None else given[item] or ""
            for place, item in enumerate(self.inputs)
        ]
        while names and not names[-1]:
            names.pop()
        return tuple(names)


def _same_dtype(types: Sequence[TensorType | None], attributes: Mapping[str, AttributeValue]) -> DType:
    first = next((t for t in types if t is not None), None)
    if first is None:
        raise IllTypedOperator("an operator without inputs must declare its element type")
    for other in types:
        if other is not None and other.dtype != first.dtype:
            raise ElementTypeMismatch(f"element types {first.dtype} and {other.dtype} differ")
    return first.dtype


@dataclass(frozen=True, kw_only=True, eq=False)
class Operator:
    """The record. ``inputs`` mark optional ones with ``?`` and a variadic last one with ``*``; so do ``outputs``.

    Attributes:
        name: ONNX operator name (domain ``""`` unless ``domain`` says otherwise).
        attributes: canonical attributes with their kind: "int", "ints", "float", "dtype", "string".
        meaning: called with an ``Operand`` per argument (``None`` when absent) and the canonical attributes as
            keywords; returns a ``TensorComprehension`` per output.
        since: first opset version whose node form ``read`` understands and ``write`` can produce.
        dtypes: element types of the first argument (or of the output, without arguments) that the meaning covers.
        result: element type of the first output from argument types and attributes; raises ``IllTypedOperator`` on a
            mismatch.
        later: element types of the outputs behind the first; empty: they have the same.
        read: node → canonical form; raises ``UnsupportedNodeForm`` for uses that the meaning does not describe.
        write: canonical attributes and argument types, at an opset → node form; raises ``UnsupportedNodeForm``.
        commutative: the two arguments can be exchanged (used for normal forms, and checked by a law).
        kernel: the meaning in the order of operations of ONNX Runtime's kernel, where that rounds otherwise: equal over
            the reals, and what verdicts in floating point are about. ``None``: as the meaning is written.
        family: the group of operators that it belongs to.
        definition: for a composite, that it is defined by others (documentation).
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ("Y",)
    attributes: Mapping[str, str] = field(default_factory=dict)
    meaning: Callable[..., TensorComprehension | Sequence[TensorComprehension]]
    since: int = 1
    dtypes: frozenset[DType] = FLOATS
    result: Callable[[Sequence[TensorType | None], Mapping[str, AttributeValue]], DType] = _same_dtype
    later: tuple[DType, ...] = ()
    read: Callable[[OnnxNodeView], CanonicalNodeForm]
    write: Callable[[Mapping[str, AttributeValue], Sequence[TensorType | None], int], OnnxNodeForm]
    commutative: bool = False
    kernel: Callable[..., TensorComprehension | Sequence[TensorComprehension]] | None = None
    family: str
    domain: str = ""

    @property
    def as_run(self) -> Operator:
        """The operator with what its kernel computes for a meaning."""
        return self if self.kernel is None else _as_run(self)

    def check_arity(self, count: int) -> None:
        """Raise :class:`IllTypedOperator` unless the operator takes this many arguments."""
        variadic = bool(self.inputs) and self.inputs[-1].endswith("*")
        least = sum(not n.endswith(("?", "*")) for n in self.inputs) + variadic
        if count < least or (count > len(self.inputs) and not variadic):
            raise IllTypedOperator(f"{self.name} takes {least}{'+' if variadic else ''} arguments, not {count}")

    def apply(
        self, types: Sequence[TensorType | None], attributes: Mapping[str, AttributeValue]
    ) -> tuple[OperatorSemantics, tuple[TensorType, ...]]:
        """The meaning at these argument types, and the types of the outputs.

        Raises:
            IllTypedOperator: the operator does not accept them (``UndeterminedShapes`` if that depends on unknown
                sizes).
        """
        return _applied(self, tuple(types), tuple(sorted(attributes.items())))

    def rounding(self, types: Sequence[TensorType | None], attributes: Mapping[str, AttributeValue]) -> RoundingEffect:
        """What it does to rounding errors of its operands: exact, smooth, or with jumps. From the meaning.

        Raises:
            IllTypedOperator: the operator does not accept the types.
        """
        return _rounding(self, tuple(types), tuple(sorted(attributes.items())))

    @property
    def of_one_type(self) -> bool:
        """Whether all arguments are of one element type, and so is the result."""
        return self.result is _same_dtype

    def moves(self, types: Sequence[TensorType | None], attributes: Mapping[str, AttributeValue]) -> bool:
        """Whether it computes no element, but puts those of its operands in other places. From the meaning.

        Raises:
            IllTypedOperator: the operator does not accept the types.
        """
        return _moving(self, tuple(types), tuple(sorted(attributes.items())))


@lru_cache(maxsize=1024)
def _as_run(operator: Operator) -> Operator:
    assert operator.kernel is not None
    return replace(operator, meaning=operator.kernel, kernel=None)


@lru_cache(maxsize=65536)
def _applied(
    operator: Operator, types: tuple[TensorType | None, ...], attributes: tuple[tuple[str, AttributeValue], ...]
) -> tuple[OperatorSemantics, tuple[TensorType, ...]]:
    values = dict(attributes)
    operator.check_arity(len(types))
    for position, kind in enumerate(types):
        if kind is None and not operator.inputs[min(position, len(operator.inputs) - 1)].endswith("?"):
            raise IllTypedOperator(f"argument {position} of {operator.name} is missing")
    if set(values) != set(operator.attributes):
        odd = ", ".join(sorted(set(values) ^ set(operator.attributes)))
        raise IllTypedOperator(f"{operator.name} has the attributes {sorted(operator.attributes)}; look at {odd}")
    first = next((t for t in types if t is not None), None)
    if first is not None and first.dtype not in operator.dtypes:
        raise IllTypedOperator(f"{operator.name} is not covered for {first.dtype}")
    dtype = operator.result(types, values)
    padded = list(types) + [None] * (len(operator.inputs) - len(types))
    meaning = build(operator.meaning, padded, values)
    dtypes = (dtype, *(operator.later or (dtype,) * (len(meaning.outputs) - 1)))
    return meaning, tuple(TensorType(d, c.shape) for d, c in zip(dtypes, meaning.outputs, strict=True))


@lru_cache(maxsize=65536)
def _rounding(
    operator: Operator, types: tuple[TensorType | None, ...], attributes: tuple[tuple[str, AttributeValue], ...]
) -> RoundingEffect:
    meaning, results = _applied(operator, types, attributes)
    return rounding_of(meaning, types, results)


@lru_cache(maxsize=65536)
def _moving(
    operator: Operator, types: tuple[TensorType | None, ...], attributes: tuple[tuple[str, AttributeValue], ...]
) -> bool:
    meaning, results = _applied(operator, types, attributes)
    return moves(meaning, types, results)


class OperatorRegistry(Mapping[str, Operator]):
    """Operators by name. Iterates in name order; an operator is registered once, at import."""

    def __init__(self) -> None:
        self._records: dict[str, Operator] = {}

    def add(self, operator: Operator) -> Operator:
        """Register; a second record for one name is an error at import."""
        if operator.name in self._records:
            raise ValueError(f"operator {operator.name} is recorded twice")
        self._records[operator.name] = operator
        return operator

    @contextmanager
    def also(self, *operators: Operator) -> Iterator[None]:
        """With further operators, for statements about them; they are gone afterwards."""
        for operator in operators:
            self.add(operator)
        try:
            yield
        finally:
            for operator in operators:
                del self._records[operator.name]

    @contextmanager
    def replaced(self, operator: Operator) -> Iterator[None]:
        """With another record of an operator; the one it had is back afterwards."""
        had = self._records[operator.name]
        self._records[operator.name] = operator
        try:
            yield
        finally:
            self._records[operator.name] = had

    def __getitem__(self, name: str) -> Operator:
        return self._records[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._records))

    def __len__(self) -> int:
        return len(self._records)
