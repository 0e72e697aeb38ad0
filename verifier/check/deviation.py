"""Explains why an output is farther from the original's than the free distance; evidence is gathered on request.

Evidence comes in the order of its cost: the effect of the runtime's own optimiser on the original (one run); disturbed
runs, 1, 4, 12 and 36 of each kind; and, before a refusal, where the original is near overflow, so that the same sums in
another order may overflow, and where the result is nearer to the reals than the original. Gathering stops once an
output is explained, or cannot be. Evidence is stored by input, since mutants are checked on the same inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import ml_dtypes
import numpy as np

from superopt.ir.graph import Graph, Node, Value, unused_name
from superopt.ir.types import DType, TensorType
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.ops.shape_inference import CanonicalNode, InferredTypes, infer
from superopt.runtime.onnx_runtime import InferenceSession
from superopt.verifier.check.body_magnitudes import with_body_magnitudes
from superopt.verifier.check.deliberate_rounding import outputs_rounded_on_purpose
from superopt.verifier.check.rounding_noise import ELEMENTARY, REALS, DisturbedRuns, is_exact, live_values
from superopt.verifier.check.shared_weight_sessions import REFUSALS, Arrays, SharedWeightSessions, attempt
from superopt.verifier.check.steered_inputs import SteeredInput
from superopt.verifier.check.tolerance import OutputComparison, OutputRoundingNoise, compare, element_type

__all__ = ["DeviationExplainer", "leading_to", "NEAR", "OverflowProximity", "CheckTrial"]

NEAR = 4.0  # at most this far below the largest number
_WATCHED = 1 << 26  # elements of intermediates that are looked at, at most
_POLES = frozenset({"Atanh", "Div", "Log", "Mod", "Pow", "Reciprocal", "Tan"})  # infinite without an overflow
_POSITIVE = frozenset({"Exp", "Sigmoid", "Softmax"})  # at finite numbers, so that a zero of theirs is an underflow


class OverflowProximity:
    """Where one output of a graph is near overflow.

    Args:
        graph: the original.
        typing: its types.
        output: the output's name.
        bench: where the session is made that gives the values inside.
    """

    def __init__(self, graph: Graph, typing: InferredTypes, output: str, bench: SharedWeightSessions) -> None:
        part = leading_to(graph, output)
        types, self._live = typing.types, live_values(graph)
        self._types = types
        self._rounding = [n for n in part.nodes if not is_exact(n)]
        self._positive = {o for n in part.nodes if not n.domain and n.op in _POSITIVE for o in n.outputs}
        fed = {v.name for v in graph.inputs}
        reals = (v for n in self._rounding for v in (*n.inputs, *n.outputs) if v and self._real(v) and v not in fed)
        self._names = list(dict.fromkeys(reals))
        watched = {**{n: Value(n, types[n]) for n in self._names}, **{v.name: v for v in part.outputs}}
        self._part = replace(part, outputs=tuple(v for n, v in watched.items() if n not in fed), values=())
        self._bench = bench
        self._limits = {n: float(ml_dtypes.finfo(types[n].dtype.numpy).max) / NEAR for n in self._names}  # type: ignore[union-attr,no-untyped-call]
        inside, self._magnitudes = with_body_magnitudes(part, infer(part), _POLES)
        self._bodies = self._watched(replace(inside, outputs=tuple(Value(n, None) for n in self._magnitudes)))
        measured = [v for v in self._part.outputs if self._real(v.name)]
        self._norms = self._watched(_with_norms(self._part, measured))

    @cached_property
    def _session(self) -> InferenceSession | None:
        """Gives every value inside, which together may be far more than a run holds at once."""
        return self._watched(self._part)

    def _watched(self, graph: Graph) -> InferenceSession | None:
        try:
            return self._bench.session(graph, optimise=False)
        except REFUSALS:
            return None

    def near(self, feeds: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        """A mask for the output, of this shape: elements at which an operator that leads to it overflows, or nearly.

        That is one whose result, from finite operands, is infinite or within a factor of :data:`NEAR` of it, at the
        same element where the shapes are equal; where no operator's result has the output's shape, any element of
        any. At a pole, that is one whose operand underflowed to it. And it is every element, if an operator with sums
        inside reads a number that large, or a number inside a body of control flow is.
        """
        if self._magnitudes and self._large_inside(feeds):
            return np.full(shape, True)
        least = min(self._limits.values(), default=0.0)
        small = all(_is_small(a, least) for n, a in feeds.items() if self._real(n))
        norms = _run_or_none(self._norms, feeds) if small else None
        if norms is not None and all(float(a) < least for a in norms.values()):  # no element is larger than its norm
            return np.zeros(shape, bool)
        ran = _run_or_none(self._session, feeds)
        if ran is None or sum(a.size for a in ran.values()) > _WATCHED:
            return np.zeros(shape, bool)
        values = {n: a for n, a in (*feeds.items(), *ran.items()) if self._real(n)}
        limits = self._limits
        if all(_is_small(a, least) for a in values.values()):
            return np.zeros(shape, bool)
        near: list[np.ndarray] = []
        for node in self._rounding:
            operands = [values[r].astype(np.float64) for r in node.inputs if r in values]
            near += [
                _large(values[o].astype(np.float64), limits[o], operands, node) for o in node.outputs if o in limits
            ]
            if node.op in _POLES:
                positive = [values[r] for r in node.inputs if r in self._positive and r in values]
                near += [np.isinf(values[o]) & (a == 0) for o in node.outputs if o in values for a in positive]
            if (node.domain or node.op not in ELEMENTARY) and any(_inside(a, limits, node) for a in operands):
                return np.full(shape, True)
        same = [n for n in near if n.shape == shape]
        return np.logical_or.reduce(same) if same else np.full(shape, any(bool(n.any()) for n in near))

    def _large_inside(self, feeds: Mapping[str, np.ndarray]) -> bool:
        """Whether finite inputs make a value inside a body so large."""
        if not all(bool(np.isfinite(a.astype(np.float64)).all()) for n, a in feeds.items() if self._real(n)):
            return False
        ran = _run_or_none(self._bodies, feeds) or {}
        return any(bool((a >= 1.0 / NEAR).any()) for a in ran.values())  # not a NaN

    def _real(self, name: str) -> bool:
        return name in self._live and isinstance(t := self._types.get(name), TensorType) and t.dtype.is_float


def _run_or_none(session: InferenceSession | None, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
    try:
        return None if session is None else attempt(session, feeds)
    except REFUSALS:
        return None


def _with_norms(graph: Graph, values: Sequence[Value]) -> Graph:
    """The graph with the Euclidean norms of values, in float32, for outputs: one number for each.

    A norm stands right behind what makes its value, which is gone before the next is made.
    """
    taken, nodes, outputs = set(graph.names), list[Node](), list[Value]()
    wanted = {v.name: v for v in values}
    for node in graph.nodes:
        nodes.append(node)
        for value in (wanted[o] for o in node.outputs if o in wanted):
            read, single, norm = value.name, *(unused_name(f"{value.name}/{w}", taken) for w in ("single", "norm"))
            if isinstance(value.type, TensorType) and value.type.dtype is not DType.FLOAT32:
                nodes.append(Node("", "Cast", (read,), (single,), {"to": REALS[DType.FLOAT32]}))
                read = single
            nodes.append(Node("", "ReduceL2", (read,), (norm,), {"keepdims": 0}))
            outputs.append(Value(norm, TensorType(DType.FLOAT32, ())))
    return replace(graph, nodes=tuple(nodes), outputs=tuple(outputs))


def _is_small(array: np.ndarray, limit: float) -> bool:
    """Whether every element is a number, and smaller."""
    if not array.size:
        return True
    low, high = float(array.min()), float(array.max())  # NaN, if any element is
    return -limit < low and high < limit


def leading_to(graph: Graph, output: str) -> Graph:
    """The part of a graph that an output is computed by."""
    import networkx as nx  # here, because few checks come this far

    node = graph.producer.get(output)
    drawn = graph.to_networkx()
    positions = {i for i, n in enumerate(graph.nodes) if n is node}
    positions |= {p for end in positions for p in nx.ancestors(drawn, end) if isinstance(p, int)}
    kept_nodes = tuple(n for i, n in enumerate(graph.nodes) if i in positions)
    return replace(graph, nodes=kept_nodes, outputs=tuple(v for v in graph.outputs if v.name == output))


def _large(array: np.ndarray, limit: float, operands: list[np.ndarray], node: Node) -> np.ndarray:
    large: np.ndarray = np.abs(array) >= limit  # not a NaN
    if node.op in _POLES:
        large &= np.isfinite(array)
    for operand in operands:
        infinite = np.isinf(operand)
        if operand.shape == array.shape:
            large &= ~infinite
        elif infinite.any():
            return np.zeros(array.shape, bool)
    return large


def _inside(operand: np.ndarray, limits: Mapping[str, float], node: Node) -> bool:
    """Whether sums over an operand may overflow."""
    limit = max((limits[o] for o in node.outputs if o in limits), default=np.inf)
    return bool(((np.abs(operand) >= limit) & np.isfinite(operand)).any())


# Disturbed runs of each kind: at first, where these do not explain it, and at most. Of a million elements one is five
# standard deviations off, and the farthest of its twelve moves is less than one and a quarter for 7 in 100.
_SAMPLES = (1, 2, 4, 12, 36)
_EVIDENCE_BYTES = 1 << 26  # bytes of outputs that are kept for other comparisons on the same inputs
# More runs are not made where, after so many, an element is further away than this many times what the farthest move of
# any element allows, and nothing on the way jumps. That refuses, so it is safe; wrongly, if the moves so far were all
# that much smaller than those to come: by normal law 1e-4 for one, less for four, and only if all elements move as one.
_UNEXPLAINABLE = {1: 2.0**10, 2: 2.0**7, 4: 2.0**4, 12: 1.0, 36: 1.0}


_Compared = Callable[
    [OutputRoundingNoise | None, np.ndarray | None], OutputComparison
]  # by moves, without the elements of a mask


@dataclass(frozen=True)
class CheckTrial:
    """Inputs that the original accepts, and its outputs."""

    feed: SteeredInput
    original: Arrays


@dataclass
class _Evidence:
    """The evidence about one input: the optimiser's outputs, disturbed outputs, and elements near overflow."""

    optimised: tuple[Arrays | None, ...] = ()
    count: int = 0
    runs: tuple[list[Arrays], list[Arrays]] = field(default_factory=lambda: ([], []))
    displacements: dict[str, tuple[int, OutputRoundingNoise]] = field(
        default_factory=dict
    )  # by output, with the runs that are in it
    near: dict[str, np.ndarray] = field(default_factory=dict)
    reals: dict[str, np.ndarray | None] = field(default_factory=dict)

    def nbytes(self) -> int:
        """Bytes."""
        arrays = [a for r in (*self.runs[0], *self.runs[1], *filter(None, self.optimised)) for a in r.values()]
        arrays += [a for a in (*self.near.values(), *self.reals.values()) if a is not None]
        return sum(a.nbytes for a in arrays) + sum(m.nbytes for _, m in self.displacements.values())


class DeviationExplainer:
    """Evidence about one original model.

    Args:
        graph: the original.
        typing: its types.
        bench: where sessions are made.
        plain: a session of the original, optimisations off.
        longest: seconds that the next run may take.
        slack: share of an output's largest magnitude that needs no explanation.
        rest: called between runs and comparisons: hands back what they took.
        reals: what an output is by a float64 reference; ``None`` where that does not run, or takes long.
        inside: rounding of intermediates explains a distance by itself, where none is meant.
    """

    def __init__(
        self,
        graph: Graph,
        typing: InferredTypes,
        bench: SharedWeightSessions,
        plain: InferenceSession,
        longest: Callable[[], float],
        slack: float = 0.0,
        rest: Callable[[], None] | None = None,
        reals: Callable[[CheckTrial, str], np.ndarray | None] | None = None,
        inside: bool = False,
    ) -> None:
        self._slack, self._release, self._large = slack, rest or (lambda: None), rest is not None
        self._graph, self._typing, self._bench, self._plain = graph, typing, bench, plain
        self._longest, self._reals, self._inside = longest, reals, inside
        self._disturbed: DisturbedRuns | None = None
        self._overflows: dict[str, OverflowProximity] = {}
        self._smooth: dict[str, bool] = {}
        self._evidence: dict[int, _Evidence] = {}

    def explain(
        self, trial: CheckTrial, number: int, name: str, made: np.ndarray, dtype: DType | None, found: OutputComparison,
        exact: np.ndarray | None, *, optimised: bool = False,
    ) -> OutputComparison:  # fmt: skip
        """Compare an output that exceeds the free distance with all the evidence that it needs.

        Args:
            trial: the input.
            number: of the trial, by which what is found out is kept.
            name: of the output.
            made: what the result gave, of the original's shape.
            dtype: declared element type.
            found: what comparing it without evidence gave.
            exact: the float64 reference's, where the original is not finite.
            optimised: the result ran with the runtime's optimisations on.
        """

        def look(moved: OutputRoundingNoise | None, full: np.ndarray | None) -> OutputComparison:
            return compare(
                trial.original[name], made, dtype, moved, mixed=trial.feed.mixed, exact=exact, full=full,
                slack=self._slack, optimised=optimised,
            )  # fmt: skip

        found = self._explained(trial, number, name, found, look)
        if found.problem is None or np.isinf(found.absolute):
            return found
        return self._nearer_to_reals(trial, number, name, made, found, look)

    def _explained(
        self, trial: CheckTrial, number: int, name: str, comparison: OutputComparison, compared: _Compared
    ) -> OutputComparison:
        """With the original's own moves, and where it overflows, for an explanation."""
        full: np.ndarray | None = None
        excused = ""

        def look(moved: OutputRoundingNoise | None) -> OutputComparison:
            looked = compared(moved, full)
            return replace(looked, excused=excused) if looked.problem is None and excused else looked

        if np.isinf(comparison.absolute):  # NaNs and infinities: no rounding explains them
            full, excused = self._overflow_mask(trial, number, name), comparison.problem or ""
            comparison = look(None)
            if np.isinf(comparison.absolute):
                return comparison
        moved: OutputRoundingNoise | None = None
        for count, moved in self._displacements(trial, number, name):
            comparison = look(moved)
            if comparison.problem is None:
                return comparison
            if moved.disturbed and comparison.excess > _UNEXPLAINABLE[count] and self._is_smooth(name):
                if full is None:
                    full, excused = self._overflow_mask(trial, number, name), comparison.problem
                    comparison = look(moved)
                if comparison.problem is None or comparison.excess > _UNEXPLAINABLE[count]:
                    return comparison
        if full is None:
            full, excused = self._overflow_mask(trial, number, name), comparison.problem or ""
            comparison = look(moved)
        return comparison

    def _nearer_to_reals(
        self,
        trial: CheckTrial,
        number: int,
        name: str,
        array: np.ndarray,
        comparison: OutputComparison,
        compared: _Compared,
    ) -> OutputComparison:
        """Without the elements that are no further from the reals than the original's, where its intermediates'
        rounding explains the distance: moved inputs do not show all of it (``(a + b) + (a - b)`` rounds ``a`` alike,
        wherever in its binade ``b`` is). Not so where a rounding may be meant."""
        if self._reals is None or name in self._meant:
            return comparison
        near = self._overflow_mask(trial, number, name)
        for count, moved in self._displacements(trial, number, name):
            looked = compared(moved.of_intermediates(), near)
            if looked.problem is None:
                break
            if moved.disturbed and looked.excess > _UNEXPLAINABLE[count]:
                return comparison
        else:
            return comparison
        if self._inside:
            return looked
        reals = self._evidence_of(number).reals
        if name not in reals:
            reals[name] = self._reals(trial, name)
        truth, old = reals[name], trial.original[name]
        if truth is None or truth.shape != old.shape:
            return comparison
        closer = _error(array, truth) <= _error(old, truth) + _untold(moved.of_intermediates(), old)
        return compared(moved, near | closer)

    @cached_property
    def _meant(self) -> frozenset[str]:
        return outputs_rounded_on_purpose(self._graph, self._typing)

    def all_moves(self, trial: CheckTrial, number: int, name: str) -> OutputRoundingNoise | None:
        """The moves of an output that were gathered so far; ``None`` if none were."""
        known_evidence = self._evidence.get(number)
        return (
            None
            if known_evidence is None or name not in known_evidence.displacements
            else known_evidence.displacements[name][1]
        )

    def broken(self, number: int, name: str) -> float:
        """The distance by which the runtime's optimiser moves an output of the original, if it is more than another
        order of sums explains; else 0."""
        known_evidence = self._evidence.get(number)
        return (
            0.0
            if known_evidence is None or name not in known_evidence.displacements
            else known_evidence.displacements[name][1].broken
        )

    def _displacements(self, trial: CheckTrial, number: int, name: str) -> Iterator[tuple[int, OutputRoundingNoise]]:
        """More and more evidence of an output's moves, beginning with the stored evidence."""
        known_evidence = self._evidence_of(number)
        if name not in known_evidence.displacements:
            known_evidence.displacements[name] = (0, OutputRoundingNoise(trial.original[name], tiny=trial.feed.tiny))
        done, moved = known_evidence.displacements[name]
        if not moved.has_optimised and (ran := self.optimised(trial, number)) is not None:
            moved.add_optimised(ran[name])
        yield done, moved
        for count in _SAMPLES:
            if count > done:
                for upto in [*range(known_evidence.count + 1, count + 1)] or [
                    count
                ]:  # outputs may be large: one is held
                    inputs, inside = self._samples(trial, number, upto)
                    moved.add(
                        [r.pop(name) for r in inputs[moved.inputs :]], [r.pop(name) for r in inside[moved.inside :]]
                    )
                known_evidence.displacements[name] = (count, moved)
                yield count, moved

    def _evidence_of(self, number: int) -> _Evidence:
        """The evidence about one input; that about others is dropped when it takes too much memory."""
        if number not in self._evidence:
            if sum(k.nbytes() for k in self._evidence.values()) > _EVIDENCE_BYTES:
                self._evidence.clear()
            self._evidence[number] = _Evidence()
        return self._evidence[number]

    def _noise(self) -> DisturbedRuns:
        if self._disturbed is None:
            self._disturbed = DisturbedRuns(self._graph, self._bench, self._plain, self._typing)
        return self._disturbed

    def optimised(self, trial: CheckTrial, number: int) -> Arrays | None:
        """The original's outputs with the runtime's optimisations on."""
        known_evidence = self._evidence_of(number)
        if not known_evidence.optimised:
            self._release()
            known_evidence.optimised = (self._noise().optimised(trial.feed.arrays, self._longest()),)
            self._release()
        return known_evidence.optimised[0]

    def _samples(self, trial: CheckTrial, number: int, count: int) -> tuple[list[Arrays], list[Arrays]]:
        """At least so many disturbed runs of each kind; stored outputs of earlier runs are reused."""
        known_evidence = self._evidence_of(number)
        if known_evidence.count < count:
            self._release()
            more = self._noise().samples(
                trial.feed.arrays, range(known_evidence.count, count), tiny=trial.feed.tiny, time_limit=self._longest(),
                together=not self._large,
            )  # fmt: skip
            known_evidence.runs = (known_evidence.runs[0] + more[0], known_evidence.runs[1] + more[1])
            known_evidence.count = count
        return known_evidence.runs

    def _overflow_mask(self, trial: CheckTrial, number: int, name: str) -> np.ndarray:
        """Elements of an output at which the original overflows or nearly does."""
        near = self._evidence_of(number).near
        if name not in near:
            if name not in self._overflows:
                self._overflows[name] = OverflowProximity(self._graph, self._typing, name, self._bench)
            near[name] = self._overflows[name].near(trial.feed.arrays, trial.original[name].shape)
        return near[name]

    def _is_smooth(self, name: str) -> bool:
        """Whether nothing that leads to an output jumps: then one run shows how far rounding moves it."""
        if name not in self._smooth:
            import networkx as nx  # here, because few checks come this far

            drawn = self._graph.to_networkx()
            end = self._graph.producer.get(name)
            ends = [i for i, n in enumerate(self._graph.nodes) if n is end]
            leading = {*ends, *(p for e in ends for p in nx.ancestors(drawn, e) if isinstance(p, int))}
            self._smooth[name] = not any(_jumps(self._typing, position) for position in leading)
        return self._smooth[name]


def _untold(moved: OutputRoundingNoise, old: np.ndarray) -> np.ndarray:
    """How much of the original's own rounding float64 does not resolve; 0 where that is its type."""
    dtype = element_type(old)
    if dtype is None or dtype is DType.FLOAT64:
        return np.zeros(old.shape)
    share = float(np.finfo(np.float64).eps) / float(ml_dtypes.finfo(dtype.numpy).eps)  # type: ignore[no-untyped-call]
    return share * moved.largest().astype(np.float64)


def _error(array: np.ndarray, truth: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # infinity less infinity is no number, and no smaller than any
        return np.asarray(np.abs(array.astype(np.float64) - truth.astype(np.float64)))


def _jumps(typing: InferredTypes, position: int) -> bool:
    """Whether a node's result jumps somewhere; a node without a meaning may jump."""
    node = typing.nodes[position]
    if not isinstance(node, CanonicalNode):
        return True
    types = tuple(None if a is None else typing.types.get(a) for a in node.args)
    try:
        known_rounding = node.operator.rounding(types, node.attributes)
    except (IllTypedOperator, ArithmeticError):
        return True
    return known_rounding.jumps or known_rounding.narrows
