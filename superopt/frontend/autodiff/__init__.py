"""Derivatives of whole graphs, as graphs: reverse and forward mode, second order, linear parts."""

from superopt.frontend.autodiff.forward import jvp
from superopt.frontend.autodiff.joint import Joint, joint
from superopt.frontend.autodiff.reverse import gradients, vjp
from superopt.frontend.autodiff.second import ModeReport, hessian_vector, linearize, modes

__all__ = ["Joint", "ModeReport", "gradients", "hessian_vector", "joint", "jvp", "linearize", "modes", "vjp"]
