"""Meanings whose elements are read at plain indices, as operators; and their derivatives, in both directions.

Every scalar of such a meaning is a tensor over the index variables that it depends on. A *slot* is a place among the
axes, counted from the last: output variables have those of the output, a variable of a reduction has that at which
it is read, if nothing else is there at the same time, else one in front. So broadcasting does the rest: pointwise
functions need no other operators than themselves, and the mean in a normalisation is a reduction that keeps its axis.
Guards and positions that are computed are not treated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import prod

from superopt.ir.size_polynomial import Dim, SizePolynomial, sym, symbols
from superopt.ir.terms import OperatorTerm
from superopt.ir.types import DType
from superopt.ops.derivative.scalar_derivatives import STEPS, chain, choices, is_constant, partials, tangent_of
from superopt.ops.derivative.typed_terms import (
    TypedTerm,
    apply,
    cast,
    constant,
    expanded,
    reversed_perm,
    squeezed,
    transposed,
    unsqueezed,
)
from superopt.ops.operator_semantics import (
    ElementRead,
    ScalarCall,
    ScalarConstant,
    ScalarExpression,
    ScalarReduction,
    SizeExpression,
    TensorComprehension,
    inverse,
    number,
    parts,
    subexpressions,
)  # fmt: skip

__all__ = ["NotLowerable", "pullback", "pushforward"]

# The operator that is the function of elements.
OPERATORS: Mapping[str, str] = {
    "add": "Add", "mul": "Mul", "max": "Max", "min": "Min", "inv": "Reciprocal", "pow": "Pow", "exp": "Exp",
    "log": "Log", "sqrt": "Sqrt", "erf": "Erf", "tanh": "Tanh", "sin": "Sin", "cos": "Cos", "tan": "Tan",
    "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "asinh": "Asinh",
    "acosh": "Acosh", "atanh": "Atanh", "floor": "Floor", "ceil": "Ceil", "round": "Round", "abs": "Abs",
    "sign": "Sign", "less": "Less", "equal": "Equal", "not": "Not", "and": "And", "or": "Or", "xor": "Xor",
}  # fmt: skip
REDUCTIONS = {"sum": "ReduceSum", "max": "ReduceMax", "min": "ReduceMin", "prod": "ReduceProd"}


class NotLowerable(Exception):
    """The meaning does something that is no operator on whole tensors. Says what."""


def pushforward(
    output: TensorComprehension, args: Sequence[TypedTerm | None], tangents: Sequence[TypedTerm | None]
) -> TypedTerm | None:
    """The tangent of an output; ``None`` where it does not move.

    Args:
        output: the meaning of the output.
        args: the operands.
        tangents: theirs, one for each; ``None`` for one that stays.

    Raises:
        NotLowerable: the meaning is not treated.
    """
    moving = {p: len(args) + p for p, t in enumerate(tangents) if t is not None}
    body = tangent_of(output.body, moving)
    if body is None:
        return None
    moved = next(t for t in tangents if t is not None)
    run = _Lowering(TensorComprehension(output.axes, body), [*args, *tangents], moved.dtype)
    return run.gathered(run.number(body), run.outer, output.shape)


def pullback(
    output: TensorComprehension, args: Sequence[TypedTerm | None], wanted: frozenset[int], given: TypedTerm
) -> dict[int, TypedTerm]:
    """The cotangents of the wanted operands from that of an output; those that do not matter are left out.

    Raises:
        NotLowerable: the meaning is not treated.
    """
    run = _Lowering(output, args, given.dtype)
    return run.reverse(wanted, given)


def plus(known: TypedTerm | None, part: TypedTerm) -> TypedTerm:
    if known is None:
        return part
    return part * 2 if known.term == part.term else known + part


class _Lowering:
    """A comprehension over typed operands.

    Attributes:
        outer: the variable of each axis of the output, "" where it has size 1.
        extents: the range of each variable.
        free: the variables that each scalar depends on, by identity.
        slots: the place of each variable among the axes, counted from the last.
    """

    def __init__(self, output: TensorComprehension, operands: Sequence[TypedTerm | None], dtype: DType) -> None:
        self.body = output.body
        self.operands = operands
        self.dtype = dtype
        self.extents: dict[str, Dim] = {}
        self.outer: list[str] = []
        for axis in output.axes:
            if len(axis) > 1:
                raise NotLowerable("an axis of several digits")
            self.outer.append(axis[0][0] if axis else "")
            self.extents.update(axis)
        self.nodes = list(subexpressions(output.body))
        self.extents.update((n.variable, n.extent) for n in self.nodes if isinstance(n, ScalarReduction))
        self.free: dict[int, frozenset[str]] = {}
        for node in list(self.nodes):
            self.names(node)
        self.slots: dict[str, int] = {}
        self.place()
        self.made: dict[int, TypedTerm] = {}

    # ── which axes

    def names(self, node: ScalarExpression) -> frozenset[str]:
        """The index variables that a scalar depends on."""
        if id(node) not in self.free:
            found: frozenset[str] = frozenset().union(*(self.names(p) for p in parts(node)))
            if isinstance(node, ScalarReduction):
                found -= {node.variable}
            if isinstance(node, ElementRead):
                found |= {n for n in self.indices(node) if n}
            if isinstance(node, SizeExpression) and symbols(node.size) & self.extents.keys():
                raise NotLowerable("a number that depends on the position")
            self.free[id(node)] = found
            self.nodes.append(node)  # keeps its identity
        return self.free[id(node)]

    def indices(self, node: ElementRead) -> list[str]:
        """The variable at each index of a read; "" for position 0 of an axis of size 1."""
        operand = self.operands[node.operand]
        assert operand is not None
        found: list[str] = []
        if node.outside is not None:
            raise NotLowerable("reads outside an operand")
        for index, size in zip(node.index, operand.shape, strict=True):
            name = next(iter(symbols(index)), "") if isinstance(index, SizePolynomial) else ""
            if isinstance(index, ScalarExpression) or (name and (index != sym(name) or name not in self.extents)):
                raise NotLowerable("a position that is computed")
            if (not name and size != 1) or (name and name in found):
                raise NotLowerable("a part of an operand")
            found.append(name)
        return found

    def place(self) -> None:
        """Give every variable its slot: as the output has it, or as a larger operand is read."""
        together = [self.free[id(n)] for n in self.nodes if len(self.free[id(n)]) > 1]
        together.append(frozenset(n for n in self.outer if n))
        reads = [self.outer, *(self.indices(n) for n in self.nodes if isinstance(n, ElementRead))]
        widest = max(reads, key=len)
        rank = len(widest)
        for name in dict.fromkeys((*filter(None, widest), *filter(None, self.outer), *self.extents)):
            beside = {v for group in together if name in group for v in group}
            taken = {self.slots[v] for v in beside if v in self.slots}
            wished = [len(r) - 1 - r.index(name) for r in (widest, *reads) if name in r]
            free = [s for s in wished if s not in taken]
            self.slots[name] = free[0] if free else rank
            rank = max(rank, self.slots[name] + 1)

    # ── values

    def value(self, node: ScalarExpression) -> TypedTerm:
        """The tensor of a scalar's values."""
        if id(node) not in self.made:
            self.names(node)
            self.made[id(node)] = self.lowered(node)
        return self.made[id(node)]

    def number(self, node: ScalarExpression) -> TypedTerm:
        """The same as numbers that can be calculated with: 0 and 1 for booleans, reals for integers."""
        return cast(self.value(node), self.dtype)

    def lowered(self, node: ScalarExpression) -> TypedTerm:
        match node:
            case ScalarConstant(value):
                return constant(value, self.dtype)
            case SizeExpression(size):
                return constant(size, self.dtype)
            case ElementRead():
                return self.read(node)
            case ScalarReduction():
                return self.reduced(node)
            case ScalarCall(function, args):
                return self.called(function, args)
        raise NotLowerable("a guard")

    def read(self, node: ElementRead) -> TypedTerm:
        x = self.operands[node.operand]
        assert x is not None
        return self.spread(cast(x, self.dtype) if x.dtype.is_float else x, self.indices(node))

    def spread(self, x: TypedTerm, names: Sequence[str]) -> TypedTerm:
        """A tensor whose axes are these variables, with its axes in their slots."""
        if all(not n or self.slots[n] == x.rank - 1 - a for a, n in enumerate(names)):
            return x
        kept, perm = self.arranged(names)
        x = transposed(squeezed(x, [a for a, n in enumerate(names) if not n]), perm)
        slots = sorted((self.slots[n] for n in kept), reverse=True)
        rank = slots[0] + 1
        return unsqueezed(x, [rank - 1 - s for s in range(rank - 1, -1, -1) if s not in slots])

    def gathered(self, x: TypedTerm, names: Sequence[str], shape: Sequence[Dim]) -> TypedTerm:
        """The reverse of :meth:`spread`, for a tensor that may have to be broadcast along some of the variables."""
        if all(not n or self.slots[n] == len(shape) - 1 - a for a, n in enumerate(names)):
            return expanded(squeezed(x, range(max(x.rank - len(shape), 0))), shape)
        kept, perm = self.arranged(names)
        slots = [self.slots[kept[p]] for p in perm]
        full: list[Dim] = [1] * (slots[0] + 1)
        for name in kept:
            full[slots[0] - self.slots[name]] = self.extents[name]
        x = expanded(squeezed(x, range(max(x.rank - len(full), 0))), full)
        x = squeezed(x, [a for a in range(len(full)) if slots[0] - a not in slots])
        return unsqueezed(transposed(x, reversed_perm(perm)), [a for a, n in enumerate(names) if not n])

    def arranged(self, names: Sequence[str]) -> tuple[list[str], tuple[int, ...]]:
        """The variables of a read in its order, and the permutation that sorts them by slot."""
        kept = [n for n in names if n]
        return kept, tuple(sorted(range(len(kept)), key=lambda p: -self.slots[kept[p]]))

    def reduced(self, node: ScalarReduction) -> TypedTerm:
        spans, inner = chain(node)
        return self.reduction(node.kind, [v for v, _ in spans], self.number(inner))

    def reduction(self, kind: str, names: Sequence[str], x: TypedTerm) -> TypedTerm:
        """Reduce the axes of variables; they stay with size 1."""
        there = [n for n in names if self.slots[n] < x.rank and x.shape[x.rank - 1 - self.slots[n]] != 1]
        if there:
            axes = tuple(sorted(x.rank - 1 - self.slots[n] for n in there))
            x = apply(REDUCTIONS[kind], x, axes=axes, keepdims=1)
        missing = [self.extents[n] for n in names if n not in there]
        if missing and kind == "prod":
            raise NotLowerable("a power")
        return x * prod(missing, start=1) if missing and kind == "sum" else x

    def called(self, function: str, args: tuple[ScalarExpression, ...]) -> TypedTerm:
        match function:
            case "select":
                return apply("Where", self.boolean(args[0]), self.number(args[1]), self.number(args[2]))
            case "truncmod":
                return apply("Mod", self.value(args[0]), self.value(args[1]), fmod=1)
            case "not":
                return self.negated(args[0])
            case "and" | "or" | "xor":
                return apply(OPERATORS[function], *map(self.boolean, args))
            case "mul":
                return self.product(*args)
            case "equal" if args[1] == ScalarConstant(Fraction(0)) and self.value(args[0]).dtype is DType.BOOL:
                return self.negated(args[0])
            case "less" if is_constant(args[0]):
                return apply("Greater", self.number(args[1]), self.number(args[0]))
            case "add":
                for plus, minus in (args, args[::-1]):
                    if (
                        isinstance(minus, ScalarCall)
                        and minus.function == "mul"
                        and minus.args[0] == ScalarConstant(Fraction(-1))
                    ):
                        return self.number(plus) - self.number(minus.args[1])
        if function not in OPERATORS:
            raise NotLowerable(f"the function {function}")
        return apply(OPERATORS[function], *map(self.number, args))

    def negated(self, node: ScalarExpression) -> TypedTerm:
        if isinstance(node, ScalarCall) and node.function == "less":
            return apply("GreaterOrEqual", *map(self.number, node.args))
        inner = self.boolean(node)
        if isinstance(inner.term, OperatorTerm) and inner.term.op == "Not" and inner.term.args[0] is not None:
            return TypedTerm(inner.term.args[0], inner.type)
        return apply("Not", inner)

    def product(self, a: ScalarExpression, b: ScalarExpression) -> TypedTerm:
        """A product: a mean, a quotient, a change of sign or a choice where it is one."""
        for one, other in ((a, b), (b, a)):
            if isinstance(one, ScalarReduction) and one.kind == "sum" and (mean := self.mean(one, other)) is not None:
                return mean
        for one, other in ((a, b), (b, a)):
            if one == ScalarConstant(Fraction(-1)):
                return -self.number(other)
            if one == ScalarConstant(Fraction(1)):
                return self.number(other)
            if isinstance(one, ScalarCall) and one.function == "inv":
                return self.number(other) / self.number(one.args[0])
            if isinstance(one, ScalarCall) and one.function == "select" and {*one.args[1:]} == {number(0), number(1)}:
                return self.times(self.number(other), one)
            if self.value(one).dtype is DType.BOOL:
                return apply("Where", self.value(one), self.number(other), constant(0, self.dtype))
        return self.number(a) * self.number(b)

    def mean(self, node: ScalarReduction, share: ScalarExpression) -> TypedTerm | None:
        """The mean that a sum is when multiplied by this; ``None`` where it is none."""
        spans, inner = chain(node)
        x = self.number(inner)
        axes = tuple(sorted(x.rank - 1 - self.slots[v] for v, _ in spans))
        whole = min(axes) >= 0 and all(x.shape[axis] != 1 for axis in axes)
        if whole and share == inverse(prod((self.extents[v] for v, _ in spans), start=1)):
            return apply("ReduceMean", x, axes=axes, keepdims=1)
        return None

    def boolean(self, node: ScalarExpression) -> TypedTerm:
        found = self.value(node)
        return found if found.dtype is DType.BOOL else apply("Not", apply("Equal", found, constant(0, found.dtype)))

    # ── in reverse

    def reverse(self, wanted: frozenset[int], given: TypedTerm) -> dict[int, TypedTerm]:
        order = list(subexpressions(self.body))
        moves: dict[int, bool] = {}
        for node in order:
            direct = isinstance(node, ElementRead) and node.operand in wanted
            step = isinstance(node, ScalarCall) and node.function in STEPS
            inner = () if isinstance(node, ElementRead) else parts(node)
            moves[id(node)] = direct or (not step and any(moves[id(p)] for p in inner))
        still = sorted(set(filter(None, self.outer)) - self.names(self.body))
        adjoints: dict[int, TypedTerm] = {}
        if moves[id(self.body)]:
            adjoints[id(self.body)] = self.reduction("sum", still, self.spread(given, self.outer))
        found: dict[int, TypedTerm] = {}
        for node in reversed(order):
            if id(node) not in adjoints:
                continue
            g = adjoints[id(node)]
            if isinstance(node, ElementRead):
                found[node.operand] = plus(found.get(node.operand), self.returned(node, g))
                continue
            for moved, contribution in self.contributions(node, g, moves):
                part = self.reduction("sum", sorted(self.names_under(node, moved)), contribution)
                adjoints[id(moved)] = plus(adjoints.get(id(moved)), part)
        return found

    def names_under(self, node: ScalarExpression, inner: ScalarExpression) -> frozenset[str]:
        """Variables over which an operand's cotangent is summed: the operand does not depend on them."""
        return self.names(node) - self.names(inner)

    def contributions(
        self, node: ScalarExpression, g: TypedTerm, moves: Mapping[int, bool]
    ) -> list[tuple[ScalarExpression, TypedTerm]]:
        """Each moving part of a scalar with its share of the cotangent."""
        match node:
            case ScalarCall(function, args):
                factors = choices(function, args)
                shares = factors or partials(function, args, [moves[id(a)] for a in args])
                return [(a, self.times(g, f)) for a, f in zip(args, shares, strict=True) if moves[id(a)]]
            case ScalarReduction(kind):
                spans, inner = chain(node)
                names = [v for v, _ in spans]
                if kind == "sum":
                    return [(inner, g)]
                if kind == "prod":
                    return [(inner, g * self.value(node) / self.number(inner))]
                reached = apply("Equal", self.number(inner), self.value(node))
                count = self.reduction("sum", names, cast(reached, self.dtype))
                return [(inner, apply("Where", reached, g / count, constant(0, self.dtype)))]
        raise NotLowerable("a guard")

    def times(self, g: TypedTerm, factor: ScalarExpression) -> TypedTerm:
        """A cotangent times a factor: nothing more for 1 and -1, a quotient, a choice."""
        if factor == number(1):
            return g
        self.names(factor)
        if isinstance(factor, ScalarCall) and factor.function == "mul":
            first, second = factor.args
            if first == ScalarConstant(Fraction(-1)):
                return -self.times(g, second)
            if isinstance(second, ScalarCall) and second.function == "inv":
                return self.times(g, first) / self.number(second.args[0])
        if isinstance(factor, ScalarCall) and factor.function == "inv":
            return g / self.number(factor.args[0])
        if factor == ScalarConstant(Fraction(-1)):
            return -g
        if isinstance(factor, ScalarCall) and factor.function == "select":
            zero, taken = constant(0, self.dtype), factor.args[1] == number(1)
            return apply("Where", self.boolean(factor.args[0]), *((g, zero) if taken else (zero, g)))
        if (
            isinstance(factor, ScalarCall)
            and factor.function == "not"
            and self.value(factor.args[0]).dtype is DType.BOOL
        ):
            return apply("Where", self.value(factor.args[0]), constant(0, self.dtype), g)
        share = self.value(factor)
        return apply("Where", share, g, constant(0, self.dtype)) if share.dtype is DType.BOOL else g * share

    def returned(self, node: ElementRead, g: TypedTerm) -> TypedTerm:
        """A cotangent of a read, as one of the operand that is read."""
        x = self.operands[node.operand]
        assert x is not None
        return cast(self.gathered(g, self.indices(node), x.shape), x.dtype)
