"""Proofs of a second model's values, region by region: each from values that the two models already share.

A value is *established* if its region was proved and every leaf of the region is established, down to inputs and
weights. It is also *exact* if only moves of elements lie between it and values that are bit for bit the first model's.
Behind an exact value, a discontinuity (:func:`~superopt.verifier.equivalence.runtime_folded_constants.jumps`) has the
same result in both models. A value that is equal over the reals only may be rounded to either side of a jump: behind it
a proof says nothing about what runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from superopt.ir.terms import OperatorTerm, OutputTerm, Term, VariableTerm, postorder, remade, variables
from superopt.ir.types import DType, TensorType
from superopt.ops.shape_inference import CanonicalNode, OpaqueNode
from superopt.rules import Rule, TensorVariableType
from superopt.verifier.equivalence.runtime_folded_constants import jumps
from superopt.verifier.equivalence.value_alignment import ModelValueClasses, digest_of, literal
from superopt.verifier.prover.piecewise_proofs import prove_joined
from superopt.verifier.verdict import ProvedVerdict

__all__ = ["PROVED", "ROUNDED", "RegionVerdict", "RegionProver"]

PROVED = "proved"
ROUNDED = "proved up to rounding"
_LARGEST = 400  # operators of one side of a region
# The same where a proof from the nearest values failed and one from farther away is tried: reductions inside reductions
# multiply, and a transformer's layer with its normalisation is more than the prover takes in one piece.
_FAR = 60
_BEHIND = 12  # and where nearer values are aligned and one of them is only tested: what is behind it grows step by step
# Operators that move elements and compute none.
_MOVES = frozenset(
    {"Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "Identity", "Reshape", "Slice",
     "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
)  # fmt: skip


@dataclass(frozen=True)
class RegionVerdict:
    """A value of the second model and how it is known to equal one of the first.

    Attributes:
        output: its name.
        verdict: "proved", "proved up to rounding" (of the folded constants that the region reads) or "tested".
        operators: nodes of the region.
        reason: why it was not proved.
        max_ulp: how far those constants are from what they were computed from, in units in the last place.
    """

    output: str
    verdict: str
    operators: int
    reason: str = ""
    max_ulp: float = 0.0


@dataclass(frozen=True)
class _Walk:
    """What a term was made of: leaves and inner values, by name."""

    leaves: list[str] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)


@dataclass
class RegionProver:
    """Proofs of aligned values, in the second model's order.

    Attributes:
        a, b: the models.
        partners: by value of ``b``, a value of ``a`` that it probably equals.
        ulps: by value of ``b`` that was put back as an expression, how far the weight was from it; those of ``a`` too.
        time_limit: seconds for one proof.
        deadline: ``time.monotonic`` value after which none is begun.
    """

    a: ModelValueClasses
    b: ModelValueClasses
    partners: dict[str, str]
    ulps: Mapping[str, float]
    time_limit: float
    deadline: float
    regions: list[RegionVerdict] = field(default_factory=list)
    established: set[str] = field(default_factory=set)
    exact: set[str] = field(default_factory=set)
    _memo: dict[str, tuple[bool, str]] = field(default_factory=dict)
    _inside: dict[str, str] = field(default_factory=dict)

    @cached_property
    def outputs(self) -> frozenset[str]:
        return frozenset(v.name for v in self.b.graph.outputs)

    @cached_property
    def rounded(self) -> tuple[frozenset[str], frozenset[str]]:
        """Values of either model behind a weight that was put back and is not exactly its expression."""
        off = frozenset(n for n, u in self.ulps.items() if u > 0)
        return self.a.differing(off), self.b.differing(off)

    def same(self, name: str) -> bool:
        """Whether a value of ``b`` is literally one of ``a``, computed from the same bits by the same operators."""
        partner = self.partners.get(name)
        return partner is not None and self.b.classes[name] == self.a.classes[partner] and not self._tainted(name)

    def _tainted(self, name: str) -> bool:
        """Whether rounding of folded constants is behind a value of ``b`` or its partner."""
        return name in self.rounded[1] or self.partners.get(name) in self.rounded[0]

    def run(self) -> None:
        """Decide every value that has a partner."""
        for name in self.b.classes:
            if name not in self.b.producers and name in self.partners:
                self.established.add(name)
                self.exact.add(name)
        for node in self.b.graph.nodes:
            for output in node.outputs:
                if output and self.same(output):
                    self.established.add(output)
                    self.exact.add(output)
                elif output and not self.congruent(output) and output in self.partners and output not in self.b.opened:
                    self.region(output)

    def congruent(self, output: str) -> bool:
        """Whether a changed value is what some node of ``a`` computes, of aligned values: then it equals that.

        It holds for any node, opaque ones too: equal arguments give equal results. A constant that is no argument of
        what is applied is in its attributes (the sizes of a ``Reshape``), and need not be one of ``a``'s.
        """
        node, form, position = self.b.producers[output]
        args = form.args if isinstance(form, CanonicalNode) else ()
        told = [n for n in node.inputs if n in self.b.producers] if args else node.inputs
        reads = [n for n in (*args, *told, *node.captures) if n]
        classes = {n: self.a.classes[self.partners[n]] if n in self.partners else self.b.classes[n] for n in reads}
        text = digest_of(self.b.text(node, form, position, classes))
        found = self.a.named.get(self.a.aliases.get(text, text))
        if found is None or (output in self.outputs and self.a.classes[found] != self.a.classes[output]):
            return False
        self.partners[output] = output if output in self.outputs else found
        if self.exact.issuperset(reads) and not self._tainted(output):
            self.exact.add(output)
        elif jumps(node, self.b.typing.types):
            self.note(output, "tested", [output], f"{node.op} jumps, and what it reads is equal over the reals only")
            return True
        if self.established.issuperset(reads):
            self.established.add(output)
        self.note(output, self._worded(reads), [output], "", reads)
        return True

    def _worded(self, reads: Iterable[str]) -> str:
        return ROUNDED if self._ulp(reads) > 0 else PROVED

    def _ulp(self, reads: Iterable[str]) -> float:
        return max((self.ulps.get(n, 0.0) for n in reads), default=0.0)

    def region(self, output: str) -> None:
        """Decide whether a value of ``b`` equals its partner, given that what it is computed from does."""
        reasons: list[str] = []
        held: tuple[_Walk, _Walk] | None = None
        for leaf, wide, most in (
            (self._aligned, True, _LARGEST), (self.established.__contains__, True, _LARGEST),
            (self._unchanged, False, _FAR),
        ):  # fmt: skip
            found = self._attempt(output, leaf, wide, most if held is None else _BEHIND, reasons)
            if found is None:
                continue
            held = found
            if self.established.issuperset(found[0].leaves):
                self.established.add(output)
                break
        if held is None:
            self.note(output, "tested", [output], next((r for r in reasons if r), ""))
            return
        inner, other = held
        moved = self._moves_elements(self.b, inner) and self._moves_elements(self.a, other)
        if moved and self.exact.issuperset(inner.leaves) and not self._tainted(output):
            self.exact.add(output)
        read = [*inner.nodes, *inner.leaves, *other.nodes, *other.leaves]
        self.note(output, self._worded(read), inner.nodes, "", read)

    def _attempt(
        self, output: str, leaf: Callable[[str], bool], wide: bool, most: int, reasons: list[str]
    ) -> tuple[_Walk, _Walk] | None:  # fmt: skip
        """A proof over these leaves: what it went through on either side."""
        goal = self.partners[output]
        right, why, inner = self._term(self.b, output, lambda n: n != output and n in self.partners and leaf(n), most)
        reasons.append(why)
        if right is None:
            return None
        classes = self.a.classes
        names = {classes[self.partners[n]] for n in inner.leaves}
        cuts = [names | {classes[p] for n, p in self.partners.items() if leaf(n)}, names] if wide else [names]
        for position, cut in enumerate(cuts):
            other = _Walk([goal])
            left: Term | None = self._leaf(goal)
            if classes[goal] not in names:  # else the value is computed from one that equals it already
                left, why, other = self._term(
                    self.a, goal, self._within(goal, cut), min(most, _FAR) if position else most
                )
            reasons.append(why)
            if left is None:
                continue
            shown, why = self._equal(left, right)
            if shown:
                return inner, other
            reasons.append(why)
            read = {classes[n] for n in other.leaves}
            if names <= read:
                continue
            # The second model reads aligned values that the first computes farther on: start where the first does.
            nearer, why, walk = self._term(self.b, output, self._among(output, read, leaf), most)
            if nearer is not None:
                shown, why = self._equal(left, nearer)
            if shown:
                return walk, other
            reasons.append(why)
        return None

    def _among(self, output: str, read: set[str], leaf: Callable[[str], bool]) -> Callable[[str], bool]:
        """Whether a value of ``b``, other than the output, is such a leaf and equals one of these classes."""
        classes = self.a.classes
        return lambda n: n != output and n in self.partners and leaf(n) and classes[self.partners[n]] in read

    def _within(self, goal: str, cut: set[str]) -> Callable[[str], bool]:
        """Whether a value of ``a``, other than the goal, is of one of these classes."""
        return lambda name: name != goal and self.a.classes[name] in cut

    def _equal(self, left: Term, right: Term) -> tuple[bool, str]:
        """Whether two terms are equal: whatever short weights hold, and else for what they do hold."""
        found = self._proved(left, right)
        if found[0]:
            return found
        numbers = {n: t for n in variables(left, right) if (t := literal(self.a, n)) is not None}
        return self._proved(_put(left, numbers), _put(right, numbers)) if numbers else found

    def _unchanged(self, name: str) -> bool:
        """Whether a value of ``b`` is literally one of ``a``, or a weight."""
        return name not in self.b.producers or self.same(name)

    def _aligned(self, name: str) -> bool:
        return name not in self.b.opened

    @staticmethod
    def _moves_elements(side: ModelValueClasses, walk: _Walk) -> bool:
        return all(
            isinstance(f := side.producers[n][1], CanonicalNode) and f.operator.name in _MOVES for n in walk.nodes
        )

    def note(self, output: str, verdict: str, nodes: Sequence[str], reason: str, reads: Iterable[str] = ()) -> None:
        if output in self.b.opened:
            return
        own = [n for n in nodes if n not in self.b.opened]
        self.regions.append(RegionVerdict(output, verdict, len(own), reason, self._ulp(reads)))
        for name in own:
            if verdict != "tested" or name not in self._inside:
                self._inside[name] = verdict

    def covered(self, output: str) -> str | None:
        """How a value of ``b`` is covered by regions; ``None`` where it is in none."""
        return self._inside.get(output)

    # ── terms ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _term(
        self, side: ModelValueClasses, root: str, leaf: Callable[[str], bool], most: int
    ) -> tuple[Term | None, str, _Walk]:
        """The term of a value over leaves, named by ``a``'s values; ``None`` and a reason where there is none."""
        terms: dict[str, Term] = {}
        used = _Walk()
        stack = [(root, False)]
        while stack:
            name, expanded = stack.pop()
            if name in terms:
                continue
            if leaf(name) or name not in side.producers:
                term = self._end(side, name)
                if term is None:
                    return None, f"the value {name} is only in the second model", used
                if side is self.a or name in self.partners:
                    used.leaves.append(name)
                terms[name] = term
                continue
            node, form, position = side.producers[name]
            if isinstance(form, OpaqueNode):
                return None, f"{node.op} is opaque: {form.reason}", used
            if jumps(node, side.typing.types) and not self._fixed(side, form, leaf):
                return None, f"{node.op} jumps: only equal arguments show equal results", used
            if not expanded:
                stack.append((name, True))
                stack += [(x, False) for x in form.args if x is not None]
                continue
            used.nodes.append(name)
            if len(used.nodes) > most:
                return None, f"the region has more than {most} operators", used
            app = OperatorTerm(
                form.operator.name,
                tuple(None if x is None else terms[x] for x in form.args),
                tuple(sorted(form.attributes.items())),
            )
            several = len(form.operator.outputs) > 1 or form.operator.outputs[0].endswith("*")
            terms[name] = OutputTerm(app, position) if several else app
        return terms[root], "", used

    def _fixed(self, side: ModelValueClasses, form: CanonicalNode, leaf: Callable[[str], bool]) -> bool:
        """Whether an operator that jumps reads only leaves that are bit for bit the first model's.

        Then it does what it does over the reals, but for a Cast that rounds: over the reals that does nothing.
        """
        if form.operator.name in ("Cast", "CastLike"):
            return False
        return all(
            x is None or ((leaf(x) or x not in side.producers) and (side is self.a or x in self.exact))
            for x in form.args
        )

    def _end(self, side: ModelValueClasses, name: str) -> Term | None:
        """A leaf: a value of ``a``, or a number that is only in ``b``."""
        if side is self.a:
            return self._leaf(name)
        partner = self.partners.get(name)
        return literal(side, name) if partner is None else self._leaf(partner)

    def _leaf(self, name: str) -> Term:
        """A variable, one for all values of a class, or the number that a weight is everywhere."""
        return literal(self.a, name, uniform=True) or VariableTerm(self.a.named[self.a.classes[name]])

    def _proved(self, left: Term, right: Term) -> tuple[bool, str]:
        """Whether two terms over ``a``'s values are equal at the values' types."""
        renamed = {n: f"x{i}" for i, n in enumerate(variables(left, right))}
        forall: dict[str, TensorVariableType] = {}
        for name, short in renamed.items():
            kind = self.a.typing.types.get(name)
            if not isinstance(kind, TensorType) or kind.shape is None:
                return False, f"the type of {name} is not known"
            letter = _letter(kind.dtype)
            if not letter:
                return False, f"{name} is {kind.dtype}"
            forall[short] = TensorVariableType(letter, kind.shape)
        sides = tuple(_renamed(t, renamed) for t in (left, right))
        key = f"{sides[0]} = {sides[1]} for {forall}"
        if key not in self._memo:
            seconds = min(self.time_limit, self.deadline - time.monotonic())
            if seconds <= 0:
                return False, "the time for proofs ran out"
            verdict = prove_joined(Rule("region", forall, (), (sides[0],), (sides[1],)), time_limit=seconds)
            shown = isinstance(verdict, ProvedVerdict)
            self._memo[key] = shown, "" if shown else getattr(verdict, "reason", "")
        return self._memo[key]


def _letter(dtype: DType) -> str:
    """How rules write an element type; "" for those that no rule speaks of."""
    if dtype.is_float:
        return "f"
    return {DType.BOOL: "b", DType.INT64: "i"}.get(dtype, "")


def _put(term: Term, numbers: Mapping[str, Term]) -> Term:
    """The term with numbers for some variables."""
    terms: dict[Term, Term] = {}
    for t in postorder(term):
        terms[t] = numbers.get(t.name, t) if isinstance(t, VariableTerm) else remade(t, terms)
    return terms[term]


def _renamed(term: Term, names: Mapping[str, str]) -> Term:
    """The term with variables renamed and element types left to the rule."""
    terms: dict[Term, Term] = {}
    for t in postorder(term):
        attributes = None
        if isinstance(t, OperatorTerm):
            attributes = tuple(
                (k, v)
                for k, v in t.attributes
                if not (k == "dtype" and v in ("float32", "float16", "bfloat16", "float64"))
            )
        terms[t] = VariableTerm(names[t.name]) if isinstance(t, VariableTerm) else remade(t, terms, attributes)
    return terms[term]
