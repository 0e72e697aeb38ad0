"""Operators that move elements without choosing among them: transposing, reshaping, repeating."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from superopt.ir.size_polynomial import Dim, SizePolynomial
from superopt.ir.terms import AttributeValue
from superopt.ir.types import TensorType
from superopt.ops.elementwise import element
from superopt.ops.onnx_node_conversion import (
    int64s,
    integer,
    integers,
    listed,
    normal_axes,
    only,
    product,
    refuse_matrix,
    since_only,
    text,
    truth,
    writer,
)
from superopt.ops.operator_definition import (
    ANY,
    CanonicalNodeForm,
    OnnxNodeForm,
    OnnxNodeView,
    Operator,
    UnsupportedNodeForm,
)
from superopt.ops.operator_semantics import (
    ContradictoryShapes,
    IllTypedOperator,
    ScalarExpression,
    SymbolicOperand,
    TensorComprehension,
    broadcast_dims,
    combine,
    number,
    require,
    same,
    tensor,
)

__all__ = ["OPERATORS", "axes_of", "reshaped", "sizes_of"]


# -- Reshape by digit axes -----------------------------------------------------------------------------------------
#
# The axes of two shapes with the same elements are split into common factors. Flattening is row-major, so axes are read
# most significant first. Axes of size 1 are left out, the rest is cut into the shortest runs of equal products, and the
# axes of a run are split into digits. Only sizes without a common refinement (6×2 to 4×3) need div and mod of a flat
# index.


Digits = list[list[Dim]]  # per axis, most significant first


def reshaped(x: SymbolicOperand, shape: Sequence[Dim]) -> TensorComprehension:
    """The elements of ``x`` in row-major order, in another shape."""
    require(same(prod(x.shape, start=1), prod(shape, start=1)), f"{x.type} has not the elements of {list(shape)}")
    if any(isinstance(s, int) and s == 0 for s in (*x.shape, *shape)):
        return tensor(shape, lambda *_: number(0))
    sources = [a for a, s in enumerate(x.shape) if s != 1]
    targets = [a for a, s in enumerate(shape) if s != 1]
    runs = common_runs([x.shape[a] for a in sources], [shape[a] for a in targets])
    factors: dict[int, list[Dim]] = {}
    plans: list[tuple[list[int], list[int], Digits | None]] = []
    for (s0, s1), (t0, t1) in runs:
        source, target = sources[s0:s1], targets[t0:t1]
        split = digits([x.shape[a] for a in source], [shape[a] for a in target])
        plans.append((source, target, split[0] if split else None))
        if split:
            factors.update(zip(target, split[1], strict=True))

    def value(*index: Dim | tuple[Dim, ...]) -> ScalarExpression:
        place: list[Dim] = [0] * x.rank
        for source, target, split in plans:
            given = [index[a] for a in target]
            flat = [d for g in given for d in (g if isinstance(g, tuple) else (g,))]
            if split is None:
                found = by_division(flat, [shape[a] for a in target], [x.shape[a] for a in source])
                place_at(place, source, found)
                continue
            at = iter(flat)
            place_at(place, source, [combine([next(at) for _ in part], part) for part in split])
        return x[tuple(place)]

    return tensor([tuple(factors[a]) if len(factors.get(a, ())) > 1 else s for a, s in enumerate(shape)], value)


def place_at(place: list[Dim], axes: Sequence[int], values: Sequence[Dim]) -> None:
    for axis, value in zip(axes, values, strict=True):
        place[axis] = value


def common_runs(source: Sequence[Dim], target: Sequence[Dim]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Shortest runs of axes with equal products, as ranges of source and target axes; together they cover all."""
    products: dict[Dim, int] = {1: 0}
    running: Dim = 1
    for position, size in enumerate(source, 1):
        running = running * size
        products[running] = position
    runs: list[tuple[tuple[int, int], tuple[int, int]]] = []
    start = (0, 0)
    running = 1
    for position, size in enumerate(target, 1):
        running = running * size
        met = products.get(running)
        if met is not None and met > start[0]:
            runs.append(((start[0], met), (start[1], position)))
            start = (met, position)
    if start != (len(source), len(target)):  # equal only as an obligation: what is left is one run
        runs.append(((start[0], len(source)), (start[1], len(target))))
    return runs


def digits(source: Sequence[Dim], target: Sequence[Dim]) -> tuple[Digits, Digits] | None:
    """The common factors of both lists of sizes, as digits of each axis; ``None`` where there are none."""
    left: Digits = [[] for _ in source]
    right: Digits = [[] for _ in target]
    a = b = 0
    x: Dim = source[0] if source else 1
    y: Dim = target[0] if target else 1
    while a < len(source) and b < len(target):
        if x == y:
            digit, x, y = x, 1, 1
        elif y % x == 0:
            digit, x, y = x, 1, y // x
        elif x % y == 0:
            digit, x, y = y, x // y, 1
        else:
            return None
        left[a].append(digit)
        right[b].append(digit)
        if x == 1:
            a, x = a + 1, source[a + 1] if a + 1 < len(source) else 1
        if y == 1:
            b, y = b + 1, target[b + 1] if b + 1 < len(target) else 1
    return (left, right) if a == len(source) and b == len(target) else None


def by_division(index: Sequence[Dim], shape: Sequence[Dim], sizes: Sequence[Dim]) -> list[Dim]:
    """The position in ``sizes`` of the element that is at ``index`` of ``shape``, by its flat index."""
    flat = combine(list(index), list(shape))
    place: list[Dim] = []
    for axis, size in enumerate(sizes):
        rest = prod(sizes[axis + 1 :], start=1)
        quotient = flat // rest
        place.append(quotient if axis == 0 else quotient % size)
    return place


# -- Operators -----------------------------------------------------------------------------------------------------


Types = Sequence[TensorType | None]
Attributes = Mapping[str, AttributeValue]


def sizes_of(value: AttributeValue, name: str) -> tuple[Dim, ...]:
    """A canonical list of sizes.

    Raises:
        IllTypedOperator: it is not a list of integers.
    """
    if not isinstance(value, tuple) or not all(isinstance(v, int | SizePolynomial) for v in value):
        raise IllTypedOperator(f"{name} {value!r} is not a list of sizes")
    return tuple(v for v in value if isinstance(v, int | SizePolynomial))


def axes_of(value: AttributeValue, rank: int) -> tuple[int, ...]:
    """A canonical list of different axes of a rank.

    Raises:
        IllTypedOperator: it is not.
    """
    axes = tuple(v for v in value if isinstance(v, int)) if isinstance(value, tuple) else ()
    if not isinstance(value, tuple) or len(axes) != len(value) or len(set(axes)) != len(axes):
        known = isinstance(value, tuple) and len(axes) == len(value)
        raise (ContradictoryShapes if known else IllTypedOperator)(
            f"axes {value!r} are not a list of different integers"
        )
    if any(not 0 <= a < rank for a in axes):
        raise ContradictoryShapes(f"axes {value} are not inside rank {rank}")
    return axes


def shape_at(types: Types) -> tuple[Dim, ...]:
    shape = types[0].shape if types and types[0] is not None else None
    if shape is None:
        raise UnsupportedNodeForm("the input's rank is not known")
    return shape


# ── Transpose ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def transpose(x: SymbolicOperand, *, perm: AttributeValue) -> TensorComprehension:
    """Output axis ``i`` is input axis ``perm[i]``."""
    order = axes_of(perm, x.rank)
    if len(order) != x.rank:
        raise ContradictoryShapes(f"perm {perm} does not permute {x.rank} axes")
    source = [order.index(a) for a in range(x.rank)]
    return tensor([x.shape[a] for a in order], lambda *index: x[tuple(index[p] for p in source)])


def read_transpose(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view, "perm")
    rank = len(view.type(0).shape or ())
    return CanonicalNodeForm((0,), {"perm": integers(view, "perm", tuple(reversed(range(rank))))})


def write_transpose(attributes: Attributes, types: Types, opset: int) -> OnnxNodeForm:
    return OnnxNodeForm((0,), {}) if attributes["perm"] == () else writer(1)(attributes, types, opset)


# ── Reshape, Flatten, Squeeze, Unsqueeze ──────────────────────────────────────────────────────────────────────────────
def reshape(x: SymbolicOperand, *, shape: AttributeValue) -> TensorComprehension:
    """See ``superopt.ops.reshape_and_transpose``; every size is given, there is no 0 or −1."""
    return reshaped(x, sizes_of(shape, "shape"))


def read_reshape(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view, "allowzero")
    shape, wanted = view.type(0).shape or (), view.integers(1)
    if wanted is None:
        refuse_matrix(view, 1, "the shape")
        raise UnsupportedNodeForm("the shape is computed at run time")
    if not truth(view, "allowzero", 0):
        if any(w == 0 and p >= len(shape) for p, w in enumerate(wanted)):
            raise UnsupportedNodeForm(f"shape {list(wanted)} keeps an axis that {view.type(0)} has not")
        wanted = tuple(shape[p] if w == 0 else w for p, w in enumerate(wanted))
    return CanonicalNodeForm((0,), {"shape": with_inferred(wanted, product(shape))})


def with_inferred(wanted: tuple[Dim, ...], elements: Dim) -> tuple[Dim, ...]:
    """The shape with its −1 replaced by what is left of the elements.

    Raises:
        UnsupportedNodeForm: there are several, other negative sizes, or nothing can be divided.
    """
    free = [p for p, w in enumerate(wanted) if w == -1]
    if len(free) > 1 or any(isinstance(w, int) and w < -1 for w in wanted):
        raise UnsupportedNodeForm(f"shape {list(wanted)} is not a shape")
    if not free:
        return wanted
    rest = product([w for w in wanted if w != -1])
    if rest == 0:
        raise UnsupportedNodeForm("a size cannot be inferred next to a size 0")
    return tuple(elements // rest if w == -1 else w for w in wanted)


def write_reshape(attributes: Attributes, types: Types, opset: int) -> OnnxNodeForm:
    """Symbolic sizes become 0 where the input has them at the same position, and once −1."""
    since_only(opset, 5)
    shape, wanted = shape_at(types), sizes_of(attributes["shape"], "shape")
    if all(isinstance(w, int) for w in wanted):
        zero = any(w == 0 for w in wanted)
        if zero and opset < 14 and any(w == 0 and (p >= len(shape) or shape[p] != 0) for p, w in enumerate(wanted)):
            raise UnsupportedNodeForm("a size 0 needs allowzero, which came with opset 14")
        return OnnxNodeForm((0, int64s(wanted)), {"allowzero": 1} if zero and opset >= 14 else {})
    return OnnxNodeForm((0, np_int64(symbolic_shape(wanted, shape))), {})


def symbolic_shape(wanted: Sequence[Dim], shape: Sequence[Dim]) -> list[int]:
    """Sizes with symbols written as 0 (copied from the input) and at most one −1.

    Raises:
        UnsupportedNodeForm: that does not express it.
    """
    if any(w == 0 for w in wanted):
        raise UnsupportedNodeForm("a size 0 beside a symbolic size")
    written = [w if isinstance(w, int) else 0 if p < len(shape) and shape[p] == w else -1 for p, w in enumerate(wanted)]
    if written.count(-1) > 1:
        raise UnsupportedNodeForm(f"the shape {list(wanted)} has more than one size that is not known")
    return written


def np_int64(values: Sequence[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def flatten(x: SymbolicOperand, *, axis: AttributeValue) -> TensorComprehension:
    """A matrix: the axes before ``axis`` are its rows, the others its columns."""
    if not isinstance(axis, int) or not 0 <= axis <= x.rank:
        raise IllTypedOperator(f"axis {axis} does not cut rank {x.rank}")

    def value(rows: Dim | tuple[Dim, ...], columns: Dim | tuple[Dim, ...]) -> ScalarExpression:
        return x[tuple(i for part in (rows, columns) for i in (part if isinstance(part, tuple) else (part,)))]

    if any(isinstance(s, int) and s == 0 for s in x.shape):
        return reshaped(x, (product(x.shape[:axis]), product(x.shape[axis:])))
    return tensor((x.shape[:axis], x.shape[axis:]), value)


def read_flatten(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view, "axis")
    rank = len(view.type(0).shape or ())
    axis = integer(view, "axis", 1)
    if not -rank <= axis <= rank:
        raise ContradictoryShapes(f"axis {axis} does not cut rank {rank}")
    return CanonicalNodeForm((0,), {"axis": axis + rank if axis < 0 else axis})


def squeeze(x: SymbolicOperand, *, axes: AttributeValue) -> TensorComprehension:
    dropped = set(axes_of(axes, x.rank))
    for a in dropped:
        require(same(x.shape[a], 1), f"axis {a} of {x.type} has not size 1")
    kept = [a for a in range(x.rank) if a not in dropped]

    def value(*index: Dim) -> ScalarExpression:
        at = dict(zip(kept, index, strict=True))
        return x[tuple(at.get(a, 0) for a in range(x.rank))]

    return tensor([x.shape[a] for a in kept], value)


def unsqueeze(x: SymbolicOperand, *, axes: AttributeValue) -> TensorComprehension:
    """``axes`` are positions in the output."""
    rank = x.rank + (len(axes) if isinstance(axes, tuple) else 0)
    added = set(axes_of(axes, rank))
    sizes = iter(x.shape)
    kept = [a for a in range(rank) if a not in added]
    return tensor(
        [1 if a in added else next(sizes) for a in range(rank)], lambda *index: x[tuple(index[a] for a in kept)]
    )


def read_squeeze(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view, *(("axes",) if view.opset < 13 else ()))
    shape = view.type(0).shape or ()
    axes = listed(view, "axes", 1, 13)
    if axes is None:
        if any(isinstance(s, SizePolynomial) for s in shape):
            raise UnsupportedNodeForm("which axes have size 1 is not known")
        return CanonicalNodeForm((0,), {"axes": tuple(a for a, s in enumerate(shape) if s == 1)})
    return CanonicalNodeForm((0,), {"axes": tuple(sorted(normal_axes(axes, len(shape))))})


def read_unsqueeze(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view, *(("axes",) if view.opset < 13 else ()))
    axes = listed(view, "axes", 1, 13)
    if axes is None:
        raise UnsupportedNodeForm("Unsqueeze without axes")
    return CanonicalNodeForm(
        (0,), {"axes": tuple(sorted(normal_axes(axes, len(view.type(0).shape or ()) + len(axes))))}
    )


def write_axes(attributes: Attributes, types: Types, opset: int) -> OnnxNodeForm:
    if opset >= 13:
        return OnnxNodeForm((0, int64s(attributes["axes"])), {})
    if attributes["axes"] == ():
        raise UnsupportedNodeForm("an empty list of axes below opset 13")
    return writer(1)(attributes, types, opset)


# ── Expand, Tile ──────────────────────────────────────────────────────────────────────────────────────────────────────
def expand(x: SymbolicOperand, *, shape: AttributeValue) -> TensorComprehension:
    """Broadcast to exactly ``shape``."""
    wanted = sizes_of(shape, "shape")
    if broadcast_dims([x.shape, wanted]) != wanted:
        raise IllTypedOperator(f"{x.type} does not broadcast to {list(wanted)}")
    return tensor(wanted, lambda *index: element(x, index))


def read_expand(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view)
    wanted = view.integers(1)
    if wanted is None:
        raise UnsupportedNodeForm("the shape is computed at run time")
    return CanonicalNodeForm((0,), {"shape": broadcast_dims([view.type(0).shape or (), wanted])})


def write_expand(attributes: Attributes, types: Types, opset: int) -> OnnxNodeForm:
    """A symbolic size is written as 1 where the input has it."""
    since_only(opset, 8)
    shape, wanted = shape_at(types), sizes_of(attributes["shape"], "shape")
    lead = len(wanted) - len(shape)
    kept = [
        1 if p >= lead and isinstance(w, SizePolynomial) and shape[p - lead] == w else w for p, w in enumerate(wanted)
    ]
    return OnnxNodeForm((0, int64s(tuple(kept), "the shape")), {})


def tile(x: SymbolicOperand, *, repeats: AttributeValue) -> TensorComprehension:
    counts = sizes_of(repeats, "repeats")
    if len(counts) != x.rank or any(isinstance(c, int) and c < 0 for c in counts):
        raise ContradictoryShapes(f"repeats {repeats} do not fit rank {x.rank}")
    return tensor(list(zip(counts, x.shape, strict=True)), lambda *index: x[tuple(i for _, i in index)])


def read_tile(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view)
    repeats = view.integers(1)
    if repeats is None:
        raise UnsupportedNodeForm("the repeats are computed at run time")
    return CanonicalNodeForm((0,), {"repeats": repeats})


def write_tile(attributes: Attributes, types: Types, opset: int) -> OnnxNodeForm:
    since_only(opset, 6)
    return OnnxNodeForm((0, int64s(attributes["repeats"], "the repeats")), {})


# ── DepthToSpace, SpaceToDepth ────────────────────────────────────────────────────────────────────────────────────────
def block(x: SymbolicOperand, blocksize: AttributeValue) -> Dim:
    if x.rank != 4 or not isinstance(blocksize, int | SizePolynomial) or (isinstance(blocksize, int) and blocksize < 1):
        raise IllTypedOperator(f"a block of {blocksize} on {x.type}")
    return blocksize


def depth_to_space(x: SymbolicOperand, *, blocksize: AttributeValue, mode: AttributeValue) -> TensorComprehension:
    """Channels become blocks of pixels; the block's digits come first in the channel (DCR) or last (CRD)."""
    b = block(x, blocksize)
    n, c, h, w = x.shape
    depth = c // (b * b)
    require(same(c, depth * b * b), f"{c} channels are not a multiple of {b}²")
    if mode not in ("DCR", "CRD"):
        raise IllTypedOperator(f"DepthToSpace has no mode {mode!r}")

    def value(i: Dim, d: Dim, row: tuple[Dim, Dim], column: tuple[Dim, Dim]) -> ScalarExpression:
        places = (row[1], column[1], d) if mode == "DCR" else (d, row[1], column[1])
        return x[(i, combine(places, (b, b, depth) if mode == "DCR" else (depth, b, b)), row[0], column[0])]

    return tensor((n, depth, (h, b), (w, b)), value)


def space_to_depth(x: SymbolicOperand, *, blocksize: AttributeValue) -> TensorComprehension:
    b = block(x, blocksize)
    n, c, h, w = x.shape
    rows, columns = h // b, w // b
    require(same(h, rows * b), f"height {h} is not a multiple of {b}")
    require(same(w, columns * b), f"width {w} is not a multiple of {b}")
    return tensor(
        (n, (b, b, c), rows, columns),
        lambda i, d, y, t: x[(i, d[2], combine((y, d[0]), (rows, b)), combine((t, d[1]), (columns, b)))],
    )


def read_depth(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view, "blocksize", "mode")
    attributes: dict[str, AttributeValue] = {"blocksize": integer(view, "blocksize")}
    if view.node.op == "DepthToSpace":
        attributes["mode"] = text(view, "mode", "DCR")
    elif text(view, "mode", "DCR") != "DCR":
        raise UnsupportedNodeForm("SpaceToDepth with mode CRD")
    return CanonicalNodeForm((0,), attributes)


def write_depth_to_space(attributes: Attributes, types: Types, opset: int) -> OnnxNodeForm:
    form = writer(1)(attributes, types, opset)
    if opset >= 11:
        return form
    if attributes["mode"] != "DCR":
        raise UnsupportedNodeForm("mode CRD came with opset 11")
    return OnnxNodeForm(form.inputs, {k: v for k, v in form.attributes.items() if k != "mode"})


def move(
    name: str, since: int, meaning: Callable[..., TensorComprehension], attributes: Mapping[str, str],
    read: Callable[[OnnxNodeView], CanonicalNodeForm], write: Callable[[Attributes, Types, int], OnnxNodeForm],
) -> Operator:  # fmt: skip
    return Operator(
        name=name, inputs=("X",), attributes=attributes, meaning=meaning, since=since, dtypes=ANY, read=read,
        write=write, family="shape",
    )  # fmt: skip


OPERATORS = (
    move("Transpose", 1, transpose, {"perm": "ints"}, read_transpose, write_transpose),
    move("Reshape", 5, reshape, {"shape": "ints"}, read_reshape, write_reshape),
    move("Flatten", 1, flatten, {"axis": "int"}, read_flatten, writer(1)),
    move("Squeeze", 1, squeeze, {"axes": "ints"}, read_squeeze, write_axes),
    move("Unsqueeze", 1, unsqueeze, {"axes": "ints"}, read_unsqueeze, write_axes),
    move("Expand", 8, expand, {"shape": "ints"}, read_expand, write_expand),
    move("Tile", 6, tile, {"repeats": "ints"}, read_tile, write_tile),
    move(
        "DepthToSpace", 1, depth_to_space, {"blocksize": "int", "mode": "string"}, read_depth, write_depth_to_space,
    ),
    move("SpaceToDepth", 1, space_to_depth, {"blocksize": "int"}, read_depth, writer(1)),
)  # fmt: skip
