"""Rules that somebody typed: proved with a certificate that holds, or refuted by numbers; errors at their column."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.testclient import TestClient

from superopt.rules import load_library
from superopt.server.app import create_app
from superopt.server.http.openapi import TINY
from superopt.server.settings import ServiceSettings
from superopt.server.views.rule_judging import judge_rule
from superopt.verifier import check_certificate

SUM: dict[str, Any] = {
    "forall": {"x": "f[m, k]", "a": "f[k, n]", "b": "f[k, n]"}, "lhs": ["Add(MatMul(x, a), MatMul(x, b))"],
    "rhs": ["MatMul(x, Add(a, b))"],
}  # fmt: skip


def test_a_true_rule_is_proved_with_a_certificate_that_holds(client: TestClient) -> None:
    found = client.post("/v1/rules/judge", json=SUM).json()
    assert found["verdict"] == "proved_all_sizes"
    check_certificate(found["certificate"])
    assert {f["direction"] for f in found["floats"]} == {"forward", "backward"}
    assert found["trial"]["outcome"] == "equal"
    assert "corpus" not in found, "it was not asked for"
    known = load_library()
    assert found["nearest"]
    assert all(n["id"] in known for n in found["nearest"])


def test_what_a_proved_rule_would_gain_on_the_corpus(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    two_products = json.dumps(TINY)
    (corpus / "two_products.json").write_text(two_products)
    (corpus / "other.json").write_text(two_products.replace('"Add"', '"Mul"'))
    with TestClient(create_app(ServiceSettings(tmp_path / "data", corpus=corpus)), base_url="http://localhost") as http:
        found = http.post("/v1/rules/judge?corpus=true", json=SUM).json()
        assert http.post("/v1/rules/judge?corpus=perhaps", json=SUM).status_code == 400
        form = {"forall": "x: f[m, k]\na, b: f[k, n]", "lhs": SUM["lhs"][0], "rhs": SUM["rhs"][0], "corpus": "true"}
        page = http.post("/playground", files={k: (None, v) for k, v in form.items()}).text
    gain = found["corpus"]
    assert (gain["looked_at"], gain["of"]) == (2, 2)
    (model,) = gain["models"]
    assert (model["name"], model["times"]) == ("two_products", 1)
    assert model["after_us"] < model["before_us"]
    assert "2 of 2 models" in page
    assert 'href="/corpus/two_products"' in page


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
        ({"lhs": ["relu(x)"]}, "write Relu"),
        ({"lhs": ["x + x"]}, "write Add(x, x)"),
        ({"lhs": ["Relu(x) - x"]}, "write Sub(Relu(x), x)"),
        ({"lhs": ["Exp(x @ x)"]}, "write MatMul(x, x)"),
        ({"lhs": ["x ** 2"]}, "write Pow(x, 2)"),
        ({"lhs": ["-x"]}, "Neg(a)"),
        ({"lhs": ["2 * x"]}, "Mul(2, a)"),
        ({"lhs": ["Relu(z)"]}, "z"),
        ({"forall": {"x": "g[m]"}}, "forall"),
        ({"lhs": []}, ""),
        ({"forall": {"x": "i[m]", "y": "f[m]"}, "lhs": ["Add(x, y)"]}, "int64 and float32 differ"),
        ({"forall": {"x": "i[m]"}, "lhs": ["Add(x, x)"], "rhs": ["Mul(x, 2.5)"]}, "int64 and float32 differ"),
    ],
)
def test_what_is_no_rule_is_said(changed: dict[str, object], said: str) -> None:
    row = {"forall": {"x": "f[m]"}, "lhs": ["Relu(x)"], "rhs": ["Relu(x)"], **changed}
    judgement, _ = judge_rule(row)
    assert said in judgement["error"]


def test_what_is_no_rule_is_a_problem(client: TestClient) -> None:
    answer = client.post("/v1/rules/judge", json={"forall": {"x": "f[m]"}, "lhs": ["Foo(x)"], "rhs": ["x"]})
    assert answer.status_code == 422, answer.text
    assert "no operator 'Foo'" in answer.json()["detail"]


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
def test_integers_are_more_than_nothing_and_one(lhs: str, rhs: str, verdict: str) -> None:
    row = {"forall": {"x": "i[m]"}, "lhs": [lhs], "rhs": [rhs]}
    found, _ = judge_rule(row)
    assert found["verdict"] == verdict, found
    if verdict == "refuted":
        assert " on the left and " in found["says"]


def test_every_example_of_the_page_is_a_rule_that_is_judged(client: TestClient) -> None:
    page = client.get("/playground").text
    places = [unescape(p) for p in re.findall(r'class="chip" href="(/playground[^"]+)"', page)]
    assert len(places) > 4
    verdicts = []
    for place in places:
        typed = {name: values[0] for name, values in parse_qs(urlsplit(place).query).items()}
        answer = client.post("/playground", files={name: (None, text) for name, text in typed.items()})
        assert answer.status_code == 200, place
        verdicts += re.findall(r'<span class="chip (proved_all_sizes|refuted)">', answer.text)
    assert len(verdicts) == len(places)
    assert set(verdicts) == {"proved_all_sizes", "refuted"}


def test_bodies_that_are_no_rules(client: TestClient) -> None:
    surrogate, digits = b'{"forall":{"\\ud800":"f[m]"},"lhs":["x"],"rhs":["x"]}', b"9" * 5000
    long = b'{"forall":{"x":"f[' + digits + b']"},"lhs":["Relu(x)"],"rhs":["x"]}'
    tower = b'{"forall":' * 1500
    for body in (b"", b"{", b"[]", b"3", b"[" * 16_000, tower, surrogate, digits, long):
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
