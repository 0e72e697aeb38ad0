"""Checks each changed region of a model by itself, where every kind of input is cheap.

Of regions that are equal up to sizes and the elements of their weights, the cheapest gets steered inputs and mutants;
every other one gets a random input, as far as the work allows. A region's inputs are free here, but may not be free in
the model: a variance is never negative, and two inputs may be parts of one value. So a region that differs is checked
again together with the producers of its inputs. Only if it still differs does it count as a disagreement, and the whole
model is checked. If it differs only on nearly cancelling inputs, neither its producers nor the whole can be steered to
such inputs, so neither is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from superopt.ir.diff import changed_regions, grown
from superopt.ir.errors import OutOfTime, ResourceLimit, Unsupported, printable
from superopt.ir.graph import Graph, attribute_key
from superopt.ir.types import TensorType, ValueType
from superopt.ops.flops_and_bytes import GraphWorkAnalysis
from superopt.ops.shape_inference import InferredTypes, computed_from_weights, infer
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.verifier.check.check_settings import CheckSettings, CheckWorkBudget
from superopt.verifier.check.differential_check import DifferentialCheck
from superopt.verifier.check.mutation_testing import NONE, MutationBudget, MutationScore, combined
from superopt.verifier.check.shared_weight_sessions import SharedWeightSessions

__all__ = ["RegionCheckResults", "check_sites"]

_ALONE = 2.0  # runs that an input takes, most often: of both graphs
_WHOLE = 4  # runs of the whole model that places may take besides, whose kind is not looked at elsewhere
_SESSIONS = 5e7  # operations that making the sessions counts as, and per byte of weights:
_WEIGHT = 4.0
_BYTE = 2.0  # operations that a byte read or written counts as
_MUTANTS = 8  # of all places together
_FEW = 4  # elements of a weight that is what it is: a bound, an exponent, a factor
_GROWN = 2  # times that a place is grown
_NAMED = 2  # places that a note names
_REFERENCE = 1e8  # operations of a place up to which float64 judges it too where it differs


@dataclass(frozen=True)
class RegionCheckResults:
    """The results of all local checks.

    Attributes:
        trials: inputs that were tried, at all places.
        checked, places: how many were run by themselves, of how many.
        power: what those inputs can tell apart; ``None`` where none was steered.
        disagreement: the first place that differs or cannot be run, in words; "" where there is none.
        hidden: values that this place makes, if it differs where its inputs are alike: the whole says nothing then.
        note: names places that differ by themselves, but not together with what makes their inputs.
        late: places, each the first of its kind, for which there was no time.
    """

    trials: int = 0
    checked: int = 0
    sites: int = 0
    power: MutationScore | None = None
    disagreement: str = ""
    hidden: tuple[str, ...] = ()
    note: str = ""
    late: int = 0


@dataclass(frozen=True)
class _SiteResult:
    """The result at one region: the disagreement in words, whether it is on cancelling inputs only, and the power."""

    disagreement: str = ""
    cancelling: bool = False
    power: MutationScore | None = None


@dataclass(frozen=True)
class _ChangedRegion:
    pair: tuple[Graph, Graph]
    typing: InferredTypes
    cost: float  # operations of one run
    sessions: float  # operations that making the sessions counts as
    kind: tuple[object, ...]
    identity: tuple[object, ...]

    @property
    def unit_work(self) -> float:
        """Operations that one input takes."""
        return _ALONE * self.cost + self.sessions


def check_sites(
    before: Graph, after: Graph, typing: InferredTypes, plan: CheckSettings, bench: SharedWeightSessions
) -> RegionCheckResults:
    """Check each changed region by itself.

    Args:
        before: the original.
        after: the result.
        typing: the original's types.
        plan: of the check of the whole; its seed, sizes and deadlines hold here.
        bench: where sessions are made.

    Raises:
        OutOfTime: the check is to be given up.
    """
    if dict(before.opset) != dict(after.opset) or before.extras.get("onnx.model") != after.extras.get("onnx.model"):
        return RegionCheckResults(disagreement="the graphs are of different versions")
    return _LocalChecker(before, after, typing, plan, bench).run()


class _LocalChecker:
    def __init__(
        self, before: Graph, after: Graph, typing: InferredTypes, plan: CheckSettings, bench: SharedWeightSessions
    ) -> None:
        self.before, self.after, self.typing, self.plan, self.bench = before, after, typing, plan, bench
        self.fixed = computed_from_weights(before, typing)
        self.work_left = plan.effort.sites
        self.work_of_large_sites = _WHOLE * _ALONE * _cost(before, typing, plan.sizes)
        self.trials = 0
        self.late = 0
        self.only_in_context: list[str] = []  # what places make that are equal only with what makes their inputs

    def run(self) -> RegionCheckResults:
        regions = changed_regions(self.before, self.after, self.typing.types, self.fixed)
        found_changed_regions = [_changed_region(p, self.plan.sizes) for p in regions]
        places = list(
            {p.identity: p for p in sorted(found_changed_regions, key=lambda p: -p.cost) if p.pair[0].outputs}.values()
        )[::-1]
        first = {p.kind: p for p in reversed(places)}
        powers: list[MutationScore] = []
        checked = leading = 0
        for changed_region in sorted(
            places, key=lambda p: first[p.kind] is not p
        ):  # stable: by cost, the first of a kind first
            share = NONE
            if first[changed_region.kind] is changed_region:
                share = MutationBudget(
                    _nth_share(_MUTANTS, len(first), leading), self.plan.effort.sites / 2 / len(first)
                )
                leading += 1
            if self.plan.late():
                self.late += share is not NONE
                continue
            if changed_region.unit_work > self._remaining_work(share):
                continue
            checked += 1
            found_here = self._check_site(changed_region, share)
            self.bench.release_if_grown()
            powers += [] if found_here.power is None else [found_here.power]
            if found_here.disagreement:
                made = tuple(o for n in changed_region.pair[0].nodes for o in n.outputs if o)
                return RegionCheckResults(
                    self.trials, checked, len(places), combined(powers), found_here.disagreement,
                    made if found_here.cancelling else (),
                )  # fmt: skip
        return RegionCheckResults(
            self.trials, checked, len(places), combined(powers), note=self._note(), late=self.late
        )

    def _remaining_work(self, share: MutationBudget) -> float:
        """The work left for a region: the first of a kind runs however large it is."""
        return self.work_left if share is NONE else max(self.work_left, self.work_of_large_sites)

    def _note(self) -> str:
        if not self.only_in_context:
            return ""
        more = len(self.only_in_context) - _NAMED
        names = ", ".join(self.only_in_context[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        return f"equal only together with what makes their inputs: {names}"

    def _check_site(self, changed_region: _ChangedRegion, share: MutationBudget) -> _SiteResult:
        """The disagreement at a region, if any, and its power if it has a share of the work."""
        site_result = self._disagreement(changed_region, share)
        name = printable(changed_region.pair[0].outputs[0].name)
        for _ in range(_GROWN if site_result.disagreement and not site_result.cancelling else 0):
            more = grown(self.before, self.after, changed_region.pair, self.typing.types, self.fixed)
            larger = _changed_region(more, self.plan.sizes)
            if larger.pair[0].nodes == changed_region.pair[0].nodes or larger.unit_work > self._remaining_work(share):
                return site_result
            changed_region = larger
            again = self._disagreement(changed_region, share)
            if not again.disagreement:
                self.only_in_context.append(name)
                return again
            if again.cancelling:
                return again
        return site_result

    def _disagreement(self, changed_region: _ChangedRegion, share: MutationBudget) -> _SiteResult:
        """What disagrees at a place as it stands. A large one gets numbers close together alone: the whole gets others.
        If it differs there, others tell whether it does so everywhere, as its inputs are not free."""
        leads = share is not NONE
        if changed_region.unit_work > self.work_left:
            site_result = self._run(changed_region, share, 0)
            if not site_result.cancelling:
                return site_result
        return self._run(changed_region, share, self.plan.trials if leads else 1)

    def _run(self, changed_region: _ChangedRegion, share: MutationBudget, trials: int) -> _SiteResult:
        """What disagrees at a place on so many unsteered inputs, and steered ones."""
        leads = share is not NONE
        effort = CheckWorkBudget(share.work, reference=_REFERENCE, both=_REFERENCE if leads else 0.0, cancelling=leads)
        plan = replace(
            self.plan, seed=self.plan.seed + self.trials, trials=trials, power=share, effort=effort,
            runtime=ONNX_RUNTIME,
        )  # fmt: skip
        outputs = ", ".join(v.name for v in changed_region.pair[0].outputs[:2])
        try:
            check = DifferentialCheck(*changed_region.pair, plan, self.bench, changed_region.typing).run()
        except OutOfTime:
            raise
        except (Unsupported, ResourceLimit) as error:
            return _SiteResult(f"what makes {outputs} cannot be run by itself ({error.what})")
        self.trials += check.trials
        ran = check.trials + (2 * check.power.mutants if check.power is not None else 0)
        taken = _ALONE * changed_region.cost * ran + changed_region.sessions * (1 + (ran - check.trials) / 2)
        if taken > self.work_left:
            self.work_of_large_sites -= taken
        else:
            self.work_left -= taken
        if check.verdict != "passed":
            return _SiteResult(f"what makes {outputs} differs by itself ({check.reason})", check.cancelling)
        return _SiteResult(power=check.power)


def _nth_share(whole: int, parts: int, number: int) -> int:
    """The share of one part if so many units are divided as evenly as integers allow."""
    return whole * (number + 1) // parts - whole * number // parts


def _changed_region(pair: tuple[Graph, Graph], sizes: Mapping[str, int]) -> _ChangedRegion:
    typing = infer(pair[0], sizes)
    kinds: list[tuple[object, ...]] = []
    itself: list[tuple[object, ...]] = []
    for graph in pair:
        numbers = {v.name: i for i, v in enumerate(graph.inputs)}
        alike: list[object] = [_rank(v.type) for v in graph.inputs]
        same: list[object] = [str(v.type) for v in graph.inputs]
        for weight in graph.weights:
            numbers.setdefault(weight.name, len(numbers))
            elements, data = weight.type.elements, weight.data
            few = data is not None and isinstance(elements, int) and elements <= _FEW
            alike.append((_rank(weight.type), data.digest if few and data is not None else ""))
            same.append((str(weight.type), "" if few else id(data)))
        for node in graph.nodes:
            for output in node.outputs:
                numbers.setdefault(output, len(numbers))
            written = tuple(f"{k}={attribute_key(v)}" for k, v in sorted(node.attributes.items()))
            wires = tuple(numbers.get(n, -1) for n in (*node.reads, *node.outputs))
            alike.append((node.domain, node.op, node.overload, wires, written))
        alike.append(tuple(numbers[v.name] for v in graph.outputs))
        kinds.append(tuple(alike))
        itself.append((tuple(alike), tuple(same)))
    sessions = _SESSIONS + _WEIGHT * sum(w.type.nbytes or 0 for g in pair for w in g.weights)
    return _ChangedRegion(pair, typing, _cost(pair[0], typing, sizes), sessions, tuple(kinds), tuple(itself))


def _cost(graph: Graph, typing: InferredTypes, sizes: Mapping[str, int]) -> float:
    """Operations of one run."""
    flops, moved = GraphWorkAnalysis(graph, typing, sizes).flops_and_bytes()
    return flops + _BYTE * moved


def _rank(kind: ValueType | None) -> object:
    return (kind.dtype, None if kind.shape is None else len(kind.shape)) if isinstance(kind, TensorType) else str(kind)
