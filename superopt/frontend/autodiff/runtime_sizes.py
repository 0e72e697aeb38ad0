"""Sizes that are known only when a model runs: computed there, from the shapes of its inputs.

An operator's record writes lists of sizes (the shape of Reshape, the ends of Slice …) as literal inputs, and only
known ones. So a list that is not known is written with numbers that stand for the sizes, and the literal that holds
them is replaced by a value that is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from superopt.ir.size_polynomial import Dim, FloorQuotient, SizePolynomial, substitute, symbols, value_at
from superopt.ir.terms import AttributeValue
from superopt.ir.types import TensorType
from superopt.ops.operator_definition import OnnxNodeForm, Operator, UnsupportedNodeForm

__all__ = ["RuntimeSizes", "open_symbols"]

STANDINS = (1_000_003, 1_000_033, 1_000_037, 1_000_039, 1_000_081, 1_000_099, 1_000_117, 1_000_121)
Node = Callable[[str, Sequence[str], Mapping[str, int]], str]


def open_symbols(attributes: Mapping[str, AttributeValue]) -> frozenset[str]:
    """Names of sizes in attributes."""
    found: frozenset[str] = frozenset()
    for value in attributes.values():
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, SizePolynomial):
                found |= symbols(part)
    return found


class RuntimeSizes:
    """Values for sizes that are not known.

    Args:
        sources: types by name, of values whose shapes may be asked for.
        node: appends a node (operator, inputs, integer attributes) and gives its output.
        literal: gives the name of a constant.
    """

    def __init__(
        self, sources: Mapping[str, TensorType | None], node: Node, literal: Callable[[np.ndarray], str]
    ) -> None:
        self.sources, self.node, self.literal = sources, node, literal
        self.known: dict[Dim, str] = {}

    def written(
        self,
        record: Operator,
        attributes: Mapping[str, AttributeValue],
        kinds: Sequence[TensorType | None],
        opset: int,
    ) -> tuple[OnnxNodeForm, dict[int, str]]:
        """A node form, and for each literal that is computed, by place, the value in its stead.

        Raises:
            UnsupportedNodeForm: a size is part of an attribute of the node, which cannot be computed.
        """
        names = sorted(open_symbols(attributes))
        if len(names) > len(STANDINS):
            raise UnsupportedNodeForm("it depends on too many sizes that are not known")
        binding = dict(zip(names, STANDINS, strict=False))
        fixed = {n: _put(v, binding) for n, v in attributes.items()}
        lists = {
            _listed(fixed[n]): [d for d in _listed(v) if isinstance(d, int | SizePolynomial)]
            for n, v in attributes.items()
            if open_symbols({n: v})
        }
        form = record.write(fixed, [None if k is None else _at(k, binding) for k in kinds], opset)
        computed: dict[int, str] = {}
        for position, array in form.literals.items():
            dims = lists.get(tuple(array.reshape(-1).tolist()))
            if dims is not None and array.dtype == np.int64:
                vector = self.vector(dims)
                computed[position] = vector if array.ndim else self.node("Squeeze", (vector,), {})
        held = {_listed(v) for v in fixed.values()} & lists.keys()
        written = {tuple(a.reshape(-1).tolist()) for a in form.literals.values()}
        if not held <= written:
            raise UnsupportedNodeForm(f"{', '.join(names)} must be known")
        return form, computed

    def vector(self, dims: Sequence[Dim]) -> str:
        """A list of sizes as an int64 vector."""
        if all(isinstance(d, int) for d in dims):
            return self.literal(np.array(dims, np.int64))
        parts = [self.size(d) for d in dims]
        return parts[0] if len(parts) == 1 else self.node("Concat", parts, {"axis": 0})

    def size(self, dim: Dim) -> str:
        """A size as an int64 vector of one element.

        Raises:
            UnsupportedNodeForm: no value's shape says it.
        """
        if isinstance(dim, int):
            return self.literal(np.array([dim], np.int64))
        if dim not in self.known:
            self.known[dim] = self._computed(dim)
        return self.known[dim]

    def _computed(self, dim: SizePolynomial) -> str:
        for name, kind in self.sources.items():
            shape = () if kind is None or kind.shape is None else kind.shape
            for axis, size in enumerate(shape):
                if size == dim:
                    shown = self.node("Shape", (name,), {})
                    return self.node("Gather", (shown, self.literal(np.array([axis], np.int64))), {"axis": 0})
        if len(dim.terms) == 1 and dim.terms[0][1] == 1 and len(dim.terms[0][0]) == 1:
            (atom,) = dim.terms[0][0]
            if not isinstance(atom, FloorQuotient):
                raise UnsupportedNodeForm(f"the size {dim} is that of no input")
            return self.node("Div", (self.size(atom.numerator), self.size(atom.denominator)), {})
        total = ""
        for monomial, coefficient in dim.terms:
            factors = [self.size(SizePolynomial((((atom,), 1),))) for atom in monomial]
            if coefficient != 1 or not factors:
                factors.append(self.size(coefficient))
            product = factors[0]
            for factor in factors[1:]:
                product = self.node("Mul", (product, factor), {})
            total = self.node("Add", (total, product), {}) if total else product
        return total


def _listed(value: AttributeValue) -> tuple[AttributeValue, ...]:
    return value if isinstance(value, tuple) else (value,)


def _put(value: AttributeValue, binding: Mapping[str, int]) -> AttributeValue:
    if isinstance(value, tuple):
        return tuple(_put(v, binding) for v in value)
    return value_at(value, binding) if isinstance(value, SizePolynomial) else value


def _at(kind: TensorType, binding: Mapping[str, int]) -> TensorType:
    shape = kind.shape
    return kind if shape is None else replace(kind, shape=tuple(substitute(d, binding) for d in shape))
