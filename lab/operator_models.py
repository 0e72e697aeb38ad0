"""Operators by themselves, at types that are drawn: models that ask a device for what no network of the corpus has.

A profile that is recorded for a corpus knows what that asks: of 119 operators it had prices for 49, and a network with
a ``ReduceL2``, a ``Gelu`` or an ``Einsum`` was priced by a roofline. Here every operator that takes time is drawn as
often as any other: tensors as images, tokens, heads of attention and windows have them, of the sizes that networks use;
attributes of any value that its record accepts. Nothing is drawn from a model. ``make profile-operators``
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import exp, inf, isfinite, log, prod
from pathlib import Path
from random import Random
from statistics import median

from superopt import formats
from superopt.cost import DeviceProfile, ProfileCostModel, load_profile
from superopt.cost.measurement_record import MeasurementRequest, question_of
from superopt.cost.operator_timing import application_graph
from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.ops.operator_definition import Operator, UnsupportedNodeForm
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.rules.onnx_notation import default_of

__all__ = ["drawn", "off", "plan"]

Shape = tuple[int, ...]
Values = Mapping[str, AttributeValue]
# Arguments in order, which of them are weights, and the attributes.
Case = tuple[Sequence[TensorType | None], Sequence[bool], Values]

_CHANNELS = (16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024)
_SIDES = (7, 8, 10, 14, 16, 20, 28, 32, 40, 56, 64, 112)
_DEPTHS = (1, 1, 2, 4, 8, 16)
_TOKENS = (8, 16, 49, 64, 77, 128, 196, 197, 256, 384, 512, 577, 784, 1024, 3136)
_HEADS, _HEAD_SIZES = (1, 2, 3, 4, 6, 8, 12, 16), (8, 16, 24, 32, 48, 64, 96, 128)
_LEAST, _MOST = 1 << 10, 1 << 21  # elements of the first operand: below, an operator takes what any takes
_MOST_WORK = 1e9  # FLOPs: a few milliseconds to some tens
_TRIES = 60  # draws for one that the record accepts
_EQUATIONS = (
    "bhid,bhjd->bhij", "bhij,bhjd->bhid", "bid,bjd->bij", "bij,bjd->bid", "bid,de->bie", "bhid,hde->bhie",
    "bchw,co->bohw", "bihd,bjhd->bhij", "bhij,bjhd->bihd",
)  # fmt: skip
# What takes no time (it is computed from shapes alone, or only renames memory), and what ``make profile-forms`` draws,
# whose prices forms with fewer multiplications are fitted to: a Conv is drawn here of volumes alone.
_NOT_DRAWN = frozenset({
    "CastLike", "Constant", "ConstantOfShape", "Dropout", "EyeLike", "Flatten", "Identity", "Range", "Reshape", "Shape",
    "Size", "Squeeze", "Unsqueeze", "Gemm", "MatMul",
})  # fmt: skip


def drawn(seed: int, each: int, only: Collection[str] = ()) -> Iterator[MeasurementRequest]:
    """So many applications of each operator, or of some only, as far as its record accepts that many different ones."""
    for name, record in sorted(REGISTRY.items()):
        if name in _NOT_DRAWN or (only and name not in only):
            continue
        rng = Random(f"{seed} {name}")
        requests: dict[tuple[object, ...], MeasurementRequest] = {}
        for _ in range(_TRIES * each):
            if len(requests) == each:
                break
            request = _question(record, rng)
            if request is not None:
                requests.setdefault(request.key.question, request)
        yield from requests.values()


def plan(folder: Path, seed: int, each: int, only: Collection[str] = ()) -> int:
    """Write what is drawn as models of one operator: what ``superopt profile`` can ask a device for. How many."""
    folder.mkdir(parents=True, exist_ok=True)
    questions = list(drawn(seed, each, only))
    for number, question in enumerate(questions):
        formats.save(application_graph(question), folder / f"{number:04d}.json", force=True)
    return len(questions)


def off(known: DeviceProfile, told: DeviceProfile) -> dict[str, list[float]]:
    """By operator, the logarithm of what a profile expects ÷ what another one holds that it lacks, warm."""
    model = ProfileCostModel(known)
    held = {r.key.question for r in known.records.values()}
    found: dict[str, list[float]] = {}
    for record in told.records.values():
        if record.key.question not in held and record.key.op in REGISTRY:
            request = question_of(record.key)
            expected = model.predicted(request.op, request.work, request.key)
            found.setdefault(request.op, []).append(log(1e3 * expected.us / record.ns))
    return found


def _question(record: Operator, rng: Random) -> MeasurementRequest | None:
    draw = _SPECIAL.get(record.name) or _FAMILIES.get(record.family, _elementwise)
    args, fixed, attributes = draw(record, rng)
    first = args[0]
    if first is None or not _LEAST <= prod(_static(first)) <= _MOST:
        return None
    try:
        _, outs = record.apply(args, attributes)
        sized = [t for t in outs if t is outs[0] or t.shape]  # a scale beside the result is of no size
        if not all(t.is_static and _LEAST // 64 <= prod(_static(t)) <= _MOST for t in sized):
            return None
        question = MeasurementRequest(record.name, attributes, args, outs, fixed)
        application_graph(question)
    except (IllTypedOperator, UnsupportedNodeForm, ValueError):
        return None  # an operator's own conditions: drawn again
    return question if question.work[0] <= _MOST_WORK else None


def _static(kind: TensorType) -> Shape:
    return tuple(int(str(d)) for d in kind.shape or ())


def _real(*shape: int) -> TensorType:
    return TensorType(DType.FLOAT32, shape)


def _image(rng: Random) -> Shape:
    side = rng.choice(_SIDES)
    return 1, rng.choice(_CHANNELS), side, side


def _heads(rng: Random) -> Shape:
    return 1, rng.choice(_HEADS), rng.choice(_TOKENS), rng.choice((*_HEAD_SIZES, *_TOKENS))


def _shape(rng: Random) -> Shape:
    """A tensor's: of an image in either layout, tokens, heads, windows, or a batch of vectors."""
    batch, channels, side, _ = _image(rng)
    tokens, heads, inner = rng.choice(_TOKENS), rng.choice(_HEADS), rng.choice(_HEAD_SIZES)
    return rng.choice((
        (batch, channels, side, side), (batch, channels, side, side), (batch, side, side, channels),
        (batch, tokens, channels), (batch, tokens, channels), _heads(rng), (batch, tokens, heads, inner),
        (batch, tokens, 3, heads, inner), (3, batch, heads, tokens, inner), (tokens, channels),
    ))  # fmt: skip


def _beside(shape: Shape, rng: Random) -> tuple[TensorType, bool]:
    """Another operand of an operator by element, and whether it is a weight: as large, or of one axis, or a number."""
    axis = rng.choice((1, len(shape) - 1))
    along = tuple(n if i == axis else 1 for i, n in enumerate(shape))[axis:]
    return rng.choice(((_real(*shape), False), (_real(*shape), False), (_real(*along), True), (_real(), True)))


def _plain(record: Operator, shape: Shape, rng: Random) -> Values:
    """Attributes by their kinds and names."""
    rank = len(shape)
    first, last = sorted(rng.choices(range(rank), k=2))
    found: dict[str, AttributeValue] = {}
    for key, kind in record.attributes.items():
        default = default_of(record.name, key)
        if key == "axis":
            found[key] = rng.choice((rank - 1, rng.randrange(rank)))
        elif key == "axes":
            found[key] = tuple(range(first, last + 1))
        elif key == "perm":
            found[key] = tuple(rng.sample(range(rank), rank))
        elif key in ("keepdims", "upper", "exclusive", "reverse"):
            found[key] = rng.randrange(2)
        elif key in ("blocksize", "num_groups", "size"):
            found[key] = {"blocksize": 2, "num_groups": rng.choice((4, 8, 32)), "size": 5}[key]
        elif key == "fmod":
            found[key] = 1  # as reals ask for
        elif key == "approximate":
            found[key] = rng.choice(("none", "tanh"))
        elif key == "mode":
            found[key] = rng.choice(("DCR", "CRD"))
        elif kind == "dtype":
            found[key] = str(rng.choice((DType.INT64, DType.INT32, DType.BOOL, DType.FLOAT16)))
        elif isinstance(default, float) and isfinite(default):
            found[key] = default
        elif default in (inf, -inf):
            found[key] = 6.0 if default == inf else 0.0
        else:
            found[key] = default if isinstance(default, int) else 0
    return found


def _elementwise(record: Operator, rng: Random) -> Case:
    shape = _shape(rng)
    variadic = record.inputs[-1].endswith("*")
    count = rng.choice((2, 2, 3, 4)) if variadic else sum(not n.endswith("?") for n in record.inputs)
    beside = [_beside(shape, rng) for _ in range(count - 1)]
    args, fixed = [_real(*shape), *(t for t, _ in beside)], [False, *(f for _, f in beside)]
    if record.dtypes == {DType.BOOL}:
        args = [TensorType(DType.BOOL, t.shape) for t in args] if record.name != "Where" else [
            TensorType(DType.BOOL, args[0].shape), *args[1:]
        ]  # fmt: skip
    if record.name == "Cast":
        args = [TensorType(rng.choice((DType.FLOAT32, DType.INT64, DType.INT32, DType.BOOL)), shape)]
    return args, fixed, _plain(record, shape, rng)


def _one(record: Operator, rng: Random) -> Case:
    shape = _shape(rng)
    return [_real(*shape)], [False], _plain(record, shape, rng)


def _normalised(record: Operator, rng: Random) -> Case:
    """Of images by channels; of tokens by their last axis."""
    by_last = "axis" in record.attributes and len(record.inputs) > 1
    shape = rng.choice(((1, *_image(rng)[1:]), (1, rng.choice(_TOKENS), rng.choice(_CHANNELS))))
    image = _image(rng)
    shape = shape if by_last or record.name in ("Softmax", "LogSoftmax", "MeanVarianceNormalization") else image
    if record.name in ("Softmax", "LogSoftmax"):
        shape = _shape(rng)
    vectors = [_real(shape[-1] if by_last else shape[1])] * (len(record.inputs) - 1)
    attributes = {**_plain(record, shape, rng), **({"axis": len(shape) - 1} if by_last else {})}
    if record.name == "MeanVarianceNormalization":
        attributes["axes"] = rng.choice(((0, 2, 3), (1, 2, 3), (2, 3)))
    return [_real(*shape), *vectors], [False, *(True for _ in vectors)], attributes


def _pooled(record: Operator, rng: Random) -> Case:
    shape = _image(rng)
    kernel, stride = rng.choice(((2, 2), (3, 2), (3, 1), (5, 1), (7, 7)))
    pad = rng.choice((0, kernel // 2))
    values = {"kernel_shape": (kernel,) * 2, "strides": (stride,) * 2, "pads": (pad,) * 4, "dilations": (1, 1)}
    return [_real(*shape)], [False], {k: values.get(k, 0) for k in record.attributes}


def _resized(record: Operator, rng: Random) -> Case:
    mode = rng.choice(("nearest", "linear"))
    values: Values = {
        "scales_up": (1, 1, 2, 2), "scales_down": (1, 1, 1, 1), "mode": mode,
        "coordinates": rng.choice(("asymmetric", "half_pixel")), "rounding": "floor",
    }  # fmt: skip
    return [_real(*_image(rng))], [False], values


def _convolved(record: Operator, rng: Random) -> Case:
    shape, out = _image(rng), rng.choice(_CHANNELS)
    kernel, stride = rng.choice(((3, 1), (3, 2), (4, 2), (2, 2), (4, 4)))
    group = rng.choice((1, 1, shape[1]))
    out = shape[1] if group > 1 else out
    pad = kernel // 2 if kernel % 2 else 0
    values: dict[str, AttributeValue] = {
        "strides": (stride,) * 2, "pads": (pad,) * 4, "dilations": (1, 1), "group": group, "output_padding": (0, 0)
    }  # fmt: skip
    given = {k: values[k] for k in record.attributes}
    return [_real(*shape), _real(shape[1], out // group, kernel, kernel), _real(out)], [False, True, True], given


def _filtered(record: Operator, rng: Random) -> Case:
    """Of volumes, frames of a video or one alone: a kernel over space, over time or over both."""
    channels, depth, side = rng.choice((3, *_CHANNELS)), rng.choice(_DEPTHS), rng.choice(_SIDES)
    n = rng.choice((3, 3, 5, 7, 11))
    kernel = rng.choice(((1, n, n), (1, n, n), (n, n, n), (n, 1, 1), (1, 1, 1)))
    stride = rng.choice(((1, 1, 1), (1, 1, 1), (1, 2, 2)))
    group = rng.choice((1, 1, channels))
    out = channels if group > 1 else rng.choice(_CHANNELS)
    values: dict[str, AttributeValue] = {
        "strides": stride, "pads": tuple(k // 2 for k in kernel) * 2, "dilations": (1, 1, 1), "group": group
    }  # fmt: skip
    given = {k: values[k] for k in record.attributes}
    args = [_real(1, channels, depth, side, side), _real(out, channels // group, *kernel), _real(out)]
    return args, [False, True, True], given


def _attended(record: Operator, rng: Random) -> Case:
    _, heads, rows, _ = _heads(rng)
    one = _real(1, heads, rows, rng.choice(_HEAD_SIZES))
    values = {"is_causal": rng.randrange(2), "scale": 0.125, "q_num_heads": 0, "kv_num_heads": 0}
    return [one, one, one, None], [False, False, False, False], {k: values[k] for k in record.attributes}


def _summed(record: Operator, rng: Random) -> Case:
    """Einsum: sizes by letter."""
    equation = rng.choice(_EQUATIONS)
    usual = {"b": (1,), "h": _HEADS, "d": _HEAD_SIZES, "e": _HEAD_SIZES, "w": _SIDES, "c": _CHANNELS, "o": _CHANNELS}
    usual |= {"i": _TOKENS, "j": _TOKENS}
    if equation.startswith("bchw"):
        usual["h"] = _SIDES
    sizes = {letter: rng.choice(usual[letter]) for letter in sorted(set(equation) & set(usual))}
    operands = equation.partition("->")[0].split(",")
    args = [_real(*(sizes[letter] for letter in operand)) for operand in operands]
    return args, [False, "b" not in operands[1]], dict.fromkeys(record.attributes, equation)


def _concatenated(record: Operator, rng: Random) -> Case:
    shape, count = _shape(rng), rng.choice((2, 2, 3, 4))
    return [_real(*shape)] * count, [False] * count, _plain(record, shape, rng)


def _one_hot(record: Operator, rng: Random) -> Case:
    where = TensorType(DType.INT64, (1, rng.choice(_TOKENS)))
    depth = rng.choice((16, 64, 257, 1000))
    return [where], [False], {"axis": 2, "depth": depth, "off": 0.0, "on": 1.0, "dtype": str(DType.FLOAT32)}


def _gathered(record: Operator, rng: Random) -> Case:
    shape, axis = _shape(rng), rng.randrange(3)
    axis = min(axis, len(shape) - 1)
    values = {**_plain(record, shape, rng), **({"axis": axis} if "axis" in record.attributes else {})}
    count = rng.choice((1, 2, max(1, shape[axis] // 2), 196))
    if record.name == "GatherElements":
        part = tuple(min(count, n) if i == axis else n for i, n in enumerate(shape))
        return [_real(*shape), TensorType(DType.INT64, part)], [False, rng.random() < 0.5], values
    if record.name == "ScatterND":
        rows = min(count, shape[0])
        where = TensorType(DType.INT64, (rows, 1))
        return [_real(*shape), where, _real(rows, *shape[1:])], [False, True, False], values
    table = rng.random() < 0.5
    where = TensorType(DType.INT64, rng.choice(((), (count,), (1, rng.choice(_TOKENS)))))
    return [_real(*shape), where], [table, not table], values


def _split(record: Operator, rng: Random) -> Case:
    shape = _shape(rng)
    axis, count = rng.randrange(len(shape)), rng.choice((2, 3, 4))
    each = (shape[axis] // count,) * count
    return [_real(*shape)], [False], {"axis": axis, "split": (*each[1:], shape[axis] - sum(each[1:]))}


def _sliced(record: Operator, rng: Random) -> Case:
    shape = _shape(rng)
    axis = rng.randrange(len(shape))
    first, last = sorted(rng.choices(range(shape[axis] + 1), k=2))
    step = rng.choice((1, 1, 1, 2))
    return [_real(*shape)], [False], {"axes": (axis,), "starts": (first,), "ends": (last,), "steps": (step,)}


def _padded(record: Operator, rng: Random) -> Case:
    shape = _shape(rng)
    rank, some = len(shape), rng.choice((1, 2, 3))
    sides = tuple(some if i >= rank - 2 else 0 for i in range(rank))
    return [_real(*shape)], [False], {"pads": (*sides, *sides), "value": 0.0}


def _spread(record: Operator, rng: Random) -> Case:
    """Expand and Tile: along one axis."""
    shape = _shape(rng)
    axis, times = rng.randrange(len(shape)), rng.choice((2, 4, 8, 49))
    if record.name == "Tile":
        return [_real(*shape)], [False], {"repeats": tuple(times if i == axis else 1 for i in range(len(shape)))}
    one = tuple(1 if i == axis else n for i, n in enumerate(shape))
    return [_real(*one)], [False], {"shape": shape}


Draw = Callable[[Operator, Random], Case]
_FAMILIES: Mapping[str, Draw] = {
    "normalisation": _normalised, "pooling": _pooled, "resize": _resized, "conv": _convolved,
    "attention": _attended, "reduce": _one, "shape": _one, "slicing": _sliced,
}  # fmt: skip


def _quantised(record: Operator, rng: Random) -> Case:
    """One scale for all elements, as activations have it."""
    stored, shape = rng.choice((DType.UINT8, DType.INT8)), _shape(rng)
    x = _real(*shape) if record.name == "QuantizeLinear" else TensorType(stored, shape)
    values: Values = {"axis": 0, "to": stored.value}
    return [x, _real(), TensorType(stored, ())], [False, True, True], {k: values[k] for k in record.attributes}


def _integer_product(record: Operator, rng: Random) -> Case:
    """Weights of int8 with one scale, as quantisers write them."""
    values: Values = {}
    left: Shape
    right: Shape
    if "Conv" in record.name:
        _, channels, side, _ = _image(rng)
        kernel, out = rng.choice((1, 3, 5)), rng.choice(_CHANNELS)
        left, right = (1, channels, side, side), (out, channels, kernel, kernel)
        values = {"strides": (1, 1), "pads": (kernel // 2,) * 4, "dilations": (1, 1), "group": 1}
    else:
        wide = rng.choice(_CHANNELS)
        left, right = (rng.choice(_TOKENS), wide), (wide, rng.choice(_CHANNELS))
    x, w, zero = TensorType(DType.UINT8, left), TensorType(DType.INT8, right), TensorType(DType.UINT8, ())
    if record.name.startswith("QLinear"):
        rest = (_real(), TensorType(DType.INT8, ()), _real(), zero)
        return [x, _real(), zero, w, *rest], [False, *(True,) * 7], values
    return [x, w, zero], [False, True, False], values


_SPECIAL: Mapping[str, Draw] = {
    "QuantizeLinear": _quantised, "DequantizeLinear": _quantised,
    "ConvInteger": _integer_product, "MatMulInteger": _integer_product, "QLinearConv": _integer_product,
    "QLinearMatMul": _integer_product,
    "Concat": _concatenated, "Conv": _filtered, "CumSum": _one, "Einsum": _summed, "Expand": _spread,
    "Gather": _gathered, "GatherElements": _gathered, "OneHot": _one_hot, "Pad": _padded, "ScatterND": _gathered,
    "Split": _split, "Tile": _spread, "Trilu": _one,
}  # fmt: skip


def main() -> None:
    """Write the models, or say how far off a profile's predictions are."""
    parser = argparse.ArgumentParser(prog="python -m lab.operator_models", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="where the models are written")
    parser.add_argument("--each", type=int, default=10, help="applications of an operator")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", nargs="*", default=(), metavar="OPERATOR", help="of these operators alone")
    parser.add_argument(
        "--off", nargs=2, metavar="PROFILE", help="how far the first one's predictions are from what the second holds"
    )
    chosen = parser.parse_args()
    if chosen.folder is not None:
        print(f"{plan(chosen.folder, chosen.seed, chosen.each, chosen.only)} models in {chosen.folder}")
    if chosen.off is not None:
        found = off(*map(load_profile, chosen.off))
        for op, logs in sorted(found.items(), key=lambda item: -_usual(item[1])):
            print(f"{op:28s} {len(logs):4d} predicted, usually {exp(_usual(logs)):6.2f} times too much or too little")
        every = [each for logs in found.values() for each in logs]
        print(f"{'all':28s} {len(every):4d} predicted, usually {exp(_usual(every)):6.2f} times too much or too little")


def _usual(logs: Sequence[float]) -> float:
    return median(map(abs, logs)) if logs else 0.0


if __name__ == "__main__":
    main()
