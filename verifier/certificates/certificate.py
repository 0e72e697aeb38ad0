"""Certificates: what a proof did, as data that :mod:`superopt.verifier.certificates.checker` re-checks without the
prover.

A certificate is one JSON document: the rule, a digest of it and of what its operators mean, the normal forms of both
sides, each step from their difference to nothing, and (``smt2``) the goals that all this rests on as one SMT-LIB
script, every answer to which must be ``unsat``. The script is also written as ``ID.smt2``, for any solver.

Bound variables are renamed so that equal normal forms are written alike; names are made safe for SMT-LIB (``o0.1`` is
written ``o0__1``).
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from superopt.ir.size_polynomial import Dim, SizePolynomial, substitute, sym, symbols
from superopt.ops.operator_semantics import IndexCondition
from superopt.rules import Rule, format_rule
from superopt.rules.grammar import format_dim
from superopt.rules.typing import meaning_digest
from superopt.verifier.certificates.checker import script_of, seal
from superopt.verifier.certificates.normal_forms import CertificateRejected, OperandMultiset, Summand, replaced
from superopt.verifier.prover.match_sums import ProofStep
from superopt.verifier.prover.normal_form_arithmetic import (
    BranchReduction,
    Factor,
    FunctionApplication,
    GuardedBranch,
    Monomial,
    SizeFactor,
    SumPowerBase,
    TensorElement,
    Value,
)
from superopt.verifier.prover.prover import RuleOutputProof, prove_with_steps
from superopt.verifier.verdict import ProvedVerdict, UnknownVerdict, verdict_to_json

__all__ = ["certificate_of", "certify"]

FORMAT = "superopt.certificate"
_ORDERS = 720  # of bound variables that look alike
_NOTHING: Mapping[str, Any] = {"contradictory": True}  # a case that no sizes satisfy


def certificate_of(rule: Rule, *, time_limit: float = 10.0) -> tuple[ProvedVerdict | UnknownVerdict, str]:
    """The verdict on a rule and, where it is proved for all sizes, its certificate (else "")."""
    verdict, proof = prove_with_steps(rule, time_limit=time_limit)
    if not isinstance(verdict, ProvedVerdict):
        return verdict, ""
    shown = {k: v for k, v in verdict_to_json(verdict).items() if k != "seconds"}
    data: dict[str, Any] = {
        "format": FORMAT, "version": 2, "id": rule.id, "digest": meaning_digest(rule), "rule": format_rule(rule),
        "verdict": shown, "derivations": [_NOTHING if d is None else _derivation(d) for d in proof.goals],
    }  # fmt: skip
    try:
        data["smt2"] = script_of(data)
    except CertificateRejected as error:
        return UnknownVerdict(f"the proof could not be written down: {error}"), ""
    data["seal"] = seal(data)
    return verdict, json.dumps(data, indent=None, sort_keys=True) + "\n"


def certify(rule: Rule, directory: Path, *, time_limit: float = 10.0) -> ProvedVerdict | UnknownVerdict:
    """Prove a rule and, if it is proved, write ``ID.json`` and ``ID.smt2`` into a directory.

    Raises:
        OSError: the files cannot be written.
    """
    verdict, text = certificate_of(rule, time_limit=time_limit)
    if text:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{rule.id}.smt2").write_text(json.loads(text)["smt2"], encoding="utf-8")
        (directory / f"{rule.id}.json").write_text(text, encoding="utf-8")
    return verdict


def _derivation(d: RuleOutputProof) -> dict[str, Any]:
    facts, written = d.facts, _Written()
    return {
        "lhs": str(d.lhs), "rhs": str(d.rhs), "hypotheses": _rows(_conditions(facts.hypotheses)),
        "least": {_safe(n): v for n, v in sorted(facts.least.items())},
        "digits": [[format_dim(_dim(e)) for e in axis] for axis in d.digits],
        "parts": {_safe(n): format_dim(_dim(v)) for n, v in d.parts.items()},
        "left": written.value(d.left), "right": written.value(d.right), "steps": [written.step(s) for s in d.steps],
        "facts": [
            {"given": _rows(_conditions(conditions)), "goal": None if goal is None else _rows(_conditions([goal]))[0]}
            for conditions, goal in dict.fromkeys((*d.wellformed, *facts.established))
        ],
    }  # fmt: skip


@dataclass
class _Written:
    """Summands as they were written first, by the prover's key: a step starts from what an earlier one ended with."""

    summands: dict[str, Summand] = field(default_factory=dict)

    def summand(self, m: Monomial) -> Summand:
        if m.key not in self.summands:
            self.summands[m.key] = _named(m.bound, lambda names: _summand(m, names), {})
        return self.summands[m.key]._replace(c=m.coefficient)

    def value(self, value: Value) -> list[Any]:
        return [_json(self.summand(m)) for m in value]

    def step(self, step: ProofStep) -> dict[str, Any]:
        data: dict[str, Any] = {"kind": step.kind, "before": self.value(step.before)}
        if step.kind == "match":
            data |= self._match(step)
        data["after"] = self.value(step.after)
        if step.kind == "multiply":
            data |= {"factor": self._divisor(step), "power": step.power}
        return data

    def _names(self, m: Monomial) -> Mapping[str, str]:
        """What the bound variables of a monomial are called where it was written."""
        written = self.summand(m)
        for order in itertools.permutations(written.bound):
            names = dict(zip(m.bound, order, strict=True))
            if _summand(m, names) == written._replace(c=Fraction(1)):
                return names
        raise CertificateRejected("a summand was written in two ways")

    def _divisor(self, step: ProofStep) -> list[Any]:
        """The sum that a value is multiplied by, as it is written where the value is divided by it."""
        place = ((m, f) for m in step.before for f, p in m.factors if isinstance(f, SumPowerBase) and p < 0)
        m, factor = next((m, f) for m, f in place if f.value == step.factor)
        return [_json(s) for s in _value(factor.value, self._names(m))]

    def _match(self, step: ProofStep) -> dict[str, Any]:
        a, b = step.before
        left, right, ours, theirs = self.summand(a), self.summand(b), self._names(a), self._names(b)
        images = {theirs[n]: _dim(v, ours) for n, v in sorted(step.bijection.items())}

        def guards(conditions: Iterable[IndexCondition]) -> frozenset[IndexCondition]:
            return frozenset(IndexCondition(c.kind, _dim(c.size, ours)) for c in conditions)

        moved = Summand(right.c, left.bound, frozenset(), replaced(right.factors, images))
        only_a, only_b, overlap = [*map(guards, step.only_a)], [*map(guards, step.only_b)], guards(step.overlap)
        pieces = [left._replace(guards=overlap)] if a.coefficient + b.coefficient else []
        pieces += [left._replace(guards=g) for g in only_a] + [moved._replace(guards=g) for g in only_b]
        for m, piece in zip(step.after, pieces, strict=True):
            self.summands.setdefault(m.key, piece)
        return {
            "bijection": {n: format_dim(v) for n, v in images.items()}, "overlap": _rows(overlap),
            "only_a": [*map(_rows, only_a)], "only_b": [*map(_rows, only_b)],
        }  # fmt: skip


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "__", name)


def _dim(size: Dim, names: Mapping[str, str] | None = None) -> Dim:
    return substitute(size, {n: sym((names or {}).get(n) or _safe(n)) for n in symbols(size)})


def _conditions(
    conditions: Iterable[IndexCondition], names: Mapping[str, str] | None = None
) -> frozenset[IndexCondition]:
    return frozenset(IndexCondition(c.kind, _dim(c.size, names)) for c in conditions)


def _rows(conditions: Iterable[IndexCondition]) -> list[list[str]]:
    return sorted([c.kind, format_dim(c.size)] for c in conditions)


def _named(bound: Sequence[str], made: Callable[[Mapping[str, str]], Summand], outer: Mapping[str, str]) -> Summand:
    """A summand with its variables called ``v__0, v__1, ...`` in the order that gives the least text."""
    fresh = [f"v__{len(outer) + i}" for i in range(len(bound))]
    if len(bound) < 2:
        return made({**outer, **dict(zip(bound, fresh, strict=True))})
    hidden = {**outer, **dict.fromkeys(bound, "_")}
    colour = {n: repr(made({**hidden, n: "__"})[2:]) for n in bound}
    alike = itertools.groupby(sorted(bound, key=colour.__getitem__), key=colour.__getitem__)
    orders = itertools.product(*(itertools.permutations(list(group)) for _, group in alike))
    chosen = (itertools.chain(*order) for order in itertools.islice(orders, _ORDERS))
    return min((made({**outer, **dict(zip(c, fresh, strict=True))}) for c in chosen), key=repr)


def _summand(m: Monomial, names: Mapping[str, str]) -> Summand:
    """A monomial without its coefficient, its variables and those around it being called as ``names`` says."""
    factors = OperandMultiset((_factor(f, names), p) for f, p in m.factors)
    return Summand(Fraction(1), tuple(sorted(names[n] for n in m.bound)), _conditions(m.guards, names), factors)


def _branch(b: GuardedBranch, names: Mapping[str, str]) -> Summand:
    factors = OperandMultiset([(("sum", _value(b.value, names)), Fraction(1))])
    return Summand(Fraction(1), tuple(sorted(names[n] for n in b.bound)), _conditions(b.guards, names), factors)


def _value(value: Value, names: Mapping[str, str]) -> OperandMultiset:
    return OperandMultiset(_named(m.bound, partial(_summand, m), names)._replace(c=m.coefficient) for m in value)


def _factor(factor: Factor, names: Mapping[str, str]) -> tuple[Any, ...]:
    match factor:
        case TensorElement(tensor, index):
            return ("element", tensor, tuple(_dim(i, names) for i in index))
        case SizeFactor(size):
            return ("size", _dim(size, names))
        case FunctionApplication(function, args):
            return ("apply", function, tuple(_value(a, names) for a in args))
        case SumPowerBase(value):
            return ("sum", _value(value, names))
        case BranchReduction(kind, branches):
            return ("extreme", kind, OperandMultiset(_named(b.bound, partial(_branch, b), names) for b in branches))
    raise AssertionError(factor)


def _json(item: Any) -> Any:
    match item:
        case Summand(c, bound, guards, factors):
            powers = [[_json(f), str(p)] for f, p in factors]
            return {"c": str(c), "bound": list(bound), "guards": _rows(guards), "factors": powers}
        case int() | SizePolynomial():
            return f"={format_dim(item)}"
        case tuple():
            return [_json(i) for i in item]
    return item
