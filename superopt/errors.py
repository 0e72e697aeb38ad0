"""Errors that superopt raises on purpose; each says where, what, and what to do next.

try:
    result = superopt.optimize("model.onnx", time_limit=30)
except superopt.errors.InvalidOption as error:
    print(error.option, error.suggestion)
except superopt.errors.SuperoptError as error:
    print(error)
"""

from superopt.ir.errors import (
    BackendUnavailable,
    Interrupted,
    InvalidModel,
    InvalidOption,
    MachineLimit,
    NotEquivalent,
    OutOfTime,
    Regression,
    ResourceLimit,
    SuperoptError,
    Unsupported,
    UsageError,
)

__all__ = [
    "BackendUnavailable", "Interrupted", "InvalidModel", "InvalidOption", "MachineLimit", "NotEquivalent", "OutOfTime",
    "Regression", "ResourceLimit", "SuperoptError", "Unsupported", "UsageError",
]  # fmt: skip
