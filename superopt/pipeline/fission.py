"""Plans by fission: where most is alive, a region of operators is computed in parts, again and again, while that helps.

What can be cut, :mod:`superopt.memory.fission` proposes; that the parts are the whole, the prover of
:mod:`superopt.verifier` shows of every region before it is taken: over the reals, at the sizes there are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property

from superopt.ir.graph import Graph, Node
from superopt.ir.terms import OperatorTerm, Term, VariableTerm, postorder, remade, variables
from superopt.ir.types import DType, TensorType
from superopt.memory.fission import FissionRegion, FissionSearchGraph, grown, heads, tails
from superopt.memory.fission_lowering import split
from superopt.memory.inplace_kernels import IN_PLACE, RENAMING
from superopt.memory.liveness import Lifetime, alive, lifetimes
from superopt.memory.slicing import OperatorSlicing
from superopt.ops.shape_inference import CanonicalNode, InferredTypes, infer
from superopt.rules import Rule, TensorVariableType
from superopt.verifier import ProvedVerdict
from superopt.verifier.prover.piecewise_proofs import prove_joined

__all__ = ["TARGETS", "FissionedGraph", "fissions"]


@dataclass(frozen=True)
class FissionPolicy:
    """The numbers that decide which regions are cut into parts.

    Attributes:
        parts: numbers of parts that are tried.
        uneven_positions: positions in a part from which parts need not be equal.
        remaining: share of the bytes alive where a region is, that it may leave to be taken.
        near: share of what the best saves, that another that moves less may save less.
        large: share of the most that is alive, that a value has to have to be worth cutting.
        kernel_bytes: bytes that could be moved while a kernel is called.
        proof_seconds: seconds' work, for a region or each of its parts: what ``superopt verify`` gives them, and
            less.
        operators: operators of a region in parts.
    """

    parts: tuple[int, ...] = (2, 3, 4, 6, 8, 12, 16, 32)
    uneven_positions: int = 16
    remaining: float = 0.97
    near: float = 0.1
    large: float = 0.05
    kernel_bytes: int = 1 << 16
    proof_seconds: float = 2.0
    operators: int = 320


POLICY = FissionPolicy()
TARGETS = (0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08)  # of what is alive at once


@dataclass(frozen=True)
class FissionedGraph:
    """A graph with regions computed in parts.

    Attributes:
        graph: it.
        peak: bytes that are alive at once in its order, without inputs and outputs; kernels write over operands where
            they may.
        regions: that were cut.
    """

    graph: Graph
    peak: int
    regions: tuple[FissionRegion, ...]


def fissions(
    graph: Graph, *, targets: Sequence[float] = TARGETS, deadline: float = float("inf")
) -> list[FissionedGraph]:
    """Graphs of falling peak in which regions are computed in parts, each proved equal; the graph given is left out.

    Args:
        graph: the model.
        targets: shares of the peak, falling, that graphs are cut down to.
        deadline: on the monotonic clock, after which no region is looked for.
    """
    made: list[FissionedGraph] = []
    known = _SharedSearch()
    least = first = _Cutting(graph, 0.0, known).peak
    for target in targets:
        cutting = _Cutting(graph, target * first, known, deadline)
        while time.monotonic() < deadline and cutting.peak > cutting.target and cutting.step():
            pass
        if cutting.regions and cutting.peak < POLICY.remaining * least:
            least = cutting.peak
            made.append(FissionedGraph(cutting.graph, cutting.peak, tuple(cutting.regions)))
        elif cutting.peak > cutting.target:
            break  # nor is less to be had
    return made


@dataclass(frozen=True)
class _Alive:
    """When values of a graph are needed, and what is alive at its nodes that run; inputs and outputs lie elsewhere."""

    nodes: tuple[Node, ...]
    at: Mapping[int, int]  # positions in the graph → steps
    spans: Mapping[str, Lifetime]
    root: Mapping[str, str]
    bytes: list[int]

    @staticmethod
    def of(graph: Graph, types: Mapping[str, TensorType | None]) -> _Alive:
        static = set(graph.constants)
        places: list[int] = []
        for place, node in enumerate(graph.nodes):
            if all(n in static for n in node.reads):
                static.update(o for o in node.outputs if o)
            else:
                places.append(place)
        nodes = tuple(graph.nodes[p] for p in places)

        elsewhere = {v.name for v in (*graph.inputs, *graph.outputs)}

        def size(name: str) -> int:
            kind = types.get(name)
            return (kind.nbytes or 0) if kind is not None and name not in elsewhere else 0

        outputs = [v.name for v in graph.outputs]
        spans = lifetimes(nodes, size, (), outputs, lambda n: _renames(n, static))
        root: dict[str, str] = {}
        for node in nodes:
            if _renames(node, static):
                root[node.outputs[0]] = root.get(node.inputs[0], node.inputs[0])
        found = {s.name: s for s in spans}
        for step, node in enumerate(nodes):
            operand = IN_PLACE.get((node.domain, node.op), len(node.inputs))
            over = node.inputs[operand] if operand < len(node.inputs) else ""
            before = found.get(root.get(over, over))
            if before is not None and before.end == step and before.start >= 0 and size(over) == size(node.outputs[0]):
                found[before.name] = replace(before, end=step - 1)
        return _Alive(nodes, {p: i for i, p in enumerate(places)}, found, root, alive(found.values(), len(nodes)))

    @cached_property
    def before(self) -> list[int]:
        """Bytes that are alive at each step and were before it."""
        made = [0] * len(self.nodes)
        for span in self.spans.values():
            if 0 <= span.start <= span.end:
                made[span.start] += span.size
        return [a - b for a, b in zip(self.bytes, made, strict=True)]


def _renames(node: Node, static: Set[str]) -> bool:
    return (node.domain, node.op) in RENAMING and bool(node.inputs) and node.inputs[0] not in static


@dataclass(frozen=True)
class _Recipe:
    """How a region was cut: others like it are cut alike.

    Attributes:
        kinds: of its nodes: operator and type of the result.
        axis: along which; ``None``: a sum.
        parts: into how many.
        then: bytes alive there then.
    """

    kinds: tuple[tuple[str, TensorType | None], ...]
    axis: int | None
    parts: int
    then: int

    @staticmethod
    def of(source: FissionSearchGraph, region: FissionRegion, then: int) -> _Recipe:
        return _Recipe(_kinds(source, region.nodes), region.way.axis, region.parts, then)

    def starts(self, source: FissionSearchGraph, head: int, way: OperatorSlicing) -> bool:
        """Whether a region like it may have this head."""
        return way.axis == self.axis and _kinds(source, (head,)) == self.kinds[:1]

    def fits(self, source: FissionSearchGraph, region: FissionRegion) -> bool:
        """Whether a region is like it."""
        return _kinds(source, region.nodes) == self.kinds


def _kinds(source: FissionSearchGraph, nodes: Sequence[int]) -> tuple[tuple[str, TensorType | None], ...]:
    return tuple((n.op, source.type(n.outputs[0])) for n in (source.graph.nodes[i] for i in nodes))


@dataclass
class _SharedSearch:
    """What the ways down to all targets share.

    Attributes:
        proofs: of rules, by their text.
        found: regions, and the bytes that are alive there then, by the cuts that were made before.
    """

    proofs: dict[str, bool] = field(default_factory=dict)
    found: dict[tuple[object, ...], list[tuple[int, FissionRegion]]] = field(default_factory=dict)


@dataclass
class _Cutting:
    """A graph that is cut further and further."""

    graph: Graph
    target: float
    known: _SharedSearch
    deadline: float = float("inf")
    regions: list[FissionRegion] = field(default_factory=list)
    parts: set[str] = field(default_factory=set)
    recipes: list[_Recipe] = field(default_factory=list)
    _refused: list[FissionRegion] = field(default_factory=list)
    _unproved: list[FissionRegion] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.typing = infer(self.graph)
        self.alive = _Alive.of(self.graph, self.typing.types)
        self.source = FissionSearchGraph(self.graph, self.typing)

    @property
    def peak(self) -> int:
        return max(self.alive.bytes)

    def step(self) -> bool:
        """Cut one region where most is alive; whether one was found."""
        if any(self._accept(region) for region in self._again()):
            return True
        found = [c for c in self._ordered_candidates() if not self._hopeless(c[1])]
        while found and time.monotonic() < self.deadline:
            before = self.peak
            reached = [c for c in found if c[0] <= max(self.target, found[0][0] + POLICY.near * (before - found[0][0]))]
            chosen = min(reached, key=lambda c: c[1].traffic)
            recipe = _Recipe.of(self.source, chosen[1], chosen[0])
            if self._accept(chosen[1]):
                self.recipes.append(recipe)
                return True
            found = [c for c in found if not self._hopeless(c[1])]
        return False

    def _ordered_candidates(self) -> list[tuple[int, FissionRegion]]:
        """The candidates, those that leave least alive first."""
        cuts = tuple((r.output, r.nodes, r.way.axis, r.parts) for r in self.regions)
        if cuts not in self.known.found:
            self.known.found[cuts] = sorted(self._candidates(), key=lambda c: c[0])
        return self.known.found[cuts]

    def _again(self) -> Iterator[FissionRegion]:
        """Regions like those that were cut, where most is alive now."""
        for span in self._large():
            maker = self.source.maker[span.name]
            for head in heads(self.source, span.name) if self.recipes else ():
                for way in tails(self.source, head):
                    for recipe in self.recipes:
                        if recipe.starts(self.source, head, way):
                            grows = grown(self.source, head, way, recipe.parts, maker, POLICY.kernel_bytes)
                            yield from (
                                r for r in grows if recipe.fits(self.source, r) and self._then(r) <= recipe.then
                            )

    def _large(self) -> list[Lifetime]:
        """The largest values that are alive where most is."""
        most = self.peak
        top = self.alive.bytes.index(most)
        found = [s for s in self.alive.spans.values() if s.start >= 0 and s.start <= top <= s.end]
        return sorted((s for s in found if s.size > POLICY.large * most), key=lambda s: -s.size)[:3]

    def _candidates(self) -> Iterator[tuple[int, FissionRegion]]:
        """Regions around large values that are alive where most is, each with the bytes that are alive there then."""
        most = self.peak
        for span in self._large():
            for head in heads(self.source, span.name):
                for way in tails(self.source, head):
                    for region in self._around(self.source.maker[span.name], head, way):
                        taken = self._then(region)
                        if taken < POLICY.remaining * most:
                            yield taken, region

    def _whole(self, region: FissionRegion) -> bool:
        """Whether nothing of it is a part already, and a proof takes it all."""
        return region.parts * (len(region.nodes) + 2) <= POLICY.operators and not any(
            o in self.parts for i in region.nodes for o in self.source.graph.nodes[i].outputs
        )

    def _around(self, maker: int, head: int, way: OperatorSlicing) -> Iterator[FissionRegion]:
        """Regions that a node is within."""
        for parts in POLICY.parts if time.monotonic() < self.deadline else ():
            if way.extent % parts and way.extent < POLICY.uneven_positions * parts:
                continue  # one part would be much larger than the others
            yield from filter(self._whole, grown(self.source, head, way, parts, maker, POLICY.kernel_bytes))

    def _then(self, region: FissionRegion) -> int:
        """Bytes that are alive at once while a region is computed in parts: about."""
        head = self.alive.at[region.nodes[0]]
        inside = {self.graph.nodes[i].outputs[0] for i in region.nodes}
        roots = {self.alive.root.get(n, n) for n in inside}
        outer = {n for i in region.nodes for n in self.graph.nodes[i].reads if n not in inside}
        outer = {self.alive.root.get(n, n) for n in outer} - roots
        spans = [s for n in outer | roots if (s := self.alive.spans.get(n)) is not None]
        base = self.alive.before[head] - sum(s.size for s in spans if s.start < head == s.end)
        base += sum(s.size for s in spans if s.name in outer and s.end <= head)
        kind = self.typing.types[region.output]
        own = (kind.nbytes or 0) if kind is not None else 0
        parts = own if region.way.axis is None else own * (region.parts - 1) // region.parts
        joined = own if region.way.axis is not None else 2 * own
        joined += 0 if region.output in self.source.results else own
        return base + max(region.inside + parts, joined)

    def _hopeless(self, region: FissionRegion) -> bool:
        """Whether it was refused, or less of it in fewer parts was not proved."""
        return region in self._refused or any(
            r.output == region.output and r.way.axis == region.way.axis and len(r.nodes) <= len(region.nodes)
            and r.parts <= region.parts for r in self._unproved
        )  # fmt: skip

    def _accept(self, region: FissionRegion) -> bool:
        """Cut the region, if it is worth it when done, and proved."""
        made = split(self.source, region)
        if made is not None:
            now = _Alive.of(made.graph, {**self.typing.types, **made.types})
            first = next(i for i, n in enumerate(now.nodes) if n.outputs[0] in made.types)
            last = next(i for i, n in enumerate(now.nodes) if region.output in n.outputs)
            better = max(now.bytes) <= self.peak and max(now.bytes[first : last + 1]) < POLICY.remaining * self.peak
            typing = infer(made.graph) if better else None
            if typing is not None and self._proved(region, made.graph, typing):
                self.graph, self.typing, self.alive = made.graph, typing, now
                self.source = FissionSearchGraph(made.graph, typing)
                self.regions.append(region)
                self.parts.update((region.output, *made.types))
                return True
            if typing is not None:
                self._unproved.append(region)
        self._refused.append(region)
        return False

    def _proved(self, region: FissionRegion, after: Graph, typing: InferredTypes) -> bool:
        """Whether the prover shows that the parts are the whole."""
        inside = {self.graph.nodes[i].outputs[0] for i in region.nodes}
        leaves = {n for i in region.nodes for n in self.graph.nodes[i].reads if n not in inside}
        left = _term(self.graph, self.typing, region.output, leaves)
        right = _term(after, typing, region.output, leaves)
        if left is None or right is None:
            return False
        names = {n: f"x{i}" for i, n in enumerate(variables(left, right))}
        forall: dict[str, TensorVariableType] = {}
        for name, short in names.items():
            kind = typing.types.get(name)
            letter = _LETTERS.get(kind.dtype, "f" if kind.dtype.is_float else "") if kind is not None else ""
            if kind is None or kind.shape is None or not letter:
                return False
            forall[short] = TensorVariableType(letter, kind.shape)
        sides = [_renamed(t, names) for t in (left, right)]
        key = f"{sides[0]} = {sides[1]} for {forall}"
        proofs = self.known.proofs
        if key not in proofs:
            rule = Rule("fission", forall, (), (sides[0],), (sides[1],))
            proofs[key] = isinstance(prove_joined(rule, time_limit=POLICY.proof_seconds), ProvedVerdict)
        return proofs[key]


_LETTERS = {DType.INT64: "i", DType.BOOL: "b"}  # how rules write an element type


def _term(graph: Graph, typing: InferredTypes, root: str, leaves: Set[str]) -> Term | None:
    """What a value is of these."""
    forms = {o: f for n, f in zip(graph.nodes, typing.nodes, strict=True) for o in n.outputs[:1]}
    made: dict[str, Term] = {n: VariableTerm(n) for n in leaves}
    stack = [root]
    while stack:
        name = stack[-1]
        if name in made:
            stack.pop()
            continue
        form = forms.get(name)
        if not isinstance(form, CanonicalNode):
            return None
        missing = [a for a in form.args if a is not None and a not in made]
        if missing:
            stack += missing
            continue
        args = tuple(None if a is None else made[a] for a in form.args)
        made[name] = OperatorTerm(form.operator.name, args, tuple(sorted(form.attributes.items())))
        stack.pop()
    return made[root]


def _renamed(term: Term, names: Mapping[str, str]) -> Term:
    made: dict[Term, Term] = {}
    for t in postorder(term):
        made[t] = VariableTerm(names[t.name]) if isinstance(t, VariableTerm) else remade(t, made)
    return made[term]
