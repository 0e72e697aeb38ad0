"""Verdicts in floating point: cases, the reference against exact rationals, and the recorded library."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from superopt.ir.types import DType
from superopt.rules import load_library
from superopt.rules.float_verdicts import FloatVerdict, SafeConditions, float_key, read_floats, verdict_in
from superopt.rules.grammar import parse_rule
from superopt.rules.rule import Rule
from superopt.verifier.floats import verdict_recording
from superopt.verifier.floats.adversarial_points import drawn, exponents
from superopt.verifier.floats.comparison import FACTOR, analyse_errors
from superopt.verifier.floats.evaluation import FORMATS, cone, kernel_values, rounded, wide_values
from superopt.verifier.floats.recorded_verdict_check import breaches, directions_used
from superopt.verifier.floats.verdict_recording import with_specials, without
from superopt.verifier.floats.verdict_search import examine, sites_of


def rule(text: str, forall: dict[str, str] | None = None) -> Rule:
    lhs, rhs = text.split(" = ")
    names = forall or {n: "f[m, n]" for n in "abcxyz" if f"({n}" in text or f" {n}" in text}
    return parse_rule({"id": "it", "forall": names, "lhs": [lhs], "rhs": [rhs]})


@cache
def examined(text: str, forall: tuple[tuple[str, str], ...]) -> dict[str, dict[str, FloatVerdict]]:
    """The verdicts of both directions in every type: one examination gives all of them."""
    return examine(rule(text, dict(forall) or None), points=1024)


def verdict(text: str, dtype: str = "float32", *, backward: bool = False, **forall: str) -> FloatVerdict:
    found = examined(text, tuple(forall.items()))["backward" if backward else "forward"]
    return found.get(dtype) or found["any"]


SOFTMAX = "Div(Exp(x), ReduceSum(Exp(x), axes=[-1], keepdims=1)) = Softmax(x, axis=-1)"


@pytest.mark.parametrize(
    "text",
    [
        "Sub(a, Sub(a, x)) = x",
        "Sub(Add(x, 12582912.0), 12582912.0) = x",
        "Sub(Mul(x, 4097.0), Sub(Mul(x, 4097.0), x)) = x",  # Veltkamp's splitting
        "Add(Sub(x, a), a) = x",
    ],
)
def test_deliberate_rounding_is_not_rewritten_away(text: str) -> None:
    for dtype in ("float32", "float16", "bfloat16"):
        found = verdict(text, dtype)
        assert found.verdict in ("unsafe", "unknown")  # 12582912 is infinite in float16: nothing to compare
        assert not found.alternatives_in("standard")
    assert verdict(text).verdict == "unsafe"


@pytest.mark.slow
def test_what_cancels_by_chance_is_no_deliberate_rounding() -> None:
    """Operands of one size and any sign: in a product of three, all derivatives are small where the result is."""
    none = "dilations=[1, 1], group=1, pads=[0, 0, 0, 0], strides=[1, 1]"
    conv = "dilations=d, group=1, pads=p, strides=s"
    kernel = "Transpose(MatMul(Transpose(k, perm=[0, 2, 3, 1]), Reshape(a, shape=[m, c])), perm=[0, 3, 1, 2])"
    forall = {
        "x": "f[b, c, h, w]", "a": "f[m, c, 1, 1]", "k": "f[o, m, u, v]", "s": "ints[2]>=1", "p": "ints[4]>=0",
        "d": "ints[2]>=1",
    }  # fmt: skip
    chain = rule(f"Conv(Conv(x, a, {none}), k, {conv}) = Conv(x, {kernel}, {conv})", forall)
    found = verdict_recording.verified_verdicts(chain)["forward"]["float32"]
    assert any(not way.rounded and way.generous for way in found.alternatives)


def test_a_product_of_sum_and_difference_needs_operands_that_are_rounded() -> None:
    found = verdict("Mul(Add(x, y), Sub(x, y)) = Sub(Mul(x, x), Mul(y, y))")
    assert found.verdict == "conditional"
    assert all(way.rounded for way in found.alternatives)  # of inputs and weights, which are exact, it is unsafe
    assert found.ratio > 1000
    assert verdict("Mul(Add(x, y), Sub(x, y)) = Sub(Mul(x, x), Mul(y, y))", backward=True).verdict == "safe"


def test_distributing_is_conditional_on_the_range() -> None:
    text = "Add(Mul(x, y), Mul(x, z)) = Mul(x, Add(y, z))"
    wide, narrow = verdict(text), verdict(text, "float16")
    assert wide.verdict == narrow.verdict == "conditional"
    assert any(not way.rounded and way.generous and way.window for way in wide.alternatives)
    assert not any(way.generous for way in narrow.alternatives)  # float16 has no window that ordinary data cannot leave
    assert all(way.rounded for way in verdict(text, backward=True).alternatives)


def test_small_factors_underflow_together_in_float16() -> None:
    text = "Mul(Mul(x, 0.0001), 0.0001) = Mul(x, 0.00000001)"
    assert verdict(text).verdict == "safe"
    assert verdict(text, "float16").verdict != "safe"


def test_softmax_is_put_together_but_not_taken_apart() -> None:
    assert verdict(SOFTMAX).alternatives_in("standard")
    apart = verdict(SOFTMAX, backward=True)
    assert not any(way.generous for way in apart.alternatives)
    assert (
        apart.alternatives_in("fast") == apart.alternatives
    )  # moderate numbers become nan: not without a bound of them


@pytest.mark.parametrize(
    ("text", "forward", "backward"),
    [
        ("Sub(x, Log(ReduceSum(Exp(x), axes=[-1], keepdims=1))) = LogSoftmax(x, axis=-1)", True, False),
        ("Log(Add(Exp(x), 1.0)) = Softplus(x)", True, False),
        ("Exp(Add(x, y)) = Mul(Exp(x), Exp(y))", False, True),
        ("Mul(x, x) = Pow(x, 2.0)", True, True),
        ("Concat(Exp(x), Exp(y), axis=-1) = Exp(Concat(x, y, axis=-1))", True, True),
    ],
)
def test_which_directions_keep_to_the_range(text: str, forward: bool, backward: bool) -> None:
    found = verdict(text), verdict(text, backward=True)
    assert [SafeConditions() in v.alternatives_in("fast") for v in found] == [forward, backward]


def test_the_same_operations_elsewhere_are_exact() -> None:
    shapes = {"x": "f[b, k]", "a": "f[k, m]", "c": "f[k, n]"}
    text = "Concat(MatMul(x, a), MatMul(x, c), axis=1) = MatMul(x, Concat(a, c, axis=1))"
    for backward in (False, True):
        found = verdict(text, backward=backward, **shapes)
        assert found.exact
        assert found.alternatives_in("strict") == (SafeConditions(),)


def test_products_of_a_sum_are_merged_but_not_split() -> None:
    shapes = {"x": "f[m, k]", "a": "f[k, l]", "b": "f[k, l]"}
    text = "Add(MatMul(x, a), MatMul(x, b)) = MatMul(x, Add(a, b))"
    assert any(not way.rounded and way.generous for way in verdict(text, **shapes).alternatives)
    assert all(way.rounded for way in verdict(text, backward=True, **shapes).alternatives)


WINDOW = "count_include_pad=1, dilations=[1], kernel_shape=[p_0 + p_1 + 1], pads=p, strides=[1]"
EYE = "Reshape(EyeLike(k=0, shape=[k, k]), shape=[1, k, k])"


def test_a_sum_as_long_as_a_window_is_held_to_one_bound_also_where_it_has_two_terms() -> None:
    shapes = {"x": "f[b, c, k]", "w": "f[k, n]", "p": "ints[2]>=0"}
    mean, kernel = f"AveragePool(x, {WINDOW})", f"AveragePool({EYE}, {WINDOW})"
    text = f"MatMul({mean}, w) = MatMul(x, Reshape(MatMul({kernel}, w), shape=[k, n]))"
    assert any(not way.rounded and way.generous for way in verdict(text, **shapes).alternatives)


@pytest.mark.parametrize(
    "text",
    [
        "MatMul(Sub(x, y), w) = Sub(MatMul(x, w), MatMul(y, w))",
        "MatMul(Mul(Add(x, y), 0.5), w) = Add(MatMul(x, Mul(w, 0.5)), MatMul(y, Mul(w, 0.5)))",
    ],
)
def test_a_sum_that_has_two_terms_at_every_size_is_exact_where_they_cancel(text: str) -> None:
    assert all(way.rounded for way in verdict(text, x="f[m, k]", y="f[m, k]", w="f[k, n]").alternatives)


def test_an_operand_that_is_multiplied_by_0_may_be_infinite() -> None:
    found = verdict("Mul(x, 0.0) = Sub(Mul(x, 0.0), Mul(x, 0.0))")
    assert found.verdict == "safe"
    assert not verdict("Add(y, 0.0) = Add(y, Mul(x, 0.0))", x="f[m]", y="f[m]", backward=True).alternatives_in("strict")


SAFE = {way: {"any": FloatVerdict("safe", exact=True)} for way in ("forward", "backward")}


def test_kernels_that_choose_must_agree_at_infinities_and_nan() -> None:
    found = with_specials(
        rule("GlobalMaxPool(x) = ReduceMax(x, axes=[2, 3], keepdims=1)", {"x": "f[b, c, h, w]"}), SAFE
    )
    for by_type in found.values():
        assert by_type["any"].verdict == "unsafe"  # ONNX Runtime's pools drop a NaN, its reductions keep it
        assert by_type["any"].worst["by"] == "ONNX Runtime"
        assert by_type["any"].alternatives_in("standard") == ()
    turned = "GlobalMaxPool(Transpose(x, perm=[0, 1, 3, 2])) = GlobalMaxPool(x)"
    assert with_specials(rule(turned, {"x": "f[b, c, h, w]"}), SAFE) == SAFE


def test_a_choice_may_become_a_product_of_what_is_finite_by_how_it_is_made() -> None:
    it = rule('Mul(x, Cast(c, to="float32")) = Where(c, x, 0.0)', {"x": "f[m, n]", "c": "b[m, n]"})
    found = with_specials(it, examine(it))["backward"]["float32"]
    assert found.verdict == "conditional"
    assert found.alternatives == (SafeConditions(regular=True),)
    assert found.alternatives_in("strict") == ()
    assert found.alternatives_in("standard") == (SafeConditions(regular=True, finite=True),)
    assert FloatVerdict.of(found.as_data()) == found


def test_an_infinity_is_right_where_the_exact_result_rounds_to_it() -> None:
    form, none = FORMATS[DType.FLOAT16], np.zeros(3)
    exact = np.array([65524.0, 65524.0, 65000.0], np.longdouble)  # from 65,520 on float16 rounds to infinity
    target = np.array([np.inf, -np.inf, np.inf], np.float32)
    source = np.array([65504.0, 65504.0, 65000.0], np.float32)
    found = analyse_errors(source, target, exact, none, np.zeros((0, 3)), form, 2.0, np.zeros(3, bool))
    assert (found.error <= FACTOR * found.allowance).tolist() == [True, False, False]


def test_kernels_of_float64_have_a_say_of_their_own() -> None:
    made = rule("Reciprocal(Add(Exp(Neg(x)), 1.0)) = Sigmoid(x)")
    broken = [b for b in breaches(made, SAFE, seed=1, points=1, dtypes=()) if not b.backward and b.dtype == "float64"]
    assert broken  # Sigmoid is accurate only absolutely: nothing of it is right at -32
    found = without(made, SAFE, broken)["forward"]
    assert verdict_in(found, DType.FLOAT64).verdict == "unsafe"
    assert verdict_in(found, DType.FLOAT32).verdict == "safe"  # of it nothing was said


def test_mending_leaves_out_what_other_points_break(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wrong = rule("Add(MatMul(x, a), MatMul(x, b)) = MatMul(x, Sub(a, b))",
                 {"x": "f[m, k]", "a": "f[k, n]", "b": "f[k, n]"})  # fmt: skip
    right = rule("Transpose(Relu(x), perm=[1, 0]) = Relu(Transpose(x, perm=[1, 0]))", {"x": "f[m, n]"})

    class Books(dict[str, Rule]):
        float_store: ClassVar = {float_key(r): SAFE for r in (wrong, right)}

    monkeypatch.setattr(verdict_recording, "load_library", lambda: Books(wrong=wrong, right=right))
    monkeypatch.setattr(verdict_recording, "BUILT_IN", tmp_path)
    against = verdict_recording.mend(seed=3, points=200)
    assert against
    kept = read_floats(tmp_path / verdict_recording.FLOATS)
    assert verdict_in(kept[float_key(wrong)]["forward"], DType.FLOAT32).verdict == "unsafe"
    assert kept[float_key(right)] == SAFE


@pytest.mark.parametrize("dtype", list(FORMATS))
def test_rounding_is_that_of_the_type(dtype: DType) -> None:
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 2**32, 20_000, dtype=np.uint64).astype(np.uint32)
    values = bits.view(np.float32)
    with np.errstate(all="ignore"):
        wanted = values.astype(dtype.numpy).astype(np.float32)
    np.testing.assert_array_equal(rounded(values, dtype), wanted)


def test_points_cover_the_range() -> None:
    for form in FORMATS.values():
        batch = drawn({"x": 3, "y": 2}, 4096, form, np.random.default_rng(0))
        low, high = exponents(batch)
        assert low.min() < form.exponents[0]  # denormals
        assert high.max() >= form.exponents[1] - 1  # the largest
        x = batch["x"]
        assert ((x[0] == -x[1]) & (x[0] != 0)).any()
        assert ((x == 0) & np.signbit(x)).any()


@pytest.mark.parametrize(
    "text",
    [
        "Mul(Add(x, y), Sub(x, y)) = Sub(Mul(x, x), Mul(y, y))",
        "Add(Add(a, b), c) = Add(a, Add(b, c))",
        "Mul(Mul(x, y), z) = Mul(x, Mul(y, z))",
        "Div(Sub(x, y), z) = Sub(Div(x, z), Div(y, z))",
    ],
)
def test_the_reference_is_exact_enough(text: str) -> None:
    """Against exact rationals: off by less than 2⁻³⁰ of what the kernels' rounding may do, whatever cancels."""
    form = FORMATS[DType.FLOAT32]
    site = sites_of(rule(text), np.random.default_rng(5))[0]
    batch = drawn(site.counts, 60, form, np.random.default_rng(6))
    nodes = site.program.nodes
    for root in site.pairs[0]:
        order = cone(nodes, [root])
        wide = wide_values(nodes, order, batch, form)
        floats = kernel_values(nodes, order, batch, form.dtype)
        for point in range(60):
            exact = _rational(nodes, root, batch, point)
            if exact is None:
                continue
            value, bound = wide.values[root][point], float(np.broadcast_to(wide.errors[root], (60,))[point])
            assert np.isfinite(value)
            # a longdouble is the sum of two doubles, exactly (their range apart, which points of 60 do not leave)
            off = abs(Fraction(*value.as_integer_ratio()) - exact)
            assert off <= (Fraction(bound) + Fraction(form.tiny)) * Fraction(1, 2**30)
            got = floats[root][point]
            if np.isfinite(got) and all(np.isfinite(floats[n][point]) for n in order if floats[n].ndim):
                assert abs(Fraction(float(got)) - exact) <= Fraction(bound) + abs(exact) * Fraction(form.unit)


def _rational(nodes: list[tuple], root: int, batch: dict[str, np.ndarray], point: int) -> Fraction | None:
    """A node's exact value, from rationals alone; ``None`` where it divides by 0."""
    name, *args = nodes[root]
    if name == "read":
        return Fraction(float(batch[args[0]][args[1], point]))
    if name == "const":
        return Fraction(args[0])
    given = [_rational(nodes, a, batch, point) for a in args]
    if any(g is None for g in given):
        return None
    if name == "div":
        return given[0] / given[1] if given[1] else None
    made = {"add": sum, "sum": sum, "neg": lambda g: -g[0], "to_type": lambda g: g[0], "mul": lambda g: g[0] * g[1]}
    return Fraction(made[name](given))


def test_every_admitted_rule_has_a_verdict() -> None:
    library = load_library()
    missing = [r.id for r in library.admitted if float_key(r) not in library.float_store]
    assert not missing, "`superopt rules floats` looks at new rules"


def test_other_points_are_against_no_recorded_condition() -> None:
    """A slice of ``superopt rules floats --check N``, with sizes and points that recording did not use."""
    library = load_library()
    rules = [r for r in library.admitted if not _trivial(library.float_store[float_key(r)])]
    chosen = np.random.default_rng(20).choice(len(rules), 6, replace=False)
    for number in chosen:
        found = library.float_store[float_key(rules[number])]
        assert not breaches(rules[number], found, seed=2011, points=200)


def _trivial(found: object) -> bool:
    return isinstance(found, dict) and all("any" in by for by in found.values())


def test_a_direction_that_is_used_binds_its_other_side() -> None:
    assert directions_used(rule("Sub(x, x) = Mul(x, 0.0)")) == [False, True]
    assert directions_used(rule("Add(Sub(x, a), a) = x")) == [False]
