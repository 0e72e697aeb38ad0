"""The settings file: defaults of options, in a table per command."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from superopt.ir.errors import UsageError, printable

__all__ = ["defaults", "settings_file"]

_TABLE = "write a table per command, for example [tool.superopt.optimize]"
_ELSEWHERE = frozenset({"corpus"})  # whose table is more than defaults of options, and read by its own commands


def settings_file(folder: Path) -> tuple[Path | None, dict[str, Any]]:
    """The nearest ``superopt.toml``, or pyproject.toml with ``[tool.superopt]``, and what it says.

    A table per command: ``[optimize] time_limit = 30``. Flags and ``SUPEROPT_*`` variables win.

    Raises:
        UsageError: the file cannot be read as TOML.
    """
    for place in (folder, *folder.parents):
        for name in ("superopt.toml", "pyproject.toml"):
            path = place / name
            if not path.is_file():
                continue
            try:
                data = tomllib.loads(path.read_text(encoding="utf-8"))
            except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
                raise UsageError(f"is not valid TOML ({error})", where=str(path)) from None
            found = data if name == "superopt.toml" else _tool(data)
            if found is not None and not isinstance(found, dict):
                raise UsageError("tool.superopt is no table of settings", where=str(path), hint=_TABLE)
            if found is not None:
                return path, dict(found)
    return None, {}


def _tool(data: Mapping[str, Any]) -> Any:
    tool = data.get("tool")
    return tool.get("superopt") if isinstance(tool, dict) else None


def defaults(table: Mapping[str, Any], commands: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What a settings file holds, under the names that the commands' parameters have in the framework.

    Args:
        table: settings by command; ``time_limit``, ``time-limit``, and whatever stands behind ``--``, name an option.
        commands: by name; a group has ``commands`` of its own.
        where: the file, and the group's table in it.

    Raises:
        UsageError: there is no such command, or it has no such option.
    """
    made: dict[str, Any] = {}
    for name, own in table.items():
        if name not in commands:
            raise UsageError(f"there is no command {printable(name)!r}", where=where, hint=_near(name, commands))
        if not isinstance(own, Mapping):
            raise UsageError(f"{name} is no table of settings", where=where, hint=f"write [{name}] above its settings")
        inner = getattr(commands[name], "commands", None)
        if name in _ELSEWHERE:
            continue
        place = f"{where}, [{name}]"
        made[name] = _options(own, commands[name], place) if inner is None else defaults(own, inner, place)
    return made


def _options(table: Mapping[str, Any], command: Any, where: str) -> dict[str, Any]:
    """Settings of one command, by the names of its parameters."""
    names: dict[str, str] = {}
    for parameter in command.params:
        names |= {_plain(option): parameter.name for option in (parameter.name, *parameter.opts)}
    made: dict[str, Any] = {}
    for key, value in table.items():
        if _plain(key) not in names:
            raise UsageError(f"there is no setting {printable(key)!r}", where=where, hint=_near(key, names))
        if isinstance(value, float) and math.isnan(value):  # no bound of an option refuses it
            raise UsageError(f"{printable(key)}: {value} is no number", where=where)
        made[names[_plain(key)]] = value
    return made


def _plain(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _near(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(_plain(name), known, 1, 0.5)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(n for n in known if len(n) > 1))}"
