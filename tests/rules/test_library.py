"""The library on disk: rules are well-formed and have admissible verdicts; files that are not libraries say why."""

from dataclasses import replace
from pathlib import Path

import pytest

from superopt.ir.errors import UsageError
from superopt.rules import RuleError, load_library
from superopt.rules.library import (
    ADMISSIBLE,
    PROOFS,
    parse_file,
    read_verdicts,
    write_rules,
    write_verdicts,
)
from superopt.rules.typing import instances, types_of

LIBRARY = load_library()


def test_every_rule_is_admitted_by_a_stored_verdict() -> None:
    missing = [i for i in LIBRARY if LIBRARY.verdict_name(i) not in ADMISSIBLE]
    assert not missing, "their text or a meaning changed: check them again"
    assert len(LIBRARY.admitted) == len(LIBRARY) >= 120


def test_every_rule_is_well_formed_and_says_where_it_is_from() -> None:
    for rule in LIBRARY.values():
        assert rule.origin == "definition" or rule.origin.startswith("discovered (")
        assert rule.forward or rule.backward
        for instance in instances(rule):
            types_of(instance)


def test_every_stored_verdict_belongs_to_a_rule() -> None:
    assert set(LIBRARY.store) == set(LIBRARY.digests.values())


def test_writing_is_deterministic_and_reads_back(tmp_path: Path) -> None:
    family = LIBRARY.families["conv"]
    write_rules(tmp_path / "conv.toml", family, heading="x")
    assert parse_file(tmp_path / "conv.toml") == family
    first = (tmp_path / "conv.toml").read_bytes()
    write_rules(tmp_path / "conv.toml", tuple(reversed(family)), heading="x")
    assert (tmp_path / "conv.toml").read_bytes() == first


def test_verdicts_read_back(tmp_path: Path) -> None:
    write_verdicts(tmp_path / PROOFS, LIBRARY.store)
    assert read_verdicts(tmp_path / PROOFS) == dict(LIBRARY.store)


def test_selection_by_rule_and_family() -> None:
    one, other = LIBRARY.families["conv"][0].id, LIBRARY.families["gemm"][-1].id
    only = LIBRARY.select(enable=[one, "gemm"], disable=[other])
    assert {r.id for r in only.admitted} == {one} | {r.id for r in LIBRARY.families["gemm"]} - {other}
    assert len(LIBRARY.select(disable=["conv"]).admitted) == len(LIBRARY.admitted) - len(LIBRARY.families["conv"])


def test_a_misspelt_rule_gets_a_suggestion() -> None:
    name = LIBRARY.families["batchnorm"][0].id
    with pytest.raises(UsageError, match=rf"did you mean {name}\?"):
        LIBRARY.select(disable=[name[:-1]])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[rule]", "not TOML"),
        ("x = 1", "unknown key 'x'"),
        ("rule = 3", "not a list of tables"),
        ('[[rule]]\nid = "r"\nforall = { x = "f[n]" }\nlhs = ["Relu(x"]\nrhs = ["x"]', "rule r, lhs[0], column 7"),
        ('[[rule]]\nlhs = ["Relu(x)"]\nrhs = ["1.0"]', "x is used"),
    ],
)
def test_files_that_are_not_libraries(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(RuleError) as error:
        load_library(tmp_path)
    assert expected in str(error.value)
    assert "bad.toml" in str(error.value)


def test_a_missing_folder_and_a_binary_file(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="no such folder"):
        load_library(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RuleError, match=r"no \*\.toml file"):
        load_library(tmp_path / "empty")
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RuleError, match="cannot be read"):
        load_library(tmp_path)


TRUE = '[[rule]]\nid = "mine"\nforall = { x = "f[n]" }\nlhs = ["Add(x, x)"]\nrhs = ["Mul(2.0, x)"]\n'


def test_a_users_rules_have_no_verdict_even_if_their_folder_claims_one(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(TRUE)
    library = load_library(tmp_path)
    claimed = library.with_verdicts({"mine": {"verdict": "proved_all_sizes"}})
    write_verdicts(tmp_path / PROOFS, claimed.store)
    assert "mine" in load_library(tmp_path)
    assert "mine" not in {r.id for r in load_library(tmp_path).admitted}


def test_what_discovery_finds_again_is_no_clash(tmp_path: Path) -> None:
    """Another run says another origin, and may put the rule into another file."""
    first = next(iter(LIBRARY.values()))
    write_rules(tmp_path / "again.toml", [replace(first, origin="discovered (config 0)")])
    again = load_library(tmp_path)
    assert (set(again), again[first.id]) == (set(LIBRARY), first)
    assert len(again.admitted) == len(LIBRARY.admitted)


def test_a_user_cannot_take_a_built_in_id(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(TRUE.replace('"mine"', f'"{next(iter(LIBRARY))}"'))
    with pytest.raises(RuleError, match="taken by a built-in rule"):
        load_library(tmp_path)
