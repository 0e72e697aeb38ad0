"""Elementwise operators and activations, with ONNX's multidirectional broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import reduce

import numpy as np

from superopt.ir.size_polynomial import Dim
from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType, TensorType
from superopt.ops.onnx_node_conversion import (
    arguments,
    boolean_result,
    dtype_code,
    dtype_from_code,
    first_dtype,
    float32,
    integer,
    only,
    present,
    reader,
    since_only,
    typed,
    writer,
)
from superopt.ops.operator_definition import (
    ANY,
    FLOATS,
    INTEGERS,
    NUMERIC,
    CanonicalNodeForm,
    OnnxNodeForm,
    OnnxNodeView,
    Operator,
    UnsupportedNodeForm,
)
from superopt.ops.operator_semantics import (
    IllTypedOperator,
    Operandlike,
    ScalarExpression,
    SymbolicOperand,
    TensorComprehension,
    broadcast_dims,
    call,
    inverse,
    number,
    tensor,
)

__all__ = ["_ACTIVATIONS", "_ARITHMETIC", "element", "pointwise"]


# -- Arithmetic, comparisons and casts -----------------------------------------------------------------------------


SIGNED = FLOATS | frozenset({DType.INT8, DType.INT16, DType.INT32, DType.INT64})
BOOLEAN = frozenset({DType.BOOL})


def element(x: SymbolicOperand, index: tuple[Dim, ...]) -> ScalarExpression:
    """The element of ``x`` that broadcasting puts at an index of the result."""
    inner = index[len(index) - x.rank :] if x.rank else ()
    return x[tuple(0 if size == 1 and isinstance(size, int) else i for i, size in zip(inner, x.shape, strict=True))]


def pointwise(function: Callable[..., ScalarExpression]) -> Callable[..., TensorComprehension]:
    """The meaning that applies a scalar function to broadcast operands; attributes pass as keywords."""

    def meaning(*operands: SymbolicOperand, **attributes: AttributeValue) -> TensorComprehension:
        return tensor(
            broadcast_dims([x.shape for x in operands]),
            lambda *index: function(*(element(x, index) for x in operands), **attributes),
        )

    return meaning


def unary(
    name: str, since: int, meaning: Callable[[ScalarExpression], ScalarExpression], dtypes: frozenset[DType] = FLOATS
) -> Operator:
    return Operator(
        name=name, inputs=("X",), meaning=pointwise(meaning), since=since, dtypes=dtypes,
        read=reader(), write=writer(since), family="elementwise",
    )  # fmt: skip


def binary(
    name: str, since: int, meaning: Callable[..., TensorComprehension], *, commutative: bool = False,
    dtypes: frozenset[DType] = NUMERIC,
) -> Operator:  # fmt: skip
    return Operator(
        name=name, inputs=("A", "B"), meaning=meaning, since=since, dtypes=dtypes, commutative=commutative,
        read=reader(), write=writer(since), family="elementwise",
    )  # fmt: skip


def compare(
    name: str,
    since: int,
    test: Callable[[ScalarExpression, ScalarExpression], ScalarExpression],
    *,
    commutative: bool = False,
) -> Operator:
    return Operator(
        name=name, inputs=("A", "B"), meaning=pointwise(test), since=since, dtypes=ANY if name == "Equal" else NUMERIC,
        result=boolean_result, commutative=commutative, read=reader(), write=writer(since), family="elementwise",
    )  # fmt: skip


def logic(name: str) -> Operator:
    return Operator(
        name=name, inputs=("A", "B"), meaning=pointwise(lambda a, b: call(name.lower(), a, b)), since=7,
        dtypes=BOOLEAN, commutative=True, read=reader(), write=writer(7), family="elementwise",
    )  # fmt: skip


def variadic(
    name: str,
    since: int,
    step: Callable[[ScalarExpression, ScalarExpression], ScalarExpression],
    dtypes: frozenset[DType],
    *,
    mean: bool = False,
) -> Operator:
    """Folds any number of broadcast arguments; ``mean`` divides by their number."""

    def fold(*values: ScalarExpression) -> ScalarExpression:
        folded = reduce(step, values)
        return folded * inverse(len(values)) if mean and len(values) > 1 else folded

    return Operator(
        name=name, inputs=("data*",), meaning=pointwise(fold), since=since, dtypes=dtypes,
        read=reader(), write=write_variadic, commutative=True, family="elementwise",
    )  # fmt: skip


def write_variadic(
    attributes: Mapping[str, AttributeValue], types: Sequence[TensorType | None], opset: int
) -> OnnxNodeForm:
    since_only(opset, 6)
    if opset < 8 and len({t.shape for t in types if t is not None}) > 1:
        raise UnsupportedNodeForm("broadcasting here came with opset 8")
    return OnnxNodeForm(present(types), {})


def divide(a: SymbolicOperand, b: SymbolicOperand) -> TensorComprehension:
    """Division; integers truncate towards zero."""
    if a.type.dtype in INTEGERS:
        return pointwise(lambda x, y: call("truncdiv", x, y))(a, b)
    return pointwise(lambda x, y: x / y)(a, b)


def modulo(a: SymbolicOperand, b: SymbolicOperand, *, fmod: AttributeValue) -> TensorComprehension:
    """The remainder, with the sign of the divisor (fmod 0, integers only) or of the dividend (fmod 1)."""
    if fmod not in (0, 1) or (fmod == 0 and a.type.dtype not in INTEGERS):
        raise IllTypedOperator("Mod of floats needs fmod=1")
    return pointwise(lambda x, y: call("truncmod" if fmod else "floormod", x, y))(a, b)


def select(condition: SymbolicOperand, x: SymbolicOperand, y: SymbolicOperand) -> TensorComprehension:
    return pointwise(lambda c, a, b: call("select", c, a, b))(condition, x, y)


def select_dtype(types: Sequence[TensorType | None], attributes: Mapping[str, AttributeValue]) -> DType:
    _, x, y = types
    if x is None or y is None or x.dtype != y.dtype or x.dtype not in ANY:
        raise IllTypedOperator("the branches of Where must have one element type")
    return x.dtype


def cast(x: SymbolicOperand, *, to: AttributeValue) -> TensorComprehension:
    """Identity on numbers wherever the target holds them; truncation from floats to integers; ``x ≠ 0`` to bool.

    Not covered: narrowing integers (they wrap) and everything that is not a float, an integer or a bool.
    """
    source, target = x.type.dtype, typed(to)
    if target not in ANY:
        raise IllTypedOperator(f"a cast to {target} is not covered")
    if source == DType.BOOL or target in FLOATS or source == target:
        return pointwise(lambda v: v)(x)
    if target == DType.BOOL:
        return pointwise(lambda v: call("not", call("equal", v, 0)))(x)
    if source in FLOATS:
        return pointwise(lambda v: call("cast_int", v))(x)
    signed = (source.startswith("int"), target.startswith("int"))
    if signed == (True, False) or target.bits < source.bits or (signed == (False, True) and target.bits == source.bits):
        raise IllTypedOperator(f"a cast from {source} to {target} may wrap around")
    return pointwise(lambda v: v)(x)


def read_cast(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view, "to", "saturate", "round_mode")
    return CanonicalNodeForm((0,), {"to": dtype_from_code(integer(view, "to")).value})


def write_cast(
    attributes: Mapping[str, AttributeValue], types: Sequence[TensorType | None], opset: int
) -> OnnxNodeForm:
    since_only(opset, 6)
    return OnnxNodeForm((0,), {"to": dtype_code(attributes["to"])})


def read_cast_like(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view, "saturate", "round_mode")
    return CanonicalNodeForm((0,), {"to": view.type(1).dtype.value})


def write_cast_like(
    attributes: Mapping[str, AttributeValue], types: Sequence[TensorType | None], opset: int
) -> OnnxNodeForm:
    """The second input, of which only the element type counts, is written as a literal."""
    since_only(opset, 15)
    return OnnxNodeForm((0, np.zeros(1, dtype=typed(attributes["to"]).numpy)), {})


def read_clip(view: OnnxNodeView) -> CanonicalNodeForm:
    """Bounds as numbers: attributes below opset 11, constant scalar inputs from there on; ±inf when absent."""
    only(view, *(("min", "max") if view.opset < 11 else ()))
    bounds: dict[str, AttributeValue] = {}
    for position, (name, absent) in enumerate((("min", float("-inf")), ("max", float("inf"))), 1):
        bounds[name] = absent
        if view.opset < 11:
            given = view.node.attributes.get(name)
            # the schema's own defaults are the largest floats, which stand for "no bound"
            if isinstance(given, int | float) and abs(given) < 3.4e38:
                bounds[name] = given
        elif view.has(position):
            array = view.constant(position)
            if array is None or array.size != 1:
                raise UnsupportedNodeForm(f"the bound {name} is computed at run time")
            bounds[name] = array.reshape(()).astype(float).item() if array.dtype.kind not in "iu" else int(array.item())
    return CanonicalNodeForm((0,), bounds)


def write_clip(
    attributes: Mapping[str, AttributeValue], types: Sequence[TensorType | None], opset: int
) -> OnnxNodeForm:
    since_only(opset, 6)
    if not all(isinstance(v, int | float) for v in attributes.values()) or types[0] is None:
        raise UnsupportedNodeForm("the bounds are not known")
    given = {n: float(v) for n, v in attributes.items() if isinstance(v, int | float) and abs(v) != float("inf")}
    if opset < 11:
        return OnnxNodeForm((0,), dict(given))
    dtype = types[0].dtype.numpy
    bounds = [np.array(attributes[n], dtype=dtype) if n in given else None for n in ("min", "max")]
    while bounds and bounds[-1] is None:
        bounds.pop()
    return OnnxNodeForm((0, *bounds), {})


def clip(
    x: ScalarExpression, *, min: AttributeValue, max: AttributeValue
) -> ScalarExpression:  # ONNX's names for the bounds
    lower = x if min == float("-inf") else call("max", x, min)  # type: ignore[arg-type]
    return lower if max == float("inf") else call("min", lower, max)  # type: ignore[arg-type]


def read_dropout(view: OnnxNodeView) -> CanonicalNodeForm:
    """Inference only: the identity. The ratio does not matter; a mask output or training mode is not covered."""
    only(view, "ratio", "seed")
    if any(view.node.outputs[1:]):
        raise UnsupportedNodeForm("the mask of Dropout is used")
    if view.has(2):
        training = view.constant(2)
        if training is None or bool(training.any()):
            raise UnsupportedNodeForm("Dropout may be in training mode")
    return CanonicalNodeForm((0,), {})


def write_first(
    attributes: Mapping[str, AttributeValue], types: Sequence[TensorType | None], opset: int
) -> OnnxNodeForm:
    since_only(opset, 7)
    return OnnxNodeForm(present(types[:1]), {})


def read_all(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view)
    return CanonicalNodeForm(arguments(view), {})


_ARITHMETIC = (
    binary("Add", 7, pointwise(lambda a, b: a + b), commutative=True),
    binary("Sub", 7, pointwise(lambda a, b: a - b)),
    binary("Mul", 7, pointwise(lambda a, b: a * b), commutative=True),
    binary("Div", 7, divide),
    unary("Neg", 6, lambda x: -x, SIGNED),
    unary("Abs", 6, lambda x: call("abs", x), NUMERIC),
    unary("Sign", 9, lambda x: call("sign", x), NUMERIC),
    unary("Sqrt", 6, lambda x: call("sqrt", x)),
    unary("Reciprocal", 6, lambda x: call("inv", x)),
    unary("Exp", 6, lambda x: call("exp", x)),
    unary("Log", 6, lambda x: call("log", x)),
    unary("Erf", 9, lambda x: call("erf", x)),
    unary("Sin", 7, lambda x: call("sin", x)),
    unary("Cos", 7, lambda x: call("cos", x)),
    unary("Tan", 7, lambda x: call("tan", x)),
    unary("Sinh", 9, lambda x: call("sinh", x)),
    unary("Cosh", 9, lambda x: call("cosh", x)),
    unary("Asin", 7, lambda x: call("asin", x)),
    unary("Acos", 7, lambda x: call("acos", x)),
    unary("Atan", 7, lambda x: call("atan", x)),
    unary("Asinh", 9, lambda x: call("asinh", x)),
    unary("Acosh", 9, lambda x: call("acosh", x)),
    unary("Atanh", 9, lambda x: call("atanh", x)),
    unary("Floor", 6, lambda x: call("floor", x)),
    unary("Ceil", 6, lambda x: call("ceil", x)),
    unary("Round", 11, lambda x: call("round", x)),
    unary("Not", 1, lambda x: call("not", x), BOOLEAN),
    unary("Identity", 1, lambda x: x, ANY),
    Operator(
        name="IsNaN", inputs=("X",), meaning=pointwise(lambda x: call("isnan", x)), since=9, dtypes=FLOATS,
        result=boolean_result, read=reader(), write=writer(9), family="elementwise",
    ),
    Operator(
        name="Dropout", inputs=("X",), meaning=pointwise(lambda x: x), since=7, dtypes=FLOATS,
        read=read_dropout, write=write_first, family="elementwise",
    ),
    Operator(
        name="Pow", inputs=("X", "Y"), meaning=pointwise(lambda x, y: call("pow", x, y)), since=7, dtypes=FLOATS,
        result=first_dtype, read=reader(), write=writer(7), family="elementwise",
    ),
    Operator(
        name="Mod", inputs=("A", "B"), attributes={"fmod": "int"}, meaning=modulo, since=10, dtypes=NUMERIC,
        read=reader(fmod=0), write=writer(10), family="elementwise",
    ),
    variadic("Max", 6, lambda a, b: call("max", a, b), NUMERIC),
    variadic("Min", 6, lambda a, b: call("min", a, b), NUMERIC),
    variadic("Sum", 6, lambda a, b: a + b, FLOATS),
    variadic("Mean", 6, lambda a, b: a + b, FLOATS, mean=True),
    compare("Equal", 7, lambda a, b: call("equal", a, b), commutative=True),
    compare("Less", 7, lambda a, b: call("less", a, b)),
    compare("Greater", 7, lambda a, b: call("less", b, a)),
    compare("LessOrEqual", 12, lambda a, b: call("not", call("less", b, a))),
    compare("GreaterOrEqual", 12, lambda a, b: call("not", call("less", a, b))),
    logic("And"),
    logic("Or"),
    logic("Xor"),
    Operator(
        name="Where", inputs=("condition", "X", "Y"), meaning=select, since=9, dtypes=BOOLEAN, result=select_dtype,
        read=read_all, write=writer(9), family="elementwise",
    ),
    Operator(
        name="Cast", inputs=("X",), attributes={"to": "dtype"}, meaning=cast, since=6, dtypes=ANY,
        result=lambda types, attributes: typed(attributes["to"]), read=read_cast, write=write_cast,
        family="elementwise",
    ),
    Operator(
        name="CastLike", inputs=("X",), attributes={"to": "dtype"}, meaning=cast, since=15, dtypes=ANY,
        result=lambda types, attributes: typed(attributes["to"]), read=read_cast_like, write=write_cast_like,
        family="elementwise",
    ),
    Operator(
        name="Clip", inputs=("X",), attributes={"min": "float", "max": "float"}, meaning=pointwise(clip), since=6,
        dtypes=NUMERIC, read=read_clip, write=write_clip, family="elementwise",
    ),
)  # fmt: skip


# -- Activations ---------------------------------------------------------------------------------------------------


def activation(name: str, since: int, meaning: Callable[..., ScalarExpression], **defaults: float) -> Operator:
    """A function of one element; ``defaults`` are its float attributes with ONNX's defaults."""
    return Operator(
        name=name, inputs=("X",), attributes=dict.fromkeys(defaults, "float"), meaning=pointwise(meaning), since=since,
        dtypes=FLOATS, read=reader((), **defaults), write=writer(since), family="activation",
    )  # fmt: skip


def positive(x: ScalarExpression) -> ScalarExpression:
    return call("max", x, 0)


def negative(x: ScalarExpression) -> ScalarExpression:
    return call("min", x, 0)


def elu(x: ScalarExpression, alpha: Operandlike) -> ScalarExpression:
    """``x`` above 0, ``alpha (exp x − 1)`` below."""
    return positive(x) + alpha * (call("exp", negative(x)) - 1)


def celu(x: ScalarExpression, alpha: Operandlike) -> ScalarExpression:
    """``x`` above 0, ``alpha (exp(x/alpha) − 1)`` below (Barron, arXiv:1704.07483)."""
    return positive(x) + negative(alpha * (call("exp", x * call("inv", alpha)) - 1))


def shrink(x: ScalarExpression, bias: Operandlike, lambd: Operandlike) -> ScalarExpression:
    """``x`` moved towards 0 by ``bias`` outside of ``−lambd … lambd``, 0 inside; below wins where both hold."""
    high = call("select", call("less", lambd, x), x - bias, 0)
    return call("select", call("less", x, -number(lambd)), x + bias, high)


def saturated(x: ScalarExpression) -> ScalarExpression:
    return call("max", 0, call("min", 1, x))


def softplus(x: ScalarExpression) -> ScalarExpression:
    return call("log", call("exp", x) + 1)


def gelu(x: ScalarExpression, approximate: str) -> ScalarExpression:
    """``x Φ(x)``, or its tanh approximation (Hendrycks and Gimpel, arXiv:1606.08415)."""
    half = Fraction(1, 2)
    if approximate == "none":
        return half * x * (1 + call("erf", x * call("inv", call("sqrt", 2))))
    if approximate != "tanh":
        raise IllTypedOperator(f"Gelu has no approximation {approximate!r}")
    # 2/π with π from arctan, so that no decimal constant enters the meaning
    scale = call("sqrt", call("inv", 2 * call("atan", 1)))
    inner = scale * (x + Fraction(float32(0.044715)) * x * x * x)
    return half * x * (1 + call("tanh", inner))


def prelu(x: SymbolicOperand, slope: SymbolicOperand) -> TensorComprehension:
    """``x`` above 0, ``slope · x`` below; the slope broadcasts to ``x``."""
    if broadcast_dims([x.shape, slope.shape]) != x.shape:
        raise IllTypedOperator(f"a slope {slope.type} does not broadcast to {x.type}")
    return tensor(
        x.shape, lambda *index: positive(element(x, index)) + element(slope, index) * negative(element(x, index))
    )


SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875

_ACTIVATIONS = (
    activation("Relu", 6, positive),
    activation("Sigmoid", 6, lambda x: 1 / (1 + call("exp", -x))),
    activation("Tanh", 6, lambda x: call("tanh", x)),
    activation("LeakyRelu", 6, lambda x, alpha: positive(x) + alpha * negative(x), alpha=0.01),
    activation("Elu", 6, elu, alpha=1.0),
    replace(activation("Celu", 12, celu, alpha=1.0), dtypes=frozenset({DType.FLOAT32})),
    activation("Shrink", 9, shrink, bias=0.0, lambd=0.5),
    activation(
        "Selu", 6, lambda x, alpha, gamma: gamma * elu(x, alpha), alpha=SELU_ALPHA, gamma=SELU_GAMMA
    ),
    activation("HardSigmoid", 6, lambda x, alpha, beta: saturated(alpha * x + beta), alpha=0.2, beta=0.5),
    activation("HardSwish", 14, lambda x: x * saturated(x * Fraction(1, 6) + Fraction(1, 2))),
    activation("Softplus", 1, softplus),
    activation("Softsign", 1, lambda x: x / (1 + call("abs", x))),
    activation("Mish", 18, lambda x: x * call("tanh", softplus(x))),
    replace(
        activation("Swish", 24, lambda x, alpha: x * (1 / (1 + call("exp", -(alpha * x)))), alpha=1.0),
    ),
    activation("ThresholdedRelu", 10, lambda x, alpha: call("select", call("less", alpha, x), x, 0), alpha=1.0),
    Operator(
        name="Gelu", inputs=("X",), attributes={"approximate": "string"}, meaning=pointwise(gelu), since=20,
        read=reader(approximate="none"), write=writer(20), family="activation",
    ),
    Operator(
        name="PRelu", inputs=("X", "slope"), meaning=prelu, since=7, read=reader(), write=writer(7),
        family="activation",
    ),
)  # fmt: skip

OPERATORS = (*_ARITHMETIC, *_ACTIVATIONS)
