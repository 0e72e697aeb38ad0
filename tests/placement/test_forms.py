"""Partitioned forms: which are read off meanings, that they are proved, and that wrong ones are refuted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from superopt.ir.terms import Attributes
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.placement.forms import Form
from superopt.placement.placements import PARTIAL, REPLICATED, Placement, parse_placement, split
from superopt.placement.statements import (
    ProvedForm,
    certify_form,
    check_form_certificate,
    local_operator,
    proved_forms,
    statements,
)
from superopt.verifier.exact.testing import test as exact_test
from superopt.verifier.prover.prover import prove
from superopt.verifier.verdict import ProvedVerdict, RefutedVerdict

COUNT = 2
Types = tuple[TensorType | None, ...]
ON_LAST: Attributes = (("axis", 2), ("epsilon", 1e-5))
WINDOW: Attributes = (("dilations", (1, 1)), ("group", 1), ("pads", (1, 1, 1, 1)), ("strides", (1, 1)))
BY_CHANNEL: Attributes = (("dilations", (1, 1)), ("group", 8), ("pads", (1, 1, 1, 1)), ("strides", (1, 1)))
GEMM: Attributes = (("alpha", 1.0), ("beta", 1.0), ("transA", 0), ("transB", 0))


def f(*shape: int) -> TensorType:
    return TensorType(DType.FLOAT32, shape)


def i(*shape: int) -> TensorType:
    return TensorType(DType.INT64, shape)


def forms(op: str, attributes: Attributes, *types: TensorType) -> tuple[ProvedForm, ...]:
    return proved_forms(REGISTRY[op], attributes, types, COUNT)


CASES: dict[str, tuple[str, Attributes, Types, set[str]]] = {
    "a product": ("MatMul", (), (f(6, 4), f(4, 10)), {
        "(replicated, replicated) → replicated", "(split 0, replicated) → split 0", "(replicated, split 1) → split 1",
        "(split 1, split 0) → partial", "(partial, replicated) → partial", "(replicated, partial) → partial",
    }),
    "a product with a bias": ("Gemm", GEMM, (f(6, 4), f(4, 10), f(10)), {
        "(replicated, replicated, replicated) → replicated", "(split 0, replicated, replicated) → split 0",
        "(replicated, split 1, split 0) → split 1", "(split 1, split 0, partial) → partial",
        "(partial, replicated, partial) → partial", "(replicated, partial, partial) → partial",
    }),
    "an activation": ("Gelu", (("approximate", "none"),), (f(6, 4),), {
        "(replicated) → replicated", "(split 0) → split 0", "(split 1) → split 1",
    }),
    "a softmax": ("Softmax", (("axis", 1),), (f(6, 4),), {"(replicated) → replicated", "(split 0) → split 0"}),
    "a normalisation": ("LayerNormalization", ON_LAST, (f(2, 6, 4), f(4), f(4)), {
        "(replicated, replicated, replicated) → replicated", "(split 0, replicated, replicated) → split 0",
        "(split 1, replicated, replicated) → split 1", "(replicated, partial, partial) → partial",
    }),
    "heads": ("Reshape", (("shape", (2, 6, 10, 4)),), (f(2, 6, 40),), {
        "(replicated) → replicated", "(split 0) → split 0", "(split 1) → split 1", "(split 2) → split 2",
        "(partial) → partial",
    }),
    "a table": ("Gather", (("axis", 0),), (f(6, 4), i(8)), {
        "(replicated, replicated) → replicated", "(replicated, split 0) → split 0", "(split 1, replicated) → split 1",
        "(partial, replicated) → partial",
    }),
    "a convolution": ("Conv", WINDOW, (f(2, 4, 8, 8), f(6, 4, 3, 3), f(6)), {
        "(replicated, replicated, replicated) → replicated", "(split 0, replicated, replicated) → split 0",
        "(replicated, split 0, split 0) → split 1", "(split 1, split 1, partial) → partial",
        "(partial, replicated, partial) → partial", "(replicated, partial, partial) → partial",
    }),
    "a convolution by channel": ("Conv", BY_CHANNEL, (f(2, 8, 6, 6), f(8, 1, 3, 3)), {
        "(replicated, replicated) → replicated", "(split 0, replicated) → split 0", "(split 1, split 0) → split 1",
        "(partial, replicated) → partial", "(replicated, partial) → partial",
    }),
    "parts": ("Split", (("axis", 1), ("split", (3, 5))), (f(4, 8),), {
        "(replicated) → replicated, replicated", "(split 0) → split 0, split 0",
    }),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_an_operator_has_the_forms_of_its_meaning_for_all_sizes_and_numbers_of_devices(
    case: tuple[str, Attributes, Types, set[str]],
) -> None:
    op, attributes, types, expected = case
    found = proved_forms(REGISTRY[op], attributes, types, COUNT)
    assert {str(p.form) for p in found} == expected
    assert all(p.all_sizes for p in found)


def test_a_divided_group_is_an_attribute_of_the_piece() -> None:
    by_channel = next(
        p for p in forms("Conv", BY_CHANNEL, f(2, 8, 6, 6), f(8, 1, 3, 3)) if p.form.results == (split(1),)
    )
    assert dict(by_channel.form.attributes)["group"] == 8 // COUNT


def test_what_does_not_divide_is_not_split() -> None:
    assert {p.form.results for p in forms("Relu", (), f(3, 4))} == {(REPLICATED,), (split(1),)}


WRONG: dict[str, tuple[str, Attributes, Types, tuple[Placement, ...], Placement]] = {
    "no reduction": ("MatMul", (), (f(6, 4), f(4, 10)), (split(1), split(0)), REPLICATED),
    "the wrong axis": ("Transpose", (("perm", (1, 0)),), (f(6, 6),), (split(0),), split(0)),
    "the wrong operand": ("MatMul", (), (f(6, 6), f(6, 6)), (split(0), REPLICATED), split(1)),
    "a softmax along its axis": ("Softmax", (("axis", 1),), (f(6, 4),), (split(1),), split(1)),
    "a normalised axis": ("LayerNormalization", ON_LAST, (f(2, 6, 4), f(4), f(4)), (split(2), split(0), split(0)),
                          split(2)),
    "a bias on every device": ("Gemm", GEMM, (f(6, 4), f(4, 10), f(10)), (split(1), split(0), REPLICATED), PARTIAL),
    "an image without its border": ("Conv", WINDOW, (f(2, 4, 8, 8), f(6, 4, 3, 3)), (split(2), REPLICATED), split(2)),
    "an activation of partial sums": ("Relu", (), (f(6, 4),), (PARTIAL,), PARTIAL),
    "a product of partial sums": ("Mul", (), (f(6, 4), f(6, 4)), (PARTIAL, PARTIAL), PARTIAL),
    "a mean of means as a sum": ("ReduceMean", (("axes", (1,)), ("keepdims", 1)), (f(6, 4),), (split(1),), PARTIAL),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG.keys())
def test_wrong_forms_are_neither_proved_nor_survive_exact_testing(
    case: tuple[str, Attributes, Types, tuple[Placement, ...], Placement],
) -> None:
    op, attributes, types, operands, result = case
    operator = REGISTRY[op]
    stated = list(statements(operator, attributes, types, Form(attributes, operands, (result,)), COUNT))
    assert stated
    with REGISTRY.also(local_operator(operator)):
        for rule, _ in stated:
            assert not isinstance(prove(rule, time_limit=2.0), ProvedVerdict)
        assert isinstance(exact_test(stated[0][0]), RefutedVerdict)


def test_the_statement_of_a_partial_sum() -> None:
    found = forms("MatMul", (), f(6, 4), f(4, 10))
    rule = next(p.rule for p in found if str(p.form) == "(split 1, split 0) → partial")
    assert rule is not None
    assert [str(t) for t in rule.lhs] == ["MatMul(x0, x1)"]
    assert str(rule.rhs[0]).startswith("ReduceSum(LocalMatMul(Transpose(Reshape(x0, shape=[")


def test_a_certificate_holds_and_a_changed_one_does_not(tmp_path: Path) -> None:
    operator = REGISTRY["MatMul"]
    rule = next(p.rule for p in forms("MatMul", (), f(6, 4), f(4, 10)) if p.form.results == (PARTIAL,))
    assert rule is not None
    path = certify_form(operator, rule, tmp_path)
    assert path is not None
    assert check_form_certificate(operator, path).valid
    data = json.loads(path.read_text("utf-8"))
    data["rule"]["rhs"] = [text.replace("LocalMatMul", "MatMul") for text in data["rule"]["rhs"]]
    path.write_text(json.dumps(data), "utf-8")
    assert not check_form_certificate(operator, path).valid


def test_placements_are_read_as_they_are_written() -> None:
    for placement in (REPLICATED, PARTIAL, split(3)):
        assert parse_placement(str(placement)) == placement
    with pytest.raises(ValueError, match="no placement"):
        parse_placement("everywhere")
