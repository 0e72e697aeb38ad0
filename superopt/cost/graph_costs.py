"""The price, the work and the memory of a whole graph, as the backend runs it.

Under recorded prices, which ``--target cpu`` uses as well, the parts are the graph's own nodes, with what the backend
fuses (nearly) free. A device that measures as it goes has the kernels of the runtime's own optimised graph instead.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from superopt.cost.backend_capabilities import SUMMAND, groups
from superopt.cost.cache_model import ActivationCachePenalty, WeightCacheResidency, core_bytes
from superopt.cost.control_flow import ControlFlowBodyCost, body_costs
from superopt.cost.cost_model import CostModel, ExecutedGraphCostModel
from superopt.cost.half_precision_support import HalfCasts
from superopt.cost.integer_kernel_support import DEQUANTIZE, QdqNodeGroups
from superopt.cost.measurement_record import FREE, CostEstimate, MeasurementKey
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph, Node, Value, Weight, attribute_key, constant
from superopt.ir.types import DType, TensorType
from superopt.memory.liveness import alive, lifetimes
from superopt.memory.minimum_peak_order import least_peak
from superopt.ops import REGISTRY
from superopt.ops.flops_and_bytes import VIEWS, GraphWorkAnalysis, work_of
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.ops.shape_inference import CanonicalNode, InferredTypes, infer
from superopt.runtime.crash_isolation import risk_of
from superopt.runtime.executed_graph import first_of_equals, lowered, run_types
from superopt.runtime.resource_limits import refuse_unbounded
from superopt.runtime.synthetic_tensors import feeds_for, sample

if TYPE_CHECKING:
    from superopt.memory.rematerialization_graph import RematerializationInputGraph

__all__ = [
    "GraphCost",
    "StandaloneKernel",
    "GraphResourceUsage",
    "graph_cost",
    "graph_work",
    "kernels_of",
    "least_order",
    "node_work",
    "task_of",
    "timeline",
    "work",
]


@dataclass(frozen=True)
class GraphCostPolicy:
    """Which graphs are lowered, and which constants identify a kernel.

    Attributes:
        real_literals: a real constant of up to so many elements steers the kernel (scales of Resize, a slope): it is
            part of the key.
        integer_literals: the same for integers (a shape, axes).
        lowerable: a graph with more bytes of weights is not lowered for its price alone.
        prompt_steps: steps up to which results of a task are moved to the earliest position.
    """

    real_literals: int = 8
    integer_literals: int = 64
    lowerable: int = 1 << 29
    prompt_steps: int = 5_000_000


POLICY = GraphCostPolicy()


@dataclass(frozen=True)
class StandaloneKernel:
    """A node of the optimised graph, with what is needed to time it alone."""

    node: Node
    key: MeasurementKey
    graph: Graph
    flops: int
    moved: int


def kernels_of(graph: Graph, types: Mapping[str, TensorType]) -> tuple[StandaloneKernel | Node, ...]:
    """The nodes of a lowered graph in order; one that cannot be timed alone stays a node."""
    return tuple(_kernel(graph, node, types) for node in graph.nodes)


def _kernel(graph: Graph, node: Node, types: Mapping[str, TensorType]) -> StandaloneKernel | Node:
    if node.captures or any(n and n not in types for n in (*node.inputs, *node.outputs)):
        return node
    inputs: dict[str, Value] = {}
    weights: dict[str, Weight] = {}
    shapes: list[str] = []
    for slot, name in enumerate(node.inputs):
        if not name:
            shapes.append("")
            continue
        kind = types[name]
        if name not in graph.constants:
            inputs[name] = Value(name, kind)
            shapes.append(str(kind))
            continue
        weight, note = _constant(graph.constants[name], slot)
        weights[name] = weight
        shapes.append(f"!{kind}{note}")
    attributes = {k: attribute_key(v) for k, v in sorted(node.attributes.items())}
    key = MeasurementKey(
        op=f"{node.domain}:{node.op}" if node.domain else node.op,
        attrs=json.dumps(attributes, separators=(",", ":")),
        dtype=str(types[node.outputs[0]].dtype) if node.outputs and node.outputs[0] else "",
        shapes=tuple(shapes),
        impl="kernel",
    )
    outputs = tuple(Value(n, types[n]) for n in node.outputs if n)
    small = Graph("kernel", tuple(inputs.values()), outputs, tuple(weights.values()), (node,), graph.opset)
    return StandaloneKernel(node, key, small, _flops(node, types), _moved(node, types))


def _constant(weight: Weight, slot: int) -> tuple[Weight, str]:
    """The constant as the trial holds it: literal where its value steers the kernel, random otherwise."""
    elements = weight.type.elements
    most = POLICY.integer_literals if weight.type.dtype.is_integer else POLICY.real_literals
    literal = isinstance(elements, int) and elements <= most
    if literal and weight.data is not None:
        array = weight.data.numpy()
        return constant(weight.name, array), f"={array.tolist()}"
    if not weight.type.is_static:
        raise UnsupportedNodeForm(f"the sizes of weight {weight.name} are not known")
    return constant(weight.name, sample(weight.type, slot)), ""


def _elements(kind: TensorType) -> int:
    return prod(int(str(d)) for d in kind.shape or ())


def _moved(node: Node, types: Mapping[str, TensorType]) -> int:
    return sum(types[n].nbytes or 0 for n in (*dict.fromkeys(node.inputs), *node.outputs) if n)


def _flops(node: Node, types: Mapping[str, TensorType]) -> int:
    """Operations, near enough for a roofline: contractions by their reduced size, all else one per element."""
    made = max((_elements(types[n]) for n in node.outputs if n), default=0)
    if len(node.inputs) > 1 and node.inputs[0] and node.inputs[1]:
        right = types[node.inputs[1]].shape or ()
        if "Conv" in node.op and len(right) > 2:
            return 2 * made * prod(int(str(d)) for d in right[1:])
        if "MatMul" in node.op or "Gemm" in node.op:
            left = types[node.inputs[0]].shape or ()
            flipped = bool(node.attributes.get("transA"))
            return 2 * made * int(str(left[-2 if flipped and len(left) > 1 else -1] if left else 1))
    return made


_IN_PLACE = frozenset({"elementwise", "activation"})  # families whose result may take an operand's memory
_ONNX = ("", "ai.onnx")
_UNKNOWN = CostEstimate(1.0, "roofline", 1.0)  # a node of unknown types: unmeasured is not zero


_Part = tuple[str, str, CostEstimate, tuple[int, int]]  # node, operator, cost, FLOPs and bytes


@dataclass(frozen=True)
class GraphResourceUsage:
    """What an inference does: operations, bytes moved by its operators, and memory.

    ``weight_bytes`` counts constants that are present at inference (weights-only results, not their sources).
    ``peak_activation_bytes`` is the most that is alive at once in the given order, views sharing their source.
    """

    flops: int
    bytes: int
    weight_bytes: int
    peak_activation_bytes: int

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes if self.bytes else 0.0


@dataclass(frozen=True)
class GraphCost:
    """A graph's cost in microseconds, how much of it rests on measurements, and its parts: (node, operator, cost).

    ``per_node_work`` has FLOPs and bytes moved of each part, in the same order. ``kernels_inside`` counts the kernels
    that bodies of control flow start, each as often as it runs.
    """

    us: float
    measured_share: float
    per_node: tuple[tuple[str, str, CostEstimate], ...]
    flops: int
    bytes: int
    intensity: float
    peak_activation_bytes: int
    weight_bytes: int
    per_node_work: tuple[tuple[int, int], ...] = ()
    kernels_inside: float = 0.0

    @property
    def kernels(self) -> float:
        """Kernels that the backend starts: what it fuses, or only renames, starts none."""
        return sum(e.us > 0.0 and e.source != "free" for _, _, e in self.per_node) + self.kernels_inside

    @property
    def memory(self) -> int:
        """Bytes that an inference needs: weights, and the most activations that are alive at once."""
        return self.weight_bytes + self.peak_activation_bytes


def graph_cost(
    graph: Graph, model: CostModel, typing: InferredTypes | None = None, *, sizes: Mapping[str, int] | None = None,
    as_run: bool = True,
) -> GraphCost:  # fmt: skip
    """Cost a graph.

    On the measured CPU, the parts are the nodes of the runtime's own optimised graph, if it hands that out. Elsewhere
    they are the graph's own nodes, with what the backend fuses (nearly) free.

    Args:
        graph: the model.
        model: where costs come from.
        typing: its inferred types, if at hand.
        sizes: what symbolic dimensions are costed at.
        as_run: where the runtime hands out what it runs, that is costed: it takes a second for a large graph.
    """
    typing = typing or infer(graph, dict(sizes or {}))
    lowers = as_run and model.lowered is not None  # then nodes are not priced one by one, nor are those in bodies
    folds = model.backend.folds_shapes
    facts = _CostedInference(graph, typing, sizes, model=None if lowers else model, folds_shapes=folds)
    done = facts.work()
    parts: list[_Part] | None = None
    base = 0.0
    if as_run and model.lowered is not None and done.weight_bytes <= POLICY.lowerable:
        parts = _lowered_parts(graph, model, model.lowered, sizes or {}, done.peak_activation_bytes)
        base = model.lowered.overhead_us()
    if parts is None:
        if lowers:
            facts = _CostedInference(graph, typing, sizes, model=model, folds_shapes=folds)
        parts = facts.grouped(list(facts.applications(model, done.peak_activation_bytes)), model)
    total = sum(part[2].us for part in parts)
    sure = sum(part[2].us for part in parts if part[2].source in ("measured", "free"))
    return GraphCost(
        us=total + base, measured_share=sure / total if total else 1.0,
        per_node=tuple(part[:3] for part in parts), flops=done.flops, bytes=done.bytes, intensity=done.intensity,
        peak_activation_bytes=done.peak_activation_bytes, weight_bytes=done.weight_bytes,
        per_node_work=tuple(part[3] for part in parts),
        kernels_inside=sum(body.kernels for body in facts.inside.values()),
    )  # fmt: skip


def graph_work(graph: Graph, typing: InferredTypes, sizes: Mapping[str, int] | None = None) -> dict[str, Any]:
    """The graph's work as JSON data."""
    done = work(graph, typing, sizes)
    return {
        "flops": done.flops, "bytes": done.bytes, "intensity": done.intensity, "weight_bytes": done.weight_bytes,
        "peak_activation_bytes": done.peak_activation_bytes,
    }  # fmt: skip


def timeline(
    graph: Graph, model: CostModel, typing: InferredTypes | None = None, *, sizes: Mapping[str, int] | None = None
) -> tuple[tuple[int, float, int], ...]:
    """What happens at inference, node after node as the graph lists them.

    Each node is priced as it stands in the graph, and what the backend fuses once; :func:`graph_cost` may know better
    what the whole takes, from the graph that the runtime makes of it.

    Args:
        graph: the model.
        model: where costs come from.
        typing: its inferred types, if at hand.
        sizes: what symbolic dimensions are costed at.

    Returns:
        For each node that runs: its position among the graph's nodes, microseconds, and bytes of activations that are
        alive while it runs.
    """
    facts = _CostedInference(graph, typing or infer(graph, dict(sizes or {})), sizes, model=model)
    sizes_alive = facts.alive()
    parts = facts.grouped(list(facts.applications(model, max(sizes_alive))), model)
    running = {id(node) for node, _ in facts.running()}
    positions = [i for i, node in enumerate(graph.nodes) if id(node) in running]
    return tuple((i, parts[i][2].us, size) for i, size in zip(positions, sizes_alive, strict=False))


def node_work(
    graph: Graph, typing: InferredTypes, sizes: Mapping[str, int] | None = None
) -> tuple[tuple[str, str, int, int], ...]:
    """(node, operator, FLOPs, bytes moved) of every node that runs at inference."""
    return tuple((n.name, n.op, f, b) for n, f, b in _CostedInference(graph, typing, sizes).per_node())


def work(graph: Graph, typing: InferredTypes, sizes: Mapping[str, int] | None = None) -> GraphResourceUsage:
    """The graph's work at the given sizes."""
    return _CostedInference(graph, typing, sizes).work()


def least_order(graph: Graph, typing: InferredTypes, sizes: Mapping[str, int] | None = None) -> tuple[int, ...]:
    """Positions of the graph's nodes in an order in which least is alive at once; the given one where none is better.

    What only makes weights comes first.
    """
    return _CostedInference(graph, typing, sizes).least_order()


def task_of(
    graph: Graph, model: CostModel, typing: InferredTypes | None = None, *, sizes: Mapping[str, int] | None = None
) -> RematerializationInputGraph:
    """The graph as a planner of recomputation sees it, its nodes in the order of :func:`least_order`, but results (a
    weight's update) as soon as what they need is there.

    Inputs and outputs have memory of their own whatever the plan, and are no bytes of the task. What superopt does not
    understand is not repeated: it may have effects, or be random.
    """
    facts = _CostedInference(graph, typing or infer(graph, dict(sizes or {})), sizes, model=model)
    return facts.task(model)


def _lowered_parts(
    graph: Graph, model: CostModel, prices: ExecutedGraphCostModel, sizes: Mapping[str, int], activations: int
) -> list[_Part] | None:
    """Costs of ONNX Runtime's own nodes; ``None`` when it cannot run the graph on made-up inputs.

    How cold the weights are is judged by what ONNX Runtime holds of them: one copy of equal ones, for each kind of
    operator that packs them.
    """
    try:
        refuse_unbounded(graph, sizes)
        feeds = feeds_for(graph, sizes)
        if (risk := risk_of(graph)) is not None and risk.fed(feeds):
            return None  # running it may end the process
        own = lowered(graph, prices.runtime)
        try:
            types = run_types(own, feeds)
        except SuperoptError:  # integer inputs may be indices
            types = run_types(own, feeds_for(graph, sizes, integer=0))
    except (SuperoptError, UnsupportedNodeForm):
        return None
    same = first_of_equals(own.weights)
    copy_of = model.backend.copy_of
    copies = [{copy_of(same[n], m.op): types[n].nbytes or 0 for n in m.inputs if n in same} for m in own.nodes]
    working_set = _bytes_of(copies) + activations
    reuse, longer = WeightCacheResidency(model, working_set), _extra_for_activations(own, types, model, working_set)
    parts: list[_Part] = []
    for part, held in zip(kernels_of(own, types), copies, strict=True):
        if isinstance(part, StandaloneKernel):
            alone = (reuse.model_for(held, part.moved - sum(held.values())).lowered or prices).kernel(part)
            estimate = replace(alone, us=alone.us + longer(part.node, sum(held.values())))
            parts.append((part.node.name, part.node.op, estimate, (part.flops, part.moved)))
        else:
            parts.append((part.name, part.op, _UNKNOWN, (0, 0)))
    return parts


def _extra_for_activations(
    graph: Graph, types: Mapping[str, TensorType], model: CostModel, working_set: int
) -> Callable[[Node, int], float]:
    """How much longer the next node of a lowered graph takes than alone, given the bytes of its weights, in order."""
    peaks = model.peaks()
    root: dict[str, str] = {}
    reads: Counter[str] = Counter()
    for node in graph.nodes:
        if _renames(node, graph):
            root[node.outputs[0]] = root.get(node.inputs[0], node.inputs[0])
        else:
            reads.update({root.get(n, n) for n in node.reads if n not in graph.constants})
    reads.update(root.get(v.name, v.name) for v in graph.outputs)
    if peaks is None:  # no time was left to measure them
        return lambda *_: 0.0
    memory = ActivationCachePenalty(peaks, model.cold_share, core_bytes(), working_set, dict(reads))

    def longer(node: Node, weights: int) -> float:
        if _renames(node, graph):
            return 0.0
        names = dict.fromkeys(root.get(n, n) for n in node.reads if n not in graph.constants)
        fed, made = ([(n, types[n].nbytes or 0) for n in v if n in types] for v in (names, node.outputs))
        known = REGISTRY.get(node.op) if not node.domain else None
        summed = "Conv" in node.op and len(node.inputs) > SUMMAND
        in_place = summed or (known is not None and known.family in _IN_PLACE)
        return memory.extra_us(fed, made, weights, in_place=in_place)

    return longer


def _renames(node: Node, graph: Graph) -> bool:
    return node.op in VIEWS and not node.domain and bool(node.inputs) and node.inputs[0] not in graph.constants


class _CostedInference(GraphWorkAnalysis):
    """An inference with the memory that it needs and the time that it takes."""

    def __init__(
        self,
        graph: Graph,
        typing: InferredTypes,
        sizes: Mapping[str, int] | None = None,
        *,
        model: CostModel | None = None,
        folds_shapes: bool = False,
    ) -> None:
        super().__init__(graph, typing, sizes, folds_shapes=folds_shapes)
        self.model = model

    @cached_property
    def inside(self) -> Mapping[int, ControlFlowBodyCost]:
        """What bodies of control flow take, by the positions of their nodes; no time where there is no cost model."""

        def cost(body: Graph) -> ControlFlowBodyCost:
            if self.model is None:
                done = work(body, infer(body), self.sizes)
                return ControlFlowBodyCost(0.0, done.flops, done.bytes, 0.0)
            found = graph_cost(body, self.model, sizes=self.sizes, as_run=False)
            return ControlFlowBodyCost(found.us, found.flops, found.bytes, found.kernels)

        return body_costs(self.graph, self.typing, self.sizes, cost)

    def per_node(self) -> Iterator[tuple[Node, int, int]]:
        """FLOPs and bytes moved of each node that an inference executes; its bodies count as often as they run."""
        inside = {id(self.graph.nodes[place]): found for place, found in self.inside.items()}
        for node, flops, moved in super().per_node():
            found = inside.get(id(node))
            yield (node, flops, moved) if found is None else (node, found.flops, found.bytes)

    def work(self) -> GraphResourceUsage:
        total = moved = 0
        used: dict[str, int] = {}
        for node, operations, volume in self.per_node():
            used.update({n: self.bytes_of(n) for n in node.reads if n in self.static})
            total += operations
            moved += volume
        used.update({v.name: self.bytes_of(v.name) for v in self.graph.outputs if v.name in self.static})
        return GraphResourceUsage(total, moved, sum(used.values()), max(self.alive()))

    def alive(self) -> list[int]:
        """Bytes of activations that are alive at each node that runs, in the order of the graph."""
        running = [n for n, _ in self.running()]
        outputs = [v.name for v in self.graph.outputs]
        inputs = [v.name for v in self.graph.inputs]
        return alive(lifetimes(running, self.bytes_of, inputs, outputs, self._renames), len(running))

    def least_order(self) -> tuple[int, ...]:
        running = {id(n) for n, _ in self.running()}
        places = [i for i, n in enumerate(self.graph.nodes) if id(n) in running]
        outputs = [v.name for v in self.graph.outputs]
        inputs = [v.name for v in self.graph.inputs]
        nodes = [self.graph.nodes[i] for i in places]
        found = least_peak(nodes, self.bytes_of, inputs, outputs, self._renames).order
        if found == tuple(range(len(nodes))):
            return tuple(range(len(self.graph.nodes)))
        first = [i for i, n in enumerate(self.graph.nodes) if id(n) not in running]
        return (*first, *(places[i] for i in found))

    def task(self, model: CostModel) -> RematerializationInputGraph:
        # Imported here, because few models are written for memory.
        from superopt.memory.rematerialization_graph import RematerializationInputGraph
        from superopt.memory.rematerialization_schedule import (
            RematerializationNode,
            RematerializationProblem,
            original_timetable,
            prompt,
        )

        parts = self.grouped(list(self.applications(model, max(self.alive()))), model)
        running = {id(n) for n, _ in self.running()}
        number: dict[str, int] = {}
        ops: list[RematerializationNode] = []
        nodes: list[Node] = []
        for place in self.least_order():
            node, known = self.graph.nodes[place], self.typing.nodes[place]
            if id(node) not in running:
                continue
            reads = [number.setdefault(n, len(number)) for n in node.reads if n not in self.static]
            makes = [number.setdefault(n, len(number)) for n in node.outputs if n]
            view = self._renames(node)
            us = 0.0 if view else parts[place][2].us
            ops.append(RematerializationNode(tuple(reads), tuple(makes), us, view, isinstance(known, CanonicalNode)))
            nodes.append(node)
        held = {v.name for v in self.graph.inputs}
        results = {v.name for v in self.graph.outputs}
        task = RematerializationProblem(
            tuple(ops), tuple(0 if n in results or n in held else self.bytes_of(n) for n in number),
            frozenset(number[n] for n in held if n in number), frozenset(number[n] for n in results if n in number),
        )  # fmt: skip
        if len(ops) * len(results) <= POLICY.prompt_steps:
            order = [s.op for s in prompt(task, original_timetable(task)).steps]
            task, nodes = replace(task, ops=tuple(ops[i] for i in order)), [nodes[i] for i in order]
        return RematerializationInputGraph(self.graph, tuple(nodes), tuple(number), task, self.types)

    def _renames(self, node: Node) -> bool:
        return node.op in VIEWS and not node.domain and bool(node.inputs) and node.inputs[0] not in self.static

    def applications(self, model: CostModel, activations: int) -> Iterator[_Part]:
        """Costs of the graph's own nodes, fused where the backend fuses."""
        makers = self._fused_producers(model)
        copies = self._weight_copies(model, makers)
        reuse = WeightCacheResidency(model, _bytes_of(copies) + activations)
        half = self._half_casts(model)
        for place, (node, known) in enumerate(zip(self.graph.nodes, self.typing.nodes, strict=True)):
            if not self.runs(node):
                yield node.name, node.op, FREE, (0, 0)
                continue
            if (inside := self.inside.get(place)) is not None:
                yield node.name, node.op, replace(_UNKNOWN, us=_UNKNOWN.us + inside.us), (inside.flops, inside.bytes)
                continue
            if not isinstance(known, CanonicalNode):
                yield node.name, node.op, self._scatter_cost(node, model) or _UNKNOWN, (0, 0)
                continue
            args, outs = self.types_of(node, known)
            if any(n is not None and t is None for n, t in zip(known.args, args, strict=True)) or len(outs) == 0:
                yield node.name, node.op, _UNKNOWN, (0, 0)
                continue
            kept = node.op == DEQUANTIZE  # of a weight: the runtime stores integers, and makes reals of them each time
            fixed = tuple(n is not None and n in self.static and not kept for n in known.args)
            moving = [n for n in known.args if n is not None and n not in self.static]
            made = 0 if node.op in VIEWS else sum(map(self.bytes_of, (*moving, *filter(None, node.outputs))))
            prices, after = reuse.model_for(copies[place], made), makers[place].op if place in makers else None
            done = (0, 0) if node.op in VIEWS else work_of(known.operator.name, known.attributes, args, outs)
            if half is not None and place in half.places:
                estimate = half.cost(prices, place, args, outs, fixed, after)
            else:
                estimate = prices.application(
                    known.operator.name, known.attributes, args, outs, constant_args=fixed, after=after
                )
            yield node.name, node.op, estimate, done

    def _scatter_cost(self, node: Node, model: CostModel) -> CostEstimate | None:
        """What it costs to write to positions over what is there: as much as to read as many rows as long, which was
        0.6 to 1.3 times what ONNX Runtime takes for 72 to 1.2 million of them. ``None`` for what does not write so.

        (What is written into is copied besides where something else reads it, too; that counts for nothing here.)
        """
        if node.op not in ("ScatterND", "ScatterElements") or node.domain not in _ONNX or len(node.inputs) != 3:
            return None
        data, indices, updates = (self.types.get(n) for n in node.inputs)
        if data is None or indices is None or updates is None or not data.is_static or not indices.shape:
            return None
        shape, depth = data.shape or (), indices.shape[-1] if node.op == "ScatterND" else len(data.shape or ())
        row = prod(d for d in shape[depth if isinstance(depth, int) else 0 :] if isinstance(d, int))
        if not row or not isinstance(data.elements, int) or not isinstance(updates.elements, int):
            return None
        count = updates.elements // row
        table = TensorType(data.dtype, (data.elements // row, row))
        read, made = TensorType(DType.INT64, (count,)), TensorType(data.dtype, (count, row))
        return model.application("Gather", {"axis": 0}, [table, read], [made], constant_args=(False, True))

    def grouped(self, parts: list[_Part], model: CostModel) -> list[_Part]:
        """The parts, where what the backend runs as one kernel costs what the dearest of it costs alone, and what its
        pattern says beside.

        (A GELU takes 1.2 times its Erf, a root mean square normalisation what its Pow does.)
        """
        place = {id(node): i for i, node in enumerate(self.graph.nodes)}
        found, half = list(parts), model.backend.half
        for group in groups(self.graph, model.backend.patterns, self.typing.types):
            if half is not None and any(half.casts(n.op, self.types.get(n.outputs[0])) for n in group.nodes):
                continue
            *others, dearest = sorted((place[id(node)] for node in group.nodes), key=lambda i: parts[i][2].us)
            for i in others:
                name, op, _, done = parts[i]
                found[i] = (name, op, FREE, done)
            name, op, estimate, done = parts[dearest]
            us = group.us(estimate.us, self.types.get(group.nodes[0].outputs[0]))
            found[dearest] = (name, op, replace(estimate, us=us), done)
        self._in_integers(found, place, model)
        return found

    def _in_integers(self, parts: list[_Part], place: Mapping[int, int], model: CostModel) -> None:
        """Put in what kernels of integers cost: a share of the operator's time, and nothing for what is around it."""
        integers = model.backend.integers
        for kernel, *others in () if integers is None else QdqNodeGroups(self.graph, integers).groups():
            for i in (place[id(node)] for node in others):
                name, op, _, done = parts[i]
                parts[i] = (name, op, FREE, done)
            name, op, estimate, done = parts[place[id(kernel)]]
            share = integers.shares[kernel.op] if integers is not None else 1.0
            parts[place[id(kernel)]] = (name, op, replace(estimate, us=share * estimate.us), done)

    def _half_casts(self, model: CostModel) -> HalfCasts | None:
        """What the backend computes in float32 between casts; ``None`` where no value is of half precision."""
        half, known = model.backend.half, self.typing.nodes
        if half is None or not half.concerns(self.types.values()):
            return None
        applied = {i: k for i, k in enumerate(known) if isinstance(k, CanonicalNode) and self.runs(self.graph.nodes[i])}
        return HalfCasts(self.graph, applied, self.types, self.static, half)

    def _fused_producers(self, model: CostModel) -> dict[int, Node]:
        """For nodes (by position) that the backend runs within the kernel that makes their argument: what makes it."""
        readers = {name: len(nodes) for name, nodes in self.graph.consumers.items()}
        for value in self.graph.outputs:
            readers[value.name] = readers.get(value.name, 0) + 1
        found: dict[int, Node] = {}
        for place, (node, known) in enumerate(zip(self.graph.nodes, self.typing.nodes, strict=True)):
            if not isinstance(known, CanonicalNode):
                continue
            given = [n for n in known.args if n is not None]
            moving = [n for n in given if n not in self.static]
            others = [self.types.get(n) for n in given if n in self.static]
            rank = max((t.rank or 0 for t in others if t is not None), default=0)
            half, result = model.backend.half, self.types.get(node.outputs[0])
            for producer in (self.graph.producer[n] for n in moving if n in self.graph.producer and readers[n] == 1):
                if half is not None and half.casts(node.op, result) and (producer.op, node.op) not in half.fused:
                    continue
                if model.fusable(producer.op, node.op, constant_others=len(moving) == 1, rank=rank):
                    found[place] = producer
                    break
        return found

    def _weight_copies(self, model: CostModel, makers: Mapping[int, Node]) -> list[dict[str, int]]:
        """For each node the weights that it reads, by what the backend holds of them, and their bytes."""
        kernel = {id(node): node.op for node in self.graph.nodes}
        root = {id(node): id(node) for node in self.graph.nodes}
        for place, maker in makers.items():
            node = self.graph.nodes[place]
            within = root[id(node)] = root[id(maker)]
            kernel[within] = model.backend.fused(kernel[within], node.op)
        same = first_of_equals(self.graph.weights)
        return [
            {
                model.backend.copy_of(same.get(n, n), kernel[root[id(node)]]): self.bytes_of(n)
                for n in node.reads
                if n in self.static and self.runs(node)
            }
            for node in self.graph.nodes
        ]


def _bytes_of(copies: Iterable[Mapping[str, int]]) -> int:
    return sum({name: size for held in copies for name, size in held.items()}.values())
