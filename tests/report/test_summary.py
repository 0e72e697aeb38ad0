"""What a report says: its first line, its table, and how notebooks show it."""

from __future__ import annotations

import io
import pickle
import re
from dataclasses import replace
from math import inf
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from superopt.ir.graph import Graph, constant, structural_hash
from superopt.report import (
    CheckReport,
    CostReport,
    FileSize,
    NodeCounts,
    NumericalErrorReport,
    PairedMeasurement,
    Report,
    ResourceUsageReport,
    ResultDigest,
    SearchStatistics,
    StatusReason,
    VerificationReport,
)
from superopt.report.terminal import show_explanation, show_report

PASSED = CheckReport("passed", 24, 1e-6, 2e-6, "original")
RACED = PairedMeasurement(5.8e-3, 4.9e-3, 4.9 / 5.8, 15, 0.01, uncertainty=0.037)
FASTER = Report(
    status="improved",
    target="cpu",
    cost=CostReport(6.4, 5.5, 1.0),
    measured=RACED,
    check=PASSED,
    nodes=NodeCounts(12, 9),
    operators={"before": {"Conv": 4, "Relu": 8}, "after": {"Conv": 4, "Relu": 5}},
    work=ResourceUsageReport(1000, 900, 4096, 2048, 0.2, 0.4, 2048, 2048, 1024, 512),
    rules_applied=(),
    search=SearchStatistics(1.5, 3, 40, 1234, "saturated"),
    opaque=(),
    reason=StatusReason("faster", "…"),
    file=FileSize(3000, 2500),
)
ESTIMATED = replace(FASTER, target="profile:cpu-epyc-2core", measured=None)
SIMPLER = replace(FASTER, measured=replace(RACED, ratio=1.002), reason=StatusReason("simpler", "…"))
CUT = "the search stopped after 3 s, before it was complete; run it longer to continue (a time limit of 6 s)"
UNCHANGED = replace(FASTER, status="unchanged", measured=None, reason=StatusReason("time", CUT))


def test_the_digest_of_the_result_is_computed_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph("g", (), (), (constant("w", np.ones(3, np.float32)),), (), {"": 18})
    asked: list[Graph] = []

    def counted(of: Graph) -> str:
        asked.append(of)
        return structural_hash(of)

    monkeypatch.setattr("superopt.report.optimization_report.structural_hash", counted)
    report = replace(FASTER, result=ResultDigest(graph))
    assert report.summary
    assert asked == []
    assert report.json()["result"] == {"digest": structural_hash(graph)}
    assert report.json() == replace(FASTER, result=ResultDigest(graph)).json()
    assert len(asked) == 2
    copied = pickle.loads(pickle.dumps(report))
    assert copied == report
    assert copied.result.digest == structural_hash(graph)
    assert FASTER.json()["result"] is None


@pytest.mark.parametrize(
    ("report", "summary"),
    [
        (FASTER, "1.18x faster (5.8 → 4.9 µs, measured); checked equal"),
        (replace(FASTER, measured=replace(RACED, before_ms=80.0, ratio=0.05)),
         "20x faster (80.00 → 4.00 ms, measured); checked equal"),
        (replace(FASTER, measured=replace(RACED, ratio=0.98)),
         "about 1.02x faster (5.8 → 5.7 µs, measured, in doubt: x0.980, ±0.037, 15 interleaved rounds; prices agree); "
         "checked equal"),
        (replace(FASTER, measured=replace(RACED, runs=3, uncertainty=inf)),
         "about 1.18x faster (5.8 → 4.9 µs, measured, in doubt: x0.845, 3 interleaved rounds, too few to say how far "
         "it may be off; prices agree); checked equal"),
        (ESTIMATED, "1.16x faster (6.4 → 5.5 µs, estimated for profile:cpu-epyc-2core); checked equal"),
        (SIMPLER, "simpler (12 → 9 nodes, 1.00 k → 900 FLOPs, 4.0 KiB → 2.0 KiB moved); no clear difference "
                  "in time (5.8 → 5.8 µs, measured); checked equal"),
        (replace(FASTER, reason=StatusReason("memory", "…")), "less memory, as asked for; checked equal"),
        (replace(FASTER, errors=NumericalErrorReport(1e-7, 2e-7, 3, 1e-5, 4.0)),
         "1.18x faster (5.8 → 4.9 µs, measured); checked equal up to errors of 1e-05"),
        (replace(FASTER, check=CheckReport("skipped", 0, 0.0, 0.0, "float64", "switched off")),
         "1.18x faster (5.8 → 4.9 µs, measured); not checked (switched off)"),
        (replace(FASTER, verification=VerificationReport("proved", 5, 4, 0, 1.0)),
         "1.18x faster (5.8 → 4.9 µs, measured); proved equal"),
        (UNCHANGED, f"unchanged: {CUT}"),
    ],
)  # fmt: skip
def test_the_first_line(report: Report, summary: str) -> None:
    assert report.summary == report.json()["summary"] == summary
    assert str(report).splitlines()[0] == summary
    assert repr(report) == f"<superopt Report: {summary}>"


def shown(report: Report, **more: Any) -> str:
    with Console(record=True, width=200, file=io.StringIO()) as console:
        show_report(console, "m.onnx", report, **more)
    return console.export_text()


def test_the_table_has_what_was_measured_and_the_size_of_the_file() -> None:
    text = shown(FASTER)
    assert text.startswith("m.onnx  1.18x faster (5.8 → 4.9 µs, measured); checked equal\n")
    assert re.search(r"^time +5\.8 µs +4\.9 µs +x0\.845 \(±0\.037, 15 interleaved rounds, cpu\)", text, re.MULTILINE)
    assert re.search(r"^ONNX file +2\.9 KiB +2\.4 KiB", text, re.MULTILINE)
    assert re.search(r"^Relu +8 +5$", text, re.MULTILINE)
    assert "search 1.5 s: 40 regions, 1,234 e-nodes; it ended because no rule gained more" in text


def test_estimates_are_shown_where_they_are_asked_for_or_all_there_is() -> None:
    assert "estimated" not in shown(FASTER)
    assert re.search(r"^time, estimated +6\.4 µs +5\.5 µs", shown(FASTER, estimates=True), re.MULTILINE)
    assert re.search(r"^time, estimated +6\.4 µs +5\.5 µs", shown(ESTIMATED), re.MULTILINE)


@pytest.mark.parametrize("report", [FASTER, ESTIMATED, SIMPLER, UNCHANGED])
def test_no_word_needs_its_author(report: Report) -> None:
    assert not re.search(r"mutant|regions at a time|modelled|no rule was", shown(report, estimates=True))


def test_notebooks_get_a_table_and_bars() -> None:
    names = replace(FASTER, operators={"before": {"a<b>&": 1}, "after": {}})
    html = names._repr_html_()
    assert "1.18x faster (5.8 → 4.9 µs, measured); checked equal" in html
    assert "<td>a&lt;b&gt;&amp;</td><td>1</td><td>0</td>" in html
    drawing = ElementTree.fromstring(FASTER._repr_svg_())
    before, after = (float(r.attrib["width"]) for r in drawing.iter("{http://www.w3.org/2000/svg}rect"))
    assert after / before == pytest.approx(4.9 / 5.8, abs=1e-3)


def step(number: int, rules: list[str], removed: dict[str, int], gain: float) -> dict[str, Any]:
    return {"step": number, "rules": rules, "removed": removed, "added": {"Conv": 1}, "gain_us": gain, "us": 9.0}


def test_equal_steps_are_explained_once() -> None:
    folds = [step(n, ["batchnorm-cde9"], {"Conv": 1, "BatchNormalization": 1}, 1.5) for n in (1, 2, 3, 5)]
    steps = sorted([*folds, step(4, ["relu-1"], {"Conv": 1, "Relu": 1}, 0.5)], key=lambda s: s["step"])
    told = replace(FASTER, derivation={"steps": steps, "order": "from the inputs", "before_us": 20.0, "after_us": 13.5})
    with Console(record=True, width=200, file=io.StringIO()) as console:
        show_explanation(console, told)
    text = console.export_text()
    assert text.count("batchnorm-cde9") == 1
    assert re.search(r"^1-3, 5 +batchnorm-cde9 +Conv, BatchNormalization +Conv +6\.0 µs$", text, re.MULTILINE)
    assert "5 steps from the inputs: 6.5 µs in all, of 20.0 µs (estimated)" in text
