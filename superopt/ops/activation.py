"""Activations: elementwise functions of one input (PRelu: and a slope), written with max and min where they bend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from superopt.ir.types import DType
from superopt.ops.derivative import smooth
from superopt.ops.elementwise import element, pointwise
from superopt.ops.forms import float32, reader, writer
from superopt.ops.meaning import (
    Comprehension,
    IllTyped,
    Operand,
    Operandlike,
    Scalar,
    broadcast_dims,
    call,
    number,
    tensor,
)
from superopt.ops.record import FLOATS, Operator

__all__ = ["OPERATORS"]


def activation(name: str, since: int, meaning: Callable[..., Scalar], **defaults: float) -> Operator:
    """A function of one element; ``defaults`` are its float attributes with ONNX's defaults."""
    return Operator(
        name=name, inputs=("X",), attributes=dict.fromkeys(defaults, "float"), meaning=pointwise(meaning), since=since,
        dtypes=FLOATS, read=reader((), **defaults), write=writer(since), family="activation",
    )  # fmt: skip


def positive(x: Scalar) -> Scalar:
    return call("max", x, 0)


def negative(x: Scalar) -> Scalar:
    return call("min", x, 0)


def elu(x: Scalar, alpha: Operandlike) -> Scalar:
    """``x`` above 0, ``alpha (exp x − 1)`` below."""
    return positive(x) + alpha * (call("exp", negative(x)) - 1)


def celu(x: Scalar, alpha: Operandlike) -> Scalar:
    """``x`` above 0, ``alpha (exp(x/alpha) − 1)`` below (Barron, arXiv:1704.07483)."""
    return positive(x) + negative(alpha * (call("exp", x * call("inv", alpha)) - 1))


def shrink(x: Scalar, bias: Operandlike, lambd: Operandlike) -> Scalar:
    """``x`` moved towards 0 by ``bias`` outside of ``−lambd … lambd``, 0 inside; below wins where both hold."""
    high = call("select", call("less", lambd, x), x - bias, 0)
    return call("select", call("less", x, -number(lambd)), x + bias, high)


def saturated(x: Scalar) -> Scalar:
    return call("max", 0, call("min", 1, x))


def softplus(x: Scalar) -> Scalar:
    return call("log", call("exp", x) + 1)


def gelu(x: Scalar, approximate: str) -> Scalar:
    """``x Φ(x)``, or its tanh approximation (Hendrycks and Gimpel, arXiv:1606.08415)."""
    half = Fraction(1, 2)
    if approximate == "none":
        return half * x * (1 + call("erf", x * call("inv", call("sqrt", 2))))
    if approximate != "tanh":
        raise IllTyped(f"Gelu has no approximation {approximate!r}")
    # 2/π with π from arctan, so that no decimal constant enters the meaning
    scale = call("sqrt", call("inv", 2 * call("atan", 1)))
    inner = scale * (x + Fraction(float32(0.044715)) * x * x * x)
    return half * x * (1 + call("tanh", inner))


def prelu(x: Operand, slope: Operand) -> Comprehension:
    """``x`` above 0, ``slope · x`` below; the slope broadcasts to ``x``."""
    if broadcast_dims([x.shape, slope.shape]) != x.shape:
        raise IllTyped(f"a slope {slope.type} does not broadcast to {x.type}")
    return tensor(
        x.shape, lambda *index: positive(element(x, index)) + element(slope, index) * negative(element(x, index))
    )


SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875

OPERATORS = (
    activation("Relu", 6, positive),
    replace(activation("Sigmoid", 6, lambda x: 1 / (1 + call("exp", -x))), derivative=smooth.SIGMOID),
    activation("Tanh", 6, lambda x: call("tanh", x)),
    activation("LeakyRelu", 6, lambda x, alpha: positive(x) + alpha * negative(x), alpha=0.01),
    activation("Elu", 6, elu, alpha=1.0),
    replace(activation("Celu", 12, celu, alpha=1.0), dtypes=frozenset({DType.FLOAT32}), derivative=smooth.CELU),
    activation("Shrink", 9, shrink, bias=0.0, lambd=0.5),
    activation(
        "Selu", 6, lambda x, alpha, gamma: gamma * elu(x, alpha), alpha=SELU_ALPHA, gamma=SELU_GAMMA
    ),
    activation("HardSigmoid", 6, lambda x, alpha, beta: saturated(alpha * x + beta), alpha=0.2, beta=0.5),
    activation("HardSwish", 14, lambda x: x * saturated(x * Fraction(1, 6) + Fraction(1, 2))),
    replace(activation("Softplus", 1, softplus), derivative=smooth.SOFTPLUS),
    activation("Softsign", 1, lambda x: x / (1 + call("abs", x))),
    replace(activation("Mish", 18, lambda x: x * call("tanh", softplus(x))), derivative=smooth.MISH),
    replace(
        activation("Swish", 24, lambda x, alpha: x * (1 / (1 + call("exp", -(alpha * x)))), alpha=1.0),
        derivative=smooth.SWISH,
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
