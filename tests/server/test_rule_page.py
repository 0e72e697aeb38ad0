"""A rule's page begins with what the rule gains and an example; long conditions stand behind a summary."""

from __future__ import annotations

import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from superopt.rules import load_library
from superopt.rules.float_verdicts import float_key
from superopt.server.views.rule_page import example_of, float_rows, gain_text, reach_text

BOTH = {"directions": ["left to right", "right to left"]}
LONG = 160  # characters of a condition that nobody reads first


@pytest.mark.parametrize(
    ("left", "right", "said"),
    [
        (20.0, 10.0, "2.0 × faster from left to right: 20.0 µs → 10.0 µs, estimated at the sizes of discovery."),
        (10.0, 20.0, "2.0 × faster from right to left: 20.0 µs → 10.0 µs, estimated at the sizes of discovery."),
        (10.0, 0.0, "All 10.0 µs from left to right, estimated: what remains depends on weights alone."),
        (10.0, 9.9, "Nothing by itself: each side takes 10.0 µs, estimated."),
        (0.0, 0.0, "Nothing by itself: each side takes 0.0 µs, estimated."),
    ],
)
def test_a_gain_is_said_in_the_direction_that_has_it(left: float, right: float, said: str) -> None:
    assert gain_text(BOTH, {"lhs_us": left, "rhs_us": right}) == said


def test_a_gain_in_a_direction_that_is_not_used_says_so() -> None:
    one_way: dict[str, Any] = {"directions": ["left to right"]}
    assert "That direction is not used" in gain_text(one_way, {"lhs_us": 1.0, "rhs_us": 5.0})
    assert gain_text(one_way, None) == "Its gain is not recorded."
    assert reach_text([]) == ""
    assert example_of(None) == example_of({"outcome": "none"}) == ""


def test_the_page_begins_with_gain_and_example_and_hides_the_condition(client: TestClient) -> None:
    library = load_library()
    longest = max(
        library,
        key=lambda i: max((len(v.sentence) for by_type in library.float_store.get(float_key(library[i]), {}).values()
                           for v in by_type.values()), default=0),
    )  # fmt: skip
    page = client.get(f"/rules/{longest}").text
    places = [page.index(text) for text in ("What does it gain?", "An example", "<h2>In words", "<h2>Proof")]
    assert places == sorted(places)
    assert re.search(r"both sides give .*, equal in float32", page)
    shown = re.sub(r"<details>.*?</details>", "", page, flags=re.DOTALL)
    cells = re.findall(r"<td>(.*?)</td>", shown[shown.index('id="float"') :], re.DOTALL)
    assert max(map(len, cells)) < LONG
    sentences = [f["sentence"] for f in client.get(f"/v1/rules/{longest}").json()["floats"]]
    assert max(map(len, sentences)) > LONG
    assert "<details><summary>Condition</summary>" in page


def test_verdicts_have_a_short_form_each() -> None:
    given = [{"verdict": v, "sentence": s} for v, s in (("safe", "safe"), ("conditional", "conditional on x"))]
    rows = float_rows(given)
    assert [(r["short"], r["more"]) for r in rows] == [("safe", False), ("safe under a condition", True)]
