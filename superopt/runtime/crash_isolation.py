"""Models that may end the process that runs them, and sessions that run those in another one.

ONNX Runtime's kernels of some operators divide by a size, or worse, where a size is 0, and no error says so: the
process ends. Of ONNX's operators, tried on its own node tests with sizes of 0, those are in :data:`FATAL`; of other
domains, some are known (GroupQueryAttention, QAttention). Whether an operand is empty need not show in the inputs: what
``NonZero``, ``Compress`` or a ``Slice`` to a computed end gives may be. Some models with recurrent operators on 16-bit
numbers end it when they are loaded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from superopt.fleet.child import ChildProcessPool, TaskLost, packed, unpacked
from superopt.ir.errors import InvalidModel
from superopt.ir.graph import Graph, Node, OpaqueAttribute
from superopt.ir.size_polynomial import Dim, symbols, value_at
from superopt.ir.types import DType
from superopt.ops.shape_inference import InferredTypes, infer, known_shapes, sizes_fed_to
from superopt.runtime import isolated_process
from superopt.runtime.onnx_runtime import InferenceSession, to_array, to_value

__all__ = ["FATAL", "IsolatedSession", "CrashRisk", "refuse_fatal_loading", "risk_of"]

FATAL = frozenset({"Einsum", "GRU", "LSTM", "RNN"})
_RECURRENT = FATAL - {"Einsum"}
_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml"})
_LONGEST = 60.0  # seconds of a run in another process


@dataclass(frozen=True)
class CrashRisk:
    """When a model may end the process: always, where one of these shapes has a size of 0, or when it is loaded."""

    graph: Graph
    always: bool
    shapes: tuple[tuple[Dim, ...], ...] = ()
    loading: bool = False

    def at(self, sizes: Mapping[str, int]) -> bool:
        """Whether it may at these sizes; where one is not told, it may."""
        dims = [d for shape in self.shapes for d in shape]
        told = all(symbols(d) <= sizes.keys() for d in dims)
        return self.always or not told or any(value_at(d, sizes) == 0 for d in dims)

    def fed(self, feeds: Mapping[str, np.ndarray]) -> bool:
        """Whether it may on these inputs."""
        return self.always or self.at(sizes_fed_to(self.graph, feeds))


def risk_of(graph: Graph, typing: InferredTypes | None = None) -> CrashRisk | None:
    """Whether a model may end the process that runs it; ``None``: it has no such operator, or none may read nothing."""
    fatal = [n for n in graph.nodes if _is_fatal(n)]
    if not fatal:
        return None
    if any(_has_within(n) for n in fatal):
        return CrashRisk(graph, always=True)
    typing = typing or infer(graph)
    if any(_is_halved(n, typing) for n in fatal):
        return CrashRisk(graph, always=True, loading=True)
    sure = known_shapes(graph, typing, graph.weight, barriers=True)
    shapes = [sure.get(name) for name in dict.fromkeys(r for n in fatal for r in n.reads)]
    told = tuple(s for s in shapes if s is not None)
    if len(told) < len(shapes):
        return CrashRisk(graph, always=True)
    open_or_empty = tuple(s for s in told if any(not isinstance(d, int) or d == 0 for d in s))
    return CrashRisk(graph, False, open_or_empty) if open_or_empty else None


def refuse_fatal_loading(graph: Graph, source: bytes | Path, crew: ChildProcessPool | None = None) -> None:
    """Load a model that may end the process by that in another one first.

    Args:
        graph: the model.
        source: what it is loaded from.
        crew: whose process loads it; one that is started for it, where there is none.

    Raises:
        InvalidModel: that process ended. BackendUnavailable: none can be started.
    """
    risk = risk_of(graph) if any(n.op in _RECURRENT for n in graph.nodes) else None  # types are inferred for few
    if risk is None or not risk.loading:
        return
    call = packed(isolated_process.attempt, (source, {}), files=None, seconds=_LONGEST, last=crew is None)
    try:
        unpacked((crew or ChildProcessPool()).run(call))
    except TaskLost as error:
        raise InvalidModel(f"loading it ends the process ({error.what})") from error


def _is_halved(node: Node, typing: InferredTypes) -> bool:
    """Whether a recurrent node may have numbers of 16 bits."""
    kinds = [typing.types.get(name) for name in node.inputs[:1]]
    return node.op in _RECURRENT and any(k is None or k.dtype in (DType.FLOAT16, DType.BFLOAT16) for k in kinds)


def _is_fatal(node: Node) -> bool:
    return node.domain not in _DOMAINS or node.op in FATAL or _has_within(node)


def _has_within(node: Node) -> bool:
    """Whether a subgraph of it has such an operator, by name: what its operands are is not followed."""
    within = [a.payload for a in node.attributes.values() if isinstance(a, OpaqueAttribute)]
    return any(name.encode() in payload for name in (*FATAL, "com.microsoft") for payload in within)


class IsolatedSession(InferenceSession):
    """A session that runs what may end the process in another one.

    :meth:`guard` says for which inputs. Where the other process ends, the model is refused.
    """

    _risk: CrashRisk | None = None

    def guard(self, risk: CrashRisk, source: bytes | Path, optimise: bool, crew: ChildProcessPool) -> None:
        """Run in a crew's process whatever a risk names; ``source`` is what the session was made from."""
        self._risk, self._source, self._optimise, self._crew = risk, source, optimise, crew

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        """As ONNX Runtime's own."""
        if self._risk is None or not self._risk.fed(input_feed):
            return super().run(output_names, input_feed, run_options)
        made = self._run_elsewhere(output_names, input_feed)
        return [made[name] for name in output_names]

    def run_with_ort_values(self, output_names: Any, input_dict_ort_values: Any, run_options: Any = None) -> Any:
        """As ONNX Runtime's own."""
        feeds = {n: to_array(v) for n, v in input_dict_ort_values.items()}
        if self._risk is None or not self._risk.fed(feeds):
            return super().run_with_ort_values(output_names, input_dict_ort_values, run_options)
        made, kinds = self._run_elsewhere(output_names, feeds), {o.name: o.type for o in self.get_outputs()}
        return [to_value(made[name], kinds[name]) for name in output_names]

    @cached_property
    def _name(self) -> str:
        """By which the other process knows it."""
        source = self._source if isinstance(self._source, bytes) else str(self._source).encode()
        return f"{hashlib.sha256(source).hexdigest()} {self._optimise}"

    def _run_elsewhere(self, outputs: Sequence[str], feeds: Mapping[str, Any]) -> dict[str, Any]:
        task = (self._name, self._source, self._optimise, dict(feeds), list(outputs))
        try:
            made, _ = unpacked(
                self._crew.run(packed(isolated_process.outputs, task, files=None, seconds=_LONGEST, last=False))
            )
        except TaskLost as error:
            raise InvalidModel(f"running it ends the process ({error.what})") from error
        assert isinstance(made, dict)
        return made
