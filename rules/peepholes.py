"""The rules that a search in one pass applies, chosen by the operators of a model.

A whole search tries every rule of the library. A pass applies three kinds of them:

- rules that recorded results of whole searches rest on, a few hundred. ``python -m lab.peephole_recording`` writes them
to
  ``rules/peepholes.json`` from what ``lab.golden`` recorded;
- rules of which one side has fewer operators than the other, if the model has all operators of the larger side;
- rules that only move and reduce elements, if the model quantises: they lead to kernels of integers.

Which rules are chosen decides what a pass finds, not whether it is right: each is a rule of the library, with its proof
and its verdicts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from functools import cache

from superopt.ir.disk_cache import code_digest, load_object, packed, store_object, unpacked
from superopt.ir.terms import OperatorTerm, Term, postorder
from superopt.ops import moves_or_reduces
from superopt.rules.float_verdicts import FLOATS, FOLDER, KEPT, Directions, FloatVerdict, SafeConditions, float_key
from superopt.rules.library import BUILT_IN, CLASSES, PROOFS, RuleLibrary, load_library
from superopt.rules.rule import Rule
from superopt.rules.typing import meaning_digest

__all__ = [
    "FORMAT", "PEEPHOLES", "VERSION", "only_moves", "peephole_digest", "peephole_library", "recorded_rules",
    "reducing_operators",
]  # fmt: skip

PEEPHOLES = BUILT_IN / "peepholes.json"
FORMAT, VERSION = "superopt.peepholes", 1
_CLASSES: tuple[type, ...] = (*CLASSES, FloatVerdict, SafeConditions)
_Row = tuple[Rule, Mapping[str, object] | None, Directions | None]  # with its verdict, and those in floating point


@cache
def recorded_rules() -> frozenset[str]:
    """Ids of the rules that recorded results rest on.

    Raises:
        ValueError: the file is not such a list.
    """
    data = json.loads(PEEPHOLES.read_text(encoding="utf-8"))
    if not isinstance(data, Mapping) or (data.get("format"), data.get("version")) != (FORMAT, VERSION):
        raise ValueError(f"{PEEPHOLES.name} is not a {FORMAT} file of version {VERSION}")
    return frozenset(data["rules"])


def reducing_operators(rule: Rule) -> Iterator[frozenset[str]]:
    """The operators of each side that the rule may replace by one of fewer operators."""
    for source, target, binds in ((rule.lhs, rule.rhs, rule.forward), (rule.rhs, rule.lhs, rule.backward)):
        before, after = _applied(source), _applied(target)
        if binds and len(after) < len(before):
            yield frozenset(before)


def only_moves(rule: Rule) -> bool:
    """Whether all operators of both sides move or reduce elements."""
    return all(map(moves_or_reduces, (*_applied(rule.lhs), *_applied(rule.rhs))))


def _applied(side: tuple[Term, ...]) -> list[str]:
    return [term.op for term in postorder(*side) if isinstance(term, OperatorTerm)]


def peephole_library(operators: Collection[str]) -> RuleLibrary:
    """The rules of the built-in library for a model with these operators.

    Rules lie in one file by the operators that they need, so that only those of a model are read.

    Raises:
        RuleError: a file of the library cannot be read.
    """
    present = frozenset(operators)
    rules: dict[str, Rule] = {}
    store: dict[str, Mapping[str, object]] = {}
    floats: dict[str, Directions] = {}
    for needed, content in _by_operators().items():
        if not present.issuperset(needed):
            continue
        rows: list[_Row] = unpacked(content, _CLASSES)
        for rule, verdict, directions in rows:
            rules[rule.id] = rule
            if verdict is not None:
                store[meaning_digest(rule)] = verdict
            if directions is not None:
                floats[float_key(rule)] = directions
    return RuleLibrary(dict(sorted(rules.items())), store, float_store=floats)


@cache
def _by_operators() -> Mapping[tuple[str, ...], bytes]:
    """The packed rows by the operators that a model must have; those of recorded results need none."""
    name = peephole_digest()
    found = load_object(FOLDER, name, ())
    if isinstance(found, dict):
        return found
    made = {needed: packed(rows) for needed, rows in _grouped(load_library()).items()}
    if peephole_digest() == name:  # else a file has changed meanwhile
        store_object(FOLDER, name, made, KEPT)
    return made


def _grouped(whole: RuleLibrary) -> dict[tuple[str, ...], list[_Row]]:
    frequent = recorded_rules()
    groups: dict[tuple[str, ...], list[_Row]] = {}
    for rule_id, rule in whole.items():
        row = (rule, whole.verdicts.get(rule_id), whole.float_store.get(float_key(rule)))
        needs: list[tuple[str, ...]] = sorted({tuple(sorted(ops)) for ops in reducing_operators(rule)})
        needs = [()] if rule_id in frequent else needs
        if rule_id not in frequent and only_moves(rule):
            needs.append(("QuantizeLinear",))
        for needed in needs:
            groups.setdefault(needed, []).append(row)
    return groups


def peephole_digest() -> str:
    """Of all that the rules and their verdicts follow from."""
    digest = hashlib.sha256(code_digest("rules", "ops", "ir").encode())
    for file in (*sorted(BUILT_IN.glob("*.toml")), BUILT_IN / PROOFS, BUILT_IN / FLOATS, PEEPHOLES):
        digest.update(f"\n{file.name}\n".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
