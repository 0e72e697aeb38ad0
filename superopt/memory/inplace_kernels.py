"""Which of ONNX Runtime's CPU kernels keep their result in an operand's memory.

Read off ONNX Runtime 1.31: every operator between two transpositions, and the block of memory that its arena was asked
for (``tests/memory/test_planner.py`` asks again).
"""

from __future__ import annotations

from collections.abc import Mapping

from superopt.runtime.onnx_runtime import NCHWC

__all__ = ["IN_PLACE", "NCHWC", "RENAMING"]

_MS = "com.microsoft"
_FIRST = (
    "Cast CastLike Celu Clip Elu HardSigmoid LeakyRelu LogSoftmax Relu ScatterElements Selu Shrink Sigmoid Softmax "
    "Softplus Softsign Tanh ThresholdedRelu Trilu"
)

RENAMING = frozenset(("", op) for op in ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
"""(Domain, operator) of kernels whose first output is always their first operand."""

IN_PLACE: Mapping[tuple[str, str], int] = {
    **{("", op): 0 for op in _FIRST.split()},
    (_MS, "FusedConv"): 3, (_MS, "NhwcFusedConv"): 3, (NCHWC, "Conv"): 3,
}  # fmt: skip
"""(Domain, operator) of kernels whose first output may be kept over an operand, by its position, if nothing else needs
that any more."""
