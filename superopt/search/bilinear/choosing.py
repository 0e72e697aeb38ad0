"""Where an algorithm with fewer multiplications pays: sites, forms for each, prices of both, one graph.

A site is a Conv of stride 1, or a product of matrices, with fixed weights and known sizes. Its forms are priced by the
cost model as graphs of their own beside the operator, with what the runtime fuses and how it lays out images, and the
cheapest is taken if it gains enough; where the caller can time graphs on the target, the cheapest few are timed beside
the operator, and what is fastest is taken. Equal sites are looked at once. Whether the whole model gained is for the
caller to measure: beside a form, ONNX Runtime leaves its blocked layout.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from superopt.cost.model import CostModel
from superopt.cost.whole import graph_cost
from superopt.ir.graph import Graph, Node, Value
from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType, TensorType
from superopt.ops.infer import Applied, Typing, infer
from superopt.rules.bilinear import Algorithm, algorithms
from superopt.runtime.evaluate import Array
from superopt.search.bilinear.conv import Axis, ConvForm, write_conv
from superopt.search.bilinear.matmul import MatMulForm, write_matmul
from superopt.search.bilinear.writing import Writer

__all__ = ["GROWTH", "Choice", "Form", "Site", "Timing", "choose", "forms_of", "named", "rewritten", "sites_of"]

Form = ConvForm | MatMulForm
Timing = Callable[[Sequence[Graph]], Sequence[float]]  # of graphs with the same inputs, what each takes of the first

# By mode: how much one operator's errors may grow (root mean square, beside the direct sum's). "strict" has no
# algorithm that is less accurate than what it replaces; none with fewer products is known that is not.
GROWTH: Mapping[str, float] = {"strict": 1.0, "standard": 16.0, "fast": 64.0}
_LEAST_GAIN = 0.05  # share of the operator's time: prices of forms are no better than that
_CLOSE = 1.1  # prices of forms up to this multiple of the operator's are worth a look at what they take
_TIMED = 3  # forms of a site that are timed, at most
_FEWEST = 16  # channels, rows or columns below which products are too small for a form to pay


@dataclass(frozen=True)
class Site:
    """An operator that forms exist for.

    Attributes:
        node: that applies it.
        image: type of the data.
        pads: of a Conv, before and after each axis; empty for a product of matrices.
        weights: name of the fixed operand.
        bias: name of a Conv's bias.
    """

    node: Node
    image: TensorType
    pads: tuple[int, ...]
    weights: str
    bias: str | None
    kernel: tuple[int, ...]

    @property
    def alike(self) -> Hashable:
        """Equal for sites of equal prices."""
        return self.node.op, self.image, self.pads, self.kernel, self.bias is not None

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(d for d in self.image.shape or () if isinstance(d, int))


@dataclass(frozen=True)
class Choice:
    """A site with its cheapest form, and what the operator and the form are modelled to take, in microseconds."""

    site: Site
    form: Form
    before: float
    after: float


def sites_of(graph: Graph, typing: Typing | None = None) -> list[Site]:
    """The operators that some algorithm applies to.

    Args:
        graph: a checked graph.
        typing: its inferred types, if at hand.
    """
    typing = typing or infer(graph)
    return [
        site
        for node, known in zip(graph.nodes, typing.nodes, strict=True)
        if isinstance(known, Applied) and (site := _site(graph, typing, node, known)) is not None
    ]


def _site(graph: Graph, typing: Typing, node: Node, known: Applied) -> Site | None:
    reader = {"Conv": _conv, "MatMul": _matmul}.get(known.operator.name)
    if reader is None or len(known.args) < 2 or known.args[0] is None or known.args[1] is None:
        return None
    image, weights = typing.types.get(known.args[0]), graph.constants.get(known.args[1])
    bias = known.args[2] if len(known.args) > 2 else None
    if image is None or weights is None or weights.data is None or image.dtype != DType.FLOAT32:
        return None
    if not image.is_static or weights.type.shape is None or (bias is not None and bias not in graph.constants):
        return None
    kernel = tuple(d for d in weights.type.shape if isinstance(d, int))
    return reader(Site(node, image, (), known.args[1], bias, kernel), known.attributes)


def _conv(site: Site, attributes: Mapping[str, AttributeValue]) -> Site | None:
    plain = all(v == 1 for name in ("strides", "dilations") for v in _ints(attributes[name]))
    if not plain or attributes["group"] != 1 or len(site.sizes) not in (3, 4):
        return None
    if min(site.kernel[:2]) < _FEWEST:
        return None
    return replace(site, pads=_ints(attributes["pads"]))


def _matmul(site: Site, attributes: Mapping[str, AttributeValue]) -> Site | None:
    if len(site.kernel) != 2 or len(site.sizes) < 2 or min(*site.kernel, *_rows(site)) < _FEWEST:
        return None
    return site


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
    """Tiles of equal size along both axes."""
    sizes, taps, half = site.sizes[2:], site.kernel[2:], len(site.pads) // 2
    spans = [(size, site.pads[i], site.pads[half + i], taps[i]) for i, size in enumerate(sizes)]
    if len(spans) == 1:
        spans.insert(0, (1, 0, 0, 1))
    for outputs in sorted({len(a.outputs) for a in algorithms().values() if a.tile.name.startswith("conv:")}):
        chosen = [_along(outputs, count) for *_, count in spans]
        known = [a for a in chosen if a is not None]
        grown = 1.0
        for algorithm in known:
            grown *= algorithm.growth
        fast = [count > 1 for *_, count in spans]
        if not known or [a is not None for a in chosen] != fast or grown > growth:
            continue
        axes = [
            Axis(size, before, after, algorithm)
            for (size, before, after, _), algorithm in zip(spans, chosen, strict=True)
        ]
        if min(axis.outputs for axis in axes) > 0:
            yield ConvForm(axes[0], axes[1])


def _along(outputs: int, taps: int) -> Algorithm | None:
    return algorithms().get(f"conv:{outputs}:{taps}") if taps > 1 else None


def named(form: Form) -> str:
    """``F(4×4, 3×3), 36 products`` or ``2×2×2 in 7 products``."""
    if isinstance(form, MatMulForm):
        return f"{'×'.join(map(str, form.parts))} in {form.algorithm.rank} products"
    axes = [axis for axis in form.axes if axis.algorithm is not None]
    outputs, taps = ("×".join(str(v) for v in values) for values in zip(*((a.tile, a.taps) for a in axes), strict=True))
    return f"F({outputs}, {taps}), {form.products} products of {form.tiles} tiles"


def choose(
    graph: Graph,
    costs: CostModel,
    *,
    growth: float,
    typing: Typing | None = None,
    timing: Timing | None = None,
    progress: Callable[[int, int | None, str], None] | None = None,
) -> list[Choice]:
    """The sites where a form gains, each with its cheapest form.

    Args:
        graph: a checked graph.
        costs: the target's cost model.
        growth: of errors that a form may bring, as in :data:`GROWTH`.
        typing: its inferred types, if at hand.
        timing: if given, it has the last word about a site, and prices only say which forms are looked at.
        progress: called with (sites done, sites, which).
    """
    known: dict[Hashable, tuple[Form | None, float, float]] = {}
    chosen: list[Choice] = []
    sites = sites_of(graph, typing)
    for done, site in enumerate(sites):
        if progress is not None:
            progress(done, len(sites), site.node.name)
        if site.alike not in known:
            known[site.alike] = _cheapest(graph, site, costs, growth, timing)
        form, before, after = known[site.alike]
        if form is not None and after < (1 - _LEAST_GAIN) * before:
            chosen.append(Choice(site, form, before, after))
    return chosen


def _cheapest(
    graph: Graph, site: Site, costs: CostModel, growth: float, timing: Timing | None
) -> tuple[Form | None, float, float]:  # fmt: skip
    """The cheapest form, what the operator takes and what the form takes."""
    alone = _alone(graph, site)
    before = graph_cost(alone, costs).us
    priced: list[tuple[float, int, Form, Graph]] = []
    for number, form in enumerate(forms_of(site, growth)):
        made = rewritten(alone, [Choice(site, form, 0.0, 0.0)])
        priced.append((graph_cost(made, costs).us, number, form, made))
    priced = [p for p in sorted(priced, key=lambda p: p[:2]) if p[0] < _CLOSE * before][:_TIMED]
    if not priced:
        return None, before, before
    if timing is None:
        return priced[0][2], before, priced[0][0]
    ratios = timing([alone, *(made for *_, made in priced)])[1:]
    fastest = min(range(len(priced)), key=lambda n: ratios[n])
    return priced[fastest][2], before, before * ratios[fastest]


def _alone(graph: Graph, site: Site) -> Graph:
    """The operator as a model of its own."""
    read = {name for name in site.node.reads if name in graph.weight}
    fed = next(name for name in site.node.reads if name not in read)
    weights = tuple(w for w in graph.weights if w.name in read)
    inputs, outputs = (Value(fed, site.image),), (Value(site.node.outputs[0], None),)
    return Graph(site.node.name or site.node.op, inputs, outputs, weights, (site.node,), graph.opset)


def rewritten(graph: Graph, choices: Sequence[Choice]) -> Graph:
    """The graph with these operators written as their forms; weights that nothing reads any more are left out."""
    made = {id(choice.site.node): choice for choice in choices}
    writer = Writer(graph, "bilinear")
    nodes: list[Node] = []
    for node in graph.nodes:
        if id(node) not in made:
            nodes.append(node)
            continue
        writer.nodes.clear()
        _write(writer, graph, made[id(node)])
        nodes += writer.nodes
    read = {name for node in nodes for name in node.reads} | {v.name for v in graph.outputs}
    read |= {v.name for v in graph.inputs}
    weights = tuple(w for w in graph.weights if w.name in read) + tuple(writer.weights)
    return replace(graph, nodes=tuple(nodes), weights=weights).checked()


def _write(writer: Writer, graph: Graph, choice: Choice) -> None:
    site, form, node = choice.site, choice.form, choice.site.node
    weights = _elements(graph, site.weights)
    data = next(name for name in node.inputs if name)
    if isinstance(form, ConvForm):
        bias = None if site.bias is None else _elements(graph, site.bias)
        write_conv(writer, form, data, site.sizes[0], weights, bias, node.outputs[0])
        return
    if len(site.sizes) == 2:
        write_matmul(writer, form, data, weights, node.outputs[0])
        return
    flat = writer.reshaped(data, form.rows, form.inner)
    made = writer.name("product")
    write_matmul(writer, form, flat, weights, made)
    shape = writer.sizes(*site.sizes[:-1], form.columns)
    writer.op("Reshape", made, shape, outputs=(node.outputs[0],))


def _elements(graph: Graph, name: str) -> Array:
    data = graph.weight[name].data
    assert data is not None  # a site's weights have values
    return data.numpy()
