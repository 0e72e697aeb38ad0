"""Is there a CUDA device that CuPy can use? Asked once, without raising; CuPy is imported only when somebody asks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from superopt.ir.errors import BackendUnavailable

__all__ = ["Probe", "cupy", "probe"]


@dataclass(frozen=True)
class Probe:
    """Whether the backend works, and why not; ``device`` names it where it does."""

    ok: bool
    reason: str
    device: str = ""


@cache
def probe() -> Probe:
    """Looks for CuPy, a driver and a device. The answer is kept for the process."""
    try:
        module = import_module("cupy")
    except ImportError as error:
        return Probe(False, f"CuPy is not installed ({error})")
    if not module.cuda.is_available():
        return Probe(False, "CuPy finds no CUDA device or driver")
    try:
        properties = module.cuda.runtime.getDeviceProperties(0)
        module.zeros(1, dtype="float32").sum().item()
    except RuntimeError as error:  # CUDARuntimeError is one: a device that is there and does not work
        return Probe(False, f"the CUDA device does not work: {error}")
    return Probe(True, "", properties["name"].decode())


def cupy() -> Any:
    """The CuPy module, of a machine on which it works.

    Raises:
        BackendUnavailable: with the reason and the next step.
    """
    found = probe()
    if not found.ok:
        raise BackendUnavailable(
            f"there is no CUDA backend here: {found.reason}",
            hint="install the extra superopt[cuda] on a machine with an NVIDIA GPU, or use --target profile:NAME",
        )
    return import_module("cupy")
