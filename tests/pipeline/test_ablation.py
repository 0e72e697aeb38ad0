"""Rules are compared on one model under one cost model; the first library is told where it is behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from superopt.ir.errors import UsageError
from superopt.pipeline.ablation import NONE, Outcome, ablate, admitted, document, main
from superopt.rules import parse_rule
from superopt.rules.library import write_rules
from superopt.rules.scanner import RuleError

CORPUS = Path(__file__).parent.parent.parent / "corpus" / "tiny"
ASSOCIATIVE = {
    "id": "own-associative",
    "forall": {"x": "f[..., m, k]", "a": "f[k, n]", "b": "f[n, l]"},
    "lhs": ["MatMul(MatMul(x, a), b)"],
    "rhs": ["MatMul(x, MatMul(a, b))"],
}


def test_rules_of_a_folder_are_proved_before_they_are_compared(tmp_path: Path) -> None:
    write_rules(tmp_path / "own.toml", [parse_rule(ASSOCIATIVE)])
    (rule,) = admitted(tmp_path)
    assert rule.id == "own-associative"
    write_rules(tmp_path / "own.toml", [parse_rule({**ASSOCIATIVE, "rhs": ["MatMul(x, MatMul(a, Neg(b)))"]})])
    with pytest.raises(RuleError, match="false"):
        admitted(tmp_path)


def test_products_of_weights_are_found_by_the_rule_and_not_without() -> None:
    rules = (parse_rule(ASSOCIATIVE),)
    model, target = CORPUS / "deep_linear.json", "profile:cpu-epyc-2core"
    (outcomes,) = ablate([model], {"own": rules}, target=target, time_limit=10)
    by = {o.library: o for o in outcomes}
    assert list(by) == ["own", NONE]
    assert by["own"].before_us == by[NONE].before_us > 0
    assert by["own"].after_us <= by[NONE].after_us
    assert not by[NONE].rules.keys() - {"fold"}
    assert document(outcomes)["behind"] == []
    known = {o.key: replace(o, after_us=1.5) for o in outcomes}
    (again,) = ablate([model], {"ours": rules}, target=target, time_limit=10, known=known)
    assert [(o.library, o.after_us) for o in again] == [("ours", 1.5), (NONE, 1.5)]  # not searched again
    (longer,) = ablate([model], {"own": rules}, target=target, time_limit=11, known=known)
    assert by["own"].after_us == next(o.after_us for o in longer if o.library == "own")


def test_a_table_that_was_written_is_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every model's row is written at once; a second run reads it, and says so where it cannot."""
    table = tmp_path / "table.json"
    arguments = [str(CORPUS / "deep_linear.json"), "--json", str(table), "--time-limit", "5"]
    assert main(arguments) == 0
    first = table.read_bytes()
    assert main(arguments) == 0
    assert table.read_bytes() == first  # times of the search included
    assert "tiny/deep_linear" in capsys.readouterr().out
    table.write_text("[]")
    with pytest.raises(UsageError, match="no table"):
        main(arguments)


def test_a_library_that_is_behind_is_named() -> None:
    outcomes = [Outcome("m", "a", 10.0, 9.0), Outcome("m", "b", 10.0, 5.0), Outcome("n", "a", 10.0, 5.0),
                Outcome("n", "b", failure="cannot be read")]  # fmt: skip
    assert document(outcomes)["behind"] == ["m"]
