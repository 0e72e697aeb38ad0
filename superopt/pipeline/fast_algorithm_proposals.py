"""Fast algorithms (Winograd, Strassen) in the place of convolutions and products: proposals, and their errors.

A fast algorithm costs accuracy and memory, and no rewrite rule applies behind one. So they are proposed for the result
of the search, and a proposal that is refused leaves that result as it is. Prices alone choose the algorithms
(:func:`superopt.passes.fast_algorithms.selection.choose`), so that the proposals and their order are a function of
graph and prices. Timing accepts or refuses each proposal as a whole. Errors are measured on inputs that the seed draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from superopt import cost as costs
from superopt import report
from superopt.cost import CostModel, GraphCost
from superopt.formats.control_flow_bodies import all_names
from superopt.ir.errors import InvalidModel, SuperoptError, UsageError
from superopt.ir.graph import Graph
from superopt.ops.shape_inference import InferredTypes, infer
from superopt.passes.fast_algorithms.selection import (
    FORM_ERROR,
    GROWTH,
    FastAlgorithmChoice,
    FormPrices,
    accuracy_of,
    choose,
    named,
    rewritten,
    shared,
    without_small_gains,
)
from superopt.passes.fast_algorithms.sites import possible
from superopt.passes.fast_algorithms.strassen_matmul import StrassenMatMul
from superopt.pipeline.acceptance_policy import POLICY, TimeRatioEstimate
from superopt.pipeline.check_policy import CHECKS
from superopt.pipeline.memory_limit import needed
from superopt.pipeline.paired_benchmark import LARGE
from superopt.pipeline.report_notes import ReportNotes
from superopt.rules.float_verdicts import MOST_ERROR
from superopt.runtime import reference
from superopt.runtime.paired_benchmark import SURELY
from superopt.runtime.protocol import Runtime
from superopt.verifier.check.differential import make_inputs
from superopt.verifier.check.shared_weight_sessions import Arrays, SharedWeightSessions

__all__ = [
    "NumericalErrorComparison",
    "NumericalErrorBudget",
    "NumericalErrorMeasurer",
    "FastAlgorithmSubstitution",
    "FastAlgorithmSettings",
    "accuracy",
    "substitutions",
]

_LESS = (6.0, 3.0)  # growth of errors of algorithms that are proposed after those of the mode


@dataclass(frozen=True)
class NumericalErrorComparison:
    """Largest errors against float64, relative to the largest element of the output, over so many random inputs."""

    before: float
    after: float
    inputs: int

    def within(self, mode: str, share: float = 1.0) -> bool:
        """Whether a mode's budget, or a share of it, allows it; what errs no more than the model does is allowed."""
        return self.after <= max(self.before, share * min(MOST_ERROR[mode], GROWTH[mode] * self.before))


@dataclass(frozen=True)
class FastAlgorithmSettings:
    """What fast algorithms may cost.

    Attributes:
        mode: the budget of errors, as ``--float`` says it.
        sizes: what symbolic dimensions are costed and run at.
        seed: of inputs.
        threads, runtime: in which errors are measured.
        memory: bytes that weights and activations may take together; ``None`` without a limit.
        inputs: on which errors are measured; ``None``: as many as that is worth.
    """

    mode: str
    sizes: Mapping[str, int]
    seed: int
    threads: int
    runtime: Runtime
    memory: int | None = None
    inputs: int | None = None


@dataclass(frozen=True)
class FastAlgorithmSubstitution:
    """A graph with fast algorithms in the place of some operators.

    Attributes:
        plain: the graph without them.
        graph: the graph with them.
        choices: the operators and their algorithms.
        cost: what ``graph`` is modelled to take.
        modelled: the same as a share of what ``plain`` takes.
        slack: share of an output's largest magnitude by which the mode lets it be off.
        clear: each algorithm is modelled to gain by more than prices are off.
        errors: of the input and of ``graph``, once they are measured.
    """

    plain: Graph
    graph: Graph
    choices: tuple[FastAlgorithmChoice, ...]
    cost: GraphCost
    modelled: TimeRatioEstimate
    slack: float
    clear: bool
    errors: NumericalErrorComparison | None = None

    def reported(self) -> tuple[report.FastAlgorithmReport, ...]:
        """What a report says of each."""
        return tuple(_reported(choice) for choice in self.choices)

    def errors_reported(self, mode: str) -> report.NumericalErrorReport | None:
        """The errors, with what a mode allows."""
        found = self.errors
        if found is None:
            return None
        return report.NumericalErrorReport(found.before, found.after, found.inputs, MOST_ERROR[mode], GROWTH[mode])


def substitutions(
    original: Graph, plain: Graph, prices: CostModel, setting: FastAlgorithmSettings, log: ReportNotes
) -> Iterator[FastAlgorithmSubstitution]:
    """Graphs with fast algorithms in the place of operators, in the order in which they are to be tried.

    The fastest by price come first; then those of them that gain by more than prices are off; then the same with
    algorithms that are more accurate.

    Args:
        original: the input, whose names are its own.
        plain: the graph.
        prices: the target's cost model.
        setting: what algorithms may cost.
        log: a note where the memory limit leaves too few.
    """
    pricing = _pricing(prices) if GROWTH[setting.mode] > 1.0 and prices.backend.processor and possible(plain) else None
    if pricing is None or plain.weight_bytes > LARGE:  # timing and errors need the model whole
        return
    typing = infer(plain)
    before = costs.graph_cost(plain, pricing, sizes=setting.sizes).us
    most = (1.0 - POLICY.least_replacement_gain) * before
    seen: list[list[FastAlgorithmChoice]] = []
    priced: FormPrices = {}
    for growth in (GROWTH[setting.mode], *(less for less in _LESS if less < GROWTH[setting.mode])):
        chosen = choose(plain, pricing, growth=growth, typing=typing, sizes=setting.sizes, priced=priced)
        for clear in (False, True):
            some = _clear(plain, typing, chosen, pricing) if clear else chosen
            if before - _gain(some) > most:
                break  # fewer algorithms gain no more
            if some in seen:
                continue
            seen.append(some)
            fitting = _fitting(plain, some, setting)
            if before - _gain(fitting) > most:
                limit = LARGE if setting.memory is None else min(LARGE, setting.memory)
                log.note(f"fewer multiplications were left out: the model with their weights would take more than "
                             f"{limit >> 20} MiB")  # fmt: skip
                return
            made = rewritten(plain, fitting, reserved=all_names(original))
            cost = costs.graph_cost(made, prices.recorded or prices, sizes=setting.sizes)
            if cost.us > most:
                continue
            error = sum(c.error for c in fitting) / before
            modelled = TimeRatioEstimate(1.0 - _gain(fitting) / before, error)
            yield FastAlgorithmSubstitution(
                plain, made, tuple(fitting), cost, modelled, MOST_ERROR[setting.mode], clear
            )


def _clear(
    plain: Graph, typing: InferredTypes, chosen: Sequence[FastAlgorithmChoice], pricing: CostModel
) -> list[FastAlgorithmChoice]:
    """Those of the choices that are modelled to gain by more than prices are off."""
    sure = [c for c in chosen if c.after < (1.0 - SURELY * FORM_ERROR) * c.before]
    return without_small_gains(plain, typing, sure, pricing) if len(sure) < len(chosen) else list(chosen)


def _gain(chosen: Sequence[FastAlgorithmChoice]) -> float:
    """Microseconds."""
    return sum(c.before - c.after for c in chosen)


def _pricing(prices: CostModel) -> CostModel | None:
    """The prices of algorithms, which measure nothing: where all is measured, a recorded profile of the same backend,
    however many threads that had; ``None`` where there is none."""
    if prices.recorded is not None:
        return prices.recorded
    headers = {name: costs.shipped_header(name) for name in costs.profile_names()}
    alike = (n for n, header in headers.items() if costs.BACKENDS.get(str(header.get("backend"))) is prices.backend)
    found = next(alike, None)
    return None if found is None else costs.ProfileCostModel(costs.load_profile(found), prices.sizes)


def _fitting(
    plain: Graph, chosen: list[FastAlgorithmChoice], setting: FastAlgorithmSettings
) -> list[FastAlgorithmChoice]:
    """As many of the algorithms as memory allows, without those first that gain the least for a byte."""
    weights = plain.weight_bytes
    kept = list(chosen)
    while kept:
        if weights + sum(c.more_bytes for c in kept) <= LARGE and (
            setting.memory is None
            or needed(rewritten(plain, kept, filled=False), None, setting.sizes) <= setting.memory
        ):
            return kept
        least = min(range(len(kept)), key=lambda i: (kept[i].before - kept[i].after) / max(kept[i].more_bytes, 1))
        del kept[least]
        kept = shared(kept)
    return kept


class NumericalErrorMeasurer:
    """Errors of graphs that stand for another, in a runtime against that one in float64, on the same inputs.

    What the original makes of the inputs, there and in float64, is computed once, however many graphs are asked about.
    One thing after the other is in memory: a graph's session, then the reference.

    Args:
        original: the graph that the others stand for.
        fed: the inputs.
        bench: where graphs are run.
        runtime, threads: in which they are.
        sizes: what symbolic dimensions are run at.
    """

    def __init__(
        self,
        original: Graph,
        fed: Sequence[Mapping[str, np.ndarray]],
        bench: SharedWeightSessions,
        *,
        runtime: Runtime,
        threads: int = 1,
        sizes: Mapping[str, int],
    ) -> None:
        self._original, self._fed, self._bench, self._sizes = original, fed, bench, sizes
        self._runtime, self._threads = runtime, threads
        self._names = [v.name for v in original.outputs]

    def of(self, made: Graph) -> list[NumericalErrorComparison | None]:
        """By input; ``None`` for one that the original refuses.

        Raises:
            InvalidModel: the original refuses all of them, or the graph another than it. Unsupported, ResourceLimit:
                one of the two cannot be run.
        """
        self._bench.drop(made)  # while float64 runs
        known = self._reference_runs
        session = self._bench.loaded(made, self._runtime, threads=self._threads)
        found: list[NumericalErrorComparison | None] = []
        for feeds, one in zip(self._fed, known, strict=True):
            if one is None:
                found.append(None)
                continue
            old, exact = one
            try:
                new = session.run(feeds, self._names)
            except (InvalidModel, UsageError) as error:
                raise InvalidModel(f"what the model takes is refused: {error.what}") from error
            errors = [_errors_of(old[n], new[n], exact[n]) for n in self._names]
            found.append(NumericalErrorComparison(max(e[0] for e in errors), max(e[1] for e in errors), 1))
        del session
        self._bench.drop(made)
        return found

    @cached_property
    def _reference_runs(self) -> list[tuple[Arrays, Arrays] | None]:
        """By input, what the original makes of it in the runtime and in float64."""
        session = self._bench.loaded(self._original, self._runtime, threads=self._threads)
        runs: list[Arrays | None] = []
        why: SuperoptError | None = None
        for feeds in self._fed:
            try:
                runs.append(session.run(feeds, self._names))
            except (InvalidModel, UsageError) as error:
                runs.append(None)
                why = error
        del session
        self._bench.drop(self._original)
        if why is not None and not any(run is not None for run in runs):
            raise InvalidModel(why.what) from why
        return [
            None if run is None else (run, reference.run(self._original, feeds, sizes=self._sizes))
            for feeds, run in zip(self._fed, runs, strict=True)
        ]


def accuracy(
    before: Graph, after: Graph, *, sizes: Mapping[str, int], runtime: Runtime, seed: int = 0, inputs: int = 3
) -> NumericalErrorComparison:
    """Errors of two graphs in a runtime against the first in float64, on the same standard normal inputs.

    Raises:
        InvalidModel, Unsupported, ResourceLimit: one of them cannot be run.
    """
    fed = [make_inputs(before, number, "normal", sizes=sizes) for number in range(seed, seed + inputs)]
    with SharedWeightSessions() as bench:
        found = NumericalErrorMeasurer(before, fed, bench, runtime=runtime, sizes=sizes).of(after)
    return _largest([f for f in found if f is not None])


class NumericalErrorBudget:
    """The budget of errors of one optimisation.

    Errors are measured on standard normal inputs, and on one input of large, small and repeated elements, as far as the
    model takes them: where an exponential follows, errors grow with the numbers. The seed draws the inputs, so they are
    the same on every run.

    Args:
        original: the input.
        setting: what algorithms may cost.
        bench: where graphs are run.
    """

    def __init__(self, original: Graph, setting: FastAlgorithmSettings, bench: SharedWeightSessions) -> None:
        self._setting, self._normal = setting, setting.inputs or _error_input_count(original, setting.sizes)
        seeds = range(setting.seed, setting.seed + self._normal)
        kinds = [*(("normal", seed) for seed in seeds), ("edge", setting.seed)]
        fed = [make_inputs(original, seed, kind, sizes=setting.sizes) for kind, seed in kinds]
        self._errors = NumericalErrorMeasurer(
            original, fed, bench, runtime=setting.runtime, threads=setting.threads, sizes=setting.sizes
        )  # fmt: skip

    def measured(self, made: Graph) -> list[NumericalErrorComparison]:
        """Errors of a graph by kind of input, normal ones first.

        Raises:
            InvalidModel, Unsupported, ResourceLimit: it or the original cannot be run.
        """
        found = self._errors.of(made)
        taken = [[f for f in some if f is not None] for some in (found[: self._normal], found[self._normal :])]
        return [_largest(some) for some in taken if some]

    def allows(self, substitution: FastAlgorithmSubstitution) -> tuple[FastAlgorithmSubstitution, str]:
        """A graph with its errors, and why they are too large, if they are.

        Raises:
            InvalidModel, Unsupported, ResourceLimit: as :meth:`measured`.
        """
        mode, errors = self._setting.mode, self.measured(substitution.graph)
        over = next((e for e in errors if not e.within(mode, CHECKS.error_share)), None)
        why = over and f"errors grow from {over.before:.1e} to {over.after:.1e}, which {mode!r} does not allow"
        return replace(substitution, errors=_largest(errors)), why or ""


def _error_input_count(original: Graph, sizes: Mapping[str, int]) -> int:
    """On how many normal inputs errors are measured."""
    done = costs.work(original, infer(original, sizes), sizes)
    return max(1, min(CHECKS.error_inputs, int(CHECKS.error_flops / max(done.flops, 1))))


def _largest(found: Sequence[NumericalErrorComparison]) -> NumericalErrorComparison:
    """Of all inputs together."""
    return NumericalErrorComparison(
        max(f.before for f in found), max(f.after for f in found), sum(f.inputs for f in found)
    )


def _errors_of(old: np.ndarray, new: np.ndarray, exact: np.ndarray) -> tuple[float, float]:
    """Largest errors relative to the largest element, over those that are finite exactly and as the model computes
    them."""
    if exact.dtype.kind != "f":
        return 0.0, 0.0
    usable = np.isfinite(exact) & np.isfinite(old)
    if not usable.any():
        return 0.0, 0.0
    exact = exact[usable]
    off = [np.abs(made[usable].astype(np.float64) - exact).max() for made in (old, new)]
    before, after = (float(e / (np.abs(exact).max() or 1.0)) for e in off)
    return before, after if np.isfinite(after) else np.inf


def _reported(choice: FastAlgorithmChoice) -> report.FastAlgorithmReport:
    growth, bound = accuracy_of(choice.form)
    name = named(choice.form)
    where = choice.site.node.name or choice.site.output
    op = "MatMul" if isinstance(choice.form, StrassenMatMul) else "Conv"
    return report.FastAlgorithmReport(where, op, name, growth, bound, choice.before, choice.after)
