"""Where an operator has no derivative, and what is taken there: read from the functions in its meaning."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.ops.derivative.scalars import KINKS, is_constant
from superopt.ops.meaning import Call, Comprehension, Read, Reduce, Scalar, parts

__all__ = ["kinks_of"]


def kinks_of(outputs: Sequence[Comprehension]) -> tuple[str, ...]:
    """Sentences, each once; none where the operator is smooth wherever it is defined.

    Positions do not move, so what they are computed by does not count.
    """
    found: dict[str, None] = {}
    waiting = [output.body for output in reversed(outputs)]
    while waiting:
        node = waiting.pop()
        if (text := _kink(node)) is not None:
            found.setdefault(text)
        if not isinstance(node, Read):
            waiting += reversed(parts(node))
    return tuple(found)


def _kink(node: Scalar) -> str | None:
    match node:
        case Reduce("max" | "min" as kind):
            return f"where several elements are the {'largest' if kind == 'max' else 'smallest'}: they share equally"
        case Call("max" | "min", args):
            if any(map(is_constant, args)):
                return "where the argument meets a constant bound: the derivative from the left"
            return "where two arguments are equal: they share equally"
        case Call(function, _):
            return KINKS.get(function)
    return None
