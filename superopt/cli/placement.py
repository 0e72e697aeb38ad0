"""``superopt place``: a model on the devices of a cluster."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from superopt.cli.command_utilities import (
    Dims,
    Force,
    Json,
    Model,
    ModelInputPath,
    ProgressReporter,
    Seed,
    out,
    parse_dims,
    write_json,
)
from superopt.cli.output_paths import claim
from superopt.ir.errors import UsageError, printable

if TYPE_CHECKING:
    from superopt.placement import Plan

__all__ = ["place"]


def place(
    model: Model,
    cluster: Annotated[
        str, typer.Option("--cluster", metavar="FILE", help="devices and links, as TOML (lab/notes/devices.md)")
    ],
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="DIR", help="plan, timeline, certificates, a file a rank")
    ] = None,
    mesh: Annotated[
        str | None,
        typer.Option(metavar="2x4", help="devices along each axis of the mesh; by default the best is found"),
    ] = None,
    dim: Dims = None,
    time_limit: Annotated[
        float, typer.Option("--time-limit", metavar="S", min=0, help="seconds for the solver")
    ] = 60.0,
    seed: Seed = 0,
    no_check: Annotated[bool, typer.Option("--no-check", help="write files without comparing them with MODEL")] = False,
    report_json: Json = None,
    force: Force = False,
) -> None:
    """Place MODEL on the devices of a cluster: what each holds and computes, and what they exchange.

    Every partitioned form of an operator that is used is proved for any number of devices. With -o, a model file for
    each rank is written; together they are compared with MODEL first. Exit code 5 if they differ.
    """
    from superopt.formats import load
    from superopt.placement import place as placed
    from superopt.placement import read_cluster, write_plan

    claim({"--json": report_json}, [model, cluster], force=force)
    shape = None if mesh is None else _mesh(mesh)
    with ModelInputPath(model) as path, ProgressReporter("placing the model"):
        plan = placed(
            load(path), read_cluster(Path(cluster)), sizes=parse_dims(dim or []), mesh=shape, time_limit=time_limit,
            seed=seed,
        )  # fmt: skip
        if output is not None:
            plan = write_plan(plan, Path(output), force=force, checked=not no_check, seed=seed)
    if report_json is not None:
        write_json(plan.data(), report_json, force)
    if report_json != "-":
        _show(plan)


def _mesh(text: str) -> tuple[int, ...]:
    """``2x4`` as numbers.

    Raises:
        UsageError: it is no mesh.
    """
    parts = text.split("x")
    if not all(p.isdecimal() and 0 < int(p) < 10_000 for p in parts):
        raise UsageError(f"{printable(text)!r} is no mesh", where="--mesh", hint="for instance --mesh 2x4")
    return tuple(map(int, parts))


def _show(plan: Plan) -> None:
    from superopt.placement.schedule import Movement

    choice, console = plan.choice, out()
    moved = Counter(i.step.op for i in plan.instructions if isinstance(i, Movement))
    said = ", ".join(f"{count} {op}" for op, count in sorted(moved.items())) or "nothing is exchanged"
    shape = " × ".join(map(str, choice.mesh))
    lines = [
        f"{len(plan.cluster.devices)} devices as {shape}: {choice.seconds * 1e3:.3f} ms one after the other, "
        f"{plan.simulated * 1e3:.3f} ms with exchanges beside computations",
        f"at most {choice.peak:,} bytes of {plan.cluster.memory:,} a device; {said}",
        f"{len(plan.proofs)} partitioned forms, each proved for any number of devices",
    ]
    if plan.check is not None:
        lines.append(f"the ranks together against the model: {plan.check.verdict} {plan.check.reason}".rstrip())
    for line in lines:
        console.print(line, markup=False)
