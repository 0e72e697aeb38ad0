"""ONNX Runtime's CPU provider as a :class:`superopt.runtime.protocol.Runtime`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnxruntime

from superopt.ir.temporary import TemporaryFolder
from superopt.runtime.binding import bind
from superopt.runtime.ort import InferenceSession, make_session, run
from superopt.runtime.protocol import Bound, Loaded, Runtime, Traced

__all__ = ["NCHWC", "ONNX_RUNTIME", "Session"]

NCHWC = "com.microsoft.nchwc"  # the domain of its blocked layout for convolutions
_LAYOUT = frozenset({"ReorderInput", "ReorderOutput"})


@dataclass(frozen=True, eq=False)
class Session:
    """A session of ONNX Runtime as a :class:`superopt.runtime.protocol.Loaded`."""

    session: InferenceSession

    def run(
        self, feeds: Mapping[str, np.ndarray], outputs: Sequence[str], *, time_limit: float | None = None
    ) -> dict[str, np.ndarray]:
        return run(self.session, feeds, outputs, time_limit=time_limit)

    def bound(
        self,
        feeds: Mapping[str, np.ndarray],
        *,
        like: Bound | None = None,
        over: Mapping[str, str] = MappingProxyType({}),
    ) -> Bound:
        return bind(self.session, feeds, like=like, over=over)


class _OnnxRuntime:
    name, lowers, apart = "onnxruntime", True, "Relu"

    @property
    def version(self) -> str:
        return str(onnxruntime.__version__)

    def load(self, model: bytes | Path, *, threads: int | None = None, optimise: bool = True) -> Loaded:
        return Session(make_session(model, threads=threads, optimise=optimise))

    def lowered(self, model: bytes) -> bytes:
        with TemporaryFolder("runtime") as folder:
            path = folder / "lowered.onnx"
            make_session(model, threads=1, save_optimised=path)
            return path.read_bytes()

    def trace(self, model: bytes, feeds: Mapping[str, np.ndarray], *, runs: int = 9) -> tuple[Traced, ...]:
        with TemporaryFolder("runtime") as folder:
            session = make_session(model, threads=1, trace=folder / "trace")
            for _ in range(1 + max(runs, 1)):
                run(session, feeds, keep=True)
            ended: Any = session  # whose end of profiling is left untyped
            events = json.loads(Path(ended.end_profiling()).read_text())
        found: dict[str, Traced] = {}
        for event in events:
            if event.get("cat") != "Node" or not event["name"].endswith("_kernel_time"):
                continue
            kernel, place = event["args"]["op_name"], event["args"]["node_index"]
            name = event["name"].removesuffix("_kernel_time")
            least = min(float(event["dur"]), found[place].us if place in found else float("inf"))
            found[place] = Traced(kernel, (name,), least, kernel in _LAYOUT)
        return tuple(found.values())


ONNX_RUNTIME: Runtime = _OnnxRuntime()
