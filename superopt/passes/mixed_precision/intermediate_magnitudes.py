"""What an operator computes inside, read from its meaning: poles, exponents, intermediates and sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, inf, isfinite, prod, sqrt

from superopt.ops.operator_semantics import (
    ElementRead,
    IllTypedOperator,
    OperatorSemantics,
    ScalarCall,
    ScalarConditional,
    ScalarConstant,
    ScalarExpression,
    ScalarReduction,
    parts,
)
from superopt.ops.shape_inference import CanonicalNode, InferredTypes, OpaqueNode

__all__ = ["IntermediateMagnitudes", "at_poles", "in_exponents", "inside"]

_BOUNDED = frozenset({"erf", "tanh", "sin", "cos", "sign", "less", "equal", "not", "and", "or", "xor", "isnan", "isinf",
                      "asin", "acos", "atan"})  # fmt: skip
_LARGEST_EXPONENT = 700.0  # of e, in float64
_LOGARITHM = 104.0  # largest magnitude of a logarithm of a float32


def at_poles(how: CanonicalNode | OpaqueNode, typing: InferredTypes) -> Iterator[str]:
    """The operands that an operator divides by, or takes a logarithm or a negative power of, as they are."""
    meaning = _meaning(how, typing)
    if meaning is None or not isinstance(how, CanonicalNode):
        return
    for scalar in _scalars(meaning):
        if (
            isinstance(scalar, ScalarCall)
            and scalar.function in ("inv", "log", "pow")
            and isinstance(scalar.args[0], ElementRead)
        ):
            if scalar.function == "pow" and _is_positive(scalar.args[1], how, typing):
                continue
            name = how.args[scalar.args[0].operand]
            if name is not None:
                yield name


def _is_positive(power: ScalarExpression, how: CanonicalNode, typing: InferredTypes) -> bool:
    """Whether a power is known not to be negative."""
    if isinstance(power, ScalarConstant):
        return power.value >= 0
    known = typing.values.get(how.args[power.operand] or "") if isinstance(power, ElementRead) else None
    return known is not None and known.array is not None and bool((known.array >= 0).all())


def in_exponents(how: CanonicalNode | OpaqueNode, typing: InferredTypes) -> Iterator[str]:
    """The operands that an exponential is taken of, or of what is computed from them."""
    meaning = _meaning(how, typing)
    if meaning is None or not isinstance(how, CanonicalNode):
        return
    powers = [s for s in _scalars(meaning) if isinstance(s, ScalarCall) and s.function == "exp"]
    read = {s.operand for power in powers for s in _below(power) if isinstance(s, ElementRead)}
    yield from (name for place in sorted(read) if (name := how.args[place]) is not None)


def _meaning(how: CanonicalNode | OpaqueNode, typing: InferredTypes) -> OperatorSemantics | None:
    if not isinstance(how, CanonicalNode):
        return None
    types = [None if a is None else typing.types.get(a) for a in how.args]
    try:
        return how.operator.apply(types, how.attributes)[0]
    except IllTypedOperator:
        return None


def _scalars(meaning: OperatorSemantics) -> Iterator[ScalarExpression]:
    """All scalars of a meaning, each once, but for those in indices."""
    return _below(*(c.body for c in meaning.outputs))


def _below(*bodies: ScalarExpression) -> Iterator[ScalarExpression]:
    stack: list[ScalarExpression] = list(bodies)
    seen: set[int] = set()
    while stack:
        scalar = stack.pop()
        if id(scalar) in seen:
            continue
        seen.add(id(scalar))
        yield scalar
        if not isinstance(scalar, ElementRead):
            stack.extend(parts(scalar))


def inside(how: CanonicalNode, typing: InferredTypes, operands: Sequence[float]) -> IntermediateMagnitudes | None:
    """Bounds of what an application computes on the way to its results; ``None`` where its meaning is not known.

    Args:
        how: the application.
        typing: of the graph.
        operands: bounds of their magnitudes, by argument.
    """
    meaning = _meaning(how, typing)
    if meaning is None:
        return None
    found = IntermediateMagnitudes(operands)
    for comprehension in meaning.outputs:
        found.visit(comprehension.body)
    return found


class IntermediateMagnitudes:
    """Bounds of the magnitudes inside a meaning, from those of its operands.

    Attributes:
        largest: of the intermediates. What is read, and the result, are values of the graph, of known magnitudes.
        terms: of the longest sum that is no sum of products of two operands.
    """

    def __init__(self, operands: Sequence[float]) -> None:
        self._operands = operands
        self._bounds: dict[int, float] = {}
        self.largest, self.terms = 0.0, 1.0

    def visit(self, body: ScalarExpression) -> None:
        stack: list[tuple[ScalarExpression, bool]] = [(body, False)]
        while stack:
            scalar, expanded = stack.pop()
            if id(scalar) in self._bounds:
                continue
            inner = [] if isinstance(scalar, ElementRead) else list(parts(scalar))
            if not expanded and inner:
                stack.append((scalar, True))
                stack.extend((part, False) for part in inner)
                continue
            bound = self._bound(scalar, [self._bounds[id(part)] for part in inner])
            self._bounds[id(scalar)] = bound
            if scalar is not body and not isinstance(scalar, ElementRead | ScalarConstant):
                self.largest = max(self.largest, bound)

    def _bound(self, scalar: ScalarExpression, inner: Sequence[float]) -> float:
        match scalar:
            case ElementRead(operand, _, outside):
                beyond = 0.0 if outside is None else _number(outside)
                return max(self._operands[operand], beyond)
            case ScalarConstant():
                return _number(scalar)
            case ScalarConditional():
                return max(inner[-2:])
            case ScalarReduction(kind, _, extent, inside):
                count = float(extent) if isinstance(extent, int) else inf
                if kind in ("max", "min"):
                    return inner[0]
                if kind == "prod":
                    return inner[0] ** min(count, 1e3) if inner[0] > 1.0 else inner[0]
                if _is_product(inside):
                    return 0.0  # added up in float32
                self.terms = max(self.terms, count * _terms(inside))
                return count * inner[0]
            case ScalarCall(function, arguments):
                return _called(function, arguments, inner)
        return 0.0


def _number(scalar: ScalarConstant) -> float:
    value = abs(float(scalar.value))
    return value if isfinite(value) else 0.0  # a limit of max and min, or a mask, which half precision has


def _terms(body: ScalarExpression) -> float:
    """Of the sums that a sum's body consists of."""
    if isinstance(body, ScalarReduction) and body.kind == "sum":
        return (float(body.extent) if isinstance(body.extent, int) else inf) * _terms(body.body)
    return 1.0


def _is_product(body: ScalarExpression) -> bool:
    """Whether the terms of a sum are products of two operands' elements."""
    while isinstance(body, ScalarReduction | ScalarConditional):
        body = body.body if isinstance(body, ScalarReduction) else body.then
    if not (isinstance(body, ScalarCall) and body.function == "mul"):
        return False
    read = {s.operand for s in _leaves(body) if isinstance(s, ElementRead)}
    return len(read) > 1


def _leaves(body: ScalarExpression) -> Iterator[ScalarExpression]:
    stack = [body]
    while stack:
        scalar = stack.pop()
        if isinstance(scalar, ElementRead):
            yield scalar
        elif isinstance(scalar, ScalarCall) and scalar.function == "mul":
            stack.extend(scalar.args)
        elif isinstance(scalar, ScalarConditional):
            stack.extend((scalar.then, scalar.otherwise))


def _called(function: str, arguments: Sequence[ScalarExpression], inner: Sequence[float]) -> float:
    """A bound of a function's magnitude; 0 where none is known, as of an inverse: its pole is looked for elsewhere."""
    match function:
        case "add":
            return sum(inner)
        case "mul":
            return prod(inner)
        case "max" | "min":
            return max(inner)
        case "select":
            return max(inner[1:])
        case "exp" | "sinh" | "cosh":
            return exp(min(inner[0], _LARGEST_EXPONENT))
        case "pow":
            power = arguments[1].value if isinstance(arguments[1], ScalarConstant) else inner[1]
            return float(max(inner[0], 1.0) ** min(max(float(power), 0.0), 100.0))
        case "sqrt":
            return sqrt(inner[0])
        case "log":
            return min(inner[0], _LOGARITHM)
        case "abs" | "floor" | "ceil" | "round" | "cast_int" | "truncdiv" | "floormod" | "truncmod":
            return inner[0]
    return 2.0 if function in _BOUNDED else 0.0
