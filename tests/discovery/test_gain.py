"""What rules gain by themselves: by a roofline where rules are found, by a recorded profile where they are read."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from superopt.cli import app
from superopt.cost import ProfileCostModel, load_profile
from superopt.discovery.expected_rule_gains import PROFILE, expected, priced, write_gains
from superopt.ir.errors import UsageError
from superopt.rules import Rule, load_library, parse_rule
from superopt.rules.library import BUILT_IN

MODEL = ProfileCostModel(load_profile(PROFILE))


def rule(lhs: str, rhs: str, **forall: str) -> Rule:
    return parse_rule({"id": "r", "forall": forall, "lhs": [lhs], "rhs": [rhs]})


def by_profile(given: Rule, weights: frozenset[str]) -> tuple[float, float] | None:
    found = priced(given, weights, MODEL)
    return None if found is None else found[:2]


def test_what_depends_on_weights_alone_is_free() -> None:
    merged = rule("MatMul(MatMul(x, a), b)", "MatMul(x, MatMul(a, b))", x="f[m, k]", a="f[k, n]", b="f[n, l]")
    for find in (expected, by_profile):
        found, every = find(merged, frozenset("ab")), find(merged, frozenset())
        assert found is not None
        assert every is not None
        assert found[1] < 0.7 * found[0]
        assert every[1] > 1.5 * found[1]


def test_an_activation_after_a_convolution_is_fused_by_the_device_and_not_by_the_roofline() -> None:
    """Where something else reads the convolution, it is not."""
    types = {"x": "f[b, c, h, w]", "k": "f[d, c, 1, 1]"}
    plain = rule("Relu(Conv(x, k))", "Conv(x, k)", **types)
    read = rule("Add(Relu(Conv(x, k)), Conv(x, k))", "Add(Conv(x, k), Conv(x, k))", **types)

    def activation(given: Rule) -> float:
        found = by_profile(given, frozenset("k"))
        assert found is not None
        return found[0] - found[1]

    assert activation(plain) < 0.2 * activation(read)


def test_every_shipped_rule_is_priced_by_the_profile(tmp_path: Path) -> None:
    """All by the same, and anew when the profile is another; a folder that no discovery wrote is refused."""
    stored = json.loads((BUILT_IN / "gains.json").read_text())
    assert set(stored) == set(load_library())
    assert all(row["source"].startswith(f"profile {PROFILE}: ") for row in stored.values())
    with pytest.raises(UsageError, match="not written by superopt discover"):
        write_gains(tmp_path)
    for name in ("run.json", "gemm.toml"):
        shutil.copy(BUILT_IN / name, tmp_path)
    made = write_gains(tmp_path)
    assert set(made) == {r.id for r in load_library().families["gemm"]}
    assert json.loads((tmp_path / "gains.json").read_text()) == made


def test_gains_are_listed_the_most_first(tmp_path: Path) -> None:
    for name in ("run.json", "gemm.toml"):
        shutil.copy(BUILT_IN / name, tmp_path)
    missing = CliRunner().invoke(app, ["rules", "gains", str(tmp_path)])
    assert isinstance(missing.exception, UsageError)
    made = CliRunner().invoke(app, ["rules", "gains", str(tmp_path), "--record", "--json", "-"])
    assert made.exit_code == 0, made.output
    assert set(json.loads(made.stdout)) == {r.id for r in load_library().families["gemm"]}
    shown = CliRunner().invoke(app, ["rules", "gains", str(tmp_path)])
    ratios = [float(t) for t in re.findall(r"x(\d+\.\d{3})", shown.stdout)]
    assert ratios == sorted(ratios)
    assert ratios


def test_a_library_alone_derives_what_it_derives() -> None:
    """Without the built-in rules the small library knows no normalisation, with them every row is derived."""
    tour = str(Path(__file__).parents[2] / "docs" / "tour.toml")
    taso = str(BUILT_IN / "discovered" / "taso")
    alone = CliRunner().invoke(app, ["rules", "derive", tour, "--rules", taso, "--alone", "--json", "-"])
    found = json.loads(alone.stdout)
    assert "QKV, three-way" in found["derived"]
    assert "Conv + BatchNormalization" in found["missing"]
    none = CliRunner().invoke(app, ["rules", "derive", tour, "--alone"])
    assert isinstance(none.exception, UsageError)
