"""One differential check, from the inputs to the verdict. :mod:`superopt.verifier.check.differential` has the bound."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from superopt.ir.errors import InvalidModel, OutOfTime, ResourceLimit, Unsupported, UsageError
from superopt.ir.graph import Graph, OpaqueAttribute
from superopt.ir.size_polynomial import symbols
from superopt.ir.types import TensorType
from superopt.ops.flops_and_bytes import GraphWorkAnalysis
from superopt.ops.shape_inference import InferredTypes, infer
from superopt.runtime import reference
from superopt.runtime.onnx_runtime import ONNX_RUNTIME, InferenceSession
from superopt.runtime.onnx_runtime import run as run_session
from superopt.verifier.check.boundary_value_targets import MOST, size_candidates
from superopt.verifier.check.check_settings import ORIGINAL, RESULT, CheckResult, CheckSettings
from superopt.verifier.check.deviation import CheckTrial, DeviationExplainer
from superopt.verifier.check.edge_value_generation import handles_special
from superopt.verifier.check.independent_references import CrossRuntimeReference, displaced, unrounded_in_all
from superopt.verifier.check.input_generation import KINDS, LEVELS, choose_sizes, fed_types, make_inputs
from superopt.verifier.check.mutation_testing import MutationScore, measure_power
from superopt.verifier.check.shared_weight_sessions import LARGE, Arrays, SharedWeightSessions, attempt
from superopt.verifier.check.steered_inputs import SteeredInput, changed_rows, steered
from superopt.verifier.check.tolerance import JUMP, OutputComparison, agrees_with_reals, compare, equal, excess

__all__ = ["DifferentialCheck"]

_RANDOM = ("RandomNormal", "RandomUniform", "Multinomial", "Bernoulli", "Dropout")
_RUNS = 11  # runs of about the original's work that an input takes: both models, and the disturbed ones
_RUN = 1e7  # operations that a run counts at least, for being called
_NODE = 5e4  # operations that a node of it counts at least
_EMERGENCY = 20.0  # seconds of the original's runs after which no more are begun: work was not known (a loop, say)
_SIZES = 0.25  # of the work that sizes of the graphs' own may take besides
_LARGEST_UNTYPED = 1 << 12  # a size up to which a model is run though what it makes of it is not known
_OVERFLOWS = "overflow"  # the kind of difference that it is
_LARGEST_RUN = 1 << 30  # bytes that a run may read and write at such a size


@dataclass(frozen=True)
class _Session:
    """The result in ONNX Runtime, with its optimisations on or off."""

    ran: InferenceSession
    optimised: bool


class DifferentialCheck:
    """One check; ``run`` goes from the inputs to the verdict.

    Args:
        before, after: the models as they are read: their functions inlined, sizes named alike.
        plan: settings.
        bench: where sessions are made.
        typing: the original's types.
        ran: the models as they run, if that is not as they are read.
    """

    def __init__(
        self,
        before: Graph,
        after: Graph,
        plan: CheckSettings,
        bench: SharedWeightSessions,
        typing: InferredTypes | None = None,
        ran: tuple[Graph, Graph] | None = None,
    ) -> None:
        self.before, self.after, self.plan, self.bench = before, after, plan, bench
        self.original, self.result = ran or (before, after)
        self.typing = typing or infer(before, plan.sizes)
        self.types = {v.name: v.type.dtype if isinstance(v.type, TensorType) else None for v in before.outputs}
        flops, moved = GraphWorkAnalysis(before, self.typing, plan.sizes).flops_and_bytes()
        self.work = float(flops)
        self.run_work = max(self.work + moved, _RUN, _NODE * len(before.nodes))
        self.erratic: set[str] = set()
        self.plain: InferenceSession | None = None
        self.explanations: DeviationExplainer | None = None
        self.notes: list[str] = []
        self.broken: dict[str, str] = {}  # by output: that the runtime's optimiser moves it as no rounding does
        self.slack = plan.slack.at(after)
        self.cross_runtime = CrossRuntimeReference(self.original, self.result, bench, plan.runtime)

    @property
    def exhaustive(self) -> bool:
        """Whether the work allows all steered inputs."""
        return (self.plan.effort.steered + self.plan.trials) * _RUNS * self.run_work <= self.plan.effort.work

    @cached_property
    def large(self) -> bool:
        """Whether a run allocates so much that releasing it pays for its milliseconds."""
        kinds = (t for t in self.typing.types.values() if isinstance(t, TensorType))
        return self.bench.is_large(self.before) or max((t.nbytes or 0 for t in kinds), default=0) >= LARGE

    def _release(self) -> None:
        if self.large:
            self.bench.release_memory()

    @cached_property
    def single_run(self) -> bool:
        """Whether the result runs on one input only, and its session should be released before explanations are
        computed."""
        single = _RUNS * self.run_work > self.plan.effort.work and not changed_rows(self.before, self.after)
        return single and self.large and not self.plan.effort.cancelling

    def run(self) -> CheckResult:
        fed_types(self.before)
        try:
            self.plain = self.bench.session(self.original, optimise=False)
        except (InvalidModel, Unsupported) as refusal:
            return self._in_float64(refusal.what)
        self.explanations = DeviationExplainer(
            self.before,
            self.typing,
            self.bench,
            self.plain,
            self.plan.longest,
            self.slack,
            self.bench.release_memory
            if self.large
            else None,  # no method of this object's: what holds itself is held for long
            partial(_over_the_reals, self.before, self.plan) if self.work <= self.plan.effort.reference else None,
            self.plan.inside,
        )
        sessions, refused = self._sessions()
        if refused is not None:
            why = f"ONNX Runtime accepts the original but refuses the result: {refused}"
            return CheckResult("failed", reason=why, refused=RESULT)
        total = CheckResult("passed")
        tried: list[CheckTrial] = []
        names: list[str] = []
        for trial in self._trials():
            if not tried:
                self.erratic = self._erratic(trial)
                names = [v.name for v in self.before.outputs if v.name not in self.erratic]
                if not names:
                    return CheckResult("skipped", reason="every output is random: it differs from run to run")
            self._release()
            total = self._compare_trial(trial, len(tried), sessions, names, total)
            tried.append(trial)
            total = replace(total, trials=len(tried))
            if total.verdict == "failed":
                return replace(total, feeds=trial.feed.arrays, cancelling=trial.feed.cancelling)
        if self.erratic:
            self.notes.append(f"random outputs not compared: {', '.join(sorted(self.erratic))}")
        return replace(total, reason="; ".join((*self.notes, *self.broken.values())), power=self._power(tried, names))

    def _sessions(self) -> tuple[list[_Session], str | None]:
        """Sessions of the result, or the reason why there are none."""
        sessions: list[_Session] = []
        refused: str | None = None
        try:
            sessions.append(_Session(self.bench.session(self.result, optimise=True), optimised=True))
        except (InvalidModel, Unsupported) as error:
            refused = error.what
        if sessions and self.work > self.plan.effort.both:
            return sessions, None
        try:
            sessions.append(_Session(self.bench.session(self.result, optimise=False), optimised=False))
        except (InvalidModel, Unsupported) as error:
            return [], refused or error.what
        if refused is not None and self._is_loaded(self.original):
            return [], f"{refused} (with its optimisations off it loads)"
        if refused is not None:  # its optimiser stumbles over names that it gave itself, in a model it had optimised
            self.notes.append(f"the result was run with ONNX Runtime's optimisations off, since it refuses: {refused}")
        return sessions, None

    def _is_loaded(self, graph: Graph) -> bool:
        """Whether the runtime loads a graph with its optimisations on, as a user does."""
        try:
            self.bench.session(graph, optimise=True)
        except (InvalidModel, Unsupported):
            return False
        return True

    def _trials(self) -> Iterator[CheckTrial]:
        """Unsteered and steered inputs that the original accepts, with the original's outputs."""
        plan = self.plan
        level = 0
        for number in range(plan.trials):
            if number and (plan.late() or number * _RUNS * self.run_work > plan.effort.work):
                break
            kind = KINDS[number % len(KINDS)]
            while True:
                feeds = make_inputs(self.before, plan.seed + number, kind, plan.sizes, level=level)
                try:
                    original = run_session(self._session(), feeds, time_limit=plan.longest())
                    break
                except (InvalidModel, UsageError) as error:
                    level += 1
                    if level == LEVELS:
                        raise Unsupported(f"ONNX Runtime refuses every input that was tried: {error.what}") from error
            yield CheckTrial(SteeredInput(f"{kind} inputs", feeds), original)
        most = min(plan.effort.steered, int(plan.effort.work / (_RUNS * self.run_work)) - plan.trials)
        most = max(most, len(changed_rows(self.before, self.after)))  # what no other input may ever read
        started = time.monotonic()
        aims = steered(
            self.before, self.after, plan.seed, plan.sizes, level, most, cancelling=plan.effort.cancelling,
            beside=self._sizes(level), special=plan.beyond or self.deliberate,
        )  # fmt: skip
        for feed in aims:
            if plan.late() or time.monotonic() - started > _EMERGENCY:
                self.notes.append("time ended the check before all steered inputs were tried")
                return
            if not self._survives(self.original, feed):
                self._note(f"not tried: {feed.name}, at which ONNX Runtime ends the process that runs the original")
                continue
            arrays = attempt(self._session(), feed.arrays, time_limit=plan.longest())
            if arrays is not None:
                yield CheckTrial(feed, arrays)

    @cached_property
    def deliberate(self) -> bool:
        """Whether either model handles NaN or infinities explicitly."""
        return handles_special(self.before) or handles_special(self.after)

    def _sizes(self, level: int) -> Iterator[dict[str, int]]:
        """Further sizes, as far as a share of the work allows."""
        plan, left = self.plan, self.plan.effort.work * _SIZES
        kinds = fed_types(self.before).values()
        names = [n for t in kinds for d in t.shape or () for n in sorted(symbols(d))]
        if not names or _RUNS * self.run_work > left:
            return
        typed = (self.before, self.typing), (self.after, self.typing_after)
        count = 0
        for group, size in size_candidates([(g, t.types) for g, t in typed], names, plan.sizes):
            wanted = dict.fromkeys(group, size)
            sizes = choose_sizes(self.before, plan.seed, level, {**plan.sizes, **wanted})
            work = [GraphWorkAnalysis(g, t, sizes).flops_and_bytes() for g, t in typed]
            known = size <= _LARGEST_UNTYPED or all(kind is not None for _, t in typed for kind in t.types.values())
            taken = _RUNS * max(sum(flops + moved for flops, moved in work), self.run_work)
            if not known or max(moved for _, moved in work) > _LARGEST_RUN or taken > left:
                continue
            left, count = left - taken, count + 1
            yield wanted
            if count == MOST:
                return

    def _survives(self, graph: Graph, feed: SteeredInput) -> bool:
        """Whether this process may run a graph on a feed. Kernels may divide by a size of 0, or worse (those of Einsum,
        LSTM, GRU and GroupQueryAttention in ONNX Runtime 1.32 do), and no error says so."""
        if all(a.size for a in feed.arrays.values()) and not feed.risky:
            return True
        return self.bench.survives(graph, feed.arrays, self.plan.longest())

    def _session(self) -> InferenceSession:
        assert self.plain is not None
        return self.plain

    def _erratic(self, trial: CheckTrial) -> set[str]:
        """Outputs that differ from run to run."""
        if not _is_random(self.before):
            return set()
        again = run_session(self._session(), trial.feed.arrays, time_limit=self.plan.longest())
        return {n for n, a in trial.original.items() if not equal(a, again[n])}

    def _compare_trial(
        self, trial: CheckTrial, number: int, sessions: list[_Session], names: Sequence[str], total: CheckResult
    ) -> CheckResult:  # fmt: skip
        if not self._survives(self.result, trial.feed):
            why = "the result ends the process where the original runs"
            return replace(total, verdict="failed", reason=why, refused=RESULT)
        try:
            results = [(self._run(one.ran, trial), one.optimised) for one in sessions]
        except (InvalidModel, UsageError) as error:
            why = f"the result fails where the original runs: {error.what}"
            return replace(total, verdict="failed", reason=why, refused=RESULT)
        only = len(sessions) == 1 and sessions[0].optimised
        if self.single_run:
            sessions.clear()
            self.bench.drop(self.result)
        if trial.feed.special:
            return self._not_finite(trial, number, results[-1][0], names, total)
        for arrays, optimised in results:
            total = self._compared(trial, number, arrays, names, total, optimised=optimised)
            if total.verdict != "failed" and not optimised:  # what the runtime's optimiser breaks excuses the result
                total = self._unexplained(trial, arrays, names, total)
            if total.verdict == "failed":
                return total
        if self._is_broken(trial, number, names) and only:
            total = self._unoptimised(trial, number, names, total)
        if total.verdict == "failed" or self.plan.runtime is ONNX_RUNTIME:
            return total
        return self._compare_in_runtime(trial, number, names, total)

    def _unexplained(self, trial: CheckTrial, arrays: Arrays, names: Sequence[str], total: CheckResult) -> CheckResult:
        """Elements that jump where neither model rounds: at a tie, the original's moves explain either side."""
        if trial.feed.scaled or self.work > self.plan.effort.reference:
            return total
        for name in names:
            old, new, dtype = trial.original[name], arrays[name], self.types[name]
            if not excess(old, new, dtype) > JUMP:
                continue
            sides = (self.before, self.typing), (self.after, self.typing_after)
            exact = unrounded_in_all(sides, name, trial.feed.arrays, self.bench, self.plan.sizes, self.plan.give_up)
            one = OutputComparison() if exact is None else compare(old, new, dtype, mixed=trial.feed.mixed, full=~exact)
            if one.problem is not None and np.isfinite(one.absolute):
                why = f"{one.problem}; neither model rounds anything there"
                return _with_comparison(total, replace(one, problem=why), name, trial.feed.name)
        return total

    @cached_property
    def typing_after(self) -> InferredTypes:
        """The result's types."""
        return infer(self.after, self.plan.sizes)

    def _not_finite(
        self, trial: CheckTrial, number: int, arrays: Arrays, names: Sequence[str], total: CheckResult
    ) -> CheckResult:
        """Compare NaN and infinities: a difference fails if a model handles them explicitly; else it is reported."""
        for name, one in self.outputs_compared(trial, number, arrays, names).items():
            if one.problem is not None and self.deliberate:
                return _with_comparison(total, one, name, trial.feed.name)
            if one.problem is not None:
                total = _with_beyond(total, trial.feed.name, name, one.problem)
        return total

    def _is_broken(self, trial: CheckTrial, number: int, names: Sequence[str]) -> bool:
        """Whether the runtime's optimiser moves an output of the original as no other order of sums does; where
        rounding does not explain that either, a thorough check notes it."""
        assert self.explanations is not None
        moved = [name for name in names if self.explanations.broken(number, name)]
        notes = self.plan.effort.faults and moved and not trial.feed.scaled
        ran = self.explanations.optimised(trial, number) if notes else None
        for name in moved if ran is not None else ():
            assert ran is not None
            comparison = self.outputs_compared(trial, number, {name: ran[name]}, [name])[name]
            if comparison.problem is not None and np.isfinite(comparison.absolute):
                move = f"of the original by {comparison.absolute:.2g}"
                self.broken.setdefault(name, f"ONNX Runtime's own optimisations move output {name!r} {move}")
        return bool(moved)

    def _unoptimised(self, trial: CheckTrial, number: int, names: Sequence[str], total: CheckResult) -> CheckResult:
        """Compare the result with the runtime's optimisations off: what they break in the original excuses nothing."""
        try:
            session = self.bench.session(self.result, optimise=False)
            arrays = self._run(session, trial)
        except (InvalidModel, Unsupported, UsageError) as error:
            return replace(total, verdict="failed", reason=f"the result fails where the original runs: {error.what}")
        return self._compared(trial, number, arrays, names, total)

    def _run(self, session: InferenceSession, trial: CheckTrial) -> Arrays:
        arrays = run_session(session, trial.feed.arrays, time_limit=self.plan.longest())
        self._release()
        return arrays

    def _compare_in_runtime(
        self, trial: CheckTrial, number: int, names: Sequence[str], total: CheckResult
    ) -> CheckResult:
        """The result in the runtime that it is made for: by ONNX Runtime's truth or, where that runtime does not keep
        to it on the original itself, by how far it is from what that runtime makes of the original."""
        cross_runtime, longest = self.cross_runtime, self.plan.longest
        after, why = cross_runtime.after(trial.feed.arrays, longest())
        if after is None:
            before, whence = cross_runtime.before(trial.feed.arrays, longest())
            if before is not None:
                return replace(total, verdict="failed", reason=f"the result fails where the original runs: {why}")
            self._note(
                f"not run in {cross_runtime.name} on some inputs or at all, as it refuses the original, too: {whence}"
            )
            return total
        check = self._compared(trial, number, after, names, total, optimised=True)
        if check.verdict != "failed":
            return check
        before, _ = cross_runtime.before(trial.feed.arrays, longest())
        if before is None or self._compared(trial, number, before, names, total, optimised=True).verdict != "failed":
            return replace(check, reason=f"in {cross_runtime.name}: {check.reason}")
        moved = {name: displaced(trial.original[name], before[name], after[name]) for name in names}
        again = self._compared(trial, number, moved, names, total, optimised=True)
        if again.verdict == "failed":
            return replace(again, reason=f"in {cross_runtime.name}, against the original there: {again.reason}")
        self._note(
            f"{cross_runtime.name} strays from ONNX Runtime on the original itself, and the result was held to it there"
        )
        return again

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _compared(
        self, trial: CheckTrial, number: int, arrays: Arrays, names: Sequence[str], total: CheckResult, *,
        optimised: bool = False,
    ) -> CheckResult:  # fmt: skip
        comparisons = self.outputs_compared(trial, number, arrays, names, optimised=optimised)
        for name, one in comparisons.items():
            total = _with_comparison(total, one, name, trial.feed.name, counts=not trial.feed.scaled)
            if one.excused:
                total = _with_beyond(total, _OVERFLOWS, name, one.excused)
            if total.verdict == "failed":
                return total
        differing = [n for n, one in comparisons.items() if one.differs]
        wanted = self.plan.full and number < self.plan.trials
        if wanted or (differing and self.work <= self.plan.effort.reference and number < self.plan.trials):
            total = self._against_reals(trial, number, arrays, names if wanted else differing, total, optimised)
        return total

    def outputs_compared(
        self, trial: CheckTrial, number: int, made: Arrays, names: Sequence[str], *, optimised: bool = False
    ) -> dict[str, OutputComparison]:
        """Each output by the first criterion, with as much evidence as it needs."""
        assert self.explanations is not None
        old, mixed = trial.original, trial.feed.mixed
        comparisons = {n: compare(old[n], made[n], self.types[n], mixed=mixed, slack=self.slack) for n in names}
        apart = [n for n, c in comparisons.items() if c.problem is not None and made[n].shape == old[n].shape]
        odd = [n for n in apart if np.isinf(comparisons[n].absolute)]
        exact = (self._exact(trial, odd)[0] or {}) if odd else {}
        for n in apart:
            comparisons[n] = self.explanations.explain(
                trial, number, n, made[n], self.types[n], comparisons[n], exact.get(n), optimised=optimised
            )
        return comparisons

    def _exact(self, trial: CheckTrial, names: Sequence[str]) -> tuple[Arrays | None, str]:
        """The float64 outputs, or the reason why there are none."""
        try:
            return _referenced(self.before, self.plan, trial, names), ""
        except OutOfTime:
            raise
        except (Unsupported, ResourceLimit) as error:
            return None, f"compared with the original only, since the reference cannot run: {error}"

    def _against_reals(
        self, trial: CheckTrial, number: int, arrays: Arrays, names: Sequence[str], total: CheckResult, optimised: bool
    ) -> CheckResult:
        """The second criterion."""
        exact, why = self._exact(trial, names)
        if exact is None:
            self._note(why)
            return total
        total = replace(total, reference="original and float64")
        for name in names:
            assert self.explanations is not None
            given_displacement = self.explanations.all_moves(trial, number, name)
            comparison = agrees_with_reals(
                trial.original[name], arrays[name], exact[name], self.types[name], given_displacement, slack=self.slack,
                optimised=optimised,
            )  # fmt: skip
            if comparison.problem is not None:
                said = f"output {name!r} ({trial.feed.name}) against float64: {comparison.problem}"
                return replace(total, verdict="failed", culprit_output=name, reason=said)
        return total

    def _power(self, tried: Sequence[CheckTrial], names: Sequence[str]) -> MutationScore | None:
        """The power of the inputs that were tried."""
        if not self.plan.power.work:
            return None

        def fails(number: int, arrays: Arrays) -> bool | None:
            trial = tried[number]
            if trial.feed.special and not self.deliberate:
                return False
            if any(arrays[n].shape != trial.original[n].shape for n in names):
                return None
            comparisons = self.outputs_compared(trial, number, arrays, names)
            return any(c.problem is not None for c in comparisons.values())

        runs = [t.feed.arrays for t in tried]
        given: dict[str, Any] = {
            "bench": self.bench,
            "seed": self.plan.seed,
            "effort": self.plan.power,
            "work": self.work,
        }
        power = measure_power(self.before, self.after, runs, fails, **given)
        if power.mutants or not self.plan.beyond:
            return power
        other = measure_power(self.after, self.before, runs, fails, **given)
        return replace(other, of_original=True) if other.mutants else power

    def _in_float64(self, refusal: str) -> CheckResult:
        """Both models by the float64 reference alone, since ONNX Runtime refuses the original."""
        names = [v.name for v in self.before.outputs]
        note = f"ONNX Runtime refuses the original ({refusal}): compared in float64 only"
        total = CheckResult("passed", reference="float64", reason=note, refused=ORIGINAL)
        for number in range(self.plan.trials):
            if number and self.plan.late():
                break
            kind = KINDS[number % len(KINDS)]
            feeds = make_inputs(self.before, self.plan.seed + number, kind, self.plan.sizes)
            try:
                old, new = (
                    reference.run(g, feeds, outputs=names, deadline=self.plan.give_up)
                    for g in (self.before, self.after)
                )
            except OutOfTime:
                raise
            except (Unsupported, ResourceLimit) as error:
                why = f"neither ONNX Runtime nor the reference can run the original: {refusal}; {error.what}"
                return CheckResult("skipped", reason=why, refused=ORIGINAL)
            for name in names:
                comparison = agrees_with_reals(None, new[name], old[name], self.types[name], slack=self.slack)
                total = _with_comparison(total, comparison, name, f"{kind} inputs")
                if total.verdict == "failed":
                    return replace(total, trials=number + 1, feeds=feeds)
            total = replace(total, trials=number + 1)
        return total


def _referenced(graph: Graph, plan: CheckSettings, trial: CheckTrial, names: Sequence[str]) -> Arrays:
    """Outputs of a graph in float64."""
    return reference.run(graph, trial.feed.arrays, outputs=names, sizes=plan.sizes, deadline=plan.give_up)


def _over_the_reals(graph: Graph, plan: CheckSettings, trial: CheckTrial, name: str) -> np.ndarray | None:
    """An output in float64; ``None`` where the reference does not run."""
    try:
        return _referenced(graph, plan, trial, [name])[name]
    except OutOfTime:
        raise
    except (Unsupported, ResourceLimit):
        return None


def _is_random(graph: Graph) -> bool:
    marks = [m.encode() for m in _RANDOM]
    return any(
        n.op.startswith(_RANDOM)
        or any(isinstance(a, OpaqueAttribute) and any(m in a.payload for m in marks) for a in n.attributes.values())
        for n in graph.nodes
    ) or any(m in payload for payload in graph.extras.values() for m in marks)


def _with_beyond(total: CheckResult, kind: str, name: str, said: str) -> CheckResult:
    """The result with a difference beyond the reals added: the first of its kind at each output."""
    start = f"{kind}: output {name!r} "
    if any(known.startswith(start) for known in total.beyond):
        return total
    return replace(total, beyond=(*total.beyond, start + said))


def _with_comparison(
    total: CheckResult, comparison: OutputComparison, name: str, kind: str, *, counts: bool = True
) -> CheckResult:
    """The result with one comparison added; its distances count unless ``counts`` is false and nothing is wrong."""
    if counts or comparison.problem is not None:
        total = replace(
            total, max_abs_error=max(total.max_abs_error, comparison.absolute),
            max_rel_error=max(total.max_rel_error, comparison.relative),
            baseline_error=max(total.baseline_error, comparison.baseline),
        )  # fmt: skip
    if comparison.problem is None:
        return total
    return replace(
        total, verdict="failed", culprit_output=name, reason=f"output {name!r} ({kind}): {comparison.problem}"
    )
