"""Ten times as many rules, nine tenths of them duplicates: the same result for hardly more work."""

from __future__ import annotations

import pytest
from duplicates import mirrored, renamed, tenfold
from graphs import linear_stack, qkv, siamese
from roofline import Roofline
from rules_for_tests import rules

from lab.search_comparison import modelled
from superopt import formats
from superopt.passes import SearchOptions, search
from superopt.rules import load_library
from superopt.verifier import test as exact_test
from superopt.verifier.verdict import RefutedVerdict

OPTIONS = SearchOptions(cache=False, least_gain=0.0, time_limit=60.0)


@pytest.mark.parametrize("model", [qkv(4), linear_stack(5), siamese(3)], ids=["qkv", "stack", "siamese"])
def test_ten_times_the_rules_are_no_worse_and_make_no_larger_graphs(model):
    costs = Roofline()
    plain, grown = (search(model, r, costs, OPTIONS) for r in (rules(), tenfold(rules())))
    assert modelled(grown.graph, costs) <= modelled(plain.graph, costs) + 1e-6
    assert grown.e_nodes <= 2 * plain.e_nodes


def test_duplicates_are_true():
    for rule in rules():
        for twin in (renamed(rule, "-r"), mirrored(rule, "-m"), *tenfold((rule,))[3:5]):
            assert not isinstance(exact_test(twin), RefutedVerdict), twin.id


def test_the_library_ten_times():
    from tests.passes.test_corpus import TINY

    library = tuple(r for r in load_library().admitted if r.operators <= {"MatMul", "Add", "Concat", "Split", "Relu"})
    model, costs = formats.load(TINY / "siamese.json"), Roofline()
    plain, grown = (search(model, r, costs, OPTIONS) for r in (library, tenfold(library)))
    assert modelled(grown.graph, costs) <= modelled(plain.graph, costs) + 1e-6
    assert grown.e_nodes <= 2 * plain.e_nodes
