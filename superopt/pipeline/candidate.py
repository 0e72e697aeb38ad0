"""A candidate: a graph that may replace the input, and the evidence for it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from superopt.cost import GraphCost
from superopt.ir.graph import Graph
from superopt.passes import SearchResult
from superopt.pipeline.acceptance_policy import AcceptanceDecision
from superopt.pipeline.result_check import UNCHANGED
from superopt.runtime.paired_measurement import PairedMeasurement
from superopt.verifier.check.differential import CheckResult

if TYPE_CHECKING:
    from superopt.pipeline.fast_algorithm_proposals import FastAlgorithmSubstitution
    from superopt.pipeline.weight_rewrites import WeightRewrites

__all__ = ["Candidate", "Proposals", "CandidateRefusal", "Stage", "first_accepted"]

UNDECIDED = AcceptanceDecision(None)
Stage = Literal["run", "timing", "errors", "check", "interrupted"]


@dataclass(frozen=True)
class Candidate:
    """A graph in the place of the input.

    Attributes:
        search: the search's result; its graph is the candidate's.
        cost: of the graph, by the target's prices.
        weights: the rewrites by the weights' elements that the search started from.
        algorithms: the fast algorithms in the graph, and the graph without them.
        decision: how it improves on the input, once timing has accepted it.
        measurement: the paired benchmark beside the input.
        check: of the graph against the input.
    """

    search: SearchResult
    cost: GraphCost
    weights: WeightRewrites | None = None
    algorithms: FastAlgorithmSubstitution | None = None
    decision: AcceptanceDecision = UNDECIDED
    measurement: PairedMeasurement | None = None
    check: CheckResult = UNCHANGED

    @property
    def graph(self) -> Graph:
        return self.search.graph


@dataclass(frozen=True)
class CandidateRefusal:
    """A candidate that is not returned.

    Attributes:
        candidate: with the evidence so far.
        stage: which stage refused it.
        reason: why.
    """

    candidate: Candidate
    stage: Stage
    reason: str


Proposals = Generator[Candidate, CandidateRefusal, Candidate]
"""Yields candidates, is sent the refusal of each, and returns the input where it proposes no more."""


def first_accepted(proposals: Proposals, evaluate: Callable[[Candidate], Candidate | CandidateRefusal]) -> Candidate:
    """The candidate loop: propose, evaluate; on a refusal propose again, with the refusal's cause excluded.

    Args:
        proposals: candidates, in the order in which they are tried.
        evaluate: returns the candidate with its evidence, or its refusal.
    """
    try:
        candidate = next(proposals)
        while True:
            outcome = evaluate(candidate)
            if isinstance(outcome, Candidate):
                return outcome
            candidate = proposals.send(outcome)
    except StopIteration as end:
        unchanged: Candidate = end.value
        return unchanged
    finally:
        proposals.close()
