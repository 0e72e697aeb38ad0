"""What follows from a few rules: moves that make more work may follow each other where nobody searches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from superopt.discovery.derive import derive, derived, moves_of
from superopt.rules.grammar import parse_rule
from superopt.rules.library import write_rules
from superopt.rules.rule import Rule

SOLVED = {  # as the solver writes it, with a reciprocal
    "id": "solved",
    "forall": {"x": "f[m, k]", "a": "f[k, n]", "q": "f[n]", "r": "f[n]", "s": "f[n]", "v": "f[n]", "e": "real>0"},
    "lhs": ["BatchNormalization(MatMul(x, a), q, r, s, v, epsilon=e)"],
    "rhs": [
        "Add(MatMul(x, Mul(a, Mul(q, Reciprocal(Sqrt(Add(v, e)))))),"
        " Sub(r, Mul(Mul(q, Reciprocal(Sqrt(Add(v, e)))), s)))"
    ],
}
QUOTIENT = {
    "id": "quotient", "forall": {"x": "f[...]", "y": "f[...]"},
    "lhs": ["Div(x, Reciprocal(y))"], "rhs": ["Mul(x, y)"],
}  # fmt: skip
TWICE = {"id": "twice", "forall": {"x": "f[...]"}, "lhs": ["Reciprocal(Reciprocal(x))"], "rhs": ["x"]}
DIVIDED = SOLVED | {
    "id": "divided",
    "rhs": [
        "Add(MatMul(x, Mul(a, Div(q, Sqrt(Add(v, e))))), Sub(r, Mul(s, Div(q, Sqrt(Add(v, e))))))",
    ],
}


def rule(row: Mapping[str, object]) -> Rule:
    return parse_rule(row)


def test_one_move_that_makes_more_work_may_follow_another(tmp_path: Path) -> None:
    library = [rule(row) for row in (SOLVED, QUOTIENT, TWICE)]
    goal = rule(DIVIDED)
    assert derived(goal, moves_of(library)) is None  # a search would not go there
    write_rules(tmp_path / "goal.toml", [goal])
    found = derive(tmp_path / "goal.toml", library)
    assert not found.missing
    assert set(found.chains["divided"]) <= {"solved", "quotient", "twice"}


def test_what_does_not_follow_is_not_derived(tmp_path: Path) -> None:
    write_rules(tmp_path / "goal.toml", [rule(DIVIDED)])
    assert set(derive(tmp_path / "goal.toml", [rule(SOLVED), rule(TWICE)]).missing) == {"divided"}
