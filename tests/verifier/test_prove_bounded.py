"""The bounded fallback has its own verdict, and proves nothing that is false at the sizes it looked at."""

from __future__ import annotations

from superopt.rules import parse_rule
from superopt.verifier import ProvedBounded, Unknown
from superopt.verifier.exact.bounded import prove_bounded

WINDOW = "strides=s, pads=p, dilations=[1,1], group=1"
CONV = {"x": "f[n,c,h,w]", "a": "f[o,c,k,l]", "b": "f[o,c,k,l]", "s": "ints[2]>=1", "p": "ints[4]>=0"}


def test_a_true_rule_at_small_sizes() -> None:
    lhs, rhs = f"Add(Conv(x, a, {WINDOW}), Conv(x, b, {WINDOW}))", f"Conv(x, Add(a, b), {WINDOW})"
    found = prove_bounded(parse_rule({"id": "r", "forall": CONV, "lhs": [lhs], "rhs": [rhs]}))
    assert isinstance(found, ProvedBounded), found
    assert len(found.shapes) == 4
    assert all({"n", "c", "h", "w"} <= set(s) for s in found.shapes)


def test_real_attributes_stay_symbolic() -> None:
    forall = {"x": "f[...,n]", "t": "real"}
    rule = parse_rule({"id": "r", "forall": forall, "lhs": ["Mul(Add(x, x), t)"], "rhs": ["Mul(x, 2.0)"]})
    assert isinstance(prove_bounded(rule), Unknown)


def test_a_false_rule() -> None:
    rule = parse_rule(
        {"id": "r", "forall": {"a": "f[k,k]", "b": "f[k,k]"}, "lhs": ["MatMul(a, b)"], "rhs": ["MatMul(b, a)"]}
    )
    assert isinstance(prove_bounded(rule, largest=3, seed=1, time_limit=4.0), Unknown)
