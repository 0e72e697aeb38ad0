"""A convolution of few channels that computes a block of neighbouring pixels as channels, as rules of the library say.

ONNX Runtime computes channels in blocks, of which the last may be half empty. A convolution that makes fewer channels
than one block is computed as one that makes those of b × b neighbouring pixels: its stride is b times as large, its
kernel holds b × b shifted copies of the weights, and DepthToSpace puts the pixels in their places.

Two rules say that this is equal, at all sizes: ``SpaceToDepth(Conv(x, k)) = Conv(x, …)``, whose weights were solved
for, and ``DepthToSpace(SpaceToDepth(y)) = y``, in which b is any size that divides the image. The second is no rewrite
that a search could apply to every value, so prices choose here where it is applied and for which b.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from math import prod

import numpy as np

from superopt.cost.operator_time_predictor import PREDICTION
from superopt.ir.graph import RULES, Attribute, Graph, Node
from superopt.ir.size_polynomial import Dim, SizePolynomial, substitute, symbols, value_at
from superopt.ir.terms import AttributeValue, OperatorTerm, Term, VariableTerm, postorder
from superopt.ir.types import DType, TensorType
from superopt.passes.fast_algorithms.sites import FastAlgorithmSite, NodeBuilder
from superopt.program.constant_folding import FoldedWeightData
from superopt.program.graph_program import ProgramStep
from superopt.rules.canonical import map_terms
from superopt.rules.library import load_library
from superopt.rules.rule import Rule, TensorVariableType
from superopt.rules.typing import complete, type_terms
from superopt.runtime.comprehension_evaluation import Array

__all__ = ["SpaceToDepthConvolution", "pixel_forms", "write_pixels"]

_MOST = 4  # pixels of a block along an axis: 4 × 4 fill a block of channels with one channel


@dataclass(frozen=True)
class SpaceToDepthConvolution:
    """Blocks of ``block`` × ``block`` pixels as channels.

    Attributes:
        block: pixels along each axis.
        rules: what says that it is equal: the convolution's, and that of the pixels' places.
        sizes: what the sizes and attributes of the first rule are.
        kernel: sizes of the new weights.
        taps: of the kernel before.
    """

    block: int
    rules: tuple[Rule, Rule]
    sizes: tuple[tuple[str, int], ...]
    kernel: tuple[int, ...]
    taps: int

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """The operands of the convolution that takes the place: the data, the weights, and the bias if there is one."""
        (made,) = map_terms(self.rules[0].rhs, {}, dict(self.sizes))
        assert isinstance(made, OperatorTerm)
        return tuple(a for a in made.args if a is not None)

    @cached_property
    def attributes(self) -> dict[str, Attribute]:
        """Of that convolution."""
        (made,) = map_terms(self.rules[0].rhs, {}, dict(self.sizes))
        assert isinstance(made, OperatorTerm)
        return {name: _attribute_value(value) for name, value in made.attributes}

    @property
    def grown(self) -> float:
        """Weights afterwards ÷ weights before."""
        channels = self.block * self.block
        return channels * prod(self.kernel[2:]) / self.taps


def pixel_forms(site: FastAlgorithmSite) -> Iterator[SpaceToDepthConvolution]:
    """Forms of a convolution of images that makes less than one block of channels, small blocks of pixels first."""
    if len(site.sizes) != 4 or site.kernel[0] >= PREDICTION.block_channels:
        return
    for block in range(2, _MOST + 1):
        form = _form(site, block)
        if form is not None:
            yield form


def _form(site: FastAlgorithmSite, block: int) -> SpaceToDepthConvolution | None:
    """Of the first rule that speaks of the site; ``None`` where none does: pixels are left over, say."""
    places = _inverse_of_space_to_depth()
    for rule in _pixels_behind():
        if places is not None and (sizes := _bound(rule, site, block)) is not None:
            made = rule.rhs[0]
            assert isinstance(made, OperatorTerm)
            (weights,) = map_terms((made.args[1],), {}, sizes)  # type: ignore[arg-type]
            kernel = _types(rule, sizes)[weights].shape or ()
            return SpaceToDepthConvolution(
                block, (rule, places), tuple(sorted(sizes.items())), tuple(d for d in kernel if isinstance(d, int)),
                prod(site.kernel[2:]),
            )  # fmt: skip
    return None


# -- Rules of the library ------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _pixels_behind() -> tuple[Rule, ...]:
    """Rules by which pixels of what a convolution makes are channels of another's: admitted, and usable in float32
    wherever elements are moderate."""
    library = load_library()
    floats = library.floats()
    found = [r for r in library.admitted if _is_pixels(r)]
    ways = [floats.alternatives(r, backward=False).get(DType.FLOAT32, ()) for r in found]
    return tuple(r for r, some in zip(found, ways, strict=True) if any(w.generous and not w.rounded for w in some))


def _is_pixels(rule: Rule) -> bool:
    if len(rule.lhs) != 1 or len(rule.rhs) != 1:
        return False
    moved, made = rule.lhs[0], rule.rhs[0]
    if not (
        isinstance(moved, OperatorTerm)
        and moved.op == "SpaceToDepth"
        and isinstance(made, OperatorTerm)
        and made.op == "Conv"
    ):
        return False
    conv = moved.args[0]
    leaves = (
        isinstance(conv, OperatorTerm) and conv.op == "Conv" and all(isinstance(a, VariableTerm) for a in conv.args)
    )
    return (
        leaves and isinstance(conv, OperatorTerm) and made.args[0] == conv.args[0] and len(made.args) == len(conv.args)
    )


@lru_cache(maxsize=1)
def _inverse_of_space_to_depth() -> Rule | None:
    """The admitted rule by which DepthToSpace undoes SpaceToDepth."""
    for rule in load_library().admitted:
        for whole, inner in ((rule.lhs, rule.rhs), (rule.rhs, rule.lhs)):
            outer = whole[0]
            back = (
                isinstance(outer, OperatorTerm)
                and outer.op == "DepthToSpace"
                and dict(outer.attributes)["mode"] == "DCR"
            )
            moved = outer.args[0] if back and isinstance(outer, OperatorTerm) else None
            if (
                len(whole) == 1
                and isinstance(moved, OperatorTerm)
                and moved.op == "SpaceToDepth"
                and moved.args == inner
            ):
                return rule
    return None


def _bound(rule: Rule, site: FastAlgorithmSite, block: int) -> dict[str, int] | None:
    """What a rule's sizes and attributes are at a site; ``None`` where the rule does not speak of it."""
    moved = rule.lhs[0]
    assert isinstance(moved, OperatorTerm)
    conv = moved.args[0]
    assert isinstance(conv, OperatorTerm)
    operands = [site.sizes, site.kernel, *([] if site.bias is None else [site.kernel[:1]])]
    if len(operands) != len(conv.args):
        return None
    given: list[tuple[AttributeValue, AttributeValue]] = [(dict(moved.attributes)["blocksize"], block)]
    given += [(v, _site_attribute(site, name)) for name, v in conv.attributes]
    shapes = [rule.forall[a.name] for a in conv.args if isinstance(a, VariableTerm)]
    pairs = [pair for value, known in given for pair in _pairs(value, known)]
    for scheme, sizes in reversed(list(zip(shapes, operands, strict=True))):  # weights first, data last
        if not isinstance(scheme, TensorVariableType) or len(scheme.shape) != len(sizes):
            return None
        pairs += zip(scheme.shape, (max(s, 1) for s in sizes), strict=True)  # a batch that is not known is any
    found: dict[str, int] = {}
    for size, known in pairs:
        if not _solved(size, known, found):
            return None
    holds = all(g.holds(found) for g in rule.where) and all(_in_range(rule, n, v) for n, v in found.items())
    return found if holds else None


def _site_attribute(site: FastAlgorithmSite, attribute: str) -> AttributeValue:
    known: Mapping[str, AttributeValue] = {
        "dilations": site.dilations, "group": 1, "pads": site.pads, "strides": site.strides,
    }  # fmt: skip
    return known[attribute]


def _pairs(value: AttributeValue, known: AttributeValue) -> Iterator[tuple[Dim, int]]:
    """Sizes of an attribute beside what they are."""
    values, given = (v if isinstance(v, tuple) else (v,) for v in (value, known))
    for one, other in zip(values, given, strict=True):
        assert isinstance(one, int | SizePolynomial)
        assert isinstance(other, int)
        yield one, other


def _solved(size: Dim, known: int, found: dict[str, int]) -> bool:
    """Whether a size can be what is known of it, which then binds the one symbol that was open."""
    left = substitute(size, dict(found))
    if isinstance(left, int):
        return left == known
    names = symbols(left)
    if len(names) != 1:
        return False
    (name,) = names
    first, second = (value_at(left, {name: n}) for n in (0, 1))
    slope = second - first
    if slope == 0 or (known - first) % slope or value_at(left, {name: 2}) - second != slope:
        return False
    found[name] = (known - first) // slope
    return True


def _in_range(rule: Rule, name: str, value: int) -> bool:
    scheme = rule.attribute_atoms.get(name)
    return value >= 1 if scheme is None else scheme.allows(value)


def _attribute_value(value: AttributeValue) -> Attribute:
    return tuple(v for v in value if isinstance(v, int)) if isinstance(value, tuple) else value  # type: ignore[return-value]


def _types(rule: Rule, sizes: Mapping[str, int]) -> dict[Term, TensorType]:
    """Of what is applied on a rule's right side, at known sizes."""
    (made,) = map_terms(rule.rhs, {}, sizes)
    kinds = {
        n: TensorType(DType.FLOAT32, tuple(substitute(d, dict(sizes)) for d in s.shape))
        for n, s in rule.tensors.items()
    }  # fmt: skip
    return {term: types[0] for term, types in type_terms([made], kinds)[0].items()}


# -- The graph that is written -------------------------------------------------------------------------------------


def write_pixels(writer: NodeBuilder, form: SpaceToDepthConvolution, graph: Graph, site: FastAlgorithmSite) -> None:
    """Append the form's nodes: the convolution, what alone reads it element by element, and the pixels' places."""
    operands = [site.node.inputs[0]]
    names = (site.weights, site.bias)
    types = _types(form.rules[0], dict(form.sizes))
    kind = graph.weight[site.weights].type.dtype
    for number, term in enumerate(form.terms[1:]):
        shape = tuple(d for d in types[term].shape or () if isinstance(d, int))
        key = (names, form.rules[0].id, form.sizes, number)
        operands.append(writer.computed(key, shape, kind.numpy, partial(_elements, form, term, graph, site)))
    made = _written(writer, "Conv", operands, form.rules[0], form.attributes | {"kernel_shape": form.kernel[2:]})
    for node in site.after:
        name = writer.name(node.op)
        writer.nodes.append(replace(node, inputs=(made, *node.inputs[1:]), outputs=(name,)))
        made = name
    places: dict[str, Attribute] = {"blocksize": form.block}
    if writer.opset >= 11:  # before, it had no other mode
        places["mode"] = b"DCR"
    _written(writer, "DepthToSpace", [made], form.rules[1], places, site.output)


def _written(
    writer: NodeBuilder, op: str, inputs: list[str], rule: Rule, attributes: Mapping[str, Attribute], output: str = ""
) -> str:
    """Append a node that names the rule which made it; the name of its output."""
    made = writer.op(op, *inputs, outputs=(output,) if output else (), **attributes)
    node: Node = writer.nodes[-1]
    writer.nodes[-1] = replace(node, metadata={**node.metadata, RULES: rule.id})
    return made


def _elements(form: SpaceToDepthConvolution, term: Term, graph: Graph, site: FastAlgorithmSite) -> Array:
    """A term over a site's weights, in float64."""
    moved = form.rules[0].lhs[0]
    assert isinstance(moved, OperatorTerm)
    conv = moved.args[0]
    assert isinstance(conv, OperatorTerm)
    held = dict(
        zip((a.name for a in conv.args[1:] if isinstance(a, VariableTerm)), (site.weights, site.bias), strict=False)
    )
    types = _types(form.rules[0], dict(form.sizes))
    names = {t: t.name if isinstance(t, VariableTerm) else f"made {n}" for n, t in enumerate(postorder(term))}
    steps = tuple(
        ProgramStep(
            t.op, tuple(None if a is None else names[a] for a in t.args), tuple(sorted(complete(t).items())),
            (names[t],), None, names[t],
        )
        for t in names if isinstance(t, OperatorTerm)
    )  # fmt: skip
    sources = {name: graph.weight[own].data for name, own in held.items() if own is not None}
    known = {name: data for name, data in sources.items() if data is not None}
    return np.asarray(FoldedWeightData(steps, known, {names[t]: types[t] for t in names}, names[term]).wide())
