"""A weight read off by evaluating: what the left side makes of an input of which an operator makes its weight.

``MatMul(I, w)`` is ``w``, and so is a convolution of unit impulses, a product with ones, a sum with zeros. Where a left
side ``L`` is equal to ``MatMul(x, w) + c`` for some ``w`` and ``c``, these are therefore ``L(I) - L(0)`` and ``L(0)``:
expressions over the left side's weights, however many operators it has. Sizes that no weight has (leading axes,
images) are chosen as small as the input needs. A convolution's weight is also what its adjoint makes of unit impulses
of the output, and the left side's adjoint is put together from the operators' derivatives: no image for each tap.
Nothing is claimed: whether an expression is the weight that is asked
for is compared with its fingerprints, and whether the whole is equal is proved like everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from math import prod

from superopt.discovery.data_movement_terms import rearranged
from superopt.discovery.operator_skeletons import Skeleton
from superopt.discovery.symbolic_generalisation import SynthesisProblem
from superopt.discovery.template import size_at
from superopt.discovery.weight_equations import SampledProblemInstance, WeightConstraints, meanings_of, residues
from superopt.ir.size_polynomial import Dim, SizePolynomial, substitute, sym, symbols
from superopt.ir.terms import AttributeValue, OperatorTerm, Term, VariableTerm, postorder, remade, variables
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.derivative.pullback_pushforward import pull
from superopt.ops.derivative.typed_terms import DifferentiationSite, NotDifferentiable, TypedTerm
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.rules.canonical import map_terms
from superopt.rules.scanner import RuleError
from superopt.rules.typing import complete, type_terms
from superopt.runtime.comprehension_evaluation import Array
from superopt.verifier.exact.algebra import InverseOfZero, NeedsOrder

__all__ = ["response"]

_PROBE = "@probe"
_UNDEFINED = (IllTypedOperator, RuleError, InverseOfZero, NeedsOrder, ZeroDivisionError, KeyError)


@dataclass(frozen=True)
class ImpulseInput:
    """An input of which an operator makes its weight.

    Attributes:
        sizes: what sizes and attributes are chosen to be.
        term: the input; ``None`` for zeros, where a weight is added.
        places: of what comes out, the positions that are kept, by axis.
        shape: what that is then reshaped to.
        perm: how its axes are put in order at last, if they are not yet.
    """

    sizes: Mapping[str, Dim]
    term: Term | None
    shape: tuple[Dim, ...]
    places: Mapping[int, Dim] = field(default_factory=dict)
    perm: tuple[int, ...] = ()

    def weight(self, term: Term) -> Term:
        """The weight, of what comes out."""
        if self.places:
            axes, starts = tuple(self.places), tuple(self.places.values())
            ends = tuple(s + 1 for s in starts)
            steps = tuple(1 for _ in axes)
            term = OperatorTerm(
                "Slice", (term,), (("axes", axes), ("ends", ends), ("starts", starts), ("steps", steps))
            )
        term = OperatorTerm("Reshape", (term,), (("shape", self.shape),))
        return OperatorTerm("Transpose", (term,), (("perm", self.perm),)) if self.perm else term


def response(
    problem: SynthesisProblem,
    skeleton: Skeleton,
    hole: str,
    wanted: Sequence[WeightConstraints],
    places: Sequence[SampledProblemInstance],
) -> Term | None:
    """A weight's elements in another order, or the left side's own answer, for a hole of a skeleton; ``None`` where
    neither is the weight that is asked for.

    Args:
        problem: the left side.
        skeleton: what is to equal it.
        hole: one of its holes.
        wanted: what is known of the weight, by place.
        places: where values are compared.
    """
    shape = skeleton.holes[hole].shape or ()
    moved = (
        term
        for name, kind in problem.kinds.items() if name in problem.weights
        for term in rearranged(VariableTerm(name), kind.shape or (), shape, joined=kind.shape == shape)
    )  # fmt: skip
    for new_term in chain(moved, _adjoint_responses(problem, skeleton, hole), _responses(problem, skeleton, hole)):
        values = [_value(new_term, problem, assignment) for assignment in places]
        if all(v is not None and w.values == w.marks(v) for v, w in zip(values, wanted, strict=True)):
            return new_term
    return None


def _value(term: Term, problem: SynthesisProblem, assignment: SampledProblemInstance) -> Array | None:
    """A term over the weights at a place, as residues; ``None`` where it is not defined."""
    arrays: dict[Term, Array] = {VariableTerm(n): v for n, v in assignment.weights.items()}
    try:
        meanings, _ = meanings_of(term, {n: k for n, k in problem.kinds.items() if n in problem.weights})
        for app, outputs in meanings.items():
            if len(outputs) > 1 or any(size_at(d, assignment.point) < 0 for d in outputs[0].shape):
                return None  # a window that is larger than the input, say
            arrays[app] = assignment.value(outputs[0], [None if a is None else arrays[a] for a in app.args])
    except _UNDEFINED:
        return None
    return residues(arrays[term])


def _responses(problem: SynthesisProblem, skeleton: Skeleton, hole: str) -> Iterator[Term]:
    """Answers to a probe: without what is added to the data on the way, then less what there is without any input.

    The first rounds less: the second is a difference of sums.
    """
    for app in postorder(skeleton.term):
        if isinstance(app, OperatorTerm) and VariableTerm(hole) in app.args:
            for probe, base in _probes(problem, skeleton, app, hole):
                nothing = _response_at(problem, problem.term, probe)
                if probe.term is None:
                    yield probe.weight(nothing)
                    continue
                term = _with_probe(problem, base)
                yield probe.weight(_response_at(problem, _without_addends(problem, term), probe))
                yield probe.weight(OperatorTerm("Sub", (_response_at(problem, term, probe), nothing)))


def _adjoint_responses(problem: SynthesisProblem, skeleton: Skeleton, hole: str) -> Iterator[Term]:
    """What the left side's adjoint makes of unit impulses of an output of one place, for a convolution that is all of
    the skeleton."""
    app = skeleton.term
    if (
        not isinstance(app, OperatorTerm)
        or app.op != "Conv"
        or app.args[1] != VariableTerm(hole)
        or not isinstance(app.args[0], VariableTerm)
    ):
        return
    leaf, shape = app.args[0], skeleton.holes[hole].shape or ()
    out = shape[0]
    target = type_terms([problem.term], problem.kinds)[0][problem.term][0].shape or ()
    places = (out, out, *(1,) * (len(target) - 2))
    sizes = _unpadded(problem)
    chosen = _chosen(_at(target, sizes), places, _free(problem, shape) - sizes.keys())
    if chosen is None:
        return
    sizes |= chosen
    kinds = {n: replace(k, shape=_at(k.shape or (), sizes)) for n, k in problem.kinds.items()}
    (root,) = map_terms((problem.term,), {}, sizes)
    given = TypedTerm(_identity(out, places), TensorType(kinds[leaf.name].dtype, places))
    with suppress(*_UNDEFINED, NotDifferentiable):
        cotangent = _pulled(root, leaf, given, kinds)
        if cotangent is not None and cotangent.shape == shape:  # not so of several groups
            yield cotangent.term


def _pulled(root: Term, leaf: VariableTerm, given: TypedTerm, kinds: Mapping[str, TensorType]) -> TypedTerm | None:
    """The cotangent of a leaf that is read once, from that of a term; ``None`` where it is read more often."""
    types = type_terms([root], kinds)[0]
    while root != leaf:
        if not isinstance(root, OperatorTerm):
            return None
        reading = [n for n, a in enumerate(root.args) if a is not None and leaf.name in variables(a)]
        if len(reading) != 1:
            return None
        args = tuple(None if a is None else TypedTerm(a, types[a][0]) for a in root.args)
        site = DifferentiationSite(root.op, args, complete(root), frozenset(reading))
        cotangents = pull(site, [given])
        if reading[0] not in cotangents:
            return None
        given, operand = cotangents[reading[0]], root.args[reading[0]]
        assert operand is not None
        root = operand
    return given


def _unpadded(problem: SynthesisProblem) -> dict[str, Dim]:
    """No padding, where that is an attribute which no weight's shape has."""
    pads = [v for t in postorder(problem.term) if isinstance(t, OperatorTerm) for k, v in t.attributes if k == "pads"]
    names = {n for p in pads if isinstance(p, tuple) for d in p if isinstance(d, SizePolynomial) for n in symbols(d)}
    return dict.fromkeys(sorted(names & _free(problem, ())), 0)


def _free(problem: SynthesisProblem, shape: Sequence[Dim]) -> set[str]:
    """Names that data's sizes have, and no weight's, nor this shape."""
    free = {n for k in problem.kinds.values() for d in k.shape or () for n in symbols(d)}
    free -= {
        n for w in problem.weights & problem.kinds.keys() for d in problem.kinds[w].shape or () for n in symbols(d)
    }
    return free - {n for d in shape for n in symbols(d)}


def _with_probe(problem: SynthesisProblem, base: Term | None) -> Term:
    """The left side with a leaf for the probe where ``base`` is; where it is nowhere, with ones for its data.

    What was rearranged is no part of the left side; ones stay ones when they are only moved.
    """
    terms: dict[Term, Term] = {}
    inside = base in set(postorder(problem.term))
    names = set() if inside or base is None else set(variables(base)) - problem.weights
    for term in postorder(problem.term):
        terms[term] = VariableTerm(_PROBE) if term == base else remade(term, terms)
        if isinstance(term, VariableTerm) and term.name in names:
            terms[term] = _constant(problem.kinds[term.name].shape or (), 1.0)
    return terms[problem.term]


def _without_addends(problem: SynthesisProblem, root: Term) -> Term:
    """A term without the weights that it adds to data, as summands or as optional operands of operators."""
    terms: dict[Term, Term] = {}
    for term in postorder(root):
        terms[term] = fresh = remade(term, terms)
        if not isinstance(term, OperatorTerm) or not isinstance(fresh, OperatorTerm):
            continue
        fixed = [a is None or set(variables(a)) <= problem.weights for a in term.args]
        inputs = REGISTRY[term.op].inputs
        if all(fixed):
            continue
        if term.op in ("Add", "Sub") and any(fixed):
            (moving,) = (a for a, f in zip(fresh.args, fixed, strict=True) if not f)
            assert moving is not None
            terms[term] = OperatorTerm("Neg", (moving,)) if term.op == "Sub" and fixed[0] else moving
        elif fixed[-1] and len(fixed) == len(inputs) and inputs[-1].endswith("?"):
            terms[term] = replace(fresh, args=fresh.args[:-1])
    return terms[root]


def _response_at(problem: SynthesisProblem, root: Term, probe: ImpulseInput) -> Term:
    """A term of the left side at the probe, where all other data are zeros."""
    names: dict[str, Term] = {
        n: _constant(_at(k.shape or (), probe.sizes), 0.0) for n, k in problem.kinds.items() if n not in problem.weights
    }
    if probe.term is not None:
        names[_PROBE] = probe.term
    return map_terms((root,), names, probe.sizes)[0]


# ── probes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _probes(
    problem: SynthesisProblem, skeleton: Skeleton, app: OperatorTerm, hole: str
) -> Iterator[tuple[ImpulseInput, Term | None]]:
    """Inputs at which an application of the skeleton is its hole's weight, and the data that they stand for."""
    position, shape = app.args.index(VariableTerm(hole)), skeleton.holes[hole].shape or ()
    types = type_terms([problem.term], problem.kinds)[0]
    target = types[problem.term][0].shape or ()
    free = _free(problem, shape)
    if app.op == "Add" or (app.op == "Conv" and position == 2):
        least = {**dict.fromkeys(sorted(free), 1), **_unpadded(problem)}
        yield from ((p, None) for p in _zeros(target, shape, 0 if app.op == "Add" else len(target) - 2, least))
        return
    base = next((a for a in app.args if a is not None and not set(variables(a)) & set(skeleton.holes)), None)
    known_tensor_types = None if base is None else types.get(base)
    if base is not None and known_tensor_types is None and app.op == "Mul":
        known_tensor_types = type_terms([base], problem.kinds)[0][base]
    if known_tensor_types is not None and app.op in _INPUTS:
        probe = _INPUTS[app.op](app, position, known_tensor_types[0].shape or (), shape, free)
        if probe is not None:
            yield probe, base


def _chosen(shape: Sequence[Dim], wanted: Sequence[Dim], free: set[str]) -> dict[str, Dim] | None:
    """What free sizes have to be for a shape to be another; ``None`` where that is not so for any."""
    sizes: dict[str, Dim] = {}
    for size, want in zip(shape, wanted, strict=True):
        if size == want:
            continue
        name = next((n for n in sorted(symbols(size) & free) if size == _factor_of(size, n) * sym(n)), "")
        whole = want // _factor_of(size, name) if name else 0
        if not name or _factor_of(size, name) * whole != want or sizes.get(name, whole) != whole:
            return None
        if symbols(want) & free:
            return None
        sizes[name] = whole
    return sizes


def _factor_of(size: Dim, name: str) -> Dim:
    """What a name is multiplied by in a size that is a multiple of it."""
    return substitute(size, {name: 1})


def _zeros(
    target: Sequence[Dim], shape: tuple[Dim, ...], behind: int, least: Mapping[str, Dim]
) -> Iterator[ImpulseInput]:  # fmt: skip
    """No input at all: what is left is what is added. Sizes that do not matter are the least, or what they are."""
    aligned = (*(1,) * (len(target) - len(shape) - behind), *shape, *(1,) * behind)
    for sizes in (least, {}):
        left = _at(target, sizes)
        yield ImpulseInput(
            sizes, None, shape, {n: 0 for n, (d, a) in enumerate(zip(left, aligned, strict=True)) if d != a}
        )


def _square(
    app: OperatorTerm, position: int, base: tuple[Dim, ...], shape: tuple[Dim, ...], free: set[str]
) -> ImpulseInput | None:
    """A product with the identity, on either side."""
    if len(shape) != 2 or len(base) < 2:
        return None
    size = base[-1] if position == 1 else base[-2]
    input_shape = (*(1,) * (len(base) - 2), size, size)
    sizes = _chosen(base, input_shape, free)
    return None if sizes is None else ImpulseInput(sizes, _identity(size, input_shape), shape)


def _ones(
    app: OperatorTerm, place: int, base: tuple[Dim, ...], shape: tuple[Dim, ...], free: set[str]
) -> ImpulseInput | None:
    """A product with ones, element by element."""
    aligned = (*(1,) * (len(base) - len(shape)), *shape)
    sizes = _chosen(base, aligned, free)
    return None if sizes is None else ImpulseInput(sizes, _constant(aligned, 1.0), shape)


def _impulses(
    app: OperatorTerm, place: int, base: tuple[Dim, ...], shape: tuple[Dim, ...], free: set[str]
) -> ImpulseInput | None:
    """A convolution of images as large as the window, one with a 1 for each of its taps, at the position without
    padding."""
    attributes = dict(complete(app))
    pads, strides, group = attributes["pads"], attributes["strides"], attributes["group"]
    dilations = attributes["dilations"]
    assert isinstance(dilations, tuple)
    assert isinstance(pads, tuple)
    assert isinstance(strides, tuple)
    assert isinstance(group, int | SizePolynomial)
    out, channels, *window = shape
    if any(d != 1 and u != 1 for d, u in zip(dilations, window, strict=True)):
        return None
    taps = channels * prod(window, start=1)
    sizes = _chosen(base, (taps, channels * group, *window), free)
    once = _chosen(
        [s for s in strides if isinstance(s, int | SizePolynomial)], [1] * len(strides), {str(s) for s in strides}
    )
    starts: Sequence[AttributeValue] = pads[: len(window)]
    if once is None:  # the place that looks at the image without padding is so many strides away
        starts = _divided(pads[: len(window)], strides)
        once = {}
    if sizes is None or not starts:
        return None
    term: Term = _identity(taps, (taps, channels, *window))
    if group != 1:
        apart = OperatorTerm(
            "Expand", (_identity(taps, (taps, 1, channels, *window)),), (("shape", (taps, group, *shape[1:])),)
        )
        term = OperatorTerm("Reshape", (apart,), (("shape", (taps, channels * group, *window)),))
    places: dict[int, Dim] = {n + 2: p for n, p in enumerate(starts) if isinstance(p, int | SizePolynomial)}
    last = len(shape) - 1
    return ImpulseInput(sizes | once, term, (channels, *window, out), places, (last, *range(last)))


def _divided(pads: Sequence[AttributeValue], strides: Sequence[AttributeValue]) -> list[AttributeValue]:
    """Paddings as multiples of strides; empty where one is none."""
    found: list[AttributeValue] = []
    for pad, stride in zip(pads, strides, strict=True):
        if (
            not isinstance(pad, int | SizePolynomial)
            or not isinstance(stride, int | SizePolynomial)
            or pad // stride * stride != pad
        ):
            return []
        found.append(pad // stride)
    return found


def _nothing(pad: AttributeValue) -> dict[str, Dim] | None:
    """What a name has to be for a padding to be 0; ``None`` where that is not found."""
    if not isinstance(pad, int | SizePolynomial):
        return None
    for name in sorted(symbols(pad)):
        value = pad + sym(name)
        if name not in symbols(value):
            return {name: value}
    return {} if pad == 0 else None


def _single(
    app: OperatorTerm, place: int, base: tuple[Dim, ...], shape: tuple[Dim, ...], free: set[str]
) -> ImpulseInput | None:
    """A transposed convolution, without padding, of images of one place, one with a 1 for each channel."""
    attributes = dict(complete(app))
    pads, dilations = attributes["pads"], attributes["dilations"]
    if attributes["group"] != 1 or not isinstance(pads, tuple) or set(dilations) != {1}:  # type: ignore[arg-type]
        return None
    channels, rank = shape[0], len(shape) - 2
    sizes = _chosen(base, (channels, channels, *(1,) * rank), free)
    none = [_nothing(p) for p in pads]
    if sizes is None or None in none:
        return None
    for known_sizes in none:
        sizes |= known_sizes or {}
    return ImpulseInput(sizes, _identity(channels, (channels, channels, *(1,) * rank)), shape)


_INPUTS: Mapping[
    str, Callable[[OperatorTerm, int, tuple[Dim, ...], tuple[Dim, ...], set[str]], ImpulseInput | None]
] = {
    "MatMul": _square,
    "Mul": _ones,
    "Conv": _impulses,
    "ConvTranspose": _single,
}


def _identity(size: Dim, shape: tuple[Dim, ...]) -> Term:
    eye = OperatorTerm("EyeLike", (), (("k", 0), ("shape", (size, size))))
    return eye if shape == (size, size) else OperatorTerm("Reshape", (eye,), (("shape", shape),))


def _constant(shape: tuple[Dim, ...], value: float) -> OperatorTerm:
    return OperatorTerm("ConstantOfShape", (), (("shape", shape), ("value", value)))


def _at(shape: Sequence[Dim], sizes: Mapping[str, Dim]) -> tuple[Dim, ...]:
    """A shape at chosen sizes."""
    return tuple(substitute(d, sizes) for d in shape)
