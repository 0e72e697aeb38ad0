"""One check, from the inputs to the verdict: see :mod:`superopt.verifier.differential` for the bound."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from superopt.cost.whole import work
from superopt.ir.errors import InvalidModel, OutOfTime, ResourceLimit, Unsupported, UsageError
from superopt.ir.graph import Graph, OpaqueAttribute
from superopt.ir.types import TensorType
from superopt.ops.infer import infer
from superopt.runtime import reference
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.ort import InferenceSession
from superopt.runtime.ort import run as run_session
from superopt.runtime.protocol import Runtime
from superopt.verifier._feeds import KINDS, LEVELS, fed_types, make_inputs
from superopt.verifier._judgement import Comparison, agrees_with_reals, compare, equal
from superopt.verifier.elsewhere import Elsewhere, displaced
from superopt.verifier.noise import Disturbed, moves
from superopt.verifier.overflow import near_overflow
from superopt.verifier.power import Power, measure_power
from superopt.verifier.running import Arrays, Bench, attempt
from superopt.verifier.steering import Feed, steered

__all__ = ["CheckResult", "Judge", "Plan", "Trial"]

_LONGEST_RUN = 15.0  # seconds of one run
_RANDOM = ("RandomNormal", "RandomUniform", "Multinomial", "Bernoulli", "Dropout")
_WORK = 8e10  # operations of all runs but the first input's: two or three seconds of one core
_RUNS = 11  # runs of about the original's work that an input takes: both models, and the disturbed ones
_RUN = 1e7  # operations that a run counts at least, for being called
_EMERGENCY = 20.0  # seconds of the original's runs after which no more are begun: work was not known (a loop, say)
_STEERED = 48  # steered inputs at most
_REFERENCE = 2e9  # operations from which the float64 reference is only run when asked for
_BOTH = 1e9  # operations up to which the result is also run with the runtime's optimisations off
_KEPT = 1 << 26  # bytes of disturbed outputs that are kept for other comparisons on the same inputs
_SAMPLES = (2, 4, 12)  # disturbed runs of each kind: at first, where these do not explain it, and at most


@dataclass(frozen=True)
class CheckResult:
    """What a check found.

    Attributes:
        verdict: "passed", "failed" (the models differ: see ``reason``), or "skipped" (they could not be run).
        trials: inputs that were tried.
        max_abs_error: largest difference of the result from the original.
        max_rel_error: the same, relative to the largest magnitude of that output.
        reference: what judged: "original" (ONNX Runtime on the original), "original and float64" where the second
            criterion was needed, or "float64" where the runtime refuses the original.
        baseline_error: largest move of the original by its own rounding, relative likewise, where it was asked for.
        culprit_output: name of the output that failed.
        reason: in words.
        power: what the inputs can tell apart, if that was measured.
        feeds: the inputs on which a failed check saw the models differ.
    """

    verdict: str
    trials: int = 0
    max_abs_error: float = 0.0
    max_rel_error: float = 0.0
    reference: str = "original"
    baseline_error: float = 0.0
    culprit_output: str | None = None
    reason: str = ""
    power: Power | None = None
    feeds: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Plan:
    """Settings of a check: see :func:`superopt.verifier.differential.check`."""

    seed: int
    trials: int
    deadline: float | None
    give_up: float
    sizes: dict[str, int]
    full: bool
    power: str
    runtime: Runtime = ONNX_RUNTIME

    def late(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def longest(self) -> float:
        """Seconds that the next run may take.

        Raises:
            OutOfTime: there is no time for it.
        """
        left = self.give_up - time.monotonic()
        if left <= 0:
            raise OutOfTime("the time ran out during the check")
        return min(_LONGEST_RUN, left)


@dataclass(frozen=True)
class Trial:
    """Inputs that the original accepts, and its outputs."""

    feed: Feed
    original: Arrays


class Judge:
    """One check: ``run`` goes straight through."""

    def __init__(self, before: Graph, after: Graph, plan: Plan, bench: Bench) -> None:
        self.before, self.after, self.plan, self.bench = before, after, plan, bench
        self.types = {v.name: v.type.dtype if isinstance(v.type, TensorType) else None for v in before.outputs}
        self.work = float(work(before, infer(before, plan.sizes), plan.sizes).flops)
        self.erratic: set[str] = set()
        self.disturbed: Disturbed | None = None
        self.plain: InferenceSession | None = None
        self.noise: dict[int, tuple[int, tuple[list[Arrays], list[Arrays]]]] = {}  # by trial
        self.notes: list[str] = []
        self.elsewhere = Elsewhere(before, after, bench, plan.runtime)

    def run(self) -> CheckResult:
        fed_types(self.before)
        try:
            self.plain = self.bench.session(self.before, optimise=False)
        except (InvalidModel, Unsupported) as refusal:
            return self._in_float64(refusal.what)
        sessions, refused = self._result()
        if refused is not None:
            return CheckResult("failed", reason=f"ONNX Runtime accepts the original but refuses the result: {refused}")
        total = CheckResult("passed")
        tried: list[Trial] = []
        names: list[str] = []
        for trial in self._trials():
            if not tried:
                self.erratic = self._erratic(trial)
                names = [v.name for v in self.before.outputs if v.name not in self.erratic]
                if not names:
                    return CheckResult("skipped", reason="every output is random: it differs from run to run")
            total = self._judged(trial, len(tried), sessions, names, total)
            tried.append(trial)
            total = replace(total, trials=len(tried))
            if total.verdict == "failed":
                return replace(total, feeds=trial.feed.arrays)
        if self.erratic:
            self.notes.append(f"random outputs not compared: {', '.join(sorted(self.erratic))}")
        return replace(total, reason="; ".join(self.notes), power=self._power(tried, names))

    def _result(self) -> tuple[list[InferenceSession], str | None]:
        """Sessions of the result, or why there are none."""
        sessions: list[InferenceSession] = []
        refused: str | None = None
        try:
            sessions.append(self.bench.session(self.after, optimise=True))
        except (InvalidModel, Unsupported) as error:
            refused = error.what
        if sessions and self.work > _BOTH:
            return sessions, None
        try:
            sessions.append(self.bench.session(self.after, optimise=False))
        except (InvalidModel, Unsupported) as error:
            return [], refused or error.what
        if refused is not None:  # its optimiser stumbles over names that it gave itself, in a model it had optimised
            self.notes.append(f"the result was run with ONNX Runtime's optimisations off, since it refuses: {refused}")
        return sessions, None

    def _trials(self) -> Iterator[Trial]:
        """Unsteered and steered inputs that the original accepts, with what it gives for them."""
        plan = self.plan
        level = 0
        for number in range(plan.trials):
            if number and (plan.late() or number * _RUNS * self.work > _WORK):
                return
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
            yield Trial(Feed(f"{kind} inputs", feeds), original)
        most = min(_STEERED, int(_WORK / (_RUNS * max(self.work, _RUN))) - plan.trials)
        started = time.monotonic()
        for feed in steered(self.before, self.after, plan.seed, plan.sizes, level, most):
            if plan.late() or time.monotonic() - started > _EMERGENCY:
                self.notes.append("time ended the check before all steered inputs were tried")
                return
            made = attempt(self._session(), feed.arrays, time_limit=plan.longest())
            if made is not None:
                yield Trial(feed, made)

    def _session(self) -> InferenceSession:
        assert self.plain is not None
        return self.plain

    def _erratic(self, trial: Trial) -> set[str]:
        """Outputs that differ from run to run."""
        if not _is_random(self.before):
            return set()
        again = run_session(self._session(), trial.feed.arrays, time_limit=self.plan.longest())
        return {n for n, a in trial.original.items() if not equal(a, again[n])}

    def _judged(
        self, trial: Trial, number: int, sessions: Sequence[InferenceSession], names: Sequence[str], total: CheckResult
    ) -> CheckResult:  # fmt: skip
        for session in sessions:
            try:
                made = run_session(session, trial.feed.arrays, time_limit=self.plan.longest())
            except (InvalidModel, UsageError) as error:
                return replace(
                    total, verdict="failed", reason=f"the result fails where the original runs: {error.what}"
                )
            total = self._compared(trial, number, made, names, total)
            if total.verdict == "failed":
                return total
        return total if self.plan.runtime is ONNX_RUNTIME else self._judged_elsewhere(trial, number, names, total)

    def _judged_elsewhere(self, trial: Trial, number: int, names: Sequence[str], total: CheckResult) -> CheckResult:
        """The result in the runtime that it is made for: by ONNX Runtime's truth or, where that runtime does not keep
        to it on the original itself, by how far it is from what that runtime makes of the original."""
        made, longest = self.elsewhere, self.plan.longest
        after, why = made.after(trial.feed.arrays, longest())
        if after is None:
            before, whence = made.before(trial.feed.arrays, longest())
            if before is not None:
                return replace(total, verdict="failed", reason=f"the result fails where the original runs: {why}")
            self._note(f"not run in {made.name} on some inputs or at all, as it refuses the original, too: {whence}")
            return total
        found = self._compared(trial, number, after, names, total)
        if found.verdict != "failed":
            return found
        before, _ = made.before(trial.feed.arrays, longest())
        if before is None or self._compared(trial, number, before, names, total).verdict != "failed":
            return replace(found, reason=f"in {made.name}: {found.reason}")
        moved = {name: displaced(trial.original[name], before[name], after[name]) for name in names}
        again = self._compared(trial, number, moved, names, total)
        if again.verdict == "failed":
            return replace(again, reason=f"in {made.name}, against the original there: {again.reason}")
        self._note(f"{made.name} strays from ONNX Runtime on the original itself, and the result was held to it there")
        return again

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _compared(
        self, trial: Trial, number: int, made: Arrays, names: Sequence[str], total: CheckResult
    ) -> CheckResult:
        found = self.outputs_compared(trial, number, made, names)
        for name, one in found.items():
            total = _worse(total, one, name, trial.feed.name)
            if total.verdict == "failed":
                return total
        differing = [n for n, one in found.items() if one.differs]
        wanted = self.plan.full and number < self.plan.trials
        if wanted or (differing and self.work <= _REFERENCE and number < self.plan.trials):
            total = self._against_reals(trial, number, made, names if wanted else differing, total)
        return total

    def outputs_compared(self, trial: Trial, number: int, made: Arrays, names: Sequence[str]) -> dict[str, Comparison]:
        """Each output by the first criterion, with as many disturbed runs as it takes."""
        old, mixed = trial.original, trial.feed.mixed
        found = {n: compare(old[n], made[n], self.types[n], mixed=mixed) for n in names}
        odd = [n for n, c in found.items() if c.problem is not None and np.isinf(c.absolute)]
        odd = [n for n in odd if made[n].shape == old[n].shape]
        exact = (self._exact(trial, odd)[0] or {}) if odd else {}
        apart = [n for n, c in found.items() if c.problem is not None and made[n].shape == old[n].shape]
        full = {n: near_overflow(self.before, n, self.bench, trial.feed.arrays, old[n].shape) for n in apart}
        for count in _SAMPLES:
            doubtful = [n for n, c in found.items() if c.problem is not None and made[n].shape == old[n].shape]
            if not doubtful:
                break
            runs = self._samples(trial, number, count)
            optimised = self._optimised(trial) if count == _SAMPLES[-1] else None
            for n in doubtful:
                found[n] = compare(
                    old[n], made[n], self.types[n], moves(n, runs, optimised, tiny=trial.feed.tiny), mixed=mixed,
                    exact=exact.get(n), full=full.get(n),
                )  # fmt: skip
        return found

    def _disturbed(self) -> Disturbed:
        if self.disturbed is None:
            self.disturbed = Disturbed(self.before, self.bench, self._session())
        return self.disturbed

    def _samples(self, trial: Trial, number: int, count: int) -> tuple[list[Arrays], list[Arrays]]:
        """So many disturbed runs of each kind at one trial's inputs; those that were made before are kept."""
        have, runs = self.noise.get(number, (0, ([], [])))
        if have < count:
            more = self._disturbed().samples(
                trial.feed.arrays, range(have, count), tiny=trial.feed.tiny, time_limit=self.plan.longest()
            )
            runs = (runs[0] + more[0], runs[1] + more[1])
            kept = sum(a.nbytes for _, both in self.noise.values() for one in both for r in one for a in r.values())
            self.noise = {**(self.noise if kept < _KEPT else {}), number: (count, runs)}
        return runs

    def _optimised(self, trial: Trial) -> Arrays | None:
        return self._disturbed().optimised(trial.feed.arrays, self.plan.longest())

    def _exact(self, trial: Trial, names: Sequence[str]) -> tuple[Arrays | None, str]:
        """The float64 outputs, or why there are none."""
        try:
            give_up = self.plan.give_up
            return reference.run(
                self.before, trial.feed.arrays, outputs=names, sizes=self.plan.sizes, deadline=give_up
            ), ""
        except OutOfTime:
            raise
        except (Unsupported, ResourceLimit) as error:
            return None, f"compared with the original only, since the reference cannot run: {error}"

    def _against_reals(
        self, trial: Trial, number: int, made: Arrays, names: Sequence[str], total: CheckResult
    ) -> CheckResult:
        """The second criterion."""
        exact, why = self._exact(trial, names)
        if exact is None:
            self._note(why)
            return total
        total = replace(total, reference="original and float64")
        for name in names:
            runs = self.noise.get(number)
            optimised = None if runs is None else self._optimised(trial)
            given = None if runs is None else moves(name, runs[1], optimised, tiny=trial.feed.tiny)
            found = agrees_with_reals(trial.original[name], made[name], exact[name], self.types[name], given)
            if found.problem is not None:
                said = f"output {name!r} ({trial.feed.name}) against float64: {found.problem}"
                return replace(total, verdict="failed", culprit_output=name, reason=said)
        return total

    def _power(self, tried: Sequence[Trial], names: Sequence[str]) -> Power | None:
        """What the inputs that were tried can tell apart."""
        if self.plan.power == "none":
            return None

        def fails(number: int, made: Arrays) -> bool | None:
            trial = tried[number]
            if any(made[n].shape != trial.original[n].shape for n in names):
                return None
            found = self.outputs_compared(trial, number, made, names)
            return any(c.problem is not None for c in found.values())

        return measure_power(
            self.before, self.after, [t.feed.arrays for t in tried], fails, bench=self.bench, seed=self.plan.seed,
            effort=self.plan.power, work=self.work,
        )  # fmt: skip

    def _in_float64(self, refusal: str) -> CheckResult:
        """Both models by the reference alone, since ONNX Runtime refuses the original."""
        names = [v.name for v in self.before.outputs]
        note = f"ONNX Runtime refuses the original ({refusal}): compared in float64 only"
        total = CheckResult("passed", reference="float64", reason=note)
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
                raise Unsupported(f"neither ONNX Runtime nor the reference can run the model: {error.what}") from error
            for name in names:
                found = agrees_with_reals(None, new[name], old[name], self.types[name])
                total = _worse(total, found, name, f"{kind} inputs")
                if total.verdict == "failed":
                    return replace(total, trials=number + 1, feeds=feeds)
            total = replace(total, trials=number + 1)
        return total


def _is_random(graph: Graph) -> bool:
    marks = [m.encode() for m in _RANDOM]
    return any(
        n.op.startswith(_RANDOM)
        or any(isinstance(a, OpaqueAttribute) and any(m in a.payload for m in marks) for a in n.attributes.values())
        for n in graph.nodes
    ) or any(m in payload for payload in graph.extras.values() for m in marks)


def _worse(total: CheckResult, found: Comparison, name: str, kind: str) -> CheckResult:
    total = replace(
        total, max_abs_error=max(total.max_abs_error, found.absolute),
        max_rel_error=max(total.max_rel_error, found.relative),
        baseline_error=max(total.baseline_error, found.baseline),
    )  # fmt: skip
    if found.problem is None:
        return total
    return replace(total, verdict="failed", culprit_output=name, reason=f"output {name!r} ({kind}): {found.problem}")
