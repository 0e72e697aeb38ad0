"""The e-graph, matching and lifting by themselves."""

from __future__ import annotations

import pytest
from graphs import f32
from rules_for_tests import rules

from superopt.egraph.egraph import EGraph, TypeClashError
from superopt.egraph.nary_rules import group_rewrite, lift
from superopt.egraph.pattern_compiler import PatternMatch, bound, compile_side
from superopt.ir.terms import format_term
from superopt.ops import REGISTRY
from superopt.ops.operator_semantics import IllTypedOperator


def test_congruence_spreads_upwards():
    graph = EGraph(REGISTRY)
    a, b = graph.leaf(0, f32(2), False), graph.leaf(1, f32(2), False)
    x, y = graph.add("Relu", (), (a,)), graph.add("Relu", (), (b,))
    p, q = graph.add("Exp", (), (x,)), graph.add("Exp", (), (y,))
    graph.union(a, b, "because")
    graph.rebuild()
    assert graph.find(p) == graph.find(q)
    assert graph.reasons([(p, q)]) == {"because": 1}


def test_commutative_operands_are_sorted():
    graph = EGraph(REGISTRY)
    a, b = graph.leaf(0, f32(2), False), graph.leaf(1, f32(2), False)
    assert graph.add("Add", (), (a, b)) == graph.add("Add", (), (b, a))
    assert graph.add("Sub", (), (a, b)) != graph.add("Sub", (), (b, a))


def test_types_are_checked():
    graph = EGraph(REGISTRY)
    a, b = graph.leaf(0, f32(2), False), graph.leaf(1, f32(3), False)
    with pytest.raises(TypeClashError):
        graph.union(a, b, "wrong")
    with pytest.raises(IllTypedOperator):
        graph.add("Add", (), (a, b))


def test_constants_spread_through_unions():
    graph = EGraph(REGISTRY)
    x, w = graph.leaf(0, f32(2), False), graph.leaf(1, f32(2), True)
    above = graph.add("Relu", (), (graph.add("Exp", (), (x,)),))
    assert not graph.constant(above)
    graph.union(graph.add("Exp", (), (x,)), w, "rule")
    graph.rebuild()
    assert graph.constant(above)


def test_matching_binds_sizes_and_checks_repeats():
    (rule,) = rules("distribute")
    graph = EGraph(REGISTRY)
    x, a, c = graph.leaf(0, f32(2, 3), False), graph.leaf(1, f32(3, 5), True), graph.leaf(2, f32(3, 5), True)
    other = graph.leaf(3, f32(2, 3), False)
    graph.add("Add", (), (graph.add("MatMul", (), (x, a)), graph.add("MatMul", (), (x, c))))
    graph.add("Add", (), (graph.add("MatMul", (), (x, a)), graph.add("MatMul", (), (other, c))))
    found: list[PatternMatch] = []

    def keep(pattern, slots, registers):
        match = bound(graph, pattern, slots, registers)
        if match is not None:
            found.append(match)

    compile_side(rule, rule.lhs, rule.rhs).trie.walk(graph, keep)
    assert {(m.tensors["x"], m.sizes["b"], m.sizes["m"]) for m in found} == {(x, 2, 5)}
    assert len(found) == 2  # a and c either way round


def test_lifting_writes_a_rule_for_many_siblings():
    from superopt.rules.typing import instances

    (rule,) = rules("qkv")
    lifted = lift(instances(rule, (0,))[0], 3)
    assert lifted is not None
    assert len(lifted.lhs) == len(lifted.rhs) == 3
    text = format_term(lifted.rhs[2])
    assert "Concat(a, a@1, a@2, axis=1)" in text
    assert "split=[m, m@1, m@2]" in text
    assert text.endswith("[2]")


def test_lifting_follows_the_arity_of_splits():
    relu, concat = rules("relu-split", "concat-split")
    assert "split=[m, m@1, m@2]" in format_term(lift(relu, 3).rhs[0])
    assert format_term(lift(concat, 3).lhs[0]).count("[") > 3
    assert lift(rules("assoc")[0], 3) is None
    assert group_rewrite(rules("assoc")[0]) is None
