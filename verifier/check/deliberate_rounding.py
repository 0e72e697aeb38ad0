"""Whether a model may round on purpose on the way to an output: the reals are no measure of that output then.

Read off the original, without the code by which the search finds such sums. Every value is a linear combination of
atoms; values of one expression are one atom. A rounding may be meant

- where a sum cancels one of its operands whole, after something was rounded: ``(x + C) - C``, ``(a + b) - a``;
- where a constant is added that is so large that terms of magnitude 1 lose half of their bits beside it;
- where a sum over elements, of which some were picked out or put together, meets those elements again;
- where an operator narrows a type, or has no meaning that can be read.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf

import ml_dtypes
import numpy as np

from superopt.ir.graph import Graph
from superopt.ir.types import DType, TensorType
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.ops.rounding_effects import RoundingEffect
from superopt.ops.shape_inference import CanonicalNode, InferredTypes
from superopt.verifier.check.boundary_value_targets import constant_array
from superopt.verifier.check.rounding_noise import ELEMENTARY
from superopt.verifier.check.tolerance import element_type

__all__ = ["outputs_rounded_on_purpose"]

_NEARLY = 1 / 16  # share of the coefficients that is left at most: bfloat16, of 8 bits, is split by 17, and 17 - 16 = 1
_MOST_TERMS = 128  # of a combination; what sums more is not looked through, and may be anything
_SUMS = frozenset({"Add", "Sub", "Sum", "Mean"})
_COPIES = frozenset({"Identity", "Dropout"})  # every atom stays in its place
_WHOLE_MOVES = frozenset(
    {*_COPIES, "Expand", "Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
)  # of all elements
_WHOLE = 1 << 16  # elements of a constant that is looked at
_ONE = -1  # the atom of which constants of one value are multiples


@dataclass(frozen=True)
class _Atom:
    """What a form is a combination of.

    Attributes:
        sources: atoms whose elements it holds, or sums over.
        summed: elements of those are summed in it.
        picked: it holds some of their elements, or those of several.
    """

    sources: frozenset[int]
    summed: bool = False
    picked: bool = False


@dataclass(frozen=True)
class _Form:
    """A value as a combination of atoms. ``rounded``: only up to rounding errors; ``meant``: some may be on purpose."""

    terms: Mapping[int, float]
    rounded: bool = False
    meant: bool = False


def outputs_rounded_on_purpose(graph: Graph, typing: InferredTypes) -> frozenset[str]:
    """Names of the values of a graph that a deliberate rounding may lead to."""
    forms = _Forms(graph, typing)
    for position, node in enumerate(graph.nodes):
        forms.add(position, [o for o in node.outputs if o])
    return frozenset(name for name, form in forms.known.items() if form.meant)


class _Forms:
    """The combinations of a graph's values, in order."""

    def __init__(self, graph: Graph, typing: InferredTypes) -> None:
        self.graph, self.typing = graph, typing
        self.known: dict[str, _Form] = {}
        self.atoms: dict[Hashable, int] = {}
        self.made: dict[int, _Atom] = {}  # of atoms that hold elements of others
        self.magnitudes: dict[int, float] = {}  # of atoms that are constants: of their largest element

    def form(self, name: str) -> _Form:
        if name not in self.known:
            array = constant_array(self.graph, name)
            held = array is not None or name in self.graph.constants
            self.known[name] = self._constant(name, array) if held else self._unknown(name)
        return self.known[name]

    def _atom(self, *key: Hashable) -> int:
        return self.atoms.setdefault(key, len(self.atoms))

    def _unknown(self, name: str, *, meant: bool = False) -> _Form:
        return _Form({self._atom("value", name): 1.0}, meant, meant)

    def _constant(self, name: str, array: np.ndarray | None) -> _Form:
        """A constant: a number where all its elements are one, else an atom, the same for equal ones."""
        atom = self._atom("value", name)
        self.magnitudes[atom] = inf
        if array is None or element_type(array) is None or not 0 < array.size <= _WHOLE:
            return _Form({atom: 1.0})
        elements = array.reshape(-1).astype(np.float64)
        if np.isfinite(elements[0]) and (elements == elements[0]).all():
            return _Form({_ONE: float(elements[0])} if elements[0] else {})
        atom = self._atom("constant", array.shape, elements.tobytes())
        self.magnitudes[atom] = float(np.abs(elements).max())
        return _Form({atom: 1.0})

    def add(self, place: int, outputs: Sequence[str]) -> None:
        """What the node at a place makes."""
        node = self.typing.nodes[place]
        if not self.graph.nodes[place].inputs and len(outputs) == 1:
            self.form(outputs[0])
            return
        if not isinstance(node, CanonicalNode):
            self.known.update((o, self._unknown(o, meant=True)) for o in outputs)
            return
        args = [a for a in node.args if a is not None]
        forms = [self.form(a) for a in args]
        meant = any(f.meant for f in forms) or self._rounding(node).narrows
        shares = self._shares(node, forms)
        if shares is not None and outputs:
            parts = [(s, f) for s, f in zip(shares, forms, strict=True) if s]
            kind = self.typing.types.get(outputs[0])
            meant = meant or (node.operator.name in _SUMS and self._may_be_meant(parts, kind))
            combined = _combined(parts, exact=node.operator.name == "Neg" or kind is None or not kind.dtype.is_float)
            if len(combined.terms) > _MOST_TERMS:
                combined, meant = self._unknown(outputs[0]), True
            self.known[outputs[0]] = _Form(combined.terms, combined.rounded, meant)
            return
        self._other(node, forms, outputs, meant)

    def _other(self, node: CanonicalNode, forms: Sequence[_Form], outputs: Sequence[str], meant: bool) -> None:
        """An operator that is no sum: it moves the atoms of its one operand, or makes an atom of its own."""
        head = (node.operator.name, tuple((n, repr(v)) for n, v in sorted(node.attributes.items())))
        rounded, moves = any(f.rounded for f in forms), self._moves_elements(node)
        picked = moves and node.operator.name not in _WHOLE_MOVES
        if len(forms) == 1 and len(outputs) == 1 and moves:
            plain = node.operator.name in _COPIES
            atoms = {a: a if plain or a == _ONE else self._atom(*head, a) for a in forms[0].terms}
            self.magnitudes.update((atoms[a], self.magnitudes[a]) for a in atoms if a in self.magnitudes)
            for old, new in atoms.items():
                if old != new:
                    known_atom = self._of(old)
                    self.made[new] = _Atom(known_atom.sources, known_atom.summed, known_atom.picked or picked)
            self.known[outputs[0]] = _Form({atoms[a]: c for a, c in forms[0].terms.items()}, rounded, meant)
            return
        keys = [tuple(sorted(f.terms.items())) for f in forms]
        if node.operator.commutative:
            keys.sort()
        for index, output in enumerate(outputs):
            atom = self._atom(*head, tuple(keys), index)
            if forms and all(a == _ONE or a in self.magnitudes for f in forms for a in f.terms):
                self.magnitudes[atom] = inf  # computed of constants alone
            if moves or node.operator.name not in ELEMENTARY:
                read = [self._of(a) for f in forms for a in f.terms]
                sources = frozenset[int]().union(*(r.sources for r in read))
                summed = not self._rounding(node).exact or any(r.summed for r in read)
                self.made[atom] = _Atom(sources, summed, picked or any(r.picked for r in read))
            self.known[output] = _Form({atom: 1.0}, rounded, meant)

    def _of(self, atom: int) -> _Atom:
        return self.made.get(atom, _Atom(frozenset({atom})))

    def _shares(self, node: CanonicalNode, forms: Sequence[_Form]) -> list[float] | None:
        """The number that each operand is multiplied with in a sum, or in a product with numbers; ``None`` where it is
        neither."""
        name = node.operator.name
        if name in _SUMS:
            share = 1.0 / len(forms) if name == "Mean" else 1.0
            return [-1.0 if name == "Sub" and position else share for position in range(len(forms))]
        if name == "Neg":
            return [-1.0]
        if name in ("Mul", "Div") and len(forms) == 2:
            left, right = (f.terms[_ONE] if f.terms.keys() == {_ONE} else None for f in forms)
            if right is not None:
                return [right if name == "Mul" else 1.0 / right, 0.0]
            if left is not None and name == "Mul":
                return [0.0, left]
        return None

    def _may_be_meant(self, parts: Sequence[tuple[float, _Form]], kind: TensorType | None) -> bool:
        forms = [form for _, form in parts]
        return _cancels(parts) or self._adds_a_scale(parts, kind) or self._meets_its_elements(forms)

    def _adds_a_scale(self, parts: Sequence[tuple[float, _Form]], kind: TensorType | None) -> bool:
        """Whether a constant of the format's scale is added."""
        scale = _scale_of(kind.dtype) if kind is not None and kind.dtype.is_float else inf
        magnitudes = {**self.magnitudes, _ONE: 1.0}
        return any(abs(s * c) * magnitudes[a] >= scale for s, f in parts for a, c in f.terms.items() if a in magnitudes)

    def _meets_its_elements(self, forms: Sequence[_Form]) -> bool:
        """Whether a sum over elements is added to some of them, either having been picked out or put together."""
        met = [[self._of(a) for a in form.terms] for form in forms]
        return any(
            (one.summed or other.summed) and (one.picked or other.picked) and not one.sources.isdisjoint(other.sources)
            for position, some in enumerate(met)
            for others in met[position + 1 :]
            for one in some
            for other in others
        )

    def _rounding(self, node: CanonicalNode) -> RoundingEffect:
        try:
            return node.operator.rounding(self._types(node), node.attributes)
        except (IllTypedOperator, ArithmeticError):
            return RoundingEffect(exact=False, jumps=True, narrows=True)

    def _moves_elements(self, node: CanonicalNode) -> bool:
        try:
            return node.operator.moves(self._types(node), node.attributes)
        except (IllTypedOperator, ArithmeticError):
            return False

    def _types(self, node: CanonicalNode) -> tuple[TensorType | None, ...]:
        return tuple(None if a is None else self.typing.types.get(a) for a in node.args)


def _cancels(parts: Sequence[tuple[float, _Form]]) -> bool:
    """Whether a sum takes one of its operands away whole, something having been rounded."""
    gone = set[int]()
    for atom in {a for _, form in parts for a in form.terms}:
        given = [(share * form.terms[atom], form) for share, form in parts if atom in form.terms]
        left, whole = sum(c for c, _ in given), sum(abs(c) for c, _ in given)
        if len(given) > 1 and abs(left) <= _NEARLY * whole and any(form.rounded for _, form in given):
            gone.add(atom)
    return any(form.terms and gone.issuperset(form.terms) for _, form in parts)


def _combined(parts: Sequence[tuple[float, _Form]], *, exact: bool) -> _Form:
    terms: dict[int, float] = {}
    largest: dict[int, float] = {}
    for share, form in parts:
        for atom, coefficient in form.terms.items():
            terms[atom] = terms.get(atom, 0.0) + share * coefficient
            largest[atom] = max(largest.get(atom, 0.0), abs(share * coefficient))
    left = {a: c for a, c in terms.items() if abs(c) > 1e-12 * largest[a]}  # what float64 leaves of zero is zero
    return _Form(left, not exact or any(form.rounded for _, form in parts))


def _scale_of(dtype: DType) -> float:
    """2 to half of a format's bits, rounded up: adding as much to a number of magnitude 1 rounds half of its bits."""
    bits = int(ml_dtypes.finfo(dtype.numpy).nmant) + 1  # type: ignore[no-untyped-call]
    return float(2.0 ** ceil(bits / 2))
