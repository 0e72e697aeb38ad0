"""Exact testing: true rules pass, false ones are refuted by small counterexamples that replay."""

import json
import random
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from rule_mutation import mutants

from superopt.rules import RuleError, load_library, parse_rule
from superopt.rules.library import parse_file
from superopt.rules.rule import Rule
from superopt.verifier.admission import admit
from superopt.verifier.exact.algebra import MODULUS, InverseOfZero, PrimeField, Rationals, signed
from superopt.verifier.exact.counterexample import describe, replay
from superopt.verifier.exact.testing import test as exact
from superopt.verifier.prover.prover import prove
from superopt.verifier.verdict import ProvedVerdict, RefutedVerdict, TestedVerdict, UnknownVerdict

LIBRARY = load_library()
FALSE = parse_file(Path(__file__).parent / "false_rules.toml")


def sample(count: int, seed: int) -> list[Rule]:
    cheap = [r for r in LIBRARY.values() if r.family != "resize"]
    return random.Random(seed).sample(cheap, count)


@pytest.mark.parametrize("rule", sample(60, 1), ids=lambda r: r.id)
def test_rules_of_the_library_pass_with_another_seed(rule: Rule) -> None:
    verdict = exact(rule, seed=99, trials=5)
    assert isinstance(verdict, TestedVerdict)
    assert verdict.bound < 1e-3


@pytest.mark.parametrize("rule", FALSE, ids=lambda r: r.id)
def test_false_rules_are_refuted_and_the_counterexample_replays(rule: Rule) -> None:
    verdict = exact(rule)
    assert isinstance(verdict, RefutedVerdict)
    data = json.loads(json.dumps(verdict.counterexample))
    assert replay(data)
    assert describe(data).startswith("at ")


def test_there_are_enough_false_rules() -> None:
    assert len(FALSE) >= 50


def test_mutants_are_refuted_or_happen_to_be_true() -> None:
    refuted = survived = 0
    for position, rule in enumerate(sample(40, 2)):
        changed = list(mutants(rule))
        if not changed:
            continue
        what, mutant = random.Random(position).choice(changed)
        verdict = exact(mutant, trials=6)
        if isinstance(verdict, RefutedVerdict):
            assert replay(verdict.counterexample), (rule.id, what)
            refuted += 1
        elif isinstance(
            verdict, TestedVerdict
        ):  # true by chance: then the prover must be able to say so, or of no shapes
            proof = prove(mutant)
            ill = isinstance(proof, UnknownVerdict) and proof.reason.startswith("not well-formed")
            assert isinstance(proof, ProvedVerdict) or ill, (rule.id, what)
            survived += 1
    assert refuted >= 25
    assert survived <= 10


def test_counterexamples_are_small() -> None:
    rule = parse_rule({"forall": {"x": "f[..., m, k]", "y": "f[..., k, n]"}, "lhs": ["MatMul(x, y)"],
                       "rhs": ["MatMul(x, Relu(y))"]})  # fmt: skip
    verdict = exact(rule)
    assert isinstance(verdict, RefutedVerdict)
    sizes = verdict.counterexample["sizes"]
    assert isinstance(sizes, dict)
    assert set(sizes.values()) == {1}


def test_a_wrong_counterexample_does_not_replay() -> None:
    rule = parse_rule({"forall": {"x": "f[n]"}, "lhs": ["Add(x, x)"], "rhs": ["Mul(x, x)"]})
    verdict = exact(rule)
    assert isinstance(verdict, RefutedVerdict)
    assert not replay({**verdict.counterexample, "elements": {"x": ["0"]}, "sizes": {"n": 1}})
    with pytest.raises(RuleError, match="not a counterexample"):
        replay({"rule": 3})


def test_sides_of_different_types_are_refuted() -> None:
    rule = parse_rule({"forall": {"x": "f[m, n]"}, "lhs": ["Reshape(x, shape=[m, n, 1])"], "rhs": ["Relu(x)"]})
    verdict = exact(rule)
    assert isinstance(verdict, RefutedVerdict)
    assert "type" in describe(verdict.counterexample)


def test_a_size_that_nothing_binds_is_no_crash() -> None:
    """Generalising proposes such rules on its way."""
    split = "Split({}, axis=1, split=[p - q, q])[0]"
    rule = parse_rule({
        "forall": {"z": "f[m, p]", "t": "f[]", "q": "int > 0"}, "lhs": [f"Mul({split.format('z')}, t)"],
        "rhs": [split.format("Mul(z, t)")],
    })  # fmt: skip
    assert isinstance(exact(rule), TestedVerdict)
    assert isinstance(exact(replace(rule, forall={n: s for n, s in rule.forall.items() if n != "q"})), UnknownVerdict)


def test_a_context_that_nothing_satisfies_proves_nothing() -> None:
    rule = parse_rule({"forall": {"x": "f[n]"}, "where": ["n < 1"], "lhs": ["Relu(x)"], "rhs": ["Relu(x)"]})
    assert isinstance(exact(rule), UnknownVerdict)


def test_the_verdict_depends_only_on_the_seed() -> None:
    rule = FALSE[0]
    first, second = exact(rule, seed=3), exact(rule, seed=3)
    assert first == second or (
        isinstance(first, RefutedVerdict)
        and isinstance(second, RefutedVerdict)
        and first.counterexample == second.counterexample
    )


def test_admission_refuses_a_false_rule_with_its_counterexample(tmp_path: Path) -> None:
    text = '[[rule]]\nid = "planted"\nforall = { x = "f[n]" }\nlhs = ["Relu(Neg(x))"]\nrhs = ["Neg(Relu(x))"]\n'
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(RuleError, match="planted") as error:
        admit(load_library(tmp_path))
    assert "on the left and" in str(error.value)
    (tmp_path / "mine.toml").write_text(text.replace("Relu(Neg(x))", "Neg(Relu(x))"))
    assert "planted" in {r.id for r in admit(load_library(tmp_path)).admitted}


class TestPrimeField:
    field = PrimeField(1)

    def random(self, seed: int) -> np.ndarray:
        return self.field.random(np.random.default_rng(seed), (50,))

    def test_laws(self) -> None:
        f, a, b, c = self.field.function, self.random(1), self.random(2), self.random(3)
        assert self.field.equal(f("mul", a, f("add", b, c)), f("add", f("mul", a, b), f("mul", a, c))).all()
        assert (signed(f("mul", a, f("inv", a))) == 1).all()
        assert self.field.equal(f("exp", f("add", a, b)), f("mul", f("exp", a), f("exp", b))).all()
        root = f("sqrt", f("mul", a, a))
        assert self.field.equal(f("mul", root, root), f("mul", a, a)).all()
        assert self.field.equal(f("erf", f("mul", self.field.integers(np.asarray(-1)), a)),
                                f("mul", self.field.integers(np.asarray(-1)), f("erf", a))).all()  # fmt: skip

    def test_matmul_is_exact_for_long_sums(self) -> None:
        rng = np.random.default_rng(0)
        a, b = rng.integers(0, MODULUS // 2, (1, 2, 3000)), rng.integers(0, MODULUS // 2, (1, 3000, 2))
        product = self.field.matmul(self.field.integers(a), self.field.integers(b))
        exact_product = (a[0].astype(object) @ b[0].astype(object)) % MODULUS
        assert (signed(product[0]) % MODULUS == exact_product.astype(np.int64)).all()

    def test_sums_with_elements_without_a_q_part_have_none(self) -> None:
        a, b = self.field.integers(np.arange(6).reshape(2, 3)), self.field.integers(np.arange(12).reshape(3, 4))
        a[1, 2] = self.field.function("exp", a[1, 2])
        product, rest = self.field.matmul(a, b), self.field.matmul(a[:1], b)
        assert (product[:1] == rest).all()
        assert self.field.equal(
            product[1], self.field.reduce("sum", self.field.function("mul", a[1][:, None], b), (0,))
        ).all()
        assert (product[1] >> 26 == 1 << 25).all()

    @pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
    def test_floats_are_what_they_are_exactly(self, kind: type[np.floating]) -> None:
        limits, rng = np.finfo(kind), np.random.default_rng(0)
        edges = [0.0, 1.0, 1 / 3, limits.max, limits.tiny, limits.smallest_subnormal, 1 + limits.eps]
        bits = rng.bytes(300 * limits.bits // 8)
        values = np.concatenate([np.array([*edges, *(-e for e in edges)], kind), np.frombuffer(bits, kind)])
        values = values[np.isfinite(values)].reshape(1, -1)
        wanted = [self.field.constant(Fraction(float(v))) for v in values[0]]
        assert (self.field.floats(values) == np.array(wanted)).all()

    def test_the_inverse_of_zero_asks_for_other_elements(self) -> None:
        for algebra in (self.field, Rationals()):
            with pytest.raises(InverseOfZero):
                algebra.function("inv", algebra.integers(np.zeros(2, dtype=np.int64)))


def _stated(forall: dict[str, str], lhs: str, rhs: str) -> Rule:
    return parse_rule({"id": "it", "forall": forall, "lhs": [lhs], "rhs": [rhs]})


VECTOR, PAIR = {"x": "f[m]"}, {"x": "f[m]", "y": "f[m]"}


@pytest.mark.parametrize(
    ("forall", "lhs", "rhs"),
    [
        ({"x": "f[m, n]"}, "ReduceL2(Mul(x, -2.0), axes=[1])", "Mul(ReduceL2(x, axes=[1]), -2.0)"),
        (VECTOR, "Sqrt(Mul(x, 9.0))", "Mul(Sqrt(x), -3.0)"),
        ({**VECTOR, "a": "real"}, "Sqrt(Mul(x, a * a))", "Mul(Sqrt(x), a)"),
        (VECTOR, "Div(1.0, Sqrt(Mul(x, 4.0)))", "Div(-0.5, Sqrt(x))"),
    ],
)
def test_the_sign_of_a_root_is_told(forall: dict[str, str], lhs: str, rhs: str) -> None:
    assert isinstance(exact(_stated(forall, lhs, rhs)), RefutedVerdict)
    if "a" not in forall:
        assert isinstance(exact(_stated(forall, lhs, rhs.replace("-", ""))), TestedVerdict)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("forall", "lhs", "rhs"),
    [
        (PAIR, "GreaterOrEqual(x, y)", "Greater(Add(x, 0.001), y)"),  # differs between two constants
        (VECTOR, "Clip(x, -1000000.0, 1000000.0)", "x"),  # beyond a large one
        (VECTOR, "Clip(Mul(x, 0.001), -5.0, 5.0)", "Mul(x, 0.001)"),  # beyond a quotient
        (VECTOR, "Sign(x)", "Clip(Mul(x, 100000.0), -1.0, 1.0)"),  # below a reciprocal
        (VECTOR, "Shrink(x, lambd=0.0001, bias=0.0)", "x"),
        (VECTOR, "Floor(x)", "Floor(Add(x, 0.0001))"),
    ],
)
def test_what_a_constant_turns_is_looked_at_there(forall: dict[str, str], lhs: str, rhs: str, seed: int) -> None:
    assert isinstance(exact(_stated(forall, lhs, rhs), seed=seed), RefutedVerdict)


@pytest.mark.parametrize("function", ["Exp", "Sigmoid", "Tanh", "Erf", "Softplus", "Elu"])
def test_the_order_of_transcendental_functions_is_known(function: str) -> None:
    def equals(right: str) -> Rule:
        left, forall = f"Max({function}(x), {function}(y))", {"x": "f[m, n]", "y": "f[m, n]"}
        return parse_rule({"id": "r", "forall": forall, "lhs": [left], "rhs": [right]})

    assert isinstance(exact(equals(f"{function}(Max(x, y))")), TestedVerdict)
    assert isinstance(exact(equals(f"{function}(Min(x, y))")), RefutedVerdict)
