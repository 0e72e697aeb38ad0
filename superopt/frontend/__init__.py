"""Build graphs by hand: a small symbolic API over ``superopt.ir.graph``, and tracing of functions written in it.

>>> from superopt.frontend import GraphBuilder
>>> b = GraphBuilder("tiny")
>>> x = b.input("x", "float32", ("n", 4))
>>> w = b.weight("w", (4, 2), scale=0.5)
>>> b.output((x @ w).relu(), "y")
>>> graph = b.build()
>>> [node.op for node in graph.nodes]
['MatMul', 'Relu']
"""

from superopt.frontend.builder import GraphBuilder
from superopt.frontend.tensor import Tensor
from superopt.frontend.tracing import trace

__all__ = ["GraphBuilder", "Tensor", "trace"]
