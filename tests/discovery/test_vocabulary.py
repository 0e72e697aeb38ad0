"""Vocabularies that are generated from lists of operators: what they are, and what is found in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from superopt.discovery.config import OperatorVocabulary, load_config
from superopt.discovery.derive import derived, rewrites_of
from superopt.discovery.discover import discover
from superopt.discovery.generalise import size_general, whole_sizes
from superopt.ir.terms import OperatorTerm, format_term, postorder
from superopt.rules.grammar import parse_rule
from superopt.rules.rule import Rule
from superopt.verifier.exact.testing import test as check
from superopt.verifier.prover.prover import prove
from superopt.verifier.verdict import ProvedVerdict, kind_of

ROOT = Path(__file__).resolve().parents[2]


def theme(tmp_path: Path, **row: object) -> OperatorVocabulary:
    lines = [f"{k} = {json.dumps(v)}" for k, v in {"name": "some", "operators": 2, **row}.items()]
    file = tmp_path / "some.toml"
    file.write_text("[[theme]]\n" + "\n".join(lines) + "\n", "utf-8")
    return load_config(file).themes[0]


def test_signatures_are_read_off_the_records(tmp_path: Path) -> None:
    texts = {t.text for t in theme(tmp_path, enumerate=["ReduceSum", "Concat", "Max"]).vocabulary}
    assert {"ReduceSum(A, axes=[1], keepdims=0)", "ReduceSum(A, axes=[0, 1], keepdims=1)", "Max(A, B)"} <= texts
    assert {"Concat(A, B, axis=0)", "Concat(A, B, axis=1)"} <= texts
    logical = theme(tmp_path, enumerate=["And", "Where"])
    assert {s.dtype for s in logical.leaves.values()} == {"f", "b"}
    assert not any("1.0" in t.text and "bool" not in t.text for t in logical.vocabulary)  # no numbers are reckoned with
    cut = theme(tmp_path, enumerate=["Slice"])
    assert str(cut.leaves["x"].shape[-1]) == "l1 + s1 + u1"
    assert set(cut.attributes) == {"s0", "l0", "u0", "s1", "l1", "u1"}
    volume = theme(tmp_path, enumerate=["Transpose"], data=[3])
    assert len(volume.vocabulary) == 6 + 2


def test_nothing_is_typed(tmp_path: Path) -> None:
    """No template has more than one operator, in any vocabulary of the recorded configuration."""
    themes = load_config(ROOT / "docs" / "generated.toml").themes
    assert themes
    for one in themes:
        assert one.records
        assert all(sum(isinstance(t, OperatorTerm) for t in postorder(v.term)) == 1 for v in one.vocabulary)


def test_an_unknown_operator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="Nand"):
        theme(tmp_path, enumerate=["Nand"])


def test_what_is_found_says_where_it_is_from(tmp_path: Path) -> None:
    theme(tmp_path, enumerate=["Abs", "Neg"])
    result = discover(load_config(tmp_path / "some.toml"), out=tmp_path / "out")
    wanted = parse_rule({"id": "even", "forall": {"x": "f[...]"}, "lhs": ["Abs(Neg(x))"], "rhs": ["Abs(x)"]})
    assert derived(wanted, rewrites_of(result.rules)) is not None
    assert all(isinstance(prove(r), ProvedVerdict) for r in result.rules)
    assert all("enumerated from Abs, Neg" in r.origin for r in result.rules)


def holds(rule: Rule) -> bool:
    return kind_of(check(rule, seed=7, trials=4)) == "tested"


def row(**parts: object) -> Rule:
    return parse_rule({"id": "some", **parts})


def generalised(rule: Rule) -> Rule:
    return size_general(whole_sizes(rule, holds), holds)


def test_what_only_occurs_as_a_sum_has_one_name() -> None:
    cut = {"a": "int>=1", "b": "int>=0"}
    found = generalised(row(
        forall={"e": "f[]", **cut},
        lhs=["Slice(Expand(e, shape=[a + b]), axes=[0], ends=[-1], starts=[a + b - 1], steps=[-1])"],
        rhs=["Expand(e, shape=[a + b])"],
    ))  # fmt: skip
    assert set(found.attribute_atoms) == {"a"}


def test_a_size_that_stands_for_two_is_told_apart() -> None:
    """The second part of a Concat begins where the first ends, however long that is."""
    found = generalised(row(
        forall={"x": "f[a + b]", "y": "f[a + b]", "a": "int>=1", "b": "int>=0"},
        lhs=["Slice(Concat(x, y, axis=0), axes=[0], ends=[2*a + 2*b], starts=[2*a + b], steps=[1])"],
        rhs=["Slice(y, axes=[0], ends=[a + b], starts=[a], steps=[1])"],
    ))  # fmt: skip
    (size,) = found.tensors["x"].shape
    assert str(size) not in map(str, found.tensors["y"].shape)
    assert str(size) in format_term(found.lhs[0])
    wanted = row(
        forall={"x": "f[n]", "y": "f[p + q]", "n": "int>=1", "p": "int>=1", "q": "int>=1"},
        lhs=["Slice(Concat(x, y, axis=0), axes=[0], ends=[n + p + q], starts=[n + p], steps=[1])"],
        rhs=["Slice(y, axes=[0], ends=[p + q], starts=[p], steps=[1])"],
    )  # fmt: skip
    assert derived(wanted, rewrites_of([found])) is not None


def test_a_bound_above_another_is_matched() -> None:
    """``Max(Min(x, d), c)`` is a Clip where ``c < d``, also where ``d`` was computed."""
    terms = {"lhs": ["Max(Min(x, c + g), c)"], "rhs": ["Clip(x, max=c + g, min=c)"]}
    found = row(forall={"x": "f[n]", "c": "real", "g": "real>0"}, **terms)
    for bound, expected in (("Add(c, g)", True), ("Sub(c, g)", False)):
        wanted = row(
            forall={"x": "f[n]", "c": "real", "g": "real>0"}, lhs=[f"Max(Min(x, {bound}), c)"],
            rhs=[f"Clip(x, max=c {'+' if expected else '-'} g, min=c)"],
        )  # fmt: skip
        assert (derived(wanted, rewrites_of([found])) is not None) is expected


def test_one_is_a_size(tmp_path: Path) -> None:
    """What is backwards along an axis of one is as it was."""
    theme(tmp_path, enumerate=["Slice"], operators=1, data=[1], tensors=1, ones="true")
    file = tmp_path / "some.toml"
    file.write_text(file.read_text("utf-8").replace('"true"', "true"), "utf-8")
    result = discover(load_config(file), out=tmp_path / "out")
    wanted = row(
        forall={"x": "f[m, 1]"}, lhs=["Slice(x, axes=[1], ends=[-1], starts=[0], steps=[-1])"], rhs=["x"]
    )  # fmt: skip
    assert derived(wanted, rewrites_of(result.rules)) is not None


def texts(tmp_path: Path, **row: object) -> set[str]:
    return {t.text for t in theme(tmp_path, **row).vocabulary}


def test_any_number_of_operands_or_parts_may_be_one(tmp_path: Path) -> None:
    assert {"Concat(A, axis=0)", "Concat(A, B, axis=0)"} <= texts(tmp_path, enumerate=["Concat"])
    assert "Split(A, axis=1, split=[n])" in texts(tmp_path, enumerate=["Split"])
    assert {"Tile(A, repeats=[1, 1])", "Tile(A, repeats=[1, h])"} <= texts(tmp_path, enumerate=["Tile"])


def test_bounds_are_numbers_in_order(tmp_path: Path) -> None:
    some = theme(tmp_path, enumerate=["Clip"], bounds=3)
    assert {t.text for t in some.vocabulary if t.holes} == {
        "Clip(A, max=r + g0, min=r)", "Clip(A, max=r + g0 + g1, min=r)", "Clip(A, max=r + g0 + g1, min=r + g0)",
    }  # fmt: skip
    assert some.attributes["g1"].allows(0.0)


def test_an_activation_has_its_default_as_well(tmp_path: Path) -> None:
    assert {"Swish(A, alpha=r0)", "Swish(A, alpha=1.0)"} <= texts(tmp_path, enumerate=["Swish"])


def test_shapes_are_joined_and_turned_only_beside_a_transposition(tmp_path: Path) -> None:
    alone = texts(tmp_path, enumerate=["Reshape"])
    assert "Reshape(A, shape=[(m)*(n)])" in alone
    assert "Reshape(A, shape=[n, m])" not in alone
    assert "Reshape(A, shape=[n, m])" in texts(tmp_path, enumerate=["Reshape", "Transpose"])


def test_only_what_simplifies_is_a_candidate(tmp_path: Path) -> None:
    theme(tmp_path, enumerate=["Abs", "Neg", "Relu"], simplifies=True)
    found = discover(load_config(tmp_path / "some.toml"), out=tmp_path / "out")
    assert found.rules
    for rule in found.rules:
        sizes = [sum(isinstance(t, OperatorTerm) for t in postorder(*side)) for side in (rule.lhs, rule.rhs)]
        assert sizes[0] > sizes[1], str(rule)


@pytest.mark.slow
def test_two_shapes_are_any_with_as_many_elements(tmp_path: Path) -> None:
    theme(tmp_path, enumerate=["Reshape"], data=[3], tensors=1, simplifies=True)
    rules = discover(load_config(tmp_path / "some.toml"), out=tmp_path / "out").rules
    wanted = {str(r.lhs[0]) for r in rules}
    assert "Reshape(Reshape(x, shape=[n0, n1]), shape=[n2, n3])" in wanted
    assert all(isinstance(prove(r), ProvedVerdict) for r in rules)
