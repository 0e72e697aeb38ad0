"""The compositions: written out by kind in the files beside this one, and generated from the operators' records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from lab.pairs.generated import generated
from superopt.ir.graph import Graph, Node, Value, constant
from superopt.ir.size_polynomial import value_at
from superopt.ir.terms import Term
from superopt.ir.types import DType, TensorType
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.rules.library import parse_file
from superopt.rules.rule import Rule
from superopt.rules.typing import variable_types
from superopt.runtime import reference
from superopt.verifier.exact.runtime_cross_check import side_graph

__all__ = ["DATA", "RewriteCase", "cases"]

DATA = frozenset("xyzpcd") | {"y1"}  # names of inputs; all others are weights
POSITIVE = frozenset("pvs") | {"v1"}  # of those, and of weights, whose elements are positive
OPSETS = (21, 23)
_FOLDER = Path(__file__).parent
_SEED = 55


@dataclass(frozen=True)
class RewriteCase:
    """A composition and the equal that a person finds.

    Attributes:
        rule: the two as the sides of a rule at fixed sizes; its family is the kind.
        behind: an operator of ONNX that reads either and of which only the order of elements matters; "": none.
    """

    rule: Rule
    behind: str = ""

    @property
    def name(self) -> str:
        return self.rule.id

    @property
    def kind(self) -> str:
        return self.rule.family

    @property
    def given(self) -> Graph:
        """The composition as a model."""
        return self._graph(self.rule.lhs)

    @property
    def answer(self) -> Graph:
        """The equal as a model."""
        return self._graph(self.rule.rhs)

    def difference(self) -> float:
        """How far the two are apart in float64, relative to the largest element."""
        feeds = {n: a for n, a in self._elements.items() if n in DATA}
        left, right = (next(iter(reference.run(g, feeds).values())) for g in (self.given, self.answer))
        if left.shape != right.shape:
            return float("inf")
        a, b = left.astype(np.float64), right.astype(np.float64)
        return float(np.abs(a - b).max() / max(1.0, np.abs(a).max()))

    @cached_property
    def _types(self) -> Mapping[str, TensorType]:
        return variable_types(self.rule)

    @cached_property
    def _elements(self) -> Mapping[str, np.ndarray]:
        """Elements of all operands, of a seed for each name."""
        drawn: dict[str, np.ndarray] = {}
        for number, (name, kind) in enumerate(sorted(self._types.items())):
            rng = np.random.default_rng([_SEED, number])
            shape = tuple(value_at(d, {}) for d in kind.shape or ())
            below = self.rule.tensors[name].below
            if below is not None:
                drawn[name] = rng.integers(0, value_at(below, {}), shape)
            elif kind.dtype == DType.BOOL:
                drawn[name] = rng.integers(0, 2, shape).astype(np.bool_)
            elif name in POSITIVE:
                drawn[name] = rng.uniform(0.5, 1.5, shape).astype(np.float32)
            else:
                drawn[name] = np.asarray(rng.normal(0, 1 if name in DATA else 0.5, shape), np.float32)
        return drawn

    @cached_property
    def _opset(self) -> int:
        """The first of the opsets in which both sides can be written."""
        for opset in OPSETS:
            try:
                for side in (self.rule.lhs, self.rule.rhs):
                    side_graph(side, self._types, opset)
            except UnsupportedNodeForm:
                continue
            return opset
        raise UnsupportedNodeForm(f"{self.name}: not at opset {OPSETS}")

    def _graph(self, side: tuple[Term, ...]) -> Graph:
        graph = side_graph(side, self._types, self._opset)
        weights = tuple(constant(v.name, self._elements[v.name]) for v in graph.inputs if v.name not in DATA)
        read = {n for node in graph.nodes for n in node.reads}
        graph = replace(
            graph,
            weights=(*graph.weights, *(w for w in weights if w.name in read)),
            inputs=tuple(v for v in graph.inputs if v.name in DATA),
        )
        return graph.checked() if not self.behind else _with_behind(graph, self.behind)


def _with_behind(graph: Graph, operator: str) -> Graph:
    """The graph with an operator along the last axis behind its only output."""
    (output,) = graph.outputs
    shape = output.type.shape if isinstance(output.type, TensorType) else None
    assert shape is not None
    node = Node("behind", operator, (output.name,), ("chosen",), {"axis": len(shape) - 1, "keepdims": 0})
    chosen = Value("chosen", TensorType(DType.INT64, shape[:-1]))
    return replace(graph, nodes=(*graph.nodes, node), outputs=(chosen,)).checked()


def cases() -> list[RewriteCase]:
    """All of them, by kind."""
    return [*_written(), *(RewriteCase(rule, behind) for rule, behind in generated())]


def _written() -> Iterator[RewriteCase]:
    for file in sorted(_FOLDER.glob("*.toml")):
        yield from map(RewriteCase, parse_file(file))
