"""superopt makes neural networks faster and shows that it changed nothing.

import superopt
result = superopt.optimize("model.onnx")
result.save("faster.onnx")
print(result.report.json()["cost"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from superopt.pipeline import Options, Result, optimize

__all__ = ["TIME_LIMIT", "Options", "Result", "optimize"]

TIME_LIMIT = 120.0  # seconds that a model may take, unless told otherwise: work is what is budgeted


def __getattr__(name: str) -> Any:
    """The front door is imported when it is first used, so that ``import superopt`` and ``--help`` cost nothing."""
    if name in __all__:
        from superopt import pipeline

        return getattr(pipeline, name)
    raise AttributeError(f"module 'superopt' has no attribute {name!r}")
