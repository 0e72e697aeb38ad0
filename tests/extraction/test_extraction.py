"""Extraction by itself: exact where it says so, and acyclic."""

from __future__ import annotations

import random

import pytest

from superopt.extraction.dag import Candidate, ExtractionProblem, cost_of, greedy, improve
from superopt.extraction.ilp import solve


def random_problem(generator):
    """Classes 0…n-1 with candidates over any other classes: sharing and cycles included."""
    count = generator.randint(3, 7)
    candidates, of, readers = [], {}, {}
    for owner in range(count):
        indices = []
        for k in range(generator.randint(1, 3)):
            pool = [c for c in range(count) if c != owner]
            needs = tuple(sorted(generator.sample(pool, generator.randint(0, 2))))
            if k == 0:
                needs = tuple(n for n in needs if n < owner)
            indices.append(len(candidates))
            candidates.append(Candidate((), owner, needs, generator.randint(0, 9) + 0.5))
            for need in needs:
                readers.setdefault(need, []).append(indices[-1])
        of[owner] = tuple(indices)
    return ExtractionProblem(tuple(candidates), of, {c: tuple(r) for c, r in readers.items()}, (count - 1,))


def exhaustive(problem):
    best, stack = float("inf"), [{}]
    for owner, options in problem.of.items():
        stack = [{**choice, owner: i} for choice in stack for i in options]
    for choice in stack:
        best = min(best, cost_of(problem, choice))
    return best


@pytest.mark.parametrize("seed", range(40))
def test_extraction_is_exact_and_acyclic(seed):
    problem = random_problem(random.Random(seed))
    start = {owner: options[0] for owner, options in problem.of.items()}
    found = solve(problem, start, 5.0)
    best = exhaustive(problem)
    assert cost_of(problem, found) == pytest.approx(best, rel=1e-3)
    for choice in (improve(problem, start), greedy(problem)):
        assert best - 1e-9 <= cost_of(problem, choice) < float("inf")
    assert cost_of(problem, improve(problem, start)) <= cost_of(problem, start)
