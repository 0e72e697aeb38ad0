"""Derivatives by the function's own value: equal to what the meaning gives, and finite where that overflows."""

from __future__ import annotations

from collections.abc import Callable

from superopt.ops.derivative.declared import Cotangents, Derivative, Site, Tangents
from superopt.ops.derivative.expressions import Expr, along, apply, by_channel, constant, unsqueezed
from superopt.ops.derivative.windows import products_by_channel, summed

__all__ = [
    "BATCH_NORMALIZATION",
    "CELU",
    "LOG_SOFTMAX",
    "LOG_SUM_EXP",
    "MISH",
    "SIGMOID",
    "SOFTMAX",
    "SOFTPLUS",
    "SWISH",
]


def symmetric(product: Callable[[Site, Expr], Expr]) -> Derivative:
    """A derivative that is its own transpose: of a function of each element, or of Softmax."""

    def pullback(site: Site, given: Tangents) -> Cotangents:
        return {} if given[0] is None else {0: product(site, given[0])}

    def pushforward(site: Site, tangents: Tangents) -> Tangents:
        return [None if tangents[0] is None else product(site, tangents[0])]

    return Derivative(pullback, pushforward)


def _sigmoid(site: Site, g: Expr) -> Expr:
    """``σ(x)·σ(-x)``: neither factor cancels."""
    return g * site.output() * apply("Sigmoid", -site.arg(0))


def _softplus(site: Site, g: Expr) -> Expr:
    return g * apply("Sigmoid", site.arg(0))


def _mish(site: Site, g: Expr) -> Expr:
    """``t + x·(1 - t²)·σ(x)`` with ``t = tanh(softplus x)``."""
    x = site.arg(0)
    t = apply("Tanh", apply("Softplus", x))
    return g * (t + x * (1 - t * t) * apply("Sigmoid", x))


def _swish(site: Site, g: Expr) -> Expr:
    """``s + αx·s·σ(-αx)`` with ``s = σ(αx)``."""
    scaled = site.arg(0) * site.number("alpha")
    s = apply("Sigmoid", scaled)
    return g * (s + scaled * s * apply("Sigmoid", -scaled))


def _celu(site: Site, g: Expr) -> Expr:
    """1 above 0, ``exp(x/α)`` below; the exponential never sees a positive number."""
    x = site.arg(0)
    zero = constant(0, x.dtype)
    below = apply("Exp", apply("Min", x, zero) / site.number("alpha"))
    return apply("Where", apply("Greater", x, zero), g, g * below)


def _softmax(site: Site, g: Expr) -> Expr:
    """``y·(g - Σ g·y)``."""
    y = site.output()
    return y * (g - apply("ReduceSum", g * y, axes=(site.int("axis"),), keepdims=1))


def _log_softmax_pull(site: Site, given: Tangents) -> Cotangents:
    """``g - softmax(x)·Σ g``."""
    if (g := given[0]) is None:
        return {}
    y = apply("Softmax", site.arg(0), **site.attributes)
    return {0: g - y * apply("ReduceSum", g, axes=(site.int("axis"),), keepdims=1)}


def _log_softmax_push(site: Site, tangents: Tangents) -> Tangents:
    """``d - Σ softmax(x)·d``."""
    if (d := tangents[0]) is None:
        return [None]
    y = apply("Softmax", site.arg(0), **site.attributes)
    return [d - apply("ReduceSum", y * d, axes=(site.int("axis"),), keepdims=1)]


def _kept(site: Site, value: Expr) -> Expr:
    """A result of a reduction with its axes, of size 1."""
    return value if site.attributes["keepdims"] == 1 else unsqueezed(value, site.ints("axes"))


def _log_sum_exp_pull(site: Site, given: Tangents) -> Cotangents:
    """``g·exp(x - y)``: no exponent is above 0."""
    if (g := given[0]) is None:
        return {}
    return {0: _kept(site, g) * apply("Exp", site.arg(0) - _kept(site, site.output()))}


def _log_sum_exp_push(site: Site, tangents: Tangents) -> Tangents:
    if (d := tangents[0]) is None:
        return [None]
    share = apply("Exp", site.arg(0) - _kept(site, site.output()))
    return [apply("ReduceSum", share * d, axes=site.ints("axes"), keepdims=site.int("keepdims"))]


def _batch_normalization(site: Site, given: Tangents) -> Cotangents:
    """``g·s/r`` with ``r = √(var + ε)``, and sums of ``g`` and ``g·(x - mean)``: numbers of channels stay so few."""
    if (g := given[0]) is None:
        return {}
    x, scale, mean = site.arg(0), site.arg(1), site.arg(3)
    root = apply("Sqrt", site.arg(4) + site.number("epsilon"))
    found = {0: by_channel(g, scale / root)}
    if site.wanted & {2, 3}:
        found[2] = summed(g)
        found[3] = -(found[2] * scale / root)
    if site.wanted & {1, 4}:
        products = products_by_channel(g, site.makers.get(0))
        about = summed(g * (x - along(mean, 1, x.rank))) if products is None else products - mean * summed(g)
        found[1] = about / root
        found[4] = -(found[1] * scale / (root * root) / 2)
    return found


BATCH_NORMALIZATION = Derivative(_batch_normalization, statistics=(3, 4))
SIGMOID = symmetric(_sigmoid)
SOFTPLUS = symmetric(_softplus)
MISH = symmetric(_mish)
SWISH = symmetric(_swish)
CELU = symmetric(_celu)
SOFTMAX = symmetric(_softmax)
LOG_SOFTMAX = Derivative(_log_softmax_pull, _log_softmax_push)
LOG_SUM_EXP = Derivative(_log_sum_exp_pull, _log_sum_exp_push)
