"""A side of a rule at given sizes, written out as arithmetic on single elements, in the order in which kernels round.

The meanings of operators are unrolled, for a few elements of the result, into nodes over elements of the variables.
Nothing here is shared with the evaluation that the product runs (:mod:`superopt.runtime.comprehension_evaluation`):
this is another reading of the same meanings, and ONNX Runtime's is a third
(:mod:`superopt.verifier.floats.runtime_check`).

What a kernel does and a meaning, which speaks about reals, leaves open:

* every operator's result is rounded to its element type (``to_type``); moving data rounds nothing;
* inside an operator float32 works in float32, and float16 and bfloat16 in float32 too, rounded once at the end;
* a sum inside an operator (MatMul, Conv, ReduceSum …) may be taken in any order: it is one node of its terms, of two as
  of more: that two numbers which cancel are added exactly is the luck of one size, and no rule is about one size;
* ``a · inv(b)`` inside one operator is a division;
* quotients and logarithms of sums of exponentials subtract the largest exponent first (Softmax, LogSoftmax, Softplus,
  Sigmoid, Attention), as ONNX Runtime's do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from superopt.ir.size_polynomial import Dim, SizePolynomial, substitute
from superopt.ir.terms import OperatorTerm, OutputTerm, Term, VariableTerm
from superopt.ops.operator_semantics import (
    ElementRead,
    IndexCondition,
    OperatorSemantics,
    ScalarCall,
    ScalarConditional,
    ScalarConstant,
    ScalarExpression,
    ScalarReduction,
    SizeExpression,
    TensorComprehension,
)

__all__ = ["LIMIT", "Node", "StraightLineProgram", "ProgramTooLarge"]

LIMIT = 1500  # nodes of one side: sizes at which more are needed are not evaluated
EXACT = frozenset({"neg", "abs", "max", "min", "less", "equal", "not", "and", "or", "xor", "sign", "select"})

Node = tuple[Any, ...]  # (name, arguments …): arguments are node numbers, but for "read" and "const"


class ProgramTooLarge(Exception):
    """The side has too many elementary steps at these sizes, or reads positions that depend on data."""


@dataclass(frozen=True)
class _Powers:
    """``Σ mantissa · exp(exponent)`` inside an operator; a mantissa or exponent of ``None`` is 1 or 0."""

    terms: tuple[tuple[int | None, int | None], ...]


_Value = int | _Powers


@dataclass
class StraightLineProgram:
    """Nodes, operands before results; equal nodes once, so that equal numbers mean equal float operations.

    Attributes:
        meanings: of the applications, at the sizes.
        whole: elements of the variables that are integers or booleans, which are fixed.
        shapes: of the variables.
    """

    meanings: Mapping[OperatorTerm, OperatorSemantics]
    integers: Mapping[str, Sequence[int]]
    shapes: Mapping[str, Sequence[int]]
    floats: frozenset[OperatorTerm]  # applications whose results are reals
    nodes: list[Node] = field(default_factory=list)
    _numbers: dict[Node, int] = field(default_factory=dict)
    _elements: dict[tuple[Term, int, int], int] = field(default_factory=dict)

    # -- elements ------------------------------------------------------------------------------------------------

    def element(self, term: Term, flat: int, output: int = 0) -> int:
        """The node of an element of a term, by its position in row-major order.

        Raises:
            ProgramTooLarge: see there.
        """
        if isinstance(term, OutputTerm):
            return self.element(term.term, flat, term.index)
        key = (term, output, flat)
        if key not in self._elements:
            if isinstance(term, VariableTerm):
                fixed = self.integers.get(term.name)
                self._elements[key] = (
                    self.add("read", term.name, flat) if fixed is None else self.constant(Fraction(fixed[flat]))
                )
            else:
                self._elements[key] = self._computed(term, flat, output)
        return self._elements[key]

    def _computed(self, app: OperatorTerm, flat: int, output: int) -> int:
        comprehension = self.meanings[app].outputs[output]
        found = self._plain(self._value(app, comprehension.body, _index_at(comprehension, flat)))
        return found if app not in self.floats or self._is_rounded(found) else self.add("to_type", found)

    def _is_rounded(self, number: int) -> bool:
        """Whether a value is in the element type already: read, or an exact function of such values."""
        name, *args = self.nodes[number]
        if name in ("read", "to_type"):
            return True
        if name == "const":
            return _in_every_type(args[0])
        return name in EXACT and all(self._is_rounded(a) for a in args[1 if name == "select" else 0 :])

    # -- nodes ---------------------------------------------------------------------------------------------------

    def add(self, name: str, *args: Any) -> int:
        """The number of a node; operands of commutative functions are sorted."""
        if name in ("add", "mul", "max", "min", "sum", "equal", "and", "or", "xor"):
            args = tuple(sorted(args))
        node = (name, *args)
        if node not in self._numbers:
            if len(self.nodes) >= LIMIT:
                raise ProgramTooLarge
            self._numbers[node] = len(self.nodes)
            self.nodes.append(node)
        return self._numbers[node]

    def constant(self, value: Fraction | float) -> int:
        return self.add("const", value)

    def constant_value(self, number: int) -> Fraction | float | None:
        """The constant that a node is."""
        name, *args = self.nodes[number]
        return args[0] if name == "const" else None

    def total(self, parts: Sequence[int], *, long: bool = False) -> int:
        """A sum in any order; exact zeros (what lies outside an operand) take no part.

        Args:
            parts: what is added.
            long: as long as an axis or a window is: where it has two terms, by the choice of sizes or at a border,
                it stays a sum of many, and is held to the bound of such.
        """
        moving = [p for p in parts if self.constant_value(p) != 0]
        if not moving:
            return self.constant(Fraction(0))
        if len(moving) == 1:
            return moving[0]
        values = [self.constant_value(p) for p in moving]
        if all(isinstance(v, Fraction) for v in values):
            return self.constant(sum((v for v in values if isinstance(v, Fraction)), Fraction(0)))
        return self.add("add" if len(moving) == 2 and not long else "sum", *moving)

    def product(self, a: int, b: int) -> int:
        x, y = self.constant_value(a), self.constant_value(b)
        if isinstance(x, Fraction) and isinstance(y, Fraction):
            return self.constant(x * y)
        for value, other in ((x, b), (y, a)):
            if value == 1:
                return other
            if value == -1:
                return self.negated(other)
        for first, second in ((a, b), (b, a)):
            if self.nodes[first][0] == "inv":
                return self.add("div", second, self.nodes[first][1])
        return self.add("mul", a, b)

    def negated(self, a: int) -> int:
        value = self.constant_value(a)
        if value is not None:
            return self.constant(-value)
        return int(self.nodes[a][1]) if self.nodes[a][0] == "neg" else self.add("neg", a)

    # -- meanings ------------------------------------------------------------------------------------------------

    def _value(self, app: OperatorTerm, scalar: ScalarExpression, at: Mapping[str, Dim]) -> _Value:
        match scalar:
            case ScalarConstant(value):
                return self.constant(value)
            case SizeExpression(size):
                return self.constant(Fraction(_integer(size, at)))
            case ElementRead():
                return self._read(app, scalar, at)
            case ScalarConditional(conditions, then, otherwise):
                return self._value(app, then if all(_holds(c, at) for c in conditions) else otherwise, at)
            case ScalarReduction(kind, variable, extent, body):
                parts = [self._value(app, body, {**at, variable: i}) for i in range(_integer(extent, at))]
                return self._reduced(kind, parts)
            case ScalarCall(function, args):
                return self._called(function, [self._value(app, a, at) for a in args])
        raise ProgramTooLarge

    def _read(self, app: OperatorTerm, read: ElementRead, at: Mapping[str, Dim]) -> int:
        operand = app.args[read.operand]
        assert operand is not None, "a meaning read an absent operand"
        flat = 0
        for index, size in zip(read.index, self._shape(operand), strict=True):
            position = self._position(app, index, at) if isinstance(index, ScalarExpression) else _integer(index, at)
            if not 0 <= position < size:
                if read.outside is None:
                    raise ProgramTooLarge
                return self.constant(read.outside.value)
            flat = flat * size + position
        return self.element(operand, flat)

    def _position(self, app: OperatorTerm, index: ScalarExpression, at: Mapping[str, Dim]) -> int:
        value = self.constant_value(self._plain(self._value(app, index, at)))
        if value is None or int(value) != value:
            raise ProgramTooLarge
        return int(value)

    def _shape(self, term: Term) -> Sequence[int]:
        if isinstance(term, VariableTerm):
            return self.shapes[term.name]
        app, output = (term.term, term.index) if isinstance(term, OutputTerm) else (term, 0)
        return [_integer(d, {}) for d in self.meanings[app].outputs[output].shape]

    def _reduced(self, kind: str, parts: Sequence[_Value]) -> _Value:
        if kind == "sum":
            if any(isinstance(p, _Powers) for p in parts):
                return self._powers(parts)
            inner: list[int] = []
            for part in parts:
                assert isinstance(part, int)
                name, *args = self.nodes[part]
                inner += args if name == "sum" else [part]  # a sum over several axes is one sum
            return self.total(inner, long=True)
        plain = [self._plain(p) for p in parts]
        start = {"max": float("-inf"), "min": float("inf")}.get(kind)
        found = self.constant(Fraction(1) if start is None else start) if not plain else plain[0]
        for part in plain[1:]:
            found = self.product(found, part) if kind == "prod" else self.add(kind, found, part)
        return found

    def _called(self, function: str, args: Sequence[_Value]) -> _Value:
        if function == "exp":
            return _Powers(((None, self._plain(args[0])),))
        if any(isinstance(a, _Powers) for a in args):
            if function == "add":
                return self._powers(args)
            if function in ("mul", "inv", "log"):
                found = self._with_powers(function, args)
                if found is not None:
                    return found
        plain = [self._plain(a) for a in args]
        match function:
            case "add":
                return self._added(*plain)
            case "mul":
                return self.product(*plain)
            case "select" if self.constant_value(plain[0]) is not None:
                return plain[1] if self.constant_value(plain[0]) else plain[2]
            case "pow":
                return self._power(*plain)
        return self._folded(function, plain)

    def _added(self, a: int, b: int) -> int:
        """``x − (m + log s)`` inside one operator is taken as ``(x − m) − log s``, as kernels of LogSoftmax do."""
        for first, second in ((a, b), (b, a)):
            name, *inner = self.nodes[second]
            if name == "neg" and self.nodes[inner[0]][0] == "add":
                parts = self.nodes[inner[0]][1:]
                logs = [p for p in parts if self.nodes[p][0] == "log"]
                if logs:
                    (largest,) = [p for p in parts if p != logs[0]] or [logs[0]]
                    return self.total([self.total([first, self.negated(largest)]), self.negated(logs[0])])
        return self.total([a, b])

    def _folded(self, function: str, args: Sequence[int]) -> int:
        values = [self.constant_value(a) for a in args]
        if function in ("max", "min") and args[0] == args[1]:
            return args[0]
        if all(v is not None for v in values):
            exact = _exactly(function, [v for v in values if v is not None])
            if exact is not None:
                return self.constant(exact)
        return self.add(function, *args)

    def _power(self, base: int, exponent: int) -> int:
        """Kernels of Pow multiply for a square or a cube, and take a root for one half."""
        match self.constant_value(exponent):
            case 1:
                return base
            case 2:
                return self.product(base, base)
            case 3:
                return self.product(self.product(base, base), base)
        return self.add("pow", base, exponent)

    # -- exponentials inside one operator ------------------------------------------------------------------------

    def _powers(self, parts: Sequence[_Value]) -> _Powers:
        terms: list[tuple[int | None, int | None]] = []
        for part in parts:
            if isinstance(part, _Powers):
                terms += part.terms
            elif self.constant_value(part) != 0:
                terms.append((part, None))
        return _Powers(tuple(terms))

    def _plain(self, value: _Value) -> int:
        if isinstance(value, int):
            return value
        return self.total([self._term(m, e) for m, e in value.terms])

    def _term(self, mantissa: int | None, exponent: int | None) -> int:
        if exponent is None:
            assert mantissa is not None
            return mantissa
        power = self._folded("exp", [exponent])
        return power if mantissa is None else self.product(mantissa, power)

    def _single(self, value: _Powers) -> tuple[int | None, int]:
        """A sum of powers as one mantissa and one exponent, the largest."""
        if len(value.terms) == 1 and value.terms[0][1] is not None:
            return value.terms[0][0], value.terms[0][1]
        zero = self.constant(Fraction(0))
        exponents = list(dict.fromkeys(zero if e is None else e for _, e in value.terms))
        largest = exponents[0]
        for exponent in exponents[1:]:
            largest = self._folded("max", [largest, exponent])
        parts = []
        for factor, power in value.terms:
            below = self.total([zero if power is None else power, self.negated(largest)])
            parts.append(self._term(factor, below))
        return self.total(parts), largest

    def _with_powers(self, function: str, args: Sequence[_Value]) -> _Value | None:
        """Quotients and logarithms; ``None`` where a sum is only scaled, which needs no stable form."""
        if function == "log":
            assert isinstance(args[0], _Powers)
            mantissa, exponent = self._single(args[0])
            return exponent if mantissa is None else self.total([exponent, self._folded("log", [mantissa])])
        if function == "inv":
            assert isinstance(args[0], _Powers)
            mantissa, exponent = self._single(args[0])
            inverse = None if mantissa is None else self.add("inv", mantissa)
            return _Powers(((inverse, self.negated(exponent)),))
        singles = [a for a in args if isinstance(a, _Powers) and len(a.terms) == 1]
        if not singles:
            return None
        mantissa, exponent = self._single(singles[0])
        (other,) = [a for a in args if a is not singles[0]] or [singles[0]]
        if isinstance(other, _Powers):
            second, more = self._single(other)
            exponent = self.total([exponent, more])
        else:
            second = other
        both = [m for m in (second, mantissa) if m is not None]
        return _Powers(((None if not both else both[0] if len(both) == 1 else self.product(*both), exponent),))


def _in_every_type(value: Fraction | float) -> bool:
    """Whether a constant is the same in float32, float16 and bfloat16."""
    if isinstance(value, float):
        return True  # infinite
    odd, even = abs(value.numerator), value.denominator
    return odd < 2**8 and even & (even - 1) == 0 and even <= 2**14


def _exactly(function: str, values: Sequence[Fraction | float]) -> Fraction | float | None:
    """Functions of constants that are exact."""
    match function, values:
        case "max", (a, b):
            return max(a, b)
        case "min", (a, b):
            return min(a, b)
        case "abs", (a,):
            return a if a >= 0 else -a
        case "less", (a, b):
            return Fraction(int(a < b))
        case "equal", (a, b):
            return Fraction(int(a == b))
        case "not", (a,):
            return Fraction(int(a == 0))
        case "and", (a, b):
            return Fraction(int(a != 0 and b != 0))
        case "or", (a, b):
            return Fraction(int(a != 0 or b != 0))
        case "xor", (a, b):
            return Fraction(int((a != 0) != (b != 0)))
        case "inv", (Fraction() as a,) if a:
            return 1 / a
        case "exp", (a,) if a == 0:
            return Fraction(1)
    return None


def _index_at(comprehension: TensorComprehension, flat: int) -> dict[str, Dim]:
    """The index variables of an element by its position in row-major order."""
    digits = [(v, _integer(e, {})) for axis in comprehension.axes for v, e in axis]
    indices: dict[str, Dim] = {}
    for variable, extent in reversed(digits):
        flat, indices[variable] = divmod(flat, extent)
    return indices


def _integer(value: Dim, at: Mapping[str, Dim]) -> int:
    number = substitute(value, at)
    if isinstance(number, SizePolynomial):
        raise ProgramTooLarge
    return number


def _holds(condition: IndexCondition, at: Mapping[str, Dim]) -> bool:
    truth = IndexCondition(condition.kind, substitute(condition.size, at)).known
    if truth is None:
        raise ProgramTooLarge
    return truth
