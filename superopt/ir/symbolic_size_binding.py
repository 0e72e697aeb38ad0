"""Symbolic sizes as numbers: types, attributes and inputs of a graph at the sizes that a user gives."""

from __future__ import annotations

from collections.abc import Mapping

from superopt.ir.graph import Graph
from superopt.ir.size_polynomial import SizePolynomial, symbols, value_at
from superopt.ir.terms import AttributeValue
from superopt.ir.types import TensorType

__all__ = ["UNSPECIFIED", "at_sizes", "sizes_fed", "value_at_sizes"]

UNSPECIFIED = 8  # the number that replaces a symbolic size which the user does not give


def at_sizes(kind: TensorType, sizes: Mapping[str, int]) -> TensorType:
    """Replace the symbolic dimensions of a type by numbers; a size that is not given is ``UNSPECIFIED``."""
    if kind.is_static or kind.shape is None:
        return kind
    names = {n for d in kind.shape for n in symbols(d)}
    binding = {n: sizes.get(n, UNSPECIFIED) for n in names}
    return TensorType(kind.dtype, tuple(max(value_at(d, binding), 0) for d in kind.shape))


def value_at_sizes(value: AttributeValue, sizes: Mapping[str, int]) -> AttributeValue:
    """Replace the symbolic sizes of an attribute by numbers, as :func:`at_sizes` does."""
    if isinstance(value, tuple):
        return tuple(value_at_sizes(v, sizes) for v in value)
    if isinstance(value, SizePolynomial):
        return value_at(value, {n: sizes.get(n, UNSPECIFIED) for n in symbols(value)})
    return value


def sizes_fed(graph: Graph, sizes: Mapping[str, int]) -> dict[str, int]:
    """All symbolic sizes of the graph's inputs: the given ones, and ``UNSPECIFIED`` for every other name."""
    kinds = [v.type for v in graph.inputs if isinstance(v.type, TensorType)]
    return {**{n: UNSPECIFIED for k in kinds for d in k.shape or () for n in sorted(symbols(d))}, **sizes}
