"""Folded constants are what ONNX Runtime makes; what only rules made meets no jump and stays in its type's range."""

from __future__ import annotations

import json

import numpy as np
import pytest
from as_run import OPTIONS, RULES, as_run, searched, typed, values_as_run
from graphs import f32, feeds_of, graph, op, weight
from roofline import Roofline
from sampling import sampled

from superopt.egraph.egraph import EGraph
from superopt.ir.graph import ArrayWeightData, Weight, constant
from superopt.ir.size_polynomial import sym
from superopt.ir.terms import is_open
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.ops.shape_inference import infer
from superopt.passes import search
from superopt.passes.deliberate_rounding import rounding_loss
from superopt.program.constant_folding import FoldedWeightData, data_of
from superopt.program.graph_program import ProgramStep, program_of
from superopt.rules.grammar import parse_rule
from tests.program.constant_models import constant_model

RNG = np.random.default_rng(16)
TAIL = [op("MatMul", "h", "x", "k"), op("Relu", "r", "h"), op("Relu", "y", "r")]  # one Relu too many: worth a rewrite


def number(name: str, value: float, dtype: type = np.float32) -> Weight:
    return constant(name, np.array(value, dtype))


def model_of(array, constants, nodes):
    """A product with what nodes make of a weight ``w``, called ``k``."""
    rows = array.shape[0]
    return graph({"x": f32(3, rows)}, ["y"], [constant("w", array), *constants], [*nodes, *TAIL])


NORMAL = RNG.standard_normal((32, 32)).astype(np.float32)
TENTHS = np.tile(np.array([0.1, 0.3, 0.7, 1.1], np.float32), (4, 1))
TABLE = {
    "floor": (TENTHS, [number("c", 10.0)], [op("Mul", "p", "w", "c"), op("Floor", "k", "p")]),
    "fake quantisation": (NORMAL, [number("c", 0.1)], [
        op("Div", "d", "w", "c"), op("Round", "q", "d"), op("Mul", "k", "q", "c"),
    ]),
    "to int64 and back": (NORMAL * 30, [], [op("Cast", "i", "w", to=7), op("Cast", "k", "i", to=1)]),
    "to float16 and back": (NORMAL, [], [op("Cast", "i", "w", to=10), op("Cast", "k", "i", to=1)]),
    "Kahan's error": (NORMAL, [number("c", 0.1)], [
        op("Add", "s", "w", "c"), op("Sub", "d", "s", "w"), op("Sub", "e", "d", "c"), op("Mul", "k", "e", "z"),
    ]),
    "threshold": (TENTHS, [number("c", 10.0), number("t", 7.0)], [
        op("Mul", "p", "w", "c"), op("Less", "l", "p", "t"), op("Where", "k", "l", "w", "p"),
    ]),
    "remainder": (TENTHS, [number("c", 0.1)], [op("Mod", "k", "w", "c", fmod=1)]),
    "sign of a difference": (TENTHS, [number("c", 10.0), number("t", 7.0)], [
        op("Mul", "p", "w", "c"), op("Sub", "d", "p", "t"), op("Sign", "k", "d"),
    ]),
}  # fmt: skip
TABLE["Kahan's error"][1].append(number("z", 2.0**24))


@pytest.mark.parametrize("case", TABLE)
def test_what_the_model_computes_of_weights_is_what_the_runtime_makes_of_it(case: str) -> None:
    model = model_of(*TABLE[case])
    feeds = feeds_of(model)
    result = searched(model)
    assert [n.op for n in result.graph.nodes] == ["MatMul", "Relu"]
    (kept,) = (w for w in result.graph.weights if w.metadata.get("x-precomputed"))
    assert kept.data is not None
    wanted = values_as_run(model, ["k"], feeds)
    np.testing.assert_array_equal(kept.data.numpy(), wanted["k"])
    np.testing.assert_array_equal(as_run(result.graph, feeds)["y"], wanted["y"])


def test_float64_would_have_told_otherwise() -> None:
    """The cases above are worth something: evaluated in float64 they come out differently."""
    assert np.floor(TENTHS.astype(np.float64) * 10)[0, 2] != np.floor(TENTHS * np.float32(10))[0, 2]


@pytest.mark.parametrize("seed", sampled(range(60), 20))
def test_random_constants_are_bit_for_bit_the_runtimes(seed: int) -> None:
    """Every value that a random model computes of its weights, whatever its type."""
    model = constant_model(seed)
    program = program_of(model, infer(model))
    assert program.computed_constants is not None
    names = [n for n in program.maker if n in program.computed_constants]
    wanted = values_as_run(model, names, feeds_of(model))
    compared = 0
    for name in names:
        data = data_of(program, name)
        assert data is not None, name
        found = data.numpy()
        assert found.dtype == wanted[name].dtype, name
        np.testing.assert_array_equal(found, wanted[name], err_msg=name)
        compared += 1
    assert compared >= 10


@pytest.mark.parametrize("seed", range(0, 60, 12))
def test_random_constants_in_front_of_a_product(seed: int) -> None:
    model = constant_model(seed)
    feeds = feeds_of(model)
    result = searched(model, ())
    found, wanted = as_run(result.graph, feeds), as_run(typed(model), feeds)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize(
    ("nodes", "count"),
    {
        "Transpose": ([op("Transpose", "k", "w", perm=(1, 0))], 1),
        "Reshape, Unsqueeze": ([op("Reshape", "a", "w", "shape"), op("Squeeze", "k", "a", "first")], 1),
        "Concat, Slice": ([op("Concat", "a", "w", "w", axis=1), op("Transpose", "b", "a", perm=(1, 0)),
                           op("Slice", "k", "b", "zero", "four", "zero")], 1),
    }.values(),
)  # fmt: skip
def test_what_only_moves_elements_still_folds(nodes, count) -> None:
    constants = [
        constant("shape", np.array([1, 4, 4])), constant("first", np.array([0])), constant("zero", np.array([0])),
        constant("four", np.array([4])),
    ]  # fmt: skip
    model = model_of(TENTHS, [c for c in constants if any(c.name in n.inputs for n in nodes)], nodes)
    result = searched(model)
    assert [n.op for n in result.graph.nodes][-1] == "Relu"
    assert len(result.graph.nodes) <= 1 + count
    np.testing.assert_array_equal(
        as_run(result.graph, feeds_of(model))["y"], as_run(typed(model), feeds_of(model))["y"]
    )


def test_a_rule_does_not_look_behind_a_constant_that_the_model_computes() -> None:
    """``(w/s)·s = w`` over the reals; in float32 the model means what it rounds to."""
    cancel = parse_rule(
        {"id": "cancel", "forall": {"w": "f[m, n]", "s": "f[]"}, "lhs": ["Mul(Div(w, s), s)"], "rhs": ["w"]}
    )
    model = model_of(NORMAL, [number("s", 0.1)], [op("Div", "a", "w", "s"), op("Mul", "k", "a", "s")])
    result = searched(model, (*RULES, cancel))
    assert "cancel" not in {a.rule for a in result.applied}
    np.testing.assert_array_equal(
        as_run(result.graph, feeds_of(model))["y"], as_run(typed(model), feeds_of(model))["y"]
    )


def test_small_constants_that_the_model_computes_are_known_by_value() -> None:
    """A weight of which the runtime makes a one is a factor of one."""
    ones = [op("Mul", "a", "w", "w"), op("Exp", "b", "a"), op("Mul", "h", "x", "b"), op("Relu", "y", "h")]
    model = graph({"x": f32(3, 4)}, ["y"], [number("w", 0.0)], ones)
    assert [n.op for n in searched(model).graph.nodes] == ["Relu"]


def test_the_note_of_a_weight_says_what_the_runtime_computed() -> None:
    model = model_of(*TABLE["floor"])
    (kept,) = (w for w in searched(model).graph.weights if w.metadata.get("x-precomputed"))
    note = json.loads(kept.metadata["superopt.value"])
    assert [s[0] for s in note["steps"]] == ["Mul", "Floor"]
    assert note["output"] == note["runtime"][0] == "k"


@pytest.mark.parametrize(("names", "size", "noted"), [(4, 2, True), (1200, 2, False), (1200, 48, True)])
def test_the_note_of_a_weight_is_no_longer_than_its_elements_where_it_is_long(
    names: int, size: int, noted: bool
) -> None:
    """Names of 4 or 1200 characters, and a weight of 16 bytes or of nine kilobytes."""
    long = "v" * names
    weights = [weight(n, size, size) for n in ("w", long)]
    model = graph({"x": f32(3, size)}, ["y"], weights, [op("Mul", "k", "w", long), *TAIL])
    (kept,) = (w for w in searched(model).graph.weights if w.metadata.get("x-precomputed"))
    assert ("superopt.value" in kept.metadata) == noted
    assert not noted or len(kept.metadata["superopt.value"]) <= max(1024, size * size * 4)


def test_a_constant_that_no_weight_is_read_for_has_no_note() -> None:
    model = graph({"x": f32(3, 4)}, ["y"], [], [op("Add", "y", "x", "x")])
    doubled = parse_rule({"id": "d", "forall": {"x": "f[m, n]"}, "lhs": ["Add(x, x)"], "rhs": ["Mul(x, 2.0)"]})
    (kept,) = searched(model, (doubled,)).graph.weights
    assert kept.metadata == {"superopt.rules": "d", "x-precomputed": "true"}


# -- what is not folded ----------------------------------------------------------------------------------------------

LARGE = {
    "ConstantOfShape": ([constant("n", np.array([2**20, 2**20]))], [op("ConstantOfShape", "a", "n")]),
    "Expand": ([weight("v", 1, 1), constant("n", np.array([2**20, 2**20]))], [op("Expand", "a", "v", "n")]),
    "Range": ([constant(n, np.array(v, np.float32)) for n, v in (("zero", 0), ("n", 2**36), ("one", 1))],
              [op("Range", "a", "zero", "n", "one")]),
    "Tile": ([weight("v", 8, 8), constant("n", np.array([2**10, 2**10]))],
             [op("Tile", "b", "v", "n"), op("Tile", "a", "b", "n")]),
}  # fmt: skip


@pytest.mark.parametrize("kind", LARGE)
@pytest.mark.parametrize("last", ["ReduceSum", "ReduceMax"])
def test_what_grows_without_bound_on_the_way_stays_as_nodes(kind: str, last: str) -> None:
    constants, nodes = LARGE[kind]
    nodes = [
        *nodes,
        op(last, "s", "a", keepdims=0),
        op("Mul", "h", "x", "s"),
        op("Relu", "r", "h"),
        op("Relu", "y", "r"),
    ]
    model = typed(graph({"x": f32(3, 4)}, ["y"], constants, nodes))
    program = program_of(model, infer(model))
    assert data_of(program, "s") is None
    result = search(model, RULES, Roofline(), OPTIONS)
    kept = [n.op for n in result.graph.nodes]
    assert kept == [*(n.op for n in nodes[:-1])]


def test_what_the_runtime_cannot_run_stays_as_nodes() -> None:
    """ONNX Runtime has no Sin of bfloat16 on a CPU; the model may be for another one."""
    half = constant("w", np.ones((4, 4), DType.BFLOAT16.numpy))
    nodes = [op("Sin", "b", "w"), op("Cast", "k", "b", to=1), *TAIL]
    model = typed(graph({"x": f32(3, 4)}, ["y"], [half], nodes))
    result = search(model, RULES, Roofline(), OPTIONS)
    assert [n.op for n in result.graph.nodes] == ["Sin", "Cast", "MatMul", "Relu"]


# -- what rules make -------------------------------------------------------------------------------------------------


def test_a_rounding_error_meets_no_jump() -> None:
    kind = f32(4, 4)
    made = EGraph(REGISTRY)
    a, b = made.leaf(0, kind, True), made.leaf(1, kind, True)
    product = made.add("Mul", (), (a, b))
    assert made.constant(product)
    assert not made.constant(made.add("Floor", (), (product,)))
    assert not made.constant(made.add("Less", (), (product, a)))
    assert not made.constant(made.add("Cast", (("to", "float16"),), (a,)))
    assert not made.constant(made.add("Cast", (("to", "int64"),), (a,)))
    exact = made.add("Floor", (), (made.add("Transpose", (("perm", (1, 0)),), (a,)),))
    assert made.constant(exact)
    assert made.constant(made.add("Less", (), (exact, b)))
    assert made.constant(made.add("Mul", (), (made.add("Cast", (("to", "float32"),), (exact,)), b)))


def test_what_is_found_to_be_exact_later_is_evaluated() -> None:
    made = EGraph(REGISTRY)
    a, b, c = (made.leaf(i, f32(4), True) for i in range(3))
    product = made.add("Mul", (), (a, b))
    floor = made.add("Floor", (), (product,))
    assert not made.constant(floor)
    made.union(product, c, "")
    made.rebuild()
    assert made.constant(floor)


def test_what_only_a_run_tells_is_not_evaluated_ahead() -> None:
    """One over the pixels of an image of open size is a number of one type at all sizes, and another at each."""
    made = EGraph(REGISTRY)
    for value, ahead in ((sym("h") * sym("w"), False), (49.0, True)):
        full = made.add("ConstantOfShape", (("dtype", "float32"), ("shape", ()), ("value", value)), ())
        assert made.constant(full) is ahead
        assert made.constant(made.add("Reciprocal", (), (full,))) is ahead
    assert not is_open((1, (2, "a"), 3.0))
    assert is_open((1, (2, sym("n"))))


def test_what_was_rounded_in_an_earlier_phase_is_not_exact() -> None:
    made = EGraph(REGISTRY)
    rounded, given = made.leaf(0, f32(4), True, exact=False), made.leaf(1, f32(4), True)
    assert made.constant(made.add("Exp", (), (rounded,)))
    assert not made.constant(made.add("Floor", (), (rounded,)))
    assert made.constant(made.add("Floor", (), (given,)))


def test_a_jump_is_left_to_run_where_a_rule_puts_it_over_what_it_computed() -> None:
    """Moved behind a constant operand of a Concat, ``Floor(w·c)`` is made by the runtime, as it always was."""
    push = parse_rule({
        "id": "push", "forall": {"x": "f[m, n]", "w": "f[p, n]", "c": "f[]"},
        "lhs": ["Floor(Mul(Concat(x, w, axis=0), c))"], "rhs": ["Concat(Floor(Mul(x, c)), Floor(Mul(w, c)), axis=0)"],
    })  # fmt: skip
    nodes = [op("Concat", "a", "x", "w", axis=0), op("Mul", "b", "a", "c"), op("Floor", "y", "b")]
    model = graph({"x": f32(1, 4)}, ["y"], [constant("w", np.tile(TENTHS, (999, 1))), number("c", 10.0)], nodes)
    result = searched(model, (push,))
    feeds = feeds_of(model)
    np.testing.assert_array_equal(as_run(result.graph, feeds)["y"], as_run(typed(model), feeds)["y"])


def test_an_infinite_mask_stays_one_but_nothing_else_becomes_infinite() -> None:
    def of(values: list[float]) -> str:
        step = ProgramStep("Mul", ("k", "k"), (), ("y",), None, "")
        kind = TensorType(DType.FLOAT16, (len(values),))
        source = ArrayWeightData(np.array(values, np.float16))
        return rounding_loss(FoldedWeightData((step,), {"k": source}, {"k": kind, "y": kind}, "y"), alone=False)

    assert not of([1.0, float("inf")])
    assert "range" in of([300.0, float("inf")])
    assert "range" in of([300.0, 1.0])


def half_model(first: float, second: float, values: list[float]) -> tuple[object, dict[str, np.ndarray]]:
    nodes = [op("Mul", "a", "x", "k"), op("Mul", "b", "a", "l"), op("Relu", "r", "b"), op("Relu", "y", "r")]
    constants = [number("k", first, np.float16), number("l", second, np.float16)]
    x = np.array(values, np.float16)
    return graph({"x": TensorType(DType.FLOAT16, x.shape)}, ["y"], constants, nodes), {"x": x}


@pytest.mark.parametrize(
    ("first", "second", "values", "reason"),
    [
        (1e-4, 1e-4, [6e4, 1.0, 3e4, 5.0], "too small"),
        (6e4, 6e4, [1e-7, 0.0, 2e-7, 0.0], "leaves the range"),
        (1e-3, 2e-4, [6e4, 1.0, 3e4, 5.0], "too small"),
    ],
)
def test_constants_that_their_type_does_not_hold_are_not_made(first, second, values, reason) -> None:
    model, feeds = half_model(first, second, values)
    result = searched(model)
    assert [n.op for n in result.graph.nodes] == ["Mul", "Mul", "Relu"]
    assert any(reason in m for m in result.near_misses)
    np.testing.assert_array_equal(as_run(result.graph, feeds)["y"], as_run(typed(model), feeds)["y"])


def test_constants_that_their_type_holds_are() -> None:
    model, feeds = half_model(0.5, 0.25, [1.0, 2.0, -3.0, 4.0])
    result = searched(model)
    assert [n.op for n in result.graph.nodes] == ["Mul", "Relu"]
    np.testing.assert_array_equal(as_run(result.graph, feeds)["y"], as_run(typed(model), feeds)["y"])


def test_a_tiny_element_among_the_terms_of_a_sum_is_no_loss() -> None:
    """Rows of 10⁻⁶ among rows of 1 in float16: the error of a product is that of its largest terms."""
    w = np.full((8, 8), 0.5, np.float16)
    w[0] = 1e-6
    kind = TensorType(DType.FLOAT16, (3, 8))
    constants = [constant("w", w), constant("v", np.eye(8, dtype=np.float16) * np.float16(0.3))]
    model = graph({"x": kind}, ["y"], constants, [op("MatMul", "h", "x", "w"), op("MatMul", "y", "h", "v")])
    assert [n.op for n in searched(model).graph.nodes] == ["MatMul"]


@pytest.mark.parametrize(
    ("steps", "rowwise"),
    [
        ([("Mul", "w s", "p"), ("Div", "p v", "y")], {0, 1}),
        ([("Sqrt", "v", "t"), ("Mul", "w s", "p"), ("Div", "p t", "y")], {1, 2}),
        ([("Mul", "w c", "p"), ("Add", "p p", "y")], {0, 1}),  # a factor of each row
        ([("MatMul", "w q", "p"), ("Mul", "p s", "y")], {1}),  # a sum, then rows of it
        ([("Mul", "w s", "p"), ("MatMul", "p q", "y")], set()),
        ([("Mul", "w s", "p"), ("MatMul", "p q", "t"), ("Add", "t p", "y")], {2}),  # p is read both ways
        ([("Neg", "q", "p"), ("MatMul", "w p", "t"), ("Add", "t p", "y")], {2}),
    ],
)  # fmt: skip
def test_large_constants_are_computed_in_rows_where_rows_suffice(
    steps, rowwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = {"w": (32, 32), "q": (32, 32), "s": (32,), "v": (32,), "c": (32, 1)}
    sources = {n: ArrayWeightData(np.abs(RNG.standard_normal(s)).astype(np.float32)) for n, s in shapes.items()}
    types = {n: TensorType(DType.FLOAT32, s) for n, s in shapes.items()}
    made = tuple(ProgramStep(o, tuple(a.split()), (), (y,), None, "") for o, a, y in steps)
    for step in made:
        given = [types[a] for a in step.args]
        types[step.outputs[0]] = REGISTRY[step.op].apply(given, {})[1][0]
    data = FoldedWeightData(made, sources, types, "y")
    whole, shown, kept = data.wide(), [rounding_loss(data, alone) for alone in (False, True)], data.numpy()
    monkeypatch.setattr("superopt.program.constant_folding._BLOCK", 100)
    again = FoldedWeightData(made, sources, types, "y")
    parts = list(again.blocks())
    assert [p.shape for p in parts] == ([(3, 32)] * 10 + [(2, 32)] if rowwise else [(32, 32)])
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(again.numpy(), kept)
    assert again._by_rows()[0] == rowwise
    assert [rounding_loss(again, alone) for alone in (False, True)] == shown


def test_what_an_earlier_search_computed_of_a_weight_is_computed_on_in_the_next() -> None:
    """The weight itself is gone by then: own rules are also searched on what the library leaves."""
    scaled = [op("Mul", "h", "x", "k"), op("Mul", "m", "h", "s"), op("Relu", "r", "m"), op("Relu", "y", "r")]
    weights = [number("w", 0.7), number("s", 0.5)]
    model = graph({"x": f32(3, 32)}, ["y"], weights, [op("Relu", "k", "w"), *scaled])
    first = search(model, [r for r in RULES if r.id != "factors"], Roofline(), OPTIONS).graph
    assert "w" not in first.constants
    second = search(first, RULES, Roofline(), OPTIONS).graph
    assert [n.op for n in second.nodes] == ["Mul", "Relu"]
    feeds = feeds_of(model)
    np.testing.assert_allclose(as_run(typed(second), feeds)["y"], as_run(typed(model), feeds)["y"], rtol=1e-6)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32])
@pytest.mark.parametrize("alone", [False, True])
def test_what_rounding_loses_is_that_of_every_element(dtype: DType, alone: bool) -> None:
    half = {DType.FLOAT16: 2.0**-11, DType.BFLOAT16: 2.0**-8, DType.FLOAT32: 2.0**-24}[dtype]
    verdicts = set()
    for exponent in range(-160, 190, 3):
        reals = RNG.standard_normal(16) * 2.0 ** (exponent - RNG.integers(0, 60, 16))
        source, kind = ArrayWeightData(reals), TensorType(DType.FLOAT64, (16,))
        step = ProgramStep("Neg", ("k",), (), ("y",), None, "")
        types = {"k": kind, "y": TensorType(dtype, (16,))}
        found = rounding_loss(FoldedWeightData((step,), {"k": source}, types, "y"), alone)
        with np.errstate(over="ignore"):
            rounded = reals.astype(dtype.numpy).astype(np.float64)
        size, error = np.abs(reals), np.abs(rounded - reals)
        worst = error[error > 2 * half * size].max(initial=0.0) if alone else error.max()
        if not np.isfinite(rounded).all():
            expected = "leaves the range"
        else:
            expected = "too small" if worst > 2 * half * size.max() * (half if alone else 1.0) else ""
        assert (expected in found) if expected else not found
        verdicts.add(expected)
    assert verdicts == {"leaves the range", "too small", ""}
