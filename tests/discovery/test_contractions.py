"""What may be done with matrices: sums of products, operators along axes; what is repeated and moved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sampling import slow

import superopt
from superopt import cost as costs
from superopt.discovery.data_movement_terms import along, along_matrices, as_products, contracts
from superopt.discovery.discover import claimed
from superopt.discovery.learn import LearningResult, learn
from superopt.discovery.symbolic_generalisation import lifted
from superopt.frontend import GraphBuilder
from superopt.ir.graph import Graph
from superopt.ir.terms import AttributeValue, OperatorTerm, Term, VariableTerm, postorder
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.rules import load_library
from superopt.rules.library import RuleLibrary
from superopt.rules.typing import type_terms
from superopt.runtime.comprehension_evaluation import FLOAT64, Array, evaluate
from superopt.verifier import verdict
from superopt.verifier.exact import testing

PRICES = "profile:cpu-epyc-2core"


def real(*shape: int) -> TensorType:
    return TensorType(DType.FLOAT32, shape)


def value(root: Term, given: dict[str, Array]) -> Array:
    kinds = {n: real(*v.shape) for n, v in given.items()}
    made: dict[Term, Array] = {VariableTerm(n): v for n, v in given.items()}
    for app, meaning in type_terms([root], kinds)[1].items():
        made[app] = evaluate(meaning.outputs[0], [None if a is None else made[a] for a in app.args], FLOAT64, {})
    return made[root]


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ibh,hnd->ibnd", ((5, 1, 6), (6, 2, 3))),
        ("ibnd,jbnd->bnij", ((5, 1, 2, 3), (4, 1, 2, 3))),
        ("bnij,jbnd->ibnd", ((2, 3, 5, 4), (4, 2, 3, 2))),
        ("bhwc,hkc->bhwk", ((2, 3, 4, 5), (3, 2, 5))),
        ("ij,ij->i", ((2, 3), (2, 3))),
    ],
)
def test_every_form_of_a_contraction_is_the_contraction(equation: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    rng = np.random.default_rng(0)
    given = {n: rng.integers(-4, 5, s).astype(np.float64) for n, s in zip("xy", shapes, strict=True)}
    term = OperatorTerm("Einsum", (VariableTerm("x"), VariableTerm("y")), (("equation", equation),))
    meaning = type_terms([term], {n: real(*v.shape) for n, v in given.items()})[1][term].outputs[0]
    assert contracts(meaning)
    forms = list(as_products(term, meaning))
    assert forms
    for form in forms:
        assert [t.op for t in postorder(form) if isinstance(t, OperatorTerm)].count("MatMul") == 1
        np.testing.assert_array_equal(value(form, given), np.einsum(equation, given["x"], given["y"]))


@pytest.mark.parametrize(
    ("op", "attributes", "shapes"),
    [
        ("Einsum", {"equation": "ij,jk->"}, ((2, 3), (3, 4))),  # sums along axes that one operand has alone
        ("Einsum", {"equation": "ii,ij->j"}, ((3, 3), (3, 4))),
        ("Einsum", {"equation": "bi,bj->bij"}, ((2, 3), (2, 4))),  # sums nothing
        ("Mul", {}, ((2, 3), (2, 3))),
        ("Add", {}, ((2, 3), (2, 3))),
    ],
)
def test_what_contracts_is_told_by_its_meaning(
    op: str, attributes: dict[str, str], shapes: tuple[tuple[int, ...], ...]
) -> None:  # fmt: skip
    assert not contracts(REGISTRY[op].apply([real(*s) for s in shapes], attributes)[0].outputs[0])


@pytest.mark.parametrize(
    ("op", "attributes", "shape"),
    [
        ("Softmax", {"axis": 1}, (2, 3, 4, 5)),
        ("Softmax", {"axis": 0}, (3, 4)),
        ("ReduceMax", {"axes": (1,), "keepdims": 1}, (1, 3, 4, 5)),
        ("ReduceSum", {"axes": (1, 3), "keepdims": 0}, (2, 3, 4, 5)),
    ],
)
def test_what_works_along_axes_does_so_with_matrices(
    op: str, attributes: dict[str, AttributeValue], shape: tuple[int, ...]
) -> None:  # fmt: skip
    given = {"x": np.random.default_rng(1).standard_normal(shape)}
    term = OperatorTerm(op, (VariableTerm("x"),), tuple(sorted(attributes.items())))
    assert along(term)
    wanted = value(term, given)
    forms = list(along_matrices(term, shape, wanted.shape))
    assert forms
    for form in forms:
        np.testing.assert_allclose(value(form, given), wanted, rtol=1e-12)


def test_axes_beside_each_other_are_one_where_that_is_fast(tmp_path: Path) -> None:
    """YOLOv8 takes the Softmax along the second of four axes; as the second of three it is five times as fast."""
    b = GraphBuilder("net")
    x = b.input("x", "float32", (1, 16, 4, 1344)).relu()
    b.output(b.op("Softmax", x, axis=1).relu(), "y")
    found = learnt(b.build(), RuleLibrary({}), tmp_path / "out")
    assert found.saved_us["net"] > 0.5 * found.model_us["net"]
    assert "Softmax(Reshape(xa, shape=[b, c, h*w]), axis=1)" in str(found.rules[0].rhs[0])


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("Softmax(x, axis=1)", "Reshape(Softmax(Reshape(x, shape=[b, c, h*w]), axis=1), shape=[b, c, h, w])"),
        ("PRelu(x, ConstantOfShape(shape=[1, 1], value=t))", "LeakyRelu(x, alpha=t)"),
    ],
)
def test_the_library_has_what_detectors_and_separators_need(left: str, right: str) -> None:
    library = load_library()
    assert any((str(library[i].lhs[0]), str(library[i].rhs[0])) == (left, right) for i in library)


@pytest.mark.parametrize(
    ("data", "slope"), [slow((1, 64, 56, 56), (64, 1, 1)), slow((8, 64, 500), (64, 1)), ((2048, 64), (64,))]
)
def test_slopes_of_each_channel_are_written_in_operators_that_are_fast(
    data: tuple[int, ...], slope: tuple[int, ...]
) -> None:  # fmt: skip
    """Recognisers of faces have such a PRelu behind each convolution."""
    b = GraphBuilder("net")
    x = b.op("Tanh", b.input("x", "float32", data))
    b.output(b.op("Neg", b.op("PRelu", x, b.weight("s", slope))), "y")
    found = superopt.optimize(b.build(), options=superopt.Options(target=PRICES, time_limit=None))
    assert found.report.check.verdict == "passed"
    assert "PRelu" not in [n.op for n in found.graph.nodes]
    assert found.report.cost.after_us < 0.6 * found.report.cost.before_us


def learnt(graph: Graph, library: RuleLibrary, out: Path) -> LearningResult:
    with claimed(out) as asked, costs.for_target(PRICES) as prices:
        return learn({"net": graph}, library, prices, out=out, asked=asked, target=PRICES, seconds=240.0)


@pytest.mark.slow
def test_sums_of_products_are_learnt_as_products_of_matrices(tmp_path: Path) -> None:
    """XLNet's attention: a product with a weight of three axes, and one of two tensors with a batch behind a row."""
    b = GraphBuilder("net")
    x = b.input("x", "float32", (64, 1, 192))
    q = b.op("Einsum", x, b.weight("q", (192, 4, 48), scale=0.1), equation="ibh,hnd->ibnd")
    k = b.op("Einsum", x, b.weight("k", (192, 4, 48), scale=0.1), equation="ibh,hnd->ibnd")
    b.output(b.op("Einsum", q, k, equation="ibnd,jbnd->bnij"), "scores")
    found = learnt(b.build(), load_library(), tmp_path / "out")
    lefts = {str(r.lhs[0]) for r in found.rules}
    assert any('equation="ibh,hnd->ibnd"' in s for s in lefts)
    assert any('equation="ibnd,jbnd->bnij"' in s for s in lefts)
    for rule in found.rules:
        assert "Einsum" not in str(rule.rhs[0])
        assert isinstance(testing.test(rule, seed=31), verdict.TestedVerdict)


@pytest.mark.slow  # half a minute; the next test says how an Expand is stated, test_learn.py how rules are learnt
def test_what_is_repeated_is_moved_before_it_is_repeated(tmp_path: Path) -> None:
    """Relative positions as BoTNet adds them: expanded along an axis that is then put elsewhere."""
    b = GraphBuilder("net")
    x = b.input("x", "float32", (4, 16, 1, 16, 16)).relu()
    y = b.op("Expand", x, b.constant(np.array([4, 16, 16, 16, 16]))).transpose(0, 3, 1, 4, 2)
    b.output(y + b.input("y", "float32", (4, 16, 16, 16, 16)), "sum")
    found = learnt(b.build(), load_library(), tmp_path / "out")
    assert found.saved_us["net"] > 0.5 * found.model_us["net"]
    for rule in found.rules:
        assert isinstance(testing.test(rule, seed=31), verdict.TestedVerdict)


def test_an_expand_is_lifted_to_sizes_and_counts() -> None:
    term = OperatorTerm("Expand", (VariableTerm("xa"),), (("shape", (2, 5, 3)),))
    forms = [str(p.term) for p, _ in lifted(term, {"xa": real(1, 3)}, frozenset(), {"xa": "f"})]
    assert forms == ["Expand(xa, shape=[t, t1, k])"]
