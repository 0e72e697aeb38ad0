"""Right sides that leave one operator of the left side out, and parts with reshapes and products of data lifted."""

from __future__ import annotations

import pytest

from superopt.discovery.right_side_solver import RightSideSolver
from superopt.discovery.symbolic_generalisation import SynthesisProblem, lifted
from superopt.ir.terms import OperatorTerm, Term, VariableTerm, postorder
from superopt.ir.types import DType, TensorType
from superopt.rules.grammar import parse_rule
from superopt.rules.rule import Rule
from superopt.verifier import verdict
from superopt.verifier.exact import testing
from superopt.verifier.prover.prover import prove

HEADS = "Transpose(Reshape({}, shape=[b, m, r, d]), perm={})"


def problem(left: str, weights: str, **types: str) -> SynthesisProblem:
    row = parse_rule({"forall": types, "lhs": [left], "rhs": [left]})
    return SynthesisProblem(row.forall, frozenset(weights), row.lhs[0])


NORMALISED = "LayerNormalization(Add(x, t), s, c, axis=1, epsilon=e)"
KEYS = f"Softmax(MatMul(q, {HEADS.format('Add(y, c)', '[0, 2, 3, 1]')}), axis=3)"
SCALED = f"Div(MatMul({HEADS.format('Add(MatMul(x, w), c)', '[0, 2, 1, 3]')}, y), s)"
POOLED = "MaxPool(Add(x, c), dilations=[1, 1], kernel_shape=[2, 2], pads=[0, 0, 0, 0], strides=[2, 2])[0]"
LARGER = (
    'Resize({}, coordinates="asymmetric", mode="nearest", rounding="floor", scales_down=[1, 1, 1, 1], '
    "scales_up=[1, 1, 2, 2])"
)
ONE_BY_ONE = "dilations=[1, 1], group=1, pads=[0, 0, 0, 0], strides=[1, 1]"
GONE = {
    "what a normalisation takes away": (
        problem(NORMALISED, "tsc", x="f[m, n]", t="f[]", s="f[n]", c="f[n]", e="real>0"), "Add"),
    "a bias of keys": (problem(KEYS, "c", y="f[b, m, r*d]", q="f[b, r, l, d]", c="f[r*d]"), "Add"),
    "a scale of scores": (
        problem(SCALED, "wcs", x="f[b, m, k]", y="f[b, r, d, l]", w="f[k, r*d]", c="f[r*d]", s="f[]"), "Div"),
}  # fmt: skip


@pytest.mark.parametrize("name", GONE)
def test_an_operator_of_data_is_left_out(name: str) -> None:
    given, gone = GONE[name]
    found = next(RightSideSolver(given).solutions())
    assert gone not in {t.op for t in moving(found.rhs[0], given.weights)}
    assert isinstance(prove(found), verdict.ProvedVerdict), found.rhs
    assert isinstance(testing.test(found, seed=11), verdict.TestedVerdict)


def test_a_sign_goes_into_the_weight_behind_it() -> None:
    """Halves are exchanged, one with its sign turned, in every rotation of positions; what is left has no such part."""
    left = "Mul(Concat(Neg(y), z, axis=3), s)"
    given = problem(left, "s", y="f[b, h, n, d]", z="f[b, h, n, d]", s="f[n, 2*d]")
    found = next(
        s for s in RightSideSolver(given).solutions() if isinstance(testing.test(s, seed=11), verdict.TestedVerdict)
    )
    assert "Neg" not in {t.op for t in moving(found.rhs[0], given.weights)}
    assert isinstance(prove(found), verdict.ProvedVerdict), found.rhs


def moving(root: Term, weights: frozenset[str]) -> list[OperatorTerm]:
    """Applications to data."""
    every = (t for t in postorder(root) if isinstance(t, OperatorTerm))
    return [t for t in every if any(isinstance(v, VariableTerm) and v.name not in weights for v in postorder(t))]


def test_what_was_added_before_a_maximum_is_added_behind_it() -> None:
    given = problem(POOLED, "c", x="f[n, i, h, w]", c="f[i, 1, 1]")
    found = next(RightSideSolver(given).solutions())
    assert str(found.rhs[0]) == f"Add({POOLED.replace('Add(x, c)', 'x')}, c)"
    assert isinstance(prove(found), verdict.ProvedVerdict)


ALONG = {  # products along different axes: of fewer rows, of fewer channels
    "rows first": ("MatMul(w, Add(MatMul(x, k), c))", {"x": "f[b, m, n]", "k": "f[n, l]", "c": "f[l]", "w": "f[r, m]"},
                   "MatMul(MatMul(w, x), k)"),
    "channels first": (f"Conv({LARGER.format('x')}, k, {ONE_BY_ONE})", {"x": "f[b, i, h, w]", "k": "f[o, i, 1, 1]"},
                       LARGER.format(f"Conv(x, k, {ONE_BY_ONE})")),
}  # fmt: skip


@pytest.mark.parametrize("name", ALONG)
def test_operators_along_different_axes_are_exchanged(name: str) -> None:
    left, types, core = ALONG[name]
    given = problem(left, "kcw" if name == "rows first" else "k", **types)

    def cost(rule: Rule) -> tuple[float, float]:
        """What is wanted is the other order; which one is cheaper is a matter of sizes."""
        return 2.0, 1.0 if core in str(rule.rhs[0]) else 3.0

    found = next(RightSideSolver(given, cost=cost).solutions())
    assert core in str(found.rhs[0])
    assert isinstance(prove(found), verdict.ProvedVerdict), found.rhs
    assert isinstance(testing.test(found, seed=11), verdict.TestedVerdict)


@pytest.mark.parametrize(
    "left",
    [
        POOLED.replace("Add(x, c)", "Mul(x, c)"),  # a negative factor makes the least the largest
        "Softmax(Add(x, c), axis=1)",  # each channel has a shift of its own
    ],
)
def test_nothing_is_left_out_that_matters(left: str) -> None:
    given = problem(left, "c", x="f[n, i, h, w]", c="f[i, 1, 1]")
    assert [
        s
        for s in RightSideSolver(given).solutions()
        if not isinstance(testing.test(s, seed=11), verdict.RefutedVerdict)
    ] == []


@pytest.mark.parametrize(
    ("shape", "after", "lifted_to"),
    [
        ((1, 256, 192), (1, 256, 3, 64), "float32[b, m, t2*t3]"),  # heads
        ((2, 8, 6, 6), (2, 4, 2, 6, 6), "float32[b, t1*t2, h, w]"),  # groups of channels
        ((8, 32, 336), (256, 1, 14, 24), "float32[b, m, t1*t2]"),  # examples and channels together, periods apart
    ],
)
def test_a_reshape_is_lifted(shape: tuple[int, ...], after: tuple[int, ...], lifted_to: str) -> None:
    term = OperatorTerm(
        "Reshape", (OperatorTerm("Mul", (VariableTerm("xa"), VariableTerm("wa"))),), (("shape", after),)
    )
    kinds = {"xa": TensorType(DType.FLOAT32, shape), "wa": TensorType(DType.FLOAT32, ())}
    given, values = next(lifted(term, kinds, frozenset({"wa"}), {"xa": "f", "wa": "f"}))
    assert str(given.kinds["xa"]) == lifted_to
    whole = given.bound({n: int(v) for n, v in values.items()})
    assert whole.kinds == kinds  # at the model's sizes it is the model's part
    assert whole.term == term


def test_a_reshape_that_cuts_across_axes_is_not() -> None:
    term = OperatorTerm("Reshape", (VariableTerm("xa"),), (("shape", (4, 3)),))
    kinds = {"xa": TensorType(DType.FLOAT32, (6, 2))}
    for given, values in lifted(term, kinds, frozenset(), {"xa": "f"}):
        assert given.bound({n: int(v) for n, v in values.items()}).kinds == kinds


def test_a_product_of_data_is_lifted() -> None:
    """Only leading axes are beside each other; the others are as long by chance."""
    shapes = {"xa": (1, 3, 64, 64), "xb": (1, 3, 64, 64)}
    kinds = {n: TensorType(DType.FLOAT32, s) for n, s in shapes.items()}
    given, _ = next(
        lifted(
            OperatorTerm("MatMul", (VariableTerm("xa"), VariableTerm("xb"))),
            kinds,
            frozenset(),
            dict.fromkeys(kinds, "f"),
        )
    )
    first, second = (given.kinds[n].shape or () for n in kinds)
    assert first[:2] == second[:2]
    assert first[3] == second[2]
    assert len({first[2], first[3], second[3]}) == 3


def test_constants_beside_data() -> None:
    """Of a concatenation's operands none is neutral; the product behind it has parts for data and constants."""
    given = problem(
        "Add(MatMul(Concat(x, p, axis=1), w), c)", "pwc", x="f[m, k]", p="f[m, l]", w="f[k + l, n]", c="f[n]"
    )
    for found in RightSideSolver(given).solutions():
        assert not isinstance(testing.test(found, seed=11), verdict.RefutedVerdict)


def test_sizes_of_what_is_lifted_follow_from_its_leaves() -> None:
    """A first axis of one that a reshape makes of another's end is of no size that a leaf has."""
    term = OperatorTerm(
        "Reshape", (OperatorTerm("Transpose", (VariableTerm("xa"),), (("perm", (1, 0, 2)),)),), (("shape", (1, 12)),)
    )
    kinds = {"xa": TensorType(DType.FLOAT32, (1, 3, 4))}
    for given, values in lifted(term, kinds, frozenset(), {"xa": "f"}):
        names = {*given.rule.sizes, *given.rule.attribute_atoms}
        assert given.bound({n: int(v) for n, v in values.items() if n in names}).term == term
