"""Selection of fast algorithms (Winograd, Strassen, pixels as channels) by modelled cost.

Each site's forms are priced beside its operator, including the operators that the backend fuses with it. Then the
chosen forms are priced together, with the changes of memory layout that they add or remove and the transforms that
forms of one image share. Equal sites are priced once. The pass computes no weights and times nothing: acceptance
measures the model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from superopt.cost.cost_model import CostModel
from superopt.cost.graph_costs import graph_cost
from superopt.ir.graph import Graph, Node
from superopt.ir.types import DType, TensorType
from superopt.ops.shape_inference import InferredTypes, infer
from superopt.passes.fast_algorithms.sites import FEWEST, FastAlgorithmSite, NodeBuilder, isolated, price_key, sites_of
from superopt.passes.fast_algorithms.space_to_depth_convolution import (
    SpaceToDepthConvolution,
    pixel_forms,
    write_pixels,
)
from superopt.passes.fast_algorithms.strassen_matmul import StrassenMatMul, write_matmul
from superopt.passes.fast_algorithms.winograd_convolution import (
    ConvolutionAxis,
    ConvolutionWeights,
    ReplacedConvolution,
    WinogradConvolution,
    changes_us,
    write_conv,
)
from superopt.rules.bilinear import BilinearAlgorithm, algorithms
from superopt.runtime.comprehension_evaluation import Array

__all__ = [
    "FastAlgorithmChoice",
    "FORM_ERROR",
    "Form",
    "GROWTH",
    "LEAST_GAIN",
    "NEAR",
    "PricedFastAlgorithm",
    "accuracy_of",
    "alternatives",
    "choose",
    "common",
    "decisive",
    "FormPrices",
    "forms_of",
    "without_small_gains",
    "kind_of",
    "layouts_us",
    "named",
    "rewritten",
    "shared",
]


# -- Sharing -------------------------------------------------------------------------------------------------------
#
# Forms that transform one image in the same way share the transform. Its cost is divided among them in proportion to
# what their operators cost without forms, so a Conv of few channels, whose form would lose alone, can profit from one
# of many.


Form = WinogradConvolution | StrassenMatMul | SpaceToDepthConvolution


@dataclass(frozen=True)
class FastAlgorithmChoice:
    """A site with its form.

    Attributes:
        site: the operator.
        form: what takes its place.
        before, after: what the operator and the form are taken to need, in microseconds.
        error: standard deviation of ``after``, in microseconds.
        rivals: other forms that prices put near this one, and what they are modelled to take; the cheapest first.
        transform_us: of ``after``, what takes the image apart.
        spared: microseconds by which ``after`` is less than what the form takes alone, since others share that.
    """

    site: FastAlgorithmSite
    form: Form
    before: float
    after: float
    error: float = 0.0
    rivals: tuple[tuple[Form, float], ...] = ()
    transform_us: float = 0.0
    spared: float = 0.0

    @property
    def begins(self) -> Hashable:
        """Equal for forms that take one image apart in one way; ``None`` for a product of matrices."""
        return (self.site.node.inputs[0], self.form.tiled) if isinstance(self.form, WinogradConvolution) else None

    @property
    def more_bytes(self) -> int:
        """By how much the weights grow, about."""
        return round(4 * prod(self.site.kernel) * (self.form.grown - 1.0))


@dataclass(frozen=True)
class PricedFastAlgorithm:
    """A form of a site, its number among them, and what it is modelled to take, in microseconds.

    ``transform_us`` is the part of it that takes the image apart, which other forms of the image can share.
    """

    us: float
    number: int
    form: Form
    transform_us: float


# Of operators, by what they are priced by: forms (``None``: as it is), microseconds, and those of its transforms.
FormPrices = dict[Hashable, list[tuple[Form | None, float, float]]]
Row = tuple[FastAlgorithmSite, float, Sequence[PricedFastAlgorithm]]  # a site, what its operator takes, and its forms


def common(rows: Sequence[Row]) -> Mapping[int, PricedFastAlgorithm]:
    """The forms of those Convs that are cheapest if they share what takes an image apart, by their nodes' identity.

    Of each image there is at most one way in which its Convs do; those that are cheaper by themselves stay so.
    """
    found: dict[int, PricedFastAlgorithm] = {}
    images: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row[0].pads:
            images[row[0].node.inputs[0]].append(row)
    for several in images.values():
        if len(several) > 1:
            alone = sum(map(_least_us, several))
            plans = [_plan(several, tiled) for tiled in dict.fromkeys(_tilings(several))]
            us, plan = min(plans, key=lambda p: p[0], default=(alone, {}))
            if len(plan) > 1 and us < alone:
                found.update(plan)
    return found


def _tilings(rows: Sequence[Row]) -> Iterator[Hashable]:
    return (p.form.tiled for _, _, priced in rows for p in priced if isinstance(p.form, WinogradConvolution))


def _least_us(row: Row) -> float:
    """What a site takes by itself."""
    _, before, priced = row
    return min((before, *(p.us for p in priced)))


def _plan(rows: Sequence[Row], tiled: Hashable) -> tuple[float, dict[int, PricedFastAlgorithm]]:
    """What an image's Convs take if it is taken apart in this way, and the forms of those that use it."""
    total = once = 0.0
    users: dict[int, PricedFastAlgorithm] = {}
    for row in rows:
        alike = (p for p in row[2] if isinstance(p.form, WinogradConvolution) and p.form.tiled == tiled)
        priced, least = next(alike, None), _least_us(row)
        if priced is not None and priced.us - priced.transform_us < least:
            users[id(row[0].node)] = priced
            once = max(once, priced.transform_us)
            least = priced.us - priced.transform_us
        total += least
    return total + once, users


def shared(chosen: Sequence[FastAlgorithmChoice]) -> list[FastAlgorithmChoice]:
    """The choices, each with what it is spared by those of the others that take its image apart in the same way."""
    whole: dict[Hashable, float] = defaultdict(float)
    for choice in chosen:
        whole[choice.begins] += choice.before
    found: list[FastAlgorithmChoice] = []
    for choice in chosen:
        own = 1.0 if choice.begins is None else choice.before / whole[choice.begins]
        spared = (1.0 - own) * choice.transform_us
        found.append(replace(choice, after=choice.after + choice.spared - spared, spared=spared))
    return found


# -- Selection -----------------------------------------------------------------------------------------------------


# By mode: how much one operator's errors may grow (root mean square, beside the direct sum's). "strict" has no
# algorithm that is less accurate than what it replaces; none with fewer products is known that is not.
GROWTH: Mapping[str, float] = {"strict": 1.0, "standard": 16.0, "fast": 64.0}
LEAST_GAIN = 0.03  # share of the operator's time, for the accuracy and the memory that a form costs
FORM_ERROR = 0.1  # standard deviation of what a form is modelled to take, as a share of the operator's time
# Share of the operator's time by which a form may be modelled to lose and still be asked of a device that is recorded:
# with such prices, not to know better is expected to cost an operator that is all of its model a five-hundredth.
NEAR = 0.135
_RIVAL = 0.15  # share of a form's time by which another may be modelled to take more, to be recorded besides
_MOST_RIVALS = 2  # (140 shapes, quiet: with 0, 1, 2 the fastest was among them on 92, 95 and 96 %)
_SINGLE = (1, 1)  # taps and stride of an axis along which nothing is summed
# What forms take of the sum of their operators' prices, by kind. Convs': 45 random shapes, quiet, 2026-11-24, standard
# deviation 0.16; times 1.07, 1.08 and 1.03 since the predictor of 2026-11-26 (the same shapes by both, one after the
# other). They belong to the recorded profile and its predictor: with others, ``python -m lab.algorithms --only
# random`` says by what to multiply them.
_FAMILY = {"both axes": 1.2, "one axis direct": 1.01, "products": 1.03, "pixels as channels": 1.0}
# What operators take in a form of what they take alone: in front of each, products have filled the core's cache with
# something else. By ONNX Runtime's profile of eight forms: 1.2 to 2.8 times where elements are moved.
_APART = dict.fromkeys(("Concat", "Gather", "Pad", "Slice", "Split", "Transpose"), 1.5)


def forms_of(site: FastAlgorithmSite, growth: float) -> list[Form]:
    """The forms of a site whose errors grow by at most that factor."""
    if site.pads:
        bilinear = _conv_forms(site, growth) if min(site.kernel[:2]) >= FEWEST else ()
        return [*bilinear, *pixel_forms(site)]
    rows, inner = site.rows
    blocked = [a for name, a in algorithms().items() if name.startswith("matmul:") and a.growth <= growth]
    return [StrassenMatMul(rows, inner, site.kernel[1], a) for a in blocked]


def _conv_forms(site: FastAlgorithmSite, growth: float) -> Iterator[Form]:
    """Tiles of equal size along both axes; then those that take the height directly."""
    sizes, taps, half = site.sizes[2:], site.kernel[2:], len(site.pads) // 2
    spans = [
        (size, site.pads[i], site.pads[half + i], (taps[i], site.strides[i]), site.dilations[i])
        for i, size in enumerate(sizes)
    ]
    if len(spans) == 1:
        spans.insert(0, (1, 0, 0, _SINGLE, 1))
    if any(kind[1] > 1 and apart > 1 for *_, kind, apart in spans):
        return  # tiles of neither
    sums = [kind != _SINGLE for *_, kind, _ in spans]
    for fast in (sums, [False, True]) if all(sums) else (sums,):
        for outputs in sorted({len(a.outputs) for a in algorithms().values() if a.tile.name.startswith("conv:")}):
            chosen = [
                _along(outputs, *kind) if quick else None for (*_, kind, _), quick in zip(spans, fast, strict=True)
            ]
            known = [a for a in chosen if a is not None]
            if not known or [a is not None for a in chosen] != fast or prod(a.growth for a in known) > growth:
                continue
            height, width = (
                ConvolutionAxis(size, before, after, algorithm, apart, _SINGLE if algorithm is not None else kind)
                for (size, before, after, kind, apart), algorithm in zip(spans, chosen, strict=True)
            )
            if min(height.outputs, width.outputs) > 0:
                yield WinogradConvolution(height, width)


def _along(outputs: int, taps: int, stride: int) -> BilinearAlgorithm | None:
    return algorithms().get(f"conv:{outputs}:{taps}" + (f":{stride}" if stride > 1 else "")) if taps > 1 else None


def named(form: Form) -> str:
    """``F(4×4, 3×3), 36 products`` or ``2×2×2 in 7 products``."""
    if isinstance(form, StrassenMatMul):
        return f"{'×'.join(map(str, form.parts))} in {form.algorithm.rank} products"
    if isinstance(form, SpaceToDepthConvolution):
        return f"{form.block}×{form.block} pixels as channels"
    axes = [axis for axis in form.axes if axis.algorithm is not None]
    shape = ((a.tile, a.taps, a.stride, a.dilation) for a in axes)
    outputs, taps, strides, apart = ("×".join(map(str, values)) for values in zip(*shape, strict=True))
    kind = f"F({outputs}, {taps}"
    kind += f"; stride {strides}" if any(a.stride > 1 for a in axes) else ""
    kind += f"; dilation {apart}" if any(a.dilation > 1 for a in axes) else ""
    kind += f"; {form.merged} taps directly" if form.merged > 1 else ""
    return f"{kind}), {form.products} products of {form.tiles} tiles"


def kind_of(form: Form) -> str:
    """What tells how far prices of forms are off: one of the keys of ``_FAMILY``."""
    if isinstance(form, StrassenMatMul):
        return "products"
    if isinstance(form, SpaceToDepthConvolution):
        return "pixels as channels"
    return "one axis direct" if form.merged > 1 else "both axes"


def accuracy_of(form: Form) -> tuple[float, float]:
    """How much larger than a direct sum's the errors can be: root mean square, and at worst."""
    if isinstance(form, StrassenMatMul):
        return form.algorithm.growth, form.algorithm.bound
    growth = bound = 1.0
    for axis in () if isinstance(form, SpaceToDepthConvolution) else form.axes:
        if axis.algorithm is not None:
            growth, bound = growth * axis.algorithm.growth, bound * axis.algorithm.bound
    return growth, bound


def choose(
    graph: Graph,
    costs: CostModel,
    *,
    growth: float,
    typing: InferredTypes | None = None,
    sizes: Mapping[str, int] | None = None,
    gain: float = LEAST_GAIN,
    priced: FormPrices | None = None,
) -> list[FastAlgorithmChoice]:
    """The sites where a form gains, each with its cheapest form: a function of the graph and the prices.

    Args:
        graph: a checked graph.
        costs: the target's cost model.
        growth: of errors that a form may bring, as in :data:`GROWTH`.
        typing: its inferred types, symbolic sizes as they are, if at hand.
        sizes: what a symbolic batch is costed at.
        gain: share of the operator's time that a form has to gain; negative for what may be worth recording.
        priced: prices of an earlier choice for the same graph, costs and sizes; those of this one are added.
    """
    typing, memo = typing or infer(graph), {} if priced is None else priced
    known: dict[Hashable, tuple[float, list[PricedFastAlgorithm]]] = {}
    rows: list[tuple[FastAlgorithmSite, float, list[PricedFastAlgorithm]]] = []
    for site in sites_of(graph, typing, costs):
        single = isolated(graph, typing, site)
        key = price_key(single)
        if key not in known:
            known[key] = _priced(single, site, costs, growth, sizes or {}, memo.setdefault(key, []))
        rows.append((site, *known[key]))
    together = common(rows)
    chosen: list[FastAlgorithmChoice] = []
    for site, before, forms in rows:
        joint = together.get(id(site.node))
        if options := [joint] if joint is not None else _cheapest(before, forms, gain):
            first, rivals = options[0], tuple((p.form, p.us) for p in options[1:])
            chosen.append(
                FastAlgorithmChoice(site, first.form, before, first.us, FORM_ERROR * before, rivals, first.transform_us)
            )
    return without_small_gains(graph, typing, chosen, costs, gain)


def without_small_gains(
    graph: Graph, typing: InferredTypes, chosen: list[FastAlgorithmChoice], costs: CostModel, gain: float = LEAST_GAIN
) -> list[FastAlgorithmChoice]:  # fmt: skip
    """Without those that gain too little once changes of layout are counted, the least one first.

    Args:
        graph: where the choices are.
        typing: its inferred types.
        chosen: at most one for a site; what is spared by sharing is found anew.
        costs: what layouts are priced by.
        gain: share of the operator's time that a form has to gain.
    """
    chosen = shared(chosen)
    while convs := [c for c in chosen if c.site.pads]:
        together = layouts_us(graph, typing, convs, costs)
        less = ([*convs[:i], *convs[i + 1 :]] for i in range(len(convs)))
        alone = [together - layouts_us(graph, typing, some, costs) for some in less]
        gains = [(c.before - c.after - more) / c.before for c, more in zip(convs, alone, strict=True)]
        least = min(range(len(convs)), key=lambda i: gains[i])
        if gains[least] >= gain:
            break
        chosen = shared([c for c in chosen if c is not convs[least]])
    return chosen


def layouts_us(graph: Graph, typing: InferredTypes, chosen: Sequence[FastAlgorithmChoice], costs: CostModel) -> float:
    """Microseconds that changes of layout take because of choices; negative where there are fewer."""
    places = [_form_site(c.site, c.form, c.begins) for c in chosen if c.site.pads]
    return changes_us(graph, typing, places, costs)


def _form_site(site: FastAlgorithmSite, form: Form, begins: Hashable = None) -> ReplacedConvolution:
    return ReplacedConvolution(site.nodes, site.node.inputs[0], begins, isinstance(form, SpaceToDepthConvolution))


def _cheapest(before: float, priced: Sequence[PricedFastAlgorithm], gain: float) -> list[PricedFastAlgorithm]:
    """The cheapest form that gains enough, if one does, with its rivals."""
    enough = sorted((p for p in priced if p.us < (1 - gain) * before), key=lambda p: (p.us, p.number))
    return [p for p in enough if p.us <= (1 + _RIVAL) * enough[0].us][: 1 + _MOST_RIVALS]


def _priced(
    alone: Graph, site: FastAlgorithmSite, costs: CostModel, growth: float, sizes: Mapping[str, int],
    memo: list[tuple[Form | None, float, float]],
) -> tuple[float, list[PricedFastAlgorithm]]:  # fmt: skip
    """What an operator takes, and what its forms take, without those that cannot be cheaper.

    Args:
        alone: the operator as a model of its own.
        site: where it is.
        costs: prices.
        growth: of errors that a form may bring.
        sizes: what a symbolic batch is costed at.
        memo: what is known, and what is found: a row of :data:`FormPrices`.
    """
    if not memo:
        memo.append((None, graph_cost(alone, costs, sizes=sizes).us, 0.0))
    before = memo[0][1]
    priced: list[PricedFastAlgorithm] = []
    for number, form in enumerate(forms_of(site, growth)):
        known = next((row for row in memo if row[0] == form), None)
        if known is None and _products_us(site, form, costs) < before:
            known = (form, *_form_us(alone, site, form, costs, sizes))
            memo.append(known)
        if known is not None:
            priced.append(PricedFastAlgorithm(known[1], number, form, known[2]))
    return before, priced


def _form_us(
    alone: Graph, site: FastAlgorithmSite, form: Form, costs: CostModel, sizes: Mapping[str, int]
) -> tuple[float, float]:  # fmt: skip
    """What a form takes, and what its transforms of the data take."""
    made = _alone(alone, site, form)
    found = graph_cost(made, costs, sizes=sizes)
    parts = [_APART.get(op, 1.0) * estimate.us for _, op, estimate in found.per_node]
    family = _FAMILY[kind_of(form)]
    us = family * (found.us + sum(parts) - sum(e.us for *_, e in found.per_node))
    if not isinstance(form, WinogradConvolution):
        return us, 0.0
    first = next(i for i, n in enumerate(made.nodes) if n.op == "MatMul" and n.inputs[1] in made.constants)
    return us, family * sum(parts[:first])


def _alone(alone: Graph, site: FastAlgorithmSite, form: Form) -> Graph:
    """An operator that is a model of its own, as a form, without its weights' elements."""
    return rewritten(alone, [FastAlgorithmChoice(site, form, 0.0, 0.0)], filled=False)


def decisive(graph: Graph, costs: CostModel, *, sizes: Mapping[str, int] | None = None) -> Iterator[Graph]:
    """The forms that prices choose or put near a choice, each as a model of its own: what they cost decides.

    Args:
        graph: a checked graph.
        costs: prices so far.
        sizes: what a symbolic batch is costed at.
    """
    typing = infer(graph)
    seen: set[Hashable] = set()
    for choice in choose(graph, costs, growth=GROWTH["standard"], typing=typing, sizes=sizes, gain=-NEAR):
        alone = isolated(graph, typing, choice.site)
        if (key := price_key(alone)) not in seen:
            seen.add(key)
            yield from (_alone(alone, choice.site, form) for form in (choice.form, *(f for f, _ in choice.rivals)))


def alternatives(
    graph: Graph, site: FastAlgorithmSite, costs: CostModel, growth: float
) -> list[tuple[float, Form | None]]:
    """What a graph's site is modelled to take in its place: as it is, and by each form, the cheapest first."""
    typing = infer(graph)
    before, priced = _priced(isolated(graph, typing, site), site, costs, growth, {}, [])
    without = changes_us(graph, typing, [], costs)
    found: list[tuple[float, Form | None]] = [(before, None)]
    for one in sorted(priced, key=lambda p: (p.us, p.number)):
        place = [_form_site(site, one.form)] if site.pads else []
        found.append((one.us + changes_us(graph, typing, place, costs) - without, one.form))
    return found


def _products_us(site: FastAlgorithmSite, form: Form, costs: CostModel) -> float:
    """What a form's products are expected to take by themselves: less than all of it."""
    if isinstance(form, SpaceToDepthConvolution):
        return 0.0  # it is one operator, which is priced as quickly
    if isinstance(form, StrassenMatMul):
        (rows, inner, columns), count = form.block, form.algorithm.rank
    else:
        rows, inner, columns = form.tiles * max(site.sizes[0], 1), form.merged * site.kernel[1], site.kernel[0]
        count = form.products
    left, right, made = (TensorType(DType.FLOAT32, s) for s in ((rows, inner), (inner, columns), (rows, columns)))
    return count * costs.expected("MatMul", {}, [left, right], [made], [False, True]).us


def rewritten(
    graph: Graph,
    choices: Sequence[FastAlgorithmChoice],
    *,
    filled: bool = True,
    reserved: AbstractSet[str] = frozenset(),
) -> Graph:
    """The graph with these operators written as their forms; weights that nothing reads any more are left out.

    Args:
        graph: where they are.
        choices: of different sites.
        filled: compute the new weights; without, they have types alone, for a price.
        reserved: names that nothing new may have.
    """
    made = {id(choice.site.node): choice for choice in choices}
    within = {id(node) for choice in choices for node in choice.site.nodes}
    writer = NodeBuilder(graph, "bilinear", filled, reserved)
    nodes: list[Node] = []
    for node in graph.nodes:
        if id(node) not in within:
            nodes.append(node)
        elif id(node) in made:
            writer.nodes.clear()
            _write(writer, graph, made[id(node)])
            nodes += writer.nodes
    read = {name for node in nodes for name in node.reads} | {v.name for v in graph.outputs}
    read |= {v.name for v in graph.inputs}
    weights = tuple(w for w in graph.weights if w.name in read) + tuple(writer.weights)
    return replace(graph, nodes=tuple(nodes), weights=weights).checked()


def _write(writer: NodeBuilder, graph: Graph, choice: FastAlgorithmChoice) -> None:
    site, form, node = choice.site, choice.form, choice.site.node
    kind = graph.weight[site.weights].type.dtype.numpy
    weights, data = partial(_elements, graph, site.weights), node.inputs[0]
    if isinstance(form, SpaceToDepthConvolution):
        write_pixels(writer, form, graph, site)
        return
    if isinstance(form, WinogradConvolution):
        bias = None if site.bias is None else partial(_elements, graph, site.bias)
        names = (site.weights, *(() if site.bias is None else (site.bias,)))
        kernel = ConvolutionWeights(names, site.kernel[0], site.kernel[1], len(site.kernel) == 3, kind, weights, bias)
        write_conv(writer, form, data, site.sizes[0], kernel, site.output, site.after)
        return
    if len(site.sizes) == 2:
        write_matmul(writer, form, data, site.weights, kind, weights, node.outputs[0])
        return
    flat = writer.reshaped(data, form.rows, form.inner)
    made = writer.name("product")
    write_matmul(writer, form, flat, site.weights, kind, weights, made)
    shape = writer.sizes(*site.sizes[:-1], form.columns)
    writer.op("Reshape", made, shape, outputs=(node.outputs[0],))


def _elements(graph: Graph, name: str) -> Array:
    data = graph.weight[name].data
    assert data is not None  # a site's weights have values
    return data.numpy()
