"""Values of a model and of its result, evaluated from draws: what nodes mean, and writes over known positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from superopt.ir.errors import NotEquivalent
from superopt.ir.graph import Node
from superopt.ir.types import TensorType
from superopt.ops.infer import Applied
from superopt.ops.meaning import IllTyped
from superopt.runtime.evaluate import FLOAT64, Array, evaluate
from superopt.verifier.exact.algebra import NeedsOrder, PrimeField
from superopt.verifier.weights.draws import Claims, Draws, Side, fixed_shape

__all__ = ["Evaluation"]

_LARGEST = 1 << 28  # bytes of weights as elements of a field that a side holds at once


@dataclass(frozen=True)
class Evaluation:
    """Evaluates values of either side.

    Attributes:
        before: the model.
        claims: what is said of its values.
        same: its values that are claimed to be others.
    """

    before: Side
    claims: Mapping[str, Claims]
    same: Mapping[str, str]

    def evaluated(
        self, side: Side, wanted: Sequence[str], given: Mapping[str, Array], draws: Draws
    ) -> dict[str, Array]:
        """Values from those given; inputs of the model on the way are drawn."""
        found: dict[str, Array] = dict(given)
        stack = list(wanted)
        while stack:
            name = stack[-1]
            if name in found:
                stack.pop()
                continue
            weight = side.weight(name)
            if weight is not None:
                found[name] = _elements(side, name, weight, draws)
                continue
            if side.node(name) is None or (side is self.before and name not in wanted and self.is_determined(name)):
                found[name] = draws.value(name)
                continue
            if side is self.before and name not in wanted and name in self.same:
                if self.same[name] in found:
                    found[name] = found[self.same[name]]
                else:
                    stack.append(self.same[name])
                continue
            node = side.node(name) if side.overwrites(name) else None
            how = None if node is not None else side.applied(name)
            read = node.inputs if node is not None else how.args if how is not None else ()
            missing = [a for a in read if a is not None and a not in found]
            if missing:
                stack += missing
            elif node is not None:
                found[name] = _overwritten(node, [found[a] for a in read if a is not None], draws.algebra)
            elif how is not None:
                found.update(_applied(side, name, how, found, draws))
        return {n: found[n] for n in wanted}

    def static_values_between(self, name: str, sources: set[str]) -> list[str]:
        """Values without anything open that stand between others and one that is made of them."""
        found: list[str] = []
        stack, seen = [name], {name, *sources}
        while stack:
            node = self.before.node(stack.pop())
            for read in node.reads if node is not None else ():
                read = self.same.get(read, read)
                if read not in seen and not self.before.constant(read):
                    seen.add(read)
                    (found if self.is_determined(read) else stack).append(read)
        return found

    def is_determined(self, name: str) -> bool:
        """Whether the claims about a value leave nothing of it open."""
        shape = self.before.kind(name).shape or ()
        return any(len(set(u.indices)) == shape[u.axis] for u in self.claims.get(name, Claims()).uniform)


def _elements(side: Side, name: str, weight: np.ndarray, draws: Draws) -> Array:
    """Elements of a weight as numbers of the algebra; those of a field are made once for all lengths of a place."""
    if draws.algebra is None or 8 * weight.size > _LARGEST - sum(a.nbytes for a in side.residues.values()):
        return draws.number(weight, side.kind(name))
    if name not in side.residues:
        side.residues[name] = draws.number(weight, side.kind(name))
    return side.residues[name]


def _applied(side: Side, name: str, how: Applied, found: Mapping[str, Array], draws: Draws) -> Mapping[str, Array]:
    """The outputs of a node from its operands."""
    operands = [None if a is None else found[a] for a in how.args]
    types = [None if a is None else TensorType(side.kind(a).dtype, tuple(map(int, found[a].shape))) for a in how.args]
    try:
        meaning, made = how.operator.apply(types, side.attributes(how))
    except IllTyped as error:
        raise NotEquivalent(f"what makes {name!r} does not fit the slices that are kept: {error}") from None
    operands += [None] * (len(how.operator.inputs) - len(operands))
    outputs = side.graph.nodes[side.nodes[name]].outputs
    algebra = draws.algebra or FLOAT64
    return {
        o: np.array(evaluate(c, operands, algebra, {})).reshape(fixed_shape(t))
        for o, c, t in zip(outputs, meaning.outputs, made, strict=False)
        if o
    }


def _overwritten(node: Node, operands: Sequence[Array], algebra: PrimeField | None) -> Array:
    """A tensor with what is written at its places, which have to be different: ONNX has no order of writes."""
    if algebra is not None:
        raise NeedsOrder("positions from the end")
    data, indices, updates = operands
    where = np.asarray(indices, dtype=np.int64)
    if node.op == "ScatterND":
        places = [where[..., axis] for axis in range(where.shape[-1])]
        shape = (*where.shape[:-1], *data.shape[where.shape[-1] :])
    else:
        places, shape = list(np.indices(where.shape)), where.shape
        axis = node.attributes.get("axis", 0)
        places[axis if isinstance(axis, int) else data.ndim] = where
    made, times = np.array(data, dtype=np.float64), np.zeros(data.shape[: len(places)], dtype=np.int64)
    if shape != updates.shape or len(places) > data.ndim:
        raise NotEquivalent(f"what is written into {node.outputs[0]!r} has another shape")
    try:
        np.add.at(times, tuple(places), 1)
    except IndexError as error:
        raise NotEquivalent(f"what {node.outputs[0]!r} is written to is not there: {error}") from None
    if (times > 1).any():
        raise NotEquivalent(f"a place of {node.outputs[0]!r} is written to twice")
    made[tuple(places)] = updates
    return made
