"""What the models are fed with: families of values, steered by the constants of the model itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from attacker.build import Attack, Spec

Feed = dict[str, np.ndarray]
_POINTS = 4096  # constants of at most this many elements are looked at for thresholds


def constants(graph: onnx.GraphProto) -> Iterator[np.ndarray]:
    """Every constant of a graph and of its subgraphs."""
    for weight in graph.initializer:
        yield numpy_helper.to_array(weight)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield numpy_helper.to_array(attribute.t)
            elif attribute.type == onnx.AttributeProto.GRAPH:
                yield from constants(attribute.g)
            elif attribute.type == onnx.AttributeProto.FLOAT:
                yield np.array(attribute.f, np.float32)


def points(model: onnx.ModelProto) -> np.ndarray:
    """The numbers that stand in the model: where it may branch, saturate or wrap."""
    found: set[float] = {0.0, 1.0}
    for array in constants(model.graph):
        if array.size <= _POINTS and array.dtype.kind in "fiu":
            found.update(float(v) for v in np.unique(array)[:64])
    return np.array(sorted(v for v in found if np.isfinite(v)))


def feeds(attack: Attack, count: int, seed: int = 0) -> Iterator[Feed]:
    """``count`` feeds; the families go round so that each input sees each of its own, beside others'.

    In the second half families differ between inputs; a default is overridden in every other feed.
    """
    known = points(attack.model)
    for index in range(count):
        rng = np.random.default_rng([attack.seed, seed, index])
        sizes = {name: int(choices[index % len(choices)]) for name, choices in attack.sizes.items()}
        feed: Feed = {}
        for place, spec in enumerate(attack.specs):
            if spec.default and index % 2:
                continue
            turn = index if index < count // 2 else int(rng.integers(1 << 30))
            family = spec.families[(turn + (place if index % 3 == 2 else 0)) % len(spec.families)]
            feed[spec.name] = _values(rng, spec, family, sizes, known, feed)
        yield feed


def _values(
    rng: np.random.Generator, spec: Spec, family: str, sizes: Mapping[str, int], known: np.ndarray, others: Feed
) -> np.ndarray:
    shape = tuple(sizes[s] if isinstance(s, str) else s for s in spec.shape)
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.kind in "iu":
        return _integers(rng, spec, dtype, shape, known)
    with np.errstate(all="ignore"):
        return np.asarray(_floats(rng, family, shape, dtype, known, others)).astype(dtype)


def _integers(
    rng: np.random.Generator, spec: Spec, dtype: np.dtype, shape: tuple[int, ...], known: np.ndarray
) -> np.ndarray:
    info = np.iinfo(dtype)
    low = info.min if spec.low is None else spec.low
    high = info.max if spec.high is None else spec.high
    values = rng.integers(low, high, size=shape, dtype=dtype, endpoint=True)
    whole = [int(p) for p in known if p == np.floor(p) and abs(p) < 2**31]
    near = [p * k + d for p in whole for k in (1, 2, 7) for d in (-1, 0, 1)] + [low, low + 1, high - 1, high]
    allowed = np.array([v for v in near if low <= v <= high], dtype=object)
    steered = rng.choice(allowed, size=shape).astype(dtype) if allowed.size else values
    return np.where(rng.random(shape) < 0.5, values, steered).astype(dtype)


def _floats(
    rng: np.random.Generator, family: str, shape: tuple[int, ...], dtype: np.dtype, known: np.ndarray, others: Feed
) -> np.ndarray:
    info = np.finfo(dtype)
    sign = np.asarray(rng.choice([-1.0, 1.0], size=shape))
    tiny, largest = np.float64(info.smallest_subnormal), np.float64(info.max)
    earlier = [v for v in others.values() if v.shape == shape and v.dtype == dtype]
    match family:
        case "normal":
            return rng.standard_normal(shape)
        case "unit":
            return rng.random(shape)
        case "integers":
            return rng.integers(-9, 10, size=shape).astype(np.float64)
        case "halves":
            return rng.integers(-21, 22, size=shape) / 2
        case "ties":
            return rng.integers(-1, 2, size=shape) * 0.5
        case "zeros":
            return rng.choice([0.0, -0.0, 1.0, -1.0], size=shape)
        case "medium":
            return sign * 2.0 ** rng.uniform(-12, 12, size=shape)
        case "log":
            return sign * np.exp2(rng.uniform(np.log2(tiny), np.log2(largest), size=shape))
        case "denormal":
            return sign * np.exp2(rng.uniform(np.log2(tiny), np.log2(np.float64(info.tiny)) + 2, size=shape))
        case "large":
            return sign * largest * rng.choice([1.0, 0.5, 1e-2, 1.0 - float(info.eps)], size=shape)
        case "special":
            return rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -2.5, largest, tiny], size=shape)
        case "offset":
            return rng.choice([1e3, -1e4] if dtype == np.float16 else [1e3, 1e5, -1e7]) + rng.standard_normal(shape)
        case "near":  # about a thousand, and near what an earlier input has
            base = earlier[-1].astype(np.float64) if earlier else rng.uniform(500, 2000, size=shape)
            return base * (1 + rng.choice([-4, -1, 0, 1, 3, 1000], size=shape) * float(info.eps))
        case "equal":
            return earlier[-1].astype(np.float64) if earlier else rng.standard_normal(shape)
        case "cancel":  # equal and opposite: to an earlier input, or within
            base = earlier[-1].astype(np.float64) if earlier else np.resize(rng.standard_normal(2) * 1e3, shape)
            return -base * (1 + rng.choice([0, 0, 1, -1], size=shape) * float(info.eps))
        case "points":
            return _steered(rng, shape, dtype, known)
    raise ValueError(family)


def _steered(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, known: np.ndarray) -> np.ndarray:
    """The model's own numbers, quotients of two of them, halves and multiples, each exactly or an ulp aside."""
    with np.errstate(all="ignore"):
        first, second = rng.choice(known, size=shape), rng.choice(known, size=shape)
        forms = [
            first,
            -first,
            first * rng.integers(-9, 10, size=shape),
            first * second,
            first / second,
            first - second,
        ]
        forms.append(first * (rng.integers(-9, 10, size=shape) + 0.5))
        values = np.choose(rng.integers(len(forms), size=shape), forms).astype(dtype)
        values = np.where(np.isfinite(values), values, dtype.type(1))
        aside = np.nextafter(values, rng.choice([-np.inf, np.inf], size=shape).astype(dtype))
        return np.where(rng.random(shape) < 0.5, values, aside).astype(np.float64)
