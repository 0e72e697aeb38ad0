"""The planner's model beside what ONNX Runtime's arena is really asked for, to the byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from superopt import formats
from superopt.ir.graph import Graph, Node, Value, constant
from superopt.ir.types import DType, TensorType
from superopt.memory.arena_measurement import ArenaMeasurement, measured_arena
from superopt.memory.inplace_kernels import IN_PLACE, RENAMING
from superopt.pipeline.memory_timeline import ActivationFootprint, footprint_of
from superopt.runtime.synthetic_tensors import feeds_for, with_values

TINY = Path(__file__).parents[2] / "corpus" / "tiny"
SHAPE = (8, 16, 16, 16)


def judged(graph: Graph, *, optimise: bool = True) -> tuple[ActivationFootprint, ArenaMeasurement]:
    feeds = feeds_for(graph)
    arena = measured_arena(formats.to_onnx_bytes(with_values(graph)), feeds, optimise=optimise)
    return footprint_of(formats.from_bytes(arena.ran), graph, feeds), arena


def between(kernel: tuple[str, str], operands: int, slot: int, attributes: dict[str, int] | None = None) -> Graph:
    """A kernel between two transpositions, one operand of it made by the first, the others inputs."""
    kind = TensorType(DType.FLOAT32, SHAPE)
    turned = {"perm": (0, 1, 3, 2)}
    names = tuple("t" if i == slot else f"x{i}" for i in range(operands))
    nodes = (
        Node("first", "Transpose", (f"x{slot}",), ("t",), turned),
        Node("kernel", kernel[1], names, ("u",), dict(attributes or {}), kernel[0]),
        Node("last", "Transpose", ("u",), ("y",), turned),
    )
    inputs = tuple(Value(f"x{i}", kind) for i in range(operands))
    return Graph("between", inputs, (Value("y", kind),), (), nodes, {"": 20, "com.microsoft": 1})


@pytest.mark.parametrize("name", ["swin_tiny", "repvgg_a0", "unet", "llama_2l", "dynamic_bert", "lstm"])
def test_the_block_is_what_the_arena_is_asked_for(name: str) -> None:
    found, arena = judged(formats.load(TINY / f"{name}.json"))
    assert found.plan.block == arena.block > 0
    assert found.bound <= found.ideal
    assert found.plan.peak >= found.bound


@pytest.mark.parametrize("op", ["Relu", "Softmax", "Trilu", "Clip", "Abs", "Exp", "Reshape", "Identity"])
def test_a_kernel_works_in_place_where_the_table_says_so(op: str) -> None:
    size = 4 * int(np.prod(SHAPE))
    graph = between(("", op), 1, 0)
    if op == "Reshape":
        shape = constant("s", np.array(SHAPE, np.int64))
        nodes = tuple(n if n.op != op else Node("kernel", op, ("t", "s"), ("u",)) for n in graph.nodes)
        graph = Graph("between", graph.inputs, graph.outputs, (shape,), nodes, graph.opset)
    found, arena = judged(graph, optimise=False)
    assert arena.block == found.plan.block
    assert arena.block == (size if ("", op) in IN_PLACE or ("", op) in RENAMING else 2 * size)


@pytest.mark.parametrize("slot", [0, 1])
def test_a_sum_is_never_written_over_an_operand(slot: int) -> None:
    found, arena = judged(between(("", "Add"), 2, slot), optimise=False)
    assert arena.block == found.plan.block == 2 * 4 * int(np.prod(SHAPE))


def test_memory_of_a_shape_is_kept_for_the_next_of_that_shape() -> None:
    """A dead buffer is not given back before it is used again: this is why plans take more than what is alive."""
    wide, narrow = TensorType(DType.FLOAT32, (64, 64)), TensorType(DType.FLOAT32, (64, 8))
    weights = (constant("a", np.ones((64, 64), np.float32)), constant("b", np.ones((64, 8), np.float32)),
               constant("c", np.ones((8, 32), np.float32)), constant("d", np.ones((32, 8), np.float32)),
               constant("e", np.ones((8, 64), np.float32)))  # fmt: skip
    ops = [("x", "a", "h0"), ("h0", "b", "n0"), ("n0", "c", "m"), ("m", "d", "n1"), ("n1", "e", "h1"), ("h1", "b", "y")]
    nodes = tuple(Node(o, "MatMul", (i, w), (o,)) for i, w, o in ops)
    graph = Graph("chain", (Value("x", wide),), (Value("y", narrow),), weights, nodes, {"": 20})
    found, arena = judged(graph)
    assert found.plan.block == arena.block
    first, last = next((b.start, b.end) for b in found.plan.buffers if "h0" in b.values)
    assert (first, last) == (0, 5)
    assert found.plan.peak > found.ideal
