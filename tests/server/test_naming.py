"""What rules are called, by their shape, and which are found by words: the same in the pages, the API and the CLI."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from superopt.cli import app
from superopt.discovery.derive import derive
from superopt.report.naming import KNOWN, RuleIndex, rule_name
from superopt.rules import load_library, parse_rule

LIBRARY = load_library()
INDEX = RuleIndex(LIBRARY)
TOUR = Path(__file__).resolve().parents[2] / "docs" / "tour.toml"

# Words, and the name or a well-known rewrite that one of the first three rules has to have.
ASKED = {
    "conv batchnorm fold": "fold BatchNormalization into Conv", "fuse conv bn": "fold BatchNormalization into Conv",
    "qkv": "merge parallel MatMul", "qkv attention": "merge parallel MatMul",
    "query key value": "merge parallel MatMul", "low rank adapter": "merge added parallel MatMul",
    "parallel conv": "merge parallel Conv", "merge parallel convolutions": "merge parallel Conv",
    "lora": "LoRA", "consecutive matmul": "merge consecutive MatMul",
    "push transpose past softmax": "move Softmax before Transpose",
    "merge relu across concat": "share Relu across Concat",
}  # fmt: skip


@pytest.mark.parametrize("words", ASKED)
def test_words_find_the_rule(words: str) -> None:
    first = INDEX.search(words)[:3]
    assert ASKED[words] in [t for i in first for t in (INDEX.names[i], *INDEX.known_as(i))], [
        (i, INDEX.names[i]) for i in first
    ]


def test_gelu_is_found_by_what_it_is() -> None:
    first = INDEX.search("gelu")[:3]
    assert any(INDEX.names[i].startswith("write ") and INDEX.names[i].endswith(" as Gelu") for i in first)


@pytest.mark.parametrize("words", ["distributive", "distributivity matmul", "factor", "factorise"])
def test_laws_of_algebra_are_found_by_their_names(words: str) -> None:
    first = INDEX.search(words)[:3]
    assert first
    assert all("added" in INDEX.names[i] for i in first)


@pytest.mark.slow
def test_what_leads_to_well_known_rewrites_is_what_derivation_finds() -> None:
    """``superopt rules derive docs/tour.toml --json superopt/report/known.json -f`` writes the file anew."""
    found = derive(TOUR, LIBRARY)
    recorded = json.loads(KNOWN.read_text())["derived"]
    assert recorded == {title: dict(chain) for title, chain in found.chains.items()}


@pytest.mark.parametrize(
    ("lhs", "rhs", "forall", "name"),
    [
        ("Relu(Relu(x))", "Relu(x)", {"x": "f[...]"}, "merge consecutive"),
        ("Neg(Neg(x))", "x", {"x": "f[...]"}, "drop Neg"),
        ("Tanh(Neg(x))", "Neg(Tanh(x))", {"x": "f[...]"}, "move Tanh before Neg"),
    ],
)
def test_a_rule_that_nobody_has_seen_has_a_name(lhs: str, rhs: str, forall: dict[str, str], name: str) -> None:
    made = parse_rule({"id": "new", "forall": forall, "lhs": [lhs], "rhs": [rhs], "origin": "test"})
    assert rule_name(made).startswith(name.split()[0])


def test_the_page_the_api_and_the_command_find_the_same(client: TestClient) -> None:
    words = "conv batchnorm fold"
    found = client.get("/v1/rules", params={"q": words, "limit": 3}).json()
    first = [r["id"] for r in found["rules"]]
    assert first == list(INDEX.search(words)[:3])
    page = client.get("/rules", params={"q": words}).text
    places = [page.index(f"/rules/{i}") for i in first]
    assert places == sorted(places)
    told = CliRunner().invoke(app, ["rules", "list", "--search", words, "--json", "-"])
    assert [r["id"] for r in json.loads(told.stdout)][:3] == first


def test_pages_of_a_search_follow_one_another(client: TestClient) -> None:
    seen: list[str] = []
    after = ""
    while after is not None and len(seen) < 200:
        found = client.get("/v1/rules", params={"q": "transpose", "limit": 7, "after": after}).json()
        seen += [r["id"] for r in found["rules"]]
        after = found["next"]
    assert seen == list(INDEX.search("transpose"))[: len(seen)]
    assert len(set(seen)) == len(seen)
