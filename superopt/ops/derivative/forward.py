"""The derivative of a meaning, as a meaning: what an operator does to small changes of its operands.

``D f`` has the operands of ``f``, then a *tangent* for each (absent where the operand does not move). It is derived
from the meaning alone, by the table of :mod:`.scalars`: sums are differentiated term by term, the largest of a
reduction by all that reach it, a guard by its branches. Positions that come from data do not move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType, TensorType
from superopt.ops.derivative.scalars import STEPS, choices, partials
from superopt.ops.meaning import (
    Call,
    Comprehension,
    Number,
    Operand,
    Read,
    Reduce,
    Scalar,
    Where,
    call,
    number,
)  # fmt: skip
from superopt.ops.record import Canonical, NodeForm, NodeView, NotCovered, Operator

__all__ = ["PREFIX", "derivative_of", "tangent_of"]

PREFIX = "D "  # of the names of derivatives: no ONNX operator has a space in its name


@lru_cache(maxsize=1024)
def derivative_of(operator: Operator, count: int) -> Operator:
    """The derivative of an operator with ``count`` operands as a record, for statements about it; never a node.

    Its operands are those of the operator, then their tangents, of the same types; ``None`` for one that stays.
    """

    def meaning(*operands: Operand | None, **attributes: AttributeValue) -> Sequence[Comprehension]:
        made = operator.meaning(*operands[:count], **attributes)
        outputs = (made,) if isinstance(made, Comprehension) else tuple(made)
        moving = {p: count + p for p, tangent in enumerate(operands[count:]) if tangent is not None}
        return tuple(replace(c, body=tangent_of(c.body, moving) or number(0)) for c in outputs)

    def result(types: Sequence[TensorType | None], attributes: Mapping[str, AttributeValue]) -> DType:
        return operator.result(types[:count], attributes)

    return replace(
        operator, name=PREFIX + operator.name, inputs=tuple(f"{d}x{p}?" for d in ("", "d") for p in range(count)),
        meaning=meaning, result=result, kernel=None, commutative=False, read=_unread, write=_unwritten,
    )  # fmt: skip


def _unread(view: NodeView) -> Canonical:
    raise NotCovered("a derivative is no node")


def _unwritten(
    attributes: Mapping[str, AttributeValue], types: Sequence[TensorType | None], opset: int
) -> NodeForm:  # fmt: skip
    raise NotCovered("a derivative is no node")


def tangent_of(body: Scalar, moving: Mapping[int, int]) -> Scalar | None:
    """How an element moves with the operands; ``None`` where it does not.

    Args:
        body: the element.
        moving: operand → operand that holds its tangent.
    """
    known: dict[int, Scalar | None] = {}

    def tangent(node: Scalar) -> Scalar | None:
        if id(node) not in known:
            known[id(node)] = derived(node)
        return known[id(node)]

    def derived(node: Scalar) -> Scalar | None:
        match node:
            case Read(operand, index, outside):
                still = None if outside is None else Number(number(0).value)  # type: ignore[attr-defined]
                return Read(moving[operand], index, still) if operand in moving else None
            case Call(function, args):
                return _called(function, args, [tangent(a) for a in args])
            case Reduce(kind, variable, extent, inner):
                return _reduced(node, kind, variable, extent, inner)
            case Where(conditions, then, otherwise):
                branches = tangent(then), tangent(otherwise)
                if branches == (None, None):
                    return None
                return Where(conditions, branches[0] or number(0), branches[1] or number(0))
        return None

    def _reduced(node: Scalar, kind: str, variable: str, extent: object, inner: Scalar) -> Scalar | None:
        assert isinstance(node, Reduce)
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


def chain(node: Reduce) -> tuple[list[tuple[str, object]], Scalar]:
    """The variables of reductions of one kind directly inside each other, and what they reduce."""
    spans: list[tuple[str, object]] = []
    inner: Scalar = node
    while isinstance(inner, Reduce) and inner.kind == node.kind:
        spans.append((inner.variable, inner.extent))
        inner = inner.body
    return spans, inner


def summed(spans: Sequence[tuple[str, object]], body: Scalar) -> Scalar:
    for variable, extent in reversed(spans):
        body = Reduce("sum", variable, extent, body)  # type: ignore[arg-type]
    return body


def _called(function: str, args: tuple[Scalar, ...], moved: Sequence[Scalar | None]) -> Scalar | None:
    if function in STEPS or all(m is None for m in moved):
        return None
    factors = choices(function, args) or partials(function, args, [m is not None for m in moved])
    parts = [m if f == number(1) else f * m for f, m in zip(factors, moved, strict=True) if m is not None]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole + part
    return whole
