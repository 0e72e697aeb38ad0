"""Strict JSON with bounds: what Python's own parser would accept, crash on, or take for ever over is refused first."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from typing import NoReturn

from superopt.ir.errors import InvalidModel, printable

__all__ = ["Cursor", "parse_json"]

MAX_DEPTH = 64
MAX_DIGITS = 400  # the longest float64 written out in full has about 330 before its point
# Possessive, and matching unterminated strings and whole runs, so that the scan is linear on any input.
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{}]|[-+.0-9eE]{8,}+', re.DOTALL)


def parse_json(data: bytes) -> object:
    """The JSON value in UTF-8 bytes.

    Raises:
        InvalidModel: not UTF-8, not JSON, nested deeper than 64, a number with more than 400 digits, NaN or Infinity,
            or an object with a repeated key.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidModel(f"is not UTF-8 text (byte {error.start})") from error
    _bound(text)
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except json.JSONDecodeError as error:
        raise InvalidModel(
            f"is not valid JSON: {error.msg}", where=f"line {error.lineno}, column {error.colno}"
        ) from error
    except RecursionError as error:  # the depth was bounded above, but the caller may be deep already
        raise InvalidModel("is nested too deep") from error


def _bound(text: str) -> None:
    depth = 0
    for match in _TOKEN.finditer(text):
        first = text[match.start()]
        if first in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise InvalidModel(f"is nested deeper than {MAX_DEPTH} levels", where=_place(text, match.start()))
        elif first in "]}":
            depth -= 1
        elif first != '"' and match.end() - match.start() > MAX_DIGITS:
            raise InvalidModel(f"holds a number of more than {MAX_DIGITS} digits", where=_place(text, match.start()))


def _place(text: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    return f"line {line}, column {position - text.rfind(chr(10), 0, position)}"


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        raise InvalidModel(f"the key {printable(twice)!r} is given twice in one object")
    return found


def _constant(text: str) -> NoReturn:
    raise InvalidModel(f"{text} is not JSON", hint='write numbers that are not finite as "nan", "inf" or "-inf"')


class Cursor:
    """A JSON value and the pointer (RFC 6901) to it, so that every error says where it is."""

    __slots__ = ("pointer", "value")

    def __init__(self, value: object, pointer: str = "") -> None:
        self.value = value
        self.pointer = pointer

    def fail(self, what: str, hint: str = "") -> NoReturn:
        """Raise InvalidModel at this place."""
        raise InvalidModel(what, where=printable(self.pointer, 200) or "/", hint=hint)

    def expected(self, what: str) -> NoReturn:
        """Raise InvalidModel: something else was expected here."""
        kind = "null" if self.value is None else _KINDS.get(type(self.value), "a value")
        self.fail(f"is {kind}; {what} is expected")

    def members(self, known: frozenset[str], required: frozenset[str] = frozenset()) -> Mapping[str, Cursor]:
        """The members of an object: only known keys and ``x-…``, and all required ones."""
        if not isinstance(self.value, dict):
            self.expected("an object")
        for key in self.value:
            if key not in known and not key.startswith("x-"):
                near = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}, and x-…"
                self.fail(f"the key {printable(key)!r} is not known", hint)
        for key in sorted(required):
            if key not in self.value:
                self.fail(f"the key {key!r} is missing")
        return {k: self._member(k, v) for k, v in self.value.items()}

    def mapping(self) -> Mapping[str, Cursor]:
        """The members of an object with any keys."""
        if not isinstance(self.value, dict):
            self.expected("an object")
        return {self._text(k): self._member(k, v) for k, v in self.value.items()}

    def _member(self, key: str, value: object) -> Cursor:
        return Cursor(value, f"{self.pointer}/{key.replace('~', '~0').replace('/', '~1')}")

    def items(self) -> Iterator[Cursor]:
        """The elements of an array."""
        if not isinstance(self.value, list):
            self.expected("an array")
        return (Cursor(v, f"{self.pointer}/{i}") for i, v in enumerate(self.value))

    def string(self) -> str:
        """A string without lone surrogates (which no other format can hold)."""
        if not isinstance(self.value, str):
            self.expected("a string")
        return self._text(self.value)

    def _text(self, text: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail("holds half of a surrogate pair, which is not text")
        return text

    def integer(self, least: int = -(2**63), most: int = 2**63 - 1) -> int:
        """An integer within bounds."""
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            self.expected("an integer")
        if not least <= self.value <= most:
            self.fail(f"lies outside {least} … {most}")
        return self.value

    def number(self) -> float:
        """A number, or one of "nan", "inf", "-inf"."""
        if isinstance(self.value, str) and self.value in _NOT_FINITE:
            return float(self.value)
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            self.expected("a number")
        try:
            found = float(self.value)
        except OverflowError:
            found = float("inf")
        if found in (float("inf"), float("-inf")):
            self.fail("is too large for a float64")
        return found


_NOT_FINITE = ("nan", "inf", "-inf")
_KINDS = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array", dict: "an object"}
