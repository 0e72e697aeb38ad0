"""Small compositions for which a person finds a cheaper equal (``python -m lab.pairs``)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from as_run import as_run
from sampling import sampled

from lab.case_suite import FOUND, options
from lab.pairs.__main__ import UNREACHED, ExpressionCost, RewriteCaseResult, form_of, is_found, row_of, table
from lab.pairs.generated import properties
from lab.pairs.rewrite_cases import RewriteCase, cases
from superopt.pipeline.optimization import optimize

OPERATORS = ("even", "idempotent", "monotone", "not negative", "odd")
KINDS = sorted(
    [*(f.stem for f in (Path(__file__).parents[2] / "lab" / "pairs").glob("*.toml")), "ArgMax"]
    + [f"{held} operators" for held in OPERATORS]
)
# A draw over kinds.
SAMPLE = (
    "BatchNormalization before Conv",
    "BatchNormalization behind Gemm",
    "LayerNormalization before a product with a weight",
    "MaxPool of MaxPool, windows apart",
    "GlobalAveragePool of AveragePool",
    "ReduceMax over the first axis, then the last",
    "Slice within padding",
    "Max of Max, numbers",
    "LeakyRelu of LeakyRelu",
    "Pad by nothing",
    "sums with a channel's and a channel's of full rank",
)

# Compositions about which the library has rules from docs/compositions.toml.
COMPOSITIONS = (
    "grouped Conv of a product",
    "grouped Conv of a product with a number",
    "depthwise Conv with bias of a product",
    "depthwise Conv with bias of a sum",
    "sum of quotients by a channel's",
    "difference of products with a scalar weight",
    "GroupNormalization before a sum with a weight",
    "a value less its ReduceLogSumExp",
)


@cache
def by_name() -> dict[str, RewriteCase]:
    return {c.name: c for c in cases()}


def test_there_are_as_many_as_were_asked_for_and_names_are_their_own() -> None:
    assert len(by_name()) == len(cases()) > 400
    kinds = {c.kind for c in by_name().values()}
    assert kinds == set(KINDS) >= {"norms", "pools", "linear", "affine", "movement", "logic", "ArgMax"}


@pytest.mark.parametrize("kind", sampled(KINDS, 6))
def test_both_sides_are_equal_in_float64(kind: str) -> None:
    differences = {c.name: c.difference() for c in by_name().values() if c.kind == kind}
    assert {name: d for name, d in differences.items() if not d < 1e-5} == {}


@pytest.mark.parametrize("name", sampled(SAMPLE, 5))
def test_what_a_person_finds_is_found(name: str) -> None:
    row = row_of(by_name()[name])
    assert row.outcome == FOUND, row


@pytest.mark.parametrize("name", sampled(COMPOSITIONS, 4))
def test_what_is_found_computes_the_same_in_onnx_runtime(name: str) -> None:
    case = by_name()[name]
    result = optimize(case.given, options=options("standard")).graph
    given, answer = form_of(case.given), form_of(case.answer)
    assert is_found(given, answer, form_of(result)), [node.op for node in result.nodes]
    rng = np.random.default_rng(0)
    feeds = {v.name: rng.normal(size=v.type.shape).astype(np.float32) for v in case.given.inputs}
    for before, after in zip(as_run(case.given, feeds).values(), as_run(result, feeds).values(), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4)


def test_properties_are_read_off_the_records() -> None:
    assert properties()["Relu"] == {"idempotent", "monotone", "not negative"}
    assert properties()["Tanh"] == {"monotone", "odd"}
    assert properties()["Cos"] == {"even"}
    assert "Log" not in properties(), "it is not finite everywhere"


def test_a_result_is_as_good_if_it_costs_no_more_or_has_no_more_operators() -> None:
    two, one = ExpressionCost(2, 4.0), ExpressionCost(1, 3.0)
    assert is_found(two, one, ExpressionCost(2, 3.0)), "as cheap"
    assert is_found(two, one, ExpressionCost(1, 3.5)), "as few operators"
    assert not is_found(two, one, two)
    assert not is_found(two, ExpressionCost(2, 3.0), ExpressionCost(2, 3.5)), "as many operators as before, and dearer"


def test_the_table_counts_by_kind_and_reason() -> None:
    case: RewriteCase = by_name()["MaxPool of MaxPool, windows apart"]
    form = ExpressionCost(2, 4.0)
    rows = [
        RewriteCaseResult(case.kind, case.name, form, form, form, FOUND),
        RewriteCaseResult("other", "case", form, form, form, "missed", UNREACHED),
    ]
    assert "| pools | 1 | 0 | 0 | 0 |" in table(rows)
    assert "| all | 1 | 0 | 0 | 1 |" in table(rows)
