"""Rewrites that hold for the elements of one model's weights, each with a certificate.

Zero channels, constant channels, equal rows, constants, weights of low rank: none of these is an equality of graphs, so
no rule states it. The claims follow from the operators' meanings with the weights inserted
(:mod:`superopt.passes.weights.slice_analysis`). :mod:`superopt.verifier.weights.claim_checker` checks them and shares
no code with this package. The reasons are in ``docs/decisions/0027-rewrites-by-weights-elements.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from superopt.ir.graph import Graph, Weight
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.shape_inference import infer
from superopt.passes.canonicalize import fold_known_sizes
from superopt.passes.deliberate_rounding import guard_deliberate_rounding
from superopt.passes.weights.constant_values import constants_of, others_of
from superopt.passes.weights.gather_scatter_to_slices import ReplacementSteps, moved_of
from superopt.passes.weights.lookup_tables import LookupTableRewrite, tabulations_of
from superopt.passes.weights.low_rank import factored_of
from superopt.passes.weights.nan_test_folding import decided_tests
from superopt.passes.weights.slice_analysis import SliceAnalysis, SliceFacts
from superopt.passes.weights.slice_removal import SliceRemoval, removal_of
from superopt.passes.weights.slice_removal_rewrite import SliceRemovalSteps, with_operands, write
from superopt.program.graph_program import GraphProgram, ProgramStep, program_of
from superopt.regions.emission import emit
from superopt.regions.replay import FreshNames
from superopt.rules.weight_claims import (
    ConstantIndexAccess,
    ConstantNanTest,
    EqualSlices,
    KeptSlices,
    LookupTableValue,
    UniformSlices,
    ValueAlias,
    WeightRewriteCertificate,
)

__all__ = ["WeightRewriteStage", "by_positions", "by_tables", "by_values"]

_FOLD_NOTHING = -(1 << 62)  # bytes by which folding has to make the weights smaller: the search folds
_ROUNDS = 8  # times that what one rewrite made is looked at again


@dataclass(frozen=True)
class WeightRewriteStage:
    """One rewrite: what was, what is, and the claims by which it is."""

    before: Graph
    after: Graph
    certificate: WeightRewriteCertificate


def by_values(
    graph: Graph, *, finite: bool = True, sums: bool = True, budget: float = 0.0
) -> tuple[WeightRewriteStage, ...]:
    """Rewrites by the elements of weights, each of what the one before made; none where there is nothing to find.

    Args:
        graph: a checked graph.
        finite: take running values to be finite where no weight is infinite: 0·x is 0. Without, NaN goes on as it did.
        sums: leave constant slices out where that adds a constant to a result; it may cost more than it saves.
        budget: the largest singular value of a weight that may be left out, as a share of its largest; 0: all count.
    """
    stages: list[WeightRewriteStage] = []
    before, values = graph, _values(graph, finite)
    while len(stages) < _ROUNDS and (found := _exact(before, values, sums)) is not None:
        stages.append(found)
        before, values = found.after, _values(found.after, finite)
    thinner = _factored(before, values, budget) if budget else None
    return (*stages, *([thinner] if thinner is not None else []))


def by_positions(graph: Graph, worth: Callable[[Graph], bool]) -> WeightRewriteStage | None:
    """What reads or writes known positions, in forms of whole axes; ``None`` where none is worth it.

    Args:
        graph: a checked graph.
        worth: whether a graph is to be preferred to the one before it, which it differs from in operators that are
            alike; asked for one kind of operators after the other, with what was preferred before.
    """
    values = _values(fold_known_sizes(graph, infer(graph)), finite=False)
    values = SliceAnalysis(
        values.program.with_steps(values.program.steps, {}, ()), finite=False
    )  # what is read is counted
    alike: dict[object, list[ReplacementSteps]] = {}
    for found in moved_of(values):
        alike.setdefault(found.kind, []).append(found)
    taken: list[ReplacementSteps] = []
    after = graph
    for group in alike.values():
        trial = _elsewhere(values.program, [*taken, *group])
        if worth(trial):
            taken += group
            after = trial
    if not taken:
        return None
    # Others need it no more.
    moved = tuple(ConstantIndexAccess(n) for m in taken if (n := m.steps[-1].outputs[0]) in after.producer)
    at = {p for m in taken for p in (m.position, *m.without)}
    read = sorted({a for p in at for a in values.program.steps[p].reads} & graph.constants.keys())
    digests = tuple((n, d.digest) for n in read if (d := graph.constants[n].data) is not None)
    return WeightRewriteStage(graph, after, WeightRewriteCertificate(digests, moved=moved))


def by_tables(graph: Graph, worth: Callable[[Graph], bool]) -> WeightRewriteStage | None:
    """Functions of integers of few values, read from tables; ``None`` where none is worth it.

    Args:
        graph: a checked graph.
        worth: as for :func:`by_positions`; asked for one integer tensor after the other.
    """
    values = _values(graph, finite=False)
    after, taken = graph, list[LookupTableRewrite]()
    for found in tabulations_of(values):
        if any(not found.values.keys().isdisjoint(t.values) for t in taken):
            continue
        trial = _with_tables(values.program, [*taken, found])
        if worth(trial):
            taken.append(found)
            after = trial
    if not taken:
        return None
    claims = tuple(LookupTableValue(n, t.index, t.low, t.high) for t in taken for n in t.values if n in after.producer)
    return WeightRewriteStage(graph, after, WeightRewriteCertificate(tabulated=claims))


def _with_tables(program: GraphProgram, taken: Sequence[LookupTableRewrite]) -> Graph:
    values = {n for t in taken for n in t.values}
    steps = [s for s in program.steps if values.isdisjoint(s.outputs)]
    types = {n: kind for t in taken for n, kind in t.types.items()}
    steps += [s for t in taken for s in t.steps]
    return _graph(program, steps, [w for t in taken for w in t.weights], types)


def _elsewhere(program: GraphProgram, taken: Iterable[ReplacementSteps]) -> Graph:
    put = {m.position: m for m in taken}
    gone = frozenset[int]().union(*(m.without for m in put.values()))
    left = [(at, s) for at, s in enumerate(program.steps) if at not in gone]
    steps = [new for at, s in left for new in (put[at].steps if at in put else (s,))]
    types = {n: t for m in put.values() for n, t in m.types.items()}
    return _graph(program, steps, (), types)


def _values(graph: Graph, finite: bool) -> SliceAnalysis:
    return SliceAnalysis(guard_deliberate_rounding(program_of(graph, infer(graph)))[0], finite)


def _exact(graph: Graph, values: SliceAnalysis, sums: bool) -> WeightRewriteStage | None:
    """The first way to leave something out that changes no value."""
    program = values.program
    if (unguarded := _without_decided_tests(graph, values)) is not None:
        return unguarded
    if not any(values.slices(n, a) for n in _read(program) for a in range(len(program.types[n].shape or ()))):
        return None
    values.compute()
    ways = (_others, _constants, partial(_slices, sums=sums))
    return next((s for way in ways if (s := way(graph, values)) is not None), None)


def _read(program: GraphProgram) -> Iterator[str]:
    """Constants that running steps read."""
    read = dict.fromkeys(n for p in program.running for n in program.steps[p].args if n is not None)
    return (n for n in read if n in program.constant and n in program.types)


def _without_decided_tests(graph: Graph, values: SliceAnalysis) -> WeightRewriteStage | None:
    """Choices by tests that have one answer, read as what they choose."""
    answers = decided_tests(values)
    stage = _read_as(graph, values, others_of(values, answers)) if answers else None
    if stage is None:
        return None
    asked = {a for s in stage.certificate.same for a in values.program.steps[values.program.maker[s.value]].args}
    decided = tuple(ConstantNanTest(name, answer) for name, answer in answers.items() if name in asked)
    return replace(stage, certificate=replace(stage.certificate, decided=decided))


def _others(graph: Graph, values: SliceAnalysis) -> WeightRewriteStage | None:
    """Values that are others, read as those."""
    return _read_as(graph, values, others_of(values))


def _read_as(graph: Graph, values: SliceAnalysis, others: Mapping[str, str]) -> WeightRewriteStage | None:
    """Readers of values read the others that these are."""
    program = values.program
    if not others:
        return None
    last = {name: _followed(others, name) for name in others}
    steps = [with_operands(program, s, last, {}) for s in program.steps]
    if all(new is old for new, old in zip(steps, program.steps, strict=True)):
        return None
    after = _graph(program, steps, (), {})
    certificate = _claims(values, others)
    same = tuple(ValueAlias(a, b) for a, b in others.items())
    return WeightRewriteStage(graph, after, replace(certificate, same=same, finite=values.finite))


def _followed(others: Mapping[str, str], name: str) -> str:
    while name in others:
        name = others[name]
    return name


def _constants(graph: Graph, values: SliceAnalysis) -> WeightRewriteStage | None:
    """Values that are constant, read as weights."""
    found = constants_of(values, FreshNames(values.program))
    if found is None:
        return None
    steps, weights, types = found
    after = _graph(values.program, steps, weights, types)
    return WeightRewriteStage(graph, after, replace(_claims(values, values.program.maker), finite=values.finite))


def _slices(graph: Graph, values: SliceAnalysis, *, sums: bool) -> WeightRewriteStage | None:
    """Slices that nothing but vanishing terms depends on, left out."""
    removal = removal_of(values, sums=sums)
    while removal is not None and removal.settle():
        made = write(values, removal)
        if not made.stuck:
            after = _graph(values.program, made.steps, made.weights, made.types)
            return WeightRewriteStage(graph, after, _certificate(values, removal, made))
        removal.stuck |= made.stuck
    return None


def _factored(graph: Graph, values: SliceAnalysis, budget: float) -> WeightRewriteStage | None:
    """Products with weights of low rank, as two thinner ones."""
    program, found = values.program, factored_of(values, budget)
    if found is None:
        return None
    digests = sorted({f.weight for f in found.claims if f.weight in program.graph.constants})
    weights = tuple((n, d.digest) for n in digests if (d := program.graph.constants[n].data) is not None)
    after = _graph(program, found.steps, found.weights, found.types)
    return WeightRewriteStage(graph, after, WeightRewriteCertificate(weights, factored=found.claims))


def _graph(
    program: GraphProgram, steps: Sequence[ProgramStep], weights: Iterable[Weight], types: Mapping[str, TensorType]
) -> Graph:
    new = tuple(weights)
    graph = replace(program.graph, weights=(*program.graph.weights, *new))
    wider = replace(program, graph=graph).with_steps(steps, types, ())
    return emit(
        replace(wider, constant=wider.constant | {w.name for w in new}),
        REGISTRY,
        _FOLD_NOTHING,
        made_by="weight rewrites",
    ).graph


def _certificate(values: SliceAnalysis, removal: SliceRemoval, made: SliceRemovalSteps) -> WeightRewriteCertificate:
    wanted = {n for p, _ in removal.absorbed for n in values.program.steps[p].reads}
    kept: list[KeptSlices] = []
    for old, new in made.becomes.items():
        gone = removal.gone(old)
        axes = tuple((axis, tuple((~g).nonzero()[0].tolist())) for axis, g in gone.items())
        kept.append(KeptSlices(old, new, axes, sum(int(g.sum()) for g in gone.values())))
    return replace(_claims(values, wanted), kept=tuple(kept), finite=values.finite)


def _claims(values: SliceAnalysis, wanted: Iterable[str]) -> WeightRewriteCertificate:
    """All that is known of these values, and of what leads to them."""
    program = values.program
    stack, leading = list(wanted), set[str]()
    while stack:
        name = stack.pop()
        if name not in leading:
            leading.add(name)
            if name in program.maker:
                stack += program.steps[program.maker[name]].reads
    uniform: list[UniformSlices] = []
    equal: list[EqualSlices] = []
    for (name, axis), slices in values.found.items():
        if slices is not None and name in leading and name not in program.constant:
            _claim(name, axis, slices, uniform, equal)
    weights = sorted(n for n in leading if n in program.graph.constants)
    digests = tuple((n, d.digest) for n in weights if (d := program.graph.constants[n].data) is not None)
    return WeightRewriteCertificate(digests, tuple(uniform), tuple(equal))


def _claim(name: str, axis: int, slices: SliceFacts, uniform: list[UniformSlices], equal: list[EqualSlices]) -> None:
    known = (slices.number == slices.number).nonzero()[0].tolist()
    if known:
        uniform.append(UniformSlices(name, axis, tuple(known), tuple(float(slices.number[i]) for i in known)))
    first: dict[int, int] = {}
    pairs: list[tuple[int, int]] = []
    for at, identity in enumerate(slices.identity.tolist()):
        earlier = first.setdefault(identity, at)
        if earlier != at and slices.number[at] != slices.number[at]:
            pairs.append((at, earlier))
    if pairs:
        equal.append(EqualSlices(name, axis, tuple(pairs)))
