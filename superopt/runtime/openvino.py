"""OpenVINO's CPU plugin as a :class:`superopt.runtime.protocol.Runtime`: float32 stays float32, one stream, no pinning.

OpenVINO comes with the extra ``openvino`` and is imported only when it is asked for. One synchronous request is run on
the calling thread, so that with one thread the thread's CPU time counts all of it, as with ONNX Runtime.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property, lru_cache
from importlib import metadata, util
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from superopt.ir.errors import (
    BackendUnavailable,
    InvalidModel,
    ResourceLimit,
    SuperoptError,
    Unsupported,
    UsageError,
    printable,
    quoted_error,
    system_limits,
)
from superopt.runtime.protocol import InputBoundModel, LoadedModel, Runtime, TracedKernel

__all__ = ["openvino"]

_LONGEST_RUN = 10.0  # seconds: a model that runs longer once is not timed
# Said rather than left to the plugin: it would take bfloat16 where the processor has it, and pin the calling thread.
_SETTINGS: Mapping[str, Any] = {
    "INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY", "PERFORMANCE_HINT": "LATENCY",
    "NUM_STREAMS": 1, "ENABLE_CPU_PINNING": False,
}  # fmt: skip
_TELEMETRY = "openvino_telemetry"
_MISSING = ("not supported", "nsupported", "No conversion", "not implemented", "doesn't support", "does not support",
            "OpConversionFailure", "Not Implemented")  # fmt: skip
_NOISE = ("Exception from ", "Check '", "To facilitate")  # beginnings of lines that name OpenVINO's own source


@lru_cache(maxsize=1)
def openvino() -> Runtime:
    """The runtime.

    Raises:
        BackendUnavailable: OpenVINO is not installed.
    """
    if util.find_spec("openvino") is None:
        raise BackendUnavailable("OpenVINO is not installed", hint="pip install 'superopt[openvino]'")
    return _OpenVino(_imported())


def _imported() -> Any:
    """OpenVINO's package without its telemetry, which would tell its maker's analytics of every import.

    It has a stand-in for where ``openvino_telemetry`` is not installed; here it is as if it were not.
    """
    modules: dict[str, Any] = sys.modules
    if _TELEMETRY in modules:  # whoever runs this process has imported it
        return importlib.import_module("openvino")
    modules[_TELEMETRY] = None
    try:
        return importlib.import_module("openvino")
    finally:
        del modules[_TELEMETRY]


class _OpenVino:
    name, lowers, apart = "openvino", False, "Softmax"  # what works element by element would be one kernel

    def __init__(self, package: Any) -> None:
        self._package = package

    @property
    def version(self) -> str:
        return metadata.version("openvino")

    @cached_property
    def _core(self) -> Any:
        return self._package.Core()

    def load(self, model: bytes | Path, *, threads: int | None = None, optimise: bool = True) -> LoadedModel:
        return _Model(self._package, self._compiled(model, threads, {}))  # it has no way to run a graph unoptimised

    def lowered(self, model: bytes) -> bytes:
        raise Unsupported("OpenVINO does not hand out the graph that it runs as an ONNX model")

    def trace(self, model: bytes, feeds: Mapping[str, np.ndarray], *, runs: int = 9) -> tuple[TracedKernel, ...]:
        loaded = _Model(self._package, self._compiled(model, 1, {"PERF_COUNT": True}))
        request = loaded.request(feeds)
        with _translated(running=True):
            # What it reports are means over all runs so far, in whole microseconds: only the first, which prepares its
            # kernels, is sure to last long enough to be seen; it is taken off again.
            request.infer(share_outputs=True)
            first = _microseconds(request)
            for _ in range(max(runs, 1)):
                request.infer(share_outputs=True)
            means = _microseconds(request)
            executed = loaded.compiled.get_runtime_model().get_ordered_ops()
        found = []
        for node in executed:
            name = str(node.get_friendly_name())
            if first.get(name):
                facts = node.get_rt_info()
                kernel, stands = facts["layerType"].astype(str), facts["originalLayersNames"].astype(str)
                us = ((runs + 1) * means[name] - first[name]) / max(runs, 1)
                nodes = tuple(n for n in stands.split(",") if n)
                found.append(TracedKernel(kernel, nodes, max(us, 0.0), kernel == "Reorder"))
        return tuple(found)

    def _compiled(self, model: bytes | Path, threads: int | None, more: Mapping[str, Any]) -> Any:
        settings = {**_SETTINGS, **more} | ({"INFERENCE_NUM_THREADS": threads} if threads else {})
        with _translated(str(model) if isinstance(model, Path) else ""):
            read = self._core.read_model(str(model) if isinstance(model, Path) else bytes(model))
            return self._core.compile_model(read, "CPU", settings)


def _microseconds(request: Any) -> dict[str, float]:
    """By kernel, the mean over all runs of its model so far; 0 for what takes no time."""
    return {str(k.node_name): k.real_time / timedelta(microseconds=1) for k in request.get_profiling_info()}


class _Model:
    """A compiled model; each way of running it has a request, and so memory, of its own."""

    def __init__(self, package: Any, compiled: Any) -> None:
        self._package, self.compiled = package, compiled

    def request(self, feeds: Mapping[str, np.ndarray]) -> Any:
        """A request with its inputs set; it shares the arrays' memory, or holds the copies."""
        with _translated(running=True):
            made = self.compiled.create_infer_request()
            for port in self.compiled.inputs:
                name = next((n for n in sorted(port.get_names()) if n in feeds), None)
                if name is None:
                    raise UsageError(f"input {printable(min(port.get_names(), default='?'))!r} was not given")
                tensor = self._tensor(name, np.asarray(feeds[name], order="C"), port)
                try:
                    made.set_tensor(port, tensor)
                except RuntimeError as error:
                    raise UsageError(f"OpenVINO refuses input {printable(name)!r}: {_reason(str(error))}") from error
        return made

    def _tensor(self, name: str, array: np.ndarray, port: Any) -> Any:
        if array.dtype.kind not in "biuf" or array.dtype.isbuiltin != 1:
            raise Unsupported(f"superopt does not hand {array.dtype} to OpenVINO")
        wanted = np.dtype(port.get_element_type().to_dtype())
        if array.dtype != wanted:
            raise UsageError(f"input {printable(name)!r} is {array.dtype}, but the model wants {wanted}")
        return self._package.Tensor(array, shared_memory=array.ndim > 0 and array.size > 0)

    def run(
        self, feeds: Mapping[str, np.ndarray], outputs: Sequence[str], *, time_limit: float | None = None
    ) -> dict[str, np.ndarray]:
        request = self.request(feeds)
        with _translated(running=True):
            request.start_async(share_inputs=True)
            if time_limit is None:
                request.wait()
            elif not request.wait_for(max(1, int(1e3 * time_limit))):
                request.cancel()
                raise ResourceLimit(f"running it takes more than {time_limit:.0f} s")
            made = [np.array(t.data) for t in _outputs(request, self.compiled)]
        return dict(zip(outputs, made, strict=True))

    def bound(
        self,
        feeds: Mapping[str, np.ndarray],
        *,
        like: InputBoundModel | None = None,
        over: Mapping[str, str] = MappingProxyType({}),
    ) -> InputBoundModel:
        if over:
            raise Unsupported("OpenVINO chooses by itself what is written over what")
        request = self.request(feeds)
        with _translated(running=True):
            for position, tensor in enumerate(like.outputs() if like is not None else ()):
                if not self.compiled.outputs[position].get_partial_shape().is_dynamic:
                    request.set_output_tensor(position, tensor)
            request.start_async(share_inputs=True)
            if not request.wait_for(int(1e3 * _LONGEST_RUN)):
                request.cancel()
                raise ResourceLimit(f"running it takes more than {_LONGEST_RUN:.0f} s")
        return InputBoundModel(
            _infer_call(request), lambda: _outputs(request, self.compiled), (request, self.compiled, feeds)
        )


def _outputs(request: Any, compiled: Any) -> list[Any]:
    return [request.get_output_tensor(i) for i in range(len(compiled.outputs))]


def _infer_call(request: Any) -> Callable[[], object]:
    return lambda: request.infer(share_outputs=True, decode_strings=False)


def _reason(message: str) -> str:
    """The last line that does not name OpenVINO's own source."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return printable(next((x for x in reversed(lines) if not x.startswith(_NOISE)), "it does not say why"), 300)


@contextmanager
def _translated(where: str = "", *, running: bool = False) -> Iterator[None]:
    """Turns OpenVINO's exceptions into superopt's, keeping the line that says why."""
    try:
        yield
    except SuperoptError:
        raise
    except MemoryError as error:
        raise ResourceLimit("OpenVINO ran out of memory", where=where) from error
    except (RuntimeError, TypeError, ValueError) as error:
        whole = str(error)
        reason = _reason(whole)
        if "bad_alloc" in whole or "allocate" in whole:
            raise ResourceLimit(f"OpenVINO ran out of memory: {reason}", where=where) from error
        with system_limits(where):
            if (quoted := quoted_error(error)) is not None:
                raise quoted from error
        if not running and any(m in whole for m in _MISSING):
            raise Unsupported(f"OpenVINO cannot run it: {reason}", where=where) from error
        raise InvalidModel(f"OpenVINO refuses it: {reason}", where=where) from error
