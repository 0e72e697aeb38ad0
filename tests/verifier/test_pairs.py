"""Pairs of the kinds that were judged falsely: no right one is refuted, no wrong one proved or called tested."""

from __future__ import annotations

import pairs
import pytest
from sampling import sampled

from superopt.formats.onnx_reader import from_onnx
from superopt.verifier.equivalence.graphs import GraphVerdict, verify


def judged(a: str, b: str, **given: object) -> GraphVerdict:
    return verify(from_onnx(pairs.made(a)), from_onnx(pairs.made(b)), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sampled(pairs.RIGHT, 24))
def test_a_right_pair_is_proved_or_tested(name: str) -> None:
    found = judged(*pairs.RIGHT[name])
    assert found.verdict in ("proved", "proved up to rounding", "tested"), found.reason


@pytest.mark.parametrize("name", sampled(pairs.WRONG, 30))
def test_a_wrong_pair_is_refuted(name: str) -> None:
    found = judged(*pairs.WRONG[name])
    assert found.verdict == "refuted", found.words


@pytest.mark.parametrize(
    ("a", "b", "kinds"),
    [
        ("e = Mul (x, x)  y = Sqrt (e)", "y = Abs (x)", {"overflow"}),
        ("k := 2.0  a = Mul (x, k)  y = Sub (a, x)", "y = Identity (x)", {"infinities", "overflow"}),
        ("s = Softmax (x)  y = Log (s)", "y = LogSoftmax (x)", {"overflow"}),
        ("y = Exp (x)", "k := 0.0  a = Add (x, k)  y = Exp (a)", set()),
    ],
)
def test_a_proof_says_where_what_runs_differs(a: str, b: str, kinds: set[str]) -> None:
    found = judged(pairs.real(a), pairs.real(b))
    assert found.verdict == "proved"
    said, _, differs = found.words.partition("; differs at ")
    assert said == "proved over the reals"
    assert set(filter(None, differs.split(", "))) == kinds
    assert {b.partition(":")[0] for b in found.check.beyond} == kinds


def test_what_is_literally_the_same_is_the_same_in_what_runs() -> None:
    found = judged(pairs.real("e = Mul (x, x)  y = Sqrt (e)"), pairs.real("f = Mul (x, x)  y = Sqrt (f)"))
    assert found.words == "proved: every node is literally the same"


def test_what_few_changes_would_show_is_not_tested() -> None:
    """Positions that the inputs never reach: a right pair and a wrong one look alike."""
    steps = "k := {0}.0  s = Sigmoid (x)  g = Greater (s, k)  n = Neg (x)  y = Where (g, n, x)"
    found = judged(pairs.real(steps.format(2)), pairs.real(steps.format(3)))
    assert found.verdict == "unknown"
    assert found.check.power is not None
    assert found.check.power.share < 0.5
    assert "single changes of B" in found.reason


def test_an_optimiser_that_breaks_the_original_is_told_of() -> None:
    """ONNX Runtime 1.32 makes one quantisation of two: a right result runs as wrongly as the original does."""
    two = pairs.qdq((0.1, 128), (0.1, 100))
    found = judged(two, two.replace("d0 = Dequantize", "e0 = Dequantize").replace("q1 = ", "d0 = Identity (e0) q1 = "))
    assert found.verdict != "refuted"
    assert "ONNX Runtime's own optimisations move output 'y' of the original by" in found.reason


def test_a_model_that_the_runtime_refuses_does_not_run() -> None:
    runs, refused = pairs.real("y = Relu (x)"), pairs.real("y = NoSuch (x)")
    assert judged(runs, refused).words == "refuted: does not run"
    assert judged(refused, runs).words == "unknown: A does not run"
