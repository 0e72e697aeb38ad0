"""A configuration without typed expressions: one operator a template, but where a composite operator is defined."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from superopt.discovery.config import DEFINITION, Theme, load_config
from superopt.discovery.derive import derive
from superopt.discovery.explore import explore
from superopt.rules.library import parse_file

ROOT = Path(__file__).resolve().parents[2]
UNTYPED = ROOT / "docs" / "untyped.toml"
RECORDED = ROOT / "docs" / "untyped"


def _typed(themes: tuple[Theme, ...]) -> dict[str, str]:
    return {t.name: v.text for t in themes if t.origin != DEFINITION for v in t.vocabulary if v.operators > 1}


def test_no_template_has_two_operators_but_definitions() -> None:
    themes = load_config(UNTYPED).themes
    assert _typed(themes) == {}
    assert not any("typed" in t.source for t in themes if t.origin != DEFINITION)
    assert sum(t.origin == DEFINITION for t in themes) > 5


def test_the_shipped_configuration_has_such_templates() -> None:
    """What is counted is there to be counted."""
    assert len(_typed(load_config().themes)) > 60


def test_what_was_recorded_is_of_this_configuration() -> None:
    run = json.loads((RECORDED / "run.json").read_text("utf-8"))
    assert run["config"] == load_config(UNTYPED).select(profile="default").digest
    rules = [r for file in RECORDED.glob("*.toml") for r in parse_file(file)]
    assert len(rules) == run["kept"]
    assert not [r.id for r in rules if "typed" in r.origin]


def test_the_tour_follows_from_what_was_recorded() -> None:
    rules = tuple(r for file in sorted(RECORDED.glob("*.toml")) for r in parse_file(file))
    found = derive(ROOT / "docs" / "tour.toml", rules)
    assert found.missing == {}


def test_a_shape_that_may_be_any_takes_no_leading_axes_away(tmp_path: Path) -> None:
    """A rule for any shapes of one rank is no substitute for one that holds at any rank."""
    config = load_config(UNTYPED)
    (theme,) = (t for t in config.themes if t.name == "reshape-pointwise-flatten")
    found = explore(theme, config, str(tmp_path))
    about = [r for r in found.rules if {"Erf", "Reshape"} == r.operators]
    assert about
    assert all(r.lead for r in about)


def test_every_theme_is_of_a_profile() -> None:
    """One without would be left out by `superopt discover`, which takes those of the default profile."""
    for config in (load_config(), load_config(UNTYPED)):
        assert {t.profiles for t in config.themes} == {("default",), ("taso",)}


def test_themes_have_names_of_their_own() -> None:
    counts = Counter(t.name for t in load_config(UNTYPED).themes)
    assert [n for n, count in counts.items() if count > 1] == []
