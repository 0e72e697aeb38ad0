"""Who did it: causes are tried one after the other, and one is named only if undoing it undoes the harm.

For a cost that grew: the model itself, the price of an operator, rules that are gone, rules that are new. What is put
back is bisected to what is needed. For a wrong result: exact tests of the rules it rests on, which refute the false
one; else the rule without which the check passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from superopt.gate.counterfactual_costs import CounterfactualCosts
from superopt.report.corpus import CorpusModelResult, CorpusRun, Culprit, Operators
from superopt.rules import Rule, parse_rule
from superopt.rules.scanner import RuleError
from superopt.verifier.exact.counterexample import describe
from superopt.verifier.exact.testing import test
from superopt.verifier.verdict import RefutedVerdict

__all__ = ["minimal", "why_slower", "why_wrong"]

T = TypeVar("T")
_CHANGED = 0.002  # a price that differs by less than this share is the same
_CHEAPER = (0.5, 0.25, 0.1, 0.01)  # what an operator is tried at whose earlier price is not known


def minimal(items: Sequence[T], enough: Callable[[Sequence[T]], bool]) -> list[T]:
    """A part of the items that is enough and loses that with any one of them; ``enough(items)`` is known to hold."""
    kept = list(items)
    while len(kept) > 1:
        half = len(kept) // 2
        part = next((p for p in (kept[:half], kept[half:]) if enough(p)), None)
        if part is None:
            break
        kept = part
    for item in list(kept):
        rest = [i for i in kept if i is not item]
        if rest and enough(rest):
            kept = rest
    return kept


def why_wrong(row: CorpusModelResult, rules: Mapping[str, Rule], seed: int = 0) -> Culprit:
    """The rule at fault for a rewritten graph that failed its check."""
    for failure in row.failures:
        for name in failure.rules:
            verdict = test(rules[name], seed=seed) if name in rules else None
            if isinstance(verdict, RefutedVerdict):
                return Culprit("wrong rule", (name,), f"it is false {describe(verdict.counterexample)}")
    for failure in row.failures:
        if failure.left_out:
            evidence = "without it the check passes; exact tests do not refute it"
            return Culprit("wrong rule", (failure.left_out,), evidence)
    used = tuple(dict.fromkeys(rule for f in row.failures for rule in f.rules))
    return Culprit("unknown", used, "no single rule that the result rests on explains it")


def why_slower(
    row: CorpusModelResult,
    known: CorpusModelResult,
    allowed: float,
    now: CorpusRun,
    then: CorpusRun,
    lab: CounterfactualCosts,
) -> Culprit:
    """The cause of a modelled cost that grew.

    Args:
        row: the model now.
        known: the model in the baseline.
        allowed: growth that is let pass, as a share.
        now: the run.
        then: the baseline.
        lab: for experiments.
    """
    goal = known.after_us * (1 + allowed) + 1e-6

    def restored(rules: Sequence[Rule], factors: Mapping[str, float] | None = None) -> bool:
        return lab.cost(row.model, rules, factors) <= goal

    if row.digest != known.digest:
        return _model_changed(row, known)
    found = _price(row, known, lab, restored) or _rules(row, known, now, then, lab, restored)
    if found is not None:
        return found
    dearer = [op for op, factor in _old_prices(known.before, row.before).items() if factor < 1 - _CHANGED]
    if dearer:
        evidence = "; ".join(_priced(op, known, row) for op in dearer)
        return Culprit(
            "operator cost", tuple(dearer), f"{evidence}; not only by these factors, which do not explain it all"
        )
    if lab.over:
        return Culprit("unknown", (), "the time for finding it ran out (--bisect-limit)")
    if row.stopped == "time" or known.stopped == "time":
        return Culprit("time", (), "a search was cut short by the clock; try a longer --time-limit")
    gone, new = (len(a.library.items() - b.library.items()) for a, b in ((then, now), (now, then)))
    if gone or new:
        evidence = f"{gone} rules of the baseline's are gone and {new} are new; taking that back does not explain it"
        return Culprit("unknown", (), evidence)
    if now.revision != then.revision or now.version != then.version:
        span = f"{then.revision or then.version}..{now.revision or now.version}"
        hint = f"`git bisect run superopt corpus compare {row.model}` finds the commit"
        return Culprit("code", (span,), f"model, prices and rules are what they were; {hint}")
    return Culprit("unknown", (), "model, prices, rules and code are what they were")


def _model_changed(row: CorpusModelResult, known: CorpusModelResult) -> Culprit:
    more = {op: row.before.get(op, (0, 0.0))[1] - us for op, (_, us) in known.before.items()}
    more |= {op: us for op, (_, us) in row.before.items() if op not in known.before}
    worst = sorted((op for op in more if more[op] > 0), key=lambda op: -more[op])[:3]
    parts = ", ".join(f"{op} +{more[op]:.1f} µs" for op in worst) or "none of its operators costs more"
    change = f"the model changed: it costs {row.before_us:.1f} µs as it is, and cost {known.before_us:.1f} µs ({parts})"
    return Culprit("model", (row.model,), change)


def _price(
    row: CorpusModelResult, known: CorpusModelResult, lab: CounterfactualCosts, restored: Callable[..., bool]
) -> Culprit | None:
    """Operators that cost more than they did, so much that the old price would restore the model's cost."""
    factors = _old_prices(known.before, row.before)
    dearer = {op: f for op, f in factors.items() if f < 1 - _CHANGED}
    if dearer and restored(lab.rules, factors):
        by_share = sorted(dearer, key=lambda op: (dearer[op] - 1) * row.before[op][1])

        def enough(ops: Sequence[str]) -> bool:
            return restored(lab.rules, {op: factors[op] for op in ops})

        names = minimal(by_share, enough) if enough(by_share) else by_share
        return Culprit("operator cost", tuple(names), "; ".join(_priced(op, known, row) for op in names))
    for op in sorted(set(known.after) - set(known.before), key=lambda op: -known.after[op][1]):
        gone = "which the result no longer uses" if op not in row.after else "in the result"
        for factor in () if dearer else _hidden(op, known, row):
            if restored(lab.rules, {op: factor}):
                evidence = f"{op}, {gone}, costs more: at {factor:g} of its price the model costs what it did"
                return Culprit("operator cost", (op,), evidence)
    return None


def _old_prices(old: Operators, new: Operators) -> dict[str, float]:
    """By what the costs now are to be multiplied to be what they were, by operator of one and the same input."""
    both = {op: (old[op][1], new[op][1]) for op in new if op in old and new[op][1] > 0}
    return {op: a / b for op, (a, b) in both.items() if abs(a / b - 1) > _CHANGED}


def _hidden(op: str, known: CorpusModelResult, row: CorpusModelResult) -> tuple[float, ...]:
    """Prices to try for an operator that only results have: the old mean, where it is still used, then guesses."""
    count, us = known.after[op]
    if op in row.after:
        mean = (us / count) / (row.after[op][1] / row.after[op][0])
        return (mean,) if mean < 1 - _CHANGED else ()
    return _CHEAPER


def _priced(op: str, known: CorpusModelResult, row: CorpusModelResult) -> str:
    old, new = known.before[op][1], row.before[op][1]
    return f"{op} costs {new / old:.2f} times what it did ({old:.1f} → {new:.1f} µs in this model as it comes in)"


def _rules(
    row: CorpusModelResult,
    known: CorpusModelResult,
    now: CorpusRun,
    then: CorpusRun,
    lab: CounterfactualCosts,
    restored: Callable[..., bool],
) -> Culprit | None:
    """Rules that the baseline used and that are gone, or that have come since, if undoing that restores the cost."""
    gone = [
        rule for name, text in then.texts.items()
        if name in known.rules and now.library.get(name) != then.library.get(name)
        and (rule := _parsed(name, text)) is not None
    ]  # fmt: skip
    if gone and restored((*lab.rules, *gone)):
        needed = minimal(gone, lambda some: restored((*lab.rules, *some)))
        cost = lab.cost(row.model, (*lab.rules, *needed))
        names = tuple(rule.id.removesuffix("@baseline") for rule in needed)
        return Culprit("rule removed", names, f"with it back, the model costs {cost:.1f} µs as before")
    new = [rule for rule in lab.rules if now.library.get(rule.id) != then.library.get(rule.id)]

    def without(some: Sequence[Rule]) -> bool:
        out = {r.id for r in some}
        return restored(tuple(r for r in lab.rules if r.id not in out))

    if new and without(new):
        needed = minimal(new, without)
        return Culprit("rule added", tuple(r.id for r in needed), "without it, the model costs what it did")
    if gone and new:
        rules = (*(r for r in lab.rules if r not in new), *gone)
        if restored(rules):
            names = tuple(r.id.removesuffix("@baseline") for r in gone)
            evidence = f"with the baseline's rules and without {len(new)} new ones it costs what it did"
            return Culprit("rule removed", names, evidence)
    return None


def _parsed(name: str, text: Mapping[str, Any]) -> Rule | None:
    """A rule of the baseline, under a name that no rule of today has; ``None`` where it no longer parses."""
    try:
        return replace(parse_rule(text, where=f"the baseline's rule {name}"), id=f"{name}@baseline")
    except RuleError:
        return None
