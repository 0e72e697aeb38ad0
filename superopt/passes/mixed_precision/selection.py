"""Which operators and weights are of half precision: a strategy assignment problem.

A node of the problem is an operator (float32, half) or a value (of float32, of half precision, or either with a copy in
the other type behind a Cast). Edges forbid what does not fit: what makes a value gives it its type, what reads it needs
a copy in its own. Costs are bytes, or the time that a device takes. The squares of the errors that rounding single
values causes add up, as those of independent errors do; their sum is limited as memory is, by the solver's limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from superopt.assignment import StrategyAssignmentProblem, solve
from superopt.cost import CostModel
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph
from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType, TensorType
from superopt.ops.shape_inference import CanonicalNode, InferredTypes
from superopt.passes.mixed_precision.cast_insertion import PrecisionAssignment
from superopt.passes.mixed_precision.half_precision_restrictions import WIDE, HalfPrecisionRestrictions
from superopt.passes.mixed_precision.policy import POLICY

__all__ = ["HalfPrecisionObjective", "choose", "of_bytes", "of_time", "rounded_values"]

_FORBIDDEN = 10**18  # the solver's
_NANOSECONDS = 1000  # of a microsecond
_SCALE = 10**9  # of the squared budget
WIDE_ONLY, HALF_ONLY, NARROWED, WIDENED = range(
    4
)  # of a value: float32, half, float32 with a copy in half, the reverse


@dataclass(frozen=True)
class HalfPrecisionObjective:
    """What half precision is to save, in whole numbers of some unit.

    Attributes:
        node: of an operator, by position and type.
        value: of holding a value, by name and type; weights, which a file holds, as well.
        cast: of a Cast of a value, by name, and whether it is to half precision.
        static_cast: of a Cast of a weight, which is computed once.
    """

    node: Callable[[int, DType], int]
    value: Callable[[str, DType], int]
    cast: Callable[[str, bool], int]
    static_cast: int


def of_bytes(typing: InferredTypes, half: DType) -> HalfPrecisionObjective:
    """Bytes of weights and activations: a Cast writes its value a second time."""

    def size(name: str, dtype: DType) -> int:
        kind = typing.types.get(name)
        count = kind.elements if isinstance(kind, TensorType) else None
        return count * dtype.bits // 8 if isinstance(count, int) else 0

    def cast(name: str, narrow: bool) -> int:
        return size(name, half if narrow else WIDE) + POLICY.cast_bytes

    return HalfPrecisionObjective(lambda i, dtype: 0, size, cast, POLICY.cast_bytes)


def of_time(graph: Graph, typing: InferredTypes, half: DType, prices: CostModel) -> HalfPrecisionObjective:
    """Nanoseconds of a device's operators and Casts; a weight is cast once."""

    def priced(op: str, attributes: Mapping[str, AttributeValue], args: Sequence[TensorType | None],
               outs: Sequence[TensorType], fixed: Sequence[bool]) -> int:  # fmt: skip
        return int(_NANOSECONDS * prices.application(op, attributes, args, outs, constant_args=fixed).us)

    def typed(name: str, dtype: DType) -> TensorType | None:
        kind = typing.types.get(name)
        return replace(kind, dtype=dtype) if kind is not None and kind.dtype == WIDE else kind

    def node(position: int, dtype: DType) -> int:
        how, outputs = typing.nodes[position], graph.nodes[position].outputs
        assert isinstance(how, CanonicalNode), "others stay in float32"
        outs = [t for o in outputs if o and (t := typed(o, dtype)) is not None]
        args = [None if a is None else typed(a, dtype) for a in how.args]
        fixed = [a in graph.constants for a in how.args]
        return priced(how.operator.name, how.attributes, args, outs, fixed)

    def cast(name: str, narrow: bool) -> int:
        source, result = typed(name, WIDE if narrow else half), typed(name, half if narrow else WIDE)
        if source is None or result is None:
            raise AssertionError("only values of float32 are cast")
        return priced("Cast", {"to": str(result.dtype)}, [source], [result], [name in graph.constants])

    return HalfPrecisionObjective(node, lambda name, dtype: 0, cast, 0)


def rounded_values(graph: Graph, found: HalfPrecisionRestrictions) -> list[str]:
    """The values whose rounding has an error: what operators of half precision read or make, and weights."""
    names = dict.fromkeys(n for operand in found.nodes.values() for n in operand.names)
    names |= dict.fromkeys(o for i in found.nodes for o in graph.nodes[i].outputs if o)
    names |= dict.fromkeys(sorted(found.weights))
    return [n for n in names if n not in found.values]


def choose(
    graph: Graph,
    found: HalfPrecisionRestrictions,
    half: DType,
    objective: HalfPrecisionObjective,
    errors: Mapping[str, float],
    budget: float,
    seed: int = 0,
) -> tuple[PrecisionAssignment, int] | None:
    """The operators and weights that are of half precision at the least cost, errors within the budget.

    Args:
        graph: a checked graph.
        found: what may be of half precision.
        half: the type.
        objective: the cost.
        errors: by value, of rounding it alone.
        budget: that the root of the sum of their squares keeps to.
        seed: of the solver.

    Returns:
        The choice and its cost; ``None`` where the solver finds nothing.
    """
    problem = _Assignment(graph, found, half, objective, errors, budget)
    if not problem.options:
        return None
    try:
        result = solve(problem.written(), time_limit=POLICY.solver_seconds, work=POLICY.solver_steps, seed=seed)
    except SuperoptError:
        return None
    nodes = {i: found.nodes[i] for i, k in problem.operators.items() if result.strategies[k] == 1}
    stored = {
        n for n, k in problem.values.items()
        if n in found.weights and problem.options[k][result.strategies[k]] in (HALF_ONLY, WIDENED)
    }  # fmt: skip
    return PrecisionAssignment(half, nodes, frozenset(stored)), result.cost


class _Assignment:
    """The problem, as it is put together.

    Attributes:
        operators: nodes of the problem, by position of an operator.
        values: nodes of the problem, by name.
        options: the strategies of each node of the problem.
    """

    def __init__(
        self,
        graph: Graph,
        found: HalfPrecisionRestrictions,
        half: DType,
        objective: HalfPrecisionObjective,
        errors: Mapping[str, float],
        budget: float,
    ) -> None:
        self.graph, self.found, self.half, self.objective = graph, found, half, objective
        self.errors, self.budget = errors, budget
        self.operators: dict[int, int] = {}
        self.values: dict[str, int] = {}
        self.options: list[tuple[int, ...]] = []
        self._costs: list[int] = []
        self._usages: list[int] = []
        self._maker = {o: i for i in found.nodes for o in graph.nodes[i].outputs if o}
        self._read_wide = self._read_by_others()
        for position in found.nodes:
            self.operators[position] = len(self.options)
            costs = [objective.node(position, kind) for kind in (WIDE, half)]
            self._add((0, 1), costs, [0, 0])
        for name in rounded_values(graph, found):
            self.values[name] = len(self.options)
            options = self._options(name)
            self._add(options, [self._cost(name, o) for o in options], [self._usage(name, o) for o in options])

    def _add(self, options: tuple[int, ...], costs: Sequence[int], usages: Sequence[int]) -> None:
        self.options.append(options)
        self._costs += costs
        self._usages += usages

    def _read_by_others(self) -> set[str]:
        """The values that something reads in float32 whatever is chosen."""
        needed = {v.name for v in self.graph.outputs}
        for i, node in enumerate(self.graph.nodes):
            operand = self.found.nodes.get(i)
            places = frozenset[int]() if operand is None else operand.places
            needed.update(node.captures, (n for k, n in enumerate(node.inputs) if k not in places))
        return needed

    def _options(self, name: str) -> tuple[int, ...]:
        if name in self.found.weights:
            options: tuple[int, ...] = (WIDE_ONLY, HALF_ONLY, WIDENED)
        elif name in self._maker:
            options = (WIDE_ONLY, HALF_ONLY, NARROWED, WIDENED)
        else:
            options = (WIDE_ONLY, NARROWED)
        exact = self._maker.get(name) in self.found.exact
        error = self.errors.get(name, 0.0)

        def allowed(option: int) -> bool:
            if option == HALF_ONLY and name in self._read_wide:
                return False
            return option == WIDE_ONLY or (exact and option != NARROWED) or error <= self.budget

        return tuple(filter(allowed, options))

    def _cost(self, name: str, option: int) -> int:
        cost = self.objective.value(name, self.half if option in (HALF_ONLY, WIDENED) else WIDE)
        if option == NARROWED:
            cost += self.objective.cast(name, True)
        elif option == WIDENED:
            cost += self.objective.static_cast if name in self.found.weights else self.objective.cast(name, False)
        return cost

    def _usage(self, name: str, option: int) -> int:
        exact = self._maker.get(name) in self.found.exact and option != NARROWED
        if option == WIDE_ONLY or exact:
            return 0
        return ceil(_SCALE * (self.errors.get(name, 0.0) / self.budget) ** 2)

    def written(self) -> StrategyAssignmentProblem:
        edges: list[tuple[int, int]] = []
        tables: list[np.ndarray] = []

        def join(operator: int, value: int, takes: Sequence[frozenset[int]]) -> None:
            """What a value may be for an operator in float32, and for one in half precision."""
            edges.append((operator, value))
            allowed = [o in taken for taken in takes for o in self.options[value]]
            tables.append(np.where(allowed, 0, _FORBIDDEN))

        for position, operator in self.operators.items():
            for name in self.graph.nodes[position].outputs:
                if name:
                    join(
                        operator, self.values[name], (frozenset({WIDE_ONLY, NARROWED}), frozenset({HALF_ONLY, WIDENED}))
                    )
            for name in self.found.nodes[position].names:
                read = frozenset({WIDE_ONLY, NARROWED, WIDENED}), frozenset({HALF_ONLY, NARROWED, WIDENED})
                join(operator, self.values[name], read)
        sizes = np.array([len(o) for o in self.options], dtype=np.int64)
        return StrategyAssignmentProblem(
            self.graph.name, sizes, np.array(self._costs, dtype=np.int64), np.array(self._usages, dtype=np.int64),
            np.tile(np.array([0, 1], dtype=np.int64), (len(sizes), 1)), np.array(edges, dtype=np.int64).reshape(-1, 2),
            np.concatenate([np.zeros(0, dtype=np.int64), *tables]).astype(np.int64), _SCALE,
        )  # fmt: skip
