"""``jit``: imperative Python, traced once per signature of its inputs, then run as one graph.

What a function does with arrays is recorded by calling it with symbolic ones; numbers, strings and the variables that
it closes over are constants of the graph, and a guard: where one is another, it is traced again. A function that looks
at an element (``if x.sum() > 0``) or calls what is no operator cannot be traced: it runs as it is, and says why.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

from superopt.formats import to_onnx_bytes
from superopt.frontend.builder import GraphBuilder
from superopt.frontend.tensor import Tensor
from superopt.ir.graph import Graph
from superopt.ir.types import DType
from superopt.runtime.ort import make_session

__all__ = ["Fallback", "Jit", "jit"]

P = ParamSpec("P")
R = TypeVar("R")
PLAIN = (int, float, str, bool, type(None))


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
    outputs: list[str]
    single: bool


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
        functools.update_wrapper(self, self.function)
        code = self.function.__code__
        self._parameters = code.co_varnames[: code.co_argcount]
        self._cells = self.function.__closure__ or ()
        scope = self.function.__globals__
        self._scope = scope
        self._globals = tuple(n for n in code.co_names if isinstance(scope.get(n), (*PLAIN, np.ndarray)))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs:
            bound = inspect.signature(self.function).bind(*args, **kwargs)
            bound.apply_defaults()
            return self._called(bound.args)
        return self._called(args)

    def _called(self, args: Sequence[Any]) -> R:
        key = self._key(args)
        try:
            found = self._known.get(key)
        except TypeError:  # an argument that is no constant: a list, a dictionary
            self.calls["python"] += 1
            return self.function(*args)
        if found is None:
            found = self._known[key] = self._trace(args, key)
        if isinstance(found, Fallback):
            self.calls["python"] += 1
            return self.function(*args)
        self.calls["traced"] += 1
        values = found.run(found.outputs, {name: args[place] for place, name in found.names})
        return values[0] if found.single else tuple(values)  # type: ignore[return-value]

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The graphs that have been traced, in order."""
        return tuple(f.graph for f in self._known.values() if isinstance(f, _Traced))

    def _key(self, args: Sequence[object]) -> Hashable:
        held = tuple(id(c.cell_contents) for c in self._cells), tuple(id(self._scope.get(n)) for n in self._globals)
        return (
            tuple((a.dtype.char, a.shape) if isinstance(a, np.ndarray) else (type(a), a) for a in args),
            held,
        )

    def _trace(self, args: Sequence[object], key: Hashable) -> _Traced | Fallback:
        if self._known:
            self.why.append(self._changed(key))
        builder = GraphBuilder(self.function.__name__, opset=self.opset)
        given: list[object] = []
        names: list[tuple[int, str]] = []
        try:
            for place, value in enumerate(args):
                if isinstance(value, np.ndarray):
                    name = self._parameters[place] if place < len(self._parameters) else f"argument_{place}"
                    names.append((place, name))
                    given.append(builder.input(name, DType.of(value.dtype).value, value.shape))
                else:
                    given.append(value)
            result: Any = self.function(*given)
            outputs = [result] if isinstance(result, Tensor) else list(result)
            for place, tensor in enumerate(outputs):
                builder.output(tensor, f"result_{place}")
            graph = builder.build()
            session = make_session(to_onnx_bytes(graph))
        except Exception as error:  # whatever it is, running the function as it is will show
            fallback = self._fallback(error)
            self.fallbacks.append(fallback)
            return fallback
        return _Traced(graph, session.run, tuple(names), [v.name for v in graph.outputs], isinstance(result, Tensor))

    def _fallback(self, error: Exception) -> Fallback:
        code = self.function.__code__
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
