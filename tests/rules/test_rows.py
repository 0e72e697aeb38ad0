"""Rows of a rule file: schemas, written and read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from superopt.rules.library import BUILT_IN, load_library, parse_file, parse_rows, write_rules
from superopt.rules.scanner import RuleError

SCHEMA = """
[[rule]]
forall = { x = "f<A>" }
lhs = ["<F>(Reshape(x, shape=<B>))"]
rhs = ["Reshape(<F>(x), shape=<B>)"]
each = [
    { id = "reshape-1", A = "[m, n]", B = "[m*n]", F = "Relu" },
    { id = "reshape-2", A = "[n]", B = "[1, n]", F = "Erf", origin = "elsewhere" },
]
origin = "here"
"""


def _file(folder: Path, text: str) -> Path:
    file = folder / "reshape.toml"
    file.write_text(text, "utf-8")
    return file


def test_a_schema_is_a_rule_for_every_table(tmp_path: Path) -> None:
    first, second = parse_file(_file(tmp_path, SCHEMA))
    assert (first.id, first.origin, second.id, second.origin) == ("reshape-1", "here", "reshape-2", "elsewhere")
    assert first.operators == {"Relu", "Reshape"}
    assert second.operators == {"Erf", "Reshape"}
    write_rules(tmp_path / "again.toml", (second, first))
    assert [(r.id, r.forall, r.lhs, r.rhs, r.origin) for r in parse_file(tmp_path / "again.toml")] == [
        (r.id, r.forall, r.lhs, r.rhs, r.origin) for r in (first, second)
    ]
    assert (tmp_path / "again.toml").read_text("utf-8").count("[[rule]]") == 1


def test_the_library_is_what_its_files_are_written_as(tmp_path: Path) -> None:
    for family in {r.family for r in load_library().values()}:
        file = BUILT_IN / f"{family}.toml"
        heading = file.read_text("utf-8").splitlines()[0].removeprefix("# ")
        write_rules(tmp_path / file.name, reversed(parse_file(file)), heading=heading)
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()


def test_rules_that_differ_in_two_operators_are_two_rows(tmp_path: Path) -> None:
    row = '[[rule]]\nid = "{0}"\nforall = {{ x = "f[...]" }}\nlhs = ["{1}({2}(x))"]\nrhs = ["{2}({1}(x))"]\n'
    file = _file(
        tmp_path, row.format("a", "Relu", "Abs") + row.format("b", "Neg", "Erf") + row.format("c", "Neg", "Abs")
    )
    write_rules(tmp_path / "again.toml", parse_file(file))
    text = (tmp_path / "again.toml").read_text("utf-8")
    assert text.count("[[rule]]") == 2
    assert 'lhs = ["<F>(Abs(x))"]' in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('F = "Erf", ', ""), "table 2 of each does not say what <F> is"),
        (('F = "Erf", ', 'F = "Erf", C = "1", '), "nothing in the row is <C>"),
        (('F = "Erf", ', "F = 3, "), "no text"),
        (('F = "Erf", ', 'F = "Erf(", '), "reshape-2"),
    ],
)
def test_a_schema_that_is_none_says_where(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    with pytest.raises(RuleError, match=message):
        parse_file(_file(tmp_path, SCHEMA.replace(*change)))


def test_one_wrong_member_leaves_the_others(tmp_path: Path) -> None:
    rules, errors = parse_rows(_file(tmp_path, SCHEMA.replace('"Erf"', '"Erf("')))
    assert [r.id for r in rules] == ["reshape-1"]
    assert list(errors) == ["reshape-2"]


def test_each_is_a_list_of_tables(tmp_path: Path) -> None:
    text = SCHEMA[: SCHEMA.index("each")] + "each = 3\n"
    with pytest.raises(RuleError, match="list of tables"):
        parse_file(_file(tmp_path, text))
