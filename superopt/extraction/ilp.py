"""Extraction as an integer program, solved by HiGHS.

``x`` selects e-nodes and ``y`` marks the classes that are computed; lazy cuts forbid cycles. Classes that every program
computes are fixed beforehand, which makes the bound of the linear relaxation tight. Tensat (Yang et al., MLSys 2021)
uses such a program with topological variables in place of cuts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import highspy
import numpy as np

from superopt.extraction.dag import Choice, ExtractionProblem, cost_of, used_classes
from superopt.extraction.pruning import reduced, requirements
from superopt.runtime.highs import solver

__all__ = ["solve"]


@dataclass(frozen=True)
class IlpPolicy:
    """The bounds of the integer program.

    Attributes:
        cut_rounds: times that cycles are cut: a program with more cycles takes seconds, and gains less than
            measurements resolve.
        cut_candidates: candidates up to which cycles are cut at all.
        nodes: of the branch-and-bound tree: unlike the clock, the same on every machine.
        candidates: that are left: beyond, the solver takes seconds and hardly ever improves on the local search.
        gap: relative gap at which a program counts as optimal: far below what measurements resolve.
    """

    cut_rounds: int = 2
    cut_candidates: int = 100
    nodes: int = 10
    candidates: int = 200
    gap: float = 5e-4


POLICY = IlpPolicy()


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


def solve(problem: ExtractionProblem, incumbent: Choice, seconds: float, seed: int = 0) -> Choice:
    """The cheapest program, or the best found in the time; never worse than the incumbent.

    Cycles are forbidden when they show up: the program is solved again with a cut for each, which is much faster than
    order variables for all.

    Args:
        problem: what to choose from.
        incumbent: a program, from which the solver starts.
        seconds: wall time for the solver; the limits that count are those of size and nodes, which do not depend on
            how busy the machine is.
        seed: of the solver's own choices.
    """
    best, least = incumbent, cost_of(problem, incumbent)
    if all(len(o) == 1 for o in problem.of.values()) or seconds <= 0:
        return best
    deadline = time.monotonic() + seconds
    problem = reduced(problem, incumbent, least * (1 - POLICY.gap))
    if all(len(o) == 1 for o in problem.of.values()) or sum(map(len, problem.of.values())) > POLICY.candidates:
        return best
    model, x, y = _build(problem)
    for _ in range(POLICY.cut_rounds):
        solved = _run(model, problem, best, x, y, deadline - time.monotonic(), seed)
        values = list(solved.getSolution().col_value)
        if len(values) != len(model.cost):
            return best
        choice = _read(problem, x, values)
        us = cost_of(problem, choice)
        if us < least:
            best, least = choice, us
        cycles = _cycles(problem, choice)
        if not cycles or len(x) > POLICY.cut_candidates or time.monotonic() > deadline:
            return best
        for cycle in cycles:
            _cut(model, problem, x, cycle)
    return best


def _run(
    model: _Model,
    problem: ExtractionProblem,
    incumbent: Choice,
    x: Sequence[int],
    y: Mapping[int, int],
    seconds: float,
    seed: int,
) -> highspy.Highs:
    made = solver(
        time_limit=max(0.05, seconds),
        random_seed=seed % (1 << 31),
        mip_rel_gap=POLICY.gap,
        mip_max_nodes=POLICY.nodes,
    )
    made.passModel(_highs(model))
    _warm_start(made, problem, incumbent, x, y)
    made.run()
    return made


def _cycles(problem: ExtractionProblem, choice: Choice) -> list[list[int]]:
    """Disjoint cycles among the chosen candidates, each as classes in the order of need."""
    state: dict[int, int] = {}
    found: list[list[int]] = []
    for root in choice:
        path: list[int] = []
        work: list[tuple[int, int]] = [(root, 0)] if root not in state else []
        while work:
            here, position = work.pop()
            if position == 0:
                state[here] = 1
                path.append(here)
            needs = problem.candidates[choice[here]].needs if here in choice else ()
            for offset in range(position, len(needs)):
                there = needs[offset]
                if there not in state:
                    work += [(here, offset + 1), (there, 0)]
                    break
                if state[there] == 1:
                    found.append(path[path.index(there) :])
            else:
                state[here] = 2
                path.pop()
    return found


def _cut(model: _Model, problem: ExtractionProblem, x: Sequence[int], cycle: Sequence[int]) -> None:
    """Not all the classes of a cycle may be computed by candidates that need the next one."""
    entries: list[tuple[int, float]] = []
    for owner, need in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
        entries += [(x[i], 1.0) for i in problem.of[owner] if need in problem.candidates[i].needs]
    model.row(-np.inf, len(cycle) - 1.0, entries)


def _build(problem: ExtractionProblem) -> tuple[_Model, list[int], dict[int, int]]:
    model = _Model()
    required = requirements(problem)
    x = [model.variable(c.us) for c in problem.candidates]
    y = {o: model.variable(0.0, 1.0 if o in required.always else 0.0) for o in problem.of}
    for owner, options in problem.of.items():
        model.row(0.0, 0.0, [(y[owner], -1.0), *((x[i], 1.0) for i in options)])
        for below in sorted(required.of_class[owner]):
            model.row(0.0, np.inf, [(y[below], 1.0), (y[owner], -1.0)])
        for below in sorted({n for i in options for n in required.of_candidate[i]}):
            by = [i for i in options if below in required.of_candidate[i]]
            model.row(0.0, np.inf, [(y[below], 1.0), *((x[i], -1.0) for i in by)])
    for owner in y:
        if owner not in problem.roots:  # computed only if something reads it
            model.row(0.0, np.inf, [(y[owner], -1.0), *((x[i], 1.0) for i in problem.readers.get(owner, ()))])
    for owner, other in _mutual(problem):
        _cut(model, problem, x, (owner, other))
    _add_savings(problem, model, x)
    return model, x, y


def _add_savings(problem: ExtractionProblem, model: _Model, x: list[int]) -> None:
    """``z`` says that a pair is fused: both are chosen, each in one pair, and no other class reads the producer's."""
    pairs: dict[int, list[int]] = {}  # of a candidate: each z that it is in
    fused: dict[int, list[tuple[int, int]]] = {}  # by the producer's class: z, and the consumer's class
    for saving in problem.savings:
        z = model.variable(-saving.us)
        producer, consumer = (problem.candidates[i].owner for i in (saving.producer, saving.consumer))
        fused.setdefault(producer, []).append((z, consumer))
        pairs.setdefault(saving.consumer, []).append(z)
        pairs.setdefault(saving.producer, []).append(z)
    for index, group in pairs.items():
        model.row(0.0, np.inf, [(x[index], 1.0), *((z, -1.0) for z in group)])
    for owner, made in fused.items():  # of a class one candidate is chosen at most, so a row speaks for all of them
        readers: dict[int, list[int]] = {}
        for i in problem.readers.get(owner, ()):
            readers.setdefault(problem.candidates[i].owner, []).append(i)
        for reader, options in readers.items():
            others = [(z, 1.0) for z, consumer in made if consumer != reader]
            if others:
                model.row(-np.inf, 1.0, [*others, *((x[i], 1.0) for i in options)])


def _mutual(problem: ExtractionProblem) -> list[tuple[int, int]]:
    """Pairs of classes that could each be computed from the other."""
    needs = {o: {n for i in opts for n in problem.candidates[i].needs} for o, opts in problem.of.items()}
    return sorted((a, b) for a, below in needs.items() for b in below if a < b and a in needs.get(b, ()))


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
    program: highspy.Highs, problem: ExtractionProblem, incumbent: Choice, x: Sequence[int], y: Mapping[int, int]
) -> None:
    """Give the program the incumbent's choices; it completes order and saving variables itself."""
    used = used_classes(problem, incumbent) or []
    chosen = {x[incumbent[o]] for o in used} | {y[o] for o in used}
    known = [*x, *y.values()]
    index = np.array(known, dtype=np.int32)
    program.setSolution(len(known), index, np.array([1.0 if i in chosen else 0.0 for i in known]))


def _read(problem: ExtractionProblem, x: Sequence[int], values: Sequence[float]) -> Choice:
    return {
        owner: max(options, key=lambda i: values[x[i]])
        for owner, options in problem.of.items()
        if options and max(values[x[i]] for i in options) > 0.5
    }
