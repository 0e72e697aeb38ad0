"""``superopt optimize`` of several models at once, into a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from superopt.cli.outputs import claim
from superopt.cli.shell import Progress, err, going_on, out, write_json
from superopt.ir.errors import SuperoptError, UsageError, printable

if TYPE_CHECKING:
    from superopt.pipeline import Options

__all__ = ["optimize_many", "refuse_second"]


def refuse_second(models: list[str]) -> None:
    """Refuse a second name that is no model, where no output was named: it was probably meant as that.

    Raises:
        UsageError: it is none.
    """
    from superopt.formats import load

    first, second = models[0], models[1]
    if len(models) != 2 or second == "-" or (first != "-" and not os.path.isfile(first)):
        return
    try:
        load(Path(second))
    except SuperoptError as error:
        if os.path.exists(second) and error.hint:  # a model of another format
            raise
        what = error.what if os.path.exists(second) else "does not exist"
        raise UsageError(what, where=printable(second), hint=f"did you mean -o {printable(second)}?") from None


def optimize_many(
    models: list[str], folder: str | None, options: Options, *, workers: int, cluster: str | None,
    report_json: str | None, force: bool,
) -> int:  # fmt: skip
    """Optimise models into a folder, with a line for each; returns the exit code of the first that failed.

    Raises:
        UsageError: there is no folder, or it is not empty and not of such a run.
    """
    from superopt.fleet import Fleet
    from superopt.pipeline.many import JOURNAL, optimize_all

    if folder is None or folder == "-":
        raise UsageError("several models need a folder for their results", hint="add -o DIR")
    if "-" in models:
        raise UsageError("- is one model; several are named", hint="optimise standard input alone")
    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise UsageError("is no folder", where=f"-o {printable(folder)}", hint="several models need a folder")
    if place.is_dir() and any(place.iterdir()) and not (place / JOURNAL).is_file() and not force:
        raise UsageError("is not empty", where=f"-o {printable(folder)}", hint="use -f to write into it")
    inputs = {Path(m).resolve() for m in models}
    if inputs & {(place / Path(m).name).resolve() for m in models}:
        raise UsageError("holds the models themselves", where=f"-o {printable(folder)}", hint="name another folder")
    claim({"--json": report_json}, list(models), force=force)
    rows, code = [], 0
    console = err() if report_json == "-" else out()
    with going_on(place), Fleet.open(workers, cluster) as fleet, Progress() as progress:
        for row in optimize_all([Path(m) for m in models], place, options=options, fleet=fleet, progress=progress):
            rows.append(row)
            name = Path(row["model"]).name
            if "error" in row:
                code = code or row["exit_code"]
                err().print(f"{printable(name)}: {row['error']}", markup=False, soft_wrap=True)
                continue
            summary = printable(row["report"]["summary"], 400)
            line = f"{printable(name)}  {summary}; wrote {printable(row['output'])}"
            console.print(line, markup=False, soft_wrap=True)
    if report_json is not None:
        write_json({"format": "superopt.optimized", "version": 1, "models": rows}, report_json, force)
    return code
