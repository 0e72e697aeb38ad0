"""Choosing: regions, e-graph, matching, saturation, extraction. Knows rules and costs, and nothing of proofs."""

from __future__ import annotations

from superopt.passes.control_flow import search
from superopt.passes.saturation_search import SearchMemory
from superopt.regions.result import AppliedRule, SearchOptions, SearchResult

__all__ = ["AppliedRule", "SearchMemory", "SearchOptions", "SearchResult", "search"]
