"""What the commands share: consoles, arguments, safe files, progress."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from superopt.ir.errors import SuperoptError, UsageError, printable

__all__ = [
    "Dims", "Force", "Input", "Json", "Model", "Progress", "Target", "Threads", "err", "out", "parse_bytes",
    "parse_dims", "refuse_existing", "save", "write_json", "write_text",
]  # fmt: skip

Model = Annotated[str, typer.Argument(help="an ONNX model or a superopt JSON graph; - reads standard input")]
Json = Annotated[str | None, typer.Option("--json", metavar="FILE|-", help="write the result as JSON")]
Force = Annotated[bool, typer.Option("-f", "--force", help="overwrite an existing file")]
Dims = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="N=8", help="the size to cost a symbolic dimension at (it stays symbolic)"),
]
Threads = Annotated[int, typer.Option(min=1, envvar="SUPEROPT_THREADS", help="threads that are measured with")]
Target = Annotated[str, typer.Option(help="cpu, cuda, or profile:NAME", envvar="SUPEROPT_TARGET")]


def out() -> Console:
    """The console for data."""
    return Console(file=sys.stdout, soft_wrap=not sys.stdout.isatty(), highlight=False)


def err() -> Console:
    """The console for everything that is not data."""
    return Console(file=sys.stderr, soft_wrap=not sys.stderr.isatty(), highlight=False)


def parse_dims(items: list[str]) -> dict[str, int]:
    """``["N=8"]`` → ``{"N": 8}``.

    Raises:
        UsageError: an item is not NAME=SIZE with a positive integer.
    """
    sizes: dict[str, int] = {}
    for item in items:
        name, _, text = item.partition("=")
        if not name or not text.isdecimal() or int(text) < 1:
            raise UsageError(f"--dim {printable(item)!r} is not NAME=SIZE", hint="write for example --dim N=8")
        sizes[name] = int(text)
    return sizes


def parse_bytes(text: str | None) -> int | None:
    """``"512M"`` → 536870912; a plain number is bytes.

    Raises:
        UsageError: it is not a size.
    """
    if text is None:
        return None
    scale = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}.get(text[-1:].lower(), 1)
    digits = text[:-1] if scale > 1 else text
    try:
        value = float(digits) * scale
    except ValueError:
        value = -1.0
    if not 0 < value < 2**60:
        raise UsageError(f"{printable(text)!r} is not a size in bytes", hint="write for example 2G or 512M")
    return int(value)


class Input:
    """The path of a model argument; standard input is kept in a private file for as long as it is needed.

    Errors do not name that file: what is wrong is wrong with the standard input.
    """

    def __init__(self, argument: str) -> None:
        self.argument = argument
        self.folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Path:
        if self.argument != "-":
            return Path(self.argument)
        self.folder = tempfile.TemporaryDirectory(prefix="superopt-")
        path = self._file(self.folder.name)
        path.write_bytes(sys.stdin.buffer.read())
        return path

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.folder is None:
            return
        self.folder.cleanup()
        if isinstance(error, SuperoptError):
            where = error.where.replace(str(self._file(self.folder.name)), "standard input")
            raise type(error)(error.what, where=where, hint=error.hint) from error

    @staticmethod
    def _file(folder: str) -> Path:
        return Path(folder) / "stdin"


class Progress:
    """A callback ``(done, total, what)``: a bar on a terminal, nothing where standard error is not one."""

    def __enter__(self) -> Any:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.bar = Progress(*columns, console=err(), transient=True, disable=not sys.stderr.isatty())
        self.task = self.bar.add_task("starting", total=None)
        self.bar.start()
        return self.update

    def update(self, done: int, total: int | None, what: str) -> None:
        self.bar.update(self.task, completed=done, total=total, description=printable(what, 60))

    def __exit__(self, *_: object) -> None:
        self.bar.stop()


def refuse_existing(path: str | Path | None, force: bool) -> None:
    if path is not None and str(path) != "-" and not force and Path(path).exists():
        raise UsageError("already exists", where=str(path), hint="use -f to overwrite it")


def save(graph: Any, destination: str, force: bool) -> None:
    from superopt.formats import save, to_onnx_bytes

    if destination == "-":
        sys.stdout.buffer.write(to_onnx_bytes(graph))
        sys.stdout.buffer.flush()
    else:
        save(graph, Path(destination), force=force)


def write_json(data: Any, destination: str, force: bool) -> None:
    write_text(json.dumps(data, indent=2, allow_nan=False) + "\n", destination, force)


def write_text(text: str, destination: str, force: bool) -> None:
    if destination == "-":
        sys.stdout.write(text)
        return
    from superopt.formats.files import replace_file

    replace_file(Path(destination), text.encode(), force=force)
