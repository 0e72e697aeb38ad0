"""A plan as data and files: placements, what devices exchange, proofs, a timeline, and a model file for each rank."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from superopt.errors import InvalidModel, NotEquivalent, UsageError
from superopt.formats import load, save
from superopt.ir.graph import Graph
from superopt.ops import REGISTRY
from superopt.placement.choice import Choice, PlacementProblem, choose
from superopt.placement.cluster import Cluster
from superopt.placement.composition import Layout, composed, with_copies
from superopt.placement.placements import Spec
from superopt.placement.rank_files import rank_graphs
from superopt.placement.schedule import Application, Event, Instruction, chrome_trace, schedule_of, simulate, tasks_of
from superopt.placement.statements import ProvedForm, certify_form, check_form_certificate
from superopt.placement.strategies import Model, model_of
from superopt.verifier.check.check_settings import CheckResult
from superopt.verifier.check.differential import check

__all__ = ["PLAN", "Plan", "check_ranks", "layout_of", "place", "rank_name", "write_plan"]

FORMAT, PLAN, TIMELINE, CERTIFICATES = "superopt.placement", "plan.json", "timeline.json", "certificates"


@dataclass(frozen=True)
class Plan:
    """A choice, its schedule and its simulation.

    Attributes:
        choice: of forms and placements.
        problem: what it solves.
        certificates: by the digest of a form's statement: whether its certificate holds, or why not.
        check: whether the rank files compute the model; ``None``: it was not asked.
    """

    choice: Choice
    problem: PlacementProblem
    certificates: Mapping[str, str] = field(default_factory=dict)
    check: CheckResult | None = None

    @property
    def model(self) -> Model:
        """What is placed."""
        return self.problem.model

    @property
    def cluster(self) -> Cluster:
        """Where it is placed."""
        return self.problem.cluster

    @cached_property
    def instructions(self) -> tuple[Instruction, ...]:
        """The schedule."""
        return tuple(schedule_of(self.choice, self.problem))

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """A simulated run of the schedule."""
        return tuple(simulate(tasks_of(self.instructions, self.choice.mesh)))

    @property
    def simulated(self) -> float:
        """Seconds of a run, exchanges beside computations."""
        return max((e.end for e in self.events), default=0.0)

    @property
    def proofs(self) -> dict[str, tuple[str, ProvedForm]]:
        """The forms that were chosen and state something, with their operators' names, by the statement's digest."""
        pairs = zip(self.model.operations, self.choice.forms, strict=True)
        return {p.digest: (o.name, p) for o, form in pairs for p in form.proofs if p.rule is not None}

    def data(self) -> dict[str, Any]:
        """The plan as JSON."""
        graph, choice = self.model.graph, self.choice
        result: dict[str, Any] = {
            "format": FORMAT, "version": 1, "model": graph.name, "cluster": self.cluster.name,
            "devices": [d.name for d in self.cluster.devices], "mesh": list(choice.mesh),
            "seconds": choice.seconds, "bound": choice.bound, "simulated_seconds": self.simulated,
            "peak_bytes": choice.peak, "memory_bytes": self.cluster.memory,
            "inputs": {v.name: _texts(choice.specs[v.name]) for v in graph.inputs if v.name in choice.specs},
            "outputs": {v.name: _texts(choice.specs[v.name]) for v in graph.outputs},
            "values": {name: _texts(spec) for name, spec in choice.specs.items()},
            "operations": [
                {
                    "name": o.node.name, "op": o.name,
                    "operands": [None if s is None else _texts(s) for s in f.operands],
                    "results": [_texts(s) for s in f.results], "proofs": [p.digest for p in f.proofs if p.digest],
                }
                for o, f in zip(self.model.operations, choice.forms, strict=True)
            ],
            "movements": [
                {
                    "op": i.step.op, "mesh_axis": i.step.mesh_axis, "value": i.source, "result": i.target,
                    "bytes": i.before.nbytes, "seconds": i.seconds,
                }
                for i in self.instructions if not isinstance(i, Application)
            ],
            "proofs": {
                digest: {
                    "op": op, "form": str(proved.form), "sizes": "all" if proved.all_sizes else "these",
                    "devices": "any number", "certificate": self.certificates.get(digest, "not written"),
                }
                for digest, (op, proved) in sorted(self.proofs.items())
            },
        }  # fmt: skip
        if self.check is not None:
            power = self.check.power
            result["check"] = {
                "verdict": self.check.verdict, "reason": self.check.reason, "trials": self.check.trials,
                "max_rel_error": self.check.max_rel_error, "power": None if power is None else power.share,
            }  # fmt: skip
        return result


def place(
    graph: Graph, cluster: Cluster, *, sizes: Mapping[str, int] | None = None, mesh: tuple[int, ...] | None = None,
    time_limit: float = 60.0, seed: int = 0,
) -> Plan:  # fmt: skip
    """The fastest placement of a model on a cluster that the proved forms allow.

    Args:
        graph: a checked graph.
        cluster: devices and links.
        sizes: of its open dimensions.
        mesh: devices along each axis; by default the best of up to two axes.
        time_limit: seconds for the solver.
        seed: of its random numbers.

    Raises:
        UsageError: the mesh has not as many places as the cluster has devices. Unsupported: a size is not known.
        InvalidModel: nothing fits into the devices' memory. ResourceLimit: nothing was found within the time.
    """
    model = model_of(graph, sizes)
    return Plan(*choose(model, cluster, mesh=mesh, time_limit=time_limit, seed=seed))


def write_plan(plan: Plan, folder: Path, *, force: bool = False, checked: bool = True, seed: int = 0) -> Plan:
    """Write ``plan.json``, ``timeline.json``, ``rank-N.onnx`` and the certificates of the forms, all or nothing.

    Args:
        plan: what to write.
        folder: it is made if it is not there.
        force: whether a plan that is there may be replaced.
        checked: read the files again, and compare the ranks together with the model; check the certificates.
        seed: of the inputs of the check.

    Returns:
        The plan with what was found.

    Raises:
        UsageError: the folder has a plan already, or cannot be written. NotEquivalent: the ranks do not compute the
            model. Unsupported: a weight that is to be split has no elements.
    """
    if (folder / PLAN).exists() and not force:
        raise UsageError("has a plan already", where=str(folder), hint="-f replaces it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            made = Path(temporary)
            for rank, graph in enumerate(rank_graphs(plan.choice, plan.model, plan.instructions)):
                save(graph, made / rank_name(rank))
            plan = replace(plan, certificates=_certificates(plan, made / CERTIFICATES, checked=checked))
            if checked:
                plan = replace(plan, check=check_ranks(plan.model.graph, plan.model, layout_of(plan), made, seed))
                _require_equal(plan.check)
            _write(made / PLAN, plan.data())
            _write(made / TIMELINE, chrome_trace(plan.events, [d.name for d in plan.cluster.devices]))
            _moved(made, folder)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(folder)) from error
    return plan


def rank_name(rank: int) -> str:
    """The file of a rank."""
    return f"rank-{rank}.onnx"


def layout_of(plan: Plan) -> Layout:
    """Where the inputs and outputs of a plan lie."""
    names = [v.name for v in (*plan.model.graph.inputs, *plan.model.graph.outputs)]
    specs = {n: plan.choice.specs[n] for n in names if n in plan.choice.specs}
    axes = {n: tuple(p.axis if p.kind == "split" else None for p in s) for n, s in specs.items()}
    return Layout(plan.choice.mesh, axes)


def check_ranks(original: Graph, model: Model, layout: Layout, folder: Path, seed: int = 0) -> CheckResult:
    """Whether the rank files in a folder together compute a model, on random and steered inputs.

    Files that do not fit together fail the check, as ranks that compute something else do.
    """
    try:
        ranks = [load(folder / rank_name(rank)) for rank in range(len(layout.coordinates))]
        whole = composed(original, model.types, ranks, layout)
    except InvalidModel as error:
        return CheckResult("failed", reason=str(error))
    return check(with_copies(original, layout), whole, seed=seed, power="quick", unify=True)


def _require_equal(result: CheckResult | None) -> None:
    if result is not None and result.verdict == "failed":
        raise NotEquivalent(
            f"the ranks do not compute the model: {result.reason}", where=result.culprit_output or "",
            hint="nothing was written; please report it with the model and the cluster",
        )  # fmt: skip


def _certificates(plan: Plan, folder: Path, *, checked: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    for digest, (op, proved) in sorted(plan.proofs.items()):
        assert proved.rule is not None
        path = certify_form(REGISTRY[op], proved.rule, folder)
        if path is None:
            found[digest] = "the proof could not be written down"
        elif checked:
            result = check_form_certificate(REGISTRY[op], path)
            found[digest] = "holds" if result.valid else f"not confirmed: {result.reason}"
        else:
            found[digest] = "not checked"
    return found


def _texts(spec: Spec) -> list[str]:
    return [str(p) for p in spec]


def _write(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _moved(source: Path, target: Path) -> None:
    """Files of a folder and of its folders, in another."""
    for path in sorted(p for p in source.rglob("*") if p.is_file()):
        moved = target / path.relative_to(source)
        moved.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, moved)
