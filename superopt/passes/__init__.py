"""Choosing: regions, e-graph, matching, saturation, extraction. Knows rules and costs, and nothing of proofs."""

from __future__ import annotations

from superopt.passes.control_flow import search
from superopt.passes.saturation_search import SearchCache
from superopt.regions.search_result import AppliedRule, SearchOptions, SearchResult

__all__ = ["AppliedRule", "SearchCache", "SearchOptions", "SearchResult", "search"]
