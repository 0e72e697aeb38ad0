"""What `verify` says of constants that somebody folded, of fused operators, and of differences hard to see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from superopt.formats import from_onnx, to_onnx_bytes
from superopt.ir.graph import Graph, Node, Value, constant
from superopt.ir.size_polynomial import sym
from superopt.ir.terms import OperatorTerm, VariableTerm
from superopt.ir.types import DType, TensorType
from superopt.runtime import reference
from superopt.runtime.onnx_runtime import make_session, run
from superopt.verifier.equivalence.fused_operators import FUSED, unfused
from superopt.verifier.equivalence.graphs import verify
from superopt.verifier.equivalence.runtime_folded_constants import with_folded_jumps
from superopt.verifier.equivalence.weight_expressions import LIMIT, deviation, evaluated
from superopt.verifier.prover import normal_form_terms

RNG = np.random.default_rng(5)


def model(
    nodes: list[tuple], weights: dict[str, object], shape: list[int | str], made: list[int | str], *, opset: int = 17,
    dtype: int = TensorProto.FLOAT, out: int = TensorProto.FLOAT,
) -> Graph:  # fmt: skip
    """A model from rows of (operator, inputs, output, attributes, domain)."""
    rows = [(*n, *({}, "")[len(n) - 3 :]) for n in nodes]
    written = [
        helper.make_node(op, i.split(), o.split(), name=f"n{k}", domain=d, **a)
        for k, (op, i, o, a, d) in enumerate(rows)
    ]
    arrays = [
        numpy_helper.from_array(np.asarray(v, np.float32 if np.asarray(v).dtype == np.float64 else None), k)
        for k, v in weights.items()
    ]
    graph = helper.make_graph(
        written, "g", [helper.make_tensor_value_info("x", dtype, shape)],
        [helper.make_tensor_value_info("y", out, made)], arrays,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return from_onnx(helper.make_model(graph, opset_imports=opsets, ir_version=8))


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


# ── folded constants ──────────────────────────────────────────────────────────────────────────────────────────────────


def conv_bn() -> Graph:
    norm = {"s": RNG.uniform(0.5, 1.5, 4), "t": RNG.standard_normal(4), "m": RNG.standard_normal(4)}
    weights = {"w": f32(4, 3, 3, 3), "b": f32(4), **norm, "v": RNG.uniform(0.1, 2.0, 4)}
    nodes = [("Conv", "x w b", "c", {"pads": [1] * 4}), ("BatchNormalization", "c s t m v", "y", {"epsilon": 1e-5})]
    return model(nodes, weights, ["N", 3, 6, 6], ["N", 4, 6, 6])


def folded(a: Graph, bias_off: float = 0.0) -> Graph:
    """Convolution and normalisation in one, by the formula that ONNX Runtime uses, in float32."""
    w, b, s, t, m, v = (np.asarray(a.weight[n].data.numpy()) for n in "wbstmv")  # type: ignore[union-attr]
    factor = s / np.sqrt(v + np.float32(1e-5))
    weights = {"w2": w * factor[:, None, None, None], "b2": (b - m) * factor + t}
    weights["b2"][1] += np.float32(bias_off)
    return model([("Conv", "x w2 b2", "y", {"pads": [1] * 4})], weights, ["N", 3, 6, 6], ["N", 4, 6, 6])


def test_a_fold_by_hand_is_proved_up_to_rounding() -> None:
    a = conv_bn()
    found = verify(a, folded(a))
    assert found.verdict == "proved up to rounding", found
    said = f"proved over the reals, up to the rounding of folded constants (max {found.max_ulp} ulp)"
    assert found.words.partition(";")[0] == said
    assert 1 <= found.max_ulp <= 4
    assert found.folded == 2


@pytest.mark.parametrize("off", [0.05, 1e-3, 3e-5])
def test_a_fold_that_is_off_by_more_than_rounding_is_not_excused(off: float) -> None:
    a = conv_bn()
    found = verify(a, folded(a, off))
    assert found.verdict == "refuted", found
    assert found.feeds


CONSTANT_FOLDS = {
    "floor": (["Mul w k|p", "Floor p|u"], np.floor),
    "qat": (["Div w k2|p", "Round p|q", "Mul q k2|u"], None),
    "half": (["CastHalf w|p", "CastFloat p|u"], None),
}


def _jumping(kind: str, fold: np.ndarray | None = None) -> Graph:
    """A product with weights that the model itself rounds; ``fold`` takes their place."""
    w = np.array([[0.1, 0.3, 0.7, 1.1], [0.15, 0.25, 0.35, 2.9]], np.float32)
    casts = {"CastHalf": TensorProto.FLOAT16, "CastFloat": TensorProto.FLOAT}
    nodes: list[tuple] = []
    for row in CONSTANT_FOLDS[kind][0] if fold is None else ():
        call, output = row.split("|")
        op, _, inputs = call.partition(" ")
        nodes.append(("Cast", inputs, output, {"to": casts[op]}) if op in casts else (op, inputs, output))
    nodes.append(("MatMul", "x u", "y"))
    weights: dict[str, object] = {"w": w, "k": np.float32(10), "k2": np.float32(0.1)} if fold is None else {"u": fold}
    return model(nodes, weights, ["N", 2], ["N", 4])


def _value(graph: Graph, name: str) -> np.ndarray:
    """What ONNX Runtime computes a constant of the model to be."""
    kind = TensorType(DType.FLOAT32, None)
    part = replace(graph, inputs=(), outputs=(Value(name, kind),), nodes=graph.nodes[:-1])
    return run(make_session(to_onnx_bytes(part), optimise=False), {})[name]


@pytest.mark.parametrize("kind", CONSTANT_FOLDS)
def test_the_runtimes_own_constant_is_proved_and_another_is_not(kind: str) -> None:
    a = _jumping(kind)
    right = _value(a, "u")
    found = verify(a, _jumping(kind, right))
    assert found.verdict == "proved", found
    wrong = right.copy()
    wrong[0, 2] = np.floor(np.float64(np.float32(0.7)) * 10) if kind == "floor" else right[0, 2] * np.float32(1.001)
    if (wrong == right).all():
        wrong[0, 2] -= 1
    assert verify(a, _jumping(kind, wrong)).verdict == "refuted"


def test_constants_that_jump_are_what_the_runtime_computes() -> None:
    graph = with_folded_jumps(_jumping("floor"))
    assert "Floor" not in {n.op for n in graph.nodes}
    weight = graph.weight["p"] if "p" in graph.weight else graph.weight["u"]
    assert weight.data is not None
    assert weight.data.numpy()[0, 2] == 7.0  # 6.99… over the reals


def test_a_transposed_copy_is_proved() -> None:
    w = f32(8, 5)
    b = f32(5)
    one = model([("MatMul", "x w", "p"), ("Add", "p b", "y")], {"w": w, "b": b}, [3, 8], [3, 5])
    two = model([("Gemm", "x w b", "y", {"transB": 1})], {"w": w.T.copy(), "b": b}, [3, 8], [3, 5])
    assert verify(one, two).verdict == "proved"


def _gelu(spelling: str) -> Graph:
    half, one = {"half": np.float32(0.5), "one": np.float32(1)}, [("Add", "e one", "f"), ("Mul", "x f", "g")]
    end = [*one, ("Mul", "g half", "y")]
    if spelling == "divided":
        return model([("Div", "x r", "d"), ("Erf", "d", "e"), *end], {"r": np.float32(2**0.5), **half}, [4, 8], [4, 8])
    if spelling == "times":
        return model(
            [("Mul", "x r", "d"), ("Erf", "d", "e"), *end], {"r": np.float32(0.5**0.5), **half}, [4, 8], [4, 8]
        )
    if spelling == "wrong":
        return model([("Div", "x r", "d"), ("Erf", "d", "e"), *end], {"r": np.float32(1.4143), **half}, [4, 8], [4, 8])
    return model([("Gelu", "x", "y", {}, "com.microsoft")], {}, [4, 8], [4, 8])


@pytest.mark.parametrize(("a", "b"), [("divided", "times"), ("divided", "fused"), ("fused", "times")])
def test_decimals_of_gelu_are_roundings(a: str, b: str) -> None:
    found = verify(_gelu(a), _gelu(b))
    said = "proved over the reals, up to the rounding of folded constants (max 1 ulp)"
    assert found.words.partition(";")[0] == said, found


def test_another_decimal_is_refuted() -> None:
    assert verify(_gelu("fused"), _gelu("wrong")).verdict == "refuted"


# ── ulps ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32])
def test_a_rounded_value_is_within_half_an_ulp_and_its_neighbours_are_not(dtype: DType) -> None:
    a, b = (RNG.standard_normal(500).astype(dtype.numpy) for _ in range(2))
    exact = evaluated(OperatorTerm("Mul", (VariableTerm("a"), VariableTerm("b"))), {"a": (a, dtype), "b": (b, dtype)})
    rounded = exact.value.astype(dtype.numpy)
    assert deviation(rounded, dtype, exact) <= 0.5
    moved = (rounded.astype(np.float64) * 1.2).astype(dtype.numpy)
    assert deviation(moved, dtype, exact) > LIMIT


def test_cancellation_is_measured_by_its_terms() -> None:
    a = np.array([1e4], np.float32)
    b = np.array([1e4 + 1e-3], np.float64).astype(np.float32)
    exact = evaluated(
        OperatorTerm("Sub", (VariableTerm("a"), VariableTerm("b"))), {"a": (a, DType.FLOAT32), "b": (b, DType.FLOAT32)}
    )
    assert exact.magnitude[0] == pytest.approx(2e4)
    assert deviation(np.array([1e-3], np.float32), DType.FLOAT32, exact) < 1.5  # ulps of 2e4: it is -0.001


# ── fused operators ───────────────────────────────────────────────────────────────────────────────────────────────────

_CONV = {"pads": [1] * 4}
_USES: dict[str, tuple[tuple, dict[str, object], list[int], list[int]]] = {
    "FusedConv": (("FusedConv", "x w b", "y", {**_CONV, "activation": "LeakyRelu", "activation_params": [0.2]}),
                  {"w": f32(4, 3, 3, 3), "b": f32(4)}, [1, 3, 5, 5], [1, 4, 5, 5]),
    "FusedConv sum": (("FusedConv", "x w b z", "y", {**_CONV, "activation": "Relu"}),
                      {"w": f32(4, 3, 3, 3), "b": f32(4), "z": f32(1, 4, 5, 5)}, [1, 3, 5, 5], [1, 4, 5, 5]),
    "FusedConv clip": (("FusedConv", "x w b", "y", {**_CONV, "activation": "Clip", "activation_params": [0.0, 1.5]}),
                       {"w": f32(4, 3, 3, 3), "b": f32(4)}, [1, 3, 5, 5], [1, 4, 5, 5]),
    "FusedConv hard": (("FusedConv", "x w b", "y", {**_CONV, "activation": "HardSigmoid",
                                                    "activation_params": [0.3, 0.4]}),
                       {"w": f32(4, 3, 3, 3), "b": f32(4)}, [1, 3, 5, 5], [1, 4, 5, 5]),
    "FusedGemm": (("FusedGemm", "x w b", "y", {"activation": "LeakyRelu", "activation_alpha": 0.3, "transB": 1,
                                               "alpha": 0.5}), {"w": f32(6, 4), "b": f32(6)}, [3, 4], [3, 6]),
    "FusedMatMul": (("FusedMatMul", "x w", "y", {"transA": 1, "transB": 1, "alpha": 0.25}), {"w": f32(2, 6, 3)},
                    [2, 3, 4], [2, 4, 6]),
    "Gelu": (("Gelu", "x", "y"), {}, [3, 4], [3, 4]),
    "BiasGelu": (("BiasGelu", "x b", "y"), {"b": f32(4)}, [3, 4], [3, 4]),
    "FastGelu": (("FastGelu", "x b", "y"), {"b": f32(4)}, [3, 4], [3, 4]),
    "QuickGelu": (("QuickGelu", "x", "y", {"alpha": 1.5}), {}, [3, 4], [3, 4]),
    "SkipLayerNormalization": (("SkipLayerNormalization", "x k g b c", "y", {"epsilon": 1e-3}),
                               {"k": f32(2, 3, 4), "g": f32(4), "b": f32(4), "c": f32(4)}, [2, 3, 4], [2, 3, 4]),
    "SkipSimplifiedLayerNormalization": (("SkipSimplifiedLayerNormalization", "x k g", "y", {"epsilon": 1e-3}),
                                         {"k": f32(2, 3, 4), "g": f32(4)}, [2, 3, 4], [2, 3, 4]),
    "SimplifiedLayerNormalization": (("SimplifiedLayerNormalization", "x g", "y", {"epsilon": 1e-3, "axis": -1}),
                                     {"g": f32(4)}, [2, 3, 4], [2, 3, 4]),
    "LayerNormalization": (("LayerNormalization", "x g b", "y", {"epsilon": 1e-3, "axis": -1}),
                           {"g": f32(4), "b": f32(4)}, [2, 3, 4], [2, 3, 4]),
}  # fmt: skip


def test_every_fused_operator_is_tried() -> None:
    assert {u.split()[0] for u in _USES} == {op for _, op in FUSED}


@pytest.mark.parametrize("use", _USES)
@pytest.mark.parametrize("opset", [13, 18])
def test_a_fused_operator_means_what_onnx_runtime_computes(use: str, opset: int) -> None:
    (op, inputs, output, *rest), weights, shape, made = _USES[use]
    own = op in ("SimplifiedLayerNormalization", "LayerNormalization")
    row = (op, inputs, output, rest[0] if rest else {}, "" if own else "com.microsoft")
    graph = model([row], weights, shape, made, opset=opset)
    feeds = {"x": f32(*shape)}
    written = unfused(graph)
    assert (op, "com.microsoft") not in {(n.op, n.domain) for n in written.nodes}
    real = reference.run(written, feeds)["y"]
    ran = run(make_session(to_onnx_bytes(graph), optimise=False), feeds)["y"]
    np.testing.assert_allclose(ran, real, rtol=2e-5, atol=2e-5)


def test_a_use_that_is_not_described_stays_opaque() -> None:
    odd = [("FusedConv", "x w", "y", {"activation": "Softsign"}, "com.microsoft")]
    graph = model(odd, {"w": f32(4, 3, 3, 3)}, [1, 3, 5, 5], [1, 4, 3, 3])
    assert unfused(graph) is graph


# ── differences that are hard to see ──────────────────────────────────────────────────────────────────────────────────


def _biased(small: float) -> Graph:
    return model([("Add", "x b", "y")], {"b": np.array([1e6, small, -2.0], np.float32)}, [4, 3], [4, 3])


def _table(row: int | None) -> Graph:
    table = np.random.default_rng(1).standard_normal((50_000, 2)).astype(np.float32)
    if row is not None:
        table[row, 1] += 0.5
    return model([("Gather", "t x", "y")], {"t": table}, [3], [3, 2], dtype=TensorProto.INT64)


def _modulus(m: int) -> Graph:
    nodes = [("Mod", "x m", "r"), ("Cast", "r", "y", {"to": TensorProto.FLOAT})]
    return model(nodes, {"m": np.array(m, np.int64)}, [6], [6], dtype=TensorProto.INT64)


def _branches(far: float) -> Graph:
    nodes = [("Greater", "x k", "c"), ("Mul", "x two", "d"), ("Mul", "x far", "e"), ("Where", "c d e", "y")]
    return model(nodes, {"k": np.float32(1000), "two": np.float32(2), "far": np.float32(far)}, [6], [6])


def _rounded(trick: bool) -> Graph:
    if not trick:
        return model([("Identity", "x", "y")], {}, [8], [8])
    return model([("Add", "x k", "p"), ("Sub", "p k", "y")], {"k": np.float32(12582912)}, [8], [8])


HIDDEN: dict[str, tuple[Callable[[], Graph], Callable[[], Graph]]] = {
    "a bias beside one of 1e6": (lambda: _biased(0.3), lambda: _biased(0.35)),
    "one row of 50,000": (lambda: _table(None), lambda: _table(31_337)),
    "another modulus": (lambda: _modulus(100), lambda: _modulus(200)),
    "a branch far away": (lambda: _branches(1.0), lambda: model([("Mul", "x k", "y")], {"k": np.float32(1)}, [6], [6])),
    "a deliberate rounding": (lambda: _rounded(True), lambda: _rounded(False)),
}


@pytest.mark.parametrize("case", HIDDEN)
def test_a_hidden_difference_is_refuted(case: str) -> None:
    a, b = (make() for make in HIDDEN[case])
    found = verify(a, b)
    assert found.verdict == "refuted", found
    assert set(found.feeds) == {"x"}


def test_equality_over_the_reals_is_no_proof_behind_a_jump() -> None:
    """``Floor`` of an argument that only rounds differently: equal over the reals, not what runs."""
    tail = [("Floor", "p", "q"), ("Add", "q x", "y")]
    one = model([("Mul", "x k", "p"), *tail], {"k": np.float32(3)}, [4], [4])
    two = model([("Add", "x x", "d"), ("Add", "d x", "p"), *tail], {}, [4], [4])
    found = verify(one, two)
    assert not found.verdict.startswith("proved"), found


def test_an_opaque_node_of_another_version_is_not_the_same() -> None:
    graph = model([("Hardmax", "x", "y", {"axis": 1})], {}, [2, 3], [2, 3], opset=17)
    older = replace(graph, opset={**graph.opset, "": 11})
    assert verify(graph, older).verdict != "proved"


def test_a_constant_is_the_same_wherever_its_bits_come_from() -> None:
    w = f32(4, 4)
    computed = model([("Mul", "w k", "u"), ("MatMul", "x u", "y")], {"w": w, "k": np.float32(1.1)}, [2, 4], [2, 4])
    stored = model([("MatMul", "x u", "y")], {"u": w * np.float32(1.1)}, [2, 4], [2, 4])
    found = verify(computed, stored)
    assert found.verdict == "proved"
    assert (found.same, found.max_ulp) == (1, 0)


def test_a_node_that_reads_a_folded_weight_keeps_its_name() -> None:
    """Names with slashes, as exporters write them, survive the putting back."""
    weight = constant("a/b.weight", f32(4, 4))
    graph = Graph(
        "g", (Value("x", TensorType(DType.FLOAT32, (2, 4))),), (Value("y", TensorType(DType.FLOAT32, (2, 4))),),
        (weight,), (Node("", "MatMul", ("x", "a/b.weight"), ("y",)),), {"": 17},
    ).checked()  # fmt: skip
    assert verify(graph, graph).verdict == "proved"


def test_hard_swish_is_what_its_function_body_computes() -> None:
    whole = model([("HardSwish", "x", "y")], {}, [2, 3], [2, 3])
    times = ("Mul", "x s", "y")
    body = model([("HardSigmoid", "x", "s", {"alpha": 1 / 6, "beta": 0.5}), times], {}, [2, 3], [2, 3])
    assert verify(whole, body).verdict == "proved"
    other = model([("HardSigmoid", "x", "s", {"alpha": 0.17, "beta": 0.5}), times], {}, [2, 3], [2, 3])
    assert verify(whole, other).verdict == "refuted"


@pytest.mark.parametrize(("part", "verdict"), [("c", "proved"), ("b", "refuted")])
def test_a_part_taken_by_a_constant_index(part: str, verdict: str) -> None:
    taken = model([("Gather", "x i", "y", {"axis": 1})], {"i": np.array(2, np.int64)}, [4, 3, 5], [4, 5])
    rows = [("Split", "x", "a b c", {"axis": 1}), ("Squeeze", f"{part} one", "y")]
    assert verify(taken, model(rows, {"one": np.array([1], np.int64)}, [4, 3, 5], [4, 5])).verdict == verdict


def test_what_is_read_for_its_type_alone_leaves_a_constant_constant() -> None:
    rows = [("CastLike", "n x", "f"), ("Sqrt", "f", "r"), ("Div", "x r", "y")]
    scaled = model(rows, {"n": np.array(64, np.int64)}, [2, 3], [2, 3])
    folded = model([("Div", "x eight", "y")], {"eight": np.array(8, np.float32)}, [2, 3], [2, 3])
    assert verify(scaled, folded).verdict == "proved"


def test_the_text_of_a_value_does_not_double_with_each_reading() -> None:
    value: normal_form_terms.Value = (
        normal_form_terms.Monomial(
            Fraction(1), (), frozenset(), ((normal_form_terms.TensorElement("x", (sym("i"),)), Fraction(1)),)
        ),
    )
    for _ in range(60):  # 2^60 readings of x
        twice = normal_form_terms.FunctionApplication("f", (value, value))
        value = (normal_form_terms.Monomial(Fraction(1), (), frozenset(), ((twice, Fraction(1)),)),)
    assert len(normal_form_terms.text(value)) < 50_000
    assert normal_form_terms.text(value) != normal_form_terms.text(value, {"i": sym("j")})
