"""A program without removed slices: weights gathered, attributes adapted, constant terms added.

No list of operators is used. The axes of the weights are those that the meaning indexes by the variables that lose
positions. Attributes are tried until the operator's record gives the shorter results from the shorter operands by a
meaning that is equal but for its extents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from superopt.ir.graph import Weight, constant
from superopt.ir.size_polynomial import Dim, SizePolynomial, sym, symbols
from superopt.ir.terms import Attributes, AttributeValue
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.ops.operator_semantics import (
    ElementRead,
    IllTypedOperator,
    ScalarCall,
    ScalarConditional,
    ScalarConstant,
    ScalarExpression,
    ScalarReduction,
)
from superopt.passes.weights.slice_analysis import SliceAnalysis
from superopt.passes.weights.slice_removal import IndexVariableAxes, RemovedSumTerms, SliceRemoval
from superopt.program.graph_program import GraphProgram, ProgramStep
from superopt.regions.replay import FreshNames

__all__ = ["SliceRemovalSteps", "with_operands", "writable", "write"]

_FITTED = 4  # entries of attributes that may have to change together


class _Stuck(Exception):
    """A step that cannot be written without the slices."""


@dataclass
class SliceRemovalSteps:
    """New steps and weights, and what became of values.

    Attributes:
        steps: all, in order.
        types: of new values.
        weights: new ones.
        becomes: value → its shorter form.
        added: result of a sum with what constant slices add → the summands: without it, and the new weight.
        stuck: steps that could not be written; then the rest says nothing.
    """

    steps: list[ProgramStep] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)
    weights: list[Weight] = field(default_factory=list)
    becomes: dict[str, str] = field(default_factory=dict)
    added: dict[str, tuple[str, str]] = field(default_factory=dict)
    stuck: set[int] = field(default_factory=set)


def write(values: SliceAnalysis, removal: SliceRemoval) -> SliceRemovalSteps:
    """The program's steps without what is removed."""
    program, names = values.program, FreshNames(values.program)
    made = SliceRemovalSteps()
    for position, step in enumerate(program.steps):
        place = removal.places.get(position)
        free = removal.variables.get(position, {})
        reads_less = any(removal.gone(a) for a in step.reads if a not in program.constant)
        if place is None or not (reads_less or any(gone.any() for gone in free.values())):
            made.steps.append(step)
            continue
        try:
            made.steps += _Writer(values, removal, position, place, names, made).steps()
        except _Stuck:
            made.stuck.add(position)
    _join_sums(values, made)
    return made


def _join_sums(values: SliceAnalysis, made: SliceRemovalSteps) -> None:
    """What is added for constant slices, added to the weight that the only reader adds anyway."""
    for new, (before, extra) in list(made.added.items()):
        readers = [i for i, s in enumerate(made.steps) if new in s.reads]
        step = made.steps[readers[0]] if len(readers) == 1 else None
        if step is None or step.op != "Add" or new in values.program.required_names:
            continue
        other = step.args[1 - step.args.index(new)] or ""
        old = next((w.data for w in made.weights if w.name == other and w.data is not None), None)
        array = old.numpy() if old is not None else None
        if old is None and other in values.program.constant:
            array = values.array(other)
        summand = next(w.data for w in made.weights if w.name == extra)
        if array is None or summand is None:
            continue
        total = array.astype(np.float64) + summand.numpy()
        if total.size > max(array.size, summand.numpy().size):
            continue
        weight = constant(f"{extra}_sum", total.astype(array.dtype))
        made.weights.append(weight)
        made.types[weight.name] = weight.type
        made.steps[readers[0]] = ProgramStep("Add", (before, weight.name), (), step.outputs, None, step.name)
        made.steps = [s for s in made.steps if new not in s.outputs]
        made.becomes = {old_name: name for old_name, name in made.becomes.items() if name != new}


def writable(
    program: GraphProgram, step: ProgramStep, attributes: Attributes, types: Sequence[TensorType | None]
) -> bool:  # fmt: skip
    """Whether an application can be written as a node at the model's opset."""
    record = REGISTRY[step.op]
    try:
        record.write(dict(attributes), types, program.graph.opset.get(record.domain, 1))
    except UnsupportedNodeForm:
        return False
    return True


def with_operands(
    program: GraphProgram, step: ProgramStep, put: Mapping[str, str], types: Mapping[str, TensorType]
) -> ProgramStep:
    """A step with other operands, or as it is where it could not be written.

    Args:
        program: where it is.
        step: an application or a barrier, which stays.
        put: value → what is read in its place.
        types: of values that are not the program's.
    """
    if step.op == "" or put.keys().isdisjoint(a for a in step.args if a):
        return step
    args = tuple(put.get(a, a) if a else a for a in step.args)
    given = [None if a is None else types.get(a) or program.types[a] for a in args]
    if not writable(program, step, step.attributes, given):
        return step
    return ProgramStep(step.op, args, step.attributes, step.outputs, None, step.name)


class _Writer:
    def __init__(
        self,
        values: SliceAnalysis,
        removal: SliceRemoval,
        position: int,
        place: IndexVariableAxes,
        names: FreshNames,
        made: SliceRemovalSteps,
    ) -> None:
        self.values, self.removal, self.position, self.place = values, removal, position, place
        self.names, self.made = names, made
        self.program: GraphProgram = values.program
        self.free = removal.variables[position]
        self.less = {v for v, gone in self.free.items() if gone.any()}

    def steps(self) -> list[ProgramStep]:
        step = self.place.step
        args = tuple(None if a is None else self.operand(p, a) for p, a in enumerate(step.args))
        given = [None if a is None else self.kind(a) for a in args]
        wanted = [self.shorter(o) for o in step.outputs]
        attributes = self.fitted(given, wanted)
        outputs = tuple(self.renamed(o, t) for o, t in zip(step.outputs, wanted, strict=True))
        added = self.added()
        bias = None if added is None else self.bias()
        taken_in = None if added is None or bias is None else self.biased(args, bias, added)
        if added is not None and taken_in is None:
            taken_in = self.with_bias(args, attributes, wanted[0], added)
        if taken_in is not None:
            args, added = taken_in, None
        if added is None:
            return [ProgramStep(step.op, args, attributes, outputs, None, step.name)]
        (output,) = outputs
        kind = wanted[0]
        assert kind is not None
        before = self.names.fresh(f"{output}_live")
        self.made.types.update({before: kind, output: kind})
        extra = self.weight(f"{output}_constant", added.astype(kind.dtype.numpy))
        self.made.added[output] = before, extra
        return [
            ProgramStep(step.op, args, attributes, (before,), None, step.name),
            ProgramStep("Add", (before, extra), (), (output,), None, f"{step.name}_constant"),
        ]

    def kind(self, name: str) -> TensorType:
        return self.made.types.get(name) or self.program.types[name]

    def shorter(self, name: str) -> TensorType | None:
        if not name:
            return None
        kind = self.program.types[name]
        gone = self.removal.gone(name)
        shape = tuple(int((~gone[a]).sum()) if a in gone else d for a, d in enumerate(kind.shape or ()))
        return TensorType(kind.dtype, shape)

    def renamed(self, name: str, kind: TensorType | None) -> str:
        if not name or not self.removal.gone(name):
            return name
        if name not in self.made.becomes:
            self.made.becomes[name] = self.names.fresh(f"{name}_kept")
            assert kind is not None
            self.made.types[self.made.becomes[name]] = kind
        return self.made.becomes[name]

    def operand(self, position: int, name: str) -> str:
        """A value's shorter form, or a weight's for this step."""
        if name not in self.program.constant:
            return self.renamed(name, self.shorter(name))
        indices = [i for i in self.place.indices if i.operand == position]
        kept: dict[int, np.ndarray] = {}
        for index in indices:
            if not self.less.isdisjoint(index.variables):
                at = np.unique(index.at[index.active & ~index.removed(self.free)])
                if index.axis in kept and not np.array_equal(kept[index.axis], at):
                    raise _Stuck
                kept[index.axis] = at
        if not kept:
            return name
        array = self.values.array(name)
        if array is None or any(i.axis in kept and self.less.isdisjoint(i.variables) for i in indices):
            raise _Stuck
        array = self.merged(position, array)
        for axis, at in kept.items():
            array = np.take(array, at, axis=axis)
        return self.weight(f"{name}_kept", array)

    def merged(self, position: int, array: np.ndarray) -> np.ndarray:
        """The weight of a product with those of equal data added up, rounded once."""
        for variable, absorbed in self.sums():
            product = absorbed.product
            if product is None or product.weight.operand != position:
                continue
            axis = _axis_of(product.weight, variable)
            rows = np.moveaxis(array.astype(np.float64), axis, 0)
            for at in np.flatnonzero(self.free[variable] & (absorbed.merged >= 0)).tolist():
                rows[absorbed.merged[at]] += rows[at]
            with np.errstate(over="ignore"):
                array = np.moveaxis(rows, 0, axis).astype(array.dtype)
            if not np.isfinite(array.astype(np.float64)).all():
                raise _Stuck
        return array

    def sums(self) -> Iterator[tuple[str, RemovedSumTerms]]:
        for variable in sorted(self.less):
            absorbed = self.removal.absorbed.get((self.position, variable))
            if absorbed is not None:
                yield variable, absorbed

    def added(self) -> np.ndarray | None:
        """What constant data that is left out adds to the result, in a shape that broadcasts to it."""
        total: np.ndarray | None = None
        for variable, absorbed in self.sums():
            out = np.flatnonzero(self.free[variable] & np.isfinite(absorbed.number))
            product = absorbed.product
            if not out.size or product is None:
                continue
            array = self.values.array(self.place.step.args[product.weight.operand] or "")
            if array is None:
                raise _Stuck
            found = self.constant_part(product.weight, variable, array.astype(np.float64), out, absorbed.number)
            total = found if total is None else total + found
        return total

    def constant_part(
        self, weight: ElementRead, variable: str, array: np.ndarray, out: np.ndarray, number: np.ndarray
    ) -> np.ndarray:
        axis = _axis_of(weight, variable)
        array = np.take(array, out, axis=axis)
        array = array * number[out].reshape([-1 if a == axis else 1 for a in range(array.ndim)])
        (comprehension,) = self.place.meaning.outputs
        own = {a[0][0]: at for at, a in enumerate(comprehension.axes) if len(a) == 1}
        names = [next(iter(symbols(i)), "") if isinstance(i, SizePolynomial) else "" for i in weight.index]
        inner = tuple(a for a, n in enumerate(names) if n not in own)
        array = array.sum(axis=inner)
        left = [n for n in names if n in own]
        shape, order = [1] * len(comprehension.axes), sorted(range(len(left)), key=lambda p: own[left[p]])
        array = array.transpose(order)
        for place, at in enumerate(order):
            name = left[at]
            if name in self.less:
                array = np.take(array, np.flatnonzero(~self.free[name]), axis=place)
            shape[own[name]] = array.shape[place]
        return np.asarray(array.reshape(shape))

    def bias(self) -> ElementRead | None:
        """A weight that is a summand of the result."""
        stack, constant_ones = [self.place.meaning.outputs[0].body], self.program.constant
        while stack:
            match stack.pop():
                case ScalarCall("add", args):
                    stack += args
                case ElementRead(operand, index, None) as read if (
                    self.place.step.args[operand] or ""
                ) in constant_ones:
                    times = sum(i.operand == operand for i in self.place.indices)
                    if times == len(index) and not any(isinstance(i, ScalarExpression) for i in index):
                        return read
        return None

    def biased(
        self, args: tuple[str | None, ...], bias: ElementRead, added: np.ndarray
    ) -> tuple[str | None, ...] | None:
        """The operands with a bias that takes in what is added; ``None`` where it has other axes."""
        own = {a[0][0]: at for at, a in enumerate(self.place.meaning.outputs[0].axes) if len(a) == 1}
        names = [next(iter(symbols(i))) if isinstance(i, SizePolynomial) else "" for i in bias.index]
        axes = [own[n] for n in names if n in own]
        apart = any(d > 1 and a not in axes for a, d in enumerate(added.shape))
        if apart or axes != sorted(axes) or any(n and n not in own for n in names):
            return None
        name = args[bias.operand] or ""
        old = next((w.data for w in self.made.weights if w.name == name), None)
        array = self.values.array(name) if old is None else old.numpy()
        if array is None:
            raise _Stuck
        shape = [added.shape[own[n]] if n else 1 for n in names]
        total = array.astype(np.float64) + added.reshape(shape)
        extra = self.weight(f"{name}_constant", total.astype(array.dtype))
        return (*args[: bias.operand], extra, *args[bias.operand + 1 :])

    def with_bias(
        self, args: tuple[str | None, ...], attributes: Attributes, wanted: TensorType | None, added: np.ndarray
    ) -> tuple[str | None, ...] | None:
        """The operands with what is added as an optional one that is not there yet, if the operator adds it up so."""
        step, record = self.place.step, REGISTRY[self.place.step.op]
        long = [a for a, d in enumerate(added.shape) if d > 1]
        if wanted is None or len(args) >= len(record.inputs) or len(long) != 1:
            return None
        kind = TensorType(wanted.dtype, (added.size,))
        types = [None if a is None else self.kind(a) for a in args]
        try:
            old, _ = record.apply(types, dict(attributes))
            new, made = record.apply([*types, kind], dict(attributes))
        except IllTypedOperator:
            return None
        axis = new.outputs[0].axes[long[0]]
        body, extra = new.outputs[0].body, ElementRead(len(args), (sym(axis[0][0]),)) if len(axis) == 1 else None
        if made != (wanted,) or extra is None or body != ScalarCall("add", (old.outputs[0].body, extra)):
            return None
        return (*args, self.weight(f"{step.outputs[0]}_bias", added.reshape(-1).astype(wanted.dtype.numpy)))

    def weight(self, hint: str, array: np.ndarray) -> str:
        name = self.names.fresh(hint)
        made = constant(name, np.ascontiguousarray(array))
        self.made.weights.append(made)
        self.made.types[name] = made.type
        return name

    def fitted(self, given: Sequence[TensorType | None], wanted: Sequence[TensorType | None]) -> Attributes:
        """Attributes by which the operator makes the shorter results of the shorter operands, and nothing else.

        Raises:
            _Stuck: there are none.
        """
        step = self.place.step
        before = [_skeleton(c.body, self.less) for c in self.place.meaning.outputs]
        lengths = self._lengths()
        for attributes in _variants(dict(step.attributes), lengths, wanted):
            try:
                meaning, types = REGISTRY[step.op].apply(given, attributes)
            except IllTypedOperator:
                continue
            if any(w is not None and w != t for w, t in zip(wanted, types, strict=False)):
                continue
            found = tuple(sorted(attributes.items()))
            alike = [_skeleton(c.body, self.less) for c in meaning.outputs] == before
            if alike and writable(self.program, step, found, given):
                return found
        raise _Stuck

    def _lengths(self) -> Mapping[int, set[int]]:
        """Sizes that change, and what to."""
        found: dict[int, set[int]] = {}
        for index in self.place.indices:
            if not self.less.isdisjoint(index.variables):
                left = int((index.active & ~index.removed(self.free)).sum())
                found.setdefault(int(index.at.size), set()).add(left)
        for variable in self.less:
            gone = self.free[variable]
            found.setdefault(gone.size, set()).add(int((~gone).sum()))
        return found


def _axis_of(read: ElementRead, variable: str) -> int:
    return next(a for a, i in enumerate(read.index) if isinstance(i, SizePolynomial) and variable in symbols(i))


def _variants(
    attributes: Mapping[str, AttributeValue], lengths: Mapping[int, set[int]], wanted: Sequence[TensorType | None]
) -> Iterator[dict[str, AttributeValue]]:
    """The attributes as they are, with one to a few entries that were a changed size at the new one, and with a list
    of sizes, one for each result, at theirs."""
    yield dict(attributes)
    spots: list[tuple[str, int | None, int]] = []
    for name, value in attributes.items():
        if isinstance(value, int):
            spots += [(name, None, new) for new in sorted(lengths.get(value, ()))]
        elif isinstance(value, tuple):
            spots += [
                (name, at, new) for at, entry in enumerate(value) if isinstance(entry, int)
                for new in sorted(lengths.get(entry, ()))
            ]  # fmt: skip
    for count in range(1, min(_FITTED, len(spots)) + 1):
        for chosen in combinations(spots, count):
            if len({(name, at) for name, at, _ in chosen}) == count:
                yield _with(attributes, chosen)
    shapes = [t.shape for t in wanted if t is not None and t.shape is not None]
    for name, value in attributes.items():
        if isinstance(value, tuple) and len(value) == len(shapes) > 1:
            for axis in range(min(map(len, shapes))):
                yield {**attributes, name: tuple(shape[axis] for shape in shapes)}


def _with(
    attributes: Mapping[str, AttributeValue], chosen: Sequence[tuple[str, int | None, int]]
) -> dict[str, AttributeValue]:
    found = dict(attributes)
    for name, at, new in chosen:
        value = found[name]
        if at is None or not isinstance(value, tuple):
            found[name] = new
        else:
            found[name] = (*value[:at], new, *value[at + 1 :])
    return found


Skeleton = tuple[object, ...]


def _skeleton(body: ScalarExpression, less: set[str]) -> Skeleton:
    """A body without what depends on how many positions some variables have."""

    def shown(size: Dim | ScalarExpression) -> str:
        return "*" if isinstance(size, SizePolynomial) and not symbols(size).isdisjoint(less) else str(size)

    match body:
        case ElementRead(operand, index, outside):
            return ("read", operand, tuple(map(shown, index)), str(outside))
        case ScalarCall(function, args):
            return (function, *(_skeleton(a, less) for a in args))
        case ScalarReduction(kind, variable, extent, inner):
            return (kind, variable, "*" if variable in less else str(extent), _skeleton(inner, less))
        case ScalarConditional(conditions, then, otherwise):
            tests = tuple(f"{c.kind} {shown(c.size)}" for c in conditions)
            return ("where", tests, _skeleton(then, less), _skeleton(otherwise, less))
        case ScalarConstant(value):
            return ("number", value)
    return (str(body),)
