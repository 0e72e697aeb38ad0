# ruff: noqa: E501 - a rule reads best on one line
"""Certificates: what the prover writes holds; whatever is changed in what it rests on is found by the checker alone."""

from __future__ import annotations

import json
import random
import time
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from sampling import rule_ids, sampled, slow
from tamperings import TAMPERINGS
from typer.testing import CliRunner

from superopt import cli
from superopt.ir.size_polynomial import sym
from superopt.rules import Rule, load_library, parse_rule
from superopt.rules.library import RuleLibrary
from superopt.rules.typing import meaning_digest
from superopt.verifier import ProvedVerdict, UnknownVerdict
from superopt.verifier.certificates import checker
from superopt.verifier.certificates.certificate import certificate_of, certify
from superopt.verifier.certificates.certify_library import certify_all
from superopt.verifier.certificates.checker import CertificateResult, check_certificate, script_of, seal
from superopt.verifier.certificates.normal_forms import CertificateRejected
from superopt.verifier.certificates.smtlib import script, unsatisfiable, within
from superopt.verifier.prover.arith import ge

ROOT = Path(__file__).parents[2]
WINDOW = "strides=s, pads=p, dilations=[1,1], group=g"
CONV = {
    "x": "f[n,g*c,h,w]",
    "a": "f[g*o,c,k,l]",
    "b": "f[g*o,c,k,l]",
    "s": "ints[2]>=1",
    "p": "ints[4]>=0",
    "g": "int>=1",
}
TYPES = {"x": "f[n,c,h,w]", "k": "f[m,c,u,v]", "l": "f[o,m,t,r]", "s": "ints[2]>=1", "p": "ints[4]>=0"}
PLAIN = "dilations=[1,1], group=1"
# Every kind of step and of factor: matches with residues (concat, enlarge), re-indexings (conv after conv), multiples
# (divide), piecewise lemmas (max), exponentials, maxima over ranges, merged axes, gathers, slices, guards.
RULES: dict[str, tuple[dict[str, str], str, str, list[str]]] = {
    "convs": (CONV, f"Add(Conv(x, a, {WINDOW}), Conv(x, b, {WINDOW}))", f"Conv(x, Add(a, b), {WINDOW})", []),
    "conv_after_conv": (TYPES, f"Conv(Conv(x, k, pads=p, strides=[1,1], {PLAIN}), l, pads=[0,0,0,0], strides=s, {PLAIN})",
        f"Conv(x, ConvTranspose(l, k, pads=[0,0,0,0], strides=[1,1], output_padding=[0,0], {PLAIN}), pads=p, strides=s, {PLAIN})", []),
    "enlarge": ({"x": "f[n,c,h,w]", "k": "f[o,c,1,1]"}, f"Conv(x, k, pads=[0,0,0,0], strides=[1,1], {PLAIN})",
        f"Conv(x, Pad(k, pads=[0,0,1,1,0,0,1,1]), pads=[1,1,1,1], strides=[1,1], {PLAIN})", []),
    "concat": ({"a": "f[m,k]", "b": "f[m,l]", "c": "f[k,n]", "d": "f[l,n]"}, "MatMul(Concat(a, b, axis=1), Concat(c, d, axis=0))", "Add(MatMul(a, c), MatMul(b, d))", []),
    "crossed": ({"a": "f[m,k]", "b": "f[m,l]", "c": "f[k,n]", "d": "f[l,n]"}, "MatMul(Concat(b, a, axis=1), Concat(d, c, axis=0))", "MatMul(Concat(a, b, axis=1), Concat(c, d, axis=0))", []),
    "associative": ({"a": "f[m,k]", "b": "f[k,l]", "c": "f[l,n]"}, "MatMul(MatMul(a, b), c)", "MatMul(a, MatMul(b, c))", []),
    "max": ({"x": "f[n]", "y": "f[n]", "z": "f[n]"}, "Max(Max(x, y), z)", "Max(x, Max(y, z))", []),
    "reducemax": ({"x": "f[...,n]", "y": "f[...,n]"}, "ReduceMax(Max(x, y), axes=[-1], keepdims=1)", "Max(ReduceMax(x, axes=[-1], keepdims=1), ReduceMax(y, axes=[-1], keepdims=1))", []),
    "divide": ({"x": "f[n]", "y": "f[n]", "z": "f[n]"}, "Add(Div(x, Add(y, z)), 1.0)", "Div(Add(x, Add(y, z)), Add(y, z))", []),
    "softmax": ({"x": "f[b,n]", "c": "f[b,1]"}, "Softmax(Add(x, c), axis=1)", "Softmax(x, axis=1)", []),
    "reshape": ({"x": "f[m,a*k]"}, "Reshape(Reshape(x, shape=[m,a,k]), shape=[m*a,k])", "Reshape(x, shape=[m*a,k])", []),
    "gather": ({"x": "f[k,n]", "y": "f[k,n]", "i": "i[s]<k"}, "Add(Gather(x, i, axis=0), Gather(y, i, axis=0))", "Gather(Add(x, y), i, axis=0)", []),
    "slice": ({"x": "f[a,n]", "y": "f[b,n]"}, "Slice(Concat(x, y, axis=0), starts=[a], ends=[a+b], axes=[0], steps=[1])", "y", []),
    "guarded": ({"x": "f[a,n]", "y": "f[b,n]", "t": "int>=1"}, "Slice(Concat(x, y, axis=0), starts=[0], ends=[t], axes=[0], steps=[1])", "Slice(x, starts=[0], ends=[t], axes=[0], steps=[1])", ["t <= a"]),
    "tile": ({"x": "f[a, b]"}, "Tile(x, repeats=[1, 2])", "Concat(x, x, axis=1)", []),
    "split": ({"x": "f[b, m + n]"}, "Concat(Split(x, axis=1, split=[m, n])[0], Split(x, axis=1, split=[m, n])[1], axis=1)", "x", []),
    "ungroup": ({"x": "f[n, 2*c, h, w]", "a": "f[2*o, c, 3, 3]"}, "Conv(x, a, dilations=[1, 1], group=2, pads=[0, 0, 0, 0], strides=[1, 1])",
        "Concat(Conv(Split(x, axis=1, split=[c, c])[0], Split(a, axis=0, split=[o, o])[0], dilations=[1, 1], group=1, pads=[0, 0, 0, 0], strides=[1, 1]), Conv(Split(x, axis=1, split=[c, c])[1], Split(a, axis=0, split=[o, o])[1], dilations=[1, 1], group=1, pads=[0, 0, 0, 0], strides=[1, 1]), axis=1)", []),
    "pool": ({"x": "f[n,c,h,w]", "y": "f[n,c,h,w]", "s": "ints[2]>=1"}, "AveragePool(Add(x, y), kernel_shape=[3,3], strides=s, pads=[1,1,1,1], count_include_pad=0)",
        "Add(AveragePool(x, kernel_shape=[3,3], strides=s, pads=[1,1,1,1], count_include_pad=0), AveragePool(y, kernel_shape=[3,3], strides=s, pads=[1,1,1,1], count_include_pad=0))", []),
}  # fmt: skip
Data = dict[str, Any]


def _rule(name: str) -> Rule:
    forall, lhs, rhs, where = RULES[name]
    return parse_rule({"id": name, "forall": forall, "lhs": [lhs], "rhs": [rhs], "where": where})


@pytest.fixture(scope="module")
def certificates() -> dict[str, str]:
    made = {}
    for name in RULES:
        verdict, made[name] = certificate_of(_rule(name))
        assert isinstance(verdict, ProvedVerdict), (name, verdict)
    return made


def _checked(folder: Path, text: str) -> CertificateResult:
    (folder / "c.json").write_text(text)
    return check_certificate(folder / "c.json")


@pytest.mark.parametrize("name", RULES)
def test_certificates_hold(certificates: dict[str, str], tmp_path: Path, name: str) -> None:
    result = _checked(tmp_path, certificates[name])
    assert result.valid, result.reason
    assert result.goals >= 1
    assert result.points >= 3
    assert result.solvers
    assert set(result.solvers.values()) == {result.goals}


@pytest.mark.parametrize("name", ["concat", "max", "softmax", "gather", "guarded", "pool"])
def test_a_certificate_does_not_depend_on_what_was_proved_before_it(certificates: dict[str, str], name: str) -> None:
    assert certificate_of(_rule(name))[1] == certificates[name]


@pytest.mark.parametrize(
    ("answer", "other", "valid"),
    [("unsat", "unknown", True), ("unknown", "unsat", True), ("unsat", "sat", False), ("unknown", "unknown", False)],
)
def test_a_solver_that_does_not_answer_leaves_it_to_the_other(
    certificates: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, other: str, valid: bool
) -> None:
    monkeypatch.setattr(checker, "unsatisfiable", lambda _: (("one", answer), ("two", other)))
    monkeypatch.setattr(checker, "solvers", lambda: {"one": "1", "two": "2"})
    result = _checked(tmp_path, next(iter(certificates.values())))
    assert result.valid == valid
    if valid:
        assert sorted(result.solvers.values()) == [0, result.goals]


def test_a_solver_that_counts_no_work_is_stopped_by_the_clock() -> None:
    """As cvc5 in some goals; another process does what it does, and can be ended."""
    assert within(0.5, time.sleep, 3600) == "unknown"
    assert within(60.0, abs, -3) == "3"


@cache
def _library(file: Path | None) -> RuleLibrary:
    return load_library() if file is None else load_library(file, built_in=False)


def _sample() -> Iterator[tuple[Path | None, str]]:
    """Rules of the library, of discovery's own and of the held-out ones, a few of each family: file and id."""
    shipped = [None, *sorted(ROOT.glob("rules/discovered/*/*.toml"))]
    for file, every in (*((f, 59) for f in shipped), (ROOT / "tests/verifier/heldout/true.toml", 47)):
        ids = load_library() if file is None else rule_ids(file)
        yield from ((file, i) for i in ids if zlib.crc32(i.encode()) % every == 1)


LONG = ("reshape-5f60", "resize-65c1")  # half of the time of all

SAMPLE = list(_sample())


@pytest.mark.parametrize(
    "place",
    [*sampled([r for r in SAMPLE if r[1] not in LONG], 12), *(slow(r) for r in SAMPLE if r[1] in LONG)],
    ids=lambda place: place[1],
)
def test_what_is_proved_has_a_certificate_that_holds(tmp_path: Path, place: tuple[Path | None, str]) -> None:
    file, name = place
    verdict, text = certificate_of(_library(file)[name])
    assert isinstance(verdict, ProvedVerdict), verdict
    result = _checked(tmp_path, text)
    assert result.valid, result.reason


def test_a_rule_that_is_not_proved_has_no_certificate(tmp_path: Path) -> None:
    rule = parse_rule(
        {"id": "r", "forall": {"a": "f[k,k]", "b": "f[k,k]"}, "lhs": ["MatMul(a, b)"], "rhs": ["MatMul(b, a)"]}
    )
    assert isinstance(certify(rule, tmp_path, time_limit=1.0), UnknownVerdict)
    assert not list(tmp_path.iterdir())


# Tampered files are made consistent again: seal, digest and SMT script are what the checker itself would write, so that
# only what is claimed can give the change away.


def _sealed(data: Data) -> str:
    """The tampered data with everything that follows from it made right again."""
    try:
        data["digest"] = meaning_digest(parse_rule(data["rule"]))
        data["smt2"] = script_of(data)
    except (CertificateRejected, ValueError, KeyError, TypeError, LookupError):
        pass  # it is refused where it is: the checker has to say so too
    data["seal"] = seal(data)
    return json.dumps(data)


def _cases() -> Iterator[tuple[str, int]]:
    """Each tampering on two rules of its own choice."""
    for number, tampering in enumerate(TAMPERINGS):
        for turn in range(2):
            yield tampering.__name__, number * 4 + turn


@pytest.mark.parametrize(("name", "seed"), list(_cases()))
def test_tampered_certificates_are_rejected(certificates: dict[str, str], tmp_path: Path, name: str, seed: int) -> None:
    pick = random.Random(seed)
    tampering = next(t for t in TAMPERINGS if t.__name__ == name)
    rules = sorted(RULES)
    pick.shuffle(rules)
    for rule in rules:
        data = json.loads(certificates[rule])
        if tampering(data, pick) is not None and data != json.loads(certificates[rule]):
            result = _checked(tmp_path, _sealed(data))
            assert not result.valid, rule
            return
    pytest.fail("no rule to which it applies")


SCRIPTS: list[Callable[[str], str]] = [
    lambda s: "", lambda s: "(set-logic QF_NIA)\n", lambda s: "; superopt certificate\n",
    lambda s: s.replace("(set-logic QF_NIA)\n", "", 1), lambda s: s.replace("(check-sat)", "", 1),
    lambda s: s.replace("(check-sat)", "(assert false)\n(check-sat)"),
    lambda s: "(set-logic QF_NIA)\n(assert false)\n(check-sat)\n",
    lambda s: s.split("\n(reset)\n")[0] + "\n(reset)\n(set-logic QF_LIA)\n(declare-const z Int)\n(assert (< z z))\n(check-sat)\n",
    lambda s: "\n(reset)\n".join(s.split("\n(reset)\n")[:-1]) + "\n",
    lambda s: "\n(reset)\n".join([s.split("\n(reset)\n")[0], *reversed(s.split("\n(reset)\n")[1:])]),
    lambda s: s.replace(">= ", "> ", 1), lambda s: s + "(check-sat)\n",
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(SCRIPTS)))
def test_another_script_is_rejected(certificates: dict[str, str], tmp_path: Path, number: int) -> None:
    data = json.loads(certificates["slice"])
    right = data["smt2"]
    data["smt2"] = SCRIPTS[number](right)
    assert data["smt2"] != right
    data["seal"] = seal(data)
    result = _checked(tmp_path, json.dumps(data))
    assert not result.valid
    assert "SMT script" in result.reason
    (tmp_path / "c.smt2").write_text(data["smt2"])  # nor beside an untouched certificate
    assert "c.smt2" in _checked(tmp_path, certificates["slice"]).reason


def test_any_change_is_noticed(certificates: dict[str, str], tmp_path: Path) -> None:
    data = json.loads(certificates["concat"])
    data["derivations"][0]["facts"].pop()
    result = _checked(tmp_path, json.dumps(data))
    assert "changed after it was written" in result.reason


def test_a_changed_meaning_makes_certificates_void(certificates: dict[str, str], tmp_path: Path) -> None:
    data = json.loads(certificates["concat"])
    data["digest"] = "0" * 64
    data["seal"] = seal(data)
    assert "other meanings" in _checked(tmp_path, json.dumps(data)).reason


def test_one_rules_certificate_is_not_anothers(certificates: dict[str, str], tmp_path: Path) -> None:
    one, other = json.loads(certificates["concat"]), json.loads(certificates["tile"])
    assert not _checked(tmp_path, _sealed({**one, "derivations": other["derivations"]})).valid
    assert not _checked(tmp_path, _sealed({**one, "rule": other["rule"]})).valid
    assert not _checked(tmp_path, _sealed({**one, "rule": other["rule"], "id": other["id"]})).valid


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "3", '{"format": "superopt.certificate", "version": 2}', "\x00", "[" * 9999]
)
def test_garbage_is_rejected(tmp_path: Path, text: str) -> None:
    assert not _checked(tmp_path, text).valid
    assert not check_certificate(tmp_path / "missing.json").valid


def test_the_record_is_incremental(tmp_path: Path) -> None:
    rules = [_rule("concat"), _rule("slice")]
    record = tmp_path / "record.json"
    first = certify_all(rules[:1], record)
    assert (first["certified"], first["made"], first["failed"]) == (1, 1, {})
    second = certify_all(rules, record)
    assert (second["certified"], second["made"]) == (2, 1)
    written = json.loads(record.read_text())
    assert [r["id"] for r in written["rules"].values()] == ["concat", "slice"]
    assert written["certified"] == 2
    assert written["solvers"]
    false = parse_rule({"id": "f", "forall": {"x": "f[n]"}, "lhs": ["Relu(x)"], "rhs": ["x"]})
    third = certify_all([rules[0], false], record)
    assert third["certified"] == 1
    assert "not proved" in third["failed"]["f"]


def test_commands(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        '[[rule]]\nid = "mine"\nforall = { x = "f[n]" }\nlhs = ["Relu(Relu(x))"]\nrhs = ["Relu(x)"]\n'
    )
    runner = CliRunner()
    made = runner.invoke(
        cli.app,
        ["rules", "prove", str(tmp_path / "mine.toml"), "--certificates", str(tmp_path / "c"), "--workers", "1"],
    )
    assert made.exit_code == 0, made.output
    checked = runner.invoke(cli.app, ["rules", "check-certificate", str(tmp_path / "c" / "mine.json")])
    assert checked.exit_code == 0, checked.output
    assert "valid" in checked.output
    assert "z3" in checked.output
    rule_id = next(iter(load_library()))
    shown = runner.invoke(cli.app, ["rules", "show", rule_id, "--certificate"])
    assert shown.exit_code == 0, shown.output
    (tmp_path / "download").write_text(shown.stdout)
    assert runner.invoke(cli.app, ["rules", "check-certificate", str(tmp_path / "download")]).exit_code == 0
    by_id = runner.invoke(cli.app, ["rules", "prove", rule_id, "--workers", "1"])
    assert by_id.exit_code == 0, by_id.output
    (tmp_path / "download").write_text(shown.stdout.replace('"c": "1"', '"c": "2"', 1))
    refused = runner.invoke(cli.app, ["rules", "check-certificate", str(tmp_path / "download")])
    assert getattr(refused.exception, "exit_code", refused.exit_code) == 5


def test_a_goal_with_products_says_what_follows_by_one_multiplication() -> None:
    """``i < z`` and ``v < c`` leave no room for ``c·i + v ≥ c·z``; cvc5 times out on such goals without the product."""
    c, i, z, v = map(sym, "cizv")
    given = [ge(c - 1), ge(i), ge(z - 1 - i), ge(v), ge(c - 1 - v)]
    text = script([[g] for g in [*given, ge(c * i + v - c * z)]])
    assert text.count("(assert") > len(given) + 1
    assert {answer for _, answer in unsatisfiable(text)} == {"unsat"}
    possible = script([[g] for g in [*given, ge(c * i + v - c * z + 1)]])
    assert {answer for _, answer in unsatisfiable(possible)} == {"sat"}, "what is added follows"
