"""What a search takes of rules whose directions have verdicts in floating point."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graphs import f32, graph, op
from roofline import Roofline

from superopt.ir.graph import Graph, constant
from superopt.ir.types import DType, TensorType
from superopt.passes import SearchOptions, search
from superopt.program.value_analysis import (
    ANYTHING,
    ValueFacts,
    array_facts,
    conditions_hold,
    merged,
    result_facts,
    rounded_facts,
    stands_for_rounded,
)
from superopt.rules.float_verdicts import FloatVerdictStore, SafeConditions, float_key
from superopt.rules.grammar import parse_rule
from superopt.rules.rule import Rule
from superopt.verifier.floats.verdict_recording import with_specials
from superopt.verifier.floats.verdict_search import examine

SOFTMAX = "Div(Exp(x), ReduceSum(Exp(x), axes=[-1], keepdims=1)) = Softmax(x, axis=-1)"
SQUARES = "Mul(Add(x, y), Sub(x, y)) = Sub(Mul(x, x), Mul(y, y))"
FACTORS = "Add(Mul(x, y), Mul(x, z)) = Mul(x, Add(y, z))"


def rule(text: str) -> Rule:
    lhs, rhs = text.split(" = ")
    names = {name: "f[m, n]" for name in "xyz" if f"({name}" in text or f" {name}" in text}
    return parse_rule({"id": "it", "forall": names, "lhs": [lhs], "rhs": [rhs]})


class Dear(Roofline):
    """A device on which some operators are dear."""

    def __init__(self, *dear: str) -> None:
        super().__init__()
        self.dear = dear

    def application(self, op, *args, **kwargs):
        found = super().application(op, *args, **kwargs)
        return replace(found, us=found.us + 1000.0) if op in self.dear else found


def found(model: Graph, text: str, mode: str, *dear: str) -> list[str]:
    known = rule(text)
    floats = FloatVerdictStore({float_key(known): examine(known)}, mode)
    result = search(model, [known], Dear(*dear), SearchOptions(cache=False, floats=floats))
    return [n.op for n in result.graph.nodes]


def test_softmax_is_put_together_but_not_taken_apart() -> None:
    axes = constant("axes", np.array([-1]))
    apart = graph(
        {"v": f32(4, 16)}, ["y"], [axes, constant("w", np.full((4, 16), 0.3, np.float32))],
        [op("Mul", "x", "v", "w"), op("Exp", "e", "x"), op("ReduceSum", "s", "e", "axes", keepdims=1),
         op("Div", "y", "e", "s")],
    )  # fmt: skip
    together = graph({"x": f32(4, 16)}, ["y"], [], [op("Softmax", "y", "x", axis=-1)])
    assert found(apart, SOFTMAX, "standard", "Exp") == ["Mul", "Softmax"]
    for mode in ("strict", "standard", "fast"):
        assert found(together, SOFTMAX, mode, "Softmax") == ["Softmax"]


def squares(*, computed: bool) -> Graph:
    first = [op("Sigmoid", "x", "v")] if computed else []
    nodes = [op("Add", "a", "x", "y"), op("Sub", "b", "x", "y"), op("Mul", "z", "a", "b")]
    return graph({"v" if computed else "x": f32(4, 16), "y": f32(4, 16)}, ["z"], [], [*first, *nodes])


@pytest.mark.parametrize(
    ("computed", "mode", "taken"),
    [
        (False, "standard", False),  # of exact numbers the difference of squares loses everything
        (True, "standard", True),  # x is rounded: a unit of it does as much
        (True, "strict", False),
        (False, "fast", True),
    ],
)
def test_what_is_rounded_already_may_be_computed_another_way(computed: bool, mode: str, taken: bool) -> None:
    ops = found(squares(computed=computed), SQUARES, mode, "Add")
    assert ("Add" not in ops) == taken


@pytest.mark.parametrize(("size", "dtype", "taken"), [
    (1.0, np.float32, True), (3e38, np.float32, False), (1.0, np.float16, True), (6e4, np.float16, False),
])  # fmt: skip
def test_a_window_is_held_against_the_magnitudes_of_weights(size: float, dtype: type, taken: bool) -> None:
    kind = TensorType(DType.of(np.dtype(dtype)), (4, 16))
    weights = [constant(n, np.full((4, 16), size, dtype) * np.linspace(0.5, 1, 16, dtype=dtype)) for n in "yz"]
    nodes = [op("Mul", "a", "x", "y"), op("Mul", "b", "x", "z"), op("Add", "o", "a", "b")]
    model = graph({"x": kind}, ["o"], weights, nodes)
    ops = found(model, FACTORS, "standard", "Mul")
    assert (ops == ["Mul"]) == taken


MASK = {
    "id": "it", "forall": {"c": "b[m, n]", "x": "f[m, n]"},
    "lhs": ["Where(c, x, 0.0)"], "rhs": ['Mul(x, Cast(c, to="float32"))'],
}  # fmt: skip


@pytest.mark.parametrize(
    ("made", "masked"),
    [
        (["MatMul"], "Mul"),
        (["MatMul", "Softplus", "Neg"], "Mul"),
        (["MatMul", "Abs", "Sqrt"], "Mul"),  # not of what may be negative
        (["MatMul", "Sqrt"], "Where"),
        (["MatMul", "Reciprocal"], "Where"),  # infinite at 0, which the model chooses not to see
        (["MatMul", "Relu", "Log"], "Where"),
        ([], "Where"),  # what comes from outside may be anything that is only chosen from
    ],
)
def test_a_choice_is_a_product_where_what_is_left_out_is_finite(made: list[str], masked: str) -> None:
    known = parse_rule(MASK)
    floats = FloatVerdictStore({float_key(known): with_specials(known, examine(known))}, "standard")
    nodes = [op(name, f"x{i + 1}", f"x{i}", *(["w"] if name == "MatMul" else [])) for i, name in enumerate(made)]
    zero, w = constant("zero", np.float32(0)), constant("w", np.eye(16, dtype=np.float32) * 0.3)
    nodes += [op("Greater", "c", "y", "zero"), op("Where", "z", "c", f"x{len(made)}", "zero")]
    model = graph({"x0": f32(4, 16), "y": f32(4, 16)}, ["z"], [zero, w], nodes)
    options = SearchOptions(cache=False, floats=floats, finite=True)
    assert search(model, [known], Dear("Where"), options).graph.nodes[-1].op == masked
    cautious = replace(options, finite=False)  # a mask of -∞ that is fed, say, of which a choice hides what it makes
    assert search(model, [known], Dear("Where"), cautious).graph.nodes[-1].op == "Where"


def test_what_no_operator_with_a_pole_made_is_regular() -> None:
    kinds = [f32(4, 4)] * 2
    count = array_facts(np.array([2.0, 4.0], np.float32))
    assert result_facts("Div", {}, [ANYTHING, count], kinds, False, [None, None]).regular
    assert not result_facts("Div", {}, [ANYTHING, ANYTHING], kinds, False, [None, None]).regular
    assert not result_facts(
        "Div", {}, [ANYTHING, array_facts(np.zeros(2, np.float32))], kinds, False, [None] * 2
    ).regular
    assert result_facts("Pow", {}, [ANYTHING, ValueFacts(most=2.0)], kinds, False, [None, 2.0]).regular
    assert not result_facts("Pow", {}, [ANYTHING, ValueFacts(most=0.5)], kinds, False, [None, 0.5]).regular
    pole = result_facts("Reciprocal", {}, [ANYTHING], kinds[:1], False, [None])
    assert not result_facts("Relu", {}, [pole], kinds[:1], False, [None]).regular
    assert not result_facts("SomethingElse", {}, [ANYTHING], kinds[:1], False, [None]).regular
    assert not merged(pole, ANYTHING).regular


def test_rounding_goes_through_what_only_moves_data() -> None:
    kinds = [f32(4, 4)]
    computed = result_facts("Sigmoid", {}, [ANYTHING], kinds, False, [None])
    assert computed.rounded
    assert computed.most == 1
    for name in ("Transpose", "Relu", "Neg", "Reshape"):
        assert result_facts(name, {}, [computed], kinds, False, [None]).rounded
        assert not result_facts(name, {}, [ANYTHING], kinds, False, [None]).rounded
    assert not result_facts("Concat", {}, [computed, ANYTHING], kinds * 2, False, [None, None]).rounded
    assert not result_facts("Mul", {}, [ANYTHING, ValueFacts(most=4.0)], kinds * 2, False, [None, 4.0]).rounded
    assert result_facts("Mul", {}, [ANYTHING, ValueFacts(most=3.0)], kinds * 2, False, [None, 3.0]).rounded
    assert not result_facts(
        "Mul", {}, [ValueFacts(most=3.0), ValueFacts(most=3.0)], kinds * 2, True, [None, None]
    ).rounded


def test_masks_of_minus_infinity_are_not_finite() -> None:
    mask = array_facts(np.array([0.0, -np.inf], np.float32))
    assert not mask.finite
    assert not result_facts("Add", {}, [ANYTHING, mask], [f32(2)] * 2, False, [None, None]).finite
    way = SafeConditions(finite=True)
    assert not conditions_hold([way], {"x": ANYTHING, "y": mask}, {}, DType.FLOAT32)
    assert conditions_hold([way], {"x": ANYTHING, "y": ANYTHING}, {}, DType.FLOAT32)


@pytest.mark.parametrize(
    ("mean", "variance", "stands"),
    [
        ([0.5, -3.0], [0.9, 1.1], True),
        ([123.7, 0.0], [0.9, 1.1], True),
        ([1e4, 0.0], [0.9, 1.1], False),  # an offset that takes the digits of what is near it
        ([0.5, -3.0], [1e-6, 1.1], False),  # a small deviation says the same
        ([0.5, -3.0], [0.0, 1.1], False),
        ([0.5, np.inf], [0.9, 1.1], False),
    ],
)
def test_constants_of_the_model_decide_whether_an_input_stands_for_a_rounded_operand(
    mean: list[float], variance: list[float], stands: bool
) -> None:
    constants = {
        n: rounded_facts(array_facts(np.array(v, np.float32)), DType.FLOAT32)
        for n, v in (("mean", mean), ("variance", variance))
    }
    assert stands_for_rounded(constants, {"variance"}, DType.FLOAT32) is stands
    assert not stands_for_rounded(constants, {"variance"}, DType.FLOAT16)
    way = SafeConditions(rounded=("x",))
    assert conditions_hold([way], {"x": ANYTHING}, {}, DType.FLOAT32, {"x"} if stands else set()) is stands


def test_a_quotient_is_bounded_where_the_divisor_is_known_to_be_positive() -> None:
    positive, mixed = (array_facts(np.array(v, np.float32)) for v in ([0.25, 2.0], [-0.25, 2.0]))
    assert result_facts("Reciprocal", {}, [positive], [f32(2)], True, [None]).most == 4.0
    assert result_facts("Div", {}, [ValueFacts(most=3.0), positive], [f32(2)] * 2, False, [None, None]).most == 12.0
    assert result_facts("Reciprocal", {}, [mixed], [f32(2)], True, [None]).most == np.inf


def test_a_value_that_is_an_input_is_exact_whatever_else_computes_it() -> None:
    """``x · t / t`` is rounded, and equal to the input ``x``: what reads it may not be told that it is rounded."""
    text = [SQUARES, "Div(Mul(x, z), z) = x"]
    rules = [replace(rule(t), id=f"it{i}") for i, t in enumerate(text)]
    model = graph(
        {"x": f32(4, 16), "y": f32(4, 16), "z": f32(4, 16)}, ["o", "p"], [],
        [op("Mul", "a", "x", "z"), op("Div", "w", "a", "z"), op("Neg", "p", "x"),
         op("Add", "b", "x", "y"), op("Sub", "c", "x", "y"), op("Mul", "d", "b", "c"), op("Add", "o", "d", "w")],
    )  # fmt: skip
    floats = FloatVerdictStore({float_key(r): examine(r, points=1024) for r in rules})
    result = search(model, rules, Dear("Sub"), SearchOptions(cache=False, floats=floats))
    assert sum(n.op == "Sub" for n in result.graph.nodes) == 1
    assert any(n.op == "Add" and set(n.inputs) == {"x", "y"} for n in result.graph.nodes)


DIFFERENCE = "Sub(Mul(x, y), Mul(x, z)) = Mul(x, Sub(y, z))"


def both_forms(first: str) -> Graph:
    """``x·(y − z)`` and ``x·y − x·z`` side by side, and both products besides."""
    forms = {
        "together": [op("Sub", "d", "y", "z"), op("Mul", "s", "x", "d")],
        "apart": [op("Mul", "p", "x", "y"), op("Mul", "q", "x", "z"), op("Sub", "t", "p", "q")],
    }
    nodes = [*forms.pop(first), *next(iter(forms.values()))]
    return graph({n: f32(4, 16) for n in "xyz"}, ["s", "t", "p", "q"], [], nodes)


@pytest.mark.parametrize("first", ["together", "apart"])
def test_a_value_does_not_get_the_form_that_may_only_be_left(first: str) -> None:
    """What is taken from left to right makes two values of the input one class, in which the products are at hand: the
    difference that was exact would be computed as one that cancels."""
    after = found(both_forms(first), DIFFERENCE, "standard")
    assert after.count("Sub") == 2
    assert found(both_forms(first), DIFFERENCE, "fast").count("Sub") == 1  # which takes both directions


def test_nor_by_way_of_a_form_between() -> None:
    """``x·(y − z)`` is found for ``x·y − x·z`` before it is found for ``x·(y + (−z))``, which may be either."""
    rules = [replace(rule(t), id=f"it{i}") for i, t in enumerate((DIFFERENCE, "Add(y, Neg(z)) = Sub(y, z)"))]
    model = graph(
        {n: f32(4, 16) for n in "xyz"}, ["s", "t", "p", "q"], [],
        [op("Mul", "p", "x", "y"), op("Mul", "q", "x", "z"), op("Sub", "t", "p", "q"),
         op("Neg", "n", "z"), op("Add", "d", "y", "n"), op("Mul", "s", "x", "d")],
    )  # fmt: skip
    floats = FloatVerdictStore({float_key(r): examine(r, points=1024) for r in rules}, "standard")
    result = search(model, rules, Dear("Neg", "Add"), SearchOptions(cache=False, floats=floats))
    (made,) = (n for n in result.graph.nodes if "s" in n.outputs)
    assert made.op == "Mul"


def test_what_is_simplified_to_its_own_operand_still_is() -> None:
    """No other form of ``x`` reads ``x``, so that nothing is taken the wrong way."""
    text = "Div(Mul(x, y), y) = x"
    model = graph(
        {"v": f32(4, 16), "y": f32(4, 16)}, ["o"], [],
        [op("Sigmoid", "x", "v"), op("Mul", "p", "x", "y"), op("Div", "w", "p", "y"), op("Neg", "o", "w")],
    )  # fmt: skip
    assert found(model, text, "standard") == ["Sigmoid", "Neg"]
