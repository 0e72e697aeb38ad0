"""Finding where a rule's side occurs in an e-graph.

A side is compiled to a list of instructions over slots. Which occurrence of a variable binds and which only checks is
known beforehand, so matching writes slots in place and never has to undo. An attribute expression that is more than a
variable, the types' composite sizes and the guards are checked once everything is bound.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

from superopt.ir.poly import Dim, Poly, substitute, symbols
from superopt.ir.terms import App, AttributeValue, Project, Term, Var, children, postorder
from superopt.ir.types import DType, TensorType
from superopt.ops.record import FLOATS
from superopt.rules.rule import AttributeScheme, Guard, Rule, TensorScheme
from superopt.rules.solve import solve
from superopt.search.egraph import ABSENT, LEAF, PROJECT, EGraph, ENode

__all__ = ["Match", "Pattern", "compile_side", "matches"]

Bound = tuple[tuple[str, AttributeValue], ...]  # names and the values that an occurrence gives them
Check = tuple[AttributeValue, AttributeValue]  # an expression and the value it must have
Findings = tuple[Bound, tuple[Check, ...]]

_RELATIONS: Mapping[str, Callable[[float, float], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


@dataclass(frozen=True)
class Match:
    """Where a side occurs: classes of its roots and tensor variables, and values of sizes and attributes."""

    roots: tuple[int, ...]
    tensors: Mapping[str, int]
    sizes: Mapping[str, AttributeValue]


@dataclass(frozen=True)
class _Apply:
    """The class in ``slot`` must hold ``op``; its arguments go to slots. ``args``: slot, or ``None`` for absent."""

    slot: int
    term: App
    args: tuple[int | None, ...]
    tuple_slot: bool = False


@dataclass(frozen=True)
class _Select:
    """The class in ``slot`` must be output ``index`` of an application, whose tuple class goes to ``target``."""

    slot: int
    index: int
    target: int


@dataclass(frozen=True)
class _Typed:
    """The class in ``slot`` must have the type of tensor variable ``name``."""

    slot: int
    name: str


@dataclass(frozen=True)
class _Root:
    """Begin a further root: candidates are the ancestors of a bound slot along ``path`` of (operator, argument)."""

    slot: int
    op: str
    anchor: int | None
    path: tuple[str, ...]


_Instruction = _Apply | _Select | _Typed | _Root


@dataclass(eq=False)
class Pattern:
    """A compiled side of a rule. ``depth``: levels of operators; ``growth``: operators that the other side has more."""

    rule: Rule
    source: tuple[Term, ...]
    target: tuple[Term, ...]
    code: tuple[_Instruction, ...]
    slots: int
    roots: tuple[int, ...]
    tensor_slots: Mapping[str, int]
    root_op: str
    operators: frozenset[str]
    depth: int
    growth: int
    first_round: bool = False  # only the input's own applications are taken apart, not what was just merged
    _heads: dict[tuple[int, str, tuple[tuple[str, AttributeValue], ...]], Findings | None] = field(default_factory=dict)
    _types: dict[tuple[str, TensorType], Findings | None] = field(default_factory=dict)
    _runtime: dict[frozenset[str], tuple[int, int, int]] = field(default_factory=dict)

    def runtime(self, constant: frozenset[str]) -> tuple[int, int, int]:
        """Operators of the side and of the other one that run at inference, and of the side that do not.

        Args:
            constant: tensor variables that are bound to constants.
        """
        if constant not in self._runtime:
            before, after = _running(self.source, constant), _running(self.target, constant)
            apps = sum(isinstance(t, App) for t in postorder(*self.source))
            self._runtime[constant] = (before, after, apps - before)
        return self._runtime[constant]

    def head(self, position: int, op: str, attributes: Bound) -> Findings | None:
        """What the attributes of an application tell the instruction at a position; ``None`` if they do not fit."""
        key = (position, op, attributes)
        if key not in self._heads:
            step = self.code[position]
            assert isinstance(step, _Apply)
            self._heads[key] = _fit_attributes(dict(step.term.attributes), dict(attributes))
        return self._heads[key]

    def typed(self, name: str, kind: TensorType) -> Findings | None:
        """What the type of a class tells when it is bound to a variable; ``None`` if it does not fit."""
        key = (name, kind)
        if key not in self._types:
            self._types[key] = _fit_type(self.rule.tensors[name], kind)
        return self._types[key]


def compile_side(
    rule: Rule, source: tuple[Term, ...], target: tuple[Term, ...], *, first_round: bool = False
) -> Pattern:
    """Prepare a side of a plain rule (no ``...``) for matching.

    Raises:
        ValueError: a root is a variable.
    """
    code: list[_Instruction] = []
    slot_of: dict[Term, int] = {}
    operators: set[str] = set()
    roots: list[int] = []
    first_op = ""

    def slot(term: Term) -> tuple[int, bool]:
        fresh = term not in slot_of
        return slot_of.setdefault(term, len(slot_of)), fresh

    for root in source:
        if isinstance(root, Var):
            raise ValueError("a side that is a variable matches everywhere")
        op = PROJECT if isinstance(root, Project) else root.op
        if roots:
            anchor, path = _anchor(root, slot_of)
            code.append(_Root(slot(root)[0], op, anchor, path))
        else:
            first_op = op
            slot(root)
        roots.append(slot_of[root])
        todo: list[Term] = [root]
        while todo:
            term = todo.pop()
            if isinstance(term, Var):
                code.append(_Typed(slot_of[term], term.name))
                continue
            if isinstance(term, Project):
                target_slot, fresh = slot(term.term)
                code.append(_Select(slot_of[term], term.index, target_slot))
                if fresh:
                    todo.append(term.term)
                continue
            operators.add(term.op)
            new: list[Term] = []
            args: list[int | None] = []
            for arg in term.args:
                if arg is None:
                    args.append(None)
                    continue
                position, fresh = slot(arg)
                args.append(position)
                if fresh:
                    new.append(arg)
            code.append(_Apply(slot_of[term], term, tuple(args)))
            todo.extend(reversed(new))
    tensors = {t.name: s for t, s in slot_of.items() if isinstance(t, Var)}
    apps = sum(isinstance(t, App) for t in postorder(*target)) - sum(isinstance(t, App) for t in postorder(*source))
    return Pattern(
        rule, source, target, tuple(code), len(slot_of), tuple(roots), tensors, first_op, frozenset(operators),
        _depth(source), apps, first_round,
    )  # fmt: skip


def _running(roots: tuple[Term, ...], constant: frozenset[str]) -> int:
    """How many applications depend on a variable that is not constant."""
    moving: set[Term] = set()
    for term in postorder(*roots):
        if isinstance(term, Var):
            if term.name not in constant:
                moving.add(term)
        elif any(c in moving for c in children(term)):
            moving.add(term)
    return sum(isinstance(t, App) for t in moving)


def _depth(roots: tuple[Term, ...]) -> int:
    depth: dict[Term, int] = {}
    for term in postorder(*roots):
        depth[term] = 0 if isinstance(term, Var) else 1 + max((depth[c] for c in children(term)), default=0)
    return max(depth.values())


def _anchor(root: Term, known: Mapping[Term, int]) -> tuple[int | None, tuple[str, ...]]:
    """The nearest subterm that is already bound, and the operators from there up to the root."""
    queue: list[tuple[Term, tuple[str, ...]]] = [(root, ())]
    while queue:
        term, above = queue.pop(0)
        if term in known:
            return known[term], tuple(reversed(above))
        if isinstance(term, App):
            queue.extend((a, (*above, term.op)) for a in term.args if a is not None)
        elif isinstance(term, Project):
            queue.append((term.term, (*above, PROJECT)))
    return None, ()


def matches(graph: EGraph, pattern: Pattern, limit: int, within: Container[int] | None = None) -> Iterator[Match]:
    """Occurrences of a pattern, at most ``limit``. The graph must be rebuilt, and must not change meanwhile.

    Args:
        graph: where to look.
        pattern: a compiled side.
        limit: most occurrences.
        within: classes that the first root may be; all by default.
    """
    if any(op not in graph.by_op for op in pattern.operators):
        return
    found = 0
    slots = [ABSENT] * pattern.slots
    for identity in graph.having(pattern.root_op):
        if within is not None and identity not in within:
            continue
        slots[pattern.roots[0]] = identity
        for bound, checks in _run(graph, pattern, 0, slots, {pattern.roots[0]}, {}, ()):
            sizes = _solved(checks, bound)
            if sizes is None:
                continue
            tensors = {n: slots[s] for n, s in pattern.tensor_slots.items()}
            if _acceptable(graph, pattern.rule, tensors, sizes, checks):
                yield Match(tuple(slots[r] for r in pattern.roots), tensors, sizes)
                found += 1
                if found >= limit:
                    return


def _run(
    graph: EGraph, pattern: Pattern, at: int, slots: list[int], set_slots: set[int],
    bound: dict[str, AttributeValue], checks: tuple[Check, ...],
) -> Iterator[tuple[dict[str, AttributeValue], tuple[Check, ...]]]:  # fmt: skip
    """All ways to execute the instructions from ``at`` on; depth is the rule's size, not the graph's."""
    if at == len(pattern.code):
        yield bound, checks
        return
    step = pattern.code[at]
    if isinstance(step, _Typed):
        kind = graph.classes[slots[step.slot]].type
        findings = None if isinstance(kind, tuple) else pattern.typed(step.name, kind)
        joined = _join(bound, findings)
        if joined is not None and findings is not None:
            yield from _run(graph, pattern, at + 1, slots, set_slots, joined, checks + findings[1])
        return
    if isinstance(step, _Root):
        candidates = graph.having(step.op) if step.anchor is None else _ancestors(graph, slots[step.anchor], step.path)
        for candidate in candidates:
            slots[step.slot] = candidate
            yield from _run(graph, pattern, at + 1, slots, set_slots | {step.slot}, bound, checks)
        return
    if isinstance(step, _Select):
        for node in graph.with_op(slots[step.slot], PROJECT):
            if graph.heads[node[0]].index != step.index:
                continue
            tuple_class = graph.find(node[1])
            if step.target in set_slots and slots[step.target] != tuple_class:
                continue
            slots[step.target] = tuple_class
            yield from _run(graph, pattern, at + 1, slots, set_slots | {step.target}, bound, checks)
        return
    for node in graph.with_op(slots[step.slot], step.term.op):
        head = graph.heads[node[0]]
        findings = pattern.head(at, head.op, head.attributes)
        joined = _join(bound, findings)
        if joined is None or findings is None:
            continue
        for args in _orders(graph, node):
            taken = _bind_args(graph, step, args, slots, set_slots)
            if taken is not None:
                yield from _run(graph, pattern, at + 1, slots, taken, joined, checks + findings[1])


def _orders(graph: EGraph, node: ENode) -> tuple[tuple[int, ...], ...]:
    record = graph.heads[node[0]].operator
    if record is not None and record.commutative and len(node) == 3 and node[1] != node[2]:
        return (node[1:], (node[2], node[1]))
    return (node[1:],)


def _bind_args(
    graph: EGraph, step: _Apply, args: tuple[int, ...], slots: list[int], set_slots: set[int]
) -> set[int] | None:
    width = max(len(args), len(step.args))
    given = [*args, *[ABSENT] * (width - len(args))]
    wanted = [*step.args, *[None] * (width - len(step.args))]
    taken = set(set_slots)
    for slot, arg in zip(wanted, given, strict=True):
        if slot is None or arg == ABSENT:
            if slot is not None or arg != ABSENT:
                return None
            continue
        arg = graph.find(arg)
        if slot in taken and slots[slot] != arg:
            return None
        slots[slot] = arg
        taken.add(slot)
    return taken


def _ancestors(graph: EGraph, identity: int, path: tuple[str, ...]) -> list[int]:
    level = [identity]
    for op in path:
        above: dict[int, None] = {}
        for member in level:
            for node, parent in graph.classes[member].parents:
                if graph.heads[node[0]].op == op:
                    above[graph.find(parent)] = None
        level = list(above)
    return level


def _join(bound: dict[str, AttributeValue], findings: Findings | None) -> dict[str, AttributeValue] | None:
    if findings is None:
        return None
    fresh: dict[str, AttributeValue] | None = None
    for name, value in findings[0]:
        have = (fresh if fresh is not None else bound).get(name)
        if have is None:
            if fresh is None:
                fresh = dict(bound)
            fresh[name] = value
        elif have != value:
            return None
    return bound if fresh is None else fresh


def _fit_attributes(wanted: Mapping[str, AttributeValue], given: Mapping[str, AttributeValue]) -> Findings | None:
    bound: list[tuple[str, AttributeValue]] = []
    checks: list[Check] = []
    if not wanted.keys() <= given.keys():
        return None
    for name, value in given.items():
        if name in wanted:
            if not _fit_value(wanted[name], value, bound, checks):
                return None
        elif name == "dtype" and isinstance(value, str):
            bound.append(("dtype:f", value))  # a generator's element type is the rule's own class
        else:
            return None
    return tuple(bound), tuple(checks)


def _fit_value(
    wanted: AttributeValue, given: AttributeValue, bound: list[tuple[str, AttributeValue]], checks: list[Check]
) -> bool:
    if isinstance(wanted, tuple):
        return (
            isinstance(given, tuple)
            and len(given) == len(wanted)
            and all(_fit_value(w, g, bound, checks) for w, g in zip(wanted, given, strict=True))
        )
    if isinstance(wanted, Poly):
        name = _atom(wanted)
        if isinstance(given, str | tuple):
            return False
        if name is not None:
            bound.append((name, given))
        else:
            checks.append((wanted, given))
        return True
    return wanted == given


def _atom(value: Poly) -> str | None:
    """The name of a polynomial that is just a name."""
    if len(value.terms) == 1 and value.terms[0][1] == 1 and len(value.terms[0][0]) == 1:
        atom = value.terms[0][0][0]
        return atom if isinstance(atom, str) else None
    return None


def _fit_type(scheme: TensorScheme, kind: TensorType) -> Findings | None:
    if kind.shape is None or len(kind.shape) != len(scheme.shape) or not _in_class(scheme.dtype, kind.dtype):
        return None
    bound: list[tuple[str, AttributeValue]] = []
    checks: list[Check] = []
    if scheme.dtype == "f":
        bound.append(("dtype:f", str(kind.dtype)))
    for wanted, given in zip(scheme.shape, kind.shape, strict=True):
        if given == 0 or not _fit_value(wanted, given, bound, checks):
            return None
    return tuple(bound), tuple(checks)


def _in_class(name: str, dtype: DType) -> bool:
    return dtype in FLOATS if name == "f" else dtype == {"i": DType.INT64, "b": DType.BOOL}.get(name, name)


def evaluate(value: AttributeValue, sizes: Mapping[str, AttributeValue]) -> AttributeValue:
    """An attribute value of a rule with its names replaced by what they are bound to."""
    if isinstance(value, tuple):
        return tuple(evaluate(v, sizes) for v in value)
    return substitute(value, cast(Mapping[str, Dim], sizes)) if isinstance(value, Poly) else value


def _solved(checks: tuple[Check, ...], bound: Mapping[str, AttributeValue]) -> dict[str, AttributeValue] | None:
    """Bindings with the names that only composite sizes determine (the ``o`` of ``f[g*o, c, u, v]``) added."""
    if all(isinstance(w, Poly) and symbols(w) <= bound.keys() for w, _ in checks):
        return dict(bound)
    equations = [(w, g) for w, g in checks if isinstance(w, Poly) and isinstance(g, int | Poly)]
    known = {n: v for n, v in bound.items() if isinstance(v, int | Poly)}
    found = solve(equations, known)
    return None if found is None else {**bound, **found}


def _acceptable(
    graph: EGraph,
    rule: Rule,
    tensors: Mapping[str, int],
    sizes: Mapping[str, AttributeValue],
    checks: tuple[Check, ...],
) -> bool:
    """The checks, ranges of attributes, and guards; what is not decided is refused."""
    for name, scheme in rule.attribute_atoms.items():
        if name in sizes and not _in_range(scheme, sizes[name]):
            return False
    for wanted, given in checks:
        assert isinstance(wanted, Poly)
        if not symbols(wanted) <= sizes.keys() or evaluate(wanted, sizes) != given:
            return False
    if not all(_holds(guard, sizes) for guard in rule.where):
        return False
    for name, kind in rule.tensors.items():
        if kind.below is not None and name in tensors:
            known = value_range(graph, tensors[name])
            top = evaluate(kind.below, sizes)
            if known is None or not isinstance(top, int) or known[0] < 0 or known[1] >= top:
                return False
    return True


def _in_range(scheme: AttributeScheme, value: AttributeValue) -> bool:
    if isinstance(value, Poly):  # a symbolic size: at least 1, and otherwise unknown
        positive = all(c > 0 for _, c in value.terms)
        return scheme.kind == "int" and (
            scheme.relation == "" or (positive and scheme.bound <= (1 if scheme.relation == ">=" else 0))
        )
    if isinstance(value, float) and scheme.kind == "int":
        return False
    return isinstance(value, int | float) and scheme.allows(value)


def _holds(guard: Guard, sizes: Mapping[str, AttributeValue]) -> bool:
    if not guard.names <= sizes.keys():
        return False
    left, right = evaluate(guard.left, sizes), evaluate(guard.right, sizes)
    if isinstance(left, int | float) and isinstance(right, int | float):
        return _RELATIONS[guard.relation](left, right)
    return guard.relation in ("==", "<=", ">=") and left == right


def value_range(graph: EGraph, identity: int) -> tuple[int, int] | None:
    """Least and greatest element of a weight of integers, where they are known."""
    for node in graph.with_op(identity, LEAF):
        known = graph.ranges.get(graph.heads[node[0]].index)
        if known is not None:
            return known
    return None
