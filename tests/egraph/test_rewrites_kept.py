"""What is kept between runs: the same as what is made, and never taken from a file that is not to be trusted."""

from __future__ import annotations

import gc
import hashlib
import pickle
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from rules_for_tests import rules

from superopt.egraph import rule_compiler
from superopt.ir.disk_cache import load_object, store_object
from superopt.ir.interpreter_settings import rarely_collected
from superopt.ir.size_polynomial import SizePolynomial, sym
from superopt.ir.terms import OperatorTerm, VariableTerm
from superopt.rules.library import CLASSES, cached_rules, load_library, write_rules
from superopt.rules.typing import DIGEST, meaning_digest

TERM = OperatorTerm("Relu", (VariableTerm("x"),))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path))
    return tmp_path


def test_what_is_kept_comes_back(cache):
    store_object("terms", "one", [TERM], 2)
    assert load_object("terms", "one", (OperatorTerm, VariableTerm)) == [TERM]
    assert load_object("terms", "two", (OperatorTerm, VariableTerm)) is None


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_nothing_half_written_stays(cache, monkeypatch, error):
    def full(*arguments):
        raise error

    monkeypatch.setattr(Path, "replace", full)
    with suppress(KeyboardInterrupt):
        assert not store_object("folder", "name", (1, 2), 10)
    assert [p.name for p in cache.rglob("*") if p.is_file()] == []


def test_what_is_equal_is_held_once_and_what_can_change_stays_apart(cache):
    def made():
        size = sym("n") + 1000
        return OperatorTerm("Relu", (VariableTerm("x"),), (("axis", size),)), {"rest": {}}, (True, 1)

    store_object("terms", "many", (made(), made()), 2)
    one, other = load_object("terms", "many", (OperatorTerm, VariableTerm, SizePolynomial))
    assert (one, other) == (made(), made())
    assert one[0] is other[0]
    assert one[1] is not other[1]
    assert one[1]["rest"] is not other[1]["rest"]
    assert one[2][0] is True
    assert type(one[2][1]) is int


def test_the_least_used_files_go(cache):
    for name in "abcd":
        store_object("terms", name, [], 2)
    assert len(list((cache / "terms").iterdir())) == 2


def test_what_another_process_took_away_meanwhile_is_no_fault(cache, monkeypatch):
    for name in "abc":
        store_object("terms", name, [], 9)
    listed = Path.iterdir

    def with_one_that_goes(self):
        yield from listed(self)
        yield self / "gone"

    monkeypatch.setattr(Path, "iterdir", with_one_that_goes)
    assert store_object("terms", "d", [TERM], 2)
    assert load_object("terms", "d", (OperatorTerm, VariableTerm)) == [TERM]


@pytest.mark.parametrize("spoil", ["cut", "flip", "open to others"])
def test_a_file_that_is_damaged_or_open_to_others_is_not_read(cache, spoil):
    store_object("terms", "one", [TERM], 2)
    path = cache / "terms" / "one"
    data = path.read_bytes()
    if spoil == "cut":
        path.write_bytes(data[:-3])
    elif spoil == "flip":
        path.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    else:
        path.chmod(0o666)
    assert load_object("terms", "one", (OperatorTerm, VariableTerm)) is None


def test_reading_makes_only_the_classes_that_were_named(cache):
    store_object("terms", "one", [TERM], 2)
    assert load_object("terms", "one", (VariableTerm,)) is None
    payload = pickle.dumps(Path("x"))  # a class that nobody named, with a valid checksum
    head = b"superopt.kept/1 " + hashlib.sha256(payload).hexdigest().encode() + b"\n"
    (cache / "terms" / "one").write_bytes(head + payload)
    assert load_object("terms", "one", (OperatorTerm, VariableTerm)) is None


def test_kept_rules_are_those_of_the_files_as_they_are(cache, tmp_path):
    own = {r.id: r for r in rules()[:6]}
    path = tmp_path / "own.toml"
    write_rules(path, own.values())
    asked: list[int] = []

    def read():
        asked.append(1)
        return own

    first, again = cached_rules([path], read), cached_rules([path], read)
    assert asked == [1]
    assert first == again
    fresh = {i: meaning_digest(r.__class__(*(getattr(r, f) for f in r.__dataclass_fields__))) for i, r in own.items()}
    assert {i: r.__dict__[DIGEST] for i, r in again.items()} == fresh
    path.write_text(path.read_text() + "\n# another file\n")
    cached_rules([path], read)
    assert asked == [1, 1]
    assert set(map(type, again.values())) <= set(CLASSES)


def test_moves_that_were_kept_are_those_that_are_made(cache, monkeypatch):
    monkeypatch.setattr(rule_compiler, "_WORTH", 1)
    some = tuple(rules())
    monkeypatch.setattr(rule_compiler, "_alive", {})
    made = rule_compiler._of_all(some, float("inf"), None)
    lifted = rule_compiler._lifted(made, 3, float("inf"), None)
    assert len(list((cache / "moves").iterdir())) == 2
    monkeypatch.setattr(rule_compiler, "_alive", {})
    monkeypatch.setattr(rule_compiler, "_compiled", None)  # not called
    read = rule_compiler._of_all(some, float("inf"), None)
    assert [s.pattern.identity for s in read.sides] == [s.pattern.identity for s in made.sides]
    assert [(s.shortens, s.saves) for s in read.sides] == [(s.shortens, s.saves) for s in made.sides]
    assert read.adjacent == made.adjacent
    again = rule_compiler._lifted(read, 3, float("inf"), None)
    assert {n: s.pattern.identity for n, s in again.items()} == {n: s.pattern.identity for n, s in lifted.items()}


def test_rules_are_prepared_from_what_the_shipped_library_is_prepared_to(cache, monkeypatch):
    """One left out, one of the user's own: only that one is made, and all is as it is when made from nothing."""
    library, (own, *_) = load_library(), rules()
    shipped = rule_compiler._of_all(library.admitted, float("inf"), library.floats())
    own = replace(own, id="own")
    some = (*library.admitted[1:], own)
    made: list[str] = []
    piece = rule_compiler._piece
    monkeypatch.setattr(rule_compiler, "_piece", lambda rule, ways: made.append(rule.id) or piece(rule, ways))
    found = rule_compiler._of_all(some, float("inf"), library.floats())
    assert set(made) <= {"own"}
    assert library.admitted[0].fingerprint not in found.by_fingerprint
    assert all(
        found.by_fingerprint[k] is shipped.by_fingerprint[k]
        for k in found.by_fingerprint.keys() & shipped.by_fingerprint.keys()
    )
    assert not list(cache.glob("moves/*"))  # it takes no longer than to read a file
    few = (*library.admitted[1:40], own)  # too few for the shipped ones to be asked for
    alone = rule_compiler._of_all(few, float("inf"), library.floats())
    assert len(made) >= 30
    both = alone.by_fingerprint.keys() & found.by_fingerprint.keys()
    assert len(both) >= 30
    for one, other in ((alone.by_fingerprint[key], found.by_fingerprint[key]) for key in both):
        assert [s.pattern.identity for s in one.sides] == [s.pattern.identity for s in other.sides]
        assert (one.conditions, one.adjacent, len(one.groups)) == (other.conditions, other.adjacent, len(other.groups))
    parts, before = (
        rule_compiler._lifted(found, 3, float("inf"), library.floats()),
        rule_compiler._lifted(shipped, 3, float("inf"), None),
    )
    assert {s.pattern.identity for s in parts.values()} <= {s.pattern.identity for s in before.values()}
    assert len(parts) >= len(before) - 20


def test_the_collector_is_as_it_was_afterwards():
    before = gc.get_threshold()
    with rarely_collected(), rarely_collected():
        assert gc.get_threshold()[0] >= before[0]
    assert gc.get_threshold() == before
