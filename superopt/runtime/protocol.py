"""What a runtime is to superopt: it loads a model, runs it, is timed by its steps, and says what it executes.

Everything that prices, times or records models goes through :class:`Runtime`. What a runtime can do is declared, never
guessed: whether it hands out the graph that it really runs (:attr:`Runtime.lowers`), and which operator it leaves apart
when two stand in a row (:attr:`Runtime.apart`). What it fuses is data, in :mod:`superopt.cost.backend_capabilities`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from superopt.ir.errors import InvalidOption, printable

__all__ = ["InputBoundModel", "LoadedModel", "RUNTIMES", "Runtime", "TracedKernel", "released", "runtime_named"]


@dataclass(frozen=True, eq=False)
class InputBoundModel:
    """A model ready to run repeatedly: calling ``step`` runs it once on its bound inputs."""

    step: Callable[[], object]
    outputs: Callable[[], list[Any]]  # the runtime's own tensors; empty for a model that cannot be bound
    keep: tuple[Any, ...]  # owners of the bound memory


@dataclass(frozen=True)
class TracedKernel:
    """A kernel that a run executed.

    Attributes:
        kernel: the runtime's name of its kind.
        nodes: names of the model's nodes that it stands for, where they were named; empty for what the runtime added.
        us: microseconds of a run after the first, by the runtime's own clock; 0.0 for less than that shows.
        layout: it only brings a tensor from one layout in memory into another.
    """

    kernel: str
    nodes: tuple[str, ...]
    us: float
    layout: bool = False


class LoadedModel(Protocol):
    """A model that a runtime has made ready."""

    def run(
        self, feeds: Mapping[str, np.ndarray], outputs: Sequence[str], *, time_limit: float | None = None
    ) -> dict[str, np.ndarray]:
        """Run once.

        Args:
            feeds: an array per input; names that the model does not have are ignored.
            outputs: the names of all outputs, in the model's order.
            time_limit: seconds after which the run is ended.

        Raises:
            UsageError: an input is missing or has the wrong type or shape. InvalidModel: an operator failed.
            ResourceLimit: the time or the memory ran out. Unsupported: types that cannot be exchanged with NumPy.
        """
        ...

    def bound(
        self,
        feeds: Mapping[str, np.ndarray],
        *,
        like: InputBoundModel | None = None,
        over: Mapping[str, str] = MappingProxyType({}),
    ) -> InputBoundModel:
        """Inputs, and outputs where they are tensors, in memory that lives as long as the result; it has run once.

        Args:
            feeds: as in :meth:`run`.
            like: the same model, bound before, whose outputs' memory is written to as well.
            over: outputs that are written over an input of the same size, by name (only in lowered graphs).
        """
        ...


class Runtime(Protocol):
    """Something that runs ONNX models on this machine's processor.

    Attributes:
        name: what ``--runtime`` calls it.
        lowers: :meth:`lowered` hands out the graph that it runs.
        apart: an operator on float32 rows of which two in a row are executed as two kernels, optimised or not.
    """

    @property
    def name(self) -> str: ...

    @property
    def lowers(self) -> bool: ...

    @property
    def apart(self) -> str: ...

    @property
    def version(self) -> str: ...

    def load(self, model: bytes | Path, *, threads: int | None = None, optimise: bool = True) -> LoadedModel:
        """Make a model ready.

        Args:
            model: a serialised ONNX model, or the path of one (needed above 2 GiB or with external data).
            threads: threads inside an operator; ``None``: every core.
            optimise: with all of the runtime's own graph optimisations; without them where it can be run so.

        Raises:
            InvalidModel: it is broken. Unsupported: the runtime does not implement something in it.
            ResourceLimit: it does not fit in memory.
        """
        ...

    def lowered(self, model: bytes) -> bytes:
        """The graph that the runtime would really run, as an ONNX model: after its fusions, folding, layout changes.

        Raises:
            InvalidModel, Unsupported, ResourceLimit: as :meth:`load`. Unsupported: it does not hand it out.
        """
        ...

    def trace(self, model: bytes, feeds: Mapping[str, np.ndarray], *, runs: int = 9) -> tuple[TracedKernel, ...]:
        """What a run executes on one thread, in order.

        Args:
            model: serialised.
            feeds: its inputs.
            runs: runs that are timed, after one that is not.

        Raises:
            InvalidModel, Unsupported, ResourceLimit, UsageError: as :meth:`load` and :meth:`LoadedModel.run`.
        """
        ...


def released(runtime: Runtime) -> str:
    """A runtime and its version, as what is measured or recorded with it says."""
    return f"{runtime.name} {runtime.version}"


# -- The runtimes by name ------------------------------------------------------------------------------------------


def _onnx_runtime() -> Runtime:
    from superopt.runtime.onnx_runtime import ONNX_RUNTIME

    return ONNX_RUNTIME


def _openvino() -> Runtime:
    from superopt.runtime.openvino import openvino  # an extra: loaded where it is asked for

    return openvino()


RUNTIMES: Mapping[str, Callable[[], Runtime]] = {"onnxruntime": _onnx_runtime, "openvino": _openvino}


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
