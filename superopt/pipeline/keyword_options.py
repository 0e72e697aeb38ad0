"""Options as callers write them: single keyword arguments, by the names that the command line has."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypedDict

from superopt.ir.errors import InvalidOption, printable
from superopt.pipeline.options import Options, bytes_of, one_of

__all__ = ["Settings", "options_of"]

# By the functional syntax, because one of the names is ``float``.
Settings = TypedDict(  # noqa: UP013
    "Settings",
    {
        "target": str,
        "runtime": Literal["onnxruntime", "openvino"],
        "time_limit": "float | None",
        "memory_limit": "int | str | None",
        "seed": int,
        "rules": "str | PathLike[str] | None",
        "enable": Sequence[str],
        "disable": Sequence[str],
        "dim": Mapping[str, int],
        "threads": int,
        "measure": bool,
        "verify": Literal["test", "certify"],
        "check": "bool | Literal['quick', 'full']",
        "strict": bool,
        "float": Literal["strict", "standard", "fast"],
        "effort": Literal["quick", "default", "thorough"],
        "objective": Literal["time", "memory", "pareto"],
        "functions": Literal["keep", "inline"],
        "opset": "int | None",
        "precision": Literal["float32", "mixed", "mixed:float16", "mixed:bfloat16"],
        "error": "float | None",
    },
    total=False,
)


def options_of(options: Options | None, settings: Mapping[str, Any]) -> Options:
    """Options with single settings in their place.

    Args:
        options: the defaults, if none are given.
        settings: by the names of :class:`Settings`; the fields of :class:`Options` are taken as well.

    Raises:
        InvalidOption: there is no such option, or it does not take the value.
    """
    if options is not None and not isinstance(options, Options):
        raise InvalidOption(
            f"a {type(options).__name__} is no superopt.Options", where="options", option="options",
            hint="write optimize(model, **options) for a dictionary",
        )  # fmt: skip
    own = {f.name for f in fields(Options)}
    changed: dict[str, Any] = {}
    for name, value in settings.items():
        if name in _READERS:
            changed |= _READERS[name](name, value)
        elif name in own:
            changed[name] = value
        else:
            close = difflib.get_close_matches(name, sorted(_READERS), 1, 0.5)
            raise InvalidOption(
                f"there is no option {printable(name)!r}", option=name, suggestion=close[0] if close else "",
                hint="" if close else f"known: {', '.join(sorted(_READERS))}",
            )  # fmt: skip
    made = replace(options or Options(), **changed)
    made.validate()
    return made


def _wrong(name: str, value: object, takes: str) -> InvalidOption:
    return InvalidOption(f"{printable(repr(value))} is not {takes}", where=name, option=name)


def _text(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, str):
        raise _wrong(name, value, "a text")
    return {name: value}


def _flag(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, bool):
        raise _wrong(name, value, "True or False")
    return {name: value}


def _whole(name: str, value: object) -> dict[str, Any]:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(name, value, "a whole number")
    return {name: value}


def _seconds(name: str, value: object) -> dict[str, Any]:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise _wrong(name, value, "a number of seconds, or None for no limit")
    return {name: value}


def _share(name: str, value: object) -> dict[str, Any]:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise _wrong(name, value, "a share of an output's largest element, like 1e-3")
    return {name: value}


def _memory(name: str, value: object) -> dict[str, Any]:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | str)):
        raise _wrong(name, value, "a number of bytes, or a text like '2G' or '512M'")
    return {name: bytes_of(value, name) if isinstance(value, str) else value}


def _folder(name: str, value: object) -> dict[str, Any]:
    if value is not None and not isinstance(value, str | PathLike):
        raise _wrong(name, value, "the path of a folder")
    return {name: None if value is None else Path(value)}


def _names(name: str, value: object) -> dict[str, Any]:
    if isinstance(value, str):
        return {name: (value,)}
    found = tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(v, str) for v in found):
        raise _wrong(name, value, "a sequence of names of rules or families")
    return {name: found}


def _sizes(name: str, value: object) -> dict[str, Any]:
    good = isinstance(value, Mapping) and all(
        isinstance(n, str) and isinstance(size, int) and not isinstance(size, bool) and size > 0
        for n, size in value.items()
    )
    if not good:
        raise _wrong(name, value, "a dictionary of positive sizes by the names of dimensions, like {'N': 8}")
    return {"sizes": value}


def _check(name: str, value: object) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"check": value}
    one_of(name, value, ("quick", "full", "True", "False"))
    return {"check": True, "full_check": value == "full"}


def _verify(name: str, value: object) -> dict[str, Any]:
    one_of(name, value, ("test", "certify"))
    return {"certify": value == "certify"}


_READERS: Mapping[str, Callable[[str, Any], dict[str, Any]]] = {
    **dict.fromkeys(("target", "runtime", "effort", "objective", "functions", "precision"), _text),
    **dict.fromkeys(("measure", "strict"), _flag), **dict.fromkeys(("seed", "threads"), _whole),
    **dict.fromkeys(("enable", "disable"), _names),
    "opset": lambda name, value: {name: None} if value is None else _whole(name, value),
    "time_limit": _seconds, "memory_limit": _memory, "rules": _folder, "dim": _sizes, "verify": _verify,
    "check": _check, "error": _share, "float": lambda name, value: {"floats": _text(name, value)[name]},
}  # fmt: skip
