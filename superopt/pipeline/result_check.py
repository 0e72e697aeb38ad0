"""The check of a result: its rewritten places and the whole, or the places alone where the whole cannot run here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from superopt.ir.diff import changed_regions, grown
from superopt.ir.errors import InvalidModel, Unsupported, UsageError
from superopt.ir.graph import Graph
from superopt.ops.shape_inference import InferredTypes, computed_from_weights, infer
from superopt.pipeline.check_policy import CHECKS
from superopt.pipeline.options import EFFORTS, Options
from superopt.pipeline.time_budget import TimeBudget
from superopt.report.quantities import bytes_text
from superopt.runtime.protocol import runtime_named
from superopt.runtime.resource_limits import LARGE, available
from superopt.verifier.check.differential import EXACT, CheckResult, ErrorAllowance, check, check_regions, check_rewrite
from superopt.verifier.check.shared_weight_sessions import SharedWeightSessions

__all__ = ["UNCHANGED", "check_bodies", "check_result", "skipped"]


def skipped(reason: str) -> CheckResult:
    """The result of a check that was not made."""
    return CheckResult(
        verdict="skipped", trials=0, max_abs_error=0.0, max_rel_error=0.0, reference="float64", reason=reason
    )


UNCHANGED = skipped("nothing was changed")


def check_result(
    before: Graph,
    after: Graph,
    typing: InferredTypes,
    options: Options,
    budget: TimeBudget,
    bench: SharedWeightSessions,
    slack: ErrorAllowance,
) -> CheckResult:
    """Hold a result against the input.

    Args:
        before: the input.
        after: the result.
        typing: the input's types.
        options: settings.
        budget: of time.
        bench: where models are run, and have run already.
        slack: what outputs may be off by besides what the model's own rounding explains.
    """
    most = min(LARGE, options.memory_limit or LARGE)
    runtime = runtime_named(options.runtime)
    brief = EFFORTS[options.effort].brief_check and options.floats != "fast"
    rewritten = partial(check_rewrite, bench=bench, brief=brief)

    def checked(how: Callable[..., CheckResult]) -> CheckResult:
        return how(
            before, after, seed=options.seed, sizes=options.sizes, time_limit=budget.left_or_none,
            patience=budget.check_timeout, runtime=runtime, slack=slack,
        )  # fmt: skip

    whole = skipped(f"the model's weights are more than {bytes_text(most)}")
    if before.weight_bytes <= most:
        whole = checked(partial(check, full=True, power="quick") if options.full_check else rewritten)
        if whole.verdict != "skipped" or budget.left <= 0.0:
            return whole
    types = infer(before).types if options.sizes else typing.types  # what sizes are costed at need not be run at
    fixed = computed_from_weights(before, typing)
    pieces = check_regions(
        changed_regions(before, after, types, fixed), seed=options.seed, time_limit=budget.check_timeout,
        runtime=runtime, slack=slack, grow=lambda pair: grown(before, after, pair, types, fixed),
    )  # fmt: skip
    why = f"checked place by place, because {whole.reason}"
    pieces = replace(pieces, reason=f"{why}; {pieces.reason}" if pieces.reason else why)
    beyond = before.weight_bytes > most and options.memory_limit is None
    fits = CHECKS.memory_factor * before.weight_bytes <= available()
    if pieces.verdict != "failed" or pieces.cancelling or not beyond or not fits:
        return pieces
    found = checked(check)  # what a region reads may be out of reach: the whole decides, as where a place differs
    if found.verdict == "skipped":
        return pieces
    return replace(found, reason="; ".join(r for r in (found.reason, f"checked as a whole: {pieces.reason}") if r))


def check_bodies(
    whole: CheckResult,
    bodies: Sequence[tuple[Graph, Graph]],
    options: Options,
    budget: TimeBudget,
    bench: SharedWeightSessions,
) -> CheckResult:
    """The check of a whole result and of each rewritten body of control flow by itself.

    A whole run takes one branch of an If, and may make no turn of a loop.

    Args:
        whole: the check of the result.
        bodies: those that were rewritten, each before and after.
        options: settings.
        budget: of time.
        bench: where graphs are run.
    """
    results = [whole]
    for before, after in bodies:
        if results[-1].verdict != "passed":
            break
        try:
            found = check_result(before, after, infer(before), options, budget, bench, EXACT)
        except (InvalidModel, Unsupported, UsageError) as error:  # a body that does not run by itself
            found = skipped(str(error))
        results.append(replace(found, reason=f"in a body of control flow: {found.reason}" if found.reason else ""))
    return replace(
        results[-1], trials=sum(r.trials for r in results), power=whole.power,
        max_abs_error=max(r.max_abs_error for r in results), max_rel_error=max(r.max_rel_error for r in results),
        reason=next((r.reason for r in reversed(results) if r.reason), ""),
    )  # fmt: skip
