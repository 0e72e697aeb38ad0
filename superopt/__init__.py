"""superopt makes neural networks faster and shows that it changed nothing.

import superopt
result = superopt.optimize("model.onnx")
print(result)
result.save("faster.onnx")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    "onnx_program": "pipeline.integrations.onnx_ir_pass",
    "optimize": "pipeline.api",
    **dict.fromkeys(("simplify", "slim"), "pipeline.integrations.drop_in"),
    **dict.fromkeys(("explain", "from_torch"), "pipeline.pytorch"),
}


if not TYPE_CHECKING:  # so that names that do not exist are seen

    def __getattr__(name: str) -> Any:
        """The front door is imported when it is first used, so that ``import superopt`` and ``--help`` cost nothing."""
        if name in __all__:
            from importlib import import_module

            if name == "errors":
                return import_module("superopt.errors")
            return getattr(import_module(f"superopt.{_HOMES.get(name, 'pipeline')}"), name)
        raise AttributeError(f"module 'superopt' has no attribute {name!r}")
