"""No silent hypotheses: what the left side demands is shown, required of a match, in the certificate; or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from superopt.egraph.pattern_compiler import compile_side
from superopt.rules import Rule, load_library, parse_rule
from superopt.rules.typing import instances
from superopt.verifier import ProvedVerdict, RefutedVerdict, UnknownVerdict, admission, prove
from superopt.verifier.admission import check
from superopt.verifier.batch_proving import prove_all
from superopt.verifier.certificates.certificate import certificate_of
from superopt.verifier.certificates.checker import check_certificate, script_of, seal
from superopt.verifier.certificates.normal_forms import CertificateRejected
from superopt.verifier.exact.testing import test as exact_test
from superopt.verifier.prover.budget import ProofBudget, ProofDeadlineExceeded


def _rule(forall: dict[str, str], lhs: str, rhs: str, where: tuple[str, ...] = ()) -> Rule:
    return parse_rule({"id": "r", "forall": forall, "lhs": [lhs], "rhs": [rhs], "where": list(where)})


@pytest.mark.parametrize(
    ("forall", "lhs", "rhs", "said"),
    [
        ({"x": "f[m, n]"}, "Squeeze(x, axes=[0])", "Reshape(x, shape=[n])", "only where m = 1"),
        ({"x": "f[m, n]"}, "Reshape(x, shape=[m*m, n])", "x", "only where m = 1"),
        ({"x": "f[n,c,h,w]", "k": "f[o,c,1,1]", "g": "int>0"}, "Conv(x, k, group=g)", "Conv(x, k)", "only where g = 1"),
        ({"x": "f[n]", "i": "i[s]<n+1"}, "Relu(Gather(x, i, axis=0))", "Gather(Relu(x), i, axis=0)", "beyond its axis"),
        ({"x": "f[n]"}, "Log(Sub(Mul(x, 0.0), 1.0))", "Log(Sub(Mul(x, 0.0), 1.0))", "nowhere"),
    ],
)  # fmt: skip
def test_a_left_side_that_says_more_than_the_rule_is_refused_with_a_sentence(
    forall: dict[str, str], lhs: str, rhs: str, said: str
) -> None:
    verdict = check(_rule(forall, lhs, rhs))
    assert isinstance(verdict, UnknownVerdict)
    assert verdict.refused
    assert said in verdict.reason


def test_hypotheses_that_contradict_each_other_prove_nothing() -> None:
    verdict = prove(_rule({"x": "f[m, n]"}, "Relu(x)", "x", ("m > n", "n > m")))
    assert isinstance(verdict, UnknownVerdict)
    assert "contradict" in verdict.reason


def test_what_the_author_wrote_may_fix_a_size() -> None:
    verdict = prove(_rule({"x": "f[m, n]"}, "Squeeze(x, axes=[0])", "Reshape(x, shape=[n])", ("m == 1",)))
    assert isinstance(verdict, ProvedVerdict)
    assert verdict.derived == ()


def test_derived_preconditions_are_shown() -> None:
    forall = {"x": "f[n,c,h,w]", "k": "f[o,c,3,3]", "a": "int>=1"}
    verdict = prove(_rule(forall, "Neg(Conv(x, k))", "Conv(x, Neg(k))"))
    assert isinstance(verdict, ProvedVerdict)
    assert verdict.derived == ("h >= 3", "w >= 3")
    verdict = prove(_rule({"x": "f[n]"}, "Neg(Gather(x, 3, axis=0))", "Gather(Neg(x), 3, axis=0)"))
    assert isinstance(verdict, ProvedVerdict)
    assert verdict.derived == ("n >= 4",)


def test_the_table_of_the_issue() -> None:
    for forall, lhs, rhs in (
        ("f[m, m*n]", "Slice(x, [0], [m*m], [0])", "Slice(x, [0], [1], [0])"),
        ("f[n]", "Slice(Slice(x, [0], [n], [0], [2]), [0], [n], [0], [3])", "Slice(x, [0], [n], [0], [5])"),
    ):
        assert isinstance(check(_rule({"x": forall}, lhs, rhs)), RefutedVerdict)
    right = _rule(
        {"x": "f[n]"}, "Slice(Slice(x, [0], [n], [0], [2]), [0], [n], [0], [3])", "Slice(x, [0], [n], [0], [6])"
    )
    assert isinstance(check(right), ProvedVerdict)
    pair = {"x": "f[n]", "y": "f[n]"}
    assert isinstance(exact_test(_rule(pair, "Not(Greater(x, y))", "Less(x, y)")), RefutedVerdict)
    assert isinstance(check(_rule(pair, "Not(Greater(x, y))", "LessOrEqual(x, y)")), ProvedVerdict)


def test_a_match_must_satisfy_what_was_derived() -> None:
    rule = _rule({"x": "f[n,c,h]", "k": "f[o,c,u]"}, "Neg(Conv(x, k))", "Conv(x, Neg(k))")
    pattern = compile_side(instances(rule)[0], rule.lhs, rule.rhs)
    sizes = {"n": 1, "c": 2, "h": 5, "o": 4, "u": 3, "dtype:f": "float32"}
    assert pattern.sizes(tuple(sizes[n] for n in pattern.names)) is not None
    sizes["h"] = 2  # the window does not fit
    assert pattern.sizes(tuple(sizes[n] for n in pattern.names)) is None


def test_a_certificate_that_hides_a_hypothesis_is_rejected(tmp_path: Path) -> None:
    _, text = certificate_of(
        _rule({"x": "f[n]", "j": "int>=1"}, "Relu(Slice(x, [1], [j], [0]))", "Slice(Relu(x), [1], [j], [0])")
    )
    data = json.loads(text)
    assert data["verdict"]["derived"]
    for dropped in data["verdict"]["derived"]:
        told = [d for d in data["verdict"]["derived"] if d != dropped]
        hidden = {**data, "verdict": {**data["verdict"], "derived": told}}
        try:
            hidden["smt2"] = script_of(hidden)
        except CertificateRejected:
            continue
        hidden["seal"] = seal(hidden)
        path = tmp_path / "c.json"
        path.write_text(json.dumps(hidden))
        assert not check_certificate(path).valid, dropped


def test_a_fault_in_one_rule_costs_that_rule_its_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    good = _rule({"x": "f[n]"}, "Relu(Relu(x))", "Relu(x)")
    bad = parse_rule({"id": "bad", "forall": {"x": "f[n]"}, "lhs": ["Abs(Abs(x))"], "rhs": ["Abs(x)"]})
    whole = admission.test

    def broken(rule: Rule, *, seed: int = 0) -> object:
        if rule.id == "bad":
            raise ValueError("min() arg is an empty sequence")
        return whole(rule, seed=seed)

    monkeypatch.setattr(admission, "test", broken)
    found = prove_all([bad, good])
    assert isinstance(found["r"], ProvedVerdict)
    assert isinstance(found["bad"], UnknownVerdict)
    assert "internal error: ValueError" in found["bad"].reason
    assert "report" in found["bad"].reason


@pytest.mark.parametrize(
    "left", ["Log(Mul(x, 0.0))", "Div(x, Mul(x, 0.0))", "Sqrt(Mul(x, 0.0))", "Pow(Mul(x, 0.0), -1.0)"]
)
def test_zero_where_it_is_least_expected_is_no_fault(left: str) -> None:
    verdict = check(_rule({"x": "f[n]"}, left, "x"))
    assert not isinstance(verdict, ProvedVerdict)
    assert "internal error" not in getattr(verdict, "reason", "")


def test_the_clock_gives_no_verdict_but_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(self: ProofBudget, units: float = 1) -> None:
        raise ProofDeadlineExceeded

    monkeypatch.setattr(ProofBudget, "spend", late)
    verdict = prove(_rule({"x": "f[n]", "y": "f[n]"}, "Max(x, Min(x, y))", "x"))
    assert isinstance(verdict, UnknownVerdict)
    assert "clock" in verdict.reason


def test_no_shipped_rule_is_proved_without_stating_what_it_demands() -> None:
    library = load_library()
    for rule_id in library:
        verdict = library.verdicts[rule_id]
        assert "derived" in verdict, rule_id
