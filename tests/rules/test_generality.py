"""Which rules say nothing that another does not say."""

from __future__ import annotations

import pytest

from superopt.rules import load_library
from superopt.rules.canonical import independent, is_instance
from superopt.rules.grammar import parse_rule


def rule(lhs: str, rhs: str, where: tuple[str, ...] = (), **forall: str):
    return parse_rule({"forall": forall, "lhs": [lhs], "rhs": [rhs], "where": list(where)})


PRODUCT = rule("Mul(MatMul(a, b), t)", "MatMul(a, Mul(b, t))", a="f[..., m, k]", b="f[k, n]", t="f[]")
SLICE = "Slice(x, axes=[0], starts=[s], ends=[e], steps=[1])"
GUARDED = rule(SLICE, f"Identity({SLICE})", ("e <= m",), x="f[m]", s="int>=0", e="int>=1")


def grouped(groups: str, **forall: str):
    """Convolution of ``groups`` groups, and of its negated weights."""
    attributes = f"dilations=[1, 1], group={groups}, kernel_shape=[1, 1], pads=[0, 0, 0, 0], strides=[1, 1]"
    return rule(f"Conv(x, w, {attributes})", f"Neg(Conv(x, Neg(w), {attributes}))", **forall)


@pytest.mark.parametrize(("general", "other", "expected"), [
    (PRODUCT, rule("Mul(MatMul(p, q), r)", "MatMul(p, Mul(q, r))", p="f[..., m, k]", q="f[k, n]", r="f[]"), True),
    (PRODUCT, rule("MatMul(p, Mul(q, r))", "Mul(MatMul(p, q), r)", p="f[..., z, k]", q="f[k, n]", r="f[]"), True),
    (PRODUCT, rule("Mul(MatMul(a, b), t)", "MatMul(a, Mul(b, t))", a="f[..., m, 8]", b="f[8, n]", t="f[]"), True),
    (PRODUCT, rule("Mul(MatMul(a, b), t)", "MatMul(a, Mul(b, t))", a="f[..., m, m]", b="f[m, m]", t="f[]"), True),
    (PRODUCT, rule("Mul(MatMul(a, b), t)", "MatMul(a, Mul(b, t))", a="f[m, k]", b="f[k, n]", t="f[]"), False),
    (PRODUCT, rule("Mul(MatMul(a, b), t)", "MatMul(a, Mul(b, t))", a="f[..., m, k]", b="f[k, n]", t="f[n]"), False),
    (PRODUCT, rule("Mul(MatMul(a, b), t)", "MatMul(Mul(a, t), b)", a="f[..., m, k]", b="f[k, n]", t="f[]"), False),
    (rule("MatMul(a, b)", "MatMul(a, b)", a="f[8, k]", b="f[k, n]"),
     rule("MatMul(a, b)", "MatMul(a, b)", a="f[m, k]", b="f[k, n]"), False),
    (rule("Add(x, y)", "Add(y, x)", x="f[m]", y="f[m]"), rule("Add(z, z)", "Add(z, z)", z="f[m]"), True),
    (rule("Add(z, z)", "Add(z, z)", z="f[m]"), rule("Add(x, y)", "Add(y, x)", x="f[m]", y="f[m]"), False),
])  # fmt: skip
def test_instances(general, other, expected: bool) -> None:
    assert is_instance(other, general) is expected


def test_guards_and_ranges_must_be_implied() -> None:
    free = rule(SLICE, f"Identity({SLICE})", x="f[m]", s="int>=0", e="int>=1")
    assert is_instance(GUARDED, free)
    assert not is_instance(free, GUARDED)
    at = SLICE.replace("[e]", "[4]")
    assert is_instance(rule(at, f"Identity({at})", ("4 <= m",), x="f[m]", s="int>=0"), GUARDED)
    assert is_instance(rule(at, f"Identity({at})", x="f[4]", s="int>=0"), GUARDED)  # 4 <= 4
    assert not is_instance(rule(at, f"Identity({at})", x="f[3]", s="int>=0"), GUARDED)
    narrow = rule(SLICE, f"Identity({SLICE})", ("e <= m",), x="f[m]", s="int>=1", e="int>=1")
    assert not is_instance(GUARDED, narrow)


def test_sizes_inside_products_are_solved_for() -> None:
    general = grouped("g", x="f[n, g*c, h, v]", w="f[g*o, c, 1, 1]", g="int>=1")
    assert is_instance(grouped("4", x="f[b, 4*c, h, v]", w="f[4*q, c, 1, 1]"), general)
    assert not is_instance(grouped("4", x="f[b, 4*c, h, v]", w="f[4*q, 2*c, 1, 1]"), general)


def test_the_first_of_its_kind_is_kept_and_the_order_stands() -> None:
    rules = load_library().admitted[:200]
    assert independent((*rules, *rules)) == independent(rules)
    assert [r.id for r in independent(rules)] == [r.id for r in rules if r in independent(rules)]
