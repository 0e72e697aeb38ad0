"""Extraction as an integer program, solved by HiGHS.

``x`` says which candidate is chosen, ``y`` which classes are computed; within a strongly connected component of classes
an order variable forbids that a value depends on itself. Classes that every program computes are fixed beforehand, which
lifts the relaxation's bound from useless to nearly tight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import highspy
import numpy as np

from superopt.search.extract import Choice, Problem, cost_of, used_classes

__all__ = ["Solution", "solve"]


@dataclass(frozen=True)
class Solution:
    """The best choice found, and whether it is proved optimal; ``gap`` is relative."""

    choice: Choice
    us: float
    optimal: bool
    gap: float


@dataclass
class _Model:
    cost: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    rows: list[tuple[float, float, list[tuple[int, float]]]] = field(default_factory=list)

    def variable(self, cost: float, lower: float = 0.0, upper: float = 1.0, *, whole: bool = True) -> int:
        self.cost.append(cost)
        self.lower.append(lower)
        self.upper.append(upper)
        self.whole.append(whole)
        return len(self.cost) - 1

    def row(self, lower: float, upper: float, entries: list[tuple[int, float]]) -> None:
        self.rows.append((lower, upper, entries))


def solve(problem: Problem, incumbent: Choice, seconds: float, seed: int = 0) -> Solution:
    """The cheapest program, or the best found in the time; never worse than the incumbent.

    Args:
        incumbent: a program, from which the solver starts.
        seconds: wall time for the solver.
    """
    start = cost_of(problem, incumbent)
    if all(len(o) == 1 for o in problem.of.values()) or seconds <= 0:
        return Solution(incumbent, start, seconds > 0, 0.0)
    model, x, y = _build(problem)
    solver = highspy.Highs()
    for name, value in (
        ("output_flag", False), ("time_limit", max(0.05, seconds)), ("threads", 1), ("random_seed", seed % (1 << 31)),
        ("mip_rel_gap", 1e-6), ("parallel", "off"),
    ):  # fmt: skip
        solver.setOptionValue(name, value)
    solver.passModel(_highs(model))
    _warm_start(solver, problem, incumbent, model, x, y)
    solver.run()
    info = solver.getInfo()
    values = list(solver.getSolution().col_value)
    choice = _read(problem, x, values) if len(values) == len(model.cost) else incumbent
    us = cost_of(problem, choice)
    if us >= start:
        choice, us = incumbent, start
    optimal = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    gap = 0.0 if optimal else float(info.mip_gap) if np.isfinite(info.mip_gap) else 1.0
    return Solution(choice, us, optimal, gap)


def _build(problem: Problem) -> tuple[_Model, list[int], dict[int, int]]:
    model = _Model()
    always = _always(problem)
    x = [model.variable(c.us) for c in problem.candidates]
    y = {o: model.variable(0.0, 1.0 if o in always else 0.0) for o in problem.of}
    for owner, options in problem.of.items():
        model.row(0.0, 0.0, [(y[owner], -1.0), *((x[i], 1.0) for i in options)])
        shared = set.intersection(*(set(problem.candidates[i].needs) for i in options)) if options else set()
        for need in sorted(shared):
            model.row(0.0, np.inf, [(y[need], 1.0), (y[owner], -1.0)])
        for need in sorted({n for i in options for n in problem.candidates[i].needs} - shared):
            by = [i for i in options if need in problem.candidates[i].needs]
            model.row(0.0, np.inf, [(y[need], 1.0), *((x[i], -1.0) for i in by)])
    for owner in y:
        if owner not in problem.roots:  # computed only if something reads it
            model.row(0.0, np.inf, [(y[owner], -1.0), *((x[i], 1.0) for i in problem.readers.get(owner, ()))])
    for component in components(problem):
        rank = {o: model.variable(0.0, 0.0, float(len(component)), whole=False) for o in component}
        big = float(len(component) + 1)
        for owner in component:
            for i in problem.of[owner]:
                for need in problem.candidates[i].needs:
                    if need in rank:  # rank(owner) >= rank(need) + 1 where chosen
                        model.row(1.0 - big, np.inf, [(rank[owner], 1.0), (rank[need], -1.0), (x[i], -big)])
    _add_savings(problem, model, x)
    return model, x, y


def _add_savings(problem: Problem, model: _Model, x: list[int]) -> None:
    once: dict[int, list[int]] = {}
    for saving in problem.savings:
        z = model.variable(-saving.us)
        model.row(0.0, np.inf, [(x[saving.producer], 1.0), (z, -1.0)])
        model.row(0.0, np.inf, [(x[saving.consumer], 1.0), (z, -1.0)])
        owner = problem.candidates[saving.producer].owner
        others = [i for i in problem.readers.get(owner, ()) if i != saving.consumer]
        for i in others:
            model.row(-np.inf, 1.0, [(z, 1.0), (x[i], 1.0)])
        once.setdefault(saving.consumer, []).append(z)
        once.setdefault(saving.producer, []).append(z)
    for group in once.values():
        if len(group) > 1:
            model.row(-np.inf, 1.0, [(z, 1.0) for z in group])


def _always(problem: Problem) -> frozenset[int]:
    """Classes that every program computes: roots, and what all candidates of such a class need."""
    found: set[int] = set()
    stack = list(problem.roots)
    while stack:
        owner = stack.pop()
        if owner in found:
            continue
        found.add(owner)
        options = [set(problem.candidates[i].needs) for i in problem.of[owner]]
        if options:
            stack.extend(set.intersection(*options))
    return frozenset(found)


def components(problem: Problem) -> list[list[int]]:
    """Strongly connected components of more than one class (Tarjan, iterative)."""
    needs = {o: sorted({n for i in opts for n in problem.candidates[i].needs}) for o, opts in problem.of.items()}
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    found: list[list[int]] = []
    for root in needs:
        if root in index:
            continue
        work: list[tuple[int, int]] = [(root, 0)]
        while work:
            here, position = work.pop()
            if position == 0:
                index[here] = low[here] = len(index)
                stack.append(here)
                on_stack.add(here)
            for offset in range(position, len(needs[here])):
                there = needs[here][offset]
                if there not in index:
                    work.append((here, offset + 1))
                    work.append((there, 0))
                    break
                if there in on_stack:
                    low[here] = min(low[here], index[there])
            else:
                if low[here] == index[here]:
                    component: list[int] = []
                    while not component or component[-1] != here:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                    if len(component) > 1:
                        found.append(component)
                if work:
                    above = work[-1][0]
                    low[above] = min(low[above], low[here])
    return found


def _highs(model: _Model) -> highspy.HighsLp:
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(model.cost), len(model.rows)
    lp.col_cost_ = np.array(model.cost)
    lp.col_lower_, lp.col_upper_ = np.array(model.lower), np.array(model.upper)
    lp.row_lower_ = np.array([r[0] for r in model.rows])
    lp.row_upper_ = np.array([r[1] for r in model.rows])
    lp.integrality_ = [highspy.HighsVarType.kInteger if w else highspy.HighsVarType.kContinuous for w in model.whole]
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.cumsum([0, *(len(r[2]) for r in model.rows)]).astype(np.int32)
    lp.a_matrix_.index_ = np.array([i for r in model.rows for i, _ in r[2]], dtype=np.int32)
    lp.a_matrix_.value_ = np.array([v for r in model.rows for _, v in r[2]])
    return lp


def _warm_start(
    solver: highspy.Highs, problem: Problem, incumbent: Choice, model: _Model, x: Sequence[int], y: Mapping[int, int]
) -> None:
    """Give the solver the incumbent's choices; it completes order and saving variables itself."""
    used = used_classes(problem, incumbent) or []
    chosen = {x[incumbent[o]] for o in used} | {y[o] for o in used}
    known = [*x, *y.values()]
    index = np.array(known, dtype=np.int32)
    solver.setSolution(len(known), index, np.array([1.0 if i in chosen else 0.0 for i in known]))


def _read(problem: Problem, x: Sequence[int], values: Sequence[float]) -> Choice:
    return {
        owner: max(options, key=lambda i: values[x[i]])
        for owner, options in problem.of.items()
        if options and max(values[x[i]] for i in options) > 0.5
    }
