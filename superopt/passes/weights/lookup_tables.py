"""Values that each element of an integer tensor of few values decides: rows of a table, which one Gather reads.

``OneHot(i) · W + b`` and what follows it row by row is a function of ``i`` alone. So is what follows ``Gather(E, i)``.
A *function of an index* is found from the meanings: every element that it reads of another such function is of the same
index element, and what else it reads is constant. The runtime computes the rows for all values of the index, in the
model's own types.

The values of an index are known from its element type, from Clip, from the axis that a Gather reads, or from the depth
of a OneHot, which has one more row for all that lies outside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from superopt.ir.errors import SuperoptError
from superopt.ir.graph import ArrayWeightData, Node, Weight, constant
from superopt.ir.size_polynomial import Dim, sym, symbols
from superopt.ir.types import DType, TensorType
from superopt.ops.operator_semantics import (
    ElementRead,
    ScalarConditional,
    ScalarExpression,
    ScalarReduction,
    SizeExpression,
    TensorComprehension,
    subexpressions,
)
from superopt.passes.weights.index_value_range import INDEX_TYPES, IndexValueRange, indices_of
from superopt.passes.weights.slice_analysis import SliceAnalysis
from superopt.passes.weights.slice_removal_rewrite import writable
from superopt.program.graph_program import GraphProgram, ProgramStep
from superopt.regions.replay import FreshNames
from superopt.runtime.node_execution import run_constants

__all__ = ["POLICY", "LookupTableRewrite", "LookupTablePolicy", "tabulations_of"]


@dataclass(frozen=True)
class LookupTablePolicy:
    """Bounds of tables.

    Attributes:
        growth: bytes by which tables may exceed the weights that they replace, as a share of all weights. A larger
            file has to pay in a measurement, and none is made here.
        free: bytes that count for nothing beside a model's nodes.
        values: of an index, at most; vocabularies of language models have a quarter of a million.
        runs: of the model's part that makes the rows, at most; each fills as many rows as the index has elements.
        cuts: tables of one index that are tried, each without the largest of the one before.
        held: bytes of one value for all values of the index, at most: rows of OneHot are as long as they are many.
        elements: of a row, at least; a single element is computed as fast as it is read.
        distinct: share of the rows that may be distinct for a second, short table to say which one a value reads.
    """

    growth: float = 0.01
    free: int = 4096
    values: int = 1 << 18
    runs: int = 64
    cuts: int = 4
    held: int = 1 << 28
    elements: int = 4
    distinct: float = 0.75


POLICY = LookupTablePolicy()


@dataclass(frozen=True)
class LookupTableRewrite:
    """Values of a program as rows of tables.

    Attributes:
        index: the value whose elements choose the rows.
        values: value → its table.
        low, high: the index's values that have a row.
        steps: what makes them in the place of the program's steps, in order.
        weights: the tables.
        types: of new values.
    """

    index: str
    values: Mapping[str, str]
    low: int
    high: int
    steps: tuple[ProgramStep, ...]
    weights: tuple[Weight, ...]
    types: Mapping[str, TensorType]


def tabulations_of(values: SliceAnalysis, policy: LookupTablePolicy = POLICY) -> Iterator[LookupTableRewrite]:
    """What can be read from tables, an index at a time; the largest parts of an index first."""
    names = FreshNames(values.program)
    for index in indices_of(values.program):
        if 1 < index.count <= policy.values:
            yield from _tables(values, index, names, policy)


# -- Functions of an index -----------------------------------------------------------------------------------------


def _functions(values: SliceAnalysis, index: IndexValueRange, without: AbstractSet[str]) -> dict[str, int]:
    """Values of which each element is decided by the element of the index at the same place: value → the first of the
    axes that are the index's."""
    program = values.program
    rank = len(program.types[index.name].shape or ())
    found = {index.name: 0}
    for position in program.running:
        step, meaning = program.steps[position], values.meaning(position)
        if meaning is None or found.keys().isdisjoint(step.args) or len(meaning.outputs) != 1:
            continue
        output = step.outputs[0]
        if any(a not in found and a not in program.constant for a in step.args if a) or output in without:
            continue
        if index.name in step.args and index.readers is not None and output not in index.readers:
            continue
        axes = len(meaning.outputs[0].axes) - rank + 1
        first = next((p for p in range(max(axes, 0)) if _by_index(step, meaning.outputs[0], p, rank, found)), None)
        if first is not None and _row_bytes(program.types[output], first, rank) is not None:
            found[output] = first
    return found


def _by_index(
    step: ProgramStep, output: TensorComprehension, first: int, rank: int, known: Mapping[str, int]
) -> bool:  # fmt: skip
    """Whether elements of the output read functions of the index at the same place of the index alone."""
    own = output.axes[first : first + rank]
    if any(len(axis) > 1 for axis in own):
        return False
    place: tuple[Dim, ...] = tuple(sym(axis[0][0]) if axis else 0 for axis in own)
    variables = {axis[0][0] for axis in own if axis}
    inner = {v for axis in output.axes for v, _ in axis} - variables
    inner |= {s.variable for s in subexpressions(output.body) if isinstance(s, ScalarReduction)}
    for scalar in subexpressions(output.body):
        if isinstance(scalar, SizeExpression) and not symbols(scalar.size) <= inner:
            return False
        if isinstance(scalar, ScalarConditional) and any(variables & symbols(c.size) for c in scalar.conditions):
            return False
        if not isinstance(scalar, ElementRead):
            continue
        name = step.args[scalar.operand] or ""
        start = known.get(name)
        rest = scalar.index if start is None else scalar.index[:start] + scalar.index[start + rank :]
        if start is not None and scalar.index[start : start + rank] != place:
            return False
        if any(variables & symbols(i) for i in rest if not isinstance(i, ScalarExpression)):
            return False
    return True


def _row_bytes(kind: TensorType, first: int, rank: int) -> int | None:
    """Bytes of one row; ``None`` where it has an open size."""
    elements = _elements(kind, first, rank)
    return elements * kind.dtype.bits // 8 if elements and kind.dtype.bits >= 8 else None


def _elements(kind: TensorType, first: int, rank: int) -> int:
    """Elements of one row; 0 where it has an open size."""
    shape = kind.shape or ()
    rest = [d for d in shape[:first] + shape[first + rank :] if isinstance(d, int)]
    return prod(rest) if len(rest) == len(shape) - rank else 0


# -- Tables --------------------------------------------------------------------------------------------------------


def _tables(
    values: SliceAnalysis, index: IndexValueRange, names: FreshNames, policy: LookupTablePolicy
) -> Iterator[LookupTableRewrite]:
    program = values.program
    rank = len(program.types[index.name].shape or ())
    without: set[str] = set()
    for _ in range(policy.cuts):
        functions = _functions(values, index, without)
        wanted = [
            n for n in functions
            if n != index.name and _elements(program.types[n], functions[n], rank) >= policy.elements
            and _is_read_outside(program, n, functions)
        ]  # fmt: skip
        made = {n: program.maker[n] for n in functions if n != index.name}
        if any(index.count * (_row_bytes(program.types[n], functions[n], rank) or 0) > policy.held for n in made):
            return
        if all(program.steps[made[n]].op == "Gather" for n in wanted):
            return
        sizes = {n: index.rows * (_row_bytes(program.types[n], functions[n], rank) or 0) for n in wanted}
        gone = _bytes_read_only_by(program, set(made.values()))
        most = gone + policy.growth * program.graph.weight_bytes + policy.free
        if sum(sizes.values()) <= most:
            found = _tabulation(program, index, {n: functions[n] for n in wanted}, names, policy)
            if found is not None and sum(w.type.nbytes or 0 for w in found.weights) <= most:
                yield found
                return
        without.add(max(sizes, key=lambda n: sizes[n]))


def _is_read_outside(program: GraphProgram, name: str, functions: Mapping[str, int]) -> bool:
    readers = (program.steps[p] for p in program.readers.get(name, ()))
    return name in program.required_names or any(o not in functions for s in readers for o in s.outputs if o)


def _bytes_read_only_by(program: GraphProgram, positions: AbstractSet[int]) -> int:
    """Bytes of the weights that nothing but these steps needs."""
    behind = _behind(program, positions)
    return sum(
        program.graph.constants[n].type.nbytes or 0
        for n in behind & program.graph.constants.keys()
        if all(p in positions or set(program.steps[p].outputs) <= behind for p in program.readers.get(n, ()))
    )


def _behind(program: GraphProgram, positions: AbstractSet[int]) -> set[str]:
    """The constants that steps read, and those that these are computed from."""
    stack = [a for p in positions for a in program.steps[p].reads if a in program.constant]
    found: set[str] = set()
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack += [] if name not in program.maker else program.steps[program.maker[name]].reads
    return found


def _tabulation(
    program: GraphProgram,
    index: IndexValueRange,
    wanted: Mapping[str, int],
    names: FreshNames,
    policy: LookupTablePolicy,
) -> LookupTableRewrite | None:
    try:
        rows = _rows(program, index, wanted, policy)
    except SuperoptError:
        return None
    if rows is None:
        return None
    return _TableWriter(program, index, names, policy).tabulation(rows, wanted)


def _rows(
    program: GraphProgram, index: IndexValueRange, wanted: Mapping[str, int], policy: LookupTablePolicy
) -> dict[str, np.ndarray] | None:
    """The rows of values, by the index from its lowest value on, along the first of its axes."""
    nodes = _nodes_between(program, index.name, wanted)
    if nodes is None:
        return None
    kind = program.types[index.name]
    sizes = [d for d in kind.shape or () if isinstance(d, int)]
    height = max(1, -(-index.count // max(prod(sizes), 1)))
    given: list[int] = []
    for size in kind.shape or ():
        given.append(size if isinstance(size, int) else height)
        height = height if isinstance(size, int) else 1
    reads = {n for node in nodes for n in node.reads}
    weights = [w for n, w in program.graph.constants.items() if n in reads]
    if any(w.data is None for w in weights) or not prod(given) or index.count > policy.runs * prod(given):
        return None
    types = {n: TensorType(program.types[n].dtype, None) for n in wanted}
    parts: dict[str, list[np.ndarray]] = {n: [] for n in wanted}
    for start in range(index.low, index.high + 1, prod(given)):
        numbers = np.minimum(np.arange(start, start + prod(given)), index.high)
        held = numbers.astype(kind.dtype.numpy).reshape(given)
        fed = Weight(index.name, TensorType(kind.dtype, tuple(given)), ArrayWeightData(held))
        for name, array in run_constants(program.graph, nodes, [*weights, fed], types).items():
            first = wanted[name]
            shape = (*array.shape[:first], prod(given), *array.shape[first + len(given) :])
            parts[name].append(array.reshape(shape))
    return {n: np.concatenate(p, axis=wanted[n]).take(range(index.count), wanted[n]) for n, p in parts.items()}


def _nodes_between(program: GraphProgram, index: str, wanted: Mapping[str, int]) -> list[Node] | None:
    """The model's nodes from an index and weights to values, in order."""
    positions: set[int] = set()
    stack = list(wanted)
    while stack:
        name = stack.pop()
        if name == index or name in program.graph.constants:
            continue
        position = program.maker.get(name)
        if position is None or program.steps[position].op == "" or program.steps[position].node is None:
            return None
        if position not in positions:
            positions.add(position)
            stack += program.steps[position].reads
    return [n for p in sorted(positions) if (n := program.steps[p].node) is not None]


class _TableWriter:
    """Writes what reads tables: the index within its values, as a row's number, and a Gather for each table."""

    def __init__(
        self, program: GraphProgram, index: IndexValueRange, names: FreshNames, policy: LookupTablePolicy
    ) -> None:
        self.program, self.index, self.names, self.policy = program, index, names, policy
        self.steps: list[ProgramStep] = []
        self.weights: list[Weight] = []
        self.types: dict[str, TensorType] = {}

    def tabulation(self, rows: Mapping[str, np.ndarray], wanted: Mapping[str, int]) -> LookupTableRewrite | None:
        number = self.row_number(rows, wanted)
        tables: dict[str, str] = {}
        for name, first in wanted.items():
            table = self.weight(f"{name}_table", self.compact(rows[name], first))
            tables[name] = table
            attributes = (("axis", first),)
            self.steps.append(ProgramStep("Gather", (table, number), attributes, (name,), None, f"{name}_of_table"))
        for step in self.steps:
            types = [self.types.get(a or "") or self.program.types[a or ""] for a in step.args]
            if not writable(self.program, step, step.attributes, types):
                return None
        return LookupTableRewrite(
            self.index.name, tables, self.index.low, self.index.high, tuple(self.steps), tuple(self.weights), self.types
        )

    def row_number(self, rows: Mapping[str, np.ndarray], wanted: Mapping[str, int]) -> str:
        """The value that says which row of the tables an element of the index reads."""
        index, kind = self.index, self.program.types[self.index.name]
        number = index.name
        if kind.dtype not in INDEX_TYPES:
            number = self.step("Cast", (number,), (("to", DType.INT32.value),), replace(kind, dtype=DType.INT32))
        if index.open:
            number = self.step(
                "Clip", (number,), (("max", index.high), ("min", index.low)), self.types.get(number, kind)
            )
        alike = [np.moveaxis(rows[n], first, 0).reshape(index.count, -1) for n, first in wanted.items()]
        whole = np.concatenate([np.ascontiguousarray(a).view(np.uint8).reshape(index.count, -1) for a in alike], axis=1)
        _, self.first, self.row = np.unique(whole, axis=0, return_index=True, return_inverse=True)
        self.first, self.row = _in_order(self.first, self.row.reshape(-1))
        if len(self.first) > self.policy.distinct * index.count:
            self.first = np.roll(np.arange(index.count), index.low)  # a negative index counts from the end
            return number
        dtype = self.types.get(number, kind).dtype
        table = self.weight(f"{index.name}_row", np.roll(self.row, index.low).astype(dtype.numpy))
        return self.step("Gather", (table, number), (("axis", 0),), replace(kind, dtype=dtype))

    def compact(self, rows: np.ndarray, first: int) -> np.ndarray:
        return np.ascontiguousarray(rows.take(self.first, axis=first))

    def weight(self, name: str, array: np.ndarray) -> str:
        made = constant(self.names.fresh(name), array)
        self.weights.append(made)
        self.types[made.name] = made.type
        return made.name

    def step(
        self, op: str, args: Sequence[str], attributes: tuple[tuple[str, int | str], ...], kind: TensorType
    ) -> str:
        name = self.names.fresh(f"{self.index.name}_{op.lower()}")
        self.types[name] = kind
        self.steps.append(ProgramStep(op, tuple(args), attributes, (name,), None, name))
        return name


def _in_order(first: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct rows in the order in which they first occur, and the number of each in that order."""
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[row]
