"""How node forms are read and written: typed attributes, compile-time inputs, and what most operators need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from superopt.ir.graph import Attribute
from superopt.ir.size_polynomial import Dim, SizePolynomial, atoms, substitute, sym, symbols
from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType, TensorType
from superopt.ops.operator_definition import CanonicalNodeForm, OnnxNodeForm, OnnxNodeView, UnsupportedNodeForm
from superopt.ops.operator_semantics import ContradictoryShapes, ElementTypeMismatch, IllTypedOperator

__all__ = [
    "arguments", "boolean_result", "dtype_from_code", "dtype_code", "first_dtype", "flag", "float32", "int64s",
    "integer", "integers", "known_ints", "listed", "normal_axis", "normal_axes", "only", "onnx_value", "plain",
    "present", "product", "reader", "real", "reals", "refuse_matrix", "since_only", "surely_nonnegative",
    "text", "truth", "typed", "writer",
]  # fmt: skip

_CODES = tuple(DType)  # declared in the order of ONNX's TensorProto.DataType, which starts at 1


def dtype_from_code(code: int) -> DType:
    """The element type of an ONNX TensorProto.DataType number.

    Raises:
        UnsupportedNodeForm: there is no such type.
    """
    if not 1 <= code <= len(_CODES):
        raise UnsupportedNodeForm(f"element type {code} is not known")
    return _CODES[code - 1]


def dtype_code(name: AttributeValue) -> int:
    """The ONNX TensorProto.DataType number of an element type."""
    return _CODES.index(typed(name)) + 1


def typed(name: AttributeValue) -> DType:
    """The element type that a canonical "dtype" attribute names.

    Raises:
        IllTypedOperator: it names none.
    """
    try:
        return DType(str(name))
    except ValueError:
        raise IllTypedOperator(f"{name!r} is not an element type") from None


def float32(value: float) -> float:
    """The value that ONNX stores for a float attribute."""
    return float(np.float32(value))


# ── attributes of a node, by kind ─────────────────────────────────────────────────────────────────────────────────────


def only(view: OnnxNodeView, *names: str) -> None:
    """Refuse a node that has other attributes than these.

    Raises:
        UnsupportedNodeForm: it does.
    """
    unknown = set(view.node.attributes).difference(names)
    if unknown:
        raise UnsupportedNodeForm(f"attribute {min(unknown)} is not read by superopt")


def integer(view: OnnxNodeView, name: str, default: int | None = None) -> int:
    """An int attribute; without a default it must be there."""
    value = view.attribute(name, default)
    if not isinstance(value, int):
        raise UnsupportedNodeForm(f"attribute {name} is not an integer")
    return value


def truth(view: OnnxNodeView, name: str, default: int) -> int:
    """An int attribute that is 0 or 1; what another number means runtimes do not agree on."""
    value = integer(view, name, default)
    if value not in (0, 1):
        raise UnsupportedNodeForm(f"attribute {name} is {value}, which is neither 0 nor 1")
    return value


def real(view: OnnxNodeView, name: str, default: float | None = None) -> float:
    """A float attribute; the default is rounded to float32 as ONNX's own is."""
    value = view.attribute(name, None if default is None else float32(default))
    if not isinstance(value, int | float):
        raise UnsupportedNodeForm(f"attribute {name} is not a number")
    return float(value)


def text(view: OnnxNodeView, name: str, default: str | None = None) -> str:
    """A string attribute."""
    value = view.attribute(name, None if default is None else default.encode())
    if not isinstance(value, bytes):
        raise UnsupportedNodeForm(f"attribute {name} is not a string")
    return value.decode(errors="replace")


def integers(view: OnnxNodeView, name: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
    """A list-of-integers attribute."""
    value = view.attribute(name, None if default is None else tuple(default))
    if not isinstance(value, tuple) or not all(isinstance(v, int) for v in value):
        raise UnsupportedNodeForm(f"attribute {name} is not a list of integers")
    return tuple(v for v in value if isinstance(v, int))


def reals(view: OnnxNodeView, name: str) -> tuple[float, ...]:
    """A list-of-floats attribute, which must be there."""
    value = view.attribute(name)
    if not isinstance(value, tuple) or not all(isinstance(v, int | float) for v in value):
        raise UnsupportedNodeForm(f"attribute {name} is not a list of numbers")
    return tuple(float(v) for v in value if isinstance(v, int | float))


def listed(view: OnnxNodeView, name: str, position: int, moved: int) -> tuple[Dim, ...] | None:
    """Integers that are an attribute below opset ``moved`` and an input from there on; ``None`` when absent.

    Raises:
        UnsupportedNodeForm: the input's value is not known.
        ContradictoryShapes: the input is a matrix or more.
    """
    if view.opset < moved:
        return integers(view, name) if name in view.node.attributes else None
    if not view.has(position):
        return None
    found = view.integers(position)
    if found is None:
        refuse_matrix(view, position, name)
        raise UnsupportedNodeForm(f"the value of {name} is computed at run time")
    return found


def refuse_matrix(view: OnnxNodeView, position: int, name: str) -> None:
    """A list that comes as an input has one axis (ONNX Runtime also takes a number).

    Raises:
        ContradictoryShapes: it has more.
    """
    kind = view.types[position]
    if kind is not None and kind.rank is not None and kind.rank > 1:
        raise ContradictoryShapes(f"{name} is {kind}, not a list")


def known_ints(values: Sequence[Dim], what: str) -> tuple[int, ...]:
    """The values, all known.

    Raises:
        UnsupportedNodeForm: one is symbolic.
    """
    if any(isinstance(v, SizePolynomial) for v in values):
        raise UnsupportedNodeForm(f"{what} is symbolic")
    return tuple(v for v in values if isinstance(v, int))


# ── generic reader and writer ─────────────────────────────────────────────────────────────────────────────────────────


def reader(
    ignored: Sequence[str] = (), **defaults: AttributeValue | type | None
) -> Callable[[OnnxNodeView], CanonicalNodeForm]:
    """Reads all inputs as arguments and these attributes; a default that is a type marks a required attribute."""

    def read(view: OnnxNodeView) -> CanonicalNodeForm:
        only(view, *defaults, *ignored)
        attributes: dict[str, AttributeValue] = {}
        for name, default in defaults.items():
            kind = default if isinstance(default, type) else type(default)
            given = None if isinstance(default, type) else default
            if kind is float:
                attributes[name] = real(view, name, given)  # type: ignore[arg-type]
            elif kind is str:
                attributes[name] = text(view, name, given)  # type: ignore[arg-type]
            elif kind is int:
                attributes[name] = integer(view, name, given)  # type: ignore[arg-type]
            else:
                attributes[name] = plain(view.attribute(name, given))  # type: ignore[arg-type]
        return CanonicalNodeForm(arguments(view), attributes)

    return read


def writer(since: int) -> Callable[[Mapping[str, AttributeValue], Sequence[TensorType | None], int], OnnxNodeForm]:
    """Writes all arguments as inputs and all canonical attributes under their names."""

    def write(attributes: Mapping[str, AttributeValue], types: Sequence[TensorType | None], opset: int) -> OnnxNodeForm:
        since_only(opset, since)
        return OnnxNodeForm(present(types), {name: onnx_value(value) for name, value in attributes.items()})

    return write


def since_only(opset: int, since: int) -> None:
    """Refuse to write below an opset version.

    Raises:
        UnsupportedNodeForm: the model's version is lower.
    """
    if opset < since:
        raise UnsupportedNodeForm(f"needs opset {since}, the model has {opset}")


def present(types: Sequence[TensorType | None]) -> tuple[int | None, ...]:
    """Argument positions as node inputs, absent ones left out."""
    return tuple(None if t is None else p for p, t in enumerate(types))


def arguments(view: OnnxNodeView) -> tuple[int | None, ...]:
    """All inputs as arguments; trailing absent ones dropped."""
    args = [p if name else None for p, name in enumerate(view.node.inputs)]
    while args and args[-1] is None:
        args.pop()
    return tuple(args)


def plain(value: Attribute) -> AttributeValue:
    """An ONNX attribute as a canonical value: strings decoded; tensors and subgraphs are not covered."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, int | float):
        return value
    if isinstance(value, tuple):
        return tuple(plain(v) for v in value)
    raise UnsupportedNodeForm("an attribute holds a tensor or a subgraph")


def onnx_value(value: AttributeValue) -> Attribute:
    """A canonical value as an ONNX attribute.

    Raises:
        UnsupportedNodeForm: it is symbolic.
    """
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int | float):
        return value
    if isinstance(value, tuple):
        return tuple(onnx_value(v) for v in value)  # type: ignore[return-value]
    raise UnsupportedNodeForm(f"the attribute {value} is not a known number")


def int64s(values: AttributeValue, what: str = "the value") -> np.ndarray:
    """A canonical list of integers as the constant input that newer opsets take.

    Raises:
        UnsupportedNodeForm: one is symbolic.
    """
    listing = values if isinstance(values, tuple) else (values,)
    if not all(isinstance(v, int) for v in listing):
        raise UnsupportedNodeForm(f"{what} {listing} is not known")
    return np.array(listing, dtype=np.int64)


# ── axes, sizes, element types ────────────────────────────────────────────────────────────────────────────────────────


def normal_axis(axis: int, rank: int) -> int:
    """An axis counted from the front.

    Raises:
        ContradictoryShapes: it is outside the rank.
    """
    if not -rank <= axis < rank:
        raise ContradictoryShapes(f"axis {axis} is outside rank {rank}")
    return axis % rank


def normal_axes(axes: Sequence[Dim], rank: int) -> tuple[int, ...]:
    """Axes counted from the front, in order, none twice.

    Raises:
        UnsupportedNodeForm: they are not known, or repeated.
        ContradictoryShapes: one is outside the rank.
    """
    found = tuple(normal_axis(a, rank) for a in known_ints(axes, "an axis"))
    if len(set(found)) != len(found):
        raise UnsupportedNodeForm(f"an axis is named twice in {list(axes)}")
    return found


def product(sizes: Sequence[Dim]) -> Dim:
    """The product of sizes."""
    return prod(sizes, start=1)


def surely_nonnegative(value: Dim, least: int = 1) -> bool:
    """Whether a polynomial is surely ≥ 0 where all its names are at least ``least``: sufficient, not necessary."""
    shifted = substitute(value, {name: sym(name) + least for name in symbols(value)})
    if isinstance(shifted, int):
        return shifted >= 0
    return all(c >= 0 for _, c in shifted.terms) and all(
        isinstance(a, str)
        or surely_nonnegative(substitute(a.numerator, {n: sym(n) - least for n in symbols(a.numerator)}), least)
        for a in atoms(shifted)
    )


def flag(value: AttributeValue, name: str) -> bool:
    """A canonical attribute that is 0 or 1.

    Raises:
        IllTypedOperator: it is neither, or a variable.
    """
    if value not in (0, 1):
        raise IllTypedOperator(f"{name} is 0 or 1, not {value}")
    return value == 1


def first_dtype(types: Sequence[TensorType | None], attributes: Mapping[str, AttributeValue]) -> DType:
    """The element type of the first argument, whatever the others are."""
    if not types or types[0] is None:
        raise IllTypedOperator("the first argument is missing")
    return types[0].dtype


def boolean_result(types: Sequence[TensorType | None], attributes: Mapping[str, AttributeValue]) -> DType:
    """Booleans from arguments of one element type."""
    if len({t.dtype for t in types if t is not None}) > 1:
        raise ElementTypeMismatch("element types differ")
    return DType.BOOL
