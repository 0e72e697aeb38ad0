"""Admission of rules: a rule without a stored verdict is checked before the search uses it."""

from __future__ import annotations

import hashlib
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from superopt.ir.disk_cache import code_digest, load_object, store_object
from superopt.ir.errors import SuperoptError
from superopt.rules.float_verdicts import Directions, FloatVerdict, SafeConditions, float_key
from superopt.rules.library import ADMISSIBLE, BUILT_IN, PROOFS, RuleLibrary, load_library, write_verdicts
from superopt.rules.rule import Rule
from superopt.rules.scanner import RuleError
from superopt.verifier.exact.counterexample import describe
from superopt.verifier.exact.runtime_cross_check import runtime_disagrees
from superopt.verifier.exact.testing import test
from superopt.verifier.floats.rounding_effect import rounding_of
from superopt.verifier.floats.verdict_recording import verified_verdicts
from superopt.verifier.prover.prover import prove
from superopt.verifier.verdict import RefutedVerdict, TestedVerdict, UnknownVerdict, Verdict, kind_of, verdict_to_json

__all__ = ["Prover", "admit", "float_verdicts", "check", "record_all", "recorded", "renew", "verify"]

Prover = Callable[[Rule], Verdict]
_FOLDER, _MOST = "rules", 4096  # of what was found of rules that are not the library's own
_PACKAGES = ("ir", "ops", "rules", "runtime", "verifier")


def check(rule: Rule, *, prover: Prover | None = None, seed: int = 0) -> Verdict:
    """Exact testing, then a proof: the strongest verdict that stands. A refutation always wins.

    A rule that is proved from the meanings is also run by ONNX Runtime, which knows nothing of them: where its two
    sides differ there, a meaning is wrong, and the rule is not admitted. A fault of the verifier is this rule's
    verdict, and no other's.

    Raises:
        RuleError: the rule is not well-formed.
    """
    try:
        return _checked(rule, prover or prove, seed)
    except SuperoptError:
        raise
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return UnknownVerdict(
            f"internal error: {type(error).__name__}: {error} ({at.name}, {Path(at.filename).name}:{at.lineno}); a "
            "fault of superopt's, not of the rule: please report it with the rule"
        )


def _checked(rule: Rule, prover: Prover, seed: int) -> Verdict:
    tested = test(rule, seed=seed)
    if isinstance(tested, RefutedVerdict):
        return tested
    proved = prover(rule)
    if kind_of(proved) in ADMISSIBLE:
        disagreement = runtime_disagrees(rule, seed=seed)
        return UnknownVerdict(disagreement) if disagreement else proved
    weak = kind_of(proved) != "refuted" and not getattr(proved, "refused", False)
    if weak and isinstance(tested, TestedVerdict):
        return replace(tested, reason=getattr(proved, "reason", ""))
    return proved


def float_verdicts(rule: Rule) -> Directions:
    """The float verdicts on a rule, cached between runs: they take seconds to minutes."""
    name = _name("floats", rule)
    known = load_object(_FOLDER, name, (FloatVerdict, SafeConditions))
    if isinstance(known, dict):
        return known
    found = verified_verdicts(rule)
    store_object(_FOLDER, name, found, _MOST)
    return found


def _proved(rule: Rule, seed: int) -> Mapping[str, object] | Verdict:
    """An admissible verdict as data, kept between runs; another as it is, found anew every time."""
    name = _name("proof", rule, seed)
    known = load_object(_FOLDER, name, ())
    if isinstance(known, dict):
        return known
    verdict = check(rule, seed=seed)
    if kind_of(verdict) not in ADMISSIBLE:
        return verdict
    found = verdict_to_json(verdict)
    store_object(_FOLDER, name, found, _MOST)
    return found


def _name(what: str, rule: Rule, *more: object) -> str:
    asked = [what, code_digest(*_PACKAGES), float_key(rule), *more]
    return hashlib.sha256(repr(asked).encode()).hexdigest()


def admit(library: RuleLibrary, *, prover: Prover | None = None, seed: int = 0) -> RuleLibrary:
    """The library with every rule that has no verdict checked, over the reals and in floating point. What passes is
    kept in the user's cache folder, so that a folder of rules is checked once.

    Raises:
        RuleError: a rule is refuted (with its counterexample), or not proved.
    """
    found: dict[str, Mapping[str, object]] = {}
    for rule_id in library:
        if rule_id in library.verdicts or (library.chosen is not None and rule_id not in library.chosen):
            continue
        rule = library[rule_id]
        verdict = _proved(rule, seed) if prover is None else check(rule, prover=prover, seed=seed)
        if isinstance(verdict, Mapping):
            found[rule_id] = verdict
            continue
        if isinstance(verdict, RefutedVerdict):
            raise RuleError(f"the rule is false {describe(verdict.counterexample)}", where=f'rule "{rule_id}"')
        if isinstance(verdict, TestedVerdict):
            raise RuleError(
                f"the rule is true in {verdict.trials} exact trials, but not proved, so it is not used",
                where=f'rule "{rule_id}"', hint=f"optimise without it: --disable {rule_id}",
            )  # fmt: skip
        if kind_of(verdict) not in ADMISSIBLE:
            reason = getattr(verdict, "reason", "") or f"only {kind_of(verdict)}"
            raise RuleError(
                f"the rule is not proved, so it is not used: {reason}",
                where=f'rule "{rule_id}"', hint=f"optimise without it: --disable {rule_id}",
            )  # fmt: skip
        found[rule_id] = verdict_to_json(verdict)
    if not found:
        return library
    floats = {i: float_verdicts(library[i]) for i in found if float_key(library[i]) not in library.float_store}
    return library.with_verdicts(found).with_floats(floats)


def record_all(verdicts: Mapping[str, Verdict]) -> None:
    """Write verdicts on the built-in rules into ``proofs.json``: what is not proved loses the verdict it had."""
    library = load_library()
    kept = {
        rule_id: recorded(verdict, library[rule_id])
        for rule_id, verdict in verdicts.items() if rule_id in library and kind_of(verdict) in ADMISSIBLE
    }  # fmt: skip
    others = {i: v for i, v in library.verdicts.items() if i not in verdicts}
    write_verdicts(BUILT_IN / PROOFS, replace(library, store={}).with_verdicts({**others, **kept}).store)


def recorded(verdict: Verdict, rule: Rule) -> dict[str, object]:
    """A verdict as the store keeps it: without times, with the measured rounding of both sides."""
    data = {k: v for k, v in verdict_to_json(verdict).items() if k != "seconds"}
    return {**data, **rounding_of(rule)}


def verify(
    library: RuleLibrary,
    *,
    prover: Prover | None = None,
    seed: int = 0,
    again: bool = False,
    progress: Callable[[str, Verdict], None] | None = None,
) -> tuple[RuleLibrary, dict[str, Verdict]]:
    """Check the rules that have no proof (all of them with ``again``); verdicts of rules that are gone are dropped.

    Returns:
        The library with its new store, and the verdicts that are not admissible, by rule id.
    """
    found: dict[str, Mapping[str, object]] = {}
    refused: dict[str, Verdict] = {}
    for rule_id in library:
        if not again and library.verdict_name(rule_id) == "proved_all_sizes":
            found[rule_id] = library.verdicts[rule_id]
            continue
        verdict = check(library[rule_id], prover=prover, seed=seed)
        if kind_of(verdict) in ADMISSIBLE:
            found[rule_id] = recorded(verdict, library[rule_id])
        else:
            refused[rule_id] = verdict
        if progress is not None:
            progress(rule_id, verdict)
    return replace(library, store={}).with_verdicts(found), refused


def renew(*, again: bool = False, progress: Callable[[str, Verdict], None] | None = None) -> dict[str, Verdict]:
    """Bring the built-in ``proofs.json`` up to date with the rules and meanings; returns what was refused."""
    library, refused = verify(load_library(), prover=prove, again=again, progress=progress)
    write_verdicts(BUILT_IN / PROOFS, library.store)
    return refused


if __name__ == "__main__":  # python -m superopt.verifier.admission [--again]
    for _id, _verdict in renew(again="--again" in sys.argv, progress=lambda i, v: print(kind_of(v), i)).items():
        print("REFUSED", _id, _verdict)
