"""``superopt algorithms …``: bilinear algorithms with fewer multiplications, found, checked and shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from superopt.cli.outputs import claim
from superopt.cli.shell import Force, Seed, err, out

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Algorithms with fewer multiplications: find, check, list.")

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
    from superopt.discovery.bilinear import TILES, log_of, tile_named
    from superopt.discovery.bilinear import find as look
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
    from superopt.verifier.bilinear import check_algorithm

    for algorithm in load_algorithms(file or KEPT):
        compared = check_algorithm(algorithm)
        name, rank = algorithm.tile.name, algorithm.rank
        out().print(f"{name}: {rank} products, {compared} coefficients compared exactly", markup=False)
