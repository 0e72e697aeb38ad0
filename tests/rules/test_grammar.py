"""The grammar: printing parses back, canonical forms forget names, and errors point at the column."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superopt.ir.size_polynomial import sym
from superopt.ir.terms import OperatorTerm, OutputTerm, VariableTerm
from superopt.rules import RuleError, format_rule, load_library, parse_rule, parse_term
from superopt.rules.canonical import canonical, rule_text
from superopt.rules.grammar import format_dim, format_scheme, format_term, parse_guard, parse_scheme
from superopt.verifier.prover.prover import prove
from superopt.verifier.verdict import ProvedVerdict

LIBRARY = load_library()
FORALL = {"x": parse_scheme("f[..., m, n]"), "y": parse_scheme("f[m, n]"), "s": parse_scheme("ints[2]>=1")}


@pytest.mark.essential
def test_every_rule_of_the_library_prints_and_parses_back() -> None:
    for rule in LIBRARY.values():
        assert parse_rule(format_rule(rule), family=rule.family) == rule


atoms = st.sampled_from([sym("m"), sym("n"), sym("s_0"), 1, 2, 3])
dims = st.recursive(
    atoms,
    lambda inner: (
        st.tuples(inner, inner).map(lambda p: p[0] + p[1])
        | st.tuples(inner, inner).map(lambda p: p[0] * p[1])
        | st.tuples(inner, inner).map(lambda p: p[0] - 2 * p[1])
        | st.tuples(inner, st.sampled_from([2, 3, sym("n")])).map(lambda p: p[0] // p[1])
    ),
    max_leaves=6,
)
values = (
    dims
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('ab_"\\ é', max_size=5).filter(lambda t: t != "...")
)
attributes = st.dictionaries(
    st.sampled_from(["axis", "shape", "mode"]), values | st.lists(values, max_size=3).map(tuple), max_size=2
).map(lambda d: tuple(sorted(d.items())))
terms = st.recursive(
    st.sampled_from([VariableTerm("x"), VariableTerm("y")]),
    lambda inner: (
        st.builds(
            OperatorTerm,
            st.sampled_from(["Add", "Split"]),
            st.lists(inner, min_size=1, max_size=3).map(tuple),
            attributes,
        )
        | st.builds(
            OutputTerm, st.builds(OperatorTerm, st.just("Split"), st.tuples(inner), attributes), st.integers(0, 3)
        )
    ),
    max_leaves=8,
)


@pytest.mark.essential
@given(terms)
def test_terms_print_and_parse_back(term: object) -> None:
    assert parse_term(format_term(term, FORALL), FORALL) == term  # type: ignore[arg-type]


@given(dims)
def test_sizes_print_and_parse_back(dim: object) -> None:
    scheme = parse_scheme(f"f[{format_dim(dim)}]")  # type: ignore[arg-type]
    assert parse_scheme(format_scheme(scheme)) == scheme


@pytest.mark.parametrize("text", ["f[]", "f[..., m, 2*k]", "i[s]<k", "b[n]", "int", "int>=1", "ints[2]>0", "real!=0"])
def test_types_print_and_parse_back(text: str) -> None:
    assert format_scheme(parse_scheme(text)) == text


@pytest.mark.essential
@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("MatMul(x, (m)", 14, "expected ',' or ')'"),
        ("Add(x,, y)", 7, "expected a term"),
        ("Add(x, y", 9, "expected ',' or ')'"),
        ("Add(x, y) z", 11, "expected the end"),
        ("Add(axis=1, x)", 13, "arguments come before attributes"),
        ("Add(x, axis=1, axis=2)", 16, "written twice"),
        ("Split(x)[a]", 10, "number of an output"),
        ("Add(x, axis=s[2])", 13, "has 2 elements"),
        ("Add(x, axis=m // 0)", 15, "not positive"),
        ("Add(x, axis=x)", 13, "is a tensor"),
        ("Add(x € y)", 7, "does not belong"),
        ("Mul(x, 1e-400)", 8, "beyond what a float64 holds"),
        ("Mul(x, -1.5e400)", 9, "beyond what a float64 holds"),
        ("", 1, "expected a term"),
        ("Add(" * 300, 804, "levels of nesting"),
    ],
)
def test_errors_point_at_the_column(text: str, column: int, expected: str) -> None:
    with pytest.raises(RuleError) as error:
        parse_term(text, FORALL, where="lhs")
    message = str(error.value)
    assert message.startswith(f"lhs, column {column}: ")
    assert expected in message
    shown, caret = message.split("\n")[1:3]
    assert caret.rstrip().endswith("^")
    assert len(caret) <= len(shown) + 5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f[" + "*".join("n" * 3001) + "]", "a degree above 64"),
        ("f[" + "*".join(["(n + m + o + p)"] * 21) + "]", "more than 512 terms"),
        ("f[" + " + ".join(f"n{i}" for i in range(2000)) + "]", "more than 512 terms"),
        ("f[" + "(" * 150 + "n" + "//2)" * 150 + "]", "more than 32 divisions"),
        ("f[" + "9" * 6000 + "]", "a number of 6000 digits"),
    ],
)
def test_a_size_that_nothing_ends_with_is_refused(text: str, expected: str) -> None:
    with pytest.raises(RuleError, match=expected):
        parse_scheme(text)


ROW = {"forall": {"x": "f[b, k]", "a": "f[k, m]"}, "lhs": ["MatMul(x, a)"], "rhs": ["MatMul(x, a)"]}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"lhs": []}, "lhs must be a list"),
        ({"rhs": ["x", "a"]}, "1 terms on the left, 2 on the right"),
        ({"rhs": ["Mul(x, q)"]}, "q is used"),
        ({"rhs": ["Concat(x, a, axis=z)"]}, "z is used"),
        ({"wher": []}, "unknown key 'wher'"),
        ({"forall": {"x": "f[b, k", "a": "f[k, m]"}}, "forall.x"),
        ({"forall": {"x": "g[b, k]", "a": "f[k, m]"}}, "g is not a type"),
        ({"forall": {"x": "f[b, x]", "a": "f[k, m]"}}, "x is both a tensor and a size"),
        ({"where": ["b k"]}, "a comparison"),
        ({"id": "../b"}, "cannot name a file"),
        ({"id": "a\\b"}, "cannot name a file"),
        ({"id": "..", "lhs": ["MatMul(x, a)"]}, "cannot name a file"),
        ({"forall": {"x": "f[b, k]", "a": "f[k, m]", "s": "ints[99999999999]>=0"}}, "a vector has at most 64"),
        ({"forall": 3}, "forall must map"),
        ({"lhs": ['MatMul(Cast(Cast(x, to="float16"), to="float32"), a)']}, "Cast has to 'float16'"),
    ],
)
def test_rows_that_are_not_rules_are_refused(change: dict[str, object], expected: str) -> None:
    with pytest.raises(RuleError, match="row") as error:
        parse_rule({**ROW, **change}, where="row")
    assert expected in str(error.value)


@pytest.mark.essential
def test_names_order_and_sides_do_not_matter() -> None:
    a = parse_rule(
        {"forall": {"x": "f[b, k]", "a": "f[k, m]", "c": "f[k, n]", "s": "int>=1"},
         "lhs": ["MatMul(x, a)", "MatMul(x, c)"], "rhs": ["Relu(MatMul(x, a))", "Slice(MatMul(x, c), starts=[s])"]}
    )  # fmt: skip
    b = parse_rule(
        {"forall": {"t": "int>=1", "v": "f[q, r]", "w": "f[p, q]", "u": "f[q, z]"},
         "rhs": ["MatMul(w, u)", "MatMul(w, v)"], "lhs": ["Slice(MatMul(w, u), starts=[t])", "Relu(MatMul(w, v))"]}
    )  # fmt: skip
    assert rule_text(canonical(a)) == rule_text(canonical(b))
    assert a.id == b.id
    assert rule_text(canonical(canonical(a))) == rule_text(canonical(a))


def test_no_two_rules_of_the_library_are_the_same() -> None:
    texts = [rule_text(canonical(r)) for r in LIBRARY.values()]
    assert len(set(texts)) == len(texts)


def test_numbers_in_terms_are_constants() -> None:
    term = parse_term("Mul(x, 2)", FORALL)
    assert term == OperatorTerm(
        "Mul", (VariableTerm("x"), OperatorTerm("ConstantOfShape", (), (("shape", ()), ("value", 2.0))))
    )
    assert format_term(term, FORALL) == "Mul(x, 2.0)"


@pytest.mark.essential
def test_guards() -> None:
    guard = parse_guard("m % 2 == 1")
    assert guard.holds({"m": 3})
    assert not guard.holds({"m": 4})
    assert parse_guard("m < n").condition.size == sym("n") - sym("m") - 1


SCATTER = {"x": "f[n, k]", "u": "f[s, k]", "i": "i[s, 1]<n"}


@pytest.mark.parametrize("spelled", ["", ', reduction="none"', ', reduction="max"'])
def test_what_onnx_does_not_mean_by_default_has_to_be_said(spelled: str) -> None:
    """ScatterND is the sum here, and in ONNX what is written last: of that the sum's rules are false."""
    with pytest.raises(RuleError, match="ScatterND is only known with reduction='add'"):
        parse_rule({"id": "it", "forall": SCATTER, "lhs": [f"ScatterND(x, i, u{spelled})"], "rhs": ["x"]})


def test_what_has_to_be_said_is_written() -> None:
    known = parse_rule({
        "id": "it", "forall": SCATTER, "lhs": ['ScatterND(x, i, u, reduction="add")'],
        "rhs": ['Add(x, ScatterND(ConstantOfShape(shape=[n, k], value=0.0), i, u, reduction="add"))'],
    })  # fmt: skip
    assert parse_rule(format_rule(known)) == known
    assert 'reduction="add"' in format_rule(known)["lhs"][0]
    assert isinstance(prove(known), ProvedVerdict)
