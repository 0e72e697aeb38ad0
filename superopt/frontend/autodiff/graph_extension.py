"""A graph that grows: expressions over its values become nodes, each computation once.

What an expression asks for and the graph already has (the same operator with the same attributes on the same values) is
not made again: so the derivative of Tanh reads the Tanh of the forward pass. What depends on nothing is computed now.

Sizes that are known only when a model runs are computed there, from the shapes of its inputs. An operator's record
writes lists of sizes (the shape of Reshape, the ends of Slice …) as literal inputs, and only
known ones. So a list that is not known is written with numbers that stand for the sizes, and the literal that holds
them is replaced by a value that is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from superopt.ir.errors import InvalidModel, Unsupported, UsageError, printable
from superopt.ir.graph import Graph, Node, Value, Weight, constant, label
from superopt.ir.size_polynomial import Dim, FloorQuotient, SizePolynomial, substitute, symbols, value_at
from superopt.ir.terms import AttributeValue, OperatorTerm, OutputTerm, Term, VariableTerm, postorder
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.derivative.typed_terms import TypedTerm, variable
from superopt.ops.onnx_node_conversion import dtype_code
from superopt.ops.operator_definition import OnnxNodeForm, Operator, UnsupportedNodeForm
from superopt.ops.shape_inference import CanonicalNode, OpaqueNode, infer
from superopt.runtime.reference import evaluate_application

__all__ = ["GraphExtension", "at_sizes"]

FOLDED = 2**16  # elements of a constant that is computed now and kept

STANDINS = (1_000_003, 1_000_033, 1_000_037, 1_000_039, 1_000_081, 1_000_099, 1_000_117, 1_000_121)
NodeWriter = Callable[[str, Sequence[str], Mapping[str, int]], str]


def open_symbols(attributes: Mapping[str, AttributeValue]) -> frozenset[str]:
    """Names of sizes in attributes."""
    found: frozenset[str] = frozenset()
    for value in attributes.values():
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, SizePolynomial):
                found |= symbols(part)
    return found


class RuntimeSizes:
    """Values for sizes that are not known.

    Args:
        sources: types by name, of values whose shapes may be asked for.
        node: appends a node (operator, inputs, integer attributes) and gives its output.
        literal: gives the name of a constant.
    """

    def __init__(
        self, sources: Mapping[str, TensorType | None], node: NodeWriter, literal: Callable[[np.ndarray], str]
    ) -> None:
        self.sources, self.node, self.literal = sources, node, literal
        self.known: dict[Dim, str] = {}

    def written(
        self,
        record: Operator,
        attributes: Mapping[str, AttributeValue],
        kinds: Sequence[TensorType | None],
        opset: int,
    ) -> tuple[OnnxNodeForm, dict[int, str]]:
        """A node form, and for each literal that is computed, by place, the value in its stead.

        Raises:
            UnsupportedNodeForm: a size is part of an attribute of the node, which cannot be computed.
        """
        names = sorted(open_symbols(attributes))
        if len(names) > len(STANDINS):
            raise UnsupportedNodeForm("it depends on too many sizes that are not known")
        binding = dict(zip(names, STANDINS, strict=False))
        fixed = {n: _put(v, binding) for n, v in attributes.items()}
        lists = {
            _listed(fixed[n]): [d for d in _listed(v) if isinstance(d, int | SizePolynomial)]
            for n, v in attributes.items()
            if open_symbols({n: v})
        }
        form = record.write(fixed, [None if k is None else _at(k, binding) for k in kinds], opset)
        computed: dict[int, str] = {}
        for position, array in form.literals.items():
            dims = lists.get(tuple(array.reshape(-1).tolist()))
            if dims is not None and array.dtype == np.int64:
                vector = self.vector(dims)
                computed[position] = vector if array.ndim else self.node("Squeeze", (vector,), {})
        held = {_listed(v) for v in fixed.values()} & lists.keys()
        written = {tuple(a.reshape(-1).tolist()) for a in form.literals.values()}
        if not held <= written:
            raise UnsupportedNodeForm(f"{', '.join(names)} must be known")
        return form, computed

    def vector(self, dims: Sequence[Dim]) -> str:
        """A list of sizes as an int64 vector."""
        if all(isinstance(d, int) for d in dims):
            return self.literal(np.array(dims, np.int64))
        parts = [self.size(d) for d in dims]
        return parts[0] if len(parts) == 1 else self.node("Concat", parts, {"axis": 0})

    def size(self, dim: Dim) -> str:
        """A size as an int64 vector of one element.

        Raises:
            UnsupportedNodeForm: no value's shape says it.
        """
        if isinstance(dim, int):
            return self.literal(np.array([dim], np.int64))
        if dim not in self.known:
            self.known[dim] = self._computed(dim)
        return self.known[dim]

    def _computed(self, dim: SizePolynomial) -> str:
        for name, kind in self.sources.items():
            shape = () if kind is None or kind.shape is None else kind.shape
            for axis, size in enumerate(shape):
                if size == dim:
                    shown = self.node("Shape", (name,), {})
                    return self.node("Gather", (shown, self.literal(np.array([axis], np.int64))), {"axis": 0})
        if len(dim.terms) == 1 and dim.terms[0][1] == 1 and len(dim.terms[0][0]) == 1:
            (atom,) = dim.terms[0][0]
            if not isinstance(atom, FloorQuotient):
                raise UnsupportedNodeForm(f"the size {dim} is that of no input")
            return self.node("Div", (self.size(atom.numerator), self.size(atom.denominator)), {})
        total = ""
        for monomial, coefficient in dim.terms:
            factors = [self.size(SizePolynomial((((atom,), 1),))) for atom in monomial]
            if coefficient != 1 or not factors:
                factors.append(self.size(coefficient))
            product = factors[0]
            for factor in factors[1:]:
                product = self.node("Mul", (product, factor), {})
            total = self.node("Add", (total, product), {}) if total else product
        return total


def _listed(value: AttributeValue) -> tuple[AttributeValue, ...]:
    return value if isinstance(value, tuple) else (value,)


def _put(value: AttributeValue, binding: Mapping[str, int]) -> AttributeValue:
    if isinstance(value, tuple):
        return tuple(_put(v, binding) for v in value)
    return value_at(value, binding) if isinstance(value, SizePolynomial) else value


def _at(kind: TensorType, binding: Mapping[str, int]) -> TensorType:
    shape = kind.shape
    return kind if shape is None else replace(kind, shape=tuple(substitute(d, binding) for d in shape))


def at_sizes(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """The graph with symbolic dimensions fixed, wherever it names them."""
    if not sizes:
        return graph

    def fixed(values: Sequence[Value]) -> tuple[Value, ...]:
        return tuple(replace(v, type=at(v.type)) if isinstance(v.type, TensorType) else v for v in values)

    def at(kind: TensorType) -> TensorType:
        return kind if kind.shape is None else TensorType(kind.dtype, tuple(substitute(d, sizes) for d in kind.shape))

    return replace(graph, inputs=fixed(graph.inputs), outputs=fixed(graph.outputs), values=fixed(graph.values))


@dataclass(frozen=True)
class NodeExpression:
    """A node of the graph as its record reads it, with the operands as expressions."""

    node: Node
    applied: CanonicalNode | OpaqueNode


class GraphExtension:
    """A graph and what is added to it.

    Attributes:
        steps: the nodes of the graph that was given, in order.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        typing = infer(graph)
        self.opset = graph.onnx_version or 1
        self.types: dict[str, TensorType | None] = dict(typing.types)
        self.steps = [NodeExpression(n, a) for n, a in zip(graph.nodes, typing.nodes, strict=True)]
        self.nodes: list[Node] = []
        self.weights: dict[str, Weight] = {}
        self.inputs: list[Value] = []
        self._names: set[str] = {v.name for v in graph.inputs} | {w.name for w in graph.weights}
        self._names |= {o for n in graph.nodes for o in n.outputs}
        self._node_names = {n.name for n in graph.nodes}
        self._made: dict[Term, str] = {}
        self._arrays: dict[str, np.ndarray] = {}
        self._counts: dict[str, int] = {}
        sources = {v.name: self.types.get(v.name) for v in graph.inputs}
        sources |= {o: self.types.get(o) for n in graph.nodes for o in n.outputs}
        self.sizes = RuntimeSizes(sources, self._node, lambda array: self._literal(array, "size/constant").name)
        for step in self.steps:
            if isinstance(step.applied, CanonicalNode):
                self._know(step.node, step.applied)

    def _know(self, node: Node, applied: CanonicalNode) -> None:
        args = tuple(None if a is None else VariableTerm(a) for a in applied.args)
        term = OperatorTerm(applied.operator.name, args, tuple(sorted(applied.attributes.items())))
        if len(node.outputs) == 1 and not applied.operator.outputs[-1].endswith("*"):
            self._made.setdefault(term, node.outputs[0])
        for position, name in enumerate(node.outputs):
            self._made.setdefault(OutputTerm(term, position), name)

    # ── reading

    def expr(self, name: str) -> TypedTerm:
        """A value of the graph.

        Raises:
            Unsupported: its rank is not known.
        """
        kind = self.types.get(name)
        if kind is None or kind.shape is None:
            raise Unsupported(
                "its type is not known",
                where=f"value {printable(name)!r}",
                hint="declare it in the model (value_info)",
            )
        return variable(name, kind)

    def operands(self, applied: CanonicalNode) -> tuple[TypedTerm | None, ...]:
        """A node's operands in canonical order."""
        return tuple(None if a is None else self.expr(a) for a in applied.args)

    # ── writing

    def input(self, stem: str, kind: TensorType) -> TypedTerm:
        """A new input of the graph."""
        name = self.fresh(stem)
        self.inputs.append(Value(name, kind))
        self.types[name] = kind
        return variable(name, kind)

    def emit(self, expr: TypedTerm, stem: str = "gradient") -> TypedTerm:
        """The expression's value as a variable; what is not there yet is added.

        Raises:
            Unsupported: an operator cannot be written at the model's opset, or a size must be known and is not.
        """
        for term in postorder(expr.term):
            if not isinstance(term, VariableTerm) and term not in self._made:
                if isinstance(term, OutputTerm):
                    self._projected(term)
                else:
                    self._apply(term, stem)
        return replace(expr, term=VariableTerm(self._name(expr.term)))

    def _name(self, term: Term) -> str:
        return term.name if isinstance(term, VariableTerm) else self._made[term]

    def _projected(self, term: OutputTerm) -> None:
        raise InvalidModel(f"{term.term.op} has no output {term.index}", where=str(term)[:80])

    def _apply(self, term: OperatorTerm, stem: str) -> None:
        record = REGISTRY[term.op]
        names = [None if a is None else self._name(a) for a in term.args]
        kinds = [None if n is None else self.types[n] for n in names]
        attributes = dict(term.attributes)
        _, types = record.apply(kinds, attributes)
        if len(types) == 1 and self._folded(term, names, types[0], stem):
            return
        if term.op == "ConstantOfShape" and isinstance(size := attributes["value"], SizePolynomial):
            self._made[term] = self._number(size, types[0])
            return
        computed: dict[int, str] = {}
        try:
            try:
                form = record.write(attributes, kinds, self.opset)
            except UnsupportedNodeForm:
                if not open_symbols(attributes):
                    raise
                form, computed = self.sizes.written(record, attributes, kinds, self.opset)
        except UnsupportedNodeForm as reason:
            raise Unsupported(
                f"its derivative needs {term.op}, which cannot be written: {reason}",
                hint="fix the sizes that are not known (--dim N=8), or take a newer opset",
            ) from None
        outputs = tuple(self.fresh(f"{stem}/{term.op}") for _ in types)
        literals = {
            p: computed[p] if p in computed else self._literal(a, f"{stem}/{term.op}").name
            for p, a in form.literals.items()
        }
        node = Node(outputs[0], record.name, form.names(names, literals), outputs, dict(form.attributes), record.domain)
        self.nodes.append(node)
        for position, (output, kind) in enumerate(zip(outputs, types, strict=True)):
            self.types[output] = kind
            self._made[OutputTerm(term, position)] = output
        if len(types) == 1:
            self._made[term] = outputs[0]

    def _number(self, size: SizePolynomial, kind: TensorType) -> str:
        """A size that is not known as a number of rank 0."""
        whole = self._node("Squeeze", (self.sizes.size(size),), {})
        return self._node("Cast", (whole,), {"to": dtype_code(kind.dtype.value)}, kind)

    def _node(
        self, op: str, inputs: Sequence[str], attributes: Mapping[str, int], kind: TensorType | None = None
    ) -> str:
        """A node of an operator on sizes."""
        output = self.fresh(f"size/{op}")
        self.nodes.append(Node(output, op, tuple(inputs), (output,), dict(attributes)))
        if kind is not None:
            self.types[output] = kind
        return output

    def _folded(self, term: OperatorTerm, names: Sequence[str | None], kind: TensorType, stem: str) -> bool:
        """Compute what depends on nothing, if it is small: in float64, rounded once."""
        count = kind.elements
        if not isinstance(count, int) or count > FOLDED or any(n is not None and n not in self._arrays for n in names):
            return False
        if (
            not kind.is_static
            or open_symbols(dict(term.attributes))
            or (count > 1 and term.op in ("ConstantOfShape", "Range"))
        ):
            return False  # as short as a node
        arrays = [None if n is None else self._arrays[n] for n in names]
        kinds = [None if n is None else self.types[n] for n in names]
        (array,) = evaluate_application(REGISTRY[term.op], dict(term.attributes), arrays, kinds, cast=False)
        assert array is not None
        weight = self._literal(array.astype(kind.dtype.numpy), f"{stem}/constant")
        self._arrays[weight.name] = array
        self._made[term] = weight.name
        return True

    def _literal(self, array: np.ndarray, stem: str) -> Weight:
        key = f"{array.dtype}{array.shape}{array.tobytes()!r}"
        if key not in self.weights:
            weight = self.weights[key] = constant(self.fresh(stem), array)
            self.types[weight.name] = weight.type
        return self.weights[key]

    def free(self, stem: str) -> str:
        """``stem``, or ``stem_1`` … where the graph has a value of that name; it is not taken by this."""
        name, count = stem, 0
        while name in self._names:
            count += 1
            name = f"{stem}_{count}"
        return name

    def fresh(self, stem: str) -> str:
        """A name that nothing has, ``stem`` or ``stem_1`` …"""
        while True:
            count = self._counts.get(stem, 0)
            self._counts[stem] = count + 1
            name = f"{stem}_{count}" if count else stem
            if name not in self._names and name not in self._node_names:
                self._names.add(name)
                return name

    # ── the result

    def named(self, expr: TypedTerm, name: str, stem: str = "gradient") -> Value:
        """A value under a name of its own, to be an output."""
        expression = self.emit(expr, stem)
        source = str(expression.term)
        self._claim(name)
        self.nodes.append(Node(name, "Identity", (source,), (name,)))
        self.types[name] = expr.type
        return Value(name, expr.type)

    def _claim(self, name: str) -> None:
        if name in self._names:
            raise UsageError(f"the model has a value named {printable(name)!r} already")
        self._names.add(name)

    def result(self, outputs: Iterable[Value], *, name: str = "", inputs: Sequence[Value] | None = None) -> Graph:
        """The graph with these outputs, without what they do not need.

        Args:
            outputs: of values of the graph.
            name: the graph's; as it was by default.
            inputs: all inputs; by default those that the graph had and those that were added.
        """
        wanted = tuple(outputs)
        new_nodes = {o: n for n in (*self.graph.nodes, *self.nodes) for o in n.outputs if o}
        needed: set[str] = set()
        stack = [v.name for v in wanted]
        while stack:
            value = stack.pop()
            if value not in needed:
                needed.add(value)
                stack += new_nodes[value].reads if value in new_nodes else ()
        nodes, renamed = _unnamed((*self.graph.nodes, *self.nodes), {v.name for v in wanted}, needed)
        fed = {v.name for v in self.graph.inputs}
        weights = [w for w in (*self.graph.weights, *self.weights.values()) if w.name in needed or w.name in fed]
        graph = replace(
            self.graph, name=name or self.graph.name, nodes=nodes, outputs=wanted, weights=tuple(weights),
            inputs=(*self.graph.inputs, *self.inputs) if inputs is None else tuple(inputs),
            values=tuple(v for v in self.graph.values if v.name in needed and v.name not in renamed),
        )  # fmt: skip
        return graph.checked()


def _unnamed(nodes: Sequence[Node], outputs: set[str], needed: set[str]) -> tuple[tuple[Node, ...], set[str]]:
    """Needed nodes; an Identity that only gives a new value of its own an output's name gives it to its maker."""
    kept_nodes = [n for n in nodes if any(o in needed for o in n.outputs)]
    makers = {o for n in kept_nodes for o in n.outputs}
    renames: dict[str, str] = {}
    gone: set[str] = set()
    for node in kept_nodes:
        own = node.op == "Identity" and node.name == node.outputs[0] and node.outputs[0] in outputs
        source = node.inputs[0] if own else ""
        if own and source in makers and source not in outputs and source not in renames:
            renames[source] = node.outputs[0]
            gone.add(node.name)

    def new(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(renames.get(n, n) for n in names)

    left = [n for n in kept_nodes if n.name not in gone]
    if any(name in renames for node in left for name in node.captures):
        return tuple(kept_nodes), set()
    return tuple(replace(n, inputs=new(n.inputs), outputs=new(n.outputs)) for n in left), set(renames)


def where(node: Node) -> str:
    """How messages name a node."""
    return label(node)
