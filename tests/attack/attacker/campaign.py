"""Attacks run against the product in worker processes, each under a hard time limit."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import onnx

from attacker.build import Attack
from attacker.feeds import Feed, feeds
from attacker.generate import generate
from attacker.oracle import Oracle, Verdict

TARGET = "profile:cpu-epyc-2core"
STARTING = 240.0  # seconds, hard, that a fresh worker may take longer: it prepares every rule


@dataclass(frozen=True)
class Outcome:
    """What became of one attack.

    Attributes:
        outcome: "right", "wrong", "refused", "timeout" (or the worker died), "invalid" (the attack is none).
        kind, detail: of what is wrong, or the error's text.
        rewritten: the result has other nodes or weights than the input.
        rules: what the report says was applied.
        lost, flushed: see :class:`attacker.oracle.Verdict`.
        seconds: processor time of the product.
    """

    seed: int
    group: str
    motif: str
    outcome: str
    kind: str = ""
    detail: str = ""
    rewritten: bool = False
    rules: tuple[str, ...] = ()
    check: str = ""
    lost: int = 0
    flushed: int = 0
    seconds: float = 0.0


def optimised(model: onnx.ModelProto, time_limit: float) -> tuple[bytes, dict[str, object], bool]:
    """The product's answer: ONNX bytes, its report, and whether it rewrote anything."""
    import superopt
    from superopt.formats import to_onnx_bytes

    answer = superopt.optimize(model.SerializeToString(), target=TARGET, time_limit=time_limit)
    report = answer.report.json()
    return to_onnx_bytes(answer.graph), report, report["status"] != "unchanged"


def attack_one(attack: Attack, *, time_limit: float, count: int) -> tuple[Outcome, Feed | None, bytes]:
    """Optimise and judge one attack; the feed that shows what is wrong, and the result, come with the outcome."""
    about = (attack.seed, attack.group, attack.motif)
    try:
        onnx.checker.check_model(attack.model, full_check=True)
        oracle = Oracle(attack.model)
    except Exception as error:  # of onnx's or ONNX Runtime's many kinds: the generator is at fault
        return Outcome(*about, "invalid", type(error).__name__, str(error)[:300]), None, b""
    began = time.process_time()
    try:
        result, report, rewritten = optimised(attack.model, time_limit)
    except Exception as error:  # whatever it is, a valid model was refused
        return Outcome(*about, "refused", type(error).__name__, str(error)[:300]), None, b""
    took = time.process_time() - began
    fed = feeds(attack, count if rewritten else 3)  # what was not rewritten was still written and read again
    verdict: Verdict = oracle.judge(result, fed)
    rules = tuple(str(r["rule"]) for r in report["rules_applied"])  # type: ignore[index]
    outcome = Outcome(
        *about, "wrong" if verdict.wrong else "right", verdict.kind, verdict.detail, rewritten, rules,
        str(report["check"]["verdict"]), verdict.lost, verdict.flushed, round(took, 3),  # type: ignore[index]
    )  # fmt: skip
    return outcome, verdict.feed, result


def keep(folder: Path, outcome: Outcome, attack: Attack, feed: Feed | None, result: bytes) -> None:
    """Write a failure down for replay: the model, the result, the inputs, and what was found."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{outcome.seed:05d}-{attack.group}-{attack.motif}"
    stem.with_suffix(".onnx").write_bytes(attack.model.SerializeToString())
    if result:
        Path(f"{stem}.result.onnx").write_bytes(result)
    if feed is not None:
        np.savez(stem.with_suffix(".npz"), **feed)
    stem.with_suffix(".json").write_text(json.dumps(asdict(outcome), indent=1) + "\n", encoding="utf-8")


def _work(connection: Connection, time_limit: float, count: int, folder: str | None, group: str | None) -> None:
    while True:
        seed = connection.recv()
        if seed is None:
            return
        attack = generate(seed, group)
        outcome, feed, result = attack_one(attack, time_limit=time_limit, count=count)
        if folder and outcome.outcome != "right":
            keep(Path(folder), outcome, attack, feed, result)
        connection.send(outcome)


class Worker:
    """A process that attacks; after a timeout or a crash another takes its place."""

    def __init__(self, time_limit: float, count: int, folder: Path | None, group: str | None) -> None:
        self.settings = (time_limit, count, str(folder) if folder else None, group)
        self.process: multiprocessing.process.BaseProcess | None = None
        self.connection: Connection | None = None
        self.seed: int | None = None
        self.until = 0.0

    def start(self, seed: int) -> None:
        """Give it a seed."""
        grace = 0.0
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.connection, theirs = context.Pipe()
            self.process = context.Process(target=_work, args=(theirs, *self.settings), daemon=True)
            self.process.start()
            theirs.close()
            grace = STARTING
        assert self.connection is not None
        self.seed, self.until = seed, time.monotonic() + 3 * self.settings[0] + 30 + grace
        self.connection.send(seed)

    def poll(self) -> Outcome | None:
        """An outcome if there is one; a worker that is overdue or dead is ended."""
        seed = self.seed
        assert self.connection is not None
        assert seed is not None
        if self.connection.poll(0.02):
            try:
                outcome: Outcome = self.connection.recv()
            except EOFError:
                return self._ended(seed, "crash", "the worker died")
            self.seed = None
            return outcome
        if time.monotonic() > self.until:
            return self._ended(seed, "overrun", "the hard time limit passed")
        return None

    def _ended(self, seed: int, kind: str, detail: str) -> Outcome:
        self.stop()
        attack = generate(seed, self.settings[3])
        outcome = Outcome(seed, attack.group, attack.motif, "timeout", kind, detail)
        if self.settings[2]:
            keep(Path(self.settings[2]), outcome, attack, None, b"")
        return outcome

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
        if self.connection is not None:
            with contextlib.suppress(OSError):
                self.connection.close()
        self.process = self.connection = self.seed = None


def campaign(
    seeds: Sequence[int], *, workers: int = 1, time_limit: float = 20.0, count: int = 24, folder: Path | None = None,
    group: str | None = None,
) -> Iterator[Outcome]:  # fmt: skip
    """Outcomes as they come.

    Args:
        seeds: of the attacks.
        workers: processes.
        time_limit: seconds given to the product for a model; three times as much and half a minute is the hard limit.
        count: feeds a model.
        folder: where failures are written for replay.
        group: only of this group.
    """
    waiting, pool = list(reversed(seeds)), [Worker(time_limit, count, folder, group) for _ in range(workers)]
    try:
        while waiting or any(w.seed is not None for w in pool):
            for worker in pool:
                if worker.seed is None and waiting:
                    worker.start(waiting.pop())
                if worker.seed is not None and (outcome := worker.poll()) is not None:
                    yield outcome
    finally:
        for worker in pool:
            worker.stop()


def table(outcomes: Sequence[Outcome]) -> str:
    """Figures by group as a Markdown table."""
    lines = ["| group | models | rewritten | unchanged | wrong | refused | timeout | invalid |", "|---|" + "---:|" * 7]
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    for o in outcomes:
        for name in (o.group, "all"):
            groups[name].update([o.outcome, "models", *(["rewritten"] if o.rewritten else [])])
    for name in [*sorted(set(groups) - {"all"}), "all"]:
        c = groups[name]
        unchanged = c["right"] + c["wrong"] - c["rewritten"]
        cells = (c["models"], c["rewritten"], unchanged, c["wrong"], c["refused"], c["timeout"], c["invalid"])
        lines.append(f"| {name} | " + " | ".join(str(v) for v in cells) + " |")
    return "\n".join(lines)
