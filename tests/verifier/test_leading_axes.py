"""Rules with ``...``: proved with one leading axis, applied with more, where meanings read them in place."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from superopt.ops import REGISTRY
from superopt.ops.operator_semantics import SymbolicOperand, TensorComprehension, call, tensor
from superopt.rules import Rule, load_library, parse_rule
from superopt.rules.typing import applied_leads
from superopt.verifier import ProvedVerdict, UnknownVerdict, prove
from superopt.verifier.certificates.certificate import certificate_of
from superopt.verifier.certificates.checker import check_certificate, seal
from superopt.verifier.certificates.leading_axes import require_uniform
from superopt.verifier.certificates.normal_forms import CertificateRejected
from superopt.verifier.exact.runtime_cross_check import runtime_disagrees

LIBRARY = load_library()
NEGATED = ["ReduceSum(Neg(x), axes=[-1], keepdims=0)"], ["Neg(ReduceSum(x, axes=[-1], keepdims=0))"]


def _rule(lhs: str, rhs: str, where: str = "", **types: str) -> Rule:
    return parse_rule({"id": "r", "forall": types, "lhs": [lhs], "rhs": [rhs], "where": [where] if where else []})


def _more(rule: Rule) -> list[int]:
    return [n for n in applied_leads(rule) if n > 1]


def test_rules_of_the_library_read_leading_axes_in_place() -> None:
    rules = [rule for rule in LIBRARY.values() if rule.lead]
    assert len(rules) > 1000
    for rule in rules:
        assert LIBRARY.verdicts[rule.id]["leading"] == "one axis"
        require_uniform(rule, _more(rule))


def test_a_rule_about_the_last_axis_reaches_tensors_of_five_axes() -> None:
    assert applied_leads(_rule("Neg(ReduceMax(x, axes=[-1]))", "ReduceMin(Neg(x), axes=[-1])", x="f[..., n]"))[-1] == 4
    assert applied_leads(LIBRARY["matmul-29df"])[-1] == 3


@pytest.mark.parametrize(
    "rule",
    [
        _rule("Relu(Flatten(x, axis=-1))", "Flatten(Relu(x), axis=-1)", x="f[..., n]"),
        _rule("Add(x, ReduceSum(y, axes=[0]))", "Add(ReduceSum(y, axes=[0]), x)", x="f[..., n]", y="f[lead_0, n]"),
        _rule("Add(x, ReduceSum(y))", "Add(ReduceSum(y), x)", "lead_0 == 2", x="f[..., n]", y="f[lead_0, 1]"),
    ],
    ids=["merged", "named", "guarded"],
)  # fmt: skip
def test_what_is_not_seen_to_read_them_in_place_is_not_proved(rule: Rule) -> None:
    """Though these hold with none, one and two leading axes."""
    verdict = prove(rule)
    assert isinstance(verdict, UnknownVerdict)
    assert "any number of axes" in verdict.reason
    with pytest.raises(CertificateRejected):
        require_uniform(rule, (2,))


def _kept(x: SymbolicOperand) -> TensorComprehension:
    """Right for up to three axes."""
    return tensor(x.shape, lambda *at: call("mul", x[at], -1 if x.rank < 4 else 1))


def _turned(x: SymbolicOperand) -> TensorComprehension:
    """Reads two leading axes in the other order."""
    return tensor(x.shape, lambda *at: -x[(at[1], at[0], *at[2:]) if x.rank > 2 else at])


def _sized(x: SymbolicOperand) -> TensorComprehension:
    """Depends on the size of the third axis from the end."""
    return tensor(x.shape, lambda *at: call("mul", -x[at], x.shape[-4] if x.rank > 3 else 1))


@pytest.mark.parametrize("meaning", [_kept, _turned, _sized])
def test_a_meaning_that_is_another_with_more_axes_is_seen_by_prover_and_checker(
    tmp_path: Path, meaning: Callable[[SymbolicOperand], TensorComprehension]
) -> None:
    rule = parse_rule({"id": "negated", "forall": {"x": "f[..., n]"}, "lhs": NEGATED[0], "rhs": NEGATED[1]})
    verdict, text = certificate_of(rule)
    assert isinstance(verdict, ProvedVerdict)
    (tmp_path / "c.json").write_text(text)
    assert check_certificate(tmp_path / "c.json").valid
    with REGISTRY.replaced(replace(REGISTRY["Neg"], meaning=meaning)):
        assert isinstance(prove(rule), UnknownVerdict)
        with pytest.raises(CertificateRejected):
            require_uniform(rule, _more(rule))
        data = json.loads(text)
        (tmp_path / "c.json").write_text(json.dumps({**data, "seal": seal(data)}))
        assert not check_certificate(tmp_path / "c.json").valid


@pytest.mark.parametrize(
    ("rhs", "agrees"),
    [("Softmax(x, axis=-1)", True), ("Exp(x)", False)],
    ids=["right", "mutant"],
)
def test_the_runtime_is_asked_with_as_many_axes_as_a_rule_is_applied_to(
    monkeypatch: pytest.MonkeyPatch, rhs: str, agrees: bool
) -> None:
    rule = _rule("Softmax(Add(x, t), axis=-1)", rhs, x="f[..., n]", t="f[]")
    assert bool(runtime_disagrees(rule)) is not agrees
    monkeypatch.setattr("superopt.verifier.exact.runtime_cross_check.applied_leads", lambda _: (4,))
    assert bool(runtime_disagrees(rule)) is not agrees
