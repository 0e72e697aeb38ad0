"""What later runs found joins a library where it leaves less to run than the library's own rules do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from superopt.discovery.extend import extend, extended
from superopt.rules.grammar import format_rule, parse_rule
from superopt.rules.library import load_library, parse_file, write_rules
from superopt.rules.rule import Rule
from superopt.rules.scanner import RuleError
from superopt.verifier.prover.prover import prove
from superopt.verifier.verdict import ProvedVerdict


def row(name: str, lhs: str, rhs: str, **forall: str) -> Rule:
    given = {"x": "f[..., m, n]", **forall}
    return parse_rule({"id": name, "forall": given, "lhs": [lhs], "rhs": [rhs]}, family=name.split("-")[0])


TWICE = row("relu-2", "Relu(Relu(x))", "Relu(x)")
ABS = row("abs-1", "Abs(Abs(x))", "Abs(x)")


def names(library: list[Rule], given: list[Rule]) -> list[str]:
    return sorted(rule.id for rule in extended(library, given))


def test_what_the_library_does_already_does_not_join() -> None:
    thrice = row("relu-3", "Relu(Relu(Relu(x)))", "Relu(x)")
    assert names([TWICE], [thrice, ABS]) == ["abs-1"]
    assert names([], [thrice, TWICE]) == ["relu-2"]  # the short one, by which the other follows


def test_as_little_is_enough_whatever_the_form() -> None:
    """``x + (a + b)`` runs one sum; the library gets there with other weights than the rule's."""
    forall = {"a": "f[n]", "b": "f[n]"}
    library = [row("sum-1", "Add(Add(x, a), b)", "Add(x, Add(a, b))", **forall)]
    other = row("sum-2", "Add(Add(x, a), b)", "Add(x, Mul(Add(a, b), 1.0))", **forall)
    solved = parse_rule({**format_rule(other), "origin": "discovered (weights solved for, of Add)"}, family="sum")
    renamed = parse_rule(
        {
            "id": "sum-3", "forall": {"x": "f[..., m, n]", "wa": "f[n]", "wb": "f[n]"},
            "lhs": ["Add(Add(x, wa), wb)"], "rhs": ["Add(x, Mul(Add(wa, wb), 1.0))"],
            "origin": "discovered (weights solved for, of Add)",
        },
        family="sum",
    )  # fmt: skip
    assert names([], [renamed]) == ["sum-3"]
    assert names(library, [renamed]) == []
    assert names([], [solved]) == []  # a and b are no names of weights: as many sums run


def test_what_leaves_as_much_or_forgets_its_data_does_not_join() -> None:
    same = row("neg-1", "Neg(Relu(x))", "Min(Neg(x), 0.0)")
    forgets = row("div-1", "Div(x, x)", "ConstantOfShape(shape=[m, n], value=1.0)", x="f[m, n]")
    assert names([], [same, forgets]) == []


def test_as_many_operators_with_more_arithmetic_are_not_as_little() -> None:
    """``−(x·a)`` as a product with a diagonal matrix is one operator, and does what ``x·(−a)`` does with n times the
    arithmetic."""
    forall = {"x": "f[..., m, n]", "a": "f[n]"}
    diagonal = row("neg-2", "Neg(Mul(x, a))", "MatMul(x, Neg(Mul(EyeLike(shape=[n, n]), a)))", **forall)
    direct = row("neg-3", "Neg(Mul(x, a))", "Mul(x, Neg(a))", **forall)
    assert names([diagonal], [direct]) == ["neg-3"]
    assert names([direct], [diagonal]) == []


def test_a_view_is_less_than_a_move() -> None:
    turned = row("turn-1", "Transpose(x, perm=[1, 0])", "Reshape(x, shape=[n, 1])", x="f[1, n]")
    back = row("turn-2", "Reshape(x, shape=[n, 1])", "Transpose(x, perm=[1, 0])", x="f[1, n]")
    assert names([], [turned]) == ["turn-1"]
    assert names([], [back]) == []


def test_as_much_in_half_the_time_joins() -> None:
    """Of one example, four axes of which two are turned: the device has a fast loop for three, of which two are."""
    three = "Reshape(Transpose(Reshape(x, shape=[c, h, w]), perm=[0, 2, 1]), shape=[c, 1, w, h])"
    turned = row("turn-1", "Transpose(x, perm=[1, 0, 3, 2])", three, x="f[1, c, h, w]")
    four = "Reshape(Transpose(Reshape(x, shape=[1, b, c, h]), perm=[0, 1, 3, 2]), shape=[b, h, c])"
    as_fast = row("turn-2", "Transpose(x, perm=[0, 2, 1])", four, x="f[b, c, h]")
    assert names([], [turned, as_fast]) == ["turn-1"]
    assert names([turned], [replace(turned, id="turn-3")]) == []


def test_a_weight_may_come_first() -> None:
    """What has leading axes is data, whichever operand it is."""
    forall = {"x": "f[..., k, n]", "w": "f[m, k]", "t": "f[k, 1]"}
    scaled = row("mat-1", "MatMul(w, Mul(x, t))", "MatMul(Mul(w, Reshape(t, shape=[k])), x)", **forall)
    assert names([], [scaled]) == ["mat-1"]


def test_what_has_no_batch_is_no_image() -> None:
    shift = row("max-1", "Max(Max(x, t), r)", "Max(x, Max(t, r))", x="f[b, c, h, w]", t="f[c, 1, 1]", r="f[c, 1, 1]")
    both = row("max-2", "Max(Max(x, t), r)", "Max(x, Max(t, r))", x="f[b, c]", t="f[b, c]", r="f[b, c]")
    assert names([], [shift, both]) == ["max-1"]


def test_operators_that_make_fewer_elements_join() -> None:
    fewer = row("max-3", "ReduceMax(Floor(x), axes=[-1])", "Floor(ReduceMax(x, axes=[-1]))")
    as_many = row("neg-2", "Floor(Neg(x))", "Neg(Ceil(x))")
    turned = row("neg-3", "Neg(Transpose(x, perm=[..., -1, -2]))", "Transpose(Neg(x), perm=[..., -1, -2])")
    assert names([], [fewer, as_many, turned]) == ["max-3"]


def test_at_size_one_it_is_not_needed() -> None:
    rule = row("exp-1", "Add(x, Expand(o, shape=[..., m, n]))", "Add(x, o)", o="f[..., 1, n]")
    same = row("exp-2", "Expand(x, shape=[..., m, n])", "x")
    (kept,) = extended([same], [rule])
    assert [str(g.left) for g in kept.where] == ["m"]
    assert kept.where[0].relation == ">="
    assert kept.where[0].right == 2
    assert isinstance(prove(kept), ProvedVerdict)
    (plain,) = extended([], [rule])
    assert plain.where == ()


def test_weights_as_long_as_an_image_do_not_join() -> None:
    forall = {"x": "f[b, c, h, w]", "wa": "f[c, 1, 1]", "wb": "f[c, 1, 1]"}
    large = parse_rule(
        {
            "id": "sum-4", "forall": forall, "lhs": ["Add(Add(x, wa), wb)"],
            "rhs": ["Add(x, Add(Add(wa, ConstantOfShape(shape=[b, c, h, w], value=0.0)), wb))"],
            "origin": "discovered (weights solved for, of Add)",
        },
        family="sum",
    )  # fmt: skip
    assert names([], [large]) == []


def written(folder: Path, *rules: Rule) -> Path:
    folder.mkdir()
    for family in {rule.family for rule in rules}:
        write_rules(folder / f"{family}.toml", [r for r in rules if r.family == family], heading="As found.")
    return folder


def test_the_files_grow_and_the_log_says_by_what(tmp_path: Path) -> None:
    library = written(tmp_path / "library", TWICE)
    runs = [written(tmp_path / "a", ABS), written(tmp_path / "b", row("relu-9", "Relu(Abs(x))", "Abs(x)"))]
    (runs[0] / "run.json").write_text(json.dumps({"config": "c0", "themes": [{"theme": "abs"}], "cpu_seconds": 2.0}))
    joined = extend(runs, to=library)
    assert {r.id for r in load_library(library, built_in=False).values()} == {"relu-2", *(r.id for r in joined)}
    assert len(joined) == 2
    assert (library / "relu.toml").read_text().startswith("# As found.\n")
    (told,) = json.loads((library / "run.json").read_text())["added"]
    assert told["rules"] == sorted(r.id for r in joined)
    assert {"config": "c0", "themes": ["abs"], "cpu_seconds": 2.0} in told["runs"]
    assert extend(runs, to=library) == ()  # they are there
    assert parse_file(library / "abs.toml")[0].lhs == ABS.lhs


def test_a_rule_that_a_run_finds_again_cites_that_run(tmp_path: Path) -> None:
    def from_run(rule: Rule, theme: str, config: str) -> Rule:
        return replace(rule, origin=f"discovered (enumerated from the vocabulary {theme}, config {config})")

    library = written(tmp_path / "library", from_run(TWICE, "relu", "aa"), from_run(ABS, "abs", "bb"))
    run = written(tmp_path / "run", from_run(TWICE, "relu", "cc"), from_run(ABS, "another", "cc"))
    assert extend([run], to=library) == ()
    origins = {rule.id: rule.origin for rule in load_library(library, built_in=False).values()}
    assert origins == {"relu-2": from_run(TWICE, "relu", "cc").origin, "abs-1": from_run(ABS, "abs", "bb").origin}
    (log,) = json.loads((library / "run.json").read_text())["added"]
    assert (log["rules"], log["found_again"]) == ([], ["relu-2"])
    assert extend([run], to=library) == ()
    assert len(json.loads((library / "run.json").read_text())["added"]) == 1


def test_what_is_not_true_does_not_join_and_nothing_is_written(tmp_path: Path) -> None:
    library = written(tmp_path / "library", TWICE)
    run = written(tmp_path / "run", ABS, row("relu-9", "Relu(Neg(x))", "Relu(x)"))
    before = {p.name: p.read_bytes() for p in library.iterdir()}
    with pytest.raises(RuleError, match="it would join, and is refuted at"):
        extend([run], to=library)
    assert {p.name: p.read_bytes() for p in library.iterdir()} == before
