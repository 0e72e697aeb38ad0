"""Expressions over a model's weights: exact values, the distance of stored numbers from them, and their nodes.

A stored constant agrees with an expression up to *n* ulp if every element is within *n* units in the last place of the
constant's type, at the larger of the element and the terms from which it was computed: ``(bias - mean) * s + beta`` may
cancel, and then no float32 formula gives the exact last place. The magnitude of the terms is the expression on absolute
values (running error analysis: Higham, Accuracy and Stability of Numerical Algorithms, 3.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

import ml_dtypes
import numpy as np

from superopt.ir.graph import Node, Weight, constant
from superopt.ir.terms import OperatorTerm, OutputTerm, Term, VariableTerm, postorder
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.runtime.reference import at_dtype, evaluate_application

__all__ = ["LIMIT", "EvaluatedWeightExpression", "deviation", "evaluated", "sources", "written"]

# Folding Conv, bias and BatchNormalization takes six roundings of a half ulp each, by whatever formula; two such folds
# in a row, or a sum of some thousand rounded terms, stay below this too.
LIMIT = 8
_PART = 1 << 20  # elements that are compared at once: a weight may have a billion
# Linear in their reals: on absolute values they give the magnitude of the terms (Sub as Add, Neg by absolute value).
_LINEAR = frozenset(
    {"Add", "AveragePool", "Cast", "Concat", "Conv", "ConvTranspose", "CumSum", "Einsum", "Expand", "Flatten", "Gather",
     "Gemm", "GlobalAveragePool", "Identity", "MatMul", "Mean", "Mul", "Neg", "Pad", "ReduceMean", "ReduceSum",
     "Reshape", "Slice", "Split", "Squeeze", "Sub", "Sum", "Tile", "Transpose", "Unsqueeze"}
)  # fmt: skip


@dataclass(frozen=True)
class EvaluatedWeightExpression:
    """An expression's value (reals in float64), the magnitude of its terms, and its type."""

    value: np.ndarray
    magnitude: np.ndarray
    type: TensorType


def sources(term: Term) -> tuple[str, ...]:
    """Names of the weights that an expression reads."""
    return tuple(dict.fromkeys(t.name for t in postorder(term) if isinstance(t, VariableTerm)))


def evaluated(term: Term, arrays: Mapping[str, tuple[np.ndarray, DType]]) -> EvaluatedWeightExpression:
    """The exact value (in float64) of an expression.

    Args:
        term: over names of ``arrays``.
        arrays: elements and their type.

    Raises:
        IllTypedOperator: an operator does not accept its arguments.
    """
    made: dict[Term, list[EvaluatedWeightExpression | None]] = {}
    for sub in postorder(term):
        if isinstance(sub, VariableTerm):
            array, dtype = arrays[sub.name]
            kind = TensorType(dtype, tuple(map(int, array.shape)))
            size = np.abs(array.astype(np.float64)) if dtype.is_float else array
            made[sub] = [EvaluatedWeightExpression(array, size, kind)]
        elif isinstance(sub, OutputTerm):
            made[sub] = [made[sub.term][sub.index]]
        else:
            made[sub] = _applied(sub, [None if a is None else made[a][0] for a in sub.args])
    found = made[term][0]
    assert found is not None
    return found


def _applied(app: OperatorTerm, args: list[EvaluatedWeightExpression | None]) -> list[EvaluatedWeightExpression | None]:
    operator, attributes = REGISTRY[app.op], dict(app.attributes)
    types = [None if a is None else a.type for a in args]
    values = evaluate_application(
        operator, attributes, [None if a is None else a.value for a in args], types, cast=False
    )
    _, kinds = operator.apply(types, attributes)
    if app.op in _LINEAR:
        plain = {k: abs(v) if k in ("alpha", "beta") and isinstance(v, float) else v for k, v in attributes.items()}
        adding = REGISTRY["Add"] if app.op == "Sub" else operator
        sizes = evaluate_application(
            adding, plain, [None if a is None else a.magnitude for a in args], types, cast=False
        )
    else:
        sizes = tuple(None if v is None else _scaled(v, args) for v in values)
    return [
        None
        if v is None or s is None
        else EvaluatedWeightExpression(v, np.maximum(np.abs(v), np.abs(s)) if t.dtype.is_float else v, t)
        for v, s, t in zip(values, sizes, kinds, strict=True)
    ]


def _scaled(value: np.ndarray, args: list[EvaluatedWeightExpression | None]) -> np.ndarray:
    """The magnitude of an elementwise function: the value's, as much larger as its arguments' terms are than they."""
    size: np.ndarray = np.abs(value).astype(np.float64)
    for arg in args:
        if arg is None or not arg.type.dtype.is_float:
            continue
        own = np.abs(arg.value.astype(np.float64))
        ratio = np.divide(arg.magnitude, own, out=np.ones_like(own), where=own > 0)
        try:
            size = np.asarray(size * np.broadcast_to(ratio, size.shape))
        except ValueError:  # no elementwise function: its value's own magnitude, which is the stricter
            continue
    return size


def deviation(stored: np.ndarray, dtype: DType, exact: EvaluatedWeightExpression) -> float:
    """Ulps between stored numbers and an expression, the largest of any element; infinite where they are not equal."""
    if stored.shape != exact.value.shape or exact.type.dtype != dtype:
        return float("inf")
    if not dtype.is_float:
        return 0.0 if np.array_equal(stored, at_dtype(exact.value, dtype)) else float("inf")
    limits = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    x, y, size = (a.reshape(-1) for a in (stored, exact.value, exact.magnitude))
    found = 0.0
    for start in range(0, stored.size, _PART):
        part = slice(start, start + _PART)
        found = max(found, _ulp_distance(x[part], y[part], size[part], limits))
        if found == float("inf"):
            break
    return found


def _ulp_distance(stored: np.ndarray, value: np.ndarray, magnitude: np.ndarray, limits: ml_dtypes.finfo) -> float:
    """:func:`deviation` of some elements of a type with these limits."""
    x, y = stored.astype(np.float64), value.astype(np.float64)
    fine = np.isfinite(x) & np.isfinite(y)
    if not np.array_equal(x[~fine], y[~fine], equal_nan=True):
        return float("inf")
    if not fine.any():
        return 0.0
    scale = np.maximum(np.maximum(np.abs(x), np.abs(y)), np.abs(magnitude))[fine]
    exponent = np.frexp(np.maximum(scale, float(limits.tiny)))[1] - 1
    ulp = np.ldexp(1.0, exponent - int(limits.nmant))
    return float(np.max(np.abs(x - y)[fine] / ulp))


def ulps(distance: float) -> int:
    """Whole units in the last place, rounded up."""
    return ceil(distance)


def written(
    term: Term, name: str, given: Mapping[str, Weight], opset: int
) -> tuple[list[Node], list[Weight]]:  # fmt: skip
    """Nodes that compute an expression as the value ``name``, and the weights that they read.

    Args:
        term: over names of ``given``.
        name: of the result; all other names begin with it.
        given: weights with values.
        opset: of the model that the nodes are for.

    Raises:
        UnsupportedNodeForm: an operator cannot be written at that opset.
    """
    labels: dict[Term, tuple[str, ...]] = {}
    types: dict[Term, tuple[TensorType, ...]] = {}
    nodes: list[Node] = []
    weights: list[Weight] = []
    for number, sub in enumerate(postorder(term)):
        if isinstance(sub, VariableTerm):
            source = given[sub.name]
            assert source.data is not None
            labels[sub], types[sub] = (f"{name}/original/{sub.name}",), (source.type,)
            weights.append(Weight(labels[sub][0], source.type, source.data))
        elif isinstance(sub, OutputTerm):
            labels[sub], types[sub] = (labels[sub.term][sub.index],), (types[sub.term][sub.index],)
        else:
            operator, attributes = REGISTRY[sub.op], dict(sub.attributes)
            kinds = [None if a is None else types[a][0] for a in sub.args]
            _, tensor_types = operator.apply(kinds, attributes)
            form = operator.write(attributes, kinds, opset)
            literals = {position: f"{name}/{number}/{position}" for position in form.literals}
            weights += [constant(literals[position], array) for position, array in form.literals.items()]
            inputs = form.names([None if a is None else labels[a][0] for a in sub.args], literals)
            labels[sub], types[sub] = tuple(f"{name}/{number}.{p}" for p in range(len(tensor_types))), tensor_types
            nodes.append(
                Node(f"{name}/step{number}", operator.name, inputs, labels[sub], dict(form.attributes), operator.domain)
            )
    return _ending(nodes, labels[term][0], name), weights


def _ending(nodes: list[Node], made: str, name: str) -> list[Node]:
    """The nodes with their result called ``name``."""

    def called(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name if n == made else n for n in names)

    renamed = [Node(n.name, n.op, called(n.inputs), called(n.outputs), n.attributes, n.domain) for n in nodes]
    if any(name in n.outputs for n in renamed):
        return renamed
    return [*renamed, Node(f"{name}/is", "Identity", (made,), (name,))]
