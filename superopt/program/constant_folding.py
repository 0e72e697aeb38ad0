"""Constant folding, lazily: a folded weight holds the steps that compute it until its elements are read.

ONNX Runtime evaluates what the model itself computes, in the model's own types (:mod:`superopt.program.graph_program`).
What rewrites computed is evaluated in float64 and rounded once. No rounding error crosses a discontinuity there: an
e-graph marks only those classes constant that float64 can evaluate (:meth:`superopt.egraph.egraph.EGraph.evaluable`).

A model of gigabytes is never in memory twice. Computed elements go to the scratch file, or stay in memory where they
are small and the file has no room.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from superopt.formats.weight_data import ScratchWeightData, set_aside, shape_of
from superopt.ir.graph import PRECOMPUTED, RULES, VALUE, Weight, WeightData
from superopt.ir.size_polynomial import sym, symbols
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.operator_semantics import ElementRead, ScalarCall, ScalarConstant, ScalarExpression, subexpressions
from superopt.program.graph_program import (
    CONSTANTS,
    ComputedWeightData,
    GraphProgram,
    ProgramStep,
    computation_text,
    sizes_bounded,
)
from superopt.runtime.reference import at_dtype, evaluate_application

__all__ = ["FoldedWeightData", "data_of", "folded_weight", "weights_behind"]

_BLOCK = 1 << 18  # elements that are computed at a time, in float64: what a core's cache holds
_TOLD = 64  # steps up to which a weight says how it was computed
_NOTED = (
    1024  # characters that this takes in any case, as a proof of the weight needs them; else no more than its elements
)


@dataclass(frozen=True, eq=False)
class FoldedWeightData:
    """Elements of a weight that is computed from others.

    Attributes:
        steps: what computes it, in order, over values named by sources and each other.
        sources: weights, and constants that the model computes, which the steps read.
        output: the value that is wanted.
    """

    steps: tuple[ProgramStep, ...]
    sources: Mapping[str, WeightData]
    types: Mapping[str, TensorType]
    output: str

    @cached_property
    def digest(self) -> str:
        """Equal for equal computations on equal weights."""
        return computation_text(self.steps, self.types, {n: d.digest for n, d in self.sources.items()}, self.output)

    def described(self, same: Mapping[str, str]) -> str:
        """Equal for equal computations on weights that are called equal."""
        names = {
            n: d.described(same) if isinstance(d, ComputedWeightData | FoldedWeightData) else same.get(n, n)
            for n, d in self.sources.items()
        }
        return computation_text(self.steps, self.types, names, self.output)

    @cached_property
    def _cached_values(self) -> list[WeightData]:
        return []

    def numpy(self) -> np.ndarray:
        """Evaluate: reals in float64 throughout, rounded once at the end."""
        if self._cached_values:
            return self._cached_values[0].numpy()
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
        if result.nbytes <= CONSTANTS.kept_bytes or isinstance(held, ScratchWeightData):
            self._cached_values.append(held)
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
        self, steps: Sequence[ProgramStep], given: Mapping[str, np.ndarray], wanted: Collection[str]
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


def _rows_read(step: ProgramStep, types: Mapping[str, TensorType]) -> frozenset[str] | None:
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
            case ElementRead(operand, index):
                name = step.args[operand]
                first = bool(index) and index[0] == sym(row)
                rest = index[1:] if first else index
                if name is None or any(isinstance(i, ScalarExpression) or row in symbols(i) for i in rest):
                    return None
                if found.setdefault(name, first) != first:
                    return None
            case ScalarCall() | ScalarConstant():
                pass
            case _:  # sums read whole rows of rows, and conditions and sizes may tell rows apart
                return None
    return frozenset(n for n, first in found.items() if first)


def data_of(program: GraphProgram, name: str) -> FoldedWeightData | ComputedWeightData | None:
    """The elements of a constant that steps compute; ``None`` where they cannot or should not be computed ahead.

    That is: a weight has no elements, a value on the way is much larger than all that it is made of, or the runtime
    cannot run a step of the model's own.
    """
    settled = program.computed_constants
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
    whole = sizes_bounded(steps, types, (types[n] for n in sources))
    return FoldedWeightData(steps, sources, types, name) if whole and all(map(program.is_constant, steps)) else None


def weights_behind(data: FoldedWeightData | ComputedWeightData) -> frozenset[str]:
    """Names of the model's weights that the elements are computed from."""
    if isinstance(data, ComputedWeightData):
        return frozenset(data.sources)
    found: set[str] = set()
    for name, source in data.sources.items():
        found |= source.sources.keys() if isinstance(source, ComputedWeightData) else {name}
    return frozenset(found)


def folded_weight(program: GraphProgram, name: str, data: FoldedWeightData | ComputedWeightData) -> Weight:
    """A weight that is computed when it is read."""
    steps = _steps_from_weights(data)
    rules = sorted({r for s in steps for r in s.rules})
    size = program.types[data.output].nbytes
    note = _provenance(data, steps) if len(steps) <= _TOLD and weights_behind(data) else ""
    metadata = {VALUE: note} if note and (size is None or len(note) <= max(size, _NOTED)) else {}
    if rules:
        metadata[RULES] = ",".join(rules)
    return Weight(name, program.types[data.output], data, metadata={**metadata, PRECOMPUTED: "true"})


def _steps_from_weights(data: FoldedWeightData | ComputedWeightData) -> tuple[ProgramStep, ...]:
    """All steps from weights of the model to the value, in order."""
    if isinstance(data, ComputedWeightData):
        return data.steps
    before = (s for d in data.sources.values() if isinstance(d, ComputedWeightData) for s in d.steps)
    return (*dict.fromkeys(before), *data.steps)


def _provenance(data: FoldedWeightData | ComputedWeightData, steps: tuple[ProgramStep, ...]) -> str:
    """How a weight was computed, as JSON that ``superopt verify`` checks and proves with.

    Keys: ``steps``, each an operator, its operands' names, its attributes and its results' names, over names of
    weights; ``output``, the result that is the weight; and, where the model itself computes some of them, ``runtime``,
    results that were evaluated by ONNX Runtime, with all that leads to them, in their own element types and not in
    float64 (:func:`superopt.runtime.node_execution.run_constants`).
    """
    told = [[s.op, list(s.args), dict(s.attributes), list(s.outputs)] for s in steps]
    settled = [data.output] if isinstance(data, ComputedWeightData) else [
        n for n, d in data.sources.items() if isinstance(d, ComputedWeightData)
    ]  # fmt: skip
    note: dict[str, object] = {"steps": told, "output": data.output}
    if settled:
        note["runtime"] = settled
    return json.dumps(note, default=str, separators=(",", ":"))
