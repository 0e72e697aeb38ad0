"""What discovery looks at: a declared vocabulary, as data (``rules/discovery.toml``).

A *theme* is a small vocabulary: typed leaves, operator applications with holes (``A``, ``B``, …) for operands, and a
bound on the number of operators. A declared vocabulary is not a rule: it says which expressions are compared, not
which are equal. Sizes and attributes in it are symbols, so that what is found is stated for symbols from the start.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import tomllib
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from superopt.discovery.vocabulary_generation import generated
from superopt.ir.errors import UsageError, printable
from superopt.ir.terms import OperatorTerm, Term, postorder, variables
from superopt.ops import REGISTRY
from superopt.rules.grammar import parse_scheme, parse_term
from superopt.rules.library import substituted
from superopt.rules.rule import AttributeVariableType, Rule, TensorVariableType, TypeScheme, scalar_value
from superopt.rules.scanner import RuleError

__all__ = [
    "DEFAULT_CONFIG",
    "DEFINITION",
    "HOLES",
    "WEIGHTS",
    "DiscoveryConfig",
    "Template",
    "OperatorVocabulary",
    "load_config",
]

DEFAULT_CONFIG = Path(__file__).parent.parent / "rules" / "discovery.toml"
WEIGHTS = tuple(f"w{c}" for c in "abcdefghijklmnop")  # of left sides that are made of operators alone
DEFINITION = "definition"  # origin of rules that say what a composite operator means
HOLES = ("A", "B", "C", "D", "W", "V", "X", "Y")  # W, V: what depends on weights alone; X, Y: what does not


@dataclass(frozen=True)
class Template:
    """One way to make a bigger term: a term with holes. ``split``: a Split whose parts are the axis' own summands."""

    text: str
    term: Term
    holes: tuple[str, ...]
    split: bool = False

    @staticmethod
    def takes(hole: str, constant: bool) -> bool:
        """Whether what depends on weights alone (``constant``), or does not, may stand in a hole."""
        return constant if hole in "WV" else not constant if hole in "XY" else True

    @property
    def operators(self) -> int:
        """How many operators it has, numbers apart: more than one is an expression that somebody typed."""
        return sum(isinstance(t, OperatorTerm) and scalar_value(t) is None for t in postorder(self.term))

    @property
    def commutative(self) -> bool:
        """Whether the two operands can be exchanged."""
        term = self.term
        return (
            isinstance(term, OperatorTerm)
            and REGISTRY[term.op].commutative
            and len(self.holes) == len(term.args) == 2
            and [str(a) for a in term.args] == list(self.holes)
            and all(self.takes(self.holes[0], c) == self.takes(self.holes[1], c) for c in (False, True))
        )


@dataclass(frozen=True)
class OperatorVocabulary:
    """A vocabulary.

    Attributes:
        name: also the family (file) that its rules go to, unless ``family`` says otherwise.
        operators: the largest number of templates in a term.
        leaves: tensor variables with their types.
        weights: leaves that are known before inference: they get no leading axes where the others do.
        attributes: attribute variables that templates mention.
        vocabulary: the templates. One without holes is a leaf: a constant, or a named expression over weights.
        sizes: ranges from which concrete sizes are drawn, by name; default 2 to 4.
        batch: whether leading axes are added in front of the leaves that are no weights.
        join: whether a rule about a Concat is also kept as a rule with several outputs.
        origin: what the rules say of themselves: "discovered", or "definition" for composite operators.
        base: explored before the others, which start from its rules.
        about: a candidate has one of these operators outside the leaves; empty: any candidate counts. What a
            vocabulary says about its other operators alone is another theme's business.
        broadcast: whether elementwise operators are applied to operands of different shapes (scalars always are).
        weights_alone: whether equalities of what depends on weights alone are looked at.
        shortcuts: whether a rule that pays is also kept where others derive it, but not in two rounds.
        signals: whether rules about images are also proposed with one spatial axis.
        solve: operators of which left sides are made; right sides are solved for
            (:mod:`superopt.discovery.right_side_solver`). Such a theme has no leaves and no vocabulary.
        data: of a theme that solves: ranks of its data.
        simplifies: only rules after which less runs: fewer operators, those that only rename memory last.
        slack: of a theme that solves: what a right side may cost, as a share of its left side.
        records: operators from whose records leaves and vocabulary were generated (:mod:`.vocabulary_generation`).
        instances: assignments of sizes and attributes at which terms are compared, where the configuration's are few.
        biased: of a theme that solves: whether operators also have the first operand that they may lack.
        alternatives: of a theme that solves: an equal is looked for with each way to apply operators to data, however
            many cheaper ones there are.
        branches: of a theme that solves: a left side has each of the operators, and two read the data, each once.
            Chains, and what has fewer operators, are other themes'.
        repeated: of a theme that solves: whether a left side may have an operator more than once.
        single: of a theme that solves: data are one example, an axis of one element in front.
        profile: of a theme that solves: by whose prices a right side has to be cheaper, if not by the roofline's, which
            knows no device: of two ways to put elements in order it cannot say which is faster.
        small: whether elements of leaves that are compared in order are at most 4: beyond that, floats of a function
            that is flat far from 0 are equal, and which of them is the largest is chance.
    """

    name: str
    family: str
    profiles: tuple[str, ...]
    operators: int
    leaves: Mapping[str, TensorVariableType]
    weights: frozenset[str]
    attributes: Mapping[str, AttributeVariableType]
    vocabulary: tuple[Template, ...]
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    batch: bool = True
    join: bool = True
    origin: str = "discovered"
    text: str = ""
    broadcast: bool = True
    base: bool = False
    about: frozenset[str] = frozenset()
    weights_alone: bool = True
    shortcuts: bool = False
    signals: bool = False
    solve: tuple[str, ...] = ()
    data: tuple[int, ...] = (4, 2)
    slack: float = 1.0
    records: tuple[str, ...] = ()
    instances: int = 0
    simplifies: bool = False
    biased: bool = False
    alternatives: bool = False
    branches: bool = False
    repeated: bool = True
    single: bool = False
    profile: str = ""
    small: bool = False

    @property
    def source(self) -> str:
        """Where the theme's rules are from: what a person declared, and what was enumerated or solved for."""
        if self.solve:
            return f"weights solved for, of {', '.join(self.solve)}"
        if self.records:
            return f"enumerated from {', '.join(self.records)}"
        typed = any(t.operators > 1 for t in self.vocabulary)
        return f"enumerated from the vocabulary {self.name}{', in which expressions are typed' if typed else ''}"

    @property
    def forall(self) -> dict[str, TypeScheme]:
        return {**self.leaves, **self.attributes}

    def frame(self) -> Rule:
        """The theme's leaves and attributes as a rule without terms: what names mean here."""
        return Rule(self.name, self.forall, (), (), ())

    def is_weight(self, name: str) -> bool:
        """Whether a leaf, or a variable that generalisation split off from it (``a1`` from ``a``), is a weight."""
        return name in self.weights or (name not in self.leaves and name.rstrip("0123456789") in self.weights)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True)
class DiscoveryConfig:
    """Themes and the effort to spend on each candidate.

    Attributes:
        seed: of every random choice.
        instances: concrete assignments of sizes and attributes at which terms are compared (at least 2).
        trials: exact random trials of each candidate, at sizes of their own.
        prove_seconds: time limit of one proof.
        terms: most terms of one theme; the enumeration stops (and says so) beyond it.
        themes: in order.
    """

    seed: int
    instances: int
    trials: int
    prove_seconds: float
    terms: int
    themes: tuple[OperatorVocabulary, ...]

    @property
    def digest(self) -> str:
        """SHA-256 of everything that decides the result."""
        data = [self.seed, self.instances, self.trials, self.prove_seconds, self.terms, [t.text for t in self.themes]]
        return hashlib.sha256(json.dumps(data).encode()).hexdigest()

    def select(
        self, *, profile: str | None = None, themes: tuple[str, ...] = (), operators: tuple[str, ...] = (),
        most: int | None = None,
    ) -> DiscoveryConfig:  # fmt: skip
        """The configuration cut down to a profile, to themes by name, to operators, or to fewer operators a side.

        Raises:
            UsageError: a name is not one of the configuration's, or nothing is left.
        """
        _refuse_unknown("theme", themes, {t.name for t in self.themes})
        _refuse_unknown("profile", (profile,) if profile else (), {p for t in self.themes for p in t.profiles})
        _refuse_unknown(
            "operator", operators, {op for t in self.themes for v in t.vocabulary for op in _operators(v.term)}
        )
        chosen = []
        for theme in self.themes:
            if (profile and profile not in theme.profiles) or (themes and theme.name not in themes):
                continue
            vocabulary = tuple(t for t in theme.vocabulary if not operators or _operators(t.term) <= set(operators))
            size = min(theme.operators, most or theme.operators)
            if vocabulary or (theme.solve and not operators):
                text = json.dumps([theme.text, [t.text for t in vocabulary], size])
                chosen.append(_changed(theme, vocabulary, size, text))
        if not chosen:
            raise UsageError("no theme of the configuration is selected", hint="look at rules/discovery.toml")
        return DiscoveryConfig(self.seed, self.instances, self.trials, self.prove_seconds, self.terms, tuple(chosen))


def _refuse_unknown(kind: str, names: tuple[str, ...], known: Set[str]) -> None:
    """Refuse names that nothing in the configuration has.

    Raises:
        UsageError: one of them, with the nearest that there is.
    """
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
            raise UsageError(f"no theme has the {kind} {printable(name)!r}" if kind != "theme" else
                             f"there is no theme {printable(name)!r}", hint=hint)  # fmt: skip


def _changed(theme: OperatorVocabulary, vocabulary: tuple[Template, ...], size: int, text: str) -> OperatorVocabulary:
    return replace(theme, vocabulary=vocabulary, operators=size, text=text)


def _operators(term: Term) -> set[str]:
    return {t.op for t in postorder(term) if isinstance(t, OperatorTerm)}


def load_config(path: Path | str | None = None) -> DiscoveryConfig:
    """Read a configuration; the built-in one by default.

    Raises:
        RuleError: the file cannot be read, or a theme does not parse (says which).
    """
    file = DEFAULT_CONFIG if path is None else Path(path)
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RuleError(f"cannot be read: {error}", where=str(file)) from error
    unknown = sorted(set(data) - {"seed", "instances", "trials", "prove_seconds", "terms", "theme"})
    if unknown:
        raise RuleError(f"unknown key {unknown[0]!r}", where=str(file))
    try:
        rows = [row for theme in data["theme"] for row in substituted(theme, str(file))]
        rows = [generated(row) if "enumerate" in row else row for row in rows]
        themes = tuple(_theme(row, f"{file}, theme {row.get('name', n)}") for n, row in enumerate(rows))
        return DiscoveryConfig(
            int(data.get("seed", 0)), max(2, int(data.get("instances", 3))), int(data.get("trials", 8)),
            float(data.get("prove_seconds", 10.0)), int(data.get("terms", 400_000)), themes,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RuleError(f"not a configuration of discovery: {error!r}", where=str(file)) from error


_KEYS = frozenset({
    "name", "family", "profiles", "operators", "leaves", "weights", "attributes", "vocabulary", "sizes", "batch",
    "join", "origin", "broadcast", "base", "about", "weights_alone", "shortcuts", "signals", "solve", "data",
    "slack", "records", "instances", "simplifies", "biased", "alternatives", "branches", "repeated", "single",
    "profile", "small",
})  # fmt: skip


def _theme(row: Mapping[str, object], where: str) -> OperatorVocabulary:
    unknown = sorted(set(row) - _KEYS)
    if unknown:
        raise RuleError(f"unknown key {unknown[0]!r}", where=where, hint=f"keys are {', '.join(sorted(_KEYS))}")
    leaves: dict[str, TensorVariableType] = {}
    attributes: dict[str, AttributeVariableType] = {}
    for key in ("attributes", "leaves"):
        for name, text in _table(row, key).items():
            scheme = parse_scheme(str(text), where=f"{where}, {name}")
            if isinstance(scheme, TensorVariableType):
                leaves[name] = scheme
            else:
                attributes[name] = scheme
    forall: dict[str, TypeScheme] = {**leaves, **attributes}
    vocabulary = tuple(_template(str(t), forall, where) for t in _listed(row, "vocabulary"))
    sizes = {n: (int(v[0]), int(v[1])) for n, v in _table(row, "sizes").items() if isinstance(v, list)}
    name = str(row["name"])
    operators = row.get("operators", 3)
    if not isinstance(operators, int) or operators < 1:
        raise RuleError("operators is a positive integer", where=where)
    solve = tuple(map(str, _listed(row, "solve")))
    made_of = tuple(map(str, _listed(row, "records")))
    _refuse_unknown("operator", solve, set(REGISTRY))
    weights = frozenset(WEIGHTS if solve else map(str, _listed(row, "weights")))
    return OperatorVocabulary(
        name, str(row.get("family", name)), tuple(map(str, _listed(row, "profiles"))), operators, leaves,
        weights, attributes, vocabulary, sizes, bool(row.get("batch", True)),
        bool(row.get("join", True)), str(row.get("origin", "discovered")), json.dumps(row, sort_keys=True),
        bool(row.get("broadcast", True)), bool(row.get("base", False)), frozenset(map(str, _listed(row, "about"))),
        bool(row.get("weights_alone", True)), bool(row.get("shortcuts", False)), bool(row.get("signals", False)),
        solve, tuple(int(str(r)) for r in _listed(row, "data")) or (4, 2), float(str(row.get("slack", 1.0))),
        made_of, int(str(row.get("instances", 0))), bool(row.get("simplifies", False)),
        bool(row.get("biased", False)), bool(row.get("alternatives", False)),
        bool(row.get("branches", False)), bool(row.get("repeated", True)), bool(row.get("single", False)),
        str(row.get("profile", "")), bool(row.get("small", False)),
    )  # fmt: skip


def _table(row: Mapping[str, object], key: str) -> Mapping[str, object]:
    found = row.get(key, {})
    return found if isinstance(found, Mapping) else {}


def _listed(row: Mapping[str, object], key: str) -> list[object]:
    found = row.get(key, [])
    return found if isinstance(found, list) else []


def _template(text: str, forall: Mapping[str, TypeScheme], where: str) -> Template:
    holes = {h: TensorVariableType("f", ()) for h in HOLES}
    term = parse_term(text, {**forall, **holes}, where=f"{where}, vocabulary {text!r}")
    used = tuple(n for n in variables(term) if n in HOLES)
    split = isinstance(term, OperatorTerm) and term.op == "Split" and "split" not in dict(term.attributes)
    return Template(text, term, used, split)
