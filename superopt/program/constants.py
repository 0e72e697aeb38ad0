"""Constants that the model itself computes: settled by the runtime, in the model's own types, bit for bit.

``Floor(Mul(w, 10))`` of float32 weights is what float32 arithmetic makes of it, not what the reals say. So the search
takes the values of such steps as they are: they are leaves that no rule looks behind. Steps that only put elements in
other places (transposes, reshapes, slices, concatenations, written constants) compute nothing; behind those a rule may
look.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from superopt.ir.errors import InvalidModel, SuperoptError
from superopt.ir.graph import Graph, Node, Weight, constant
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.meaning import IllTyped
from superopt.ops.record import NotCovered
from superopt.program.step import Step
from superopt.runtime.constant_execution import run_constants

__all__ = ["KEPT", "Settled", "SettledData", "bounded", "described", "is_moving"]

KEPT = 32 << 20  # bytes up to which an evaluated weight stays in memory
_ROOM = 64 << 20  # bytes that any constant on the way may have, like the growth that a search allows itself …
_MOST_STEPS = (
    20_000  # that make one constant, or all that are looked at first: the runtime loads as many in a second or two
)
_TIMES = 4  # … or this many times what it is made of: a transpose, a cast and a padding are within it


def is_moving(step: Step, types: Mapping[str, TensorType]) -> bool:
    """Whether a step only puts elements in other places."""
    given = [None if a is None else types[a] for a in step.args]
    try:
        return REGISTRY[step.op].moves(given, dict(step.attributes))
    except (IllTyped, KeyError):
        return False


def bounded(steps: Sequence[Step], types: Mapping[str, TensorType], sources: Iterable[TensorType]) -> bool:
    """Whether no value on the way is much larger than what it is all made of: a tower of Tile and ReduceSum is not."""
    limit = max(_ROOM, _TIMES * sum(t.nbytes or 0 for t in sources))
    sizes = [types[o].nbytes for s in steps for o in s.outputs if o and o in types]
    return all(size is not None and size <= limit for size in sizes)


def described(steps: Sequence[Step], types: Mapping[str, TensorType], sources: Mapping[str, str], output: str) -> str:
    """Equal for equal computations on sources that are called equal."""
    key: dict[str, str] = {n: f"{types[n]} {called}" for n, called in sources.items()}
    for step in steps:
        args = ",".join("-" if a is None else key[a] for a in step.args)
        text = hashlib.sha256(f"{step.op}({args}){step.attributes!r}".encode()).hexdigest()
        key.update((o, f"{text}.{i}") for i, o in enumerate(step.outputs) if o)
    return key[output]


@dataclass(frozen=True, eq=False)
class SettledData:
    """Elements of a constant that the model computes, as ONNX Runtime computes it.

    Attributes:
        steps: what computes it, in order; all are the model's own.
        sources: weights that the steps read in canonical form.
    """

    settled: Settled
    steps: tuple[Step, ...]
    sources: Mapping[str, Weight]
    output: str

    @cached_property
    def digest(self) -> str:
        """Equal for equal computations on equal weights."""
        return self.described({n: w.data.digest for n, w in self.sources.items() if w.data is not None})

    def described(self, same: Mapping[str, str]) -> str:
        """Equal for equal computations on weights that are called equal."""
        names = {n: same.get(n, n) for n in self.sources}
        return "runtime " + described(self.steps, self.settled.types, names, self.output)

    def numpy(self) -> np.ndarray:
        """Run the steps.

        Raises:
            SuperoptError: ONNX Runtime cannot.
        """
        return self.settled.evaluated(self.output, self.steps)


class Settled:
    """The constants that a model computes from its weights, by name. Evaluated when they are asked for."""

    def __init__(self, graph: Graph, steps: Iterable[Step], types: Mapping[str, TensorType]) -> None:
        """``steps``: the model's own, whose results depend on weights alone, in order."""
        self.graph, self.types = graph, types
        self._steps = tuple(steps)
        self._place = {o: i for i, s in enumerate(self._steps) for o in s.outputs if o}
        self._moving: dict[str, bool] = {}
        self._kept: dict[str, np.ndarray] = {}
        self._failed: dict[str, SuperoptError] = {}
        self._room = 8 * KEPT  # bytes that are kept of all constants together

    def __contains__(self, name: str) -> bool:
        return name in self._place

    def computed(self, name: str) -> bool:
        """Whether it is such a constant and a step that is more than a movement makes it."""
        if name not in self._place:
            return False
        if name not in self._moving:
            self._moving[name] = is_moving(self._steps[self._place[name]], self.types)
        return not self._moving[name]

    def data(self, name: str) -> SettledData | None:
        """Where its elements come from; ``None`` where a weight has none or what is on the way is too large."""
        needed, stack = set[int](), [name]
        while stack:
            here = stack.pop()
            position = self._place.get(here)
            if position is None:
                weight = self.graph.constants.get(here)
                if weight is None or weight.data is None:
                    return None
            elif position not in needed:
                needed.add(position)
                if len(needed) > _MOST_STEPS:
                    return None
                stack.extend(self._reads(self._steps[position]))
        steps = tuple(self._steps[i] for i in sorted(needed))
        constants = self.graph.constants
        args = sorted({a for s in steps for a in s.args if a is not None and a in constants})
        sources = {a: constants[a] for a in args}
        if not steps or not bounded(steps, self.types, (w.type for w in sources.values())):
            return None
        return SettledData(self, steps, sources, name)

    def usable(self, name: str) -> SettledData | None:
        """Where its elements come from, once the runtime has shown that it can compute them."""
        data = self.data(name)
        if data is None or name in self._failed:
            return None
        try:
            data.numpy()
        except SuperoptError:
            return None
        return data

    def small(self, names: Iterable[str], most: int, together: int) -> dict[str, np.ndarray]:
        """The elements of constants that are quickly had, by name, all evaluated in one run if possible.

        Args:
            names: of constants.
            most: bytes of all that one is made of, at most.
            together: the same for all of them.
        """
        chosen: dict[str, SettledData] = {}
        steps: dict[int, None] = {}
        walked = 0
        for name in dict.fromkeys(names):
            data = self.data(name) if walked <= _MOST_STEPS else None
            if data is None:
                continue
            walked += len(data.steps)
            sizes = [w.type.nbytes or 0 for w in data.sources.values()]
            sizes += [self.types[o].nbytes or 0 for s in data.steps for o in s.outputs if o]
            if sum(sizes) <= min(most, together):
                together -= sum(sizes)
                chosen[name] = data
                steps.update((self._place[o], None) for s in data.steps for o in s.outputs if o)
        if chosen:
            try:
                self._run(list(chosen), [self._steps[i] for i in sorted(steps)])
            except SuperoptError:
                chosen = {n: d for n, d in chosen.items() if self.usable(n) is not None}
        return {n: d.numpy() for n, d in chosen.items()}

    def evaluated(self, name: str, steps: Sequence[Step]) -> np.ndarray:
        """The elements of a constant that these steps compute.

        Raises:
            SuperoptError: ONNX Runtime cannot.
        """
        if name in self._failed:
            raise self._failed[name]
        if name in self._kept:
            return self._kept[name]
        try:
            return self._run([name], steps)[name]
        except SuperoptError as error:
            self._failed[name] = error
            raise

    def _reads(self, step: Step) -> Iterable[str]:
        """What the step's node reads; in canonical form where the node reads more than constants (a shape, say)."""
        known = step.node is not None and all(self._is_known(n) for n in step.node.reads)
        return step.node.reads if known and step.node else [a for a in step.args if a is not None]

    def _is_known(self, name: str) -> bool:
        if name in self._place:
            return True
        weight = self.graph.constants.get(name)
        return weight is not None and weight.data is not None

    def _run(self, wanted: Sequence[str], steps: Sequence[Step]) -> dict[str, np.ndarray]:
        nodes: list[Node] = []
        weights: dict[str, Weight] = {}
        for step in steps:
            if step.node is not None and all(self._is_known(n) for n in step.node.reads):
                nodes.append(step.node)
            else:
                node, literals = self._written(step)
                nodes.append(node)
                weights.update((w.name, w) for w in literals)
        constants = self.graph.constants
        weights |= {n: constants[n] for node in nodes for n in node.reads if n in constants}
        types = {n: self.types[n] for n in wanted}
        found = run_constants(self.graph, nodes, tuple(weights.values()), types)
        for name, kind in types.items():
            array = found[name]
            if array.dtype != kind.dtype.numpy or array.shape != kind.shape:
                raise InvalidModel(f"the runtime makes {name} {array.dtype}{list(array.shape)}, not {kind}")
            if array.nbytes <= KEPT and self._room >= array.nbytes:
                self._kept[name] = array
                self._room -= array.nbytes
        return found

    def _written(self, step: Step) -> tuple[Node, list[Weight]]:
        """The step as a node over constants alone."""
        record = REGISTRY[step.op]
        types = [None if a is None else self.types[a] for a in step.args]
        try:
            form = record.write(dict(step.attributes), types, self.graph.opset.get(record.domain, 1))
        except NotCovered as error:
            raise InvalidModel(f"{step.name} cannot be written by itself: {error}") from error
        names = {place: f"{step.outputs[0]}/literal {place}" for place in form.literals}
        literals = [constant(names[place], array) for place, array in form.literals.items()]
        node = Node(step.name, record.name, form.names(step.args, names), step.outputs, dict(form.attributes),
                    record.domain)  # fmt: skip
        return node, literals
