"""What changing a model for the check's power takes."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from superopt.frontend import GraphBuilder
from superopt.verifier.mutation import mutants


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
