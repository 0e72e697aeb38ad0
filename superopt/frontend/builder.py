"""``GraphBuilder``: append operators one by one, get a checked :class:`superopt.ir.graph.Graph`.

The operators' records give the types of a graph under construction, where they exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from superopt.formats.weight_data import RandomWeightData
from superopt.frontend.symbolic_tensor import Operand, SymbolicTensor
from superopt.ir.errors import UsageError
from superopt.ir.graph import ArrayWeightData, Attribute, Graph, Node, OpaqueAttribute, Value, Weight, constant, label
from superopt.ir.size_polynomial import Dim, SizePolynomial, sym
from superopt.ir.types import DType, TensorType
from superopt.ops.shape_inference import OpaqueNode, infer

__all__ = ["GraphBuilder"]


class GraphBuilder:
    """Makes a graph by appending nodes; :meth:`build` gives the immutable result.

    Names of nodes, weights and values are prefixed by the enclosing :meth:`scope`s and numbered per operator, so the
    same calls give the same graph.

    >>> b = GraphBuilder("block")
    >>> x = b.input("x", "float32", ("n", 3, 8, 8))
    >>> with b.scope("stem"):
    ...     y = b.op("Conv", x, b.weight("w", (16, 3, 3, 3), scale=0.2), strides=[2, 2], pads=[1, 1, 1, 1])
    >>> b.output(y.relu() * 0.5, "y", shape=("n", 16, 4, 4))
    >>> graph = b.build()
    >>> graph.nodes[0].name, graph.nodes[0].attributes["strides"], graph.weights[0].name
    ('stem/Conv', (2, 2), 'stem/w')
    """

    def __init__(self, name: str, *, opset: int = 21, opsets: Mapping[str, int] | None = None) -> None:
        """
        Args:
            name: the graph's name.
            opset: version of ONNX's own operator set.
            opsets: versions of further domains, by domain.
        """
        self.name = name
        self._opset = {"": opset, **(opsets or {})}
        self._inputs: list[Value] = []
        self._weights: dict[str, Weight] = {}
        self._nodes: list[Node] = []
        self._outputs: list[Value] = []
        self._renamed: dict[str, str] = {}
        self._types: dict[str, TensorType | None] = {}
        self._literals: dict[tuple[object, ...], SymbolicTensor] = {}
        self._names: set[str] = set()
        self._made: set[str] = set()
        self._counts: dict[str, int] = {}
        self._prefix = ""
        self._typed = 0  # nodes whose types have been inferred so far

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Names made inside start with ``name/``; scopes nest."""
        outer = self._prefix
        self._prefix = f"{outer}{name}/"
        try:
            yield
        finally:
            self._prefix = outer

    def input(self, name: str, dtype: str, shape: Sequence[int | str | Dim]) -> SymbolicTensor:
        """A graph input. A string in the shape is a symbolic size: the same string is the same size everywhere."""
        tensor_type = TensorType(_dtype(dtype, name), _dims(shape, name))
        self._inputs.append(Value(self._claim(name), tensor_type))
        return self._typed_tensor(name, tensor_type)

    def weight(
        self,
        name: str,
        shape: Sequence[int],
        *,
        scale: float = 1.0,
        offset: float = 0.0,
        distribution: str = "normal",
        dtype: str = "float32",
        seed: int | None = None,
    ) -> SymbolicTensor:
        """A weight of seeded random elements ``offset + scale * r``, drawn only when they are read.

        Args:
            name: within the current scope.
            shape: static sizes.
            scale: factor on the draws.
            offset: added to the draws.
            distribution: "normal" (r standard normal) or "uniform" (r in [0, 1)).
            dtype: ONNX element type by its name; draws are rounded to integers.
            seed: of the draws; by default the number of weights so far, so no two weights of a graph are equal.

        Raises:
            UsageError: unknown distribution or element type, a size that is no integer, or a name used before.
        """
        full = self._claim(self._prefix + name)
        if distribution not in _DISTRIBUTIONS:
            raise UsageError(f"distribution {distribution!r} is not one of {_DISTRIBUTIONS}", where=f"weight {full!r}")
        kind = _dtype(dtype, full)
        sizes = tuple(d for d in _dims(shape, full) if isinstance(d, int))
        if len(sizes) != len(shape):
            raise UsageError(f"a random weight needs static sizes, not {tuple(shape)}", where=f"weight {full!r}")
        made = len(self._weights) + 1 if seed is None else seed
        tensor_type = TensorType(kind, sizes)
        data = RandomWeightData(tensor_type, made, float(scale), float(offset), distribution)
        self._weights[full] = Weight(full, tensor_type, data)
        return self._typed_tensor(full, tensor_type)

    def shape_only(self, name: str, shape: Sequence[int], dtype: str = "float32") -> SymbolicTensor:
        """A weight without values: it can be costed and optimised, not run."""
        full = self._claim(self._prefix + name)
        kind = TensorType(_dtype(dtype, full), _dims(shape, full))
        self._weights[full] = Weight(full, kind, None)
        return self._typed_tensor(full, kind)

    def constant(self, value: np.ndarray | np.generic | Sequence[int] | float, name: str = "") -> SymbolicTensor:
        """A weight that holds ``value``; unnamed equal constants are made once.

        Python floats become float32 and Python integers int64; arrays keep their element type.
        """
        array = _array(value)
        key = (array.dtype, array.shape, array.tobytes())
        if not name and key in self._literals:
            return self._literals[key]
        full = self._claim(self._prefix + name) if name else self._fresh("constant", scoped=False)
        self._weights[full] = constant(full, array)
        tensor = self._typed_tensor(full, self._weights[full].type)
        if not name:
            self._literals[key] = tensor
        return tensor

    def operand(self, value: Operand, beside: SymbolicTensor | None = None) -> SymbolicTensor:
        """``value`` as a tensor of this graph; a bare number takes the element type of ``beside`` where it is known.

        Raises:
            UsageError: a tensor of another builder, or a value that is no tensor.
        """
        if isinstance(value, SymbolicTensor):
            if value.builder is not self:
                raise UsageError(
                    f"tensor {value.name!r} belongs to graph {value.builder.name!r}", where=f"graph {self.name!r}"
                )
            return value
        if isinstance(value, int | float) and not isinstance(value, np.generic):
            near = None if beside is None else self._types.get(beside.name)
            kind = DType.FLOAT32 if near is None else near.dtype
            return self.constant(np.array(value, kind.numpy))
        return self.constant(value)

    def op(
        self, op: str, *inputs: Operand | None, domain: str = "", name: str = "", **attributes: Any
    ) -> SymbolicTensor:
        """Append one operator with one output.

        What the operator cannot take is refused here, with the types.

        Args:
            op: ONNX operator name.
            inputs: tensors; ``None`` omits an optional one; arrays and lists become constants; a bare number takes the
                element type of the first tensor among the inputs.
            domain: operator domain, ``""`` for ONNX's own.
            name: of the node within the scope; by default the operator's name, numbered.
            attributes: ints, floats, strings, sequences of these, or arrays (tensor attributes).

        >>> b = GraphBuilder("g")
        >>> x = b.input("x", "float32", (4,))
        >>> b.op("Clip", x, 0.0, 6.0).name
        'Clip'
        """
        return self.ops(op, *inputs, outputs=1, domain=domain, name=name, **attributes)[0]

    def ops(
        self, op: str, *inputs: Operand | None, outputs: int, domain: str = "", name: str = "", **attributes: Any
    ) -> tuple[SymbolicTensor, ...]:
        """Append one operator with ``outputs`` outputs; otherwise as :meth:`op`."""
        beside = next((v for v in inputs if isinstance(v, SymbolicTensor)), None)
        reads = tuple("" if v is None else self.operand(v, beside).name for v in inputs)
        full = self._claim(self._prefix + name) if name else self._fresh(op)
        made = (full, *(self._claim(f"{full}.{i}") for i in range(1, outputs)))
        read = {key: _attribute(key, v, full) for key, v in attributes.items() if v is not None}
        node = Node(full, op, reads, made, read, domain=domain)
        self._types.update(_checked_types(node, self._types, self._weights, self._opset))
        self._nodes.append(node)
        if full not in self._types and op in _KEEPS_DTYPE and beside is not None:
            near = self._types.get(beside.name)
            self._types[full] = None if near is None else TensorType(near.dtype, None)
        self._made.update(made)
        return tuple(SymbolicTensor(self, n) for n in made)

    def output(
        self, tensor: SymbolicTensor, name: str = "", *, shape: Sequence[int | str | Dim] | None = None, dtype: str = ""
    ) -> None:
        """Declare a graph output, under ``name`` if given.

        Args:
            tensor: its value.
            name: the output's name; the tensor's own by default.
            shape: its sizes, when known better than by inference.
            dtype: its element type, with ``shape``; float32 by default.
        """
        value = self.operand(tensor)
        if name and name != value.name:
            if value.name in self._made and all(v.name != value.name for v in self._outputs):
                self._renamed[value.name] = self._claim(name)
            else:
                value = self.op("Identity", value, name=name if not self._prefix else "")
                if value.name != name:
                    self._renamed[value.name] = self._claim(name)
        declared = None if shape is None else TensorType(_dtype(dtype or "float32", name), _dims(shape, name))
        self._outputs.append(Value(value.name, declared))

    def gradients(
        self, outputs: SymbolicTensor | Sequence[SymbolicTensor], inputs: Sequence[SymbolicTensor]
    ) -> tuple[SymbolicTensor, ...]:
        """The gradient of the sum of the outputs' elements with respect to each input, as values of this graph.

        >>> b = GraphBuilder("g")
        >>> x = b.input("x", "float32", (3,))
        >>> (slope,) = b.gradients(x * x, [x])
        >>> str(slope.type)
        'float32[3]'
        """
        from superopt.frontend.autodiff.reverse_mode import seeded  # which builds on graphs, as this does

        of = [outputs] if isinstance(outputs, SymbolicTensor) else list(outputs)
        values = tuple(Value(self.operand(t).name, self.type_of(t)) for t in of)
        added = seeded(self._graph(values), [t.name for t in of], [self.operand(t).name for t in inputs])
        self._weights.update((w.name, w) for w in added.weights)
        self._nodes += added.nodes
        self._types.update(added.types)
        self._names.update(added.types)
        self._made.update(o for n in added.nodes for o in n.outputs)
        return tuple(SymbolicTensor(self, name) for name in added.gradients)

    def type_of(self, tensor: SymbolicTensor) -> TensorType | None:
        """Declared or inferred type of a value; ``None`` where no operator record covers what made it."""
        tensor_type = self._types.get(tensor.name)
        if (tensor_type is None or tensor_type.shape is None) and self._typed < len(self._nodes):
            self._types.update(infer(self._graph(outputs=())).types)
            self._typed = len(self._nodes)
        return self._types.get(tensor.name)

    def __repr__(self) -> str:
        return f"GraphBuilder({self.name!r}: {len(self._inputs)} inputs, {len(self._nodes)} nodes)"

    def _repr_svg_(self) -> str:
        """What has been built so far, as notebooks show it."""
        return self._graph(tuple(self._outputs))._repr_svg_()

    def build(self) -> Graph:
        """The graph, checked; output types that were not declared are inferred where the records cover them.

        Raises:
            UsageError: no output was declared.
            InvalidModel: what the graph's own check finds.
        """
        if not self._outputs:
            raise UsageError("no output was declared", where=f"graph {self.name!r}", hint="call output(tensor) first")
        outputs = tuple(
            v if v.type is not None else replace(v, type=self.type_of(SymbolicTensor(self, v.name)))
            for v in self._outputs
        )
        return _rename(self._graph(outputs), self._renamed).checked()

    def _graph(self, outputs: tuple[Value, ...]) -> Graph:
        weights = tuple(self._weights.values())
        return Graph(self.name, tuple(self._inputs), outputs, weights, tuple(self._nodes), dict(self._opset))

    def _typed_tensor(self, name: str, kind: TensorType) -> SymbolicTensor:
        self._types[name] = kind
        return SymbolicTensor(self, name)

    def _claim(self, name: str) -> str:
        if not name or name in self._names:
            raise UsageError(f"name {name!r} is {'used twice' if name else 'empty'}", where=f"graph {self.name!r}")
        self._names.add(name)
        return name

    def _fresh(self, stem: str, *, scoped: bool = True) -> str:
        base = self._prefix + stem if scoped else stem
        while True:
            count = self._counts.get(base, 0)
            self._counts[base] = count + 1
            name = f"{base}_{count}" if count else base
            if name not in self._names:
                return self._claim(name)


_DISTRIBUTIONS = ("normal", "uniform")

# Operators whose output has the element type of their first tensor: so that `x.relu() * 2` picks the type of x.
_KEEPS_DTYPE = frozenset({
    "Abs", "Add", "AveragePool", "BatchNormalization", "Clip", "Concat", "Conv", "ConvTranspose", "Cos", "Div",
    "Einsum", "Elu", "Erf", "Exp", "Expand", "Flatten", "Gather", "Gelu", "Gemm", "GlobalAveragePool", "HardSigmoid",
    "HardSwish", "Identity", "LayerNormalization", "LeakyRelu", "Log", "MatMul", "Max", "MaxPool", "Min", "Mul", "Neg",
    "PRelu", "Pad", "Pow", "Reciprocal", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Relu", "Reshape",
    "Resize", "Sigmoid", "Sin", "Slice", "Softmax", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tanh", "Tile",
    "Transpose", "Unsqueeze",
})  # fmt: skip


def _rename(graph: Graph, names: Mapping[str, str]) -> Graph:
    if not names:
        return graph

    def new(values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(v, v) for v in values)

    nodes = tuple(replace(n, inputs=new(n.inputs), outputs=new(n.outputs)) for n in graph.nodes)
    return replace(graph, nodes=nodes, outputs=tuple(replace(v, name=names.get(v.name, v.name)) for v in graph.outputs))


def _dtype(name: str, where: str) -> DType:
    try:
        return DType(name)
    except ValueError:
        raise UsageError(f"element type {name!r} is not one of {', '.join(DType)}", where=repr(where)) from None


def _dims(shape: Sequence[int | str | Dim], where: str) -> tuple[Dim, ...]:
    dims: list[Dim] = []
    for size in shape:
        if isinstance(size, str):
            dims.append(sym(size))
        elif isinstance(size, SizePolynomial):
            dims.append(size)
        elif int(size) < 0:
            raise UsageError(f"size {size} is negative", where=repr(where))
        else:
            dims.append(int(size))
    return tuple(dims)


def _array(value: np.ndarray | np.generic | Sequence[int] | float) -> np.ndarray:
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _attribute(key: str, value: object, where: str) -> Attribute:
    match value:
        case bool() | np.bool_():
            return int(value)
        case int() | bytes() | Weight() | OpaqueAttribute():
            return value
        case float() | np.floating():
            return float(np.float32(value))  # what ONNX stores
        case str():
            return value.encode()
        case np.ndarray():
            return Weight(key, TensorType(DType.of(value.dtype), tuple(value.shape)), ArrayWeightData(value))
        case np.integer():
            return int(value)
        case list() | tuple() | range():
            return _sequence(key, [_attribute(key, v, where) for v in value], where)
    raise UsageError(f"attribute {key} cannot hold a {type(value).__name__}", where=f"node {where!r}")


def _sequence(key: str, items: list[Attribute], where: str) -> Attribute:
    if items and all(isinstance(v, int) for v in items):
        return tuple(v for v in items if isinstance(v, int))
    if items and all(isinstance(v, int | float) for v in items):
        return tuple(float(v) for v in items if isinstance(v, int | float))
    if items and all(isinstance(v, bytes) for v in items):
        return tuple(v for v in items if isinstance(v, bytes))
    raise UsageError(
        f"attribute {key} needs a non-empty list of ints, of floats or of strings",
        where=f"node {where!r}",
        hint="leave the attribute out for an empty list",
    )


def _checked_types(
    node: Node, types: Mapping[str, TensorType | None], weights: Mapping[str, Weight], opset: Mapping[str, int]
) -> dict[str, TensorType]:
    """Types of a node's outputs from those of its inputs, where these are known; none where they are not.

    Raises:
        UsageError: no runtime could run the node on such inputs.
    """
    kinds = {name: types.get(name) for name in node.inputs if name}
    if any(kind is None or kind.shape is None for kind in kinds.values()):
        return {}
    fed = tuple(Value(name, kind) for name, kind in kinds.items() if name not in weights)
    held = tuple(weights[name] for name in kinds if name in weights)
    outputs = tuple(Value(name, None) for name in node.outputs)
    typing = infer(Graph("", fed, outputs, held, (node,), opset))
    (typed_node,) = typing.nodes
    if isinstance(typed_node, OpaqueNode) and typed_node.contradiction:
        listing = ", ".join(str(kind) for kind in kinds.values())
        raise UsageError(f"it cannot take {listing}: {typed_node.reason}", where=label(node))
    return {name: kind for name in node.outputs if (kind := typing.types.get(name)) is not None}
