"""Constants computed from weights: evaluated once, when they are read, each part by who has the say over it.

What the model itself computes is what the runtime makes of it, in the model's own types
(:mod:`superopt.program.constant_folding`). What rewrites computed of that is evaluated in float64 and rounded once; no
rounding error meets a jump there, because an e-graph calls constant only what can be evaluated so
(:meth:`superopt.egraph.egraph.EGraph.evaluable`).

Evaluation is lazy, like the reading of weights: a folded weight holds the steps that make it, so a model of gigabytes
is never in memory twice. What has been computed is kept in the scratch file or, where that has no room, if it is small.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from superopt.formats.tensors import AsideData, set_aside, shape_of
from superopt.ir.errors import InvalidModel, SuperoptError
from superopt.ir.graph import Graph, Node, Weight, WeightData, constant
from superopt.ir.poly import sym, symbols
from superopt.ir.provenance import PRECOMPUTED, RULES, VALUE
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.meaning import Call, IllTyped, Number, Read, Scalar, subexpressions
from superopt.ops.record import NotCovered
from superopt.program.program import Program, Step
from superopt.runtime.constant_execution import run_constants
from superopt.runtime.reference import at_dtype, evaluate_application

__all__ = [
    "FoldedData",
    "KEPT",
    "Settled",
    "SettledData",
    "bounded",
    "data_of",
    "described",
    "folded",
    "is_moving",
    "weights_behind",
]


# -- Constants of a program ----------------------------------------------------------------------------------------
#
# Constants that the model itself computes: settled by the runtime, in the model's own types, bit for bit.
#
# ``Floor(Mul(w, 10))`` of float32 weights is what float32 arithmetic makes of it, not what the reals say. So the search
# takes the values of such steps as they are: they are leaves that no rule looks behind. Steps that only put elements in
# other places (transposes, reshapes, slices, concatenations, written constants) compute nothing; behind those a rule
# may look.


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


# -- Folding -------------------------------------------------------------------------------------------------------


_BLOCK = 1 << 18  # elements that are computed at a time, in float64: what a core's cache holds
_TOLD = 64  # steps up to which a weight says how it was computed


@dataclass(frozen=True, eq=False)
class FoldedData:
    """Elements of a weight that is computed from others.

    Attributes:
        steps: what computes it, in order, over values named by sources and each other.
        sources: weights, and constants that the model computes, which the steps read.
        output: the value that is wanted.
    """

    steps: tuple[Step, ...]
    sources: Mapping[str, WeightData]
    types: Mapping[str, TensorType]
    output: str

    @cached_property
    def digest(self) -> str:
        """Equal for equal computations on equal weights."""
        return described(self.steps, self.types, {n: d.digest for n, d in self.sources.items()}, self.output)

    def described(self, same: Mapping[str, str]) -> str:
        """Equal for equal computations on weights that are called equal."""
        names = {
            n: d.described(same) if isinstance(d, SettledData | FoldedData) else same.get(n, n)
            for n, d in self.sources.items()
        }
        return described(self.steps, self.types, names, self.output)

    @cached_property
    def _kept(self) -> list[WeightData]:
        return []

    def numpy(self) -> np.ndarray:
        """Evaluate: reals in float64 throughout, rounded once at the end."""
        if self._kept:
            return self._kept[0].numpy()
        kind = self.types[self.output]
        result, done = np.empty(0), 0
        for block in self.blocks():
            with np.errstate(over="ignore"):
                rounded = at_dtype(block, kind.dtype)
            if not done:
                whole = rounded.size == kind.elements
                result = rounded if whole else np.empty(shape_of(kind), rounded.dtype)
            if result is not rounded:
                result[done : done + len(rounded)] = rounded
            done += len(rounded) if rounded.ndim else 1
        held = set_aside(result)
        if result.nbytes <= KEPT or isinstance(held, AsideData):
            self._kept.append(held)
        return held.numpy()

    def wide(self) -> np.ndarray:
        """Evaluate, without the rounding at the end."""
        return self._evaluated(self.steps, {}, (self.output,))[self.output]

    def blocks(self) -> Iterator[np.ndarray]:
        """What :meth:`wide` gives, rows after rows: the last steps, as far as each row of them is made of the same row
        of what they read, are taken for some rows at a time, so nothing as large is held in float64."""
        shape = self.types[self.output].shape or ()
        count, rows = self.types[self.output].elements, shape[0] if shape else 1
        if not isinstance(count, int) or not isinstance(rows, int) or count <= _BLOCK:
            yield self.wide()
            return
        late, cut = self._by_rows()
        early = [s for i, s in enumerate(self.steps) if i not in late]
        values = self._evaluated(early, {}, {a for i in late for a in self.steps[i].args if a} | {self.output})
        if not late:
            yield values[self.output]
            return
        steps = [self.steps[i] for i in sorted(late)]
        made = {o for s in steps for o in s.outputs}
        reads = {a: self._operand(a, values) for s in steps for a in s.args if a is not None and a not in made}
        height = max(1, rows * _BLOCK // count)
        for start in range(0, rows, height):
            given = {n: a[start : start + height] if n in cut else a for n, a in reads.items()}
            yield self._evaluated(steps, given, (self.output,))[self.output]

    def _by_rows(self) -> tuple[frozenset[int], frozenset[str]]:
        """Positions of the last steps that go by rows, and names of what they read by rows (the rest they read whole).

        A value is one or the other: who reads it whole needs it before.
        """
        whole: set[str] = set()
        cut: set[str] = {self.output}
        late: set[int] = set()
        for position in range(len(self.steps) - 1, -1, -1):
            step = self.steps[position]
            args = {a for a in step.args if a is not None}
            rows = _rows_read(step, self.types) if cut.intersection(step.outputs) - whole else None
            if rows is not None and not rows & whole and not (args - rows) & cut:
                late.add(position)
                cut |= rows
                whole |= args - rows
            else:
                whole |= args
        return frozenset(late), frozenset(cut)

    def _evaluated(
        self, steps: Sequence[Step], given: Mapping[str, np.ndarray], wanted: Collection[str]
    ) -> dict[str, np.ndarray]:
        """Values that steps make; what is given stands for sources, and what is not wanted goes after its last use."""
        values = dict(given)
        last = {a: i for i, s in enumerate(steps) for a in s.args if a is not None}
        for position, step in enumerate(steps):
            operands = [None if a is None else self._operand(a, values) for a in step.args]
            types = [None if a is None else self.types[a] for a in step.args]
            chosen = [i for i, o in enumerate(step.outputs) if o]
            results = evaluate_application(
                REGISTRY[step.op], dict(step.attributes), operands, types, cast=False, wanted=chosen
            )
            values.update((o, r) for o, r in zip(step.outputs, results, strict=False) if o and r is not None)
            for name in [n for n in values if last.get(n, len(steps)) <= position and n not in wanted]:
                del values[name]
        return values

    def _operand(self, name: str, values: Mapping[str, np.ndarray]) -> np.ndarray:
        if name in values:
            return values[name]
        return np.asarray(self.sources[name].numpy())


def _rows_read(step: Step, types: Mapping[str, TensorType]) -> frozenset[str] | None:
    """Names of the operands of which a step's row reads that row, where it reads the others without regard to the row;
    ``None`` where it does not go by rows. Without attributes, fewer rows of the operands make fewer of the result."""
    given = [None if a is None else types[a] for a in step.args]
    if step.attributes or len(step.outputs) != 1:
        return None
    meaning, _ = REGISTRY[step.op].apply(given, {})
    (comprehension,) = meaning.outputs
    if not comprehension.axes or len(comprehension.axes[0]) != 1:
        return None
    row, _ = comprehension.axes[0][0]
    found: dict[str, bool] = {}
    for scalar in subexpressions(comprehension.body):
        match scalar:
            case Read(operand, index):
                name = step.args[operand]
                first = bool(index) and index[0] == sym(row)
                rest = index[1:] if first else index
                if name is None or any(isinstance(i, Scalar) or row in symbols(i) for i in rest):
                    return None
                if found.setdefault(name, first) != first:
                    return None
            case Call() | Number():
                pass
            case _:  # sums read whole rows of rows, and conditions and sizes may tell rows apart
                return None
    return frozenset(n for n, first in found.items() if first)


def data_of(program: Program, name: str) -> FoldedData | SettledData | None:
    """The elements of a constant that steps compute; ``None`` where they cannot or should not be computed ahead.

    That is: a weight has no elements, a value on the way is much larger than all that it is made of, or the runtime
    cannot run a step of the model's own.
    """
    settled = program.settled
    if settled is not None and settled.computed(name):
        return settled.usable(name)
    needed, stack, sources = set[int](), [name], dict[str, WeightData]()
    while stack:
        here = stack.pop()
        position = program.maker.get(here)
        if settled is not None and settled.computed(here):
            found: WeightData | None = settled.usable(here)
        elif position is None:
            weight = program.graph.constants.get(here)
            found = None if weight is None else weight.data
        else:
            if position not in needed:
                needed.add(position)
                stack.extend(a for a in program.steps[position].args if a is not None)
            continue
        if found is None:
            return None
        sources[here] = found
    steps = tuple(program.steps[i] for i in sorted(needed))
    types = {n: program.types[n] for n in (*sources, *(o for s in steps for o in s.outputs if o))}
    whole = bounded(steps, types, (types[n] for n in sources))
    return FoldedData(steps, sources, types, name) if whole and all(map(program.is_constant, steps)) else None


def weights_behind(data: FoldedData | SettledData) -> frozenset[str]:
    """Names of the model's weights that the elements are computed from."""
    if isinstance(data, SettledData):
        return frozenset(data.sources)
    found: set[str] = set()
    for name, source in data.sources.items():
        found |= source.sources.keys() if isinstance(source, SettledData) else {name}
    return frozenset(found)


def folded(program: Program, name: str, data: FoldedData | SettledData) -> Weight:
    """A weight that is computed when it is read."""
    steps = _told(data)
    rules = sorted({r for s in steps for r in s.rules})
    metadata = {VALUE: _provenance(data, steps)} if len(steps) <= _TOLD else {}
    if rules:
        metadata[RULES] = ",".join(rules)
    return Weight(name, program.types[data.output], data, metadata={**metadata, PRECOMPUTED: "true"})


def _told(data: FoldedData | SettledData) -> tuple[Step, ...]:
    """All steps from weights of the model to the value, in order."""
    if isinstance(data, SettledData):
        return data.steps
    before = (s for d in data.sources.values() if isinstance(d, SettledData) for s in d.steps)
    return (*dict.fromkeys(before), *data.steps)


def _provenance(data: FoldedData | SettledData, steps: tuple[Step, ...]) -> str:
    """How a weight was computed, as JSON that ``superopt verify`` checks and proves with.

    Keys: ``steps``, each an operator, its operands' names, its attributes and its results' names, over names of
    weights; ``output``, the result that is the weight; and, where the model itself computes some of them, ``runtime``,
    results that were evaluated by ONNX Runtime, with all that leads to them, in their own element types and not in
    float64 (:func:`superopt.runtime.constant_execution.run_constants`).
    """
    told = [[s.op, list(s.args), dict(s.attributes), list(s.outputs)] for s in steps]
    settled = [data.output] if isinstance(data, SettledData) else [
        n for n, d in data.sources.items() if isinstance(d, SettledData)
    ]  # fmt: skip
    note: dict[str, object] = {"steps": told, "output": data.output}
    if settled:
        note["runtime"] = settled
    return json.dumps(note, default=str)
