"""How far plans of recomputation are from the best: Checkmate's program, bounds, and Chen's √n beside superopt's own.

Checkmate's program (Jain et al., arXiv 1910.02653) is solved as published where it can be, at some dozen nodes; it
shares no code with the planner. Beyond, a bound from below (:func:`superopt.memory.least_time`) takes its place, which
no plan with the same order of first executions goes below, Checkmate's optimum included.

    python -m lab.optimum corpus/tiny/MODEL.json … --seconds 20     # steps; none: chains, U-shaped graphs
    python -m lab.optimum --layers 96                               # a transformer's step, beside √n
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import highspy

from superopt import formats
from superopt.cost import for_target
from superopt.cost.graph_costs import task_of
from superopt.frontend.training import train_step
from superopt.ir.errors import SuperoptError
from superopt.memory import Op, Step, Task, Timetable, front, least_time, made_again, peak_of, plain
from superopt.ops.record import NotCovered
from superopt.runtime.numeric_libraries import solver
from superopt.runtime.sample_data import with_values

__all__ = ["Row", "chain", "checkmate", "compared", "keeping", "main", "transformer_step", "u_shaped"]

_TARGET = "profile:cpu-epyc-2core"
_SHARES = (0.05, 0.10, 0.20)  # of the time, computed again, at which plans are compared
_WITHIN = 1.02  # of the optimum's time
_EVERY = (1, 2, 3, 4, 6, 8, 10, 12, 16, 24)  # layers of which one's input is kept


def checkmate(task: Task, peak: int, seconds: float = inf) -> tuple[float, float]:
    """Checkmate's optimum: microseconds of computing again within some bytes, and the solver's bound of them.

    In stage t, node t is executed first, and before it any of those before it again, once, in their order; a value is
    kept from stage to stage or not, and free after its last reader of the stage.

    Args:
        task: without views; the program has the square of its nodes.
        peak: bytes.
        seconds: for the solver.

    Returns:
        Both are infinite where there is no plan.
    """
    program = solver(time_limit=seconds)
    count, total = len(task.ops), sum(op.us for op in task.ops)
    maker = {v: i for i, op in enumerate(task.ops) for v in op.makes}
    run = {(t, i): program.addBinary(obj=task.ops[i].us / total) for t in range(count) for i in range(t + 1)}
    keep = {(t, v): program.addBinary() for t in range(count + 1) for v, i in maker.items() if i < t}
    for t in range(count):
        program.addConstr(run[t, t] == 1)
        for v, i in maker.items():
            if i < t:  # what is kept has been there
                program.addConstr(keep[t, v] <= run[t - 1, i] + keep.get((t - 1, v), 0))
        for i in range(t + 1):
            if i < t and not task.ops[i].repeatable:
                program.addConstr(run[t, i] == 0)
            for v in task.ops[i].reads:
                program.addConstr(run[t, i] <= run[t, maker[v]] + keep.get((t, v), 0))
        _stage(program, task, run, keep, t, peak)
    for v in task.results:
        program.addConstr(keep[count, v] == 1)
    for v, i in maker.items():
        program.addConstr(keep[count, v] <= run[count - 1, i] + keep.get((count - 1, v), 0))
    program.solve()
    if program.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
        return inf, inf
    info = program.getInfo()
    return (info.objective_function_value - 1.0) * total, (info.mip_dual_bound - 1.0) * total


def _stage(
    program: highspy.Highs, task: Task, run: dict[tuple[int, int], Any], keep: dict[tuple[int, int], Any], t: int,
    peak: int,
) -> None:  # fmt: skip
    """What is there while each node of a stage is executed fits."""
    for k in range(t + 1):
        terms: list[Any] = []
        for i in range(t + 1):
            for v in task.ops[i].makes:
                if not task.sizes[v]:
                    continue
                there = program.addVariable(0, 1)
                if i == k:
                    program.addConstr(there >= run[t, k])
                later = [run[t, r] for r in range(k, t + 1) if v in task.ops[r].reads]
                later += [keep[t + 1, v]] if (t + 1, v) in keep else []
                for need in later:  # it is needed, and has been there at the stage's beginning or been made in it
                    if i <= k:
                        program.addConstr(there >= need)
                    elif (t, v) in keep:
                        program.addConstr(there >= need + keep[t, v] - 1)
                terms.append(task.sizes[v] / max(peak, 1) * there)
        if terms:
            program.addConstr(sum(terms[1:], terms[0]) <= 1)


def keeping(task: Task, kept: Collection[int], cut: int) -> Timetable:
    """Chen's schedule (arXiv 1604.06174): of what is made before the op ``cut`` these values are kept, and the others
    made again when they are needed."""
    steps, original = [Step(i, op.reads, op.makes) for i, op in enumerate(task.ops[:cut])], list(range(len(task.sizes)))
    maker = {v: i for i, op in enumerate(task.ops) for v in op.makes}
    there = {v: v for v in kept}
    us = 0.0
    for at in range(cut, len(task.ops)):
        for value in reversed(task.ops[at].reads):
            us += made_again(task, value, makers=maker, there=there, steps=steps, original=original)
        op = task.ops[at]
        steps.append(Step(at, tuple(there[v] for v in op.reads), op.makes))
        there.update((v, v) for v in op.makes)
    return Timetable(tuple(steps), tuple(original), us, *peak_of(task, steps, original))


def chain(length: int) -> Task:
    """A chain of equal nodes, and its derivative, which reads each of its values in the opposite order."""
    ops = [Op((i - 1,) if i else (), (i,), 1.0) for i in range(length)]
    ops += [Op(tuple(dict.fromkeys((length + k - 1, length - k - 1))), (length + k,), 2.0) for k in range(length)]
    return Task(tuple(ops), (1,) * (2 * length), frozenset(), frozenset({2 * length - 1}))


def u_shaped(depth: int) -> Task:
    """The step of a net whose values shrink and grow again, with a connection across on each level."""
    sizes, ops, across = list[int](), list[Op](), list[int]()

    def add(reads: Sequence[int], size: int) -> int:
        ops.append(Op(tuple(dict.fromkeys(reads)), (len(sizes),), 1.0 + size / 4))
        sizes.append(size)
        return len(sizes) - 1

    last: list[int] = []
    for level in range(depth):
        for _ in range(2):
            last = [add(last, 2 ** (depth - level))]
        across += last
        last = [add(last, 2 ** (depth - level - 1))]
    for level in reversed(range(depth)):
        last = [add([*last, across[level]], 2 ** (depth - level))]
        last = [add(last, 2 ** (depth - level))]
    ahead = list(ops)
    gradient = {ahead[-1].makes[0]: add(last, sizes[last[0]])}
    for op in reversed(ahead):
        for value in op.reads:
            mine = [*op.reads, gradient[op.makes[0]]]
            gradient[value] = add([*mine, *([gradient[value]] if value in gradient else [])], sizes[value])
    return Task(tuple(ops), tuple(sizes), frozenset(), frozenset({len(sizes) - 1}))


def transformer_step(layers: int) -> tuple[Task, list[int], int]:
    """A transformer's training step, made up: 15 operators a layer ahead and 20 back; and what layers begin with, and
    the first operator of the way back.

    Sizes are of 4 units (queries, keys, values, sums), 16 (the inner layer of the MLP), 8 (scores); times in proportion
    to the products.
    """
    sizes, ops = list[int](), list[Op]()

    def add(reads: Sequence[int], size: int, us: float) -> int:
        ops.append(Op(tuple(dict.fromkeys(reads)), (len(sizes),), us))
        sizes.append(size)
        return len(sizes) - 1

    begins, inner = list[int](), list[list[int]]()
    x = add((), 4, 1.0)
    for _ in range(layers):
        begins.append(x)
        norm = add((x,), 4, 1.0)
        q, k, v = (add((norm,), 4, 8.0) for _ in range(3))
        scores = add((q, k), 8, 6.0)
        soft = add((add((scores,), 8, 1.0),), 8, 2.0)
        mixed = add((soft, v), 4, 6.0)
        out = add((add((mixed,), 4, 8.0), x), 4, 1.0)
        again = add((out,), 4, 1.0)
        up = add((again,), 16, 32.0)
        act = add((up,), 16, 3.0)
        x_next = add((add((act,), 4, 32.0), out), 4, 1.0)
        inner.append([x, norm, q, k, v, soft, mixed, out, again, up, act])
        x = x_next
    cut = len(ops)
    g = add((x,), 4, 1.0)
    for x_in, norm, q, k, v, soft, mixed, out, again, up, act in reversed(inner):
        add((act, g), 0, 32.0)
        d_act = add((g,), 16, 32.0)
        d_up = add((up, d_act), 16, 4.0)
        add((again, d_up), 0, 32.0)
        d_again = add((d_up,), 4, 32.0)
        d_out = add((add((out, d_again), 4, 2.0), g), 4, 1.0)
        add((mixed, d_out), 0, 8.0)
        d_mixed = add((d_out,), 4, 8.0)
        d_v, d_soft = add((soft, d_mixed), 4, 6.0), add((v, d_mixed), 8, 6.0)
        d_scores = add((soft, d_soft), 8, 2.0)
        d_q, d_k = add((k, d_scores), 4, 6.0), add((q, d_scores), 4, 6.0)
        for d in (d_q, d_k, d_v):
            add((norm, d), 0, 8.0)
        d_norm = add((d_q, d_k, d_v), 4, 24.0)
        g = add((add((x_in, d_norm), 4, 2.0), d_out), 4, 1.0)
    return Task(tuple(ops), tuple(sizes), frozenset(), frozenset({g})), begins, cut


@dataclass(frozen=True)
class Row:
    """A plan of superopt's and the best within its bytes: bytes as a share of the order's as given, microseconds
    computed again as shares of the time of everything."""

    graph: str
    ops: int
    peak: float
    again: float
    bound: float
    seconds: float

    @property
    def ratio(self) -> float:
        """Time of everything ÷ the bound of the best plan's within the same bytes."""
        return (1.0 + self.again) / (1.0 + self.bound)


def compared(name: str, task: Task, seconds: float, shares: Sequence[float] = _SHARES) -> list[Row]:
    """The plans of a front at some shares of the time beside the bound.

    Args:
        name: the graph's.
        task: it.
        seconds: for the bound of each, in which nodes are whole.
        shares: of the time.
    """
    start = time.monotonic()
    plans = front(task)
    took = time.monotonic() - start
    small, total = plain(task), sum(op.us for op in task.ops)
    rows: dict[int, Row] = {}
    for share in shares:
        plan = max((p for p in plans if p.us <= share * total), key=lambda p: p.us)
        if plan.us and plan.peak not in rows:
            near = (1.0 + plan.us / total) / _WITHIN * total - total
            best = least_time(small, plan.peak).us
            if best < near and seconds:
                best = max(best, least_time(small, plan.peak, rows=5_000, seconds=seconds, enough=near).us)
            rows[plan.peak] = Row(name, len(small.ops), plan.peak / plans[0].peak, plan.us / total, best / total, took)
    return list(rows.values())


def rendered(rows: Sequence[Row]) -> str:
    """A table in Markdown."""
    lines = ["| graph | operators | bytes | computed again | bound of the best | time ÷ the bound's | front in |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for r in rows:
        lines.append(f"| {r.graph} | {r.ops} | {r.peak:.3f} | {r.again:.2%} | {r.bound:.2%} | {r.ratio:.4f} | "
                     f"{r.seconds:.1f} s |")  # fmt: skip
    near = sum(r.ratio <= _WITHIN for r in rows)
    return "\n".join([*lines, "", f"Within 2 % of the bound: {near} of {len(rows)}.", ""])


def beside_root(layers: int) -> str:
    """A table in Markdown: a transformer's step by superopt, by √n, and bounds."""
    task, begins, cut = transformer_step(layers)
    total = sum(op.us for op in task.ops)
    start = time.monotonic()
    plans = front(task)
    took = time.monotonic() - start
    given = plans[0].peak
    lines = [
        f"{len(task.ops):,} operators, planned in {took:.0f} s; bytes of {given:,} units.",
        "",
        "| plan | bytes | computed again | superopt within its bytes | bound within its bytes |",
        "|---|---|---|---|---|",
    ]
    chen = [(f"√n, every {n} layers", keeping(task, begins[::n], cut)) for n in _EVERY if n < layers]
    picked = plans[1 :: max(len(plans) // 16, 1)]
    for name, plan in [*chen, *(("superopt", p) for p in picked)]:
        ours = min((p.us for p in plans if p.peak <= plan.peak), default=inf)
        bound = least_time(task, plan.peak, rows=1).us
        lines.append(f"| {name} | {plan.peak / given:.3f} | {plan.us / total:.1%} | "
                     f"{'–' if ours == inf else f'{ours / total:.1%}'} | {bound / total:.1%} |")  # fmt: skip
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare plans and write the table.

    Args:
        arguments: see ``--help``.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, help="whose training steps (mean squares, SGD) are planned")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each bound")
    parser.add_argument("--layers", type=int, default=0, help="of a transformer, beside √n")
    given = parser.parse_args(arguments)
    if given.layers:
        print(beside_root(given.layers))
        return
    made = {f"chain of {n}": chain(n) for n in (32, 64)} | {f"U of {n} levels": u_shaped(n) for n in (4, 8)}
    rows = [r for n, task in ({} if given.models else made).items() for r in compared(n, task, given.seconds)]
    for path in given.models:
        try:
            graph = train_step(with_values(formats.load(path)), "mse", "sgd").graph
            with for_target(_TARGET) as model:
                task = task_of(graph, model).task
        except (SuperoptError, NotCovered) as error:
            print(f"{path.stem}: {error}", file=sys.stderr)
            continue
        rows += compared(path.stem, task, given.seconds)
        print(path.stem, file=sys.stderr, flush=True)
    print(rendered(rows))


if __name__ == "__main__":
    main()
