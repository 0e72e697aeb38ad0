"""The derivative of each scalar function of the meaning language: the one table that gradients rest on.

A *kink* is a point where a function has no derivative. The convention there is part of the table:

* ``max``, ``min`` of an element and a constant have the derivative from the left: ``Relu`` has 0 at 0, ``LeakyRelu``
  its slope, ``Clip`` 0 at its lower bound and 1 at its upper one.
* ``max``, ``min`` of two elements share equally where they are equal, as do all of a reduction that are the largest.
* ``abs`` has 0 at 0. Functions that are constant between jumps (``floor``, ``sign``, comparisons …) have 0 everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from superopt.ops.meaning import Number, Scalar, SizeValue, call, number

__all__ = ["KINKS", "STEPS", "Linear", "choices", "is_constant", "partials"]

# What a function does to its arguments to first order: one factor per argument.
Linear = Callable[..., tuple[Scalar, ...]]
HALF = Fraction(1, 2)


def _inverse(x: Scalar) -> Scalar:
    return call("inv", x)


def _power(x: Scalar, y: Scalar) -> tuple[Scalar, Scalar]:
    """``y·x^(y-1)`` and ``x^y·log x``, which is 0 at 0 for ``y > 0``.

    A constant exponent needs no logarithm, so its factor is never asked for.
    """
    return y * call("pow", x, y - 1), call("pow", x, y) * call("log", call("select", call("equal", x, 0), 1, x))


def _remainder(a: Scalar, b: Scalar) -> tuple[Scalar, Scalar]:
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


def partials(function: str, args: tuple[Scalar, ...], moves: Sequence[bool]) -> tuple[Scalar, ...]:
    """A function's factors, of which those of arguments that move are asked for.

    Where an exponent stays, it may be 0, with 0 below it: ``x^0`` has the derivative 0 there, too.
    """
    if function == "pow" and not moves[1] and not (is_constant(args[1]) and args[1] != number(0)):
        x, y = args
        return y * call("pow", x, call("select", call("equal", y, 0), 1, y) - 1), number(0)
    return PARTIALS[function](*args)


def is_constant(value: Scalar) -> bool:
    return isinstance(value, Number | SizeValue)


def choices(function: str, args: tuple[Scalar, ...]) -> tuple[Scalar, ...] | None:
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
