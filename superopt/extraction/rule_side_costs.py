"""The prices of both sides of a rule at a match, before anything is added to an e-graph.

A side's price is the sum over its applications that run, each by itself, less what the backend saves by running two of
them as one. It follows from the pattern, the numbers that it binds, and the types of its variables, so that places
alike are priced once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from superopt.egraph.egraph import ABSENT, EGraph
from superopt.egraph.pattern_compiler import CompiledPattern
from superopt.egraph.saturation import FlattenedTerms, recipe_of
from superopt.extraction.enode_costs import FORBIDDEN, ENodeCostModel
from superopt.ir.terms import AttributeValue, Term
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.operator_semantics import IllTypedOperator

__all__ = ["RuleSideCosts"]

_Types = tuple[TensorType, ...]  # of an application's outputs


class RuleSideCosts:
    """Prices of sides under bindings, with a memory.

    Args:
        pricer: what applications cost.
    """

    def __init__(self, pricer: ENodeCostModel) -> None:
        self.pricer = pricer
        self._known: dict[tuple[object, ...], tuple[float, float]] = {}

    def of(
        self, graph: EGraph, pattern: CompiledPattern, slots: Sequence[int], values: tuple[AttributeValue, ...],
        sizes: Mapping[str, AttributeValue],
    ) -> tuple[float, float]:  # fmt: skip
        """Microseconds of the matched side and of the other one; infinite where the other is not typed.

        Args:
            graph: where the match is; rebuilt.
            pattern: what matches.
            slots: classes of the match.
            values: of the pattern's registers.
            sizes: what they bind.
        """
        classes = graph.classes
        groups = [classes[slots[s]] for s in pattern.slots]
        key = (pattern, values, *[g.kind << 1 | g.constant for g in groups])
        found = self._known.get(key)
        if found is None:
            given: dict[str, tuple[TensorType, bool]] = {}
            for name, group in zip(pattern.tensor_slots, groups, strict=True):
                assert isinstance(group.type, TensorType)
                given[name] = (group.type, group.constant)
            found = self._known[key] = (
                self._side(graph, pattern.source, given, sizes), self._side(graph, pattern.target, given, sizes),
            )  # fmt: skip
        return found

    def _side(
        self, graph: EGraph, roots: tuple[Term, ...], given: Mapping[str, tuple[TensorType, bool]],
        sizes: Mapping[str, AttributeValue],
    ) -> float:  # fmt: skip
        try:
            return self._priced(graph, recipe_of(roots), given, sizes)
        except (IllTypedOperator, KeyError):
            return FORBIDDEN

    def _priced(
        self, graph: EGraph, recipe: FlattenedTerms, given: Mapping[str, tuple[TensorType, bool]],
        sizes: Mapping[str, AttributeValue],
    ) -> float:  # fmt: skip
        types: list[_Types] = [(given[name][0],) for name in recipe.variables]
        fixed = [given[name][1] for name in recipe.variables]
        makers = ["" for _ in recipe.variables]  # the operator that runs there
        fused: set[int] = set()
        total = 0.0
        for (app, numbers, index), attributes in zip(recipe.applications, recipe.attributes(graph, sizes), strict=True):
            if app is None:
                types.append((types[numbers[0]][index],))
                fixed.append(fixed[numbers[0]])
                makers.append("")
                continue
            args = tuple(None if n == ABSENT else types[n][0] for n in numbers)
            results = REGISTRY[app.op].apply(list(args), dict(attributes))[1]
            constant = tuple(n != ABSENT and fixed[n] for n in numbers)
            runs = not all(constant[i] for i, n in enumerate(numbers) if n != ABSENT) if numbers else False
            if runs:
                what = (app.op, attributes, args, constant)
                total += self.pricer.alone(what)
                saved, producer = max(
                    ((self.pricer.fused(makers[n], what), n) for n in set(numbers) if n != ABSENT and makers[n]
                     and n not in fused),
                    default=(0.0, ABSENT),
                )  # fmt: skip
                if saved > 0.0:
                    fused |= {producer, len(types)}
                    total -= saved
            types.append(tuple(results))
            fixed.append(not runs)
            makers.append(app.op if runs else "")
        return total
