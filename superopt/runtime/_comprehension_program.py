"""A comprehension lowered for evaluation: subexpressions numbered, equal ones once, sizes put in, indices affine.

Everything is iterative: a Concat of a thousand inputs is a chain of a thousand ``ScalarConditional``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from superopt.ir.size_polynomial import Dim, SizePolynomial, atoms, substitute, symbols
from superopt.ops.operator_semantics import (
    ElementRead,
    ScalarCall,
    ScalarConditional,
    ScalarConstant,
    ScalarExpression,
    ScalarReduction,
    SizeExpression,
    TensorComprehension,
    parts,
    subexpressions,
)

__all__ = ["AffineIndex", "Domain", "ComprehensionProgram", "ComprehensionStep", "affine", "lower", "span"]

Domain = Mapping[str, tuple[int, int]]  # index variable → its range, first and one past the last


@dataclass(frozen=True, slots=True)
class AffineIndex:
    """``constant + Σ coefficient · variable``."""

    constant: int
    terms: tuple[tuple[str, int], ...]


# An index polynomial: affine in index variables, or anything else (products, quotients).
Form = AffineIndex | SizePolynomial


@dataclass(slots=True)
class ComprehensionStep:
    """A subexpression. ``parts`` are step numbers; ``index`` holds forms, and step numbers for dynamic indices."""

    scalar: ScalarExpression
    parts: tuple[int, ...]
    variables: tuple[str, ...] = ()  # free index variables, in the program's order
    index: tuple[Form | int, ...] = ()
    conditions: tuple[tuple[str, Form], ...] = ()
    extent: Form | None = None
    uses: int = 0
    fused: bool = False  # a product or guard that the sum around it takes apart
    stabilise: bool = False  # an addition that a logarithm or a quotient of exponentials reads
    rounded_quotient: bool = False  # a product with an inverse that a rounding reads: halves have to be halves


@dataclass(slots=True)
class ComprehensionProgram:
    """Steps in evaluation order, the last one the body; ``rank`` orders index variables, the output's first."""

    source: TensorComprehension
    steps: list[ComprehensionStep]
    axes: tuple[tuple[tuple[str, int], ...], ...]
    rank: dict[str, int]
    reals: frozenset[str]

    def sort(self, variables: Sequence[str] | frozenset[str] | set[str]) -> tuple[str, ...]:
        return tuple(sorted(variables, key=self.rank.__getitem__))


def affine(value: Dim, variables: Mapping[str, object]) -> Form:
    """A dimension over index variables only, as an affine form where it is one."""
    if isinstance(value, int):
        return AffineIndex(value, ())
    constant, terms = 0, []
    for monomial, coefficient in value.terms:
        if not monomial:
            constant = coefficient
        elif len(monomial) == 1 and isinstance(monomial[0], str) and monomial[0] in variables:
            terms.append((monomial[0], coefficient))
        else:
            return value
    return AffineIndex(constant, tuple(terms))


def span(form: AffineIndex, domain: Domain) -> tuple[int, int]:
    """Least and largest value over a domain without empty ranges."""
    low = high = form.constant
    for variable, coefficient in form.terms:
        first, stop = domain[variable]
        ends = (coefficient * first, coefficient * (stop - 1))
        low, high = low + min(ends), high + max(ends)
    return low, high


@dataclass(slots=True)
class _Lowering:
    sizes: Mapping[str, int]
    reals: frozenset[str]
    rank: dict[str, int]
    steps: list[ComprehensionStep] = field(default_factory=list)
    number: dict[int, int] = field(default_factory=dict)  # id of a scalar → its step
    known: dict[Hashable, int] = field(default_factory=dict)

    def form(self, value: Dim) -> Form:
        return affine(substitute(value, self.sizes), self.rank)

    def add(self, scalar: ScalarExpression) -> None:
        part = [self.number[id(c)] for c in parts(scalar)]
        key: Hashable
        step = ComprehensionStep(scalar, tuple(part))
        free: set[str] = set().union(*(self.steps[p].variables for p in part)) if part else set()
        match scalar:
            case ScalarConstant(value):
                key = ("number", type(value), value)
            case SizeExpression(size):
                step.index = (self.form(size),)
                key = ("size", step.index)
            case ElementRead(operand, index, outside):
                step.index = tuple(
                    self.number[id(i)] if isinstance(i, ScalarExpression) else self.form(i) for i in index
                )
                kinds = tuple(isinstance(i, int) for i in step.index)
                key = ("read", operand, step.index, kinds, None if outside is None else outside.value)
            case ScalarCall(function, _):
                key = (function, *part)
            case ScalarReduction(kind, variable, extent, _):
                step.extent = self.form(extent)
                key = ("reduce", kind, variable, step.extent, part[0])
                free.discard(variable)
                free |= self.variables(step.extent)
            case ScalarConditional(conditions, _, _):
                step.conditions = tuple((c.kind, self.form(c.size)) for c in conditions)
                key = ("where", step.conditions, *part)
            case _:
                raise TypeError(f"not a scalar of the meaning language: {scalar!r}")
        for form in (*step.index, *(f for _, f in step.conditions)):
            if not isinstance(form, int):
                free |= self.variables(form)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = len(self.steps)
            step.variables = tuple(sorted(free, key=self.rank.__getitem__))
            self.steps.append(step)
            for p in part:
                self.steps[p].uses += 1
        self.number[id(scalar)] = found

    def variables(self, form: Form) -> set[str]:
        if isinstance(form, AffineIndex):
            return {v for v, _ in form.terms}
        names = symbols(form)
        unknown = names - self.rank.keys() - self.reals
        if unknown:
            raise KeyError(f"no size is bound to {', '.join(sorted(unknown))}")
        return set(names & self.rank.keys())


def _mark(steps: list[ComprehensionStep]) -> None:
    """Which products and guards a sum takes apart, and which additions are worth keeping as exponents."""
    readers: list[list[int]] = [[] for _ in steps]
    for position, step in enumerate(steps):
        for part in step.parts:
            readers[part].append(position)

    def function(position: int) -> str:
        scalar = steps[position].scalar
        return scalar.function if isinstance(scalar, ScalarCall) else ""

    for position in range(len(steps) - 1, -1, -1):
        step = steps[position]
        in_sum = isinstance(step.scalar, ScalarReduction) and step.scalar.kind == "sum"
        if isinstance(step.scalar, ScalarReduction):
            inner = steps[step.parts[0]]
            inner.fused = isinstance(inner.scalar, ScalarReduction) and inner.scalar.kind == step.scalar.kind
        if in_sum or (step.fused and (function(position) == "mul" or isinstance(step.scalar, ScalarConditional))):
            for part in step.parts:
                steps[part].fused |= steps[part].uses == 1 and _splits(steps, steps[part])
        if function(position) == "mul" and function(step.parts[1]) == "inv":
            step.rounded_quotient = any(function(r) == "round" for r in readers[position])
        if function(position) == "add":
            step.stabilise = any(
                function(r) == "log" or (function(r) == "inv" and _beside_exponential(steps, readers[r], function))
                for r in readers[position]
            )


def _splits(steps: list[ComprehensionStep], step: ComprehensionStep) -> bool:
    if isinstance(step.scalar, ScalarConditional):
        otherwise = steps[step.parts[1]].scalar
        return isinstance(otherwise, ScalarConstant) and otherwise.value == 0
    return isinstance(step.scalar, ScalarCall) and step.scalar.function == "mul"


def _beside_exponential(steps: list[ComprehensionStep], readers: list[int], function: Callable[[int], str]) -> bool:
    return any(function(r) == "mul" and any(function(p) == "exp" for p in steps[r].parts) for r in readers)


_cache: OrderedDict[tuple[int, tuple[tuple[str, int], ...], frozenset[str]], ComprehensionProgram] = OrderedDict()


def lower(comprehension: TensorComprehension, sizes: Mapping[str, int], reals: frozenset[str]) -> ComprehensionProgram:
    """The program of a comprehension at these sizes; ``reals`` are names bound to numbers of the algebra.

    Raises:
        KeyError: a name is bound to nothing.
    """
    key = (id(comprehension), tuple(sorted(sizes.items())), reals)
    found = _cache.get(key)
    if found is not None:  # the program holds its comprehension, so an id cannot be reused
        return found
    rank = {variable: 0 for axis in comprehension.axes for variable, _ in axis}
    nodes = list(subexpressions(comprehension.body))
    for node in nodes:
        if isinstance(node, ScalarReduction):
            rank.setdefault(node.variable, 0)
    rank = {variable: position for position, variable in enumerate(rank)}
    lowering = _Lowering({k: v for k, v in sizes.items() if k not in rank}, reals, rank)
    for node in nodes:
        lowering.add(node)
    _mark(lowering.steps)
    axes = tuple(tuple((v, _whole(e, lowering.sizes)) for v, e in axis) for axis in comprehension.axes)
    program = ComprehensionProgram(comprehension, lowering.steps, axes, rank, reals)
    _cache[key] = program
    if len(_cache) > 4096:
        _cache.popitem(last=False)
    return program


def _whole(extent: Dim, sizes: Mapping[str, int]) -> int:
    value = substitute(extent, sizes)
    if isinstance(value, SizePolynomial):
        raise KeyError(f"no size is bound to {', '.join(map(str, atoms(value)))}")
    return value
