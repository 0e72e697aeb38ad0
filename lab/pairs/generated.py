"""Compositions of operators with one operand, by what their records say of them: even, odd, of one sign, monotone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.rules.grammar import parse_rule
from superopt.rules.onnx_notation import default_of
from superopt.rules.rule import Rule
from superopt.runtime.comprehension_evaluation import FLOAT64, evaluate

__all__ = ["generated", "properties"]

_POINTS = np.linspace(-3.0, 3.0, 601)  # symmetric, with 0
_SAMPLES = 1e-12  # what two values of an operator may differ by and be equal
_IMAGE = "f[2, 16, 20, 20]"
_MATRIX = "f[20, 16]"


def properties() -> dict[str, frozenset[str]]:
    """Of each operator with one operand of numbers that is finite everywhere: what holds of it at sampled points."""
    found: dict[str, frozenset[str]] = {}
    for name, record in sorted(REGISTRY.items()):
        if record.family not in ("elementwise", "activation") or len(record.inputs) != 1 or "*" in record.inputs[0]:
            continue
        values = _values(name)
        if values is not None and np.isfinite(values(_POINTS)).all():
            found[name] = frozenset(_holds(values))
    return found


def _values(name: str) -> Callable[[np.ndarray], np.ndarray] | None:
    """The operator at its default attributes as a function; ``None`` where it has none."""
    record = REGISTRY[name]
    defaults = {key: default_of(name, key) for key in record.attributes}
    attributes = {key: value for key, value in defaults.items() if value is not None}
    if len(attributes) < len(defaults):
        return None
    try:
        meaning, (kind,) = record.apply([TensorType(DType.FLOAT32, (len(_POINTS),))], attributes)
    except (IllTypedOperator, TypeError, ValueError):
        return None
    if kind.dtype != DType.FLOAT32:
        return None
    return lambda x: np.asarray(evaluate(meaning.outputs[0], [x], FLOAT64, {}), np.float64)


def _holds(values: Callable[[np.ndarray], np.ndarray]) -> Iterator[str]:
    y = values(_POINTS)
    mirrored = values(-_POINTS)
    if _equal(y, _POINTS):
        return  # the identity has compositions of its own
    if _equal(values(y), y):
        yield "idempotent"
    if _equal(mirrored, y):
        yield "even"
    if _equal(mirrored, -y):
        yield "odd"
    if (y >= 0).all():
        yield "not negative"
    if (np.diff(y) >= 0).all():
        yield "monotone"


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.abs(a - b).max() <= _SAMPLES)


# By property: the name of a composition, the composition, its equal; <F> is the operator.
_COMPOSITIONS = {
    "idempotent": [("<F> of <F>", "<F>(<F>(x))", "<F>(x)")],
    "even": [("<F> of Neg", "<F>(Neg(x))", "<F>(x)"), ("<F> of Abs", "<F>(Abs(x))", "<F>(x)")],
    "odd": [("Neg of <F> of Neg", "Neg(<F>(Neg(x)))", "<F>(x)")],
    "not negative": [("Abs of <F>", "Abs(<F>(x))", "<F>(x)"), ("Relu of <F>", "Relu(<F>(x))", "<F>(x)")],
    "monotone": [
        ("GlobalMaxPool of <F>", "GlobalMaxPool(<F>(x))", "<F>(GlobalMaxPool(x))"),
        ("ReduceMax of <F>", "ReduceMax(<F>(x), axes=[3])", "<F>(ReduceMax(x, axes=[3]))"),
        ("MaxPool of <F>", "MaxPool(<F>(x), kernel_shape=[2, 2], strides=[2, 2])",
         "<F>(MaxPool(x, kernel_shape=[2, 2], strides=[2, 2]))"),
        ("Max of <F> and <F>", "Max(<F>(x), <F>(y))", "<F>(Max(x, y))"),
    ],
}  # fmt: skip
_IN_ORDER = {
    "Exp": "Exp(x)",
    "Sigmoid": "Sigmoid(x)",
    "Tanh": "Tanh(x)",
    "Softmax": "Softmax(x, axis=1)",
    "LogSoftmax": "LogSoftmax(x, axis=1)",
    "a sum with a number": "Add(x, 3.0)",
    "a product with a number": "Mul(x, 2.0)",
}  # keep the order of elements, which is all that ArgMax reads


def generated() -> Iterator[tuple[Rule, str]]:
    """Compositions by the properties of operators, and what stands before ArgMax."""
    seen: set[str] = set()
    for operator, holds in properties().items():
        for key in sorted(holds):
            for name, left, right in _COMPOSITIONS[key]:
                texts = [t.replace("<F>", operator) for t in (name, left, right)]
                if texts[0] not in seen:  # Relu of Relu, as idempotent and as not negative
                    seen.add(texts[0])
                    yield _rule(*texts, shape=_IMAGE, family=f"{key} operators"), ""
    for name, left in _IN_ORDER.items():
        yield _rule(f"ArgMax of {name}", left, "x", shape=_MATRIX, family="ArgMax"), "ArgMax"


def _rule(name: str, left: str, right: str, *, shape: str, family: str) -> Rule:
    forall = dict.fromkeys("xy", shape)
    return parse_rule({"id": name, "forall": forall, "lhs": [left], "rhs": [right]}, where=name, family=family)
