"""The library on disk: TOML files of rules, one family each, and the store of their verdicts.

A verdict is kept under a digest of the rule's text *and* of what its operators mean, so a changed rule or meaning
has no verdict until it is checked again. Only :mod:`superopt.verifier` writes verdicts; this module carries them.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from superopt.formats.safe_file_access import replace_file
from superopt.ir.disk_cache import code_digest, load_object, store_object
from superopt.ir.errors import InvalidOption, printable
from superopt.ir.interpreter_settings import rarely_collected
from superopt.ir.size_polynomial import FloorQuotient, SizePolynomial
from superopt.ir.terms import OperatorTerm, OutputTerm, VariableTerm
from superopt.rules.float_verdicts import FLOATS, FOLDER, KEPT, Directions, FloatVerdictStore, float_key, read_floats
from superopt.rules.grammar import format_rule, parse_rule
from superopt.rules.rule import AttributeVariableType, Rule, RulePrecondition, TensorVariableType
from superopt.rules.scanner import RuleError
from superopt.rules.typing import DIGEST, meaning_digest

__all__ = [
    "ADMISSIBLE",
    "BUILT_IN",
    "CLASSES",
    "RuleLibrary",
    "PROOFS",
    "expanded",
    "cached_rules",
    "load_library",
    "parse_file",
    "parse_rows",
    "read_verdicts",
    "substituted",
    "toml_rows",
    "write_rules",
    "write_verdicts",
]


# -- Rows of a rule file -------------------------------------------------------------------------------------------
#
# Rows of a rule file: one rule, or a schema: rules that one text states of several operators, axes or shapes.
#
# A schema is a row with ``each``: a table for every rule, with the rule's id and what stands for the letters of the
# text.
#
#     [[rule]]
#     forall = { x = "f<A>" }
#     lhs = ["<F>(Reshape(x, shape=<B>))"]
#     rhs = ["Reshape(<F>(x), shape=<B>)"]
#     each = [
#         { id = "reshape-02ab", A = "[m, n]", B = "[m*n]", F = "Relu" },
#         { id = "reshape-77c1", A = "[m, n]", B = "[m*n]", F = "Erf" },
#     ]
#
# Every member is a rule of its own: with its own proof, verdicts and price. The rows are what a person reads.


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


# -- The cache of parsed rules -------------------------------------------------------------------------------------
#
# To read and type 1,500 rules takes seconds. The cache depends on the library's files and superopt's code alone;
# whether a rule is admitted is read from ``proofs.json`` each time.


CLASSES: tuple[type, ...] = (
    OperatorTerm,
    AttributeVariableType,
    RulePrecondition,
    SizePolynomial,
    OutputTerm,
    FloorQuotient,
    Rule,
    TensorVariableType,
    VariableTerm,
)


def cached_rules(files: Sequence[Path], read: Callable[[], Mapping[str, Rule]]) -> Mapping[str, Rule]:
    """The rules of these files by id.

    Args:
        files: the library.
        read: how to read them if nothing is kept.

    Raises:
        RuleError: a row is not a rule.
    """
    name = _digest(files)
    found = load_object(FOLDER, name, CLASSES)
    if isinstance(found, list) and all(isinstance(r, Rule) for r in found):
        return {r.id: r for r in found}
    rules = read()
    try:
        for rule in rules.values():
            rule.__dict__[DIGEST] = meaning_digest(rule)
            _ = rule.fingerprint, rule.operators, rule.forward, rule.backward, float_key(rule)  # kept with the rule
    except RuleError:
        return rules  # whoever asks for that rule's verdict is told
    if _digest(files) == name:  # else the files have changed meanwhile
        store_object(FOLDER, name, list(rules.values()), KEPT)
    return rules


def _digest(files: Sequence[Path]) -> str:
    digest = hashlib.sha256(code_digest("rules", "ops", "ir").encode())
    for file in files:
        digest.update(f"\n{file.name}\n".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


# -- The library ---------------------------------------------------------------------------------------------------


BUILT_IN = Path(__file__).parent
PROOFS = "proofs.json"
# The only verdict that lets a rule be used, built-in or the user's own: true in exact trials is not proved.
ADMISSIBLE = frozenset({"proved_all_sizes"})
_MOST_BYTES = 16 * 2**20


@dataclass(frozen=True)
class RuleLibrary(Mapping[str, Rule]):
    """Rules by id, sorted, with their verdicts.

    Attributes:
        rules: by id.
        store: verdicts as JSON data, by digest (:func:`superopt.rules.typing.meaning_digest`).
        chosen: ids that ``--enable`` and ``--disable`` leave, ``None`` for all.
        float_store: verdicts in floating point, by key (:func:`superopt.rules.float_verdicts.float_key`).
    """

    rules: Mapping[str, Rule]
    store: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    chosen: frozenset[str] | None = None
    float_store: Mapping[str, Directions] = field(default_factory=dict)

    def __getitem__(self, rule_id: str) -> Rule:
        return self.rules[rule_id]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.rules))

    def __len__(self) -> int:
        return len(self.rules)

    def __hash__(self) -> int:
        return hash((frozenset(self.rules), self.chosen))

    @cached_property
    def families(self) -> Mapping[str, tuple[Rule, ...]]:
        """Rules by the file they come from."""
        found: dict[str, list[Rule]] = {}
        for rule_id in self:
            found.setdefault(self.rules[rule_id].family, []).append(self.rules[rule_id])
        return {name: tuple(rules) for name, rules in sorted(found.items())}

    @cached_property
    def digests(self) -> Mapping[str, str]:
        """The key of each rule's verdict, by id.

        Raises:
            RuleError: a rule is not well-formed.
        """
        return {rule_id: meaning_digest(self.rules[rule_id]) for rule_id in self}

    @cached_property
    def verdicts(self) -> Mapping[str, Mapping[str, object]]:
        """The stored verdict of each rule that has one, as JSON data, by id."""
        return {i: self.store[d] for i, d in self.digests.items() if d in self.store}

    def verdict_name(self, rule_id: str) -> str:
        """``proved_all_sizes``, ``tested``, … or ``unknown`` where nothing is stored."""
        return str(self.verdicts.get(rule_id, {}).get("verdict", "unknown"))

    @cached_property
    def admitted(self) -> tuple[Rule, ...]:
        """What search may use: the chosen rules whose stored verdict is in :data:`ADMISSIBLE`."""
        chosen = self if self.chosen is None else [i for i in self if i in self.chosen]
        return tuple(self.rules[i] for i in chosen if self.verdict_name(i) in ADMISSIBLE)

    def floats(self, mode: str = "standard") -> FloatVerdictStore:
        """The rules' verdicts in floating point, to be read in a mode of
        :data:`superopt.rules.float_verdicts.MODES`."""
        return self._floats.setdefault(mode, FloatVerdictStore(self.float_store, mode))

    @cached_property
    def _floats(self) -> dict[str, FloatVerdictStore]:
        return {}

    def select(
        self, *, enable: Sequence[str] = (), disable: Sequence[str] = (), beside: Sequence[str] = ()
    ) -> RuleLibrary:  # fmt: skip
        """The library with some rules or families switched on (only these) or off.

        Args:
            enable: ids and families of the only rules that are used.
            disable: ids and families of rules that are not used.
            beside: what can be disabled besides, and may have been meant.

        Raises:
            InvalidOption: no rule or family has a name that was given; the closest name is suggested.
        """
        on = self._named(enable) if enable else frozenset(self)
        return replace(self, chosen=on - self._named(disable, beside))

    def _named(self, names: Iterable[str], beside: Sequence[str] = ()) -> frozenset[str]:
        found: set[str] = set()
        for name in names:
            if name in self.rules:
                found.add(name)
            elif name in self.families:
                found |= {r.id for r in self.families[name]}
            else:
                close = difflib.get_close_matches(name, [*self.rules, *self.families, *beside], 1, 0.5)
                raise InvalidOption(
                    f"no rule or family is called {printable(name)!r}", suggestion=close[0] if close else "",
                    hint="" if close else "`superopt rules list` shows them all",
                )  # fmt: skip
        return frozenset(found)

    def with_verdicts(self, verdicts: Mapping[str, Mapping[str, object]]) -> RuleLibrary:
        """The library with verdicts (JSON data, by rule id) added to its store."""
        added = {self.digests[i]: {"id": i, **{k: v for k, v in d.items() if k != "id"}} for i, d in verdicts.items()}
        return replace(self, store={**self.store, **added})

    def with_floats(self, verdicts: Mapping[str, Directions]) -> RuleLibrary:
        """The library with verdicts in floating point (by rule id) added."""
        added = {float_key(self.rules[i]): v for i, v in verdicts.items()}
        return replace(self, float_store={**self.float_store, **added})


def parse_file(path: Path) -> tuple[Rule, ...]:
    """The rules of one TOML file; its name is their family.

    Raises:
        RuleError: the file cannot be read, is not TOML, or holds a row that is not a rule (says which, and the column).
    """
    rules, errors = parse_rows(path)
    if errors:
        raise next(iter(errors.values()))
    return rules


def parse_rows(path: Path) -> tuple[tuple[Rule, ...], dict[str, RuleError]]:
    """The rules of one TOML file, and what is wrong with the rows that are none, by id or number.

    Raises:
        RuleError: the file cannot be read, or is not TOML.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise RuleError(f"larger than {_MOST_BYTES >> 20} MB", where=str(path))
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RuleError(f"cannot be read: {error}", where=str(path)) from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise RuleError(f"not TOML: {error}", where=str(path)) from error
    unknown = sorted(set(data) - {"rule"})
    rows = data.get("rule", [])
    if unknown or not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
        raise RuleError(
            f"unknown key {printable(unknown[0])!r}" if unknown else "rule is not a list of tables",
            where=str(path), hint="a library file is a list of [[rule]] tables",
        )  # fmt: skip
    rules: list[Rule] = []
    errors: dict[str, RuleError] = {}
    for number, row in enumerate(rows, 1):
        name = str(row.get("id", number))
        try:
            singles = expanded(row, f"{path}, rule {printable(name)}")
        except RuleError as error:
            errors[name] = error
            continue
        for position, single in enumerate(singles, 1):
            own = str(single.get("id", name if len(singles) == 1 else f"{number}.{position}"))
            try:
                rules.append(parse_rule(single, where=f"{path}, rule {printable(own)}", family=path.stem))
            except RuleError as error:
                errors[own] = error
    return tuple(sorted(rules, key=lambda r: r.id)), errors


def load_library(directory: Path | str | None = None, *, built_in: bool = True) -> RuleLibrary:
    """The built-in library, and a folder of the user's own beside it.

    Args:
        directory: a folder of ``*.toml`` files, or one such file, with verdicts in its own ``proofs.json`` if it has
            one. Rules without a verdict are not :attr:`RuleLibrary.admitted`; ``superopt.verifier.admission`` checks
            them.
        built_in: whether to load the rules that come with superopt.

    Raises:
        RuleError: a file cannot be read or a rule does not parse; two different rules have one id.
    """
    library = _built_in() if built_in else RuleLibrary({})
    if directory is None:
        return library
    path = Path(directory)
    if not path.exists():
        raise RuleError("no such folder or file", where=str(path))
    own = _load(path)
    clash = sorted(i for i in own if i in library and not _same(own[i], library[i]))
    if clash:
        raise RuleError(
            f"the rule id {clash[0]!r} is taken by a built-in rule", where=str(path), hint="give it another"
        )
    # what a file says of itself is not evidence: only the built-in store is trusted, the rest is checked again
    return RuleLibrary({**own.rules, **library.rules}, library.store, float_store=library.float_store)


def _same(own: Rule, other: Rule) -> bool:
    """Whether two rules say the same, wherever they were found and in whichever file they stand."""
    return own == replace(other, family=own.family, origin=own.origin)


def _load(path: Path) -> RuleLibrary:
    files = sorted(path.glob("*.toml")) if path.is_dir() else [path]
    if not files:
        raise RuleError("no rules in the folder: it has no *.toml file", where=str(path))
    rules: dict[str, Rule] = {}
    for file in files:
        if file.name == "discovery.toml" and path == BUILT_IN:
            continue  # the configuration of discovery, not rules
        for rule in parse_file(file):
            if rule.id in rules:
                raise RuleError(f"the rule id {rule.id!r} is used twice", where=str(file))
            rules[rule.id] = rule
    return RuleLibrary(rules, read_verdicts(path / PROOFS) if path == BUILT_IN else {})


_loaded: dict[tuple[tuple[str, int, int], ...], RuleLibrary] = {}


def _built_in() -> RuleLibrary:
    """The built-in library, read once and again when a file changes."""
    toml = sorted(BUILT_IN.glob("*.toml"))
    files = [*toml, BUILT_IN / PROOFS, BUILT_IN / FLOATS]
    stamp = tuple((str(f), f.stat().st_mtime_ns, f.stat().st_size) for f in files if f.exists())
    if stamp not in _loaded:
        _loaded.clear()
        with rarely_collected():
            rules = cached_rules(toml, lambda: _load(BUILT_IN).rules)
        _loaded[stamp] = RuleLibrary(
            rules, _cached_verdicts(BUILT_IN / PROOFS), float_store=read_floats(BUILT_IN / FLOATS)
        )
    return _loaded[stamp]


def _cached_verdicts(path: Path) -> dict[str, Mapping[str, object]]:
    """:func:`read_verdicts`, as an earlier run read this very file with this code, or as it is read now."""
    content = path.read_bytes() if path.exists() else b""
    name = hashlib.sha256(code_digest("rules").encode() + content).hexdigest()
    found = load_object(FOLDER, name, ())
    if isinstance(found, dict):
        return found
    made = read_verdicts(path)
    if content and path.read_bytes() == content:  # else the file has changed meanwhile
        store_object(FOLDER, name, made, KEPT)
    return made


def read_verdicts(path: Path) -> dict[str, Mapping[str, object]]:
    """The verdicts of a ``proofs.json``, by digest; none where there is no file.

    Raises:
        RuleError: the file is not a store of verdicts, or was changed by hand.
    """
    if not path.exists():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != "superopt.proofs" or data["version"] != 1:
            raise RuleError("not a superopt.proofs file of version 1", where=str(path))
        if data.get("seal", seal := _seal(data["verdicts"])) != seal:
            raise RuleError("was changed by hand", where=str(path), hint="delete it and prove again")
        return {str(k): dict(v) for k, v in data["verdicts"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RuleError(
            f"not a store of verdicts: {error}", where=str(path), hint="delete it and prove again"
        ) from error


def write_verdicts(path: Path, store: Mapping[str, Mapping[str, object]]) -> None:
    """Write a store, sorted by rule id, one verdict a line; whole or not at all."""
    rows = sorted(store.items(), key=lambda item: (str(item[1].get("id", "")), item[0]))
    lines = ",\n".join(f"  {json.dumps(d)}: {json.dumps(v, sort_keys=True)}" for d, v in rows)
    head = f'{{"format": "superopt.proofs", "version": 1, "seal": "{_seal(dict(store))}", "verdicts": {{\n'
    replace_file(path, f"{head}{lines}\n}}}}\n".encode(), force=True)


def _seal(verdicts: Mapping[str, object]) -> str:
    """A digest by which a hand that edits verdicts is noticed."""
    return hashlib.sha256(json.dumps(verdicts, sort_keys=True, default=dict).encode()).hexdigest()


def write_rules(path: Path, rules: Iterable[Rule], *, heading: str = "") -> None:
    """Write one file, rules that differ in operators, axes or shapes alone as one row; deterministic, and
    :func:`parse_file` gives the same rules back, sorted by id."""
    rows = "\n".join(toml_rows(rules))
    head = "".join(f"# {line}\n" for line in heading.splitlines())
    replace_file(path, (f"{head}\n{rows}" if head else rows).encode(), force=True)
