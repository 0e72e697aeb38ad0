"""Writing a model for memory: the same kernels, the same bits, fewer bytes, by the arena's own account."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from sampling import slow

import superopt
from superopt import formats
from superopt.ir.errors import UsageError
from superopt.ir.graph import Graph, Node, Value, constant
from superopt.ir.types import DType, TensorType
from superopt.memory.arena_measurement import measured_arena
from superopt.memory.runtime_memory_planner import execution_order
from superopt.ops.shape_inference import infer
from superopt.pipeline.activation_memory_reduction import MemoryScheduledGraph, least_memory
from superopt.pipeline.memory_timeline import footprint
from superopt.pipeline.symbolic_row_dimension import open_rows
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.synthetic_tensors import feeds_for, with_values
from superopt.verifier.equivalence.graphs import verify

SAYS_NOTHING = Counter({"Slice": 1, "Cast": 1, "ReduceSum": 1, "Add": 1, "Split": 1})  # shapes of a few zeros
TINY = Path(__file__).parents[2] / "corpus" / "tiny"


def blocks(graph: Graph) -> int:
    return measured_arena(formats.to_onnx_bytes(graph), feeds_for(graph)).block


@cache
def written(name: str) -> tuple[Graph, MemoryScheduledGraph]:
    """A model of the corpus, and what it becomes, which takes seconds: several tests look at it."""
    graph = with_values(formats.load(TINY / f"{name}.json"))
    return graph, least_memory(graph)


def kernels(graph: Graph) -> Counter[str]:
    free = {"Compress", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"}
    own = formats.from_bytes(ONNX_RUNTIME.lowered(formats.to_onnx_bytes(graph)))
    return Counter(n.op for n in own.nodes if n.op not in free)


def two_wide_branches() -> Graph:
    """Two branches widen and shrink again; the file runs both wide halves first."""
    rng = np.random.default_rng(0)
    weights, wide, narrow = [], [], []
    for branch in "ab":
        for name, shape in ((f"{branch}_up", (16, 512)), (f"{branch}_down", (512, 16))):
            weights.append(constant(name, rng.standard_normal(shape).astype(np.float32)))
        wide.append(Node(f"{branch}1", "MatMul", ("x", f"{branch}_up"), (f"{branch}_wide",)))
        wide.append(Node(f"{branch}2", "Erf", (f"{branch}_wide",), (f"{branch}_erf",)))
        narrow.append(Node(f"{branch}3", "MatMul", (f"{branch}_erf", f"{branch}_down"), (f"{branch}_out",)))
    last = Node("y", "Sub", ("a_out", "b_out"), ("y",))
    kind = TensorType(DType.FLOAT32, (4, 16))
    return Graph("two", (Value("x", kind),), (Value("y", kind),), tuple(weights), (*wide, *narrow, last), {"": 20})


@pytest.mark.parametrize("name", ["llama_2l", slow("swin_tiny"), slow("t5_encoder"), "linear_attention"])
def test_the_same_bits_take_less(name: str) -> None:
    graph, found = written(name)
    ours_block, given_block = blocks(found.graph), blocks(graph)
    assert given_block == found.before.plan.block > ours_block
    assert abs(found.after.plan.block - ours_block) <= 0.05 * ours_block
    assert found.after.plan.peak >= found.before.bound
    assert not kernels(graph) - kernels(found.graph)
    assert kernels(found.graph) - kernels(graph) <= SAYS_NOTHING
    feeds = feeds_for(graph, integer=0)
    outputs = [v.name for v in graph.outputs]
    ours, theirs = (ONNX_RUNTIME.load(formats.to_onnx_bytes(g)).run(feeds, outputs) for g in (found.graph, graph))
    assert all(ours[n].tobytes() == theirs[n].tobytes() and ours[n].shape == theirs[n].shape for n in outputs)


@pytest.mark.parametrize("name", ["resnet18", "vgg16"])
def test_what_cannot_take_less_stays_as_it_is(name: str) -> None:
    graph = formats.load(TINY / f"{name}.json")
    assert least_memory(graph).graph is graph


# the slow ones have the same normalisation after the same sum, after other operators
@pytest.mark.parametrize(
    "name",
    ["bert_2", *map(slow, ("gpt2", "mlp_mixer", "vit_b16", "whisper_encoder"))],
)
def test_what_is_fused_at_known_sizes_knows_them(name: str) -> None:
    """Sizes are hidden around SkipLayerNormalization, which the runtime makes only where it knows that its operands are
    of the same, or names say so."""
    graph, found = written(name)
    assert kernels(found.graph)["SkipLayerNormalization"] == kernels(graph)["SkipLayerNormalization"] > 0
    assert blocks(found.graph) <= 0.8 * blocks(graph)
    assert found.asked == (blocks(graph), blocks(found.graph))


def test_sizes_that_are_hidden_are_proved_to_be_the_same() -> None:
    graph, found = written("whisper_encoder")
    assert "hidden sizes" in found.how
    assert verify(graph, found.graph, power="none").verdict == "proved"


def test_sums_stay_merged_where_names_say_that_their_operands_are_of_the_same_sizes() -> None:
    graph = with_values(formats.load(TINY / "mobilenet_v2.json"))
    typing = infer(graph)
    plain, named = (open_rows(graph, typing, named=n) for n in (False, True))
    assert plain is not None
    assert named is not None
    assert kernels(plain)["Add"] > kernels(graph)["Add"]
    assert kernels(named)["Add"] == kernels(graph)["Add"]
    assert not any(isinstance(d, int) for v in named.values for d in v.type.shape[:1])
    assert footprint(named).plan.block == blocks(named) < blocks(graph)


def test_it_is_the_same_every_time() -> None:
    graph, found = written("linear_attention")
    assert formats.to_onnx_bytes(least_memory(graph).graph) == formats.to_onnx_bytes(found.graph)


def test_optimize_for_memory_says_what_it_takes() -> None:
    graph = with_values(formats.load(TINY / "t5_encoder.json"))
    settings = {"target": "profile:cpu-epyc-2core", "effort": "quick"}
    time, memory = (superopt.optimize(graph, objective=o, **settings) for o in ("time", "memory"))
    assert blocks(memory.graph) < blocks(time.graph)
    assert memory.report.check.verdict == "passed"
    assert any("activations take" in n for n in memory.report.notes)
    assert not any("activations take" in n for n in time.report.notes)


def test_an_objective_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="objective"):
        superopt.optimize(two_wide_branches(), objective="space")


def test_nodes_are_executed_as_the_order_says() -> None:
    """The last of a node's operands first, whatever the order of the file."""
    graph = two_wide_branches()
    ran = [t.nodes[0] for t in ONNX_RUNTIME.trace(formats.to_onnx_bytes(graph), feeds_for(graph), runs=1)]
    assert ran == [n.name for n in footprint(graph).ran.nodes] == ["b1", "b2", "b3", "a1", "a2", "a3", "y"]
    number = {n: i for i, n in enumerate(n.name for n in graph.nodes)}
    found = execution_order(graph.nodes, list(number.values()))
    assert [graph.nodes[i].name for i in found] == ran
    assert footprint(graph).plan.block == blocks(graph)


def test_rows_that_a_constant_says_are_opened_again() -> None:
    """A class token makes the number of rows known; wide values then wait for their like while others are alive."""
    rng = np.random.default_rng(0)
    kind = TensorType(DType.FLOAT32, (1, 7, 16))
    weights = [constant("token", rng.standard_normal((1, 1, 16)).astype(np.float32))]
    nodes = [Node("concat", "Concat", ("token", "x"), ("v0",), {"axis": 1})]
    for i, width in enumerate((512, 400, 512)):
        for name, shape in ((f"up{i}", (16, width)), (f"down{i}", (width, 16))):
            weights.append(constant(name, rng.standard_normal(shape).astype(np.float32)))
        nodes.append(Node(f"u{i}", "MatMul", (f"v{i}", f"up{i}"), (f"u{i}",)))
        nodes.append(Node(f"e{i}", "Sin", (f"u{i}",), (f"e{i}",)))
        nodes.append(Node(f"d{i}", "MatMul", (f"e{i}", f"down{i}"), (f"v{i + 1}",)))
    outputs = (Value("v3", TensorType(DType.FLOAT32, (1, 8, 16))),)
    graph = Graph("token", (Value("x", kind),), outputs, tuple(weights), tuple(nodes), {"": 20})
    found = least_memory(graph)
    wide = 4 * 8 * 512
    assert blocks(graph) >= 3 * wide
    assert found.how in ("open rows", "hidden sizes")
    assert blocks(found.graph) <= 2 * wide + 2048
