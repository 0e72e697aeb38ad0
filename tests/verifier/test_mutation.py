"""What changing a model for the check's power takes."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from superopt.frontend import GraphBuilder
from superopt.ir.graph import Graph, Node, Value, constant
from superopt.ir.types import DType, TensorType
from superopt.verifier.check.mutation_testing import mutants


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_changed_weight_takes_the_memory_of_one_copy(seed: int) -> None:
    builder = GraphBuilder("wide")
    x = builder.input("x", "float32", (1, 1024))
    builder.output(builder.op("MatMul", x, builder.weight("w", (1024, 4096), scale=1.0)), "y")
    graph = builder.build()
    weight = graph.weights[0]
    assert weight.data is not None
    before = np.array(weight.data.numpy())
    tracemalloc.start()
    try:
        made = next(mutants(graph, seed, [weight.name], 1))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert made.graph.weights[0].data is not None
    assert not np.array_equal(made.graph.weights[0].data.numpy(), before)
    assert peak < 1.7 * before.nbytes


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1e-320, 1e-200, 1.0, 1e200, np.finfo(np.float64).max])
def test_a_weight_is_changed_by_the_root_of_its_mean_square_however_large(size: float) -> None:
    weight = constant("w", np.array([[size, -size], [np.inf, size]]))
    kind = TensorType(DType.FLOAT64, (2, 2))
    node = Node("mul", "Mul", ("x", "w"), ("y",))
    model = Graph("g", (Value("x", kind),), (Value("y", kind),), (weight,), (node,), {"": 21})
    changed = [m.graph.weights[0] for seed in range(8) for m in mutants(model, seed, ["w"], 8)]
    steps = {float(np.nanmax(np.abs(new.data.numpy()[1, 1] - size))) for new in changed}
    assert size in steps or np.inf in steps  # an element or a row went up by that much, if there is such a number
