"""Tokens of the rule grammar, and errors that point at the column."""

from __future__ import annotations

import re
from dataclasses import dataclass

from superopt.ir.errors import UsageError

__all__ = ["RuleError", "Scanner", "Token"]


class RuleError(UsageError):
    """A rule that cannot be read or is not well-formed: says where (file, rule, column) and what was expected."""


@dataclass(frozen=True)
class Token:
    """A piece of the text; ``kind`` is "name", "int", "float", "string", "end" or the symbol itself."""

    kind: str
    text: str
    column: int


_TOKEN = re.compile(
    r"""(?P<space>\s+)|(?P<float>\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)|(?P<int>\d+)
    |(?P<name>[^\W\d]\w*)|(?P<string>"(?:[^"\\]|\\.)*")|(?P<symbol>\.\.\.|//|==|!=|<=|>=|[-+*%/@^()\[\],=<>])""",
    re.VERBOSE,
)


class Scanner:
    """Reads tokens of one text, one ahead.

    Args:
        text: what is parsed.
        where: what the text is (``rule "r", lhs[0]``), for messages.
    """

    def __init__(self, text: str, where: str) -> None:
        self.text = text
        self.where = where
        self._tokens = self._scan()
        self._position = 0

    def _scan(self) -> list[Token]:
        tokens: list[Token] = []
        column = 0
        while column < len(self.text):
            match = _TOKEN.match(self.text, column)
            if match is None:
                raise self.error(column, f"the character {self.text[column]!r} does not belong here")
            kind = match.lastgroup or ""
            if kind != "space":
                tokens.append(Token(match.group() if kind == "symbol" else kind, match.group(), column))
            column = match.end()
        tokens.append(Token("end", "the end", len(self.text)))
        return tokens

    @property
    def next(self) -> Token:
        """The token ahead."""
        return self._tokens[self._position]

    def peek(self) -> Token:
        """The token after the next one."""
        return self._tokens[min(self._position + 1, len(self._tokens) - 1)]

    def take(self) -> Token:
        """The token ahead, consumed."""
        token = self.next
        self._position = min(self._position + 1, len(self._tokens) - 1)
        return token

    def accept(self, kind: str) -> Token | None:
        """The token ahead, consumed, if it is of this kind."""
        return self.take() if self.next.kind == kind else None

    def expect(self, kind: str, what: str = "") -> Token:
        """The token ahead, which must be of this kind.

        Raises:
            RuleError: it is something else.
        """
        if self.next.kind != kind:
            raise self.wrong(what or f"'{kind}'")
        return self.take()

    def wrong(self, expected: str) -> RuleError:
        """The error that something else was expected here."""
        token = self.next
        shown = token.text if token.kind == "end" else repr(token.text)
        return self.error(token.column, f"expected {expected}, found {shown}")

    def error(self, column: int, what: str) -> RuleError:
        """An error that shows the text with a caret under the column (counted from 0 here, from 1 in the message)."""
        start = max(0, column - 80)
        shown = self.text[start : start + 120].replace("\n", " ").replace("\t", " ")
        caret = f"    {shown}\n    {' ' * (column - start)}^"
        return RuleError(f"{what}\n{caret}", where=f"{self.where}, column {column + 1}")
