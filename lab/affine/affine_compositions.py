"""Forms of linear operators, read off their records, and affine neighbours: the compositions of the matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from superopt.frontend import GraphBuilder, SymbolicTensor
from superopt.ir.graph import Attribute, Graph
from superopt.ops import REGISTRY

__all__ = ["LARGE", "SMALL", "Composition", "LinearOperatorForm", "CompositionSizes", "alone", "compositions", "forms"]


@dataclass(frozen=True)
class CompositionSizes:
    """Sizes at which a composition is written: of a batch, of channels before and behind, of each other axis."""

    batch: int
    inner: int
    outer: int
    side: int


LARGE = CompositionSizes(2, 16, 32, 20)  # optimised at
SMALL = CompositionSizes(1, 2, 4, 6)  # decided at: equations grow with the weights
_LEAST_VARIANCE, _MOST_VARIANCE = 0.5, 1.5


@dataclass(frozen=True)
class LinearOperatorForm:
    """A linear operator with a class of attributes; its weights and data in order of its operands.

    Attributes:
        name: of the form.
        operator: of ONNX.
        attributes: that are not the default.
        spatial: axes of a window.
        biased: whether the operand is given that the operator may lack.
        data_second: whether the weight is the first operand.
        batched: whether a product's data has an axis before the matrix.
        window: elements of a kernel along an axis.
    """

    name: str
    operator: str
    attributes: Mapping[str, Attribute]
    spatial: int = 0
    biased: bool = False
    data_second: bool = False
    batched: bool = False
    window: int = 3

    @property
    def is_window(self) -> bool:
        return self.spatial > 0

    @property
    def axes(self) -> tuple[int, int]:
        """The channels' axis of the data and of the result, counted from the end."""
        if self.is_window:
            axis = -1 - self.spatial
            return axis, axis
        if self.data_second:
            return -2, -2
        return (-2 if self.attributes.get("transA") else -1), -1

    def channels(self, sizes: CompositionSizes) -> tuple[int, int]:
        """Of the data and of the result."""
        return sizes.inner, sizes.inner if self.depthwise(sizes) else sizes.outer

    def depthwise(self, sizes: CompositionSizes) -> bool:
        return self.operator == "AveragePool" or self.attributes.get("group") == 0

    def given(self, sizes: CompositionSizes) -> dict[str, Any]:
        """Attributes as a node has them: a group of 0 stands for one a channel."""
        return {k: sizes.inner if k == "group" and v == 0 else v for k, v in self.attributes.items()}

    def data(self, sizes: CompositionSizes) -> tuple[int, ...]:
        """The data's shape."""
        if self.is_window:
            return sizes.batch, sizes.inner, *(sizes.side,) * self.spatial
        matrix = (sizes.side, sizes.inner)
        swapped = self.data_second or self.attributes.get("transA")
        return (*((sizes.batch,) if self.batched else ()), *(matrix[::-1] if swapped else matrix))

    def weights(self, sizes: CompositionSizes) -> list[tuple[int, ...]]:
        """Shapes of the weights."""
        inner, outer = self.channels(sizes)
        if self.operator == "AveragePool":
            return []
        if self.is_window:
            group = int(str(self.given(sizes).get("group", 1)))
            first, second = (inner, outer // group) if self.operator == "ConvTranspose" else (outer, inner // group)
            kernel = (first, second, *(self.window,) * self.spatial)
            return [kernel, *([(outer,)] if self.biased else [])]
        turned = self.data_second or self.attributes.get("transB")
        return [(outer, inner) if turned else (inner, outer), *([(outer,)] if self.biased else [])]

    def apply(self, builder: GraphBuilder, data: SymbolicTensor, sizes: CompositionSizes) -> SymbolicTensor:
        """The operator on data, with fresh weights."""
        weights = [builder.weight(f"w{len(s)}_{n}", s, scale=0.3) for n, s in enumerate(self.weights(sizes))]
        operands = [weights[0], data, *weights[1:]] if self.data_second else [data, *weights]
        return builder.op(self.operator, *operands, **self.given(sizes))


@dataclass(frozen=True)
class AffineNeighbour:
    """An affine operator with a constant: ``operator`` of ONNX, the constant first or second, or no constant.

    Attributes:
        constant: its shape: "scalar", "channel" of the fewest axes, "full" of all the axes; empty: none.
        constant_first: whether it is the first operand.
        positive: whether its elements are positive, as deviations are.
    """

    operator: str
    constant: str = ""
    constant_first: bool = False
    positive: bool = False

    def __str__(self) -> str:
        text = {"": "", "scalar": " a scalar", "channel": " a channel's", "full": " a channel's of full rank"}
        first = "constant " if self.constant_first else ""
        return f"{first}{self.operator}{text[self.constant]}"

    def apply(
        self, builder: GraphBuilder, data: SymbolicTensor, rank: int, axis: int, channels: int, seed: int
    ) -> SymbolicTensor:
        """The operator on data with so many channels on that axis; the seed is of the constant's elements."""
        if self.operator == "BatchNormalization":
            return _normalised(builder, data, channels, seed)
        if not self.constant:
            return builder.op(self.operator, data)
        operand = builder.constant(self._elements(rank, axis, channels, seed))
        return builder.op(self.operator, *((operand, data) if self.constant_first else (data, operand)))

    def _elements(self, rank: int, axis: int, channels: int, seed: int) -> np.ndarray:
        shape = {
            "scalar": (), "channel": (channels, *(1,) * (-axis - 1)),
            "full": (*(1,) * (rank + axis), channels, *(1,) * (-axis - 1)),
        }[self.constant]  # fmt: skip
        rng = np.random.default_rng(seed)
        signs = np.ones(shape) if self.positive else rng.choice([-1.0, 1.0], size=shape)
        return np.asarray(signs * rng.uniform(0.5, 2.0, size=shape), dtype=np.float32)


def _normalised(builder: GraphBuilder, data: SymbolicTensor, channels: int, seed: int) -> SymbolicTensor:
    rng = np.random.default_rng(seed)
    scale, shift, mean = (builder.constant(rng.normal(0, 0.5, channels).astype(np.float32)) for _ in range(3))
    variance = builder.constant(rng.uniform(_LEAST_VARIANCE, _MOST_VARIANCE, channels).astype(np.float32))
    return builder.op("BatchNormalization", data, scale, shift, mean, variance)


@dataclass(frozen=True)
class Composition:
    """A form with neighbours before and behind."""

    form: LinearOperatorForm
    before: tuple[AffineNeighbour, ...]
    behind: tuple[AffineNeighbour, ...]

    @property
    def name(self) -> str:
        sides = [
            f"{', '.join(map(str, side))} {where}"
            for side, where in ((self.before, "before"), (self.behind, "behind"))
            if side
        ]
        return f"{self.form.name}: {'; '.join(sides)}"

    @property
    def operators(self) -> int:
        return 1 + len(self.before) + len(self.behind)

    def graph(self, sizes: CompositionSizes) -> Graph:
        """As a model."""
        form, builder = self.form, GraphBuilder("composition")
        shape = form.data(sizes)
        value = builder.input("x", "float32", shape)
        (first, last), (inner, outer) = form.axes, form.channels(sizes)
        for seed, neighbour in enumerate(self.before):
            value = neighbour.apply(builder, value, len(shape), first, inner, seed)
        value = form.apply(builder, value, sizes)
        for seed, neighbour in enumerate(self.behind, len(self.before)):
            value = neighbour.apply(builder, value, len(shape), last, outer, seed)
        builder.output(value, "y")
        return builder.build()


def alone(form: LinearOperatorForm, sizes: CompositionSizes, added: bool) -> Graph:
    """The form alone, or with a constant added behind it: of as many axes as the result."""
    return Composition(form, (), (AffineNeighbour("Add", "full"),) if added else ()).graph(sizes)


def forms() -> list[LinearOperatorForm]:
    """Linear operators, in classes of the attributes that their records name."""
    return [*_windows(), *_products(), *_pools()]


def _windows() -> Iterator[LinearOperatorForm]:
    for operator, record in sorted(REGISTRY.items()):
        if record.family != "conv":
            continue
        plain = LinearOperatorForm(operator, operator, {}, 2)
        yield plain
        yield replace(plain, name=f"{operator} with bias", biased=True)
        classes: dict[str, list[tuple[str, Attribute]]] = {
            "pads": [("padded", (1,) * 4)], "strides": [("strided", (2, 2))], "dilations": [("dilated", (2, 2))],
            "group": [("grouped", 2), ("depthwise", 0)],
        }  # fmt: skip
        for attribute, values in classes.items():
            for word, value in values if attribute in record.attributes else ():
                yield replace(plain, name=f"{operator} {word}", attributes={attribute: value})
        padded = replace(plain, attributes={"pads": (1,) * 4}, biased=True)
        yield replace(padded, name=f"{operator} padded with bias")
        yield replace(plain, name=f"{operator} of one axis", spatial=1)


def _products() -> Iterator[LinearOperatorForm]:
    yield LinearOperatorForm("MatMul", "MatMul", {}, batched=True)
    yield LinearOperatorForm("MatMul of a matrix", "MatMul", {})
    yield LinearOperatorForm("MatMul, weight first", "MatMul", {}, data_second=True, batched=True)
    yield LinearOperatorForm("Gemm", "Gemm", {})
    yield LinearOperatorForm("Gemm with bias", "Gemm", {}, biased=True)
    yield LinearOperatorForm("Gemm transA", "Gemm", {"transA": 1}, biased=True)
    yield LinearOperatorForm("Gemm transB", "Gemm", {"transB": 1}, biased=True)
    yield LinearOperatorForm("Gemm alpha", "Gemm", {"alpha": 0.5}, biased=True)
    yield LinearOperatorForm("Gemm beta", "Gemm", {"beta": 0.5}, biased=True)


def _pools() -> Iterator[LinearOperatorForm]:
    plain: dict[str, Attribute] = {"kernel_shape": (2, 2), "strides": (2, 2)}
    yield LinearOperatorForm("AveragePool", "AveragePool", plain, 2, window=2)
    yield LinearOperatorForm(
        "AveragePool padded", "AveragePool", {**plain, "pads": (1,) * 4, "count_include_pad": 1}, 2, window=2
    )


_CONSTANTS = ("scalar", "channel", "full")


def neighbours() -> list[AffineNeighbour]:
    """Single ones."""
    pairs = [("Mul", False), ("Div", False), ("Add", False), ("Sub", False), ("Sub", True)]
    return [*(AffineNeighbour(op, kind, first) for op, first in pairs for kind in _CONSTANTS), AffineNeighbour("Neg")]


def compositions(only: Sequence[str] = ()) -> Iterator[Composition]:
    """The matrix, or of it the forms of these operators."""
    standardise = (AffineNeighbour("Sub", "channel"), AffineNeighbour("Div", "channel", positive=True))
    affine = (AffineNeighbour("Mul", "channel"), AffineNeighbour("Add", "channel"))
    norm = AffineNeighbour("BatchNormalization")
    for form in forms():
        if only and form.operator not in only:
            continue
        for one in neighbours():
            yield Composition(form, (one,), ())
            yield Composition(form, (), (one,))
        yield Composition(form, standardise, ())
        yield Composition(form, (), affine)
        yield Composition(form, standardise, affine)
        rank = len(form.data(SMALL))
        if form.axes[0] + rank == 1:
            yield Composition(form, (norm,), ())
        if form.axes[1] + rank == 1:
            yield Composition(form, (), (norm,))
