"""A program whose steps are in chosen forms, with Transposes where a value is read in a layout that is not made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from superopt.ir.types import TensorType
from superopt.passes.layouts.layout_conversion import moves, transposition
from superopt.passes.layouts.operator_layouts import Layout, OperatorLayout, in_layout, unchanged
from superopt.program.graph_program import GraphProgram, ProgramStep
from superopt.regions.replay import FreshNames, rename_inputs

__all__ = ["with_forms"]

_Key = tuple[str, Layout]  # a value in a layout


def with_forms(program: GraphProgram, forms: Mapping[int, OperatorLayout], names: FreshNames) -> GraphProgram:
    """The program with steps in these forms.

    Args:
        program: the steps.
        forms: of steps, by position; other steps are as they are.
        names: of new values.
    """
    return _Writer(program, forms, names).written()


class _Writer:
    """``named`` has the name of each value in each layout in which it is there by now."""

    def __init__(self, program: GraphProgram, forms: Mapping[int, OperatorLayout], names: FreshNames) -> None:
        self.program, self.forms, self.names = program, forms, names
        self.named: dict[_Key, str] = {}
        self.made_in: dict[str, Layout] = {}
        self.steps: list[ProgramStep] = []
        self.types: dict[str, TensorType] = {}
        self.constant: set[str] = set()
        self.wanted = self._wanted_names()

    def _own(self, value: str) -> Layout:
        return unchanged(self.program.types[value].rank or 0)

    def _wanted_names(self) -> dict[_Key, str]:
        """The names of values in layouts that a Transpose behind them would have handed on under a name that stays."""
        wanted: dict[_Key, str] = {}
        for i in sorted(self.forms, reverse=True):
            step, form = self.program.steps[i], self.forms[i]
            if step.op != "Transpose" or self._moves(step, form):
                continue
            source, layout, _ = _transposition(step, form)
            result = step.outputs[0], form.results[0]
            name = result[0] if self._is_required(*result) else wanted.get(result)
            if name is not None and not self._is_required(source, layout):
                wanted[source, layout] = name
        return wanted

    def _is_required(self, value: str, layout: Layout) -> bool:
        """Whether the value in the layout is one whose name stays."""
        return value in self.program.required_names and layout == self._own(value)

    def _moves(self, step: ProgramStep, form: OperatorLayout) -> bool:
        """Whether a Transpose in a form does anything."""
        source, first, second = _transposition(step, form)
        return bool(moves(self.program.types[source], first, second))

    def written(self) -> GraphProgram:
        for i, step in enumerate(self.program.steps):
            form = self.forms.get(i)
            if form is None:
                self._keep(step, {a: self._name(a, self._own(a)) for a in step.args if a in self.made_in})
            elif step.op == "Transpose":
                self._transpose(step, form)
            else:
                self._apply(step, form)
        for value in sorted(self.program.required_names & self.made_in.keys()):
            self._name(value, self._own(value))
        return self.program.with_steps(self.steps, self.types, self.constant)

    def _keep(self, step: ProgramStep, given: Mapping[str, str]) -> None:
        alias = {a: name for a, name in given.items() if a != name}
        if alias:
            args = tuple(None if a is None else alias.get(a, a) for a in step.args)
            step = replace(step, args=args, node=None if step.node is None else rename_inputs(step.node, alias))
        self.steps.append(step)

    def _name(self, value: str, layout: Layout) -> str:
        """The value in a layout, which steps are appended to make if it is not there."""
        own = self.made_in.get(value, self._own(value) if value in self.program.types else layout)
        if layout == own:
            return self.named.get((value, layout), value)
        if (value, layout) not in self.named:
            last = value if layout == self._own(value) else ""
            self.named[value, layout] = self._moved(value, own, layout, self._name(value, own), last)
        return self.named[value, layout]

    def _moved(self, value: str, first: Layout, second: Layout, name: str, last: str) -> str:
        """The name of a value that is moved from one layout to another; ``last``: the name that it must have."""
        found = moves(self.program.types[value], first, second)
        for number, move in enumerate(found):
            result = last if last and number == len(found) - 1 else self.names.fresh(f"{value}_{move.op.lower()}")
            self.steps.append(ProgramStep(move.op, (name,), move.attributes, (result,), None, result))
            self.types[result] = move.made
            if value in self.program.constant:
                self.constant.add(result)
            name = result
        return name

    def _result(self, value: str, layout: Layout) -> str:
        """The name under which a step makes a value in a layout."""
        own = layout == self._own(value)
        name = value if self._is_required(value, layout) else self.wanted.get((value, layout), "")
        name = name or (value if own else self.names.fresh(f"{value}_laid_out"))
        self.named[value, layout], self.made_in[value] = name, layout
        self.types[name] = in_layout(self.program.types[value], layout)
        return name

    def _apply(self, step: ProgramStep, form: OperatorLayout) -> None:
        pairs = zip(step.args, form.operands, strict=True)
        args = tuple(None if a is None or p is None else self._name(a, p) for a, p in pairs)
        outputs = tuple(self._result(o, q) if o else "" for o, q in zip(step.outputs, form.results, strict=False))
        if (
            form.attributes == step.attributes
            and outputs == step.outputs
            and all(p is None or a is None or p == self._own(a) for a, p in zip(step.args, form.operands, strict=True))
        ):
            self._keep(step, {a: n for a, n in zip(step.args, args, strict=True) if a is not None and n is not None})
        else:
            self.steps.append(ProgramStep(step.op, args, form.attributes, outputs, None, step.name, step.rules))

    def _transpose(self, step: ProgramStep, form: OperatorLayout) -> None:
        source, first, second = _transposition(step, form)
        result, layout = step.outputs[0], form.results[0]
        name = self._name(source, first)
        if self._moves(step, form):
            self._moved(source, first, second, name, self._result(result, layout))
            return
        self.named[result, layout], self.made_in[result] = name, layout
        if self._is_required(result, layout) and name != result:
            self.steps.append(ProgramStep("Identity", (name,), (), (result,), None, result))
            self.named[result, layout] = result


def _transposition(step: ProgramStep, form: OperatorLayout) -> tuple[str, Layout, Layout]:
    """The operand of a Transpose in a form, the layout in which it reads it, and that which it makes of it."""
    source = step.args[0]
    assert source is not None, "a Transpose has an operand"
    return source, *transposition(step.attributes, form)
