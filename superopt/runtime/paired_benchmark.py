"""Whole models timed against each other: interleaved, inputs and outputs bound once, medians of per-round ratios.

The method (docs/costs.md): a random order in every round cancels drift and neighbours' load, the minimum of a
short burst drops preemptions, and the ratio is taken inside a round before the median is taken over rounds.
"""

from __future__ import annotations

import math
import os
import platform
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from types import MappingProxyType
from typing import Literal

import numpy as np

from superopt.ir.errors import UsageError
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.protocol import InputBoundModel, Runtime, released
from superopt.runtime.resource_limits import give_back

__all__ = [
    "Clock",
    "IQR_OF_NORMAL",
    "PairedTimes",
    "SETTLED",
    "SURELY",
    "beyond_quartiles",
    "circumstances",
    "cpu_name",
    "median_beyond",
    "median_error",
    "time_models",
    "time_bound",
    "time_loadings",
    "result_of",
]


Clock = Literal["wall", "cpu"]
_SHORTEST_BURST = 500_000  # ns: a burst of very short runs is lengthened to this, so that a minimum means something
# Nanoseconds after which a model finds its weights where its run before left them, not where the other's did. A
# MobileViT that takes 1.023 of its input's 1.2 ms (10 processes, 1.018 to 1.032) was said to take 1.005 ± 0.013 by
# samples of 1 ms and 1.022 ± 0.003 by samples of 10 ms, in 15 and 7 rounds; longer ones say no more. Models of 10 ms
# and more scatter by 0.003 to 0.02, however long a sample is.
SETTLED = 10_000_000
_LONGEST_BURST = 64  # runs
_COLD = 8  # times as long as others that a model's first run takes at most: memory is asked for and nothing is cached
_APART, _FAR_APART = 200_000, 4_000_000  # bytes between what one loading and the next occupy


@dataclass(frozen=True)
class PairedTimes:
    """Times of several models that ran interleaved on the same inputs.

    Attributes:
        ms: per model, the median over rounds of the burst's minimum, in milliseconds.
        best_ms: per model, the least time of all.
        ratios: per model, the median over rounds of its time ÷ the first model's (so ``ratios[0] == 1``).
        spread: per model, the interquartile range of those per-round ratios.
        samples: per round, the burst's minimum of each model, in milliseconds.
        runs: timed runs of each model.
        loadings: how many times the models were loaded for it.
        circumstances: device, versions, threads, clock, load, date.
    """

    ms: tuple[float, ...]
    best_ms: tuple[float, ...]
    ratios: tuple[float, ...]
    spread: tuple[float, ...]
    samples: tuple[tuple[float, ...], ...]
    runs: int
    circumstances: Mapping[str, str | int | float] = field(default_factory=dict)
    loadings: int = 1

    @property
    def rounds(self) -> int:
        return len(self.samples)


Enough = Callable[[PairedTimes], bool]


def time_models(
    models: Sequence[bytes | Path],
    feeds: Mapping[str, np.ndarray] | Sequence[Mapping[str, np.ndarray]],
    *,
    runtime: Runtime = ONNX_RUNTIME,
    rounds: int = 15,
    burst: int = 3,
    threads: int | None = None,
    time_limit: float = 30.0,
    clock: Clock = "wall",
    seed: int = 0,
    looks: Mapping[int, Enough] = MappingProxyType({}),
) -> PairedTimes:
    """Time models against each other on a runtime with all its optimisations.

    Args:
        models: serialised models, or their paths; the first is what ratios are taken to.
        feeds: inputs of all models, or one mapping per model.
        runtime: what runs them.
        rounds: rounds wanted; fewer run when the time limit comes first, never fewer than one.
        burst: consecutive runs whose minimum is a sample; more where they would be over before caches have settled.
        threads: threads inside an operator (``None``: every core).
        time_limit: seconds, sessions included.
        clock: ``"cpu"`` is the calling thread's CPU time, immune to preemption; it needs ``threads=1``.
        seed: of the order inside each round.
        looks: after so many rounds, whether what they say is enough. Whoever looks several times at one race has to
            share the chance of error among the looks.

    Raises:
        InvalidModel, Unsupported, UsageError: see :class:`superopt.runtime.protocol.Runtime`.
    """
    start = time.monotonic()
    each = [feeds] * len(models) if isinstance(feeds, Mapping) else list(feeds)
    bound = [runtime.load(m, threads=threads).bound(f) for m, f in zip(models, each, strict=True)]
    left = time_limit - (time.monotonic() - start)
    return time_bound(
        bound, runtime=runtime, rounds=rounds, burst=burst, threads=threads, time_limit=left, clock=clock, seed=seed,
        looks=looks, shortest=SETTLED,
    )  # fmt: skip


def time_bound(
    bound: Sequence[InputBoundModel],
    *,
    runtime: Runtime = ONNX_RUNTIME,
    rounds: int = 15,
    burst: int = 3,
    threads: int | None = None,
    time_limit: float = 30.0,
    clock: Clock = "wall",
    seed: int = 0,
    looks: Mapping[int, Enough] = MappingProxyType({}),
    shortest: int = _SHORTEST_BURST,
) -> PairedTimes:
    """:func:`time_models` for models that are already bound; a burst of short runs takes ``shortest`` nanoseconds.

    Raises:
        UsageError: there is nothing to time, or the CPU clock was asked for with several threads.
    """
    if not bound:
        raise UsageError("there is no model to time")
    if clock == "cpu" and threads != 1:
        raise UsageError("the thread's CPU time counts one thread only", hint="set threads=1, or use the wall clock")
    now = time.thread_time_ns if clock == "cpu" else time.perf_counter_ns
    deadline = time.monotonic() + time_limit
    lengths = [_burst_length(b.step, burst, shortest, now) for b in bound]
    order = list(range(len(bound)))
    shuffle = random.Random(seed).shuffle
    samples: list[tuple[float, ...]] = []
    while len(samples) < max(rounds, 1) and (not samples or time.monotonic() < deadline):
        shuffle(order)
        taken = {i: _fastest(bound[i].step, lengths[i], now) / 1e6 for i in order}
        samples.append(tuple(taken[i] for i in range(len(bound))))
        enough = looks.get(len(samples))
        if enough is not None and enough(result_of(samples, 0, {})):
            break
    return result_of(samples, min(lengths) * len(samples), circumstances(threads, clock, runtime))


def time_loadings(
    load: Callable[[], Sequence[InputBoundModel]],
    *,
    loadings: int,
    rounds: int,
    runtime: Runtime = ONNX_RUNTIME,
    burst: int = 1,
    threads: int | None = None,
    time_limit: float = 30.0,
    clock: Clock = "wall",
    enough: Enough = lambda result: False,
    looks: Mapping[int, Enough] = MappingProxyType({}),
    shortest: int = _SHORTEST_BURST,
) -> PairedTimes:
    """Several benchmarks of the same models, loaded anew for each: where a model lies in memory changes what it takes.

    Each is freed before the next, whose memory begins elsewhere: a block of another length is held from then on. Of 14
    convolutions and products beside a form of theirs, loadings of one process differ by a standard deviation of 0.037,
    and the median of four differs from process to process by 0.029, as it does where all loadings are kept, which takes
    three to five times the memory. (In one arena for all sessions it differs by 0.051.)

    Args:
        load: makes the models, bound to their inputs.
        loadings: loadings at most; one is always made.
        rounds: of each.
        runtime: what runs them.
        burst: consecutive runs whose minimum is a sample.
        threads: inside an operator.
        clock: as for :func:`time_models`.
        time_limit: seconds, all loading but the first included.
        enough: whether what two or more loadings say is enough.
        looks: as for :func:`time_models`, of each loading.
        shortest: as for :func:`time_bound`.

    Raises:
        UsageError: as :func:`time_bound`. What ``load`` raises.
    """
    deadline = math.inf
    held: list[np.ndarray] = []
    samples: list[tuple[float, ...]] = []
    runs = made = 0
    for number in range(loadings):
        bound = load()
        deadline = min(deadline, time.monotonic() + time_limit)
        timed = time_bound(
            bound, runtime=runtime, rounds=rounds, burst=burst, threads=threads, clock=clock, seed=number,
            time_limit=deadline - time.monotonic(), looks=looks, shortest=shortest,
        )  # fmt: skip
        del bound
        samples += timed.samples
        runs += timed.runs
        made += 1
        if (number and enough(replace(result_of(samples, runs, {}), loadings=made))) or time.monotonic() >= deadline:
            break
        give_back()
        held.append(np.ones(random.Random(number).randrange(_APART, _FAR_APART), np.uint8))
    return replace(result_of(samples, runs, circumstances(threads, clock, runtime)), loadings=made)


def _burst_length(step: Callable[[], object], burst: int, shortest: int, now: Callable[[], int]) -> int:
    """Runs of a burst, by what one takes that is not the first."""
    once = _fastest(step, 1, now)
    if once < _COLD * shortest:
        once = _fastest(step, 2, now)
    return max(burst, min(_LONGEST_BURST, shortest // once), 1)


def _fastest(step: Callable[[], object], count: int, now: Callable[[], int]) -> int:
    least = 1 << 62
    for _ in range(count):
        start = now()
        step()
        least = min(least, now() - start)
    return max(least, 1)


def result_of(samples: Sequence[tuple[float, ...]], runs: int, where: Mapping[str, str | int | float]) -> PairedTimes:
    """What samples say: a row a round, a column a model, milliseconds."""
    table = np.array(samples)
    ratios = table / table[:, :1]
    quarter, middle, three = np.quantile(ratios, [0.25, 0.5, 0.75], axis=0)
    return PairedTimes(
        ms=tuple(map(float, np.median(table, axis=0))),
        best_ms=tuple(map(float, table.min(axis=0))),
        ratios=tuple(map(float, middle)),
        spread=tuple(map(float, three - quarter)),
        samples=tuple(samples),
        runs=runs,
        circumstances=where,
    )


@lru_cache(maxsize=1)
def cpu_name() -> str:
    """The processor's model name, as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.lower().startswith(("model name", "hardware")):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux: the platform module knows less, but something
    return platform.processor() or platform.machine() or "unknown CPU"


def circumstances(threads: int | None, clock: Clock, runtime: Runtime = ONNX_RUNTIME) -> dict[str, str | int | float]:
    """What a measurement must carry to be read later."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else -1.0
    return {
        "device": cpu_name(),
        "cores": os.cpu_count() or 1,
        "threads": threads or 0,
        "clock": clock,
        "runtime": released(runtime),
        "load": round(load, 2),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


# -- Statistics of draws -------------------------------------------------------------------------------------------
#
# Times are not normal, because noise only adds. Ratios within a round nearly are, and quartiles ignore outliers.


SURELY = 2.0  # standard deviations beyond which a belief is acted on: it is wrong once in forty
_OF_QUARTILES = 0.4  # degrees of freedom that the interquartile range of normal draws has of those of their deviation
_FEWEST = 15  # draws of which quartiles say how far they scatter
IQR_OF_NORMAL = 2 * NormalDist().inv_cdf(0.75)  # interquartile range of a normal distribution, in standard deviations


def median_error(count: int) -> float:
    """The standard error of the median of so many draws, in interquartile ranges: √(π/2) σ/√n; at least one draw."""
    return math.sqrt(math.pi / 2 / max(count, 1)) / IQR_OF_NORMAL


@lru_cache(maxsize=256)
def median_beyond(count: int, probability: float) -> float:
    """By how many of their standard deviations the median of so many normal draws is too high with this probability.

    The standard deviation is that of the draws themselves (``ddof=1``), of which few know little: Student's law, with
    the standard error of a median in place of a mean's, which overstates the probability (0.3 to 0.6 of it was found
    for 3 to 31 draws). Even degrees of freedom have a closed form (Abramowitz and Stegun 26.7.4); an even count gets
    that of one draw fewer. Infinite for fewer than three.
    """
    freedom = (count - 1) // 2 * 2
    return math.inf if freedom < 2 else _student(freedom, probability) * math.sqrt(math.pi / 2 / count)


@lru_cache(maxsize=256)
def beyond_quartiles(count: int, probability: float) -> float:
    """The same in interquartile ranges of the draws, which single draws far off do not widen; infinite for fewer than
    fifteen. Where either of the two bounds is passed, 0.1 to 0.9 of the probability was found for 15 and 31 draws
    (normal, Student's with three degrees, 15 % of them eight times as wide, differences of waiting times; 10^6 each).
    """
    if count < _FEWEST:
        return math.inf
    return _student(int(_OF_QUARTILES * count) // 2 * 2, probability) * median_error(count)


def _student(freedom: int, probability: float) -> float:
    """What Student's law with an even number of degrees of freedom passes with this probability."""
    low, high = 0.0, 1e9
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _beyond(middle, freedom) > probability else (low, middle)
    return high


def _beyond(t: float, freedom: int) -> float:
    """The probability of more than ``t`` by Student's law with an even number of degrees of freedom."""
    angle = math.atan(t / math.sqrt(freedom))
    term = total = 1.0
    for k in range(1, freedom // 2):
        term *= math.cos(angle) ** 2 * (2 * k - 1) / (2 * k)
        total += term
    return 0.5 - 0.5 * math.sin(angle) * total
