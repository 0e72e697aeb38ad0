"""Each stage alone: fingerprints are exact, generalisation goes as far as is true and no further."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from superopt.discovery.candidate_proofs import CandidateProver, any_rank, leading
from superopt.discovery.candidates import candidates, joined
from superopt.discovery.config import DiscoveryConfig, load_config
from superopt.discovery.enumerate import enumerate_terms, points_of
from superopt.discovery.generalise import shape_general, size_general, specialised, variable_general, well_typed
from superopt.discovery.result_cache import DiscoveryResultCache
from superopt.rules import Rule, parse_rule
from superopt.rules.typing import instances
from superopt.verifier import ProvedVerdict, prove, verdict
from superopt.verifier.exact.algebra import PrimeField, Rationals
from superopt.verifier.exact.ordered_field import OrderedPrimeField
from superopt.verifier.exact.testing import test as exact

CONFIG = """
seed = 3
instances = 4
[[theme]]
name = "mixed"
operators = 2
leaves = { x = "f[m, n]", y = "f[m, n]", q = "f[n]", t = "f[]" }
weights = ["q"]
vocabulary = ["Add(A, B)", "Mul(A, t)", "Relu(A)", "Max(A, B)", "Transpose(A, perm=[1, 0])", "Concat(A, B, axis=0)", "Split(A, axis=0)", "ReduceSum(A, axes=[1], keepdims=1)", "Abs(A)", "Mul(A, W)"]

[[theme]]
name = "windows"
operators = 2
batch = false
leaves = { x = "f[b, c, h, w]", k = "f[o, c, u, v]" }
weights = ["k"]
attributes = { s = "ints[2]>=1", p = "ints[4]>=0" }
vocabulary = ["Conv(X, W, dilations=[1, 1], group=1, pads=p, strides=s)", "Relu(A)", "Neg(A)"]
sizes = { h = [4, 5], w = [4, 5], u = [1, 2], v = [1, 3] }

[[theme]]
name = "casts"
operators = 2
leaves = { x = "f[n]", y = "f[n]" }
vocabulary = ["Less(X, Y)", "Greater(X, Y)", 'Cast(X, to="int64")', 'Cast(X, to="float32")', "Floor(X)"]
sizes = { n = [30, 40] }

[[theme]]
name = "monotone"
operators = 2
leaves = { x = "f[n]", y = "f[n]" }
vocabulary = ["Sigmoid(X)", "Exp(X)", "Max(X, Y)", "Mul(X, Y)", "ReduceMax(X, axes=[0])"]
"""  # noqa: E501


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> DiscoveryConfig:
    path = tmp_path_factory.mktemp("stages") / "mixed.toml"
    path.write_text(CONFIG)
    return load_config(path)


def holds(rule: Rule) -> bool:
    return isinstance(exact(rule, trials=4), verdict.TestedVerdict)


@pytest.mark.parametrize("name", ["mixed", "windows", "casts", "monotone"])
def test_terms_of_one_class_are_equal(config: DiscoveryConfig, name: str) -> None:
    """The law of enumeration: what has one fingerprint is equal at sizes that it was not computed at."""
    theme = config.select(themes=(name,)).themes[0]
    points = points_of(theme, 4, np.random.default_rng(1))
    found = enumerate_terms(theme, points, 3, 10**6)
    assert found.complete
    assert len(points) == 4
    proposals = candidates(theme, found.pairs)
    assert len(proposals) > 3
    wrong = [r for r in proposals if well_typed(r) and not holds(r)]
    assert not wrong, [f"{r.lhs} = {r.rhs}" for r in wrong]


def test_points_let_windows_fit(config: DiscoveryConfig) -> None:
    theme = config.select(themes=("windows",)).themes[0]
    found = enumerate_terms(theme, points_of(theme, 4, np.random.default_rng(0)), 3, 10**6)
    assert any("Conv" in str(c.term) for c in found.classes)


@pytest.mark.parametrize("function", ["max", "min", "add", "mul", "abs", "sign", "less"])
def test_ordered_numbers_agree_with_rationals(function: str) -> None:
    ordered, rationals = OrderedPrimeField(), Rationals()
    eighths = [np.random.default_rng(i).integers(-40, 41, size=12) for i in range(2)]
    count = 1 if function in ("abs", "sign") else 2
    exact = rationals.function(function, *(rationals.integers(e) for e in eighths[:count]))
    made = ordered.function(function, *(ordered.integers(e) for e in eighths[:count]))
    assert made["f"].tolist() == [float(v) for v in exact]
    assert ordered.field.equal(made["r"], ordered.field.integers(np.asarray([int(v) for v in exact]))).all()


@pytest.mark.parametrize(("function", "wanted"), [("truncmod", np.fmod), ("floormod", np.mod)])
def test_remainders_of_ordered_numbers(function: str, wanted: np.ufunc) -> None:
    ordered, rng = OrderedPrimeField(), np.random.default_rng(3)
    x, y = rng.integers(-40, 41, size=60), rng.integers(1, 9, size=60) * rng.choice([-1, 1], size=60)
    made = ordered.function(function, ordered.integers(x), ordered.integers(y))
    assert made["f"].tolist() == wanted(x.astype(float), y).tolist()
    assert ordered.field.equal(made["r"], ordered.field.integers(wanted(x, y))).all()


@pytest.mark.parametrize("shape", [(4,), (2, 3), (3, 2, 2)])
def test_elements_have_every_sign_on_both_sides_of_one(shape: tuple[int, ...]) -> None:
    """Where ``|x| < 1`` a square is smaller than its root: points without it see equalities that are none."""
    drawn = OrderedPrimeField().random(np.random.default_rng(5), shape)
    number = drawn["f"]
    assert {(bool(x < 0), bool(abs(x) < 1)) for x in number.flat} == {(a, b) for a in (0, 1) for b in (0, 1)}
    assert not (number == 0).any()
    assert (np.abs(number) <= 64).all()
    exact = PrimeField().constant
    assert drawn["r"].tolist() == np.vectorize(lambda x: int(exact(Fraction(x))))(number).tolist()


def test_an_elementwise_rule_is_stated_once_for_every_rank(config: DiscoveryConfig, tmp_path: Path) -> None:
    """``f[...]`` holds for ranks 0 to 5: another for ``f[..., m, n]`` says nothing new."""
    rule = parse_rule({"id": "r", "forall": {"x": "f[m, n]"}, "lhs": ["Relu(Relu(x))"], "rhs": ["Relu(x)"]})
    found = CandidateProver(config, config.themes[0], DiscoveryResultCache(tmp_path)).rules(rule)
    assert [len(r.tensors["x"].shape) for r in found] == [0]
    assert all(r.tensors["x"].lead for r in found)


ASSOCIATIVE = {
    "id": "r",
    "forall": {"a": "f[k, n]", "c": "f[k, n]"},
    "lhs": ["Concat(Concat(a, a, axis=0), c, axis=0)"],
    "rhs": ["Concat(a, Concat(a, c, axis=0), axis=0)"],
}


def test_a_shape_that_its_side_fixes_keeps_its_sizes() -> None:
    """With names of their own the left side could not be made of the right one, and the rule says no more."""
    fixed = parse_rule({
        "id": "r", "forall": {"x": "f[m, n, 1]", "w": "f[k, m]"},
        "lhs": ["MatMul(w, Reshape(x, shape=[m, n]))"], "rhs": ["MatMul(w, Squeeze(x, axes=[2]))"],
    })  # fmt: skip
    assert shape_general(fixed, holds) == fixed
    free = parse_rule({
        "id": "r", "forall": {"x": "f[m, n]"},
        "lhs": ["Reshape(Reshape(x, shape=[n, m]), shape=[m*n])"], "rhs": ["Reshape(x, shape=[m*n])"],
    })  # fmt: skip
    wider = shape_general(free, holds)
    assert "shape=[n0, n1]" in str(wider.lhs[0])
    assert isinstance(prove(wider), ProvedVerdict)


def test_repeated_variables_and_sizes_are_told_apart(config: DiscoveryConfig) -> None:
    rule = variable_general(parse_rule(ASSOCIATIVE), holds)
    assert len(rule.tensors) == 3
    rule = size_general(rule, holds)
    assert len(rule.sizes) == 4  # three heights and one width
    assert isinstance(prove(rule), ProvedVerdict)
    theme = config.select(themes=("mixed",)).themes[0]
    wide = next(leading(rule, theme))
    assert wide.lead
    assert isinstance(prove(wide), ProvedVerdict)


def test_what_needs_one_variable_keeps_it() -> None:
    row = {"id": "r", "forall": {"x": "f[n]"}, "lhs": ["Add(Relu(x), Relu(x))"], "rhs": ["Relu(Add(x, x))"]}
    rule = parse_rule(row)
    assert variable_general(rule, holds) == rule
    wide = any_rank(rule)
    assert wide is not None
    proved = prove(wide)
    assert isinstance(proved, ProvedVerdict)
    assert proved.ranks == (0, 1, 2, 3, 4, 5)
    assert [len(r.tensors["x"].shape) for r in instances(wide)] == [0, 1, 2, 3, 4, 5]


def test_masks_have_any_rank_too() -> None:
    row = {"id": "r", "forall": {"c": "b[n]", "x": "f[n]"}, "lhs": ["Where(c, x, 0.0)"],
           "rhs": ['Mul(x, Cast(c, to="float32"))']}  # fmt: skip
    made = any_rank(parse_rule(row))
    assert made is not None
    assert len(made.tensors["c"].shape) == 3  # its verdict in floating point is found at both values
    assert made.tensors["c"].lead
    assert isinstance(prove(made), ProvedVerdict)


def test_preconditions_are_found_where_the_general_rule_is_false(config: DiscoveryConfig, tmp_path: Path) -> None:
    """A window of one element at stride s is the identity only where the stride is 1."""
    rule = parse_rule({
        "id": "r",
        "forall": {"x": "f[b, c, h, w]", "s": "ints[2]>=1"},
        "lhs": ["MaxPool(x, dilations=[1, 1], kernel_shape=[1, 1], pads=[0, 0, 0, 0], strides=s)"],
        "rhs": ["x"],
    })  # fmt: skip
    assert [r.attributes for r in specialised(rule)] == [{}]
    judge = CandidateProver(config, config.themes[1], DiscoveryResultCache(tmp_path))
    (found,) = judge.rules(rule)
    assert not found.attributes
    assert isinstance(prove(found), ProvedVerdict)


def test_merging_siblings_is_read_off_a_rule_about_concat() -> None:
    rule = parse_rule({
        "id": "r",
        "forall": {"x": "f[..., m, k]", "a": "f[k, p]", "b": "f[k, q]"},
        "lhs": ["Concat(MatMul(x, a), MatMul(x, b), axis=-1)"],
        "rhs": ["MatMul(x, Concat(a, b, axis=1))"],
    })  # fmt: skip
    pair = joined(rule)
    assert pair is not None
    assert len(pair.lhs) == 2
    assert pair.forward
    assert isinstance(prove(pair), ProvedVerdict)
    assert joined(parse_rule(ASSOCIATIVE)) is None
