"""Proving many rules at once: worker processes, and progress as verdicts arrive.

Proofs end by counted work (:mod:`.budget`). A worker that does not answer at all is ended by the clock, long after any
proof has used up its count, and replaced; its rule is unknown, and says that it was the clock.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from superopt.ir.errors import SuperoptError
from superopt.rules import Rule
from superopt.verifier.admission import check
from superopt.verifier.budget import emergency
from superopt.verifier.prover import prove
from superopt.verifier.verdict import Unknown, Verdict

__all__ = ["Progress", "prove_all"]

Progress = Callable[[str, Verdict, int, int], None]
_GRACE = 1200.0  # seconds that a worker may take beyond the proof's own emergency stop: it hangs, or has no processor


@dataclass
class _Worker:
    process: BaseProcess
    channel: Connection
    rule: Rule | None = None
    deadline: float = float("inf")


def prove_all(
    rules: Iterable[Rule],
    *,
    workers: int = 2,
    time_limit: float = 10.0,
    progress: Progress | None = None,
    seed: int = 0,
) -> dict[str, Verdict]:
    """The verdict on every rule, by id: exact testing first (a counterexample wins), then the all-sizes proof.

    Args:
        rules: rules with distinct ids.
        workers: processes; 1 proves in this process, without the hard bound.
        time_limit: the work of so many seconds per proof.
        progress: called with id, verdict, number done and number in all, as verdicts arrive.
        seed: of the exact tests.
    """
    pending = list(rules)[::-1]
    total, found = len(pending), dict[str, Verdict]()

    def arrived(rule: Rule, verdict: Verdict) -> None:
        found[rule.id] = verdict
        if progress is not None:
            progress(rule.id, verdict, len(found), total)

    if workers <= 1 or total <= 1:
        for rule in reversed(pending):
            arrived(rule, _judged(rule, time_limit, seed))
        return {r.id: found[r.id] for r in reversed(pending)}
    order = [r.id for r in reversed(pending)]
    pool = [_started(time_limit, seed) for _ in range(min(workers, total))]
    try:
        while len(found) < total:
            for worker in pool:
                if worker.rule is None and pending:
                    _give(worker, pending.pop(), time_limit)
            _collect(pool, arrived, time_limit, seed)
    finally:
        for worker in pool:
            _ended(worker)
    return {i: found[i] for i in order}


def _give(worker: _Worker, rule: Rule, time_limit: float) -> None:
    worker.rule = rule
    worker.deadline = time.monotonic() + emergency(time_limit) + _GRACE
    worker.channel.send(rule)


def _collect(pool: list[_Worker], arrived: Callable[[Rule, Verdict], None], time_limit: float, seed: int) -> None:
    """Take what is ready; replace workers that died or are overdue."""
    busy = {w.channel: w for w in pool if w.rule is not None}
    wait(list(busy), timeout=0.5)
    for worker in busy.values():
        assert worker.rule is not None
        if worker.channel.poll():
            try:
                verdict = worker.channel.recv()
            except EOFError:
                verdict = None
            if verdict is not None:
                arrived(worker.rule, verdict)
                worker.rule = None
                continue
        elif worker.process.is_alive() and time.monotonic() < worker.deadline:
            continue
        ended = not worker.process.is_alive()
        reason = "the prover's process ended" if ended else "stopped by the clock: the prover did not answer"
        _ended(worker)
        arrived(worker.rule, Unknown(reason))
        pool[pool.index(worker)] = _started(time_limit, seed)


def _started(time_limit: float, seed: int) -> _Worker:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, time_limit, seed), daemon=True)
    process.start()
    there.close()
    return _Worker(process, here)


def _ended(worker: _Worker) -> None:
    worker.channel.close()
    worker.process.terminate()
    worker.process.join(1.0)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()


def _serve(channel: Connection, time_limit: float, seed: int) -> None:
    while True:
        try:
            rule = channel.recv()
        except EOFError:
            return
        channel.send(_judged(rule, time_limit, seed))


def _judged(rule: Rule, time_limit: float, seed: int) -> Verdict:
    try:
        return check(rule, prover=partial(prove, time_limit=time_limit), seed=seed)
    except SuperoptError as error:
        return Unknown(f"not well-formed: {error}")
