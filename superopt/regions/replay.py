"""Replay of plans on a program: fresh names for new values, all else unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from superopt.formats.control_flow_bodies import all_names
from superopt.ir.graph import Node
from superopt.ir.types import TensorType
from superopt.program.graph_program import GraphProgram, ProgramStep
from superopt.regions.region_egraph import ProgramRegion
from superopt.regions.region_plan import OUTSIDE, Ref, RegionPlan

__all__ = ["FreshNames", "replay"]


class FreshNames:
    """Makes value names that are not taken.

    Args:
        program: whose names are taken.
        reserved: others that are: of a model that the program stands for, where a name says what is compared.
    """

    def __init__(self, program: GraphProgram, reserved: AbstractSet[str] = frozenset()) -> None:
        self._taken = {*all_names(program.graph), *reserved}
        self._taken |= {n for s in program.steps for n in (*s.outputs, *s.reads)}
        self._next: dict[str, int] = {}

    def fresh(self, hint: str) -> str:
        """``hint``, or ``hint_2`` … if that is taken."""
        count = self._next.get(hint, 1)
        name = hint if count == 1 else f"{hint}_{count}"
        while name in self._taken:
            count += 1
            name = f"{hint}_{count}"
        self._next[hint] = count
        self._taken.add(name)
        return name


@dataclass(frozen=True)
class _Replayed:
    steps: list[tuple[int, ProgramStep]]  # with the place in the program
    types: dict[str, TensorType]
    constant: set[str]
    alias: dict[str, str]  # an output of a region → the value that is the same


def replay(
    program: GraphProgram, replacements: Sequence[tuple[ProgramRegion, RegionPlan]], names: FreshNames
) -> GraphProgram:
    """The program with each region replaced by its plan. Regions do not overlap."""
    gone = {position for region, _ in replacements for position in region.positions}
    made = _Replayed([], {}, set(), {})
    for region, plan in replacements:
        _write(region, plan, names, made, program.required_names)
    alias = {old: _follow(made.alias, old) for old in made.alias}
    placed = [(position, s) for position, s in enumerate(program.steps) if position not in gone]
    placed = sorted([*placed, *made.steps], key=lambda p: p[0])  # new steps stand where the old ones stood
    steps = _shared([_renamed(s, alias) for _, s in placed], program, made.constant)
    return program.with_steps(steps, made.types, made.constant)


def _shared(steps: Sequence[ProgramStep], program: GraphProgram, constant: AbstractSet[str]) -> list[ProgramStep]:
    """New computations on weights done once: regions that repeat (the steps of an unrolled LSTM) make equal ones."""
    first: dict[tuple[object, ...], ProgramStep] = {}
    alias: dict[str, str] = {}
    kept: list[ProgramStep] = []
    for old in steps:
        step = _renamed(old, alias)
        if step.node is None and step.op and all(not o or o in constant or o in program.constant for o in step.outputs):
            args = tuple(None if a is None else program.same.get(a, a) for a in step.args)
            known = first.setdefault((step.op, step.attributes, args, tuple(map(bool, step.outputs))), step)
            if known is not step and not any(o in program.required_names for o in step.outputs):
                alias.update(zip(step.outputs, known.outputs, strict=True))
                continue
        kept.append(step)
    return kept


def _follow(alias: Mapping[str, str], name: str) -> str:
    while name in alias:
        name = alias[name]
    return name


def _renamed(step: ProgramStep, alias: Mapping[str, str]) -> ProgramStep:
    if not any(n in alias for n in step.reads):
        return step
    args = tuple(None if a is None else alias.get(a, a) for a in step.args)
    return replace(step, args=args, node=None if step.node is None else rename_inputs(step.node, alias))


def rename_inputs(node: Node, alias: Mapping[str, str]) -> Node:
    """The node reading other values under its old attributes; captured values are never renamed."""
    return replace(node, inputs=tuple(alias.get(n, n) for n in node.inputs))


def _write(region: ProgramRegion, plan: RegionPlan, names: FreshNames, made: _Replayed, pinned: frozenset[str]) -> None:
    hints = _hints(region, plan)
    place = region.positions[-1]
    read = {a for p in plan.nodes for a in p.args if a is not None} | set(plan.results)
    value: dict[Ref, str] = {}
    taken: set[int] = set()
    for number, piece in enumerate(plan.nodes):
        outputs: list[str] = []
        for index, named in enumerate(piece.outputs):
            if named >= 0 and named not in taken:
                taken.add(named)
                outputs.append(region.values[named])
            elif piece.source >= 0 and (number, index) not in read and not region.steps[piece.source].outputs[index]:
                outputs.append("")
                continue
            else:
                outputs.append(names.fresh(f"{hints[number]}_{piece.op.lower()}"))
            value[number, index] = outputs[-1]
            made.types[outputs[-1]] = piece.types[index]
        args = tuple(None if a is None else _name(region, value, a) for a in piece.args)
        rules = (piece.rule,) if piece.rule else ()
        made.steps.append((place, _region_step(region, piece.source, args, tuple(outputs)) or ProgramStep(
            piece.op, args, piece.attributes, tuple(outputs), None, hints[number], rules,
        )))  # fmt: skip
        if piece.constant:
            made.constant.update(outputs)
    for output, ref in zip(region.outputs, plan.results, strict=True):
        found = _name(region, value, ref)
        if found == output:
            continue
        if output in pinned:
            made.steps.append((place, ProgramStep("Identity", (found,), (), (output,), None, output)))
        else:
            made.alias[output] = found


def _name(region: ProgramRegion, value: Mapping[Ref, str], ref: Ref) -> str:
    return region.values[ref[1]] if ref[0] == OUTSIDE else value[ref]


def _region_step(
    region: ProgramRegion, source: int, args: tuple[str | None, ...], outputs: tuple[str, ...]
) -> ProgramStep | None:
    """The region's own step with new operands, or ``None`` for a new application."""
    if source < 0:
        return None
    old = region.steps[source]
    rename = {a: b for a, b in zip(old.args, args, strict=True) if a is not None and b is not None and a != b}
    shown = tuple(o if o else "" for o in outputs)
    node = old.node
    if node is not None:
        node = rename_inputs(node, rename)
        node = replace(node, outputs=tuple(shown[: len(node.outputs)]) + node.outputs[len(shown) :])
    return replace(old, args=args, outputs=shown, node=node)


def _hints(region: ProgramRegion, plan: RegionPlan) -> list[str]:
    """What the name of each piece derives from: the value it makes, else the value that its reader makes."""
    hints = [""] * len(plan.nodes)
    fallback = region.outputs[0] if region.outputs else "value"
    for number in range(len(plan.nodes) - 1, -1, -1):
        piece = plan.nodes[number]
        own = next((region.values[n] for n in piece.outputs if n >= 0), "")
        hints[number] = own or hints[number] or fallback
        for arg in piece.args:
            if arg is not None and arg[0] != OUTSIDE and not hints[arg[0]]:
                hints[arg[0]] = hints[number]
    return hints
