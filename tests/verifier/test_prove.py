"""The all-sizes prover on rules with known truth, and against exact testing on mutants of them."""

from __future__ import annotations

import itertools
from pathlib import Path

import proof_cases as cases
import pytest
from rule_mutation import mutants
from sampling import slow

from superopt.ir.size_polynomial import sym
from superopt.ops.operator_semantics import IndexCondition
from superopt.rules import Rule, RuleError, parse_rule
from superopt.verifier import ProvedVerdict, RefutedVerdict, UnknownVerdict, prove
from superopt.verifier.certificates.certificate import certify
from superopt.verifier.certificates.checker import check_certificate
from superopt.verifier.exact.testing import test as exact_test
from superopt.verifier.prover.arith import IntegerFacts, ge


def first_essential(rows):
    """The first ten of many cases are essential."""
    return [pytest.param(row, marks=pytest.mark.essential) if n < 10 else row for n, row in enumerate(rows)]


@pytest.mark.parametrize("case", first_essential(cases.TRUE), ids=lambda c: c[0])
def test_true_rules_are_proved(case) -> None:
    verdict = prove(cases.rule_of(case))
    assert isinstance(verdict, ProvedVerdict), verdict


# The limit only cuts short what would be "unknown" anyway.
@pytest.mark.parametrize("case", first_essential(cases.FALSE), ids=lambda c: c[0])
def test_false_rules_are_not_proved(case) -> None:
    assert isinstance(prove(cases.rule_of(case), time_limit=0.25), UnknownVerdict)


def test_proof_and_exact_testing_never_disagree_on_mutants() -> None:
    """Every 58th mutant here; all were compared when this was written, without a disagreement."""
    everything = [(c[0], what, m) for c in cases.TRUE for what, m in mutants(cases.rule_of(c))]
    proved = 0
    for name, what, mutant in itertools.islice(everything, 0, None, 58):
        if not isinstance(prove(mutant, time_limit=0.3), ProvedVerdict):
            continue
        proved += 1
        assert not isinstance(exact_test(mutant), RefutedVerdict), (name, what, mutant.rhs)
    assert proved


def _rule(forall: dict[str, str], lhs: str, rhs: str, where: tuple[str, ...] = ()):  # type: ignore[no-untyped-def]
    return parse_rule({"id": "r", "forall": forall, "lhs": [lhs], "rhs": [rhs], "where": list(where)})


@pytest.mark.essential
def test_a_contradictory_context_proves_nothing() -> None:
    verdict = prove(_rule({"x": "f[n]", "y": "f[n]"}, "Add(x, y)", "Mul(x, y)", ("n >= 3", "n <= 2")))
    assert isinstance(verdict, UnknownVerdict)
    assert "satisfy" in verdict.reason


@pytest.mark.essential
def test_a_missing_precondition_is_named() -> None:
    verdict = prove(
        _rule(
            {"x": "f[n]", "a": "int>=1"},
            "x",
            "Concat(Slice(x, starts=[0], ends=[a], axes=[0], steps=[1]),"
            " Slice(x, starts=[a], ends=[n], axes=[0], steps=[1]), axis=0)",
        )
    )
    assert isinstance(verdict, UnknownVerdict)
    assert verdict.preconditions


@pytest.mark.essential
def test_a_side_that_divides_by_zero_is_not_put_in() -> None:
    verdict = prove(_rule({"x": "f[n]", "y": "f[n]"}, "Add(x, Sub(y, y))", "Mul(x, Div(y, y))"))
    assert isinstance(verdict, UnknownVerdict)
    assert "nonzero" in verdict.reason


@pytest.mark.essential
def test_cancelled_divisions_are_recorded() -> None:
    verdict = prove(_rule({"x": "f[n]", "y": "f[n]"}, "Div(Mul(x, y), y)", "x"))
    assert isinstance(verdict, ProvedVerdict)
    assert any("nonzero" in c for c in verdict.nonzero)


@pytest.mark.essential
def test_ill_formed_rules_are_unknown() -> None:
    rule = _rule({"x": "f[n,m]", "y": "f[n,k]"}, "Add(x, x)", "MatMul(x, y)")
    assert isinstance(prove(rule), UnknownVerdict)
    with pytest.raises(RuleError):
        parse_rule({"id": "r", "forall": {"x": "f[n]"}, "lhs": ["Nope(x)"], "rhs": ["y"]})


def test_index_arithmetic_ladder() -> None:
    n, s, i, q = sym("n"), sym("s"), sym("i"), sym("q")
    facts = IntegerFacts((ge(i), ge(n - 1 - i)), {"n": 1, "s": 1})
    assert facts.implied(ge(n * s - 1 - i * s))  # i < n gives i·s < n·s
    assert not facts.implied(ge(n - 2 - i))
    assert facts.implied(ge(n - s * (n // s)))
    assert facts.contradictory((ge(i - n),))
    assert not facts.contradictory((ge(i - n + 1),))
    assert not facts.implied(IndexCondition("eq", q))


def test_the_time_limit_holds() -> None:
    case = next(c for c in cases.FALSE if c[0] == "convs compose padded")
    verdict = prove(cases.rule_of(case), time_limit=0.2)
    assert isinstance(verdict, UnknownVerdict)


SIGNAL = {"x": "f[n, c, l]"}
WINDOWS = "MaxPool(MaxPool(x, kernel_shape=[3], pads=[1, 1]), kernel_shape=[3], pads=[1, 1])"


@pytest.mark.parametrize(
    ("forall", "lhs", "rhs", "true"),
    [
        (SIGNAL, WINDOWS, "MaxPool(x, kernel_shape=[5], pads=[2, 2])", True),
        (SIGNAL, WINDOWS, "MaxPool(x, kernel_shape=[5], pads=[1, 3])", False),
        ({"x": "f[n, c, l + 1]", "k": "f[o, c, 2]"}, "Conv(x, k)",
         "Add(Conv(Slice(x, [0], [l], [2]), Slice(k, [0], [1], [2])),"
         " Conv(Slice(x, [1], [l+1], [2]), Slice(k, [1], [2], [2])))", True),
        ({"x": "f[n, c, l + 1]", "k": "f[o, c, 2]"}, "Conv(x, k)",
         "Add(Conv(Slice(x, [0], [l], [2]), Slice(k, [1], [2], [2])),"
         " Conv(Slice(x, [1], [l+1], [2]), Slice(k, [0], [1], [2])))", False),
        ({"x": "f[b, n]"}, "ReduceMax(Clip(x, -1.0, 6.0), axes=[1])", "Clip(ReduceMax(x, axes=[1]), -1.0, 6.0)", True),
        ({"x": "f[b, n]"}, "ReduceMin(Clip(x, -1.0, 6.0), axes=[1])", "Clip(ReduceMax(x, axes=[1]), -1.0, 6.0)", False),
        ({"x": "f[n]"}, "Ceil(Add(x, 2.0))", "Sub(2.0, Floor(Neg(x)))", True),
        ({"x": "f[n]"}, "Floor(Add(x, 0.5))", "Add(Floor(x), 0.5)", False),
    ],
)  # fmt: skip
def test_windows_of_windows_few_places_caps_and_floors(forall: dict[str, str], lhs: str, rhs: str, true: bool) -> None:
    rule = _rule(forall, lhs, rhs)
    assert isinstance(prove(rule, time_limit=10.0 if true else 0.3), ProvedVerdict) == true
    assert isinstance(exact_test(rule), RefutedVerdict) != true


def _enlarged(scale: int, shift: int) -> Rule:
    """A window behind nearest neighbours, and a transposed convolution with what the window makes of an impulse."""

    def enlarged(x: str) -> str:
        nearest = 'coordinates="asymmetric", mode="nearest", rounding="floor"'
        return f"Resize({x}, {nearest}, scales_down=[1, 1, 1], scales_up=[1, 1, {scale}])"

    impulses = enlarged("Reshape(EyeLike(k=0, shape=[c, c]), shape=[c, c, 1])")
    pads = f"[u - 1 - p_0 + {shift}, u - 1 - p_1 - {shift}]"
    return _rule(
        {"x": "f[b, c, h]", "k": "f[o, c, u]", "a": "f[o]", "p": "ints[2]>=0"},
        f"Conv({enlarged('x')}, k, a, pads=p)",
        f"ConvTranspose(x, Conv({impulses}, k, pads=[u - 1, u - 1]), a, strides=[{scale}], pads={pads})",
        where=("p_0 <= u - 1", "p_1 <= u - 1"),
    )


def _phases(first: int) -> Rule:
    """A window over the two phases of a signal side by side, and one of twice the size and stride."""
    phases = [f"Slice(x, [{n}], [2*h], [2], [2])" for n in (first, 1 - first)]
    return _rule(
        {"x": "f[b, c, 2*h]", "k": "f[o, 2*c, u]", "p": "ints[2]>=0"},
        f"Conv(Concat({', '.join(phases)}, axis=1), k, pads=p)",
        "Conv(x, Reshape(Transpose(Reshape(k, shape=[o, 2, c, u]), perm=[0, 2, 3, 1]), shape=[o, c, 2*u]),"
        " pads=[2*p_0, 2*p_1], strides=[2])",
    )


@pytest.mark.parametrize(
    ("rule", "true"),
    [
        (_enlarged(2, 0), True), slow(_enlarged(3, 0), True), (_enlarged(2, 1), False),
        (_phases(0), True), (_phases(1), False),
    ],
)  # fmt: skip
def test_positions_are_taken_apart_into_quotient_and_remainder(rule: Rule, true: bool, tmp_path: Path) -> None:
    assert isinstance(prove(rule, time_limit=10.0 if true else 1.0), ProvedVerdict) == true
    assert isinstance(exact_test(rule), RefutedVerdict) != true
    if true:
        certify(rule, tmp_path)
        assert check_certificate(tmp_path / f"{rule.id}.json").valid
