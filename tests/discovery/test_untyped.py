"""A configuration without typed expressions: one operator a template, but where a composite operator is defined."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from superopt.discovery.config import DEFINITION, load_config
from superopt.discovery.explore import explore
from superopt.rules.scanner import RuleError

ROOT = Path(__file__).resolve().parents[2]
UNTYPED = ROOT / "docs" / "untyped.toml"


def test_no_template_has_two_operators_but_definitions() -> None:
    themes = load_config(UNTYPED).themes
    typed = {t.name: v.text for t in themes if t.origin != DEFINITION for v in t.vocabulary if v.operators > 1}
    assert typed == {}
    assert not any("typed" in t.source for t in themes if t.origin != DEFINITION)


def test_the_shipped_configuration_has_such_templates() -> None:
    """What is counted is there to be counted."""
    typed = [v for t in load_config().themes if t.origin != DEFINITION for v in t.vocabulary if v.operators > 1]
    assert len(typed) > 200


def test_a_shape_that_may_be_any_takes_no_leading_axes_away(tmp_path: Path) -> None:
    """A rule for any shapes of one rank is no substitute for one that holds at any rank."""
    config = load_config(UNTYPED)
    (theme,) = (t for t in config.themes if t.name == "reshape-pointwise-flatten")
    found = explore(theme, config, str(tmp_path))
    about = [r for r in found.rules if {"Erf", "Reshape"} == r.operators]
    assert about
    assert all(r.lead for r in about)


def test_themes_have_names_of_their_own() -> None:
    counts = Counter(t.name for t in load_config(UNTYPED).themes)
    assert [n for n, count in counts.items() if count > 1] == []


def test_themes_of_another_file(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text(
        """
        [[theme]]
        name = "mixed"
        leaves = { x = "f[n]" }
        vocabulary = ["Neg(A)", "Neg(Exp(x))", "Add(A, 1.0)"]

        [[theme]]
        name = "typed"
        leaves = { x = "f[n]" }
        vocabulary = ["Neg(Exp(x))"]

        [[theme]]
        name = "meaning"
        origin = "definition"
        leaves = { x = "f[n]" }
        vocabulary = ["Neg(Exp(x))", "Exp(x)"]
        """,
        "utf-8",
    )
    own = '[[theme]]\nname = "own"\nleaves = { x = "f[n]" }\nvocabulary = ["Exp(A)"]\n'
    file = tmp_path / "config.toml"
    file.write_text(f'[[include]]\nfile = "other.toml"\ntyped = false\n{own}', "utf-8")
    found = {t.name: [v.text for v in t.vocabulary] for t in load_config(file).themes}
    assert found == {
        "mixed": ["Neg(A)", "Add(A, 1.0)"], "meaning": ["Neg(Exp(x))", "Exp(x)"], "own": ["Exp(A)"],
    }  # fmt: skip
    file.write_text(f'[[include]]\nfile = "other.toml"\nthemes = ["typed"]\n{own}', "utf-8")
    assert [t.name for t in load_config(file).themes] == ["typed", "own"]
    file.write_text(f'[[include]]\nfile = "nowhere.toml"\n{own}', "utf-8")
    with pytest.raises(RuleError, match="nowhere"):
        load_config(file)
