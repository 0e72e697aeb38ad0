"""Rows of a rule file: one rule, or a schema: rules that one text states of several operators, axes or shapes.

A schema is a row with ``each``: a table for every rule, with the rule's id and what stands for the letters of the text.

    [[rule]]
    forall = { x = "f<A>" }
    lhs = ["<F>(Reshape(x, shape=<B>))"]
    rhs = ["Reshape(<F>(x), shape=<B>)"]
    each = [
        { id = "reshape-02ab", A = "[m, n]", B = "[m*n]", F = "Relu" },
        { id = "reshape-77c1", A = "[m, n]", B = "[m*n]", F = "Erf" },
    ]

Every member is a rule of its own: with its own proof, verdicts and price. The rows are what a person reads.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from superopt.rules.grammar import format_rule
from superopt.rules.rule import Rule
from superopt.rules.scanner import RuleError

__all__ = ["expanded", "substituted", "toml_rows"]

_OPERATOR, _OTHERS = "F", "ABCDE"
MOST_LETTERS = 4  # of a schema, of which one for an operator: with more, its text says less than its members do
_OWN = ("id", "origin")  # of a member
_PLACES = ("where", "lhs", "rhs")  # of a row's texts, behind its types
_TOKEN = re.compile(r'\[[^\[\]]*\]|"[^"]*"|[A-Za-z_]\w*|-?\d+(?:\.\d+)?(?:e-?\d+)?|\s+|.')
_LETTER = re.compile(r"<([A-Z])>")


def substituted(row: Mapping[str, object], where: str) -> list[Mapping[str, object]]:
    """The row once for every table of its ``each``, with ``<KEY>`` in its texts replaced by the table's text.

    Raises:
        RuleError: ``each`` is not a list of tables of texts.
    """
    tables = row.get("each")
    if tables is None:
        return [row]
    if not isinstance(tables, list) or not tables or not all(isinstance(t, dict) for t in tables):
        raise RuleError("each must be a list of tables", where=where)
    if not all(isinstance(value, str) for table in tables for value in table.values()):
        raise RuleError("a table of each has something that is no text", where=where)
    text = json.dumps({k: v for k, v in row.items() if k != "each"})
    return [json.loads(_filled(text, table)) for table in tables]


def _filled(text: str, table: Mapping[str, str]) -> str:
    for key, value in table.items():
        text = text.replace(f"<{key}>", json.dumps(value)[1:-1])
    return text


def expanded(row: Mapping[str, object], where: str) -> list[Mapping[str, object]]:
    """The rows of single rules that a row stands for; ``id`` and ``origin`` of a table are its rule's.

    Raises:
        RuleError: ``each`` is not a list of tables of texts, or a letter of the text is in none of a table's.
    """
    rows = substituted(row, where)
    if "each" not in row:
        return rows
    tables = row["each"]
    assert isinstance(tables, list)
    text = json.dumps({k: v for k, v in row.items() if k != "each"})
    made: list[Mapping[str, object]] = []
    for number, (one, table) in enumerate(zip(rows, tables, strict=True), 1):
        left = _LETTER.search(json.dumps([one.get(place) for place in ("forall", *_PLACES)]))
        if left:
            raise RuleError(f"table {number} of each does not say what {left[0]} is", where=where)
        spare = sorted(k for k in table if k not in _OWN and f"<{k}>" not in text)
        if spare:
            raise RuleError(f"nothing in the row is <{spare[0]}>, which table {number} of each says", where=where)
        made.append({**one, **{k: table[k] for k in _OWN if k in table}})
    return made


@dataclass(frozen=True)
class _Member:
    """A rule as texts by place in the row, and their tokens, of which some may differ within a schema."""

    row: Mapping[str, object]
    tokens: tuple[str, ...]

    @cached_property
    def shape(self) -> tuple[str, ...]:
        """What a schema's members have in common: tokens, with a mark for an operator, a number, a list or a text."""
        return tuple(map(_kind, self.tokens, (*self.tokens[1:], "")))

    @property
    def alone(self) -> bool:
        return bool(_LETTER.search("".join(self.tokens)))


def _kind(token: str, following: str) -> str:
    if token[0] in '["' or re.match(r"-?\d", token):
        return _OTHERS[0]
    return _OPERATOR if token[0].isupper() and following == "(" else token


_END = "\n"  # of a text among the tokens; no text holds it


def _member(rule: Rule) -> _Member:
    row = format_rule(rule)
    tokens: list[str] = []
    for text in _texts(row):
        tokens += [*_TOKEN.findall(text), _END]
    return _Member(row, tuple(tokens))


def _texts(row: Mapping[str, object]) -> Iterator[str]:
    """Every text of a row, in order, each with the name of its place."""
    forall = row["forall"]
    assert isinstance(forall, dict)
    yield from (f"forall {name} {text}" for name, text in forall.items())
    for place in _PLACES:
        texts = row[place]
        assert isinstance(texts, list)
        yield from (f"{place} {text}" for text in texts)


def _letters(members: Sequence[_Member]) -> list[tuple[int, ...]]:
    """The positions of tokens that differ within a schema; those that always agree together."""
    columns: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for position, column in enumerate(zip(*(m.tokens for m in members), strict=True)):
        if len(set(column)) > 1:
            columns[column].append(position)
    return [tuple(positions) for positions in columns.values()]


def _is_schema(members: Sequence[_Member]) -> bool:
    letters = _letters(members)
    return len(letters) <= MOST_LETTERS and sum(members[0].shape[p[0]] == _OPERATOR for p in letters) <= 1


def _schemas(rules: Iterable[Rule]) -> list[list[_Member]]:
    """The rules in schemas of at most ``MOST_LETTERS`` letters, greedily by id: the same rules, the same schemas."""
    found: dict[object, list[list[_Member]]] = defaultdict(list)
    for rule in sorted(rules, key=lambda r: r.id):
        member = _member(rule)
        key = rule.id if member.alone else member.shape
        for schema in found[key]:
            if _is_schema([*schema, member]):
                schema.append(member)
                break
        else:
            found[key].append([member])
    return sorted((f for schemas in found.values() for f in schemas), key=lambda f: str(f[0].row["id"]))


def toml_rows(rules: Iterable[Rule]) -> Iterator[str]:
    """The rows of a file that holds the rules: schemas where texts are alike, by the id of the first rule of each."""
    for members in _schemas(rules):
        yield _single(members[0].row) if len(members) == 1 else _schema(members)


def _single(row: Mapping[str, object]) -> str:
    lines = ["[[rule]]", f"id = {_quoted(str(row['id']))}", *_body(row)]
    if row["origin"]:
        lines.append(f"origin = {_quoted(str(row['origin']))}")
    return "\n".join(lines) + "\n"


def _schema(members: Sequence[_Member]) -> str:
    tokens = list(members[0].tokens)
    others = iter(_OTHERS)
    tables: list[dict[str, str]] = [{} for _ in members]
    for positions in _letters(members):
        letter = _OPERATOR if members[0].shape[positions[0]] == _OPERATOR else next(others)
        for table, member in zip(tables, members, strict=True):
            table[letter] = member.tokens[positions[0]]
        for position in positions:
            tokens[position] = f"<{letter}>"
    origins = {str(m.row["origin"]) for m in members}
    lines = ["[[rule]]", *_body(_row_of("".join(tokens)))]
    if len(origins) == 1 and origins != {""}:
        lines.append(f"origin = {_quoted(*origins)}")
    lines.append("each = [")
    for table, member in zip(tables, members, strict=True):
        own = {"id": str(member.row["id"]), **dict(sorted(table.items()))}
        own |= {"origin": str(member.row["origin"])} if len(origins) > 1 else {}
        lines.append("    { " + ", ".join(f"{k} = {_quoted(v)}" for k, v in own.items()) + " },")
    return "\n".join([*lines, "]"]) + "\n"


def _row_of(text: str) -> dict[str, object]:
    """The row whose texts, with their places, are the lines."""
    forall: dict[str, str] = {}
    sides: dict[str, list[str]] = {place: [] for place in _PLACES}
    for line in text.split(_END)[:-1]:
        place, _, rest = line.partition(" ")
        if place == "forall":
            name, _, scheme = rest.partition(" ")
            forall[name] = scheme
        else:
            sides[place].append(rest)
    return {"forall": forall, **sides}


def _body(row: Mapping[str, object]) -> list[str]:
    """The lines of ``forall``, ``where``, ``lhs`` and ``rhs``."""
    forall = row["forall"]
    assert isinstance(forall, dict)
    lines = ["forall = { " + ", ".join(f"{n} = {_quoted(s)}" for n, s in forall.items()) + " }"]
    for key in _PLACES:
        texts = row[key]
        assert isinstance(texts, list)
        if texts or key != "where":
            body = ", ".join(map(_quoted, texts))
            long = len(body) > 100 and len(texts) > 1
            inner = "\n" + "".join(f"    {_quoted(t)},\n" for t in texts) if long else body
            lines.append(f"{key} = [{inner}]")
    return lines


def _quoted(text: str) -> str:
    """A TOML string: literal where it holds double quotes and nothing else odd, else basic."""
    if '"' in text and "'" not in text and text.isprintable():
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False)
