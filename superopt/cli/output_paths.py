"""Where a command writes: refused before any work if it cannot be, or if it would destroy what is read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from superopt.cli.standard_streams import discard_output, output_closed
from superopt.ir.errors import UsageError, printable

if TYPE_CHECKING:
    from superopt.ir.graph import Graph

__all__ = ["MODEL_SUFFIXES", "claim", "distinct", "refuse_own_files"]

MODEL_SUFFIXES = (".onnx", ".json", "")  # of files that a model is written to; ONNX where it is not .json
Destination = str | Path | None
Identity = tuple[object, ...]


def claim(outputs: Mapping[str, Destination], inputs: Sequence[str | Path] = (), *, force: bool) -> None:
    """Check all destinations of a command.

    Args:
        outputs: by option; ``None`` where the option was not given, "-" for standard output.
        inputs: files that are read, "-" for standard input.
        force: whether existing files may be overwritten.

    Raises:
        UsageError: one cannot be written, exists without ``force``, is a folder, is also another destination, or is
            an input, by whatever name, link or hard link; or two inputs are standard input.
    """
    from superopt.formats.safe_file_access import refuse_unwritable

    if sum(str(i) == "-" for i in inputs) > 1:
        raise UsageError("- is named twice, but standard input can be read only once", hint="name a file for one")
    given = {option: str(path) for option, path in outputs.items() if path is not None}
    _streams(given)
    for option, name in given.items():
        if name != "-" and (not name or name.endswith(os.sep) or os.path.isdir(name)):
            what, hint = ("is a folder, not a file", "name the file in it") if name else ("is no file name", "name one")
            raise UsageError(what, where=f"{option} {printable(name)}".rstrip(), hint=hint)
        if name != "-" and _is_model(option) and Path(name).suffix not in MODEL_SUFFIXES:
            raise UsageError(
                "is no name for a model", where=f"{option} {printable(name)}", hint="end it with .onnx or .json"
            )
    distinct(outputs, inputs)
    for name in given.values():
        if name != "-":
            refuse_unwritable(Path(name), force=force)


def distinct(outputs: Mapping[str, Destination], inputs: Sequence[str | Path]) -> None:
    """Refuse destinations that are an input or each other, by whatever name, link or hard link.

    Raises:
        UsageError: two of them are one file; the files that large weights go to beside a model count too.
    """
    read = {_identity(Path(i)): str(i) for i in inputs if str(i) != "-"}
    taken: dict[Identity, str] = {}
    for option, name in outputs.items():
        if name is None or str(name) == "-":
            continue
        where = f"{option} {printable(str(name))}"
        for path in _files(option, Path(name)):
            found = _identity(path)
            if found in read:
                raise UsageError(f"is {printable(read[found])}, which is read", where=where, hint="choose another name")
            if found in taken:
                raise UsageError(f"is the same file as {taken[found]}", where=where, hint="choose another name")
            taken[found] = option


def _streams(given: Mapping[str, str]) -> None:
    """At most one result goes to standard output, and only if it is open."""
    piped = [option for option, name in given.items() if name == "-"]
    if len(piped) > 1:
        raise UsageError(f"{' and '.join(piped)} cannot both go to standard output", hint="name a file for one")
    if given and not piped:
        discard_output()
    elif output_closed():
        raise UsageError("standard output is closed", hint="the result has nowhere to go: write > FILE, or > /dev/null")


def _is_model(option: str) -> bool:
    return option == "-o" or option.startswith("OUT")


def _files(option: str, path: Path) -> tuple[Path, ...]:
    """The file, and the one that a model's large weights are written to beside it."""
    if not _is_model(option):
        return (path,)
    return path, path.with_suffix(".safetensors") if path.suffix == ".json" else Path(f"{path}.data")


def _identity(path: Path) -> Identity:
    """What two names of one file have in common; for a file that is not there, its folder and its name."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        try:
            real = Path(os.path.realpath(path))
            folder = os.stat(real.parent)
        except (OSError, ValueError):
            return (os.path.abspath(path) if "\0" not in str(path) else str(path),)
        return folder.st_dev, folder.st_ino, real.name
    return found.st_dev, found.st_ino


def refuse_own_files(graph: Graph, destination: str) -> None:
    """Refuse to write a model over a file that its weights are read from.

    Raises:
        UsageError: it, or the file of weights beside it, is such a file.
    """
    files = {id(f): f for w in graph.weights if (f := getattr(w.data, "file", None)) is not None}
    read = {_identity(f.path) for f in files.values()}
    for path in _files("-o", Path(destination)) if destination != "-" else ():
        if _identity(path) in read:
            raise UsageError(f"{printable(str(path))} holds weights of the model", where=f"-o {printable(destination)}",
                             hint="choose another name")  # fmt: skip
