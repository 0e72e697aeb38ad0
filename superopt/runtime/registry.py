"""From the name of a runtime to the runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from superopt.ir.errors import InvalidOption, printable
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.openvino import openvino
from superopt.runtime.protocol import Runtime

__all__ = ["RUNTIMES", "runtime_named"]

RUNTIMES: Mapping[str, Callable[[], Runtime]] = {"onnxruntime": lambda: ONNX_RUNTIME, "openvino": openvino}


def runtime_named(name: str) -> Runtime:
    """The runtime of that name, ready to load models.

    Raises:
        InvalidOption: there is none. BackendUnavailable: it is not installed; the hint says how to get it.
    """
    if name not in RUNTIMES:
        raise InvalidOption(
            f"there is no runtime {printable(name)!r}", option="runtime", hint=f"runtimes: {', '.join(RUNTIMES)}"
        )
    return RUNTIMES[name]()
