"""What the commands share: consoles, arguments, safe files, progress.

A long command shows a bar on a terminal; elsewhere it writes a plain line on standard error now and then.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from superopt.cli.output_paths import refuse_own_files
from superopt.cli.standard_streams import copy_input, write_data
from superopt.ir.errors import Interrupted, SuperoptError, UsageError, printable
from superopt.ir.temporary_folders import TemporaryFolder

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "LARGEST",
    "LINES_EVERY",
    "MOST_THREADS",
    "MOST_WORKERS",
    "Cluster",
    "Dims",
    "Effort",
    "Force",
    "ModelInputPath",
    "Json",
    "ProgressLineWriter",
    "Model",
    "ProgressReporter",
    "Runtime",
    "Seed",
    "Target",
    "Threads",
    "TimeLimit",
    "err",
    "going_on",
    "npz",
    "out",
    "parse_bytes",
    "parse_dims",
    "save",
    "write_json",
    "write_text",
    "written_beside",
]

LARGEST = 2**63 - 1  # of a size or a seed: ONNX counts in int64
MOST_THREADS = 1024  # of a measurement: no machine that is measured has more, and a runtime starts what it is told to

MOST_WORKERS = 1024  # processes: each takes memory of its own, and a machine has fewer cores

Model = Annotated[str, typer.Argument(help="an ONNX model or a superopt JSON graph; - reads standard input")]
Json = Annotated[str | None, typer.Option("--json", metavar="FILE|-", help="write the result as JSON")]
Force = Annotated[bool, typer.Option("-f", "--force", help="overwrite an existing file")]
Dims = Annotated[
    list[str] | None,
    typer.Option(
        "--dim", metavar="N=8", help="the size at which a symbolic dimension is costed and timed (it stays symbolic)"
    ),
]
Threads = Annotated[
    int, typer.Option(min=1, max=MOST_THREADS, envvar="SUPEROPT_THREADS", help="threads of each measurement")
]
Cluster = Annotated[
    str | None,
    typer.Option("--cluster", metavar="tcp://HOST:8786", envvar="SUPEROPT_CLUSTER",
                 help="use the Dask cluster of this scheduler (docs/scale.md)"),
]  # fmt: skip
Seed = Annotated[
    int, typer.Option(min=0, max=LARGEST, help="of the inputs that models are run on, and of ties in the search")
]
Target = Annotated[str, typer.Option(help="cpu, cuda, or profile:NAME", envvar="SUPEROPT_TARGET")]
TimeLimit = Annotated[
    float, typer.Option("--time-limit", metavar="S", min=0, envvar="SUPEROPT_TIME_LIMIT",
                        help="seconds that a model may take; most take less")
]  # fmt: skip
Effort = Annotated[
    str,
    typer.Option(
        metavar="quick|default|thorough",
        envvar="SUPEROPT_EFFORT",
        help="how much work the search and the benchmark may do; quick: greedy, by prices; nothing is timed",
    ),
]
Rules = Annotated[
    Path | None, typer.Option("--rules", metavar="DIR", help="a library of rules used besides the built-in one")
]
Floats = Annotated[
    str,
    typer.Option(
        "--float",
        metavar="strict|standard|fast",
        envvar="SUPEROPT_FLOAT",
        help="strict: rules that are safe for all floats, and no algorithm with fewer multiplications. standard: "
        "also rules whose conditions hold, and algorithms with errors up to 1e-5. fast: all rules that are true of "
        "the reals, and errors up to 1e-4",
    ),
]
Runtime = Annotated[
    str, typer.Option("--runtime", metavar="onnxruntime|openvino", envvar="SUPEROPT_RUNTIME",
                      help="what the model will run in")
]  # fmt: skip


@contextmanager
def going_on(kept: Path | None) -> Iterator[None]:
    """Ctrl-C while finished work is kept says where, and what next; ``None``: nothing is."""
    try:
        yield
    except KeyboardInterrupt:
        if kept is None:
            raise
        raise Interrupted(
            f"interrupted; what is finished is kept in {printable(str(kept))}: run again to go on"
        ) from None


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
        if not name or not (text.isascii() and text.isdecimal()) or not 1 <= int(text[:20]) <= LARGEST or text[20:]:
            raise UsageError(f"--dim {printable(item)!r} is not NAME=SIZE", hint="write for example --dim N=8")
        if sizes.setdefault(name, int(text)) != int(text):
            raise UsageError(f"--dim gives {printable(name)!r} two sizes: {sizes[name]} and {text}")
    return sizes


def parse_bytes(text: str | None) -> int | None:
    """The value of --memory-limit.

    Raises:
        InvalidOption: it is not a size.
    """
    from superopt.pipeline.options import bytes_of

    return None if text is None else bytes_of(text, "memory_limit", flags=True)


class ModelInputPath:
    """The path of a model argument; standard input is kept in a private file for as long as it is needed.

    Errors do not name that file: what is wrong is wrong with the standard input.
    """

    def __init__(self, argument: str) -> None:
        self.argument = argument
        self.folder: TemporaryFolder | None = None

    def __enter__(self) -> Path:
        if self.argument != "-":
            return Path(self.argument)
        self.folder = TemporaryFolder("input")
        path = self._file(self.folder.path)
        try:
            from superopt.formats.loading import MAX_MESSAGE

            copy_input(path, MAX_MESSAGE)
        except BaseException:
            self.folder.remove()
            raise
        return path

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.folder is None:
            return
        self.folder.remove()
        if isinstance(error, SuperoptError):
            where = error.where.replace(str(self._file(self.folder.path)), "standard input")
            raise type(error)(error.what, where=where, hint=error.hint) from error

    @staticmethod
    def _file(folder: Path) -> Path:
        return folder / "stdin"


def save(graph: Any, destination: str, force: bool) -> None:
    from superopt.formats import save, to_onnx_bytes

    if destination == "-":
        write_data(to_onnx_bytes(graph))
    else:
        refuse_own_files(graph, destination)
        save(graph, Path(destination), force=force)


def write_json(data: Any, destination: str, force: bool) -> None:
    write_text(json.dumps(data, indent=2, allow_nan=False) + "\n", destination, force)


def write_text(text: str, destination: str, force: bool) -> None:
    data = text.encode("utf-8", "backslashreplace")  # names of files need not be text
    if destination == "-":
        write_data(data)
        return
    from superopt.formats.safe_file_access import replace_file

    replace_file(Path(destination), data, force=force)


def written_beside(
    path: Path, content: bytes, force: bool, problems: list[SuperoptError]
) -> Path | None:  # fmt: skip
    """Write what must not be lost because a file exists: without ``force`` under the next free name, ``x-1.npz``.

    Returns:
        Where it is; ``None`` where it could not be written, and then why is added to ``problems``.
    """
    from superopt.formats.safe_file_access import replace_file

    target, number = path, 0
    while not force and target.exists():
        number += 1
        target = path.with_name(f"{path.stem}-{number}{path.suffix}")
    try:
        replace_file(target, content, force=force)
    except SuperoptError as error:
        problems.append(error)
        return None
    return target


def npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Arrays as NumPy's ``.npz``, by any names (``numpy.savez`` takes some for options of its own)."""
    import io
    import zipfile

    import numpy as np

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=True)
            archive.writestr(f"{name}.npy", member.getvalue())
    return buffer.getvalue()


_TO_STANDARD_ERROR = partial(os.write, 2)
LINES_EVERY = 30.0  # seconds between plain lines: a log of a two-minute run has four


class ProgressReporter:
    """A callback ``(done, total, what)`` for as long as the command runs.

    Args:
        what: what it begins with.
    """

    def __init__(self, what: str = "starting") -> None:
        self.what = what

    def __enter__(self) -> Callable[[int, int | None, str], None]:
        self.lines: ProgressLineWriter | None = None
        if not sys.stderr.isatty():
            self.lines = ProgressLineWriter(self.what)
            self.lines.start()
            return self.lines.update
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.bar = Bar(*columns, console=Console(file=sys.stderr, highlight=False), transient=True)
        self.task = self.bar.add_task(self.what, total=None)
        self.bar.start()
        return self._update

    def _update(self, done: int, total: int | None, what: str) -> None:
        self.bar.update(self.task, completed=done, total=total, description=printable(what, 60))

    def __exit__(self, *_: Any) -> None:
        if self.lines is not None:
            self.lines.end()
        else:
            self.bar.stop()


class ProgressLineWriter(threading.Thread):
    """Writes a line every so many seconds until it is ended; it holds nothing that a copy of the process waits for.

    Args:
        what: what the command begins with.
        every: seconds.
        write: takes a line.
    """

    def __init__(
        self, what: str, *, every: float = LINES_EVERY, write: Callable[[bytes], object] = _TO_STANDARD_ERROR
    ) -> None:  # fmt: skip
        super().__init__(name="superopt-progress", daemon=True)
        self._state: tuple[int, int | None, str] = (0, None, what)
        self._every, self._write, self._over = every, write, threading.Event()

    def update(self, done: int, total: int | None, what: str) -> None:
        """What the command is at."""
        self._state = done, total, what

    def line(self, seconds: float) -> str:
        """``superopt: checking (60 s so far)``."""
        done, total, what = self._state
        of = f"{done} of {total}, " if total else ""
        return f"superopt: {printable(what, 100)} ({of}{seconds:.0f} s so far)\n"

    def run(self) -> None:
        """Until :meth:`end`."""
        began = time.monotonic()
        while not self._over.wait(self._every):
            try:
                self._write(self.line(time.monotonic() - began).encode("utf-8", "backslashreplace"))
            except OSError:  # nobody reads standard error: the result matters, not this
                return

    def end(self) -> None:
        """No further line is written."""
        self._over.set()
        self.join()
