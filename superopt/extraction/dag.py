"""Extraction as a directed acyclic graph: a shared value is paid once, and no value depends on itself.

A class that depends on weights alone costs no time at run time, but bytes: it is a leaf with a small price per byte by
which the model would grow. A later step chooses which of its forms is evaluated, by least work.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from math import prod

from superopt.egraph.egraph import ABSENT, LEAF, PROJECT, EGraph, ENode
from superopt.extraction.enode_costs import FORBIDDEN, ENodeCostModel

__all__ = [
    "Choice",
    "ExtractionContext",
    "ExtractionProblem",
    "FusionSaving",
    "constant_forms",
    "cost_of",
    "improve",
    "problem_of",
]

NODE_US = 1e-7  # µs per operator that runs, whatever it costs: of equally fast programs the smallest is taken
_CLEAR = 1e-6  # µs by which a lower bound must exceed a cost, so that rounding decides nothing
Choice = dict[int, int]  # class → index of the chosen candidate


@dataclass(frozen=True)
class Candidate:
    """An e-node that could be chosen: its class, what it needs (classes that run), and its cost in microseconds."""

    node: ENode
    owner: int
    needs: tuple[int, ...]
    us: float

    @property
    def operands(self) -> tuple[int, ...]:
        """What it needs, in an order that does not depend on how it reads them."""
        return tuple(sorted(self.needs))


@dataclass(frozen=True)
class ExtractionContext:
    """What an extraction is given beside its e-graph and prices.

    Attributes:
        roots: classes that are wanted.
        paid: classes of constants that the model already stores.
        given: e-nodes of the input, which can stay even where superopt could not write them anew.
        within: those of them that run in the kernel of another, and cost nothing.
        inner: classes of values that only such a kernel reads, and what its other operators take by themselves where
            something else reads them.
    """

    roots: Sequence[int]
    stored_constants: frozenset[int] = frozenset()
    input_nodes: frozenset[ENode] = frozenset()
    within: frozenset[ENode] = frozenset()
    inner: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class FusionSaving:
    """Microseconds saved when both candidates are chosen and the producer's class has no other reader."""

    producer: int
    consumer: int
    us: float


@dataclass(frozen=True)
class ExtractionProblem:
    """An extraction problem. ``candidates`` by index; ``of``: those of each class; ``readers``: those needing it."""

    candidates: tuple[Candidate, ...]
    of: Mapping[int, tuple[int, ...]]
    readers: Mapping[int, tuple[int, ...]]
    roots: tuple[int, ...]
    index: Mapping[tuple[int, ENode], int] = field(default_factory=dict)  # class, e-node → the candidate in its place
    savings: tuple[FusionSaving, ...] = ()
    pairs: Mapping[int, tuple[FusionSaving, ...]] = field(default_factory=dict)  # by consumer


def problem_of(graph: EGraph, frame: ExtractionContext, pricer: ENodeCostModel) -> ExtractionProblem:
    """The problem of computing what a frame wants from a rebuilt e-graph, at these prices."""
    wanted = tuple(dict.fromkeys(graph.find(r) for r in frame.roots))
    drafts: dict[int, list[Candidate]] = {}
    growth = _Growth(graph, frame.stored_constants)
    stack = [r for r in wanted if not graph.constant(r)]
    while stack:
        owner = stack.pop()
        if owner in drafts:
            continue
        drafts[owner] = []
        for node in graph.classes[owner].nodes:
            args = tuple(dict.fromkeys(graph.find(a) for a in node[1:] if a != ABSENT))
            if owner in args:
                continue
            us = 0.0 if node in frame.within else pricer.node(graph, node, kept=node in frame.input_nodes).us
            if us == FORBIDDEN:
                continue
            us += pricer.byte_us * sum(growth.bytes_added(a) for a in args if graph.constant(a))
            us += 0.0 if graph.heads[node[0]].op in (LEAF, PROJECT) or node in frame.within else NODE_US
            us += 0.0 if node in frame.input_nodes else max((frame.inner.get(a, 0.0) for a in args), default=0.0)
            needs = tuple(a for a in args if not graph.constant(a))
            drafts[owner].append(Candidate(node, owner, needs, us))
            stack.extend(a for a in needs if a not in drafts)
    return _indexed(graph, _feasible(drafts), tuple(r for r in wanted if not graph.constant(r)), pricer, frame)


def _bytes(graph: EGraph, identity: int) -> int:
    kind = graph.type(identity)
    return sum(t.nbytes or 0 for t in (kind if isinstance(kind, tuple) else (kind,)))


class _Growth:
    """Bytes by which the model grows with a constant, if what it is computed from is read no more.

    What else still reads these is not known to a region: selection of plans counts it (``Weights.grown``).
    """

    def __init__(self, graph: EGraph, stored: frozenset[int]) -> None:
        self._graph, self._stored = graph, stored
        self._sources: dict[int, frozenset[int]] = {}

    def bytes_added(self, identity: int) -> int:
        """0 where the model stores the constant."""
        if identity in self._stored:
            return 0
        replaced = sum(_bytes(self._graph, s) for s in self._stored_sources(identity))
        return max(0, _bytes(self._graph, identity) - replaced)

    def _stored_sources(self, identity: int) -> frozenset[int]:
        """Stored constants from which the first form of a constant is computed; none where that is circular."""
        found = self._sources.get(identity)
        if found is None:
            self._sources[identity] = frozenset()
            nodes = self._graph.classes[identity].nodes
            first = min(nodes, key=nodes.__getitem__)
            args = [self._graph.find(a) for a in first[1:] if a != ABSENT]
            inner = [self._stored_sources(a) for a in args if a not in self._stored]
            found = frozenset(a for a in args if a in self._stored).union(*inner)
            self._sources[identity] = found
        return found


def _feasible(drafts: Mapping[int, Sequence[Candidate]]) -> dict[int, list[Candidate]]:
    """Only candidates whose needs can be met by finite terms."""
    waiting: dict[int, list[Candidate]] = {}
    missing: dict[int, int] = {}
    kept: dict[int, list[Candidate]] = {owner: [] for owner in drafts}
    done: set[int] = set()
    queue: list[Candidate] = []
    for found in drafts.values():
        for candidate in found:
            missing[id(candidate)] = len(candidate.needs)
            for need in candidate.needs:
                waiting.setdefault(need, []).append(candidate)
            if not candidate.needs:
                queue.append(candidate)
    for candidate in queue:  # grows while it is read
        kept[candidate.owner].append(candidate)
        if candidate.owner not in done:
            done.add(candidate.owner)
            for above in waiting.get(candidate.owner, ()):
                missing[id(above)] -= 1
                if missing[id(above)] == 0:
                    queue.append(above)
    return kept


def _indexed(
    graph: EGraph,
    kept: Mapping[int, list[Candidate]],
    roots: tuple[int, ...],
    pricer: ENodeCostModel,
    frame: ExtractionContext,
) -> ExtractionProblem:
    """Of e-nodes that need the same the cheapest, and each that the input has: what is in its place has to gain.

    Also the cheapest with an operator and attributes that the input has: the prices of these are off by the same.
    """
    candidates: list[Candidate] = []
    index: dict[tuple[int, ENode], int] = {}
    of: dict[int, tuple[int, ...]] = {}
    readers: dict[int, list[int]] = {}
    given = {node[0] for node in frame.input_nodes}
    for owner, found in kept.items():
        best: dict[tuple[tuple[int, ...], ENode], Candidate] = {}
        keys = [(c.operands, _apart(c.node, frame.input_nodes, given)) for c in found]
        for key, candidate in zip(keys, found, strict=True):
            if key not in best or candidate.us < best[key].us:
                best[key] = candidate
        start = len(candidates)
        position = {key: start + i for i, key in enumerate(best)}
        index.update(((owner, c.node), position[key]) for key, c in zip(keys, found, strict=True))
        candidates.extend(best.values())
        of[owner] = tuple(range(start, len(candidates)))
        for number in of[owner]:
            for need in candidates[number].needs:
                readers.setdefault(need, []).append(number)
    savings = _savings(graph, candidates, of, roots, pricer, frame.within)
    pairs: dict[int, list[FusionSaving]] = {}
    for saving in savings:
        pairs.setdefault(saving.consumer, []).append(saving)
    return ExtractionProblem(
        tuple(candidates), of, {c: tuple(r) for c, r in readers.items()}, roots, index,
        tuple(savings), {c: tuple(s) for c, s in pairs.items()},
    )  # fmt: skip


def _apart(node: ENode, nodes: AbstractSet[ENode], heads: AbstractSet[int]) -> ENode:
    """What tells an e-node from others that need the same: it is the input's, or has a head of the input's."""
    return node if node in nodes else node[:1] if node[0] in heads else ()


def _savings(
    graph: EGraph, candidates: Sequence[Candidate], of: Mapping[int, tuple[int, ...]], roots: tuple[int, ...],
    pricer: ENodeCostModel, within: frozenset[ENode],
) -> list[FusionSaving]:  # fmt: skip
    found: list[FusionSaving] = []
    for consumer, candidate in enumerate(candidates):
        if graph.heads[candidate.node[0]].op in (LEAF, PROJECT) or candidate.node in within:
            continue
        saved: dict[str, float] = {}  # by the operator that makes the operand
        for owner in candidate.needs:
            if owner in roots or owner not in of:
                continue
            for producer in of[owner]:
                op = graph.heads[candidates[producer].node[0]].op
                us = saved.get(op)
                if us is None:
                    us = saved[op] = pricer.saving(graph, op, candidate.node)
                if us > 0:
                    limit = min(us, candidate.us + candidates[producer].us)
                    found.append(FusionSaving(producer, consumer, limit))
    return found


def used_classes(problem: ExtractionProblem, choice: Choice) -> list[int] | None:
    """The classes a choice computes, operands first; ``None`` if it depends on itself or is incomplete."""
    order: list[int] = []
    done: dict[int, bool] = {}  # False: what it needs is still being looked at
    candidates = problem.candidates
    stack = list(problem.roots)  # classes; ~c: all that c needs is done
    while stack:
        owner = stack.pop()
        if owner < 0:
            done[~owner] = True
            order.append(~owner)
            continue
        known = done.get(owner)
        if known is not None:
            if known:
                continue
            return None
        index = choice.get(owner)
        if index is None:
            return None
        done[owner] = False
        stack.append(~owner)
        for need in candidates[index].needs:
            known = done.get(need)
            if known is None:
                stack.append(need)
            elif not known:
                return None
    return order


def cost_of(problem: ExtractionProblem, choice: Choice) -> float:
    """Microseconds of a choice, what the backend fuses counted as fused; infinite if it is not a program."""
    used = used_classes(problem, choice)
    if used is None:
        return float("inf")
    total = 0.0
    candidates, pairs = problem.candidates, problem.pairs
    fused = [i for o in used if (i := choice[o]) in pairs]
    reads: dict[int, int] = {}
    for owner in used:
        candidate = candidates[choice[owner]]
        total += candidate.us
        if fused:
            for need in candidate.needs:
                reads[need] = reads.get(need, 0) + 1
    taken: set[int] = set()
    for consumer in fused:
        best: FusionSaving | None = None
        for saving in pairs[consumer]:
            producer = problem.candidates[saving.producer].owner
            if choice.get(producer) == saving.producer and reads.get(producer) == 1 and saving.producer not in taken:
                best = saving if best is None or saving.us > best.us else best
        if best is not None:
            taken |= {best.producer, best.consumer}
            total -= best.us
    return total


def greedy(problem: ExtractionProblem) -> Choice:
    """The cheapest tree of every class (shared values counted each time), which is never cyclic."""
    price: dict[int, float] = {}
    choice: Choice = {}
    changed = True
    rounds = 0
    while changed and rounds < len(problem.of) + 1:
        changed = False
        rounds += 1
        for owner, options in problem.of.items():
            for index in options:
                candidate = problem.candidates[index]
                if any(n not in price for n in candidate.needs):
                    continue
                us = candidate.us + sum(price[n] for n in candidate.needs) + 1e-9
                if us < price.get(owner, float("inf")) - 1e-12:
                    price[owner], choice[owner], changed = us, index, True
    return choice


def improve(problem: ExtractionProblem, start: Choice, deadline: float = float("inf")) -> Choice:
    """Local search from a program: change one class's candidate, or all readers of one shared new class jointly.

    Args:
        problem: what to choose from.
        start: a program.
        deadline: ``time.monotonic`` value at which it ends with what it has.
    """
    best, cost = dict(start), cost_of(problem, start)
    cheapest = greedy(problem)
    complete = {**cheapest, **best}
    standing = _Standing(problem, complete)
    improved, late = True, False
    while improved and not late:
        improved = late = False
        for number, move in enumerate(_moves(problem, complete)):
            if number & 31 == 31 and time.monotonic() > deadline:
                late = True
                break
            if standing.least(move) > cost + _CLEAR:
                continue
            trial = {**complete, **move}
            price = cost_of(problem, trial)
            if price < cost - 1e-9:
                complete, cost, improved = trial, price, True
                standing = _Standing(problem, complete)
    used = used_classes(problem, complete)
    return {c: complete[c] for c in used} if used is not None else best


class _Standing:
    """How often each class is read in a program: what a change costs at least is told from what it adds and drops."""

    def __init__(self, problem: ExtractionProblem, choice: Choice) -> None:
        self.problem, self.choice = problem, choice
        self.fusable = {c: max(s.us for s in pairs) for c, pairs in problem.pairs.items()} if problem.pairs else {}
        used = used_classes(problem, choice) or []
        self.reads = dict.fromkeys(used, 0)
        for root in problem.roots:
            self.reads[root] = self.reads.get(root, 0) + 1
        self.us = 0.0
        for owner in used:
            self.us += self._alone(choice[owner])
            for need in problem.candidates[choice[owner]].needs:
                self.reads[need] += 1

    def _alone(self, index: int) -> float:
        """Microseconds of a candidate with all that could be saved by fusing it."""
        return self.problem.candidates[index].us - self.fusable.get(index, 0.0)

    def least(self, move: Choice) -> float:
        """Microseconds that the program costs at least after a move; exact where nothing could be fused."""
        candidates, reads = self.problem.candidates, self.reads
        us, change = self.us, dict[int, int]()
        switched = [o for o in move if o in reads]
        added = list[int]()
        for owner in switched:
            us += self._alone(move[owner]) - self._alone(self.choice[owner])
            added += candidates[move[owner]].needs
        while added:
            owner = added.pop()
            change[owner] = change.get(owner, 0) + 1
            if owner not in reads and change[owner] == 1:
                index = move.get(owner, self.choice.get(owner, -1))
                if index < 0:
                    return float("inf")
                us += self._alone(index)
                added += candidates[index].needs
        dropped = [n for o in switched for n in candidates[self.choice[o]].needs]
        while dropped:
            owner = dropped.pop()
            change[owner] = change.get(owner, 0) - 1
            if reads.get(owner, 0) + change[owner] == 0:
                index = move.get(owner, self.choice[owner])
                us -= self._alone(index)
                dropped += candidates[index].needs
        return us


def _moves(problem: ExtractionProblem, choice: Choice) -> list[Choice]:
    used = used_classes(problem, choice) or []
    moves: list[Choice] = [{o: i} for o in reversed(used) for i in problem.of[o] if i != choice[o]]
    for need, readers in problem.readers.items():
        joint = {problem.candidates[i].owner: i for i in readers}
        if need not in used and len(joint) > 1:
            moves.append(joint)  # e.g. every sibling reads its part of one merged operator
    return moves


def constant_forms(graph: EGraph, given: Mapping[int, object]) -> dict[int, ENode | None]:
    """For each class of constants the form to evaluate: ``None`` where it is given, else that of least work.

    What has an exact form is evaluated by one, so that what jumps above it meets no rounding error.
    """
    work: dict[int, float] = {graph.find(c): 0.0 for c in given if graph.constant(c)}
    forms: dict[int, ENode | None] = dict.fromkeys(work)
    exact = [c for c, group in graph.classes.items() if group.exact and c not in forms]
    rest = [c for c, group in graph.classes.items() if group.constant and not group.exact and c not in forms]
    for classes, least in ((exact, (True, True)), (rest, (True, False))):
        changed, rounds = True, 0
        while changed and rounds <= len(classes) + 1:
            changed, rounds = False, rounds + 1
            for owner in classes:
                for node in graph.classes[owner].nodes:
                    args = [graph.find(a) for a in node[1:] if a != ABSENT]
                    if any(a not in work for a in args) or graph.evaluable(node, graph.type(owner)) < least:
                        continue
                    total = _effort(graph, node) + sum(work[a] for a in args)
                    if total < work.get(owner, float("inf")):
                        work[owner], forms[owner], changed = total, node, True
    return forms


def _effort(graph: EGraph, node: ENode) -> float:
    """Work of evaluating an application: products of argument sizes bound every contraction from above."""
    if graph.heads[node[0]].op == PROJECT:
        return 1.0
    sizes = [prod(d for d in t.shape or () if isinstance(d, int)) for t in graph.argument_types(node) if t is not None]
    heavy = graph.heads[node[0]].op in ("MatMul", "Conv", "Gemm", "Einsum", "ConvTranspose")
    return 1.0 + (float(prod(sizes)) ** 0.75 if heavy else float(sum(sizes)))
