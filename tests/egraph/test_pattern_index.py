"""The net of patterns finds exactly what trying every assignment finds."""

from __future__ import annotations

from itertools import product

from graphs import f32
from hypothesis import given, settings
from hypothesis import strategies as st
from rules_for_tests import rules

from superopt.egraph.egraph import ABSENT, PROJECT, EGraph, TypeClashError
from superopt.egraph.pattern_compiler import bound, compile_side
from superopt.egraph.pattern_index import PatternTrie
from superopt.egraph.rule_compiler import _explicit
from superopt.egraph.saturation import _distances
from superopt.ir.terms import OperatorTerm, OutputTerm, VariableTerm, postorder
from superopt.ops import REGISTRY
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.rules.typing import instances

OPERATORS = (("Relu", 1), ("Neg", 1), ("Add", 2), ("Mul", 2), ("MatMul", 2), ("Sub", 2))


def patterns():
    found = []
    for rule in rules():
        for instance in instances(rule):
            plain = _explicit(instance)
            for source, target in ((plain.lhs, plain.rhs), (plain.rhs, plain.lhs)):
                if not any(isinstance(t, VariableTerm) for t in source):
                    found.append(compile_side(plain, source, target))
    return found


PATTERNS = patterns()


@st.composite
def graphs(draw):
    graph = EGraph(REGISTRY)
    values = [graph.leaf(i, f32(2, 2), draw(st.booleans()) if i else False) for i in range(3)]
    for _ in range(draw(st.integers(1, 7))):
        op, count = draw(st.sampled_from(OPERATORS))
        args = tuple(draw(st.sampled_from(values)) for _ in range(count))
        values.append(graph.add(op, (), args))
    for _ in range(draw(st.integers(0, 3))):
        try:
            graph.union(draw(st.sampled_from(values)), draw(st.sampled_from(values)), "luck")
        except TypeClashError:
            continue
    graph.rebuild()
    return graph, values


def walked(trie, graph, levels=None):
    found = set()

    def keep(pattern, slots, registers):
        match = bound(graph, pattern, slots, registers)
        if match is not None:
            found.add((PATTERNS.index(pattern), match.roots, tuple(match.tensors.items())))

    trie.walk(graph, keep, levels)
    return found


def tried(graph, pattern):
    """Every assignment of classes to the side's variables whose term is in the graph, by looking it up."""
    names = list(pattern.tensor_slots)
    for classes in product(sorted(graph.classes), repeat=len(names)):
        match = dict(zip(names, classes, strict=True))
        if any(isinstance(graph.type(c), tuple) for c in classes):
            continue
        roots = held(graph, pattern, match)
        if roots is not None and not graph.constant(roots[0]):
            yield roots, match


def held(graph, pattern, match):
    where = {}
    for term in postorder(*pattern.source):
        if isinstance(term, VariableTerm):
            where[term] = match[term.name]
        elif isinstance(term, OutputTerm):
            node = (graph.head(PROJECT, (("index", term.index),)), where[term.term])
            where[term] = found(graph, node)
        elif isinstance(term, OperatorTerm):
            if term.attributes:
                return None
            node = (graph.head(term.op), *(ABSENT if a is None else where[a] for a in term.args))
            where[term] = found(graph, node)
        if where[term] is None:
            return None
    return tuple(where[r] for r in pattern.source)


def found(graph, node):
    identity = graph._table.get(graph.canonical(node))
    return None if identity is None else graph.find(identity)


@settings(max_examples=25, deadline=None)
@given(graphs())
def test_the_net_finds_what_trying_everything_finds(made):
    graph, _ = made
    net = PatternTrie([(p, p.steps, p.depth) for p in PATTERNS])
    together = walked(net, graph)
    alone = set().union(*(walked(PatternTrie([(p, p.steps, p.depth)]), graph) for p in PATTERNS))
    assert together == alone
    plain = [p for p in PATTERNS if not any(isinstance(t, OperatorTerm) and t.attributes for t in postorder(*p.source))]
    assert len(plain) > 5
    for pattern in plain:
        number = PATTERNS.index(pattern)
        mine = {(roots, tensors) for n, roots, tensors in together if n == number}
        for roots, match in tried(graph, pattern):
            kinds = [graph.type(c) for c in match.values()]
            if all(k == f32(2, 2) for k in kinds) and all(len(s.shape) == 2 for s in pattern.rule.tensors.values()):
                assert (roots, tuple(match.items())) in mine
                mine.discard((roots, tuple(match.items())))
        assert not mine


@settings(max_examples=25, deadline=None)
@given(graphs(), st.data())
def test_nothing_new_is_missed_near_what_changed(made, data):
    graph, values = made
    net = PatternTrie([(p, p.steps, p.depth) for p in PATTERNS])
    before = walked(net, graph)
    graph.touched = set()
    for _ in range(data.draw(st.integers(1, 2))):
        op, count = data.draw(st.sampled_from(OPERATORS))
        args = tuple(data.draw(st.sampled_from(values)) for _ in range(count))
        try:
            graph.union(graph.add(op, (), args), data.draw(st.sampled_from(values)), "luck")
        except (IllTypedOperator, TypeClashError):
            continue
    graph.rebuild()
    after = walked(net, graph)
    near = walked(net, graph, _distances(graph, net.depth))
    renamed = {
        (n, tuple(map(graph.find, roots)), tuple((k, graph.find(c)) for k, c in tensors))
        for n, roots, tensors in before
    }
    assert after - renamed <= near <= after


@settings(max_examples=25, deadline=None)
@given(graphs(), st.integers(0, 2))
def test_no_more_applications_that_change_nothing_are_gone_through_than_allowed(made, most):
    graph, _ = made
    everywhere = walked(PatternTrie([(p, p.steps, p.depth) for p in PATTERNS]), graph)
    allowed = walked(PatternTrie([(p, p.steps, p.depth) for p in PATTERNS], lambda _: most), graph)
    assert allowed <= everywhere
    for number, roots, tensors in everywhere:
        pattern = PATTERNS[number]
        if not any(isinstance(t, OperatorTerm) and t.attributes for t in postorder(*pattern.source)):
            assert ((number, roots, tensors) in allowed) == (loops(graph, pattern, dict(tensors)) <= most)


def loops(graph, pattern, match):
    """How many of the side's applications read the class that they are in."""
    where, count = {}, 0
    for term in postorder(*pattern.source):
        if isinstance(term, VariableTerm):
            where[term] = match[term.name]
        elif isinstance(term, OutputTerm):
            where[term] = found(graph, (graph.head(PROJECT, (("index", term.index),)), where[term.term]))
        else:
            args = [where[a] for a in term.args if a is not None]
            where[term] = found(graph, (graph.head(term.op), *(ABSENT if a is None else where[a] for a in term.args)))
            count += where[term] in args
    return count
