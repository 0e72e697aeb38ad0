"""Operators and weights in half precision within a budget of errors: ``--precision mixed``.

Analysis forbids what is fragile, a strategy assignment chooses among the rest, and the error that is measured decides
(:mod:`superopt.passes.mixed_precision`). A result that exceeds the budget on an input is followed by another: the
error of rounding each value alone is measured on that input, too, and the sum of errors is held to less. Only a result
that keeps to the budget on every input is returned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf, sqrt

import numpy as np

from superopt import cost as costs
from superopt import report
from superopt.ir.errors import InvalidModel, ResourceLimit, Unsupported, UsageError
from superopt.ir.graph import Graph
from superopt.ir.types import DType
from superopt.ops.shape_inference import infer
from superopt.passes.mixed_precision import (
    POLICY,
    WIDE,
    Float32Reason,
    PrecisionAssignment,
    ValueMagnitudes,
    choose,
    lowered,
    of_bytes,
    of_time,
    restricted,
    rounded_values,
    switched,
    watched,
)
from superopt.pipeline.acceptance_policy import AcceptanceDecision
from superopt.pipeline.candidate import Candidate
from superopt.pipeline.optimization_context import OptimizationContext
from superopt.runtime.protocol import LoadedModel, runtime_named
from superopt.verifier.check.check_settings import CheckResult
from superopt.verifier.check.output_errors import MaximumOutputError, OutputErrorMeasurement, error_of, steered_inputs
from superopt.verifier.check.shared_weight_sessions import Arrays, SharedWeightSessions, attempt

__all__ = ["in_mixed_precision"]

_REFUSED = (InvalidModel, Unsupported, UsageError, ResourceLimit)
_TYPES = {"mixed": DType.FLOAT16, "mixed:float16": DType.FLOAT16, "mixed:bfloat16": DType.BFLOAT16}
_LEAST_OPSET = {DType.FLOAT16: 9, DType.BFLOAT16: 13}  # of Where, and of a Cast to bfloat16
_NOTHING = 1e-12  # of an error, so that it divides
_NAMED = 4  # operators that a report names for a reason


def in_mixed_precision(candidate: Candidate, context: OptimizationContext) -> Candidate:
    """The candidate in the mixed precision that the options ask for; as it is, with a note, where there is none."""
    half = _TYPES[context.task.options.precision]
    context.task.progress(0, None, "choosing precision")
    why = _unsupported(candidate.graph, half)
    if not why:
        try:
            return _MixedPrecision(candidate, context, half).result()
        except _REFUSED as error:
            why = str(error)
    context.log.note(f"everything stays in its precision: {why}")
    return candidate


def _unsupported(graph: Graph, half: DType) -> str:
    """Why a graph has no mixed precision."""
    kinds = [t.dtype for t in infer(graph).types.values() if t is not None]
    if already := sorted({k for k in kinds if k in _LEAST_OPSET}):
        return f"the model has values of {already[0]} already"
    if WIDE not in kinds:
        return "the model has no values of float32"
    if any(w.data is None for w in graph.weights):
        return "errors cannot be measured without the elements of the weights"
    if graph.onnx_version < _LEAST_OPSET[half]:
        return f"opset {graph.onnx_version} has no operators of {half}; add --opset {_LEAST_OPSET[half]}"
    return ""


@dataclass(frozen=True)
class _Outcome:
    """A choice that keeps to the budget: its graph, its cost, and the largest error that was measured."""

    choice: PrecisionAssignment
    graph: Graph
    cost: int
    error: MaximumOutputError


class _MixedPrecision:
    """One candidate in mixed precision.

    Args:
        candidate: in float32.
        context: the optimisation.
        half: the type of half precision.
    """

    def __init__(self, candidate: Candidate, context: OptimizationContext, half: DType) -> None:
        self.candidate, self.context, self.half = candidate, context, half
        self.task, self.bench = context.task, context.bench
        self.graph = candidate.graph
        self.typing = infer(self.graph, self.task.sizes)
        self.budget = self.task.options.error or POLICY.error
        self.processor = self.task.costs.backend.processor
        # ONNX Runtime puts casts around operators of float16 on the processor, and around none of bfloat16.
        self.runs_half = half == DType.FLOAT16
        self.judge = OutputErrorMeasurement(
            self.task.graph, self.bench, seed=self.task.options.seed, sizes=self.task.sizes, inputs=POLICY.inputs,
            extreme=POLICY.extreme, kept_bytes=POLICY.kept_bytes,
        )  # fmt: skip
        self.found = restricted(
            self.graph, self.typing, half, self._observed(), self.budget, self.runs_half or not self.processor
        )
        self.objective = (
            of_bytes(self.typing, half) if self.processor else of_time(self.graph, self.typing, half, self.task.costs)
        )

    def _has_time(self) -> bool:
        return self.task.budget.left > 0.0 and not self.task.budget.interrupted

    def _observed(self) -> dict[str, ValueMagnitudes]:
        """Magnitudes of the values on all inputs, and on steered ones."""
        probe = watched(self.graph, self.typing)
        session = self.bench.session(probe.graph, optimise=False)
        steered = steered_inputs(self.task.graph, self.task.options.seed, self.task.sizes, POLICY.steered)
        runs: list[Arrays | None] = []
        ordinary = min(POLICY.observed_inputs, self.judge.ordinary)
        for feeds in (*self.judge.feeds[:ordinary], *self.judge.feeds[self.judge.ordinary :], *steered):
            if not self._has_time():
                raise ResourceLimit("the time ran out while magnitudes were observed")
            runs.append(attempt(session, feeds))
        ran = [[r for r in some if r is not None] for some in (runs[:ordinary], runs[ordinary:])]
        return probe.observed(*ran)

    # -- assignments -----------------------------------------------------------------------------------------------

    def result(self) -> Candidate:
        """The candidate in mixed precision.

        Raises:
            Unsupported: nothing gains within the budget. InvalidModel, ResourceLimit: it could not be measured.
        """
        best = self._best()
        if best is None:
            kept = ", ".join(f"{n} {kind}" for kind, n in _kinds(self.found.kept.values()).items())
            raise Unsupported(
                f"nothing gains within the budget of {self.budget:g}" + (f" (operators: {kept})" if kept else "")
            )
        check = CheckResult(
            "passed", POLICY.inputs, best.error.absolute, best.error.relative, reference="original",
            reason=f"within the budget of errors of {self.budget:g} of an output's largest element",
        )  # fmt: skip
        search = replace(self.candidate.search, graph=best.graph)
        self.context.precision = self._reported(best)
        if self.context.verification is not None:
            self.context.verification = None
            self.context.log.note("nothing is proved of a result in mixed precision: its errors are measured")
        if self.context.pareto:
            self.context.log.note("the graphs that trade time for memory are in float32")
        timed = None
        if self.task.options.measure:
            timed = self.context.acceptance.benchmark(best.graph, sizes=self.task.sizes)
        return replace(
            self.candidate, search=search, cost=self.context.cost_of(best.graph), check=check, measurement=timed,
            decision=AcceptanceDecision("precision"),
        )  # fmt: skip

    def _best(self) -> _Outcome | None:
        """The cheapest assignment that keeps to the budget, of those that are tried."""
        errors = dict.fromkeys(rounded_values(self.graph, self.found), 0.0)
        for number in range(POLICY.error_inputs):
            self._raise_errors(errors, number)
        best: _Outcome | None = None
        search, most = _LimitSearch(), POLICY.share * self.budget
        accepted: set[tuple[frozenset[int], frozenset[str]]] = set()
        refused: set[tuple[frozenset[int], frozenset[str]]] = set()
        for _ in range(POLICY.rounds):
            chosen = choose(
                self.graph, self.found, self.half, self.objective, errors, search.limit * self.budget,
                self.task.options.seed,
            )  # fmt: skip
            if chosen is None or not (chosen[0].nodes or chosen[0].weights):
                if not search.loosen(POLICY.largest_change):
                    break
                continue
            choice, cost = chosen
            key = frozenset(choice.nodes), choice.weights
            if key in accepted:
                if not search.loosen(POLICY.largest_change):
                    break
                continue
            made = lowered(self.graph, choice)
            try:
                error, failing = self._measured(made, choice)
            except ResourceLimit:
                if best is None:
                    raise
                self.context.log.note("the time ran out before other choices of precision were measured")
                break
            worst = error.relative
            if failing is None:
                accepted.add(key)
                if best is None or cost < best.cost:
                    best = _Outcome(choice, made, cost, error)
                if worst > (1.0 - POLICY.room) * most or self._is_everything(choice):
                    break
                if not search.loosen(POLICY.loosening * most / max(worst, _NOTHING)):
                    break
                continue
            if self._raise_errors(errors, failing):
                search.forget_failure()
            if key in refused or self._expected(choice, errors) <= search.limit * self.budget:
                search.tighten(POLICY.tightening * most / worst)  # single errors do not explain it
            refused.add(key)
        return best

    def _expected(self, choice: PrecisionAssignment, errors: Mapping[str, float]) -> float:
        """The error of a choice, by those of its values."""
        rounded = {n for operand in choice.nodes.values() for n in operand.names} | choice.weights
        rounded |= {o for i in choice.nodes for o in self.graph.nodes[i].outputs}
        rounded -= {o for i in choice.nodes.keys() & self.found.exact for o in self.graph.nodes[i].outputs}
        return sqrt(sum(errors.get(n, 0.0) ** 2 for n in rounded))

    def _is_everything(self, choice: PrecisionAssignment) -> bool:
        return choice.nodes.keys() == self.found.nodes.keys() and choice.weights == self.found.weights

    # -- errors ----------------------------------------------------------------------------------------------------

    def _measured(self, made: Graph, choice: PrecisionAssignment) -> tuple[MaximumOutputError, int | None]:
        """The largest error of a choice, as ONNX Runtime runs it, and with every result rounded; and the input on which
        it exceeds the budget."""
        runs: list[tuple[Callable[[Arrays], Arrays | None], int]] = []
        names = [v.name for v in self.graph.outputs]
        if self.runs_half or not choice.nodes:
            runtime = runtime_named(self.task.options.runtime)
            session = self.bench.loaded(made, runtime, threads=self.task.options.threads)
            runs.append((partial(_ran, session, names), POLICY.inputs))
        if choice.nodes:
            rounded = lowered(self.graph, choice, rounded=True)
            inputs = POLICY.rounded_inputs if self.processor else POLICY.inputs
            runs.append((partial(attempt, self.bench.session(rounded, optimise=False)), inputs))
        return self.judge.worst(runs, POLICY.share * self.budget, self._has_time)

    @cached_property
    def _single_errors(self) -> _SingleErrors:
        flops = costs.work(self.graph, self.typing, self.task.sizes).flops
        runs = POLICY.error_flops / max(flops, POLICY.run_flops) / POLICY.error_inputs
        values = rounded_values(self.graph, self.found)
        return _SingleErrors(self.graph, values, self.half, self.bench, max(1, int(runs)))

    def _raise_errors(self, errors: dict[str, float], number: int) -> bool:
        """Raise the errors of rounding single values to those on an input. Returns whether one is much larger."""
        if not errors:
            return False
        much = False
        feeds, original = self.judge.feeds[number], self.judge.original(number)
        for name, error in self._single_errors.of(feeds, original, self._has_time):
            if number < self.judge.ordinary or error == inf:
                much |= error > max(POLICY.growth * errors[name], POLICY.counted * self.budget)
                errors[name] = max(errors[name], error)
        return much

    # -- the report ------------------------------------------------------------------------------------------------

    def _reported(self, best: _Outcome) -> report.MixedPrecisionReport:
        choice, graph = best.choice, self.graph
        weights = {n: w.type.nbytes or 0 for n, w in graph.constants.items() if w.type.dtype == WIDE}
        unchosen = Float32Reason("budget", "half precision would save too little for its errors, or for its Casts")
        left = dict.fromkeys(sorted(self.found.nodes.keys() - choice.nodes.keys()), unchosen)
        kept = [(graph.nodes[i].name or graph.nodes[i].op, why) for i, why in {**self.found.kept, **left}.items()]
        stored = [(n, self.found.values.get(n, unchosen)) for n in weights if n not in choice.weights]
        return report.MixedPrecisionReport(
            str(self.half), self.budget, best.error.relative, POLICY.inputs, len(choice.nodes), len(graph.nodes),
            sum(weights[n] for n in choice.weights), sum(weights.values()), len(best.graph.nodes) - len(graph.nodes),
            (*_grouped("operators", kept), *_grouped("weights", stored)),
        )  # fmt: skip


class _LimitSearch:
    """Looks for the largest limit of the sum of single errors with which measured errors keep to the budget.

    Attributes:
        limit: the one to try, as a share of the budget.
    """

    def __init__(self) -> None:
        self.limit, self._passed, self._failed = 1.0, 0.0, inf

    def loosen(self, by: float) -> bool:
        """After errors within the budget. Returns whether a larger limit is left."""
        self._passed = max(self._passed, self.limit)
        if self._failed < inf:
            self.limit = sqrt(self._passed * self._failed)
            return self.limit > POLICY.least_change * self._passed
        self.limit *= min(POLICY.largest_change, by)
        return by > 1.0

    def forget_failure(self) -> None:
        """After single errors were raised: the same limit allows less than it did."""
        self._failed = inf

    def tighten(self, by: float) -> None:
        """After errors beyond the budget."""
        self._failed = min(self._failed, self.limit)
        slower = max(1.0 / POLICY.largest_change, by)
        self.limit = sqrt(self._passed * self._failed) if self._passed else self.limit * slower


class _SingleErrors:
    """Errors of rounding single values of a graph.

    Args:
        graph: a checked graph.
        values: its values that may be rounded.
        half: to which type.
        bench: where it runs.
        runs: that an input may take. Where values are more, neighbours are rounded together.
    """

    def __init__(
        self, graph: Graph, values: Sequence[str], half: DType, bench: SharedWeightSessions, runs: int
    ) -> None:
        self._probe = switched(graph, values, half)
        self._session = bench.session(self._probe.graph, optimise=False)
        size = max(1, -(-len(values) // runs))
        self._groups = [values[i : i + size] for i in range(0, len(values), size)]
        self._weights = {n: np.asarray(w.data.numpy()) for n in values if (w := graph.constants.get(n)) and w.data}
        self._half = half

    def of(
        self, feeds: Mapping[str, np.ndarray], original: Arrays, left: Callable[[], bool]
    ) -> Iterator[tuple[str, float]]:
        """The error of each value on an input. Those of a group share its error as independent ones would.

        Args:
            feeds: the input.
            original: the outputs without rounding.
            left: whether there is time for another run.

        Raises:
            ResourceLimit: there is none.
        """
        switches = self._probe.switches
        plain = {**feeds, **self._weights, **{s: np.array(False) for s in switches.values()}}
        for group in self._groups:
            if not left():
                raise ResourceLimit("the time ran out while errors were measured")
            on = {switches[n]: np.array(True) for n in group if n in switches}
            with np.errstate(over="ignore"):
                rounded = {
                    n: self._weights[n].astype(self._half.numpy).astype(np.float32) for n in group if n in self._weights
                }
            made = attempt(self._session, {**plain, **on, **rounded})
            error = inf if made is None else error_of(original, made).relative
            yield from ((n, error / sqrt(len(group))) for n in group)


def _ran(session: LoadedModel, names: Sequence[str], feeds: Arrays) -> Arrays | None:
    try:
        return session.run(feeds, names)
    except (InvalidModel, UsageError):
        return None


def _kinds(reasons: Iterable[Float32Reason]) -> dict[str, int]:
    """How many reasons there are of each kind, most frequent first."""
    return dict(Counter(r.kind for r in reasons).most_common())


def _grouped(what: str, kept: Sequence[tuple[str, Float32Reason]]) -> Iterator[report.Float32ReasonReport]:
    """What stays in float32, by kinds of reasons."""
    for kind, count in _kinds(why for _, why in kept).items():
        of_kind = [(name, why.text) for name, why in kept if why.kind == kind]
        where = tuple(name for name, _ in of_kind[:_NAMED])
        yield report.Float32ReasonReport(what, kind, count, of_kind[0][1], where)
