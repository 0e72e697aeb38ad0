"""The shipped configuration has no typed expressions: one operator a template, but where a composite is defined."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from superopt.discovery.config import DEFINITION, Theme, load_config
from superopt.discovery.explore import explore
from superopt.rules import load_library


def _typed(themes: tuple[Theme, ...]) -> dict[str, str]:
    return {t.name: v.text for t in themes if t.origin != DEFINITION for v in t.vocabulary if v.operators > 1}


def test_no_template_has_two_operators_but_definitions() -> None:
    themes = load_config().themes
    assert _typed(themes) == {}
    assert not any("typed" in t.source for t in themes if t.origin != DEFINITION)
    assert sum(t.origin == DEFINITION for t in themes) > 5


def test_a_typed_expression_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[[theme]]\nname = "a"\nleaves = { x = "f[n]" }\nvocabulary = ["Neg(A)", "Neg(Exp(x))"]\n', "utf-8")
    (theme,) = load_config(file).themes
    assert _typed((theme,)) == {"a": "Neg(Exp(x))"}
    assert theme.source == "enumerated from the vocabulary a, in which expressions are typed"


def test_no_shipped_rule_is_from_a_typed_expression() -> None:
    origins = [rule.origin for rule in load_library().values()]
    assert len(origins) > 1000
    assert [o for o in origins if "typed" in o] == []


def test_a_shape_that_may_be_any_takes_no_leading_axes_away(tmp_path: Path) -> None:
    """A rule for any shapes of one rank is no substitute for one that holds at any rank."""
    config = load_config()
    (theme,) = (t for t in config.themes if t.name == "reshape-pointwise-flatten")
    found = explore(theme, config, str(tmp_path))
    about = [r for r in found.rules if {"Erf", "Reshape"} == r.operators]
    assert about
    assert all(r.lead for r in about)


def test_themes_have_names_of_their_own() -> None:
    counts = Counter(t.name for t in load_config().themes)
    assert [n for n, count in counts.items() if count > 1] == []


def test_every_theme_is_of_a_profile() -> None:
    """One without would be left out by `superopt discover`, which takes those of the default profile."""
    assert {t.profiles for t in load_config().themes} == {("default",), ("taso",)}
