"""Strategies of a model on a mesh: for each operator its partitioned forms, for each value its placements.

On a mesh of several axes a form is a form along the first axis, then one of each device's own application along the
next: what is proved for any sizes holds for the pieces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from superopt.errors import Unsupported
from superopt.ir.graph import Graph, Node
from superopt.ir.terms import Attributes
from superopt.ir.types import TensorType
from superopt.ops.operator_definition import Operator
from superopt.ops.shape_inference import CanonicalNode, computed_from_weights, infer
from superopt.placement.placements import PARTIAL, REPLICATED, Spec, local_type
from superopt.placement.statements import ProvedForm, proved_forms

__all__ = ["MeshForm", "Model", "Operation", "mesh_forms", "model_of"]

_Types = tuple[TensorType | None, ...]


@dataclass(frozen=True)
class MeshForm:
    """A form on a mesh: the attributes of a device's application, specs of operands (``None``: absent) and results.

    ``proofs`` has the form along each axis of the mesh.
    """

    attributes: Attributes
    operands: tuple[Spec | None, ...]
    results: tuple[Spec, ...]
    proofs: tuple[ProvedForm, ...]


@dataclass(frozen=True)
class Operation:
    """A node that runs: its operator (``None``: a barrier), canonical attributes, and names of operands and results."""

    node: Node
    operator: Operator | None
    attributes: Attributes
    args: tuple[str | None, ...]
    outputs: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of the operator."""
        return self.node.op if self.operator is None else self.operator.name


@dataclass(frozen=True)
class Model:
    """A graph at known sizes: the operations that its outputs need, in order, and the types of all values."""

    graph: Graph
    operations: tuple[Operation, ...]
    types: Mapping[str, TensorType]
    static: frozenset[str]  # weights, and what is computed of them alone

    @property
    def values(self) -> tuple[str, ...]:
        """Inputs, weights and results that operations read or make, in the order in which they are there."""
        used = {a for o in self.operations for a in o.args if a is not None}
        given = [v.name for v in self.graph.inputs if v.name in used]
        weights = [w for w in self.graph.constants if w in used]
        return (*given, *weights, *(v for o in self.operations for v in o.outputs if v))

    def operand_types(self, operation: Operation) -> _Types:
        """The types of the operands."""
        return tuple(None if a is None else self.types[a] for a in operation.args)

    def result_types(self, operation: Operation) -> tuple[TensorType, ...]:
        """The types of the results; those that nothing uses are as the operator makes them."""
        if operation.operator is None:
            return tuple(self.types[o] for o in operation.outputs)
        return operation.operator.apply(self.operand_types(operation), dict(operation.attributes))[1]


def model_of(graph: Graph, sizes: Mapping[str, int] | None = None) -> Model:
    """The operations of a graph that its outputs need, at known sizes.

    Raises:
        Unsupported: the size of a value is not known, or a value is no tensor.
    """
    typing = infer(graph, sizes)
    needed = {o.name for o in graph.outputs}
    kept: list[Operation] = []
    for node, how in zip(reversed(graph.nodes), reversed(typing.nodes), strict=True):
        if needed.isdisjoint(node.outputs):
            continue
        if isinstance(how, CanonicalNode):
            items = tuple(sorted(how.attributes.items()))
            kept.append(Operation(node, how.operator, items, how.args, node.outputs))
        else:
            args = (*(i or None for i in node.inputs), *node.captures)
            kept.append(Operation(node, None, (), args, node.outputs))
        needed.update(a for a in kept[-1].args if a is not None)
    operations = tuple(reversed(kept))
    types = {}
    for name in dict.fromkeys(n for o in operations for n in (*o.args, *o.outputs) if n):
        kind = typing.types.get(name)
        if not isinstance(kind, TensorType) or not kind.is_static:
            raise Unsupported(
                f"the size of {name!r} is not known", where=graph.name, hint="give the open sizes: --dim NAME=N"
            )
        types[name] = kind
    static = frozenset(graph.constants) | computed_from_weights(graph, typing)
    return Model(graph, operations, types, static)


def mesh_forms(model: Model, operation: Operation, mesh: Sequence[int]) -> tuple[MeshForm, ...]:
    """The forms of an operation; that without any split is the first, and the only one of a barrier."""
    kinds, whole = model.operand_types(operation), (REPLICATED,) * len(mesh)
    if operation.operator is None:
        given = tuple(None if a is None else whole for a in operation.args)
        return (MeshForm((), given, (whole,) * len(operation.outputs), ()),)
    fixed = tuple(a in model.static for a in operation.args)
    return _mesh_forms(operation.operator, operation.attributes, kinds, fixed, tuple(mesh))


@lru_cache(maxsize=1 << 14)
def _mesh_forms(
    operator: Operator, attributes: Attributes, types: _Types, fixed: tuple[bool, ...], mesh: tuple[int, ...]
) -> tuple[MeshForm, ...]:
    results = len(operator.apply(types, dict(attributes))[1])
    if not mesh:
        return (MeshForm(attributes, tuple(None if t is None else () for t in types), ((),) * results, ()),)
    found = []
    for proved in proved_forms(operator, attributes, types, mesh[0]) if mesh[0] > 1 else ():
        form = proved.form
        if _pointless(proved, fixed):
            continue
        pieces = tuple(
            None if t is None or o is None else local_type(t, (o,), mesh[:1])
            for t, o in zip(types, form.operands, strict=True)
        )
        for inner in _mesh_forms(operator, form.attributes, pieces, fixed, mesh[1:]):
            operands = tuple(
                None if o is None or i is None else (o, *i) for o, i in zip(form.operands, inner.operands, strict=True)
            )
            specs = tuple((r, *i) for r, i in zip(form.results, inner.results, strict=True))
            found.append(MeshForm(inner.attributes, operands, specs, (proved, *inner.proofs)))
    return tuple(found)


def _pointless(proved: ProvedForm, fixed: Sequence[bool]) -> bool:
    """Whether only weights are partial, so that one device does what all could do."""
    form = proved.form
    pairs = list(zip(form.operands, fixed, strict=True))
    working = any(o is not None and (o.kind == "split" or (o == PARTIAL and not f)) for o, f in pairs)
    return not working and any(o == PARTIAL for o, _ in pairs)
