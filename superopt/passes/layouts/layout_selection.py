"""The choice of layouts as a problem of strategy assignment (:mod:`superopt.assignment`).

A node of the problem is a step, whose strategies are its forms (:mod:`superopt.passes.layouts.operator_layouts`), or a
value, whose strategies are the sets of layouts in which it is there. An edge joins a value with the step that makes it:
its table has the times of the Transposes from the layout that is made to the others. Another joins it with each step
that reads it, and forbids the sets without the layout that is read. So a value that several steps read is transposed
once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from math import exp, hypot, isinf
from typing import TYPE_CHECKING

import numpy as np

from superopt.assignment import AssignmentSolverPolicy as SolverPolicy
from superopt.cost.measurement_record import CostEstimate
from superopt.errors import InvalidModel, ResourceLimit
from superopt.extraction.enode_costs import ENodeCostModel
from superopt.ir.terms import Attributes
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.passes.layouts.layout_conversion import moves, perm_of, transposed, transposition
from superopt.passes.layouts.operator_layouts import (
    Layout,
    OperatorLayout,
    forms,
    in_layout,
    inverse,
    layout_of,
    unchanged,
)
from superopt.program.graph_program import GraphProgram, ProgramStep

if TYPE_CHECKING:
    from superopt.assignment import StrategyAssignmentProblem

__all__ = ["POLICY", "LayoutPolicy", "chosen_forms", "transposes_of"]


@dataclass(frozen=True)
class LayoutPolicy:
    """Limits of the choice of layouts.

    Attributes:
        layouts: of one rank, the most frequent ones: networks of images have two, attention has up to four.
        steps: of a program, above which layouts are not chosen: to write the problem takes seconds.
        together: layouts in which a value is there at most: one that is made, and one that is read besides.
        work, seconds: of the solver. A step is exact where few values depend on each other, as in networks of images.
        solver: no bound is asked for.
        errors: a form counts as dearer than the cheapest as far as its price exceeds that by more than so many standard
            deviations. Where only errors of prices speak for a Transpose, there should be none.
        border: share of its time at which the Transpose of an input or of an output counts. Of two equal choices, the
            one with the Transpose at the border leaves more operators beside each other for rules.
        left: share of the Transposes that may stay. Where more stay, they are a part of the computation (attention,
            products of channels), for which rules find more than a choice of layouts does.
    """

    layouts: int = 4
    steps: int = 20_000
    together: int = 2
    work: int = 4
    seconds: float = 10.0
    solver: SolverPolicy = field(default_factory=lambda: SolverPolicy(sweeps=0, program_entries=0))
    errors: float = 2.0
    border: float = 0.99
    left: float = 0.5


POLICY = LayoutPolicy()
_FORBIDDEN = POLICY.solver.forbidden
_IMPOSSIBLE = CostEstimate(float("inf"), "roofline")
_NS = 1000.0  # nanoseconds of a microsecond: costs of a problem are integers
_Sets = tuple[tuple[Layout, ...], ...]


def chosen_forms(
    program: GraphProgram, pricer: ENodeCostModel, policy: LayoutPolicy = POLICY
) -> Mapping[int, OperatorLayout] | None:
    """The form of each step that has several, by position, at the least cost of steps and Transposes.

    Args:
        program: the steps.
        pricer: of operators.
        policy: limits.

    Returns:
        ``None`` where the steps as they are cost no more, or no better choice was found within the limits.
    """
    layouts = _layouts(program, policy.layouts)
    if not layouts or len(program.steps) > policy.steps:
        return None
    transposes = transposes_of(program)
    staying = sum(_stays(program, i, layouts) for i in transposes)
    if staying > policy.left * len(transposes):
        return None
    choice = _Choice(program, pricer, layouts, policy)
    return choice.solved() if choice.forms else None


def transposes_of(program: GraphProgram) -> list[int]:
    """The positions of the Transposes that run."""
    return [i for i in program.running if program.steps[i].op == "Transpose"]


def _layouts(program: GraphProgram, most: int) -> tuple[Layout, ...]:
    """The layouts that Transposes of the program lead to, or come from."""
    count: Counter[Layout] = Counter()
    for position in transposes_of(program):
        layout = layout_of(perm_of(program.steps[position].attributes))
        if layout != unchanged(len(layout)):
            count.update({layout, inverse(layout)})
    kept: Counter[int] = Counter()
    found: list[Layout] = []
    for layout, _ in count.most_common():
        kept[len(layout)] += 1
        if kept[len(layout)] <= most:
            found.append(layout)
    return tuple(found)


@dataclass(frozen=True)
class _Fused:
    """The step that makes the moving operand of another: its position, which result, which operand, and the Transposes
    on the way, the last first."""

    maker: int
    result: int
    operand: int
    perms: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class _Operator:
    """What decides the forms of a step and their prices, which repeated layers share."""

    name: str
    attributes: Attributes
    types: tuple[TensorType | None, ...]
    fixed: tuple[bool, ...]

    def forms(self, layouts: tuple[Layout, ...]) -> tuple[OperatorLayout, ...]:
        """As its meaning says; the first is the operator as it is."""
        return forms(REGISTRY[self.name], self.attributes, self.types, layouts)


class _Choice:
    """The problem: steps with several forms, then values that such steps make or read."""

    def __init__(
        self, program: GraphProgram, pricer: ENodeCostModel, layouts: tuple[Layout, ...], policy: LayoutPolicy
    ) -> None:
        self.program, self.pricer, self.layouts, self.policy = program, pricer, layouts, policy
        self.fed = {v.name for v in program.graph.inputs}
        self.priced: dict[_Operator, tuple[tuple[OperatorLayout, ...], tuple[CostEstimate, ...]]] = {}
        self.moved: dict[TensorType, dict[tuple[Layout, Layout], float]] = {}  # microseconds by a value's type
        self.saved: dict[Hashable, tuple[tuple[float, ...], ...]] = {}
        own = ((i, _operator(program, program.steps[i])) for i in program.running)
        self.operators = {i: o for i, o in own if o is not None and len(self._forms(o)[0]) > 1}
        self.forms = {i: self._forms(o)[0] for i, o in self.operators.items()}
        touched = (n for i in self.forms for n in (*program.steps[i].args, *program.steps[i].outputs))
        self.values = [n for n in dict.fromkeys(touched) if n and n not in program.constant]
        self.makers = {o: (i, k) for i in self.forms for k, o in enumerate(program.steps[i].outputs) if o}
        self.readers: dict[str, list[tuple[int, int]]] = {v: [] for v in self.values}
        for i in self.forms:
            for k, name in enumerate(program.steps[i].args):
                if name in self.readers:
                    self.readers[name].append((i, k))
        self.sets = {v: self._sets(v) for v in self.values}
        fused = {i: self._fused(i) for i in self.forms}
        self.fused = {i: with_maker for i, with_maker in fused.items() if with_maker is not None}

    # -- strategies --------------------------------------------------------------------------------------------------

    def _forms(self, operator: _Operator) -> tuple[tuple[OperatorLayout, ...], tuple[CostEstimate, ...]]:
        """The forms that can be written and priced, and their prices; the first is the operator as it is."""
        found = self.priced.get(operator)
        if found is None:
            found = self.priced[operator] = self._new_forms(operator)
        return found

    def _new_forms(self, operator: _Operator) -> tuple[tuple[OperatorLayout, ...], tuple[CostEstimate, ...]]:
        if operator.name == "Transpose":
            own, *others = self._transpose_forms(operator)
        else:
            own, *others = operator.forms(self.layouts)
        price = self._price(operator, own)
        if isinf(price.us):
            return (own,), (price,)
        priced = [(f, self._price(operator, f)) for f in others]
        possible = [(own, price), *((f, p) for f, p in priced if not isinf(p.us))]
        return tuple(f for f, _ in possible), tuple(p for _, p in possible)

    def _transpose_forms(self, operator: _Operator) -> tuple[OperatorLayout, ...]:
        rank = len(perm_of(operator.attributes))
        own = unchanged(rank)
        ways = [own, *(p for p in self.layouts if len(p) == rank)]
        return tuple(OperatorLayout(operator.attributes, (p,), (q,)) for p in ways for q in ways)

    def _price(self, operator: _Operator, form: OperatorLayout) -> CostEstimate:
        """Of an operator in a form; infinite where it cannot be written."""
        if operator.name == "Transpose":
            first, second = transposition(operator.attributes, form)
            (kind,) = operator.types
            assert kind is not None, "a Transpose has an operand"
            return CostEstimate(self._moving_us(kind, first, second), "free")
        given = _given(operator, form)
        if not _raises(operator, form) or not self._writable(operator.name, form, given):
            return _IMPOSSIBLE
        return self.pricer.expected((operator.name, form.attributes, given, operator.fixed))

    def _writable(self, op: str, form: OperatorLayout, types: tuple[TensorType | None, ...]) -> bool:
        record, opsets = REGISTRY[op], self.program.graph.opset
        try:
            record.write(dict(form.attributes), types, opsets.get(record.domain, 1))
        except UnsupportedNodeForm:
            return False
        return True

    def _moving_us(self, kind: TensorType, first: Layout, second: Layout) -> float:
        """Microseconds from one layout of a value to another."""
        known = self.moved.setdefault(kind, {})
        us = known.get((first, second))
        if us is None:
            found = moves(kind, first, second)
            us = known[first, second] = sum(self.pricer.alone((m.op, m.attributes, (m.kind,), (False,))) for m in found)
        return us

    def _fused(self, position: int) -> _Fused | None:
        """What the backend may run a step as one with: the maker of its moving operand, Transposes left out."""
        step = self.program.steps[position]
        moving = [(k, a) for k, a in enumerate(step.args) if a is not None and a not in self.program.constant]
        if step.op == "Transpose" or len(moving) != 1:
            return None
        operand, value = moving[0]
        perms: list[tuple[int, ...]] = []
        while self._has_one_reader(value) and value in self.program.maker:
            maker = self.program.maker[value]
            before = self.program.steps[maker]
            if before.op != "Transpose":
                return _Fused(maker, before.outputs.index(value), operand, tuple(perms)) if before.op else None
            perms.append(perm_of(before.attributes))
            source = before.args[0]
            assert source is not None, "a Transpose has an operand"
            value = source
        return None

    def _has_one_reader(self, value: str) -> bool:
        return len(self.program.readers.get(value, ())) == 1 and value not in self.program.required_names

    def _saved_us(self, position: int) -> tuple[tuple[float, ...], ...]:
        """Microseconds that the backend saves by running a step as one with the maker of its operand: a row for each
        layout in which the maker makes it, a column for each form of the step."""
        fused, operator = self.fused[position], self.operators[position]
        maker, made = self.program.steps[fused.maker], tuple(self._made_layouts(position))
        kind = self.program.types[maker.outputs[fused.result]]
        key = (operator, fused.operand, fused.perms, maker.op, kind, made)
        found = self.saved.get(key)
        if found is None:
            found = self.saved[key] = tuple(
                tuple(self._saving_us(operator, fused, maker.op, kind, f, p) for f in self.forms[position])
                for p in made
            )
        return found

    def _saving_us(
        self, operator: _Operator, fused: _Fused, maker: str, kind: TensorType, form: OperatorLayout, made: Layout
    ) -> float:
        """The same for a form of an operator, whose operand is made in a layout.

        Args:
            operator: it.
            fused: with what it may be run as one.
            maker: the name of that operator.
            kind: the type of what it makes.
            form: of the operator.
            made: the layout.
        """
        wanted = form.operands[fused.operand]
        assert wanted is not None, "a moving operand is there"
        if len(wanted) != len(made):
            return 0.0
        for perm in fused.perms:
            wanted = transposed(perm, wanted)
        if moves(kind, made, wanted):
            return 0.0
        return self.pricer.fused(maker, (operator.name, form.attributes, _given(operator, form), operator.fixed))

    def _made_layouts(self, position: int) -> list[Layout]:
        """The layouts in which the maker of a step's operand makes it, by the maker's forms."""
        fused = self.fused[position]
        value = self.program.steps[fused.maker].outputs[fused.result]
        if fused.maker in self.forms:
            return [f.results[fused.result] for f in self.forms[fused.maker]]
        return [unchanged(self.program.types[value].rank or 0)]

    def _sets(self, value: str) -> _Sets:
        """The sets of layouts in which a value may be there."""
        own = unchanged(self.program.types[value].rank or 0)
        there = {own: None}
        if value in self.makers:
            i, k = self.makers[value]
            there.update((f.results[k], None) for f in self.forms[i])
        there.update(
            (p, None) for i, k in self.readers[value] for f in self.forms[i] if (p := f.operands[k]) is not None
        )
        needed = () if self._free(value) else (own,)
        found = (s for n in range(1, self.policy.together + 1) for s in combinations(there, n))
        return tuple(s for s in found if set(needed) <= set(s))

    def _free(self, value: str) -> bool:
        """Whether nothing needs the value as it is: all that makes or reads it has forms."""
        read = {i for i, _ in self.readers[value]}
        others = set(self.program.readers.get(value, ())) - read
        return value in self.makers and not others and value not in self.program.required_names

    # -- costs -------------------------------------------------------------------------------------------------------

    def _there_us(self, value: str, made: Layout, there: tuple[Layout, ...]) -> float:
        """Microseconds to have a value in several layouts; infinite where it is made in another."""
        if made not in there:
            return float("inf")
        share = self.policy.border if value in self.fed or value in self.program.outputs else 1.0
        return share * sum(self._moving_us(self.program.types[value], made, p) for p in there if p != made)

    def _edges(self, steps: Mapping[int, int], values: Mapping[str, int]) -> Iterator[tuple[int, int, np.ndarray]]:
        for value, node in values.items():
            sets, found = self.sets[value], self.makers.get(value)
            if found is not None:
                i, k = found
                made = [f.results[k] for f in self.forms[i]]
                times = {p: _integers([self._there_us(value, p, s) for s in sets]) for p in dict.fromkeys(made)}
                yield steps[i], node, np.stack([times[p] for p in made])
            readers = self.readers[value]
            read = dict.fromkeys(f.operands[k] for i, k in readers for f in self.forms[i])
            there = {p: _integers([0.0 if p in s else float("inf") for s in sets]) for p in read}
            for i, k in readers:
                yield steps[i], node, np.stack([there[f.operands[k]] for f in self.forms[i]])

    def _form_costs(self, position: int) -> list[float]:
        """Microseconds of a step by form, where the backend runs it as one with the maker of its operand if it can."""
        prices = self._forms(self.operators[position])[1]
        if self.program.steps[position].op == "Transpose":
            return [price.us for price in prices]
        left = [p.us - most for p, most in zip(prices, self._most_saved_us(position), strict=True)]
        least = min(range(len(left)), key=left.__getitem__)
        errors = (self.policy.errors * hypot(p.sigma, prices[least].sigma) for p in prices)
        return [max(left[least], us * exp(-error)) for us, error in zip(left, errors, strict=True)]

    def _most_saved_us(self, position: int) -> list[float]:
        """By form, what the backend saves where the maker makes the operand in the best layout."""
        if position not in self.fused:
            return [0.0] * len(self.forms[position])
        return [max(column) for column in zip(*self._saved_us(position), strict=True)]

    def _fusions(self, steps: Mapping[int, int]) -> Iterator[tuple[int, int, np.ndarray]]:
        """What it costs that a step and the maker of its operand are in forms which the backend does not run as one."""
        for i, fused in self.fused.items():
            if fused.maker in steps:
                saved = np.array(self._saved_us(i))
                lost = saved.max(axis=0) - saved
                if np.any(lost):
                    yield steps[fused.maker], steps[i], _integers(lost)

    def _problem(self) -> StrategyAssignmentProblem:
        from superopt.assignment import StrategyAssignmentProblem  # here, because few programs come to a choice

        steps = {i: number for number, i in enumerate(self.forms)}
        values = {v: len(steps) + number for number, v in enumerate(self.values)}
        costs = [_integers(self._form_costs(i)) for i in self.forms]
        for value, sets in self.sets.items():
            own = unchanged(self.program.types[value].rank or 0)
            made = value in self.makers
            costs.append(_integers([0.0 if made else self._there_us(value, own, s) for s in sets]))
        edges = [*self._edges(steps, values), *self._fusions(steps)]
        flat = np.concatenate(costs)
        return StrategyAssignmentProblem(
            "layouts", np.array([len(c) for c in costs]), flat, np.zeros_like(flat),
            np.zeros((len(costs), 2), np.int64), np.array([e[:2] for e in edges]).reshape(-1, 2),
            np.concatenate([e[2].reshape(-1) for e in edges]), 0,
        )  # fmt: skip

    def solved(self) -> Mapping[int, OperatorLayout] | None:
        """The forms of a choice that costs less than the steps as they are; ``None`` where none was found."""
        from superopt.assignment import evaluate, solve  # here, because few programs come to a choice

        problem = self._problem()
        own = ((unchanged(self.program.types[v].rank or 0), sets) for v, sets in self.sets.items())
        as_is = [*(0 for _ in self.forms), *(sets.index((layout,)) for layout, sets in own)]
        policy = self.policy
        try:
            found = solve(problem, work=policy.work, time_limit=policy.seconds, policy=policy.solver)
        except (InvalidModel, ResourceLimit):
            return None
        if found.cost >= evaluate(problem, as_is).cost:
            return None
        return {i: self.forms[i][s] for i, s in zip(self.forms, found.strategies, strict=False)}


def _integers(us: object) -> np.ndarray:
    """Costs of a problem."""
    ns = np.asarray(us, dtype=np.float64) * _NS
    return np.where(np.isfinite(ns), np.rint(np.where(np.isfinite(ns), ns, 0.0)), _FORBIDDEN).astype(np.int64)


def _given(operator: _Operator, form: OperatorLayout) -> tuple[TensorType | None, ...]:
    """The types of an operator's operands in a form."""
    pairs = zip(operator.types, form.operands, strict=True)
    return tuple(None if t is None or p is None else in_layout(t, p) for t, p in pairs)


def _raises(operator: _Operator, form: OperatorLayout) -> bool:
    """Whether the operands that get leading axes are of known sizes, so that a Reshape can be written."""
    pairs = zip(operator.types, form.operands, strict=True)
    return all(t is None or p is None or len(p) == t.rank or t.is_static for t, p in pairs)


def _operator(program: GraphProgram, step: ProgramStep) -> _Operator | None:
    """``None`` for a barrier, and where the type of an operand is not known."""
    types = tuple(None if a is None else program.types.get(a) for a in step.args)
    known = all(t is not None and t.shape is not None for a, t in zip(step.args, types, strict=True) if a is not None)
    if not step.op or not known:
        return None
    fixed = tuple(a is not None and a in program.constant for a in step.args)
    return _Operator(step.op, step.attributes, types, fixed)


def _stays(program: GraphProgram, position: int, layouts: tuple[Layout, ...]) -> bool:
    """Whether a Transpose remains in every choice: what makes its operand and what reads its result have one form."""
    step = program.steps[position]
    (source,), (result,) = step.args, step.outputs
    kind = None if source is None else program.types.get(source)
    if source is None or kind is None or kind.shape is None:
        return True
    layout = layout_of(perm_of(step.attributes))
    if all(m.op != "Transpose" for m in moves(kind, unchanged(len(layout)), layout)):
        return False

    def flexible(neighbour: int) -> bool:
        operator = _operator(program, program.steps[neighbour])
        return operator is not None and (operator.name == "Transpose" or len(operator.forms(layouts)) > 1)

    maker, readers = program.maker.get(source), program.readers.get(result, ())
    movable = result not in program.required_names and all(map(flexible, readers))
    return not movable and (maker is None or not flexible(maker))
