"""The original, run operator by operator through ONNX Runtime, with or without noise on its arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime as ort
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper, inliner, numpy_helper, shape_inference

from attacker import noise
from attacker.build import EXACT
from attacker.sessions import open_session

Values = dict[str, object]
_HELD = frozenset(KIND for KIND in (
    TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.INT32, TensorProto.INT16,
    TensorProto.INT8, TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64, TensorProto.BOOL,
))  # fmt: skip


def read_by(node: NodeProto) -> Iterator[str]:
    """What a node reads, through its subgraphs too."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            graph = attribute.g
            made = {w.name for w in graph.initializer} | {v.name for v in graph.input}
            for inner in graph.node:
                yield from (name for name in read_by(inner) if name not in made)
                made.update(inner.output)
            yield from (v.name for v in graph.output if v.name not in made)


@dataclass
class Group:
    """Nodes that run together: one, or several between which something passes that NumPy cannot hold."""

    nodes: list[NodeProto]
    reads: list[str]
    gives: list[str]
    runtime: bool
    session: ort.InferenceSession | None = field(default=None)

    @property
    def kind(self) -> str:
        """The operator, or what stands for several."""
        return self.nodes[0].op_type if len(self.nodes) == 1 else "group"

    @property
    def exact(self) -> bool:
        """Whether nothing in it rounds as arithmetic does, or it does so on purpose."""
        return all(n.op_type in noise.EXACT_OPERATORS or n.name.startswith(EXACT) for n in self.nodes)


class Interpreter:
    """A model as groups of nodes, each with its own session, optimisations off."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = inliner.inline_local_functions(model) if model.functions else model
        graph = shape_inference.infer_shapes(self.model).graph
        values = [*graph.input, *graph.value_info, *graph.output]
        self.types = {v.name: v.type for v in values if v.type.WhichOneof("value") is not None}
        self.inputs = {v.name for v in graph.input}
        self.outputs = [v.name for v in graph.output]
        self.constants = {w.name: w for w in graph.initializer if w.name not in self.inputs}
        self.defaults = {w.name: numpy_helper.to_array(w) for w in graph.initializer if w.name in self.inputs}
        self.groups = list(self._grouped(graph))
        self.noisy = self._noisy()

    def _grouped(self, graph: GraphProto) -> Iterator[Group]:
        nodes = list(graph.node)
        last = {name: i for i, node in enumerate(nodes) for name in read_by(node)}
        runtime = set(self.inputs)
        start = 0
        while start < len(nodes):
            stop, end = start, start
            while stop <= end:
                for name in nodes[stop].output:
                    if name and not self._held(name):
                        end = max(end, last.get(name, stop))
                stop += 1
            some = nodes[start:stop]
            made = {o for n in some for o in n.output if o}
            reads = list(dict.fromkeys(r for n in some for r in read_by(n) if r not in made))
            later = {r for n in nodes[stop:] for r in read_by(n)} | set(self.outputs)
            runs = any(r in runtime for r in reads)
            runtime |= made if runs else set()
            yield Group(some, reads, [o for n in some for o in n.output if o and (o in later or len(made) == 1)], runs)
            start = stop

    def _held(self, name: str) -> bool:
        kind = self.types.get(name)
        return kind is None or (kind.HasField("tensor_type") and kind.tensor_type.elem_type in _HELD)

    def _noisy(self) -> set[str]:
        """Values that something rounding stands before."""
        found: set[str] = set()
        for group in self.groups:
            if (group.runtime and not group.exact) or any(r in found for r in group.reads):
                found.update(group.gives)
        return found

    def run(self, feeds: Mapping[str, np.ndarray], rng: np.random.Generator | None = None) -> Values:
        """Every value; ``rng`` draws noise for what rounds and runs.

        Raises:
            Exception: whatever ONNX Runtime raises, on inputs that the model does not take.
        """
        values: Values = {**self.defaults, **feeds}
        for name in self.outputs:
            if name in self.constants:
                values[name] = numpy_helper.to_array(self.constants[name])
        clean = all(np.isfinite(v).all() for v in values.values() if isinstance(v, np.ndarray) and v.dtype.kind == "f")
        for group in self.groups:
            self._step(group, values, rng if group.runtime and not group.exact else None, clean)
            if rng is not None and group.runtime and group.kind in noise.CHOOSING:
                self._toss(group, values, rng)
        return values

    def _toss(self, group: Group, values: Values, rng: np.random.Generator) -> None:
        for name in group.gives:
            result = values[name]
            if isinstance(result, np.ndarray) and result.dtype.kind == "f":
                operands = [self._array(n, values) for n in group.nodes[0].input]
                values[name] = noise.tossed(operands, result, rng)

    def _step(self, group: Group, values: Values, rng: np.random.Generator | None, clean: bool) -> None:
        given = {r: values[r] for r in group.reads if r not in self.constants}
        if rng is not None and (group.kind in noise.SUMMING or group.kind in ("group", "Softmax", "LogSoftmax")):
            axis = next((a.i for a in group.nodes[0].attribute if a.name == "axis"), -1)
            for name, value in given.items():
                if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                    given[name] = noise.move_operand(group.kind, value, axis, rng)
        if group.session is None:
            group.session = self._session(group, given)
        results = group.session.run(group.gives, given) if group.gives else []
        for name, result in zip(group.gives, results, strict=True):
            values[name] = result if rng is None else self._moved(group, values, result, rng, clean)

    def _moved(self, group: Group, values: Values, result: object, rng: np.random.Generator, clean: bool) -> object:
        if not isinstance(result, np.ndarray) or result.dtype.kind != "f":
            return result
        operands = [self._array(name, values) for name in group.nodes[0].input]
        scale = noise.output_scale(group.kind, operands, result)
        result = noise.moved(result, scale, rng, floor=noise.floor_of(group.kind, operands, result))
        return noise.burst(result, rng) if clean else result

    def _array(self, name: str, values: Values) -> np.ndarray | None:
        value = numpy_helper.to_array(self.constants[name]) if name in self.constants else values.get(name)
        return value if isinstance(value, np.ndarray) else None

    def _session(self, group: Group, given: Mapping[str, object]) -> ort.InferenceSession:
        infos = []
        for name, value in given.items():
            kind = helper.np_dtype_to_tensor_dtype(np.asarray(value).dtype)
            infos.append(helper.make_tensor_value_info(name, kind, None))
        weights = [self.constants[r] for r in group.reads if r in self.constants]
        results = []
        for name in group.gives:
            info = ValueInfoProto(name=name)
            if name in self.types and self.types[name].HasField("tensor_type"):
                elem = self.types[name].tensor_type.elem_type
                info = helper.make_tensor_value_info(name, elem, None)
            results.append(info)
        graph = helper.make_graph(group.nodes, "group", infos, results, weights)
        made = helper.make_model(graph, opset_imports=self.model.opset_import, ir_version=self.model.ir_version)
        return open_session(made, optimised=False)
