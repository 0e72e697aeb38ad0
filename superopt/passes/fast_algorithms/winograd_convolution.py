"""A convolution by an evaluation–interpolation algorithm along each axis, as a graph of stock ONNX operators.

What runs at inference, for an image ``[n, c, height, width]`` and along each axis an algorithm of rank R for m outputs:

1. channels last, padded, and the places that each tile reads gathered: ``[places·places, tiles·c]``;
2. one product by a constant ``[R·R, places·places]``, which takes all tiles apart, points in front;
3. one product ``[tiles, c]·[c, o]`` for each of the points (a two-dimensional constant, which ONNX Runtime packs
   beforehand), and the bias as one more, which is the same in every output;
4. one product by a constant ``[m·m, R·R + 1]``, which puts all outputs together; tiles to their places, what lies
   beyond the image cut off, channels second.

An axis may be *direct*: its taps are summed by the products, as if each tap had channels of its own, and the other axis
alone takes fewer multiplications. That moves less where channels are few, and weights grow less.

Weights are transformed beforehand in float64. It is the form that was fastest of those that were tried: both axes by
one dense constant take fewer operations than an axis after the other by banded ones, and no tile axes are moved
between them (``docs/algorithms.md``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from superopt.cost.cost_model import CostModel
from superopt.ir.graph import Graph, Node
from superopt.ir.types import TensorType
from superopt.ops.shape_inference import InferredTypes
from superopt.passes.fast_algorithms.sites import NodeBuilder
from superopt.rules.bilinear import BilinearAlgorithm, Matrix
from superopt.runtime.comprehension_evaluation import Array

__all__ = [
    "ConvolutionAxis",
    "WinogradConvolution",
    "ConvolutionWeights",
    "ReplacedConvolution",
    "array_of",
    "changes",
    "changes_us",
    "write_conv",
]


def array_of(matrix: Matrix) -> Array:
    """A matrix of rationals in float64."""
    return np.array([[float(v) for v in row] for row in matrix])


@dataclass(frozen=True)
class ConvolutionAxis:
    """One spatial axis of a convolution.

    Taps that are ``dilation`` places apart make as many convolutions of every so many places, each with tiles of its
    own: the tiles of all of them are neighbours, and only where a tile reads and writes is different.

    Attributes:
        size: places of the input.
        before, after: of padding.
        algorithm: for the number of taps along the axis and its stride; ``None`` for a direct one.
        dilation: places from a tap to the next; with an algorithm, 1 unless the stride is.
        direct: taps and stride of a direct axis.
    """

    size: int
    before: int
    after: int
    algorithm: BilinearAlgorithm | None
    dilation: int = 1
    direct: tuple[int, int] = (1, 1)

    @property
    def tile(self) -> int:
        """Outputs of a tile."""
        return 1 if self.algorithm is None else len(self.algorithm.outputs)

    @property
    def rank(self) -> int:
        return 1 if self.algorithm is None else self.algorithm.rank

    @property
    def taps(self) -> int:
        return self.direct[0] if self.algorithm is None else len(self.algorithm.weights[0])

    @property
    def stride(self) -> int:
        return self.direct[1] if self.algorithm is None else self.algorithm.tile.stride

    @property
    def merged(self) -> int:
        """Taps that the products sum."""
        return self.taps if self.algorithm is None else 1

    @property
    def phases(self) -> int:
        """Convolutions of every so many places that lie side by side."""
        return 1 if self.algorithm is None else self.dilation

    @property
    def outputs(self) -> int:
        """Places of the output; at most 0 where there are none."""
        return (self.size + self.before + self.after - self.dilation * (self.taps - 1) - 1) // self.stride + 1

    @property
    def rows(self) -> int:
        """Tiles, one behind the other, that cover the outputs, or every so many of them where taps are apart."""
        return -(-self.outputs // (self.tile * self.phases))

    @property
    def tiles(self) -> int:
        """Tiles that cover the outputs: [rows, apart]."""
        return self.rows * self.phases

    @property
    def reads(self) -> Array:
        """The places of the padded input that the tiles read, [places of a tile, tiles]."""
        places = np.arange(self.stride * (self.tile - 1) + self.taps)
        first = self.stride * self.tile * self.phases * np.arange(self.rows)[:, None] + np.arange(self.phases)
        found: Array = self.dilation * places[:, None] + first.ravel()
        return found

    @property
    def padded(self) -> int:
        """Places with padding, and with what the last tile reads beyond it."""
        return max(int(self.reads.max()) + 1, self.size + self.before)

    @property
    def factors(self) -> tuple[Array, Array, Array]:
        """The matrices of data, weights and outputs; of a direct axis, the number 1."""
        if self.algorithm is None:
            return (np.ones((1, 1)),) * 3
        return array_of(self.algorithm.data), array_of(self.algorithm.weights), array_of(self.algorithm.outputs)


@dataclass(frozen=True)
class WinogradConvolution:
    """Both axes of an image; an image of one axis has a height of 1."""

    height: ConvolutionAxis
    width: ConvolutionAxis

    @property
    def axes(self) -> tuple[ConvolutionAxis, ConvolutionAxis]:
        return self.height, self.width

    @property
    def products(self) -> int:
        """Matrix products: points of both axes."""
        return self.height.rank * self.width.rank

    @property
    def tiled(self) -> tuple[tuple[int, int, int, int, tuple[int, int] | str], ...]:
        """What tells forms of one image apart: of each axis, sizes and the algorithm's tile."""
        kinds = (axis.direct if axis.algorithm is None else axis.algorithm.tile.name for axis in self.axes)
        return tuple((a.size, a.before, a.after, a.dilation, kind) for a, kind in zip(self.axes, kinds, strict=True))

    @property
    def merged(self) -> int:
        """Taps of direct axes: by so much longer are the products' inner sizes."""
        return self.height.merged * self.width.merged

    @property
    def grown(self) -> float:
        """Weights afterwards ÷ weights before."""
        return self.products * self.merged / (self.height.taps * self.width.taps)

    @property
    def tiles(self) -> int:
        """Rows of each product, for each image of the batch."""
        return self.height.tiles * self.width.tiles


@dataclass(frozen=True)
class ConvolutionWeights:
    """A convolution's fixed operands.

    Attributes:
        name: of the weights, and of the bias if there is one: equal for equal elements alone.
        out, inner: channels.
        flat: weights are [o, c, taps], not [o, c, taps, taps].
        kind: element type.
        weights: the elements, [o, c, taps, taps]; asked for only where they are needed.
        bias: [o], likewise; ``None`` where there is none.
    """

    name: tuple[str, ...]
    out: int
    inner: int
    flat: bool
    kind: np.dtype[np.generic]
    weights: Callable[[], Array]
    bias: Callable[[], Array] | None = None


def write_conv(
    writer: NodeBuilder,
    form: WinogradConvolution,
    image: str,
    batch: int,
    kernel: ConvolutionWeights,
    output: str,
    after: Sequence[Node] = (),
) -> None:
    """Append the form's nodes.

    Args:
        writer: of the graph.
        form: how.
        image: name of the input [n, c, height, width], or [n, c, width] where the weights have one axis.
        batch: n; -1 where it is not known.
        kernel: weights and bias.
        output: name that the result gets.
        after: what is applied to the result's elements, one by one: it comes before the channels become second, so that
            ONNX Runtime finds their Transpose beside what reads the result.
    """

    def transformed_input() -> list[str]:
        value = _gathered(writer, form, image, kernel)
        return writer.split(_input_transform(writer, form, value, batch, kernel), 0, form.products)

    parts = writer.once((image, form.tiled), transformed_input)  # two convolutions of one image take it apart once
    points, shape = _Points(form, kernel), (form.merged * kernel.inner, kernel.out)
    products: list[str] = []
    for number, part in enumerate(parts):
        key = kernel.name[0], form.tiled, number
        weight = writer.computed(key, shape, kernel.kind, partial(points.at, number))
        products.append(writer.op("MatMul", part, weight))
    bias = kernel.bias
    if bias is not None and batch > 0:
        wide = (1, batch * form.tiles, kernel.out)
        products.append(writer.computed((kernel.name, wide), wide, kernel.kind, lambda: np.broadcast_to(bias(), wide)))
    value = _together(writer, form, products, batch, kernel)
    if bias is not None and batch < 0:
        value = writer.op("Add", value, writer.computed(kernel.name, (kernel.out,), kernel.kind, bias))
    if kernel.flat:
        value = writer.reshaped(value, batch, form.width.outputs, kernel.out)
    for node in after:
        made, data = writer.name(node.op), node.inputs[0]
        assert data not in node.inputs[1:]
        writer.nodes.append(replace(node, inputs=(value, *node.inputs[1:]), outputs=(made,)))
        value = made
    writer.op("Transpose", value, outputs=(output,), perm=(0, 2, 1) if kernel.flat else (0, 3, 1, 2))


@dataclass(frozen=True)
class _Points:
    """The weights, transformed in float64."""

    form: WinogradConvolution
    kernel: ConvolutionWeights

    @cached_property
    def taps(self) -> Array:
        """[taps · taps, c · o]; taps of direct axes, t of them, come after the others: [taps, t · c · o]."""
        out, inner, (height, width) = self.kernel.out, self.kernel.inner, self.form.axes
        weights = np.asarray(self.kernel.weights(), dtype=np.float64).reshape(out, inner, height.taps, width.taps)
        order = [2 + n for n, axis in enumerate(self.form.axes) if axis.algorithm is not None]
        order += [2 + n for n, axis in enumerate(self.form.axes) if axis.algorithm is None]
        return np.ascontiguousarray(weights.transpose(*order, 1, 0)).reshape(-1, self.form.merged * inner * out)

    @cached_property
    def matrix(self) -> Array:
        """[points, taps · taps]."""
        return np.kron(*(axis.factors[1] for axis in self.form.axes))

    def at(self, number: int) -> Array:
        """Of one point, [t · c, o]."""
        made: Array = (self.matrix[number] @ self.taps).reshape(-1, self.kernel.out)
        return made


def _gathered(writer: NodeBuilder, form: WinogradConvolution, image: str, kernel: ConvolutionWeights) -> str:
    """What the tiles read, [n, places, tiles · c], or [n, places, tiles · t · c] with t taps of a direct axis."""
    inner = kernel.inner
    if kernel.flat:
        value = writer.reshaped(writer.transposed(image, 0, 2, 1), -1, 1, form.width.size, inner)
    else:
        value = writer.transposed(image, 0, 2, 3, 1)
    before = [axis.before for axis in form.axes]
    after = [axis.padded - axis.size - axis.before for axis in form.axes]
    if any((*before, *after)):
        value = writer.padded(value, 0, *before, 0, 0, *after, 0)
    rows, columns = (axis.reads for axis in form.axes)
    places: Array = rows[:, None, :, None] * form.width.padded + columns[None, :, None, :]
    direct = [n for n, axis in enumerate(form.axes) if axis.algorithm is None]
    places = np.moveaxis(places, direct, range(-len(direct), 0))
    value = writer.reshaped(value, -1, form.height.padded * form.width.padded, inner)
    value = writer.op("Gather", value, writer.sizes(*places.ravel().tolist()), axis=1)
    return writer.reshaped(value, -1, len(rows) * len(columns) // form.merged, form.tiles * form.merged * inner)


def _input_transform(
    writer: NodeBuilder, form: WinogradConvolution, value: str, batch: int, kernel: ConvolutionWeights
) -> str:
    """The points of all tiles, [points, n · tiles, c]."""
    inner = form.merged * kernel.inner
    matrix = np.kron(*(axis.factors[0] for axis in form.axes)).astype(kernel.kind)
    value = writer.op("MatMul", writer.constant(matrix), value)
    if batch != 1:
        value = writer.transposed(writer.reshaped(value, batch, form.products, form.tiles * inner), 1, 0, 2)
    return writer.reshaped(value, form.products, -1, inner)


def _together(
    writer: NodeBuilder, form: WinogradConvolution, products: list[str], batch: int, kernel: ConvolutionWeights
) -> str:
    """The image [n, height, width, o] from the products of the points, and from what goes into every output."""
    out, count, tiles = kernel.out, len(products), form.tiles
    matrix = np.kron(*(axis.factors[2] for axis in form.axes))
    matrix = np.pad(matrix, ((0, 0), (0, count - form.products)), constant_values=1.0).astype(kernel.kind)
    value = writer.op("Concat", *products, axis=0)
    if batch != 1:
        value = writer.transposed(writer.reshaped(value, count, batch, tiles * out), 1, 0, 2)
    value = writer.op("MatMul", writer.constant(matrix), writer.reshaped(value, batch, count, tiles * out))
    height, width = form.axes
    if height.phases == width.phases == 1:
        value = writer.reshaped(value, batch, height.tile, width.tile, height.tiles, width.tiles, out)
        value = writer.transposed(value, 0, 3, 1, 4, 2, 5)
    else:
        apart = (height.rows, height.phases, width.rows, width.phases)
        value = writer.reshaped(value, batch, height.tile, width.tile, *apart, out)
        value = writer.transposed(value, 0, 3, 1, 4, 5, 2, 6, 7)
    value = writer.reshaped(value, batch, height.tiles * height.tile, width.tiles * width.tile, out)
    for number, axis in enumerate(form.axes, 1):
        if axis.tiles * axis.tile > axis.outputs:
            value = writer.sliced(value, {number: (0, axis.outputs)})
    return value


# -- Blocked layouts -----------------------------------------------------------------------------------------------
#
# ONNX Runtime keeps images in blocks of channels from a Conv on, through every operator that has a blocked kernel. An
# operator without one gets the image with channels second, and the next Conv converts it again. A form begins and ends
# with a Transpose, which the runtime merges with such a conversion, and removes where two forms meet.


_RANK = 4  # axes of images that are kept in blocks
_FEWEST = 8  # channels of a Conv's input below which it reads them as they are
_LAST = (0, 2, 3, 1)  # channels last


@dataclass(frozen=True)
class ReplacedConvolution:
    """A form: the nodes that it stands for, one after the other, and the image that it reads.

    ``begins`` is equal for forms of one image that begin with one Transpose. A ``direct`` form is a convolution still,
    which reads its image as one does, and makes one with channels second.
    """

    nodes: tuple[Node, ...]
    image: str
    begins: Hashable = None
    direct: bool = False

    @property
    def output(self) -> str:
        return self.nodes[-1].outputs[0]


def changes(
    graph: Graph, typing: InferredTypes, forms: Sequence[ReplacedConvolution], blocked: frozenset[str]
) -> Mapping[str, int]:
    """By value, how often its layout is changed beyond what forms count themselves; less where forms meet.

    Args:
        graph: the model, forms not written.
        typing: its types.
        forms: the Convs that are to be forms.
        blocked: operators that the runtime runs in blocks where their operands are; none, and nothing changes.
    """
    if "Conv" not in blocked:
        return {}
    plain_made = {form.output for form in forms if form.direct}
    forms = [form for form in forms if not form.direct]
    inside = {id(node) for form in forms for node in form.nodes}
    begin = {(id(form.nodes[0]), form.image): form.begins or id(form) for form in forms}
    made = {form.output for form in forms}
    held: set[str] = set()
    running: set[int] = set()  # nodes that run in blocks

    def is_image(name: str) -> bool:
        kind = typing.types.get(name)
        return kind is not None and kind.rank == _RANK

    for node in graph.nodes:
        if id(node) in inside or node.domain or node.op not in blocked:
            continue
        data = [n for n in node.reads if n not in graph.constants]
        if all(map(is_image, data)) and (node.op == "Conv" or (data and all(n in held for n in data))):
            held.update(o for o in node.outputs if o not in plain_made)
            running.add(id(node))
    ends = dict.fromkeys(v.name for v in graph.outputs)
    found: dict[str, int] = {}
    for name in dict.fromkeys((*graph.consumers, *ends)):
        if not is_image(name) or name in graph.constants:
            continue
        readers = graph.consumers.get(name, ())
        first = {begin[id(r), name] for r in readers if (id(r), name) in begin}
        outside = [r for r in readers if id(r) not in inside]
        blocks = [r for r in outside if id(r) in running and _channels(typing, name) >= _FEWEST]
        plain = len(outside) > sum(id(r) in running for r in outside) or name in ends
        if name in held:
            count = int(plain)
        elif name in made:
            count = int(bool(blocks) and plain) - int(not blocks and not plain) - len(first)
        else:
            count = int(bool(blocks))
        if count:
            found[name] = count
    return found


def changes_us(graph: Graph, typing: InferredTypes, forms: Sequence[ReplacedConvolution], costs: CostModel) -> float:
    """What these changes take in microseconds: each as long as the image's Transpose."""
    total = 0.0
    for name, count in changes(graph, typing, forms, costs.backend.blocked).items():
        kind = typing.types[name]
        assert kind is not None
        total += count * _transpose_us(kind, costs)
    return total


def _transpose_us(kind: TensorType, costs: CostModel) -> float:
    assert kind.shape is not None
    made = TensorType(kind.dtype, tuple(kind.shape[axis] for axis in _LAST))
    return costs.expected("Transpose", {"perm": _LAST}, [kind], [made]).us


def _channels(typing: InferredTypes, name: str) -> int:
    kind = typing.types.get(name)
    size = kind.shape[1] if kind is not None and kind.shape is not None else 0
    return size if isinstance(size, int) else 0
