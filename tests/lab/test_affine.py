"""Linear operators beside affine neighbours: what one operator can do comes back as one (``python -m lab.affine``)."""

from __future__ import annotations

import pytest
from sampling import sampled

from lab.affine.__main__ import NONE, AffineCompositionRow, row_of, table
from lab.affine.affine_compositions import Composition, compositions
from lab.affine.fewest_operators import fewest_operators
from lab.case_suite import FOUND

MATRIX = {c.name: c for c in compositions()}
# A draw over forms of operators, neighbours, shapes of constants and sides.
SAMPLE = (
    "Conv: Div a channel's behind",
    "Conv: Mul a channel's of full rank behind",
    "Conv: constant Sub a channel's behind",
    "Conv: BatchNormalization before",
    "Conv with bias: Neg behind",
    "Conv depthwise: Sub a channel's behind",
    "ConvTranspose strided: Mul a channel's behind",
    "Gemm transB: Sub a channel's before",
    "Gemm: BatchNormalization before",
    "Conv: Sub a channel's, Div a channel's before; Mul a channel's, Add a channel's behind",
)


@pytest.mark.parametrize("name", sampled(SAMPLE, 5))
def test_a_composition_that_one_operator_can_do_comes_back_as_one(name: str) -> None:
    row = row_of(MATRIX[name])
    assert (row.outcome, row.result) == (FOUND, 1), row


@pytest.mark.parametrize(
    ("name", "fewest"),
    [
        ("Conv: constant Sub a scalar before", 1),
        ("Conv grouped: Sub a channel's, Div a channel's before", 1),
        ("Conv padded: Mul a channel's before", 1),
        ("Conv padded: Add a channel's before", 2),  # the border is padded with zeros behind the sum
        ("MatMul: Sub a channel's, Div a channel's before", 2),  # a product has no bias
        ("AveragePool: Mul a channel's behind", 1),  # a depthwise convolution
    ],
)
def test_weights_exist_or_do_not(name: str, fewest: int) -> None:
    assert fewest_operators(MATRIX[name]) == fewest


def test_every_linear_operator_of_the_registry_has_forms() -> None:
    assert {c.form.operator for c in compositions()} == {"AveragePool", "Conv", "ConvTranspose", "Gemm", "MatMul"}
    assert len(MATRIX) == sum(1 for _ in compositions()), "two compositions have one name"


def test_the_table_counts_by_form() -> None:
    composition: Composition = MATRIX["Conv: Neg behind"]
    rows = [
        AffineCompositionRow(composition.name, "Conv", 2, 1, 1, FOUND),
        AffineCompositionRow("other", "Conv", 2, 2, 2, NONE),
    ]
    assert "| Conv | 1 | 0 | 1 |" in table(rows)
