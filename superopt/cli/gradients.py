"""``superopt gradients …`` and ``superopt train-step``: derivatives of models, proofs of them, and training steps."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from superopt.cli.command_utilities import (
    Dims,
    Force,
    Json,
    Model,
    ModelInputPath,
    Seed,
    err,
    out,
    parse_dims,
    save,
    write_json,
)
from superopt.cli.output_paths import claim
from superopt.ir.errors import NotEquivalent, UsageError

__all__ = ["app", "train_step"]

app = typer.Typer(no_args_is_help=True, help="Derivatives of models as models, and the proofs of their operators'.")

Output = Annotated[str | None, typer.Option("-o", "--output", metavar="OUT", help=".onnx or .json; - for stdout")]
Of = Annotated[
    list[str] | None, typer.Option("--of", metavar="OUTPUT", help="what is differentiated; all real outputs")
]
To = Annotated[
    list[str] | None,
    typer.Option("--to", metavar="INPUT", help="with respect to which inputs or weights; all real inputs"),
]
MODES = ("reverse", "forward", "vjp")


@app.command()
def check(
    operators: Annotated[list[str] | None, typer.Argument(metavar="OP...", help="all that have a derivative")] = None,
    report_json: Json = None,
    force: Force = False,
) -> None:
    """Prove that operators' derivatives are those of their meanings, and pullbacks their adjoints, for all sizes."""
    from superopt.report.terminal import table
    from superopt.verifier.prover.gradients import check_gradients

    claim({"--json": report_json}, force=force)
    operator_gradients = []
    for checked in check_gradients(operators or ()):
        operator_gradients.append(checked)
        err().print(f"{checked.op}: {checked.proved} of {checked.total}", markup=False)
    if report_json is not None:
        write_json([{**asdict(c), "is_proved": c.is_proved} for c in operator_gradients], report_json, force)
    if report_json != "-":
        cells = [(c.op, c.how, f"{c.proved} of {c.total}", "; ".join(c.kinks)) for c in operator_gradients]
        out().print(table("operator", "derivative", "proved", "kinks, and what is taken there", rows=cells))
    whole = sum(c.is_proved for c in operator_gradients)
    err().print(
        f"{whole} of {len(operator_gradients)} operators ({whole / len(operator_gradients):.1%}) proved for all sizes",
        markup=False,
    )
    for checked in operator_gradients:
        for reason in checked.missing:
            err().print(f"not proved: {checked.op}, {reason}", markup=False, soft_wrap=True)


@app.command("of")
def of_model(
    model: Model,
    output: Output = None,
    of: Of = None,
    to: To = None,
    mode: Annotated[
        str, typer.Option(metavar="|".join(MODES), help="vjp: with an input for the cotangent of each output")
    ] = "reverse",
    keep_outputs: Annotated[bool, typer.Option("--keep-outputs", help="give the model's outputs, too")] = False,
    dim: Dims = None,
    force: Force = False,
) -> None:
    """Differentiate MODEL: a model whose outputs are derivatives of its own.

    Reverse mode gives the gradient of the sum of the outputs' elements; forward mode moves the outputs along tangents
    of the inputs, which are further inputs. Sizes that --dim names are fixed.
    """
    from superopt.formats import load
    from superopt.frontend.autodiff import gradients, jvp, vjp

    claim({"-o": output}, [model], force=force)
    if mode not in MODES:
        raise UsageError(f"--mode {mode!r} is not one of {', '.join(MODES)}")
    if mode == "vjp" and keep_outputs:
        raise UsageError("--keep-outputs goes with --mode reverse or forward")
    with ModelInputPath(model) as path:
        graph, sizes = load(path), parse_dims(dim or [])
        if mode == "vjp":
            new_graph = vjp(graph, of, to, sizes=sizes)
        else:
            make = jvp if mode == "forward" else gradients
            new_graph = make(graph, of, to, keep_outputs=keep_outputs, sizes=sizes)
        if output is not None:
            save(new_graph, output, force)
    console = err() if output == "-" else out()
    console.print(f"{len(graph.nodes)} nodes → {len(new_graph.nodes)}", markup=False)
    for value in new_graph.outputs:
        console.print(f"  {value.name}: {value.type}", markup=False)


@app.command()
def modes(
    model: Model, of: Of = None, to: To = None, dim: Dims = None, report_json: Json = None, force: Force = False
) -> None:
    """Which mode gives MODEL's whole Jacobian with less work."""
    from superopt.formats import load
    from superopt.frontend.autodiff import modes as compare

    claim({"--json": report_json}, [model], force=force)
    with ModelInputPath(model) as path:
        report = compare(load(path), of, to, sizes=parse_dims(dim or []))
    if report_json is not None:
        write_json({**asdict(report), "total": report.total, "cheaper": report.cheaper}, report_json, force)
    if report_json != "-":
        out().print(str(report), markup=False)


def train_step(
    model: Model,
    output: Output = None,
    loss: Annotated[
        str, typer.Option(metavar="mse|l1|cross-entropy|bce|output", help="of the model's outputs")
    ] = "mse",
    optimizer: Annotated[
        str, typer.Option(metavar="sgd|momentum|adam|adamw", help="PyTorch's, with its defaults")
    ] = "sgd",
    rate: Annotated[
        float | None, typer.Option("--lr", min=0, help="learning rate to start with; it is an input")
    ] = None,
    of: Annotated[
        list[str] | None, typer.Option("--of", metavar="OUTPUT", help="the loss is of these; all real")
    ] = None,
    train: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="weights to learn, as `*.bias`; all")
    ] = None,
    freeze: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="weights not to learn")] = None,
    dim: Dims = None,
    batch_statistics: Annotated[
        bool, typer.Option("--batch-statistics", help="BatchNormalization as in PyTorch's train mode, not eval")
    ] = False,
    try_out: Annotated[
        int, typer.Option("--try", metavar="N", min=0, help="run N steps in ONNX Runtime and in float64, and compare")
    ] = 0,
    seed: Seed = 0,
    force: Force = False,
) -> None:
    """Make MODEL's training step one model: forward pass, loss, backward pass, update of the weights.

    Weights, what the optimizer keeps, the learning rate and the number of the step are inputs with a value to start
    from, and outputs "next NAME" to feed in the next step. BatchNormalization keeps its statistics, as in PyTorch's
    eval mode, unless --batch-statistics lets them follow the batches'.
    """
    from superopt.formats import load
    from superopt.frontend.training import rehearse
    from superopt.frontend.training import train_step as make

    claim({"-o": output}, [model], force=force)
    with ModelInputPath(model) as path:
        graph = load(path)
        step = make(
            graph, loss, optimizer, outputs=of, train=train or ("*",), freeze=freeze or (), lr=rate,
            sizes=parse_dims(dim or []), batch_statistics=batch_statistics,
        )  # fmt: skip
        if output is not None:
            save(step.graph, output, force)
    console = err() if output == "-" else out()
    console.print(
        f"{len(graph.nodes)} nodes → {len(step.graph.nodes)}, {len(step.parameters)} weights are learnt", markup=False
    )
    for name in step.targets:
        kind = next(v.type for v in step.graph.inputs if v.name == name)
        console.print(f"  {name}: {kind}", markup=False)
    if try_out:
        rehearsal = rehearse(step, try_out, seed=seed)
        losses = f"{try_out} steps: loss {rehearsal.losses[0]:.6g} → {rehearsal.losses[-1]:.6g}"
        weights = (
            f"weights moved by {rehearsal.moved:.2g} (root mean square), "
            f"{rehearsal.apart:.1g} apart from the same in float64"
        )
        console.print(f"{losses}; {weights}", markup=False, soft_wrap=True)
        if not rehearsal.is_close:
            raise NotEquivalent("ONNX Runtime's steps stray from those in float64")
