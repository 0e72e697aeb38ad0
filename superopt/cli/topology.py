"""``superopt strip`` and ``superopt apply``: a model is optimized elsewhere, and its weights stay here."""

from __future__ import annotations

from typing import Annotated

import typer

from superopt.cli.outputs import claim
from superopt.cli.shell import Force, Input, Model, Seed, err, out, save
from superopt.ir.errors import UsageError

__all__ = ["COMMANDS"]

Output = Annotated[str, typer.Option("-o", "--output", metavar="OUT", help=".onnx or .json; - for stdout")]


def strip(model: Model, output: Output, force: Force = False) -> None:
    """Write MODEL's topology: shapes, operators, attributes, integers and single numbers, and no weights.

    Optimize it anywhere (superopt optimize, POST /v1/jobs); superopt apply puts what came back onto MODEL.
    """
    from superopt.formats import load
    from superopt.pipeline.topology import topology

    if output.endswith(".onnx") or output == "-":
        raise UsageError("a topology is a JSON graph: ONNX has no weights without elements", hint="-o NAME.json")
    claim({"-o": output}, [model], force=force)
    with Input(model) as path:
        save(topology(load(path)), output, force)


def apply(
    model: Model,
    patch: Annotated[str, typer.Argument(metavar="PATCH", help="what was made of MODEL's topology")],
    output: Output,
    seed: Seed = 0,
    no_check: Annotated[bool, typer.Option("--no-check", help="skip the check against MODEL")] = False,
    force: Force = False,
) -> None:
    """Apply to MODEL what was made of its topology, and compare the result with MODEL (exit 5 where it differs)."""
    from superopt.formats import load
    from superopt.pipeline.topology import apply as applied

    claim({"-o": output}, [model, patch], force=force)
    with Input(model) as first, Input(patch) as second:
        made, found = applied(load(first), load(second), seed=seed, check=not no_check)
        save(made, output, force)
    console = err() if output == "-" else out()
    if found is not None:
        console.print(
            f"check {found.verdict}: {found.trials} trials, max rel error {found.max_rel_error:.2e}, "
            f"max abs error {found.max_abs_error:.2e} {found.reason}".rstrip(),
            markup=False,
        )
    if output != "-":
        console.print(f"wrote {output}", markup=False)


COMMANDS = (strip, apply)
