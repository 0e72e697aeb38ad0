"""Certificates: what a proof did, as data that :mod:`superopt.verifier.checker` re-checks without the prover.

A certificate is two files. ``ID.smt2`` holds the index arithmetic that the proof rests on, one goal per entailment or
dropped cell, all expecting ``unsat`` from any solver. ``ID.json`` holds the normal forms of both sides, and each step
from their difference to nothing. Names are made safe for SMT-LIB: ``v~3`` is written ``v__3``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path

from superopt.ir.poly import Dim, Poly, Quotient, symbols
from superopt.ops.meaning import Condition
from superopt.rules import Rule, format_rule
from superopt.verifier.arith import Facts
from superopt.verifier.match_sums import Goal, Step
from superopt.verifier.normal import Apply, Element, Extreme, Factor, Monomial, SizeFactor, SumBase, Value
from superopt.verifier.prover import Derivation, prove_with_steps
from superopt.verifier.verdict import ProvedAllSizes, Unknown, verdict_to_json

__all__ = ["certify"]

FORMAT = "superopt.certificate"


def certify(rule: Rule, directory: Path, *, time_limit: float = 10.0) -> ProvedAllSizes | Unknown:
    """Prove a rule and, if it is proved, write ``ID.json`` and ``ID.smt2`` into a directory.

    Raises:
        OSError: the files cannot be written.
    """
    verdict, proof = prove_with_steps(rule, time_limit=time_limit)
    if not isinstance(verdict, ProvedAllSizes):
        return verdict
    script, derivations = _written(proof.goals)
    rows = format_rule(rule)
    data = {
        "format": FORMAT, "version": 1, "id": rule.id, "rule": rows if isinstance(rows, str) else dict(rows),
        "verdict": verdict_to_json(verdict), "smt2": hashlib.sha256(script.encode()).hexdigest(),
        "derivations": derivations,
    }  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{rule.id}.smt2").write_text(script, encoding="utf-8")
    (directory / f"{rule.id}.json").write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return verdict


def _written(goals: Iterable[Derivation]) -> tuple[str, list[dict[str, object]]]:
    lines = ["; superopt certificate: every (check-sat) must answer unsat", "(set-logic QF_NIA)"]
    shown: dict[str, int] = {}
    derivations: list[dict[str, object]] = []
    for derivation in goals:
        facts = derivation.facts
        established = []
        for fact in (*derivation.wellformed, *facts.established):
            text = _goal(facts, fact)
            if text not in shown:
                shown[text] = len(shown)
                lines += [f"; goal {shown[text]}", "(push 1)", text, "(check-sat)", "(pop 1)"]
            established.append({"given": _conditions(fact[0]), "goal": _condition(fact[1])})
        steps = []
        for step in derivation.steps:
            numbers = []
            for goal in step.goals:
                text = _goal(facts, goal)
                if text not in shown:
                    shown[text] = len(shown)
                    lines += [f"; goal {shown[text]}", "(push 1)", text, "(check-sat)", "(pop 1)"]
                numbers.append({"number": shown[text], "given": _conditions(goal[0]), "goal": _condition(goal[1])})
            steps.append(_step(step, numbers))
        derivations.append(
            {
                "lhs": str(derivation.lhs), "rhs": str(derivation.rhs), "hypotheses": _conditions(facts.hypotheses),
                "least": {_safe(n): v for n, v in sorted(facts.least.items())},
                "digits": [[dim_text(e) for e in axis] for axis in derivation.digits],
                "parts": {_safe(n): dim_text(v) for n, v in sorted(derivation.parts.items())}, "facts": established,
                "left": value_json(derivation.left), "right": value_json(derivation.right), "steps": steps,
            }
        )  # fmt: skip
    if not shown:  # a rule that needs no arithmetic still states one goal: 0 ≠ 0 is not satisfiable
        lines += ["; goal 0", "(push 1)", "(assert (distinct 0 0))", "(check-sat)", "(pop 1)"]
    return "\n".join(lines) + "\n", derivations


def _step(step: Step, goals: list[dict[str, object]]) -> dict[str, object]:
    data: dict[str, object] = {"kind": step.kind, "before": value_json(step.before), "after": value_json(step.after)}
    if step.kind in ("match", "drop"):
        data["goals"] = goals
    if step.kind == "match" and step.moved is not None:
        data["bijection"] = {_safe(n): dim_text(v) for n, v in step.bijection.items()}
        data["moved"] = value_json((step.moved,))
    if step.kind == "multiply":
        data |= {"factor": value_json(step.factor), "power": step.power}
    return data


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "__", name)


def dim_text(size: Dim) -> str:
    """A dimension as text: sums of products, ``floor(n, d)`` for quotients."""
    if isinstance(size, int):
        return str(size)
    terms = []
    for monomial, coefficient in size.terms:
        parts = [str(coefficient), *(_atom(a) for a in monomial)]
        terms.append("*".join(parts))
    return " + ".join(terms)


def _atom(atom: str | Quotient) -> str:
    if isinstance(atom, str):
        return _safe(atom)
    return f"floor({dim_text(atom.numerator)}, {dim_text(atom.denominator)})"


def _condition(condition: Condition | None) -> list[str] | None:
    return None if condition is None else [condition.kind, dim_text(condition.size)]


def _conditions(conditions: Iterable[Condition]) -> list[list[str]]:
    return sorted([c.kind, dim_text(c.size)] for c in conditions)


def value_json(value: Value) -> list[dict[str, object]]:
    """A value in normal form as JSON data."""
    return [_monomial(m) for m in value]


def _monomial(m: Monomial) -> dict[str, object]:
    return {
        "c": str(m.coefficient), "bound": [_safe(n) for n in m.bound], "guards": _conditions(m.guards),
        "factors": [[_factor(f), str(p)] for f, p in m.factors],
    }  # fmt: skip


def _factor(factor: Factor) -> list[object]:
    match factor:
        case Element(tensor, index):
            return ["element", tensor, [dim_text(i) for i in index]]
        case SizeFactor(size):
            return ["size", dim_text(size)]
        case Apply(function, args):
            return ["apply", function, [value_json(a) for a in args]]
        case SumBase(value):
            return ["sum", value_json(value)]
        case Extreme(kind, branches):
            rows = [[[_safe(n) for n in b.bound], _conditions(b.guards), value_json(b.value)] for b in branches]
            return ["extreme", kind, rows]
    raise AssertionError(factor)


# SMT-LIB


def _goal(facts: Facts, goal: Goal) -> str:
    given, conclusion = goal
    quotients: dict[Quotient, str] = {}
    conditions = [*sorted(facts.hypotheses, key=str), *sorted(given, key=str)]
    used = {n for c in (*given, *([conclusion] if conclusion else [])) for n in symbols(c.size)}
    conditions = _related(conditions, used)
    asserted = [_smt_condition(c, quotients) for c in conditions]
    if conclusion is not None:
        asserted.append(f"(not {_smt_condition(conclusion, quotients)})")
        used |= symbols(conclusion.size)
    names = {n for c in conditions for n in symbols(c.size)} | used
    done: set[Quotient] = set()
    while pending := [q for q in quotients if q not in done]:
        for q in pending:
            done.add(q)
            n, d = _smt(q.numerator, quotients), _smt(q.denominator, quotients)
            product = f"(* {d} {quotients[q]})"
            asserted.append(f"(and (>= {d} 1) (<= {product} {n}) (< {n} (+ {product} {d})))")
            names |= symbols(q.numerator) | symbols(q.denominator)
    lines = [f"(declare-const {name} Int)" for name in sorted({_safe(n) for n in names} | set(quotients.values()))]
    lines += [f"(assert (>= {_safe(n)} {_number(facts.least[n])}))" for n in sorted(names) if n in facts.least]
    return "\n".join([*lines, *(f"(assert {a})" for a in asserted)])


def _related(conditions: list[Condition], names: set[str]) -> list[Condition]:
    """The conditions that share names with the goal, transitively, in order."""
    known, chosen = set(names), [False] * len(conditions)
    changed = True
    while changed:
        changed = False
        for i, c in enumerate(conditions):
            if not chosen[i] and symbols(c.size) & known:
                chosen[i] = changed = True
                known |= symbols(c.size)
    return [c for i, c in enumerate(conditions) if chosen[i]]


def _smt_condition(condition: Condition, quotients: dict[Quotient, str]) -> str:
    size = _smt(condition.size, quotients)
    return {"ge": f"(>= {size} 0)", "eq": f"(= {size} 0)", "ne": f"(distinct {size} 0)"}[condition.kind]


def _smt(size: Dim, quotients: dict[Quotient, str]) -> str:
    terms = []
    for monomial, coefficient in size.terms if isinstance(size, Poly) else (((), size),):
        atoms = [_safe(a) if isinstance(a, str) else quotients.setdefault(a, f"q__{len(quotients)}") for a in monomial]
        parts = [_number(coefficient)] if coefficient != 1 or not atoms else []
        parts += atoms
        terms.append(parts[0] if len(parts) == 1 else f"(* {' '.join(parts)})")
    return terms[0] if len(terms) == 1 else f"(+ {' '.join(terms)})" if terms else "0"


def _number(value: int) -> str:
    return str(value) if value >= 0 else f"(- {-value})"
