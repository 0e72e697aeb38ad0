"""Sides of rules compiled to patterns, and the side conditions of a match.

A side becomes a list of tests for the pattern index (:mod:`superopt.egraph.pattern_index`). Composite sizes, attribute
ranges and guards are checked after all variables are bound. Their result depends on the bound numbers alone, so it is
cached.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import combinations
from typing import NamedTuple, cast

from superopt.egraph.egraph import ABSENT, LEAF, PROJECT, EGraph
from superopt.egraph.pattern_index import (
    OperatorMatchStep,
    OutputMatchStep,
    PatternTrie,
    RootMatchStep,
    Spec,
    Step,
    TypeMatchStep,
)
from superopt.ir.size_polynomial import Dim, SizePolynomial, substitute, sym, symbols
from superopt.ir.terms import (
    AttributeValue,
    OperatorTerm,
    OutputTerm,
    Term,
    VariableTerm,
    children,
    format_term,
    postorder,
    rebuilt,
)
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.ops.onnx_node_conversion import surely_nonnegative
from superopt.ops.operator_semantics import IndexCondition
from superopt.program.value_analysis import ValueFacts, conditions_hold, stands_for_rounded
from superopt.rules.canonical import solve
from superopt.rules.float_verdicts import SafeConditions
from superopt.rules.rule import AttributeVariableType, Rule, RulePrecondition
from superopt.rules.typing import types_of

__all__ = ["PatternMatch", "CompiledPattern", "bound", "compile_side", "evaluate", "match_of", "refusal"]

Check = tuple[SizePolynomial, int]  # an expression, and the register of the value it must have
Sizes = Mapping[str, AttributeValue]

_RELATIONS: Mapping[str, Callable[[float, float], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_ELEMENT = "dtype:f"  # the name by which sizes hold the element type of a rule's class f
_FLOAT32 = str(DType.FLOAT32)
_REMEMBERED = 4096
_UNSEEN: Sizes = {}


class PatternMatch(NamedTuple):
    """Where a side occurs: classes of its roots and tensor variables, and values of sizes and attributes."""

    roots: tuple[int, ...]
    tensors: Mapping[str, int]
    sizes: Sizes


@dataclass(eq=False)
class CompiledPattern:
    """A compiled side of a rule. ``depth``: levels of operators; ``growth``: operators that the other side has more.

    Attributes:
        roots, tensor_slots: slots of the roots and of tensor variables.
        names: registers of the names that sizes and attributes bind.
        checks: composite expressions, and the registers of what they must equal.
        first_round: only the input's own applications are taken apart, not what was just merged.
        heavier: the other side does surely more arithmetic with as many operators of the same kinds.
        floats: by element type, the conditions of which one must hold for the other side to be as good in floating
            point; ``None``: whatever the reals allow.
        opposite: the same for this side in the place of the other one.
    """

    rule: Rule
    source: tuple[Term, ...]
    target: tuple[Term, ...]
    steps: tuple[Step, ...]
    roots: tuple[int, ...]
    tensor_slots: Mapping[str, int]
    names: Mapping[str, int]
    checks: tuple[Check, ...]
    operators: frozenset[str]
    depth: int
    growth: int
    first_round: bool = False
    width: int = 1  # slots
    floats: Mapping[str, tuple[SafeConditions, ...]] | None = None
    opposite: Mapping[str, tuple[SafeConditions, ...]] | None = None
    heavier: bool = False
    bounded: bool = False  # some variable holds positions, whose range is asked of the graph
    _runtime: dict[tuple[bool, ...], tuple[int, int, int]] = field(default_factory=dict)
    _sizes: dict[tuple[AttributeValue, ...], Sizes | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.slots = tuple(self.tensor_slots.values())
        self.places = (*self.roots, *self.slots)
        self.registers = (*self.names.values(), *(r for _, r in self.checks))
        self.bounded = any(k.below is not None for k in self.rule.tensors.values())
        self._trie: PatternTrie[CompiledPattern] | None = None

    @cached_property
    def identity(self) -> bytes:
        """Equal for patterns that find and make the same under the same conditions, whatever their names: a digest."""
        sizes: dict[str, Dim] = {n: sym(f"${r}") for n, r in self.names.items()}

        def put(value: AttributeValue) -> AttributeValue:
            return _substituted(value, sizes)

        def leaf(term: VariableTerm) -> Term:
            return VariableTerm(f"${self.tensor_slots[term.name]}") if term.name in self.tensor_slots else term

        targets = rebuilt(self.target, lambda _, __, value: put(value), leaf)
        guards = sorted(f"{put(g.left)} {g.relation} {put(g.right)}" for g in self.rule.where)
        atoms, tensors = self.rule.attribute_atoms, self.rule.tensors
        ranges = sorted(f"{put(sym(n))} {s.kind} {s.relation} {s.bound}" for n, s in atoms.items() if n in sizes)
        below = [(s, str(put(b))) for n, s in self.tensor_slots.items() if (b := tensors[n].below) is not None]
        checks = [(str(put(w)), r) for w, r in self.checks]
        makes = [format_term(t) for t in targets]
        floats = [
            None if ways is None else sorted((t, self._conditions(w)) for t, w in ways.items())
            for ways in (self.floats, self.opposite)
        ]
        text = repr((self.steps, self.roots, makes, guards, ranges, below, checks, self.first_round, floats))
        return hashlib.sha256(text.encode()).digest()

    def _conditions(self, ways: tuple[SafeConditions, ...]) -> list[str]:
        """Ways whatever the names of variables."""
        slots = self.tensor_slots
        return [
            repr((sorted(slots[n] for n in w.rounded), sorted((str(slots.get(n, n)), r) for n, r in w.window.items())))
            + f"{w.finite}{w.regular}"
            for w in ways
        ]

    @property
    def trie(self) -> PatternTrie[CompiledPattern]:
        """The net of this pattern alone."""
        if self._trie is None:
            self._trie = PatternTrie([(self, self.steps, self.depth)], lambda p: p.loops)
        return self._trie

    def runtime(self, constant: tuple[bool, ...]) -> tuple[int, int, int]:
        """Operators of the side and of the other one that run at inference, and of the side that do not.

        Args:
            constant: for each tensor variable, whether it is bound to a constant.
        """
        found = self._runtime.get(constant)
        if found is None:
            fixed = frozenset(n for n, c in zip(self.tensor_slots, constant, strict=True) if c)
            before, after = _running(self.source, fixed), _running(self.target, fixed)
            # Literal constants are not counted.
            apps = sum(isinstance(t, OperatorTerm) and bool(t.args) for t in postorder(*self.source))
            found = self._runtime[constant] = (before, after, apps - before)
        return found

    @cached_property
    def loops(self) -> int:
        """How many of the side's applications may change nothing where it occurs (``x * 1``): so many that there still
        are more of the others than the other side has, and one where operators of several kinds change places. Else the
        match would only write an operator that does nothing in another way.
        """
        before, after = (
            sum(isinstance(t, OperatorTerm) and bool(t.args) for t in postorder(*s)) for s in (self.source, self.target)
        )
        kinds = {t.op for t in postorder(*self.source) if isinstance(t, OperatorTerm)}
        return max(0, before - after - 1) + (before == after and len(kinds) > 1)

    @cached_property
    def divisors(self) -> frozenset[str]:
        """Variables by which one of the sides divides."""
        found: set[str] = set()
        for term in postorder(*self.source, *self.target):
            divisor = term.args[-1] if isinstance(term, OperatorTerm) and term.op in ("Div", "Reciprocal") else None
            if divisor is not None:
                found.update(t.name for t in postorder(divisor) if isinstance(t, VariableTerm))
        return frozenset(found)

    @cached_property
    def anyway(self) -> frozenset[str]:
        """Element types for which the other side is as good in floating point, whatever the operands."""
        return frozenset(t for t, ways in (self.floats or {}).items() if SafeConditions() in ways)

    @cached_property
    def turned_anyway(self) -> frozenset[str]:
        """Element types for which this side is as good as the other one, whatever the operands."""
        return frozenset(t for t, ways in (self.opposite or {}).items() if SafeConditions() in ways)

    @cached_property
    def saves(self) -> bool:
        """Whether both sides are sums, of which the other runs fewer where all variables but one or two are constants:
        ``x + c + b`` as ``x + (c + b)``, which then goes into the product before it.

        Factors are left to the search: into which weight they go is a choice, and the runtime may fuse them where they
        are, like GELU's half.
        """
        names = tuple(self.tensor_slots)
        if self.rule.operators != {"Add"}:
            return False
        for moving in (*combinations(names, 1), *combinations(names, 2)):
            fixed = frozenset(names).difference(moving)
            if fixed and _running(self.target, fixed) < _running(self.source, fixed):
                return True
        return False

    def sizes(self, values: tuple[AttributeValue, ...]) -> Sizes | None:
        """Sizes and attributes by name for the values of :attr:`registers`, or ``None`` where the rule says no."""
        found = self._sizes.get(values, _UNSEEN)
        if found is _UNSEEN:
            if len(self._sizes) >= _REMEMBERED:
                self._sizes.clear()
            found = self._sizes[values] = self._solved(values)
        return found

    def _solved(self, values: tuple[AttributeValue, ...]) -> Sizes | None:
        bound = dict(zip(self.names, values, strict=False))
        checks = [(w, g) for (w, _), g in zip(self.checks, values[len(self.names) :], strict=True)]
        if not all(symbols(w) <= bound.keys() for w, _ in checks):
            equations = [(w, g) for w, g in checks if isinstance(g, int | SizePolynomial)]
            found = solve(equations, {n: v for n, v in bound.items() if isinstance(v, int | SizePolynomial)})
            if found is None:
                return None
            bound.update(found)
            bound.update(_summands(checks, bound))
        return bound if _acceptable(self.rule, bound, checks) and self._well_formed(bound) else None

    @cached_property
    def demands(self) -> tuple[IndexCondition, ...]:
        """What the side demands of sizes before it is well-formed: the preconditions that its proof derived."""
        types = types_of(self.rule)
        return types.lhs_obligations if self.source == self.rule.lhs else types.rhs_obligations

    def _well_formed(self, bound: Mapping[str, AttributeValue]) -> bool:
        """Whether no derived precondition is known to fail.

        One that depends on sizes which the model leaves open holds by construction: the graph's nodes, of which this
        side is made, are there because their own obligations are shown or stated (``EGraph.assumed``).
        """
        sizes = {n: v for n, v in bound.items() if isinstance(v, int | SizePolynomial)}
        return all(IndexCondition(c.kind, substitute(c.size, sizes)).known is not False for c in self.demands)


class _Compiler:
    """Numbers the slots and registers of one side in the order in which they are filled."""

    def __init__(self, rule: Rule, source: tuple[Term, ...]) -> None:
        self.rule = rule
        self.steps: list[Step] = []
        self.slot_of: dict[Term, int] = {}
        self.names: dict[str, int] = {}
        self.checks: list[Check] = []
        self.count = 0  # registers
        for root in source:
            if isinstance(root, VariableTerm):
                raise ValueError("a side that is a variable matches everywhere")
            if self.slot_of:
                anchor, path = _anchor(root, self.slot_of)
                self.steps.append(RootMatchStep(self.slot(root)[0], _op(root), anchor, path))
            else:
                self.slot(root)
            self._below(root)

    def slot(self, term: Term) -> tuple[int, bool]:
        """The slot of a term, and whether it is new."""
        fresh = term not in self.slot_of
        return self.slot_of.setdefault(term, len(self.slot_of)), fresh

    def _below(self, root: Term) -> None:
        todo: list[OperatorTerm | OutputTerm] = [cast("OperatorTerm | OutputTerm", root)]
        while todo:
            term = todo.pop()
            if isinstance(term, OutputTerm):
                target, fresh = self.slot(term.term)
                self.steps.append(OutputMatchStep(self.slot_of[term], term.index, target, fresh))
                new: list[Term] = [term.term] if fresh else []
            else:
                new = self._application(term)
            for variable in new:
                if isinstance(variable, VariableTerm):
                    self._typed(variable)
            todo.extend(t for t in reversed(new) if not isinstance(t, VariableTerm))

    def _application(self, term: OperatorTerm) -> list[Term]:
        new: list[Term] = []
        args: list[tuple[int, bool, str]] = []
        for arg in term.args:
            if arg is None:
                args.append((ABSENT, False, ""))
                continue
            position, fresh = self.slot(arg)
            args.append((position, fresh, _op(arg) if fresh else ""))
            if fresh:
                new.append(arg)
        while args and args[-1][0] == ABSENT:
            args.pop()
        known, given = self.count, dict(term.attributes)
        attributes = tuple((k, self._spec(v)) for k, v in term.attributes)
        generator = "dtype" in REGISTRY[term.op].attributes and "dtype" not in given
        element = self._register(_ELEMENT) if generator else -1
        self.steps.append(OperatorMatchStep(self.slot_of[term], term.op, tuple(args), attributes, element, known))
        return new

    def _typed(self, variable: VariableTerm) -> None:
        scheme, known = self.rule.tensors[variable.name], self.count
        element = self._register(_ELEMENT) if scheme.dtype == "f" else -1
        sizes = tuple(map(self._spec, scheme.shape))
        self.steps.append(TypeMatchStep(self.slot_of[variable], scheme.dtype, sizes, element, known))

    def _register(self, name: str) -> int:
        if name not in self.names:
            self.names[name] = self.count
            self.count += 1
        return self.names[name]

    def _spec(self, value: AttributeValue) -> Spec:
        if isinstance(value, tuple):
            return ("t", tuple(map(self._spec, value)))
        if not isinstance(value, SizePolynomial):
            return ("=", value)
        name = _atom(value)
        if name is not None:
            return ("r", self._register(name))
        self.checks.append((value, self.count))
        self.count += 1
        return ("r", self.count - 1)


def compile_side(
    rule: Rule, source: tuple[Term, ...], target: tuple[Term, ...], *, first_round: bool = False,
    floats: Mapping[str, tuple[SafeConditions, ...]] | None = None,
    opposite: Mapping[str, tuple[SafeConditions, ...]] | None = None,
) -> CompiledPattern:  # fmt: skip
    """Prepare a side of a plain rule (no ``...``) for matching.

    Raises:
        ValueError: a root is a variable.
    """
    made = _Compiler(rule, source)
    tensors = {t.name: s for t, s in made.slot_of.items() if isinstance(t, VariableTerm)}
    before, after = ([t for t in postorder(*side) if isinstance(t, OperatorTerm)] for side in (source, target))
    return CompiledPattern(
        rule, source, target, tuple(made.steps), tuple(made.slot_of[r] for r in source), tensors, made.names,
        tuple(made.checks), frozenset(t.op for t in before), _depth(source), len(after) - len(before), first_round,
        len(made.slot_of), floats, opposite,
    )  # fmt: skip


def _substituted(value: AttributeValue, sizes: Mapping[str, Dim]) -> AttributeValue:
    if isinstance(value, tuple):
        return tuple(_substituted(v, sizes) for v in value)
    return substitute(value, sizes) if isinstance(value, SizePolynomial) else value


def _op(term: Term) -> str:
    return "" if isinstance(term, VariableTerm) else PROJECT if isinstance(term, OutputTerm) else term.op


def _running(roots: tuple[Term, ...], constant: frozenset[str]) -> int:
    """How many applications depend on a variable that is not constant."""
    moving: set[Term] = set()
    for term in postorder(*roots):
        if isinstance(term, VariableTerm):
            if term.name not in constant:
                moving.add(term)
        elif any(c in moving for c in children(term)):
            moving.add(term)
    return sum(isinstance(t, OperatorTerm) for t in moving)


def _depth(roots: tuple[Term, ...]) -> int:
    depth: dict[Term, int] = {}
    for term in postorder(*roots):
        depth[term] = 0 if isinstance(term, VariableTerm) else 1 + max((depth[c] for c in children(term)), default=0)
    return max(depth.values())


def _anchor(root: Term, known: Mapping[Term, int]) -> tuple[int, tuple[str, ...]]:
    """The slot of the nearest subterm that is already bound, and the operators from there up to the root."""
    queue: list[tuple[Term, tuple[str, ...]]] = [(root, ())]
    while queue:
        term, above = queue.pop(0)
        if term in known:
            return known[term], tuple(reversed(above))
        if isinstance(term, OperatorTerm):
            queue.extend((a, (*above, term.op)) for a in term.args if a is not None)
        elif isinstance(term, OutputTerm):
            queue.append((term.term, (*above, PROJECT)))
    return ABSENT, ()


def _atom(value: SizePolynomial) -> str | None:
    """The name of a polynomial that is just a name."""
    if len(value.terms) == 1 and value.terms[0][1] == 1 and len(value.terms[0][0]) == 1:
        atom = value.terms[0][0][0]
        return atom if isinstance(atom, str) else None
    return None


def bound(
    graph: EGraph, pattern: CompiledPattern, slots: Sequence[int], registers: Sequence[AttributeValue]
) -> PatternMatch | None:
    """The match that slots and registers hold, if the rule's sizes, ranges and guards allow it."""
    return match_of(graph, pattern, slots, tuple([registers[r] for r in pattern.registers]))


def match_of(
    graph: EGraph, pattern: CompiledPattern, slots: Sequence[int], values: tuple[AttributeValue, ...]
) -> PatternMatch | None:
    """The match that slots and the values of the pattern's registers make, if sizes, ranges and guards allow it."""
    sizes = pattern.sizes(values)
    if sizes is None:
        return None
    tensors = dict(zip(pattern.tensor_slots, [slots[s] for s in pattern.slots], strict=True))
    if pattern.bounded and not _in_bounds(graph, pattern.rule, tensors, sizes):
        return None
    ways = pattern.floats
    if ways is not None and not _as_good(graph, pattern, ways, pattern.anyway, tensors, sizes):
        return None
    return PatternMatch(tuple([slots[r] for r in pattern.roots]), tensors, sizes)


def refusal(
    graph: EGraph, pattern: CompiledPattern, slots: Sequence[int], values: tuple[AttributeValue, ...], mode: str
) -> str:
    """Why :func:`match_of` gives no match, in words.

    Args:
        graph: the e-graph.
        pattern: what was found in it, as far as operators and types say.
        slots: classes of the pattern.
        values: of the pattern's registers.
        mode: in which the verdicts in floating point are read.
    """
    sizes = pattern.sizes(values)
    if sizes is None:
        known = dict(zip(pattern.names, values, strict=False))
        shown = ", ".join(f"{n} = {v}" for n, v in known.items() if n != _ELEMENT and not n.startswith("lead_"))
        for guard in pattern.rule.where:
            if guard.names <= known.keys() and not _holds(guard, known):
                return f"{guard.left} {guard.relation} {guard.right} does not hold or is not known to, with {shown}"
        for name, scheme in pattern.rule.attribute_atoms.items():
            if name in known and not _in_range(scheme, known[name]):
                return f"{name} = {known[name]} is out of the rule's range"
        return f"sizes or attributes do not fit the rule, with {shown}"
    tensors = dict(zip(pattern.tensor_slots, [slots[s] for s in pattern.slots], strict=True))
    if pattern.bounded and not _in_bounds(graph, pattern.rule, tensors, sizes):
        return "positions are not known to be inside their axis"
    return f"not as good in floating point under '{mode}', for what is known of the operands"


def evaluate(value: AttributeValue, sizes: Sizes) -> AttributeValue:
    """An attribute value of a rule with its names replaced by what they are bound to."""
    if isinstance(value, tuple):
        return tuple([evaluate(v, sizes) for v in value])
    if not isinstance(value, SizePolynomial):
        return value
    sums = _sums(value)
    if sums is None:
        return substitute(value, cast(Mapping[str, Dim], sizes))
    total: Dim = 0
    for coefficient, names in sums:
        product: Dim = coefficient
        for name in names:
            factor = sizes.get(name)
            if factor is None or isinstance(factor, str | tuple):
                return substitute(value, cast(Mapping[str, Dim], sizes))
            product = product * cast(Dim, factor)
        total = total + product
    return total


@lru_cache(maxsize=4096)
def _sums(value: SizePolynomial) -> tuple[tuple[int, tuple[str, ...]], ...] | None:
    """Coefficients and names of a polynomial without quotients."""
    found: list[tuple[int, tuple[str, ...]]] = []
    for monomial, coefficient in value.terms:
        names = tuple(a for a in monomial if isinstance(a, str))
        if len(names) != len(monomial):
            return None
        found.append((coefficient, names))
    return tuple(found)


def _summands(checks: Sequence[tuple[SizePolynomial, AttributeValue]], bound: Mapping[str, AttributeValue]) -> Sizes:
    """Real attributes that a sum has to have: of ``r + e``, which is 6.0 where ``r`` is 1.0, the ``e``; then those of
    sums of which that was the last but one."""
    found: dict[str, AttributeValue] = {}
    waiting = [(wanted, given) for wanted, given in checks if isinstance(given, float)]
    while waiting:
        count = len(found)
        for wanted, given in waiting:
            missing = symbols(wanted) - bound.keys() - found.keys()
            if len(missing) == 1:
                (name,) = missing
                others = wanted - sym(name)
                rest = None if name in symbols(others) else evaluate(others, {**bound, **found})
                if isinstance(rest, int | float):
                    found[name] = given - rest
        if len(found) == count:
            break
        waiting = [(wanted, given) for wanted, given in waiting if not symbols(wanted) <= bound.keys() | found.keys()]
    return found


def _acceptable(rule: Rule, sizes: Sizes, checks: Sequence[tuple[SizePolynomial, AttributeValue]]) -> bool:
    """The checks, ranges of attributes, and guards; what is not decided is refused."""
    for name, scheme in rule.attribute_atoms.items():
        if name in sizes and not _in_range(scheme, sizes[name]):
            return False
    for wanted, given in checks:
        if not symbols(wanted) <= sizes.keys() or evaluate(wanted, sizes) != given:
            return False
    return all(_holds(guard, sizes) for guard in rule.where)


def _in_bounds(graph: EGraph, rule: Rule, tensors: Mapping[str, int], sizes: Sizes) -> bool:
    """Whether variables that hold positions are known to be in their ranges."""
    for name, kind in rule.tensors.items():
        if kind.below is not None and name in tensors:
            known = value_range(graph, tensors[name])
            top = evaluate(kind.below, sizes)
            if known is None or not isinstance(top, int) or known[0] < 0 or known[1] >= top:
                return False
    return True


def turns(graph: EGraph, pattern: CompiledPattern, match: PatternMatch) -> bool:
    """Whether the side that was found is as good in floating point as what is made of it: whether either may stand for
    the other."""
    ways = pattern.opposite
    return ways is None or _as_good(graph, pattern, ways, pattern.turned_anyway, match.tensors, match.sizes)


def _as_good(
    graph: EGraph, pattern: CompiledPattern, by_type: Mapping[str, tuple[SafeConditions, ...]], anyway: frozenset[str],
    tensors: Mapping[str, int], sizes: Sizes,
) -> bool:  # fmt: skip
    """Whether a condition is met under which a direction is as good in floating point."""
    dtype = sizes.get(_ELEMENT, _FLOAT32)
    if dtype in anyway:
        return True
    ways = by_type.get(str(dtype), ())
    if not ways:
        return False
    groups = {n: graph.classes[graph.find(c)] for n, c in tensors.items()}
    known = {n: g.facts for n, g in groups.items()}
    known |= {n: ValueFacts(most=abs(v), least=abs(v)) for n, v in sizes.items() if isinstance(v, int | float)}
    types = {n: g.type for n, g in groups.items() if isinstance(g.type, TensorType)}
    element = DType(str(dtype))
    if conditions_hold(ways, known, types, element):
        return True
    fixed = {n for n, g in groups.items() if g.constant}
    moving = frozenset(types.keys() - fixed)
    if len(moving) != 1 or not stands_for_rounded({n: known[n] for n in fixed}, pattern.divisors, element):
        return False
    return conditions_hold(ways, known, types, element, moving)


def _in_range(scheme: AttributeVariableType, value: AttributeValue) -> bool:
    if isinstance(value, SizePolynomial):  # a symbolic size: at least 1, and otherwise unknown
        positive = all(c > 0 for _, c in value.terms)
        return scheme.kind == "int" and (
            scheme.relation == "" or (positive and scheme.bound <= (1 if scheme.relation == ">=" else 0))
        )
    if isinstance(value, float) and scheme.kind == "int":
        return False
    return isinstance(value, int | float) and scheme.allows(value)


def _holds(guard: RulePrecondition, sizes: Sizes) -> bool:
    if not guard.names <= sizes.keys():
        return False
    left, right = evaluate(guard.left, sizes), evaluate(guard.right, sizes)
    if isinstance(left, int | float) and isinstance(right, int | float):
        return _RELATIONS[guard.relation](left, right)
    if not isinstance(left, int | SizePolynomial) or not isinstance(right, int | SizePolynomial):
        return False
    condition = RulePrecondition(left, guard.relation, right).condition
    return left == right if guard.relation == "==" else condition.kind == "ge" and surely_nonnegative(condition.size)


def value_range(graph: EGraph, identity: int) -> tuple[int, int] | None:
    """Least and greatest element of a weight of integers, where they are known."""
    for node in graph.with_op(identity, LEAF):
        known = graph.ranges.get(graph.heads[node[0]].index)
        if known is not None:
            return known
    return None
