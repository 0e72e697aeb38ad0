"""Strategy assignment: optima of small problems by exhaustion, bounds below them, limits, and the input's errors."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from superopt.assignment import (
    AssignmentSolverPolicy,
    StrategyAssignmentProblem,
    evaluate,
    parse_problem,
    problem_from_json,
    solve,
)
from superopt.cli import app
from superopt.errors import InvalidModel, ResourceLimit, UsageError

FORBIDDEN = 10**18


def drawn(seed: int, *, scale: int = 100, forbidden: float = 0.15, slack: float = 0.4) -> dict[str, Any]:
    """A random problem of 2 to 8 nodes: parallel edges, loops, empty intervals, nodes with one strategy."""
    generator = np.random.default_rng(seed)
    nodes = int(generator.integers(2, 9))
    sizes = generator.integers(1, 5, nodes).tolist()

    def costs(count: int) -> list[int]:
        row = generator.integers(0, scale, count, dtype=np.int64)
        return [FORBIDDEN if f else c for c, f in zip(row.tolist(), generator.random(count) < forbidden, strict=True)]

    ends = generator.integers(0, nodes, (int(generator.integers(0, 2 * nodes)), 2)).tolist()
    starts = generator.integers(0, 6, nodes)
    usages = [generator.integers(0, 50, s).tolist() for s in sizes]
    intervals = np.stack([starts, starts + generator.integers(0, 5, nodes)], axis=1).tolist()
    least, most = (
        max(
            sum(f(u) for u, (s, e) in zip(usages, intervals, strict=True) if s <= t < e) for t in range(12)
        ) for f in (min, max)
    )  # fmt: skip
    table = {"nodes": ends, "costs": [costs(sizes[a] * sizes[b]) for a, b in ends]}
    body = {"costs": [costs(s) for s in sizes], "usages": usages, "intervals": intervals}
    return {"problem": {"name": "drawn", "nodes": body, "edges": table,
                        "usage_limit": least + int(slack * (most - least))}}  # fmt: skip


def optimum(problem: StrategyAssignmentProblem, forbidden: int = FORBIDDEN) -> int | None:
    """The least cost within the limit, by exhaustion; ``None`` where all that fits is forbidden."""
    values = (evaluate(problem, s) for s in itertools.product(*(range(k) for k in problem.sizes.tolist())))
    return min((v.cost for v in values if v.feasible and v.cost < forbidden), default=None)


@pytest.mark.parametrize("seeds", [range(k, k + 20) for k in range(0, 100, 20)], ids=lambda r: f"from {r.start}")
def test_the_optimum_of_small_problems(seeds: range) -> None:
    solvable = 0
    for seed in seeds:
        problem = problem_from_json(drawn(seed))
        best = optimum(problem)
        if best is None:
            with pytest.raises(InvalidModel):
                solve(problem, work=12)
            continue
        solvable += 1
        result = solve(problem, work=30)
        assert result.cost == best, seed
        assert result.bound <= best, seed
        assert evaluate(problem, result.strategies).feasible
        assert result.peak == evaluate(problem, result.strategies).peak
    assert solvable >= 5


@pytest.mark.parametrize("seed", range(8))
def test_an_integer_program_proves_the_optimum(seed: int) -> None:
    problem = problem_from_json(drawn(seed, forbidden=0.0))
    result = solve(problem, work=1)
    assert result.cost == result.bound == optimum(problem)
    assert result.gap == 0


def test_costs_of_64_bits() -> None:
    for seed in range(10):
        problem = problem_from_json(drawn(seed, scale=4 * 10**17, forbidden=0.0))
        result, best = solve(problem, work=30), optimum(problem, forbidden=2**63)
        assert best is not None
        assert result.cost == evaluate(problem, result.strategies).cost
        assert result.bound <= best <= result.cost <= best * (1 + 1e-12)


def test_equal_work_and_seed_give_equal_results() -> None:
    problem = problem_from_json(drawn(3, forbidden=0.0, slack=0.2))
    first, second = (solve(problem, work=8, seed=5) for _ in range(2))
    assert (first.strategies, first.cost, first.bound, first.steps) == (
        second.strategies, second.cost, second.bound, second.steps,
    )  # fmt: skip


def graph(costs: list[list[int]], usages: list[list[int]], intervals: list[list[int]], limit: int,
          edges: dict[tuple[int, int], list[int]] | None = None) -> StrategyAssignmentProblem:  # fmt: skip
    joined = edges or {}
    return problem_from_json({"problem": {
        "nodes": {"costs": costs, "usages": usages, "intervals": intervals},
        "edges": {"nodes": [list(pair) for pair in joined], "costs": list(joined.values())}, "usage_limit": limit,
    }})  # fmt: skip


def test_a_node_holds_nothing_at_the_end_of_its_interval() -> None:
    costs, usages = [[0, 9], [0, 9]], [[10, 1], [10, 1]]
    assert solve(graph(costs, usages, [[0, 2], [2, 4]], 10), work=3).cost == 0
    assert solve(graph(costs, usages, [[0, 3], [2, 4]], 11), work=3).cost == 9
    assert solve(graph(costs, usages, [[0, 3], [3, 3]], 10), work=3).cost == 0  # an empty interval holds nothing


def test_bytes_and_times_of_64_bits() -> None:
    large, intervals = [2**62, 1], [[-(2**63), 2**63 - 1], [0, 1]]
    result = solve(graph([[1, 2], [0, 5]], [large, large], intervals, 2**63 - 1), work=20)
    assert (result.cost, result.peak) == (2, 2**62 + 1)  # both together are one byte over the limit
    result = solve(graph([[1, 2], [0, 5]], [[2**61, 1], [2**62, 1]], intervals, 2**63 - 1), work=20)
    assert (result.cost, result.bound, result.peak) == (1, 1, 2**62 + 2**61)


def test_negative_costs() -> None:
    problem = graph([[-5, 2], [0, -7]], [[0, 0], [0, 0]], [[0, 1], [0, 1]], 10, {(0, 1): [-1, 3, 0, -9]})
    assert solve(problem, work=5).cost == optimum(problem) == -14


def test_parallel_edges_add_and_loops_count_the_diagonal() -> None:
    body = {"costs": [[0, 3], [0, 0]], "usages": [[0, 0], [0, 0]], "intervals": [[0, 1], [0, 1]]}
    edges = {"nodes": [[0, 1], [1, 0], [0, 0]], "costs": [[0, 5, 5, 0], [2, 0, 0, 2], [4, 9, 9, 0]]}
    problem = problem_from_json({"problem": {"nodes": body, "edges": edges, "usage_limit": 0}})
    result = solve(problem, work=5)
    assert result.cost == result.bound == optimum(problem) == 5
    assert evaluate(problem, (0, 1)).cost == 9


def test_a_problem_without_nodes_or_choices() -> None:
    assert solve(graph([], [], [], 0), work=0).strategies == ()
    result = solve(graph([[7], [2]], [[3], [3]], [[0, 2], [1, 3]], 6, {(0, 1): [5]}), work=0)
    assert (result.strategies, result.cost, result.bound, result.peak) == ((0, 0), 14, 14, 6)


def test_what_no_assignment_can_be_is_said() -> None:
    with pytest.raises(InvalidModel, match="over the limit at one moment"):
        solve(graph([[0]], [[5]], [[0, 1]], 4), work=1)
    with pytest.raises(InvalidModel, match="no strategy is possible"):
        solve(graph([[FORBIDDEN, FORBIDDEN]], [[1, 1]], [[0, 1]], 4), work=1)
    triangle = {(0, 1): [1, 2, 2, 1], (1, 2): [1, 2, 2, 1], (0, 2): [2, 1, 1, 2]}
    problem = graph([[0, 1], [2, 0], [0, 1]], [[1, 0], [0, 1], [1, 0]], [[0, 1], [0, 1], [0, 1]], 1, triangle)
    with pytest.raises(ResourceLimit, match="was not proved"):
        solve(problem, work=0, policy=AssignmentSolverPolicy(program_entries=0))
    assert solve(problem, work=0).cost == optimum(problem)


def test_evaluation_refuses_what_is_no_assignment() -> None:
    problem = graph([[0, 1]], [[1, 1]], [[0, 1]], 4)
    with pytest.raises(UsageError, match="1 nodes"):
        evaluate(problem, ())
    with pytest.raises(UsageError, match="no strategy 2"):
        evaluate(problem, (2,))


def broken(change: str) -> dict[str, Any]:
    document = drawn(1)
    problem = document["problem"]
    match change:
        case "no problem":
            return {"nodes": []}
        case "no limit":
            del problem["usage_limit"]
        case "sizes":
            problem["nodes"]["usages"][0].append(1)
        case "reversed":
            problem["nodes"]["intervals"][1] = [4, 2]
        case "no strategy":
            problem["nodes"]["costs"][0] = problem["nodes"]["usages"][0] = []
        case "fraction":
            problem["nodes"]["costs"][0][0] = 1.5
        case "boolean":
            problem["nodes"]["costs"][0][0] = True
        case "large":
            problem["nodes"]["costs"][0][0] = 2**63
        case "negative":
            problem["nodes"]["usages"][0][0] = -1
        case "no node":
            problem["edges"] = {"nodes": [[0, 99]], "costs": [[1]]}
        case "table":
            problem["edges"] = {"nodes": [[0, 0]], "costs": [[1] * 30]}
        case "pair":
            problem["edges"] = {"nodes": [[0]], "costs": [[1]]}
        case "text":
            problem["nodes"]["intervals"] = "none"
    return document


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("no problem", "'problem' is missing"), ("no limit", "'usage_limit' is missing"),
        ("sizes", "/problem/nodes/usages/0: has"), ("reversed", r"/problem/nodes/intervals/1: \[4, 2\] ends before"),
        ("no strategy", "/problem/nodes/costs/0: has no strategy"), ("fraction", "/costs/0: 1.5 is not an integer"),
        ("boolean", "true is not an integer"), ("large", "does not fit into 64 bits"),
        ("negative", "/problem/nodes/usages/0: is negative"), ("no node", r"\[0, 99\] names no node"),
        ("table", "/problem/edges/costs/0: has 30 numbers"), ("pair", "/problem/edges/nodes/0: has 1 numbers"),
        ("text", "/problem/nodes/intervals: is not a list"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_problem_is_named(change: str, message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        problem_from_json(broken(change))


def test_bytes_that_are_no_problem() -> None:
    whole = gzip.compress(json.dumps(drawn(1)).encode())
    assert parse_problem(whole, "x").nodes == problem_from_json(drawn(1)).nodes
    with pytest.raises(InvalidModel, match=r"x\.json: is not JSON"):
        parse_problem(b"{", "x.json")
    with pytest.raises(InvalidModel, match=r"x.gz: gzip data is broken"):
        parse_problem(whole[:40], "x.gz")
    with pytest.raises(InvalidModel, match=r"x.gz: gzip data is broken"):
        parse_problem(whole[:30] + b"\0\0\0\0" + whole[34:], "x.gz")
    with pytest.raises(InvalidModel, match="is not a JSON object"):
        parse_problem(b"[1]", "x")


def test_the_command_writes_the_assignment(tmp_path: Path) -> None:
    file = tmp_path / "p.json.gz"
    file.write_bytes(gzip.compress(json.dumps(drawn(4, forbidden=0.0)).encode()))
    ran = CliRunner().invoke(app, ["assign", str(file), "--work", "5", "--json", str(tmp_path / "out.json")])
    assert ran.exit_code == 0, ran.output
    found = json.loads((tmp_path / "out.json").read_text())
    problem = problem_from_json(drawn(4, forbidden=0.0))
    exact = evaluate(problem, found["strategies"])
    assert (found["cost"], found["peak"]) == (exact.cost, exact.peak)
    assert found["bound"] <= found["cost"]
    assert "cost" in ran.output
