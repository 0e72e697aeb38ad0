"""How far a model's outputs move by its own rounding, found by running it, without another evaluator.

Monte Carlo arithmetic (D. S. Parker, 1997; J. Vignes' CESTAC), in two kinds of disturbed runs of the original in ONNX
Runtime, its optimisations off:

* *inputs*: every real input, and every small weight whose digits are used up (a 3.1416, not a 0.5 or 12582912, which
  are meant exactly), is moved by up to :data:`STEPS` units in the last place. Rounding everywhere is drawn anew.
* *inside*: inputs stay; the result of every operator that rounds once, what an operator with sums inside reads, and
  the constants that it adds to them are multiplied by ``1 ± STEPS`` epsilons.

Either kind alone would excuse too much. Moving inputs excuses ``x·x - y·y`` in place of ``(x + y)·(x - y)``, which
rounds far less; disturbing intermediates excuses ``x`` in place of ``(x + 12582912) - 12582912``, whose rounding is
meant. So the judge takes the smaller of the two (:class:`superopt.verifier.check.tolerance.Moves`). Weights and what is
computed from weights alone are not disturbed inside otherwise: they are constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial

import ml_dtypes
import numpy as np

from superopt.formats.tensors import set_aside
from superopt.ir.graph import Graph, Value, WeightData
from superopt.ir.types import DType, TensorType
from superopt.ops.infer import Typing, infer, sizes_fed_to
from superopt.runtime.onnx_runtime import InferenceSession
from superopt.verifier.check.input_generation import fed_types
from superopt.verifier.check.noise_model import REALS, STEPS, Builder, NoiseInput, noise
from superopt.verifier.check.sessions import REFUSALS, Arrays, Bench, attempt
from superopt.verifier.check.tolerance import pieces

__all__ = ["Disturbed", "constants_read", "live_values"]

_SMALL = 1 << 16  # elements of a weight that is moved
# Real operands that shapes depend on.
_SHAPING = frozenset({"NonMaxSuppression", "Range", "Resize", "Upsample"})
_BITS = {DType.FLOAT64: 20, DType.FLOAT32: 8, DType.FLOAT16: 3, DType.BFLOAT16: 2}  # last bits: 0 in a round number


def live_values(graph: Graph) -> frozenset[str]:
    """Names of the values that depend on what is fed."""
    live = set(fed_types(graph))
    for node in graph.nodes:
        if any(r in live for r in node.reads):
            live.update(o for o in node.outputs if o)
    return frozenset(live)


@dataclass(frozen=True)
class _Noisy:
    """A disturbed model: its session, if ONNX Runtime takes it, and the inputs that read noise."""

    session: InferenceSession | None
    noise_inputs: tuple[NoiseInput, ...]


class Disturbed:
    """Disturbed runs of a graph.

    Args:
        graph: the original.
        bench: where its sessions are made.
        plain: a session of the original, optimisations off.
        typing: the original's types, if at hand.
    """

    def __init__(self, graph: Graph, bench: Bench, plain: InferenceSession, typing: Typing | None = None) -> None:
        self._graph, self._bench, self._plain = graph, bench, plain
        self._typing = typing or infer(graph)
        self._live = live_values(graph)
        self._constants = constants_read(graph, self._typing, self._live, bench, _SMALL, reals=True) or {}
        self._models: dict[tuple[bool, bool], _Noisy] = {}
        self._optimised: InferenceSession | None = None

    @cached_property
    def _shifted(self) -> _Shifted:
        return _Shifted(self._constants)

    def optimised(self, feeds: Mapping[str, np.ndarray], time_limit: float | None) -> Arrays | None:
        """What the original gives with the runtime's optimisations on."""
        try:
            if self._optimised is None:
                self._optimised = self._bench.session(self._graph, optimise=True)
        except REFUSALS:
            return None
        return attempt(self._optimised, feeds, time_limit=time_limit)

    def samples(
        self, feeds: Mapping[str, np.ndarray], numbers: range, *, tiny: bool, time_limit: float | None,
        together: bool = True,
    ) -> tuple[list[Arrays], list[Arrays]]:  # fmt: skip
        """Outputs of some runs with moved inputs, and of as many disturbed inside.

        Args:
            feeds: the inputs.
            numbers: which samples; equal numbers give the same outputs.
            tiny: values are near the smallest numbers, whose rounding is absolute.
            time_limit: seconds of one run.
            together: a run of either kind at once, which takes the memory of both.
        """
        if self._bench.is_large(self._graph):  # weights as the optimiser arranged them; other inputs may not ask
            self._optimised = None
        moving, disturbing = self._noisy(inside=False, tiny=False), self._noisy(inside=True, tiny=tiny)
        sizes = sizes_fed_to(self._graph, feeds)
        moved: list[Arrays | None] = []
        inside: list[Arrays | None] = []
        run = partial(attempt, time_limit=time_limit)
        with ThreadPoolExecutor(1, "disturbed") as beside:  # a run of either kind at once; neither sees the other
            for number in numbers:
                given = {n: _moved(a, np.random.default_rng([number, i])) for i, (n, a) in enumerate(feeds.items())}
                if moving.session is not None:
                    given |= {**self._shifted.of(number), **noise(moving.noise_inputs, sizes, number)}
                first = beside.submit(run, moving.session or self._plain, given)
                if not together:
                    wait((first,))
                if disturbing.session is not None:
                    given = {**feeds, **self._constants, **noise(disturbing.noise_inputs, sizes, number)}
                    inside.append(run(disturbing.session, given))
                moved.append(first.result())
        return [m for m in moved if m is not None], [m for m in inside if m is not None]

    def _noisy(self, *, inside: bool, tiny: bool) -> _Noisy:
        """A disturbed model, with a session where ONNX Runtime takes it."""
        if (inside, tiny) not in self._models:
            building = Builder(self._graph, self._typing, self._live, inside, tiny)
            made, session = building.build(self._constants), None
            with suppress(*REFUSALS):
                session = self._bench.session(made, optimise=False)
            self._models[inside, tiny] = _Noisy(session, tuple(building.noise_inputs))
        return self._models[inside, tiny]


def constants_read(
    graph: Graph, typing: Typing, live: frozenset[str], bench: Bench, most: int, *, reals: bool = False
) -> Arrays | None:
    """Constants of at most so many elements, stored or computed, that meet values which depend on the inputs.

    Args:
        graph: whose they are.
        typing: its types.
        live: its values that depend on the inputs.
        bench: where the computed ones are run.
        most: elements; larger ones are left out, which makes the whole ``None`` where every kind is asked for.
        reals: only those of real numbers that no shape depends on.
    """
    wanted: dict[str, None] = {}
    for node in graph.nodes:
        if any(r in live for r in node.reads) and not (reals and node.op in _SHAPING):
            wanted.update(dict.fromkeys(n for n in node.inputs if n and n not in live))
    names = [n for n in wanted if _is_small(typing.types.get(n), most, reals)]
    if not reals and len(names) < len(wanted):
        return None
    found = {n: w.data.numpy() for n in names if (w := graph.weight.get(n)) is not None and w.data is not None}
    computed = [n for n in names if n not in graph.weight]
    if not computed:
        return found
    nodes, needed = [], set(computed)
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            nodes.append(node)
            needed.update(node.reads)
    part = replace(
        graph, inputs=(), outputs=tuple(Value(n, typing.types[n]) for n in computed), values=(),
        nodes=tuple(reversed(nodes)), weights=tuple(w for w in graph.weights if w.name in needed),
    )  # fmt: skip
    try:
        made = attempt(bench.session(part, optimise=False), {})
    except REFUSALS:
        made = None
    return {**found, **made} if made is not None else found if reals else None


def _is_small(kind: object, most: int, reals: bool) -> bool:
    if not isinstance(kind, TensorType) or (reals and kind.dtype not in REALS):
        return False
    count = kind.elements
    return isinstance(count, int) and count <= most and (count > 0 or not reals)


def _moved(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Real elements moved by 1 to ``STEPS`` units in the last place, up or down; zeros stay.

    In pieces that a core's cache holds: weights that are not known are inputs too, of hundreds of megabytes.
    """
    if array.dtype.kind != "f" and array.dtype != ml_dtypes.bfloat16:
        return array
    moved = np.array(array, order="C")
    flat = moved.reshape(-1)
    for part in pieces(flat.size):
        steps = rng.integers(-STEPS, STEPS, flat[part].size, dtype=np.int8)
        steps += steps >= 0  # none is 0
        flat[part] = _stepped(flat[part], steps)
    return moved


def _stepped(array: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Elements moved by whole units in the last place: their patterns of bits, as integers, count them."""
    bits = array.view(f"i{array.dtype.itemsize}") if array.ndim else array.reshape(1).view(f"i{array.dtype.itemsize}")
    with np.errstate(over="ignore", invalid="ignore"):
        far = (bits + steps.reshape(bits.shape)).astype(bits.dtype, copy=False)
        moved = far.view(array.dtype).reshape(array.shape)
        fine = np.isfinite(array) & np.isfinite(moved) & (array != 0) & (moved != 0)
        fine &= ((bits ^ far) >= 0).reshape(array.shape)  # of the same sign
    return np.where(fine, moved, array)


class _Shifted:
    """Constants whose digits are used up, moved by 1 to ``STEPS`` units in the last place; equal magnitudes equally.

    What does not change from run to run is computed once, and set aside while a run has its values in memory: models
    have thousands of constants, and runs are dozens.
    """

    def __init__(self, constants: Mapping[str, np.ndarray]) -> None:
        self._by_type: list[tuple[dict[str, np.ndarray], WeightData, WeightData, WeightData]] = []
        for dtype in {a.dtype for a in constants.values()}:
            alike = {n: a for n, a in constants.items() if a.dtype == dtype}
            bits = np.concatenate([a.reshape(-1) for a in alike.values()]).view(f"i{dtype.itemsize}")
            drawn, movable = np.empty(bits.size, np.uint32), np.empty(bits.size, np.int8)
            for part in pieces(bits.size):
                drawn[part], movable[part] = _mixed(bits[part], DType.of(dtype))
            self._by_type.append((alike, set_aside(bits), set_aside(drawn), set_aside(movable)))

    def of(self, number: int) -> Arrays:
        """The constants as the run of this number reads them."""
        made: Arrays = {}
        key = np.uint32((number + 1) * 0x9E3779B9 & 0xFFFFFFFF)
        for alike, *aside in self._by_type:
            bits, drawn, movable = (data.numpy() for data in aside)
            moved = np.empty_like(bits)
            for part in pieces(bits.size):
                mixed = (drawn[part] ^ key) * np.uint32(0x85EBCA6B)
                mixed = (mixed ^ (mixed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
                steps = ((mixed >> np.uint32(16)) * np.uint32(2 * STEPS) >> np.uint32(16)).astype(np.int8) - STEPS
                steps += steps >= 0  # none is 0
                moved[part] = bits[part] + steps * movable[part]
            start = 0
            for name, array in alike.items():
                made[name] = moved[start : start + array.size].view(array.dtype).reshape(array.shape)
                start += array.size
        return made


def _mixed(bits: np.ndarray, dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """By element: a number that is drawn from its magnitude, and 1 where it can be moved: its digits are used up, and
    neither zero nor infinity is near."""
    magnitudes = bits.view(f"u{bits.itemsize}").astype(np.uint64) & np.uint64((1 << (8 * bits.itemsize - 1)) - 1)
    largest = int(np.asarray(np.inf, dtype.numpy).view(f"u{bits.itemsize}"))
    movable = magnitudes & np.uint64((1 << _BITS[dtype]) - 1) != 0
    movable &= (magnitudes > STEPS) & (magnitudes < largest - STEPS)
    mixed = (magnitudes + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return (mixed >> np.uint64(32)).astype(np.uint32), movable.astype(np.int8)
