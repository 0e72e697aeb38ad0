"""Wrong prices: the same for a question and a seed, within their share, and true again where results are compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.perturbed import Perturbed, main, perturbed
from superopt import cost, formats
from superopt.cost.record import Question
from superopt.ir.types import DType, TensorType

TINY = Path(__file__).parents[2] / "corpus" / "tiny"


def question(width: int) -> Question:
    a, b = TensorType(DType.FLOAT32, (8, width)), TensorType(DType.FLOAT32, (width, 8))
    return Question("MatMul", {}, (a, b), (TensorType(DType.FLOAT32, (8, 8)),), (False, True))


def test_prices_are_off_by_at_most_their_share_and_always_alike() -> None:
    with cost.for_target("profile:cpu-epyc-2core") as true:
        wrong, other = Perturbed(true, 1, 0.2), Perturbed(true, 2, 0.2)
        off = [wrong._lookup(q).us / true._lookup(q).us for q in map(question, range(16, 80))]
        again = [wrong._lookup(q).us / true._lookup(q).us for q in map(question, range(16, 80))]
        else_ = [other._lookup(q).us / true._lookup(q).us for q in map(question, range(16, 80))]
    assert off == again
    assert off != else_
    assert min(off) >= 0.8
    assert max(off) <= 1.2
    assert max(off) - min(off) > 0.3
    assert wrong.digest is None


def test_a_row_prices_results_truly() -> None:
    with cost.for_target("profile:cpu-epyc-2core") as true:
        exact = perturbed("m", formats.load(TINY / "deep_linear.json"), true, [0, 1], 0.0)
        wild = perturbed("m", formats.load(TINY / "deep_linear.json"), true, [0, 1, 2], 0.9)
    assert exact.ratios == (1.0, 1.0)
    assert exact.unperturbed_us < exact.input_us
    assert all(r > 0.9 for r in wild.ratios)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.json"
    assert main([str(TINY / "deep_linear.json"), "--seeds", "2", "--json", str(out)]) == 0
    assert "within 3 % by the median: 1 of 1" in capsys.readouterr().out
    assert out.is_file()
