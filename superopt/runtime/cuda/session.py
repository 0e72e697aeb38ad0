"""A graph made ready to run many times: weights uploaded, one arena, library plans chosen, the launches captured once.

The same steps run through any :class:`ExecutionDevice`: the CUDA device (:mod:`.device`), the CPU (:mod:`.host`), or a
test's recorder. Nothing is allocated while launches are captured: a captured graph keeps addresses, so its memory must
stay.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod
from typing import Protocol

import numpy as np

from superopt.ir.errors import UsageError, printable
from superopt.ir.graph import Graph, Weight
from superopt.runtime.cuda.execution_plan import CudaExecutionPlan, KernelLaunch, Step, plan
from superopt.runtime.cuda.vendor_libraries import Call
from superopt.runtime.paired_benchmark import PairedTimes, result_of

__all__ = ["TimedExecutionDevice", "ExecutionDevice", "CudaGraphSession", "time_sessions", "supported"]


_DRAWN = 20  # power of two: random elements that are drawn


class ExecutionDevice(Protocol):
    """What a plan needs of a device. Pointers are addresses; memory lives as long as the driver."""

    def supports(self, call: Call) -> bool:
        """Whether a library call can be made here (else a generated kernel takes its place)."""
        ...

    def prepare(self, steps: Sequence[Step]) -> None:
        """Compile kernels, choose library algorithms, allocate workspace: all that must precede a capture."""
        ...

    def allocate(self, nbytes: int) -> int:
        """Device memory, aligned to 256 bytes, zeroed."""
        ...

    def upload(self, pointer: int, array: np.ndarray) -> None: ...

    def download(self, pointer: int, array: np.ndarray) -> None:
        """Fill an array from the device, after all that was launched."""
        ...

    def step(self, step: Step, pointers: Sequence[int]) -> None:
        """Launch one step; the addresses of what it reads, then of what it makes."""
        ...

    def capture(self, body: Callable[[], None]) -> Callable[[], None]:
        """Record the launches of ``body``, each of which ran before; the result launches them again, all at once."""
        ...


def supported(
    graph: Graph, driver: ExecutionDevice, sizes: Mapping[str, int] | None = None, *, fuse: bool = True
) -> CudaExecutionPlan:
    """The plan with library calls where the device has them.

    Raises:
        Unsupported: the graph cannot be planned; names the node.
    """
    found = plan(graph, sizes, fuse=fuse)
    steps = (*found.setup, *found.steps)
    missing = {s.value for s in steps if not isinstance(s, KernelLaunch) and not driver.supports(s)}
    return plan(graph, sizes, fuse=fuse, generated=frozenset(missing)) if missing else found


@cache
def _drawn(power: int) -> np.ndarray:
    """``2**power`` random elements; beyond a million they repeat, as to draw each takes longer than all else."""
    if power > _DRAWN:
        return np.resize(_drawn(_DRAWN), 1 << power)
    return np.random.default_rng(0).standard_normal(1 << power, dtype=np.float32)


class CudaGraphSession:
    """Runs a graph on a device.

    Args:
        graph: a checked graph, all of whose operators have a meaning.
        driver: the device.
        sizes: values for its named dimensions.
        fuse: see :func:`superopt.runtime.cuda.execution_plan.plan`.

    Raises:
        Unsupported: the graph cannot be planned; names the node.
        BackendUnavailable: the device is not there.
    """

    def __init__(
        self, graph: Graph, driver: ExecutionDevice, sizes: Mapping[str, int] | None = None, *, fuse: bool = True
    ) -> None:
        self.graph, self.driver = graph, driver
        self.plan = supported(graph, driver, sizes, fuse=fuse)
        driver.prepare((*self.plan.setup, *self.plan.steps))
        self._addresses = self.place()
        self.launch(self._addresses)  # libraries set themselves up, which cannot be captured
        self.replay = driver.capture(lambda: self.launch(self._addresses))

    def place(self) -> dict[str, int]:
        """Addresses, in fresh memory, of weights (uploaded, and the setup run), inputs, outputs and the arena."""
        found = self.plan
        addresses: dict[str, int] = {}
        arena = self.driver.allocate(max(found.arena, 1))
        made = {s.output for s in (*found.setup, *found.steps)}
        needed = {found.root(n) for s in (*found.setup, *found.steps) for n in s.reads}
        needed |= made | {found.root(v.name) for v in self.graph.outputs}
        for name in sorted(needed):
            if name in found.offsets:
                addresses[name] = arena + found.offsets[name]
                continue
            addresses[name] = self.driver.allocate(max(found.types[name].nbytes or 0, 1))
            weight = self.graph.weight.get(name)
            if weight is not None:
                self._upload(name, weight, addresses[name])
        for step in found.setup:
            self.driver.step(step, self.pointers(step, addresses))
        return addresses

    def _upload(self, name: str, weight: Weight, address: int) -> None:
        """A weight's elements; those of a shape-only weight are drawn, as zeros make some devices faster."""
        if weight.data is not None:
            array = weight.data.numpy()
        else:
            shape = self.plan.shape(name)
            found = _drawn(max(prod(shape) - 1, 1).bit_length())[: prod(shape)].reshape(shape)
            array = found.astype(weight.type.dtype.numpy, copy=False)
        self.driver.upload(address, np.ascontiguousarray(array))

    def pointers(self, step: Step, addresses: Mapping[str, int]) -> list[int]:
        """The addresses that a step is launched with: what it reads, then what it makes."""
        return [addresses[self.plan.root(n)] for n in (*step.reads, step.output)]

    def launch(self, addresses: Mapping[str, int]) -> None:
        """The steps of one inference, at these addresses."""
        for step in self.plan.steps:
            self.driver.step(step, self.pointers(step, addresses))

    def again(self) -> None:
        """The steps of one inference, at the session's own addresses, for a capture of several."""
        self.launch(self._addresses)

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One inference: outputs by name, at their own element types.

        Raises:
            UsageError: an input is missing or has another shape than the session was made for.
        """
        for value in self.graph.inputs:
            name = value.name
            if name not in feeds:
                raise UsageError(f"input {printable(name)!r} was not given")
            if name not in self._addresses:
                continue  # nothing reads it
            array = np.asarray(feeds[name])
            shape = self.plan.shape(name)
            if array.shape != shape:
                raise UsageError(f"input {printable(name)!r} has the shape {array.shape}, not {shape}")
            self.driver.upload(self._addresses[name], np.ascontiguousarray(array, self.plan.types[name].dtype.numpy))
        self.replay()
        results = {}
        for value in self.graph.outputs:
            array = np.empty(self.plan.shape(value.name), self.plan.types[value.name].dtype.numpy)
            self.driver.download(self._addresses[self.plan.root(value.name)], array)
            results[value.name] = array
        return results


# -- Timing of sessions against each other -------------------------------------------------------------------------
#
# Whole graphs timed against each other on a CUDA device: captured, interleaved, medians of per-round ratios.
#
# The method of :mod:`superopt.runtime.paired_benchmark` with the device's own clock: as many inferences as take about
# two milliseconds are captured in one CUDA graph, so that launching and the events cost next to nothing.


_REPLAY_US = 2000.0
_MOST = 4096  # launches in one captured graph


class TimedExecutionDevice(ExecutionDevice, Protocol):
    """A driver with a clock."""

    def elapsed(self, body: Callable[[], None]) -> float:
        """Microseconds that a body's launches take on the device."""
        ...

    def facts(self) -> Mapping[str, str | int]: ...


def time_sessions(
    sessions: Sequence[CudaGraphSession], driver: TimedExecutionDevice, *, rounds: int = 15, time_limit: float = 30.0
) -> PairedTimes:
    """Time sessions that have run on their inputs; the first is what ratios are taken to.

    Args:
        sessions: graphs made ready on one driver.
        driver: whose clock is read.
        rounds: rounds wanted; fewer run when the time limit comes first, never fewer than one.
        time_limit: seconds.

    Raises:
        UsageError: there is nothing to time.
    """
    if not sessions:
        raise UsageError("there is no model to time")
    deadline = time.monotonic() + time_limit
    bodies = [_repeated(session, driver) for session in sessions]
    order = list(range(len(bodies)))
    shuffle = random.Random(0).shuffle
    samples: list[tuple[float, ...]] = []
    while len(samples) < max(rounds, 1) and (not samples or time.monotonic() < deadline):
        shuffle(order)
        taken = {i: driver.elapsed(bodies[i][0]) / bodies[i][1] / 1e3 for i in order}
        samples.append(tuple(taken[i] for i in range(len(bodies))))
    where = {
        **driver.facts(), "threads": 1, "clock": "events", "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    }  # fmt: skip
    return result_of(samples, min(count for _, count in bodies) * len(samples), where)


def _repeated(session: CudaGraphSession, driver: TimedExecutionDevice) -> tuple[Callable[[], None], int]:
    """One captured graph of several inferences, which has run once, and how many they are."""
    session.replay()
    once = max(driver.elapsed(session.replay), 0.1)
    steps = max(len(session.plan.steps), 1)
    count = int(min(max(_REPLAY_US / once, 1), max(1, _MOST // steps)))
    if count == 1:
        return session.replay, 1

    def body() -> None:
        for _ in range(count):
            session.again()

    captured = driver.capture(body)
    captured()
    return captured, count
