"""Does a rewritten model still compute what it did? What ONNX Runtime gives for the original is the truth.

Both models run on the same inputs: the original with the runtime's optimisations off, the result as a user runs it
(on) and, where that is cheap, with them off. **The bound**, element by element, for every output of reals:

    |result - original| ≤ max(16 ε·s, 4·N)      (float32; 32 ε, 4 ε, 2 ε for float64, float16, bfloat16)

``ε`` is the type's epsilon (2⁻²³), and four times its smallest number is added to the first term. ``s`` is the scale of
the element: its magnitude or, if that is larger, the least root mean square of its row, column or channel (in a vector,
and on inputs of mixed magnitudes, the element alone). ``N`` is how far the *original* moves by its own rounding
(:mod:`superopt.verifier.check.rounding_noise`): the smaller of its largest moves when inputs and small full-precision
weights are moved by up to 4 units in the last place, and when its inputs stay and every rounded intermediate is moved
so (near the smallest numbers, where rounding is absolute, the latter alone). Where an element's neighbours move
further, that counts, up to 16 times its own move. What turning the runtime's optimisations on moves the original by
counts as well where it is within the free distance, as another order of sums is; beyond, only for the result with them
on: they are no meaning of the original, and may break it. So where they move it by 64 free distances or more, the
result must be near the original with them off, too, however much work that is.

Outputs that are not reals must be equal, but for elements that the same disturbances flip, and within 4 times as far.
Where the original is finite the result must be, unless a value inside the original is within a factor of 4 of overflow:
a result of one of its operators at that element (anywhere, if no tensor inside has the output's shape), or anything
that an operator with sums inside reads. Where the original is NaN or infinite, the result must
be the same, or agree with a finite float64 reference.

Where an element is further than 16 ε·s, a second criterion must hold as well, if its work is within bounds (always with
``full``): the result's error against the float64 reference is at most 4 times the original's, largest and root mean
square, or 64 ε of the largest magnitude. So being nearer to the reals is no excuse by itself, nor is being further
away.

Moved inputs do not show all rounding: ``(a + b) + (a - b)`` rounds ``a`` alike wherever in its binade ``b`` is. So an
element that is no further from the float64 reference than the original's passes where the rounded intermediates' moves
explain the distance, unless the original may round on purpose there
(:mod:`superopt.verifier.check.deliberate_rounding`). And where neither model rounds anything
(:mod:`superopt.verifier.check.independent_references`), nothing explains that an element jumps: at a tie, say.

Where a budget of errors is given (``slack``: algorithms with fewer multiplications), a share of an output's largest
magnitude is a free distance as well, by both criteria, at the places that use it and in the whole model.

A result that will run in another runtime is run there as well and held to the same bound. Where that runtime strays
from it on the *original* (it rounds otherwise, or reads an edge of a definition otherwise), the result may be as far
from what that runtime makes of the original as the bound says, and the check says so.

The changed regions at which two graphs begin to differ, each run alone on the original's values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace

import numpy as np

from superopt.ir.diff import changed_regions
from superopt.ir.errors import ResourceLimit, Unsupported
from superopt.ir.graph import Graph, Value
from superopt.ir.types import TensorType
from superopt.ops.shape_inference import InferredTypes, infer
from superopt.runtime.blas_threads import one_blas_thread
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.protocol import Runtime
from superopt.runtime.resource_limits import bounded_memory, refuse_unbounded
from superopt.verifier.check.check_settings import (
    BRIEF,
    EXACT,
    QUICK,
    WHOLE,
    CheckResult,
    CheckSettings,
    CheckWorkBudget,
    ErrorAllowance,
)
from superopt.verifier.check.differential_check import DifferentialCheck
from superopt.verifier.check.input_generation import make_inputs
from superopt.verifier.check.mutation_testing import EFFORTS, NONE, MutationBudget, MutationScore
from superopt.verifier.check.region_checks import check_sites
from superopt.verifier.check.shared_weight_sessions import REFUSALS, Arrays, SharedWeightSessions, attempt
from superopt.verifier.check.tolerance import FACTOR, MARGIN, excess
from superopt.verifier.equivalence.inlining import inlined
from superopt.verifier.equivalence.signatures import interface_difference, signature_difference, unified

__all__ = [
    "EXACT",
    "FACTOR",
    "MARGIN",
    "CheckResult",
    "MutationScore",
    "ErrorAllowance",
    "check",
    "check_regions",
    "check_rewrite",
    "make_inputs",
    "suspects",
]

Pair = tuple[Graph, Graph]
_GROWN = 2  # times that a place which fails is grown
_TRIALS = 3  # unsteered inputs
_COPIES = 3.0  # memory of a check: the original's values, and the reference's, twice as wide


@one_blas_thread()
def check(
    before: Graph,
    after: Graph,
    *,
    seed: int = 0,
    trials: int = _TRIALS,
    time_limit: float | None = None,
    patience: float | None = None,
    sizes: Mapping[str, int] | None = None,
    full: bool = False,
    power: str = "none",
    runtime: Runtime = ONNX_RUNTIME,
    slack: ErrorAllowance = EXACT,
    unify: bool = False,
    inside: bool = False,
) -> CheckResult:
    """Compare a model with its rewritten form.

    Args:
        before: the original.
        after: the result; inputs and outputs must be the same in name, order and type.
        seed: of all random choices.
        trials: unsteered inputs to try: standard normal, edge values, uniform, and again with other seeds. Steered
            ones are tried besides, as many as a bound on work allows.
        time_limit: seconds after which no further trial is begun (one is always made, if ``patience`` lets it).
        patience: seconds after which the check is given up, with the verdict "skipped".
        sizes: symbolic dimensions that are fixed; the others get small sizes, different in each trial.
        full: run the float64 reference on every unsteered input, however much work that is.
        power: "none", or "quick" or "thorough": try that many mutations of the result on the same inputs.
        runtime: what the result will run in; if not ONNX Runtime, the result is run there, too.
        slack: what a budget of errors allows besides, and for which nodes of the result.
        unify: the result may declare other names of sizes, or none: what runs decides.
        inside: what the original's intermediates round by is allowed whether or not moved inputs show it, and whether
            or not the result is nearer to the reals, where no rounding of the original is meant.
    """

    def run_check(read: Pair, plan: CheckSettings, bench: SharedWeightSessions, typing: InferredTypes) -> CheckResult:
        return DifferentialCheck(*read, plan, bench, typing, ran=(before, after)).run()

    plan = _plan(seed, max(trials, 1), time_limit, patience, sizes, EFFORTS[power])
    plan = replace(plan, full=full, runtime=runtime, slack=slack, beyond=unify, inside=inside)
    return _bounded(before, after, plan, run_check, unify=unify)


@one_blas_thread()
def check_rewrite(
    before: Graph,
    after: Graph,
    *,
    seed: int = 0,
    time_limit: float | None = None,
    patience: float | None = None,
    sizes: Mapping[str, int] | None = None,
    runtime: Runtime = ONNX_RUNTIME,
    slack: ErrorAllowance = EXACT,
    bench: SharedWeightSessions | None = None,
    brief: bool = False,
) -> CheckResult:
    """Compare a model with its rewritten form in proportionate time: changed regions first, then the whole.

    A small model gets what :func:`check` does. In a larger one every rewritten place is checked by itself
    (:mod:`superopt.verifier.check.region_checks`), with steered inputs and mutants, and the whole model by a random
    input, and by more as far as a second's work goes; where there is no time for that, the model is not checked. Where
    a place differs by itself, :func:`check` decides, since its inputs may be out of reach; but where it differs because
    they are alike, the check has failed: the whole is not steered to make them so.

    Args:
        before: the original.
        after: the result.
        seed: of all random choices.
        time_limit: seconds after which no further trial is begun, with the verdict "skipped" where a kind of rewritten
            place was not looked at then.
        patience: seconds after which the check is given up, with the verdict "skipped".
        sizes: symbolic dimensions that are fixed.
        runtime: as in :func:`check`; places run in ONNX Runtime alone.
        slack: as in :func:`check`; it holds for the whole, and for the places that have such nodes.
        bench: where the models' weights have been written already.
        brief: no place is run by itself, and no mutant is tried: for what rests on proved rules alone.

    Returns:
        ``trials`` counts the inputs of the places and of the whole; ``power`` is that of the places' inputs where
        the whole got less than all steered ones.
    """

    def run_check(read: Pair, plan: CheckSettings, bench: SharedWeightSessions, typing: InferredTypes) -> CheckResult:
        judge = DifferentialCheck(*read, plan, bench, typing, ran=(before, after))
        if judge.exhaustive or not plan.effort.sites:
            return judge.run()
        local_checks = check_sites(*read, typing, plan, bench)
        bench.release_memory()
        if local_checks.disagreement:
            found_check = DifferentialCheck(
                *read, replace(plan, effort=WHOLE), bench, typing, ran=(before, after)
            ).run()
            if local_checks.hidden and found_check.verdict == "passed":
                why = f"{local_checks.disagreement}, on inputs that are alike as none of the whole makes them"
                return replace(found_check, verdict="failed", reason=why, where=local_checks.hidden)
            said = f"checked as a whole: {local_checks.disagreement}"
            return replace(found_check, reason="; ".join(r for r in (found_check.reason, said) if r))
        if local_checks.late:
            why = f"time ended the check before {local_checks.late} kinds of rewritten places were run by themselves"
            return CheckResult("skipped", local_checks.trials, reason=why)
        if local_checks.power is not None:
            judge.plan = replace(plan, power=NONE)
        found_check = judge.run()
        if found_check.verdict != "passed":
            return found_check
        said = "; ".join(r for r in (found_check.reason, local_checks.note) if r)
        return replace(
            found_check,
            trials=found_check.trials + local_checks.trials,
            power=local_checks.power or found_check.power,
            reason=said,
        )

    power, effort = (NONE, BRIEF) if brief else (EFFORTS["quick"], QUICK)
    plan = _plan(seed, _TRIALS, time_limit, patience, sizes, power, effort)
    return _bounded(before, after, replace(plan, runtime=runtime, slack=slack), run_check, bench)


def _plan(
    seed: int, trials: int, time_limit: float | None, patience: float | None, sizes: Mapping[str, int] | None,
    power: MutationBudget, effort: CheckWorkBudget = WHOLE,
) -> CheckSettings:  # fmt: skip
    now = time.monotonic()
    deadline = None if time_limit is None else now + time_limit
    give_up = float("inf") if patience is None else now + patience
    return CheckSettings(seed, trials, deadline, give_up, dict(sizes or {}), power=power, effort=effort)


def _bounded(
    before: Graph,
    after: Graph,
    plan: CheckSettings,
    run_check: Callable[[Pair, CheckSettings, SharedWeightSessions, InferredTypes], CheckResult],
    bench: SharedWeightSessions | None = None,
    *,
    unify: bool = False,
) -> CheckResult:
    """A check within bounds of time and memory: of the models as they run, and with their functions inlined."""
    difference = (interface_difference if unify else signature_difference)(before, after)
    if difference is not None:
        return CheckResult("failed", culprit_output=difference[0], reason=difference[1])
    try:
        read = inlined(before), inlined(after)
        if unify:
            read = read[0], unified(*read)
        typing = infer(read[0], plan.sizes)
        refuse_unbounded(read[0], plan.sizes, typing=typing, copies=_COPIES)
        refuse_unbounded(after, plan.sizes, copies=_COPIES)
        with bounded_memory(), SharedWeightSessions() if bench is None else nullcontext(bench) as given_bench:
            return run_check(read, plan, given_bench, typing)
    except MemoryError:
        return CheckResult("skipped", reason="not enough memory to run the model")
    except (ResourceLimit, Unsupported) as error:
        return CheckResult("skipped", reason=str(error))


def check_regions(
    pairs: Iterable[tuple[Graph, Graph]], *, seed: int = 0, trials: int = 1, time_limit: float | None = None,
    runtime: Runtime = ONNX_RUNTIME, slack: ErrorAllowance = EXACT, grow: Callable[[Pair], Pair] | None = None,
) -> CheckResult:  # fmt: skip
    """Check a model too large to run whole, region by region: the same check on pairs of subgraphs.

    Stops at the first that fails or cannot be checked: then the whole is not checked either. Errors are the largest of
    any region. What a region reads is free here, and in the model it may not be: one that fails is looked at again, a
    few times, as ``grow`` makes it (:func:`superopt.ir.diff.grown`: with what makes its inputs).
    """
    deadline = None if time_limit is None else time.monotonic() + time_limit
    total = CheckResult("skipped", reason="no region was checked")
    grown = 0
    for position, (before, after) in enumerate(pairs):
        if grow is not None:
            for _ in range(grown):
                before, after = grow((before, after))
        for turn in range(grown, 1 + (_GROWN if grow is not None else 0)):
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            if left == 0.0:
                return replace(total, verdict="skipped", reason=f"the time ran out after {position} regions")
            found_check = check(
                before, after, seed=seed + position, trials=trials, time_limit=left, patience=left, runtime=runtime,
                slack=slack,
            )  # fmt: skip
            if found_check.verdict != "failed" or grow is None or turn == _GROWN:
                grown = turn  # what it took here it will take at the next, which is often alike
                break
            size = len(before.nodes)
            before, after = grow((before, after))
            if len(before.nodes) == size:
                break
        if found_check.verdict == "failed":
            return replace(found_check, reason=f"region {position}: {found_check.reason}")
        if found_check.verdict == "skipped" and deadline is not None and time.monotonic() > deadline:
            return replace(found_check, reason=f"the time ran out in region {position}")
        if found_check.verdict == "skipped":
            return replace(found_check, reason=f"region {position} was skipped: {found_check.reason}")
        total = CheckResult(
            "passed", total.trials + found_check.trials, max(total.max_abs_error, found_check.max_abs_error),
            max(total.max_rel_error, found_check.max_rel_error),
            "original and float64" if "float64" in found_check.reference + total.reference else "original",
            max(total.baseline_error, found_check.baseline_error),
        )  # fmt: skip
    return total


def suspects(before: Graph, after: Graph, feeds: Mapping[str, np.ndarray]) -> list[tuple[str, ...]]:
    """The outputs of each changed region, ordered by how far the region strays on these inputs, the farthest first.

    A place strays by the largest distance of its outputs from the original's over the distance that needs no
    explanation, both sides being fed the original's values. Places that cannot be run come last.
    """
    types = infer(before).types
    pairs = changed_regions(before, after, types)
    with SharedWeightSessions() as bench:
        given_arrays = _values(before, {v.name for a, _ in pairs for v in a.inputs} - feeds.keys(), types, feeds, bench)
        found = [(_strays(a, b, given_arrays, bench), tuple(v.name for v in a.outputs)) for a, b in pairs]
    return [outputs for _, outputs in sorted(found, key=lambda f: -f[0])]


def _values(
    graph: Graph,
    names: set[str],
    types: Mapping[str, TensorType | None],
    feeds: Mapping[str, np.ndarray],
    bench: SharedWeightSessions,
) -> Arrays:
    """The original's values on the inputs."""
    wanted = tuple(Value(n, types.get(n)) for n in sorted(names) if n in graph.producer)
    declared = {v.name for v in graph.outputs}
    outputs = (*graph.outputs, *(v for v in wanted if v.name not in declared))
    try:
        arrays = attempt(bench.session(replace(graph, outputs=outputs, values=()), optimise=False), feeds)
    except REFUSALS:
        arrays = None
    return {**feeds, **(arrays or {})}


def _strays(a: Graph, b: Graph, given_arrays: Mapping[str, np.ndarray], bench: SharedWeightSessions) -> float:
    """How far one region strays; negative if it cannot be run."""
    runs: list[Arrays] = []
    for graph in (a, b):
        try:
            arrays = attempt(bench.session(replace(graph, values=()), optimise=False), given_arrays)
        except REFUSALS:
            return -1.0
        if arrays is None:
            return -1.0
        runs.append(arrays)
    kinds = {v.name: v.type.dtype if isinstance(v.type, TensorType) else None for v in a.outputs}
    return max((excess(runs[0][n], runs[1][n], kind) for n, kind in kinds.items()), default=-1.0)
