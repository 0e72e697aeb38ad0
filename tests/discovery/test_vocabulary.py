"""Vocabularies that are generated from lists of operators: what they are, and what is found in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from superopt.discovery.config import Theme, load_config
from superopt.discovery.derive import derived, moves_of
from superopt.discovery.discover import discover
from superopt.ir.terms import App, postorder
from superopt.rules.grammar import parse_rule
from superopt.verifier.prover import prove
from superopt.verifier.verdict import ProvedAllSizes

ROOT = Path(__file__).resolve().parents[2]


def theme(tmp_path: Path, **row: object) -> Theme:
    lines = [f"{k} = {v!r}".replace("'", '"') for k, v in {"name": "some", "operators": 2, **row}.items()]
    file = tmp_path / "some.toml"
    file.write_text("[[theme]]\n" + "\n".join(lines) + "\n", "utf-8")
    return load_config(file).themes[0]


def test_signatures_are_read_off_the_records(tmp_path: Path) -> None:
    texts = {t.text for t in theme(tmp_path, enumerate=["ReduceSum", "Concat", "Max"]).vocabulary}
    assert {"ReduceSum(A, axes=[1], keepdims=0)", "ReduceSum(A, axes=[0, 1], keepdims=1)", "Max(A, B)"} <= texts
    assert {"Concat(A, B, axis=0)", "Concat(A, B, axis=1)"} <= texts
    logical = theme(tmp_path, enumerate=["And", "Where"])
    assert {s.dtype for s in logical.leaves.values()} == {"f", "b"}
    assert not any("1.0" in t.text and "bool" not in t.text for t in logical.vocabulary)  # no numbers are reckoned with
    cut = theme(tmp_path, enumerate=["Slice"])
    assert str(cut.leaves["x"].shape[-1]) == "l1 + s1 + u1"
    assert set(cut.attributes) == {"s0", "l0", "u0", "s1", "l1", "u1"}
    volume = theme(tmp_path, enumerate=["Transpose"], data=[3])
    assert len(volume.vocabulary) == 6 + 2


def test_nothing_is_typed(tmp_path: Path) -> None:
    """No template has more than one operator, in any vocabulary of the recorded configuration."""
    themes = load_config(ROOT / "docs" / "generated.toml").themes
    assert themes
    for one in themes:
        assert one.records
        assert all(sum(isinstance(t, App) for t in postorder(v.term)) == 1 for v in one.vocabulary)


def test_an_unknown_operator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="Nand"):
        theme(tmp_path, enumerate=["Nand"])


def test_what_is_found_says_where_it_is_from(tmp_path: Path) -> None:
    theme(tmp_path, enumerate=["Abs", "Neg"])
    result = discover(load_config(tmp_path / "some.toml"), out=tmp_path / "out")
    wanted = parse_rule({"id": "even", "forall": {"x": "f[...]"}, "lhs": ["Abs(Neg(x))"], "rhs": ["Abs(x)"]})
    assert derived(wanted, moves_of(result.rules)) is not None
    assert all(isinstance(prove(r), ProvedAllSizes) for r in result.rules)
    assert all("enumerated from Abs, Neg" in r.origin for r in result.rules)
