"""How much arithmetic and memory traffic an operator is, read from its meaning and types.

Convention: an addition, a multiplication, a comparison, max, min and a transcendental function count 1 each; summing n
terms counts n; a division is an inverse and a multiplication; reading, index arithmetic, guards and a change of sign
count 0. A subexpression is counted once for each value of the index variables it depends on, as a sensible evaluation
computes it (the sum inside Softmax once per row). So Conv is ``2·N·M·OH·OW·Cg·KH·KW``, padded taps included, plus one
addition for a bias.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod

from superopt.ir.poly import Dim, symbols
from superopt.ir.terms import AttributeValue
from superopt.ir.types import TensorType
from superopt.ops.infer import Applied, Typing
from superopt.ops.meaning import Call, Comprehension, Number, Read, Reduce, Scalar, SizeValue, Where, subexpressions
from superopt.ops.record import Operator

__all__ = ["arithmetic", "flops"]

FREE = frozenset({"select", "cast_int", "not", "and", "or", "xor"})
Variables = frozenset[str]


def flops(operator: Operator, types: Sequence[TensorType | None], attributes: Mapping[str, AttributeValue]) -> Dim:
    """Arithmetic operations of one application, symbolic where sizes are.

    Raises:
        IllTyped: the operator does not accept the types.
    """
    return _flops(operator, tuple(types), tuple(sorted(attributes.items())))


def arithmetic(typing: Typing) -> int:
    """FLOPs of all nodes of a typed graph that are understood and whose sizes are known."""
    total = 0
    for node in typing.nodes:
        if isinstance(node, Applied):
            kinds = [None if a is None else typing.types[a] for a in node.args]
            found = flops(node.operator, kinds, node.attributes)
            total += found if isinstance(found, int) else 0
    return total


@lru_cache(maxsize=65536)
def _flops(
    operator: Operator, types: tuple[TensorType | None, ...], attributes: tuple[tuple[str, AttributeValue], ...]
) -> Dim:
    meaning, _ = operator.apply(types, dict(attributes))
    return sum((_output(c) for c in meaning.outputs), start=0)


def _output(output: Comprehension) -> Dim:
    extents: dict[str, Dim] = {v: e for axis in output.axes for v, e in axis}
    nodes = list(subexpressions(output.body))
    extents.update((n.variable, n.extent) for n in nodes if isinstance(n, Reduce))
    free: dict[int, Variables] = {}
    for node in nodes:
        free[id(node)] = _free(node, free, extents)
    return sum((_own(node, free) * _times(_scope(node, free), extents) for node in nodes), start=0)


def _free(node: Scalar, free: Mapping[int, Variables], extents: Mapping[str, Dim]) -> Variables:
    """Index variables that the value depends on."""
    match node:
        case SizeValue(size):
            return symbols(size) & extents.keys()
        case Read(_, index, _):
            parts = [free[id(i)] if isinstance(i, Scalar) else symbols(i) & extents.keys() for i in index]
            return frozenset().union(*parts)
        case Call(_, args):
            return frozenset().union(*(free[id(a)] for a in args))
        case Where(conditions, then, otherwise):
            guards = [symbols(c.size) & extents.keys() for c in conditions]
            return free[id(then)] | free[id(otherwise)] | frozenset().union(*guards)
        case Reduce(_, variable, _, body):
            return free[id(body)] - {variable}
    return frozenset()


def _scope(node: Scalar, free: Mapping[int, Variables]) -> Variables:
    """Index variables for each of whose values the node's own operation runs."""
    return free[id(node)] | {node.variable} if isinstance(node, Reduce) else free[id(node)]


def _own(node: Scalar, free: Mapping[int, Variables]) -> int:
    """Operations of the node itself, once."""
    match node:
        case Reduce(kind, _, _, Reduce(inner, _, _, _)) if kind == inner:
            return 0  # one sum over several variables: its terms are counted inside
        case Reduce():
            return 1
        case Call("mul", (Number(value), _) | (_, Number(value))) if value in (1, -1):
            return 0
        case Call(function, args) if function not in FREE:
            return 0 if all(isinstance(a, Number | SizeValue) for a in args) else 1
    return 0


def _times(variables: Variables, extents: Mapping[str, Dim]) -> Dim:
    return prod((extents[v] for v in sorted(variables)), start=1)
