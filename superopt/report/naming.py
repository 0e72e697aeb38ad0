"""What a rule is called, by its shape; and which rules some words mean.

A name says what happens to the operators that data flows through, from the costlier side to the cheaper: *fold
BatchNormalization into Conv*, *merge parallel Conv*, *move Slice before MatMul*. What only weights flow through is
left out.
Nothing is known of single rules. Well-known rewrites (``docs/tour.toml``: QKV, LoRA …) lead to the rules by which
they derive: that is found by derivation, and recorded by ``superopt rules derive docs/tour.toml --json``.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from superopt.ir.terms import OperatorTerm, OutputTerm, Term, VariableTerm, postorder, variables
from superopt.ops import REGISTRY
from superopt.rules.grammar import format_rule
from superopt.rules.library import RuleLibrary
from superopt.rules.rule import Rule, scalar_value

__all__ = ["KNOWN", "RuleIndex", "rule_name"]

KNOWN = Path(__file__).parent / "known.json"  # well-known rewrites, and the rules by which they derive
_HEAVY = frozenset({"conv", "linear", "attention", "pooling", "reduce", "normalisation"})  # families that others serve
_PARTS = frozenset({"Concat", "Split"})  # they put together and take apart what other operators work on
_SUMS = frozenset({"Add", "Sum", "Sub"})
_GENERATORS = frozenset({"generators"})

# The first word of a name, what else it is called, and how much of a rewrite such a rule is.
_VERBS: Mapping[str, tuple[tuple[str, ...], float]] = {
    "write": (("recognise", "detect", "pattern", "fuse", "as"), 1.0),
    "fold": (("fuse", "absorb", "merge"), 0.95),
    "merge": (("fuse", "combine", "join", "batch", "horizontal", "together", "concat"), 0.9),
    "share": (("merge", "combine", "once", "hoist"), 0.4),
    "drop": (("remove", "eliminate", "cancel", "redundant"), 0.6),
    "replace": (("turn",), 0.5),
    "move": (("push", "swap", "commute", "exchange", "sink", "hoist", "pull"), 0.35),
    "rewrite": ((), 0.3),
}
_STRUCTURES: Mapping[str, tuple[str, ...]] = {
    "parallel": ("branch", "sibling", "shared", "same"),
    "consecutive": ("chain", "sequence", "successive", "compose", "associative", "associativity"),
    "added": ("sum", "residual", "distributive", "distributivity", "distribute", "factor"), "concatenated": ("concat",),
    "batched": ("siamese", "tower"),
}  # fmt: skip
_OPERATORS: Mapping[str, tuple[str, ...]] = {  # what operators are called besides their names and beginnings of these
    "BatchNormalization": ("bn",), "LayerNormalization": ("ln",), "Conv": ("cnn",), "Gelu": ("erf",),
    "ConvTranspose": ("deconvolution", "deconv"), "MatMul": ("linear", "dense", "projection", "product"),
    "Gemm": ("linear", "dense", "projection", "fc", "matmul"), "AveragePool": ("avgpool",), "Swish": ("silu",),
    "GlobalAveragePool": ("gap",), "RMSNormalization": ("rmsnorm",), "Resize": ("upsample", "interpolate"),
    "Concat": ("concatenate",), "ReduceMean": ("average",), "Transpose": ("permute",), "Where": ("select",),
}  # fmt: skip
_SHORT: Mapping[str, tuple[str, ...]] = {  # what names of well-known rewrites are short for
    "qkv": ("query", "key", "value", "attention"), "lora": ("low", "rank", "adapter", "adaptation"),
    "bn": ("batch", "norm"),
}  # fmt: skip
_STOP = frozenset(
    ("a", "an", "and", "as", "at", "by", "for", "in", "into", "is", "its", "of", "on", "one", "the", "to", "with")
)
_PIECE = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_WORD = re.compile(r"[A-Za-z]+|\d+")
_EXTRA, _LED = 0.05, 0.05  # what another word of a name takes from it, and what leading to a well-known rewrite adds
_ANY = 3  # letters from which the beginning of a word stands for it


def rule_name(rule: Rule) -> str:
    """What a rule does, in a few words, in the direction in which it is worth something."""
    left, right = _Side.of(rule.lhs), _Side.of(rule.rhs)
    if rule.backward and (not rule.forward or right.weight > left.weight):
        left, right = right, left
    return _named(left, right)


@dataclass(frozen=True)
class _Side:
    """One side: the applications that data flows through, the one next to the output first; and all there are."""

    roots: tuple[Term, ...]
    spine: tuple[OperatorTerm, ...]
    size: int

    @classmethod
    def of(cls, roots: Sequence[Term]) -> _Side:
        spine: dict[OperatorTerm, None] = {}
        pending = [_below(r) for r in roots]
        while pending:
            term = pending.pop(0)
            if isinstance(term, OperatorTerm) and _works(term) and term not in spine:
                spine[term] = None
                pending += [_below(a) for a in _data(term)]
        every = [t for t in postorder(*roots) if isinstance(t, OperatorTerm) and _works(t)]
        return cls(tuple(_below(r) for r in roots), tuple(spine), len(every))

    @property
    def weight(self) -> tuple[int, int, int]:
        """How much it is to compute: heavy operators, others that data flows through, and those of weights."""
        return len(self.heavy), len(self.spine), self.size

    @property
    def heavy(self) -> list[OperatorTerm]:
        return [a for a in self.spine if REGISTRY[a.op].family in _HEAVY]

    @property
    def operators(self) -> Counter[str]:
        return Counter(a.op for a in self.spine)


def _below(term: Term) -> Term:
    while isinstance(term, OutputTerm):
        term = term.term
    return term


def _works(app: OperatorTerm) -> bool:
    return scalar_value(app) is None and REGISTRY[app.op].family not in _GENERATORS


def _data(app: OperatorTerm) -> list[Term]:
    """The operands of an application that data flows through: the first alone, where the others are its weights."""
    given = [a for a in app.args if a is not None]
    record = REGISTRY[app.op]
    if app.op == "MatMul" and len(given) == 2:
        ours, theirs = (set(variables(g)) for g in given)
        inner = isinstance(_below(given[1]), OperatorTerm) and bool(ours & theirs)
        return (
            given if inner else given[:1] if isinstance(_below(given[0]), OperatorTerm) or _plain(given[1]) else given
        )
    return given[:1] if record.family in ("conv", "linear", "normalisation") else given


def _plain(term: Term) -> bool:
    """Whether a term is a variable, or parts of variables put together: as weights are."""
    below = _below(term)
    return isinstance(below, VariableTerm) or (
        isinstance(below, OperatorTerm) and all(_plain(a) for a in below.args if a is not None)
    )


def _named(left: _Side, right: _Side) -> str:
    before, after = left.operators, right.operators
    heavy = Counter(a.op for a in left.heavy)
    fewer = [op for op, n in heavy.items() if n > 1 and 0 < after[op] < n]
    if fewer:
        return _merge(left, fewer[0], right)
    gone, new = before - after, after - before
    kept = [op for op in heavy if after[op]]
    lost = _words(op for op in gone if op not in _PARTS) or _words(gone)
    if gone and not new and kept and all(op not in gone for op in kept):
        served = next((op for op in kept if not _serves(left, gone, op)), kept[0])
        return f"fold {lost} into {served}"
    if len(right.spine) == 1 and new and len(left.spine) > 1:
        return f"write {lost} as {_words(new)}"
    if gone and not new and all(after[op] for op in gone):
        rest = _words(op for op in before if op not in gone)
        return f"share {lost} across {rest}" if rest else f"merge consecutive {lost}"
    if gone and not new:
        rest = _words(op for op in before if op not in gone)
        return f"drop {lost}" + (f" beside {rest}" if rest else "")
    if gone and new:
        through = _words(op for op in before if op in after)
        return f"replace {lost} by {_words(new)}" + (f" at {through}" if through else "")
    return _moved(left, right)


def _serves(left: _Side, gone: Counter[str], op: str) -> bool:
    """Whether an operator that stays has none of those that go beside it."""
    near = {t.op for a in left.spine if a.op == op for t in map(_below, _data(a)) if isinstance(t, OperatorTerm)}
    near |= {a.op for a in left.spine for t in map(_below, _data(a)) if isinstance(t, OperatorTerm) and t.op == op}
    return not near & set(gone)


def _merge(left: _Side, op: str, right: _Side) -> str:
    apps = [a for a in left.spine if a.op == op]
    over = {t.op for a in apps for t in map(_below, _data(a)) if isinstance(t, OperatorTerm)}
    inputs = {a.args[0] for a in apps}
    how = ""
    if op in over and not any(a.op in (*_SUMS, "Concat") for a in left.spine):
        return f"merge consecutive {op}"
    if len(left.roots) == 1 and (root := left.spine[0]).op in _SUMS:
        how = "added "
    elif len(left.roots) == 1 and root.op == "Concat":
        how = "concatenated "
    shared = len(inputs) < len(apps)
    weights = {a.args[1] for a in apps if len(a.args) > 1}
    batched = not shared and len(weights) == 1 and len(apps) > 1
    kind = "parallel " if shared else "batched " if batched else ""
    others = [o for o in left.operators if o != op and o not in _PARTS and o not in _SUMS and not right.operators[o]]
    return f"merge {how}{kind}{op}" + (f" and {_words(others)}" if others else "")


def _moved(left: _Side, right: _Side) -> str:
    """Both sides have the same operators: which comes earlier now?"""
    if len(left.spine) < 2:
        return f"rewrite {_words(left.operators) or _words(right.operators) or 'values'}"
    first = left.spine[0].op
    last = next((a.op for a in left.spine[1:] if a.op != first), first)
    if first == last:
        return f"rewrite {first}"
    there = [a.op for a in right.spine]
    if there and there[0] != first:
        return f"move {first} before {last}"
    return f"rewrite {_words(left.operators)}"


def _words(names: Iterable[str]) -> str:
    found = list(dict.fromkeys(names))
    return ", ".join(found[:-1]) + " and " + found[-1] if len(found) > 1 else "".join(found)


class RuleIndex:
    """Names of a library's rules, and search among them.

    Args:
        library: whose rules.
        known: well-known rewrites → the rules by which they derive, in the order of derivation.
    """

    def __init__(self, library: RuleLibrary, known: Mapping[str, Sequence[str]] | None = None) -> None:
        self.names: Mapping[str, str] = {i: rule_name(library[i]) for i in library}
        self._library = library
        self._leads: dict[str, list[str]] = {}  # rule → well-known rewrites that derive by it
        for title, rules in (known_rewrites() if known is None else known).items():
            for rule_id in rules:
                self._leads.setdefault(rule_id, []).append(title)

    def known_as(self, rule_id: str) -> Sequence[str]:
        """Well-known rewrites that derive by a rule."""
        return self._leads.get(rule_id, ())

    @cached_property
    def _documents(self) -> Mapping[str, Mapping[str, float]]:
        return {i: self._document(self._library[i], name) for i, name in self.names.items()}

    def _document(self, rule: Rule, name: str) -> Mapping[str, float]:
        """Words by how much they say of a rule."""
        found: dict[str, float] = {}

        def say(words: Iterable[str], much: float) -> None:
            for word in words:
                found[word] = max(found.get(word, 0.0), much)

        verb, *rest = name.replace(",", "").split()
        say([verb], 3.0)
        say(_VERBS[verb][0], 2.0)
        for word in rest:
            say(_operator_words(word) if word in REGISTRY else [word], 3.0)
            say(_STRUCTURES.get(word, ()), 2.5)
            say(_OPERATORS.get(word, ()), 2.5)
        for title in self.known_as(rule.id):
            words = [_stem(w) for w in _WORD.findall(title.lower())]
            say(words, 3.0)
            say((s for w in words for s in _SHORT.get(w, ())), 2.5)
        for op in rule.operators:
            say(_operator_words(op), 1.0)
            say(_OPERATORS.get(op, ()), 0.8)
        say([rule.family], 1.0)
        say(map(str, _WORD.findall(rule.id)), 1.0)
        return found

    @cached_property
    def _texts(self) -> Mapping[str, str]:
        found = {}
        for rule_id in self.names:
            text: dict[str, Any] = format_rule(self._library[rule_id])
            found[rule_id] = " ".join((rule_id, *text["lhs"], *text["rhs"])).lower()
        return found

    @lru_cache(maxsize=256)  # noqa: B019  (one index per library)
    def search(self, words: str) -> Sequence[str]:
        """The rules that some words mean, the likeliest first: those that most of the words fit, and no others.

        Args:
            words: names of operators or their beginnings, what is done to them, or text of the rule.
        """
        asked = [w for w in words.lower().split() if w not in _STOP] or words.lower().split()
        if not asked:
            return list(self.names)
        fits = {word: self._fits(word) for word in asked}
        size = len(self.names)
        rare = {  # what fewer rules have says more, and what was said first
            word: (1.0 - 0.02 * place) * math.log(1.0 + size / (1 + len(found)))
            for place, (word, found) in enumerate(fits.items())
        }
        met = Counter(rule_id for found in fits.values() for rule_id in found)
        most = max(met.values(), default=0)

        def relevance(rule_id: str) -> tuple[float, int, str]:
            score = sum(rare[w] * found[rule_id] for w, found in fits.items() if rule_id in found)
            verb, *rest = self.names[rule_id].split()
            score *= (1.0 + _VERBS[verb][1]) / (1.0 + _EXTRA * len(rest)) * (1.0 + _LED * bool(self.known_as(rule_id)))
            return -score, len(self._texts[rule_id]), rule_id

        return sorted((i for i, n in met.items() if n == most), key=relevance)

    def _fits(self, word: str) -> Mapping[str, float]:
        """The rules that a word fits, and how well."""
        stem = _stem(word)
        found: dict[str, float] = {}
        for rule_id, document in self._documents.items():
            best = max((much * _like(stem, other) for other, much in document.items()), default=0.0)
            if best == 0.0 and word in self._texts[rule_id]:
                best = 0.3
            if best:
                found[rule_id] = best
        return found


def _like(asked: str, said: str) -> float:
    """How well a word stands for another: itself, or one of them begins with the other."""
    if asked == said:
        return 1.0
    if len(asked) >= _ANY and said.startswith(asked):
        return 0.9
    return 0.8 if len(said) > _ANY and asked.startswith(said) else 0.0


@lru_cache(maxsize=1024)
def _operator_words(name: str) -> tuple[str, ...]:
    pieces = [_stem(p.lower()) for p in _PIECE.findall(name)]
    return (name.lower(), *pieces) if len(pieces) > 1 else (name.lower(),)


def _stem(word: str) -> str:
    """A word without the endings of plurals and participles."""
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) > _ANY and not word.endswith("ss"):
            return word[: -len(ending)]
    return word


@lru_cache(maxsize=1)
def known_rewrites() -> Mapping[str, Sequence[str]]:
    """Well-known rewrites and the rules by which they derive, as recorded."""
    return {title: list(chain) for title, chain in json.loads(KNOWN.read_text(encoding="utf-8"))["derived"].items()}
