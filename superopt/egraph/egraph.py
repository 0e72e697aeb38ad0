"""An e-graph of typed operator applications.

An *e-node* is an operator with attributes (its head, interned) over e-classes. An *e-class* holds equal e-nodes, has
one type, and records whether it depends on weights alone. A union of classes of different types is refused. The design
follows egg (Willsey et al., "egg: Fast and Extensible Equality Saturation", POPL 2021): hash-consing, deferred
rebuilding, and a union-find forest that explains each equality.

An operator with several outputs is an e-node of a *tuple class*; projections ``[i]`` read its outputs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count

from superopt.ir.size_polynomial import SizePolynomial
from superopt.ir.terms import Attributes, is_open
from superopt.ir.types import TensorType
from superopt.ops.operator_definition import Operator
from superopt.ops.operator_semantics import IllTypedOperator, IndexCondition
from superopt.program.value_analysis import ANYTHING, ValueFacts, merged, result_facts

__all__ = [
    "ABSENT",
    "LEAF",
    "PROJECT",
    "ClassType",
    "EClass",
    "EGraph",
    "ENode",
    "ENodeHead",
    "TypeClashError",
    "is_multi",
]

ABSENT = -1  # an optional argument that is not given
PROJECT = "#project"
LEAF = "#leaf"

ENode = tuple[int, ...]  # (head, argument classes ...)
ClassType = TensorType | tuple[TensorType, ...]


class TypeClashError(Exception):
    """Two classes of different types were to be made equal: the rule that asked for it is wrong here."""


@dataclass(frozen=True)
class ENodeHead:
    """An operator with its attributes; ``operator`` is ``None`` for leaves and projections.

    Attributes:
        number: the same in every e-graph for the same head, never that of another.
        index: which output a projection selects, or which leaf this is; -1 for applications.
        commutative: whether two operands may change places.
    """

    op: str
    attributes: Attributes
    operator: Operator | None
    number: int = -1
    index: int = -1
    commutative: bool = False

    @cached_property
    def open(self) -> bool:
        """Whether an attribute is a size that is known when the model runs, not before."""
        return any(is_open(value) for _, value in self.attributes)


@dataclass(eq=False)
class EClass:
    """Equal e-nodes.

    Attributes:
        constant: some e-node of the class depends on weights alone, and can be evaluated ahead: no error that
            evaluation in float64 makes goes through a jump.
        exact: some such e-node has no rounding error at all.
        kind: number of the type.
        facts: bounds of the elements, which decide the conditions of verdicts in floating point.
        detours: how many rewrites in a row that add work lead from the input to here, at least.
        original: some value of the input is here.
        partial: some e-node may stand for the input's value that is here, and that value not for it.
    """

    id: int
    type: ClassType
    constant: bool
    kind: int
    detours: int = 0
    exact: bool = False
    facts: ValueFacts = ANYTHING
    nodes: dict[ENode, int] = field(default_factory=dict)  # e-node → the id under which it was born
    parents: list[tuple[ENode, int]] = field(default_factory=list)
    by_op: dict[str, list[ENode]] | None = None
    loops: dict[str, list[ENode]] = field(default_factory=dict)  # e-nodes that read this class; as old as by_op
    original: bool = False
    partial: bool = False

    @property
    def condition_state(self) -> tuple[bool, bool, int, ValueFacts]:
        """What conditions of rewrites depend on: matches are checked again where it changes."""
        return self.constant, self.exact, self.detours, self.facts


def is_multi(operator: Operator) -> bool:
    """Whether an application is a tuple from which projections select."""
    return len(operator.outputs) > 1 or operator.outputs[-1].endswith("*")


_MOST_NUMBERS = 100_000
_numbers: dict[Hashable, int] = {}
_next_number = count()


def _number(key: Hashable) -> int:
    """A number for a value, the same for equal values; after very many the table begins anew, the numbers do not."""
    found = _numbers.get(key)
    if found is None:
        if len(_numbers) >= _MOST_NUMBERS:
            _numbers.clear()
        found = _numbers.setdefault(key, next(_next_number))
    return found


class EGraph:
    """See the module. ``operators`` maps names to records; ``assumed`` are obligations that the input model states."""

    def __init__(self, operators: Mapping[str, Operator], assumed: frozenset[IndexCondition] = frozenset()) -> None:
        self.operators = operators
        self.assumed = assumed
        self.heads: list[ENodeHead] = []
        self.classes: dict[int, EClass] = {}
        self.by_op: dict[str, dict[int, None]] = {}  # operator → classes that held such an e-node (may be stale)
        self.ranges: dict[int, tuple[int, int]] = {}  # leaf → least and greatest element of integers
        self.input_nodes: dict[
            int, tuple[int, int]
        ] = {}  # value of the input → its depth, and a bit for each it depends on
        self.cause = ""  # the rule that e-nodes are now made by
        self.detours = 0  # of the e-nodes that are now made
        self.made_by: list[str] = []  # by birth id
        self.touched: set[int] = set()  # classes that gained e-nodes in this round
        self.renewed: set[int] = set()  # classes of before this round of which a union told more
        self.began = 0  # births before this round
        self.version = 0  # counts unions and births: unchanged means saturated
        self._typed: dict[tuple[int, ...], tuple[ClassType, int] | str] = {}  # by head and types of arguments
        self._places: tuple[int, dict[int, tuple[int, int]]] = (-1, {})
        self._head_ids: dict[tuple[str, Attributes], int] = {}
        self._parent: list[int] = []
        self._table: dict[ENode, int] = {}
        self._pending: list[int] = []
        self._dirty: set[int] = set()
        self._edges: list[list[tuple[int, str]]] = []  # union forest, by birth id
        self._born: list[ENode] = []

    # -- looking things up ---------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of e-nodes."""
        return len(self._table)

    def begin_round(self) -> None:
        """What is new is new since now."""
        self.touched, self.renewed, self.began = set(), set(), len(self._parent)

    def find(self, identity: int) -> int:
        """The class that an id now belongs to."""
        parent = self._parent
        root = identity
        while parent[root] != root:
            root = parent[root]
        while parent[identity] != root:
            parent[identity], identity = root, parent[identity]
        return root

    def head(self, op: str, attributes: Attributes = ()) -> int:
        """The number of a head, interned.

        Raises:
            KeyError: there is no such operator.
        """
        key = (op, attributes)
        found = self._head_ids.get(key)
        if found is None:
            operator = None if op in (PROJECT, LEAF) else self.operators[op]
            found = self._head_ids[key] = len(self.heads)
            value = attributes[0][1] if operator is None and attributes else -1
            self.heads.append(ENodeHead(
                op, attributes, operator, _number(key), value if isinstance(value, int) else -1,
                operator is not None and operator.commutative,
            ))  # fmt: skip
        return found

    def type(self, identity: int) -> ClassType:
        return self.classes[self.find(identity)].type

    def argument_types(self, node: ENode) -> list[TensorType | None]:
        """The types of an e-node's arguments.

        Raises:
            IllTypedOperator: an argument is a tuple of outputs.
        """
        types: list[TensorType | None] = []
        for arg in node[1:]:
            kind = None if arg == ABSENT else self.type(arg)
            if isinstance(kind, tuple):
                raise IllTypedOperator("an operator is applied to a tuple of outputs")
            types.append(kind)
        return types

    def constant(self, identity: int) -> bool:
        """Whether the value is known from weights alone (an absent argument is)."""
        return identity == ABSENT or self.classes[self.find(identity)].constant

    def with_op(self, identity: int, op: str) -> list[ENode]:
        """The e-nodes of a class that apply an operator to other classes."""
        found = self.classes[identity].by_op
        return (self.ops_of(identity) if found is None else found).get(op, [])

    def ops_of(self, identity: int) -> Mapping[str, list[ENode]]:
        """The e-nodes of a class by the operator that they apply, without those that read the class itself.

        What reads itself is in no program: it says that an operator changes nothing here (``x * 1``, ``Relu(x)`` of an
        ``x`` that is a ``Relu``). These are in :attr:`EClass.loops`; an operator of which there are only such has an
        empty list here.
        """
        group = self.classes[identity]
        if group.by_op is None:
            index: dict[str, list[ENode]] = {}
            loops: dict[str, list[ENode]] = {}
            for node in group.nodes:
                op = self.heads[node[0]].op
                same = index.setdefault(op, [])
                if identity in node[1:]:
                    loops.setdefault(op, []).append(node)
                else:
                    same.append(node)
            group.by_op, group.loops = index, loops
        return group.by_op

    def having(self, op: str) -> list[int]:
        """The classes that hold an application of an operator, oldest first."""
        known = self.by_op.get(op)
        if known is None:
            return []
        fresh = dict.fromkeys(self.find(c) for c in known)
        self.by_op[op] = fresh
        return list(fresh)

    def input_classes(self) -> Mapping[int, tuple[int, int]]:
        """:attr:`input_nodes` by their current classes."""
        if self._places[0] != self.version:
            self._places = self.version, {self.find(c): known for c, known in self.input_nodes.items()}
        return self._places[1]

    # -- growing -------------------------------------------------------------------------------------------------

    def leaf(
        self, index: int, kind: TensorType, constant: bool, known: ValueFacts = ANYTHING, *, exact: bool = True
    ) -> int:
        """The class of leaf number ``index``: a value from outside, of which some things are known; if constant, its
        elements may be ``exact``."""
        node = (self.head(LEAF, (("index", index),)),)
        found = self._table.get(node)
        return (
            self._insert(node, kind, (constant, constant and exact), _number(kind), known)
            if found is None
            else self.find(found)
        )

    def add(self, op: str, attributes: Attributes, args: tuple[int, ...]) -> int:
        """The class of an application, made if it is new. A tuple class for operators with several outputs.

        Raises:
            IllTypedOperator: the operator does not accept the arguments, or only if the model's sizes are lucky.
        """
        node = self.canonical((self.head(op, attributes), *args))
        found = self._table.get(node)
        if found is not None:
            return self.find(found)
        classes = self.classes
        key = (self.heads[node[0]].number, *[a if a == ABSENT else classes[a].kind for a in node[1:]])
        typed = self._typed.get(key)
        if typed is None:
            typed = self._typed[key] = self._result(op, attributes, node)
        if isinstance(typed, str):
            raise IllTypedOperator(typed)
        kind, number = typed
        evaluable = self.evaluable(node, kind)
        return self._insert(node, kind, evaluable, number, self._facts_of(node, evaluable[0]))

    def _facts_of(self, node: ENode, constant: bool) -> ValueFacts:
        """Facts of an application's result, from those of its arguments."""
        head, args = self.heads[node[0]], [None if a == ABSENT else self.classes[a] for a in node[1:]]
        types = [None if a is None or isinstance(a.type, tuple) else a.type for a in args]
        uniform = [None if a is None else self._uniform(a) for a in args]
        return result_facts(
            head.op, dict(head.attributes), [None if a is None else a.facts for a in args], types, constant, uniform
        )

    def _uniform(self, group: EClass) -> float | None:
        """The one value of all elements of a class, where it is a generated constant."""
        if not group.constant:
            return None
        for node in self.with_op(group.id, "ConstantOfShape"):
            value = dict(self.heads[node[0]].attributes).get("value")
            if isinstance(value, int | float):
                return float(value)
        return None

    def evaluable(self, node: ENode, kind: ClassType) -> tuple[bool, bool]:
        """Whether an e-node can be evaluated from weights alone, and whether that makes no rounding error.

        What jumps is only evaluated of exact operands, and a cast that rounds never: the runtime rounds where we do
        not. Args: the e-node over classes of now; the type of its class.
        """
        exact = True
        for arg in node[1:]:
            if arg != ABSENT:
                group = self.classes[self.find(arg)]
                if not group.constant:
                    return False, False
                exact = exact and group.exact
        head = self.heads[node[0]]
        if head.op == LEAF or head.open or not _static(kind):
            return False, False
        if head.operator is None:
            return True, exact
        known = head.operator.rounding(self.argument_types(node), dict(head.attributes))
        if known.narrows or (known.jumps and not exact):
            return False, False
        return True, exact and known.exact

    def _result(self, op: str, attributes: Attributes, node: ENode) -> tuple[ClassType, int] | str:
        """The type of an application, and its number; or why there is none."""
        operator = self.operators[op]
        try:
            meaning, results = operator.apply(self.argument_types(node), dict(attributes))
        except IllTypedOperator as error:
            return str(error)
        for obligation in meaning.obligations:
            if obligation not in self.assumed and not _surely(obligation):
                return f"{op} needs {obligation}, which is not known"
        kind = results if is_multi(operator) else results[0]
        return kind, _number(kind)

    def project(self, tuple_class: int, index: int) -> int:
        """The class of output ``index`` of a tuple class.

        Raises:
            IllTypedOperator: there is no such output.
        """
        root = self.find(tuple_class)
        node = (self.head(PROJECT, (("index", index),)), root)
        found = self._table.get(node)
        if found is not None:
            return self.find(found)
        kind = self.classes[root].type
        if not isinstance(kind, tuple) or not 0 <= index < len(kind):
            raise IllTypedOperator(f"there is no output {index}")
        evaluable, known = self.evaluable(node, kind[index]), self.classes[root].facts
        return self._insert(node, kind[index], evaluable, _number(kind[index]), known)

    def canonical(self, node: ENode) -> ENode:
        """The e-node over current classes; commutative operands sorted."""
        parent = self._parent
        for arg in node[1:]:
            if arg != ABSENT and parent[arg] != arg:
                node = (node[0], *[a if a == ABSENT else self.find(a) for a in node[1:]])
                break
        if len(node) == 3 and node[1] > node[2] and self.heads[node[0]].commutative:
            node = (node[0], node[2], node[1])
        return node

    def _insert(
        self, node: ENode, kind: ClassType, evaluable: tuple[bool, bool], number: int, known: ValueFacts = ANYTHING
    ) -> int:
        identity = len(self._parent)
        self._parent.append(identity)
        self._edges.append([])
        self._born.append(node)
        self.made_by.append(self.cause)
        constant, exact = evaluable
        self.classes[identity] = EClass(identity, kind, constant, number, self.detours, exact, known, {node: identity})
        self._table[node] = identity
        for arg in set(node[1:]) if len(node) > 2 else node[1:]:
            if arg != ABSENT:
                self.classes[arg].parents.append((node, identity))
        self.by_op.setdefault(self.heads[node[0]].op, {})[identity] = None
        self.touched.add(identity)
        self.version += 1
        return identity

    def may_meet(self, a: int, b: int, operands: Iterable[int], turns: Callable[[], bool]) -> bool:
        """Whether a move from ``a`` to ``b`` may make them equal where a direction is not as good in floating point.

        All of a class may stand for each value of the input in it. So where a value of the input is among what a move
        makes, and what the move takes away may not stand for it, the two stay apart; and where some of either may not
        stand for all of it already. What a move takes away is never taken for its own operand, which it reads.

        Args:
            a: what the move takes away.
            b: what it makes.
            operands: what both are made of.
            turns: whether the opposite move is as good.
        """
        first, second = self.classes[self.find(a)], self.classes[self.find(b)]
        if first is second:
            return True
        if second.original and not second.constant and second.id not in {self.find(o) for o in operands}:
            if (first.original and (first.partial or second.partial)) or not turns():
                return False
        elif not (second.original or first.partial or turns()):
            first.partial = first.original
        return True

    def union(self, a: int, b: int, why: str) -> bool:
        """Make two classes equal because of ``why`` (a rule id); :meth:`rebuild` must follow. False if they were.

        Raises:
            TypeClashError: their types differ.
        """
        first, second = self.find(a), self.find(b)
        if first == second:
            return False
        keep, drop = self.classes[first], self.classes[second]
        if keep.type != drop.type:
            raise TypeClashError(f"{keep.type} is not {drop.type}")
        if len(keep.parents) + len(keep.nodes) < len(drop.parents) + len(drop.nodes):
            keep, drop = drop, keep
        self._edges[a].append((b, why))
        self._edges[b].append((a, why))
        self._parent[drop.id] = keep.id
        for node, birth in drop.nodes.items():
            keep.nodes.setdefault(node, birth)
        newly = (keep.constant, keep.exact) != (drop.constant, drop.exact)
        states = keep.condition_state, drop.condition_state
        keep.constant, keep.exact = keep.constant or drop.constant, keep.exact or drop.exact
        keep.detours = min(keep.detours, drop.detours)
        keep.original, keep.partial = keep.original or drop.original, keep.partial or drop.partial
        was_rounded = keep.facts.rounded or drop.facts.rounded
        keep.facts = merged(keep.facts, drop.facts)
        if any(
            side.id < self.began and before != keep.condition_state
            for side, before in zip((keep, drop), states, strict=True)
        ):
            self.renewed.add(keep.id)
        keep.parents.extend(drop.parents)
        keep.by_op = None
        del self.classes[drop.id]
        if newly:
            self._spread(keep)
        if was_rounded and not keep.facts.rounded:
            self._set_exact(keep)
        self._pending.append(keep.id)
        self._dirty.add(keep.id)
        self.touched.add(keep.id)
        self.version += 1
        return True

    def _spread(self, group: EClass) -> None:
        """Spread the fact that a class is constant, or exact, to the classes that it makes so."""
        queue = deque([group])
        while queue:
            for node, parent in queue.popleft().parents:
                above = self.classes[self.find(parent)]
                if above.exact:
                    continue
                constant, exact = self.evaluable(node, above.type)
                if exact or (constant and not above.constant):
                    above.constant, above.exact = True, exact
                    queue.append(above)

    def _set_exact(self, group: EClass) -> None:
        """Spread the fact that a value is exactly that of an input to what is exactly made of it."""
        queue = deque([group])
        while queue:
            for node, parent in queue.popleft().parents:
                above = self.classes[self.find(parent)]
                if above.facts.rounded and self.heads[node[0]].operator is not None:
                    current = (node[0], *[a if a == ABSENT else self.find(a) for a in node[1:]])
                    if not self._facts_of(current, above.constant).rounded:
                        above.facts = above.facts._replace(rounded=False)
                        queue.append(above)

    def rebuild(self) -> None:
        """Restore congruence: applications of one head to equal arguments become equal."""
        while self._pending:
            todo = dict.fromkeys(self.find(c) for c in self._pending)
            self._pending = []
            for identity in todo:
                self._repair(self.find(identity))
        for identity in {self.find(c) for c in self._dirty}:
            group = self.classes[identity]
            fresh: dict[ENode, int] = {}
            for node, birth in group.nodes.items():
                fresh.setdefault(self.canonical(node), birth)
            group.nodes, group.by_op = fresh, None
        self._dirty.clear()

    def _repair(self, identity: int) -> None:
        group = self.classes[identity]
        parents, group.parents = group.parents, []
        fresh: dict[ENode, int] = {}
        apart: list[tuple[ENode, int]] = []
        for node, parent in parents:
            self._table.pop(node, None)
            canonical = self.canonical(node)
            twin = fresh.get(canonical)
            other = self._table.get(canonical) if twin is None else twin
            self._dirty.add(self.find(parent))
            if other is not None and self.find(other) != self.find(parent):
                if self._stay_separate(other, parent):
                    other, parent = (parent, other) if not self.made_by[parent] else (other, parent)
                    apart.append((canonical, parent))
                    parent = other
                else:
                    self.union(other, parent, "")
            self._table[canonical] = fresh[canonical] = parent
        self.classes[self.find(identity)].parents.extend((*fresh.items(), *apart))

    def _stay_separate(self, a: int, b: int) -> bool:
        """Whether two e-nodes are the same and their classes stay two: each has a value of the input, one e-node was
        made by a move, and where that is, some may stand for that value and not the other way round."""
        first, second = self.classes[self.find(a)], self.classes[self.find(b)]
        made = [c for i, c in ((a, first), (b, second)) if self.made_by[i]]
        return first.original and second.original and any(c.partial and not c.constant for c in made)

    # -- explaining ----------------------------------------------------------------------------------------------

    def born(self, identity: int) -> ENode:
        """The e-node with which an id was made, over the ids of that time."""
        return self._born[identity]

    def reasons(self, pairs: list[tuple[int, int]]) -> dict[str, int]:
        """Rules that make these pairs of ids equal, with the number of unions of each that were needed."""
        counts: dict[str, int] = {}
        queue, seen = deque(pairs), set[tuple[int, int]]()
        while queue:
            a, b = queue.popleft()
            if a == b or (min(a, b), max(a, b)) in seen:
                continue
            seen.add((min(a, b), max(a, b)))
            for left, right, why in self._path(a, b):
                if why:
                    edge = (min(left, right), max(left, right) + (1 << 40))
                    if edge not in seen:
                        seen.add(edge)
                        counts[why] = counts.get(why, 0) + 1
                else:
                    queue.extend(self._congruent(left, right))
        return counts

    def _congruent(self, a: int, b: int) -> Iterator[tuple[int, int]]:
        first, second = self._born[a][1:], self._born[b][1:]
        crossed = list(second)
        if len(first) == 2 and self.find(first[0]) != self.find(second[0]):
            crossed.reverse()
        return (p for p in zip(first, crossed, strict=False) if ABSENT not in p)

    def _path(self, a: int, b: int) -> list[tuple[int, int, str]]:
        before: dict[int, tuple[int, str]] = {a: (a, "")}
        queue = deque([a])
        while queue and b not in before:
            here = queue.popleft()
            for there, why in self._edges[here]:
                if there not in before:
                    before[there] = (here, why)
                    queue.append(there)
        steps: list[tuple[int, int, str]] = []
        while b in before and b != a:
            source, why = before[b]
            steps.append((source, b, why))
            b = source
        return steps


def _static(kind: ClassType) -> bool:
    return all(t.is_static for t in kind) if isinstance(kind, tuple) else kind.is_static


def _surely(condition: IndexCondition) -> bool:
    """``p >= 0`` where no coefficient is negative: sizes are not."""
    if condition.kind != "ge":
        return False
    size = condition.size
    return (
        size >= 0 if isinstance(size, int) else isinstance(size, SizePolynomial) and all(c >= 0 for _, c in size.terms)
    )
