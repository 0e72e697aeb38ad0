"""What may be used: only proved rules, by every way in; a planted rule or meaning does not get there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from superopt import cli
from superopt.ops import REGISTRY
from superopt.ops.operator_semantics import call, tensor
from superopt.rules import RuleError, load_library, parse_rule
from superopt.rules.library import ADMISSIBLE, write_verdicts
from superopt.rules.typing import _meaning_digest, meaning_digest
from superopt.verifier import ProvedVerdict, TestedVerdict, UnknownVerdict, admission
from superopt.verifier.admission import admit, check, verify
from superopt.verifier.batch_proving import prove_all

TRUE = '[[rule]]\nid = "planted"\nforall = { x = "f[n]" }\nlhs = ["Relu(Relu(x))"]\nrhs = ["Relu(x)"]\n'
FALSE = TRUE.replace("Relu(Relu(x))", "Relu(Neg(x))")


def _cleared() -> None:
    for cached in (_meaning_digest,):
        cached.cache_clear()


@pytest.fixture
def wrong_neg() -> Iterator[None]:
    """Neg with the meaning of the identity."""
    wrong = replace(REGISTRY["Neg"], meaning=lambda x: tensor(x.shape, lambda *at: call("mul", x[at], 1)))
    with REGISTRY.replaced(wrong):
        _cleared()
        yield
    _cleared()


def test_only_proofs_admit() -> None:
    assert {"proved_all_sizes"} == ADMISSIBLE


def test_a_rule_that_is_only_tested_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(TRUE)
    with pytest.raises(RuleError, match=r"true in \d+ exact trials, but not proved, so it is not used"):
        admit(load_library(tmp_path), prover=lambda _: UnknownVerdict("asked not to"))


def test_a_false_rule_is_refused_even_if_a_prover_believes_it(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(FALSE)
    with pytest.raises(RuleError, match="the rule is false"):
        admit(load_library(tmp_path), prover=lambda _: ProvedVerdict())


def test_a_verdict_that_a_folder_claims_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(FALSE)
    claimed = load_library(tmp_path).with_verdicts({"planted": {"verdict": "proved_all_sizes"}})
    write_verdicts(tmp_path / "proofs.json", claimed.store)
    with pytest.raises(RuleError, match="the rule is false"):
        admit(load_library(tmp_path))


def test_a_folder_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its verdicts follow from the rule and the code; another rule, or another meaning, is another question."""
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine.toml").write_text(TRUE)
    first = admit(load_library(tmp_path / "mine.toml"))
    monkeypatch.setattr(admission, "check", lambda *_, **__: pytest.fail("proved again"))
    monkeypatch.setattr(admission, "verified_verdicts", lambda *_: pytest.fail("judged again"))
    again = admit(load_library(tmp_path / "mine.toml"))
    assert again.verdicts == first.verdicts
    assert again.float_store == first.float_store
    assert "planted" in {r.id for r in again.admitted}
    (tmp_path / "mine.toml").write_text(FALSE)
    with pytest.raises(pytest.fail.Exception, match="proved again"):
        admit(load_library(tmp_path / "mine.toml"))


def test_a_false_rule_is_refused_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine.toml").write_text(FALSE)
    for _ in range(2):
        with pytest.raises(RuleError, match="the rule is false"):
            admit(load_library(tmp_path / "mine.toml"))


def test_a_meaning_that_changes_takes_its_proofs_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))
    text = TRUE.replace("Relu(Relu(x))", "Neg(Neg(Neg(x)))").replace('["Relu(x)"]', '["Neg(x)"]')
    (tmp_path / "mine.toml").write_text(text)
    assert admit(load_library(tmp_path / "mine.toml", built_in=False)).verdicts
    request.getfixturevalue("wrong_neg")
    asked: list[str] = []
    monkeypatch.setattr(admission, "check", lambda rule, **_: asked.append(rule.id) or UnknownVerdict("asked"))
    with pytest.raises(RuleError, match="not proved"):
        admit(load_library(tmp_path / "mine.toml", built_in=False))
    assert asked == ["planted"]


def test_commands_refuse_a_planted_rule(tmp_path: Path) -> None:
    rules = tmp_path / "mine.toml"
    rules.write_text(FALSE)
    model = tmp_path / "m.json"
    model.write_text(
        '{"format": "superopt.graph", "version": 1, "name": "m", "opset": {"": 21},'
        ' "inputs": [{"name": "x", "dtype": "float32", "shape": [4]}], "weights": [],'
        ' "nodes": [{"name": "a", "op": "Neg", "inputs": ["x"], "outputs": ["t"]},'
        ' {"name": "b", "op": "Relu", "inputs": ["t"], "outputs": ["y"]}], "outputs": [{"name": "y"}]}'
    )
    runner = CliRunner()
    proved = runner.invoke(cli.app, ["rules", "prove", str(rules), "--workers", "1"])
    assert proved.exit_code == 5
    assert "refuted" in proved.output
    out = tmp_path / "o.onnx"
    ran = runner.invoke(cli.app, ["optimize", str(model), "-o", str(out), "--rules", str(tmp_path), "--no-check"])
    assert ran.exit_code != 0
    assert not out.exists()
    listed = runner.invoke(cli.app, ["rules", "list", "--rules", str(tmp_path), "--verdict", "proved_all_sizes"])
    assert "planted" not in listed.output


@pytest.mark.usefixtures("wrong_neg")
def test_a_wrong_meaning_cannot_admit_a_false_rule(tmp_path: Path) -> None:
    rule = parse_rule({"id": "planted", "forall": {"x": "f[n]"}, "lhs": ["Add(x, Neg(x))"], "rhs": ["Add(x, x)"]})
    verdict = check(rule)
    assert isinstance(verdict, UnknownVerdict)
    assert "a meaning is wrong" in verdict.reason
    assert isinstance(prove_all([rule])["planted"], UnknownVerdict)
    (tmp_path / "mine.toml").write_text(
        TRUE.replace("Relu(Relu(x))", "Add(x, Neg(x))").replace('"Relu(x)"', '"Add(x, x)"')
    )
    library = load_library(tmp_path, built_in=False)
    with pytest.raises(RuleError, match="ONNX Runtime"):
        admit(library)
    _, refused = verify(library)
    assert set(refused) == {"planted"}


def test_a_changed_meaning_takes_the_verdicts_of_its_rules_away(request: pytest.FixtureRequest) -> None:
    library = load_library()
    rules = [r for r in library.admitted if "Neg" in r.operators][:5]
    assert rules
    before = {r.id: meaning_digest(r) for r in rules}
    request.getfixturevalue("wrong_neg")
    changed = replace(library, rules={r.id: r for r in rules})  # a fresh value, without the cached digests
    assert all(changed.digests[i] != d for i, d in before.items())
    assert not changed.admitted


def test_what_is_tested_says_how_often() -> None:
    rule = parse_rule({"id": "r", "forall": {"x": "f[n]"}, "lhs": ["Relu(Relu(x))"], "rhs": ["Relu(x)"]})
    verdict = check(rule, prover=lambda _: UnknownVerdict("no"))
    assert isinstance(verdict, TestedVerdict)
    assert verdict.trials >= 4
    assert 0 <= verdict.bound < 1e-3
