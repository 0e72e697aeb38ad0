"""Derivatives of whole graphs, as graphs: reverse and forward mode, second order, linear parts."""

from superopt.frontend.autodiff.forward import JointGraph, ModeReport, hessian_vector, joint, jvp, linearize, modes
from superopt.frontend.autodiff.reverse import gradients, vjp

__all__ = ["JointGraph", "ModeReport", "gradients", "hessian_vector", "joint", "jvp", "linearize", "modes", "vjp"]
