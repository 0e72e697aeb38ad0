"""``superopt algorithms …``: bilinear algorithms with fewer multiplications, found, checked and shown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from superopt.cli.command_utilities import (
    Dims,
    Force,
    Model,
    ModelInputPath,
    ProgressReporter,
    Seed,
    Target,
    Threads,
    err,
    out,
    parse_dims,
    save,
    write_json,
)
from superopt.cli.output_paths import claim
from superopt.ir.errors import UsageError, printable

__all__ = ["app", "show_algorithm"]

app = typer.Typer(no_args_is_help=True, help="Algorithms with fewer multiplications: find, check, apply.")

Kept = Annotated[Path | None, typer.Argument(metavar="FILE", help="what `find` wrote; the algorithms that are shipped")]


@app.command()
def find(
    tiles: Annotated[
        list[str] | None,
        typer.Argument(metavar="TILE...", help="conv:4:3, matmul:2:2:2, complex; by default, what is shipped"),
    ] = None,
    destination: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="write them as JSON")] = None,
    steps: Annotated[int, typer.Option(min=1, help="flips of a walk on the flip graph")] = 3_000_000,
    walks: Annotated[int, typer.Option(min=1, help="walks on the flip graph")] = 4,
    seed: Seed = 0,
    force: Force = False,
) -> None:
    """Find algorithms for tiles of operators, from what the operators mean, and print a table of them.

    Everything is checked exactly before it is shown. Equal seeds, steps and walks find the same.
    """
    from superopt.discovery.bilinear.find import TILES, log_of, tile_named
    from superopt.discovery.bilinear.find import find as look
    from superopt.rules.bilinear import save_algorithms

    claim({"--out": None if destination is None else str(destination)}, force=force)
    chosen = [tile_named(name) for name in tiles or TILES]
    sought = []
    for tile in chosen:
        err().print(f"{tile.name} …", markup=False)
        sought.append(look(tile, seed=seed, steps=steps, walks=walks))
    for line in log_of(sought):
        out().print(line, markup=False, soft_wrap=True)
    if destination is not None:
        save_algorithms([s.algorithm for s in sought if s.algorithm is not None], destination)


@app.command()
def check(file: Kept = None) -> None:
    """Compare algorithms with the meanings of their tiles, exactly. Exit code 5 if one is false."""
    from superopt.rules.bilinear import KEPT, load_algorithms
    from superopt.verifier.exact.bilinear import check_algorithm

    for algorithm in load_algorithms(file or KEPT):
        compared = check_algorithm(algorithm)
        name, rank = algorithm.tile.name, algorithm.rank
        out().print(f"{name}: {rank} products, {compared} coefficients compared exactly", markup=False)


@app.command()
def rules(
    destination: Annotated[Path, typer.Option("--out", metavar="FILE", help="a TOML file for `superopt rules prove`")],
    file: Kept = None,
    spatial: Annotated[int, typer.Option(min=1, max=2, help="axes of the images of convolutions")] = 1,
    force: Force = False,
) -> None:
    """Write what algorithms say about operators of every size, as rules that the prover can be asked about."""
    from superopt.discovery.bilinear.find import rule_of
    from superopt.rules.bilinear import KEPT, load_algorithms
    from superopt.rules.library import write_rules

    claim({"--out": str(destination)}, [file] if file else [], force=force)
    stated = [rule_of(algorithm, spatial=spatial) for algorithm in load_algorithms(file or KEPT)]
    written = [rule for rule in stated if rule is not None]
    write_rules(destination, written)
    err().print(f"wrote {len(written)} rules to {destination}", markup=False)


@app.command()
def apply(
    model: Model,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="OUT", help=".onnx or .json; - for stdout")
    ] = None,
    floats: Annotated[
        str,
        typer.Option(
            "--float", metavar="strict|standard|fast", help="how much larger errors may be: docs/algorithms.md"
        ),
    ] = "standard",
    target: Target = "cpu",
    inputs: Annotated[int, typer.Option(min=1, help="random inputs on which errors are measured")] = 3,
    dim: Dims = None,
    threads: Threads = 1,
    seed: Seed = 0,
    force: Force = False,
) -> None:
    """Rewrite MODEL's convolutions and matrix products with fewer multiplications, where prices say that it pays.

    Results differ by rounding errors that are larger than the model's own, within the budget of --float: strict allows
    none, so nothing is rewritten. What a benchmark of the whole model refuses, or what is not accurate enough, comes
    back as it was.
    """
    from superopt.passes.fast_algorithms.selection import named
    from superopt.pipeline.fast_algorithm_application import apply_algorithms

    claim({"-o": output}, [model], force=force)
    with ModelInputPath(model) as path, ProgressReporter() as progress:
        outcome = apply_algorithms(
            path, floats=floats, target=target, sizes=parse_dims(dim or []), threads=threads, seed=seed, inputs=inputs,
            progress=progress,
        )  # fmt: skip
        if output is not None:
            save(outcome.graph, output, force)
    console = err() if output == "-" else out()
    if (substitution := outcome.algorithms) is not None:
        for choice in substitution.choices:
            name, share = choice.site.node.name or choice.site.output, choice.after / choice.before
            console.print(f"{name}: {named(choice.form)}, modelled x{share:.2f}", markup=False, soft_wrap=True)
        errors = substitution.errors
        assert errors is not None, "what is returned was measured"
        text = f"errors against float64: {errors.before:.1e} before, {errors.after:.1e} after, {errors.inputs} inputs"
        console.print(text, markup=False)
        if (raced := outcome.measured) is not None:
            times = f"{raced.before_ms:.2f} ms before, {raced.after_ms:.2f} ms after, x{raced.ratio:.3f}"
            console.print(f"measured: {times} (spread {raced.spread:.3f}, {raced.runs} runs)", markup=False)
    console.print((outcome.reason and f"unchanged: {outcome.reason}") or "rewritten", markup=False, soft_wrap=True)


def show_algorithm(data: Mapping[str, Any], report_json: str | None, *, certificate: bool, force: bool) -> None:
    """An algorithm for ``superopt rules show``, as text or JSON data."""
    if certificate:
        raise UsageError(
            f"{printable(data['id'])!r} is a fast algorithm and has no certificate",
            hint="`superopt algorithms check` compares every coefficient with the operator's meaning",
        )
    if report_json is not None:
        write_json({key: value for key, value in data.items() if key != "links"}, report_json, force)
    if report_json == "-":
        return
    console, work, growth = out(), data["operations"], data["error_growth"]
    console.print(f"{data['name']}\n{data['id']}", markup=False)
    for name, scheme in data["forall"].items():
        console.print(f"  for all {name}: {scheme}", markup=False)
    for root in data["computes"]:
        console.print(f"    {root}", markup=False, soft_wrap=True)
    for line in (
        f"multiplications: {data['multiplications']} for {data['direct_multiplications']}",
        f"operations: {work['data']} on data, {work['outputs']} on outputs, {work['weights']} on weights in advance",
        f"rounding errors: {growth['root_mean_square']:.3g} × those of the direct sum, at most {growth['bound']:.3g} ×",
    ):
        console.print(line, markup=False, soft_wrap=True)
