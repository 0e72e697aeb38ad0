"""The way from a model to its result, one rewrite after the other: graphs that are each whole, and can each be checked.

A result says which nodes it shares with the input. The others fall into pieces between values that both have under
one name (:func:`superopt.ir.diff.pieces`), so a piece of the result can stand in the input without the others. Putting
them in from the inputs to the outputs gives a sequence of graphs that all compute the same. Each is priced as a whole;
what a step gains is the difference to the graph before it, so that the gains add up to the whole, in this order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from superopt import cost as costs
from superopt.formats.function_inlining import inlined
from superopt.ir.diff import pieces
from superopt.ir.errors import InvalidModel
from superopt.ir.graph import Graph, Node, Weight, rules_of, unused_name

if TYPE_CHECKING:
    from superopt.pipeline.optimization import Result
    from superopt.pipeline.options import Options
    from superopt.report import Report

__all__ = ["Derivation", "DerivationStep", "derive", "explained", "steps"]

MOST = 64  # steps; where there are more places, neighbours are put in together


@dataclass(frozen=True)
class DerivationStep:
    """One rewrite.

    Attributes:
        graph: the whole model after it.
        rules: that made the nodes which it puts in, by how many of them.
        removed: nodes that it takes out, by operator. added: those that it puts in.
        where: names of values that it makes anew, the first ones.
        places: how many places it is about; more than one only where there are more than :data:`MOST`.
    """

    graph: Graph
    rules: Mapping[str, int]
    removed: Mapping[str, int]
    added: Mapping[str, int]
    where: tuple[str, ...]
    places: int = 1


def steps(before: Graph, after: Graph, *, most: int = MOST) -> Iterator[DerivationStep]:
    """The steps from one graph to the other, the first ones next to the inputs; the last one ends at ``after``.

    Args:
        before: the input.
        after: what was made of it: values that both have under one name are the same.
        most: steps.
    """
    order = {id(n): i for i, n in enumerate(before.nodes)}
    end = len(before.nodes)
    places = sorted(pieces(before, after), key=lambda p: min((order[id(n)] for n in p[0]), default=end))
    share = -(-len(places) // most) if places else 1
    groups = [places[i : i + share] for i in range(0, len(places), share)]
    taken: list[tuple[tuple[Node, ...], tuple[Node, ...]]] = []
    pending: list[tuple[tuple[Node, ...], tuple[Node, ...]]] = []
    for number, group in enumerate(groups, 1):
        pending += group
        if number == len(groups):
            yield _derivation_step(after, pending)
            return
        try:
            made = _with(before, after, taken + pending)
        except InvalidModel:  # a cycle: two places that can only be changed together
            continue
        yield _derivation_step(made, pending)
        taken += pending
        pending = []


def _with(before: Graph, after: Graph, places: Sequence[tuple[tuple[Node, ...], tuple[Node, ...]]]) -> Graph:
    """The first graph with some places of the second.

    Raises:
        InvalidModel: it would hold a cycle.
    """
    gone = {id(n) for old, _ in places for n in old}
    new = [n for _, added in places for n in added]
    weights: dict[str, Weight] = {}
    called: dict[str, str] = {}
    fed = {v.name for v in before.inputs}
    stays = [n for n in before.nodes if id(n) not in gone]
    for node in stays:
        weights.update((r, before.weight[r]) for r in node.reads if r in before.weight)
    taken = {*before.weight, *after.weight, *before.producer, *after.producer, *fed}
    for name in dict.fromkeys(r for n in new for r in n.reads if r in after.weight and r not in fed):
        twin, ours = weights.get(name), after.weight[name]
        if twin is not None and not _same(twin, ours):  # one name, and other elements: both are there for a while
            called[name] = unused_name(f"{name}_after", taken)
            ours = replace(ours, name=called[name])
        weights[ours.name] = ours
    for value in before.outputs:
        if value.name in before.weight and value.name not in before.producer:
            weights.setdefault(value.name, before.weight[value.name])
    for weight in before.weights:
        if weight.name in fed:
            weights.setdefault(weight.name, weight)
    added = [replace(n, inputs=tuple(called.get(i, i) for i in n.inputs)) if called else n for n in new]
    made = replace(before, nodes=(*stays, *added), weights=tuple(weights.values()), opset=after.opset)
    return made.checked()


def _same(a: Weight, b: Weight) -> bool:
    if a.data is b.data:
        return a.type == b.type
    return a.type == b.type and a.data is not None and b.data is not None and a.data.digest == b.data.digest


def _derivation_step(graph: Graph, places: Sequence[tuple[tuple[Node, ...], tuple[Node, ...]]]) -> DerivationStep:
    old, new = [n for a, _ in places for n in a], [n for _, b in places for n in b]
    rules: Counter[str] = Counter()
    for node in new:
        rules.update(rules_of(node.metadata))
    where = tuple(dict.fromkeys(o for n in (new or old) for o in n.outputs if o))[:8]
    return DerivationStep(graph, dict(rules.most_common()), _counted(old), _counted(new), where, len(places))


def _counted(nodes: Sequence[Node]) -> dict[str, int]:
    return dict(Counter(f"{n.domain}.{n.op}" if n.domain else n.op for n in nodes).most_common())


@dataclass(frozen=True)
class Derivation:
    """The steps, and what the model costs before the first and after each, in microseconds, modelled."""

    steps: tuple[DerivationStep, ...]
    us: tuple[float, ...]

    @property
    def gains(self) -> tuple[float, ...]:
        """What each step gains in this order, in microseconds: they add up to the whole."""
        return tuple(a - b for a, b in zip(self.us, self.us[1:], strict=False))

    def by_rule(self) -> dict[str, float]:
        """The gains by rule: of each step in equal parts among its rules; "" has those of steps that name none."""
        found: dict[str, float] = {}
        for step, gain in zip(self.steps, self.gains, strict=True):
            for rule in step.rules or ("",):
                found[rule] = found.get(rule, 0.0) + gain / max(len(step.rules), 1)
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def json(self) -> dict[str, Any]:
        """As JSON data, without the graphs."""
        rows = [
            {"step": i, "rules": dict(s.rules), "removed": dict(s.removed), "added": dict(s.added),
             "where": list(s.where), "places": s.places, "nodes": len(s.graph.nodes), "us": us, "gain_us": gain}
            for i, (s, us, gain) in enumerate(zip(self.steps, self.us[1:], self.gains, strict=True), 1)
        ]  # fmt: skip
        return {
            "format": "superopt.derivation", "version": 1, "before_us": self.us[0], "after_us": self.us[-1],
            "order": "from the inputs to the outputs; a gain is the difference to the graph before it",
            "steps": rows, "by_rule": self.by_rule(),
        }  # fmt: skip


def derive(
    before: Graph, after: Graph, *, target: str = "cpu", runtime: str = "onnxruntime",
    sizes: Mapping[str, int] | None = None,
) -> Derivation:  # fmt: skip
    """The way from a model to its result, priced by known and predicted times: nothing is measured for it.

    Args:
        before: the input.
        after: its result.
        target: for which to price.
        runtime: of the processor.
        sizes: what symbolic dimensions are costed at.
    """
    before, after = (inlined(graph).graph for graph in (before, after))
    found = tuple(steps(before, after))
    with costs.for_target(target, runtime=runtime, sizes=sizes, time_limit=0.0) as model:
        graphs = (before, *(s.graph for s in found))
        us = tuple(costs.graph_cost(graph, model, sizes=sizes or {}, as_run=False).us for graph in graphs)
    return Derivation(found, us)


def explained(result: Result, options: Options) -> tuple[Report, Derivation | None]:
    """The report with the way to the result, and the gains of rules as that has them: they add up to the whole.

    Args:
        result: of an optimisation.
        options: of the same; its target prices the steps.
    """
    if result.report.status == "unchanged":
        return result.report, None
    found = derive(
        result.original, result.graph, target=options.target, runtime=options.runtime, sizes=options.sizes
    )  # fmt: skip
    gains = found.by_rule()
    applied = tuple(replace(a, gain_us=gains.get(a.rule)) for a in result.report.rules_applied)
    return replace(result.report, derivation=found.json(), rules_applied=applied), found
