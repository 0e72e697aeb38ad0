"""An expression over known weights for a weight that is known by its fingerprints alone.

Terms over the weights are built bottom-up by value: the weights themselves, what the meanings of the left side's
operators compute of weights and sizes alone, constants, and what operators make of these: products, sums, movements
into the shapes that are asked for. A weight is looked up among them, and among the sums of two and of three of them,
which meet in the middle because fingerprints are linear. Everything is typed by symbols and compared at several
concrete places; nothing found is believed before it is proved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import combinations, combinations_with_replacement, permutations, product
from math import prod

from superopt.discovery.candidates import operator_count
from superopt.discovery.result_cache import UNBOUNDED, ResourceBounds
from superopt.discovery.symbolic_generalisation import SynthesisProblem
from superopt.discovery.weight_equations import SampledProblemInstance, WeightConstraints, meanings_of, residues
from superopt.ir.size_polynomial import Dim, SizePolynomial, symbols
from superopt.ir.terms import AttributeValue, OperatorTerm, Term, VariableTerm, variables
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.ops.operator_semantics import (
    ElementRead,
    IllTypedOperator,
    ScalarCall,
    ScalarConstant,
    ScalarExpression,
    SizeExpression,
    broadcast_dims,
    subexpressions,
)
from superopt.rules.rule import scalar
from superopt.rules.scanner import RuleError
from superopt.rules.typing import complete, operator_of
from superopt.runtime.comprehension_evaluation import Array
from superopt.verifier.exact.algebra import MODULUS, InverseOfZero, NeedsOrder

__all__ = ["WeightTermTable", "extents", "seeds"]

_MOST = 1500  # values in a table
_SUMMANDS = 160  # of one type, among which sums of three are looked for
Marks = tuple[int, ...]


@dataclass(frozen=True)
class WeightTerm:
    """A term over weights, its type, its value at each place, and its number of operators beyond the seeds."""

    term: Term
    kind: TensorType
    values: tuple[Array, ...]

    @property
    def shape(self) -> tuple[Dim, ...]:
        assert self.kind.shape is not None
        return self.kind.shape


class WeightTermTable:
    """Values over the weights of a problem, by type.

    Args:
        problem: its weights are the leaves.
        places: where values are compared.
        shapes: of the weights that will be asked for.
        bounds: of time and memory, which :meth:`grow` keeps.
    """

    def __init__(
        self,
        problem: SynthesisProblem,
        assignments: Sequence[SampledProblemInstance],
        shapes: Sequence[tuple[Dim, ...]],
        bounds: ResourceBounds = UNBOUNDED,
    ) -> None:
        self.assignments = assignments
        self.bounds = bounds
        self.goals = tuple(dict.fromkeys(shapes))
        self.wanted = tuple(dict.fromkeys(s for g in self.goals for s in _broadcasts(g)))
        self.items: list[WeightTerm] = []
        self.known: dict[tuple[TensorType, bytes], int] = {}
        self.level: list[int] = [0]
        kinds = problem.kinds
        for name in sorted(problem.weights & kinds.keys()):
            self._insert(WeightTerm(VariableTerm(name), kinds[name], tuple(p.weights[name] for p in assignments)))
        self.leaves = {VariableTerm(i.term.name): i for i in self.items if isinstance(i.term, VariableTerm)}
        for term in (*seeds(problem), *self._constants()):
            self._term(term)
        self.level.append(len(self.items))

    def grow(self) -> bool:
        """The next level: movements of everything, products and sums with what is small. Whether there is more.

        Raises:
            ResourceBoundsExceeded: time or memory is used up.
        """
        before, start = len(self.items), self.level[-2]
        fresh = self.items[start:before]
        moved = [new_item for item in fresh for new_item in self._moved(item)]
        first = self.items[: self.level[1]]
        for a in fresh:
            self.bounds.check()
            for b in (*first, *(moved if len(self.level) == 2 else ())):
                self._products(a, b)
        for a, b in combinations_with_replacement(moved, 2) if len(self.level) == 2 else ():
            self._combined("Mul", a, b)
        self.level.append(len(self.items))
        return len(self.items) > before and len(self.items) < _MOST

    def _moved(self, item: WeightTerm) -> list[WeightTerm]:
        """Movements of a value, as far as they are new: padded ones are summands, and not returned."""
        start = len(self.items)
        for op, attributes in self._movements(item):
            self._apply(op, (item,), attributes)
        return [i for i in self.items[start:] if isinstance(i.term, OperatorTerm) and i.term.op != "Pad"]

    def _products(self, a: WeightTerm, b: WeightTerm) -> None:
        """Products of two values; sums of what is no shape asked for: those are looked up as sums."""
        self._combined("Mul", a, b)
        if not (a.shape in self.goals or b.shape in self.goals):
            self._combined("Add", a, b)
            self._combined("Sub", a, b)
            self._combined("Sub", b, a)
        for left, right in ((a, b), (b, a)):
            if left.shape and right.shape and left.shape[-1] == right.shape[max(0, len(right.shape) - 2)]:
                self._apply("MatMul", (left, right), ())

    def find(self, kind: TensorType, wanted: Sequence[WeightConstraints]) -> Term | None:
        """A term that is the weight asked for at all places: one of the table, or a sum of two or three."""
        goal = tuple(v for w in wanted for v in w.values)
        fitting = sorted((i for i in self.items if i.kind == kind), key=lambda i: operator_count(i.term))
        marked = [(self._marks(i, wanted), i.term) for i in fitting]
        if not any(goal):
            return OperatorTerm("ConstantOfShape", (), (("shape", tuple(kind.shape or ())), ("value", 0.0)))
        for count in (1, 2, 3):
            term = _sum(goal, marked[:_SUMMANDS] if count == 3 else marked, count)
            if term is not None:
                return term
        return None

    def _marks(self, item: WeightTerm, wanted: Sequence[WeightConstraints]) -> Marks:
        return tuple(m for v, w in zip(item.values, wanted, strict=True) for m in w.marks(residues(v)))

    # ---- building ------------------------------------------------------------------------------------------------
    def _constants(self) -> Iterator[Term]:
        sizes = dict.fromkeys(d for g in self.goals for d in g if isinstance(d, SizePolynomial))
        for goal in self.goals:
            yield OperatorTerm("ConstantOfShape", (), (("shape", goal), ("value", 1.0)))
        for size in sizes:
            if any(goal.count(size) > 1 for goal in self.goals):
                yield OperatorTerm("EyeLike", (), (("k", 0), ("shape", (size, size))))

    def _movements(self, item: WeightTerm) -> Iterator[tuple[str, tuple[tuple[str, AttributeValue], ...]]]:
        """Ways to bring a value into a shape that is asked for: reshaped, transposed, padded."""
        count = prod(item.shape, start=1)
        for shape in self.wanted:
            if shape != item.shape and prod(shape, start=1) == count:
                yield "Reshape", (("shape", shape),)
        if len(item.shape) > 1:
            for perm in permutations(range(len(item.shape))):
                turned = tuple(item.shape[a] for a in perm)
                if perm != tuple(range(len(perm))) and (turned in self.wanted or len(perm) == 2):
                    yield "Transpose", (("perm", perm),)
        for goal in self.goals:
            for pads in _paddings(item.shape, goal):
                yield "Pad", (("pads", pads), ("value", 0.0))

    def _term(self, term: Term) -> None:
        """A term over the leaves, evaluated application by application."""
        try:
            meanings, kind = meanings_of(term, {v.name: i.kind for v, i in self.leaves.items()})
            values = []
            for number, assignment in enumerate(self.assignments):
                arrays: dict[Term, Array] = {v: i.values[number] for v, i in self.leaves.items()}
                for app, outputs in meanings.items():
                    arrays[app] = assignment.value(outputs[0], [None if a is None else arrays[a] for a in app.args])
                values.append(arrays[term])
        except (IllTypedOperator, RuleError, InverseOfZero, NeedsOrder, ZeroDivisionError, KeyError):
            return
        self._insert(WeightTerm(term, kind, tuple(values)))

    def _combined(self, op: str, left: WeightTerm, right: WeightTerm) -> None:
        """An elementwise operator on two values whose shapes are equal or broadcast by sizes that are 1."""
        if len(self.items) >= _MOST or not _fit(left.shape, right.shape):
            return
        values = []
        for assignment, a, b in zip(self.assignments, left.values, right.values, strict=True):
            field = assignment.algebra
            second = field.function("mul", field.constant(-1.0), b) if op == "Sub" else b
            values.append(field.function("mul" if op == "Mul" else "add", a, second))
        kind = TensorType(left.kind.dtype, broadcast_dims([left.shape, right.shape]))
        self._insert(WeightTerm(OperatorTerm(op, (left.term, right.term)), kind, tuple(values)))

    def _apply(
        self, op: str, operands: tuple[WeightTerm, ...], attributes: tuple[tuple[str, AttributeValue], ...]
    ) -> None:
        if len(self.items) >= _MOST:
            return
        term = OperatorTerm(op, tuple(i.term for i in operands), attributes)
        try:
            meaning, outputs = REGISTRY[op].apply([i.kind for i in operands], complete(term))
            if any(c.kind == "eq" for c in meaning.obligations):
                return
            values = tuple(
                p.value(meaning.outputs[0], [i.values[n] for i in operands]) for n, p in enumerate(self.assignments)
            )
        except (IllTypedOperator, RuleError, InverseOfZero, NeedsOrder, ZeroDivisionError, KeyError):
            return
        self._insert(WeightTerm(term, outputs[0], values))

    def _insert(self, item: WeightTerm) -> None:
        key = (item.kind, b"".join(residues(v).tobytes() for v in item.values))
        if key not in self.known and len(self.items) < _MOST:
            self.known[key] = len(self.items)
            self.items.append(item)


def _fit(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
    return all(x == y or x == 1 or y == 1 for x, y in zip(reversed(a), reversed(b), strict=False))


def _broadcasts(shape: tuple[Dim, ...]) -> Iterator[tuple[Dim, ...]]:
    """The shape, and it with some axes of size 1 instead: what broadcasts to it."""
    yield shape
    for count in range(1, len(shape)):
        for some in combinations(range(len(shape)), count):
            yield tuple(1 if i in some else d for i, d in enumerate(shape))


def _paddings(shape: tuple[Dim, ...], goal: tuple[Dim, ...]) -> Iterator[tuple[Dim, ...]]:
    """Pads that bring a shape to another, their sizes split between both sides along each axis."""
    if len(shape) != len(goal) or shape == goal:
        return
    ways = [list(_split(b - a)) for a, b in zip(shape, goal, strict=True)]
    for chosen in product(*ways):
        yield (*(before for before, _ in chosen), *(after for _, after in chosen))


def _split(size: Dim) -> Iterator[tuple[Dim, Dim]]:
    """A size as two summands: its terms before or behind."""
    if isinstance(size, int):
        if size == 0:
            yield 0, 0
        elif size > 0:
            yield from ((size // 2, size - size // 2), (0, size), (size, 0))
        return
    parts = [SizePolynomial(((m, c),)) for m, c in size.terms if m]
    if len(parts) > 2 or len(parts) < len(size.terms) or any(c < 0 for _, c in size.terms):
        return
    for sides in product((True, False), repeat=len(parts)):
        before: Dim = 0
        after: Dim = 0
        for part, first in zip(parts, sides, strict=True):
            before, after = (before + part, after) if first else (before, after + part)
        yield before, after


def _sum(goal: Marks, marked: Sequence[tuple[Marks, Term]], count: int) -> Term | None:
    """So many terms, with signs, whose marks add up to the goal's."""
    index: dict[Marks, Term] = {}
    for marks, term in marked:
        index.setdefault(marks, term)
    for chosen in combinations(marked, count - 1):
        for signs in product((1, -1), repeat=count - 1):
            rest = goal
            for sign, (marks, _) in zip(signs, chosen, strict=True):
                rest = tuple((r - sign * m) % MODULUS for r, m in zip(rest, marks, strict=True))
            for sign in (1, -1):
                last = index.get(rest if sign == 1 else tuple(-r % MODULUS for r in rest))
                if last is not None:
                    return _added([*zip(signs, (t for _, t in chosen), strict=True), (sign, last)])
    return None


def _added(parts: Sequence[tuple[int, Term]]) -> Term:
    """The sum of signed terms."""
    ordered = sorted(parts, key=lambda p: -p[0])
    sign, total = ordered[0]
    if sign < 0:
        return OperatorTerm("Neg", (_added([(1, t) for _, t in ordered]),))
    for sign, term in ordered[1:]:
        total = OperatorTerm("Add" if sign > 0 else "Sub", (total, term))
    return total


# ── what meanings compute of weights alone ────────────────────────────────────────────────────────────────────────────


def seeds(problem: SynthesisProblem) -> list[Term]:
    """What the meanings compute of weights and sizes alone, as terms: ``q / √(v + ε)`` of a normalisation."""
    meanings, _ = meanings_of(problem.term, problem.kinds)
    found: dict[Term, None] = {}
    for app, outputs in meanings.items():
        operands = [a if a is not None and set(variables(a)) <= problem.weights else None for a in app.args]
        for part in subexpressions(outputs[0].body):
            if isinstance(part, ScalarCall | SizeExpression | ScalarConstant):
                made = _as_term(part, operands)
                if made is not None:
                    found[made[0]] = None
        if app.op == "Conv" and isinstance(operands[1], VariableTerm):
            spaced = _spaced(
                operands[1], problem.kinds[operands[1].name].shape or (), dict(app.attributes)["dilations"]
            )
            found |= {} if spaced is None else {spaced: None}
    return list(found)


def _spaced(kernel: Term, shape: tuple[Dim, ...], dilations: AttributeValue) -> Term | None:
    """A kernel with the zeros between its taps written out: what it is without dilation; ``None`` where it is."""
    assert isinstance(dilations, tuple)
    out, channels, *window = shape
    if all(d == 1 or u == 1 for d, u in zip(dilations, window, strict=True)):
        return None
    axes, extent = len(window), extents(window, dilations)
    one = OperatorTerm("ConstantOfShape", (), (("shape", (1,) * len(shape)), ("value", 1.0)))
    apart = OperatorTerm("Reshape", (kernel,), (("shape", (out * channels, 1, *window)),))
    spread = OperatorTerm("ConvTranspose", (apart, one), (
        ("dilations", (1,) * axes), ("group", 1), ("output_padding", (0,) * axes), ("pads", (0,) * 2 * axes),
        ("strides", dilations),
    ))  # fmt: skip
    return OperatorTerm("Reshape", (spread,), (("shape", (out, channels, *extent)),))


def extents(window: Sequence[Dim], dilations: AttributeValue) -> tuple[Dim, ...]:
    """Between the first tap of a window and the last, both included."""
    assert isinstance(dilations, tuple)
    return tuple(d * (u - 1) + 1 for u, d in zip(window, dilations, strict=True) if isinstance(d, int | SizePolynomial))


def _as_term(part: ScalarExpression, operands: Sequence[Term | None]) -> tuple[Term, tuple[Dim, ...]] | None:
    """A scalar of weights read at one index as a term, and the index; ``None`` where it is anything else."""
    match part:
        case ScalarConstant(value):
            exact = isinstance(value, Fraction) and Fraction(float(value)) == value and value != -1  # sums have signs
            return (scalar(float(value)), ()) if exact else None
        case SizeExpression(size):
            named = all(not n[1:].isdigit() or n[0] not in "ir" for n in symbols(size))
            return (scalar(size), ()) if named else None
        case ElementRead(operand, index, None):
            term = operands[operand]
            positions = tuple(i for i in index if isinstance(i, int | SizePolynomial))
            plain = len(positions) == len(index) and all(
                isinstance(i, SizePolynomial) and _is_name(i) for i in positions
            )
            return (term, positions) if term is not None and plain and len(set(positions)) == len(positions) else None
        case ScalarCall():
            for body, operator in _operators():
                if (read := _fitted(body, part)) is None:
                    continue
                made = [_as_term(read[n], operands) for n in sorted(read)]
                inner = [m for m in made if m is not None]
                indices = {m[1] for m in inner if m[1]}
                if len(inner) == len(made) and len(indices) <= 1:
                    return OperatorTerm(operator, tuple(m[0] for m in inner)), next(iter(indices), ())
    return None


def _is_name(size: SizePolynomial) -> bool:
    return len(size.terms) == 1 and size.terms[0][1] == 1 and len(size.terms[0][0]) == 1


def _fitted(body: ScalarExpression, part: ScalarExpression) -> dict[int, ScalarExpression] | None:
    """What an operator's operands are for its body to be a scalar, by position; ``None`` where it is never."""
    match body, part:
        case ElementRead(operand), _:
            return {operand: part}
        case ScalarCall(function, args), ScalarCall(other, parts) if function == other and len(args) == len(parts):
            scalars: dict[int, ScalarExpression] = {}
            for inner, given_scalar in zip(args, parts, strict=True):
                read = _fitted(inner, given_scalar)
                if read is None or any(scalars.get(n, r) != r for n, r in read.items()):
                    return None
                scalars |= read
            return scalars
    return None


@cache
def _operators() -> Sequence[tuple[ScalarExpression, str]]:
    """Elementwise operators by what they compute, without numbers in it, the largest first: a quotient is one operator
    where a product with an inverse is two. Read from the records."""
    found: dict[ScalarExpression, str] = {}
    for name, record in REGISTRY.items():
        if record.family != "elementwise" or record.attributes or any(not i.isalpha() for i in record.inputs):
            continue
        kinds = [TensorType(DType.FLOAT32, (SizePolynomial(((("n",), 1),)),))] * len(record.inputs)
        try:
            body = operator_of(OperatorTerm(name, ())).apply(kinds, {})[0].outputs[0].body
        except IllTypedOperator:
            continue
        inside = list(subexpressions(body))
        reads = {s.operand for s in inside if isinstance(s, ElementRead)}
        if (
            isinstance(body, ScalarCall)
            and len(reads) == len(kinds)
            and all(isinstance(s, ScalarCall | ElementRead) for s in inside)
        ):
            found.setdefault(body, name)
    return sorted(found.items(), key=lambda b: -sum(isinstance(s, ScalarCall) for s in subexpressions(b[0])))
