"""``jit``: imperative Python, traced once per signature of its inputs, then run as one graph.

What a function does with arrays is recorded by calling it with symbolic ones, arrays that it reads from around it
among them; numbers and strings are constants of the graph, and a guard: where one is another, it is traced again. A
function that looks at an element (``if x.sum() > 0``), calls what is no operator, reads what can change unseen (an
object, a list) or gives something else than its graph at the first call is not traced: it runs as it is, and says why.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from types import CellType, FunctionType, MethodType
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

from superopt.formats import to_onnx_bytes
from superopt.frontend.builder import GraphBuilder
from superopt.frontend.captured import Captured, token
from superopt.frontend.tensor import Tensor
from superopt.ir.errors import Unsupported, UsageError
from superopt.ir.graph import Graph
from superopt.ir.types import DType
from superopt.runtime.onnx_runtime import make_session

__all__ = ["Fallback", "Jit", "jit"]

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Fallback:
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
class Jit(Generic[P, R]):
    """A traced function. Call it with arrays and constants.

    Attributes:
        function: what it does.
        fallbacks: for each signature that could not be traced, why.
        calls: how many calls ran a graph, and how many ran as Python ("traced", "python").
        why: for each trace after the first, what was not as before.
    """

    function: Callable[..., R]
    opset: int = 21
    fallbacks: list[Fallback] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=lambda: {"traced": 0, "python": 0})
    why: list[str] = field(default_factory=list)
    _known: dict[Hashable, _Traced | Fallback] = field(default_factory=dict)

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
            found = self._known.get(key)
            if found is None:
                self._around = self._captured()  # functions that it calls may be others by now
                key = (tuple(map(token, values)), tuple(named), self._around.now())
                found = self._known.get(key) or self._trace(values, tuple(named), key)
                self._known[key] = found
        except Unsupported as reason:
            found = Fallback(reason.what, self._plain.__code__.co_firstlineno, "")
            if found not in self.fallbacks:
                self.fallbacks.append(found)
        if isinstance(found, Fallback):
            self.calls["python"] += 1
            return self.function(*args, **named)
        self.calls["traced"] += 1
        feeds = {name: values[place] for place, name in found.names}
        for name, value in found.around:
            feeds[name] = value()
        results = found.run(found.outputs, feeds)
        return results[0] if found.kind is Tensor else found.kind(results)  # type: ignore[no-any-return]

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The graphs that have been traced, in order."""
        return tuple(f.graph for f in self._known.values() if isinstance(f, _Traced))

    def _captured(self) -> Captured:
        """What the function reads now besides its arguments."""
        return Captured(self._plain, self.function.__self__ if isinstance(self.function, MethodType) else None)

    def _trace(self, values: Sequence[Any], named: tuple[str, ...], key: Hashable) -> _Traced | Fallback:
        if self._known:
            self.why.append(self._changed(key))
        builder = GraphBuilder(self.function.__name__, opset=self.opset)
        given: list[object] = []
        names: list[tuple[int, str]] = []
        try:
            for place, value in enumerate(values):
                if isinstance(value, np.ndarray):
                    names.append((place, self._name_of(place, len(values), named)))
                    given.append(builder.input(names[-1][1], DType.of(value.dtype).value, value.shape))
                else:
                    given.append(value)
            arrays = self._around.arrays()
            fed = {n: builder.input(f"outside {n}", DType.of(v().dtype).value, v().shape) for n, v in arrays.items()}
            result: Any = _called_with(_reading(self.function, fed), given, named)
            outputs = list(result) if isinstance(result, tuple | list) else [result]
            if type(result) not in (Tensor, tuple, list) or not all(isinstance(t, Tensor) for t in outputs):
                raise Unsupported("it gives something else than arrays, or a tuple or list of them")
            for place, tensor in enumerate(outputs):
                builder.output(tensor, f"result_{place}")
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

    def _name_of(self, place: int, count: int, named: tuple[str, ...]) -> str:
        """What an argument is called."""
        first = count - len(named)
        if place >= first:
            return named[place - first]
        return self._parameters[place] if place < len(self._parameters) else f"argument_{place}"

    def _hold(self, traced: _Traced, values: Sequence[Any], named: tuple[str, ...]) -> None:
        """Call the function itself with copies of the arguments, and compare.

        Raises:
            Unsupported: the graph gives something else, or an argument is changed.
        """
        copies = [v.copy() if isinstance(v, np.ndarray) else v for v in values]
        want = _called_with(self.function, copies, named)
        if not all(_same(c, v) for c, v in zip(copies, values, strict=True) if isinstance(v, np.ndarray)):
            raise Unsupported("it changes an argument")
        feeds = {name: values[place] for place, name in traced.names} | {n: v() for n, v in traced.around}
        got = traced.run(traced.outputs, feeds)
        expected = [want] if traced.kind is Tensor else want
        if (traced.kind is not Tensor and type(want) is not traced.kind) or len(expected) != len(got):
            raise Unsupported("its graph gives another number or kind of results")
        for a, b in zip(expected, got, strict=True):
            if not isinstance(a, np.ndarray | np.generic) or not _same(a, b):
                raise Unsupported(f"its graph gives {b.dtype}{list(b.shape)} that is not what the function gives")

    def _fallback(self, error: Exception) -> Fallback:
        code = self._plain.__code__
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == code.co_filename]
        own = [f for f in frames if f.name == code.co_name] or frames
        line = own[-1].lineno or code.co_firstlineno if own else code.co_firstlineno
        return Fallback(str(error), line, (own[-1].line or "") if own else "")

    def _changed(self, key: Any) -> str:
        """What is another than at the most similar call that is known."""
        known: list[Any] = [k for k in self._known if len(k[0]) == len(key[0])]  # type: ignore[index]
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


def jit(function: Callable[P, R]) -> Jit[P, R]:
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
    return Jit(function)
