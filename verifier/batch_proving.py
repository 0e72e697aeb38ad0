"""Proves many rules at once, and reports each verdict when it is there.

Proofs end by counted work (:mod:`superopt.verifier.prover.budget`). A worker that does not answer is ended by the
clock, long after any proof has used its count. Its rule is then unknown, and the verdict says that the clock ended it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from superopt.fleet import TaskLost, TaskResultStore, WorkerPool, WorkerTask, digest
from superopt.fleet.environment_digest import libraries
from superopt.ir.disk_cache import code_digest
from superopt.ir.errors import SuperoptError
from superopt.rules import Rule
from superopt.rules.canonical import rule_text
from superopt.rules.typing import meaning_digest
from superopt.verifier.admission import check
from superopt.verifier.prover.budget import emergency
from superopt.verifier.prover.prover import prove
from superopt.verifier.verdict import UnknownVerdict, Verdict, verdict_from_json, verdict_to_json

__all__ = ["Progress", "prove_all"]

Progress = Callable[[str, Verdict, int, int], None]
_GRACE = 1200.0  # seconds that a worker may take beyond the proof's own emergency stop: it hangs, or has no processor
_DECISIVE = ("ir", "ops", "runtime", "rules", "verifier")  # the rooms that verdicts depend on


def prove_all(
    rules: Iterable[Rule],
    *,
    fleet: WorkerPool | None = None,
    time_limit: float = 10.0,
    progress: Progress | None = None,
    seed: int = 0,
    kept: TaskResultStore | None = None,
) -> dict[str, Verdict]:
    """The verdict on every rule, by id: exact testing first (a counterexample wins), then the all-sizes proof.

    Args:
        rules: rules with distinct ids.
        fleet: what proves them; this process, without the hard bound, where none is given.
        time_limit: the work of so many seconds per proof.
        progress: called with id, verdict, number done and number in all, as verdicts arrive.
        seed: of the exact tests.
        kept: verdicts of earlier runs, and where those of this one are kept.
    """
    asked = list(rules)
    seconds = emergency(time_limit) + _GRACE
    tasks = (
        WorkerTask(
            _verdict_of,
            (rule, time_limit, seed),
            rule.id,
            _key(rule, time_limit, seed) if kept else "",
            seconds=seconds,
        )
        for rule in asked
    )
    verdicts: dict[str, Verdict] = {}
    for outcome in (fleet or WorkerPool()).each(tasks, kept=kept):
        rule_id = outcome.task.name
        try:
            verdicts[rule_id] = verdict_from_json(outcome.result())
        except TaskLost as error:
            verdicts[rule_id] = UnknownVerdict(f"the prover did not answer: {error.what}")
        if progress is not None:
            progress(rule_id, verdicts[rule_id], len(verdicts), len(asked))
    return {rule.id: verdicts[rule.id] for rule in asked}


def _key(rule: Rule, time_limit: float, seed: int) -> str:
    try:
        meaning = meaning_digest(rule)
    except SuperoptError as error:  # not well-formed, which is what its verdict will say
        meaning = str(error)
    return digest(
        "proved", code_digest(*_DECISIVE), dict(libraries()), rule.id, rule_text(rule), meaning, time_limit, seed
    )


def _verdict_of(rule: Rule, time_limit: float, seed: int) -> dict[str, object]:
    try:
        verdict: Verdict = check(rule, prover=partial(prove, time_limit=time_limit), seed=seed)
    except SuperoptError as error:
        verdict = UnknownVerdict(f"not well-formed: {error}")
    return verdict_to_json(verdict)
