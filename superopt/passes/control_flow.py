"""The search of a model with control flow: of the graph, and of the bodies of If, Loop and Scan inside it.

1. The branch that a constant condition chooses stands in the place of its If. What both branches of another compute
   from values around it is computed once, before it.
2. What a Loop or Scan computes anew at each turn from values around it is computed once, before it.
3. The graph is searched (:mod:`superopt.passes.saturation_search`); nodes with bodies are barriers there.
4. Each body is searched as a graph of its own, and bodies inside bodies likewise. Branches that are not taken and turns
   that are not made cost nothing, so that a body is better where it is better each time it runs.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from superopt.cost.cost_model import CostModel
from superopt.formats.control_flow_bodies import (
    CONTROL_FLOW,
    ControlFlowBody,
    all_names,
    bodies,
    count_nodes,
    with_body,
)
from superopt.ir.errors import InvalidModel
from superopt.ir.graph import Graph, Node, Weight, attribute_key
from superopt.ir.types import TensorType
from superopt.ops.shape_inference import CanonicalNode, infer
from superopt.passes.saturation_search import SearchCache
from superopt.passes.saturation_search import search as search_graph
from superopt.regions.search_result import ENDS, SHOWN, AppliedRule, Progress, SearchOptions, SearchResult
from superopt.rules.rule import Rule

__all__ = ["search"]


@dataclass(frozen=True)
class ControlFlowPolicy:
    """What is done about bodies.

    Attributes:
        depth: bodies inside each other that are searched. The payload of a body is read once for each level.
        total_families: operators that cannot fail once their types are known, so that running one that a Loop of no
            turns would not have run changes nothing but time. Indices may be out of range, so selections are not among
            them.
    """

    depth: int = 4
    total_families: frozenset[str] = frozenset(
        {"elementwise", "activation", "normalisation", "linear", "conv", "shape", "reduce", "pooling"}
    )


POLICY = ControlFlowPolicy()


def search(
    graph: Graph,
    rules: Sequence[Rule],
    costs: CostModel,
    options: SearchOptions | None = None,
    progress: Progress | None = None,
    memory: SearchCache | None = None,
) -> SearchResult:
    """Find a cheaper graph that the rules make equal to this one, bodies of control flow included.

    Args and guarantees are those of :func:`superopt.passes.saturation_search.search`.
    """
    options = options or SearchOptions()
    if not _has_bodies(graph) or (options.time_limit is not None and options.time_limit <= 0):
        return search_graph(graph, rules, costs, options, progress, memory)
    options = replace(options, reserved=options.reserved | all_names(graph))
    return _search(graph, rules, costs, options, progress, memory, 0)


def _has_bodies(graph: Graph) -> bool:
    return any(node.op in CONTROL_FLOW for node in graph.nodes)


def _search(
    graph: Graph, rules: Sequence[Rule], costs: CostModel, options: SearchOptions, progress: Progress | None,
    memory: SearchCache | None, depth: int,
) -> SearchResult:  # fmt: skip
    start = time.monotonic()
    branched, chosen = _with_taken_branches(graph)
    shared, common = _with_common_nodes_outside(branched)
    prepared, moved = _with_invariants_outside(shared)
    result = search_graph(prepared, rules, costs, options, progress, memory)
    made, parts = result.graph, [result]
    pairs: list[tuple[Graph, Graph]] = []
    if depth < POLICY.depth and _has_bodies(made) and result.stopped != "interrupted":
        for body in tuple(bodies(made, infer(made))):  # positions stay: only attributes and weights change
            left = None if options.time_limit is None else options.time_limit - (time.monotonic() - start)
            if left is not None and left <= 0.0:
                break
            inner = replace(options, time_limit=left, reserved=options.reserved | all_names(made))
            found = _search(body.graph, rules, costs, inner, progress, None, depth + 1)
            rewritten = _is_rewritten(body.graph, found)
            parts.append(found if rewritten else replace(found, applied=()))
            if rewritten:
                made = with_body(made, body, found.graph)
                pairs += [*found.bodies, (body.graph, found.graph)]
            if found.stopped == "interrupted":
                break
    if made is prepared and prepared is not graph and not (chosen or common or moved):
        made = graph
    return replace(
        _together(parts), graph=made, seconds=time.monotonic() - start, notes=_notes(parts, chosen, common, moved),
        bodies=tuple(pairs),
    )  # fmt: skip


def _is_rewritten(body: Graph, found: SearchResult) -> bool:
    """Whether a search made something of a body: not where it only writes the same in another way."""
    return found.graph is not body and bool(
        found.applied or found.widened or found.laid_out or count_nodes(found.graph) < count_nodes(body)
    )


def _notes(parts: Sequence[SearchResult], chosen: int, common: int, moved: int) -> tuple[str, ...]:
    notes = dict.fromkeys(n for part in parts for n in part.notes)
    if chosen:
        notes[f"{chosen} If with a constant condition: the branch that it takes stands in its place"] = None
    if common:
        notes[f"{common} nodes that both branches of an If ran run once before it"] = None
    if moved:
        notes[f"{moved} nodes that a loop ran at each turn run once before it"] = None
    return tuple(notes)


def _together(parts: Sequence[SearchResult]) -> SearchResult:
    """The figures of several searches of one model."""
    first = parts[0]
    applied: dict[str, AppliedRule] = {}
    for item in (a for part in parts for a in part.applied):
        was = applied.get(item.rule)
        gains = [a.gain_us for a in (was, item) if a is not None and a.gain_us is not None]
        applied[item.rule] = AppliedRule(
            item.rule, item.count + (was.count if was else 0), ((was.where if was else ()) + item.where)[:SHOWN],
            sum(gains) if gains else None,
        )  # fmt: skip
    return replace(
        first, applied=tuple(applied.values()),
        before_us=sum(p.before_us for p in parts), after_us=sum(p.after_us for p in parts),
        regions=sum(p.regions for p in parts), distinct_regions=sum(p.distinct_regions for p in parts),
        e_nodes=sum(p.e_nodes for p in parts), widened=sum(p.widened for p in parts),
        laid_out=sum(p.laid_out for p in parts),
        stopped=max((p.stopped for p in parts), key=ENDS.index),
        near_misses=tuple(dict.fromkeys(m for p in parts for m in p.near_misses))[:SHOWN],
        measurements_requested=sum(p.measurements_requested for p in parts),
        measurements_decisive=sum(p.measurements_decisive for p in parts),
        quarantined={k: v for p in parts for k, v in p.quarantined.items()},
    )  # fmt: skip


# -- constant conditions -------------------------------------------------------------------------------------------


def _with_taken_branches(graph: Graph) -> tuple[Graph, int]:
    """The graph with branches in the places of Ifs whose conditions are constant, and how many."""
    count = 0
    while True:
        found = next((made for body in _taken(graph) if (made := _inlined(graph, body)) is not None), None)
        if found is None:
            return graph, count
        graph, count = found, count + 1


def _taken(graph: Graph) -> list[ControlFlowBody]:
    conditions = {i: _condition(graph, n) for i, n in enumerate(graph.nodes) if n.op == "If"}
    if all(c is None for c in conditions.values()):
        return []
    branch = {True: "then_branch", False: "else_branch"}
    return [
        b for b in bodies(graph, infer(graph))
        if (taken := conditions.get(b.place)) is not None and b.attribute == branch[taken]
    ]  # fmt: skip


def _condition(graph: Graph, node: Node) -> bool | None:
    weight = graph.constants.get(node.inputs[0]) if node.inputs else None
    if weight is None or weight.data is None or weight.type.elements != 1:
        return None
    return bool(weight.data.numpy().reshape(-1)[0])


def _inlined(graph: Graph, body: ControlFlowBody) -> Graph | None:
    """The graph with a branch in the place of its If; ``None`` where a name of the branch stands for something else,
    too."""
    node, branch = graph.nodes[body.place], body.graph
    without = replace(graph, nodes=(*graph.nodes[: body.place], *graph.nodes[body.place + 1 :]))
    made = {o for n in branch.nodes for o in n.outputs if o}
    own = [w for w in branch.weights if w.name not in node.captures]
    others = all_names(without) | {o for o in node.outputs if o}
    if (made | {w.name for w in own}) & others or len(node.outputs) != len(branch.outputs):
        return None
    copies = tuple(
        Node("", "Identity", (v.name,), (o,)) for v, o in zip(branch.outputs, node.outputs, strict=True) if o
    )
    nodes = (*graph.nodes[: body.place], *branch.nodes, *copies, *graph.nodes[body.place + 1 :])
    weights = graph.weights
    if not any(node.inputs[0] in n.reads for n in nodes) and node.inputs[0] not in {v.name for v in graph.outputs}:
        weights = tuple(w for w in weights if w.name != node.inputs[0])
    return _checked(replace(graph, nodes=nodes, weights=(*weights, *own)))


# -- what branches have in common ---------------------------------------------------------------------------------


def _with_common_nodes_outside(graph: Graph) -> tuple[Graph, int]:
    """The graph with what both branches of an If compute alike before it, and how many nodes that are.

    Whichever branch is taken runs them, so that one which fails would have failed inside.
    """
    if not any(n.op == "If" for n in graph.nodes):
        return graph, 0
    before, branches = len(graph.nodes), dict[int, list[ControlFlowBody]]()
    for body in bodies(graph, infer(graph)):
        if graph.nodes[body.place].op == "If":
            branches.setdefault(body.place, []).append(body)
    for _, pair in sorted(branches.items(), reverse=True):  # what moves stands behind the places that are left
        graph = (_merged(graph, *pair) if len(pair) == 2 else None) or graph
    return graph, len(graph.nodes) - before


def _merged(graph: Graph, first: ControlFlowBody, second: ControlFlowBody) -> Graph | None:
    """The graph with the common nodes of two branches before their If; ``None`` where there are none."""
    around = frozenset(graph.nodes[first.place].captures)
    beside = _names_beside(graph, first)
    ends = {v.name for body in (first, second) for v in body.graph.outputs}
    numbers: dict[Hashable, int] = {}
    keys = [_keys(body.graph, around, numbers) for body in (first, second)]
    there = {key: node for node, key in zip(second.graph.nodes, keys[1], strict=True) if key is not None}
    pairs: list[tuple[Node, Node]] = []
    moved = set(around)
    for node, key in zip(first.graph.nodes, keys[0], strict=True):
        other = None if key is None else there.pop(key, None)
        if other is None or not moved.issuperset(n for n in node.inputs if n) or not any(node.inputs):
            continue
        if ends.intersection((*node.outputs, *other.outputs)) or beside.intersection(node.outputs):
            continue
        pairs.append((node, other))
        moved.update(node.outputs)
    if not pairs:
        return None
    gone = {id(n) for pair in pairs for n in pair}
    names_of_second = {b: a for one, two in pairs for a, b in zip(one.outputs, two.outputs, strict=True) if b}
    if any(names_of_second.keys() & set(n.captures) for n in second.graph.nodes):
        return None  # a body inside reads them by their names
    made = _with_nodes_before(graph, first.place, [one for one, _ in pairs])
    for body in (first, second):  # only the second has other names for what moves
        names: Mapping[str, str] = {} if body is first else names_of_second
        nodes = tuple(
            replace(n, inputs=tuple(names.get(i, i) for i in n.inputs))
            for n in body.graph.nodes if id(n) not in gone
        )  # fmt: skip
        made = with_body(made, replace(body, place=body.place + len(pairs)), replace(body.graph, nodes=nodes))
    return _checked(made)


def _with_nodes_before(graph: Graph, place: int, nodes: Sequence[Node]) -> Graph:
    return replace(graph, nodes=(*graph.nodes[:place], *nodes, *graph.nodes[place:]))


def _keys(graph: Graph, around: frozenset[str], numbers: dict[Hashable, int]) -> list[int | None]:
    """Value numbers of the nodes of a branch: equal for nodes that compute the same; ``None`` where a node reads what
    is the branch's own, or holds a body.

    Args:
        graph: the branch.
        around: the values that branches capture.
        numbers: those given so far, to both branches.
    """
    known: dict[str, Hashable] = {"": "", **{n: n for n in around}}
    found: list[int | None] = []
    for node in graph.nodes:
        number: int | None = None
        if node.op not in CONTROL_FLOW and all(n in known for n in node.inputs):
            attributes = tuple((k, str(attribute_key(v))) for k, v in sorted(node.attributes.items()))
            key = (node.op, node.domain, node.overload, attributes, tuple(known[n] for n in node.inputs))
            number = numbers.setdefault(key, len(numbers))
            known.update({o: (number, i) for i, o in enumerate(node.outputs) if o})
        found.append(number)
    return found


# -- loop invariants -----------------------------------------------------------------------------------------------


def _with_invariants_outside(graph: Graph) -> tuple[Graph, int]:
    """The graph with loop invariants before their loops, and how many nodes moved."""
    if not any(n.op in ("Loop", "Scan") for n in graph.nodes):
        return graph, 0
    before, found = len(graph.nodes), tuple(bodies(graph, infer(graph)))
    for body in reversed(found):  # what moves stands behind the places that are left
        if graph.nodes[body.place].op != "If":
            graph = _moved(graph, body) or graph
    return graph, len(graph.nodes) - before


def _moved(graph: Graph, body: ControlFlowBody) -> Graph | None:
    """The graph with the invariants of one body before its node; ``None`` where it has none."""
    inner = body.graph
    around = frozenset(graph.nodes[body.place].captures)
    own = {w.name: w for w in inner.weights if w.name not in around}
    moving = _invariants(body, around, own, _names_beside(graph, body))
    if not moving:
        return None
    gone = {id(n) for n in moving}
    read = {n for node in moving for n in node.inputs}
    weights = tuple(w for name, w in own.items() if name in read)  # what else reads them captures them
    left = replace(
        inner, nodes=tuple(n for n in inner.nodes if id(n) not in gone),
        weights=tuple(w for w in inner.weights if w.name in around or w.name not in read),
    )  # fmt: skip
    outside = _with_nodes_before(replace(graph, weights=(*graph.weights, *weights)), body.place, moving)
    return _checked(with_body(outside, replace(body, place=body.place + len(moving)), left))


def _invariants(
    body: ControlFlowBody, around: frozenset[str], own: Mapping[str, Weight], beside: frozenset[str]
) -> list[Node]:  # fmt: skip
    """The nodes of a loop's body that give the same at each turn, and cannot fail."""
    inner, typing = body.graph, infer(body.graph)
    outputs = {v.name for v in inner.outputs}
    fixed, found = set(around), list[Node]()
    for node, known in zip(inner.nodes, typing.nodes, strict=True):
        made, reads = [o for o in node.outputs if o], [n for n in node.inputs if n]
        varying = [n for n in reads if n not in inner.weight]
        hidden = beside.intersection((*made, *(n for n in reads if n in own)))  # names that mean something else outside
        if (
            not isinstance(known, CanonicalNode) or known.operator.family not in POLICY.total_families or node.captures
            or not varying or not fixed.issuperset(varying) or hidden or outputs.intersection(made)
            or not _never_fails(known.operator.family, [typing.types.get(n) for n in made], varying, typing.types)
        ):  # fmt: skip
            continue
        found.append(node)
        fixed.update(made)
    return found


def _never_fails(
    family: str, made: Sequence[TensorType | None], varying: Sequence[str], types: Mapping[str, TensorType | None]
) -> bool:
    """Whether an operator of a total family runs on all values of these types: on numbers that are not integers, which
    have a quotient by zero, and where no two open sizes have to agree."""
    if not all(kind is not None and kind.dtype.is_float for kind in made):
        return False
    given = [types.get(n) for n in varying]
    static = all(kind is not None and kind.is_static for kind in given)
    return static or (len(set(varying)) == 1 and family != "shape")


def _names_beside(graph: Graph, body: ControlFlowBody) -> frozenset[str]:
    """Names of values around a body and inside all others."""
    node = graph.nodes[body.place]
    others = {k: v for k, v in node.attributes.items() if k != body.attribute}
    nodes = (*graph.nodes[: body.place], replace(node, attributes=others), *graph.nodes[body.place + 1 :])
    return all_names(replace(graph, nodes=nodes))


def _checked(graph: Graph) -> Graph | None:
    try:
        return graph.checked()
    except InvalidModel:
        return None
