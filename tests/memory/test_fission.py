"""Fission: regions computed in parts are the whole, in numbers and proved, and take less memory in ONNX Runtime."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from superopt import cost as costs
from superopt.ir.graph import Graph, Node, Value, constant
from superopt.ir.terms import OperatorTerm, VariableTerm
from superopt.ir.types import DType, TensorType
from superopt.memory.fission import FissionRegion, FissionSearchGraph, grown, heads, tails
from superopt.memory.fission_lowering import split
from superopt.ops.shape_inference import CanonicalNode, infer
from superopt.pipeline import fission
from superopt.pipeline.activation_memory_reduction import arena_block
from superopt.pipeline.fission import fissions
from superopt.pipeline.rematerialization import smallest_points
from superopt.report import PairedMeasurement
from superopt.rules import Rule, TensorVariableType
from superopt.runtime import reference
from superopt.runtime.synthetic_tensors import feeds_for
from superopt.verifier import ProvedVerdict, UnknownVerdict
from superopt.verifier.equivalence.graphs import PROVED, verify
from superopt.verifier.prover.piecewise_proofs import prove_joined

KERNEL = 1 << 16


def typed(*shape: int) -> TensorType:
    return TensorType(DType.FLOAT32, shape)


def attention(tokens: int, heads: int, width: int) -> Graph:
    """Queries, keys and values of a row each, their products, and an MLP behind."""
    draw = np.random.default_rng(0)
    wide = heads * width
    weights = {n: draw.normal(size=(wide, wide)) / wide**0.5 for n in "qkv"}
    weights |= {"up": draw.normal(size=(wide, 4 * wide)) / wide**0.5, "down": draw.normal(size=(4 * wide, wide)) / wide}
    held = [constant(n, w.astype(np.float32)) for n, w in weights.items()]
    held.append(constant("split", np.array([1, tokens, heads, width], np.int64)))
    held.append(constant("merged", np.array([1, tokens, wide], np.int64)))
    nodes = []
    for n, perm in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3))):
        nodes.append(Node(f"m{n}", "MatMul", ("x", n), (f"{n}0",)))
        nodes.append(Node(f"r{n}", "Reshape", (f"{n}0", "split"), (f"{n}1",)))
        nodes.append(Node(f"t{n}", "Transpose", (f"{n}1",), (f"{n}2",), {"perm": perm}))
    nodes += [
        Node("scores", "MatMul", ("q2", "k2"), ("s",)),
        Node("soft", "Softmax", ("s",), ("p",), {"axis": 3}),
        Node("mixed", "MatMul", ("p", "v2"), ("o",)),
        Node("back", "Transpose", ("o",), ("o1",), {"perm": (0, 2, 1, 3)}),
        Node("flat", "Reshape", ("o1", "merged"), ("o2",)),
        Node("add", "Add", ("o2", "x"), ("y",)),
        Node("up", "MatMul", ("y", "up"), ("h",)),
        Node("act", "Relu", ("h",), ("h1",)),
        Node("down", "MatMul", ("h1", "down"), ("z",)),
    ]  # fmt: skip
    kind = typed(1, tokens, wide)
    return Graph("attention", (Value("x", kind),), (Value("z", kind),), tuple(held), tuple(nodes), {"": 18})


def pictures(size: int) -> Graph:
    """A convolution with a stride, its activation, a pool, a convolution for each channel, and one between channels."""
    draw = np.random.default_rng(1)
    shapes = {"a": (8, 3, 3, 3), "b": (8, 1, 3, 3), "c": (4, 8, 1, 1), "bias": (4,)}
    held = [constant(n, draw.normal(size=s).astype(np.float32)) for n, s in shapes.items()]
    nodes = [
        Node("first", "Conv", ("x", "a"), ("h",), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
        Node("act", "Relu", ("h",), ("h1",)),
        Node("pool", "MaxPool", ("h1",), ("h2",), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (1, 1)}),
        Node("each", "Conv", ("h2", "b"), ("h3",), {"pads": (1, 1, 1, 1), "group": 8}),
        Node("last", "Conv", ("h3", "c", "bias"), ("y",)),
    ]  # fmt: skip
    made = (Value("y", typed(1, 4, size // 2, size // 2)),)
    return Graph("pictures", (Value("x", typed(1, 3, size, size)),), made, tuple(held), tuple(nodes), {"": 18})


def chain(seed: int) -> Graph:
    """Operators that mix some axes and not others, one after the other."""
    draw = random.Random(seed)
    shape = [draw.choice((2, 4)), draw.choice((4, 6)), 8]
    held = [constant("square", np.random.default_rng(seed).normal(size=(8, 8)).astype(np.float32))]
    held += [constant("scale", np.ones(8, np.float32)), constant("shift", np.zeros(8, np.float32))]
    given, nodes, last = typed(*shape), list[Node](), "x"
    for i in range(draw.randint(3, 7)):
        op = draw.choice(("MatMul", "Softmax", "LayerNormalization", "Relu", "Transpose", "Twice", "Whole"))
        reads, attributes = (last,), {}
        if op == "MatMul" and shape[2] == 8:
            reads = (last, "square")
        elif op == "LayerNormalization" and shape[2] == 8:
            reads, attributes = (last, "scale", "shift"), {"axis": -1}
        elif op == "Softmax":
            attributes = {"axis": draw.randrange(3)}
        elif op == "Transpose":
            attributes = {"perm": (1, 0, 2)}
            shape[:2] = shape[1::-1]
        elif op == "Twice":
            op, reads = "Mul", (last, last)
        elif op == "Whole":
            op, attributes = "CumSum", {}
            reads = (last, "axis")
        else:
            op = "Relu"
        nodes.append(Node(f"n{i}", op, reads, (f"v{i}",), attributes))
        last = f"v{i}"
    held.append(constant("axis", np.array(1, np.int64)))
    return Graph("chain", (Value("x", given),), (Value(last, typed(*shape)),), tuple(held), tuple(nodes), {"": 18})


def regions(graph: Graph, parts: int) -> list[FissionRegion]:
    """All that can be cut into so many parts."""
    source = FissionSearchGraph(graph, infer(graph))
    return [
        region
        for head in range(len(graph.nodes))
        for way in tails(source, head)
        for around in range(head)
        for region in grown(source, head, way, parts, around, KERNEL)
    ]


def results(graph: Graph) -> dict[str, np.ndarray]:
    return reference.run(graph, feeds_for(graph))


GRAPHS = [attention(6, 2, 4), pictures(16), *(chain(seed) for seed in range(8))]


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: g.name)
def test_parts_are_the_whole(graph: Graph) -> None:
    expected, typing = results(graph), infer(graph)
    for region in {(r.output, r.nodes, r.way.axis): r for r in regions(graph, 3)}.values():
        made = split(FissionSearchGraph(graph, typing), region)
        if made is None:
            continue
        assert all(isinstance(n, CanonicalNode) for n in infer(made.graph.checked()).nodes)
        for name, array in results(made.graph).items():
            np.testing.assert_allclose(array, expected[name], rtol=2e-5, atol=1e-6, err_msg=str(region))


def test_what_can_be_cut_is_read_off_meanings() -> None:
    """Attention by rows and heads, the MLP by rows and as a sum of hidden units, pictures by rows and channels."""
    cut = {(r.output, r.way.axis, len(r.nodes)) for r in regions(attention(6, 2, 4), 2)}
    assert {("o", 2, 3), ("o", 1, 3), ("z", 1, 3), ("z", None, 3)} <= cut
    assert not {(o, a) for o, a, n in cut if o == "p" and a == 3}  # rows sum to 1: no part of one is known alone
    cut = {(r.output, r.way.axis, len(r.nodes)) for r in regions(pictures(16), 2)}
    assert {("y", 2, 5), ("y", None, 5), ("h3", 1, 4), ("h3", 3, 4)} <= cut


def test_a_value_leads_to_heads_in_order() -> None:
    graph = attention(6, 2, 4)
    found = heads(FissionSearchGraph(graph, infer(graph)), "s")
    assert [graph.nodes[i].name for i in found] == ["soft", "mixed", "back", "flat", "add", "up", "act", "down"]


def test_the_written_graph_is_proved_and_a_wrong_one_refuted() -> None:
    for graph in (attention(128, 2, 8), pictures(32)):
        (found,) = fissions(graph, targets=(0.7,))
        made = found.graph
        told = verify(graph, made, power="none")
        assert told.verdict == PROVED, told.reason
    joined = next(i for i, n in enumerate(made.nodes) if n.op in ("Concat", "Add"))
    turned = replace(made.nodes[joined], inputs=(made.nodes[joined].inputs[0],) * len(made.nodes[joined].inputs))
    wrong = replace(made, nodes=(*made.nodes[:joined], turned, *made.nodes[joined + 1 :]))
    assert verify(graph, wrong, power="none").verdict == "refuted"


@pytest.mark.slow
def test_the_arena_is_asked_for_less() -> None:
    graph = attention(256, 4, 16)
    with costs.for_target("profile:cpu-epyc-2core") as model:
        found = smallest_points(graph, model, share=1.0, seconds=60.0)
    assert found[-1].how.startswith("fission")
    assert arena_block(found[-1].graph, {}) < 0.5 * arena_block(graph, {})


def test_where_a_plan_is_measured_too_slow_a_lighter_one_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = attention(128, 2, 8)
    monkeypatch.setattr(fission, "fissions", lambda g, deadline: fissions(g, targets=(0.7, 0.4), deadline=deadline))
    timed: list[Graph] = []

    def slow(before: Graph, after: Graph) -> PairedMeasurement:
        timed.append(after)
        ratio = 3.0 if len(timed) == 1 else 1.0
        return PairedMeasurement(1.0, ratio, ratio, 9, deviation=0.01)

    with costs.for_target("profile:cpu-epyc-2core") as model:
        found = smallest_points(graph, model, share=1.0, seconds=60.0, timer=slow)
    slower, lighter = (next(p for p in found if p.graph is graph) for graph in timed[:2])
    assert lighter.us < slower.us
    assert found[-1] is lighter


@pytest.mark.slow
def test_many_parts_whose_windows_overlap_are_proved_part_by_part() -> None:
    graph = pictures(32)
    typing = infer(graph)
    region = next(r for r in regions(graph, 8) if (r.output, r.way.axis, len(r.nodes)) == ("y", 2, 5))
    made = split(FissionSearchGraph(graph, typing), region)
    assert made is not None
    told = verify(graph, made.graph, power="none", trials=1)
    assert told.verdict == PROVED, told.reason


def test_a_part_that_is_missing_or_in_another_place_is_no_proof() -> None:
    x, kind = VariableTerm("x"), TensorVariableType("f", (8, 4))

    def rows(low: int, high: int) -> OperatorTerm:
        return OperatorTerm("Slice", (x,), (("axes", (0,)), ("ends", (high,)), ("starts", (low,)), ("steps", (1,))))

    def joined(*parts: OperatorTerm) -> Rule:
        return Rule("joined", {"x": kind}, (), (x,), (OperatorTerm("Concat", parts, (("axis", 0),)),))

    assert isinstance(prove_joined(joined(rows(0, 3), rows(3, 8))), ProvedVerdict)
    assert isinstance(prove_joined(joined(rows(0, 3), rows(3, 7))), UnknownVerdict)
    assert isinstance(prove_joined(joined(rows(3, 8), rows(0, 3))), UnknownVerdict)
    assert isinstance(prove_joined(joined(rows(0, 4), rows(3, 7))), UnknownVerdict)


def test_slices_are_followed_through_operators_one_by_one() -> None:
    def sliced(term: OperatorTerm | VariableTerm, low: int, high: int) -> OperatorTerm:
        return OperatorTerm("Slice", (term,), (("axes", (0,)), ("ends", (high,)), ("starts", (low,)), ("steps", (1,))))

    def mixed(x: OperatorTerm | VariableTerm, windows: int) -> OperatorTerm:
        """Rows as windows of four, each of which attends to itself."""
        own = OperatorTerm("Reshape", (x,), (("shape", (windows, 4, 6)),))
        other = OperatorTerm("Transpose", (OperatorTerm("Exp", (own,)),), (("perm", (0, 2, 1)),))
        scores = OperatorTerm("Softmax", (OperatorTerm("MatMul", (own, other)),), (("axis", 2),))
        return OperatorTerm("MatMul", (scores, OperatorTerm("Sigmoid", (own,))))

    def joined(low: int, high: int) -> Rule:
        x = VariableTerm("x")
        parts = mixed(sliced(x, 0, 8), 2), mixed(sliced(x, low, high), 3)
        return Rule(
            "joined",
            {"x": TensorVariableType("f", (20, 6))},
            (),
            (mixed(x, 5),),
            (OperatorTerm("Concat", parts, (("axis", 0),)),),
        )

    little = 1e-3  # seconds: no proof of it all as one expression
    assert isinstance(prove_joined(joined(8, 20), time_limit=little), ProvedVerdict)
    assert isinstance(prove_joined(joined(4, 16), time_limit=little), UnknownVerdict)
    assert isinstance(prove_joined(joined(7, 19), time_limit=little), UnknownVerdict)
