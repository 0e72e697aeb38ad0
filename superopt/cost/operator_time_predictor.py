"""Predicts the time of an operator application that was not measured.

The model is a roofline per operator, corrected by the nearest measured neighbours:

``roof = t0 + max(F / P, B / W) / eta + s S``

F are FLOPs, B bytes, P and W the device's ceilings, and ``eta`` the operator's efficiency, which is fitted to the
logarithms of times. S counts the spans of a broadcast: runs of elements over which each operand either varies or stays.
s is the time of one span. It is a median over the records: 13 ns in ONNX Runtime for every operator. Without it, the
errors for Add, Mul and Div were twice as large.

The result is multiplied by ``exp(Σ wᵢ ln(nsᵢ / roofᵢ))`` over the nearest records, clamped to [1/4, 4]. The distance
counts work, attributes, ranks, weights and innermost sizes (:class:`OperatorFeatures`). All is fitted twice: to cold
times with the bandwidth of memory, and to warm times with that of the last cache.

:class:`OperatorFeatures` are read off a key: the pieces that a broadcast, a Gather or a Slice copies; the axes that a
Transpose moves and a reduction takes, whatever rank they are written at; whether channels fill the blocks of the
processor's kernels. The rules are ONNX Runtime's. The records of another runtime correct them.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import numpy as np

from superopt.cost.measurement_record import NOT_OPERATORS, CostEstimate, MeasurementKey, MeasurementRecord
from superopt.cost.roofline_ceilings import RooflineCeilings
from superopt.ir.types import DType
from superopt.ops import REGISTRY

__all__ = [
    "BROADCASTING",
    "OperatorTimePredictor",
    "OperatorFeatures",
    "effective_flops",
    "is_packed",
    "kernel_name",
    "effective_bytes",
    "broadcast_spans",
    "traits_of",
]


@dataclass(frozen=True)
class TimePredictionPolicy:
    """The constants of the prediction. Distances are in e-folds of FLOPs and bytes: a distance of 1 is a factor of e
    in work.

    Attributes:
        attribute: distance of two records that differ in an attribute or an element type.
        rank: distance of two records whose arguments have different ranks.
        constants: distance of two records that differ in which arguments are constants.
        size: distance for each e-fold between innermost sizes.
        packing: distance of two products of which one packs its second factor at each run.
        pattern: distance of two records that move or reduce different axes.
        extent: distance for each e-fold between the extents of such axes.
        block_channels: channels that ONNX Runtime keeps together (MLAS on AVX-512; 8 on AVX2).
        padded_channels: a depthwise convolution of a multiple of these fills its last block; others run one by one.
        volume_rank: data of this rank are convolved without blocks, even where an axis has one element.
        neighbours: records whose residuals are averaged.
        near: a farther record counts only if none is within.
        far: a farther record says nothing about the size.
        candidates: records nearest by work, among which attributes and shapes decide.
        least_sigma: uncertainty of a record at distance 0.
        sigma_per_distance: uncertainty that a distance of 1 adds.
        roofline_sigma: uncertainty of an operator's fitted roofline, which a far neighbour does not raise.
        many_spans: from so many spans on they take most of a record's time beyond its work.
        span_factors: tried as the time of a span in another kernel, in units of a broadcast's.
        clamp: limit of the correction; ln 2 predicted held-out tiny operators 1 % worse.
    """

    attribute: float = 0.5
    rank: float = 0.5
    constants: float = 0.5
    size: float = 0.15
    packing: float = 0.5
    pattern: float = 1.0
    extent: float = 0.25
    block_channels: int = 16
    padded_channels: int = 4
    volume_rank: int = 5
    neighbours: int = 4
    near: float = 1.5
    far: float = 3.5
    candidates: int = 32
    least_sigma: float = 0.08
    sigma_per_distance: float = 0.25
    roofline_sigma: float = 0.5
    many_spans: int = 64
    span_factors: tuple[float, ...] = (1.0, 0.5, 2.0, 0.25, 4.0, 0.0)
    clamp: float = math.log(4.0)


PREDICTION = TimePredictionPolicy()


BROADCASTING = frozenset(n for n, o in REGISTRY.items() if o.family in ("elementwise", "activation"))
_GROUPED = re.compile(r'"group": ?(?![01]\b)')  # in a key's attributes; asked of each record of a profile
_ROW_OPERATORS = {  # that go along an axis (or from it on) row by row
    "LogSoftmax": True, "Softmax": True, "LayerNormalization": False, "RMSNormalization": False,
    "SimplifiedLayerNormalization": False,
}  # fmt: skip
_SEVERAL = "several"  # the pattern of a Transpose that moves more than one axis
_PRODUCTS = frozenset({"MatMul", "Gemm"})
_BLOCKED = frozenset({"Conv", "FusedConv"})
_AXIS_ATTRIBUTES = ("perm", "axes", "axis")
_TRAITS = "traits"  # where a key holds them


@dataclass(frozen=True)
class OperatorFeatures:
    """The features of a key that decide its time beside the amount of work: attributes, ranks, weights, sizes."""

    dtype: str
    attributes: Mapping[str, Any]
    ranks: tuple[int, ...]
    fixed: tuple[bool, ...]
    sizes: tuple[float, ...]  # ln of the innermost size of each argument, and of the second axis of the first
    narrow: bool = False  # the second argument has a second axis of 1: of a convolution's weights, a group is a channel
    blocks: bool = False  # see ``_in_blocks``
    padded: bool = False  # the same, of the quarters of blocks that are padded to whole ones
    columns: int = 0  # of a product of matrices
    packed: bool = False  # its second factor, when the session starts: it is constant
    spans: int = 0  # of a broadcast, beyond the first; of a Gather and others the pieces that it copies, or the rows
    moved: int | None = None  # bytes, where those of all arguments and outputs are not what is moved
    pattern: str = ""  # of what moves or is summed, where axes that are alike are one
    extents: tuple[float, ...] = ()  # ln of what lies within the axis, or of the innermost that stays together
    filled: float = 1.0  # of a convolution: operations for each that its definition has, as blocks are computed whole

    def distance(self, other: OperatorFeatures) -> float:
        """The distance to another record of the same operator, in e-folds of work."""
        total = PREDICTION.rank * (self.ranks != other.ranks) + PREDICTION.constants * (self.fixed != other.fixed)
        total += PREDICTION.attribute * (self.dtype != other.dtype)
        total += PREDICTION.packing * (self.packed != other.packed)
        for name in self.attributes.keys() | other.attributes.keys():
            total += PREDICTION.attribute * _difference(self.attributes.get(name), other.attributes.get(name))
        total += PREDICTION.pattern * (self.pattern != other.pattern)
        if len(self.extents) == len(other.extents):
            total += PREDICTION.extent * sum(abs(a - b) for a, b in zip(self.extents, other.extents, strict=True))
        if len(self.sizes) == len(other.sizes):
            total += PREDICTION.size * sum(abs(a - b) for a, b in zip(self.sizes, other.sizes, strict=True))
        return total


def kernel_name(op: str, key: MeasurementKey | None) -> str:
    """The name of the kernel that runs an operator, where the runtime has several of different speed.

    - Convolution: a depthwise one is ten times as fast as one of groups of two channels; volumes have no such kernel.
    - Pooling: channels that fill a processor's registers are faster.
    - Pow: a constant exponent is faster (mostly 2: a product).
    - MatMul, Gemm: a constant second factor is packed when the session starts, any other at each run.
    - Softmax of an axis other than the last transposes twice: fast if no other axis lies between.
    - Transpose of several axes copies piece by piece.
    """
    if key is None:
        return op
    if op.endswith("Pool"):
        return op if traits_of(key).blocks else f"{op}, of odd channels"
    if op == "Transpose":
        return f"{op}, of several axes" if traits_of(key).pattern == _SEVERAL else op
    if _ROW_OPERATORS.get(op):
        if traits_of(key).pattern != "within":
            return op
        return f"{op}, of {'an outer axis' if _far_from_last(key) else 'the last axis but one'}"
    if op == "Pow":
        return f"{op}, of a number" if re.search(r"\[[1, ]*\]$", key.shapes[-1]) else op
    if op in _PRODUCTS:  # a constant second factor is packed when the session starts, any other at each run
        return f"{op}, packed" if is_packed(key) else op
    volumes = op.startswith("Conv") and "".join(key.shapes[:1]).count(",") == PREDICTION.volume_rank - 1
    kernel = f"{op}, of volumes" if volumes else op
    if _GROUPED.search(key.attrs) is None:
        return kernel
    known = traits_of(key)
    kernel += f", {'each channel by itself' if known.narrow else 'in groups'}"
    if volumes or known.blocks or not known.narrow:
        return kernel
    return f"{kernel}, of {'padded' if known.padded else 'odd'} channels"


def is_packed(key: MeasurementKey) -> bool:
    """Whether the key is a matrix product with a constant second factor, which is packed when the session starts."""
    return key.op in _PRODUCTS and key.shapes[1:2] != () and key.shapes[1].startswith("!")


def _far_from_last(key: MeasurementKey) -> bool:
    """Whether an axis with more than one element lies between the one that an operator goes along and the last."""
    shape = _sizes(key.shapes[0])
    axis = json.loads(key.attrs)["axis"] % len(shape)
    return math.prod(shape[axis + 1 : -1]) > 1


def _sizes(shape: str) -> list[int]:
    """Of a tensor, as a key writes it."""
    return [int(d) for d in re.findall(r"\d+", shape.partition("[")[2].partition("]")[0])]


def traits_of(key: MeasurementKey) -> OperatorFeatures:
    """The features of a key; attributes that are not understood contribute nothing."""
    found: OperatorFeatures | None = key.__dict__.get(_TRAITS)
    if found is None:
        found = key.__dict__[_TRAITS] = _traits(key)
    return found


def _traits(key: MeasurementKey) -> OperatorFeatures:
    try:
        attributes = json.loads(key.attrs)
    except ValueError:
        attributes = {}
    shapes = list(map(_sizes, key.shapes))
    attributes, shapes = _packed(key, attributes if isinstance(attributes, dict) else {}, shapes)
    sizes = [math.log1p(s[-1]) if s else 0.0 for s in shapes]
    if shapes and len(shapes[0]) > 1:
        sizes.append(math.log1p(shapes[0][1]))
    pattern, extents = "", tuple[float, ...]()
    pieces, copied = 0, None
    with suppress(TypeError, ValueError, IndexError, KeyError):  # a profile of somebody else's: attributes of any shape
        pattern, extents = _pattern(attributes, shapes[0] if shapes else [])
        pieces, copied = _copied_pieces(key.op, attributes, shapes, DType(key.dtype).numpy.itemsize)
    return OperatorFeatures(
        key.dtype, {k: v for k, v in attributes.items() if k not in _AXIS_ATTRIBUTES} if pattern else attributes,
        tuple(map(len, shapes)), tuple(s.startswith("!") for s in key.shapes), tuple(sizes),
        len(shapes) > 1 and shapes[1][1:2] == [1],
        _in_blocks(key.op, shapes, PREDICTION.block_channels), _in_blocks(key.op, shapes, PREDICTION.padded_channels),
        _columns(key.op, attributes, shapes),
        is_packed(key),
        broadcast_spans([d for d, s in zip(shapes, key.shapes, strict=True) if s])
        if key.op in BROADCASTING else pieces,
        copied, pattern, extents, _filled(key, attributes, shapes),
    )  # fmt: skip


def _packed(
    key: MeasurementKey, attributes: Mapping[str, Any], shapes: list[list[int]]
) -> tuple[Mapping[str, Any], list[list[int]]]:  # fmt: skip
    """A Gemm's weights as if they were stored as ``[k, n]``: a constant one is packed when the session starts, and what
    is run afterwards is the same whichever way it was stored."""
    if key.op == "Gemm" and attributes.get("transB") == 1 and len(shapes) > 1 and key.shapes[1].startswith("!"):
        return {**attributes, "transB": 0}, [shapes[0], shapes[1][::-1], *shapes[2:]]
    return attributes, shapes


def _columns(op: str, attributes: Mapping[str, Any], shapes: Sequence[Sequence[int]]) -> int:
    """Of the second factor of a product of matrices, as they are multiplied; else none."""
    if op not in _PRODUCTS or len(shapes) < 2 or not shapes[1]:
        return 0
    return shapes[1][0 if attributes.get("transB") == 1 else -1]


def _copied_pieces(
    op: str, attributes: Mapping[str, Any], shapes: Sequence[Sequence[int]], size: int
) -> tuple[int, int | None]:  # fmt: skip
    """Pieces that a Gather, Slice, Concat, Split, Pad, Expand or a Transpose of several axes copies, or the rows that
    an operator goes along; for the first two the bytes that are read and written, elements of that size: what they
    leave of a table costs nothing."""
    data, axis = shapes[0] if shapes else [], attributes.get("axis")
    if op == "Expand":
        return _expanded(data, attributes["shape"]), None
    if op == "Transpose":
        pattern, (within,) = _transposed(attributes["perm"], data)
        return math.prod(data) // round(math.exp(within)) if pattern == _SEVERAL else 0, None
    if op in _ROW_OPERATORS and isinstance(axis, int) and -len(data) <= axis < len(data):
        last = axis % len(data) + 1 if _ROW_OPERATORS[op] else len(data)
        return math.prod(data) // max(math.prod(data[axis % len(data) : last]), 1), None
    if op == "Slice":
        return _sliced(attributes, data, size)
    if op == "Pad":
        pads = attributes.get("pads", [])
        last = max(
            (i for i in range(len(data)) if len(pads) == 2 * len(data) and pads[i] + pads[len(data) + i]), default=-1
        )
        return math.prod(data[:last]) if last > 0 else 0, None
    if not isinstance(axis, int) or not -len(data) <= axis < len(data):
        return 0, None
    outer = math.prod(data[: axis % len(data)])
    if op == "Gather" and len(shapes) == 2:
        pieces = outer * math.prod(shapes[1])
        return pieces, 2 * size * pieces * math.prod(data[axis % len(data) + 1 :]) + 8 * math.prod(shapes[1])
    parts = len(shapes) if op == "Concat" else len(attributes.get("split", ())) if op == "Split" else 0
    return outer * parts, None


def _expanded(data: Sequence[int], shape: Sequence[int]) -> int:
    """Pieces of its data that an Expand copies one by one, because copies of another lie between them."""
    sizes = [1] * (len(shape) - len(data)) + list(data)
    repeated = [i for i, (a, b) in enumerate(zip(sizes, shape, strict=True)) if a == 1 != b]
    return math.prod(sizes[: repeated[-1]]) if repeated else 0


def _sliced(attributes: Mapping[str, Any], data: Sequence[int], size: int) -> tuple[int, int | None]:
    """See :func:`_copied_pieces`."""
    given = [attributes.get(k, []) for k in ("axes", "starts", "ends", "steps")]
    if len({len(g) for g in given}) != 1:
        return 0, None
    left = list(data)
    for axis, start, end, step in zip(*given, strict=True):
        left[axis] = len(range(*slice(start, end, step).indices(data[axis])))
    last = max((i for i, (a, b) in enumerate(zip(left, data, strict=True)) if a != b), default=-1)
    return math.prod(left[:last]) if last > 0 else 0, 2 * size * math.prod(left)


def _in_blocks(op: str, shapes: Sequence[Sequence[int]], block: int) -> bool:
    """Whether the channels of images, and those that a kernel makes, fill the blocks that a processor's loops take."""
    if not ("Conv" in op or op.endswith("Pool")) or len(shapes[0]) != 4:
        return False
    return all(n % block == 0 for n in (shapes[0][1], *(s[0] for s in shapes[1:2] if s)))


def _pattern(attributes: Mapping[str, Any], shape: Sequence[int]) -> tuple[str, tuple[float, ...]]:
    """Which axes an operator moves, sums or goes along, whatever rank that is written at: neighbours that are treated
    alike are one. With it, what says how long the pieces are.

    ``perm`` gives ``"021"``, the last two of three change places, where it moves one axis alone (also past an axis of
    1) or turns all of them, for which a runtime has faster loops, and else that it moves several; ``axes`` ``"KR"``,
    the last are summed and others kept; ``axis`` whether anything lies within it.
    """
    rank, perm, axes, axis = len(shape), *(attributes.get(k) for k in _AXIS_ATTRIBUTES)
    if isinstance(perm, list) and sorted(perm) == list(range(rank)):
        return _transposed(perm, shape)
    if isinstance(axes, list) and "starts" not in attributes and all(-rank <= int(a) < rank for a in axes):
        summed = {a % rank for a in axes} if axes else set(range(rank))
        pieces: list[tuple[str, int]] = []
        for a, size in ((a, size) for a, size in enumerate(shape) if size != 1):
            kind = "R" if a in summed else "K"
            if pieces and pieces[-1][0] == kind:
                pieces[-1] = kind, pieces[-1][1] * size
            else:
                pieces.append((kind, size))
        together = math.log(max(math.prod(shape[a] for a in summed), 1))
        return "".join(k for k, _ in pieces) or "K", (math.log(max(pieces[-1][1], 1) if pieces else 1), together)
    if isinstance(axis, int) and -rank <= axis < rank:
        within = math.prod(shape[axis % rank + 1 :])
        return "last" if within == 1 else "within", (math.log(max(within, 1)), math.log(max(shape[axis % rank], 1)))
    return "", ()


def _transposed(perm: Sequence[int], shape: Sequence[int]) -> tuple[str, tuple[float, ...]]:
    """See :func:`_pattern`: of a transposition."""
    merged: list[list[int]] = []
    for a in (a for a in perm if shape[a] != 1):
        if merged and a > (last := merged[-1][-1]) and all(shape[b] == 1 for b in range(last + 1, a)):
            merged[-1].append(a)
        else:
            merged.append([a])
    order = sorted(merged)
    stays = merged and merged[-1] == order[-1]
    single = any([*perm[:i], *perm[i + 1 :]] == sorted([*perm[:i], *perm[i + 1 :]]) for i in range(len(perm)))
    turned = all(b == (a + 1) % len(perm) for a, b in pairwise(perm))
    name = "".join(str(order.index(m)) for m in merged) if single or turned else _SEVERAL
    return name, (math.log(math.prod(shape[a] for a in merged[-1]) if stays else 1),)


def broadcast_spans(shapes: Sequence[Sequence[int]]) -> int:
    """How often operands of these shapes begin to vary or to stay anew while elements are taken in order.

    As ONNX Runtime counts (``BroadcastIterator``): an axis of 1 in front of what the shorter shape has ends a span, and
    where all that it has is of 1, each element is one: ``[160, 1] + [1]`` takes six times as long as with ``[1, 1]``.
    """
    rank, least = max(map(len, shapes), default=0), max(min(map(len, shapes), default=0), 1)
    full = [[1] * (rank - len(s)) + list(s) for s in shapes]
    run, pattern = 1, None
    for place, sizes in enumerate(zip(*(reversed(s) for s in full), strict=True)):
        varying = [n != 1 for n in sizes]
        if any(varying):
            if pattern not in (None, varying):
                break
            run, pattern = run * max(sizes), varying
        elif pattern is None and place + 1 == least:
            pattern = varying
        elif pattern is not None and any(pattern) and place >= least:
            break
    return math.prod(max(axis) for axis in zip(*full, strict=True)) // run - 1 if run else 0


def _difference(a: Any, b: Any) -> float:
    """0 for equal attributes, at most 1: numbers by how many e-folds lie between them."""
    if a == b:
        return 0.0
    if isinstance(a, int | float) and isinstance(b, int | float):
        return min(1.0, abs(math.log((1 + abs(a)) / (1 + abs(b))))) if math.isfinite(a) and math.isfinite(b) else 1.0
    return 1.0


def effective_flops(key: MeasurementKey | None, flops: float) -> float:
    """The operations that a processor does for an application: a product's columns, and the channels of a convolution
    of images, in whole blocks, of which the last may be half empty. One column alone is a kernel of its own."""
    if key is None:
        return flops
    known = traits_of(key)
    return flops * _in_whole_blocks(known.columns) if known.columns > 1 else flops * known.filled


def _in_whole_blocks(count: int) -> float:
    """How many channels or columns are computed for each that there is."""
    return -(-count // PREDICTION.block_channels) * PREDICTION.block_channels / count


def _filled(key: MeasurementKey, attributes: Mapping[str, Any], shapes: Sequence[Sequence[int]]) -> float:
    """Of a convolution of images in blocks of channels: operations for each that its definition has.

    Channels that are made are computed in whole blocks. Those that are read are, too, unless they are less than one
    block: then the image is read as it is.
    """
    if key.op not in _BLOCKED or len(shapes) < 2 or len(shapes[0]) != 4 or attributes.get("group", 1) != 1:
        return 1.0
    made, read = shapes[1][:2]
    if min(made, read) < 1 or (read >= PREDICTION.block_channels and read % PREDICTION.padded_channels):
        return 1.0  # not in blocks
    return _in_whole_blocks(made) * (_in_whole_blocks(read) if read >= PREDICTION.block_channels else 1.0)


def effective_bytes(key: MeasurementKey | None, moved: float) -> float:
    """The bytes that an application moves: less than all of its arguments and outputs, where it copies a part."""
    found = None if key is None else traits_of(key).moved
    return moved if found is None else found


_Pair = tuple[float, float]  # for cold weights, and for warm ones
_ONE: _Pair = (1.0, 1.0)


@dataclass(frozen=True, eq=False)
class _Family:
    """Records of one operator, and its efficiency against the ceilings. Its arrays are computed on request: a model has
    few of the operators of a profile."""

    records: Sequence[MeasurementRecord]
    ceilings: RooflineCeilings
    slowness: _Pair

    @cached_property
    def work(self) -> np.ndarray:
        """On logarithmic axes: (records, 2), ln FLOPs and ln bytes."""
        return np.array(
            [
                (math.log1p(effective_flops(r.key, r.flops)), math.log1p(effective_bytes(r.key, r.bytes)))
                for r in self.records
            ]
        )

    @cached_property
    def residuals(self) -> tuple[_Pair, ...]:
        """ln(ns / roof)."""
        return tuple(_residual(r, self.ceilings, self.slowness) for r in self.records)

    @cached_property
    def traits(self) -> tuple[OperatorFeatures, ...]:
        """Their other features."""
        return tuple(traits_of(r.key) for r in self.records)


class _Kernels(Mapping[str, "Sequence[MeasurementRecord]"]):
    """Records by :func:`kernel_name`; those of an operator are grouped on first request."""

    def __init__(self, records: Iterable[MeasurementRecord]) -> None:
        self._operators: dict[str, list[MeasurementRecord]] = defaultdict(list)
        for record in sorted(records, key=lambda r: r.key.text):
            if record.ns_cold > 0 and record.key.op not in NOT_OPERATORS:
                self._operators[record.key.op].append(record)
        self._grouped: dict[str, dict[str, list[MeasurementRecord]]] = {}

    @property
    def broadcasting(self) -> list[str]:
        """The operators whose operands may be broadcast."""
        return [op for op in self._operators if op in BROADCASTING and op in self]

    def _of(self, op: str) -> dict[str, list[MeasurementRecord]]:
        if op not in self._grouped:
            grouped: dict[str, list[MeasurementRecord]] = defaultdict(list)
            for record in self._operators.get(op, ()):
                grouped[kernel_name(op, record.key)].append(record)
                if is_packed(record.key):  # is alike enough where the second factor is not
                    grouped[op].append(record)
            self._grouped[op] = dict(grouped)
        return self._grouped[op]

    def __getitem__(self, name: str) -> Sequence[MeasurementRecord]:
        return self._of(name.partition(",")[0])[name]

    def __iter__(self) -> Iterator[str]:
        return (name for op in self._operators for name in self._of(op))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True)
class OperatorTimePredictor:
    """Predicts from records; deterministic, and independent of the order of the records."""

    ceilings: RooflineCeilings
    _records: Mapping[str, Sequence[MeasurementRecord]] = field(repr=False)  # of each kernel
    _families: dict[str, _Family] = field(default_factory=dict, repr=False)  # of those that were asked for

    @staticmethod
    def fit(records: Iterable[MeasurementRecord], ceilings: RooflineCeilings | None = None) -> OperatorTimePredictor:
        """Fit efficiencies to records."""
        ceiling, kernels = ceilings or RooflineCeilings(), _Kernels(records)
        ceiling = replace(ceiling, span_ns=_span_ns((kernels[op] for op in kernels.broadcasting), ceiling))
        return OperatorTimePredictor(ceiling, kernels)

    def _family(self, name: str) -> _Family | None:
        """The fitted records of a kernel, on first request: a model has few operators."""
        if name not in self._families and name in self._records:
            found = self._records[name]
            spans = any(traits_of(r.key).spans for r in found)
            fitted = [_fitted(found, replace(self.ceilings, span_ns=times * self.ceilings.span_ns))
                      for times in (PREDICTION.span_factors if spans else PREDICTION.span_factors[:1])]  # fmt: skip
            self._families[name] = min(fitted, key=_scatter)
        return self._families.get(name)

    @cached_property
    def _typical(self) -> _Pair:
        """The usual operator's efficiency, for one without records."""
        found = [f.slowness for name in self._records if (f := self._family(name)) is not None]
        return _combined(median, *found) if found else _ONE

    def predict(
        self, op: str, flops: float, moved: float, key: MeasurementKey | None = None, cold: float = 1.0
    ) -> CostEstimate:
        """The cost of an operator that does ``flops`` operations and moves ``moved`` bytes.

        Args:
            op: its name.
            flops: operations.
            moved: bytes.
            key: what would be measured, so that records of like attributes and shapes count as nearer.
            cold: share of its weights that comes from memory.
        """
        family = self._family(kernel_name(op, key)) or self._family(op)
        flops, moved = effective_flops(key, flops), effective_bytes(key, moved)
        slow, ceilings = (self._typical, self.ceilings) if family is None else (family.slowness, family.ceilings)
        roof = _blend(_roofs(ceilings, flops, moved, slow, 0 if key is None else traits_of(key).spans), cold)
        near = _nearest(family, math.log1p(flops), math.log1p(moved), key, cold)
        if not near:
            return CostEstimate(roof / 1e3, "roofline", 1.0 if family is None else PREDICTION.roofline_sigma)
        weights = [1.0 / (d + 0.05) for d, _ in near]
        total = sum(weights)
        shift = sum(w * r for w, (_, r) in zip(weights, near, strict=True)) / total
        variance = sum(w * (r - shift) ** 2 for w, (_, r) in zip(weights, near, strict=True)) / total
        sigma = min(
            PREDICTION.roofline_sigma,
            math.sqrt(variance + (PREDICTION.least_sigma + PREDICTION.sigma_per_distance * near[0][0]) ** 2),
        )
        return CostEstimate(
            roof * math.exp(min(max(shift, -PREDICTION.clamp), PREDICTION.clamp)) / 1e3, "interpolated", sigma
        )


def _fitted(records: Sequence[MeasurementRecord], ceilings: RooflineCeilings) -> _Family:
    slow = _combined(lambda t: math.exp(median(t)), *(_residual(r, ceilings, _ONE) for r in records))
    return _Family(records, ceilings, slow)


def _scatter(family: _Family) -> float:
    """How far its records are from what its efficiency says, on average."""
    cold = [pair[0] for pair in family.residuals]
    middle = median(cold)
    return fmean(abs(c - middle) for c in cold)


def _nearest(
    family: _Family | None, flops: float, moved: float, key: MeasurementKey | None, cold: float
) -> list[tuple[float, float]]:  # fmt: skip
    """(distance, ln(ns / roof)) of the nearest records of the operator."""
    if family is None:
        return []
    distances = np.hypot(family.work[:, 0] - flops, family.work[:, 1] - moved)
    first = np.argsort(distances, kind="stable")[: PREDICTION.neighbours if key is None else PREDICTION.candidates]
    own = None if key is None else traits_of(key)
    reach = PREDICTION.near if distances[first[0]] <= PREDICTION.near else PREDICTION.far
    found = [
        (float(distances[i]) + (own.distance(family.traits[i]) if own else 0.0), _blend(family.residuals[i], cold))
        for i in map(int, first)
        if distances[i] <= reach
    ]
    return sorted(found)[: PREDICTION.neighbours]


def _combined(combine: Callable[[Sequence[float]], float], *pairs: _Pair) -> _Pair:
    """Cold values combined, and warm ones."""
    return combine([cold for cold, _ in pairs]), combine([warm for _, warm in pairs])


def _blend(pair: _Pair, cold: float) -> float:
    return pair[1] + (pair[0] - pair[1]) * cold


def _span_ns(families: Iterable[Sequence[MeasurementRecord]], ceilings: RooflineCeilings) -> float:
    """What a span of a broadcast takes: the median of what records of many short ones take beyond what the same amount
    of work takes their operator in one."""
    found = []
    for group in families:
        one = [_residual(r, ceilings, _ONE)[1] for r in group if not traits_of(r.key).spans]
        if not one or not any(traits_of(r.key).spans for r in group):
            continue
        slow = math.exp(median(one))
        for record in group:
            spans = traits_of(record.key).spans
            if spans >= PREDICTION.many_spans:
                rest = record.ns - _roofs(ceilings, record.flops, record.bytes, (slow, slow))[1]
                found.append(rest / spans)
    return max(0.0, median(found)) if found else 0.0


def _residual(record: MeasurementRecord, ceilings: RooflineCeilings, slow: _Pair) -> _Pair:
    """ln(ns / roof) of a record."""
    moved = effective_bytes(record.key, record.bytes)
    cold, warm = _roofs(ceilings, effective_flops(record.key, record.flops), moved, slow, traits_of(record.key).spans)
    return math.log(record.ns_cold / cold), math.log((record.ns or record.ns_cold) / warm)


def _roofs(ceilings: RooflineCeilings, flops: float, moved: float, slow: _Pair, spans: int = 0) -> _Pair:
    """Nanoseconds with weights from memory, and with weights from the last cache."""
    work, least = max(flops / ceilings.flops_per_ns, 1.0), ceilings.least_ns + spans * ceilings.span_ns
    return (
        least + slow[0] * max(work, moved / ceilings.bytes_per_ns),
        least + slow[1] * max(work, moved / ceilings.cached_bytes_per_ns),
    )
