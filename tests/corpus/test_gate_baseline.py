"""This project's own corpus gate: its settings name tiny models of every family, and its baseline is about them."""

from __future__ import annotations

import tomllib
from pathlib import Path

from superopt.cost import profile_names
from superopt.gate import CorpusSettings, models_of, read_run

ROOT = Path(__file__).resolve().parents[2]
TABLE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["superopt"]["corpus"]
SETTINGS = CorpusSettings.read(TABLE, ROOT)


def test_the_settings_name_models_and_a_shipped_profile() -> None:
    assert SETTINGS.target is not None
    assert SETTINGS.target.removeprefix("profile:") in profile_names()
    manifest = tomllib.loads((ROOT / "corpus" / "manifest.toml").read_text(encoding="utf-8"))["model"]
    tiny = {f"corpus/{row['tiny']}": row["family"] for row in manifest}
    named = set(models_of(SETTINGS))
    assert named <= set(tiny)
    assert {tiny[name] for name in named} == {row["family"] for row in manifest}


def test_the_baseline_is_about_these_models() -> None:
    assert SETTINGS.baseline is not None
    assert SETTINGS.baseline.is_file(), "run: make corpus-update"
    baseline = read_run(SETTINGS.baseline)
    assert [row.model for row in baseline.rows] == list(models_of(SETTINGS)), "run: make corpus-update"
    assert baseline.target == SETTINGS.target
    assert all(row.status != "failed" and not row.wrong and row.stopped != "time" for row in baseline.rows)
    assert all(baseline.history[row.model] for row in baseline.rows)
