"""Rules of one name are told apart; fast algorithms are found by their names in the literature."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from superopt.report.algorithm_names import algorithm_data, search_algorithms
from superopt.report.naming import RuleIndex
from superopt.rules import RuleLibrary, load_library, parse_rule
from superopt.rules.bilinear import algorithms
from superopt.server.app import create_app
from superopt.server.settings import ServiceSettings
from superopt.server.views.catalogue import RuleDifferences

LIBRARY = load_library()
NAMES = RuleIndex(LIBRARY).names


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """The application without workers."""
    settings = ServiceSettings(data=tmp_path_factory.mktemp("differences"))
    with TestClient(create_app(settings), base_url="http://localhost") as made:
        yield made


def test_no_two_rules_have_one_name_and_one_difference() -> None:
    differences = RuleDifferences(LIBRARY, NAMES)
    seen = Counter((NAMES[i], differences.of(i)) for i in LIBRARY)
    assert [pair for pair, count in seen.items() if count > 1] == []
    for rule_id in LIBRARY:
        assert bool(differences.of(rule_id)) == bool(differences.namesakes(rule_id))
    lengths = sorted(len(differences.of(i)) for i in LIBRARY)
    assert lengths[len(lengths) // 2] < 40  # most are a few words


@pytest.mark.parametrize(
    ("other", "differs", "others"),
    [
        ({"forall": {"x": "i[n]"}}, "on integers", "for rank 2"),
        ({"lhs": ["Add(Neg(x), Neg(x))"], "rhs": ["Neg(Add(x, x))"]}, "with Add", "2 Neg on the left"),
    ],
)
def test_a_difference_is_what_the_other_rule_has_not(
    other: dict[str, object], differs: str, others: str
) -> None:  # fmt: skip
    row = {"forall": {"x": "f[m, n]"}, "lhs": ["Neg(Neg(x))"], "rhs": ["x"], "origin": "test"}
    rules = {i: parse_rule({**row, **more, "id": i}) for i, more in (("one", {}), ("two", other))}
    library = RuleLibrary(rules)
    found = RuleDifferences(library, dict.fromkeys(rules, "a name"))
    assert found.of("two") == differs
    assert found.of("one") == others
    assert list(found.namesakes("one")) == ["two"]


def test_rules_page_shows_what_differs(pages: TestClient) -> None:
    rows = pages.get("/v1/rules", params={"q": "merge consecutive Reshape", "limit": 5}).json()["rules"]
    page = pages.get("/rules", params={"q": "merge consecutive Reshape"}).text
    for row in rows:
        assert row["differs"]
        own = pages.get(f"/rules/{row['id']}").text
        assert "Variant:" in own
    assert page.count("Variant:") >= len(rows)


@pytest.mark.parametrize(
    ("words", "some"),
    [
        ("winograd", "conv:4:3"), ("Winograd conv", "conv:2:3"), ("strassen", "matmul:2:2:2"), ("F(6,", "conv:6:3"),
        ("toom-cook", "conv:2:5"), ("fast matrix multiplication", "matmul:3:3:3"), ("karatsuba", "complex"),
    ],
)  # fmt: skip
def test_algorithms_are_found_by_the_names_of_the_literature(words: str, some: str, pages: TestClient) -> None:
    assert some in [a["id"] for a in search_algorithms(words)]
    assert some in [a["id"] for a in pages.get("/v1/rules", params={"q": words}).json()["algorithms"]]
    assert f'href="/algorithms/{some}"' in pages.get("/rules", params={"q": words}).text


def test_words_that_mean_no_algorithm_find_none(pages: TestClient) -> None:
    assert search_algorithms("batchnorm") == []
    assert "Fast algorithms" not in pages.get("/rules", params={"q": "batchnorm"}).text
    assert "algorithms" not in pages.get("/v1/rules").json()


def test_every_algorithm_has_a_page_that_says_what_it_saves(pages: TestClient) -> None:
    for name in algorithms():
        data = algorithm_data(name)
        assert data is not None
        assert data["multiplications"] < data["direct_multiplications"]
        page = pages.get(f"/algorithms/{name}")
        assert page.status_code == 200
        assert f"{data['multiplications']} multiplications instead of {data['direct_multiplications']}" in page.text
        assert "coefficients compared exactly" in page.text
        assert pages.get(f"/v1/algorithms/{name}").json() == data


@pytest.mark.parametrize("name", ["nope", "conv:9:9", "<b>", "a" * 300])
def test_an_unknown_algorithm_is_a_problem(name: str, pages: TestClient) -> None:
    assert pages.get(f"/v1/algorithms/{name}").status_code == 404
    page = pages.get(f"/algorithms/{name}")
    assert page.status_code == 404
    assert "<b>" not in page.text
