"""The choice of placements as a problem of strategy assignment (:mod:`superopt.assignment`).

A node is an operation, whose strategies are its forms, or a value, whose strategies are the placements in which it is
kept. An edge joins a value with the operation that makes it, and with each that reads it: its table has the seconds
from one placement to the other. So what several operations read in one placement gets there once. A value holds the
bytes of its piece from when it is made until it was read last; weights are always there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

import numpy as np

from superopt.assignment import AssignmentSolverPolicy as SolverPolicy
from superopt.assignment import StrategyAssignment, StrategyAssignmentProblem, solve
from superopt.cost.cost_model import CostModel, ProfileCostModel
from superopt.cost.device_profile import load_profile
from superopt.errors import InvalidModel, UsageError
from superopt.ir.terms import Attributes
from superopt.ir.types import TensorType
from superopt.ops.flops_and_bytes import VIEWS, work_of
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.placement.cluster import Cluster
from superopt.placement.collectives import AxisNetwork, Step, axis_networks, reshardings, specs
from superopt.placement.placements import Spec, local_type
from superopt.placement.strategies import MeshForm, Model, Operation, mesh_forms

__all__ = ["POLICY", "Choice", "PlacementPolicy", "PlacementProblem", "Speeds", "choose"]

_Types = tuple[TensorType | None, ...]


class Speeds:
    """Prices on the slowest kind of device of a cluster: where all do the same, the others wait for it.

    Raises:
        UsageError: a profile that the cluster names does not exist. InvalidModel: it is damaged.
    """

    def __init__(self, cluster: Cluster) -> None:
        kinds = dict.fromkeys(d.kind for d in cluster.devices)
        self._profiles: list[CostModel] = [ProfileCostModel(load_profile(k[0])) for k in kinds if k[0]]
        self._peaks = [k[1:] for k in kinds if not k[0]]
        self._known: dict[tuple[object, ...], float] = {}

    def seconds(
        self, op: str, attributes: Attributes, types: _Types, made: Sequence[TensorType], fixed: Sequence[bool]
    ) -> float:
        """Seconds of an application.

        Args:
            op: operator name.
            attributes: canonical ones.
            types: of the operands, of known sizes.
            made: of the results.
            fixed: which operands are weights.
        """
        key = (op, attributes, types, tuple(made), tuple(fixed))
        if key not in self._known:
            moving = [t for t, f in zip(types, fixed, strict=True) if t is not None and not f]
            self._known[key] = self._priced(op, attributes, types, made, fixed) if moving else 0.0
        return self._known[key]

    def _priced(
        self, op: str, attributes: Attributes, types: _Types, made: Sequence[TensorType], fixed: Sequence[bool]
    ) -> float:
        prices = [m.application(op, attributes, types, made, fixed).us / 1e6 for m in self._profiles]
        if self._peaks:
            flops, moved = (0, 0) if op in VIEWS else work_of(op, dict(attributes), types, made)
            prices += [max(flops / rate, moved / bandwidth) + overhead for rate, bandwidth, overhead in self._peaks]
        return max(prices)

    def copying(self, kind: TensorType) -> float:
        """Seconds in which a device writes a tensor that it has read."""
        rank = kind.rank or 0
        perm = (("perm", (*range(1, rank), 0)),) if rank else ()
        op, attributes = ("Transpose", perm) if rank else ("Identity", ())
        return self.seconds(op, attributes, (kind,), (kind,), (False,))


@dataclass(frozen=True)
class PlacementPolicy:
    """Limits of the choice.

    Attributes:
        axes: of a mesh, at most: one for data and one for the layers' own axes, as in Megatron.
        rounds: solutions, each with less memory by what copies in another placement took too much in the last.
        work: steps of the solver in a problem; on trees and chains one is exact.
        solver: its constants. So many sweeps bound small problems exactly, and 96 layers in seconds.
    """

    axes: int = 2
    rounds: int = 4
    work: int = 20
    solver: SolverPolicy = field(default_factory=lambda: SolverPolicy(sweeps=40))


POLICY = PlacementPolicy()
_PICOSECONDS = 1e12  # costs of a problem are integers
_FORBIDDEN = POLICY.solver.forbidden


@dataclass(frozen=True)
class Choice:
    """A form for each operation and a placement for each value.

    Attributes:
        mesh: devices along each axis.
        forms: by operation.
        specs: by value.
        seconds: of a run, without overlap.
        bound: no choice within the memory takes less.
        peak: bytes that a device holds at one time, copies in other placements included.
    """

    mesh: tuple[int, ...]
    forms: tuple[MeshForm, ...]
    specs: Mapping[str, Spec]
    seconds: float
    bound: float
    peak: int


class PlacementProblem:
    """The problem of a model on a mesh."""

    def __init__(self, model: Model, cluster: Cluster, mesh: Sequence[int], speeds: Speeds) -> None:
        self.model, self.cluster, self.mesh, self.speeds = model, cluster, tuple(mesh), speeds
        self.networks: tuple[AxisNetwork, ...] = axis_networks(cluster, mesh)
        self.forms = [self._writable(o, mesh_forms(model, o, mesh)) for o in model.operations]
        self.values = model.values
        made = {v for o in model.operations for v in o.outputs if v}
        outputs = {o.name for o in model.graph.outputs}
        self.specs: dict[str, list[Spec]] = {}
        for v in self.values:
            partial = v in made and v not in outputs and model.types[v].dtype.is_float
            self.specs[v] = specs(model.types[v], self.mesh, partial=partial)
        self._reshardings: dict[tuple[TensorType, Spec], Mapping[Spec, tuple[float, tuple[Step, ...]]]] = {}
        self._tables: dict[tuple[object, ...], np.ndarray] = {}

    def _writable(self, operation: Operation, forms: Sequence[MeshForm]) -> list[MeshForm]:
        """The forms that can be written as nodes of the model's opset; without a split the node stays as it is."""
        own, *others = forms
        return [own, *(f for f in others if self._node_exists(operation, f))]

    def _node_exists(self, operation: Operation, form: MeshForm) -> bool:
        assert operation.operator is not None, "a barrier has one form"
        version = self.model.graph.opset.get(operation.operator.domain, 1)
        try:
            operation.operator.write(dict(form.attributes), self.operand_types(operation, form), version)
        except UnsupportedNodeForm:
            return False
        return True

    def operand_types(self, operation: Operation, form: MeshForm) -> tuple[TensorType | None, ...]:
        """The types of a device's operands."""
        pairs = zip(self.model.operand_types(operation), form.operands, strict=True)
        return tuple(None if t is None or s is None else local_type(t, s, self.mesh) for t, s in pairs)

    def result_types(self, operation: Operation, form: MeshForm) -> tuple[TensorType, ...]:
        """The types of a device's results."""
        pairs = zip(self.model.result_types(operation), form.results, strict=True)
        return tuple(piece for t, s in pairs if (piece := local_type(t, s, self.mesh)) is not None)

    # -- costs -------------------------------------------------------------------------------------------------------

    def form_seconds(self, operation: Operation, form: MeshForm) -> float:
        """Seconds of a device's application."""
        types, made = self.operand_types(operation, form), self.result_types(operation, form)
        fixed = [a in self.model.static for a in operation.args]
        return self.speeds.seconds(operation.name, form.attributes, types, made, fixed)

    def resharding(self, value: str, source: Spec, target: Spec) -> tuple[float, tuple[Step, ...]]:
        """Seconds and steps from one placement of a value to another; infinite where there is no way."""
        key = self.model.types[value], source
        if key not in self._reshardings:
            self._reshardings[key] = reshardings(*key, self.mesh, self.networks, self.speeds.copying)
        return self._reshardings[key].get(target, (float("inf"), ()))

    def bytes_of(self, value: str, spec: Spec) -> int:
        """Bytes of a device's piece."""
        piece = local_type(self.model.types[value], spec, self.mesh)
        return 0 if piece is None else piece.nbytes or 0

    # -- the problem -------------------------------------------------------------------------------------------------

    @cached_property
    def intervals(self) -> dict[str, tuple[int, int]]:
        """When each value is there; the times are the operations."""
        end = len(self.model.operations)
        outputs = {o.name for o in self.model.graph.outputs}
        first = {v: t for t, o in enumerate(self.model.operations) for v in o.outputs if v}
        last = {a: t for t, o in enumerate(self.model.operations) for a in o.args if a is not None}
        weights = self.model.graph.constants
        return {
            v: (first.get(v, 0), end if v in outputs or v in weights else last.get(v, first.get(v, 0)) + 1)
            for v in self.values
        }

    def problem(self, limit: int) -> StrategyAssignmentProblem:
        """The problem with a limit of memory: values first, then operations."""
        number = {v: k for k, v in enumerate(self.values)}
        costs = [np.zeros(len(self.specs[v]), dtype=np.int64) for v in self.values]
        usages = [np.array([self.bytes_of(v, s) for s in self.specs[v]], dtype=np.int64) for v in self.values]
        intervals = [self.intervals[v] for v in self.values]
        edges: list[tuple[int, int]] = []
        tables: list[np.ndarray] = []
        for t, (operation, forms) in enumerate(zip(self.model.operations, self.forms, strict=True)):
            node = len(self.values) + t
            costs.append(np.array([_cost(self.form_seconds(operation, f)) for f in forms], dtype=np.int64))
            usages.append(np.zeros(len(forms), dtype=np.int64))
            intervals.append((t, t + 1))
            for k, a in enumerate(operation.args):
                if a is not None:
                    edges.append((number[a], node))
                    tables.append(self._table(a, self.specs[a], [f.operands[k] for f in forms]))
            for k, v in enumerate(operation.outputs):
                if v:
                    edges.append((node, number[v]))
                    tables.append(self._table(v, [f.results[k] for f in forms], self.specs[v]))
        return StrategyAssignmentProblem(
            self.model.graph.name, np.array([len(c) for c in costs], dtype=np.int64), np.concatenate(costs),
            np.concatenate(usages), np.array(intervals, dtype=np.int64),
            np.array(edges, dtype=np.int64).reshape(-1, 2),
            np.concatenate(tables) if tables else np.zeros(0, dtype=np.int64), limit,
        )  # fmt: skip

    def _table(self, value: str, sources: Sequence[Spec | None], targets: Sequence[Spec | None]) -> np.ndarray:
        key = self.model.types[value], tuple(sources), tuple(targets)
        if key not in self._tables:
            pairs = ((s, t) for s in sources for t in targets)
            rows = [_cost(self.resharding(value, s, t)[0]) for s, t in pairs if s is not None and t is not None]
            self._tables[key] = np.array(rows, dtype=np.int64)
        return self._tables[key]

    # -- what a choice takes -----------------------------------------------------------------------------------------

    def choice_of(self, strategies: Sequence[int], bound: float) -> Choice:
        """The choice that strategies mean, of values and of operations."""
        placed = {v: self.specs[v][strategies[k]] for k, v in enumerate(self.values)}
        forms = tuple(f[strategies[len(self.values) + t]] for t, f in enumerate(self.forms))
        return Choice(self.mesh, forms, placed, self.seconds(forms, placed), bound, self.peak(forms, placed))

    def seconds(self, forms: Sequence[MeshForm], placed: Mapping[str, Spec]) -> float:
        """Seconds of a run, one thing after the other."""
        total = 0.0
        for operation, form in zip(self.model.operations, forms, strict=True):
            total += self.form_seconds(operation, form)
            for a, s in zip(operation.args, form.operands, strict=True):
                total += self.resharding(a, placed[a], s)[0] if a is not None and s is not None else 0.0
            for v, s in zip(operation.outputs, form.results, strict=False):
                total += self.resharding(v, s, placed[v])[0] if v else 0.0
        return total

    def peak(self, forms: Sequence[MeshForm], placed: Mapping[str, Spec]) -> int:
        """Bytes that a device holds at one time, copies in other placements included."""
        held = [0] * (len(self.model.operations) + 1)
        for v, (start, end) in self.intervals.items():
            size = self.bytes_of(v, placed[v])
            for t in range(start, end):
                held[t] += size
        for t, (operation, form) in enumerate(zip(self.model.operations, forms, strict=True)):
            copies = {(a, s) for a, s in zip(operation.args, form.operands, strict=True) if a and s and s != placed[a]}
            copies |= {(v, s) for v, s in zip(operation.outputs, form.results, strict=False) if v and s != placed[v]}
            held[t] += sum(self.bytes_of(v, s) for v, s in copies)
        return max(held)


def _cost(seconds: float) -> int:
    return _FORBIDDEN if seconds == float("inf") else round(seconds * _PICOSECONDS)


def choose(
    model: Model, cluster: Cluster, *, mesh: Sequence[int] | None = None, time_limit: float = 60.0, seed: int = 0,
    policy: PlacementPolicy = POLICY,
) -> tuple[Choice, PlacementProblem]:  # fmt: skip
    """The fastest choice that fits into the memory, of all meshes where none is given.

    Raises:
        InvalidModel: nothing fits into the devices' memory. ResourceLimit: nothing was found within the time.
    """
    if mesh is not None and prod(mesh) != len(cluster.devices):
        raise UsageError(f"{prod(mesh)} places for {len(cluster.devices)} devices", where="mesh")
    meshes = [tuple(mesh)] if mesh is not None else _meshes(len(cluster.devices), policy.axes)
    speeds = Speeds(cluster)
    best: tuple[Choice, PlacementProblem] | None = None
    refused: InvalidModel | None = None
    began = time.monotonic()
    for number, m in enumerate(meshes):
        placement = PlacementProblem(model, cluster, m, speeds)
        try:
            found = _solved(placement, began + time_limit * (number + 1) / len(meshes), seed, policy)
        except InvalidModel as error:
            refused = error
            continue
        if best is None or found.seconds < best[0].seconds:
            best = found, placement
    if best is None:
        raise refused or InvalidModel("there is no mesh")
    return best


def _meshes(count: int, axes: int) -> list[tuple[int, ...]]:
    """The ordered factorisations of a number of devices into so many factors at most."""
    found: list[tuple[int, ...]] = [(count,)]
    if axes > 1:
        found += [(a, *rest) for a in range(2, count) if count % a == 0 for rest in _meshes(count // a, axes - 1)]
    return found


def _solved(placement: PlacementProblem, deadline: float, seed: int, policy: PlacementPolicy) -> Choice:
    """The choice on one mesh, by a moment of the clock."""
    memory = limit = placement.cluster.memory
    problem = placement.problem(limit)
    for _ in range(policy.rounds):
        found: StrategyAssignment = solve(
            replace(problem, usage_limit=limit), time_limit=max(0.0, deadline - time.monotonic()), work=policy.work,
            seed=seed, policy=policy.solver,
        )  # fmt: skip
        choice = placement.choice_of(found.strategies, found.bound / _PICOSECONDS)
        if choice.peak <= memory:
            return choice
        limit -= choice.peak - memory
        if limit <= 0:
            break
    raise InvalidModel(
        f"a device would hold {choice.peak} bytes, more than its {memory}", where="memory",
        hint="more devices, or more memory",
    )  # fmt: skip
