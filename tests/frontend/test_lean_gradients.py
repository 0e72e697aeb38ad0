"""What gradients of convolutions and their normalisations move, and that it is still the gradient."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import superopt
from superopt.frontend import GraphBuilder
from superopt.frontend.training import SGD, train_step
from superopt.ir.graph import Graph, Value
from superopt.runtime.reference import run


def block(
    shape: tuple[int, ...], outputs: int, kernel: int, *, strides: int = 1, pad: int = 0, group: int = 1,
    normalised: bool = True, read_twice: bool = False,
) -> Graph:  # fmt: skip
    b = GraphBuilder("block")
    x = b.input("x", "float32", shape)
    w = b.weight("w", (outputs, shape[1] // group, kernel, kernel), scale=0.4)
    c = b.weight("c", (outputs,), scale=0.3)
    y = made = b.op("Conv", x, w, c, strides=[strides] * 2, pads=[pad] * 4, group=group, name="conv")
    if normalised:
        kept = [b.weight(n, (outputs,), scale=0.1, offset=o) for n, o in (("s", 1.0), ("t", 0.0), ("m", 0.2))]
        y = b.op(
            "BatchNormalization", y, *kept, b.weight("v", (outputs,), scale=0.5, offset=0.5, distribution="uniform")
        )
    b.output((y + made if read_twice else y).tanh(), "y")
    return b.build()


def agrees_with_differences(graph: Graph) -> None:
    """Every gradient along a random direction, against the difference quotient in float64."""
    rng = np.random.default_rng(3)
    fed = [Value(w.name, w.type) for w in graph.weights if w.name not in ("m", "v")]
    graph = replace(graph, inputs=(*graph.inputs, *fed)).checked()
    at = {v.name: rng.standard_normal(v.type.shape) for v in graph.inputs}  # type: ignore[union-attr]
    found = run(superopt.gradients(graph, ["y"], [v.name for v in graph.inputs]), at)
    for name, value in at.items():
        way = rng.standard_normal(value.shape) * 1e-5
        up, down = (float(run(graph, {**at, name: value + s * way})["y"].sum()) for s in (1.0, -1.0))
        assert np.sum(found[f"d y/d {name}"] * way) == pytest.approx((up - down) / 2, rel=1e-6, abs=1e-12), name


CASES = [
    {"shape": (2, 3, 7, 7), "outputs": 4, "kernel": 1, "strides": 2},  # no window sees the last row
    {"shape": (2, 4, 6, 6), "outputs": 4, "kernel": 3, "pad": 1},
    {"shape": (3, 4, 9, 9), "outputs": 6, "kernel": 3, "pad": 1, "strides": 2, "group": 2},
    {"shape": (1, 3, 3, 3), "outputs": 12, "kernel": 3, "pad": 1},  # fewer windows than outputs
    {"shape": (2, 4, 2, 3), "outputs": 24, "kernel": 2, "pad": 1, "group": 2},
    {"shape": (2, 4, 6, 6), "outputs": 4, "kernel": 3, "pad": 1, "read_twice": True},
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(f"{k}{v}" for k, v in c.items() if k != "shape"))
@pytest.mark.parametrize("normalised", [True, False])
def test_they_are_the_gradients(case: dict, normalised: bool) -> None:
    agrees_with_differences(block(**case, normalised=normalised))


def backward(graph: Graph) -> Counter[str]:
    step = train_step(graph, "mse", SGD(0.1)).graph
    return Counter(n.op for n in step.nodes)


def test_the_result_of_a_convolution_is_not_kept_for_its_normalisation() -> None:
    graph = train_step(block((2, 4, 6, 6), 4, 3, pad=1), "mse", SGD(0.1)).graph
    (made,) = (o for n in graph.nodes if n.name == "conv" for o in n.outputs)
    assert [n.op for n in graph.nodes if made in n.reads] == ["BatchNormalization"]


def test_it_is_read_where_there_are_more_weights_than_results() -> None:
    graph = train_step(block((1, 8, 2, 2), 8, 3, pad=1), "mse", SGD(0.1)).graph
    (made,) = (o for n in graph.nodes if n.name == "conv" for o in n.outputs)
    assert sorted(n.op for n in graph.nodes if made in n.reads) == ["BatchNormalization", "Sub"]


def test_few_windows_are_one_product_and_many_one_for_each_tap() -> None:
    few, many = (backward(block((1, 3, s, s), 12, 3, pad=1, normalised=False)) for s in (3, 9))
    assert (few["Gemm"], many["Gemm"]) == (1, 9)
    assert backward(block((2, 3, 9, 9), 4, 3, pad=1, normalised=False))["Gemm"] == 0  # images stay where they are
