"""What runs a model in a process that may die of it.

The process imports this module and little else: it is started often, and for a run of milliseconds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from superopt.ir.errors import SuperoptError
from superopt.runtime.onnx_runtime import InferenceSession, make_session, run

__all__ = ["attempt", "load", "outputs"]

_HELD = 4  # sessions that are kept

_sessions: dict[str, InferenceSession] = {}


def attempt(source: bytes | Path, feeds: Mapping[str, np.ndarray]) -> None:
    """Run a model with the runtime's optimisations and without, saying nothing: what is refused may be refused."""
    _hush()
    for optimise in (False, True):
        with suppress(SuperoptError):
            run(make_session(source, threads=1, optimise=optimise), feeds)


def load(source: bytes | Path) -> None:
    """Load a model, its optimisations off.

    Raises:
        InvalidModel, Unsupported, ResourceLimit: ONNX Runtime refuses it.
    """
    _hush()
    make_session(source, threads=1, optimise=False)


def outputs(
    name: str, source: bytes | Path, optimise: bool, feeds: Mapping[str, np.ndarray], wanted: Sequence[str]
) -> dict[str, np.ndarray]:
    """Outputs of a model, whose session is kept under its name for the next inputs. A death says nothing."""
    _hush()
    if name not in _sessions:
        while len(_sessions) >= _HELD:
            del _sessions[next(iter(_sessions))]
        _sessions[name] = make_session(source, threads=1, optimise=optimise)
    return run(_sessions[name], feeds, wanted)


def _hush() -> None:
    """From here on this process, which may be killed, says nothing on its standard error."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
