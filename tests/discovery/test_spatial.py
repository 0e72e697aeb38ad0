"""Rules about images, proposed for signals."""

from __future__ import annotations

import pytest

from superopt.discovery.candidate_proofs import one_axis_less
from superopt.discovery.generalise import well_typed
from superopt.rules import Rule, format_rule, parse_rule
from superopt.verifier import ProvedVerdict, prove

WINDOW = {"s": "ints[2]>=1", "p": "ints[4]>=0", "d": "ints[2]>=1", "g": "int>=1"}
CONV = "Conv({}, {}, dilations=d, group=g, pads=p, strides=s)"
ENLARGED = "Pad(k, pads=[0, 0, e_0, e_1, 0, 0, e_2, e_3], value=0.0)"


def rule(forall: dict[str, str], left: str, right: str) -> Rule:
    return parse_rule({"id": "r", "forall": forall, "lhs": [left], "rhs": [right]})


SUM = rule(
    {"x": "f[n, c*g, h, w]", "k": "f[g*o, c, u, v]", "l": "f[g*o, c, u, v]", **WINDOW},
    f"Add({CONV.format('x', 'k')}, {CONV.format('x', 'l')})",
    CONV.format("x", "Add(k, l)"),
)
BIAS = rule(
    {"x": "f[n, c*g, h, w]", "k": "f[g*o, c, u, v]", "t": "f[g*o, 1, 1]", **WINDOW},
    f"Mul({CONV.format('x', 'k')}, t)",
    CONV.format("x", "Mul(k, Reshape(t, shape=[g*o, 1, 1, 1]))"),
)
ENLARGING = rule(
    {"x": "f[n, c, h, w]", "k": "f[o, c, u, v]", "s": "ints[2]>=1", "p": "ints[4]>=0", "e": "ints[4]>=0"},
    f"Conv(x, {ENLARGED}, dilations=[1, 1], group=1, pads=[e_0 + p_0, e_1 + p_1, e_2 + p_2, e_3 + p_3], strides=s)",
    "Conv(x, k, dilations=[1, 1], group=1, pads=p, strides=s)",
)
MEAN = rule({"x": "f[n, c, h, w]"}, "GlobalAveragePool(x)", "ReduceMean(x, axes=[2, 3], keepdims=1)")


@pytest.mark.parametrize("image", [SUM, BIAS, ENLARGING, MEAN])
def test_true_for_one_axis_as_well(image: Rule) -> None:
    signal = one_axis_less(image)
    assert signal is not None
    assert all(len(s.shape) < 4 for s in signal.tensors.values())
    assert well_typed(signal)
    assert isinstance(prove(signal), ProvedVerdict)


def test_what_is_written() -> None:
    signal = one_axis_less(ENLARGING)
    assert signal is not None
    text = format_rule(signal)
    assert text["forall"] == {
        "x": "f[n, c, h]", "k": "f[o, c, u]", "s": "ints[1]>=1", "p": "ints[2]>=0", "e": "ints[2]>=0",
    }  # fmt: skip
    assert text["rhs"] == ["Conv(x, k, dilations=[1], group=1, pads=p, strides=s)"]
    assert "pads=[0, 0, e_0, 0, 0, e_1]" in str(text["lhs"])


def test_rules_about_other_tensors_are_left_alone() -> None:
    assert one_axis_less(rule({"x": "f[m, k]", "a": "f[k, n]"}, "Relu(MatMul(x, a))", "Relu(MatMul(x, a))")) is None
    assert one_axis_less(rule({"x": "f[a, b, c, d]"}, "Neg(Neg(x))", "x")) is None
