"""Several runs' rules as one library."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from superopt.discovery.config import load_config
from superopt.discovery.discover import merge
from superopt.rules.grammar import parse_rule
from superopt.rules.library import parse_file, write_rules
from superopt.rules.rule import Rule
from superopt.rules.scanner import RuleError


def rule(name: str, lhs: str, rhs: str) -> Rule:
    given = {v: "f[...]" for v in "xyz" if v in lhs}
    row = {"id": name, "forall": given, "lhs": [lhs], "rhs": [rhs], "origin": f"discovered (by {name})"}
    return parse_rule(row, where="test", family=name.split("-")[0])


ABS = rule("min-1", "Abs(Abs(x))", "Abs(x)")
AGAIN = replace(ABS, id="also-1", family="also")
TWICE = rule("relu-1", "Relu(Relu(x))", "Relu(x)")
THRICE = rule("relu-2", "Relu(Relu(Relu(x)))", "Relu(x)")
WRONG = rule("neg-1", "Neg(Relu(x))", "Relu(Neg(x))")


def written(folder: Path, *rules: Rule) -> Path:
    folder.mkdir()
    for one in rules:
        write_rules(folder / f"{one.family}.toml", [r for r in rules if r.family == one.family])
    return folder


def test_what_others_derive_and_what_is_false_goes_whatever_the_order(tmp_path: Path) -> None:
    folders = [written(tmp_path / "a", ABS, THRICE), written(tmp_path / "b", TWICE, AGAIN, WRONG)]
    config = load_config(None)
    for out, order in (("one", folders), ("other", folders[::-1])):
        kept, given = merge(order, out=tmp_path / out, config=config)
        assert given == 4
        assert [r.id for r in kept] == ["also-1", "relu-1"]
    for file in ("also.toml", "relu.toml", "proofs.json", "gains.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "other" / file).read_bytes()
    (told,) = parse_file(tmp_path / "one" / "relu.toml")
    assert told.origin == "discovered (by relu-1)"


def test_a_folder_without_rules_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RuleError, match="no rules"):
        merge([tmp_path / "empty"], out=tmp_path / "out", config=load_config(None))
