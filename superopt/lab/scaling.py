"""What a sharded enumeration takes on any number of cores: measured by one process, predicted, and held against others.

``python -m superopt.lab.scaling CONFIG [--workers 1,2,4] [--json FILE]`` enumerates the first theme of CONFIG in this
process, which gives the cost of each task and of the client; predicts what it takes with other numbers of workers by
playing the client's loop through with those costs; and measures that. With ``--replay`` it measures a fleet whose
tasks, and whose client between them, sleep for as long as they computed, which a busy machine disturbs little.
:func:`predicted` with costs scaled up is the capacity plan of docs/scale.md.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from superopt.discovery import load_config
from superopt.discovery.explore import fingerprint_points
from superopt.discovery.sharded import Cost, Step, Traffic, enumerate_sharded
from superopt.fleet import Fleet, Task
from superopt.fleet.child import Crew

__all__ = ["Cluster", "main", "predicted", "replayed", "scaled"]


@dataclass(frozen=True)
class Cluster:
    """Where work is done.

    Attributes:
        workers: processes beside the client.
        cores: that they and the client share; as many as they are where each has its own.
        start: seconds until a worker takes its first task.
        task: seconds that giving out and taking back one task costs the client beside its bytes.
        bandwidth: bytes a second through the client.
        ahead: tasks given out for each worker.
    """

    workers: int
    cores: int
    start: float = 0.0
    task: float = 0.001
    bandwidth: float = 1e9
    ahead: int = 1


def predicted(steps: Sequence[Step], where: Cluster) -> float:
    """Seconds that an enumeration takes.

    The client gives tasks out and takes results back, one thing at a time; workers take them as they come.

    Args:
        steps: what each size takes.
        where: workers and their network.
    """
    slots = min(where.workers, where.cores)
    now, free = 0.0, [where.start] * slots
    work = 0.0
    for step in steps:
        for tasks, given, taken in ((step.blocks, step.given, step.taken), (step.joins, 0.0, 0.0)):
            if not tasks:
                continue
            now, free = _played(tasks, given / len(tasks), taken / len(tasks), where, now, free)
            work += sum(t.seconds for t in tasks) + given + taken
        now += step.ended
        work += step.ended
        free = [max(now, t) for t in free]
    return max(now, work / where.cores)


def _played(
    tasks: Sequence[Cost], given: float, taken: float, where: Cluster, now: float, free: Sequence[float]
) -> tuple[float, list[float]]:
    """When the last result of some tasks was taken, and when each worker is free."""
    idle, under_way = list(free), list[tuple[float, int]]()
    heapq.heapify(idle)
    following = 0
    while following < len(tasks) or under_way:
        while following < len(tasks) and len(under_way) < len(free) * where.ahead:
            now += given + where.task / 2 + tasks[following].sent / where.bandwidth
            end = max(now, heapq.heappop(idle)) + tasks[following].seconds
            heapq.heappush(idle, end)
            heapq.heappush(under_way, (end, following))
            following += 1
        end, number = heapq.heappop(under_way)
        now = max(now, end) + taken + where.task / 2 + tasks[number].received / where.bandwidth
    return now, idle


def scaled(step: Step, factor: float) -> Step:
    """A step with so many times the terms: as many times the blocks, of the same size, and larger ranges."""
    total = max(1, round(len(step.blocks) * factor))
    rows = sum(c.rows for c in step.blocks) * factor / total
    rate = factor * len(step.blocks) / total

    def mean(name: str) -> float:
        return float(sum(getattr(c, name) for c in step.blocks) / len(step.blocks) * rate)

    block = Cost(mean("seconds"), round(mean("sent")), round(mean("received")), round(rows))
    joins = [
        Cost(c.seconds * factor, round(c.sent * factor), round(c.received * factor), round(c.rows * factor))
        for c in step.joins
    ]
    return Step([block] * total, joins, step.given * factor, step.taken * factor, step.ended * factor)


def replayed(steps: Sequence[Step], workers: int) -> float:
    """Seconds that a fleet of this machine takes for tasks that sleep for as long as these took.

    Args:
        steps: what each size takes.
        workers: processes.
    """
    crew, threads = Crew(), ThreadPoolExecutor(workers)
    with Fleet(threads, size=lambda: workers, run=crew.run, close=crew.close) as fleet:
        list(fleet.map([Task(_slept, (0.2,)) for _ in range(4 * workers)]))
        started = time.monotonic()
        for step in steps:
            for tasks, given, taken in ((step.blocks, step.given, step.taken), (step.joins, 0.0, 0.0)):
                for _ in fleet.map(_after(tasks, given / max(1, len(tasks)))):
                    time.sleep(taken / len(tasks))
            time.sleep(step.ended)
        return time.monotonic() - started


def _after(tasks: Sequence[Cost], given: float) -> Iterator[Task[float]]:
    for cost in tasks:
        time.sleep(given)
        yield Task(_slept, (cost.seconds,))


def _slept(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def _run(config: Any, shards: int, workers: int) -> tuple[float, float, Traffic, list[Any], int]:
    """Wall seconds, seconds until workers answered, traffic, levels, and the largest resident size of a worker."""
    theme = config.themes[0]
    points = fingerprint_points(theme, config)
    with Fleet.open(workers) as fleet:
        started = time.monotonic()
        list(fleet.map([Task(_warm, (n,)) for n in range(2 * workers)]))
        warm = time.monotonic() - started
        before = max([o.result() for o in fleet.map([Task(_resident, (n,)) for n in range(4 * workers)])])
        started = time.monotonic()
        found, traffic = enumerate_sharded(theme, points, config.seed, config.terms, shards=shards, fleet=fleet)
        seconds = time.monotonic() - started
        grown = max([o.result() for o in fleet.map([Task(_resident, (n,)) for n in range(4 * workers)])]) - before
    return seconds, warm, traffic, [asdict(level) for level in found.levels], grown


def _warm(_: int) -> int:
    """Load what the tasks need."""
    from superopt.discovery import sharded

    return len(sharded.__name__)


def _resident(_: int) -> int:
    """The largest resident size of this process so far, in bytes."""
    time.sleep(0.02)  # so that each process gets one
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("config", type=Path)
    parser.add_argument("--workers", default="1,2,4", help="numbers of workers that are measured")
    parser.add_argument("--shards", type=int, default=32)
    parser.add_argument("--replay", type=float, metavar="X", help="sleep, X times as long as was computed")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    config, cores = load_config(given.config), os.cpu_count() or 1
    alone, _, traffic, levels, _ = _run(config, given.shards, 1)
    rows: list[dict[str, Any]] = []
    for workers in map(int, given.workers.split(",")):
        load = os.getloadavg()[0]
        if given.replay:
            slower = [_slower(step, given.replay) for step in traffic.steps]
            seconds, guess = replayed(slower, workers), predicted(slower, Cluster(workers, cores=workers + 1))
            rows.append({
                "workers": workers, "seconds": round(seconds, 2), "predicted": round(guess, 2),
                "ratio": round(guess / seconds, 3), "load": round(load, 1),
            })  # fmt: skip
            print(json.dumps(rows[-1]), file=sys.stderr)
            continue
        seconds, warm, own, _, grown = (
            (alone, 0.0, traffic, [], 0) if workers == 1 else _run(config, given.shards, workers)
        )
        guess = predicted(traffic.steps, Cluster(workers, 1 if workers == 1 else cores))
        rows.append({
            "workers": workers, "seconds": round(seconds, 2), "predicted": round(guess, 2),
            "ratio": round(guess / seconds, 3), "load": round(load, 1), "starting": round(warm, 2),
            "most_rows_held": own.largest, "share_of_all": round(own.largest / own.rows, 4), "grown_mb": grown >> 20,
        })  # fmt: skip
        print(json.dumps(rows[-1]), file=sys.stderr)
    data = {"levels": levels, "traffic": traffic.as_json(), "runs": rows, "steps": [_sums(s) for s in traffic.steps]}
    text = json.dumps(data, indent=1)
    if given.json is not None:
        given.json.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


def _slower(step: Step, times: float) -> Step:
    """A step in which everything takes so many times as long."""
    blocks, joins = ([replace(c, seconds=c.seconds * times) for c in tasks] for tasks in (step.blocks, step.joins))
    return Step(blocks, joins, step.given * times, step.taken * times, step.ended * times)


def _sums(step: Step) -> dict[str, float]:
    terms = max(1, sum(c.rows for c in step.blocks))
    own = {"given": step.given, "taken": step.taken, "ended": step.ended}
    tasks = (*step.blocks, *step.joins)
    return {
        "terms": terms, "block_us": 1e6 * sum(c.seconds for c in step.blocks) / terms,
        "join_us": 1e6 * sum(c.seconds for c in step.joins) / terms,
        **{f"client_{name}_us": 1e6 * seconds / terms for name, seconds in own.items()},
        "sent_bytes": sum(c.sent for c in tasks) / terms, "received_bytes": sum(c.received for c in tasks) / terms,
    }  # fmt: skip


if __name__ == "__main__":
    from superopt.lab import scaling  # under the name by which workers find its functions

    sys.exit(scaling.main())
