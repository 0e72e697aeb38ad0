"""Results of regions, kept across runs: a model that was searched before, or shares layers with one, is done at once.

An entry is named by a digest of everything the result depends on: the region's signature (which knows nothing of weight
values), the rules, the costs, the settings, and superopt's own code (:mod:`superopt.ir.disk_cache`). What was read is
held against the region before it is used: every reference, type and constancy of a plan is computed again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from superopt.cost.model import CostModel
from superopt.ir.disk_cache import code_digest, keep, kept
from superopt.ir.poly import Poly, Quotient
from superopt.ir.types import DType, TensorType
from superopt.ops.record import Operator
from superopt.regions.cache_validation import problem_with
from superopt.regions.lowering import Region
from superopt.regions.plan import Piece, Plan
from superopt.regions.region_search import Found
from superopt.regions.result import SearchOptions
from superopt.rules.rule import Rule

__all__ = ["FOLDER", "RegionCache"]

FOLDER = "regions"
_CLASSES: tuple[type, ...] = (DType, Found, Piece, Plan, Poly, Quotient, TensorType)
_MOST = 8192  # entries, of a few kilobytes
_PACKAGES = (  # whose code results depend on
    "egraph", "extraction", "regions", "passes", "program", "cost", "rules", "ops", "ir",
)  # fmt: skip


@lru_cache(maxsize=8)
def _rules_digest(rules: tuple[Rule, ...]) -> str:
    digest = hashlib.sha256()
    for rule in rules:
        digest.update(rule.fingerprint.encode())
    return digest.hexdigest()


@dataclass
class RegionCache:
    """What is kept of regions, as one search sees it.

    Attributes:
        context: everything but the region and the costs that results depend on.
        costs: the cost model.
        operators: records by name, by which what is read is checked.
        hits, misses: how often an entry was there.
    """

    context: str
    costs: CostModel
    operators: Mapping[str, Operator]
    hits: int = 0
    misses: int = 0
    _usable: bool = True

    @staticmethod
    def of(
        rules: Sequence[Rule], costs: CostModel, opset: Mapping[str, int], options: SearchOptions,
        operators: Mapping[str, Operator],
    ) -> RegionCache | None:  # fmt: skip
        """The cache for a search, or ``None`` if the options or the cost model do not want one."""
        if not options.cache or costs.digest is None:
            return None
        settings = (
            code_digest(*_PACKAGES), _rules_digest(tuple(rules)), sorted(opset.items()),
            sorted(options.sizes.items()), options.node_limit, options.seed, options.least_gain,
            "" if options.floats is None else options.floats.digest,
        )  # fmt: skip
        return RegionCache(hashlib.sha256(repr(settings).encode()).hexdigest(), costs, operators)

    def found(self, key: Hashable, region: Region, search: Callable[[], Found], *, whole: Callable[[], bool]) -> Found:
        """The result that is kept for a region, else that of ``search``, which is kept for the next time.

        Args:
            key: the region's signature and what is done with it; its ``repr`` must say it all.
            region: where the result is to be used.
            search: finds the result.
            whole: asked after searching: whether the result is what it always would be, not cut short by the clock.
        """
        known = kept(FOLDER, self._name(key), _CLASSES)
        if isinstance(known, Found) and (known.plan is None or not problem_with(known.plan, region, self.operators)):
            self.hits += 1
            return known
        self.misses += 1
        result = search()
        if result.stopped != "time" and whole() and self._usable:
            self._usable = keep(FOLDER, self._name(key), result, _MOST)
        return result

    def _name(self, key: Hashable) -> str:
        # the costs are asked each time: a profile that was empty before the search has a first record afterwards
        return hashlib.sha256(f"{self.context}\n{self.costs.digest}\n{key!r}".encode()).hexdigest()
