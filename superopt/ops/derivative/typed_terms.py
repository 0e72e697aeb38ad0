"""Terms with their types, and arithmetic on them: what derivatives are written in.

>>> from superopt.ir.types import DType, TensorType
>>> x = variable("x", TensorType(DType.FLOAT32, (2, 3)))
>>> y = x * 2.0 + apply("ReduceSum", x, axes=(1,), keepdims=1)
>>> print(y.term, y.type)
Add(Mul(x, ConstantOfShape(dtype="float32", shape=[], value=2.0)), ReduceSum(x, axes=[1], keepdims=1)) float32[2, 3]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from superopt.ir.errors import Unsupported
from superopt.ir.size_polynomial import Dim, SizePolynomial
from superopt.ir.terms import AttributeValue, OperatorTerm, OutputTerm, Term, VariableTerm
from superopt.ir.types import DType, TensorType

__all__ = [
    "Cotangents",
    "OperatorDerivative",
    "TypedTerm",
    "Factor",
    "NotDifferentiable",
    "Number",
    "DifferentiationSite",
    "added",
    "added_at",
    "along",
    "apply",
    "apply_all",
    "by_channel",
    "cast",
    "constant",
    "expanded",
    "is_smaller",
    "linear_in",
    "product",
    "reshaped",
    "reversed_perm",
    "squeezed",
    "summed_to",
    "transposed",
    "turned",
    "unsqueezed",
    "variable",
]


Number = int | float | Fraction | SizePolynomial


@dataclass(frozen=True)
class TypedTerm:
    """A term, and the type of its value. A number beside it is a constant of its element type.

    Attributes:
        term: what it is.
        type: of its value.
        sparse: where it is 0 but for what was added at positions of axis 0, the positions and what was added: sums and
            multiples of it are then no larger than that.
        factors: where it is a product of matrices, what it is a product of: its transpose is the product of theirs.
        multiple: where a multiple of it is had for less than a pass over its elements, that multiple.
        channels: where it is something times a number for each channel (axis 1), what, and the numbers.
    """

    term: Term
    type: TensorType
    sparse: tuple[TypedTerm, TypedTerm] | None = field(default=None, compare=False, repr=False)
    factors: tuple[TypedTerm, TypedTerm] | None = field(default=None, compare=False, repr=False)
    multiple: Callable[[Factor], TypedTerm] | None = field(default=None, compare=False, repr=False)
    channels: tuple[TypedTerm, TypedTerm] | None = field(default=None, compare=False, repr=False)

    @property
    def shape(self) -> tuple[Dim, ...]:
        assert self.type.shape is not None
        return self.type.shape

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    def __add__(self, other: Factor) -> TypedTerm:
        if isinstance(other, TypedTerm) and self.type == other.type:
            for whole, part in ((self, other), (other, self)):
                if part.sparse is not None:
                    return _with_parts(whole, *part.sparse)
        return apply("Add", self, self.beside(other))

    def __radd__(self, other: Number) -> TypedTerm:
        return apply("Add", self.beside(other), self)

    def __sub__(self, other: Factor) -> TypedTerm:
        if isinstance(other, TypedTerm) and self.type == other.type and other.sparse is not None:
            return self + -other
        return apply("Sub", self, self.beside(other))

    def __rsub__(self, other: Number) -> TypedTerm:
        return apply("Sub", self.beside(other), self)

    def __mul__(self, other: Factor) -> TypedTerm:
        if self.sparse is not None and (not isinstance(other, TypedTerm) or not other.rank):
            positions, parts = self.sparse
            return added_at(positions, parts * other, self.type)
        return self if other == 1 else apply("Mul", self, self.beside(other))

    def __rmul__(self, other: Number) -> TypedTerm:
        return self * other

    def __truediv__(self, other: Factor) -> TypedTerm:
        return self if other == 1 else apply("Div", self, self.beside(other))

    def __neg__(self) -> TypedTerm:
        if self.sparse is not None:
            positions, parts = self.sparse
            return added_at(positions, -parts, self.type)
        return apply("Neg", self)

    def times(self, factor: Factor) -> TypedTerm:
        """A multiple, for something that is not needed itself: by a factor of a product, where that is smaller."""
        return self * factor if self.multiple is None else self.multiple(factor)

    def beside(self, other: Factor) -> TypedTerm:
        """``other`` as an expression; a number gets this one's element type."""
        return other if isinstance(other, TypedTerm) else constant(other, self.dtype)


Factor = TypedTerm | Number


def by_channel(x: TypedTerm, numbers: TypedTerm) -> TypedTerm:
    """``x`` times a number for each channel (axis 1)."""
    made = x * along(numbers, 1, x.rank)
    return replace(made, channels=(x, numbers), multiple=lambda f: by_channel(x, numbers * f))


def along(numbers: TypedTerm, axis: int, rank: int) -> TypedTerm:
    """A vector along one axis of several, to broadcast from there."""
    return unsqueezed(numbers, tuple(range(1, rank - axis)))


def variable(name: str, kind: TensorType) -> TypedTerm:
    """A value by its name."""
    return TypedTerm(VariableTerm(name), kind)


def apply_all(name: str, *args: TypedTerm | None, **attributes: AttributeValue) -> tuple[TypedTerm, ...]:
    """An operator's outputs, in canonical form: every attribute is named, but ``dtype`` may be left out (float32).

    Raises:
        IllTypedOperator: the operator does not accept the arguments.
    """
    from superopt.ops import REGISTRY  # the records name these functions, so they are not there when this is loaded

    record = REGISTRY[name]
    kinds = [None if a is None else a.type for a in args]
    term = OperatorTerm(name, tuple(None if a is None else a.term for a in args), tuple(sorted(attributes.items())))
    _, types = record.apply(kinds, attributes)
    if len(types) == 1:
        return (TypedTerm(term, types[0]),)
    return tuple(TypedTerm(OutputTerm(term, place), kind) for place, kind in enumerate(types))


def apply(name: str, *args: TypedTerm | None, **attributes: AttributeValue) -> TypedTerm:
    """The first output of an operator."""
    return apply_all(name, *args, **attributes)[0]


def constant(value: Number, dtype: DType, shape: Sequence[Dim] = ()) -> TypedTerm:
    """A number, exactly: a fraction that no float is becomes a quotient of two that are."""
    if isinstance(value, Fraction) and Fraction(float(value)) != value:
        whole = (constant(value.numerator, dtype), constant(value.denominator, dtype))
        return apply("Div", *whole) if not shape else expanded(apply("Div", *whole), shape)
    held: AttributeValue = value if isinstance(value, SizePolynomial) else float(value)
    return apply("ConstantOfShape", shape=tuple(shape), value=held, dtype=dtype.value)


def added(parts: Sequence[TypedTerm | None]) -> TypedTerm | None:
    """The sum; ``None`` stands for 0."""
    given = [p for p in parts if p is not None]
    whole = given[0] if given else None
    for part in given[1:]:
        assert whole is not None
        whole = whole + part
    return whole


def added_at(positions: TypedTerm, parts: TypedTerm, kind: TensorType) -> TypedTerm:
    """Zeros of a type, with parts added at positions of axis 0.

    Args:
        positions: int64, [..., 1].
        parts: [..., *rest], where rest are the sizes of the other axes.
        kind: the type of the result.
    """
    zeros = constant(0, kind.dtype, kind.shape or ())
    return replace(apply("ScatterND", zeros, positions, parts), sparse=(positions, parts))


def _with_parts(whole: TypedTerm, positions: TypedTerm, parts: TypedTerm) -> TypedTerm:
    """The sum of something and of parts at positions of axis 0."""
    made = apply("ScatterND", whole, positions, parts)
    if whole.multiple is None:
        return made
    return replace(made, multiple=lambda f: _with_parts(whole.times(f), positions, parts * f))


def cast(x: TypedTerm, dtype: DType) -> TypedTerm:
    """At another element type."""
    return x if x.dtype is dtype else apply("Cast", x, to=dtype.value)


def reshaped(x: TypedTerm, shape: Sequence[Dim]) -> TypedTerm:
    """The elements in another shape."""
    if x.shape == tuple(shape):
        return x
    made = apply("Reshape", x, shape=tuple(shape))
    return made if x.multiple is None else replace(made, multiple=lambda f: reshaped(x.times(f), shape))


def expanded(x: TypedTerm, shape: Sequence[Dim]) -> TypedTerm:
    """Broadcast to a shape."""
    return x if x.shape == tuple(shape) else apply("Expand", x, shape=tuple(shape))


def squeezed(x: TypedTerm, axes: Sequence[int]) -> TypedTerm:
    """Without axes of size 1: one step for several, and a reduction that kept them keeps them no longer."""
    if not axes:
        return x
    if isinstance(x.term, OperatorTerm) and x.term.args and (source := x.term.args[0]) is not None:
        given = dict(x.term.attributes)
        before = given.get("axes")
        if x.term.op == "Squeeze" and isinstance(before, tuple):
            left = [a for a in range(x.rank + len(before)) if a not in before]
            whole = tuple(sorted((*(a for a in before if isinstance(a, int)), *(left[a] for a in axes))))
            sizes = iter(x.shape)
            full = tuple(1 if a in before else next(sizes) for a in range(x.rank + len(before)))
            return squeezed(TypedTerm(source, TensorType(x.dtype, full)), whole)
        if given.get("keepdims") == 1 and before == tuple(axes):
            kept = tuple(s for a, s in enumerate(x.shape) if a not in axes)
            term = OperatorTerm(x.term.op, x.term.args, tuple(sorted({**given, "keepdims": 0}.items())))
            return TypedTerm(term, TensorType(x.dtype, kept))
    return apply("Squeeze", x, axes=tuple(axes))


def unsqueezed(x: TypedTerm, axes: Sequence[int]) -> TypedTerm:
    """With axes of size 1, at these places of the result."""
    return apply("Unsqueeze", x, axes=tuple(axes)) if axes else x


def transposed(x: TypedTerm, perm: Sequence[int]) -> TypedTerm:
    """Axis ``i`` of the result is axis ``perm[i]``; there and back again is nothing."""
    if tuple(perm) == tuple(range(x.rank)):
        return x
    if x.factors is not None and tuple(perm) == (*range(x.rank - 2), x.rank - 1, x.rank - 2):
        left, right = x.factors
        return product(turned(right), turned(left))
    if isinstance(x.term, OperatorTerm) and x.term.op == "Transpose" and (source := x.term.args[0]) is not None:
        before = dict(x.term.attributes)["perm"]
        if before == reversed_perm(perm):
            return TypedTerm(source, TensorType(x.dtype, tuple(x.shape[p] for p in perm)))
    return apply("Transpose", x, perm=tuple(perm))


def turned(x: TypedTerm) -> TypedTerm:
    """The last two axes exchanged."""
    return transposed(x, (*range(x.rank - 2), x.rank - 1, x.rank - 2))


def product(a: TypedTerm, b: TypedTerm) -> TypedTerm:
    """The product of matrices, of rank 2 or more."""
    made = replace(apply("MatMul", a, b), factors=(a, b))
    if is_smaller(a, made) and (is_smaller(a, b) or not is_smaller(b, made)):
        return replace(made, multiple=lambda f: product(a * f, b))
    return replace(made, multiple=lambda f: product(a, b * f)) if is_smaller(b, made) else made


def is_smaller(a: TypedTerm, b: TypedTerm) -> bool:
    """Whether it is known to have fewer elements."""
    few, many = a.type.elements, b.type.elements
    return isinstance(few, int) and isinstance(many, int) and few < many


def reversed_perm(perm: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes one."""
    return tuple(sorted(range(len(perm)), key=lambda place: perm[place]))


def summed_to(x: TypedTerm, shape: Sequence[Dim]) -> TypedTerm:
    """The adjoint of broadcasting: sums over the axes that broadcasting from ``shape`` added or widened."""
    lead = x.rank - len(shape)
    widened = tuple(a for a in range(lead, x.rank) if shape[a - lead] == 1 and x.shape[a] != 1)
    if lead:
        x = apply("ReduceSum", x, axes=tuple(range(lead)), keepdims=0)
    if widened:
        x = apply("ReduceSum", x, axes=tuple(a - lead for a in widened), keepdims=1)
    return x


# -- Declared derivatives ------------------------------------------------------------------------------------------
#
# A *pullback* (VJP) maps the cotangent of each output to the cotangents of the operands; a *pushforward* (JVP) maps
# tangents of operands to tangents of outputs. Both are terms over operators, so they can be emitted, differentiated
# again and proved: ``superopt gradients check`` proves declared and derived ones alike.


class NotDifferentiable(Unsupported):
    """The operator, or this use of it, has no derivative that superopt can write. Says why."""


@dataclass(frozen=True)
class DifferentiationSite:
    """One application of an operator.

    Attributes:
        op: the operator's name.
        args: operands; ``None`` for an absent one.
        attributes: in canonical form.
        wanted: positions of the operands that move.
        makers: applications that make an operand for this one alone, by position: what is said of such an operand may
            be said by theirs.
    """

    op: str
    args: tuple[TypedTerm | None, ...]
    attributes: Mapping[str, AttributeValue]
    wanted: frozenset[int]
    makers: Mapping[int, DifferentiationSite] = field(default_factory=dict)

    def arg(self, place: int) -> TypedTerm:
        """An operand that is there."""
        found = self.args[place]
        assert found is not None, f"operand {place} of {self.op} is absent"
        return found

    def ints(self, name: str) -> tuple[int, ...]:
        """A list attribute of known integers.

        Raises:
            NotDifferentiable: it is not.
        """
        value = self.attributes[name]
        if not isinstance(value, tuple) or not all(isinstance(v, int) for v in value):
            raise NotDifferentiable(f"{self.op} with {name} {value} that is not known")
        return tuple(v for v in value if isinstance(v, int))

    def dims(self, name: str) -> tuple[Dim, ...]:
        """A list attribute of sizes, which may be symbolic."""
        value = self.attributes[name]
        assert isinstance(value, tuple)
        return tuple(v for v in value if not isinstance(v, float | str | tuple))

    def int(self, name: str) -> int:
        """A known integer attribute.

        Raises:
            NotDifferentiable: it is not.
        """
        value = self.attributes[name]
        if not isinstance(value, int):
            raise NotDifferentiable(f"{self.op} with {name} {value} that is not known")
        return value

    def number(self, name: str) -> Number:
        """A real attribute, which may be symbolic.

        Raises:
            NotDifferentiable: it is not a number.
        """
        value = self.attributes[name]
        if not isinstance(value, int | float | SizePolynomial):
            raise NotDifferentiable(f"{self.op} with {name} {value!r}")
        return value

    def size(self, name: str) -> Dim:
        """An integer attribute, which may be symbolic."""
        value = self.attributes[name]
        assert isinstance(value, int | SizePolynomial), f"{name} of {self.op} is an integer"
        return value

    def outputs(self) -> tuple[TypedTerm, ...]:
        """What the application computes: the same terms as the forward pass, so the same values."""
        return apply_all(self.op, *self.args, **self.attributes)

    def output(self) -> TypedTerm:
        """The first output."""
        return self.outputs()[0]

    def again(self, *args: TypedTerm | None) -> tuple[TypedTerm, ...]:
        """The same operator with the same attributes, of other operands."""
        return apply_all(self.op, *args, **self.attributes)


Cotangents = Mapping[int, TypedTerm]
Tangents = Sequence[TypedTerm | None]


@dataclass(frozen=True)
class OperatorDerivative:
    """Declared derivatives; what is left out is derived.

    Attributes:
        pullback: from the site and the cotangents of its outputs (``None``: does not matter): by operand.
        pushforward: from the site and tangents of its operands (``None``: stays): of its outputs.
        expansion: the operator's outputs by other operators, through which both are taken.
        statistics: operands that are measured, not learnt: a training step leaves weights there alone.
        refused: why none is taken, though its meaning is constant between jumps; "": it is taken.
    """

    pullback: Callable[[DifferentiationSite, Tangents], Cotangents] | None = None
    pushforward: Callable[[DifferentiationSite, Tangents], Tangents] | None = None
    expansion: Callable[[DifferentiationSite], TypedTerm] | None = None
    statistics: tuple[int, ...] = ()
    refused: str = ""


def linear_in(
    *places: int, keep: Callable[[int, DifferentiationSite], Sequence[TypedTerm | None]] | None = None
) -> Callable[[DifferentiationSite, Tangents], Tangents]:
    """The pushforward of an operator that is linear in each of these operands: itself, each moved in turn.

    Args:
        places: the operands; none for all of a variadic operator at once (linear in all together).
        keep: the other operands to apply it to when one of these moves; by default, all as they are.
    """

    def pushforward(site: DifferentiationSite, tangents: Tangents) -> Tangents:
        if not places:
            whole = [
                t if t is not None or a is None else constant(0, a.dtype, a.shape)
                for a, t in zip(site.args, tangents, strict=True)
            ]
            return site.again(*whole)
        total: list[TypedTerm] | None = None
        for place in places:
            moved = tangents[place] if place < len(tangents) else None
            if moved is None:
                continue
            others = list(site.args if keep is None else keep(place, site))
            others[place] = moved
            parts = site.again(*others)
            total = list(parts) if total is None else [a + b for a, b in zip(total, parts, strict=True)]
        return total if total is not None else [None]

    return pushforward
