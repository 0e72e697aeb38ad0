"""One small model through every door at small limits: nothing fails, and the results are equal.

``make doors`` does so with the whole corpus, at the shell's own limits and through the wheel, too.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from sampling import slow

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import doors  # noqa: E402

MODEL = ROOT / "corpus" / "tiny" / "deep_linear.json"
PRICES = "profile:cpu-epyc-2core"


@pytest.mark.parametrize("served", [slow(doors.SERVED, id="service too"), pytest.param((), id="command and library")])
def test_the_doors_agree_at_small_limits(served: tuple[str, ...], tmp_path: Path) -> None:
    small = doors.limits_named("small", tmp_path)
    default = doors.limits_named("default", tmp_path)
    record = doors.Record(tmp_path / "rows.jsonl", PRICES)
    shared = doors.Doors(tmp_path, PRICES)
    rows = list(doors.walk(shared, [MODEL], ("cli", "python", *served), [small], record))
    rows += doors.walk(shared, [MODEL], ("cli",), [default], record)
    assert doors.problems(rows) == []
    assert len({row.digest for row in rows}) == 1
    again = doors.Record(tmp_path / "rows.jsonl", PRICES)
    assert all(again.get(again.key(MODEL, r.door, r.limits)) == r for r in rows)


def test_failures_and_differing_results_are_problems(capsys: pytest.CaptureFixture[str]) -> None:
    good = doors.Passed("m", "cli", "small", digest="a" * 64)
    assert doors.problems([good, replace(good, door="python")]) == []
    failed, other = replace(good, digest="", error="no room"), replace(good, door="python", digest="b" * 64)
    assert doors.problems([good, failed, other]) == [
        "m through cli at small limits: no room",
        "m: results differ: aaaaaaaa (cli at small limits), bbbbbbbb (python at small limits)",
    ]
    assert "FAILED" in doors.table([failed, other])


def test_small_limits_are_small(tmp_path: Path) -> None:
    """A process that takes more memory or opens more files than they allow is refused."""
    small = replace(doors.limits_named("small", tmp_path), memory=1 << 20)
    passed = doors.Doors(tmp_path, PRICES).process("cli", MODEL, small)
    assert passed.error
