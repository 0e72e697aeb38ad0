"""What has to stay in float32, by analysis: magnitudes, poles, jumps, sums and intermediates inside an operator.

Nothing here names an operator. What one computes is read from its meaning, which types it takes from ONNX's schema. The
magnitudes of weights are known, those of other values observed (:class:`ValueMagnitudes`), and a margin is left for
inputs that were not. The analysis forbids; the measured error of a result decides about the rest.

An operator that is left multiplies and adds in float32 inside, as kernels of half precision do for products of two
operands (Conv, Gemm, MatMul). Every other sum, and every other intermediate, is taken to be of half precision.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from math import inf, isfinite, sqrt
from typing import NamedTuple

import ml_dtypes
import numpy as np

from superopt.ir.graph import Graph, Node
from superopt.ir.types import DType, TensorType
from superopt.ops.onnx_type_inference import inputs_of_type
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.ops.shape_inference import CanonicalNode, InferredTypes, OpaqueNode, computed_from_weights
from superopt.passes.mixed_precision.intermediate_magnitudes import at_poles, in_exponents, inside
from superopt.passes.mixed_precision.policy import POLICY

__all__ = [
    "WIDE",
    "FloatTypeLimits",
    "ValueMagnitudes",
    "HalfPrecisionInputs",
    "Float32Reason",
    "HalfPrecisionRestrictions",
    "candidates",
    "restricted",
]

WIDE = DType.FLOAT32


@dataclass(frozen=True)
class FloatTypeLimits:
    """The numbers of a type: largest, least in the normal range, and the unit of rounding."""

    most: float
    normal: float
    unit: float

    @staticmethod
    def of(dtype: DType) -> FloatTypeLimits:
        found = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
        return FloatTypeLimits(float(found.max), float(found.smallest_normal), float(found.eps) / 2)


@dataclass(frozen=True)
class ValueMagnitudes:
    """Of a value's elements.

    Attributes:
        most: the largest, on ordinary inputs.
        least: the least of those that are not 0; 0 where it was not looked for.
        reach: what others may reach, with a margin for inputs that were not tried.
        top: the largest number, of what is an exponent; 0 elsewhere.
    """

    most: float
    least: float
    reach: float
    top: float = 0.0

    @staticmethod
    def of(array: np.ndarray) -> ValueMagnitudes:
        """Of known elements; infinite where one is not finite."""
        sizes = np.abs(array.astype(np.float64, copy=False))
        if not np.isfinite(sizes).all():
            return ValueMagnitudes(inf, 0.0, inf)
        least = float(np.min(sizes, where=sizes > 0, initial=inf))
        most = float(sizes.max(initial=0.0))
        return ValueMagnitudes(most, least if isfinite(least) else 0.0, most)


class Float32Reason(NamedTuple):
    """Why something stays in float32: of what kind, and in words."""

    kind: str
    text: str


@dataclass(frozen=True)
class HalfPrecisionInputs:
    """Places of a node's inputs that are of half precision if the node is."""

    places: frozenset[int]
    names: tuple[str, ...]


@dataclass(frozen=True)
class HalfPrecisionRestrictions:
    """What may be of half precision, and why the rest may not.

    Attributes:
        nodes: operands of the nodes that may, by position.
        exact: those of them that round nothing: of half operands, the result is exact.
        kept: reasons of the nodes that may not.
        values: reasons of the values that may not be rounded.
        weights: names of the weights that may be stored in half precision.
    """

    nodes: Mapping[int, HalfPrecisionInputs]
    exact: AbstractSet[int]
    kept: Mapping[int, Float32Reason]
    values: Mapping[str, Float32Reason]
    weights: frozenset[str] = field(default_factory=frozenset)


def candidates(
    graph: Graph, typing: InferredTypes, half: DType
) -> tuple[dict[int, HalfPrecisionInputs], dict[int, Float32Reason]]:
    """The nodes whose types allow half precision, and why those of the others that have float32 do not."""
    fixed = computed_from_weights(graph, typing)
    found: dict[int, HalfPrecisionInputs] = {}
    kept: dict[int, Float32Reason] = {}
    for i, (node, how) in enumerate(zip(graph.nodes, typing.nodes, strict=True)):
        if not any(_is_wide(typing, n) for n in (*node.reads, *node.outputs)):
            continue
        taken = _operands(graph, typing, node, how, half, fixed)
        if isinstance(taken, Float32Reason):
            kept[i] = taken
        else:
            found[i] = taken
    return found, kept


def _is_wide(typing: InferredTypes, name: str) -> bool:
    kind = typing.types.get(name) if name else None
    return kind is not None and kind.dtype == WIDE


def _operands(
    graph: Graph,
    typing: InferredTypes,
    node: Node,
    how: CanonicalNode | OpaqueNode,
    half: DType,
    fixed: AbstractSet[str],
) -> HalfPrecisionInputs | Float32Reason:
    """The operands of a node that may be of half precision, or why it may not."""
    outputs = [o for o in node.outputs if o]
    if not isinstance(how, CanonicalNode):
        return Float32Reason("not understood", how.reason)
    if node.captures or node.domain:
        return Float32Reason("not understood", "no operator of ONNX's own domain, or one with a body")
    if not fixed.isdisjoint(outputs):
        return Float32Reason("constant", "computed once, from weights")
    if not all(_is_wide(typing, o) for o in outputs):
        return Float32Reason("type", "a result of another type than float32")
    places = inputs_of_type(node.op, graph.onnx_version, half, len(node.inputs))
    if places is None:
        return Float32Reason("type", f"{node.op} of this opset takes no {half}")
    wide = {i for i, n in enumerate(node.inputs) if i in places and _is_wide(typing, n)}
    names = {node.inputs[i] for i in wide}
    if not names or any(node.inputs[i] in names for i in set(range(len(node.inputs))) - wide):
        return Float32Reason("type", "no operand of float32, or one that has to be")
    types = [None if a is None else typing.types[a] for a in how.args]
    if any(a is not None and t is None for a, t in zip(how.args, types, strict=True)):
        return Float32Reason("not understood", "an operand of unknown type")
    narrow = [t and (replace(t, dtype=half) if a in names else t) for a, t in zip(how.args, types, strict=True)]
    try:
        _, made = how.operator.apply(narrow, how.attributes)
        if how.operator.rounding(types, how.attributes).jumps:
            return Float32Reason("jump", "its result jumps, however little its operands are off")
    except IllTypedOperator:
        return Float32Reason("type", f"{node.op} is not understood of {half}")
    if any(kind.dtype != half for kind in made[: len(outputs)]):
        return Float32Reason("type", "a result of another type")
    return HalfPrecisionInputs(frozenset(wide), tuple(dict.fromkeys(node.inputs[i] for i in sorted(wide))))


def restricted(
    graph: Graph, typing: InferredTypes, half: DType, observed: Mapping[str, ValueMagnitudes], budget: float,
    arithmetic: bool = True,
) -> HalfPrecisionRestrictions:  # fmt: skip
    """What may be of half precision.

    Args:
        graph: a checked graph.
        typing: of it, at fixed sizes.
        half: the type.
        observed: magnitudes of the values that are not weights, over all inputs that were tried.
        budget: of errors.
        arithmetic: whether the backend runs operators of the type at all; else weights alone are stored in it.
    """
    limits = FloatTypeLimits.of(half)
    known = _of_weights(graph)
    sizes = {**observed, **known}
    values = _values(graph, typing, sizes, known.keys(), limits)
    able, kept = candidates(graph, typing, half)
    if not arithmetic:
        kept |= dict.fromkeys(able, Float32Reason("no kernel", f"the backend runs no operator of {half}"))
        able = {}
    nodes: dict[int, HalfPrecisionInputs] = {}
    exact: set[int] = set()
    for i, operand in able.items():
        how, node = typing.nodes[i], graph.nodes[i]
        assert isinstance(how, CanonicalNode)
        why = next((values[n] for n in (*operand.names, *node.outputs) if n in values), None)
        why = why or _inside(how, typing, sizes, limits, budget, half)
        if why:
            kept[i] = why
            continue
        nodes[i] = operand
        if how.operator.rounding(_narrow(how, typing, operand, half), how.attributes).exact:
            exact.add(i)
    return HalfPrecisionRestrictions(nodes, exact, kept, values, frozenset(known.keys() - values.keys()))


def _narrow(
    how: CanonicalNode, typing: InferredTypes, operand: HalfPrecisionInputs, half: DType
) -> list[TensorType | None]:
    types = [None if a is None else typing.types[a] for a in how.args]
    return [t and (replace(t, dtype=half) if a in operand.names else t) for a, t in zip(how.args, types, strict=True)]


# -- values --------------------------------------------------------------------------------------------------------


def _values(
    graph: Graph,
    typing: InferredTypes,
    sizes: Mapping[str, ValueMagnitudes],
    known: AbstractSet[str],
    limits: FloatTypeLimits,
) -> dict[str, Float32Reason]:
    """Why values are not rounded to half precision.

    Args:
        graph: a checked graph.
        typing: of it.
        sizes: magnitudes of all values.
        known: the weights among them.
        limits: of the type.
    """
    found = {
        n: Float32Reason("no elements", "a weight without elements") for n, w in graph.weight.items() if w.data is None
    }
    for name, size in sizes.items():
        why = _weight_reason(size, limits) if name in known else _value_reason(size, limits)
        if why is not None:
            found[name] = why
    for position, how in enumerate(typing.nodes):
        for name in at_poles(how, typing):
            least = sizes[name].least if name in sizes else 0.0
            if 0.0 < least < limits.normal * (1.0 if name in known else POLICY.margin):
                found.setdefault(name, Float32Reason("pole", f"a divisor or an operand of a logarithm is {least:.0e}"))
        top = max((sizes[n].top for n in in_exponents(how, typing) if n in sizes), default=0.0)
        if top * limits.unit > POLICY.exponent:
            follow = Float32Reason("exponent", f"exponents up to {top:.1e} follow")
            for name in _ancestors(graph, graph.nodes[position]):
                found.setdefault(name, follow)
    return found


def _of_weights(graph: Graph) -> dict[str, ValueMagnitudes]:
    outputs = {v.name for v in graph.outputs}
    return {
        n: ValueMagnitudes.of(np.asarray(w.data.numpy()))
        for n, w in graph.constants.items()
        if w.data is not None and w.type.dtype == WIDE and n not in outputs
    }


def _weight_reason(size: ValueMagnitudes, limits: FloatTypeLimits) -> Float32Reason | None:
    """Why a weight is not stored in half precision."""
    if size.most > limits.most:
        return Float32Reason("overflow", f"magnitudes up to {size.most:.1e}")
    if size.most == 0.0:
        return None
    # Below the normal range rounding is absolute, by at most a unit of the least normal number.
    if min(limits.unit * limits.normal, size.most) > POLICY.rounding * 2 * limits.unit * size.most:
        return Float32Reason("underflow", f"magnitudes of only {size.most:.0e}")
    return None


def _value_reason(size: ValueMagnitudes, limits: FloatTypeLimits) -> Float32Reason | None:
    """Why a value is not rounded to half precision."""
    if not isfinite(size.most):
        return Float32Reason("overflow", "not finite")
    if size.reach > limits.most:
        return Float32Reason("overflow", f"magnitudes may reach {size.reach:.1e}")
    if size.most < limits.normal:
        return Float32Reason("underflow", f"magnitudes of only {size.most:.0e}")
    return None


def _ancestors(graph: Graph, node: Node) -> set[str]:
    """All values that a node's operands are computed from, and these."""
    waiting, seen = list(node.reads), set[str]()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            maker = graph.producer.get(name)
            waiting += [] if maker is None else maker.reads
    return seen


def _inside(
    how: CanonicalNode,
    typing: InferredTypes,
    sizes: Mapping[str, ValueMagnitudes],
    limits: FloatTypeLimits,
    budget: float,
    half: DType,
) -> Float32Reason | None:
    """Why an operator's inner arithmetic is not one for half precision."""
    reached = (sizes.get(name) if name is not None else None for name in how.args)
    found = inside(how, typing, [0.0 if size is None else size.reach for size in reached])
    if found is None:
        return Float32Reason("type", f"not understood of {half}")
    if found.largest > limits.most:
        return Float32Reason("inner overflow", f"an intermediate inside may reach {found.largest:.0e}")
    if sqrt(found.terms) * limits.unit > POLICY.sum_share * budget and found.terms > 1:
        return Float32Reason("long sum", f"a sum of {found.terms:,.0f} terms inside")
    return None
