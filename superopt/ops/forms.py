"""How node forms are read and written where an operator needs nothing special."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from superopt.ir.graph import Attribute
from superopt.ir.terms import AttributeValue
from superopt.ir.types import TensorType
from superopt.ops.record import Canonical, NodeForm, NodeView, NotCovered

__all__ = ["normal_axis", "reader", "writer"]


def reader(**defaults: AttributeValue | None) -> Callable[[NodeView], Canonical]:
    """Reads all inputs as arguments and exactly these attributes, with their ONNX defaults (``None``: required)."""

    def read(view: NodeView) -> Canonical:
        unknown = set(view.node.attributes) - set(defaults)
        if unknown:
            raise NotCovered(f"attribute {sorted(unknown)[0]} is not read by superopt")
        attributes = {name: plain(view.attribute(name, default)) for name, default in defaults.items()}  # type: ignore[arg-type]
        return Canonical(arguments(view), attributes)

    return read


def writer(since: int) -> Callable[[Mapping[str, AttributeValue], Sequence[TensorType | None], int], NodeForm]:
    """Writes all arguments as inputs and all canonical attributes under their names."""

    def write(attributes: Mapping[str, AttributeValue], types: Sequence[TensorType | None], opset: int) -> NodeForm:
        if opset < since:
            raise NotCovered(f"needs opset {since}, the model has {opset}")
        inputs = tuple(None if t is None else p for p, t in enumerate(types))
        return NodeForm(inputs, {name: onnx_value(value) for name, value in attributes.items()})

    return write


def arguments(view: NodeView) -> tuple[int | None, ...]:
    """All inputs as arguments; trailing absent ones dropped."""
    args = [p if name else None for p, name in enumerate(view.node.inputs)]
    while args and args[-1] is None:
        args.pop()
    return tuple(args)


def plain(value: Attribute) -> AttributeValue:
    """An ONNX attribute as a canonical value: strings decoded; tensors and subgraphs are not covered."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, int | float):
        return value
    if isinstance(value, tuple):
        return tuple(plain(v) for v in value)
    raise NotCovered("an attribute holds a tensor or a subgraph")


def onnx_value(value: AttributeValue) -> Attribute:
    """A canonical value as an ONNX attribute.

    Raises:
        NotCovered: it is symbolic.
    """
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int | float):
        return value
    if isinstance(value, tuple):
        return tuple(onnx_value(v) for v in value)  # type: ignore[return-value]
    raise NotCovered(f"the attribute {value} is not a known number")


def normal_axis(axis: int, rank: int) -> int:
    """An axis counted from the front.

    Raises:
        NotCovered: it is outside the rank.
    """
    if not -rank <= axis < rank:
        raise NotCovered(f"axis {axis} is outside rank {rank}")
    return axis % rank
