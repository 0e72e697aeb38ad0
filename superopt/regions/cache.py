"""The cache of region results across runs.

The name of an entry is a digest of all that the result depends on: the region's signature, the rules, the costs, the
settings, and the code of superopt's search. The signature does not contain the elements of weights. A result that was
read is validated against the region before it is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from superopt.cost.cost_model import CostModel
from superopt.ir.disk_cache import SEARCH_PACKAGES, code_digest, load_object, store_object
from superopt.ir.size_polynomial import FloorQuotient, SizePolynomial
from superopt.ir.types import DType, TensorType
from superopt.ops.operator_definition import Operator
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.regions.region_egraph import ProgramRegion
from superopt.regions.region_plan import OUTSIDE, Ref, RegionPlan, RegionPlanNode
from superopt.regions.region_search import RegionResult
from superopt.regions.search_result import SearchOptions
from superopt.rules.rule import Rule

__all__ = ["FOLDER", "RegionCache", "problem_with"]


# -- Validation of what was read -----------------------------------------------------------------------------------
#
# Every reference, type and constancy of a plan that was read is computed again from the operators' records. A plan that
# does not fit the region exactly is refused.


class _Misfit(ValueError):
    """A reference leads nowhere."""


def problem_with(plan: RegionPlan, region: ProgramRegion, operators: Mapping[str, Operator]) -> str:
    """Why a plan cannot be one of a region; empty if it can."""
    if not plan.after <= plan.before or len(plan.results) != len(region.outputs):
        return "the plan saves nothing or has other outputs"
    try:
        for number, piece in enumerate(plan.nodes):
            why = _problem_with_piece(region, plan, number, piece, operators)
            if why:
                return f"piece {number}: {why}"
        for output, ref in zip(region.outputs, plan.results, strict=True):
            if _looked_up(region, plan, len(plan.nodes), ref)[0] != region.types[output]:
                return f"the output {output} has another type"
    except (_Misfit, IllTypedOperator, KeyError, IndexError, TypeError, AttributeError) as error:
        return str(error) or type(error).__name__
    return ""


def _problem_with_piece(
    region: ProgramRegion, plan: RegionPlan, number: int, piece: RegionPlanNode, operators: Mapping[str, Operator]
) -> str:
    known = [None if a is None else _looked_up(region, plan, number, a) for a in piece.args]
    kinds = [None if k is None else k[0] for k in known]
    _, types = operators[piece.op].apply(kinds, dict(piece.attributes))
    if types != piece.types or len(piece.outputs) != len(types):
        return "its types are not those of its operator"
    static = all(t.is_static for t in types)
    if piece.constant and not (static and all(k is None or k[1] for k in known)):
        return "it is not constant"
    for named, kind in zip(piece.outputs, types, strict=True):
        if named != -1 and not (0 <= named < len(region.values) and region.types[region.values[named]] == kind):
            return "it takes the name of another value"
    if piece.source != -1:
        if not 0 <= piece.source < len(region.steps):
            return "it is no step of the region"
        step = region.steps[piece.source]
        if (step.op, step.attributes, len(step.args)) != (piece.op, piece.attributes, len(piece.args)):
            return "it is another step of the region"
    return ""


def _looked_up(region: ProgramRegion, plan: RegionPlan, number: int, ref: Ref) -> tuple[TensorType, bool]:
    """The type of what a piece reads, and whether it is constant."""
    place, index = ref
    if place == OUTSIDE:
        if not 0 <= index < len(region.values):
            raise _Misfit("there is no such value")
        name = region.values[index]
        if index >= len(region.leaves) and name not in region.constant:
            raise _Misfit("a value of the region is read from outside")
        return region.types[name], name in region.constant
    if not (0 <= place < number and 0 <= index < len(plan.nodes[place].types)):
        raise _Misfit("it reads what does not come before")
    return plan.nodes[place].types[index], plan.nodes[place].constant


# -- The cache -----------------------------------------------------------------------------------------------------


FOLDER = "regions"
_CLASSES: tuple[type, ...] = (
    DType,
    RegionResult,
    RegionPlanNode,
    RegionPlan,
    SizePolynomial,
    FloorQuotient,
    TensorType,
)
_MOST = 8192  # entries, of a few kilobytes
_PACKAGES = (*SEARCH_PACKAGES, "cost", "rules", "ops", "ir")  # whose code results depend on


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
            sorted(options.sizes.items()), options.node_limit, options.seed, options.least_gain, options.greedy,
            "" if options.floats is None else options.floats.digest,
        )  # fmt: skip
        return RegionCache(hashlib.sha256(repr(settings).encode()).hexdigest(), costs, operators)

    def cached(
        self, key: Hashable, region: ProgramRegion, search: Callable[[], RegionResult], *, whole: Callable[[], bool]
    ) -> RegionResult:
        """The result that is kept for a region, else that of ``search``, which is kept for the next time.

        Args:
            key: the region's signature and what is done with it; its ``repr`` must say it all.
            region: where the result is to be used.
            search: finds the result.
            whole: asked after searching: whether the result is what it always would be, not cut short by the clock.
        """
        known = load_object(FOLDER, self._name(key), _CLASSES)
        if isinstance(known, RegionResult) and (
            known.plan is None or not problem_with(known.plan, region, self.operators)
        ):
            self.hits += 1
            return known
        self.misses += 1
        result = search()
        if result.stopped != "time" and whole() and self._usable:
            self._usable = store_object(FOLDER, self._name(key), result, _MOST)
        return result

    def _name(self, key: Hashable) -> str:
        # the costs are asked each time: a profile that was empty before the search has a first record afterwards
        return hashlib.sha256(f"{self.context}\n{self.costs.digest}\n{key!r}".encode()).hexdigest()
