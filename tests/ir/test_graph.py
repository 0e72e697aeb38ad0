"""The graph's own checks. Round trips are laws in tests/formats."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from superopt.ir.errors import InvalidModel
from superopt.ir.graph import ArrayWeightData, Graph, Node, Value, constant, topological_order
from superopt.ir.types import DType, TensorType


def test_nodes_are_put_in_order_and_order_is_kept_where_it_is_valid() -> None:
    kind = TensorType(DType.FLOAT32, (2,))
    chain = [Node(f"n{i}", "Relu", (f"v{i}",), (f"v{i + 1}",)) for i in range(50)]
    mixed = tuple(sorted(chain, key=lambda n: hash(n.name) % 97))
    graph = Graph("g", (Value("v0", kind),), (Value("v50", kind),), (), mixed, {"": 17}).checked()
    assert [n.name for n in graph.nodes] == [f"n{i}" for i in range(50)]
    assert graph.checked() is graph


def test_digests_tell_shapes_and_types_apart_and_agree_on_layout() -> None:
    base = np.arange(6, dtype=np.float32)
    arrays = [base, base.reshape(2, 3), base.astype(np.int32), np.float32(0).reshape(()), np.zeros(1, np.float32)]
    assert len({ArrayWeightData(a).digest for a in arrays}) == len(arrays)
    assert ArrayWeightData(base.reshape(2, 3).T.copy().T).digest == ArrayWeightData(base.reshape(2, 3)).digest
    assert constant("w", base).type == TensorType(DType.FLOAT32, (6,))


def test_a_graph_is_drawn_for_networkx():
    kind = TensorType(DType.FLOAT32, (2,))
    nodes = (
        Node("a", "Add", ("x", "w"), ("h",)),
        Node("b", "Mul", ("h", "h"), ("y",)),
        Node("c", "Relu", ("x",), ("z",)),
    )
    graph = Graph(
        "g",
        (Value("x", kind),),
        (Value("y", kind), Value("z", kind)),
        (constant("w", np.ones(2, "f")),),
        nodes,
        {"": 21},
    )
    drawn = graph.checked().to_networkx()
    assert dict(drawn.nodes(data="op")) == {"x": "", "w": "", 0: "Add", 1: "Mul", 2: "Relu"}
    assert sorted(map(str, drawn.edges(data="value"))) == sorted(
        map(str, [("x", 0, "x"), ("w", 0, "w"), (0, 1, "h"), (0, 1, "h"), ("x", 2, "x")])
    )
    assert nx.is_directed_acyclic_graph(drawn)
    assert nx.descendants(drawn, "w") == {0, 1}


@pytest.mark.parametrize("length", [2, 7])
def test_the_order_is_the_files_wherever_that_is_valid(length):
    nodes = [Node(f"n{i}", "Relu", (f"v{i}",), (f"v{i + 1}",)) for i in range(length)]
    made = {f"v{i + 1}": i for i in range(length)}
    assert topological_order(nodes, made) == list(range(length))
    turned = nodes[::-1]
    assert (
        topological_order(turned, {o: i for i, n in enumerate(turned) for o in n.outputs}) == list(range(length))[::-1]
    )
    loop = [*nodes, Node("back", "Relu", (f"v{length}",), ("v0",))]
    with pytest.raises(InvalidModel, match="cycle"):
        topological_order(loop, {o: i for i, n in enumerate(loop) for o in n.outputs})
