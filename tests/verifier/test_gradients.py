"""Proofs of derivatives: nearly all operators', and never a wrong one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sampling import sampled, slow

from superopt.ir.errors import UsageError
from superopt.ops.derivative.declarations import DECLARED
from superopt.ops.derivative.typed_terms import Cotangents, DifferentiationSite, OperatorDerivative, Tangents, apply
from superopt.rules.grammar import parse_rule
from superopt.verifier import ProvedVerdict, prove
from superopt.verifier.prover.gradients import cases, check_gradients

# What the prover does not show, though tests in floating point do: Celu compares a function of x with 0; windows that
# are padded count their elements; the largest of a window is reached, so that it is not divided by 0.
NOT_PROVED = {"AveragePool", "Celu", "MaxPool"}


LONG = {
    "Attention", "BatchNormalization", "Conv", "ConvTranspose", "DepthToSpace", "GroupNormalization",
    "InstanceNormalization", "LRN", "MeanVarianceNormalization",
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [*sampled([n for n in cases() if n not in LONG], 36, sorted(NOT_PROVED)), *map(slow, sorted(LONG))]
)
def test_derivatives_are_proved_for_all_sizes(name: str) -> None:
    """``tests/ops/test_derivatives.py`` compares those of all operators with differences."""
    (found,) = check_gradients([name])
    assert found.total > 0
    assert found.is_proved == (name not in NOT_PROVED), found.missing


def test_nearly_all_are_proved() -> None:
    assert len(NOT_PROVED) / len(cases()) < 0.05


@pytest.mark.parametrize(
    "name", ["MatMul", slow("Conv"), "Softmax", "Sigmoid", "Concat", "Gather", "Slice", "CumSum", "Tile"]
)
def test_a_wrong_pullback_is_not_proved(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pullback = DECLARED[name].pullback
    assert pullback is not None

    def wrong(site: DifferentiationSite, given: Tangents) -> Cotangents:
        return {p: e * 0.5 for p, e in pullback(site, given).items()}

    monkeypatch.setitem(DECLARED, name, replace(DECLARED[name], pullback=wrong))
    (found,) = check_gradients([name])
    assert found.proved < found.total
    assert any("pullback" in reason for reason in found.missing)
    assert not any("pushforward" in reason for reason in found.missing)


def test_subtle_mistakes_are_not_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """An axis, a transposition and a forgotten term."""

    def axis(site: DifferentiationSite, given: Tangents) -> Cotangents:
        y, g = site.output(), given[0]
        assert g is not None
        return {0: y * (g - apply("ReduceSum", g * y, axes=(1 - site.int("axis"),), keepdims=1))}

    def order(site: DifferentiationSite, given: Tangents) -> Cotangents:
        assert given[0] is not None
        return {0: apply("CumSum", given[0], **site.attributes)}

    def term(site: DifferentiationSite, given: Tangents) -> Cotangents:
        assert given[0] is not None
        return {0: given[0] * apply("Tanh", apply("Softplus", site.arg(0)))}

    for name, pullback in (("Softmax", axis), ("CumSum", order), ("Mish", term)):
        wrong = OperatorDerivative(pullback, DECLARED[name].pushforward)
        with monkeypatch.context() as patch:
            patch.setitem(DECLARED, name, wrong)
            (found,) = check_gradients([name])
        assert not found.is_proved, name


def test_a_wrong_pushforward_is_not_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(DECLARED["LogSoftmax"], pushforward=lambda site, tangents: [tangents[0]])
    monkeypatch.setitem(DECLARED, "LogSoftmax", wrong)
    (found,) = check_gradients(["LogSoftmax"])
    assert any("pushforward" in reason for reason in found.missing)


def test_an_operator_that_does_not_move_is_named() -> None:
    with pytest.raises(UsageError, match="Shape moves with nothing"):
        list(check_gradients(["Shape"]))
    with pytest.raises(UsageError, match="Nothing is not known"):
        list(check_gradients(["Nothing"]))


def test_kinks_are_named() -> None:
    found = {g.op: g.kinks for g in check_gradients(["Relu", "Abs", "ReduceMax", "Exp", "Gather"])}
    assert found["Relu"] == ("where the argument meets a constant bound: the derivative from the left",)
    assert found["Abs"] == ("at 0: 0",)
    assert found["ReduceMax"] == ("where several elements are the largest: they share equally",)
    assert found["Exp"] == ()
    assert found["Gather"] == ()  # its positions are chosen; its elements are not


@pytest.mark.parametrize(("start", "proved"), [(0, True), (1, False)])
def test_a_position_that_is_compared_is_the_one_that_is_read(start: int, proved: bool) -> None:
    """What Gather's pullback rests on: a row of ones where an element was taken from picks that element."""
    columns = f'Range(start={start}, limit=m + {start}, delta=1, dtype="int64")'
    rule = parse_rule({
        "id": "picked", "forall": {"x": "f[m, n]", "i": "i[k]<m"}, "lhs": ["Gather(x, i, axis=0)"],
        "rhs": [f'MatMul(Cast(Equal(Unsqueeze(i, axes=[1]), {columns}), to="float32"), x)'],
    })  # fmt: skip
    assert isinstance(prove(rule), ProvedVerdict) == proved
