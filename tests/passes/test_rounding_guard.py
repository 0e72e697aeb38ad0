"""Deliberate rounding is recognised as a class and stays bit for bit; ordinary networks are not frozen."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from as_run import as_run, searched, typed
from graphs import f32, graph, op

from superopt import formats
from superopt.ir.graph import constant
from superopt.ir.terms import OperatorTerm
from superopt.ir.types import DType, TensorType
from superopt.ops.shape_inference import infer
from superopt.passes.deliberate_rounding import deliberate_roundings
from superopt.program.graph_program import program_of
from superopt.rules.grammar import parse_rule
from superopt.rules.rule import Rule

CORPUS = Path(__file__).parents[2] / "corpus"

# True over the reals, and each undoes a trick below where it may.
EQUALITIES = [
    ("Sub(a, Sub(a, x))", "x"), ("Sub(Add(x, c), c)", "x"), ("Sub(Add(x, s), s)", "x"), ("Sub(Sub(x, c), x)", "Neg(c)"),
    ("Sub(Add(x, y), z)", "Add(x, Sub(y, z))"), ("Sub(Add(x, y), x)", "y"), ("Sub(x, x)", "Mul(x, 0.0)"),
    ("Sub(Mul(x, s), Mul(x, t))", "Mul(x, Sub(s, t))"), ("Relu(Relu(x))", "Relu(x)"),
]  # fmt: skip
CANCELLING = tuple(
    parse_rule({"id": f"cancel-{i}", "lhs": [left], "rhs": [right],
                "forall": {n: "f[]" if n in "st" else "f[m, n]" for n in "acstxyz" if re.search(rf"\b{n}\b", left)}})
    for i, (left, right) in enumerate(EQUALITIES)
)  # fmt: skip


def cast_down_and_up(to: str) -> Rule:
    """A rule that no text can say (a rule is of reals): should one come from elsewhere, casts stay all the same."""
    text = 'Cast(Cast(x, to="float32"), to="float32")'
    rule = parse_rule({"id": f"cast-{to}", "forall": {"x": "f[m, n]"}, "lhs": [text], "rhs": ["x"]})
    (up,) = rule.lhs
    assert isinstance(up, OperatorTerm)
    (down,) = up.args
    assert isinstance(down, OperatorTerm)
    rounding = replace(down, attributes=tuple((n, to if n == "to" else v) for n, v in down.attributes))
    return replace(rule, lhs=(replace(up, args=(rounding,)),))


CASTS = tuple(map(cast_down_and_up, ("float16", "bfloat16")))
SCALAR = {"C": 4097.0, "D": 4096.0, "M": 12582912.0, "k": 3.0, "one": 1.0, "half": 0.5}
END = [op("Relu", "q", "t"), op("Relu", "r", "q")]  # one Relu too many: something is always won

TRICKS = {
    "Veltkamp": [op("Mul", "a", "x", "C"), op("Sub", "b", "a", "x"), op("Sub", "t", "a", "b")],
    "Veltkamp, both halves": [op("Mul", "a", "C", "x"), op("Sub", "b", "a", "x"), op("Sub", "h", "a", "b"),
                              op("Sub", "l", "x", "h"), op("Mul", "t", "l", "C")],
    "Veltkamp by Neg and Add": [op("Mul", "a", "x", "C"), op("Neg", "n", "x"), op("Add", "b", "a", "n"),
                                op("Neg", "m", "b"), op("Add", "t", "m", "a")],
    "coefficients nearly cancel": [op("Mul", "a", "x", "C"), op("Mul", "b", "x", "D"), op("Sub", "t", "a", "b")],
    "to the nearest integer": [op("Add", "a", "x", "M"), op("Sub", "t", "a", "M")],
    "to a multiple of 2": [op("Sum", "a", "x", "M", "M"), op("Sub", "b", "a", "M"), op("Sub", "t", "b", "M")],
    "by a vector": [op("Add", "a", "x", "v"), op("Sub", "t", "a", "v")],
    "past a Reshape": [op("Add", "a", "x", "M"), op("Transpose", "b", "a", perm=(1, 0)), op("Sub", "t", "b", "M")],
    "twice the same, written twice": [op("Mul", "a", "x", "k"), op("Add", "b", "a", "y"), op("Mul", "c", "k", "x"),
                                      op("Sub", "t", "b", "c")],
    "TwoSum": [op("Add", "s", "x", "y"), op("Sub", "b", "s", "x"), op("Sub", "c", "s", "b"), op("Sub", "d", "y", "b"),
               op("Sub", "e", "x", "c"), op("Add", "t", "d", "e")],
    "FastTwoSum": [op("Add", "s", "x", "y"), op("Sub", "b", "s", "x"), op("Sub", "t", "y", "b")],
    "Kahan": [op("Add", "s", "x", "y"), op("Sub", "b", "s", "x"), op("Sub", "c", "b", "y"), op("Sub", "d", "z", "c"),
              op("Add", "t", "s", "d")],
    "Kahan in one sum": [op("Add", "s", "x", "y"), op("Neg", "m", "x"), op("Neg", "n", "y"),
                         op("Sum", "t", "s", "m", "n")],
    "AccSum's high part, by a scale that is computed": [
        op("Mul", "a", "y", "M"), op("Add", "b", "x", "a"), op("Sub", "t", "b", "a")],
    "difference of two rounded by one constant": [op("Add", "a", "x", "M"), op("Add", "b", "y", "M"),
                                                  op("Sub", "t", "a", "b")],
    "rounded up and down by one constant": [op("Add", "a", "x", "M"), op("Sub", "b", "y", "M"),
                                            op("Add", "t", "a", "b")],
    "difference of two rounded by one vector": [op("Add", "a", "x", "v"), op("Add", "b", "y", "v"),
                                                op("Sub", "t", "a", "b")],
    "the error of a butterfly": [op("Add", "a", "x", "y"), op("Sub", "b", "x", "y"), op("Add", "c", "a", "b"),
                                 op("Add", "d", "x", "x"), op("Sub", "t", "c", "d")],
    "log1p's one plus x, less one": [op("Add", "a", "x", "one"), op("Sub", "t", "a", "one")],
    "half of Fast2Sum": [op("Add", "a", "x", "y"), op("Sub", "t", "a", "x")],
}  # fmt: skip
PRODUCT = [
    op("Mul", "a", "x", "C"), op("Sub", "b", "a", "x"), op("Sub", "xh", "a", "b"), op("Sub", "xl", "x", "xh"),
    op("Mul", "c", "y", "C"), op("Sub", "d", "c", "y"), op("Sub", "yh", "c", "d"), op("Sub", "yl", "y", "yh"),
    op("Mul", "p", "x", "y"), op("Mul", "hh", "xh", "yh"), op("Sub", "e1", "hh", "p"), op("Mul", "hl", "xh", "yl"),
    op("Add", "e2", "e1", "hl"), op("Mul", "lh", "xl", "yh"), op("Add", "e3", "e2", "lh"), op("Mul", "ll", "xl", "yl"),
    op("Add", "t", "e3", "ll"),
]  # fmt: skip


def model_of(nodes, shape=(3, 3)):
    read = {n for node in nodes for n in node.inputs}
    constants = [constant(n, np.array(v, np.float32)) for n, v in SCALAR.items() if n in read]
    if "v" in read:
        constants.append(constant("v", np.array([1e6, -3e5, 7e7], np.float32)))
    inputs = {n: f32(*shape) for n in "xyz" if n in read}
    return graph(inputs, ["r"], constants, [*nodes, *END])


def feeds_of(model):
    generator = np.random.default_rng(3)
    return {v.name: (generator.standard_normal((3, 3)) * 100).astype(np.float32) for v in model.inputs}


@pytest.mark.parametrize("case", [*TRICKS, "Dekker's product"])
def test_a_trick_stays_as_it_is(case: str) -> None:
    nodes = TRICKS.get(case, PRODUCT)
    model = model_of(nodes)
    result = searched(model, CANCELLING)
    kept = {(n.op, n.inputs, n.outputs) for n in result.graph.nodes}
    assert {(n.op, n.inputs, n.outputs) for n in nodes if n.op != "Transpose"} <= kept
    assert "Relu" in {n.op for n in result.graph.nodes}
    assert any("round on purpose" in note for note in result.notes)
    feeds = feeds_of(model)
    np.testing.assert_array_equal(as_run(result.graph, feeds)["r"], as_run(typed(model), feeds)["r"])


@pytest.mark.parametrize("case", ["Veltkamp", "coefficients nearly cancel", "to the nearest integer", "FastTwoSum"])
def test_without_the_barrier_it_would_be_gone(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("superopt.passes.saturation_search.guard_deliberate_rounding", lambda program: (program, ()))
    model = model_of(TRICKS[case])
    result = searched(model, CANCELLING)
    assert len(result.graph.nodes) < len(TRICKS[case]) + 1
    feeds = feeds_of(model)
    assert (as_run(result.graph, feeds)["r"] != as_run(typed(model), feeds)["r"]).any()


@pytest.mark.parametrize("to", [10, 16, 7, 6])
def test_a_cast_down_and_up_stays(to: int) -> None:
    nodes = [op("Cast", "a", "x", to=to), op("Transpose", "b", "a", perm=(1, 0)), op("Cast", "t", "b", to=1)]
    model = model_of(nodes)
    result = searched(model, (*CANCELLING, *CASTS))
    assert [n.op for n in result.graph.nodes].count("Cast") == 2
    feeds = feeds_of(model)
    np.testing.assert_array_equal(as_run(result.graph, feeds)["r"], as_run(typed(model), feeds)["r"])


def test_a_cast_up_and_down_is_none() -> None:
    nodes = [op("Cast", "a", "x", to=1), op("Relu", "b", "a"), op("Cast", "r", "b", to=10)]
    model = graph({"x": TensorType(DType.FLOAT16, (3, 3))}, ["r"], [], nodes)
    assert not deliberate_roundings(program_of(model, infer(model)))


ORDINARY = {
    "residual": [op("Relu", "a", "x"), op("Add", "b", "a", "x"), op("Sub", "t", "b", "y")],
    "centred": [op("ReduceMean", "a", "x", keepdims=1), op("Sub", "b", "x", "a"), op("Mul", "c", "b", "b"),
                op("Add", "t", "c", "b")],
    "distributed": [op("Mul", "a", "x", "y"), op("Mul", "b", "x", "z"), op("Add", "t", "a", "b")],
    "one minus": [op("Sub", "a", "one", "x"), op("Mul", "b", "a", "y"), op("Mul", "c", "x", "z"),
                  op("Add", "t", "b", "c")],
    "three minus two": [op("Mul", "a", "x", "k"), op("Sub", "t", "a", "x")],
    "nothing left, exactly": [op("Sub", "a", "x", "x"), op("Add", "t", "a", "y")],
    "twice and back": [op("Neg", "a", "x"), op("Neg", "b", "a"), op("Add", "t", "b", "x")],
    "normalised": [op("Sub", "a", "x", "k"), op("Div", "b", "a", "C"), op("Mul", "c", "b", "k"),
                   op("Add", "t", "c", "one")],
    "butterfly": [op("Add", "a", "x", "y"), op("Sub", "b", "x", "y"), op("Add", "t", "a", "b")],
    "butterfly, the other output": [op("Add", "a", "x", "y"), op("Sub", "b", "x", "y"), op("Sub", "t", "a", "b")],
    "Haar and back": [op("Add", "a", "x", "y"), op("Sub", "b", "x", "y"), op("Mul", "c", "a", "half"),
                      op("Mul", "d", "b", "half"), op("Add", "t", "c", "d")],
    "mean of a butterfly": [op("Add", "a", "x", "y"), op("Sub", "b", "x", "y"), op("Mean", "t", "a", "b")],
    "Walsh of four and back": [
        op("Add", "a", "x", "y"), op("Sub", "b", "x", "y"), op("Add", "c", "z", "one"), op("Sub", "d", "z", "one"),
        op("Add", "e", "a", "c"), op("Sub", "f", "a", "c"), op("Add", "g", "b", "d"), op("Sub", "h", "b", "d"),
        op("Add", "i", "e", "f"), op("Add", "j", "g", "h"), op("Add", "t", "i", "j")],
    "two residual sums": [op("Relu", "f", "y"), op("Add", "a", "x", "f"), op("Add", "b", "x", "z"),
                          op("Sub", "t", "a", "b")],
    "both sides of one": [op("Add", "a", "one", "x"), op("Sub", "b", "one", "x"), op("Add", "t", "a", "b")],
    "offsets of an ordinary size": [op("Add", "a", "x", "k"), op("Add", "b", "y", "k"), op("Sub", "t", "a", "b")],
}  # fmt: skip


@pytest.mark.parametrize("case", ORDINARY)
def test_what_rounds_only_as_everything_does_is_no_trick(case: str) -> None:
    model = model_of(ORDINARY[case])
    assert not deliberate_roundings(program_of(model, infer(model)))


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64])
def test_a_constant_is_of_a_formats_scale_from_half_of_its_bits_on(dtype: DType) -> None:
    bits = {DType.FLOAT16: 11, DType.BFLOAT16: 8, DType.FLOAT32: 24, DType.FLOAT64: 53}[dtype]
    for size, guarded in ((2.0 ** ((bits + 1) // 2), True), (2.0 ** ((bits + 1) // 2 - 1), False)):
        nodes = [op("Add", "a", "x", "C"), op("Add", "b", "y", "C"), op("Sub", "t", "a", "b")]
        kind = TensorType(dtype, (3, 3))
        model = graph({"x": kind, "y": kind}, ["t"], [constant("C", np.array(size, dtype.numpy))], nodes)
        assert bool(deliberate_roundings(program_of(model, infer(model)))) == guarded, size


@pytest.mark.parametrize("case", ["butterfly", "butterfly, the other output"])
def test_a_butterfly_is_rewritten(case: str) -> None:
    sum_, difference = "Add(Add(x, y), Sub(x, y))", "Sub(Add(x, y), Sub(x, y))"
    rules = [
        parse_rule(
            {"id": f"b-{z}", "forall": {"x": "f[m, n]", "y": "f[m, n]"}, "lhs": [left], "rhs": [f"Mul({z}, 2.0)"]}
        )
        for left, z in ((sum_, "x"), (difference, "y"))
    ]
    result = searched(model_of(ORDINARY[case]), rules)
    assert [n.op for n in result.graph.nodes if n.op != "Relu"] == ["Mul"]
    assert not any("round on purpose" in note for note in result.notes)


def test_a_long_sum_is_followed_through() -> None:
    """Kahan's sum of a thousand terms: each compensation is found, and in no quadratic time."""
    nodes = [op("Add", "s0", "x", "y"), op("Sub", "b0", "s0", "x"), op("Sub", "c0", "b0", "y")]
    for i in range(1, 1000):
        nodes += [op("Relu", f"f{i}", "z" if i == 1 else f"f{i - 1}"), op("Sub", f"y{i}", f"f{i}", f"c{i - 1}"),
                  op("Add", f"s{i}", f"s{i - 1}", f"y{i}"), op("Sub", f"b{i}", f"s{i}", f"s{i - 1}"),
                  op("Sub", f"c{i}", f"b{i}", f"y{i}")]  # fmt: skip
    model = graph({n: f32(2) for n in "xyz"}, ["s999", "c999"], [], nodes)
    program = program_of(model, infer(model))
    frozen = {program.steps[i].name for i in deliberate_roundings(program)}
    assert {n.name for n in nodes if n.op == "Sub"} <= frozen
    assert not {n.name for n in nodes if n.op == "Relu"} & frozen


@pytest.mark.parametrize("path", sorted((CORPUS / "tiny").glob("*.json")), ids=lambda p: p.stem)
def test_no_step_of_the_corpus_is_frozen(path: Path) -> None:
    model = formats.load(path)
    assert not deliberate_roundings(program_of(model, infer(model)))


def test_shape_only_weights_are_looked_past() -> None:
    model = model_of(TRICKS["by a vector"])
    model = replace(model, weights=tuple(replace(w, data=None) for w in model.weights))
    assert deliberate_roundings(program_of(model, infer(model)))
