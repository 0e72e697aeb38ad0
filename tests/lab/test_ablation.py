"""Rules are compared on one model under one cost model; the first library is told where it is behind."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lab.ablation import LEARNT, NONE, AblationOutcome, RuleAblation, admitted, data_of, document, main, outcomes_of
from superopt.formats import save
from superopt.frontend import GraphBuilder
from superopt.ir.errors import UsageError
from superopt.rules import parse_rule
from superopt.rules.float_verdicts import FloatVerdictStore
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
    (outcomes,) = RuleAblation({"own": rules}, target, 10).search([model])
    by = {o.library: o for o in outcomes}
    assert list(by) == ["own", NONE]
    assert by["own"].before_us == by[NONE].before_us > 0
    assert by["own"].after_us <= by[NONE].after_us
    assert not by[NONE].rules.keys() - {"fold"}
    assert data_of(outcomes, {}, {})["behind"] == []
    known = {o.key: replace(o, after_us=1.5) for o in outcomes}
    (again,) = RuleAblation({"ours": rules}, target, 10).search([model], known=known)
    assert [(o.library, o.after_us) for o in again] == [("ours", 1.5), (NONE, 1.5)]  # not searched again
    (longer,) = RuleAblation({"own": rules}, target, 11).search([model], known=known)
    assert by["own"].after_us == next(o.after_us for o in longer if o.library == "own")


def test_what_was_learnt_is_used_by_its_own_verdicts_in_floating_point(tmp_path: Path) -> None:
    """Without a verdict no direction of a rule is used, and learning would look worth nothing."""
    builder = GraphBuilder("two")
    first = builder.op("MatMul", builder.input("x", "float32", [64, 96]), builder.weight("a", (96, 512), scale=0.1))
    builder.output(builder.op("MatMul", first, builder.weight("b", (512, 96), scale=0.1)), "y")
    save(builder.build(), tmp_path / "two.json")
    folder = tmp_path / "learnt" / "two"
    folder.mkdir(parents=True)
    write_rules(folder / "own.toml", [parse_rule(ASSOCIATIVE)])
    given = RuleAblation(
        {"ours": ()}, "profile:cpu-epyc-2core", 10, results=tmp_path, floats=FloatVerdictStore({}), learning=1.0
    )
    (outcomes,) = given.search([tmp_path / "two.json"])
    by = {o.library: o for o in outcomes}
    assert by[LEARNT].rules.get("own-associative")
    assert by[LEARNT].after_us < by["ours"].after_us == by[NONE].after_us


def test_a_table_that_was_written_is_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every model's row is written at once; a second run reads it, races what it found, and says so where it cannot."""
    made = {n: tmp_path / n for n in ("table.json", "table.md", "results")}
    arguments = [str(CORPUS / "deep_linear.json"), "--time-limit", "5", "--race-limit", "0.2",
                 "--json", str(made["table.json"]), "--markdown", str(made["table.md"]), "--results",
                 str(made["results"])]  # fmt: skip
    assert main(arguments) == 0
    first = made["table.json"].read_bytes()
    assert main(arguments) == 0
    assert made["table.json"].read_bytes() == first  # times of the search included
    assert "tiny/deep_linear" in capsys.readouterr().out
    assert "Not measured" in made["table.md"].read_text()
    assert main([*arguments, "--total-limit", "0", "--measure"]) == 7  # no time left: to be called again
    assert main([*arguments, "--measure"]) == 0
    data = json.loads(made["table.json"].read_text())
    ours, none = outcomes_of(data)
    assert ours.after_us < ours.before_us
    assert ours.ratio is not None
    assert min(ours.rounds, ours.before_ms) > 0
    assert none.ratio is not None  # the model itself, as a second copy
    assert none.rounds == ours.rounds
    assert "Not measured" not in made["table.md"].read_text()
    for result in made["results"].iterdir():
        result.unlink()
    assert main([*arguments, "--measure"]) == 0  # raced before: nothing is searched or raced again
    assert outcomes_of(json.loads(made["table.json"].read_text())) == [ours, none]
    made["table.json"].write_text("[]")
    with pytest.raises(UsageError, match="no table"):
        main(arguments)


@pytest.mark.slow  # searches of two models; the test before this one goes on with a table, too
def test_a_model_that_waits_keeps_its_row(tmp_path: Path) -> None:
    """A run that is stopped between models does not lose those that it had not come to again."""
    table, common = tmp_path / "table.json", ["--time-limit", "5", "--results", str(tmp_path / "results")]
    two = [str(CORPUS / f"{n}.json") for n in ("siamese", "deep_linear")]
    assert main([two[1], "--json", str(table), *common]) == 0
    assert main([*two, "--json", str(table), "--total-limit", "0", *common]) == 7
    assert [r["model"] for r in json.loads(table.read_text())["models"]] == ["tiny/deep_linear", "tiny/siamese"]


def test_a_library_that_is_behind_is_named() -> None:
    outcomes = [
        AblationOutcome("m", "a", 10.0, 9.0),
        AblationOutcome("m", "b", 10.0, 5.0),
        AblationOutcome("n", "a", 10.0, 5.0),
        AblationOutcome("n", "b", failure="cannot be read"),
    ]
    data = data_of(outcomes, {"rules": {"a": 3, "b": 2}, "time_limit": 5, "target": "t", "date": "d"}, {})
    assert data["behind"] == ["m"]
    text = document(data)
    assert "behind another on 1 of 2 models: m (by 80 %); costs within 0.1 % of each other are one." in text
    assert "| m | **0.900** | 0.500 |" in text
    assert "| n | **0.500** | cannot be read |" in text


def test_the_documented_ablation_is_the_recorded_one() -> None:
    results = Path(__file__).resolve().parents[2] / "lab" / "results"
    data = json.loads((results / "ablation.json").read_text(encoding="utf-8"))
    assert (results / "ablation.md").read_text(encoding="utf-8") == document(data)
