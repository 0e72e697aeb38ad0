"""Build graphs by hand: a small symbolic API over ``superopt.ir.graph``, and tracing of functions written in it.

>>> from superopt.frontend import GraphBuilder
>>> b = GraphBuilder("tiny")
>>> x = b.input("x", "float32", ("n", 4))
>>> w = b.weight("w", (4, 2), scale=0.5)
>>> b.output((x @ w).relu(), "y")
>>> graph = b.build()
>>> [node.op for node in graph.nodes]
['MatMul', 'Relu']

:func:`trace` makes a graph from a Python function over symbolic tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from superopt.frontend.builder import GraphBuilder
from superopt.frontend.symbolic_tensor import SymbolicTensor
from superopt.ir.graph import Graph

__all__ = ["GraphBuilder", "SymbolicTensor", "trace"]


Result = SymbolicTensor | Iterable[SymbolicTensor]


def trace(
    function: Callable[..., Result], name: str = "", /, opset: int = 21, **inputs: tuple[str, Iterable[int | str]]
) -> Graph:
    """The graph of what ``function`` computes, called once with symbolic tensors.

    Args:
        function: called as ``function(builder, **tensors)``; returns a tensor or several.
        name: the graph's name; the function's own name by default.
        opset: version of the ONNX operator set.
        inputs: element type and shape of each input, by name; a string in a shape is a symbolic size.

    >>> def attention(b, q, k, v):
    ...     return (q @ k.transpose(1, 0)).softmax() @ v
    >>> shape = ("float32", ("n", 64))
    >>> graph = trace(attention, q=shape, k=shape, v=shape)
    >>> [node.op for node in graph.nodes]
    ['Transpose', 'MatMul', 'Softmax', 'MatMul']
    """
    builder = GraphBuilder(name or function.__name__, opset=opset)
    tensors = {key: builder.input(key, dtype, tuple(shape)) for key, (dtype, shape) in inputs.items()}
    result = function(builder, **tensors)
    for position, tensor in enumerate([result] if isinstance(result, SymbolicTensor) else result):
        builder.output(tensor, f"output_{position}")
    return builder.build()
