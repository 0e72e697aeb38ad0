# ruff: noqa: E501 - a rule reads best on one line
"""Certificates: what the prover writes holds, and what was tampered with is rejected."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from superopt.rules import parse_rule
from superopt.verifier import ProvedAllSizes, Unknown
from superopt.verifier.certificate import certify
from superopt.verifier.checker import check_certificate

WINDOW = "strides=s, pads=p, dilations=[1,1], group=g"
RULES = {
    "convs": (
        {"x": "f[n,g*c,h,w]", "a": "f[g*o,c,k,l]", "b": "f[g*o,c,k,l]", "s": "ints[2]>=1", "p": "ints[4]>=0",
         "g": "int>=1"},
        f"Add(Conv(x, a, {WINDOW}), Conv(x, b, {WINDOW}))", f"Conv(x, Add(a, b), {WINDOW})",
    ),
    "concat": (
        {"a": "f[m,k]", "b": "f[m,l]", "c": "f[k,n]", "d": "f[l,n]"},
        "MatMul(Concat(a, b, axis=1), Concat(c, d, axis=0))", "Add(MatMul(a, c), MatMul(b, d))",
    ),
    "relu": ({"x": "f[n]", "y": "f[n]", "z": "f[n]"}, "Max(Max(x, y), z)", "Max(x, Max(y, z))"),
    "divide": ({"x": "f[n]", "y": "f[n]", "z": "f[n]"}, "Add(Div(x, Add(y, z)), 1.0)", "Div(Add(x, Add(y, z)), Add(y, z))"),
    "softmax": ({"x": "f[b,n]", "c": "f[b,1]"}, "Softmax(Add(x, c), axis=1)", "Softmax(x, axis=1)"),
}  # fmt: skip


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    for name, (forall, lhs, rhs) in RULES.items():
        rule = parse_rule({"id": name, "forall": forall, "lhs": [lhs], "rhs": [rhs]})
        assert isinstance(certify(rule, directory), ProvedAllSizes)
    return directory


@pytest.mark.parametrize("name", RULES)
def test_certificates_hold(certificates: Path, name: str) -> None:
    result = check_certificate(certificates / f"{name}.json")
    assert result.valid, result.reason
    assert result.goals >= 1
    assert result.points >= 1


def test_a_rule_that_is_not_proved_has_no_certificate(tmp_path: Path) -> None:
    rule = parse_rule(
        {"id": "r", "forall": {"a": "f[k,k]", "b": "f[k,k]"}, "lhs": ["MatMul(a, b)"], "rhs": ["MatMul(b, a)"]}
    )
    assert isinstance(certify(rule, tmp_path, time_limit=1.0), Unknown)
    assert not list(tmp_path.iterdir())


def _first(data: dict[str, Any]) -> dict[str, Any]:
    return data["derivations"][0]  # type: ignore[no-any-return]


def _coefficient(data: dict[str, Any], pick: random.Random) -> None:
    pick.choice(_first(data)[pick.choice(["left", "right"])])["c"] = "7/3"


def _bound(data: dict[str, Any], pick: random.Random) -> None:
    _first(data)["left"][0]["bound"].append("v__9999999")


def _dropped_monomial(data: dict[str, Any], pick: random.Random) -> None:
    _first(data)[pick.choice(["left", "right"])].pop()


def _factor(data: dict[str, Any], pick: random.Random) -> None:
    monomial = next(m for m in _first(data)["right"] if m["factors"])
    pick.choice(monomial["factors"])[1] = "3"


def _hypothesis(data: dict[str, Any], pick: random.Random) -> None:
    _first(data)["hypotheses"].append(["ge", "-1" if pick.random() < 0.5 else "1*n + -1000"])


def _least(data: dict[str, Any], pick: random.Random) -> None:
    name = pick.choice(sorted(_first(data)["least"]))
    _first(data)["least"][name] = 1000


def _fact(data: dict[str, Any], pick: random.Random) -> None:
    _first(data)["facts"].append({"given": [], "goal": ["ge", "1*n + -5"]})


def _no_derivation(data: dict[str, Any], pick: random.Random) -> None:
    data["derivations"].pop()


def _other_rule(data: dict[str, Any], pick: random.Random) -> None:
    rule = data["rule"]
    rule["rhs"] = [rule["rhs"][0].replace("x", "Mul(x, 2.0)", 1) if "x" in rule["rhs"][0] else "MatMul(a, Mul(c, 2.0))"]


def _verdict(data: dict[str, Any], pick: random.Random) -> None:
    data["verdict"]["verdict"] = "tested"


def _step(data: dict[str, Any], pick: random.Random) -> None:
    value = copy.deepcopy(_first(data)["left"][:1])
    _first(data)["steps"].append({"kind": pick.choice(["drop", "lemma"]), "before": value, "after": []})


def _smt(data: dict[str, Any], pick: random.Random) -> None:
    data["smt2"] = hashlib.sha256(b"other").hexdigest()


def _version(data: dict[str, Any], pick: random.Random) -> None:
    data[pick.choice(["version", "format"])] = 2


TAMPERINGS: list[Callable[[dict[str, Any], random.Random], None]] = [
    _coefficient, _bound, _dropped_monomial, _factor, _hypothesis, _least, _fact, _no_derivation, _other_rule, _verdict,
    _step, _smt, _version,
]  # fmt: skip


@pytest.mark.parametrize("seed", range(52))
def test_tampered_certificates_are_rejected(certificates: Path, tmp_path: Path, seed: int) -> None:
    pick = random.Random(seed)
    name = sorted(RULES)[seed % len(RULES)]
    data = json.loads((certificates / f"{name}.json").read_text())
    TAMPERINGS[seed % len(TAMPERINGS)](data, pick)
    (tmp_path / "c.json").write_text(json.dumps(data))
    (tmp_path / "c.smt2").write_text((certificates / f"{name}.smt2").read_text())
    result = check_certificate(tmp_path / "c.json")
    assert not result.valid, TAMPERINGS[seed % len(TAMPERINGS)].__name__


@pytest.mark.parametrize(
    "script", ["", "(set-logic QF_NIA)\n", "(set-logic QF_NIA)\n(push 1)\n(check-sat)\n(pop 1)\n",
               "(set-logic QF_NIA)\n(assert false)\n(push 1)\n(check-sat)\n(pop 1)\n",
               "(push 1)\n(assert false)\n(check-sat)\n(pop 1)\n"],
)  # fmt: skip
def test_empty_or_hollow_smt_files_are_rejected(certificates: Path, tmp_path: Path, script: str) -> None:
    data = json.loads((certificates / "relu.json").read_text())
    data["smt2"] = hashlib.sha256(script.encode()).hexdigest()
    (tmp_path / "c.json").write_text(json.dumps(data))
    (tmp_path / "c.smt2").write_text(script)
    assert not check_certificate(tmp_path / "c.json").valid


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": "superopt.certificate", "version": 1}', "\x00"])
def test_garbage_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_text(text)
    assert not check_certificate(tmp_path / "c.json").valid
    assert not check_certificate(tmp_path / "missing.json").valid
