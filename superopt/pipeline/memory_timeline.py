"""What a model's activations take in ONNX Runtime, step by step: planned, ideally, and at least in any order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from superopt import cost as costs
from superopt.ir.errors import InvalidModel, SuperoptError, Unsupported, printable
from superopt.ir.graph import Graph, Node
from superopt.ir.symbolic_size_binding import sizes_fed
from superopt.ir.types import TensorType
from superopt.memory.inplace_kernels import IN_PLACE, RENAMING
from superopt.memory.liveness import Lifetime, alive, lifetimes, unavoidable
from superopt.memory.runtime_memory_planner import ActivationMemoryPlan, as_executed, planned
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.ops.shape_inference import infer
from superopt.pipeline.options import Options
from superopt.pipeline.shape_defaults import default_sizes
from superopt.runtime.executed_graph import lowered_without_weights, type_values
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.protocol import released
from superopt.runtime.resource_limits import LARGE, refuse_unbounded
from superopt.runtime.synthetic_tensors import feeds_for

__all__ = ["ActivationFootprint", "footprint", "footprint_data", "footprint_of", "footprints", "memory_report"]


@dataclass(frozen=True)
class ActivationFootprint:
    """A model's activations in ONNX Runtime.

    Attributes:
        ran: the graph that ONNX Runtime runs, its nodes in the order of execution.
        plan: what its planner makes of it.
        values: when which of its values is needed; inputs and outputs are held from beginning to end.
        types: of its values.
        known: of those whose sizes the runtime knows before a run.
    """

    ran: Graph
    plan: ActivationMemoryPlan
    values: tuple[Lifetime, ...]
    types: Mapping[str, TensorType]
    known: Mapping[str, TensorType]

    @cached_property
    def bound(self) -> int:
        """Bytes that some node has alive in every order, inputs and outputs included."""
        held = {v.name for v in self.values if v.end >= len(self.ran.nodes)}

        def shared(node: Node) -> int:
            return _bytes(self.types, node.outputs[0]) if _over(node, self.types) and node.outputs[0] not in held else 0

        return unavoidable(self.ran.nodes, self.values, shared)

    @property
    def alive(self) -> list[int]:
        """Bytes that are alive at each step, wherever they lie, kernels writing over operands where they may: the ideal
        for this order."""
        return alive(self.values, len(self.ran.nodes))

    @property
    def ideal(self) -> int:
        """The most bytes alive at once in this order."""
        return max(self.alive)

    @property
    def bytes_by_step(self) -> list[int]:
        """Bytes that the planner's buffers, inputs and outputs take at each step."""
        held = self.plan.inputs + self.plan.outputs
        return [held + n for n in self.plan.occupied] or [held]


def footprint(graph: Graph, *, sizes: Mapping[str, int] | None = None) -> ActivationFootprint:
    """What ONNX Runtime makes of a model.

    Args:
        graph: the model.
        sizes: what symbolic dimensions are counted at.

    Raises:
        InvalidModel, ResourceLimit: ONNX Runtime cannot run it. Unsupported: likewise, or an input has no known size.
    """
    refuse_unbounded(graph, sizes or {})
    try:
        feeds = feeds_for(graph, sizes or {})
    except UnsupportedNodeForm as error:
        raise Unsupported(f"{error}, so that nothing says how much memory the model takes") from error
    try:
        return footprint_of(lowered_without_weights(graph), graph, feeds, sizes=sizes)
    except InvalidModel as error:
        counted = ", ".join(f"{name}={size}" for name, size in sizes_fed(graph, sizes or {}).items())
        hint = f"counted at {printable(counted, 200)}; other sizes: --dim NAME=SIZE" if counted else error.hint
        raise InvalidModel(error.what, where=error.where, hint=hint) from error


def footprint_of(
    ran: Graph, graph: Graph, feeds: Mapping[str, np.ndarray], *, sizes: Mapping[str, int] | None = None
) -> ActivationFootprint:
    """The footprint of a model of which it is known what is run (two sessions may differ in their order).

    Args:
        ran: what is run.
        graph: the model.
        feeds: inputs of the sizes that are counted.
        sizes: as in :func:`footprint`.
    """
    own = replace(ran, nodes=tuple(as_executed(ran, graph)))
    given = _sized(graph, feeds)
    try:
        found = type_values(own, feeds, given=given)
    except SuperoptError:  # integer inputs may be indices
        found = type_values(own, feeds_for(graph, sizes or {}, integer=0), given=given)
    types = found.types
    plan = planned(own, types, found.beforehand)
    inputs = [v.name for v in own.inputs if v.name not in own.weight]
    outputs = [v.name for v in own.outputs]
    spans = lifetimes(own.nodes, lambda n: _bytes(types, n), inputs, outputs, lambda n: _renames(n, own))
    held = dict.fromkeys([*(v.name for v in spans if v.start < 0 or v.end >= len(own.nodes)), *inputs])
    values = [Lifetime(n, _bytes(types, n), -1, len(own.nodes)) for n in held]
    values += [v for v in spans if v.name not in held]
    return ActivationFootprint(own, plan, tuple(_overwritten(own, types, values)), types, found.beforehand)


def _sized(graph: Graph, feeds: Mapping[str, np.ndarray]) -> Graph:
    """The graph whose inputs have the sizes that are fed."""
    shapes = {n: tuple(map(int, a.shape)) for n, a in feeds.items()}
    inputs = tuple(
        replace(v, type=replace(v.type, shape=shapes[v.name]))
        if isinstance(v.type, TensorType) and v.name in shapes else v
        for v in graph.inputs
    )  # fmt: skip
    fixed = all(isinstance(v.type, TensorType) and v.type.is_static for v in graph.values)
    return replace(graph, inputs=inputs, values=graph.values if fixed else ())


def _over(node: Node, types: Mapping[str, TensorType]) -> str:
    """The operand over which a kernel may write its result, or nothing."""
    operand = IN_PLACE.get((node.domain, node.op), len(node.inputs))
    name = node.inputs[operand] if operand < len(node.inputs) else ""
    return name if _bytes(types, name) == _bytes(types, node.outputs[0]) else ""


def _overwritten(own: Graph, types: Mapping[str, TensorType], values: Sequence[Lifetime]) -> list[Lifetime]:
    """The lifetimes, where operands end before the step that writes its result over them."""
    made = {o for n in own.nodes if _over(n, types) for o in n.outputs[:1]}
    mine = {v.name for v in values if v.start >= 0}
    gone = {step: _over(n, types) for step, n in enumerate(own.nodes) if made & mine & set(n.outputs[:1])}
    return [replace(v, end=v.end - 1) if v.start >= 0 and gone.get(v.end) == v.name else v for v in values]


def footprint_data(graph: Graph, *, sizes: Mapping[str, int] | None = None) -> dict[str, Any]:
    """The footprint as JSON data: bytes, and per step the node, what is alive and what is taken; who holds the peak.

    Args:
        graph: the model.
        sizes: of symbolic dimensions; the others are what :func:`default_sizes` says, as in ``optimize``.

    Raises:
        InvalidModel, ResourceLimit, Unsupported: as :func:`footprint`.
    """
    return _data_at(graph, default_sizes(graph, sizes or {}))


def footprints(before: Graph, after: Graph, *, sizes: Mapping[str, int] | None = None) -> dict[str, dict[str, Any]]:
    """:func:`footprint_data` of a model and of its result, both at the model's sizes, by "before" and "after".

    Where they are the same there is no "after".
    """
    counted = default_sizes(before, sizes or {})
    sides = {"before": before} if after is before else {"before": before, "after": after}
    return {side: _data_at(graph, counted) for side, graph in sides.items()}


def _data_at(graph: Graph, counted: Mapping[str, int]) -> dict[str, Any]:
    found = footprint(graph, sizes=counted)
    taken, lives = found.bytes_by_step, found.alive
    top = max(range(len(taken)), key=lambda i: (taken[i], -i))
    holding = [b for b in found.plan.buffers if b.start <= top <= b.end]
    weights = costs.work(graph, infer(graph, counted), counted).weight_bytes
    return {
        "format": "superopt.memory", "version": 1, "runtime": released(ONNX_RUNTIME),
        "sizes": sizes_fed(graph, counted),
        "peak_bytes": found.plan.peak, "inputs_bytes": found.plan.inputs, "outputs_bytes": found.plan.outputs,
        "block_bytes": found.plan.block, "weight_bytes": weights, "alive_bytes": found.ideal,
        "bound_bytes": found.bound,
        "steps": [
            {"step": i, "node": n.name, "op": n.op, "alive_bytes": a, "taken_bytes": t}
            for i, (n, a, t) in enumerate(zip(found.ran.nodes, lives, taken, strict=False))
        ],
        "peak_step": top,
        "peak_buffers": [
            {"values": list(b.values), "bytes": b.size, "offset": b.offset, "from": b.start, "to": b.end}
            for b in sorted(holding, key=lambda b: (-b.size, b.offset))
        ],
    }  # fmt: skip


def memory_report(before: Graph, after: Graph, options: Options) -> dict[str, Any] | None:
    """What a report says of memory: :func:`footprint_data` by "before" and "after", the former alone where they are the
    same. ``None`` where it is not known: another runtime or device, a model that does not run, or one with so many
    weights that no second one is held."""
    large = any(graph.weight_bytes > LARGE for graph in (before, after))
    if options.runtime != ONNX_RUNTIME.name or "cuda" in options.target or large:
        return None
    try:
        return footprints(before, after, sizes=options.sizes)
    except (SuperoptError, UnsupportedNodeForm):
        return None


def _bytes(types: Mapping[str, TensorType], name: str) -> int:
    kind = types.get(name)
    return (kind.nbytes or 0) if kind is not None else 0


def _renames(node: Node, graph: Graph) -> bool:
    return (node.domain, node.op) in RENAMING and bool(node.inputs) and node.inputs[0] not in graph.constants
