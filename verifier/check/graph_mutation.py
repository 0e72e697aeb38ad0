"""Single small changes of a graph, each of which a check with good inputs should see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from superopt.formats.tensors import set_aside
from superopt.ir.graph import Graph, Node, Weight, label
from superopt.ir.types import DType
from superopt.ops import REGISTRY
from superopt.verifier.check.tolerance import pieces

__all__ = ["Mutant", "mutants"]

_ALIKE = (
    ("Relu", "Abs", "Neg"), ("Sigmoid", "Tanh"), ("Add", "Sub"), ("Mul", "Div"), ("Max", "Min"), ("And", "Or"),
    ("ReduceSum", "ReduceMean", "ReduceMax"), ("Softmax", "LogSoftmax"), ("GlobalAveragePool", "GlobalMaxPool"),
    ("Greater", "GreaterOrEqual"), ("Less", "LessOrEqual"), ("Floor", "Ceil", "Round"), ("Sin", "Cos"),
)  # fmt: skip
_ORDERED = frozenset(
    {"Sub", "Div", "Pow", "Mod", "MatMul", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Concat"}
)
_SWITCHES = frozenset({"keepdims", "transA", "transB", "count_include_pad", "ceil_mode", "exclusive", "reverse"})
_POSITIVE = frozenset({"strides", "dilations", "kernel_shape"})
_NATURAL = frozenset({"pads"})
_REAL = frozenset({"alpha", "beta", "gamma", "epsilon", "bias", "lambd"})
_TABLES = frozenset({  # of ONNX's operators of machine learning: what is looked up
    "values_int64s", "values_floats", "default_int64", "default_float", "coefficients", "intercepts", "offset", "scale",
    "threshold",
})  # fmt: skip
_BOOL = 9  # ONNX's number of the type
_SCALE = 1.01  # of a whole tensor
_LARGEST = 1 << 24  # elements of a constant that is changed


@dataclass(frozen=True)
class Mutant:
    """A changed graph, what was changed, and the node before and after where only its attributes were."""

    what: str
    graph: Graph
    node: tuple[Node, Node] | None = None


def mutants(graph: Graph, seed: int, places: Sequence[str], most: int) -> Iterator[Mutant]:
    """Up to so many single changes at the named places, seeded, each kind at each place at most once.

    A mutant may be one that ONNX Runtime refuses; the caller must be ready for that.

    Args:
        graph: what is changed.
        seed: of all choices.
        places: first outputs of nodes, and names of weights.
        most: mutants.
    """
    rng = np.random.default_rng([seed, 17])
    nodes = {next((o for o in n.outputs if o), ""): n for n in graph.nodes}
    options: list[tuple[str, Node | Weight]] = []
    for place in places:
        if place in nodes:
            options += [(kind, nodes[place]) for kind in _kinds(graph, nodes[place])]
        elif (weight := graph.constants.get(place)) is not None:
            options += [(kind, weight) for kind in _weight_kinds(weight)]
    for number in rng.permutation(len(options))[:most]:
        kind, target = options[int(number)]
        made = _weight(graph, target, kind, rng) if isinstance(target, Weight) else _node(graph, target, kind, rng)
        if made is not None:
            yield made


def _kinds(graph: Graph, node: Node) -> Iterator[str]:
    inputs = [n for n in node.inputs if n]
    if node.op in _ORDERED and len(set(inputs)) > 1:
        yield "swap"
    if node.op == "Where" and node.inputs[1] != node.inputs[2]:
        yield "branches"
    if node.op == "If":
        yield "condition"
    if (
        node.op == "Cast"
        and node.attributes.get("to") != _BOOL
        and all(n.op == "Cast" for n in graph.consumers.get(node.outputs[0], ()))
    ):
        yield "narrower"
    if any(node.op in family for family in _ALIKE) and not node.domain:
        yield "sibling"
    if not node.domain:
        yield from (f"attribute {k}" for k, v in sorted(node.attributes.items()) if _changes(node.op, k, v))
    elif node.domain == "ai.onnx.ml":
        yield from (f"attribute {k}" for k, v in sorted(node.attributes.items()) if k in _TABLES and v != ())


def _changes(op: str, name: str, value: object) -> bool:
    """Whether an attribute is one that may be changed without danger: kernels divide by some, and crash."""
    if isinstance(value, tuple):
        return name in _POSITIVE | _NATURAL | {"axes", "perm"} and len(value) > (name == "perm")
    return name in _SWITCHES | {"axis"} or (name in _REAL and isinstance(value, float))


def _weight_kinds(weight: Weight) -> Iterator[str]:
    count, data = weight.type.elements, weight.data
    if data is None or not isinstance(count, int) or not 0 < count <= _LARGEST:
        return
    if weight.type.dtype.is_float or weight.type.dtype.is_integer or weight.type.dtype in (DType.BOOL, DType.STRING):
        yield "element"
    if weight.type.dtype.is_float:
        yield "scale"
        if count > 1 and len(weight.type.shape or ()) > 1:
            yield "row"


def _weight(graph: Graph, weight: Weight, kind: str, rng: np.random.Generator) -> Mutant | None:
    assert weight.data is not None
    array = np.array(weight.data.numpy())
    flat = array.reshape(-1)
    usual = _usual(flat) if weight.type.dtype.is_float else 0.0
    step = np.asarray(usual if usual > 0 else 1)
    where = ""
    with np.errstate(over="ignore", invalid="ignore"):
        if kind == "element":
            place = int(rng.integers(flat.size))
            where = f"[{', '.join(map(str, np.unravel_index(place, array.shape)))}]" if array.ndim else ""
            flat[place] = _changed(flat[place], step, weight.type.dtype)
        elif kind == "row":
            row = int(rng.integers(len(array)))
            where = f"[{row}]"
            array[row] = (array[row].astype(np.float64) + step).astype(array.dtype)
        else:
            for part in pieces(flat.size):
                flat[part] = (flat[part].astype(np.float64) * _SCALE).astype(array.dtype)
    was, real = weight.data.numpy().reshape(-1), weight.type.dtype.is_float
    if all(np.array_equal(flat[part], was[part], equal_nan=real) for part in pieces(flat.size)):
        return None  # rounding took the change away
    changed = replace(weight, data=set_aside(array))
    weights = tuple(changed if w.name == weight.name else w for w in graph.weights)
    said = (
        f"{kind} {where} of constant {weight.name!r} changed"
        if where
        else f"{kind} of constant {weight.name!r} changed"
    )
    return Mutant(said, replace(graph, weights=weights))


def _changed(element: Any, step: np.ndarray, dtype: DType) -> Any:
    """An element with a step added; the other boolean; a string with a letter more."""
    if dtype is DType.STRING:
        return element + (b"a" if isinstance(element, bytes) else "a")
    if dtype is DType.BOOL:
        return not element
    return (element.astype(np.float64) + step).astype(element.dtype)


def _usual(flat: np.ndarray) -> float:
    """The root of the mean square of the finite elements; 1 where there is none.

    They are squared as shares of a power of two that is larger than all of them, so that no square overflows.
    """
    total, count = 0.0, 0
    most = max((float(np.abs(finite).max(initial=0.0)) for finite in _finite(flat)), default=0.0)
    exponent = int(np.frexp(most)[1])
    for finite in _finite(flat):
        total, count = total + float(np.sum(np.ldexp(finite, -exponent) ** 2)), count + finite.size
    return float(np.ldexp(np.sqrt(total / count), exponent)) if count else 1.0


def _finite(flat: np.ndarray) -> Iterator[np.ndarray]:
    """The finite elements in float64, in parts."""
    for part in pieces(flat.size):
        wide = flat[part].astype(np.float64)
        yield wide[np.isfinite(wide)]


def _node(graph: Graph, node: Node, kind: str, rng: np.random.Generator) -> Mutant | None:
    if kind == "swap":
        changed, said = replace(node, inputs=(node.inputs[1], node.inputs[0], *node.inputs[2:])), "operands swapped"
    elif kind == "branches":
        changed, said = replace(node, inputs=(node.inputs[0], node.inputs[2], node.inputs[1])), "branches exchanged"
    elif kind == "condition":
        return _negated(graph, node)
    elif kind == "narrower":
        changed, said = replace(node, attributes={**node.attributes, "to": _BOOL}), "cast to booleans"
    elif kind == "sibling":
        family = next(f for f in _ALIKE if node.op in f)
        other = family[(family.index(node.op) + 1) % len(family)]
        record = REGISTRY.get(other)
        if record is None or record.since > graph.opset.get("", 1):
            return None
        changed, said = replace(node, op=other), f"{other} in its place"
    else:
        name = kind.removeprefix("attribute ")
        value = _shifted(name, node.attributes[name], rng)
        changed, said = replace(node, attributes={**node.attributes, name: value}), f"attribute {name} changed"
    nodes = tuple(changed if n is node else n for n in graph.nodes)
    alone = (node, changed) if kind.startswith("attribute") else None
    return Mutant(f"{label(node)}: {said}", replace(graph, nodes=nodes, extras=_without(graph, node)), alone)


def _negated(graph: Graph, node: Node) -> Mutant:
    name = f"superopt.not.{node.inputs[0]}"
    flipped = replace(node, inputs=(name, *node.inputs[1:]))
    nodes: list[Node] = []
    for n in graph.nodes:
        nodes += [Node("", "Not", (node.inputs[0],), (name,)), flipped] if n is node else [n]
    return Mutant(f"{label(node)}: condition negated", replace(graph, nodes=tuple(nodes), extras=_without(graph, node)))


def _without(graph: Graph, node: Node) -> dict[str, bytes]:
    """What rides along with a graph, but for the changed node's own bytes."""
    key = next((o for o in node.outputs if o), "")
    return {k: v for k, v in graph.extras.items() if k != f"onnx.node:{key}"}


def _shifted(
    name: str, value: object, rng: np.random.Generator
) -> int | float | tuple[int, ...] | tuple[float, ...]:  # fmt: skip
    """A number moved by one, or by a tenth; one number of several; a switch the other way."""
    if isinstance(value, tuple) and isinstance(value[0], float):
        place = int(rng.integers(len(value)))
        return tuple(v + 1.0 if i == place else v for i, v in enumerate(value))
    if isinstance(value, tuple):
        place = int(rng.integers(len(value)))
        changed = [int(v) for v in value]
        if name == "perm":
            other = (place + 1) % len(value)
            changed[place], changed[other] = changed[other], changed[place]
        elif name in _POSITIVE and changed[place] > 1 and rng.random() < 0.5:
            changed[place] -= 1
        else:
            changed[place] += 1
        return tuple(changed)
    if name in _SWITCHES:
        return int(not value)
    if isinstance(value, int):
        return value + 1 if value < 1 or rng.random() < 0.5 else value - 1
    assert isinstance(value, float)
    return value * 1.1 + (0.1 if value == 0 else 0.0)
