"""The differential check: it accepts what is equal up to rounding and catches small mistakes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from superopt.ir.diff import changed_regions, grown
from superopt.ir.errors import ResourceLimit
from superopt.ir.graph import Graph, Node, Value, constant
from superopt.ir.size_polynomial import sym
from superopt.ir.types import DType, TensorType
from superopt.ops.shape_inference import infer
from superopt.verifier.check import input_generation
from superopt.verifier.check.differential import ErrorAllowance, check, check_regions, make_inputs
from superopt.verifier.equivalence.graphs import verify

rng = np.random.default_rng(3)
F = DType.FLOAT32


def single(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


W, B = single(4, 3, 3, 3, scale=0.2), single(4)
GAMMA, BETA, MEAN, VARIANCE = single(4), single(4), single(4), rng.uniform(0.5, 2, 4).astype(np.float32)
DENSE = single(6, 6)


IMAGE = TensorType(F, (2, 3, 8, 8))


def graph(nodes, weights, x=IMAGE, out=None, outputs=("y",), opset=18) -> Graph:
    return Graph(
        "g", (Value("x", x),), tuple(Value(o, TensorType(F, out) if out else None) for o in outputs),
        tuple(constant(n, a) for n, a in weights.items()), tuple(nodes), {"": opset},
    ).checked()  # fmt: skip


def conv_bn(epsilon: float = 1e-3, pads=(1, 1, 1, 1), bias: bool = True) -> Graph:
    conv = Node("c", "Conv", ("x", "w", "b") if bias else ("x", "w"), ("h",), {"pads": pads})
    bn = Node("n", "BatchNormalization", ("h", "g", "e", "m", "v"), ("y",), {"epsilon": epsilon})
    weights = {"w": W, "b": B, "g": GAMMA, "e": BETA, "m": MEAN, "v": VARIANCE}
    return graph([conv, bn], weights if bias else {k: a for k, a in weights.items() if k != "b"}, out=(2, 4, 8, 8))


def folded() -> Graph:
    scale = GAMMA / np.sqrt(VARIANCE + np.float32(1e-3))
    weights = {"w": W * scale[:, None, None, None], "b": (B - MEAN) * scale + BETA}
    return graph([Node("c", "Conv", ("x", "w", "b"), ("y",), {"pads": (1, 1, 1, 1)})], weights, out=(2, 4, 8, 8))


def dense(weight: np.ndarray) -> Graph:
    return graph([Node("m", "MatMul", ("x", "w"), ("y",))], {"w": weight}, TensorType(F, (sym("n"), 6)), (sym("n"), 6))


def test_accepts_batch_normalisation_folded_into_a_convolution():
    found = check(conv_bn(), folded())
    assert (found.verdict, found.reason) == ("passed", "")
    assert found.trials > 3  # the steered inputs besides the three unsteered ones
    assert "original" in found.reference
    assert 0 < found.max_rel_error < 1e-5


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (dense(DENSE), dense(DENSE.T.copy())),
        (conv_bn(), conv_bn(pads=(0, 2, 2, 0))),
        (conv_bn(epsilon=1e-3), conv_bn(epsilon=1e-2)),
        (conv_bn(epsilon=1e-5), conv_bn(epsilon=1e-4)),
        (conv_bn(), conv_bn(bias=False)),
    ],
    ids=["transposed weight", "shifted pad", "epsilon", "small epsilon", "dropped bias"],
)
def test_catches_a_small_mistake(before, after):
    found = check(before, after)
    assert found.verdict == "failed"
    assert found.culprit_output == "y"
    assert "error" in found.reason


def test_the_signature_must_stay():
    model = dense(DENSE)
    other = replace(
        model, outputs=(Value("z", model.outputs[0].type),), nodes=(replace(model.nodes[0], outputs=("z",)),)
    )
    assert "outputs were" in check(model, other).reason
    wider = replace(model, inputs=(Value("x", TensorType(F, (4, 6))),))
    found = check(model, wider)
    assert (found.verdict, found.reason) == ("failed", "input 'x' was float32[n, 6] and is float32[4, 6]")


def test_a_result_that_cannot_run_fails():
    broken = dense(DENSE[:5].copy())
    assert check(dense(DENSE), broken).verdict == "failed"


def test_an_original_that_onnx_runtime_refuses_is_compared_in_float64():
    def model(op: str) -> Graph:
        kind = TensorType(DType.BFLOAT16, (3, 4))
        made = graph([Node("r", op, ("x",), ("y",))], {}, kind)
        return replace(made, outputs=(Value("y", kind),))

    found = check(model("Asin"), model("Asin"))
    assert found.verdict == "passed"
    assert "float64 only" in found.reason
    assert check(model("Asin"), model("Atan")).verdict == "failed"


def test_nan_and_infinity_must_stay():
    def model(op: str, *more: Node) -> Graph:
        return graph([Node("l", op, ("x",), ("h",)), *more], {}, TensorType(F, (64,)), (64,))

    log = model("Log", Node("i", "Identity", ("h",), ("y",)))
    assert check(log, log).verdict == "passed"
    cleaned = model("Abs", Node("i", "Log", ("h",), ("y",)))
    assert "the original gives nan" in check(log, cleaned).reason


def test_operators_without_a_meaning_run_in_onnx_runtime():
    nodes = [Node("n", "LpNormalization", ("x",), ("h",), {"axis": -1, "p": 1}), Node("s", "Add", ("h", "h"), ("y",))]
    twice = [nodes[0], Node("s", "Mul", ("h", "two"), ("y",))]
    kind = TensorType(F, (4, 6))
    before = graph(nodes, {}, kind, (4, 6))
    assert check(before, graph(twice, {"two": np.float32([2])}, kind, (4, 6))).verdict == "passed"
    assert check(before, graph(twice, {"two": np.float32([2.001])}, kind, (4, 6))).verdict == "failed"


def test_random_models_are_skipped():
    noise = graph([Node("r", "RandomNormalLike", ("x",), ("y",))], {}, TensorType(F, (4,)), (4,))
    found = check(noise, noise)
    assert (found.verdict, found.reason) == ("skipped", "every output is random: it differs from run to run")


def test_integers_stay_within_the_table_that_they_index():
    nodes = [Node("u", "Unsqueeze", ("x", "a"), ("k",)), Node("g", "Gather", ("t", "k"), ("y",))]
    weights = {"t": single(7, 3), "a": np.int64([0])}
    model = graph(nodes, weights, TensorType(DType.INT64, (sym("n"), 50)), (1, sym("n"), 50, 3))
    drawn = make_inputs(model, 0, "edge")["x"]
    assert drawn.dtype == np.int64
    assert (drawn.min(), drawn.max()) == (0, 6)
    assert check(model, model).verdict == "passed"
    sizes = {make_inputs(model, seed)["x"].shape[0] for seed in range(12)}
    assert len(sizes) > 1
    assert make_inputs(model, 0, sizes={"n": 9})["x"].shape == (9, 50)


def test_inputs_of_sizes_that_nobody_asked_for_are_no_larger_than_a_check_needs(monkeypatch):
    """What one open size makes of another: 240 of everything are 14 GB here."""
    model = graph(
        [Node("r", "Relu", ("x",), ("y",), {})], {}, TensorType(F, (sym("n"), 16, 4 * sym("m"), 4 * sym("m")))
    )
    with pytest.raises(ResourceLimit, match=r"too large for a check|does not fit"):
        make_inputs(model, 0, level=6)
    monkeypatch.setattr(input_generation, "_MOST", 1 << 16)
    with pytest.raises(ResourceLimit, match="too large for a check"):
        make_inputs(model, 0, level=3)
    assert make_inputs(model, 0, sizes={"n": 1, "m": 32})["x"].size > 1 << 16  # its user asks for that


def test_sizes_grow_until_the_model_accepts_them():
    node = Node("c", "Conv", ("x", "w"), ("y",), {})
    shape = (sym("n"), 3, sym("h"), sym("v"))
    model = graph([node], {"w": single(2, 3, 20, 20)}, TensorType(F, shape))
    model = replace(model, outputs=(Value("y", TensorType(F, (sym("n"), 2, sym("p"), sym("q")))),))
    assert check(model, model, trials=1).verdict == "passed"


def test_regions():
    pairs = [(conv_bn(), folded()), (dense(DENSE), dense(DENSE))]
    found = check_regions(pairs)
    assert found.verdict == "passed"
    assert found.trials > 2
    bad = check_regions([*pairs, (dense(DENSE), dense(DENSE.T.copy()))])
    assert bad.verdict == "failed"
    assert bad.reason.startswith("region 2")
    assert check_regions([]).verdict == "skipped"


def test_a_place_that_differs_alone_is_looked_at_with_what_makes_its_inputs() -> None:
    """Relu(r) is r where r is a Relu: which the place itself does not know."""

    def chain(last: str) -> Graph:
        nodes = [("Relu", "x", "r"), ("Relu", "r", "s"), ("Exp", last, "y")]
        used = [Node(o, op, (i,), (o,)) for op, i, o in nodes if o != "s" or last == "s"]
        return graph(used, {}, TensorType(F, (4, 8)))

    before = chain("s")
    types = infer(before).types
    for after, verdict in ((chain("r"), "passed"), (chain("x"), "failed")):
        pairs = changed_regions(before, after, types)
        assert check_regions(pairs).verdict == "failed"
        grow = partial(grown, before, after)
        assert check_regions(pairs, grow=lambda pair, grow=grow: grow(pair, types)).verdict == verdict


def off_by(share: float) -> tuple[Graph, Graph]:
    """A model, and one that is off by nearly so much of every element, at a node of its own."""
    kind = TensorType(DType.FLOAT32, (4, 8))
    before = Graph("m", (Value("x", kind),), (Value("y", None),), (), (Node("n", "Sin", ("x",), ("y",)),), {"": 18})
    nodes = (Node("n", "Sin", ("x",), ("s",)), Node("times", "Mul", ("s", "c"), ("y",)))
    shift = constant("c", np.full((4, 8), 1.0 + 0.9 * share, np.float32))
    return before, replace(before, nodes=nodes, weights=(shift,)).checked()


def test_a_budget_of_errors_is_allowed_where_it_is_meant_and_no_more():
    before, after = off_by(1e-4)
    allowed = ErrorAllowance(2e-4, frozenset({"times"}))
    assert check(before, after).verdict == "failed"
    assert check(before, after, slack=allowed).verdict == "passed"
    assert check(before, after, slack=ErrorAllowance(2e-4, frozenset({"elsewhere"}))).verdict == "failed"
    assert check(before, after, slack=ErrorAllowance(1e-5, frozenset({"times"}))).verdict == "failed"
    assert check(*off_by(2e-3), slack=allowed).verdict == "failed"
    assert check(before, after, slack=allowed, full=True).verdict == "passed"
    assert check(before, after, slack=ErrorAllowance(1e-5, frozenset({"times"})), full=True).verdict == "failed"


def test_a_budget_is_for_rounding_and_not_for_what_differs_over_the_reals():
    before, after = off_by(1e-5)
    found = verify(before, after, power="none", slack=1e-4)
    assert found.check.verdict == "passed"
    assert found.verdict == "refuted"
    assert "over the reals" in found.reason
