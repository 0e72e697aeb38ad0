"""A greedy search: rewrites that gain by price where they stand."""

from __future__ import annotations

import pytest
from graphs import assert_equivalent, linear_stack, qkv, siamese
from roofline import Roofline
from rules_for_tests import rules

from superopt import cost
from superopt.frontend import GraphBuilder
from superopt.ir.graph import Graph, structural_hash
from superopt.passes import SearchOptions, search
from superopt.rules.peepholes import peephole_library

GREEDY = SearchOptions(greedy=True, cache=False)


def ops(model: Graph) -> list[str]:
    return [n.op for n in model.nodes]


def attention(tokens: int = 512, width: int = 16) -> Graph:
    """Two products without a Softmax between them, first over the tokens."""
    b = GraphBuilder("attention")
    q, k, v = (b.input(n, "float32", s) for n, s in (("q", (tokens, width)), ("k", (width, tokens)),
                                                     ("v", (tokens, width))))  # fmt: skip
    b.output((q @ k) @ v, "y")
    return b.build()


@pytest.mark.essential
def test_a_product_is_made_in_the_order_that_costs_less() -> None:
    library = peephole_library({"MatMul"})
    prices = cost.ProfileCostModel(cost.load_profile("cpu-epyc-2core"))
    model = attention()
    options = SearchOptions(greedy=True, cache=False, floats=library.floats("standard"))
    found = search(model, library.admitted, prices, options)
    assert found.after_us < 0.2 * found.before_us
    assert next(n.inputs for n in found.graph.nodes) == ("k", "v")
    assert_equivalent(model, found.graph)


def test_operators_on_weights_become_one() -> None:
    model = linear_stack(6)
    found = search(model, rules("assoc"), Roofline(), GREEDY)
    assert ops(found.graph) == ["MatMul"]
    assert_equivalent(model, found.graph)


@pytest.mark.parametrize("model", [qkv(4), siamese(3)], ids=["one input", "one weight"])
def test_siblings_merge_as_in_a_whole_search(model: Graph) -> None:
    whole = search(model, rules(), Roofline(), SearchOptions(cache=False))
    found = search(model, rules(), Roofline(), GREEDY)
    assert ops(found.graph).count("MatMul") == ops(whole.graph).count("MatMul") < ops(model).count("MatMul")
    assert_equivalent(model, found.graph)


def test_it_makes_fewer_e_nodes_and_the_same_result_again() -> None:
    model = siamese(6)
    whole = search(model, rules(), Roofline(), SearchOptions(cache=False))
    first, second = (search(model, rules(), Roofline(), GREEDY) for _ in range(2))
    assert first.e_nodes <= whole.e_nodes
    assert structural_hash(first.graph) == structural_hash(second.graph)
