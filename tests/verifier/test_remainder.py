"""Remainders: what is proved of them, with a certificate that replays, and what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from superopt.rules.grammar import parse_rule
from superopt.rules.rule import Rule
from superopt.verifier.certificates.certificate import certify
from superopt.verifier.certificates.checker import check_certificate
from superopt.verifier.exact import testing
from superopt.verifier.prover.prover import prove
from superopt.verifier.verdict import ProvedVerdict, RefutedVerdict

NUMBER = 'ConstantOfShape(dtype="int64", shape=[], value={})'
RANGE = 'Range(delta=1, dtype="int64", limit=m, start=0)'


def rule(left: str, right: str, **forall: str) -> Rule:
    names = {n: s for n, s in forall.items() if f"{n}" in left}
    return parse_rule({"id": "some", "forall": names, "lhs": [left], "rhs": [right]})


ANY = {
    "x": "i[m]<k",
    "y": "i[m]<k",
    "z": "i[m]<k",
    "u": "f[m]",
    "v": "f[m]",
    "m": "int>=1",
    "c": "int>=1",
    "r": "int>=0",
}
C = NUMBER.format("c")


@pytest.mark.parametrize(("left", "right"), [
    ("Mod(Mod(x, y, fmod=1), y, fmod=1)", "Mod(x, y, fmod=1)"),
    ("Mod(Mod(u, v, fmod=1), v, fmod=1)", "Mod(u, v, fmod=1)"),
    (f"Mod(Add(x, {C}), {C}, fmod=1)", f"Mod(x, {C}, fmod=1)"),
    (f"Mod(Sub(x, {C}), {C}, fmod=0)", f"Mod(x, {C}, fmod=0)"),
    (f"Mod(Add({RANGE}, {C}), {C}, fmod=1)", f"Mod({RANGE}, {C}, fmod=1)"),
    (f"Mod({RANGE}, {NUMBER.format('m + r')}, fmod=1)", RANGE),
])  # fmt: skip
def test_proved_and_replayed(left: str, right: str, tmp_path: Path) -> None:
    kinds = {k: v for k, v in ANY.items() if k != "m" or "Range" in left}
    found = rule(left, right, **kinds)
    assert isinstance(prove(found), ProvedVerdict)
    assert isinstance(certify(found, tmp_path), ProvedVerdict)
    assert check_certificate(tmp_path / "some.json").valid


@pytest.mark.parametrize(("left", "right"), [
    ("Mod(Mod(x, y, fmod=1), z, fmod=1)", "Mod(x, y, fmod=1)"),  # another divisor
    (f"Mod(Sub(x, {C}), {C}, fmod=1)", f"Mod(x, {C}, fmod=1)"),  # has the sign of what may be negative now
    ("Mod(Add(u, v), v, fmod=1)", "Mod(u, v, fmod=1)"),
    (f"Mod({RANGE}, {C}, fmod=1)", RANGE),  # may be longer
    (f"Mod(Add(x, {NUMBER.format('r')}), {C}, fmod=1)", f"Mod(x, {C}, fmod=1)"),
])  # fmt: skip
def test_not_proved(left: str, right: str) -> None:
    kinds = {k: v for k, v in ANY.items() if k != "m" or "Range" in left}
    wrong = rule(left, right, **kinds)
    assert not isinstance(prove(wrong), ProvedVerdict)
    assert isinstance(testing.test(wrong), RefutedVerdict)
