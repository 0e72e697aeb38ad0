"""Guards of masked attention go where no row is masked whole, and stay where one may be."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.frontend import GraphBuilder
from superopt.frontend.symbolic_tensor import SymbolicTensor
from superopt.ir.errors import NotEquivalent
from superopt.ir.graph import Graph
from superopt.passes.weights import by_values
from superopt.pipeline import optimize
from superopt.rules.weight_claims import ConstantNanTest, WeightRewriteCertificate
from superopt.verifier.weights.claim_checker import check_values

LENGTH, WIDTH = 6, 8


def attention(mask: str, *, negated: bool = False, length: int | str = LENGTH) -> Graph:
    """Two layers of attention, each with the exporter's guard, under a mask of this kind."""
    b = GraphBuilder("attention")
    x = b.input("x", "float32", (2, length, WIDTH))
    given = _mask(b, mask)
    rng = np.random.default_rng(0)
    for _ in range(2):
        q, k, v = (
            b.op("MatMul", x, b.constant(rng.standard_normal((WIDTH, WIDTH)).astype(np.float32))) for _ in range(3)
        )
        scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 1]))
        soft = b.op("Softmax", scores if given is None else b.op("Add", scores, given), axis=-1)
        odd, zero = b.op("IsNaN", soft), b.constant(np.float32(0))
        kept = b.op("Where", b.op("Not", odd), soft, zero) if negated else b.op("Where", odd, zero, soft)
        x = b.op("Add", x, b.op("MatMul", kept, v))
    b.output(x, "y")
    return b.build()


def _mask(b: GraphBuilder, kind: str) -> SymbolicTensor | None:
    below = np.tril(np.ones((LENGTH, LENGTH), bool))
    if kind == "none":
        return None
    if kind == "causal":
        return b.constant(np.where(below, 0, -np.inf).astype(np.float32))
    if kind == "causal, chosen":
        return b.op("Where", b.constant(below), b.constant(np.float32(0)), b.constant(np.float32(-np.inf)))
    if kind == "a row masked":
        return b.constant(np.where(below & (np.arange(LENGTH) != 0), 0, -np.inf).astype(np.float32))
    if kind == "given, finite":
        m = b.op("Cast", b.input("m", "int64", (2, 1, LENGTH)), to=1)
        least = b.constant(np.finfo(np.float32).min)
        return b.op("Mul", b.op("Sub", b.constant(np.float32(1)), m), least)
    if kind == "given":
        m = b.op("Cast", b.input("m", "int64", (2, 1, LENGTH)), to=9)
        return b.op("Where", m, b.constant(np.float32(0)), b.constant(np.float32(-np.inf)))
    return b.input("m", "float32", (2, 1, LENGTH))


def guards(graph: Graph) -> int:
    return sum(n.op == "IsNaN" for n in graph.nodes)


@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize("mask", ["none", "causal", "causal, chosen", "given, finite"])
def test_a_guard_goes_where_no_row_is_masked_whole(mask: str, negated: bool) -> None:
    (stage,) = by_values(attention(mask, negated=negated))
    assert guards(stage.before) == 2
    assert guards(stage.after) == 0
    assert len(stage.certificate.decided) == 2
    check_values(stage.before, stage.after, stage.certificate)


def test_a_guard_goes_from_open_sizes() -> None:
    (stage,) = by_values(attention("none", length="L"))
    assert guards(stage.after) == 0
    check_values(stage.before, stage.after, stage.certificate)


@pytest.mark.parametrize("mask", ["a row masked", "given", "given as numbers"])
def test_a_guard_stays_where_a_row_may_be_masked_whole(mask: str) -> None:
    assert not by_values(attention(mask))


def test_a_guard_stays_where_nothing_is_taken_to_be_finite() -> None:
    assert not by_values(attention("none"), finite=False)


@pytest.mark.parametrize("kind", ["a quotient", "float16", "an infinite weight"])
def test_a_guard_stays_where_scores_may_not_be_finite(kind: str) -> None:
    b = GraphBuilder("scores")
    dtype = np.float16 if kind == "float16" else np.float32
    x = b.input("x", "float16" if kind == "float16" else "float32", (2, LENGTH, WIDTH))
    if kind == "a quotient":
        x = b.op("Div", x, b.op("ReduceL2", x, b.constant(np.array([-1])), keepdims=1))
    w = np.eye(WIDTH, LENGTH, dtype=dtype) + dtype(1)
    w[0, 0] = np.inf if kind == "an infinite weight" else 1
    soft = b.op("Softmax", b.op("MatMul", x, b.constant(w)), axis=-1)
    b.output(b.op("Where", b.op("IsNaN", soft), b.constant(dtype(0)), soft), "y")
    b.output(b.op("Mul", b.op("Where", b.op("IsNaN", soft), b.constant(dtype(0)), soft), b.constant(dtype(2))), "z")
    assert not by_values(b.build())


def test_a_test_of_data_stays() -> None:
    b = GraphBuilder("imputed")
    x = b.op("MatMul", b.input("x", "float32", (3, 4)), b.constant(np.eye(4, dtype=np.float32) * 2))
    b.output(b.op("Where", b.op("IsNaN", x), b.constant(np.float32(0)), x), "y")
    assert not by_values(b.build())


@pytest.mark.parametrize("mask", ["a row masked", "given"])
def test_a_wrong_answer_is_refuted(mask: str) -> None:
    graph = attention(mask)
    wrong = tuple(ConstantNanTest(n.outputs[0], False) for n in graph.nodes if n.op == "IsNaN")
    claims = WeightRewriteCertificate(decided=wrong, finite=True)
    with pytest.raises(NotEquivalent, match="is not false everywhere"):
        check_values(graph, graph, claims)


def test_the_result_is_checked_and_simpler() -> None:
    result = optimize(attention("causal"), target="profile:cpu-epyc-2core", time_limit=None)
    assert guards(result.graph) == 0
    assert result.report.check.verdict == "passed"
