"""What superopt writes into the metadata of nodes and weights: which rules made them, and of what."""

from __future__ import annotations

__all__ = ["OWN", "PRECOMPUTED", "RULES", "VALUE"]

RULES = "superopt.rules"  # ids, separated by commas
VALUE = "superopt.value"  # how a weight is computed from those of the input
PRECOMPUTED = "x-precomputed"  # "true": computed once, not on every run
OWN = frozenset({RULES, VALUE, PRECOMPUTED})
