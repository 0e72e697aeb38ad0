"""Right sides before their weights are known: operators over the left side's data with holes for weights.

A skeleton is made of operators alone: what stands in its holes is solved for
(:mod:`superopt.discovery.weight_equations`) and synthesised (:mod:`superopt.discovery.weight_synthesis`). Shapes of
holes are those at which the operator accepts its operands and gives the left side's type, of the sizes that the left
side has.

A product with a weight sums over the elements of a row, and its weight may have its rows in any order: of all orders of
the data, the one that a device moves quickest is as good; so for the columns (:func:`reordered`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import combinations, product
from math import inf

from superopt.discovery.data_movement_terms import along_matrices, as_products, rearranged
from superopt.discovery.data_movement_terms import rearranged as _orders_of
from superopt.discovery.operator_skeletons import Skeleton, applied, broadcasting, looks_through
from superopt.discovery.symbolic_generalisation import SynthesisProblem, orders
from superopt.discovery.weight_synthesis import extents
from superopt.ir.size_polynomial import Dim, SizePolynomial
from superopt.ir.terms import OperatorTerm, OutputTerm, Term, VariableTerm, postorder, remade, replaced, variables
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.onnx_node_conversion import product as elements_of
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.rules.scanner import RuleError
from superopt.rules.typing import operator_of, type_terms

__all__ = ["OPERATORS", "reordered", "skeletons"]

OPERATORS = ("Conv", "MatMul", "Mul", "Add")
_HOLE = "?"
_STEPS = 2  # applications of a problem that are left out, or exchanged with the next
_MOST_REARRANGED = 48


Price = Callable[[Skeleton], float | None]


def skeletons(
    problem: SynthesisProblem, operators: Sequence[str] = OPERATORS, *, needed: Set[str] = frozenset(),
    price: Price = lambda _: 0.0, limit: float = inf, affine: bool = True, rearranged_only: bool = False,
    alternatives: bool = False,
) -> Iterator[Skeleton]:  # fmt: skip
    """Skeletons of the problem's type over its data, of these operators and the linear ones of the problem itself.

    What cannot be equal or cheap enough is not built: a skeleton reads all data that its value has to depend on, and
    costs at least what its parts do. What would be made of values inside the left side alone is an equal of the smaller
    expression that has these for data, and is left to that one.

    Args:
        problem: the left side.
        operators: that are applied to data.
        needed: data that the left side's value depends on.
        price: of a skeleton, or a lower bound; ``None`` where no skeleton with this one in it is wanted.
        limit: skeletons that cost as much are not wanted.
        affine: whether the left side may be affine in its data: what is none is no product of these with weights.
        rearranged_only: no skeletons but over the problem with one of its inner applications left out.
        alternatives: whether operators of all kinds are applied to data of which the problem is a single application;
            otherwise those that work element by element, which cost no more.

    Raises:
        IllTypedOperator: the problem is not well-formed.
    """
    types = type_terms([problem.term], problem.kinds)[0]
    (target,) = types[problem.term]
    sizes = _sizes(problem, types)
    rearranged = _rearranged(problem)
    every = rearranged if rearranged_only else {t: types[t][0] for t in _data(problem)} | _neutral(problem) | rearranged
    bases = {b: k for b, k in every.items() if _below(price(Skeleton(b, {})), limit)}
    read = {b: frozenset(variables(b)) - problem.weights for b in bases}
    yield from _in_order(problem, target)
    yield from _contracted(problem)
    yield from _along(problem, target)
    yield from _renewed(problem, rearranged, needed, price, limit)
    yield from _renewed(problem, () if rearranged_only else reordered(problem), needed, price, limit)
    pairs = [
        (a, b) for a in bases for b in bases
        if _completes(a, b, read, needed) and (rearranged_only or _worth_it(problem, (a, b), affine))
    ]  # fmt: skip
    whole = [b for b in bases if needed <= read[b]]
    applied = {b for b in whole if b in rearranged or _worth_it(problem, (b,), affine)}
    own = [
        t.op
        for t in postorder(problem.term)
        if isinstance(t, OperatorTerm) and operator_of(t).family in ("conv", "linear")
    ]
    operators = tuple(dict.fromkeys((*operators, *own)))
    smaller = {b for b in rearranged if not (alternatives and isinstance(b, VariableTerm))}
    singles = {
        b: list(_singles(problem, _pointwise(operators) if b in smaller else operators, b, k, target, sizes))
        for b, k in bases.items()
        if b in applied or any(b in pair for pair in pairs)
    }  # fmt: skip
    for base in whole:
        if bases[base] == target and base != problem.term:
            yield Skeleton(base, {})
        yield from singles[base] if base in applied else ()
    for base in (b for b in whole if b in applied):
        yield from (_with_addend(single, target) for single in singles[base] if not _adds(single.term))
    for base, some in singles.items():
        if bases[base] == target and base != problem.term:
            some.append(Skeleton(base, {}))  # data may be added as they are
    yield from _sums(pairs, singles, target, price, limit)


def _singles(
    problem: SynthesisProblem,
    operators: Sequence[str],
    base: Term,
    kind: TensorType,
    target: TensorType,
    sizes: tuple[Dim, ...],
) -> Iterator[Skeleton]:
    """One of the operators applied to one term, or the window through which the problem looks at it."""
    prefix = f"{_HOLE}a"
    for op in operators:
        yield from applied(problem, op, base, kind, target, sizes, prefix)
    look = looks_through(problem, base.name) if isinstance(base, VariableTerm) else None
    if look is not None:
        op, attributes, window = look
        more = tuple(dict.fromkeys((*sizes, *window)))
        yield from applied(problem, op, base, kind, target, more, prefix, (tuple(sorted(attributes.items())),))


def _below(price: float | None, limit: float) -> bool:
    return price is not None and price < limit


def _completes(a: Term, b: Term, read: Mapping[Term, frozenset[str]], needed: Set[str]) -> bool:
    """Whether two terms, in this order, read different data, and together what is needed."""
    return str(a) < str(b) and not read[a] & read[b] and needed <= read[a] | read[b]


def _worth_it(problem: SynthesisProblem, bases: Sequence[Term], affine: bool) -> bool:
    """Whether weighted sums of terms can be an equal that no smaller expression has, with these terms for data."""
    inside = set(postorder(problem.term))
    return affine if all(isinstance(b, VariableTerm) for b in bases) else any(b not in inside for b in bases)


def _with_addend(single: Skeleton, target: TensorType) -> Skeleton:
    """A weight added to what a skeleton gives, where the operator does not add one itself; of one shape with its own,
    if that broadcasts as well."""
    hole = f"{_HOLE}z"
    *fewer, widest = broadcasting(target)
    alike = tuple({**some, hole: kind} for some in single.narrower for kind in some.values())
    narrower = (*alike, *({**single.holes, hole: kind} for kind in fewer))
    return Skeleton(OperatorTerm("Add", (single.term, VariableTerm(hole))), {**single.holes, hole: widest}, narrower)


def _sums(
    pairs: Sequence[tuple[Term, Term]], singles: Mapping[Term, Sequence[Skeleton]], target: TensorType, price: Price,
    limit: float,
) -> Iterator[Skeleton]:  # fmt: skip
    """Sums of two skeletons of different data, as far as both together cost less than the limit."""
    prices = {b: [(s, price(s.least)) for s in singles[b]] for b in dict.fromkeys(b for pair in pairs for b in pair)}
    for base, other in pairs:
        for single, mine in prices[base]:
            if not _adds(single.term) or not single.holes:
                yield from _with_other(single, mine, prices[other], target, limit)


def _with_other(
    single: Skeleton, mine: float | None, others: Sequence[tuple[Skeleton, float | None]], target: TensorType,
    limit: float,
) -> Iterator[Skeleton]:  # fmt: skip
    """The sum with skeletons of other data, and a weight added to it; prices beside each."""
    for second, theirs in others:
        if mine is None or theirs is None or mine + theirs >= limit:
            continue
        names = {h: f"{_HOLE}b{h[2:]}" for h in second.holes}
        renamed = _renamed(second.term, names)
        holes = {names[h]: t for h, t in second.holes.items()}
        both = Skeleton(OperatorTerm("Add", (single.term, renamed)), {**single.holes, **holes})
        yield both
        if not _adds(second.term) or not second.holes:
            yield _with_addend(both, target)


def _renamed(root: Term, names: Mapping[str, str]) -> Term:
    terms: dict[Term, Term] = {}
    for term in postorder(root):
        terms[term] = (
            VariableTerm(names.get(term.name, term.name)) if isinstance(term, VariableTerm) else remade(term, terms)
        )
    return terms[root]


def _adds(term: Term) -> bool:
    return isinstance(term, OperatorTerm) and term.op == "Add"


# ── what skeletons start from ─────────────────────────────────────────────────────────────────────────────────────────


def _data(problem: SynthesisProblem) -> list[Term]:
    """Subterms that depend on data, the whole left out."""
    return [
        t for t in postorder(problem.term)
        if t != problem.term and not isinstance(t, OutputTerm) and not set(variables(t)) <= problem.weights
    ]  # fmt: skip


def _neutral(problem: SynthesisProblem) -> dict[Term, TensorType]:
    """Applications with their weights left out or made 1: what a normalisation is without its affine part."""
    kinds = problem.kinds
    tensor_types: dict[Term, TensorType] = {}
    for term in (*_data(problem), problem.term):
        if not isinstance(term, OperatorTerm) or operator_of(term).family in ("elementwise", "conv", "linear"):
            continue
        if any(i.endswith("*") for i in REGISTRY[term.op].inputs):
            continue  # of operands of any number none does nothing
        positions = [n for n, a in enumerate(term.args) if a is not None and set(variables(a)) <= problem.weights]
        if not positions or len(positions) == len(term.args):
            continue
        app = _without(term, positions, kinds)
        try:
            tensor_types[app] = type_terms([app], kinds)[0][app][0]
        except (IllTypedOperator, RuleError):
            continue
    return tensor_types


def _rearranged(problem: SynthesisProblem) -> dict[Term, TensorType]:
    """The problem with applications left out, or in the other order, nearest first: what it is made of may not depend
    on one, and what one does to its axes may not matter to the next.

    A normalisation takes away what is added before it, and the maximum of what a weight is added to is the maximum of
    the rest, with the weight added behind it; a product along one axis may come before or behind one along another,
    and which of the two leaves less to do is a matter of sizes. Only what has the problem's own type for all sizes
    counts.
    """
    tensor_types: dict[Term, TensorType] = {}
    target = _accepted(problem.term, problem.kinds)
    if target is None:
        return tensor_types
    latest = [problem.term]
    for _ in range(_STEPS):
        made = dict.fromkeys(t for term in latest for t in _neighbours(term, problem.weights))
        latest = [
            t for t in made if t not in tensor_types and t != problem.term and _accepted(t, problem.kinds) == target
        ][: _MOST_REARRANGED - len(tensor_types)]  # fmt: skip
        tensor_types |= dict.fromkeys(latest, target)
    return tensor_types


def _neighbours(root: Term, weights: Set[str]) -> Iterator[Term]:
    """A term with one application left out, and with two that follow each other in the other order."""
    several = {t.term for t in postorder(root) if isinstance(t, OutputTerm)}
    for outer in postorder(root):
        if not isinstance(outer, OperatorTerm) or outer in several:
            continue
        data = [a for a in outer.args if a is not None and not set(variables(a)) <= weights]
        for operand in data:
            yield replaced(root, outer, operand)
        if len(data) == 1 and isinstance(inner := data[0], OperatorTerm):
            below = [a for a in inner.args if a is not None and not set(variables(a)) <= weights]
            if len(below) == 1:
                yield replaced(root, outer, _on(inner, below[0], _on(outer, inner, below[0])))


def _on(app: OperatorTerm, operand: Term, other: Term) -> OperatorTerm:
    """An application with another operand in the place of one."""
    return replace(app, args=tuple(other if a == operand else a for a in app.args))


def _in_order(problem: SynthesisProblem, target: TensorType) -> Iterator[Skeleton]:
    """The elements of the only tensor that the problem has, in each order in which its shape can be taken apart: axes
    that stay beside each other, or have one element, are moved as one; what is repeated is repeated last."""
    names = list(variables(problem.term))
    if len(names) == 1 and names[0] not in problem.weights and orders(problem.term):
        shape, wanted = problem.kinds[names[0]].shape or (), target.shape or ()
        for term in _orders_of(VariableTerm(names[0]), shape, wanted, joined=True):
            yield Skeleton(term, {})
        for once in _once(wanted) if elements_of(shape) != elements_of(wanted) else ():
            for term in _orders_of(VariableTerm(names[0]), shape, once, joined=True):
                yield Skeleton(OperatorTerm("Expand", (term,), (("shape", wanted),)), {})


def _once(shape: Sequence[Dim]) -> Iterator[tuple[Dim, ...]]:
    """A shape with some of its axes of one element."""
    for keep in product((False, True), repeat=len(shape)):
        narrower = tuple(d if k else 1 for k, d in zip(keep, shape, strict=True))
        if narrower != tuple(shape) and sum(d == 1 for d in narrower) == keep.count(False):
            yield narrower


def _contracted(problem: SynthesisProblem) -> Iterator[Skeleton]:
    """A sum of products of two tensors that is no product of matrices, as one."""
    if isinstance(problem.term, OperatorTerm) and problem.term.op not in OPERATORS:
        meaning = type_terms([problem.term], problem.kinds)[1][problem.term]
        for term in as_products(problem.term, meaning.outputs[0]):
            yield Skeleton(term, {})


def _along(problem: SynthesisProblem, target: TensorType) -> Iterator[Skeleton]:
    """An operator that works along axes of its only operand, along those of matrices."""
    names = list(variables(problem.term))
    if len(names) == 1 and names[0] not in problem.weights and isinstance(problem.term, OperatorTerm):
        shape = problem.kinds[names[0]].shape or ()
        for term in along_matrices(problem.term, shape, target.shape or ()):
            yield Skeleton(term, {})


def _renewed(
    problem: SynthesisProblem, rearranged: Iterable[Term], needed: Set[str], price: Price, limit: float
) -> Iterator[Skeleton]:  # fmt: skip
    """The problem with applications left out or in another order, and other weights for one or two of those it has.

    So a scale behind a product of data is taken in by the weights that one of its operands is made with.
    """
    for term in rearranged:
        if not needed <= set(variables(term)) or not _below(price(Skeleton(term, {})), limit):
            continue
        weights = [n for n in variables(term) if n in problem.weights]
        for count in (1, 2):
            for some in combinations(weights, count):
                names = {n: f"{_HOLE}{n}" for n in some}
                yield Skeleton(_renamed(term, names), {names[n]: problem.kinds[n] for n in some})


def _accepted(root: Term, kinds: Mapping[str, TensorType]) -> TensorType | None:
    """The type of a term whose operators accept their operands at all sizes; ``None`` where one does not."""
    try:
        types, meanings = type_terms([root], kinds)
    except (IllTypedOperator, RuleError, ZeroDivisionError):
        return None
    conditional = any(c.kind == "eq" for meaning in meanings.values() for c in meaning.obligations)
    return None if conditional else types[root][0]


def _pointwise(operators: Sequence[str]) -> tuple[str, ...]:
    """Those that are applied element by element."""
    return tuple(op for op in operators if REGISTRY[op].family == "elementwise")


def _without(term: OperatorTerm, positions: Sequence[int], kinds: Mapping[str, TensorType]) -> OperatorTerm:
    """The application with arguments that may be absent left out, and the others 1."""
    record = operator_of(term)
    types = type_terms([term], kinds)[0]
    args: list[Term | None] = list(term.args)
    for position in positions:
        argument = term.args[position]
        assert argument is not None
        one = OperatorTerm("ConstantOfShape", (), (("shape", types[argument][0].shape or ()), ("value", 1.0)))
        args[position] = None if record.inputs[position].endswith("?") else one
    while args and args[-1] is None:
        args.pop()
    return OperatorTerm(term.op, tuple(args), term.attributes)


def _sizes(problem: SynthesisProblem, types: Mapping[Term, tuple[TensorType, ...]]) -> tuple[Dim, ...]:
    """Sizes that holes may have: those of all tensors, and of windows, zeros between their taps included; 1."""
    found: dict[Dim, None] = {1: None}
    for outputs in types.values():
        found.update(dict.fromkeys(outputs[0].shape or ()))
    for term in postorder(problem.term):
        attributes = dict(term.attributes) if isinstance(term, OperatorTerm) else {}
        window = attributes.get("kernel_shape", ())
        if (
            isinstance(term, OperatorTerm)
            and "dilations" in attributes
            and len(term.args) > 1
            and term.args[1] is not None
        ):
            window = (types[term.args[1]][0].shape or ())[2:]
        if isinstance(window, tuple):
            sizes = tuple(v for v in window if isinstance(v, int | SizePolynomial))
            found.update(dict.fromkeys((*sizes, *extents(sizes, attributes.get("dilations", (1,) * len(sizes))))))
    return tuple(found)


# ── one application with holes ────────────────────────────────────────────────────────────────────────────────────────


_CORE = VariableTerm("@core")


def reordered(problem: SynthesisProblem) -> Iterator[Term]:
    """The problem with other movements of elements before its operators with weights, or behind them.

    Args:
        problem: the left side; nothing where it is not movements around operators that each have one operand of data.
    """
    outer, core = _moved(problem, problem.term)
    inner = core
    while (
        isinstance(inner, OperatorTerm)
        and operator_of(inner).family != "shape"
        and (below := _data_read(problem, inner))
    ):
        inner = below
    if inner == core:
        return
    _, leaf = _moved(problem, inner)
    types = type_terms([problem.term], problem.kinds)[0]
    if isinstance(leaf, VariableTerm) and leaf != inner:
        for term in rearranged(leaf, types[leaf][0].shape or (), types[inner][0].shape or (), joined=True):
            yield replaced(problem.term, inner, term)
    if outer:
        shape, wanted = types[core][0].shape or (), types[problem.term][0].shape or ()
        for term in rearranged(_CORE, shape, wanted, joined=True):
            yield replaced(term, _CORE, core)


def _moved(problem: SynthesisProblem, term: Term) -> tuple[bool, Term]:
    """Whether a term is movements of the elements of another, and which."""
    inner = term
    while (
        isinstance(inner, OperatorTerm)
        and operator_of(inner).family == "shape"
        and (below := _data_read(problem, inner))
    ):
        inner = below
    return inner != term, inner


def _data_read(problem: SynthesisProblem, app: OperatorTerm) -> Term | None:
    """The operand that depends on data, if there is one alone."""
    terms = [a for a in app.args if a is not None and not set(variables(a)) <= problem.weights]
    return terms[0] if len(terms) == 1 else None
