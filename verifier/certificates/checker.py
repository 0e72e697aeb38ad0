"""An independent check of certificates. It shares nothing with the prover, and believes only the operators' meanings
and what types and evaluates them, the grammar of rules, ``superopt.ir.size_polynomial``, and Z3 (and cvc5, where it is
installed).

By the solvers, for all sizes: what a derivation assumes of sizes and indices follows from the rule; the right side is
well-formed and of the left side's type; every fact that the prover used; and the bookkeeping of every step that leads
from the difference of the sides to nothing. Exactly (in a prime field or over the rationals), at random sizes,
attributes and elements that the rule allows: both normal forms are the elements of the two sides, and every step keeps
the value. That a normal form is the meaning at *all* sizes is compared in this way, not derived.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import sha256
from itertools import combinations
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import z3

from superopt.ir.errors import SuperoptError
from superopt.ir.size_polynomial import Dim, substitute, sym, symbols
from superopt.ops.operator_semantics import IndexCondition
from superopt.rules import Rule, RulePrecondition, parse_rule
from superopt.rules.grammar import format_guard
from superopt.rules.slice_clamping import cases
from superopt.rules.typing import applied_leads, condition_text, instances, meaning_digest, positions, types_of
from superopt.verifier.certificates.leading_axes import require_uniform
from superopt.verifier.certificates.normal_forms import (
    CertificateRejected,
    OperandMultiset,
    Summand,
    conditions,
    points,
    read,
    replaced,
    size,
)
from superopt.verifier.certificates.smtlib import script, solvers, unsatisfiable
from superopt.verifier.exact.sampling import draw

__all__ = ["CertificateResult", "check_certificate", "script_of", "seal"]

Row = Mapping[str, Any]
Conditions = frozenset[IndexCondition]
_BETWEEN = "\n(reset)\n"
_SIZES = 80  # at which names are looked for that take one value only


@dataclass(frozen=True)
class CertificateResult:
    """Whether a certificate holds, why not, and what was checked.

    Each goal is refuted by a solver, at least, and no other says otherwise; ``solvers`` says how many each refuted.
    """

    valid: bool
    reason: str = ""
    goals: int = 0
    steps: int = 0
    points: int = 0
    solvers: Mapping[str, int] = field(default_factory=dict)


def check_certificate(path: Path, *, seed: int = 0) -> CertificateResult:
    """Check ``ID.json``, and ``ID.smt2`` if it lies beside it. A bad one is no error: the result says why."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        beside = Path(path).with_suffix(".smt2")
        if beside.exists() and beside.read_text(encoding="utf-8") != data["smt2"]:
            raise CertificateRejected(f"{beside.name} is not the script that the certificate holds")
        return _check(data, np.random.default_rng(seed))
    except CertificateRejected as why:
        return CertificateResult(False, str(why))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        return CertificateResult(False, f"cannot be read: {error}")
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError, SuperoptError,
            z3.Z3Exception, MemoryError) as error:  # fmt: skip
        return CertificateResult(False, f"malformed: {type(error).__name__}: {error}")


def _check(data: Row, rng: np.random.Generator) -> CertificateResult:
    if (data["format"], data["version"], data["verdict"]["verdict"]) != ("superopt.certificate", 2, "proved_all_sizes"):
        raise CertificateRejected("not a certificate of version 2 of a proof for all sizes")
    if data["seal"] != seal(data):
        raise CertificateRejected("the file was changed after it was written")
    rule = parse_rule(data["rule"])
    if rule.id != data["id"] or meaning_digest(rule) != data["digest"]:
        raise CertificateRejected("the certificate is of another rule, or of other meanings of its operators")
    if rule.lead:
        require_uniform(rule, [n for n in applied_leads(rule) if n > 1])
    text = script_of(data)
    if text != data["smt2"]:
        raise CertificateRejected("the SMT script does not state the goals that the derivations need")
    todo = list(zip(_outputs(rule, data["derivations"]), data["derivations"], strict=True))
    met = sum(points(r, place, d, rng) for (r, _, place), d in todo if place is not None)
    _free(rule, data["derivations"])
    goals = text.split(_BETWEEN)[1:]
    refuted: Counter[str] = Counter()
    for number, goal in enumerate(goals):
        answers = dict(unsatisfiable(goal))
        if "unsat" not in answers.values() or not {"unsat", "unknown"} >= set(answers.values()):
            raise CertificateRejected(
                f"goal {number} of the SMT script: {', '.join(f'{n} answers {a}' for n, a in answers.items())}"
            )
        refuted.update(name for name, answer in answers.items() if answer == "unsat")
    steps = sum(len(d["steps"]) for (_, _, place), d in todo if place is not None)
    counts = {f"{n} {v}": refuted[n] for n, v in solvers().items()}
    return CertificateResult(True, "", len(goals), steps, met, counts)


def seal(data: Row) -> str:
    """A digest of all else, by which an accident is noticed; what follows does not rest on it."""
    return sha256(json.dumps({k: v for k, v in data.items() if k != "seal"}, sort_keys=True).encode()).hexdigest()


def _outputs(rule: Rule, rows: Sequence[Row]) -> list[tuple[Rule, Rule, int | None]]:
    """What each derivation is of: a case of clamping, its instance, and a place among the outputs.

    A case that is said to be contradictory has one row, without a place.

    Raises:
        CertificateRejected: there are too few or too many rows.
    """
    found: list[tuple[Rule, Rule, int | None]] = []
    for instance in instances(rule):
        for case in cases(instance):
            empty = len(found) < len(rows) and bool(rows[len(found)].get("contradictory"))
            places: Iterable[int | None] = (None,) if empty else range(len(case.lhs))
            found += [(case, instance, i) for i in places]
    if len(found) != len(rows):
        raise CertificateRejected(f"{len(rows)} derivations for {len(found)} outputs")
    return found


def _free(rule: Rule, rows: Sequence[Row]) -> None:
    """Reject a rule that holds at no sizes, or that forces one to a number which its types and ``where`` do not say."""
    outputs = _outputs(rule, rows)
    for instance in instances(rule):
        open_ = list(dict.fromkeys(case for case, of, place in outputs if of == instance and place is not None))
        stuck = set(_fixed(instance, [(c, types_of(c).lhs_obligations) for c in open_]))
        forced = stuck - set(_fixed(instance, [(instance, ())])) if stuck else stuck
        if not open_ or forced:
            raise CertificateRejected(f"the left side forces {', '.join(sorted(forced)) or 'every size'}")


def _fixed(instance: Rule, cases_: Sequence[tuple[Rule, Sequence[IndexCondition]]]) -> list[str]:
    """Names that take one value, or none, at many random sizes at which one of the cases is well-formed."""
    rng, values = np.random.default_rng(16), dict[str, set[int]]()
    left = list(cases_)
    for attempt in range(_SIZES if left else 0):
        case, needs = left[attempt % len(left)]
        point = draw(case, 0, rng, needs, 2 + attempt // 8)
        for name, value in point.sizes.items() if point is not None else ():
            values.setdefault(name, set()).add(value)
        if values and all(len(v) > 1 for v in values.values()):
            return []
        if point is None and len(left) > 1:
            left.remove((case, needs))
    return [n for n, v in values.items() if len(v) < 2] if values else list(instance.sizes)


# Goals: what must not be satisfiable. The checker derives them from the rule and the steps, whatever the prover asked.

_BETWEEN = "\n(reset)\n"


def script_of(data: Row) -> str:
    """Every goal of a certificate's derivations as one SMT-LIB script, each on its own after a reset.

    Raises:
        CertificateRejected: a derivation is not one of the rule, or its steps do not lead to nothing.
    """
    texts: dict[str, None] = {}
    outputs = _outputs(parse_rule(data["rule"]), data["derivations"])
    stated = {str(t) for t in data["verdict"]["derived"]}
    for (rule, instance, place), row in zip(outputs, data["derivations"], strict=True):
        asked = _Goals(texts)
        asked.derived(rule, rule.where[len(instance.where) :], stated, possible=place is not None)
        if place is None:
            continue
        asked.context(rule, place, row)
        state: Counter[Summand] = Counter()
        for side, sign in (("left", 1), ("right", -1)):
            asked.inside(read(row[side]), {n: t.shape for n, t in rule.tensors.items()})
            _add(state, read(row[side]), sign)
        for step in row["steps"]:
            asked.step(step, state)
        if state:
            raise CertificateRejected("the steps do not end with nothing left")
    goals = list(texts) or [script([[IndexCondition("ge", -1)]])]
    return _BETWEEN.join(["; superopt certificate: every (check-sat) must answer unsat", *goals]) + "\n"


def _add(state: Counter[Summand], value: Iterable[Summand], sign: int) -> None:
    for m in value:
        key = m._replace(c=Fraction(1))
        state[key] += sign * m.c  # type: ignore[assignment]
        if not state[key]:
            del state[key]


def _negated(c: IndexCondition) -> IndexCondition:
    return (
        IndexCondition("ge", -c.size - 1)
        if c.kind == "ge"
        else IndexCondition("ne" if c.kind == "eq" else "eq", c.size)
    )


@dataclass
class _Goals:
    texts: dict[str, None]
    assumptions: Conditions = frozenset()

    def derived(self, rule: Rule, added: Sequence[RulePrecondition], stated: Set[str], *, possible: bool) -> None:
        """What the left side demands beyond types and guards is stated, or follows from what is.

        Raises:
            CertificateRejected: positions that the left side reads are nowhere said to be inside its axes.
        """
        self.assumptions = self.assumed(rule)
        text = " and ".join(map(format_guard, added))
        if not possible and f"not ({text})" not in stated:
            self.refuted(self.assumptions, [])
            return
        types = types_of(rule)
        tail = f" where {text}" if added else ""
        stated_obligations = {
            c for c in types.lhs_obligations if condition_text(c) in stated or condition_text(c) + tail in stated
        }
        for c in types.lhs_obligations:
            if possible and c not in stated_obligations:
                self.implied(c, frozenset(stated_obligations))
        for at in positions(rule, rule.lhs, types.types):
            if at.below is not None and possible:
                self.implied(IndexCondition("ge", at.size - at.below), frozenset(stated_obligations))
            elif possible and not {text := str(at), text + tail} & stated:
                raise CertificateRejected(
                    f"that the positions {at.text} are inside their axis is a hypothesis that is not stated"
                )
        if not possible:
            self.refuted(self.assumptions | frozenset(types.lhs_obligations), [])

    def assumed(self, rule: Rule) -> Conditions:
        """What the types and guards of a rule say."""
        known_conditions = [g.condition for g in rule.where]
        known_conditions += [IndexCondition("ge", d - 1) for s in rule.tensors.values() for d in s.shape]
        known_conditions += [IndexCondition("ge", sym(n) - 1) for n in rule.sizes]
        for name, scheme in rule.attribute_atoms.items():
            if scheme.kind == "int" and scheme.relation:
                kind, least = "ne" if scheme.relation == "!=" else "ge", scheme.bound + (scheme.relation == ">")
                known_conditions.append(IndexCondition(kind, sym(name) - least))
        return frozenset(known_conditions)

    def context(self, rule: Rule, place: int, row: Row) -> None:
        """The rule gives what a derivation assumes, its facts, the right side's well-formedness and type."""
        types = types_of(rule)
        self.assumptions = self.assumed(rule) | frozenset(types.lhs_obligations)
        for c in types.rhs_obligations:
            self.implied(c)
        left, right = types.lhs[place], types.rhs[place]
        if left.dtype != right.dtype or not len(left.shape or ()) == len(right.shape or ()) == len(row["digits"]):
            raise CertificateRejected("the sides have different types")
        names = {*rule.sizes, *rule.attribute_atoms}
        for name, text in row["parts"].items():
            if name in names or not symbols(size(text)) <= names:
                raise CertificateRejected(f"{name} is not defined once, by what is defined")
            self.assumptions |= {IndexCondition("eq", sym(name) - size(text))}
            names.add(name)
        for axis, (m, n) in enumerate(zip(left.shape or (), right.shape or (), strict=True)):
            digits = {f"o{axis}__{i}": size(text) for i, text in enumerate(row["digits"][axis])}
            lower = [IndexCondition("ge", e - 1) for e in list(digits.values())[1:]]
            for c in (IndexCondition("eq", m - n), IndexCondition("eq", m - prod(digits.values())), *lower):
                self.implied(c)
            if names & digits.keys():
                raise CertificateRejected("the name of an index is taken")
            self.assumptions |= {IndexCondition("ge", d) for i, e in digits.items() for d in (sym(i), e - 1 - sym(i))}
        assumed = conditions(row["hypotheses"]) | {IndexCondition("ge", sym(n) - v) for n, v in row["least"].items()}
        for c in sorted(assumed, key=str):
            self.implied(c)
        self.assumptions |= assumed
        for fact in row["facts"]:
            goal = None if fact["goal"] is None else next(iter(conditions([fact["goal"]])))
            self.implied(goal, conditions(fact["given"]))

    def inside(
        self, value: OperandMultiset, shapes: Mapping[str, tuple[Dim, ...]], assumed: Conditions = frozenset()
    ) -> None:
        """Ask that every element that a normal form reads is inside its tensor."""
        for m in value:
            here = assumed | m.guards
            for factor, _ in m.factors:
                if factor[0] == "element":
                    for i, extent in zip(factor[2], shapes[factor[1].removeprefix("?")], strict=True):
                        self.implied(IndexCondition("ge", i), here)
                        self.implied(IndexCondition("ge", extent - 1 - i), here)
                for part in factor[2] if factor[0] == "apply" else factor[1:]:
                    self.inside(part if isinstance(part, OperandMultiset) else OperandMultiset(()), shapes, here)

    def implied(self, goal: IndexCondition | None, assumed: Conditions = frozenset()) -> None:
        """Ask that what is known and given implies a condition (``None``: that it is contradictory)."""
        if goal is None or not (goal.known or goal in assumed | self.assumptions):
            self.refuted(assumed, [] if goal is None else [frozenset((goal,))])

    def refuted(self, assumed: Conditions, pieces: Iterable[Conditions]) -> None:
        """Ask that what is known and given cannot hold outside of all pieces."""
        clauses = [[_negated(c) for c in sorted(p, key=str)] for p in pieces]
        names = {n for c in (*assumed, *(c for p in clauses for c in p)) for n in symbols(c.size)}
        chosen, rest = sorted(assumed, key=str), sorted(self.assumptions - assumed, key=str)
        while near := [c for c in rest if symbols(c.size) & names]:  # leaving hypotheses out only makes it harder
            chosen += near
            names |= {n for c in near for n in symbols(c.size)}
            rest = [c for c in rest if c not in near]
        self.texts[script([*([c] for c in chosen), *clauses])] = None

    def step(self, step: Row, state: Counter[Summand]) -> None:
        """Replace in the state what a step starts from by what it ends with, and ask what that rests on."""
        before = read(step["before"])
        match step["kind"], before:
            case "match", (_, _):
                after = self.match(step, *read(step["before"][:1]), *read(step["before"][1:]))
            case "drop", (m,):
                self.implied(None, m.guards)
                after = OperandMultiset(())
            case ("simplify" | "lemma" | "multiply") as kind, _:  # values: compared at points
                after = read(step["after"])
                divisors = {f[1] for m in before for f, p in m.factors if f[0] == "sum" and p < 0}
                whole = {m._replace(c=Fraction(1)): m.c for m in before}
                if kind == "multiply" and (read(step["factor"]) not in divisors or dict(state) != whole):
                    raise CertificateRejected("a step multiplies a part, or by what is not known to differ from 0")
            case _:
                raise CertificateRejected("an unknown step")
        _add(state, before, -1)
        _add(state, after, 1)

    def match(self, step: Row, a: Summand, b: Summand) -> OperandMultiset:
        """``a + b`` in the pieces that a step states: an overlap, where the factors agree, and the rest of each."""
        images = {n: size(t) for n, t in step["bijection"].items()}
        if set(images) != set(b.bound) or not _unimodular(list(images.values()), a.bound):
            raise CertificateRejected("a re-indexing is not a bijection of the bound variables")
        m = Summand(b.c, a.bound, replaced(b.guards, images), replaced(b.factors, images))
        overlap = conditions(step["overlap"])
        only_a, only_b = ([conditions(g) for g in step[k]] for k in ("only_a", "only_b"))
        self.partition(a.guards, [overlap, *only_a])
        self.partition(m.guards, [overlap, *only_b])
        theirs = [f for f in m.factors if f not in a.factors]
        ours = [f for f in a.factors if f not in m.factors]
        for (f, p), (g, q) in zip(ours, theirs, strict=True):
            if f[:-1] != g[:-1] or p != q:
                raise CertificateRejected("the factors of summands that are matched do not correspond")
            places = {"element": (f[-1], g[-1]), "size": (f[-1:], g[-1:])}.get(f[0], ((), ()))
            for i, j in zip(*places, strict=True):
                self.implied(IndexCondition("eq", i - j), overlap)  # what is inside other factors is compared at points
        both = [a._replace(c=a.c + b.c, guards=overlap)] if a.c + b.c else []
        return OperandMultiset(
            (*both, *(a._replace(guards=g) for g in only_a), *(m._replace(guards=g) for g in only_b))
        )

    def partition(self, whole: Conditions, pieces: list[Conditions]) -> None:
        """Ask that exactly one piece holds where ``whole`` does, and none elsewhere."""
        for piece in pieces:
            for c in sorted(whole - piece, key=str):
                self.implied(c, piece)
        for x, y in combinations(pieces, 2):
            self.implied(None, x | y)
        if whole not in pieces:
            self.refuted(whole, [p - whole for p in pieces])


def _unimodular(images: list[Dim], names: tuple[str, ...]) -> bool:
    """Whether images are affine in the names, and invertible over the integers at all sizes."""
    zero: dict[str, Dim] = dict.fromkeys(names, 0)
    rows = [[substitute(i, {**zero, n: 1}) - substitute(i, zero) for n in names] for i in images]
    lines = [sum(map(prod, zip(row, map(sym, names), strict=True))) for row in rows]
    affine = all(i - substitute(i, zero) == line for i, line in zip(images, lines, strict=True))
    return affine and len(images) == len(names) and _determinant(rows) in (1, -1)


def _determinant(rows: list[list[Dim]]) -> Dim:
    minors = ((i, c, [r[:i] + r[i + 1 :] for r in rows[1:]]) for i, c in enumerate(rows[0] if rows else ()))
    return sum(((-1) ** i * c * _determinant(m) for i, c, m in minors), 0) if rows else 1
