"""Two models side by side: a class for each value, and pairs of values that are probably equal."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence, Set
from functools import cached_property

import numpy as np

from superopt.formats.function_inlining import functions_in
from superopt.ir.graph import ArrayWeightData, Graph, Node, OpaqueAttribute, Weight
from superopt.ir.size_polynomial import Dim
from superopt.ir.terms import OperatorTerm, Term
from superopt.ir.types import DType, TensorType, ValueType
from superopt.ops.onnx_type_inference import schema_defaults
from superopt.ops.shape_inference import CanonicalNode, OpaqueNode, infer
from superopt.runtime import reference
from superopt.verifier.check.differential import make_inputs
from superopt.verifier.equivalence.runtime_folded_constants import RANDOM, constants_of, contents_of

__all__ = ["ModelValueClasses", "aligned", "digest_of", "literal"]

_SMALL = 8  # elements up to which a weight's values take part in a proof
_TOLERANCE = 1e-5  # relative, of what is worth trying to prove equal
_PROJECTIONS = 4
_CACHED_BELOW = 1 << 20  # elements of arrays whose projections are drawn once


class ModelValueClasses:
    """One model: its canonical nodes, and a class for each value.

    Args:
        graph: a checked graph, its fused operators written out.
        opened: values that were put back as the expressions of folded weights: no nodes of the model itself.
    """

    def __init__(self, graph: Graph, opened: frozenset[str] = frozenset()) -> None:
        self.graph = graph
        self.opened = opened
        self.typing = infer(graph)
        self.running = tuple(n for n in graph.nodes if not opened.intersection(n.outputs))
        self.computed = constants_of(graph, self.typing, opened)
        self.classes: dict[str, str] = {}
        self.aliases: dict[str, str] = {}  # what a computed constant's class would be by its operator
        self.producers: dict[str, tuple[Node, CanonicalNode | OpaqueNode, int]] = {}
        for node, form in zip(graph.nodes, self.typing.nodes, strict=True):
            for position, output in enumerate(node.outputs):
                if output:
                    self.producers[output] = (node, form, position)

    def classify(self, table: dict[str, str]) -> None:
        """Name each value by what it is: an input, a constant's contents, or an operator on classes."""
        for value in self.graph.inputs:
            self.classes[value.name] = f"input {value.name}"
        for name, weight in self.graph.weight.items():
            if name not in self.classes:
                self.classes[name] = contents_of(weight)
        for node, form in zip(self.graph.nodes, self.typing.nodes, strict=True):
            for position, output in enumerate(node.outputs):
                if output:
                    text = self.text(node, form, position, self.classes)
                    array = self.computed.arrays.get(output)
                    named = digest_of(text)
                    if array is not None:
                        held = f"weight {array_type(array)} {ArrayWeightData(array).digest}"
                        self.aliases[named] = named = held
                    self.classes[output] = table.setdefault(text, named)

    @cached_property
    def named(self) -> Mapping[str, str]:
        """The first value of each class."""
        return {c: n for n, c in reversed(self.classes.items())}

    @cached_property
    def functions(self) -> str:
        """A name for the model's own functions, which a node of another domain may call."""
        found = sorted(
            f.SerializeToString(deterministic=True)  # type: ignore[no-untyped-call]
            for f in functions_in(self.graph).values()
        )
        return digest_of(repr(found)) if found else ""

    def text(self, node: Node, form: CanonicalNode | OpaqueNode, position: int, classes: Mapping[str, str]) -> str:
        """What an output of a node is: its operator on classes."""
        if isinstance(form, CanonicalNode):
            args = ", ".join("_" if a is None else classes[a] for a in form.args)
            attributes = ", ".join(f"{k}={v!r}" for k, v in sorted(form.attributes.items()))
            return f"{form.operator.name}({args}; {attributes})[{position}]"
        if node.op in RANDOM:
            return f"random {node.outputs[0]}[{position}]"
        reads = ", ".join(classes[r] if r else "_" for r in (*node.inputs, *node.captures))
        version = self.graph.opset.get(node.domain, 0)
        if node.domain:
            return f"{node.domain}:{node.op}@{version}{self.functions}({reads}; {_attributes(node, {})})[{position}]"
        attributes = _attributes(node, schema_defaults(node.op, version))
        return f"{node.op}@{version}({reads}; {attributes})[{position}]"

    def differing(self, sources: frozenset[str]) -> frozenset[str]:
        """Values that depend on these."""
        found = set(sources)
        for node in self.graph.nodes:
            if found.intersection(node.reads):
                found.update(o for o in node.outputs if o)
        return frozenset(found)


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def array_type(array: np.ndarray) -> TensorType:
    return TensorType(DType.of(array.dtype), tuple(map(int, array.shape)))


def _attributes(node: Node, defaults: Mapping[str, object]) -> str:
    """What a node states beyond its operator's defaults."""
    shown = []
    for key, value in sorted(node.attributes.items()):
        if key in defaults and type(value) is type(defaults[key]) and value == defaults[key]:
            continue
        if isinstance(value, OpaqueAttribute):
            shown.append(f"{key}={hashlib.sha256(value.payload).hexdigest()}")
        else:
            shown.append(f"{key}={contents_of(value) if isinstance(value, Weight) else repr(value)}")
    return ", ".join(shown)


def aligned(a: ModelValueClasses, b: ModelValueClasses, seed: int) -> dict[str, str]:
    """Values of ``b`` with a value of ``a`` that was the same array, nearly, on random inputs."""
    partners = {n: a.named[c] for n, c in b.classes.items() if c in a.named}
    for value in b.graph.outputs:
        partners[value.name] = value.name
    wanted = [n for n in b.producers if n not in partners and n not in b.opened]
    if not wanted:
        return partners
    feeds, project = make_inputs(a.graph, seed), _Projections()
    prints = _fingerprints(b.graph, feeds, wanted, project)
    shapes = {shape for shape, _ in prints.values()}
    table: dict[tuple[int, ...], list[tuple[str, np.ndarray]]] = {}
    for name, (shape, numbers) in _fingerprints(a.graph, feeds, _of_shapes(a, shapes), project).items():
        table.setdefault(shape, []).append((name, numbers))
    rows = {shape: ([n for n, _ in found], np.stack([x for _, x in found])) for shape, found in table.items()}
    for name, (shape, numbers) in prints.items():
        if shape in rows:
            names, theirs = rows[shape]
            allowed = _TOLERANCE * (np.abs(theirs).max(axis=1, keepdims=True) + np.abs(theirs))
            near = (np.abs(numbers - theirs) <= allowed).all(axis=1)
            if near.any():
                partners[name] = names[int(near.argmax())]
    return partners


def _of_shapes(side: ModelValueClasses, shapes: Set[tuple[int, ...]]) -> list[str]:
    """Values, computed first and then stored, that may have one of these shapes: a model's weights are gigabytes."""
    names = [
        *side.producers,
        *(n for n, w in side.graph.weight.items() if w.data is not None and n not in side.producers),
    ]

    def fits(kind: ValueType | None, shape: tuple[int, ...]) -> bool:
        if not isinstance(kind, TensorType) or kind.shape is None:
            return True
        same_rank = len(kind.shape) == len(shape)
        return same_rank and all(d == size for d, size in zip(kind.shape, shape, strict=True) if isinstance(d, int))

    types = side.typing.types
    stored = {n: w.type for n, w in side.graph.weight.items()}
    return [n for n in names if any(fits(stored.get(n) or types.get(n), shape) for shape in shapes)]


class _Projections:
    """Four random projections of arrays, the same for all of a size. Directions of small ones are kept."""

    def __init__(self) -> None:
        self._cached: dict[int, np.ndarray] = {}

    def __call__(self, flat: np.ndarray) -> np.ndarray:
        """Of a vector in float64, four numbers."""
        if flat.size > _CACHED_BELOW:
            rng = np.random.default_rng(flat.size)
            return np.array([flat @ rng.standard_normal(flat.size) for _ in range(_PROJECTIONS)])
        if flat.size not in self._cached:
            self._cached[flat.size] = np.random.default_rng(flat.size).standard_normal((_PROJECTIONS, flat.size))
        return np.asarray(self._cached[flat.size] @ flat)


def _fingerprints(
    graph: Graph, feeds: Mapping[str, np.ndarray], names: Sequence[str], project: _Projections
) -> dict[str, tuple[tuple[int, ...], np.ndarray]]:  # fmt: skip
    """Shape and projections of values that are computed or stored."""
    given = {v.name for v in graph.inputs} | set(graph.weight)
    arrays = reference.run(graph, {k: v for k, v in feeds.items() if k in given}, outputs=names)
    made = {}
    for name, array in arrays.items():
        if array.dtype.kind in "fiub" and array.size:
            flat = np.nan_to_num(array.astype(np.float64).ravel(), posinf=1e30, neginf=-1e30)
            made[name] = (array.shape, project(flat))
    return made


def _exact_integers(array: np.ndarray) -> bool:
    """Whether these are positions or sizes that a real number holds exactly."""
    return array.dtype == np.int64 and bool((np.abs(array) < 2**53).all())


def literal(side: ModelValueClasses, name: str, *, uniform: bool = False) -> Term | None:
    """The numbers of a constant that is small (and not ``uniform``), or the same everywhere; else ``None``.

    What nodes compute from constants is what ONNX Runtime makes of them.
    """
    weight = side.graph.weight.get(name)
    if name in side.producers:
        array = side.computed.arrays.get(name)
    else:
        array = None if weight is None or weight.data is None else weight.data.numpy()
    if array is None or not (DType.of(array.dtype).is_float or _exact_integers(array)):
        return None
    shape: tuple[Dim, ...] = array.shape
    kind = str(DType.of(array.dtype))
    if array.size == 0 or (array.size > _SMALL and array.flat[0] != array.flat[-1]):  # most are told by two elements
        return None
    if not np.isfinite(array.astype(float)).all():
        return None
    if array.size == 1 or (array.size <= _SMALL and not uniform):
        values = tuple(float(v) for v in array.astype(float).ravel())
        return OperatorTerm("Constant", (), (("dtype", kind), ("shape", shape), ("values", values)))
    if (array == array.flat[0]).all():
        return OperatorTerm("ConstantOfShape", (), (("dtype", kind), ("shape", shape), ("value", float(array.flat[0]))))
    return None
