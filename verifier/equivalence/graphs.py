"""Whether two models are equal: proved region by region if possible, else tested, or refuted with inputs.

Values of both models that are the same expression over inputs and constants are one *class*; a constant is what ONNX
Runtime computes. Fused operators are expanded (:mod:`superopt.verifier.equivalence.fused_operators`), and folded
constants are replaced by the expressions from which they were computed
(:mod:`superopt.verifier.equivalence.constant_unfolding`). The remaining values are aligned by running both models in
float64 on random inputs: equal arrays suggest equal values, nothing more. Each suggestion is then a theorem over the
aligned values from which it is computed (:mod:`superopt.verifier.equivalence.regions`), with weights as variables and
with symbolic dimensions if the model has them. The all-sizes prover decides it. A suggestion without a decision counts
as tested.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from superopt.ir.diff import changed_regions, grown
from superopt.ir.errors import SuperoptError, UsageError
from superopt.ir.graph import Graph, Node, Weight, structural_hash
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.ops.shape_inference import infer
from superopt.runtime.blas_threads import one_blas_thread
from superopt.runtime.resource_limits import LARGE
from superopt.verifier.check.check_settings import ORIGINAL, RESULT
from superopt.verifier.check.deliberate_rounding import outputs_rounded_on_purpose
from superopt.verifier.check.differential import CheckResult, ErrorAllowance, check, check_regions
from superopt.verifier.equivalence.constant_unfolding import UnfoldedModel, unfolded
from superopt.verifier.equivalence.folding_hypotheses import irrational
from superopt.verifier.equivalence.fused_operators import bodies_of, unfused
from superopt.verifier.equivalence.inlining import inlined
from superopt.verifier.equivalence.refutation import refute, witness
from superopt.verifier.equivalence.regions import PROVED, ROUNDED, RegionProver, RegionVerdict
from superopt.verifier.equivalence.runtime_folded_constants import (
    ModelConstants,
    constants_of,
    contents_of,
    with_folded_jumps,
)
from superopt.verifier.equivalence.signatures import interface_difference, narrower, unified
from superopt.verifier.equivalence.value_alignment import ModelValueClasses, aligned
from superopt.verifier.equivalence.weight_expressions import deviation, evaluated, ulps, written

__all__ = [
    "POLICY",
    "PROVED",
    "ROUNDED",
    "GraphVerdict",
    "EquivalencePolicy",
    "RegionVerdict",
    "certify_result",
    "verify",
]

ROUNDING = "rounding"  # a difference that rounding inside explains, and does not show when inputs are moved
_PATIENCE = 60.0  # seconds after which no other inputs are tried against two models that were not proved equal
_REGION_SECONDS = 2.0  # for the proof of one region of a result; many regions share the total


@dataclass(frozen=True)
class EquivalencePolicy:
    """The requirements of a verdict.

    Attributes:
        least_power: the share of single changes of the second model that the inputs must tell apart for the models to
            count as tested. Where they miss more than half, a mistake is likelier to be missed than to be seen, and
            that nothing was seen says nothing.
    """

    least_power: float = 0.5


POLICY = EquivalencePolicy()


@dataclass(frozen=True)
class GraphVerdict:
    """The verdict on two models.

    Attributes:
        verdict: "proved" (over the reals, from the inputs on, with the same constants), "proved up to rounding" (the
            same, but for the rounding of constants that somebody folded), "tested", "refuted" or "unknown".
        same: nodes of the second model that are literally in the first.
        proved, tested: nodes of the second model in regions that were proved, or only tested.
        regions: what was not literally the same.
        check: the run of both models in ONNX Runtime, with its power.
        feeds: inputs on which the models differ, when refuted.
        reason: in words.
        folded: constants of the second model that the first one's explain.
        max_ulp: how far those are from what they were computed from: whole units in the last place.
    """

    verdict: str
    same: int = 0
    proved: int = 0
    tested: int = 0
    regions: tuple[RegionVerdict, ...] = ()
    check: CheckResult = field(default_factory=lambda: CheckResult("skipped"))
    feeds: Mapping[str, np.ndarray] = field(default_factory=dict)
    reason: str = ""
    folded: int = 0
    max_ulp: int = 0

    @property
    def proved_share(self) -> float:
        """The share of the second model's nodes that are the same or proved."""
        total = self.same + self.proved + self.tested
        return (self.same + self.proved) / total if total else 1.0

    @property
    def words(self) -> str:
        """The verdict in words, with the rounding that a proof leaves, or the power of a test."""
        said = self.verdict
        if self.verdict == PROVED:
            said = "proved: every node is literally the same" if self.literal else "proved over the reals"
        elif self.verdict == ROUNDED:
            said = f"proved over the reals, up to the rounding of folded constants (max {self.max_ulp} ulp)"
        elif self.verdict == "tested" and self.check.power is not None:
            said = f"tested (power {self.check.power.share:.0%})"
        if self.check.refused == RESULT:
            said += ": does not run"
        elif self.check.refused == ORIGINAL:
            said += ": A does not run" if self.verdict == "unknown" else "; ONNX Runtime does not run A"
        if self.verdict in (PROVED, ROUNDED, "tested") and self.check.beyond:
            kinds = dict.fromkeys(b.partition(":")[0] for b in self.check.beyond)
            exact = [kind for kind in kinds if kind != ROUNDING]
            said += f"; differs at {', '.join(exact)}" if exact else ""
            said += "; rounds differently" if ROUNDING in kinds else ""
        return said

    @property
    def literal(self) -> bool:
        """Whether every node of the second model is one of the first."""
        return self.same > 0 and self.proved == self.tested == 0


def certify_result(before: Graph, after: Graph, *, total: float, seed: int = 0, slack: float = 0.0) -> GraphVerdict:
    """:func:`verify` for ``optimize --verify certify``: the result of an optimisation, within a total time.

    Regions that the time does not suffice for count as tested.

    Raises:
        UsageError: inputs or outputs differ in names, order or types.
    """
    return verify(before, after, seed=seed, time_limit=_REGION_SECONDS, total=total, power="quick", slack=slack)


@one_blas_thread()
def verify(
    a: Graph, b: Graph, *, seed: int = 0, time_limit: float = 5.0, trials: int = 3, total: float = float("inf"),
    power: str = "thorough", slack: float = 0.0, policy: EquivalencePolicy = POLICY,
) -> GraphVerdict:  # fmt: skip
    """Compare two models with inputs and outputs of the same names and element types.

    Args:
        a: the first model, checked.
        b: the second.
        seed: of the random inputs.
        time_limit: seconds for the proof of one region.
        trials: inputs on which both are run against the reference.
        total: seconds for all proofs.
        power: how many mutations of a result that is only tested are tried: "none", "quick" or "thorough".
        slack: share of an output's largest magnitude by which the second may be off, beyond what rounding explains.
        policy: what a verdict asks for.

    Raises:
        UsageError: their inputs or outputs differ in names, order or element types.
    """
    difference = interface_difference(a, b)
    if difference is not None:
        raise UsageError(
            f"the models have different signatures: {difference[1]}",
            hint="only models that take and give the same can be equal",
        )
    allowed = ErrorAllowance(slack, frozenset(node.name for node in b.nodes))
    ran = _run_both(a, b, seed, trials, allowed)
    given: dict[str, Any] = {"seed": seed, "trials": trials, "slack": allowed, "unify": True}
    rounded = _rounded_further(a, b, ran, **given)
    ran = ran if rounded is None else rounded.check
    read = inlined(a)
    first, second, found = _opened(read, unified(read, inlined(b)))
    if ran.verdict == "failed" and structural_hash(a) != structural_hash(b):  # runtimes may run one graph in two ways
        same = {n: first.named[c] for n, c in second.classes.items() if c in first.named}
        counts = _counted(RegionProver(first, second, same, found, 0.0, 0.0), b.nodes)
        return GraphVerdict("refuted", *counts, check=ran, feeds=ran.feeds or witness(a, b, seed), reason=ran.reason)
    try:
        partners = aligned(first, second, seed)
    except SuperoptError as error:
        partners, reason = {}, f"not aligned: {error}"
    else:
        reason = ""
    work = RegionProver(first, second, partners, found, time_limit, time.monotonic() + total)
    work.run()
    verdict = _verdict(work, b.nodes, ran, reason)
    fewer = narrower(a, b)
    if fewer and ran.verdict != "passed":
        return replace(verdict, verdict="unknown", reason="; ".join(r for r in (fewer, verdict.reason) if r))
    if verdict.verdict in (PROVED, ROUNDED):
        return verdict
    apart = refute(first, second, seed, time.monotonic() + min(_PATIENCE, total))
    if apart is not None:
        return replace(verdict, verdict="refuted", feeds=apart[1], reason=apart[0])
    if verdict.verdict == "tested" and power != "none" and not _large(a, b):
        measured = check(a, b, power=power, **given) if rounded is None else _powered(a, b, rounded, power, given)
        return _with_least_power(replace(verdict, check=measured), policy)
    return verdict


@dataclass(frozen=True)
class _Rounded:
    """A check that passed where the first model's own rounding, as it shows, does not explain what the second gives.

    Attributes:
        check: its result.
        turned: it asked whether the first model is another way to compute the second.
    """

    check: CheckResult
    turned: bool


def _rounded_further(a: Graph, b: Graph, ran: CheckResult, **given: Any) -> _Rounded | None:
    """Whether the rounding of either model's intermediates explains a check that failed, where none is meant; ``None``
    where it does not, or where numbers are not finite."""
    if ran.verdict != "failed" or ran.refused or not np.isfinite(ran.max_abs_error) or _large(a, b):
        return None
    meant = any(outputs_rounded_on_purpose(g, infer(g)) & {v.name for v in g.outputs} for g in (a, b))
    for turned in (True,) if meant else (False, True):
        found_check = check(*((b, a) if turned else (a, b)), inside=not meant, **given)
        if found_check.verdict == "passed":
            return _Rounded(replace(found_check, beyond=(*ran.beyond, f"{ROUNDING}: {ran.reason}")), turned)
    return None


def _powered(a: Graph, b: Graph, rounded: _Rounded, power: str, given: Mapping[str, Any]) -> CheckResult:
    """A check that passed, with the power of its inputs."""
    found_power = check(*((b, a) if rounded.turned else (a, b)), power=power, inside=True, **given).power
    if found_power is not None and rounded.turned:
        found_power = replace(found_power, of_original=not found_power.of_original)
    return replace(rounded.check, power=found_power)


def _with_least_power(verdict: GraphVerdict, policy: EquivalencePolicy) -> GraphVerdict:
    """The verdict on models that were only tested: by the power of the inputs."""
    power = verdict.check.power
    if power is None or (power.mutants and power.share >= policy.least_power):
        return verdict
    told = (
        f"the inputs tell {power.caught} of {power.mutants} single changes of B apart from A"
        if power.mutants
        else ("no single change of B could be tried")
    )
    why = f"no difference was found, but {told}, and less than {policy.least_power:.0%} is no test"
    return replace(verdict, verdict="unknown", reason="; ".join(r for r in (why, verdict.reason) if r))


def _large(*graphs: Graph) -> bool:
    """Whether a model is too large to run whole beside the other."""
    return any(g.weight_bytes > LARGE for g in graphs)


def _run_both(a: Graph, b: Graph, seed: int, trials: int, slack: ErrorAllowance) -> CheckResult:
    """Both models side by side; large ones where they differ, on one input for each place, if they agree there.

    What a place reads is free there, and in the model it may not be: where places differ, the whole decides.
    """
    if _large(a, b):
        types = infer(a).types
        found_check = check_regions(
            changed_regions(a, b, types), seed=seed, slack=slack,
            grow=lambda pair: grown(a, b, pair, types),
        )  # fmt: skip
        if found_check.verdict == "passed":
            why = f"run place by place, because the models' weights are more than {LARGE >> 30} GiB"
            return replace(found_check, reason="; ".join(r for r in (why, found_check.reason) if r))
    return check(a, b, seed=seed, trials=trials, slack=slack, unify=True)


def _opened(a: Graph, b: Graph) -> tuple[ModelValueClasses, ModelValueClasses, dict[str, float]]:
    """Both models with fused operators written out and folded constants put back, and how far each of those was off."""
    bodies = bodies_of(a) | bodies_of(b)
    a, b = with_folded_jumps(unfused(a, bodies)), with_folded_jumps(unfused(b, bodies))
    typing = infer(a)
    known_constants = ModelConstants(a, typing, constants_of(a, typing))
    found = unfolded(known_constants, b, frozenset(contents_of(w) for w in known_constants.weights.values()))
    a, own = _decimals(a, b, found)
    first, second = ModelValueClasses(a, own.values), ModelValueClasses(found.graph, found.values)
    table: dict[str, str] = {}
    for side in (first, second):
        side.classify(table)
    return first, second, {**own.ulps, **found.ulps}


def _decimals(a: Graph, b: Graph, found: UnfoldedModel) -> tuple[Graph, UnfoldedModel]:
    """The first model with decimals that only it has, and that stand for irrational numbers, put back as those."""
    theirs = {contents_of(w) for w in (*b.weights, *found.graph.weights)}
    nodes: list[Node] = []
    added: list[Weight] = []
    off: dict[str, float] = {}
    for weight in a.constants.values():
        if weight.data is None or not weight.type.dtype.is_float or weight.type.elements != 1:
            continue
        array = np.asarray(weight.data.numpy())
        term = irrational(float(array.reshape(-1)[0]), weight.type.dtype, array.shape)
        if term is None or contents_of(weight) in theirs:
            continue
        try:
            new_nodes, extra = written(term, weight.name, {}, a.opset.get("", 1))
        except UnsupportedNodeForm:
            continue
        nodes += new_nodes
        added += extra
        off[weight.name] = deviation(array, weight.type.dtype, evaluated(term, {}))
    weights = (*(w for w in a.weights if w.name not in off), *added)
    graph = replace(a, nodes=(*nodes, *a.nodes), weights=weights).checked() if nodes else a
    return graph, UnfoldedModel(graph, frozenset(o for n in nodes for o in n.outputs if o), off, {})


def _verdict(work: RegionProver, nodes: Sequence[Node], ran: CheckResult, reason: str) -> GraphVerdict:
    """The verdict on the whole, from the regions."""
    counts = _counted(work, nodes)
    outputs = [v.name for v in work.b.graph.outputs]
    whole = all(n in work.established and work.partners.get(n) == n for n in outputs)
    folded = [n for n in work.ulps if n in work.b.opened]
    off = ulps(max(work.ulps.values(), default=0.0))
    notes = [reason] if reason else []
    verdict = "unknown"
    if whole:
        verdict = ROUNDED if off else PROVED
    elif ran.verdict == "passed":
        verdict = "tested"
        notes.append("some regions were tested, not proved")
    else:
        notes.append(ran.reason or "the models could not be run")
    if ran.verdict == "passed" and ran.reason:
        notes.append(ran.reason)
    if folded:
        notes.append(f"{len(folded)} folded constants are within {off} ulp of what they were computed from")
    if len(folded) < len(work.ulps):
        notes.append("decimals of the first model stand for the irrational numbers that the second computes with")
    return GraphVerdict(
        verdict, *counts, tuple(work.regions), ran, reason="; ".join(notes), folded=len(folded), max_ulp=off
    )


def _counted(work: RegionProver, nodes: Sequence[Node]) -> tuple[int, int, int]:
    """Nodes of the second model, as it was given, that are the same, proved, and only tested."""
    readers: dict[str, list[int]] = {}
    for position, node in enumerate(nodes):
        for name in node.reads:
            readers.setdefault(name, []).append(position)
    state: dict[int, str] = {}
    for position in range(len(nodes) - 1, -1, -1):
        used = [o for o in nodes[position].outputs if o and (o in readers or o in work.outputs)]
        words = {("same" if work.same(o) else work.covered(o)) for o in used or nodes[position].outputs if o}
        if words == {"same"}:
            state[position] = "same"
        elif words <= {"same", PROVED, ROUNDED}:
            state[position] = "proved"
        elif None in words and "tested" not in words and not work.outputs.intersection(used):
            after = [state[p] for o in used for p in readers[o]]  # it is inside of what its readers compute
            state[position] = "tested" if "tested" in after else "proved"
        else:
            state[position] = "tested"
    kinds = list(state.values())
    return kinds.count("same"), kinds.count("proved"), kinds.count("tested")
