"""Candidates before the verifier: tested exactly at sizes that discovery did not use, generalised, proved.

Elementwise rules for any rank, and leading axes ``...`` in front of data.

Rules about images as rules about signals: the last spatial axis dropped everywhere. Convolutions and pools mean the
same for any number of spatial axes; rules are stated for a fixed one. A rule that was found for two axes is proposed
for one: a proposal like any other, tested and proved before anybody believes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from superopt.discovery.candidates import joined, restricted, tidied
from superopt.discovery.config import DiscoveryConfig, OperatorVocabulary
from superopt.discovery.generalise import (
    guarded,
    shape_general,
    size_general,
    specialised,
    variable_general,
    well_typed,
    whole_sizes,
)
from superopt.discovery.result_cache import (
    UNBOUNDED,
    DiscoveryResultCache,
    ResourceBounds,
    ResourceBoundsExceeded,
    code_digest,
    digest_of,
)
from superopt.ir.size_polynomial import Dim, substitute, sym, symbols
from superopt.ir.terms import (
    AttributeValue,
    OperatorTerm,
    Term,
    VariableTerm,
    children,
    postorder,
    rebuilt,
    remade,
    variables,
)
from superopt.ir.types import TensorType
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.rules.canonical import rule_text
from superopt.rules.rule import AttributeVariableType, Rule, TensorVariableType, TypeScheme
from superopt.rules.scanner import RuleError
from superopt.rules.typing import meaning_digest, operator_of, type_terms, variable_types
from superopt.verifier.exact.testing import test
from superopt.verifier.prover.prover import prove
from superopt.verifier.verdict import (
    ProvedVerdict,
    RefutedVerdict,
    TestedVerdict,
    UnknownVerdict,
    Verdict,
    kind_of,
    verdict_from_json,
    verdict_to_json,
)

__all__ = ["CandidateProver", "CandidateOutcomes", "any_rank", "leading", "one_axis_less", "with_lead"]


@dataclass
class CandidateOutcomes:
    """What became of candidates."""

    tested: int = 0
    refuted: int = 0
    unknown: int = 0
    proved: int = 0
    near_misses: list[Mapping[str, object]] = field(default_factory=list)
    undecided: list[Mapping[str, object]] = field(default_factory=list)


class CandidateProver:
    """Asks the verifier, remembers its verdicts on disk, and turns candidates into proved rules."""

    def __init__(
        self,
        config: DiscoveryConfig,
        theme: OperatorVocabulary,
        chunks: DiscoveryResultCache,
        bounds: ResourceBounds = UNBOUNDED,
    ) -> None:
        self.config = config
        self.theme = theme
        self.chunks = chunks
        self.bounds = bounds
        self.tally = CandidateOutcomes()

    def rules(self, candidate: Rule) -> list[Rule]:
        """The proved rules that a candidate leads to: most general first, none when it is false or not proved.

        Raises:
            ResourceBoundsExceeded: time or memory is used up; verdicts reached so far are kept.
        """
        turned = replace(candidate, lhs=candidate.rhs, rhs=candidate.lhs)  # the right side may be defined more often
        for version in (candidate, turned):
            if well_typed(version) and self._holds(version, near_miss=version is candidate):
                return self._proved(version)
        for weaker in specialised(candidate):
            if self._holds(weaker, near_miss=False):
                return self._proved(weaker)
        return []

    def _proved(self, candidate: Rule) -> list[Rule]:
        general = whole_sizes(variable_general(candidate, self._quick), self._quick)
        general = size_general(general, self._quick)
        if self.theme.simplifies and (free := self._for_any_shapes(general)) is not None:
            return [free]  # what leaves less to run is wanted so
        every = any_rank(general)
        wide = None if every is None else self._proved_version(every)
        rules = [] if wide is None else [wide]
        kinds = {s.dtype for s in general.tensors.values()}  # a mask may lack leading axes that the data has
        for version in self._versions(candidate, general) if not rules or kinds == {"b", "f"} else ():
            if rules and not version.lead:
                break
            new_rule = self._proved_version(version)
            if new_rule is not None:
                rules.append(new_rule)
        if not self.theme.simplifies and not any(rule.lead for rule in rules):
            free = self._for_any_shapes(general)
            if free is not None:
                return [free]  # of this rank, it says all that the others do
        if self.theme.join:
            for rule in list(rules):
                pair = joined(rule)
                if pair is not None and well_typed(pair) and self._quick(pair):
                    new_rule = self._prove(tidied(pair))
                    if new_rule is not None:
                        rules.append(new_rule)
        return rules + (self._signals(rules) if self.theme.signals else [])

    def _for_any_shapes(self, general: Rule) -> Rule | None:
        """The rule for shapes that only have to have as many elements, if that is more and is proved."""
        wider = shape_general(general, lambda rule: isinstance(self._test(rule, self.config.trials), TestedVerdict))
        return self._prove(tidied(restricted(wider))) if wider != general else None

    def _signals(self, rules: Sequence[Rule]) -> list[Rule]:
        """The same with one spatial axis, where that is true as well."""
        new_rules = []
        for rule in rules:
            shorter = one_axis_less(rule)
            if shorter is not None and well_typed(shorter) and self._quick(shorter):
                proved = self._prove(tidied(shorter))
                if proved is not None:
                    new_rules.append(proved)
        return new_rules

    def _proved_version(self, version: Rule) -> Rule | None:
        return self._prove(tidied(restricted(version))) if self._quick(version) else None

    def _versions(self, candidate: Rule, general: Rule) -> Iterator[Rule]:
        yield from leading(general, self.theme)
        yield general
        if general != candidate:
            apart = size_general(variable_general(candidate, self._quick), self._quick)  # a sum of sizes stays one
            yield from (version for version in (apart, candidate) if version != general)

    def _holds(self, rule: Rule, *, near_miss: bool) -> bool:
        verdict = self._test(rule, self.config.trials)
        self.tally.tested += 1
        if isinstance(verdict, RefutedVerdict):
            self.tally.refuted += 1
            if near_miss:
                self.tally.near_misses.append({"theme": self.theme.name, "text": rule_text(rule),
                                               "counterexample": verdict.counterexample})  # fmt: skip
            return False
        return isinstance(verdict, TestedVerdict)

    def _quick(self, rule: Rule) -> bool:
        return isinstance(self._test(rule, 4), TestedVerdict)

    def _prove(self, rule: Rule) -> Rule | None:
        if not isinstance(self._test(rule, self.config.trials), TestedVerdict):
            return None
        verdict = self._verdict(rule)
        for _ in range(2):
            if not (isinstance(verdict, UnknownVerdict) and verdict.preconditions):
                break
            narrower = guarded(rule, verdict.preconditions)
            if narrower is None or narrower == rule:
                break
            rule, verdict = narrower, self._verdict(narrower)
        if isinstance(verdict, ProvedVerdict):
            self.tally.proved += 1
            return rule
        self.tally.unknown += 1
        self.tally.undecided.append({"theme": self.theme.name, "text": rule_text(rule), "verdict": kind_of(verdict),
                                     "reason": getattr(verdict, "reason", "")})  # fmt: skip
        return None

    def _verdict(self, rule: Rule) -> Verdict:
        limit = self.config.prove_seconds

        def proof() -> Verdict:
            verdict = prove(rule, time_limit=min(limit, self.bounds.left))
            if isinstance(verdict, UnknownVerdict) and self.bounds.passed():
                raise ResourceBoundsExceeded("time")  # more time might have proved it: no verdict to keep
            return verdict

        return self._cached(rule, ["prove", limit], proof)

    def _test(self, rule: Rule, trials: int) -> Verdict:
        seed = self.config.seed
        return self._cached(rule, ["test", trials, seed], lambda: test(rule, seed=seed, trials=trials))

    def _cached(self, rule: Rule, how: list[object], decide: Callable[[], Verdict]) -> Verdict:
        try:
            meaning = meaning_digest(replace(rule, id="", origin="", family=""))
        except RuleError:
            return UnknownVerdict("not well-formed")
        key = digest_of("verdict", code_digest(), how, rule_text(rule), meaning)
        known = self.chunks.get(key)
        if known is not None:
            try:
                return verdict_from_json(known)
            except ValueError:
                pass
        self.bounds.check()
        verdict: Verdict = decide()
        data = {k: v for k, v in verdict_to_json(verdict).items() if k != "seconds"}
        self.chunks.put(key, data)
        return verdict


def any_rank(rule: Rule) -> Rule | None:
    """An elementwise rule over tensors of one shape, booleans among them or not, for tensors of rank 0 to 5; of rank 3
    to 5 where one boolean would stand for true and false alike; ``None`` for other rules.
    """
    shapes = {s.shape for s in rule.tensors.values() if s.shape}
    families = {operator_of(t).family for t in postorder(*rule.lhs, *rule.rhs) if isinstance(t, OperatorTerm)}
    pointwise = families <= {"elementwise", "activation", "generators"}
    scalars = all(
        dict(t.attributes).get("shape") == ()
        for t in postorder(*rule.lhs, *rule.rhs)
        if isinstance(t, OperatorTerm) and operator_of(t).family == "generators"
    )
    if len(shapes) > 1 or not pointwise or not scalars or any(s.lead or s.dtype == "i" for s in rule.tensors.values()):
        return None
    names = tuple(n for n in ("a", "b", "c", "d", "e", "h", "i", "j") if n not in rule.forall)[:3]
    wide = tuple(map(sym, names))
    masked = {s.dtype for s in rule.tensors.values()} == {"b", "f"}
    forall: dict[str, TypeScheme] = {
        n: replace(s, shape=wide if masked else (), lead=True)
        if isinstance(s, TensorVariableType) and (s.shape or not shapes)
        else s
        for n, s in rule.forall.items()
    }
    new_rule = replace(rule, forall=forall)
    return new_rule if well_typed(new_rule) else None


def leading(rule: Rule, theme: OperatorVocabulary) -> Iterator[Rule]:
    """The rule with ``...`` in front of all tensors of the largest rank, and in front of as few as it takes.

    The second is what networks have: a batch of data times weights without a batch. Where a matrix product is involved
    other choices are tried as well; for elementwise operators the broadcasting of a few leading axes has themes of its
    own.
    """
    if not theme.batch or any(s.lead for s in rule.tensors.values()):
        return
    ranks = {n: len(s.shape) for n, s in rule.tensors.items() if s.dtype == "f"}
    largest = max(ranks.values(), default=0)
    widest = [n for n in variables(*rule.lhs, *rule.rhs) if ranks.get(n) == largest]
    if not largest:
        return
    if any(not theme.is_weight(n) for n in widest):
        widest.sort(key=theme.is_weight)
    subsets = [frozenset(widest), frozenset(n for n in widest if not theme.is_weight(n)) or frozenset(widest)]
    if "MatMul" in rule.operators:
        subsets += [frozenset({widest[0], *more}) for r in range(3) for more in combinations(widest[1:], r)]
    found = 0
    for chosen in dict.fromkeys(subsets):
        new_rule = with_lead(rule, chosen)
        if new_rule is not None and well_typed(new_rule):
            yield new_rule
            found += 1
            if found == 2:
                return


def with_lead(rule: Rule, chosen: frozenset[str]) -> Rule | None:
    """The rule with ``...`` in front of these variables, axes counted from the end; ``None`` if it has no types."""
    try:
        types = type_terms((*rule.lhs, *rule.rhs), variable_types(rule))[0]
    except IllTypedOperator:
        return None
    forall: dict[str, TypeScheme] = {
        n: replace(s, lead=True) if n in chosen and isinstance(s, TensorVariableType) else s
        for n, s in rule.forall.items()
    }
    terms: dict[Term, Term] = {}
    wide: set[Term] = set()
    for term in postorder(*rule.lhs, *rule.rhs):
        values = None
        if isinstance(term, OperatorTerm):
            first = next((a for a in term.args if a is not None), None)
            if first in wide:
                values = tuple((k, _from_end(term, k, v, types[first])) for k, v in term.attributes)
        if any(a in wide for a in children(term)) or (isinstance(term, VariableTerm) and term.name in chosen):
            wide.add(term)
        terms[term] = remade(term, terms, values)
    return replace(rule, forall=forall, lhs=tuple(terms[t] for t in rule.lhs), rhs=tuple(terms[t] for t in rule.rhs))


def _from_end(term: OperatorTerm, name: str, value: AttributeValue, first: tuple[TensorType, ...]) -> AttributeValue:
    """Axes counted from the end, shapes and permutations with ``...`` in front."""
    rank = len(first[0].shape or ())
    if name == "perm" and isinstance(value, tuple):
        return ("...", *(v - rank if isinstance(v, int) else v for v in value))
    if name == "shape" and isinstance(value, tuple):
        return ("...", *value)
    if name in ("axis", "axes"):
        if term.op == "Unsqueeze" and isinstance(value, tuple):
            rank += len(value)
        if isinstance(value, tuple):
            return tuple(v - rank if isinstance(v, int) else v for v in value)
        return value - rank if isinstance(value, int) else value
    return value


_RANK = 4
_AXIS = _RANK - 1
_FAMILIES = frozenset({"conv", "pooling"})
_BY_CHANNEL = frozenset({"BatchNormalization", "InstanceNormalization"})
_HALVES = {2: (0,), 4: (0, 2), 8: (0, 1, 2, 4, 5, 6)}  # elements kept: of strides, of pads, of the pads of a Pad


def one_axis_less(rule: Rule) -> Rule | None:
    """The rule with one spatial axis where it has two; ``None`` where it is not about such tensors."""
    if not any(len(s.shape) == _RANK for s in rule.tensors.values()):
        return None
    if rule.lead or not any(_is_spatial(t) for t in postorder(*rule.lhs, *rule.rhs)):
        return None
    try:
        types = type_terms((*rule.lhs, *rule.rhs), variable_types(rule))[0]
    except IllTypedOperator:
        return None
    gone = _binding(rule)
    forall: dict[str, TypeScheme] = {}
    for name, scheme in rule.forall.items():
        if isinstance(scheme, TensorVariableType):
            forall[name] = replace(scheme, shape=tuple(substitute(d, gone) for d in _shorter(scheme.shape)))
        elif scheme.length in (2, 4):
            forall[name] = replace(scheme, length=scheme.length // 2)
        else:
            forall[name] = scheme
    terms = rebuilt((*rule.lhs, *rule.rhs), lambda app, key, value: _value(app, key, value, types, gone))
    lhs, rhs = terms[: len(rule.lhs)], terms[len(rule.lhs) :]
    if lhs == rhs:
        return None
    return restricted(replace(rule, forall=forall, lhs=lhs, rhs=rhs))


def _is_spatial(term: Term) -> bool:
    return isinstance(term, OperatorTerm) and (operator_of(term).family in _FAMILIES or term.op in _BY_CHANNEL)


def _binding(rule: Rule) -> dict[str, Dim]:
    """Sizes of the dropped axis at 1, attributes of it at their least, and the others under their new names."""
    binding: dict[str, Dim] = {}
    for name, scheme in rule.attributes.items():
        if scheme.length == 2:
            binding[f"{name}_1"] = _least(scheme)
        elif scheme.length == 4:
            binding |= dict.fromkeys((f"{name}_1", f"{name}_3"), _least(scheme))
            binding[f"{name}_2"] = sym(f"{name}_1")
    for tensor in rule.tensors.values():
        if len(tensor.shape) == _RANK:
            others = {n for d in tensor.shape[:_AXIS] for n in symbols(d)}
            plain = symbols(tensor.shape[_AXIS]) - rule.attribute_atoms.keys() - others
            binding |= dict.fromkeys(plain, 1)
    return binding


def _least(scheme: AttributeVariableType) -> int:
    return scheme.bound if scheme.relation == ">=" else 1


def _shorter(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The shape without the last spatial axis: of images, of kernels, and of what is broadcast over both axes."""
    if len(shape) == _RANK or (len(shape) == _AXIS and shape[-2:] == (1, 1)):
        return shape[:-1]
    return shape


def _value(
    term: OperatorTerm,
    name: str,
    value: AttributeValue,
    types: Mapping[Term, tuple[TensorType, ...]],
    gone: Mapping[str, Dim],
) -> AttributeValue:
    if not isinstance(value, tuple):
        return substitute(value, gone) if not isinstance(value, int | float | str) else value
    parts = value
    if name in ("strides", "dilations", "kernel_shape", "output_padding", "pads") and len(value) in _HALVES:
        parts = tuple(value[i] for i in _HALVES[len(value)])
    elif name == "shape":
        kept_sizes = types[term][0].shape or ()
        parts = value[: len(_shorter(kept_sizes))]
    elif name in ("axes", "perm"):
        parts = tuple(v for v in value if v != _AXIS)
    return tuple(v if isinstance(v, int | float | str | tuple) else substitute(v, gone) for v in parts)
