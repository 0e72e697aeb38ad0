"""Values that the weights make constant, or equal to another value: zero branches, identity matrices, full
masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType

import numpy as np

from superopt.ir.graph import Weight, constant
from superopt.ir.size_polynomial import SizePolynomial, substitute, sym, symbols
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.operator_semantics import (
    ElementRead,
    IllTypedOperator,
    ScalarCall,
    ScalarConditional,
    ScalarConstant,
    ScalarExpression,
    ScalarReduction,
    TensorComprehension,
    subexpressions,
)
from superopt.passes.weights.slice_analysis import SliceAnalysis
from superopt.passes.weights.slice_removal_rewrite import with_operands
from superopt.program.graph_program import ProgramStep
from superopt.program.value_analysis import ANYTHING
from superopt.regions.replay import FreshNames

__all__ = ["constants_of", "others_of"]


def others_of(values: SliceAnalysis, answers: Mapping[str, bool] = MappingProxyType({})) -> Mapping[str, str]:
    """Values that nothing outside needs by name and that are other values: value → the other.

    Args:
        values: the slices of a program's values.
        answers: tests of the program that have one answer; with any, only what reads one of them is looked at.
    """
    found: dict[str, str] = {}
    program = values.program
    for position in program.running:
        step, meaning = program.steps[position], values.meaning(position)
        if meaning is None or len(meaning.outputs) != 1 or step.outputs[0] in program.required_names:
            continue
        if not any(a is not None and a in (answers or program.constant) for a in step.args):
            continue
        body = _Simplified(values, step, answers).of(meaning.outputs[0].body)
        if isinstance(body, ElementRead) and (name := step.args[body.operand]) is not None:
            alike = program.types[name] == program.types[step.outputs[0]]
            if alike and _is_elementwise_read(body, meaning.outputs[0]) and name not in program.constant:
                found[step.outputs[0]] = name
    return found


def _is_elementwise_read(read: ElementRead, output: TensorComprehension) -> bool:
    """Whether each element is the operand's at the same place."""
    if len(read.index) != len(output.axes) or any(len(axis) > 1 for axis in output.axes):
        return False
    return all(i == (sym(axis[0][0]) if axis else 0) for i, axis in zip(read.index, output.axes, strict=True))


class _Simplified:
    """A body with the numbers of weights put in, as far as they are one number throughout."""

    def __init__(self, values: SliceAnalysis, step: ProgramStep, answers: Mapping[str, bool]) -> None:
        self.values, self.step, self.answers = values, step, answers

    def of(self, body: ScalarExpression) -> ScalarExpression:
        found: dict[int, ScalarExpression] = {}
        for scalar in subexpressions(body):
            found[id(scalar)] = self.one(scalar, found)
        return found[id(body)]

    def one(self, scalar: ScalarExpression, found: Mapping[int, ScalarExpression]) -> ScalarExpression:
        match scalar:
            case ElementRead():
                return self.read(scalar)
            case ScalarCall(function, args):
                return self.call(function, [found[id(a)] for a in args])
            case ScalarReduction(kind, variable, extent, body):
                return self.reduced(ScalarReduction(kind, variable, extent, found[id(body)]))
            case ScalarConditional(conditions, then, otherwise):
                return ScalarConditional(conditions, found[id(then)], found[id(otherwise)])
        return scalar

    def read(self, read: ElementRead) -> ScalarExpression:
        name = self.step.args[read.operand]
        if name is not None and name in self.answers:
            return ScalarConstant(Fraction(self.answers[name]))
        if name is None or name not in self.values.program.constant:
            return read
        number = self.values.uniform(name)
        if number is None or (read.outside is not None and read.outside.value != number):
            return read
        return ScalarConstant(Fraction(number))

    def call(self, function: str, args: Sequence[ScalarExpression]) -> ScalarExpression:
        numbers = [a.value if isinstance(a, ScalarConstant) else None for a in args]
        if function in ("add", "mul"):
            for number, other in zip(numbers, reversed(args), strict=True):
                if number == (0 if function == "add" else 1):
                    return other
            if function == "mul" and 0 in numbers and self.finite(args):
                return ScalarConstant(Fraction(0))
            first, second = numbers
            if isinstance(first, Fraction) and isinstance(second, Fraction):
                return ScalarConstant(first + second if function == "add" else first * second)
        if function == "select" and numbers[0] is not None:
            return args[1] if numbers[0] != 0 else args[2]
        if function == "inv" and isinstance(numbers[0], Fraction) and abs(numbers[0]) == 1:
            return args[0]
        return ScalarCall(function, tuple(args))

    def finite(self, parts: Sequence[ScalarExpression]) -> bool:
        known = self.values.program.value_facts
        reads = {self.step.args[s.operand] for p in parts for s in subexpressions(p) if isinstance(s, ElementRead)}
        return self.values.finite and all(known.get(n or "", ANYTHING).finite for n in reads)

    def reduced(self, reduction: ScalarReduction) -> ScalarExpression:
        """A sum of zeros, or over the rows of an identity matrix."""
        body = reduction.body
        if isinstance(body, ScalarConstant):
            zero = reduction.kind == "sum" and body.value == 0
            return body if zero or reduction.kind in ("max", "min") else reduction
        if reduction.kind != "sum" or not isinstance(body, ScalarCall) or body.function != "mul":
            return reduction
        for data, weight in (body.args, body.args[::-1]):
            if isinstance(data, ElementRead) and isinstance(weight, ElementRead) and self.finite((data,)):
                other = self.identity(weight, reduction)
                if (
                    other is not None
                    and data.outside is None
                    and not any(isinstance(i, ScalarExpression) for i in data.index)
                ):
                    put = {reduction.variable: sym(other)}
                    index = tuple(substitute(i, put) if isinstance(i, SizePolynomial) else i for i in data.index)
                    return replace(data, index=index)
        return reduction

    def identity(self, weight: ElementRead, reduction: ScalarReduction) -> str | None:
        """The variable that has to equal a sum's for a weight to be 1, where it is 0 for any other."""
        name = self.step.args[weight.operand]
        if name is None or name not in self.values.program.constant or weight.outside is not None:
            return None
        axes = [a for a, i in enumerate(weight.index) if isinstance(i, SizePolynomial)]
        names = [symbols(i) for i in weight.index if isinstance(i, SizePolynomial)]
        if len(axes) != 2 or any(isinstance(i, ScalarExpression) for i in weight.index):
            return None
        single = [next(iter(n)) for n in names if len(n) == 1]
        plain = all(weight.index[a] == sym(s) for a, s in zip(axes, single, strict=False))
        if len(single) != 2 or not plain or reduction.variable not in single:
            return None
        array = self.values.array(name)
        if array is None or array.shape[axes[0]] != array.shape[axes[1]] or array.shape[axes[0]] != reduction.extent:
            return None
        fixed = tuple(i if isinstance(i, int) else slice(None) for i in weight.index)
        matrix = array[fixed]
        if not np.array_equal(matrix, np.eye(len(matrix), dtype=matrix.dtype)):
            return None
        return next(s for s in single if s != reduction.variable)


def constants_of(
    values: SliceAnalysis, names: FreshNames
) -> tuple[list[ProgramStep], list[Weight], dict[str, TensorType]] | None:
    """The steps with constant values read as weights that broadcast, where that gives results of the same types;
    ``None`` where there are none."""
    program = values.program
    weights: dict[str, Weight] = {}
    for position in program.running:
        for name in program.steps[position].outputs:
            if name and name not in program.required_names and (made := _constant(values, name, names)) is not None:
                weights[name] = made
    steps: list[ProgramStep] = []
    used: dict[str, Weight] = {}
    for step in program.steps:
        if step.op == "" or step.outputs[0] in weights or weights.keys().isdisjoint(a for a in step.args if a):
            steps.append(step)
            continue
        args = tuple(weights[a].name if a in weights else a for a in step.args)
        types = {w.name: w.type for w in weights.values()}
        given = [None if a is None else types.get(a) or program.types[a] for a in args]
        try:
            results = REGISTRY[step.op].apply(given, dict(step.attributes))[1]
        except IllTypedOperator:
            results = ()
        alike = results and _elementwise(values, step, given)
        if alike and all(program.types[o] == t for o, t in zip(step.outputs, results, strict=False) if o):
            steps.append(with_operands(program, step, {a: w.name for a, w in weights.items()}, types))
            if steps[-1] is not step:
                used.update((w.name, w) for a, w in weights.items() if a in step.args)
        else:
            steps.append(step)
    return (steps, list(used.values()), {n: w.type for n, w in used.items()}) if used else None


def _elementwise(values: SliceAnalysis, step: ProgramStep, given: Sequence[TensorType | None]) -> bool:
    """Whether operands that broadcast are read as the whole ones were: at 0 where they have one position."""
    types = [None if a is None else values.program.types[a] for a in step.args]
    before = REGISTRY[step.op].apply(types, dict(step.attributes))[0]
    after = REGISTRY[step.op].apply(given, dict(step.attributes))[0]
    one = {
        operand: {a for a, d in enumerate(new.shape or ()) if d == 1 and (old.shape or ())[a] != 1}
        for operand, (old, new) in enumerate(zip(types, given, strict=True))
        if old is not None and new is not None and old != new
    }
    pairs = zip(before.outputs, after.outputs, strict=True)
    return all(a.axes == b.axes and _at_zero(a.body, one) == b.body for a, b in pairs)


def _at_zero(body: ScalarExpression, one: Mapping[int, set[int]]) -> ScalarExpression:
    """A body with some operands' indices on some axes 0."""
    made: dict[int, ScalarExpression] = {}
    for scalar in subexpressions(body):
        match scalar:
            case ElementRead(operand, index, outside) if one.get(operand):
                place = tuple(0 if a in one[operand] else i for a, i in enumerate(index))
                made[id(scalar)] = ElementRead(operand, place, outside)
            case ScalarCall(function, args):
                made[id(scalar)] = ScalarCall(function, tuple(made[id(a)] for a in args))
            case ScalarReduction(kind, variable, extent, inner):
                made[id(scalar)] = ScalarReduction(kind, variable, extent, made[id(inner)])
            case ScalarConditional(conditions, then, otherwise):
                made[id(scalar)] = ScalarConditional(conditions, made[id(then)], made[id(otherwise)])
            case _:
                made[id(scalar)] = scalar
    return made[id(body)]


def _constant(values: SliceAnalysis, name: str, names: FreshNames) -> Weight | None:
    kind = values.program.types.get(name)  # what nobody reads of an operator that is carried through has none
    if kind is None or not kind.dtype.is_float:
        return None
    shape = kind.shape or ()
    for axis in range(len(shape)):
        slices = values.slices(name, axis)
        if slices is not None and bool(np.isfinite(slices.number).all()):
            numbers = slices.number.astype(kind.dtype.numpy)
            return constant(
                names.fresh(f"{name}_value"), numbers.reshape([-1 if a == axis else 1 for a in range(len(shape))])
            )
    return None
