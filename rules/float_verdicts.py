"""What floating point says of rules: a verdict for each direction and element type, beside the one over the reals.

``rules/floats.json`` holds them by a digest of the rule's text and of its operators' meanings; only
:mod:`superopt.verifier.floats.verdict_search` writes it. This module is the data, and what reads it: search asks a
verdict what must hold at a match, and knows nothing of how it was found.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from superopt.formats.safe_file_access import replace_file
from superopt.ir.disk_cache import code_digest, load_object, store_object
from superopt.ir.types import DType
from superopt.rules.canonical import rule_text
from superopt.rules.rule import Rule
from superopt.rules.scanner import RuleError
from superopt.rules.typing import meaning_digest

__all__ = [
    "FLOATS", "GENEROUS", "HARMFUL", "METHOD", "MODES", "MOST_ERROR", "UNKNOWN", "Directions", "FloatVerdict",
    "FloatVerdictStore", "SafeConditions", "float_key", "read_floats", "row_of", "verdict_in", "write_floats",
]  # fmt: skip

FLOATS = "floats.json"
METHOD = 1  # of the search for verdicts; another number, and every rule is looked at again
TEXT = "text_digest"  # where a rule that was kept has the digest of its own text
MODES = ("strict", "standard", "fast")
# By mode: the largest error that algorithms with fewer multiplications may leave a result with, relative to an output's
# largest element, against float64.
MOST_ERROR: Mapping[str, float] = {"strict": 0.0, "standard": 1e-5, "fast": 1e-4}
Directions = Mapping[str, Mapping[str, "FloatVerdict"]]  # "forward", "backward" → type → verdict
# A window that holds magnitudes from 10⁻⁶ to 10⁶ is one that the check's inputs, of several magnitudes, would leave
# first: it need not be known to hold before. float16 has no such window: there it must be known.
GENEROUS = (-20, 20)
# What infinite operands may do to a target that shows; the rest (a nan that is dropped) hides what went wrong.
HARMFUL = frozenset({"infinite or nan where the source is finite", "nan where the source is infinite"})


@dataclass(frozen=True)
class SafeConditions:
    """Conditions under which a direction is safe, all of which must hold.

    Attributes:
        rounded: variables whose elements must be results of inexact arithmetic: then one unit of rounding of them
            explains what the other side does to the result. Inputs and weights are exactly what they are.
        window: variable → least and largest exponent of its nonzero elements (2^low ≤ |v| < 2^(high+1)).
        finite: no operand may be infinite or nan.
        regular: operands must be constants, or made by arithmetic that has no pole: the source, which rounds nothing,
            would keep infinities and nan apart.
    """

    rounded: tuple[str, ...] = ()
    window: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    finite: bool = False
    regular: bool = False

    def __hash__(self) -> int:
        return hash((self.rounded, tuple(sorted(self.window.items())), self.finite, self.regular))

    @property
    def generous(self) -> bool:
        """Whether the window is one that ordinary data does not leave."""
        return all(low <= GENEROUS[0] and high >= GENEROUS[1] for low, high in self.window.values())

    def __str__(self) -> str:
        parts = ["operands that are finite by how they are made"] if self.regular else []
        parts += [f"{', '.join(self.rounded)} rounded already"] if self.rounded else []
        parts += [f"2^{low} ≤ |{name}| < 2^{high + 1}" for name, (low, high) in sorted(self.window.items())]
        return " and ".join(parts)


@dataclass(frozen=True)
class FloatVerdict:
    """What was found of a direction in a type.

    Attributes:
        verdict: ``safe``, ``conditional``, ``unsafe``, or ``unknown`` where it could not be looked at.
        ways: of a conditional one: any of these makes it safe.
        exact: both sides are the same float operations, in another place or order of a kernel's sum.
        moderate: no infinity or ``nan`` from moderate numbers where the source has none.
        specials: what differs where an operand is infinite or ``nan``; empty: nothing.
        ratio: the largest error found, in units of what the source's own rounding may do.
        worst: the point at which it was found, as JSON data.
    """

    verdict: str
    alternatives: tuple[SafeConditions, ...] = ()
    exact: bool = False
    moderate: bool = True
    specials: str = ""
    ratio: float = 0.0
    worst: Mapping[str, object] = field(default_factory=dict, hash=False)

    def alternatives_in(self, mode: str) -> tuple[SafeConditions, ...]:
        """The conditions of which a mode wants one; none: the direction is not used at all.

        ``strict``: what is safe whatever the operands, infinities and ``nan`` too. ``standard``: also under
        conditions. ``fast``: also what is only true of reals, unless moderate numbers become infinite or ``nan``.
        """
        if mode == "strict":
            return (SafeConditions(),) if self.verdict == "safe" and not self.specials else ()
        if mode == "fast":
            return (SafeConditions(),) if self.moderate else self.alternatives
        alternatives = (SafeConditions(),) if self.verdict == "safe" else self.alternatives
        return tuple(replace(w, finite=True) for w in alternatives) if self.harmful else alternatives

    @property
    def harmful(self) -> bool:
        """Whether an infinite operand makes ``nan``, or infinite what was finite: a mask of −∞ is such an operand."""
        return not HARMFUL.isdisjoint(self.specials.split("; "))

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        text = self.verdict
        if self.exact:
            text += ", the same operations"
        if self.alternatives:
            text += f" on {'; or on '.join(map(str, self.alternatives))}"
        if self.ratio:
            text += f"; at worst {self.ratio:g} of what the source's own rounding may do"
        return f"{text}; infinite or nan operands: {self.specials}" if self.specials else text

    def as_data(self) -> dict[str, Any]:
        """As JSON data."""
        data: dict[str, Any] = {"verdict": self.verdict}
        if self.exact:
            data["exact"] = True
        if not self.moderate:
            data["moderate"] = False
        if self.specials:
            data["specials"] = self.specials
        if self.ratio:
            data["ratio"] = self.ratio
        if self.alternatives:
            data["ways"] = [
                {
                    "rounded": list(w.rounded), "window": {n: list(r) for n, r in sorted(w.window.items())},
                    **({"regular": True} if w.regular else {}),
                }
                for w in self.alternatives
            ]  # fmt: skip
        if self.worst:
            data["worst"] = dict(self.worst)
        return data

    @staticmethod
    def of(data: Mapping[str, Any]) -> FloatVerdict:
        """From JSON data.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        alternatives = tuple(
            SafeConditions(
                tuple(map(str, w["rounded"])), {str(n): (int(r[0]), int(r[1])) for n, r in w["window"].items()},
                regular=bool(w.get("regular")),
            )
            for w in data.get("ways", ())
        )  # fmt: skip
        return FloatVerdict(
            str(data["verdict"]), alternatives, bool(data.get("exact")), bool(data.get("moderate", True)),
            str(data.get("specials", "")), float(data.get("ratio", 0.0)), dict(data.get("worst", {})),
        )  # fmt: skip


FOLDER = "library"  # of what is kept between runs
KEPT = 8  # files: rules and verdicts of other versions of superopt, and of experiments
UNKNOWN = FloatVerdict("unknown", moderate=False)


@dataclass(frozen=True)
class FloatVerdictStore:
    """Verdicts of rules by key (:func:`float_key`), and the mode in which they are read."""

    store: Mapping[str, Directions] = field(default_factory=dict)
    mode: str = "standard"

    @cached_property
    def digest(self) -> str:
        """Equal for verdicts of which a mode makes the same, in the same mode."""
        rows = sorted(
            (key, way, str(name), v.verdict, v.alternatives, v.moderate, v.specials)
            for key, row in self.store.items() for way, by in row.items() for name, v in by.items()
        )  # fmt: skip
        return hashlib.sha256(f"{self.mode} {rows}".encode()).hexdigest()

    def verdict(self, rule: Rule, *, backward: bool, dtype: DType) -> FloatVerdict:
        """Of a direction in a type."""
        return verdict_in(self.store.get(float_key(rule), {}).get("backward" if backward else "forward", {}), dtype)

    def alternatives(self, rule: Rule, *, backward: bool) -> dict[DType, tuple[SafeConditions, ...]]:
        """What the mode wants of a match of a direction, by element type."""
        types = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64)
        return {d: self.verdict(rule, backward=backward, dtype=d).alternatives_in(self.mode) for d in types}


def verdict_in(by_type: Mapping[str, FloatVerdict], dtype: DType) -> FloatVerdict:
    """A direction's verdict in a type: float64 is as float32, whose windows are the narrower ones, unless it has one
    of its own."""
    as_single = (DType.FLOAT64, DType.FLOAT32) if dtype == DType.FLOAT64 else (dtype,)
    return next((by_type[name] for name in (*map(str, as_single), "any") if name in by_type), UNKNOWN)


def float_key(rule: Rule) -> str:
    """SHA-256 over the rule's text, what its operators mean, and the method: a changed rule has no verdict.

    Raises:
        RuleError: the rule is not well-formed.
    """
    text = rule.__dict__.get(TEXT)
    if not isinstance(text, str):
        text = rule.__dict__[TEXT] = hashlib.sha256(rule_text(rule).encode()).hexdigest()
    return hashlib.sha256(f"{METHOD} {text} {meaning_digest(rule)}".encode()).hexdigest()


_read: dict[tuple[str, int, int], dict[str, Directions]] = {}


def read_floats(path: Path) -> dict[str, Directions]:
    """The verdicts of a ``floats.json``, by key; none where there is no file.

    Raises:
        RuleError: the file is not a store of such verdicts, or was changed by hand.
    """
    if not path.exists():
        return {}
    stamp = (str(path), path.stat().st_mtime_ns, path.stat().st_size)
    if stamp not in _read:
        _read.clear()
        _read[stamp] = _cached_verdicts(path)
    return _read[stamp]


def _cached_verdicts(path: Path) -> dict[str, Directions]:
    """The verdicts as an earlier run read this very file with this code, or as it is read now."""
    content = path.read_bytes()
    name = hashlib.sha256(code_digest("rules").encode() + content).hexdigest()
    found = load_object(FOLDER, name, (FloatVerdict, SafeConditions))
    if isinstance(found, dict):
        return found
    made = _store(path)
    if path.read_bytes() == content:  # else the file has changed meanwhile
        store_object(FOLDER, name, made, KEPT)
    return made


def _store(path: Path) -> dict[str, Directions]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != "superopt.floats" or data["version"] != 1:
            raise RuleError("not a superopt.floats file of version 1", where=str(path))
        if data["seal"] != _seal(data["rules"]):
            raise RuleError("was changed by hand", where=str(path), hint="`superopt rules floats --all` makes it anew")
        return {str(k): directions_of(row) for k, row in data["rules"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RuleError(f"not a store of float verdicts: {error}", where=str(path)) from error


def directions_of(row: Mapping[str, Any]) -> Directions:
    """One row's verdicts from JSON data."""
    return {
        way: {str(t): FloatVerdict.of(v) for t, v in row[way].items()} for way in ("forward", "backward") if way in row
    }


def row_of(rule_id: str, directions: Directions) -> dict[str, Any]:
    """One row as JSON data."""
    return {"id": rule_id, **{w: {t: v.as_data() for t, v in by.items()} for w, by in directions.items()}}


def write_floats(path: Path, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Write rows (JSON data, by key), sorted by rule id, one a line; whole or not at all."""
    ordered = sorted(rows.items(), key=lambda item: (str(item[1].get("id", "")), item[0]))
    lines = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v, sort_keys=True)}" for k, v in ordered)
    head = f'{{"format": "superopt.floats", "version": 1, "seal": "{_seal(dict(rows))}", "rules": {{\n'
    replace_file(path, f"{head}{lines}\n}}}}\n".encode(), force=True)


def _seal(rows: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(rows, sort_keys=True, default=dict).encode()).hexdigest()
