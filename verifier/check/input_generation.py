"""Random inputs for running a model, by element type, within the domain that the graph allows.

Strings are drawn from those that the model compares with, others like them, and numbers where they are parsed as such.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from superopt.ir.errors import ResourceLimit, Unsupported, printable
from superopt.ir.graph import Graph, Node, Weight
from superopt.ir.size_polynomial import Dim, symbols, value_at
from superopt.ir.types import DType, TensorType
from superopt.runtime.resource_limits import available

__all__ = [
    "IntegerInputDomain",
    "EMPTY",
    "KINDS",
    "LEVELS",
    "NO_BATCH",
    "accepted",
    "choose_sizes",
    "domain_of",
    "draw_strings",
    "fed_types",
    "make_inputs",
    "reads_numbers",
    "strings_of",
]

_PLAIN = ("", "a", "b", "A", " ", "ab", "one two", "é", "日本", "0", "-1", "2.5")
_NUMBERS = ("0", "1", "-1", "2.5", "-0.125", "1e3", "7", "100")
_MOST_STRINGS = 64  # strings of one model
_READ = 1 << 16  # elements of a constant that is looked at


def strings_of(graph: Graph) -> list[str]:
    """The strings in a model's constants and attributes."""
    return list(dict.fromkeys(_string_constants(graph)))[:_MOST_STRINGS]


def draw_strings(
    graph: Graph, shape: tuple[int, ...], words: Sequence[str], numeric: bool, rng: np.random.Generator
) -> np.ndarray:  # fmt: skip
    """An array of strings.

    Args:
        graph: whose words are among them.
        shape: of the array.
        words: others that are.
        numeric: something reads numbers from them.
        rng: draws.
    """
    if numeric:
        return np.asarray(rng.choice(np.array(_NUMBERS, dtype=object), shape), dtype=object)
    own = [*strings_of(graph), *words]
    near = [v for w in own for v in (w, w, w.upper(), w + " ", w[:-1], w + "a")]
    return np.asarray(rng.choice(np.array([*near, *_PLAIN], dtype=object), shape), dtype=object)


def _string_constants(graph: Graph) -> Iterator[str]:
    weights = list(graph.weights)
    for node in graph.nodes:
        for value in node.attributes.values():
            if isinstance(value, Weight):
                weights.append(value)
            elif isinstance(value, bytes):
                yield value.decode(errors="replace")
            elif isinstance(value, tuple):
                yield from (v.decode(errors="replace") for v in value if isinstance(v, bytes))
    for weight in weights:
        few = isinstance(weight.type.elements, int) and weight.type.elements <= _READ
        if weight.type.dtype is DType.STRING and few and weight.data is not None:
            yield from map(_text, weight.data.numpy().reshape(-1)[:_MOST_STRINGS].tolist())


def _text(element: object) -> str:
    return element.decode(errors="replace") if isinstance(element, bytes) else str(element)


KINDS = ("normal", "edge", "uniform")
LEVELS = 7  # ways to choose symbolic sizes, tried in order until the model accepts one
EMPTY, NO_BATCH = LEVELS, LEVELS + 1  # two more, asked for by name: all are 0, or first dimensions alone
_WIDE = 3  # copies of the inputs that are alive while they are drawn
_MOST = 1 << 26  # elements of inputs of sizes that nobody asked for: what one size makes of another may be enormous
_EDGES = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.0, 1e-8, -1e-4, 1e-3, 16.0, -16.0, 64.0, -64.0])
_SAME_VALUES = frozenset({
    "Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape", "Transpose", "Slice", "Flatten", "Expand", "Tile", "Concat",
    "Split",
})  # fmt: skip
_INDEX_INPUT = {
    "Gather": 1, "GatherElements": 1, "GatherND": 1, "ScatterElements": 1, "Scatter": 1, "ScatterND": 1, "RoiAlign": 2,
}  # fmt: skip
_NOT_ZERO = {"Div": 1, "Mod": 1, "OneHot": 1}  # operands of integers that are refused where they are 0

# Operands that sizes, positions or trip counts are read from: an arbitrary integer there is refused, or enormous.
_SIZES = {
    "Reshape": (1,), "Expand": (1,), "Tile": (1,), "ConstantOfShape": (0,), "Range": (0, 1, 2), "TopK": (1,),
    "Pad": (1,), "Loop": (0,), "Resize": (3,), "Unsqueeze": (1,), "Squeeze": (1,), "OneHot": (1,), "Gather": (1,),
    "GatherElements": (1,), "GatherND": (1,), "ScatterElements": (1,), "ScatterND": (1,), "Split": (1,),
}  # fmt: skip
_INTEGERS = frozenset({2, 3, 4, 5, 6, 7, 12, 13})  # ONNX's numbers of integer types
# What comes out is no integer, or within bounds of its own, whatever goes in.
_REALS = frozenset({"Mod", "Clip", "Shape", "Size", "Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"})


def fed_types(graph: Graph) -> dict[str, TensorType]:
    """The types of what must be fed: inputs without a default, and weights without values.

    Raises:
        Unsupported: an input is no tensor, or one of complex numbers.
    """
    fed: dict[str, TensorType] = {}
    for value in graph.inputs:
        weight = graph.weight.get(value.name)
        if weight is not None and weight.data is not None:
            continue
        kind = value.type
        if not isinstance(kind, TensorType) or kind.dtype.value.startswith("complex"):
            raise Unsupported(f"random values for input {printable(value.name)!r} of type {kind} cannot be made")
        fed[value.name] = kind
    fed.update((w.name, w.type) for w in graph.weights if w.data is None)
    return fed


def choose_sizes(graph: Graph, seed: int, level: int, fixed: Mapping[str, int]) -> dict[str, int]:
    """Sizes for the symbolic dimensions. Higher levels are for models that refuse small or odd sizes.

    Level 0 draws each from 2 to 5; later ones keep the first dimension of every input small (the batch) and make
    the others 8, 32, 64 and 224; then all are 1, and last 240, which many numbers divide. ``EMPTY`` makes all 0,
    ``NO_BATCH`` first dimensions.
    """
    rng = np.random.default_rng((seed, 1))
    sizes: dict[str, int] = dict(fixed)
    for kind in fed_types(graph).values():
        for axis, dim in enumerate(kind.shape or ()):
            for name in sorted(symbols(dim)):
                small = int(rng.integers(2, 6))
                large = (small, 8, 32, 64, 224, 1, 240, 0, small)[level]
                batch = (small, *(min(small, 3),) * 4, 1, 240, 0, 0)[level]
                sizes.setdefault(name, large if axis else batch)
    return sizes


def make_inputs(
    graph: Graph, seed: int, kind: str = "normal", sizes: Mapping[str, int] | None = None, *, level: int = 0
) -> dict[str, np.ndarray]:
    """An array for every input (and shape-only weight), at its declared element type; the same for the same arguments.

    Args:
        graph: the model.
        seed: of the random numbers and of the symbolic sizes.
        kind: "normal" (standard normal), "uniform" (0 to 1) or "edge" (zeros, ones, large, small and negative values).
        sizes: symbolic dimensions that are fixed.
        level: how the others are chosen (see ``choose_sizes``).

    Raises:
        Unsupported: an input is no tensor, or one of complex numbers. ResourceLimit: the inputs would not fit in
            memory, or are far larger than any that is asked for, at sizes that were chosen here.
    """
    rng = np.random.default_rng((seed, KINDS.index(kind)))
    bound = choose_sizes(graph, seed, level, sizes or {})
    feeds: dict[str, np.ndarray] = {}
    left = available() // 8 // _WIDE  # elements; random numbers are drawn in float64 first
    chosen = _MOST
    for name, type_ in fed_types(graph).items():
        shape = (2,) * level if type_.shape is None else tuple(_size(d, bound) for d in type_.shape)
        left -= prod(shape)
        if left < 0:
            raise ResourceLimit(f"input {printable(name)!r} of shape {list(shape)} does not fit in memory")
        if not {n for d in type_.shape or () for n in symbols(d)} <= (sizes or {}).keys():
            chosen -= prod(shape)
        if chosen < 0:
            raise ResourceLimit(f"input {printable(name)!r} of shape {list(shape)} is too large for a check")
        weight = graph.weight.get(name)
        if weight is not None and type_.dtype.is_float:
            array = rng.uniform(0.5, 1.5, shape) if _is_variance(graph, name) else rng.standard_normal(shape) * 0.1
            feeds[name] = array.astype(type_.dtype.numpy)
        else:
            feeds[name] = _values(graph, name, type_.dtype, shape, kind, rng, bound)
    return feeds


def _size(dim: Dim, bound: Mapping[str, int]) -> int:
    return max(value_at(dim, bound), 0)


def _values(
    graph: Graph, name: str, dtype: DType, shape: tuple[int, ...], kind: str, rng: np.random.Generator,
    sizes: Mapping[str, int],
) -> np.ndarray:  # fmt: skip
    if dtype is DType.BOOL:
        return np.asarray(rng.random(shape) < 0.5)
    if dtype is DType.STRING:
        return draw_strings(graph, shape, (), reads_numbers(graph, name), rng)
    if dtype.is_integer:
        stop = index_bound(graph, name, sizes)
        stop = min(2 if stop is None else stop, 2 ** (dtype.bits - 1))
        drawn: np.ndarray = rng.integers(0, max(stop, 1), shape)
        if kind == "edge" and drawn.size:  # both ends of the range for certain
            drawn.reshape(-1)[0], drawn.reshape(-1)[-1] = 0, max(stop, 1) - 1
        return accepted(graph, name, drawn.astype(dtype.numpy))
    stop = index_bound(graph, name, sizes, real=True)
    if stop is not None:
        return np.asarray(rng.integers(0, max(stop, 1), shape)).astype(dtype.numpy)
    if kind == "edge":
        return rng.choice(_EDGES, shape).astype(dtype.numpy)
    real: np.ndarray = rng.random(shape) if kind == "uniform" else rng.standard_normal(shape)
    return np.asarray(real, dtype=np.float64).astype(dtype.numpy)


def accepted(graph: Graph, name: str, array: np.ndarray) -> np.ndarray:
    """The array without values that every runtime refuses: divisors that are integers are not 0."""
    if array.dtype.kind not in "iu" or array.all() or not _not_zero(graph, name):
        return array
    return np.where(array == 0, np.ones_like(array), array)


def _not_zero(graph: Graph, name: str) -> bool:
    return any(
        len(node.inputs) > (position := _NOT_ZERO.get(node.op, len(node.inputs))) and node.inputs[position] == current
        for node, current in _readers(graph, name)
    )


def reads_numbers(graph: Graph, name: str) -> bool:
    """Whether some node parses numbers from an input of strings."""
    return any(node.op == "Cast" for node, _ in _readers(graph, name))


def _readers(graph: Graph, name: str, *, sums: bool = False) -> Iterator[tuple[Node, str]]:
    """What reads an input, and under which name, also behind operators that only move elements about; with ``sums``
    behind those that may: older forms of ``Where`` multiply by what is 1 in one place and 0 in another, and add up."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        for node in graph.consumers.get(current, ()):
            yield node, current
            if current in _handed_on(graph, node, sums):
                waiting.extend(o for o in node.outputs if o)


def _handed_on(graph: Graph, node: Node, sums: bool) -> tuple[str, ...]:
    """The operands of a node whose elements are its result's."""
    if node.op == "Where":
        return node.inputs[1:]
    if sums and node.op in ("Mul", "Add"):
        return node.inputs if graph.constants.keys().isdisjoint(node.inputs) else ()
    return node.inputs[:1] if node.op in _SAME_VALUES else ()


def index_bound(graph: Graph, name: str, sizes: Mapping[str, int] | None = None, *, real: bool = False) -> int | None:
    """The number of positions that an input may index, if it, or its cast, is used as an index; else ``None``.

    Args:
        graph: the model.
        name: of the input.
        sizes: of symbolic dimensions; what is as long as one that is not named may be of any length.
        real: it is of reals, which some exporters feed for positions.
    """
    found = (_bound(graph, node, current, sizes or {}) for node, current in _readers(graph, name, sums=real))
    return min((b for b in found if b is not None), default=None)


@dataclass(frozen=True)
class IntegerInputDomain:
    """The domain of an integer input: an index below ``stop``, an operand of sizes (``small``), or any."""

    stop: int | None = None
    small: bool = False


def domain_of(graph: Graph, name: str) -> IntegerInputDomain:
    """The domain that the uses of an integer input allow."""
    stop = index_bound(graph, name)
    if stop is not None:
        return IntegerInputDomain(stop)
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        for node in graph.consumers.get(current, ()):
            positions = _SIZES.get(node.op, ())
            if any(p < len(node.inputs) and node.inputs[p] == current for p in positions):
                return IntegerInputDomain(small=True)
            real = node.op == "Cast" and node.attributes.get("to") not in _INTEGERS
            if node.op not in _REALS and not real:
                waiting.extend(o for o in node.outputs if o)
    return IntegerInputDomain()


def _bound(graph: Graph, node: Node, name: str, given: Mapping[str, int]) -> int | None:
    place = _INDEX_INPUT.get(node.op)
    if place is not None and len(node.inputs) > place and node.inputs[place] == name:
        sizes = _static_sizes(graph, node.inputs[0], given)
        axis = node.attributes.get("axis", 0)
        if not sizes or not isinstance(axis, int):
            return None
        if node.op in ("GatherND", "ScatterND"):
            return min((s for s in sizes if s is not None), default=None)
        return sizes[axis] if -len(sizes) <= axis < len(sizes) else None
    if node.op == "OneHot" and node.inputs[0] == name:
        depth = graph.constants.get(node.inputs[1])
        return int(depth.data.numpy().reshape(-1)[0]) if depth is not None and depth.data is not None else None
    if node.domain == "com.microsoft" and node.op == "EmbedLayerNormalization":
        tables = {0: 2, 1: 4, 7: 3}
        found = [tables[p] for p, n in enumerate(node.inputs) if n == name and p in tables]
        sizes = _static_sizes(graph, node.inputs[found[0]], given) if found else None
        return sizes[0] if sizes else None
    return None


def _static_sizes(graph: Graph, name: str, given: Mapping[str, int]) -> list[int | None] | None:
    kind = graph.declared.get(name)
    if not isinstance(kind, TensorType) or kind.shape is None:
        return None
    return [value_at(d, given) if symbols(d) <= given.keys() else None for d in kind.shape]


def _is_variance(graph: Graph, name: str) -> bool:
    """A normalisation reads it as a variance, which must be positive."""
    return any(
        n.op == "BatchNormalization" and len(n.inputs) > 4 and n.inputs[4] == name
        for n in graph.consumers.get(name, ())
    )
