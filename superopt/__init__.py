"""superopt makes neural networks faster and shows that it changed nothing.

import superopt
result = superopt.optimize("model.onnx")
print(result)
result.save("faster.onnx")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from superopt.ir.lazy_names import lazy_names

if TYPE_CHECKING:
    from superopt import errors
    from superopt.frontend.from_jax import from_jax
    from superopt.frontend.jit import jit
    from superopt.pipeline import Options, Result, load
    from superopt.pipeline.api import optimize
    from superopt.pipeline.derivatives import (
        gradients,
        hessian_vector,
        jvp,
        linearize,
        modes,
        train_step,
        training_loop,
        vjp,
    )  # fmt: skip
    from superopt.pipeline.integrations.drop_in import simplify, slim
    from superopt.pipeline.integrations.onnx_ir_pass import onnx_program
    from superopt.pipeline.keyword_options import Settings
    from superopt.pipeline.pytorch import explain, from_torch

__all__ = [
    "TIME_LIMIT", "Options", "Result", "Settings", "errors", "explain", "from_jax", "from_torch", "gradients",
    "hessian_vector", "jit", "jvp", "linearize", "load", "modes", "onnx_program", "optimize", "simplify", "slim",
    "train_step", "training_loop", "vjp",
]  # fmt: skip

TIME_LIMIT = 300.0  # seconds that a model may take, unless told otherwise; work ends a search before (decision 58)


_HOMES = {
    **dict.fromkeys(
        ("gradients", "hessian_vector", "jvp", "linearize", "modes", "train_step", "training_loop", "vjp"),
        "pipeline.derivatives",
    ),
    "from_jax": "frontend.from_jax",
    "jit": "frontend.jit",
    "Settings": "pipeline.keyword_options",
    "errors": "errors",
    **dict.fromkeys(("Options", "Result", "load"), "pipeline"),
    "onnx_program": "pipeline.integrations.onnx_ir_pass",
    "optimize": "pipeline.api",
    **dict.fromkeys(("simplify", "slim"), "pipeline.integrations.drop_in"),
    **dict.fromkeys(("explain", "from_torch"), "pipeline.pytorch"),
}

if not TYPE_CHECKING:  # ``import superopt`` and ``--help`` cost nothing
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
