"""A discrimination tree of patterns: patterns with a common prefix are matched in one walk from each root.

A pattern is a list of tests over *slots* (e-classes) and *registers* (sizes and attribute values). Both are numbered in
the order in which the tests bind them, so patterns that are equal up to renaming share a path of the tree (substitution
trees: Graf 1995; e-matching by compiled code: de Moura and Bjørner, CADE 2007). The compiler decides which occurrence
of a slot binds and which compares, so a walk needs no undo. The tests at one node of the tree that a type or an
operator's attributes decide are looked up in one table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from superopt.egraph.egraph import ABSENT, PROJECT, ClassType, EGraph, ENode, ENodeHead
from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType
from superopt.ops.operator_definition import FLOATS

__all__ = [
    "OperatorMatchStep",
    "RootMatchStep",
    "EGraphDelta",
    "OutputMatchStep",
    "Spec",
    "Step",
    "PatternTrie",
    "TypeMatchStep",
]

# What a value must be: ("=", a constant), ("r", number of a register), or ("t", (specs, ...)) of a tuple.
Spec = tuple[str, object]
Values = tuple[tuple[int, AttributeValue], ...]  # registers and values
P = TypeVar("P")
S = TypeVar("S")
NEVER = 1 << 30  # the level of a class in which nothing is new
_REMEMBERED = 4096  # types or heads that a table remembers


@dataclass(frozen=True)
class OperatorMatchStep:
    """The class in ``slot`` must hold ``op``.

    Attributes:
        args: of each argument: its slot (:data:`ABSENT`: none may be given), whether it is met for the first time, and
            the operator that its class must hold, or "".
        attributes: by name, sorted.
        element: register of the element type, which generators need not write; -1 where it has none.
        known: registers below this one are written before.
    """

    slot: int
    op: str
    args: tuple[tuple[int, bool, str], ...]
    attributes: tuple[tuple[str, Spec], ...]
    element: int
    known: int


@dataclass(frozen=True)
class OutputMatchStep:
    """The class in ``slot`` must be output ``index`` of an application, whose tuple class goes to ``target``."""

    slot: int
    index: int
    target: int
    fresh: bool


@dataclass(frozen=True)
class TypeMatchStep:
    """The class in ``slot`` must have this element class and these sizes. ``element``: register of class ``f``.

    Comes right after the application that the variable is an argument of, in the order of the arguments.
    """

    slot: int
    dtype: str
    sizes: tuple[Spec, ...]
    element: int
    known: int


@dataclass(frozen=True)
class RootMatchStep:
    """Begin a further root: candidates are the ancestors of a bound slot along ``path`` of operators."""

    slot: int
    op: str
    anchor: int
    path: tuple[str, ...]


Step = OperatorMatchStep | OutputMatchStep | TypeMatchStep | RootMatchStep
Asked = tuple[
    OperatorMatchStep, tuple[TypeMatchStep, ...]
]  # an application, and what the variables among its arguments must be


@dataclass(frozen=True)
class EGraphDelta:
    """What an e-graph gained since patterns were last looked for: e-nodes born since, and classes of which more is
    known."""

    since: int
    renewed: Container[int]

    def all_of(self, identity: int) -> bool:
        """Whether each e-node of a class counts as new."""
        return identity in self.renewed


@dataclass(eq=False)
class _Branch(Generic[P]):
    """Where an application leads, with the registers to compare and those to write."""

    place: _TrieNode[P]
    compare: Values
    write: Values


@dataclass(eq=False)
class _Shape(Generic[P]):
    """Applications of one operator to arguments alike. ``variables``: places of the arguments whose types are asked."""

    args: tuple[tuple[int, bool, str], ...]
    steps: dict[Asked, _TrieNode[P]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = [(place, *arg) for place, arg in enumerate(self.args, 1)]
        self.inside = tuple((place, op) for place, _, _, op in given if op)
        self.fresh = tuple((place, slot) for place, slot, fresh, _ in given if fresh and slot != ABSENT)
        self.known = tuple((place, slot) for place, slot, fresh, _ in given if not fresh and slot != ABSENT)
        self.absent = tuple(place for place, slot, _, _ in given if slot == ABSENT)
        self.variables = tuple(place for place, slot, fresh, op in given if fresh and not op and slot != ABSENT)
        self.length = len(self.args) + 1


@dataclass(eq=False)
class _Headed(Generic[P]):
    """The steps of a shape that the attributes of a head fit. ``table``: types of the variables → where they lead."""

    shape: _Shape[P]
    steps: list[tuple[Asked, _TrieNode[P], dict[int, AttributeValue]]]  # with the registers that the attributes say
    table: dict[object, tuple[_Branch[P], ...]] = field(default_factory=dict)

    def learn(self, kinds: object, types: Sequence[ClassType]) -> tuple[_Branch[P], ...]:
        if len(self.table) >= _REMEMBERED:
            self.table.clear()
        made: list[_Branch[P]] = []
        for (apply, typed), place, given in self.steps:
            values = dict(given)
            if all(_fits_type(step, kind, values) for step, kind in zip(typed, types, strict=True)):
                compare = tuple((r, v) for r, v in values.items() if r < apply.known)
                made.append(_Branch(place, compare, tuple((r, v) for r, v in values.items() if r >= apply.known)))
        found = self.table[kinds] = tuple(made)
        return found


@dataclass(eq=False)
class _SharedShape(Generic[P]):
    """Shapes under one head that ask the same of the classes of arguments; ``depth`` and ``more`` as of a place."""

    inside: tuple[tuple[int, str], ...]
    shapes: list[_Headed[P]] = field(default_factory=list)
    depth: int = 0
    more: bool = False


@dataclass(eq=False)
class _Shapes(Generic[P]):
    """Applications of one operator in one slot. ``table``: number of a head → what fits its attributes."""

    by_args: dict[tuple[tuple[int, bool, str], ...], _Shape[P]] = field(default_factory=dict)
    table: dict[int, tuple[_SharedShape[P], ...]] = field(default_factory=dict)

    def learn(self, head: ENodeHead) -> tuple[_SharedShape[P], ...]:
        if len(self.table) >= _REMEMBERED:
            self.table.clear()
        given = dict(head.attributes)
        alike: dict[tuple[tuple[int, str], ...], _SharedShape[P]] = {}
        for shape in self.by_args.values():
            steps = [
                (step, place, values) for step, place in shape.steps.items()
                if (values := _attribute_values(step[0], given)) is not None
            ]  # fmt: skip
            if steps:
                found = alike.setdefault(shape.inside, _SharedShape(shape.inside))
                found.shapes.append(_Headed(shape, steps))
                found.depth = max(found.depth, *(place.depth for _, place, _ in steps))
                found.more |= any(place.more for _, place, _ in steps)
        self.table[head.number] = made = tuple(alike.values())
        return made


@dataclass(eq=False)
class _TrieNode(Generic[P]):
    """A point of the tree: the patterns that end here, and the next steps.

    Attributes:
        depth: of the deepest pattern below.
        loops: applications that read their own class, which an occurrence of a pattern below may go through, at most.
        more: some pattern below has further roots.
        ends: patterns with their own depths and loops.
    """

    depth: int = 0
    loops: int = 0
    more: bool = False
    ends: list[tuple[P, int, int]] = field(default_factory=list)
    shapes: dict[tuple[int, str], _Shapes[P]] = field(default_factory=dict)
    selects: dict[OutputMatchStep, _TrieNode[P]] = field(default_factory=dict)
    further: dict[RootMatchStep, _TrieNode[P]] = field(default_factory=dict)
    goes_on: bool = False  # there are next steps

    def after(self, step: OperatorMatchStep, typed: tuple[TypeMatchStep, ...]) -> _TrieNode[P]:
        """The place after an application to variables of these types, made if it is new."""
        shapes = self.shapes.get((step.slot, step.op))
        if shapes is None:
            shapes = self.shapes[step.slot, step.op] = _Shapes()
        shapes.table.clear()  # it did not know of this pattern
        shape = shapes.by_args.get(step.args)
        if shape is None:
            shape = shapes.by_args[step.args] = _Shape(step.args)
        return _below(self, shape.steps, (step, typed))

    def next(self, step: OutputMatchStep | RootMatchStep) -> _TrieNode[P]:
        """The place after another step, made if it is new."""
        return (
            _below(self, self.selects, step) if isinstance(step, OutputMatchStep) else _below(self, self.further, step)
        )


def _below(place: _TrieNode[P], known: dict[S, _TrieNode[P]], step: S) -> _TrieNode[P]:
    place.goes_on = True
    found = known.get(step)
    if found is None:
        found = known[step] = _TrieNode()
    return found


class PatternTrie(Generic[P]):
    """Patterns by their steps; the first root is slot 0."""

    def __init__(
        self, patterns: Iterable[tuple[P, Sequence[Step], int]], loops: Callable[[P], int] | None = None
    ) -> None:
        """Args:
        patterns: each with its steps and its depth in levels of operators.
        loops: applications that read their own class, which an occurrence of a pattern may go through; ``None``: any
            number.
        """
        self.loops = loops
        self.roots: dict[str, _TrieNode[P]] = {}
        self.met: set[str] = set()  # operators that graphs had
        self.waiting: dict[frozenset[str], list[tuple[P, Sequence[Step], int]]] = {}  # till a graph has the operators
        self.slots = self.registers = 1
        self.depth = 0
        for pattern, steps, depth in patterns:
            needed = frozenset(s.op for s in steps if isinstance(s, OperatorMatchStep))
            self.waiting.setdefault(needed, []).append((pattern, steps, depth))
            self.depth = max(self.depth, depth)

    def _grow(self, graph: EGraph) -> None:
        """Write the patterns into the tree whose operators graphs have had by now."""
        if graph.by_op.keys() <= self.met:
            return
        self.met |= graph.by_op.keys()
        for needed in [w for w in self.waiting if w <= self.met]:
            for pattern, steps, depth in self.waiting.pop(needed):
                self._write(pattern, steps, depth)

    def _write(self, pattern: P, steps: Sequence[Step], depth: int) -> None:
        first = steps[0]
        place = self.roots.setdefault(first.op if isinstance(first, OperatorMatchStep) else PROJECT, _TrieNode())
        loops = len(steps) if self.loops is None else self.loops(pattern)
        place.depth, place.loops = max(place.depth, depth), max(place.loops, loops)
        position, last = 0, max((i for i, s in enumerate(steps) if isinstance(s, RootMatchStep)), default=-1)
        place.more |= last > 0
        while position < len(steps):
            step = steps[position]
            self._make_room(step)
            position += 1
            if isinstance(step, OperatorMatchStep):
                typed = tuple(_typed_at(steps, position))
                for kind in typed:
                    self._make_room(kind)
                position += len(typed)
                place = place.after(step, typed)
            else:
                assert not isinstance(step, TypeMatchStep), (
                    "types are asked of an application's variables, right after it"
                )
                place = place.next(step)
            place.more |= position <= last
            place.depth, place.loops = max(place.depth, depth), max(place.loops, loops)
        place.ends.append((pattern, depth, loops))

    def _make_room(self, step: Step) -> None:
        numbers, registers = [step.slot], [0]
        if isinstance(step, OperatorMatchStep):
            numbers += [a for a, _, _ in step.args]
            registers += [step.element, *(r for _, s in step.attributes for r in _registers(s))]
        elif isinstance(step, TypeMatchStep):
            registers += [step.element, *(r for s in step.sizes for r in _registers(s))]
        elif isinstance(step, OutputMatchStep):
            numbers.append(step.target)
        self.slots = max(self.slots, 1 + max(numbers))
        self.registers = max(self.registers, 1 + max(registers))

    def walk(
        self, graph: EGraph, found: Callable[[P, list[int], list[AttributeValue]], None],
        levels: Mapping[int, int] | None = None, roots: Container[int] | None = None,
        apart: Callable[[int, int], bool] | None = None, news: EGraphDelta | None = None, most: int = sys.maxsize,
    ) -> int:  # fmt: skip
        """Call ``found`` with each occurrence of each pattern: the slots and registers, valid during the call.

        Args:
            graph: rebuilt, and not changed meanwhile.
            found: what to do.
            levels: class → how many levels of operators a pattern needs at least to be matched there; ``None``: every
                pattern everywhere. In classes that are missing no pattern is new: they are left out where no other
                root of the pattern is new, either.
            roots: classes that roots may be; ``None``: any.
            apart: whether two classes may be roots of one occurrence; ``None``: any may.
            news: which e-nodes of the classes in ``levels`` are new; ``None``: any may be.
            most: steps before it ends; a step is an e-node that is held against patterns.

        Returns:
            How many of these steps are left; below 0, it ended before it was through.
        """
        self._grow(graph)
        run = _Walk(graph, found, self.slots, self.registers, levels, roots, apart, most)
        with suppress(_OutOfStepsError):
            self._start(run, news)
        return run.left

    def _start(self, run: _Walk[P], news: EGraphDelta | None) -> None:
        graph, levels, roots = run.graph, run.levels, run.roots
        for op, place in sorted(self.roots.items()):
            for identity in graph.having(op):
                if graph.classes[identity].constant or (roots is not None and identity not in roots):
                    continue  # what is constant is computed once, whatever its form
                level = 0 if levels is None else levels.get(identity, NEVER)
                if level <= place.depth or place.more:
                    run.slots[0] = identity
                    run.chosen = [identity]
                    run.level = level
                    if levels is None or news is None or news.all_of(identity):
                        run.at(place)
                    else:
                        run.at_old(place, levels, news)


class _OutOfStepsError(Exception):
    """A walk has taken as many steps as it may."""


class _Walk(Generic[P]):
    """One walk over a graph."""

    def __init__(
        self, graph: EGraph, found: Callable[[P, list[int], list[AttributeValue]], None], slots: int, registers: int,
        levels: Mapping[int, int] | None, roots: Container[int] | None, apart: Callable[[int, int], bool] | None,
        left: int,
    ) -> None:  # fmt: skip
        self.graph, self.found, self.levels, self.roots, self.apart = graph, found, levels, roots, apart
        self.left = left  # steps
        self.chosen: list[int] = []  # the roots on the way here
        self.level = 0  # of the root at hand that needs least, as far as roots are known
        self.loops = 0  # applications on the way here that read their own class
        self.slots = [ABSENT] * slots
        self.registers: list[AttributeValue] = [0] * registers
        self.ancestors: dict[tuple[int, tuple[str, ...]], list[int]] = {}  # of a class along a path

    def at(self, place: _TrieNode[P]) -> None:
        """Match all that comes after a place; recursion follows the patterns' sizes, not the graph's."""
        graph = self.graph
        for (slot, op), shapes in place.shapes.items():
            identity = self.slots[slot]
            index = graph.classes[identity].by_op
            nodes = (graph.ops_of(identity) if index is None else index).get(op)
            if nodes is None:
                continue
            self._applied(nodes, shapes)
            if place.loops > self.loops and (loops := graph.classes[identity].loops) and op in loops:
                self.loops += 1
                self._applied(loops[op], shapes)
                self.loops -= 1
        if place.selects:
            self._selected(place)
        if place.further:
            self._further(place)

    def at_old(self, place: _TrieNode[P], levels: Mapping[int, int], news: EGraphDelta) -> None:
        """:meth:`at` for a first root of which only some e-nodes are new: an old one needs news from what it reads."""
        identity, level = self.slots[0], self.level
        group = self.graph.classes[identity]
        index = self.graph.ops_of(identity) if group.by_op is None else group.by_op
        for (_, op), shapes in place.shapes.items():
            for nodes, looped in ((index.get(op, ()), 0), (group.loops.get(op, ()), 1)):
                if looped > place.loops:
                    continue
                for node in nodes:
                    if group.nodes[node] >= news.since:
                        self.level = 0
                    else:
                        self.level = 1 + min([levels.get(a, NEVER) for a in node[1:] if a != ABSENT], default=NEVER)
                    if self.level <= place.depth or place.more:
                        self.loops = looped
                        self._applied([node], shapes)
        self.level, self.loops = level, 0
        if place.selects:
            self._selected(place)
        if place.further:
            self._further(place)

    def _applied(self, nodes: list[ENode], shapes: _Shapes[P]) -> None:
        heads, table = self.graph.heads, shapes.table
        for node in nodes:
            head = heads[node[0]]
            found = table.get(head.number)
            if found is None:
                found = shapes.learn(head)
            if found:
                self._bound(node, found)
                if head.commutative and len(node) == 3 and node[1] != node[2]:
                    self._bound((node[0], node[2], node[1]), found)

    def _bound(self, node: ENode, found: tuple[_SharedShape[P], ...]) -> None:
        """Put the arguments of an e-node into slots, for each shape that they have, and go on: one step."""
        self.left -= 1
        if self.left < 0:
            raise _OutOfStepsError
        slots, classes, count, level = self.slots, self.graph.classes, len(node), self.level
        for alike in found:
            if alike.depth < level and not alike.more:
                continue
            for place, op in alike.inside:
                if place >= count or (arg := node[place]) == ABSENT:
                    break
                index = classes[arg].by_op
                if op not in (self.graph.ops_of(arg) if index is None else index):
                    break
            else:
                for headed in alike.shapes:
                    shape = headed.shape
                    if count < shape.length:
                        continue  # patterns end with an argument that is given
                    for place, slot in shape.fresh:
                        arg = slots[slot] = node[place]
                        if arg == ABSENT:
                            break
                    else:
                        for place, slot in shape.known:
                            if slots[slot] != node[place]:
                                break
                        else:
                            if (shape.absent or count > shape.length) and not _is_absent(node, shape):
                                continue
                            self._typed(node, headed)

    def _typed(self, node: ENode, headed: _Headed[P]) -> None:
        """Go where the types of an application's variables lead."""
        classes, variables, registers = self.graph.classes, headed.shape.variables, self.registers
        level, loops = self.level, self.loops
        kinds: object = tuple([classes[node[place]].kind for place in variables]) if variables else ()
        fits = headed.table.get(kinds)
        if fits is None:
            fits = headed.learn(kinds, [classes[node[place]].type for place in variables])
        for fit in fits:
            place = fit.place
            if (place.depth < level and not place.more) or place.loops < loops:
                continue
            for register, value in fit.compare:
                if registers[register] != value:
                    break
            else:
                for register, value in fit.write:
                    registers[register] = value
                for pattern, depth, most in place.ends:
                    if depth >= level and most >= loops:
                        self.found(pattern, self.slots, registers)
                if place.goes_on:
                    self.at(place)

    def _selected(self, place: _TrieNode[P]) -> None:
        for step, below in place.selects.items():
            for node in self.graph.with_op(self.slots[step.slot], PROJECT):
                if self.graph.heads[node[0]].index != step.index:
                    continue
                if step.fresh:
                    self.slots[step.target] = node[1]
                elif self.slots[step.target] != node[1]:
                    continue
                self._reached(below)

    def _further(self, place: _TrieNode[P]) -> None:
        level = self.level
        for step, below in place.further.items():
            known = step.anchor != ABSENT
            for identity in self._ancestors(step) if known else self.graph.having(step.op):
                if (self.roots is None or identity in self.roots) and self._may_join(identity):
                    self.level = level if self.levels is None else min(level, self.levels.get(identity, NEVER))
                    if self.level <= below.depth or below.more:
                        self.slots[step.slot] = identity
                        self.chosen.append(identity)
                        self._reached(below)
                        self.chosen.pop()
            self.level = level

    def _may_join(self, identity: int) -> bool:
        return self.apart is None or all(self.apart(identity, other) for other in self.chosen)

    def _reached(self, place: _TrieNode[P]) -> None:
        for pattern, depth, most in place.ends:
            if depth >= self.level and most >= self.loops:
                self.found(pattern, self.slots, self.registers)
        self.at(place)

    def _ancestors(self, step: RootMatchStep) -> list[int]:
        key = self.slots[step.anchor], step.path
        found = self.ancestors.get(key)
        if found is None:
            graph, found = self.graph, [key[0]]
            for op in step.path:
                above: dict[int, None] = {}
                for member in found:
                    for node, parent in graph.classes[member].parents:
                        if graph.heads[node[0]].op == op:
                            above[graph.find(parent)] = None
                found = list(above)
            self.ancestors[key] = found
        return found


def _is_absent(node: ENode, shape: _Shape[P]) -> bool:
    """Whether the e-node has no arguments where the pattern has none."""
    return all(node[i] == ABSENT for i in shape.absent) and all(a == ABSENT for a in node[shape.length :])


def _registers(spec: Spec) -> list[int]:
    tag, value = spec
    if tag == "t":
        assert isinstance(value, tuple)
        return [r for s in value for r in _registers(s)]
    return [value] if tag == "r" and isinstance(value, int) else []


def _typed_at(steps: Sequence[Step], position: int) -> Iterator[TypeMatchStep]:
    """The steps from a position on that ask for types."""
    while position < len(steps) and isinstance(step := steps[position], TypeMatchStep):
        yield step
        position += 1


def _fits_type(step: TypeMatchStep, kind: ClassType, values: dict[int, AttributeValue]) -> bool:
    """Whether a type fits, given what registers must be by now; adds what they must be by the type."""
    if isinstance(kind, tuple) or kind.shape is None:
        return False
    if len(kind.shape) != len(step.sizes) or not _in_class(step.dtype, kind.dtype):
        return False
    if step.element >= 0 and values.setdefault(step.element, str(kind.dtype)) != str(kind.dtype):
        return False
    return all(given != 0 and _fits(spec, given, values) for spec, given in zip(step.sizes, kind.shape, strict=True))


def _in_class(name: str, dtype: DType) -> bool:
    return dtype in FLOATS if name == "f" else dtype == {"i": DType.INT64, "b": DType.BOOL}.get(name, name)


def _attribute_values(step: OperatorMatchStep, given: Mapping[str, AttributeValue]) -> dict[int, AttributeValue] | None:
    """What the registers must be for attributes to fit, or ``None``."""
    values: dict[int, AttributeValue] = {}
    wanted = dict(step.attributes)
    if not wanted.keys() <= given.keys():
        return None
    for name, value in given.items():
        if name in wanted:
            if not _fits(wanted[name], value, values):
                return None
        elif name == "dtype" and isinstance(value, str) and step.element >= 0:
            if values.setdefault(step.element, value) != value:
                return None
        else:
            return None
    return values


def _fits(spec: Spec, given: AttributeValue, values: dict[int, AttributeValue]) -> bool:
    tag, wanted = spec
    if tag == "t":
        assert isinstance(wanted, tuple)
        return (
            isinstance(given, tuple)
            and len(given) == len(wanted)
            and all(_fits(s, g, values) for s, g in zip(wanted, given, strict=True))
        )
    if tag == "r":
        assert isinstance(wanted, int)
        return not isinstance(given, str | tuple) and values.setdefault(wanted, given) == given
    return wanted == given
