"""Weights of low rank: a product with such a weight becomes two thinner products, where that is cheaper and close
enough.

A product is found in the meaning, as a sum over data and one weight. The weight as a matrix, from the summed axes to
the others, is ``first · second``. The operator itself takes ``first``, with fewer columns, and then ``second``, with
attributes at which it reads one position only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product as combinations

import numpy as np

from superopt.ir.graph import Weight, constant
from superopt.ir.size_polynomial import SizePolynomial, sym, symbols
from superopt.ir.terms import AttributeValue
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.operator_semantics import (
    ElementRead,
    IllTypedOperator,
    OperatorSemantics,
    ScalarCall,
    ScalarExpression,
    ScalarReduction,
)
from superopt.passes.weights.slice_analysis import SliceAnalysis
from superopt.passes.weights.slice_removal import products_of
from superopt.passes.weights.slice_removal_rewrite import writable
from superopt.program.graph_program import ProgramStep
from superopt.regions.replay import FreshNames
from superopt.rules.weight_claims import LowRankProduct

__all__ = ["LowRankFactors", "factored_of"]


@dataclass(frozen=True)
class LowRankPolicy:
    """The numbers that decide which weights are replaced by two factors.

    Attributes:
        fewest: rows and columns of a weight below which two products cost more than one.
        largest: rows or columns of a weight that is decomposed.
        elements: elements of both factors beside those of the weight, at most.
        sample_rows: rows beyond the largest rank worth having by which a weight of higher rank is told.
        pivot: share of the largest that a pivot in float32 has to exceed to be none of a singular minor's.
        zero_column: share of the largest column's square: the rounding of float64, in a column that others give.
        scale: times larger than results, about, that what is between two factors is: it underflows after them.
        denominator: of what exact factors may hold besides columns of the weight itself.
    """

    fewest: int = 32
    largest: int = 4096
    elements: float = 0.6
    sample_rows: int = 8
    pivot: float = 1e-5
    zero_column: float = 1e-18
    scale: float = 8.0
    denominator: int = 1 << 10


POLICY = LowRankPolicy()


@dataclass(frozen=True)
class LowRankFactors:
    """New steps and weights in the place of products, and what is claimed of each."""

    steps: list[ProgramStep]
    weights: list[Weight]
    types: dict[str, TensorType]
    claims: tuple[LowRankProduct, ...]


@dataclass(frozen=True)
class _Site:
    """A product: the step's weight operand, its axes that are summed over, and the one that is not."""

    operand: int
    summed: tuple[int, ...]
    free: int
    axis: int
    bias: int | None


def factored_of(values: SliceAnalysis, budget: float) -> LowRankFactors | None:
    """Products with weights that are of low rank within a budget.

    Args:
        values: of the program.
        budget: the largest singular value that is left out, as a share of the largest; 0 finds nothing.
    """
    if budget <= 0:
        return None
    program, names = values.program, FreshNames(values.program)
    found = LowRankFactors([], [], {}, ())
    claims: list[LowRankProduct] = []
    for position, step in enumerate(program.steps):
        meaning = None if program.is_constant(step) else values.meaning(position)
        site = None if meaning is None else _site(values, step, meaning)
        made = None if site is None else _factors(values, step, site, budget)
        new = None if site is None or made is None else _written(values, step, site, made, names, found)
        if new is None or made is None or site is None:
            found.steps.append(step)
            continue
        found.steps.extend(new)
        claims.append(
            LowRankProduct(step.outputs[0], step.args[site.operand] or "", made.rank, made.error, made.error == 0.0)
        )
    return LowRankFactors(found.steps, found.weights, found.types, tuple(claims)) if claims else None


def _site(values: SliceAnalysis, step: ProgramStep, meaning: OperatorSemantics) -> _Site | None:
    if len(meaning.outputs) != 1 or not values.program.types[step.outputs[0]].dtype.is_float:
        return None
    output = meaning.outputs[0]
    body, bias = output.body, None
    match body:
        case ScalarCall("add", (summed_up, ElementRead(operand))):
            body, bias = summed_up, operand
    if not isinstance(body, ScalarReduction) or body.kind != "sum":
        return None
    fixed = [a is not None and a in values.program.constant for a in step.args]
    found = products_of(body, body.variable, fixed)
    if found is None or not found.plain or (bias is not None and not fixed[bias]):
        return None
    inner = {s.variable for s in _chain(body)}
    own = {axis[0][0]: at for at, axis in enumerate(output.axes) if len(axis) == 1}
    index = found.weight.index
    summed = tuple(a for a, i in enumerate(index) if any(i == sym(v) for v in inner))
    free = [(a, own[v]) for a, i in enumerate(index) for v in own if i == sym(v)]
    rest = [i for a, i in enumerate(index) if a not in summed and a not in [f for f, _ in free]]
    if len(summed) != len(inner) or len(free) != 1 or any(not isinstance(i, int) for i in rest):
        return None
    if any(isinstance(i, SizePolynomial) and output.axes[free[0][1]][0][0] in symbols(i) for i in found.data.index):
        return None
    return _Site(found.weight.operand, summed, free[0][0], free[0][1], bias)


def _chain(body: ScalarExpression) -> Iterator[ScalarReduction]:
    while isinstance(body, ScalarReduction):
        yield body
        body = body.body


@dataclass(frozen=True)
class _Pair:
    first: np.ndarray
    second: np.ndarray
    error: float

    @property
    def rank(self) -> int:
        return int(self.first.shape[1])


def _factors(values: SliceAnalysis, step: ProgramStep, site: _Site, budget: float) -> _Pair | None:
    """Factors of a weight as a matrix of what is summed over by what is not; ``None`` where its rank is not low."""
    kind = values.program.types[step.args[site.operand] or ""]
    shape = [d for d in kind.shape or () if isinstance(d, int)]
    columns = shape[site.free]
    rows = int(np.prod([shape[a] for a in site.summed]))
    if (
        min(rows, columns) < POLICY.fewest
        or max(rows, columns) > 4 * POLICY.largest
        or min(rows, columns) > POLICY.largest
    ):
        return None
    most = int(POLICY.elements * rows * columns / (rows + columns))
    array = values.array(step.args[site.operand] or "")
    if array is None or not _may_be_low(_as_matrix(array, site), most):
        return None
    matrix = _as_matrix(array, site).astype(np.float64)
    if not np.isfinite(matrix).all():
        return None
    left, singular, right = np.linalg.svd(matrix, full_matrices=False)
    rank = max(1, int((singular > budget * singular[0]).sum()))
    if rank > most:
        return None
    exact = _exact(matrix, rank)
    if exact is not None:
        return _Pair(*exact, 0.0)
    first = (left[:, :rank] * singular[:rank] * POLICY.scale).astype(array.dtype)
    second = (right[:rank] / POLICY.scale).astype(array.dtype)
    off = matrix - first.astype(np.float64) @ second.astype(np.float64)
    error = float(np.linalg.norm(off, 2) / singular[0]) if min(off.shape) <= POLICY.largest else float("inf")
    return _Pair(first, second, error) if error <= 2 * budget else None


def _as_matrix(array: np.ndarray, site: _Site) -> np.ndarray:
    rest = tuple(a for a in range(array.ndim) if a not in site.summed and a != site.free)
    return array.transpose(*site.summed, site.free, *rest).reshape(-1, array.shape[site.free])


def _may_be_low(matrix: np.ndarray, most: int) -> bool:
    """Whether a random minor of a few rows more than the largest rank worth having is nearly singular, as it is for
    every matrix of such a rank: the distances of its rows from those before are the pivots of Cholesky's method."""
    rng = np.random.default_rng(0)
    size = min(most + POLICY.sample_rows, *matrix.shape)
    rows = rng.choice(matrix.shape[0], size, replace=False)
    columns = rng.choice(matrix.shape[1], min(size + POLICY.sample_rows, matrix.shape[1]), replace=False)
    minor = matrix[np.ix_(rows, columns)].astype(np.float32)
    largest = float(np.abs(minor).max())
    if not largest or not np.isfinite(largest):
        return True  # all of it says more
    minor /= largest
    gram = minor @ minor.T
    try:
        pivots = np.diag(np.linalg.cholesky(gram)) ** 2
    except np.linalg.LinAlgError:
        return True
    return bool(pivots.min() <= POLICY.pivot * float(np.diag(gram).max()))


def _exact(matrix: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Columns of the matrix and short fractions whose product is the matrix itself, if there are.

    The columns are the first that no earlier ones give; then the largest.
    """
    for first_ones in (True, False):
        rest, chosen = matrix.copy(), list[int]()
        least = POLICY.zero_column * float((matrix * matrix).sum(axis=0).max())
        for _ in range(rank):
            norms = (rest * rest).sum(axis=0)
            best = int((norms > least).argmax() if first_ones else norms.argmax())
            if norms[best] <= least:
                break
            chosen.append(best)
            direction = rest[:, best] / np.sqrt(norms[best])
            rest = rest - np.outer(direction, direction @ rest)
        first = matrix[:, sorted(chosen)]
        second = np.rint(np.linalg.lstsq(first, matrix, rcond=None)[0] * POLICY.denominator) / POLICY.denominator
        if np.array_equal(first @ second, matrix):
            return first, second
    return None


def _written(
    values: SliceAnalysis, step: ProgramStep, site: _Site, pair: _Pair, names: FreshNames, found: LowRankFactors
) -> list[ProgramStep] | None:  # fmt: skip
    """Two steps of the same operator; ``None`` where it cannot take such weights."""
    program, name = values.program, step.args[site.operand] or ""
    kind, output = program.types[name], step.outputs[0]
    shape = [d for d in kind.shape or () if isinstance(d, int)]
    thin = [pair.rank if a == site.free else d for a, d in enumerate(shape)]
    narrow = [shape[site.free] if a == site.free else 1 for a in range(len(shape))]
    narrow[site.summed[0]] = pair.rank
    first, second = TensorType(kind.dtype, tuple(thin)), TensorType(kind.dtype, tuple(narrow))
    plain = [None if p == site.bias else a for p, a in enumerate(step.args)]
    while plain and plain[-1] is None:
        plain.pop()
    given = [first if p == site.operand else None if a is None else program.types[a] for p, a in enumerate(plain)]
    try:
        (between,) = REGISTRY[step.op].apply(given, dict(step.attributes))[1]
    except IllTypedOperator:
        return None
    data = next(p for p, a in enumerate(step.args) if p not in (site.operand, site.bias) and a is not None)
    types = {data: between, site.operand: second}
    later = [types.get(p) or (None if a is None else program.types[a]) for p, a in enumerate(step.args)]
    attributes = _pointwise_attributes(step, later, program.types[output], site)
    if attributes is None:
        return None
    order = (*site.summed, site.free, *(a for a in range(len(shape)) if a not in site.summed and a != site.free))
    made = [
        constant(names.fresh(f"{name}_{part}"), _as_weight(matrix, type_, order).astype(kind.dtype.numpy))
        for part, matrix, type_ in (("left", pair.first, first), ("right", pair.second, second))
    ]
    found_ones = tuple(sorted(attributes.items()))
    if not writable(program, step, step.attributes, given) or not writable(program, step, found_ones, later):
        return None
    half = names.fresh(f"{output}_thin")
    found.weights.extend(made)
    found.types.update({half: between, **{w.name: w.type for w in made}})
    before = tuple(made[0].name if p == site.operand else a for p, a in enumerate(plain))
    after = tuple(half if p == data else made[1].name if p == site.operand else a for p, a in enumerate(step.args))
    return [
        ProgramStep(step.op, before, step.attributes, (half,), None, f"{step.name}_thin"),
        ProgramStep(step.op, after, found_ones, step.outputs, None, step.name),
    ]


def _as_weight(matrix: np.ndarray, kind: TensorType, order: tuple[int, ...]) -> np.ndarray:
    shape = [d for d in kind.shape or () if isinstance(d, int)]
    moved = matrix.reshape([shape[a] for a in order])
    return np.ascontiguousarray(moved.transpose(np.argsort(order)))


def _pointwise_attributes(
    step: ProgramStep, given: list[TensorType | None], wanted: TensorType, site: _Site
) -> Mapping[str, AttributeValue] | None:
    """Attributes at which the operator combines what is at one place alone: as they are, or lists at 0 or 1."""
    lists = [n for n, v in step.attributes if isinstance(v, tuple)]
    own = dict(step.attributes)
    for chosen in combinations((None, 0, 1), repeat=len(lists)):
        put = {
            n: (c,) * len(v)
            for n, c in zip(lists, chosen, strict=True)
            if c is not None and isinstance(v := own[n], tuple)
        }
        attributes = {**own, **put}
        try:
            meaning, types = REGISTRY[step.op].apply(given, attributes)
        except IllTypedOperator:
            continue
        if types == (wanted,) and _is_pointwise(meaning, site):
            return attributes
    return None


def _is_pointwise(meaning: OperatorSemantics, site: _Site) -> bool:
    output = meaning.outputs[0]
    body = output.body
    if isinstance(body, ScalarCall) and body.function == "add":
        body = body.args[0]
    if not isinstance(body, ScalarReduction) or not isinstance(body.body, ScalarCall) or body.body.function != "mul":
        return False
    data = next((r for r in body.body.args if isinstance(r, ElementRead) and r.operand != site.operand), None)
    if data is None or len(data.index) != len(output.axes) or data.outside is not None:
        return False
    at = [sym(axis[0][0]) if axis else 0 for axis in output.axes]
    return all(
        i == (sym(body.variable) if a == site.axis else at[a]) for a, i in enumerate(data.index)
    )  # fmt: skip
