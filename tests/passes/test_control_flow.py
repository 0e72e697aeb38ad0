"""Bodies of If, Loop and Scan are rewritten like graphs of their own, and give what they gave."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import superopt
from superopt.formats.control_flow_bodies import all_names, bodies, count_nodes
from superopt.formats.onnx_reader import from_onnx
from superopt.ir.graph import Graph
from superopt.memory.size_hiding import SizeHidingReshapes
from superopt.ops.shape_inference import infer
from superopt.passes.fast_algorithms.sites import NodeBuilder
from superopt.pipeline.runtime_fault_avoidance import with_copies
from superopt.program.graph_program import program_of
from superopt.regions.replay import FreshNames
from tests.control_flow import CASES, ROW, body, feeds, model, node, operators, value

PRICES = "profile:cpu-epyc-2core"


def _values(proto: ModelProto, fed: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, fed)
    return found


def _optimized(proto: ModelProto, **settings: object) -> tuple[superopt.Result, ModelProto]:
    result = superopt.optimize(proto, target=PRICES, **settings)  # type: ignore[arg-type]
    made = result.to_onnx()
    onnx.checker.check_model(made, full_check=True)
    return result, made


@cache
def _case(name: str) -> tuple[superopt.Result, ModelProto]:
    """What becomes of a case, which several tests look at."""
    return _optimized(CASES[name][0])


@pytest.mark.parametrize("name", CASES)
def test_bodies_have_fewer_nodes_and_give_the_same(name: str) -> None:
    proto, given, most = CASES[name]
    result, made = _case(name)
    assert result.report.status == "improved", result.report.reason
    assert len(operators(made)) <= most
    assert result.report.nodes.after == len(operators(made))
    assert result.report.check.verdict == "passed"
    for seed, fed in enumerate(given):
        arrays = feeds(proto, seed, **fed)
        for a, b in zip(_values(proto, arrays), _values(made, arrays), strict=True):
            np.testing.assert_allclose(b, a, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["if", "scan", "if in a loop"])
def test_the_same_through_json_and_twice(name: str) -> None:
    proto, _, _ = CASES[name]
    first, _ = _case(name)
    again, _ = _optimized(proto, effort="default")
    assert first.report.result == again.report.result


def test_a_body_is_a_graph_whose_sizes_hold_at_every_turn() -> None:
    """What a Loop carries may grow: only sizes that its body gives back are known."""
    nodes = [node("Identity", "going", "goes"), node("Concat", "s x", "so", axis=0)]
    steering = [value("turn", [], TensorProto.INT64), value("going", [], TensorProto.BOOL)]
    inner = body(
        nodes, [*steering, value("s", [None, 16])], [value("goes", [], TensorProto.BOOL), value("so", [None, 16])]
    )
    loop = node("Loop", "n true x", "y", body=inner)
    proto = model([loop], [value("n", [], TensorProto.INT64), value("x")], [value("y", [None, 16])])
    graph = superopt.load(proto)
    (found,) = bodies(graph, infer(graph))
    carried = found.graph.inputs[2].type
    assert str(carried) == "float32[?s.0, 16]"
    for name, rows in (("scan", 4), ("loop", 4)):
        kept = superopt.load(CASES[name][0])
        (held,) = bodies(kept, infer(kept))
        assert str(held.graph.inputs[-1].type).startswith(f"float32[{rows}, ")


def test_what_may_fail_stays_in_a_loop_of_no_turns() -> None:
    """A Gather out of range before a Loop would refuse inputs on which the Loop makes no turn."""
    nodes = [
        node("Identity", "going", "goes"), node("Gather", "x i", "row"), node("Add", "s row", "so"),
    ]  # fmt: skip
    steering = [value("turn", [], TensorProto.INT64), value("going", [], TensorProto.BOOL)]
    inner = body(nodes, [*steering, value("s", [16])], [value("goes", [], TensorProto.BOOL), value("so", [16])])
    inputs = [value("n", [], TensorProto.INT64), value("i", [], TensorProto.INT64), value("x"), value("s0", [16])]
    proto = model([node("Loop", "n true s0", "y", body=inner)], inputs, [value("y", [16])])
    _, made = _optimized(proto)
    arrays = feeds(proto, 0, n=0, i=99)
    np.testing.assert_array_equal(_values(made, arrays)[0], arrays["s0"])


def test_what_both_branches_compute_stands_before_the_if() -> None:
    """Under different names, in another order, and not what one of them alone computes."""
    then = body(
        [node("MatMul", "x w1", "a"), node("Softmax", "a", "b"), node("Exp", "x", "e"), node("Add", "b e", "ty")],
        [], [value("ty")],
    )  # fmt: skip
    other = body(
        [node("Exp", "x", "f"), node("MatMul", "x w1", "c"), node("Softmax", "c", "d"), node("Softmax", "f", "g"),
         node("Sub", "d g", "ey")], [], [value("ey")],
    )  # fmt: skip
    outer = node("If", "c0", "y", then_branch=then, else_branch=other)
    proto = model([outer], [value("c0", [], TensorProto.BOOL), value("x")], [value("y")])
    result, made = _optimized(proto)
    assert sorted(n.op_type for n in made.graph.node) == ["Exp", "If", "MatMul", "Softmax"]
    assert len(operators(made)) == 7
    assert any("both branches" in note for note in result.report.notes)
    for taken in (True, False):
        arrays = feeds(proto, 2, c0=taken)
        np.testing.assert_allclose(_values(made, arrays)[0], _values(proto, arrays)[0], rtol=1e-4, atol=1e-5)


def test_a_condition_that_a_caller_may_override_is_not_constant() -> None:
    proto = ModelProto.FromString(CASES["constant condition"][0].SerializeToString())
    proto.graph.input.append(helper.make_tensor_value_info("true", TensorProto.BOOL, []))
    _, made = _optimized(proto)
    assert "If" in operators(made)
    arrays = {**feeds(proto, 1, true=False)}
    np.testing.assert_allclose(_values(made, arrays)[0], _values(proto, arrays)[0], rtol=2e-4, atol=2e-5)


def test_names_of_a_branch_that_mean_something_else_outside_keep_the_if() -> None:
    """Two Ifs whose branches have the same names: one of them may take the names, not both."""
    parts = []
    for place in range(2):
        then = body([node("Neg", f"x{place}", "a"), node("Exp", "a", "b")], [], [value("b")])
        other = body([node("Abs", f"x{place}", "c")], [], [value("c")])
        parts.append(node("If", "true", f"y{place}", then_branch=then, else_branch=other))
    proto = model(parts, [value("x0"), value("x1")], [value("y0"), value("y1")])
    _, made = _optimized(proto)
    arrays = feeds(proto, 3)
    for a, b in zip(_values(proto, arrays), _values(made, arrays), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5)


def test_new_weights_stand_outside_of_bodies_under_names_of_their_own() -> None:
    result, made = _case("if")
    names = {t.name for t in made.graph.initializer}
    assert len(names) == 2
    inside = [t.name for n in made.graph.node for a in n.attribute for t in a.g.initializer]
    assert not inside
    assert names <= all_names(result.graph)
    assert count_nodes(result.graph) == len(operators(made))


def test_bodies_that_hold_what_is_not_read_are_carried_through() -> None:
    sparse = body([node("Add", "x k", "ty")], [], [value("ty")])
    dense = numpy_helper.from_array(np.ones(1, np.float32), "k")
    where = numpy_helper.from_array(np.array([0]), "")
    sparse.sparse_initializer.append(helper.make_sparse_tensor(dense, where, [16]))
    other = body([node("Neg", "x", "ey")], [], [value("ey")])
    outer = node("If", "c", "q", then_branch=sparse, else_branch=other)
    proto = model([outer, node("Mul", "q one", "y")], [value("c", [], TensorProto.BOOL), value("x", ROW)], [value("y")])
    graph = superopt.load(proto)
    assert isinstance(graph, Graph)
    assert [b.attribute for b in bodies(graph, infer(graph))] == ["else_branch"]


def test_a_body_that_nothing_improves_is_no_rewritten_graph() -> None:
    nodes = [node("Identity", "going", "goes"), node("Sin", "s", "a"), node("Tanh", "a", "so")]
    steering = [value("turn", [], TensorProto.INT64), value("going", [], TensorProto.BOOL)]
    inner = body(nodes, [*steering, value("s")], [value("goes", [], TensorProto.BOOL), value("so")])
    proto = model(
        [node("Loop", "n true x", "y", body=inner)], [value("n", [], TensorProto.INT64), value("x")], [value("y")]
    )
    result, _ = _optimized(proto)
    assert result.report.reason.code == "none_found", result.report.reason.text


def test_loops_that_may_never_end_are_checked_all_the_same() -> None:
    """A mutant's condition, or a disturbed one, may hold for ever."""
    nodes = [
        node("MatMul", "s w1", "a"), node("MatMul", "a w1", "b"), node("Tanh", "b", "so"),
        node("ReduceMax", "so", "m", keepdims=0), node("Less", "m most", "goes"),
    ]  # fmt: skip
    steering = [value("turn", [], TensorProto.INT64), value("going", [], TensorProto.BOOL)]
    inner = body(nodes, [*steering, value("s")], [value("goes", [], TensorProto.BOOL), value("so")])
    loop = node("Loop", "n c x", "y", body=inner)
    loop.input[0] = ""  # no bound on turns
    proto = model([loop], [value("c", [], TensorProto.BOOL), value("x")], [value("y")])
    proto.graph.initializer.append(numpy_helper.from_array(np.array(-0.5, np.float32), "most"))
    result, made = _optimized(proto)
    assert result.report.check.verdict == "passed"
    assert len(operators(made)) == 5


def test_a_body_that_hides_a_name_around_it_is_carried_through() -> None:
    """ONNX does not allow that; ONNX Runtime runs it, and reads the outer value."""
    own = numpy_helper.from_array(np.full(16, 3, np.float32), "w1")
    then = body([node("Add", "x w1", "ty")], [], [value("ty")], own)
    other = body([node("Neg", "x", "n"), node("Neg", "n", "ey")], [], [value("ey")])
    outer = node("If", "c", "q", then_branch=then, else_branch=other)
    proto = model([outer, node("MatMul", "q w1", "y")], [value("c", [], TensorProto.BOOL), value("x")], [value("y")])
    graph = superopt.load(proto)
    assert [b.attribute for b in bodies(graph, infer(graph))] == ["else_branch"]


def test_whoever_makes_values_knows_the_names_inside_bodies() -> None:
    """ONNX refuses a name that is taken inside a body, wherever the new value stands."""
    inside = ["a_new", "x_copy", "p/conv"]
    names = ["x", *inside]
    branch = body([node("Neg", *pair) for pair in pairwise(names)], [], [value(names[-1])])
    nodes = [node("Relu", "w", "x"), node("If", "c", "y", then_branch=branch, else_branch=branch)]
    graph = from_onnx(model(nodes, [value("c", [], TensorProto.BOOL), value("w")], [value("y")]))
    assert FreshNames(program_of(graph, infer(graph))).fresh("a_new") == "a_new_2"
    assert SizeHidingReshapes.of(graph, {}).taken.issuperset(inside)
    assert with_copies(graph, {"x"}).nodes[1].outputs == ("x_copy_2",)
    assert NodeBuilder(graph, "p").name("conv") == "p/conv_1"
