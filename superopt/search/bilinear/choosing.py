"""Where an algorithm with fewer multiplications pays: sites, forms for each, prices of both, one graph.

A site is a Conv of one group, or a product of matrices, with fixed weights and known sizes (a batch may be symbolic).
Its forms are priced by the cost model beside the operator, each with what the runtime runs in one kernel with the
operator and would run apart from a form; then the chosen ones together, with the changes of layout that they bring and
spare (:mod:`.layout`). Equal sites are looked at once. No weights are computed for that, and nothing is timed: whether
the whole model gained is for the caller to measure.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from superopt.cost.model import CostModel
from superopt.cost.whole import graph_cost
from superopt.ir.graph import Graph, Node, Value, attribute_key
from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType, TensorType
from superopt.ops.infer import Applied, Barrier, Typing, infer
from superopt.rules.bilinear import Algorithm, algorithms
from superopt.runtime.evaluate import Array
from superopt.search.bilinear.conv import Axis, ConvForm, Kernel, write_conv
from superopt.search.bilinear.layout import Place, changes_us
from superopt.search.bilinear.matmul import MatMulForm, write_matmul
from superopt.search.bilinear.writing import Writer

__all__ = [
    "FORM_ERROR", "GROWTH", "LEAST_GAIN", "NEAR", "Choice", "Form", "Site", "accuracy_of", "alike", "alternatives",
    "choose", "decisive", "forms_of", "in_place", "isolated", "named", "possible", "rewritten", "sites_of",
]  # fmt: skip

Form = ConvForm | MatMulForm

# By mode: how much one operator's errors may grow (root mean square, beside the direct sum's). "strict" has no
# algorithm that is less accurate than what it replaces; none with fewer products is known that is not.
GROWTH: Mapping[str, float] = {"strict": 1.0, "standard": 16.0, "fast": 64.0}
LEAST_GAIN = 0.03  # share of the operator's time, for the accuracy and the memory that a form costs
FORM_ERROR = 0.1  # standard deviation of what a form is modelled to take, as a share of the operator's time
NEAR = 0.1  # share of the operator's time by which a form may be modelled to lose where it can be timed
_RIVAL = 0.15  # share of a form's time by which another may be modelled to take more, to be timed beside it
_MOST_RIVALS = 2  # (140 shapes, quiet: with 0, 1, 2 the fastest was found on 92, 95 and 96 %)
_FEWEST = 16  # channels, rows or columns below which products are too small for a form to pay
_WHERE = {"Conv", "MatMul"}
_SINGLE = (1, 1)  # taps and stride of an axis along which nothing is summed
# What Convs' forms take of the sum of their operators' prices, by whether an axis is direct: 45 random shapes,
# quiet, 2026-11-24: 1.12 and 0.94, standard deviation 0.16.
_FAMILY = {False: 1.12, True: 0.94}
# What operators take in a form of what they take alone: in front of each, products have filled the core's cache with
# something else. By ONNX Runtime's profile of eight forms: 1.2 to 2.8 times where elements are moved.
_APART = dict.fromkeys(("Concat", "Gather", "Pad", "Slice", "Split", "Transpose"), 1.5)


@dataclass(frozen=True)
class Site:
    """An operator that forms exist for.

    Attributes:
        node: that applies it.
        image: type of the data.
        pads: of a Conv, before and after each axis; empty for a product of matrices.
        strides, dilations: of a Conv, along each axis.
        weights: name of the fixed operand.
        bias: name of a Conv's bias.
        kernel: sizes of the fixed operand.
        after: what alone reads the result and works element by element; a form of a Conv takes it in.
        fused: what the runtime runs in one kernel with the operator besides, and would run apart from a form.
    """

    node: Node
    image: TensorType
    pads: tuple[int, ...]
    weights: str
    bias: str | None
    kernel: tuple[int, ...]
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    after: tuple[Node, ...] = ()
    fused: tuple[Node, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Those of the data; -1 for a symbolic batch."""
        return tuple(d if isinstance(d, int) else -1 for d in self.image.shape or ())

    @property
    def output(self) -> str:
        """What a form computes."""
        return (self.node, *self.after)[-1].outputs[0]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """What a form replaces."""
        return (self.node, *self.after)


@dataclass(frozen=True)
class Choice:
    """A site with its form.

    Attributes:
        site: the operator.
        form: what takes its place.
        before, after: what the operator and the form are taken to need, in microseconds.
        error: standard deviation of ``after``, in microseconds.
        rivals: other forms that prices put near this one, and what they are modelled to take; the cheapest first.
    """

    site: Site
    form: Form
    before: float
    after: float
    error: float = 0.0
    rivals: tuple[tuple[Form, float], ...] = ()

    @property
    def more_bytes(self) -> int:
        """By how much the weights grow, about."""
        return round(4 * prod(self.site.kernel) * (self.form.grown - 1.0))


def possible(graph: Graph) -> bool:
    """Whether there may be sites, without types: what most models without any pay."""
    return any(
        node.op in _WHERE
        and not node.domain
        and len(node.inputs) > 1
        and (held := graph.constants.get(node.inputs[1])) is not None
        and min((d for d in (held.type.shape or (0,))[:2] if isinstance(d, int)), default=0) >= _FEWEST
        for node in graph.nodes
    )


def sites_of(graph: Graph, typing: Typing | None = None, costs: CostModel | None = None) -> list[Site]:
    """The operators that some algorithm applies to.

    Args:
        graph: a checked graph.
        typing: its inferred types, if at hand.
        costs: says what the runtime would run in one kernel with each; without, that is left open.
    """
    typing = typing or infer(graph)
    known = {id(node): what for node, what in zip(graph.nodes, typing.nodes, strict=True)}
    found: list[Site] = []
    for node in graph.nodes:
        applied = known[id(node)]
        site = _site(graph, typing, node, applied) if isinstance(applied, Applied) else None
        if site is not None:
            after = tuple(_after(graph, typing, known, site.node)) if site.pads else ()
            fused = () if costs is None else tuple(_fused(graph, typing, known, (site.node, *after)[-1], costs))
            found.append(replace(site, after=after, fused=fused))
    return found


def _site(graph: Graph, typing: Typing, node: Node, known: Applied) -> Site | None:
    reader = {"Conv": _conv, "MatMul": _matmul}.get(known.operator.name)
    if reader is None or len(known.args) < 2 or known.args[0] is None or known.args[1] is None:
        return None
    image, weights = typing.types.get(known.args[0]), graph.constants.get(known.args[1])
    bias = known.args[2] if len(known.args) > 2 else None
    if image is None or image.shape is None or image.dtype != DType.FLOAT32:
        return None
    if weights is None or weights.data is None or weights.type.shape is None:
        return None
    if bias is not None and bias not in graph.constants:
        return None
    kernel = tuple(d for d in weights.type.shape if isinstance(d, int))
    return reader(Site(node, image, (), known.args[1], bias, kernel), known.attributes)


def _conv(site: Site, attributes: Mapping[str, AttributeValue]) -> Site | None:
    if attributes["group"] != 1 or len(site.sizes) not in (3, 4) or min(site.sizes[1:]) < 1:
        return None
    if min(site.kernel[:2]) < _FEWEST:
        return None
    pads, strides, dilations = (_ints(attributes[name]) for name in ("pads", "strides", "dilations"))
    return replace(site, pads=pads, strides=strides, dilations=dilations)


def _matmul(site: Site, attributes: Mapping[str, AttributeValue]) -> Site | None:
    if len(site.kernel) != 2 or len(site.sizes) < 2 or min(site.sizes) < 1:
        return None
    return site if min(*site.kernel, *_rows(site)) >= _FEWEST else None


_Known = Mapping[int, Applied | Barrier]  # by the node's identity


def _after(graph: Graph, typing: Typing, nodes: _Known, node: Node) -> Iterator[Node]:
    """What follows one after the other, element by element, with constants of one element alone."""
    while (reader := _reader(graph, node.outputs[0])) is not None:
        known = nodes[id(reader)]
        if not isinstance(known, Applied) or known.operator.family not in ("elementwise", "activation"):
            return
        first, rest = reader.inputs[0], [n for n in reader.inputs[1:] if n]
        small = all(n in graph.constants and graph.constants[n].type.elements == 1 for n in rest)
        if first != node.outputs[0] or not small or typing.types.get(first) != typing.types.get(reader.outputs[0]):
            return
        yield reader
        node = reader


def _fused(graph: Graph, typing: Typing, nodes: _Known, node: Node, costs: CostModel) -> Iterator[Node]:
    """What the runtime runs in one kernel with the node, one after the other."""
    while (reader := _reader(graph, node.outputs[0])) is not None and isinstance(nodes[id(reader)], Applied):
        others = [n for n in reader.reads if n != node.outputs[0]]
        fixed = [graph.constants[n].type for n in others if n in graph.constants]
        moving = [n for n in others if n not in graph.constants]
        rank = max((t.rank or 0 for t in fixed), default=0)
        if not costs.fusable(node.op, reader.op, constant_others=not moving, rank=rank):
            return
        if any(typing.types.get(n) is None for n in (*moving, *reader.outputs)):
            return
        makers = (graph.producer.get(n) for n in moving)
        if any(m is not None and costs.fusable(m.op, reader.op, constant_others=False) for m in makers):
            return  # it would run with what makes the other operand
        yield reader
        node = reader


def _reader(graph: Graph, name: str) -> Node | None:
    """The one node that reads a value which is no output."""
    readers = graph.consumers.get(name, ())
    alone = len(readers) == 1 and list(readers[0].reads).count(name) == 1
    if not alone or any(v.name == name for v in graph.outputs) or len(readers[0].outputs) != 1:
        return None
    return readers[0]


def _rows(site: Site) -> tuple[int, int]:
    """Rows, of all leading axes together, and the inner size."""
    count = 1
    for size in site.sizes[:-1]:
        count *= size
    return count, site.sizes[-1]


def _ints(value: AttributeValue) -> tuple[int, ...]:
    return tuple(v for v in value if isinstance(v, int)) if isinstance(value, tuple) else ()


def forms_of(site: Site, growth: float) -> list[Form]:
    """The forms of a site whose errors grow by at most that factor."""
    if site.pads:
        return list(_conv_forms(site, growth))
    rows, inner = _rows(site)
    blocked = [a for name, a in algorithms().items() if name.startswith("matmul:") and a.growth <= growth]
    return [MatMulForm(rows, inner, site.kernel[1], a) for a in blocked]


def _conv_forms(site: Site, growth: float) -> Iterator[Form]:
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
                Axis(size, before, after, algorithm, apart, _SINGLE if algorithm is not None else kind)
                for (size, before, after, kind, apart), algorithm in zip(spans, chosen, strict=True)
            )
            if min(height.outputs, width.outputs) > 0:
                yield ConvForm(height, width)


def _along(outputs: int, taps: int, stride: int) -> Algorithm | None:
    return algorithms().get(f"conv:{outputs}:{taps}" + (f":{stride}" if stride > 1 else "")) if taps > 1 else None


def named(form: Form) -> str:
    """``F(4×4, 3×3), 36 products`` or ``2×2×2 in 7 products``."""
    if isinstance(form, MatMulForm):
        return f"{'×'.join(map(str, form.parts))} in {form.algorithm.rank} products"
    axes = [axis for axis in form.axes if axis.algorithm is not None]
    shape = ((a.tile, a.taps, a.stride, a.dilation) for a in axes)
    outputs, taps, strides, apart = ("×".join(map(str, values)) for values in zip(*shape, strict=True))
    kind = f"F({outputs}, {taps}"
    kind += f"; stride {strides}" if any(a.stride > 1 for a in axes) else ""
    kind += f"; dilation {apart}" if any(a.dilation > 1 for a in axes) else ""
    kind += f"; {form.merged} taps directly" if form.merged > 1 else ""
    return f"{kind}), {form.products} products of {form.tiles} tiles"


def accuracy_of(form: Form) -> tuple[float, float]:
    """How much larger than a direct sum's the errors can be: root mean square, and at worst."""
    if isinstance(form, MatMulForm):
        return form.algorithm.growth, form.algorithm.bound
    growth = bound = 1.0
    for axis in form.axes:
        if axis.algorithm is not None:
            growth, bound = growth * axis.algorithm.growth, bound * axis.algorithm.bound
    return growth, bound


def choose(
    graph: Graph,
    costs: CostModel,
    *,
    growth: float,
    typing: Typing | None = None,
    sizes: Mapping[str, int] | None = None,
    gain: float = LEAST_GAIN,
) -> list[Choice]:
    """The sites where a form gains, each with its cheapest form: a function of the graph and the prices.

    Args:
        graph: a checked graph.
        costs: the target's cost model.
        growth: of errors that a form may bring, as in :data:`GROWTH`.
        typing: its inferred types, symbolic sizes as they are, if at hand.
        sizes: what a symbolic batch is costed at.
        gain: share of the operator's time that a form has to gain; negative for what may be worth timing.
    """
    typing = typing or infer(graph)
    known: dict[Hashable, tuple[float, list[tuple[Form, float]]]] = {}
    chosen: list[Choice] = []
    for site in sites_of(graph, typing, costs):
        single = isolated(graph, typing, site)
        key = alike(single)
        if key not in known:
            known[key] = _cheapest(single, site, costs, growth, sizes or {}, gain)
        before, forms = known[key]
        if forms:
            (form, after), *rivals = forms
            chosen.append(Choice(site, form, before, after, FORM_ERROR * before, tuple(rivals)))
    return in_place(graph, typing, chosen, costs, gain)


def in_place(
    graph: Graph, typing: Typing, chosen: list[Choice], costs: CostModel, gain: float = LEAST_GAIN
) -> list[Choice]:  # fmt: skip
    """Without those that gain too little once changes of layout are counted, the least one first.

    Args:
        graph: where the choices are.
        typing: its inferred types.
        chosen: at most one for a site.
        costs: what layouts are priced by.
        gain: share of the operator's time that a form has to gain.
    """

    def lost(choices: Sequence[Choice]) -> float:
        return changes_us(graph, typing, [Place(c.site.nodes, c.site.node.inputs[0]) for c in choices], costs)

    convs = [c for c in chosen if c.site.pads]
    while convs:
        together = lost(convs)
        alone = [together - lost([*convs[:i], *convs[i + 1 :]]) for i in range(len(convs))]
        gains = [(c.before - c.after - more) / c.before for c, more in zip(convs, alone, strict=True)]
        least = min(range(len(convs)), key=lambda i: gains[i])
        if gains[least] >= gain:
            break
        chosen = [c for c in chosen if c is not convs[least]]
        del convs[least]
    return chosen


def _cheapest(
    alone: Graph, site: Site, costs: CostModel, growth: float, sizes: Mapping[str, int], gain: float
) -> tuple[float, list[tuple[Form, float]]]:  # fmt: skip
    """What the operator takes, and the cheapest form that gains enough, with its rivals."""
    before, priced = _priced(alone, site, costs, growth, sizes)
    enough = [(form, us) for us, _, form in sorted(priced, key=lambda p: p[:2]) if us < (1 - gain) * before]
    return before, [p for p in enough if p[1] <= (1 + _RIVAL) * enough[0][1]][: 1 + _MOST_RIVALS]


def _priced(
    alone: Graph, site: Site, costs: CostModel, growth: float, sizes: Mapping[str, int]
) -> tuple[float, list[tuple[float, int, Form]]]:  # fmt: skip
    """What an operator takes, and what its forms take, with their numbers, without those that cannot be cheaper."""
    before = graph_cost(alone, costs, sizes=sizes).us
    priced: list[tuple[float, int, Form]] = []
    for number, form in enumerate(forms_of(site, growth)):
        if _products_us(site, form, costs) < before:
            made = graph_cost(_alone(alone, site, form), costs, sizes=sizes)
            us = made.us + sum((_APART.get(op, 1.0) - 1.0) * estimate.us for _, op, estimate in made.per_node)
            if isinstance(form, ConvForm):
                us *= _FAMILY[form.merged > 1]
            priced.append((us, number, form))
    return before, priced


def _alone(alone: Graph, site: Site, form: Form) -> Graph:
    """An operator that is a model of its own, as a form, without its weights' elements."""
    return rewritten(alone, [Choice(site, form, 0.0, 0.0)], filled=False)


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
        if (key := alike(alone)) not in seen:
            seen.add(key)
            yield from (_alone(alone, choice.site, form) for form in (choice.form, *(f for f, _ in choice.rivals)))


def alternatives(graph: Graph, site: Site, costs: CostModel, growth: float) -> list[tuple[float, Form | None]]:
    """What a graph's site is modelled to take in its place: as it is, and by each form, the cheapest first."""
    typing = infer(graph)
    before, priced = _priced(isolated(graph, typing, site), site, costs, growth, {})
    place = [Place(site.nodes, site.node.inputs[0])] if site.pads else []
    more = changes_us(graph, typing, place, costs) - changes_us(graph, typing, [], costs)
    return [(before, None), *((us + more, form) for us, _, form in sorted(priced, key=lambda p: p[:2]))]


def _products_us(site: Site, form: Form, costs: CostModel) -> float:
    """What a form's products are expected to take by themselves: less than all of it."""
    if isinstance(form, MatMulForm):
        (rows, inner, columns), count = form.block, form.algorithm.rank
    else:
        rows, inner, columns = form.tiles * max(site.sizes[0], 1), form.merged * site.kernel[1], site.kernel[0]
        count = form.products
    left, right, made = (TensorType(DType.FLOAT32, s) for s in ((rows, inner), (inner, columns), (rows, columns)))
    return count * costs.expected("MatMul", {}, [left, right], [made], [False, True]).us


def isolated(graph: Graph, typing: Typing, site: Site) -> Graph:
    """A site's operator, with what runs in one kernel with it, as a model of its own."""
    nodes = (*site.nodes, *site.fused)
    made = {o for node in nodes for o in node.outputs}
    read = dict.fromkeys(n for node in nodes for n in node.reads if n not in made)
    weights = tuple(graph.weight[n] for n in read if n in graph.weight)
    inputs = tuple(Value(n, typing.types[n]) for n in read if n not in graph.weight)
    return Graph(site.node.op, inputs, (Value(nodes[-1].outputs[0], None),), weights, nodes, graph.opset)


def alike(alone: Graph) -> Hashable:
    """Equal for operators of equal prices, each :func:`isolated`."""
    return (
        tuple(v.type for v in alone.inputs), tuple(w.type for w in alone.weights),
        tuple((n.op, tuple(sorted((k, attribute_key(v)) for k, v in n.attributes.items()))) for n in alone.nodes),
    )  # fmt: skip


def rewritten(
    graph: Graph, choices: Sequence[Choice], *, filled: bool = True, reserved: AbstractSet[str] = frozenset()
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
    writer = Writer(graph, "bilinear", filled, reserved)
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


def _write(writer: Writer, graph: Graph, choice: Choice) -> None:
    site, form, node = choice.site, choice.form, choice.site.node
    kind = graph.weight[site.weights].type.dtype.numpy
    weights, data = partial(_elements, graph, site.weights), node.inputs[0]
    if isinstance(form, ConvForm):
        bias = None if site.bias is None else partial(_elements, graph, site.bias)
        names = (site.weights, *(() if site.bias is None else (site.bias,)))
        kernel = Kernel(names, site.kernel[0], site.kernel[1], len(site.kernel) == 3, kind, weights, bias)
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
