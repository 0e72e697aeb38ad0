"""What follows from a few rules: moves that make more work may follow each other where nobody searches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from superopt.discovery.derive import derive, derived, rewrites_of
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
    assert derived(goal, rewrites_of(library)) is None  # a search would not go there
    write_rules(tmp_path / "goal.toml", [goal])
    found = derive(tmp_path / "goal.toml", library)
    assert not found.missing
    assert set(found.chains["divided"]) <= {"solved", "quotient", "twice"}


def test_what_does_not_follow_is_not_derived(tmp_path: Path) -> None:
    write_rules(tmp_path / "goal.toml", [rule(DIVIDED)])
    assert set(derive(tmp_path / "goal.toml", [rule(SOLVED), rule(TWICE)]).missing) == {"divided"}


def test_where_one_slice_takes_all_of_another_says_nothing_about_two(tmp_path: Path) -> None:
    """Of the few draws that fit a chain of conditions, the first have the second slice take all of the first."""
    first = "Slice(x, axes=[1], ends=[j], starts=[i], steps=[1])"
    twice = {
        "id": "twice", "forall": {"x": "f[m, p]", "i": "int>=0", "j": "int>=1", "k": "int>=0", "l": "int>=1"},
        "where": ["j <= p", "l <= j - i", "i + l <= p"],
        "lhs": [f"Slice({first}, axes=[1], ends=[l], starts=[k], steps=[1])"],
        "rhs": ["Slice(x, axes=[1], ends=[i + l], starts=[i + k], steps=[1])"],
    }  # fmt: skip
    whole = {
        "id": "whole", "forall": {"x": "f[m, p]"},
        "lhs": ["Slice(x, axes=[1], ends=[p], starts=[0], steps=[1])"], "rhs": ["x"],
    }  # fmt: skip
    write_rules(tmp_path / "goal.toml", [rule(twice)])
    assert set(derive(tmp_path / "goal.toml", [rule(whole)]).missing) == {"twice"}
    assert not derive(tmp_path / "goal.toml", [rule(twice | {"id": "itself"})]).missing
