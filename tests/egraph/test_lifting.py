"""A rule for two copies, lifted to k: true at every k that is tried, for every rule of the library that lifts."""

from __future__ import annotations

import pytest
from sampling import slow

from superopt.egraph.nary_rules import group_rewrite, lift
from superopt.ir.terms import OperatorTerm, postorder
from superopt.rules import load_library
from superopt.rules.typing import instances
from superopt.verifier import test as exact_test
from superopt.verifier.verdict import RefutedVerdict

FAMILIES = sorted(load_library().families)


@pytest.fixture(scope="module")
def liftable():
    """By family, what the search would lift: (rule, lifted). Both directions of a rule give one equation: it is one.

    Asking every rule takes seconds, which every process of the tests would spend if they were parameters.
    """
    found = {family: {} for family in FAMILIES}
    for rule in load_library().admitted:
        for instance in instances(rule)[:1]:
            for backward in (False, True):
                source = instance.rhs if backward else instance.lhs
                usable = rule.backward if backward else rule.forward
                both = len(source) == 2 and group_rewrite(instance, backward=backward) is not None
                parts = instance.operators & {"Concat", "Split"} and len(source) == 1
                if usable and (both or parts) and (lifted := lift(instance, 3, backward=backward)) is not None:
                    found[rule.family][rule.id, frozenset({lifted.lhs, lifted.rhs})] = lifted
    return {family: [(name, lifted) for (name, _), lifted in rules.items()] for family, rules in found.items()}


def test_there_are_rules_to_lift(liftable):
    assert sum(map(len, liftable.values())) > 150


def enlarges_much(rule):
    """Whether it interpolates by a factor above 2, which takes seconds over exact rationals."""
    resizes = [
        dict(t.attributes) for t in postorder(*rule.lhs, *rule.rhs) if isinstance(t, OperatorTerm) and t.op == "Resize"
    ]
    return any(r["mode"] == "linear" and any(s > 2 for s in r["scales_up"]) for r in resizes)


@pytest.mark.parametrize("every", [slow(1), 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_lifted_rules_are_true(family, every, liftable):
    """Three siblings: two are the rule itself, and more only make it slower to test.

    Three trials differ in leading axes and in how large sizes are; of elements each is as good as certain.
    """
    false = [
        (name, lifted)
        for name, lifted in liftable[family][::every]
        if not enlarges_much(lifted) and isinstance(exact_test(lifted, trials=3), RefutedVerdict)
    ]
    assert not false


@pytest.mark.slow
def test_lifted_interpolations_are_true(liftable):
    dear = [(name, lifted) for lifted_rules in liftable.values() for name, lifted in lifted_rules]
    dear = [(name, lifted) for name, lifted in dear if enlarges_much(lifted)]
    assert dear
    assert not [name for name, lifted in dear if isinstance(exact_test(lifted, trials=3), RefutedVerdict)]


def test_a_number_that_stands_for_the_two_copies_is_not_lifted():
    from superopt.rules import parse_rule

    row = {"id": "stack", "forall": {"x": "f[b, k]", "y": "f[b, k]"},
           "lhs": ["Concat(Unsqueeze(x, axes=[0]), Unsqueeze(y, axes=[0]), axis=0)"],
           "rhs": ["Reshape(Concat(x, y, axis=0), shape=[2, b, k])"]}  # fmt: skip
    rule = parse_rule(row)
    assert lift(rule, 2) is not None
    assert lift(rule, 3) is None


def test_many_sums_beside_each_other_are_not_looked_for_in_every_order():
    """Eight sums have 256 orders of operands; a NASRNN's search took 80 seconds instead of 4."""
    from superopt.discovery.derive import rewrites_of
    from superopt.rules import parse_rule

    def of_parts(operator, count):
        row = {"id": "apart", "forall": dict.fromkeys("abcd", "f[m, n]"),
               "lhs": [f"Concat({operator}(a, b), {operator}(c, d), axis=0)"],
               "rhs": [f"{operator}(Concat(a, c, axis=0), Concat(b, d, axis=0))"]}  # fmt: skip
        patterns = rewrites_of([parse_rule(row)], parts=(count,)).patterns
        return sum(len(p.rule.tensors) == 2 * count and p.rule.lhs[0].op == "Concat" for p in patterns)

    assert of_parts("Add", 4) == of_parts("Sub", 4) == of_parts("Sub", 8) == 1
    assert of_parts("Add", 8) == 0
