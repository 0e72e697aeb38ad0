"""Gathers and scatters at known positions, rewritten to Slice, Concat, Transpose and Reshape.

An operator that reads computed positions which are all constant is a table: the source of each element. Its own
meaning, evaluated on element numbers, gives the table; axes that pass through unchanged are left out, so they may have
any size. Equal steps become a Slice, a split or permuted axis a Reshape and a Transpose, and other tables are cut into
such parts along an axis. Runtimes copy element by element where positions are data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod

import numpy as np

from superopt.ir.graph import Node
from superopt.ir.size_polynomial import Dim, sym, symbols
from superopt.ir.terms import AttributeValue
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.operator_semantics import ElementRead, Index, ScalarExpression, TensorComprehension, subexpressions
from superopt.passes.weights.slice_analysis import SliceAnalysis
from superopt.passes.weights.slice_removal_rewrite import writable
from superopt.program.graph_program import ProgramStep
from superopt.regions.replay import FreshNames
from superopt.runtime.comprehension_evaluation import FLOAT64, evaluate

__all__ = ["ReplacementSteps", "ElementSourceTable", "ConstantScatters", "moved_of"]


# -- Tables of scatters --------------------------------------------------------------------------------------------
#
# ``ScatterND`` and ``ScatterElements`` without a reduction have no record, because the order of two writes to one
# position is up to the runtime. Where all positions are constant and distinct, there is no such choice: the result is a
# table of elements from the updates and from the data.


_LARGEST_TABLE = (
    1 << 22
)  # elements of a table; 32 MiB of it. A relative position bias is added to a million at once (MViTv2)
_LONGEST = 64  # writes one into the other; each has a table, and more parts than are joined are not to be had of more


@dataclass(frozen=True)
class ElementSourceTable:
    """Which element stands where.

    Attributes:
        at: their numbers by position; 1 long on the last ``free`` axes, which all tensors have whole.
        sources: tensors, the sizes by which their elements are numbered, and the number of the first.
        free: how many axes no position is about.
        behind: positions of the steps whose writes are in it, but for the last.
    """

    at: np.ndarray
    sources: tuple[tuple[str, tuple[int, ...], int], ...]
    free: int
    behind: frozenset[int] = frozenset()

    @property
    def count(self) -> int:
        """How many elements have numbers."""
        return sum(prod(sizes) for _, sizes, _ in self.sources)


@dataclass
class ConstantScatters:
    """The steps of a program that write to known positions."""

    values: SliceAnalysis
    found: dict[int, ElementSourceTable | None] = field(default_factory=dict)

    def made(self, position: int) -> ElementSourceTable | None:
        """What a step makes; ``None`` where it does not write, or not to positions that are known and different."""
        for at in reversed([position, *self._into(position)]):
            if at not in self.found:
                self.found[at] = self._element_table(at)
        return self.found[position]

    def behind(self, position: int) -> frozenset[int]:
        """The steps that are not needed where a step is written as what it makes."""
        made = self.found.get(position)
        return frozenset() if made is None else made.behind

    def _into(self, position: int) -> Iterator[int]:
        """The writes that a write is made into, the latest first, each read by the next one alone."""
        program = self.values.program
        for _ in range(_LONGEST):
            node = _node(program.steps[position].node)
            maker = None if node is None else program.maker.get(node.inputs[0])
            if node is None or maker is None or _node(program.steps[maker].node) is None:
                return
            if program.readers.get(node.inputs[0]) != (position,) or node.inputs[0] in program.outputs:
                return
            yield maker
            position = maker

    def _element_table(self, position: int) -> ElementSourceTable | None:
        program = self.values.program
        node = _node(program.steps[position].node) if program.steps[position].op == "" else None
        kinds = [program.types.get(n) for n in node.inputs] if node is not None else []
        if node is None or len(kinds) != 3 or any(k is None or k.shape is None for k in kinds):
            return None
        data, updates = program.types[node.inputs[0]], program.types[node.inputs[2]]
        if not data.dtype.is_float or updates.dtype != data.dtype or program.types.get(node.outputs[0]) != data:
            return None
        indices = self.values.array(node.inputs[1]) if node.inputs[1] in program.constant else None
        if indices is None or not indices.size or indices.dtype.kind != "i" or not indices.ndim:
            return None
        places = _of_scatter_nd(indices) if node.op == "ScatterND" else _of_scatter_elements(indices, node)
        shape = data.shape or ()
        if places is None or len(places) > len(shape):
            return None
        free = len(shape) - len(places)
        if (updates.shape or ()) != (*places[0].shape, *shape[len(places) :]):
            return None
        known = tuple(d for d in shape[: len(places)] if isinstance(d, int))
        if len(known) < len(places) or not 0 < prod(known) <= _LARGEST_TABLE:
            return None
        return self._over(position, node, places, known, free)

    def _over(
        self, position: int, node: Node, places: tuple[np.ndarray, ...], known: tuple[int, ...], free: int
    ) -> ElementSourceTable | None:
        """The table of what is written into, with the numbers of what is written put into it."""
        within = all(bool(((p >= -n) & (p < n)).all()) for p, n in zip(places, known, strict=True))
        if not within:
            return None
        wrapped = tuple(p + n * (p < 0) for p, n in zip(places, known, strict=True))
        flat = np.ravel_multi_index(wrapped, known)
        hit = np.zeros(prod(known), dtype=bool)
        hit[flat] = True
        if int(hit.sum()) < flat.size:
            return None
        ones = (1,) * free
        into = self.found.get(self.values.program.maker.get(node.inputs[0], -1))
        inner = next(iter(self._into(position)), None)
        if into is None or inner is None or into.free != free:
            into = ElementSourceTable(
                np.arange(prod(known)).reshape(*known, *ones), ((node.inputs[0], (*known, *ones), 0),), free
            )
            behind = frozenset[int]()
        else:
            behind = into.behind | {inner}
        sizes = (*places[0].shape, *ones)
        if into.count + prod(sizes) > 2 * _LARGEST_TABLE:
            return None
        at = into.at.reshape(-1).copy()
        at[flat.reshape(-1)] = into.count + np.arange(prod(sizes))
        sources = (*into.sources, (node.inputs[2], sizes, into.count))
        return ElementSourceTable(at.reshape(into.at.shape), sources, free, behind)


def _node(node: Node | None) -> Node | None:
    """A node that writes, the last write to a place being what stands there."""
    if node is None or node.op not in ("ScatterND", "ScatterElements") or node.domain not in ("", "ai.onnx"):
        return None
    return node if node.attributes.get("reduction", b"none") in (b"none", "none") else None


def _of_scatter_nd(indices: np.ndarray) -> tuple[np.ndarray, ...] | None:
    """Of every write, the positions on the first axes."""
    return tuple(np.moveaxis(indices, -1, 0)) if indices.shape[-1] else None


def _of_scatter_elements(indices: np.ndarray, node: Node) -> tuple[np.ndarray, ...] | None:
    """Of every write, the positions on all axes: its own, but for one."""
    axis = node.attributes.get("axis", 0)
    if not isinstance(axis, int) or not -indices.ndim <= axis < indices.ndim:
        return None
    grids: list[np.ndarray] = list(np.indices(indices.shape))
    grids[axis] = indices
    return tuple(grids)


# -- Known positions -----------------------------------------------------------------------------------------------


_LARGEST = 1 << 20  # elements of a table, and of what it is about
_PARTS = 32  # slices that one table may become: a kernel each


@dataclass(frozen=True)
class ReplacementSteps:
    """Steps in the place of one.

    Attributes:
        position: of the step that they replace.
        steps: the new ones, the last of which makes what it made.
        types: of the values between them.
        kind: equal for steps that are alike, but for which positions they are about.
        without: positions of steps that nothing needs any more, barriers among them.
    """

    position: int
    steps: tuple[ProgramStep, ...]
    types: Mapping[str, TensorType]
    kind: object
    without: frozenset[int] = frozenset()


@dataclass(frozen=True)
class _Form:
    """An operator of whole axes, applied to others; without an operator, one of the tensors that are read."""

    op: str
    parts: tuple[_Form, ...] = ()
    attributes: tuple[tuple[str, AttributeValue], ...] = ()
    source: int = 0

    @property
    def cost(self) -> int:
        """How many operators it has."""
        return bool(self.op) + sum(p.cost for p in self.parts)


@dataclass(frozen=True)
class _Table:
    """Which element stands where.

    Attributes:
        at: numbers of elements by position; 1 long on axes that pass through.
        whole: the sizes of axes that pass through, ``None`` for the others.
    """

    at: np.ndarray
    whole: tuple[Dim | None, ...]

    @property
    def shape(self) -> tuple[Dim, ...]:
        return tuple(n if w is None else w for n, w in zip(self.at.shape, self.whole, strict=True))


@dataclass(frozen=True)
class _Source:
    """What a table reads.

    Attributes:
        name: the value.
        shape: its sizes.
        passed: its axes that pass through, and the table's that they are.
        sizes: those of its axes as its elements are numbered; 1 on axes that pass through.
        first: the number of its first element; those of one source are behind those of another.
    """

    name: str
    shape: tuple[Dim, ...]
    passed: Mapping[int, int]
    sizes: tuple[int, ...]
    first: int = 0


def moved_of(values: SliceAnalysis) -> Iterator[ReplacementSteps]:
    """Steps that read or write known positions, each with what it is in forms of whole axes.

    Of writes one into the other, only the last is given: what it is needs none of the others.

    Args:
        values: of the program.
    """
    names, writes = FreshNames(values.program), ConstantScatters(values)
    within: set[int] = set()
    for position in reversed(values.program.running):
        if position in within:
            continue
        found = _written_over(writes, position) or _table(values, position)
        form = None if found is None else _form(*found)
        made = None if found is None or form is None else _written(values, position, found[1], form, names)
        if made is not None:
            within |= writes.behind(position)
            yield replace(made, without=writes.behind(position))


def _written_over(writes: ConstantScatters, position: int) -> tuple[_Table, tuple[_Source, ...]] | None:
    """What a step writes, and what is left of what it writes into; ``None`` where it is no such step."""
    made = writes.made(position)
    if made is None:
        return None
    program = writes.values.program
    shape = program.types[program.steps[position].outputs[0]].shape or ()
    whole = {at: shape[at] for at in range(len(shape) - made.free, len(shape)) if shape[at] != 1}
    sources: list[_Source] = []
    for name, sizes, first in made.sources:
        own = program.types[name].shape or ()
        passed = {at - len(shape) + len(own): at for at in whole}  # the last axes of each
        sources.append(_Source(name, own, passed, sizes, first))
    return _Table(made.at, tuple(whole.get(at) for at in range(len(shape)))), tuple(sources)


def _table(values: SliceAnalysis, position: int) -> tuple[_Table, tuple[_Source, ...]] | None:
    """What a step reads; ``None`` where it computes something, positions are not known, or it is too much."""
    program, step, meaning = values.program, values.program.steps[position], values.meaning(position)
    if meaning is None or len(meaning.outputs) != 1:
        return None
    (output,) = meaning.outputs
    read = output.body
    if (
        not isinstance(read, ElementRead)
        or read.outside is not None
        or not any(isinstance(i, ScalarExpression) for i in read.index)
    ):
        return None
    name = step.args[read.operand]
    running = [a for a in step.args if a is not None and a not in program.constant]
    if name is None or running != [name] or not program.types[name].dtype.is_float:
        return None
    shape = program.types[name].shape or ()
    passed = dict(_passed(output, read, shape))
    known = tuple(1 if a in passed else d for a, d in enumerate(shape))
    sizes = tuple(d for d in known if isinstance(d, int))
    axes = tuple(
        tuple((v, 1) for v, _ in axis) if at in passed.values() else axis for at, axis in enumerate(output.axes)
    )
    extents = [e for axis in axes for _, e in axis if isinstance(e, int)]
    if len(sizes) < len(known) or len(extents) < sum(map(len, axes)) or max(prod(sizes), prod(extents)) > _LARGEST:
        return None
    operands: list[np.ndarray | None] = []
    for place in range(len(REGISTRY[step.op].inputs)):
        other = step.args[place] if place < len(step.args) else None
        array = None if other is None or place == read.operand else values.array(other)
        if array is None and other is not None and place != read.operand:
            return None
        operands.append(None if array is None else array.astype(np.float64))
    operands[read.operand] = np.arange(prod(sizes), dtype=np.float64).reshape(sizes)
    made = evaluate(replace(output, axes=axes), operands, FLOAT64, {})
    if not made.size or not np.isfinite(made).all():
        return None
    whole = {at: shape[axis] for axis, at in passed.items()}
    table = _Table(made.astype(np.int64), tuple(whole.get(at) for at in range(len(axes))))
    return table, (_Source(name, shape, passed, sizes),)


def _passed(output: TensorComprehension, read: ElementRead, shape: Sequence[Dim]) -> Iterator[tuple[int, int]]:
    """Axes of what is read that are one axis of the result each, from end to end, and decide no position."""
    for at, axis in enumerate(output.axes):
        places = [a for a, i in enumerate(read.index) if len(axis) == 1 and axis[0][0] in _symbols(i)]
        if len(places) == 1 and read.index[places[0]] == sym(axis[0][0]) and shape[places[0]] == axis[0][1] != 1:
            yield places[0], at


def _symbols(index: Index) -> frozenset[str]:
    if not isinstance(index, ScalarExpression):
        return symbols(index)
    inner = (i for s in subexpressions(index) if isinstance(s, ElementRead) for i in s.index)
    return frozenset(s for i in inner for s in _symbols(i))


def _form(table: _Table, sources: Sequence[_Source], depth: int = 3) -> _Form | None:
    """A table as forms of whole axes, of few that are looked at the one with fewest operators."""
    behind = _behind(sources, table.at)
    if (behind == behind.flat[0]).all():
        number = int(behind.flat[0])
        source = sources[number]
        plain = _plain(replace(table, at=table.at - source.first), source, number)
        if plain is not None or not depth:
            return plain
        ways = _forms(table, sources, depth - 1)
    else:
        ways = _split_table(table, behind, sources, depth)
    few = [w for w in ways if w is not None and w.cost <= _PARTS + depth]
    return min(few, key=lambda w: w.cost, default=None)


def _behind(sources: Sequence[_Source], at: np.ndarray) -> np.ndarray:
    """Which source each element is of."""
    return np.searchsorted([s.first for s in sources], at, side="right") - 1


def _split_table(table: _Table, behind: np.ndarray, sources: Sequence[_Source], depth: int) -> Iterator[_Form | None]:
    """A table of several sources, cut along one axis wherever they change on it."""
    for axis in range(behind.ndim):
        rows = np.moveaxis(behind, axis, 0).reshape(behind.shape[axis], -1)
        cuts = (0, *((rows[1:] != rows[:-1]).any(1).nonzero()[0] + 1).tolist(), len(rows))
        if 2 < len(cuts) <= _PARTS + 1:
            yield _joined(table, sources, axis, cuts, depth)


def _joined(table: _Table, sources: Sequence[_Source], axis: int, cuts: Sequence[int], depth: int) -> _Form | None:
    """Parts of a table one behind the other; ``None`` where one has no form."""
    parts: list[_Form] = []
    for a, b in pairwise(cuts):
        part = _form(_Table(np.take(table.at, range(a, b), axis), table.whole), sources, depth)
        if part is None:
            return None
        parts.append(part)
    return _Form("Concat", tuple(parts), (("axis", axis),))


def _forms(table: _Table, sources: Sequence[_Source], depth: int) -> Iterator[_Form | None]:
    rank = table.at.ndim
    for axis in range(rank):
        for cuts in _cuts(table, axis):
            yield _joined(table, sources, axis, cuts, depth)
    if depth == 0:
        return
    open_axes = [a for a in range(rank) if table.whole[a] is None]
    for axis, following in pairwise(open_axes):
        if following == axis + 1 and table.at.shape[axis] > 1 and table.at.shape[following] > 1:
            sizes = table.at.shape
            merged = table.at.reshape(*sizes[:axis], -1, *sizes[following + 1 :])
            inner = _form(_Table(merged, (*table.whole[:axis], *table.whole[following:])), sources, depth)
            yield None if inner is None else _Form("Reshape", (inner,), (("shape", table.shape),))
            perm = tuple(following if a == axis else axis if a == following else a for a in range(rank))
            turned = _Table(table.at.transpose(perm), tuple(table.whole[a] for a in perm))
            flat = turned.at.reshape(*turned.at.shape[:axis], -1, *turned.at.shape[following + 1 :])
            inner = _form(_Table(flat, (*table.whole[:axis], *table.whole[following:])), sources, depth - 1)
            if inner is not None:
                split = _Form("Reshape", (inner,), (("shape", turned.shape),))
                yield _Form("Transpose", (split,), (("perm", perm),))


def _cuts(table: _Table, axis: int) -> Iterator[tuple[int, ...]]:
    """Where a table may be cut along an axis: where its steps change, else everywhere."""
    rows = np.moveaxis(table.at, axis, 0).reshape(table.at.shape[axis], -1)
    if table.whole[axis] is not None or len(rows) < 2:
        return
    steps, cuts = np.diff(rows, axis=0), [0]
    for at in range(1, len(rows)):
        if at > cuts[-1] + 1 and not np.array_equal(steps[at - 1], steps[cuts[-1]]):
            cuts.append(at)
    found = (*cuts, len(rows))
    if len(found) > 2 and len(found) <= _PARTS + 1:
        yield found
    elif len(found) == 2 and len(rows) <= _PARTS:
        yield tuple(range(len(rows) + 1))


def _plain(table: _Table, source: _Source, number: int) -> _Form | None:
    """A table that is what is read, cut at even steps, with axes split and turned; ``None`` if it is not."""
    tensor = _Form("", source=number)
    if not source.passed and np.array_equal(table.at.ravel(), np.arange(prod(source.sizes))):
        return tensor if source.shape == table.shape else _Form("Reshape", (tensor,), (("shape", table.shape),))
    cut: list[tuple[int, int, int, int]] = []  # starts, ends, axes, steps
    order: list[int] = []  # the table's axes as the tensor has them
    for axis, at in enumerate(np.unravel_index(table.at, source.sizes)):
        if axis in source.passed:
            order.append(source.passed[axis])
            continue
        run = _run(at)
        if run is None:
            return None
        start, step, axes = run
        length = prod(table.at.shape[a] for a in axes)
        if (start, step, length) != (0, 1, source.sizes[axis]):
            end = start + step * length
            cut.append((start, end if end >= 0 else -1, axis, step))
        order += axes
    left = [a for a, n in enumerate(table.at.shape) if n > 1 or table.whole[a] is not None]
    if sorted(order) != left:
        return None
    form, now = tensor, list(source.shape)
    if cut:
        names = ("starts", "ends", "axes", "steps")
        attributes = sorted((n, tuple(c[k] for c in cut)) for k, n in enumerate(names))
        form = _Form("Slice", (form,), tuple(attributes))
        for start, end, axis, step in cut:
            now[axis] = len(range(start, end if end >= 0 or step > 0 else -1, step))
    if order != left:
        apart = tuple(table.shape[a] for a in order)
        if apart != tuple(now):
            form = _Form("Reshape", (form,), (("shape", apart),))
        form = _Form("Transpose", (form,), (("perm", tuple(order.index(a) for a in left)),))
        now = [table.shape[a] for a in left]
    return form if tuple(now) == table.shape else _Form("Reshape", (form,), (("shape", table.shape),))


def _run(at: np.ndarray) -> tuple[int, int, list[int]] | None:
    """Positions on one axis as even steps over some axes of the table, the slowest first: start, step and those."""
    start = int(at.flat[0])
    strides = {a: int(np.take(at, 1, a).flat[0]) - start for a in range(at.ndim) if at.shape[a] > 1}
    total = np.full(at.shape, start)
    for axis, stride in strides.items():
        total = total + stride * np.arange(at.shape[axis]).reshape([-1 if a == axis else 1 for a in range(at.ndim)])
    if not np.array_equal(total, at):
        return None
    axes = sorted((a for a, s in strides.items() if s), key=lambda a: -abs(strides[a]))
    if any(strides[a] != strides[b] * at.shape[b] for a, b in pairwise(axes)):
        return None
    return start, strides[axes[-1]] if axes else 1, axes


def _written(
    values: SliceAnalysis, position: int, sources: Sequence[_Source], form: _Form, names: FreshNames
) -> ReplacementSteps | None:
    """The steps of a form; ``None`` where the model's opset has them not."""
    program, step = values.program, values.program.steps[position]
    steps: list[ProgramStep] = []
    types: dict[str, TensorType] = {}

    def made(one: _Form) -> str | None:
        if not one.op:
            return sources[one.source].name
        args = [made(p) for p in one.parts]
        given = [None if a is None else types.get(a) or program.types[a] for a in args]
        if any(g is None for g in given):
            return None
        kind = REGISTRY[one.op].apply(given, dict(one.attributes))[1][0]
        name = names.fresh(f"{step.outputs[0]}_{one.op.lower()}")
        new = ProgramStep(one.op, tuple(args), one.attributes, (name,), None, f"{step.name}_{one.op.lower()}")
        if not writable(program, new, one.attributes, given):
            return None
        steps.append(new)
        types[name] = kind
        return name

    last = made(form if form.op else _Form("Identity", (form,)))
    wanted = program.types[step.outputs[0]]
    if last is None or types[last] != wanted:
        return None
    steps[-1] = replace(steps[-1], outputs=step.outputs)
    del types[last]
    kinds = tuple(program.types.get(a) for a in step.reads)
    return ReplacementSteps(position, tuple(steps), types, (step.op, kinds, tuple(s.op for s in steps)))
