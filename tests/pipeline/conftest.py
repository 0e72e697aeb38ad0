"""Which tests of the pipeline are essential."""

from __future__ import annotations

import pytest

ESSENTIAL = frozenset({
    "test_what_matters_is_seen", "test_two_rounds_decide_nothing", "test_what_is_refused_is_said_with_figures",
    "test_what_cannot_be_checked_is_not_returned", "test_what_is_no_model_is_refused",
    "test_without_time_the_input_comes_back", "test_strict_refuses_what_is_not_understood",
    "test_an_unknown_operator_is_kept_and_the_rest_is_checked_in_pieces", "test_what_is_certified_is_what_is_returned",
})  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if getattr(item, "originalname", "") in ESSENTIAL:
            item.add_marker(pytest.mark.essential)
