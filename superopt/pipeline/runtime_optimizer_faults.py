"""Does ONNX Runtime's own optimiser break a model? It is run both ways on a few inputs, and both are compared.

What the model makes with the optimiser off is what it means. With the optimiser on, an output may move as rounding
moves it: kernels that it fuses sum in another order. It is broken where it moves much further than the model's own
rounding does (:mod:`superopt.verifier.check.rounding_noise`), where its shape or a result that rounding does not reach
is another, or where the model is refused. Behind a quantisation, a branch or a comparison rounding flips single
elements by whole steps, so there a share of all elements has to be off. An operator between DequantizeLinear and
QuantizeLinear runs in eight bits, which is what such models are made for: behind it, only results that are another as a
whole are a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from superopt.cost import graph_work
from superopt.ir.errors import InvalidModel, Unsupported, UsageError
from superopt.ir.graph import Graph
from superopt.ir.types import DType, TensorType
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.ops.shape_inference import CanonicalNode, InferredTypes
from superopt.pipeline.check_policy import CHECKS
from superopt.runtime.onnx_runtime import ONNX_RUNTIME, InferenceSession
from superopt.runtime.onnx_runtime import run as run_session
from superopt.verifier.check.differential import make_inputs
from superopt.verifier.check.input_generation import LEVELS, fed_types
from superopt.verifier.check.rounding_noise import DisturbedRuns, is_exact
from superopt.verifier.check.shared_weight_sessions import Arrays, SharedWeightSessions, attempt
from superopt.verifier.check.steered_inputs import steered
from superopt.verifier.check.tolerance import FACTOR, ULPS, OutputRoundingNoise, element_type, equal, scales

if TYPE_CHECKING:
    from superopt.runtime.protocol import LoadedModel

__all__ = ["RuntimeOptimizerFault", "UnoptimizedRuntimeReference"]

_KINDS = ("normal", "uniform", "edge", "normal")  # of unsteered inputs


@dataclass(frozen=True)
class RuntimeFaultPolicy:
    """How hard, and against what, the runtime's own optimisations are tried.

    Attributes:
        steered_inputs: inputs that are steered to the graph's own constants, as far as the work goes.
        operations: of all runs of one kind: a second's; one input is tried in any case.
        samples: disturbed runs of each kind: one explains most differences; of eight, the farthest move of any
            element is within half of its standard deviation.
        kept_bytes: bytes of outputs of disturbed runs that are kept for the next output.
        distance: times as far as FACTOR allows: fused kernels approximate (tanh, erf) and sum in blocks, which is
            no fault.
        share: share of elements that are off where rounding flips some by whole steps.
        fewest: elements that are off, at least, where rounding flips some by whole steps.
        quantisation_error: root mean square of what results in eight bits are off by, as a share of theirs: they
            keep about five.
    """

    steered_inputs: int = 12
    operations: float = 2e9
    samples: tuple[int, ...] = (1, 8)
    kept_bytes: int = 1 << 26
    distance: float = 4.0
    share: float = 0.02
    fewest: int = 3
    quantisation_error: float = 0.25


POLICY = RuntimeFaultPolicy()
_QUANTISING = frozenset({"QuantizeLinear", "DequantizeLinear"})


@dataclass(frozen=True)
class RuntimeOptimizerFault:
    """What ONNX Runtime's optimiser does to a graph.

    Attributes:
        refusal: why the graph does not run with it; "" where it does.
        outputs: what differs, by output in words.
    """

    refusal: str = ""
    outputs: Mapping[str, str] = field(default_factory=dict)

    def words(self) -> str:
        """In plain words."""
        if self.refusal:
            return (
                "ONNX Runtime runs this model only without its own optimisations, which are on by default. "
                f"With them: {self.refusal}"
            )
        said = "; ".join(f"output {name!r} {what}" for name, what in self.outputs.items())
        return f"ONNX Runtime's own optimisations, which are on by default, change what this model computes: {said}"


@dataclass(frozen=True)
class _Trial:
    """Inputs, and what the model makes of them; ``ordinary``: numbers of magnitudes about 1, which overflow nowhere."""

    ordinary: bool
    feeds: Arrays
    outputs: Arrays


def _inputs(graph: Graph, seed: int, sizes: Mapping[str, int], level: int) -> Iterator[tuple[bool, Arrays]]:
    for number, kind in enumerate(_KINDS):
        yield kind != "edge", make_inputs(graph, seed + number, kind, sizes, level=level)
    for feed in steered(graph, graph, seed, sizes, level, POLICY.steered_inputs):
        plain = not (feed.mixed or feed.tiny or feed.scaled or feed.cancelling)
        if plain and all(a.size for a in feed.arrays.values()):  # kernels may end the process at a size of 0
            yield False, feed.arrays


class UnoptimizedRuntimeReference:
    """What a model computes with the runtime's optimisations off, and how far its own rounding moves that.

    Args:
        graph: the model.
        typing: its types.
        seed: of the inputs.
        sizes: symbolic dimensions that are fixed.
        bench: where sessions are made.
        longest: seconds that the next run may take.

    Raises:
        InvalidModel, Unsupported, UsageError: it does not run even so, or on no input that was tried.
        ResourceLimit: it does not fit in memory, or takes too long.
    """

    def __init__(
        self, graph: Graph, typing: InferredTypes, seed: int, sizes: Mapping[str, int], bench: SharedWeightSessions,
        longest: Callable[[], float] = lambda: CHECKS.fault_run_seconds,
    ) -> None:  # fmt: skip
        self.graph, self._typing, self._bench, self._longest = graph, typing, bench, longest
        self._plain = bench.session(graph, optimise=False)
        work = graph_work(graph, typing, sizes)
        most = max(1, int(POLICY.operations / max(work["flops"] + work["bytes"], 1.0)))
        self._trials: list[_Trial] = []
        self._kept: tuple[Arrays, range, tuple[list[Arrays], list[Arrays]]] | None = None
        level, refusal = self._level(seed, sizes)
        for ordinary, feeds in islice(_inputs(graph, seed, sizes, level), most):
            made = attempt(self._plain, feeds, time_limit=self._longest())
            if made is not None:
                self._trials.append(_Trial(ordinary, feeds, made))
        if not self._trials:
            raise refusal or UsageError("ONNX Runtime refuses every input that was tried")

    def _level(self, seed: int, sizes: Mapping[str, int]) -> tuple[int, InvalidModel | UsageError | None]:
        """How symbolic sizes are chosen that the model takes; or why it takes none."""
        refusal: InvalidModel | UsageError | None = None
        if all(kind.is_static for kind in fed_types(self.graph).values()):
            return 0, None
        for level in range(LEVELS):
            try:
                feeds = make_inputs(self.graph, seed, sizes=sizes, level=level)
                run_session(self._plain, feeds, time_limit=self._longest())
                return level, None
            except (InvalidModel, UsageError) as error:
                refusal = error
        return 0, refusal

    @cached_property
    def _disturbed(self) -> DisturbedRuns:
        return DisturbedRuns(self.graph, self._bench, self._plain, self._typing)

    @cached_property
    def _jumping(self) -> frozenset[str]:
        """Outputs that rounding moves by whole steps: something on the way to them jumps."""
        reached: set[str] = set()
        for node, how in zip(self.graph.nodes, self._typing.nodes, strict=True):
            if reached.intersection(node.reads) or _jumps(self._typing, how):
                reached.update(o for o in node.outputs if o)
        return frozenset(reached)

    @cached_property
    def _approximate(self) -> frozenset[str]:
        """Values that are made of what an operator with a kernel of eight bits makes of dequantised operands."""
        dequantised, reached = set[str](), set[str]()
        for node in self.graph.nodes:
            made = [o for o in node.outputs if o]
            moves = is_exact(node) or node.op in _QUANTISING
            if reached.intersection(node.reads) or (not moves and dequantised.intersection(node.reads)):
                reached.update(made)
            elif node.op == "DequantizeLinear" or (moves and dequantised.intersection(node.reads)):
                dequantised.update(made)
        return frozenset(reached)

    def fault(self, graph: Graph) -> RuntimeOptimizerFault | None:
        """What the optimiser breaks in a graph that is to compute what the model does; ``None``: nothing.

        Args:
            graph: the model itself, or what was made of it.
        """
        try:
            loaded: LoadedModel = self._bench.loaded(graph, ONNX_RUNTIME)
            plain = None if graph is self.graph else self._bench.session(graph, optimise=False)
            return self._differing(loaded, plain)
        except (InvalidModel, Unsupported, UsageError) as error:
            return RuntimeOptimizerFault(refusal=error.what)

    def _differing(self, loaded: LoadedModel, plain: InferenceSession | None) -> RuntimeOptimizerFault | None:
        made: list[Arrays] = []
        names = [v.name for v in self.graph.outputs]
        for trial in self._trials:
            made.append(loaded.run(trial.feeds, names, time_limit=self._longest()))
            if plain is not None:
                run_session(plain, trial.feeds, time_limit=self._longest())
        found = {name: said for name in names if (said := self._difference_text(name, [m[name] for m in made]))}
        found = {name: said for name, said in found.items() if self._is_steady(name)} if found else found
        return RuntimeOptimizerFault(outputs=found) if found else None

    def _is_steady(self, name: str) -> bool:
        """Whether an output is the same again, as one of random numbers is not."""
        trial = self._trials[0]
        return equal(
            run_session(self._plain, trial.feeds, [name], time_limit=self._longest())[name], trial.outputs[name]
        )

    def _difference_text(self, name: str, made: Sequence[np.ndarray]) -> str:
        """What is off at an output, in words; "" where nothing is."""
        olds = [trial.outputs[name] for trial in self._trials]
        open_ = name in self._jumping and not _is_static(self._typing.types.get(name))
        for old, new in zip(olds, made, strict=True):
            if old.shape != new.shape and open_:
                return ""  # as many as a comparison finds, which rounding may flip
            if old.shape != new.shape or old.dtype != new.dtype:
                return f"has the shape {list(new.shape)} in place of {list(old.shape)}"
        pairs = [(i, old, new) for i, (old, new) in enumerate(zip(olds, made, strict=True)) if not equal(old, new)]
        if not pairs:
            return ""
        if olds[0].dtype == object or olds[0].dtype.kind in "USO":
            return "has other elements"
        return self._beyond(name, pairs, sum(old.size for old in olds))

    def _beyond(self, name: str, pairs: Sequence[tuple[int, np.ndarray, np.ndarray]], count: int) -> str:
        """What is further off than rounding explains, of the runs in which an output differs at all."""
        off, worst = 0, (0.0, "")
        for number, old, new in pairs:
            trial = self._trials[number]
            first, second = old.astype(np.float64), new.astype(np.float64)
            finite = np.isfinite(first) & np.isfinite(second)
            odd = ~finite & ~((first == second) | (np.isnan(first) & np.isnan(second)))
            if odd.any() and trial.ordinary:  # elsewhere, other orders of sums overflow at other elements
                at = tuple(int(i) for i in np.argwhere(odd)[0])
                return f"is {second[at]:g} in place of {first[at]:g} at {list(at)}"
            distance = np.where(finite, np.abs(np.subtract(first, second, where=finite, out=np.zeros(old.shape))), 0.0)
            off += self._off(name, old, np.where(finite, first, 0.0), distance, trial.feeds)
            if (largest := float(distance.max())) > worst[0]:
                worst = (largest, f"is off by up to {largest:.3g} where it reaches {np.abs(first[finite]).max():.3g}")
        flips = name in self._jumping and name not in self._approximate
        return worst[1] if off >= (max(POLICY.fewest, POLICY.share * count) if flips else 1) else ""

    def _off(self, name: str, old: np.ndarray, wide: np.ndarray, distance: np.ndarray, feeds: Arrays) -> int:
        """How many elements are further off than rounding explains."""
        if name in self._approximate:
            another = np.sum(distance * distance) > POLICY.quantisation_error**2 * np.sum(wide * wide)
            return int(np.count_nonzero(distance)) if another else 0
        free = _free(old, wide)
        free = free if name in self._jumping else POLICY.distance * free
        if not (distance > free).any():
            return 0
        off = 0
        for moved in self._moved(name, old, feeds):
            allowed = FACTOR * moved if name in self._jumping else FACTOR * POLICY.distance * moved.max(initial=0.0)
            off = int(np.count_nonzero(distance > np.maximum(free, allowed)))
            if not off:
                break
        return off

    def _samples(self, feeds: Arrays, numbers: range) -> tuple[list[Arrays], list[Arrays]]:
        """Disturbed runs on inputs. They give all outputs, so the last ones are kept where that takes little."""
        known = self._kept
        if known is not None and known[0] is feeds and known[1] == numbers:
            return known[2]
        found = self._disturbed.samples(feeds, numbers, tiny=False, time_limit=self._longest(), together=False)
        size = sum(a.nbytes for runs in found for arrays in runs for a in arrays.values())
        self._kept = (feeds, numbers, found) if size <= POLICY.kept_bytes else known
        return found

    def _moved(self, name: str, old: np.ndarray, feeds: Arrays) -> Iterator[np.ndarray]:
        """How far the model's own rounding moves an output on inputs, by more and more runs."""
        moves, done = OutputRoundingNoise(old), 0
        for count in POLICY.samples:
            inputs, inside = self._samples(feeds, range(done, count))
            moves.add([r[name] for r in inputs], [r[name] for r in inside])
            done = count
            yield moves.largest().astype(np.float64)


def _is_static(kind: TensorType | None) -> bool:
    return kind is not None and kind.is_static


def _free(old: np.ndarray, wide: np.ndarray) -> np.ndarray:
    """The distance that needs no explanation: none for what is no real number."""
    dtype = element_type(old)
    if dtype is None:
        return np.zeros(old.shape)
    return np.asarray(ULPS.get(dtype, ULPS[DType.BFLOAT16]) * _epsilon(old) * scales(wide, False))


def _epsilon(array: np.ndarray) -> float:
    return float(ml_dtypes.finfo(array.dtype).eps)  # type: ignore[no-untyped-call]


def _jumps(typing: InferredTypes, how: object) -> bool:
    """Whether a node's result jumps somewhere; one without a meaning may."""
    if not isinstance(how, CanonicalNode):
        return True
    types = tuple(None if a is None else typing.types.get(a) for a in how.args)
    try:
        known = how.operator.rounding(types, how.attributes)
    except (IllTypedOperator, ArithmeticError):
        return True
    return known.jumps or known.narrows
