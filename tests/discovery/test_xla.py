"""The blind list: rules of XLA's simplifier, written before anything was run on them (docs/discovery.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from superopt.rules.library import parse_file
from superopt.rules.rule import Rule
from superopt.verifier.prover import prove
from superopt.verifier.verdict import ProvedAllSizes, Refuted

LIST = parse_file(Path(__file__).parent / "xla" / "list.toml")
UNPROVED = {"dyslice05"}  # a sum of positions, each below its own bound


def test_it_is_whole() -> None:
    assert len(LIST) == 114
    assert len({r.id.split()[0] for r in LIST}) == 113


@pytest.mark.parametrize("rule", LIST, ids=lambda r: r.id)
def test_verdict(rule: Rule) -> None:
    verdict = prove(rule)
    assert not isinstance(verdict, Refuted)
    assert isinstance(verdict, ProvedAllSizes) or rule.id in UNPROVED
