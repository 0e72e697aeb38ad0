"""Rules that somebody typed: proved with a certificate that holds, or refuted by numbers; errors at their column."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from superopt.rules import load_library
from superopt.verifier import check_certificate

SUM = {
    "forall": {"x": "f[m, k]", "a": "f[k, n]", "b": "f[k, n]"}, "lhs": ["Add(MatMul(x, a), MatMul(x, b))"],
    "rhs": ["MatMul(x, Add(a, b))"],
}  # fmt: skip


def test_a_true_rule_is_proved_with_a_certificate_that_holds(client: TestClient) -> None:
    found = client.post("/v1/rules/judge", json=SUM).json()
    assert found["verdict"] == "proved_all_sizes"
    check_certificate(found["certificate"])
    assert {f["direction"] for f in found["floats"]} == {"forward", "backward"}
    assert found["trial"]["outcome"] == "equal"
    known = load_library()
    assert found["nearest"]
    assert all(n["id"] in known for n in found["nearest"])


def test_a_false_rule_is_refuted_by_numbers(client: TestClient) -> None:
    wrong = {"forall": {"x": "f[m]"}, "lhs": ["Relu(Neg(x))"], "rhs": ["Neg(Relu(x))"]}
    found = client.post("/v1/rules/judge", json=wrong).json()
    assert found["verdict"] == "refuted"
    assert found["proof"]["counterexample"]["elements"]["x"]
    assert " on the left and " in found["says"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"lhs": ["Relu(Neg(x)"]}, "column 12"),
        ({"lhs": ["Foo(x)"]}, "no operator 'Foo'"),
        ({"lhs": ["Relu(z)"]}, "z"),
        ({"forall": {"x": "g[m]"}}, "forall"),
        ({"lhs": []}, ""),
        ({"forall": {"x": "i[m]", "y": "f[m]"}, "lhs": ["Add(x, y)"]}, "int64 and float32 differ"),
        ({"forall": {"x": "i[m]"}, "lhs": ["Add(x, x)"], "rhs": ["Mul(x, 2.5)"]}, "int64 and float32 differ"),
    ],
)
def test_what_is_no_rule_is_said(client: TestClient, changed: dict[str, object], said: str) -> None:
    row = {"forall": {"x": "f[m]"}, "lhs": ["Relu(x)"], "rhs": ["Relu(x)"], **changed}
    answer = client.post("/v1/rules/judge", json=row)
    assert answer.status_code == 422, answer.text
    assert said in answer.json()["detail"]


@pytest.mark.parametrize(
    ("lhs", "rhs", "verdict"),
    [
        ("Add(x, x)", "Mul(x, 2)", "proved_all_sizes"),  # a number beside integers is one
        ("Mul(Div(x, 2), 2)", "x", "refuted"),
        ("Div(Neg(x), 2)", "Div(Neg(x), 3)", "refuted"),
        ("Mul(x, x)", "x", "refuted"),  # so it is of 0 and 1
        ("Abs(x)", "x", "refuted"),
    ],
)
def test_integers_are_more_than_nothing_and_one(client: TestClient, lhs: str, rhs: str, verdict: str) -> None:
    row = {"forall": {"x": "i[m]"}, "lhs": [lhs], "rhs": [rhs]}
    found = client.post("/v1/rules/judge", json=row).json()
    assert found["verdict"] == verdict, found
    if verdict == "refuted":
        assert " on the left and " in found["says"]


def test_bodies_that_are_no_rules(client: TestClient) -> None:
    for body in (b"", b"{", b"[]", b"3"):
        assert client.post("/v1/rules/judge", content=body).status_code == 422
    assert client.post("/v1/rules/judge", content=b" " * (1 << 15)).status_code == 413


def test_the_page_works_without_script(client: TestClient) -> None:
    page = client.get("/playground").text
    assert "MatMul(x, Add(a, b))" in page
    form = {
        "forall": (None, "x: f[m]"),
        "lhs": (None, "Relu(Neg(x))"),
        "rhs": (None, "Neg(Relu(x))"),
        "where": (None, ""),
    }
    answer = client.post("/playground", files=form)
    assert "on the left and" in answer.text
    evil = {**form, "lhs": (None, "<script>alert(1)</script>")}
    answer = client.post("/playground", files=evil)
    assert answer.status_code == 422
    assert "<script>alert" not in answer.text
