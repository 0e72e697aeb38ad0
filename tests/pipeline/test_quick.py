"""What the quick effort does, and what it leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

import superopt
from superopt.cost import operator_timing
from superopt.frontend import GraphBuilder
from superopt.ir.graph import Graph

TARGET = "profile:cpu-epyc-2core"


def convolution() -> Graph:
    """A layer for which the default effort takes Winograd's algorithm."""
    b = GraphBuilder("layer")
    x = b.input("x", "float32", (1, 64, 56, 56))
    w = b.weight("w", (64, 64, 3, 3))
    b.output(b.op("Conv", x, w, pads=(1, 1, 1, 1)).relu().relu(), "y")
    return b.build()


def test_nothing_is_timed_or_calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path))

    def refused(*args: object, **kwargs: object) -> None:
        raise AssertionError("the quick effort measures nothing")

    monkeypatch.setattr(operator_timing.CpuOperatorTimer, "time", refused)
    report = superopt.optimize(convolution(), target="cpu", effort="quick").report
    assert report.status == "improved"
    assert report.measured is None
    assert report.check.verdict == "passed"
    assert not (tmp_path / "calibration").exists()


def test_no_fast_algorithm_is_looked_for() -> None:
    report = superopt.optimize(convolution(), target=TARGET, effort="quick").report
    assert report.nodes.after == report.nodes.before - 1
    assert not report.algorithms


def test_a_rule_of_the_library_is_used_where_it_is_enabled_by_name() -> None:
    """Also one that no recorded result rests on and that leaves as many operators."""
    b = GraphBuilder("signs")
    b.output(b.op("Abs", b.op("Neg", b.input("x", "float32", (8, 8)))), "y")
    reports = [
        superopt.optimize(b.build(), target=TARGET, effort="quick", **more).report
        for more in ({}, {"enable": ["algebra"]}, {"disable": ["activation"]})
    ]
    assert [r.nodes.after for r in reports] == [1, 2, 2]


def test_a_result_that_prices_refuse_is_followed_by_one_that_asks_for_no_more() -> None:
    """Of a model that may gain a little for more kernels, what only removes operators is returned."""
    model = Path(__file__).resolve().parents[2] / "corpus" / "mobilenet_v2.json"
    report = superopt.optimize(model, target=TARGET, effort="quick", check=False).report
    assert any("only rewrites without more FLOPs, bytes or kernels are tried" in note for note in report.notes)
    assert report.status == "improved"
    assert report.nodes.after < report.nodes.before
    assert report.work.flops_after <= report.work.flops_before
