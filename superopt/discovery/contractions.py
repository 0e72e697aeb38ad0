"""A sum of products of two tensors as one product of matrices, their axes put in order before and behind.

Which axes are summed, belong to one of the two, or to both, is read off the operator's meaning, whatever its name and
attributes are. Runs of axes of one kind are one axis of the matrices, in each order in which an operand or the result
has them. Nothing is claimed: every form is compared with what is asked for, like any other expression.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from superopt.discovery.rearranged import in_order
from superopt.ir.poly import Dim, Poly
from superopt.ir.terms import App, Term, Var
from superopt.ops.forms import product as elements_of
from superopt.ops.meaning import Call, Comprehension, Read, Reduce, Scalar

__all__ = ["as_products", "contracts"]

Letters = tuple[str, ...]


def contracts(output: Comprehension) -> bool:
    """Whether an operator's result is a sum of products of elements of two operands, each at positions of its own."""
    return _letters(output) is not None


def as_products(term: Term, output: Comprehension) -> Iterator[Term]:
    """An application that contracts two leaves, as products of matrices.

    Args:
        term: the application.
        output: what it means.
    """
    found = _letters(output)
    if found is None or not isinstance(term, App):
        return
    sizes, operands, result = found
    leaves = [a for a in term.args if a is not None]
    if len(leaves) != 2 or not all(isinstance(a, Var) for a in leaves):
        return
    seen: set[Term] = set()
    for first, second in ((0, 1), (1, 0)):
        here, there = operands[first], operands[second]
        both = [c for c in here if c in there]
        kinds = [
            [c for c in both if c in result], [c for c in here if c not in there],
            [c for c in both if c not in result], [c for c in there if c not in here],
        ]  # fmt: skip
        for batch, rows, inner, columns in product(*(_orders(some, (here, there, result)) for some in kinds)):
            left = _matrices(leaves[first], here, (batch, rows, inner), sizes)
            right = _matrices(leaves[second], there, (batch, inner, columns), sizes)
            made = _taken_apart(App("MatMul", (left, right)), (batch, rows, columns), sizes, result, output.shape)
            if made not in seen:
                seen.add(made)
                yield made


def _letters(output: Comprehension) -> tuple[dict[str, Dim], tuple[Letters, Letters], Letters] | None:
    """Sizes by index variable, the variables of both operands' axes and of the result's; ``None`` for what is no
    contraction of two operands. Axes of one element have no variable."""
    sizes = {name: extent for axis in output.axes for name, extent in axis}
    result = tuple(sizes)
    body: Scalar = output.body
    while isinstance(body, Reduce) and body.kind == "sum":
        sizes[body.variable] = body.extent
        body = body.body
    if not isinstance(body, Call) or body.function != "mul" or any(len(axis) > 1 for axis in output.axes):
        return None
    reads = [r for r in body.args if isinstance(r, Read) and r.outside is None]
    if sorted(r.operand for r in reads) != [0, 1] or len(body.args) != 2:
        return None
    operands: list[Letters] = []
    for read in sorted(reads, key=lambda r: r.operand):
        names = tuple(str(i) for i in read.index if isinstance(i, Poly))
        if any(not isinstance(i, Poly) and i != 0 for i in read.index) or not set(names) <= sizes.keys():
            return None
        if len(set(names)) < len(names):
            return None
        operands.append(names)
    one, other = map(set, operands)
    summed = sizes.keys() - set(result)
    if one | other != sizes.keys() or not summed or not summed <= one & other:
        return None
    return sizes, (operands[0], operands[1]), result


def _orders(some: Sequence[str], places: Sequence[Letters]) -> list[Letters]:
    """Index variables in the orders in which tensors have all of them."""
    return list(dict.fromkeys(tuple(c for c in p if c in some) for p in places if set(some) <= set(p)))


def _matrices(leaf: Term, own: Letters, kinds: tuple[Letters, Letters, Letters], sizes: dict[str, Dim]) -> Term:
    """A leaf as matrices, one for each position along the axes that both operands and the result have."""
    shape = [elements_of([sizes[n] for n in some]) for some in (kinds if kinds[0] else kinds[1:])]
    perm = tuple(own.index(n) for some in kinds for n in some)
    return in_order(leaf, [sizes[n] for n in own], perm, shape)


def _taken_apart(
    term: Term, kinds: tuple[Letters, Letters, Letters], sizes: dict[str, Dim], result: Letters, shape: Sequence[Dim]
) -> Term:  # fmt: skip
    """Matrices as the axes that a result has, in its order."""
    own = [n for some in kinds for n in some]
    return in_order(term, [sizes[n] for n in own], tuple(own.index(n) for n in result), shape)
