"""What a backend computes in integers, as data, and where a graph has it: operators between DequantizeLinear and
QuantizeLinear.

A runtime turns ``QuantizeLinear(Conv(DequantizeLinear(x), DequantizeLinear(w)))`` into one kernel of eight bits. It
moves DequantizeLinear down, and QuantizeLinear up, past operators that choose or move elements, but only past those
that it knows: ``Flatten`` in the place of an equal ``Reshape`` leaves the whole group to be computed in reals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from superopt.cost.measurement_record import MeasurementRequest
from superopt.ir.graph import Graph, Node
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY

__all__ = [
    "DEQUANTIZE",
    "ONNX_RUNTIME_INTEGERS",
    "QUANTIZE",
    "IntegerKernelSupport",
    "IntegerOperatorCost",
    "QdqNodeGroups",
]

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_MOVING = frozenset({"pooling", "selection", "shape", "slicing"})  # families that choose, move or pool elements


@dataclass(frozen=True)
class IntegerOperatorCost:
    """An operator of integers, priced by that of reals.

    Attributes:
        real: the operator of reals.
        operands: the places of its two operands.
        share: what the kernel takes of the time of that of reals.
    """

    real: str
    operands: tuple[int, int]
    share: float


@dataclass(frozen=True)
class IntegerKernelSupport:
    """The operators that a backend computes in integers.

    Attributes:
        operands: how many operands have to be dequantised, by operator; the others are constants. 0: all.
        shares: what its kernel of integers takes of the time of that of reals, without what quantises around it.
        unquantised: those of them whose result may be real.
        passed: operators with one operand, past which the backend moves DequantizeLinear and QuantizeLinear.
        unsigned_from: from this opset on it passes no operator where the integers are signed: ONNX Runtime 1.32 then
            refuses the QuantizeLinear that it puts behind, whose type it made unsigned in one place of two.
        activations: operators that it runs in the kernel whose result they read, where QuantizeLinear reads theirs.
        products: operators that a model writes on integers.
    """

    operands: Mapping[str, int]
    shares: Mapping[str, float]
    unquantised: frozenset[str]
    passed: frozenset[str]
    unsigned_from: int
    activations: frozenset[str]
    products: Mapping[str, IntegerOperatorCost]

    def of_reals(self, question: MeasurementRequest) -> tuple[MeasurementRequest, float] | None:
        """The same product of reals, and what that of integers takes of its time; ``None``: it is no product."""
        known = self.products.get(question.op)
        if known is None:
            return None
        args = [None if (t := question.args[p]) is None else TensorType(DType.FLOAT32, t.shape) for p in known.operands]
        outs = [TensorType(DType.FLOAT32, t.shape) for t in question.outs]
        fixed = [question.fixed[p] for p in known.operands]
        return MeasurementRequest(known.real, question.attributes, args, outs, fixed), known.share


# Read off ONNX Runtime 1.32's optimised graphs, CPU (tests/cost/test_integer_kernels.py runs every row). Shares are
# medians of paired rounds on an EPYC, one thread (lab/notes/quantised.md); average pools are of small windows.
ONNX_RUNTIME_INTEGERS = IntegerKernelSupport(
    operands={
        "Add": 0,
        "AveragePool": 0,
        "Concat": 0,
        "Conv": 2,
        "Gemm": 2,
        "GlobalAveragePool": 0,
        "LeakyRelu": 0,
        "MatMul": 0,
        "Mul": 0,
        "Sigmoid": 0,
        "Softmax": 0,
    },
    shares={
        "Add": 0.95,
        "AveragePool": 9.0,
        "Concat": 2.4,
        "Conv": 0.3,
        "Gemm": 0.5,
        "GlobalAveragePool": 0.55,
        "LeakyRelu": 0.85,
        "MatMul": 0.3,
        "Mul": 1.4,
        "Sigmoid": 0.85,
        "Softmax": 5.7,
    },
    unquantised=frozenset({"MatMul"}),
    passed=frozenset({"MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}),
    unsigned_from=21,
    activations=frozenset({"Clip", "Relu"}),
    products={
        "ConvInteger": IntegerOperatorCost("Conv", (0, 1), 7.0),
        "MatMulInteger": IntegerOperatorCost("MatMul", (0, 1), 0.3),
        "QLinearConv": IntegerOperatorCost("Conv", (0, 3), 0.3),
        "QLinearMatMul": IntegerOperatorCost("MatMul", (0, 3), 0.3),
    },
)


class QdqNodeGroups:
    """The groups of a graph that a backend computes in integers, and operators that it would if they were reached.

    Args:
        graph: where they are looked for.
        kernels: what the backend computes in integers.
    """

    def __init__(self, graph: Graph, kernels: IntegerKernelSupport) -> None:
        self.graph, self.kernels = graph, kernels
        self.outputs = {v.name for v in graph.outputs}
        self.dequantised: dict[str, bool] = {}  # elements of dequantised values: whether the backend sees that
        for node in graph.nodes:
            self._follow(node)

    def _follow(self, node: Node) -> None:
        """Whether what the node makes is dequantised, but for operators on the way that choose, move or pool."""
        if node.domain or not node.inputs or len(node.outputs) != 1:
            return
        source = node.inputs[0]
        if node.op == DEQUANTIZE:
            if self.is_constant(source) or self.has_one_scale(node):
                self.dequantised[node.outputs[0]] = True
        elif source in self.dequantised and _only_moves(node) and all(self.is_constant(n) for n in node.inputs[1:]):
            self.dequantised[node.outputs[0]] = self.dequantised[source] and node.op in self.kernels.passed

    def has_one_scale(self, node: Node) -> bool:
        """Whether the scale is a weight of one element: kernels of integers take no other, but for weights."""
        scale = self.graph.constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
        return scale is not None and scale.type.elements == 1

    def is_constant(self, name: str) -> bool:
        """Whether a value is a weight, or absent, or a Constant."""
        maker = self.graph.producer.get(name)
        return not name or name in self.graph.constants or (maker is not None and maker.op == "Constant")

    def operands(self, node: Node) -> tuple[str, ...]:
        """The operands that have to be dequantised for the node's kernel of integers; none where it has no such."""
        count = self.kernels.operands.get(node.op) if not node.domain else None
        return () if count is None else node.inputs[: count or None]

    def is_candidate(self, node: Node) -> bool:
        """Whether all the operands that have to be are made of dequantised values, and the result is quantised."""
        operands = self.operands(node)
        return bool(operands) and all(n in self.dequantised for n in operands) and self._result_fits(node)

    def is_integer(self, node: Node) -> bool:
        """Whether the backend computes the node in integers."""
        return self.is_candidate(node) and all(self.dequantised[n] for n in self.operands(node))

    def _result_fits(self, node: Node) -> bool:
        return node.op in self.kernels.unquantised or self.quantised(node.outputs[0])

    def quantised(self, name: str, *, any_scale: bool = False) -> bool:
        """Whether all that reads a value quantises it, behind an activation or what the backend moves it past.

        Args:
            name: of the value.
            any_scale: also with scales of an axis, which no kernel of integers takes.
        """
        while True:
            readers = self.graph.consumers.get(name, ())
            if not readers or name in self.outputs or any(r.domain for r in readers):
                return False
            if all(r.op == QUANTIZE and (any_scale or self.has_one_scale(r)) for r in readers):
                return True
            if len(readers) > 1 or readers[0].op not in self.kernels.activations | self.kernels.passed:
                return False
            name = readers[0].outputs[0]

    def members(self, node: Node) -> tuple[Node, ...]:
        """What runs as one kernel with a node that is computed in integers, the node first."""
        found = [node]
        for name in self.operands(node):
            while (maker := self.graph.producer[name]).op != DEQUANTIZE:
                name = maker.inputs[0]
            found.append(maker)
        name = node.outputs[0]
        while len(readers := self.graph.consumers.get(name, ())) == 1 and readers[0].op in self.kernels.activations:
            found.append(readers[0])
            name = readers[0].outputs[0]
        found += [r for r in readers if r.op == QUANTIZE]
        return tuple(found)

    def groups(self) -> tuple[tuple[Node, ...], ...]:
        """The nodes that run as one kernel of integers each."""
        return tuple(self.members(node) for node in self.graph.nodes if self.is_integer(node))

    @cached_property
    def reached(self) -> frozenset[str]:
        """What nodes of groups that are computed in integers make, and those that the backend passes on the way."""
        found = set[str]()
        for group in self.groups():
            found.update(o for node in group if node.op not in (QUANTIZE, DEQUANTIZE) for o in node.outputs)
            for name in self.operands(group[0]):
                while (maker := self.graph.producer[name]).op != DEQUANTIZE:
                    found.add(name)
                    name = maker.inputs[0]
        return frozenset(found)

    @cached_property
    def movable(self) -> frozenset[str]:
        """What nodes make that choose, move or pool dequantised elements outside of those groups."""
        return frozenset(self.dequantised) - self.reached - self._dequantising

    @cached_property
    def held(self) -> frozenset[str]:
        """What nodes make that rules leave as they are, but for the rewrites that reach kernels of integers.

        Those are: groups that are computed in integers already; what reads dequantised weights, which a rewrite would
        store as reals; and operators between DequantizeLinear and QuantizeLinear, whose last bit decides an integer.
        """
        held = (o for node in self.graph.nodes if self._is_held(node) for o in node.outputs if o)
        return self.reached | self.movable | frozenset(held)

    @cached_property
    def _dequantising(self) -> frozenset[str]:
        return frozenset(o for node in self.graph.nodes if node.op == DEQUANTIZE for o in node.outputs)

    def _is_held(self, node: Node) -> bool:
        constant = [n for n in node.inputs if self.is_constant(n)]
        if node.op in (QUANTIZE, DEQUANTIZE):
            return len(constant) == len(node.inputs)
        makers = [self.graph.producer[n] for n in node.inputs if n in self._dequantising]
        if any(self.is_constant(m.inputs[0]) for m in makers if m.inputs):
            return True
        return self.is_candidate(node) or (bool(makers) and self._between(node))

    def _between(self, node: Node) -> bool:
        """Whether all that reads the node's results quantises them."""
        return all(o and self.quantised(o, any_scale=True) for o in node.outputs)


def _only_moves(node: Node) -> bool:
    """Whether a node chooses, moves or averages elements, so that its equals give the same integers."""
    return node.op == "ReduceMean" or (node.op in REGISTRY and REGISTRY[node.op].family in _MOVING)
