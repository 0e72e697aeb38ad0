"""The judge compares with what ONNX Runtime gives for the original: what it must refuse, and what it must let pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx.parser
import pytest

from superopt import formats
from superopt.ir.graph import Graph, Node, Value, constant
from superopt.ir.size_polynomial import sym
from superopt.ir.types import DType, TensorType
from superopt.ops.shape_inference import infer
from superopt.pipeline import optimize
from superopt.runtime.onnx_runtime import OrtValue, bind, make_session, run, writable_feeds
from superopt.verifier.check import tolerance
from superopt.verifier.check.boundary_value_targets import input_targets
from superopt.verifier.check.deviation import CheckTrial, DeviationExplainer, OverflowProximity
from superopt.verifier.check.differential import check, suspects
from superopt.verifier.check.mutation_testing import mutants
from superopt.verifier.check.rounding_noise import DisturbedRuns
from superopt.verifier.check.shared_weight_sessions import Arrays, SharedWeightSessions
from superopt.verifier.check.steered_inputs import SteeredInput, steered
from superopt.verifier.check.tolerance import compare, scales

F32, F16, I64 = DType.FLOAT32, DType.FLOAT16, DType.INT64
single, half = np.float32, np.float16
rng = np.random.default_rng(16)
N = sym("n")
TINY = Path(__file__).parents[2] / "corpus" / "tiny"

Steps = Sequence[tuple[str, str, str] | tuple[str, str, str, Mapping[str, object]]]


def kind(*shape, dtype: DType = F32) -> TensorType:
    return TensorType(dtype, shape)


def model(steps: Steps, weights: Mapping[str, object], x, y, opset: int = 20) -> Graph:
    """A graph of (operator, inputs, outputs, attributes); ``x`` and ``y`` are the types of inputs and outputs."""
    nodes = tuple(
        Node(f"n{i}", op, tuple(reads.split()), tuple(makes.split()), dict(*rest))
        for i, (op, reads, makes, *rest) in enumerate(steps)
    )
    held = tuple(constant(n, np.asarray(a)) for n, a in weights.items())
    inputs, outputs = (tuple(Value(n, t) for n, t in side.items()) for side in (x, y))
    return Graph("g", inputs, outputs, held, nodes, {"": opset}).checked()


PLANE, X, Y = kind(4, 8), {"x": kind(4, 8)}, {"y": kind(4, 8)}
XY, XYZ, O = dict.fromkeys("xy", PLANE), dict.fromkeys("xyz", PLANE), {"o": PLANE}
SAME = model([("Identity", "x", "y")], {}, X, Y)
DENSE = rng.standard_normal((8, 3)).astype(single)
TABLE = rng.standard_normal((50_000, 8)).astype(single)
OTHER = TABLE.copy()
OTHER[31_234, 3] += single(0.5)


def modulo(m: int, shape) -> Graph:
    steps = [("Mod", "i m", "y")]
    return model(steps, {"m": np.int64(m)}, {"i": kind(*shape, dtype=I64)}, {"y": kind(*shape, dtype=I64)})


def branch(factor: float, *, computed: bool = False, compare: str = "Greater") -> Graph:
    weights = {"t": single(1000), "k": single(factor), "three": single(3), "one": single(1)}
    before = [("Mul", "x three", "p"), ("Add", "p one", "q")] if computed else [("Identity", "x", "q")]
    return model([*before, (compare, "q t", "c"), ("Mul", "x k", "d"), ("Where", "c d x", "y")], weights, X, Y)


def gathered(table: np.ndarray) -> Graph:
    return model([("Gather", "t i", "y")], {"t": table}, {"i": kind(1, 6, dtype=I64)}, {"y": kind(1, 6, 8)})


def biased(b: Sequence[float]) -> Graph:
    steps = [("MatMul", "x w", "h"), ("Add", "h b", "y")]
    return model(steps, {"w": DENSE, "b": single(b)}, X, {"y": kind(4, 3)})


def floored(shift: float | None = None, scale: float = 1.0) -> Graph:
    weights = {"w": DENSE * single(scale), "s": single(10 / scale), "e": single(shift or 0)}
    steps = [("MatMul", "x w", "h"), ("Mul", "h s", "g"), ("Floor", "g", "q"), ("Add", "q e", "y")]
    return model(steps, weights, X, {"y": kind(4, 3)})


def magic(first: object, second: object) -> Graph:
    return model([("Add", "x c", "a"), ("Sub", "a d", "y")], {"c": first, "d": second}, X, Y)


def fp16(factors: Sequence[float]) -> Graph:
    weights = {f"c{i}": half(c) for i, c in enumerate(factors)}
    ends = ["x", *[f"h{i}" for i in range(len(factors) - 1)], "y"]
    steps = [("Mul", f"{ends[i]} c{i}", ends[i + 1]) for i in range(len(factors))]
    return model(steps, weights, {"x": kind(4, 8, dtype=F16)}, {"y": kind(4, 8, dtype=F16)})


def folded(values: Sequence[float] | None) -> Graph:
    x, y = {"x": kind(3, 4)}, {"y": kind(3, 1)}
    if values is not None:
        return model([("MatMul", "x b", "y")], {"b": single(values).reshape(4, 1)}, x, y)
    weights = {"w": single([[0.1], [0.3], [0.7], [1.1]]), "s": single(10)}
    return model([("Mul", "w s", "a"), ("Floor", "a", "b"), ("MatMul", "x b", "y")], weights, x, y)


VELTKAMP = model([("Mul", "x c", "a"), ("Sub", "a x", "d"), ("Sub", "a d", "y")], {"c": single(4097)}, X, Y)
ROUNDED = model([("Cast", "x", "h", {"to": 10}), ("Cast", "h", "y", {"to": 1})], {}, X, Y)
FACTORS = model([("Add", "x y", "s"), ("Sub", "x y", "d"), ("Mul", "s d", "o")], {}, XY, O)
SQUARES = model([("Mul", "x x", "s"), ("Mul", "y y", "d"), ("Sub", "s d", "o")], {}, XY, O)
SPREAD = model([("Mul", "x y", "s"), ("Mul", "x z", "t"), ("Add", "s t", "o")], {}, XYZ, O)
GATHERED = model([("Add", "y z", "s"), ("Mul", "x s", "o")], {}, XYZ, O)


def product(*pairs: str) -> Graph:
    steps = [("Mul", pairs[0], "s"), ("Mul", pairs[1], "o")]
    return model(steps, {}, XYZ, O)


def scaled_scores(first: bool) -> Graph:
    """Scores of inputs of any magnitudes, one of them scaled: which one is told where the other is near the least."""
    scale = ("Mul", "a k", "b") if first else ("Mul", "c k", "b")
    steps = [scale, ("MatMul", "b c" if first else "a b", "y")]
    return model(steps, {"k": single(0.5)}, {"a": kind(3, 4), "c": kind(4, 3)}, {"y": kind(3, 3)})


def attention(right: bool, *, free: bool = False) -> Graph:
    """Three products, one way round or the other: of projections of one input, or of inputs of any magnitudes."""
    steps = (
        [("MatMul", "b c", "h"), ("MatMul", "a h", "y")] if right else [("MatMul", "a b", "h"), ("MatMul", "h c", "y")]
    )
    if free:
        return model(steps, {}, {n: kind(2, 6, 6) for n in "abc"}, {"y": kind(2, 6, 6)})
    local = np.random.default_rng(9)
    weights = {f"w{n}": local.standard_normal((6, 6)).astype(single) for n in "abc"}
    projected = [("MatMul", f"x w{n}", n) for n in "abc"]
    return model([*projected, *steps], weights, {"x": kind(2, 6, 6)}, {"y": kind(2, 6, 6)})


def summed(by: str, terms: int = 3136, factor: float = 1.0) -> Graph:
    """Columns of so many terms, summed one after the other (ReduceSum) or by blocks (MatMul with ones)."""
    x, y = {"x": kind(terms, 16)}, {"y": kind(1, 16)}
    if by == "ReduceSum":
        steps = [("ReduceSum", "x axes", "h", {"keepdims": 1}), ("Mul", "h f", "y")]
        return model(steps, {"axes": np.int64([0]), "f": single(factor)}, x, y)
    return model(
        [("MatMul", "ones x", "h"), ("Mul", "h f", "y")],
        {"ones": np.ones((1, terms), single), "f": single(factor)},
        x,
        y,
    )


def summed_up(large: float) -> Graph:
    """A deliberate rounding whose sum is a ReduceSum's."""
    steps = [("Concat", "x m", "c", {"axis": 0}), ("ReduceSum", "c axes", "s", {"keepdims": 0}), ("Sub", "s b", "y")]
    weights = {"m": np.full((1, 8), large, single), "axes": np.int64([0]), "b": single(large)}
    return model(steps, weights, {"x": kind(1, 8)}, {"y": kind(8)})


WRONG = {
    "modulus, fixed size": (modulo(100, (4,)), modulo(200, (4,))),
    "modulus, symbolic size": (modulo(100, (N,)), modulo(200, (N,))),
    "branch beyond 1000": (branch(2), branch(3)),
    "branch on a computed value": (branch(2, computed=True), branch(3, computed=True)),
    "tie": (branch(2), branch(2, compare="GreaterOrEqual")),
    "one row of a table": (gathered(TABLE), gathered(OTHER)),
    "bias beside a large one": (biased([1e6, 0.1, 0.2]), biased([1e6, 0.15, 0.2])),
    "a constant after Floor": (floored(), floored(2.5)),
    "Veltkamp": (VELTKAMP, SAME),
    "rounding by a large constant": (magic(single(12582912), single(12582912)), SAME),
    "rounding by an odd one": (magic(single(12582913), single(12582913)), SAME),
    "rounding by vectors": (magic(np.full(8, 12582913, single), np.full(8, 12582913, single)), SAME),
    "rounding by a sum of two": (summed_up(12582912.0), summed_up(0.0)),
    "a sum of many by another number": (summed("ReduceSum"), summed("MatMul", factor=1.001)),
    "a sum of some by another number": (summed("ReduceSum", 200), summed("MatMul", 200, 1.00002)),
    "half precision and back": (ROUNDED, SAME),
    "difference of squares": (FACTORS, SQUARES),
    "overflow of a sum": (SPREAD, GATHERED),
    "overflow of a product": (attention(False, free=True), attention(True, free=True)),
    "underflow of a product": (product("x y", "s z"), product("y z", "s x")),
    "underflow of the operand that a scale moves to": (scaled_scores(True), scaled_scores(False)),
    "underflow of a constant": (fp16([1e-4, 1e-4]), fp16([0.0])),
    "weights floored in float64": (folded(None), folded([1, 3, 6, 11])),
}


@pytest.mark.essential
@pytest.mark.parametrize("name", WRONG)
def test_a_difference_that_rounding_does_not_explain_fails(name):
    before, after = WRONG[name]
    found = check(before, after)
    assert found.verdict == "failed", found
    old, new = (run(make_session(formats.to_onnx_bytes(g), optimise=False), found.feeds) for g in (before, after))
    assert any(not np.array_equal(old[n], new[n], equal_nan=True) for n in old)  # the witness shows it


def chain(weights: Sequence[np.ndarray]) -> Graph:
    ends = ["x", *[f"h{i}" for i in range(len(weights) - 1)], "y"]
    steps = [("MatMul", f"{ends[i]} w{i}", ends[i + 1]) for i in range(len(weights))]
    held = {f"w{i}": w for i, w in enumerate(weights)}
    return model(steps, held, {"x": kind(6, 16)}, {"y": kind(6, weights[-1].shape[1])})


def convolution(fold: bool) -> Graph:
    local = np.random.default_rng(5)
    w, b, g, e, m = (local.standard_normal(s).astype(single) for s in ((4, 3, 3, 3), 4, 4, 4, 4))
    v = local.uniform(0.5, 2, 4).astype(single)
    x, y = {"x": kind(2, 3, 8, 8)}, {"y": kind(2, 4, 6, 6)}
    if not fold:
        steps = [("Conv", "x w b", "h"), ("BatchNormalization", "h g e m v", "n"), ("Relu", "n", "y")]
        return model(steps, {"w": w, "b": b, "g": g, "e": e, "m": m, "v": v}, x, y)
    scale = g / np.sqrt(v + single(1e-5))
    weights = {"w": w * scale[:, None, None, None], "b": (b - m) * scale + e}
    return model([("Conv", "x w b", "n"), ("Relu", "n", "y")], weights, x, y)


def gelu(whole: bool) -> Graph:
    if whole:
        return model([("Gelu", "x", "y")], {}, X, Y)
    weights = {"s": single(2**0.5), "one": single(1), "h": single(0.5)}
    steps = [("Div", "x s", "a"), ("Erf", "a", "b"), ("Add", "b one", "c"), ("Mul", "x c", "d"), ("Mul", "d h", "y")]
    return model(steps, weights, X, Y)


def largest(scaled: bool) -> Graph:
    steps = [
        ("MatMul", "x w", "h"),
        ("Mul", "h s", "k"),
        ("ArgMax", "k" if scaled else "h", "y", {"axis": -1, "keepdims": 0}),
    ]
    weights = {"w": DENSE, "s": single(0.3)}
    return model(steps, weights, {"x": kind(64, 8)}, {"y": kind(64, dtype=I64)})


DEEP = [rng.standard_normal((16, 16)).astype(single) * single(0.25) for _ in range(20)]
RIGHT = {
    "a sum of many in another order": (summed("ReduceSum"), summed("MatMul")),
    "itself": (branch(2), branch(2)),
    "two matrices": (chain(DEEP[:2]), chain([DEEP[0] @ DEEP[1]])),
    "twenty matrices": (chain(DEEP), chain([reduce(np.matmul, DEEP)])),
    "attention, the other way round": (attention(False), attention(True)),
    "normalisation into a convolution": (convolution(False), convolution(True)),
    "Gelu": (gelu(False), gelu(True)),
    "a scale into weights before Floor": (floored(), floored(scale=0.3)),
    "a scale before ArgMax": (largest(True), largest(False)),
    "a sum of three": (
        model([("Add", "x y", "s"), ("Add", "s z", "o")], {}, XYZ, O),
        model([("Add", "y z", "s"), ("Add", "x s", "o")], {}, XYZ, O),
    ),
}


@pytest.mark.essential
@pytest.mark.parametrize("name", RIGHT)
def test_what_rounding_explains_passes(name):
    before, after = RIGHT[name]
    found = check(before, after)
    assert found.verdict == "passed", found


@pytest.mark.parametrize("name", ["deep_linear", "expand_conv", "siamese"])
def test_no_false_alarm_on_what_the_optimiser_makes(name):
    graph = formats.load(TINY / f"{name}.json")
    result = optimize(graph, target="profile:cpu-epyc-2core", check=False)
    assert result.graph is not graph
    found = check(graph, result.graph, power="quick")
    assert found.verdict == "passed", found
    assert found.power is not None
    assert found.power.mutants > 0


def test_the_check_is_the_same_each_time():
    before, after = RIGHT["normalisation into a convolution"]
    assert check(before, after, power="thorough") == check(before, after, power="thorough")


def test_the_full_check_asks_the_reference():
    before, after = RIGHT["a sum of three"]
    assert check(before, after).reference == "original"
    assert check(before, after, full=True).reference == "original and float64"


def test_an_element_is_judged_by_itself_and_its_channel():
    old = single([[1e6, 0.1], [2e6, 0.2], [1e6, 0.1]])
    assert scales(old.astype(float), False)[0, 1] < 1
    off = old + single([0, 1e-3])
    assert compare(old, off, F32).problem is not None
    assert compare(old, old * single(1 + 2**-22), F32).problem is None


@pytest.mark.essential
def test_infinity_must_stay_infinite_and_an_overflow_may_be_mended():
    finite, infinite = single([1.0, 2.0]), single([1.0, np.inf])
    assert compare(infinite, finite, F32).problem is not None
    assert compare(finite, infinite, F32).problem is not None
    assert compare(infinite, finite, F32, exact=np.array([1.0, 2.0])).problem is None
    assert compare(infinite, finite, F32, exact=np.array([1.0, 3.0])).problem is not None


def test_moves_of_a_deliberate_rounding_are_not_an_excuse():
    """Inside, the sum with 12582912 moves by whole numbers; moving the input does not move it at all."""
    graph, feeds = WRONG["rounding by a large constant"][0], {"x": rng.standard_normal((4, 8)).astype(single)}
    with SharedWeightSessions() as bench:
        plain = bench.session(graph, optimise=False)
        moved, inside = DisturbedRuns(graph, bench, plain).samples(feeds, range(4), tiny=False, time_limit=None)
    old = run(plain, feeds)["y"]
    assert max(np.abs(r["y"] - old).max() for r in inside) >= 1
    assert max(np.abs(r["y"] - old).max() for r in moved) == 0


@pytest.mark.parametrize("reader", ["Reciprocal", "Atan of Reciprocal", "Div"])
def test_the_sign_of_a_zero_is_told_where_another_value_follows_from_it(reader: str) -> None:
    """``x + 0`` is 0 at -0: an output may lose that sign, but not what is computed of it."""
    ends = {
        "Reciprocal": [("Reciprocal", "a", "y")],
        "Atan of Reciprocal": [("Reciprocal", "a", "r"), ("Atan", "r", "y")],
        "Div": [("Div", "one a", "y")],
    }[reader]
    weights = {"z": single(0)} | ({"one": single(1)} if reader == "Div" else {})
    before = model([("Add", "x z", "a"), *ends], weights, X, Y)
    after = model([("Identity", "x", "a"), *ends], weights, X, Y)
    assert check(before, after).verdict == "failed"
    plain = model([("Add", "x z", "y")], {"z": single(0)}, X, Y)
    assert check(plain, SAME).verdict == "passed"


def test_targets_are_carried_back_through_what_computes_a_condition():
    assert 333.0 in input_targets(branch(2, computed=True))["x"]
    assert {100.0, 199.0, 200.0} <= set(input_targets(modulo(100, (4,)))["i"])


def test_steered_inputs_visit_the_changed_rows_first():
    first = next(steered(*WRONG["one row of a table"], 0, {}, 0, 1))
    assert (first.arrays["i"] == 31_234).all()


def test_a_mutant_differs_in_one_place():
    graph = RIGHT["normalisation into a convolution"][0]
    places = [*(n.outputs[0] for n in graph.nodes), *graph.weight]
    found = list(mutants(graph, 0, places, 100))
    assert len({m.what for m in found}) == len(found) > 10
    for mutant in found:
        weights = sum(
            not np.array_equal(a.data.numpy(), b.data.numpy())
            for a, b in zip(graph.weights, mutant.graph.weights, strict=True)
        )
        nodes = sum(a != b for a, b in zip(graph.nodes, mutant.graph.nodes, strict=True))
        assert weights + nodes == 1


@pytest.mark.essential
def test_power_names_what_is_not_exercised():
    out_of_reach = model(
        [("Sigmoid", "x", "s"), ("Greater", "s t", "c"), ("Neg", "x", "d"), ("Where", "c d x", "y")],
        {"t": single(2)},
        X,
        Y,
    )
    other = model(
        [("Sigmoid", "x", "s"), ("Greater", "s t", "c"), ("Abs", "x", "d"), ("Where", "c d x", "y")],
        {"t": single(2)},
        X,
        Y,
    )
    found = check(out_of_reach, other, power="thorough")
    assert found.verdict == "passed"
    assert any("condition is never true" in said for said in found.power.unexercised)
    assert found.power.share < 1
    seen = check(branch(2), branch(2), power="thorough").power
    assert seen.share == 1.0
    assert not seen.unexercised


def test_the_place_that_strays_is_found():
    def graph(first: float, second: float) -> Graph:
        steps = [("Mul", "x a", "p"), ("Sigmoid", "p", "q"), ("Mul", "q b", "y")]
        made = model(steps, {"a": single(first), "b": single(second)}, X, Y)
        return made

    before = graph(2.0, 3.0)
    renamed = model([("Add", "x x", "p"), ("Sigmoid", "p", "q"), ("Mul", "q c", "y")], {"c": single(3.1)}, X, Y)
    found = check(before, renamed)
    assert found.verdict == "failed"
    assert suspects(before, renamed, found.feeds)[0] == ("y",)


def test_an_element_that_twelve_runs_hardly_moved_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a million elements one is far off and was, by chance, moved by little: more runs tell."""
    old, made = np.ones((4, 64), np.float32), np.ones((4, 64), np.float32)
    made[0, 0] += np.float32(3e-6)  # beyond the free distance
    asked: list[int] = []

    class Runs:
        def samples(self, feeds: object, numbers: range, **_: object) -> tuple[list[Arrays], list[Arrays]]:
            asked.extend(numbers)
            return [moved(n) for n in numbers], [moved(n) for n in numbers]

    def moved(number: int) -> Arrays:
        run = np.ones((4, 64), np.float32)
        run[3, 63] += np.float32(1e-6)
        run[0, 0] += np.float32(2.4e-7 if number < 12 else 1e-6)
        return {"y": run}

    monkeypatch.setattr(DeviationExplainer, "_noise", lambda self: Runs())
    monkeypatch.setattr(DeviationExplainer, "optimised", lambda *_: None)
    monkeypatch.setattr(DeviationExplainer, "_is_smooth", lambda *_: True)
    graph = floored()
    one = DeviationExplainer(graph, None, None, None, lambda: 1.0)  # type: ignore[arg-type]
    trial = CheckTrial(SteeredInput("x", {}), {"y": old})
    found = one.explain(trial, 0, "y", made, DType.FLOAT32, compare(old, made, DType.FLOAT32), None)
    assert found.problem is None
    assert asked == [*range(36)]
    assert not any(run for kind in one._evidence[0].runs for run in kind)  # what was looked at is held no longer
    made[0, 0] += np.float32(5e-6)  # further than any element moves: no more runs are made for it
    asked.clear()
    fresh = DeviationExplainer(graph, None, None, None, lambda: 1.0)  # type: ignore[arg-type]
    monkeypatch.setattr(DeviationExplainer, "_overflow_mask", lambda *_: np.zeros((4, 64), bool))
    found = fresh.explain(trial, 0, "y", made, DType.FLOAT32, compare(old, made, DType.FLOAT32), None)
    assert found.problem is not None
    assert asked == [*range(12)]


def parsed(text: str, opset: int = 21) -> Graph:
    return formats.from_onnx(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]>\n{text}'))


ROWS = "Shape<start = 0, end = 1> (x)"
SUBTLE = {
    "a threshold in a node": (
        "g (float[8] x) => (float[8] y) {{ t = Constant<value_float = 1717.0> () z = Constant<value_float = 0.0> () "
        "c = {} (x, t) y = Where(c, z, x) }}", ("Greater", "GreaterOrEqual"),
    ),
    "a threshold behind a cast": (
        "g (float[8] x) => (float[8] y) {{ t = Constant<value_int = 1717> () f = Cast<to = 1> (t) z = Sub(f, f) "
        "c = {} (x, f) y = Where(c, z, x) }}", ("Greater", "GreaterOrEqual"),
    ),
    "which of equal ones": (
        "g (float[1, 3] x) => (int64[1, 1] y) {{ y = ArgMax<axis = 1, select_last_index = {}> (x) }}", ("0", "1"),
    ),
    "integers that wrap": (
        "g (int32[64] x) => (int32[64] y) <int32[1] c = {{2}}> {{ a = Mul(x, c) h = Div(a, c) y = Max({}, x) }}",
        ("h", "x"),
    ),
    "which of equal negative ones": (
        "g (float[9, 4] x) => (int64[9, 1] y) {{ r = Relu(x) y = ArgMax<axis = 1> ({}) }}", "rx",
    ),
    "a position from the end": (
        "g (float[7] x, int64[3] i) => (float[3] y) {{ a = Abs(i) b = Identity(i) y = Gather(x, {}) }}", "ba",
    ),
    "a divisor that is fed": ("g (int32[9] a, int32[9] b) => (int32[9] y) {{ y = Mod<fmod = {}> (a, b) }}", ("0", "1")),
    "a condition that is fed": (
        "g (float[4] x, bool c) => (float[4] y) {{ y = If(c) <then_branch = t () => (float[4] o) {{ o = {}(x) }}, "
        "else_branch = e () => (float[4] p) {{ p = Exp(x) }}> }}", ("Neg", "Abs"),
    ),
    "a batch of nothing": (
        f"g (float[n, 4] x) => (bool[1] y) {{{{ s = {ROWS} z = Sub(s, s) y = {{}}(s, z) }}}}",
        ("Greater", "GreaterOrEqual"),
    ),
    "a batch of nothing of images of any size": (
        f"g (float[n, 3, h, w] x) => (bool[1] y) {{{{ m = MaxPool<kernel_shape = [2, 2]> (x) s = {ROWS} z = Sub(s, s) "
        "p = ReduceMean<keepdims = 0> (m) q = Identity(p) y = {}(s, z) }}",
        ("Greater", "GreaterOrEqual"),
    ),
    "the largest of nothing": (
        "g (float[2, n, 4] x) => (float[2, 4] y) {{ a = Constant<value_ints = [1]> () {} }}",
        ("r = Relu(x) y = ReduceMax<keepdims = 0> (r, a)", "m = ReduceMax<keepdims = 0> (x, a) y = Relu(m)"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SUBTLE)
def test_what_differs_at_few_inputs_is_refused_and_what_does_not_is_run(name: str) -> None:
    text, (one, other) = SUBTLE[name]
    first, second = parsed(text.format(one)), parsed(text.format(other))
    assert check(first, second).verdict == "failed"
    same = check(first, first)
    assert (same.verdict, same.reason) == ("passed", "")


def test_a_root_that_overflows_is_no_target() -> None:
    steps = [("Pow", "x e", "p"), ("Greater", "p t", "c"), ("Where", "c x p", "y")]
    graph = model(steps, {"e": single(1e-4), "t": single(3)}, X, Y)
    assert all(np.isfinite(t) for t in input_targets(graph)["x"])
    assert check(graph, graph).verdict == "passed"


@pytest.mark.parametrize("dtype", [DType.INT4, DType.UINT4, DType.INT8, DType.UINT16, DType.INT32, DType.UINT64])
def test_integers_of_every_width_are_drawn_to_their_ends(dtype: DType) -> None:
    graph = model(
        [("Cast", "x", "y", {"to": 11})], {}, {"x": kind(512, dtype=dtype)}, {"y": kind(512, dtype=DType.FLOAT64)}
    )
    drawn = np.concatenate([feed.arrays["x"].astype(object) for feed in steered(graph, graph, 0, {}, 0, 48)])
    ends = ml_dtypes.iinfo(dtype.numpy)
    assert ends.max // 2 < max(drawn) <= ends.max
    assert ends.min <= min(drawn) <= ends.min // 2


def test_a_check_leaves_the_weights_as_they_are() -> None:
    """The kernel of a BatchNormalization in training mode writes the new mean and variance over what it reads."""
    before = parsed("""agraph (float[4, 8] x, float[8, 8] w, int64[4] shape, float[8] scale, float[8] b, float[8] mean,
        float[8] var) => (float[4, 8, 1, 1] z) {
        p = MatMul (x, w)
        q = Add (p, x)
        y = Reshape (q, shape)
        t, unread, other = BatchNormalization <training_mode = 1> (y, scale, b, mean, var)
        z = BatchNormalization (t, scale, b, mean, var)
    }""")
    drawn = {n: rng.uniform(0.5, 2, 8).astype(single) for n in ("scale", "b", "mean", "var")}
    drawn |= {"w": rng.uniform(0.5, 2, (8, 8)).astype(single), "shape": np.array([4, 8, 1, 1])}
    weights = tuple(constant(n, a) for n, a in drawn.items())
    before = replace(before, inputs=before.inputs[:1], weights=weights)
    kept = {n: a.copy() for n, a in drawn.items()}
    found = optimize(before, target="profile:cpu-epyc-2core")
    assert (found.report.status, found.report.check.verdict) == ("improved", "passed")
    for weight in (*before.weights, *found.graph.weights):
        if weight.name in kept:
            assert weight.data is not None
            np.testing.assert_array_equal(weight.data.numpy(), kept[weight.name])


@pytest.mark.parametrize("shared", [False, True])
def test_a_run_leaves_what_it_is_lent_as_it_was(shared: bool) -> None:
    graph = parsed("""agraph (float[2, 3] x, float[3] s, float[3] b, float[3] mean, float[3] var) => (float[2, 3] y) {
        y, m, v = BatchNormalization <training_mode = 1> (x, s, b, mean, var)
    }""")
    feeds = {v.name: rng.random((2, 3) if v.name == "x" else 3, dtype=single) + 1 for v in graph.inputs}
    weights: dict[str, np.ndarray] = {}
    if shared:
        weights = {n: feeds.pop(n) for n in ("mean", "var")}
        graph = replace(graph, inputs=graph.inputs[:3], weights=tuple(constant(n, a) for n, a in weights.items()))
    values = {n: OrtValue.ortvalue_from_numpy(a) for n, a in weights.items()}
    arrays = {**feeds, **weights}
    before = {n: a.copy() for n, a in arrays.items()}
    session = make_session(formats.to_onnx_bytes(graph), threads=1, shared=values if shared else None)
    run(session, feeds)
    bind(session, feeds).step()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_kernels_that_die_of_a_batch_of_0_take_nothing_with_them(op: str) -> None:
    gates = {"LSTM": 4, "GRU": 3}[op]
    before = parsed(f"""agraph (float[5, n, 8] x, float[8, 8] a, float[1, {gates * 4}, 8] w, float[1, {gates * 4}, 4] r)
        => (float[5, 1, n, 4] y) {{
        p = MatMul (x, a)
        y = {op} <hidden_size = 4> (p, w, r)
    }}""")
    found = check(before, replace(before, nodes=before.nodes))
    assert found.verdict == "passed"
    assert "ends the process" in found.reason


def test_a_kernel_of_a_known_operator_that_dies_of_a_batch_of_0_takes_nothing_with_it() -> None:
    before = parsed("""agraph (float[n, 2, 5, 8] q, float[n, 2, 5, 8] k) => (float[n, 2, 5, 5] y) {
        s = Einsum <equation = "bhid,bhjd->bhij"> (q, k)
        y = Tanh (s)
    }""")
    found = check(before, replace(before, nodes=before.nodes))
    assert found.verdict == "passed"
    assert "ends the process" in found.reason


def test_a_result_that_ends_the_process_where_the_original_runs_fails() -> None:
    inputs = "agraph (float[n, 2, 5, 8] q, float[n, 2, 5, 8] k) => (float[n, 2, 5, 5] y)"
    before = parsed(inputs + " { t = Transpose <perm = [0, 1, 3, 2]> (k)\n s = MatMul (q, t)\n y = Tanh (s) }")
    after = parsed(inputs + ' { s = Einsum <equation = "bhid,bhjd->bhij"> (q, k)\n y = Tanh (s) }')
    found = check(before, after)
    assert found.verdict == "failed"
    assert "ends the process" in found.reason


@pytest.mark.essential
@pytest.mark.parametrize("dtype", [F16, F32, DType.FLOAT64])
@pytest.mark.filterwarnings("error")
def test_the_largest_numbers_are_finite(dtype: DType) -> None:
    graph = model([("Abs", "x", "y")], {}, {"x": kind(4, dtype=dtype)}, {"y": kind(4, dtype=dtype)})
    found = next(f for f in steered(graph, graph, 0, {}, 0, 99) if f.name == "largest numbers")
    assert np.isfinite(found.arrays["x"]).all()
    assert np.abs(found.arrays["x"]).max() > 0.5 * float(ml_dtypes.finfo(dtype.numpy).max)


@pytest.mark.parametrize(("mode", "copied"), [(0, False), (1, True)])
def test_only_what_may_be_written_over_is_copied(mode: int, copied: bool, tmp_path: Path) -> None:
    made = "y, m, v" if mode else "y"
    graph = parsed(f"""agraph (float[2, 3] x, float[3] s) => (float[2, 3] y) {{
        {made} = BatchNormalization <training_mode = {mode}> (x, s, s, s, s)
    }}""")
    path = tmp_path / "m.onnx"
    path.write_bytes(formats.to_onnx_bytes(graph))
    feeds = {"x": np.ones((2, 3), single), "s": np.ones(3, single)}
    for source in (path, path.read_bytes()):
        given = writable_feeds(make_session(source, threads=1), feeds)
        assert (given["s"] is not feeds["s"]) == copied


def test_sizes_that_a_model_wants_divisible_are_found():
    def rows(*steps: tuple[str, str, str]) -> Graph:
        weights = {"s": np.int64([-1, 24])}
        return model(
            [("Reshape", "x s", "r"), *steps], weights, {"x": kind(N, 4)}, {"y": TensorType(F32, (sym("m"), 24))}
        )

    found = check(rows(("Relu", "r", "h"), ("Relu", "h", "y")), rows(("Relu", "r", "y")))
    assert found.verdict == "passed", found
    assert found.trials > 1


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_values_inside_are_held_only_where_one_is_not_small(dtype: DType) -> None:
    plane = kind(4, 8, dtype=dtype)
    steps = [("Exp", "x", "e"), ("Sub", "e e", "d"), ("Add", "d x", "y")]
    given = model(steps, {}, {"x": plane}, {"y": plane})
    feed = rng.standard_normal((4, 8)).astype(dtype.numpy)
    with SharedWeightSessions() as bench:
        overflow = OverflowProximity(given, infer(given), "y", bench)
        assert not overflow.near({"x": feed}, (4, 8)).any()
        assert "_session" not in vars(overflow)
        feed[1, 2] = np.log(np.finfo(dtype.numpy).max) - 0.1  # near
        feed[2, 3] = 100.0  # beyond: its difference is no number
        found = overflow.near({"x": feed}, (4, 8))
        assert "_session" in vars(overflow)
    assert {tuple(map(int, place)) for place in np.argwhere(found)} == {(1, 2), (2, 3)}


def test_inputs_near_constants_are_made_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tolerance, "_PIECE", 5)
    clipped = model([("Clip", "x low high", "y")], {"low": single(-1), "high": single(1)}, X, Y)
    feeds = {f.name: f.arrays["x"] for f in steered(clipped, clipped, 0, {}, 0, 48)}
    near = feeds["near the constants 1"]
    assert near.shape == (4, 8)
    assert {-1.0, 1.0} <= set(near.reshape(-1).tolist())


@pytest.mark.parametrize("largest", [2**53 + 1, -(2**60) - 1])
def test_integers_that_float64_does_not_tell_apart_differ(largest: int) -> None:
    old = np.array([3, largest], np.int64)
    found = compare(old, old - np.array([0, 1]), None)
    assert found.problem is not None
    assert found.absolute >= 1


def test_positions_lost_in_a_cast_and_back_are_refused() -> None:
    x, y = {"x": kind(4, 4, dtype=I64)}, {"y": kind(4, 4, dtype=I64)}
    before = model([("Identity", "x", "y")], {}, x, y)
    after = model([("Cast", "x", "a", {"to": 11}), ("Cast", "a", "y", {"to": 7})], {}, x, y)
    assert check(before, after).verdict == "failed"


@pytest.mark.parametrize("shape", [(4, 4), (5,), (2, 3), (3, 1, 6)])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_which_of_equal_numbers_is_chosen_shows(op: str, shape: tuple[int, ...]) -> None:
    x, y = {"x": kind(*shape)}, {"y": kind(*shape[:-1], dtype=I64)}
    first, last = (
        model([(op, "x", "y", {"axis": -1, "keepdims": 0, "select_last_index": last})], {}, x, y) for last in (0, 1)
    )
    for seed in range(4):
        assert check(first, last, seed=seed).verdict == "failed"


def test_a_session_reads_a_weight_that_the_runtime_transposes_as_its_user_does() -> None:
    """ONNX Runtime moves the Transpose through the Add, and gives the transposed weight the weight's name."""
    steps: Steps = [
        ("Transpose", "x", "t", {"perm": (0, 2, 3, 1)}), ("Add", "t w", "a"), ("Sigmoid", "a", "s"),
        ("Transpose", "s", "y", {"perm": (0, 3, 1, 2)}),
    ]  # fmt: skip
    image = kind(1, 32, 32, 32)
    graph = model(steps, {"w": rng.standard_normal((1, 32, 32, 32)).astype(single)}, {"x": image}, {"y": image})
    feeds = {"x": rng.standard_normal((1, 32, 32, 32)).astype(single)}
    with SharedWeightSessions() as bench:
        plain, optimised = (run(bench.session(graph, optimise=o), feeds)["y"] for o in (False, True))
    np.testing.assert_allclose(optimised, plain, rtol=1e-5)
