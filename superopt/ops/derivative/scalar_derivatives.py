"""The derivative of each scalar function of the meaning language: the one table that gradients rest on.

A *kink* is a point where a function has no derivative. The convention there is part of the table:

* ``max``, ``min`` of an element and a constant have the derivative from the left: ``Relu`` has 0 at 0, ``LeakyRelu``
  its slope, ``Clip`` 0 at its lower bound and 1 at its upper one.
* ``max``, ``min`` of two elements share equally where they are equal, as do all of a reduction that are the largest.
* ``abs`` has 0 at 0. Functions that are constant between jumps (``floor``, ``sign``, comparisons …) have 0 everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType, TensorType
from superopt.ops.operator_definition import (
    CanonicalNodeForm,
    OnnxNodeForm,
    OnnxNodeView,
    Operator,
    UnsupportedNodeForm,
)
from superopt.ops.operator_semantics import (
    ElementRead,
    ScalarCall,
    ScalarConditional,
    ScalarConstant,
    ScalarExpression,
    ScalarReduction,
    SizeExpression,
    SymbolicOperand,
    TensorComprehension,
    call,
    number,
    parts,
)

__all__ = [
    "KINKS",
    "Linear",
    "PREFIX",
    "STEPS",
    "choices",
    "derivative_of",
    "is_constant",
    "kinks_of",
    "partials",
    "tangent_of",
]


# -- Scalar functions ----------------------------------------------------------------------------------------------


# What a function does to its arguments to first order: one factor per argument.
Linear = Callable[..., tuple[ScalarExpression, ...]]
HALF = Fraction(1, 2)


def _inverse(x: ScalarExpression) -> ScalarExpression:
    return call("inv", x)


def _power(x: ScalarExpression, y: ScalarExpression) -> tuple[ScalarExpression, ScalarExpression]:
    """``y·x^(y-1)`` and ``x^y·log x``, which is 0 at 0 for ``y > 0``.

    A constant exponent needs no logarithm, so its factor is never asked for.
    """
    return y * call("pow", x, y - 1), call("pow", x, y) * call("log", call("select", call("equal", x, 0), 1, x))


def _remainder(a: ScalarExpression, b: ScalarExpression) -> tuple[ScalarExpression, ScalarExpression]:
    """``a - b·⌊a/b⌋`` between the jumps of the quotient, which is ``(a - a mod b)/b``."""
    return number(1), (call("truncmod", a, b) - a) / b


PARTIALS: Mapping[str, Linear] = {
    "add": lambda a, b: (number(1), number(1)),
    "mul": lambda a, b: (b, a),
    "inv": lambda x: (-(_inverse(x) * _inverse(x)),),
    "pow": _power,
    "truncmod": _remainder,
    "exp": lambda x: (call("exp", x),),
    "log": lambda x: (_inverse(x),),
    "sqrt": lambda x: (HALF * _inverse(call("sqrt", x)),),
    "erf": lambda x: (_inverse(call("sqrt", call("atan", 1))) * call("exp", -(x * x)),),  # 2/√π, with π = 4·atan 1
    "tanh": lambda x: (1 - call("tanh", x) * call("tanh", x),),
    "sin": lambda x: (call("cos", x),),
    "cos": lambda x: (-call("sin", x),),
    "tan": lambda x: (1 + call("tan", x) * call("tan", x),),
    "asin": lambda x: (_inverse(call("sqrt", 1 - x * x)),),
    "acos": lambda x: (-_inverse(call("sqrt", 1 - x * x)),),
    "atan": lambda x: (_inverse(1 + x * x),),
    "sinh": lambda x: (call("cosh", x),),
    "cosh": lambda x: (call("sinh", x),),
    "asinh": lambda x: (_inverse(call("sqrt", x * x + 1)),),
    "acosh": lambda x: (_inverse(call("sqrt", x * x - 1)),),
    "atanh": lambda x: (_inverse(1 - x * x),),
    "abs": lambda x: (call("sign", x),),
}

# Constant between jumps: derivative 0.
STEPS = frozenset({
    "floor", "ceil", "round", "sign", "less", "equal", "not", "and", "or", "xor", "truncdiv", "floormod", "cast_int",
    "isnan", "isinf",
})  # fmt: skip

# What is said of an operator whose meaning has the function, for people.
KINKS: Mapping[str, str] = {
    "abs": "at 0: 0", "sqrt": "at 0: infinite", "truncmod": "at multiples of the divisor: as beside them",
    "select": "where the condition changes: that of the branch taken",
    **dict.fromkeys(("floor", "ceil", "round", "sign"), "at the jumps: 0"),
}  # fmt: skip


def partials(function: str, args: tuple[ScalarExpression, ...], moves: Sequence[bool]) -> tuple[ScalarExpression, ...]:
    """A function's factors, of which those of arguments that move are asked for.

    Where an exponent stays, it may be 0, with 0 below it: ``x^0`` has the derivative 0 there, too.
    """
    if function == "pow" and not moves[1] and not (is_constant(args[1]) and args[1] != number(0)):
        x, y = args
        return y * call("pow", x, call("select", call("equal", y, 0), 1, y) - 1), number(0)
    return PARTIALS[function](*args)


def is_constant(value: ScalarExpression) -> bool:
    return isinstance(value, ScalarConstant | SizeExpression)


def choices(function: str, args: tuple[ScalarExpression, ...]) -> tuple[ScalarExpression, ...] | None:
    """For ``max``, ``min`` and ``select``: the share (0, ½ or 1) that each argument has in the value; else ``None``."""
    if function == "select":
        return number(0), call("select", args[0], 1, 0), call("select", args[0], 0, 1)
    if function not in ("max", "min"):
        return None
    a, b = args
    if function == "max":
        above, below = call("less", b, a), call("less", a, b)
    else:
        above, below = call("less", a, b), call("less", b, a)
    if is_constant(a) or is_constant(b):  # the derivative from the left
        moving_first = is_constant(b)
        wins = (above if moving_first else below) if function == "max" else None
        if wins is None:
            wins = call("not", below) if moving_first else call("not", above)
        return (wins, call("not", wins)) if moving_first else (call("not", wins), wins)
    tie = call("equal", a, b) * HALF
    return above + tie, below + tie


# -- Tangents of a meaning -----------------------------------------------------------------------------------------
#
# ``D f`` has the operands of ``f`` and a *tangent* for each, absent where the operand is constant. It follows from the
# meaning by the table of scalar functions above: a sum is differentiated term by term, a maximum by the elements that
# reach it, a guard by its branches. Positions that come from data have no tangent.


PREFIX = "D "  # of the names of derivatives: no ONNX operator has a space in its name


@lru_cache(maxsize=1024)
def derivative_of(operator: Operator, count: int) -> Operator:
    """The derivative of an operator with ``count`` operands as a record, for statements about it; never a node.

    Its operands are those of the operator, then their tangents, of the same types; ``None`` for one that stays.
    """

    def meaning(*operands: SymbolicOperand | None, **attributes: AttributeValue) -> Sequence[TensorComprehension]:
        made = operator.meaning(*operands[:count], **attributes)
        outputs = (made,) if isinstance(made, TensorComprehension) else tuple(made)
        moving = {p: count + p for p, tangent in enumerate(operands[count:]) if tangent is not None}
        return tuple(replace(c, body=tangent_of(c.body, moving) or number(0)) for c in outputs)

    def result(types: Sequence[TensorType | None], attributes: Mapping[str, AttributeValue]) -> DType:
        return operator.result(types[:count], attributes)

    return replace(
        operator, name=PREFIX + operator.name, inputs=tuple(f"{d}x{p}?" for d in ("", "d") for p in range(count)),
        meaning=meaning, result=result, kernel=None, commutative=False, read=_unread, write=_unwritten,
    )  # fmt: skip


def _unread(view: OnnxNodeView) -> CanonicalNodeForm:
    raise UnsupportedNodeForm("a derivative is no node")


def _unwritten(
    attributes: Mapping[str, AttributeValue], types: Sequence[TensorType | None], opset: int
) -> OnnxNodeForm:  # fmt: skip
    raise UnsupportedNodeForm("a derivative is no node")


def tangent_of(body: ScalarExpression, moving: Mapping[int, int]) -> ScalarExpression | None:
    """How an element moves with the operands; ``None`` where it does not.

    Args:
        body: the element.
        moving: operand → operand that holds its tangent.
    """
    known: dict[int, ScalarExpression | None] = {}

    def tangent(node: ScalarExpression) -> ScalarExpression | None:
        if id(node) not in known:
            known[id(node)] = derived(node)
        return known[id(node)]

    def derived(node: ScalarExpression) -> ScalarExpression | None:
        match node:
            case ElementRead(operand, index, outside):
                still = None if outside is None else ScalarConstant(number(0).value)  # type: ignore[attr-defined]
                return ElementRead(moving[operand], index, still) if operand in moving else None
            case ScalarCall(function, args):
                return _called(function, args, [tangent(a) for a in args])
            case ScalarReduction(kind, variable, extent, inner):
                return _reduced(node, kind, variable, extent, inner)
            case ScalarConditional(conditions, then, otherwise):
                branches = tangent(then), tangent(otherwise)
                if branches == (None, None):
                    return None
                return ScalarConditional(conditions, branches[0] or number(0), branches[1] or number(0))
        return None

    def _reduced(
        node: ScalarExpression, kind: str, variable: str, extent: object, inner: ScalarExpression
    ) -> ScalarExpression | None:
        assert isinstance(node, ScalarReduction)
        if kind == "sum":
            moved = tangent(inner)
            return None if moved is None else replace(node, body=moved)
        spans, innermost = chain(node)
        moved = tangent(innermost)
        if moved is None:
            return None
        if kind == "prod":  # each factor in turn, the others kept; none of them 0
            return node * summed(spans, moved / innermost)
        reached = call("equal", innermost, node)
        return summed(spans, reached * moved) / summed(spans, reached)

    return tangent(body)


def chain(node: ScalarReduction) -> tuple[list[tuple[str, object]], ScalarExpression]:
    """The variables of reductions of one kind directly inside each other, and what they reduce."""
    spans: list[tuple[str, object]] = []
    inner: ScalarExpression = node
    while isinstance(inner, ScalarReduction) and inner.kind == node.kind:
        spans.append((inner.variable, inner.extent))
        inner = inner.body
    return spans, inner


def summed(spans: Sequence[tuple[str, object]], body: ScalarExpression) -> ScalarExpression:
    for variable, extent in reversed(spans):
        body = ScalarReduction("sum", variable, extent, body)  # type: ignore[arg-type]
    return body


def _called(
    function: str, args: tuple[ScalarExpression, ...], moved: Sequence[ScalarExpression | None]
) -> ScalarExpression | None:
    if function in STEPS or all(m is None for m in moved):
        return None
    factors = choices(function, args) or partials(function, args, [m is not None for m in moved])
    parts = [m if f == number(1) else f * m for f, m in zip(factors, moved, strict=True) if m is not None]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole + part
    return whole


# -- Kinks ---------------------------------------------------------------------------------------------------------
#
# Points without a derivative and the value that is used there, read from the functions in a meaning.


def kinks_of(outputs: Sequence[TensorComprehension]) -> tuple[str, ...]:
    """Sentences, each once; none where the operator is smooth wherever it is defined.

    Positions do not move, so what they are computed by does not count.
    """
    found: dict[str, None] = {}
    waiting = [output.body for output in reversed(outputs)]
    while waiting:
        node = waiting.pop()
        if (text := _kink(node)) is not None:
            found.setdefault(text)
        if not isinstance(node, ElementRead):
            waiting += reversed(parts(node))
    return tuple(found)


def _kink(node: ScalarExpression) -> str | None:
    match node:
        case ScalarReduction("max" | "min" as kind):
            return f"where several elements are the {'largest' if kind == 'max' else 'smallest'}: they share equally"
        case ScalarCall("max" | "min", args):
            if any(map(is_constant, args)):
                return "where the argument meets a constant bound: the derivative from the left"
            return "where two arguments are equal: they share equally"
        case ScalarCall(function, _):
            return KINKS.get(function)
    return None
