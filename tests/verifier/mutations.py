"""Seeded single mutations of models: what a wrong optimiser might do, for tests of what `superopt verify` says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from superopt.formats import to_onnx_bytes
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph, Node, constant
from superopt.ir.types import TensorType
from superopt.ops.shape_inference import infer
from superopt.runtime.onnx_runtime import make_session, run
from superopt.verifier.check.differential import make_inputs

__all__ = ["Mutant", "mutants"]

_OPERATORS = {
    "Add": "Sub", "Sub": "Add", "Mul": "Div", "Div": "Mul", "Relu": "Sigmoid", "Sigmoid": "Relu", "Tanh": "Erf",
    "Erf": "Tanh", "Max": "Min", "Min": "Max", "Sqrt": "Abs", "Exp": "Tanh", "ReduceMean": "ReduceMax",
    "ReduceMax": "ReduceMean", "ReduceSum": "ReduceMean", "MaxPool": "AveragePool", "AveragePool": "LpPool",
    "GlobalAveragePool": "GlobalMaxPool", "GlobalMaxPool": "GlobalAveragePool", "Softmax": "LogSoftmax",
    "Greater": "Less", "Less": "Greater", "LeakyRelu": "Elu", "HardSwish": "Relu", "HardSigmoid": "Sigmoid",
    "FastGelu": "Gelu", "Gelu": "FastGelu", "Floor": "Ceil", "Round": "Floor", "Softplus": "Relu", "Neg": "Abs",
}  # fmt: skip
_ORDERED = frozenset({"Sub", "Div", "Pow", "MatMul", "Concat", "Where", "Greater", "Less", "Mod", "FusedMatMul"})
_KINDS = ("constant", "attribute", "operands", "operator")
_ENOUGH = 12  # places tried for a kind before it is given up
_ROUNDING = 1e-5  # of an output's largest element
_PROBES = (("normal", 1.0), ("uniform", 1.0), ("edge", 1.0), ("normal", 16.0))


@dataclass(frozen=True)
class Mutant:
    """A model that differs in one place, and which."""

    graph: Graph
    what: str


def mutants(graph: Graph, count: int, seed: int) -> Iterator[Mutant]:
    """Models that ONNX Runtime accepts and that give other results than ``graph`` on some of a few inputs.

    The kinds take turns; one that a model has no place for is left out. A mutation after which ONNX Runtime gives the
    same, up to rounding, on all of those inputs is none: it may change nothing, as another bias of an attention's keys
    does, which Softmax takes away again.
    """
    rng = np.random.default_rng(seed)
    probe = _Probe(graph)
    made = 0
    for turn in range(count * len(_KINDS)):
        if made == count:
            return
        kind = _KINDS[turn % len(_KINDS)]
        for _ in range(_ENOUGH):
            found = _MAKERS[kind](graph, rng)
            if found is not None and probe.differs(found.graph):
                made += 1
                yield found
                break


class _Probe:
    """What a model gives on a few inputs."""

    def __init__(self, graph: Graph) -> None:
        self.feeds = []
        self.before = []
        session = make_session(to_onnx_bytes(graph), optimise=False)
        for number, (kind, scale) in enumerate(_PROBES):
            for level in range(6):
                feeds = make_inputs(graph, 100 + number, kind, level=level)
                feeds = {n: x * x.dtype.type(scale) if x.dtype.kind == "f" else x for n, x in feeds.items()}
                try:
                    self.before.append(run(session, feeds))
                except SuperoptError:
                    continue
                self.feeds.append(feeds)
                break

    def differs(self, graph: Graph) -> bool:
        try:
            session = make_session(to_onnx_bytes(graph.checked()), optimise=False)
        except SuperoptError:
            return False
        for feeds, before in zip(self.feeds, self.before, strict=True):
            try:
                after = run(session, feeds)
            except SuperoptError:
                return False
            if any(_differ(before[n], after[n]) for n in before):
                return True
        return False


def _differ(a: np.ndarray, b: np.ndarray) -> bool:
    if a.shape != b.shape or a.dtype.kind != "f":
        return not np.array_equal(a, b)
    fine = np.isfinite(a)
    if not np.array_equal(a[~fine], b[~fine], equal_nan=True):
        return True
    return bool((np.abs(a - b)[fine] > _ROUNDING * np.abs(a[fine]).max(initial=0.0)).any())


def _constant(graph: Graph, rng: np.random.Generator) -> Mutant | None:
    """One element of a weight, or all of a scalar."""
    read = {n for node in graph.nodes for n in node.reads}
    names = [w.name for w in graph.constants.values() if w.name in read and w.data is not None]
    names = [n for n in names if graph.weight[n].type.dtype.is_float and graph.weight[n].type.elements != 0]
    if not names:
        return None
    name = str(rng.choice(names))
    weight = graph.weight[name]
    assert weight.data is not None
    array = np.array(weight.data.numpy())
    place = tuple(int(rng.integers(n)) for n in array.shape)
    spread = float(np.sqrt(np.mean(array.astype(float) ** 2)))
    array[place] = array[place] * 1.25 + 0.1 * spread
    new = replace(constant(name, array), metadata=weight.metadata)
    weights = tuple(new if w.name == name else w for w in graph.weights)
    return Mutant(replace(graph, weights=weights), f"constant {name}{list(place)}")


def _replaced(graph: Graph, old: Node, new: Node, what: str) -> Mutant:
    nodes = tuple(new if n is old else n for n in graph.nodes)
    extras = {k: v for k, v in graph.extras.items() if not k.startswith("onnx.node:")}
    return Mutant(replace(graph, nodes=nodes, values=(), extras=extras), f"{what} of {old.op} {old.outputs[0]}")


def _attribute(graph: Graph, rng: np.random.Generator) -> Mutant | None:
    places = [
        (n, k)
        for n in graph.nodes
        for k, v in n.attributes.items()
        if (isinstance(v, int | float) and not isinstance(v, bool)) or (isinstance(v, tuple) and v)
    ]
    if not places:
        return None
    node, key = places[int(rng.integers(len(places)))]
    value = node.attributes[key]
    if isinstance(value, tuple):
        if not all(isinstance(v, int | float) for v in value):
            return None
        at = int(rng.integers(len(value)))
        changed = list(value)
        if key == "perm":
            other = (at + 1) % len(value)
            changed[at], changed[other] = changed[other], changed[at]
        else:
            changed[at] = changed[at] + 1  # type: ignore[operator]
        new: object = tuple(changed)
    elif isinstance(value, float):
        new = value * 1.5 + 0.125
    else:
        new = 1 - value if value in (0, 1) else value + 1  # type: ignore[operator]
    return _replaced(graph, node, replace(node, attributes={**node.attributes, key: new}), f"attribute {key}")  # type: ignore[arg-type]


def _operands(graph: Graph, rng: np.random.Generator) -> Mutant | None:
    """Two operands exchanged, or one replaced by another value of its type that was there before."""
    if rng.random() < 0.5:
        places = [n for n in graph.nodes if n.op in _ORDERED and len(n.inputs) > 1]
        if not places:
            return None
        node = places[int(rng.integers(len(places)))]
        inputs = list(node.inputs)
        inputs[-1], inputs[-2] = inputs[-2], inputs[-1]
        return _replaced(graph, node, replace(node, inputs=tuple(inputs)), "operands")
    types = infer(graph).types
    position = int(rng.integers(len(graph.nodes)))
    node = graph.nodes[position]
    if not node.inputs:
        return None
    at = int(rng.integers(len(node.inputs)))
    kind = types.get(node.inputs[at])
    if not isinstance(kind, TensorType) or kind.shape is None:
        return None
    before = [v.name for v in graph.inputs] + [o for n in graph.nodes[:position] for o in n.outputs if o]
    before += [w.name for w in graph.weights if node.inputs[at] in graph.weight]
    others = [n for n in before if n != node.inputs[at] and types.get(n) == kind]
    if not others:
        return None
    inputs = list(node.inputs)
    inputs[at] = others[int(rng.integers(len(others)))]
    return _replaced(graph, node, replace(node, inputs=tuple(inputs)), f"operand {at}")


def _operator(graph: Graph, rng: np.random.Generator) -> Mutant | None:
    places = [n for n in graph.nodes if n.op in _OPERATORS]
    fused = [n for n in graph.nodes if isinstance(n.attributes.get("activation"), bytes)]
    if not places and not fused:
        return None
    chosen = int(rng.integers(len(places) + len(fused)))
    if chosen >= len(places):
        node = fused[chosen - len(places)]
        other = b"Sigmoid" if node.attributes["activation"] != b"Sigmoid" else b"Tanh"
        return _replaced(graph, node, replace(node, attributes={**node.attributes, "activation": other}), "activation")
    node = places[chosen]
    return _replaced(graph, node, replace(node, op=_OPERATORS[node.op]), "operator")


_MAKERS: dict[str, Callable[[Graph, np.random.Generator], Mutant | None]] = {
    "constant": _constant, "attribute": _attribute, "operands": _operands, "operator": _operator,
}  # fmt: skip
