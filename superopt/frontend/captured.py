"""What a function reads besides its arguments: a trace of it holds as long as that is the same."""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable, Hashable, Iterator
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from superopt.ir.errors import Unsupported, printable

__all__ = ["Captured", "token"]

_BY_VALUE = frozenset({int, str, bool, bytes, type(None), type(Ellipsis)})
_STAYING = frozenset({"numpy", "superopt", *sys.stdlib_module_names})  # what these define is taken to stay as it is
_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})


def token(value: Any) -> Hashable:
    """What stands for an argument in a signature: equal for values that give the same trace.

    Raises:
        Unsupported: it can change and be the same object.
    """
    kind = type(value)
    if kind is np.ndarray:
        return value.dtype, value.shape
    if kind in _BY_VALUE:
        return kind, value
    if kind is float:  # 0.0 and -0.0 are equal, and NaN is not itself
        return kind, value.hex()
    if isinstance(value, np.generic | complex):
        return kind, str(np.asarray(value).dtype), np.asarray(value).tobytes()
    if kind is tuple:
        return (kind, *(_constant(v) for v in value))
    if isinstance(value, np.dtype | np.ufunc | slice) or _stays(value):
        return kind, str(value) if kind is slice else value
    raise Unsupported(
        f"{printable(kind.__name__, 40)} can change from call to call: give its arrays and numbers instead"
    )


def _constant(value: Any) -> Hashable:
    """As :func:`token`, by its elements for an array, which is a constant of the trace."""
    return (value.dtype, value.shape, value.tobytes()) if type(value) is np.ndarray else token(value)


def _stays(value: Any) -> bool:
    """Whether it is a module, class or function of Python's library, NumPy's or superopt's."""
    if not isinstance(value, ModuleType | type | FunctionType | BuiltinFunctionType):
        return False
    name = value.__name__ if isinstance(value, ModuleType) else value.__module__ or "builtins"
    return name.partition(".")[0] in _STAYING


class Captured:
    """The variables that a function reads from around it, and those of the functions among them.

    Attributes:
        reason: why a trace would not hold; "" where it would.

    Args:
        function: the function.
        owner: the object that it is a method of.
    """

    def __init__(self, function: FunctionType, owner: object = None) -> None:
        self._places: list[tuple[str, Callable[[], Any], bool]] = []
        self._seen: set[int] = set()
        self.reason = ""
        if owner is not None:
            self.reason = f"it is a method, and its {type(owner).__name__} can change from call to call"
            return
        try:
            self._gather(function, own=True)
        except Unsupported as reason:
            self.reason = reason.what

    def now(self) -> Hashable:
        """What is read as it is now.

        Raises:
            Unsupported: a trace would not hold.
        """
        if self.reason:
            raise Unsupported(self.reason)
        return tuple(_read(value(), fed) for _, value, fed in self._places)

    def arrays(self) -> dict[str, Callable[[], np.ndarray]]:
        """The arrays that the function itself reads, by the names that it has for them: they are fed, not kept."""
        return {name: value for name, value, fed in self._places if fed and type(value()) is np.ndarray}

    def _gather(self, function: FunctionType, *, own: bool) -> None:
        if id(function) in self._seen:
            return
        self._seen.add(id(function))
        scope = function.__globals__
        found: dict[str, Callable[[], Any]] = {}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            found[name] = _of_cell(cell)
        for name in dict.fromkeys(_globals(function.__code__)):
            if name in scope:
                found.setdefault(name, _of_scope(scope, name))
        for name, value in found.items():
            held = inspect.unwrap(value()) if callable(value()) else value()
            self._places.append((name, value, own))
            if isinstance(held, FunctionType) and not _stays(held):
                if held.__defaults__ or held.__kwdefaults__:
                    _read((*(held.__defaults__ or ()), *(held.__kwdefaults__ or {}).values()), False)
                self._gather(held, own=False)
                continue
            try:
                _read(held, own)
            except Unsupported as reason:
                raise Unsupported(f"it reads {printable(name, 40)}, and a {reason.what}") from None


def _read(value: Any, fed: bool) -> Hashable:
    held = inspect.unwrap(value) if callable(value) else value
    if isinstance(held, FunctionType):
        return held  # by itself; what it reads is read, too
    return token(held) if fed else _constant(held)


def _of_cell(cell: CellType) -> Callable[[], Any]:
    return lambda: cell.cell_contents


def _of_scope(scope: dict[str, Any], name: str) -> Callable[[], Any]:
    return lambda: scope.get(name, inspect.Parameter.empty)


def _globals(code: CodeType) -> Iterator[str]:
    """Names of the global variables that code reads, and the functions that it makes."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in _READS:
            yield instruction.argval
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals(inner)
