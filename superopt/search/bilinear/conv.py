"""A convolution by a nested evaluation–interpolation algorithm, as a graph of stock ONNX operators.

What runs at inference, for an image ``[n, c, height, width]`` and along each axis an algorithm of rank R for m outputs:

1. channels last, and where an axis has several *blocks* of tiles, the places that each block reads (``Gather``);
2. one product by a banded constant an axis, which takes all tiles of a block apart: ``[R·tiles, places]``;
3. the tiles in front of the points, one product ``[n·tiles, c]·[c, o]`` for each of the R·R points (a two-dimensional
   constant, which ONNX Runtime packs beforehand), the points together again;
4. one product by a banded constant an axis, which puts the outputs of a block together: ``[m·tiles, R·tiles]``;
   what lies beyond the image is left out of the constant, or cut off where there are several blocks; channels second.

Places outside the image are columns that the constants do not have, so that padding costs nothing. A bias is added to a
product that has the same coefficient in every output (evaluation at 1 gives one), not to the image. Weights are
transformed beforehand in float64. It is the form that was fastest of those that were tried (``docs/algorithms.md``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from superopt.rules.bilinear import Algorithm, Matrix
from superopt.runtime.evaluate import Array
from superopt.search.bilinear.writing import Writer

__all__ = ["Axis", "ConvForm", "array_of", "write_conv"]


def array_of(matrix: Matrix) -> Array:
    """A matrix of rationals in float64."""
    return np.array([[float(v) for v in row] for row in matrix])


@dataclass(frozen=True)
class Axis:
    """One spatial axis of a convolution of stride 1.

    Attributes:
        size: places of the input.
        before, after: of padding.
        algorithm: for the number of taps along the axis; ``None`` for one tap, where there is nothing to gain.
        block: tiles that one product takes apart, at most; they are shared out evenly.
    """

    size: int
    before: int
    after: int
    algorithm: Algorithm | None
    block: int

    @property
    def tile(self) -> int:
        """Outputs of a tile."""
        return 1 if self.algorithm is None else len(self.algorithm.outputs)

    @property
    def rank(self) -> int:
        return 1 if self.algorithm is None else self.algorithm.rank

    @property
    def taps(self) -> int:
        return 1 if self.algorithm is None else len(self.algorithm.weights[0])

    @property
    def outputs(self) -> int:
        """Places of the output."""
        return self.size + self.before + self.after - self.taps + 1

    @property
    def blocks(self) -> int:
        return 1 if self.algorithm is None else -(-self._tiles // self.block)

    @property
    def within(self) -> int:
        """Tiles of one block."""
        return -(-self._tiles // self.blocks)

    @property
    def _tiles(self) -> int:
        return -(-self.outputs // self.tile)

    def read(self) -> Array:
        """The places that each block reads, [blocks, places]: beyond the image, any."""
        if self.blocks == 1:
            return np.arange(self.size).reshape(1, -1)
        span = self.tile * self.within + self.taps - 1
        starts = self.tile * self.within * np.arange(self.blocks) - self.before
        places: Array = np.clip(starts[:, None] + np.arange(span), 0, self.size - 1)
        return places

    def apart(self) -> Array:
        """[blocks, rank · tiles, places]: each block's tiles from what it reads, points first."""
        assert self.algorithm is not None
        data = array_of(self.algorithm.data)
        places = self.read().shape[1]
        made = np.zeros((self.blocks, self.rank, self.within, places))
        for block in range(self.blocks):
            origin = 0 if self.blocks == 1 else self.tile * self.within * block - self.before
            for tile in range(self.within):
                first = self.tile * (self.within * block + tile) - self.before
                for offset in range(data.shape[1]):
                    if 0 <= first + offset < self.size:
                        made[block, :, tile, first + offset - origin] += data[:, offset]
        return made.reshape(self.blocks, self.rank * self.within, places)

    def together(self) -> Array:
        """[outputs of a block, rank · tiles]; of a single block, only the outputs that there are."""
        assert self.algorithm is not None
        outputs = array_of(self.algorithm.outputs)
        made = np.zeros((self.within, self.tile, self.rank, self.within))
        for tile in range(self.within):
            made[tile, :, :, tile] = outputs
        whole: Array = made.reshape(self.within * self.tile, self.rank * self.within)
        return whole[: self.outputs] if self.blocks == 1 else whole

    def even(self) -> tuple[int, float] | None:
        """A product that has one and the same coefficient in every output, and that coefficient."""
        if self.algorithm is None:
            return 0, 1.0
        for number, column in enumerate(array_of(self.algorithm.outputs).T):
            if column[0] and (column == column[0]).all():
                return number, float(column[0])
        return None


@dataclass(frozen=True)
class ConvForm:
    """Both axes of an image; an image of one axis has a height of 1."""

    height: Axis
    width: Axis

    @property
    def products(self) -> int:
        """Matrix products: points of both axes."""
        return self.height.rank * self.width.rank

    @property
    def tiles(self) -> int:
        """Rows of each product, for each image of the batch."""
        return self.height.blocks * self.height.within * self.width.blocks * self.width.within


def write_conv(
    writer: Writer, form: ConvForm, image: str, weights: Array, bias: Array | None, output: str, *, flat: bool = False
) -> None:
    """Append the form's nodes.

    Args:
        writer: of the graph.
        form: how.
        image: name of the input [n, c, height, width], or [n, c, width] where ``flat``.
        weights: [o, c, taps, taps] or, where ``flat``, [o, c, taps]; float32, or any other float type.
        bias: [o].
        output: name that the result gets.
        flat: whether the image has one axis.
    """
    height, width = form.height, form.width
    kernel = weights[:, :, None, :] if flat else weights
    out, inner = kernel.shape[:2]
    kind = weights.dtype
    rows, columns = (height.blocks, height.within, height.rank), (width.blocks, width.within, width.rank)
    value = _last(writer, image, inner, flat)
    for number, axis in ((2, width), (1, height)):
        if axis.blocks > 1:
            value = writer.op("Gather", value, writer.sizes(*axis.read().ravel().tolist()), axis=number)
    read = [axis.read().shape[1] for axis in (height, width)]
    if height.algorithm is not None:
        value = writer.reshaped(value, -1, height.blocks, read[0], columns[0] * read[1] * inner)
        value = writer.op("MatMul", writer.constant(height.apart().astype(kind)), value)
    if width.algorithm is not None:
        value = writer.reshaped(value, -1, columns[0], read[1], inner)
        value = writer.op("MatMul", writer.constant(width.apart().astype(kind)), value)
    value = writer.reshaped(value, -1, rows[0], rows[2], rows[1], columns[0], columns[2], columns[1] * inner)
    value = writer.transposed(value, 2, 5, 0, 1, 3, 4, 6)
    value = writer.reshaped(value, form.products, -1, inner)
    value, added = _products(writer, form, value, kernel, bias)
    value = writer.reshaped(value, rows[2], columns[2], -1, rows[0], rows[1], columns[0], columns[1] * out)
    value = writer.transposed(value, 2, 3, 0, 4, 5, 1, 6)
    if width.algorithm is not None:
        value = writer.reshaped(value, -1, columns[2] * columns[1], out)
        value = writer.op("MatMul", writer.constant(width.together().astype(kind)), value)
    made = [axis.outputs if axis.blocks == 1 else axis.blocks * axis.within * axis.tile for axis in (height, width)]
    if height.algorithm is not None:
        value = writer.reshaped(value, -1, rows[2] * rows[1], made[1] * out)
        value = writer.op("MatMul", writer.constant(height.together().astype(kind)), value)
    value = writer.reshaped(value, -1, made[0], made[1], out)
    for number, (axis, size) in enumerate(zip((height, width), made, strict=True), 1):
        if size > axis.outputs:
            ends = (writer.sizes(0), writer.sizes(axis.outputs), writer.sizes(number))
            value = writer.op("Slice", value, *ends)
    if bias is not None and not added:
        value = writer.op("Add", value, writer.constant(bias))
    if flat:
        value = writer.reshaped(value, -1, width.outputs, out)
        writer.op("Transpose", value, outputs=(output,), perm=(0, 2, 1))
    else:
        writer.op("Transpose", value, outputs=(output,), perm=(0, 3, 1, 2))


def _last(writer: Writer, image: str, inner: int, flat: bool) -> str:
    """The image [n, height, width, c]."""
    if not flat:
        return writer.transposed(image, 0, 2, 3, 1)
    value = writer.transposed(image, 0, 2, 1)
    return writer.op("Unsqueeze", value, writer.sizes(1))


def _products(
    writer: Writer, form: ConvForm, value: str, kernel: Array, bias: Array | None
) -> tuple[str, bool]:  # fmt: skip
    """The points' products [points, rows, o], and whether the bias is in them."""
    factors = [np.ones((1, 1)) if a.algorithm is None else array_of(a.algorithm.weights) for a in _axes(form)]
    points = np.einsum("ri,sj,ocij->rsco", *factors, kernel.astype(np.float64), optimize=True)
    even = [axis.even() for axis in _axes(form)]
    at, share = -1, 1.0
    if even[0] is not None and even[1] is not None:
        at, share = even[0][0] * form.width.rank + even[1][0], even[0][1] * even[1][1]
    made = []
    for number, part in enumerate(writer.split(value, 0, form.products)):
        point = points[divmod(number, form.width.rank)]
        product = writer.op("MatMul", part, writer.constant(point.astype(kernel.dtype)))
        if bias is not None and number == at:
            held = (bias.astype(np.float64) / share).astype(kernel.dtype)
            product = writer.op("Add", product, writer.constant(held))
        made.append(product)
    return writer.op("Concat", *made, axis=0), at >= 0


def _axes(form: ConvForm) -> Sequence[Axis]:
    return form.height, form.width
