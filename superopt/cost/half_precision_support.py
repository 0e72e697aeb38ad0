"""How a backend computes operators of half precision, as data.

ONNX Runtime has kernels of float16 on the processor for few operators. It computes every other one in float32 between
casts, and it does so before it looks for operators to fuse: what it takes apart, or reads through a cast, it fuses no
more. The price of such an operator is its price in float32, its own casts, and no fusion.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from superopt.cost.measurement_record import CostEstimate
from superopt.ir.graph import Graph
from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.ops.shape_inference import CanonicalNode

if TYPE_CHECKING:
    from superopt.cost.cost_model import CostModel

__all__ = ["ONNX_RUNTIME_HALF", "WIDE", "HalfCasts", "HalfPrecisionSupport"]

WIDE = DType.FLOAT32  # in which operators of half precision are computed


@dataclass(frozen=True)
class HalfPrecisionSupport:
    """What a backend does about operators of half precision.

    Attributes:
        types: the element types that it casts to float32 where it has no kernel. Of another it runs no such operator.
        kernels: the operators that it computes in the type itself.
        parts: the operators that it takes apart in the type, and what it runs for each.
        fused: pairs of producer and consumer that it fuses all the same.
    """

    types: frozenset[DType]
    kernels: frozenset[str]
    parts: Mapping[str, tuple[str, ...]]
    fused: frozenset[tuple[str, str]]

    def concerns(self, kinds: Iterable[TensorType | None]) -> bool:
        """Whether any value is of half precision that the backend casts."""
        return any(kind is not None and kind.dtype in self.types for kind in kinds)

    def casts(self, op: str, kind: TensorType | None) -> bool:
        """Whether the backend computes an operator in float32 between casts.

        Args:
            op: its name.
            kind: the type of an operand or result.
        """
        return kind is not None and kind.dtype in self.types and op not in self.kernels


# Read off ONNX Runtime 1.32's optimised graphs, opset 18, CPU (tests/cost/test_half_precision.py runs every row). What
# it takes apart depends on the opset: from 21 on it has fewer definitions of operators by others.
ONNX_RUNTIME_HALF = HalfPrecisionSupport(
    types=frozenset({DType.FLOAT16}),
    kernels=frozenset({
        "Attention", "Clip", "Concat", "Constant", "ConstantOfShape", "Expand", "Flatten", "Gather", "GatherElements",
        "GatherND", "Identity", "IsNaN", "LayerNormalization", "Max", "Min", "Mod", "RMSNormalization", "Reshape",
        "Round", "ScatterElements", "ScatterND", "Shape", "Sign", "Size", "Slice", "Split", "Squeeze", "Transpose",
        "Unsqueeze",
    }),
    parts={
        "Elu": ("Exp", "Sub", "Mul", "Less", "Where"),
        "LeakyRelu": ("Mul", "Less", "Where"),
        "LogSoftmax": ("ReduceMax", "Sub", "Exp", "ReduceSum", "Log", "Sub"),
        "Mish": ("Exp", "Add", "Log", "Tanh", "Mul"),
        "PRelu": ("Mul", "Less", "Where"),
        "ReduceL1": ("Abs", "ReduceSum"),
        "ReduceL2": ("Mul", "ReduceSum", "Sqrt"),
        "ReduceSumSquare": ("Mul", "ReduceSum"),
        "Relu": ("Max",),
        "Selu": ("Less", "Mul", "Exp", "Mul", "Sub", "Mul", "Where"),
        "Softmax": ("ReduceMax", "Sub", "Exp", "ReduceSum", "Div"),
        "Softplus": ("Exp", "Add", "Log"),
        "Softsign": ("Abs", "Add", "Div"),
    },
    fused=frozenset({("Conv", "Add")}),
)  # fmt: skip


class HalfCasts:
    """The nodes of a graph that the backend computes in float32 between casts, and what they cost.

    Args:
        graph: the model.
        applied: the nodes with a meaning that an inference runs, by position.
        types: of its values, at fixed sizes.
        static: the values that are the same on every input: their casts are made once.
        half: what the backend does.

    Attributes:
        places: positions of the nodes.
    """

    def __init__(
        self,
        graph: Graph,
        applied: Mapping[int, CanonicalNode],
        types: Mapping[str, TensorType],
        static: Collection[str],
        half: HalfPrecisionSupport,
    ) -> None:
        self.applied, self.types, self.half = applied, types, half
        self.places: set[int] = set()
        nodes = graph.nodes
        for i, known in applied.items():
            kinds = (types.get(n) for n in (*known.args, *nodes[i].outputs) if n)
            if nodes[i].op != "Cast" and any(half.casts(nodes[i].op, k) for k in kinds):
                self.places.add(i)
        wide = {o for i in self.places for o in nodes[i].outputs}
        read = {n for i, node in enumerate(nodes) if i not in self.places for n in node.reads}
        read |= {v.name for v in graph.outputs}
        self._casts: dict[int, list[str]] = {}  # by node: what is cast before or behind it
        done: set[str] = set()
        for i in sorted(self.places):
            before = [n for n in applied[i].args if n and n not in static and n not in wide and n not in done]
            done.update(before)
            found = [*before, *(o for o in nodes[i].outputs if o in read)]
            self._casts[i] = [n for n in found if n in types and types[n].dtype in half.types]

    def cost(
        self, prices: CostModel, place: int, args: Sequence[TensorType | None], outs: Sequence[TensorType],
        fixed: Sequence[bool], after: str | None,
    ) -> CostEstimate:  # fmt: skip
        """What a node takes in float32, its casts included.

        Args:
            prices: the cost model.
            place: the node's position.
            args: types of its operands.
            outs: types of its results.
            fixed: which operands are weights.
            after: the operator that it is fused with.
        """
        known = self.applied[place]
        op, wide = known.operator.name, [None if t is None else self._wide(t) for t in args]
        results = [self._wide(t) for t in outs]
        parts = self.half.parts.get(op, ())
        shape = next((t for t in wide if t is not None), None)
        if parts and shape is not None:
            found = [self._part(prices, part, shape) for part in parts]
            own = replace(found[0], us=sum(e.us for e in found), sigma=max(e.sigma for e in found))
        else:
            own = prices.application(op, known.attributes, wide, results, constant_args=fixed, after=after)
        casts = [self._cast(prices, self.types[n]) for n in self._casts[place]]
        return replace(own, us=own.us + sum(e.us for e in casts), source=own.source if not casts else casts[0].source)

    def _wide(self, kind: TensorType) -> TensorType:
        return replace(kind, dtype=WIDE) if kind.dtype in self.half.types else kind

    def _cast(self, prices: CostModel, kind: TensorType) -> CostEstimate:
        return prices.application("Cast", {"to": str(WIDE)}, [kind], [self._wide(kind)], constant_args=(False,))

    def _part(self, prices: CostModel, part: str, kind: TensorType) -> CostEstimate:
        """What an operator takes that another is taken apart into: on one operand, beside constants of one element."""
        axis = len(kind.shape or ()) - 1
        attributes: dict[str, AttributeValue] = {"axes": (axis,), "keepdims": 1} if part.startswith("Reduce") else {}
        scalar = TensorType(kind.dtype, ())
        operands = {"Where": [replace(kind, dtype=DType.BOOL), kind, scalar]}.get(part, [kind])
        for types in (operands, [kind, scalar]):
            try:
                _, made = REGISTRY[part].apply(types, attributes)
            except (IllTypedOperator, TypeError):
                continue
            fixed = [t == scalar and kind != scalar for t in types]
            return prices.application(part, attributes, types, made, constant_args=fixed)
        raise AssertionError(f"{part} takes other operands")
