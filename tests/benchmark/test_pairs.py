"""Before/after pairs: blocks at seeded places, rewritten for better or worse, always to something equal."""

import pytest

from superopt.benchmark.cost_validation import AIMS, ProxyCostModel, cut_blocks, rewrites
from superopt.cost.measurement_record import key_of, question_of
from superopt.ir.graph import Graph, Node, Value, constant, structural_hash
from superopt.ir.types import DType, TensorType
from superopt.rules import load_library
from superopt.runtime.synthetic_tensors import sample
from superopt.verifier.check.differential import check


def f(*shape):
    return TensorType(DType.FLOAT32, shape)


def towers(layers, width):
    """Layers of two products of one value, activated and added."""
    weights, nodes, last = [], [], "x"
    for i in range(layers):
        for side in "ab":
            weights.append(constant(f"w{side}{i}", sample(f(width, width), i + ord(side))))
            nodes.append(Node(f"m{side}{i}", "MatMul", (last, f"w{side}{i}"), (f"m{side}{i}",)))
            nodes.append(Node(f"r{side}{i}", "Relu", (f"m{side}{i}",), (f"r{side}{i}",)))
        nodes.append(Node(f"s{i}", "Add", (f"ra{i}", f"rb{i}"), (f"s{i}",)))
        last = f"s{i}"
    return Graph("towers", (Value("x", f(64, width)),), (Value(last, None),), tuple(weights), tuple(nodes), {"": 21})


def names(found):
    return [[n.name for n in block.nodes] for block in found]


def test_blocks_are_runs_of_nodes_that_stand_alone_at_the_same_places_for_a_seed():
    graph = towers(40, 512)
    order = [n.name for n in graph.nodes]
    found = cut_blocks(graph, 3, seed=5)
    assert len(found) == 3
    for block, held in zip(found, names(found), strict=True):
        start = order.index(held[0])
        assert held == order[start : start + len(held)]
        assert block.inputs
        assert check(block, block, trials=1).verdict == "passed"
    assert names(cut_blocks(graph, 3, seed=5)) == names(found)
    assert names(cut_blocks(graph, 3, seed=6)) != names(found)


def test_a_small_graph_is_a_block_itself():
    graph = towers(2, 16)
    assert cut_blocks(graph, 3) == (graph,)


def test_rewrites_are_equal_different_and_reproducible():
    [block] = cut_blocks(towers(1, 32), 1)
    rules = [r for r in load_library().admitted if r.operators <= {"MatMul", "Add", "Relu", "Concat", "Split"}]
    found = dict(rewrites(block, rules, AIMS))
    assert len(found) >= 2
    digests = [structural_hash(g, values=False) for g in (block, *found.values())]
    assert len(set(digests)) == len(digests)
    for after in found.values():
        assert check(block, after).verdict == "passed"
    again = dict(rewrites(block, rules, AIMS))
    assert [structural_hash(g) for g in again.values()] == [structural_hash(g) for g in found.values()]


@pytest.mark.parametrize("aim", AIMS)
def test_estimates_have_an_aim_and_are_the_same_anywhere(aim):
    product, sum_ = (question_of(key_of(op, {}, (f(8, 8), f(8, 8)))) for op in ("MatMul", "Add"))
    first, second = ProxyCostModel(aim), ProxyCostModel(aim)
    cost = [[m.application(q.op, {}, q.args, q.outs).us for q in (product, sum_)] for m in (first, second)]
    assert cost[0] == cost[1]
    assert all(us > 0 for us in cost[0])
    if aim == "fewest operators":
        assert cost[0][0] == cost[0][1]
    if aim == "fewest FLOPs":
        assert cost[0][0] > cost[0][1]
