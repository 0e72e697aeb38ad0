"""Terms that move elements of tensors: orders of axes, matrices of axes, and slices.

A tensor that has another's elements in another order: axes taken apart into digits, moved, and put together. Which
digits an axis has is read off the shapes: sizes of ``f[o, 4*c, u, v]`` and ``f[o, c, 2*u, 2*v]`` have the same factors.
Nothing is claimed: every order is compared with what is asked for, like any other expression.

An operator that works along some axes of a tensor, applied to matrices: runtimes are slow along some axes. The axes are
those that its attributes name. They are put together, and the others too, in each order in which that makes matrices of
the tensor; where they stay beside each other nothing needs to move. Nothing is claimed: every form is compared with
what is asked for, like any other expression.

A sum of products of two tensors as one product of matrices, their axes put in order before and behind. Which axes are
summed, belong to one of the two, or to both, is read off the operator's meaning, whatever its name and attributes are.
Runs of axes of one kind are one axis of the matrices, in each order in which an operand or the result has them. Nothing
is claimed: every form is compared with what is asked for, like any other expression.

Slices of parts of models at symbols: phases of an axis, and crops to the length of another. A slice with steps that
reaches the end of its axis says that this axis is a multiple of the step; one that ends where some leaf's axis would
says that it cuts off what a window has added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, permutations, product

from superopt.ir.size_polynomial import Dim, SizePolynomial, sym
from superopt.ir.terms import AttributeValue, OperatorTerm, Term, VariableTerm
from superopt.ir.types import TensorType
from superopt.ops.onnx_node_conversion import product as elements_of
from superopt.ops.operator_semantics import (
    ElementRead,
    ScalarCall,
    ScalarExpression,
    ScalarReduction,
    TensorComprehension,
)
from superopt.rules.rule import TensorVariableType, TypeScheme

__all__ = [
    "along",
    "along_matrices",
    "as_products",
    "contracts",
    "cropped",
    "has_steps",
    "in_order",
    "phase",
    "rearranged",
    "short_of",
]

_MOST = 96  # orders that are compared
Digits = tuple[Dim, ...]


def rearranged(
    source: Term, shape: Sequence[Dim], wanted: Sequence[Dim], *, joined: bool = False
) -> Iterator[Term]:  # fmt: skip
    """Terms of a shape with all elements of one of another, in the orders in which axes can be taken apart.

    Args:
        source: a tensor.
        shape: its sizes.
        wanted: the sizes of what is looked for.
        joined: digits that stay beside each other are one axis, so that what is moved has as few as it can, and
            shapes that are equal are told apart by the order of their elements alone. Else there are none of equal
            shapes.
    """
    old, new = [_factors(d) for d in shape], [_factors(d) for d in wanted]
    if None in old or None in new or (tuple(shape) == tuple(wanted) and not joined):
        return
    parts, others = [f for f in old if f is not None], [f for f in new if f is not None]
    if sorted(str(d) for f in parts for d in f) != sorted(str(d) for f in others for d in f):
        return
    move = in_order if joined else _moved
    terms = (
        move(source, [d for f in before for d in f], perm, wanted)
        for before in product(*map(_orders, parts))
        for after in product(*map(_orders, others))
        for perm in _assignments([d for f in before for d in f], [d for f in after for d in f])
    )
    yield from islice(terms, _MOST)


def in_order(source: Term, digits: Sequence[Dim], perm: Sequence[int], wanted: Sequence[Dim]) -> Term:
    """A tensor taken apart into digits, which are moved and put together again; what stays beside each other is moved
    as one.

    Args:
        source: a tensor.
        digits: sizes whose product is its number of elements, in the order of its elements.
        perm: the digit that each place of the result has.
        wanted: the sizes of the result.
    """
    runs: list[list[int]] = []
    for position in perm:
        if runs and position == runs[-1][-1] + 1:
            runs[-1].append(position)
        else:
            runs.append([position])
    order = sorted(runs)
    if runs == order:
        return OperatorTerm("Reshape", (source,), (("shape", tuple(wanted)),))
    axes = [elements_of([digits[position] for position in run]) for run in order]
    return _moved(source, axes, tuple(order.index(run) for run in runs), wanted)


def _factors(size: Dim) -> Digits | None:
    """The primes and names that a size is the product of; ``None`` where it is no such product."""
    number, names = (size, ()) if isinstance(size, int) else (size.terms[0][1], size.terms[0][0])
    if (
        number < 1
        or (isinstance(size, SizePolynomial) and len(size.terms) > 1)
        or not all(isinstance(n, str) for n in names)
    ):
        return None
    primes: list[Dim] = []
    for p in range(2, number + 1):
        while number % p == 0:
            primes.append(p)
            number //= p
    return (*primes, *(sym(n) for n in names if isinstance(n, str)))


def _orders(digits: Digits) -> Iterator[Digits]:
    """The different ones: of ten equal digits there is one, not ten factorial."""
    if not digits:
        yield ()
    for digit in dict.fromkeys(digits):
        position = digits.index(digit)
        yield from ((digit, *rest) for rest in _orders((*digits[:position], *digits[position + 1 :])))


def _assignments(before: Sequence[Dim], after: Sequence[Dim]) -> Iterator[tuple[int, ...]]:
    """Which digit each place of a result has, of those of its size."""
    if not after:
        yield ()
        return
    alike = {str(d): [n for n, b in enumerate(before) if b == d] for d in after}
    names = list(alike)
    for chosen in product(*(permutations(alike[n]) for n in names)):
        left = {n: list(c) for n, c in zip(names, chosen, strict=True)}
        yield tuple(left[str(d)].pop(0) for d in after)


def _moved(source: Term, digits: Sequence[Dim], perm: tuple[int, ...], wanted: Sequence[Dim]) -> Term:
    apart = OperatorTerm("Reshape", (source,), (("shape", tuple(digits)),))
    moved = apart if perm == tuple(range(len(perm))) else OperatorTerm("Transpose", (apart,), (("perm", perm),))
    return OperatorTerm("Reshape", (moved,), (("shape", tuple(wanted)),))


_AXIS, _AXES = "axis", "axes"


def along(term: Term) -> tuple[int, ...]:
    """The axes that an application to one tensor alone works along; none where its attributes name none."""
    if not isinstance(term, OperatorTerm) or not term.args or any(a is not None for a in term.args[1:]):
        return ()
    given = dict(term.attributes)
    named: AttributeValue = given.get(_AXES, given.get(_AXIS, ()))
    axes = named if isinstance(named, tuple) else (named,)
    found = tuple(a for a in axes if isinstance(a, int))
    return found if len(found) == len(axes) and all(a >= 0 for a in found) else ()


def along_matrices(term: Term, shape: Sequence[Dim], target: Sequence[Dim]) -> Iterator[Term]:
    """An application to a leaf, along the axes of matrices.

    Args:
        term: the application.
        shape: of the leaf.
        target: of the result.
    """
    axes = along(term)
    if (
        not isinstance(term, OperatorTerm)
        or not isinstance(term.args[0], VariableTerm)
        or not axes
        or max(axes) >= len(shape)
    ):
        return
    rest = tuple(a for a in range(len(shape)) if a not in axes)
    before, after = tuple(a for a in rest if a < axes[0]), tuple(a for a in rest if a > axes[0])
    stays = (before, axes, after) if before + axes + after == tuple(range(len(shape))) else ()
    seen_terms: set[Term] = set()
    for groups in (stays, (rest, axes), (axes, rest)):
        kept = [g for g in groups if g == axes or any(shape[a] != 1 for a in g)]
        order = [a for g in kept for a in g if shape[a] != 1]
        if not kept or (len(kept) == len(shape) and order == sorted(order)):
            continue  # no such matrices, or as it was
        sizes = [elements_of([shape[a] for a in g]) for g in kept]
        digits = [d for d in shape if d != 1]
        places = {a: n for n, a in enumerate(a for a in range(len(shape)) if shape[a] != 1)}
        moved = in_order(term.args[0], digits, [places[a] for a in order], sizes)
        new_term = _applied(term, moved, kept.index(axes))
        if tuple(target) == tuple(shape):
            back = tuple(order.index(a) for a in sorted(order))
            new_term = in_order(new_term, [shape[a] for a in order], back, target)
        else:
            new_term = OperatorTerm("Reshape", (new_term,), (("shape", tuple(target)),))
        if new_term not in seen_terms:
            seen_terms.add(new_term)
            yield new_term


def _applied(term: OperatorTerm, operand: Term, axis: int) -> Term:
    """The application to another operand, along another axis."""
    given = dict(term.attributes)
    given |= {_AXES: (axis,)} if _AXES in given else {_AXIS: axis}
    return replace(term, args=(operand, *term.args[1:]), attributes=tuple(sorted(given.items())))


Letters = tuple[str, ...]


def contracts(output: TensorComprehension) -> bool:
    """Whether an operator's result is a sum of products of elements of two operands, each at positions of its own."""
    return _letters(output) is not None


def as_products(term: Term, output: TensorComprehension) -> Iterator[Term]:
    """An application that contracts two leaves, as products of matrices.

    Args:
        term: the application.
        output: what it means.
    """
    found = _letters(output)
    if found is None or not isinstance(term, OperatorTerm):
        return
    sizes, operands, result = found
    leaves = [a for a in term.args if a is not None]
    if len(leaves) != 2 or not all(isinstance(a, VariableTerm) for a in leaves):
        return
    seen_terms: set[Term] = set()
    for first, second in ((0, 1), (1, 0)):
        here, there = operands[first], operands[second]
        both = [c for c in here if c in there]
        kinds = [
            [c for c in both if c in result], [c for c in here if c not in there],
            [c for c in both if c not in result], [c for c in there if c not in here],
        ]  # fmt: skip
        for batch, rows, inner, columns in product(*(_axis_orders(some, (here, there, result)) for some in kinds)):
            left = _matrices(leaves[first], here, (batch, rows, inner), sizes)
            right = _matrices(leaves[second], there, (batch, inner, columns), sizes)
            new_term = _taken_apart(
                OperatorTerm("MatMul", (left, right)), (batch, rows, columns), sizes, result, output.shape
            )
            if new_term not in seen_terms:
                seen_terms.add(new_term)
                yield new_term


def _letters(output: TensorComprehension) -> tuple[dict[str, Dim], tuple[Letters, Letters], Letters] | None:
    """Sizes by index variable, the variables of both operands' axes and of the result's; ``None`` for what is no
    contraction of two operands. Axes of one element have no variable."""
    sizes = {name: extent for axis in output.axes for name, extent in axis}
    result = tuple(sizes)
    body: ScalarExpression = output.body
    while isinstance(body, ScalarReduction) and body.kind == "sum":
        sizes[body.variable] = body.extent
        body = body.body
    if not isinstance(body, ScalarCall) or body.function != "mul" or any(len(axis) > 1 for axis in output.axes):
        return None
    reads = [r for r in body.args if isinstance(r, ElementRead) and r.outside is None]
    if sorted(r.operand for r in reads) != [0, 1] or len(body.args) != 2:
        return None
    operands: list[Letters] = []
    for read in sorted(reads, key=lambda r: r.operand):
        names = tuple(str(i) for i in read.index if isinstance(i, SizePolynomial))
        if any(not isinstance(i, SizePolynomial) and i != 0 for i in read.index) or not set(names) <= sizes.keys():
            return None
        if len(set(names)) < len(names):
            return None
        operands.append(names)
    one, other = map(set, operands)
    summed = sizes.keys() - set(result)
    if one | other != sizes.keys() or not summed or not summed <= one & other:
        return None
    return sizes, (operands[0], operands[1]), result


def _axis_orders(some: Sequence[str], places: Sequence[Letters]) -> list[Letters]:
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


def cropped(app: OperatorTerm, forall: Mapping[str, TypeScheme], kinds: Mapping[str, TensorType]) -> OperatorTerm:
    """A slice that ends as far away as some leaf's same axis is long, with that size for its end; else as it was."""
    given = dict(app.attributes)
    axes, ends = given["axes"], given["ends"]
    if not isinstance(axes, tuple) or not isinstance(ends, tuple):
        return app
    sizes = {
        (axis, size): schemes.shape[axis]
        for name, schemes in forall.items() if isinstance(schemes, TensorVariableType)
        for axis, size in enumerate(kinds[name].shape or ())
    }  # fmt: skip
    new_ends = tuple(sizes.get((a, e), e) for a, e in zip(axes, ends, strict=True))  # type: ignore[arg-type]
    return app if new_ends == ends else replace(app, attributes=tuple(sorted({**given, "ends": new_ends}.items())))


def phase(
    app: OperatorTerm, operands: Sequence[TensorType | None], fresh: Callable[[], str], values: dict[str, float]
) -> OperatorTerm | None:
    """A slice with steps up to the ends of axes that these steps divide, which are so many times a size; else None."""
    given = dict(app.attributes)
    shape = (None if operands[0] is None else operands[0].shape) or ()
    rows = list(zip(*(_numbers(given[k]) for k in ("axes", "starts", "ends", "steps")), strict=False))
    if all(step == 1 for *_, step in rows):
        return None
    whole: list[Dim] = []
    for axis, start, end, step in rows:
        size = shape[axis]
        if not isinstance(size, int) or not 0 <= start < step or end < size or size % step:
            return None
        name = fresh()
        values[name] = float(size // step)
        whole.append(step * sym(name))
    return replace(app, attributes=tuple(sorted({**given, "ends": tuple(whole)}.items())))


def short_of(shape: Sequence[Dim], given: Mapping[str, AttributeValue]) -> Dim | None:
    """What an axis has more than so many steps, where a slice with steps is to reach its end."""
    axes, ends, steps = given["axes"], given["ends"], given["steps"]
    if isinstance(axes, tuple) and isinstance(ends, tuple) and isinstance(steps, tuple):
        for axis, end, step in zip(axes, ends, steps, strict=True):
            if (
                isinstance(axis, int)
                and isinstance(step, int)
                and isinstance(end, SizePolynomial)
                and shape[axis] != end
            ):
                steps_more = (shape[axis] - end) // step
                return steps_more if steps_more * step == shape[axis] - end else shape[axis] - end
    return None


def has_steps(app: OperatorTerm) -> bool:
    steps = dict(app.attributes)["steps"]
    return isinstance(steps, tuple) and not set(steps) <= {1}


def _numbers(value: AttributeValue) -> list[int]:
    """A list of whole numbers; empty where it is none."""
    parts = value if isinstance(value, tuple) else ()
    numbers = [v for v in parts if isinstance(v, int)]
    return numbers if len(numbers) == len(parts) else []
