"""Derivatives of whole graphs, as graphs: reverse and forward mode, second order, linear parts."""

from superopt.frontend.autodiff.forward_mode import (
    ForwardBackwardGraphs,
    JacobianModeCosts,
    hessian_vector,
    joint,
    jvp,
    linearize,
    modes,
)
from superopt.frontend.autodiff.reverse_mode import gradients, vjp

__all__ = [
    "ForwardBackwardGraphs",
    "JacobianModeCosts",
    "gradients",
    "hessian_vector",
    "joint",
    "jvp",
    "linearize",
    "modes",
    "vjp",
]
