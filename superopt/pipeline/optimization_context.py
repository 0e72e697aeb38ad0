"""The state of one optimisation, which its passes share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from superopt import cost as costs
from superopt import report
from superopt.cost import GraphCost
from superopt.ir.graph import Graph
from superopt.passes import SearchResult
from superopt.pipeline.acceptance_policy import POLICY, AcceptanceDecision
from superopt.pipeline.candidate import Candidate
from superopt.pipeline.candidate_acceptance import CandidateAcceptance
from superopt.pipeline.optimization_task import OptimizationTask
from superopt.pipeline.report_notes import ReportNotes
from superopt.pipeline.result_check import check_bodies, check_result
from superopt.pipeline.search_runner import SearchRunner
from superopt.runtime.protocol import runtime_named
from superopt.verifier.check.differential import EXACT, CheckResult, ErrorAllowance
from superopt.verifier.check.shared_weight_sessions import SharedWeightSessions

if TYPE_CHECKING:
    from superopt.pipeline.fast_algorithm_proposals import FastAlgorithmSettings, NumericalErrorBudget
    from superopt.pipeline.rematerialization import MemoryTradeoffPoint
    from superopt.pipeline.runtime_fault_avoidance import RuntimeFaultAvoidance

__all__ = ["OptimizationContext"]

_REQUESTS = 24  # prices that may be off, where they are measured, and together lose no more than is negligible


@dataclass
class OptimizationContext:
    """What the passes of one optimisation read, and what they leave for the report.

    Attributes:
        task: what is optimised, and how.
        bench: where graphs are run.
        log: what the report says in words.
        inputs: on which errors of fast algorithms are measured; ``None``: as many as that is worth.
        failures: checks that failed on the way.
        fault: what the runtime's optimiser breaks in the model.
        pareto: graphs that trade time for memory.
        verification: what is proved of the result.
        precision: what of the result is in half precision.
    """

    task: OptimizationTask
    bench: SharedWeightSessions
    log: ReportNotes = field(default_factory=ReportNotes)
    inputs: int | None = None
    failures: list[report.CheckFailure] = field(default_factory=list)
    fault: RuntimeFaultAvoidance | None = None
    pareto: tuple[MemoryTradeoffPoint, ...] = ()
    verification: report.VerificationReport | None = None
    precision: report.MixedPrecisionReport | None = None

    @cached_property
    def input_cost(self) -> GraphCost:
        task = self.task
        return costs.graph_cost(task.graph, task.costs, task.typing, sizes=task.sizes)

    @cached_property
    def input(self) -> Candidate:
        """The input as a candidate: what is returned where nothing is better."""
        return Candidate(SearchResult(self.task.graph), self.input_cost)

    @cached_property
    def searches(self) -> SearchRunner:
        return SearchRunner(self.task, self.log, POLICY.negligible_loss * self.input_cost.us / _REQUESTS)

    @cached_property
    def acceptance(self) -> CandidateAcceptance:
        return CandidateAcceptance(self.task, self.bench, self.log)

    @cached_property
    def algorithm_setting(self) -> FastAlgorithmSettings:
        """What fast algorithms may cost."""
        from superopt.pipeline.fast_algorithm_proposals import (
            FastAlgorithmSettings,  # here, because most models have no operator for one
        )

        options, bound = self.task.options, self.searches.bound
        return FastAlgorithmSettings(
            options.floats, self.task.sizes, options.seed, options.threads, runtime_named(options.runtime),
            memory=None if bound is None else bound.most, inputs=self.inputs,
        )  # fmt: skip

    @cached_property
    def error_budget(self) -> NumericalErrorBudget:
        """The errors that fast algorithms may add: the reference runs once for all candidates."""
        from superopt.pipeline.fast_algorithm_proposals import NumericalErrorBudget  # as above

        return NumericalErrorBudget(self.task.graph, self.algorithm_setting, self.bench)

    def cost_of(self, graph: Graph) -> GraphCost:
        return costs.graph_cost(graph, self.task.costs, sizes=self.task.sizes)

    def check(
        self, after: Graph, slack: ErrorAllowance = EXACT, bodies: Sequence[tuple[Graph, Graph]] = ()
    ) -> CheckResult:  # fmt: skip
        """Compare a graph with the input in what runs it.

        Args:
            after: the graph.
            slack: what its outputs may be off by besides what the input's own rounding explains.
            bodies: of control flow, that were rewritten: each before and after.
        """
        task, weights = self.task, self.searches.weights
        if slack is EXACT and weights is not None:
            slack = weights.slack(after, task.options.floats)
        self.bench.drop(task.graph)  # timing is over: its session would be as large as the model
        whole = check_result(task.graph, after, task.typing, task.options, task.budget, self.bench, slack)
        return check_bodies(whole, bodies, task.options, task.budget, self.bench)

    def unchanged(
        self, candidate: Candidate, decision: AcceptanceDecision, check: CheckResult | None = None
    ) -> Candidate:
        """The input in a candidate's place, with what was measured on the way.

        Args:
            candidate: the last that was refused.
            decision: why.
            check: of the candidate, where that refused it.
        """
        found = candidate.measurement
        unchanged = replace(
            self.input, search=replace(candidate.search, graph=self.task.graph, applied=()), decision=decision,
            measurement=None if found is None else replace(found, after_ms=found.before_ms, ratio=1.0),
        )  # fmt: skip
        return unchanged if check is None else replace(unchanged, check=check)
