"""One operator applied to the data with a hole for a weight: its attributes, and the shapes that the hole may have.

The window of an image at which each element of a part's result looks gives a convolution in its place stride, window
and padding. It is read off the operators' meanings: an index ``s·o - p + t`` with taps ``t`` below ``u`` is a
window, ``⌊o/s⌋`` one of a transposed convolution; windows behind each other make one, and so do windows beside each
other. Nothing is claimed: whether there are weights for such a convolution is decided as for any other skeleton.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, product

from superopt.discovery.symbolic_generalisation import SynthesisProblem
from superopt.ir.size_polynomial import Dim, FloorQuotient, SizePolynomial, substitute, sym, symbols, value_at
from superopt.ir.terms import AttributeValue, OperatorTerm, Term, VariableTerm, postorder
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.operator_semantics import (
    ElementRead,
    IllTypedOperator,
    Index,
    IndexCondition,
    OperatorSemantics,
    ScalarCall,
    ScalarReduction,
    SizeExpression,
    TensorComprehension,
    subexpressions,
)
from superopt.rules.onnx_notation import with_defaults, with_required_attributes
from superopt.rules.rule import Rule, TensorVariableType
from superopt.rules.scanner import RuleError
from superopt.rules.typing import complete, operator_of, type_terms

__all__ = ["DATA", "Skeleton", "applied", "broadcasting", "looks_through"]

_MOST_RANK = 5


_MOST_SHAPES = 24  # of the holes of one application


Shapes = tuple[tuple[Dim, ...], ...]


DATA = VariableTerm("data")


@dataclass(frozen=True)
class Skeleton:
    """A term with holes, and the types of these.

    Attributes:
        narrower: the same term with smaller holes, each of which broadcasts to this one's: where no weights in these
            holes will do, none in those will.
    """

    term: Term
    holes: Mapping[str, TensorType]
    narrower: tuple[Mapping[str, TensorType], ...] = ()

    @property
    def least(self) -> Skeleton:
        """With the smallest holes: what it costs at least."""
        return Skeleton(self.term, (*self.narrower, self.holes)[0])


def applied(
    problem: SynthesisProblem,
    op: str,
    base: Term,
    kind: TensorType,
    target: TensorType,
    sizes: tuple[Dim, ...],
    prefix: str,
    given: Sequence[tuple[tuple[str, AttributeValue], ...]] = (),
) -> Iterator[Skeleton]:
    """The operator applied to data, with weights as its other operands, and ``given`` attributes if there are any."""
    record = REGISTRY[op]
    required = [n for n, i in enumerate(record.inputs) if not i.endswith(("?", "*"))]
    optional = [n for n, i in enumerate(record.inputs) if i.endswith("?")]
    for position in required[: 1 if record.commutative else None]:
        for some in (s for r in range(len(optional) + 1) for s in combinations(optional, r)):
            positions = [n for n in (*required, *some) if n != position]
            args: list[Term] = [VariableTerm(f"{prefix}{n}") for n in range(max((position, *positions)) + 1)]
            args[position] = base
            for attributes in given or _attributes(problem, op, tuple(args), base, kind, positions, prefix):
                app = OperatorTerm(op, tuple(args), attributes)
                if record.family == "elementwise":
                    yield from _elementwise(app, f"{prefix}{positions[0]}", kind, target)
                    continue
                alike = replace(app, args=tuple(DATA if a == base else a for a in args))
                for shapes in _hole_shapes(alike, position, kind, target, sizes):
                    holes = {
                        f"{prefix}{n}": TensorType(target.dtype, s) for n, s in zip(positions, shapes, strict=True)
                    }
                    yield Skeleton(app, holes)


def _elementwise(app: OperatorTerm, hole: str, kind: TensorType, target: TensorType) -> Iterator[Skeleton]:
    """An elementwise operator with a weight that broadcasts to its other operand."""
    if kind == target and len(app.args) == 2:
        *fewer, widest = broadcasting(target)
        yield Skeleton(app, {hole: widest}, tuple({hole: k} for k in fewer))


def _attributes(
    problem: SynthesisProblem,
    op: str,
    args: tuple[Term, ...],
    base: Term,
    kind: TensorType,
    positions: Sequence[int],
    prefix: str,
) -> Iterator[tuple[tuple[str, AttributeValue], ...]]:
    """What an operator does by default, or with attributes of the left side; whole numbers may be sizes of the data."""
    record = REGISTRY[op]
    given = [dict(t.attributes) for t in postorder(problem.term) if isinstance(t, OperatorTerm)]
    overlays = [{}, *({k: v for k, v in g.items() if k in record.attributes} for g in given)]
    if len({str(g["dilations"]) for g in given if "dilations" in g}) > 1:  # windows of different spacing
        overlays += [{k: v for k, v in o.items() if k != "dilations"} for o in overlays]
    rank = len(kind.shape or ())
    seen: dict[tuple[tuple[str, AttributeValue], ...], None] = {}
    for overlay in overlays:
        forall = {DATA.name: TensorVariableType("f", kind.shape or ())}
        forall |= {f"{prefix}{n}": TensorVariableType("f", (1,) * rank) for n in positions}
        operands = tuple(DATA if a == base else a for a in args)
        app = with_required_attributes(OperatorTerm(op, operands, tuple(sorted(overlay.items()))))
        try:
            whole = with_defaults(Rule("", forall, (), (app,), (app,)), op).lhs[0]
        except RuleError:
            continue
        assert isinstance(whole, OperatorTerm)
        if {k for k, _ in whole.attributes} != set(record.attributes):
            continue
        seen[whole.attributes] = None
        for key, value in whole.attributes:
            if record.attributes[key] == "int" and value == 1:
                for size in kind.shape or ():
                    if isinstance(size, SizePolynomial):
                        seen[tuple(sorted({**dict(whole.attributes), key: size}.items()))] = None
    yield from seen


@lru_cache(maxsize=4096)
def _hole_shapes(
    app: OperatorTerm, position: int, kind: TensorType, target: TensorType, sizes: tuple[Dim, ...]
) -> tuple[Shapes, ...]:
    """Shapes of the holes at which the application is well-formed and of the target's type."""
    count = len(app.args) - 1
    found: list[Shapes] = []
    for ranks in product(range(1, _MOST_RANK), repeat=count):
        names = [[f"@{n}_{axis}" for axis in range(rank)] for n, rank in enumerate(ranks)]
        types: list[TensorType | None] = [TensorType(target.dtype, tuple(map(sym, some))) for some in names]
        types.insert(position, kind)
        conditions = _conditions(app, types, target)
        if conditions is None:
            continue
        flat = [n for some in names for n in some]
        wanted = [(c, symbols(c) & set(flat)) for c in conditions]
        if any(c != 0 for c, open_names in wanted if not open_names):
            continue
        for chosen in _fitting(flat, wanted, sizes):
            if len(found) == _MOST_SHAPES:
                return tuple(found)
            found.append(tuple(tuple(chosen[n] for n in some) for some in names))
    return tuple(found)


def _conditions(app: OperatorTerm, types: Sequence[TensorType | None], target: TensorType) -> list[Dim] | None:
    """Sizes that have to be 0 for the application to be of a type; ``None`` where it cannot be."""
    try:
        meaning, outputs = operator_of(app).apply(types, complete(app))
    except (IllTypedOperator, ZeroDivisionError):
        return None
    shape, wanted = outputs[0].shape or (), target.shape or ()
    if len(shape) != len(wanted) or len(outputs) > 1:
        return None
    equations: list[IndexCondition] = [c for c in meaning.obligations if c.kind == "eq"]
    return [c.size for c in equations] + [a - b for a, b in zip(shape, wanted, strict=True)]


def _fitting(
    names: Sequence[str], conditions: Sequence[tuple[Dim, frozenset[str]]], sizes: Sequence[Dim]
) -> Iterator[dict[str, Dim]]:
    """Sizes for the names at which all conditions (with the names in them) are 0, whatever the symbols stand for."""
    if not names:
        if all(c == 0 for c, _ in conditions):
            yield {}
        return
    name, *rest = names
    kept = [(c, n) for c, n in conditions if name not in n]
    mine = sorted(((c, n - {name}) for c, n in conditions if name in n), key=lambda c: len(c[1]))
    alone = [c for c, others in mine if not others]
    for size in _candidates(name, alone, sizes):
        if not all(_zero_somewhere(c, name, size) for c in alone):
            continue  # numbers are much quicker than symbols
        bound: list[tuple[Dim, frozenset[str]]] = []
        for condition, others in mine:
            new_size = substitute(condition, {name: size})
            if not others and new_size != 0:
                break
            bound.append((new_size, others))
        else:
            for more in _fitting(rest, [*kept, *bound], sizes):
                yield {name: size, **more}


def _zero_somewhere(condition: Dim, name: str, size: Dim) -> bool:
    """Whether a condition is 0 at one choice of all its symbols, as it has to be at every."""
    others = sorted((symbols(condition) | symbols(size)) - {name})
    point = {n: 61 + 30 * k + k * k for k, n in enumerate(others)}
    try:
        return value_at(condition, {**point, name: value_at(size, point)}) == 0
    except ZeroDivisionError:
        return True


def _candidates(name: str, conditions: Sequence[Dim], sizes: Sequence[Dim]) -> Sequence[Dim]:
    """The sizes, or the one of them that a condition in the name alone leaves."""
    for condition in conditions:
        zero, one, two = (substitute(condition, {name: n}) for n in range(3))
        slope = one - zero
        if two - one == slope and slope in (1, -1):
            only = zero if slope == -1 else 0 - zero
            return [only] if only in sizes else []
    return sizes


def broadcasting(target: TensorType) -> list[TensorType]:
    """Types that broadcast to a target, the target itself last; sizes of 1 in front left out."""
    found: dict[tuple[Dim, ...], None] = {}
    for keep in product((False, True), repeat=len(target.shape or ())):
        sizes = [d if k else 1 for k, d in zip(keep, target.shape or (), strict=True)]
        while sizes and sizes[0] == 1:
            sizes.pop(0)
        found[tuple(sizes)] = None
    return [TensorType(target.dtype, s) for s in sorted((s for s in found if s != target.shape), key=len)] + [target]


Attributes = dict[str, AttributeValue]


@dataclass(frozen=True)
class AxisWindow:
    """Along one axis: place ``o`` reads places ``step·o - before + t`` with ``0 ≤ t < extent``; where ``up`` is not 1,
    it reads the places ``j`` with ``0 ≤ o + before - up·j < extent``."""

    stride: Dim = 1
    up: Dim = 1
    before: Dim = 0
    extent: Dim = 1

    def behind(self, inner: AxisWindow) -> AxisWindow | None:
        """What this one sees of what the inner one makes."""
        if self == AxisWindow():
            return inner
        if inner == AxisWindow():
            return self
        if self.up != 1 or (inner.up != 1 and self.stride != 1):
            return None
        if inner.up != 1:
            return AxisWindow(1, inner.up, inner.before - self.before + self.extent - 1, inner.extent + self.extent - 1)
        return AxisWindow(
            inner.stride * self.stride, 1, inner.stride * self.before + inner.before,
            inner.stride * (self.extent - 1) + inner.extent,
        )  # fmt: skip

    def beside(self, other: AxisWindow) -> AxisWindow | None:
        """What both see together, where it is known which of them sees further."""
        ends = (self.extent - self.before, other.extent - other.before)
        before, end = _larger(self.before, other.before), _larger(*ends)
        if (self.stride, self.up) != (other.stride, other.up) or before is None or end is None:
            return None
        return AxisWindow(self.stride, self.up, before, end + before)


Views = tuple[AxisWindow, ...]


def _larger(a: Dim, b: Dim) -> Dim | None:
    apart = a - b
    return None if not isinstance(apart, int) else a if apart >= 0 else b


def looks_through(problem: SynthesisProblem, leaf: str) -> tuple[str, Attributes, tuple[Dim, ...]] | None:
    """The operator, its attributes and its window with which one convolution reads a leaf as the problem does.

    ``None`` where the problem reads it in no such way, or as a window of one place at each of its own.
    """
    types, meanings = type_terms([problem.term], problem.kinds)
    given_sizes, target = problem.kinds[leaf].shape or (), types[problem.term][0].shape or ()
    if len(given_sizes) < 3 or len(given_sizes) != len(target):
        return None
    seen: dict[Term, Views | None] = {VariableTerm(leaf): (AxisWindow(),) * (len(given_sizes) - 2)}
    for term in postorder(problem.term):
        if isinstance(term, OperatorTerm) and any(a in seen for a in term.args):
            seen[term] = _through(term, meanings[term], seen, len(given_sizes))
    views = seen.get(problem.term)
    groups = {g for t in seen if isinstance(t, OperatorTerm) and (g := dict(t.attributes).get("group")) is not None}
    if views is None or len(groups) > 1:
        return None
    group = groups.pop() if groups else 1
    return _convolution(views, given_sizes[2:], target[2:], set(problem.rule.attribute_atoms), group)


def _through(
    term: OperatorTerm, meaning: OperatorSemantics, seen: Mapping[Term, Views | None], rank: int
) -> Views | None:
    """What an application sees of a leaf, from what its operands see of it."""
    output = meaning.outputs[0]
    views: Views | None = None
    for node in subexpressions(output.body) if len(meaning.outputs) == 1 and len(output.axes) == rank else ():
        operand = term.args[node.operand] if isinstance(node, ElementRead) else None
        if not isinstance(node, ElementRead) or operand is None or operand not in seen:
            continue
        inner, outer = seen[operand], _views(output, node.index)
        behind = [o.behind(i) for o, i in zip(outer or (), inner or (), strict=False)]
        mine = tuple(v for v in behind if v is not None)
        both = [mine] if views is None else [tuple(v for a, b in zip(views, mine, strict=False) if (v := a.beside(b)))]
        if len(both[0]) < rank - 2:
            return None
        views = both[0]
    return views


def _views(output: TensorComprehension, index: Sequence[Index]) -> Views | None:
    """How one read sees its operand along the axes behind the first two; the first has to be read in place."""
    if len(index) != len(output.axes) or index[0] != (sym(output.axes[0][0][0]) if output.axes[0] else 0):
        return None
    spans = {n: e for axis in output.axes for n, e in axis}
    spans |= {n.variable: n.extent for n in subexpressions(output.body) if isinstance(n, ScalarReduction)}
    views = [_view([n for n, _ in axis], i, spans) for axis, i in zip(output.axes[2:], index[2:], strict=True)]
    return None if None in views else tuple(v for v in views if v is not None)


def _view(own: Sequence[str], index: Index, spans: Mapping[str, Dim]) -> AxisWindow | None:
    """How one index reads an axis, of which these are the digits of the result's own place."""
    position = _inside(index)
    if position is None or not own:
        return AxisWindow(before=-position) if isinstance(position, int) else None
    if len(own) == 2 and position == sym(own[0]):
        return AxisWindow(1, spans[own[1]], 0, spans[own[1]])
    if isinstance(position, SizePolynomial) and len(position.terms) == 1 and position.terms[0][1] == 1:
        atom = position.terms[0][0][0]
        if isinstance(atom, FloorQuotient) and len(position.terms[0][0]) == 1:
            shift = atom.numerator - sym(own[-1])
            return (
                AxisWindow(1, atom.denominator, shift, atom.denominator) if not symbols(shift) & spans.keys() else None
            )
    nowhere: dict[str, Dim] = dict.fromkeys(spans, 0)
    first = substitute(position, nowhere)
    slopes = {n: substitute(position, {**nowhere, n: 1}) - first for n in symbols(position) & spans.keys()}
    if position != first + sum(s * sym(n) for n, s in slopes.items()) or len(own) > 1:
        return None
    if any(isinstance(s, int) and s < 0 for s in slopes.values()):
        return None
    taps = {n: s for n, s in slopes.items() if n != own[0]}
    return AxisWindow(slopes.get(own[0], 0), 1, -first, 1 + sum(s * (spans[n] - 1) for n, s in taps.items()))


def _inside(index: Index) -> Dim | None:
    """A position, which may be moved to the nearest one inside."""
    while isinstance(index, ScalarCall) and index.function in ("max", "min"):
        inner = [a for a in index.args if isinstance(a, ScalarCall | SizeExpression)]
        if not inner:
            return None
        index = inner[0]
    return (
        index.size if isinstance(index, SizeExpression) else index if isinstance(index, int | SizePolynomial) else None
    )


def _convolution(
    views: Views, given_sizes: Sequence[Dim], target: Sequence[Dim], atoms: set[str], group: AttributeValue
) -> tuple[str, Attributes, tuple[Dim, ...]] | None:
    """The operator that has these windows; the padding behind follows from the sizes."""
    if all(v.extent == 1 and v.up == 1 for v in views) or any(v.stride == 0 for v in views):
        return None
    up = any(v.up != 1 for v in views)
    if up and (any(v.stride != 1 for v in views) or all(v.extent == v.up for v in views)):
        return None  # where every place reads one place, it is copied, and nothing is summed
    windows, before = [v.extent for v in views], [v.before for v in views]
    if up:
        after = [v.up * (n - 1) + v.extent - v.before - m for v, n, m in zip(views, given_sizes, target, strict=True)]
    else:
        after = [
            v.stride * (m - 1) + v.extent - v.before - n for v, n, m in zip(views, given_sizes, target, strict=True)
        ]
    pads = (*before, *after)
    known = atoms | {n for w in windows for n in symbols(w)}
    if any(p < 0 if isinstance(p, int) else symbols(p) - known for p in pads):
        return None
    made: Attributes = {"dilations": (1,) * len(views), "group": group, "pads": pads}
    made["strides"] = tuple(v.up if up else v.stride for v in views)
    if up:
        made["output_padding"] = (0,) * len(views)
    return "ConvTranspose" if up else "Conv", made, tuple(windows)
