"""No expression is typed: one operator a template, but where a composite operator is defined."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from sampling import slow

from superopt.discovery.config import DEFINITION, DiscoveryConfig, OperatorVocabulary, load_config
from superopt.discovery.derive import derive
from superopt.discovery.vocabulary_exploration import explore
from superopt.rules.library import BUILT_IN, load_library, parse_file, write_rules

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def config() -> DiscoveryConfig:
    return load_config()


def _typed(themes: tuple[OperatorVocabulary, ...]) -> dict[str, str]:
    return {t.name: v.text for t in themes if t.origin != DEFINITION for v in t.vocabulary if v.operators > 1}


def test_no_template_has_two_operators_but_definitions(config: DiscoveryConfig) -> None:
    assert _typed(config.themes) == {}
    assert not any("typed" in t.source for t in config.themes if t.origin != DEFINITION)
    assert sum(t.origin == DEFINITION for t in config.themes) > 5


def test_such_a_template_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "typed.toml"
    row = 'name = "it"\noperators = 2\nleaves = { x = "f[n]" }\nvocabulary = ["Exp(A)", "Exp(Neg(A))"]\n'
    for origin, count in (("", 1), (f'origin = "{DEFINITION}"\n', 0)):
        file.write_text(f"[[theme]]\n{row}{origin}", "utf-8")
        themes = load_config(file).themes
        assert len(_typed(themes)) == count
        assert all("typed" in t.source for t in themes)


def test_the_library_is_the_output_of_this_configuration(config: DiscoveryConfig) -> None:
    run = json.loads((BUILT_IN / "run.json").read_text("utf-8"))
    assert run["config"] == config.select(profile="default").digest
    rules = load_library().values()
    later = [i for more in run.get("added", ()) for i in more["rules"]]  # by `superopt rules extend`
    assert len(rules) == run["kept"] + len(later)
    assert not [r.id for r in rules if "typed" in r.origin]


def _digest(config: DiscoveryConfig, themes: tuple[str, ...]) -> str:
    names = {theme.name for theme in config.themes}
    return config.select(themes=themes).digest if names.issuperset(themes) else ""


def test_what_a_rule_cites_is_the_configuration_as_it_stands() -> None:
    files = [path for path in (ROOT / "docs").glob("*.toml") if path.name != "tour.toml"]
    configurations = [load_config(), *map(load_config, files)]
    run = json.loads((BUILT_IN / "run.json").read_text("utf-8"))
    runs = [run, *(r for more in run["added"] for r in more["runs"])]
    themes = {r["config"]: tuple(t if isinstance(t, str) else t["theme"] for t in r["themes"]) for r in runs}
    cited = {m.group(1) for r in load_library().values() if (m := re.search("config ([0-9a-f]+)", r.origin))}
    standing = {digest for digest, names in themes.items() if digest in {_digest(c, names) for c in configurations}}
    assert {digest for digest in cited if not any(s.startswith(digest) for s in standing)} == set()


@pytest.mark.parametrize("every", [slow(1), 4])
def test_the_tour_follows_from_the_library(every: int, tmp_path: Path) -> None:
    """One rule in four here; `superopt rules derive docs/tour.toml` says it of all."""
    write_rules(tmp_path / "tour.toml", parse_file(ROOT / "docs" / "tour.toml")[::every])
    found = derive(tmp_path / "tour.toml", tuple(load_library().values()))
    assert found.chains
    assert found.missing == {}


@pytest.mark.slow
def test_a_shape_that_may_be_any_takes_no_leading_axes_away(config: DiscoveryConfig, tmp_path: Path) -> None:
    """A rule for any shapes of one rank is no substitute for one that holds at any rank."""
    (theme,) = (t for t in config.themes if t.name == "reshape-pointwise-flatten")
    found = explore(theme, config, str(tmp_path))
    about = [r for r in found.rules if {"Erf", "Reshape"} == r.operators]
    assert about
    assert all(r.lead for r in about)


def test_every_theme_is_of_a_profile(config: DiscoveryConfig) -> None:
    """One without would be left out by `superopt discover`, which takes those of the default profile."""
    assert {t.profiles for t in config.themes} == {("default",), ("taso",)}


def test_themes_have_names_of_their_own(config: DiscoveryConfig) -> None:
    counts = Counter(t.name for t in config.themes)
    assert [n for n, count in counts.items() if count > 1] == []
