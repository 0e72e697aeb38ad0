"""Where a rule matches a model as it is written, and what refuses it elsewhere.

Each direction of the rule is held against every operator that could be the last one of a match. The matcher of the
search decides (:mod:`superopt.egraph.pattern_compiler`). Where it says no, the first difference is named: of operators,
of attributes and types, of sizes, or in floating point.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from superopt.cost.cost_model import CostModel
from superopt.egraph.egraph import ABSENT, LEAF, PROJECT, EGraph
from superopt.egraph.pattern_compiler import CompiledPattern, match_of, refusal
from superopt.egraph.rule_compiler import compile_rewrites
from superopt.extraction.enode_costs import ENodeCostModel
from superopt.extraction.rule_side_costs import RuleSideCosts
from superopt.ir.graph import Graph
from superopt.ir.size_polynomial import Dim, SizePolynomial
from superopt.ir.terms import AttributeValue, OperatorTerm, OutputTerm, Term, VariableTerm, format_term
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.shape_inference import InferredTypes
from superopt.passes.deliberate_rounding import guard_deliberate_rounding
from superopt.program.graph_program import GraphProgram, program_of
from superopt.regions.region_egraph import ProgramRegion, RegionEGraph, lower, region_of
from superopt.rules.float_verdicts import FloatVerdictStore
from superopt.rules.rule import Rule

__all__ = ["RuleDirectionMatches", "RuleMatchAttempt", "matches_of"]


@dataclass(frozen=True)
class RuleMatchAttempt:
    """An operator that could be the last one of a match.

    Attributes:
        node: its name in the model, or that of its output.
        refusal: what refuses the rule there; empty where it matches.
        gain_us: modelled microseconds that a match saves by itself, below 0 where it costs; 0 where it is refused.
    """

    node: str
    refusal: str
    gain_us: float = 0.0


@dataclass(frozen=True)
class RuleDirectionMatches:
    """A direction of a rule in a model.

    Attributes:
        source, target: the side that is looked for, and the one that takes its place.
        refusal: why the direction is used nowhere; empty where places decide.
        places: in the order of the model.
    """

    source: str
    target: str
    refusal: str
    places: tuple[RuleMatchAttempt, ...]

    @property
    def matches(self) -> int:
        """Places where it matches."""
        return sum(not p.refusal for p in self.places)


def matches_of(
    graph: Graph,
    typing: InferredTypes,
    rule: Rule,
    costs: CostModel,
    *,
    floats: FloatVerdictStore,
    sizes: Mapping[str, int],
) -> tuple[RuleDirectionMatches, ...]:
    """The matches of a rule in a graph before any other rule is applied.

    Args:
        graph: a checked graph.
        typing: its types.
        rule: of the library.
        costs: the target's cost model.
        floats: the verdicts in floating point, and the mode in which they are read.
        sizes: of symbolic dimensions.
    """
    program, _ = guard_deliberate_rounding(program_of(graph, typing))
    of_reals, safe = (_patterns(rule, program, known) for known in (None, floats))
    prices = RuleSideCosts(ENodeCostModel(costs.in_context(graph.weight_bytes), graph.opset, sizes, float("inf")))
    region = region_of(program, [i for i in program.running if program.steps[i].op])
    search = _MatchSearch(region, lower(region, REGISTRY), prices, floats.mode)
    return tuple(
        _direction(rule, program, search, backward=backward, patterns=of_reals[backward], safe=safe[backward])
        for backward in (False, True)
    )


def _patterns(
    rule: Rule, program: GraphProgram, floats: FloatVerdictStore | None
) -> tuple[list[CompiledPattern], list[CompiledPattern]]:
    """What the search compiles a rule to, by direction."""
    compiled = compile_rewrites((rule,), program, floats=floats)
    found: tuple[list[CompiledPattern], list[CompiledPattern]] = [], []
    for pattern in (*compiled.all_rewrites.patterns, *compiled.final_fusions.patterns):
        found[pattern.source != pattern.rule.lhs].append(pattern)
    return found


def _direction(
    rule: Rule, program: GraphProgram, search: _MatchSearch, *, backward: bool, patterns: Sequence[CompiledPattern],
    safe: Sequence[CompiledPattern],
) -> RuleDirectionMatches:  # fmt: skip
    source, target = (rule.rhs, rule.lhs) if backward else (rule.lhs, rule.rhs)
    texts = ", ".join(map(format_term, source)), ", ".join(map(format_term, target))
    if any(isinstance(t, VariableTerm) for t in source):
        return RuleDirectionMatches(*texts, "a variable matches everywhere: no search begins with it", ())
    if not patterns:
        return RuleDirectionMatches(*texts, "the other side has variables that this one does not bind", ())
    missing = patterns[0].operators - {s.op for s in program.steps}
    barriers = missing & {s.node.op for s in program.steps if not s.op and s.node is not None}
    if missing:
        why = f"the model has no {', '.join(sorted(missing - barriers))}" if missing - barriers else ""
        stays = f"each {', '.join(sorted(barriers))} rounds on purpose, or is not understood: it stays as it is"
        return RuleDirectionMatches(*texts, "; ".join(t for t in (why, stays if barriers else "") if t), ())
    if all(p.floats is not None and not any(p.floats.values()) for p in safe):
        return RuleDirectionMatches(
            *texts, f"not as good in floating point under '{search.mode}', whatever the operands are", ()
        )
    return RuleDirectionMatches(*texts, "", search.places(patterns, safe))


class _MatchSearch:
    """Holds the patterns of a direction against a region's operators."""

    def __init__(self, region: ProgramRegion, lowered: RegionEGraph, prices: RuleSideCosts, mode: str) -> None:
        self.region, self.lowered, self.graph = region, lowered, lowered.graph
        self.prices, self.mode = prices, mode

    def places(
        self, patterns: Sequence[CompiledPattern], safe: Sequence[CompiledPattern]
    ) -> tuple[RuleMatchAttempt, ...]:
        """The places of a direction.

        Args:
            patterns: what it is compiled to over the reals.
            safe: the same with the conditions of floating point.
        """
        gains: dict[int, float] = {}  # by class of the first root: of its best match
        refusals: dict[int, str] = {}  # by class of the first root: of a match of operators and types

        def met(pattern: CompiledPattern, slots: list[int], registers: list[AttributeValue]) -> None:
            values = tuple([registers[r] for r in pattern.registers])
            root, match = slots[pattern.roots[0]], match_of(self.graph, pattern, slots, values)
            if match is None:
                refusals.setdefault(root, refusal(self.graph, pattern, slots, values, self.mode))
                return
            before, after = self.prices.of(self.graph, pattern, slots, values, match.sizes)
            gains[root] = max(gains.get(root, float("-inf")), before - after)

        for pattern in safe:
            pattern.trie.walk(self.graph, met)
        found: list[RuleMatchAttempt] = []
        for name, identity in self._last_operators(patterns):
            if identity in gains:
                found.append(RuleMatchAttempt(name, "", gains[identity]))
            elif self.graph.classes[identity].constant:
                found.append(RuleMatchAttempt(name, "it is constant: it is computed once, whatever its form"))
            else:
                found.append(RuleMatchAttempt(name, refusals.get(identity) or self._difference(patterns, identity)))
        return tuple(found)

    def _last_operators(self, patterns: Sequence[CompiledPattern]) -> Iterator[tuple[str, int]]:
        """Names and classes of the operators that could be the last one of a match."""
        first = {_first_operator(p.source[0]) for p in patterns}
        for step in self.region.steps:
            output = next((o for o in step.outputs if o), "")
            if step.op in first and output:
                yield step.name or output, self.graph.find(self.lowered.classes[self.region.number[output]])

    def _difference(self, patterns: Sequence[CompiledPattern], identity: int) -> str:
        """What is different from the pattern that has most in common with a place."""
        found = [_compare(self.graph, p.rule, p.source[0], identity, {}) for p in patterns]
        return max(found, key=lambda d: d.alike).text or "another root of the rule has no operator here"


class _Difference(NamedTuple):
    """How many operators are alike, and the first difference; no text where there is none."""

    alike: int
    text: str


def _first_operator(term: Term) -> str:
    while isinstance(term, OutputTerm):
        term = term.term
    return term.op if isinstance(term, OperatorTerm) else ""


def _compare(graph: EGraph, rule: Rule, term: Term, identity: int, bound: dict[str, int]) -> _Difference:
    identity = graph.find(identity)
    if isinstance(term, VariableTerm):
        if bound.setdefault(term.name, identity) != identity:
            return _Difference(0, f"what stands for `{term.name}` are two values")
        return _Difference(0, _type_difference(graph, rule, term.name, identity))
    op = PROJECT if isinstance(term, OutputTerm) else term.op
    nodes = graph.with_op(identity, op)
    if isinstance(term, OutputTerm):
        inner = [n[1] for n in nodes if graph.heads[n[0]].index == term.index] or [identity]
        return max((_compare(graph, rule, term.term, i, bound) for i in inner), key=lambda d: d.alike)
    if not nodes:
        return _Difference(0, f"{_maker(graph, identity)} stands where the rule has {term.op}")
    ways = [_compare_node(graph, rule, term, node, dict(bound)) for node in nodes]
    if graph.operators[term.op].commutative and len(term.args) == 2:
        ways += [_compare_node(graph, rule, term, (n[0], n[2], n[1]), dict(bound)) for n in nodes if len(n) == 3]
    return max(ways, key=lambda d: (d.alike, not d.text))


def _compare_node(
    graph: EGraph, rule: Rule, term: OperatorTerm, node: Sequence[int], bound: dict[str, int]
) -> _Difference:
    given, alike = dict(graph.heads[node[0]].attributes), 1
    for name, wanted in term.attributes:
        if name in given and not _may_be(wanted, given[name]):
            return _Difference(
                alike, f"{term.op} has {name} {_value_text(given[name])}, the rule has {_value_text(wanted)}"
            )
    for place, arg in enumerate(term.args):
        made = node[place + 1] if place + 1 < len(node) else ABSENT
        if (arg is None) != (made == ABSENT):
            return _Difference(alike, f"operand {place + 1} of {term.op} is {'given' if arg is None else 'not given'}")
        if arg is not None:
            found = _compare(graph, rule, arg, made, bound)
            alike += found.alike
            if found.text:
                return _Difference(alike, found.text)
    if any(a != ABSENT for a in node[len(term.args) + 1 :]):
        return _Difference(alike, f"{term.op} has more operands than the rule's")
    return _Difference(alike, "")


def _may_be(wanted: AttributeValue, given: AttributeValue) -> bool:
    if isinstance(wanted, tuple):
        alike = isinstance(given, tuple) and len(given) == len(wanted)
        return alike and all(_may_be(w, g) for w, g in zip(wanted, given, strict=True))  # type: ignore[arg-type]
    return isinstance(wanted, SizePolynomial) or wanted == given


def _value_text(value: AttributeValue | Dim) -> str:
    return f"({', '.join(map(_value_text, value))})" if isinstance(value, tuple) else str(value)


def _maker(graph: EGraph, identity: int) -> str:
    if graph.classes[identity].constant:
        return "a constant"
    ops = [graph.heads[node[0]].op for node in graph.classes[identity].nodes]
    named = sorted({op for op in ops if op not in (LEAF, PROJECT)})
    return " or ".join(named) or "an input, or what superopt does not look into,"


def _type_difference(graph: EGraph, rule: Rule, name: str, identity: int) -> str:
    scheme, kind = rule.tensors[name], graph.type(identity)
    if not isinstance(kind, TensorType) or kind.shape is None:
        return f"the shape of what stands for `{name}` is not known"
    if scheme.dtype == "f" and not kind.dtype.is_float:
        return f"`{name}` is {kind.dtype}, and the rule is about floating point"
    if len(kind.shape) != len(scheme.shape):
        return f"`{name}` has {len(kind.shape)} axes, the rule has {len(scheme.shape)}"
    for wanted, given in zip(scheme.shape, kind.shape, strict=True):
        if isinstance(wanted, int) and wanted != given:
            return f"`{name}` has an axis of {given}, the rule has {wanted}"
    return ""
