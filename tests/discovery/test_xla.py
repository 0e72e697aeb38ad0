"""The blind list: rules of XLA's simplifier, written before anything was run on them (lab/notes/discovery.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from superopt.discovery.config import load_config
from superopt.discovery.derive import derived, rewrites_of
from superopt.discovery.discover import discover
from superopt.rules.library import load_library, parse_file
from superopt.rules.rule import Rule
from superopt.verifier.prover.prover import prove
from superopt.verifier.verdict import ProvedVerdict, RefutedVerdict

LIST = parse_file(Path(__file__).parent / "xla" / "list.toml")
GENERATED = Path(__file__).resolve().parents[2] / "docs" / "generated.toml"
THEMES = {  # small ones, and rows that the library derives with their rules and not without
    "reverse-one": ["reverse01"],
    "gather": ["dyslice04"],
    "gather-expand": ["dyslice03", "broadcast06"],
    "gather-range": ["dyslice01", "dyslice02"],
    "pad-concat": ["concat05", "concat06", "pad01"],
    "clip": ["clamp02"],
    "bounds": ["logical09"],
    "reduce-one": ["reduce07", "reduce08"],
    "expand-one": ["dot04"],
}
UNPROVED = {"dyslice05"}  # a sum of positions, each below its own bound


def test_it_is_whole() -> None:
    assert len(LIST) == 114
    assert len({r.id.split()[0] for r in LIST}) == 113


@pytest.mark.parametrize("rule", LIST, ids=lambda r: r.id)
def test_verdict(rule: Rule) -> None:
    verdict = prove(rule)
    assert not isinstance(verdict, RefutedVerdict)
    assert isinstance(verdict, ProvedVerdict) or rule.id in UNPROVED


@pytest.mark.slow
@pytest.mark.parametrize("theme", THEMES)
def test_a_generated_vocabulary_finds_what_rows_follow_from(theme: str, tmp_path: Path) -> None:
    library = load_library().admitted
    found = discover(load_config(GENERATED).select(themes=(theme,)), out=tmp_path)
    rows = {r.id: r for r in LIST if r.id in THEMES[theme]}
    assert set(rows) == set(THEMES[theme])
    for row in rows.values():
        near = [r for r in (*library, *found.rules) if r.operators <= row.operators]
        alone = [r for r in library if r.operators <= row.operators]
        assert derived(row, rewrites_of(alone)) is None
        assert derived(row, rewrites_of(near)) is not None
