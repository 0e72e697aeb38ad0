"""``jit``: imperative Python, traced once per signature of its inputs, then run as one graph.

What a function does with arrays is recorded by calling it with symbolic ones, arrays that it reads from around it
among them; numbers and strings are constants of the graph, and a guard: where one is another, it is traced again. A
function that looks at an element (``if x.sum() > 0``), calls what is no operator, reads what can change unseen (an
object, a list) or gives something else than its graph at the first call is not traced: it runs as it is, and says why.

A trace holds as long as what the function reads besides its arguments is the same (:class:`CapturedVariables`).
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import traceback
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

from superopt.formats import to_onnx_bytes
from superopt.frontend.builder import GraphBuilder
from superopt.frontend.symbolic_tensor import SymbolicTensor
from superopt.ir.errors import Unsupported, UsageError, printable
from superopt.ir.graph import Graph
from superopt.ir.types import DType
from superopt.runtime.onnx_runtime import make_session

__all__ = ["CapturedVariables", "JitFallback", "JitFunction", "jit", "token"]

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class JitFallback:
    """Why a call ran as Python: the reason, and the line of the function at which it came up."""

    reason: str
    line: int
    source: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.source}: {self.reason}"


@dataclass(frozen=True)
class _Traced:
    graph: Graph
    run: Callable[..., Any]
    names: tuple[tuple[int, str], ...]
    around: tuple[tuple[str, Callable[[], np.ndarray]], ...]
    outputs: list[str]
    kind: type


@dataclass
class JitFunction(Generic[P, R]):
    """A traced function. Call it with arrays and constants.

    Attributes:
        function: what it does.
        fallbacks: for each signature that could not be traced, why.
        calls: how many calls ran a graph, and how many ran as Python ("traced", "python").
        why: for each trace after the first, what was not as before.
    """

    function: Callable[..., R]
    opset: int = 21
    fallbacks: list[JitFallback] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=lambda: {"traced": 0, "python": 0})
    why: list[str] = field(default_factory=list)
    _traces: dict[Hashable, _Traced | JitFallback] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.function, FunctionType | MethodType):
            raise UsageError(
                f"jit takes a function, not a {type(self.function).__name__}", hint="wrap it: jit(lambda x: f(x))"
            )
        functools.update_wrapper(self, self.function)
        self._signature = inspect.signature(self.function)
        self._parameters = tuple(self._signature.parameters)
        self._plain = _plain(self.function)
        self._defaults = bool(self._plain.__defaults__ or self._plain.__kwdefaults__)
        self._around = self._captured()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        named: dict[str, Any] = kwargs
        given: tuple[Any, ...] = args
        if named or self._defaults:
            try:
                bound = self._signature.bind(*args, **kwargs)
            except TypeError:
                return self.function(*args, **kwargs)  # which says what is wrong
            bound.apply_defaults()
            given, named = bound.args, bound.kwargs
        return self._called(given, named)

    def _called(self, args: tuple[Any, ...], named: dict[str, Any]) -> R:
        values = (*args, *named.values()) if named else args
        try:
            key: Hashable = (tuple(map(token, values)), tuple(named), self._around.now())
            found = self._traces.get(key)
            if found is None:
                self._around = self._captured()  # functions that it calls may be others by now
                key = (tuple(map(token, values)), tuple(named), self._around.now())
                found = self._traces.get(key) or self._trace(values, tuple(named), key)
                self._traces[key] = found
        except Unsupported as reason:
            found = JitFallback(reason.what, self._plain.__code__.co_firstlineno, "")
            if found not in self.fallbacks:
                self.fallbacks.append(found)
        if isinstance(found, JitFallback):
            self.calls["python"] += 1
            return self.function(*args, **named)
        self.calls["traced"] += 1
        feeds = {name: values[position] for position, name in found.names}
        for name, value in found.around:
            feeds[name] = value()
        results = found.run(found.outputs, feeds)
        return results[0] if found.kind is SymbolicTensor else found.kind(results)  # type: ignore[no-any-return]

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The graphs that have been traced, in order."""
        return tuple(f.graph for f in self._traces.values() if isinstance(f, _Traced))

    def _captured(self) -> CapturedVariables:
        """What the function reads now besides its arguments."""
        return CapturedVariables(self._plain, self.function.__self__ if isinstance(self.function, MethodType) else None)

    def _trace(self, values: Sequence[Any], named: tuple[str, ...], key: Hashable) -> _Traced | JitFallback:
        if self._traces:
            self.why.append(self._changed(key))
        builder = GraphBuilder(self.function.__name__, opset=self.opset)
        given: list[object] = []
        names: list[tuple[int, str]] = []
        try:
            for position, value in enumerate(values):
                if isinstance(value, np.ndarray):
                    names.append((position, self._name_of(position, len(values), named)))
                    given.append(builder.input(names[-1][1], DType.of(value.dtype).value, value.shape))
                else:
                    given.append(value)
            arrays = self._around.arrays()
            fed = {n: builder.input(f"outside {n}", DType.of(v().dtype).value, v().shape) for n, v in arrays.items()}
            result: Any = _called_with(_reading(self.function, fed), given, named)
            outputs = list(result) if isinstance(result, tuple | list) else [result]
            if type(result) not in (SymbolicTensor, tuple, list) or not all(
                isinstance(t, SymbolicTensor) for t in outputs
            ):
                raise Unsupported("it gives something else than arrays, or a tuple or list of them")
            for position, tensor in enumerate(outputs):
                builder.output(tensor, f"result_{position}")
            graph = builder.build()
            session = make_session(to_onnx_bytes(graph))
            around = tuple((f"outside {n}", v) for n, v in arrays.items())
            traced = _Traced(graph, session.run, tuple(names), around, [v.name for v in graph.outputs], type(result))
            self._hold(traced, values, named)
        except Exception as error:  # whatever it is, running the function as it is will show
            fallback = self._fallback(error)
            self.fallbacks.append(fallback)
            return fallback
        return traced

    def _name_of(self, position: int, count: int, named: tuple[str, ...]) -> str:
        """What an argument is called."""
        first = count - len(named)
        if position >= first:
            return named[position - first]
        return self._parameters[position] if position < len(self._parameters) else f"argument_{position}"

    def _hold(self, traced: _Traced, values: Sequence[Any], named: tuple[str, ...]) -> None:
        """Call the function itself with copies of the arguments, and compare.

        Raises:
            Unsupported: the graph gives something else, or an argument is changed.
        """
        copies = [v.copy() if isinstance(v, np.ndarray) else v for v in values]
        want = _called_with(self.function, copies, named)
        if not all(_same(c, v) for c, v in zip(copies, values, strict=True) if isinstance(v, np.ndarray)):
            raise Unsupported("it changes an argument")
        feeds = {name: values[position] for position, name in traced.names} | {n: v() for n, v in traced.around}
        got = traced.run(traced.outputs, feeds)
        expected = [want] if traced.kind is SymbolicTensor else want
        if (traced.kind is not SymbolicTensor and type(want) is not traced.kind) or len(expected) != len(got):
            raise Unsupported("its graph gives another number or kind of results")
        for a, b in zip(expected, got, strict=True):
            if not isinstance(a, np.ndarray | np.generic) or not _same(a, b):
                raise Unsupported(f"its graph gives {b.dtype}{list(b.shape)} that is not what the function gives")

    def _fallback(self, error: Exception) -> JitFallback:
        code = self._plain.__code__
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == code.co_filename]
        own = [f for f in frames if f.name == code.co_name] or frames
        line = own[-1].lineno or code.co_firstlineno if own else code.co_firstlineno
        return JitFallback(str(error), line, (own[-1].line or "") if own else "")

    def _changed(self, key: Any) -> str:
        """What is another than at the most similar call that is known."""
        known: list[Any] = [k for k in self._traces if len(k[0]) == len(key[0])]  # type: ignore[index]
        if not known:
            return f"{len(key[0])} arguments"

        def differences(other: Any) -> list[int]:
            return [p for p, (old, new) in enumerate(zip(other[0], key[0], strict=True)) if old != new]

        nearest = min(known, key=lambda k: len(differences(k)))
        found = [
            f"{self._parameters[p] if p < len(self._parameters) else f'argument {p}'}: "
            f"{nearest[0][p][1]}, now {key[0][p][1]}"
            if nearest[0][p][0] == key[0][p][0]
            else f"argument {p}: {nearest[0][p]}, now {key[0][p]}"
            for p in differences(nearest)
        ]
        return "; ".join(found) or "a variable outside of the function is another"


def _plain(function: Any) -> FunctionType:
    """The function of a method, whose object is something that it reads."""
    return function.__func__ if isinstance(function, MethodType) else function  # type: ignore[return-value]


def _called_with(function: Callable[..., Any], values: Sequence[Any], named: tuple[str, ...]) -> Any:
    """Call with the last values under these names."""
    first = len(values) - len(named)
    return function(*values[:first], **dict(zip(named, values[first:], strict=True)))


def _reading(function: Any, values: dict[str, Any]) -> Callable[..., Any]:
    """The function with other variables around it."""
    inner = _plain(function)
    cells = tuple(
        CellType(values[n]) if n in values else c
        for n, c in zip(inner.__code__.co_freevars, inner.__closure__ or (), strict=True)
    )
    made = FunctionType(inner.__code__, {**inner.__globals__, **values}, inner.__name__, inner.__defaults__, cells)
    made.__kwdefaults__ = inner.__kwdefaults__
    return made


def _same(a: Any, b: Any) -> bool:
    """Equal up to rounding, with the same type and shape."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    scale = float(np.abs(a[np.isfinite(a)]).max(initial=0))
    loose = 64 * float(np.finfo(a.dtype).eps) ** 0.75
    return bool(np.allclose(a, b, rtol=loose, atol=loose * scale, equal_nan=True))


def jit(function: Callable[P, R]) -> JitFunction[P, R]:
    """Trace a function of arrays to a graph, and run that; a decorator.

    >>> import numpy as np
    >>> @jit
    ... def layer(x, w):
    ...     return np.tanh(x @ w) * 2
    >>> layer(np.ones((2, 3), np.float32), np.zeros((3, 4), np.float32)).shape
    (2, 4)
    >>> [node.op for node in layer.graphs[0].nodes]
    ['MatMul', 'Tanh', 'Mul']
    """
    return JitFunction(function)


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


class CapturedVariables:
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
