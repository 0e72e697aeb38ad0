"""What a sharded enumeration takes on any number of cores: measured by one process, predicted, and held against others.

``python -m lab.scaling [CONFIG] [--workers 1,2,4] [--write lab/notes/scale.md]`` enumerates the first theme of
CONFIG in this process, which gives the cost of each task and of the client; predicts what it takes with other numbers
of workers by playing the client's loop through with those costs; and runs that: :func:`accounted` is what such a run
takes by processor time. Neighbours, the other workers among them, make the same work take more of it, so costs are in
units of a sample: a small enumeration in as many processes at once, before and after each run. It also says what each
process held. With ``--replay`` it
measures a fleet whose tasks, and whose client between them, sleep for as long as they computed: whether the fleet's
loop is the one that is simulated. :func:`predicted` with costs scaled up is the capacity plan of lab/notes/scale.md.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from lab.algorithms import replaced
from superopt.discovery import load_config
from superopt.discovery.enumerate import enumerate_terms
from superopt.discovery.explore import fingerprint_points
from superopt.discovery.sharded import Cost, Step, Traffic, enumerate_sharded
from superopt.fleet import Fleet, Task
from superopt.fleet.child import Crew

__all__ = ["Cluster", "Ran", "accounted", "calibrated", "main", "predicted", "replayed", "sampled", "scaled"]

T = TypeVar("T")
_SMALL = 3  # operators a side of a sample
_SAMPLES = 2  # of each process, after one to load what it needs

_VOCABULARY = """
seed = 5
terms = 3000000
[[theme]]
name = "wide"
operators = 4
leaves = { x = "f[m, k]", a = "f[k, n]", c = "f[k, n]", s = "f[]" }
weights = ["a", "c"]
vocabulary = ["MatMul(A, B)", "Add(A, B)", "Mul(A, B)", "Sub(A, B)", "Neg(A)", "Transpose(A, perm=[1, 0])",
              "Concat(A, B, axis=1)", "ReduceSum(A, axes=[1], keepdims=1)"]
"""


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
            sending = len(tasks) * where.task + sum(t.sent + t.received for t in tasks) / where.bandwidth
            work += sum(t.seconds for t in tasks) + given + taken + sending
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


@dataclass(frozen=True)
class Ran:
    """A sharded enumeration on some workers.

    Attributes:
        seconds: from its start to its end, with whatever else the machine did.
        client: seconds of processor time of the client, all of it.
        traffic: what the tasks took.
        classes: in all; ``operands``: of those that the client holds.
        grown: bytes by which the largest resident size of any worker, and of the client, grew over what an interpreter
            with everything loaded has.
    """

    seconds: float
    client: float
    traffic: Traffic
    classes: int
    operands: int
    grown: tuple[int, int]


def _run(config: Any, shards: int, workers: int) -> Ran:
    theme = config.themes[0]
    points = fingerprint_points(theme, config)
    with Fleet.open(workers) as fleet:
        list(fleet.map([Task(_sample, (config, 2))] * (4 * workers)))  # so that all have loaded what tasks need
        small = replace(theme, operators=2)
        enumerate_sharded(small, points, config.seed, config.terms, shards=4 * workers, fleet=fleet)
        before = dict(o.result() for o in fleet.map([Task(_resident, (True, n)) for n in range(4 * workers)]))
        own = _resident(True)[1]
        started, cpu = time.monotonic(), time.process_time()
        found, traffic = enumerate_sharded(theme, points, config.seed, config.terms, shards=shards, fleet=fleet)
        seconds, cpu = time.monotonic() - started, time.process_time() - cpu
        own = _resident(False)[1] - own
        after = dict(o.result() for o in fleet.map([Task(_resident, (False, n)) for n in range(4 * workers)]))
    grown = max(after[worker] - before[worker] for worker in after.keys() & before.keys())
    return Ran(seconds, cpu, traffic, found.levels[-1].classes, len(found.classes), (grown, own))


def sampled(config: Any, workers: int) -> float:
    """Seconds of processor time of a small enumeration where so many processes do one at once: what the machine is like
    now, for that many."""
    crew, threads = Crew(), ThreadPoolExecutor(workers)
    with Fleet(threads, size=lambda: workers, run=crew.run, close=crew.close) as fleet:
        for operators, count in ((_SMALL - 1, 1), (_SMALL, _SAMPLES)):
            found = [o.result() for o in fleet.map([Task(_sample, (config, operators))] * (count * workers))]
        return median(found)


def _sample(config: Any, operators: int) -> float:
    theme = replace(config.themes[0], operators=operators)
    points = fingerprint_points(theme, config)
    started = time.process_time()
    enumerate_sharded(theme, points, config.seed, config.terms, shards=1, fleet=Fleet())
    return time.process_time() - started


def _alone(config: Any) -> tuple[int, int]:
    """Bytes by which a process grows that holds all classes (and coincidences), and how many classes."""
    theme = config.themes[0]
    points = fingerprint_points(theme, config)
    enumerate_terms(replace(theme, operators=2), points, config.seed, config.terms)
    before = _resident(True)[1]
    found = enumerate_terms(theme, points, config.seed, config.terms)
    return _resident(False)[1] - before, found.levels[-1].classes


def _resident(anew: bool, _: int = 0) -> tuple[int, int]:
    """This process, and its resident size in bytes: now, from where the peak counts anew, or the peak since then."""
    from superopt.discovery import sharded

    assert sharded.__name__
    if anew:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak begins again (proc(5))
    time.sleep(0.02)  # so that each process gets one
    lines = Path("/proc/self/status").read_text().splitlines()
    name = "VmRSS" if anew else "VmHWM"
    return os.getpid(), int(next(line for line in lines if line.startswith(name)).split()[1]) << 10


def accounted(ran: Ran, cores: int) -> float:
    """What a run takes on so many cores with nothing beside it: what was done, in the order in which it was done, by
    the processor time that it took, and at least all of that over the cores. Load changes that order and the caches a
    little, and nothing else.

    The client's time beside making blocks and taking results (packing, sending) is spread evenly over the tasks.
    """
    steps = ran.traffic.steps
    tasks = sum(len(s.blocks) + len(s.joins) for s in steps)
    rest = max(0.0, ran.client - sum(s.given + s.taken + s.ended for s in steps)) / max(tasks, 1)
    now, free = 0.0, dict[int, float]()
    for step in steps:
        share = {"blocks": max(len(step.blocks), 1), "joins": 0}
        ends: dict[tuple[str, int], float] = {}
        for kind, number, taken in step.order:
            cost = (step.blocks if kind == "blocks" else step.joins)[number]
            own = (step.taken if taken else step.given) / share[kind] if share[kind] else 0.0
            if taken:
                now = max(now, ends[kind, number]) + own + rest / 2
            else:
                now += own + rest / 2
                free[cost.worker] = ends[kind, number] = max(now, free.get(cost.worker, 0.0)) + cost.seconds
        now += step.ended
    return max(now, (_work(ran) + ran.client) / cores)


def calibrated() -> tuple[float, float]:
    """What the client spends on a task beside its bytes, in seconds of processor time, and bytes that it sends and
    takes back in one: of a fleet of one process, for :class:`Cluster`."""
    crew, threads = Crew(), ThreadPoolExecutor(1)
    found = []
    with Fleet(threads, size=lambda: 1, run=crew.run, close=crew.close) as fleet:
        for size, count in ((1, 200), (1 << 20, 40)):
            content = os.urandom(size)
            list(fleet.map([Task(_echoed, (content,)) for _ in range(10)]))
            started = time.process_time()
            list(fleet.map([Task(_echoed, (content,)) for _ in range(count)]))
            found.append((time.process_time() - started) / count)
    task, large = found
    return task, (2 << 20) / max(large - task, 1e-6)


def _echoed(content: bytes) -> bytes:
    return content


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("config", type=Path, nargs="?", help="of discovery; eight matrix operators, four a side")
    parser.add_argument("--workers", default="1,2,4", help="numbers of workers that are measured")
    parser.add_argument("--shards", type=int, default=32)
    parser.add_argument("--replay", type=float, metavar="X", help="sleep, X times as long as was computed")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables into lab/notes/scale.md")
    given = parser.parse_args()
    config = _config(given.config)
    alone, unit = _beside_samples(config, given.shards, 1)
    rows: list[dict[str, Any]] = []
    whole, classes = _apart(_alone, config) if not given.replay else (0, alone.classes)
    task, bandwidth = calibrated()
    cores = os.cpu_count() or 1
    for workers in map(int, given.workers.split(",")):
        load = os.getloadavg()[0]
        if given.replay:
            slower = [_slower(step, given.replay) for step in alone.traffic.steps]
            seconds, guess = replayed(slower, workers), predicted(slower, Cluster(workers, cores=workers + 1))
            rows.append({"workers": workers, "seconds": seconds, "predicted": guess, "load": load})
        else:
            ran, sample = (alone, unit) if workers == 1 else _beside_samples(config, given.shards, workers)
            where = Cluster(workers, cores, task=task, bandwidth=bandwidth)
            where = where if workers > 1 else replace(where, task=0, bandwidth=1e15)
            by_sample, by_tasks = ((x, predicted([_slower(step, x) for step in alone.traffic.steps], where))
                                   for x in (sample / unit, _work(ran) / _work(alone)))  # fmt: skip
            measured = accounted(ran, cores) if workers > 1 else sum(_spent(s) for s in ran.traffic.steps)
            rows.append({
                "workers": workers, "seconds": ran.seconds, "accounted": measured, "load": load,
                "by_sample": by_sample, "by_tasks": by_tasks,
                "held": ran.traffic.largest, "operands": ran.operands, "classes": ran.classes,
                "grown": ran.grown[0], "client_grown": ran.grown[1],
            })  # fmt: skip
        print(json.dumps(rows[-1]), file=sys.stderr)
    steps = alone.traffic.steps
    data = {
        "traffic": alone.traffic.as_json(), "runs": rows, "steps": [_sums(s) for s in steps], "classes": classes,
        "alone_grown": whole, "cores": cores, "task_seconds": task, "bandwidth": bandwidth, "shards": given.shards,
    }  # fmt: skip
    text = json.dumps(data, indent=1)
    if given.json is not None:
        given.json.write_text(text + "\n", encoding="utf-8")
    print(text)
    if given.write is not None:
        page = given.write.read_text(encoding="utf-8")
        given.write.write_text(replaced(page, "nodes", _table(data)), encoding="utf-8")
    return 0


def _beside_samples(config: Any, shards: int, workers: int) -> tuple[Ran, float]:
    """A run, and what a sample takes beside it: the mean of before and after."""
    before = sampled(config, workers)
    ran = _apart(_run, config, shards, workers)
    return ran, (before + sampled(config, workers)) / 2


def _config(path: Path | None) -> Any:
    """A configuration; the vocabulary of lab/notes/scale.md where none is given."""
    if path is not None:
        return load_config(path)
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(_VOCABULARY)
        file.flush()
        return load_config(Path(file.name))


def _apart(function: Callable[..., T], *arguments: Any) -> T:
    """A call in a process that holds nothing else: what an earlier run left would hide what this one takes."""
    crew, threads = Crew(), ThreadPoolExecutor(1)
    with Fleet(threads, size=lambda: 1, run=crew.run, close=crew.close) as fleet:
        (outcome,) = fleet.map([Task(function, arguments)])
        return outcome.result()


def _work(ran: Ran) -> float:
    """Seconds of processor time of all tasks: neighbours on the same cores and caches make the same tasks take more."""
    return sum(c.seconds for s in ran.traffic.steps for c in (*s.blocks, *s.joins))


def _spent(step: Step) -> float:
    return sum(c.seconds for c in (*step.blocks, *step.joins)) + step.given + step.taken + step.ended


def _table(data: dict[str, Any]) -> list[str]:
    """What each node held, and what a run took, beside what is asked for and what was predicted."""
    size, total, whole = data["traffic"]["row_bytes"], data["classes"], data["alone_grown"]
    lines = [
        f"{total:,} classes; as rows of {size:.0f} bytes {total * size / 1e6:.1f} MB; a process that enumerates all of "
        f"them grows by {whole / 1e6:.0f} MB.", "",
        "| workers | allowed on a node: 1.2 × classes ÷ workers | held by a worker | by the client | grown: allowed "
        "| a worker | the client |", "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    several = [r for r in data["runs"] if r["workers"] > 1]
    for run in several:
        allowed = 1.2 / run["workers"]
        lines.append(
            f"| {run['workers']} | {_held(round(allowed * total), size)} | {_held(run['held'], size)} | "
            f"{_held(run['operands'], size)} | {allowed * whole / 1e6:.0f} MB | {run['grown'] / 1e6:.0f} MB | "
            f"{run['client_grown'] / 1e6:.0f} MB |"
        )
    lines += [
        "", f"| workers | took on {data['cores']} cores, by processor time | predicted, by the sample | ÷ took "
        "| predicted, tasks as slow as in this run | ÷ took | wall time, load average |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for run in data["runs"]:
        guesses = " | ".join(_guess(run, how) for how in ("by_sample", "by_tasks"))
        lines.append(
            f"| {run['workers']} | {run['accounted']:.2f} s | {guesses} | {run['seconds']:.1f} s, {run['load']:.1f} |"
        )
    return lines


def _guess(run: dict[str, Any], how: str) -> str:
    slower, seconds = run[how]
    return f"{seconds:.2f} s (x{slower:.2f}) | {seconds / run['accounted']:.2f}"


def _held(classes: int, size: float) -> str:
    return f"{classes:,} ({classes * size / 1e6:.2f} MB)"


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
    from lab import scaling  # under the name by which workers find its functions

    sys.exit(scaling.main())
