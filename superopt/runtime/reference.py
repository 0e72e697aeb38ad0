"""The reference interpreter: evaluates a graph in float64 from the meanings of its operators.

The bodies of If, Loop and Scan are run in float64, turn by turn (ONNX, "Operators").
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from superopt.formats.control_flow_bodies import CONTROL_FLOW, ControlFlowBody, bodies, places_read
from superopt.ir.errors import OutOfTime, ResourceLimit, Unsupported, UsageError, printable
from superopt.ir.graph import Graph, Node, label
from superopt.ir.size_polynomial import SizePolynomial, substitute
from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType, OpaqueType, TensorType, ValueType
from superopt.ops.operator_definition import Operator
from superopt.ops.operator_semantics import (
    ElementRead,
    IllTypedOperator,
    ScalarConditional,
    ScalarConstant,
    ScalarExpression,
    UndeterminedShapes,
)
from superopt.ops.shape_inference import CanonicalNode, InferredTypes, infer
from superopt.runtime.comprehension_evaluation import FLOAT64, evaluate
from superopt.runtime.node_execution import run_node

__all__ = ["at_dtype", "bind_sizes", "evaluate_application", "run", "wide"]

MOST_TURNS = 1000  # of a loop: Python takes a millisecond for each, and a condition of the data may never end one
_KEPT = 1 << 24  # bytes of a weight whose wide elements are kept between nodes
Run = Callable[[Graph, Mapping[str, np.ndarray]], Sequence[np.ndarray]]


def wide(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Elements as the reference computes with them: reals in float64, integers and booleans in int64.

    Values of uint64 from 2⁶³ wrap around. Other types stay as they are.
    """
    if dtype.is_float:
        return array.astype(np.float64, copy=False)
    return array.astype(np.int64) if dtype.is_integer or dtype is DType.BOOL else array


def at_dtype(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Elements rounded to an element type: integers wrap around, reals are truncated to integers, booleans are ≠ 0."""
    if dtype is DType.BOOL:
        return array.astype(bool)
    if dtype.is_integer and array.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            array = array.astype(np.int64)
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(dtype.numpy, copy=False)


def evaluate_application(
    operator: Operator,
    attributes: Mapping[str, AttributeValue],
    arrays: Sequence[np.ndarray | None],
    types: Sequence[TensorType | None],
    *,
    cast: bool = True,
    wanted: Iterable[int] | None = None,
) -> tuple[np.ndarray | None, ...]:
    """What an operator makes of arrays, computed in float64 (reals) and int64 (integers and booleans).

    Args:
        operator: its record.
        attributes: canonical attributes, all known.
        arrays: the arguments; ``None`` for an absent one.
        types: their element types; the shapes are those of the arrays.
        cast: give reals in the declared element type instead of float64. Integers and booleans come in int64
            without it, wrapped around to the declared type.
        wanted: positions of the outputs to compute (all by default); the others are ``None``.

    Raises:
        IllTypedOperator: the operator does not accept these types or attributes.
    """
    actual = [
        None if a is None or t is None else TensorType(t.dtype, tuple(map(int, a.shape)))
        for a, t in zip(arrays, types, strict=True)
    ]
    meaning, made = operator.apply(actual, attributes)
    moving = all(_only_moves(c.body) for c in meaning.outputs)  # a big table that is gathered from stays as it is
    operands = [
        a if a is None or t is None or (moving and a.dtype.kind == "f") else wide(a, t.dtype)
        for a, t in zip(arrays, actual, strict=True)
    ]
    operands += [None] * (len(operator.inputs) - len(operands))
    chosen = set(range(len(made)) if wanted is None else wanted)
    results: list[np.ndarray | None] = []
    for position, (comprehension, kind) in enumerate(zip(meaning.outputs, made, strict=True)):
        if position not in chosen:
            results.append(None)
            continue
        result = np.asarray(evaluate(comprehension, operands, FLOAT64, {}))
        if kind.dtype.is_float and not cast:
            results.append(result.astype(np.float64, copy=False))
        else:
            rounded = at_dtype(result, kind.dtype)
            results.append(rounded if cast else wide(rounded, kind.dtype))
    return tuple(results)


def _only_moves(body: ScalarExpression) -> bool:
    """The element is read or constant, never computed."""
    waiting = [body]
    while waiting:
        match waiting.pop():
            case ElementRead() | ScalarConstant():
                pass
            case ScalarConditional(_, then, otherwise):
                waiting += [then, otherwise]
            case _:
                return False
    return True


def bind_sizes(types: Iterable[tuple[ValueType | None, np.ndarray]], sizes: dict[str, int]) -> None:
    """Add to ``sizes`` the names of dimensions that arrays give a size to."""
    for kind, array in types:
        if not isinstance(kind, TensorType) or kind.shape is None or len(kind.shape) != array.ndim:
            continue
        for dim, size in zip(kind.shape, array.shape, strict=True):
            if isinstance(dim, SizePolynomial) and len(dim.terms) == 1:
                monomial, coefficient = dim.terms[0]
                if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], str):
                    sizes.setdefault(monomial[0], int(size))


def run(
    graph: Graph,
    feeds: Mapping[str, np.ndarray],
    *,
    outputs: Sequence[str] | None = None,
    sizes: Mapping[str, int] | None = None,
    deadline: float = float("inf"),
    opaque: Callable[[np.ndarray], np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Run a graph in float64, from the meanings; nodes without one run in ONNX Runtime at their own types.

    A weight is read when a node needs it; a small one that several nodes need is widened once, and kept as a value is,
    until its last use.

    Args:
        graph: the model, in a valid order.
        feeds: an array per input; one for a weight overrides it, and gives a shape-only weight its values.
        outputs: names of the wanted values (any, not only outputs); all outputs by default.
        sizes: symbolic dimensions that the feeds do not bind.
        deadline: ``time.monotonic`` value after which no further node is run.
        opaque: what is made of the reals that a node without a meaning gives, before they are read.

    Returns:
        Reals in float64, everything else at its own type.

    Raises:
        UsageError: an input is missing.
        Unsupported: a node has no meaning and ONNX Runtime cannot run it; names the node.
        OutOfTime: the deadline has passed.
    """
    wanted = list(outputs) if outputs is not None else [v.name for v in graph.outputs]
    bound = dict(sizes or {})
    feeds = {name: _fed(value) for name, value in feeds.items()}
    bind_sizes(((v.type, feeds[v.name]) for v in graph.inputs if v.name in feeds), bound)
    state = _Run(graph, feeds, infer(graph, bound), bound, {}, opaque, deadline)
    needed = _needed(graph, wanted)
    uses: dict[str, int] = {}
    for position in needed:
        for name in set(graph.nodes[position].reads):
            uses[name] = uses.get(name, 0) + 1
    for name in wanted:
        uses[name] = uses.get(name, 0) + 1
    state.shared = frozenset(name for name, count in uses.items() if count > 1)
    for position in needed:
        if time.monotonic() > deadline:
            raise OutOfTime("the time ran out while the reference ran")
        node = graph.nodes[position]
        state.step(position, {o for o in node.outputs if o in uses})
        for name in set(node.reads):
            uses[name] -= 1
            if not uses[name]:
                state.values.pop(name, None)
    return {name: state.result(name) for name in wanted}


def _fed(value: np.ndarray | Sequence[np.ndarray]) -> np.ndarray:
    """An input as an array; a sequence as an object array of its items."""
    if not isinstance(value, list | tuple):
        return np.asarray(value)
    items = np.empty(len(value), dtype=object)
    items[:] = value
    return items


def _needed(graph: Graph, wanted: Sequence[str]) -> list[int]:
    """Positions of the nodes that the wanted values depend on, in order."""
    live = set(wanted)
    positions: list[int] = []
    for position in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[position]
        if live.intersection(node.outputs) - {""}:
            positions.append(position)
            live.update(node.reads)
    return positions[::-1]


@dataclass
class _Run:
    graph: Graph
    feeds: Mapping[str, np.ndarray]
    typing: InferredTypes
    bound: dict[str, int]
    values: dict[str, tuple[np.ndarray, DType | None]]  # computed values: wide elements, and their own element type
    moved: Callable[[np.ndarray], np.ndarray] | None
    deadline: float = float("inf")
    shared: frozenset[str] = frozenset()  # names that several nodes read

    @cached_property
    def bodies(self) -> Mapping[int, Mapping[str, ControlFlowBody]]:
        """Bodies of control flow, by the identity of their nodes and by attribute; of those that all can be read."""
        found = tuple(bodies(self.graph, self.typing))
        read = places_read(self.graph, found)
        held: dict[int, dict[str, ControlFlowBody]] = {}
        for body in found:
            if body.place in read:
                held.setdefault(id(self.graph.nodes[body.place]), {})[body.attribute] = body
        return held

    def value(self, name: str) -> tuple[np.ndarray, DType | None]:
        """Elements (those of inputs and weights as they are given) and element type; ``None`` when it is no tensor."""
        found = self.values.get(name)
        if found is not None:
            return found
        weight = self.graph.weight.get(name)
        if name in self.feeds:
            array = self.feeds[name]
            declared = self.graph.declared.get(name)
            dtype = declared.dtype if isinstance(declared, TensorType) else None
        elif weight is not None and weight.data is not None:
            array, dtype = weight.data.numpy(), weight.type.dtype
            if dtype.is_float and name in self.shared and array.nbytes <= _KEPT:
                array = wide(array, dtype)
                self.values[name] = (array, dtype)
        else:
            raise UsageError(f"input {printable(name)!r} was not given")
        return array, dtype

    def result(self, name: str) -> np.ndarray:
        array, dtype = self.value(name)
        return array if dtype is None else wide(array, dtype) if dtype.is_float else at_dtype(array, dtype)

    def step(self, position: int, outputs: set[str]) -> None:
        """Run a node and keep these outputs."""
        node, how = self.graph.nodes[position], self.typing.nodes[position]
        made: list[tuple[str, np.ndarray, DType | None]]
        try:
            made = self.applied(node, how, outputs) if isinstance(how, CanonicalNode) else self.opaque(node, outputs)
        except IllTypedOperator:
            # What the types promised did not come true (a size known only at run time): the runtime decides.
            made = self.opaque(node, outputs)
        except MemoryError as error:
            raise ResourceLimit("the reference ran out of memory", where=label(node)) from error
        for name, array, dtype in made:
            self.values[name] = (array, dtype)
            bind_sizes([(self.typing.types.get(name), array)], self.bound)

    def applied(self, node: Node, how: CanonicalNode, outputs: set[str]) -> list[tuple[str, np.ndarray, DType | None]]:
        arguments = [None if name is None else self.value(name) for name in how.args]
        arrays = [None if a is None else a[0] for a in arguments]
        types = [None if a is None or a[1] is None else TensorType(a[1], tuple(a[0].shape)) for a in arguments]
        attributes = {key: self.known(value) for key, value in how.attributes.items()}
        wanted = [p for p, name in enumerate(node.outputs) if name in outputs]
        results = evaluate_application(how.operator, attributes, arrays, types, cast=False, wanted=wanted)
        made = how.operator.apply(types, attributes)[1]
        return [(node.outputs[p], r, made[p].dtype) for p in wanted if (r := results[p]) is not None]

    def known(self, value: AttributeValue) -> AttributeValue:
        """An attribute with its sizes put in."""
        if isinstance(value, tuple):
            return tuple(self.known(v) for v in value)
        known = substitute(value, self.bound) if isinstance(value, SizePolynomial) else value
        if isinstance(known, SizePolynomial):
            raise UndeterminedShapes(f"the size {known} is not known")
        return known

    def control_flow(self, node: Node, outputs: set[str]) -> list[tuple[str, np.ndarray, DType | None]] | None:
        """What the bodies of a node make; ``None`` where it has none that are understood."""
        held = self.bodies.get(id(node)) if node.op in CONTROL_FLOW else None
        if held is None:
            return None

        def run_body(graph: Graph, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
            made = run(graph, feeds, sizes=self.bound, deadline=self.deadline, opaque=self.moved)
            return [made[v.name] for v in graph.outputs]

        results = run_bodies(node, held, lambda name: self.value(name)[0], run_body)
        if results is None:
            return None
        made: list[tuple[str, np.ndarray, DType | None]] = []
        for name, array in zip(node.outputs, results, strict=False):
            kind = self.typing.types.get(name)
            if name in outputs:
                dtype = kind.dtype if isinstance(kind, TensorType) else _dtype(array)
                made.append((name, array if dtype is None else wide(array, dtype), dtype))
        return made

    def opaque(self, node: Node, outputs: set[str]) -> list[tuple[str, np.ndarray, DType | None]]:
        if (computed := self.control_flow(node, outputs)) is not None:
            return computed
        held = {name: self.value(name) for name in dict.fromkeys(node.reads)}
        arrays = {n: a if d is None else at_dtype(a, d) for n, (a, d) in held.items()}
        types: dict[str, ValueType | None] = {**self.typing.types, **self.graph.declared}
        for name, (array, dtype) in held.items():
            if dtype is not None:
                types[name] = TensorType(dtype, tuple(map(int, array.shape)))
        found = run_node(self.graph, node, arrays, types)
        made: list[tuple[str, np.ndarray, DType | None]] = []
        for name in outputs:
            array = found[name]
            dtype = None if isinstance(types.get(name), OpaqueType) else _dtype(array)
            elements = array if dtype is None else wide(array, dtype)
            if self.moved is not None and dtype is not None and dtype.is_float:
                elements = self.moved(elements)
            made.append((name, elements, dtype))
        return made


def _dtype(array: np.ndarray) -> DType | None:
    """The element type of a run's result; strings are known by their first element."""
    if array.dtype.kind in "OUS":
        first = array.reshape(-1)[:1].tolist()
        return DType.STRING if not first or isinstance(first[0], str | bytes) else None
    try:
        return DType.of(array.dtype)
    except KeyError:
        raise Unsupported(f"a result has the element type {array.dtype}, which ONNX does not have") from None


def run_bodies(
    node: Node, bodies: Mapping[str, ControlFlowBody], value: Callable[[str], np.ndarray], run: Run
) -> list[np.ndarray] | None:  # fmt: skip
    """The outputs of a node with bodies; ``None`` where they do not follow from its bodies alone.

    Args:
        node: an If, Loop or Scan.
        bodies: by the attributes that hold them.
        value: elements of a value around the node.
        run: runs a graph on arrays, and gives its outputs in order.

    Raises:
        ResourceLimit: a loop makes more than :data:`MOST_TURNS`.
    """
    if node.op == "If":
        taken = bodies["then_branch" if bool(value(node.inputs[0]).reshape(-1)[0]) else "else_branch"]
        return list(run(taken.graph, _captured(taken, value)))
    body = bodies["body"]
    return _loop(node, body, value, run) if node.op == "Loop" else _scan(node, body, value, run)


def _captured(body: ControlFlowBody, value: Callable[[str], np.ndarray]) -> dict[str, np.ndarray]:
    return {v.name: value(v.name) for v in body.graph.inputs[body.own :]}


def _loop(node: Node, body: ControlFlowBody, value: Callable[[str], np.ndarray], run: Run) -> list[np.ndarray] | None:
    given = [value(n) if n else None for n in node.inputs]
    most = None if given[0] is None else int(given[0].reshape(-1)[0])
    going = True if given[1] is None else bool(given[1].reshape(-1)[0])
    carried = [a for a in given[2:] if a is not None]
    names = [v.name for v in body.graph.inputs[: body.own]]
    around = _captured(body, value)
    collected: list[list[np.ndarray]] = [[] for _ in node.outputs[len(carried) :]]
    turn = 0
    while going and (most is None or turn < most):
        if turn == MOST_TURNS:
            raise ResourceLimit(f"a loop makes more than {MOST_TURNS} turns", where=label(node))
        own = [_like(body, 0, np.int64(turn)), _like(body, 1, np.bool_(going)), *carried]
        made = run(body.graph, {**around, **dict(zip(names, own, strict=True))})
        going = bool(made[0].reshape(-1)[0])
        carried = list(made[1 : 1 + len(carried)])
        for items, item in zip(collected, made[1 + len(carried) :], strict=False):
            items.append(item)
        turn += 1
    if collected and not turn:
        return None  # the shape of what no turn made
    return [*carried, *(np.stack(items) for items in collected)]


def _like(body: ControlFlowBody, position: int, number: np.generic) -> np.ndarray:
    """A steering input of a Loop's body, in the shape that the body declares."""
    shape = getattr(body.graph.inputs[position].type, "shape", ()) or ()
    return np.full(tuple(int(d) for d in shape), number)


def _scan(node: Node, body: ControlFlowBody, value: Callable[[str], np.ndarray], run: Run) -> list[np.ndarray] | None:
    scanned = int(str(node.attributes["num_scan_inputs"]))
    given = [value(n) for n in node.inputs]
    states, sequences = given[: len(given) - scanned], given[len(given) - scanned :]
    count = len(body.graph.outputs) - len(states)
    names = [v.name for v in body.graph.inputs[: body.own]]
    around = _captured(body, value)
    axes, ways = _integers(node, "scan_input_axes", scanned), _integers(node, "scan_input_directions", scanned)
    fed = [np.moveaxis(a, axis, 0)[:: -1 if way else 1] for a, axis, way in zip(sequences, axes, ways, strict=True)]
    collected: list[list[np.ndarray]] = [[] for _ in range(count)]
    for slices in zip(*fed, strict=True):
        made = run(body.graph, {**around, **dict(zip(names, [*states, *slices], strict=True))})
        states = list(made[: len(states)])
        for items, item in zip(collected, made[len(states) :], strict=True):
            items.append(item)
    if not all(collected):
        return None
    axes, ways = _integers(node, "scan_output_axes", count), _integers(node, "scan_output_directions", count)
    stacks = [np.stack(items[:: -1 if way else 1]) for items, way in zip(collected, ways, strict=True)]
    return [*states, *(np.moveaxis(a, 0, axis) for a, axis in zip(stacks, axes, strict=True))]


def _integers(node: Node, name: str, count: int) -> list[int]:
    given = node.attributes.get(name)
    return [int(a) for a in given] if isinstance(given, tuple) else [0] * count
