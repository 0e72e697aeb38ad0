"""Connected parts of models as left sides, and the order in which they are looked at.

Parts that occur often and cost much come first. A part has one result, is
computed from values outside it, and nothing else reads what is inside: a rewrite of it takes its place. Parts that are
the same up to the names of their leaves are one *target*, as often as it occurs. Besides all parts of a few operators,
there is the widest part with each result in which every operator is affine in its data: such a part may be one product,
however long it is; and each operator by itself that sums without a weight, for the same reason: a mean over channels
takes a kernel for reductions three times as long as a convolution with the same result; each that does nothing but give
elements of its data, whose time is a matter of the axes that it is told; and each that sums products of two tensors, or
works along an axis of one, and may do so with matrices.

An :class:`SubgraphQueue` orders the parts of several models, and says how much a cheaper equal of each has to save.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import inf

from superopt.cost import CostModel
from superopt.cost.backend_capabilities import groups
from superopt.discovery.config import WEIGHTS
from superopt.discovery.data_movement_terms import along, contracts
from superopt.discovery.skeletons import OPERATORS
from superopt.ir.terms import OperatorTerm, Term, VariableTerm
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.operator_definition import FLOATS
from superopt.ops.operator_semantics import (
    ElementRead,
    IllTypedOperator,
    ScalarCall,
    ScalarConditional,
    ScalarExpression,
    ScalarReduction,
    TensorComprehension,
    parts,
    subexpressions,
)
from superopt.program.graph_program import GraphProgram

__all__ = ["SubgraphQueue", "QueuedSubgraph", "MinedSubgraph", "mined"]

_DATA = tuple(f"x{c}" for c in "abcdefghijklmnop")
_MOST_PARTS = 60  # with one result
_LEAST, _MOST = 2, 6  # operators in a part
_WIDEST = 16  # operators in an affine part


@dataclass(frozen=True)
class MinedSubgraph:
    """A part of a model.

    Attributes:
        term: with known sizes and attributes, over leaves of ``xa``, ``xb`` … and ``config.WEIGHTS``.
        kinds: static types of its leaves.
        us: what its operators cost where they are, fused with each other and with what is around them, once;
            ``dearest`` is the price of the one that costs most, 0 where there is one only.
        occurrences: positions of the steps that it is, each time it occurs.
        name: of a node where it ends, for people.
        affine: whether each of its operators is affine in its data, so that it may be one product.
    """

    term: Term
    kinds: Mapping[str, TensorType]
    us: float
    dearest: float
    occurrences: tuple[frozenset[int], ...]
    name: str
    affine: bool = False

    @property
    def weights(self) -> frozenset[str]:
        return frozenset(n for n in self.kinds if n in WEIGHTS)

    @property
    def text(self) -> str:
        """Equal for targets that are the same."""
        return f"{self.term} {[(n, str(t)) for n, t in self.kinds.items()]}"


def mined(program: GraphProgram, model: CostModel) -> list[MinedSubgraph]:
    """The targets of a program, by frequency times cost."""
    prices = _prices(program, model)
    straight = {p for p in prices if _is_affine(program, p)}
    targets: dict[str, MinedSubgraph] = {}
    for root in prices:
        wide = _widest(program, root, straight)
        single = (root in straight and _says_it_all(program, root)) or _is_for_matrices(program, root)
        alone = (frozenset({root}),) if single else ()
        for part in (*alone, *_parts(program, root, prices.keys()), *((wide,) if len(wide) > _MOST else ())):
            own = [prices[p] for p in part]
            target = _target(program, root, part, sum(own), max(own) if len(own) > 1 else 0.0)
            if target is not None:
                known_target = targets.get(target.text)
                occurrences = () if known_target is None else known_target.occurrences
                targets[target.text] = replace(
                    known_target or target, occurrences=(*occurrences, part), affine=part <= straight
                )
    return sorted(targets.values(), key=lambda t: (-len(t.occurrences) * t.us, t.text))


def _usable(program: GraphProgram, position: int) -> bool:
    """Whether a step has one result of real numbers, computed from such alone, of known sizes."""
    step = program.steps[position]
    names = [a for a in step.args if a is not None]
    types = [program.types.get(n) for n in (*names, *step.outputs)]
    return (
        step.op != "" and len(step.outputs) == 1 and bool(names)
        and all(t is not None and t.is_static and t.dtype in FLOATS for t in types)
        and len({t.dtype for t in types if t is not None}) == 1
    )  # fmt: skip


def _prices(program: GraphProgram, model: CostModel) -> dict[int, float]:
    """What each step that a part may have costs; where the runtime makes one kernel of several, the dearest alone."""
    prices = {p: _price(program, p, model) for p in program.running if _usable(program, p)}
    for group in groups(program.graph, model.backend.patterns, program.types):
        members = {program.maker[o] for node in group.nodes for o in node.outputs if o in program.maker}
        for position in sorted(members & prices.keys(), key=lambda p: prices[p])[:-1]:
            prices[position] = 0.0
    return prices


def _price(program: GraphProgram, position: int, model: CostModel) -> float:
    """What a step costs where it is: less than by itself where it becomes a part of the kernel before it."""
    step = program.steps[position]
    kinds = [None if a is None else program.types[a] for a in step.args]
    fixed = [a in program.constant for a in step.args]
    moving = [a for a in step.args if a is not None and a not in program.constant]
    maker = program.maker.get(moving[0]) if len(moving) == 1 and len(program.readers[moving[0]]) == 1 else None
    after = None if maker is None or moving[0] in program.pinned else program.steps[maker].op
    return model.application(
        step.op, dict(step.attributes), kinds, [program.types[step.outputs[0]]], fixed, after=after
    ).us  # fmt: skip


def _meaning(program: GraphProgram, position: int) -> TensorComprehension | None:
    """What a step's result is; ``None`` where that is not said."""
    step = program.steps[position]
    kinds = [None if a is None else program.types[a] for a in step.args]
    try:
        return REGISTRY[step.op].apply(kinds, dict(step.attributes))[0].outputs[0]
    except IllTypedOperator:
        return None


def _body(program: GraphProgram, position: int) -> ScalarExpression | None:
    """What an element of a step's result is; ``None`` where that is not said."""
    meaning = _meaning(program, position)
    return None if meaning is None else meaning.body


def _is_for_matrices(program: GraphProgram, position: int) -> bool:
    """Whether a step sums products of two tensors, and is none of the operators that equals are made of, or works along
    axes of one tensor: it may be one of matrices."""
    step = program.steps[position]
    if step.op in OPERATORS:
        return False
    data = [a for a in step.args if a is not None]
    if len(data) == 1 and along(OperatorTerm(step.op, (VariableTerm("x"),), tuple(step.attributes))):
        return True
    meaning = _meaning(program, position)
    return meaning is not None and contracts(meaning)


def _says_it_all(program: GraphProgram, position: int) -> bool:
    """Whether a step by itself may have an equal: it sums elements of its data or merely gives them, and has no
    weights."""
    body = _body(program, position)
    fixed = any(a in program.constant for a in program.steps[position].args)
    return not fixed and body is not None and (
        isinstance(body, ElementRead) or any(isinstance(s, ScalarReduction) for s in subexpressions(body))
    )  # fmt: skip


def _is_affine(program: GraphProgram, position: int) -> bool:
    """Whether a step's result is, element by element, a sum of its data times what is known of weights."""
    step, body = program.steps[position], _body(program, position)
    if body is None:
        return False
    degrees: dict[int, float] = {}
    for node in subexpressions(body):
        degrees[id(node)] = _degree(
            node, [degrees[id(p)] for p in parts(node)], [a in program.constant for a in step.args]
        )
    return degrees[id(body)] <= 1


def _degree(node: ScalarExpression, inside: Sequence[float], constant: Sequence[bool]) -> float:
    """In the data, of one expression whose own parts have these degrees; infinite where it is no polynomial."""
    match node:
        case ElementRead(operand):
            return inf if any(inside) else float(not constant[operand])
        case ScalarCall("add") | ScalarReduction("sum") | ScalarConditional():
            return max(inside)
        case ScalarCall("mul"):
            return sum(inside)
    return inf if any(inside) else 0.0


def _widest(program: GraphProgram, root: int, straight: Set[int]) -> frozenset[int]:
    """The affine steps that lead to one and to nothing else, the nearest ones where there are many."""
    part: dict[int, None] = {root: None} if root in straight else {}
    waiting = list(part)
    while waiting:
        for name in program.steps[waiting.pop(0)].args:
            maker = None if name is None else program.maker.get(name)
            if name is None or maker is None or maker not in straight or maker in part or len(part) == _WIDEST:
                continue
            inside = all(r in part for r in program.readers.get(name, ())) and name not in program.pinned
            if inside and name not in program.constant:
                part[maker] = None
                waiting = [*waiting, maker]
    return frozenset(part)


def _parts(program: GraphProgram, root: int, usable: Set[int]) -> Iterator[frozenset[int]]:
    """Connected sets of steps that end in one, grown by producers that only the set reads."""
    seen: set[frozenset[int]] = {frozenset({root})}
    waiting = [frozenset({root})]
    while waiting and len(seen) < _MOST_PARTS:
        part = waiting.pop(0)
        if len(part) >= _LEAST:
            yield part
        if len(part) == _MOST:
            continue
        for member in sorted(part):
            for name in program.steps[member].args:
                maker = None if name is None else program.maker.get(name)
                if name is None or maker is None or maker in part or maker not in usable:
                    continue
                inside = all(r in part for r in program.readers.get(name, ())) and name not in program.pinned
                grown = part | {maker}
                if inside and name not in program.constant and grown not in seen:
                    seen.add(grown)
                    waiting.append(grown)


def _target(program: GraphProgram, root: int, part: frozenset[int], us: float, dearest: float) -> MinedSubgraph | None:
    """The part as a term, its leaves numbered in order of first use."""
    terms: dict[str, Term] = {}
    kinds: dict[str, TensorType] = {}
    data, weights = iter(_DATA), iter(WEIGHTS)

    def value(name: str) -> Term:
        if name not in terms:
            own = next(weights if name in program.constant else data)
            terms[name], kinds[own] = VariableTerm(own), program.types[name]
        return terms[name]

    try:
        for position in sorted(part):
            step = program.steps[position]
            # a list, because a generator makes another error of what says that names have run out
            args = tuple([None if a is None else value(program.same.get(a, a)) for a in step.args])
            terms[step.outputs[0]] = OperatorTerm(step.op, args, tuple(step.attributes))
    except StopIteration:
        return None
    step = program.steps[root]
    return MinedSubgraph(terms[step.outputs[0]], kinds, us, dearest, (), step.name)


Source = tuple[str, bool]


@dataclass(frozen=True)
class QueuedSubgraph:
    """A part that waits to be looked at.

    Attributes:
        source: the model, and whether the part is of what the library's search left of it.
        part: with its places and prices.
        whole: what the model costs, in microseconds.
        reach: what equals of parts of it save, in microseconds at one place: an equal of the whole has to save more.
    """

    source: Source
    part: MinedSubgraph
    whole: float
    reach: float = 0.0

    @property
    def gain_share(self) -> float:
        """What there is to gain, as a share of the model: all operators but the dearest, less what is in reach."""
        return len(self.part.occurrences) * (self.part.us - self.part.dearest - self.reach) / self.whole

    @property
    def rank(self) -> tuple[object, ...]:
        """What may be one product first, as an equal of anything else has all but one or two of its operators; of these
        what there is to gain by operator, most first."""
        size = len(self.part.occurrences[0])
        return not self.part.affine, -self.gain_share / size, size, self.source, self.part.text


class SubgraphQueue:
    """Parts, the one from which there is most to gain first, as far as is known by then.

    Args:
        entries: all parts.
        least: what there has to be to gain, as a share of a model.
    """

    def __init__(self, entries: Sequence[QueuedSubgraph], least: float) -> None:
        self.least = least
        self.waiting = [e for e in entries if e.gain_share >= least]
        self.settled: dict[Source, list[tuple[float, frozenset[int]]]] = {}
        self.inside = 0  # parts of which nothing is left to gain beside what is known of their own parts

    def next(self) -> QueuedSubgraph | None:
        """The next part; ``None`` when none is left."""
        if not self.waiting:
            return None
        best = min(self.waiting, key=lambda e: e.rank)
        self.waiting.remove(best)
        return best

    def settle(self, entry: QueuedSubgraph, saving: float) -> None:
        """An equal of a part is known, which saves so much at each of its places."""
        known = self.settled.setdefault(entry.source, [])
        known.extend((saving, p) for p in entry.part.occurrences)
        left: list[QueuedSubgraph] = []
        for other in self.waiting:
            place = other.part.occurrences[0]
            if other.source == entry.source and any(p < place for p in entry.part.occurrences):
                other = replace(other, reach=_most_disjoint(known, place))
            if other.gain_share >= self.least:
                left.append(other)
        self.inside += len(self.waiting) - len(left)
        self.waiting = left


def _most_disjoint(settled: Sequence[tuple[float, frozenset[int]]], whole: frozenset[int]) -> float:
    """What equals of parts of a whole save together, the best ones first, each step rewritten at most once."""
    taken: set[int] = set()
    total = 0.0
    for saving, place in sorted(settled, key=lambda s: (-s[0], sorted(s[1]))):
        if saving > 0 and place <= whole and not place & taken:
            taken |= place
            total += saving
    return total
