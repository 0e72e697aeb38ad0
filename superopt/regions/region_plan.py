"""The result of a region without names, so that it can be replayed on each region of equal signature."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from superopt.egraph.egraph import ABSENT, LEAF, PROJECT, EGraph, ENode
from superopt.extraction.dag import Choice, ExtractionProblem, constant_forms, used_classes
from superopt.ir.terms import Attributes
from superopt.ir.types import TensorType
from superopt.regions.region_egraph import ProgramRegion, RegionEGraph

__all__ = ["OUTSIDE", "RegionPlanNode", "RegionPlan", "Ref", "rule_list", "plan_of"]

OUTSIDE = -1
Ref = tuple[int, int]  # (piece, output), or (OUTSIDE, number of a value of the region)


@dataclass(frozen=True)
class RegionPlanNode:
    """One operator application of the plan.

    Attributes:
        outputs: for each output, the number of the region's value whose name it takes, or -1.
        types: of the outputs.
        source: the region's step that this is, unchanged but for its operands; -1 for a new application.
        constant: computed from weights alone: to be evaluated once.
        rule: the rule that first wrote it; empty for a step of the input.
    """

    op: str
    attributes: Attributes
    args: tuple[Ref | None, ...]
    outputs: tuple[int, ...]
    types: tuple[TensorType, ...]
    source: int
    constant: bool
    rule: str


@dataclass(frozen=True)
class RegionPlan:
    """How to compute a region's outputs, and what that is expected to save.

    Attributes:
        results: what each output of the region becomes.
        before, after: modelled microseconds.
        rules: ids of the rules by which the plan equals the region, each with the operators of the plan that it wrote
            (1 for a rule that only links the others).
        grown: bytes of new weights minus bytes of weights no longer read.
    """

    nodes: tuple[RegionPlanNode, ...]
    results: tuple[Ref, ...]
    before: float
    after: float
    rules: Mapping[str, int]
    grown: int

    @property
    def gain(self) -> float:
        """Microseconds saved."""
        return self.before - self.after


def rule_list(plan: RegionPlan) -> str:
    """A plan by its rules."""
    return ", ".join(sorted(plan.rules)) or "evaluating constants"


@dataclass
class _Writer:
    region: ProgramRegion
    lowered: RegionEGraph
    chosen: Mapping[int, ENode | None]  # class → its e-node; None where the value is given
    names: Mapping[int, list[int]]  # class → numbers of the region's values in it

    def __post_init__(self) -> None:
        self.graph: EGraph = self.lowered.graph
        self.pieces: list[RegionPlanNode] = []
        self.where: dict[int, Ref] = {}
        self.pairs: list[tuple[int, int]] = []
        self.made: dict[str, int] = {}

    def ref(self, identity: int) -> Ref:
        return self.where[self.graph.find(identity)]

    def write(self, root: int) -> None:
        """Write the pieces a class needs, operands first."""
        stack = [(self.graph.find(root), False)]
        while stack:
            owner, expanded = stack.pop()
            if owner in self.where:
                continue
            node = self.chosen[owner]
            if node is None or self.graph.heads[node[0]].op == LEAF:
                number = self.names[owner][0] if node is None else self.graph.heads[node[0]].index
                self.where[owner] = (OUTSIDE, number)
                continue
            if not expanded:
                stack.append((owner, True))
                stack.extend((self.graph.find(a), False) for a in node[1:] if a != ABSENT)
                continue
            if self.graph.heads[node[0]].op == PROJECT:
                piece, _ = self.ref(node[1])
                index = self.graph.heads[node[0]].index
                self.where[owner] = (piece, index)
                self._name(piece, index, owner)
            else:
                self._application(owner, node)

    def _name(self, piece: int, index: int, owner: int) -> None:
        found = self.pieces[piece]
        outputs = list(found.outputs)
        outputs[index] = next(iter(self.names.get(owner, ())), -1)
        self.pieces[piece] = RegionPlanNode(
            found.op,
            found.attributes,
            found.args,
            tuple(outputs),
            found.types,
            found.source,
            found.constant,
            found.rule,
        )

    def _application(self, owner: int, node: ENode) -> None:
        graph = self.graph
        birth = graph.classes[owner].nodes[node]
        head = graph.heads[node[0]]
        source = self.lowered.origin.get(birth, -1)
        args: tuple[int, ...] = node[1:]
        if source >= 0:
            number = self.region.number
            args = tuple(
                ABSENT if a is None else self.lowered.classes[number[a]] for a in self.region.steps[source].args
            )
        elif head.operator is not None and head.operator.commutative and graph.constant(args[0]):
            args = tuple(reversed(args))  # weights on the right, as people write them
        kind = graph.type(owner)
        types = kind if isinstance(kind, tuple) else (kind,)
        rule = graph.made_by[birth]
        if rule and source < 0:
            self.made[rule] = self.made.get(rule, 0) + 1
        self.where[owner] = (len(self.pieces), 0)
        self.pieces.append(RegionPlanNode(
            head.op, head.attributes, tuple(None if a == ABSENT else self.ref(a) for a in args),
            (-1,) * len(types), types, source, graph.constant(owner), rule if source < 0 else "",
        ))  # fmt: skip
        if not isinstance(kind, tuple):
            self._name(len(self.pieces) - 1, 0, owner)

    def birth(self, owner: int) -> int | None:
        node = self.chosen[owner]
        return None if node is None else self.graph.classes[owner].nodes[node]


def plan_of(
    region: ProgramRegion,
    lowered: RegionEGraph,
    problem: ExtractionProblem,
    choice: Choice,
    before: float,
    after: float,
) -> RegionPlan:
    """Write a choice down as a plan."""
    graph = lowered.graph
    leaf_count = len(region.leaves)
    outputs = [region.number[o] for o in region.outputs]
    names: dict[int, list[int]] = {}
    for number in (*outputs, *range(len(region.values))):
        if number >= leaf_count or region.values[number] in region.constant:
            found = names.setdefault(graph.find(lowered.classes[number]), [])
            if number not in found:
                found.append(number)
    given: dict[int, list[int]] = {}  # what was constant before; an output that becomes one is still to be made
    for owner, numbers in names.items():
        known = sorted(n for n in numbers if region.values[n] in region.constant)
        if known:
            given[owner] = names[owner] = known  # a weight rather than a step that computes the same
    chosen: dict[int, ENode | None] = dict(constant_forms(graph, given))
    for owner in used_classes(problem, choice) or ():
        chosen[owner] = problem.candidates[choice[owner]].node
    writer = _Writer(region, lowered, chosen, names)
    roots = [lowered.classes[n] for n in outputs]
    for root in roots:
        writer.write(root)
    made = Counter(p.rule for p in writer.pieces if p.rule and not p.constant)
    rules = {r: max(1, made[r]) for r in sorted(graph.reasons(_requests(writer, roots)).keys() | writer.made.keys())}
    results = tuple(writer.ref(r) for r in roots)
    return RegionPlan(tuple(writer.pieces), results, before, after, rules, _growth(region, writer, results))


def _requests(writer: _Writer, roots: list[int]) -> list[tuple[int, int]]:
    """Which ids the plan takes to be equal: what each application was made over, and what now stands there."""
    pairs: list[tuple[int, int]] = []
    wanted = list(roots)
    seen: set[int] = set()
    while wanted:
        identity = wanted.pop()
        owner = writer.graph.find(identity)
        birth = writer.birth(owner)
        if birth is None:
            continue
        pairs.append((identity, birth))
        if birth not in seen:
            seen.add(birth)
            wanted.extend(a for a in writer.graph.born(birth)[1:] if a != ABSENT)
    return pairs


def _growth(region: ProgramRegion, writer: _Writer, results: tuple[Ref, ...]) -> int:
    pieces = writer.pieces
    running = [p for p in pieces if not p.constant]
    fresh = {a for p in running for a in p.args if a is not None and a[0] != OUTSIDE and pieces[a[0]].constant}
    fresh |= {r for r in results if r[0] != OUTSIDE and pieces[r[0]].constant}
    read = {a[1] for p in running for a in p.args if a is not None and a[0] == OUTSIDE}
    first = len(region.steps) - region.running
    stored = {region.number[a] for s in region.steps[first:] for a in s.args if a in region.constant and a is not None}
    new = sum(pieces[p].types[o].nbytes or 0 for p, o in fresh)
    return new - sum(region.types[region.values[n]].nbytes or 0 for n in stored - read)
