"""Values and sizes at which a model changes its behaviour: thresholds, bounds, moduli, ties, windows, ends of slices.

*Values.* Wherever an operator jumps or bends (a comparison with a constant, ``Clip``, ``Floor``, ``Mod``, ``Relu`` …),
one of its operands should take a certain value. That target is propagated back to the inputs: constants are subtracted
and divided, monotone functions inverted, movements of elements followed. Any other value on the path is ignored.

*Sizes.* Targets for symbolic sizes come from the ends of slices, from constants with which shapes are compared, and
from windows. Sizes from 2 to 5 do not reach a model that changes its seventh row.

*Sums.* Inputs that are the terms of one sum cancel as a whole if no part of the sum cancels. Then each order of
addition rounds alike, and a result that loses more does something to each term first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from onnx import AttributeProto, GraphProto, TensorProto, numpy_helper

from superopt.ir.graph import Graph, Node, OpaqueAttribute, attribute_key
from superopt.ir.size_polynomial import Dim, symbols, value_at
from superopt.ir.types import TensorType, ValueType
from superopt.ops.constants_and_shapes import attribute_array

__all__ = ["MOST", "input_targets", "literals", "numbers_of", "size_candidates", "size_targets", "solved", "sums"]

_MOST = 48  # targets of one input
_STEPS = 4000  # nodes that one graph's targets are carried through, in all
_FEW = 4  # elements of a constant operand that are tried
_DEPTH = 64
_READ = 1 << 20  # elements of a constant that is looked at
_FAR = 64  # where a size that follows from another is looked at beside 0: its slope
_LARGEST = 1 << 24  # a size

_SAME = frozenset({
    "AveragePool", "Cast", "CastLike", "Ceil", "Clip", "Concat", "DepthToSpace", "Dropout", "Expand", "Flatten",
    "Floor", "Gather", "GatherElements", "GatherND", "GlobalAveragePool", "GlobalMaxPool", "Identity",
    "LeakyRelu", "Max", "MaxPool", "Mean", "Min", "Mod", "Pad", "ReduceMax", "ReduceMean", "ReduceMin", "Relu",
    "Reshape", "Resize", "Round", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "TopK", "Transpose",
    "Trilu", "Unsqueeze", "Where",
})  # fmt: skip
_RESPELLED = frozenset({"Cast", "CastLike", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_INVERSES: Mapping[str, Callable[[float], tuple[float, ...]]] = {
    "Neg": lambda t: (-t,),
    "Abs": lambda t: (t, -t),
    "Exp": lambda t: (math.log(t),) if t > 0 else (),
    "Log": lambda t: (math.exp(min(t, 80.0)),),
    "Sqrt": lambda t: (t * t,) if t >= 0 else (),
    "Reciprocal": lambda t: (1 / t,) if t else (),
    "Sigmoid": lambda t: (math.log(t / (1 - t)),) if 0 < t < 1 else (),
    "Tanh": lambda t: (math.atanh(t),) if -1 < t < 1 else (),
    "Sin": lambda t: (math.asin(t),) if -1 <= t <= 1 else (),
    "Cos": lambda t: (math.acos(t),) if -1 <= t <= 1 else (),
    "Erf": lambda t: (t,),
    "ReduceSum": lambda t: (t,),
    "ReduceL1": lambda t: (t, -t),
    "ReduceL2": lambda t: (t, -t),
    "ReduceSumSquare": lambda t: (math.sqrt(t), -math.sqrt(t)) if t >= 0 else (),
}
_COMPARISONS = frozenset({"Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"})
_KINKS: Mapping[str, tuple[float, ...]] = {
    "Relu": (0.0,), "LeakyRelu": (0.0,), "PRelu": (0.0,), "Elu": (0.0,), "Selu": (0.0,), "Celu": (0.0,),
    "Abs": (0.0,), "Sign": (0.0,), "Sqrt": (0.0,), "Log": (0.0, 1.0), "Reciprocal": (0.0,), "HardSwish": (-3.0, 3.0),
    "Floor": (0.0, 1.0, -1.0, 2.0, 7.0), "Ceil": (0.0, 1.0, -1.0, 2.0, 7.0), "Round": (0.5, 1.5, 2.5, -0.5, -1.5),
    "Cast": (0.0, 1.0, -1.0, 2.0, 0.5), "Not": (), "Softplus": (0.0,), "Gelu": (0.0,), "Pow": (0.0, 1.0, -1.0),
}  # fmt: skip


def numbers_of(graph: Graph, name: str, most: int = _FEW) -> list[float]:
    """Some elements of a constant: its ends and its first ones; none if it is not a constant of numbers."""
    array = constant_array(graph, name)
    if array is None or array.size == 0 or array.size > _READ:
        return []
    flat = array.reshape(-1)
    wide = flat.astype(np.float64)
    wide = wide[np.isfinite(wide)]
    if not wide.size:
        return []
    chosen = dict.fromkeys([float(wide.min()), float(wide.max()), *map(float, wide[: most - 2])])
    return list(chosen)[:most]


def literals(graph: Graph, most: int) -> dict[float, None]:
    """Numbers of the constants, weights and nodes, of at most so many elements."""
    names = [w.name for w in graph.weights if isinstance(w.type.elements, int) and w.type.elements <= most]
    names += [n.outputs[0] for n in graph.nodes if n.op == "Constant" and n.outputs]
    arrays = ((name, constant_array(graph, name)) for name in names)
    return {
        t: None for name, array in arrays if array is not None and array.size <= most for t in numbers_of(graph, name)
    }


def constant_array(graph: Graph, name: str) -> np.ndarray | None:
    """The numbers of a constant, however it is spelled: a weight, a node, or another shape or type of one."""
    for _ in range(_DEPTH):
        weight = graph.constants.get(name)
        if weight is not None:
            numeric = weight.type.dtype.is_float or weight.type.dtype.is_integer
            few = isinstance(weight.type.elements, int) and weight.type.elements <= _READ
            return weight.data.numpy() if weight.data is not None and numeric and few else None
        node = graph.producer.get(name)
        if node is None or node.domain not in ("", "ai.onnx"):
            return None
        if node.op == "Constant" and len(node.attributes) == 1:
            [(key, value)] = node.attributes.items()
            return attribute_array(key, value)
        if node.op not in _RESPELLED:
            return None
        name = node.inputs[0]
    return None


def input_targets(graph: Graph) -> dict[str, list[float]]:
    """Target values by input, the likeliest to matter first."""
    return {n: list(t)[:_MOST] for n, t in _carried(graph, {}).targets.items()}


def size_targets(graph: Graph, types: Mapping[str, ValueType | None]) -> dict[str, list[int]]:
    """Sizes by name at which values computed from shapes change the behaviour of a model; ``types`` are of its
    values."""
    return {n: list(t)[:_MOST] for n, t in _carried(graph, types).sizes.items()}


def _carried(graph: Graph, types: Mapping[str, ValueType | None]) -> _Backwards:
    work = _Backwards(graph, types)
    for node in graph.nodes:
        for name, targets in _sites(graph, node):
            for target in targets:
                work.want(name, target)
    return work


def solved(size: Dim, wanted: float) -> Iterator[tuple[str, int]]:
    """For each name in a size, the integers near which the size takes the wanted value, all other names being 1."""
    for name in sorted(symbols(size)):
        others = dict.fromkeys(symbols(size), 1)
        low, high = (value_at(size, {**others, name: n}) for n in (0, _FAR))
        if high != low:
            found = (wanted - low) * _FAR / (high - low)
            if 0 < found <= _LARGEST:
                yield from ((name, n) for n in dict.fromkeys((math.floor(found), math.ceil(found))))


def _sites(graph: Graph, node: Node) -> Iterator[tuple[str, list[float]]]:
    """Operands of a node with the values at which it jumps or bends."""
    inputs = [n for n in node.inputs if n]
    if node.op in _COMPARISONS or node.op in ("Max", "Min"):
        for name in inputs:
            others = [n for n in inputs if n != name]
            yield name, [t for o in others for t in numbers_of(graph, o)] or [0.0, 1.0]
    elif node.op == "Clip":
        bounds = [t for n in node.inputs[1:] if n for t in numbers_of(graph, n)]
        bounds += [float(v) for k in ("min", "max") if isinstance(v := node.attributes.get(k), int | float)]
        yield inputs[0], bounds
    elif node.op == "Mod" and len(inputs) == 2:
        for m in numbers_of(graph, inputs[1]):
            yield inputs[0], [m, m - 1, m + 1, 2 * m, 2 * m - 1, 2 * m + 1, -m, -m - 1, -1.0, m / 2, 3 * m]
    elif node.op == "Div" and len(inputs) == 2:
        yield inputs[1], [0.0]
    elif node.op == "QuantizeLinear":
        for s in numbers_of(graph, inputs[1]):
            yield inputs[0], [0.5 * s, 1.5 * s, -0.5 * s, 127.5 * s, -128.5 * s, 255.5 * s]
    elif node.op in ("ThresholdedRelu", "Shrink", "HardSigmoid"):
        yield inputs[0], _knees(node)
    elif node.op in _KINKS and inputs:
        yield inputs[0], list(_KINKS[node.op])


def _knees(node: Node) -> list[float]:
    def attribute(name: str, default: float) -> float:
        value = node.attributes.get(name)
        return float(value) if isinstance(value, int | float) else default

    if node.op == "ThresholdedRelu":
        return [attribute("alpha", 1.0)]
    if node.op == "Shrink":
        return [attribute("lambd", 0.5), -attribute("lambd", 0.5)]
    alpha, beta = attribute("alpha", 0.2), attribute("beta", 0.5)
    return [-beta / alpha, (1 - beta) / alpha] if alpha else []


@dataclass
class _Backwards:
    """Targets propagated back to the inputs, and to the sizes of what is fed."""

    graph: Graph
    types: Mapping[str, ValueType | None] = field(default_factory=dict)
    targets: dict[str, dict[float, None]] = field(default_factory=dict)
    sizes: dict[str, dict[int, None]] = field(default_factory=dict)
    visited: set[tuple[str, float]] = field(default_factory=set)
    steps: int = 0

    def __post_init__(self) -> None:
        self.fed = {v.name for v in self.graph.inputs} | {w.name for w in self.graph.weights if w.data is None}

    def want(self, name: str, target: float) -> None:
        stack = [(name, target, 0)]
        while stack and self.steps < _STEPS:
            current, wanted, depth = stack.pop()
            if (current, wanted) in self.visited or not math.isfinite(wanted) or depth > _DEPTH:
                continue
            self.visited.add((current, wanted))
            self.steps += 1
            if current in self.fed:
                self.targets.setdefault(current, {})[wanted] = None
                continue
            node = self.graph.producer.get(current)
            if node is not None and node.op in ("Shape", "Size"):
                self._want_size(node, wanted)
            elif node is not None:
                stack += [(n, t, depth + 1) for n, t in self._back(node, wanted)]

    def _want_size(self, node: Node, wanted: float) -> None:
        """A size of an operand, or how many elements it has."""
        kind = self.types.get(node.inputs[0])
        if isinstance(kind, TensorType) and kind.shape is not None:
            for size in kind.shape if node.op == "Shape" else (math.prod(kind.shape, start=1),):
                for name, number in solved(size, wanted):
                    self.sizes.setdefault(name, {})[number] = None

    def _back(self, node: Node, wanted: float) -> list[tuple[str, float]]:
        """Operands of a node, and the value of each that gives what is wanted, the others being what they are."""
        inputs = [n for n in node.inputs if n]
        if node.op in _SAME:
            return [(n, wanted) for n in inputs]
        if node.op == "Range":
            return [(inputs[1], wanted)]
        if node.op in _INVERSES and inputs:
            return [(inputs[0], t) for t in _INVERSES[node.op](wanted)]
        if node.op in ("Add", "Sub", "Mul", "Div", "Pow", "Sum") and len(inputs) == 2:
            return self._binary(node.op, inputs, wanted)
        if node.op in ("MatMul", "Gemm", "Conv") and len(inputs) > 1:
            return [(inputs[0], t) for t in self._dot(inputs[1], wanted)]
        return []

    def _binary(self, op: str, inputs: list[str], t: float) -> list[tuple[str, float]]:
        left, right = inputs
        made: list[tuple[str, float]] = []
        for c in numbers_of(self.graph, right):
            made += [(left, v) for v in _solve_left(op, t, c)]
        for c in numbers_of(self.graph, left):
            made += [(right, v) for v in _solve_right(op, t, c)]
        if made:
            return made
        share = {"Add": (t / 2, t / 2), "Sum": (t / 2, t / 2), "Sub": (t, 0.0), "Div": (t, 1.0), "Pow": (t, 1.0)}
        root = math.sqrt(abs(t))
        first, second = share.get(op, (root, math.copysign(root, t)))
        return [(left, first), (right, second)]

    def _dot(self, weight: str, wanted: float) -> list[float]:
        """Equal elements that give the first sum the wanted value."""
        held = self.graph.constants.get(weight)
        if held is None or held.data is None or not isinstance(count := held.type.elements, int) or count > _READ:
            return []
        array = held.data.numpy().astype(np.float64)
        if array.ndim < 2 or not array.size:
            return []
        total = float((array[0] if array.ndim > 2 else array[..., 0]).sum())
        return [wanted / total] if abs(total) > 1e-12 else []


def _solve_left(op: str, t: float, c: float) -> list[float]:
    """``v`` with ``v op c = t``."""
    if op in ("Add", "Sum"):
        return [t - c]
    if op == "Sub":
        return [t + c]
    if op == "Mul":
        return [t / c] if c else []
    if op == "Div":
        return [t * c]
    return [root := _power(t, 1 / c), -root] if c and t > 0 else []


def _power(t: float, c: float) -> float:
    """``t ** c``, infinite where that overflows."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float64(t) ** np.float64(c))


def _solve_right(op: str, t: float, c: float) -> list[float]:
    """``v`` with ``c op v = t``."""
    if op in ("Add", "Sum"):
        return [t - c]
    if op == "Sub":
        return [c - t]
    if op == "Mul":
        return [t / c] if c else []
    if op == "Div":
        return [c / t] if t else []
    return [math.log(t) / math.log(c)] if t > 0 and c > 0 and c != 1 else []


MOST = 24  # sizes that are tried, at most
_LARGEST_SIZE = 1 << 24  # a size: larger ones say "to the end"
_MANY = 8  # rows more than twice a number
_FEW_SIZES = 16  # elements of a constant that is a size by itself
_WRAPS: Mapping[object, tuple[int, ...]] = {2: (256,), 3: (128, 256), 4: (1 << 16,), 5: (1 << 15, 1 << 16)}  # by type
_READ_SIZES = 1 << 20  # bytes of a subgraph that is looked into

Types = Mapping[str, ValueType | None]


def size_candidates(
    graphs: Sequence[tuple[Graph, Types]], names: Iterable[str], fixed: Mapping[str, int]
) -> Iterator[tuple[tuple[str, ...], int]]:
    """Sizes to try, each of one name or of all: around each number that a graph compares sizes with.

    Args:
        graphs: both models, with their types; sizes are named alike in them.
        names: of the sizes that are open.
        fixed: those that are not.
    """
    names = [n for n in dict.fromkeys(names) if n not in fixed]
    wanted: dict[tuple[str, int], None] = {}
    for graph, types in graphs:
        sizes = size_targets(graph, types)
        wanted.update(((n, t), None) for n in names for t in sizes.get(n, ()))
        wanted.update(dict.fromkeys((n, t) for node in graph.nodes for n, t in _size_sites(graph, node, types)))
    numbers = [dict.fromkeys(_numbers(graph)) for graph, _ in graphs]
    own = [t for i, held in enumerate(numbers) for t in held if not any(t in o for o in numbers[:i] + numbers[i + 1 :])]
    own += [t for graph, _ in graphs for node in graph.nodes for t in _narrowed(node)]
    inner = [t for graph, _ in graphs for t in _inner_numbers(graph)]
    wanted.update(dict.fromkeys((n, t) for t in (*own, *inner) for n in names))
    told = [(n, t) for n, t in wanted if n in names]
    together = [tuple(names)] if len(names) > 1 else []
    yield from dict.fromkeys(
        (group, size)
        for n, t in told
        for group, sizes in (*(((n,), _around(t)),), *((g, (t + 1,)) for g in together))
        for size in sizes
        if 1 < size <= _LARGEST_SIZE
    )


def _around(number: int) -> tuple[int, ...]:
    """Numbers beyond, at and before a number, and far beyond it."""
    return number + 1, number, number - 1, 2 * number + _MANY


def _numbers(graph: Graph) -> Iterator[int]:
    """Whole numbers of a graph's small constants."""
    return (int(abs(t)) for t in literals(graph, _FEW_SIZES) if t == int(t) and 0 < abs(t) <= _LARGEST_SIZE)


def _narrowed(node: Node) -> tuple[int, ...]:
    """Numbers at which a cast to few bits wraps around: it may be of positions."""
    return _WRAPS.get(node.attributes.get("to"), ()) if node.op == "Cast" else ()


def _size_sites(graph: Graph, node: Node, types: Types) -> Iterator[tuple[str, int]]:
    """Names of sizes with the numbers at which a node does otherwise."""
    kind = types.get(node.inputs[0]) if node.inputs else None
    if not isinstance(kind, TensorType) or not kind.shape:
        return
    for axis, number in _axes(graph, node, len(kind.shape)):
        if -len(kind.shape) <= axis < len(kind.shape):
            yield from solved(kind.shape[axis], number)


def _axes(graph: Graph, node: Node, rank: int) -> Iterator[tuple[int, int]]:
    """Axes of a node's first operand, with lengths at which it does otherwise."""
    if node.op == "Slice":
        operands = {k: _integers(graph, node, p, k) for p, k in enumerate(("starts", "ends", "axes"), 1)}
        axes = operands["axes"] or range(rank)
        for numbers in (operands["starts"], operands["ends"]):
            yield from ((axis, abs(k)) for axis, k in zip(axes, numbers, strict=False))
    elif node.op in ("Gather", "GatherElements"):
        axis = node.attributes.get("axis", 0)
        yield from ((axis, k + 1 if k >= 0 else -k) for k in _integers(graph, node, 1, "") if isinstance(axis, int))
    elif node.op == "TopK":
        axis = node.attributes.get("axis", -1)
        yield from ((axis, k) for k in _integers(graph, node, 1, "k") if isinstance(axis, int))
    elif node.op == "Trilu":
        yield from ((axis, abs(k)) for k in _integers(graph, node, 1, "") for axis in (-1, -2))
    elif isinstance(kernel := node.attributes.get("kernel_shape"), tuple):
        yield from ((2 + i, k) for i, k in enumerate(kernel) if isinstance(k, int))


def _integers(graph: Graph, node: Node, position: int, attribute: str) -> list[int]:
    """A node's whole numbers, from a constant operand or an attribute."""
    held = node.attributes.get(attribute)
    if held is not None:
        return [v for v in (held if isinstance(held, tuple) else (held,)) if isinstance(v, int)]
    if len(node.inputs) <= position or not node.inputs[position]:
        return []
    return [int(t) for t in numbers_of(graph, node.inputs[position], _FEW_SIZES) if abs(t) < 2**62]


def _inner_numbers(graph: Graph) -> Iterator[int]:
    """Whole numbers of the small constants in subgraphs."""
    for node in graph.nodes:
        for value in node.attributes.values():
            if isinstance(value, OpaqueAttribute) and len(value.payload) <= _READ_SIZES:
                held = AttributeProto.FromString(value.payload)  # type: ignore[no-untyped-call]
                for body in (held.g, *held.graphs):
                    yield from _body_numbers(body)


def _body_numbers(body: GraphProto) -> Iterator[int]:
    tensors: list[TensorProto] = [t for t in body.initializer if np.prod(t.dims) <= _FEW_SIZES]
    for node in body.node:
        for attribute in node.attribute:
            tensors += [attribute.t] if attribute.type == AttributeProto.TENSOR else []
            if node.op_type == "Constant":
                yield from (
                    abs(int(v)) for v in (attribute.i, *attribute.ints, attribute.f) if 0 < abs(v) <= _LARGEST_SIZE
                )
            for inner in (attribute.g, *attribute.graphs):
                yield from _body_numbers(inner)
    for tensor in tensors:
        if np.prod(tensor.dims) <= _FEW_SIZES and tensor.data_type not in (TensorProto.STRING, TensorProto.BOOL):
            numbers = np.asarray(numpy_helper.to_array(tensor)).astype(np.float64).reshape(-1)
            yield from (abs(int(v)) for v in numbers.tolist() if 0 < abs(v) <= _LARGEST_SIZE)


_TERMS = 8  # of a sum that is followed; a longer one is a term of nothing
_SUMS = frozenset({"Add", "Sub", "Sum"})


@dataclass(frozen=True)
class _Term:
    source: str
    negative: bool = False
    path: tuple[object, ...] = ()  # what was done to the input on the way


def sums(graph: Graph, inputs: Collection[str]) -> tuple[dict[str, bool], ...]:
    """For each sum of three or more of these inputs, all different, the inputs that are subtracted; outermost sums
    first."""
    terms: dict[str, tuple[_Term, ...]] = {name: (_Term(name),) for name in inputs}
    found: list[dict[str, bool]] = []
    for node in graph.nodes:
        operands = [terms[name] for name in node.inputs if name in terms]
        if not operands or len(node.outputs) != 1:
            continue
        if node.op in _SUMS and not node.domain:
            read = (terms.get(name, ()) for name in node.inputs)
            together = tuple(t for i, ts in enumerate(read) for t in (_negated(ts) if node.op == "Sub" and i else ts))
            signs = {term.source: term.negative for term in together}
            if len({term.path for term in together}) == 1 and 2 < len(signs) == len(together) and signs not in found:
                found.insert(0, signs)
        elif node.op == "Neg":
            together = _negated(operands[0])
        elif len(operands) == 1:
            done = (node.domain, node.op, tuple(n for n in node.inputs if n not in terms), _attributes(node))
            together = tuple(replace(term, path=(*term.path, done)) for term in operands[0])
        else:
            continue
        if len(together) <= _TERMS:
            terms[node.outputs[0]] = together
    return tuple(found)


def _attributes(node: Node) -> tuple[object, ...]:
    return tuple((name, attribute_key(value)) for name, value in sorted(node.attributes.items()))


def _negated(terms: tuple[_Term, ...]) -> tuple[_Term, ...]:
    return tuple(replace(term, negative=not term.negative) for term in terms)
