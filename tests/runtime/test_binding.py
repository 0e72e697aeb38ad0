"""What a model that is bound takes: no more than its runs need."""

from __future__ import annotations

import gc
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

from superopt import formats
from superopt.ir.graph import Graph, Node, Value, constant
from superopt.ir.types import DType, TensorType
from superopt.runtime.onnx_runtime import bind, make_session, run
from superopt.runtime.resource_limits import give_back, resident

_SIDE = 2896  # of a square of 32 MiB


def widening() -> Graph:
    """A few elements, a row of squares of 32 MiB of which two are alive at once, and a sum."""
    nodes = [Node("wide", "Expand", ("x", "sizes"), ("v0",))]
    nodes += [Node(f"step{i}", op, (f"v{i}",), (f"v{i + 1}",)) for i, op in enumerate(("Exp", "Neg", "Exp"))]
    nodes.append(Node("sum", "ReduceMax", ("v3",), ("y",), {"keepdims": 0}))
    sizes = constant("sizes", np.array([_SIDE, _SIDE], np.int64))
    x, y = Value("x", TensorType(DType.FLOAT32, (1, _SIDE))), Value("y", TensorType(DType.FLOAT32, ()))
    return Graph("widening", (x,), (y,), (sizes,), tuple(nodes), {"": 17})


@pytest.mark.skipif(not resident(), reason="the system does not say what a process occupies")
@pytest.mark.parametrize("measured", ["of_bound_steps", "of_an_idle_session"])
def test_memory_is_not_held_twice(measured: str) -> None:
    """In a process of its own: what other tests have left in this one comes and goes."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
        alone.submit(globals()[measured]).result()


def of_bound_steps() -> None:
    """What the first run took is not kept beside what later ones take."""
    session = make_session(formats.to_onnx_bytes(widening()), threads=1, optimise=False)
    gc.collect()
    give_back()
    before = resident()
    bound = bind(session, {"x": np.zeros((1, _SIDE), np.float32)})
    for _ in range(2):
        bound.step()
    assert float(bound.outputs()[0].numpy()) == pytest.approx(np.exp(-1.0))
    square = 4 * _SIDE * _SIDE
    assert resident() - before < 3.6 * square  # what the arena took first, and two; another where the run keeps its own


def of_an_idle_session() -> None:
    """It holds what its arena had first, and no more."""
    session = make_session(formats.to_onnx_bytes(widening()), threads=1, optimise=False)
    gc.collect()
    give_back()
    before, square = resident(), 4 * _SIDE * _SIDE
    feeds = {"x": np.zeros((1, _SIDE), np.float32)}
    for _ in range(2):
        run(session, feeds)
    assert resident() - before < 1.5 * square
    run(session, feeds, keep=True)
    assert resident() - before > 2.5 * square


def test_a_session_without_an_arena_can_be_bound() -> None:
    session = make_session(formats.to_onnx_bytes(widening()), threads=1, optimise=False, shared={})
    bound = bind(session, {"x": np.zeros((1, _SIDE), np.float32)})
    bound.step()
    assert float(bound.outputs()[0].numpy()) == pytest.approx(np.exp(-1.0))
