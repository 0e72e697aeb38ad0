"""The power of a check: the share of single changes of the result (mutants) that its inputs detect.

A passed check says something only about changes that it would have detected. So the result is changed in single places,
at random and seeded, and each mutant is checked on the same inputs with the same bound. Branches, bounds, moduli and
rows that no input reaches are listed as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from superopt.formats.weight_data import set_aside
from superopt.ir.diff import value_digests
from superopt.ir.errors import ResourceLimit
from superopt.ir.graph import Graph, Node, Value, Weight, label
from superopt.ir.types import DType
from superopt.ops import REGISTRY
from superopt.ops.shape_inference import infer
from superopt.verifier.check.input_generation import make_inputs
from superopt.verifier.check.rounding_noise import constants_read, live_values
from superopt.verifier.check.shared_weight_sessions import REFUSALS, Arrays, SharedWeightSessions, attempt
from superopt.verifier.check.tolerance import equal, pieces

__all__ = ["EFFORTS", "MutationBudget", "Mutant", "NONE", "MutationScore", "combined", "measure_power", "mutants"]

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
_LARGEST_WEIGHT = 1 << 24  # elements of a constant that is changed


@dataclass(frozen=True)
class Mutant:
    """A changed graph, the change in words, and the node before and after if only its attributes changed."""

    what: str
    graph: Graph
    node: tuple[Node, Node] | None = None


def mutants(graph: Graph, seed: int, places: Sequence[str], most: int) -> Iterator[Mutant]:
    """At most so many single changes at the named sites, seeded; each kind at each site at most once.

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
        mutant = _weight(graph, target, kind, rng) if isinstance(target, Weight) else _node(graph, target, kind, rng)
        if mutant is not None:
            yield mutant


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
        yield from (f"attribute {k}" for k, v in sorted(node.attributes.items()) if _changes(k, v))
    elif node.domain == "ai.onnx.ml":
        yield from (f"attribute {k}" for k, v in sorted(node.attributes.items()) if k in _TABLES and v != ())


def _changes(name: str, value: object) -> bool:
    """Whether an attribute is one that may be changed without danger: kernels divide by some, and crash."""
    if isinstance(value, tuple):
        return name in _POSITIVE | _NATURAL | {"axes", "perm"} and len(value) > (name == "perm")
    return name in _SWITCHES | {"axis"} or (name in _REAL and isinstance(value, float))


def _weight_kinds(weight: Weight) -> Iterator[str]:
    count, data = weight.type.elements, weight.data
    if data is None or not isinstance(count, int) or not 0 < count <= _LARGEST_WEIGHT:
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
            position = int(rng.integers(flat.size))
            where = f"[{', '.join(map(str, np.unravel_index(position, array.shape)))}]" if array.ndim else ""
            flat[position] = _changed(flat[position], step, weight.type.dtype)
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
        position = int(rng.integers(len(value)))
        return tuple(v + 1.0 if i == position else v for i, v in enumerate(value))
    if isinstance(value, tuple):
        position = int(rng.integers(len(value)))
        changed = [int(v) for v in value]
        if name == "perm":
            other = (position + 1) % len(value)
            changed[position], changed[other] = changed[other], changed[position]
        elif name in _POSITIVE and changed[position] > 1 and rng.random() < 0.5:
            changed[position] -= 1
        else:
            changed[position] += 1
        return tuple(changed)
    if name in _SWITCHES:
        return int(not value)
    if isinstance(value, int):
        return value + 1 if value < 1 or rng.random() < 0.5 else value - 1
    assert isinstance(value, float)
    return value * 1.1 + (0.1 if value == 0 else 0.0)


_START = 2e7  # operations that starting a session counts as, and per byte of weights:
_BYTE = 4.0
_LONGEST = 5.0  # seconds of a mutant's run: those that are made do 2e9 operations, and a loop may never end
_SITES = 64  # places whose coverage is watched
_NAMED = 12  # things that are named as not exercised
_LARGEST = 1 << 22  # elements of a constant that is compared with a mutant's
_COMPARE = frozenset({"Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"})


@dataclass(frozen=True)
class MutationBudget:
    """The most mutants that are tried, and the work for all of them and for watching."""

    mutants: int
    work: float


NONE = MutationBudget(0, 0.0)
EFFORTS: Mapping[str, MutationBudget] = {  # "quick" is a second of one core, "thorough" half a minute
    "none": NONE, "quick": MutationBudget(8, 1e10), "thorough": MutationBudget(64, 2e11),
}  # fmt: skip
_DRAWN = 3  # mutants that are drawn for one that counts: many give other shapes
_WATCHING = 2e10  # operations for watching what the inputs reach


@dataclass(frozen=True)
class MutationScore:
    """How many single changes of the result the inputs of a check detect.

    Attributes:
        mutants: changed results that ran and gave outputs of the same shapes.
        caught: those that failed the check.
        share: their share; 0 if there were none, so that nothing is claimed.
        unexercised: what the inputs leave out, in words: branches never taken, bounds never reached, rows never read,
            and changes that were not caught.
        of_original: the changes are the original's, since nothing in the result could be changed.
    """

    mutants: int
    caught: int
    share: float
    unexercised: tuple[str, ...] = ()
    of_original: bool = False


def combined(parts: Sequence[MutationScore]) -> MutationScore | None:
    """The power of several checks together; ``None`` of none."""
    if not parts:
        return None
    ran, caught = sum(p.mutants for p in parts), sum(p.caught for p in parts)
    said = dict.fromkeys(u for p in parts for u in p.unexercised)
    return MutationScore(ran, caught, caught / ran if ran else 0.0, tuple(said)[:_NAMED])


def measure_power(
    before: Graph,
    after: Graph,
    runs: Sequence[Mapping[str, np.ndarray]],
    fails: Callable[[int, Arrays], bool | None],
    *,
    bench: SharedWeightSessions,
    seed: int,
    effort: MutationBudget,
    work: float,
) -> MutationScore:
    """Mutate the result, check the mutants, and record what the inputs reach.

    Mutated is what the original does not have, and the weights that it reads; everything, where they are the same.
    Mutants that compute the same constants do not count.

    Args:
        before: the original.
        after: the result.
        runs: the inputs that the check tried.
        fails: whether outputs on the inputs of that number fail the check; ``None`` where their shapes differ.
        bench: where sessions are made.
        seed: of the mutations.
        effort: how many.
        work: operations of one run.
    """
    stored = after.weight_bytes
    each = _START + _BYTE * stored + 1.5 * work + len(runs) * 1e6  # most are caught by the first inputs
    most = min(_DRAWN * effort.mutants, int(effort.work / each))
    new, rest = _mutation_sites(before, after)
    chosen = mutants(after, seed, new or rest, most)
    ran = caught = 0
    missed: list[str] = []
    for mutant in chosen:
        if ran == effort.mutants:
            break
        try:
            found = _caught(mutant.graph, runs, fails, bench)
        except ResourceLimit:  # the next may not end either
            break
        if found is False and (_same_constants(after, mutant.graph, bench) or _same_alone(after, mutant, runs, bench)):
            continue
        if found is not None:
            ran, caught = ran + 1, caught + found
            missed += [] if found else [f"not seen: {mutant.what}"]
    sites = _unreached(before, after, runs, bench) if work * len(runs) <= min(_WATCHING, 2 * effort.work) else []
    return MutationScore(ran, caught, caught / ran if ran else 0.0, tuple((sites + missed)[:_NAMED]))


def _caught(
    mutant: Graph,
    runs: Sequence[Mapping[str, np.ndarray]],
    fails: Callable[[int, Arrays], bool | None],
    bench: SharedWeightSessions,
) -> bool | None:
    """Whether some input detects a mutant; ``None`` if it cannot be run or has other shapes.

    Raises:
        ResourceLimit: it does not end, as a loop with another condition may.
    """
    try:
        session = bench.session(mutant, optimise=False)
    except REFUSALS:
        return None
    for number, feeds in enumerate(runs):
        arrays = attempt(session, feeds, time_limit=_LONGEST)
        verdict = None if arrays is None else fails(number, arrays)
        if verdict is None:
            return None if number == 0 else True
        if verdict:
            return True
    return False


def _same_constants(after: Graph, mutant: Graph, bench: SharedWeightSessions) -> bool:
    """Whether a mutant differs only in what is computed from constants, and computes the same constants."""
    live = live_values(after)
    if [n for n in after.nodes if live.intersection(n.reads)] != [
        n for n in mutant.nodes if live.intersection(n.reads)
    ]:
        return False
    old, new = (constants_read(g, infer(g), live, bench, _LARGEST) for g in (after, mutant))
    return (
        old is not None
        and new is not None
        and old.keys() == new.keys()
        and all(np.array_equal(a, new[n], equal_nan=a.dtype.kind == "f") for n, a in old.items())
    )


def _same_alone(
    after: Graph, mutant: Mutant, runs: Sequence[Mapping[str, np.ndarray]], bench: SharedWeightSessions
) -> bool:
    """Whether a changed attribute changes nothing of its node, on random operands of the sizes that it has here.

    So it is with the dilation of a kernel of one element, or padding that no window reaches.
    """
    if mutant.node is None or not runs:
        return False
    kinds = infer(after, {}).types
    names = list(dict.fromkeys(n for n in mutant.node[0].inputs if n))
    shapes = {n: kinds.get(n) for n in names}
    if any(t is None or t.shape is None or any(not isinstance(d, int) for d in t.shape) for t in shapes.values()):
        return False
    made: list[Arrays] = []
    for node in mutant.node:
        weights = tuple(w for w in after.weights if w.name in names and not w.type.dtype.is_float)
        held = {w.name for w in weights}
        inputs = tuple(Value(n, shapes[n]) for n in names if n not in held)
        outputs = tuple(Value(o, None) for o in node.outputs if o)
        alone = replace(after, inputs=inputs, outputs=outputs, weights=weights, nodes=(node,), values=(), extras={})
        try:
            session = bench.session(alone, optimise=False)
            made += [m for k in (0, 1) if (m := attempt(session, make_inputs(alone, k))) is not None]
        except REFUSALS:
            return False
    half = len(made) // 2
    return half == 2 and all(equal(a, made[half + k][n]) for k in range(half) for n, a in made[k].items())


def _mutation_sites(before: Graph, after: Graph) -> tuple[list[str], list[str]]:
    """Nodes and weights on which outputs of the result depend: those that the original lacks, and the others."""
    needed = {v.name for v in after.outputs}
    for node in reversed(after.nodes):
        if needed.intersection(node.outputs):
            needed.update(node.reads)
    known = set(value_digests(before).values())
    digests = value_digests(after)
    new: list[str] = []
    rest: list[str] = []
    names = [next((o for o in n.outputs if o), "") for n in after.nodes] + [w.name for w in after.weights]
    for name in names:
        if name in needed:
            (rest if digests.get(name) in known else new).append(name)
    touched = {r for n in after.nodes if n.outputs and n.outputs[0] in set(new) for r in n.reads}
    return new + [n for n in rest if n in touched], [n for n in rest if n not in touched]


def _unreached(
    before: Graph, after: Graph, runs: Sequence[Mapping[str, np.ndarray]], bench: SharedWeightSessions
) -> list[str]:
    """Branches, bounds, moduli and rows of the result that no inputs reach, where the original is not the same."""
    known = set(value_digests(before).values())
    digests = value_digests(after)
    fresh = [n for n in after.nodes if any(o and digests[o] not in known for o in n.outputs)]
    sites = [s for n in fresh for s in _sites(after, n)][:_SITES]
    types = infer(after).types
    fed = {v.name for v in after.inputs}
    names = [n for n in dict.fromkeys(s.value for s in sites) if n in after.producer and n not in fed]
    outputs = {**{n: Value(n, types.get(n)) for n in names}, **{v.name: v for v in after.outputs}}
    try:
        session = bench.session(replace(after, outputs=tuple(outputs.values()), values=()), optimise=False)
    except REFUSALS:
        return []
    left = list(sites)
    for feeds in runs:
        arrays = attempt(session, feeds)
        if arrays is None:
            continue
        for site in left:
            array = arrays.get(site.value, feeds.get(site.value))
            if array is not None:
                site.see(array)
        left = [s for s in left if s.description() is not None]
        if not left:
            break
    return [said for s in left if (said := s.description()) is not None]


@dataclass
class _Site:
    """A watched value: the sides of its marks that were seen, or the rows."""

    value: str
    what: str
    sides: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    rows: int = 0

    def __post_init__(self) -> None:
        self.seen: set[int] = set()

    def see(self, array: np.ndarray) -> None:
        if array.dtype.kind not in "biuf" or not array.size:
            return
        if self.rows:
            self.seen.update(int(i) % self.rows for i in np.unique(array))
        elif not self.bounds:
            self.seen.update(int(v) for v in np.unique(array.astype(bool)))
        else:
            sides = np.searchsorted(np.asarray(self.bounds), array.astype(np.float64).ravel())
            self.seen.update(int(s) for s in np.unique(sides))

    def description(self) -> str | None:
        if self.rows:
            missing = self.rows - len(self.seen)
            return f"{self.what}: {len(self.seen)} of {self.rows} rows read" if missing else None
        absent = [side for number, side in enumerate(self.sides) if side and number not in self.seen]
        return f"{self.what}: {', '.join(absent)}" if absent else None


def _sites(graph: Graph, node: Node) -> Iterator[_Site]:
    name = label(node)
    if node.op in ("Where", "If") and node.inputs[0] not in graph.weight:
        yield _Site(node.inputs[0], name, ("its condition is never false", "its condition is never true"))
    elif node.op in _COMPARE:
        yield _Site(node.outputs[0], name, ("it is never false", "it is never true"))
    elif node.op == "Clip":
        low, high = (_number(graph, node, position, key) for position, key in ((1, "min"), (2, "max")))
        marks = [(low, "its lower bound is never reached"), (high, "its upper bound is never reached")]
        if low is not None and high is not None:
            yield _Site(node.inputs[0], name, (marks[0][1], "", marks[1][1]), (low, high))
        elif low is not None:
            yield _Site(node.inputs[0], name, (marks[0][1], ""), (low,))
        elif high is not None:
            yield _Site(node.inputs[0], name, ("", marks[1][1]), (high,))
    elif node.op == "Mod" and (modulus := _number(graph, node, 1, "")) is not None:
        yield _Site(node.inputs[0], name, ("", "its modulus is never reached"), (abs(modulus) - 0.5,))
    elif node.op in ("Relu", "LeakyRelu", "PRelu", "Abs"):
        yield _Site(node.inputs[0], name, ("nothing below 0", "nothing above 0"), (0.0,))
    elif node.op == "Gather" and node.attributes.get("axis", 0) == 0 and node.inputs[0] in graph.constants:
        kind = graph.constants[node.inputs[0]].type
        rows = (kind.shape or (0,))[0]
        if isinstance(rows, int) and rows > 1 and node.inputs[1] not in graph.weight:
            yield _Site(node.inputs[1], f"table {node.inputs[0]!r}", rows=rows)


def _number(graph: Graph, node: Node, position: int, attribute: str) -> float | None:
    held = node.attributes.get(attribute)
    if isinstance(held, int | float):
        return float(held)
    weight = graph.constants.get(node.inputs[position]) if len(node.inputs) > position else None
    if weight is None or weight.data is None or weight.type.elements != 1 or weight.type.dtype is DType.BOOL:
        return None
    return float(weight.data.numpy().reshape(-1)[0])
