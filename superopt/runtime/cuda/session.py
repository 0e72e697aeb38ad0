"""A graph made ready to run many times: weights uploaded, one arena, library plans chosen, the launches captured once.

The same steps run through any :class:`Driver`: the CUDA device (:mod:`.device`), the CPU (:mod:`.host`), or a test's
recorder. Nothing is allocated while launches are captured: a captured graph keeps addresses, so its memory must stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod
from typing import Protocol

import numpy as np

from superopt.ir.errors import UsageError, printable
from superopt.ir.graph import Graph, Weight
from superopt.runtime.cuda.library import Call
from superopt.runtime.cuda.plan import Launch, Plan, Step, plan

__all__ = ["Driver", "Session", "supported"]

_DRAWN = 20  # power of two: random elements that are drawn


class Driver(Protocol):
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


def supported(graph: Graph, driver: Driver, sizes: Mapping[str, int] | None = None, *, fuse: bool = True) -> Plan:
    """The plan with library calls where the device has them.

    Raises:
        Unsupported: the graph cannot be planned; names the node.
    """
    found = plan(graph, sizes, fuse=fuse)
    steps = (*found.setup, *found.steps)
    missing = {s.value for s in steps if not isinstance(s, Launch) and not driver.supports(s)}
    return plan(graph, sizes, fuse=fuse, generated=frozenset(missing)) if missing else found


@cache
def _drawn(power: int) -> np.ndarray:
    """``2**power`` random elements; beyond a million they repeat, as to draw each takes longer than all else."""
    if power > _DRAWN:
        return np.resize(_drawn(_DRAWN), 1 << power)
    return np.random.default_rng(0).standard_normal(1 << power, dtype=np.float32)


class Session:
    """Runs a graph on a device.

    Args:
        graph: a checked graph, all of whose operators have a meaning.
        driver: the device.
        sizes: values for its named dimensions.
        fuse: see :func:`superopt.runtime.cuda.plan.plan`.

    Raises:
        Unsupported: the graph cannot be planned; names the node.
        BackendUnavailable: the device is not there.
    """

    def __init__(
        self, graph: Graph, driver: Driver, sizes: Mapping[str, int] | None = None, *, fuse: bool = True
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
