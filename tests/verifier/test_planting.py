"""A wrong rule or meaning, planted at every door: commands, folders, stores, discovery, the service."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from superopt import cli
from superopt.discovery.config import load_config
from superopt.discovery.discover import _proved_again
from superopt.fleet import WorkerPool
from superopt.ops import REGISTRY
from superopt.ops.operator_semantics import call, tensor
from superopt.rules import Rule, RuleError, load_library, parse_rule
from superopt.rules import library as stored
from superopt.rules.library import PROOFS, parse_file, read_verdicts, write_verdicts
from superopt.rules.typing import _meaning_digest, meaning_digest
from superopt.verifier import ProvedVerdict, admission
from superopt.verifier.admission import admit, verify
from superopt.verifier.batch_proving import prove_all
from superopt.verifier.certificates.certificate import certificate_of
from superopt.verifier.certificates.checker import check_certificate, seal

TRUE = '[[rule]]\nid = "honest"\nforall = { x = "f[n]" }\nlhs = ["Relu(Relu(x))"]\nrhs = ["Relu(x)"]\n'
FALSE = '[[rule]]\nid = "planted"\nforall = { x = "f[n]" }\nlhs = ["Relu(Neg(x))"]\nrhs = ["Relu(x)"]\n'
# True of Neg as the identity, in which a planted meaning makes it "provable".
BELIEVED = '[[rule]]\nid = "planted"\nforall = { x = "f[n]" }\nlhs = ["Add(x, Neg(x))"]\nrhs = ["Add(x, x)"]\n'


def _run(*arguments: object) -> tuple[int, str]:
    found = CliRunner().invoke(cli.app, [str(a) for a in arguments])
    code = getattr(found.exception, "exit_code", found.exit_code) if found.exception else found.exit_code
    return code, found.output + str(found.exception or "")


@pytest.fixture
def built_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A library of one honest rule where the built-in one is."""
    folder = tmp_path / "rules"
    folder.mkdir()
    (folder / "mine.toml").write_text(TRUE)
    for module in (stored, admission):
        monkeypatch.setattr(module, "BUILT_IN", folder)
    assert _run("rules", "prove", "--all", "--record", "--workers", 1)[0] == 0
    assert [r.id for r in load_library().admitted] == ["honest"]
    return folder


@pytest.fixture
def wrong_neg() -> Iterator[None]:
    """Neg with the meaning of the identity."""
    wrong = replace(REGISTRY["Neg"], meaning=lambda x: tensor(x.shape, lambda *at: call("mul", x[at], 1)))
    with REGISTRY.replaced(wrong):
        _meaning_digest.cache_clear()
        yield
    _meaning_digest.cache_clear()


def _forge(folder: Path, text: str) -> None:
    """A store that claims a proof of the rule under its right digest, written by the writer itself."""
    (folder / "planted.toml").write_text(text)
    library = load_library()
    write_verdicts(folder / PROOFS, library.with_verdicts({"planted": {"verdict": "proved_all_sizes"}}).store)


def test_recording_does_not_take_a_false_rule_in(built_in: Path) -> None:
    (built_in / "planted.toml").write_text(FALSE)
    code, shown = _run("rules", "prove", "--all", "--record", "--workers", 1)
    assert code == 5
    assert "planted: refuted" in shown
    assert [r.id for r in load_library().admitted] == ["honest"]


def test_recording_takes_a_forged_verdict_away(built_in: Path) -> None:
    _forge(built_in, FALSE)
    assert _run("rules", "prove", "--all", "--workers", 1)[0] == 5, "what is stored is not what is shown"
    assert _run("rules", "prove", "--all", "--record", "--workers", 1)[0] == 5
    assert [r.id for r in load_library().admitted] == ["honest"]
    assert all(v["id"] != "planted" for v in read_verdicts(built_in / PROOFS).values())


@pytest.mark.parametrize(
    "edit",
    [
        lambda rows, own: rows | {own: {"id": "planted", "verdict": "proved_all_sizes"}},
        lambda rows, own: {own: next(iter(rows.values()))},
        lambda rows, own: {d: {**v, "verdict": "proved_all_sizes", "steps": 5} for d, v in rows.items()},
    ],
)
def test_a_store_that_was_edited_by_hand_is_refused(
    built_in: Path, edit: Callable[[dict[str, object], str], dict[str, object]]
) -> None:
    (built_in / "planted.toml").write_text(FALSE)
    data = json.loads((built_in / PROOFS).read_text())
    data["verdicts"] = edit(data["verdicts"], load_library().digests["planted"])
    (built_in / PROOFS).write_text(json.dumps(data))
    with pytest.raises(RuleError, match="changed by hand"):
        load_library()
    for command in (["rules", "list"], ["rules", "prove", "--all"], ["rules", "show", "planted"]):
        assert _run(*command)[0] != 0
    (built_in / PROOFS).unlink()  # what the message says
    assert _run("rules", "prove", "--all", "--record", "--workers", 1)[0] == 5
    assert [r.id for r in load_library().admitted] == ["honest"]


def test_the_shipped_stores_are_sealed() -> None:
    root = Path(__file__).parents[2] / "rules"
    for path in (root / PROOFS, *root.glob(f"discovered/*/{PROOFS}")):
        assert "seal" in json.loads(path.read_text()), f"{path} was not written by superopt"
        read_verdicts(path)


@pytest.mark.parametrize(
    ("right", "wrong"), [('"Relu(x)"', '"Neg(x)"'), ("Relu(Relu(x))", "Relu(Neg(x))"), ('"f[n]"', '"f[n, n]"')]
)
def test_a_rule_that_is_edited_after_its_proof_has_none(built_in: Path, right: str, wrong: str) -> None:
    (built_in / "mine.toml").write_text(TRUE.replace(right, wrong))
    assert not load_library().admitted
    assert load_library().verdict_name("honest") == "unknown"


def test_a_stale_digest_is_no_proof(built_in: Path, request: pytest.FixtureRequest) -> None:
    (built_in / "mine.toml").write_text(
        '[[rule]]\nid = "n"\nforall = { x = "f[n]" }\nlhs = ["Neg(Neg(x))"]\nrhs = ["x"]\n'
    )
    assert _run("rules", "prove", "--all", "--record", "--workers", 1)[0] == 0
    assert len(load_library().admitted) == 1
    request.getfixturevalue("wrong_neg")
    changed = replace(load_library(), rules=dict(load_library().rules))  # without the digests it remembers
    assert not changed.admitted


@pytest.mark.usefixtures("wrong_neg")
def test_a_wrong_meaning_is_not_recorded(built_in: Path) -> None:
    (built_in / "planted.toml").write_text(BELIEVED)
    code, shown = _run("rules", "prove", "--all", "--record", "--workers", 1)
    assert code == 5
    assert "a meaning is wrong" in shown
    assert [r.id for r in load_library().admitted] == ["honest"]
    _, refused = verify(load_library(), again=True)
    assert set(refused) == {"planted"}
    assert set(admission.renew(again=True)) == {"planted"}
    assert [r.id for r in load_library().admitted] == ["honest"]


@pytest.mark.usefixtures("wrong_neg")
def test_discovery_does_not_write_what_a_wrong_meaning_proves(tmp_path: Path) -> None:
    (rule,) = _rules(BELIEVED)
    said: list[str] = []
    kept, verdicts = _proved_again([rule], load_config(None), tmp_path, WorkerPool(), said.append)
    assert (kept, verdicts) == ((), {})
    assert said


def test_discovery_does_not_write_a_false_rule(tmp_path: Path) -> None:
    (rule,) = _rules(FALSE)
    assert _proved_again([rule], load_config(None), tmp_path, WorkerPool(), lambda _: None) == ((), {})


def _rules(text: str) -> list[Rule]:
    import tomllib

    return [parse_rule(row) for row in tomllib.loads(text)["rule"]]


@pytest.mark.parametrize("text", [FALSE, BELIEVED])
def test_a_folder_of_the_users_own(built_in: Path, tmp_path: Path, text: str, request: pytest.FixtureRequest) -> None:
    if text is BELIEVED:
        request.getfixturevalue("wrong_neg")
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "own.toml").write_text(text)
    claimed = load_library(folder, built_in=False)
    write_verdicts(folder / PROOFS, claimed.with_verdicts({"planted": {"verdict": "proved_all_sizes"}}).store)
    with pytest.raises(RuleError, match=r"false|a meaning is wrong"):
        admit(load_library(folder))
    assert "planted" not in [r.id for r in load_library(folder).admitted]
    model = Path(__file__).parents[2] / "corpus" / "resnet50.json"
    for option in (["--enable", "planted"], []):
        code, shown = _run("optimize", model, "-o", tmp_path / "o.json", "--rules", folder, "--no-check", *option)
        assert code not in (0, 1)
        assert "planted" in shown
        assert not (tmp_path / "o.json").exists()
    assert "planted" not in _run("rules", "list", "--rules", folder, "--verdict", "proved_all_sizes")[1]
    exported = tmp_path / "exported"  # and an export does not launder it
    assert _run("rules", "export", exported, "--rules", folder)[0] == 0
    assert all(v["id"] != "planted" for v in read_verdicts(exported / PROOFS).values())


def test_an_id_of_the_library_cannot_be_taken(built_in: Path, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "own.toml").write_text(FALSE.replace("planted", "honest"))
    with pytest.raises(RuleError, match="taken by a built-in rule"):
        load_library(folder)


@pytest.mark.usefixtures("built_in", "wrong_neg")
def test_a_certificate_from_a_wrong_meaning_is_of_no_use_elsewhere(
    tmp_path: Path,
) -> None:
    (rule,) = _rules(BELIEVED)
    verdict, text = certificate_of(rule)
    assert isinstance(verdict, ProvedVerdict), "the prover believes meanings"
    (tmp_path / "c.json").write_text(text)
    right = replace(REGISTRY["Neg"], meaning=lambda x: tensor(x.shape, lambda *at: call("mul", x[at], -1)))
    with REGISTRY.replaced(right):
        _meaning_digest.cache_clear()
        assert "other meanings" in check_certificate(tmp_path / "c.json").reason
        data = json.loads(text)
        data["digest"] = meaning_digest(rule)
        data["seal"] = seal(data)
        (tmp_path / "c.json").write_text(json.dumps(data))
        assert not check_certificate(tmp_path / "c.json").valid


def test_a_worker_that_lies_is_not_asked(tmp_path: Path) -> None:
    """A verdict is the verifier's own: a row cannot bring one with it."""
    (tmp_path / "mine.toml").write_text(FALSE + 'verdict = "proved_all_sizes"\n')
    with pytest.raises(RuleError):
        parse_file(tmp_path / "mine.toml")
    code, shown = _run("rules", "prove", tmp_path / "mine.toml", "--workers", 1)
    assert code == 5
    assert "proved_all_sizes" not in shown.replace("verdict", "")
    (rule,) = _rules(FALSE)
    assert not isinstance(prove_all([rule])["planted"], ProvedVerdict)


def test_the_service_takes_no_rules() -> None:
    from superopt.server.http import parameters

    source = Path(parameters.__file__).read_text()
    assert '"rules"' not in source, "an option that names rules by path or text would need this file's attention"
