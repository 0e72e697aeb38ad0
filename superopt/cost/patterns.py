"""Groups of operators that a backend runs as one kernel, as data, and where they are in a graph.

:mod:`superopt.cost.fusion` has pairs: a consumer that disappears into its producer. Here are the groups that are known
by more than that: an erf GELU written out, a root mean square, a transposed or scaled operand of a product. A rewrite
that takes one operator out of such a group leaves the others to run one by one, so its price must know them: folding
GELU's division by √2 into the weights before it, which saves an operator on paper, made ConvNeXt 3 % slower.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isclose, pi

from superopt.ir.graph import Graph, Node, Weight
from superopt.ir.types import DType, TensorType
from superopt.ops.generators import attribute_array, given_of

__all__ = ["CLOSE", "COMMUTE", "ONNX_RUNTIME_PATTERNS", "OPENVINO_PATTERNS", "Group", "Pattern", "groups"]

COMMUTE = frozenset({"Add", "Mul"})
CLOSE = 1e-3  # relative: how near a constant must be to the one in the pattern


@dataclass(frozen=True)
class Pattern:
    """An operator and what it is applied to.

    Attributes:
        op: its name; it is read by its group alone, unless it is the last of it.
        args: patterns, a number (a constant of one element that equals it), or a name: the same value wherever it
            stands; a constant of one element where it begins with ``scalar``, any where it begins with ``constant``.
            Further arguments must be constants.
        swaps: a Transpose that exchanges the last two axes.
        rank: of its arguments, which are float32 and of one shape; 0: of any.
        innermost: it works along the last axis.
        slow_ns: of the last operator of a group: nanoseconds for each element that the kernel takes more than the
            dearest of it takes alone.
    """

    op: str
    args: tuple[Pattern | float | str, ...]
    swaps: bool = False
    rank: int = 0
    innermost: bool = False
    slow_ns: float = 0.0


def _of(op: str, *args: Pattern | float | str) -> Pattern:
    return Pattern(op, args)


def _gelu() -> Iterator[Pattern]:
    inner = _of("Add", _of("Erf", _of("Div", "x", 2**0.5)), 1.0)
    yield _of("Mul", _of("Mul", "x", inner), 0.5)
    yield _of("Mul", _of("Mul", "x", 0.5), inner)


def _tanh_gelu() -> Iterator[Pattern]:
    cubic = _of("Add", "x", _of("Mul", _of("Pow", "x", 3.0), 0.044715))
    factored = _of("Add", _of("Mul", _of("Mul", "x", 0.044715), "x"), 1.0)
    root = (2 / pi) ** 0.5
    for inner in (_of("Mul", cubic, root), _of("Mul", _of("Mul", "x", root), factored)):
        yield _of("Mul", _of("Mul", "x", 0.5), _of("Add", _of("Tanh", inner), 1.0))


def _mean_square(of: Pattern | str) -> Pattern:
    return _of("Sqrt", _of("Add", _of("ReduceMean", _of("Pow", of, 2.0)), "scalar epsilon"))


def _layer_normalisation() -> Pattern:
    # The difference is read twice: by the square and by the quotient.
    centred = _of("Sub", "x", _of("ReduceMean", "x"))
    normal = _of("Div", centred, _mean_square(centred))
    return _of("Add", _of("Mul", normal, "constant scale"), "constant bias")


def _products() -> Iterator[Pattern]:
    left, right = (Pattern("Transpose", (name,), swaps=True) for name in ("x", "y"))
    yield _of("MatMul", left, right)
    yield _of("MatMul", left, "y")
    yield _of("MatMul", "x", right)
    for op in ("Mul", "Div"):
        yield _of("MatMul", _of(op, "x", "scalar factor"), "y")
        yield _of("MatMul", "x", _of(op, "y", "scalar factor"))


# ONNX Runtime's kernel for a sum and the LayerNormalization behind it works number by number: 4.3 to 4.4 ns an element
# beside what the normalisation takes, from 768 elements to 524,288 (1.32, EPYC); both by themselves take 0.2.
_SLOW_NS = 4.4
# Read off ONNX Runtime 1.31's optimised graphs at its highest level, CPU; the larger of two that overlap comes first.
# Not among them: Mul(x, 0.7071) for the division, a reciprocal for the quotient, GELU by tanh with x · (0.5 · (1 + …)).
ONNX_RUNTIME_PATTERNS: tuple[Pattern, ...] = (
    _layer_normalisation(),
    *_gelu(),
    *_tanh_gelu(),
    _of("Mul", _of("Div", "x", _mean_square("x")), "constant scale"),
    _of("Mul", _of("Mul", "x", _of("Div", 1.0, _mean_square("x"))), "constant scale"),
    _of("Mul", "x", _of("Sigmoid", "x")),
    _of("Mul", "x", _of("Sigmoid", _of("Mul", "x", "scalar factor"))),
    Pattern(
        "LayerNormalization", (Pattern("Add", ("x", "y"), rank=3), "constant scale"), innermost=True, slow_ns=_SLOW_NS
    ),
    *_products(),
)
# Read off OpenVINO 2026.4's executed graphs. What works element by element is fused pair by pair in any order
# (:data:`superopt.cost.fusion.OPENVINO_CPU`); here is what reads a value twice, and attention, which is one kernel.
OPENVINO_PATTERNS: tuple[Pattern, ...] = (
    _layer_normalisation(),
    *_gelu(),
    _of("Mul", "x", _of("Sigmoid", "x")),
    _of("MatMul", _of("Softmax", _of("MatMul", "x", "y")), "z"),
)


@dataclass(frozen=True)
class _Found:
    """What names stand for so far, and the operators of the group."""

    names: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)  # by the value that each makes


@dataclass(frozen=True)
class Group:
    """Nodes that run as one kernel, the one that makes its result first, and nanoseconds that it takes for each element
    of that beside what the dearest of them takes alone."""

    nodes: tuple[Node, ...]
    slow_ns: float = 0.0

    def us(self, dearest: float, result: TensorType | None) -> float:
        """Microseconds of the kernel.

        Args:
            dearest: what the dearest of its operators takes alone.
            result: the static type of what it makes.
        """
        elements = 0 if result is None else result.elements
        return dearest + 1e-3 * self.slow_ns * (elements if isinstance(elements, int) else 0)


def groups(graph: Graph, patterns: tuple[Pattern, ...], types: Mapping[str, TensorType | None]) -> tuple[Group, ...]:
    """The groups of a graph that run as one kernel each, no node in two of them.

    Args:
        graph: where they are looked for.
        patterns: the backend's; the first that fits has the nodes.
        types: of the graph's values.
    """
    if not patterns:
        return ()
    bare = _without_identities(graph)
    matcher = _Matcher(bare, types)
    taken: set[str] = set()
    made: list[Group] = []
    for pattern in patterns:
        for node in bare.nodes:
            if node.op != pattern.op or node.domain or len(node.outputs) == 0 or node.outputs[0] in taken:
                continue
            found = next(matcher.at(pattern, node.outputs[0], _Found(), last=True), None)
            if found is not None and not taken & found.nodes.keys():
                taken |= found.nodes.keys()
                made.append(Group(tuple(graph.producer[name] for name in found.nodes), pattern.slow_ns))
    return tuple(made)


def _without_identities(graph: Graph) -> Graph:
    """The graph as a runtime looks for patterns in it, which takes these out first."""
    outputs = {v.name for v in graph.outputs}
    source: dict[str, str] = {}
    for node in graph.nodes:
        if node.op == "Identity" and not node.domain and node.outputs[0] not in outputs:
            source[node.outputs[0]] = source.get(node.inputs[0], node.inputs[0])
    if not source:
        return graph
    left = (n for n in graph.nodes if source.keys().isdisjoint(n.outputs))
    return replace(graph, nodes=tuple(replace(n, inputs=tuple(source.get(i, i) for i in n.inputs)) for n in left))


class _Matcher:
    """Finds patterns in one graph."""

    def __init__(self, graph: Graph, types: Mapping[str, TensorType | None]) -> None:
        self.graph, self.types = graph, types
        self.outputs = {v.name for v in graph.outputs}
        self.made = {node.outputs[0]: said for node in graph.nodes if node.outputs and (said := given_of(node))}

    def at(self, what: Pattern | float | str, value: str, so_far: _Found, *, last: bool = False) -> Iterator[_Found]:
        """The ways in which a value is what the pattern says; as deep as the pattern."""
        if isinstance(what, str):
            if self._may_be(what, value) and so_far.names.get(what, value) == value:
                yield _Found({**so_far.names, what: value}, so_far.nodes)
        elif isinstance(what, float):
            known = self._scalar(value)
            if known is not None and isclose(known, what, rel_tol=CLOSE):
                yield so_far
        elif value in so_far.nodes:  # met before: the pattern has it in two places
            if so_far.nodes[value].op == what.op:
                yield so_far
        else:
            yield from self._operator(what, value, so_far, last)

    def _operator(self, what: Pattern, value: str, so_far: _Found, last: bool) -> Iterator[_Found]:
        node = self.graph.producer.get(value)
        if node is None or node.op != what.op or node.domain or len(node.inputs) < len(what.args):
            return
        if not last and (value in self.outputs or not self._inside(value, what)):
            return
        if what.swaps and not _swaps(node.attributes.get("perm")):
            return
        if what.innermost and not self._along_the_last(node):
            return
        if what.rank and not self._alike(node.inputs[: len(what.args)], what.rank):
            return
        if not all(not n or self._is_constant(n) for n in node.inputs[len(what.args) :]):
            return
        begun = _Found(so_far.names, {**so_far.nodes, value: node})
        given = node.inputs[: len(what.args)]
        for order in (given, given[::-1])[: 2 if what.op in COMMUTE else 1]:
            yield from self._arguments(what.args, order, begun)

    def _arguments(
        self, args: tuple[Pattern | float | str, ...], given: tuple[str, ...], so_far: _Found
    ) -> Iterator[_Found]:
        if not args:
            yield so_far
            return
        for found in self.at(args[0], given[0], so_far):
            yield from self._arguments(args[1:], given[1:], found)

    def _alike(self, values: tuple[str, ...], rank: int) -> bool:
        kinds = [self.types.get(v) for v in values]
        shapes = {None if k is None else k.shape for k in kinds}
        fit = all(k is not None and k.rank == rank and k.dtype is DType.FLOAT32 for k in kinds)
        return fit and len(shapes) == 1 and None not in shapes

    def _along_the_last(self, node: Node) -> bool:
        kind, axis = self.types.get(node.outputs[0]), node.attributes.get("axis", -1)
        return axis == -1 or (kind is not None and kind.rank is not None and axis == kind.rank - 1)

    def _inside(self, value: str, what: Pattern) -> bool:
        """Whether nobody outside the group reads it: one reader, or two for the difference of a normalisation."""
        return len(self.graph.consumers.get(value, ())) <= (2 if what.op == "Sub" else 1)

    def _may_be(self, name: str, value: str) -> bool:
        if name.startswith("scalar"):
            return self._scalar(value) is not None
        return not name.startswith("constant") or self._is_constant(value)

    def _is_constant(self, value: str) -> bool:
        return value in self.graph.constants or value in self.made

    def _scalar(self, value: str) -> float | None:
        name, given = self.made.get(value, ("value", self.graph.constants.get(value)))
        if not isinstance(given, Weight):
            array = None if given is None else attribute_array(name, given)
            return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None
        if given.data is None or given.type.elements != 1 or not given.type.dtype.is_float:
            return None
        return float(given.data.numpy().reshape(-1)[0])


def _swaps(perm: object) -> bool:
    """Whether a permutation exchanges the last two axes and leaves the others."""
    if not isinstance(perm, tuple) or len(perm) < 2:
        return False
    rank = len(perm)
    return perm == (*range(rank - 2), rank - 1, rank - 2)
