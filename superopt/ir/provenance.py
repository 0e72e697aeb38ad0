"""What superopt writes into the metadata of nodes and weights: which rules made them, and of what."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["OWN", "PRECOMPUTED", "RULES", "VALUE", "rules_of"]

RULES = "superopt.rules"  # ids, separated by commas
VALUE = "superopt.value"  # how a weight is computed from those of the input
PRECOMPUTED = "x-precomputed"  # "true": computed once, not on every run
OWN = frozenset({RULES, VALUE, PRECOMPUTED})


def rules_of(metadata: Mapping[str, str]) -> list[str]:
    """Ids of the rules that made a node or a weight; none where superopt did not make it."""
    return metadata.get(RULES, "").replace(",", " ").split()
