"""``superopt rules extend``: what later runs of discovery found joins the library, where it leaves less to run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from superopt.cli.shell import err, out

__all__ = ["extend"]


def extend(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="what runs of superopt discover wrote")],
    library: Annotated[
        Path | None, typer.Option("--library", metavar="DIR", help="extend the rules of this folder, not the built-in")
    ] = None,
) -> None:
    """Add rules of other runs to the library: those after which less runs than after its own.

    Verdicts are recorded afterwards: `python -m superopt.verifier.admission`, `superopt rules floats`, `superopt rules
    gains --record`, `make certify`.
    """
    from superopt.discovery.extend import extend as add
    from superopt.rules.library import BUILT_IN

    joined = add(folders, to=library or BUILT_IN, progress=lambda line: err().print(line, markup=False))
    for rule in joined:
        out().print(f"{rule.id}: {rule.lhs[0]} = {rule.rhs[0]}", markup=False, soft_wrap=True)
    err().print(f"{len(joined)} rules joined")
