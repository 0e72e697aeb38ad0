"""What explains that an output is further from the original's than the free distance, asked for as far as it takes.

Evidence comes in the order of its price, and no more is gathered once an output is explained, or cannot be: what the
runtime's own optimiser moves the original by (one run); disturbed runs, 1, 4, 12 and 36 of each kind; and, before a
refusal, where the original overflows or nearly does, and where the result is nearer to the reals than it. Everything is
kept by input, since mutants are judged on the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import ml_dtypes
import numpy as np

from superopt.ir.graph import Graph
from superopt.ir.types import DType
from superopt.ops.infer import Applied, Typing
from superopt.ops.meaning import IllTyped
from superopt.runtime.onnx_runtime import InferenceSession
from superopt.verifier.check.deliberate_rounding import outputs_rounded_on_purpose
from superopt.verifier.check.overflow import Overflow
from superopt.verifier.check.rounding_noise import Disturbed
from superopt.verifier.check.sessions import Arrays, Bench
from superopt.verifier.check.steered_inputs import Feed
from superopt.verifier.check.tolerance import Comparison, Moves, compare, element_type

__all__ = ["Explanations", "Trial"]

# Disturbed runs of each kind: at first, where these do not explain it, and at most. Of a million elements one is five
# standard deviations off, and the farthest of its twelve moves is less than one and a quarter for 7 in 100.
_SAMPLES = (1, 2, 4, 12, 36)
_EVIDENCE_BYTES = 1 << 26  # bytes of outputs that are kept for other comparisons on the same inputs
# More runs are not made where, after so many, an element is further away than this many times what the farthest move of
# any element allows, and nothing on the way jumps. That refuses, so it is safe; wrongly, if the moves so far were all
# that much smaller than those to come: by normal law 1e-4 for one, less for four, and only if all elements move as one.
_UNEXPLAINABLE = {1: 2.0**10, 2: 2.0**7, 4: 2.0**4, 12: 1.0, 36: 1.0}


_Compared = Callable[[Moves | None, np.ndarray | None], Comparison]  # by moves, without the elements of a mask


@dataclass(frozen=True)
class Trial:
    """Inputs that the original accepts, and its outputs."""

    feed: Feed
    original: Arrays


@dataclass
class _Evidence:
    """What was found out about one input: the optimiser's outputs, disturbed outputs, and where it overflows."""

    optimised: tuple[Arrays | None, ...] = ()
    count: int = 0
    runs: tuple[list[Arrays], list[Arrays]] = field(default_factory=lambda: ([], []))
    moves: dict[str, tuple[int, Moves]] = field(default_factory=dict)  # by output, with the runs that are in it
    near: dict[str, np.ndarray] = field(default_factory=dict)
    reals: dict[str, np.ndarray | None] = field(default_factory=dict)

    def nbytes(self) -> int:
        """Bytes."""
        arrays = [a for r in (*self.runs[0], *self.runs[1], *filter(None, self.optimised)) for a in r.values()]
        arrays += [a for a in (*self.near.values(), *self.reals.values()) if a is not None]
        return sum(a.nbytes for a in arrays) + sum(m.nbytes for _, m in self.moves.values())


class Explanations:
    """Evidence about one original.

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
        self, graph: Graph, typing: Typing, bench: Bench, plain: InferenceSession, longest: Callable[[], float],
        slack: float = 0.0, rest: Callable[[], None] | None = None,
        reals: Callable[[Trial, str], np.ndarray | None] | None = None, inside: bool = False,
    ) -> None:  # fmt: skip
        self._slack, self._release, self._large = slack, rest or (lambda: None), rest is not None
        self._graph, self._typing, self._bench, self._plain = graph, typing, bench, plain
        self._longest, self._reals, self._inside = longest, reals, inside
        self._disturbed: Disturbed | None = None
        self._overflows: dict[str, Overflow] = {}
        self._smooth: dict[str, bool] = {}
        self._evidence: dict[int, _Evidence] = {}

    def explain(
        self, trial: Trial, number: int, name: str, made: np.ndarray, dtype: DType | None, found: Comparison,
        exact: np.ndarray | None, *, optimised: bool = False,
    ) -> Comparison:  # fmt: skip
        """One output that the free distance does not explain.

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

        def look(moved: Moves | None, full: np.ndarray | None) -> Comparison:
            return compare(
                trial.original[name], made, dtype, moved, mixed=trial.feed.mixed, exact=exact, full=full,
                slack=self._slack, optimised=optimised,
            )  # fmt: skip

        found = self._explained(trial, number, name, found, look)
        if found.problem is None or np.isinf(found.absolute):
            return found
        return self._nearer_to_reals(trial, number, name, made, found, look)

    def _explained(self, trial: Trial, number: int, name: str, found: Comparison, compared: _Compared) -> Comparison:
        """With the original's own moves, and where it overflows, for an explanation."""
        full: np.ndarray | None = None
        excused = ""

        def look(moved: Moves | None) -> Comparison:
            looked = compared(moved, full)
            return replace(looked, excused=excused) if looked.problem is None and excused else looked

        if np.isinf(found.absolute):  # NaNs and infinities: no rounding explains them
            full, excused = self._overflow_mask(trial, number, name), found.problem or ""
            found = look(None)
            if np.isinf(found.absolute):
                return found
        moved: Moves | None = None
        for count, moved in self._moves(trial, number, name):
            found = look(moved)
            if found.problem is None:
                return found
            if moved.disturbed and found.excess > _UNEXPLAINABLE[count] and self._is_smooth(name):
                if full is None:
                    full, excused = self._overflow_mask(trial, number, name), found.problem
                    found = look(moved)
                if found.problem is None or found.excess > _UNEXPLAINABLE[count]:
                    return found
        if full is None:
            full, excused = self._overflow_mask(trial, number, name), found.problem or ""
            found = look(moved)
        return found

    def _nearer_to_reals(
        self, trial: Trial, number: int, name: str, made: np.ndarray, found: Comparison, compared: _Compared
    ) -> Comparison:
        """Without the elements that are no further from the reals than the original's, where its intermediates'
        rounding explains the distance: moved inputs do not show all of it (``(a + b) + (a - b)`` rounds ``a`` alike,
        wherever in its binade ``b`` is). Not so where a rounding may be meant."""
        if self._reals is None or name in self._meant:
            return found
        near = self._overflow_mask(trial, number, name)
        for count, moved in self._moves(trial, number, name):
            looked = compared(moved.of_intermediates(), near)
            if looked.problem is None:
                break
            if moved.disturbed and looked.excess > _UNEXPLAINABLE[count]:
                return found
        else:
            return found
        if self._inside:
            return looked
        reals = self._evidence_of(number).reals
        if name not in reals:
            reals[name] = self._reals(trial, name)
        truth, old = reals[name], trial.original[name]
        if truth is None or truth.shape != old.shape:
            return found
        closer = _error(made, truth) <= _error(old, truth) + _untold(moved.of_intermediates(), old)
        return compared(moved, near | closer)

    @cached_property
    def _meant(self) -> frozenset[str]:
        return outputs_rounded_on_purpose(self._graph, self._typing)

    def all_moves(self, trial: Trial, number: int, name: str) -> Moves | None:
        """The moves that were found for an output so far; ``None`` where none was asked for."""
        known = self._evidence.get(number)
        return None if known is None or name not in known.moves else known.moves[name][1]

    def broken(self, number: int, name: str) -> float:
        """How far the runtime's optimiser moves an output of the original, if by more than another order of sums does;
        0 where it was not asked for."""
        known = self._evidence.get(number)
        return 0.0 if known is None or name not in known.moves else known.moves[name][1].broken

    def _moves(self, trial: Trial, number: int, name: str) -> Iterator[tuple[int, Moves]]:
        """More and more evidence of an output's moves, beginning with all that is known, with the runs asked for."""
        known = self._evidence_of(number)
        if name not in known.moves:
            known.moves[name] = (0, Moves(trial.original[name], tiny=trial.feed.tiny))
        done, moved = known.moves[name]
        if not moved.has_optimised and (ran := self.optimised(trial, number)) is not None:
            moved.add_optimised(ran[name])
        yield done, moved
        for count in _SAMPLES:
            if count > done:
                for upto in [*range(known.count + 1, count + 1)] or [count]:  # outputs may be large: one is held
                    inputs, inside = self._samples(trial, number, upto)
                    moved.add(
                        [r.pop(name) for r in inputs[moved.inputs :]], [r.pop(name) for r in inside[moved.inside :]]
                    )
                known.moves[name] = (count, moved)
                yield count, moved

    def _evidence_of(self, number: int) -> _Evidence:
        """What is known of one input; that of others is forgotten when it takes too much memory."""
        if number not in self._evidence:
            if sum(k.nbytes() for k in self._evidence.values()) > _EVIDENCE_BYTES:
                self._evidence.clear()
            self._evidence[number] = _Evidence()
        return self._evidence[number]

    def _noise(self) -> Disturbed:
        if self._disturbed is None:
            self._disturbed = Disturbed(self._graph, self._bench, self._plain, self._typing)
        return self._disturbed

    def optimised(self, trial: Trial, number: int) -> Arrays | None:
        """What the original gives with the runtime's optimisations on."""
        known = self._evidence_of(number)
        if not known.optimised:
            self._release()
            known.optimised = (self._noise().optimised(trial.feed.arrays, self._longest()),)
            self._release()
        return known.optimised[0]

    def _samples(self, trial: Trial, number: int, count: int) -> tuple[list[Arrays], list[Arrays]]:
        """So many disturbed runs of each kind, or more; of those that were made before, the outputs that were not asked
        for are kept."""
        known = self._evidence_of(number)
        if known.count < count:
            self._release()
            more = self._noise().samples(
                trial.feed.arrays, range(known.count, count), tiny=trial.feed.tiny, time_limit=self._longest(),
                together=not self._large,
            )  # fmt: skip
            known.runs = (known.runs[0] + more[0], known.runs[1] + more[1])
            known.count = count
        return known.runs

    def _overflow_mask(self, trial: Trial, number: int, name: str) -> np.ndarray:
        """Where the original overflows or nearly does, by element of an output."""
        near = self._evidence_of(number).near
        if name not in near:
            if name not in self._overflows:
                self._overflows[name] = Overflow(self._graph, self._typing, name, self._bench)
            near[name] = self._overflows[name].near(trial.feed.arrays, trial.original[name].shape)
        return near[name]

    def _is_smooth(self, name: str) -> bool:
        """Whether nothing that leads to an output jumps: one run tells how far rounding moves it, then."""
        if name not in self._smooth:
            import networkx as nx  # here, because few checks come this far

            drawn = self._graph.to_networkx()
            end = self._graph.producer.get(name)
            ends = [i for i, n in enumerate(self._graph.nodes) if n is end]
            leading = {*ends, *(p for e in ends for p in nx.ancestors(drawn, e) if isinstance(p, int))}
            self._smooth[name] = not any(_jumps(self._typing, place) for place in leading)
        return self._smooth[name]


def _untold(moved: Moves, old: np.ndarray) -> np.ndarray:
    """How much of the original's own rounding float64 does not resolve; 0 where that is its type."""
    dtype = element_type(old)
    if dtype is None or dtype is DType.FLOAT64:
        return np.zeros(old.shape)
    share = float(np.finfo(np.float64).eps) / float(ml_dtypes.finfo(dtype.numpy).eps)  # type: ignore[no-untyped-call]
    return share * moved.largest().astype(np.float64)


def _error(made: np.ndarray, truth: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # infinity less infinity is no number, and no smaller than any
        return np.asarray(np.abs(made.astype(np.float64) - truth.astype(np.float64)))


def _jumps(typing: Typing, place: int) -> bool:
    """Whether a node's result jumps somewhere; one without a meaning may."""
    node = typing.nodes[place]
    if not isinstance(node, Applied):
        return True
    types = tuple(None if a is None else typing.types.get(a) for a in node.args)
    try:
        known = node.operator.rounding(types, node.attributes)
    except (IllTyped, ArithmeticError):
        return True
    return known.jumps or known.narrows
