"""Through which window of an image each element of a part's result looks: what one convolution in its place would have
for stride, window and padding.

Read off the operators' meanings: an index ``s·o - p + t`` with taps ``t`` below ``u`` is a window, ``⌊o/s⌋`` one of a
transposed convolution; windows behind each other make one, and so do windows beside each other. Nothing is claimed:
whether there are weights for such a convolution is decided as for any other skeleton.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from superopt.discovery.lifting import Problem
from superopt.ir.poly import Dim, Poly, Quotient, substitute, sym, symbols
from superopt.ir.terms import App, AttributeValue, Term, Var, postorder
from superopt.ops.meaning import Call, Comprehension, Index, Meaning, Read, Reduce, SizeValue, subexpressions
from superopt.rules.typing import type_terms

__all__ = ["looks_through"]

Attributes = dict[str, AttributeValue]


@dataclass(frozen=True)
class View:
    """Along one axis: place ``o`` reads places ``step·o - before + t`` with ``0 ≤ t < extent``; where ``up`` is not 1,
    it reads the places ``j`` with ``0 ≤ o + before - up·j < extent``."""

    step: Dim = 1
    up: Dim = 1
    before: Dim = 0
    extent: Dim = 1

    def behind(self, inner: View) -> View | None:
        """What this one sees of what the inner one makes."""
        if self == View():
            return inner
        if inner == View():
            return self
        if self.up != 1 or (inner.up != 1 and self.step != 1):
            return None
        if inner.up != 1:
            return View(1, inner.up, inner.before - self.before + self.extent - 1, inner.extent + self.extent - 1)
        return View(
            inner.step * self.step, 1, inner.step * self.before + inner.before,
            inner.step * (self.extent - 1) + inner.extent,
        )  # fmt: skip

    def beside(self, other: View) -> View | None:
        """What both see together, where it is known which of them sees further."""
        ends = (self.extent - self.before, other.extent - other.before)
        before, end = _larger(self.before, other.before), _larger(*ends)
        if (self.step, self.up) != (other.step, other.up) or before is None or end is None:
            return None
        return View(self.step, self.up, before, end + before)


Views = tuple[View, ...]


def _larger(a: Dim, b: Dim) -> Dim | None:
    apart = a - b
    return None if not isinstance(apart, int) else a if apart >= 0 else b


def looks_through(problem: Problem, leaf: str) -> tuple[str, Attributes, tuple[Dim, ...]] | None:
    """The operator, its attributes and its window with which one convolution reads a leaf as the problem does.

    ``None`` where the problem reads it in no such way, or as a window of one place at each of its own.
    """
    types, meanings = type_terms([problem.term], problem.kinds)
    given, target = problem.kinds[leaf].shape or (), types[problem.term][0].shape or ()
    if len(given) < 3 or len(given) != len(target):
        return None
    seen: dict[Term, Views | None] = {Var(leaf): (View(),) * (len(given) - 2)}
    for term in postorder(problem.term):
        if isinstance(term, App) and any(a in seen for a in term.args):
            seen[term] = _through(term, meanings[term], seen, len(given))
    views = seen.get(problem.term)
    groups = {g for t in seen if isinstance(t, App) and (g := dict(t.attributes).get("group")) is not None}
    if views is None or len(groups) > 1:
        return None
    group = groups.pop() if groups else 1
    return _convolution(views, given[2:], target[2:], set(problem.rule.attribute_atoms), group)


def _through(term: App, meaning: Meaning, seen: Mapping[Term, Views | None], rank: int) -> Views | None:
    """What an application sees of a leaf, from what its operands see of it."""
    output = meaning.outputs[0]
    found: Views | None = None
    for node in subexpressions(output.body) if len(meaning.outputs) == 1 and len(output.axes) == rank else ():
        operand = term.args[node.operand] if isinstance(node, Read) else None
        if not isinstance(node, Read) or operand is None or operand not in seen:
            continue
        inner, outer = seen[operand], _views(output, node.index)
        behind = [o.behind(i) for o, i in zip(outer or (), inner or (), strict=False)]
        mine = tuple(v for v in behind if v is not None)
        both = [mine] if found is None else [tuple(v for a, b in zip(found, mine, strict=False) if (v := a.beside(b)))]
        if len(both[0]) < rank - 2:
            return None
        found = both[0]
    return found


def _views(output: Comprehension, index: Sequence[Index]) -> Views | None:
    """How one read sees its operand along the axes behind the first two; the first has to be read in place."""
    if len(index) != len(output.axes) or index[0] != (sym(output.axes[0][0][0]) if output.axes[0] else 0):
        return None
    spans = {n: e for axis in output.axes for n, e in axis}
    spans |= {n.variable: n.extent for n in subexpressions(output.body) if isinstance(n, Reduce)}
    found = [_view([n for n, _ in axis], i, spans) for axis, i in zip(output.axes[2:], index[2:], strict=True)]
    return None if None in found else tuple(v for v in found if v is not None)


def _view(own: Sequence[str], index: Index, spans: Mapping[str, Dim]) -> View | None:
    """How one index reads an axis, of which these are the digits of the result's own place."""
    place = _inside(index)
    if place is None or not own:
        return View(before=-place) if isinstance(place, int) else None
    if len(own) == 2 and place == sym(own[0]):
        return View(1, spans[own[1]], 0, spans[own[1]])
    if isinstance(place, Poly) and len(place.terms) == 1 and place.terms[0][1] == 1:
        atom = place.terms[0][0][0]
        if isinstance(atom, Quotient) and len(place.terms[0][0]) == 1:
            shift = atom.numerator - sym(own[-1])
            return View(1, atom.denominator, shift, atom.denominator) if not symbols(shift) & spans.keys() else None
    nowhere: dict[str, Dim] = dict.fromkeys(spans, 0)
    first = substitute(place, nowhere)
    slopes = {n: substitute(place, {**nowhere, n: 1}) - first for n in symbols(place) & spans.keys()}
    if place != first + sum(s * sym(n) for n, s in slopes.items()) or len(own) > 1:
        return None
    if any(isinstance(s, int) and s < 0 for s in slopes.values()):
        return None
    taps = {n: s for n, s in slopes.items() if n != own[0]}
    return View(slopes.get(own[0], 0), 1, -first, 1 + sum(s * (spans[n] - 1) for n, s in taps.items()))


def _inside(index: Index) -> Dim | None:
    """A position, which may be moved to the nearest one inside."""
    while isinstance(index, Call) and index.function in ("max", "min"):
        inner = [a for a in index.args if isinstance(a, Call | SizeValue)]
        if not inner:
            return None
        index = inner[0]
    return index.size if isinstance(index, SizeValue) else index if isinstance(index, int | Poly) else None


def _convolution(
    views: Views, given: Sequence[Dim], target: Sequence[Dim], atoms: set[str], group: AttributeValue
) -> tuple[str, Attributes, tuple[Dim, ...]] | None:
    """The operator that has these windows; the padding behind follows from the sizes."""
    if all(v.extent == 1 and v.up == 1 for v in views) or any(v.step == 0 for v in views):
        return None
    up = any(v.up != 1 for v in views)
    if up and (any(v.step != 1 for v in views) or all(v.extent == v.up for v in views)):
        return None  # where every place reads one place, it is copied, and nothing is summed
    windows, before = [v.extent for v in views], [v.before for v in views]
    if up:
        after = [v.up * (n - 1) + v.extent - v.before - m for v, n, m in zip(views, given, target, strict=True)]
    else:
        after = [v.step * (m - 1) + v.extent - v.before - n for v, n, m in zip(views, given, target, strict=True)]
    pads = (*before, *after)
    known = atoms | {n for w in windows for n in symbols(w)}
    if any(p < 0 if isinstance(p, int) else symbols(p) - known for p in pads):
        return None
    made: Attributes = {"dilations": (1,) * len(views), "group": group, "pads": pads}
    made["strides"] = tuple(v.up if up else v.step for v in views)
    if up:
        made["output_padding"] = (0,) * len(views)
    return "ConvTranspose" if up else "Conv", made, tuple(windows)
